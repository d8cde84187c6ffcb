//! Heads from servers, and answers made here.
//!
//! What always holds: a client gets at most one final head for a request, and once it has it the request is never given to another server.

use super::conn::{Unknown, put_headers};
use super::exchange::{Exchange, Phase, Side};
use super::receive::ConnResult;
use super::{ConnKey, Core, ExchangeKey, http1};
use crate::http2::Reason;
use crate::http2::hpack::{HeaderBlock, Token};
use crate::http2::message;
use crate::respond::Failure;

/// What kube-apiserver says while it goes down, and before all of it is up (kubernetes.md §3.7).
const AWAY: [&[u8]; 2] = [b"apiserver is shutting down", b"before all known HTTP paths have been installed"];

impl Core {
    /// A header block from a server: 1xx, the response head, or trailers.
    pub(super) fn on_server_headers(&mut self, key: ConnKey, stream: u32, head: HeaderBlock, end: bool, too_large: bool) -> ConnResult {
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        let Some(exchange) = conn.streams.get(stream) else {
            // One for each stream that we reset is fair; heads without end for a stream that is over are not.
            let (judged, fair) = (conn.judge_unknown(stream), conn.take_idle_frame(&self.limits, self.now));
            self.give_head(head);
            return match judged {
                Unknown::Idle => Err(Reason::PROTOCOL_ERROR),
                Unknown::Late => fair,
                Unknown::Closed => fair.and_then(|()| self.refuse_late(key, stream)),
            };
        };
        self.release_head(exchange);
        let Some(entry) = self.exchanges.get_mut(exchange) else { return Ok(()) };
        if entry.phase == Phase::Answering {
            return self.on_trailers(exchange, Side::Up, head, end, too_large);
        }
        let checked = if too_large { Err(message::Malformed) } else { message::check_response(&head) };
        match checked {
            Ok((100..=199, _)) if !end && entry.informational < self.limits.interim_heads => {
                entry.informational += 1;
                self.pass_head(exchange, &head, false);
            }
            Ok((status, length)) if status >= 200 => {
                self.on_response(exchange, head, status, length, end);
                return Ok(());
            }
            _ => self.fail_stream(exchange, Side::Up, Reason::PROTOCOL_ERROR),
        }
        self.give_head(head);
        Ok(())
    }

    fn on_response(&mut self, exchange: ExchangeKey, head: HeaderBlock, status: u16, length: u64, end: bool) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        if status == 503
            && !entry.is_503_shared
            && asks_to_come_back(&head)
            && may_ask_another(entry)
            && (end || self.may_reset_server(exchange))
        {
            // It is going down or not up yet, and says that nothing was done.
            self.give_head(head);
            return self.ask_another(exchange, end);
        }
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        // Answers to HEAD, and 204 and 304, have a content-length of what is not sent (RFC 9110 §8.6).
        let bodiless = entry.is_head || status == 204 || status == 304;
        let up = entry.leg(Side::Up);
        up.body_left = if bodiless { 0 } else { length };
        if end && up.body_left != 0 && up.body_left != message::UNKNOWN_LENGTH {
            self.give_head(head);
            self.fail_stream(exchange, Side::Up, Reason::PROTOCOL_ERROR);
            return;
        }
        up.recv_end = end;
        entry.moved = self.now;
        if entry.may_repeat && !end {
            // A server that dies between the head of its answer and the rest leaves nothing that a client could use: with the head still
            // here, another one can be asked.
            entry.held_head = Some(head);
            return;
        }
        self.answer_with(exchange, head, end);
    }

    /// The first bytes of an answer whose head is held: is it that of an apiserver that is going down or not up yet, and another one is asked?
    pub(super) fn is_asked_elsewhere(&mut self, exchange: ExchangeKey, bytes: &[u8], end: bool) -> bool {
        let Some(entry) = self.exchanges.get_mut(exchange).filter(|entry| entry.is_503_shared) else { return false };
        let comes_back = entry.held_head.as_ref().is_some_and(asks_to_come_back);
        let is_wanted = comes_back && may_ask_another(entry) && AWAY.iter().any(|text| contains(bytes, text));
        if !is_wanted || !(end || self.may_reset_server(exchange)) {
            return false;
        }
        if let Some(head) = self.exchanges.get_mut(exchange).and_then(|entry| entry.held_head.take()) {
            self.give_head(head);
        }
        self.ask_another(exchange, end);
        true
    }

    /// Takes one reset from the budget of the server's connection.
    fn may_reset_server(&mut self, exchange: ExchangeKey) -> bool {
        let (limits, now) = (&self.limits, self.now);
        let conn = self.exchanges.get(exchange).and_then(|entry| entry.legs[Side::Up as usize].conn);
        conn.and_then(|key| self.conns.get_mut(key)).is_some_and(|conn| conn.may_reset(limits, now))
    }

    /// The rest of the answer comes: its head goes first.
    pub(super) fn release_head(&mut self, exchange: ExchangeKey) {
        if let Some(head) = self.exchanges.get_mut(exchange).and_then(|entry| entry.held_head.take()) {
            self.answer_with(exchange, head, false);
        }
    }

    fn answer_with(&mut self, exchange: ExchangeKey, head: HeaderBlock, end: bool) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        entry.leg(Side::Up).holding.stop_keeping(&mut self.blocks);
        entry.phase = Phase::Answering;
        self.meters.count_answer(self.now.saturating_duration_since(entry.moved));
        if entry.server != self.local {
            let status = message::status_of(&head).unwrap_or(0);
            self.meters.count_rerouted(status, &entry.request, &mut self.path_scratch, &self.snapshot);
        }
        let request = std::mem::take(&mut entry.request);
        self.give_head(request);
        self.pass_head(exchange, &head, end);
        self.give_head(head);
        if end {
            if let Some(entry) = self.exchanges.get_mut(exchange) {
                entry.leg(Side::Down).send_end = true;
            }
            self.settle(exchange);
        }
    }

    /// Writes a head from the server to the client.
    fn pass_head(&mut self, exchange: ExchangeKey, head: &HeaderBlock, end: bool) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let is_head = entry.is_head;
        let down = entry.leg(Side::Down);
        if down.closed {
            // The client is gone: nothing is said on a stream that was reset, nor on a connection that went on without it.
            return;
        }
        let (Some(key), stream, read) = (down.conn, down.stream, down.recv_end) else { return };
        let Some(conn) = self.conns.get_mut(key) else { return };
        if conn.http1.is_some() {
            http1::put_head(conn, &mut self.buffers, head, is_head, end, read);
            return self.mark_dirty(key);
        }
        put_headers(conn, &mut self.buffers, stream, end, |encoder, out| {
            for field in head.iter() {
                encoder.field(field, out);
            }
        });
        self.mark_dirty(key);
    }

    /// Answers a request here. The exchange has no upstream leg any more.
    pub(super) fn answer_failure(&mut self, exchange: ExchangeKey, failure: Failure) {
        let answer = failure.answer();
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let is_heard = !entry.leg(Side::Down).closed;
        if is_heard {
            self.counters.refused += 1;
            self.meters.count_failure(failure, entry, &mut self.path_scratch, &self.snapshot);
        }
        entry.phase = Phase::Answering;
        let (is_head, is_hop) = (entry.is_head, entry.is_hop);
        let request = std::mem::take(&mut entry.request);
        let up = entry.leg(Side::Up);
        up.holding.clear(&mut self.blocks);
        (up.recv_end, up.send_end, up.closed) = (true, true, true);
        self.give_head(request);
        if !is_heard {
            return self.settle(exchange);
        }
        if is_hop && failure.is_for_another() {
            // The proxy that sent it may have another server to ask, and this tells it that nothing was done (RFC 9113 §8.7).
            self.reset_leg(exchange, Side::Down, Reason::REFUSED_STREAM);
            return self.settle(exchange);
        }
        let mut head = self.spare_heads.pop().unwrap_or_default();
        answer.put_fields(&mut head);
        self.pass_head(exchange, &head, is_head);
        self.give_head(head);
        if is_head {
            if let Some(entry) = self.exchanges.get_mut(exchange) {
                entry.leg(Side::Down).send_end = true;
            }
        } else {
            self.counters.body_received += answer.body.len() as u64;
            self.forward(exchange, Side::Up, answer.body, true);
        }
        self.settle(exchange);
    }
}

/// Does it say that nothing was done, and that it may be asked for again?
fn asks_to_come_back(head: &HeaderBlock) -> bool {
    message::status_of(head) == Some(503) && head.first(Token::RETRY_AFTER).is_some()
}

/// May it be asked once more, and is there somebody to ask and to tell?
fn may_ask_another(entry: &mut Exchange) -> bool {
    entry.may_repeat && !entry.others.is_empty() && !entry.leg(Side::Down).closed
}

fn contains(bytes: &[u8], text: &[u8]) -> bool {
    bytes.windows(text.len()).any(|window| window == text)
}
