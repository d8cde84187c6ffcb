//! Real kube-apiservers that are killed, frozen, stopped and restarted behind mvproxy (bar 3 of the issue "Discovery and routing").
//!
//! `MVPROXY_LONG=1` looks for a wrong 404 for a whole minute where else a few seconds have to do.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::time::{Duration, Instant};

use http::StatusCode;
use loadgen::Client;
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, Version};
use tokio::time::sleep;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const NO_JOBS: &str = "--runtime-config=batch/v1=false";
/// The life of what is gone is a minute.
fn a_while() -> Duration {
    if std::env::var_os("MVPROXY_LONG").is_some() { Duration::from_secs(60) } else { Duration::from_secs(6) }
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

/// cp-a has no jobs; cp-b and cp-c have.
async fn three(plane: &ControlPlane) -> [Apiserver; 3] {
    let a = plane.server("cp-a", Version::newer()).flag(NO_JOBS).start().await;
    let b = plane.server("cp-b", Version::newer()).start().await;
    let c = plane.server("cp-c", Version::newer()).start().await;
    [a, b, c]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: MVPROXY_REAL=1 tests/run"]
async fn a_killed_peer_is_replaced_at_once_and_the_last_one_is_503() {
    let plane = ControlPlane::start().await;
    let [a, mut b, mut c] = three(&plane).await;
    let fleet = Fleet::start(&plane, &[&a, &b, &c], &[]).await;
    let client = fleet.proxies[0].client(ADMIN).await;
    for _ in 0..20 {
        assert_eq!(client.get(JOBS).await.unwrap().status, StatusCode::OK);
    }
    b.kill().await;
    let mut slowest = Duration::ZERO;
    for nth in 0..40 {
        let asked = Instant::now();
        assert_eq!(client.get(JOBS).await.unwrap().status, StatusCode::OK, "request {nth} after the kill");
        slowest = slowest.max(asked.elapsed());
    }
    println!("one of two peers killed: the slowest of 40 requests took {slowest:?}");
    assert!(slowest <= Duration::from_millis(100), "{slowest:?}");
    c.kill().await;
    let count = only(&client, JOBS, a_while(), &[StatusCode::SERVICE_UNAVAILABLE]).await;
    println!("both killed: {count} answers, all 503");
    assert_eq!(client.get(CONFIGMAPS).await.unwrap().status, StatusCode::OK, "what local serves goes on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: MVPROXY_REAL=1 tests/run"]
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
    sleep(Duration::from_millis(4_500)).await;
    b.thaw();
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!(answer.status, StatusCode::OK, "it was only slow: {:?}", answer.json());
    let admin = b.client(ADMIN).await;
    let job = serde_json::json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "one"}, "spec": {"suspend": true,
        "template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "none"}]}}}});
    let made = support::headers([("content-type", "application/json")]);
    let made = admin.request(http::Method::POST, JOBS, made, job.to_string().into(), None).await.unwrap();
    assert_eq!(made.status, StatusCode::CREATED);
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
    only(&client, JOBS, Duration::from_secs(3), &[StatusCode::SERVICE_UNAVAILABLE]).await;
    b.thaw();
    let thawed = Instant::now();
    while client.get(JOBS).await.unwrap().status != StatusCode::OK {
        assert!(thawed.elapsed() < Duration::from_secs(10), "it is back, and nobody asks it");
        sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: MVPROXY_REAL=1 tests/run"]
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
    b.stop().await;
    let count = only(&client, JOBS, a_while(), &[StatusCode::SERVICE_UNAVAILABLE]).await;
    println!("stopped, its Lease deleted: {count} answers, all 503");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: MVPROXY_REAL=1 tests/run"]
async fn a_peer_stands_in_for_a_local_server_that_restarts() {
    let plane = ControlPlane::start().await;
    let mut a = plane.server("cp-a", Version::newer()).start().await;
    let b = plane.server("cp-b", Version::newer()).flag(NO_JOBS).start().await;
    let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let client = fleet.proxies[0].client(ADMIN).await;
    assert_eq!(client.get(JOBS).await.unwrap().status, StatusCode::OK);
    let stop = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let asking: Vec<_> = (0..4)
        .map(|_| {
            let (client, stop) = (client.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut served, mut refused) = (0, 0);
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let shared = client.get(CONFIGMAPS).await.unwrap();
                    assert_eq!(shared.status, StatusCode::OK, "a peer serves it");
                    let own = client.get(JOBS).await.unwrap();
                    match own.status {
                        StatusCode::OK => served += 1,
                        StatusCode::SERVICE_UNAVAILABLE => {
                            assert!(own.header("retry-after").is_some(), "{:?}", own.json());
                            refused += 1;
                        }
                        other => panic!("{other} for what only local serves"),
                    }
                    sleep(Duration::from_millis(10)).await;
                }
                (served, refused)
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
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for task in asking {
        let (served, refused) = task.await.unwrap();
        assert!(served > 0 && refused > 0, "{served} served, {refused} refused");
    }
}
