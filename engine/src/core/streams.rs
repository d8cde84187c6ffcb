//! Stream id -> exchange, for one connection: open addressing on the id itself, no hashing.
//!
//! Ids of one connection are all odd and rise by two in practice, so `id / 2` masked is a direct hit; a client that picks
//! colliding ids only makes its own look-ups walk at most its own streams.

use super::ExchangeKey;

const EMPTY: (u32, ExchangeKey) = (0, ExchangeKey::NONE);

/// The open streams of a connection. `len * 2 <= slots.len()` whenever it is not empty.
#[derive(Default)]
pub(crate) struct Streams {
    slots: Vec<(u32, ExchangeKey)>,
    len: usize,
}

impl Streams {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(crate) fn get(&self, id: u32) -> Option<ExchangeKey> {
        let mut at = self.home(id)?;
        while self.slots[at].0 != id {
            if self.slots[at].0 == 0 {
                return None;
            }
            at = self.next(at);
        }
        Some(self.slots[at].1)
    }

    /// `id` is not zero and not in the table.
    pub(crate) fn insert(&mut self, id: u32, key: ExchangeKey) {
        if (self.len + 1) * 2 > self.slots.len() {
            self.grow();
        }
        self.place(id, key);
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, id: u32) {
        let Some(mut at) = self.home(id) else { return };
        while self.slots[at].0 != id {
            if self.slots[at].0 == 0 {
                return;
            }
            at = self.next(at);
        }
        self.slots[at] = EMPTY;
        self.len -= 1;
        // Close the gap: an entry behind it may have been pushed past its home by the one that left.
        let mut behind = self.next(at);
        while self.slots[behind].0 != 0 {
            let (id, key) = std::mem::replace(&mut self.slots[behind], EMPTY);
            self.place(id, key);
            behind = self.next(behind);
        }
    }

    /// Gives the table back when no stream is open: an idle connection holds nothing.
    pub(crate) fn release(&mut self) {
        if self.len == 0 {
            self.slots = Vec::new();
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, ExchangeKey)> + '_ {
        self.slots.iter().copied().filter(|slot| slot.0 != 0)
    }

    fn place(&mut self, id: u32, key: ExchangeKey) {
        let Some(mut at) = self.home(id) else { return };
        while self.slots[at].0 != 0 {
            at = self.next(at);
        }
        self.slots[at] = (id, key);
    }

    fn grow(&mut self) {
        let size = (self.slots.len() * 2).max(8);
        let old = std::mem::replace(&mut self.slots, vec![EMPTY; size]);
        for (id, key) in old {
            if id != 0 {
                self.place(id, key);
            }
        }
    }

    fn home(&self, id: u32) -> Option<usize> {
        let mask = self.slots.len().checked_sub(1)?;
        Some((id as usize >> 1) & mask)
    }

    fn next(&self, at: usize) -> usize {
        (at + 1) & (self.slots.len() - 1)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::core::slab::Slab;

    #[test]
    fn agrees_with_a_map_even_on_colliding_ids() {
        let mut slab = Slab::new();
        let mut streams = Streams::default();
        let mut model: HashMap<u32, ExchangeKey> = HashMap::new();
        let mut seed = 7u32;
        for round in 0..20_000u32 {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let id = if seed & 1 == 0 { (seed >> 8) % 64 * 2048 + 1 } else { (seed >> 8) % 512 * 2 + 1 };
            if model.remove(&id).is_some() {
                streams.remove(id);
            } else if model.len() < 100 {
                let key = slab.insert(crate::core::exchange::Exchange::for_tests());
                model.insert(id, key);
                streams.insert(id, key);
            }
            assert_eq!(streams.len(), model.len());
            if round % 97 == 0 {
                for probe in (1..1024).step_by(2).chain((0..64).map(|n| n * 2048 + 1)) {
                    assert_eq!(streams.get(probe), model.get(&probe).copied());
                }
            }
        }
    }
}
