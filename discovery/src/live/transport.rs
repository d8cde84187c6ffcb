//! Connections to servers: one place where every address is checked, as the very one that is about to be connected.
//!
//! What always holds: an address is a literal, and local, named on the command line, or on the allow-list of this moment; the server proves
//! to be `kubernetes.default.svc` before it sees a byte of ours; nothing is redirected; a body has an end that we chose.
//!
//! HTTP/1.1 on purpose: a request that hangs is dropped with its connection, and hangs nobody else.

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{AUTHORIZATION, USER_AGENT, VIA};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use hyper_util::client::legacy::connect::{Connected, Connection};
use hyper_util::client::legacy::{Client, Error as ClientError};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::client::Body;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::{Access, Error};
use crate::inventory::Settings;
use crate::{AllowList, ServerId, Via};

/// The name that every apiserver's certificate has, whatever its address.
const SERVER_NAME: &str = "kubernetes.default.svc";
/// TCP and TLS together.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A page of a list, or all events of one watch request.
const LIST_BYTES_MAX: usize = 128 << 20;
/// What is kept open to a server for the next fetch.
const IDLE: Duration = Duration::from_secs(30);

/// Where a server is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) address: SocketAddr,
    pub(super) leg: Leg,
}

/// Whose certificate is expected, and whether we show one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Leg {
    /// The local server.
    Local,
    /// A peer, or whatever answers at its address.
    Peer,
    /// The peer port of a proxy: it asks for the front-proxy certificate.
    Proxy,
}

impl Leg {
    /// How a peer's address is spoken to.
    pub(super) fn of(via: Via) -> Self {
        match via {
            Via::Apiserver => Self::Peer,
            Via::Proxy => Self::Proxy,
        }
    }
}

/// Makes requests. Cloning is cheap.
#[derive(Clone)]
pub(super) struct Transport(Arc<Shared>);

struct Shared {
    /// By [`Leg`].
    clients: [Client<Connector, Body>; 3],
    policy: Arc<Policy>,
    authorization: ArcSwap<HeaderValue>,
    via: HeaderValue,
}

/// What may be connected to.
struct Policy {
    trusted: HashSet<SocketAddr>,
    allowed: ArcSwap<AllowList>,
}

impl Policy {
    fn check(&self, address: SocketAddr) -> io::Result<()> {
        if self.trusted.contains(&address) || self.allowed.load().allows(address) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{address} is not on the allow-list")))
    }
}

/// A response whose body is here.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Why there is no response.
#[derive(Debug)]
pub(super) enum SendError {
    /// No connection could be had; the text says why.
    Connect(String),
    /// It broke off.
    Broken(String),
    /// It took too long.
    TimedOut,
}

impl std::fmt::Display for SendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(why) | Self::Broken(why) => f.write_str(why),
            Self::TimedOut => f.write_str("no answer in time"),
        }
    }
}

impl Transport {
    pub(super) fn new(access: &Access, local: &ServerId, trusted: HashSet<SocketAddr>, allowed: AllowList) -> Result<Self, Error> {
        let policy = Arc::new(Policy { trusted, allowed: ArcSwap::from_pointee(allowed) });
        let client = |ca: &[u8], pair: Option<&(Vec<u8>, Vec<u8>)>| -> Result<Client<Connector, Body>, Error> {
            let tls = TlsConnector::from(Arc::new(tls_config(ca, pair)?));
            let connector = Connector { tls, policy: Arc::clone(&policy) };
            let mut builder = Client::builder(TokioExecutor::new());
            Ok(builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(4).build(connector))
        };
        let pair = access.client_pair.as_ref();
        let clients = [client(&access.local_ca, None)?, client(&access.peer_ca, None)?, client(&access.peer_ca, pair)?];
        let authorization = ArcSwap::from_pointee(access.credentials.read()?);
        let via = HeaderValue::from_str(&format!("2.0 mvproxy-{local}"));
        let via = via.map_err(|_| Error::new(format!("`{local}` is no server id")))?;
        Ok(Self(Arc::new(Shared { clients, policy, authorization, via })))
    }

    pub(super) fn for_settings(access: &Access, settings: &Settings) -> Result<Self, Error> {
        let trusted = settings.peers.values().copied().chain([settings.local_address]).collect();
        Self::new(access, &settings.local, trusted, settings.allowed.clone())
    }

    /// Replaces the allow-list.
    pub(super) fn allow(&self, allowed: &AllowList) {
        if **self.0.policy.allowed.load() != *allowed {
            self.0.policy.allowed.store(Arc::new(allowed.clone()));
        }
    }

    /// Replaces the credentials.
    pub(super) fn authorize(&self, authorization: HeaderValue) {
        if **self.0.authorization.load() != authorization {
            self.0.authorization.store(Arc::new(authorization));
        }
    }

    /// A client for watches. Must be called in the runtime.
    pub(super) fn kube(&self, place: Place) -> kube::Client {
        let transport = self.clone();
        let service = tower::service_fn(move |request| {
            let sent = transport.send(place, request);
            async move { Ok::<_, ClientError>(sent.await?.map(|body| Limited::new(body, LIST_BYTES_MAX))) }
        });
        kube::Client::new(service, "default")
    }

    /// One request and its whole response.
    pub(super) async fn ask(&self, place: Place, request: Request<Body>, bytes_max: usize, time_max: Duration) -> Result<Reply, SendError> {
        let exchange = async {
            let response = self.send(place, request).await.map_err(|error| {
                let text = with_causes(&error);
                if error.is_connect() { SendError::Connect(text) } else { SendError::Broken(text) }
            })?;
            let (parts, body) = response.into_parts();
            let body = Limited::new(body, bytes_max).collect().await.map_err(|error| SendError::Broken(with_causes(&*error)))?;
            Ok(Reply { status: parts.status, headers: parts.headers, body: body.to_bytes() })
        };
        tokio::time::timeout(time_max, exchange).await.unwrap_or(Err(SendError::TimedOut))
    }

    /// Can a connection be had? Nothing is said on it.
    pub(super) async fn reaches(&self, address: SocketAddr) -> bool {
        if self.0.policy.check(address).is_err() {
            return false;
        }
        matches!(tokio::time::timeout(CONNECT_MAX, TcpStream::connect(address)).await, Ok(Ok(_)))
    }

    fn send(&self, place: Place, mut request: Request<Body>) -> impl Future<Output = Result<Response<Incoming>, ClientError>> + use<> {
        let mut parts = request.uri().clone().into_parts();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Authority::try_from(place.address.to_string()).ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
        let headers = request.headers_mut();
        headers.insert(AUTHORIZATION, HeaderValue::clone(&self.0.authorization.load()));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("mvproxy/", env!("CARGO_PKG_VERSION"))));
        if place.leg != Leg::Local {
            // Should this be the client port of a proxy, it must answer for its own server and not for another one (design.md §3).
            headers.insert(VIA, self.0.via.clone());
        }
        self.0.clients[place.leg as usize].request(request)
    }
}

/// hyper's errors say little without what caused them.
pub(super) fn with_causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

fn tls_config(ca: &[u8], pair: Option<&(Vec<u8>, Vec<u8>)>) -> Result<ClientConfig, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca) {
        let certificate = certificate.map_err(|error| Error::new(format!("CA bundle: {error}")))?;
        roots.add(certificate).map_err(|error| Error::new(format!("CA bundle: {error}")))?;
    }
    if roots.is_empty() {
        return Err(Error::new("CA bundle: no certificate in it".to_owned()));
    }
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let builder = builder.map_err(|error| Error::new(error.to_string()))?.with_root_certificates(roots);
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some((certificates, key)) => {
            let bad = |error: &dyn std::error::Error| Error::new(format!("client certificate: {error}"));
            let chain: Vec<_> = CertificateDer::pem_slice_iter(certificates).collect::<Result<_, _>>().map_err(|error| bad(&error))?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| bad(&error))?;
            builder.with_client_auth_cert(chain, key).map_err(|error| bad(&error))?
        }
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

#[derive(Clone)]
struct Connector {
    tls: TlsConnector,
    policy: Arc<Policy>,
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { tls, policy } = self.clone();
        Box::pin(async move {
            let connecting = connect(&tls, &policy, &uri);
            let stream = tokio::time::timeout(CONNECT_MAX, connecting).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            Ok(TokioIo::new(Wire(stream?)))
        })
    }
}

async fn connect(tls: &TlsConnector, policy: &Policy, uri: &Uri) -> io::Result<TlsStream<TcpStream>> {
    let bad = || io::Error::from(io::ErrorKind::InvalidInput);
    let address: SocketAddr = uri.authority().and_then(|authority| authority.as_str().parse().ok()).ok_or_else(bad)?;
    policy.check(address)?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    // A watch says nothing for minutes: without this nobody would notice that the other end is gone.
    let socket = socket2::SockRef::from(&stream);
    let keepalive = socket2::TcpKeepalive::new().with_time(Duration::from_secs(5)).with_interval(Duration::from_secs(2)).with_retries(3);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(Duration::from_secs(10)))?;
    let name = ServerName::try_from(SERVER_NAME).map_err(|_| bad())?;
    tls.connect(name, stream).await
}

/// A connection as hyper wants it.
struct Wire(TlsStream<TcpStream>);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new()
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
