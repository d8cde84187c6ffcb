//! H12: a server that breaks the rules, or never keeps them. The client gets an answer in time, and requests to other servers do not notice.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use support::frames::{DATA, END_HEADERS, END_STREAM, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame};
use support::hostile::{self, Speech};
use support::{IoDriver, World, apis, headers};

on_both_drivers!(h12_a_server_that_breaks_the_rules, h12_a_server_that_never_lets_us_send, h12_a_bomb_in_trailers);

const LOCAL: &str = "/api/v1/namespaces/default/pods";
const PEERS: &str = "/apis/batch/v1/namespaces/default/jobs";
const PUSH_PROMISE: u8 = 5;

fn settings(id: u8, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&[0, id][..], &value.to_be_bytes()].concat())
}

fn silence(_: u32) -> Vec<u8> {
    Vec::new()
}

async fn world(driver: IoDriver, first: Vec<u8>, then: Speech) -> World {
    let plan = World::on(driver);
    let address = hostile::server(plan.pki(), first, then).await;
    let plan = plan.local_at("cp-a", apis::everywhere(), address).peer("cp-b", apis::batch());
    plan.limits(|limits| limits.response_head = Duration::from_secs(3)).start()
}

async fn h12_a_server_that_breaks_the_rules(driver: IoDriver) {
    let plain = || frame(SETTINGS, 0, 0, &[]);
    let cases: [(&str, Vec<u8>, Speech); 14] = [
        ("frames of 0 bytes at most", settings(5, 0), silence),
        ("frames of 2^24 bytes at most", settings(5, 1 << 24), silence),
        ("a window beyond 2^31 - 1", settings(4, 1 << 31), silence),
        ("push turned on", settings(2, 1), silence),
        ("no SETTINGS first", frame(PING, 0, 0, b"too soon"), silence),
        ("10,000 PINGs", plain(), hostile::pings),
        ("10,000 SETTINGS", plain(), hostile::settings),
        ("a head without end", plain(), hostile::head_without_end),
        ("a push", plain(), |stream| frame(PUSH_PROMISE, END_HEADERS, stream, &[&2u32.to_be_bytes()[..], &[0x82, 0x84, 0x87]].concat())),
        ("DATA before the head", plain(), |stream| frame(DATA, END_STREAM, stream, b"too soon")),
        ("DATA of a stream nobody opened", plain(), |stream| frame(DATA, END_STREAM, stream + 100, b"whose?")),
        ("a reset of a stream nobody opened", plain(), |stream| frame(RST_STREAM, 0, stream + 100, &[0; 4])),
        ("a connection window beyond 2^31 - 1", plain(), |_| frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("interim heads without end", plain(), hostile::interim_heads),
    ];
    for (what, first, then) in cases {
        let world = world(driver, first, then).await;
        let client = world.client().await;
        let asked = Instant::now();
        let answer = client.get(LOCAL).await;
        assert!(asked.elapsed() < Duration::from_secs(5), "{what}: {:?}", asked.elapsed());
        // Interim heads may have been passed on: then only a reset is left.
        match &answer {
            Ok(answer) => assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{what}"),
            Err(error) => assert!(what.starts_with("interim"), "{what}: {error}"),
        }
        assert_eq!(client.get(PEERS).await.unwrap().status, StatusCode::OK, "{what}: another server");
    }
}

/// Its window stays shut: the upload waits, and the client does not.
async fn h12_a_server_that_never_lets_us_send(driver: IoDriver) {
    let world = world(driver, settings(4, 0), silence).await;
    let client = world.client().await;
    let asked = Instant::now();
    let sent = headers([("content-type", "application/json")]);
    let answer = client.request(Method::POST, LOCAL, sent, Bytes::from_static(b"{}"), None).await.unwrap();
    assert_eq!(answer.status, StatusCode::GATEWAY_TIMEOUT);
    // The clock of a wake-up is that of its beginning, so a busy machine begins to count a little early.
    let waited = asked.elapsed();
    assert!(waited >= Duration::from_millis(2_900) && waited < Duration::from_secs(8), "{waited:?}");
    assert_eq!(client.get(PEERS).await.unwrap().status, StatusCode::OK);
}

/// 10,000 references to a field of 4 KB behind a body: no clean end, no memory.
async fn h12_a_bomb_in_trailers(driver: IoDriver) {
    let world = world(driver, frame(SETTINGS, 0, 0, &[]), hostile::bomb_in_trailers).await;
    let client = world.client().await;
    let before = support::resident();
    for _ in 0..20 {
        assert!(client.get(LOCAL).await.is_err(), "it must not look complete");
    }
    let grown = support::resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown}");
    assert_eq!(client.get(PEERS).await.unwrap().status, StatusCode::OK);
}
