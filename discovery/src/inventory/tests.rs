//! Stories: what sources said, in order, and who serves what after that.

use super::*;
use crate::{Cidr, Standing};

const SECOND: Duration = Duration::from_secs(1);

fn id(name: &str) -> ServerId {
    ServerId::new(name)
}

fn gvr(resource: &str) -> Gvr {
    Gvr::new("g", "v1", resource)
}

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

fn lease(name: &str, holder: &str, last: u8) -> Lease {
    Lease { id: id(name), holder: holder.into(), address: Some(([10, 0, 0, last], 6443).into()), hostname: None }
}

/// An inventory whose local is `a`, at a moment that the test moves.
struct Story {
    inventory: Inventory,
    now: Instant,
}

impl Story {
    /// `a` serves `mine` and `both`; `b` is known; the lists are there.
    fn new() -> Self {
        let mut story = Self::untold();
        story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
        story.exclude(&[]);
        story.probe("a", true);
        story.probe("b", true);
        story.fetch("a", "a1", &["mine", "both"]);
        story
    }

    fn untold() -> Self {
        let allowed =
            AllowList { ranges: vec![Cidr::parse("10.0.0.0/8").unwrap()], ports: vec![6443, 6445], own: vec![at("10.0.0.1:6443")] };
        let settings = Settings {
            local: id("a"),
            local_address: ([127, 0, 0, 1], 6443).into(),
            peers: BTreeMap::new(),
            allowed,
            allow_endpoints: true,
            reaches_proxies: true,
        };
        Self { inventory: Inventory::new(settings), now: Instant::now() }
    }

    fn tell(&mut self, event: Event) {
        self.inventory.apply(event, self.now);
    }

    fn leases(&mut self, leases: &[Lease]) {
        self.tell(Event::Leases(leases.to_vec()));
    }

    fn exclude(&mut self, listed: &[GroupVersion]) {
        self.tell(Event::Excluded(Exclusion::Custom, listed.to_vec()));
        self.tell(Event::Excluded(Exclusion::Aggregated, Vec::new()));
    }

    fn probe(&mut self, server: &str, ready: bool) {
        let readiness = if ready { Readiness::Ready } else { Readiness::Unready };
        self.tell(Event::Probed { server: id(server), readiness });
    }

    fn fetch(&mut self, server: &str, holder: &str, resources: &[&str]) {
        self.fetched_since(self.now, server, holder, Some(resources));
    }

    fn fetched_since(&mut self, began: Instant, server: &str, holder: &str, resources: Option<&[&str]>) {
        let serves = resources.map(|resources| resources.iter().map(|resource| gvr(resource)).collect());
        let holder = (!holder.is_empty()).then(|| holder.into());
        self.tell(Event::Fetched { server: id(server), holder, began, serves });
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        self.inventory.tick(self.now);
    }

    /// Who serves it, or why nobody does.
    fn who(&self, resource: &str) -> String {
        let snapshot = self.inventory.snapshot(1).expect("all lists are there").unwrap();
        let serving = snapshot.lookup(b"g", b"v1", resource.as_bytes());
        if serving.is_empty() {
            return format!("{:?}", snapshot.standing(b"g", b"v1", resource.as_bytes()));
        }
        serving.iter().map(|index| snapshot.servers()[index.get()].id.as_str().to_owned()).collect::<Vec<_>>().join(" ")
    }

    fn ready(&self) -> String {
        let snapshot = self.inventory.snapshot(1).expect("all lists are there").unwrap();
        snapshot.ready().iter().map(|index| snapshot.servers()[index.get()].id.as_str().to_owned()).collect::<Vec<_>>().join(" ")
    }

    fn address(&self, server: &str) -> Option<String> {
        let snapshot = self.inventory.snapshot(1).unwrap().unwrap();
        let known = snapshot.servers().iter().find(|known| known.id.as_str() == server)?;
        Some(format!("{} {:?}", known.address, known.via))
    }

    fn due(&self) -> Vec<String> {
        self.inventory.due(self.now).iter().map(|due| due.server.as_str().to_owned()).collect()
    }

    fn probes(&self) -> Vec<String> {
        self.inventory.probes().iter().map(|ask| format!("{} {}", ask.server, ask.address)).collect()
    }
}

#[test]
fn nothing_is_published_from_an_unfinished_list() {
    let mut story = Story::untold();
    assert!(story.inventory.snapshot(1).is_none());
    story.leases(&[lease("a", "a1", 1)]);
    assert!(story.inventory.snapshot(1).is_none());
    story.tell(Event::Excluded(Exclusion::Custom, Vec::new()));
    story.probe("a", true);
    assert!(story.inventory.snapshot(1).is_none(), "aggregated ones are not listed");
    story.tell(Event::Excluded(Exclusion::Aggregated, Vec::new()));
    assert!(story.inventory.snapshot(1).is_none(), "local was not asked");
    story.fetch("a", "a1", &["mine"]);
    assert_eq!(story.who("mine"), "a");
    assert_eq!(story.who("other"), format!("{:?}", Standing::Unknown));
}

#[test]
fn a_local_server_that_is_down_from_the_start_blinds_nobody() {
    let mut story = Story::untold();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    story.exclude(&[]);
    story.probe("a", false);
    story.probe("b", true);
    story.fetch("b", "b1", &["both"]);
    assert_eq!((story.who("both"), story.who("mine"), story.ready()), ("b".into(), "Unasked".into(), "b".into()));
}

#[test]
fn a_peer_that_was_never_asked_leaves_questions_open() {
    let mut story = Story::new();
    assert_eq!(story.who("theirs"), "Unasked");
    story.fetch("b", "b1", &["both", "theirs"]);
    assert_eq!((story.who("theirs"), story.who("both"), story.who("other")), ("b".into(), "a b".into(), "Unknown".into()));
}

#[test]
fn storage_versions_decide_until_the_first_fetch_and_cause_others() {
    let mut story = Story::new();
    story.tell(Event::StorageVersions(vec![(id("b"), gvr("theirs")), (id("nobody"), gvr("ghost"))]));
    assert_eq!((story.who("theirs"), story.who("ghost")), ("b".into(), "Unknown".into()));
    story.fetch("b", "b1", &["both"]);
    // It is still in the StorageVersion, as seen with a server that was restarted without the API.
    assert_eq!((story.who("theirs"), story.who("both")), ("Unknown".into(), "a b".into()));
    story.pass(SECOND);
    assert!(story.due().is_empty());
    story.tell(Event::StorageVersions(vec![(id("b"), gvr("theirs"))]));
    assert!(story.due().is_empty(), "nothing new");
    story.tell(Event::StorageVersions(vec![(id("b"), gvr("both"))]));
    assert_eq!(story.due(), ["b"]);
}

#[test]
fn a_peers_resource_goes_after_two_fetches_without_it() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["theirs"]);
    story.pass(SECOND);
    story.fetch("b", "b1", &[]);
    assert_eq!(story.who("theirs"), "b");
    story.pass(SECOND);
    story.fetched_since(story.now, "b", "b1", None);
    assert_eq!(story.who("theirs"), "b", "two, but too close");
    story.pass(HYSTERESIS);
    assert_eq!(story.who("theirs"), "b", "time alone proves nothing");
    story.fetched_since(story.now, "b", "b1", None);
    assert_eq!(story.who("theirs"), "Unknown");
    story.fetch("b", "b1", &["theirs"]);
    story.pass(HYSTERESIS);
    story.fetch("b", "b1", &[]);
    story.fetch("b", "b1", &["theirs"]);
    story.pass(HYSTERESIS);
    story.fetch("b", "b1", &[]);
    assert_eq!(story.who("theirs"), "b", "it was there in between");
}

#[test]
fn a_peer_that_started_anew_is_believed_at_once() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["theirs"]);
    story.leases(&[lease("a", "a1", 1), lease("b", "b2", 2)]);
    story.probe("b", true);
    story.fetch("b", "b1", &[]);
    assert_eq!(story.who("theirs"), "b", "a fetch from before");
    story.fetch("b", "b2", &[]);
    assert_eq!(story.who("theirs"), "Unknown");
}

#[test]
fn a_fetch_from_before_the_first_list_is_believed() {
    let mut story = Story::untold();
    story.probe("a", true);
    story.fetch("a", "", &["both"]);
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    story.exclude(&[]);
    story.probe("b", true);
    story.fetch("b", "b1", &["both"]);
    assert_eq!((story.who("both"), story.due()), ("a b".into(), vec!["a".into()]));
}

#[test]
fn locals_resource_goes_at_once() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["both"]);
    story.fetch("a", "a1", &["mine"]);
    assert_eq!(story.who("both"), "b");
}

#[test]
fn a_server_that_left_is_gone_for_a_minute() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["both", "theirs"]);
    story.leases(&[lease("a", "a1", 1)]);
    assert_eq!((story.who("theirs"), story.who("both"), story.due()), ("Gone".into(), "a".into(), vec![]));
    // The EndpointSlice follows some seconds later; it does not bring it back.
    story.tell(Event::Endpoints(vec![at("10.0.0.1:6443"), at("10.0.0.2:6443")]));
    assert_eq!((story.who("theirs"), story.probes()), ("Gone".into(), vec!["a 127.0.0.1:6443".to_owned()]));
    story.tell(Event::Endpoints(vec![at("10.0.0.1:6443")]));
    story.pass(GONE - SECOND);
    assert_eq!(story.who("theirs"), "Gone");
    story.pass(SECOND);
    assert_eq!(story.who("theirs"), "Unknown");
    // Back within the minute it is what it was until it was asked again, and nobody goes there before it is ready.
    let mut story = Story::new();
    story.fetch("b", "b1", &["theirs"]);
    story.leases(&[lease("a", "a1", 1)]);
    story.leases(&[lease("a", "a1", 1), lease("b", "b2", 2)]);
    assert_eq!((story.who("theirs"), story.ready(), story.due()), ("b".into(), "a".into(), vec![]));
    story.probe("b", true);
    assert_eq!((story.ready(), story.due()), ("a".into(), vec!["b".into()]), "nor before it was asked: it may be another version");
    story.fetch("b", "b2", &["theirs"]);
    assert_eq!(story.ready(), "a b");
}

#[test]
fn local_in_doubt_gives_way_to_a_peer() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["both"]);
    let before = story.now;
    story.pass(SECOND);
    story.tell(Event::LocalInDoubt);
    assert_eq!((story.who("both"), story.who("mine"), story.due()), ("b".into(), "a".into(), vec!["a".into()]));
    story.fetched_since(before, "a", "a1", Some(&["mine", "both"]));
    assert_eq!(story.who("both"), "b", "it was asked before");
    story.pass(SECOND);
    story.fetch("a", "a1", &["mine", "both"]);
    assert_eq!(story.who("both"), "a b");
    story.leases(&[lease("a", "a2", 1), lease("b", "b1", 2)]);
    assert_eq!((story.who("both"), story.ready()), ("b".into(), "b".into()), "it started anew");
    story.probe("a", true);
    assert_eq!(story.due(), ["a"]);
    story.fetch("a", "a1", &["mine", "both"]);
    assert_eq!(story.who("both"), "b", "a fetch from before");
    story.fetch("a", "a2", &["mine", "both"]);
    assert_eq!(story.who("both"), "a b");
    story.tell(Event::Unreachable(at("127.0.0.1:6443")));
    story.pass(SECOND);
    story.probe("b", false);
    assert_eq!(story.who("both"), "a b", "no better one is there");
}

#[test]
fn servers_are_asked_when_they_change_and_now_and_then() {
    let mut story = Story::new();
    story.fetch("b", "b1", &[]);
    assert!(story.due().is_empty());
    story.leases(&[lease("a", "a1", 1), lease("b", "b2", 2)]);
    assert!(story.due().is_empty(), "not ready");
    story.pass(SECOND);
    story.probe("b", true);
    assert_eq!(story.due(), ["b"]);
    story.fetch("b", "b2", &[]);
    assert!(story.due().is_empty());
    story.pass(SECOND);
    story.probe("b", false);
    story.pass(SECOND);
    story.probe("b", true);
    assert_eq!((story.due(), story.ready()), (vec!["b".into()], "a".into()), "who knows what it is now");
    story.fetch("b", "b2", &[]);
    assert_eq!(story.ready(), "a b");
    story.pass(POLL);
    assert_eq!(story.due(), ["a", "b"]);
}

#[test]
fn custom_and_aggregated_groups_are_nobodys_for_five_minutes_after() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["theirs"]);
    story.exclude(&[("g".into(), "v1".into())]);
    assert_eq!((story.who("theirs"), story.who("mine")), ("Excluded".into(), "Excluded".into()));
    story.tell(Event::Excluded(Exclusion::Aggregated, vec![("g".into(), "v1".into())]));
    story.tell(Event::Excluded(Exclusion::Custom, Vec::new()));
    story.pass(EXCLUSION_GRACE);
    assert_eq!(story.who("theirs"), "Excluded", "now it is aggregated");
    story.exclude(&[]);
    assert_eq!(story.who("theirs"), "Excluded");
    story.pass(EXCLUSION_GRACE);
    assert_eq!((story.who("theirs"), story.who("mine")), ("b".into(), "a".into()));
}

#[test]
fn without_the_exclusions_nothing_goes_to_a_peer() {
    let mut story = Story::untold();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    story.tell(Event::Excluded(Exclusion::Custom, Vec::new()));
    story.tell(Event::ExcludedDenied(Exclusion::Aggregated));
    story.probe("a", true);
    story.fetch("a", "a1", &["mine"]);
    story.fetch("b", "b1", &["theirs"]);
    assert_eq!((story.who("theirs"), story.who("mine")), ("Unknown".into(), "a".into()));
    story.tell(Event::Excluded(Exclusion::Aggregated, Vec::new()));
    assert_eq!(story.who("theirs"), "b", "somebody allowed it");
    story.tell(Event::ExcludedDenied(Exclusion::Aggregated));
    assert_eq!(story.who("theirs"), "b", "an old list is better than none");
}

#[test]
fn addresses_give_way_in_order() {
    let mut story = Story::new();
    let proxy = at("10.0.1.2:6445");
    assert_eq!(story.address("b").as_deref(), Some("10.0.0.2:6443 Apiserver"));
    story.tell(Event::Proxies(vec![Proxy { server: id("b"), address: proxy, advertised: None }]));
    assert_eq!(story.address("b").as_deref(), Some("10.0.1.2:6445 Proxy"));
    assert_eq!(story.probes(), ["a 127.0.0.1:6443", "b 10.0.0.2:6443"], "the server itself is asked");
    story.tell(Event::Unreachable(proxy));
    assert_eq!(story.address("b").as_deref(), Some("10.0.0.2:6443 Apiserver"));
    story.pass(ADDRESS_REST);
    assert_eq!(story.address("b").as_deref(), Some("10.0.0.2:6443 Apiserver"), "time alone proves nothing");
    assert!(story.inventory.checks(story.now).contains(&(id("b"), proxy)));
    story.tell(Event::Reachable(proxy));
    assert_eq!(story.address("b").as_deref(), Some("10.0.1.2:6445 Proxy"));
    story.tell(Event::Unreachable(proxy));
    story.probe("b", false);
    story.probe("b", true);
    assert!(story.inventory.checks(story.now).contains(&(id("b"), proxy)), "a server that is back is tried at once");
    story.tell(Event::Reachable(at("10.0.0.2:6443")));
    story.leases(&[lease("a", "a1", 1), Lease { address: None, ..lease("b", "b1", 2) }]);
    assert_eq!(story.probes(), ["a 127.0.0.1:6443", "b 10.0.1.2:6445"], "what there is");
}

#[test]
fn strangers_are_not_asked() {
    let mut story = Story::new();
    for (nth, address) in ["169.254.169.254:6443", "127.0.0.1:6443", "10.0.0.1:6443", "10.0.0.9:22", "192.0.2.1:6443"].iter().enumerate() {
        let evil = Lease { address: Some(at(address)), ..lease("c", "c1", 9) };
        story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), evil]);
        story.tell(Event::Proxies(vec![Proxy { server: id("c"), address: at(address), advertised: Some(at(address)) }]));
        assert_eq!((story.address("c"), story.probes().len(), nth), (None, 2, nth), "{address}");
        assert!(!story.inventory.checks(story.now).iter().any(|(_, asked)| *asked == at(address)), "{address}");
    }
    story.tell(Event::Endpoints(vec![at("192.0.2.1:6443"), at("127.0.0.5:6443")]));
    assert_eq!(story.address("c").as_deref(), Some("192.0.2.1:6443 Proxy"), "an endpoint is no stranger");
    assert_eq!(story.address("addr:127.0.0.5:6443"), None, "but never loopback");
    // What it served before its address became one that is not allowed is not a 404 now.
    story.probe("b", true);
    story.fetch("b", "b1", &["theirs"]);
    story.leases(&[lease("a", "a1", 1), Lease { address: Some(at("10.0.0.2:22")), ..lease("b", "b1", 2) }]);
    assert_eq!((story.address("b"), story.who("theirs")), (None, "Gone".into()));
}

#[test]
fn a_server_is_known_by_its_address_until_a_join_names_it() {
    let mut story = Story::new();
    story.fetch("b", "b1", &[]);
    story.tell(Event::Endpoints(vec![at("10.0.0.1:6443"), at("10.0.0.2:6443"), at("10.0.0.7:6443")]));
    assert_eq!(story.address("addr:10.0.0.7:6443").as_deref(), Some("10.0.0.7:6443 Apiserver"));
    assert_eq!((story.address("addr:10.0.0.2:6443"), story.address("addr:10.0.0.1:6443")), (None, None), "b's, and our own");
    story.probe("addr:10.0.0.7:6443", true);
    story.fetch("addr:10.0.0.7:6443", "", &["seven"]);
    assert_eq!(story.who("seven"), "addr:10.0.0.7:6443");
    // Without the annotation the Lease may be the one of that address.
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), Lease { address: None, ..lease("c", "c1", 7) }]);
    assert_eq!(story.who("other"), "Unknown");
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c1", 7)]);
    assert_eq!((story.who("seven"), story.address("addr:10.0.0.7:6443"), story.due()), ("c".into(), None, vec!["c".into()]));
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    story.tell(Event::Endpoints(vec![at("10.0.0.8:6443")]));
    let proxy = Proxy { server: id("d"), address: at("10.0.0.8:6445"), advertised: Some(at("10.0.0.8:6443")) };
    story.tell(Event::Proxies(vec![proxy]));
    assert_eq!(story.address("d").as_deref(), Some("10.0.0.8:6445 Proxy"), "its proxy names it");
    story.tell(Event::Endpoints(Vec::new()));
    assert_eq!(story.address("addr:10.0.0.8:6443"), None);
}

#[test]
fn nobody_takes_the_place_of_local() {
    let mut story = Story::new();
    story.inventory.settings.allowed.ranges.push(Cidr::parse("127.0.0.0/8").unwrap());
    story.tell(Event::Endpoints(Vec::new()));
    story.leases(&[lease("a", "a1", 1), Lease { address: Some(at("127.0.0.1:6443")), ..lease("0", "x", 9) }]);
    assert_eq!((story.who("mine"), story.address("0")), ("a".into(), None));
}

#[test]
fn ten_thousand_resources_of_a_hundred_servers_are_quick() {
    let mut story = Story::untold();
    story.exclude(&[]);
    let servers: Vec<String> = std::iter::once("a".to_owned()).chain((1..100).map(|nth| format!("b{nth}"))).collect();
    let leases: Vec<Lease> = (0u8..100).map(|nth| lease(&servers[usize::from(nth)], "1", nth + 1)).collect();
    story.leases(&leases);
    let names: Vec<Gvr> = (0..10_000).map(|nth| Gvr::new(&format!("group-{}", nth % 500), "v1", &format!("resources{nth}"))).collect();
    for (nth, server) in servers.iter().enumerate() {
        let serves = names.iter().enumerate().filter(|(at, _)| (at + nth) % 7 != 0).map(|(_, gvr)| gvr.clone()).collect();
        story.tell(Event::Fetched { server: id(server), holder: Some("1".into()), began: story.now, serves: Some(serves) });
    }
    let began = Instant::now();
    let snapshot = story.inventory.snapshot(1).unwrap().unwrap();
    let taken = began.elapsed();
    assert_eq!((snapshot.gvrs(), snapshot.servers().len()), (10_000, 100));
    assert!(snapshot.heap_bytes() <= 4 << 20, "{}", snapshot.heap_bytes());
    assert!(taken < Duration::from_millis(500), "{taken:?}");
    println!("{taken:?}");
}
