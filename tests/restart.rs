//! A server that is killed and started again at once, as another one that serves less. Like kube-apiserver it listens long before it serves,
//! and serves before it is ready (`loadgen::twin::SlowStart`): no probe may ever find its port closed.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::StatusCode;
use loadgen::twin::{SlowStart, Storage, server_id};
use loadgen::{Client, Pki, Twin, TwinConfig};
use support::binary::{Binary, Files};
use support::{NAME, TOKEN, apis};
use tokio::time::{sleep, timeout_at};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
/// As long as a kube-apiserver takes on a quick machine.
const START: SlowStart = SlowStart { listens: Duration::from_millis(700), serves: Duration::from_millis(700) };
/// From readiness to routing by it (bar 7 of the issue "Discovery and routing"), with room for a busy machine.
const ROUTED_WITHIN: Duration = Duration::from_secs(3);
const PATIENCE: Duration = Duration::from_secs(30);

/// Two twins of one cluster. Only `old` serves jobs.
struct Cluster {
    pki: Pki,
    storage: Storage,
    plain: Twin,
    old: Twin,
}

impl Cluster {
    fn start() -> Self {
        let (pki, storage) = (Pki::new().unwrap(), Storage::default());
        let plain = Twin::start(config(&pki, &storage, "plain", false)).unwrap();
        let old = Twin::start(config(&pki, &storage, "old", true)).unwrap();
        Self { pki, storage, plain, old }
    }

    /// An mvproxy in front of one of them, which knows both, and a client for each of its shards. Only the first was ever answered.
    async fn proxy(&self, name: &str, local: SocketAddr, shards: usize) -> (Binary, Vec<Client>) {
        let files = Files::at(&self.pki, &[(local, name, &[])]);
        let mut command = files.live_command(local);
        let ports = [&self.plain, &self.old].map(|twin| twin.address().port().to_string()).join(",");
        command.args([format!("--server-id={}", server_id(name)), format!("--shards={shards}")]);
        command.args(["--peer-cidr=127.0.0.0/8".to_owned(), format!("--peer-ports={ports}")]);
        let proxy = files.start(command);
        let mut clients = Vec::new();
        for _ in 0..shards {
            clients.push(Client::connect(proxy.address(), self.pki.ca_pem(), NAME, Some(TOKEN)).await.unwrap());
        }
        let client = &clients[0];
        let began = Instant::now();
        while client.get(JOBS).await.unwrap().status != StatusCode::OK {
            assert!(began.elapsed() < PATIENCE, "jobs are not found:\n{}", proxy.log());
            sleep(Duration::from_millis(20)).await;
        }
        (proxy, clients)
    }
}

fn config(pki: &Pki, storage: &Storage, name: &str, has_jobs: bool) -> TwinConfig {
    let batch = if has_jobs { apis::batch() } else { Vec::new() };
    let config = TwinConfig::new(name, pki.serving().unwrap(), [apis::control_plane(), batch].concat());
    TwinConfig { hostname: Some(name.to_owned()), storage: Some(storage.clone()), ..config }
}

/// Until the new one is ready nobody says that there are no jobs; then everybody does.
async fn no_404_before_the_new_one_is_ready(fronts_it: bool, shards: usize) {
    let cluster = Cluster::start();
    let (name, local) = if fronts_it { ("old", cluster.old.address()) } else { ("plain", cluster.plain.address()) };
    let (proxy, clients) = cluster.proxy(name, local, shards).await;
    let Cluster { pki, storage, plain, old } = cluster;
    let port = old.address().port();
    old.abort().await;
    let again = TwinConfig { port, start: Some(START), ..config(&pki, &storage, "old", false) };
    let started = Instant::now();
    let again = Twin::start(again).unwrap();
    let ready = started + START.listens + START.serves;
    let mut early = 0;
    let mut turns = clients.iter().cycle();
    let told = loop {
        let client = turns.next().unwrap();
        let jobs = timeout_at((started + PATIENCE).into(), client.get(JOBS)).await.unwrap().unwrap();
        let now = Instant::now();
        let leases = client.get(LEASES).await.unwrap();
        assert_eq!(leases.status, StatusCode::OK, "another server has them");
        match jobs.status {
            StatusCode::NOT_FOUND if now >= ready => break now,
            // The old one's last words.
            StatusCode::OK if now < started + START.listens => {}
            status => assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "after {:?}:\n{}", now - started, proxy.log()),
        }
        early += usize::from(now < ready);
        assert!(now < ready + ROUTED_WITHIN, "still 503:\n{}", proxy.log());
        sleep(Duration::from_millis(5)).await;
    };
    println!("{early} answers before it was ready; the first 404 came {:?} later", told - ready);
    assert!(early > 0, "it was asked for nothing meanwhile");
    drop((plain, again));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_local_server_that_starts_anew_gets_nothing_before_it_is_ready() {
    no_404_before_the_new_one_is_ready(true, 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_starts_anew_gets_nothing_before_it_is_ready() {
    no_404_before_the_new_one_is_ready(false, 1).await;
}

/// The other shard has no connection that it could lose.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_one_shard_lost_gets_nothing_from_the_other() {
    no_404_before_the_new_one_is_ready(true, 2).await;
    no_404_before_the_new_one_is_ready(false, 2).await;
}
