//! A client that writes frames of HTTP/2 as they are asked for, whatever their sense.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::client::TlsStream;

use super::{World, eventually, raw};

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;

/// ENHANCE_YOUR_CALM (RFC 9113 §7).
pub const CALM: u32 = 11;

/// A frame (RFC 9113 §4.1).
pub fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = vec![length[1], length[2], length[3], kind, flags];
    frame.extend(stream.to_be_bytes());
    frame.extend(payload);
    frame
}

/// The block of a request, without the dynamic table (RFC 7541 §6.2.2): `0x82` is GET, `0x83` POST.
pub fn block(method: u8, path: &str) -> Vec<u8> {
    let mut block = vec![method, 0x87, 0x04, u8::try_from(path.len()).unwrap()];
    block.extend(path.as_bytes());
    block.extend([0x01, 1, b'k']);
    block
}

/// A GET, complete.
pub fn get(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, stream, &block(0x82, path))
}

/// A POST whose body follows.
pub fn post(stream: u32, path: &str) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, &block(0x83, path))
}

/// The n-th stream of a client.
pub fn nth_stream(nth: usize) -> u32 {
    u32::try_from(nth).unwrap() * 2 + 1
}

/// What came from the other side.
#[derive(Default, Debug)]
pub struct Seen {
    /// Code of the last GOAWAY.
    pub goaway: Option<u32>,
    /// Streams with a response head.
    pub heads: Vec<u32>,
    /// Streams whose response is complete.
    pub ended: Vec<u32>,
    /// Streams that were reset, and the code.
    pub resets: Vec<(u32, u32)>,
    pub ping_acks: usize,
    /// The connection is over.
    pub closed: bool,
}

/// One connection.
pub struct Frames {
    out: WriteHalf<TlsStream<TcpStream>>,
    seen: Arc<Mutex<Seen>>,
    reading: JoinHandle<()>,
}

impl Frames {
    /// Connects and sends the preface, empty SETTINGS, and a window that will do for the whole test.
    pub async fn connect(world: &World) -> Self {
        Self::on(raw::handshake(world.address(), world.pki().ca_pem()).await).await
    }

    /// The same on a connection that is there.
    pub async fn on(tls: TlsStream<TcpStream>) -> Self {
        let (input, out) = tokio::io::split(tls);
        let seen = Arc::new(Mutex::new(Seen::default()));
        let reading = tokio::spawn(read(input, seen.clone()));
        let mut frames = Self { out, seen, reading };
        frames.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await;
        frames.send(&frame(SETTINGS, 0, 0, &[])).await;
        frames.send(&frame(SETTINGS, 1, 0, &[])).await;
        frames.send(&frame(WINDOW_UPDATE, 0, 0, &[1, 0, 0, 0])).await;
        frames
    }

    /// What came so far.
    pub fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }

    /// Writes; false when the other side is gone.
    pub async fn send(&mut self, bytes: &[u8]) -> bool {
        self.out.write_all(bytes).await.is_ok() && self.out.flush().await.is_ok()
    }

    /// Sends what `make` makes of 0 to `count`, a few at a time, until the other side has had enough: when that was, and how many
    /// were sent by then.
    pub async fn flood(&mut self, count: usize, make: impl Fn(usize) -> Vec<u8>) -> (Duration, usize) {
        let started = Instant::now();
        let mut sent = 0;
        while sent < count && !self.is_over() {
            let batch: Vec<u8> = (sent..count.min(sent + 50)).flat_map(&make).collect();
            sent += 50;
            if !self.send(&batch).await {
                break;
            }
            tokio::task::yield_now().await;
        }
        eventually("the end of the connection", Duration::from_secs(5), || self.is_over()).await;
        (started.elapsed(), sent)
    }

    /// Stops reading for good.
    pub fn turn_deaf(&self) {
        self.reading.abort();
    }

    /// Was it told to go away, or is the connection gone?
    pub fn is_over(&self) -> bool {
        let seen = self.seen();
        seen.goaway.is_some() || seen.closed
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

async fn read(mut input: ReadHalf<TlsStream<TcpStream>>, seen: Arc<Mutex<Seen>>) {
    while let Ok((kind, flags, stream, payload)) = read_frame(&mut input).await {
        let word = |at: usize| payload.get(at..at + 4).map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
        let mut seen = seen.lock().unwrap();
        match kind {
            GOAWAY => seen.goaway = Some(word(4)),
            RST_STREAM => seen.resets.push((stream, word(0))),
            HEADERS => seen.heads.push(stream),
            PING => seen.ping_acks += 1,
            _ => {}
        }
        if matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0 {
            seen.ended.push(stream);
        }
    }
    seen.lock().unwrap().closed = true;
}

/// The next frame: kind, flags, stream, payload.
pub async fn read_frame(input: &mut (impl AsyncRead + Unpin)) -> std::io::Result<(u8, u8, u32, Vec<u8>)> {
    let mut head = [0; 9];
    input.read_exact(&mut head).await?;
    let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
    input.read_exact(&mut payload).await?;
    Ok((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
}
