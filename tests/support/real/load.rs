//! Load on a control plane while something happens to it: requests and watches through all proxies, everything written down.
//!
//! What always holds: every request is sent once, under an Audit-ID of its own, and one worker sends one after the other; a watch goes on
//! from the last `resourceVersion` that it saw and never lists again; all watches of a worker see everything that it does, from its first
//! write to its last.
//!
//! It judges only what needs no knowledge of what happened: the order of events, and answers that a watch never may get.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::client::{Response, Watch};
use loadgen::{Client, Error};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tokio::time::{interval, sleep, timeout};

use super::plane::ADMIN;
use super::proxy::Fleet;
use crate::support::{eventually, headers};

/// Who sends requests.
pub const WORKERS: usize = 10;
/// Watches of what one worker writes: 100 in all.
const WATCHES_EACH: usize = 10;
/// From one request of a worker to the next: 143 a second in all. What was late is made up for.
const EVERY: Duration = Duration::from_millis(70);
/// Requests of one worker; a quarter of an hour.
const TURNS_MAX: usize = 12_000;
/// What the last objects of a worker are called, with a number.
const END: &str = "end-";
/// Turns until a worker begins anew.
const CYCLE: usize = 8;
/// For all watches to be open.
const OPEN_LIMIT: Duration = Duration::from_secs(60);
/// For the head of a watch; then it is asked for again.
const HEAD_LIMIT: Duration = Duration::from_secs(5);
/// From the end of a watch to the next attempt.
const RESUME_PAUSE: Duration = Duration::from_millis(50);
/// Attempts to open one watch; a pause lies between two of them.
const ATTEMPTS_MAX: usize = 2_000;
/// Writes of which one has to succeed, so that the watches of a worker know that they have seen all.
const ENDS_MAX: usize = 10;
/// From one of them to the next.
const END_PAUSE: Duration = Duration::from_millis(500);
/// From the last write to its event at every watch.
const END_LIMIT: Duration = Duration::from_secs(30);

/// Something that every version has, to be written and watched.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    api_version: &'static str,
    name: &'static str,
    /// Where it is listed.
    pub path: &'static str,
}

/// Workers take them in turn.
pub const KINDS: [Kind; 2] = [
    Kind { api_version: "v1", name: "ConfigMap", path: "/api/v1/namespaces/default/configmaps" },
    Kind { api_version: "coordination.k8s.io/v1", name: "Lease", path: "/apis/coordination.k8s.io/v1/namespaces/default/leases" },
];

/// What a request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Deed {
    Create,
    Patch,
    Delete,
    /// Reads what every server serves.
    Read,
    /// Reads one of the paths given to [`Load::start`].
    ReadExtra(usize),
}

/// What came of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Status(StatusCode),
    /// A reset, a lost connection, or nothing in time.
    Broken(String),
}

/// One request.
#[derive(Debug, Clone)]
pub struct Request {
    pub audit_id: String,
    pub worker: usize,
    pub deed: Deed,
    /// The object it is about.
    pub object: String,
    pub sent: Instant,
    pub done: Instant,
    pub outcome: Outcome,
    /// Was it told to try again?
    pub retry_after: bool,
    /// What a write made of the object.
    pub version: Option<u64>,
}

/// An event of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub change: String,
    pub object: String,
    pub version: u64,
}

/// What a watch saw.
#[derive(Debug, Default)]
pub struct Seen {
    /// Whose objects it watched.
    pub worker: usize,
    /// All but bookmarks.
    pub events: Vec<Event>,
    /// How often it went on after it had been cut.
    pub resumed: usize,
    /// The longest time from a cut to the next head.
    pub longest: Duration,
    /// When it ended as if it were complete.
    pub clean_ends: Vec<Instant>,
    /// Why it could not be opened at the first attempt.
    pub refused: Vec<String>,
    /// What no watch may see.
    pub wrong: Vec<String>,
}

/// All of it.
pub struct Log {
    /// Of each worker in the order of sending.
    pub requests: Vec<Request>,
    pub watches: Vec<Seen>,
    /// How long requests were sent.
    pub time: Duration,
}

/// Load that goes on.
pub struct Load {
    stop: Arc<AtomicBool>,
    begun: Instant,
    workers: Vec<JoinHandle<Vec<Request>>>,
    watches: Vec<JoinHandle<Seen>>,
}

/// Which proxy a worker uses.
pub fn proxy_of(worker: usize, proxies: usize) -> usize {
    worker % proxies
}

fn kind_of(worker: usize) -> Kind {
    KINDS[worker % KINDS.len()]
}

impl Request {
    /// The status, if it was answered.
    pub fn status(&self) -> Option<StatusCode> {
        match self.outcome {
            Outcome::Status(status) => Some(status),
            Outcome::Broken(_) => None,
        }
    }

    /// Was it answered 2xx?
    pub fn is_success(&self) -> bool {
        self.status().is_some_and(|status| status.is_success())
    }

    /// Does it change something?
    pub fn is_write(&self) -> bool {
        matches!(self.deed, Deed::Create | Deed::Patch | Deed::Delete)
    }
}

impl Seen {
    /// Of a watch that did not come to its end.
    fn unfinished(worker: usize) -> Self {
        let wrong = vec![format!("the last write of worker {worker} was not seen within {END_LIMIT:?}")];
        Self { worker, wrong, ..Self::default() }
    }
}

impl Load {
    /// Opens the watches, waits until all are open, and begins to send. `extra` are further reads: the first two each
    /// worker makes once in a cycle, the other two once in two.
    pub async fn start(fleet: &Arc<Fleet>, extra: &'static [&'static str]) -> Self {
        let client = fleet.proxies[0].client(ADMIN).await;
        let mut begin = Vec::new();
        for kind in KINDS {
            begin.push(version_of(&client.get(kind.path).await.unwrap()).unwrap());
        }
        let opened = Arc::new(AtomicUsize::new(0));
        let watches = (0..WORKERS * WATCHES_EACH).map(|nth| {
            // The watches of a worker are spread over all proxies.
            let (worker, proxy) = (nth / WATCHES_EACH, nth % fleet.proxies.len());
            let seen = Seen { worker, ..Seen::default() };
            let last = begin[worker % KINDS.len()];
            let watcher = Watcher { fleet: Arc::clone(fleet), proxy, last, cut: None, was_open: false, opened: Arc::clone(&opened), seen };
            tokio::spawn(watcher.run())
        });
        let watches: Vec<_> = watches.collect();
        eventually("all watches are open", OPEN_LIMIT, || opened.load(Ordering::Relaxed) == watches.len()).await;
        let stop = Arc::new(AtomicBool::new(false));
        let mut workers = Vec::new();
        for number in 0..WORKERS {
            let worker = Worker::new(number, fleet, extra).await;
            workers.push(tokio::spawn(worker.run(Arc::clone(&stop))));
        }
        Self { stop, begun: Instant::now(), workers, watches }
    }

    /// Ends it; what was sent, and what was seen until everything was.
    pub async fn finish(self) -> Log {
        self.stop.store(true, Ordering::Relaxed);
        let mut requests = Vec::new();
        for worker in self.workers {
            requests.extend(worker.await.unwrap());
        }
        let time = self.begun.elapsed();
        let limit = tokio::time::Instant::now() + END_LIMIT;
        let mut watches = Vec::new();
        for (nth, watch) in self.watches.into_iter().enumerate() {
            let seen = tokio::time::timeout_at(limit, watch).await;
            watches.push(seen.map_or_else(|_| Seen::unfinished(nth / WATCHES_EACH), |seen| seen.unwrap()));
        }
        Log { requests, watches, time }
    }
}

/// Sends requests.
struct Worker {
    number: usize,
    fleet: Arc<Fleet>,
    client: Client,
    extra: &'static [&'static str],
    turn: usize,
    /// Was the object of this cycle created, as far as it was told?
    is_made: bool,
    requests: Vec<Request>,
}

impl Worker {
    async fn new(number: usize, fleet: &Arc<Fleet>, extra: &'static [&'static str]) -> Self {
        let client = fleet.proxies[proxy_of(number, fleet.proxies.len())].client(ADMIN).await;
        let fleet = Arc::clone(fleet);
        let mut worker = Self { number, fleet, client, extra, turn: 0, is_made: false, requests: Vec::new() };
        let state = worker.named("state");
        assert!(worker.create(&state).await, "{:?}", worker.requests);
        worker
    }

    async fn run(mut self, stop: Arc<AtomicBool>) -> Vec<Request> {
        let mut ticks = interval(EVERY);
        while !stop.load(Ordering::Relaxed) && self.turn < TURNS_MAX {
            ticks.tick().await;
            self.act().await;
            self.turn += 1;
        }
        for nth in 0..ENDS_MAX {
            let end = self.named(&format!("{END}{nth}"));
            if self.create(&end).await {
                break;
            }
            sleep(END_PAUSE).await;
        }
        self.requests
    }

    async fn act(&mut self) {
        let cycle = self.turn / CYCLE;
        let (object, state) = (self.named(&cycle.to_string()), self.named("state"));
        match self.turn % CYCLE {
            0 => self.is_made = self.create(&object).await,
            1 => self.read_extra(2 + cycle % 2).await,
            2 | 6 => self.patch(&state).await,
            // With a limit and no selector a server that has not filled its cache yet asks etcd; else it would say 429.
            3 => self.read(Deed::Read, &format!("{}?limit=5", self.path())).await,
            4 => self.read_extra(0).await,
            // What could not be made for sure may be absent, and every other object stays.
            5 if self.is_made && cycle % 2 == 1 => self.delete(&object).await,
            7 => self.read_extra(1).await,
            _ => self.read(Deed::Read, &format!("{}/{state}", self.path())).await,
        }
    }

    fn named(&self, what: &str) -> String {
        name_of(self.number, what)
    }

    fn path(&self) -> &'static str {
        kind_of(self.number).path
    }

    async fn create(&mut self, object: &str) -> bool {
        let kind = kind_of(self.number);
        let metadata = json!({"name": object, "labels": {"worker": self.number.to_string()}});
        let body = json!({"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata});
        self.send(Deed::Create, Method::POST, kind.path, object, body.to_string().into()).await
    }

    async fn patch(&mut self, object: &str) {
        let body = json!({"metadata": {"annotations": {"turn": self.turn.to_string()}}});
        self.send(Deed::Patch, Method::PATCH, &format!("{}/{object}", self.path()), object, body.to_string().into()).await;
    }

    async fn delete(&mut self, object: &str) {
        self.send(Deed::Delete, Method::DELETE, &format!("{}/{object}", self.path()), object, Bytes::new()).await;
    }

    async fn read_extra(&mut self, nth: usize) {
        if let Some(&path) = self.extra.get(nth) {
            self.read(Deed::ReadExtra(nth), path).await;
        }
    }

    async fn read(&mut self, deed: Deed, path: &str) {
        self.send(deed, Method::GET, path, path, Bytes::new()).await;
    }

    /// Sends it, once, and writes down what came of it; was it a success?
    async fn send(&mut self, deed: Deed, method: Method, path: &str, object: &str, body: Bytes) -> bool {
        let audit_id = format!("load-{}-{}", self.number, self.requests.len());
        let content = if deed == Deed::Patch { "application/merge-patch+json" } else { "application/json" };
        let fields = headers([("audit-id", audit_id.as_str()), ("content-type", content)]);
        let sent = Instant::now();
        let answer = self.client.request(method, path, fields, body, None).await;
        let done = Instant::now();
        let (outcome, retry_after, version) = match &answer {
            Ok(answer) => {
                let is_object = answer.status.is_success() && matches!(deed, Deed::Create | Deed::Patch);
                let version = if is_object { version_of(answer) } else { None };
                (Outcome::Status(answer.status), answer.header("retry-after").is_some(), version)
            }
            Err(error) => (Outcome::Broken(error.to_string()), false, None),
        };
        let object = object.to_owned();
        let request = Request { audit_id, worker: self.number, deed, object, sent, done, outcome, retry_after, version };
        let is_success = request.is_success();
        self.requests.push(request);
        if answer.is_err() {
            renew(&mut self.client, &self.fleet, proxy_of(self.number, self.fleet.proxies.len())).await;
        }
        is_success
    }
}

fn name_of(worker: usize, what: &str) -> String {
    format!("w{worker}-{what}")
}

/// Is it an object that a worker makes when it has done everything else? Its watches end with the first that they see.
pub fn is_end(object: &str) -> bool {
    object.split_once('-').is_some_and(|(_, what)| what.starts_with(END))
}

/// The `resourceVersion` of an object or a list.
fn version_of(answer: &Response) -> Option<u64> {
    let object = answer.json().ok()?;
    object["metadata"]["resourceVersion"].as_str()?.parse().ok()
}

/// Connects anew when the connection takes no more requests.
async fn renew(client: &mut Client, fleet: &Fleet, proxy: usize) {
    let is_good = matches!(timeout(Duration::from_secs(1), client.ready()).await, Ok(Ok(())));
    if !is_good {
        *client = fleet.proxies[proxy].client(ADMIN).await;
    }
}

/// Watches what one worker writes, as an informer does that never needs to list again.
struct Watcher {
    fleet: Arc<Fleet>,
    proxy: usize,
    /// The `resourceVersion` up to which everything was seen.
    last: u64,
    /// Since when it is cut.
    cut: Option<Instant>,
    was_open: bool,
    opened: Arc<AtomicUsize>,
    seen: Seen,
}

impl Watcher {
    async fn run(mut self) -> Seen {
        let mut client = self.fleet.proxies[self.proxy].client(ADMIN).await;
        for _ in 0..ATTEMPTS_MAX {
            let path = self.path();
            match timeout(HEAD_LIMIT, client.watch(&path)).await {
                Ok(Ok(watch)) if watch.status == StatusCode::OK => {
                    self.on_open();
                    if self.follow(watch).await {
                        return self.seen;
                    }
                    self.cut = Some(Instant::now());
                }
                // The API is there on every server, and the version was seen a moment ago: both would be lies.
                Ok(Ok(watch)) if matches!(watch.status, StatusCode::NOT_FOUND | StatusCode::GONE) => {
                    self.seen.wrong.push(format!("{} to a watch", watch.status));
                }
                Ok(Ok(watch)) => self.seen.refused.push(watch.status.to_string()),
                Ok(Err(error)) => self.seen.refused.push(error.to_string()),
                Err(_) => self.seen.refused.push(format!("no head within {HEAD_LIMIT:?}")),
            }
            if !self.seen.wrong.is_empty() {
                return self.seen;
            }
            sleep(RESUME_PAUSE).await;
            renew(&mut client, &self.fleet, self.proxy).await;
        }
        self.seen.wrong.push(format!("given up after {ATTEMPTS_MAX} attempts"));
        self.seen
    }

    fn path(&self) -> String {
        let (path, worker) = (kind_of(self.seen.worker).path, self.seen.worker);
        format!("{path}?watch=true&allowWatchBookmarks=true&labelSelector=worker={worker}&resourceVersion={}", self.last)
    }

    fn on_open(&mut self) {
        if !std::mem::replace(&mut self.was_open, true) {
            self.opened.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(cut) = self.cut.take() {
            self.seen.resumed += 1;
            self.seen.longest = self.seen.longest.max(cut.elapsed());
        }
    }

    /// Takes events until the watch ends; true when that was the last one there is.
    async fn follow(&mut self, mut watch: Watch) -> bool {
        loop {
            match watch.next_event().await {
                Ok(Some(event)) if event["type"] == "ERROR" => {
                    self.on_error(&event["object"]);
                    return false;
                }
                Ok(Some(event)) => self.on_event(&event),
                // A body that was cut must not look as if it were complete.
                Err(Error::Json(error)) => {
                    self.seen.wrong.push(format!("an event was cut, or is none: {error}"));
                    return false;
                }
                Ok(None) => {
                    self.seen.clean_ends.push(Instant::now());
                    return false;
                }
                Err(_) => return false,
            }
            if self.seen.events.last().is_some_and(|event| is_end(&event.object)) {
                return true;
            }
        }
    }

    fn on_error(&mut self, status: &Value) {
        let text = format!("an event of a watch: {status}");
        if status["code"] == 410 {
            self.seen.wrong.push(text);
        } else {
            self.seen.refused.push(text);
        }
    }

    fn on_event(&mut self, event: &Value) {
        let metadata = &event["object"]["metadata"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let (change, object) = (text(&event["type"]), text(&metadata["name"]));
        let version: u64 = text(&metadata["resourceVersion"]).parse().unwrap_or_default();
        let is_bookmark = change == "BOOKMARK";
        // A bookmark may repeat what is known; an event must be newer than all before, also than those of the watch before.
        if version < self.last || (version == self.last && !is_bookmark) {
            self.seen.wrong.push(format!("{change} {object} of version {version} after version {}", self.last));
        }
        self.last = version;
        if !is_bookmark {
            self.seen.events.push(Event { change, object, version });
        }
    }
}
