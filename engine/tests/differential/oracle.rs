//! The other side: the h2 crate on a pipe, polled by hand until nothing moves.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use h2::{RecvStream, SendStream, client, server};
use http::{HeaderMap, Request, Response};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf};

use super::outcome::{Message, Outcome};
use super::pieces::*;
use super::script::{Step, path};

const WINDOW: u32 = 64 * 1024;
const PIPE: usize = 1 << 20;
/// Polls after which nothing moves any more: each moves at least one frame.
const ROUNDS: usize = 6;

/// The end of the pipe that the test has, and what h2 said on it.
struct Pipe {
    near: DuplexStream,
    said: Vec<u8>,
    is_client: bool,
    resets: Vec<(u32, u32)>,
    goaway: Option<u32>,
}

impl Pipe {
    fn write(&mut self, mut bytes: &[u8]) {
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(Ok(n @ 1..)) = Pin::new(&mut self.near).poll_write(&mut cx, bytes) {
            bytes = &bytes[n..];
        }
    }

    /// Reads frames that h2 wrote.
    fn read(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let mut space = [0; 4_096];
        loop {
            let mut buffer = ReadBuf::new(&mut space);
            match Pin::new(&mut self.near).poll_read(&mut cx, &mut buffer) {
                Poll::Ready(Ok(())) if !buffer.filled().is_empty() => self.said.extend_from_slice(buffer.filled()),
                _ => break,
            }
        }
        if self.is_client && self.said.len() >= PREFACE.len() {
            self.is_client = false;
            self.said.drain(..PREFACE.len());
        }
        while let Some((head, rest)) = self.said.split_at_checked(9) {
            let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let Some(payload) = rest.get(..len) else { break };
            let word = |at: usize| u32::from_be_bytes([payload[at], payload[at + 1], payload[at + 2], payload[at + 3]]);
            match head[3] {
                RST_STREAM => self.resets.push((stream, word(0))),
                GOAWAY if word(4) != 0 => self.goaway = Some(word(4)),
                _ => {}
            }
            self.said.drain(..9 + len);
        }
    }

    /// A stream error that h2 tells its user; it may not tell the other side, when the stream is closed anyway.
    fn note(&mut self, stream: u32, error: &h2::Error) {
        if let Some(reason) = error.reason().filter(|_| error.is_library() && error.is_reset()) {
            self.resets.push((stream, reason.into()));
        }
    }
}

/// A message being read, and the stream it comes on.
struct Reading {
    key: String,
    message: Message,
    body: RecvStream,
    error: Option<h2::Error>,
}

impl Reading {
    fn new(key: String, pseudos: &[(&str, String)], headers: &HeaderMap, body: RecvStream) -> Self {
        let mut message = Message::default();
        message.fields.extend(pseudos.iter().map(|(name, value)| ((*name).to_owned(), value.clone())));
        take_fields(&mut message, headers);
        Self { key, message, body, error: None }
    }

    fn poll(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        let body = &mut self.body;
        loop {
            match body.poll_data(&mut cx) {
                Poll::Ready(Some(Ok(bytes))) => {
                    body.flow_control().release_capacity(bytes.len()).unwrap();
                    self.message.body.extend_from_slice(&bytes);
                }
                Poll::Ready(None) => break,
                Poll::Ready(Some(Err(error))) => {
                    self.error = Some(error);
                    return;
                }
                Poll::Pending => return,
            }
        }
        match body.poll_trailers(&mut cx) {
            Poll::Ready(Ok(Some(trailers))) => {
                take_fields(&mut self.message, &trailers);
                self.message.is_whole = true;
            }
            Poll::Ready(Ok(None)) => self.message.is_whole = true,
            Poll::Ready(Err(error)) => self.error = Some(error),
            Poll::Pending => {}
        }
    }
}

fn take_fields(message: &mut Message, headers: &HeaderMap) {
    for (name, value) in headers {
        message.fields.push((name.to_string(), String::from_utf8_lossy(value.as_bytes()).into_owned()));
        if value.is_sensitive() {
            message.never.push(name.to_string());
        }
    }
    message.fields.sort();
}

/// h2 as a server.
pub struct Server {
    pipe: Pipe,
    handshake: Option<server::Handshake<DuplexStream, Bytes>>,
    conn: Option<server::Connection<DuplexStream, Bytes>>,
    requests: Vec<Asked>,
}

/// A request, and its answer as soon as there is one.
struct Asked {
    reading: Reading,
    respond: server::SendResponse<Bytes>,
    answer: Option<Result<SendStream<Bytes>, h2::Error>>,
}

impl Server {
    pub fn new() -> Self {
        let (near, far) = tokio::io::duplex(PIPE);
        let handshake = server::Builder::new()
            .initial_window_size(WINDOW)
            .initial_connection_window_size(16 << 20)
            .max_concurrent_streams(100)
            .max_header_list_size(64 * 1024)
            .max_local_error_reset_streams(None)
            .max_pending_accept_reset_streams(1_000)
            .handshake(far);
        let mut pipe = Pipe { near, said: Vec::new(), is_client: false, resets: Vec::new(), goaway: None };
        pipe.write(PREFACE);
        let mut settings = Vec::new();
        put_settings(&mut settings, &[(4, 65_535)]);
        pipe.write(&settings);
        Self { pipe, handshake: Some(handshake), conn: None, requests: Vec::new() }
    }

    pub fn take(&mut self, step: &Step, outcome: &mut Outcome) {
        self.pipe.write(&step.bytes);
        for _ in 0..ROUNDS {
            self.poll();
            self.pipe.read();
        }
        let messages = self.requests.iter().map(|asked| (asked.reading.key.clone(), asked.reading.message.clone()));
        outcome.update(messages, &self.pipe.resets, self.pipe.goaway);
    }

    fn poll(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        if let Some(Poll::Ready(done)) = self.handshake.as_mut().map(|handshake| Pin::new(handshake).poll(&mut cx)) {
            self.handshake = None;
            self.conn = done.ok();
        }
        while let Some(Poll::Ready(Some(Ok((request, respond))))) = self.conn.as_mut().map(|conn| conn.poll_accept(&mut cx)) {
            let (parts, body) = request.into_parts();
            let pseudos = [
                (":method", parts.method.to_string()),
                (":path", parts.uri.path_and_query().map_or_else(String::new, ToString::to_string)),
            ];
            let reading = Reading::new(pseudos[1].1.clone(), &pseudos, &parts.headers, body);
            self.requests.push(Asked { reading, respond, answer: None });
        }
        for Asked { reading, respond, answer } in &mut self.requests {
            reading.poll();
            if let Some(error) = reading.error.take() {
                self.pipe.note(respond.stream_id().as_u32(), &error);
            }
            let due = reading.key.ends_with("early") || reading.message.is_whole && !reading.key.ends_with("never");
            if due && answer.is_none() {
                *answer = Some(respond.send_response(Response::new(()), true));
            }
        }
    }
}

/// h2 as a client, with the three requests of [`super::ours::Client`].
pub struct Client {
    pipe: Pipe,
    conn: client::Connection<DuplexStream, Bytes>,
    asked: Vec<(u32, client::ResponseFuture, SendStream<Bytes>)>,
    uploads: Vec<SendStream<Bytes>>,
    responses: Vec<Reading>,
    is_over: bool,
    _send: client::SendRequest<Bytes>,
}

impl Client {
    pub fn new() -> Self {
        let mut cx = Context::from_waker(Waker::noop());
        let (near, far) = tokio::io::duplex(PIPE);
        let mut handshake = Box::pin(
            client::Builder::new()
                .initial_window_size(256 * 1024)
                .initial_connection_window_size(16 << 20)
                .enable_push(false)
                .max_header_list_size(64 * 1024)
                .max_local_error_reset_streams(None)
                .handshake::<_, Bytes>(far),
        );
        let Poll::Ready(Ok((mut send, conn))) = handshake.as_mut().poll(&mut cx) else { panic!("the handshake of a client does not wait") };
        let mut asked = Vec::new();
        for (id, method) in [(1, "GET"), (3, "HEAD"), (5, "POST")] {
            let request = Request::builder().method(method).uri(format!("https://k{}", path(id, "never"))).body(()).unwrap();
            let (response, body) = send.send_request(request, method != "POST").unwrap();
            asked.push((id, response, body));
        }
        let pipe = Pipe { near, said: Vec::new(), is_client: true, resets: Vec::new(), goaway: None };
        let mut client = Self { pipe, conn, asked, uploads: Vec::new(), responses: Vec::new(), is_over: false, _send: send };
        for _ in 0..ROUNDS {
            client.poll();
        }
        client
    }

    pub fn take(&mut self, step: &Step, outcome: &mut Outcome) {
        self.pipe.write(&step.bytes);
        for _ in 0..ROUNDS {
            self.poll();
            self.pipe.read();
        }
        let messages = self.responses.iter().map(|reading| (reading.key.clone(), reading.message.clone()));
        outcome.update(messages, &self.pipe.resets, self.pipe.goaway);
    }

    fn poll(&mut self) {
        let mut cx = Context::from_waker(Waker::noop());
        self.is_over = self.is_over || Pin::new(&mut self.conn).poll(&mut cx).is_ready();
        for at in (0..self.asked.len()).rev() {
            if let Poll::Ready(done) = Pin::new(&mut self.asked[at].1).poll(&mut cx) {
                let (id, _, stream) = self.asked.remove(at);
                match done {
                    Err(error) => self.pipe.note(id, &error),
                    Ok(response) => {
                        let (parts, body) = response.into_parts();
                        let pseudos = [(":status", parts.status.as_str().to_owned())];
                        self.responses.push(Reading::new(id.to_string(), &pseudos, &parts.headers, body));
                    }
                }
                // An upload that is dropped is cancelled.
                self.uploads.push(stream);
            }
        }
        for reading in &mut self.responses {
            reading.poll();
            if let Some(error) = reading.error.take() {
                self.pipe.note(reading.key.parse().unwrap(), &error);
            }
        }
    }
}
