//! One immutable table of which server serves which resource, and what builds it.
//!
//! What always holds: there is exactly one local server; ids and addresses are unique; every set that a
//! lookup returns names servers of this snapshot, at least one.
//! At 10,000 GVRs on 100 servers a snapshot takes 0.8 MB, and milliseconds to build (docs/BENCHMARKING.md).
//!
//! The builder is in this file, which makes it a long one: nobody else may make what always holds.
//!
//! It says which servers answer their probes; whether a connection to one works changes by the millisecond and belongs to the pools.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

use crate::name::NAME_MAX;
use crate::table::{ENTRIES_MAX, Found, Table};
use crate::{Gvr, Name, Server, ServerId, ServerIndex, ServerSet};

/// What every server of the cluster serves, at one moment.
pub struct Snapshot {
    generation: u64,
    servers: Box<[Server]>,
    local: ServerIndex,
    peers: ServerSet,
    ready: ServerSet,
    leaving: ServerSet,
    stand_ins: ServerSet,
    /// By server.
    trust: Box<[Option<Trust>]>,
    /// Values are indices into `sets`.
    table: Table,
    /// Each distinct set once: a cluster has a handful, so they stay in the nearest cache.
    sets: Box<[ServerSet]>,
    /// Which of `sets` is that of resources whose servers are gone: an empty one, beside that of nobody.
    gone: Option<u16>,
    is_complete: bool,
}

/// Why nobody is known to serve a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No server names it, and all were asked.
    Unknown,
    /// Those who served it left a moment ago.
    Gone,
    /// Its group-version is that of a custom resource or of an aggregated API: not this table's matter.
    Excluded,
    /// Some server was never asked what it serves.
    Unasked,
}

/// A server that was lost may be another process now: it is in doubt until a probe vouches for it that began later.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trust {
    /// When somebody last lost it.
    pub lost: Option<Instant>,
    /// When the probe began that last found it to be there.
    pub vouched: Option<Instant>,
}

impl Trust {
    /// Has nobody vouched for it since it was lost?
    pub fn is_in_doubt(&self) -> bool {
        self.lost.is_some_and(|lost| !self.vouches_since(lost))
    }

    /// Has somebody vouched for it since then?
    pub fn vouches_since(&self, lost: Instant) -> bool {
        self.vouched.is_some_and(|vouched| vouched >= lost)
    }
}

impl Snapshot {
    /// Grows by one with each snapshot that is published.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All servers; a [`ServerIndex`] of this snapshot is a position in it.
    pub fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// The server that this proxy fronts.
    pub fn local(&self) -> ServerIndex {
        self.local
    }

    /// All servers but local.
    pub fn peers(&self) -> ServerSet {
        self.peers
    }

    /// The servers that may be sent requests: their probes succeeded. Without probes, all.
    pub fn ready(&self) -> ServerSet {
        self.ready
    }

    /// The servers that were ready and say that they no longer are, but still answer: better than nobody.
    pub fn leaving(&self) -> ServerSet {
        self.leaving
    }

    /// Is local passed over for a resource of these servers? While it is in doubt whether it serves what it did, a ready peer that serves it, too,
    /// is asked instead.
    #[inline]
    pub fn passes_over_local(&self, servers: ServerSet) -> bool {
        !servers.intersect(self.stand_ins).is_empty()
    }

    /// What is known of each server's last loss; nothing where nobody probes.
    pub fn trust(&self) -> &[Option<Trust>] {
        &self.trust
    }

    /// Every resource that somebody serves, and who, in no order. For people: it allocates.
    pub fn routes(&self) -> impl Iterator<Item = (Gvr, ServerSet)> {
        let named = self.table.iter().map(|(gvr, set)| (gvr, self.sets[usize::from(set)]));
        named.filter(|(gvr, servers)| !gvr.resource.is_empty() && !servers.is_empty())
    }

    /// Would requests go the same ways with the other one?
    pub fn routes_like(&self, other: &Self) -> bool {
        let value = |snapshot: &Self, set: u16| (snapshot.sets[usize::from(set)], Some(set) == snapshot.gone);
        self.servers == other.servers
            && self.trust == other.trust
            && (self.local, self.ready, self.leaving, self.stand_ins, self.is_complete)
                == (other.local, other.ready, other.leaving, other.stand_ins, other.is_complete)
            && self.table.is_like(&other.table, |here, there| value(self, here) == value(other, there))
    }

    /// Is one of the other's servers not here, or something unknown that is gone or excluded there? Allocates.
    pub fn forgets(&self, other: &Self) -> bool {
        let is_here = |server: &Server| self.servers.iter().any(|here| here.id == server.id);
        let mut unserved = other.table.iter().filter(|&(_, set)| other.sets[usize::from(set)].is_empty());
        let is_unknown = |gvr: &Gvr| {
            let name = Name::new(gvr.group.as_bytes(), gvr.version.as_bytes(), gvr.resource.as_bytes());
            matches!(self.table.find_part(&name), Found::Nothing)
        };
        !other.servers.iter().all(is_here) || unserved.any(|(gvr, _)| is_unknown(&gvr))
    }

    /// The group-versions of custom resources and aggregated APIs, in no order: they are not this table's matter. For people.
    pub fn excluded(&self) -> impl Iterator<Item = (String, String)> {
        let named = self.table.iter().map(|(gvr, _)| gvr);
        named.filter(|gvr| gvr.resource.is_empty()).map(|gvr| (gvr.group.into(), gvr.version.into()))
    }

    /// Is it a resource that some server serves, or served a moment ago? Allocates nothing.
    pub fn knows(&self, name: &Name<'_>) -> bool {
        !name.resource.is_empty() && self.table.find(name).is_some()
    }

    /// Was every server asked what it serves?
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// How many GVRs are known.
    pub fn gvrs(&self) -> usize {
        self.table.len()
    }

    /// The servers that serve a resource, of which there is at least one; or why nobody is known to. Allocates nothing.
    #[inline]
    pub fn lookup(&self, name: &Name<'_>) -> Result<ServerSet, Standing> {
        match self.table.find_part(name) {
            Found::Whole(set) => {
                let servers = self.sets[usize::from(set)];
                if servers.is_empty() { Err(self.standing_of_empty(name, set)) } else { Ok(servers) }
            }
            Found::GroupVersion => Err(Standing::Excluded),
            Found::Nothing => Err(self.standing_of_unknown()),
        }
    }

    /// Why nobody serves a resource that is in the table.
    #[cold]
    fn standing_of_empty(&self, name: &Name<'_>, set: u16) -> Standing {
        if Some(set) == self.gone {
            Standing::Gone
        } else if self.table.find(&name.group_version()).is_some() {
            Standing::Excluded
        } else {
            self.standing_of_unknown()
        }
    }

    fn standing_of_unknown(&self) -> Standing {
        if self.is_complete { Standing::Unknown } else { Standing::Unasked }
    }

    /// Bytes that the snapshot keeps on the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.servers) + size_of_val(&*self.trust) + size_of_val(&*self.sets) + self.table.heap_bytes()
    }
}

/// Not the table: thousands of lines help nobody.
impl fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshot")
            .field("generation", &self.generation)
            .field("servers", &self.servers)
            .field("local", &self.local)
            .field("gvrs", &self.gvrs())
            .finish_non_exhaustive()
    }
}

/// Collects servers and what they serve, then becomes a [`Snapshot`].
pub struct SnapshotBuilder {
    generation: u64,
    servers: Vec<Server>,
    ids: HashSet<ServerId>,
    addresses: HashSet<SocketAddr>,
    local: Option<ServerIndex>,
    unready: ServerSet,
    leaving: ServerSet,
    is_local_in_doubt: bool,
    /// By server.
    trust: Vec<Option<Trust>>,
    /// Values are indices into `served`.
    table: Table,
    /// One set per GVR, in the order they came.
    served: Vec<ServerSet>,
    /// The place in `served` of what is gone.
    gone: Option<u16>,
    is_complete: bool,
}

impl SnapshotBuilder {
    /// Starts the snapshot with this generation.
    pub fn new(generation: u64) -> Self {
        Self {
            generation,
            servers: Vec::new(),
            ids: HashSet::new(),
            addresses: HashSet::new(),
            local: None,
            unready: ServerSet::empty(),
            leaving: ServerSet::empty(),
            is_local_in_doubt: false,
            trust: Vec::new(),
            table: Table::with_room(0),
            served: Vec::new(),
            gone: None,
            is_complete: true,
        }
    }

    /// Makes room for so many names at once, before the first of them.
    pub fn reserve(&mut self, names: usize) {
        if self.table.len() == 0 {
            self.table = Table::with_room(names);
            self.served.reserve(names.min(ENTRIES_MAX));
        }
    }

    /// Adds a server; the index is valid in the snapshot that this builder makes.
    pub fn server(&mut self, server: Server) -> Result<ServerIndex, BuildError> {
        let Some(index) = ServerIndex::at(self.servers.len()) else {
            return Err(BuildError::TooManyServers);
        };
        if self.ids.contains(&server.id) {
            return Err(BuildError::DuplicateId(server.id));
        }
        if !self.addresses.insert(server.address) {
            return Err(BuildError::DuplicateAddress(server.address));
        }
        self.ids.insert(server.id.clone());
        self.servers.push(server);
        self.trust.push(None);
        Ok(index)
    }

    /// Says which server is local.
    pub fn local(&mut self, server: ServerIndex) {
        self.local = Some(server);
    }

    /// Says that local may not serve any more what it is said to.
    pub fn doubt_local(&mut self) {
        self.is_local_in_doubt = true;
    }

    /// Says that a server may not be sent requests yet.
    pub fn unready(&mut self, server: ServerIndex) {
        self.unready.insert(server);
    }

    /// Says that a server asks to be spared, and still answers.
    pub fn leaving(&mut self, server: ServerIndex) {
        self.unready(server);
        self.leaving.insert(server);
    }

    /// Says what is known of a server's last loss.
    pub fn trust(&mut self, server: ServerIndex, trust: Trust) {
        if let Some(known) = self.trust.get_mut(server.get()) {
            *known = Some(trust);
        }
    }

    /// The servers that may, of those added so far.
    pub fn ready(&self) -> ServerSet {
        ServerSet::below(self.servers.len()).without(self.unready)
    }

    /// Says that some server was never asked what it serves.
    pub fn incomplete(&mut self) {
        self.is_complete = false;
    }

    /// Says that the servers of a resource are gone; one that is served stays so.
    pub fn gone(&mut self, gvr: &Gvr) -> Result<(), BuildError> {
        let name = checked(gvr)?;
        if self.table.find(&name).is_some() {
            return Ok(());
        }
        let next = self.next_value()?;
        let value = *self.gone.get_or_insert(next);
        if value == next {
            self.served.push(ServerSet::empty());
        }
        self.table.insert(&name, value);
        Ok(())
    }

    /// Says that a group-version is one of custom resources or of an aggregated API.
    pub fn exclude(&mut self, group: &str, version: &str) -> Result<(), BuildError> {
        let gvr = Gvr::new(group, version, "");
        let name = fitting(&gvr)?;
        if version.is_empty() {
            return Err(BuildError::EmptyName(gvr));
        }
        if self.table.find(&name).is_none() {
            let value = self.next_value()?;
            self.served.push(ServerSet::empty());
            self.table.insert(&name, value);
        }
        Ok(())
    }

    /// The place of the next set, of which there are no more than names. Fails exactly when ENTRIES_MAX names are there.
    fn next_value(&self) -> Result<u16, BuildError> {
        let has_room = self.table.len() < ENTRIES_MAX;
        u16::try_from(self.served.len()).ok().filter(|_| has_room).ok_or(BuildError::TooManyGvrs)
    }

    /// Says that these servers serve a resource, in addition to those already said to.
    pub fn serve(&mut self, gvr: &Gvr, by: ServerSet) -> Result<(), BuildError> {
        if !by.without(ServerSet::below(self.servers.len())).is_empty() {
            return Err(BuildError::UnknownServer);
        }
        let name = checked(gvr)?;
        let next = self.next_value();
        let known = match next {
            Ok(next) => self.table.insert(&name, next),
            Err(_) => self.table.find(&name),
        };
        match known {
            Some(known) => {
                let set = &mut self.served[usize::from(known)];
                *set = set.union(by);
            }
            None => {
                next?;
                self.served.push(by);
            }
        }
        Ok(())
    }

    /// Finishes the snapshot.
    pub fn build(self) -> Result<Snapshot, BuildError> {
        let Self { mut table, served, .. } = self;
        let local = match self.local {
            Some(local) if local.get() < self.servers.len() => local,
            Some(_) => return Err(BuildError::UnknownServer),
            None => return Err(BuildError::NoLocal),
        };
        let mut sets = Vec::new();
        let mut positions = HashMap::new();
        let gone = self.gone;
        table.map_values(|gvr| {
            let set = (served[usize::from(gvr)], Some(gvr) == gone);
            *positions.entry(set).or_insert_with(|| {
                sets.push(set.0);
                // At most as many sets as GVRs, so the last position fits.
                u16::try_from(sets.len() - 1).unwrap_or(u16::MAX)
            })
        });
        let gone = positions.get(&(ServerSet::empty(), true)).copied();
        table.freeze();
        let all = ServerSet::below(self.servers.len());
        let (peers, ready) = (all.without(ServerSet::only(local)), all.without(self.unready));
        Ok(Snapshot {
            generation: self.generation,
            servers: self.servers.into(),
            local,
            peers,
            ready,
            leaving: self.leaving,
            stand_ins: if self.is_local_in_doubt { ready.intersect(peers) } else { ServerSet::empty() },
            trust: self.trust.into(),
            table,
            sets: sets.into(),
            gone,
            is_complete: self.is_complete,
        })
    }
}

/// A name that may be served.
fn checked(gvr: &Gvr) -> Result<Name<'_>, BuildError> {
    if gvr.version.is_empty() || gvr.resource.is_empty() {
        return Err(BuildError::EmptyName(gvr.clone()));
    }
    fitting(gvr)
}

/// A name that a table can hold.
fn fitting(gvr: &Gvr) -> Result<Name<'_>, BuildError> {
    let parts = [&gvr.group, &gvr.version, &gvr.resource];
    if parts.iter().any(|part| part.len() > NAME_MAX) {
        return Err(BuildError::NameTooLong(gvr.clone()));
    }
    if parts.iter().any(|part| part.contains('/')) {
        return Err(BuildError::SlashInName(gvr.clone()));
    }
    Ok(name_of(gvr))
}

fn name_of(gvr: &Gvr) -> Name<'_> {
    Name::new(gvr.group.as_bytes(), gvr.version.as_bytes(), gvr.resource.as_bytes())
}

/// Why a snapshot could not be built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BuildError {
    /// No server was named as local.
    NoLocal,
    /// Two servers with one identity.
    DuplicateId(ServerId),
    /// Two servers at one address.
    DuplicateAddress(SocketAddr),
    /// More servers than a [`ServerSet`] holds.
    TooManyServers,
    /// More GVRs than a snapshot holds.
    TooManyGvrs,
    /// A version or resource without a name.
    EmptyName(Gvr),
    /// A group, version or resource longer than Kubernetes allows.
    NameTooLong(Gvr),
    /// A group, version or resource that no path could name.
    SlashInName(Gvr),
    /// An index that this builder did not give out.
    UnknownServer,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLocal => write!(f, "no server is named as local"),
            Self::DuplicateId(id) => write!(f, "server id `{id}` is used twice"),
            Self::DuplicateAddress(address) => {
                write!(f, "address {address} belongs to two servers")
            }
            Self::TooManyServers => write!(f, "more than {} servers", ServerSet::CAPACITY),
            Self::TooManyGvrs => write!(f, "more than {ENTRIES_MAX} group/version/resources"),
            Self::EmptyName(gvr) => write!(f, "`{gvr}` lacks a version or a resource"),
            Self::NameTooLong(gvr) => {
                let start: String = gvr.to_string().chars().take(40).collect();
                write!(f, "a name in `{start}...` is longer than {NAME_MAX} bytes")
            }
            Self::SlashInName(gvr) => write!(f, "a name in `{gvr}` has a slash in it"),
            Self::UnknownServer => write!(f, "a server index is from another snapshot"),
        }
    }
}

impl std::error::Error for BuildError {}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    fn server(n: u16) -> Server {
        Server::new(ServerId::new(&format!("cp-{n}")), ([127, 0, 0, 1], 6000 + n).into())
    }

    /// A builder with `n` servers, the first one local.
    fn builder(n: u16) -> (SnapshotBuilder, Vec<ServerIndex>) {
        let mut builder = SnapshotBuilder::new(1);
        let indices: Vec<_> = (0..n).map(|i| builder.server(server(i)).unwrap()).collect();
        builder.local(indices[0]);
        (builder, indices)
    }

    #[test]
    fn local_and_peers_share_out_the_servers() {
        let (builder, servers) = builder(3);
        let snapshot = builder.build().unwrap();
        assert_eq!(snapshot.generation(), 1);
        assert_eq!(snapshot.local(), servers[0]);
        assert_eq!(snapshot.servers()[snapshot.local().get()].id.as_str(), "cp-0");
        assert_eq!(snapshot.peers().iter().collect::<Vec<_>>(), servers[1..]);
    }

    #[test]
    fn names_are_compared_exactly() {
        let (mut builder, servers) = builder(2);
        builder.serve(&Gvr::new("batch", "v1", "jobs"), ServerSet::only(servers[1])).unwrap();
        let snapshot = builder.build().unwrap();
        assert_eq!(snapshot.lookup(&Name::new(b"batch", b"v1", b"jobs")), Ok(ServerSet::only(servers[1])));
        for (group, version, resource) in [
            ("Batch", "v1", "jobs"),
            ("", "v1", "jobs"),
            ("batch", "v1", "job"),
            ("batch", "v1", ""),
            ("batch", "", "jobs"),
            ("batchv", "1", "jobs"),
        ] {
            let found = snapshot.lookup(&Name::new(group.as_bytes(), version.as_bytes(), resource.as_bytes()));
            assert_eq!(found, Err(Standing::Unknown), "{group}/{version}/{resource}");
        }
    }

    #[test]
    fn nobody_serves_it_for_a_reason() {
        const LONG: &str = "a-resource-with-a-name-that-is-longer-than-usual";
        let (mut builder, servers) = builder(2);
        let names = |resource| Gvr::new("g", "v1", resource);
        builder.gone(&names("left")).unwrap();
        builder.serve(&names("served"), ServerSet::only(servers[1])).unwrap();
        builder.gone(&names("served")).unwrap();
        builder.gone(&names("left too")).unwrap();
        builder.serve(&names("nobody's"), ServerSet::empty()).unwrap();
        builder.exclude("crd.example", "v1").unwrap();
        builder.exclude("crd.example", "v1").unwrap();
        let snapshot = builder.build().unwrap();
        let lookup = |group: &str, resource: &str| snapshot.lookup(&Name::new(group.as_bytes(), b"v1", resource.as_bytes()));
        assert_eq!(lookup("g", "served"), Ok(ServerSet::only(servers[1])));
        for (group, resource, expected) in [
            ("g", "left", Standing::Gone),
            ("g", "left too", Standing::Gone),
            ("g", "nobody's", Standing::Unknown),
            ("g", "other", Standing::Unknown),
            ("crd.example", "things", Standing::Excluded),
            ("crd.example", "", Standing::Excluded),
            ("crd.example", LONG, Standing::Excluded),
            ("g", "", Standing::Unknown),
        ] {
            assert_eq!(lookup(group, resource), Err(expected), "{group} {resource}");
        }
        let (mut builder, _) = super::tests::builder(2);
        builder.incomplete();
        assert_eq!(builder.build().unwrap().lookup(&Name::new(b"g", b"v1", b"other")), Err(Standing::Unasked));
    }

    #[test]
    fn what_cannot_be_built_says_why() {
        assert_eq!(SnapshotBuilder::new(1).build().unwrap_err(), BuildError::NoLocal);

        let (mut full, servers) = builder(128);
        assert_eq!(full.server(server(128)), Err(BuildError::TooManyServers));

        let (mut two, _) = builder(2);
        let same_id = Server { address: ([127, 0, 0, 2], 1).into(), ..server(1) };
        assert_eq!(two.server(same_id), Err(BuildError::DuplicateId(ServerId::new("cp-1"))));
        let same_address = Server { id: ServerId::new("new"), ..server(1) };
        assert_eq!(two.server(same_address), Err(BuildError::DuplicateAddress(server(1).address)));
        // A refused server leaves nothing behind.
        let fresh = Server::new(ServerId::new("new"), ([127, 0, 0, 2], 1).into());
        assert_eq!(two.server(fresh), Ok(servers[2]));

        let (mut two, _) = builder(2);
        let pods = Gvr::new("", "v1", "pods");
        assert_eq!(two.serve(&pods, ServerSet::only(servers[2])), Err(BuildError::UnknownServer));
        for (version, resource) in [("", "pods"), ("v1", "")] {
            let gvr = Gvr::new("", version, resource);
            assert_eq!(two.serve(&gvr, ServerSet::empty()), Err(BuildError::EmptyName(gvr)));
        }
        let gvr = Gvr::new(&"g".repeat(254), "v1", "pods");
        assert_eq!(two.serve(&gvr, ServerSet::empty()), Err(BuildError::NameTooLong(gvr)));
        for (group, version, resource) in [("a/b", "v1", "pods"), ("a", "b/v1", "pods"), ("a", "v1", "pods/log")] {
            let gvr = Gvr::new(group, version, resource);
            assert_eq!(two.serve(&gvr, ServerSet::empty()), Err(BuildError::SlashInName(gvr)));
        }
        two.local(servers[2]);
        assert_eq!(two.build().unwrap_err(), BuildError::UnknownServer);
    }

    #[test]
    fn the_65536th_gvr_is_one_too_many() {
        let (mut builder, servers) = builder(1);
        let by = ServerSet::only(servers[0]);
        for i in 0..ENTRIES_MAX {
            builder.serve(&Gvr::new("g", "v1", &format!("r{i}")), by).unwrap();
        }
        let last = Gvr::new("g", "v1", &format!("r{ENTRIES_MAX}"));
        assert_eq!(builder.serve(&last, by), Err(BuildError::TooManyGvrs));
        assert_eq!(builder.gone(&last), Err(BuildError::TooManyGvrs));
        assert_eq!(builder.exclude("g", "v1"), Err(BuildError::TooManyGvrs));
        assert_eq!(builder.serve(&Gvr::new("g", "v1", "r0"), by), Ok(()));
        assert_eq!(builder.gone(&Gvr::new("g", "v1", "r0")), Ok(()));
        let snapshot = builder.build().unwrap();
        assert_eq!(snapshot.gvrs(), ENTRIES_MAX);
        assert_eq!(snapshot.lookup(&Name::new(b"g", b"v1", b"r65534")), Ok(by));
        assert!(snapshot.heap_bytes() <= 8 << 20, "{} bytes", snapshot.heap_bytes());
    }

    /// The limits of design.md §6 hold in release; debug on a busy machine gets ten times the time.
    #[test]
    fn a_large_cluster_is_small_and_quick() {
        let gvrs: Vec<Gvr> = (0..10_000)
            .map(|i| {
                let group = format!("group-{}.example.org", i % 500);
                Gvr::new(&group, ["v1", "v1beta1"][i / 500 % 2], &format!("resources{i}"))
            })
            .collect();
        let started = Instant::now();
        let (mut builder, servers) = builder(100);
        for (i, gvr) in gvrs.iter().enumerate() {
            let by = servers.iter().copied().filter(|server| (i + server.get()) % 7 != 0).collect();
            builder.serve(gvr, by).unwrap();
        }
        let snapshot = builder.build().unwrap();
        let taken = started.elapsed();
        assert_eq!(snapshot.gvrs(), gvrs.len());
        assert!(snapshot.heap_bytes() <= 4 << 20, "{} bytes", snapshot.heap_bytes());
        assert!(taken < Duration::from_millis(500), "{taken:?}");
    }

    proptest! {
        /// Few short names, so that parts repeat and their borders shift.
        #[test]
        fn lookup_equals_a_map(
            pairs in proptest::collection::vec(("[ab]{0,2}|[a]{44,46}", "[ab]{1,2}", "[ab]{1,20}|[a]{38,42}", 0usize..128), 0..200),
            asked in proptest::collection::vec(("[ab]{0,2}|[a]{44,46}", "[ab]{0,2}", "[ab]{0,20}|[a]{38,42}"), 0..200),
        ) {
            let (mut builder, servers) = builder(128);
            let mut map: HashMap<Gvr, ServerSet> = HashMap::new();
            for (group, version, resource, by) in &pairs {
                let gvr = Gvr::new(group, version, resource);
                builder.serve(&gvr, ServerSet::only(servers[*by])).unwrap();
                map.entry(gvr).or_default().insert(servers[*by]);
            }
            let snapshot = builder.build().unwrap();
            prop_assert_eq!(snapshot.gvrs(), map.len());
            let known = map.keys().cloned();
            let other = asked.iter().map(|(group, version, resource)| Gvr::new(group, version, resource));
            for gvr in known.chain(other) {
                prop_assert_eq!(snapshot.lookup(&name_of(&gvr)), map.get(&gvr).copied().ok_or(Standing::Unknown), "{}", gvr);
            }
        }
    }
}
