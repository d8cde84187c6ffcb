//! What happens because time passed: liveness of servers, limits on waiting, idle connections, the drain.
//!
//! What always holds: a limit is met at the first tick behind it, and those on a silent server at the last one before; a tick that comes late
//! delays, and skips nothing.

use std::time::{Duration, Instant};

use super::conn::{Conn, Role, State};
use super::exchange::{Phase, Side};
use super::pool::{Lane, ServerSlot};
use super::{ConnKey, Core};
use crate::config::Limits;
use crate::http2::Reason;
use crate::http2::frame::{self, MAX_WINDOW};
use crate::respond::Failure;

/// How often time is looked at while something waits for it, and else. Bounds are seconds; a tenth is fine enough.
const BUSY_TICK: Duration = Duration::from_millis(100);
const IDLE_TICK: Duration = Duration::from_secs(1);
/// The same while a server is in doubt, and requests may wait for what its probe finds.
pub(crate) const DOUBT_TICK: Duration = Duration::from_millis(10);
/// Watches ended in one tick of a drain: 5,000 a second and shard, so that 10,000 clients do not come back at once.
const WATCHES_PER_TICK: usize = 500;
/// Between the first GOAWAY, which refuses nothing, and the last: requests already on their way arrive in it.
const GOAWAY_GRACE: Duration = Duration::from_millis(500);
/// A connection without streams for this long gives its buffers back.
const RELEASE_AFTER: Duration = Duration::from_secs(1);

/// A drain under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drain {
    since: Instant,
    refused: bool,
}

impl Core {
    /// Time passed. Call it when [`Core::next_tick`] says so; early or late calls do no harm.
    pub fn handle_tick(&mut self, now: Instant) {
        self.now = now;
        self.take_snapshot();
        self.tick_servers();
        if now >= self.next_downstream_tick {
            self.next_downstream_tick = now + IDLE_TICK;
            self.tick_clients();
            self.tick_exchanges();
            self.count_held();
        }
        self.tick_drain();
        self.after_event();
    }

    /// When [`Core::handle_tick`] wants to be called next.
    pub fn next_tick(&self, now: Instant) -> Instant {
        let busy = self.exchanges.len() > 0
            || self.draining.is_some()
            || self.servers.iter().any(|server| server.lanes.iter().any(|lane| lane.connecting.is_some()));
        let is_in_doubt = self.servers.iter().any(|server| server.doubt.is_some());
        // Not in a drain: what it ends in a tick is meant for the others.
        let is_urgent = is_in_doubt && self.draining.is_none();
        now + if is_urgent {
            DOUBT_TICK
        } else if busy {
            BUSY_TICK
        } else {
            IDLE_TICK
        }
    }

    /// Begins to end: no new connections, GOAWAY to the clients, watches ended, short requests may finish.
    pub fn begin_drain(&mut self, now: Instant) {
        self.now = now;
        if self.draining.is_some() {
            return;
        }
        self.draining = Some(Drain { since: now, refused: false });
        self.each_client(|core, key, state| match state {
            State::Open if core.drain_http1(key) => {}
            State::Open => core.write(key, |out| frame::put_goaway(out, MAX_WINDOW, Reason::NO_ERROR)),
            State::Connecting => core.close_conn(key, Reason::NO_ERROR),
            State::Draining | State::Closing => {}
        });
    }

    /// Is the time for running requests over? What is still being written is cut then.
    pub fn drain_is_over(&self, now: Instant) -> bool {
        self.draining.is_some_and(|drain| now - drain.since >= self.limits.drain)
    }

    /// The answer under way is the last one. False for HTTP/2.
    fn drain_http1(&mut self, key: ConnKey) -> bool {
        let Some(http1) = self.conns.get_mut(key).and_then(|conn| conn.http1.as_deref_mut()) else { return false };
        http1.keep_alive = false;
        if http1.exchange.is_none() {
            self.close_conn(key, Reason::NO_ERROR);
        }
        true
    }

    /// Has the drain come to its end?
    pub fn is_drained(&self) -> bool {
        self.draining.is_some() && self.clients == 0
    }

    /// Does `each` for every client connection; it may end them.
    fn each_client(&mut self, mut each: impl FnMut(&mut Self, ConnKey, State)) {
        for at in 0..self.conns.places() {
            let Some(key) = self.conns.key_at(at) else { continue };
            if let Some(conn) = self.conns.get(key).filter(|conn| conn.role == Role::Downstream) {
                let state = conn.state;
                each(self, key, state);
            }
        }
    }

    fn tick_servers(&mut self) {
        for at in 0..self.servers.len() {
            self.tick_doubt(ServerSlot::at(at));
            for lane in [Lane::Short, Lane::Long] {
                let pool = &self.servers[at].lanes[lane as usize];
                let (connecting, count) = (pool.connecting, pool.conns.len());
                if let Some(key) = connecting {
                    self.tick_connecting(key);
                }
                for nth in (0..count).rev() {
                    let key = self.servers[at].lanes[lane as usize].conns.get(nth).copied();
                    if let Some(key) = key {
                        self.tick_server_conn(key);
                    }
                }
            }
        }
    }

    fn tick_doubt(&mut self, slot: ServerSlot) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return };
        let Some(doubt) = server.doubt else { return };
        if now - doubt.since >= self.limits.doubt {
            // Discovery does not work, or its credentials are refused: routing stays as it was.
            (server.doubt, server.given_up) = (None, Some(doubt.lost));
            for lane in [Lane::Short, Lane::Long] {
                self.serve_waiting(slot, lane);
            }
        } else if now - doubt.told >= self.limits.doubt_told {
            self.tell_doubt(slot);
        }
    }

    /// Connections to servers were made with certificates that are no longer right: they finish what they have.
    pub fn retire_servers(&mut self, now: Instant) {
        self.now = now;
        for at in 0..self.servers.len() {
            self.finish_conns(ServerSlot::at(at), Some(now));
        }
    }

    /// The connections to a server take nothing new and end with their last stream, and at a limit when they are `retired`.
    pub(super) fn finish_conns(&mut self, slot: ServerSlot, retired: Option<Instant>) {
        let Some(server) = self.servers.get(usize::from(slot.0)) else { return };
        let conns: Vec<_> = server.lanes.iter().flat_map(|lane| lane.conns.iter().copied().chain(lane.connecting)).collect();
        for key in conns {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            // One that is not there yet ends when it is.
            conn.retired = conn.retired.or(retired);
            if matches!(conn.state, State::Open | State::Draining) {
                conn.state = State::Draining;
                self.close_if_idle(key);
            }
        }
        for lane in [Lane::Short, Lane::Long] {
            self.serve_waiting(slot, lane);
        }
    }

    fn tick_connecting(&mut self, key: ConnKey) {
        // The kernel itself gives up a connect that takes longer than that.
        let Limits { connect, server_handshake, .. } = self.limits;
        let is_late = |conn: &Conn| match conn.connected {
            None => self.now - conn.since >= connect + server_handshake,
            Some(at) => self.now - at >= server_handshake,
        };
        if self.conns.get(key).is_some_and(is_late) {
            self.close_conn(key, Reason::NO_ERROR);
        }
    }

    /// PING after silence, suspicion, death; and the end of idle connections.
    fn tick_server_conn(&mut self, key: ConnKey) {
        let now = self.now;
        // What would be late at the next tick is done in this one: the limits are kept, not passed.
        let soon = now + BUSY_TICK;
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.retired.is_some_and(|since| now - since >= self.limits.retired) {
            return self.close_conn(key, Reason::NO_ERROR);
        }
        if conn.streams.is_empty() {
            if now - conn.idle_since >= self.limits.server_idle {
                if let Role::Upstream { server, .. } = conn.role
                    && let Some(server) = self.servers.get_mut(usize::from(server.0))
                {
                    server.forget(key);
                }
                self.close_conn(key, Reason::NO_ERROR);
            } else if now - conn.idle_since >= RELEASE_AFTER {
                conn.release();
            }
            return;
        }
        match conn.pinged {
            // Behind an upload that a slow link is still taking: the server cannot have seen it.
            Some(_) if !conn.out.has_left(conn.ping_mark) && now - conn.last_written < self.limits.suspect_after => {
                conn.pinged = Some(now);
            }
            None if soon - conn.last_received >= self.limits.ping_after => {
                conn.pinged = Some(now);
                conn.ping_mark = conn.out.mark();
                self.write(key, |out| frame::put_ping(out, false, *b"mvproxy?"));
            }
            Some(sent) if soon - sent >= self.limits.dead_after => {
                // What was asked of it goes elsewhere, so it has to be known as down before.
                if let Role::Upstream { server: slot, .. } = conn.role {
                    if let Some(server) = self.servers.get_mut(usize::from(slot.0)) {
                        server.forget(key);
                    }
                    self.on_server_unreachable(slot);
                }
                self.close_conn(key, Reason::NO_ERROR);
            }
            Some(sent) if soon - sent >= self.limits.suspect_after && !conn.suspect => {
                conn.suspect = true;
                if let Role::Upstream { server, lane } = conn.role {
                    self.suspect_idle(server, sent);
                    self.connect(server, lane);
                }
            }
            _ => {}
        }
    }

    /// A server that is suspected on one connection is no better on those that have been silent since: they would take its
    /// requests, and count as proof that it lives.
    fn suspect_idle(&mut self, slot: ServerSlot, since: Instant) {
        let Some(server) = self.servers.get(usize::from(slot.0)) else { return };
        let keys: Vec<_> = server.lanes.iter().flat_map(|lane| lane.conns.iter().copied()).collect();
        for key in keys {
            let Some(conn) = self.conns.get_mut(key) else { continue };
            if conn.streams.is_empty() && conn.last_received <= since && !conn.suspect {
                conn.suspect = true;
                self.write(key, |out| frame::put_ping(out, false, *b"mvproxy?"));
            }
        }
    }

    fn tick_clients(&mut self) {
        let now = self.now;
        self.each_client(|core, key, state| {
            let Some(conn) = core.conns.get_mut(key) else { return };
            let slow_head = conn.http1.as_ref().and_then(|http1| http1.head_since);
            let late = match state {
                _ if slow_head.is_some_and(|since| now - since >= core.limits.client_handshake) => true,
                State::Open if conn.settled => conn.streams.is_empty() && now - conn.idle_since >= core.limits.client_idle,
                State::Connecting | State::Open => now - conn.since >= core.limits.client_handshake,
                State::Draining | State::Closing => false,
            };
            if late {
                core.close_conn(key, Reason::NO_ERROR);
            } else if conn.streams.is_empty() && now - conn.idle_since >= RELEASE_AFTER {
                conn.release();
            }
        });
    }

    /// Requests that got no connection in time, short ones whose server does not begin to answer, and readers that do not read.
    fn tick_exchanges(&mut self) {
        let stall = if self.is_full() { self.limits.reader_stall_full } else { self.limits.reader_stall };
        for at in 0..self.exchanges.places() {
            let Some(key) = self.exchanges.key_at(at) else { continue };
            let Some(entry) = self.exchanges.get(key) else { continue };
            let late = self.now - entry.since >= self.limits.response_head;
            let stalled = entry.legs[Side::Down as usize].holding.unsent() > 0 && self.now - entry.moved >= stall;
            match entry.phase {
                Phase::Answering if stalled => self.reset_leg(key, Side::Down, Reason::CANCEL),
                // It came in time, and only the rest of the answer does not.
                Phase::Asked if entry.held_head.is_some() => self.release_head(key),
                Phase::Waiting if late => self.answer_failure(key, Failure::Overloaded),
                Phase::Asked if late && entry.lane == Lane::Short => {
                    self.reset_leg(key, Side::Up, Reason::CANCEL);
                    self.answer_failure(key, Failure::Timeout);
                }
                _ => {}
            }
        }
    }

    fn tick_drain(&mut self) {
        let Some(drain) = self.draining else { return };
        let waited = self.now - drain.since;
        if waited >= GOAWAY_GRACE && !drain.refused {
            self.draining = Some(Drain { refused: true, ..drain });
            self.refuse_new_streams();
        }
        if waited >= GOAWAY_GRACE {
            self.end_watches();
        }
        if waited >= self.limits.drain {
            self.each_client(|core, key, _| core.close_conn(key, Reason::NO_ERROR));
        }
    }

    /// The last GOAWAY: what was opened so far finishes, the rest is not taken.
    fn refuse_new_streams(&mut self) {
        self.each_client(|core, key, state| {
            let Some(conn) = core.conns.get_mut(key) else { return };
            if matches!(state, State::Open | State::Draining) && conn.http1.is_none() {
                conn.state = State::Draining;
                conn.say_goaway(Reason::NO_ERROR, &mut core.buffers);
                core.mark_dirty(key);
                core.close_if_idle(key);
            }
        });
    }

    /// Watches would go on for an hour: they are reset, so that no cut object looks complete.
    fn end_watches(&mut self) {
        let mut ended = 0;
        for at in 0..self.exchanges.places() {
            let Some(key) = self.exchanges.key_at(at) else { continue };
            if self.exchanges.get(key).is_some_and(|entry| entry.lane == Lane::Long && !entry.legs[Side::Down as usize].closed) {
                self.reset_leg(key, Side::Down, Reason::CANCEL);
                ended += 1;
                if ended == WATCHES_PER_TICK {
                    return;
                }
            }
        }
    }
}
