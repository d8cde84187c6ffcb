//! Every state of a connection against every event of the core's face, in both roles.
//!
//! What always holds, whatever the state: no event panics, the state afterwards is the one the diagram above [`State`] allows, and when every
//! connection is gone nothing is left of them.

use std::time::{Duration, Instant};

use discovery::{Publisher, static_routes};

use super::conn::State;
use super::{Action, ConnKey, Core, Ended, Port, Protocol};
use crate::config::Limits;
use crate::http2::frame::PREFACE;

const ROUTES: &str = r#"
local: s0
servers:
- {id: s0, address: "10.0.0.1:1", serves: [{group: g, version: v1, resources: [things]}]}
"#;

/// Who is at the other end of the connection that is looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Other {
    Client,
    Server,
}

const STATES: [State; 4] = [State::Connecting, State::Open, State::Draining, State::Closing];

/// A core with one client, one server, and a request on stream 1 of both, as far as the state allows.
struct Scene {
    core: Core,
    now: Instant,
    /// The connection that is looked at.
    conn: ConnKey,
    is_greeted: bool,
    other: Other,
    _routes: Publisher,
}

type Happen = fn(&mut Scene);

/// Name, event, and the states it leads to: of the client's connection from [`STATES`] in order, then of the server's. `C`, `O`, `D`, `X`
/// (closing), `-` (gone).
const EVENTS: &[(&str, Happen, &str, &str)] = &[
    ("established", |scene| scene.core.handle_established(scene.conn, Protocol::Http2, scene.now), "OODX", "CODX"),
    ("established, and a greeting", Scene::establish, "OODX", "OODX"),
    ("established for HTTP/1.1", |scene| scene.core.handle_established(scene.conn, Protocol::Http1, scene.now), "OODX", "CODX"),
    ("nothing", |scene| scene.core.handle_bytes(scene.conn, &[], scene.now), "CODX", "CODX"),
    ("half a frame", |scene| scene.bytes(&[0, 0, 8, 6]), "CODX", "CODX"),
    ("DATA", |scene| scene.frame(0, 0, 1, b"some bytes"), "XODX", "XOXX"),
    ("DATA, the last", |scene| scene.frame(0, 1, 1, b"some bytes"), "XODX", "XOXX"),
    ("DATA on an idle stream", |scene| scene.frame(0, 0, 99, b"some bytes"), "XXXX", "XXXX"),
    ("HEADERS", |scene| scene.head(1, 4), "COXX", "XODX"),
    ("HEADERS, the last", |scene| scene.head(1, 5), "COXX", "XODX"),
    ("HEADERS on a new stream", |scene| scene.head(3, 5), "CODX", "XXXX"),
    ("HEADERS on an even stream", |scene| scene.head(2, 5), "XXXX", "XXXX"),
    ("HEADERS that are no HPACK", |scene| scene.frame(1, 5, 3, &[0xff; 9]), "XXXX", "XXXX"),
    (
        "HEADERS, and DATA inside",
        |scene| {
            scene.frame(1, 1, 3, &[0x82]);
            scene.frame(0, 0, 3, b"some bytes");
        },
        "XXXX",
        "XXXX",
    ),
    ("PRIORITY", |scene| scene.frame(2, 0, 1, &[0; 5]), "CODX", "CODX"),
    ("RST_STREAM", |scene| scene.frame(3, 0, 1, &[0, 0, 0, 8]), "XOXX", "XOXX"),
    ("RST_STREAM on an idle stream", |scene| scene.frame(3, 0, 99, &[0, 0, 0, 8]), "XXXX", "XXXX"),
    ("SETTINGS", |scene| scene.frame(4, 0, 0, &[0, 4, 0, 0, 0, 1]), "CODX", "CODX"),
    ("SETTINGS with too large a window", |scene| scene.frame(4, 0, 0, &[0, 4, 255, 255, 255, 255]), "XXXX", "XXXX"),
    ("SETTINGS acknowledged", |scene| scene.frame(4, 1, 0, &[]), "CODX", "CODX"),
    ("PUSH_PROMISE", |scene| scene.frame(5, 4, 1, &[0, 0, 0, 2]), "XXXX", "XXXX"),
    ("PING", |scene| scene.frame(6, 0, 0, &[0; 8]), "CODX", "CODX"),
    ("PING acknowledged", |scene| scene.frame(6, 1, 0, &[0; 8]), "CODX", "CODX"),
    ("PING of a wrong length", |scene| scene.frame(6, 0, 0, &[0; 7]), "XXXX", "XXXX"),
    ("GOAWAY, nothing taken", |scene| scene.frame(7, 0, 0, &[0; 8]), "CDDX", "CXXX"),
    ("GOAWAY, all taken", |scene| scene.frame(7, 0, 0, &[127, 255, 255, 255, 0, 0, 0, 0]), "CDDX", "CDDX"),
    ("WINDOW_UPDATE", |scene| scene.frame(8, 0, 1, &[0, 0, 1, 0]), "XODX", "XODX"),
    ("WINDOW_UPDATE of the connection", |scene| scene.frame(8, 0, 0, &[0, 0, 1, 0]), "CODX", "CODX"),
    ("WINDOW_UPDATE of zero", |scene| scene.frame(8, 0, 1, &[0; 4]), "XOXX", "XOXX"),
    ("WINDOW_UPDATE of zero, connection", |scene| scene.frame(8, 0, 0, &[0; 4]), "XXXX", "XXXX"),
    ("WINDOW_UPDATE on an idle stream", |scene| scene.frame(8, 0, 99, &[0, 0, 1, 0]), "XXXX", "XXXX"),
    ("CONTINUATION of nothing", |scene| scene.frame(9, 4, 1, &[0x88]), "XXXX", "XXXX"),
    ("an unknown kind", |scene| scene.frame(77, 0, 1, b"?"), "CODX", "CODX"),
    ("a frame that is too long", |scene| scene.bytes(&[1, 0, 0, 0, 0, 0, 0, 0, 1]), "XXXX", "XXXX"),
    ("lost", |scene| scene.core.handle_closed(scene.conn, Ended::Lost, scene.now), "----", "----"),
    ("unreachable", |scene| scene.core.handle_closed(scene.conn, Ended::Unreachable, scene.now), "----", "----"),
    ("written", |scene| scene.core.handle_written(scene.conn, scene.now), "CODX", "CODX"),
    ("a tick", |scene| scene.pass(Duration::from_millis(100)), "CODX", "CODX"),
    ("a tick after ten minutes", |scene| scene.pass(Duration::from_secs(600)), "XOXX", "XOXX"),
    ("a drain", |scene| scene.core.begin_drain(scene.now), "XODX", "CODX"),
    (
        "a drain, half a second on",
        |scene| {
            scene.core.begin_drain(scene.now);
            scene.pass(Duration::from_millis(500));
        },
        "XDDX",
        "CODX",
    ),
    (
        "a drain to its end",
        |scene| {
            scene.core.begin_drain(scene.now);
            scene.pass(Duration::from_secs(25));
        },
        "XXXX",
        "XOXX",
    ),
    ("servers retired", |scene| scene.core.retire_servers(scene.now), "CODX", "CDDX"),
];

#[test]
fn every_state_takes_every_event() {
    let mut wrong = Vec::new();
    for &(name, happen, client, server) in EVENTS {
        for (other, expected) in [(Other::Client, client), (Other::Server, server)] {
            let found: String = STATES.iter().map(|&state| outcome(other, state, happen)).collect();
            if found != expected {
                wrong.push(format!("{name}, {other:?}: {found}, not {expected}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// The state that the event leads to, as a letter.
fn outcome(other: Other, state: State, happen: Happen) -> char {
    let mut scene = Scene::new(other, state);
    happen(&mut scene);
    let found = scene.core.conns.get(scene.conn).map(|conn| conn.state);
    scene.end();
    match found {
        Some(State::Connecting) => 'C',
        Some(State::Open) => 'O',
        Some(State::Draining) => 'D',
        Some(State::Closing) => 'X',
        None => '-',
    }
}

impl Scene {
    /// Takes the connection with `other` into that state.
    fn new(other: Other, state: State) -> Self {
        let routes = Publisher::new(static_routes::parse(ROUTES).unwrap());
        let now = Instant::now();
        let mut core = Core::new(Limits::default(), routes.reader(), 1, now);
        let client = core.handle_accepted(Port::Clients, None, now).unwrap();
        let mut scene = Self { core, now, conn: client, is_greeted: false, other: Other::Client, _routes: routes };
        if other == Other::Client && state == State::Connecting {
            return scene;
        }
        scene.establish();
        scene.head(1, 4);
        let Some(Action::Connect { conn: server, .. }) = scene.core.poll_action() else { panic!("no connection is asked for") };
        if other == Other::Server {
            (scene.conn, scene.other, scene.is_greeted) = (server, other, false);
            if state == State::Connecting {
                return scene;
            }
            scene.establish();
            // Now the request leaves.
            scene.frame(4, 1, 0, &[]);
        }
        match state {
            State::Connecting | State::Open => {}
            State::Draining => scene.frame(7, 0, 0, &[127, 255, 255, 255, 0, 0, 0, 0]),
            State::Closing => scene.frame(6, 0, 0, &[0; 7]),
        }
        scene.write_all();
        assert_eq!(scene.core.conns.get(scene.conn).map(|conn| conn.state), Some(state));
        scene
    }

    /// A server says its SETTINGS at once; a client's come with what it asks for.
    fn establish(&mut self) {
        self.core.handle_established(self.conn, Protocol::Http2, self.now);
        if self.other == Other::Server {
            self.bytes(&[]);
        }
        self.write_all();
    }

    /// Takes all output, as an IO side would.
    fn write_all(&mut self) {
        while let Some(key) = self.core.poll_dirty() {
            if self.core.drain_output(key, |_| {}) {
                self.core.handle_written(key, self.now);
            }
        }
    }

    /// Bytes from the other side, behind its greeting.
    fn bytes(&mut self, bytes: &[u8]) {
        let mut all = Vec::new();
        if !std::mem::replace(&mut self.is_greeted, true) {
            all.extend_from_slice(if self.other == Other::Client { PREFACE } else { &[] });
            all.extend_from_slice(&[0, 0, 0, 4, 0, 0, 0, 0, 0]);
        }
        all.extend_from_slice(bytes);
        self.core.handle_bytes(self.conn, &all, self.now);
    }

    fn frame(&mut self, kind: u8, flags: u8, stream: u8, payload: &[u8]) {
        let length = u8::try_from(payload.len()).unwrap();
        self.bytes(&[&[0, 0, length, kind, flags, 0, 0, 0, stream], payload].concat());
    }

    /// A request from a client, a response from a server.
    fn head(&mut self, stream: u8, flags: u8) {
        match self.other {
            // GET, https, and a path in full (RFC 7541 §6.2.2).
            Other::Client => self.frame(1, flags, stream, &[&[0x82, 0x87, 0x04, 17], &b"/apis/g/v1/things"[..]].concat()),
            Other::Server => self.frame(1, flags, stream, &[0x88]),
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.core.handle_tick(self.now);
    }

    /// Every connection ends, the new ones included that this makes the core ask for.
    fn end(mut self) {
        for _ in 0..10 {
            self.write_all();
            while self.core.poll_action().is_some() {}
            for at in 0..self.core.conns.places() {
                if let Some(key) = self.core.conns.key_at(at) {
                    self.core.handle_closed(key, Ended::Lost, self.now);
                }
            }
        }
        assert_eq!(self.core.in_use(), (0, 0, 0));
        assert_eq!(self.core.clients, 0);
        assert!(self.core.servers.iter().flat_map(|server| &server.lanes).all(|lane| lane.abandoned == 0));
        assert!(self.core.servers.iter().all(super::pool::Server::is_unused));
    }
}
