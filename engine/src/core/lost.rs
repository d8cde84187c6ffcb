//! Ends: of streams, of exchanges, of connections.
//!
//! What always holds: a body that is not complete ends in a reset (or a cut connection of HTTP/1.1), never in a clean end; an exchange is freed
//! when both legs are closed, and not before.
//!
//! How an end on one leg shows on the other (the table of docs/ARCHITECTURE.md):
//!
//! | from | when | to the other leg |
//! |---|---|---|
//! | client RST_STREAM, any code; client gone | | RST_STREAM(CANCEL), within the budget of resets; else as soon as that allows |
//! | server RST_STREAM, any code (Go: NO_ERROR) | response complete | success; RST_STREAM(NO_ERROR) when the upload is not complete |
//! | server RST_STREAM(REFUSED_STREAM) | no response head | retried; 503 with Retry-After when there is nobody left to ask; RST_STREAM(REFUSED_STREAM) when the body is longer than what was kept |
//! | server RST_STREAM | else | the code where it is the client's matter (CANCEL, HTTP_1_1_REQUIRED), INTERNAL_ERROR else |
//! | server's head or DATA malformed | no response head | 503; RST_STREAM(PROTOCOL_ERROR) to the server |
//! | server's body malformed or shorter than announced | response begun | RST_STREAM(INTERNAL_ERROR) |
//! | no response head in 65 s | not long-running | 504; RST_STREAM(CANCEL) to the server |
//! | server gone | head not sent, or above GOAWAY's last id | retried, as REFUSED_STREAM |
//! | server gone before its SETTINGS | nothing is sent before them | another server, as if it had refused the connection |
//! | server gone | GET or HEAD that ends by itself, nothing of the answer but its head came | asked once more; then 503 |
//! | server says 503 with Retry-After (custom and aggregated resources, discovery: and that it is going down or not up yet) | the same, and another server has it | asked there |
//! | server gone | no response head | 503 |
//! | server gone | response begun | RST_STREAM(INTERNAL_ERROR) |

use super::conn::{Role, State, Unknown};
use super::exchange::{Phase, Side};
use super::pool::Lane;
use super::receive::ConnResult;
use super::{Action, ConnKey, Core, Ended, ExchangeKey, Sign};
use crate::http2::Reason;
use crate::http2::frame;
use crate::respond::Failure;

/// Abandoned streams looked at each time something happens: often enough to spend the whole budget of resets.
const RESETS_PER_TURN: usize = 16;

impl Core {
    pub(super) fn on_reset(&mut self, key: ConnKey, stream: u32, reason: Reason) -> ConnResult {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        let side = conn.side();
        let Some(exchange) = conn.streams.get(stream) else {
            return match conn.judge_unknown(stream) {
                Unknown::Idle => Err(Reason::PROTOCOL_ERROR),
                Unknown::Late | Unknown::Closed => conn.take_late_reset(&self.limits, self.now),
            };
        };
        match side {
            Side::Down => {
                let young = self.exchanges.get(exchange).is_some_and(|entry| self.now - entry.since < self.limits.young);
                self.unlink(exchange, Side::Down);
                self.settle(exchange);
                let (limits, now) = (&self.limits, self.now);
                if young && self.conns.get_mut(key).is_some_and(|conn| !conn.may_reset(limits, now)) {
                    return Err(Reason::ENHANCE_YOUR_CALM);
                }
            }
            Side::Up => self.on_server_reset(exchange, reason),
        }
        Ok(())
    }

    fn on_server_reset(&mut self, exchange: ExchangeKey, reason: Reason) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let complete = entry.leg(Side::Up).recv_end;
        if complete {
            // The server has said all and wants no more of the upload: Go does this with NO_ERROR.
            self.unlink(exchange, Side::Up);
            self.settle(exchange);
        } else if !entry.is_begun() && reason == Reason::REFUSED_STREAM {
            self.retry(exchange);
        } else {
            self.unlink(exchange, Side::Up);
            self.upstream_failed(exchange, mapped(reason));
        }
    }

    /// The upstream leg broke and cannot be retried: the client's stream is reset, never ended cleanly.
    pub(super) fn upstream_failed(&mut self, exchange: ExchangeKey, reason: Reason) {
        self.reset_leg(exchange, Side::Down, reason);
        self.settle(exchange);
    }

    /// Resets a leg's stream if it is still open.
    pub(super) fn reset_leg(&mut self, exchange: ExchangeKey, side: Side, reason: Reason) {
        if side == Side::Down && self.reset_http1(exchange, reason) {
            return;
        }
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let leg = entry.leg(side);
        if leg.closed {
            return;
        }
        let window = if leg.recv_end { 0 } else { leg.recv_window };
        if let (Some(key), stream) = (leg.conn, leg.stream)
            && let Some(conn) = self.conns.get_mut(key)
            && conn.http1.is_none()
        {
            conn.remember_reset(stream, window, &self.limits);
            self.write(key, |out| frame::put_reset(out, stream, reason));
        }
        self.unlink(exchange, side);
        self.settle(exchange);
    }

    /// A frame on a stream that had ended (RFC 9113 §5.1): answered within the other side's budget of resets. The connection to a
    /// server carries other people's streams, so a server beyond its budget gets no answer, where a client loses its connection.
    pub(super) fn refuse_late(&mut self, key: ConnKey, stream: u32) -> ConnResult {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        if !conn.tells_closed(stream) {
            return if conn.role == Role::Downstream { conn.take_idle_frame(&self.limits, self.now) } else { Ok(()) };
        }
        if conn.may_reset(&self.limits, self.now) {
            self.write(key, |out| frame::put_reset(out, stream, Reason::STREAM_CLOSED));
        } else if conn.role == Role::Downstream {
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        Ok(())
    }

    /// Takes a leg's stream out of its connection, and drops what waited for it.
    pub(super) fn unlink(&mut self, exchange: ExchangeKey, side: Side) {
        self.unlist(exchange, side);
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let leg = &mut entry.legs[side as usize];
        if leg.closed {
            return;
        }
        leg.closed = true;
        leg.holding.clear(&mut self.blocks);
        let trailers = leg.trailers.take();
        let (conn, stream, answered, read) = (leg.conn, leg.stream, leg.send_end, leg.recv_end);
        if let Some(trailers) = trailers {
            self.give_head(trailers);
        }
        if let Some(key) = conn {
            self.remove_stream(key, stream);
            if side == Side::Down {
                self.end_http1(key, answered, read);
            }
        }
    }

    fn remove_stream(&mut self, key: ConnKey, stream: u32) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.streams.remove(stream);
        if conn.streams.is_empty() {
            conn.idle_since = now;
        }
        let role = conn.role;
        match conn.state {
            State::Draining => self.close_if_idle(key),
            State::Open => {
                if let Role::Upstream { server, lane } = role {
                    self.serve_waiting(server, lane);
                }
            }
            State::Connecting | State::Closing => {}
        }
    }

    /// Forgets the upstream stream without telling the server, keeping what a retry needs.
    pub(super) fn detach_up(&mut self, exchange: ExchangeKey) {
        self.unlist(exchange, Side::Up);
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let up = entry.leg(Side::Up);
        let (conn, stream) = (up.conn.take(), up.stream);
        if let Some(key) = conn {
            self.remove_stream(key, stream);
        }
    }

    /// Takes a leg out of its connection's list of blocked exchanges.
    fn unlist(&mut self, exchange: ExchangeKey, side: Side) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let leg = entry.leg(side);
        if std::mem::take(&mut leg.listed)
            && let Some(conn) = leg.conn.and_then(|key| self.conns.get_mut(key))
        {
            conn.blocked.retain(|&blocked| blocked != exchange);
        }
    }

    /// Closes legs that are done both ways, and frees the exchange when both are.
    pub(super) fn settle(&mut self, exchange: ExchangeKey) {
        for side in [Side::Up, Side::Down] {
            let Some(entry) = self.exchanges.get(exchange) else { return };
            let leg = &entry.legs[side as usize];
            if !leg.closed && leg.recv_end && leg.send_end {
                self.unlink(exchange, side);
            }
        }
        let Some(entry) = self.exchanges.get(exchange) else { return };
        let [down, up] = &entry.legs;
        if up.closed && !down.closed && down.send_end && !down.recv_end {
            // Answered in full, and nobody wants the rest of the upload (RFC 9113 §8.1).
            self.reset_leg(exchange, Side::Down, Reason::NO_ERROR);
            return;
        }
        if down.closed && !up.closed && up.conn.is_none() {
            // The client left while the request waited for a connection.
            self.unlink(exchange, Side::Up);
            self.free(exchange);
        } else if down.closed && up.closed {
            self.free(exchange);
        } else if down.closed {
            self.abandon(exchange);
        }
    }

    /// Nobody wants the answer any more: its stream is reset, or, when too many were, runs to its end unread.
    pub(super) fn abandon(&mut self, exchange: ExchangeKey) {
        let (limits, now) = (&self.limits, self.now);
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let Some(conn) = entry.leg(Side::Up).conn.and_then(|key| self.conns.get_mut(key)) else { return };
        if conn.may_reset(limits, now) {
            self.count_abandoned(exchange, false);
            self.reset_leg(exchange, Side::Up, Reason::CANCEL);
        } else {
            self.count_abandoned(exchange, true);
        }
    }

    fn count_abandoned(&mut self, exchange: ExchangeKey, abandoned: bool) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        if std::mem::replace(&mut entry.abandoned, abandoned) == abandoned {
            return;
        }
        let (slot, lane, client) = (usize::from(entry.server.0), entry.lane, entry.leg(Side::Down).conn);
        if abandoned {
            self.abandoned.push_back(exchange);
        }
        let counted = |before: usize| if abandoned { before + 1 } else { before.saturating_sub(1) };
        if let Some(server) = self.servers.get_mut(slot) {
            let pool = server.lane(lane);
            pool.abandoned = counted(pool.abandoned);
        }
        if let Some(client) = client.and_then(|key| self.conns.get_mut(key)) {
            client.abandoned = counted(client.abandoned);
        }
    }

    /// Resets some of what could not be reset before; somebody may wait for the slots.
    pub(super) fn reset_abandoned(&mut self) {
        for _ in 0..self.abandoned.len().min(RESETS_PER_TURN) {
            let Some(exchange) = self.abandoned.pop_front() else { return };
            if self.exchanges.get(exchange).is_some_and(|entry| entry.abandoned) {
                self.abandon(exchange);
                if self.exchanges.get(exchange).is_some_and(|entry| entry.abandoned) {
                    self.abandoned.push_back(exchange);
                }
            }
        }
    }

    fn free(&mut self, exchange: ExchangeKey) {
        self.count_abandoned(exchange, false);
        self.release_server(exchange);
        let Some(mut entry) = self.exchanges.remove(exchange) else { return };
        for leg in &mut entry.legs {
            leg.holding.clear(&mut self.blocks);
        }
        self.give_head(entry.request);
    }

    /// Everything that runs on a connection ends, because the connection does.
    pub(super) fn end_exchanges(&mut self, key: ConnKey, ended: Ended) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        let side = conn.side();
        let on_wire = conn.state != State::Connecting;
        let running: Vec<_> = conn.streams.iter().map(|(_, exchange)| exchange).collect();
        if let Role::Upstream { server: slot, lane } = conn.role
            && conn.state != State::Closing
            && let Some(server) = self.servers.get_mut(usize::from(slot.0))
        {
            server.forget(key);
            if !on_wire || ended == Ended::Unreachable {
                self.on_server_unreachable(slot);
            } else {
                self.wake_waiting(slot, lane);
            }
        }
        for exchange in running {
            match side {
                Side::Down => {
                    self.unlink(exchange, Side::Down);
                    self.settle(exchange);
                }
                Side::Up => self.on_server_gone(exchange, key),
            }
        }
    }

    /// The connection of an exchange's upstream leg is gone.
    fn on_server_gone(&mut self, exchange: ExchangeKey, key: ConnKey) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        if entry.leg(Side::Up).recv_end {
            // The response is complete; only the upload is not.
            self.unlink(exchange, Side::Up);
            self.settle(exchange);
            return;
        }
        let mark = entry.head_mark;
        let answering = entry.phase == Phase::Answering;
        let unsent = self.conns.get(key).is_some_and(|conn| !conn.out.has_left(mark));
        let repeats = !answering && !unsent && std::mem::take(&mut entry.may_repeat);
        if (unsent && !answering) || repeats {
            self.retry(exchange);
        } else if answering {
            self.unlink(exchange, Side::Up);
            self.upstream_failed(exchange, Reason::INTERNAL_ERROR);
        } else {
            self.unlink(exchange, Side::Up);
            self.answer_failure(exchange, Failure::Interrupted);
        }
    }

    /// No connection to the server can be had: who waits goes elsewhere.
    pub(super) fn on_server_unreachable(&mut self, slot: super::ServerSlot) {
        let until = self.now + self.limits.server_backoff;
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return };
        // With a connection open it is there; one attempt failed. Those who wait are served as streams of their lane end.
        let gone = !server.has_open_conn(&self.conns);
        if gone {
            server.down_until = Some(until);
            self.actions.push_back(Action::Report(Sign::Unreachable(server.address)));
            self.doubt(slot);
        }
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return };
        let hopeless = server.lanes.iter_mut().filter(|lane| gone || lane.is_hopeless(&self.conns));
        let waiting: Vec<_> = hopeless.flat_map(|lane| std::mem::take(&mut lane.waiting)).collect();
        // A connection under suspicion, and no new one to be had: the server is gone.
        let suspects: Vec<_> = server.lanes.iter().filter(|_| gone).flat_map(|lane| lane.conns.iter().copied()).collect();
        for exchange in waiting {
            self.send_elsewhere(exchange, slot);
        }
        if !gone {
            self.serve_waiting_anyhow(slot, Lane::Short);
            self.serve_waiting_anyhow(slot, Lane::Long);
        }
        for key in suspects {
            if self.conns.get(key).is_some_and(|conn| conn.suspect) {
                self.close_conn(key, Reason::NO_ERROR);
            }
        }
    }

    /// A connection ended, and not because we said so. A GOAWAY before proves nothing: any client can cause one.
    fn on_server_lost(&mut self, key: ConnKey, slot: super::ServerSlot, state: State) {
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return };
        server.forget(key);
        let is_last = !server.has_open_conn(&self.conns);
        match state {
            State::Open if is_last => self.doubt(slot),
            State::Open if slot == self.local => self.actions.push_back(Action::Report(Sign::LocalLost)),
            _ => {}
        }
    }

    /// The server may be another process now: discovery is told, and if it probes, nothing is sent before it vouches for the server.
    pub(super) fn doubt(&mut self, slot: super::ServerSlot) {
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return };
        server.doubt_if_probed(self.now);
        if slot == self.local {
            self.actions.push_back(Action::Report(Sign::LocalLost));
        }
        self.tell_doubt(slot);
        self.spare_waiting(slot);
    }

    /// Tells discovery of a doubt.
    pub(super) fn tell_doubt(&mut self, slot: super::ServerSlot) {
        let now = self.now;
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return };
        if let Some(doubt) = &mut server.doubt {
            doubt.told = now;
            self.actions.push_back(Action::Report(Sign::Lost { server: server.id.clone(), at: doubt.lost }));
        }
    }

    /// Those who wait for a server in doubt and can be served by another one need not wait, nor may a hop whose proxy may know another one.
    pub(super) fn spare_waiting(&mut self, slot: super::ServerSlot) {
        for lane in [Lane::Short, Lane::Long] {
            let Some(server) = self.servers.get_mut(usize::from(slot.0)).filter(|server| server.doubt.is_some()) else { return };
            let waiting = std::mem::take(&mut server.lane(lane).waiting);
            for exchange in waiting {
                let Some(entry) = self.exchanges.get(exchange) else { continue };
                let may_go_on = self.has_healthy(entry.others) && entry.attempts < self.limits.attempts;
                if may_go_on || self.is_for_another_proxy(exchange) {
                    self.send_elsewhere(exchange, slot);
                } else if let Some(server) = self.servers.get_mut(usize::from(slot.0)) {
                    server.lane(lane).waiting.push_back(exchange);
                }
            }
        }
    }

    /// A connection of the lane was lost: whoever waits needs another one.
    fn wake_waiting(&mut self, slot: super::ServerSlot, lane: Lane) {
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return };
        if !server.lane(lane).waiting.is_empty() {
            self.serve_waiting(slot, lane);
        }
    }

    /// Takes a connection out of the shard.
    pub(super) fn remove_conn(&mut self, key: ConnKey, ended: Ended) {
        if self.conns.get(key).is_none() {
            return;
        }
        if let Some(conn) = self.conns.get_mut(key) {
            let (role, state) = (conn.role, conn.state);
            match role {
                Role::Downstream => conn.state = State::Closing,
                Role::Upstream { server, .. } if ended == Ended::Lost => self.on_server_lost(key, server, state),
                Role::Upstream { .. } => {}
            }
        }
        self.end_exchanges(key, ended);
        let Some(mut conn) = self.conns.remove(key) else { return };
        conn.out.clear(&mut self.buffers, &mut self.blocks);
        if conn.role == Role::Downstream {
            self.clients -= 1;
        }
    }
}

/// A server's reset code as the client may see it: what is about the connection we share is not its matter.
fn mapped(reason: Reason) -> Reason {
    match reason {
        Reason::CANCEL | Reason::HTTP_1_1_REQUIRED => reason,
        _ => Reason::INTERNAL_ERROR,
    }
}
