//! Which source means which server: Leases have ids, EndpointSlices have addresses, Leases of proxies have both.
//!
//! What always holds: whoever can only create identity Leases takes no place and no address from a server that answers, nor the place of an
//! endpoint.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Instant;

use super::known::Known;
use super::{Inventory, Lease, Proxy, Settings};
use crate::leases::is_named_by_host;
use crate::{Cidr, ServerId, ServerSet};

/// The id of a server that is known by its address only begins with it.
const NAMELESS: &str = "addr:";
/// Leases of servers that are looked at, and Leases of proxies; real ones are as many as servers.
pub(super) const LISTED_MAX: usize = 1_024;

/// Is it the id of a server that is known by its address only?
pub(super) fn is_nameless(id: &ServerId) -> bool {
    id.as_str().starts_with(NAMELESS)
}

/// What speaks for a Lease, most first: many can write one (threats.md §5).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// The command line names its server.
    Told,
    /// Its server said what it serves while it was at this address, and is there.
    Answers,
    /// The same of one that left a moment ago.
    Answered,
    /// Its address is an endpoint.
    Endpoint,
    /// Its name is the hash of its host's.
    Name,
    Nothing,
}

impl Settings {
    /// Local and the peers of the command line are known without a Lease too.
    fn tells_of(&self, id: &ServerId) -> bool {
        *id == self.local || self.peers.contains_key(id)
    }

    /// How many servers [`Self::tells_of`] is true of.
    fn told(&self) -> usize {
        self.peers.len() + usize::from(!self.peers.contains_key(&self.local))
    }
}

impl Inventory {
    pub(super) fn take_leases(&mut self, mut leases: Vec<Lease>, now: Instant) {
        self.leases_listed = true;
        if leases.len() > LISTED_MAX {
            leases.sort_by_cached_key(|lease| self.proof(lease));
            leases.truncate(LISTED_MAX);
        }
        self.leases = leases;
        self.join(now);
    }

    pub(super) fn take_proxies(&mut self, proxies: Vec<Proxy>, now: Instant) {
        self.proxies = proxies;
        self.join(now);
    }

    pub(super) fn take_endpoints(&mut self, mut addresses: Vec<SocketAddr>, now: Instant) {
        self.endpoints_listed = true;
        addresses.truncate(ServerSet::CAPACITY.saturating_sub(self.settings.told()));
        self.endpoints = addresses;
        self.allowed = self.settings.allowed.clone();
        if self.settings.allow_endpoints {
            let ips = self.endpoints.iter().map(|address| address.ip().to_canonical()).filter(|ip| !ip.is_loopback());
            self.allowed.ranges.extend(ips.map(Cidr::only));
        }
        self.join(now);
    }

    /// Says who is there, and gives proxies and endpoints to their servers. An address that nobody claims is a server of its own, without a
    /// better name.
    ///
    /// No more than `ServerSet::CAPACITY` are there afterwards: those of the command line, one for every endpoint, and as many Leases as
    /// there is room for beside these.
    pub(super) fn join(&mut self, now: Instant) {
        self.seat_leases(now);
        let mut had = BTreeMap::new();
        for (id, known) in &mut self.servers {
            known.proxy = None;
            had.extend(known.endpoint.take().map(|address| (address, id.clone())));
        }
        let mut proxies = std::mem::take(&mut self.proxies);
        if proxies.len() > LISTED_MAX {
            // Nobody drives out those of servers that are there.
            let is_there = |known: &Known| known.gone.is_none();
            proxies.sort_by_cached_key(|proxy| !self.servers.get(&proxy.server).is_some_and(is_there));
        }
        proxies.iter().take(LISTED_MAX).for_each(|proxy| self.join_proxy(proxy));
        self.proxies = proxies;
        for address in std::mem::take(&mut self.endpoints) {
            self.join_endpoint(address, had.get(&address), now);
            self.endpoints.push(address);
        }
        for (id, known) in &mut self.servers {
            if known.lease.is_none() && known.endpoint.is_none() && !self.settings.tells_of(id) {
                known.leave(now);
            }
            let is_nowhere = known.gone.is_none() && !self.settings.tells_of(id) && !known.has_address();
            known.nowhere = is_nowhere.then(|| known.nowhere.unwrap_or(now));
        }
        self.claim_storage_versions(now);
        self.forget_some();
    }

    /// Takes in the Leases that have a place. Who has none, or no Lease any more, left.
    fn seat_leases(&mut self, now: Instant) {
        let (mut seated, is_crowded) = self.seated();
        // Of those that were cut nothing is known.
        self.is_crowded = is_crowded || self.leases.len() == LISTED_MAX;
        let mut has_restarted = false;
        for (id, known) in &mut self.servers {
            if let Some(lease) = seated.remove(id) {
                has_restarted |= known.lease.as_ref().is_some_and(|before| lease.address.is_none() && before.holder != lease.holder);
                if *id == self.settings.local {
                    // Whoever can write Leases cannot take it out of service: its probes say whether it is ready.
                    known.lease = Some(lease);
                } else {
                    known.renew(lease, now);
                }
            } else if self.settings.tells_of(id) {
                known.lease = None;
            } else if known.lease.is_some() {
                known.leave(now);
            }
        }
        for (id, lease) in seated {
            self.servers.entry(id).or_default().renew(lease, now);
        }
        if has_restarted {
            // It may be any of them.
            let nameless = self.servers.iter_mut().filter(|(id, _)| is_nameless(id)).map(|(_, known)| known);
            nameless.for_each(|known| (known.changed, known.restarted) = (Some(now), known.restarted.or(Some(now))));
        }
    }

    /// The Leases that have a place: one for each address, and those first that most speaks for. Servers behind one address (that of a load
    /// balancer, say) are told apart by their proxies.
    /// Was there no room for some?
    fn seated(&self) -> (BTreeMap<ServerId, Lease>, bool) {
        let mut leases: Vec<&Lease> = self.leases.iter().collect();
        leases.sort_by_cached_key(|lease| self.proof(lease));
        let mut taken: BTreeSet<SocketAddr> = self.settings.peers.values().copied().chain([self.settings.local_address]).collect();
        let proxied: BTreeSet<&ServerId> = self.proxies.iter().map(|proxy| &proxy.server).collect();
        let mut room = ServerSet::CAPACITY.saturating_sub(self.settings.told() + self.endpoints.len());
        let (mut seated, mut is_crowded) = (BTreeMap::new(), false);
        for lease in leases {
            let is_told = self.settings.tells_of(&lease.id);
            // What the Lease of one of these says does not take the address from another.
            let is_free = is_told || lease.address.is_none_or(|address| taken.insert(address));
            let has_place = is_told || (is_free && self.is_at_endpoint(lease));
            if !is_free && !proxied.contains(&lease.id) {
                continue;
            }
            if !has_place && room == 0 {
                is_crowded = true;
                continue;
            }
            room -= usize::from(!has_place);
            let address = lease.address.filter(|_| is_free);
            seated.insert(lease.id.clone(), Lease { address, ..lease.clone() });
        }
        (seated, is_crowded)
    }

    fn proof(&self, lease: &Lease) -> Proof {
        let is_same = |known: &&Known| known.fetched.is_some() && known.lease.as_ref().is_none_or(|before| before.address == lease.address);
        match self.servers.get(&lease.id).filter(is_same) {
            _ if self.settings.tells_of(&lease.id) => Proof::Told,
            Some(known) if known.gone.is_none() => Proof::Answers,
            Some(_) => Proof::Answered,
            None if self.is_at_endpoint(lease) => Proof::Endpoint,
            None if is_named_by_host(lease) => Proof::Name,
            None => Proof::Nothing,
        }
    }

    fn is_at_endpoint(&self, lease: &Lease) -> bool {
        lease.address.is_some_and(|address| self.endpoints.contains(&address))
    }

    /// The proxy of a server that nobody else names counts when an endpoint confirms it that nobody else claims.
    fn join_proxy(&mut self, proxy: &Proxy) {
        if proxy.server == self.settings.local {
            return;
        }
        if let Some(known) = self.servers.get_mut(&proxy.server) {
            known.proxy = Some(proxy.clone());
            return;
        }
        // A server that left with its Lease does not come back by an endpoint; another may be there.
        let may_claim = |known: &Known| known.gone.is_none() || known.lease.is_none();
        let is_claimed = |address| self.servers.iter().any(|(id, known)| may_claim(known) && self.claims(id, known, address));
        if proxy.advertised.is_some_and(|address| self.endpoints.contains(&address) && !is_claimed(address)) {
            self.servers.insert(proxy.server.clone(), Known { proxy: Some(proxy.clone()), ..Known::default() });
        }
    }

    /// `before` is who had it until now.
    fn join_endpoint(&mut self, address: SocketAddr, before: Option<&ServerId>, now: Instant) {
        let local = self.servers.get(&self.settings.local).and_then(|local| local.lease.as_ref()).and_then(|lease| lease.address);
        if Some(address) == local || address == self.settings.local_address || self.settings.allowed.is_own(address) {
            return;
        }
        let nameless = ServerId::new(&format!("{NAMELESS}{address}"));
        let claiming = self.servers.iter().filter(|(id, known)| self.claims(id, known, address));
        let named = claiming.min_by_key(|(_, known)| (known.gone.is_some(), known.lease.is_none())).map(|(id, _)| id.clone());
        if let Some(id) = named {
            let before = self.servers.remove(&nameless);
            if let Some(known) = self.servers.get_mut(&id) {
                known.endpoint = Some(address);
                if known.lease.is_none() {
                    known.come_back(now);
                }
                known.inherit(before);
            }
        } else {
            if let Some(unnamed) = before.filter(|&id| *id != nameless).and_then(|id| self.unname(id, now)) {
                self.servers.insert(nameless.clone(), unnamed);
            }
            let known = self.servers.entry(nameless).or_default();
            known.endpoint = Some(address);
            known.come_back(now);
        }
    }

    /// What was known of the server at an endpoint, if the Lease that named it is gone and nothing else says where that server is.
    fn unname(&mut self, id: &ServerId, now: Instant) -> Option<Known> {
        let known = self.servers.get_mut(id).filter(|known| known.gone.is_none() && !known.has_address());
        known.filter(|_| !self.settings.tells_of(id)).map(|known| known.unname(now))
    }

    /// Does anything but an endpoint say that this is an address of the server?
    fn claims(&self, id: &ServerId, known: &Known, address: SocketAddr) -> bool {
        let lease = known.lease.as_ref().and_then(|lease| lease.address);
        let proxy = known.proxy.as_ref().and_then(|proxy| proxy.advertised);
        [lease, proxy, self.settings.peers.get(id).copied()].contains(&Some(address))
    }

    /// As many that left are remembered as may be there. Who never said what it serves is forgotten first, then who left first.
    fn forget_some(&mut self) {
        let gone = self.servers.iter().filter_map(|(id, known)| Some((known.fetched.is_some(), known.gone?, id.clone())));
        let mut gone: Vec<_> = gone.collect();
        gone.sort_unstable();
        let excess = gone.len().saturating_sub(ServerSet::CAPACITY);
        for (_, _, id) in &gone[..excess] {
            self.servers.remove(id);
        }
    }
}

impl Known {
    /// A server that gets its name keeps what was known of it.
    fn inherit(&mut self, before: Option<Self>) {
        if let Some(before) = before.filter(|_| self.fetched.is_none() && self.gone.is_none()) {
            self.fetched = before.fetched;
            self.ready = self.ready.or(before.ready);
            self.was_probed |= before.was_probed;
            self.trust.lost = self.trust.lost.max(before.trust.lost);
            self.trust.vouched = self.trust.vouched.max(before.trust.vouched);
        }
    }

    /// The other way round: what was known of a server that loses its name stays with its address, which is asked again. What was learned
    /// from another process than the last one stays outdated.
    fn unname(&mut self, now: Instant) -> Self {
        let is_current = self.is_current();
        let (lease, storage) = (self.lease.take(), std::mem::take(&mut self.storage));
        let mut before = std::mem::replace(self, Self { lease, renewed: self.renewed, storage, ..Self::default() });
        if let Some(fetched) = before.fetched.as_mut().filter(|_| is_current) {
            fetched.holder = None;
        }
        before.changed = Some(now);
        before
    }
}
