//! The half of this crate that talks to the cluster: one ordinary thread with a runtime of its own, which watches, fetches and probes, folds
//! what it learns into an [`Inventory`], and publishes snapshots.
//!
//! What always holds: routing stays as it was while nothing can be learned, and while the thread is started again after a panic; no address
//! is connected to that is not allowed; everything that waits has a limit.
//!
//! Read `round` (what the thread does), `watch`, `fetch` and `probe` (what it asks), `transport` (how), `announce` (our own Lease).

use std::collections::HashSet;
use std::fmt;
use std::net::SocketAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use http::header::ACCEPT;
use http::{HeaderMap, HeaderValue};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, watch as signal};

use self::round::Kept;
use self::transport::{Leg, Limits, Place, Transport};
use crate::inventory::{Inventory, Lease, Settings};
use crate::{AllowList, BuildError, Publisher, Readers, Server, ServerId, Snapshot, SnapshotBuilder, identity, leases};

pub use self::announce::Announcement;
pub use self::credentials::{Credentials, CredentialsError};
pub use self::status::{ServerStatus, Source, SourceState, Status, SyncErrors};

mod announce;
mod credentials;
mod fetch;
mod loose;
mod objects;
mod probe;
mod round;
mod status;
mod transport;
mod watch;
mod work;

/// Hints that nobody has read yet; more say nothing new.
const HINTS_MAX: usize = 64;
/// The first and the longest pause before the thread is started again after a panic.
const RESTART_PAUSE: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// Two panics this close may have the same cause, which may be what is known: then all of it is learned anew.
const PANICS_APART: Duration = Duration::from_secs(60);
/// What is learned anew is not published before it is complete and names all that was known, or this has passed: as long as a server that
/// left is remembered.
const HOLD: Duration = Duration::from_secs(60);
/// How soon the local server is asked again who it is.
const IDENTIFY_PAUSE: Duration = Duration::from_millis(250);
/// How long the Lease of a server that lists all of them may be missing: it writes its own when it begins to serve.
const OWN_LEASE_MAX: Duration = Duration::from_secs(5);
/// More pages of identity Leases than a cluster has servers for.
const IDENTITY_PAGES: u32 = 50;
/// How long a try may take at the least, however late it is.
const IDENTITIES_TIME: Duration = Duration::from_secs(5);
/// Whatever people ask for: the Nodes of a large cluster, say.
const ANYTHING: Limits = Limits { bytes: 64 << 20, time: Duration::from_secs(30) };

/// How servers are spoken to.
#[derive(Clone, Debug)]
pub struct Access {
    /// Who we are.
    pub credentials: Credentials,
    /// Whom we believe, and what we show.
    pub certificates: Certificates,
}

/// What connections are made with. It may be replaced at any time ([`Live::renew`]).
#[derive(Clone, PartialEq, Eq)]
pub struct Certificates {
    /// Who signed the local server's certificate, in PEM.
    pub local_ca: Vec<u8>,
    /// Who signed the peers' certificates, in PEM.
    pub peer_ca: Vec<u8>,
    /// The front-proxy certificate and its key, in PEM, for the peer ports of other proxies.
    pub client_pair: Option<(Vec<u8>, Vec<u8>)>,
}

/// Shows no key.
impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").field("has_client_pair", &self.client_pair.is_some()).finish_non_exhaustive()
    }
}

/// What live discovery needs to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// Who is local, who is known from the start, what may be connected to.
    pub settings: Settings,
    /// How servers are spoken to.
    pub access: Access,
    /// What our own Lease says; none is kept without it.
    pub announcement: Option<Announcement>,
    /// Takes a line for people when something changed.
    pub log: fn(Severity, &str),
}

/// How much a line of the log matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// What happened.
    Info,
    /// What somebody should look at: a source or a server that cannot be read, certificates that cannot be used.
    Warning,
    /// A fault of ours.
    Error,
}

/// Why live discovery cannot start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error(String);

impl Error {
    fn new(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl From<CredentialsError> for Error {
    fn from(error: CredentialsError) -> Self {
        Self(error.to_string())
    }
}

impl From<BuildError> for Error {
    fn from(error: BuildError) -> Self {
        Self(error.to_string())
    }
}

/// What the engine noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Connections to local were refused, reset, or ended without a GOAWAY.
    LocalInDoubt,
    /// The last connection to a server was lost, none could be had, or the first took very long: it may be another process now.
    Lost {
        /// Whom.
        server: ServerId,
        /// When.
        at: Instant,
    },
    /// No connection to this address could be had.
    Unreachable(SocketAddr),
    /// Lets the thread panic, to see that nothing comes of it. For tests.
    Panic,
}

/// Live discovery at work. Dropping it stops it without waiting.
pub struct Live {
    readers: Readers,
    status: Arc<ArcSwap<Status>>,
    hints: Notifier,
    certificates: signal::Sender<Certificates>,
    stop: signal::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

/// Shows what is known. Cloning is cheap.
#[derive(Clone)]
pub struct Observer(Arc<ArcSwap<Status>>);

impl Observer {
    /// What is known at this moment. Cheap.
    pub fn status(&self) -> Arc<Status> {
        self.0.load_full()
    }
}

/// Tells live discovery what the engine noticed. Cloning is cheap.
#[derive(Clone)]
pub struct Notifier(mpsc::Sender<Hint>);

impl Notifier {
    /// Never waits. A hint is lost when many are there already.
    pub fn notify(&self, hint: Hint) {
        self.0.try_send(hint).ok();
    }
}

/// Starts it. The first snapshot knows local and nothing else, and says that nobody was asked yet.
pub fn start(mut config: Config) -> Result<Live, Error> {
    if let Some(announcement) = &config.announcement {
        config.settings.allowed.own.extend([announcement.peer_address, announcement.server_address]);
    }
    // Made again by every runtime; here to see that it can be.
    drop(Transport::for_settings(&config.access, &config.settings)?);
    let publisher = Publisher::new(first_snapshot(&config.settings)?);
    let readers = publisher.readers();
    let status = Arc::new(ArcSwap::from_pointee(Status::default()));
    let (hints, received) = mpsc::channel(HINTS_MAX);
    let (certificates, renewed) = signal::channel(config.access.certificates.clone());
    let (stop, stopped) = signal::channel(false);
    let kept = Kept::new(config, publisher, Arc::clone(&status), received, renewed, stopped);
    let thread = std::thread::Builder::new().name("discovery".to_owned()).spawn(move || supervise(kept));
    let thread = thread.map_err(|error| Error(format!("no thread for discovery: {error}")))?;
    Ok(Live { readers, status, hints: Notifier(hints), certificates, stop, thread: Some(thread) })
}

impl Live {
    /// What shards read snapshots from.
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    /// What is known at this moment. Cheap.
    pub fn status(&self) -> Arc<Status> {
        self.status.load_full()
    }

    /// What is known at any moment, for other threads.
    pub fn observer(&self) -> Observer {
        Observer(Arc::clone(&self.status))
    }

    /// Tells it what the engine noticed. Never waits.
    pub fn notify(&self, hint: Hint) {
        self.hints.notify(hint);
    }

    /// The same, for other threads.
    pub fn notifier(&self) -> Notifier {
        self.hints.clone()
    }

    /// Makes new connections with these from now on, also after a panic; those in use stay. What cannot be used is said in the log, and
    /// what was used before stays. Never waits.
    pub fn renew(&self, certificates: Certificates) {
        self.certificates.send_if_modified(|current| {
            let is_new = *current != certificates;
            *current = certificates;
            is_new
        });
    }

    /// Deletes our own Lease and ends the thread. Routing stays as it was.
    pub fn stop(mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take() {
            // It catches its own panics.
            drop(thread.join());
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.stop.send_replace(true);
    }
}

/// Asks the local server which of the servers it is: the one whose identity Lease names `hostname`. Tries until `time_max` has passed,
/// because the server may be starting; less long when it answers, and no Lease fits.
pub fn identify(access: &Access, local_address: SocketAddr, hostname: &str, time_max: Duration) -> Result<ServerId, Error> {
    let (runtime, transport, place) = alone(access, local_address)?;
    runtime.block_on(async {
        let began = Instant::now();
        let mut listed: Option<Instant> = None;
        loop {
            let left = time_max.saturating_sub(began.elapsed()).max(IDENTITIES_TIME);
            let identities = tokio::time::timeout(left, list_identities(&transport, place));
            let why = match identities.await.unwrap_or_else(|_| Err("not in time".to_owned())) {
                Ok(leases) => {
                    let has_waited = listed.get_or_insert_with(Instant::now).elapsed() >= OWN_LEASE_MAX || began.elapsed() >= time_max;
                    match identity::choose(hostname, &leases) {
                        // Another name than kube-apiserver gives it is believed only if that one does not come: anybody may have made it.
                        Ok(id) if has_waited || id.as_str() == leases::name_on(hostname) => return Ok(id),
                        Ok(id) => format!("the Lease {id} names this host, and is not named by it"),
                        Err(error) => error.to_string(),
                    }
                }
                Err(why) => {
                    listed = None;
                    let hint = "say which is local with --server-id";
                    format!("the local server at {local_address} did not list the identity Leases: {why}: {hint}")
                }
            };
            if began.elapsed() >= time_max || listed.is_some_and(|since| since.elapsed() >= OWN_LEASE_MAX) {
                return Err(Error(why));
            }
            tokio::time::sleep(IDENTIFY_PAUSE).await;
        }
    })
}

/// Asks a server once, with our credentials and without the allow-list: the status and the body of the answer.
pub fn get(access: &Access, address: SocketAddr, path: &str) -> Result<(u16, Vec<u8>), Error> {
    let (runtime, transport, place) = alone(access, address)?;
    let reply = runtime.block_on(transport.get(place, path, json(), ANYTHING));
    let reply = reply.map_err(|error| Error(format!("{address}: {error}")))?;
    Ok((reply.status.as_u16(), reply.body.to_vec()))
}

fn first_snapshot(settings: &Settings) -> Result<Snapshot, BuildError> {
    let mut builder = SnapshotBuilder::new(0);
    let local = builder.server(Server::new(settings.local.clone(), settings.local_address))?;
    builder.local(local);
    builder.unready(local);
    builder.incomplete();
    builder.build()
}

/// Runs until it is told to stop. A panic leaves what was published as it is.
fn supervise(mut kept: Kept) {
    let mut pause = RESTART_PAUSE.0;
    let mut last_panic: Option<Instant> = None;
    let mut last_error: Option<Error> = None;
    loop {
        let began = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| runtime()?.block_on(round::run(&mut kept))));
        match outcome {
            Ok(Ok(())) => return,
            Ok(Err(error)) => {
                if last_error.as_ref() != Some(&error) {
                    (kept.config.log)(Severity::Error, &format!("discovery: {error}"));
                }
                last_error = Some(error);
            }
            Err(_) => {
                kept.count_panic();
                let line = "discovery: the thread panicked and is started again; routing stays as it was";
                (kept.config.log)(Severity::Error, line);
                if last_panic.is_some_and(|last| last.elapsed() < PANICS_APART) {
                    kept.inventory = Inventory::new(kept.config.settings.clone());
                    kept.hold_until = Some(Instant::now() + HOLD);
                }
                last_panic = Some(Instant::now());
            }
        }
        if kept.is_stopped() {
            return;
        }
        std::thread::sleep(pause);
        pause = if began.elapsed() > PANICS_APART { RESTART_PAUSE.0 } else { (pause * 2).min(RESTART_PAUSE.1) };
    }
}

/// For the calling thread.
fn runtime() -> Result<Runtime, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Error(format!("no runtime: {error}")))
}

/// What one server can be asked with before it is known who it is, without the allow-list.
fn alone(access: &Access, address: SocketAddr) -> Result<(Runtime, Transport, Place), Error> {
    let transport = Transport::new(access, &ServerId::new("unknown"), HashSet::from([address]), AllowList::default())?;
    Ok((runtime()?, transport, Place { address, leg: Leg::Local }))
}

fn json() -> HeaderMap {
    HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static("application/json"))])
}

async fn list_identities(transport: &Transport, place: Place) -> Result<Vec<Lease>, String> {
    #[derive(serde::Deserialize)]
    struct List {
        metadata: ListMeta,
        items: Vec<objects::Lease>,
    }
    #[derive(serde::Deserialize)]
    struct ListMeta {
        r#continue: Option<String>,
    }
    let (key, value) = leases::IDENTITY_LABEL;
    let (mut identities, mut rest) = (Vec::new(), String::new());
    for _ in 0..IDENTITY_PAGES {
        let path = leases_path(&format!("?labelSelector={key}%3D{value}&limit={}{rest}", watch::LEASES_PAGE));
        let reply = transport.get(place, &path, json(), transport::LIST).await.map_err(|error| error.to_string())?;
        if !reply.status.is_success() {
            return Err(reply.status.to_string());
        }
        let list: List = serde_json::from_slice(&reply.body).map_err(|error| error.to_string())?;
        identities.extend(list.items.iter().filter_map(objects::identity));
        match list.metadata.r#continue.filter(|token| !token.is_empty()) {
            Some(token) => rest = format!("&continue={token}"),
            None => return Ok(identities),
        }
    }
    Err(format!("there are more than {}", IDENTITY_PAGES * watch::LEASES_PAGE))
}

/// The Leases of kube-system, and `rest`: one of them, or a query.
fn leases_path(rest: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{}/leases{rest}", leases::NAMESPACE)
}
