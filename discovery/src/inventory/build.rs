//! The table of a moment.

use std::collections::BTreeSet;

use super::known::Known;
use super::{Exclusions, Inventory};
use crate::snapshot::{BuildError, Snapshot, SnapshotBuilder};
use crate::{Gvr, Server, ServerId, ServerSet};

impl Inventory {
    /// The table of this moment; `None` while lists are unfinished, or local was neither asked nor found to be down.
    pub fn snapshot(&self, generation: u64) -> Option<Result<Snapshot, BuildError>> {
        let local = self.servers.get(&self.settings.local);
        let is_clear = local.is_some_and(|local| local.fetched.is_some() || (local.was_probed && local.ready.is_none()));
        let listed = self.leases_listed && !self.exclusions.contains(&Exclusions::NotListed);
        (listed && is_clear).then(|| self.build(generation))
    }

    /// Local first: no other server can take its address.
    fn in_order(&self) -> impl Iterator<Item = (&ServerId, &Known)> {
        let is_local = |id: &ServerId| *id == self.settings.local;
        let local = self.servers.iter().filter(move |(id, _)| is_local(id));
        local.chain(self.servers.iter().filter(move |(id, _)| !is_local(id)))
    }

    fn build(&self, generation: u64) -> Result<Snapshot, BuildError> {
        let mut builder = SnapshotBuilder::new(generation);
        let mut sets = vec![ServerSet::empty(); self.names.len()];
        let mut gone = Vec::new();
        let mut local_serves = Vec::new();
        let mut addresses = BTreeSet::new();
        let may_route_to_peers = self.may_route_to_peers();
        for (id, known) in self.in_order() {
            let serves = known.serves().unwrap_or_default();
            let place = self.route_address(id, known).filter(|_| known.gone.is_none());
            let Some((address, via)) = place.filter(|&(address, _)| addresses.insert(address)) else {
                // Without a place to send it to, a request for what it serves is as if the server had left.
                gone.extend(serves);
                continue;
            };
            let index = builder.server(Server { id: id.clone(), address, via })?;
            let is_local = *id == self.settings.local;
            if known.is_leaving {
                builder.leaving(index);
            } else if known.ready.is_none() || (!is_local && known.is_outdated()) {
                builder.unready(index);
            }
            if is_local {
                builder.local(index);
                local_serves = serves;
            } else if may_route_to_peers {
                serves.into_iter().for_each(|gvr| sets[gvr as usize].insert(index));
            }
        }
        self.add_local(&builder, local_serves, &mut sets);
        if !may_route_to_peers {
            gone.clear();
        }
        self.fill(&mut builder, &sets, &gone)?;
        if may_route_to_peers && self.unfetched().next().is_some() {
            builder.incomplete();
        }
        builder.build()
    }

    /// A local server in doubt serves what no peer serves.
    fn add_local(&self, builder: &SnapshotBuilder, serves: Vec<u32>, sets: &mut [ServerSet]) {
        let in_doubt = self.is_local_in_doubt();
        let Some(local) = builder.local_index() else { return };
        for gvr in serves {
            let set = &mut sets[gvr as usize];
            if !in_doubt || set.intersect(builder.ready()).is_empty() {
                set.insert(local);
            }
        }
    }

    fn fill(&self, builder: &mut SnapshotBuilder, sets: &[ServerSet], gone: &[u32]) -> Result<(), BuildError> {
        let is_excluded = |gvr: &Gvr| self.excluded.contains_key(&(gvr.group.clone(), gvr.version.clone()));
        for (gvr, &set) in self.names.iter().zip(sets) {
            if !set.is_empty() && (self.excluded.is_empty() || !is_excluded(gvr)) {
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
}
