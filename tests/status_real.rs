//! What the status port and the commands say in front of real kube-apiservers.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::process::Command;
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use serde_json::{Value, json};
use support::headers;
use support::http1::get_plain;
use support::real::{ADMIN, ALICE, ControlPlane, Fleet, MVPROXY, Proxy, Version};

/// For a proxy to learn everything, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Of a group-version that v1.36 brought.
const NEW: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";

/// The answer, when it is what was waited for.
async fn until(proxy: &Proxy, path: &str, done: impl Fn(u16, &str) -> bool) -> String {
    let begun = Instant::now();
    loop {
        let (status, body) = get_plain(proxy.status, path).await;
        if done(status, &body) {
            return body;
        }
        assert!(begun.elapsed() < PATIENCE, "{path}: {status}\n{body}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn mvproxy(arguments: &[&str]) -> (i32, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_mvproxy")).args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8(text).unwrap())
}

async fn create(client: &Client, path: &str, object: Value) {
    let body = Bytes::from(object.to_string());
    let answer = client.request(Method::POST, path, headers([("content-type", "application/json")]), body, None).await.unwrap();
    assert_eq!(answer.status, StatusCode::CREATED, "{}", String::from_utf8_lossy(&answer.body));
}

/// A pod of it that runs on that node, or would.
fn kube_proxy(node: &str, version: &str) -> Value {
    let container = json!({"name": "kube-proxy", "image": format!("example.invalid:5000/kube-proxy:{version}")});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": format!("kube-proxy-{node}"), "labels": {"k8s-app": "kube-proxy"}},
        "spec": {"nodeName": node, "automountServiceAccountToken": false, "containers": [container]},
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn what_was_learned_is_shown() {
    let (Some(older), Some(newer)) = (Version::of_minor(35), Version::of_minor(36)) else { return };
    let plane = ControlPlane::start().await;
    let old = plane.server("cp-a", older).start().await;
    let new = plane.server("cp-b", newer).start().await;
    let fleet = Fleet::start(&plane, &[&old, &new], &[]).await;
    let proxy = &fleet.proxies[0];
    let port = proxy.status.port().to_string();

    let checks = until(proxy, "/readyz?verbose", |status, _| status == 200).await;
    for name in ["shards", "snapshot", "discovery-leases", "discovery-apiservices", "discovery-own-lease", "servers-asked", "local-server"]
    {
        assert!(checks.contains(&format!("[+]{name} ok\n")), "{checks}");
    }
    assert!(!checks.contains("storageversions") && checks.ends_with("readyz check passed\n"), "{checks}");

    let table: Value = serde_json::from_str(&until(proxy, "/routes", |status, _| status == 200).await).unwrap();
    let server = |id: &str| table["servers"].as_array().unwrap().iter().find(|server| server["id"] == id).unwrap();
    for (id, version, local) in [(old.id(), "v1.35.", true), (new.id(), "v1.36.", false)] {
        assert!(server(id)["version"].as_str().unwrap().starts_with(version), "{}", server(id));
        assert_eq!((&server(id)["local"], &server(id)["ready"]), (&local.into(), &true.into()));
    }
    let (code, explained) = mvproxy(&["explain", "GET", NEW, "--status-port", &port, "-o", "json"]);
    let explained: Value = serde_json::from_str(&explained).unwrap();
    assert_eq!((code, &explained["guard"]), (0, &"served-by-peers".into()));
    assert_eq!(explained["candidates"][0]["id"], new.id());
    assert_eq!(proxy.client(ADMIN).await.get(NEW).await.unwrap().status, StatusCode::OK);
    let row = r#"apiserver_rerouted_request_total{code="200",group="admissionregistration.k8s.io",version="v1",resource="mutatingadmissionpolicies"} 1"#;
    until(proxy, "/metrics", |_, page| page.contains(row)).await;

    let kubeconfig = plane.kubeconfig(old.address(), MVPROXY).display().to_string();
    let ca = plane.path("ca.crt").display().to_string();
    let skew = ["skew", "--status-port", &port, "--kubeconfig", &kubeconfig, "--ca-file", &ca];
    let node = |name: &str, version: &str| json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"nodeInfo": {"kubeletVersion": version}}});
    let admin = old.client(ADMIN).await;
    create(&admin, "/api/v1/nodes", node("n-1", "v1.35.0")).await;
    // Nobody makes one without kube-controller-manager.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}});
    create(&admin, "/api/v1/namespaces/kube-system/serviceaccounts", account).await;
    create(&admin, "/api/v1/namespaces/kube-system/pods", kube_proxy("n-1", "v1.34.7")).await;
    let (code, report) = mvproxy(&skew);
    assert_eq!(code, 0, "{report}");
    assert!(report.contains("kubelet") && report.contains("mutatingadmissionpolicies") && !report.contains("denied"), "{report}");
    assert!(report.contains("kube-proxy") && report.contains("v1.34.7") && !report.contains("unknown"), "{report}");
    let hers = plane.kubeconfig(old.address(), ALICE).display().to_string();
    let (code, report) = mvproxy(&["skew", "--status-port", &port, "--kubeconfig", &hers, "--ca-file", &ca]);
    assert_eq!(code, 0, "{report}");
    assert!(report.contains("unknown: kubelet: denied (403)") && report.contains("unknown: kube-proxy: denied (403)"), "{report}");
    assert!(report.contains("as far as is known"), "{report}");
    create(&admin, "/api/v1/nodes", node("n-2", "v1.36.0")).await;
    let (code, report) = mvproxy(&skew);
    assert_eq!(code, 1, "{report}");
    assert!(report.contains("outside Kubernetes' version skew policy: kubelet of n-2 is v1.36, newer than kube-apiserver"), "{report}");
}

/// Issue 5: without the right to list CRDs nothing goes to peers, and it is not ready, with the reason.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_right_that_is_missing_is_a_reason() {
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).flag("--runtime-config=batch/v1=false").start().await;
    let peer = plane.server("cp-b", Version::newer()).start().await;
    let admin = server.client(ADMIN).await;
    let path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/mvproxy";
    let mut role = admin.get(path).await.unwrap().json().unwrap();
    let rules = role["rules"].as_array_mut().unwrap();
    let before = rules.len();
    rules.retain(|rule| rule["resources"][0] != "customresourcedefinitions");
    assert_eq!(rules.len() + 1, before);
    let body = Bytes::from(role.to_string());
    let put = admin.request(Method::PUT, path, headers([("content-type", "application/json")]), body, None).await.unwrap();
    assert_eq!(put.status, StatusCode::OK);

    let fleet = Fleet::launch(&plane, &[&server, &peer], &[]);
    let denied = "[-]discovery-customresourcedefinitions failed: denied: ";
    let checks = until(&fleet.proxies[0], "/readyz", |status, body| status == 500 && body.contains(denied)).await;
    assert!(checks.ends_with("readyz check failed\n"), "{checks}");
    assert_eq!(get_plain(fleet.proxies[0].status, "/livez").await, (200, "ok".to_owned()));

    assert_eq!(peer.client(ADMIN).await.get(JOBS).await.unwrap().status, StatusCode::OK, "the peer has what local has not");
    let client = fleet.proxies[0].client(ADMIN).await;
    for nth in 0..20 {
        let id = format!("unrouted-{nth}");
        let answer = client.request(Method::GET, JOBS, headers([("audit-id", &*id)]), Bytes::new(), None).await.unwrap();
        assert_eq!(answer.status, StatusCode::SERVICE_UNAVAILABLE, "it may be a custom resource, for all that is known");
        assert_eq!(peer.audit().events(&id), Vec::<Value>::new(), "{id} went to the peer");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
