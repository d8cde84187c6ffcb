//! Who answers a request, and what of it arrives there.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use loadgen::Client;
use loadgen::client::Response;
use serde_json::Value;
use support::{IoDriver, TOKEN, World, apis, headers};

on_both_drivers!(
    the_server_that_serves_a_resource_answers,
    what_nobody_serves_is_answered_by_local_and_arrives_untouched,
    tokens_and_authority_pass_untouched,
    no_client_can_claim_to_be_somebody_else,
    only_a_hop_to_a_peer_is_marked,
    the_path_arrives_as_it_was_sent,
    every_method_and_status_passes,
);

/// cp-a is local; jobs are cp-b's alone, deployments are on both, `flowschemas` are local's alone.
fn cluster(driver: IoDriver) -> World {
    let flow = apis::Api::new("flow.example", "v1", vec![apis::Resource::cluster("flowschemas", "flowschema", "FlowSchema")]);
    World::on(driver)
        .local("cp-a", [apis::everywhere(), vec![flow]].concat())
        .peer("cp-b", [apis::everywhere(), apis::batch()].concat())
        .start()
}

fn answered_by(response: &Response) -> &str {
    response.header("x-twin-id").unwrap_or("nobody")
}

async fn the_server_that_serves_a_resource_answers(driver: IoDriver) {
    let world = cluster(driver);
    let client = world.client().await;
    let table = [
        ("/apis/flow.example/v1/flowschemas", "cp-a"),
        ("/apis/batch/v1/jobs", "cp-b"),
        ("/apis/batch/v1/namespaces/default/jobs", "cp-b"),
        ("/apis/batch/v1/namespaces/default/cronjobs?limit=500", "cp-b"),
        ("/apis/batch%2Fv1/jobs", "cp-b"),
        ("/apis/apps/v1/deployments", "cp-a"),
        ("/api/v1/namespaces/default/configmaps", "cp-a"),
        ("/apis", "cp-a"),
        ("/apis/batch/v1", "cp-a"),
        ("/api/v1", "cp-a"),
        ("/version", "cp-a"),
        ("/readyz", "cp-a"),
        ("/apis/batch/v2/jobs", "cp-a"),
        ("/apis/BATCH/v1/jobs", "cp-a"),
        ("/nothing", "cp-a"),
    ];
    for (path, server) in table {
        let answer = client.get(path).await.unwrap();
        assert_eq!(answered_by(&answer), server, "{path}");
    }
    assert_eq!(world.twin("cp-b").counts().requests, table.iter().filter(|(_, server)| *server == "cp-b").count() as u64);
}

async fn what_nobody_serves_is_answered_by_local_and_arrives_untouched(driver: IoDriver) {
    let world = cluster(driver);
    let client = world.client().await;
    let direct = Client::connect(world.twin("cp-a").address(), world.pki().ca_pem(), support::NAME, Some(TOKEN)).await.unwrap();
    for path in ["/apis/batch/v9/jobs", "/apis/unknown.example/v1/things", "/api/v1/unknowns", "/nothing", "/apis/unknown.example"] {
        let (through, straight) = (client.get(path).await.unwrap(), direct.get(path).await.unwrap());
        assert_eq!(through.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(through.body, straight.body, "{path}");
        let names = |response: &Response| response.headers.keys().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names(&through), names(&straight), "{path}");
    }
}

/// The request head as the server got it.
async fn seen(client: &Client, path: &str, sent: HeaderMap) -> Value {
    let mut sent = sent;
    sent.insert("x-twin-debug", HeaderValue::from_static("echo"));
    let answer = client.request(Method::GET, path, sent, Bytes::new(), None).await.unwrap();
    assert_eq!(answer.status, StatusCode::OK, "{path}");
    answer.json().unwrap()
}

/// The values of a header as the server got it.
fn values<'a>(head: &'a Value, name: &str) -> Vec<&'a str> {
    let lines = head["headers"].as_array().unwrap().iter();
    lines.filter(|line| line[0] == name).map(|line| line[1].as_str().unwrap()).collect()
}

const LOCAL: &str = "/api/v1/namespaces/default/configmaps";
const PEER: &str = "/apis/batch/v1/namespaces/default/jobs";

async fn tokens_and_authority_pass_untouched(driver: IoDriver) {
    let world = cluster(driver);
    let client = world.client_of(Some("a.b-c_d~e+f/g==")).await;
    for path in [LOCAL, PEER] {
        let sent = headers([("x-request", "1"), ("x-request", "2"), ("user-agent", "kubectl/v1.36 (linux)"), ("impersonate-user", "eve")]);
        let head = seen(&client, path, sent).await;
        assert_eq!(values(&head, "authorization"), ["Bearer a.b-c_d~e+f/g=="], "{path}");
        assert_eq!(head["authority"], world.address().to_string(), "{path}");
        assert_eq!(head["scheme"], "https");
        assert_eq!(values(&head, "x-request"), ["1", "2"]);
        assert_eq!(values(&head, "user-agent"), ["kubectl/v1.36 (linux)"]);
        assert_eq!(values(&head, "impersonate-user"), ["eve"]);
    }
    let nobody = world.client_of(None).await;
    for path in [LOCAL, PEER] {
        assert!(values(&seen(&nobody, path, HeaderMap::new()).await, "authorization").is_empty(), "{path}");
    }
}

/// Names that some server somewhere may read as one of the front proxy's headers: `_` is `-` for many.
const FORGED: [&str; 12] = [
    "x-remote-user",
    "X-Remote-User",
    "x_remote_user",
    "x-remote_user",
    "x_remote-group",
    "x-remote-group",
    "x-remote-uid",
    "x-remote-extra-scopes",
    "x-remote-extra-acme.com%2fproject",
    "x_remote_extra_scopes",
    "x-kubernetes-peer-proxied",
    "X-Kubernetes-Peer-Proxied",
];

fn forged() -> HeaderMap {
    let mut forged = HeaderMap::new();
    for name in FORGED {
        let name = HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).unwrap();
        forged.append(name.clone(), HeaderValue::from_static("system:admin"));
        forged.append(name, HeaderValue::from_static("true"));
    }
    forged
}

/// None of the names a front proxy would be believed by.
fn assert_no_claims<'a>(names: impl Iterator<Item = &'a str>, place: &str) {
    for name in names {
        let plain = name.replace('_', "-").to_ascii_lowercase();
        assert!(!plain.starts_with("x-remote-"), "{name} arrived in {place}");
    }
}

async fn no_client_can_claim_to_be_somebody_else(driver: IoDriver) {
    let world = cluster(driver);
    let client = world.client().await;
    for path in [LOCAL, PEER] {
        let head = seen(&client, path, forged()).await;
        assert_no_claims(head["headers"].as_array().unwrap().iter().map(|line| line[0].as_str().unwrap()), path);
        // The marker is the proxy's alone: on a peer hop its own `true`, elsewhere none, whatever was sent.
        let marks = values(&head, "x-kubernetes-peer-proxied");
        assert_eq!(marks, if path == PEER { vec!["true"] } else { vec![] }, "{path}");

        let mut trailers = forged();
        trailers.insert("x-sum", HeaderValue::from_static("42"));
        let sent = headers([("x-twin-debug", "echo")]);
        let echo = client.request(Method::POST, path, sent, Bytes::from_static(b"body"), Some(trailers)).await.unwrap();
        let back = echo.trailers.unwrap();
        assert_eq!(back, headers([("x-sum", "42")]), "{path}");
    }
}

async fn only_a_hop_to_a_peer_is_marked(driver: IoDriver) {
    let world = cluster(driver);
    let client = world.client().await;
    // More than once: the second request is written with the dynamic table of the connection.
    for _ in 0..3 {
        assert_eq!(values(&seen(&client, PEER, HeaderMap::new()).await, "x-kubernetes-peer-proxied"), ["true"]);
        assert!(values(&seen(&client, LOCAL, HeaderMap::new()).await, "x-kubernetes-peer-proxied").is_empty());
    }
}

async fn the_path_arrives_as_it_was_sent(driver: IoDriver) {
    let world = cluster(driver);
    let client = world.client().await;
    for path in [
        "/apis/batch/v1/namespaces/default/jobs?watch=0&labelSelector=a%3Db%2Cc%21%3Dd&x=;y",
        "/apis/batch%2Fv1/jobs/%41%2f%2F%20",
        "/apis/batch/v1/jobs;v=1/x//y/../z/./",
        "/api/v1/namespaces/default/pods/a%3Ab/proxy/%E2%9C%93?path=%2F%2f&q=a+b&&=",
        "//api//v1/pods/",
        "/nothing/%00%7F",
        "/?",
        "/",
    ] {
        let head = seen(&client, path, HeaderMap::new()).await;
        assert_eq!(head["path"], path);
    }
    // What no server can read is answered here, and does no harm to the connection.
    let bad = client.get("/api/v1/pods/%zz").await.unwrap();
    assert_eq!((bad.status, bad.json().unwrap()["reason"].as_str()), (StatusCode::BAD_REQUEST, Some("BadRequest")));
    assert_eq!(client.get("/readyz").await.unwrap().status, StatusCode::OK);
}

async fn every_method_and_status_passes(driver: IoDriver) {
    let world = cluster(driver);
    let client = world.client().await;
    for path in [LOCAL, PEER] {
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE, Method::OPTIONS] {
            let sent = headers([("x-twin-debug", "echo")]);
            let echo = client.request(method.clone(), path, sent, Bytes::from_static(b"{}"), None).await.unwrap();
            assert_eq!((echo.status, &echo.body[..]), (StatusCode::OK, &b"{}"[..]), "{method} {path}");
        }
        let head = client.request(Method::HEAD, path, HeaderMap::new(), Bytes::new(), None).await.unwrap();
        assert_eq!((head.status, head.body.len()), (StatusCode::OK, 0), "{path}");
        assert_ne!(head.header("content-length"), Some("0"), "{path}");
        let missing = client.get(&format!("{path}/missing")).await.unwrap();
        assert_eq!((missing.status, missing.json().unwrap()["reason"].as_str()), (StatusCode::NOT_FOUND, Some("NotFound")), "{path}");
    }
    let hinted = client.get("/debug/twin/informational").await.unwrap();
    assert_eq!((hinted.status, hinted.informational[0].0), (StatusCode::OK, StatusCode::EARLY_HINTS));
    let etag = client.request(Method::GET, "/apis", accept_aggregated(), Bytes::new(), None).await.unwrap();
    let mut again = accept_aggregated();
    again.insert("if-none-match", etag.headers["etag"].clone());
    let unchanged = client.request(Method::GET, "/apis", again, Bytes::new(), None).await.unwrap();
    assert_eq!((unchanged.status, unchanged.body.len()), (StatusCode::NOT_MODIFIED, 0));
}

fn accept_aggregated() -> HeaderMap {
    headers([("accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")])
}
