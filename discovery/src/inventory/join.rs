//! Which source means which server: Leases have ids, EndpointSlices have addresses, Leases of proxies have both.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Instant;

use super::known::Known;
use super::{Inventory, Lease, Proxy};
use crate::{Cidr, ServerId, ServerSet};

/// The id of a server that is known by its address only begins with it.
const NAMELESS: &str = "addr:";

/// Is it the id of a server that is known by its address only?
pub(super) fn is_nameless(id: &ServerId) -> bool {
    id.as_str().starts_with(NAMELESS)
}

impl Inventory {
    pub(super) fn take_leases(&mut self, leases: Vec<Lease>, now: Instant) {
        self.leases_listed = true;
        let there: BTreeSet<_> = leases.iter().map(|lease| lease.id.clone()).collect();
        for (id, known) in &mut self.servers {
            if known.lease.is_none() || there.contains(id) {
                continue;
            }
            // Local and the peers of the command line are known without a Lease too.
            if self.settings.peers.contains_key(id) || *id == self.settings.local {
                known.lease = None;
            } else if known.gone.is_none() {
                known.gone = Some(now);
                (known.ready, known.is_leaving) = (None, false);
            }
        }
        for lease in leases {
            if self.has_room(&lease.id) {
                self.servers.entry(lease.id.clone()).or_default().renew(lease);
            }
        }
        self.join(now);
    }

    pub(super) fn take_proxies(&mut self, mut proxies: Vec<Proxy>, now: Instant) {
        proxies.truncate(ServerSet::CAPACITY);
        self.proxies = proxies;
        self.join(now);
    }

    pub(super) fn take_endpoints(&mut self, mut addresses: Vec<SocketAddr>, now: Instant) {
        addresses.truncate(ServerSet::CAPACITY);
        self.endpoints = addresses;
        self.allowed = self.settings.allowed.clone();
        if self.settings.allow_endpoints {
            let ips = self.endpoints.iter().map(|address| address.ip().to_canonical()).filter(|ip| !ip.is_loopback());
            self.allowed.ranges.extend(ips.map(Cidr::only));
        }
        self.join(now);
    }

    /// Gives proxies and endpoints to their servers. An address that nobody claims is a server of its own, without a better name.
    pub(super) fn join(&mut self, now: Instant) {
        for known in self.servers.values_mut() {
            known.proxy = None;
            known.endpoint = None;
        }
        for proxy in std::mem::take(&mut self.proxies) {
            self.join_proxy(&proxy);
            self.proxies.push(proxy);
        }
        for address in std::mem::take(&mut self.endpoints) {
            self.join_endpoint(address);
            self.endpoints.push(address);
        }
        for (id, known) in &mut self.servers {
            if is_nameless(id) && known.endpoint.is_none() && known.gone.is_none() {
                known.gone = Some(now);
                (known.ready, known.is_leaving) = (None, false);
            }
        }
    }

    /// The proxy of a server that nobody else names counts when an endpoint confirms it.
    fn join_proxy(&mut self, proxy: &Proxy) {
        let is_confirmed = proxy.advertised.is_some_and(|advertised| self.endpoints.contains(&advertised));
        if proxy.server == self.settings.local || !self.has_room(&proxy.server) {
            return;
        }
        if let Some(known) = self.servers.get_mut(&proxy.server) {
            known.proxy = Some(proxy.clone());
        } else if is_confirmed {
            self.servers.insert(proxy.server.clone(), Known { proxy: Some(proxy.clone()), ..Known::default() });
        }
    }

    fn join_endpoint(&mut self, address: SocketAddr) {
        let local = self.servers.get(&self.settings.local).and_then(|local| local.lease.as_ref()).and_then(|lease| lease.address);
        if Some(address) == local || address == self.settings.local_address || self.settings.allowed.is_own(address) {
            return;
        }
        let nameless = ServerId::new(&format!("{NAMELESS}{address}"));
        let claims = |id: &ServerId, known: &Known| {
            let lease = known.lease.as_ref().and_then(|lease| lease.address);
            let proxy = known.proxy.as_ref().and_then(|proxy| proxy.advertised);
            [lease, proxy, self.settings.peers.get(id).copied()].contains(&Some(address))
        };
        let named = self.servers.iter().find(|(id, known)| claims(id, known)).map(|(id, _)| id.clone());
        if let Some(id) = named {
            let before = self.servers.remove(&nameless);
            if let Some(known) = self.servers.get_mut(&id) {
                known.endpoint = Some(address);
                known.inherit(before);
            }
        } else if self.has_room(&nameless) {
            let known = self.servers.entry(nameless).or_default();
            known.endpoint = Some(address);
            known.gone = None;
        }
    }

    fn has_room(&self, id: &ServerId) -> bool {
        self.servers.len() < ServerSet::CAPACITY || self.servers.contains_key(id)
    }
}

impl Known {
    /// A server that gets its name keeps what was known of it.
    fn inherit(&mut self, before: Option<Self>) {
        if let Some(before) = before.filter(|_| self.fetched.is_none() && self.gone.is_none()) {
            self.fetched = before.fetched;
            self.ready = self.ready.or(before.ready);
            self.was_probed |= before.was_probed;
        }
    }
}
