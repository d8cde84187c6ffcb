//! Servers that are not there, go away, come back, hang, or are not who they should be.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, Method, StatusCode};
use loadgen::client::Response;
use loadgen::{Client, Error, Pki};
use socket2::{Domain, Socket, Type};
use support::tools::Nghttpd;
use support::{IoDriver, Refusing, World, apis, eventually, headers, noise};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

on_both_drivers!(
    no_server_is_503_and_may_be_tried_again,
    a_peer_answers_while_local_is_down,
    a_request_is_never_a_404_because_its_server_is_gone,
    a_server_killed_in_a_body_is_a_reset,
    a_server_that_never_speaks_is_503_in_time,
    a_server_that_cannot_be_connected_to_is_503_in_time,
    a_server_with_another_authority_gets_no_request,
    goaways_cost_no_request,
    a_hung_server_is_given_up_in_time,
    a_pause_is_not_an_end,
);

const PODS: &str = "/api/v1/namespaces/default/pods";
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

fn assert_unavailable(answer: &Response, retry_after: Option<&str>) {
    assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(answer.header("content-type"), Some("application/json"));
    assert_eq!(answer.header("retry-after"), retry_after);
    let status = answer.json().unwrap();
    let field = |name: &str| status[name].as_str().unwrap_or_default().to_owned();
    assert_eq!(["kind", "apiVersion", "status", "reason"].map(field), ["Status", "v1", "Failure", "ServiceUnavailable"]);
    assert_eq!(status["code"], 503);
    assert!(!field("message").contains("127.0.0.1"), "an address in {status}");
}

async fn no_server_is_503_and_may_be_tried_again(driver: IoDriver) {
    let (local, peer) = (Refusing::new(), Refusing::new());
    let plan = World::on(driver).local_at("cp-a", apis::everywhere(), local.address());
    let world = plan.peer_at("cp-b", [apis::everywhere(), apis::batch()].concat(), peer.address()).start();
    let client = world.client().await;
    for path in [PODS, JOBS, "/readyz", "/apis", "/nothing"] {
        let started = Instant::now();
        assert_unavailable(&client.get(path).await.unwrap(), Some("1"));
        assert!(started.elapsed() < Duration::from_secs(2), "{path}: {:?}", started.elapsed());
    }
    let posted = client.request(Method::POST, PODS, HeaderMap::new(), noise(300_000, 1), None).await.unwrap();
    assert_unavailable(&posted, Some("1"));
    let head = client.request(Method::HEAD, PODS, HeaderMap::new(), Bytes::new(), None).await.unwrap();
    assert_eq!((head.status, head.body.len()), (StatusCode::SERVICE_UNAVAILABLE, 0));
}

async fn a_peer_answers_while_local_is_down(driver: IoDriver) {
    let mut world = World::on(driver).local("cp-a", apis::everywhere()).peer("cp-b", [apis::everywhere(), apis::batch()].concat()).start();
    let client = world.client().await;
    let ask = async |path: &str| {
        let answer = client.get(path).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        answer.header("x-twin-id").unwrap_or("nobody").to_owned()
    };
    assert_eq!(ask(PODS).await, "cp-a");
    world.kill("cp-a").await;
    // So that the reset of the connection is there before the next request: what was sent to a dead server may have been done.
    sleep(Duration::from_millis(300)).await;
    for _ in 0..20 {
        assert_eq!(ask(PODS).await, "cp-b");
        assert_eq!(ask("/version").await, "cp-b");
    }
    // About local itself nobody else can speak.
    assert_unavailable(&client.get("/readyz").await.unwrap(), Some("1"));

    world.revive("cp-a");
    let revived = Instant::now();
    while ask(PODS).await != "cp-a" {
        assert!(revived.elapsed() < Duration::from_secs(1), "local is back, but a peer still answers");
        sleep(Duration::from_millis(20)).await;
    }
    assert_eq!(client.get("/readyz").await.unwrap().status, StatusCode::OK);
}

async fn a_request_is_never_a_404_because_its_server_is_gone(driver: IoDriver) {
    let mut world = World::on(driver).local("cp-a", apis::everywhere()).peer("cp-b", apis::batch()).peer("cp-c", apis::batch()).start();
    let client = world.client().await;
    for _ in 0..20 {
        assert_eq!(client.get(JOBS).await.unwrap().status, StatusCode::OK);
    }
    world.kill("cp-b").await;
    sleep(Duration::from_millis(300)).await;
    for _ in 0..50 {
        let answer = client.get(JOBS).await.unwrap();
        assert_eq!((answer.status, answer.header("x-twin-id")), (StatusCode::OK, Some("cp-c")));
    }
    world.kill("cp-c").await;
    sleep(Duration::from_millis(300)).await;
    for _ in 0..20 {
        assert_unavailable(&client.get(JOBS).await.unwrap(), Some("1"));
    }
    world.revive("cp-b");
    eventually_ok(&client, JOBS, Duration::from_secs(1)).await;
}

/// 503 until `limit`, 200 from then on; nothing else at any time.
async fn eventually_ok(client: &Client, path: &str, limit: Duration) {
    let started = Instant::now();
    loop {
        let answer = client.get(path).await.unwrap();
        match answer.status {
            StatusCode::OK => return,
            _ => assert_unavailable(&answer, Some("1")),
        }
        assert!(started.elapsed() < limit, "still 503 after {limit:?}");
        sleep(Duration::from_millis(20)).await;
    }
}

async fn a_server_killed_in_a_body_is_a_reset(driver: IoDriver) {
    let mut world = World::on(driver).local("cp-a", apis::everywhere()).peer("cp-b", apis::batch()).start();
    let client = world.client().await;
    let mut running = JoinSet::new();
    for _ in 0..4 {
        let client = client.clone();
        let asked = headers([("x-twin-debug", "bytes/500000000")]);
        running.spawn(async move { client.request(Method::GET, JOBS, asked, Bytes::new(), None).await });
    }
    eventually("the bodies flow", Duration::from_secs(10), || world.engine().counters().body_received > 1_000_000).await;
    world.kill("cp-b").await;
    while let Some(ended) = timeout(Duration::from_secs(10), running.join_next()).await.unwrap() {
        let error = ended.unwrap().unwrap_err();
        assert!(error.is_reset(), "{error}");
        assert_eq!(error.reason(), Some(Reason::INTERNAL_ERROR));
    }
    // The others on the same client connection do not notice.
    assert_eq!(client.get(PODS).await.unwrap().status, StatusCode::OK);
}

async fn a_server_that_never_speaks_is_503_in_time(driver: IoDriver) {
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let world = World::on(driver).local_at("cp-a", apis::everywhere(), silent.local_addr().unwrap()).start();
    let client = world.client().await;
    let started = Instant::now();
    let answer = client.get(PODS).await.unwrap();
    assert!(started.elapsed() < Duration::from_millis(3_500), "{:?}", started.elapsed());
    assert_unavailable(&answer, Some("1"));
}

/// Its queue is full, so the kernel drops every SYN: nothing comes back, no refusal either.
async fn a_server_that_cannot_be_connected_to_is_503_in_time(driver: IoDriver) {
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    full.listen(0).unwrap();
    let address = full.local_addr().unwrap();
    let waiting = [(); 4].map(|()| {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_nonblocking(true).unwrap();
        assert!(socket.connect(&address).is_err(), "it is under way at best");
        socket
    });
    let plan = World::on(driver).local_at("cp-a", apis::everywhere(), address.as_socket().unwrap());
    let world = plan.peer("cp-b", apis::everywhere()).start();
    let client = world.client().await;
    let (begun, limit) = (Instant::now(), Duration::from_millis(2_900));
    // What a peer can answer is answered there, what only local can is 503.
    let (own, shared) = tokio::join!(client.get("/readyz"), client.get(PODS));
    assert!(begun.elapsed() < limit, "{:?}", begun.elapsed());
    assert_unavailable(&own.unwrap(), Some("1"));
    assert_eq!(shared.unwrap().header("x-twin-id"), Some("cp-b"));
    drop((full, waiting));
}

async fn a_server_with_another_authority_gets_no_request(driver: IoDriver) {
    let other = Pki::new().unwrap();
    let plan = World::on(driver).local("cp-a", apis::everywhere());
    let world = plan.peer_with("cp-b", apis::batch(), |config| config.serving = other.serving().unwrap()).start();
    let client = world.client().await;
    for _ in 0..3 {
        assert_unavailable(&client.get(JOBS).await.unwrap(), Some("1"));
    }
    let counts = world.twin("cp-b").counts();
    assert!(counts.connections > 0, "it was never asked");
    assert_eq!(counts.requests, 0);
}

async fn goaways_cost_no_request(driver: IoDriver) {
    let local = |config: &mut loadgen::TwinConfig| config.goaway_every = Some(37);
    let world = World::on(driver).local_with("cp-a", apis::everywhere(), local).peer_with("cp-b", apis::batch(), local).start();
    let mut running = JoinSet::new();
    for _ in 0..8 {
        let client = world.client().await;
        running.spawn(async move {
            for nth in 0..250 {
                let path = if nth % 2 == 0 { PODS } else { JOBS };
                let answer = client.get(path).await.unwrap_or_else(|error| panic!("request {nth}: {error}"));
                assert_eq!(answer.status, StatusCode::OK, "request {nth}");
            }
        });
    }
    running.join_all().await;
    let counts = world.twin("cp-a").counts();
    assert!(counts.connections >= 1_000 / 74, "{} connections: no GOAWAY came", counts.connections);
}

/// A world whose local server is an nghttpd that has answered once.
async fn behind_nghttpd(driver: IoDriver) -> (World, Nghttpd, Client) {
    let plan = World::on(driver);
    let nghttpd = Nghttpd::start(plan.pki());
    nghttpd.serve("file", b"contents");
    let world = plan.local_at("cp-a", apis::everywhere(), nghttpd.address()).start();
    let client = world.client().await;
    assert_eq!(client.get("/file").await.unwrap().body, "contents");
    (world, nghttpd, client)
}

async fn a_hung_server_is_given_up_in_time(driver: IoDriver) {
    let (_world, nghttpd, client) = behind_nghttpd(driver).await;
    nghttpd.freeze();
    let started = Instant::now();
    let answer: Result<Response, Error> = client.get("/file").await;
    assert!(started.elapsed() < Duration::from_millis(6_500), "{:?}", started.elapsed());
    // A read leaves nothing done: it may be sent again.
    assert_unavailable(&answer.unwrap(), Some("1"));
    nghttpd.thaw();
    eventually_ok(&client, "/file", Duration::from_secs(6)).await;
}

async fn a_pause_is_not_an_end(driver: IoDriver) {
    let (_world, nghttpd, client) = behind_nghttpd(driver).await;
    nghttpd.serve("large", &noise(20 << 20, 7));
    let mut body = client.watch("/large").await.unwrap();
    let mut received = body.next_chunk().await.unwrap().unwrap().len();
    nghttpd.freeze();
    let asked = client.clone();
    let waiting = tokio::spawn(async move { asked.get("/file").await });
    sleep(Duration::from_secs(3)).await;
    nghttpd.thaw();
    assert_eq!(waiting.await.unwrap().unwrap().body, "contents");
    while let Some(chunk) = body.next_chunk().await.unwrap() {
        received += chunk.len();
    }
    assert_eq!(received, 20 << 20);
}
