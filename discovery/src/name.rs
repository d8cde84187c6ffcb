//! The name of a resource, and the form in which tables look it up.
//!
//! Twelve words, whatever the name: hashing and comparing them is straight-line code. A loop over bytes, or a choice by length, is
//! mispredicted at nearly every request, and that costs more than all else of a lookup.
//!
//! What always holds: two names have the same words exactly when group, version and resource are the same, or when both are
//! [long](Words::is_long). No part of a name has a slash in it: a table takes none that has, and a path is cut at slashes.

use std::fmt;

/// The longest group, version or resource. Kubernetes allows a DNS subdomain (253 bytes) for a group and less for the others.
pub(crate) const NAME_MAX: usize = 253;

/// A group/version/resource as it stands in a request's path.
#[derive(Clone, Copy)]
pub struct Name<'a> {
    /// The API group; empty for the core group.
    pub group: &'a [u8],
    /// The version.
    pub version: &'a [u8],
    /// The resource, without subresource.
    pub resource: &'a [u8],
    on: Option<On<'a>>,
}

/// Where a name stands in a path that can be read beyond its end.
#[derive(Clone, Copy)]
struct On<'a> {
    group_version: &'a [u8; Name::GROUP_VERSION],
    resource: &'a [u8; Name::RESOURCE],
}

impl<'a> Name<'a> {
    /// Bytes that words have for `group/version`. The longest that Kubernetes itself has are 31 long, those of well-known operators 39.
    pub const GROUP_VERSION: usize = 48;
    /// Bytes that words have for the resource. The longest that Kubernetes itself has is 33 long.
    pub const RESOURCE: usize = 40;

    /// A name from its parts.
    pub fn new(group: &'a [u8], version: &'a [u8], resource: &'a [u8]) -> Self {
        Self { group, version, resource, on: None }
    }

    /// The same from a path that has `group/version` (`version` alone for the core group) and the resource in it: what stands in the path
    /// from there on. What follows these parts does not matter.
    #[inline]
    pub fn cut(
        [group, version, resource]: [&'a [u8]; 3],
        group_version_on: &'a [u8; Name::GROUP_VERSION],
        resource_on: &'a [u8; Name::RESOURCE],
    ) -> Self {
        debug_assert!(group_version_on.starts_with(&group[..group.len().min(Name::GROUP_VERSION)]));
        debug_assert!(resource_on.starts_with(&resource[..resource.len().min(Name::RESOURCE)]));
        Self { group, version, resource, on: Some(On { group_version: group_version_on, resource: resource_on }) }
    }

    /// The name that stands for the whole group-version: that of no resource.
    pub(crate) fn group_version(&self) -> Self {
        Self { resource: &[], ..*self }
    }

    /// What it is looked up by.
    #[inline]
    pub(crate) fn words(&self) -> Words {
        let group_version = self.group.len() + usize::from(!self.group.is_empty()) + self.version.len();
        match self.on {
            Some(on) => Words::of(on, group_version, self.resource.len()),
            None => self.copied(group_version),
        }
    }

    #[cold]
    fn copied(&self, group_version: usize) -> Words {
        if group_version > Name::GROUP_VERSION || self.resource.len() > Name::RESOURCE {
            return Words::LONG;
        }
        let (mut group_version_on, mut resource_on) = ([b'/'; Name::GROUP_VERSION], [0; Name::RESOURCE]);
        group_version_on[..self.group.len()].copy_from_slice(self.group);
        group_version_on[group_version - self.version.len()..group_version].copy_from_slice(self.version);
        resource_on[..self.resource.len()].copy_from_slice(self.resource);
        Words::of(On { group_version: &group_version_on, resource: &resource_on }, group_version, self.resource.len())
    }
}

/// Also by what it is looked up by, which follows from the parts: a name that was cut wrongly is another one.
impl PartialEq for Name<'_> {
    fn eq(&self, other: &Self) -> bool {
        (self.group, self.version, self.resource) == (other.group, other.version, other.resource) && self.words() == other.words()
    }
}

impl Eq for Name<'_> {}

/// `group/version/resource`.
impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [group, version, resource] = [self.group, self.version, self.resource].map(String::from_utf8_lossy);
        write!(f, "{group}/{version}/{resource}")
    }
}

/// The words of `group/version`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct Front([u64; 6]);

/// The words of the resource and the lengths.
#[derive(Clone, Copy)]
pub(crate) struct Back([u64; 6]);

/// `group/version` (six words) and resource (five), each padded with zeros, and their lengths, without which a name could end in zeros.
#[derive(Clone, Copy)]
pub(crate) struct Words([u64; 12]);

/// Word by word and without a call: what was written a moment ago as words is slow to be read in larger pieces.
impl PartialEq for Words {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().zip(&other.0).fold(0, |differing, (one, other)| differing | (one ^ other)) == 0
    }
}

impl Words {
    /// The words of every name that they have no room for.
    const LONG: Self = Self([u64::MAX; 12]);

    #[inline]
    fn of(on: On<'_>, group_version: usize, resource: usize) -> Self {
        if group_version > Name::GROUP_VERSION || resource > Name::RESOURCE {
            return Self::LONG;
        }
        let mut words = [0; 12];
        pad(on.group_version, group_version, &mut words[..6]);
        pad(on.resource, resource, &mut words[6..11]);
        words[11] = (group_version << 8 | resource) as u64;
        Self(words)
    }

    /// The words of the whole group-version of a name that is not long.
    #[inline]
    pub(crate) fn group_version(mut self) -> Self {
        self.0[6..11].fill(0);
        self.0[11] &= !0xff;
        self
    }

    /// From the two halves.
    #[inline]
    pub(crate) fn new(Front([a, b, c, d, e, f]): Front, Back([g, h, i, j, k, l]): Back) -> Self {
        Self([a, b, c, d, e, f, g, h, i, j, k, l])
    }

    /// The half of `group/version`.
    pub(crate) fn front(&self) -> Front {
        let [a, b, c, d, e, f, ..] = self.0;
        Front([a, b, c, d, e, f])
    }

    /// The half of the resource and the lengths.
    pub(crate) fn back(&self) -> Back {
        let [.., g, h, i, j, k, l] = self.0;
        Back([g, h, i, j, k, l])
    }

    /// Is it a name that words have no room for?
    #[inline]
    pub(crate) fn is_long(&self) -> bool {
        self.0[11] == u64::MAX
    }

    /// The words themselves.
    #[inline]
    pub(crate) fn get(&self) -> &[u64; 12] {
        &self.0
    }

    /// `group/version` and the resource, as they were.
    pub(crate) fn parts(&self) -> [Vec<u8>; 2] {
        let bytes: Vec<u8> = self.0[..11].iter().flat_map(|word| word.to_le_bytes()).collect();
        let [resource, group_version, ..] = self.0[11].to_le_bytes().map(usize::from);
        [bytes[..group_version].into(), bytes[Name::GROUP_VERSION..][..resource].into()]
    }
}

/// The first `len` bytes as words, and zeros behind them. `len <= bytes.len()`, which is at most `MASK.len() / 2`.
#[inline]
fn pad(bytes: &[u8], len: usize, words: &mut [u64]) {
    const ONES: usize = Name::GROUP_VERSION;
    /// From `ONES - len` on: so many ones, then zeros.
    const MASK: [u8; 2 * ONES] = {
        let mut mask = [0; 2 * ONES];
        let mut at = 0;
        while at < ONES {
            mask[at] = 0xff;
            at += 1;
        }
        mask
    };
    let (bytes, _) = bytes.as_chunks();
    let (mask, _) = MASK[ONES - len..].as_chunks();
    for ((word, bytes), mask) in words.iter_mut().zip(bytes).zip(mask) {
        *word = u64::from_le_bytes(*bytes) & u64::from_le_bytes(*mask);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_longest_and_one_more() {
        let name = |group: usize, resource: usize| Name::new(&[b'g'; 300][..group], b"v1", &[b'r'; 300][..resource]).words().is_long();
        assert!(!name(45, 40));
        assert!(name(46, 40) && name(45, 41) && name(300, 0) && name(0, 300));
        assert!(!Name::new(&[b'g'; 45], b"v1", &[b'r'; 41]).group_version().words().is_long());
    }

    proptest! {
        #[test]
        fn words_are_the_same_when_the_parts_are(
            one in ("[ab]{0,3}|[a]{40,50}", "[a]{1,3}", "[ab\0]{0,3}|[a]{38,42}"),
            other in ("[ab]{0,3}|[a]{40,50}", "[a]{1,3}", "[ab\0]{0,3}|[a]{38,42}"),
            behind in "[ab/]{100}",
        ) {
            let name = |(group, version, resource): &(String, String, String)| {
                Name::new(group.as_bytes(), version.as_bytes(), resource.as_bytes()).words()
            };
            let (a, b) = (name(&one), name(&other));
            prop_assert_eq!(a == b, one == other || (a.is_long() && b.is_long()));

            let (group, version, resource) = &one;
            let path = if group.is_empty() { format!("{version}{behind}") } else { format!("{group}/{version}{behind}") };
            let resource_on = format!("{resource}{behind}");
            let parts = [group, version, resource].map(|part| part.as_bytes());
            let cut = Name::cut(parts, path.as_bytes().first_chunk().unwrap(), resource_on.as_bytes().first_chunk().unwrap());
            prop_assert!(cut.words() == a);
            if !a.is_long() {
                let [group_version, back] = a.parts();
                prop_assert_eq!(group_version.as_slice(), &path.as_bytes()[..path.len() - behind.len()]);
                prop_assert_eq!(back.as_slice(), resource.as_bytes());
            }
        }
    }
}
