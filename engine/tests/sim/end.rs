//! One end of an HTTP/2 connection with the core at the other: small, strict, and written apart from the code it tests.
//!
//! It panics as soon as the core breaks a rule: frame sizes, windows, the order of frames on a stream, stream ids, the
//! limit of streams, content-length, acknowledgements.

use std::collections::{BTreeMap, VecDeque};

use engine::http2::hpack::{Decoded, Decoder, Encoder, Field, HeaderBlock};

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
pub const INITIAL_WINDOW: u16 = 4;
pub const MAX_STREAMS: u16 = 3;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// What the core sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    Head { stream: u32, fields: Vec<(String, String)>, end: bool },
    Trailers { stream: u32, fields: Vec<(String, String)> },
    Data { stream: u32, bytes: Vec<u8>, end: bool },
    Reset { stream: u32, code: u32 },
    GoAway { last: u32, code: u32 },
}

/// How a header block is put into frames.
#[derive(Clone, Copy, Default)]
pub struct HeadStyle {
    /// Into so many frames.
    pub parts: usize,
    pub padding: Option<u8>,
    pub priority: bool,
}

/// A stream as this end sees it.
#[derive(Default, Debug)]
pub struct Stream {
    /// What the core may still send, and what we may.
    pub recv_window: i64,
    pub send_window: i64,
    head_seen: bool,
    body_left: Option<u64>,
    pub bodiless: bool,
    pub core_ended: bool,
    pub core_reset: Option<u32>,
    pub ended: bool,
    pub reset: bool,
}

impl Stream {
    pub fn is_open(&self) -> bool {
        !(self.reset || self.core_reset.is_some() || self.ended && self.core_ended)
    }
}

/// A fake end.
pub struct End {
    is_server: bool,
    input: Vec<u8>,
    /// Bytes for the core.
    pub out: Vec<u8>,
    encoder: Encoder,
    decoder: Decoder,
    pub streams: BTreeMap<u32, Stream>,
    next_stream: u32,
    last_seen: u32,
    block: Option<(u32, u8, Vec<u8>)>,
    preface_seen: bool,
    settings_seen: bool,
    /// What the core lets us send, and we it.
    pub send_window: i64,
    send_initial: i64,
    pub recv_window: i64,
    /// In force at the core, because it acknowledged them; and sent but not acknowledged.
    recv_initial: i64,
    max_streams: usize,
    unacked: VecDeque<Vec<(u16, u32)>>,
    pub core_goaway: Option<u32>,
    /// Body and padding bytes taken from the core.
    pub taken: u64,
    pub pings: u64,
    pub answers_pings: bool,
}

impl End {
    fn new(is_server: bool, settings: &[(u16, u32)]) -> Self {
        let mut end = Self {
            is_server,
            input: Vec::new(),
            out: Vec::new(),
            encoder: Encoder::new(),
            decoder: Decoder::new(4_096),
            streams: BTreeMap::new(),
            next_stream: 1,
            last_seen: 0,
            block: None,
            preface_seen: !is_server,
            settings_seen: false,
            send_window: 65_535,
            send_initial: 65_535,
            recv_window: 65_535,
            recv_initial: 65_535,
            max_streams: usize::MAX,
            unacked: VecDeque::new(),
            core_goaway: None,
            taken: 0,
            pings: 0,
            answers_pings: true,
        };
        if !is_server {
            end.out.extend_from_slice(PREFACE);
        }
        end.settings(settings);
        end
    }

    pub fn client(settings: &[(u16, u32)]) -> Self {
        Self::new(false, settings)
    }

    pub fn server(settings: &[(u16, u32)]) -> Self {
        Self::new(true, settings)
    }

    pub fn frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        self.out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
        self.out.extend_from_slice(&[kind, flags]);
        self.out.extend_from_slice(&stream.to_be_bytes());
        self.out.extend_from_slice(payload);
    }

    pub fn settings(&mut self, pairs: &[(u16, u32)]) {
        let payload: Vec<u8> = pairs.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()[..]].concat()).collect();
        self.frame(4, 0, 0, &payload);
        self.unacked.push_back(pairs.to_vec());
    }

    pub fn all_settings_acked(&self) -> bool {
        self.unacked.is_empty()
    }

    pub fn ping(&mut self) {
        self.frame(6, 0, 0, b"sim ping");
    }

    pub fn goaway(&mut self, last: u32, code: u32) {
        self.frame(7, 0, 0, &[last.to_be_bytes(), code.to_be_bytes()].concat());
    }

    /// Lets the core send `n` more; stream 0 is the connection.
    pub fn grant(&mut self, stream: u32, n: u32) {
        self.frame(8, 0, stream, &n.to_be_bytes());
        match stream {
            0 => self.recv_window += i64::from(n),
            _ => self.streams.get_mut(&stream).unwrap().recv_window += i64::from(n),
        }
    }

    pub fn reset(&mut self, stream: u32, code: u32) {
        self.frame(3, 0, stream, &code.to_be_bytes());
        self.streams.get_mut(&stream).unwrap().reset = true;
    }

    /// Opens a stream with a request head.
    pub fn open(&mut self, fields: &[(&str, &str)], end: bool, style: HeadStyle) -> u32 {
        let stream = self.next_stream;
        self.next_stream += 2;
        let entry = Stream { recv_window: self.recv_initial, send_window: self.send_initial, ..Stream::default() };
        self.streams.insert(stream, entry);
        self.headers(stream, fields, end, style);
        self.streams.get_mut(&stream).unwrap().bodiless = fields.contains(&(":method", "HEAD"));
        stream
    }

    pub fn headers(&mut self, stream: u32, fields: &[(&str, &str)], end: bool, style: HeadStyle) {
        let mut block = Vec::new();
        self.encoder.begin(&mut block);
        for (name, value) in fields {
            self.encoder.field(Field::new(name.as_bytes(), value.as_bytes()), &mut block);
        }
        let parts = style.parts.clamp(1, block.len());
        let step = block.len().div_ceil(parts);
        let mut chunks = block.chunks(step).peekable();
        let mut first = true;
        while let Some(chunk) = chunks.next() {
            let last = if chunks.peek().is_none() { END_HEADERS } else { 0 };
            if !first {
                self.frame(9, last, stream, chunk);
                continue;
            }
            first = false;
            let mut flags = last | if end { END_STREAM } else { 0 };
            let mut payload = Vec::new();
            if let Some(padding) = style.padding {
                flags |= PADDED;
                payload.push(padding);
            }
            if style.priority {
                flags |= PRIORITY;
                payload.extend_from_slice(&[0, 0, 0, 0, 15]);
            }
            payload.extend_from_slice(chunk);
            payload.resize(payload.len() + usize::from(style.padding.unwrap_or(0)), 0);
            self.frame(HEADERS, flags, stream, &payload);
        }
        if end {
            self.streams.get_mut(&stream).unwrap().ended = true;
        }
    }

    /// Bytes we may send on a stream now.
    pub fn room(&self, stream: u32) -> usize {
        let stream = &self.streams[&stream];
        usize::try_from(stream.send_window.min(self.send_window)).unwrap_or(0).min(16_384)
    }

    /// Sends DATA; with padding it takes `bytes.len() + 1 + padding` of the windows.
    pub fn data(&mut self, stream: u32, bytes: &[u8], end: bool, padding: Option<u8>) {
        let mut payload = Vec::with_capacity(bytes.len() + 256);
        let mut flags = if end { END_STREAM } else { 0 };
        if let Some(padding) = padding {
            flags |= PADDED;
            payload.push(padding);
        }
        payload.extend_from_slice(bytes);
        payload.resize(payload.len() + usize::from(padding.unwrap_or(0)), 0);
        self.frame(DATA, flags, stream, &payload);
        self.send_window -= payload.len() as i64;
        let entry = self.streams.get_mut(&stream).unwrap();
        entry.send_window -= payload.len() as i64;
        entry.ended |= end;
    }

    /// Takes bytes from the core.
    pub fn receive(&mut self, bytes: &[u8]) -> Vec<Event> {
        self.input.extend_from_slice(bytes);
        let mut events = Vec::new();
        let mut at = 0;
        if !self.preface_seen {
            let n = self.input.len().min(PREFACE.len());
            assert_eq!(&self.input[..n], &PREFACE[..n], "preface");
            if n < PREFACE.len() {
                return events;
            }
            self.preface_seen = true;
            at = n;
        }
        let input = std::mem::take(&mut self.input);
        while let Some(head) = input.get(at..at + 9) {
            let len = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            assert!(len <= 16_384, "frame of {len} bytes");
            let Some(payload) = input.get(at + 9..at + 9 + len) else { break };
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            self.on_frame(head[3], head[4], stream, payload, &mut events);
            at += 9 + len;
        }
        self.input = input[at..].to_vec();
        events
    }

    fn on_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8], events: &mut Vec<Event>) {
        if !self.settings_seen {
            assert!(kind == 4 && flags & 1 == 0, "the first frame is SETTINGS, not {kind}");
            self.settings_seen = true;
        }
        let continues = kind == 9;
        assert_eq!(self.block.is_some(), continues, "CONTINUATION exactly while a block is open");
        match kind {
            DATA => self.on_data(stream, payload, flags & END_STREAM != 0, events),
            HEADERS => {
                assert_eq!(flags & (PADDED | PRIORITY), 0);
                self.block = Some((stream, flags & END_STREAM, payload.to_vec()));
                self.finish_block(flags, events);
            }
            3 => self.on_reset(stream, word(payload), events),
            4 => self.on_settings(flags, stream, payload),
            6 => {
                assert_eq!((payload.len(), stream), (8, 0));
                self.pings += u64::from(flags & 1 == 0);
                if flags & 1 == 0 && self.answers_pings {
                    self.frame(6, 1, 0, payload);
                }
            }
            7 => {
                let last = word(payload);
                assert!(self.core_goaway.is_none_or(|before| last <= before), "GOAWAY's last id rises");
                self.core_goaway = Some(last);
                events.push(Event::GoAway { last, code: word(&payload[4..]) });
            }
            8 => self.on_window_update(stream, word(payload)),
            9 => {
                let block = self.block.as_mut().unwrap();
                assert_eq!(block.0, stream);
                block.2.extend_from_slice(payload);
                self.finish_block(flags, events);
            }
            _ => panic!("frame kind {kind}"),
        }
    }

    fn on_data(&mut self, id: u32, payload: &[u8], end: bool, events: &mut Vec<Event>) {
        self.taken += payload.len() as u64;
        self.recv_window -= payload.len() as i64;
        assert!(self.recv_window >= 0, "connection window exceeded");
        assert!(end || !payload.is_empty(), "an empty DATA frame that ends nothing");
        let stream = self.streams.get_mut(&id).expect("DATA on an idle stream");
        stream.recv_window -= payload.len() as i64;
        assert!(payload.is_empty() || stream.recv_window >= 0, "window of stream {id} exceeded");
        assert!(stream.head_seen, "DATA before HEADERS");
        assert!(!stream.core_ended && stream.core_reset.is_none(), "DATA after the end of stream {id}: {stream:?}");
        if let Some(left) = &mut stream.body_left {
            *left = left.checked_sub(payload.len() as u64).expect("more than content-length");
            assert!(!end || *left == 0, "less than content-length");
        }
        stream.core_ended = end;
        if !stream.reset {
            events.push(Event::Data { stream: id, bytes: payload.to_vec(), end });
        }
    }

    fn finish_block(&mut self, flags: u8, events: &mut Vec<Event>) {
        if flags & END_HEADERS == 0 {
            return;
        }
        let (id, end, block) = self.block.take().unwrap();
        let end = end != 0;
        let mut list = HeaderBlock::default();
        assert_eq!(self.decoder.decode(&block, 1 << 20, &mut list), Ok(Decoded::Complete));
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let fields: Vec<_> = list.iter().map(|field| (text(field.name), text(field.value))).collect();
        if self.is_server && !self.streams.contains_key(&id) {
            self.on_new_stream(id);
        }
        let stream = self.streams.get_mut(&id).expect("HEADERS on an idle stream");
        assert!(!stream.core_ended && stream.core_reset.is_none(), "HEADERS after the end of stream {id}: {stream:?}");
        stream.core_ended = end;
        let ignored = stream.reset;
        if stream.head_seen {
            assert!(end, "trailers without END_STREAM");
            assert!(stream.body_left.is_none_or(|left| left == 0), "trailers before all of content-length");
            assert!(fields.iter().all(|(name, _)| !name.starts_with(':')), "pseudo-header in trailers");
            if !ignored {
                events.push(Event::Trailers { stream: id, fields });
            }
            return;
        }
        let status = fields.iter().find(|(name, _)| name == ":status").map(|(_, value)| value.as_str());
        let interim = status.is_some_and(|status| status.starts_with('1'));
        assert!(!(interim && end));
        if !interim {
            stream.head_seen = true;
            let bodiless = stream.bodiless || matches!(status, Some("204" | "304"));
            let length = fields.iter().find(|(name, _)| name == "content-length").map(|(_, value)| value.parse().unwrap());
            stream.body_left = if bodiless { Some(0) } else { length };
            assert!(!end || stream.body_left.is_none_or(|left| left == 0), "END_STREAM before content-length");
        }
        if !ignored {
            events.push(Event::Head { stream: id, fields, end });
        }
    }

    fn on_new_stream(&mut self, id: u32) {
        assert!(id % 2 == 1 && id > self.last_seen, "stream {id} after {}", self.last_seen);
        self.last_seen = id;
        let open = self.streams.values().filter(|stream| stream.is_open()).count();
        assert!(open < self.max_streams, "{open} streams are open, {} allowed", self.max_streams);
        let entry = Stream { recv_window: self.recv_initial, send_window: self.send_initial, ..Stream::default() };
        self.streams.insert(id, entry);
    }

    fn on_reset(&mut self, id: u32, code: u32, events: &mut Vec<Event>) {
        let stream = self.streams.get_mut(&id).expect("RST_STREAM on an idle stream");
        // STREAM_CLOSED may answer each late frame.
        assert!(stream.core_reset.is_none() || code == 5, "reset twice");
        let ignored = stream.reset || stream.core_reset.is_some() || (stream.ended && stream.core_ended);
        stream.core_reset = Some(code);
        if !ignored {
            events.push(Event::Reset { stream: id, code });
        }
    }

    fn on_settings(&mut self, flags: u8, stream: u32, payload: &[u8]) {
        assert_eq!(stream, 0);
        if flags & 1 != 0 {
            for (id, value) in self.unacked.pop_front().expect("an acknowledgement of nothing") {
                match id {
                    INITIAL_WINDOW => {
                        let delta = i64::from(value) - self.recv_initial;
                        self.recv_initial = i64::from(value);
                        self.streams.values_mut().for_each(|stream| stream.recv_window += delta);
                    }
                    MAX_STREAMS => self.max_streams = value as usize,
                    _ => {}
                }
            }
            return;
        }
        for pair in payload.chunks(6) {
            let (id, value) = (u16::from_be_bytes([pair[0], pair[1]]), word(&pair[2..]));
            if id == INITIAL_WINDOW {
                let delta = i64::from(value) - self.send_initial;
                self.send_initial = i64::from(value);
                self.streams.values_mut().for_each(|stream| stream.send_window += delta);
            }
        }
        self.frame(4, 1, 0, &[]);
    }

    fn on_window_update(&mut self, id: u32, increment: u32) {
        assert!(increment > 0);
        if id == 0 {
            self.send_window += i64::from(increment);
            assert!(self.send_window <= 0x7fff_ffff);
            return;
        }
        let stream = self.streams.get_mut(&id).expect("WINDOW_UPDATE on an idle stream");
        assert!(stream.core_reset.is_none(), "WINDOW_UPDATE after RST_STREAM");
        stream.send_window += i64::from(increment);
        assert!(stream.send_window <= 0x7fff_ffff);
    }
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}
