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
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, Proxy, Version};
use support::tools::{curl, run};
use support::{headers, notice};

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

/// The one server of these that the answer's request came to, once.
async fn served_by<'a>(answer: &Response, servers: &[&'a Apiserver]) -> &'a str {
    let id = answer.header("audit-id").unwrap().to_owned();
    let begun = Instant::now();
    loop {
        // A server logs that before it does anything, so nobody is missing here once the client has its answer.
        let received = |server: &Apiserver| server.audit().events(&id).iter().filter(|event| event["stage"] == "RequestReceived").count();
        let names: Vec<&str> = servers.iter().flat_map(|&server| std::iter::repeat_n(server.hostname(), received(server))).collect();
        if let Some(name) = names.first() {
            assert_eq!(names.len(), 1, "{id} came to {names:?}");
            return name;
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

    kubectl_and_curl_do_the_same(&plane, proxy, [&a, &b]).await;
    assert_eq!(client.get(&path).await.unwrap().status, StatusCode::OK, "the first one is still there");
}

/// A job is made, read and deleted with kubectl, as far as that needs no discovery, and changed with curl. The first server has jobs.
async fn kubectl_and_curl_do_the_same(plane: &ControlPlane, proxy: &Proxy, servers: [&Apiserver; 2]) {
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
    servers[0].audited("patched-with-curl").await;

    kubectl(&["delete", "--raw", &format!("{path}?propagationPolicy=Background")]).await;
    let answer = proxy.client(ADMIN).await.get(&path).await.unwrap();
    assert_eq!(answer.status, StatusCode::NOT_FOUND, "deleted");
    assert_eq!(served_by(&answer, &servers).await, servers[0].hostname(), "and the one that has jobs says so");
}

/// How a resource is asked for: by its list or, where there is none, by making an empty one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Way {
    List(String),
    Create(String),
    /// There may be others, which nobody knows yet: then this test has to learn them.
    Unknown {
        path: String,
        verbs: String,
    },
}

impl Way {
    /// Of a resource in aggregated discovery, below the path of its group-version.
    fn of(root: &str, resource: &Value) -> Self {
        let can = |verb: &str| resource["verbs"].as_array().is_some_and(|verbs| verbs.contains(&json!(verb)));
        let name = resource["resource"].as_str().unwrap();
        let path = format!("{root}/{name}");
        match resource["scope"].as_str() {
            _ if can("list") => Self::List(path),
            Some("Namespaced") if can("create") => Self::Create(format!("{root}/namespaces/default/{name}")),
            _ if can("create") => Self::Create(path),
            _ => Self::Unknown { path, verbs: resource["verbs"].to_string() },
        }
    }

    /// Asks for it. A server that has it need not like an empty one, and says so itself.
    async fn ask(&self, client: &Client) -> Response {
        match self {
            Self::List(path) => {
                let answer = client.get(path).await.unwrap();
                assert_eq!(answer.status, StatusCode::OK, "{path}");
                answer
            }
            Self::Create(path) => {
                let answer = send(client, Method::POST, path, "application/json", Bytes::from_static(b"{}")).await;
                let status = answer.status;
                let is_said = status.is_success() || status.is_client_error() && status != StatusCode::NOT_FOUND;
                assert!(is_said, "{path}: {status}: {:?}", answer.json());
                answer
            }
            Self::Unknown { path, verbs } => panic!("{path} can neither be listed nor created: {verbs}"),
        }
    }
}

/// Every resource of a server's own aggregated discovery, and how to ask for it.
async fn resources(server: &Apiserver) -> BTreeMap<String, Way> {
    const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
        application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let client = server.client(ADMIN).await;
    let mut resources = BTreeMap::new();
    for path in ["/api", "/apis"] {
        let answer = client.request(Method::GET, path, headers([("accept", AGGREGATED)]), Bytes::new(), None).await.unwrap();
        for group in answer.json().unwrap()["items"].as_array().unwrap() {
            let name = group["metadata"]["name"].as_str().unwrap_or_default();
            let root = if name.is_empty() { path.to_owned() } else { format!("{path}/{name}") };
            for version in group["versions"].as_array().unwrap() {
                let number = version["version"].as_str().unwrap();
                for resource in version["resources"].as_array().into_iter().flatten() {
                    let gvr = format!("{name}/{number}/{}", resource["resource"].as_str().unwrap());
                    resources.insert(gvr, Way::of(&format!("{root}/{number}"), resource));
                }
            }
        }
    }
    resources
}

/// Bar 2: whatever only one of two versions serves is reachable through both proxies, and the audit log of that one shows it.
/// `flags` are those of the older and of the newer one; at least so many are listed, and so many created.
async fn every_resource_is_reachable(flags: [&[&str]; 2], least: [usize; 2]) {
    let plane = ControlPlane::start().await;
    let plan = |name, version, flags: &[&str]| flags.iter().fold(plane.server(name, version), |plan, flag| plan.flag(flag));
    let old = plan("cp-a", Version::older(), flags[0]).start().await;
    let new = plan("cp-b", Version::newer(), flags[1]).start().await;
    let fleet = Fleet::start(&plane, &[&old, &new], &[]).await;
    let (of_old, of_new) = (resources(&old).await, resources(&new).await);
    let only = |these: &BTreeMap<String, Way>, those: &BTreeMap<String, Way>, name: &'static str| {
        let names = these.iter().filter(|(gvr, _)| !those.contains_key(*gvr));
        names.map(|(gvr, way)| (gvr.clone(), way.clone(), name)).collect::<BTreeSet<_>>()
    };
    let differing: BTreeSet<_> = only(&of_old, &of_new, "cp-a").union(&only(&of_new, &of_old, "cp-b")).cloned().collect();
    let created = differing.iter().filter(|(_, way, _)| matches!(way, Way::Create(_))).count();
    let counts = [differing.len() - created, created];
    let versions = (Version::older().minor(), Version::newer().minor());
    if versions == (35, 36) {
        let has_new = differing.iter().any(|(gvr, ..)| gvr == NEW_IN_36);
        assert!(counts[0] >= least[0] && counts[1] >= least[1] && has_new, "{counts:?}: {differing:?}");
    } else if differing.is_empty() {
        // Nobody knows beforehand in what two other versions differ; with nothing, there is nothing to reach.
        notice(&format!("NOTHING TESTED: discovery finds no difference between v1.{} and v1.{}", versions.0, versions.1));
        return;
    }
    for proxy in &fleet.proxies {
        let client = proxy.client(ADMIN).await;
        for (gvr, way, server) in &differing {
            let answer = way.ask(&client).await;
            assert_eq!(served_by(&answer, &[&old, &new]).await, *server, "{gvr}");
        }
    }
    println!("{counts:?} resources, listed and created, on one of the two, each reached through both proxies");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn what_only_one_version_serves_is_reachable_through_both_proxies() {
    every_resource_is_reachable([&[], &[]], [1, 0]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn dozens_of_resources_that_one_version_has_turned_on_are_reachable() {
    // The reviews of that group cannot be listed, and one of them has a namespace.
    let flags = ["--runtime-config=api/all=true", "--runtime-config=authorization.k8s.io/v1=false"];
    every_resource_is_reachable([&flags[..1], &flags[1..]], [20, 4]).await;
}
