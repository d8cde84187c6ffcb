//! mvproxy in front of real kube-apiservers that serve different APIs: what only a peer serves is answered by the peer.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use loadgen::client::Response;
use serde_json::{Value, json};
use support::headers;
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, Proxy, Version};
use support::tools::{curl, run};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
/// Of every kube-apiserver's certificate, and so of the proxy's.
const NAME: &str = "kubernetes.default.svc";
/// New in v1.36.
const NEW_IN_36: &str = "admissionregistration.k8s.io/v1/mutatingadmissionpolicies";

fn job(name: &str) -> Bytes {
    let container = json!({"name": "c", "image": "example.invalid/none"});
    let pod = json!({"spec": {"restartPolicy": "Never", "containers": [container]}});
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": pod, "suspend": true}});
    Bytes::from(job.to_string())
}

async fn send(client: &Client, method: Method, path: &str, content: &str, body: Bytes) -> Response {
    client.request(method, path, headers([("content-type", content)]), body, None).await.unwrap()
}

/// The server that audited the answer's request, of these.
async fn served_by<'a>(answer: &Response, servers: &[&'a Apiserver]) -> &'a str {
    let id = answer.header("audit-id").unwrap().to_owned();
    let begun = Instant::now();
    loop {
        for server in servers {
            if !server.audit().events(&id).is_empty() {
                return servers.iter().find(|other| other.id() == server.id()).unwrap().hostname();
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(10), "nobody audited {id}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Bar 1: jobs are listed, created, patched, watched and deleted through the proxy of a server that has them turned off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn what_local_has_turned_off_is_done_by_the_peer() {
    let plane = ControlPlane::start().await;
    let a = plane.server("cp-a", Version::newer()).start().await;
    let b = plane.server("cp-b", Version::newer()).flag("--runtime-config=batch/v1=false").start().await;
    let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let proxy = &fleet.proxies[1];

    let direct = b.client(ADMIN).await.get(JOBS).await.unwrap();
    assert_eq!(direct.status, StatusCode::NOT_FOUND, "the server itself has no jobs");
    let client = proxy.client(ADMIN).await;
    let list = client.get(JOBS).await.unwrap();
    assert_eq!((list.status, list.json().unwrap()["kind"].as_str()), (StatusCode::OK, Some("JobList")));
    assert_eq!(served_by(&list, &[&a, &b]).await, "cp-a");

    let mut watch = client.watch(&format!("{JOBS}?watch=true")).await.unwrap();
    let made = send(&client, Method::POST, JOBS, "application/json", job("one")).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.json());
    let event = watch.next_event().await.unwrap().unwrap();
    assert_eq!((event["type"].as_str(), event["object"]["metadata"]["name"].as_str()), (Some("ADDED"), Some("one")));
    let path = format!("{JOBS}/one");
    let patch = Bytes::from_static(br#"{"metadata":{"labels":{"patched":"yes"}}}"#);
    let patched = send(&client, Method::PATCH, &path, "application/merge-patch+json", patch).await;
    assert_eq!((patched.status, &patched.json().unwrap()["metadata"]["labels"]["patched"]), (StatusCode::OK, &json!("yes")));

    kubectl_and_curl_do_the_same(&plane, proxy, &a).await;
    assert_eq!(client.get(&path).await.unwrap().status, StatusCode::OK, "the first one is still there");
}

/// A job is made, read and deleted with kubectl, as far as that needs no discovery, and changed with curl. `server` is the one that has jobs.
async fn kubectl_and_curl_do_the_same(plane: &ControlPlane, proxy: &Proxy, server: &Apiserver) {
    let (path, file) = (format!("{JOBS}/two"), plane.path("two.json"));
    std::fs::write(&file, job("two")).unwrap();
    let kubectl = async |arguments: &[&str]| {
        let output = plane.kubectl(proxy.clients, ADMIN, arguments).await;
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let made = kubectl(&["create", "--raw", JOBS, "-f", file.to_str().unwrap()]).await;
    assert!(made.contains(r#""name":"two""#) && made.contains(r#""kind":"Job""#), "{made}");
    let got = kubectl(&["get", "--raw", &path]).await;
    assert!(got.contains(r#""name":"two""#), "{got}");

    let mut curl = curl();
    curl.arg("--fail-with-body").arg("--cacert").arg(plane.path("ca.crt"));
    curl.args(["--resolve", &format!("{NAME}:{}:{}", proxy.clients.port(), proxy.clients.ip())]);
    curl.args(["-H", &format!("Authorization: Bearer {}", ADMIN.token), "-H", "Audit-ID: patched-with-curl"]);
    curl.args(["-X", "PATCH", "-H", "Content-Type: application/merge-patch+json"]);
    curl.args(["--data", r#"{"metadata":{"labels":{"patched":"with-curl"}}}"#, &format!("https://{NAME}:{}{path}", proxy.clients.port())]);
    let patched: Value = serde_json::from_slice(&run(curl).await.stdout).unwrap();
    assert_eq!(patched["metadata"]["labels"]["patched"], json!("with-curl"));
    server.audited("patched-with-curl").await;

    kubectl(&["delete", "--raw", &format!("{path}?propagationPolicy=Background")]).await;
    let answer = proxy.client(ADMIN).await.get(&path).await.unwrap();
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "deleted");
    assert_eq!(served_by(&answer, &[server]).await, server.hostname(), "and the one that has jobs says so");
}

/// Every resource of a server's own aggregated discovery that can be listed, by the path of its list.
async fn lists(server: &Apiserver) -> BTreeMap<String, String> {
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
        application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let client = server.client(ADMIN).await;
    let mut lists = BTreeMap::new();
    for path in ["/api", "/apis"] {
        let answer = client.request(Method::GET, path, headers([("accept", AGGREGATED)]), Bytes::new(), None).await.unwrap();
        for group in answer.json().unwrap()["items"].as_array().unwrap() {
            for version in group["versions"].as_array().unwrap() {
                for resource in version["resources"].as_array().into_iter().flatten() {
                    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    let group = text(&group["metadata"]["name"]);
                    let (version, resource_name) = (text(&version["version"]), text(&resource["resource"]));
                    let can_list = resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!("list")));
                    if can_list {
                        let root = if group.is_empty() { "/api".to_owned() } else { format!("/apis/{group}") };
                        lists.insert(format!("{group}/{version}/{resource_name}"), format!("{root}/{version}/{resource_name}"));
                    }
                }
            }
        }
    }
    lists
}

/// Bar 2: whatever only one of two versions serves is reachable through both proxies, and the audit log of that one shows it.
async fn every_resource_is_reachable(older_flags: &[&str], least: usize) {
    let plane = ControlPlane::start().await;
    let plan = older_flags.iter().fold(plane.server("cp-a", Version::older()), |plan, flag| plan.flag(flag));
    let old = plan.start().await;
    let new = plane.server("cp-b", Version::newer()).start().await;
    let fleet = Fleet::start(&plane, &[&old, &new], &[]).await;
    let (of_old, of_new) = (lists(&old).await, lists(&new).await);
    let only = |these: &BTreeMap<String, String>, those: &BTreeMap<String, String>, name: &'static str| {
        let names = these.iter().filter(|(gvr, _)| !those.contains_key(*gvr));
        names.map(|(gvr, path)| (gvr.clone(), path.clone(), name)).collect::<BTreeSet<_>>()
    };
    let differing: BTreeSet<_> = only(&of_old, &of_new, "cp-a").union(&only(&of_new, &of_old, "cp-b")).cloned().collect();
    let versions = (Version::older().minor(), Version::newer().minor());
    if versions == (35, 36) {
        let has_new = differing.iter().any(|(gvr, ..)| gvr == NEW_IN_36);
        assert!(differing.len() >= least && has_new, "{}: {differing:?}", differing.len());
    } else if differing.is_empty() {
        // Nobody knows beforehand in what two other versions differ; with nothing, there is nothing to reach.
        println!("NOTHING TESTED: discovery finds no difference between v1.{} and v1.{}", versions.0, versions.1);
        return;
    }
    for proxy in &fleet.proxies {
        let client = proxy.client(ADMIN).await;
        for (gvr, path, server) in &differing {
            let answer = client.get(path).await.unwrap();
            assert_eq!(answer.status, StatusCode::OK, "{gvr}");
            assert_eq!(served_by(&answer, &[&old, &new]).await, *server, "{gvr}");
        }
    }
    println!("{} resources on one of the two, each reached through both proxies", differing.len());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn what_only_one_version_serves_is_reachable_through_both_proxies() {
    every_resource_is_reachable(&[], 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn dozens_of_resources_that_one_version_has_turned_on_are_reachable() {
    every_resource_is_reachable(&["--runtime-config=api/all=true"], 20).await;
}
