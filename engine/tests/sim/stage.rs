//! A quiet world for single scenarios: bytes arrive at once and whole, and only what the test says goes wrong.
//!
//! Server 0 is local and serves `mine` and `both`; servers 1 and 2 are peers and serve `theirs` and `both`.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use discovery::{Publisher, static_routes};
use engine::Limits;
use engine::core::{Action, ConnKey, Core, Ended, Port, Protocol, Sign, Source};

use super::end::{End, Event, HeadStyle, INITIAL_WINDOW, MAX_STREAMS};

const ROUTES: &str = r#"
local: s0
servers:
- {id: s0, address: "10.0.0.1:1", serves: [{group: g, version: v1, resources: [both, mine]}]}
- {id: s1, address: "10.0.0.2:2", serves: [{group: g, version: v1, resources: [both, theirs]}]}
- {id: s2, address: "10.0.0.3:3", serves: [{group: g, version: v1, resources: [both, theirs]}]}
"#;

/// What local and the peers serve.
pub const BOTH: &str = "/apis/g/v1/both";
/// What only the peers serve.
pub const THEIRS: &str = "/apis/g/v1/theirs";
pub const WATCH: &str = "/apis/g/v1/both?watch=1";
/// A window that is never in the way.
pub const WIDE: u32 = 1 << 20;
pub const OK: [(&str, &str); 1] = [(":status", "200")];

/// A stage with the limits of every day.
pub fn stage() -> Stage {
    Stage::new(Limits::default())
}

/// A body in which no two places look alike for long.
#[allow(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
pub fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

/// A client, a request for `path`, and the wire and stream where it arrived at `server`.
pub fn asked(stage: &mut Stage, path: &str, server: usize) -> (usize, u32, usize, u32) {
    let client = stage.client(WIDE);
    let stream = stage.get(client, path);
    let wire = stage.to_server(server)[0];
    let arrived = stage.requests(wire)[0].0;
    (client, stream, wire, arrived)
}

/// A connection of the stage.
pub struct Wire {
    pub key: ConnKey,
    pub server: Option<usize>,
    pub end: End,
    pub is_open: bool,
    /// Neither reads nor writes.
    pub is_frozen: bool,
    /// Reads, and says nothing.
    pub is_mute: bool,
    /// What the core sent and the test has not asked for yet.
    pub events: Vec<Event>,
}

/// What a server does with new connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Door {
    Open,
    Refuses,
    Hangs,
}

/// One core, and wires to it in the order they were made.
pub struct Stage {
    pub core: Core,
    pub now: Instant,
    pub wires: Vec<Wire>,
    /// Of the first three servers; the others' are open.
    pub doors: [Door; 3],
    pub server_settings: Vec<(u16, u32)>,
    pub publisher: Publisher,
    /// What was reported about servers.
    pub signs: Vec<Sign>,
}

impl Stage {
    pub fn new(limits: Limits) -> Self {
        let publisher = Publisher::new(static_routes::parse(ROUTES).unwrap());
        let now = Instant::now();
        let core = Core::new(limits, publisher.reader(), 1, now);
        let server_settings = vec![(MAX_STREAMS, 100), (INITIAL_WINDOW, 1 << 20)];
        Self { core, now, wires: Vec::new(), doors: [Door::Open; 3], server_settings, publisher, signs: Vec::new() }
    }

    /// A client with this stream window and an address of its own, connected.
    pub fn client(&mut self, window: u32) -> usize {
        let nth = u32::try_from(self.wires.len()).unwrap();
        self.client_from(Ipv4Addr::from_bits(0x0a00_0000 + nth), window)
    }

    /// The same from that address.
    pub fn client_from(&mut self, address: Ipv4Addr, window: u32) -> usize {
        self.arrive(Port::Clients, Source::from(IpAddr::V4(address)), window)
    }

    /// Another proxy.
    pub fn peer(&mut self, window: u32) -> usize {
        self.arrive(Port::Peers, Source::from(IpAddr::V4(Ipv4Addr::LOCALHOST)), window)
    }

    fn arrive(&mut self, port: Port, source: Source, window: u32) -> usize {
        let key = self.core.handle_accepted(port, Some(source), self.now).expect("room for a client");
        self.core.handle_established(key, Protocol::Http2, self.now);
        let at = self.add(key, None, End::client(&[(INITIAL_WINDOW, window)]));
        self.wires[at].end.grant(0, 1 << 24);
        self.wires[at].is_open = true;
        self.run();
        at
    }

    fn add(&mut self, key: ConnKey, server: Option<usize>, end: End) -> usize {
        self.wires.push(Wire { key, server, end, is_open: false, is_frozen: false, is_mute: false, events: Vec::new() });
        self.wires.len() - 1
    }

    /// Sends a request head, and ends the request if there is no body to come.
    pub fn ask(&mut self, client: usize, method: &str, path: &str, end: bool) -> u32 {
        let fields = [(":method", method), (":scheme", "https"), (":authority", "stage"), (":path", path)];
        let stream = self.wires[client].end.open(&fields, end, HeadStyle::default());
        self.run();
        stream
    }

    /// A GET with more fields.
    pub fn ask_for(&mut self, client: usize, path: &str, more: &[(&str, &str)]) -> u32 {
        let fields = [(":method", "GET"), (":scheme", "https"), (":authority", "stage"), (":path", path)];
        let stream = self.wires[client].end.open(&[&fields, more].concat(), true, HeadStyle { parts: 4, ..HeadStyle::default() });
        self.run();
        stream
    }

    pub fn get(&mut self, client: usize, path: &str) -> u32 {
        self.ask(client, "GET", path, true)
    }

    /// A whole body, in as many frames and windows as it takes.
    pub fn send(&mut self, wire: usize, stream: u32, mut bytes: &[u8], end: bool) {
        loop {
            let n = self.wires[wire].end.room(stream).min(bytes.len());
            assert!(n > 0 || bytes.is_empty(), "no window for {} bytes", bytes.len());
            let (now, rest) = bytes.split_at(n);
            self.wires[wire].end.data(stream, now, end && rest.is_empty(), None);
            bytes = rest;
            self.run();
            if bytes.is_empty() {
                return;
            }
        }
    }

    /// Answers a stream of a server's wire.
    pub fn reply(&mut self, wire: usize, stream: u32, fields: &[(&str, &str)], end: bool) {
        self.wires[wire].end.headers(stream, fields, end, HeadStyle::default());
        self.run();
    }

    pub fn reset(&mut self, wire: usize, stream: u32, code: u32) {
        self.wires[wire].end.reset(stream, code);
        self.run();
    }

    /// The connection breaks.
    pub fn lose(&mut self, wire: usize) {
        self.wires[wire].is_open = false;
        self.core.handle_closed(self.wires[wire].key, Ended::Lost, self.now);
        self.run();
    }

    /// A connection that hung is there after all.
    pub fn establish(&mut self, wire: usize) {
        self.wires[wire].is_open = true;
        self.core.handle_connected(self.wires[wire].key, self.now);
        self.core.handle_established(self.wires[wire].key, Protocol::Http2, self.now);
        self.run();
    }

    /// Lets time pass, in ticks.
    pub fn pass(&mut self, time: Duration) {
        let until = self.now + time;
        while self.now < until {
            self.now = (self.core.next_tick(self.now)).min(until);
            self.core.handle_tick(self.now);
            self.run();
        }
    }

    /// Open connections to a server.
    pub fn to_server(&self, server: usize) -> Vec<usize> {
        (0..self.wires.len()).filter(|&at| self.wires[at].is_open && self.wires[at].server == Some(server)).collect()
    }

    /// What arrived at a wire since the last time.
    pub fn seen(&mut self, wire: usize) -> Vec<Event> {
        std::mem::take(&mut self.wires[wire].events)
    }

    /// The requests that arrived at a wire: stream and path.
    pub fn requests(&mut self, wire: usize) -> Vec<(u32, String)> {
        let heads = self.seen(wire).into_iter().filter_map(|event| match event {
            Event::Head { stream, fields, .. } => Some((stream, field(&fields, ":path").unwrap().to_owned())),
            _ => None,
        });
        heads.collect()
    }

    /// Moves bytes until nothing moves.
    pub fn run(&mut self) {
        loop {
            while self.core.poll_dirty().is_some() {}
            self.obey();
            let mut moved = false;
            for at in 0..self.wires.len() {
                if self.wires[at].is_open && !self.wires[at].is_frozen {
                    moved |= self.exchange(at);
                }
            }
            if !moved {
                return;
            }
        }
    }

    fn exchange(&mut self, at: usize) -> bool {
        let wire = &mut self.wires[at];
        let mut input = std::mem::take(&mut wire.end.out);
        if wire.is_mute {
            input.clear();
        }
        if !input.is_empty() {
            self.core.handle_bytes(wire.key, &input, self.now);
        }
        let mut output = Vec::new();
        let wrote = self.core.drain_output(wire.key, |bytes| output.extend_from_slice(bytes));
        if wrote {
            self.core.handle_written(wire.key, self.now);
            wire.events.append(&mut wire.end.receive(&output));
        }
        wrote || !input.is_empty()
    }

    fn obey(&mut self) {
        while let Some(action) = self.core.poll_action() {
            match action {
                Action::Blame { .. } => {}
                Action::Report(sign) => self.signs.push(sign),
                Action::Connect { conn, address, .. } => {
                    let server = usize::from(address.port()) - 1;
                    let mut end = End::server(&self.server_settings);
                    end.grant(0, 1 << 24);
                    let at = self.add(conn, Some(server), end);
                    match self.doors.get(server).copied().unwrap_or(Door::Open) {
                        Door::Open => {
                            self.wires[at].is_open = true;
                            self.core.handle_established(conn, Protocol::Http2, self.now);
                        }
                        Door::Refuses => self.core.handle_closed(conn, Ended::Unreachable, self.now),
                        Door::Hangs => {}
                    }
                }
                Action::Read { .. } | Action::Cut { .. } => unreachable!("only for HTTP/1.1"),
                Action::Close { conn } => {
                    let at = self.wires.iter().rposition(|wire| wire.key == conn).unwrap();
                    if self.wires[at].is_open && !self.wires[at].is_frozen {
                        self.exchange(at);
                    }
                    self.wires[at].is_open = false;
                    self.core.handle_closed(conn, Ended::Lost, self.now);
                }
            }
        }
    }
}

/// The value of a field.
pub fn field<'a>(fields: &'a [(String, String)], name: &str) -> Option<&'a str> {
    fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str())
}

/// The status of the first response head among `events`.
pub fn status(events: &[Event]) -> Option<String> {
    events.iter().find_map(|event| match event {
        Event::Head { fields, .. } => field(fields, ":status").map(str::to_owned),
        _ => None,
    })
}

/// The code of the first reset among `events`.
pub fn reset(events: &[Event]) -> Option<u32> {
    events.iter().find_map(|event| if let Event::Reset { code, .. } = event { Some(*code) } else { None })
}

/// All body bytes of a stream among `events`.
pub fn body(events: &[Event], of: u32) -> Vec<u8> {
    let pieces = events.iter().filter_map(|event| match event {
        Event::Data { stream, bytes, .. } if *stream == of => Some(bytes.as_slice()),
        _ => None,
    });
    pieces.collect::<Vec<_>>().concat()
}
