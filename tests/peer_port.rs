//! The peer port in front of real kube-apiservers: whom it lets in, what it does for them, that it can be the only way to a server, and
//! that one which does not let us in is not the end.
//!
//! One control plane for all of it, without an EndpointSlice. cp-a, which has jobs, is at an address of this machine that is not
//! loopback, as are all proxies; cp-b has none.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::client::Response;
use loadgen::{Client, Error, KeyPairPem, Pki};
use serde_json::{Value, json};
use support::real::{ADMIN, Apiserver, ControlPlane, Proxy, Version, own_ip};
use support::{NAME, headers};
use tokio::time::sleep;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
/// For anything to be learned, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// For a peer port that refuses us to give way.
const GIVES_WAY: Duration = Duration::from_secs(10);
/// Longer than an address that was found wanting is left alone (10 s).
const A_WHILE: Duration = Duration::from_secs(13);

struct World {
    a: Apiserver,
    b: Apiserver,
    // The last to go.
    plane: ControlPlane,
}

impl World {
    async fn start() -> Self {
        let plane = ControlPlane::start().await;
        let a = plane.server("cp-a", Version::newer()).ip(own_ip()).flag("--endpoint-reconciler-type=none");
        let b = plane.server("cp-b", Version::newer()).flag("--runtime-config=batch/v1=false");
        let (mut a, mut b) = (a.launch().await, b.launch().await);
        a.wait_ready().await;
        b.wait_ready().await;
        Self { a, b, plane }
    }

    /// One in front of a server, at the address that is not loopback. Without a range of peers, so that its subnet is what is allowed.
    fn proxy(&self, server: &Apiserver, flags: &[&str]) -> Proxy {
        let bind = format!("--bind-address={}", own_ip());
        let flags: Vec<&str> = [bind.as_str(), "--peer-cidr"].into_iter().chain(flags.iter().copied()).collect();
        Proxy::alone(&self.plane, server, &flags)
    }

    /// Whoever asks at that port, with this certificate or none, and with the token of the admin.
    async fn ask(&self, port: SocketAddr, pair: Option<&KeyPairPem>, path: &str, audit_id: &str) -> Result<Response, Error> {
        let ca = self.plane.pki().ca_pem();
        let client = match pair {
            Some(pair) => Client::connect_with_certificate(port, ca, NAME, pair).await?,
            None => Client::connect(port, ca, NAME, None).await?,
        };
        let bearer = format!("Bearer {}", ADMIN.token);
        let fields = headers([("authorization", bearer.as_str()), ("audit-id", audit_id)]);
        client.request(Method::GET, path, fields, Bytes::new(), None).await
    }
}

fn job(name: &str) -> Bytes {
    let pod = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.invalid/none"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"suspend": true, "template": pod}});
    Bytes::from(job.to_string())
}

async fn send(client: &Client, method: Method, audit_id: &str, body: Bytes) -> Response {
    let fields = headers([("content-type", "application/json"), ("audit-id", audit_id)]);
    client.request(method, JOBS, fields, body, None).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn it_lets_in_whom_it_should_and_nobody_depends_on_it() {
    let world = World::start().await;
    let mut of_a = world.proxy(&world.a, &["--peer-ports=1"]);
    of_a.wait_for(JOBS, StatusCode::OK, PATIENCE).await;
    // cp-a itself has another port: nothing but the peer port of its proxy leads to it.
    let mut of_b = world.proxy(&world.b, &[&format!("--peer-ports={}", of_a.peers.port())]);
    of_b.wait_ready().await;
    only_front_proxies_come_in(&world, &of_b).await;
    it_can_be_the_only_way(&world, &of_b, of_a.peers).await;
    of_b.stop().await;
    of_a.stop().await;

    let of_a = world.proxy(&world.a, &["--peer-ports=1", "--requestheader-allowed-names=somebody-else"]);
    of_a.wait_for(JOBS, StatusCode::OK, PATIENCE).await;
    let ports = format!("--peer-ports={},{}", of_a.peers.port(), world.a.address().port());
    let mut of_b = world.proxy(&world.b, &[&ports]);
    of_b.wait_ready().await;
    one_that_refuses_us_gives_way(&world, &of_b, &of_a).await;
}

/// And those that do are served by the local server, or by nobody.
async fn only_front_proxies_come_in(world: &World, proxy: &Proxy) {
    let front = world.plane.front_proxy_pki();
    let strangers = [
        ("no certificate", None),
        ("one of another authority", Some(Pki::new().unwrap().client("front-proxy-client", &[]).unwrap())),
        ("one of the clients' authority", Some(world.plane.pki().client("front-proxy-client", &[]).unwrap())),
        ("one with another name", Some(front.client("somebody-else", &[]).unwrap())),
    ];
    for (nth, (who, pair)) in strangers.iter().enumerate() {
        let answer = world.ask(proxy.peers, pair.as_ref(), CONFIGMAPS, &format!("stranger-{nth}")).await;
        assert!(answer.is_err(), "{who}: {answer:?}");
    }
    let pair = world.plane.front_proxy_pair();
    let here = world.ask(proxy.peers, Some(&pair), CONFIGMAPS, "hop-here").await.unwrap();
    assert_eq!(here.status, StatusCode::OK, "{:?}", here.json());
    assert_eq!(world.b.audited("hop-here").await["user"]["username"], ADMIN.name);
    let elsewhere = world.ask(proxy.peers, Some(&pair), JOBS, "hop-elsewhere").await.unwrap();
    let status = elsewhere.json().unwrap();
    assert_eq!((elsewhere.status, &status["kind"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("Status")), "{status}");

    // What came to cp-a before this is in its log by then.
    let fields = headers([("audit-id", "straight")]);
    world.a.client(ADMIN).await.request(Method::GET, JOBS, fields, Bytes::new(), None).await.unwrap();
    world.a.audited("straight").await;
    for server in [&world.a, &world.b] {
        let wrong = |id: &String| id.starts_with("stranger-") || id == "hop-elsewhere" || (id == "hop-here" && server.id() == world.a.id());
        let asked: Vec<String> = server.audit().all().into_keys().filter(wrong).collect();
        assert!(asked.is_empty(), "{} was asked: {asked:?}", server.hostname());
    }
}

/// For requests, for probes, and for what the server serves.
async fn it_can_be_the_only_way(world: &World, proxy: &Proxy, peer_port: SocketAddr) {
    let row = proxy.server_row(world.a.id()).await;
    assert_eq!((&row["address"], &row["via"], &row["ready"]), (&json!(peer_port), &json!("proxy"), &json!(true)), "{row}");
    let client = proxy.client(ADMIN).await;
    assert_eq!(send(&client, Method::GET, "only-get", Bytes::new()).await.status, StatusCode::OK);
    let made = send(&client, Method::POST, "only-post", job("only")).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.json());
    for id in ["only-get", "only-post"] {
        assert_eq!(world.a.audited(id).await["user"]["username"], ADMIN.name, "{id}");
        assert_eq!(world.b.audit().events(id), Vec::<Value>::new(), "{id}");
    }
}

/// To the address of the server itself. What is refused on the way was never sent, so clients may try again.
async fn one_that_refuses_us_gives_way(world: &World, proxy: &Proxy, refusing: &Proxy) {
    let pair = world.plane.front_proxy_pair();
    assert!(world.ask(refusing.peers, Some(&pair), CONFIGMAPS, "refused").await.is_err(), "it lets us in, so this shows nothing");
    proxy.wait_for(JOBS, StatusCode::OK, GIVES_WAY).await;
    let client = proxy.client(ADMIN).await;
    let (begun, mut done, mut refused) = (Instant::now(), 0, 0);
    let mut last = String::new();
    while begun.elapsed() < A_WHILE {
        let nth = done + refused;
        for (method, body, expected) in
            [(Method::GET, Bytes::new(), StatusCode::OK), (Method::POST, job(&format!("way-{nth}")), StatusCode::CREATED)]
        {
            let id = format!("{method}-way-{nth}");
            let answer = send(&client, method.clone(), &id, body).await;
            let why = format!("{method} after {:?}: {:?}", begun.elapsed(), answer.json());
            if answer.status == expected {
                done += 1;
                last = id;
            } else {
                assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "{why}");
                assert!(answer.header("retry-after").is_some(), "{why}");
                refused += 1;
            }
        }
        sleep(Duration::from_millis(50)).await;
    }
    println!("a peer port that refuses us: {done} requests done by the server, {refused} to be tried again");
    assert!(refused * 10 <= done, "{refused} of {} were refused", done + refused);
    world.a.audited(&last).await;
}
