//! Every phase of an exchange against every event that can meet it: what the client and the server are told, and that nothing is left.
//!
//! The states of a connection are walked in `core/walk.rs`, where they can be seen.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod sim;

use std::time::Duration;

use engine::Limits;
use sim::end::{Event, HeadStyle};
use sim::stage::{Door, Stage, field};

const MINE: &str = "/apis/g/v1/mine";
const OK: [(&str, &str); 1] = [(":status", "200")];

/// How far an exchange has come (`core::exchange::Phase`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Waiting,
    Asked,
    Answering,
}

const PHASES: [Phase; 3] = [Phase::Waiting, Phase::Asked, Phase::Answering];

/// One exchange between one client and the local server, which alone has what is asked for.
struct Scene {
    stage: Stage,
    client: usize,
    stream: u32,
    /// The connection that has the request, and the stream there; not while it waits.
    server: usize,
    arrived: u32,
}

type Happen = fn(&mut Scene);

/// No stream at the server, so it cannot happen.
const NEVER: &str = "never";

/// Name, event, and what it comes to in each of [`PHASES`]: what the client is told, then the server, and `...` when the exchange goes on.
/// `.` ends a stream, `again` is the request on another connection.
const OF_GETS: &[(&str, Happen, [&str; 3])] = &[
    ("client RST_STREAM", |scene| scene.stage.reset(scene.client, scene.stream, 8), ["- | -", "- | reset(8)", "- | reset(8)"]),
    ("client gone", |scene| scene.stage.lose(scene.client), ["closed | -", "closed | reset(8)", "closed | reset(8)"]),
    (
        "client DATA behind its end",
        |scene| scene.client_frame(0, 0, b"late"),
        ["reset(5) | -", "reset(5) | reset(8)", "reset(5) | reset(8)"],
    ),
    (
        "client HEADERS behind its end",
        |scene| scene.client_frame(1, 5, &[0x88]),
        ["reset(5) | -", "reset(5) | reset(8)", "reset(5) | reset(8)"],
    ),
    ("client GOAWAY", |scene| scene.goaway(scene.client, 0), ["- | - ...", "- | - ...", "- | - ..."]),
    ("server RST_STREAM(REFUSED_STREAM)", |scene| scene.server_resets(7), [NEVER, "- | again ...", "reset(2) | -"]),
    ("server RST_STREAM(CANCEL)", |scene| scene.server_resets(8), [NEVER, "reset(8) | -", "reset(8) | -"]),
    ("server RST_STREAM(NO_ERROR)", |scene| scene.server_resets(0), [NEVER, "reset(2) | -", "reset(2) | -"]),
    ("server RST_STREAM(HTTP_1_1_REQUIRED)", |scene| scene.server_resets(13), [NEVER, "reset(13) | -", "reset(13) | -"]),
    ("server RST_STREAM(INTERNAL_ERROR)", |scene| scene.server_resets(2), [NEVER, "reset(2) | -", "reset(2) | -"]),
    ("server GOAWAY below", |scene| scene.goaway(scene.server, 0), [NEVER, "- | goaway(0) closed again ...", "- | - ..."]),
    ("server GOAWAY above", |scene| scene.goaway(scene.server, 1_000), [NEVER, "- | - ...", "- | - ..."]),
    ("server gone", |scene| scene.stage.lose(scene.server), [NEVER, "- | closed again ...", "reset(2) | closed"]),
    ("server refuses the connection", |scene| scene.stage.lose(scene.server), ["503 data. | -", NEVER, NEVER]),
    ("server 103", |scene| scene.reply(&[(":status", "103")], false), [NEVER, "103 | - ...", "reset(2) | reset(1)"]),
    ("server head", |scene| scene.reply(&OK, false), [NEVER, "- | - ...", "reset(2) | reset(1)"]),
    ("server head, the last", |scene| scene.reply(&OK, true), [NEVER, "200. | -", "reset(2) | -"]),
    ("server head without status", |scene| scene.reply(&[("x", "y")], false), [NEVER, "503 data. | reset(1)", "reset(2) | reset(1)"]),
    ("server trailers", |scene| scene.reply(&[("x", "y")], true), [NEVER, "503 data. | -", "trailers. | -"]),
    ("server DATA", |scene| scene.server_frame(0, 0, b"piece"), [NEVER, "503 data. | reset(1)", "data | - ..."]),
    ("server DATA, the last", |scene| scene.server_frame(0, 1, b"piece"), [NEVER, "503 data. | reset(1)", "data. | -"]),
    (
        "server DATA behind its end",
        |scene| {
            scene.server_frame(0, 1, b"piece");
            scene.server_frame(0, 1, b"piece");
        },
        [NEVER, "503 data. | reset(1)", "data. | reset(5)"],
    ),
    ("a tick", |scene| scene.stage.pass(Duration::from_millis(100)), ["- | - ...", "- | - ...", "- | - ..."]),
    ("6 s", |scene| scene.stage.pass(Duration::from_secs(6)), ["503 data. | -", "- | - ...", "- | - ..."]),
    ("67 s", |scene| scene.stage.pass(Duration::from_secs(67)), ["503 data. | -", "504 data. | reset(8)", "- | - ..."]),
    (
        "67 s, server silent",
        |scene| {
            scene.stage.wires[scene.server].is_frozen = true;
            scene.stage.pass(Duration::from_secs(67));
        },
        [NEVER, "504 data. | closed again", "reset(2) | closed"],
    ),
    ("drain", |scene| scene.drain(Duration::ZERO), ["goaway(0) | - ...", "goaway(0) | - ...", "goaway(0) | - ..."]),
    (
        "drain to its end",
        |scene| scene.drain(Duration::from_secs(26)),
        [
            "goaway(0) goaway(0) 503 data. goaway(0) closed | -",
            "goaway(0) goaway(0) goaway(0) closed | reset(8)",
            "goaway(0) goaway(0) goaway(0) closed | reset(8)",
        ],
    ),
    ("servers retired", |scene| scene.retire(Duration::ZERO), ["- | - ...", "- | - ...", "- | - ..."]),
    (
        "servers retired to the end",
        |scene| scene.retire(Limits::default().retired),
        [NEVER, "504 data. goaway(0) closed | goaway(0) closed", "reset(2) | goaway(0) closed"],
    ),
];

/// The same while the client is still sending its body.
const OF_UPLOADS: &[(&str, Happen, [&str; 3])] = &[
    ("client DATA", |scene| scene.client_frame(0, 0, b"a piece of it"), ["- | - ...", "- | data ...", "- | data ..."]),
    ("client DATA, the last", |scene| scene.client_frame(0, 1, b"a piece of it"), ["- | - ...", "- | data. ...", "- | data. ..."]),
    ("client trailers", |scene| scene.client_heads(&[("x", "y")], true), ["- | - ...", "- | trailers. ...", "- | trailers. ..."]),
    (
        "client trailers that do not end it",
        |scene| scene.client_heads(&[("x", "y")], false),
        ["reset(1) | -", "reset(1) | reset(8)", "reset(1) | reset(8)"],
    ),
    ("client RST_STREAM", |scene| scene.stage.reset(scene.client, scene.stream, 8), ["- | -", "- | reset(8)", "- | reset(8)"]),
    ("client gone", |scene| scene.stage.lose(scene.client), ["closed | -", "closed | reset(8)", "closed | reset(8)"]),
    ("server head, the last", |scene| scene.reply(&OK, true), [NEVER, "200. | - ...", "reset(2) | reset(1)"]),
    (
        "server DATA, the last, and NO_ERROR",
        |scene| {
            scene.server_frame(0, 1, b"piece");
            scene.server_resets(0);
        },
        [NEVER, "503 data. reset(0) | reset(1)", "data. reset(0) | -"],
    ),
    ("server RST_STREAM(REFUSED_STREAM)", |scene| scene.server_resets(7), [NEVER, "- | again ...", "reset(2) | -"]),
    ("server RST_STREAM(NO_ERROR)", |scene| scene.server_resets(0), [NEVER, "reset(2) | -", "reset(2) | -"]),
    ("server gone", |scene| scene.stage.lose(scene.server), [NEVER, "503 data. reset(0) | closed", "reset(2) | closed"]),
    ("67 s", |scene| scene.stage.pass(Duration::from_secs(67)), ["503 data. reset(0) | -", "504 data. reset(0) | reset(8)", "- | - ..."]),
];

#[test]
fn every_phase_takes_every_event() {
    let mut wrong = Vec::new();
    for (events, is_upload) in [(OF_GETS, false), (OF_UPLOADS, true)] {
        for &(name, happen, expected) in events {
            for (phase, expected) in PHASES.into_iter().zip(expected) {
                if expected == NEVER {
                    continue;
                }
                let found = outcome(phase, is_upload, happen);
                if found != expected {
                    wrong.push(format!("{name}, {phase:?}: `{found}`, not `{expected}`"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// What the event comes to; and nothing is left when everybody has gone.
fn outcome(phase: Phase, is_upload: bool, happen: Happen) -> String {
    let mut scene = Scene::new(phase, is_upload);
    happen(&mut scene);
    let found = scene.told();
    scene.end();
    found
}

impl Scene {
    fn new(phase: Phase, is_upload: bool) -> Self {
        let mut stage = Stage::new(Limits::default());
        stage.doors[0] = if phase == Phase::Waiting { Door::Hangs } else { Door::Open };
        let client = stage.client(1 << 20);
        let stream = stage.ask(client, if is_upload { "POST" } else { "GET" }, MINE, !is_upload);
        let server = stage.wires.len() - 1;
        let mut arrived = 0;
        if phase != Phase::Waiting {
            arrived = stage.requests(server)[0].0;
        }
        let mut scene = Self { stage, client, stream, server, arrived };
        if phase == Phase::Answering {
            scene.reply(&OK, false);
            scene.server_frame(0, 0, b"begun");
        }
        scene.told();
        assert_eq!(scene.stage.core.in_use().1, 1);
        scene
    }

    fn client_frame(&mut self, kind: u8, flags: u8, payload: &[u8]) {
        self.stage.wires[self.client].end.frame(kind, flags, self.stream, payload);
        self.stage.run();
    }

    fn client_heads(&mut self, fields: &[(&str, &str)], end: bool) {
        self.stage.wires[self.client].end.headers(self.stream, fields, end, HeadStyle::default());
        self.stage.run();
    }

    fn server_frame(&mut self, kind: u8, flags: u8, payload: &[u8]) {
        self.stage.wires[self.server].end.frame(kind, flags, self.arrived, payload);
        self.stage.run();
    }

    fn server_resets(&mut self, code: u32) {
        self.stage.reset(self.server, self.arrived, code);
    }

    fn reply(&mut self, fields: &[(&str, &str)], end: bool) {
        self.stage.reply(self.server, self.arrived, fields, end);
    }

    fn goaway(&mut self, wire: usize, last: u32) {
        self.stage.wires[wire].end.goaway(last, 0);
        self.stage.run();
    }

    fn drain(&mut self, time: Duration) {
        self.stage.core.begin_drain(self.stage.now);
        self.stage.run();
        self.stage.pass(time);
    }

    fn retire(&mut self, time: Duration) {
        self.stage.core.retire_servers(self.stage.now);
        self.stage.run();
        self.stage.pass(time);
    }

    /// What both were told since the last time, and whether the exchange goes on.
    fn told(&mut self) -> String {
        let client = describe(&self.stage.seen(self.client), self.stage.wires[self.client].is_open);
        let mut server = describe(&self.stage.seen(self.server), self.stage.wires[self.server].is_open || self.arrived == 0);
        for other in self.server + 1..self.stage.wires.len() {
            if !self.stage.requests(other).is_empty() {
                server += " again";
            }
        }
        let running = if self.stage.core.in_use().1 > 0 { " ..." } else { "" };
        let told = |words: &str| if words.is_empty() { "-".to_owned() } else { words.trim_start().to_owned() };
        format!("{} | {}{running}", told(&client), told(&server))
    }

    /// Everybody goes.
    fn end(mut self) {
        for _ in 0..4 {
            for wire in 0..self.stage.wires.len() {
                self.stage.lose(wire);
            }
        }
        assert_eq!((self.stage.core.in_use(), self.stage.core.leftovers()), ((0, 0, 0), [0; 9]));
    }
}

fn describe(events: &[Event], is_open: bool) -> String {
    let mut text = String::new();
    for event in events {
        let dot = |end: bool| if end { "." } else { "" };
        text += &match event {
            Event::Head { fields, end, .. } => format!(" {}{}", field(fields, ":status").unwrap_or("asked"), dot(*end)),
            Event::Trailers { .. } => " trailers.".to_owned(),
            Event::Data { bytes, end, .. } => format!(" {}{}", if bytes.is_empty() { "" } else { "data" }, dot(*end)),
            Event::Reset { code, .. } => format!(" reset({code})"),
            Event::GoAway { code, .. } => format!(" goaway({code})"),
        };
    }
    if !is_open {
        text += " closed";
    }
    text
}
