//! The status port: whether it is well, what it counts, what it knows. Plain HTTP on 127.0.0.1, on threads of its own.
//!
//! What always holds: it reads what shards and discovery publish anyway, and makes neither wait; the port is bound before anything else is
//! started, and answers from then on; nothing can be changed through it.
//!
//! `http` moves bytes; `health`, `metrics`, `routes` and `explain` make what is said of what is known.

pub(crate) mod explain;
mod health;
mod http;
mod metrics;
pub(crate) mod routes;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use discovery::live::Status;
use discovery::{Readers, Snapshot, live};
use engine::ShardView;

use self::health::Check;
use self::http::{Reply, Request};
use crate::failure::Failure;

/// The port when nothing else is said.
pub(crate) const DEFAULT_PORT: u16 = 6446;

/// What can be looked at. It fills as the program starts.
#[derive(Default)]
pub(crate) struct Board {
    engine: OnceLock<engine::Observer>,
    routes: OnceLock<Readers>,
    discovery: OnceLock<Discovery>,
    is_draining: AtomicBool,
}

/// Live discovery, where there is one.
struct Discovery {
    observer: live::Observer,
    /// Is a Lease of our own kept?
    announces: bool,
    since: Instant,
    /// Was a Lease of the local server ever seen?
    identified: AtomicBool,
}

/// Takes the port and answers there; 0 is none.
pub(crate) fn start(port: u16) -> Result<Arc<Board>, Failure> {
    let board = Arc::new(Board::default());
    if port == 0 {
        return Ok(board);
    }
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let listener = TcpListener::bind(address).map_err(|error| {
        let fix = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                "another process listens there (another mvproxy?); stop it, or choose another --status-port, or 0"
            }
            _ => "choose another --status-port, or 0",
        };
        Failure::runtime(format_args!("cannot listen on {address}: {error}: {fix}"))
    })?;
    let seen = Arc::clone(&board);
    http::start(listener, move |request| seen.answer(request))
        .map_err(|error| Failure::runtime(format_args!("cannot start a thread: {error}; raise the limit of processes (ulimit -u)")))?;
    Ok(board)
}

impl Board {
    /// Routing is there. Each part is told once.
    pub(crate) fn show_routes(&self, routes: Readers) {
        self.routes.set(routes).ok();
    }

    /// Discovery runs.
    pub(crate) fn show_discovery(&self, observer: live::Observer, announces: bool) {
        self.discovery.set(Discovery { observer, announces, since: Instant::now(), identified: AtomicBool::new(false) }).ok();
    }

    /// The shards run.
    pub(crate) fn show_engine(&self, engine: engine::Observer) {
        self.engine.set(engine).ok();
    }

    /// The end has begun: no longer ready.
    pub(crate) fn show_drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    fn answer(&self, request: &Request) -> Reply {
        let path = request.path.strip_prefix('/').unwrap_or_default();
        let path = path.strip_suffix('/').unwrap_or(path);
        let (endpoint, only) = path.split_once('/').map_or((path, None), |(endpoint, name)| (endpoint, Some(name)));
        match (endpoint, only) {
            ("livez" | "healthz", only) => health::reply(endpoint, only, &self.alive(), request),
            ("readyz", only) => health::reply(endpoint, only, &self.ready(), request),
            ("metrics", None) => metrics::reply(&self.shards().unwrap_or_default(), self.snapshot().as_deref(), self.status().as_deref()),
            ("routes", None) => self.with_snapshot(|snapshot, status| json(&routes::of(snapshot, status, Instant::now()))),
            ("explain", None) => self.explain(request),
            _ => Reply::text(404, "not here: /livez, /readyz, /metrics, /routes, /explain?method=GET&path=/api/v1/pods\n"),
        }
    }

    fn explain(&self, request: &Request) -> Reply {
        let Some(path) = request.value("path").filter(|path| !path.is_empty()) else {
            return Reply::text(400, "no path: ask for /explain?method=GET&path=/api/v1/pods, with the path escaped\n");
        };
        let method = request.value("method").unwrap_or("GET");
        self.with_snapshot(|snapshot, status| json(&explain::of(snapshot, &routes::servers(snapshot, status), method, path)))
    }

    fn alive(&self) -> Vec<Check> {
        vec![Check::new("ping", None), health::shards(self.shards().as_deref())]
    }

    fn ready(&self) -> Vec<Check> {
        let mut checks = self.alive();
        let started = self.engine.get().is_none().then(|| "it is starting".to_owned());
        let draining = self.is_draining.load(Ordering::Relaxed).then(|| "it is ending".to_owned());
        checks.extend([Check::new("started", started), Check::new("shutdown", draining)]);
        if let (Some(discovery), Some(status)) = (self.discovery.get(), self.status()) {
            let now = health::is_identified(&status);
            let identified = discovery.identified.fetch_or(now, Ordering::Relaxed) || now;
            checks.extend(health::discovery(&status, discovery.announces, discovery.since.elapsed(), identified));
        }
        checks
    }

    /// `None` before they are started.
    fn shards(&self) -> Option<Vec<ShardView>> {
        self.engine.get().map(engine::Observer::shards)
    }

    fn status(&self) -> Option<Arc<Status>> {
        self.discovery.get().map(|discovery| discovery.observer.status())
    }

    fn snapshot(&self) -> Option<Arc<Snapshot>> {
        self.routes.get().map(|routes| Arc::clone(routes.reader().current()))
    }

    fn with_snapshot(&self, reply: impl FnOnce(&Snapshot, Option<&Status>) -> Reply) -> Reply {
        match self.snapshot() {
            Some(snapshot) => reply(&snapshot, self.status().as_deref()),
            None => Reply::text(503, "it is starting\n"),
        }
    }
}

fn json(value: &impl serde::Serialize) -> Reply {
    match serde_json::to_string_pretty(value) {
        Ok(text) => Reply { status: 200, content_type: "application/json", body: text + "\n" },
        Err(error) => Reply::text(500, format!("{error}\n")),
    }
}
