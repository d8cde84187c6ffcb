//! Live discovery against servers that a test scripts: what it learns, what it does not lose, and where it never connects to.
//!
//! Longer than 600 lines: it is one subject, and all of its stories share one scaffold (`Seen`, `pair`).

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use discovery::inventory::{ADDRESS_REST, Settings};
use discovery::live::{self, Access, Announcement, Certificates, Config, Credentials, Hint, Live, Severity, Source, SourceState};
use discovery::{AllowList, Cidr, Name, Reader, ServerId, Snapshot, Standing, Trust, Via};
use serde_json::json;

use self::fake::{Cluster, Failing, FakeServer};

mod fake;

/// The longest that anything here may take.
const LIMIT: Duration = Duration::from_secs(20);

/// What all tests here were told.
static LOG: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn log(severity: Severity, line: &str) {
    println!("{severity:?}: {line}");
    LOG.lock().unwrap().push(format!("{severity:?}: {line}"));
}

/// Live discovery, and its reader.
struct Seen {
    live: Live,
    reader: Reader,
}

impl Seen {
    /// The first server is local; the ports of all are allowed.
    fn start(cluster: &Cluster, servers: &[&FakeServer]) -> Self {
        Self::start_with(cluster, servers, None)
    }

    fn start_with(cluster: &Cluster, servers: &[&FakeServer], announcement: Option<Announcement>) -> Self {
        Self::start_by(cluster, settings(servers), announcement)
    }

    fn start_by(cluster: &Cluster, settings: Settings, announcement: Option<Announcement>) -> Self {
        let config = Config { settings, access: access(cluster), announcement, log };
        let live = live::start(config).unwrap();
        let reader = live.readers().reader();
        Self { live, reader }
    }

    /// Waits until the snapshot is so.
    fn until(&mut self, what: &str, mut is_so: impl FnMut(&Snapshot) -> bool) -> Duration {
        let began = Instant::now();
        while !is_so(self.reader.current()) {
            assert!(began.elapsed() < LIMIT, "{what}: {:?}\n{:#?}", self.reader.current(), self.live.status());
            std::thread::sleep(Duration::from_millis(2));
        }
        began.elapsed()
    }

    /// Waits until these serve it, each by the letter of its id.
    fn until_served(&mut self, gvr: &str, letters: &str) -> Duration {
        self.until(&format!("{gvr} by {letters}"), |snapshot| who(snapshot, gvr) == letters)
    }

    fn until_status(&self, what: &str, is_so: impl Fn(&live::Status) -> bool) {
        self.until_status_within(LIMIT, what, is_so);
    }

    fn until_status_within(&self, limit: Duration, what: &str, is_so: impl Fn(&live::Status) -> bool) {
        let began = Instant::now();
        while !is_so(&self.live.status()) {
            assert!(began.elapsed() < limit, "{what}: {:#?}", self.live.status());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn who(&mut self, gvr: &str) -> String {
        who(self.reader.current(), gvr)
    }
}

/// The first server is local; the ports of all are allowed.
fn settings(servers: &[&FakeServer]) -> Settings {
    Settings {
        local: ServerId::new(&servers[0].id),
        local_address: servers[0].address,
        peers: BTreeMap::new(),
        allowed: AllowList {
            ranges: vec![Cidr::parse("127.0.0.0/8").unwrap()],
            ports: servers.iter().map(|server| server.address.port()).collect(),
            own: vec![servers[0].address],
        },
        allow_endpoints: true,
        reaches_proxies: true,
    }
}

fn access(cluster: &Cluster) -> Access {
    Access {
        credentials: Credentials::token("right").unwrap(),
        certificates: Certificates { local_ca: cluster.ca.clone(), peer_ca: cluster.ca.clone(), client_pair: None },
    }
}

/// The letters of the servers that serve it, or why none does.
fn who(snapshot: &Snapshot, gvr: &str) -> String {
    let parts: Vec<&[u8]> = gvr.split('/').map(str::as_bytes).collect();
    let serving = match snapshot.lookup(&Name::new(parts[0], parts[1], parts[2])) {
        Ok(serving) if snapshot.passes_over_local(serving) => serving.intersect(snapshot.peers()),
        Ok(serving) => serving,
        Err(standing) => return format!("{standing:?}"),
    };
    serving.iter().map(|index| letter(snapshot.servers()[index.get()].id.as_str())).collect()
}

fn ready(snapshot: &Snapshot) -> String {
    snapshot.ready().iter().map(|index| letter(snapshot.servers()[index.get()].id.as_str())).collect()
}

fn letter(id: &str) -> char {
    id.chars().last().unwrap()
}

/// `a` is local and serves pods; `b` serves pods and jobs. Both have Leases.
fn pair() -> (Cluster, FakeServer, FakeServer) {
    let cluster = Cluster::new();
    let a = cluster.server('a', &["/v1/pods"]);
    let b = cluster.server('b', &["/v1/pods", "batch/v1/jobs"]);
    cluster.lease(&a, "a1");
    cluster.lease(&b, "b1");
    (cluster, a, b)
}

#[test]
fn the_first_snapshot_knows_who_serves_what() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    assert_eq!((seen.who("batch/v1/jobs"), seen.reader.current().generation()), ("Unasked".into(), 0));
    seen.until_served("batch/v1/jobs", "b");
    assert_eq!((seen.who("/v1/pods"), seen.who("batch/v1/other")), ("ab".into(), "Unknown".into()));
    assert_eq!(ready(seen.reader.current()), "ab");
    seen.until_status("versions", |status| status.servers.iter().all(|server| server.version.as_deref() == Some("v1.36.4-fake")));
    let status = seen.live.status();
    assert_eq!(status.source(Source::Leases), SourceState::Synced);
    assert_eq!((status.errors.fetch_discovery, status.panics, status.watched), (0, 0, Some(a.address)));
    seen.live.stop();
    assert_eq!(seen.reader.current().servers().len(), 2, "routing outlives it");
}

#[test]
fn a_server_that_starts_anew_is_asked_at_once() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    b.serves(&["/v1/pods", "batch/v1/cronjobs"]);
    cluster.lease(&b, "b2");
    let taken = seen.until_served("batch/v1/cronjobs", "b");
    assert!(taken < Duration::from_secs(1), "{taken:?}");
    assert_eq!(seen.who("batch/v1/jobs"), "Unknown", "a new process is believed");
}

#[test]
fn a_server_whose_lease_is_deleted_is_gone() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    cluster.delete("leases", &b.id);
    let taken = seen.until_served("batch/v1/jobs", &format!("{:?}", Standing::Gone));
    assert!(taken < Duration::from_secs(1), "{taken:?}");
    assert_eq!(seen.who("/v1/pods"), "a");
    cluster.lease(&b, "b2");
    seen.until_served("batch/v1/jobs", "b");
    seen.until("b is ready", |snapshot| ready(snapshot) == "ab");
}

/// Its Lease is deleted and written again: between two rounds it left and came back.
#[test]
fn a_server_that_comes_back_at_once_is_used_again() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until("both", |snapshot| snapshot.is_complete() && ready(snapshot) == "ab" && who(snapshot, "batch/v1/jobs") == "b");
    for nth in 0..5 {
        let new = format!("batch/v1/new{nth}");
        b.serves(&["/v1/pods", "batch/v1/jobs", &new]);
        cluster.put_again("leases", &b.id);
        let taken = seen.until_served(&new, "b");
        assert!(taken < Duration::from_secs(3), "{taken:?}");
        seen.until("b is ready", |snapshot| ready(snapshot) == "ab");
    }
}

/// A Lease gives it another name for no time: what was known of it is kept, and it may serve something else.
#[test]
fn a_server_that_was_named_for_no_time_is_asked_again() {
    let (cluster, a, b) = pair();
    let c = cluster.server('c', &["batch/v1/cronjobs"]);
    cluster.put("endpointslices", slice("kubernetes", c.address));
    let mut seen = Seen::start(&cluster, &[&a, &b, &c]);
    let is_well =
        |snapshot: &Snapshot| snapshot.ready().iter().count() == 3 && snapshot.lookup(&Name::new(b"batch", b"v1", b"cronjobs")).is_ok();
    seen.until("all", |snapshot| snapshot.is_complete() && is_well(snapshot));
    let fetched = |live: &Live| live.status().servers.iter().find(|server| server.view.id.as_str().starts_with("addr:"))?.view.fetched;
    let before = fetched(&seen.live);
    let metadata = json!({"name": format!("mvproxy-{}", c.id), "namespace": "kube-system", "labels": {"mvproxy.io/identity": "peer"},
        "annotations": {"mvproxy.io/peer-address": "127.0.0.1:1", "mvproxy.io/server-address": c.address.to_string()}});
    cluster.put_for_no_time("leases", json!({"metadata": metadata}));
    seen.until_status_within(Duration::from_secs(5), "asked again", |_| fetched(&seen.live).is_some_and(|at| Some(at) > before));
    seen.until("all again", |snapshot| snapshot.is_complete() && is_well(snapshot));
    assert!(c.count("GET /apis ", 200) + c.count("GET /apis ", 304) >= 2, "{:?}", c.asked());
}

#[test]
fn without_crds_nothing_goes_to_a_peer_and_the_status_says_why() {
    let (cluster, a, b) = pair();
    a.deny("customresourcedefinitions");
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("/v1/pods", "a");
    // Somebody has them, so their absence here is no 404.
    seen.until_served("batch/v1/jobs", "Gone");
    seen.until_status("denied", |status| matches!(status.source(Source::CustomResources), SourceState::Denied(_)));
    a.allow("customresourcedefinitions");
    seen.until_served("batch/v1/jobs", "b");
    // Denied again, what was listed before counts.
    a.deny("customresourcedefinitions");
    assert_eq!(seen.who("batch/v1/jobs"), "b");
}

#[test]
fn custom_and_aggregated_groups_are_left_out() {
    let (cluster, a, b) = pair();
    b.serves(&["batch/v1/jobs", "example.org/v1/things", "metrics.k8s.io/v1/nodes"]);
    cluster.put(
        "customresourcedefinitions",
        json!({"metadata": {"name": "things.example.org"},
        "spec": {"group": "example.org", "versions": [{"name": "v1"}]}}),
    );
    cluster.put("apiservices", json!({"metadata": {"name": "v1.batch"}, "spec": {"group": "batch", "version": "v1"}}));
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    assert_eq!((seen.who("example.org/v1/things"), seen.who("metrics.k8s.io/v1/nodes")), ("Excluded".into(), "b".into()));
    cluster.put(
        "apiservices",
        json!({"metadata": {"name": "v1.metrics.k8s.io"},
        "spec": {"group": "metrics.k8s.io", "version": "v1", "service": {"name": "m", "namespace": "x"}}}),
    );
    seen.until_served("metrics.k8s.io/v1/nodes", "Excluded");
}

#[test]
fn storage_versions_may_be_absent_and_come_later() {
    let (cluster, a, b) = pair();
    a.hide("storageversions");
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    // Nobody waits for them.
    seen.until_status("absent", |status| status.source(Source::StorageVersions) == SourceState::Absent);
    a.show("storageversions");
    seen.until_status("found", |status| status.source(Source::StorageVersions) == SourceState::Synced);
}

#[test]
fn storage_versions_may_be_denied() {
    let (cluster, a, b) = pair();
    a.deny("storageversions");
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.until_status("denied", |status| matches!(status.source(Source::StorageVersions), SourceState::Denied(_)));
    assert!(LOG.lock().unwrap().iter().any(|line| line.starts_with("Warning: discovery: storageversions: Denied(")));
}

/// A StorageVersion is a reason to ask again, and the answer is that nothing changed.
#[test]
fn a_document_that_did_not_change_is_not_sent_again() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    let count = |b: &FakeServer, line: &str| b.asked().iter().filter(|asked| *asked == line).count();
    let whole = count(&b, "GET /apis 200");
    cluster.put(
        "storageversions",
        json!({"metadata": {"name": "batch.jobs"},
        "status": {"storageVersions": [{"apiServerID": b.id, "servedVersions": ["batch/v1"]}]}}),
    );
    let began = Instant::now();
    while count(&b, "GET /apis 304") == 0 || count(&b, "GET /api 304") == 0 {
        assert!(began.elapsed() < LIMIT, "{:#?}", b.asked());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(count(&b, "GET /apis 200"), whole);
    assert_eq!(seen.who("batch/v1/jobs"), "b");
    // Half of it is new: then all of it is fetched.
    b.serves(&["/v1/pods", "batch/v1/jobs", "batch/v1/cronjobs"]);
    cluster.put(
        "storageversions",
        json!({"metadata": {"name": "batch.cronjobs"},
        "status": {"storageVersions": [{"apiServerID": b.id, "servedVersions": ["batch/v1"]}]}}),
    );
    seen.until_served("batch/v1/cronjobs", "b");
    assert_eq!(seen.who("/v1/pods"), "ab");
}

#[test]
fn a_server_with_old_documents_is_asked_about_what_others_serve() {
    let (cluster, a, b) = pair();
    let c = cluster.server('c', &["/v1/pods", "batch/v1/jobs"]);
    c.old();
    cluster.lease(&c, "c1");
    let mut seen = Seen::start(&cluster, &[&a, &b, &c]);
    seen.until("c was asked", |snapshot| snapshot.is_complete() && who(snapshot, "/v1/pods") == "abc");
    // It may have been asked before anybody knew of batch.
    cluster.put(
        "storageversions",
        json!({"metadata": {"name": "batch.jobs"},
        "status": {"storageVersions": [{"apiServerID": c.id, "servedVersions": ["batch/v1"]}]}}),
    );
    seen.until_served("batch/v1/jobs", "bc");
}

/// The server of an aggregated group is away, and the kube-apiserver in front of it says so.
#[test]
fn a_dead_aggregated_group_costs_nothing_else() {
    let (cluster, a, b) = pair();
    b.serves(&["/v1/pods", "batch/v1/jobs", "metrics.k8s.io/v1/nodes"]);
    let c = cluster.server('c', &["/v1/pods", "batch/v1/jobs"]);
    c.old();
    c.kill_group("metrics.k8s.io");
    cluster.lease(&c, "c1");
    cluster.put(
        "apiservices",
        json!({"metadata": {"name": "v1.metrics.k8s.io"},
        "spec": {"group": "metrics.k8s.io", "version": "v1", "service": {"name": "m", "namespace": "x"}}}),
    );
    let mut seen = Seen::start(&cluster, &[&a, &b, &c]);
    seen.until_served("metrics.k8s.io/v1/nodes", "Excluded");
    // Whatever c was asked about before is asked again, now that all is listed and b has said what there is.
    seen.until("b was asked", |snapshot| who(snapshot, "batch/v1/jobs").starts_with('b'));
    cluster.lease(&c, "c2");
    seen.until_served("batch/v1/jobs", "bc");
}

/// What an extension apiserver publishes is in the documents of all servers.
#[test]
fn an_aggregated_group_that_is_too_large_costs_nothing_else() {
    let (cluster, a, b) = pair();
    let many: Vec<String> = (0..20_001).map(|nth| format!("metrics.k8s.io/v1/r{nth}")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    a.serves(&[&["/v1/pods"], &many[..]].concat());
    b.serves(&[&["/v1/pods", "batch/v1/jobs"], &many[..]].concat());
    cluster.put(
        "apiservices",
        json!({"metadata": {"name": "v1.metrics.k8s.io"},
        "spec": {"group": "metrics.k8s.io", "version": "v1", "service": {"name": "m", "namespace": "x"}}}),
    );
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.until_served("/v1/pods", "ab");
    assert_eq!(seen.who("metrics.k8s.io/v1/r7"), "Excluded");
    // Nobody knows that it is aggregated: then it is a server that lies.
    cluster.delete("apiservices", "v1.metrics.k8s.io");
    let is_told = |server: &live::ServerStatus| server.error.as_deref() == Some("more than 20000 resources");
    seen.until_status("too many", |status| status.servers.iter().any(is_told));
    assert_eq!(seen.who("batch/v1/jobs"), "b");
}

/// As v1.26 to v1.29 have them.
#[test]
fn aggregated_documents_of_the_beta_are_enough() {
    let (cluster, a, b) = pair();
    let c = cluster.server('c', &["/v1/pods", "batch/v1/cronjobs"]);
    c.beta();
    cluster.lease(&c, "c1");
    let mut seen = Seen::start(&cluster, &[&a, &b, &c]);
    seen.until_served("batch/v1/cronjobs", "c");
    seen.until_served("/v1/pods", "abc");
    // Of one group-version: no more segments than that. What is watched may be watched here.
    let is_one = |asked: &String| ["GET /api/", "GET /apis/"].iter().any(|root| asked.starts_with(root)) && asked.split('/').count() <= 4;
    assert!(!c.asked().iter().any(is_one), "{:?}", c.asked());
}

/// Names of extension apiservers are in the documents of all servers.
#[test]
fn one_bad_name_blinds_nobody() {
    let (cluster, a, b) = pair();
    a.serves(&["/v1/pods", "example.org/v1/no name"]);
    b.serves(&["/v1/pods", "batch/v1/jobs", "example.org/v1/no name"]);
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    assert_eq!((seen.who("/v1/pods"), seen.who("example.org/v1/no name")), ("ab".into(), "Unknown".into()));
    let said = format!("{} at {}: 1 resources with bad names are left out", b.id, b.address);
    assert!(LOG.lock().unwrap().iter().any(|line| line.contains(&said)), "{said}");
}

/// Many can write Leases, and the `kubernetes` slice can be anybody's on a cluster whose servers do not keep it.
#[test]
fn one_odd_object_blinds_no_watch() {
    let (cluster, a, b) = pair();
    let c = cluster.server('c', &["batch/v1/cronjobs"]);
    let d = cluster.server('d', &["batch/v1/later"]);
    // Kubernetes takes this time, and the usual types of Rust do not.
    let fields = json!([{"manager": "x", "operation": "Update", "time": "9999-12-31T23:59:59Z"}]);
    let odd = |name: &str| {
        let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/service-name": "kubernetes"});
        let metadata = json!({"name": name, "namespace": "kube-system", "labels": labels, "managedFields": fields});
        cluster.put("leases", json!({"metadata": metadata, "spec": {"holderIdentity": 7}}));
        cluster.put("endpointslices", json!({"metadata": metadata, "endpoints": null, "ports": [{"name": "x", "port": 70_000}]}));
    };
    odd("listed");
    let mut seen = Seen::start(&cluster, &[&a, &b, &c, &d]);
    seen.until_served("batch/v1/jobs", "b");
    seen.until_status("all is listed", are_synced);
    odd("watched");
    cluster.lease(&c, "c1");
    seen.until_served("batch/v1/cronjobs", "c");
    cluster.put("endpointslices", slice("kubernetes", d.address));
    seen.until("d is served", |snapshot| snapshot.lookup(&Name::new(b"batch", b"v1", b"later")).is_ok());
    assert!(are_synced(&seen.live.status()), "{:#?}", seen.live.status());
}

#[test]
fn a_token_that_lapsed_takes_no_server_away() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    a.lapse();
    b.lapse();
    a.stop();
    seen.until("a is down", |snapshot| ready(snapshot) == "b");
    cluster.restart(&a);
    seen.until("a is back", |snapshot| ready(snapshot) == "ab");
    let began = Instant::now();
    while b.count("GET /readyz", 401) < 3 {
        assert!(began.elapsed() < LIMIT, "{:?}", b.asked());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(ready(seen.reader.current()), "ab");
    // It is the token that is forgiven, and not the server.
    b.ready(false);
    seen.until("b leaves", |snapshot| ready(snapshot) == "a");
}

/// `--anonymous-auth=false`: without a good token nobody learns whether a server is ready.
#[test]
fn a_bad_token_takes_no_server_away_that_answers_nobody() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until("both", |snapshot| snapshot.is_complete() && ready(snapshot) == "ab");
    for server in [&a, &b] {
        server.lapse();
        server.close();
    }
    let says = |status: &live::Status, what: &str| {
        status.servers.iter().all(|server| server.error.as_deref().is_some_and(|error| error.contains(what)))
    };
    seen.until_status("why", |status| says(status, "/readyz refuses our credentials"));
    assert_eq!(ready(seen.reader.current()), "ab");
    a.stop();
    seen.until("a is down", |snapshot| ready(snapshot) == "b");
    cluster.restart(&a);
    // It may be starting.
    let taken = seen.until("a is back", |snapshot| ready(snapshot) == "ab");
    assert!(taken > Duration::from_secs(4), "{taken:?}");
}

/// Eight peers hold all permits for more than half a minute.
#[test]
fn slow_peers_are_given_up_and_do_not_hold_up_local() {
    let cluster = Cluster::new();
    let groups: Vec<String> = (0..12).map(|nth| format!("g{nth}.example.org/v1/things")).collect();
    let mut serves: Vec<&str> = groups.iter().map(String::as_str).collect();
    let a = cluster.server('a', &serves);
    cluster.lease(&a, "a1");
    let peers: Vec<FakeServer> = "bcdefghi".chars().map(|letter| cluster.server(letter, &["/v1/pods"])).collect();
    for peer in &peers {
        peer.old();
        cluster.lease(peer, "1");
    }
    let all: Vec<&FakeServer> = [&a].into_iter().chain(&peers).collect();
    let mut seen = Seen::start(&cluster, &all);
    seen.until("all were asked", |snapshot| snapshot.is_complete() && who(snapshot, "/v1/pods") == "bcdefghi");
    assert_eq!(seen.live.status().errors.fetch_discovery, 0);
    let before: Vec<usize> = peers.iter().map(|peer| peer.count("GET /apis ", 200)).collect();
    for peer in &peers {
        peer.slow(Duration::from_secs(4));
        cluster.lease(peer, "2");
    }
    let began = Instant::now();
    while peers.iter().zip(&before).any(|(peer, before)| peer.count("GET /apis ", 200) == *before) {
        assert!(began.elapsed() < LIMIT, "not all were asked again");
        std::thread::sleep(Duration::from_millis(2));
    }
    serves.push("batch/v1/new");
    a.serves(&serves);
    seen.live.notify(Hint::LocalInDoubt);
    let taken = seen.until_served("batch/v1/new", "a");
    assert!(taken < Duration::from_secs(2), "{taken:?}");
    let is_given_up = |server: &live::ServerStatus| server.error.as_deref() == Some("no whole answer in 15 s");
    seen.until_status_within(Duration::from_secs(25), "given up", |status| status.servers.iter().any(is_given_up));
}

const WATCHED: [Source; 6] =
    [Source::Leases, Source::Proxies, Source::CustomResources, Source::ApiServices, Source::Endpoints, Source::StorageVersions];

fn are_synced(status: &live::Status) -> bool {
    WATCHED.into_iter().all(|source| status.source(source) == SourceState::Synced)
}

fn are_failing(status: &live::Status) -> bool {
    WATCHED.into_iter().all(|source| matches!(status.source(source), SourceState::Failing(_)))
}

#[test]
fn lists_and_watches_that_fail_for_long_change_nothing_and_heal_by_themselves() {
    let (cluster, a, b) = pair();
    let c = cluster.server('c', &["batch/v1/cronjobs"]);
    let mut seen = Seen::start(&cluster, &[&a, &b, &c]);
    seen.until_served("batch/v1/jobs", "b");
    seen.until_status("synced", are_synced);
    seen.until("both", |snapshot| snapshot.is_complete() && ready(snapshot) == "ab" && who(snapshot, "/v1/pods") == "ab");
    let generation = seen.reader.current().generation();
    a.fail(Failing::ListsAndWatches);
    seen.until_status("failing", are_failing);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(10) {
        assert_eq!((seen.reader.current().generation(), seen.who("batch/v1/jobs")), (generation, "b".into()));
        assert!(!seen.live.status().sources.iter().any(|(_, state)| *state == SourceState::Synced), "{:#?}", seen.live.status());
        std::thread::sleep(Duration::from_millis(20));
    }
    a.fail(Failing::Nothing);
    seen.until_status_within(Duration::from_secs(10), "synced again, though no object changed", are_synced);
    assert_eq!(seen.reader.current().generation(), generation);
    cluster.lease(&c, "c1");
    seen.until_served("batch/v1/cronjobs", "c");
}

#[test]
fn watches_that_fail_alone_are_not_listed_anew_all_the_time() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.until_status("synced", are_synced);
    let is_list = |asked: &&String| asked.contains("/apiservices?") && !asked.contains("watch=true");
    let lists = |server: &FakeServer| server.asked().iter().filter(is_list).count();
    let before = lists(&a);
    a.fail(Failing::Watches);
    std::thread::sleep(Duration::from_secs(4));
    let count = lists(&a) - before;
    assert!((1..=6).contains(&count), "{count} lists in 4 s");
    a.fail(Failing::Nothing);
    seen.until_status_within(Duration::from_secs(10), "synced again", are_synced);
    b.serves(&["/v1/pods", "batch/v1/cronjobs"]);
    cluster.lease(&b, "b2");
    seen.until_served("batch/v1/cronjobs", "b");
}

/// A quarter of a minute is what a list has; a watch has minutes.
#[test]
fn a_list_that_hangs_is_given_up_and_a_watch_is_not() {
    let (cluster, a, b) = pair();
    a.stall("storageversions");
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    let is_given_up = |status: &live::Status| {
        let state = status.source(Source::StorageVersions);
        matches!(state, SourceState::Failing(why) if why.contains("no answer in time"))
    };
    seen.until_status_within(Duration::from_secs(40), "given up", is_given_up);
    let is_watch = |asked: &&String| asked.contains("/leases?") && asked.contains("watch=true");
    assert_eq!(a.asked().iter().filter(is_watch).count(), 2, "one of servers, one of proxies: {:#?}", a.asked());
    a.unstall("storageversions");
    // The next list may hang already.
    seen.until_status_within(Duration::from_secs(40), "listed", are_synced);
}

#[test]
fn more_leases_than_are_kept_are_told_of_and_drive_nobody_out() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until("both", |snapshot| snapshot.is_complete() && ready(snapshot) == "ab" && who(snapshot, "batch/v1/jobs") == "b");
    a.fail(Failing::ListsAndWatches);
    seen.until_status("failing", are_failing);
    // Their names come before all others.
    let made_up = |nth: u32| format!("apiserver-{nth:026b}").replace('0', "2").replace('1', "3");
    for nth in 0..4_096 {
        cluster.lease_at(&made_up(nth), "x", "");
    }
    a.fail(Failing::Nothing);
    seen.until_status("listed anew", are_synced);
    let said = "Warning: discovery: leases: more than 4096 objects";
    let lines = || LOG.lock().unwrap().iter().filter(|line| line.starts_with(said)).count();
    assert_eq!(lines(), 1);
    cluster.lease_at(&made_up(0), "y", "");
    b.serves(&["/v1/pods", "batch/v1/jobs", "batch/v1/cronjobs"]);
    cluster.lease(&b, "b2");
    seen.until_served("batch/v1/cronjobs", "b");
    assert_eq!(lines(), 1, "once for each list");
}

/// A Lease that names what is no server, and changes, goes and comes back all the time.
#[test]
fn what_a_lease_can_make_us_dial_is_bounded() {
    let (cluster, a, b) = pair();
    let traps = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let addresses = traps.each_ref().map(|trap| trap.local_addr().unwrap());
    let mut settings = settings(&[&a, &b]);
    settings.allowed.ports.extend(addresses.map(|address| address.port()));
    let mut seen = Seen::start_by(&cluster, settings, None);
    seen.until_served("batch/v1/jobs", "b");
    traps.iter().for_each(|trap| trap.set_nonblocking(true).unwrap());
    let id = format!("apiserver-{}", "e".repeat(26));
    let (began, mut dials, mut nth) = (Instant::now(), 0, 0);
    while began.elapsed() < Duration::from_secs(4) {
        cluster.lease_at(&id, &format!("e{nth}"), &addresses[nth % 2].to_string());
        std::thread::sleep(Duration::from_millis(25));
        if nth % 3 == 0 {
            cluster.delete("leases", &id);
            std::thread::sleep(Duration::from_millis(25));
        }
        // Whoever connects is sent away.
        dials += traps.iter().map(|trap| std::iter::from_fn(|| trap.accept().ok()).count()).sum::<usize>();
        nth += 1;
    }
    assert!((1..=5).contains(&dials), "{dials} dials in 4 s");
}

/// A server that is known by its address only: nothing says that it is another one now.
#[test]
fn the_version_of_a_server_that_was_replaced_is_the_new_one() {
    let (cluster, a, b) = pair();
    let c = cluster.server('c', &["batch/v1/cronjobs"]);
    cluster.put("endpointslices", slice("kubernetes", c.address));
    let mut seen = Seen::start(&cluster, &[&a, &b, &c]);
    let is_version = |status: &live::Status, version: &str| {
        let found = status.servers.iter().find(|server| server.view.address.is_some_and(|(address, _)| address == c.address));
        found.is_some_and(|server| server.version.as_deref() == Some(version) && server.view.is_ready)
    };
    seen.until_status("the first", |status| is_version(status, "v1.36.4-fake"));
    // The status may be ahead of the snapshot.
    seen.until("c is there", |snapshot| snapshot.ready().len() == 3);
    // It serves the same, and was away for a moment.
    c.stop();
    seen.until("c is away", |snapshot| ready(snapshot) == "ab");
    c.version("v1.36.5");
    cluster.restart(&c);
    seen.until_status("the second", |status| is_version(status, "v1.36.5"));
    // It serves something else, and nobody saw it away.
    c.version("v1.37.0");
    c.serves(&["batch/v1/cronjobs", "batch/v1/later"]);
    seen.until_status("the third", |status| is_version(status, "v1.37.0"));
}

#[test]
fn watches_go_to_a_peer_while_local_is_down_and_come_back() {
    let (cluster, a, b) = pair();
    let c = cluster.server('c', &["batch/v1/cronjobs"]);
    let mut seen = Seen::start(&cluster, &[&a, &b, &c]);
    seen.until_served("batch/v1/jobs", "b");
    a.stop();
    seen.until("a is not ready", |snapshot| ready(snapshot) == "b");
    assert_eq!(seen.who("/v1/pods"), "b", "local is in doubt");
    cluster.lease(&c, "c1");
    seen.until_served("batch/v1/cronjobs", "c");
    assert_eq!(seen.live.status().watched, Some(b.address));
    cluster.restart(&a);
    let taken = seen.until("a is ready and served", |snapshot| ready(snapshot) == "abc" && who(snapshot, "/v1/pods") == "ab");
    assert!(taken < Duration::from_secs(1), "{taken:?}");
    seen.until_status("back", |status| status.watched == Some(a.address));
    cluster.delete("leases", &c.id);
    seen.until_served("batch/v1/cronjobs", "Gone");
}

#[test]
fn no_traffic_before_a_server_is_ready_and_none_lost_to_one_slow_answer() {
    let (cluster, a, b) = pair();
    b.ready(false);
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("/v1/pods", "a");
    assert_eq!((seen.who("batch/v1/jobs"), ready(seen.reader.current())), ("Unasked".into(), "a".into()));
    b.ready(true);
    let taken = seen.until("b is ready", |snapshot| ready(snapshot) == "ab" && who(snapshot, "batch/v1/jobs") == "b");
    assert!(taken < Duration::from_secs(1), "{taken:?}");
    b.freeze(true);
    let taken = seen.until("b is frozen", |snapshot| ready(snapshot) == "a");
    assert!((Duration::from_millis(3_900)..Duration::from_secs(8)).contains(&taken), "{taken:?}");
    assert_eq!(seen.who("batch/v1/jobs"), "b", "what it serves is not forgotten");
    b.freeze(false);
    seen.until("b thawed", |snapshot| ready(snapshot) == "ab");
}

#[test]
fn a_panic_leaves_routing_as_it_was_and_heals() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    for panics in 1..=2 {
        seen.live.notify(Hint::Panic);
        let began = Instant::now();
        while seen.live.status().panics < panics {
            assert_eq!((seen.who("batch/v1/jobs"), seen.who("/v1/pods")), ("b".into(), "ab".into()));
            assert!(began.elapsed() < LIMIT);
        }
        // The second one makes it learn everything anew; meanwhile nothing changes.
        b.serves(&["/v1/pods", "batch/v1/jobs", &format!("batch/v1/new{panics}")]);
        cluster.lease(&b, &format!("b-{panics}"));
        seen.until(&format!("panic {panics}"), |snapshot| {
            assert_eq!(who(snapshot, "batch/v1/jobs"), "b");
            who(snapshot, &format!("batch/v1/new{panics}")) == "b"
        });
    }
}

/// The second panic makes it learn everything anew, and nobody tells it of a server that left, or of a CRD that was deleted.
#[test]
fn what_left_a_moment_ago_is_not_forgotten_by_panics() {
    let (cluster, a, b) = pair();
    let things = json!({"metadata": {"name": "things.example.org"}, "spec": {"group": "example.org", "versions": [{"name": "v1"}]}});
    cluster.put("customresourcedefinitions", things.clone());
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.live.notify(Hint::Panic);
    seen.until_status("a panic", |status| status.panics == 1);
    cluster.delete("leases", &b.id);
    cluster.delete("customresourcedefinitions", "things.example.org");
    seen.until_served("batch/v1/jobs", "Gone");
    seen.live.notify(Hint::Panic);
    seen.until_status("another", |status| status.panics == 2);
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(5) {
        assert_eq!((seen.who("batch/v1/jobs"), seen.who("example.org/v1/things")), ("Gone".into(), "Excluded".into()));
        assert_eq!(seen.who("/v1/pods"), "a");
        std::thread::sleep(Duration::from_millis(2));
    }
    // It remembers again what it would forget.
    cluster.lease(&b, "b2");
    cluster.put("customresourcedefinitions", things);
    seen.until_served("batch/v1/jobs", "b");
}

/// It left when nobody looked.
#[test]
fn what_left_between_panic_and_restart_is_not_forgotten() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.live.notify(Hint::Panic);
    seen.until_status("a panic", |status| status.panics == 1);
    seen.until_status("at work again", are_synced);
    a.fail(Failing::ListsAndWatches);
    seen.until_status("nobody looks", are_failing);
    cluster.delete("leases", &b.id);
    seen.live.notify(Hint::Panic);
    seen.until_status("another", |status| status.panics == 2);
    a.fail(Failing::Nothing);
    seen.until_status("at work again", |status| are_synced(status) && status.servers.iter().all(|server| server.view.id.as_str() != b.id));
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!(seen.who("batch/v1/jobs"), "b", "as it was");
}

#[test]
fn what_is_not_allowed_is_never_connected_to() {
    let (cluster, a, b) = pair();
    let trap = TcpListener::bind("127.0.0.1:0").unwrap();
    trap.set_nonblocking(true).unwrap();
    let evil = trap.local_addr().unwrap().to_string();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    let id = format!("apiserver-{}", "e".repeat(26));
    for nth in 0..200 {
        let address = if nth % 2 == 0 { evil.clone() } else { b.address.to_string() };
        cluster.lease_at(&id, &format!("e{nth}"), &address);
        cluster.put(
            "leases",
            json!({"metadata": {"name": format!("mvproxy-{}", b.id), "namespace": "kube-system",
            "labels": {"mvproxy.io/identity": "peer"},
            "annotations": {"mvproxy.io/peer-address": evil, "mvproxy.io/server-address": evil}}}),
        );
        let host = evil.split(':').next().unwrap();
        cluster.put("endpointslices", json!({"metadata": {"name": "kubernetes", "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"}},
            "endpoints": [{"addresses": [host]}], "ports": [{"name": "https", "port": evil.split(':').nth(1).unwrap().parse::<u16>().unwrap()}]}));
    }
    // The last of them was taken in, and what follows it too.
    cluster.lease_at(&id, "last", &evil);
    seen.until_status("e has no address", |status| {
        status.servers.iter().any(|server| server.view.holder.as_deref() == Some("last") && server.view.address.is_none())
    });
    b.serves(&["/v1/pods", "batch/v1/jobs", "batch/v1/cronjobs"]);
    cluster.lease(&b, "b2");
    seen.until_served("batch/v1/cronjobs", "b");
    assert_eq!(trap.accept().unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "somebody connected");
    assert!(seen.live.status().errors.hostport_resolution > 0);
    // The trap works.
    drop(std::net::TcpStream::connect(&evil).unwrap());
    assert!(trap.accept().is_ok());
}

/// A slice of the Service `kubernetes`.
fn slice(name: &str, address: SocketAddr) -> serde_json::Value {
    json!({"metadata": {"name": name, "namespace": "default", "labels": {"kubernetes.io/service-name": "kubernetes"}},
        "endpoints": [{"addresses": [address.ip().to_string()]}], "ports": [{"name": "https", "port": address.port()}]})
}

#[test]
fn a_slice_that_the_servers_do_not_keep_names_nobody() {
    let cluster = Cluster::new();
    let a = cluster.server('a', &["/v1/pods"]);
    let b = cluster.server('b', &["batch/v1/jobs"]);
    let c = cluster.server('c', &["batch/v1/cronjobs"]);
    cluster.lease(&a, "a1");
    cluster.put("endpointslices", slice("evil", c.address));
    cluster.put("endpointslices", slice("kubernetes", b.address));
    let mut seen = Seen::start(&cluster, &[&a, &b, &c]);
    seen.until("b was asked", |snapshot| snapshot.lookup(&Name::new(b"batch", b"v1", b"jobs")).is_ok());
    assert!(c.asked().is_empty(), "{:?}", c.asked());
    assert_eq!((seen.who("batch/v1/cronjobs"), seen.reader.current().servers().len()), ("Unknown".into(), 2));
}

#[test]
fn the_own_lease_is_kept_and_deleted() {
    let (cluster, a, b) = pair();
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let announcement = Announcement { peer_address: at("127.0.0.1:6445"), server_address: at("127.0.0.1:6443") };
    let mut seen = Seen::start_with(&cluster, &[&a, &b], Some(announcement));
    seen.until_served("batch/v1/jobs", "b");
    seen.until_status("own Lease", |status| status.source(Source::OwnLease) == SourceState::Synced);
    let name = format!("mvproxy-{}", a.id);
    let lease = cluster.get("leases", &name).unwrap();
    assert_eq!(lease["metadata"]["labels"]["mvproxy.io/identity"], "peer");
    assert_eq!(lease["metadata"]["annotations"]["mvproxy.io/peer-address"], "127.0.0.1:6445");
    assert_eq!(lease["metadata"]["annotations"]["mvproxy.io/server-address"], "127.0.0.1:6443");
    let renewed = lease["spec"]["renewTime"].as_str().unwrap();
    assert!(renewed.len() == "2026-01-01T00:00:00.000000Z".len() && renewed.ends_with('Z'), "{renewed}");
    seen.live.stop();
    assert_eq!(cluster.get("leases", &name), None);
}

/// Discovery that has written its own Lease, and knows that both servers are ready.
fn announced(cluster: &Cluster, a: &FakeServer, b: &FakeServer) -> Seen {
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let announcement = Announcement { peer_address: at("127.0.0.1:6445"), server_address: at("127.0.0.1:6443") };
    let mut seen = Seen::start_with(cluster, &[a, b], Some(announcement));
    seen.until("both", |snapshot| ready(snapshot) == "ab");
    seen.until_status("own Lease", |status| status.source(Source::OwnLease) == SourceState::Synced);
    seen
}

/// A node shuts down.
#[test]
fn the_own_lease_is_deleted_also_when_local_goes_first() {
    let (cluster, a, b) = pair();
    let seen = announced(&cluster, &a, &b);
    let name = format!("mvproxy-{}", a.id);
    assert!(cluster.get("leases", &name).is_some());
    a.stop();
    seen.live.stop();
    assert_eq!(cluster.get("leases", &name), None);
}

#[test]
fn the_own_lease_is_deleted_also_while_it_is_being_written() {
    let (cluster, a, b) = pair();
    let seen = announced(&cluster, &a, &b);
    let name = format!("mvproxy-{}", a.id);
    let before = cluster.get("leases", &name);
    b.slow_writes(Duration::from_millis(300));
    // It is written anew where watches go.
    a.ready(false);
    let began = Instant::now();
    while cluster.get("leases", &name) == before {
        assert!(began.elapsed() < LIMIT, "not written again");
        std::thread::sleep(Duration::from_millis(2));
    }
    seen.live.stop();
    assert_eq!(cluster.get("leases", &name), None);
}

#[test]
fn another_run_that_took_the_lease_over_keeps_it() {
    let (cluster, a, b) = pair();
    let seen = announced(&cluster, &a, &b);
    let name = format!("mvproxy-{}", a.id);
    cluster.put("leases", cluster.get("leases", &name).unwrap());
    seen.live.stop();
    assert!(cluster.get("leases", &name).is_some());
}

#[test]
fn a_peer_behind_a_proxy_is_reached_there_while_it_can_be() {
    let (cluster, a, b) = pair();
    let port = cluster.server('p', &[]);
    let mut seen = Seen::start(&cluster, &[&a, &b, &port]);
    seen.until_served("batch/v1/jobs", "b");
    let place = |snapshot: &Snapshot| {
        snapshot.servers().iter().find(|server| server.id.as_str() == b.id).map(|server| (server.address, server.via))
    };
    assert_eq!(place(seen.reader.current()), Some((b.address, Via::Apiserver)));
    cluster.put(
        "leases",
        json!({"metadata": {"name": format!("mvproxy-{}", b.id), "namespace": "kube-system",
        "labels": {"mvproxy.io/identity": "peer"},
        "annotations": {"mvproxy.io/peer-address": port.address.to_string(), "mvproxy.io/server-address": b.address.to_string()}}}),
    );
    seen.until("via the proxy", |snapshot| place(snapshot) == Some((port.address, Via::Proxy)));
    port.stop();
    seen.live.notify(Hint::Unreachable(port.address));
    let taken = seen.until("past the proxy", |snapshot| place(snapshot) == Some((b.address, Via::Apiserver)));
    assert!(taken < Duration::from_millis(500), "{taken:?}");
    assert_eq!(ready(seen.reader.current()), "ab", "the server itself is well");
}

#[test]
fn local_in_doubt_is_asked_at_once() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.until("both", |snapshot| who(snapshot, "/v1/pods") == "ab");
    a.serves(&[]);
    seen.live.notify(Hint::LocalInDoubt);
    let taken = seen.until_served("/v1/pods", "b");
    assert!(taken < Duration::from_millis(500), "{taken:?}");
    a.serves(&["/v1/pods"]);
    seen.live.notify(Hint::LocalInDoubt);
    seen.until_served("/v1/pods", "ab");
}

/// What is known of a server's last loss.
fn trust(snapshot: &Snapshot, server: &FakeServer) -> Trust {
    let at = snapshot.servers().iter().position(|named| named.id.as_str() == server.id).unwrap();
    snapshot.trust()[at].unwrap()
}

#[test]
fn a_server_that_was_lost_is_vouched_for_by_a_probe_that_began_later() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.until("both", |snapshot| ready(snapshot) == "ab");
    for server in [&a, &b] {
        let at = Instant::now();
        seen.live.notify(Hint::Lost { server: ServerId::new(&server.id), at });
        seen.until("all are told of the loss", |snapshot| trust(snapshot, server).lost == Some(at));
        seen.until("vouched for", |snapshot| !trust(snapshot, server).is_in_doubt());
        // Told again, with the time of the loss: nothing is new.
        let generation = seen.reader.current().generation();
        seen.live.notify(Hint::Lost { server: ServerId::new(&server.id), at });
        std::thread::sleep(Duration::from_millis(500));
        assert_eq!(seen.reader.current().generation(), generation);
    }
}

#[test]
fn a_server_that_was_lost_and_is_not_ready_is_not_vouched_for() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.until("both", |snapshot| ready(snapshot) == "ab");
    b.stop();
    seen.live.notify(Hint::Lost { server: ServerId::new(&b.id), at: Instant::now() });
    seen.until("b is away", |snapshot| ready(snapshot) == "a");
    assert!(trust(seen.reader.current(), &b).is_in_doubt());
}

/// It may serve something else: only what it says then tells.
#[test]
fn a_peer_that_was_lost_is_vouched_for_when_it_said_what_it_serves() {
    let (cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.until("both", |snapshot| ready(snapshot) == "ab");
    b.serves(&["batch/v1/cronjobs"]);
    let at = Instant::now();
    seen.live.notify(Hint::Lost { server: ServerId::new(&b.id), at });
    let mut served = String::new();
    seen.until("vouched for", |snapshot| {
        served = who(snapshot, "batch/v1/cronjobs");
        let trust = trust(snapshot, &b);
        trust.lost == Some(at) && !trust.is_in_doubt()
    });
    assert_eq!(served, "b", "in the same snapshot");
}

#[test]
fn local_is_the_one_on_our_host() {
    let (cluster, a, b) = pair();
    let find = |host: &str| live::identify(&access(&cluster), a.address, host, Duration::ZERO);
    assert_eq!(find(&format!("host-{}", b.id)).unwrap(), ServerId::new(&b.id));
    let error = find("nowhere").unwrap_err().to_string();
    assert!(error.contains(&a.id) && error.contains(&b.id) && error.contains("--server-id"), "{error}");
    a.stop();
    assert!(find("nowhere").unwrap_err().to_string().contains("did not list"));
}

#[test]
fn a_forged_lease_with_our_host_does_not_make_local_another() {
    let (cluster, a, b) = pair();
    let ours = discovery::leases::name_on("cp-a");
    let put = |id: &str| {
        let labels = json!({"apiserver.kubernetes.io/identity": "kube-apiserver", "kubernetes.io/hostname": "cp-a"});
        let metadata = json!({"name": id, "namespace": "kube-system", "labels": labels});
        cluster.put("leases", json!({"metadata": metadata, "spec": {"holderIdentity": "x"}}));
    };
    let access = access(&cluster);
    let find = |time_max: Duration| live::identify(&access, a.address, "cp-a", time_max);
    put(&ours);
    put(&b.id);
    let error = find(Duration::ZERO).unwrap_err().to_string();
    assert!(error.starts_with("2 apiservers' identity Leases have") && error.contains(&ours) && error.contains(&b.id), "{error}");
    cluster.delete("leases", &b.id);
    assert_eq!(find(Duration::ZERO).unwrap(), ServerId::new(&ours));
    // A forged one alone is not believed before ours had time to come, and then there are two of them.
    cluster.delete("leases", &ours);
    put(&b.id);
    let found = std::thread::scope(|scope| {
        let finding = scope.spawn(|| find(Duration::from_secs(30)));
        std::thread::sleep(Duration::from_millis(800));
        put(&ours);
        finding.join().unwrap()
    });
    assert!(found.unwrap_err().to_string().starts_with("2 apiservers' identity Leases have"));
}

#[test]
fn a_wrong_certificate_is_nobody() {
    let (cluster, a, b) = pair();
    let other = Cluster::new();
    let mut wrong = access(&cluster);
    wrong.certificates.peer_ca = other.ca.clone();
    let mut config = Seen::start(&cluster, &[&a, &b]);
    config.until_served("batch/v1/jobs", "b");
    drop(config);
    let before = b.asked().len();
    let settings = Settings {
        local: ServerId::new(&a.id),
        local_address: a.address,
        peers: BTreeMap::from([(ServerId::new(&b.id), b.address)]),
        allowed: AllowList::default(),
        allow_endpoints: false,
        reaches_proxies: true,
    };
    let live = live::start(Config { settings, access: wrong, announcement: None, log }).unwrap();
    let mut seen = Seen { reader: live.readers().reader(), live };
    seen.until_served("/v1/pods", "a");
    seen.until_status("an error", |status| {
        status.servers.iter().any(|server| server.error.as_deref().is_some_and(|error| error.contains("invalid peer certificate")))
    });
    assert_eq!((seen.who("batch/v1/jobs"), ready(seen.reader.current())), ("Unasked".into(), "a".into()));
    assert!(b.asked().len() <= before + 4, "what was under way");
}

/// It accepts connections, and says nothing on them: it is tried again every ten seconds, and nothing moves.
#[test]
fn an_address_that_only_listens_takes_no_traffic() {
    let (cluster, a, b) = pair();
    let listening = TcpListener::bind("127.0.0.1:0").unwrap();
    listening.set_nonblocking(true).unwrap();
    let told = (ServerId::new(&b.id), listening.local_addr().unwrap());
    let settings = Settings { peers: BTreeMap::from([told]), ..settings(&[&a, &b]) };
    let mut seen = Seen::start_by(&cluster, settings, None);
    let is_well = |snapshot: &Snapshot| {
        let found = snapshot.servers().iter().find(|server| server.id.as_str() == b.id);
        found.is_some_and(|server| server.address == b.address) && ready(snapshot) == "ab" && who(snapshot, "batch/v1/jobs") == "b"
    };
    // Whoever connects is sent away.
    let dials = || std::iter::from_fn(|| listening.accept().ok()).count();
    let mut first = 0;
    let is_past = |snapshot: &Snapshot| {
        let new = dials();
        first += new;
        first > 0 && new == 0 && is_well(snapshot)
    };
    seen.until("past what only listens", is_past);
    let (began, mut again) = (Instant::now(), 0);
    while began.elapsed() < ADDRESS_REST + Duration::from_secs(2) {
        again += dials();
        assert!(is_well(seen.reader.current()), "{:?} after {:?}: {:?}", again, began.elapsed(), seen.reader.current());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(again > 0, "it was not tried again");
}

/// All servers start again with certificates of an authority that discovery does not know yet.
fn rotate(cluster: &mut Cluster, servers: &[&FakeServer], seen: &Seen) {
    seen.until_status("all are ready", |status| status.servers.iter().all(|server| server.view.is_ready));
    cluster.rotate();
    servers.iter().for_each(|server| server.stop());
    seen.until_status("all are down", |status| status.servers.iter().all(|server| !server.view.is_ready));
    servers.iter().for_each(|server| cluster.restart(server));
    seen.until_status("all are strangers", |status| {
        status.servers.iter().all(|server| server.error.as_deref().is_some_and(|error| error.contains("invalid peer certificate")))
    });
}

#[test]
fn t8_a_new_authority_is_believed_without_a_restart() {
    let (mut cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    rotate(&mut cluster, &[&a, &b], &seen);
    b.serves(&["/v1/pods", "batch/v1/cronjobs"]);
    cluster.lease(&b, "b2");
    seen.live.renew(access(&cluster).certificates);
    seen.until_served("batch/v1/cronjobs", "b");
    seen.until("both are ready", |snapshot| ready(snapshot) == "ab" && who(snapshot, "/v1/pods") == "ab");
    b.serves(&["/v1/pods", "batch/v1/later"]);
    cluster.lease(&b, "b3");
    seen.until_served("batch/v1/later", "b");
    seen.until_status("what a watch said", |status| status.servers.iter().any(|server| server.view.holder.as_deref() == Some("b3")));
    assert_eq!(seen.live.status().panics, 0);
}

#[test]
fn t8_bad_authorities_change_nothing_and_a_panic_forgets_no_new_ones() {
    let (mut cluster, a, b) = pair();
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("batch/v1/jobs", "b");
    seen.live.renew(Certificates { local_ca: b"not a certificate".to_vec(), ..access(&cluster).certificates });
    let said = |line: &String| line.starts_with("Warning: ") && line.contains("no certificate in it") && line.contains("keeping");
    let began = Instant::now();
    while !LOG.lock().unwrap().iter().any(said) {
        assert!(began.elapsed() < LIMIT, "nothing was said");
        std::thread::sleep(Duration::from_millis(2));
    }
    for panics in 1..=2 {
        seen.live.notify(Hint::Panic);
        seen.until_status("a panic", |status| status.panics == panics);
        let new = format!("batch/v1/new{panics}");
        b.serves(&["/v1/pods", &new]);
        cluster.lease(&b, &format!("b-{panics}"));
        seen.until_served(&new, "b");
        if panics == 1 {
            rotate(&mut cluster, &[&a, &b], &seen);
            seen.live.renew(access(&cluster).certificates);
            seen.until("both are ready", |snapshot| ready(snapshot) == "ab");
        }
    }
}
