//! etcd away from under real kube-apiservers, frozen or killed (bar 5 of the issue "Discovery and routing"): the servers go on as well as
//! they can, and so does what is in front of them.
//!
//! `MVPROXY_LONG=1` keeps it away for a minute where else ten seconds have to do.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use serde_json::{Value, json};
use support::http1::get_plain;
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, Proxy, Version, alone, job};
use support::{headers, is_long};
use tokio::time::{sleep, timeout};

const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";
/// cp-b has none: its proxy gets them from cp-a.
const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// For everything to be known, and to be well again.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long nothing may change before it is held for settled.
const CALM: Duration = Duration::from_secs(3);
/// A server answers `?timeout=3s` sooner, whatever it answers.
const HANG: Duration = Duration::from_secs(15);
/// Reads of what servers have in memory, while others wait for etcd.
const CACHED_READS: usize = 25;

fn a_while() -> Duration {
    if is_long() { Duration::from_secs(60) } else { Duration::from_secs(10) }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Frozen,
    Killed,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_frozen_etcd_changes_no_routing_and_kills_no_server() {
    without_etcd(Way::Frozen).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_killed_etcd_changes_no_routing_and_kills_no_server() {
    without_etcd(Way::Killed).await;
}

async fn without_etcd(way: Way) {
    let _alone = alone().await;
    let mut plane = ControlPlane::start().await;
    let a = plane.server("cp-a", Version::newer()).start().await;
    let b = plane.server("cp-b", Version::newer()).flag("--runtime-config=batch/v1=false").start().await;
    let servers = [&a, &b];
    let fleet = Fleet::start(&plane, &servers, &[]).await;
    let clients = [fleet.proxies[0].client(ADMIN).await, fleet.proxies[1].client(ADMIN).await];
    create(&clients[1], "before").await;
    for client in &clients {
        well(client, "before").await;
    }
    let tables = [settled(&fleet.proxies[0]).await, settled(&fleet.proxies[1]).await];

    match way {
        Way::Frozen => plane.etcd().freeze(),
        Way::Killed => plane.kill_etcd().await,
    }
    let (begun, mut through, mut direct) = (Instant::now(), Outcomes::new(), Outcomes::new());
    while begun.elapsed() < a_while() {
        tokio::join!(waiting(&clients, servers, &mut through, &mut direct), cached(&clients));
        for (proxy, table) in fleet.proxies.iter().zip(&tables) {
            unchanged(proxy, table, &servers).await;
        }
    }
    println!("{way:?} for {:?}: straight from the servers {direct:?}, through the proxies {through:?}", begun.elapsed());
    assert!(!direct.contains_key(&Outcome::Hang), "{way:?}: the servers themselves hang: {direct:?}");
    for outcome in through.keys() {
        let is_like_servers = match outcome {
            Outcome::Status(504) | Outcome::Reset => true,
            Outcome::Status(_) | Outcome::Cut(_) => direct.contains_key(outcome),
            // A server may end a connection with a request that took too long; a proxy has others on it.
            Outcome::Lost | Outcome::Hang => false,
        };
        assert!(is_like_servers, "{way:?}: {outcome:?} through a proxy; straight from the servers {direct:?}");
    }
    assert!(clients.iter().all(Client::alive), "a connection to a proxy ended");

    match way {
        Way::Frozen => plane.etcd().thaw(),
        Way::Killed => plane.start_etcd().await,
    }
    let back = Instant::now();
    for client in &clients {
        well(client, "before").await;
    }
    println!("{way:?}: well again {:?} after etcd was back", back.elapsed());
    for (proxy, table) in fleet.proxies.iter().zip(&tables) {
        unchanged(proxy, table, &servers).await;
    }
    let mut watch = clients[0].watch(&format!("{CONFIGMAPS}?watch=true&fieldSelector=metadata.name=after")).await.unwrap();
    create(&clients[1], "after").await;
    let event = timeout(PATIENCE, watch.next_event()).await.unwrap().unwrap().unwrap();
    assert_eq!(event["object"]["metadata"]["name"], "after", "{event}");
}

/// What came of a request.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    Status(u16),
    /// A reset before the head of the answer.
    Reset,
    /// The connection ended.
    Lost,
    /// A head of that status, and then not all of the body.
    Cut(u16),
    /// Nothing within [`HANG`].
    Hang,
}

/// What came, and how often.
type Outcomes = BTreeMap<Outcome, usize>;

/// Reads that need etcd: as each server answers them itself, and as they are answered through the proxies, by local and by a peer.
async fn waiting(clients: &[Client; 2], [a, b]: [&Apiserver; 2], through: &mut Outcomes, direct: &mut Outcomes) {
    let (map, job) = (format!("{CONFIGMAPS}/before?timeout=3s"), format!("{JOBS}/before?timeout=3s"));
    // A server may end a connection with a request that took too long: these are new each time.
    let (to_a, to_b) = (a.client(ADMIN).await, b.client(ADMIN).await);
    let (own, peers) = (&clients[0], &clients[1]);
    let straight = async { tokio::join!(outcome(&to_a, &map), outcome(&to_a, &job), outcome(&to_b, &map), outcome(&to_b, &map)) };
    let proxied = async { tokio::join!(outcome(own, &map), outcome(own, &job), outcome(peers, &map), outcome(peers, &job)) };
    let (straight, proxied) = tokio::join!(straight, proxied);
    for (outcomes, (one, two, three, four)) in [(direct, straight), (through, proxied)] {
        for outcome in [one, two, three, four] {
            *outcomes.entry(outcome).or_default() += 1;
        }
    }
}

async fn outcome(client: &Client, path: &str) -> Outcome {
    let asked = async {
        let mut answer = match client.watch(path).await {
            Ok(answer) => answer,
            Err(error) if error.is_reset() => return Outcome::Reset,
            Err(error) => {
                println!("{path}: {error}");
                return Outcome::Lost;
            }
        };
        loop {
            match answer.next_chunk().await {
                Ok(Some(_)) => {}
                Ok(None) => return Outcome::Status(answer.status.as_u16()),
                Err(_) => return Outcome::Cut(answer.status.as_u16()),
            }
        }
    };
    timeout(HANG, asked).await.unwrap_or(Outcome::Hang)
}

/// What servers have in memory stays to be had, through both proxies, from local and from a peer.
async fn cached(clients: &[Client; 2]) {
    let paths = [CONFIGMAPS.to_owned(), format!("{CONFIGMAPS}/before"), JOBS.to_owned(), format!("{JOBS}/before")];
    for _ in 0..CACHED_READS {
        for client in clients {
            for path in &paths {
                let answer = client.get(&format!("{path}?resourceVersion=0")).await.unwrap();
                assert_eq!(answer.status, StatusCode::OK, "{path}: {:?}", answer.json());
            }
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// What a proxy routes by: its generation, who is there, and who serves what.
async fn table(proxy: &Proxy) -> Value {
    let (status, body) = get_plain(proxy.status, "/routes").await;
    assert_eq!(status, 200, "{body}");
    let all: Value = serde_json::from_str(&body).unwrap();
    let rows = all["servers"].as_array().unwrap().iter();
    let servers: Vec<_> = rows.map(|row| json!([row["id"], row["address"], row["via"], row["ready"], row["gone"]])).collect();
    json!([all["generation"], all["complete"], servers, all["routes"], all["excluded"]])
}

/// Waits until a proxy has learned everything.
async fn settled(proxy: &Proxy) -> Value {
    let begun = Instant::now();
    let mut before = table(proxy).await;
    loop {
        sleep(CALM).await;
        let now = table(proxy).await;
        if now == before && get_plain(proxy.status, "/readyz").await.0 == 200 {
            return now;
        }
        assert!(begun.elapsed() < PATIENCE, "the table still changes: {} after {}", now[0], before[0]);
        before = now;
    }
}

/// The table is what it was, nobody is held for dead, and the proxy is ready.
async fn unchanged(proxy: &Proxy, before: &Value, servers: &[&Apiserver]) {
    let now = table(proxy).await;
    assert_eq!((&now[0], &now[2]), (&before[0], &before[2]), "generation and servers");
    assert_eq!(&now, before);
    let (_, page) = get_plain(proxy.status, "/metrics").await;
    for server in servers {
        let ready = format!("mvproxy_server_ready{{server=\"{}\"}} 1\n", server.id());
        assert!(page.contains(&ready), "{} is held for dead:\n{page}", server.hostname());
    }
    let unreachable = page.lines().find(|line| line.starts_with("mvproxy_server_unreachable_shards{") && !line.ends_with(" 0"));
    assert_eq!(unreachable, None);
    let (status, checks) = get_plain(proxy.status, "/readyz?verbose").await;
    assert_eq!(status, 200, "{checks}");
}

/// Makes a ConfigMap and a Job of that name.
async fn create(client: &Client, name: &str) {
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    for (path, object) in [(JOBS, job(name)), (CONFIGMAPS, map)] {
        let (fields, body) = (headers([("content-type", "application/json")]), Bytes::from(object.to_string()));
        let made = client.request(Method::POST, path, fields, body, None).await.unwrap();
        assert_eq!(made.status, StatusCode::CREATED, "{path}: {:?}", made.json());
    }
}

/// Waits until that ConfigMap and that Job are answered from etcd and from memory.
async fn well(client: &Client, name: &str) {
    let begun = Instant::now();
    for path in [CONFIGMAPS, JOBS] {
        for query in ["timeout=3s", "resourceVersion=0"] {
            let path = format!("{path}/{name}?{query}");
            let mut last = outcome(client, &path).await;
            while last != Outcome::Status(200) {
                assert!(begun.elapsed() < PATIENCE, "{path}: {last:?}");
                sleep(Duration::from_millis(50)).await;
                last = outcome(client, &path).await;
            }
        }
    }
}
