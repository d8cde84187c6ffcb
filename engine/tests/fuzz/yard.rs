//! A core with connections whose other ends are the fuzzer's.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use discovery::{Publisher, Reader, static_routes};
use engine::core::{Action, ConnKey, Core, Ended, Port, Protocol};
use engine::{Limits, Rate};

use super::checker::Checker;
use super::pieces::*;

pub const ROUTES: &str = r#"
local: s0
servers:
- {id: s0, address: "10.0.0.1:1", serves: [{group: g, version: v1, resources: [both, mine]}]}
- {id: s1, address: "10.0.0.2:2", serves: [{group: g, version: v1, resources: [both, theirs]}]}
"#;

thread_local! {
    static ROUTING: RefCell<(Publisher, Reader)> = RefCell::new({
        let publisher = Publisher::new(static_routes::parse(ROUTES).unwrap());
        let reader = publisher.reader();
        (publisher, reader)
    });
}

/// One connection.
pub struct Wire {
    pub key: ConnKey,
    pub is_client: bool,
    pub is_open: bool,
    /// Does not read.
    pub is_frozen: bool,
    /// Bytes on their way to the core.
    pub pending: Vec<u8>,
    pub next_stream: u32,
    pub checker: Checker,
    /// What a client of HTTP/1.1 got.
    pub text: Option<Vec<u8>>,
}

/// A core and its connections.
pub struct Yard {
    pub core: Core,
    pub now: Instant,
    pub wires: Vec<Wire>,
    /// Do the clients behave, and do the servers?
    good: (bool, bool),
    /// Servers refuse connections.
    pub is_shut: bool,
    /// Keep what servers get?
    pub keeps: bool,
    /// The stream window that ends grant which behave.
    pub good_window: u32,
    scratch: Vec<u8>,
}

impl Yard {
    /// With limits that inputs of a few hundred bytes reach.
    pub fn new(good_clients: bool, good_servers: bool) -> Self {
        let limits = Limits {
            client_streams: 8,
            client_resets: Rate { burst: 12, per_second: 5 },
            server_resets: Rate { burst: 4, per_second: 5 },
            idle_frames: Rate { burst: 40, per_second: 20 },
            header_list: 4_096,
            out_high: 8_192,
            held_bytes: 1 << 20,
            retry_body: 64,
            server_conns: 2,
            waiting: 4,
            ..Limits::default()
        };
        Self::with(limits, good_clients, good_servers)
    }

    pub fn with(limits: Limits, good_clients: bool, good_servers: bool) -> Self {
        let now = Instant::now();
        let routes = ROUTING.with_borrow(|(publisher, _)| publisher.reader());
        let core = Core::new(limits, routes, 1, now);
        Self {
            core,
            now,
            wires: Vec::new(),
            good: (good_clients, good_servers),
            is_shut: false,
            keeps: false,
            good_window: 65_535,
            scratch: Vec::new(),
        }
    }

    /// A client, connected; `None` when the core takes no more.
    pub fn accept(&mut self, protocol: Protocol) -> Option<usize> {
        let key = self.core.handle_accepted(Port::Clients, None, self.now)?;
        self.core.handle_established(key, protocol, self.now);
        let at = self.add(key, true);
        if protocol == Protocol::Http1 {
            self.wires[at].text = Some(Vec::new());
        } else {
            self.wires[at].pending.extend_from_slice(PREFACE);
            put_settings(&mut self.wires[at].pending, &[(4, self.good_window)]);
        }
        Some(at)
    }

    fn add(&mut self, key: ConnKey, is_client: bool) -> usize {
        let mut checker = Checker::new(is_client, if is_client { self.good.0 } else { self.good.1 });
        checker.keeps = self.keeps;
        checker.told_window = Some(i64::from(self.good_window));
        let (pending, text) = (Vec::new(), None);
        self.wires.push(Wire { key, is_client, is_open: true, is_frozen: false, pending, next_stream: 1, checker, text });
        self.wires.len() - 1
    }

    /// The `n`th open connection of clients or of servers, counted round.
    pub fn nth(&self, clients: bool, n: usize) -> Option<usize> {
        let open = |wire: &Wire| wire.is_open && wire.is_client == clients;
        let count = self.wires.iter().filter(|wire| open(wire)).count();
        let n = n.checked_rem(count)?;
        self.wires.iter().enumerate().filter(|(_, wire)| open(wire)).nth(n).map(|(at, _)| at)
    }

    /// Gives the core what waits on a connection, in pieces of `step` bytes.
    pub fn deliver(&mut self, at: usize, step: usize) {
        let mut bytes = std::mem::take(&mut self.wires[at].pending);
        for piece in bytes.chunks(step.max(1)) {
            if !self.wires[at].is_open || !self.core.wants_read(self.wires[at].key) {
                break;
            }
            self.core.handle_bytes(self.wires[at].key, piece, self.now);
            self.run();
        }
        bytes.clear();
        self.wires[at].pending = bytes;
    }

    pub fn pass(&mut self, time: Duration) {
        self.now += time;
        self.core.handle_tick(self.now);
        self.run();
    }

    pub fn lose(&mut self, at: usize) {
        if std::mem::take(&mut self.wires[at].is_open) {
            self.core.handle_closed(self.wires[at].key, Ended::Lost, self.now);
            self.run();
        }
    }

    /// Does what the core asks until it asks for nothing.
    pub fn run(&mut self) {
        loop {
            let mut moved = false;
            while let Some(action) = self.core.poll_action() {
                self.obey(action);
                moved = true;
            }
            while let Some(key) = self.core.poll_dirty() {
                if let Some(at) = self.wires.iter().rposition(|wire| wire.key == key && wire.is_open) {
                    moved |= self.drain(at);
                }
            }
            if !moved {
                return;
            }
        }
    }

    /// Lets a connection read what waits for it.
    pub fn drain(&mut self, at: usize) -> bool {
        let wire = &mut self.wires[at];
        if wire.is_frozen {
            return false;
        }
        self.scratch.clear();
        let scratch = &mut self.scratch;
        if !self.core.drain_output(wire.key, |bytes| scratch.extend_from_slice(bytes)) {
            return false;
        }
        match &mut wire.text {
            Some(text) => text.extend_from_slice(&self.scratch),
            None => wire.checker.receive(&self.scratch),
        }
        self.core.handle_written(wire.key, self.now);
        true
    }

    fn obey(&mut self, action: Action) {
        match action {
            Action::Connect { conn, .. } if self.is_shut => self.core.handle_closed(conn, Ended::Unreachable, self.now),
            Action::Connect { conn, .. } => {
                let at = self.add(conn, false);
                let settings = if self.good.1 { vec![(3, 100), (4, self.good_window)] } else { vec![] };
                put_settings(&mut self.wires[at].pending, &settings);
                self.core.handle_established(conn, Protocol::Http2, self.now);
                if self.good.1 {
                    self.deliver(at, usize::MAX);
                }
            }
            Action::Read { .. } | Action::Blame { .. } | Action::Report(_) => {}
            Action::Close { conn } => {
                if let Some(at) = self.wires.iter().rposition(|wire| wire.key == conn && wire.is_open) {
                    self.drain(at);
                    self.wires[at].is_open = false;
                }
                self.core.handle_closed(conn, Ended::Lost, self.now);
            }
            Action::Cut { conn } => {
                if let Some(wire) = self.wires.iter_mut().rfind(|wire| wire.key == conn) {
                    wire.is_open = false;
                }
                self.core.handle_closed(conn, Ended::Lost, self.now);
            }
        }
    }

    /// Everybody hangs up: nothing may be left.
    pub fn finish(&mut self) {
        self.is_shut = true;
        for clients in [true, false] {
            while let Some(at) = self.nth(clients, 0) {
                self.lose(at);
            }
        }
        self.run();
        assert_eq!(self.core.in_use(), (0, 0, 0), "connections, exchanges and bytes left");
        assert_eq!(self.core.leftovers(), [0; 9], "of requests that are over");
        self.is_shut = false;
        self.wires.clear();
    }
}
