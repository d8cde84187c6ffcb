//! The beginning of a path, where its slashes and its end are, and a copy that can be read beyond that end.
//!
//! Everything is found for sixteen bytes at once, and only the path's length decides what is done: a loop over bytes mispredicts at nearly
//! every slash, and costs more than all the rest of routing.

use discovery::Name;

use super::equal::equal;

/// The first [`Text::LEN`] bytes of a path.
pub(super) struct Text {
    /// A copy, and room behind it: the longest part of a name can be read from any place, whatever follows it.
    bytes: [u8; Self::LEN + Name::GROUP_VERSION],
}

/// One bit for each byte of a text, the first one lowest.
pub(super) struct Marks {
    /// Is it a slash?
    pub(super) slashes: u128,
    /// Is it a `?` or a `%`, where a plain path ends?
    pub(super) ends: u128,
}

impl Text {
    /// How much of a path it has: the bits of a mask.
    pub(super) const LEN: usize = 128;
    /// What is looked at together.
    const BLOCK: usize = 64;

    /// Takes the beginning of a path. What is behind it stays what it was.
    #[inline]
    pub(super) fn take(&mut self, path: &[u8]) -> Marks {
        if path.len() < 16 {
            let mut padded = [0; 16];
            padded[..path.len()].copy_from_slice(path);
            return self.add(&padded, 0);
        }
        let mut marks = self.add(path, 0);
        // What is behind an end is nobody's concern.
        if path.len() > Self::BLOCK && marks.ends == 0 {
            // The second block overlaps the first when there is not all of it.
            let start = (path.len() - Self::BLOCK).min(Self::BLOCK);
            let more = self.add(&path[start..], start);
            marks.slashes |= more.slashes;
            marks.ends |= more.ends;
        }
        marks
    }

    /// The bytes from `start` on. None beyond the path's beginning.
    #[inline]
    pub(super) fn from<const N: usize>(&self, start: usize) -> Option<&[u8; N]> {
        self.bytes.get(start..)?.first_chunk()
    }

    /// Takes a block that has at least sixteen bytes: four times sixteen, the same ones again where there are fewer.
    #[inline]
    fn add(&mut self, block: &[u8], start: usize) -> Marks {
        let (mut slashes, mut ends) = (0, 0);
        for nth in 0..4 {
            let at = (16 * nth).min(block.len() - 16);
            // All of them are there: `at + 16 <= block.len()`, and `start + at + 16 <= LEN`.
            let (Some(bytes), Some(copy)) = (block[at..].first_chunk(), self.bytes[start + at..].first_chunk_mut()) else { continue };
            *copy = *bytes;
            slashes |= u64::from(equal(bytes, b'/')) << at;
            ends |= u64::from(equal(bytes, b'?') | equal(bytes, b'%')) << at;
        }
        Marks { slashes: u128::from(slashes) << start, ends: u128::from(ends) << start }
    }
}

impl Default for Text {
    fn default() -> Self {
        Self { bytes: [0; _] }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn marks_are_where_the_bytes_are(path in "[/a]{0,150}[/?%a]{0,50}") {
            let path = path.as_bytes();
            let mut text = Text::default();
            let marks = text.take(path);
            let end = path.iter().position(|byte| matches!(byte, b'?' | b'%'));
            for at in 0..end.map_or(Text::LEN, |end| (end + 1).min(Text::LEN)) {
                let byte = path.get(at).copied();
                prop_assert_eq!(marks.slashes >> at & 1 == 1, byte == Some(b'/'), "{}", at);
                prop_assert_eq!(marks.ends >> at & 1 == 1, matches!(byte, Some(b'?' | b'%')), "{}", at);
                let copied = text.from::<1>(at).unwrap()[0];
                prop_assert_eq!(copied, byte.unwrap_or(0));
            }
        }
    }
}
