//! An HTTP/2 server that does to each request what the test says: for what the twin cannot do or cannot tell.

use std::future::Future;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use bytes::Bytes;
use h2::server::SendResponse;
use h2::{Reason, RecvStream};
use http::{Request, Response};
use loadgen::{KeyPairPem, Pki};
use rustls::ServerConfig;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Length of the client's preface (RFC 9113 §3.4).
pub const PREFACE: usize = 24;
const HEADERS: u8 = 1;

/// A running server; dropping it ends it with its connections.
pub struct Script {
    address: SocketAddr,
    task: JoinHandle<()>,
}

impl Script {
    /// Does `each` for every request, with its number from 0.
    pub async fn start<F>(
        pki: &Pki,
        each: impl Fn(usize, Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        Self::with_goaways(pki, 0, each).await
    }

    /// The first `goaways` connections take no request: they wait for one and say GOAWAY with no stream processed.
    pub async fn with_goaways<F>(
        pki: &Pki,
        goaways: usize,
        each: impl Fn(usize, Request<RecvStream>, SendResponse<Bytes>) -> F + Clone + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let acceptor = acceptor(&pki.serving().unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move {
            let mut tasks = tokio::task::JoinSet::new();
            let requests = Arc::new(std::sync::atomic::AtomicUsize::new(0));
            for nth in 0.. {
                let (tcp, _) = listener.accept().await.unwrap();
                let (acceptor, each, requests) = (acceptor.clone(), each.clone(), requests.clone());
                tasks.spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else { return };
                    if nth < goaways {
                        go_away(tls).await.ok();
                        return;
                    }
                    let Ok(mut http2) = h2::server::handshake(tls).await else { return };
                    let mut exchanges = tokio::task::JoinSet::new();
                    while let Some(Ok((request, respond))) = http2.accept().await {
                        let number = requests.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                        exchanges.spawn(each(number, request, respond));
                    }
                });
            }
        });
        Self { address, task }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Script {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Reads until a request has come, then refuses everything and closes.
async fn go_away(mut tls: TlsStream<TcpStream>) -> std::io::Result<()> {
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    tls.write_all(&settings).await?;
    tls.flush().await?;
    let mut preface = [0; PREFACE];
    tls.read_exact(&mut preface).await?;
    loop {
        let mut head = [0; 9];
        tls.read_exact(&mut head).await?;
        let length = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
        let mut payload = vec![0; length];
        tls.read_exact(&mut payload).await?;
        if head[3] == HEADERS {
            break;
        }
    }
    // Last stream 0, NO_ERROR.
    tls.write_all(&[0, 0, 8, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]).await?;
    tls.shutdown().await
}

/// Answers with a body.
pub fn answer(respond: &mut SendResponse<Bytes>, body: impl Into<Bytes>) {
    respond.send_response(Response::new(()), false).unwrap().send_data(body.into(), true).unwrap();
}

/// The code with which the other side resets the stream.
pub async fn reset_of(respond: &mut SendResponse<Bytes>) -> Reason {
    std::future::poll_fn(|cx| respond.poll_reset(cx)).await.unwrap()
}

/// Does the server's side of handshakes with that certificate.
pub fn acceptor(pair: &KeyPairPem) -> TlsAcceptor {
    let chain = vec![CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap()];
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}
