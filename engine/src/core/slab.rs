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

/// The table. `len <= places`, and `free` names exactly the empty places.
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Self { places: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn insert(&mut self, entry: T) -> Key<T> {
        self.len += 1;
        let index = if let Some(index) = self.free.pop() {
            self.places[index as usize].entry = Some(entry);
            index
        } else {
            self.places.push(Place { generation: 0, entry: Some(entry) });
            #[allow(clippy::cast_possible_truncation, reason = "entries are connections and exchanges, limited far below 2^32")]
            let index = (self.places.len() - 1) as u32;
            index
        };
        self.key(index)
    }

    pub(crate) fn remove(&mut self, key: Key<T>) -> Option<T> {
        let place = self.places.get_mut(key.index()).filter(|place| place.generation == key.generation)?;
        let entry = place.entry.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        self.len -= 1;
        Some(entry)
    }

    pub(crate) fn get(&self, key: Key<T>) -> Option<&T> {
        let place = self.places.get(key.index())?;
        if place.generation == key.generation { place.entry.as_ref() } else { None }
    }

    pub(crate) fn get_mut(&mut self, key: Key<T>) -> Option<&mut T> {
        let place = self.places.get_mut(key.index())?;
        if place.generation == key.generation { place.entry.as_mut() } else { None }
    }

    /// The key of the `at`-th place, when it is taken; for walks that change the table as they go.
    pub(crate) fn key_at(&self, at: usize) -> Option<Key<T>> {
        self.places.get(at)?.entry.as_ref()?;
        u32::try_from(at).ok().map(|index| self.key(index))
    }

    /// One past the last place that was ever taken.
    pub(crate) fn places(&self) -> usize {
        self.places.len()
    }

    fn key(&self, index: u32) -> Key<T> {
        Key { index, generation: self.places[index as usize].generation, of: std::marker::PhantomData }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
