//! The twin beside the real kube-apiserver: the same requests to both, and the same answers for what the twin covers.
//!
//! Compared are status, headers, and the keys and types of JSON; error bodies word for word. The twin may lack what is listed in
//! [`ABSENT`], and has nothing that the real server lacks.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, StatusCode};
use loadgen::client::{Response, Watch};
use loadgen::twin::{apis, server_id};
use loadgen::{Client, Twin, TwinConfig};
use serde_json::{Value, json};
use support::real::{ADMIN, Apiserver, ControlPlane, Version};
use support::{headers, until};
use tokio::time::timeout;

/// What the real server has and the twin deliberately has not.
const ABSENT: [&str; 5] = ["shortNames", "categories", "subresources", "storageVersionHash", "managedFields"];
/// Headers that both must have or both must lack.
const HEADERS: [&str; 8] = ["audit-id", "cache-control", "content-type", "date", "etag", "retry-after", "vary", "x-content-type-options"];
/// Headers whose value must be the same too.
const VALUES: [&str; 5] = ["cache-control", "content-type", "retry-after", "vary", "x-content-type-options"];

/// In a namespace where nobody else writes.
const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/walk/leases";
/// Where the servers say who they are.
const IDENTITIES: &str = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases";
const MAPS: &str = "/api/v1/namespaces/walk/configmaps";
const STORAGE: &str = "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions";
const VERSION: &str = "/metadata/resourceVersion";
/// For an event that has to come.
const EVENT_LIMIT: Duration = Duration::from_secs(20);

/// The same connection to both.
struct Both {
    twin: Client,
    real: Client,
}

impl Both {
    async fn new(plane: &ControlPlane, twin: &Twin, real: &Apiserver) -> Self {
        let (ca, token) = (plane.pki().ca_pem(), Some(ADMIN.token));
        let twin = Client::connect(twin.address(), ca, "kubernetes.default.svc", token).await.unwrap();
        Self { twin, real: real.client(ADMIN).await }
    }

    /// Sends a request to both; the answers have the same status and headers.
    async fn send(&self, method: Method, path: &str, headers: HeaderMap, body: &Value) -> Answers {
        let body = if body.is_null() { Bytes::new() } else { body.to_string().into() };
        let what = format!("{method} {path}");
        let twin = self.twin.request(method.clone(), path, headers.clone(), body.clone(), None).await.unwrap();
        let real = self.real.request(method, path, headers, body, None).await.unwrap();
        same_head((twin.status, &twin.headers), (real.status, &real.headers), &what);
        Answers { what, twin, real }
    }

    async fn get(&self, path: &str) -> Answers {
        self.send(Method::GET, path, HeaderMap::new(), &Value::Null).await
    }

    async fn write(&self, method: Method, path: &str, body: &Value) -> Answers {
        self.send(method, path, headers([("content-type", "application/json")]), body).await
    }

    /// PUT with the `resourceVersion` of each.
    async fn update(&self, path: &str, object: &Value, versions: &[String; 2]) -> Answers {
        let what = format!("PUT {path}");
        let put = async |client: &Client, version: &str| {
            let body = with_version(object.clone(), version).to_string();
            client.request(Method::PUT, path, headers([("content-type", "application/json")]), body.into(), None).await.unwrap()
        };
        let (twin, real) = (put(&self.twin, &versions[0]).await, put(&self.real, &versions[1]).await);
        same_head((twin.status, &twin.headers), (real.status, &real.headers), &what);
        Answers { what, twin, real }
    }

    async fn watch(&self, [twin_path, real_path]: [&str; 2]) -> Watches {
        let (twin, real) = (self.twin.watch(twin_path).await.unwrap(), self.real.watch(real_path).await.unwrap());
        same_head((twin.status, &twin.headers), (real.status, &real.headers), real_path);
        Watches { what: real_path.into(), twin, real }
    }
}

/// Two answers to the same question.
struct Answers {
    what: String,
    twin: Response,
    real: Response,
}

impl Answers {
    fn status(self, expected: u16) -> Self {
        assert_eq!(self.real.status.as_u16(), expected, "{}: {:?}", self.what, self.real.body);
        self
    }

    fn same_shape(self) -> Self {
        same_shape(&self.twin.json().unwrap(), &self.real.json().unwrap(), &self.what);
        self
    }

    fn same_body(self) -> Self {
        assert_eq!(text(&self.twin.body), text(&self.real.body), "{}", self.what);
        self
    }

    /// As [`Answers::same_body`], but blanks do not count: kube-apiserver writes a 406 for people.
    fn same_json(self) -> Self {
        assert_eq!(self.twin.json().unwrap(), self.real.json().unwrap(), "{}", self.what);
        self
    }

    /// The same string of both bodies.
    fn field(&self, pointer: &str) -> [String; 2] {
        [&self.twin, &self.real].map(|response| response.json().unwrap().pointer(pointer).unwrap().as_str().unwrap().into())
    }
}

/// Two watches of the same.
struct Watches {
    what: String,
    twin: Watch,
    real: Watch,
}

impl Watches {
    /// The next event that is not a bookmark is of that type, and of one shape. The twin's, then the real server's.
    async fn expect(&mut self, kind: &str) -> [Value; 2] {
        let (twin, real) = (event(&mut self.twin).await, event(&mut self.real).await);
        assert_eq!((&twin["type"], &real["type"]), (&json!(kind), &json!(kind)), "{}: {twin} {real}", self.what);
        same_shape(&twin, &real, &format!("{kind} of {}", self.what));
        [twin, real]
    }

    /// An event of that type and object comes, of one shape; what comes before it does not matter.
    async fn expect_of(&mut self, kind: &str, object: &str) {
        let (twin, real) = (event_of(&mut self.twin, object).await, event_of(&mut self.real, object).await);
        assert_eq!((&twin["type"], &real["type"]), (&json!(kind), &json!(kind)), "{}: {twin} {real}", self.what);
        same_shape(&twin, &real, &format!("{kind} of {object} of {}", self.what));
    }

    /// Both end cleanly.
    async fn expect_end(&mut self) {
        for watch in [&mut self.twin, &mut self.real] {
            let end = timeout(EVENT_LIMIT, watch.next_event()).await.unwrap().unwrap();
            assert_eq!(end, None, "{}", self.what);
        }
    }
}

async fn event(watch: &mut Watch) -> Value {
    loop {
        let event = timeout(EVENT_LIMIT, watch.next_event()).await.expect("an event").unwrap().expect("no end");
        if event["type"] != "BOOKMARK" {
            return event;
        }
    }
}

/// The next event of the object of that name.
async fn event_of(watch: &mut Watch, object: &str) -> Value {
    loop {
        let event = event(watch).await;
        if event["object"]["metadata"]["name"] == object {
            return event;
        }
    }
}

fn text(body: &Bytes) -> String {
    String::from_utf8_lossy(body).into_owned()
}

fn same_head((twin_status, twin): (StatusCode, &HeaderMap), (real_status, real): (StatusCode, &HeaderMap), what: &str) {
    assert_eq!(twin_status, real_status, "{what}: the status of the twin, then of the real server");
    for name in HEADERS {
        assert_eq!(twin.contains_key(name), real.contains_key(name), "{what}: {name}: {twin:?} {real:?}");
    }
    for name in VALUES {
        let values = |headers: &HeaderMap| headers.get_all(name).iter().cloned().collect::<Vec<_>>();
        assert_eq!(values(twin), values(real), "{what}: {name}");
    }
}

/// Everything in `twin` is in `real` with the same type, and what is only in `real` is in [`ABSENT`].
fn same_shape(twin: &Value, real: &Value, at: &str) {
    match (twin, real) {
        (Value::Object(twin), Value::Object(real)) => {
            for (key, value) in twin {
                let other = real.get(key).unwrap_or_else(|| panic!("{at}: only the twin has {key}: {real:?}"));
                same_shape(value, other, &format!("{at}.{key}"));
            }
            let missing = real.keys().find(|key| !twin.contains_key(*key) && !ABSENT.contains(&key.as_str()));
            assert_eq!(missing, None, "{at}: the twin lacks it: {real:?}");
        }
        (Value::Array(twin), Value::Array(real)) => {
            for value in twin {
                let name = name(value);
                let other = real.iter().find(|other| self::name(other) == name).or_else(|| real.first().filter(|_| name.is_none()));
                let other = other.unwrap_or_else(|| panic!("{at}: the real server has no {name:?}"));
                same_shape(value, other, &format!("{at}[{}]", name.unwrap_or_default()));
            }
        }
        (Value::String(_), Value::String(_)) | (Value::Number(_), Value::Number(_)) | (Value::Bool(_), Value::Bool(_)) => {}
        (twin, real) => assert_eq!(twin, real, "{at}: of different types"),
    }
}

/// What an element of a list is called, by which it is found in the other list.
fn name(element: &Value) -> Option<String> {
    let names = ["/metadata/name", "/name", "/resource", "/version"].map(|pointer| element.pointer(pointer));
    names.into_iter().flatten().next().and_then(Value::as_str).map(String::from)
}

fn object(kind: &str, api_version: &str, name: &str, fields: &Value) -> Value {
    let mut object = json!({"kind": kind, "apiVersion": api_version, "metadata": {"name": name}});
    object.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    object
}

fn with_version(mut object: Value, resource_version: &str) -> Value {
    object["metadata"]["resourceVersion"] = resource_version.into();
    object
}

async fn discovery_is_the_same(both: &Both) {
    let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let beta = &v2.replace("v2", "v2beta1");
    let preferring = format!("{v2};profile=nopeer,{v2},{beta},application/json");
    for path in ["/api", "/apis"] {
        both.send(Method::GET, path, headers([("accept", beta)]), &Value::Null).await.status(406).same_json();
        for accept in [&preferring, v2, "application/json", "*/*"] {
            let answers = both.send(Method::GET, path, headers([("accept", accept)]), &Value::Null).await.status(200).same_shape();
            if !answers.real.headers.contains_key("etag") {
                continue;
            }
            // Each its own ETag: a document that has not changed is not sent again.
            for (client, response) in [(&both.twin, &answers.twin), (&both.real, &answers.real)] {
                let known = headers([("accept", accept), ("if-none-match", response.header("etag").unwrap())]);
                let again = client.request(Method::GET, path, known, Bytes::new(), None).await.unwrap();
                assert_eq!((again.status, again.body.len()), (StatusCode::NOT_MODIFIED, 0), "{path} {accept}");
            }
        }
        both.get(path).await.status(200).same_shape();
    }
    for path in ["/apis/batch", "/apis/batch/v1", "/api/v1", "/apis/coordination.k8s.io/v1", "/version"] {
        both.get(path).await.status(200).same_shape();
    }
    both.get("/readyz").await.status(200).same_body();
}

async fn errors_are_the_same(both: &Both) {
    let map = object("ConfigMap", "v1", "twice", &json!({"data": {"a": "b"}}));
    both.write(Method::POST, MAPS, &map).await.status(201).same_shape();
    both.write(Method::POST, MAPS, &map).await.status(409).same_body();
    let stale = with_version(map.clone(), "1");
    both.write(Method::PUT, &format!("{MAPS}/twice"), &stale).await.status(409).same_body();
    for path in [
        "/api/v1/namespaces/default/configmaps/none",
        "/apis/batch/v1/namespaces/default/jobs/none",
        "/apis/batch/v1/nothings",
        "/apis/batch/v1/namespaces/default/nothings/x",
        "/apis/batch/v9/jobs",
        "/apis/batch/v9",
        "/apis/nothing.example.org/v1/things",
        "/apis/nothing.example.org",
        "/nothing",
    ] {
        both.get(path).await.status(404).same_body();
    }
    both.write(Method::DELETE, &format!("{MAPS}/none"), &Value::Null).await.status(404).same_body();
    both.write(Method::POST, &format!("{MAPS}/twice"), &map).await.status(405).same_body();
    both.write(Method::DELETE, &format!("{MAPS}/twice"), &Value::Null).await.status(200).same_shape();
    let nameless = json!({"kind": "ConfigMap", "apiVersion": "v1", "metadata": {}});
    both.write(Method::POST, MAPS, &nameless).await.status(422).same_body();
    let plain = headers([("content-type", "text/plain")]);
    both.send(Method::POST, MAPS, plain, &json!("x")).await.status(415).same_body();
}

/// A Lease may be created with PUT, and changed only with its `resourceVersion`.
async fn leases_are_put_the_same(both: &Both) {
    let path = format!("{LEASES}/put");
    let lease = |holder: &str| object("Lease", "coordination.k8s.io/v1", "put", &json!({"spec": {"holderIdentity": holder}}));
    both.write(Method::PUT, &path, &lease("me")).await.status(201).same_shape();
    both.write(Method::PUT, &path, &lease("you")).await.status(422).same_body();
    both.write(Method::DELETE, &path, &Value::Null).await.status(200).same_shape();
}

/// A Lease may be applied, which creates it, and is deleted only as it was known.
async fn leases_are_applied_the_same(both: &Both) {
    let path = format!("{LEASES}/applied?fieldManager=walk&force=true");
    let lease = |holder: &str| object("Lease", "coordination.k8s.io/v1", "applied", &json!({"spec": {"holderIdentity": holder}}));
    let apply = async |holder: &str| {
        both.send(Method::PATCH, &path, headers([("content-type", "application/apply-patch+yaml")]), &lease(holder)).await
    };
    apply("me").await.status(201).same_shape();
    apply("you").await.status(200).same_shape();
    let path = format!("{LEASES}/applied");
    for stale in [json!({"resourceVersion": "1"}), json!({"uid": "x"})] {
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": stale});
        let refused = both.write(Method::DELETE, &path, &options).await.status(409).same_shape();
        let [twin, real] = refused.field("/message").map(|message| message.split(" in record ").next().map(String::from));
        assert_eq!(twin, real);
    }
    both.write(Method::DELETE, &path, &Value::Null).await.status(200).same_shape();
}

/// What discovery reads: identities by their label, and what makes group-versions nobody's in particular.
async fn a_control_plane_says_the_same_of_itself(both: &Both) {
    both.get(&format!("{IDENTITIES}/{}", server_id("cp-a"))).await.status(200).same_shape();
    let labelled = format!("{IDENTITIES}?limit=100&labelSelector=apiserver.kubernetes.io%2Fidentity%3Dkube-apiserver");
    let answers = both.get(&labelled).await.status(200).same_shape();
    for answer in [&answers.twin, &answers.real] {
        assert_eq!(answer.json().unwrap()["items"].as_array().unwrap().len(), 1);
    }
    for path in [
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?limit=100",
        "/apis/apiregistration.k8s.io/v1/apiservices",
        "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3Dkubernetes",
    ] {
        both.get(path).await.status(200).same_shape();
    }
    both.get(STORAGE).await.status(404).same_body();
    both.get("/readyz?exclude=etcd&exclude=etcd-readiness").await.status(200).same_body();
}

/// Walks one object from its creation to its end; `fields` are two versions of it.
async fn objects_and_watches_are_the_same(both: &Both, collection: &str, kind: &str, api_version: &str, fields: [&Value; 2]) {
    let path = format!("{collection}/walk");
    let [new, changed] = fields.map(|fields| object(kind, api_version, "walk", fields));
    let watch = format!("{collection}?watch=true");
    let begin = both.get(collection).await.status(200).same_shape().field(VERSION);
    let created = both.write(Method::POST, collection, &new).await.status(201).same_shape().field(VERSION);
    both.get(&path).await.status(200).same_shape();
    both.get(collection).await.status(200).same_shape();

    // A watch from nowhere begins with what is there.
    let mut from_nowhere = both.watch([&watch, &watch]).await;
    from_nowhere.expect("ADDED").await;
    let updated = both.update(&path, &changed, &created).await.status(200).same_shape().field(VERSION);
    from_nowhere.expect("MODIFIED").await;
    // Nothing changes, so nothing happens.
    let same = both.update(&path, &changed, &updated).await.status(200).same_shape().field(VERSION);
    assert_eq!(same, updated);
    both.update(&path, &new, &created).await.status(409).same_body();
    both.write(Method::DELETE, &path, &Value::Null).await.status(200).same_shape();
    from_nowhere.expect("DELETED").await;

    // From a revision: everything after it, in order, then the clean end of its time.
    let from = begin.map(|version| format!("{watch}&resourceVersion={version}&timeoutSeconds=3"));
    let mut from_revision = both.watch([&from[0], &from[1]]).await;
    for kind in ["ADDED", "MODIFIED", "DELETED"] {
        from_revision.expect(kind).await;
    }
    from_revision.expect_end().await;
}

/// An object whose labels leave a selector ends as it last was in it, with the revision that took it out.
async fn leaving_a_selector_is_the_same(both: &Both) {
    let map = |label: &str| {
        let mut map = object("ConfigMap", "v1", "leaving", &json!({"data": {"was": label}}));
        map["metadata"]["labels"] = json!({"walk": label});
        map
    };
    let path = format!("{MAPS}/leaving");
    let watch = format!("{MAPS}?watch=true&labelSelector=walk%3Din");
    let created = both.write(Method::POST, MAPS, &map("in")).await.status(201).same_shape().field(VERSION);
    let mut watches = both.watch([&watch, &watch]).await;
    watches.expect("ADDED").await;
    let updated = both.update(&path, &map("out"), &created).await.status(200).same_shape().field(VERSION);
    for (event, version) in watches.expect("DELETED").await.iter().zip(&updated) {
        let last = &event["object"];
        assert_eq!((&last["metadata"]["labels"]["walk"], &last["data"]["was"]), (&json!("in"), &json!("in")), "{event}");
        assert_eq!(last.pointer(VERSION), Some(&json!(version)), "{event}");
    }
    both.write(Method::DELETE, &path, &Value::Null).await.status(200).same_shape();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn the_twin_answers_as_the_real_server() {
    let Some(version) = Version::of_minor(36) else { return };
    let plane = ControlPlane::start().await;
    let real = plane.server("cp-a", version).start().await;
    let served = [apis::everywhere(), apis::batch(), apis::control_plane()].concat();
    let config = TwinConfig::new("cp-a", plane.pki().serving().unwrap(), served);
    let twin = Twin::start(TwinConfig { hostname: Some("cp-a".into()), ..config }).unwrap();
    let both = Both::new(&plane, &twin, &real).await;
    discovery_is_the_same(&both).await;
    let namespace = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "walk"}});
    both.write(Method::POST, "/api/v1/namespaces", &namespace).await.status(201);
    errors_are_the_same(&both).await;
    let contents = [&json!({"data": {"a": "b"}}), &json!({"data": {"a": "c"}})];
    objects_and_watches_are_the_same(&both, MAPS, "ConfigMap", "v1", contents).await;
    let spec = |second: u8| {
        let renewed = format!("2026-01-01T00:00:0{second}.000000Z");
        json!({"spec": {"holderIdentity": "me", "leaseDurationSeconds": 3600, "renewTime": renewed}})
    };
    leaving_a_selector_is_the_same(&both).await;
    leases_are_put_the_same(&both).await;
    leases_are_applied_the_same(&both).await;
    a_control_plane_says_the_same_of_itself(&both).await;
    objects_and_watches_are_the_same(&both, LEASES, "Lease", "coordination.k8s.io/v1", [&spec(1), &spec(2)]).await;
}

/// What discovery reads where the alpha API is on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn the_twin_writes_storage_versions_as_the_real_server() {
    const ONE: &str = "batch.jobs";
    let Some(version) = Version::of_minor(36) else { return };
    let plane = ControlPlane::start().await;
    let real = plane.server("cp-a", version).storage_version_api(true).start().await;
    let served = [apis::everywhere(), apis::batch(), apis::control_plane(), apis::storage_versions()].concat();
    let config = TwinConfig::new("cp-a", plane.pki().serving().unwrap(), served);
    let twin = Twin::start(TwinConfig { hostname: Some("cp-a".into()), ..config }).unwrap();
    let both = Both::new(&plane, &twin, &real).await;
    let path = format!("{STORAGE}/{ONE}");
    let is_written = async || both.real.get(&path).await.unwrap().status == StatusCode::OK;
    until("the real server to write StorageVersions", EVENT_LIMIT, is_written).await;
    both.get("/apis/internal.apiserver.k8s.io/v1alpha1").await.status(200).same_shape();
    both.get(&path).await.status(200).same_shape();
    both.get(STORAGE).await.status(200).same_shape();
    both.get(&format!("{STORAGE}/none")).await.status(404).same_body();
    let watch = format!("{STORAGE}?watch=true");
    both.watch([&watch, &watch]).await.expect_of("ADDED", ONE).await;
}
