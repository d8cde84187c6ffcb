//! Custom resources and aggregated APIs in front of real kube-apiservers: while the local server is there it alone answers for them, and
//! while it is not any peer does, as for discovery, OpenAPI and the version; never for health and metrics.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use loadgen::client::Response;
use serde_json::{Value, json};
use support::real::custom::{CRDS, THINGS, crd};
use support::real::{ADMIN, Apiserver, ControlPlane, Fleet, Proxy, Version};
use support::{headers, until};

const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
/// Of an API whose service nobody runs: kube-apiserver itself answers 503.
const NOWHERE: &str = "/apis/nowhere.example/v1/things";
/// For anything to be learned, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// For the loss of the local server to be noticed.
const NOTICED: Duration = Duration::from_secs(5);

fn api_service() -> Value {
    json!({
        "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": {"name": "v1.nowhere.example"},
        "spec": {
            "group": "nowhere.example", "version": "v1", "groupPriorityMinimum": 1000, "versionPriority": 10,
            "insecureSkipTLSVerify": true, "service": {"namespace": "default", "name": "nobody"},
        },
    })
}

fn thing(name: &str) -> Value {
    json!({"apiVersion": "custom.example/v1", "kind": "Thing", "metadata": {"name": name}})
}

/// A null object is no body.
async fn send(client: &Client, method: Method, path: &str, audit_id: &str, object: Value) -> Response {
    let fields = headers([("content-type", "application/json"), ("audit-id", audit_id)]);
    let body = if object.is_null() { Bytes::new() } else { Bytes::from(object.to_string()) };
    client.request(method, path, fields, body, None).await.unwrap()
}

async fn get(client: &Client, path: &str, audit_id: &str) -> Response {
    send(client, Method::GET, path, audit_id, Value::Null).await
}

/// The request of that id was completed by one server, and did not come to the other.
async fn was_done_by(server: &Apiserver, other: &Apiserver, audit_id: &str) {
    server.audited(audit_id).await;
    assert_eq!(other.audit().events(audit_id), Vec::<Value>::new(), "{audit_id}: {} was asked", other.hostname());
}

async fn excludes_both(proxy: &Proxy) -> bool {
    let table = proxy.routes().await;
    let row = |group: &str| json!({"group": group, "version": "v1"});
    let excluded = table["excluded"].as_array().unwrap();
    excluded.contains(&row("custom.example")) && excluded.contains(&row("nowhere.example"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn local_answers_for_them_and_any_peer_while_it_is_down() {
    let plane = ControlPlane::start().await;
    let (mut a, mut b) = (plane.server("cp-a", Version::newer()).launch().await, plane.server("cp-b", Version::newer()).launch().await);
    a.wait_ready().await;
    b.wait_ready().await;
    let fleet = Fleet::start(&plane, &[&a, &b], &[]).await;
    let proxy = &fleet.proxies[0];
    let client = proxy.client(ADMIN).await;
    for (path, object) in [(CRDS, crd()), (SERVICES, api_service())] {
        let made = send(&client, Method::POST, path, "", object).await;
        assert_eq!(made.status, StatusCode::CREATED, "{path}: {:?}", made.json());
    }
    until("both group-versions are excluded", PATIENCE, async || excludes_both(proxy).await).await;
    for server in [&a, &b] {
        let straight = server.client(ADMIN).await;
        let is_served = async || straight.get(THINGS).await.is_ok_and(|answer| answer.status == StatusCode::OK);
        until("the custom resource is served", PATIENCE, is_served).await;
        let is_known = async || straight.get(NOWHERE).await.is_ok_and(|answer| answer.status == StatusCode::SERVICE_UNAVAILABLE);
        until("the aggregated API is known", PATIENCE, is_known).await;
    }
    with_local(&client, &a, &b).await;
    a.kill().await;
    without_local(&client, &a, &b).await;
}

/// cp-a is local and there.
async fn with_local(client: &Client, a: &Apiserver, b: &Apiserver) {
    let made = send(client, Method::POST, THINGS, "make-one", thing("one")).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.json());
    was_done_by(a, b, "make-one").await;
    for nth in 0..10 {
        let (custom, aggregated) = (format!("custom-{nth}"), format!("aggregated-{nth}"));
        assert_eq!(get(client, THINGS, &custom).await.status, StatusCode::OK);
        was_done_by(a, b, &custom).await;
        assert_eq!(get(client, NOWHERE, &aggregated).await.status, StatusCode::SERVICE_UNAVAILABLE);
        was_done_by(a, b, &aggregated).await;
    }
}

/// cp-a is local and was killed.
async fn without_local(client: &Client, a: &Apiserver, b: &Apiserver) {
    let is_answered = async || client.get(THINGS).await.is_ok_and(|answer| answer.status == StatusCode::OK);
    until("the peer answers for custom resources", NOTICED, is_answered).await;
    for nth in 0..10 {
        let id = format!("orphan-{nth}");
        let list = get(client, THINGS, &id).await;
        assert_eq!(list.status, StatusCode::OK, "{:?}", list.json());
        assert_eq!(list.json().unwrap()["items"][0]["metadata"]["name"], "one");
        was_done_by(b, a, &id).await;
    }
    let made = send(client, Method::POST, THINGS, "make-two", thing("two")).await;
    assert_eq!(made.status, StatusCode::CREATED, "{:?}", made.json());
    was_done_by(b, a, "make-two").await;
    get(client, NOWHERE, "aggregated-orphan").await;
    was_done_by(b, a, "aggregated-orphan").await;

    for path in ["/version", "/openapi/v3", "/openapi/v2", "/api", "/apis", "/apis/custom.example", "/apis/custom.example/v1"] {
        let answer = get(client, path, &format!("any{path}")).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}: {:?}", answer.json());
        was_done_by(b, a, &format!("any{path}")).await;
    }
    for path in ["/metrics", "/healthz", "/livez", "/readyz", "/debug/pprof/"] {
        let answer = get(client, path, &format!("own{path}")).await;
        let status = answer.json().unwrap();
        assert_eq!((answer.status, &status["kind"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("Status")), "{path}: {status}");
    }

    // Also that there is none any more is the peer's to say.
    let deleted = send(client, Method::DELETE, &format!("{CRDS}/things.custom.example"), "delete", Value::Null).await;
    assert_eq!(deleted.status, StatusCode::OK, "{:?}", deleted.json());
    let is_gone = async || client.get(THINGS).await.is_ok_and(|answer| answer.status == StatusCode::NOT_FOUND);
    until("the custom resource is gone", PATIENCE, is_gone).await;
    assert_eq!(get(client, THINGS, "gone").await.status, StatusCode::NOT_FOUND);
    was_done_by(b, a, "gone").await;
    let asked: Vec<String> = b.audit().all().into_keys().filter(|id| id.starts_with("own/")).collect();
    assert!(asked.is_empty(), "cp-b was asked about cp-a: {asked:?}");
}
