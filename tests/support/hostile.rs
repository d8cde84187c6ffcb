//! H12: servers that break the rules of HTTP/2.

use std::net::SocketAddr;

use loadgen::Pki;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::frames::{CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, SETTINGS, frame, read_frame};
use super::script::{PREFACE, acceptor};

/// `:status: 200` (RFC 7541 appendix A).
const OK: &[u8] = &[0x88];

/// What a server does once it has a request on a stream.
pub type Speech = fn(u32) -> Vec<u8>;

/// A server that says `first` at once, and `then` to each request.
pub async fn server(pki: &Pki, first: Vec<u8>, then: Speech) -> SocketAddr {
    let (acceptor, listener) = (acceptor(&pki.serving().unwrap()), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, first) = (acceptor.clone(), first.clone());
            tokio::spawn(async move {
                let mut tls = acceptor.accept(tcp).await?;
                let mut preface = [0; PREFACE];
                tls.read_exact(&mut preface).await?;
                tls.write_all(&first).await?;
                tls.flush().await?;
                loop {
                    let (kind, _, stream, _) = read_frame(&mut tls).await?;
                    if kind == HEADERS {
                        tls.write_all(&then(stream)).await?;
                        tls.flush().await?;
                    }
                    if kind == GOAWAY {
                        return std::io::Result::Ok(());
                    }
                }
            });
        }
    });
    address
}

/// What a server can say without end; what it says in all is bounded.
pub const FLOODS: [(&str, Speech); 5] = [
    ("PINGs of a server", pings),
    ("SETTINGS of a server", settings),
    ("a head without end", head_without_end),
    ("interim heads without end", interim_heads),
    ("a bomb in trailers", bomb_in_trailers),
];

pub fn pings(_: u32) -> Vec<u8> {
    frame(PING, 0, 0, b"flooding").repeat(10_000)
}

pub fn settings(_: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[]).repeat(10_000)
}

pub fn head_without_end(stream: u32) -> Vec<u8> {
    [frame(HEADERS, 0, stream, OK), frame(CONTINUATION, 0, stream, &[0x00, 1, b'a', 1, b'a']).repeat(100_000)].concat()
}

pub fn interim_heads(stream: u32) -> Vec<u8> {
    // `:status: 103`, a literal with an indexed name.
    frame(HEADERS, END_HEADERS, stream, &[0x08, 3, b'1', b'0', b'3']).repeat(100_000)
}

/// 10,000 references to a field of 4 KB behind a body.
pub fn bomb_in_trailers(stream: u32) -> Vec<u8> {
    let mut bomb = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
    bomb.extend([b'a'; 4_000]);
    bomb.extend([0xbe; 10_000]);
    let head = frame(HEADERS, END_HEADERS, stream, OK);
    [head, frame(DATA, 0, stream, b"body"), frame(HEADERS, END_HEADERS | END_STREAM, stream, &bomb)].concat()
}
