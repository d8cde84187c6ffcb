//! One connection of the core, with a wire of limited size and a fake end behind it.

use std::time::Instant;

use engine::core::{ConnKey, Core, Ended};

use super::end::{End, Event};
use super::rng::Rng;
use super::trace::Trace;

/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Far {
    Client(usize),
    Server(usize),
}

/// Where the connection is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// Becomes open at this time, or is refused.
    Connecting {
        at: Instant,
        refused: bool,
    },
    Open,
    /// The core wants it closed; what it wrote is still delivered until this time.
    Closing {
        until: Instant,
    },
    Gone,
}

/// A connection.
pub struct Link {
    pub key: ConnKey,
    pub far: Far,
    pub end: End,
    pub state: State,
    to_core: Vec<u8>,
    from_core: Vec<u8>,
    /// Has the core something to write, and is a write under way?
    pub dirty: bool,
    writing: bool,
    socket_buffer: usize,
    /// The far end does not read (nor answer) before this; nor do its bytes reach the core before that.
    pub stalled_until: Instant,
    pub delayed_until: Instant,
    /// Window targets of the far end.
    pub stream_target: i64,
    pub conn_target: i64,
    pub goaway: Option<u32>,
    pub is_watch_lane: Option<bool>,
}

impl Link {
    pub fn new(key: ConnKey, far: Far, end: End, state: State, now: Instant, rng: &mut Rng) -> Self {
        Self {
            key,
            far,
            end,
            state,
            to_core: Vec::new(),
            from_core: Vec::new(),
            dirty: false,
            writing: false,
            socket_buffer: rng.pick(&[0, 1_000, 100_000, 1 << 20]),
            stalled_until: now,
            delayed_until: now,
            stream_target: rng.pick(&[1, 100, 5_000, 65_535, 65_535, 300_000]),
            conn_target: rng.pick(&[1_000, 65_535, 200_000]),
            goaway: None,
            is_watch_lane: None,
        }
    }

    pub fn is_open(&self) -> bool {
        self.state == State::Open
    }

    pub fn is_quiet(&self) -> bool {
        self.to_core.is_empty() && self.from_core.is_empty() && self.end.out.is_empty() && !self.dirty && !self.writing
    }

    /// Moves bytes towards the core. Returns how many.
    pub fn feed(&mut self, core: &mut Core, piece: usize, now: Instant) -> usize {
        self.to_core.append(&mut self.end.out);
        if now < self.delayed_until || !core.wants_read(self.key) {
            return 0;
        }
        let n = self.to_core.len().min(piece);
        if n > 0 {
            core.handle_bytes(self.key, &self.to_core[..n], now);
            self.to_core.drain(..n);
        }
        n
    }

    /// Takes what the core has to write, unless an earlier write is under way.
    pub fn drain(&mut self, core: &mut Core) -> usize {
        if !self.dirty || self.writing {
            return 0;
        }
        self.dirty = false;
        let before = self.from_core.len();
        let from_core = &mut self.from_core;
        self.writing = core.drain_output(self.key, |bytes| from_core.extend_from_slice(bytes));
        assert_eq!(self.writing, self.from_core.len() > before);
        self.from_core.len() - before
    }

    /// Moves bytes to the far end; the write is done when the rest fits into the socket.
    pub fn deliver(&mut self, core: &mut Core, piece: usize, now: Instant, trace: &mut Trace) -> (usize, Vec<Event>) {
        let mut events = Vec::new();
        let n = if now >= self.stalled_until { self.from_core.len().min(piece) } else { 0 };
        if n > 0 {
            trace.on_delivered(&self.from_core[..n], now);
            events = self.end.receive(&self.from_core[..n]);
            self.from_core.drain(..n);
            // There is room in the socket for more of the write.
            if self.writing {
                core.handle_taken(self.key, now);
            }
        }
        if self.writing && self.from_core.len() <= self.socket_buffer {
            self.writing = false;
            core.handle_written(self.key, now);
        }
        (n, events)
    }

    /// The core said goodbye: takes its last words.
    pub fn begin_close(&mut self, core: &mut Core, until: Instant) {
        let from_core = &mut self.from_core;
        core.drain_output(self.key, |bytes| from_core.extend_from_slice(bytes));
        self.dirty = false;
        self.writing = false;
        self.state = State::Closing { until };
    }

    pub fn has_delivered(&self) -> bool {
        self.from_core.is_empty()
    }

    /// The connection is gone, with all that was on the wire.
    pub fn kill(&mut self, core: &mut Core, ended: Ended, now: Instant) {
        self.state = State::Gone;
        self.from_core.clear();
        self.to_core.clear();
        core.handle_closed(self.key, ended, now);
    }

    /// Gives windows back to the core up to `stream_target` and `conn_target`.
    pub fn grant(&mut self, generous: bool, streams_only: bool) {
        let (stream_target, conn_target) = if generous { (300_000, 130_000) } else { (self.stream_target, self.conn_target) };
        if self.end.recv_window <= conn_target / 2 && !streams_only {
            self.end.grant(0, (conn_target - self.end.recv_window) as u32);
        }
        let wanting: Vec<_> = self
            .end
            .streams
            .iter()
            .filter(|(_, stream)| !stream.core_ended && stream.is_open() && stream.recv_window <= stream_target / 2)
            .map(|(&id, stream)| (id, (stream_target - stream.recv_window) as u32))
            .collect();
        for (id, n) in wanting {
            self.end.grant(id, n);
        }
    }
}
