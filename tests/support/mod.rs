//! The world of an integration test: simulated apiservers, an engine in this process, and clients in front of it.
//!
//! ```ignore
//! let world = World::on(driver).local("cp-a", apis::everywhere()).peer("cp-b", apis::batch()).start();
//! let client = world.client().await;
//! ```
//!
//! What always holds: every world has an authority, ports and an engine of its own, so that tests run side by side; the twins live on
//! the tokio runtime of the test; dropping a world ends what it started.

// Every test file compiles all of this and uses some of it.
#![allow(dead_code, unused_imports, unreachable_pub, reason = "shared by test files that each use a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test stops at the first surprise, helpers included")]

pub mod attacks;
pub mod binary;
pub mod frames;
pub mod go;
pub mod hostile;
pub mod http1;
pub mod python;
pub mod raw;
pub mod real;
pub mod script;
pub mod siege;
pub mod syns;
pub mod tools;

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use bytes::Bytes;
use discovery::{Gvr, Publisher, Server, ServerId, ServerSet, Snapshot, SnapshotBuilder};
use engine::{Config, Engine, Limits, ShardFailed, tls};
use http::{HeaderMap, HeaderName, HeaderValue};
use loadgen::twin::apis::Api;
use loadgen::twin::pattern_byte;
use loadgen::{Client, Pki, Twin, TwinConfig};
use rustls::pki_types::UnixTime;
use socket2::{Domain, Socket, Type};

pub use engine::IoDriver;
pub use loadgen::twin::apis;

/// The token of every client that asks for none in particular.
pub const TOKEN: &str = "token-of-the-test";
/// The name in the certificates that tests dial.
pub const NAME: &str = "localhost";

/// Makes of every named `async fn(IoDriver)` one test per driver.
#[macro_export]
macro_rules! on_both_drivers {
    ($($(#[$attribute:meta])* $name:ident),+ $(,)?) => {
        mod io_uring {
            $($(#[$attribute])* #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name($crate::support::IoDriver::IoUring).await; })+
        }
        mod epoll {
            $($(#[$attribute])* #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() { super::$name($crate::support::IoDriver::Epoll).await; })+
        }
    };
}

/// What a world will have.
pub struct Plan {
    driver: IoDriver,
    shards: usize,
    limits: Limits,
    pki: Pki,
    servers: Vec<Planned>,
}

/// One apiserver, local first.
struct Planned {
    id: String,
    apis: Vec<Api>,
    kind: Kind,
}

enum Kind {
    Twin(Box<TwinConfig>),
    /// Something else that listens there, or nothing that does.
    At(SocketAddr),
}

/// Servers, an engine, and what clients need.
pub struct World {
    pki: Pki,
    twins: BTreeMap<String, Twin>,
    configs: BTreeMap<String, TwinConfig>,
    routes: Publisher,
    engine: Option<Engine>,
    address: SocketAddr,
}

impl World {
    /// A plan with nothing in it; the first server named with [`Plan::local`] or [`Plan::local_at`] is local.
    pub fn on(driver: IoDriver) -> Plan {
        Plan { driver, shards: 1, limits: Limits::default(), pki: Pki::new().unwrap(), servers: Vec::new() }
    }

    /// Where the engine listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A URL for external tools; the certificate is good for `localhost`.
    pub fn url(&self, path: &str) -> String {
        format!("https://{NAME}:{}{path}", self.address.port())
    }

    /// The authority that signed all certificates.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        self.engine.as_ref().unwrap()
    }

    /// The running twin of that id.
    pub fn twin(&self, id: &str) -> &Twin {
        self.twins.get(id).unwrap_or_else(|| panic!("no twin `{id}` is running"))
    }

    /// A new connection to the engine, with the token [`TOKEN`].
    pub async fn client(&self) -> Client {
        self.client_of(Some(TOKEN)).await
    }

    /// A new connection to the engine, with that token or none.
    pub async fn client_of(&self, bearer: Option<&str>) -> Client {
        Client::connect(self.address, self.pki.ca_pem(), NAME, bearer).await.unwrap()
    }

    /// A new connection to the engine whose streams and windows the test moves itself.
    pub async fn raw(&self) -> raw::Raw {
        raw::Raw::connect(self.address, self.pki.ca_pem(), &h2::client::Builder::new()).await
    }

    /// Cuts the twin's listener and connections, as `kill -9` would.
    pub async fn kill(&mut self, id: &str) {
        let twin = self.twins.remove(id).unwrap_or_else(|| panic!("no twin `{id}` is running"));
        let address = twin.address();
        twin.abort().await;
        self.configs.get_mut(id).unwrap().port = address.port();
    }

    /// Starts a killed twin again, where it was.
    pub fn revive(&mut self, id: &str) {
        let twin = Twin::start(self.configs[id].clone()).unwrap();
        self.twins.insert(id.into(), twin);
    }

    /// Replaces what is known about the servers.
    pub fn publish(&mut self, snapshot: Snapshot) {
        self.routes.publish(snapshot);
    }

    /// Drains the engine and waits for its shards.
    pub async fn drain(&mut self) -> Result<(), ShardFailed> {
        let engine = self.engine.take().unwrap();
        engine.drain();
        tokio::task::spawn_blocking(|| engine.join()).await.unwrap()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Not joined: a test that failed must not hang here.
        if let Some(engine) = &self.engine {
            engine.drain();
        }
    }
}

impl Plan {
    /// How many shards, none of them pinned: tests share their CPUs.
    pub fn shards(mut self, shards: usize) -> Self {
        self.shards = shards;
        self
    }

    /// Changes the limits of the engine.
    pub fn limits(mut self, change: impl FnOnce(&mut Limits)) -> Self {
        change(&mut self.limits);
        self
    }

    /// The authority that will sign all certificates.
    pub fn pki(&self) -> &Pki {
        &self.pki
    }

    /// The local server, a twin.
    pub fn local(self, id: &str, apis: Vec<Api>) -> Self {
        self.local_with(id, apis, |_| {})
    }

    /// The local server, a twin with changed configuration.
    pub fn local_with(self, id: &str, apis: Vec<Api>, change: impl FnOnce(&mut TwinConfig)) -> Self {
        assert!(self.servers.is_empty(), "local is named first");
        self.peer_with(id, apis, change)
    }

    /// The local server, not a twin.
    pub fn local_at(self, id: &str, apis: Vec<Api>, address: SocketAddr) -> Self {
        assert!(self.servers.is_empty(), "local is named first");
        self.peer_at(id, apis, address)
    }

    /// A peer, a twin.
    pub fn peer(self, id: &str, apis: Vec<Api>) -> Self {
        self.peer_with(id, apis, |_| {})
    }

    /// A peer, a twin with changed configuration.
    pub fn peer_with(mut self, id: &str, apis: Vec<Api>, change: impl FnOnce(&mut TwinConfig)) -> Self {
        let mut config = TwinConfig::new(id, self.pki.serving().unwrap(), apis.clone());
        change(&mut config);
        self.servers.push(Planned { id: id.into(), apis, kind: Kind::Twin(Box::new(config)) });
        self
    }

    /// A peer, not a twin.
    pub fn peer_at(mut self, id: &str, apis: Vec<Api>, address: SocketAddr) -> Self {
        self.servers.push(Planned { id: id.into(), apis, kind: Kind::At(address) });
        self
    }

    /// Starts the twins, then the engine. Call it inside a tokio runtime.
    pub fn start(self) -> World {
        assert!(!self.servers.is_empty(), "a world needs a local server");
        let (mut twins, mut configs) = (BTreeMap::new(), BTreeMap::new());
        let mut builder = SnapshotBuilder::new(1);
        for (at, Planned { id, apis, kind }) in self.servers.into_iter().enumerate() {
            let address = match kind {
                Kind::At(address) => address,
                Kind::Twin(config) => {
                    let twin = Twin::start((*config).clone()).unwrap();
                    let address = twin.address();
                    twins.insert(id.clone(), twin);
                    configs.insert(id.clone(), *config);
                    address
                }
            };
            let index = builder.server(Server::new(ServerId::new(&id), address)).unwrap();
            if at == 0 {
                builder.local(index);
            }
            for (api, resource) in apis.iter().flat_map(|api| api.resources.iter().map(move |resource| (api, resource))) {
                builder.serve(&Gvr::new(&api.group, &api.version, &resource.plural), ServerSet::only(index)).unwrap();
            }
        }
        let routes = Publisher::new(builder.build().unwrap());
        let config = config(self.driver, self.shards, self.limits);
        let engine = Engine::start(config, tls_configs(&self.pki), &routes.readers()).unwrap();
        let address = engine.address();
        World { pki: self.pki, twins, configs, routes, engine: Some(engine), address }
    }
}

fn config(driver: IoDriver, shards: usize, limits: Limits) -> Config {
    Config {
        bind: (Ipv4Addr::LOCALHOST, 0).into(),
        cpus: vec![None; shards],
        io_driver: driver,
        files: None,
        limits,
        peer_bind: None,
        report: None,
        release: None,
    }
}

/// A fresh serving certificate, and servers of the same authority.
pub fn tls_configs(pki: &Pki) -> tls::Configs {
    let (serving, now) = (pki.serving().unwrap(), UnixTime::now());
    let pair = tls::Pair::new(serving.cert.as_bytes(), serving.key.as_bytes(), now).unwrap();
    let servers = || tls::client_config(pki.ca_pem().as_bytes(), None, tls::SERVERS_SPEAK, now).unwrap();
    tls::Configs {
        clients: tls::Serving::new(&pair, &[], tls::CLIENTS_SPEAK).unwrap(),
        local: servers(),
        peer: servers(),
        proxy: None,
        peer_port: None,
    }
}

/// An address that refuses connections for as long as it is kept: bound, not listening.
pub struct Refusing(Socket);

impl Refusing {
    /// Takes a free port.
    pub fn new() -> Self {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
        Self(socket)
    }

    /// Where nobody listens.
    pub fn address(&self) -> SocketAddr {
        self.0.local_addr().unwrap().as_socket().unwrap()
    }
}

/// Headers from pairs.
pub fn headers<const N: usize>(pairs: [(&str, &str); N]) -> HeaderMap {
    let pair = |(name, value): (&str, &str)| (name.parse::<HeaderName>().unwrap(), value.parse::<HeaderValue>().unwrap());
    pairs.into_iter().map(pair).collect()
}

/// The first bytes of what a twin's `bytes/<n>` sends. It repeats every 256 bytes, so uploads use [`noise`].
pub fn pattern(count: usize) -> Bytes {
    (0..count as u64).map(pattern_byte).collect()
}

/// Bytes that do not repeat, the same for the same seed.
pub fn noise(count: usize, seed: u64) -> Bytes {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(count + 8);
    while bytes.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(count);
    bytes.into()
}

/// Waits until `done`; a panic with `what` when it does not come to be within `limit`.
pub async fn eventually(what: &str, limit: Duration, mut done: impl FnMut() -> bool) {
    let started = Instant::now();
    while !done() {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The same for what has to be asked.
pub async fn until<F: Future<Output = bool>>(what: &str, limit: Duration, mut done: impl FnMut() -> F) {
    let started = Instant::now();
    while !done().await {
        assert!(started.elapsed() < limit, "not within {limit:?}: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Says what is not tested. Not `println`: what a test prints is shown only when it fails.
pub fn notice(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).ok();
}

/// Does somebody want all of it, however long it takes?
pub fn is_long() -> bool {
    std::env::var_os("MVPROXY_LONG").is_some_and(|value| value != "0")
}

/// Resident memory of this process, in bytes.
pub fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
}
