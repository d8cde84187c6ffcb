//! What is known of the servers: a fold over what the sources say, with `now` passed in.
//!
//! What always holds:
//! - no snapshot comes from an unfinished list; without any for [`START`] local is used for what it serves, as in kube-apiserver;
//! - a good fetch decides what a server serves; what StorageVersions say counts only until the first one;
//! - a *peer's* resource disappears only after two good fetches without it, [`HYSTERESIS`] apart, or with a restart, and nobody is sent there
//!   meanwhile who can be sent elsewhere; a failed fetch changes nothing;
//! - a server whose Lease is gone is chosen no more, and what only it served is known as gone for [`GONE`]: nobody takes that for a 404;
//! - the same of a server that nothing names an address of, as long as its Lease is there; what is known of the server at an endpoint stays
//!   when its name comes or goes;
//! - a *local* server in doubt is not preferred where a peer serves the same;
//! - while a peer that started anew was not asked, nobody is told that what it may serve now is unknown, for [`GONE`] at most;
//! - a server that a probe did not find ready is not asked what it serves (a starting one leaves half of it out), and a peer that became
//!   ready, or was lost, is not used before it was asked again (it may be another version now);
//! - clocks and times of Leases are never looked at;
//! - a Lease that somebody made up takes no place and no address from a server that more speaks for (`join`).
//!
//! It opens no socket and reads no clock. Addresses it hands out went through the [`AllowList`], unless they came from the command line.
//!
//! Read `known` (one server), `join` (which source means which server), `address` (where it is reached), `build` (the snapshot).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use self::address::Reach;
use self::known::Known;
use crate::allow::AllowList;
use crate::names::Names;
use crate::{Gvr, ServerId, Via};

mod address;
mod build;
mod join;
mod known;
#[cfg(test)]
mod tests;

/// How far apart two good fetches have to be before what is in neither of them is believed to be gone.
pub const HYSTERESIS: Duration = Duration::from_secs(5);
/// How long a server that left is remembered.
pub const GONE: Duration = Duration::from_secs(60);
/// How long a custom or aggregated group-version stays one after its object was deleted, as in kube-apiserver.
pub const EXCLUSION_GRACE: Duration = Duration::from_secs(300);
/// How long lists, and what local says that it serves, are waited for before requests are answered without.
pub const START: Duration = Duration::from_secs(10);
/// How often a server is asked what it serves when nothing says that it changed.
pub const POLL: Duration = Duration::from_secs(10);
/// How long an address that did not connect is left alone before it is tried again.
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
    /// The host it says it runs on.
    pub hostname: Option<Box<str>>,
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

/// What probes found of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Readiness {
    /// It may be sent requests.
    Ready,
    /// It was ready, still answers, and says that it is not: it shuts down, or misses something.
    Leaving,
    /// It is not there, or starts.
    #[default]
    Unready,
}

/// A group and a version.
pub type GroupVersion = (Box<str>, Box<str>);

/// What makes a group-version nobody's in particular.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exclusion {
    /// A CustomResourceDefinition.
    Custom,
    /// An APIService with a service behind it.
    Aggregated,
}

/// What a source says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// All identity Leases.
    Leases(Vec<Lease>),
    /// All Leases of proxies.
    Proxies(Vec<Proxy>),
    /// Every address of the `kubernetes` EndpointSlices.
    Endpoints(Vec<SocketAddr>),
    /// Every group-version that is custom, or every one that is aggregated.
    Excluded(Exclusion, Vec<GroupVersion>),
    /// They may not be listed: nothing may go to a peer, unless they were listed before.
    ExcludedDenied(Exclusion),
    /// Everything that StorageVersions say.
    StorageVersions(Vec<(ServerId, Gvr)>),
    /// A server said what it serves.
    Fetched {
        /// Who.
        server: ServerId,
        /// Its Lease's holder when the fetch began.
        holder: Option<Box<str>>,
        /// When the fetch began.
        began: Instant,
        /// All of it; `None` when it is what it was at the last fetch.
        serves: Option<Vec<Gvr>>,
    },
    /// Probes found out whether a server can be used.
    Probed {
        /// Who.
        server: ServerId,
        /// Can it?
        readiness: Readiness,
        /// When the probe began, if that was after the server was lost and the probe found it to be there.
        vouched: Option<Instant>,
    },
    /// Somebody lost a server: it may be another process now.
    Lost {
        /// Whom.
        server: ServerId,
        /// When.
        at: Instant,
    },
    /// Connections to local were refused or lost without a GOAWAY: it may be another one when it is back.
    LocalInDoubt,
    /// No connection to this address could be had.
    Unreachable(SocketAddr),
    /// A connection to this address was had.
    Reachable(SocketAddr),
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
    /// Whether what the `kubernetes` EndpointSlices name is allowed as well (never loopback).
    pub allow_endpoints: bool,
    /// Is there a certificate to show at the peer ports of other proxies? Without one they are no way to a server.
    pub reaches_proxies: bool,
}

/// A server that can be asked something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whom.
    pub server: ServerId,
    /// Where.
    pub address: SocketAddr,
    /// What is there.
    pub via: Via,
    /// Its Lease's holder, to be given back in [`Event::Fetched`].
    pub holder: Option<Box<str>>,
    /// Did its probes succeed?
    pub is_ready: bool,
    /// Is it known what it said that it serves? Only then can it say that nothing changed.
    pub is_fetched: bool,
}

/// What is known of one server, for people.
#[derive(Clone, Debug)]
pub struct View {
    /// Who.
    pub id: ServerId,
    /// Is it the one behind this proxy?
    pub is_local: bool,
    /// Where requests for it go.
    pub address: Option<(SocketAddr, Via)>,
    /// Did the last probes find it ready?
    pub is_ready: bool,
    /// It left a moment ago.
    pub is_gone: bool,
    /// Its Lease's holder.
    pub holder: Option<Box<str>>,
    /// When it last said what it serves.
    pub fetched: Option<Instant>,
    /// How many resources it is known to serve.
    pub gvrs: usize,
}

/// The fold.
pub struct Inventory {
    settings: Settings,
    /// `settings.allowed`, and what EndpointSlices add.
    allowed: AllowList,
    names: Names,
    /// When names that nobody uses last went, and how many were left.
    compacted: Option<(Instant, usize)>,
    servers: BTreeMap<ServerId, Known>,
    /// As last listed, also those without a place among the servers.
    leases: Vec<Lease>,
    /// Is there a Lease that got no place for lack of room? Its server may serve what nobody else does.
    is_crowded: bool,
    proxies: Vec<Proxy>,
    endpoints: Vec<SocketAddr>,
    leases_listed: bool,
    endpoints_listed: bool,
    /// What StorageVersions say of servers that nobody else names: left over from one that is gone, or earlier here than its Lease.
    unclaimed: BTreeMap<ServerId, Vec<Gvr>>,
    /// Custom, aggregated.
    exclusions: [Exclusions; 2],
    /// Group-versions that are never routed to a peer, and since when they no longer should be.
    excluded: BTreeMap<GroupVersion, Option<Instant>>,
    /// When local was last in doubt.
    doubted: Option<Instant>,
    /// The first moment of all, and the last one.
    began: Option<Instant>,
    now: Option<Instant>,
    reach: HashMap<SocketAddr, Reach>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Exclusions {
    NotListed,
    Listed(BTreeSet<GroupVersion>),
    Denied,
}

impl Inventory {
    /// Knows local and the peers of the command line.
    pub fn new(settings: Settings) -> Self {
        let mut servers: BTreeMap<_, _> = settings.peers.keys().map(|id| (id.clone(), Known::default())).collect();
        servers.insert(settings.local.clone(), Known::default());
        Self {
            allowed: settings.allowed.clone(),
            settings,
            names: Names::default(),
            compacted: None,
            servers,
            leases: Vec::new(),
            is_crowded: false,
            proxies: Vec::new(),
            endpoints: Vec::new(),
            leases_listed: false,
            endpoints_listed: false,
            unclaimed: BTreeMap::new(),
            exclusions: [Exclusions::NotListed, Exclusions::NotListed],
            excluded: BTreeMap::new(),
            doubted: None,
            began: None,
            now: None,
            reach: HashMap::new(),
        }
    }

    /// Takes in what a source says.
    pub fn apply(&mut self, event: Event, now: Instant) {
        match event {
            Event::Leases(leases) => self.take_leases(leases, now),
            Event::Proxies(proxies) => self.take_proxies(proxies, now),
            Event::Endpoints(addresses) => self.take_endpoints(addresses, now),
            Event::Excluded(kind, listed) => self.take_excluded(kind, listed, now),
            Event::ExcludedDenied(kind) => self.deny(kind),
            Event::StorageVersions(entries) => self.take_storage_versions(entries, now),
            Event::Fetched { server, holder, began, serves } => self.take_fetched(&server, holder, began, serves, now),
            Event::Probed { server, readiness, vouched } => self.take_probe(&server, readiness, vouched, now),
            Event::Lost { server, at } => self.take_lost(&server, at),
            Event::LocalInDoubt => self.doubted = Some(now),
            Event::Unreachable(address) => self.take_reach(address, false, now),
            Event::Reachable(address) => self.take_reach(address, true, now),
        }
        self.tick(now);
    }

    /// Forgets what has had its time. Harmless to call at any moment.
    pub fn tick(&mut self, now: Instant) {
        self.began.get_or_insert(now);
        self.now = Some(now);
        let before = self.servers.len();
        self.servers.retain(|_, known| known.gone.is_none_or(|since| now.saturating_duration_since(since) < GONE));
        if self.servers.len() < before {
            self.join(now);
        }
        for known in self.servers.values_mut().filter(|known| known.is_nowhere(now)) {
            (known.ready, known.is_leaving) = (None, false);
        }
        self.excluded.retain(|_, removed| removed.is_none_or(|since| now.saturating_duration_since(since) < EXCLUSION_GRACE));
        self.forget_reach();
        if self.is_compact_due(now) {
            self.compact();
            self.compacted = Some((now, self.names.len()));
        }
    }

    /// Fetches to be made now: of servers that are ready and were never asked, that started anew, that are in doubt, or that were not asked
    /// for [`POLL`].
    pub fn due(&self, now: Instant) -> Vec<Ask> {
        let doubted = |id: &ServerId| self.doubted.filter(|_| *id == self.settings.local);
        let due = self.servers.iter().filter(|(id, known)| known.is_due(doubted(id), now));
        due.filter_map(|(id, known)| self.ask(id, known)).collect()
    }

    /// Servers that are to be probed: all that are not gone and have an address.
    pub fn probes(&self) -> Vec<Ask> {
        let there = self.servers.iter().filter(|(_, known)| known.gone.is_none());
        there.filter_map(|(id, known)| self.ask(id, known)).collect()
    }

    fn ask(&self, id: &ServerId, known: &Known) -> Option<Ask> {
        let (address, via) = self.ask_address(id, known)?;
        // What was cut off for lack of room is asked for anew, not whether it changed.
        let (is_ready, is_fetched) = (known.ready.is_some(), known.fetched.is_some() && !known.is_cut());
        Some(Ask { server: id.clone(), address, via, holder: known.holder().map(Into::into), is_ready, is_fetched })
    }

    /// Whom an address belongs to.
    pub fn owner(&self, address: SocketAddr) -> Option<&ServerId> {
        let is_its = |id: &ServerId, known: &Known| self.candidates(id, known).iter().any(|candidate| candidate.0 == address);
        self.servers.iter().find(|(id, known)| is_its(id, known)).map(|(id, _)| id)
    }

    /// Is what local serves open to doubt?
    fn is_local_in_doubt(&self) -> bool {
        let Some(local) = self.servers.get(&self.settings.local) else { return true };
        let began = local.fetched.as_ref().map(|fetched| fetched.began);
        let is_unsure = local.ready.is_none() || local.fetched.is_none() || local.is_outdated();
        is_unsure || self.doubted.is_some_and(|doubted| began.is_none_or(|began| began < doubted))
    }

    /// Servers that never said what they serve. A Lease without any address may be one of those that are known by address only, so of such
    /// Leases only those count that are more than these, the old ones taken first: the new one is the one that nobody asked. None counts
    /// that is older than [`GONE`]: endpoints come and go with their servers within 15 s, while the Lease of a server that died stays for
    /// two hours.
    pub fn unfetched(&self) -> impl Iterator<Item = &ServerId> {
        let there = self.servers.iter().filter(|(_, known)| known.gone.is_none());
        let is_old = |known: &Known| self.now.is_some_and(|now| known.is_old(now));
        let is_placeless = |id: &ServerId, known: &Known| *id != self.settings.local && !self.has_any_address(id, known);
        let silent = there.clone().filter(|(_, known)| known.fetched.is_none());
        let nameless = there.filter(|(id, known)| join::is_nameless(id) && known.fetched.is_some()).count();
        let old = silent.clone().filter(|(id, known)| is_placeless(id, known) && is_old(known)).count();
        let mut left = nameless.saturating_sub(old);
        let mut counts = move |id: &ServerId, known: &Known| {
            if !is_placeless(id, known) {
                return true;
            }
            let is_covered = !is_old(known) && left > 0;
            left -= usize::from(is_covered);
            !is_old(known) && !is_covered
        };
        silent.filter(move |(id, known)| counts(id, known)).map(|(id, _)| id)
    }

    /// What may be connected to at this moment.
    pub fn allowed(&self) -> &AllowList {
        &self.allowed
    }

    /// Every group-version that any server is known to serve. Not those of all names: some are left over from what was deleted long ago.
    pub fn group_versions(&self) -> BTreeSet<GroupVersion> {
        let mut is_served = vec![false; self.names.len()];
        for known in self.servers.values() {
            known.serves().iter().chain(&known.storage).copied().chain(known.missing()).for_each(|id| is_served[id as usize] = true);
        }
        let served = self.names.iter().zip(is_served).filter(|&(_, is_served)| is_served);
        served.map(|(gvr, _)| (gvr.group.clone(), gvr.version.clone())).collect()
    }

    /// All servers, for people.
    pub fn views(&self) -> Vec<View> {
        let places = self.places();
        let view = |(id, known): (&ServerId, &Known)| View {
            id: id.clone(),
            is_local: *id == self.settings.local,
            address: places.get(id).copied().or_else(|| self.route_address(id, known)),
            is_ready: known.ready.is_some(),
            is_gone: known.gone.is_some(),
            holder: known.holder().map(Into::into),
            fetched: known.fetched.as_ref().map(|fetched| fetched.at),
            gvrs: known.fetched.as_ref().map_or(known.storage.len(), |fetched| fetched.serves.len()),
        };
        self.servers.iter().map(view).collect()
    }

    fn take_excluded(&mut self, kind: Exclusion, listed: Vec<GroupVersion>, now: Instant) {
        self.exclusions[kind as usize] = Exclusions::Listed(listed.into_iter().collect());
        let mut all = BTreeSet::new();
        for exclusions in &self.exclusions {
            if let Exclusions::Listed(listed) = exclusions {
                all.extend(listed);
            }
        }
        for (group_version, removed) in &mut self.excluded {
            if !all.contains(group_version) {
                removed.get_or_insert(now);
            }
        }
        for group_version in all {
            self.excluded.insert(group_version.clone(), None);
        }
    }

    /// A list from before is better than none: a restarting server denies for a moment what it will allow.
    fn deny(&mut self, kind: Exclusion) {
        let exclusions = &mut self.exclusions[kind as usize];
        if *exclusions == Exclusions::NotListed {
            *exclusions = Exclusions::Denied;
        }
    }

    fn may_route_to_peers(&self) -> bool {
        self.exclusions.iter().all(|exclusions| matches!(exclusions, Exclusions::Listed(_)))
    }
}
