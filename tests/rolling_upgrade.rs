//! Three real kube-apiservers, each behind its mvproxy, upgraded from v1.35 to v1.36 one by one under load (bar 4 of the issue "Discovery
//! and routing").
//!
//! The upgrade brings [`NEW`] and takes [`JOBS`] away (v1.36 is started without them: an API that an upgrade removes). What is not asked of
//! the proxies, because nobody could do it:
//! - a read of [`NEW`] that is sent before a v1.36 server is ready may be 404 or 503; from then on it is never 404. In the first second
//!   it may be 503, and one in a hundred may in the next four: bar 7 is a second in 99 of 100 cases. Then, and at every other moment of the
//!   upgrade, it is 200;
//! - a read of [`JOBS`] that ends after the last v1.35 server was told to end may be 503 or cut: its only server is down. It may be 404
//!   when that server, which was started again as one without them, may serve, or has been gone for a minute (bar 3): told to end, it
//!   deletes its Lease at once, and with `MVPROXY_LONG=1` may take longer than that to end;
//! - a write may be 503 or cut while a server is replaced, which may be the one that works on it: nobody knows whether it was done, and
//!   nobody does it again;
//! - a watch is cut when its server goes, and what opens one then may be 503: a client opens it again, where it was.
//!
//! Reads of what every version serves, of custom resources, and of discovery have no such excuse: two servers are ready at every moment.
//!
//! Each of the two takes a minute or somewhat more on two cores, most of it for servers to start and to end. `MVPROXY_LONG=1` stays with
//! each mixture of versions for half a minute, and with servers that take their full time to end.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use loadgen::Client;
use support::real::audit::fault_of_write;
use support::real::custom::{CRDS, THINGS, crd};
use support::real::load::{Deed, Event, KINDS, Load, Log, Outcome, Request, WORKERS, is_end, proxy_of};
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, Version, alone};
use support::{headers, is_long, until};
use tokio::time::sleep;

/// Only v1.36 has it.
const NEW: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
/// Only v1.35 has them here.
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// With a limit, as below: a server that has not filled its cache yet says 429 to a whole list.
const SOME_THINGS: &str = "/apis/custom.example/v1/namespaces/default/things?limit=5";
/// What every server answers, custom resources and discovery with them, comes behind.
const EXTRA: &[&str] = &[NEW, JOBS, SOME_THINGS, "/apis"];
const NEW_READ: Deed = Deed::ReadExtra(0);
const JOBS_READ: Deed = Deed::ReadExtra(1);
const THINGS_READ: Deed = Deed::ReadExtra(2);
const DISCOVERY_READ: Deed = Deed::ReadExtra(3);
const NO_JOBS: &str = "--runtime-config=batch/v1=false";
/// A server that was told to end waits this long for its watches. It gives no request more time either, so a busy machine needs that much.
const SHORT_END: &str = "--request-timeout=5s";
/// From a server's readiness to routing by it, in 99 of 100 cases (bar 7).
const ROUTED_WITHIN: Duration = Duration::from_secs(1);
/// The same in all cases.
const ROUTED_AT_LAST: Duration = Duration::from_secs(5);
/// How long a server whose Lease was deleted is remembered (bar 3).
const GONE: Duration = Duration::from_secs(60);
/// Requests a second, of the whole time.
const RATE_MIN: u64 = 100;
/// The same of each time in which a server is replaced, and takes what it can get of two cores.
const RATE_REPLACING_MIN: f64 = 50.0;
/// From the cut of a watch to its next head.
const RESUMED_WITHIN: Duration = Duration::from_secs(10);
/// From the end of a killed server to that of its watches.
const CUT_WITHIN: Duration = Duration::from_secs(2);
/// How many faults a failure shows.
const SHOWN: usize = 25;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Sigterm,
    Sigkill,
}

/// What happened when.
struct Times {
    /// The first v1.36 server was seen to be ready.
    new_ready: Instant,
    /// The last v1.35 server was told to end.
    old_leaves: Instant,
    /// The one that was started in its place was last seen not to serve anybody yet.
    old_idle: Instant,
    replaced: Vec<Replaced>,
}

/// One server.
#[derive(Clone, Copy)]
struct Replaced {
    /// It was told to end.
    leaves: Instant,
    /// The one in its place was seen to be ready.
    ready: Instant,
}

impl Times {
    /// Was a server being replaced while this was asked for?
    fn may_fail(&self, request: &Request) -> bool {
        self.replaced.iter().any(|one| request.done >= one.leaves && request.sent <= one.ready + ROUTED_WITHIN)
    }
}

/// With each mixture of versions.
fn dwell() -> Duration {
    if is_long() { Duration::from_secs(30) } else { Duration::from_secs(4) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn an_upgrade_with_sigterm_shows_nothing_wrong() {
    upgrade(Way::Sigterm).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn an_upgrade_with_sigkill_shows_nothing_wrong() {
    upgrade(Way::Sigkill).await;
}

async fn upgrade(way: Way) {
    let (Some(old), Some(new)) = (Version::of_minor(35), Version::of_minor(36)) else { return };
    let _alone = alone().await;
    let plane = ControlPlane::start().await;
    let mut servers = Vec::new();
    for name in ["cp-a", "cp-b", "cp-c"] {
        let plan = plane.server(name, old);
        let plan = if is_long() { plan } else { plan.flag(SHORT_END) };
        servers.push(plan.launch().await);
    }
    for server in &mut servers {
        server.wait_ready().await;
    }
    let fleet = Arc::new(Fleet::start(&plane, &servers.iter().collect::<Vec<_>>(), &[]).await);
    let before = servers[0].client(ADMIN).await.get(NEW).await.unwrap();
    assert_eq!(before.status, StatusCode::NOT_FOUND, "v1.35 has it already");
    serve_things(&servers).await;
    let load = Load::start(&fleet, EXTRA).await;
    sleep(dwell()).await;
    let times = replace_all(&mut servers, way, new).await;
    let log = load.finish().await;
    show(&log, way);

    let mut faults = faults_of_load(&log, &times);
    faults.extend(faults_of_reads(&log, &times, fleet.proxies.len()));
    faults.extend(faults_of_writes(&log, &times, &servers.iter().collect::<Vec<_>>()));
    let direct = servers[0].client(ADMIN).await;
    let stored = stored(&direct).await;
    faults.extend(absent(&log, &stored));
    faults.extend(faults_of_watches(&log, &stored));
    if way == Way::Sigkill {
        faults.extend(faults_of_cuts(&log, &times));
    }
    let shown: Vec<_> = faults.iter().take(SHOWN).map(String::as_str).collect();
    assert!(faults.is_empty(), "{way:?}: {} faults, the first of them:\n{}", faults.len(), shown.join("\n"));
}

/// Tells the servers of a custom resource, and waits until all serve it.
async fn serve_things(servers: &[Apiserver]) {
    let (body, json) = (crd().to_string().into(), headers([("content-type", "application/json")]));
    let made = servers[0].client(ADMIN).await.request(Method::POST, CRDS, json, body, None).await.unwrap();
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.json());
    for server in servers {
        let straight = server.client(ADMIN).await;
        let is_served = async || straight.get(THINGS).await.is_ok_and(|answer| answer.status == StatusCode::OK);
        until("the custom resource is served", Duration::from_secs(30), is_served).await;
    }
}

/// Replaces every server by a new one, one after the other.
async fn replace_all(servers: &mut [Apiserver], way: Way, new: Version) -> Times {
    let (mut replaced, mut old_idle) = (Vec::new(), None);
    for server in servers {
        let leaves = Instant::now();
        match way {
            Way::Sigterm => server.stop().await,
            Way::Sigkill => server.kill().await,
        };
        let ended = Instant::now();
        server.relaunch(|plan| plan.version(new).flag(NO_JOBS)).await;
        let idle = server.wait_ready().await;
        old_idle = Some(idle);
        let ready = Instant::now();
        let (end, begin) = (ended - leaves, idle - ended);
        println!("{way:?} {}: ended after {end:?}, may serve again after {begin:?}, ready after {:?}", server.hostname(), ready - ended);
        replaced.push(Replaced { leaves, ready });
        sleep(dwell()).await;
    }
    let (first, last) = (replaced[0], replaced[replaced.len() - 1]);
    Times { new_ready: first.ready, old_leaves: last.leaves, old_idle: old_idle.unwrap(), replaced }
}

fn show(log: &Log, way: Way) {
    let mut outcomes: BTreeMap<String, usize> = BTreeMap::new();
    for request in &log.requests {
        let outcome = request.status().map_or_else(|| "broken".to_owned(), |status| status.as_u16().to_string());
        let kind = if request.is_write() { format!("{:?}", request.deed) } else { read_name(request.deed).to_owned() };
        *outcomes.entry(format!("{kind} {outcome}")).or_default() += 1;
    }
    let events: usize = log.watches.iter().map(|seen| seen.events.len()).sum();
    let resumed: usize = log.watches.iter().map(|seen| seen.resumed).sum();
    let longest = log.watches.iter().map(|seen| seen.longest).max().unwrap_or_default();
    let slowest = log.requests.iter().map(|request| request.done - request.sent).max().unwrap_or_default();
    println!("{way:?}: {} requests in {:?}, the slowest took {slowest:?}: {outcomes:?}", log.requests.len(), log.time);
    let clean: usize = log.watches.iter().map(|seen| seen.clean_ends.len()).sum();
    println!("{way:?}: {} watches with {events} events, resumed {resumed} times, within {longest:?} at most", log.watches.len());
    println!("{way:?}: watches that ended as if they were complete: {clean}");
    let mut refused: BTreeMap<&str, usize> = BTreeMap::new();
    for why in log.watches.iter().flat_map(|seen| &seen.refused) {
        *refused.entry(why.as_str()).or_default() += 1;
    }
    println!("{way:?}: watches that could not be opened at once: {refused:?}");
}

fn read_name(deed: Deed) -> &'static str {
    match deed {
        NEW_READ => "new",
        JOBS_READ => "jobs",
        THINGS_READ => "things",
        DISCOVERY_READ => "discovery",
        _ => "read",
    }
}

/// Was it as much as the bar asks for, and did it meet what it was made for?
fn faults_of_load(log: &Log, times: &Times) -> Vec<String> {
    let mut faults = Vec::new();
    let rate = log.requests.len() as u64 / log.time.as_secs().max(1);
    if rate < RATE_MIN {
        faults.push(format!("{rate} requests a second"));
    }
    for one in &times.replaced {
        let sent = log.requests.iter().filter(|request| (one.leaves..one.ready).contains(&request.sent)).count();
        let rate = sent as f64 / (one.ready - one.leaves).as_secs_f64();
        if rate < RATE_REPLACING_MIN {
            faults.push(format!("{rate:.1} requests a second while a server was replaced"));
        }
    }
    let uncut = log.watches.iter().filter(|seen| seen.resumed == 0).count();
    if log.watches.len() < 100 || uncut > 0 {
        faults.push(format!("{uncut} of {} watches were never cut, though every server was replaced", log.watches.len()));
    }
    faults
}

fn faults_of_reads(log: &Log, times: &Times, proxies: usize) -> Vec<String> {
    let wrong = log.requests.iter().filter(|request| is_wrong_read(request, times));
    let tell = |request: &Request| {
        let proxy = proxy_of(request.worker, proxies);
        let (first, last) = (seconds(times.new_ready, request.done), seconds(times.old_leaves, request.done));
        let what = format!("{:?} to {} ({:?}) through proxy {proxy}", request.outcome, request.object, request.audit_id);
        format!("{what}: {first:+.3} s after the first v1.36 was ready, {last:+.3} s after the last v1.35 was told to end")
    };
    let mut faults: Vec<_> = wrong.map(tell).collect();
    let (from, to) = (times.new_ready + ROUTED_WITHIN, times.new_ready + ROUTED_AT_LAST);
    let soon = log.requests.iter().filter(|request| request.deed == NEW_READ && (from..to).contains(&request.sent));
    let soon: Vec<&Request> = soon.collect();
    let late = soon.iter().filter(|request| !request.is_success()).count();
    if late * 100 > soon.len() {
        faults.push(format!("{late} of {} reads were not routed by the first v1.36 a second after it was ready", soon.len()));
    }
    // While two of three servers did not have it, it was reached through every proxy.
    let early = |request: &&Request| request.sent >= times.new_ready + ROUTED_WITHIN && request.done < times.new_ready + dwell();
    let found = log.requests.iter().filter(early).filter(|request| request.deed == NEW_READ && request.is_success());
    let reached: HashSet<usize> = found.map(|request| proxy_of(request.worker, proxies)).collect();
    if reached.len() < proxies {
        faults.push(format!("what v1.36 brought was reached through proxies {reached:?} only"));
    }
    faults
}

/// From one moment to another, which may be the earlier one.
fn seconds(from: Instant, to: Instant) -> f64 {
    to.saturating_duration_since(from).as_secs_f64() - from.saturating_duration_since(to).as_secs_f64()
}

/// See above for what is no fault, and why.
fn is_wrong_read(request: &Request, times: &Times) -> bool {
    let status = request.status();
    let is_ok = status == Some(StatusCode::OK);
    let (is_absent, is_busy) = (status == Some(StatusCode::NOT_FOUND), status == Some(StatusCode::SERVICE_UNAVAILABLE));
    match request.deed {
        Deed::Read | THINGS_READ | DISCOVERY_READ => !is_ok,
        NEW_READ if request.sent >= times.new_ready + ROUTED_AT_LAST => !is_ok,
        NEW_READ if request.sent >= times.new_ready => !(is_ok || is_busy),
        NEW_READ => !(is_ok || is_busy || is_absent),
        JOBS_READ if request.done < times.old_leaves => !is_ok,
        JOBS_READ => {
            let may_be_absent = request.done >= times.old_idle.min(times.old_leaves + GONE);
            !(is_ok || is_busy || status.is_none() || (is_absent && may_be_absent))
        }
        _ => false,
    }
}

/// Writes that failed without need, were done twice, or were done though the client was told to do them again.
fn faults_of_writes(log: &Log, times: &Times, servers: &[&Apiserver]) -> Vec<String> {
    let mut faults = Vec::new();
    for request in log.requests.iter().filter(|request| request.is_write()) {
        let mut fault = |what: &str| {
            let since: Vec<_> = times.replaced.iter().map(|one| format!("{:+.3}", seconds(one.leaves, request.done))).collect();
            let what = format!("{:?} {} {:?} ({}): {what}", request.deed, request.object, request.outcome, request.audit_id);
            faults.push(format!("{what}; seconds since servers were told to end: {since:?}"));
        };
        if is_wrong_write(request, times) {
            fault("nobody was being replaced, or that is no answer to it");
        }
        if let Some(what) = fault_of_write(servers, &request.audit_id, request.status(), request.retry_after) {
            fault(&what);
        }
    }
    faults
}

/// A write is done, or for a good reason is 503 or cut. What one worker writes nobody else does: there is no 404 nor 409.
fn is_wrong_write(request: &Request, times: &Times) -> bool {
    match request.status() {
        Some(status) if status.is_success() => false,
        Some(StatusCode::SERVICE_UNAVAILABLE) | None => !times.may_fail(request),
        Some(_) => true,
    }
}

/// What is there in the end, straight from a server: the version by the name.
async fn stored(direct: &Client) -> HashMap<String, u64> {
    let mut stored = HashMap::new();
    for kind in KINDS {
        let list = direct.get(&format!("{}?labelSelector=worker", kind.path)).await.unwrap();
        assert_eq!(list.status, StatusCode::OK);
        for object in list.json().unwrap()["items"].as_array().unwrap() {
            let metadata = &object["metadata"];
            let version = metadata["resourceVersion"].as_str().unwrap().parse().unwrap();
            stored.insert(metadata["name"].as_str().unwrap().to_owned(), version);
        }
    }
    stored
}

/// Writes that were answered 2xx and did not happen.
fn absent(log: &Log, stored: &HashMap<String, u64>) -> Vec<String> {
    let mut faults = Vec::new();
    // An object that somebody tried to delete, without an answer, may be there or not.
    let doubtful = log.requests.iter().filter(|request| request.deed == Deed::Delete && !request.is_success());
    let doubtful: HashSet<&str> = doubtful.map(|request| request.object.as_str()).collect();
    let deleted = log.requests.iter().filter(|request| request.deed == Deed::Delete && request.is_success());
    let deleted: HashSet<&str> = deleted.map(|request| request.object.as_str()).collect();
    for request in log.requests.iter().filter(|request| request.is_write() && request.is_success()) {
        let there = stored.get(&request.object).copied();
        let is_kept = match request.deed {
            Deed::Delete => there.is_none(),
            _ if deleted.contains(&*request.object) || doubtful.contains(&*request.object) => true,
            _ => request.version.is_some() && there >= request.version,
        };
        if !is_kept {
            let (deed, object, version) = (request.deed, &request.object, request.version);
            faults.push(format!("{deed:?} {object} was answered {:?} with version {version:?}, and {there:?} is there", request.outcome));
        }
    }
    faults
}

/// Events that are missing, that came twice, or in another order than to others.
fn faults_of_watches(log: &Log, stored: &HashMap<String, u64>) -> Vec<String> {
    let mut faults: Vec<String> = log.watches.iter().flat_map(|seen| &seen.wrong).map(|wrong| format!("a watch: {wrong}")).collect();
    let slow = log.watches.iter().filter(|seen| seen.longest > RESUMED_WITHIN);
    faults.extend(slow.map(|seen| format!("a watch of worker {} went on only after {:?}", seen.worker, seen.longest)));
    for worker in 0..WORKERS {
        let mut watches = log.watches.iter().filter(|seen| seen.worker == worker);
        let Some(first) = watches.next() else { continue };
        for other in watches.filter(|seen| seen.events != first.events) {
            let at = first.events.iter().zip(&other.events).take_while(|(one, two)| one == two).count();
            let (one, two) = (first.events.get(at), other.events.get(at));
            faults.push(format!("two watches of worker {worker} differ at event {at}: {one:?}, {two:?}"));
        }
        faults.extend(unseen(log, worker, &first.events));
        faults.extend(unlike(&first.events, stored));
    }
    faults
}

/// Watches of a killed server that ended as if they were complete: it cannot have said so.
fn faults_of_cuts(log: &Log, times: &Times) -> Vec<String> {
    let is_cut = |end: &&Instant| times.replaced.iter().any(|one| (one.leaves..one.leaves + CUT_WITHIN).contains(*end));
    let count = log.watches.iter().flat_map(|seen| &seen.clean_ends).filter(is_cut).count();
    if count > 0 { vec![format!("{count} watches of killed servers ended cleanly")] } else { Vec::new() }
}

/// Writes of a worker that succeeded, and of which no event came.
fn unseen(log: &Log, worker: usize, events: &[Event]) -> Vec<String> {
    let changes: HashSet<(&str, u64)> = events.iter().map(|event| (event.object.as_str(), event.version)).collect();
    let deletions: HashSet<&str> = events.iter().filter(|event| event.change == "DELETED").map(|event| event.object.as_str()).collect();
    let writes = log.requests.iter().filter(|request| request.worker == worker && request.is_write() && request.is_success());
    // A watch ends with the first that it sees of these.
    let is_over = events.last().is_some_and(|event| is_end(&event.object));
    let writes = writes.filter(|request| !(is_over && is_end(&request.object)));
    let unseen = writes.filter(|request| match request.deed {
        Deed::Delete => !deletions.contains(&*request.object),
        _ => !request.version.is_some_and(|version| changes.contains(&(&*request.object, version))),
    });
    let tell = |request: &Request| format!("no event of {:?} {} with version {:?}", request.deed, request.object, request.version);
    unseen.map(tell).collect()
}

/// Where what the events add up to is not what is stored.
fn unlike(events: &[Event], stored: &HashMap<String, u64>) -> Vec<String> {
    let last: HashMap<&str, &Event> = events.iter().map(|event| (event.object.as_str(), event)).collect();
    let wrong = last.values().filter(|event| {
        let there = stored.get(&event.object).copied();
        if event.change == "DELETED" { there.is_some() } else { there != Some(event.version) }
    });
    wrong.map(|event| format!("the last event was {event:?}, and {:?} is stored", stored.get(&event.object))).collect()
}

/// The rules of the load's own making, so that a change to them cannot make the test above blind.
#[test]
fn what_is_wrong_with_a_read() {
    let begun = Instant::now();
    let at = |seconds: u64| begun + Duration::from_secs(seconds);
    let times = Times { new_ready: at(10), old_leaves: at(20), old_idle: at(25), replaced: Vec::new() };
    let read = |deed: Deed, second: u64, status: u16| is_wrong_read(&request(deed, at(second), status), &times);
    for (deed, second, allowed) in [
        (Deed::Read, 5, &[200][..]),
        (Deed::Read, 22, &[200]),
        (THINGS_READ, 22, &[200]),
        (DISCOVERY_READ, 22, &[200]),
        (NEW_READ, 9, &[200, 404, 503]),
        (NEW_READ, 10, &[200, 503]),
        (NEW_READ, 11, &[200, 503]),
        (NEW_READ, 15, &[200]),
        (NEW_READ, 22, &[200]),
        (JOBS_READ, 19, &[200]),
        (JOBS_READ, 20, &[200, 503, 0]),
        (JOBS_READ, 25, &[200, 404, 503, 0]),
    ] {
        for status in [200, 404, 500, 503, 0] {
            assert_eq!(read(deed, second, status), !allowed.contains(&status), "{deed:?} at {second}: {status}");
        }
    }
    // One that takes its time to end.
    let times = Times { old_idle: at(100), ..times };
    let absent = [79, 80].map(|second| is_wrong_read(&request(JOBS_READ, at(second), 404), &times));
    assert_eq!(absent, [true, false]);
}

#[test]
fn what_is_wrong_with_a_write() {
    let begun = Instant::now();
    let at = |seconds: u64| begun + Duration::from_secs(seconds);
    let replaced = vec![Replaced { leaves: at(5), ready: at(10) }, Replaced { leaves: at(20), ready: at(30) }];
    let times = Times { new_ready: at(10), old_leaves: at(20), old_idle: at(29), replaced };
    for (second, may_fail) in [(4, false), (5, true), (11, true), (12, false), (19, false), (25, true), (32, false)] {
        for (status, is_failure) in [(201, false), (503, true), (0, true)] {
            let wrong = is_wrong_write(&request(Deed::Create, at(second), status), &times);
            assert_eq!(wrong, is_failure && !may_fail, "{status} at {second}");
        }
        for status in [403, 404, 409, 429, 500, 504] {
            assert!(is_wrong_write(&request(Deed::Patch, at(second), status), &times), "{status} at {second}");
        }
    }
}

/// One that took no time; 0 is a reset.
fn request(deed: Deed, at: Instant, status: u16) -> Request {
    let outcome = match StatusCode::from_u16(status) {
        Ok(status) => Outcome::Status(status),
        Err(_) => Outcome::Broken("reset".to_owned()),
    };
    let (audit_id, object) = (String::new(), String::new());
    Request { audit_id, worker: 0, deed, object, sent: at, done: at, outcome, retry_after: false, version: None }
}
