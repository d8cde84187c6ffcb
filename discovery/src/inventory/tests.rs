//! What is known of the servers: a fold over what the sources say, with `now` passed in.
//!
//! What always holds:
//! - no snapshot comes from an unfinished list;
//! - a good fetch decides what a server serves; what StorageVersions say counts only until the first one;
//! - a *peer's* resource disappears only after two good fetches without it, [`HYSTERESIS`] apart; a failed fetch changes nothing;
//! - a server whose Lease is gone is chosen no more, and what only it served is known as gone for [`GONE`]: nobody takes that for a 404;
//! - a *local* server in doubt is not preferred where a peer serves the same;
//! - clocks and times of Leases are never looked at.
//!
//! It opens no socket and reads no clock. Addresses it hands out went through the [`AllowList`], unless they came from the command line.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::allow::AllowList;
use crate::names::Names;
use crate::snapshot::{BuildError, Snapshot, SnapshotBuilder};
use crate::{Gvr, Server, ServerId, ServerSet};

/// How far apart two good fetches have to be before what is in neither of them is believed to be gone.
pub const HYSTERESIS: Duration = Duration::from_secs(5);
/// How long a server that left is remembered.
pub const GONE: Duration = Duration::from_secs(60);
/// How long a custom or aggregated group-version stays one after its object was deleted, as in kube-apiserver.
pub const EXCLUSION_GRACE: Duration = Duration::from_secs(300);
/// How often a server is asked what it serves when nothing says that it changed.
pub const POLL: Duration = Duration::from_secs(10);
/// How long an address that did not connect gives way to the next one.
pub const ADDRESS_REST: Duration = Duration::from_secs(10);

/// An identity Lease of a kube-apiserver that passed the checks of [`crate::leases`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its name.
    pub id: ServerId,
    /// Changes whenever the server starts anew.
    pub holder: Box<str>,
    /// Where it says that peers reach it.
    pub address: Option<SocketAddr>,
}

/// A Lease of another mvproxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// The server that it fronts.
    pub server: ServerId,
    /// Its peer port.
    pub address: SocketAddr,
    /// The advertised address of its server, by which other sources are joined.
    pub advertised: Option<SocketAddr>,
}

/// What a source says.
#[derive(Clone, Debug)]
pub enum Event {
    /// All identity Leases.
    Leases(Vec<Lease>),
    /// One of them is new or changed.
    Lease(Lease),
    /// One of them was deleted.
    LeaseGone(ServerId),
    /// All Leases of proxies.
    Proxies(Vec<Proxy>),
    /// Every address of the `kubernetes` EndpointSlices.
    Endpoints(Vec<SocketAddr>),
    /// Every group-version of a CRD, or of an APIService with a service.
    Excluded(Vec<(Box<str>, Box<str>)>),
    /// Custom and aggregated resources cannot be listed: nothing may go to a peer.
    ExcludedDenied,
    /// Everything that StorageVersions say.
    StorageVersions(Vec<(ServerId, Gvr)>),
    /// A server said what it serves. `holder` is what its Lease said when it was asked.
    Fetched {
        /// Who.
        server: ServerId,
        /// Its Lease's holder when the fetch began.
        holder: Option<Box<str>>,
        /// All of it.
        serves: Vec<Gvr>,
    },
    /// Connections to local were refused or lost without a GOAWAY: it may be another one when it is back.
    LocalInDoubt,
    /// No connection to this address could be had.
    Unreachable(SocketAddr),
}

/// What does not change while the program runs.
#[derive(Clone, Debug)]
pub struct Settings {
    /// The server behind this proxy.
    pub local: ServerId,
    /// Where it is reached.
    pub local_address: SocketAddr,
    /// Peers named on the command line; their addresses are not asked about.
    pub peers: BTreeMap<ServerId, SocketAddr>,
    /// What may be connected to.
    pub allowed: AllowList,
}

/// A fetch that is to be made now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Due {
    /// Whom to ask.
    pub server: ServerId,
    /// Where.
    pub address: SocketAddr,
    /// To be given back in [`Event::Fetched`].
    pub holder: Option<Box<str>>,
}

/// One server.
#[derive(Default)]
struct Known {
    lease: Option<Lease>,
    proxy: Option<Proxy>,
    endpoint: Option<SocketAddr>,
    fetched: Option<Fetched>,
    storage: Vec<u32>,
    gone: Option<Instant>,
}

struct Fetched {
    at: Instant,
    holder: Option<Box<str>>,
    /// Sorted.
    serves: Vec<u32>,
    /// Was served, and is not in the last good fetch, nor in those since then.
    missing: BTreeMap<u32, Instant>,
}

impl Known {
    /// What it serves as far as is known; `None` when nobody said anything.
    fn serves(&self) -> Option<Vec<u32>> {
        match &self.fetched {
            Some(fetched) => Some(fetched.serves.iter().chain(fetched.missing.keys()).copied().collect()),
            None if self.storage.is_empty() => None,
            None => Some(self.storage.clone()),
        }
    }

    fn holder(&self) -> Option<&str> {
        self.lease.as_ref().map(|lease| &*lease.holder)
    }

    /// Was it fetched since it last started?
    fn is_current(&self) -> bool {
        self.fetched.as_ref().is_some_and(|fetched| fetched.holder.as_deref() == self.holder())
    }
}

/// The fold.
pub struct Inventory {
    settings: Settings,
    names: Names,
    servers: BTreeMap<ServerId, Known>,
    /// Group-versions that are never routed to a peer, and since when they no longer should be.
    excluded: BTreeMap<(Box<str>, Box<str>), Option<Instant>>,
    leases_listed: bool,
    exclusions: Exclusions,
    /// When local was last in doubt.
    doubted: Option<Instant>,
    unreachable: HashMap<SocketAddr, Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Exclusions {
    NotListed,
    Listed,
    Denied,
}

impl Inventory {
    /// Knows local and the peers of the command line.
    pub fn new(settings: Settings) -> Self {
        let mut servers: BTreeMap<_, _> = settings.peers.keys().map(|id| (id.clone(), Known::default())).collect();
        servers.insert(settings.local.clone(), Known::default());
        Self {
            settings,
            names: Names::default(),
            servers,
            excluded: BTreeMap::new(),
            leases_listed: false,
            exclusions: Exclusions::NotListed,
            doubted: None,
            unreachable: HashMap::new(),
        }
    }

    /// Takes in what a source says.
    pub fn apply(&mut self, event: Event, now: Instant) {
        match event {
            Event::Leases(leases) => self.take_leases(leases, now),
            Event::Lease(lease) => self.take_lease(lease),
            Event::LeaseGone(id) => self.lose_lease(&id, now),
            Event::Proxies(proxies) => self.take_proxies(proxies),
            Event::Endpoints(addresses) => self.take_endpoints(&addresses, now),
            Event::Excluded(listed) => self.take_excluded(listed, now),
            Event::ExcludedDenied => self.exclusions = Exclusions::Denied,
            Event::StorageVersions(entries) => self.take_storage_versions(entries),
            Event::Fetched { server, holder, serves } => self.take_fetched(&server, holder, serves, now),
            Event::LocalInDoubt => self.doubted = Some(now),
            Event::Unreachable(address) => {
                self.unreachable.insert(address, now);
            }
        }
        self.tick(now);
    }

    /// Forgets what has had its time. Harmless to call at any moment.
    pub fn tick(&mut self, now: Instant) {
        self.servers.retain(|_, known| known.gone.is_none_or(|since| now - since < GONE));
        self.excluded.retain(|_, removed| removed.is_none_or(|since| now - since < EXCLUSION_GRACE));
        self.unreachable.retain(|_, since| now - *since < ADDRESS_REST);
        if self.names.len() > 2 * crate::table::ENTRIES_MAX {
            self.compact();
        }
    }

    /// Fetches to be made now: of servers that were never asked, that started anew, that are in doubt, or that were not asked for [`POLL`].
    pub fn due(&self, now: Instant) -> Vec<Due> {
        let wanted = |id: &ServerId, known: &Known| {
            let at = known.fetched.as_ref().map(|fetched| fetched.at);
            let doubted = *id == self.settings.local && self.is_local_in_doubt();
            known.gone.is_none() && (doubted || !known.is_current() || at.is_none_or(|at| now - at >= POLL))
        };
        let due = self.servers.iter().filter(|(id, known)| wanted(id, known));
        due.filter_map(|(id, known)| {
            let address = self.address_of(id, known)?;
            Some(Due { server: id.clone(), address, holder: known.holder().map(Into::into) })
        })
        .collect()
    }

    /// The table of this moment; `None` while lists are unfinished or local was never asked.
    pub fn snapshot(&self, generation: u64) -> Option<Result<Snapshot, BuildError>> {
        let local_known = self.servers.get(&self.settings.local).is_some_and(|local| local.fetched.is_some());
        let listed = self.leases_listed && self.exclusions != Exclusions::NotListed;
        (listed && local_known).then(|| self.build(generation))
    }

    /// Is what local serves open to doubt?
    pub fn is_local_in_doubt(&self) -> bool {
        let Some(local) = self.servers.get(&self.settings.local) else { return true };
        let fetched = local.fetched.as_ref().map(|fetched| fetched.at);
        !local.is_current() || self.doubted.is_some_and(|doubted| fetched.is_none_or(|at| at <= doubted))
    }

    /// Known peers that never said what they serve.
    pub fn unfetched(&self) -> impl Iterator<Item = &ServerId> {
        let peers = self.servers.iter().filter(|(id, known)| **id != self.settings.local && known.gone.is_none());
        peers.filter(|(_, known)| known.serves().is_none()).map(|(id, _)| id)
    }

    fn take_leases(&mut self, leases: Vec<Lease>, now: Instant) {
        self.leases_listed = true;
        let there: BTreeSet<_> = leases.iter().map(|lease| lease.id.clone()).collect();
        let left: Vec<_> =
            self.servers.iter().filter(|(id, known)| known.lease.is_some() && !there.contains(id)).map(|(id, _)| id.clone()).collect();
        for id in left {
            self.lose_lease(&id, now);
        }
        for lease in leases {
            self.take_lease(lease);
        }
    }

    fn take_lease(&mut self, lease: Lease) {
        if self.servers.len() >= ServerSet::CAPACITY && !self.servers.contains_key(&lease.id) {
            return;
        }
        let known = self.servers.entry(lease.id.clone()).or_default();
        known.gone = None;
        known.lease = Some(lease);
    }

    fn lose_lease(&mut self, id: &ServerId, now: Instant) {
        let named = self.settings.peers.contains_key(id) || *id == self.settings.local;
        let Some(known) = self.servers.get_mut(id) else { return };
        known.lease = None;
        if !named {
            known.gone.get_or_insert(now);
        }
    }

    fn take_proxies(&mut self, proxies: Vec<Proxy>) {
        self.servers.values_mut().for_each(|known| known.proxy = None);
        for proxy in proxies {
            if let Some(known) = self.servers.get_mut(&proxy.server) {
                known.proxy = Some(proxy);
            }
        }
    }

    /// An address that somebody's Lease names is that server's; any other is a server of its own, without a better name.
    fn take_endpoints(&mut self, addresses: &[SocketAddr], now: Instant) {
        let own = self.servers.get(&self.settings.local).and_then(|local| local.lease.as_ref()).and_then(|lease| lease.address);
        for known in self.servers.values_mut() {
            known.endpoint = None;
        }
        for &address in addresses.iter().filter(|&&address| Some(address) != own && !self.settings.allowed.is_own(address)) {
            let advertises = |known: &Known| {
                let lease = known.lease.as_ref().and_then(|lease| lease.address);
                lease == Some(address) || known.proxy.as_ref().and_then(|proxy| proxy.advertised) == Some(address)
            };
            let id = self.servers.iter().find(|(_, known)| advertises(known)).map(|(id, _)| id.clone());
            let id = id.unwrap_or_else(|| ServerId::new(&format!("addr:{address}")));
            if self.servers.len() < ServerSet::CAPACITY || self.servers.contains_key(&id) {
                let known = self.servers.entry(id).or_default();
                known.endpoint = Some(address);
                known.gone = None;
            }
        }
        for (id, known) in &mut self.servers {
            let nameless = id.as_str().starts_with("addr:");
            if nameless && known.endpoint.is_none() {
                known.gone.get_or_insert(now);
            }
        }
    }

    fn take_excluded(&mut self, listed: Vec<(Box<str>, Box<str>)>, now: Instant) {
        self.exclusions = Exclusions::Listed;
        let listed: BTreeSet<_> = listed.into_iter().collect();
        for (group_version, removed) in &mut self.excluded {
            if !listed.contains(group_version) {
                removed.get_or_insert(now);
            }
        }
        for group_version in listed {
            self.excluded.insert(group_version, None);
        }
    }

    fn take_storage_versions(&mut self, entries: Vec<(ServerId, Gvr)>) {
        self.servers.values_mut().for_each(|known| known.storage.clear());
        for (id, gvr) in entries {
            // Entries of servers that nobody else knows are left over from servers that are gone.
            if let Some(known) = self.servers.get_mut(&id) {
                known.storage.extend(self.names.id(&gvr));
            }
        }
    }

    fn take_fetched(&mut self, server: &ServerId, holder: Option<Box<str>>, serves: Vec<Gvr>, now: Instant) {
        let is_local = *server == self.settings.local;
        let Some(known) = self.servers.get_mut(server) else { return };
        let mut ids: Vec<u32> = serves.iter().filter_map(|gvr| self.names.id(gvr)).collect();
        ids.sort_unstable();
        ids.dedup();
        let mut missing = BTreeMap::new();
        if let Some(before) = known.fetched.take().filter(|_| !is_local) {
            let absent = |id: &u32| ids.binary_search(id).is_err();
            for id in before.serves.into_iter().filter(absent) {
                missing.insert(id, now);
            }
            for (id, since) in before.missing {
                if absent(&id) && now - since < HYSTERESIS {
                    missing.insert(id, since);
                }
            }
        }
        known.fetched = Some(Fetched { at: now, holder, serves: ids, missing });
    }

    /// The best address of a server that may be connected to.
    fn address_of(&self, id: &ServerId, known: &Known) -> Option<SocketAddr> {
        if *id == self.settings.local {
            return Some(self.settings.local_address);
        }
        let named = self.settings.peers.get(id).copied();
        let told = [known.proxy.as_ref().map(|proxy| proxy.address), known.lease.as_ref().and_then(|lease| lease.address), known.endpoint];
        let allowed = told.into_iter().flatten().filter(|&address| self.settings.allowed.allows(address));
        let candidates: Vec<_> = named.into_iter().chain(allowed).collect();
        candidates.iter().find(|address| !self.unreachable.contains_key(address)).or(candidates.first()).copied()
    }

    fn build(&self, generation: u64) -> Result<Snapshot, BuildError> {
        let mut builder = SnapshotBuilder::new(generation);
        let mut sets = vec![ServerSet::empty(); self.names.len()];
        let mut gone = Vec::new();
        let mut local_serves = Vec::new();
        let mut addresses = BTreeSet::new();
        for (id, known) in &self.servers {
            if known.gone.is_some() {
                gone.extend(known.serves().unwrap_or_default());
                continue;
            }
            let Some(address) = self.address_of(id, known).filter(|&address| addresses.insert(address)) else { continue };
            let index = builder.server(Server { id: id.clone(), address })?;
            let is_local = *id == self.settings.local;
            if is_local {
                builder.local(index);
                local_serves = known.serves().unwrap_or_default();
                continue;
            }
            if self.exclusions == Exclusions::Listed {
                for gvr in known.serves().unwrap_or_default() {
                    sets[gvr as usize].insert(index);
                }
            }
        }
        let in_doubt = self.is_local_in_doubt();
        if let Some(local) = builder.local_index() {
            for gvr in local_serves {
                let set = &mut sets[gvr as usize];
                if !in_doubt || set.is_empty() {
                    set.insert(local);
                }
            }
        }
        self.fill(&mut builder, &sets, &gone)?;
        if self.unfetched().next().is_some() && self.exclusions == Exclusions::Listed {
            builder.incomplete();
        }
        builder.build()
    }

    fn fill(&self, builder: &mut SnapshotBuilder, sets: &[ServerSet], gone: &[u32]) -> Result<(), BuildError> {
        let is_excluded = |gvr: &Gvr| self.excluded.contains_key(&(gvr.group.clone(), gvr.version.clone()));
        let excludes = !self.excluded.is_empty();
        for (gvr, &set) in self.names.iter().zip(sets) {
            if !set.is_empty() && !(excludes && is_excluded(gvr)) {
                builder.serve(gvr, set)?;
            }
        }
        for &id in gone {
            if sets[id as usize].is_empty()
                && let Some(gvr) = self.names.get(id).filter(|gvr| !is_excluded(gvr))
            {
                builder.gone(gvr)?;
            }
        }
        for (group, version) in self.excluded.keys() {
            builder.exclude(group, version)?;
        }
        Ok(())
    }

    /// Names that nobody uses any more go.
    fn compact(&mut self) {
        let old = std::mem::take(&mut self.names);
        let names = &mut self.names;
        let mut renamed = |id: u32| old.get(id).and_then(|gvr| names.id(gvr));
        for known in self.servers.values_mut() {
            known.storage = known.storage.iter().filter_map(|&id| renamed(id)).collect();
            if let Some(fetched) = &mut known.fetched {
                fetched.serves = fetched.serves.iter().filter_map(|&id| renamed(id)).collect();
                fetched.serves.sort_unstable();
                fetched.missing = fetched.missing.iter().filter_map(|(&id, &since)| Some((renamed(id)?, since))).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cidr, Standing};

    const SECOND: Duration = Duration::from_secs(1);

    fn id(name: &str) -> ServerId {
        ServerId::new(name)
    }

    fn gvr(resource: &str) -> Gvr {
        Gvr::new("g", "v1", resource)
    }

    fn lease(name: &str, holder: &str, last: u8) -> Lease {
        Lease { id: id(name), holder: holder.into(), address: Some(([10, 0, 0, last], 6443).into()) }
    }

    /// An inventory whose local is `a`, at a moment that the test moves.
    struct Story {
        inventory: Inventory,
        now: Instant,
    }

    impl Story {
        /// `a` serves `mine` and `both`; the lists are there.
        fn new() -> Self {
            let mut story = Self::untold();
            story.tell(Event::Leases(vec![lease("a", "a1", 1), lease("b", "b1", 2)]));
            story.tell(Event::Excluded(Vec::new()));
            story.fetch("a", "a1", &["mine", "both"]);
            story
        }

        fn untold() -> Self {
            let allowed = AllowList { ranges: vec![Cidr::parse("10.0.0.0/8").unwrap()], ports: vec![6443, 6445], own: Vec::new() };
            let settings = Settings { local: id("a"), local_address: ([127, 0, 0, 1], 6443).into(), peers: BTreeMap::new(), allowed };
            Self { inventory: Inventory::new(settings), now: Instant::now() }
        }

        fn tell(&mut self, event: Event) {
            self.inventory.apply(event, self.now);
        }

        fn fetch(&mut self, server: &str, holder: &str, resources: &[&str]) {
            let serves = resources.iter().map(|resource| gvr(resource)).collect();
            self.tell(Event::Fetched { server: id(server), holder: Some(holder.into()), serves });
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

        fn due(&self) -> Vec<String> {
            self.inventory.due(self.now).iter().map(|due| due.server.as_str().to_owned()).collect()
        }
    }

    #[test]
    fn nothing_is_published_from_an_unfinished_list() {
        let mut story = Story::untold();
        assert!(story.inventory.snapshot(1).is_none());
        story.tell(Event::Leases(vec![lease("a", "a1", 1)]));
        assert!(story.inventory.snapshot(1).is_none());
        story.tell(Event::Excluded(Vec::new()));
        assert!(story.inventory.snapshot(1).is_none(), "local was not asked");
        story.fetch("a", "a1", &["mine"]);
        assert_eq!(story.who("mine"), "a");
        assert_eq!(story.who("other"), format!("{:?}", Standing::Unknown));
    }

    #[test]
    fn a_peer_that_was_never_asked_leaves_questions_open() {
        let mut story = Story::new();
        assert_eq!(story.who("theirs"), "Unasked");
        story.fetch("b", "b1", &["both", "theirs"]);
        assert_eq!((story.who("theirs"), story.who("both"), story.who("other")), ("b".into(), "a b".into(), "Unknown".into()));
    }

    #[test]
    fn storage_versions_decide_until_the_first_fetch() {
        let mut story = Story::new();
        story.tell(Event::StorageVersions(vec![(id("b"), gvr("theirs")), (id("nobody"), gvr("ghost"))]));
        assert_eq!((story.who("theirs"), story.who("ghost")), ("b".into(), "Unknown".into()));
        story.fetch("b", "b1", &["both"]);
        // It is still in the StorageVersion, as seen with a server that was restarted without the API.
        assert_eq!((story.who("theirs"), story.who("both")), ("Unknown".into(), "a b".into()));
    }

    #[test]
    fn a_peers_resource_goes_after_two_fetches_without_it() {
        let mut story = Story::new();
        story.fetch("b", "b1", &["theirs"]);
        story.pass(SECOND);
        story.fetch("b", "b1", &[]);
        assert_eq!(story.who("theirs"), "b");
        story.pass(SECOND);
        story.fetch("b", "b1", &[]);
        assert_eq!(story.who("theirs"), "b", "two, but too close");
        story.pass(HYSTERESIS);
        assert_eq!(story.who("theirs"), "b", "time alone proves nothing");
        story.fetch("b", "b1", &[]);
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
        story.tell(Event::LeaseGone(id("b")));
        assert_eq!((story.who("theirs"), story.who("both"), story.due()), ("Gone".into(), "a".into(), vec![]));
        story.pass(GONE - SECOND);
        assert_eq!(story.who("theirs"), "Gone");
        story.pass(SECOND);
        assert_eq!(story.who("theirs"), "Unknown");
        // Back within the minute it is what it was until it was asked again.
        let mut story = Story::new();
        story.fetch("b", "b1", &["theirs"]);
        story.tell(Event::LeaseGone(id("b")));
        story.tell(Event::Lease(lease("b", "b2", 2)));
        assert_eq!((story.who("theirs"), story.due()), ("b".into(), vec!["b".into()]));
    }

    #[test]
    fn a_relist_without_a_server_is_as_good_as_its_deletion() {
        let mut story = Story::new();
        story.fetch("b", "b1", &["theirs"]);
        story.tell(Event::Leases(vec![lease("a", "a1", 1)]));
        assert_eq!(story.who("theirs"), "Gone");
    }

    #[test]
    fn local_in_doubt_gives_way_to_a_peer() {
        let mut story = Story::new();
        story.fetch("b", "b1", &["both"]);
        story.pass(SECOND);
        story.tell(Event::LocalInDoubt);
        assert_eq!((story.who("both"), story.who("mine"), story.due()), ("b".into(), "a".into(), vec!["a".into()]));
        story.pass(SECOND);
        story.fetch("a", "a1", &["mine", "both"]);
        assert_eq!(story.who("both"), "a b");
        story.tell(Event::Lease(lease("a", "a2", 1)));
        assert_eq!((story.who("both"), story.due()), ("b".into(), vec!["a".into()]), "it started anew");
        story.fetch("a", "a1", &["mine", "both"]);
        assert_eq!(story.who("both"), "b", "a fetch from before");
        story.fetch("a", "a2", &["mine", "both"]);
        assert_eq!(story.who("both"), "a b");
    }

    #[test]
    fn servers_are_asked_when_they_change_and_now_and_then() {
        let mut story = Story::new();
        story.fetch("b", "b1", &[]);
        assert!(story.due().is_empty());
        story.tell(Event::Lease(lease("b", "b2", 2)));
        assert_eq!(story.due(), ["b"]);
        story.fetch("b", "b2", &[]);
        assert!(story.due().is_empty());
        story.pass(POLL);
        assert_eq!(story.due(), ["a", "b"]);
    }

    #[test]
    fn custom_and_aggregated_groups_are_nobodys_for_five_minutes_after() {
        let mut story = Story::new();
        story.fetch("b", "b1", &["theirs"]);
        story.tell(Event::Excluded(vec![("g".into(), "v1".into())]));
        assert_eq!((story.who("theirs"), story.who("mine")), ("Excluded".into(), "Excluded".into()));
        story.tell(Event::Excluded(Vec::new()));
        assert_eq!(story.who("theirs"), "Excluded");
        story.pass(EXCLUSION_GRACE);
        assert_eq!((story.who("theirs"), story.who("mine")), ("b".into(), "a".into()));
    }

    #[test]
    fn without_the_exclusions_nothing_goes_to_a_peer() {
        let mut story = Story::new();
        story.fetch("b", "b1", &["theirs"]);
        story.tell(Event::ExcludedDenied);
        assert_eq!((story.who("theirs"), story.who("mine")), ("Unknown".into(), "a".into()));
    }

    #[test]
    fn addresses_give_way_in_order_and_strangers_are_not_asked() {
        let mut story = Story::new();
        let address = |story: &Story, server: &str| {
            let servers = story.inventory.snapshot(1).unwrap().unwrap();
            servers.servers().iter().find(|known| known.id.as_str() == server).map(|known| known.address.to_string())
        };
        let proxy: SocketAddr = "10.0.1.2:6445".parse().unwrap();
        assert_eq!(address(&story, "b").as_deref(), Some("10.0.0.2:6443"));
        story.tell(Event::Proxies(vec![Proxy { server: id("b"), address: proxy, advertised: None }]));
        assert_eq!(address(&story, "b").as_deref(), Some("10.0.1.2:6445"));
        story.tell(Event::Unreachable(proxy));
        assert_eq!(address(&story, "b").as_deref(), Some("10.0.0.2:6443"));
        story.pass(ADDRESS_REST);
        assert_eq!(address(&story, "b").as_deref(), Some("10.0.1.2:6445"));
        let evil = Lease { address: Some("169.254.169.254:6443".parse().unwrap()), ..lease("c", "c1", 9) };
        story.tell(Event::Lease(evil));
        assert_eq!((address(&story, "c"), story.due().contains(&"c".to_owned())), (None, false));
        story.tell(Event::Endpoints(vec!["10.0.0.2:6443".parse().unwrap(), "10.0.0.7:6443".parse().unwrap()]));
        assert_eq!(address(&story, "addr:10.0.0.7:6443").as_deref(), Some("10.0.0.7:6443"));
        assert_eq!(address(&story, "addr:10.0.0.2:6443"), None, "it is b's");
        story.tell(Event::Endpoints(Vec::new()));
        assert_eq!(address(&story, "addr:10.0.0.7:6443"), None);
    }

    #[test]
    fn ten_thousand_resources_of_a_hundred_servers_are_quick() {
        let mut story = Story::untold();
        story.tell(Event::Excluded(Vec::new()));
        let servers: Vec<String> = std::iter::once("a".to_owned()).chain((1..100).map(|nth| format!("b{nth}"))).collect();
        story.tell(Event::Leases((0u8..100).map(|nth| lease(&servers[usize::from(nth)], "1", nth + 1)).collect()));
        let names: Vec<Gvr> = (0..10_000).map(|nth| Gvr::new(&format!("group-{}", nth % 500), "v1", &format!("resources{nth}"))).collect();
        for (nth, server) in servers.iter().enumerate() {
            let serves = names.iter().enumerate().filter(|(at, _)| (at + nth) % 7 != 0).map(|(_, gvr)| gvr.clone()).collect();
            story.tell(Event::Fetched { server: id(server), holder: Some("1".into()), serves });
        }
        let began = Instant::now();
        let snapshot = story.inventory.snapshot(1).unwrap().unwrap();
        let taken = began.elapsed();
        assert_eq!((snapshot.gvrs(), snapshot.servers().len()), (10_000, 100));
        assert!(snapshot.heap_bytes() <= 4 << 20, "{}", snapshot.heap_bytes());
        assert!(taken < Duration::from_millis(500), "{taken:?}");
        println!("{taken:?}");
    }
}
