//! The servers of a shard: their connections by lane, their health, and who waits for them.
//!
//! What always holds: watches and short requests never share a connection; a lane grows to `server_conns` open connections, and has at most
//! `server_conns * server_conns_factor` in any state; at most one is being opened at a time; a server that refused is left alone for
//! `server_backoff`; one that was lost gets nothing before a snapshot vouches for it, where servers are probed, and for `doubt` at most.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use discovery::{ServerId, Trust, Via};

use super::conn::{Conn, State};
use super::slab::Slab;
use super::{ConnKey, ExchangeKey};
use crate::config::Limits;

/// A server's place in the shard's table; stays the same across snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServerSlot(pub(crate) u8);

impl ServerSlot {
    pub(crate) const NONE: Self = Self(u8::MAX);

    pub(crate) fn at(index: usize) -> Self {
        u8::try_from(index).map_or(Self::NONE, Self)
    }
}

/// A set of servers of this shard.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SlotSet(u128);

impl SlotSet {
    /// Servers a shard can tell apart.
    pub(crate) const CAPACITY: usize = 128;

    pub(crate) fn insert(&mut self, slot: ServerSlot) {
        self.0 |= Self::bit(slot);
    }

    pub(crate) fn remove(&mut self, slot: ServerSlot) {
        self.0 &= !Self::bit(slot);
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub(crate) fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = ServerSlot> {
        let mut left = self.0;
        std::iter::from_fn(move || {
            let at = left.trailing_zeros();
            left &= left.wrapping_sub(1);
            u8::try_from(at).ok().filter(|&at| at < 128).map(ServerSlot)
        })
    }

    fn bit(slot: ServerSlot) -> u128 {
        1u128.checked_shl(u32::from(slot.0)).unwrap_or(0)
    }
}

/// Requests that end soon, and those that stay open (watches): never on one connection, because the server counts both
/// against the same limit of streams.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    Short = 0,
    Long = 1,
}

/// The connections of one lane.
#[derive(Default)]
pub(crate) struct Pool {
    pub(crate) conns: Vec<ConnKey>,
    pub(crate) connecting: Option<ConnKey>,
    pub(crate) waiting: VecDeque<ExchangeKey>,
    /// Streams whose client is gone, and that could not be reset yet.
    pub(crate) abandoned: usize,
}

/// What a lane can offer a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Offer {
    /// A connection with a free slot.
    pub(crate) conn: Option<ConnKey>,
    /// Is it time to open another one?
    pub(crate) grow: bool,
}

impl Pool {
    /// The first connection below its soft limit, else the first below its hard limit; `refused_by` only if no other
    /// can be had.
    fn offer(&self, conns: &Slab<Conn>, limits: &Limits, refused_by: Option<ConnKey>) -> Offer {
        let mut spare = None;
        let may_grow = self.has_place(limits) && (self.conns.len() < limits.server_conns || self.open_conns(conns) < limits.server_conns);
        let avoided = refused_by.filter(|_| may_grow || self.connecting.is_some());
        for &key in &self.conns {
            let Some(conn) = conns.get(key).filter(|conn| conn.takes_streams()) else { continue };
            let (used, max) = (conn.streams.len(), conn.max_streams());
            if avoided == Some(key) {
                continue;
            }
            if used * 100 < max * limits.streams_percent as usize {
                return Offer { conn: Some(key), grow: false };
            }
            if used < max && spare.is_none() {
                spare = Some(key);
            }
        }
        Offer { conn: spare, grow: may_grow && !self.is_clogged(conns, limits) }
    }

    /// Streams whose client is gone take the slots. They end soon; more connections would only be filled with more of them, and a client
    /// that resets all it asks for would decide how many we open. Two connections' worth may be lost to them.
    fn is_clogged(&self, conns: &Slab<Conn>, limits: &Limits) -> bool {
        if self.abandoned == 0 {
            return false;
        }
        let open = self.conns.iter().filter_map(|&key| conns.get(key)).filter(|conn| conn.takes_streams());
        let (used, most, soft) = open.fold((0, 0, 0), |(used, most, soft), conn| {
            let max = conn.max_streams();
            (used + conn.streams.len(), max.max(most), soft + max * limits.streams_percent as usize / 100)
        });
        used.saturating_sub(self.abandoned) + 2 * most < soft
    }

    /// May one more be opened, whatever for? Any client can cause a GOAWAY, so connections after one have a limit as well.
    pub(crate) fn has_place(&self, limits: &Limits) -> bool {
        self.connecting.is_none() && self.conns.len() < limits.server_conns * limits.server_conns_factor
    }

    /// Connections after a GOAWAY do not keep a lane from growing: watches stay on them for an hour.
    fn open_conns(&self, conns: &Slab<Conn>) -> usize {
        self.conns.iter().filter(|&&key| conns.get(key).is_some_and(|conn| conn.state == State::Open)).count()
    }

    /// Requests on its connections.
    pub(crate) fn streams(&self, conns: &Slab<Conn>) -> usize {
        self.conns.iter().filter_map(|&key| conns.get(key)).map(|conn| conn.streams.len()).sum()
    }

    fn has_open_conn(&self, conns: &Slab<Conn>) -> bool {
        self.conns.iter().any(|&key| conns.get(key).is_some_and(|conn| conn.state == State::Open && !conn.suspect))
    }

    /// Nobody who waits here will be served.
    pub(crate) fn is_hopeless(&self, conns: &Slab<Conn>) -> bool {
        self.connecting.is_none() && !self.has_open_conn(conns)
    }
}

/// A server as this shard knows it.
pub(crate) struct Server {
    pub(crate) id: ServerId,
    pub(crate) address: SocketAddr,
    pub(crate) via: Via,
    pub(crate) lanes: [Pool; 2],
    /// No connection attempt before this, because the last one failed.
    pub(crate) down_until: Option<Instant>,
    /// It may be another process now.
    pub(crate) doubt: Option<Doubt>,
    /// The loss of which nobody said in time what became of it.
    pub(crate) given_up: Option<Instant>,
    /// Does somebody probe it, who can vouch for it?
    pub(crate) is_probed: bool,
    /// Did the last snapshot say that it may be sent requests?
    pub(crate) is_ready: bool,
    /// Not ready any more, but it answers.
    pub(crate) is_leaving: bool,
    /// It is in no snapshot any more.
    pub(crate) left: bool,
    /// Exchanges that were given to it and have not ended.
    pub(crate) active: usize,
}

/// All connections to a server were lost, or none could be had. A server that starts anew listens long before it can be used, and answers
/// 404 at first for what it will serve: nothing is sent to it before a probe that began later has succeeded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Doubt {
    /// When it was last lost, here or by another shard.
    pub(crate) lost: Instant,
    /// When the doubt began.
    pub(crate) since: Instant,
    /// When discovery was last told.
    pub(crate) told: Instant,
}

impl Server {
    pub(crate) fn new(server: &discovery::Server) -> Self {
        let (id, address, via) = (server.id.clone(), server.address, server.via);
        Self {
            id,
            address,
            via,
            lanes: Default::default(),
            down_until: None,
            doubt: None,
            given_up: None,
            is_probed: false,
            is_ready: true,
            is_leaving: false,
            left: false,
            active: 0,
        }
    }

    pub(crate) fn lane(&mut self, lane: Lane) -> &mut Pool {
        &mut self.lanes[lane as usize]
    }

    /// Did its last connection attempt fail?
    pub(crate) fn is_down(&self) -> bool {
        self.down_until.is_some()
    }

    /// Down, and due to be tried again.
    pub(crate) fn is_due(&self, now: Instant) -> bool {
        let is_over = self.down_until.is_some_and(|until| until <= now);
        is_over && self.doubt.is_none() && self.lanes.iter().all(|lane| lane.connecting.is_none())
    }

    /// As far as its connections show, can it be sent requests now?
    pub(crate) fn is_usable(&self) -> bool {
        !self.left && !self.is_down() && self.doubt.is_none()
    }

    /// It was lost, and a probe will tell soon whether it can be used.
    pub(crate) fn is_awaited(&self) -> bool {
        self.doubt.is_some() && !self.is_down()
    }

    /// What a lane can offer; nothing in doubt.
    pub(crate) fn offer(&self, lane: Lane, conns: &Slab<Conn>, limits: &Limits, refused_by: Option<ConnKey>) -> Offer {
        match self.doubt {
            Some(_) => Offer { conn: None, grow: false },
            None => self.lanes[lane as usize].offer(conns, limits, refused_by),
        }
    }

    /// It may be another process now. Where nobody probes there is no use in waiting for somebody to vouch for it.
    pub(crate) fn doubt_if_probed(&mut self, now: Instant) {
        if self.is_probed {
            self.doubt = Some(Doubt { lost: now, since: now, told: now });
        }
    }

    /// Takes over whether somebody vouches for it. One that another shard lost is in doubt here too, unless a connection shows that it is there.
    pub(crate) fn take_trust(&mut self, trust: Option<Trust>, conns: &Slab<Conn>, now: Instant) {
        self.is_probed = trust.is_some();
        let trust = trust.unwrap_or_default();
        if self.doubt.is_some_and(|doubt| !self.is_probed || trust.vouches_since(doubt.lost)) {
            self.doubt = None;
        }
        let is_new = trust.is_in_doubt() && trust.lost > self.given_up && self.doubt.is_none();
        if let Some(lost) = trust.lost.filter(|_| is_new && !self.has_open_conn(conns)) {
            self.doubt = Some(Doubt { lost, since: now, told: now });
        }
    }

    /// Takes a connection out of its lane.
    pub(crate) fn forget(&mut self, conn: ConnKey) {
        for lane in &mut self.lanes {
            lane.conns.retain(|&key| key != conn);
            if lane.connecting == Some(conn) {
                lane.connecting = None;
            }
        }
    }

    pub(crate) fn has_open_conn(&self, conns: &Slab<Conn>) -> bool {
        self.lanes.iter().any(|lane| lane.has_open_conn(conns))
    }

    pub(crate) fn is(&self, server: &discovery::Server) -> bool {
        self.id == server.id && self.address == server.address && self.via == server.via
    }

    /// No connection, nobody waiting, nobody served.
    pub(crate) fn is_unused(&self) -> bool {
        let idle = |lane: &Pool| lane.conns.is_empty() && lane.connecting.is_none() && lane.waiting.is_empty();
        self.active == 0 && self.lanes.iter().all(idle)
    }
}
