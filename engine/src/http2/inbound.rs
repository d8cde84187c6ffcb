//! Cuts the plaintext of one connection into frames.
//!
//! What always holds: DATA comes out in pieces as large as the input allows, everything else whole; at most one
//! header block (bounded by `max_block`) and one control frame (bounded by [`MAX_FRAME`]) are held; between frames nothing
//! is held.
//! What it does not do: stream states, HPACK. It knows only what can be judged from the frame alone (RFC 9113 §4, §6).

use super::frame::{HEAD_LEN, Head, MAX_FRAME, MAX_WINDOW, PREFACE, Reason, flag, kind};

/// A buffer for a split frame is kept for the next one up to this size; a larger one is freed.
const KEEP_CAPACITY: usize = 1_024;

/// One frame, or one piece of a DATA frame.
#[derive(Debug)]
pub(crate) enum Frame<'a> {
    /// `flow` is what this piece takes from the windows, padding included. `end_stream` is set on the last piece only.
    Data {
        stream: u32,
        bytes: &'a [u8],
        flow: u32,
        end_stream: bool,
        /// Body bytes of the whole frame, with its first piece; `usize::MAX` with the others.
        worth: usize,
    },
    /// A whole header block, CONTINUATIONs joined.
    Headers {
        stream: u32,
        block: &'a [u8],
        end_stream: bool,
        self_dependent: bool,
    },
    Reset {
        stream: u32,
        reason: Reason,
    },
    Settings {
        payload: &'a [u8],
    },
    SettingsAck,
    Ping {
        ack: bool,
        opaque: [u8; 8],
    },
    GoAway {
        last: u32,
    },
    WindowUpdate {
        stream: u32,
        increment: u32,
    },
    Ignored,
    /// A stream error that the frame alone shows; the connection goes on (RFC 9113 §5.4.2).
    Faulty {
        stream: u32,
        reason: Reason,
    },
}

/// What the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Expect {
    /// This many bytes of the client preface were matched.
    Preface(usize),
    /// A frame head, of which this many bytes are in `head_bytes`.
    Head(usize),
    /// The payload of a frame that is handed on whole.
    Payload,
    /// The length byte of the padding of a DATA frame.
    PadLength,
    /// Payload of a DATA frame: `left` data bytes, then `padding`.
    Data { left: usize, padding: usize },
}

/// A header block whose last CONTINUATION has not come yet.
#[derive(Clone, Copy, Debug)]
struct OpenBlock {
    stream: u32,
    end_stream: bool,
    frames: usize,
    self_dependent: bool,
}

/// The reading half of a connection.
#[derive(Debug)]
pub(crate) struct Inbound {
    expect: Expect,
    head_bytes: [u8; HEAD_LEN],
    head: Head,
    /// Payload of a split control frame.
    partial: Vec<u8>,
    block: Vec<u8>,
    open_block: Option<OpenBlock>,
    max_block: usize,
    /// CONTINUATION frames of one block.
    max_continuations: usize,
    /// The first frame must be SETTINGS (RFC 9113 §3.4).
    settings_seen: bool,
}

impl Inbound {
    /// The server side waits for the client preface first.
    pub(crate) fn server(max_block: usize, spare_continuations: usize) -> Self {
        Self::new(Expect::Preface(0), max_block, spare_continuations)
    }

    /// The client side waits for the server's SETTINGS.
    pub(crate) fn client(max_block: usize, spare_continuations: usize) -> Self {
        Self::new(Expect::Head(0), max_block, spare_continuations)
    }

    /// Bytes of a frame or block that is not complete.
    pub(crate) fn held(&self) -> usize {
        self.partial.len() + self.block.len()
    }

    fn new(expect: Expect, max_block: usize, spare_continuations: usize) -> Self {
        Self {
            expect,
            head_bytes: [0; HEAD_LEN],
            head: Head::default(),
            partial: Vec::new(),
            block: Vec::new(),
            open_block: None,
            max_block,
            max_continuations: spare_continuations + max_block / MAX_FRAME,
            settings_seen: false,
        }
    }

    /// Takes the next frame from the front of `input`; `None` when all of it is used up. An error is a connection
    /// error (RFC 9113 §5.4.1).
    pub(crate) fn poll<'a, 'b: 'a>(&'a mut self, input: &mut &'b [u8]) -> Result<Option<Frame<'a>>, Reason> {
        loop {
            match self.expect {
                Expect::Preface(matched) => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let n = input.len().min(PREFACE.len() - matched);
                    if input[..n] != PREFACE[matched..matched + n] {
                        return Err(Reason::PROTOCOL_ERROR);
                    }
                    *input = &input[n..];
                    self.expect = if matched + n == PREFACE.len() { Expect::Head(0) } else { Expect::Preface(matched + n) };
                }
                Expect::Head(have) => {
                    if !self.take_head(have, input)? {
                        return Ok(None);
                    }
                }
                Expect::PadLength => {
                    let Some((&padding, rest)) = input.split_first() else { return Ok(None) };
                    *input = rest;
                    return self.on_pad_length(usize::from(padding)).map(Some);
                }
                Expect::Data { left, padding } => return Ok(self.take_data(left, padding, input)),
                Expect::Payload => {
                    if input.len() + self.partial.len() < self.head.len {
                        self.partial.extend_from_slice(input);
                        *input = &[];
                        return Ok(None);
                    }
                    self.expect = Expect::Head(0);
                    if self.is_split_block() {
                        if self.take_fragment(input)? {
                            return self.finish_block().map(Some);
                        }
                    } else {
                        return self.take_whole(input).map(Some);
                    }
                }
            }
        }
    }

    /// Reads the nine bytes; true when they are complete.
    fn take_head(&mut self, have: usize, input: &mut &[u8]) -> Result<bool, Reason> {
        let n = input.len().min(HEAD_LEN - have);
        self.head_bytes[have..have + n].copy_from_slice(&input[..n]);
        *input = &input[n..];
        if have + n < HEAD_LEN {
            self.expect = Expect::Head(have + n);
            return Ok(false);
        }
        self.head = Head::parse(&self.head_bytes);
        self.partial.clear();
        self.partial.shrink_to(KEEP_CAPACITY);
        self.check_head()?;
        self.expect = match self.head.kind {
            kind::DATA if self.head.has(flag::PADDED) => Expect::PadLength,
            kind::DATA => Expect::Data { left: self.head.len, padding: 0 },
            _ => Expect::Payload,
        };
        Ok(true)
    }

    /// Rules that need only the head: sizes (§4.2, §6.x) and where the frame may stand (§6.10, §3.4).
    fn check_head(&mut self) -> Result<(), Reason> {
        let Head { len, kind, stream, flags } = self.head;
        if len > MAX_FRAME {
            return Err(Reason::FRAME_SIZE_ERROR);
        }
        if !self.settings_seen {
            if kind != kind::SETTINGS || flags & flag::ACK != 0 {
                return Err(Reason::PROTOCOL_ERROR);
            }
            self.settings_seen = true;
        }
        match self.open_block {
            Some(open) if kind != kind::CONTINUATION || stream != open.stream => return Err(Reason::PROTOCOL_ERROR),
            None if kind == kind::CONTINUATION => return Err(Reason::PROTOCOL_ERROR),
            _ => {}
        }
        let on_stream = match kind {
            kind::DATA | kind::HEADERS | kind::PRIORITY | kind::RST_STREAM | kind::CONTINUATION => Some(true),
            kind::SETTINGS | kind::PING | kind::GOAWAY => Some(false),
            kind::PUSH_PROMISE => return Err(Reason::PROTOCOL_ERROR),
            _ => None,
        };
        if on_stream.is_some_and(|wanted| wanted != (stream != 0)) {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let fits = match kind {
            kind::DATA if self.head.has(flag::PADDED) => len >= 1,
            kind::RST_STREAM | kind::WINDOW_UPDATE => len == 4,
            kind::SETTINGS if self.head.has(flag::ACK) => len == 0,
            kind::SETTINGS => len.is_multiple_of(6),
            kind::PING => len == 8,
            kind::GOAWAY => len >= 8,
            _ => true,
        };
        if fits { Ok(()) } else { Err(Reason::FRAME_SIZE_ERROR) }
    }

    fn on_pad_length(&mut self, padding: usize) -> Result<Frame<'static>, Reason> {
        // The length byte counts, and padding may fill the rest but no more (RFC 9113 §6.1).
        let body = self.head.len - 1;
        if padding > body {
            return Err(Reason::PROTOCOL_ERROR);
        }
        let whole = body == 0;
        self.expect = if whole { Expect::Head(0) } else { Expect::Data { left: body - padding, padding } };
        let end_stream = whole && self.head.has(flag::END_STREAM);
        Ok(Frame::Data { stream: self.head.stream, bytes: &[], flow: 1, end_stream, worth: body - padding })
    }

    fn take_data<'a>(&mut self, left: usize, padding: usize, input: &mut &'a [u8]) -> Option<Frame<'a>> {
        if input.is_empty() && left + padding > 0 {
            return None;
        }
        // Told once for a frame, with its first piece; a padded one began with the length of the padding.
        let is_first = left == self.head.len && !self.head.has(flag::PADDED);
        let worth = if is_first { left } else { usize::MAX };
        let (bytes, rest) = input.split_at(input.len().min(left));
        let skipped = if bytes.len() == left { rest.len().min(padding) } else { 0 };
        *input = &rest[skipped..];
        let (left, padding) = (left - bytes.len(), padding - skipped);
        let whole = left + padding == 0;
        self.expect = if whole { Expect::Head(0) } else { Expect::Data { left, padding } };
        #[allow(clippy::cast_possible_truncation, reason = "a piece is at most MAX_FRAME long")]
        let flow = (bytes.len() + skipped) as u32;
        Some(Frame::Data { stream: self.head.stream, bytes, flow, end_stream: whole && self.head.has(flag::END_STREAM), worth })
    }

    /// Is the current frame part of a header block of several frames?
    fn is_split_block(&self) -> bool {
        self.head.kind == kind::CONTINUATION || (self.head.kind == kind::HEADERS && !self.head.has(flag::END_HEADERS))
    }

    /// Takes one frame into the block; true when the block is complete.
    fn take_fragment(&mut self, input: &mut &[u8]) -> Result<bool, Reason> {
        let mut partial = std::mem::take(&mut self.partial);
        let rest = take(input, self.head.len - partial.len());
        let outcome = self.append_fragment(joined(&mut partial, rest));
        self.partial = partial;
        outcome?;
        Ok(self.head.has(flag::END_HEADERS))
    }

    fn append_fragment(&mut self, payload: &[u8]) -> Result<(), Reason> {
        let head = self.head;
        let Some(open) = &mut self.open_block else {
            let (fragment, self_dependent) = strip_headers(head, payload)?;
            self.block.clear();
            self.block.shrink_to(KEEP_CAPACITY);
            self.block.extend_from_slice(fragment);
            let end_stream = head.has(flag::END_STREAM);
            self.open_block = Some(OpenBlock { stream: head.stream, end_stream, frames: 0, self_dependent });
            return Ok(());
        };
        open.frames += 1;
        if open.frames > self.max_continuations || self.block.len() + payload.len() > self.max_block {
            return Err(Reason::ENHANCE_YOUR_CALM);
        }
        self.block.extend_from_slice(payload);
        Ok(())
    }

    fn finish_block(&mut self) -> Result<Frame<'_>, Reason> {
        let Some(OpenBlock { stream, end_stream, self_dependent, .. }) = self.open_block.take() else {
            return Err(Reason::INTERNAL_ERROR);
        };
        Ok(Frame::Headers { stream, block: &self.block, end_stream, self_dependent })
    }

    /// Hands on a frame that needs no other.
    fn take_whole<'a, 'b: 'a>(&'a mut self, input: &mut &'b [u8]) -> Result<Frame<'a>, Reason> {
        let head = self.head;
        let rest = take(input, head.len - self.partial.len());
        let payload = joined(&mut self.partial, rest);
        let word = |at: usize| payload.get(at..at + 4).map_or(0, |b| u32::from_be_bytes([b[0], b[1], b[2], b[3]]));
        let stream = head.stream;
        Ok(match head.kind {
            kind::HEADERS => {
                let (block, self_dependent) = strip_headers(head, payload)?;
                Frame::Headers { stream, block, end_stream: head.has(flag::END_STREAM), self_dependent }
            }
            kind::PRIORITY if head.len != 5 => Frame::Faulty { stream, reason: Reason::FRAME_SIZE_ERROR },
            kind::PRIORITY if word(0) & MAX_WINDOW == stream => Frame::Faulty { stream, reason: Reason::PROTOCOL_ERROR },
            kind::RST_STREAM => Frame::Reset { stream, reason: Reason(word(0)) },
            kind::SETTINGS if head.has(flag::ACK) => Frame::SettingsAck,
            kind::SETTINGS => Frame::Settings { payload },
            kind::PING => {
                let mut opaque = [0; 8];
                opaque.copy_from_slice(payload);
                Frame::Ping { ack: head.has(flag::ACK), opaque }
            }
            kind::GOAWAY => Frame::GoAway { last: word(0) & MAX_WINDOW },
            kind::WINDOW_UPDATE => Frame::WindowUpdate { stream, increment: word(0) & MAX_WINDOW },
            // Kinds we do not know are ignored (RFC 9113 §5.5), and so are priorities (§5.3.2).
            _ => Frame::Ignored,
        })
    }
}

/// Cuts `n` bytes off the front of `input`.
fn take<'a>(input: &mut &'a [u8], n: usize) -> &'a [u8] {
    let (front, rest) = input.split_at(n);
    *input = rest;
    front
}

/// A payload that came in one read as it is, or the parts of a split one put together.
fn joined<'a>(partial: &'a mut Vec<u8>, rest: &'a [u8]) -> &'a [u8] {
    if partial.is_empty() {
        return rest;
    }
    partial.extend_from_slice(rest);
    partial
}

/// Takes padding and priority off a HEADERS payload (RFC 9113 §6.2).
fn strip_headers(head: Head, payload: &[u8]) -> Result<(&[u8], bool), Reason> {
    let mut fragment = payload;
    if head.has(flag::PADDED) {
        let (&padding, rest) = fragment.split_first().ok_or(Reason::FRAME_SIZE_ERROR)?;
        let keep = rest.len().checked_sub(usize::from(padding)).ok_or(Reason::PROTOCOL_ERROR)?;
        fragment = &rest[..keep];
    }
    let mut self_dependent = false;
    if head.has(flag::PRIORITY) {
        let (priority, rest) = fragment.split_at_checked(5).ok_or(Reason::FRAME_SIZE_ERROR)?;
        let depends_on = u32::from_be_bytes([priority[0], priority[1], priority[2], priority[3]]) & MAX_WINDOW;
        self_dependent = depends_on == head.stream;
        fragment = rest;
    }
    Ok((fragment, self_dependent))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http2::frame::{put_head, put_ping, put_settings};

    /// Feeds `bytes` in chunks of `step` and writes down what comes out, DATA pieces joined.
    fn log(bytes: &[u8], step: usize) -> Vec<String> {
        let mut inbound = Inbound::server(64 * 1024, 5);
        let mut seen: Vec<String> = Vec::new();
        let mut body = Vec::new();
        for mut chunk in bytes.chunks(step) {
            loop {
                match inbound.poll(&mut chunk) {
                    Ok(None) => break,
                    Ok(Some(Frame::Data { stream, bytes, end_stream, .. })) => {
                        body.extend_from_slice(bytes);
                        if end_stream {
                            seen.push(format!("data {stream} {:?}", std::mem::take(&mut body)));
                        }
                    }
                    Ok(Some(frame)) => seen.push(format!("{frame:?}")),
                    Err(reason) => {
                        seen.push(format!("error {reason:?}"));
                        return seen;
                    }
                }
            }
        }
        seen
    }

    fn sample() -> Vec<u8> {
        let mut out = PREFACE.to_vec();
        put_settings(&mut out, &[(4, 70_000)]);
        put_head(&mut out, 3, kind::HEADERS, 0, 1);
        out.extend_from_slice(b"abc");
        put_head(&mut out, 2, kind::CONTINUATION, flag::END_HEADERS, 1);
        out.extend_from_slice(b"de");
        put_head(&mut out, 8, kind::DATA, flag::PADDED | flag::END_STREAM, 1);
        out.extend_from_slice(&[3, b'w', b'x', b'y', b'z', 0, 0, 0]);
        put_ping(&mut out, false, *b"12345678");
        put_head(&mut out, 5, 0x77, 0, 9);
        out.extend_from_slice(b"?????");
        put_head(&mut out, 0, kind::DATA, flag::END_STREAM, 3);
        out
    }

    #[test]
    fn same_frames_however_the_bytes_are_cut() {
        let bytes = sample();
        let whole = log(&bytes, bytes.len());
        assert_eq!(whole.len(), 6, "{whole:?}");
        for step in 1..bytes.len() {
            assert_eq!(log(&bytes, step), whole, "step {step}");
        }
    }

    #[test]
    fn a_flood_of_continuations_is_cut_off() {
        let mut out = PREFACE.to_vec();
        put_settings(&mut out, &[]);
        put_head(&mut out, 0, kind::HEADERS, 0, 1);
        for _ in 0..100 {
            put_head(&mut out, 0, kind::CONTINUATION, 0, 1);
        }
        let seen = log(&out, out.len());
        assert_eq!(seen.last().map(String::as_str), Some("error Reason(11)"));
    }

    #[test]
    fn misplaced_and_missized_frames_are_connection_errors() {
        let case = |kind: u8, flags: u8, stream: u32, payload: &[u8]| {
            let mut out = PREFACE.to_vec();
            put_settings(&mut out, &[]);
            put_head(&mut out, payload.len(), kind, flags, stream);
            out.extend_from_slice(payload);
            log(&out, out.len()).pop()
        };
        assert_eq!(case(kind::PING, 0, 0, b"short").as_deref(), Some("error Reason(6)"));
        assert_eq!(case(kind::PING, 0, 1, b"12345678").as_deref(), Some("error Reason(1)"));
        assert_eq!(case(kind::DATA, 0, 0, b"x").as_deref(), Some("error Reason(1)"));
        assert_eq!(case(kind::DATA, flag::PADDED, 1, &[9, 1]).as_deref(), Some("error Reason(1)"));
        assert_eq!(case(kind::CONTINUATION, 0, 1, b"").as_deref(), Some("error Reason(1)"));
        assert_eq!(case(kind::PUSH_PROMISE, 0, 1, b"").as_deref(), Some("error Reason(1)"));
        assert_eq!(case(kind::SETTINGS, 0, 0, b"12345").as_deref(), Some("error Reason(6)"));
    }

    #[test]
    fn the_first_frame_must_be_settings() {
        let mut out = PREFACE.to_vec();
        put_ping(&mut out, false, [0; 8]);
        assert_eq!(log(&out, out.len()), ["error Reason(1)"]);
        assert_eq!(log(b"GET / HTTP/1.1\r\n", 5), ["error Reason(1)"]);
    }
}
