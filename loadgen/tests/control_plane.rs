//! Twins as a control plane: what several of them share, and what each says of itself.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use loadgen::client::Response;
use loadgen::twin::{Storage, apis, server_id};
use loadgen::{Client, Pki, Twin, TwinConfig};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

const NAME: &str = "kubernetes.default.svc";
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const IDENTITIES: &str =
    "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases?labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver";
/// For everything that has to come.
const LIMIT: Duration = Duration::from_secs(10);

/// Twins that share one storage.
struct Plane {
    pki: Pki,
    storage: Storage,
}

impl Plane {
    fn new() -> Self {
        Self { pki: Pki::new().unwrap(), storage: Storage::default() }
    }

    fn start(&self, id: &str, version: &str, port: u16) -> Twin {
        let served = [apis::everywhere(), apis::control_plane(), apis::storage_versions()].concat();
        let config = TwinConfig {
            version: version.into(),
            hostname: Some(id.into()),
            storage: Some(self.storage.clone()),
            port,
            ..TwinConfig::new(id, self.pki.serving().unwrap(), served)
        };
        Twin::start(config).unwrap()
    }

    async fn client(&self, twin: &Twin) -> Client {
        Client::connect(twin.address(), self.pki.ca_pem(), NAME, None).await.unwrap()
    }

    /// A connection that speaks HTTP/1.1.
    async fn http1(&self, twin: &Twin) -> Http1 {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.pki.ca_pem().as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let builder = rustls::ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_root_certificates(roots).with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        let tcp = TcpStream::connect(twin.address()).await.unwrap();
        let tls = TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), tcp).await.unwrap();
        Http1 { tls, read: Vec::new() }
    }
}

struct Http1 {
    tls: TlsStream<TcpStream>,
    read: Vec<u8>,
}

impl Http1 {
    async fn write(&mut self, text: &str) {
        timeout(LIMIT, self.tls.write_all(text.as_bytes())).await.unwrap().unwrap();
    }

    /// Everything up to the end of `part`, which has to come.
    async fn until(&mut self, part: &str) -> String {
        loop {
            if let Some(at) = self.read.windows(part.len()).position(|window| window == part.as_bytes()) {
                let rest = self.read.split_off(at + part.len());
                return String::from_utf8(std::mem::replace(&mut self.read, rest)).unwrap();
            }
            let count = timeout(LIMIT, self.tls.read_buf(&mut self.read)).await.unwrap().unwrap();
            assert_ne!(count, 0, "it ended without {part:?}: {:?}", String::from_utf8_lossy(&self.read));
        }
    }
}

async fn send(client: &Client, method: Method, path: &str, content_type: &'static str, body: &Value) -> Response {
    let headers = HeaderMap::from_iter([(http::header::CONTENT_TYPE, HeaderValue::from_static(content_type))]);
    client.request(method, path, headers, Bytes::from(body.to_string()), None).await.unwrap()
}

async fn identities(client: &Client) -> Vec<Value> {
    client.get(IDENTITIES).await.unwrap().json().unwrap()["items"].as_array().unwrap().clone()
}

fn names(objects: &[Value]) -> Vec<String> {
    objects.iter().map(|object| object["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn every_server_keeps_its_identity_lease() {
    let plane = Plane::new();
    let (old, new) = (plane.start("cp-a", "v1.35.8", 0), plane.start("cp-b", "v1.36.4", 0));
    let client = plane.client(&old).await;
    let leases = identities(&client).await;
    let mut ids = [server_id("cp-a"), server_id("cp-b")];
    ids.sort();
    assert_eq!(names(&leases), ids, "both see both");
    let of = |host: &str| leases.iter().find(|lease| lease["metadata"]["name"] == server_id(host).as_str()).unwrap();
    let (a, b) = (of("cp-a"), of("cp-b"));
    assert_eq!(a["metadata"]["labels"]["kubernetes.io/hostname"], "cp-a");
    assert_eq!(a["metadata"].get("annotations"), None, "addresses come with v1.36");
    let address = new.address().to_string();
    assert_eq!(b["metadata"]["annotations"]["kubernetes.io/peer-advertise-address"], address.as_str());
    assert!(b["spec"]["holderIdentity"].as_str().unwrap().starts_with(&format!("{}_", server_id("cp-b"))), "{b}");
    assert_eq!(b["spec"]["leaseDurationSeconds"], 3600);
    assert_eq!(b["spec"]["renewTime"].as_str().unwrap().len(), "1970-01-01T00:00:00.000000Z".len());
    // Samples of leases there are none: everything in kube-system is somebody's.
    let all = client.get(LEASES).await.unwrap().json().unwrap();
    assert_eq!(all["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn a_stop_deletes_the_lease_a_cut_leaves_it_and_a_start_replaces_it() {
    let plane = Plane::new();
    let (a, b) = (plane.start("cp-a", "v1.36.4", 0), plane.start("cp-b", "v1.36.4", 0));
    let client = plane.client(&b).await;
    let mut watch = client.watch(&format!("{IDENTITIES}&watch=true")).await.unwrap();
    let mut next = async || -> (String, String, String) {
        let event = timeout(LIMIT, watch.next_event()).await.unwrap().unwrap().unwrap();
        let text = |pointer: &str| event.pointer(pointer).unwrap().as_str().unwrap().to_owned();
        (text("/type"), text("/object/metadata/name"), text("/object/spec/holderIdentity"))
    };
    let present = [next().await, next().await];
    let holder = present.iter().find(|event| event.1 == server_id("cp-a")).unwrap().2.clone();

    let port = a.address().port();
    a.stop().await;
    assert_eq!(next().await, ("DELETED".into(), server_id("cp-a"), holder.clone()));
    let a = plane.start("cp-a", "v1.36.4", port);
    let (kind, name, started) = next().await;
    assert_eq!((&*kind, name), ("ADDED", server_id("cp-a")));
    assert_ne!(started, holder, "it is another process");

    a.abort().await;
    assert_eq!(identities(&client).await.len(), 2, "nobody deleted it");
    let _a = plane.start("cp-a", "v1.36.4", port);
    assert_eq!(next().await, ("DELETED".into(), server_id("cp-a"), started.clone()));
    let (kind, _, restarted) = next().await;
    assert_eq!(kind, "ADDED");
    assert_ne!(restarted, started);
}

#[tokio::test]
async fn what_one_server_writes_all_have() {
    let plane = Plane::new();
    let (a, b) = (plane.start("cp-a", "v1.35.8", 0), plane.start("cp-b", "v1.36.4", 0));
    let (to_a, to_b) = (plane.client(&a).await, plane.client(&b).await);
    let map = json!({"metadata": {"name": "shared"}, "data": {"a": "b"}});
    let made = send(&to_a, Method::POST, "/api/v1/namespaces/default/configmaps", "application/json", &map).await;
    assert_eq!(made.status, StatusCode::CREATED);
    let read = to_b.get("/api/v1/namespaces/default/configmaps/shared").await.unwrap();
    assert_eq!(made.json().unwrap(), read.json().unwrap());
    a.stop().await;
    assert_eq!(to_b.get("/api/v1/namespaces/default/configmaps/shared").await.unwrap().status, StatusCode::OK);
}

#[tokio::test]
async fn storage_versions_name_every_server() {
    let plane = Plane::new();
    let (a, _b) = (plane.start("cp-a", "v1.36.4", 0), plane.start("cp-b", "v1.36.4", 0));
    let path = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions/core.pods";
    let pods = plane.client(&a).await.get(path).await.unwrap().json().unwrap();
    let entries = pods["status"]["storageVersions"].as_array().unwrap();
    assert_eq!(entries.iter().map(|entry| &entry["apiServerID"]).collect::<Vec<_>>(), [&server_id("cp-a"), &server_id("cp-b")]);
    assert_eq!(entries[0]["servedVersions"], json!(["v1"]));
}

#[tokio::test]
async fn a_lease_is_applied_and_deleted_only_as_it_was_known() {
    let plane = Plane::new();
    let twin = plane.start("cp-a", "v1.36.4", 0);
    let client = plane.client(&twin).await;
    let path = format!("{LEASES}/mine?fieldManager=me&force=true");
    let lease = |holder: &str| json!({"metadata": {"name": "mine", "labels": {"a": "b"}}, "spec": {"holderIdentity": holder}});
    let apply = async |holder: &str| send(&client, Method::PATCH, &path, "application/apply-patch+yaml", &lease(holder)).await;
    let first = apply("one").await;
    assert_eq!(first.status, StatusCode::CREATED);
    let again = apply("two").await;
    assert_eq!((again.status, &again.json().unwrap()["spec"]["holderIdentity"]), (StatusCode::OK, &json!("two")));
    let version = |response: &Response| response.json().unwrap()["metadata"]["resourceVersion"].clone();

    let other = format!("{LEASES}/none");
    let missing = send(&client, Method::PATCH, &other, "application/merge-patch+json", &json!({})).await;
    assert_eq!(missing.status, StatusCode::NOT_FOUND, "a merge creates nothing");
    let unknown = send(&client, Method::PATCH, &path, "application/json-patch+json", &json!([])).await;
    assert_eq!(unknown.status, StatusCode::UNSUPPORTED_MEDIA_TYPE);

    let path = format!("{LEASES}/mine");
    let options = |version: Value| json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"resourceVersion": version}});
    let stale = send(&client, Method::DELETE, &path, "application/json", &options(version(&first))).await;
    assert_eq!(stale.status, StatusCode::CONFLICT);
    let current = send(&client, Method::DELETE, &path, "application/json", &options(version(&again))).await;
    assert_eq!(current.status, StatusCode::OK);
    assert_eq!(client.get(&path).await.unwrap().status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn a_bookmark_comes_before_the_end_when_asked_for() {
    let plane = Plane::new();
    let twin = plane.start("cp-a", "v1.36.4", 0);
    let client = plane.client(&twin).await;
    let version = client.get(LEASES).await.unwrap().json().unwrap()["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    let path = format!("{LEASES}?watch=true&resourceVersion={version}&timeoutSeconds=3");
    for asked in [true, false] {
        let mut watch = client.watch(&format!("{path}&allowWatchBookmarks={asked}")).await.unwrap();
        if asked {
            let event = timeout(LIMIT, watch.next_event()).await.unwrap().unwrap().unwrap();
            assert_eq!((&event["type"], &event["object"]["kind"]), (&json!("BOOKMARK"), &json!("Lease")));
            assert_eq!(event["object"]["metadata"]["resourceVersion"], version.as_str());
        }
        assert_eq!(timeout(LIMIT, watch.next_event()).await.unwrap().unwrap(), None);
    }
}

#[tokio::test]
async fn http1_is_spoken_as_well() {
    let plane = Plane::new();
    let twin = plane.start("cp-a", "v1.36.4", 0);
    let mut http1 = plane.http1(&twin).await;
    // Two requests on one connection, the second with a body.
    http1.write("GET /readyz?exclude=etcd&exclude=etcd-readiness HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert!(http1.until("\r\n\r\n").await.starts_with("HTTP/1.1 200 OK\r\n"));
    http1.until("ok").await;
    let body = json!({"metadata": {"name": "mine"}, "spec": {"holderIdentity": "me"}}).to_string();
    let head = format!("content-type: application/apply-patch+yaml\r\ncontent-length: {}\r\n", body.len());
    http1.write(&format!("PATCH {LEASES}/mine?fieldManager=me HTTP/1.1\r\nhost: x\r\nconnection: keep-alive\r\n{head}\r\n{body}")).await;
    assert!(http1.until("\r\n\r\n").await.starts_with("HTTP/1.1 201 Created\r\n"));
    http1.until("\"holderIdentity\":\"me\"").await;

    // A watch goes on, and ends when the server stops.
    let mut watching = plane.http1(&twin).await;
    watching.write(&format!("GET {LEASES}?watch=true HTTP/1.1\r\nhost: x\r\n\r\n")).await;
    let head = watching.until("\r\n\r\n").await;
    assert!(head.contains("transfer-encoding: chunked\r\n"), "{head}");
    watching.until("\"ADDED\"").await;
    http1.write(&format!("DELETE {LEASES}/mine HTTP/1.1\r\nhost: x\r\n\r\n")).await;
    http1.until("\"Success\"").await;
    watching.until("\"DELETED\"").await;
    timeout(LIMIT, twin.stop()).await.unwrap();
    watching.until("0\r\n\r\n").await;
}
