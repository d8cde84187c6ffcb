//! Three proxies whose tables are wrong about each other, some of whose peers are the client ports of the next proxy, and clients that
//! forge `via` and the loop marker: no request makes more than two hops (bar 10 of the issue "Discovery and routing").
//!
//! A hop is a leg from a proxy: to another proxy, or to a server. The servers write down what arrives; how often `via` names one of the
//! three, beyond what the client said, is how many proxies a request passed before the last one. What no server sees the proxies count.
//!
//! All legs to proxies go to client ports here: at the peer port a request is never passed on, whatever it says.
//!
//! The same in front of real kube-apiservers, which do not tell how `via` arrived: their audit logs say what came to them, and the proxies how
//! many of them took it.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::collections::HashSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Response};
use loadgen::twin::apis::{Api, Resource};
use loadgen::{Client, Pki};
use serde_json::json;
use support::binary::{Binary, Files};
use support::http1::{Wire, get_plain};
use support::real::{ADMIN, Apiserver, ControlPlane, Version};
use support::script::Script;
use support::tools::free_port;
use support::{NAME, TOKEN, headers};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

const IDS: [&str; 3] = ["cp-a", "cp-b", "cp-c"];
const A: usize = 0;
const B: usize = 1;
const C: usize = 2;

/// With all three servers there.
const REQUESTS: usize = 10_000;
/// After the server of cp-c has gone.
const ORPHANED: usize = 2_000;
/// Then, each of which has to pass two proxies.
const RINGS: usize = 600;
/// Clients of each proxy that ask one thing after the other; the first speaks HTTP/1.1.
const LANES: usize = 8;
/// Requests that may be tried again in each part. A lane has one under way, so a lost connection is one more try of each lane at most; a
/// second loss, within seconds and on one machine, is a fault.
const RETRIED_MAX: usize = IDS.len() * LANES;
/// For everything; a quiet machine takes a few seconds.
const LIMIT: Duration = Duration::from_secs(120);
/// For the counters of what was answered.
const SHOWN_LIMIT: Duration = Duration::from_secs(10);
/// Longer than a shard keeps them to itself.
const SHOWN_EVERY: Duration = Duration::from_millis(1_500);

/// What is asked for; who is said to serve it is in [`serves`].
const RESOURCES: [&str; 8] = ["own", "rings", "shared", "directs", "stales", "backs", "unknowns", "version"];

/// Does the table of proxy `me` say that `server` serves it? The next proxy is where the next server should be.
fn serves(me: usize, server: usize, resource: &str) -> bool {
    let (is_me, is_next) = (server == me, server == next(me));
    match resource {
        "own" => is_me,
        "shared" => true,
        // Each says that only the next one has it, and means that one's proxy.
        "rings" => is_next,
        // Only the one after that, whose address is right.
        "directs" => !is_me && !is_next,
        // cp-a says that cp-b has it, of which nobody else knows.
        "stales" => me == A && is_next,
        // cp-a and cp-c pass it on; cp-b has it, and would pass it on to cp-a.
        "backs" => is_next != (me == B),
        _ => false,
    }
}

fn next(me: usize) -> usize {
    (me + 1) % IDS.len()
}

/// What must come of a request: its status, how often it is given to a peer, and how many proxies take it.
struct Outcome {
    status: u16,
    reroutes: usize,
    proxies: usize,
}

/// `decided`: its `via` says that a proxy of our kind sent it.
fn expected(start: usize, resource: &str, decided: bool) -> Outcome {
    let here = |status| Outcome { status, reroutes: 0, proxies: 1 };
    let through = |status| Outcome { status, reroutes: 1, proxies: 2 };
    match (resource, start) {
        ("unknowns", _) | ("stales", B | C) => here(404),
        ("rings" | "directs", _) | ("stales", A) | ("backs", A | C) if decided => here(503),
        ("rings", _) | ("backs", C) => through(503),
        ("directs", _) => Outcome { status: 200, reroutes: 1, proxies: 1 },
        ("stales", _) => through(404),
        ("backs", A) => through(200),
        _ => here(200),
    }
}

/// The same without the server of cp-c: the status, and how many proxies take it.
fn expected_without_c(start: usize, resource: &str, decided: bool) -> (u16, RangeInclusive<usize>) {
    match (resource, start) {
        // Only that server has it, or only local may say that nobody has.
        ("own" | "unknowns" | "stales", C) | ("directs", A) => (503, 1..=1),
        ("shared" | "version", C) if decided => (503, 1..=1),
        // The proxy of cp-a, or the server of cp-b.
        ("shared" | "version", C) => (200, 1..=2),
        _ => {
            let Outcome { status, proxies, .. } = expected(start, resource, decided);
            (status, proxies..=proxies)
        }
    }
}

/// What a client adds to a request.
struct Game {
    fields: &'static [(&'static str, &'static str)],
    /// What HTTP/1.1 says of them in `Connection`.
    connection: &'static str,
    /// Does a `via` in it name a proxy of our kind?
    decided: bool,
}

impl Game {
    const fn honest(fields: &'static [(&'static str, &'static str)]) -> Self {
        Self { fields, connection: "", decided: false }
    }

    const fn forged(fields: &'static [(&'static str, &'static str)]) -> Self {
        Self { fields, connection: "", decided: true }
    }

    /// Is its `via` about the client's own connection alone?
    fn drops_via(&self, is_http1: bool) -> bool {
        is_http1 && self.connection.to_ascii_lowercase().contains("via")
    }

    fn is_decided(&self, is_http1: bool) -> bool {
        self.decided && !self.drops_via(is_http1)
    }

    /// How many of our three proxies it names to the server itself.
    fn ours(&self, is_http1: bool) -> usize {
        let via = self.fields.iter().filter(|(name, _)| name.eq_ignore_ascii_case("via"));
        if self.drops_via(is_http1) { 0 } else { ours(via.map(|&(_, value)| value)) }
    }

    fn headers(&self, number: usize) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert("x-number", number.into());
        headers.insert("audit-id", audit_id(number).parse().unwrap());
        for (name, value) in self.fields {
            headers.append(HeaderName::from_bytes(name.to_ascii_lowercase().as_bytes()).unwrap(), HeaderValue::from_static(value));
        }
        headers
    }

    fn http1(&self, path: &str, number: usize, token: &str) -> String {
        let mut text = format!("GET {path} HTTP/1.1\r\nHost: hops\r\nAuthorization: Bearer {token}\r\nX-Number: {number}\r\n");
        text.push_str(&format!("Audit-ID: {}\r\n", audit_id(number)));
        for (name, value) in self.fields {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        if !self.connection.is_empty() {
            text.push_str(&format!("Connection: {}\r\n", self.connection));
        }
        text + "\r\n"
    }
}

fn audit_id(number: usize) -> String {
    format!("hop-{number}")
}

const MARKER: &str = "x-kubernetes-peer-proxied";

static GAMES: [Game; 14] = [
    Game::honest(&[]),
    Game::forged(&[("via", "2.0 mvproxy-cp-b")]),
    Game::forged(&[("Via", "1.1 squid"), ("VIA", "2.0 mvproxy-cp-a"), ("vIa", "1.1 haproxy")]),
    Game::forged(&[("via", "1.1 one, 2.0 mvproxy-cp-c (a comment), 1.1 two")]),
    Game::forged(&[("via", "2.0 mvproxy-nobody"), ("via", "2.0 mvproxy-cp-a"), ("via", "2.0 mvproxy-cp-a")]),
    Game::forged(&[("via", "2.0\tmvproxy-cp-a")]),
    Game::honest(&[("via", "2.0 MVPROXY-cp-a"), ("via", "2.0 Mvproxy-cp-b")]),
    Game::honest(&[("via", "mvproxy-cp-a"), ("via", "2.0 xmvproxy-cp-b"), ("via", "2.0 cache (mvproxy-cp-c)"), ("via", "")]),
    Game::honest(&[(MARKER, "true")]),
    Game::honest(&[("X-Kubernetes-Peer-Proxied", "true"), (MARKER, "true"), (MARKER, "false"), ("x_kubernetes_peer_proxied", "true")]),
    // On HTTP/1.1 a client may call any field its own, those that only the proxy adds included.
    Game { fields: &[], connection: "via, x-kubernetes-peer-proxied, keep-alive", decided: false },
    Game { fields: &[(MARKER, "true"), ("via", "2.0 mvproxy-cp-a")], connection: "via, X-Kubernetes-Peer-Proxied", decided: true },
    Game { fields: &[("via", "2.0 mvproxy-cp-b"), ("via", "2.0 mvproxy-cp-c")], connection: "keep-alive, VIA, via", decided: true },
    Game { fields: &[("via", "2.0 mvproxy-cp-b")], connection: "keep-alive, x-kubernetes-peer-proxied", decided: true },
];

/// How often `via` names one of the three.
fn ours<'a>(values: impl Iterator<Item = &'a str>) -> usize {
    let names = values.flat_map(|value| value.split(',')).filter_map(|hop| hop.split_whitespace().nth(1));
    names.filter(|name| name.strip_prefix("mvproxy-").is_some_and(|id| IDS.contains(&id))).count()
}

/// The request of that number.
struct Plan {
    number: usize,
    start: usize,
    is_http1: bool,
    resource: &'static str,
    game: &'static Game,
}

impl Plan {
    /// In turn: proxies, lanes, resources, games.
    fn of(number: usize) -> Self {
        let (start, rest) = (number % IDS.len(), number / IDS.len());
        let (lane, rest) = (rest % LANES, rest / LANES);
        let (resource, rest) = (RESOURCES[rest % RESOURCES.len()], rest / RESOURCES.len());
        Self { number, start, is_http1: lane == 0, resource, game: &GAMES[rest % GAMES.len()] }
    }

    fn path(&self) -> String {
        if self.resource == "version" { "/version".to_owned() } else { format!("/apis/hops.example/v1/{}", self.resource) }
    }

    fn is_decided(&self) -> bool {
        self.game.is_decided(self.is_http1)
    }

    fn expected(&self) -> Outcome {
        expected(self.start, self.resource, self.is_decided())
    }

    fn describe(&self) -> String {
        let Self { number, start, is_http1, resource, game } = self;
        let version = if *is_http1 { "HTTP/1.1" } else { "HTTP/2" };
        format!("request {number} for {resource} to {} over {version} with {:?} and `{}`", IDS[*start], game.fields, game.connection)
    }
}

/// What came to a server.
struct Arrival {
    number: usize,
    via: Vec<String>,
    markers: Vec<String>,
}

impl Arrival {
    fn of<T>(request: &Request<T>) -> Self {
        let all = |name: &str| request.headers().get_all(name).iter().map(|value| value.to_str().unwrap().to_owned()).collect();
        let number = request.headers()["x-number"].to_str().unwrap().parse().unwrap();
        Self { number, via: all("via"), markers: all(MARKER) }
    }

    /// How many legs it took from the first proxy to the server.
    fn hops(&self, plan: &Plan) -> usize {
        let named = ours(self.via.iter().map(String::as_str));
        let hops = (1 + named).checked_sub(plan.game.ours(plan.is_http1));
        hops.unwrap_or_else(|| panic!("what the client said is not in via {:?}: {}", self.via, plan.describe()))
    }

    fn check(&self) {
        let plan = Plan::of(self.number);
        let hops = self.hops(&plan);
        assert!(hops <= 2, "{hops} hops, via {:?}: {}", self.via, plan.describe());
        // Set once, by a proxy, where one decided; never what the client says.
        let is_marked = hops > 1 || plan.is_decided();
        assert_eq!(self.markers, if is_marked { vec!["true"] } else { vec![] }, "{}", plan.describe());
    }
}

type Arrivals = Arc<Mutex<Vec<Arrival>>>;

/// A server that has everything but what nobody has, and keeps what arrives.
async fn backend(pki: &Pki, arrivals: &Arrivals) -> Script {
    let arrivals = Arc::clone(arrivals);
    Script::start(pki, move |_, request, mut respond| {
        arrivals.lock().unwrap().push(Arrival::of(&request));
        let is_known = !["unknowns", "stales"].iter().any(|name| request.uri().path().ends_with(name));
        async move {
            let head = Response::builder().status(if is_known { 200 } else { 404 }).body(()).unwrap();
            if let Ok(mut body) = respond.send_response(head, false) {
                body.send_data(Bytes::from_static(b"{}"), true).ok();
            }
        }
    })
    .await
}

/// Three proxies, where they are, and with which token they are asked.
struct Scene {
    ca: String,
    token: &'static str,
    proxies: Vec<Binary>,
    statuses: Vec<SocketAddr>,
}

impl Scene {
    fn start(pki: &Pki, backends: [SocketAddr; 3], token: &'static str) -> Self {
        let places = || IDS.map(|_| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())));
        let (clients, statuses) = (places(), places());
        let start = |me: usize| {
            let servers = [me, next(me), next(next(me))];
            let apis = servers.map(|server| {
                let served = RESOURCES.iter().filter(|resource| serves(me, server, resource));
                [Api::new("hops.example", "v1", served.map(|name| Resource::cluster(name, name, name)).collect())]
            });
            let addresses = [backends[me], clients[next(me)], backends[next(next(me))]];
            let table: Vec<_> = (0..IDS.len()).map(|at| (addresses[at], IDS[servers[at]], &apis[at][..])).collect();
            let files = Files::at(pki, &table);
            let command = files.command_on(clients[me].port(), statuses[me].port());
            files.start(command)
        };
        Self { proxies: (0..IDS.len()).map(start).collect(), statuses: statuses.to_vec(), ca: pki.ca_pem().to_owned(), token }
    }

    /// The sum of a counter over the proxies.
    async fn sum(&self, name: &str) -> usize {
        let mut sum = 0;
        for &status in &self.statuses {
            let (code, page) = get_plain(status, "/metrics").await;
            assert_eq!(code, 200, "{page}");
            let row = page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix("{shard=\"0\"} "));
            sum += row.unwrap_or_else(|| panic!("no {name} in {page}")).parse::<usize>().unwrap();
        }
        sum
    }

    /// How many requests the proxies took, and how often one was tried again.
    async fn counts(&self) -> (usize, usize) {
        (self.sum("mvproxy_requests_total").await, self.sum("mvproxy_retried_total").await)
    }

    /// The same since `before`, when all of them are counted: a shard shows its counters once in a while. Hardly any was tried again.
    async fn counts_since(&self, before: (usize, usize), least: usize) -> (usize, usize) {
        let begun = Instant::now();
        while self.sum("mvproxy_requests_total").await < before.0 + least && begun.elapsed() < SHOWN_LIMIT {
            sleep(Duration::from_millis(50)).await;
        }
        // What should not be there is shown at the same time, or at the next.
        sleep(SHOWN_EVERY).await;
        let (taken, retried) = self.counts().await;
        let (taken, retried) = (taken - before.0, retried - before.1);
        assert!(retried <= RETRIED_MAX, "{retried} requests were tried again, {taken} were taken");
        (taken, retried)
    }
}

/// One connection to a proxy.
enum Lane {
    Http1(Box<Wire>, SocketAddr, String),
    Http2(Client),
}

impl Lane {
    async fn open(address: SocketAddr, ca: &str, token: &str, is_http1: bool) -> Self {
        if is_http1 {
            Self::Http1(Box::new(Wire::dial(address, ca).await), address, ca.to_owned())
        } else {
            Self::Http2(Client::connect(address, ca, NAME, Some(token)).await.unwrap())
        }
    }

    async fn ask(&mut self, plan: &Plan, token: &str) -> u16 {
        match self {
            Self::Http1(wire, address, ca) => {
                wire.send(plan.game.http1(&plan.path(), plan.number, token)).await;
                let answer = wire.answer().await.unwrap_or_else(|end| panic!("{end:?}: {}", plan.describe()));
                if answer.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close")) {
                    **wire = Wire::dial(*address, ca).await;
                }
                answer.status
            }
            Self::Http2(client) => {
                let headers = plan.game.headers(plan.number);
                let answer = client.request(Method::GET, &plan.path(), headers, Bytes::new(), None).await;
                answer.unwrap_or_else(|error| panic!("{error}: {}", plan.describe())).status.as_u16()
            }
        }
    }
}

/// Asks for all of these numbers, every lane one after the other; the status of each.
async fn ask_all(scene: &Scene, numbers: &[usize]) -> Vec<(usize, u16)> {
    let mut lanes = JoinSet::new();
    for nth in 0..IDS.len() * LANES {
        let numbers = numbers.iter().copied().filter(|number| number % (IDS.len() * LANES) == nth);
        let plans: Vec<Plan> = numbers.map(Plan::of).collect();
        let Some(Plan { start, is_http1, .. }) = plans.first() else { continue };
        let (address, ca, token, is_http1) = (scene.proxies[*start].address(), scene.ca.clone(), scene.token, *is_http1);
        lanes.spawn(async move {
            let mut lane = Lane::open(address, &ca, token, is_http1).await;
            let mut answers = Vec::new();
            for plan in plans {
                answers.push((plan.number, lane.ask(&plan, token).await));
            }
            answers
        });
    }
    lanes.join_all().await.concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_makes_more_than_two_hops() {
    timeout(LIMIT, async {
        let (pki, arrivals) = (Pki::new().unwrap(), Arrivals::default());
        let mut backends = Vec::new();
        for _ in IDS {
            backends.push(backend(&pki, &arrivals).await);
        }
        let addresses = std::array::from_fn(|at: usize| backends[at].address());
        let scene = Scene::start(&pki, addresses, TOKEN);
        with_scripted_servers(&scene, &arrivals).await;
        // What cp-c had is nobody's now, and what all have is passed on by its proxy.
        drop(backends.pop());
        sleep(Duration::from_millis(300)).await;
        with_one_gone(&scene, &arrivals).await;
        only_rings(&scene, &arrivals).await;
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "on real kube-apiservers: tests/run runs it"]
async fn nor_does_one_in_front_of_real_servers() {
    let plane = ControlPlane::start().await;
    let mut servers = Vec::new();
    for id in IDS {
        servers.push(plane.server(id, Version::newer()).start().await);
    }
    define_resources(&servers).await;
    let addresses = std::array::from_fn(|at: usize| servers[at].address());
    let scene = Scene::start(plane.pki(), addresses, ADMIN.token);
    let served = timeout(LIMIT, with_all_servers(&scene)).await.unwrap();
    let logs: Vec<_> = servers.iter().map(|server| server.audit().all()).collect();
    for number in 0..REQUESTS {
        let events = logs.iter().filter_map(|log| log.get(&audit_id(number))).flatten();
        let received = events.filter(|event| event["stage"] == "RequestReceived").count();
        assert_eq!(received, usize::from(served.contains(&number)), "{}", Plan::of(number).describe());
    }
}

/// As custom resources, of which no table of ours knows: all servers have them, but those that nobody has.
async fn define_resources(servers: &[Apiserver]) {
    let admin = servers[0].client(ADMIN).await;
    let real = RESOURCES.into_iter().filter(|name| !["unknowns", "stales", "version"].contains(name));
    for name in real {
        let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
        let definition = json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": {"name": format!("{name}.hops.example")},
            "spec": {
                "group": "hops.example",
                "scope": "Cluster",
                "names": {"plural": name, "kind": format!("Kind{name}")},
                "versions": [{"name": "v1", "served": true, "storage": true, "schema": schema}],
            },
        });
        let (path, fields) = ("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", headers([("content-type", "application/json")]));
        let made = admin.request(Method::POST, path, fields, definition.to_string().into(), None).await.unwrap();
        assert_eq!(made.status, 201, "{:?}", made.json());
        for server in servers {
            let (client, begun) = (server.client(ADMIN).await, Instant::now());
            while client.get(&format!("/apis/hops.example/v1/{name}")).await.unwrap().status != 200 {
                assert!(begun.elapsed() < LIMIT, "{name} is not served");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn with_scripted_servers(scene: &Scene, arrivals: &Arrivals) {
    let served = with_all_servers(scene).await;
    let arrived = std::mem::take(&mut *arrivals.lock().unwrap());
    arrived.iter().for_each(Arrival::check);
    let twice = arrived.iter().filter(|arrival| arrival.hops(&Plan::of(arrival.number)) == 2).count();
    println!("{twice} of them after two hops, none after more");
    assert_eq!(arrived.len(), served.len(), "each is done once, or refused by a proxy");
    assert!(twice > REQUESTS / 20, "only {twice} made two hops: what are they kept from?");
}

/// Which of the requests a server answered.
async fn with_all_servers(scene: &Scene) -> HashSet<usize> {
    let begun = Instant::now();
    let before = scene.counts().await;
    let answers = ask_all(scene, &(0..REQUESTS).collect::<Vec<_>>()).await;
    assert_eq!(answers.len(), REQUESTS);
    let (mut reroutes, mut entries, mut served) = (0, 0, HashSet::new());
    for (number, status) in answers {
        let plan = Plan::of(number);
        let outcome = plan.expected();
        assert_eq!(status, outcome.status, "{}", plan.describe());
        assert!(outcome.proxies <= 2);
        reroutes += outcome.reroutes;
        entries += outcome.proxies;
        if status != 503 {
            served.insert(number);
        }
    }
    println!("{REQUESTS} requests in {:?}: {} served", begun.elapsed(), served.len());

    // Those that no server saw are seen here.
    let (taken, retried) = scene.counts_since(before, entries).await;
    let given = scene.sum("mvproxy_rerouted_total").await;
    println!("taken {taken} times by a proxy, given to a peer {given} times, {retried} of all tried again");
    assert!((entries..=entries + retried).contains(&taken), "taken {taken} times, not {entries}");
    assert!((reroutes..=reroutes + retried).contains(&given), "given to a peer {given} times, not {reroutes}");
    served
}

async fn with_one_gone(scene: &Scene, arrivals: &Arrivals) {
    let before = scene.counts().await;
    let answers = ask_all(scene, &(REQUESTS..REQUESTS + ORPHANED).collect::<Vec<_>>()).await;
    assert_eq!(answers.len(), ORPHANED);
    let (mut least, mut most, mut served) = (0, 0, 0);
    for (number, status) in answers {
        let plan = Plan::of(number);
        let (expected, proxies) = expected_without_c(plan.start, plan.resource, plan.is_decided());
        assert_eq!(status, expected, "{}", plan.describe());
        (least, most) = (least + proxies.start(), most + proxies.end());
        served += usize::from(status != 503);
    }
    let arrived = std::mem::take(&mut *arrivals.lock().unwrap());
    arrived.iter().for_each(Arrival::check);
    let passed_on = arrived.iter().filter(|arrival| Plan::of(arrival.number).start == C && Plan::of(arrival.number).resource == "shared");
    assert!(passed_on.count() > 0, "cp-c passes on what it cannot do");
    assert_eq!(arrived.len(), served, "each is done once, or refused by a proxy");
    let (taken, retried) = scene.counts_since(before, least).await;
    println!(
        "{ORPHANED} requests with one server gone: taken {taken} times by a proxy, {retried} of them again, {} arrived",
        arrived.len()
    );
    assert!((least..=most + retried).contains(&taken), "taken {taken} times, not {least} to {most}, {retried} of them again");
}

/// What each says that only the next has is asked of two proxies, not of the third.
async fn only_rings(scene: &Scene, arrivals: &Arrivals) {
    let before = scene.counts().await;
    let is_ring = |number: &usize| Plan::of(*number).resource == "rings" && !Plan::of(*number).is_decided();
    let numbers: Vec<usize> = (REQUESTS + ORPHANED..).filter(is_ring).take(RINGS).collect();
    for (number, status) in ask_all(scene, &numbers).await {
        assert_eq!(status, 503, "{}", Plan::of(number).describe());
    }
    let (taken, retried) = scene.counts_since(before, 2 * RINGS).await;
    println!("{RINGS} requests in a ring: taken {taken} times by a proxy, {retried} of them again");
    assert!((2 * RINGS..=2 * RINGS + retried).contains(&taken), "{RINGS} requests were taken {taken} times, {retried} of them again");
    assert_eq!(arrivals.lock().unwrap().len(), 0, "no server has them");
}
