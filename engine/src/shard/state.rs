//! The synchronous half of a shard: sockets, sessions and the core, between two waits.
//!
//! What always holds: a link is in the table exactly as long as the core knows its connection; what the core has for a
//! connection is encrypted only when the socket took everything before it, so a blocked socket holds plaintext in the core,
//! where it is limited, and at most one batch of wire bytes here.

use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gate::Gate;
use super::gather::Lately;
use super::link::{Link, Writer};
use super::sys;
use crate::core::{ConnKey, Core, Counters, Ended, Meters, Protocol};
use crate::engine::Published;
use crate::tls::{self, MAX_RECORD, WireBuf};

/// One read: eight full TLS records. Larger reads gain nothing measurable and make one connection's turn longer.
const READ: usize = 128 * 1024;
/// How often memory that nobody needs is let go, and how much of it is worth a call to the allocator.
const TRIM_EVERY: Duration = Duration::from_secs(1);
const WORTH_TELLING: usize = 2 << 20;
/// Seconds that it has to stay so.
const CALM: u32 = 3;
/// Buffers kept for tails and pending writes.
const SPARE_BUFFERS: usize = 64;
/// Of which so many are kept although nobody needs them.
const KEPT_BUFFERS: usize = 8;
const SPARE_CAPACITY: usize = 256 * 1024;
/// How often what was counted by resource is copied for others to see.
const METERS_EVERY: Duration = Duration::from_secs(1);
/// How often it is looked whether those are gone whose reader waits for us.
const HELD_EVERY: Duration = Duration::from_secs(1);

/// What a reader task does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Next {
    /// Wait for more to read.
    Read,
    /// What is there is read in another wake-up.
    Later,
    /// Wait until the client has read what we have for it.
    Hold,
    /// The connection is gone.
    End,
}

/// What the flush asks the asynchronous half to do for a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Flushed {
    /// Nothing.
    Done,
    /// Start its writer task.
    NeedsWriter,
}

/// What a wake-up was like.
#[derive(Clone, Copy, Default)]
struct Turn {
    /// From how many sockets with a finished handshake something was read.
    reads: u32,
    /// Something is to be done before the ring is waited for: a task was started or woken and may not have run yet, or a socket is known to
    /// have more to read.
    is_unfinished: bool,
}

/// Everything a shard has.
pub(crate) struct State {
    pub(crate) core: Core,
    pub(crate) gate: Gate,
    links: Vec<Option<Link>>,
    /// Client links, for the shard's load.
    pub(crate) clients_closed: usize,
    read: Vec<u8>,
    wire: WireBuf,
    spare: Vec<Vec<u8>>,
    /// The most memory there was since some was last given back, about.
    most: usize,
    /// For how many seconds much less was held.
    calm: u32,
    last_trim: Option<Instant>,
    handshakes: usize,
    /// Calls of `send` that took something.
    writes: u64,
    /// Memory for the next copy of the meters, and when it is due.
    spare_meters: Option<Arc<Meters>>,
    next_meters: Option<Instant>,
    /// When connections whose reader waits for us are looked at.
    next_held: Option<Instant>,
    now: Option<Instant>,
    turn: Turn,
    lately: Lately,
}

impl State {
    pub(crate) fn new(core: Core, gate: Gate) -> Self {
        Self {
            core,
            gate,
            links: Vec::new(),
            clients_closed: 0,
            read: vec![0; MAX_RECORD + READ],
            wire: WireBuf::new(),
            spare: Vec::new(),
            most: 0,
            calm: 0,
            last_trim: None,
            handshakes: 0,
            writes: 0,
            spare_meters: None,
            next_meters: None,
            next_held: None,
            now: None,
            turn: Turn::default(),
            lately: Lately::default(),
        }
    }

    /// Counts since start.
    pub(crate) fn counters(&self) -> Counters {
        Counters { writes: self.writes, ..self.core.counters() }
    }

    /// Shows what was counted by resource, once in a while. Two copies take turns, so that none is allocated unless somebody still reads the
    /// older one.
    pub(crate) fn publish_meters(&mut self, published: &Published) {
        let now = self.now();
        if self.next_meters.is_some_and(|next| now < next) {
            return;
        }
        self.next_meters = Some(now + METERS_EVERY);
        let mut meters = self.spare_meters.take().filter(|spare| Arc::strong_count(spare) == 1).unwrap_or_default();
        if let Some(copy) = Arc::get_mut(&mut meters) {
            self.core.copy_meters(copy);
        }
        self.spare_meters = Some(published.swap_meters(meters));
    }

    /// The time of this wake-up: one look at the clock.
    pub(crate) fn now(&mut self) -> Instant {
        *self.now.get_or_insert_with(Instant::now)
    }

    /// Once a second lets go of memory that is not needed. True when so much was let go since the last time that the allocator should be told.
    pub(crate) fn trim(&mut self) -> bool {
        let now = self.now();
        if self.last_trim.is_some_and(|last| now - last < TRIM_EVERY) {
            return false;
        }
        self.last_trim = Some(now);
        self.spare.truncate((self.spare.len() / 2).max(KEPT_BUFFERS));
        let left = self.core.trim() + self.spare.iter().map(Vec::capacity).sum::<usize>();
        self.most = self.most.max(left);
        // What is needed again a moment later is not given back: that would cost more than it saves.
        self.calm = if self.most - left >= WORTH_TELLING { self.calm + 1 } else { 0 };
        let much = self.calm == CALM;
        if much {
            (self.most, self.calm) = (left, 0);
        }
        much
    }

    /// The next look at the clock is a new one. How many events are worth waiting for, if nothing is to be done first.
    pub(crate) fn end_turn(&mut self) -> Option<u32> {
        if let Some(began) = self.now.take() {
            self.core.end_wake_up(|| began.elapsed());
        }
        self.handshakes = 0;
        let turn = std::mem::take(&mut self.turn);
        let wanted = || self.lately.wanted(self.core.limits(), turn.reads, |many| self.core.has_short_requests(many));
        if turn.is_unfinished { None } else { wanted() }
    }

    /// A task was started or woken, and runs before the ring is waited for.
    pub(crate) fn note_task(&mut self) {
        self.turn.is_unfinished = true;
    }

    pub(crate) fn insert(&mut self, link: Link) {
        let at = link.key.index();
        if self.links.len() <= at {
            self.links.resize_with(at + 1, || None);
        }
        self.links[at] = Some(link);
    }

    pub(crate) fn link(&mut self, key: ConnKey) -> Option<&mut Link> {
        find(&mut self.links, key)
    }

    /// TCP is there: starts the session, of which the ClientHello has to be sent first by us.
    pub(crate) fn begin_session(&mut self, key: ConnKey) -> Flushed {
        let now = self.now();
        self.wire.clear();
        let Some(link) = find(&mut self.links, key) else { return Flushed::Done };
        self.core.handle_connected(key, now);
        let received = link.session.receive(&mut [], &mut self.wire, |_| {});
        if received.error.is_some() {
            self.lose(key, Ended::Unreachable);
            return Flushed::Done;
        }
        self.send_wire(key)
    }

    /// The socket has something to read.
    pub(crate) fn on_readable(&mut self, key: ConnKey) -> (Next, Flushed) {
        let now = self.now();
        let Some(link) = find(&mut self.links, key) else {
            return (Next::End, Flushed::Done);
        };
        if link.is_client && !link.session.is_established() {
            if self.handshakes >= self.core.limits().handshakes_per_wake_up {
                self.turn.is_unfinished = true;
                return (Next::Later, Flushed::Done);
            }
            self.handshakes += 1;
        }
        if link.is_offender && link.closing.is_some() {
            // Nobody listens any more, not even to keep our last words from being lost to a reset.
            return (Next::Hold, Flushed::Done);
        }
        let have = link.tail.len();
        self.read[..have].copy_from_slice(&link.tail);
        let n = match sys::receive(link.fd, &mut self.read[have..have + READ]) {
            Ok(0) => return self.end(key),
            Ok(n) => n,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return (Next::Read, Flushed::Done),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => return (Next::Read, Flushed::Done),
            Err(_) => return self.end(key),
        };
        self.turn.is_unfinished |= n == READ;
        if link.closing.is_some() {
            // Nobody listens any more; reading on keeps our last words from being lost to a reset.
            return (Next::Read, Flushed::Done);
        }
        self.wire.clear();
        let core = &mut self.core;
        // What comes in the same read as the end of the handshake waits until the protocol is known.
        let (established, mut early) = (link.session.is_established(), Vec::new());
        if established {
            // Whoever only drips a handshake makes nobody wait.
            self.turn.reads += 1;
            self.lately.note(&mut link.last_read, n, now, core.limits());
        }
        let received = link.session.receive(&mut self.read[..have + n], &mut self.wire, |plain| {
            if established { core.handle_bytes(key, plain, now) } else { early.extend_from_slice(plain) }
        });
        let tail = link.tail.capacity();
        keep_tail(&mut link.tail, &self.read[received.consumed..have + n], &mut self.spare);
        if link.tail.capacity() != tail {
            core.note_outside(key, link.tail.capacity());
        }
        if received.established && !link.is_client && !tls::is_http2(link.session.alpn()) {
            // Something else listens there.
            return self.end_as(key, Ended::Unreachable);
        }
        if received.established {
            if let Some(ticket) = link.handshake.take() {
                self.gate.end(ticket);
            }
            let protocol = if tls::is_http2(link.session.alpn()) { Protocol::Http2 } else { Protocol::Http1 };
            core.handle_established(key, protocol, now);
        }
        if !early.is_empty() {
            core.handle_bytes(key, &early, now);
        }
        let flushed = if self.wire.is_empty() { Flushed::Done } else { self.send_wire(key) };
        if received.error.is_some() || received.closed {
            // What was a connection before this read was not one that could not be had, even if nothing can be sent on it any more.
            return self.end_as(key, if established { Ended::Lost } else { Ended::Unreachable });
        }
        let next = if self.core.wants_read(key) { Next::Read } else { Next::Hold };
        (next, flushed)
    }

    /// The other side ended the connection, or broke it.
    fn end(&mut self, key: ConnKey) -> (Next, Flushed) {
        let established = self.link(key).is_some_and(|link| link.session.is_established());
        self.end_as(key, if established { Ended::Lost } else { Ended::Unreachable })
    }

    fn end_as(&mut self, key: ConnKey, ended: Ended) -> (Next, Flushed) {
        self.lose(key, ended);
        (Next::End, Flushed::Done)
    }

    /// Encrypts and sends everything the core has for a connection, in one write.
    pub(crate) fn flush(&mut self, key: ConnKey) -> Flushed {
        let Some(link) = find(&mut self.links, key) else {
            return Flushed::Done;
        };
        if link.is_blocked() || !link.session.is_established() {
            return Flushed::Done;
        }
        self.wire.clear();
        let (session, wire) = (&mut link.session, &mut self.wire);
        let mut failed = false;
        let some = self.core.drain_output(key, |plain| failed |= session.send(plain, wire).is_err());
        if failed {
            self.lose(key, Ended::Lost);
            return Flushed::Done;
        }
        if !some {
            return Flushed::Done;
        }
        self.send_wire(key)
    }

    /// Sends `wire`; what the socket does not take waits for the writer task.
    fn send_wire(&mut self, key: ConnKey) -> Flushed {
        let Some(link) = find(&mut self.links, key) else {
            return Flushed::Done;
        };
        let bytes = self.wire.filled();
        let sent = if link.is_blocked() { Ok(0) } else { send_all(link.fd, bytes, &mut self.writes) };
        match sent {
            Ok(n) if n == bytes.len() => {
                let now = *self.now.get_or_insert_with(Instant::now);
                self.core.handle_written(key, now);
                self.resume_reader(key);
                Flushed::Done
            }
            Ok(n) => {
                if link.pending.capacity() == 0 {
                    link.pending = self.spare.pop().unwrap_or_default();
                }
                link.pending.extend_from_slice(&bytes[n..]);
                match std::mem::replace(&mut link.writer, Writer::Busy) {
                    Writer::None => return Flushed::NeedsWriter,
                    Writer::Parked(waker) => {
                        self.turn.is_unfinished = true;
                        waker.wake();
                    }
                    Writer::Busy => {}
                }
                Flushed::Done
            }
            Err(_) => {
                self.lose(key, Ended::Lost);
                Flushed::Done
            }
        }
    }

    /// The socket has room again: sends what waits. True when everything has been sent.
    pub(crate) fn on_writable(&mut self, key: ConnKey) -> bool {
        let now = self.now();
        let Some(link) = find(&mut self.links, key) else { return true };
        match send_all(link.fd, &link.pending[link.sent..], &mut self.writes) {
            Ok(n) => {
                link.sent += n;
                self.core.handle_taken(key, now);
            }
            Err(_) => {
                self.lose(key, Ended::Lost);
                return true;
            }
        }
        if link.sent < link.pending.len() {
            return false;
        }
        link.sent = 0;
        give(&mut self.spare, std::mem::take(&mut link.pending));
        self.core.handle_written(key, now);
        // What the core gathered meanwhile.
        self.flush(key);
        self.resume_reader(key);
        self.link(key).is_none_or(|link| !link.is_blocked())
    }

    /// The client reads again: so do we.
    pub(crate) fn resume_reader(&mut self, key: ConnKey) {
        if self.link(key).is_some_and(|link| link.held_reader.is_some())
            && self.wants_read(key)
            && let Some(reader) = self.link(key).and_then(|link| link.held_reader.take())
        {
            self.turn.is_unfinished = true;
            reader.wake();
        }
    }

    /// The core is done with a connection: says goodbye and ends our direction; the reader task ends the rest.
    pub(crate) fn close(&mut self, key: ConnKey) -> Flushed {
        let now = self.now();
        let flushed = self.flush(key);
        let Some(link) = self.link(key) else {
            self.core.handle_closed(key, Ended::Unreachable, now);
            return Flushed::Done;
        };
        if !link.session.is_established() {
            self.lose(key, Ended::Unreachable);
            return Flushed::Done;
        }
        link.closing.get_or_insert(now);
        let (is_blocked, is_offender) = (link.is_blocked(), link.is_offender);
        if is_blocked && is_offender {
            self.cut(key);
            return Flushed::Done;
        }
        // Its reader waits for the end of the other side, and need not wait for us any more.
        self.resume_reader(key);
        if !is_blocked {
            self.finish_close(key);
        }
        flushed
    }

    fn finish_close(&mut self, key: ConnKey) {
        let Some(link) = find(&mut self.links, key) else { return };
        self.wire.clear();
        link.session.close_notify(&mut self.wire);
        // A goodbye that does not fit is no loss.
        send_all(link.fd, self.wire.filled(), &mut self.writes).ok();
        sys::shutdown(link.fd, if link.is_client { libc::SHUT_WR } else { libc::SHUT_RDWR });
    }

    /// Ends a connection so that nobody takes what was sent for complete: a reset, not an end of file.
    pub(crate) fn cut(&mut self, key: ConnKey) {
        if let Some(link) = self.link(key) {
            sys::reset(link.fd);
        }
        self.lose(key, Ended::Lost);
    }

    /// The client of a connection was told to calm down.
    pub(crate) fn blame(&mut self, key: ConnKey) {
        let now = self.now();
        let Some(link) = find(&mut self.links, key) else { return };
        link.is_offender = true;
        if let Some(source) = link.source {
            self.gate.blame(source, now);
        }
    }

    /// Ends closes that take too long. True when offenders are left, whose time is short.
    pub(crate) fn cut_slow_closes(&mut self) -> bool {
        let now = self.now();
        let (over, limits) = (self.core.drain_is_over(now), self.core.limits());
        let (mut offenders, mut left) = (Vec::new(), false);
        for link in self.links.iter().flatten() {
            let Some(since) = link.closing else { continue };
            let waited = now - since;
            let leaving = || link.is_client && (link.is_blocked() || sys::unsent(link.fd) > 0);
            if link.is_offender && waited >= limits.offender_close {
                offenders.push(link.key);
            } else if link.is_offender {
                left = true;
            } else if over || waited >= limits.slow_close || (waited >= limits.close && !leaving()) {
                // What did not leave is missing: not an end of file then.
                if link.is_blocked() { sys::reset(link.fd) } else { sys::shutdown(link.fd, libc::SHUT_RDWR) }
            }
        }
        for key in offenders {
            // Its reader does not read.
            self.lose(key, Ended::Lost);
        }
        left
    }

    /// Once a second ends connections whose reader waits for us, and whose client is gone: nobody else would notice.
    pub(crate) fn lose_held(&mut self) {
        let now = self.now();
        if self.next_held.is_some_and(|next| now < next) {
            return;
        }
        self.next_held = Some(now + HELD_EVERY);
        let is_gone = |link: &&Link| link.held_reader.is_some() && sys::is_gone(link.fd);
        let gone: Vec<_> = self.links.iter().flatten().filter(is_gone).map(|link| link.key).collect();
        for key in gone {
            self.lose(key, Ended::Lost);
        }
    }

    /// Is there something to be done with what may be read? Of a connection that is closing it is dropped, but for an offender's.
    pub(crate) fn wants_read(&mut self, key: ConnKey) -> bool {
        match self.link(key) {
            Some(link) if link.closing.is_some() => !link.is_offender,
            _ => self.core.wants_read(key),
        }
    }

    /// Forgets a connection and tells the core.
    pub(crate) fn lose(&mut self, key: ConnKey, ended: Ended) {
        let now = self.now();
        if self.link(key).is_some()
            && let Some(link) = self.links[key.index()].take()
        {
            if link.is_client {
                self.clients_closed += 1;
            }
            if let Some(ticket) = link.handshake {
                self.gate.end(ticket);
            }
            // Wakes the tasks that wait on it; they find it gone.
            sys::shutdown(link.fd, libc::SHUT_RDWR);
            give(&mut self.spare, link.pending);
            give(&mut self.spare, link.tail);
            self.turn.is_unfinished = true;
            if let Writer::Parked(waker) = link.writer {
                waker.wake();
            }
            if let Some(reader) = link.held_reader {
                reader.wake();
            }
        }
        self.core.handle_closed(key, ended, now);
    }

    /// Is the writer of this connection still wanted? Parks it when it is.
    pub(crate) fn park_writer(&mut self, key: ConnKey, waker: &std::task::Waker) -> bool {
        let Some(link) = self.link(key) else { return false };
        link.writer = Writer::Parked(waker.clone());
        if link.closing.is_some() {
            self.finish_close(key);
        }
        true
    }
}

/// The link of a connection; nothing when the name is an old one. Not a method: the other fields stay free to borrow.
fn find(links: &mut [Option<Link>], key: ConnKey) -> Option<&mut Link> {
    links.get_mut(key.index())?.as_mut().filter(|link| link.key == key)
}

/// Keeps an incomplete record for the next read.
fn keep_tail(tail: &mut Vec<u8>, rest: &[u8], spare: &mut Vec<Vec<u8>>) {
    if rest.is_empty() {
        if tail.capacity() > 0 {
            give(spare, std::mem::take(tail));
        }
        return;
    }
    if tail.capacity() == 0 {
        *tail = spare.pop().unwrap_or_default();
    }
    tail.clear();
    tail.extend_from_slice(rest);
}

fn give(spare: &mut Vec<Vec<u8>>, mut buffer: Vec<u8>) {
    if buffer.capacity() > 0 && buffer.capacity() <= SPARE_CAPACITY && spare.len() < SPARE_BUFFERS {
        buffer.clear();
        spare.push(buffer);
    }
}

/// Sends until everything is gone or the socket is full, and counts the writes.
fn send_all(fd: RawFd, bytes: &[u8], writes: &mut u64) -> std::io::Result<usize> {
    let mut sent = 0;
    while sent < bytes.len() {
        match sys::send(fd, &bytes[sent..]) {
            Ok(n) => {
                sent += n;
                *writes += 1;
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(sent)
}
