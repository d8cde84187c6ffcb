//! One server: what it serves, and since when that is known.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Instant;

use super::{GONE, HYSTERESIS, Inventory, Lease, POLL, Proxy, Readiness};
use crate::names::Names;
use crate::table::ENTRIES_MAX;
use crate::{Gvr, ServerId, Trust};

/// Entries of StorageVersions that are kept for servers that nobody else names yet.
const UNCLAIMED_MAX: usize = 1 << 16;

/// What is known of one server.
#[derive(Default)]
pub(super) struct Known {
    /// The last one, also when it was deleted: its address is still this server's.
    pub(super) lease: Option<Lease>,
    /// When its Lease was first seen, or last changed its holder.
    pub(super) renewed: Option<Instant>,
    pub(super) proxy: Option<Proxy>,
    pub(super) endpoint: Option<SocketAddr>,
    pub(super) fetched: Option<Fetched>,
    pub(super) storage: Vec<u32>,
    /// Since when its probes succeed.
    pub(super) ready: Option<Instant>,
    /// It was ready, says that it is not any more, and still answers.
    pub(super) is_leaving: bool,
    pub(super) was_probed: bool,
    /// When somebody last lost it, and who vouches for it since.
    pub(super) trust: Trust,
    /// When a probe began that vouches for it as soon as it was asked what it serves.
    pub(super) vouched_if_fetched: Option<Instant>,
    /// When something last said that what it serves may have changed.
    pub(super) changed: Option<Instant>,
    /// When it first started anew since it last said what it serves.
    pub(super) restarted: Option<Instant>,
    pub(super) gone: Option<Instant>,
    /// Since when nothing says where it is, if it did not leave.
    pub(super) nowhere: Option<Instant>,
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
    /// There was no number for some of what it serves.
    is_cut: bool,
}

impl Known {
    /// What it serves as far as is known.
    pub(super) fn serves(&self) -> &[u32] {
        self.fetched.as_ref().map_or(&self.storage, |fetched| &fetched.serves)
    }

    /// What it served a moment ago and did not name since.
    pub(super) fn missing(&self) -> impl Iterator<Item = u32> {
        self.fetched.iter().flat_map(|fetched| fetched.missing.keys().copied())
    }

    /// Does it serve more than could be kept?
    pub(super) fn is_cut(&self) -> bool {
        self.gone.is_none() && self.fetched.as_ref().is_some_and(|fetched| fetched.is_cut)
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

    /// May it serve what it did not serve when it was asked? One that started anew and is not ready for long serves nobody anything.
    pub(super) fn is_in_question(&self, now: Instant) -> bool {
        let is_starting = self.restarted.is_some_and(|since| now.saturating_duration_since(since) < GONE);
        self.gone.is_none() && self.fetched.is_some() && (is_starting || (self.ready.is_some() && self.is_outdated()))
    }

    /// Is its Lease older than the endpoint of a server that is alive can be?
    pub(super) fn is_old(&self, now: Instant) -> bool {
        self.renewed.is_some_and(|since| now.saturating_duration_since(since) >= GONE)
    }

    /// Has nothing said for long where it is? Then nobody knows any more how it is.
    pub(super) fn is_nowhere(&self, now: Instant) -> bool {
        self.nowhere.is_some_and(|since| now.saturating_duration_since(since) >= GONE)
    }

    /// Is it to be asked what it serves?
    pub(super) fn is_due(&self, doubted: Option<Instant>, now: Instant) -> bool {
        let Some(ready) = self.ready.filter(|_| self.gone.is_none()) else { return false };
        let Some(fetched) = self.fetched.as_ref().filter(|_| self.is_current()) else { return true };
        let outdated = [Some(ready), self.changed, doubted].into_iter().flatten().any(|since| fetched.began < since);
        outdated || now.saturating_duration_since(fetched.at) >= POLL
    }

    /// Takes a new Lease; a new holder is a server that has just started, which is not ready yet.
    pub(super) fn renew(&mut self, lease: Lease, now: Instant) {
        let is_other = self.lease.as_ref().is_some_and(|before| before.holder != lease.holder) || self.gone.is_some();
        if is_other {
            (self.ready, self.is_leaving) = (None, false);
            self.restarted.get_or_insert(now);
        }
        if is_other || self.renewed.is_none() {
            self.renewed = Some(now);
        }
        self.gone = None;
        self.lease = Some(lease);
    }

    /// Somebody says again that it is there; it may be another process.
    pub(super) fn come_back(&mut self, now: Instant) {
        if self.gone.take().is_some() {
            self.restarted.get_or_insert(now);
        }
    }

    /// Nobody says any more that it is there.
    pub(super) fn leave(&mut self, now: Instant) {
        if self.gone.is_none() {
            self.gone = Some(now);
            (self.ready, self.is_leaving) = (None, false);
        }
    }

    /// StorageVersions say what it serves.
    fn take_storage(&mut self, storage: Vec<u32>, now: Instant) {
        if storage != self.storage {
            self.storage = storage;
            self.changed = Some(now);
        }
    }

    /// It said what it serves.
    fn on_fetched(&mut self, fetch: Fetch, serves: Vec<u32>, is_local: bool, now: Instant) {
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
        let began = fetch.began;
        self.trust.vouched = self.vouched_if_fetched.filter(|&vouched| began >= vouched).max(self.trust.vouched);
        self.fetched = Some(Fetched { began, at: now, holder: fetch.holder, serves, missing, is_cut: fetch.is_cut });
        if self.is_current() {
            self.restarted = self.restarted.filter(|&since| began < since);
        }
    }
}

struct Fetch {
    holder: Option<Box<str>>,
    began: Instant,
    is_cut: bool,
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
        let (ids, is_cut) = match (serves, &known.fetched) {
            (Some(serves), _) => {
                let ids = numbers(&mut self.names, &serves);
                // All names have a number now, or there are no more.
                let is_cut = self.names.is_full() && serves.iter().any(|gvr| self.names.id(gvr).is_none());
                (ids, is_cut)
            }
            (None, Some(before)) => (before.serves.clone(), before.is_cut),
            (None, None) => return,
        };
        known.on_fetched(Fetch { holder, began, is_cut }, ids, is_local, now);
    }

    pub(super) fn take_storage_versions(&mut self, entries: Vec<(ServerId, Gvr)>, now: Instant) {
        let mut by_server: BTreeMap<ServerId, Vec<Gvr>> = BTreeMap::new();
        for (id, gvr) in entries {
            by_server.entry(id).or_default().push(gvr);
        }
        for (id, known) in &mut self.servers {
            let storage = by_server.remove(id).map(|gvrs| numbers(&mut self.names, &gvrs)).unwrap_or_default();
            known.take_storage(storage, now);
        }
        let mut room = UNCLAIMED_MAX;
        by_server.retain(|_, gvrs| {
            let fits = gvrs.len() <= room;
            room -= if fits { gvrs.len() } else { 0 };
            fits
        });
        self.unclaimed = by_server;
    }

    /// Gives what StorageVersions said to the servers that were not known then.
    pub(super) fn claim_storage_versions(&mut self, now: Instant) {
        let known = self.unclaimed.extract_if(.., |id, _| self.servers.contains_key(id));
        for (id, gvrs) in known.collect::<Vec<_>>() {
            let storage = numbers(&mut self.names, &gvrs);
            if let Some(known) = self.servers.get_mut(&id) {
                known.take_storage(storage, now);
            }
        }
    }

    pub(super) fn take_probe(&mut self, server: &ServerId, readiness: Readiness, vouched: Option<Instant>, now: Instant) {
        let is_local = *server == self.settings.local;
        let Some(known) = self.servers.get_mut(server) else { return };
        let was_ready = known.ready.is_some();
        known.was_probed = true;
        known.ready = (readiness == Readiness::Ready).then(|| known.ready.unwrap_or(now));
        known.is_leaving = readiness == Readiness::Leaving;
        if let Some(began) = vouched {
            // It may serve something else now, unless it leaves: then it is the process that was ready. What local serves is in doubt by itself.
            (known.vouched_if_fetched, known.changed) = (Some(began), Some(now));
            if is_local || known.is_leaving {
                known.trust.vouched = Some(began);
            }
        }
        if known.ready.is_some() && !was_ready {
            self.retry_addresses(server);
        }
    }

    pub(super) fn take_lost(&mut self, server: &ServerId, at: Instant) {
        if let Some(known) = self.servers.get_mut(server) {
            known.trust.lost = known.trust.lost.max(Some(at));
        }
    }

    /// Are there so many names that it is worth the time? Where that many are in use it would find nothing, event after event.
    pub(super) fn is_compact_due(&self, now: Instant) -> bool {
        let count = self.names.len();
        let is_worth = |(at, left): (Instant, usize)| count >= 2 * left || now.saturating_duration_since(at) >= GONE;
        count > 2 * ENTRIES_MAX && self.compacted.is_none_or(is_worth)
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
