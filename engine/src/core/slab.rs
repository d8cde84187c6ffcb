//! A table of entries with generational keys: a key that outlives its entry finds nothing.

/// Names an entry; never matches a later entry in the same place.
pub struct Key<T> {
    index: u32,
    generation: u32,
    of: std::marker::PhantomData<fn(T)>,
}

impl<T> Key<T> {
    /// A key that names nothing.
    pub(crate) const NONE: Self = Self { index: u32::MAX, generation: u32::MAX, of: std::marker::PhantomData };

    /// The place in the table, for tables kept beside it.
    pub(crate) fn index(self) -> usize {
        self.index as usize
    }
}

impl<T> Clone for Key<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Key<T> {}

impl<T> PartialEq for Key<T> {
    fn eq(&self, other: &Self) -> bool {
        self.index == other.index && self.generation == other.generation
    }
}

impl<T> Eq for Key<T> {}

impl<T> std::fmt::Debug for Key<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

struct Place<T> {
    generation: u32,
    entry: Option<T>,
}

/// Places of a page: the table grows by one page, so growing never copies entries and never stalls the shard.
const PAGE: usize = 256;

/// The table. `free` names exactly the empty places of the pages' first `places`; `len + free.len() == places`.
pub(crate) struct Slab<T> {
    pages: Vec<Vec<Place<T>>>,
    places: usize,
    free: Vec<u32>,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { pages: Vec::new(), places: 0, free: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, entry: T) -> Key<T> {
        self.len += 1;
        let index = self.free.pop().unwrap_or_else(|| self.new_place());
        let generation = self.place_mut(index).map_or(u32::MAX, |place| {
            place.entry = Some(entry);
            place.generation
        });
        Key { index, generation, of: std::marker::PhantomData }
    }

    pub(crate) fn remove(&mut self, key: Key<T>) -> Option<T> {
        let place = self.place_mut(key.index).filter(|place| place.generation == key.generation)?;
        let entry = place.entry.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        self.len -= 1;
        Some(entry)
    }

    pub(crate) fn get(&self, key: Key<T>) -> Option<&T> {
        let place = self.place(key.index)?;
        if place.generation == key.generation { place.entry.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let place = self.place_mut(key.index)?;
        if place.generation == key.generation { place.entry.as_mut() } else { None }
    }

    /// The key of the `at`-th place, when it is taken; for walks that change the table as they go.
    pub(crate) fn key_at(&self, at: usize) -> Option<Key<T>> {
        let index = u32::try_from(at).ok()?;
        let place = self.place(index)?;
        place.entry.as_ref()?;
        Some(Key { index, generation: place.generation, of: std::marker::PhantomData })
    }

    /// One past the last place that was ever taken.
    pub(crate) fn places(&self) -> usize {
        self.places
    }

    fn new_place(&mut self) -> u32 {
        let at = self.places;
        if at.is_multiple_of(PAGE) {
            self.pages.push(Vec::with_capacity(PAGE));
        }
        if let Some(page) = self.pages.last_mut() {
            page.push(Place { generation: 0, entry: None });
        }
        self.places += 1;
        #[allow(clippy::cast_possible_truncation, reason = "entries are connections and exchanges, limited far below 2^32")]
        let index = at as u32;
        index
    }

    fn place(&self, index: u32) -> Option<&Place<T>> {
        self.pages.get(index as usize / PAGE)?.get(index as usize % PAGE)
    }

    fn place_mut(&mut self, index: u32) -> Option<&mut Place<T>> {
        self.pages.get_mut(index as usize / PAGE)?.get_mut(index as usize % PAGE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grows_by_pages() {
        let mut slab = Slab::new();
        let keys: Vec<_> = (0..PAGE * 2 + 7).map(|n| slab.insert(n)).collect();
        assert!(keys.iter().enumerate().all(|(n, &key)| slab.get(key) == Some(&n) && slab.key_at(n) == Some(key)));
        assert_eq!((slab.places(), slab.key_at(slab.places())), (keys.len(), None));
    }

    #[test]
    fn an_old_key_finds_nothing() {
        let mut slab = Slab::new();
        let first = slab.insert("a");
        assert_eq!(slab.remove(first), Some("a"));
        let second = slab.insert("b");
        assert_eq!((first.index(), slab.remove(first)), (second.index(), None));
        assert_eq!(slab.get(first), None);
        assert_eq!((slab.get(second), slab.len()), (Some(&"b"), 1));
        assert_eq!(slab.get(Key::NONE), None);
    }
}
