//! HTTP/1.1 clients: requests one after the other, each an exchange like any other.
//!
//! What always holds: one request of a connection is under way at a time, so answers come in order; what a client sends ahead
//! waits unread (at most `header_list` bytes and one read); a body whose end did not come is a cut connection, never a clean
//! end; nothing is read behind a request that could not be read to its end.

use std::time::Instant;

use super::conn::{Conn, State};
use super::exchange::{Phase, Side};
use super::outbox::Buffers;
use super::{Action, ConnKey, Core, ExchangeKey};
use crate::http1::body::{Body, Bounds, Piece};
use crate::http1::head::{self, BadHead, Framing, RequestHead};
use crate::http1::write;
use crate::http2::Reason;
use crate::http2::hpack::{HeaderBlock, Token};
use crate::http2::message;
use crate::respond::Failure;

/// What a connection that speaks HTTP/1.1 has beside the rest.
#[derive(Debug)]
pub(crate) struct Http1 {
    /// Bytes that were not read yet: the beginning of a head, or requests sent ahead; `buffer[start..]`.
    buffer: Vec<u8>,
    start: usize,
    /// How much of the head that is not complete was looked at in vain.
    parsed: usize,
    /// The rest of the request being read.
    body: Option<Body>,
    /// The request being answered.
    pub(crate) exchange: Option<ExchangeKey>,
    next_stream: u32,
    is_1_0: bool,
    pub(crate) keep_alive: bool,
    /// How the answer is framed.
    pub(crate) framing: write::Framing,
    /// When the head that is not complete began.
    pub(crate) head_since: Option<Instant>,
}

impl Http1 {
    /// The first head is waited for from now on.
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            buffer: Vec::new(),
            start: 0,
            parsed: 0,
            body: None,
            exchange: None,
            next_stream: 1,
            is_1_0: false,
            keep_alive: true,
            framing: write::Framing::None,
            head_since: Some(now),
        }
    }

    /// Bytes that came and were not read yet.
    pub(crate) fn unread(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Is another look at the head worth it? A client may send it byte by byte, and each look begins at its beginning: only a line that
    /// came to its end, or twice as many bytes, can tell more.
    fn is_worth_parsing(&self, input: &[u8]) -> bool {
        let new = input.get(self.parsed..).unwrap_or_default();
        self.parsed == 0 || input.len() >= 2 * self.parsed || new.contains(&b'\n')
    }

    /// Takes up a new request; its stream number.
    fn begin(&mut self, head: &RequestHead, bounds: Bounds) -> u32 {
        self.head_since = None;
        self.parsed = 0;
        self.is_1_0 = head.is_1_0;
        self.keep_alive &= head.keep_alive;
        self.framing = write::Framing::None;
        self.body = (head.framing != Framing::None).then(|| Body::new(head.framing, bounds));
        let stream = self.next_stream;
        self.next_stream = self.next_stream.wrapping_add(2);
        stream
    }
}

impl Core {
    pub(super) fn receive_http1(&mut self, key: ConnKey, bytes: &[u8]) {
        let Some(http1) = self.http1(key) else { return };
        let (mut buffer, start) = (std::mem::take(&mut http1.buffer), std::mem::take(&mut http1.start));
        let held = buffer.len() > start;
        if held {
            buffer.extend_from_slice(bytes);
        }
        let mut input = if held { &buffer[start..] } else { bytes };
        while self.read_some(key, &mut input) {}
        let rest = input.len();
        let mut start = 0;
        if rest == 0 {
            buffer = Vec::new();
        } else if held {
            start = buffer.len() - rest;
            // Not for each of many requests sent ahead.
            if start > buffer.len() / 2 {
                buffer.drain(..std::mem::take(&mut start));
            }
        } else {
            buffer.clear();
            buffer.extend_from_slice(&bytes[bytes.len() - rest..]);
        }
        if let Some(http1) = self.http1(key) {
            (http1.buffer, http1.start) = (buffer, start);
        }
    }

    fn http1(&mut self, key: ConnKey) -> Option<&mut Http1> {
        self.conns.get_mut(key).filter(|conn| conn.state != State::Closing)?.http1.as_deref_mut()
    }

    /// Reads one head or one piece of a body; false when there is nothing more to read now.
    fn read_some(&mut self, key: ConnKey, input: &mut &[u8]) -> bool {
        let Some(http1) = self.http1(key) else { return false };
        match (http1.body.take(), http1.exchange) {
            (Some(body), Some(exchange)) => self.read_body(key, exchange, body, input),
            // Answered before it was read: the connection is on its way out.
            (Some(_), None) | (None, Some(_)) => false,
            (None, None) => !input.is_empty() && self.read_head(key, input),
        }
    }

    fn read_head(&mut self, key: ConnKey, input: &mut &[u8]) -> bool {
        let (now, header_list) = (self.now, self.limits.header_list);
        let bounds = Bounds { extensions: self.limits.chunk_extensions, trailers: self.limits.chunk_trailers };
        if input.len() <= header_list && self.http1(key).is_none_or(|http1| !http1.is_worth_parsing(input)) {
            return false;
        }
        let mut block = self.spare_heads.pop().unwrap_or_default();
        let parsed = head::parse(input, &mut block);
        let Some(http1) = self.http1(key) else { return false };
        let head = match parsed {
            // Complete in one read: as long as any.
            Ok(Some(head)) if head.len > header_list => return self.refuse_http1(key, Failure::HeadTooLarge),
            Ok(Some(head)) => head,
            Ok(None) if input.len() <= header_list => {
                http1.head_since.get_or_insert(now);
                http1.parsed = input.len();
                self.give_head(block);
                return false;
            }
            Ok(None) | Err(BadHead::TooLarge) => return self.refuse_http1(key, Failure::HeadTooLarge),
            Err(BadHead::Coding) => return self.refuse_http1(key, Failure::NotImplemented),
            Err(BadHead::Version) => return self.refuse_http1(key, Failure::VersionNotSupported),
            Err(BadHead::Malformed | BadHead::Framing) => return self.refuse_http1(key, Failure::BadRequest),
        };
        *input = &input[head.len..];
        let stream = http1.begin(&head, bounds);
        if head.is_upgrade {
            return self.refuse_http1(key, Failure::NotImplemented);
        }
        if block.first(Token::METHOD) == Some(b"CONNECT") {
            return self.refuse_http1(key, Failure::MethodNotAllowed);
        }
        self.on_request(key, stream, block, head.framing == Framing::None, false).is_ok()
    }

    fn read_body(&mut self, key: ConnKey, exchange: ExchangeKey, mut body: Body, input: &mut &[u8]) -> bool {
        let polled = body.poll(input);
        for _ in 0..body.take_tiny() {
            let (limits, now) = (&self.limits, self.now);
            if self.conns.get_mut(key).is_some_and(|conn| conn.take_idle_frame(limits, now).is_err()) {
                self.close_conn(key, Reason::ENHANCE_YOUR_CALM);
                return false;
            }
        }
        let piece = match polled {
            Ok(Some(piece)) => piece,
            Ok(None) => {
                self.keep_body(key, body);
                return false;
            }
            Err(_) => {
                // Where the next request begins is not known any more.
                self.end_keep_alive(key);
                self.fail_stream(exchange, Side::Down, Reason::PROTOCOL_ERROR);
                return false;
            }
        };
        match piece {
            Piece::Data(bytes) => {
                let end = body.is_complete();
                if !end {
                    self.keep_body(key, body);
                }
                self.on_piece(exchange, bytes, end);
            }
            Piece::End if body.trailers().is_empty() => self.on_piece(exchange, &[], true),
            Piece::End => return self.read_trailers(key, exchange, body.trailers()),
        }
        true
    }

    fn keep_body(&mut self, key: ConnKey, body: Body) {
        if let Some(http1) = self.http1(key) {
            http1.body = Some(body);
        }
    }

    pub(super) fn end_keep_alive(&mut self, key: ConnKey) {
        if let Some(http1) = self.http1(key) {
            http1.keep_alive = false;
        }
    }

    fn on_piece(&mut self, exchange: ExchangeKey, bytes: &[u8], end: bool) {
        match self.take_data(exchange, Side::Down, bytes, 0, end) {
            Ok(()) => self.forward(exchange, Side::Down, bytes, end),
            Err(reason) => self.fail_stream(exchange, Side::Down, reason),
        }
    }

    fn read_trailers(&mut self, key: ConnKey, exchange: ExchangeKey, lines: &[u8]) -> bool {
        let mut block = self.spare_heads.pop().unwrap_or_default();
        if head::parse_trailers(lines, &mut block).is_err() || message::check_trailers(&block).is_err() {
            self.give_head(block);
            self.end_keep_alive(key);
            self.fail_stream(exchange, Side::Down, Reason::PROTOCOL_ERROR);
            return false;
        }
        self.on_trailers(exchange, Side::Down, block, true, false).is_ok()
    }

    /// Answers what is no request, and closes. Always false: nothing behind it is read.
    pub(super) fn refuse_http1(&mut self, key: ConnKey, failure: Failure) -> bool {
        self.counters.refused += 1;
        let Some(conn) = self.conns.get_mut(key) else { return false };
        let answer = failure.answer();
        let out = conn.out.frames(&mut self.buffers);
        let mut head = HeaderBlock::default();
        answer.put_fields(&mut head);
        write::put_head(out, &head, answer.code(), write::Framing::Length, write::Persistence::Close);
        out.extend_from_slice(answer.body);
        self.close_conn(key, Reason::NO_ERROR);
        false
    }

    /// The request of a connection is over. `answered`: in full; `read`: to its end.
    pub(super) fn end_http1(&mut self, key: ConnKey, answered: bool, read: bool) {
        let Some(http1) = self.http1(key) else { return };
        http1.exchange = None;
        if answered && read && http1.keep_alive {
            self.ready.push_back(key);
        } else if answered {
            self.close_conn(key, Reason::NO_ERROR);
        } else {
            self.cut_conn(key);
        }
    }

    /// Reads on where a request was answered and the next one waits. A loop, not a call from the end of the one before: a client
    /// may send thousands ahead.
    pub(super) fn serve_ready(&mut self) {
        while let Some(key) = self.ready.pop_front() {
            self.receive_http1(key, &[]);
            self.actions.push_back(Action::Read { conn: key });
        }
    }

    /// Ends a connection in the middle of an answer, so that nobody takes it for complete.
    fn cut_conn(&mut self, key: ConnKey) {
        if let Some(conn) = self.conns.get_mut(key).filter(|conn| conn.state != State::Closing) {
            conn.state = State::Closing;
            conn.out.clear(&mut self.buffers, &mut self.blocks);
            self.actions.push_back(Action::Cut { conn: key });
        }
    }

    /// May more of an upload be read? The other leg must have taken most of what came.
    pub(super) fn upload_has_room(&self, conn: &Conn) -> bool {
        let Some(http1) = conn.http1.as_deref() else { return true };
        let owed = http1.exchange.and_then(|key| self.exchanges.get(key)).map_or(0, |entry| entry.legs[Side::Down as usize].owed);
        let waits = http1.exchange.is_some() && http1.body.is_none();
        owed < self.limits.client_window && (!waits || http1.unread() < self.limits.header_list)
    }

    /// An answer cannot be reset on HTTP/1.1: before its head an error says so, after it the connection is cut.
    pub(super) fn reset_http1(&mut self, exchange: ExchangeKey, reason: Reason) -> bool {
        let Some(entry) = self.exchanges.get(exchange) else { return false };
        let down = &entry.legs[Side::Down as usize];
        let is_http1 =
            down.conn.and_then(|key| self.conns.get(key)).is_some_and(|conn| conn.http1.is_some() && conn.state != State::Closing);
        if !is_http1 || down.closed || entry.phase == Phase::Answering {
            return false;
        }
        let failure = match reason {
            Reason::REFUSED_STREAM => Failure::NoServer,
            Reason::PROTOCOL_ERROR => Failure::BadRequest,
            _ => Failure::Interrupted,
        };
        let up = server_conn(entry).and_then(|key| self.conns.get_mut(key));
        if up.is_some_and(|conn| !conn.may_reset(&self.limits, self.now)) {
            // The server has had enough resets for now: this one waits, and the client gets no answer instead of one that is not its own.
            self.unlink(exchange, Side::Down);
            self.settle(exchange);
            return true;
        }
        self.reset_leg(exchange, Side::Up, Reason::CANCEL);
        self.answer_failure(exchange, failure);
        true
    }
}

/// The connection on which an exchange's server leg is still open.
fn server_conn(entry: &super::Exchange) -> Option<ConnKey> {
    let up = &entry.legs[Side::Up as usize];
    up.conn.filter(|_| !up.closed)
}

/// Writes a head for a client of HTTP/1.1. `read`: its request was read to the end.
pub(super) fn put_head(conn: &mut Conn, buffers: &mut Buffers, head: &HeaderBlock, is_head: bool, end: bool, read: bool) {
    let Some(http1) = conn.http1.as_deref_mut() else { return };
    let status = message::status_of(head).unwrap_or(502);
    let has_length = head.first(Token::CONTENT_LENGTH).is_some();
    if status < 200 {
        if !http1.is_1_0 {
            write::put_head(conn.out.frames(buffers), head, status, write::Framing::None, write::Persistence::Unsaid);
        }
        return;
    }
    http1.framing = match write::framing(status, is_head, has_length, http1.is_1_0) {
        write::Framing::Chunked | write::Framing::Close if end => write::Framing::Empty,
        framing => framing,
    };
    // An answer that is over before its request ends the connection: a client that was not told would send the next request into it
    // (RFC 9112 §9.6). A success with a body may go on beside the upload, as an echo does.
    let outlasts = read || (!end && status < 300);
    http1.keep_alive &= http1.framing != write::Framing::Close && outlasts;
    let persistence = match http1.keep_alive {
        false => write::Persistence::Close,
        true if http1.is_1_0 => write::Persistence::KeepAlive,
        true => write::Persistence::Unsaid,
    };
    write::put_head(conn.out.frames(buffers), head, status, http1.framing, persistence);
}
