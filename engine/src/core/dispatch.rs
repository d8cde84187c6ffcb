//! Which server gets a request, on which connection; and what happens when it cannot take it.
//!
//! What always holds: at most one server has a request at a time, and another one gets it only when the first provably did not begin, or when it
//! only reads; at most `attempts` are asked; `Server::active` is the number of exchanges whose `server` it is.

use std::sync::Arc;
use std::time::Duration;

use discovery::{ServerSet, Snapshot, Via};

use super::conn::{Conn, Role, State, put_headers};
use super::exchange::{Exchange, Phase, Side};
use super::pool::{Lane, Offer, Server, ServerSlot, SlotSet};
use super::{Action, ConnKey, Core, Destination, ExchangeKey};
use crate::http2::Reason;
use crate::http2::frame;
use crate::http2::hpack::{Field, Token};
use crate::http2::message::{VIA_NAME, forwarded_in_request};
use crate::respond::Failure;

impl Core {
    /// Takes the current routing snapshot: one relaxed load when nothing changed.
    pub(super) fn take_snapshot(&mut self) {
        let current = self.routes.current();
        if current.generation() != self.snapshot.generation() {
            self.snapshot = Arc::clone(current);
            self.map_servers();
            self.serve_as_told();
        }
    }

    /// Gives every server of the snapshot its slot.
    pub(super) fn map_servers(&mut self) {
        let snapshot = Arc::clone(&self.snapshot);
        self.slots.clear();
        for (at, server) in snapshot.servers().iter().enumerate() {
            let known = self.servers.iter().position(|known| known.is(server));
            let slot = known.map_or_else(|| self.new_slot(server, &snapshot), ServerSlot::at);
            if let Some(known) = self.servers.get_mut(usize::from(slot.0)) {
                let is_in = |set: ServerSet| set.iter().any(|index| index.get() == at);
                (known.is_ready, known.is_leaving) = (is_in(snapshot.ready()), is_in(snapshot.leaving()));
                known.take_trust(snapshot.trust()[at], &self.conns, self.now);
            }
            self.slots.push(slot);
        }
        self.local = self.slots.get(snapshot.local().get()).copied().unwrap_or(ServerSlot::NONE);
        if let Some(local) = snapshot.servers().get(snapshot.local().get()) {
            self.via = [b"2.0 ", VIA_NAME, local.id.as_str().as_bytes()].concat();
        }
        self.leave_others(&snapshot);
    }

    /// Servers that are not in the snapshot get no new requests: their connections end with what they have, and their places are free then.
    fn leave_others(&mut self, snapshot: &Snapshot) {
        for at in 0..self.servers.len() {
            let left = !snapshot.servers().iter().any(|server| self.servers[at].is(server));
            if std::mem::replace(&mut self.servers[at].left, left) == left || !left {
                continue;
            }
            let waiting: Vec<_> = self.servers[at].lanes.iter_mut().flat_map(|lane| std::mem::take(&mut lane.waiting)).collect();
            self.finish_conns(ServerSlot::at(at), None);
            for exchange in waiting {
                self.send_elsewhere(exchange, ServerSlot::at(at));
            }
        }
    }

    /// Those who wait for a server go on when it is vouched for, and go elsewhere when it is not ready any more: it may be starting, and
    /// take connections already.
    fn serve_as_told(&mut self) {
        for at in 0..self.servers.len() {
            let slot = ServerSlot::at(at);
            if self.servers[at].is_ready || self.servers[at].is_leaving {
                self.spare_waiting(slot);
                for lane in [Lane::Short, Lane::Long] {
                    self.serve_waiting(slot, lane);
                }
                continue;
            }
            let waiting: Vec<_> = self.servers[at].lanes.iter_mut().flat_map(|lane| std::mem::take(&mut lane.waiting)).collect();
            for exchange in waiting {
                self.send_elsewhere(exchange, slot);
            }
        }
    }

    /// Whoever still waits for that server goes to another one.
    pub(super) fn send_elsewhere(&mut self, exchange: ExchangeKey, slot: ServerSlot) {
        if self.exchanges.get(exchange).is_some_and(|entry| entry.phase == Phase::Waiting && entry.server == slot) {
            self.release_server(exchange);
            if let (Some(moved), Some(entry)) = (self.moved(slot), self.exchanges.get_mut(exchange)) {
                entry.others.insert(moved);
            }
            self.dispatch(exchange);
        }
    }

    /// The place of a server that left, if it is only reached in another way now: another address, or without its proxy.
    fn moved(&self, slot: ServerSlot) -> Option<ServerSlot> {
        let old = self.servers.get(usize::from(slot.0)).filter(|server| server.left)?;
        let at = self.servers.iter().position(|server| !server.left && server.id == old.id)?;
        Some(ServerSlot::at(at)).filter(|&slot| slot != self.local)
    }

    /// A place for a server; when all are taken, that of one which is neither in the snapshot nor in use.
    fn new_slot(&mut self, server: &discovery::Server, snapshot: &Snapshot) -> ServerSlot {
        if self.servers.len() < SlotSet::CAPACITY {
            self.servers.push(Server::new(server));
            return ServerSlot::at(self.servers.len() - 1);
        }
        let unused = |old: &Server| old.is_unused() && !snapshot.servers().iter().any(|server| old.is(server));
        let Some(at) = self.servers.iter().position(unused) else { return ServerSlot::NONE };
        self.servers[at] = Server::new(server);
        let slot = ServerSlot::at(at);
        // Exchanges of an older snapshot mean the server that was here before.
        for at in 0..self.exchanges.places() {
            if let Some(entry) = self.exchanges.key_at(at).and_then(|key| self.exchanges.get_mut(key)) {
                entry.others.remove(slot);
            }
        }
        slot
    }

    /// A set of the snapshot as a set of this shard.
    pub(super) fn slots_of(&self, servers: ServerSet) -> SlotSet {
        let mut slots = SlotSet::default();
        for index in servers.iter() {
            if let Some(&slot) = self.slots.get(index.get()) {
                slots.insert(slot);
            }
        }
        slots
    }

    /// Gives the exchange to a server, or answers it.
    pub(super) fn dispatch(&mut self, exchange: ExchangeKey) {
        let Some(entry) = self.exchanges.get(exchange) else { return };
        let (prefers_local, others, lane) = (entry.prefers_local, entry.others, entry.lane);
        if entry.attempts >= self.limits.attempts {
            return self.answer_failure(exchange, Failure::NoServer);
        }
        let Some(server) = self.choose(prefers_local, others) else { return self.answer_failure(exchange, Failure::NoServer) };
        let waits = self.servers.get(usize::from(server.0)).is_some_and(Server::is_awaited);
        if waits && self.is_for_another_proxy(exchange) {
            return self.answer_failure(exchange, Failure::NoServer);
        }
        let local = self.local;
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        entry.attempts += 1;
        entry.server = server;
        if server == local {
            entry.prefers_local = false;
        } else {
            entry.others.remove(server);
            self.counters.rerouted += 1;
        }
        self.enqueue(exchange, server, lane);
    }

    /// Who is asked: local, or else another one that is ready; one that leaves; one that is due to be tried again; one that was lost, and may
    /// be found to be there.
    fn choose(&mut self, prefers_local: bool, others: SlotSet) -> Option<ServerSlot> {
        let (now, local) = (self.now, self.local);
        let (mut ready, mut leaving, mut due, mut awaited) = (SlotSet::default(), None, None, None);
        for slot in Some(local).filter(|_| prefers_local).into_iter().chain(others.iter()) {
            // Before its probe succeeds it gets nothing: a server that starts answers 403 and worse.
            let Some(server) =
                self.servers.get(usize::from(slot.0)).filter(|server| (server.is_ready || server.is_leaving) && !server.left)
            else {
                continue;
            };
            match server.is_usable() {
                true if server.is_ready && slot == local => return Some(local),
                true if server.is_ready => ready.insert(slot),
                true => leaving = leaving.or(Some(slot)),
                false if server.is_due(now) => due = due.or(Some(slot)),
                false if server.is_awaited() => awaited = awaited.or(Some(slot)),
                false => {}
            }
        }
        let Some(chosen) = self.less_loaded(ready).or(leaving) else { return due.or(awaited) };
        if let Some(slot) = due {
            // Beside the traffic: one that came back gets its share again.
            self.connect(slot, Lane::Short);
        }
        Some(chosen)
    }

    /// The less loaded of two drawn at random.
    fn less_loaded(&mut self, mut servers: SlotSet) -> Option<ServerSlot> {
        if servers.is_empty() {
            return None;
        }
        let first = self.random_of(servers);
        servers.remove(first);
        let second = self.random_of(servers);
        let load = |slot: ServerSlot| self.servers.get(usize::from(slot.0)).map_or(usize::MAX, |server| server.active);
        Some(if load(second) < load(first) { second } else { first })
    }

    pub(super) fn has_healthy(&self, others: SlotSet) -> bool {
        let servers = others.iter().filter_map(|slot| self.servers.get(usize::from(slot.0)));
        servers.into_iter().any(|server| server.is_ready && server.is_usable())
    }

    /// Are so many requests at servers, watches and the like not counted?
    pub fn has_short_requests(&self, many: usize) -> bool {
        let mut short =
            self.servers.iter().filter(|server| server.active > 0).map(|server| server.lanes[Lane::Short as usize].streams(&self.conns));
        short.try_fold(0, |sum, streams| Some(sum + streams).filter(|&sum| sum < many)).is_none()
    }

    /// A random member of a set that is not empty.
    fn random_of(&mut self, set: SlotSet) -> ServerSlot {
        #[allow(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
        let nth = self.next_random() as usize % set.len().max(1);
        set.iter().nth(nth).unwrap_or(ServerSlot::NONE)
    }

    /// Opens a stream for the exchange, or lets it wait for a connection.
    fn enqueue(&mut self, exchange: ExchangeKey, slot: ServerSlot, lane: Lane) {
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return self.answer_failure(exchange, Failure::NoServer) };
        server.active += 1;
        let refused_by = self.exchanges.get(exchange).and_then(|entry| entry.refused_by);
        let offer = server.offer(lane, &self.conns, &self.limits, refused_by);
        let pool = server.lane(lane);
        if offer.conn.is_none() && pool.waiting.len() >= self.limits.waiting {
            // Those whose client left are still in the queue.
            pool.waiting.retain(|&waiting| self.exchanges.get(waiting).is_some());
        }
        match offer.conn {
            Some(conn) => self.open_stream(exchange, conn),
            None if pool.waiting.len() >= self.limits.waiting => {
                self.release_server(exchange);
                return self.answer_failure(exchange, Failure::Overloaded);
            }
            None => pool.waiting.push_back(exchange),
        }
        if offer.grow {
            self.connect(slot, lane);
        }
    }

    /// Asks for a connection to a server, unless one of the lane is on its way, or there are too many.
    pub(super) fn connect(&mut self, slot: ServerSlot, lane: Lane) {
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return };
        let destination = match server.via {
            _ if slot == self.local => Destination::Local,
            Via::Apiserver => Destination::Peer,
            Via::Proxy => Destination::Proxy,
        };
        // One that left may be an address that is no longer allowed, one in doubt takes nothing before it is vouched for.
        if server.left || server.doubt.is_some() || !server.lane(lane).has_place(&self.limits) {
            return;
        }
        let conn = self.conns.insert(Conn::new(Role::Upstream { server: slot, lane }, &self.limits, self.now));
        server.lane(lane).connecting = Some(conn);
        self.actions.push_back(Action::Connect { conn, address: server.address, destination });
    }

    /// Is the other end the peer port of a proxy?
    pub(super) fn is_proxy(&self, role: Role) -> bool {
        let Role::Upstream { server, .. } = role else { return false };
        self.servers.get(usize::from(server.0)).is_some_and(|server| server.via == Via::Proxy)
    }

    /// TLS to a server is done for us. A proxy may still refuse us, and nobody has said yet how many streams it takes: requests wait until it speaks,
    /// which it does without waiting for them.
    pub(super) fn await_settings(&mut self, key: ConnKey) {
        let Some(conn) = self.conns.get_mut(key) else { return };
        conn.awaits_settings = true;
        conn.handshake = self.now - conn.since;
        conn.greet(&self.limits, &mut self.buffers);
        self.mark_dirty(key);
    }

    /// The handshake with a server took this long. If there is no other connection, it may have started while its kernel kept us waiting.
    pub(super) fn doubt_if_late(&mut self, slot: ServerSlot, waited: Duration) {
        let server = self.servers.get(usize::from(slot.0));
        if waited >= self.limits.server_late && server.is_some_and(|server| !server.has_open_conn(&self.conns)) {
            self.doubt(slot);
        }
    }

    pub(super) fn on_server_connected(&mut self, key: ConnKey, slot: ServerSlot, lane: Lane) {
        let Some(server) = self.servers.get_mut(usize::from(slot.0)) else { return };
        server.down_until = None;
        let pool = server.lane(lane);
        pool.connecting = None;
        pool.conns.push(key);
        let left = server.left;
        if let Some(conn) = self.conns.get_mut(key).filter(|conn| left || conn.retired.is_some()) {
            // Begun with certificates that were replaced since, or to a server that left.
            conn.state = State::Draining;
            self.close_if_idle(key);
        }
        self.serve_waiting(slot, lane);
    }

    /// Gives free slots to those who wait, in order, and opens a connection when there are not enough.
    pub(super) fn serve_waiting(&mut self, slot: ServerSlot, lane: Lane) {
        while let Some(Offer { conn, grow }) = self.serve_next(slot, lane, false) {
            if grow {
                self.connect(slot, lane);
            }
            if conn.is_none() {
                return;
            }
        }
    }

    /// A connection could not be had: those who wait may use any that is there.
    pub(super) fn serve_waiting_anyhow(&mut self, slot: ServerSlot, lane: Lane) {
        while self.serve_next(slot, lane, true).is_some_and(|offer| offer.conn.is_some()) {}
    }

    /// Gives one slot to the first who waits; `None` when nobody does.
    fn serve_next(&mut self, slot: ServerSlot, lane: Lane, anyhow: bool) -> Option<Offer> {
        let server = self.servers.get_mut(usize::from(slot.0))?;
        let exchange = *server.lane(lane).waiting.front()?;
        let waits = |entry: &&Exchange| entry.phase == Phase::Waiting && entry.server == slot;
        let refused_by = self.exchanges.get(exchange).filter(waits).map(|entry| entry.refused_by.filter(|_| !anyhow));
        let offer = server.offer(lane, &self.conns, &self.limits, refused_by.flatten());
        if let Some(conn) = offer.conn {
            server.lane(lane).waiting.pop_front();
            if refused_by.is_some() {
                self.open_stream(exchange, conn);
            }
        }
        Some(offer)
    }

    /// Writes the request head on a new stream of `key`.
    fn open_stream(&mut self, exchange: ExchangeKey, key: ConnKey) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let Some(conn) = self.conns.get_mut(key) else { return };
        let (to_peer, was_decided) = (entry.server != self.local, entry.was_decided);
        let stream = conn.next_stream;
        conn.next_stream += 2;
        conn.streams.insert(stream, exchange);
        let ended = entry.legs[Side::Down as usize].recv_end;
        let up = &mut entry.legs[Side::Up as usize];
        up.conn = Some(key);
        up.stream = stream;
        up.send_window = i64::from(conn.peer.initial_window);
        up.recv_window = i64::from(self.limits.server_window);
        let end = ended && up.holding.unsent() == 0 && up.trailers.is_none();
        up.send_end = end;
        entry.phase = Phase::Asked;
        self.meters.count_request(self.now.saturating_duration_since(entry.since));
        entry.head_mark = conn.out.mark();
        let request = &entry.request;
        // An intermediary puts into `:authority` what came in `host` (RFC 9113 §8.3.1).
        let host = if request.first(Token::AUTHORITY).is_some() { None } else { request.first(Token::HOST) };
        put_headers(conn, &mut self.buffers, stream, end, |encoder, out| {
            if let Some(host) = host {
                encoder.field(Field::of(Token::AUTHORITY, host), out);
            }
            for field in request.iter().filter(|field| forwarded_in_request(field.token)) {
                // Both legs speak TLS, whatever the client says: a Go server forgets its TLS state for any other scheme.
                let field = if field.token == Token::SCHEME { Field::of(Token::SCHEME, b"https") } else { field };
                encoder.field(field, out);
            }
            // The proxy inside kube-apiserver honours it: what was decided is not routed again.
            if to_peer || was_decided {
                encoder.field(Field::of(Token::PEER_PROXIED, b"true"), out);
            }
            if to_peer {
                encoder.field(Field::of(Token::VIA, &self.via), out);
            }
        });
        self.mark_dirty(key);
        if !end {
            self.pump(exchange, Side::Up);
        }
    }

    /// The server could not take the request, and provably did not begin: another connection or server, if the whole
    /// request is still here.
    pub(super) fn retry(&mut self, exchange: ExchangeKey) {
        let local = self.local;
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        if entry.leg(Side::Down).closed {
            // Nobody is left who wants it.
            self.unlink(exchange, Side::Up);
            self.settle(exchange);
            return;
        }
        let server = entry.server;
        let asked = self.servers.get(usize::from(server.0));
        let (left, is_proxy) = asked.map_or((true, false), |server| (server.left, server.via == Via::Proxy));
        let moved = self.moved(server);
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        entry.refused_by = entry.leg(Side::Up).conn;
        self.release_server(exchange);
        self.detach_up(exchange);
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let holding = &entry.leg(Side::Up).holding;
        let replayable = holding.is_keeping() || holding.kept() == 0;
        if !replayable && is_proxy {
            return self.answer_failure(exchange, Failure::NoServer);
        }
        if !replayable {
            // The client may send it again itself: that is what the code says (RFC 9113 §8.7).
            self.reset_leg(exchange, Side::Down, Reason::REFUSED_STREAM);
            self.settle(exchange);
            return;
        }
        let others = entry.others;
        // The same server may take it on another connection. One behind a proxy that could not reach it is asked when nobody else can be.
        let is_spared = is_proxy && self.has_healthy(others);
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        if server == local {
            entry.prefers_local = true;
        } else if let Some(server) = if left { moved } else { Some(server) }.filter(|_| !is_spared) {
            entry.others.insert(server);
        }
        entry.phase = Phase::Waiting;
        let useless = entry.held_head.take();
        let up = entry.leg(Side::Up);
        up.holding.rewind();
        (up.recv_end, up.send_end, up.closed) = (false, false, false);
        if let Some(head) = useless {
            self.give_head(head);
        }
        self.counters.retried += 1;
        self.dispatch(exchange);
    }

    /// The server will not answer, and another one may: its answer is dropped. `ended`: all of it came.
    pub(super) fn ask_another(&mut self, exchange: ExchangeKey, ended: bool) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        entry.may_repeat = false;
        let (conn, stream) = (entry.leg(Side::Up).conn, entry.leg(Side::Up).stream);
        if let Some(key) = conn.filter(|_| !ended) {
            if let Some(conn) = self.conns.get_mut(key) {
                conn.remember_reset(stream, 0, &self.limits);
            }
            self.write(key, |out| frame::put_reset(out, stream, Reason::CANCEL));
        }
        self.release_server(exchange);
        self.detach_up(exchange);
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        entry.phase = Phase::Waiting;
        let up = entry.leg(Side::Up);
        (up.recv_end, up.send_end, up.closed) = (false, false, false);
        self.counters.retried += 1;
        self.dispatch(exchange);
    }

    /// The exchange no longer counts as work of its server.
    pub(super) fn release_server(&mut self, exchange: ExchangeKey) {
        let Some(entry) = self.exchanges.get_mut(exchange) else { return };
        let slot = std::mem::replace(&mut entry.server, ServerSlot::NONE);
        if let Some(server) = self.servers.get_mut(usize::from(slot.0)) {
            server.active = server.active.saturating_sub(1);
        }
    }
}
