//! Stories: what sources said, in order, and who serves what after that.
//!
//! Longer than 600 lines: it is one subject, and all of its stories share one scaffold ([`Story`]).

use super::join::LISTED_MAX;
use super::*;
use crate::leases::name_on;
use crate::table::ENTRIES_MAX;
use crate::{Cidr, Name, ServerSet, Standing};

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

/// Leases that somebody made up, more than there is room for: before all others by name, each with an address that is allowed.
fn forged(wave: &str) -> Vec<Lease> {
    let at = |nth: u8| Some(([10, 9, 9, nth], 6443).into());
    (0..200).map(|nth| Lease { address: at(nth), ..lease(&format!("0-{wave}-{nth:03}"), "x", 0) }).collect()
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
        story.tell(Event::Endpoints(Vec::new()));
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
        self.tell(Event::Probed { server: id(server), readiness, vouched: None });
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
        let snapshot = self.inventory.snapshot(1, self.now).expect("all lists are there").unwrap();
        let serving = match snapshot.lookup(&Name::new(b"g", b"v1", resource.as_bytes())) {
            Ok(serving) if snapshot.passes_over_local(serving) => serving.intersect(snapshot.peers()),
            Ok(serving) => serving,
            Err(standing) => return format!("{standing:?}"),
        };
        serving.iter().map(|index| snapshot.servers()[index.get()].id.as_str().to_owned()).collect::<Vec<_>>().join(" ")
    }

    fn ready(&self) -> String {
        let snapshot = self.inventory.snapshot(1, self.now).expect("all lists are there").unwrap();
        snapshot.ready().iter().map(|index| snapshot.servers()[index.get()].id.as_str().to_owned()).collect::<Vec<_>>().join(" ")
    }

    fn address(&self, server: &str) -> Option<String> {
        let snapshot = self.inventory.snapshot(1, self.now).unwrap().unwrap();
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
    assert!(story.inventory.snapshot(1, story.now).is_none());
    story.leases(&[lease("a", "a1", 1)]);
    assert!(story.inventory.snapshot(1, story.now).is_none());
    story.tell(Event::Excluded(Exclusion::Custom, Vec::new()));
    story.probe("a", true);
    assert!(story.inventory.snapshot(1, story.now).is_none(), "aggregated ones are not listed");
    story.tell(Event::Excluded(Exclusion::Aggregated, Vec::new()));
    assert!(story.inventory.snapshot(1, story.now).is_none(), "local was not asked");
    story.fetch("a", "a1", &["mine"]);
    assert!(story.inventory.snapshot(1, story.now).is_none(), "a server may be in the EndpointSlices only");
    story.tell(Event::Endpoints(Vec::new()));
    assert_eq!(story.who("mine"), "a");
    assert_eq!(story.who("other"), format!("{:?}", Standing::Unknown));
}

#[test]
fn a_local_server_that_is_down_from_the_start_blinds_nobody() {
    let mut story = Story::untold();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    story.tell(Event::Endpoints(Vec::new()));
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
    assert_eq!((story.who("theirs"), story.who("ghost"), story.ready()), ("b".into(), "Unasked".into(), "a".into()), "they do not say all");
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
fn storage_versions_may_come_before_the_leases() {
    let said = || Event::StorageVersions(vec![(id("c"), gvr("theirs")), (id("nobody"), gvr("ghost"))]);
    let leases = || Event::Leases(vec![lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c1", 3)]);
    for events in [[said(), leases()], [leases(), said()]] {
        let mut story = Story::new();
        story.fetch("b", "b1", &[]);
        events.into_iter().for_each(|event| story.tell(event));
        assert_eq!((story.who("theirs"), story.who("ghost")), ("c".into(), "Unasked".into()));
        story.tell(leases());
        assert_eq!(story.who("theirs"), "c", "nothing new");
        story.tell(Event::StorageVersions(Vec::new()));
        story.tell(leases());
        assert_eq!(story.who("theirs"), "Unasked", "they say it no more");
    }
}

#[test]
fn storage_versions_of_nobody_are_not_kept_without_end() {
    let mut story = Story::new();
    let many = (0..70_000).map(|nth| (id("0"), gvr(&format!("r{nth}"))));
    story.tell(Event::StorageVersions(many.chain([(id("c"), gvr("theirs"))]).collect()));
    story.leases(&[lease("a", "a1", 1), lease("0", "x", 9), lease("c", "c1", 3)]);
    assert_eq!((story.who("r1"), story.who("theirs")), ("Unasked".into(), "c".into()));
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
fn what_a_peer_did_not_name_is_asked_of_others() {
    let mut story = Story::new();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c1", 3)]);
    story.probe("c", true);
    story.fetch("b", "b1", &["theirs"]);
    story.fetch("c", "c1", &["theirs"]);
    story.pass(SECOND);
    story.fetch("b", "b1", &[]);
    assert_eq!(story.who("theirs"), "c");
    story.probe("c", false);
    assert_eq!(story.who("theirs"), "b c", "nobody else can be asked");
}

#[test]
fn nothing_learned_for_an_hour_changes_nothing() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["both", "theirs"]);
    for _ in 0..360 {
        story.pass(POLL);
        story.fetched_since(story.now, "a", "a1", None);
        story.fetched_since(story.now, "b", "b1", None);
    }
    let all = ["mine", "both", "theirs", "other"].map(|resource| story.who(resource));
    assert_eq!((all, story.ready()), (["a", "a b", "b", "Unknown"].map(Into::into), "a b".into()));
}

#[test]
fn without_lists_local_serves_what_it_serves() {
    let mut story = Story::untold();
    story.exclude(&[]);
    story.probe("a", true);
    story.fetch("a", "", &["mine"]);
    story.pass(START - SECOND);
    assert!(story.inventory.snapshot(1, story.now).is_none());
    story.pass(SECOND);
    assert_eq!((story.who("mine"), story.who("theirs"), story.ready()), ("a".into(), "Unasked".into(), "a".into()));
    // EndpointSlices are denied: the same.
    let mut story = Story::untold();
    story.leases(&[lease("a", "a1", 1)]);
    story.exclude(&[]);
    story.probe("a", true);
    story.fetch("a", "a1", &["mine"]);
    story.pass(START - SECOND);
    assert!(story.inventory.snapshot(1, story.now).is_none());
    story.pass(SECOND);
    assert_eq!((story.who("mine"), story.who("theirs"), story.ready()), ("a".into(), "Unasked".into(), "a".into()));
    story.tell(Event::Endpoints(Vec::new()));
    assert_eq!(story.who("theirs"), "Unknown");
    // Nor are custom resources listed: then nothing goes to a peer, and nothing is unknown.
    let mut story = Story::untold();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    story.tell(Event::Endpoints(Vec::new()));
    story.probe("a", true);
    story.fetch("a", "a1", &["mine"]);
    story.pass(START);
    assert_eq!((story.who("mine"), story.who("theirs"), story.ready()), ("a".into(), "Unasked".into(), "a".into()));
    // A local server that has just become ready is about to be asked.
    let mut story = Story::untold();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    story.tell(Event::Endpoints(Vec::new()));
    story.exclude(&[]);
    story.probe("a", false);
    story.probe("a", true);
    assert_eq!(story.inventory.snapshot(1, story.now).map(|_| ()), None);
    story.pass(START - SECOND);
    story.probe("a", false);
    story.pass(SECOND);
    story.probe("a", true);
    assert_eq!((story.who("theirs"), story.ready()), ("Unasked".into(), "a".into()));
    // Not even local says what it serves: it answers for itself, and peers for what they serve.
    let mut story = Story::untold();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    story.tell(Event::Endpoints(Vec::new()));
    story.exclude(&[]);
    story.probe("a", true);
    story.probe("b", true);
    story.fetch("b", "b1", &["theirs"]);
    story.pass(START);
    assert_eq!((story.who("mine"), story.who("theirs"), story.ready()), ("Unknown".into(), "b".into(), "a b".into()));
}

#[test]
fn a_local_server_that_cannot_be_asked_does_not_answer_for_peers_that_were_not() {
    let mut story = Story::untold();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c1", 3)]);
    story.tell(Event::Endpoints(Vec::new()));
    story.exclude(&[]);
    story.probe("a", true);
    story.pass(START);
    assert_eq!((story.who("other"), story.ready()), ("Unknown".into(), "a".into()), "else all would be 503");
    story.probe("b", true);
    story.fetch("b", "b1", &["both"]);
    assert_eq!((story.who("both"), story.who("other")), ("b".into(), "Unasked".into()), "it may be c's");
    story.probe("c", true);
    story.fetch("c", "c1", &["theirs"]);
    assert_eq!((story.who("theirs"), story.who("other")), ("c".into(), "Unknown".into()));
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c2", 3)]);
    assert_eq!(story.who("other"), "Unasked", "it started anew");
    story.pass(GONE);
    assert_eq!(story.who("other"), "Unknown");
    // Alone.
    story.leases(&[lease("a", "a1", 1)]);
    assert_eq!((story.who("theirs"), story.who("other"), story.ready()), ("Gone".into(), "Unknown".into(), "a".into()));
}

#[test]
fn a_lease_without_an_address_that_changes_hands_may_be_any_server_without_a_name() {
    let mut story = Story::new();
    story.fetch("b", "b1", &[]);
    let leases = |holder: &str| [lease("a", "a1", 1), lease("b", "b1", 2), Lease { address: None, ..lease("c", holder, 7) }];
    story.leases(&leases("c1"));
    story.tell(Event::Endpoints(vec![at("10.0.0.7:6443")]));
    story.probe("addr:10.0.0.7:6443", true);
    story.fetch("addr:10.0.0.7:6443", "", &["seven"]);
    assert_eq!((story.who("new"), story.due()), ("Unknown".into(), vec![]));
    story.pass(SECOND);
    story.leases(&leases("c2"));
    assert_eq!((story.who("new"), story.due()), ("Unasked".into(), vec!["addr:10.0.0.7:6443".into()]));
    story.fetch("addr:10.0.0.7:6443", "", &["seven", "new"]);
    assert_eq!((story.who("new"), story.who("other")), ("addr:10.0.0.7:6443".into(), "Unknown".into()));
    // One that left stands for nobody.
    story.tell(Event::Endpoints(Vec::new()));
    assert_eq!((story.who("new"), story.who("other")), ("Gone".into(), "Unasked".into()));
}

/// As in clusters before v1.36, whose Leases name no address: the EndpointSlice forgets a dead server after 15 s, the Lease after two hours.
#[test]
fn a_lease_without_an_address_outlives_its_server_in_vain() {
    let mut story = Story::new();
    let leases = |holder: &str| [lease("a", "a1", 1), lease("b", "b1", 2), Lease { address: None, ..lease("c", holder, 7) }];
    story.fetch("b", "b1", &[]);
    story.leases(&leases("c1"));
    story.tell(Event::Endpoints(vec![at("10.0.0.7:6443")]));
    story.probe("addr:10.0.0.7:6443", true);
    story.fetch("addr:10.0.0.7:6443", "", &["seven"]);
    story.pass(GONE);
    story.tell(Event::Endpoints(Vec::new()));
    assert_eq!((story.who("seven"), story.who("other")), ("Gone".into(), "Unknown".into()), "it died");
    // It starts: its Lease is there before its endpoint is.
    story.leases(&leases("c2"));
    story.pass(GONE - SECOND);
    story.leases(&leases("c2"));
    assert_eq!(story.who("other"), "Unasked");
    story.pass(SECOND);
    assert_eq!((story.who("other"), story.inventory.unfetched().count()), ("Unknown".into(), 0));
    // An address is something to wait for.
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c2", 7)]);
    assert_eq!(story.who("other"), "Unasked");
}

/// c's Lease names no address and c is known by its endpoint: that endpoint does not stand for d, whose own is not there yet.
#[test]
fn an_old_lease_without_an_address_leaves_no_endpoint_to_a_new_one() {
    let mut story = Story::new();
    let placeless = |id: &str, holder: &str| Lease { address: None, ..lease(id, holder, 7) };
    let known = [lease("a", "a1", 1), lease("b", "b1", 2), placeless("c", "c1")];
    story.fetch("b", "b1", &[]);
    story.leases(&known);
    story.tell(Event::Endpoints(vec![at("10.0.0.7:6443")]));
    story.probe("addr:10.0.0.7:6443", true);
    story.fetch("addr:10.0.0.7:6443", "", &["seven"]);
    story.pass(2 * GONE);
    assert_eq!((story.who("seven"), story.who("other")), ("addr:10.0.0.7:6443".into(), "Unknown".into()));
    story.leases(&[&known[..], &[placeless("d", "d1")]].concat());
    story.fetch("addr:10.0.0.7:6443", "", &["seven"]);
    assert_eq!(story.who("other"), "Unasked", "d may serve it");
    story.pass(GONE);
    assert_eq!(story.who("other"), "Unknown");
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
fn a_peer_that_started_anew_leaves_questions_open_until_it_is_asked() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["both"]);
    assert_eq!(story.who("new"), "Unknown");
    story.leases(&[lease("a", "a1", 1), lease("b", "b2", 2)]);
    assert_eq!((story.who("new"), story.who("both")), ("Unasked".into(), "a b".into()), "it may be another version");
    story.pass(SECOND);
    story.probe("b", true);
    assert_eq!(story.who("new"), "Unasked");
    story.fetch("b", "b2", &["both", "new"]);
    assert_eq!((story.who("new"), story.who("other")), ("b".into(), "Unknown".into()));
    // One that starts again and again is not waited for again and again.
    for holder in ["b3", "b4", "b5"] {
        story.leases(&[lease("a", "a1", 1), lease("b", holder, 2)]);
        assert_eq!(story.who("other"), "Unasked", "{holder}");
        story.pass(GONE / 3);
    }
    assert_eq!((story.who("other"), story.who("new")), ("Unknown".into(), "b".into()));
}

#[test]
fn a_fetch_from_before_the_first_list_is_believed() {
    let mut story = Story::untold();
    story.probe("a", true);
    story.fetch("a", "", &["both"]);
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    story.tell(Event::Endpoints(Vec::new()));
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
    assert_eq!(
        (story.who("both"), story.who("mine"), story.ready()),
        ("b".into(), "a".into(), "a b".into()),
        "it started anew, says a Lease"
    );
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

/// A server that leaves still answers: better than one that may have lost what is asked for.
#[test]
fn local_that_leaves_is_no_worse_than_a_peer_that_may_lack_it() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["both"]);
    story.pass(SECOND);
    story.fetch("b", "b1", &[]);
    story.tell(Event::Probed { server: id("a"), readiness: Readiness::Leaving, vouched: None });
    assert_eq!((story.who("both"), story.ready()), ("a".into(), "b".into()));
    story.probe("a", false);
    assert_eq!(story.who("both"), "b", "the only one that may be asked");
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
    story.tell(Event::Endpoints(Vec::new()));
    story.tell(Event::Excluded(Exclusion::Custom, Vec::new()));
    story.tell(Event::ExcludedDenied(Exclusion::Aggregated));
    story.probe("a", true);
    story.fetch("a", "a1", &["mine"]);
    story.fetch("b", "b1", &["theirs"]);
    assert_eq!((story.who("mine"), story.who("other"), story.address("b")), ("a".into(), "Unknown".into(), None));
    assert_eq!(story.who("theirs"), "Gone", "no 404: somebody has it");
    story.tell(Event::Excluded(Exclusion::Aggregated, Vec::new()));
    assert_eq!(story.who("theirs"), "b", "somebody allowed it");
    story.tell(Event::ExcludedDenied(Exclusion::Aggregated));
    assert_eq!(story.who("theirs"), "b", "an old list is better than none");
}

/// Nothing goes to a peer then, and what nobody is known to serve may be a peer's all the same.
#[test]
fn without_the_exclusions_a_peer_that_was_not_asked_leaves_questions_open() {
    for (denied, listed) in [(Exclusion::Custom, Exclusion::Aggregated), (Exclusion::Aggregated, Exclusion::Custom)] {
        let mut story = Story::untold();
        story.tell(Event::ExcludedDenied(denied));
        story.tell(Event::Excluded(listed, Vec::new()));
        story.probe("a", true);
        story.fetch("a", "", &["mine"]);
        story.pass(START);
        assert_eq!((story.who("mine"), story.who("other"), story.ready()), ("a".into(), "Unasked".into(), "a".into()), "no lists");
        story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
        story.tell(Event::Endpoints(Vec::new()));
        assert_eq!((story.who("mine"), story.who("other")), ("a".into(), "Unasked".into()), "b was not asked");
        story.probe("b", true);
        story.fetch("b", "b1", &["theirs"]);
        assert_eq!((story.who("theirs"), story.who("other")), ("Gone".into(), "Unknown".into()));
        story.leases(&[lease("a", "a1", 1), lease("b", "b2", 2)]);
        assert_eq!((story.who("mine"), story.who("other")), ("a".into(), "Unasked".into()), "it started anew");
    }
}

#[test]
fn without_the_exclusions_a_local_server_that_cannot_be_asked_answers_for_itself() {
    let mut story = Story::untold();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c1", 3)]);
    story.tell(Event::Endpoints(Vec::new()));
    story.tell(Event::Excluded(Exclusion::Custom, Vec::new()));
    story.tell(Event::ExcludedDenied(Exclusion::Aggregated));
    story.probe("a", true);
    story.probe("b", true);
    story.fetch("b", "b1", &["theirs"]);
    assert_eq!(story.inventory.snapshot(1, story.now).map(|_| ()), None);
    story.pass(START);
    assert_eq!((story.who("other"), story.ready()), ("Unknown".into(), "a".into()), "else all would be 503");
}

/// As kube-apiserver and the design have them.
#[test]
fn the_times_are_those_of_the_design() {
    assert_eq!((GONE, EXCLUSION_GRACE), (Duration::from_secs(60), Duration::from_secs(5 * 60)));
}

#[test]
fn each_source_of_an_address_gives_way_to_the_next() {
    let mut story = Story::new();
    let told = at("192.0.2.2:7443");
    story.inventory.settings.peers.insert(id("b"), told);
    let proxy = Proxy { server: id("b"), address: at("10.0.1.2:6445"), advertised: Some(at("10.0.3.2:6443")) };
    story.tell(Event::Proxies(vec![proxy]));
    story.tell(Event::Endpoints(vec![at("10.0.3.2:6443")]));
    for expected in ["192.0.2.2:7443 Apiserver", "10.0.1.2:6445 Proxy", "10.0.0.2:6443 Apiserver", "10.0.3.2:6443 Apiserver"] {
        assert_eq!(story.address("b").as_deref(), Some(expected));
        let (address, _) = expected.split_once(' ').unwrap();
        story.tell(Event::Unreachable(at(address)));
    }
    assert_eq!(story.address("b").as_deref(), Some("192.0.2.2:7443 Apiserver"), "none connects");
    story.tell(Event::Reachable(at("10.0.3.2:6443")));
    assert_eq!(story.address("b").as_deref(), Some("10.0.3.2:6443 Apiserver"));
    story.tell(Event::Reachable(told));
    assert_eq!(story.address("b").as_deref(), Some("192.0.2.2:7443 Apiserver"));
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
    assert!(story.inventory.checks(story.now).contains(&(id("b"), proxy, Via::Proxy)));
    story.tell(Event::Reachable(proxy));
    assert_eq!(story.address("b").as_deref(), Some("10.0.1.2:6445 Proxy"));
    story.tell(Event::Unreachable(proxy));
    story.probe("b", false);
    story.probe("b", true);
    assert!(story.inventory.checks(story.now).contains(&(id("b"), proxy, Via::Proxy)), "a server that is back is tried at once");
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
        assert!(!story.inventory.checks(story.now).iter().any(|(_, asked, _)| *asked == at(address)), "{address}");
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
fn made_up_leases_give_way_to_endpoints_in_any_order() {
    let real = [lease("a", "a1", 1), lease("b", "b1", 2)];
    let leases = Event::Leases([forged(""), real.to_vec()].concat());
    let endpoints = Event::Endpoints(vec![at("10.0.0.1:6443"), at("10.0.0.2:6443"), at("10.0.0.7:6443")]);
    for events in [[leases.clone(), endpoints.clone()], [endpoints, leases]] {
        let mut story = Story::untold();
        story.exclude(&[]);
        story.probe("a", true);
        events.into_iter().for_each(|event| story.tell(event));
        story.fetch("a", "a1", &["mine"]);
        for (server, holder, resource) in [("b", "b1", "theirs"), ("addr:10.0.0.7:6443", "", "seven")] {
            story.probe(server, true);
            story.fetch(server, holder, &[resource]);
            assert_eq!(story.who(resource), server);
        }
        // A server that starts now, and one whose Lease comes after its endpoint.
        story.leases(&[forged(""), real.to_vec(), vec![lease("c", "c1", 3), lease("d", "d1", 7)]].concat());
        story.tell(Event::Endpoints(["1", "2", "3", "7"].map(|last| at(&format!("10.0.0.{last}:6443"))).to_vec()));
        assert_eq!(story.address("c").as_deref(), Some("10.0.0.3:6443 Apiserver"));
        assert_eq!((story.who("seven"), story.who("theirs")), ("d".into(), "b".into()));
        assert_eq!(story.probes().len(), ServerSet::CAPACITY - 1, "a place is kept for local's endpoint");
    }
}

#[test]
fn made_up_leases_give_way_to_names_that_are_hashes() {
    let mut story = Story::untold();
    let name = name_on("cp-b");
    let real = Lease { hostname: Some("cp-b".into()), ..lease(&name, "b1", 2) };
    let copied = Lease { hostname: Some("cp-b".into()), ..lease("9", "x", 9) };
    story.leases(&[forged(""), vec![copied, lease("a", "a1", 1), real]].concat());
    let probed = story.probes();
    assert!(probed.contains(&format!("{name} 10.0.0.2:6443")) && !probed.iter().any(|ask| ask.starts_with("9 ")), "{probed:?}");
    assert_eq!(probed.len(), ServerSet::CAPACITY);
}

/// The server of a Lease that got no place may serve what nobody else does.
#[test]
fn a_lease_without_a_place_leaves_a_question() {
    let mut story = Story::new();
    let (mine, placeless) = (lease("a", "a1", 1), |nth: usize| Lease { address: None, ..lease(&format!("c-{nth:03}"), "x", 0) });
    for (count, expected) in [(ServerSet::CAPACITY - 1, "Unknown"), (ServerSet::CAPACITY, "Unasked"), (1, "Unknown")] {
        story.leases(&(0..count).map(placeless).chain([mine.clone()]).collect::<Vec<_>>());
        story.pass(2 * GONE);
        assert_eq!((story.who("other").as_str(), story.who("mine").as_str()), (expected, "a"), "{count}");
    }
    // Those that name the address of another take no place, but may be so many that a real one is cut.
    let local = Some(([127, 0, 0, 1], 6443).into());
    for (count, expected) in [(LISTED_MAX - 2, "Unknown"), (LISTED_MAX, "Unasked")] {
        let forged = |nth| Lease { address: local, ..lease(&format!("d-{nth:04}"), "x", 0) };
        story.leases(&(0..count).map(forged).chain([mine.clone()]).collect::<Vec<_>>());
        story.pass(2 * GONE);
        assert_eq!(story.who("other"), expected, "{count}");
    }
}

#[test]
fn made_up_proxies_do_not_drive_out_those_of_servers() {
    let proxy = |server: &str, address: &str| Proxy { server: id(server), address: at(address), advertised: None };
    let forged = (0..2_000).map(|nth| proxy(&format!("0-{nth:04}"), "10.9.9.9:6445"));
    let proxies: Vec<_> = forged.chain([proxy("b", "10.0.1.2:6445")]).collect();
    for are_first in [true, false] {
        let mut story = Story::untold();
        if are_first {
            story.tell(Event::Proxies(proxies.clone()));
        }
        story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
        if !are_first {
            story.tell(Event::Proxies(proxies.clone()));
        }
        story.tell(Event::Endpoints(Vec::new()));
        story.exclude(&[]);
        story.fetch("a", "a1", &["mine"]);
        story.fetch("b", "b1", &["other"]);
        assert_eq!(story.address("b").as_deref(), Some("10.0.1.2:6445 Proxy"), "{are_first}");
    }
}

#[test]
fn made_up_leases_take_nothing_from_a_server_that_answers() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["both", "theirs"]);
    let real = [lease("a", "a1", 1), lease("b", "b1", 2)];
    let on_host = |mut lease: Lease| {
        let host = format!("host-{}", lease.id);
        lease.id = id(&name_on(&host));
        Lease { hostname: Some(host.into()), ..lease }
    };
    let hosts: Vec<Lease> = forged("").into_iter().map(on_host).collect();
    // With its address, before it by name, and named as kube-apiserver would.
    let (same, same_named) = (lease("0", "x", 2), Lease { hostname: Some("h".into()), ..lease(&name_on("h"), "x", 2) });
    story.leases(&[hosts, vec![same.clone(), same_named], real.to_vec()].concat());
    assert_eq!((story.who("theirs"), story.who("both"), story.ready()), ("b".into(), "a b".into(), "a b".into()));
    assert_eq!((story.address("0"), story.address(&name_on("h"))), (None, None));
    // It restarts: its Lease is deleted, another has its address meanwhile, and it comes back.
    story.leases(&[same.clone(), lease("a", "a1", 1)]);
    assert_eq!((story.who("theirs"), story.address("0").as_deref()), ("Gone".into(), Some("10.0.0.2:6443 Apiserver")));
    story.leases(&[same, lease("a", "a1", 1), lease("b", "b2", 2)]);
    story.probe("b", true);
    story.fetch("b", "b2", &["theirs"]);
    assert_eq!((story.who("theirs"), story.ready(), story.address("0")), ("b".into(), "a b".into(), None));
}

#[test]
fn a_lease_that_is_changed_takes_no_address_from_a_server_that_answers() {
    let mut story = Story::new();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c1", 3)]);
    story.probe("c", true);
    story.fetch("b", "b1", &["theirs"]);
    story.fetch("c", "c1", &["others"]);
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 3), lease("c", "c1", 3)]);
    assert_eq!((story.who("theirs"), story.who("others")), ("Gone".into(), "c".into()));
    story.leases(&[lease("a", "a1", 3), lease("b", "b1", 2), lease("c", "c1", 3)]);
    assert_eq!((story.address("c").as_deref(), story.who("others")), (Some("10.0.0.3:6443 Apiserver"), "c".into()));
}

#[test]
fn of_two_at_one_address_the_one_that_can_be_used_has_it() {
    let mut story = Story::new();
    let (b, proxy) = (Lease { address: None, ..lease("b", "b1", 2) }, at("10.0.1.2:6445"));
    story.fetch("b", "b1", &["theirs"]);
    story.leases(&[lease("a", "a1", 1), b.clone()]);
    story.tell(Event::Endpoints(vec![at("10.0.0.2:6443")]));
    story.tell(Event::Proxies(vec![Proxy { server: id("b"), address: proxy, advertised: Some(at("10.0.0.2:6443")) }]));
    story.tell(Event::Unreachable(proxy));
    assert_eq!(story.address("b").as_deref(), Some("10.0.0.2:6443 Apiserver"));
    // Before `b` by name. The server behind the address answers for both.
    story.leases(&[lease("0", "x1", 2), lease("a", "a1", 1), b.clone()]);
    assert_eq!((story.who("theirs"), story.address("0")), ("b".into(), None));
    story.probe("0", true);
    assert_eq!((story.who("theirs"), story.ready()), ("b".into(), "a b".into()));
    story.fetch("0", "x1", &["theirs"]);
    assert_eq!((story.who("theirs"), story.ready()), ("0".into(), "a 0".into()));
    story.leases(&[lease("0", "x2", 2), lease("a", "a1", 1), b]);
    assert_eq!((story.who("theirs"), story.ready()), ("b".into(), "a b".into()), "it says that it started anew");
}

/// As in clusters before v1.36, whose Leases name no address, when a proxy ends and comes back.
#[test]
fn a_server_that_loses_its_name_keeps_what_was_known_of_it() {
    let mut story = Story::new();
    let (endpoint, nameless) = (at("10.0.0.2:6443"), "addr:10.0.0.2:6443");
    let leases = |holder: &str| [lease("a", "a1", 1), Lease { address: None, ..lease("b", holder, 2) }];
    let proxy = || Event::Proxies(vec![Proxy { server: id("b"), address: at("10.0.1.2:6445"), advertised: Some(endpoint) }]);
    story.leases(&leases("b1"));
    story.tell(Event::Endpoints(vec![endpoint]));
    story.tell(proxy());
    story.probe("b", true);
    story.fetch("b", "b1", &["theirs"]);
    for _ in 0..2 {
        story.pass(SECOND);
        story.tell(Event::Proxies(Vec::new()));
        assert_eq!((story.who("theirs"), story.ready()), (nameless.into(), format!("a {nameless}")));
        assert_eq!((story.who("other"), story.due()), ("Unknown".into(), vec![nameless.into()]));
        story.tell(proxy());
        assert_eq!((story.who("theirs"), story.ready(), story.address(nameless)), ("b".into(), "a b".into(), None));
        story.fetch("b", "b1", &["theirs"]);
    }
    // It started anew, and is not asked yet.
    story.leases(&leases("b2"));
    story.tell(Event::Proxies(Vec::new()));
    assert_eq!((story.who("theirs"), story.who("other"), story.ready()), (nameless.into(), "Unasked".into(), "a".into()));
    story.probe(nameless, true);
    assert_eq!((story.ready(), story.due()), ("a".into(), vec![nameless.into()]));
    story.fetch(nameless, "", &[]);
    assert_eq!((story.who("theirs"), story.who("other"), story.ready()), ("Unknown".into(), "Unknown".into(), format!("a {nameless}")));
}

#[test]
fn a_made_up_proxy_that_goes_keeps_no_address() {
    let mut story = Story::new();
    let (endpoint, nameless) = (at("10.0.0.7:6443"), "addr:10.0.0.7:6443");
    story.fetch("b", "b1", &[]);
    story.tell(Event::Endpoints(vec![endpoint]));
    story.probe(nameless, true);
    story.fetch(nameless, "", &["seven"]);
    let placeless = Lease { address: None, ..lease("x", "x1", 9) };
    for leases in [vec![], vec![placeless]] {
        story.leases(&[vec![lease("a", "a1", 1), lease("b", "b1", 2)], leases].concat());
        story.tell(Event::Proxies(vec![Proxy { server: id("x"), address: at("10.0.1.9:6445"), advertised: Some(endpoint) }]));
        assert_eq!(story.who("seven"), "x");
        story.tell(Event::Proxies(Vec::new()));
        assert_eq!((story.who("seven"), story.address("x"), story.ready()), (nameless.into(), None, format!("a {nameless} b")));
    }
}

/// Its Lease says that it lives, and who lives may serve it.
#[test]
fn a_server_that_nothing_says_the_address_of_is_no_404_while_its_lease_is_there() {
    let mut story = Story::new();
    let placeless = [lease("a", "a1", 1), Lease { address: None, ..lease("b", "b1", 2) }];
    story.fetch("b", "b1", &["theirs"]);
    story.leases(&placeless);
    for _ in 0..3 {
        story.pass(GONE);
        story.leases(&placeless);
        assert_eq!(["theirs", "mine", "other"].map(|resource| story.who(resource)), ["Gone", "a", "Unknown"].map(String::from));
    }
    // It is back, and nobody knows how it is.
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2)]);
    assert_eq!((story.who("theirs"), story.ready()), ("b".into(), "a".into()));
    story.probe("b", true);
    assert_eq!((story.ready(), story.due()), ("a".into(), vec!["a".into(), "b".into()]));
    story.fetch("b", "b1", &["theirs"]);
    assert_eq!(story.ready(), "a b");
    story.leases(&[lease("a", "a1", 1)]);
    story.pass(GONE);
    assert_eq!(story.who("theirs"), "Unknown", "it left");
}

#[test]
fn servers_behind_one_address_are_told_apart_by_their_proxies() {
    let mut story = Story::new();
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c1", 2)]);
    assert_eq!((story.address("b").as_deref(), story.address("c")), (Some("10.0.0.2:6443 Apiserver"), None));
    let proxy = |server: &str, address: &str| Proxy { server: id(server), address: at(address), advertised: Some(at("10.0.0.2:6443")) };
    story.tell(Event::Proxies(vec![proxy("b", "10.0.1.2:6445"), proxy("c", "10.0.1.3:6445")]));
    assert_eq!(story.address("b").as_deref(), Some("10.0.1.2:6445 Proxy"));
    assert_eq!(story.address("c").as_deref(), Some("10.0.1.3:6445 Proxy"));
}

/// As with the address of a load balancer given to `--peer-advertise-ip` of each.
#[test]
fn of_two_that_announce_one_proxy_address_both_stay() {
    let mut story = Story::new();
    let shared = at("10.0.1.9:6445");
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c1", 3)]);
    story.probe("c", true);
    story.fetch("b", "b1", &["theirs"]);
    story.fetch("c", "c1", &["others"]);
    let proxies = ["b", "c"].map(|server| Proxy { server: id(server), address: shared, advertised: None });
    story.tell(Event::Proxies(proxies.to_vec()));
    let views = story.inventory.views();
    let seen = |server: &str| views.iter().find(|view| view.id == id(server)).and_then(|view| view.address);
    for (server, resource, expected) in [("b", "theirs", "10.0.1.9:6445 Proxy"), ("c", "others", "10.0.0.3:6443 Apiserver")] {
        assert_eq!((story.address(server).as_deref(), story.who(resource)), (Some(expected), server.into()));
        assert_eq!(seen(server).map(|(address, via)| format!("{address} {via:?}")).as_deref(), Some(expected));
    }
    story.tell(Event::Unreachable(shared));
    assert_eq!(story.address("b").as_deref(), Some("10.0.0.2:6443 Apiserver"));
    assert_eq!(story.address("c").as_deref(), Some("10.0.0.3:6443 Apiserver"));
    // What does not connect is not taken instead.
    story.tell(Event::Reachable(shared));
    story.tell(Event::Unreachable(at("10.0.0.3:6443")));
    assert_eq!((story.address("c"), story.who("others")), (None, "Gone".into()));
}

#[test]
fn made_up_leases_that_come_and_go_leave_what_is_remembered() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["theirs"]);
    story.leases(&[lease("a", "a1", 1)]);
    for wave in 0..3 {
        story.leases(&[forged(&wave.to_string()), vec![lease("a", "a1", 1)]].concat());
        story.leases(&[lease("a", "a1", 1)]);
    }
    assert_eq!(story.who("theirs"), "Gone");
    assert!(story.inventory.servers.len() <= 2 * ServerSet::CAPACITY, "{}", story.inventory.servers.len());
    // Nor do those that left keep others out.
    story.leases(&[lease("a", "a1", 1), lease("b", "b1", 2), lease("c", "c1", 3)]);
    assert_eq!(story.who("theirs"), "b");
    assert_eq!(story.probes(), ["a 127.0.0.1:6443", "b 10.0.0.2:6443", "c 10.0.0.3:6443"]);
}

#[test]
fn the_proxy_of_a_server_without_a_lease_counts_while_an_endpoint_confirms_it() {
    let mut story = Story::new();
    story.fetch("b", "b1", &[]);
    let endpoint = at("10.0.0.8:6443");
    let proxy = |server: &str| Proxy { server: id(server), address: at("10.0.0.8:6445"), advertised: Some(endpoint) };
    story.tell(Event::Proxies(vec![proxy("d"), proxy("e")]));
    story.tell(Event::Endpoints(vec![endpoint]));
    let confirmed = ["a 127.0.0.1:6443", "b 10.0.0.2:6443", "d 10.0.0.8:6443"];
    assert_eq!(story.probes(), confirmed, "one for each endpoint");
    story.tell(Event::Endpoints(Vec::new()));
    assert_eq!((story.probes().len(), story.who("other")), (2, "Unknown".into()));
    story.tell(Event::Endpoints(vec![endpoint]));
    assert_eq!(story.probes(), confirmed, "it is back");
}

#[test]
fn a_name_that_no_path_can_have_stops_nothing() {
    let mut story = Story::new();
    story.fetch("b", "b1", &["theirs/status", "", &"r".repeat(300), "theirs"]);
    story.exclude(&[("x".repeat(300).into(), "v1".into()), ("custom".into(), "".into())]);
    assert_eq!((story.who("theirs"), story.who("mine"), story.who("other")), ("b".into(), "a".into(), "Unknown".into()));
    story.leases(&[lease("a", "a1", 1)]);
    assert_eq!((story.who("theirs"), story.who("other")), ("Gone".into(), "Unknown".into()));
}

fn many(first: usize, count: usize) -> Vec<Gvr> {
    (first..first + count).map(|nth| gvr(&format!("r{nth}"))).collect()
}

#[test]
fn of_more_resources_than_fit_locals_stay() {
    let mut story = Story::new();
    let fetched = |server: &str, serves| Event::Fetched {
        server: id(server),
        holder: Some(format!("{server}1").into()),
        began: story.now,
        serves: Some(serves),
    };
    let (theirs, mine) = (fetched("b", many(0, ENTRIES_MAX)), fetched("a", many(ENTRIES_MAX, 10)));
    story.tell(theirs);
    assert_eq!((story.who("r5"), story.who("other")), ("b".into(), "Unasked".into()), "two of local's are more than fit");
    assert_eq!((story.who("mine"), story.who("both")), ("a".into(), "a".into()));
    story.tell(mine);
    story.exclude(&[("custom".into(), "v1".into())]);
    for nth in ENTRIES_MAX..ENTRIES_MAX + 10 {
        assert_eq!(story.who(&format!("r{nth}")), "a");
    }
    let snapshot = story.inventory.snapshot(1, story.now).unwrap().unwrap();
    assert_eq!((snapshot.gvrs(), snapshot.is_complete()), (ENTRIES_MAX, false));
    assert_eq!(snapshot.lookup(&Name::new(b"custom", b"v1", b"things")), Err(Standing::Excluded));
    story.fetch("b", "b1", &[]);
    story.pass(HYSTERESIS);
    story.fetch("b", "b1", &[]);
    assert_eq!((story.who("r5"), story.who("r65535")), ("Unknown".into(), "a".into()), "there is room again");
}

#[test]
fn group_versions_that_nobody_serves_any_more_are_not_asked_about() {
    let mut story = Story::new();
    let fetch = |story: &mut Story, group: &str| {
        let (server, holder, began) = (id("b"), Some("b1".into()), story.now);
        story.tell(Event::Fetched { server, holder, began, serves: Some(vec![Gvr::new(group, "v1", "things")]) });
    };
    let groups = |story: &Story| story.inventory.group_versions().into_iter().map(|(group, _)| group.into()).collect::<Vec<String>>();
    fetch(&mut story, "old");
    fetch(&mut story, "new");
    story.tell(Event::StorageVersions(vec![(id("b"), Gvr::new("stored", "v1", "things"))]));
    assert_eq!(groups(&story), ["g", "new", "old", "stored"]);
    story.pass(HYSTERESIS);
    fetch(&mut story, "new");
    assert_eq!(groups(&story), ["g", "new", "stored"]);
}

#[test]
fn names_that_nobody_uses_go_now_and_then() {
    let mut story = Story::new();
    let fetch = |story: &mut Story, names| {
        let (server, holder, began) = (id("b"), Some("b1".into()), story.now);
        story.tell(Event::Fetched { server, holder, began, serves: Some(names) });
        story.inventory.names.len()
    };
    let live = 2 * ENTRIES_MAX + 1;
    assert_eq!(fetch(&mut story, many(0, live)), live + 2, "and local's: all are in use");
    story.pass(SECOND);
    assert_eq!(story.inventory.compacted, Some((story.now - SECOND, live + 2)), "not at every event");
    // Some come, and some go.
    assert_eq!(fetch(&mut story, many(live, 10)), live + 12, "those from before are missing for a while");
    story.pass(HYSTERESIS);
    fetch(&mut story, many(live, 10));
    story.pass(GONE);
    assert_eq!(story.inventory.names.len(), 12);
    assert_eq!((story.who("mine"), story.who("r131075"), story.who("r0")), ("a".into(), "b".into(), "Unknown".into()));
    // More than there are numbers for.
    fetch(&mut story, many(0, 4 * ENTRIES_MAX));
    assert_eq!((story.who("mine"), story.who("other")), ("a".into(), "Unasked".into()));
    story.fetched_since(story.now, "b", "b1", None);
    assert!(story.inventory.servers[&id("b")].is_cut());
}

#[test]
fn ten_thousand_resources_of_a_hundred_servers_are_quick() {
    let mut story = Story::untold();
    story.exclude(&[]);
    let servers: Vec<String> = std::iter::once("a".to_owned()).chain((1..100).map(|nth| format!("b{nth}"))).collect();
    let leases: Vec<Lease> = (0u8..100).map(|nth| lease(&servers[usize::from(nth)], "1", nth + 1)).collect();
    story.leases(&leases);
    story.tell(Event::Endpoints(Vec::new()));
    let names: Vec<Gvr> = (0..10_000).map(|nth| Gvr::new(&format!("group-{}", nth % 500), "v1", &format!("resources{nth}"))).collect();
    for (nth, server) in servers.iter().enumerate() {
        let serves = names.iter().enumerate().filter(|(at, _)| (at + nth) % 7 != 0).map(|(_, gvr)| gvr.clone()).collect();
        story.tell(Event::Fetched { server: id(server), holder: Some("1".into()), began: story.now, serves: Some(serves) });
    }
    let began = Instant::now();
    let snapshot = story.inventory.snapshot(1, story.now).unwrap().unwrap();
    let taken = began.elapsed();
    assert_eq!((snapshot.gvrs(), snapshot.servers().len()), (10_000, 100));
    assert!(snapshot.heap_bytes() <= 4 << 20, "{}", snapshot.heap_bytes());
    assert!(taken < Duration::from_millis(500), "{taken:?}");
    println!("{taken:?}");
}
