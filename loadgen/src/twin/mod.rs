//! The twin: a simulated kube-apiserver that tests, the demo and load runs put behind the proxy.
//!
//! What it covers, it does as kube-apiserver v1.36 does: aggregated and legacy discovery with ETag, `/version`, health
//! paths, list, get, create, update, patch, delete and watch of JSON objects held in memory, label selectors, bookmarks, and `Status`
//! errors. Twins may share their objects, as apiservers share one etcd ([`Storage`]), and say who they are as apiservers do
//! ([`TwinConfig::hostname`]). Every answer names the twin in `x-twin-id`. Under `/debug/twin/`, or at any path with the header `x-twin-debug`, it
//! misbehaves on request (see `debug.rs`).
//!
//! Always: bodies wait for flow control in both directions, so a slow peer costs windows, not memory; a twin's tasks form
//! one tree, so that cutting the root cuts everything.
//!
//! Deliberately absent: upgrades, idle time limits, authorisation, JSON and strategic merge patches, field ownership, deletecollection,
//! field selectors, paging, subresources, protobuf, the existence check of namespaces, and the GOAWAY that follows an anonymous answer.
//! The EndpointSlice `default/kubernetes` is there when somebody writes it: kube-apiserver takes no loopback address into it, and twins
//! have no other.
//! GOAWAY is sent in two steps (RFC 9113 §6.8), while kube-apiserver names the last stream at once. HEAD of a resource is answered
//! as GET, for tests of HEAD, while kube-apiserver has 405. `tests/twin_is_true.rs` compares the rest with the real server.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

use crate::error::Error;
use crate::pki::KeyPairPem;
use crate::{ports, tls};

pub mod apis;

mod clock;
mod debug;
mod documents;
mod exchange;
mod http1;
mod identity;
mod merge;
mod path;
mod resources;
mod samples;
mod selector;
mod serve;
mod status;
mod store;
mod watches;
mod wire;

pub use debug::pattern_byte;
pub use identity::server_id;

use apis::Api;
use exchange::Served;
use identity::Identity;
use store::Store;

/// What a twin serves and how; the defaults of [`TwinConfig::new`] are those of kube-apiserver v1.36.
#[derive(Debug, Clone)]
pub struct TwinConfig {
    /// The value of `x-twin-id`, such as `cp-a`.
    pub id: String,
    /// `gitVersion` of `/version`.
    pub version: String,
    /// Groups, versions and resources, in the order of the discovery documents.
    pub apis: Vec<Api>,
    /// The name of its host. With it, the twin keeps an identity Lease in kube-system while it runs, as kube-apiserver does, and writes an
    /// entry into every StorageVersion if it serves those.
    pub hostname: Option<String>,
    /// Where its objects are, when they are not its own.
    pub storage: Option<Storage>,
    /// The serving certificate.
    pub serving: KeyPairPem,
    /// Port on 127.0.0.1; 0 takes one of [`ports`], where a twin can be started again.
    pub port: u16,
    /// With it, client certificates are requested, and must verify against it when shown.
    pub client_ca: Option<String>,
    /// Answers 401 to a request without bearer token on a connection without client certificate.
    pub require_token: bool,
    /// SETTINGS_MAX_CONCURRENT_STREAMS.
    pub max_concurrent_streams: u32,
    /// SETTINGS_INITIAL_WINDOW_SIZE.
    pub stream_window: u32,
    /// The receive window of a connection.
    pub connection_window: u32,
    /// SETTINGS_MAX_FRAME_SIZE.
    pub max_frame: u32,
    /// SETTINGS_MAX_HEADER_LIST_SIZE.
    pub max_header_list: u32,
    /// The largest object that is taken, in bytes; above is 413.
    pub max_body: usize,
    /// Connections at a time; further ones are closed at once.
    pub max_connections: usize,
    /// GOAWAY after this many requests on a connection.
    pub goaway_every: Option<u32>,
    /// How long it takes to start; at once without it.
    pub start: Option<SlowStart>,
    /// How long [`Twin::stop`] waits for running exchanges before it cuts them.
    pub stop_grace: Duration,
}

impl TwinConfig {
    /// A configuration with defaults for everything else.
    pub fn new(id: &str, serving: KeyPairPem, apis: Vec<Api>) -> Self {
        Self {
            id: id.into(),
            version: "v1.36.4".into(),
            apis,
            hostname: None,
            storage: None,
            serving,
            port: 0,
            client_ca: None,
            require_token: false,
            max_concurrent_streams: 100,
            stream_window: 262_144,
            // 256 KiB for each of 100 streams.
            connection_window: 26_214_400,
            max_frame: 262_144,
            max_header_list: 1_048_896,
            max_body: 4 << 20,
            max_connections: 4_096,
            goaway_every: None,
            start: None,
            stop_grace: Duration::from_secs(5),
        }
    }
}

/// As kube-apiserver starts: connections are taken by its kernel long before it serves them, and it serves before `/readyz` is 200.
#[derive(Debug, Clone, Copy)]
pub struct SlowStart {
    /// From listening to serving. Its identity Lease is written then.
    pub listens: Duration,
    /// From serving to `/readyz`.
    pub serves: Duration,
}

/// Objects that several twins share, as apiservers share those in one etcd. They stay when twins go. Cloning shares them.
#[derive(Debug, Clone)]
pub struct Storage(Arc<Store>);

impl Storage {
    fn store(&self) -> Arc<Store> {
        Arc::clone(&self.0)
    }
}

impl Default for Storage {
    fn default() -> Self {
        Self(Arc::new(Store::new()))
    }
}

/// A running twin. Dropping it is like [`Twin::abort`], without waiting.
pub struct Twin {
    address: SocketAddr,
    served: Arc<Served>,
    stopping: watch::Sender<bool>,
    root: JoinHandle<()>,
}

/// What a twin has seen since its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// TCP connections accepted.
    pub connections: u64,
    /// Requests received, whatever became of them.
    pub requests: u64,
    /// Connections and exchanges that ended in an error, resets by the client included.
    pub failures: u64,
}

#[derive(Default)]
pub(crate) struct Counters {
    connections: AtomicU64,
    requests: AtomicU64,
    failures: AtomicU64,
}

impl Twin {
    /// Binds the port and serves on the current tokio runtime, inside of which it must be called.
    pub fn start(config: TwinConfig) -> Result<Self, Error> {
        let at = SocketAddr::from((Ipv4Addr::LOCALHOST, config.port));
        let failed = |source| Error::Io(format!("cannot listen on {at}"), source);
        let listener = if config.port == 0 { ports::listen() } else { StdListener::bind(at) };
        let listener = listener.map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let listener = TcpListener::from_std(listener).map_err(failed)?;
        let tls = tls::server_config(&config.serving, config.client_ca.as_deref())?;
        let identity = Identity::new(&config, address);
        let served = Arc::new(Served::new(config, address)?);
        if let Some(identity) = identity.as_ref().filter(|_| served.config.start.is_none()) {
            identity.announce(&served.store, &served.config.apis);
        }
        let stopping = watch::Sender::new(false);
        let root = tokio::spawn(run(listener, tls, Arc::clone(&served), identity, stopping.subscribe()));
        Ok(Self { address, served, stopping, root })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has seen so far.
    pub fn counts(&self) -> Counts {
        self.served.counters.read()
    }

    /// Deletes its identity Lease, closes the listener, ends watches, sends GOAWAY and waits for running exchanges, at most `stop_grace`.
    ///
    /// Dropping the future cuts what is still running.
    pub async fn stop(mut self) {
        self.stopping.send_replace(true);
        let grace = self.served.config.stop_grace;
        if tokio::time::timeout(grace, &mut self.root).await.is_err() {
            self.abort().await;
        }
    }

    /// Cuts the listener and every connection at once, as `kill -9` would; the port is free when this returns. An identity Lease stays.
    pub async fn abort(mut self) {
        self.root.abort();
        // Cancelled is what it should be; a panic in it has been printed already.
        drop((&mut self.root).await);
    }
}

/// Serves until the twin stops. Dropping the future cuts everything.
async fn run(
    listener: TcpListener,
    tls: Arc<rustls::ServerConfig>,
    served: Arc<Served>,
    identity: Option<Identity>,
    stopping: watch::Receiver<bool>,
) {
    if let Some(start) = served.config.start {
        tokio::time::sleep(start.listens).await;
        if let Some(identity) = &identity {
            identity.announce(&served.store, &served.config.apis);
        }
    }
    let kept = async {
        if let Some(identity) = identity {
            identity.keep(&served.store, stopping.clone()).await;
        }
    };
    tokio::join!(serve::accept(listener, tls, Arc::clone(&served), stopping.clone()), kept);
}

impl Drop for Twin {
    fn drop(&mut self) {
        self.root.abort();
    }
}

impl fmt::Debug for Twin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Twin").field("id", &self.served.config.id).field("address", &self.address).finish()
    }
}

impl Counters {
    fn read(&self) -> Counts {
        Counts {
            connections: self.connections.load(Ordering::Relaxed),
            requests: self.requests.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
        }
    }
}
