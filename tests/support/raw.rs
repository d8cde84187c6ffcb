//! An HTTP/2 client that does only what it is told: for slow readers, cut uploads and resets.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use h2::client::{ResponseFuture, SendRequest};
use h2::{Reason, RecvStream, SendStream};
use http::{HeaderMap, Method, Request};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::NAME;

/// One connection.
pub struct Raw {
    send: SendRequest<Bytes>,
    authority: String,
    connection: JoinHandle<Result<(), h2::Error>>,
}

impl Raw {
    /// Connects with the windows of `builder`.
    pub async fn connect(address: SocketAddr, ca_pem: &str, builder: &h2::client::Builder) -> Self {
        let tls = handshake(address, ca_pem).await;
        let (send, connection) = builder.handshake(tls).await.unwrap();
        Self { send, authority: address.to_string(), connection: tokio::spawn(connection) }
    }

    /// Opens a stream; `end` when no body follows.
    pub async fn open(&self, method: Method, path: &str, headers: HeaderMap, end: bool) -> (ResponseFuture, SendStream<Bytes>) {
        self.try_open(method, path, headers, end).await.unwrap()
    }

    /// The same on a connection that may be over.
    pub async fn try_open(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        end: bool,
    ) -> Result<(ResponseFuture, SendStream<Bytes>), h2::Error> {
        let uri = format!("https://{}{path}", self.authority);
        let mut request = Request::builder().method(method).uri(uri).body(()).unwrap();
        request.headers_mut().extend(headers);
        self.send.clone().ready().await?.send_request(request, end)
    }

    /// Cuts the connection, without a word.
    pub async fn cut(self) {
        self.connection.abort();
        drop(self.connection.await);
    }
}

/// A TLS connection that speaks `h2` next, or whatever the test writes.
pub async fn handshake(address: SocketAddr, ca_pem: &str) -> TlsStream<TcpStream> {
    handshake_for(address, ca_pem, b"h2").await
}

/// A TLS connection for that protocol (ALPN).
pub async fn handshake_for(address: SocketAddr, ca_pem: &str, protocol: &[u8]) -> TlsStream<TcpStream> {
    let tcp = TcpStream::connect(address).await.unwrap();
    handshake_on(tcp, ca_pem, protocol).await.unwrap()
}

/// The same on a connection that is there.
pub async fn handshake_on(tcp: TcpStream, ca_pem: &str, protocol: &[u8]) -> std::io::Result<TlsStream<TcpStream>> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_slice(ca_pem.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let mut config = builder.with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![protocol.to_vec()];
    tcp.set_nodelay(true)?;
    TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), tcp).await
}

/// Sends as much of `bytes` as the windows take until they are shut, then returns how much that was.
pub async fn send_some(stream: &mut SendStream<Bytes>, bytes: Bytes) -> Result<(), h2::Error> {
    let mut rest = bytes;
    while !rest.is_empty() {
        stream.reserve_capacity(rest.len());
        while stream.capacity() == 0 {
            match poll_fn(|cx| stream.poll_capacity(cx)).await {
                Some(granted) => drop(granted?),
                None => return Err(poll_fn(|cx| stream.poll_reset(cx)).await?.into()),
            }
        }
        let chunk = rest.split_to(stream.capacity().min(rest.len()));
        stream.send_data(chunk, false)?;
    }
    Ok(())
}

/// Reads to the end, giving windows back.
pub async fn read_all(body: &mut RecvStream) -> Result<usize, h2::Error> {
    let mut count = 0;
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        count += chunk.len();
        body.flow_control().release_capacity(chunk.len())?;
    }
    Ok(count)
}

/// The code with which the stream was reset.
pub async fn reset_of(stream: &mut SendStream<Bytes>) -> Reason {
    poll_fn(|cx| stream.poll_reset(cx)).await.unwrap()
}
