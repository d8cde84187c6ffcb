//! Flow control and fairness: one slow reader, one busy ring, and everybody else.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use h2::RecvStream;
use http::{HeaderMap, Method, StatusCode};
use support::{IoDriver, World, apis, pattern, raw, resident};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

on_both_drivers!(
    slow_readers_hold_up_nobody_and_cost_only_their_windows,
    a_server_that_does_not_read_holds_up_nobody,
    a_busy_ring_starves_no_tick,
);

const LIMIT: Duration = Duration::from_secs(20);
const BODY: usize = 5 << 20;

/// Opens a large response and reads nothing of it.
async fn not_reading(client: &raw::Raw, path: &str) -> RecvStream {
    let (response, _) = client.open(Method::GET, path, HeaderMap::new(), true).await;
    timeout(LIMIT, response).await.unwrap().unwrap().into_body()
}

async fn slow_readers_hold_up_nobody_and_cost_only_their_windows(driver: IoDriver) {
    const SLOW: usize = 40;
    let world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let client = world.client().await;
    let fast = format!("/debug/twin/bytes/{BODY}");
    let expected = pattern(BODY);
    assert!(client.get(&fast).await.unwrap().body == expected);
    let before = resident();

    // Half of them share the connection with a reader that does read.
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(16 << 20);
    let shared = raw::Raw::connect(world.address(), world.pki().ca_pem(), &builder).await;
    let other = world.raw().await;
    let mut held = Vec::new();
    for nth in 0..SLOW {
        let client = if nth % 2 == 0 { &shared } else { &other };
        held.push(not_reading(client, "/debug/twin/bytes/100000000").await);
    }
    let started = Instant::now();
    for _ in 0..4 {
        assert!(timeout(LIMIT, client.get(&fast)).await.unwrap().unwrap().body == expected);
        let mut neighbour = not_reading(&shared, &fast).await;
        assert_eq!(timeout(LIMIT, raw::read_all(&mut neighbour)).await.unwrap().unwrap(), BODY);
    }
    assert!(started.elapsed() < Duration::from_secs(10), "{:?}", started.elapsed());
    assert_eq!(world.twin("cp-a").counts().connections, 1, "all of it went over one upstream connection");
    // 4 GB were asked for. A window of 256 KiB each is 10 MiB; the twin and the client of this process have theirs too.
    let grown = resident().saturating_sub(before);
    assert!(grown < 200 << 20, "{} MiB more than before", grown >> 20);
    drop(held);

    // A slow reader that wakes up gets what it asked for.
    let mut late = not_reading(&other, &fast).await;
    sleep(Duration::from_millis(300)).await;
    assert_eq!(timeout(LIMIT, raw::read_all(&mut late)).await.unwrap().unwrap(), BODY);
}

async fn a_server_that_does_not_read_holds_up_nobody(driver: IoDriver) {
    let world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let client = world.client().await;
    let mut stuck = JoinSet::new();
    for _ in 0..10 {
        let client = client.clone();
        stuck.spawn(async move { client.request(Method::POST, "/debug/twin/hang", HeaderMap::new(), pattern(BODY), None).await });
    }
    sleep(Duration::from_millis(200)).await;
    for _ in 0..4 {
        let echo = client.request(Method::POST, "/debug/twin/echo", HeaderMap::new(), pattern(BODY), None);
        assert!(timeout(LIMIT, echo).await.unwrap().unwrap().body == pattern(BODY));
    }
    assert_eq!(world.twin("cp-a").counts().connections, 1, "all of it went over one upstream connection");
    assert!(stuck.try_join_next().is_none());
}

/// 64 connections that are never idle: with DEFER_TASKRUN a ring that always has a task ready may forget to look at
/// completions and ticks.
async fn a_busy_ring_starves_no_tick(driver: IoDriver) {
    let world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let stop = Arc::new(AtomicBool::new(false));
    let done = Arc::new(AtomicU64::new(0));
    let mut pumps = JoinSet::new();
    for _ in 0..64 {
        let client = world.client().await;
        let (stop, done) = (stop.clone(), done.clone());
        pumps.spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                assert_eq!(client.get("/debug/twin/bytes/3000").await.unwrap().status, StatusCode::OK);
                done.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    let client = world.client().await;
    let started = Instant::now();
    let (mut published, mut seen, mut gap) = (world.engine().counters().requests, started, Duration::ZERO);
    while started.elapsed() < Duration::from_secs(3) {
        let asked = Instant::now();
        assert_eq!(client.get("/debug/twin/slow/100").await.unwrap().status, StatusCode::OK);
        assert!(asked.elapsed() < Duration::from_secs(1), "{:?}", asked.elapsed());
        // Counters are published by the tick, and by nothing else.
        let now = world.engine().counters().requests;
        if now != published {
            (published, seen) = (now, Instant::now());
        }
        gap = gap.max(seen.elapsed());
    }
    let waited = started.elapsed();
    // A tick that finds nothing running sleeps a second; anything longer is starvation.
    assert!(gap < Duration::from_secs(2), "no tick for {gap:?}");
    // A new connection gets its handshake, too.
    assert_eq!(timeout(Duration::from_secs(2), world.client()).await.unwrap().get("/readyz").await.unwrap().status, StatusCode::OK);
    stop.store(true, Ordering::Relaxed);
    timeout(LIMIT, pumps.join_all()).await.unwrap();
    assert!(done.load(Ordering::Relaxed) > 64 * 4, "{done:?} requests in {waited:?}");
}
