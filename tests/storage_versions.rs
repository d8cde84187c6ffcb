//! The StorageVersion API on, off, on one server only, denied, and lying; beside the proxy inside kube-apiserver and without it (bar 6 of
//! the issue "Discovery and routing"). Routing is the same every time, also that of a proxy that starts while they lie.
//!
//! `MVPROXY_REAL_VERSIONS=1.32,1.33` runs it on those; what such servers cannot do is said and left out.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use loadgen::client::Response;
use serde_json::{Value, json};
use support::http1::get_plain;
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, MVPROXY, Proxy, ServerPlan, Version, job};
use support::{headers, is_long, notice, until};
use tokio::time::sleep;

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const NO_JOBS: &str = "--runtime-config=batch/v1=false";
const STORAGE: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
/// For anything to be learned, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(90);

/// Longer than it takes to poll, and to believe that something disappeared.
fn a_while() -> Duration {
    if is_long() { Duration::from_secs(60) } else { Duration::from_secs(13) }
}

/// cp-a, which has jobs, and cp-b, which has none, with their proxies.
struct World {
    a: Apiserver,
    b: Apiserver,
    fleet: Fleet,
    // The last to go.
    plane: ControlPlane,
}

impl World {
    /// With the API on or off on either server, and both plans changed.
    async fn start(api: [bool; 2], change: fn(ServerPlan) -> ServerPlan) -> Self {
        let plane = ControlPlane::start().await;
        let [a, b] = servers(&plane, api, change).await;
        let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
        Self { a, b, fleet, plane }
    }

    /// Jobs are listed, made and deleted through both proxies, by cp-a and nobody else; and that is what both tables say.
    async fn jobs_are_done_by_a(&self, when: &str) {
        for (nth, proxy) in self.fleet.proxies.iter().enumerate() {
            let client = proxy.client(ADMIN).await;
            let name = format!("{when}-{nth}");
            for (method, path, body, expected) in [
                (Method::GET, JOBS.to_owned(), Bytes::new(), StatusCode::OK),
                (Method::POST, JOBS.to_owned(), Bytes::from(job(&name).to_string()), StatusCode::CREATED),
                (Method::DELETE, format!("{JOBS}/{name}?propagationPolicy=Background"), Bytes::new(), StatusCode::OK),
            ] {
                let id = format!("{method}-{name}");
                let answer = send(&client, method, &path, &id, body).await;
                assert_eq!(answer.status, expected, "{path} through proxy {nth}: {:?}", answer.json());
                self.a.audited(&id).await;
                assert_eq!(self.b.audit().events(&id), Vec::<Value>::new(), "{path} through proxy {nth}");
            }
            assert_eq!(servers_of_jobs(proxy).await, json!([self.a.id()]), "proxy {nth}");
        }
    }

    /// What each proxy has found out about the API at its own server.
    async fn storage_versions_are(&self, expected: [&str; 2]) {
        for ((proxy, server), expected) in self.fleet.proxies.iter().zip([&self.a, &self.b]).zip(expected) {
            let log = self.plane.path(&format!("mvproxy-{}.log", server.hostname()));
            let line = format!("storageversions: {expected}");
            let is_said = async || std::fs::read_to_string(&log).is_ok_and(|text| text.contains(&line));
            until(&format!("`{line}` in the log of the proxy of {}", server.hostname()), PATIENCE, is_said).await;
            let synced = format!("mvproxy_discovery_synced{{source=\"storageversions\"}} {}\n", u8::from(expected == "Synced"));
            let is_shown = async || get_plain(proxy.status, "/metrics").await.1.contains(&synced);
            until(&synced, PATIENCE, is_shown).await;
            let (status, checks) = get_plain(proxy.status, "/readyz?verbose").await;
            assert_eq!(status, 200, "StorageVersions are optional: {checks}");
        }
    }
}

async fn servers(plane: &ControlPlane, api: [bool; 2], change: fn(ServerPlan) -> ServerPlan) -> [Apiserver; 2] {
    let a = change(plane.server("cp-a", Version::newer()).storage_version_api(api[0]));
    let b = change(plane.server("cp-b", Version::older()).storage_version_api(api[1]).flag(NO_JOBS));
    let (mut a, mut b) = (a.launch().await, b.launch().await);
    a.wait_ready().await;
    b.wait_ready().await;
    [a, b]
}

async fn send(client: &Client, method: Method, path: &str, audit_id: &str, body: Bytes) -> Response {
    let fields = headers([("content-type", "application/json"), ("audit-id", audit_id)]);
    client.request(method, path, fields, body, None).await.unwrap()
}

/// The servers of `batch/v1/jobs` in the table of a proxy; null when it is not there.
async fn servers_of_jobs(proxy: &Proxy) -> Value {
    let (status, body) = get_plain(proxy.status, "/routes").await;
    assert_eq!(status, 200, "{body}");
    let table: Value = serde_json::from_str(&body).unwrap();
    let is_jobs = |row: &&Value| (&row["group"], &row["version"], &row["resource"]) == (&json!("batch"), &json!("v1"), &json!("jobs"));
    table["routes"].as_array().unwrap().iter().find(is_jobs).map_or(Value::Null, |row| row["servers"].clone())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn with_the_api_on_every_server() {
    let world = World::start([true, true], |plan| plan).await;
    world.jobs_are_done_by_a("first").await;
    world.storage_versions_are(["Synced", "Synced"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn with_the_api_on_no_server_and_the_in_tree_proxy_turned_off() {
    let world = World::start([false, false], |plan| plan.in_tree_proxy(false)).await;
    world.jobs_are_done_by_a("first").await;
    world.storage_versions_are(["Absent", "Absent"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn with_the_api_only_where_jobs_are() {
    with_the_api_on_one_server([true, false]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn with_the_api_only_where_no_jobs_are() {
    with_the_api_on_one_server([false, true]).await;
}

async fn with_the_api_on_one_server(api: [bool; 2]) {
    let world = World::start(api, |plan| plan).await;
    world.jobs_are_done_by_a("first").await;
    world.storage_versions_are(api.map(|on| if on { "Synced" } else { "Absent" })).await;
    // The API itself is then one that only one server serves.
    for proxy in &world.fleet.proxies {
        assert_eq!(proxy.client(ADMIN).await.get(STORAGE).await.unwrap().status, StatusCode::OK, "{api:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn beside_the_in_tree_proxy_with_the_api() {
    beside_the_in_tree_proxy(true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn beside_the_in_tree_proxy_without_the_api() {
    // Before v1.33 it needs the StorageVersion API.
    if Version::older().minor() < 33 {
        notice(&format!("LEFT OUT: the in-tree proxy without the StorageVersion API, on {:?}", Version::older()));
        return;
    }
    beside_the_in_tree_proxy(false).await;
}

/// The proxy inside kube-apiserver answers for a peer where a server is asked itself, and shows the peer's APIs as its own: no proxy of
/// ours takes that for what the server serves.
async fn beside_the_in_tree_proxy(api: bool) {
    let world = World::start([api, api], |plan| plan.in_tree_proxy(true)).await;
    world.jobs_are_done_by_a("first").await;
    let straight = world.b.client(ADMIN).await;
    let is_proxied = async || straight.get(JOBS).await.is_ok_and(|answer| answer.status == StatusCode::OK);
    until("jobs straight from cp-b, through its own proxy", PATIENCE, is_proxied).await;
    world.jobs_are_done_by_a("then").await;
    let expected = if api { "Synced" } else { "Absent" };
    world.storage_versions_are([expected, expected]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn with_the_api_denied() {
    let plane = ControlPlane::start().await;
    let [a, b] = servers(&plane, [true, true], |plan| plan).await;
    let admin = a.client(ADMIN).await;
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/mvproxy";
    let mut role = admin.get(path).await.unwrap().json().unwrap();
    let rules = role["rules"].as_array_mut().unwrap();
    let before = rules.len();
    rules.retain(|rule| rule["resources"][0] != "storageversions");
    assert_eq!(rules.len() + 1, before);
    let put = send(&admin, Method::PUT, path, "deny", role.to_string().into()).await;
    assert_eq!(put.status, StatusCode::OK);
    for server in [&a, &b] {
        let client = server.client(MVPROXY).await;
        let is_denied = async || client.get(STORAGE).await.unwrap().status == StatusCode::FORBIDDEN;
        until("the role without storageversions is in force", PATIENCE, is_denied).await;
    }
    let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let world = World { a, b, fleet, plane };
    world.jobs_are_done_by_a("first").await;
    world.storage_versions_are(["Denied", "Denied"]).await;
}

/// The StorageVersion of jobs.
async fn storage_of_jobs(client: &Client) -> Option<Value> {
    let answer = client.get(&format!("{STORAGE}/batch.jobs")).await.unwrap();
    (answer.status == StatusCode::OK).then(|| answer.json().unwrap())
}

/// The server's entry in it, if it says that the server serves jobs.
fn entry(storage: &Value, server: &Apiserver) -> Option<Value> {
    let entries = storage["status"]["storageVersions"].as_array()?;
    let of_server = entries.iter().find(|entry| entry["apiServerID"] == server.id())?;
    (of_server["servedVersions"] == json!(["batch/v1"])).then(|| of_server.clone())
}

/// Makes it say that `liar` serves jobs, and nobody else does.
async fn lie(client: &Client, liar: &Apiserver, truthful: &Apiserver) {
    for nth in 0..10 {
        let mut storage = storage_of_jobs(client).await.unwrap();
        let mut entry = entry(&storage, liar).or_else(|| entry(&storage, truthful)).unwrap();
        entry["apiServerID"] = liar.id().into();
        storage["status"]["storageVersions"] = json!([entry]);
        let (path, id) = (format!("{STORAGE}/batch.jobs/status"), format!("lie-{nth}"));
        let put = send(client, Method::PUT, &path, &id, storage.to_string().into()).await;
        match put.status {
            StatusCode::OK => return,
            // A server has written it meanwhile.
            StatusCode::CONFLICT => {}
            other => panic!("{other}: {:?}", put.json()),
        }
    }
    panic!("ten conflicts in a row");
}

/// A StorageVersion that names a server that no longer serves jobs, and later none that does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn one_that_names_the_wrong_server_misleads_nobody() {
    let plane = ControlPlane::start().await;
    let plan = |name: &str| plane.server(name, Version::newer()).storage_version_api(true);
    let (mut a, mut b) = (plan("cp-a").launch().await, plan("cp-b").launch().await);
    a.wait_ready().await;
    b.wait_ready().await;
    let admin = a.client(ADMIN).await;
    let both_listed = async || storage_of_jobs(&admin).await.is_some_and(|all| entry(&all, &a).is_some() && entry(&all, &b).is_some());
    until("both servers in the StorageVersion of jobs", PATIENCE, both_listed).await;
    let mut fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let clients = clients_of(&fleet).await;

    b.restart(|plan| plan.flag(NO_JOBS)).await;
    let still_listed = entry(&storage_of_jobs(&admin).await.unwrap(), &b).is_some();
    println!("cp-b was restarted without jobs; does its StorageVersion still list them? {still_listed}");
    all_are(&clients, "restarted", a_while(), StatusCode::OK).await;
    lie(&admin, &b, &a).await;
    all_are(&clients, "lied", a_while(), StatusCode::OK).await;
    let told = storage_of_jobs(&admin).await.unwrap();
    assert!(entry(&told, &b).is_some() && entry(&told, &a).is_none(), "somebody has put it right: {told}");
    for proxy in &fleet.proxies {
        assert_eq!(servers_of_jobs(proxy).await, json!([a.id()]));
    }

    // One that starts now has asked nobody yet, and the lie is all that there is.
    drop(clients);
    for (nth, proxy) in fleet.proxies.iter_mut().enumerate() {
        proxy.stop().await;
        proxy.relaunch();
        learn(proxy, &format!("anew-{nth}")).await;
        // Until cp-b was asked, what is said of it counts, last.
        until("cp-b was asked", PATIENCE, async || servers_of_jobs(proxy).await == json!([a.id()])).await;
    }
    let absent = |event: &Value| event["responseStatus"]["code"] == 404;
    let told = b.audit().all().into_iter().filter(|(id, events)| id.starts_with("anew-") && events.iter().any(absent));
    assert_eq!(told.map(|(id, _)| id).collect::<Vec<_>>(), Vec::<String>::new(), "cp-b was asked for jobs");
    let clients = clients_of(&fleet).await;

    // Now nobody serves them, whatever it says: cp-b would answer 404.
    a.kill().await;
    all_are(&clients, "killed", Duration::from_secs(5), StatusCode::SERVICE_UNAVAILABLE).await;
    let is_ours = |id: &String| ["restarted-", "lied-", "killed-"].iter().any(|asked| id.starts_with(*asked));
    let misled: Vec<String> = b.audit().all().into_keys().filter(is_ours).collect();
    assert!(misled.is_empty(), "cp-b was asked for jobs: {misled:?}");
}

async fn clients_of(fleet: &Fleet) -> [Client; 2] {
    [fleet.proxies[0].client(ADMIN).await, fleet.proxies[1].client(ADMIN).await]
}

/// Asks a proxy that has just been started for jobs, from its first moment until it knows who serves them: 503 or 200, and 200 in the end.
async fn learn(proxy: &Proxy, what: &str) {
    let (begun, mut count, mut good) = (Instant::now(), 0, 0);
    while good < 20 {
        assert!(begun.elapsed() < PATIENCE, "{what}: {count} answers, and the last of them not 200");
        sleep(Duration::from_millis(10)).await;
        // It may not listen yet.
        let Ok(client) = proxy.connect(ADMIN).await else { continue };
        let answer = send(&client, Method::GET, JOBS, &format!("{what}-{count}"), Bytes::new()).await;
        match answer.status {
            StatusCode::OK => good += 1,
            StatusCode::SERVICE_UNAVAILABLE => good = 0,
            other => panic!("{what}: {other} after {:?}: {:?}", begun.elapsed(), answer.json()),
        }
        count += 1;
    }
    println!("{what}: {count} answers within {:?}", begun.elapsed());
}

/// Asks for jobs through all proxies for so long; every answer has that status.
async fn all_are(clients: &[Client], what: &str, time: Duration, expected: StatusCode) {
    let (begun, mut count) = (Instant::now(), 0);
    while begun.elapsed() < time {
        for (nth, client) in clients.iter().enumerate() {
            let answer = send(client, Method::GET, JOBS, &format!("{what}-{count}"), Bytes::new()).await;
            assert_eq!(answer.status, expected, "{what}, through proxy {nth}, after {:?}: {:?}", begun.elapsed(), answer.json());
            count += 1;
        }
        sleep(Duration::from_millis(50)).await;
    }
    println!("{what}: {count} answers, all {expected}");
}
