//! A forwarded request, and a forwarded watch event, costs the proxy no heap allocation of its own; and a body byte is copied
//! once between the two TLS sessions.
//!
//! The allocator of this test counts on the threads of the shards alone, and apart from ours what rustls allocates behind the TLS
//! seam. `cargo test --test allocations -- --nocapture` prints the figures.
#![expect(clippy::unwrap_used, reason = "the functions beside the tests are tests too")]
#![expect(unsafe_code, reason = "a global allocator cannot be written without")]

use std::alloc::{GlobalAlloc, Layout};
use std::backtrace::Backtrace;
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use engine::Engine;
use http::{HeaderMap, Method};
use loadgen::{Client, Twin};
use tokio::task::JoinSet;

mod support;

use support::{IoDriver, NAME, TOKEN, World, apis, eventually, headers};

/// An object the local server has, and one that only the peer has.
const LOCAL: &str = "/api/v1/namespaces/default/configmaps/demo";
const REROUTED: &str = "/apis/batch/v1/namespaces/default/jobs/demo";

const CONNECTIONS: usize = 8;
const STREAMS: usize = 16;
const GETS: usize = 100_000;
const POSTS: usize = 20_000;
const LARGE_GETS: usize = 2_000;
const WATCHES: usize = 20;
const EVENTS: usize = 100_000;
/// Events between two looks at whether every watch has them: the twin remembers 1,024 for a watch that is behind.
const EVENTS_AHEAD: usize = 256;
/// Requests or events of one round of warm-up, and how many rounds there may be.
const WARMUP_MAX: usize = 25_000;
const WARMUP_ROUNDS_MAX: usize = 10;
/// One of so many measured rounds must be without any allocation. Seen in the others: a buffer for output or a list of blocked exchanges that met its
/// largest content only now, and tables that were given back because a busy machine kept a client silent for a second.
const TRIES: usize = 8;
/// Allocations of any measured round: what happens now and then is not what a request costs. When more requests are under way at a time than ever
/// before, up to all of them, each of the new ones needs room for its head, which grows in five steps.
const ROUND_MAX: u64 = (CONNECTIONS * STREAMS * 5) as u64;
/// Events made at a time. The warm-up makes all of [`EVENTS_AHEAD`] at once, so that lists meet more than they will.
const EVENTS_BURST: usize = 8;
const PATIENCE: Duration = Duration::from_secs(30);
/// A shard without requests looks at the time once a second.
const TICKS: Duration = Duration::from_millis(1_500);

#[global_allocator]
static ALLOCATOR: Counting = Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static OUTSIDE: AtomicU64 = AtomicU64::new(0);
static INSIDE: AtomicU64 = AtomicU64::new(0);
/// Where the first allocations outside of the seam came from.
static TRACES: Mutex<Vec<Backtrace>> = Mutex::new(Vec::new());
const TRACES_MAX: usize = 32;

thread_local! {
    /// Is this the thread of a shard? Not known before it was asked.
    static SHARD: Cell<Option<bool>> = const { Cell::new(None) };
    /// Taking a trace allocates too.
    static TRACING: Cell<bool> = const { Cell::new(false) };
}

/// mimalloc, as in the binary, with a count.
struct Counting;

// SAFETY: every method gives its arguments to mimalloc unchanged and returns what that returned; counting changes no memory
// that was allocated.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `alloc`, which is the same for both.
        unsafe { mimalloc::MiMalloc.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`; `pointer` came from mimalloc.
        unsafe { mimalloc::MiMalloc.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `alloc_zeroed`, which is the same for both.
        unsafe { mimalloc::MiMalloc.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: the caller upholds the contract of `realloc`; `pointer` came from mimalloc.
        unsafe { mimalloc::MiMalloc.realloc(pointer, layout, size) }
    }
}

fn count() {
    if !COUNTING.load(Ordering::Relaxed) || TRACING.get() || !on_shard() {
        return;
    }
    if engine::tls::in_seam() {
        INSIDE.fetch_add(1, Ordering::Relaxed);
    } else {
        OUTSIDE.fetch_add(1, Ordering::Relaxed);
        TRACING.set(true);
        trace();
        TRACING.set(false);
    }
}

/// Shards have their names before anything is counted, so the first answer holds.
fn on_shard() -> bool {
    SHARD.get().unwrap_or_else(|| {
        let mut name = [0u8; 16];
        // SAFETY: PR_GET_NAME writes at most 16 bytes, which `name` has.
        unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) };
        let answer = name.starts_with(b"shard-");
        SHARD.set(Some(answer));
        answer
    })
}

fn trace() {
    let mut traces = TRACES.lock().unwrap();
    if traces.len() < TRACES_MAX {
        traces.push(Backtrace::force_capture());
    }
}

/// What the shards allocate from here to `end`.
struct Phase {
    what: &'static str,
    before: (u64, u64),
}

impl Phase {
    fn begin(what: &'static str) -> Self {
        Self { what, before: (OUTSIDE.load(Ordering::Relaxed), INSIDE.load(Ordering::Relaxed)) }
    }

    /// Prints the figures for `count` requests or events; returns what was allocated outside the seam.
    fn end(self, count: usize) -> u64 {
        let (outside, inside) = (OUTSIDE.load(Ordering::Relaxed) - self.before.0, INSIDE.load(Ordering::Relaxed) - self.before.1);
        let per = inside as f64 / count as f64;
        println!("{}: {count}, allocations outside the TLS seam {outside}, inside {inside} ({per:.2} each)", self.what);
        outside
    }
}

/// Buffers, lists and tables grow until they have met their largest content. The steady state is there when a round of the same
/// load made none of them grow.
#[derive(Default)]
struct Warmup {
    rounds: usize,
    before: u64,
}

impl Warmup {
    fn is_another_needed(&mut self) -> bool {
        let outside = OUTSIDE.load(Ordering::Relaxed);
        let needed = self.rounds == 0 || (outside > self.before && self.rounds < WARMUP_ROUNDS_MAX);
        (self.rounds, self.before) = (self.rounds + 1, outside);
        TRACES.lock().unwrap().clear();
        needed
    }
}

/// Measured rounds, until one is without allocations.
#[derive(Default)]
struct Tries {
    count: usize,
    /// What the last one allocated outside the seam.
    outside: u64,
}

impl Tries {
    fn is_another_needed(&mut self) -> bool {
        let needed = self.count == 0 || self.outside > 0;
        if needed && (self.count == TRIES || self.outside > ROUND_MAX) {
            // Not before the end: it takes seconds, in which connections become idle.
            TRACES.lock().unwrap().drain(..).for_each(|trace| println!("{trace}"));
            panic!("{} allocations outside the TLS seam: the traces above say where", self.outside);
        }
        TRACES.lock().unwrap().clear();
        self.count += 1;
        needed
    }
}

/// One kind of request, sent to the local server and to the peer in turn.
#[derive(Clone)]
struct Load {
    method: Method,
    headers: HeaderMap,
    body: Bytes,
    /// What the answer's body must have at least.
    body_min: usize,
}

impl Load {
    fn get() -> Self {
        Self { method: Method::GET, headers: HeaderMap::new(), body: Bytes::new(), body_min: 1_000 }
    }

    fn debug(method: Method, behaviour: &str, body: Bytes, body_min: usize) -> Self {
        Self { method, headers: headers([("x-twin-debug", behaviour)]), body, body_min }
    }

    /// Sends `count` requests over all streams of all clients. Whoever is free takes the next one, so that all are done at the same time: a connection
    /// without a stream for a second gives its tables back.
    async fn run(&self, clients: &[Client], count: usize) {
        let taken = Arc::new(AtomicUsize::new(0));
        let mut streams = JoinSet::new();
        for client in clients {
            for _ in 0..STREAMS {
                streams.spawn(self.clone().stream(client.clone(), taken.clone(), count));
            }
        }
        streams.join_all().await;
    }

    async fn stream(self, client: Client, taken: Arc<AtomicUsize>, count: usize) {
        loop {
            let nth = taken.fetch_add(1, Ordering::Relaxed);
            if nth >= count {
                return;
            }
            let path = if nth.is_multiple_of(2) { LOCAL } else { REROUTED };
            let sent = client.request(self.method.clone(), path, self.headers.clone(), self.body.clone(), None);
            let response = sent.await.unwrap();
            assert_eq!(response.status, 200);
            assert!(response.body.len() >= self.body_min, "{} bytes", response.body.len());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forwarding_allocates_nothing_and_copies_bodies_once() {
    let mut world = World::on(IoDriver::Auto)
        .shards(2)
        .local("cp-a", apis::everywhere())
        .peer("cp-b", [apis::everywhere(), apis::batch()].concat())
        .start();
    let writers = [Writer::new(&world, world.twin("cp-a"), LOCAL).await, Writer::new(&world, world.twin("cp-b"), REROUTED).await];
    for writer in &writers {
        writer.write().await;
    }
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(world.client().await);
    }
    for client in &clients {
        fill_tables(client).await;
    }
    let loads = [
        ("GET of 1 KB", GETS, Load::get()),
        ("POST of 1 KB, 1 KB back", POSTS, Load::debug(Method::POST, "echo", object(), 1_000)),
        ("GET of 100 KB", LARGE_GETS, Load::debug(Method::GET, "bytes/102400", Bytes::new(), 102_400)),
    ];
    for (what, count, load) in loads {
        COUNTING.store(true, Ordering::Relaxed);
        let mut rounds = Warmup::default();
        while rounds.is_another_needed() {
            load.run(&clients, count.min(WARMUP_MAX)).await;
        }
        let mut tries = Tries::default();
        while tries.is_another_needed() {
            let phase = Phase::begin(what);
            load.run(&clients, count).await;
            tries.outside = phase.end(count);
        }
        COUNTING.store(false, Ordering::Relaxed);
    }
    watch(&writers, &clients).await;
    assert_copied_once(world.engine()).await;
    drop(clients);
    world.drain().await.unwrap();
}

/// Makes the HPACK tables on the way as large as they get: the most entries, then the longest.
///
/// `date` alone adds one entry a second, so that they would grow for a minute by themselves. Request headers fill the tables of one
/// direction, the trailers that come back those of the other.
async fn fill_tables(client: &Client) {
    let lengths = std::iter::repeat_n(4, 256).chain(std::iter::repeat_n(1_500, 8));
    for (nth, length) in lengths.enumerate() {
        for path in [LOCAL, REROUTED] {
            let value = format!("{nth:0length$}");
            let (fields, trailers) = (headers([("x-twin-debug", "echo"), ("f", &value)]), headers([("f", &value)]));
            let response = client.request(Method::POST, path, fields, Bytes::from_static(b"fill"), Some(trailers)).await.unwrap();
            assert_eq!(response.trailers.unwrap()["f"], value);
        }
    }
}

/// Writes an object of a twin behind the proxy's back.
#[derive(Clone)]
struct Writer {
    client: Client,
    path: &'static str,
}

impl Writer {
    async fn new(world: &World, twin: &Twin, path: &'static str) -> Self {
        let client = Client::connect(twin.address(), world.pki().ca_pem(), NAME, Some(TOKEN)).await.unwrap();
        Self { client, path }
    }

    async fn write(&self) {
        let written = self.client.request(Method::PUT, self.path, HeaderMap::new(), object(), None).await.unwrap();
        assert_eq!(written.status, 200);
    }
}

/// Watches of both servers through the proxy.
async fn watch(writers: &[Writer; 2], clients: &[Client]) {
    let seen = Arc::new(AtomicUsize::new(0));
    let mut watches = JoinSet::new();
    for nth in 0..WATCHES {
        let collection = writers[nth % 2].path.strip_suffix("/demo").unwrap();
        let mut watch = clients[nth % clients.len()].watch(&format!("{collection}?watch=true")).await.unwrap();
        assert_eq!(watch.status, 200);
        let seen = seen.clone();
        watches.spawn(async move {
            while let Some(chunk) = watch.next_chunk().await.unwrap() {
                seen.fetch_add(chunk.iter().filter(|byte| **byte == b'\n').count(), Ordering::Relaxed);
            }
        });
    }
    // Every watch begins with the one object there is.
    let mut due = WATCHES;
    COUNTING.store(true, Ordering::Relaxed);
    let mut rounds = Warmup::default();
    while rounds.is_another_needed() {
        make_events(writers, &seen, &mut due, WARMUP_MAX, EVENTS_AHEAD).await;
    }
    let mut tries = Tries::default();
    while tries.is_another_needed() {
        let phase = Phase::begin("watch events of 1 KB");
        let made = make_events(writers, &seen, &mut due, EVENTS, EVENTS_BURST).await;
        tries.outside = phase.end(made);
    }
    COUNTING.store(false, Ordering::Relaxed);
    watches.shutdown().await;
}

/// Makes at least `count` events, `burst` of them at a time, and waits until all of them were seen; returns how many.
async fn make_events(writers: &[Writer; 2], seen: &AtomicUsize, due: &mut usize, count: usize, burst: usize) -> usize {
    let first = *due;
    while *due - first < count {
        for _ in 0..EVENTS_AHEAD / burst {
            let mut writing = JoinSet::new();
            for nth in 0..burst {
                let writer = writers[nth % 2].clone();
                writing.spawn(async move { writer.write().await });
                *due += WATCHES / 2;
            }
            writing.join_all().await;
        }
        eventually("every watch has every event", PATIENCE, || seen.load(Ordering::Relaxed) >= *due).await;
    }
    *due - first
}

/// Counters are published once a tick, so they are read until nothing is added any more.
async fn assert_copied_once(engine: &Engine) {
    let mut counters = engine.counters();
    loop {
        tokio::time::sleep(TICKS).await;
        let before = std::mem::replace(&mut counters, engine.counters());
        if counters.body_received == before.body_received {
            break;
        }
    }
    println!("{} requests, body bytes received {}, copied {}", counters.requests, counters.body_received, counters.body_copied);
    assert!(counters.requests >= (GETS + POSTS + LARGE_GETS) as u64);
    assert_eq!((counters.refused, counters.retried), (0, 0));
    assert!(counters.body_received >= ((GETS + POSTS * 2 + EVENTS) * 1_000 + LARGE_GETS * 102_400) as u64);
    assert_eq!(counters.body_copied, counters.body_received);
}

/// A ConfigMap, or a Job for all the twin cares, of about a kilobyte.
fn object() -> Bytes {
    // Unlike the last one, as what changes nothing is no event, and of its length.
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let value = NEXT.fetch_add(1, Ordering::Relaxed);
    format!(r#"{{"metadata":{{"name":"demo","namespace":"default"}},"data":{{"value":"{value:0960}"}}}}"#).into()
}
