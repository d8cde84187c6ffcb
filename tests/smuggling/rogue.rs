//! A server that answers every request with the bytes it was told to, whatever their sense.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use loadgen::Pki;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::server::TlsStream;

use crate::support::frames::{DATA, END_STREAM, HEADERS, PING, SETTINGS, frame};
use crate::support::script;

/// The frames of an answer on a stream.
type Answer = Arc<dyn Fn(u32) -> Vec<u8> + Send + Sync>;

/// A running server; dropping it ends it with its connections.
pub struct Rogue {
    address: SocketAddr,
    answer: Arc<Mutex<Answer>>,
    task: JoinHandle<()>,
}

impl Rogue {
    pub async fn start(pki: &Pki) -> Self {
        let acceptor = script::acceptor(&pki.serving().unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let nothing: Answer = Arc::new(|_| Vec::new());
        let answer = Arc::new(Mutex::new(nothing));
        let shared = answer.clone();
        let task = tokio::spawn(async move {
            let mut conns = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (acceptor, answer) = (acceptor.clone(), shared.clone());
                conns.spawn(async move {
                    if let Ok(tls) = acceptor.accept(tcp).await {
                        serve(tls, answer).await.ok();
                    }
                });
            }
        });
        Self { address, answer, task }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What the next requests get.
    pub fn answers(&self, answer: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) {
        *self.answer.lock().unwrap() = Arc::new(answer);
    }
}

impl Drop for Rogue {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(mut tls: TlsStream<TcpStream>, answer: Arc<Mutex<Answer>>) -> std::io::Result<()> {
    let mut preface = [0; 24];
    tls.read_exact(&mut preface).await?;
    tls.write_all(&frame(SETTINGS, 0, 0, &[])).await?;
    loop {
        tls.flush().await?;
        let mut head = [0; 9];
        tls.read_exact(&mut head).await?;
        let mut payload = vec![0; usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2])];
        tls.read_exact(&mut payload).await?;
        let (kind, flags, stream) = (head[3], head[4], u32::from_be_bytes([head[5], head[6], head[7], head[8]]));
        let reply = match kind {
            SETTINGS if flags == 0 => frame(SETTINGS, 1, 0, &[]),
            PING if flags == 0 => frame(PING, 1, 0, &payload),
            HEADERS | DATA if flags & END_STREAM != 0 => {
                let answer = answer.lock().unwrap().clone();
                answer(stream)
            }
            _ => continue,
        };
        tls.write_all(&reply).await?;
    }
}
