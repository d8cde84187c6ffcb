//! Heads and trailers from clients: judged, routed, and made an exchange.
//!
//! What always holds: every header block goes through the decoder of its connection, whatever becomes of it; a request is routed once, by one
//! snapshot; a stream that is refused here never had an exchange, and no server saw it.

use std::time::Instant;

use super::conn::{Conn, Role, State, Unknown};
use super::exchange::{Exchange, Side};
use super::pool::{Lane, ServerSlot, SlotSet};
use super::receive::ConnResult;
use super::{ConnKey, Core};
use crate::config::Limits;
use crate::http2::Reason;
use crate::http2::frame;
use crate::http2::hpack::{Decoded, HeaderBlock, Token};
use crate::http2::message::{self, RequestFacts};
use crate::request::Target;
use crate::respond::Failure;
use crate::route::{self, Guard, Verdict};

/// Header blocks kept for reuse, and the most memory one of them may hold.
const SPARE_HEADS: usize = 256;
const SPARE_HEAD_BYTES: usize = 8 * 1024;

/// Where a request may go.
struct Plan {
    prefers_local: bool,
    is_for_peers: bool,
    others: SlotSet,
    lane: Lane,
    may_repeat: bool,
    is_503_shared: bool,
    /// By another proxy.
    was_decided: bool,
}

impl Core {
    /// Any header block: the table of the decoder must see every one, whatever becomes of it (RFC 9113 §4.3).
    pub(super) fn on_headers(&mut self, key: ConnKey, stream: u32, block: &[u8], end: bool, self_dependent: bool) -> ConnResult {
        let mut head = self.spare_heads.pop().unwrap_or_default();
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        let decoded = conn.decoder.decode(block, conn.header_list(&self.limits), &mut head).map_err(|_| Reason::COMPRESSION_ERROR)?;
        let too_large = matches!(decoded, Decoded::TooLarge);
        if let Role::Upstream { .. } = conn.role {
            return self.on_server_headers(key, stream, head, end, too_large);
        }
        if too_large && (0..self.limits.large_head_resets).any(|_| !conn.may_reset(&self.limits, self.now)) {
            self.give_head(head);
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        if let Some(exchange) = conn.streams.get(stream) {
            return self.on_trailers(exchange, Side::Down, head, end, too_large);
        }
        if let Some(outcome) = judge_new_stream(conn, stream, &self.limits, self.now) {
            self.give_head(head);
            return outcome;
        }
        conn.last_opened = stream;
        if self_dependent {
            self.give_head(head);
            return self.refuse_stream(key, stream, Reason::PROTOCOL_ERROR);
        }
        self.on_request(key, stream, head, end, too_large)
    }

    pub(super) fn on_request(&mut self, key: ConnKey, stream: u32, head: HeaderBlock, end: bool, too_large: bool) -> ConnResult {
        let full = self.is_full();
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        if conn.state != State::Open || full || conn.streams.len() + conn.abandoned >= self.limits.client_streams as usize {
            self.give_head(head);
            return self.refuse_stream(key, stream, Reason::REFUSED_STREAM);
        }
        let facts = if too_large { None } else { message::check_request(&head).ok() };
        if facts.is_none() && !too_large {
            self.give_head(head);
            return self.refuse_stream(key, stream, Reason::PROTOCOL_ERROR);
        }
        self.counters.requests += 1;
        let plan = facts.map_or(Err(Failure::HeadTooLarge), |facts| self.plan(key, &head, facts));
        let initial_window = self.conns.get(key).map_or(0, Conn::first_window);
        // Also of a head that is too large: its first fields are there.
        let is_head = head.first(Token::METHOD) == Some(b"HEAD");
        let mut exchange = Exchange::new(head, plan.as_ref().map_or(Lane::Short, |plan| plan.lane), self.now);
        exchange.is_head = is_head;
        let from_proxy = self.conns.get(key).is_some_and(|conn| conn.is_peer && conn.http1.is_none());
        exchange.is_hop = from_proxy && facts.is_some_and(|facts| facts.is_hop);
        let down = exchange.leg(Side::Down);
        down.conn = Some(key);
        down.stream = stream;
        down.send_window = initial_window;
        down.recv_window = i64::from(self.limits.client_window);
        down.body_left = facts.map_or(message::UNKNOWN_LENGTH, |facts| facts.content_length);
        down.recv_end = end;
        let broken_length = end && down.body_left != message::UNKNOWN_LENGTH && down.body_left != 0;
        if let Ok(plan) = &plan {
            exchange.prefers_local = plan.prefers_local;
            exchange.is_for_peers = plan.is_for_peers;
            exchange.others = plan.others;
            exchange.may_repeat = plan.may_repeat && end;
            exchange.is_503_shared = plan.is_503_shared;
            exchange.was_decided = plan.was_decided;
            if !end {
                exchange.leg(Side::Up).holding.keep();
            }
        }
        let exchange = self.exchanges.insert(exchange);
        if let Some(conn) = self.conns.get_mut(key) {
            conn.streams.insert(stream, exchange);
            if let Some(http1) = conn.http1.as_deref_mut() {
                http1.exchange = Some(exchange);
            }
        }
        match plan {
            _ if broken_length => self.fail_stream(exchange, Side::Down, Reason::PROTOCOL_ERROR),
            Ok(_) => self.dispatch(exchange),
            Err(failure) => {
                if failure == Failure::BadPath {
                    // On HTTP/1.1 it ends the connection, as every head that no server could read.
                    self.end_keep_alive(key);
                }
                self.answer_failure(exchange, failure);
            }
        }
        Ok(())
    }

    /// Routes one request.
    fn plan(&mut self, key: ConnKey, head: &HeaderBlock, facts: RequestFacts) -> Result<Plan, Failure> {
        if facts.is_connect {
            return Err(Failure::MethodNotAllowed);
        }
        self.take_snapshot();
        let (Some(method), Some(path)) = (head.first(Token::METHOD), head.first(Token::PATH)) else { return Err(Failure::BadPath) };
        let target = Target::parse(method, path, &mut self.path_scratch).map_err(|_| Failure::BadPath)?;
        let lane = if target.is_long_running() { Lane::Long } else { Lane::Short };
        let was_decided = facts.is_hop || self.conns.get(key).is_some_and(|conn| conn.is_peer);
        let may_repeat = (facts.is_get || facts.is_head) && lane == Lane::Short;
        let (guard, verdict) = route::explain(&self.snapshot, &target, was_decided);
        let (prefers_local, others) = match verdict {
            Verdict::Local { fallback } => (true, fallback),
            Verdict::Peer(peers) => (false, peers),
            Verdict::Refuse(refusal) => return Err(refusal.into()),
        };
        // It may be that of an aggregated API's extension server, which is down for every apiserver alike.
        let is_503_shared = matches!(guard, Guard::Excluded | Guard::DiscoveryPath);
        let is_for_peers = guard == Guard::ServedByPeers;
        Ok(Plan { prefers_local, is_for_peers, others: self.slots_of(others), lane, may_repeat, is_503_shared, was_decided })
    }

    /// May the proxy that sent it have another server, which it need not wait for? As far as this shard knows; where nobody else serves it,
    /// waiting is all there is. The sender's own server is none: it came first, and could not be had. Only for those who would wait: the
    /// request is routed once more.
    pub(super) fn is_for_another_proxy(&mut self, exchange: super::ExchangeKey) -> bool {
        let Some(entry) = self.exchanges.get(exchange).filter(|entry| entry.is_hop) else { return false };
        let (Some(method), Some(path)) = (entry.request.first(Token::METHOD), entry.request.first(Token::PATH)) else { return false };
        let Ok(target) = Target::parse(method, path, &mut self.path_scratch) else { return false };
        let peers = match route::decide(&self.snapshot, &target, false) {
            Verdict::Local { fallback: peers } | Verdict::Peer(peers) => self.slots_of(peers),
            Verdict::Refuse(_) => return false,
        };
        let id = |slot: ServerSlot| self.servers.get(usize::from(slot.0)).map(|server| server.id.as_str().as_bytes());
        let mut others = peers;
        for via in entry.request.iter().filter(|field| field.token == Token::VIA) {
            for sender in message::proxies_in(via.value) {
                peers.iter().filter(|&slot| id(slot) == Some(sender)).for_each(|slot| others.remove(slot));
            }
        }
        self.has_healthy(others)
    }

    /// A second header block on a stream ends it (RFC 9113 §8.1).
    pub(super) fn on_trailers(
        &mut self,
        exchange: super::ExchangeKey,
        side: Side,
        trailers: HeaderBlock,
        end: bool,
        too_large: bool,
    ) -> ConnResult {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return Ok(()) };
        let leg = entry.leg(side);
        let short = leg.body_left != message::UNKNOWN_LENGTH && leg.body_left != 0;
        let reason = if leg.recv_end {
            Some(Reason::STREAM_CLOSED)
        } else if !end || too_large || short || message::check_trailers(&trailers).is_err() {
            Some(Reason::PROTOCOL_ERROR)
        } else {
            None
        };
        if let Some(reason) = reason {
            self.give_head(trailers);
            self.fail_stream(exchange, side, reason);
            return Ok(());
        }
        leg.recv_end = true;
        if entry.leg(side.other()).closed {
            self.give_head(trailers);
            self.settle(exchange);
            return Ok(());
        }
        entry.leg(side.other()).trailers = Some(trailers);
        self.pump(exchange, side.other());
        Ok(())
    }

    pub(super) fn refuse_stream(&mut self, key: ConnKey, stream: u32, reason: Reason) -> ConnResult {
        let full = self.is_full();
        let Some(conn) = self.conns.get_mut(key) else { return Ok(()) };
        if conn.http1.is_some() {
            let failure = if reason == Reason::REFUSED_STREAM { Failure::Overloaded } else { Failure::BadRequest };
            self.refuse_http1(key, failure);
            return Ok(());
        }
        // That we drain or are full is no fault of the client's.
        let is_ours = reason == Reason::REFUSED_STREAM && (self.draining.is_some() || full);
        if conn.role == Role::Downstream && !is_ours && !conn.may_reset(&self.limits, self.now) {
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        conn.remember_reset(stream, i64::from(self.limits.client_window), &self.limits);
        self.write(key, |out| frame::put_reset(out, stream, reason));
        Ok(())
    }

    /// Keeps a used-up head for the next message.
    pub(super) fn give_head(&mut self, mut head: HeaderBlock) {
        let memory = head.retained();
        if memory > 0 && memory <= SPARE_HEAD_BYTES && self.spare_heads.len() < SPARE_HEADS {
            head.clear();
            self.spare_heads.push(head);
        }
    }
}

/// A stream id that is not in the table: `None` when it may be opened (RFC 9113 §5.1.1).
fn judge_new_stream(conn: &mut Conn, stream: u32, limits: &Limits, now: Instant) -> Option<ConnResult> {
    match conn.judge_unknown(stream) {
        Unknown::Idle if stream.is_multiple_of(2) => Some(Err(Reason::PROTOCOL_ERROR)),
        Unknown::Idle => None,
        Unknown::Late => Some(conn.take_idle_frame(limits, now)),
        Unknown::Closed => Some(Err(Reason::STREAM_CLOSED)),
    }
}
