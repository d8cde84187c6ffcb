//! Apiservers: their identity, their place in a snapshot, and sets of them.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

/// An apiserver's identity, as in its Lease and in `apiServerID` of a StorageVersion. Not an address:
/// a server that moves keeps it. Cloning shares the text.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerId(Arc<str>);

impl ServerId {
    /// An identity from its text.
    pub fn new(id: &str) -> Self {
        Self(id.into())
    }

    /// The text of the identity.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One apiserver of the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Server {
    /// Who it is.
    pub id: ServerId,
    /// Where it is reached from here.
    pub address: SocketAddr,
    /// What is at that address.
    pub via: Via,
}

impl Server {
    /// A server that is reached at its own address.
    pub fn new(id: ServerId, address: SocketAddr) -> Self {
        Self { id, address, via: Via::Apiserver }
    }
}

/// What answers at a server's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Via {
    /// The apiserver itself, or the client port of a proxy in front of it.
    Apiserver,
    /// The peer port of the mvproxy in front of it: mutual TLS, and never routed again.
    Proxy,
}

/// HTTP/2 as only a peer port offers it (ALPN). Where our certificate is shown nothing else is accepted: a kube-apiserver would take the
/// certificate for the user, whatever the request says.
pub const PROXY_HTTP2: &[u8] = b"mvproxy-h2";
/// The same of HTTP/1.1.
pub const PROXY_HTTP1: &[u8] = b"mvproxy-http/1.1";

/// A server's position in *one* snapshot. It means nothing in another one; what must outlive a
/// snapshot is keyed by [`ServerId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ServerIndex(u8);

impl ServerIndex {
    /// The position as an index into [`Snapshot::servers`](crate::Snapshot::servers).
    pub fn get(self) -> usize {
        usize::from(self.0)
    }

    /// The server at `position`, or `None` where no set could hold it.
    pub(crate) fn at(position: usize) -> Option<Self> {
        match u8::try_from(position) {
            Ok(index) if position < ServerSet::CAPACITY => Some(Self(index)),
            _ => None,
        }
    }
}

/// A set of servers of one snapshot: 16 bytes, copied freely, never allocated.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct ServerSet(u128);

impl ServerSet {
    /// How many servers a snapshot can hold: the bits of the set. Control planes have 3 to 9.
    pub const CAPACITY: usize = 128;

    /// The set without members.
    pub const fn empty() -> Self {
        Self(0)
    }

    /// The set with one member.
    pub fn only(server: ServerIndex) -> Self {
        Self(1 << server.0)
    }

    /// The first `count` servers of a snapshot.
    pub(crate) fn below(count: usize) -> Self {
        let missing = Self::CAPACITY.saturating_sub(count);
        Self(u32::try_from(missing).ok().and_then(|bits| u128::MAX.checked_shr(bits)).unwrap_or(0))
    }

    /// Adds a server.
    pub fn insert(&mut self, server: ServerIndex) {
        self.0 |= 1 << server.0;
    }

    /// Whether the server is a member.
    pub fn contains(self, server: ServerIndex) -> bool {
        self.0 >> server.0 & 1 == 1
    }

    /// How many members it has.
    pub fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether it has no members.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The members of either set.
    #[must_use]
    pub fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The members of both sets.
    #[must_use]
    pub fn intersect(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The members of this set that are not in the other.
    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// The member with the lowest index.
    pub fn first(self) -> Option<ServerIndex> {
        ServerIndex::at(self.0.trailing_zeros() as usize)
    }

    /// The members, lowest index first.
    pub fn iter(self) -> impl Iterator<Item = ServerIndex> {
        let mut rest = self;
        std::iter::from_fn(move || {
            let next = rest.first()?;
            rest = rest.without(Self::only(next));
            Some(next)
        })
    }
}

impl FromIterator<ServerIndex> for ServerSet {
    fn from_iter<I: IntoIterator<Item = ServerIndex>>(servers: I) -> Self {
        let mut set = Self::empty();
        for server in servers {
            set.insert(server);
        }
        set
    }
}

/// Lists the indices: a 128-bit number says nothing in a failed assertion.
impl fmt::Debug for ServerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(ServerIndex::get)).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn set(indices: &BTreeSet<u8>) -> ServerSet {
        indices.iter().copied().map(ServerIndex).collect()
    }

    fn listed(set: ServerSet) -> BTreeSet<u8> {
        set.iter().map(|server| server.0).collect()
    }

    #[test]
    fn index_stops_where_the_set_does() {
        assert_eq!(ServerIndex::at(127), Some(ServerIndex(127)));
        assert_eq!(ServerIndex::at(128), None);
        assert_eq!(ServerIndex::at(usize::MAX), None);
    }

    #[test]
    fn below_is_the_first_ones() {
        for count in [0, 1, 3, 64, 127, 128] {
            let set = ServerSet::below(count);
            assert!(set.iter().map(ServerIndex::get).eq(0..count), "{count}");
        }
        assert_eq!(ServerSet::below(1_000).len(), 128);
    }

    #[test]
    fn debug_lists_the_members() {
        assert_eq!(format!("{:?}", set(&BTreeSet::from([0, 5, 127]))), "{0, 5, 127}");
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(
            a in proptest::collection::btree_set(0u8..128, 0..128),
            b in proptest::collection::btree_set(0u8..128, 0..128),
        ) {
            let (x, y) = (set(&a), set(&b));
            prop_assert_eq!(&listed(x), &a);
            prop_assert_eq!(x.len(), a.len());
            prop_assert_eq!(x.is_empty(), a.is_empty());
            prop_assert_eq!(x.first().map(|server| server.0), a.first().copied());
            prop_assert_eq!(listed(x.union(y)), &a | &b);
            prop_assert_eq!(listed(x.intersect(y)), &a & &b);
            prop_assert_eq!(listed(x.without(y)), &a - &b);
            for index in 0..128 {
                prop_assert_eq!(x.contains(ServerIndex(index)), a.contains(&index));
            }
        }
    }
}
