//! Real kube-apiservers that are killed, frozen, stopped and restarted behind mvproxy (bar 3 of the issue "Discovery and routing").
//!
//! `MVPROXY_LONG=1` looks for a wrong 404 for a whole minute where else a few seconds have to do.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use loadgen::Client;
use support::real::audit::fault_of_write;
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, Version, job};
use support::{headers, is_long};
use tokio::time::sleep;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// However many there are.
const ONE_JOB: &str = "/apis/batch/v1/namespaces/default/jobs?limit=1";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const NO_JOBS: &str = "--runtime-config=batch/v1=false";
/// Clients that ask at the same time.
const LANES: usize = 4;

/// The life of what is gone.
const GONE: Duration = Duration::from_secs(60);

fn a_while() -> Duration {
    if is_long() { GONE } else { Duration::from_secs(6) }
}

/// Asks again and again for so long; every answer has to be 503, or what the others are allowed to be.
async fn only(client: &Client, path: &str, time: Duration, allowed: &[StatusCode]) -> usize {
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < time {
        let answer = client.get(path).await.unwrap();
        assert!(allowed.contains(&answer.status), "{} after {:?}", answer.status, begun.elapsed());
        count += 1;
        sleep(Duration::from_millis(50)).await;
    }
    count
}

/// A write that was sent once.
struct Write {
    audit_id: String,
    /// `None` when there was no answer.
    status: Option<StatusCode>,
    retry_after: bool,
    took: Duration,
}

/// Makes a job of that name, which nobody made before.
async fn create(client: &Client, name: &str) -> Write {
    let (audit_id, asked) = (format!("create-{name}"), Instant::now());
    let fields = headers([("content-type", "application/json"), ("audit-id", &*audit_id)]);
    let answer = client.request(Method::POST, JOBS, fields, job(name).to_string().into(), None).await;
    let retry_after = answer.as_ref().is_ok_and(|answer| answer.header("retry-after").is_some());
    Write { audit_id, status: answer.ok().map(|answer| answer.status), retry_after, took: asked.elapsed() }
}

/// None was done twice, and none is to be sent again that a server has; 201, 503 and none at all are the only answers. How many of each.
fn judge(writes: &[Write], servers: &[&Apiserver]) -> [usize; 3] {
    let mut counts = [0; 3];
    for Write { audit_id, status, retry_after, .. } in writes {
        assert_eq!(fault_of_write(servers, audit_id, *status, *retry_after), None, "{audit_id}: {status:?}");
        let kind = match *status {
            Some(StatusCode::CREATED) => 0,
            Some(StatusCode::SERVICE_UNAVAILABLE) => 1,
            None => 2,
            Some(other) => panic!("{audit_id}: {other}"),
        };
        counts[kind] += 1;
    }
    counts
}

/// cp-a has no jobs; cp-b and cp-c have.
async fn three(plane: &ControlPlane) -> [Apiserver; 3] {
    let a = plane.server("cp-a", Version::newer()).flag(NO_JOBS).start().await;
    let b = plane.server("cp-b", Version::newer()).start().await;
    let c = plane.server("cp-c", Version::newer()).start().await;
    [a, b, c]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_killed_peer_is_replaced_at_once_and_the_last_one_is_503() {
    let plane = ControlPlane::start().await;
    let [a, mut b, mut c] = three(&plane).await;
    let fleet = Fleet::start(&plane, &[&a, &b, &c], &[]).await;
    let client = fleet.proxies[0].client(ADMIN).await;
    for _ in 0..20 {
        assert_eq!(client.get(ONE_JOB).await.unwrap().status, StatusCode::OK);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let lanes: Vec<_> = (0..LANES)
        .map(|lane| {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let mut writes = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("lane-{lane}-{}", writes.len());
                    writes.push(create(&client, &name).await);
                }
                writes
            })
        })
        .collect();
    sleep(Duration::from_millis(500)).await;
    b.kill().await;
    stop.store(true, Ordering::Relaxed);
    let mut slowest = Duration::ZERO;
    for nth in 0..40 {
        let asked = Instant::now();
        assert_eq!(client.get(ONE_JOB).await.unwrap().status, StatusCode::OK, "request {nth} after the kill");
        slowest = slowest.max(asked.elapsed());
    }
    println!("one of two peers killed: the slowest of 40 requests took {slowest:?}");
    assert!(slowest <= Duration::from_millis(100), "{slowest:?}");
    let mut writes = Vec::new();
    for lane in lanes {
        writes.extend(lane.await.unwrap());
    }
    let [done, refused, cut] = judge(&writes, &[&a, &b, &c]);
    println!("{} writes around the kill: {done} done, {refused} 503, {cut} cut", writes.len());
    assert!(done > 0 && refused + cut <= LANES, "only what the killed server had may fail: {refused} 503, {cut} cut");

    let mut writes = Vec::new();
    for nth in 0..40 {
        writes.push(create(&client, &format!("then-{nth}")).await);
    }
    assert_eq!(judge(&writes, &[&a, &b, &c]), [40, 0, 0], "the other one does all of them");
    writes.sort_by_key(|write| write.took);
    let (median, slowest) = (writes[20].took, writes[39].took);
    println!("then: the median of 40 writes took {median:?}, the slowest {slowest:?}");
    // The server itself may take longer over one; who waits for the dead one takes seconds.
    assert!(median <= Duration::from_millis(100) && slowest <= Duration::from_secs(1), "{median:?}, {slowest:?}");

    c.kill().await;
    let count = only(&client, JOBS, a_while(), &[StatusCode::SERVICE_UNAVAILABLE]).await;
    println!("both killed: {count} answers, all 503");
    let mut writes = Vec::new();
    for nth in 0..20 {
        writes.push(create(&client, &format!("alone-{nth}")).await);
    }
    assert_eq!(judge(&writes, &[&a, &b, &c]), [0, 20, 0], "nobody is there to do it");
    assert!(writes.iter().all(|write| write.retry_after), "nothing was sent: they may be sent again");
    assert_eq!(client.get(CONFIGMAPS).await.unwrap().status, StatusCode::OK, "what local serves goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_frozen_peer_is_replaced_by_the_other_one_in_time() {
    let plane = ControlPlane::start().await;
    let [a, b, c] = three(&plane).await;
    let fleet = Fleet::start(&plane, &[&a, &b, &c], &[]).await;
    let client = fleet.proxies[0].client(ADMIN).await;
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
    println!("one of two peers frozen: the slowest of 16 requests took {slowest:?}");
    assert!(slowest <= Duration::from_millis(6_500), "{slowest:?}");
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
    let plane = ControlPlane::start().await;
    let a = plane.server("cp-a", Version::newer()).flag(NO_JOBS).start().await;
    let b = plane.server("cp-b", Version::newer()).start().await;
    let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let client = fleet.proxies[0].client(ADMIN).await;
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
    println!("frozen: {} after {:?}", answer.status, asked.elapsed());
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(asked.elapsed() <= Duration::from_millis(6_500), "{:?}", asked.elapsed());
    let refused = create(&client, "refused").await;
    assert_eq!((refused.status, refused.retry_after), (Some(StatusCode::SERVICE_UNAVAILABLE), true), "nobody has it");
    only(&client, JOBS, Duration::from_secs(3), &[StatusCode::SERVICE_UNAVAILABLE]).await;
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
    let plane = ControlPlane::start().await;
    let a = plane.server("cp-a", Version::newer()).flag(NO_JOBS).start().await;
    let mut b = plane.server("cp-b", Version::newer()).start().await;
    let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let client = fleet.proxies[0].client(ADMIN).await;
    for way in ["SIGKILL", "SIGTERM"] {
        let asking = tokio::spawn({
            let client = client.clone();
            async move { only(&client, JOBS, Duration::from_secs(12), &[StatusCode::OK, StatusCode::SERVICE_UNAVAILABLE]).await }
        });
        if way == "SIGKILL" {
            b.kill().await;
        } else {
            b.stop().await;
        }
        b.relaunch(|plan| plan).await;
        b.wait_ready().await;
        let ready = Instant::now();
        while client.get(JOBS).await.unwrap().status != StatusCode::OK {
            assert!(ready.elapsed() < Duration::from_secs(5), "{way}: ready, and nobody asks it");
            sleep(Duration::from_millis(20)).await;
        }
        println!("restarted with {way}: asked again {:?} after it was seen to be ready", ready.elapsed());
        println!("{} answers meanwhile, none of them 404", asking.await.unwrap());
    }
    // It deletes its Lease when it begins to stop, and ends seconds later.
    let deleted = Instant::now();
    b.stop().await;
    let time = a_while().min(GONE.saturating_sub(deleted.elapsed()));
    let count = only(&client, JOBS, time, &[StatusCode::SERVICE_UNAVAILABLE]).await;
    assert!(count > 0, "it took {:?} to stop", deleted.elapsed());
    println!("stopped, its Lease deleted: {count} answers, all 503");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_peer_stands_in_for_a_local_server_that_restarts() {
    let plane = ControlPlane::start().await;
    let mut a = plane.server("cp-a", Version::newer()).start().await;
    let b = plane.server("cp-b", Version::newer()).flag(NO_JOBS).start().await;
    let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let client = fleet.proxies[0].client(ADMIN).await;
    assert_eq!(client.get(JOBS).await.unwrap().status, StatusCode::OK);
    let stop = Arc::new(AtomicBool::new(false));
    let asking: Vec<_> = (0..LANES)
        .map(|lane| {
            let (client, stop) = (client.clone(), Arc::clone(&stop));
            tokio::spawn(async move {
                let (mut served, mut refused, mut writes) = (0, 0, Vec::new());
                while !stop.load(Ordering::Relaxed) {
                    let shared = client.get(CONFIGMAPS).await.unwrap();
                    assert_eq!(shared.status, StatusCode::OK, "a peer serves it");
                    let own = client.get(ONE_JOB).await.unwrap();
                    match own.status {
                        StatusCode::OK => served += 1,
                        StatusCode::SERVICE_UNAVAILABLE => {
                            assert!(own.header("retry-after").is_some(), "{:?}", own.json());
                            refused += 1;
                        }
                        other => panic!("{other} for what only local serves"),
                    }
                    // One lane is enough: what is written is not cheap.
                    if lane == 0 {
                        let name = format!("one-{}", writes.len());
                        writes.push(create(&client, &name).await);
                    }
                    sleep(Duration::from_millis(10)).await;
                }
                (served, refused, writes)
            })
        })
        .collect();
    sleep(Duration::from_secs(1)).await;
    a.kill().await;
    sleep(Duration::from_secs(1)).await;
    a.relaunch(|plan| plan).await;
    a.wait_ready().await;
    let ready = Instant::now();
    while client.get(JOBS).await.unwrap().status != StatusCode::OK {
        assert!(ready.elapsed() < Duration::from_secs(1), "ready, and not asked");
        sleep(Duration::from_millis(10)).await;
    }
    println!("back to local {:?} after it was seen to be ready", ready.elapsed());
    sleep(Duration::from_secs(1)).await;
    stop.store(true, Ordering::Relaxed);
    let mut writes = Vec::new();
    for task in asking {
        let (served, refused, written) = task.await.unwrap();
        assert!(served > 0 && refused > 0, "{served} served, {refused} refused");
        writes.extend(written);
    }
    let [done, refused, cut] = judge(&writes, &[&a, &b]);
    // One may have been at the server that was killed.
    let unsure = writes.iter().filter(|write| write.status != Some(StatusCode::CREATED) && !write.retry_after).count();
    println!("{} writes: {done} done, {refused} 503, {cut} cut, and {unsure} nobody knows of", writes.len());
    assert!(done > 0 && refused > 0 && unsure <= 1, "{done} done, {refused} refused, {cut} cut, {unsure} nobody knows of");
}
