//! The dynamic table (RFC 7541 §2.3.2, §4), for both directions.
//!
//! Entries are numbered as they come in. A ring of slots holds the newest `count` of them, and
//! their bytes are one run of a flat buffer: eviction only moves the run's start, and when the
//! buffer is full the run moves to its front. Nothing is allocated before the first entry.
//!
//! ```text
//! bytes:  [ evicted ...... | oldest | ...... | newest ]
//!                          ^ live
//! ```

use super::block::{Field, Slot, narrow};

/// Slots of the first ring; it doubles as needed, at most to a 32nd of the table size.
const FIRST_RING: usize = 16;

/// A dynamic table.
pub(super) struct Table {
    /// Length 0 or a power of two. The entry with number `n` is at `n % ring.len()`.
    ring: Vec<Slot>,
    bytes: Vec<u8>,
    /// Where the oldest entry's bytes start in `bytes`.
    live: usize,
    /// The number of the next entry; wraps.
    next: u32,
    count: usize,
    /// Sum of the sizes of the entries; size <= size_max.
    size: usize,
    size_max: usize,
}

impl Table {
    pub(super) fn new(size_max: usize) -> Self {
        Self { ring: Vec::new(), bytes: Vec::new(), live: 0, next: 0, count: 0, size: 0, size_max }
    }

    /// The largest sum of entry sizes allowed now.
    pub(super) fn size_max(&self) -> usize {
        self.size_max
    }

    /// The sum of the entries' sizes.
    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size
    }

    /// How many entries there are.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    /// The ring's length, which is 0 or a power of two and never shrinks.
    pub(super) fn ring_len(&self) -> usize {
        self.ring.len()
    }

    /// The number of the entry that is inserted next.
    #[inline]
    pub(super) fn next(&self) -> u32 {
        self.next
    }

    /// How many entries are newer than the one with `number`; `count` or more when it was evicted.
    #[inline]
    pub(super) fn age(&self, number: u32) -> usize {
        self.next.wrapping_sub(number).wrapping_sub(1) as usize
    }

    /// The entry that `age` entries are newer than.
    #[inline]
    pub(super) fn slot(&self, age: usize) -> Option<&Slot> {
        if age >= self.count {
            return None;
        }
        self.ring.get((self.next as usize).wrapping_sub(1).wrapping_sub(age) & (self.ring.len() - 1))
    }

    /// The buffer that the slots point into.
    #[inline]
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether the entry in `slot` is `field`.
    #[inline]
    pub(super) fn is(&self, slot: &Slot, field: &Field<'_>) -> bool {
        slot.token == field.token && slot.value(&self.bytes) == field.value && self.has_name(slot, field)
    }

    /// Whether the entry in `slot` has the name of `field`.
    #[inline]
    pub(super) fn has_name(&self, slot: &Slot, field: &Field<'_>) -> bool {
        slot.token == field.token && (slot.token.implies_name() || slot.name(&self.bytes) == field.name)
    }

    /// Changes the size allowed, evicting what no longer fits (RFC 7541 §4.3).
    pub(super) fn resize(&mut self, size_max: usize) {
        self.size_max = size_max;
        self.evict_to(size_max);
    }

    /// Inserts a field with what of its name is stored and its value, evicting as needed. False if
    /// it is larger than the whole table, which is then empty (RFC 7541 §4.4).
    pub(super) fn insert(&mut self, slot: Slot, name: &[u8], value: &[u8]) -> bool {
        let size = slot.size();
        let Some(room) = self.size_max.checked_sub(size) else {
            self.evict_to(0);
            return false;
        };
        self.evict_to(room);
        if self.count == self.ring.len() {
            self.grow();
        }
        self.make_room(slot.stored_len());
        let at = self.next as usize & (self.ring.len() - 1);
        self.ring[at] = Slot { start: narrow(self.bytes.len()), ..slot };
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.next = self.next.wrapping_add(1);
        self.count += 1;
        self.size += size;
        true
    }

    fn evict_to(&mut self, size: usize) {
        while self.size > size
            && let Some(oldest) = self.slot(self.count.wrapping_sub(1))
        {
            let (bytes, counted) = (oldest.stored_len(), oldest.size());
            self.live += bytes;
            self.size -= counted;
            self.count -= 1;
        }
        if self.count == 0 {
            self.bytes.clear();
            self.live = 0;
        }
    }

    /// Moves the live run to the front when the buffer would have to grow and a quarter of it is
    /// dead, so that each byte is moved at most a few times and the buffer stays below twice the
    /// table size.
    fn make_room(&mut self, more: usize) {
        let full = self.bytes.len() + more > self.bytes.capacity();
        if !full || self.live < self.bytes.capacity() / 4 {
            return;
        }
        let dead = narrow(self.live);
        self.bytes.drain(..self.live);
        self.live = 0;
        // Slots of evicted entries are never read again, so they may be moved as well.
        for slot in &mut self.ring {
            slot.start = slot.start.wrapping_sub(dead);
        }
    }

    fn grow(&mut self) {
        let ring_len = (self.ring.len() * 2).max(FIRST_RING);
        let mut ring = vec![Slot::default(); ring_len];
        for age in 0..self.count {
            if let Some(slot) = self.slot(age) {
                ring[(self.next as usize).wrapping_sub(1).wrapping_sub(age) & (ring_len - 1)] = *slot;
            }
        }
        self.ring = ring;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Token;
    use super::*;

    fn slot(name: &[u8], value: &[u8]) -> Slot {
        let (name_len, value_len) = (narrow(name.len()), narrow(value.len()));
        Slot { name_len, value_len, token: Token::OTHER, ..Slot::default() }
    }

    #[test]
    fn an_entry_larger_than_the_table_empties_it() {
        let mut table = Table::new(100);
        assert!(table.insert(slot(b"a", b"b"), b"a", b"b"));
        assert!(!table.insert(slot(b"", &[0; 69]), b"", &[0; 69]));
        assert_eq!((table.count(), table.size()), (0, 0));
        assert!(table.insert(slot(b"", &[0; 68]), b"", &[0; 68]));
        assert_eq!((table.count(), table.size()), (1, 100));
    }

    #[test]
    fn numbers_may_wrap() {
        let mut table = Table::new(4096);
        table.next = u32::MAX - 2;
        for value in 0..100_u8 {
            assert!(table.insert(slot(b"", &[value]), b"", &[value]));
            let newest = table.slot(0).map(|slot| slot.value(table.bytes()));
            assert_eq!(newest, Some(&[value][..]));
        }
        let all: Vec<_> = (0..100).filter_map(|age| table.slot(age)).map(|slot| slot.value(table.bytes())[0]).collect();
        assert_eq!(all, (0..100).rev().collect::<Vec<_>>());
    }

    proptest! {
        /// Against the plain reading of §4: a queue of pairs.
        #[test]
        fn agrees_with_a_queue(steps in prop::collection::vec((0..90_usize, 0..300_usize, 0..12_u8), 1..400)) {
            let mut table = Table::new(1000);
            let mut queue: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            let size = |queue: &[(Vec<u8>, Vec<u8>)]| -> usize { queue.iter().map(|(n, v)| n.len() + v.len() + 32).sum() };
            let mut size_max = 1000;
            for (at, (name, value, resize)) in steps.into_iter().enumerate() {
                if resize == 0 {
                    size_max = value * 4;
                    table.resize(size_max);
                } else {
                    let byte = u8::try_from(at % 251).expect("small");
                    let (name, value) = (vec![byte; name], vec![!byte; value / usize::from(resize)]);
                    table.insert(slot(&name, &value), &name, &value);
                    queue.push((name, value));
                }
                while size(&queue) > size_max {
                    queue.remove(0);
                }
                prop_assert_eq!((table.count(), table.size()), (queue.len(), size(&queue)));
                for (age, (name, value)) in queue.iter().rev().enumerate() {
                    let slot = table.slot(age).expect("live");
                    prop_assert_eq!(slot.name(table.bytes()), &name[..]);
                    prop_assert_eq!(slot.value(table.bytes()), &value[..]);
                }
                prop_assert!(table.slot(queue.len()).is_none());
                prop_assert!(table.bytes.capacity() <= 4096);
            }
        }
    }
}
