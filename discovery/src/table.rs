//! The lookup table behind a snapshot: group/version/resource -> a 16-bit value.
//!
//! Open addressing with linear probing in one array of 4-byte slots, at most a third full; beside it the names, as [words](crate::name)
//! of a fixed number, those of a group-version once for all its resources. A lookup is one hash, one line of slots, one of the resource, and one
//! or two of its group-version, of which there are few; no branch depends on how long a name is.
//!
//! What always holds: equal names have one slot; the hash is keyed by a random seed, so that nobody who chooses names (a CRD's author, a
//! client's path) can choose where they fall; a name is found only if all of it is the same.
//!
//! It deliberately cannot remove: a snapshot is built once and only read.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use crate::name::{Back, Front, NAME_MAX, Words};
use crate::{Gvr, Name};

/// The most names a table holds: a slot has 16 bits for the place of one, and one value says that it is free. A large cluster has a few
/// thousand.
pub(crate) const ENTRIES_MAX: usize = FREE as usize;

/// The longest name of all.
const LONG_MAX: usize = 3 * NAME_MAX + 2;

/// In place of a name's place: the slot has none.
const FREE: u16 = u16::MAX;

/// One place of the table.
#[derive(Clone, Copy)]
struct Slot {
    /// The upper bits of the hash: nearly every wrong slot is passed over without touching a name.
    tag: u16,
    /// Position in `entries`, or `FREE`.
    entry: u16,
}

impl Slot {
    const EMPTY: Self = Self { tag: 0, entry: FREE };
}

/// A name and its value: one line of the cache.
#[repr(align(64))]
struct Entry {
    /// The second half of the name's words.
    back: Back,
    /// Position of the first half in `group_versions`.
    group_version: u16,
    value: u16,
    /// Where `group/version` is to be split; zero when there is no group.
    group_len: u8,
}

const _: () = assert!(size_of::<Entry>() == 64, "one line of the cache");

/// What a table has of a name.
pub(crate) enum Found {
    /// All of it, with this value.
    Whole(u16),
    /// Only the name of its group-version.
    GroupVersion,
    /// Nothing.
    Nothing,
}

/// The table. Grows by [`insert`](Table::insert) until it is [frozen](Table::freeze).
pub(crate) struct Table {
    /// `slots.len()` is a power of two and `3 * entries.len() <= slots.len()`, so probing always meets a free slot.
    slots: Box<[Slot]>,
    entries: Vec<Entry>,
    /// The first halves of all names, each once.
    group_versions: Vec<Front>,
    /// Where they are; only while the table grows.
    places: HashMap<Front, u16>,
    /// Names that words have no room for, as `group/version/resource`. Nobody but an attacker or a very proud author has one.
    long: HashMap<Box<[u8]>, u16>,
    seed: Seed,
}

impl Table {
    /// An empty table with a seed of its own, and room for so many names before it has to grow.
    pub(crate) fn with_room(names: usize) -> Self {
        let names = names.min(ENTRIES_MAX);
        Self {
            slots: vec![Slot::EMPTY; (3 * names).next_power_of_two().max(16)].into(),
            entries: Vec::with_capacity(names),
            group_versions: Vec::new(),
            places: HashMap::new(),
            long: HashMap::new(),
            seed: Seed::random(),
        }
    }

    /// How many names it holds.
    pub(crate) fn len(&self) -> usize {
        self.entries.len() + self.long.len()
    }

    /// The value of a name.
    #[inline]
    pub(crate) fn find(&self, name: &Name<'_>) -> Option<u16> {
        let words = name.words();
        if words.is_long() {
            return self.find_long(name);
        }
        self.probe(&words, self.seed.hash(&words)).ok()
    }

    /// What there is of a name. Two lookups in one: for the group-version, words and hash follow from those of the name.
    #[inline]
    pub(crate) fn find_part(&self, name: &Name<'_>) -> Found {
        let words = name.words();
        if words.is_long() {
            return self.find_long_part(name);
        }
        let [front, back] = self.seed.halves(&words);
        if let Ok(value) = self.probe(&words, front ^ back) {
            return Found::Whole(value);
        }
        let words = words.group_version();
        match self.probe(&words, front ^ self.seed.back_of_group_version(&words)) {
            Ok(_) => Found::GroupVersion,
            Err(_) => Found::Nothing,
        }
    }

    /// Adds a name, unless it is there already: then only says with which value. The caller has checked `len < ENTRIES_MAX`, and that no
    /// part is longer than `NAME_MAX` or has a slash.
    pub(crate) fn insert(&mut self, name: &Name<'_>, value: u16) -> Option<u16> {
        debug_assert!(self.len() < ENTRIES_MAX);
        let words = name.words();
        if words.is_long() {
            return self.insert_long(name, value);
        }
        if 3 * (self.entries.len() + 1) > self.slots.len() {
            self.grow();
        }
        let hash = self.seed.hash(&words);
        let free = match self.probe(&words, hash) {
            Ok(known) => return Some(known),
            Err(free) => free,
        };
        let group_version = self.place(words.front());
        #[expect(clippy::cast_possible_truncation, reason = "fewer entries than FREE; a group that has words is shorter than 48")]
        let (entry, group_len) = (self.entries.len() as u16, name.group.len() as u8);
        self.slots[free] = Slot { tag: tag(hash), entry };
        self.entries.push(Entry { back: words.back(), group_version, value, group_len });
        None
    }

    fn insert_long(&mut self, name: &Name<'_>, value: u16) -> Option<u16> {
        let known = self.find_long(name);
        let mut buffer = [0; LONG_MAX];
        if let (None, Some(joined)) = (known, joined(name, &mut buffer)) {
            self.long.insert(joined.into(), value);
        }
        known
    }

    /// The place of a group-version, which it gets now if it has none.
    fn place(&mut self, front: Front) -> u16 {
        debug_assert_eq!(self.places.len(), self.group_versions.len(), "the table is frozen");
        // Names come in groups.
        let last = self.entries.last().map(|entry| entry.group_version);
        if let Some(last) = last.filter(|last| self.group_versions.get(usize::from(*last)) == Some(&front)) {
            return last;
        }
        *self.places.entry(front).or_insert_with(|| {
            self.group_versions.push(front);
            #[expect(clippy::cast_possible_truncation, reason = "no more than entries, which are fewer than FREE")]
            let place = (self.group_versions.len() - 1) as u16;
            place
        })
    }

    /// Replaces every value by what `change` makes of it.
    pub(crate) fn map_values(&mut self, mut change: impl FnMut(u16) -> u16) {
        for value in self.entries.iter_mut().map(|entry| &mut entry.value).chain(self.long.values_mut()) {
            *value = change(*value);
        }
    }

    /// Every name with its value, in no order. Allocates.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Gvr, u16)> {
        let named = self.entries.iter().map(|entry| (self.gvr(entry), entry.value));
        named.chain(self.long.iter().map(|(joined, value)| (split(joined), *value)))
    }

    /// Does the other one have the same names, with values that are alike?
    pub(crate) fn is_like(&self, other: &Self, is_alike: impl Fn(u16, u16) -> bool) -> bool {
        let short = |entry: &Entry| {
            let words = self.words(entry);
            other.probe(&words, other.seed.hash(&words)).is_ok_and(|there| is_alike(entry.value, there))
        };
        let long = |name: &[u8], value| other.long.get(name).is_some_and(|there| is_alike(value, *there));
        self.len() == other.len() && self.entries.iter().all(short) && self.long.iter().all(|(name, value)| long(name, *value))
    }

    /// Gives back the room it grew for nothing, and what only growing needs: nothing is inserted any more.
    pub(crate) fn freeze(&mut self) {
        self.entries.shrink_to_fit();
        self.group_versions.shrink_to_fit();
        self.places = HashMap::new();
    }

    /// Bytes on the heap, once it is frozen.
    pub(crate) fn heap_bytes(&self) -> usize {
        let names: usize = self.long.keys().map(|name| name.len()).sum();
        let long = names + self.long.capacity() * size_of::<(Box<[u8]>, u16)>();
        let group_versions = self.group_versions.capacity() * size_of::<Front>();
        size_of_val(&*self.slots) + self.entries.capacity() * size_of::<Entry>() + group_versions + long
    }

    #[cold]
    fn find_long(&self, name: &Name<'_>) -> Option<u16> {
        self.long.get(joined(name, &mut [0; LONG_MAX])?).copied()
    }

    /// The name is long; that of its group-version need not be.
    #[cold]
    fn find_long_part(&self, name: &Name<'_>) -> Found {
        match (self.find_long(name), self.find(&name.group_version())) {
            (Some(value), _) => Found::Whole(value),
            (None, Some(_)) => Found::GroupVersion,
            (None, None) => Found::Nothing,
        }
    }

    /// The value of a name, or the free slot where it would go.
    #[inline]
    fn probe(&self, words: &Words, hash: u64) -> Result<u16, usize> {
        let mask = self.slots.len() - 1;
        let tag = tag(hash);
        let mut at = low_bits(hash, mask);
        loop {
            let slot = self.slots[at];
            // None for a free slot: there are at most FREE entries.
            let Some(entry) = self.entries.get(usize::from(slot.entry)) else {
                return Err(at);
            };
            if slot.tag == tag && self.words(entry) == *words {
                return Ok(entry.value);
            }
            at = (at + 1) & mask;
        }
    }

    fn gvr(&self, entry: &Entry) -> Gvr {
        let [group_version, resource] = self.words(entry).parts();
        let (group, version) = group_version.split_at(entry.group_len.into());
        gvr([group, version.strip_prefix(b"/").unwrap_or(version), &resource])
    }

    #[inline]
    fn words(&self, entry: &Entry) -> Words {
        // There is one for every entry.
        Words::new(self.group_versions.get(usize::from(entry.group_version)).copied().unwrap_or_default(), entry.back)
    }

    fn grow(&mut self) {
        self.slots = vec![Slot::EMPTY; 2 * self.slots.len()].into();
        let mask = self.slots.len() - 1;
        for (nth, entry) in (0..FREE).zip(&self.entries) {
            let hash = self.seed.hash(&self.words(entry));
            let mut at = low_bits(hash, mask);
            while self.slots[at].entry != FREE {
                at = (at + 1) & mask;
            }
            self.slots[at] = Slot { tag: tag(hash), entry: nth };
        }
    }
}

/// The part of the hash that does not choose the slot.
fn tag(hash: u64) -> u16 {
    (hash >> 48) as u16
}

/// The part that does.
fn low_bits(hash: u64, mask: usize) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "only the low bits are wanted")]
    let at = hash as usize & mask;
    at
}

/// The parts with slashes between them, unless one is longer than Kubernetes allows. On the stack: requests come here too.
fn joined<'b>(name: &Name<'_>, buffer: &'b mut [u8; LONG_MAX]) -> Option<&'b [u8]> {
    let mut len = 0;
    for part in [name.group, b"/", name.version, b"/", name.resource] {
        if part.len() > NAME_MAX {
            return None;
        }
        buffer[len..len + part.len()].copy_from_slice(part);
        len += part.len();
    }
    Some(&buffer[..len])
}

fn split(joined: &[u8]) -> Gvr {
    let mut parts = joined.split(|byte| *byte == b'/');
    gvr([(); 3].map(|()| parts.next().unwrap_or_default()))
}

fn gvr(parts: [&[u8]; 3]) -> Gvr {
    let [group, version, resource] = parts.map(String::from_utf8_lossy);
    Gvr::new(&group, &version, &resource)
}

/// The secret of one table.
///
/// The hash is made of 64 × 64 -> 128 bit multiplications, each of two words that are masked by secrets of their own. Unlike SipHash it
/// proves little, but without the seed no two names are known to collide, and the multiplications do not wait for each other.
struct Seed {
    secrets: [u64; 12],
    /// What the words of no resource contribute.
    no_resource: u64,
}

impl Seed {
    fn random() -> Self {
        // The standard library's only source of random numbers: keys of SipHash.
        let random = RandomState::new();
        let secrets: [u64; 12] = std::array::from_fn(|nth| random.hash_one(nth));
        Self { secrets, no_resource: fold(secrets[6], secrets[7]) ^ fold(secrets[8], secrets[9]) }
    }

    #[inline]
    fn hash(&self, words: &Words) -> u64 {
        let [front, back] = self.halves(words);
        front ^ back
    }

    /// The hash is these two together: that of the group-version, and that of the resource and the lengths.
    #[inline]
    fn halves(&self, words: &Words) -> [u64; 2] {
        let pair = |nth: usize| self.pair(words, nth);
        [pair(0) ^ pair(2) ^ pair(4), pair(6) ^ pair(8) ^ pair(10)]
    }

    /// The second half of a name without a resource.
    #[inline]
    fn back_of_group_version(&self, words: &Words) -> u64 {
        self.no_resource ^ self.pair(words, 10)
    }

    #[inline]
    fn pair(&self, words: &Words, nth: usize) -> u64 {
        let (words, secrets) = (words.get(), &self.secrets);
        fold(words[nth] ^ secrets[nth], words[nth + 1] ^ secrets[nth + 1])
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
    use std::collections::{BTreeSet, HashSet};

    use super::*;

    fn name<'a>(group: &'a str, version: &'a str, resource: &'a str) -> Name<'a> {
        Name::new(group.as_bytes(), version.as_bytes(), resource.as_bytes())
    }

    #[test]
    fn the_borders_between_names_matter() {
        let mut table = Table::with_room(0);
        table.insert(&name("ab", "c", "d"), 1);
        assert_eq!(table.find(&name("ab", "c", "d")), Some(1));
        for other in [name("a", "bc", "d"), name("", "ab", "cd"), name("ab", "cd", ""), name("ab", "", "cd")] {
            assert_eq!(table.find(&other), None);
        }
    }

    #[test]
    fn long_names_are_found_too() {
        let mut table = Table::with_room(0);
        let long = "x".repeat(NAME_MAX);
        assert_eq!(table.find(&name(&long, "v1", "r")), None);
        assert_eq!(table.insert(&name(&long, &long, &long), 7), None);
        assert_eq!(table.insert(&name(&long, &long, &long), 8), Some(7));
        table.insert(&name("g", "v1", "r"), 9);
        assert_eq!(table.find(&name(&long, &long, &long)), Some(7));
        assert_eq!(table.find(&name(&long, &long, &long[1..])), None);
        assert_eq!(table.find(&name(&long, &long, &long.repeat(9))), None);
        assert_eq!(table.len(), 2);
        table.map_values(|value| value + 1);
        let listed: BTreeSet<_> = table.iter().map(|(gvr, value)| (gvr.to_string(), value)).collect();
        assert_eq!(listed, BTreeSet::from([(format!("{long}/{long}/{long}"), 8), ("g/v1/r".to_owned(), 10)]));
    }

    #[test]
    fn parts_are_found_as_names_are() {
        let mut table = Table::with_room(0);
        let long = "x".repeat(NAME_MAX);
        table.insert(&name("g", "v1", "r"), 1);
        table.insert(&name("custom", "v1", ""), 2);
        table.insert(&name("", "v2", ""), 2);
        table.insert(&name(&long, "v1", ""), 2);
        for group in ["", "g", "custom", &long] {
            for version in ["v1", "v2", ""] {
                for resource in ["", "r", "much-longer-than-eight", &long] {
                    let name = name(group, version, resource);
                    let found = match (table.find(&name), table.find(&name.group_version())) {
                        (Some(value), _) => Ok(value),
                        (None, by_group_version) => Err(by_group_version.is_some()),
                    };
                    let part = match table.find_part(&name) {
                        Found::Whole(value) => Ok(value),
                        Found::GroupVersion => Err(true),
                        Found::Nothing => Err(false),
                    };
                    assert_eq!(part, found, "{name:?}");
                }
            }
        }
    }

    #[test]
    fn names_come_back_as_they_were() {
        let mut table = Table::with_room(0);
        let names = [("", "v1", "pods"), ("batch", "v1", "jobs"), ("g", "v1", ""), ("a.b", "v1beta1", "x\0")];
        for (group, version, resource) in names {
            table.insert(&name(group, version, resource), 0);
        }
        let listed: Vec<Gvr> = table.iter().map(|(gvr, _)| gvr).collect();
        assert_eq!(listed, names.map(|(group, version, resource)| Gvr::new(group, version, resource)));
    }

    #[test]
    fn names_that_differ_in_zeros_are_others() {
        let mut table = Table::with_room(0);
        let names = [("g", "v1", "r"), ("g", "v1\0", "r"), ("g", "v1", "r\0"), ("g", "v1\0", "r\0"), ("g", "v1", "other")];
        for (value, (group, version, resource)) in (0..).zip(names) {
            table.insert(&name(group, version, resource), value);
        }
        table.freeze();
        for (value, (group, version, resource)) in (0..).zip(names) {
            let name = name(group, version, resource);
            assert_eq!(table.find(&name), Some(value));
            assert!(matches!(table.find_part(&name), Found::Whole(found) if found == value));
        }
        assert_eq!(table.find(&name("g", "v1\0\0", "r")), None);
        let listed: Vec<_> = table.iter().collect();
        let all: Vec<_> = names.iter().map(|(group, version, resource)| Gvr::new(group, version, resource)).zip(0..).collect();
        assert_eq!(listed, all);
        assert!(table.is_like(&table, |one, other| one == other));
    }

    #[test]
    fn a_table_of_nothing_but_group_versions_finds_them_all() {
        let mut table = Table::with_room(0);
        let groups: Vec<String> = (0..ENTRIES_MAX).map(|i| format!("g{i}")).collect();
        for (value, group) in (0..=u16::MAX).zip(&groups) {
            table.insert(&name(group, "v1", ""), value);
        }
        table.freeze();
        for (value, group) in (0..=u16::MAX).zip(&groups) {
            assert_eq!(table.find(&name(group, "v1", "")), Some(value));
        }
        assert!(table.heap_bytes() <= 8 << 20, "{} bytes", table.heap_bytes());
    }

    #[test]
    fn a_full_table_still_finds_everything() {
        let mut table = Table::with_room(0);
        let names: Vec<String> = (0..ENTRIES_MAX).map(|i| format!("r{i}")).collect();
        for (value, resource) in (0..=u16::MAX).zip(&names) {
            table.insert(&name("g", "v1", resource), value);
        }
        assert_eq!(table.len(), ENTRIES_MAX);
        for (value, resource) in (0..=u16::MAX).zip(&names) {
            assert_eq!(table.find(&name("g", "v1", resource)), Some(value));
            assert_eq!(table.find(&name("g", "v2", resource)), None);
        }
    }

    /// Names that differ in one byte, in length only, or only in their middle must spread.
    #[test]
    fn similar_names_spread() {
        let seed = Seed::random();
        let mut names: Vec<String> = (0..40).map(|n| "a".repeat(n)).collect();
        for length in [1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32, 33] {
            for at in 0..length {
                for byte in *b"bcdef" {
                    let mut name = vec![b'a'; length];
                    name[at] = byte;
                    names.push(String::from_utf8(name).unwrap());
                }
            }
        }
        let hashes: HashSet<u64> = names.iter().map(|resource| seed.hash(&name("g", "v1", resource).words())).collect();
        assert_eq!(hashes.len(), names.len());
        let buckets: HashSet<u64> = hashes.iter().map(|hash| hash & 0xfff).collect();
        // 930 names into 4,096 buckets fill about 832 of them when they fall at random.
        assert!(buckets.len() > 765, "{} names in {} buckets", names.len(), buckets.len());
    }

    #[test]
    fn seeds_differ() {
        let words = name("g", "v1", "r").words();
        assert_ne!(Seed::random().hash(&words), Seed::random().hash(&words));
    }
}
