//! Body bytes from one leg to the other, within both sides' windows.
//!
//! ```text
//!  DATA on one leg --> straight into the outbox of the other leg     windows open, nothing waits
//!                  \-> Holding of the other leg --pump--> outbox     windows closed, or kept for a retry
//!  outbox drained and written --credit--> WINDOW_UPDATE on the first leg
//! ```
//!
//! What always holds: bytes of one direction leave in the order they came; no more than both windows and `out_high` allow; the sender's stream window
//! comes back only for bytes the other side's kernel has taken, so an exchange holds at most its two windows.

use super::body::BLOCK_LEN;
use super::conn::{Conn, Unknown, put_headers};
use super::exchange::Side;
use super::receive::ConnResult;
use super::{Action, ConnKey, Core, ExchangeKey};
use crate::http2::Reason;
use crate::http2::frame::{self, MAX_DATA};
use crate::http2::message::{UNKNOWN_LENGTH, forwarded_in_request};

/// Memory that a body kept for a retry may take, by what it may be long (a block at least): full frames take twice, and those that fill a quarter of a
/// block four times as much.
const KEPT_MEMORY: usize = 4;

impl Core {
    pub(super) fn on_data(&mut self, key: ConnKey, stream: u32, bytes: &[u8], flow: u32, end: bool) -> ConnResult {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        conn.receive(flow, &self.limits, &mut self.buffers)?;
        let (side, updated) = (conn.side(), conn.recv_taken == 0 && flow > 0);
        let found = conn.streams.get(stream).ok_or_else(|| conn.judge_unknown(stream));
        if updated {
            self.mark_dirty(key);
        }
        let exchange = match found {
            Ok(exchange) => exchange,
            Err(Unknown::Idle) => return Err(Reason::PROTOCOL_ERROR),
            Err(Unknown::Late) => {
                // What was under way when the stream was reset has an end; more of it is a flood.
                let (limits, now) = (&self.limits, self.now);
                return match self.conns.get_mut(key) {
                    Some(conn) if side == Side::Down => conn.take_late_data(flow, limits, now),
                    _ => Ok(()),
                };
            }
            Err(Unknown::Closed) => return self.refuse_late(key, stream),
        };
        if side == Side::Up && self.exchanges.get(exchange).is_some_and(|entry| entry.held_head.is_some()) {
            if self.is_asked_elsewhere(exchange, bytes, end) {
                return Ok(());
            }
            self.release_head(exchange);
        }
        match self.take_data(exchange, side, bytes, flow, end) {
            // Only padding, or nothing: not worth a frame, but its window is given back.
            Ok(()) if bytes.is_empty() && !end => self.credit(exchange, side, 0),
            Ok(()) => self.forward(exchange, side, bytes, end),
            Err(reason) => self.fail_stream(exchange, side, reason),
        }
        Ok(())
    }

    /// Books a piece of DATA on the leg it came on.
    pub(super) fn take_data(&mut self, exchange: ExchangeKey, side: Side, bytes: &[u8], flow: u32, end: bool) -> Result<(), Reason> {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return Err(Reason::INTERNAL_ERROR) };
        let headless = side == Side::Up && entry.phase != super::exchange::Phase::Answering;
        let leg = entry.leg(side);
        if leg.recv_end {
            return Err(Reason::STREAM_CLOSED);
        }
        leg.recv_window -= i64::from(flow);
        if leg.recv_window < 0 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        if leg.body_left != UNKNOWN_LENGTH {
            // More than was announced, or an end before all of it came (RFC 9113 §8.1.1).
            leg.body_left = leg.body_left.checked_sub(bytes.len() as u64).ok_or(Reason::PROTOCOL_ERROR)?;
            if end && leg.body_left != 0 {
                return Err(Reason::PROTOCOL_ERROR);
            }
        }
        if headless {
            return Err(Reason::PROTOCOL_ERROR);
        }
        #[allow(clippy::cast_possible_truncation, reason = "a piece is at most one frame long")]
        let len = bytes.len() as u32;
        leg.owed += len;
        // Padding; HTTP/1.1 has neither padding nor windows.
        leg.uncredited += flow.saturating_sub(len);
        leg.recv_end = end;
        self.counters.body_received += u64::from(len);
        Ok(())
    }

    /// Passes bytes that came on leg `from` to the other leg.
    pub(super) fn forward(&mut self, exchange: ExchangeKey, from: Side, bytes: &[u8], end: bool) {
        let to = from.other();
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let leg = &mut entry.legs[to as usize];
        if leg.closed {
            // The reader is gone but the exchange is not. An upload nobody wants counts as taken; an answer nobody wants does not,
            // so that its window ends it.
            if !entry.abandoned {
                self.credit(exchange, from, bytes.len());
            }
            self.settle(exchange);
            return;
        }
        let limits = &self.limits;
        let direct = match leg.conn.and_then(|key| self.conns.get_mut(key).map(|conn| (key, conn))) {
            Some((key, conn)) if leg.holding.unsent() == 0 && !leg.holding.is_keeping() => {
                let room = leg.send_window.min(conn.send_window).min(limits.out_high as i64 - conn.out.len() as i64);
                let now = bytes.len().min(usize::try_from(room).unwrap_or(0));
                if now == bytes.len() || now > 0 {
                    let last = end && now == bytes.len();
                    conn.pay_for_data(limits);
                    conn.put_data(leg.stream, &bytes[..now], last, &mut self.buffers, &mut self.copied);
                    leg.send_window -= now as i64;
                    conn.send_window -= now as i64;
                    leg.send_end |= last;
                    if !end {
                        #[allow(clippy::cast_possible_truncation, reason = "a piece is at most one frame long")]
                        conn.out.credit(exchange, now as u32);
                    }
                    Some((key, now))
                } else {
                    None
                }
            }
            _ => None,
        };
        let now = direct.map_or(0, |(_, now)| now);
        if now > 0 && to == Side::Down {
            entry.moved = self.now;
        }
        if now < bytes.len() && self.blocks.in_use() >= limits.held_bytes {
            // The shard holds as much as it may: who does not read loses.
            if let Some((key, _)) = direct {
                self.mark_dirty(key);
            }
            self.reset_leg(exchange, Side::Down, Reason::ENHANCE_YOUR_CALM);
            return;
        }
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let leg = &mut entry.legs[to as usize];
        if now < bytes.len() {
            leg.holding.push(&bytes[now..], &mut self.blocks, &mut self.copied);
            // Pieces that came one by one have a block each, so that few bytes can hold much.
            let is_too_much = leg.holding.kept() > limits.retry_body || leg.holding.held() > KEPT_MEMORY * limits.retry_body.max(BLOCK_LEN);
            if leg.holding.is_keeping() && is_too_much {
                leg.holding.stop_keeping(&mut self.blocks);
            }
        }
        let finished = leg.send_end;
        if let Some((key, _)) = direct {
            self.mark_dirty(key);
        }
        if finished {
            self.settle(exchange);
        } else if now < bytes.len() || end {
            self.pump(exchange, to);
        }
    }

    /// Sends what waits on a leg as far as the windows go, then its trailers or its end.
    pub(super) fn pump(&mut self, exchange: ExchangeKey, to: Side) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let source_ended = entry.legs[to.other() as usize].recv_end;
        let leg = &mut entry.legs[to as usize];
        if leg.closed || leg.send_end {
            return;
        }
        let Some(key) = leg.conn else { return };
        let Some(conn) = self.conns.get_mut(key) else { return };
        let mut wrote = false;
        while leg.holding.unsent() > 0 {
            let room = leg.send_window.min(conn.send_window).min(self.limits.out_high as i64 - conn.out.len() as i64);
            let max = usize::try_from(room).unwrap_or(0).min(MAX_DATA);
            let Some(chunk) = (max > 0).then(|| leg.holding.pop(max, &mut self.blocks)).flatten() else { break };
            let n = chunk.range.len();
            let last = source_ended && leg.holding.unsent() == 0 && leg.trailers.is_none();
            leg.send_window -= n as i64;
            conn.send_window -= n as i64;
            leg.send_end |= last;
            conn.pay_for_data(&self.limits);
            conn.put_chunk(leg.stream, chunk, last, &mut self.buffers);
            #[allow(clippy::cast_possible_truncation, reason = "a chunk is at most one frame long")]
            conn.out.credit(exchange, n as u32);
            wrote = true;
        }
        if wrote && to == Side::Down {
            entry.moved = self.now;
        }
        let leg = &mut entry.legs[to as usize];
        let mut used_trailers = None;
        if leg.holding.unsent() > 0 {
            if leg.send_window > 0 && !leg.listed {
                leg.listed = true;
                conn.blocked.push_back(exchange);
            }
        } else if source_ended && !leg.send_end {
            // A retry would need them again.
            if !leg.holding.is_keeping() {
                used_trailers = leg.trailers.take();
            }
            let stream = leg.stream;
            match used_trailers.as_ref().or(leg.trailers.as_ref()) {
                Some(trailers) if conn.http1.is_some() => conn.put_last_chunk(Some(trailers), &mut self.buffers),
                Some(trailers) => put_headers(conn, &mut self.buffers, stream, true, |encoder, out| {
                    for field in trailers.iter().filter(|field| to == Side::Down || forwarded_in_request(field.token)) {
                        encoder.field(field, out);
                    }
                }),
                None => {
                    conn.pay_for_data(&self.limits);
                    conn.put_data(stream, &[], true, &mut self.buffers, &mut self.copied);
                }
            }
            leg.send_end = true;
            wrote = true;
        }
        let finished = leg.send_end;
        if let Some(trailers) = used_trailers {
            self.give_head(trailers);
        }
        if wrote {
            self.mark_dirty(key);
        }
        if finished {
            self.settle(exchange);
        }
    }

    /// The connection can take more: the exchanges it held back get their turns. It ends when the connection is full again, with those who had
    /// none in front: or the first would always be first, and a long answer keep everything else of its client back.
    pub(super) fn pump_blocked(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get(key) else { return };
        let (side, out_high) = (conn.side(), self.limits.out_high);
        for _ in 0..conn.blocked.len() {
            let has_room = |conn: &&mut Conn| conn.send_window > 0 && conn.out.len() < out_high;
            let next = self.conns.get_mut(key).filter(has_room).and_then(|conn| conn.blocked.pop_front());
            let Some(exchange) = next else { return };
            if let Some(entry) = self.exchanges.get_mut(exchange) {
                entry.leg(side).listed = false;
                self.pump(exchange, side);
            }
        }
    }

    pub(super) fn on_written(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.last_written = self.now;
        let from = conn.side().other();
        let mut credits = conn.out.take_credits();
        for credit in credits.drain(..) {
            self.credit(credit.exchange, from, credit.bytes as usize);
        }
        if let Some(conn) = self.conns.get_mut(key) {
            conn.out.return_credits(credits);
            if !conn.blocked.is_empty() {
                self.pump_blocked(key);
            }
        }
    }

    /// Bytes that came on leg `from` were taken by the other one: gives the window back by the half.
    fn credit(&mut self, exchange: ExchangeKey, from: Side, bytes: usize) {
        let granted = match from {
            Side::Down => self.limits.client_window,
            Side::Up => self.limits.server_window,
        };
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let leg = entry.leg(from);
        // A body that was sent twice (a retry) is credited once.
        let taken = leg.owed.min(u32::try_from(bytes).unwrap_or(u32::MAX));
        leg.owed -= taken;
        leg.uncredited += taken;
        if leg.recv_end || leg.closed {
            return;
        }
        if let Some(key) = leg.conn.filter(|&key| self.conns.get(key).is_some_and(|conn| conn.http1.is_some())) {
            // No windows here: reading goes on.
            leg.uncredited = 0;
            self.actions.push_back(Action::Read { conn: key });
            return;
        }
        if leg.uncredited < granted / 2 {
            return;
        }
        let increment = std::mem::take(&mut leg.uncredited);
        leg.recv_window += i64::from(increment);
        let (Some(key), stream) = (leg.conn, leg.stream) else { return };
        self.write(key, |out| frame::put_window_update(out, stream, increment));
    }
}
