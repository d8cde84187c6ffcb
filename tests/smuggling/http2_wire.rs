//! Frames of HTTP/2 as a case asks for them: blocks of any fields, and a client that reads one answer.

use std::time::Duration;

use engine::http2::hpack::{Decoded, Decoder, HeaderBlock, Token};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::client::TlsStream;

use crate::support::frames::{DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, RST_STREAM, SETTINGS, frame};
use crate::support::{World, raw};

/// Names and values.
pub type Fields<'a> = &'a [(&'a str, &'a str)];

/// Nothing a case waits for takes longer.
const LIMIT: Duration = Duration::from_secs(5);

/// A header block of literals without index and without Huffman code (RFC 7541 §6.2.2).
pub fn block(fields: Fields<'_>) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        put_string(&mut block, name.as_bytes());
        put_string(&mut block, value.as_bytes());
    }
    block
}

/// A length of seven bits and more (RFC 7541 §5.1), and the bytes.
fn put_string(block: &mut Vec<u8>, bytes: &[u8]) {
    let mut rest = bytes.len();
    if rest < 127 {
        block.push(u8::try_from(rest).unwrap());
    } else {
        block.push(127);
        rest -= 127;
        while rest >= 128 {
            block.push(u8::try_from(rest % 128).unwrap() | 128);
            rest /= 128;
        }
        block.push(u8::try_from(rest).unwrap());
    }
    block.extend(bytes);
}

/// HEADERS, and CONTINUATION where the block is longer than a frame.
pub fn headers(stream: u32, fields: Fields<'_>, end: bool) -> Vec<u8> {
    const CONTINUATION: u8 = 9;
    let block = block(fields);
    let count = block.chunks(16_384).count();
    let mut frames = Vec::new();
    for (nth, part) in block.chunks(16_384).enumerate() {
        let last = if nth + 1 == count { END_HEADERS } else { 0 };
        let (kind, flags) = if nth == 0 { (HEADERS, if end { END_STREAM } else { 0 }) } else { (CONTINUATION, 0) };
        frames.extend(frame(kind, flags | last, stream, part));
    }
    if count == 0 {
        frames = frame(HEADERS, END_HEADERS | if end { END_STREAM } else { 0 }, stream, &[]);
    }
    frames
}

pub fn data(stream: u32, bytes: &[u8], end: bool) -> Vec<u8> {
    frame(DATA, if end { END_STREAM } else { 0 }, stream, bytes)
}

/// What came on one stream.
#[derive(Default, Debug)]
pub struct Got {
    /// Every head: status and fields.
    pub heads: Vec<(u16, Vec<(String, String)>)>,
    pub body: Vec<u8>,
    pub ended: bool,
    pub reset: Option<u32>,
    pub goaway: Option<u32>,
}

impl Got {
    /// The final status.
    pub fn status(&self) -> Option<u16> {
        self.heads.iter().map(|(status, _)| *status).find(|status| *status >= 200)
    }

    pub fn is_from_server(&self) -> bool {
        self.heads.iter().any(|(_, fields)| fields.iter().any(|(name, _)| name == "x-seen"))
    }
}

/// One connection.
pub struct Wire2 {
    tls: TlsStream<TcpStream>,
    decoder: Decoder,
}

impl Wire2 {
    /// Connects and sends the preface and empty SETTINGS.
    pub async fn connect(world: &World) -> Self {
        let tls = raw::handshake(world.address(), world.pki().ca_pem()).await;
        let mut wire = Self { tls, decoder: Decoder::new(4_096) };
        let settings = frame(SETTINGS, 0, 0, &[]);
        wire.send(&[b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", &settings[..]].concat()).await;
        wire
    }

    /// Writes; what the other side refuses to take is its matter.
    pub async fn send(&mut self, bytes: &[u8]) {
        if self.tls.write_all(bytes).await.is_ok() {
            self.tls.flush().await.ok();
        }
    }

    /// Reads until the stream or the connection is over.
    pub async fn answer(&mut self, stream: u32) -> Got {
        let mut got = Got::default();
        while !got.ended && got.reset.is_none() && got.goaway.is_none() {
            let frame = timeout(LIMIT, self.frame()).await.unwrap_or_else(|_| panic!("nothing came behind {got:?}"));
            let Ok((kind, flags, id, payload)) = frame else { break };
            let word = |at: usize| payload.get(at..at + 4).map_or(0, |bytes| u32::from_be_bytes(bytes.try_into().unwrap()));
            match kind {
                GOAWAY => got.goaway = Some(word(4)),
                HEADERS => {
                    let head = self.decode(&payload);
                    if id == stream {
                        got.heads.push(head);
                    }
                }
                RST_STREAM if id == stream => got.reset = Some(word(0)),
                DATA if id == stream => got.body.extend(&payload),
                _ => {}
            }
            got.ended |= id == stream && matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        }
        got
    }

    fn decode(&mut self, block: &[u8]) -> (u16, Vec<(String, String)>) {
        let mut head = HeaderBlock::default();
        assert!(matches!(self.decoder.decode(block, 1 << 20, &mut head), Ok(Decoded::Complete)), "an undecodable block");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let status = head.first(Token::STATUS).map_or(0, |digits| text(digits).parse().unwrap());
        (status, head.iter().map(|field| (text(field.name), text(field.value))).collect())
    }

    async fn frame(&mut self) -> std::io::Result<(u8, u8, u32, Vec<u8>)> {
        let mut head = [0; 9];
        self.tls.read_exact(&mut head).await?;
        let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
        self.tls.read_exact(&mut payload).await?;
        Ok((head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]), payload))
    }
}
