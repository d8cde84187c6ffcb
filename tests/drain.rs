//! The end of a proxy: what runs finishes, what would run for ever is reset, nothing new begins.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::time::{Duration, Instant};

use h2::Reason;
use http::{HeaderMap, Method, StatusCode};
use loadgen::Client;
use support::{IoDriver, NAME, World, apis, eventually, noise, raw};
use tokio::time::timeout;

on_both_drivers!(
    short_requests_finish_and_watches_are_cancelled,
    an_upload_in_flight_finishes,
    an_engine_with_nothing_to_do_ends_at_once,
    what_does_not_finish_is_cut_at_the_limit,
);

const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true";
const LIMIT: Duration = Duration::from_secs(10);

/// A whole drain of requests that take a second at most.
const DRAIN: Duration = Duration::from_secs(3);

async fn short_requests_finish_and_watches_are_cancelled(driver: IoDriver) {
    let mut world = World::on(driver).shards(2).local("cp-a", apis::everywhere()).start();
    let (address, ca) = (world.address(), world.pki().ca_pem().to_owned());
    let mut watches = Vec::new();
    for _ in 0..4 {
        let client = world.client().await;
        let mut watch = client.watch(WATCH).await.unwrap();
        assert!(watch.next_event().await.unwrap().is_some());
        watches.push((client, watch));
    }
    let client = world.client().await;
    let idle = world.client().await;
    let slow = tokio::spawn(async move { client.get("/debug/twin/slow/1000").await });
    eventually("the request arrives", LIMIT, || world.twin("cp-a").counts().requests == 5).await;

    let started = Instant::now();
    world.engine().drain();
    eventually("new connections are refused", Duration::from_secs(1), || std::net::TcpStream::connect(address).is_err()).await;
    assert!(Client::connect(address, &ca, NAME, None).await.is_err());
    for (_, mut watch) in watches {
        let error = timeout(LIMIT, watch.next_event()).await.unwrap().unwrap_err();
        assert!(error.is_reset(), "{error}");
        assert_eq!(error.reason(), Some(Reason::CANCEL));
    }
    let slow = slow.await.unwrap().unwrap();
    assert_eq!((slow.status, &slow.body[..]), (StatusCode::OK, &b"ok"[..]));
    timeout(LIMIT, world.drain()).await.unwrap().unwrap();
    assert!(started.elapsed() < DRAIN, "{:?}", started.elapsed());
    eventually("the idle connection is closed", LIMIT, || !idle.alive()).await;
}

async fn an_upload_in_flight_finishes(driver: IoDriver) {
    let mut world = World::on(driver).local("cp-a", apis::everywhere()).start();
    let client = world.raw().await;
    let (response, mut stream) = client.open(Method::POST, "/debug/twin/echo", HeaderMap::new(), false).await;
    let body = noise(1 << 20, 4);
    let reading = tokio::spawn(async move {
        let mut response = response.await.unwrap();
        raw::read_all(response.body_mut()).await
    });
    raw::send_some(&mut stream, body.slice(..body.len() / 2)).await.unwrap();
    let draining = async { timeout(LIMIT, world.drain()).await.unwrap() };
    let uploading = async {
        // Past the first GOAWAY and its grace.
        tokio::time::sleep(Duration::from_millis(800)).await;
        raw::send_some(&mut stream, body.slice(body.len() / 2..)).await.unwrap();
        stream.send_data(bytes::Bytes::new(), true).unwrap();
        assert_eq!(reading.await.unwrap().unwrap(), body.len());
    };
    let started = Instant::now();
    let (drained, ()) = tokio::join!(draining, uploading);
    drained.unwrap();
    assert!(started.elapsed() < DRAIN, "{:?}", started.elapsed());
}

async fn an_engine_with_nothing_to_do_ends_at_once(driver: IoDriver) {
    let mut world = World::on(driver).shards(2).local("cp-a", apis::everywhere()).start();
    let started = Instant::now();
    timeout(LIMIT, world.drain()).await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
}

async fn what_does_not_finish_is_cut_at_the_limit(driver: IoDriver) {
    let mut world = World::on(driver).local("cp-a", apis::everywhere()).limits(|limits| limits.drain = Duration::from_secs(1)).start();
    let client = world.client().await;
    let hanging = tokio::spawn(async move { client.get("/debug/twin/hang").await });
    eventually("the request arrives", LIMIT, || world.twin("cp-a").counts().requests == 1).await;
    let started = Instant::now();
    timeout(LIMIT, world.drain()).await.unwrap().unwrap();
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
    assert!(timeout(LIMIT, hanging).await.unwrap().unwrap().is_err());
}
