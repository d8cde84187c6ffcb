//! The table of a moment.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::SocketAddr;
use std::time::Instant;

use super::known::Known;
use super::{Exclusions, Inventory, START};
use crate::snapshot::{BuildError, Snapshot, SnapshotBuilder};
use crate::table::ENTRIES_MAX;
use crate::{Gvr, Server, ServerId, ServerIndex, ServerSet, Via};

impl Inventory {
    /// The table of this moment; `None` while lists are unfinished, or local was neither asked nor found to be down, but not for longer than
    /// [`START`].
    pub fn snapshot(&self, generation: u64, now: Instant) -> Option<Result<Snapshot, BuildError>> {
        let local = self.servers.get(&self.settings.local);
        let is_clear = local.is_some_and(|local| local.fetched.is_some() || (local.was_probed && local.ready.is_none()));
        let listed = self.are_servers_listed() && !self.exclusions.contains(&Exclusions::NotListed);
        let is_late = self.began.is_some_and(|began| now.saturating_duration_since(began) >= START);
        ((listed && is_clear) || is_late).then(|| self.build(generation, now))
    }

    /// Did every source that names servers speak? Some are in one of them only.
    fn are_servers_listed(&self) -> bool {
        self.leases_listed && self.endpoints_listed
    }

    /// Local first.
    fn in_order(&self) -> impl Iterator<Item = (&ServerId, &Known)> + Clone {
        let is_local = |id: &ServerId| *id == self.settings.local;
        let local = self.servers.iter().filter(move |(id, _)| is_local(id));
        local.chain(self.servers.iter().filter(move |(id, _)| !is_local(id)))
    }

    /// Where each server is reached. Of several that name the same address, the one has it that can be used now, else one that said what it
    /// serves: a Lease that somebody made up takes no address from its server. The others have what they name besides.
    pub(super) fn places(&self) -> BTreeMap<&ServerId, (SocketAddr, Via)> {
        let mut there: Vec<_> = self.in_order().filter(|(_, known)| known.gone.is_none()).collect();
        let is_usable = |known: &Known| known.ready.is_some() && known.fetched.is_some() && !known.is_outdated();
        there.sort_by_key(|(id, known)| (**id != self.settings.local, !is_usable(known), known.fetched.is_none()));
        let (mut places, mut taken) = (BTreeMap::new(), BTreeSet::new());
        there.retain(|(id, known)| {
            let place = self.route_address(id, known).filter(|place| taken.insert(place.0));
            place.map(|place| places.insert(*id, place)).is_none()
        });
        // After all first choices: nobody loses one to somebody's second.
        for (id, known) in there {
            if let Some(place) = self.spare_address(id, known, &taken) {
                taken.insert(place.0);
                places.insert(id, place);
            }
        }
        places
    }

    fn build(&self, generation: u64, now: Instant) -> Result<Snapshot, BuildError> {
        let mut builder = SnapshotBuilder::new(generation);
        let mut sets = vec![ServerSet::empty(); self.names.len()];
        let (mut gone, mut missing, mut local) = (Vec::new(), Vec::new(), None);
        let places = self.places();
        let may_route_to_peers = self.may_route_to_peers();
        for (id, known) in self.in_order() {
            let is_local = *id == self.settings.local;
            let Some(&(address, via)) = places.get(id).filter(|_| is_local || may_route_to_peers) else {
                // Without a place to send it to, or the right to send it there, a request for what it serves is as if the server had left.
                gone.extend(known.serves().iter().copied().chain(known.missing()));
                continue;
            };
            let index = builder.server(Server { id: id.clone(), address, via })?;
            builder.trust(index, known.trust);
            // StorageVersions may lie: who is known by them alone is asked when nobody else can be.
            let is_hearsay = !is_local && known.fetched.is_none() && known.ready.is_some();
            if known.is_leaving || is_hearsay {
                builder.leaving(index);
            } else if known.ready.is_none() || (!is_local && known.is_outdated()) {
                builder.unready(index);
            }
            known.serves().iter().for_each(|&gvr| sets[gvr as usize].insert(index));
            if is_local {
                builder.local(index);
                local = Some(index);
            } else {
                missing.extend(known.missing().map(|gvr| (gvr, index)));
            }
        }
        if self.is_local_in_doubt() {
            builder.doubt_local();
        }
        // A local server that leaves still answers for what it serves.
        let leaving_local = local.filter(|_| self.servers.get(&self.settings.local).is_some_and(|local| local.is_leaving));
        let there = builder.ready().union(leaving_local.map_or(ServerSet::empty(), ServerSet::only));
        for (gvr, index) in missing {
            add_unless_served(&mut sets[gvr as usize], index, there);
        }
        let is_cut = !self.fill(&mut builder, &sets, &gone) || self.servers.values().any(Known::is_cut);
        let is_untold = self.exclusions.contains(&Exclusions::NotListed);
        if is_cut || is_untold || self.leaves_questions(now) {
            builder.incomplete();
        }
        builder.build()
    }

    /// May a peer serve what nobody is known to serve? If not even local can be asked, its own answer has to do, as in kube-apiserver,
    /// unless some peers were asked and others were not: then what most servers serve is known, and the rest may be that of the others. If
    /// nothing goes to peers, that would leave nothing at all.
    fn leaves_questions(&self, now: Instant) -> bool {
        let mut peers = self.in_order().filter(|(id, known)| **id != self.settings.local && known.gone.is_none());
        let is_in_question = peers.clone().any(|(_, known)| known.is_in_question(now));
        if self.is_blind(now) {
            let is_any_unasked = self.unfetched().any(|id| *id != self.settings.local);
            let is_any_asked = self.may_route_to_peers() && peers.any(|(_, known)| known.fetched.is_some());
            return is_any_asked && (is_in_question || is_any_unasked);
        }
        !self.are_servers_listed() || self.is_crowded || is_in_question || self.unfetched().next().is_some()
    }

    /// Is local ready for long, and could not be asked all the same?
    fn is_blind(&self, now: Instant) -> bool {
        let local = self.servers.get(&self.settings.local).filter(|local| local.fetched.is_none());
        local.and_then(|local| local.ready).is_some_and(|since| now.saturating_duration_since(since) >= START)
    }

    /// Puts in what fits; was there room for all of it? What local serves comes first, then what must not go to peers.
    fn fill(&self, builder: &mut SnapshotBuilder, sets: &[ServerSet], gone: &[u32]) -> bool {
        let excluded: HashSet<(&str, &str)> = self.excluded.keys().map(|(group, version)| (&**group, &**version)).collect();
        builder.reserve(excluded.len() + sets.iter().filter(|set| !set.is_empty()).count());
        let is_excluded = |gvr: &Gvr| excluded.contains(&(&*gvr.group, &*gvr.version));
        let named = |id: u32| self.names.get(id).filter(|gvr| !is_excluded(gvr)).map(|gvr| (gvr, sets[id as usize]));
        let served = |id: u32| named(id).filter(|(_, set)| !set.is_empty());
        let mut had_room = true;
        if sets.len() > ENTRIES_MAX {
            let local = self.servers.get(&self.settings.local).map(Known::serves).unwrap_or_default();
            local.iter().filter_map(|&id| served(id)).for_each(|(gvr, set)| had_room &= fits(builder.serve(gvr, set)));
        }
        for (group, version) in self.excluded.keys() {
            had_room &= fits(builder.exclude(group, version));
        }
        for (gvr, set) in (0u32..).take(sets.len()).filter_map(served) {
            had_room &= fits(builder.serve(gvr, set));
        }
        for (gvr, _) in gone.iter().filter_map(|&id| named(id)).filter(|(_, set)| set.is_empty()) {
            had_room &= fits(builder.gone(gvr));
        }
        had_room
    }
}

/// Was there room? A name that no table can hold is none that a request could have.
fn fits(added: Result<(), BuildError>) -> bool {
    added != Err(BuildError::TooManyGvrs)
}

/// Adds a server that may not serve it to those of a resource, if none of them is there.
fn add_unless_served(set: &mut ServerSet, server: ServerIndex, there: ServerSet) {
    if set.intersect(there).is_empty() {
        set.insert(server);
    }
}
