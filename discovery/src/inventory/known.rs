//! One server: what it serves, and since when that is known.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use super::{HYSTERESIS, Inventory, Lease, POLL, Proxy, Readiness};
use crate::names::Names;
use crate::{Gvr, ServerId};

/// What is known of one server.
#[derive(Default)]
pub(super) struct Known {
    /// The last one, also when it was deleted: its address is still this server's.
    pub(super) lease: Option<Lease>,
    pub(super) proxy: Option<Proxy>,
    pub(super) endpoint: Option<SocketAddr>,
    pub(super) fetched: Option<Fetched>,
    pub(super) storage: Vec<u32>,
    /// Since when its probes succeed.
    pub(super) ready: Option<Instant>,
    /// It was ready, says that it is not any more, and still answers.
    pub(super) is_leaving: bool,
    pub(super) was_probed: bool,
    /// When something last said that what it serves may have changed.
    pub(super) changed: Option<Instant>,
    pub(super) gone: Option<Instant>,
}

/// What a server said that it serves.
pub(super) struct Fetched {
    pub(super) began: Instant,
    pub(super) at: Instant,
    pub(super) holder: Option<Box<str>>,
    /// Sorted.
    pub(super) serves: Vec<u32>,
    /// Was served, and is not in the last good fetch, nor in those since then.
    pub(super) missing: BTreeMap<u32, Instant>,
}

impl Known {
    /// What it serves as far as is known; `None` when nobody said anything.
    pub(super) fn serves(&self) -> Option<Vec<u32>> {
        match &self.fetched {
            Some(fetched) => Some(fetched.serves.iter().chain(fetched.missing.keys()).copied().collect()),
            None if self.storage.is_empty() => None,
            None => Some(self.storage.clone()),
        }
    }

    pub(super) fn holder(&self) -> Option<&str> {
        self.lease.as_ref().map(|lease| &*lease.holder)
    }

    /// Was it fetched since it last started?
    pub(super) fn is_current(&self) -> bool {
        self.fetched.as_ref().is_some_and(|fetched| fetched.holder.as_deref() == self.holder())
    }

    /// Was what it serves learned from another process, or before it was ready again? Not if nothing was learned at all.
    pub(super) fn is_outdated(&self) -> bool {
        self.fetched.as_ref().is_some_and(|fetched| {
            let is_other = fetched.holder.is_some() && fetched.holder.as_deref() != self.holder();
            is_other || self.ready.is_some_and(|ready| fetched.began < ready)
        })
    }

    /// Is it to be asked what it serves?
    pub(super) fn is_due(&self, doubted: Option<Instant>, now: Instant) -> bool {
        let Some(ready) = self.ready.filter(|_| self.gone.is_none()) else { return false };
        let Some(fetched) = self.fetched.as_ref().filter(|_| self.is_current()) else { return true };
        let outdated = [Some(ready), self.changed, doubted].into_iter().flatten().any(|since| fetched.began < since);
        outdated || now.saturating_duration_since(fetched.at) >= POLL
    }

    /// Takes a new Lease; a new holder is a server that has just started, which is not ready yet.
    pub(super) fn renew(&mut self, lease: Lease) {
        if self.lease.as_ref().is_some_and(|before| before.holder != lease.holder) || self.gone.is_some() {
            (self.ready, self.is_leaving) = (None, false);
        }
        self.gone = None;
        self.lease = Some(lease);
    }

    fn fetched(&mut self, fetch: Fetch, serves: Vec<u32>, is_local: bool, now: Instant) {
        let mut missing = BTreeMap::new();
        // What a new process does not name it does not serve; local is asked often enough to be believed.
        let is_restarted =
            |before: &Fetched| before.holder.is_some() && before.holder != fetch.holder && fetch.holder.as_deref() == self.holder();
        if let Some(before) = self.fetched.as_ref().filter(|before| !is_local && !is_restarted(before)) {
            let absent = |id: &&u32| serves.binary_search(id).is_err();
            missing.extend(before.serves.iter().filter(absent).map(|&id| (id, now)));
            let recent = before.missing.iter().filter(|(id, since)| absent(id) && now.saturating_duration_since(**since) < HYSTERESIS);
            missing.extend(recent.map(|(&id, &since)| (id, since)));
        }
        self.fetched = Some(Fetched { began: fetch.began, at: now, holder: fetch.holder, serves, missing });
    }
}

struct Fetch {
    holder: Option<Box<str>>,
    began: Instant,
}

impl Inventory {
    pub(super) fn take_fetched(
        &mut self,
        server: &ServerId,
        holder: Option<Box<str>>,
        began: Instant,
        serves: Option<Vec<Gvr>>,
        now: Instant,
    ) {
        let is_local = *server == self.settings.local;
        let Some(known) = self.servers.get_mut(server).filter(|known| known.gone.is_none()) else { return };
        let ids = match (serves, &known.fetched) {
            (Some(serves), _) => numbers(&mut self.names, &serves),
            (None, Some(before)) => before.serves.clone(),
            (None, None) => return,
        };
        known.fetched(Fetch { holder, began }, ids, is_local, now);
    }

    pub(super) fn take_storage_versions(&mut self, entries: Vec<(ServerId, Gvr)>, now: Instant) {
        let mut by_server: BTreeMap<ServerId, Vec<Gvr>> = BTreeMap::new();
        for (id, gvr) in entries {
            by_server.entry(id).or_default().push(gvr);
        }
        // Entries of servers that nobody else knows are left over from servers that are gone.
        for (id, known) in &mut self.servers {
            let storage = by_server.get(id).map(|gvrs| numbers(&mut self.names, gvrs)).unwrap_or_default();
            if storage != known.storage {
                known.storage = storage;
                known.changed = Some(now);
            }
        }
    }

    pub(super) fn take_probe(&mut self, server: &ServerId, readiness: Readiness, now: Instant) {
        let Some(known) = self.servers.get_mut(server) else { return };
        let was_ready = known.ready.is_some();
        known.was_probed = true;
        known.ready = (readiness == Readiness::Ready).then(|| known.ready.unwrap_or(now));
        known.is_leaving = readiness == Readiness::Leaving;
        if known.ready.is_some() && !was_ready {
            self.retry_addresses(server);
        }
    }

    /// Names that nobody uses any more go.
    pub(super) fn compact(&mut self) {
        let old = std::mem::take(&mut self.names);
        let names = &mut self.names;
        let mut renamed = |id: u32| old.get(id).and_then(|gvr| names.id(gvr));
        for known in self.servers.values_mut() {
            known.storage = known.storage.iter().filter_map(|&id| renamed(id)).collect();
            known.storage.sort_unstable();
            if let Some(fetched) = &mut known.fetched {
                fetched.serves = fetched.serves.iter().filter_map(|&id| renamed(id)).collect();
                fetched.serves.sort_unstable();
                fetched.missing = fetched.missing.iter().filter_map(|(&id, &since)| Some((renamed(id)?, since))).collect();
            }
        }
    }
}

/// Sorted, each once.
fn numbers(names: &mut Names, gvrs: &[Gvr]) -> Vec<u32> {
    let mut ids: Vec<u32> = gvrs.iter().filter_map(|gvr| names.id(gvr)).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
