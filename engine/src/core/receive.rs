//! Frames of a connection, one after the other: what each means for the connection, and whose matter the rest is.
//!
//! What always holds: a frame is looked at once, in order, and none behind the one that ended the connection; each is paid for by what it carries
//! or by a budget; an error of one stream leaves the others alone.

use super::conn::{Role, State, Unknown};
use super::exchange::{Phase, Side};
use super::{Action, ConnKey, Core, Ended};
use crate::http2::Reason;
use crate::http2::frame::{self, MAX_WINDOW};
use crate::http2::inbound::{Frame, Inbound};
use crate::respond::Failure;

/// DATA below this that does not end its stream carries next to nothing: its head is as long. A fact, not a limit; how much of
/// it there may be is `idle_frames`.
const TINY: usize = 9;

/// A connection error to be told the other side (RFC 9113 §5.4.1).
pub(super) type ConnResult = Result<(), Reason>;

impl Core {
    pub(super) fn receive(&mut self, key: ConnKey, mut bytes: &[u8]) {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key).filter(|conn| conn.state != State::Closing) else { return };
        conn.last_received = now;
        conn.pinged = None;
        let was_suspect = std::mem::take(&mut conn.suspect);
        if conn.http1.is_some() {
            self.receive_http1(key, bytes);
            return;
        }
        let Some(mut inbound) = conn.inbound.take() else { return };
        let outcome = self.receive_frames(key, &mut inbound, &mut bytes);
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.inbound = Some(inbound);
        let role = conn.role;
        if let Err(reason) = outcome {
            self.close_conn(key, reason);
        } else if let (true, Role::Upstream { server, lane }) = (was_suspect, role) {
            self.serve_waiting(server, lane);
        }
    }

    fn receive_frames(&mut self, key: ConnKey, inbound: &mut Inbound, bytes: &mut &[u8]) -> ConnResult {
        while let Some(frame) = inbound.poll(bytes)? {
            self.on_frame(key, frame)?;
            // A frame may have ended the connection; what follows is no one's.
            if self.conns.get(key).is_none_or(|conn| conn.state == State::Closing) {
                return Ok(());
            }
        }
        Ok(())
    }

    fn on_frame(&mut self, key: ConnKey, frame: Frame<'_>) -> ConnResult {
        self.charge(key, &frame)?;
        match frame {
            Frame::Data { stream, bytes, flow, end_stream, .. } => self.on_data(key, stream, bytes, flow, end_stream),
            Frame::Headers { stream, block, end_stream, self_dependent } => self.on_headers(key, stream, block, end_stream, self_dependent),
            Frame::Reset { stream, reason } => self.on_reset(key, stream, reason),
            Frame::WindowUpdate { stream, increment } => self.on_window_update(key, stream, increment),
            Frame::Settings { payload } => self.on_settings(key, payload),
            Frame::Ping { ack: false, opaque } => {
                self.write(key, |out| frame::put_ping(out, true, opaque));
                Ok(())
            }
            Frame::GoAway { last } => {
                self.on_goaway(key, last);
                Ok(())
            }
            Frame::Faulty { stream, reason } => self.on_faulty(key, stream, reason),
            Frame::SettingsAck | Frame::Ping { ack: true, .. } | Frame::Ignored => Ok(()),
        }
    }

    /// Frames that carry nothing come out of a budget.
    fn charge(&mut self, key: ConnKey, frame: &Frame<'_>) -> ConnResult {
        let now = self.now;
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        match frame {
            Frame::Headers { .. } | Frame::Reset { .. } | Frame::Data { end_stream: true, .. } => Ok(()),
            // A server may send tiny pieces for one of its clients (logs, line by line); the connection is everybody's.
            Frame::Data { worth, .. } if *worth >= if conn.role == Role::Downstream { TINY } else { 1 } => Ok(()),
            Frame::WindowUpdate { .. } => conn.take_update(&self.limits, now),
            _ => conn.take_idle_frame(&self.limits, now),
        }
    }

    /// Appends control frames to a connection's output.
    pub(super) fn write(&mut self, key: ConnKey, put: impl FnOnce(&mut Vec<u8>)) {
        if let Some(conn) = self.conns.get_mut(key) {
            put(conn.out.frames(&mut self.buffers));
            self.mark_dirty(key);
        }
    }

    fn on_settings(&mut self, key: ConnKey, payload: &[u8]) -> ConnResult {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        let from_server = conn.role != Role::Downstream;
        let before = conn.peer;
        conn.settled = true;
        conn.peer.apply(payload, from_server)?;
        conn.encoder.set_max_table_size(conn.peer.header_table_size as usize);
        let delta = i64::from(conn.peer.initial_window) - i64::from(before.initial_window);
        frame::put_settings_ack(conn.out.frames(&mut self.buffers));
        let role = conn.role;
        let (opens, waited) = (std::mem::take(&mut conn.awaits_settings), conn.handshake);
        if opens {
            conn.open(self.now);
        }
        self.mark_dirty(key);
        if delta != 0 {
            self.shift_windows(key, delta)?;
        }
        if let Role::Upstream { server, lane } = role {
            if opens {
                if !self.is_proxy(role) {
                    self.doubt_if_late(server, waited);
                }
                self.on_server_connected(key, server, lane);
            } else {
                // It may allow more streams now.
                self.serve_waiting(server, lane);
            }
        }
        Ok(())
    }

    /// A new initial window moves the window of every open stream (RFC 9113 §6.9.2).
    fn shift_windows(&mut self, key: ConnKey, delta: i64) -> ConnResult {
        let Some(conn) = self.conns.get(key) else { return Ok(()) };
        let side = conn.side();
        let open: Vec<_> = conn.streams.iter().map(|(_, exchange)| exchange).collect();
        for &exchange in &open {
            let Some(entry) = self.exchanges.get_mut(exchange) else { continue };
            let leg = entry.leg(side);
            leg.send_window += delta;
            if leg.send_window > i64::from(MAX_WINDOW) {
                return Err(Reason::FLOW_CONTROL_ERROR);
            }
        }
        for exchange in open {
            self.pump(exchange, side);
        }
        Ok(())
    }

    fn on_window_update(&mut self, key: ConnKey, stream: u32, increment: u32) -> ConnResult {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        if stream == 0 {
            conn.send_window += i64::from(increment);
            if increment == 0 {
                return Err(Reason::PROTOCOL_ERROR);
            }
            if conn.send_window > i64::from(MAX_WINDOW) {
                return Err(Reason::FLOW_CONTROL_ERROR);
            }
            self.pump_blocked(key);
            return Ok(());
        }
        let side = conn.side();
        let Some(exchange) = conn.streams.get(stream) else {
            return match conn.judge_unknown(stream) {
                Unknown::Idle => Err(Reason::PROTOCOL_ERROR),
                Unknown::Late | Unknown::Closed => Ok(()),
            };
        };
        let Some(entry) = self.exchanges.get_mut(exchange) else { return Ok(()) };
        let leg = entry.leg(side);
        leg.send_window += i64::from(increment);
        if increment == 0 {
            self.fail_stream(exchange, side, Reason::PROTOCOL_ERROR);
        } else if leg.send_window > i64::from(MAX_WINDOW) {
            self.fail_stream(exchange, side, Reason::FLOW_CONTROL_ERROR);
        } else {
            self.pump(exchange, side);
        }
        Ok(())
    }

    fn on_faulty(&mut self, key: ConnKey, stream: u32, reason: Reason) -> ConnResult {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        let side = conn.side();
        match conn.streams.get(stream) {
            Some(exchange) => self.fail_stream(exchange, side, reason),
            // RST_STREAM must not be sent for a stream that is idle (RFC 9113 §6.4).
            None if conn.judge_unknown(stream) == Unknown::Idle => return Err(reason),
            None => return self.refuse_stream(key, stream, reason),
        }
        Ok(())
    }

    fn on_goaway(&mut self, key: ConnKey, last: u32) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.state == State::Open {
            conn.state = State::Draining;
        }
        let Role::Upstream { server, lane } = conn.role else {
            self.close_if_idle(key);
            return;
        };
        let unprocessed: Vec<_> = conn.streams.iter().filter(|&(id, _)| id > last).map(|(_, exchange)| exchange).collect();
        for exchange in unprocessed {
            // A response that has begun contradicts the GOAWAY, and cannot begin again: it may go on here.
            let Some(entry) = self.exchanges.get_mut(exchange).filter(|entry| entry.phase == Phase::Asked && !entry.is_begun()) else {
                continue;
            };
            if entry.goaways < self.limits.goaways {
                entry.goaways += 1;
                entry.attempts = entry.attempts.saturating_sub(1);
            }
            self.retry(exchange);
        }
        self.serve_waiting(server, lane);
        self.close_if_idle(key);
    }

    /// A draining connection whose last stream ended is closed.
    pub(super) fn close_if_idle(&mut self, key: ConnKey) {
        let idle = self.conns.get(key).is_some_and(|conn| conn.state == State::Draining && conn.streams.is_empty());
        if idle {
            self.close_conn(key, Reason::NO_ERROR);
        }
    }

    /// Says goodbye, asks the IO side to close, and ends what still runs on the connection.
    pub(super) fn close_conn(&mut self, key: ConnKey, reason: Reason) {
        let Some(conn) = self.conns.get_mut(key).filter(|conn| conn.state != State::Closing) else { return };
        let unanswered = conn.http1.as_ref().is_some_and(|http1| http1.exchange.is_some());
        // Nothing comes before the preface and SETTINGS (RFC 9113 §3.4): a server that has not got them gets no GOAWAY.
        let is_greeted = conn.state != State::Connecting || conn.awaits_settings;
        let silent = conn.http1.is_some() || !is_greeted || (conn.role != Role::Downstream && !conn.out.has_left(0));
        if conn.role == Role::Downstream {
            conn.state = State::Closing;
        }
        self.end_exchanges(key, Ended::Lost);
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.state = State::Closing;
        if conn.role == Role::Downstream && reason == Reason::ENHANCE_YOUR_CALM && !conn.is_peer {
            self.actions.push_back(Action::Blame { conn: key });
        }
        if conn.role != Role::Downstream {
            // Requests that were not sent yet are given to others: they must not be sent here as well.
            conn.out.clear(&mut self.buffers, &mut self.blocks);
        }
        if !silent {
            conn.say_goaway(reason, &mut self.buffers);
        }
        self.mark_dirty(key);
        // An answer that is not complete must not end like one that is.
        self.actions.push_back(if unanswered { Action::Cut { conn: key } } else { Action::Close { conn: key } });
    }

    /// An error of one stream: told to the side that made it, and the other leg is ended too.
    pub(super) fn fail_stream(&mut self, exchange: super::ExchangeKey, side: Side, reason: Reason) {
        self.charge_fault(exchange, side);
        self.reset_leg(exchange, side, reason);
        match side {
            // The other leg is ended by `settle`, within the server's budget of resets.
            Side::Down => {}
            Side::Up if self.exchanges.get(exchange).is_some_and(|entry| entry.phase != Phase::Answering) => {
                self.answer_failure(exchange, Failure::Interrupted);
            }
            Side::Up => self.upstream_failed(exchange, Reason::INTERNAL_ERROR),
        }
    }

    /// A client's fault that makes us reset its stream costs it as much as a reset of its own (CVE-2025-8671).
    fn charge_fault(&mut self, exchange: super::ExchangeKey, side: Side) {
        let Some(key) = self.exchanges.get(exchange).and_then(|entry| entry.legs[side as usize].conn) else { return };
        let (limits, now) = (&self.limits, self.now);
        let spent = |conn: &mut super::Conn| conn.role == Role::Downstream && conn.http1.is_none() && !conn.may_reset(limits, now);
        if self.conns.get_mut(key).is_some_and(spent) {
            self.close_conn(key, Reason::ENHANCE_YOUR_CALM);
        }
    }
}
