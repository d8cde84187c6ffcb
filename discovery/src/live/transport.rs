//! Connections to servers: one place where every address is checked, as the very one that is about to be connected.
//!
//! What always holds: an address is a literal, and local, named on the command line, or on the allow-list of this moment; the server proves
//! to be `kubernetes.default.svc` before it sees a byte of ours; nothing is redirected; a body has an end that we chose, and a list has its time; a connection
//! that was idle when certificates were replaced is not used again.
//!
//! HTTP/1.1 on purpose: a request that hangs is dropped with its connection, and hangs nobody else.

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use http::header::{AUTHORIZATION, USER_AGENT, VIA};
use http::uri::{Authority, Scheme};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt, Either, Full, Limited};
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

use super::{Access, Certificates, Error};
use crate::inventory::Settings;
use crate::{AllowList, PROXY_HTTP1, ServerId, Via};

/// The name that every apiserver's certificate has, whatever its address.
const SERVER_NAME: &str = "kubernetes.default.svc";
/// TCP and TLS together.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// A page of a list: of CRDs it has some 10 MiB. Of a watch these are the bytes of all events, and the time until the first of its answer.
pub(super) const LIST: Limits = Limits { bytes: 128 << 20, time: Duration::from_secs(15) };
/// What is kept open to a server for the next fetch.
const IDLE: Duration = Duration::from_secs(30);
/// The same, in connections: a probe, the two documents of a fetch, and one to spare.
const IDLE_MAX: usize = 4;
/// A silent connection is asked for a sign of life after this long, this often, and this many times.
const KEEPALIVE: (Duration, Duration, u32) = (Duration::from_secs(5), Duration::from_secs(2), 3);
/// What was sent and is not acknowledged by then never will be.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(10);

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
    clients: ArcSwap<Clients>,
    policy: Arc<Policy>,
    authorization: ArcSwap<HeaderValue>,
    via: HeaderValue,
}

/// By [`Leg`]. Each has its own connections, and keeps those that are idle.
type Clients = [Client<Connector, Body>; 3];

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

/// The most of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Of its body.
    pub(super) bytes: usize,
    /// From the request, and the connection it may need, to the last byte.
    pub(super) time: Duration,
}

/// A response whose body is here.
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// When the connection that it came on was made.
    pub(super) connected: Option<Instant>,
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
    /// What was to be asked for is no path.
    BadPath(String),
}

impl std::fmt::Display for SendError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Connect(why) | Self::Broken(why) => f.write_str(why),
            Self::TimedOut => f.write_str("no answer in time"),
            Self::BadPath(path) => write!(f, "`{path}` is no path"),
        }
    }
}

impl std::error::Error for SendError {}

impl Transport {
    pub(super) fn new(access: &Access, local: &ServerId, trusted: HashSet<SocketAddr>, allowed: AllowList) -> Result<Self, Error> {
        let policy = Arc::new(Policy { trusted, allowed: ArcSwap::from_pointee(allowed) });
        let clients = ArcSwap::from_pointee(clients(&access.certificates, &policy)?);
        let authorization = ArcSwap::from_pointee(access.credentials.read_first()?);
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

    /// Replaces the certificates: idle connections end, those in use stay until they are done. On error all stays as it was.
    pub(super) fn renew(&self, certificates: &Certificates) -> Result<(), Error> {
        self.0.clients.store(Arc::new(clients(certificates, &self.0.policy)?));
        Ok(())
    }

    /// A client for lists and watches. Must be called in the runtime.
    pub(super) fn kube(&self, place: Place) -> kube::Client {
        let transport = self.clone();
        let service = tower::service_fn(move |mut request: Request<Body>| {
            let transport = transport.clone();
            async move {
                if !is_watch(request.uri()) {
                    let reply = transport.ask(place, request, LIST).await?;
                    let (mut parts, ()) = Response::new(()).into_parts();
                    (parts.status, parts.headers) = (reply.status, reply.headers);
                    return Ok(Response::from_parts(parts, Either::Left(Full::new(reply.body))));
                }
                transport.sign(&mut request);
                let opened = tokio::time::timeout(LIST.time, transport.open(place, request)).await;
                let response = opened.unwrap_or(Err(SendError::TimedOut))?;
                Ok::<_, SendError>(response.map(|body| Either::Right(Limited::new(body, LIST.bytes))))
            }
        });
        kube::Client::new(service, "default")
    }

    /// One request and its whole response.
    pub(super) async fn ask(&self, place: Place, mut request: Request<Body>, limits: Limits) -> Result<Reply, SendError> {
        self.sign(&mut request);
        self.exchange(place, request, limits).await
    }

    /// The same of a GET.
    pub(super) async fn get(&self, place: Place, path: &str, headers: HeaderMap, limits: Limits) -> Result<Reply, SendError> {
        self.ask(place, request_for(path, headers)?, limits).await
    }

    /// The same as nobody: without our credentials.
    pub(super) async fn get_as_nobody(&self, place: Place, path: &str, limits: Limits) -> Result<Reply, SendError> {
        self.exchange(place, request_for(path, HeaderMap::new())?, limits).await
    }

    async fn exchange(&self, place: Place, request: Request<Body>, limits: Limits) -> Result<Reply, SendError> {
        let exchange = async {
            let (parts, body) = self.open(place, request).await?.into_parts();
            let body = Limited::new(body, limits.bytes).collect().await.map_err(|error| SendError::Broken(with_causes(&*error)))?;
            let connected = parts.extensions.get::<Made>().map(|made| made.0);
            Ok(Reply { status: parts.status, headers: parts.headers, body: body.to_bytes(), connected })
        };
        tokio::time::timeout(limits.time, exchange).await.unwrap_or(Err(SendError::TimedOut))
    }

    /// One request and the head of its response.
    async fn open(&self, place: Place, request: Request<Body>) -> Result<Response<Incoming>, SendError> {
        self.send(place, request).await.map_err(|error| {
            let text = with_causes(&error);
            if error.is_connect() { SendError::Connect(text) } else { SendError::Broken(text) }
        })
    }

    /// Says who we are.
    fn sign(&self, request: &mut Request<Body>) {
        request.headers_mut().insert(AUTHORIZATION, HeaderValue::clone(&self.0.authorization.load()));
    }

    fn send(&self, place: Place, mut request: Request<Body>) -> impl Future<Output = Result<Response<Incoming>, ClientError>> + use<> {
        let mut parts = request.uri().clone().into_parts();
        parts.scheme = Some(Scheme::HTTPS);
        parts.authority = Authority::try_from(place.address.to_string()).ok();
        if let Ok(uri) = Uri::from_parts(parts) {
            *request.uri_mut() = uri;
        }
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("mvproxy/", env!("CARGO_PKG_VERSION"))));
        if place.leg != Leg::Local {
            // Should this be the client port of a proxy, it must answer for its own server and not for another one (design.md §3).
            headers.insert(VIA, self.0.via.clone());
        }
        self.0.clients.load()[place.leg as usize].request(request)
    }
}

/// Is the answer to this one without an end?
fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// A path that is none is an error, and no request for another.
fn request_for(path: &str, headers: HeaderMap) -> Result<Request<Body>, SendError> {
    let mut request = Request::new(Body::from(Vec::new()));
    *request.uri_mut() = path.parse().map_err(|_| SendError::BadPath(path.to_owned()))?;
    *request.headers_mut() = headers;
    Ok(request)
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

fn clients(certificates: &Certificates, policy: &Arc<Policy>) -> Result<Clients, Error> {
    let client = |ca: &[u8], pair: Option<&(Vec<u8>, Vec<u8>)>| -> Result<Client<Connector, Body>, Error> {
        let tls = TlsConnector::from(Arc::new(tls_config(ca, pair)?));
        let connector = Connector { tls, policy: Arc::clone(policy), is_proxy: pair.is_some() };
        let mut builder = Client::builder(TokioExecutor::new());
        Ok(builder.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE).pool_max_idle_per_host(IDLE_MAX).build(connector))
    };
    let Certificates { local_ca, peer_ca, client_pair } = certificates;
    Ok([client(local_ca, None)?, client(peer_ca, None)?, client(peer_ca, client_pair.as_ref())?])
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
    config.alpn_protocols = vec![if pair.is_some() { PROXY_HTTP1 } else { b"http/1.1" }.to_vec()];
    Ok(config)
}

#[derive(Clone)]
struct Connector {
    tls: TlsConnector,
    policy: Arc<Policy>,
    /// Is our certificate shown, as only peer ports may see it?
    is_proxy: bool,
}

impl tower::Service<Uri> for Connector {
    type Response = TokioIo<Wire>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let connector = self.clone();
        Box::pin(async move {
            let connecting = connect(&connector, &uri);
            let stream = tokio::time::timeout(CONNECT_MAX, connecting).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            Ok(TokioIo::new(Wire { stream: stream?, made: Made(Instant::now()) }))
        })
    }
}

async fn connect(Connector { tls, policy, is_proxy }: &Connector, uri: &Uri) -> io::Result<TlsStream<TcpStream>> {
    let bad = || io::Error::from(io::ErrorKind::InvalidInput);
    let address: SocketAddr = uri.authority().and_then(|authority| authority.as_str().parse().ok()).ok_or_else(bad)?;
    policy.check(address)?;
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    // A watch says nothing for minutes: without this nobody would notice that the other end is gone.
    let socket = socket2::SockRef::from(&stream);
    let (idle, interval, retries) = KEEPALIVE;
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(idle).with_interval(interval).with_retries(retries))?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX))?;
    let name = ServerName::try_from(SERVER_NAME).map_err(|_| bad())?;
    let stream = tls.connect(name, stream).await?;
    if *is_proxy && stream.get_ref().1.alpn_protocol() != Some(PROXY_HTTP1) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("{address} is no peer port of an mvproxy")));
    }
    Ok(stream)
}

/// A connection as hyper wants it.
struct Wire {
    stream: TlsStream<TcpStream>,
    made: Made,
}

/// When a connection was made; each response on it says so.
#[derive(Clone, Copy, Debug)]
struct Made(Instant);

impl Connection for Wire {
    fn connected(&self) -> Connected {
        Connected::new().extra(self.made)
    }
}

impl AsyncRead for Wire {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use rustls::ServerConfig;
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use rustls::server::WebPkiClientVerifier;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::live::Credentials;

    /// Signs for servers and clients alike.
    struct Authority {
        issuer: rcgen::Issuer<'static, rcgen::KeyPair>,
        certificate: rcgen::Certificate,
    }

    impl Authority {
        fn new() -> Self {
            let key = rcgen::KeyPair::generate().unwrap();
            let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
            params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            let certificate = params.self_signed(&key).unwrap();
            Self { issuer: rcgen::Issuer::new(params, key), certificate }
        }

        fn sign(&self) -> (rcgen::Certificate, rcgen::KeyPair) {
            let key = rcgen::KeyPair::generate().unwrap();
            let params = rcgen::CertificateParams::new(vec![SERVER_NAME.to_owned()]).unwrap();
            (params.signed_by(&key, &self.issuer).unwrap(), key)
        }

        /// Certificates with a new pair, and what a server is shown of it.
        fn pair(&self) -> (Certificates, CertificateDer<'static>) {
            let (certificate, key) = self.sign();
            let ca = self.certificate.pem().into_bytes();
            let pair = (certificate.pem().into_bytes(), key.serialize_pem().into_bytes());
            (Certificates { local_ca: ca.clone(), peer_ca: ca, client_pair: Some(pair) }, certificate.der().clone())
        }

        /// A peer port that lets in whoever it signed for.
        fn port(&self) -> TlsAcceptor {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let mut roots = RootCertStore::empty();
            roots.add(self.certificate.der().clone()).unwrap();
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider)).build().unwrap();
            let (certificate, key) = self.sign();
            let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
            let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
            let config = builder.with_client_cert_verifier(verifier).with_single_cert(vec![certificate.der().clone()], key);
            let mut config = config.unwrap();
            config.alpn_protocols = vec![PROXY_HTTP1.to_vec()];
            TlsAcceptor::from(Arc::new(config))
        }
    }

    /// Answers whatever it reads, and tells what every connection showed.
    async fn serve(listener: TcpListener, tls: TlsAcceptor, shown: mpsc::UnboundedSender<CertificateDer<'static>>) {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let mut stream = tls.accept(stream).await.unwrap();
            shown.send(stream.get_ref().1.peer_certificates().unwrap()[0].clone()).unwrap();
            tokio::spawn(async move {
                let mut request = [0; 4_096];
                while stream.read(&mut request).await.is_ok_and(|count| count > 0) {
                    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").await.unwrap();
                    stream.flush().await.unwrap();
                }
            });
        }
    }

    #[tokio::test]
    async fn t8_a_new_pair_is_shown_and_a_bad_one_changes_nothing() {
        let authority = Authority::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = Place { address: listener.local_addr().unwrap(), leg: Leg::Proxy };
        let (tell, mut shown) = mpsc::unbounded_channel();
        tokio::spawn(serve(listener, authority.port(), tell));
        let (certificates, first) = authority.pair();
        let access = Access { credentials: Credentials::token("right").unwrap(), certificates };
        let transport = Transport::new(&access, &ServerId::new("a"), HashSet::from([place.address]), AllowList::default()).unwrap();
        // What the connections showed that this request needed; none if there was one already.
        let mut ask = async || {
            let limits = Limits { bytes: 1_024, time: Duration::from_secs(10) };
            let reply = transport.get(place, "/", HeaderMap::new(), limits).await.unwrap();
            assert_eq!(reply.status, StatusCode::OK);
            std::iter::from_fn(|| shown.try_recv().ok()).collect::<Vec<_>>()
        };
        assert_eq!(ask().await, [first]);
        let (certificates, second) = authority.pair();
        transport.renew(&certificates).unwrap();
        assert_eq!(ask().await, std::slice::from_ref(&second), "the connection from before is idle, and not used");
        let bad = Certificates { peer_ca: b"not a certificate".to_vec(), ..authority.pair().0 };
        assert!(transport.renew(&bad).unwrap_err().to_string().contains("CA bundle"));
        assert!(ask().await.iter().all(|shown| *shown == second));
    }

    #[test]
    fn what_is_no_path_is_not_asked_for() {
        assert_eq!(request_for("/apis/a/v1?b=c", HeaderMap::new()).unwrap().uri().path(), "/apis/a/v1");
        for path in ["", "/a b", "/a\nb"] {
            let error = request_for(path, HeaderMap::new()).unwrap_err();
            assert!(error.to_string().ends_with("is no path"), "{path:?}: {error}");
        }
    }
}
