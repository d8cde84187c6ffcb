//! Reads what the core sends on one connection, and fails when it breaks a rule, whatever it was sent.
//!
//! The rules: frames of known kinds and sizes; header blocks that decode and are well formed; streams opened in order; nothing behind
//! an end; no clean end of a body that is not as long as was said; no window exceeded of an end that behaves.

use engine::http2::hpack::{Decoded, Decoder, HeaderBlock, Token};

use super::pieces::*;

/// One stream of the connection.
pub struct Stream {
    pub id: u32,
    /// The core ended or reset its direction.
    pub is_over: bool,
    has_head: bool,
    length: Option<u64>,
    got: u64,
    /// The answer has no body whatever its content-length says (RFC 9110 §8.6): to HEAD, 204, 304, or not known here.
    pub is_bodiless: bool,
    window: i64,
    /// What the good end at the other side did.
    pub answered: bool,
    pub ended: bool,
    pub is_reset: bool,
    /// The core reset it.
    pub is_cut: bool,
    /// What the core sent, where it is kept.
    pub fields: Vec<(Vec<u8>, Vec<u8>)>,
    pub body: Vec<u8>,
    /// Names of fields that came as "never indexed".
    pub never: Vec<Vec<u8>>,
}

/// The reader of one connection.
pub struct Checker {
    is_client: bool,
    /// Does the other end behave? Then its windows are known.
    is_good: bool,
    greeted: bool,
    decoder: Decoder,
    list: HeaderBlock,
    pub streams: Vec<Stream>,
    window: i64,
    initial_window: i64,
    /// The initial window told in the first SETTINGS of a good end; it counts from the acknowledgement on.
    pub told_window: Option<i64>,
    last_opened: u32,
    block: Option<(u32, u8, Vec<u8>)>,
    /// Keep fields and bodies?
    pub keeps: bool,
    /// Streams that the core reset, with the codes, and the code of its last GOAWAY.
    pub resets: Vec<(u32, u32)>,
    pub goaway: Option<u32>,
}

impl Checker {
    pub fn new(is_client: bool, is_good: bool) -> Self {
        Self {
            is_client,
            is_good,
            greeted: is_client,
            decoder: Decoder::new(4_096),
            list: HeaderBlock::default(),
            streams: Vec::new(),
            window: 65_535,
            initial_window: 65_535,
            told_window: None,
            last_opened: 0,
            block: None,
            keeps: false,
            resets: Vec::new(),
            goaway: None,
        }
    }

    /// What the core wrote: always whole frames.
    pub fn receive(&mut self, mut bytes: &[u8]) {
        if !std::mem::replace(&mut self.greeted, true) {
            bytes = bytes.strip_prefix(PREFACE).expect("the preface comes first");
        }
        while !bytes.is_empty() {
            let (head, rest) = bytes.split_at(9);
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            assert!(len <= 16_384 && stream >> 31 == 0);
            let (payload, rest) = rest.split_at(len);
            bytes = rest;
            self.on_frame(head[3], head[4], stream, payload);
        }
    }

    /// The end at the other side opened a stream, or gave a window for one.
    pub fn grant(&mut self, stream: u32, n: u32) {
        match self.streams.iter_mut().find(|known| known.id == stream) {
            _ if stream == 0 => self.window += i64::from(n),
            Some(known) => known.window += i64::from(n),
            None => self.add(stream),
        }
    }

    pub fn stream(&mut self, id: u32) -> Option<&mut Stream> {
        self.streams.iter_mut().find(|known| known.id == id)
    }

    fn add(&mut self, id: u32) {
        let window = self.initial_window;
        let new = Stream {
            id,
            is_over: false,
            has_head: false,
            length: None,
            got: 0,
            is_bodiless: self.is_client && !self.is_good,
            window,
            answered: false,
            ended: false,
            is_reset: false,
            is_cut: false,
            fields: Vec::new(),
            body: Vec::new(),
            never: Vec::new(),
        };
        self.streams.push(new);
    }

    fn on_frame(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let word = |at: usize| u32::from_be_bytes([payload[at], payload[at + 1], payload[at + 2], payload[at + 3]]);
        assert!(self.block.is_none() || kind == CONTINUATION, "a header block is not interrupted");
        let on_stream = matches!(kind, DATA | HEADERS | RST_STREAM | CONTINUATION);
        let on_conn = matches!(kind, SETTINGS | PING | GOAWAY);
        assert!(on_stream && stream % 2 == 1 || on_conn && stream == 0 || kind == WINDOW_UPDATE, "kind {kind} on stream {stream}");
        match kind {
            DATA => self.on_data(stream, flags, payload),
            HEADERS => {
                assert_eq!(flags & !(END_STREAM | END_HEADERS), 0);
                self.block = Some((stream, flags, payload.to_vec()));
                self.end_block(flags);
            }
            CONTINUATION => {
                let (of, _, block) = self.block.as_mut().expect("a header block goes on");
                assert_eq!(*of, stream);
                block.extend_from_slice(payload);
                self.end_block(flags);
            }
            // Also of streams that this end never opened, or that ended: those it is told about.
            RST_STREAM => {
                assert_eq!(payload.len(), 4);
                self.resets.push((stream, word(0)));
                if let Some(known) = self.stream(stream) {
                    (known.is_over, known.is_cut) = (true, true);
                }
            }
            SETTINGS => {
                assert!(payload.len().is_multiple_of(6));
                if let Some(told) = self.told_window.take_if(|_| flags & ACK != 0) {
                    let delta = told - std::mem::replace(&mut self.initial_window, told);
                    self.streams.iter_mut().for_each(|stream| stream.window += delta);
                }
            }
            PING => assert_eq!(payload.len(), 8),
            GOAWAY => {
                assert_eq!(payload.len(), 8);
                self.goaway = Some(word(4));
            }
            WINDOW_UPDATE => assert!((1..1 << 31).contains(&word(0))),
            _ => panic!("kind {kind}"),
        }
    }

    fn on_data(&mut self, id: u32, flags: u8, payload: &[u8]) {
        assert_eq!(flags & !END_STREAM, 0);
        let (is_good, keeps) = (self.is_good, self.keeps);
        self.window -= payload.len() as i64;
        let within = |window: i64| !is_good || payload.is_empty() || window >= 0;
        assert!(within(self.window), "the window of the connection is exceeded");
        let stream = self.stream(id).expect("DATA of a stream with a head");
        assert!(stream.has_head && !stream.is_over, "DATA before the head or behind the end");
        stream.window -= payload.len() as i64;
        assert!(within(stream.window), "the window of the stream is exceeded");
        stream.got += payload.len() as u64;
        if keeps {
            stream.body.extend_from_slice(payload);
        }
        if flags & END_STREAM != 0 {
            stream.is_over = true;
            stream.check_length();
        }
    }

    fn end_block(&mut self, flags: u8) {
        if flags & END_HEADERS == 0 {
            return;
        }
        let (id, first_flags, block) = self.block.take().unwrap();
        self.list.clear();
        assert_eq!(self.decoder.decode(&block, 1 << 20, &mut self.list), Ok(Decoded::Complete));
        if !self.is_client && id > self.last_opened {
            self.last_opened = id;
            self.add(id);
        } else if self.is_client && self.stream(id).is_none() {
            self.add(id);
        }
        let end = first_flags & END_STREAM != 0;
        let (is_client, keeps, list) = (self.is_client, self.keeps, std::mem::take(&mut self.list));
        let stream = self.stream(id).expect("streams are opened in order");
        assert!(!stream.is_over, "HEADERS behind the end");
        let interim = is_client && list.first(Token::STATUS).is_some_and(|status| status[0] == b'1');
        let trailers = stream.has_head;
        assert!(!trailers || end, "only trailers follow a head, and they end the stream");
        assert!(!(interim && end));
        check_list(&list, is_client, trailers);
        if keeps && !interim {
            stream.fields.extend(list.iter().map(|field| (field.name.to_vec(), field.value.to_vec())));
            stream.never.extend(list.iter().filter(|field| field.never_indexed).map(|field| field.name.to_vec()));
        }
        if !interim && !trailers {
            stream.has_head = true;
            stream.is_bodiless |= matches!(list.first(Token::STATUS), Some(b"204" | b"304"));
            stream.length = list.first(Token::CONTENT_LENGTH).map(|text| std::str::from_utf8(text).unwrap().parse().unwrap());
        }
        if end {
            stream.is_over = true;
            stream.check_length();
        }
        self.list = list;
    }
}

impl Stream {
    /// A body that ends cleanly is as long as was said.
    fn check_length(&self) {
        let right = self.length.is_none_or(|length| length == self.got || self.is_bodiless && self.got == 0);
        assert!(right, "a clean end after {} of {:?} bytes", self.got, self.length);
    }
}

/// What a next hop must be able to rely on (RFC 9113 §8.2, §8.3; threats.md §3).
fn check_list(list: &HeaderBlock, is_client: bool, trailers: bool) {
    let mut regular = false;
    for field in list.iter() {
        assert!(field.valid && field.name.iter().all(|b| !b.is_ascii_uppercase()), "{field:?}");
        regular |= !field.token.is_pseudo();
        assert!(regular || !trailers, "a pseudo-header in trailers");
        assert!(!(regular && field.token.is_pseudo()), "a pseudo-header behind a field");
        let hop = [Token::CONNECTION, Token::KEEP_ALIVE, Token::PROXY_CONNECTION, Token::TRANSFER_ENCODING, Token::UPGRADE];
        assert!(!hop.contains(&field.token), "{field:?}");
        assert!(is_client || field.token != Token::X_REMOTE, "an identity from a client: {field:?}");
    }
    let count = |token| list.iter().filter(|field| field.token == token).count();
    let want = if is_client { [0, 0, 0, 1] } else { [1, 1, 1, 0] };
    let got = [Token::METHOD, Token::SCHEME, Token::PATH, Token::STATUS].map(count);
    assert!(trailers || got == want, "{got:?}");
    assert!(count(Token::CONTENT_LENGTH) <= usize::from(!trailers) && count(Token::AUTHORITY) <= 1);
}
