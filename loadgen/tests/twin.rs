//! The client against the twin: what one sends, the other must see.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use loadgen::client::Response;
use loadgen::twin::{apis, pattern_byte};
use loadgen::{Client, Error, Pki, Twin, TwinConfig};
use serde_json::json;
use tokio::time::timeout;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
const CONFIGMAPS: &str = "/api/v1/namespaces/default/configmaps";

struct Pair {
    pki: Pki,
    twin: Twin,
    client: Client,
}

async fn pair() -> Pair {
    pair_with(|_| {}).await
}

async fn pair_with(adjust: impl FnOnce(&mut TwinConfig)) -> Pair {
    let pki = Pki::new().unwrap();
    let mut config = TwinConfig::new("cp-a", pki.serving().unwrap(), [apis::everywhere(), apis::batch()].concat());
    config.client_ca = Some(pki.ca_pem().to_owned());
    adjust(&mut config);
    let twin = Twin::start(config).unwrap();
    let client = Client::connect(twin.address(), pki.ca_pem(), "kubernetes.default.svc", None).await.unwrap();
    Pair { pki, twin, client }
}

fn headers<const N: usize>(lines: [(&'static str, &str); N]) -> HeaderMap {
    lines.map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())).into_iter().collect()
}

impl Pair {
    async fn send(&self, method: Method, path: &str, lines: HeaderMap, body: impl Into<Bytes>) -> Response {
        self.client.request(method, path, lines, body.into(), None).await.unwrap()
    }

    async fn get_as(&self, path: &str, accept: &str) -> Response {
        self.send(Method::GET, path, headers([("accept", accept)]), "").await
    }
}

fn pattern(len: u64) -> Bytes {
    (0..len).map(pattern_byte).collect()
}

#[tokio::test]
async fn every_answer_has_the_headers_of_kube_apiserver() {
    let pair = pair().await;
    let answer = pair.send(Method::GET, "/version", headers([("audit-id", "abc")]), "").await;
    assert_eq!(answer.json().unwrap()["gitVersion"], "v1.36.4");
    assert_eq!(answer.header("audit-id"), Some("abc"));
    assert_eq!(answer.header("x-twin-id"), Some("cp-a"));
    assert_eq!(answer.header("cache-control"), Some("no-cache, private"));
    assert!(answer.header("date").unwrap().ends_with(" GMT"));
    for path in ["/healthz", "/livez", "/readyz?exclude=etcd"] {
        let answer = pair.client.get(path).await.unwrap();
        assert_eq!(&answer.body[..], b"ok", "{path}");
        assert_eq!(answer.header("audit-id").unwrap().len(), 36);
    }
}

#[tokio::test]
async fn aggregated_discovery_has_an_etag() {
    let pair = pair().await;
    let groups = pair.get_as("/apis", AGGREGATED).await;
    assert_eq!(groups.header("content-type"), Some("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"));
    let names: Vec<_> = groups.json().unwrap()["items"].as_array().unwrap().iter().map(|item| item["metadata"]["name"].clone()).collect();
    assert_eq!(names, ["apps", "batch"]);
    let core = pair.get_as("/api", AGGREGATED).await.json().unwrap();
    assert_eq!(core["items"][0]["versions"][0]["resources"][2]["resource"], "pods");

    let etag = groups.header("etag").unwrap();
    let lines = headers([("accept", AGGREGATED), ("if-none-match", etag)]);
    let unchanged = pair.send(Method::GET, "/apis", lines, "").await;
    assert_eq!((unchanged.status, unchanged.body.len()), (StatusCode::NOT_MODIFIED, 0));
    assert_eq!(unchanged.header("etag"), Some(etag));
}

#[tokio::test]
async fn legacy_discovery_is_complete() {
    let pair = pair().await;
    let table = [
        ("/api", "APIVersions"),
        ("/apis", "APIGroupList"),
        ("/apis/batch", "APIGroup"),
        ("/api/v1", "APIResourceList"),
        ("/apis/batch/v1", "APIResourceList"),
    ];
    for (path, kind) in table {
        let document = pair.get_as(path, "application/json").await;
        assert_eq!(document.json().unwrap()["kind"], kind, "{path}");
        assert_eq!(document.header("etag"), None);
    }
}

#[tokio::test]
async fn objects_live_and_die() {
    let pair = pair().await;
    let list = pair.client.get(CONFIGMAPS).await.unwrap().json().unwrap();
    assert_eq!((&list["kind"], &list["items"][0]["data"]["color"]), (&json!("ConfigMapList"), &json!("blue")));
    assert_eq!(list["items"][0].get("kind"), None);
    let jobs = pair.client.get("/apis/batch/v1/jobs").await.unwrap().json().unwrap();
    assert_eq!(jobs["items"].as_array().unwrap().len(), 2);

    let body = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "new"}, "data": {"a": "1"}});
    let made = pair.send(Method::POST, CONFIGMAPS, HeaderMap::new(), body.to_string()).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let again = pair.send(Method::POST, CONFIGMAPS, HeaderMap::new(), body.to_string()).await;
    assert_eq!(again.status, StatusCode::CONFLICT);
    assert_eq!(
        &again.body[..],
        b"{\"kind\":\"Status\",\"apiVersion\":\"v1\",\"metadata\":{},\"status\":\"Failure\",\"message\":\"configmaps \\\"new\\\" already exists\",\"reason\":\"AlreadyExists\",\"details\":{\"name\":\"new\",\"kind\":\"configmaps\"},\"code\":409}\n"
    );

    let path = format!("{CONFIGMAPS}/new");
    let mut object = made.json().unwrap();
    object["data"]["a"] = json!("2");
    let updated = pair.send(Method::PUT, &path, HeaderMap::new(), object.to_string()).await;
    assert_eq!(updated.status, StatusCode::OK);
    let stale = pair.send(Method::PUT, &path, HeaderMap::new(), object.to_string()).await;
    assert_eq!(stale.json().unwrap()["reason"], "Conflict");
    let found = pair.client.get(&path).await.unwrap().json().unwrap();
    assert_eq!((&found["kind"], &found["data"]["a"]), (&json!("ConfigMap"), &json!("2")));
    assert_eq!(found["metadata"]["uid"], made.json().unwrap()["metadata"]["uid"]);

    let deleted = pair.send(Method::DELETE, &path, HeaderMap::new(), "").await;
    assert_eq!(deleted.json().unwrap()["status"], "Success");
    assert_eq!(pair.client.get(&path).await.unwrap().status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_watch_sees_the_present_then_the_future_then_ends() {
    let pair = pair().await;
    let mut watch = pair.client.watch(&format!("{CONFIGMAPS}?watch=true&timeoutSeconds=1")).await.unwrap();
    let first = watch.next_event().await.unwrap().unwrap();
    assert_eq!((&first["type"], &first["object"]["metadata"]["name"]), (&json!("ADDED"), &json!("demo")));
    let body = json!({"metadata": {"name": "live"}}).to_string();
    pair.send(Method::POST, CONFIGMAPS, HeaderMap::new(), body.clone()).await;
    pair.send(Method::POST, "/api/v1/namespaces/other/configmaps", HeaderMap::new(), body).await;
    pair.send(Method::DELETE, &format!("{CONFIGMAPS}/live"), HeaderMap::new(), "").await;
    for kind in ["ADDED", "DELETED"] {
        let event = watch.next_event().await.unwrap().unwrap();
        assert_eq!((&event["type"], &event["object"]["metadata"]["name"]), (&json!(kind), &json!("live")));
        assert_eq!(event["object"]["kind"], "ConfigMap");
    }
    assert_eq!(timeout(Duration::from_secs(5), watch.next_event()).await.unwrap().unwrap(), None);

    let list = pair.client.get(CONFIGMAPS).await.unwrap().json().unwrap();
    let revision = list["metadata"]["resourceVersion"].as_str().unwrap();
    let path = format!("{CONFIGMAPS}?watch=true&timeoutSeconds=1&resourceVersion={revision}");
    assert_eq!(pair.client.watch(&path).await.unwrap().next_event().await.unwrap(), None);
}

#[tokio::test]
async fn what_is_not_there_is_told_apart() {
    let pair = pair().await;
    let resource_missing = "the server could not find the requested resource";
    for path in ["/apis/batch/v1/nothings", "/apis/batch/v9/jobs", "/api/v1/pods/demo", "/apis/batch/v9"] {
        let answer = pair.client.get(path).await.unwrap();
        assert_eq!(answer.status, StatusCode::NOT_FOUND, "{path}");
        assert_eq!(answer.json().unwrap()["message"], resource_missing, "{path}");
    }
    for path in ["/", "/nothing", "/apis/unknown.example/v1/things", "/apis/unknown.example", "/debug/twin/nothing"] {
        let answer = pair.client.get(path).await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (StatusCode::NOT_FOUND, &b"404 page not found\n"[..]), "{path}");
    }
    let pods = pair.send(Method::POST, "/api/v1/pods", HeaderMap::new(), "{}").await;
    assert_eq!(pods.status, StatusCode::METHOD_NOT_ALLOWED);
}

#[tokio::test]
async fn bodies_that_cannot_be_stored_are_refused() {
    let pair = pair().await;
    let big = pair.send(Method::POST, CONFIGMAPS, HeaderMap::new(), vec![b' '; 5 << 20]).await;
    assert_eq!(big.json().unwrap()["message"], "Request entity too large: limit is 4194304");
    let bad = pair.send(Method::POST, CONFIGMAPS, HeaderMap::new(), "{").await;
    assert_eq!(bad.status, StatusCode::BAD_REQUEST);
    let lines = headers([("content-type", "application/vnd.kubernetes.protobuf")]);
    let binary = pair.send(Method::POST, CONFIGMAPS, lines, "k8s").await;
    assert_eq!(binary.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);
    let wrong = pair.send(Method::POST, CONFIGMAPS, HeaderMap::new(), r#"{"kind":"Pod"}"#).await;
    assert_eq!(wrong.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn five_mebibytes_go_both_ways_with_trailers() {
    let pair = pair().await;
    let body = pattern(5 << 20);
    let trailers = headers([("x-sum", "42")]);
    for path in ["/debug/twin/echo", "/debug/twin/continue"] {
        let answer = pair.client.request(Method::POST, path, HeaderMap::new(), body.clone(), Some(trailers.clone()));
        let answer = answer.await.unwrap();
        assert!(answer.body == body, "{path}: {} bytes", answer.body.len());
        assert_eq!(answer.trailers, Some(trailers.clone()));
    }
    // The header works at any path.
    let lines = headers([("x-twin-debug", "echo")]);
    let answer = pair.send(Method::PATCH, "/apis/batch/v1/jobs/x", lines, body.clone()).await;
    assert!(answer.body == body && answer.trailers.is_none());
}

#[tokio::test]
async fn the_request_head_is_echoed() {
    let pair = pair().await;
    let lines = headers([("x-twin-debug", "echo"), ("x-b", "1"), ("x-a", "2")]);
    let seen = pair.send(Method::GET, "/api/v1/pods?limit=5", lines, "").await.json().unwrap();
    assert_eq!(seen["path"], "/api/v1/pods?limit=5");
    assert_eq!(seen["headers"], json!([["x-twin-debug", "echo"], ["x-b", "1"], ["x-a", "2"]]));
}

#[tokio::test]
async fn debug_responses_are_exact() {
    let pair = pair().await;
    for count in [0, 1, 65_536, 1_000_003] {
        let answer = pair.client.get(&format!("/debug/twin/bytes/{count}")).await.unwrap();
        assert!(answer.body == pattern(count), "{count}");
    }
    assert_eq!(pair.client.get("/debug/twin/slow/20").await.unwrap().body, "ok");
    let trailers = pair.client.get("/debug/twin/trailers").await.unwrap();
    assert_eq!(trailers.body, "trailers follow\n");
    assert_eq!(trailers.trailers, Some(headers([("x-twin-trailer", "yes"), ("x-twin-count", "2")])));
    let hinted = pair.client.get("/debug/twin/informational").await.unwrap();
    assert_eq!((hinted.status, hinted.informational[0].0), (StatusCode::OK, StatusCode::EARLY_HINTS));
    assert!(hinted.informational[0].1.contains_key("link"));
    let early = pair.send(Method::POST, "/debug/twin/early", HeaderMap::new(), pattern(5 << 20)).await;
    assert_eq!((early.status, &early.body[..]), (StatusCode::OK, &b"early\n"[..]));
}

#[tokio::test]
async fn a_reset_is_never_a_short_success() {
    let pair = pair().await;
    for count in [0, 1, 1_000, 300_000] {
        let error = pair.client.get(&format!("/debug/twin/truncate/{count}")).await.unwrap_err();
        assert!(error.is_reset(), "{error}");
        assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
    }
    // All the bytes come before the reset.
    let mut stream = pair.client.watch("/debug/twin/truncate/100000").await.unwrap();
    assert_eq!(stream.headers["content-length"], "200000");
    let mut received = Vec::new();
    let error = loop {
        match stream.next_chunk().await {
            Ok(chunk) => received.extend_from_slice(&chunk.unwrap()),
            Err(error) => break error,
        }
    };
    assert!(received == pattern(100_000), "{} bytes", received.len());
    assert_eq!(error.reason(), Some(h2::Reason::INTERNAL_ERROR));
    let refused = pair.client.get("/debug/twin/reset/7").await.unwrap_err();
    assert_eq!(refused.reason(), Some(h2::Reason::REFUSED_STREAM));
    assert!(timeout(Duration::from_millis(50), pair.client.get("/debug/twin/hang")).await.is_err());
    assert_eq!(pair.client.get("/readyz").await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn a_token_or_a_certificate_is_required_when_asked_for() {
    let pair = pair_with(|config| config.require_token = true).await;
    let (address, ca) = (pair.twin.address(), pair.pki.ca_pem());
    let refused = pair.client.get(CONFIGMAPS).await.unwrap();
    assert_eq!((refused.status, &refused.json().unwrap()["reason"]), (StatusCode::UNAUTHORIZED, &json!("Unauthorized")));
    let user = Client::connect(address, ca, "localhost", Some("anything")).await.unwrap();
    assert_eq!(user.get(CONFIGMAPS).await.unwrap().status, StatusCode::OK);
    let alice = pair.pki.client("alice", &["system:masters", "dev", "ops"]).unwrap();
    let alice = Client::connect_with_certificate(address, ca, "127.0.0.1", &alice).await.unwrap();
    assert_eq!(alice.get(CONFIGMAPS).await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn certificates_of_another_authority_are_not_trusted() {
    let pair = pair().await;
    let other = Pki::new().unwrap();
    let wrong_ca = Client::connect(pair.twin.address(), other.ca_pem(), "localhost", None).await;
    assert!(matches!(wrong_ca, Err(Error::Io(..))));
    let wrong_name = Client::connect(pair.twin.address(), pair.pki.ca_pem(), "example.org", None).await;
    assert!(matches!(wrong_name, Err(Error::Io(..))));
}

#[tokio::test]
async fn goaway_comes_after_the_set_number_of_requests() {
    let pair = pair_with(|config| config.goaway_every = Some(2)).await;
    for _ in 0..2 {
        assert_eq!(pair.client.get("/readyz").await.unwrap().status, StatusCode::OK);
    }
    timeout(Duration::from_secs(5), async {
        while pair.client.alive() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert!(pair.client.ready().await.is_err());
    assert_eq!((pair.twin.counts().connections, pair.twin.counts().requests), (1, 2));
}

#[tokio::test]
async fn stopping_finishes_what_runs() {
    let pair = pair().await;
    let mut watch = pair.client.watch(&format!("{CONFIGMAPS}?watch=true")).await.unwrap();
    assert!(watch.next_event().await.unwrap().is_some());
    let slow = pair.client.clone();
    let slow = tokio::spawn(async move { slow.get("/debug/twin/slow/100").await });
    while pair.twin.counts().requests < 2 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let address = pair.twin.address();
    timeout(Duration::from_secs(3), pair.twin.stop()).await.unwrap();
    assert_eq!(watch.next_event().await.unwrap(), None);
    assert_eq!(slow.await.unwrap().unwrap().status, StatusCode::OK);
    assert!(Client::connect(address, pair.pki.ca_pem(), "localhost", None).await.is_err());
}

#[tokio::test]
async fn aborting_cuts_everything_and_frees_the_port() {
    let pair = pair().await;
    let mut watch = pair.client.watch(&format!("{CONFIGMAPS}?watch=true")).await.unwrap();
    assert!(watch.next_event().await.unwrap().is_some());
    let address = pair.twin.address();
    pair.twin.abort().await;
    assert!(timeout(Duration::from_secs(1), watch.next_event()).await.unwrap().is_err());
    assert!(pair.client.get("/readyz").await.is_err());
    assert!(!pair.client.alive());
    let mut config = TwinConfig::new("cp-a", pair.pki.serving().unwrap(), apis::everywhere());
    config.port = address.port();
    let twin = Twin::start(config).unwrap();
    let client = Client::connect(twin.address(), pair.pki.ca_pem(), "localhost", None).await.unwrap();
    assert_eq!(client.get("/readyz").await.unwrap().status, StatusCode::OK);
}
