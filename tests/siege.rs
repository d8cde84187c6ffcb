//! Attacks kept up against the real binary with its default limits: the attacker comes back whenever it is cut off. On the same shard a
//! neighbour with a connection, and newcomers from another address, must not notice.
//!
//! A few seconds of each; `MVPROXY_LONG=1` runs each for 30 s, and a recorded client for five minutes. `-- --nocapture` prints the figures.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use loadgen::{Client, Pki, Twin, TwinConfig};
use support::attacks::{self, Attack, HANG, SHORT, WATCH};
use support::binary::{Binary, Files};
use support::frames::{END_HEADERS, END_STREAM, Frames, HEADERS, PING, RST_STREAM, SETTINGS, block, frame, get, nth_stream};
use support::{NAME, TOKEN, apis, headers, raw};
use tokio::net::{TcpSocket, TcpStream};
use tokio::sync::Mutex;
use tokio::time::{sleep, timeout};

/// One siege at a time: each measures.
static ALONE: Mutex<()> = Mutex::const_new(());

/// How often a p99 may be over the bar before it is the proxy's fault.
const TRIES: usize = 6;
const MEMORY: usize = 64 << 20;
/// What memory may be more than before, 30 s later.
const MEMORY_LATER: usize = 8 << 20;
const CUT_OFF: Duration = Duration::from_secs(1);
/// In a short run the first blow, before the attacker's address is known for what it is, is left out of the p99: in 30 s it is in it.
const FIRST_BLOW: Duration = Duration::from_millis(300);
/// The attacker's address; everybody else has 127.0.0.1.
const ATTACKER: [u8; 4] = [127, 0, 0, 66];
const LIMIT: Duration = Duration::from_secs(10);

/// Time the host took from this machine, in hundredths of a second.
fn stolen_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/stat").unwrap();
    stat.lines().next().and_then(|line| line.split_whitespace().nth(8)).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

fn cpus() -> usize {
    std::thread::available_parallelism().map_or(1, Into::into)
}

fn is_long() -> bool {
    std::env::var_os("MVPROXY_LONG").is_some()
}

/// How long each of `count` variants of an attack is kept up.
fn each(count: usize) -> Duration {
    if is_long() { Duration::from_secs(30) } else { Duration::from_millis((3_000 / count as u64).max(1_000)) }
}

/// A twin, a proxy of one shard in front of it, and a neighbour.
struct Siege {
    pki: Pki,
    twin: Twin,
    proxy: Binary,
    neighbour: Client,
    base: Duration,
    memory: usize,
}

/// What the neighbour met.
struct Met {
    asked: usize,
    p99: Duration,
    newcomers: usize,
    memory: usize,
    /// Percent of the CPUs' time that the host gave to somebody else.
    stolen: f64,
}

impl Siege {
    async fn new() -> Self {
        let pki = Pki::new().unwrap();
        let twin = Twin::start(TwinConfig::new("cp-a", pki.serving().unwrap(), apis::base())).unwrap();
        let proxy = Files::new(&pki, &[(&twin, "cp-a", &apis::base())]).start_plain();
        let neighbour = Client::connect(proxy.address(), pki.ca_pem(), NAME, Some(TOKEN)).await.unwrap();
        let mut siege = Self { pki, twin, proxy, neighbour, base: Duration::ZERO, memory: 0 };
        siege.base = siege.measure_base().await;
        siege.memory = siege.proxy.resident();
        siege
    }

    /// The neighbour's p99 beside somebody who does no harm.
    async fn measure_base(&self) -> Duration {
        let mut harmless = self.harmless().await;
        let met = self.meet(if is_long() { Duration::from_secs(10) } else { Duration::from_millis(1_000) }, &harmless).await;
        harmless.join();
        println!("base: {} requests, p99 {:?}, {} newcomers; the host took {:.1} %", met.asked, met.p99, met.newcomers, met.stolen);
        met.p99
    }

    /// Somebody who is as busy as an attacker, and does no harm.
    async fn harmless(&self) -> Besieger {
        let client = Client::connect(self.proxy.address(), self.pki.ca_pem(), NAME, Some(TOKEN)).await.unwrap();
        Besieger::start(move |stop, _| async move {
            let asking = (0..16).map(|_| async {
                while !stop.load(Ordering::Relaxed) {
                    assert_eq!(client.get(SHORT).await.unwrap().status, StatusCode::OK);
                }
            });
            join_all(asking).await;
        })
    }

    /// What the neighbour meets for so long, beside a besieger.
    async fn meet(&self, time: Duration, besieger: &Besieger) -> Met {
        let (began, stolen_before) = (Instant::now(), stolen_ticks());
        let (mut latencies, mut newcomers, mut memory) = (Vec::new(), 0, 0);
        let mut next_newcomer = Duration::ZERO;
        while began.elapsed() < time {
            let asked = Instant::now();
            assert_eq!(self.neighbour.get(SHORT).await.unwrap().status, StatusCode::OK);
            if is_long() || began.elapsed() >= FIRST_BLOW {
                latencies.push(asked.elapsed());
            }
            memory = memory.max(self.proxy.resident());
            if began.elapsed() >= next_newcomer {
                next_newcomer += Duration::from_millis(500);
                let newcomer = Client::connect(self.proxy.address(), self.pki.ca_pem(), NAME, Some(TOKEN)).await.unwrap();
                assert_eq!(newcomer.get(SHORT).await.unwrap().status, StatusCode::OK);
                newcomers += 1;
            }
            sleep(Duration::from_millis(1)).await;
        }
        besieger.stop();
        latencies.sort_unstable();
        let p99 = latencies[(latencies.len() * 99 / 100).min(latencies.len() - 1)];
        let stolen = (stolen_ticks() - stolen_before) as f64 / began.elapsed().as_secs_f64() / cpus() as f64;
        Met { asked: latencies.len(), p99, newcomers, memory, stolen }
    }

    /// The neighbour's p99 is within the bar, and attackers that are to be cut off are, in time. A shared machine is slow now and then, for a request and for minutes: a try that fails is
    /// made again, with a base measured right before it, and one of `TRIES` has to be good.
    async fn withstands(&self, what: &str, time: Duration, is_cut_off: bool, besiege: impl Fn() -> Besieger) {
        for attempt in 1..=TRIES {
            let base = if attempt == 1 { self.base } else { self.measure_base().await };
            let bar = (base * 2).max(base + Duration::from_millis(5));
            let mut besieger = besiege();
            let met = self.meet(time, &besieger).await;
            besieger.join();
            let grown = met.memory.saturating_sub(self.memory);
            println!(
                "{what}: {besieger}; neighbour: {} requests, p99 {:?} (base {:?}), {} newcomers; memory + {:.1} MiB; {} connections to the server; the host took {:.1} %",
                met.asked,
                met.p99,
                base,
                met.newcomers,
                grown as f64 / 1_048_576.0,
                self.twin.counts().connections,
                met.stolen
            );
            assert!(grown <= MEMORY, "{what}: memory grew by {grown}");
            let (cuts, slowest) = (besieger.tally.cuts.load(Ordering::Relaxed), besieger.tally.slowest());
            assert!(cuts > 0 || !is_cut_off, "{what}: never cut off");
            if met.p99 <= bar && slowest < CUT_OFF {
                return;
            }
            assert!(attempt < TRIES, "{what}: p99 {:?}, bar {bar:?}; cut off after {slowest:?}", met.p99);
        }
    }

    /// All variants of an attack, each of which is cut off in time, every time.
    async fn cuts_off(self, attacks: &'static [Attack], deaf: bool) {
        for attack in attacks {
            let (address, ca) = (self.proxy.address(), self.pki.ca_pem().to_owned());
            let besiege = || {
                let ca = ca.clone();
                Besieger::start(move |stop, tally| flood(address, ca, attack, deaf, stop, tally))
            };
            self.withstands(attack.name, each(attacks.len()), true, besiege).await;
        }
        self.recovers().await;
    }

    /// Half a minute later memory is as it was.
    async fn recovers(&self) {
        if !is_long() {
            return;
        }
        sleep(Duration::from_secs(30)).await;
        let (now, allowed) = (self.proxy.resident(), self.memory + MEMORY_LATER.max(self.memory / 20));
        println!("30 s later: {:.1} MiB, before {:.1} MiB", now as f64 / 1_048_576.0, self.memory as f64 / 1_048_576.0);
        assert!(now <= allowed, "{now} bytes 30 s later, {} before", self.memory);
    }
}

async fn join_all(futures: impl Iterator<Item = impl Future<Output = ()>>) {
    let mut futures: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        futures.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if futures.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

/// What an attacker counts.
#[derive(Default)]
struct Tally {
    connections: AtomicUsize,
    turned_away: AtomicUsize,
    cuts: AtomicUsize,
    slowest_millis: AtomicUsize,
    pieces: AtomicUsize,
}

impl Tally {
    fn slowest(&self) -> Duration {
        Duration::from_millis(self.slowest_millis.load(Ordering::Relaxed) as u64)
    }

    fn cut_after(&self, time: Duration) {
        self.cuts.fetch_add(1, Ordering::Relaxed);
        self.slowest_millis.fetch_max(time.as_millis() as usize, Ordering::Relaxed);
    }
}

/// Somebody on a thread of its own.
struct Besieger {
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Besieger {
    fn start<F: Future<Output = ()>>(work: impl FnOnce(Arc<AtomicBool>, Arc<Tally>) -> F + Send + 'static) -> Self {
        let (stop, tally) = (Arc::new(AtomicBool::new(false)), Arc::new(Tally::default()));
        let (stopped, counted) = (stop.clone(), tally.clone());
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(work(stopped, counted));
        });
        Self { stop, tally, thread: Some(thread) }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

impl Drop for Besieger {
    fn drop(&mut self) {
        self.stop();
    }
}

impl std::fmt::Display for Besieger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let (connections, away) = (count(&self.tally.connections), count(&self.tally.turned_away));
        let (pieces, cuts, slowest) = (count(&self.tally.pieces), count(&self.tally.cuts), self.tally.slowest());
        write!(f, "{connections} connections, {away} turned away, {pieces} pieces, {cuts} cut off within {slowest:?}")
    }
}

/// A connection from the attacker's address.
async fn connect(address: SocketAddr, ca: &str, tally: &Tally) -> Option<Frames> {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind((ATTACKER, 0).into()).ok()?;
    let tcp: std::io::Result<TcpStream> = socket.connect(address).await;
    let tls = timeout(LIMIT, raw::handshake_on(tcp.ok()?, ca, b"h2")).await.ok()?;
    match tls {
        Ok(tls) => {
            tally.connections.fetch_add(1, Ordering::Relaxed);
            Some(Frames::on(tls).await)
        }
        Err(_) => {
            tally.turned_away.fetch_add(1, Ordering::Relaxed);
            None
        }
    }
}

/// Floods, and comes back.
async fn flood(address: SocketAddr, ca: String, attack: &'static Attack, deaf: bool, stop: Arc<AtomicBool>, tally: Arc<Tally>) {
    const BATCH: usize = 200;
    while !stop.load(Ordering::Relaxed) {
        let Some(mut frames) = connect(address, &ca, &tally).await else {
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        if deaf {
            frames.turn_deaf();
        }
        let began = Instant::now();
        frames.send(&(attack.first)()).await;
        let mut nth = 0;
        while !stop.load(Ordering::Relaxed) {
            let batch: Vec<u8> = (nth..nth + BATCH).flat_map(attack.piece).collect();
            // A write that does not end is no cut: it shows as a slow one.
            let sent = timeout(LIMIT, frames.send(&batch)).await.unwrap_or(false);
            nth += BATCH;
            tally.pieces.fetch_add(BATCH, Ordering::Relaxed);
            if !sent || frames.is_over() {
                tally.cut_after(began.elapsed());
                break;
            }
            tokio::task::yield_now().await;
        }
        // One that was still flooding at the end counts as well.
        tally.slowest_millis.fetch_max(began.elapsed().as_millis() as usize, Ordering::Relaxed);
    }
}

macro_rules! sieges {
    ($($name:ident: $attacks:expr, $deaf:expr;)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let _alone = ALONE.lock().await;
            Siege::new().await.cuts_off($attacks, $deaf).await;
        })+
    };
}

sieges! {
    h1_rapid_reset: attacks::H1, false;
    h2_made_you_reset: attacks::H2, false;
    h3_answers_nobody_reads: attacks::H3, true;
    h4_continuation_flood: attacks::H4, false;
    h6_ping_and_settings_floods: attacks::H6, false;
    h7_empty_data: attacks::H7, false;
    h9_window_updates: attacks::H9, false;
    h10_priorities: attacks::H10, false;
}

/// What goes on for the whole siege on one connection, or another one if it ends.
async fn keep_up<F>(address: SocketAddr, ca: String, stop: Arc<AtomicBool>, tally: Arc<Tally>, work: impl Fn(usize) -> F)
where
    F: Future<Output = Vec<u8>>,
{
    while !stop.load(Ordering::Relaxed) {
        let Some(mut frames) = connect(address, &ca, &tally).await else {
            sleep(Duration::from_millis(1)).await;
            continue;
        };
        let (began, mut nth) = (Instant::now(), 0);
        while !stop.load(Ordering::Relaxed) && !frames.is_over() && frames.send(&work(nth).await).await {
            nth += 1;
            tally.pieces.fetch_add(1, Ordering::Relaxed);
            tokio::task::yield_now().await;
        }
        if !stop.load(Ordering::Relaxed) {
            tally.cut_after(began.elapsed());
        }
    }
}

/// Answered with 431, and cut off when it goes on: work, but no memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h5_hpack_bomb() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let mut bomb = block(0x82, SHORT);
    bomb.extend([0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    bomb.extend([b'a'; 4_000]);
    bomb.extend([0xbe; 10_000]);
    let mut cookies = block(0x82, SHORT);
    for _ in 0..2_500 {
        // cookie, a crumb of one byte, never indexed.
        cookies.extend([0x1f, 0x11, 1, b'c']);
    }
    for (what, payload) in [("4 KB × 10,000", bomb), ("cookie crumbs", cookies)] {
        let (address, ca) = (siege.proxy.address(), siege.pki.ca_pem().to_owned());
        let besiege = || {
            let (ca, payload) = (ca.clone(), payload.clone());
            Besieger::start(move |stop, tally| {
                keep_up(address, ca, stop, tally, move |nth| {
                    let bomb = frame(HEADERS, END_HEADERS | END_STREAM, nth_stream(nth), &payload);
                    async { bomb }
                })
            })
        };
        siege.withstands(what, each(2), true, besiege).await;
    }
    siege.recovers().await;
}

/// 100 answers of 1 MB that are not read: held back at the server, not here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h8_slow_readers() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let (address, ca) = (siege.proxy.address(), siege.pki.ca_pem().to_owned());
    for (what, window) in [("window 0", 0u32), ("window 1", 1)] {
        let besiege = || {
            let ca = ca.clone();
            Besieger::start(move |stop, tally| {
                keep_up(address, ca, stop, tally, move |nth| async move {
                    match nth {
                        0 => frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat()),
                        1..=100 => get(nth_stream(nth), "/debug/twin/bytes/1000000"),
                        _ => {
                            sleep(Duration::from_millis(20)).await;
                            Vec::new()
                        }
                    }
                })
            })
        };
        siege.withstands(what, each(2), false, besiege).await;
    }
    siege.recovers().await;
}

/// More streams than allowed, streams that go backwards, streams of the wrong kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h11_too_many_streams() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let (address, ca) = (siege.proxy.address(), siege.pki.ca_pem().to_owned());
    type Piece = fn(usize) -> Vec<u8>;
    let kinds: [(&str, Piece); 3] = [
        ("without end", |nth| get(nth_stream(nth), HANG)),
        ("backwards", |nth| get(0x00ff_ffff - 2 * (nth as u32 % 1_000_000), HANG)),
        ("even", |nth| get(2 + 2 * nth as u32, HANG)),
    ];
    for (what, piece) in kinds {
        let besiege = || {
            let ca = ca.clone();
            Besieger::start(move |stop, tally| keep_up(address, ca, stop, tally, move |nth| async move { piece(nth) }))
        };
        siege.withstands(what, each(3), true, besiege).await;
    }
    siege.recovers().await;
}

/// 1,000 connections that say nothing after TLS, or nothing after the preface: each costs little, and goes when its time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h13_stalls_before_the_first_request() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let before = siege.proxy.resident();
    let mut silent = Vec::new();
    for nth in 0..1_000 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((ATTACKER, 0).into()).unwrap();
        let tcp = socket.connect(siege.proxy.address()).await.unwrap();
        let mut tls = raw::handshake_on(tcp, siege.pki.ca_pem(), b"h2").await.unwrap();
        if nth % 2 == 0 {
            tokio::io::AsyncWriteExt::write_all(&mut tls, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        }
        silent.push((Instant::now(), tls));
    }
    let each = siege.proxy.resident().saturating_sub(before) / silent.len();
    println!("1,000 silent connections: {each} bytes each");
    assert!(each <= 16 << 10, "{each} bytes each");
    assert_eq!(siege.neighbour.get(SHORT).await.unwrap().status, StatusCode::OK);
    for (opened, mut tls) in silent {
        let mut rest = Vec::new();
        timeout(LIMIT + LIMIT, tokio::io::AsyncReadExt::read_to_end(&mut tls, &mut rest)).await.unwrap().ok();
        assert!(opened.elapsed() < Duration::from_secs(15), "{:?}", opened.elapsed());
    }
    siege.recovers().await;
}

/// A huge upload streams through: what it costs is its window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k4_a_huge_upload_costs_its_window() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let megabytes = if is_long() { 1_024 } else { 128 };
    let client = raw::Raw::connect(siege.proxy.address(), siege.pki.ca_pem(), &h2::client::Builder::new()).await;
    let (response, mut stream) = client.open(Method::POST, "/debug/twin/echo", headers([]), false).await;
    let echoed = tokio::spawn(async move {
        let mut response = response.await.unwrap();
        raw::read_all(response.body_mut()).await.unwrap()
    });
    let (before, mut most) = (siege.proxy.resident(), 0);
    let piece = support::noise(1 << 20, 4);
    for _ in 0..megabytes {
        raw::send_some(&mut stream, piece.clone()).await.unwrap();
        most = most.max(siege.proxy.resident());
    }
    stream.send_data(bytes::Bytes::new(), true).unwrap();
    assert_eq!(timeout(LIMIT, echoed).await.unwrap().unwrap(), megabytes << 20);
    let grown = most.saturating_sub(before);
    println!("{megabytes} MB up and down: memory + {:.1} MiB", grown as f64 / 1_048_576.0);
    assert!(grown < 8 << 20, "{grown}");
}

/// What controllers do: watches, lists, requests given up by timeouts, pings. Nobody cuts them off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_benign_client_is_left_alone() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let time = if is_long() { Duration::from_secs(30) } else { Duration::from_secs(3) };
    let tally = Tally::default();
    let mut frames = connect(siege.proxy.address(), siege.pki.ca_pem(), &tally).await.unwrap();
    let (began, mut stream, mut round, mut asked) = (Instant::now(), 1, 0, 0);
    let mut watches = std::collections::VecDeque::new();
    while began.elapsed() < time {
        // Every 50 ms: ten requests, one that is given up; every second a list, a watch opened and the oldest closed, a PING.
        let mut batch = Vec::new();
        let mut next = || {
            stream += 2;
            stream - 2
        };
        for _ in 0..10 {
            batch.extend(get(next(), SHORT));
            asked += 1;
        }
        let given_up = next();
        batch.extend(get(given_up, HANG));
        if round % 20 == 0 {
            batch.extend(get(next(), "/debug/twin/bytes/60000"));
            asked += 1;
            let watch = next();
            batch.extend(get(watch, WATCH));
            watches.push_back(watch);
            if watches.len() > 10 {
                batch.extend(frame(RST_STREAM, 0, watches.pop_front().unwrap(), &[0, 0, 0, 8]));
            }
            batch.extend(frame(PING, 0, 0, b"are you?"));
        }
        // What was received is given back, as every client does.
        batch.extend(frame(support::frames::WINDOW_UPDATE, 0, 0, &[0, 0x02, 0, 0]));
        assert!(frames.send(&batch).await, "cut off after {:?}", began.elapsed());
        sleep(Duration::from_millis(50)).await;
        assert!(frames.send(&frame(RST_STREAM, 0, given_up, &[0, 0, 0, 8])).await);
        round += 1;
        let seen = frames.seen();
        assert!(seen.goaway.is_none() && !seen.closed, "after {:?}: {:?}", began.elapsed(), seen.goaway);
    }
    support::eventually("all answers", LIMIT, || frames.seen().ended.len() >= asked).await;
    println!("{asked} answered, {round} given up, in {:?}", began.elapsed());
}

/// Something that a recorded client does.
#[derive(Clone, Copy)]
enum Step {
    Watch,
    Get,
    List,
    Write,
    /// Gives up the n-th watch.
    End(usize),
}

/// A recorded trace as steps in the order of time: the times of the requests are those of the trace, and watches end as they did.
fn recorded() -> Vec<(Duration, Step)> {
    let trace = include_str!("traces/controllers.txt").lines().filter(|line| !line.starts_with('#'));
    let (mut steps, mut watches) = (Vec::new(), 0);
    for line in trace {
        let fields: Vec<_> = line.split(' ').collect();
        let [at, verb, path, lasted, _] = fields[..] else { panic!("{line}") };
        let millis = |text: &str| Duration::from_millis(text.parse().unwrap());
        let step = match verb {
            "watch" => Step::Watch,
            "GET" if path.contains("limit=") => Step::List,
            "GET" => Step::Get,
            _ => Step::Write,
        };
        steps.push((millis(at), step));
        if verb == "watch" {
            steps.push((millis(at) + millis(lasted), Step::End(watches)));
            watches += 1;
        }
    }
    steps.sort_by_key(|&(at, _)| at);
    steps
}

/// A recorded client of a real cluster, again and again on one connection: lists, watches, many of them given up by timeouts. Nobody cuts it off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_client_is_left_alone() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let time = if is_long() { Duration::from_secs(300) } else { Duration::from_secs(3) };
    let mut frames = connect(siege.proxy.address(), siege.pki.ca_pem(), &Tally::default()).await.unwrap();
    let (began, mut stream, mut asked, mut given_up) = (Instant::now(), 1, 0, 0);
    while began.elapsed() < time {
        let (round, mut watches) = (Instant::now(), Vec::new());
        for (at, step) in recorded() {
            tokio::time::sleep_until((round + at).into()).await;
            if began.elapsed() >= time {
                break;
            }
            let bytes = match step {
                Step::Watch => get(stream, WATCH),
                Step::Get => get(stream, SHORT),
                Step::List => get(stream, "/debug/twin/bytes/60000"),
                Step::Write => {
                    let head = support::frames::post(stream, "/debug/twin/echo");
                    [head, frame(support::frames::DATA, END_STREAM, stream, &[b'x'; 300])].concat()
                }
                Step::End(nth) => frame(RST_STREAM, 0, watches[nth], &[0, 0, 0, 8]),
            };
            match step {
                Step::Watch => watches.push(stream),
                Step::End(_) => given_up += 1,
                _ => asked += 1,
            }
            stream += if matches!(step, Step::End(_)) { 0 } else { 2 };
            // What was received is given back, as every client does.
            let credit = frame(support::frames::WINDOW_UPDATE, 0, 0, &[0, 0, 0xf0, 0]);
            assert!(frames.send(&[bytes, credit].concat()).await, "cut off after {:?}", began.elapsed());
            let seen = frames.seen();
            assert!(seen.goaway.is_none() && !seen.closed, "after {:?}: {:?}", began.elapsed(), seen.goaway);
        }
    }
    support::eventually("all answers", LIMIT, || frames.seen().ended.len() >= asked).await;
    println!("{asked} answered, {given_up} watches given up, in {:?}", began.elapsed());
    assert!(asked > 30);
}
