//! Starting and ending the shards.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use discovery::{Reader, Readers};

use crate::config::{Config, Limits};
use crate::core::{Core, Counters, Meters};
use crate::shard::ring::{self, Climbed, Ring, Rung};
use crate::shard::{self, Gather, Listeners, Loads, Receiver, Shard, Shared};
use crate::tls::Configs;

/// How often the control thread looks whether a shard wants a tick, at the least.
const TICK: Duration = Duration::from_millis(50);
/// The same when a shard wants a tick sooner.
const TICK_MIN: Duration = Duration::from_millis(10);

/// A running data plane.
pub struct Engine {
    address: SocketAddr,
    peer_address: Option<SocketAddr>,
    drivers: Vec<String>,
    refusals: Vec<String>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    ended: mpsc::Receiver<Result<(), ShardFailed>>,
}

/// Why an engine could not be started: the cause and the fix in one line.
#[derive(Debug)]
pub struct StartError(String);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for StartError {}

/// A shard ended that should not have.
#[derive(Debug)]
pub struct ShardFailed {
    shard: usize,
    cause: String,
}

impl fmt::Display for ShardFailed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "shard {} failed: {}", self.shard, self.cause)
    }
}

impl std::error::Error for ShardFailed {}

impl Engine {
    /// Starts the shards; all of them listen when it returns.
    pub fn start(config: Config, tls: Configs, routes: &Readers) -> Result<Self, StartError> {
        let count = config.cpus.len();
        if count == 0 {
            return Err(StartError("no shard to start: give at least one CPU".into()));
        }
        let (address, clients) = listen(config.bind, count, "--secure-port")?;
        let (peer_address, peers) = match config.peer_bind {
            Some(bind) => {
                let (address, listeners) = listen(bind, count, "--peer-port")?;
                (Some(address), listeners.into_iter().map(Some).collect())
            }
            None => (None, (0..count).map(|_| None).collect::<Vec<_>>()),
        };
        let listeners = clients.into_iter().zip(peers).map(|(clients, peers)| Listeners { clients, peers });
        let (mail, inboxes): (Vec<_>, Vec<_>) = (0..count)
            .map(|_| shard::mailbox())
            .collect::<io::Result<Vec<_>>>()
            .map_err(|error| StartError(format!("cannot make a socket pair for a shard: {error}; raise the nofile limit")))?
            .into_iter()
            .unzip();
        let published = (0..count).map(|_| Published::new()).collect();
        let client_places = client_places(&config);
        let shared = Arc::new(Shared {
            config,
            tls: ArcSwap::from_pointee(tls),
            server_tls_generation: AtomicU64::new(0),
            loads: Loads::new(count),
            mail,
            published,
            draining: AtomicBool::new(false),
            client_places,
        });
        let (ended_sender, ended) = mpsc::channel();
        let mut engine = Self { address, peer_address, drivers: Vec::new(), refusals: Vec::new(), shared, threads: Vec::new(), ended };
        for (index, (listeners, inbox)) in listeners.zip(inboxes).enumerate() {
            let seat = Seat { index, shared: engine.shared.clone(), listeners, inbox, routes: routes.reader() };
            if let Err(error) = engine.launch(seat, ended_sender.clone()) {
                engine.drain();
                return Err(error);
            }
        }
        let ticked = Arc::downgrade(&engine.shared);
        let ticker = std::thread::Builder::new().name("ticker".into()).spawn(move || send_ticks(&ticked));
        if let Err(error) = ticker {
            engine.drain();
            return Err(StartError(format!(
                "cannot start a thread: {error}; raise the limit of processes (ulimit -u), or choose fewer --shards"
            )));
        }
        Ok(engine)
    }

    /// Could [`Engine::start`] listen there? For whoever tells others of it before it starts.
    pub fn check_ports(config: &Config) -> Result<(), StartError> {
        listen(config.bind, 0, "--secure-port")?;
        config.peer_bind.map_or(Ok(()), |bind| listen(bind, 0, "--peer-port").map(drop))
    }

    /// Where it listens, with the real port when 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where peers come in, if they do.
    pub fn peer_address(&self) -> Option<SocketAddr> {
        self.peer_address
    }

    /// What each shard runs on, a line each.
    pub fn drivers(&self) -> &[String] {
        &self.drivers
    }

    /// What the kernel refused on the way, a line each.
    pub fn refusals(&self) -> &[String] {
        &self.refusals
    }

    /// New connections are made with this. Those of clients stay; those to servers, when what they were made with changed, take no new
    /// requests and end with their last one.
    pub fn set_tls(&self, tls: Configs) {
        let before = self.shared.tls.load();
        let is_same_proxy = match (&before.proxy, &tls.proxy) {
            (Some(before), Some(now)) => Arc::ptr_eq(before, now),
            (before, now) => before.is_none() && now.is_none(),
        };
        let same = Arc::ptr_eq(&before.local, &tls.local) && Arc::ptr_eq(&before.peer, &tls.peer) && is_same_proxy;
        self.shared.tls.store(Arc::new(tls));
        if !same {
            self.shared.server_tls_generation.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Stops accepting and lets running requests finish; returns at once.
    pub fn drain(&self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        for mail in &self.shared.mail {
            // A full mailbox loses nothing: the next tick looks at the flag.
            mail.drain();
        }
    }

    /// Waits until every shard has ended, or one has failed.
    pub fn join(self) -> Result<(), ShardFailed> {
        for _ in 0..self.threads.len() {
            match self.ended.recv() {
                Ok(Ok(())) => {}
                Ok(Err(failed)) => return Err(failed),
                Err(_) => break,
            }
        }
        for thread in self.threads {
            // Its outcome came through the channel.
            thread.join().ok();
        }
        Ok(())
    }

    /// Makes a shard panic, for the test of what follows.
    #[doc(hidden)]
    pub fn panic_shard(&self, shard: usize) -> bool {
        self.shared.mail.get(shard).is_some_and(crate::shard::Sender::panic)
    }

    /// The failure of a shard, if one has failed. Never waits.
    pub fn failure(&self) -> Option<ShardFailed> {
        self.ended.try_iter().find_map(Result::err)
    }

    /// Sums over the shards, as of their last tick.
    pub fn counters(&self) -> Counters {
        self.shared.published.iter().fold(Counters::default(), |sum, shard| sum.plus(&shard.counters()))
    }

    /// Client connections of each shard.
    pub fn connections(&self) -> Vec<usize> {
        (0..self.shared.published.len()).map(|shard| self.shared.loads.get(shard)).collect()
    }

    /// What looks at it from another thread.
    pub fn observer(&self) -> Observer {
        Observer(Arc::downgrade(&self.shared))
    }

    fn launch(&mut self, seat: Seat, ended: mpsc::Sender<Result<(), ShardFailed>>) -> Result<(), StartError> {
        let (ready_sender, ready) = mpsc::sync_channel(1);
        let index = seat.index;
        let thread = std::thread::Builder::new()
            .name(format!("shard-{index}"))
            .spawn(move || {
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| seat.run(&ready_sender)));
                let outcome = match outcome {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(ShardFailed { shard: index, cause: error.to_string() }),
                    Err(_) => Err(ShardFailed { shard: index, cause: "it panicked; see the message above".into() }),
                };
                // Nobody listens when the engine was dropped.
                ended.send(outcome).ok();
            })
            .map_err(|error| StartError(format!("cannot start a thread: {error}")))?;
        self.threads.push(thread);
        match ready.recv() {
            Ok(Ok((line, refusals))) => {
                self.drivers.push(line);
                // Every shard meets the same kernel: each is told once.
                for refusal in refusals {
                    if !self.refusals.contains(&refusal) {
                        self.refusals.push(refusal);
                    }
                }
                Ok(())
            }
            Ok(Err(error)) => Err(StartError(error)),
            Err(_) => Err(StartError(format!("shard {index} ended while it started"))),
        }
    }
}

/// Looks at a running engine; keeps nothing of it alive, and makes no shard wait.
#[derive(Clone)]
pub struct Observer(Weak<Shared>);

/// A shard, as of its last tick.
pub struct ShardView {
    /// Counts since start.
    pub counters: Counters,
    /// More of them; copied once a second.
    pub meters: Arc<Meters>,
    /// Client connections.
    pub connections: usize,
    /// How long ago that tick was. A shard has one every second.
    pub silent_for: Duration,
}

impl Observer {
    /// Every shard; none when the engine is gone.
    pub fn shards(&self) -> Vec<ShardView> {
        let Some(shared) = self.0.upgrade() else { return Vec::new() };
        let view = |(at, published): (usize, &Published)| ShardView {
            counters: published.counters(),
            meters: published.meters.load_full(),
            connections: shared.loads.get(at),
            silent_for: published.silent_for(Instant::now()),
        };
        shared.published.iter().enumerate().map(view).collect()
    }
}

/// What a shard's thread is started with.
struct Seat {
    index: usize,
    shared: Arc<Shared>,
    listeners: Listeners,
    inbox: Receiver,
    routes: Reader,
}

type Ready = mpsc::SyncSender<Result<(String, Vec<String>), String>>;

impl Seat {
    fn run(self, ready: &Ready) -> io::Result<()> {
        let cpu = self.shared.config.cpus.get(self.index).copied().flatten();
        let pinned = cpu.is_some_and(|id| core_affinity::set_for_current(core_affinity::CoreId { id }));
        let Climbed { ring: mut runtime, rung, refusals } = match ring::climb(self.shared.config.io_driver, ring::build) {
            Ok(climbed) => climbed,
            Err(error) => {
                ready.send(Err(error)).ok();
                return Ok(());
            }
        };
        let place = match cpu {
            Some(cpu) if pinned => format!("cpu {cpu}"),
            Some(cpu) => format!("cpu {cpu} (not pinned: the kernel refused)"),
            None => "not pinned".into(),
        };
        let gather = if rung == Rung::DeferTaskrun { Gather::of_this_thread() } else { Err("only with DEFER_TASKRUN") };
        let gathers = gather.as_ref().map_or_else(|why| format!("events one by one ({why})"), |_| "events gathered".into());
        ready.send(Ok((format!("shard {}: {place}, {rung}, {gathers}", self.index), refusals))).ok();
        self.serve(&mut runtime, gather.ok())
    }

    fn serve(self, runtime: &mut Ring, gather: Option<Gather>) -> io::Result<()> {
        let mut limits = self.shared.config.limits.clone();
        limits.server_conns = lane_share(limits.server_conns, self.shared.mail.len());
        let seed = 0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(self.index as u64 + 1) ^ u64::from(std::process::id());
        runtime.block_on(async move {
            let core = Core::new(limits, self.routes, seed, Instant::now());
            Shard::new(self.index, self.shared, core, gather).run(self.listeners, self.inbox).await
        })
    }
}

/// What one lane of one shard has of the connections to a server: two lanes a shard, each with a pool of its own. One at least, or nothing
/// could be asked.
fn lane_share(server_conns: usize, shards: usize) -> usize {
    (server_conns / shards / 2).max(1)
}

/// How many of the files that may be open are for clients (threats.md §6, fd exhaustion).
fn client_places(config: &Config) -> usize {
    let Limits { client_files_tenths, server_files, .. } = config.limits;
    config.files.map_or(usize::MAX, |files| (files / 10 * client_files_tenths).saturating_sub(server_files).max(1))
}

/// One listener for each shard, and where they listen.
fn listen(bind: SocketAddr, count: usize, port_flag: &str) -> Result<(SocketAddr, Vec<std::net::TcpListener>), StartError> {
    let listeners = shard::bind(bind, count).map_err(|error| bind_error(bind, &error, port_flag))?;
    let address = listeners.first().and_then(|listener| listener.local_addr().ok()).unwrap_or(bind);
    Ok((address, listeners))
}

fn bind_error(address: SocketAddr, error: &io::Error, port_flag: &str) -> StartError {
    let fix = match error.kind() {
        io::ErrorKind::AddrInUse => {
            format!(
                "another process listens there (kube-apiserver on 0.0.0.0, or another mvproxy); stop it, or choose another --bind-address or {port_flag}"
            )
        }
        io::ErrorKind::AddrNotAvailable => "no interface of this machine has the address; choose another --bind-address".into(),
        io::ErrorKind::PermissionDenied => format!("ports below 1024 need CAP_NET_BIND_SERVICE; choose another {port_flag}"),
        _ => format!("choose another --bind-address or {port_flag}"),
    };
    StartError(format!("cannot listen on {address}: {error}: {fix}"))
}

/// Counters of a shard where another thread can read them; written once a tick.
#[repr(align(128))]
pub(crate) struct Published {
    counters: [AtomicU64; Counters::COUNT],
    meters: ArcSwap<Meters>,
    /// When the shard had its last tick, in milliseconds since `epoch`.
    ticked: AtomicU64,
    /// When the shard wants its next tick, in milliseconds since `epoch`; `TICK_SENT` while one is under way.
    next_tick: AtomicU64,
    epoch: Instant,
}

const TICK_SENT: u64 = u64::MAX;

impl Published {
    fn new() -> Self {
        let meters = ArcSwap::from_pointee(Meters::default());
        Self { counters: Default::default(), meters, ticked: AtomicU64::new(0), next_tick: AtomicU64::new(0), epoch: Instant::now() }
    }

    pub(crate) fn set(&self, counters: Counters, now: Instant, next_tick: Instant) {
        for (cell, value) in self.counters.iter().zip(counters.to_array()) {
            cell.store(value, Ordering::Relaxed);
        }
        self.ticked.store(self.millis(now), Ordering::Relaxed);
        self.next_tick.store(self.millis(next_tick), Ordering::Relaxed);
    }

    /// Shows a copy, and returns the one from before, whose memory serves for the next if nobody reads it.
    pub(crate) fn swap_meters(&self, meters: Arc<Meters>) -> Arc<Meters> {
        self.meters.swap(meters)
    }

    fn silent_for(&self, now: Instant) -> Duration {
        Duration::from_millis(self.millis(now).saturating_sub(self.ticked.load(Ordering::Relaxed)))
    }

    /// Wants a tick no later than that.
    pub(crate) fn hurry(&self, at: Instant) {
        self.next_tick.fetch_min(self.millis(at), Ordering::Relaxed);
    }

    fn counters(&self) -> Counters {
        Counters::from_array(std::array::from_fn(|at| self.counters[at].load(Ordering::Relaxed)))
    }

    /// Is a tick due? Answers yes once for each [`Published::set`].
    fn take_tick(&self, now: Instant) -> bool {
        let due = self.next_tick.load(Ordering::Relaxed) <= self.millis(now);
        if due {
            self.next_tick.store(TICK_SENT, Ordering::Relaxed);
        }
        due
    }

    /// When the next one is; at once while the shard has not said yet what it wants after the last.
    fn tick_is_due_in(&self, now: Instant) -> Duration {
        match self.next_tick.load(Ordering::Relaxed) {
            TICK_SENT => Duration::ZERO,
            at => Duration::from_millis(at.saturating_sub(self.millis(now))),
        }
    }

    fn millis(&self, at: Instant) -> u64 {
        u64::try_from(at.saturating_duration_since(self.epoch).as_millis()).unwrap_or(0)
    }
}

/// The control thread's part in time: a tick for every shard that wants one, until the engine is gone.
fn send_ticks(shared: &Weak<Shared>) {
    while let Some(shared) = shared.upgrade() {
        let now = Instant::now();
        for (published, mail) in shared.published.iter().zip(&shared.mail) {
            if published.take_tick(now) && !mail.tick() {
                // Its mailbox is full: it is asked again in the next round. If it is gone, nobody minds.
                published.next_tick.store(0, Ordering::Relaxed);
            }
        }
        let pause = shared.published.iter().map(|published| published.tick_is_due_in(now)).min().unwrap_or(TICK);
        drop(shared);
        std::thread::sleep(pause.clamp(TICK_MIN, TICK));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_and_lanes_share_the_connections_to_a_server() {
        let of_default = |shards| lane_share(Limits::default().server_conns, shards);
        assert_eq!([1, 2, 3, 64, 128].map(of_default), [128, 64, 42, 2, 1]);
        // More lanes than connections: one each all the same.
        assert_eq!([129, 256, 1_000].map(of_default), [1; 3]);
        assert_eq!([0, 1, 2, 3, 4, 5].map(|conns| lane_share(conns, 1)), [1, 1, 1, 1, 2, 2]);
        for shards in 1..=128 {
            assert!(of_default(shards) * shards * 2 <= Limits::default().server_conns, "{shards} shards");
        }
    }
}
