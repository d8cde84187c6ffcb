//! Real kube-apiservers that are killed, frozen, stopped and restarted behind mvproxy (bar 3 of the issue "Discovery and routing").
//!
//! `MVPROXY_LONG=1` looks for a wrong 404 for a whole minute where else a few seconds have to do.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use serde_json::json;
use support::real::audit::fault_of_write;
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, Proxy, Version, alone, beside_others, job};
use support::{headers, is_long, until};
use tokio::task::JoinHandle;
use tokio::time::sleep;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// However many there are.
const ONE_JOB: &str = "/apis/batch/v1/namespaces/default/jobs?limit=1";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const NO_JOBS: &str = "--runtime-config=batch/v1=false";
/// Clients that ask at the same time.
const LANES: usize = 4;
/// How a server ends.
const WAYS: [&str; 2] = ["SIGKILL", "SIGTERM"];

/// For another peer to answer instead of one that was killed.
const AT_ONCE: Duration = Duration::from_millis(100);
/// The same instead of one that hangs, or for a 503.
const GIVEN_UP: Duration = Duration::from_millis(6_500);
/// For a server that is ready to be asked again. Nor may what depends on no dead server take longer; who waits for one takes seconds.
const SOON: Duration = Duration::from_secs(1);
/// The life of what is gone.
const GONE: Duration = Duration::from_secs(60);

fn a_while() -> Duration {
    if is_long() { GONE } else { Duration::from_secs(6) }
}

/// How the proxy of the first server gets to the others.
#[derive(Debug, Clone, Copy)]
enum Reach {
    /// Each of them has one too.
    ByProxy,
    /// It is the only one.
    Directly,
}

impl Reach {
    /// The proxies of these servers, that of the first one first. It reaches the others in this way, as its status port says.
    async fn proxies(self, plane: &ControlPlane, servers: &[&Apiserver]) -> Vec<Proxy> {
        let (local, peers) = (servers[0], &servers[1..]);
        let proxies = match self {
            Self::ByProxy => Fleet::start(plane, servers, &[]).await.proxies,
            Self::Directly => {
                let flags: Vec<_> = peers.iter().map(|peer| format!("--peer-endpoint={}={}", peer.id(), peer.address())).collect();
                let mut proxy = Proxy::alone(plane, local, &flags.iter().map(String::as_str).collect::<Vec<_>>());
                proxy.wait_ready().await;
                vec![proxy]
            }
        };
        for (at, peer) in servers.iter().enumerate().skip(1) {
            let (via, address) = match self {
                Self::ByProxy => ("proxy", proxies[at].peers),
                Self::Directly => ("apiserver", peer.address()),
            };
            let expected = json!([via, address, true]);
            let is_reached = async || {
                let row = proxies[0].server_row(peer.id()).await;
                json!([row["via"], row["address"], row["ready"]]) == expected
            };
            until(&format!("{} reached as {expected}", peer.hostname()), Duration::from_secs(10), is_reached).await;
        }
        proxies
    }
}

/// A request that was sent once.
struct Asked {
    audit_id: String,
    /// What went wrong when there was no answer.
    status: Result<StatusCode, String>,
    retry_after: bool,
    sent: Instant,
    took: Duration,
}

async fn ask(client: &Client, method: Method, path: &str, audit_id: String, body: Bytes) -> Asked {
    let sent = Instant::now();
    let fields = headers([("content-type", "application/json"), ("audit-id", &*audit_id)]);
    let answer = client.request(method, path, fields, body, None).await;
    let retry_after = answer.as_ref().is_ok_and(|answer| answer.header("retry-after").is_some());
    let status = answer.map(|answer| answer.status).map_err(|error| error.to_string());
    Asked { audit_id, status, retry_after, sent, took: sent.elapsed() }
}

/// Makes a job of that name, which nobody made before.
async fn create(client: &Client, name: &str) -> Asked {
    ask(client, Method::POST, JOBS, format!("create-{name}"), job(name).to_string().into()).await
}

/// Asks again and again for so long; every answer has to be one of those that are allowed.
async fn only(client: &Client, path: &str, time: Duration, allowed: &[StatusCode]) -> Vec<Asked> {
    let (begun, mut answers) = (Instant::now(), Vec::new());
    while begun.elapsed() < time {
        let answer = ask(client, Method::GET, path, format!("only-{}", answers.len()), Bytes::new()).await;
        assert!(answer.status.as_ref().is_ok_and(|status| allowed.contains(status)), "{:?} after {:?}", answer.status, begun.elapsed());
        answers.push(answer);
        sleep(Duration::from_millis(50)).await;
    }
    answers
}

fn slowest<'a>(asked: impl IntoIterator<Item = &'a Asked>) -> Duration {
    asked.into_iter().map(|asked| asked.took).max().unwrap_or_default()
}

/// How many were not done at once.
fn late<'a>(asked: impl IntoIterator<Item = &'a Asked>) -> usize {
    asked.into_iter().filter(|asked| asked.took > AT_ONCE).count()
}

/// The same, counted from when a server was gone where that was later: from SIGKILL to the end of its process took up to 1.3 s on a busy
/// machine, and its port is open longer than its connections. It does not bound what is sent meanwhile: `after_failure` shows that.
fn slowest_since(gone: Instant, asked: &[Asked]) -> Duration {
    let late = asked.iter().map(|asked| (asked.sent + asked.took).saturating_duration_since(asked.sent.max(gone)));
    late.max().unwrap_or_default()
}

/// Those that were sent after the first of them had failed.
fn after_failure(asked: &[Asked]) -> impl Iterator<Item = &Asked> {
    let failed = asked.iter().filter(|asked| asked.status != Ok(StatusCode::CREATED)).map(|asked| asked.sent + asked.took).min();
    asked.iter().filter(move |asked| failed.is_some_and(|failed| asked.sent > failed))
}

fn times(asked: &[Asked], gone: Instant) -> String {
    let [all, next, late] = [slowest(asked), slowest(after_failure(asked)), slowest_since(gone, asked)];
    format!("the slowest took {all:?}, of those sent after one had failed {next:?}, of the time after the server was gone {late:?}")
}

/// None was done twice, and none is to be sent again that a server has; 201, 503 and none at all are the only answers. How many of each.
fn judge(writes: &[Asked], servers: &[&Apiserver]) -> [usize; 3] {
    let mut counts = [0; 3];
    for Asked { audit_id, status, retry_after, .. } in writes {
        assert_eq!(fault_of_write(servers, audit_id, status.clone().ok(), *retry_after), None, "{audit_id}: {status:?}");
        let kind = match *status {
            Ok(StatusCode::CREATED) => 0,
            Ok(StatusCode::SERVICE_UNAVAILABLE) => 1,
            Ok(other) => panic!("{audit_id}: {other}"),
            Err(_) => 2,
        };
        counts[kind] += 1;
    }
    counts
}

/// Those that failed and may have been done: at most one for each client when a server dies.
fn unsure(writes: &[Asked]) -> usize {
    writes.iter().filter(|write| write.status != Ok(StatusCode::CREATED) && !write.retry_after).count()
}

/// Clients that ask side by side until they are told to stop.
struct Lanes<T> {
    stop: Arc<AtomicBool>,
    tasks: Vec<JoinHandle<T>>,
}

impl<T: Send + 'static> Lanes<T> {
    fn start<F: Future<Output = T> + Send + 'static>(lane: impl Fn(usize, Arc<AtomicBool>) -> F) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let tasks = (0..LANES).map(|nth| tokio::spawn(lane(nth, Arc::clone(&stop)))).collect();
        Self { stop, tasks }
    }

    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    async fn end(self) -> Vec<T> {
        self.stop();
        let mut all = Vec::new();
        for task in self.tasks {
            all.push(task.await.unwrap());
        }
        all
    }
}

/// Make jobs, one after the other in each lane.
fn writers(client: &Client, name: &'static str) -> Lanes<Vec<Asked>> {
    Lanes::start(|lane, stop| {
        let client = client.clone();
        async move {
            let mut writes = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                let write = create(&client, &format!("{name}-{lane}-{}", writes.len())).await;
                writes.push(write);
            }
            writes
        }
    })
}

/// cp-a has no jobs; cp-b and cp-c have.
async fn three(plane: &ControlPlane) -> [Apiserver; 3] {
    let a = plane.server("cp-a", Version::newer()).flag(NO_JOBS).start().await;
    let b = plane.server("cp-b", Version::newer()).start().await;
    let c = plane.server("cp-c", Version::newer()).start().await;
    [a, b, c]
}

/// Ends it in one of [`WAYS`].
async fn end(server: &mut Apiserver, way: &str) {
    if way == "SIGKILL" {
        server.kill().await;
    } else {
        server.stop().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_killed_peer_is_replaced_at_once_and_the_last_one_is_503() {
    peers_are_killed(Reach::ByProxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_killed_peer_is_replaced_at_once_and_the_last_one_is_503_without_a_proxy_of_its_own() {
    peers_are_killed(Reach::Directly).await;
}

async fn peers_are_killed(reach: Reach) {
    let _alone = alone().await;
    let plane = ControlPlane::start().await;
    let mut servers = three(&plane).await;
    let proxies = reach.proxies(&plane, &servers.each_ref()).await;
    let client = proxies[0].client(ADMIN).await;
    for _ in 0..20 {
        assert_eq!(client.get(ONE_JOB).await.unwrap().status, StatusCode::OK);
    }
    one_of_two_is_killed(reach, &client, &mut servers).await;
    the_last_one_is_killed(reach, &client, &mut servers).await;
}

async fn one_of_two_is_killed(reach: Reach, client: &Client, servers: &mut [Apiserver; 3]) {
    let lanes = writers(client, "first");
    sleep(Duration::from_millis(500)).await;
    servers[1].kill().await;
    let gone = Instant::now();
    lanes.stop();
    let mut reads = Vec::new();
    for nth in 0..40 {
        let read = ask(client, Method::GET, ONE_JOB, format!("read-{nth}"), Bytes::new()).await;
        assert_eq!(read.status, Ok(StatusCode::OK), "request {nth} after the kill");
        reads.push(read);
    }
    println!("{reach:?}: one of two peers killed: the first read took {:?}, the slowest of 40 {:?}", reads[0].took, slowest(&reads));
    // The next one, and all others but for one over which the server itself may take longer.
    assert!(reads[0].took <= AT_ONCE && late(&reads) <= 1 && slowest(&reads) <= SOON, "{:?}", slowest(&reads));
    let writes: Vec<_> = lanes.end().await.into_iter().flatten().collect();
    let [done, refused, cut] = judge(&writes, &servers.each_ref());
    println!("{} writes around the kill: {done} done, {refused} 503, {cut} cut; {}", writes.len(), times(&writes, gone));
    assert!(done > 0 && refused + cut <= LANES, "only what the killed server had may fail: {refused} 503, {cut} cut");
    assert!(late(after_failure(&writes)) <= 1, "{:?}", slowest(after_failure(&writes)));
    assert!(slowest_since(gone, &writes) <= SOON, "{:?}", slowest_since(gone, &writes));

    let mut writes = Vec::new();
    for nth in 0..40 {
        writes.push(create(client, &format!("then-{nth}")).await);
    }
    assert_eq!(judge(&writes, &servers.each_ref()), [40, 0, 0], "the other one does all of them");
    writes.sort_by_key(|write| write.took);
    let (median, slowest) = (writes[20].took, slowest(&writes));
    println!("then: the median of 40 writes took {median:?}, the slowest {slowest:?}");
    // The server itself may take longer over one.
    assert!(median <= AT_ONCE && slowest <= SOON, "{median:?}, {slowest:?}");
}

async fn the_last_one_is_killed(reach: Reach, client: &Client, servers: &mut [Apiserver; 3]) {
    let lanes = writers(client, "last");
    sleep(Duration::from_millis(500)).await;
    servers[2].kill().await;
    let gone = Instant::now();
    lanes.stop();
    let reads = only(client, JOBS, a_while(), &[StatusCode::SERVICE_UNAVAILABLE]).await;
    let (count, first, worst) = (reads.len(), reads[0].took, slowest(&reads));
    println!("{reach:?}: both killed: {count} reads, all 503, the first after {first:?}, the slowest after {worst:?}");
    assert!(worst <= SOON, "{worst:?}");
    let writes: Vec<_> = lanes.end().await.into_iter().flatten().collect();
    let ([done, refused, cut], lost) = (judge(&writes, &servers.each_ref()), unsure(&writes));
    println!("{} writes around the kill: {done} done, {refused} 503, {cut} cut; {}", writes.len(), times(&writes, gone));
    assert!(done > 0 && refused + cut > 0 && lost <= LANES, "{done} done, {refused} 503, {cut} cut, {lost} nobody knows of");
    assert!(slowest_since(gone, &writes) <= SOON, "{:?}", slowest_since(gone, &writes));

    let mut writes = Vec::new();
    for nth in 0..20 {
        writes.push(create(client, &format!("alone-{nth}")).await);
    }
    assert_eq!(judge(&writes, &servers.each_ref()), [0, 20, 0], "nobody is there to do it");
    assert_eq!(unsure(&writes), 0, "nothing was sent: they may be sent again");
    println!("then: the slowest of 20 writes was refused after {:?}", slowest(&writes));
    assert!(slowest(&writes) <= SOON, "{:?}", slowest(&writes));
    assert_eq!(client.get(CONFIGMAPS).await.unwrap().status, StatusCode::OK, "what local serves goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_frozen_peer_is_replaced_by_the_other_one_in_time() {
    one_of_two_is_frozen(Reach::ByProxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_frozen_peer_is_replaced_by_the_other_one_in_time_without_a_proxy_of_its_own() {
    one_of_two_is_frozen(Reach::Directly).await;
}

async fn one_of_two_is_frozen(reach: Reach) {
    let _beside = beside_others().await;
    let plane = ControlPlane::start().await;
    let [a, b, c] = three(&plane).await;
    let proxies = reach.proxies(&plane, &[&a, &b, &c]).await;
    let client = proxies[0].client(ADMIN).await;
    for _ in 0..20 {
        assert_eq!(client.get(ONE_JOB).await.unwrap().status, StatusCode::OK);
    }
    b.freeze();
    // Half of them, about, were given to the frozen one.
    let asking: Vec<_> = (0..16)
        .map(|_| {
            let (client, asked) = (client.clone(), Instant::now());
            tokio::spawn(async move { (client.get(ONE_JOB).await.unwrap().status, asked.elapsed()) })
        })
        .collect();
    let mut slowest = Duration::ZERO;
    for task in asking {
        let (status, took) = task.await.unwrap();
        assert_eq!(status, StatusCode::OK, "the other one serves it, after {took:?}");
        slowest = slowest.max(took);
    }
    println!("{reach:?}: one of two peers frozen: the slowest of 16 requests took {slowest:?}");
    assert!(slowest <= GIVEN_UP, "{slowest:?}");
    let asked = Instant::now();
    for nth in 0..20 {
        assert_eq!(client.get(ONE_JOB).await.unwrap().status, StatusCode::OK, "request {nth} after it was given up");
    }
    assert!(asked.elapsed() <= Duration::from_secs(2), "nobody waits for it any more: {:?}", asked.elapsed());
    b.thaw();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_frozen_peer_is_given_up_in_time_and_one_that_goes_on_is_not_cut() {
    the_only_peer_is_frozen(Reach::ByProxy).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_frozen_peer_is_given_up_in_time_and_one_that_goes_on_is_not_cut_without_a_proxy_of_its_own() {
    the_only_peer_is_frozen(Reach::Directly).await;
}

async fn the_only_peer_is_frozen(reach: Reach) {
    let _beside = beside_others().await;
    let plane = ControlPlane::start().await;
    let a = plane.server("cp-a", Version::newer()).flag(NO_JOBS).start().await;
    let b = plane.server("cp-b", Version::newer()).start().await;
    let proxies = reach.proxies(&plane, &[&a, &b]).await;
    let client = proxies[0].client(ADMIN).await;
    let mut watch = client.watch(&format!("{JOBS}?watch=true&allowWatchBookmarks=true")).await.unwrap();
    // The connection is there: what a frozen server cannot do is to take a new one.
    assert_eq!(client.get(JOBS).await.unwrap().status, StatusCode::OK);

    b.freeze();
    let waiting = tokio::spawn({
        let client = client.clone();
        async move { client.get(JOBS).await }
    });
    let write = tokio::spawn({
        let client = client.clone();
        async move { create(&client, "slow").await }
    });
    sleep(Duration::from_secs(5)).await;
    b.thaw();
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!(answer.status, StatusCode::OK, "it was only slow: {:?}", answer.json());
    assert_eq!(judge(&[write.await.unwrap()], &[&a, &b]), [1, 0, 0], "it was only slow");
    let event = tokio::time::timeout(Duration::from_secs(10), watch.next_event()).await.unwrap();
    assert!(event.is_ok_and(|event| event.is_some()), "the watch lives on");

    let went_on = Instant::now();
    while !b.ready().await || client.get(JOBS).await.unwrap().status != StatusCode::OK {
        assert!(went_on.elapsed() < Duration::from_secs(10), "it went on, and nobody asks it");
        sleep(Duration::from_millis(50)).await;
    }
    b.freeze();
    let asked = Instant::now();
    let answer = client.get(JOBS).await.unwrap();
    println!("{reach:?}: the only peer frozen: {} after {:?}", answer.status, asked.elapsed());
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(asked.elapsed() <= GIVEN_UP, "{:?}", asked.elapsed());
    let refused = create(&client, "refused").await;
    assert_eq!((&refused.status, refused.retry_after), (&Ok(StatusCode::SERVICE_UNAVAILABLE), true), "nobody has it");
    let reads = only(&client, JOBS, Duration::from_secs(3), &[StatusCode::SERVICE_UNAVAILABLE]).await;
    println!("then: a write is refused after {:?}, the slowest of {} reads after {:?}", refused.took, reads.len(), slowest(&reads));
    assert!(slowest(&reads).max(refused.took) <= GIVEN_UP, "{:?}, {:?}", slowest(&reads), refused.took);
    b.thaw();
    let thawed = Instant::now();
    while client.get(JOBS).await.unwrap().status != StatusCode::OK {
        assert!(thawed.elapsed() < Duration::from_secs(10), "it is back, and nobody asks it");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn the_only_server_of_a_resource_restarted_or_stopped_is_never_a_404() {
    let _beside = beside_others().await;
    let plane = ControlPlane::start().await;
    let a = plane.server("cp-a", Version::newer()).flag(NO_JOBS).start().await;
    let mut b = plane.server("cp-b", Version::newer()).start().await;
    let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let client = fleet.proxies[0].client(ADMIN).await;
    for way in WAYS {
        let asking = tokio::spawn({
            let client = client.clone();
            async move { only(&client, JOBS, Duration::from_secs(12), &[StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE]).await }
        });
        end(&mut b, way).await;
        b.relaunch(|plan| plan).await;
        b.wait_ready().await;
        let ready = Instant::now();
        while client.get(JOBS).await.unwrap().status != StatusCode::OK {
            assert!(ready.elapsed() < Duration::from_secs(5), "{way}: ready, and nobody asks it");
            sleep(Duration::from_millis(20)).await;
        }
        println!("restarted with {way}: asked again {:?} after it was seen to be ready", ready.elapsed());
        let answers = asking.await.unwrap();
        println!("{} answers meanwhile, none of them 404, the slowest after {:?}", answers.len(), slowest(&answers));
    }
    // It deletes its Lease when it begins to stop, and ends seconds later.
    let deleted = Instant::now();
    b.stop().await;
    let time = a_while().min(GONE.saturating_sub(deleted.elapsed()));
    let answers = only(&client, JOBS, time, &[StatusCode::SERVICE_UNAVAILABLE]).await;
    assert!(!answers.is_empty(), "it took {:?} to stop", deleted.elapsed());
    println!("stopped, its Lease deleted: {} answers, all 503, the slowest after {:?}", answers.len(), slowest(&answers));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_peer_stands_in_for_a_local_server_that_restarts() {
    let _alone = alone().await;
    let plane = ControlPlane::start().await;
    let mut a = plane.server("cp-a", Version::newer()).start().await;
    let b = plane.server("cp-b", Version::newer()).flag(NO_JOBS).start().await;
    let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let client = fleet.proxies[0].client(ADMIN).await;
    assert_eq!(client.get(JOBS).await.unwrap().status, StatusCode::OK);
    for way in WAYS {
        let lanes = Lanes::start(|lane, stop| users(client.clone(), way, lane, stop));
        sleep(Duration::from_secs(1)).await;
        end(&mut a, way).await;
        sleep(Duration::from_secs(1)).await;
        let restarted = Instant::now();
        a.relaunch(|plan| plan).await;
        let ready = a.wait_ready().await;
        sleep(SOON * 2).await;
        let mut all = Uses::default();
        for uses in lanes.end().await {
            all.shared.extend(uses.shared);
            all.own.extend(uses.own);
            all.writes.extend(uses.writes);
        }
        let (count, slowest) = (all.shared.len(), slowest(&all.shared));
        println!("local restarted with {way}: the slowest of {count} reads of what a peer serves too took {slowest:?}");
        back_to_local(&all, &a, restarted, ready).await;
        let ([done, refused, cut], lost) = (judge(&all.writes, &[&a, &b]), unsure(&all.writes));
        println!("{} writes: {done} done, {refused} 503, {cut} cut, and {lost} nobody knows of", all.writes.len());
        // One may have been at the server that was killed.
        assert!(done > 0 && refused > 0 && lost <= 1, "{done} done, {refused} refused, {cut} cut, {lost} nobody knows of");
    }
}

/// What clients ask for while local restarts.
#[derive(Default)]
struct Uses {
    /// Reads of what a peer serves too.
    shared: Vec<Asked>,
    /// Reads of what only local serves.
    own: Vec<Asked>,
    writes: Vec<Asked>,
}

/// What a peer serves too is served all the time, the rest is at times to be asked for again.
async fn users(client: Client, way: &str, lane: usize, stop: Arc<AtomicBool>) -> Uses {
    let mut uses = Uses::default();
    while !stop.load(Ordering::Relaxed) {
        let name = format!("{way}-{lane}-{}", uses.own.len()).to_lowercase();
        let shared = ask(&client, Method::GET, CONFIGMAPS, format!("shared-{name}"), Bytes::new()).await;
        assert_eq!(shared.status, Ok(StatusCode::OK), "a peer serves it");
        uses.shared.push(shared);
        let own = ask(&client, Method::GET, ONE_JOB, format!("own-{name}"), Bytes::new()).await;
        match &own.status {
            Ok(StatusCode::OK) => {}
            Ok(StatusCode::SERVICE_UNAVAILABLE) => assert!(own.retry_after, "{name}"),
            other => panic!("{name}: {other:?} for what only local serves"),
        }
        uses.own.push(own);
        // One lane is enough: what is written is not cheap.
        if lane == 0 {
            uses.writes.push(create(&client, &name).await);
        }
        sleep(Duration::from_millis(10)).await;
    }
    uses
}

/// Within a second after it is ready local serves its own again, and is asked for what a peer serves too; all that is sent later is its.
async fn back_to_local(uses: &Uses, local: &Apiserver, restarted: Instant, ready: Instant) {
    // What came to local before this one is in its log by then.
    let last = uses.shared.iter().max_by_key(|read| read.sent).unwrap();
    local.audited(&last.audit_id).await;
    let is_asked = |read: &&Asked| !local.audit().events(&read.audit_id).is_empty();
    let is_served = |read: &&Asked| read.status == Ok(StatusCode::OK);
    assert!(!uses.own.iter().all(|read| is_served(&read)) && !uses.shared.iter().all(|read| is_asked(&read)), "it was never away");

    let own = uses.own.iter().filter(|read| read.sent > restarted).filter(is_served).map(|read| read.sent + read.took).min();
    let shared = uses.shared.iter().filter(|read| read.sent > restarted).filter(is_asked).map(|read| read.sent).min();
    let [own, shared] = [own, shared].map(|back| back.unwrap().saturating_duration_since(ready));
    println!("back to local after it was ready: its own answered after {own:?}, what a peer serves too sent to it after {shared:?}");
    assert!(own <= SOON && shared <= SOON, "{own:?}, {shared:?}");

    let is_late = |read: &&Asked| read.sent > ready + SOON;
    let (own, shared) = (uses.own.iter().filter(is_late), uses.shared.iter().filter(is_late));
    assert_eq!(own.filter(|read| !is_served(read)).count(), 0, "answers of 503 later than that");
    assert_eq!(shared.filter(|read| !is_asked(read)).count(), 0, "reads that a peer got later than that");
}
