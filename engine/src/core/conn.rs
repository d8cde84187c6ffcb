//! One connection as the core sees it: plaintext HTTP/2 in either role.
//!
//! What always holds: the state only moves on in the diagram below, never back; nothing is written before our preface and SETTINGS; the last
//! stream that a GOAWAY of ours names never rises.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use super::body::{Chunk, Copied};
use super::budget::{Budget, Rate};
use super::exchange::Side;
use super::http1::Http1;
use super::outbox::{Buffers, Outbox};
use super::pool::Lane;
use super::source::Source;
use super::streams::Streams;
use super::{ExchangeKey, ServerSlot};
use crate::config::Limits;
use crate::http1::write;
use crate::http2::Reason;
use crate::http2::frame::{self, DEFAULT_WINDOW, MAX_WINDOW, PREFACE, PeerSettings, flag, kind, setting};
use crate::http2::hpack::{Decoder, Encoder, HeaderBlock};
use crate::http2::inbound::Inbound;

/// Streams we reset whose late frames are still ignored rather than judged; `client_streams` of them if that is more.
const REMEMBERED_RESETS: usize = 256;
/// Streams we have open at once on a connection to a server that allows more, or says nothing: all of them end with it.
const SERVER_STREAMS: u32 = 1_000;
/// The window of a connection without windows: what is held back there is held back by the full outbox alone.
pub(crate) const NO_WINDOW: i64 = i64::MAX / 4;

/// Where a connection is in its life.
///
/// ```text
///  Connecting --established--> Open --GOAWAY sent or received--> Draining --no stream left--> Closing
///       \________________________\______________ error, end of file ________________________/
/// ```
///
/// To a server, established is behind its first SETTINGS. They say how many streams it takes: it refuses what was sent beyond that, and a request is
/// not given to many connections. And with TLS 1.3 a proxy that does not take our certificate says so when the handshake is over for us: what was
/// sent before that would be in doubt.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum State {
    /// TCP or TLS is not done, or the server has not spoken yet.
    Connecting,
    /// Streams may be opened.
    Open,
    /// Running streams finish, no new ones.
    Draining,
    /// The IO side was told to close it once the output has left.
    Closing,
}

/// Which end the other side is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Role {
    /// A client connected to us.
    Downstream,
    /// We connected to a server.
    Upstream { server: ServerSlot, lane: Lane },
}

/// A connection. Opaque outside the core.
pub struct Conn {
    pub(crate) role: Role,
    pub(crate) state: State,
    /// Set for a client that speaks HTTP/1.1.
    pub(crate) http1: Option<Box<Http1>>,
    /// Taken out while frames that borrow from it are handled.
    pub(crate) inbound: Option<Inbound>,
    pub(crate) out: Outbox,
    /// Is it in the list of connections with something to write?
    pub(crate) dirty: bool,
    pub(crate) encoder: Encoder,
    pub(crate) decoder: Decoder,
    pub(crate) streams: Streams,
    /// Of a client: streams it has left and a server still works on. They take a place as long as that.
    pub(crate) abandoned: usize,
    pub(crate) peer: PeerSettings,
    /// Did the first SETTINGS come?
    pub(crate) settled: bool,
    /// TLS is done, and the connection opens with the first SETTINGS: `state == Connecting`.
    pub(crate) awaits_settings: bool,
    /// Of a connection to a server: from the first packet to the end of TLS.
    pub(crate) handshake: Duration,
    /// `send_window <= MAX_WINDOW`; what the other side lets us send in all.
    pub(crate) send_window: i64,
    /// What the other side may still send, and what it sent since we last told it to go on:
    /// `recv_window + recv_taken == connection_window`.
    pub(crate) recv_window: i64,
    pub(crate) recv_taken: u32,
    /// Highest stream the client opened.
    pub(crate) last_opened: u32,
    /// The last stream named in a GOAWAY of ours; it never rises (RFC 9113 §6.8).
    goaway_last: u32,
    /// The next stream we open.
    pub(crate) next_stream: u32,
    /// Exchanges held back by this connection (its window, or its full outbox), not by their own stream.
    pub(crate) blocked: VecDeque<ExchangeKey>,
    pub(crate) since: Instant,
    /// Of a connection to a server: when TCP was there, and TLS began.
    pub(crate) connected: Option<Instant>,
    pub(crate) last_received: Instant,
    /// When the PING that is still unanswered was sent, and the outbox mark in front of it.
    pub(crate) pinged: Option<Instant>,
    pub(crate) ping_mark: u64,
    /// When the kernel last took something of what we had.
    pub(crate) last_written: Instant,
    pub(crate) suspect: bool,
    /// Since when it takes no new streams because the certificates it was made with were replaced.
    pub(crate) retired: Option<Instant>,
    /// When the last stream ended.
    pub(crate) idle_since: Instant,
    /// Resets: by a client, or of ours towards a server.
    pub(crate) reset_budget: Budget,
    pub(crate) idle_frames: Budget,
    /// WINDOW_UPDATEs that are paid for by DATA we sent.
    pub(crate) paid_updates: u32,
    /// What clients may still have sent on streams that we reset, at most.
    late_window: i64,
    /// DATA frames sent that no late reset has come for.
    unreset_data: u32,
    /// What the IO side holds for it: an incomplete TLS record.
    pub(crate) outside: usize,
    /// Came in by the peer port.
    pub(crate) is_peer: bool,
    /// Where a client came from.
    pub(crate) source: Option<Source>,
    resets: Vec<u32>,
    next_reset: usize,
    /// The closed stream that was last told so.
    told_closed: u32,
}

/// What a proxy may add to a header list: the marker and its `via`, and room for what comes later.
const PEER_FIELDS: usize = 4_096;

impl Conn {
    pub(crate) fn new(role: Role, limits: &Limits, now: Instant) -> Self {
        let inbound = match role {
            Role::Downstream => Inbound::server(limits.header_list, limits.spare_continuations),
            Role::Upstream { .. } => Inbound::client(limits.header_list, limits.spare_continuations),
        };
        Self {
            role,
            state: State::Connecting,
            http1: None,
            inbound: Some(inbound),
            out: Outbox::default(),
            dirty: false,
            encoder: Encoder::new(),
            decoder: Decoder::new(4_096),
            streams: Streams::default(),
            abandoned: 0,
            peer: PeerSettings::DEFAULT,
            settled: false,
            awaits_settings: false,
            handshake: Duration::ZERO,
            send_window: i64::from(DEFAULT_WINDOW),
            recv_window: i64::from(limits.connection_window),
            recv_taken: 0,
            last_opened: 0,
            goaway_last: MAX_WINDOW,
            next_stream: 1,
            blocked: VecDeque::new(),
            since: now,
            connected: None,
            last_received: now,
            pinged: None,
            ping_mark: 0,
            last_written: now,
            suspect: false,
            retired: None,
            idle_since: now,
            reset_budget: Budget::full(reset_rate(role, limits), now),
            idle_frames: Budget::full(limits.idle_frames, now),
            paid_updates: 0,
            late_window: 0,
            unreset_data: 0,
            outside: 0,
            is_peer: false,
            source: None,
            resets: Vec::new(),
            next_reset: 0,
            told_closed: 0,
        }
    }

    pub(crate) fn side(&self) -> Side {
        match self.role {
            Role::Downstream => Side::Down,
            Role::Upstream { .. } => Side::Up,
        }
    }

    /// Streams may be opened from now on.
    pub(crate) fn open(&mut self, now: Instant) {
        self.state = State::Open;
        (self.since, self.last_received, self.idle_since) = (now, now, now);
    }

    /// What we say first (RFC 9113 §3.4): the preface as a client, our SETTINGS, and the wider connection window.
    pub(crate) fn greet(&mut self, limits: &Limits, buffers: &mut Buffers) {
        let out = self.out.frames(buffers);
        match self.role {
            Role::Downstream => {
                #[allow(clippy::cast_possible_truncation, reason = "a limit of some KiB")]
                let header_list = limits.header_list as u32;
                frame::put_settings(
                    out,
                    &[
                        (setting::MAX_CONCURRENT_STREAMS, limits.client_streams),
                        (setting::INITIAL_WINDOW_SIZE, limits.client_window),
                        (setting::MAX_HEADER_LIST_SIZE, header_list),
                    ],
                );
            }
            Role::Upstream { .. } => {
                out.extend_from_slice(PREFACE);
                frame::put_settings(out, &[(setting::ENABLE_PUSH, 0), (setting::INITIAL_WINDOW_SIZE, limits.server_window)]);
            }
        }
        frame::put_window_update(out, 0, limits.connection_window - DEFAULT_WINDOW);
    }

    /// Turns to HTTP/1.1, which has no windows.
    pub(crate) fn speak_http1(&mut self, now: Instant) {
        self.http1 = Some(Box::new(Http1::new(now)));
        self.inbound = None;
        self.settled = true;
        self.send_window = NO_WINDOW;
    }

    /// What we may send on a new stream.
    pub(crate) fn first_window(&self) -> i64 {
        if self.http1.is_some() { NO_WINDOW } else { i64::from(self.peer.initial_window) }
    }

    /// Appends body bytes of a stream.
    pub(crate) fn put_data(&mut self, stream: u32, bytes: &[u8], end: bool, buffers: &mut Buffers, copied: &mut Copied) {
        let Some(framing) = self.http1.as_ref().map(|http1| http1.framing) else {
            return self.out.data(stream, bytes, end, buffers, copied);
        };
        let out = self.out.frames(buffers);
        if framing == write::Framing::Chunked {
            if !bytes.is_empty() {
                write::put_chunk_size(out, bytes.len());
                copied.into(out, bytes);
                out.extend_from_slice(b"\r\n");
            }
            if end {
                write::put_last_chunk(out, None);
            }
        } else {
            copied.into(out, bytes);
        }
    }

    /// Appends a body block of a stream without copying it.
    pub(crate) fn put_chunk(&mut self, stream: u32, chunk: Chunk, end: bool, buffers: &mut Buffers) {
        let Some(framing) = self.http1.as_ref().map(|http1| http1.framing) else {
            return self.out.chunk(stream, chunk, end, buffers);
        };
        let chunked = framing == write::Framing::Chunked;
        if chunked {
            write::put_chunk_size(self.out.frames(buffers), chunk.range.len());
        }
        self.out.weave(chunk, buffers);
        if chunked {
            self.out.frames(buffers).extend_from_slice(b"\r\n");
        }
        if chunked && end {
            self.put_last_chunk(None, buffers);
        }
    }

    /// Ends a body of HTTP/1.1; trailers are dropped where the framing has no place for them.
    pub(crate) fn put_last_chunk(&mut self, trailers: Option<&HeaderBlock>, buffers: &mut Buffers) {
        if self.http1.as_ref().is_some_and(|http1| http1.framing == write::Framing::Chunked) {
            write::put_last_chunk(self.out.frames(buffers), trailers);
        }
    }

    /// Takes one reset from the budget.
    pub(crate) fn may_reset(&mut self, limits: &Limits, now: Instant) -> bool {
        let rate = if self.is_peer { limits.peer_resets } else { reset_rate(self.role, limits) };
        self.reset_budget.take(rate, now)
    }

    /// Takes one frame that carries nothing from the budget (RFC 9113 §10.5).
    pub(crate) fn take_idle_frame(&mut self, limits: &Limits, now: Instant) -> Result<(), Reason> {
        let rate = if self.is_peer { limits.peer_idle_frames } else { limits.idle_frames };
        if self.idle_frames.take(rate, now) { Ok(()) } else { Err(Reason::ENHANCE_YOUR_CALM) }
    }

    /// The same for a WINDOW_UPDATE, some of which are free for each DATA frame we sent.
    pub(crate) fn take_update(&mut self, limits: &Limits, now: Instant) -> Result<(), Reason> {
        match self.paid_updates.checked_sub(1) {
            Some(left) => self.paid_updates = left,
            None => self.take_idle_frame(limits, now)?,
        }
        Ok(())
    }

    /// The same for a reset of a stream that is over. A Go server sends one for each DATA frame that comes after it ended a stream, so those are
    /// free: any client can make it send thousands, on a connection that others share.
    pub(crate) fn take_late_reset(&mut self, limits: &Limits, now: Instant) -> Result<(), Reason> {
        match self.unreset_data.checked_sub(1).filter(|_| self.role != Role::Downstream) {
            Some(left) => self.unreset_data = left,
            None => self.take_idle_frame(limits, now)?,
        }
        Ok(())
    }

    /// The same for DATA of a client on a stream that we reset, of which so much is free as may have been under way: whoever is refused many
    /// uploads did nothing wrong.
    pub(crate) fn take_late_data(&mut self, flow: u32, limits: &Limits, now: Instant) -> Result<(), Reason> {
        if i64::from(flow) > self.late_window {
            return self.take_idle_frame(limits, now);
        }
        self.late_window -= i64::from(flow);
        Ok(())
    }

    /// A DATA frame is sent, which pays for some updates, and for a late reset.
    pub(crate) fn pay_for_data(&mut self, limits: &Limits) {
        self.paid_updates = self.paid_updates.saturating_add(limits.updates_per_data).min(limits.paid_updates);
        self.unreset_data = self.unreset_data.saturating_add(1);
    }

    /// How long a header list may be: a peer adds to what a client may send.
    pub(crate) fn header_list(&self, limits: &Limits) -> usize {
        limits.header_list + if self.is_peer { PEER_FIELDS } else { 0 }
    }

    /// May a stream be opened here now?
    pub(crate) fn takes_streams(&self) -> bool {
        self.state == State::Open && !self.suspect && self.next_stream < MAX_WINDOW
    }

    /// Streams the other side lets us have open.
    pub(crate) fn max_streams(&self) -> usize {
        self.peer.max_streams.min(SERVER_STREAMS) as usize
    }

    /// Takes `flow` bytes from the connection's receive window, and gives it back by the quarter.
    pub(crate) fn receive(&mut self, flow: u32, limits: &Limits, buffers: &mut Buffers) -> Result<(), Reason> {
        self.recv_window -= i64::from(flow);
        if self.recv_window < 0 {
            return Err(Reason::FLOW_CONTROL_ERROR);
        }
        self.recv_taken += flow;
        if self.recv_taken >= limits.connection_window / 4 {
            frame::put_window_update(self.out.frames(buffers), 0, self.recv_taken);
            self.recv_window += i64::from(self.recv_taken);
            self.recv_taken = 0;
        }
        Ok(())
    }

    /// Says that streams the client opened so far are the last we take.
    pub(crate) fn say_goaway(&mut self, reason: Reason, buffers: &mut Buffers) {
        self.goaway_last = self.goaway_last.min(self.last_opened);
        frame::put_goaway(self.out.frames(buffers), self.goaway_last, reason);
    }

    /// Remembers a stream that we reset: frames the other side sent before it knew are not its fault, nor is DATA within the `window` that the
    /// stream had left.
    pub(crate) fn remember_reset(&mut self, stream: u32, window: i64, limits: &Limits) {
        // All uploads of a client end at once when their server is lost.
        let remembered = REMEMBERED_RESETS.max(limits.client_streams as usize);
        self.late_window = (self.late_window + window.max(0)).min(remembered as i64 * i64::from(limits.client_window));
        if self.resets.len() < remembered {
            self.resets.push(stream);
        } else {
            self.resets[self.next_reset] = stream;
            self.next_reset = (self.next_reset + 1) % remembered;
        }
    }

    /// Is the client to be told that a stream it sends on is closed? Once, not for every piece of its DATA (RFC 9113 §5.4.2). It is not
    /// remembered as reset: a flood of these must not push out streams that we really reset.
    pub(crate) fn tells_closed(&mut self, stream: u32) -> bool {
        std::mem::replace(&mut self.told_closed, stream) != stream
    }

    /// A frame for a stream that is not in the table: what it means (RFC 9113 §5.1).
    pub(crate) fn judge_unknown(&self, stream: u32) -> Unknown {
        let last = if self.role == Role::Downstream { self.last_opened } else { self.next_stream.saturating_sub(2) };
        if stream.is_multiple_of(2) || stream > last {
            Unknown::Idle
        } else if self.resets.contains(&stream) {
            Unknown::Late
        } else {
            Unknown::Closed
        }
    }

    /// Bytes held for it, here and outside, those in blocks not counted.
    pub(crate) fn held(&self) -> usize {
        let unread = self.inbound.as_ref().map_or(0, Inbound::held) + self.http1.as_deref().map_or(0, Http1::unread);
        self.out.held() + unread + self.outside
    }

    /// Frees what only a busy connection needs.
    pub(crate) fn release(&mut self) {
        self.streams.release();
        self.out.release();
        self.blocked.shrink_to(0);
    }
}

fn reset_rate(role: Role, limits: &Limits) -> Rate {
    match role {
        Role::Downstream => limits.client_resets,
        Role::Upstream { .. } => limits.server_resets,
    }
}

/// What a stream that is not in the table can be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unknown {
    /// Never opened: the frame is a connection error.
    Idle,
    /// We reset it, and the frame crossed our reset: ignored.
    Late,
    /// It ended.
    Closed,
}

/// Appends one header block as HEADERS and, beyond 16,384 bytes, CONTINUATION.
pub(crate) fn put_headers(conn: &mut Conn, buffers: &mut Buffers, stream: u32, end: bool, fill: impl FnOnce(&mut Encoder, &mut Vec<u8>)) {
    let end_flag = if end { flag::END_STREAM } else { 0 };
    let out = conn.out.frames(buffers);
    let at = out.len();
    frame::put_head(out, 0, kind::HEADERS, end_flag | flag::END_HEADERS, stream);
    conn.encoder.begin(out);
    fill(&mut conn.encoder, out);
    let len = out.len() - at - frame::HEAD_LEN;
    if len <= frame::MAX_FRAME {
        frame::patch_len(out, at, len);
        return;
    }
    // Rare: split. The first part stays where it is, the others get heads of their own.
    let tail = out.split_off(at + frame::HEAD_LEN + frame::MAX_FRAME);
    frame::patch_len(out, at, frame::MAX_FRAME);
    out[at + 4] = end_flag;
    let mut parts = tail.chunks(frame::MAX_FRAME).peekable();
    while let Some(part) = parts.next() {
        let last = if parts.peek().is_none() { flag::END_HEADERS } else { 0 };
        frame::put_head(out, part.len(), kind::CONTINUATION, last, stream);
        out.extend_from_slice(part);
    }
}
