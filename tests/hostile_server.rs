//! H12: a server that breaks the rules, or never keeps them. The client gets an answer in time, and requests to other servers do not notice.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use support::frames::{
    CONTINUATION, DATA, END_HEADERS, END_STREAM, GOAWAY, HEADERS, PING, RST_STREAM, SETTINGS, WINDOW_UPDATE, frame, read_frame,
};
use support::script::{PREFACE, acceptor};
use support::{IoDriver, World, apis, headers};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

on_both_drivers!(h12_a_server_that_breaks_the_rules, h12_a_server_that_never_lets_us_send, h12_a_bomb_in_trailers);

const LOCAL: &str = "/api/v1/namespaces/default/pods";
const PEERS: &str = "/apis/batch/v1/namespaces/default/jobs";
const PUSH_PROMISE: u8 = 5;
/// `:status: 200` (RFC 7541 appendix A).
const OK: &[u8] = &[0x88];

/// What a server does once it has a request on a stream.
type Speech = fn(u32) -> Vec<u8>;

/// A server that says `first` at once, and `then` to each request.
async fn server(pki: &loadgen::Pki, first: Vec<u8>, then: Speech) -> SocketAddr {
    let (acceptor, listener) = (acceptor(&pki.serving().unwrap()), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let (acceptor, first) = (acceptor.clone(), first.clone());
            tokio::spawn(async move {
                let mut tls = acceptor.accept(tcp).await?;
                let mut preface = [0; PREFACE];
                tls.read_exact(&mut preface).await?;
                tls.write_all(&first).await?;
                tls.flush().await?;
                loop {
                    let (kind, _, stream, _) = read_frame(&mut tls).await?;
                    if kind == HEADERS {
                        tls.write_all(&then(stream)).await?;
                        tls.flush().await?;
                    }
                    if kind == GOAWAY {
                        return std::io::Result::Ok(());
                    }
                }
            });
        }
    });
    address
}

fn settings(id: u8, value: u32) -> Vec<u8> {
    frame(SETTINGS, 0, 0, &[&[0, id][..], &value.to_be_bytes()].concat())
}

fn silence(_: u32) -> Vec<u8> {
    Vec::new()
}

fn head(stream: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS, stream, OK)
}

async fn world(driver: IoDriver, first: Vec<u8>, then: Speech) -> World {
    let plan = World::on(driver);
    let address = server(plan.pki(), first, then).await;
    let plan = plan.local_at("cp-a", apis::base(), address).peer("cp-b", apis::batch());
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
        ("10,000 PINGs", plain(), |_| frame(PING, 0, 0, b"flooding").repeat(10_000)),
        ("10,000 SETTINGS", plain(), |_| frame(SETTINGS, 0, 0, &[]).repeat(10_000)),
        ("a head without end", plain(), |stream| {
            [frame(HEADERS, 0, stream, OK), frame(CONTINUATION, 0, stream, &[0x00, 1, b'a', 1, b'a']).repeat(100_000)].concat()
        }),
        ("a push", plain(), |stream| frame(PUSH_PROMISE, END_HEADERS, stream, &[&2u32.to_be_bytes()[..], &[0x82, 0x84, 0x87]].concat())),
        ("DATA before the head", plain(), |stream| frame(DATA, END_STREAM, stream, b"too soon")),
        ("DATA of a stream nobody opened", plain(), |stream| frame(DATA, END_STREAM, stream + 100, b"whose?")),
        ("a reset of a stream nobody opened", plain(), |stream| frame(RST_STREAM, 0, stream + 100, &[0; 4])),
        ("a connection window beyond 2^31 - 1", plain(), |_| frame(WINDOW_UPDATE, 0, 0, &[0x7f, 0xff, 0xff, 0xff])),
        ("interim heads without end", plain(), |stream| {
            // `:status: 103`, a literal with an indexed name.
            frame(HEADERS, END_HEADERS, stream, &[0x08, 3, b'1', b'0', b'3']).repeat(100_000)
        }),
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
    assert!(asked.elapsed() >= Duration::from_secs(3) && asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    assert_eq!(client.get(PEERS).await.unwrap().status, StatusCode::OK);
}

/// 10,000 references to a field of 4 KB behind a body: no clean end, no memory.
async fn h12_a_bomb_in_trailers(driver: IoDriver) {
    let world = world(driver, frame(SETTINGS, 0, 0, &[]), |stream| {
        let mut bomb = vec![0x40, 1, b'a', 0x7f, 0xa1, 0x1e];
        bomb.extend([b'a'; 4_000]);
        bomb.extend([0xbe; 10_000]);
        [head(stream), frame(DATA, 0, stream, b"body"), frame(HEADERS, END_HEADERS | END_STREAM, stream, &bomb)].concat()
    });
    let world = world.await;
    let client = world.client().await;
    let before = support::resident();
    for _ in 0..20 {
        assert!(client.get(LOCAL).await.is_err(), "it must not look complete");
    }
    let grown = support::resident().saturating_sub(before);
    assert!(grown < 16 << 20, "{grown}");
    assert_eq!(client.get(PEERS).await.unwrap().status, StatusCode::OK);
}
