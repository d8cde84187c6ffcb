//! Where a peer is found and how it is reached when nobody says it for the test: by the EndpointSlice alone and the default allow-list,
//! by the command line, or not at all.
//!
//! One control plane for all of it. Both servers are at the same address of this machine, which is not loopback, so the EndpointSlice
//! has one entry: that of the server that was there first, cp-a. Their Leases say no address.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use loadgen::client::Response;
use serde_json::{Value, json};
use support::real::{ADMIN, Apiserver, ControlPlane, Proxy, ServerPlan, Version, own_ip};
use support::{headers, until};
use tokio::net::TcpStream;
use tokio::time::sleep;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
const SLICE: &str = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/kubernetes";
/// For anything to be learned, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// cp-a, which has jobs and is in the EndpointSlice, and cp-b, which has none and is not.
struct World {
    a: Apiserver,
    b: Apiserver,
    // The last to go.
    plane: ControlPlane,
}

impl World {
    async fn start() -> Self {
        let plane = ControlPlane::start().await;
        let plan = |name: &str| -> ServerPlan { plane.server(name, Version::newer()).ip(own_ip()).in_tree_proxy(false) };
        let a = plan("cp-a").start().await;
        let admin = a.client(ADMIN).await;
        // It is written after the server is ready, and a second server at the same address does not change it.
        until("cp-a in the EndpointSlice", PATIENCE, async || names(&admin, a.address()).await).await;
        let b = plan("cp-b").flag("--runtime-config=batch/v1=false").start().await;
        assert!(names(&admin, a.address()).await, "cp-b is in the EndpointSlice, not cp-a");
        Self { a, b, plane }
    }

    /// A proxy in front of cp-b, and in front of nobody else.
    fn proxy(&self, flags: &[&str]) -> Proxy {
        Proxy::alone(&self.plane, &self.b, flags)
    }

    /// The only port that addresses of the cluster may have.
    fn port_of_a(&self) -> String {
        format!("--peer-ports={}", self.a.address().port())
    }

    /// Jobs are listed and made through the proxy, by cp-a and as the user whose token came along.
    async fn jobs_are_done_by_a(&self, proxy: &Proxy, when: &str) {
        let client = proxy.client(ADMIN).await;
        for (method, body, expected) in [(Method::GET, Bytes::new(), StatusCode::OK), (Method::POST, job(when), StatusCode::CREATED)] {
            let id = format!("{method}-{when}");
            let answer = send(&client, method, JOBS, &id, body).await;
            assert_eq!(answer.status, expected, "{id}: {:?}", answer.json());
            let event = self.a.audited(&id).await;
            assert_eq!(event["user"]["username"], ADMIN.name, "{id}: {event}");
            assert_eq!(self.b.audit().events(&id), Vec::<Value>::new(), "{id}");
        }
    }

    /// The Lease of the proxy in front of cp-b, if there is one.
    async fn lease(&self) -> Option<Value> {
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/mvproxy-{}", self.b.id());
        let answer = self.b.client(ADMIN).await.get(&path).await.unwrap();
        match answer.status {
            StatusCode::OK => Some(answer.json().unwrap()),
            StatusCode::NOT_FOUND => None,
            other => panic!("{other}: {:?}", answer.json()),
        }
    }
}

/// Is it the one address in the EndpointSlice?
async fn names(admin: &Client, address: SocketAddr) -> bool {
    let answer = admin.get(SLICE).await.unwrap();
    let slice = answer.json().unwrap();
    answer.status == StatusCode::OK
        && slice["endpoints"].as_array().is_some_and(|endpoints| endpoints.len() == 1)
        && slice["endpoints"][0]["addresses"] == json!([address.ip()])
        && slice["ports"][0]["port"] == address.port()
}

fn job(name: &str) -> Bytes {
    let pod = json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "example.invalid/none"}]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"suspend": true, "template": pod}});
    Bytes::from(job.to_string())
}

async fn send(client: &Client, method: Method, path: &str, audit_id: &str, body: Bytes) -> Response {
    let fields = headers([("content-type", "application/json"), ("audit-id", audit_id)]);
    client.request(method, path, fields, body, None).await.unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_peer_is_found_by_the_slice_or_the_command_line_or_not_at_all() {
    let world = World::start().await;
    the_slice_is_enough(&world).await;
    what_is_not_allowed_is_not_asked(&world).await;
    the_command_line_needs_no_leave(&world).await;
    with_the_gate_off_all_is_local(&world).await;
}

/// The allow-list that holds when none is given, the EndpointSlice as the only source, and a peer without a proxy.
async fn the_slice_is_enough(world: &World) {
    let mut proxy = world.proxy(&["--peer-cidr", &world.port_of_a()]);
    proxy.wait_ready().await;
    let address = world.a.address();
    let row = proxy.server_row(&format!("addr:{address}")).await;
    assert_eq!((&row["address"], &row["via"], &row["ready"]), (&json!(address), &json!("apiserver"), &json!(true)), "{row}");
    let named = proxy.server_row(world.a.id()).await;
    assert!(named["address"].is_null(), "its Lease says an address, so this shows nothing: {named}");
    world.jobs_are_done_by_a(&proxy, "slice").await;
    proxy.stop().await;
}

/// With a range that the address is not in: nobody asks cp-a, and nobody is told that there are no jobs.
async fn what_is_not_allowed_is_not_asked(world: &World) {
    let mut proxy = world.proxy(&["--peer-cidr=127.0.0.0/8", &world.port_of_a()]);
    proxy.wait_for(CONFIGMAPS, StatusCode::OK, PATIENCE).await;
    let client = proxy.client(ADMIN).await;
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < Duration::from_secs(3) {
        let answer = send(&client, Method::GET, JOBS, &format!("forbidden-{count}"), Bytes::new()).await;
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "after {:?}: {:?}", begun.elapsed(), answer.json());
        count += 1;
        sleep(Duration::from_millis(50)).await;
    }
    for server in [&world.a, &world.b] {
        let asked: Vec<String> = server.audit().all().into_keys().filter(|id| id.starts_with("forbidden-")).collect();
        assert!(asked.is_empty(), "{} was asked for jobs: {asked:?}", server.hostname());
    }
    drop(client);
    proxy.stop().await;
}

/// A peer of the command line is connected to, whatever range and ports are allowed; and what the Lease says is what the flags say.
async fn the_command_line_needs_no_leave(world: &World) {
    let peer = format!("--peer-endpoint={}={}", world.a.id(), world.a.address());
    let advertised = ["--peer-advertise-ip=198.51.100.7", "--peer-advertise-port=7445"];
    let mut proxy = world.proxy(&["--peer-cidr=127.0.0.0/8", &peer, advertised[0], advertised[1]]);
    proxy.wait_ready().await;
    let row = proxy.server_row(world.a.id()).await;
    assert_eq!((&row["address"], &row["via"]), (&json!(world.a.address()), &json!("apiserver")), "{row}");
    world.jobs_are_done_by_a(&proxy, "static").await;

    until("the Lease of the proxy", PATIENCE, async || world.lease().await.is_some()).await;
    let lease = world.lease().await.unwrap();
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(annotations["mvproxy.io/peer-address"], "198.51.100.7:7445", "{lease}");
    let server: SocketAddr = annotations["mvproxy.io/server-address"].as_str().unwrap().parse().unwrap();
    assert_eq!(server.port(), world.b.address().port(), "{lease}");
    proxy.stop().await;
    assert_eq!(world.lease().await, None, "it goes with the proxy");
}

async fn with_the_gate_off_all_is_local(world: &World) {
    let gate = "--feature-gates=UnknownVersionInteroperabilityProxy=false";
    let mut proxy = world.proxy(&["--peer-cidr", &world.port_of_a(), gate]);
    proxy.wait_for(CONFIGMAPS, StatusCode::OK, PATIENCE).await;
    let client = proxy.client(ADMIN).await;
    // As long as a proxy takes to learn who serves jobs, and to write its Lease.
    for nth in 0..40 {
        let id = format!("gate-{nth}");
        assert_eq!(send(&client, Method::GET, JOBS, &id, Bytes::new()).await.status, StatusCode::NOT_FOUND, "request {nth}");
        sleep(Duration::from_millis(50)).await;
    }
    world.b.audited("gate-39").await;
    let asked: Vec<String> = world.a.audit().all().into_keys().filter(|id| id.starts_with("gate-")).collect();
    assert!(asked.is_empty(), "cp-a was asked for jobs: {asked:?}");
    let peer_port = TcpStream::connect(proxy.peers).await.map(|_| ());
    assert!(peer_port.is_err(), "there is a peer port");
    assert_eq!(world.lease().await, None, "there is a Lease that names a peer port");
    drop(client);
    proxy.stop().await;
}
