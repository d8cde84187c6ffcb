//! Clients that speak HTTP/1.1: curl, and one that writes what no curl would.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use support::http1::{End, Wire};
use support::script::{self, Script};
use support::tools::{Directory, program, run};
use support::{IoDriver, World, apis, eventually, noise, pattern};
use tokio::time::{sleep, timeout};

on_both_drivers!(
    curl_speaks_http_1,
    a_connection_serves_request_after_request,
    requests_sent_ahead_are_answered_in_order,
    bodies_without_a_length_are_chunked,
    a_watch_streams_its_events,
    trailers_of_an_upload_arrive,
    informational_answers_pass,
    a_cut_body_is_a_cut_connection,
    a_server_that_dies_while_it_answers_cuts_the_connection,
    an_early_answer_ends_the_connection,
    an_early_answer_ends_the_connection_of_an_upload_that_waits,
    a_client_that_leaves_while_its_upload_waits_is_noticed,
    upgrades_are_not_implemented,
    ambiguous_requests_are_refused_and_nobody_sees_them,
    broken_bodies_are_refused,
    chunks_of_one_byte_are_cut_off,
    lines_that_only_the_proxy_may_write_are_dropped,
    a_drain_lets_a_request_finish,
    a_slow_head_is_cut_off,
);

const LIMIT: Duration = Duration::from_secs(10);
const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true";
const ECHO: &str = "/debug/twin/echo";

fn world(driver: IoDriver) -> World {
    World::on(driver).local("cp-a", apis::everywhere()).start()
}

/// A GET without more lines than it needs.
fn get(path: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n")
}

/// What curl says of its transfers: code, version, connections made.
const REPORT: &str = "%{stderr}%{http_code} %{http_version} %{num_connects};";

async fn curl_speaks_http_1(driver: IoDriver) {
    let world = world(driver);
    let directory = Directory::new();
    let ca = world.pki().write_ca(directory.path(), "ca").unwrap();
    let curl = |arguments: &[&str]| {
        let mut command = Command::new(program("curl", "curl"));
        command.args(["--silent", "--show-error", "--max-time", "30", "--ipv4", "--http1.1", "--write-out", REPORT, "--cacert"]);
        command.arg(&ca).args(arguments);
        run(command)
    };
    let said = |output: &Output| String::from_utf8_lossy(&output.stderr).into_owned();
    let large = noise(1 << 20, 1);
    let upload = directory.write("up.bin", &large);
    let from_file = format!("@{}", upload.display());

    let down = curl(&[&world.url("/debug/twin/bytes/1048576")]).await;
    assert!(down.stdout == pattern(1 << 20), "{} bytes", down.stdout.len());
    assert_eq!(said(&down), "200 1.1 1;");
    for more in [&["-H", "Expect:"][..], &["-H", "Expect: 100-continue"], &["-H", "Transfer-Encoding: chunked"]] {
        let echo = world.url(ECHO);
        let up = curl(&[&["--data-binary", &from_file, &echo], more].concat()).await;
        assert!(up.stdout == large, "{more:?}: {} bytes", up.stdout.len());
        assert_eq!(said(&up), "200 1.1 1;", "{more:?}");
    }
    let head = curl(&["--head", &world.url("/readyz")]).await;
    assert!(String::from_utf8_lossy(&head.stdout).contains("content-length: 2\r\n"), "{head:?}");
    assert_eq!(said(&head), "200 1.1 1;");
    // It would offer `http/1.0`, which no apiserver takes; without an offer it is HTTP/1.
    let old = curl(&["--http1.0", "--no-alpn", &world.url("/debug/twin/bytes/1000")]).await;
    assert!(old.stdout == pattern(1_000) && said(&old).starts_with("200 1."), "{old:?}");
    let old = curl(&["--http1.0", "--no-alpn", "--data-binary", &from_file, &world.url(ECHO)]).await;
    assert!(old.stdout == large, "{} bytes", old.stdout.len());
    let twice = curl(&[&world.url("/readyz"), &world.url("/readyz")]).await;
    assert_eq!(said(&twice), "200 1.1 1;200 1.1 0;");
}

async fn a_connection_serves_request_after_request(driver: IoDriver) {
    // The limit of a head is none of a connection.
    let world =
        World::on(driver).limits(|limits| limits.client_handshake = Duration::from_secs(1)).local("cp-a", apis::everywhere()).start();
    let mut wire = Wire::connect(&world).await;
    for size in [0usize, 1, 20_000, 300_000] {
        wire.send(get(&format!("/debug/twin/bytes/{size}"))).await;
        let answer = wire.answer().await.unwrap();
        assert!(answer.status == 200 && answer.body == pattern(size), "{size}: {}", answer.head);
        let body = noise(size, 2);
        wire.send(format!("POST {ECHO} HTTP/1.1\r\nHost: k\r\nContent-Length: {size}\r\n\r\n")).await;
        wire.send(&body).await;
        let answer = wire.answer().await.unwrap();
        assert!(answer.status == 200 && answer.body == body, "{size}: {}", answer.head);
    }
    wire.send("HEAD /readyz HTTP/1.1\r\nHost: k\r\n\r\n").await;
    let (status, head) = wire.head().await.unwrap();
    assert!(status == 200 && head.contains("content-length: 2\r\n"), "{head}");
    tokio::time::sleep(Duration::from_millis(2_500)).await;
    wire.send("GET /readyz HTTP/1.1\r\nHost: k\r\nConnection: close\r\n\r\n").await;
    let answer = wire.answer().await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (200, Some("close")));
    assert_eq!(wire.end().await, End::Clean);
}

async fn requests_sent_ahead_are_answered_in_order(driver: IoDriver) {
    let world = world(driver);
    let mut wire = Wire::connect(&world).await;
    let post = format!("POST {ECHO} HTTP/1.1\r\nHost: k\r\nContent-Length: 3\r\n\r\nabc");
    wire.send([get("/debug/twin/slow/200"), post, get("/debug/twin/bytes/5")].concat()).await;
    for body in [&b"ok"[..], b"abc", &pattern(5)] {
        assert_eq!(wire.answer().await.unwrap().body, body);
    }
    // More than is read ahead.
    let many: String = (0..2_000).map(|size| get(&format!("/debug/twin/bytes/{size}"))).collect();
    let reading = async {
        wire.send(&many).await;
        for size in 0..2_000 {
            assert_eq!(wire.answer().await.unwrap().body.len(), size);
        }
    };
    timeout(Duration::from_secs(30), reading).await.unwrap();
    assert_eq!(world.twin("cp-a").counts().requests, 2_003);
}

async fn bodies_without_a_length_are_chunked(driver: IoDriver) {
    let world = world(driver);
    let mut wire = Wire::connect(&world).await;
    wire.send(get("/debug/twin/trailers")).await;
    let answer = wire.answer().await.unwrap();
    assert_eq!((answer.header("transfer-encoding"), answer.header("x-twin-count")), (Some("chunked"), Some("2")));
    // A client of 1.0 that wants to go on is told that it may, and knows no chunks.
    wire.send("GET /debug/twin/bytes/7 HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
    let answer_1_0 = wire.answer().await.unwrap();
    assert_eq!((answer_1_0.header("connection"), answer_1_0.body.len()), (Some("keep-alive"), 7));
    wire.send("GET /debug/twin/trailers HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await;
    let (status, head) = wire.head().await.unwrap();
    assert!(status == 200 && head.contains("connection: close\r\n") && !head.contains("transfer-encoding"), "{head}");
    assert_eq!(wire.exactly(answer.body.len()).await.unwrap(), answer.body);
    assert_eq!(wire.end().await, End::Clean);
}

async fn a_watch_streams_its_events(driver: IoDriver) {
    let world = world(driver);
    let mut wire = Wire::connect(&world).await;
    wire.send(get(WATCH)).await;
    let (status, head) = wire.head().await.unwrap();
    assert!(status == 200 && head.contains("transfer-encoding: chunked\r\n"), "{head}");
    let mut other = Wire::connect(&world).await;
    let mut seen = Vec::new();
    for nth in 0..5 {
        let object = format!("{{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"made-{nth}\"}}}}");
        let head = "POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\nHost: k\r\nContent-Type: application/json";
        other.send(format!("{head}\r\nContent-Length: {}\r\n\r\n{object}", object.len())).await;
        assert_eq!(other.answer().await.unwrap().status, 201);
        // Each comes while the watch goes on.
        while !String::from_utf8_lossy(&seen).contains(&format!("\"made-{nth}\"")) {
            seen.extend(wire.chunk().await.unwrap());
        }
    }
    for line in seen.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        assert!(serde_json::from_slice::<serde_json::Value>(line).unwrap()["object"].is_object());
    }
}

async fn trailers_of_an_upload_arrive(driver: IoDriver) {
    let world = world(driver);
    let mut wire = Wire::connect(&world).await;
    let head = format!("POST {ECHO} HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n");
    wire.send(format!("{head}4\r\nWiki\r\n5;x=y\r\npedia\r\n0\r\nX-Sum: 42\r\nX-Remote-User: root\r\n\r\n")).await;
    let answer = wire.answer().await.unwrap();
    assert_eq!((answer.status, &answer.body[..], answer.header("x-sum")), (200, &b"Wikipedia"[..], Some("42")));
    assert_eq!(answer.header("x-remote-user"), None);
}

async fn informational_answers_pass(driver: IoDriver) {
    let world = world(driver);
    let mut wire = Wire::connect(&world).await;
    wire.send(get("/debug/twin/informational")).await;
    let (status, head) = wire.head().await.unwrap();
    assert!(status == 103 && head.contains("link: "), "{head}");
    assert_eq!(wire.answer().await.unwrap().status, 200);
    wire.send("POST /debug/twin/continue HTTP/1.1\r\nHost: k\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\n").await;
    assert_eq!(wire.head().await.unwrap().0, 100);
    wire.send("abc").await;
    assert_eq!(wire.answer().await.unwrap().body, b"abc");
    // 1.0 has none.
    wire.send("GET /debug/twin/informational HTTP/1.0\r\n\r\n").await;
    assert_eq!(wire.head().await.unwrap().0, 200);
}

async fn a_cut_body_is_a_cut_connection(driver: IoDriver) {
    let world = world(driver);
    for count in [1usize, 1_000, 300_000] {
        let mut wire = Wire::connect(&world).await;
        wire.send(get(&format!("/debug/twin/truncate/{count}"))).await;
        // A reset may overtake what it follows.
        assert_eq!(wire.answer().await.unwrap_err(), End::Reset, "{count}");
    }
}

async fn a_server_that_dies_while_it_answers_cuts_the_connection(driver: IoDriver) {
    let mut world = world(driver);
    let mut wire = Wire::connect(&world).await;
    wire.send(get(WATCH)).await;
    assert_eq!(wire.head().await.unwrap().0, 200);
    assert!(!wire.chunk().await.unwrap().is_empty());
    // An answer to HTTP/1.0 ends with its connection, so only a reset tells that it is not complete.
    let mut old = Wire::connect(&world).await;
    old.send(format!("GET {WATCH} HTTP/1.0\r\n\r\n")).await;
    let (status, head) = old.head().await.unwrap();
    assert!(status == 200 && !head.contains("transfer-encoding") && !head.contains("content-length"), "{head}");
    let mut waiting = Wire::connect(&world).await;
    waiting.send(get("/debug/twin/hang")).await;
    eventually("the requests arrive", LIMIT, || world.twin("cp-a").counts().requests == 3).await;
    world.kill("cp-a").await;
    let end = loop {
        match wire.chunk().await {
            Ok(chunk) => assert!(!chunk.is_empty(), "a clean end"),
            Err(end) => break end,
        }
    };
    assert_eq!(end, End::Reset);
    assert_eq!(old.exactly(usize::MAX).await, Err(End::Reset));
    // What was not begun to be answered is an answer, and the connection stays.
    assert_eq!(waiting.answer().await.unwrap().status, 503);
    waiting.send(get("/readyz")).await;
    assert_eq!(waiting.answer().await.unwrap().status, 503);
}

async fn an_early_answer_ends_the_connection(driver: IoDriver) {
    let world = world(driver);
    for framing in ["Content-Length: 1000000", "Transfer-Encoding: chunked"] {
        let mut wire = Wire::connect(&world).await;
        wire.send(format!("POST /debug/twin/early HTTP/1.1\r\nHost: k\r\n{framing}\r\n\r\n")).await;
        let answer = wire.answer().await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (200, &b"early\n"[..]), "{framing}");
        // What comes now is the rest of a body, whatever it looks like.
        wire.send(get("/readyz")).await;
        assert_eq!(wire.end().await, End::Clean, "{framing}");
    }
    assert_eq!(world.twin("cp-a").counts().requests, 2);
    // The client of a request that failed is told, or it would send the next one into a closed connection.
    let mut wire = Wire::connect(&world).await;
    wire.send("POST /debug/twin/reset/2 HTTP/1.1\r\nHost: k\r\nContent-Length: 1000000\r\n\r\n").await;
    let answer = wire.answer().await.unwrap();
    assert_eq!((answer.status, answer.header("connection")), (503, Some("close")));
    assert_eq!(wire.end().await, End::Clean);
}

/// More than any window takes: most of it waits in the sockets, unread.
const WAITING: usize = 400_000;

async fn an_early_answer_ends_the_connection_of_an_upload_that_waits(driver: IoDriver) {
    let plan = World::on(driver);
    // Answers at once, and only later says that it wants no more of the body.
    let server = Script::start(plan.pki(), |_, request, mut respond| async move {
        script::answer(&mut respond, "early\n");
        sleep(Duration::from_millis(500)).await;
        drop(request);
    })
    .await;
    let mut world = plan.local_at("cp-a", apis::everywhere(), server.address()).start();
    let mut wire = Wire::connect(&world).await;
    let length = 2 * WAITING;
    wire.send(format!("POST /x HTTP/1.1\r\nHost: k\r\nContent-Length: {length}\r\n\r\n")).await;
    wire.send(noise(WAITING, 1)).await;
    let answer = wire.answer().await.unwrap();
    assert_eq!((answer.status, &answer.body[..]), (200, &b"early\n"[..]));
    // The client stays, and sends nothing more.
    eventually("the connection is over", LIMIT, || world.engine().connections() == [0]).await;
    timeout(LIMIT, world.drain()).await.unwrap().unwrap();
}

async fn a_client_that_leaves_while_its_upload_waits_is_noticed(driver: IoDriver) {
    let plan = World::on(driver);
    let (asked, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let seen = (Arc::clone(&asked), Arc::clone(&left));
    // Reads nothing and answers nothing.
    let server = Script::start(plan.pki(), move |_, _request, mut respond| {
        let (asked, left) = seen.clone();
        async move {
            asked.fetch_add(1, Ordering::Relaxed);
            script::reset_of(&mut respond).await;
            left.fetch_add(1, Ordering::Relaxed);
        }
    })
    .await;
    let world = plan.local_at("cp-a", apis::everywhere(), server.address()).start();
    let mut wire = Wire::connect(&world).await;
    // Nobody limits its time.
    let path = "/api/v1/namespaces/x/services/y/proxy/";
    wire.send(format!("POST {path} HTTP/1.1\r\nHost: k\r\nContent-Length: {WAITING}\r\n\r\n")).await;
    wire.send(noise(WAITING, 2)).await;
    eventually("it is asked for", LIMIT, || asked.load(Ordering::Relaxed) == 1).await;
    // What is read is read by now.
    sleep(Duration::from_millis(300)).await;
    assert_eq!((left.load(Ordering::Relaxed), world.engine().connections()), (0, vec![1]));
    drop(wire);
    eventually("the server is told", LIMIT, || left.load(Ordering::Relaxed) == 1).await;
    eventually("the connection is over", LIMIT, || world.engine().connections() == [0]).await;
}

async fn upgrades_are_not_implemented(driver: IoDriver) {
    let world = world(driver);
    let mut wire = Wire::connect(&world).await;
    let path = "/api/v1/namespaces/default/pods/x/exec?command=ls";
    let lines = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==";
    wire.send(format!("GET {path} HTTP/1.1\r\nHost: k\r\n{lines}\r\n\r\n{}", get("/readyz"))).await;
    let answer = wire.answer().await.unwrap();
    let status: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((answer.status, status["kind"].as_str(), status["code"].as_u64()), (501, Some("Status"), Some(501)));
    assert_eq!(wire.end().await, End::Clean);
    assert_eq!(world.twin("cp-a").counts().requests, 0);
    // An offer of HTTP/2 without TLS is no upgrade.
    let mut wire = Wire::connect(&world).await;
    wire.send("GET /readyz HTTP/1.1\r\nHost: k\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\n\r\n")
        .await;
    assert_eq!(wire.answer().await.unwrap().status, 200);
}

/// Requests that readers understand differently, and how they are refused.
const AMBIGUOUS: [(&str, u16); 26] = [
    ("POST /x HTTP/1.1\r\nHost: k\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
    ("POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n", 501),
    ("POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: identity\r\n\r\n", 501),
    ("POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 501),
    ("POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n", 501),
    ("POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
    ("POST /x HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n", 400),
    ("POST /x HTTP/1.1\r\nHost: k\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", 400),
    ("POST /x HTTP/1.1\r\nHost: k\r\nContent-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400),
    ("POST /x HTTP/1.1\r\nHost: k\r\nContent-Length: 3, 3\r\n\r\nabc", 400),
    ("POST /x HTTP/1.1\r\nHost: k\r\nContent-Length: +3\r\n\r\nabc", 400),
    ("POST /x HTTP/1.1\r\nHost: k\r\nContent-Length: -3\r\n\r\nabc", 400),
    ("POST /x HTTP/1.1\r\nHost: k\r\nContent-Length: 0x3\r\n\r\nabc", 400),
    ("POST /x HTTP/1.1\r\nHost: k\r\nContent-Length:\r\n\r\nabc", 400),
    ("POST /x HTTP/1.0\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
    ("GET /x HTTP/1.1\nHost: k\n\n", 400),
    ("GET /x HTTP/1.1\r\nHost: k\r\nA: b\n\r\n", 400),
    ("GET /x HTTP/1.1\r\nHost: k\r\nA: b\r\n c\r\n\r\n", 400),
    ("GET /x HTTP/1.1\r\nHost : k\r\n\r\n", 400),
    ("GET /x HTTP/1.1\r\nHost: k\r\nHost: k\r\n\r\n", 400),
    ("GET /x HTTP/1.1\r\n\r\n", 400),
    ("GET /x HTTP/1.1\r\nHost: k\r\n: b\r\n\r\n", 400),
    ("GET /x HTTP/1.1\r\nHost: k\r\nA: b\0c\r\n\r\n", 400),
    ("GET /x y HTTP/1.1\r\nHost: k\r\n\r\n", 505),
    ("GET x HTTP/1.1\r\nHost: k\r\n\r\n", 400),
];

async fn ambiguous_requests_are_refused_and_nobody_sees_them(driver: IoDriver) {
    let world = world(driver);
    for (text, status) in AMBIGUOUS {
        // In one write, and with what an attacker would hide behind it.
        let mut wire = Wire::connect(&world).await;
        wire.send(format!("{text}{}", get("/api/v1/secrets"))).await;
        let answer = wire.answer().await.unwrap_or_else(|end| panic!("{text:?}: {end:?}"));
        assert_eq!((answer.status, answer.header("connection")), (status, Some("close")), "{text:?}");
        assert_eq!(wire.end().await, End::Clean, "{text:?}");
    }
    assert_eq!(world.twin("cp-a").counts().requests, 0);
    for (text, status) in [("CONNECT evil:443 HTTP/1.1\r\nHost: k\r\n\r\n", 405), ("GET / HTTP/2.0\r\nHost: k\r\n\r\n", 505)] {
        let mut wire = Wire::connect(&world).await;
        wire.send(text).await;
        assert_eq!(wire.answer().await.unwrap().status, status, "{text:?}");
    }
    let mut wire = Wire::connect(&world).await;
    wire.send(format!("GET /x HTTP/1.1\r\nHost: k\r\nA: {}\r\n\r\n", "a".repeat(2 << 20))).await;
    assert_eq!(wire.answer().await.unwrap().status, 431);
    assert_eq!(world.twin("cp-a").counts().requests, 0);
    // The absolute form is no attack: its path decides.
    let mut wire = Wire::connect(&world).await;
    wire.send("GET https://evil/debug/twin/bytes/3 HTTP/1.1\r\nHost: k\r\n\r\n").await;
    assert_eq!(wire.answer().await.unwrap().body, pattern(3));
}

async fn broken_bodies_are_refused(driver: IoDriver) {
    let world = world(driver);
    let chunked = "POST /api/v1/namespaces/default/pods HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n";
    for body in
        ["3\nabc\r\n0\r\n\r\n", "3\r\nabcX\r\n0\r\n\r\n", "x\r\n", "-1\r\n", "fffffffffffffffff\r\n", "3;a\nabc\r\n", "0\r\nA: b\n\r\n"]
    {
        let mut wire = Wire::connect(&world).await;
        wire.send(format!("{chunked}{body}{}", get("/api/v1/secrets"))).await;
        let answer = wire.answer().await.unwrap_or_else(|end| panic!("{body:?}: {end:?}"));
        assert_eq!((answer.status, answer.header("connection")), (400, Some("close")), "{body:?}");
        assert_eq!(wire.end().await, End::Clean, "{body:?}");
    }
    assert!(world.twin("cp-a").counts().requests <= 7, "the requests alone, never what was behind them");
}

/// H7 for HTTP/1.1: each costs a frame, and carries nothing. A few are anybody's right.
async fn chunks_of_one_byte_are_cut_off(driver: IoDriver) {
    let world = world(driver);
    let head = format!("POST {ECHO} HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n");
    let mut patient = Wire::connect(&world).await;
    patient.send(format!("{head}{}0\r\n\r\n", "1\r\nx\r\n".repeat(900))).await;
    assert_eq!(patient.answer().await.unwrap().body, vec![b'x'; 900]);
    let mut flooding = Wire::connect(&world).await;
    flooding.send(&head).await;
    flooding.send("1\r\nx\r\n".repeat(5_000)).await;
    flooding.head().await.ok();
    let end = loop {
        if let Err(end) = flooding.chunk().await {
            break end;
        }
    };
    assert_ne!(end, End::Clean, "told nothing that looks complete");
    assert_eq!(world.client().await.get("/api/v1/namespaces/default/pods").await.unwrap().status, 200);
}

async fn lines_that_only_the_proxy_may_write_are_dropped(driver: IoDriver) {
    let world = world(driver);
    let mut wire = Wire::connect(&world).await;
    let spoofed = "X-Remote-User: admin\r\nx-remote-group: system:masters\r\nX-Remote-Extra-Scope: a\r\nX-REMOTE-UID: 0\r\nX-Plain: yes";
    for connection in ["", "Connection: x-remote-user, keep-alive\r\n", "Connection: X-Remote-User\r\nConnection: x-remote-group\r\n"] {
        wire.send(format!("GET {ECHO} HTTP/1.1\r\nHost: k\r\n{connection}{spoofed}\r\nTE: trailers\r\nKeep-Alive: 5\r\n\r\n")).await;
        let answer = wire.answer().await.unwrap();
        let seen = String::from_utf8(answer.body).unwrap().to_lowercase();
        for name in ["x-remote-", "\"connection\"", "\"keep-alive\"", "\"te\"", "\"host\""] {
            assert!(!seen.contains(name), "{connection:?}, {name}: {seen}");
        }
        assert!(seen.contains("x-plain"), "{seen}");
    }
}

async fn a_drain_lets_a_request_finish(driver: IoDriver) {
    let mut world = world(driver);
    let mut wire = Wire::connect(&world).await;
    let mut idle = Wire::connect(&world).await;
    let mut watch = Wire::connect(&world).await;
    idle.send(get("/readyz")).await;
    assert_eq!(idle.answer().await.unwrap().status, 200);
    watch.send(get(WATCH)).await;
    assert_eq!(watch.head().await.unwrap().0, 200);
    wire.send(get("/debug/twin/slow/1000")).await;
    eventually("the requests arrive", LIMIT, || world.twin("cp-a").counts().requests == 3).await;
    let started = Instant::now();
    let (drained, answer) = tokio::join!(world.drain(), wire.answer());
    drained.unwrap();
    let answer = answer.unwrap();
    assert_eq!((answer.status, &answer.body[..], answer.header("connection")), (200, &b"ok"[..], Some("close")));
    assert_eq!(wire.end().await, End::Clean);
    assert_eq!(idle.end().await, End::Clean);
    let end = loop {
        match watch.chunk().await {
            Ok(chunk) => assert!(!chunk.is_empty(), "a clean end"),
            Err(end) => break end,
        }
    };
    assert_eq!(end, End::Reset);
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

async fn a_slow_head_is_cut_off(driver: IoDriver) {
    let world =
        World::on(driver).limits(|limits| limits.client_handshake = Duration::from_secs(1)).local("cp-a", apis::everywhere()).start();
    let mut first = Wire::connect(&world).await;
    let mut later = Wire::connect(&world).await;
    later.send(get("/readyz")).await;
    assert_eq!(later.answer().await.unwrap().status, 200);
    let started = Instant::now();
    for wire in [&mut first, &mut later] {
        wire.send("GET /readyz HTTP/1.1\r\nHost: k\r\nA:").await;
    }
    for wire in [&mut first, &mut later] {
        for _ in 0..4 {
            tokio::time::sleep(Duration::from_millis(200)).await;
            wire.send(" a").await;
        }
        assert_eq!(wire.end().await, End::Clean);
    }
    assert!(started.elapsed() < Duration::from_secs(6), "{:?}", started.elapsed());
    let mut silent = Wire::connect(&world).await;
    assert_eq!(silent.end().await, End::Clean);
}
