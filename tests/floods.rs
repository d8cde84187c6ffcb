//! Attacks with frames, one by one with the default limits, beside a client that must not notice. The numbers are those of
//! threats.md.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use loadgen::client::Watch;
use support::attacks::{self, Attack, HANG, SHORT, WATCH};
use support::frames::{CALM, END_HEADERS, END_STREAM, Frames, HEADERS, PING, RST_STREAM, block, frame, get, nth_stream};
use support::{IoDriver, World, apis, eventually, headers, raw, resident};
use tokio::time::timeout;

on_both_drivers!(
    h1_rapid_reset,
    h2_made_you_reset,
    h4_continuation_flood,
    h5_hpack_bomb,
    h6_ping_and_settings_floods,
    h7_empty_data,
    h9_window_updates,
    h10_priorities,
    a_busy_client_with_timeouts_is_left_alone,
);

const LIMIT: Duration = Duration::from_secs(10);
/// More than any attack may take before it is cut off.
const CUT_OFF: Duration = Duration::from_secs(1);
/// What an attack may cost in memory.
const MEMORY: usize = 64 << 20;

/// A world, and somebody with a watch and requests through the same shard.
struct Neighbour {
    world: World,
    client: Client,
    watch: Watch,
    connections: u64,
    memory: usize,
    made: usize,
}

impl Neighbour {
    async fn new(driver: IoDriver) -> Self {
        let world = World::on(driver).local("cp-a", apis::everywhere()).start();
        let client = world.client().await;
        let mut watch = client.watch(WATCH).await.unwrap();
        assert!(watch.next_event().await.unwrap().is_some());
        assert_eq!(client.get(SHORT).await.unwrap().status, StatusCode::OK);
        let connections = world.twin("cp-a").counts().connections;
        Self { world, client, watch, connections, memory: resident(), made: 0 }
    }

    async fn attacker(&self) -> Frames {
        Frames::connect(&self.world).await
    }

    /// The neighbour is served, its watch is alive, nobody lost a connection, and memory is as it was.
    async fn is_well(&mut self, what: &str) {
        let grown = resident().saturating_sub(self.memory);
        assert!(grown < MEMORY, "{what}: memory grew by {grown}");
        let asked = Instant::now();
        assert_eq!(self.client.get(SHORT).await.unwrap().status, StatusCode::OK, "{what}");
        assert!(asked.elapsed() < Duration::from_secs(1), "{what}: {:?}", asked.elapsed());
        self.made += 1;
        let object = format!(r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"name":"made-{}"}}}}"#, self.made);
        let sent = headers([("content-type", "application/json")]);
        let path = "/api/v1/namespaces/default/configmaps";
        let made = self.client.request(Method::POST, path, sent, Bytes::from(object), None).await.unwrap();
        assert_eq!(made.status, StatusCode::CREATED, "{what}");
        let event = timeout(LIMIT, self.watch.next_event()).await.unwrap();
        assert!(event.unwrap_or_else(|error| panic!("{what}: {error}")).is_some(), "{what}");
        assert_eq!(self.world.twin("cp-a").counts().connections, self.connections, "{what}: connections to the server");
    }

    /// Each flood is told to calm down in time, and little of it reaches the server.
    async fn cuts_off(&mut self, attacks: &[Attack]) {
        for attack in attacks {
            let (what, before) = (attack.name, self.world.twin("cp-a").counts().requests);
            let mut attacker = self.attacker().await;
            attacker.send(&(attack.first)()).await;
            let (elapsed, sent) = attacker.flood(1_000_000, attack.piece).await;
            assert_eq!(attacker.seen().goaway, Some(CALM), "{what}: {sent} frames");
            assert!(elapsed < CUT_OFF, "{what}: {elapsed:?}, {sent} frames");
            let passed = self.world.twin("cp-a").counts().requests - before;
            assert!(passed < 300, "{what}: {passed} requests passed");
            self.is_well(what).await;
            // What one attack may cost a server in resets is there again soon.
            tokio::time::sleep(Duration::from_millis(600)).await;
        }
    }
}

async fn h1_rapid_reset(driver: IoDriver) {
    Neighbour::new(driver).await.cuts_off(attacks::H1).await;
}

async fn h2_made_you_reset(driver: IoDriver) {
    Neighbour::new(driver).await.cuts_off(attacks::H2).await;
}

async fn h4_continuation_flood(driver: IoDriver) {
    Neighbour::new(driver).await.cuts_off(attacks::H4).await;
}

async fn h5_hpack_bomb(driver: IoDriver) {
    let mut neighbour = Neighbour::new(driver).await;
    let mut attacker = neighbour.attacker().await;
    // A field of 4,000 bytes into the table (RFC 7541 §6.2.1; its length is 127 + 3,873), then references to it.
    let mut bomb = block(0x82, SHORT);
    bomb.extend([0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    bomb.extend([b'a'; 4_000]);
    bomb.extend([0xbe; 10_000]);
    for nth in 0..20 {
        attacker.send(&frame(HEADERS, END_HEADERS | END_STREAM, nth_stream(nth), &bomb)).await;
        eventually("an answer to the bomb", LIMIT, || {
            let seen = attacker.seen();
            seen.ended.contains(&nth_stream(nth)) || seen.resets.iter().any(|&(stream, _)| stream == nth_stream(nth))
        })
        .await;
    }
    let before = neighbour.world.twin("cp-a").counts().requests;
    attacker.send(&get(101, SHORT)).await;
    eventually("an answer to a request after the bombs", LIMIT, || attacker.seen().ended.contains(&101)).await;
    assert_eq!(neighbour.world.twin("cp-a").counts().requests, before + 1);
    neighbour.is_well("bombs").await;
}

async fn h6_ping_and_settings_floods(driver: IoDriver) {
    Neighbour::new(driver).await.cuts_off(attacks::H6).await;
}

async fn h7_empty_data(driver: IoDriver) {
    Neighbour::new(driver).await.cuts_off(attacks::H7).await;
}

async fn h9_window_updates(driver: IoDriver) {
    Neighbour::new(driver).await.cuts_off(attacks::H9).await;
}

async fn h10_priorities(driver: IoDriver) {
    Neighbour::new(driver).await.cuts_off(attacks::H10).await;
}

/// What controllers do: requests, lists, watches that are given up at 20 a second, pings.
async fn a_busy_client_with_timeouts_is_left_alone(driver: IoDriver) {
    let mut neighbour = Neighbour::new(driver).await;
    let mut attacker = neighbour.attacker().await;
    let started = Instant::now();
    let (mut stream, mut asked) = (1, 0);
    while started.elapsed() < Duration::from_secs(3) {
        let given_up = stream;
        attacker.send(&get(given_up, if asked % 40 == 0 { WATCH } else { HANG })).await;
        for _ in 0..10 {
            stream += 2;
            asked += 1;
            attacker.send(&get(stream, SHORT)).await;
        }
        stream += 2;
        tokio::time::sleep(Duration::from_millis(50)).await;
        attacker.send(&frame(RST_STREAM, 0, given_up, &[0, 0, 0, 8])).await;
        if asked % 200 == 0 {
            attacker.send(&frame(PING, 0, 0, b"are you?")).await;
        }
    }
    eventually("all answers", LIMIT, || attacker.seen().ended.len() >= asked).await;
    {
        let seen = attacker.seen();
        assert!(seen.goaway.is_none() && !seen.closed && seen.ping_acks > 0, "{seen:?}");
    }
    // And one that gives up many at once.
    let client = neighbour.world.raw().await;
    let mut given_up = Vec::new();
    for _ in 0..60 {
        given_up.push(client.open(Method::GET, HANG, headers([]), true).await);
    }
    drop(given_up);
    let (response, _stream) = client.open(Method::GET, SHORT, headers([]), true).await;
    let mut response = timeout(LIMIT, response).await.unwrap().unwrap();
    assert!(raw::read_all(response.body_mut()).await.unwrap() > 0);
    neighbour.connections = neighbour.world.twin("cp-a").counts().connections;
    neighbour.is_well("after all that").await;
}
