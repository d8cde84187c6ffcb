//! The harness of real control planes itself, and what the rest of the project takes for granted about real kube-apiservers.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::collections::BTreeSet;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, StatusCode};
use loadgen::Client;
use loadgen::client::Response;
use serde_json::{Value, json};
use support::headers;
use support::real::{ADMIN, ALICE, Apiserver, ControlPlane, MVPROXY, Version, own_ip};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";

/// What a client that wants a server's own aggregated discovery sends (kubernetes.md §1).
const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
    application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
    application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";

/// Every `group/version/resource` of a server's aggregated discovery.
async fn served(server: &Apiserver) -> BTreeSet<String> {
    let client = server.client(MVPROXY).await;
    let mut served = BTreeSet::new();
    for path in ["/api", "/apis"] {
        let answer = client.request(Method::GET, path, headers([("accept", AGGREGATED)]), Bytes::new(), None).await.unwrap();
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        for group in list(&answer.json().unwrap()["items"]) {
            for version in list(&group["versions"]) {
                for resource in list(&version["resources"]) {
                    let name = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                    let group = name(&group["metadata"]["name"]);
                    served.insert(format!("{group}/{}/{}", name(&version["version"]), name(&resource["resource"])));
                }
            }
        }
    }
    served
}

fn list(value: &Value) -> Vec<Value> {
    value.as_array().cloned().unwrap_or_default()
}

/// The identity Leases by name.
async fn identity_leases(client: &Client) -> BTreeSet<String> {
    let path = format!("{LEASES}?labelSelector=apiserver.kubernetes.io/identity=kube-apiserver");
    let leases = client.get(&path).await.unwrap().json().unwrap();
    list(&leases["items"]).iter().map(|lease| lease["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn two_versions_share_one_etcd_and_differ_in_what_they_serve() {
    let plane = ControlPlane::start().await;
    let old = plane.server("cp-a", Version::older()).launch().await;
    let new = plane.server("cp-b", Version::newer()).start().await;
    let mut old = old;
    old.wait_ready().await;

    let admin = new.client(ADMIN).await;
    let ids = BTreeSet::from([old.id().to_owned(), new.id().to_owned()]);
    support::until("both identity Leases", Duration::from_secs(30), async || identity_leases(&admin).await == ids).await;
    for server in [&old, &new] {
        let version = server.client(ADMIN).await.get("/version").await.unwrap().json().unwrap();
        assert_eq!(version["minor"], server.version().minor().to_string(), "{version}");
    }

    let differing: BTreeSet<_> = served(&old).await.symmetric_difference(&served(&new).await).cloned().collect();
    println!("{:?} and {:?} differ in {differing:?}", old.version(), new.version());
    if (old.version(), new.version()) == (Version::V1_35, Version::V1_36) {
        for resource in ["mutatingadmissionpolicies", "mutatingadmissionpolicybindings"] {
            assert!(differing.contains(&format!("admissionregistration.k8s.io/v1/{resource}")), "{differing:?}");
        }
    }

    // What one of them writes, the other reads.
    old.kubectl(&["create", "configmap", "greeting", "--from-literal=hello=world", "--validate=ignore"]).await;
    let read = plane.kubectl(new.address(), ADMIN, &["get", "--raw", "/api/v1/namespaces/default/configmaps/greeting"]).await;
    let read: Value = serde_json::from_slice(&read.stdout).unwrap();
    assert_eq!(read["data"]["hello"], "world");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_server_is_stopped_killed_frozen_and_restarted() {
    let plane = ControlPlane::start().await;
    let mut steady = plane.server("cp-a", Version::newer()).launch().await;
    let mut server = plane.server("cp-b", Version::newer()).start().await;
    steady.wait_ready().await;
    let (admin, address) = (steady.client(ADMIN).await, server.address());
    let has_lease = async |id: &str| identity_leases(&admin).await.contains(id);
    support::until("the Lease of cp-b", Duration::from_secs(30), async || has_lease(server.id()).await).await;

    // A frozen server answers nothing and goes on where it was.
    let client = server.client(ADMIN).await;
    server.freeze();
    let waiting = tokio::time::timeout(Duration::from_secs(1), client.get("/version")).await;
    assert!(waiting.is_err(), "a frozen server answered: {waiting:?}");
    server.thaw();
    assert_eq!(client.get("/version").await.unwrap().status, StatusCode::OK);

    // SIGKILL leaves the Lease behind, and nothing listens.
    let pid = server.pid();
    let status = server.kill().await;
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(libc::SIGKILL));
    assert!(has_lease(server.id()).await);
    let refused = tokio::net::TcpStream::connect(address).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);

    // Another version and other flags at the same address.
    server.restart(|plan| plan.version(Version::older()).flag("--runtime-config=batch/v1=false")).await;
    assert_ne!(server.pid(), pid);
    assert_eq!(server.address(), address);
    let client = server.client(ADMIN).await;
    assert_eq!(client.get("/version").await.unwrap().json().unwrap()["minor"], Version::older().minor().to_string());
    assert_eq!(client.get("/apis/batch/v1/jobs").await.unwrap().status, StatusCode::NOT_FOUND);
    server.restart(|plan| plan.version(Version::newer()).no_flags()).await;
    assert_eq!(server.client(ADMIN).await.get("/apis/batch/v1/jobs").await.unwrap().status, StatusCode::OK);

    // SIGTERM takes the Lease away.
    support::until("the Lease of cp-b again", Duration::from_secs(30), async || has_lease(server.id()).await).await;
    assert!(server.stop().await.success());
    assert!(!has_lease(server.id()).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn etcd_can_go_and_come_back() {
    let mut plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).start().await;
    let client = server.client(ADMIN).await;
    let read = async || client.get("/api/v1/namespaces/default?timeout=2s").await.map(|answer| answer.status);
    assert_eq!(read().await.unwrap(), StatusCode::OK);
    plane.kill_etcd().await;
    assert_ne!(read().await.ok(), Some(StatusCode::OK), "the server answered without etcd");
    plane.start_etcd().await;
    let client = server.client(ADMIN).await;
    let back = async || client.get("/api/v1/namespaces/default?timeout=2s").await.is_ok_and(|answer| answer.status == StatusCode::OK);
    support::until("answers from etcd", Duration::from_secs(30), back).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn the_audit_log_tells_who_served_a_request() {
    let plane = ControlPlane::start().await;
    let mut idle = plane.server("cp-a", Version::newer()).launch().await;
    let server = plane.server("cp-b", Version::newer()).start().await;
    idle.wait_ready().await;
    let client = server.client(ALICE).await;
    let answer = client.request(Method::GET, "/api/v1/pods", headers([("audit-id", "who-was-it")]), Bytes::new(), None).await.unwrap();
    assert_eq!(answer.status, StatusCode::FORBIDDEN);
    assert_eq!(answer.header("audit-id"), Some("who-was-it"));
    let event = server.audited("who-was-it").await;
    let (user, code, resource) = (&event["user"]["username"], &event["responseStatus"]["code"], &event["objectRef"]["resource"]);
    assert_eq!((user, code, resource), (&json!("alice"), &json!(403), &json!("pods")));
    assert_eq!(idle.audit().events("who-was-it"), Vec::<Value>::new());
    // Ids that the server gave are found too.
    let answer = client.get("/version").await.unwrap();
    assert_eq!(server.audited(answer.header("audit-id").unwrap()).await["requestURI"], "/version");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn the_front_proxy_certificate_speaks_for_others() {
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).start().await;
    let client = server.client_with_certificate(&plane.front_proxy_pair()).await;
    let asserted = headers([("x-remote-user", "bob"), ("x-remote-group", "builders"), ("audit-id", "for-bob")]);
    client.request(Method::GET, "/api/v1/pods", asserted, Bytes::new(), None).await.unwrap();
    assert_eq!(server.audited("for-bob").await["user"]["username"], "bob");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn the_storage_version_api_names_the_servers_by_their_ids() {
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).storage_version_api(true).in_tree_proxy(true).start().await;
    let client = server.client(MVPROXY).await;
    let path = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
    let jobs = async || {
        let listed = client.get(path).await.unwrap().json().unwrap();
        let jobs = list(&listed["items"]).into_iter().find(|one| one["metadata"]["name"] == "batch.jobs");
        jobs.map(|jobs| jobs["status"]["storageVersions"][0].clone())
    };
    support::until("StorageVersions", Duration::from_secs(60), async || jobs().await.is_some_and(|one| one["apiServerID"] == server.id()))
        .await;
    assert_eq!(jobs().await.unwrap()["servedVersions"], json!(["batch/v1"]));
    let lease = server.client(ADMIN).await.get(&format!("{LEASES}/{}", server.id())).await.unwrap().json().unwrap();
    let annotations = &lease["metadata"]["annotations"];
    assert_eq!(annotations["kubernetes.io/peer-advertise-address"], server.address().to_string(), "{lease}");
    assert_eq!(lease["metadata"]["labels"]["kubernetes.io/hostname"], "cp-a");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn a_server_that_is_not_on_loopback_is_in_the_endpoint_slice() {
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).ip(own_ip()).start().await;
    assert_eq!(server.address().ip(), own_ip());
    let client = server.client(MVPROXY).await;
    let listed = async || {
        let slices = client.get("/apis/discovery.k8s.io/v1/namespaces/default/endpointslices").await.unwrap().json().unwrap();
        list(&slices["items"]).into_iter().find(|slice| slice["metadata"]["name"] == "kubernetes")
    };
    support::until("the EndpointSlice", Duration::from_secs(30), async || listed().await.is_some()).await;
    let slice = listed().await.unwrap();
    assert_eq!(slice["endpoints"][0]["addresses"], json!([own_ip()]), "{slice}");
    assert_eq!(slice["ports"][0]["port"], server.address().port(), "{slice}");
}

async fn send(client: &Client, method: Method, path: &str, body: &Value) -> Response {
    let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
    let kind = if method == Method::PATCH { "application/merge-patch+json" } else { "application/json" };
    client.request(method, path, headers([("content-type", kind)]), body, None).await.unwrap()
}

fn lease(name: &str) -> Value {
    json!({"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": name}, "spec": {"holderIdentity": "me"}})
}

/// Creates a Lease.
async fn create(client: &Client, name: &str) {
    let answer = send(client, Method::POST, LEASES, &lease(name)).await;
    assert_eq!(answer.status, StatusCode::CREATED, "{answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn the_manifests_let_mvproxy_do_what_it_must_and_nothing_else() {
    let plane = ControlPlane::start().await;
    let server = plane.server("cp-a", Version::newer()).storage_version_api(true).start().await;
    let (client, admin) = (server.client(MVPROXY).await, server.client(ADMIN).await);
    let crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let services = "/apis/apiregistration.k8s.io/v1/apiservices";
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    let storage = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
    let (nodes, pods) = ("/api/v1/nodes", "/api/v1/namespaces/kube-system/pods");
    let plain = ["/api", "/apis", "/api/v1", "/apis/batch/v1", "/readyz", "/version", "/openapi/v3"];
    let watched = [LEASES, crds, services, slices, storage];
    for path in plain.into_iter().chain(watched).chain([nodes, pods]) {
        assert_eq!(client.get(path).await.unwrap().status, StatusCode::OK, "{path}");
    }
    for path in watched {
        assert_eq!(client.watch(&format!("{path}?watch=true")).await.unwrap().status, StatusCode::OK, "{path}");
    }
    let denied = [
        "/api/v1/namespaces/kube-system/secrets",
        "/api/v1/namespaces/kube-system/configmaps",
        "/api/v1/pods",
        "/api/v1/namespaces/default/pods",
        "/api/v1/nodes/x",
        "/api/v1/nodes?watch=true",
        "/apis/coordination.k8s.io/v1/leases",
        "/apis/coordination.k8s.io/v1/namespaces/default/leases",
        "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/x",
        "/apis/discovery.k8s.io/v1/endpointslices",
        "/apis/rbac.authorization.k8s.io/v1/clusterroles",
        "/metrics",
        "/debug/pprof/",
        "/logs/",
    ];
    for path in denied {
        assert_eq!(client.get(path).await.unwrap().status, StatusCode::FORBIDDEN, "{path}");
    }
    for path in [crds, nodes, pods, slices, services] {
        assert_eq!(send(&client, Method::POST, path, &json!({})).await.status, StatusCode::FORBIDDEN, "{path}");
    }

    // Its own Lease, and nobody else's; the policy takes a moment to be in force.
    let (own, foreign) = (format!("{LEASES}/mvproxy-apiserver-x"), format!("{LEASES}/kube-scheduler"));
    let change = json!({"spec": {"holderIdentity": "somebody else"}});
    create(&client, "mvproxy-apiserver-x").await;
    assert_eq!(send(&client, Method::PATCH, &own, &change).await.status, StatusCode::OK);
    assert_eq!(send(&client, Method::DELETE, &own, &Value::Null).await.status, StatusCode::OK);
    create(&admin, "kube-scheduler").await;
    let dry = format!("{foreign}?dryRun=All");
    let guarded = async || send(&client, Method::PATCH, &dry, &change).await.status == StatusCode::FORBIDDEN;
    support::until("the policy of lease-names.yaml", Duration::from_secs(30), guarded).await;
    let identity = format!("{LEASES}/{}", server.id());
    for (method, path, body) in [
        (Method::POST, LEASES, &lease("apiserver-forged")),
        (Method::PATCH, &foreign, &change),
        (Method::DELETE, &foreign, &Value::Null),
        (Method::DELETE, &identity, &Value::Null),
    ] {
        assert_eq!(send(&client, method.clone(), path, body).await.status, StatusCode::FORBIDDEN, "{method} {path}");
    }
    create(&client, "mvproxy-apiserver-x").await;
}
