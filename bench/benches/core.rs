//! One request after the other through the core of a shard, without sockets and TLS.
//!
//! All bytes are made beforehand, and one exchange has warmed everything up: in the measured loop only the stream ids of the made bytes
//! change, and neither the core nor the bench allocates. Small requests of different streams share nothing here: each is its own wake-up, which
//! is the dearest way.
#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::hint::black_box;
use std::time::Instant;

use bench::Fields;
use criterion::{Criterion, Throughput};
use discovery::Publisher;
use engine::Limits;
use engine::core::{Action, ConnKey, Core, Port, Protocol};
use engine::http2::hpack::{Encoder, Field};

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 0x1;
const END_HEADERS: u8 = 0x4;

/// The connection window our client grants at first, and again when half of it is used: what Go's client does.
const CLIENT_WINDOW: usize = 1 << 30;
/// Plaintext of one TLS record: the core gets its input in such pieces.
const RECORD: usize = 16_384;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let mut group = criterion.benchmark_group("core");
    for (name, length) in [("get 1 KB", 1 << 10), ("get 100 KB", 100 << 10)] {
        let mut world = World::new(length);
        group.throughput(Throughput::Bytes(length as u64));
        group.bench_function(name, |bencher| bencher.iter(|| world.exchange()));
        world.check();
    }
    group.finish();
    criterion.final_summary();
}

/// A core with one client and one server, and what these two send.
struct World {
    core: Core,
    now: Instant,
    client: ConnKey,
    server: ConnKey,
    request: Message,
    response: Message,
    /// Of both connections: each exchange opens one on either.
    next_stream: u32,
    length: usize,
    /// Body bytes the client has taken since it last granted a window.
    taken: usize,
    /// Plaintext the core wrote.
    written: usize,
    exchanges: u64,
}

impl World {
    /// Connects both sides and carries one exchange, after which the HPACK tables do not change any more.
    fn new(length: usize) -> Self {
        let now = Instant::now();
        let routes = Publisher::new(bench::large_snapshot().unwrap());
        let mut core = Core::new(Limits::default(), routes.reader(), 1, now);
        let (mut asking, mut answering) = (Encoder::new(), Encoder::new());
        let (request, response) = (bench::kubectl_request(), bench::apiserver_response(length));
        let client = core.handle_accepted(Port::Clients, None, now).unwrap();
        core.handle_established(client, Protocol::Http2, now);
        core.handle_bytes(client, &client_greeting(), now);
        let mut first_request = Message::new(&mut asking, &request, 0);
        first_request.set_stream(1);
        core.handle_bytes(client, &first_request.bytes, now);
        let Some(Action::Connect { conn: server, .. }) = core.poll_action() else { panic!("no connection was asked for") };
        core.handle_established(server, Protocol::Http2, now);
        let mut settings = Vec::new();
        frame(&mut settings, SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 100]);
        core.handle_bytes(server, &settings, now);
        let first_response = Message::new(&mut answering, &response, length);
        let mut world = Self {
            core,
            now,
            client,
            server,
            request: Message::new(&mut asking, &request, 0),
            response: first_response,
            next_stream: 1,
            length,
            taken: 0,
            written: 0,
            exchanges: 0,
        };
        world.flush();
        world.answer();
        world.response = Message::new(&mut answering, &response, length);
        world
    }

    /// One request and its whole response.
    fn exchange(&mut self) {
        self.request.set_stream(self.next_stream);
        self.core.handle_bytes(self.client, &self.request.bytes, self.now);
        self.flush();
        self.answer();
    }

    /// The server answers the request that is open.
    fn answer(&mut self) {
        self.response.set_stream(self.next_stream);
        for record in self.response.bytes.chunks(RECORD) {
            self.core.handle_bytes(self.server, record, self.now);
        }
        self.flush();
        self.next_stream += 2;
        self.exchanges += 1;
        self.taken += self.length;
        if self.taken > CLIENT_WINDOW / 2 {
            self.grant();
        }
    }

    /// What a shard does at the end of a wake-up, less TLS and the write.
    fn flush(&mut self) {
        while let Some(key) = self.core.poll_dirty() {
            let written = &mut self.written;
            if self.core.drain_output(key, |plain| *written += black_box(plain).len()) {
                self.core.handle_written(key, self.now);
            }
        }
    }

    /// Once in hundreds of megabytes.
    #[cold]
    fn grant(&mut self) {
        let mut update = Vec::new();
        frame(&mut update, WINDOW_UPDATE, 0, 0, &u32::try_from(self.taken).unwrap().to_be_bytes());
        self.core.handle_bytes(self.client, &update, self.now);
        self.taken = 0;
    }

    /// Every exchange was carried to its end, and all of its bytes came through.
    fn check(&self) {
        let counters = self.core.counters();
        assert_eq!((counters.requests, counters.refused, counters.retried), (self.exchanges, 0, 0));
        assert_eq!(counters.body_received, self.exchanges * self.length as u64);
        assert_eq!(self.core.in_use(), (2, 0, 0));
        assert!(self.written as u64 > counters.body_received);
    }
}

/// Frames of one stream, whose id can be changed.
struct Message {
    bytes: Vec<u8>,
    /// Where the frames begin.
    heads: Vec<usize>,
}

impl Message {
    /// A head, and a body in full frames.
    fn new(encoder: &mut Encoder, fields: &Fields, length: usize) -> Self {
        let mut block = Vec::new();
        encoder.begin(&mut block);
        for (name, value) in fields {
            encoder.field(Field::new(name.as_bytes(), value.as_bytes()), &mut block);
        }
        let mut message = Self { bytes: Vec::new(), heads: Vec::new() };
        let end = if length == 0 { END_STREAM } else { 0 };
        message.push(HEADERS, END_HEADERS | end, &block);
        let body = vec![b'x'; length];
        let mut parts = body.chunks(RECORD).peekable();
        while let Some(part) = parts.next() {
            message.push(DATA, if parts.peek().is_none() { END_STREAM } else { 0 }, part);
        }
        message
    }

    fn push(&mut self, kind: u8, flags: u8, payload: &[u8]) {
        self.heads.push(self.bytes.len());
        frame(&mut self.bytes, kind, flags, 0, payload);
    }

    fn set_stream(&mut self, stream: u32) {
        for &head in &self.heads {
            self.bytes[head + 5..head + 9].copy_from_slice(&stream.to_be_bytes());
        }
    }
}

/// The preface, a stream window of 4 MiB and the connection window.
fn client_greeting() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    frame(&mut bytes, SETTINGS, 0, 0, &[0, 4, 0, 0x40, 0, 0]);
    frame(&mut bytes, WINDOW_UPDATE, 0, 0, &u32::try_from(CLIENT_WINDOW).unwrap().to_be_bytes());
    bytes
}

/// Appends a frame (RFC 9113 §4.1).
fn frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&u32::try_from(payload.len()).unwrap().to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}
