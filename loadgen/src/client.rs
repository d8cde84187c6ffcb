//! A small HTTP/2 client for tests and the demo.
//!
//! Always: a body is received to its END_STREAM or the call is an error; a reset is never a short success. Bodies are
//! sent and received at the same time and within flow control. One client is one connection; clones share it, and it
//! closes when the last one is dropped.
//!
//! Deliberately absent: retries, redirects, reconnecting. A test wants to see what happened the first time.

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use h2::client::{ResponseFuture, SendRequest};
use h2::{RecvStream, SendStream};
use http::header::AUTHORIZATION;
use http::{HeaderMap, HeaderValue, Method, Request, StatusCode};
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use crate::body::{next_chunk, read_all, send_all};
use crate::error::Error;
use crate::pki::KeyPairPem;
use crate::tls;

/// For TCP, TLS and HTTP/2 together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// For a whole request; kube-apiserver's own limit. Watches have none.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(60);
/// The largest response body that is kept.
const BODY_MAX: usize = 256 << 20;
/// The longest line of a watch.
const LINE_MAX: usize = 16 << 20;
/// Informational responses kept for one request; further ones are dropped.
const INFORMATIONAL_MAX: usize = 16;
/// Receive windows: large enough that the client is never what slows a test down.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 16 << 20;

/// One connection to a server; clones share it.
#[derive(Clone)]
pub struct Client {
    send: SendRequest<Bytes>,
    authority: String,
    bearer: Option<HeaderValue>,
    connection: Arc<JoinHandle<Result<(), h2::Error>>>,
}

/// A response that arrived whole.
#[derive(Debug, Clone)]
pub struct Response {
    /// The final status.
    pub status: StatusCode,
    /// The headers of the final response.
    pub headers: HeaderMap,
    /// All of the body.
    pub body: Bytes,
    /// The trailers, if there were any.
    pub trailers: Option<HeaderMap>,
    /// 1xx responses that came before, oldest first.
    pub informational: Vec<(StatusCode, HeaderMap)>,
}

impl Response {
    /// The body as JSON.
    pub fn json(&self) -> Result<Value, Error> {
        Ok(serde_json::from_slice(&self.body)?)
    }

    /// The first value of a header, if it is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }
}

impl Client {
    /// Connects with TLS and HTTP/2; trusts `ca_pem` alone and sends `bearer`, if any, with every request.
    pub async fn connect(address: SocketAddr, ca_pem: &str, server_name: &str, bearer: Option<&str>) -> Result<Self, Error> {
        Self::open(address, tls::client_config(ca_pem, None)?, server_name, bearer).await
    }

    /// As [`Client::connect`], with a client certificate instead of a token.
    pub async fn connect_with_certificate(address: SocketAddr, ca_pem: &str, server_name: &str, pair: &KeyPairPem) -> Result<Self, Error> {
        Self::open(address, tls::client_config(ca_pem, Some(pair))?, server_name, None).await
    }

    async fn open(address: SocketAddr, tls: Arc<rustls::ClientConfig>, server_name: &str, bearer: Option<&str>) -> Result<Self, Error> {
        let bearer = bearer.map(|token| HeaderValue::try_from(format!("Bearer {token}")));
        let bearer = bearer.transpose().map_err(http::Error::from)?;
        let opening = timeout(CONNECT_TIMEOUT, handshake(address, tls, server_name)).await;
        let (send, connection) = opening.map_err(|_| Error::Timeout("connection"))??;
        Ok(Self { send, authority: address.to_string(), bearer, connection: Arc::new(connection) })
    }

    /// GET of a path, which may have a query.
    pub async fn get(&self, path: &str) -> Result<Response, Error> {
        self.request(Method::GET, path, HeaderMap::new(), Bytes::new(), None).await
    }

    /// Any request; `headers` come after the token, and an `authorization` in them replaces it.
    ///
    /// Dropping the future resets the stream with CANCEL.
    pub async fn request(
        &self,
        method: Method,
        path: &str,
        headers: HeaderMap,
        body: Bytes,
        trailers: Option<HeaderMap>,
    ) -> Result<Response, Error> {
        let bodiless = body.is_empty() && trailers.is_none();
        let exchange = async {
            let (response, stream) = self.send(method, path, headers, bodiless).await?;
            let mut receiving = pin!(receive(response));
            let mut sending = pin!(send_body(stream, body, trailers, bodiless));
            tokio::select! {
                biased;
                response = &mut receiving => return response,
                // Whether sending failed is the response's to say: a server may answer early and stop the body
                // (RFC 9113 §8.1), and any other reset fails the response too.
                _ = &mut sending => {}
            }
            receiving.await
        };
        timeout(REQUEST_TIMEOUT, exchange).await.map_err(|_| Error::Timeout("response"))?
    }

    /// GET whose body is taken piece by piece, without a time limit: a watch, or any long response.
    pub async fn watch(&self, path: &str) -> Result<Watch, Error> {
        let (mut response, _) = self.send(Method::GET, path, HeaderMap::new(), true).await?;
        let (head, body) = (&mut response).await?.into_parts();
        Ok(Watch { status: head.status, headers: head.headers, body, line: BytesMut::new() })
    }

    /// Waits until a request can be opened; an error when the connection takes no more.
    pub async fn ready(&self) -> Result<(), Error> {
        self.send.clone().ready().await?;
        Ok(())
    }

    /// Whether the connection is still open.
    pub fn alive(&self) -> bool {
        !self.connection.is_finished()
    }

    async fn send(&self, method: Method, path: &str, headers: HeaderMap, end: bool) -> Result<(ResponseFuture, SendStream<Bytes>), Error> {
        let uri = format!("https://{}{path}", self.authority);
        let mut request = Request::builder().method(method).uri(uri).body(())?;
        if let Some(bearer) = &self.bearer {
            request.headers_mut().insert(AUTHORIZATION, bearer.clone());
        }
        request.headers_mut().extend(headers);
        let mut send = self.send.clone().ready().await?;
        Ok(send.send_request(request, end)?)
    }
}

/// A response whose body is still coming. Dropping it resets the stream with CANCEL.
pub struct Watch {
    /// The status; the body of an error status is readable like any other.
    pub status: StatusCode,
    /// The response headers.
    pub headers: HeaderMap,
    body: RecvStream,
    /// What has come of the next line.
    line: BytesMut,
}

impl Watch {
    /// The next piece as it came; `None` is the clean end. Do not mix with [`Watch::next_event`].
    pub async fn next_chunk(&mut self) -> Result<Option<Bytes>, Error> {
        Ok(next_chunk(&mut self.body).await?)
    }

    /// The next line as JSON; `None` is the clean end. Dropping the future loses nothing.
    pub async fn next_event(&mut self) -> Result<Option<Value>, Error> {
        loop {
            if let Some(end) = self.line.iter().position(|byte| *byte == b'\n') {
                let line = self.line.split_to(end + 1);
                return Ok(Some(serde_json::from_slice(&line)?));
            }
            if self.line.len() > LINE_MAX {
                return Err(Error::TooLarge(LINE_MAX));
            }
            match self.next_chunk().await? {
                Some(chunk) => self.line.extend_from_slice(&chunk),
                None if self.line.is_empty() => return Ok(None),
                // A stream that ends inside a line was cut: the parser says so.
                None => return Ok(Some(serde_json::from_slice(&self.line.split())?)),
            }
        }
    }
}

async fn handshake(
    address: SocketAddr,
    tls: Arc<rustls::ClientConfig>,
    server_name: &str,
) -> Result<(SendRequest<Bytes>, JoinHandle<Result<(), h2::Error>>), Error> {
    let failed = |source| Error::Io(format!("cannot connect to {address}"), source);
    let name = ServerName::try_from(server_name.to_owned());
    let name = name.map_err(|_| Error::Tls(rustls::Error::General(format!("not a server name: {server_name}"))))?;
    let tcp = TcpStream::connect(address).await.map_err(failed)?;
    tcp.set_nodelay(true).map_err(failed)?;
    let tls = TlsConnector::from(tls).connect(name, tcp).await.map_err(failed)?;
    let mut builder = h2::client::Builder::new();
    builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(CONNECTION_WINDOW).enable_push(false);
    let (send, connection) = builder.handshake(tls).await?;
    Ok((send, tokio::spawn(connection)))
}

async fn receive(mut response: ResponseFuture) -> Result<Response, Error> {
    let mut informational = Vec::new();
    let head = poll_fn(|cx| {
        loop {
            match response.poll_informational(cx) {
                Poll::Ready(Some(interim)) => {
                    let (head, ()) = interim?.into_parts();
                    if informational.len() < INFORMATIONAL_MAX {
                        informational.push((head.status, head.headers));
                    }
                }
                Poll::Ready(None) | Poll::Pending => return Pin::new(&mut response).poll(cx),
            }
        }
    });
    let (head, mut body) = head.await?.into_parts();
    let bytes = read_all(&mut body, BODY_MAX).await?;
    let trailers = body.trailers().await?;
    Ok(Response { status: head.status, headers: head.headers, body: bytes, trailers, informational })
}

async fn send_body(mut stream: SendStream<Bytes>, body: Bytes, trailers: Option<HeaderMap>, sent: bool) -> Result<(), h2::Error> {
    match trailers {
        _ if sent => Ok(()),
        None => send_all(&mut stream, body, true).await,
        Some(trailers) => {
            send_all(&mut stream, body, false).await?;
            stream.send_trailers(trailers)
        }
    }
}
