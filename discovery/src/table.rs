//! The lookup table behind a snapshot: group/version/resource -> a 16-bit value.
//!
//! Open addressing with linear probing in one array of 16-byte slots, the names in one flat arena, the
//! table at most half full. A lookup is one hash, about one cache line of slots, and one line of names.
//!
//! What always holds: equal names have one slot; the hash is keyed by a random seed, so that nobody who
//! chooses names (a CRD's author, a client's path) can choose where they fall.
//!
//! It deliberately cannot remove: a snapshot is built once and only read.

use std::hash::{BuildHasher, RandomState};

/// The longest group, version or resource. Kubernetes allows a DNS subdomain (253 bytes) for a group and
/// less for the others.
pub(crate) const NAME_MAX: usize = 253;

/// The most names a table holds, because a slot has 16 bits for its value. A large cluster has a few thousand.
pub(crate) const ENTRIES_MAX: usize = 1 << 16;

/// Three names that are looked up together.
#[derive(Clone, Copy)]
pub(crate) struct Key<'a> {
    pub(crate) group: &'a [u8],
    pub(crate) version: &'a [u8],
    pub(crate) resource: &'a [u8],
}

impl Key<'_> {
    fn fits(&self) -> bool {
        self.group.len() <= NAME_MAX && self.version.len() <= NAME_MAX && self.resource.len() <= NAME_MAX
    }
}

/// One place of the table; free while `version_len == 0` (a version is never empty).
#[derive(Clone, Copy, Default)]
struct Slot {
    /// The upper half of the hash: nearly every wrong slot is passed over without touching the arena.
    tag: u32,
    /// Where the names start in the arena: group, version, resource, without separators.
    offset: u32,
    value: u16,
    group_len: u8,
    version_len: u8,
    resource_len: u8,
}

/// The table. Grows by [`insert`](Table::insert); frozen by never calling it again.
pub(crate) struct Table {
    /// `slots.len()` is a power of two and `2 * len <= slots.len()`, so probing always meets a free slot.
    slots: Box<[Slot]>,
    names: Vec<u8>,
    len: usize,
    seed: Seed,
}

impl Table {
    /// An empty table with a seed of its own.
    pub(crate) fn new() -> Self {
        Self { slots: vec![Slot::default(); 16].into(), names: Vec::new(), len: 0, seed: Seed::random() }
    }

    /// How many names it holds.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The value of a name.
    #[inline]
    pub(crate) fn find(&self, key: Key<'_>) -> Option<u16> {
        if !key.fits() {
            return None;
        }
        self.probe(key, self.seed.hash(key)).ok()
    }

    /// Adds a name; does nothing when it is there already. The caller has checked `len < ENTRIES_MAX`, that
    /// each name is at most `NAME_MAX` long, and that the version is not empty.
    pub(crate) fn insert(&mut self, key: Key<'_>, value: u16) {
        debug_assert!(self.len < ENTRIES_MAX && key.fits() && !key.version.is_empty());
        if 2 * (self.len + 1) > self.slots.len() {
            self.grow();
        }
        let hash = self.seed.hash(key);
        let Err(free) = self.probe(key, hash) else {
            return;
        };
        #[expect(clippy::cast_possible_truncation, reason = "65,536 entries of 3 * 253 bytes fit in 32 bits; lengths are at most 253")]
        let slot = Slot {
            tag: tag(hash),
            offset: self.names.len() as u32,
            value,
            group_len: key.group.len() as u8,
            version_len: key.version.len() as u8,
            resource_len: key.resource.len() as u8,
        };
        self.slots[free] = slot;
        for name in [key.group, key.version, key.resource] {
            self.names.extend_from_slice(name);
        }
        self.len += 1;
    }

    /// Replaces every value by what `change` makes of it.
    pub(crate) fn map_values(&mut self, mut change: impl FnMut(u16) -> u16) {
        for slot in self.slots.iter_mut().filter(|slot| slot.version_len != 0) {
            slot.value = change(slot.value);
        }
    }

    /// Every name with its value, in no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key<'_>, u16)> {
        self.slots.iter().filter(|slot| slot.version_len != 0).map(|slot| {
            let (group, rest) = self.names[slot.offset as usize..].split_at(usize::from(slot.group_len));
            let (version, rest) = rest.split_at(usize::from(slot.version_len));
            (Key { group, version, resource: &rest[..usize::from(slot.resource_len)] }, slot.value)
        })
    }

    /// Gives back the room the arena grew for nothing.
    pub(crate) fn shrink(&mut self) {
        self.names.shrink_to_fit();
    }

    /// Bytes on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        size_of_val(&*self.slots) + self.names.capacity()
    }

    /// The value of a name, or the free slot where it would go.
    #[inline]
    fn probe(&self, key: Key<'_>, hash: u64) -> Result<u16, usize> {
        let mask = self.slots.len() - 1;
        let tag = tag(hash);
        #[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
        let mut at = hash as usize & mask;
        loop {
            let slot = &self.slots[at];
            if slot.tag == tag && self.holds(slot, key) {
                return Ok(slot.value);
            }
            if slot.version_len == 0 {
                return Err(at);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn holds(&self, slot: &Slot, key: Key<'_>) -> bool {
        let (group_len, version_len) = (usize::from(slot.group_len), usize::from(slot.version_len));
        let resource_len = usize::from(slot.resource_len);
        if group_len != key.group.len() || version_len != key.version.len() || resource_len != key.resource.len() {
            return false;
        }
        let names = &self.names[slot.offset as usize..][..group_len + version_len + resource_len];
        let (group, names) = names.split_at(group_len);
        let (version, resource) = names.split_at(version_len);
        same(group, key.group) && same(version, key.version) && same(resource, key.resource)
    }

    fn grow(&mut self) {
        let wider = vec![Slot::default(); 2 * self.slots.len()].into();
        let narrower: Box<[Slot]> = std::mem::replace(&mut self.slots, wider);
        let mask = self.slots.len() - 1;
        for slot in narrower.iter().filter(|slot| slot.version_len != 0) {
            let hash = self.seed.hash(self.key_of(slot));
            #[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
            let mut at = hash as usize & mask;
            while self.slots[at].version_len != 0 {
                at = (at + 1) & mask;
            }
            self.slots[at] = *slot;
        }
    }

    fn key_of(&self, slot: &Slot) -> Key<'_> {
        let (group, rest) = self.names[slot.offset as usize..].split_at(usize::from(slot.group_len));
        let (version, rest) = rest.split_at(usize::from(slot.version_len));
        Key { group, version, resource: &rest[..usize::from(slot.resource_len)] }
    }
}

/// The half of the hash that does not choose the slot.
fn tag(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// The secret of one table.
///
/// The hash is made of 64 × 64 -> 128 bit multiplications whose operands are always masked by a secret or by the
/// product before. Unlike SipHash it proves nothing, but without the seed no two names are known to collide, and it
/// costs a third: SipHash alone would use up the 25 ns of a lookup.
struct Seed([u64; 4]);

impl Seed {
    fn random() -> Self {
        // The standard library's only source of random numbers: keys of SipHash.
        let random = RandomState::new();
        Self([0_u64, 1, 2, 3].map(|i| random.hash_one(i)))
    }

    /// The three names are mixed side by side, so that the multiplications overlap, and then together with their
    /// lengths, without which the words of two different names could be the same.
    #[inline]
    fn hash(&self, key: Key<'_>) -> u64 {
        let [a, b, c, d] = self.0;
        let lengths = key.group.len() << 32 | key.version.len() << 16 | key.resource.len();
        let (group, version) = (absorb(a, b, key.group), absorb(b, c, key.version));
        let resource = absorb(c, d, key.resource);
        fold(group ^ version ^ lengths as u64, resource ^ a)
    }
}

/// Mixes one name into the state, 16 bytes a step.
#[inline]
fn absorb(mut state: u64, secret: u64, name: &[u8]) -> u64 {
    let mut rest = name;
    while rest.len() > 16 {
        let (low, high) = words(&rest[..16]);
        state = fold(low ^ state, high ^ secret);
        rest = &rest[16..];
    }
    let (low, high) = words(rest);
    fold(low ^ state, high ^ secret)
}

/// Whether two names of one length are equal. Inlined, because calling `memcmp` three times costs more than it compares.
#[inline]
fn same(mut a: &[u8], mut b: &[u8]) -> bool {
    while a.len() > 16 && b.len() > 16 {
        if words(&a[..16]) != words(&b[..16]) {
            return false;
        }
        (a, b) = (&a[16..], &b[16..]);
    }
    words(a) == words(b)
}

/// At most 16 bytes as two words, without loss once the length is known.
#[inline]
fn words(bytes: &[u8]) -> (u64, u64) {
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
    }
    if let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk()) {
        return (u32::from_le_bytes(*first).into(), u32::from_le_bytes(*last).into());
    }
    match *bytes {
        [a, b, c] => (u64::from(a) | u64::from(b) << 8, c.into()),
        [a, b] => (a.into(), b.into()),
        [a] => (a.into(), 0),
        _ => (0, 0),
    }
}

/// The 128-bit product, its halves folded together.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    #[expect(clippy::cast_possible_truncation, reason = "the two halves, on purpose")]
    let folded = product as u64 ^ (product >> 64) as u64;
    folded
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn key<'a>(group: &'a str, version: &'a str, resource: &'a str) -> Key<'a> {
        Key { group: group.as_bytes(), version: version.as_bytes(), resource: resource.as_bytes() }
    }

    #[test]
    fn the_borders_between_names_matter() {
        let mut table = Table::new();
        table.insert(key("ab", "c", "d"), 1);
        assert_eq!(table.find(key("ab", "c", "d")), Some(1));
        for other in [key("a", "bc", "d"), key("", "ab", "cd"), key("ab", "cd", ""), key("ab", "", "cd")] {
            assert_eq!(table.find(other), None);
        }
    }

    #[test]
    fn an_over_long_name_is_unknown() {
        let mut table = Table::new();
        let long = "x".repeat(NAME_MAX);
        table.insert(key(&long, &long, &long), 7);
        assert_eq!(table.find(key(&long, &long, &long)), Some(7));
        // 256 more would be the same length in the slot's 8 bits.
        let longer = "x".repeat(NAME_MAX + 256);
        assert_eq!(table.find(key(&long, &long, &longer)), None);
    }

    #[test]
    fn a_full_table_still_finds_everything() {
        let mut table = Table::new();
        let names: Vec<String> = (0..ENTRIES_MAX).map(|i| format!("r{i}")).collect();
        for (value, name) in (0..=u16::MAX).zip(&names) {
            table.insert(key("g", "v1", name), value);
        }
        assert_eq!(table.len(), ENTRIES_MAX);
        for (value, name) in (0..=u16::MAX).zip(&names) {
            assert_eq!(table.find(key("g", "v1", name)), Some(value));
            assert_eq!(table.find(key("g", "v2", name)), None);
        }
    }

    /// Names that differ in one byte, in length only, or only in their middle must spread.
    #[test]
    fn similar_names_spread() {
        let seed = Seed::random();
        let mut names: Vec<String> = (0..60).map(|n| "a".repeat(n)).collect();
        for length in [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33] {
            for at in 0..length {
                for byte in *b"bcdef" {
                    let mut name = vec![b'a'; length];
                    name[at] = byte;
                    names.push(String::from_utf8(name).unwrap());
                }
            }
        }
        let hashes: HashSet<u64> = names.iter().map(|name| seed.hash(key("g", "v1", name))).collect();
        assert_eq!(hashes.len(), names.len());
        let buckets: HashSet<u64> = hashes.iter().map(|hash| hash & 0xfff).collect();
        // 950 names into 4,096 buckets fill about 847 of them when they fall at random.
        assert!(buckets.len() > 780, "{} names in {} buckets", names.len(), buckets.len());
    }

    #[test]
    fn seeds_differ() {
        assert_ne!(Seed::random().hash(key("g", "v1", "r")), Seed::random().hash(key("g", "v1", "r")));
    }
}
