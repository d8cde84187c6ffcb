//! Where a server is reached: the sources in order, and those that did not connect behind the others.

use std::collections::{BTreeSet, HashSet};
use std::net::SocketAddr;
use std::time::Instant;

use super::known::Known;
use super::{ADDRESS_REST, Inventory};
use crate::{ServerId, Via};

/// What came of the last attempt to connect.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    is_good: bool,
    at: Instant,
}

impl Inventory {
    /// Where requests for a server go: the command line, then its proxy, then what it advertises itself.
    pub(super) fn route_address(&self, id: &ServerId, known: &Known) -> Option<(SocketAddr, Via)> {
        self.pick(&self.candidates(id, known))
    }

    /// The same when another server has that address: the best that is left, if it is not known not to connect.
    pub(super) fn spare_address(&self, id: &ServerId, known: &Known, taken: &BTreeSet<SocketAddr>) -> Option<(SocketAddr, Via)> {
        let mut candidates = self.candidates(id, known);
        candidates.retain(|(address, _)| !taken.contains(address) && self.reach.get(address).is_none_or(|reach| reach.is_good));
        self.pick(&candidates)
    }

    /// Where a server itself is asked: its own address before the port of its proxy, which takes nobody without a certificate.
    pub(super) fn ask_address(&self, id: &ServerId, known: &Known) -> Option<(SocketAddr, Via)> {
        let mut candidates = self.candidates(id, known);
        candidates.sort_by_key(|&(_, via)| via == Via::Proxy);
        self.pick(&candidates)
    }

    /// Every address of a server that may be connected to, best first.
    pub(super) fn candidates(&self, id: &ServerId, known: &Known) -> Vec<(SocketAddr, Via)> {
        if *id == self.settings.local {
            return vec![(self.settings.local_address, Via::Apiserver)];
        }
        let is_way =
            |&(address, via): &(SocketAddr, Via)| self.allowed.allows(address) && (via != Via::Proxy || self.settings.reaches_proxies);
        let told = known.addresses().into_iter().flatten().filter(is_way);
        let mut candidates: Vec<(SocketAddr, Via)> = Vec::new();
        for (address, via) in self.settings.peers.get(id).map(|&address| (address, Via::Apiserver)).into_iter().chain(told) {
            if candidates.iter().all(|candidate| candidate.0 != address) {
                candidates.push((address, via));
            }
        }
        candidates
    }

    /// Does any source name an address of it, allowed or not?
    pub(super) fn has_any_address(&self, id: &ServerId, known: &Known) -> bool {
        self.settings.peers.contains_key(id) || known.has_address()
    }

    /// Addresses of peers that are to be connected to now, to see whether they can be: new ones, and those that rested.
    pub fn checks(&self, now: Instant) -> Vec<(ServerId, SocketAddr, Via)> {
        let peers = self.servers.iter().filter(|(id, known)| **id != self.settings.local && known.gone.is_none());
        let all = peers.flat_map(|(id, known)| self.candidates(id, known).into_iter().map(|(address, via)| (id.clone(), address, via)));
        let is_due = |address: &SocketAddr| {
            self.reach.get(address).is_none_or(|reach| !reach.is_good && now.saturating_duration_since(reach.at) >= ADDRESS_REST)
        };
        all.filter(|(_, address, _)| is_due(address)).collect()
    }

    pub(super) fn take_reach(&mut self, address: SocketAddr, is_good: bool, now: Instant) {
        if address == self.settings.local_address && !is_good {
            self.doubted = Some(now);
        } else if self.owner(address).is_some() {
            self.reach.insert(address, Reach { is_good, at: now });
        }
    }

    /// A server that is back may be back at all of its addresses.
    pub(super) fn retry_addresses(&mut self, id: &ServerId) {
        let Some(known) = self.servers.get(id) else { return };
        for (address, _) in self.candidates(id, known) {
            if self.reach.get(&address).is_some_and(|reach| !reach.is_good) {
                self.reach.remove(&address);
            }
        }
    }

    pub(super) fn forget_reach(&mut self) {
        if !self.reach.is_empty() {
            let all = self.servers.iter().flat_map(|(id, known)| self.candidates(id, known));
            let all: HashSet<SocketAddr> = all.map(|candidate| candidate.0).collect();
            self.reach.retain(|address, _| all.contains(address));
        }
    }

    /// The first that is known to connect, else the first that is not known not to, else the first.
    fn pick(&self, candidates: &[(SocketAddr, Via)]) -> Option<(SocketAddr, Via)> {
        let is = |wanted: &[Option<bool>], address: &SocketAddr| wanted.contains(&self.reach.get(address).map(|reach| reach.is_good));
        let good = candidates.iter().find(|(address, _)| is(&[Some(true)], address));
        let untried = || candidates.iter().find(|(address, _)| is(&[None], address));
        good.or_else(untried).or_else(|| candidates.first()).copied()
    }
}

impl Known {
    /// Does any API object name an address of it?
    pub(super) fn has_address(&self) -> bool {
        self.addresses().into_iter().any(|address| address.is_some())
    }

    /// What API objects say, best first.
    fn addresses(&self) -> [Option<(SocketAddr, Via)>; 4] {
        let own = |address: SocketAddr| (address, Via::Apiserver);
        let advertised = self.proxy.as_ref().and_then(|proxy| proxy.advertised);
        [
            self.proxy.as_ref().map(|proxy| (proxy.address, Via::Proxy)),
            self.lease.as_ref().and_then(|lease| lease.address).map(own),
            self.endpoint.map(own),
            advertised.map(own),
        ]
    }
}
