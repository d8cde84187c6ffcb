//! Live discovery against servers that a test scripts: what it learns, what it does not lose, and where it never connects to.

#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use discovery::inventory::Settings;
use discovery::live::{self, Access, Announcement, Config, Credentials, Hint, Live, Source, SourceState};
use discovery::{AllowList, Cidr, Reader, ServerId, Snapshot, Standing, Via};
use serde_json::json;

use self::fake::{Cluster, FakeServer};

mod fake;

/// The longest that anything here may take.
const LIMIT: Duration = Duration::from_secs(20);

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
        let settings = Settings {
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
        };
        let config = Config { settings, access: access(cluster), announcement, log: |line| println!("{line}") };
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
        let began = Instant::now();
        while !is_so(&self.live.status()) {
            assert!(began.elapsed() < LIMIT, "{what}: {:#?}", self.live.status());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn who(&mut self, gvr: &str) -> String {
        who(self.reader.current(), gvr)
    }
}

fn access(cluster: &Cluster) -> Access {
    Access {
        credentials: Credentials::token("right").unwrap(),
        local_ca: cluster.ca.clone(),
        peer_ca: cluster.ca.clone(),
        client_pair: None,
    }
}

/// The letters of the servers that serve it, or why none does.
fn who(snapshot: &Snapshot, gvr: &str) -> String {
    let parts: Vec<&[u8]> = gvr.split('/').map(str::as_bytes).collect();
    let serving = snapshot.lookup(parts[0], parts[1], parts[2]);
    if serving.is_empty() {
        return format!("{:?}", snapshot.standing(parts[0], parts[1], parts[2]));
    }
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

#[test]
fn without_crds_nothing_goes_to_a_peer_and_the_status_says_why() {
    let (cluster, a, b) = pair();
    a.deny("customresourcedefinitions");
    let mut seen = Seen::start(&cluster, &[&a, &b]);
    seen.until_served("/v1/pods", "a");
    assert_eq!(seen.who("batch/v1/jobs"), "Unknown");
    let state = seen.live.status().source(Source::CustomResources);
    assert!(matches!(&state, SourceState::Denied(_)), "{state:?}");
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
    assert_eq!(seen.live.status().source(Source::StorageVersions), SourceState::Absent);
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

#[test]
fn another_run_that_took_the_lease_over_keeps_it() {
    let (cluster, a, b) = pair();
    let at = |text: &str| text.parse::<SocketAddr>().unwrap();
    let announcement = Announcement { peer_address: at("127.0.0.1:6445"), server_address: at("127.0.0.1:6443") };
    let seen = Seen::start_with(&cluster, &[&a, &b], Some(announcement));
    seen.until_status("own Lease", |status| status.source(Source::OwnLease) == SourceState::Synced);
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
fn a_wrong_certificate_is_nobody() {
    let (cluster, a, b) = pair();
    let other = Cluster::new();
    let mut wrong = access(&cluster);
    wrong.peer_ca = other.ca.clone();
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
    let live = live::start(Config { settings, access: wrong, announcement: None, log: |line| println!("{line}") }).unwrap();
    let mut seen = Seen { reader: live.readers().reader(), live };
    seen.until_served("/v1/pods", "a");
    seen.until_status("an error", |status| {
        status.servers.iter().any(|server| server.error.as_deref().is_some_and(|error| error.contains("invalid peer certificate")))
    });
    assert_eq!((seen.who("batch/v1/jobs"), ready(seen.reader.current())), ("Unasked".into(), "a".into()));
    assert!(b.asked().len() <= before + 4, "what was under way");
}
