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
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, Version};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

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
#[ignore = "on real kube-apiservers: MVPROXY_REAL=1 tests/run"]
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

    // The same with kubectl, as far as it needs no discovery.
    let got = plane.kubectl(proxy.clients, ADMIN, &["get", "--raw", &path]).await;
    assert!(String::from_utf8_lossy(&got.stdout).contains(r#""name":"one""#));
    plane.kubectl(proxy.clients, ADMIN, &["delete", "--raw", &format!("{path}?propagationPolicy=Background")]).await;
    assert_eq!(client.get(&path).await.unwrap().status, StatusCode::NOT_FOUND, "deleted, and cp-a says so");
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
async fn every_resource_is_reachable(older_flags: &[&str], least: usize, expected: &str) {
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
    assert!(differing.len() >= least && differing.iter().any(|(gvr, ..)| gvr == expected), "{}: {differing:?}", differing.len());
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
#[ignore = "on real kube-apiservers: MVPROXY_REAL=1 tests/run"]
async fn what_only_one_version_serves_is_reachable_through_both_proxies() {
    every_resource_is_reachable(&[], 1, "admissionregistration.k8s.io/v1/mutatingadmissionpolicies").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: MVPROXY_REAL=1 tests/run"]
async fn dozens_of_resources_that_one_version_has_turned_on_are_reachable() {
    every_resource_is_reachable(&["--runtime-config=api/all=true"], 20, "admissionregistration.k8s.io/v1/mutatingadmissionpolicies").await;
}
