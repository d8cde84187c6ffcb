//! A cluster that a test can script: one store of objects, and any number of servers in front of it.
//!
//! A server does what live discovery needs and no more: list and watch of any kind, get, apply and delete of Leases, discovery documents
//! with ETag, `/readyz`, `/version`. What it was asked is written down.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bytes::Bytes;
use futures::StreamExt;
use http::{Method, Request, Response, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rustls::ServerConfig;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpSocket};
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

type Body = BoxBody<Bytes, Infallible>;

/// What all servers share.
pub(crate) struct Cluster {
    runtime: Runtime,
    store: Arc<Store>,
    tls: TlsAcceptor,
    /// Who signed the certificates of all servers, in PEM.
    pub(crate) ca: Vec<u8>,
}

struct Store {
    objects: Mutex<Objects>,
    revision: watch::Sender<u64>,
}

#[derive(Default)]
struct Objects {
    /// By plural and name.
    current: BTreeMap<(String, String), Value>,
    /// Revision, plural, kind of event, object.
    log: Vec<(u64, String, &'static str, Value)>,
}

impl Store {
    fn objects(&self) -> MutexGuard<'_, Objects> {
        self.objects.lock().unwrap()
    }

    /// Whoever watches is told of everything at once.
    fn change<T>(&self, change: impl FnOnce(&mut Objects) -> T) -> T {
        let mut objects = self.objects();
        let changed = change(&mut objects);
        self.revision.send_replace(objects.log.len() as u64 + 1);
        changed
    }

    fn put(&self, plural: &str, object: Value) -> Value {
        self.change(|objects| objects.put(plural, object))
    }

    fn delete(&self, plural: &str, name: &str) -> bool {
        self.change(|objects| objects.delete(plural, name))
    }
}

impl Objects {
    fn put(&mut self, plural: &str, mut object: Value) -> Value {
        let revision = self.log.len() as u64 + 2;
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
        let key = (plural.to_owned(), object["metadata"]["name"].as_str().unwrap().to_owned());
        let kind = if self.current.insert(key, object.clone()).is_some() { "MODIFIED" } else { "ADDED" };
        self.log.push((revision, plural.to_owned(), kind, object.clone()));
        object
    }

    fn delete(&mut self, plural: &str, name: &str) -> bool {
        let Some(mut object) = self.current.remove(&(plural.to_owned(), name.to_owned())) else { return false };
        let revision = self.log.len() as u64 + 2;
        object["metadata"]["resourceVersion"] = json!(revision.to_string());
        self.log.push((revision, plural.to_owned(), "DELETED", object));
        true
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (tls, ca) = authority();
        let store = Arc::new(Store { objects: Mutex::default(), revision: watch::channel(1).0 });
        Self { runtime, store, tls, ca }
    }

    /// Another authority, which signs for all servers that are started from now on.
    pub(crate) fn rotate(&mut self) {
        (self.tls, self.ca) = authority();
    }

    /// Starts a server that is ready and serves these (`group/version/resource`).
    pub(crate) fn server(&self, letter: char, serves: &[&str]) -> FakeServer {
        let listener = loadgen::ports::listen().unwrap();
        listener.set_nonblocking(true).unwrap();
        let listener = self.runtime.block_on(async { TcpListener::from_std(listener) }).unwrap();
        let script = Script { ready: true, version: "v1.36.4-fake".to_owned(), ..Script::default() };
        let server = FakeServer {
            id: format!("apiserver-{}", letter.to_string().repeat(26)),
            address: listener.local_addr().unwrap(),
            script: Arc::new(Mutex::new(script)),
            running: watch::channel(0).0,
        };
        server.serves(serves);
        self.run(&server, listener);
        server
    }

    /// Starts it again at the same address.
    pub(crate) fn restart(&self, server: &FakeServer) {
        let listener = self.runtime.block_on(async {
            let socket = TcpSocket::new_v4().unwrap();
            socket.set_reuseaddr(true).unwrap();
            socket.bind(server.address).unwrap();
            socket.listen(16).unwrap()
        });
        self.run(server, listener);
    }

    fn run(&self, server: &FakeServer, listener: TcpListener) {
        let (store, tls, script) = (Arc::clone(&self.store), self.tls.clone(), Arc::clone(&server.script));
        let mut running = server.running.subscribe();
        self.runtime.spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                let accepted = tokio::select! {
                    accepted = listener.accept() => accepted,
                    // Whoever stops the server ends its connections with it.
                    _ = running.changed() => return,
                };
                let (Ok((stream, _)), tls) = (accepted, tls.clone()) else { continue };
                let (store, script) = (Arc::clone(&store), Arc::clone(&script));
                connections.spawn(async move {
                    let Ok(stream) = tls.accept(stream).await else { return };
                    let service = service_fn(move |request| answer(Arc::clone(&store), Arc::clone(&script), request));
                    hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await.ok();
                });
            }
        });
    }

    /// An identity Lease with the address of the server.
    pub(crate) fn lease(&self, server: &FakeServer, holder: &str) {
        self.lease_at(&server.id, holder, &server.address.to_string());
    }

    pub(crate) fn lease_at(&self, id: &str, holder: &str, address: &str) {
        self.put(
            "leases",
            json!({"metadata": {"name": id, "namespace": "kube-system",
                "labels": {"apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/hostname": format!("host-{id}")},
                "annotations": {"kubernetes.io/peer-advertise-address": address}},
                "spec": {"holderIdentity": holder}}),
        );
    }

    pub(crate) fn put(&self, plural: &str, object: Value) {
        self.store.put(plural, object);
    }

    pub(crate) fn delete(&self, plural: &str, name: &str) {
        assert!(self.store.delete(plural, name), "{plural} {name}");
    }

    /// Deletes it and writes it again, with nothing in between.
    pub(crate) fn put_again(&self, plural: &str, name: &str) {
        let object = self.get(plural, name).unwrap();
        self.store.change(|objects| {
            assert!(objects.delete(plural, name));
            objects.put(plural, object);
        });
    }

    /// Writes it and deletes it, with nothing in between.
    pub(crate) fn put_for_no_time(&self, plural: &str, object: Value) {
        self.store.change(|objects| {
            let object = objects.put(plural, object);
            assert!(objects.delete(plural, object["metadata"]["name"].as_str().unwrap()));
        });
    }

    pub(crate) fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.store.objects().current.get(&(plural.to_owned(), name.to_owned())).cloned()
    }
}

/// A new authority: what servers show, and who signed it, in PEM.
fn authority() -> (TlsAcceptor, Vec<u8>) {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let ca = params.self_signed(&key).unwrap();
    let issuer = rcgen::Issuer::new(params, key);
    let key = rcgen::KeyPair::generate().unwrap();
    let leaf = rcgen::CertificateParams::new(vec!["kubernetes.default.svc".to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap().with_no_client_auth();
    let config = config.with_single_cert(vec![leaf.der().clone()], rustls::pki_types::PrivatePkcs8KeyDer::from(key.serialize_der()).into());
    (TlsAcceptor::from(Arc::new(config.unwrap())), ca.pem().into_bytes())
}

/// One server.
pub(crate) struct FakeServer {
    pub(crate) id: String,
    pub(crate) address: SocketAddr,
    script: Arc<Mutex<Script>>,
    running: watch::Sender<u32>,
}

#[derive(Default)]
struct Script {
    ready: bool,
    frozen: bool,
    /// Our token is good for nothing.
    lapsed: bool,
    /// Nobody may ask without a token (`--anonymous-auth=false`).
    closed: bool,
    version: String,
    failing: watch::Sender<Failing>,
    documents: Documents,
    /// How long the document of a group-version takes.
    slow: Duration,
    /// How long the answer to a write takes, when it is written.
    slow_writes: Duration,
    /// Groups whose own server is away.
    dead: BTreeSet<String>,
    serves: BTreeMap<(String, String), BTreeSet<String>>,
    denied: BTreeSet<String>,
    absent: BTreeSet<String>,
    /// Lists of these have a head, and no end.
    stalled: BTreeSet<String>,
    asked: Vec<String>,
}

/// The discovery documents that a server has.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Documents {
    /// Aggregated ones, v2 and v2beta1.
    #[default]
    New,
    /// Of these v2beta1 only.
    Beta,
    /// No aggregated ones.
    Old,
}

impl Documents {
    /// The version of the aggregated document that is sent: the first one that is accepted, if it comes before the old form.
    fn chosen(self, accepts: &str) -> Option<&'static str> {
        let known: &[&str] = match self {
            Self::New => &["v2", "v2beta1"],
            Self::Beta => &["v2beta1"],
            Self::Old => &[],
        };
        accepts.split(',').find_map(|accepted| {
            let parts: Vec<&str> = accepted.split(';').collect();
            let has = |part: &str| parts.contains(&part);
            let version = known.iter().copied().find(|version| has(&format!("v={version}")));
            match version.filter(|_| has("g=apidiscovery.k8s.io") && has("as=APIGroupDiscoveryList")) {
                Some(version) => Some(Some(version)),
                None => (parts.len() == 1).then_some(None),
            }
        })?
    }
}

/// What is answered with an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Failing {
    #[default]
    Nothing,
    /// Those that are under way end.
    Watches,
    ListsAndWatches,
}

impl FakeServer {
    fn script(&self) -> MutexGuard<'_, Script> {
        self.script.lock().unwrap()
    }

    pub(crate) fn serves(&self, gvrs: &[&str]) {
        let mut serves: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for gvr in gvrs {
            let parts: Vec<&str> = gvr.split('/').collect();
            let [group, version, resource] = parts[..] else { panic!("{gvr}") };
            serves.entry((group.to_owned(), version.to_owned())).or_default().insert(resource.to_owned());
        }
        self.script().serves = serves;
    }

    pub(crate) fn ready(&self, ready: bool) {
        self.script().ready = ready;
    }

    pub(crate) fn freeze(&self, frozen: bool) {
        self.script().frozen = frozen;
    }

    pub(crate) fn lapse(&self) {
        self.script().lapsed = true;
    }

    pub(crate) fn close(&self) {
        self.script().closed = true;
    }

    pub(crate) fn version(&self, version: &str) {
        self.script().version = version.to_owned();
    }

    pub(crate) fn fail(&self, failing: Failing) {
        self.script().failing.send_replace(failing);
    }

    pub(crate) fn old(&self) {
        self.script().documents = Documents::Old;
    }

    pub(crate) fn beta(&self) {
        self.script().documents = Documents::Beta;
    }

    pub(crate) fn slow(&self, time: Duration) {
        self.script().slow = time;
    }

    pub(crate) fn slow_writes(&self, time: Duration) {
        self.script().slow_writes = time;
    }

    pub(crate) fn kill_group(&self, group: &str) {
        self.script().dead.insert(group.to_owned());
    }

    pub(crate) fn deny(&self, plural: &str) {
        self.script().denied.insert(plural.to_owned());
    }

    pub(crate) fn allow(&self, plural: &str) {
        self.script().denied.remove(plural);
    }

    pub(crate) fn hide(&self, plural: &str) {
        self.script().absent.insert(plural.to_owned());
    }

    pub(crate) fn show(&self, plural: &str) {
        self.script().absent.remove(plural);
    }

    pub(crate) fn stall(&self, plural: &str) {
        self.script().stalled.insert(plural.to_owned());
    }

    pub(crate) fn unstall(&self, plural: &str) {
        self.script().stalled.remove(plural);
    }

    /// Closes its port and its connections.
    pub(crate) fn stop(&self) {
        self.running.send_modify(|run| *run += 1);
    }

    /// What it was asked, and how it answered.
    pub(crate) fn asked(&self) -> Vec<String> {
        self.script().asked.clone()
    }

    /// How often it was asked something that begins so, and answered so.
    pub(crate) fn count(&self, begin: &str, status: u16) -> usize {
        let end = format!(" {status}");
        self.script().asked.iter().filter(|asked| asked.starts_with(begin) && asked.ends_with(&end)).count()
    }
}

fn full(status: StatusCode, body: &Value) -> Response<Body> {
    let mut response = Response::new(Full::new(Bytes::from(body.to_string())).boxed());
    *response.status_mut() = status;
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

fn failed(status: StatusCode) -> Response<Body> {
    let body = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": "no", "reason": "No",
        "code": status.as_u16()});
    full(status, &body)
}

async fn answer(store: Arc<Store>, script: Arc<Mutex<Script>>, request: Request<Incoming>) -> Result<Response<Body>, Infallible> {
    if script.lock().unwrap().frozen {
        std::future::pending::<()>().await;
    }
    let asked = format!("{} {}", request.method(), request.uri());
    let response = respond(&store, &script, request).await;
    script.lock().unwrap().asked.push(format!("{asked} {}", response.status().as_u16()));
    Ok(response)
}

async fn respond(store: &Arc<Store>, script: &Arc<Mutex<Script>>, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let (lapsed, closed, slow) = {
        let script = script.lock().unwrap();
        (script.lapsed, script.closed, script.slow)
    };
    let may_ask = match request.headers().get("authorization") {
        Some(token) => token == "Bearer right" && !lapsed,
        None => path == "/readyz" && !closed,
    };
    if !may_ask {
        return failed(StatusCode::UNAUTHORIZED);
    }
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    if let ["api", _] | ["apis", _, _] = parts[..] {
        tokio::time::sleep(slow).await;
    }
    match parts[..] {
        ["readyz"] if script.lock().unwrap().ready => full(StatusCode::OK, &json!("ok")),
        ["readyz"] => failed(StatusCode::INTERNAL_SERVER_ERROR),
        ["version"] => full(StatusCode::OK, &json!({"gitVersion": script.lock().unwrap().version})),
        ["api"] | ["apis"] => document(&script.lock().unwrap(), &request, parts[0] == "api"),
        ["api", version] => group_version(&script.lock().unwrap(), "", version),
        ["apis", group, version] => group_version(&script.lock().unwrap(), group, version),
        ["apis", _, _, "namespaces", _, plural] | ["apis", _, _, plural] => objects(store, script, &request, plural),
        ["apis", _, _, "namespaces", _, "leases", name] if request.method() == Method::GET => {
            let lease = store.objects().current.get(&("leases".to_owned(), name.to_owned())).cloned();
            lease.map_or_else(|| failed(StatusCode::NOT_FOUND), |lease| full(StatusCode::OK, &lease))
        }
        ["apis", _, _, "namespaces", _, "leases", name] => {
            let name = name.to_owned();
            let response = write(store, request, &name).await;
            let slow = script.lock().unwrap().slow_writes;
            tokio::time::sleep(slow).await;
            response
        }
        _ => failed(StatusCode::NOT_FOUND),
    }
}

fn document(script: &Script, request: &Request<Incoming>, is_core: bool) -> Response<Body> {
    let accepts = request.headers()["accept"].to_str().unwrap();
    assert!(accepts.starts_with("application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,"), "{accepts}");
    let groups = script.serves.iter().filter(|((group, _), _)| group.is_empty() == is_core);
    let Some(form) = script.documents.chosen(accepts) else {
        let named: Vec<Value> = groups.map(|((group, version), _)| json!({"groupVersion": format!("{group}/{version}")})).collect();
        // The list is of all servers: it names nothing that this one has.
        let body = if is_core { json!({"kind": "APIVersions", "versions": ["v1"]}) } else { json!({"kind": "APIGroupList", "groups": []}) };
        assert!(named.len() < 100);
        return full(StatusCode::OK, &body);
    };
    let items: Vec<Value> = groups
        .map(|((group, version), resources)| {
            let resources: Vec<Value> = resources.iter().map(|resource| json!({"resource": resource})).collect();
            json!({"metadata": {"name": group}, "versions": [{"version": version, "resources": resources}]})
        })
        .collect();
    let body =
        json!({"kind": "APIGroupDiscoveryList", "apiVersion": format!("apidiscovery.k8s.io/{form}"), "metadata": {}, "items": items});
    let etag = format!("\"{}\"", body.to_string().bytes().fold(7u64, |sum, byte| sum.wrapping_mul(31).wrapping_add(u64::from(byte))));
    if request.headers().get("if-none-match").is_some_and(|known| *known == *etag) {
        let mut same = Response::new(Full::new(Bytes::new()).boxed());
        *same.status_mut() = StatusCode::NOT_MODIFIED;
        return same;
    }
    let mut response = full(StatusCode::OK, &body);
    response.headers_mut().insert("etag", etag.parse().unwrap());
    response
}

fn group_version(script: &Script, group: &str, version: &str) -> Response<Body> {
    if script.dead.contains(group) {
        return failed(StatusCode::SERVICE_UNAVAILABLE);
    }
    let Some(resources) = script.serves.get(&(group.to_owned(), version.to_owned())) else { return failed(StatusCode::NOT_FOUND) };
    let resources: Vec<Value> = resources.iter().map(|resource| json!({"name": resource})).collect();
    let name = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
    full(StatusCode::OK, &json!({"kind": "APIResourceList", "groupVersion": name, "resources": resources}))
}

/// `key=value` of the query's selector.
fn selects(query: &str, object: &Value) -> bool {
    let Some(selector) = query.split('&').find_map(|pair| pair.strip_prefix("labelSelector=")) else { return true };
    let selector = selector.replace("%3D", "=").replace("%2F", "/");
    let (key, value) = selector.split_once('=').unwrap();
    object["metadata"]["labels"][key] == value
}

fn objects(store: &Arc<Store>, script: &Arc<Mutex<Script>>, request: &Request<Incoming>, plural: &str) -> Response<Body> {
    let script = script.lock().unwrap();
    if script.denied.contains(plural) {
        return failed(StatusCode::FORBIDDEN);
    }
    if script.absent.contains(plural) {
        return failed(StatusCode::NOT_FOUND);
    }
    let query = request.uri().query().unwrap_or_default().to_owned();
    let (is_watch, failing) = (query.contains("watch=true"), *script.failing.borrow());
    if failing == Failing::ListsAndWatches || (failing == Failing::Watches && is_watch) {
        return failed(StatusCode::INTERNAL_SERVER_ERROR);
    }
    if is_watch {
        return events(Arc::clone(store), script.failing.subscribe(), plural.to_owned(), query);
    }
    if script.stalled.contains(plural) {
        return Response::new(BodyExt::boxed(StreamBody::new(futures::stream::pending())));
    }
    let objects = store.objects();
    let of_kind = objects.current.iter().filter(|((of, _), object)| of == plural && selects(&query, object));
    let items: Vec<&Value> = of_kind.map(|(_, object)| object).collect();
    let revision = *store.revision.borrow();
    full(
        StatusCode::OK,
        &json!({"kind": "List", "apiVersion": "v1", "metadata": {"resourceVersion": revision.to_string()}, "items": items}),
    )
}

fn events(store: Arc<Store>, failing: watch::Receiver<Failing>, plural: String, query: String) -> Response<Body> {
    let since = query.split('&').find_map(|pair| pair.strip_prefix("resourceVersion=")).unwrap().parse::<u64>().unwrap();
    let seen = store.revision.subscribe();
    let lines = futures::stream::unfold((store, failing, seen, since), move |(store, mut failing, mut seen, since)| {
        let (plural, query) = (plural.clone(), query.clone());
        async move {
            loop {
                let now = *seen.borrow_and_update();
                let lines: String = {
                    let objects = store.objects();
                    let news = objects.log.iter().filter(|(revision, of, _, object)| {
                        *revision > since && *revision <= now && *of == plural && selects(&query, object)
                    });
                    news.map(|(_, _, kind, object)| format!("{}\n", json!({"type": kind, "object": object}))).collect()
                };
                if !lines.is_empty() {
                    return Some((lines, (store, failing, seen, now)));
                }
                tokio::select! {
                    changed = seen.changed() => changed.ok()?,
                    changed = failing.changed() => {
                        changed.ok()?;
                        if *failing.borrow() != Failing::Nothing {
                            return None;
                        }
                    }
                }
            }
        }
    });
    let frames = lines.map(|lines| Ok::<_, Infallible>(Frame::data(Bytes::from(lines))));
    Response::new(BodyExt::boxed(StreamBody::new(frames)))
}

async fn write(store: &Arc<Store>, request: Request<Incoming>, name: &str) -> Response<Body> {
    let method = request.method().clone();
    let body: Value = serde_json::from_slice(&request.into_body().collect().await.unwrap().to_bytes()).unwrap();
    let key = ("leases".to_owned(), name.to_owned());
    let current = store.objects().current.get(&key).map(|object| object["metadata"]["resourceVersion"].clone());
    match method {
        Method::PATCH => full(StatusCode::OK, &store.put("leases", body)),
        Method::DELETE if current.as_ref() != Some(&body["preconditions"]["resourceVersion"]) => failed(StatusCode::CONFLICT),
        Method::DELETE => {
            store.delete("leases", name);
            full(StatusCode::OK, &json!({}))
        }
        _ => failed(StatusCode::METHOD_NOT_ALLOWED),
    }
}
