//! Byte-identical through the proxy, both directions, with HTTP/2 implementations of other people on either side.
//!
//! Clients: curl, nghttp, and the `h2` crate. Servers: nghttpd, and the `h2` crate (the twin).

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::process::{Command, Output};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use support::tools::{Directory, Nghttpd, curl, nghttp, run};
use support::{IoDriver, World, apis, headers, noise, pattern};
use tokio::task::JoinSet;

on_both_drivers!(
    curl_and_the_twin_both_ways,
    curl_and_nghttpd_both_ways,
    nghttp_and_the_twin_both_ways,
    nghttp_and_nghttpd_both_ways,
    h2_and_the_twin_both_ways,
    h2_and_nghttpd_both_ways,
    trailers_pass_both_ways,
    a_thousand_streams_at_once,
);

/// Borders: a frame of ours, a frame of theirs, the default window.
const SIZES: [usize; 8] = [0, 1, 9, 16_375, 16_384, 65_535, 65_536, 1 << 20];
const LARGE: usize = 32 << 20;

/// The body of the peer's answer goes over another connection than local's.
const LOCAL: &str = "/api/v1/namespaces/default/pods/x";
const PEER: &str = "/apis/batch/v1/namespaces/default/jobs/x";

fn twins(driver: IoDriver) -> World {
    World::on(driver).local("cp-a", apis::everywhere()).peer("cp-b", apis::batch()).start()
}

/// A world whose local server is nghttpd, with a file of each of `sizes` and the same bytes to send.
fn behind_nghttpd(driver: IoDriver, sizes: &[usize]) -> (World, Nghttpd, Directory) {
    let plan = World::on(driver);
    let nghttpd = Nghttpd::start(plan.pki());
    let directory = Directory::new();
    for &size in sizes {
        nghttpd.serve(&format!("{size}.bin"), &noise(size, size as u64));
        directory.write(&format!("{size}.bin"), &noise(size, size as u64));
    }
    (plan.local_at("cp-a", apis::everywhere(), nghttpd.address()).start(), nghttpd, directory)
}

fn assert_same(received: &[u8], sent: &[u8], what: &str) {
    let first = received.iter().zip(sent).position(|(a, b)| a != b);
    assert!(received == sent, "{what}: {} bytes came of {}, first difference at {first:?}", received.len(), sent.len());
}

/// `curl` that trusts the world and says what version it spoke.
fn curl_to(world: &World, directory: &Directory) -> Command {
    let ca = world.pki().write_ca(directory.path(), "ca").unwrap();
    let mut command = curl();
    // The address is 127.0.0.1 alone, and `localhost` may be ::1 first.
    command.arg("--ipv4").arg("--cacert").arg(ca).args(["--write-out", "%{stderr}%{http_code} %{http_version}"]);
    command
}

fn assert_good(output: &Output, what: &str) {
    assert_eq!(String::from_utf8_lossy(&output.stderr), "200 2", "{what}");
}

async fn curl_and_the_twin_both_ways(driver: IoDriver) {
    let world = twins(driver);
    let directory = Directory::new();
    for size in SIZES.into_iter().chain([LARGE]) {
        for path in [LOCAL, PEER] {
            let mut down = curl_to(&world, &directory);
            down.args(["--header", &format!("x-twin-debug: bytes/{size}"), &world.url(path)]);
            let output = run(down).await;
            assert_good(&output, path);
            assert_same(&output.stdout, &pattern(size), &format!("{size} bytes down, {path}"));
        }
        let body = noise(size, 1);
        let file = directory.write("up.bin", &body);
        let mut up = curl_to(&world, &directory);
        up.args(["--header", "x-twin-debug: echo", "--data-binary", &format!("@{}", file.display()), &world.url(PEER)]);
        let output = run(up).await;
        assert_good(&output, "upload");
        assert_same(&output.stdout, &body, &format!("{size} bytes up and down"));
    }
}

async fn curl_and_nghttpd_both_ways(driver: IoDriver) {
    let sizes = [0, 1, 16_384, 65_536, 1 << 20, LARGE];
    let (world, _nghttpd, directory) = behind_nghttpd(driver, &sizes);
    for size in sizes {
        let mut down = curl_to(&world, &directory);
        down.arg(world.url(&format!("/{size}.bin")));
        let output = run(down).await;
        assert_good(&output, "download");
        assert_same(&output.stdout, &noise(size, size as u64), &format!("{size} bytes down"));
        let mut up = curl_to(&world, &directory);
        up.args(["--data-binary", &format!("@{}/{size}.bin", directory.path().display()), &world.url("/echo")]);
        let output = run(up).await;
        assert_good(&output, "upload");
        assert_same(&output.stdout, &noise(size, size as u64), &format!("{size} bytes up and down"));
    }
}

async fn nghttp_and_the_twin_both_ways(driver: IoDriver) {
    let world = twins(driver);
    let directory = Directory::new();
    for (size, windows) in [(0, "16"), (1, "16"), (16_384, "14"), (65_536, "10"), (1 << 20, "15"), (LARGE, "24")] {
        for path in [LOCAL, PEER] {
            let mut down = nghttp();
            down.args(["-w", windows, "-W", windows, "-H", &format!("x-twin-debug: bytes/{size}"), &world.url(path)]);
            assert_same(&run(down).await.stdout, &pattern(size), &format!("{size} bytes down, {path}, windows of {windows} bits"));
        }
        if size == 0 {
            // nghttp takes `-d` of an empty file for no body at all.
            continue;
        }
        let body = noise(size, 2);
        let file = directory.write("up.bin", &body);
        let mut up = nghttp();
        up.args(["-w", windows, "-W", windows, "-b", "255", "-H", "x-twin-debug: echo", "-d"]).arg(file).arg(world.url(PEER));
        assert_same(&run(up).await.stdout, &body, &format!("{size} bytes up and down, padded"));
    }
}

async fn nghttp_and_nghttpd_both_ways(driver: IoDriver) {
    let sizes = [0, 1, 65_535, 1 << 20, LARGE];
    let (world, _nghttpd, directory) = behind_nghttpd(driver, &sizes);
    for size in sizes {
        let mut down = nghttp();
        down.arg(world.url(&format!("/{size}.bin")));
        assert_same(&run(down).await.stdout, &noise(size, size as u64), &format!("{size} bytes down"));
        if size == 0 {
            // nghttp takes `-d` of an empty file for no body at all.
            continue;
        }
        let mut up = nghttp();
        up.arg("--continuation").arg("-d").arg(directory.path().join(format!("{size}.bin"))).arg(world.url("/echo"));
        assert_same(&run(up).await.stdout, &noise(size, size as u64), &format!("{size} bytes up and down"));
    }
}

async fn h2_and_the_twin_both_ways(driver: IoDriver) {
    let world = twins(driver);
    let client = world.client().await;
    for size in SIZES.into_iter().chain([LARGE]) {
        for path in [LOCAL, PEER] {
            let asked = headers([("x-twin-debug", &format!("bytes/{size}"))]);
            let down = client.request(Method::GET, path, asked, Bytes::new(), None).await.unwrap();
            assert_same(&down.body, &pattern(size), &format!("{size} bytes down, {path}"));
            let body = noise(size, 3);
            let up = client.request(Method::POST, path, headers([("x-twin-debug", "echo")]), body.clone(), None).await.unwrap();
            assert_same(&up.body, &body, &format!("{size} bytes up and down, {path}"));
        }
    }
}

async fn h2_and_nghttpd_both_ways(driver: IoDriver) {
    let sizes = [0, 9, 65_536, 5 << 20, LARGE];
    let (world, _nghttpd, _directory) = behind_nghttpd(driver, &sizes);
    let client = world.client().await;
    for size in sizes {
        let down = client.get(&format!("/{size}.bin")).await.unwrap();
        assert_eq!(down.status, StatusCode::OK);
        assert_same(&down.body, &noise(size, size as u64), &format!("{size} bytes down"));
        let body = noise(size, 4);
        let up = client.request(Method::POST, "/echo", HeaderMap::new(), body.clone(), None).await.unwrap();
        assert_same(&up.body, &body, &format!("{size} bytes up and down"));
    }
}

async fn trailers_pass_both_ways(driver: IoDriver) {
    let world = twins(driver);
    let client = world.client().await;
    for path in [LOCAL, PEER] {
        let trailers = headers([("x-sum", "42"), ("x-sum", "43"), ("x-empty", "")]);
        for body in [Bytes::new(), noise(300_000, 5)] {
            let sent = headers([("x-twin-debug", "echo")]);
            let echo = client.request(Method::POST, path, sent, body.clone(), Some(trailers.clone())).await.unwrap();
            assert_same(&echo.body, &body, path);
            assert_eq!(echo.trailers.as_ref(), Some(&trailers), "{path}");
        }
        let down = client.request(Method::GET, path, headers([("x-twin-debug", "trailers")]), Bytes::new(), None).await.unwrap();
        assert_eq!(down.trailers, Some(headers([("x-twin-trailer", "yes"), ("x-twin-count", "2")])), "{path}");
    }
    let directory = Directory::new();
    let file = directory.write("up.bin", &noise(100_000, 6));
    let mut command = nghttp();
    command.args(["-n", "-v", "-H", "x-twin-debug: echo", "--trailer", "x-sum: 42", "-d"]).arg(file).arg(world.url(PEER));
    let output = run(command).await;
    let log = String::from_utf8_lossy(&output.stdout);
    assert!(log.contains("x-sum: 42") && log.lines().any(|line| line.contains("recv") && line.contains("x-sum: 42")), "{log}");
}

/// Ten connections with a hundred streams each, all of them open at once, each with a body of its own.
async fn a_thousand_streams_at_once(driver: IoDriver) {
    let world = World::on(driver).shards(2).local("cp-a", apis::everywhere()).peer("cp-b", apis::batch()).start();
    let mut running = JoinSet::new();
    let began = Instant::now();
    for connection in 0..10u64 {
        let client = world.client().await;
        for stream in 0..100u64 {
            let client = client.clone();
            running.spawn(async move {
                let path = if stream % 2 == 0 { LOCAL } else { PEER };
                let slow = client.request(Method::GET, path, headers([("x-twin-debug", "slow/1000")]), Bytes::new(), None).await.unwrap();
                assert_eq!(slow.status, StatusCode::OK);
                let body = noise(2_000, connection * 1_000 + stream);
                let echo = client.request(Method::POST, path, headers([("x-twin-debug", "echo")]), body.clone(), None).await.unwrap();
                assert_same(&echo.body, &body, path);
            });
        }
    }
    assert_eq!(running.join_all().await.len(), 1_000);
    // Each waits a second for its server: a hundred at a time would take ten.
    assert!(began.elapsed() < Duration::from_secs(9), "{:?}: not all at once", began.elapsed());
    let counts = ["cp-a", "cp-b"].map(|id| world.twin(id).counts());
    assert_eq!(counts.map(|counts| (counts.requests, counts.failures)), [(1_000, 0); 2]);
}
