//! The heart of a shard, without IO: plaintext and events in, plaintext and actions out.
//!
//! It owns the connections and the exchanges of its shard. The IO side tells it what happened (`handle_*`), and asks what to
//! do (`poll_*`, `drain_output`). Time comes in as an argument, so that whole scenarios run from a seed.
//!
//! What always holds:
//! - every body byte that came in leaves once and in order, or its stream is reset;
//! - no window of the other side is exceeded, and every window we granted is given back;
//! - an exchange is in the table as long as one of its streams is open, and its two streams are in the tables of their
//!   connections just as long;
//! - what a message could hold (header lists, bodies for slow readers, requests that wait) is limited by [`Limits`].
//!
//! What it does not do: TLS, sockets, clocks, logging.

mod admit;
mod answer;
mod body;
mod budget;
mod conn;
mod dispatch;
mod exchange;
mod forward;
mod http1;
mod lost;
mod meters;
mod outbox;
mod pool;
mod receive;
mod relief;
pub(crate) mod slab;
mod source;
mod streams;
mod tick;
#[cfg(test)]
mod walk;

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use discovery::{Reader, ServerId, Snapshot};

use crate::config::Limits;
use crate::http2::hpack::HeaderBlock;
use crate::request::Scratch;
use body::{Blocks, Copied};
use conn::State;
pub(crate) use conn::{Conn, Role};
use exchange::Exchange;
use outbox::Buffers;
use pool::{Server, ServerSlot};
use slab::Slab;

pub(crate) use budget::Budget;
pub use budget::Rate;
pub use meters::{ADDED_BOUNDS, Added, LaneLoad, Meters, PeerError, Row, ServerLoad, Tally};
pub use slab::Key;
pub use source::Source;
pub(crate) use tick::DOUBT_TICK;

/// Names a connection of a shard.
pub type ConnKey = Key<Conn>;
/// Names an exchange of a shard.
pub(crate) type ExchangeKey = Key<Exchange>;

/// Whom a connection is opened to; decides how its certificate is verified.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Destination {
    /// The apiserver this proxy fronts.
    Local,
    /// Another apiserver of the cluster.
    Peer,
    /// The peer port of the proxy in front of one.
    Proxy,
}

/// Where somebody came in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Port {
    /// The port of clients.
    Clients,
    /// The port of other proxies, who have shown a front-proxy certificate: what they send was decided already.
    Peers,
}

/// What the IO side is asked to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Open a connection and report [`Core::handle_established`] or [`Core::handle_closed`].
    Connect {
        /// Its name from now on.
        conn: ConnKey,
        /// Where to.
        address: SocketAddr,
        /// To whom.
        destination: Destination,
    },
    /// Tell who looks after the servers.
    Report(Sign),
    /// Go on reading, if reading was held back.
    Read {
        /// Where.
        conn: ConnKey,
    },
    /// Remember where a client came from: it was told to calm down.
    Blame {
        /// Which one.
        conn: ConnKey,
    },
    /// End it at once, without a goodbye: what was sent is not complete.
    Cut {
        /// Which one; the name means nothing afterwards.
        conn: ConnKey,
    },
    /// Write what is left, then close.
    Close {
        /// Which one; the name means nothing afterwards.
        conn: ConnKey,
    },
}

/// What the traffic shows about a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Sign {
    /// A connection to the local server was refused, or ended without a GOAWAY: what comes back may be another one.
    LocalLost,
    /// The last connection to a server was lost without a GOAWAY, none could be had, or the first took very long: what is there may be
    /// another process. Told again while nobody vouches for it.
    Lost {
        /// Whom.
        server: ServerId,
        /// When.
        at: Instant,
    },
    /// No connection to this address can be had.
    Unreachable(SocketAddr),
}

/// What a client speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Protocol {
    /// HTTP/2.
    Http2,
    /// HTTP/1.1 or HTTP/1.0.
    Http1,
}

/// How a connection ended, as far as the IO side knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The other side closed it, or the transport failed.
    Lost,
    /// It was never established: refused, unreachable, timed out, or not the server it should be.
    Unreachable,
}

/// Counts since start; plain numbers, read by the owner of the shard.
#[derive(Clone, Copy, Default, Debug)]
pub struct Counters {
    /// Requests taken.
    pub requests: u64,
    /// Requests given to a peer.
    pub rerouted: u64,
    /// Answers made here instead of by a server.
    pub refused: u64,
    /// Requests given to another connection or server after the first could not take them.
    pub retried: u64,
    /// Body bytes to be forwarded: received from either side, or of an answer made here.
    pub body_received: u64,
    /// Body bytes copied.
    pub body_copied: u64,
    /// Writes to sockets, those of handshakes included. The IO side counts them; a [`Core`] alone has none.
    pub writes: u64,
}

impl Counters {
    /// How many there are.
    pub(crate) const COUNT: usize = 7;

    pub(crate) fn to_array(self) -> [u64; Self::COUNT] {
        [self.requests, self.rerouted, self.refused, self.retried, self.body_received, self.body_copied, self.writes]
    }

    pub(crate) fn from_array(array: [u64; Self::COUNT]) -> Self {
        let [requests, rerouted, refused, retried, body_received, body_copied, writes] = array;
        Self { requests, rerouted, refused, retried, body_received, body_copied, writes }
    }

    /// The sum of two shards.
    pub(crate) fn plus(self, other: &Self) -> Self {
        let (a, b) = (self.to_array(), other.to_array());
        Self::from_array(std::array::from_fn(|at| a[at] + b[at]))
    }
}

/// The state of one shard.
pub struct Core {
    limits: Limits,
    routes: Reader,
    /// The one that slots belong to, and that requests are routed by.
    snapshot: Arc<Snapshot>,
    now: Instant,
    conns: Slab<Conn>,
    exchanges: Slab<Exchange>,
    servers: Vec<Server>,
    /// Snapshot index -> slot.
    slots: Vec<ServerSlot>,
    local: ServerSlot,
    /// What a hop to a peer has as its `via`.
    via: Vec<u8>,
    clients: usize,
    /// HTTP/1.1 connections whose request was answered, and where the next one may wait.
    ready: VecDeque<ConnKey>,
    dirty: Vec<ConnKey>,
    actions: VecDeque<Action>,
    blocks: Blocks,
    buffers: Buffers,
    copied: Copied,
    /// Heads that were used up, for reuse.
    spare_heads: Vec<HeaderBlock>,
    /// For a path with escapes.
    path_scratch: Scratch,
    random: u64,
    /// Exchanges whose client is gone and whose stream is not reset yet; some of them may have ended since.
    abandoned: VecDeque<ExchangeKey>,
    draining: Option<tick::Drain>,
    counters: Counters,
    meters: Meters,
    next_downstream_tick: Instant,
    /// Bytes held beside the blocks, as counted at the last tick.
    held_beside: usize,
    next_relief: Instant,
}

impl Core {
    /// A shard with nothing connected. `seed` decides between equal servers.
    pub fn new(limits: Limits, mut routes: Reader, seed: u64, now: Instant) -> Self {
        let snapshot = Arc::clone(routes.current());
        let mut core = Self {
            limits,
            routes,
            snapshot,
            now,
            conns: Slab::new(),
            exchanges: Slab::new(),
            servers: Vec::new(),
            slots: Vec::new(),
            local: ServerSlot::NONE,
            via: Vec::new(),
            clients: 0,
            ready: VecDeque::new(),
            dirty: Vec::new(),
            actions: VecDeque::new(),
            blocks: Blocks::default(),
            buffers: Buffers::default(),
            copied: Copied::default(),
            spare_heads: Vec::new(),
            path_scratch: Scratch::default(),
            random: seed | 1,
            abandoned: VecDeque::new(),
            draining: None,
            counters: Counters::default(),
            meters: Meters::default(),
            next_downstream_tick: now,
            held_beside: 0,
            next_relief: now,
        };
        core.map_servers();
        core
    }

    /// What it was made with.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// A client connected; its TLS handshake begins. `None` when the shard has as many as it may.
    pub fn handle_accepted(&mut self, port: Port, source: Option<Source>, now: Instant) -> Option<ConnKey> {
        self.now = now;
        // Clients leave some places to other proxies.
        let kept = if port == Port::Clients { self.limits.client_conns / 100 * self.limits.peer_percent } else { 0 };
        if self.clients >= self.limits.client_conns - kept || self.draining.is_some() {
            return None;
        }
        self.clients += 1;
        let mut conn = Conn::new(Role::Downstream, &self.limits, now);
        conn.source = source;
        conn.is_peer = port == Port::Peers;
        Some(self.conns.insert(conn))
    }

    /// TCP with a server is there, and TLS begins.
    pub fn handle_connected(&mut self, key: ConnKey, now: Instant) {
        self.now = now;
        if let Some(conn) = self.conns.get_mut(key) {
            conn.connected = Some(now);
        }
    }

    /// TLS is done. Servers are spoken to in HTTP/2 only.
    pub fn handle_established(&mut self, key: ConnKey, protocol: Protocol, now: Instant) {
        self.now = now;
        let is_new = |conn: &&Conn| conn.state == State::Connecting && !conn.awaits_settings;
        let Some(role) = self.conns.get(key).filter(is_new).map(|conn| conn.role) else { return };
        if role != Role::Downstream {
            return self.await_settings(key);
        }
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.open(now);
        if protocol == Protocol::Http1 {
            conn.speak_http1(now);
            return;
        }
        conn.greet(&self.limits, &mut self.buffers);
        self.mark_dirty(key);
    }

    /// Plaintext arrived.
    pub fn handle_bytes(&mut self, key: ConnKey, bytes: &[u8], now: Instant) {
        self.now = now;
        self.receive(key, bytes);
        self.after_event();
    }

    /// The connection is gone.
    pub fn handle_closed(&mut self, key: ConnKey, ended: Ended, now: Instant) {
        self.now = now;
        self.remove_conn(key, ended);
        self.after_event();
    }

    /// Some of what was drained from the connection has been taken by the kernel: the other side takes what we send, however slowly.
    pub fn handle_taken(&mut self, key: ConnKey, now: Instant) {
        self.now = now;
        if let Some(conn) = self.conns.get_mut(key) {
            conn.last_written = now;
        }
    }

    /// Everything that was drained from the connection has been taken by the kernel.
    pub fn handle_written(&mut self, key: ConnKey, now: Instant) {
        self.now = now;
        self.on_written(key);
        self.after_event();
    }

    /// The next connection that has something to write.
    pub fn poll_dirty(&mut self) -> Option<ConnKey> {
        while let Some(key) = self.dirty.pop() {
            if let Some(conn) = self.conns.get_mut(key) {
                conn.dirty = false;
                return Some(key);
            }
        }
        None
    }

    /// The next thing to do for the IO side.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Hands all plaintext that waits on the connection to `sink`, in order. False when there was none.
    pub fn drain_output(&mut self, key: ConnKey, sink: impl FnMut(&[u8])) -> bool {
        let Some(conn) = self.conns.get_mut(key).filter(|conn| !conn.out.is_empty()) else { return false };
        conn.out.drain(&mut self.buffers, &mut self.blocks, sink);
        if !conn.blocked.is_empty() {
            // Before anything that comes later takes the room.
            self.pump_blocked(key);
        }
        true
    }

    /// Should the IO side go on reading? Not from a client that does not read what we have for it.
    pub fn wants_read(&self, key: ConnKey) -> bool {
        let reads = |conn: &Conn| conn.out.len() < self.limits.out_high * 2 && self.upload_has_room(conn);
        self.conns.get(key).is_some_and(|conn| conn.role != Role::Downstream || reads(conn))
    }

    /// Counts since start.
    pub fn counters(&self) -> Counters {
        Counters { body_copied: self.copied.bytes(), ..self.counters }
    }

    /// Connections, exchanges and bytes in blocks: all zero when nothing is going on.
    pub fn in_use(&self) -> (usize, usize, usize) {
        (self.conns.len(), self.exchanges.len(), self.blocks.in_use())
    }

    /// What tables beside those hold: streams of connections, exchanges that a connection holds back, that count as work of a server, that wait
    /// for one, that count as abandoned, those to be reset, clients of HTTP/1.1 to be served, connections with something to write, and actions.
    /// All zero when nothing is going on and the IO side has polled everything.
    pub fn leftovers(&self) -> [usize; 9] {
        let lanes = || self.servers.iter().flat_map(|server| &server.lanes);
        let conns = || (0..self.conns.places()).filter_map(|at| self.conns.get(self.conns.key_at(at)?));
        [
            conns().map(|conn| conn.streams.len() + conn.abandoned).sum(),
            conns().map(|conn| conn.blocked.len()).sum(),
            self.servers.iter().map(|server| server.active).sum(),
            lanes().map(|lane| lane.waiting.len()).sum(),
            lanes().map(|lane| lane.abandoned).sum(),
            self.abandoned.len(),
            self.ready.len(),
            // One that is marked and not in the list would never be written to again.
            self.dirty.len() + conns().filter(|conn| conn.dirty).count(),
            self.actions.len(),
        ]
    }

    /// What an event may have made possible for others.
    fn after_event(&mut self) {
        self.reset_abandoned();
        self.serve_ready();
        self.relieve();
    }

    fn mark_dirty(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(key)
            && !conn.dirty
        {
            conn.dirty = true;
            self.dirty.push(key);
        }
    }

    /// xorshift64*: only to choose between servers.
    fn next_random(&mut self) -> u64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        self.random.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
