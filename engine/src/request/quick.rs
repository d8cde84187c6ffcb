//! The requests that nearly all are: a resource, by a path without escapes, empty segments and deprecated verbs.
//!
//! What always holds: what is read here means the same as by the rules of [`Target::parse_any`] (a test compares them), and `None` means
//! only that it is not for here.

use std::ops::Range;

use discovery::Name;

use super::equal::equal;
use super::text::Text;
use super::{Target, is_long_running, is_true, is_watch};

/// Reads a plain path of a resource. Always inlined: a target that is returned through memory is written in pieces and read in larger ones a
/// moment later, which makes the processor wait (5 ns of 60).
#[inline(always)]
pub(super) fn read<'a>(method: &[u8], path: &'a [u8], text: &'a mut Text) -> Option<Target<'a>> {
    let marks = text.take(path);
    let end = (marks.ends.trailing_zeros() as usize).min(path.len());
    let (path, query) = match path.get(end) {
        None => (path, &[][..]),
        Some(b'?') => (&path[..end], &path[end + 1..]),
        Some(_) => return None,
    };
    let is_core = path.starts_with(b"/api/");
    if !is_core && !path.starts_with(b"/apis/") {
        return None;
    }
    let root = if is_core { b"/api/".len() } else { b"/apis/".len() };
    let slashes = marks.slashes & (u128::MAX >> (Text::LEN - end));
    if slashes & slashes >> 1 != 0 || path.ends_with(b"/") {
        return None;
    }
    let (group, version) = group_version(slashes, root, is_core)?;
    let after = version.end + 1;
    let (resource, start, long_running) = resource(method, path, query, after, cuts(slashes, after, end))?;
    let group = path.get(root..group)?;
    let name = Name::cut([group, path.get(version)?, resource], text.from(root)?, text.from(start)?);
    Some(Target::Resource { name, long_running })
}

/// Where the group ends and where the version is. Both are near the start, or the path is not for here.
#[inline]
fn group_version(slashes: u128, root: usize, is_core: bool) -> Option<(usize, Range<usize>)> {
    #[expect(clippy::cast_possible_truncation, reason = "the first 64 bytes, on purpose")]
    let near = slashes as u64 >> root;
    let next = near & near.wrapping_sub(1);
    let at = |mask: u64| root + mask.trailing_zeros() as usize;
    let (group, version, mark) = if is_core { (root, root, near) } else { (at(near), at(near) + 1, next) };
    (mark != 0).then(|| (group, version..at(mark)))
}

/// Steps 6 to 8: which resource, where it starts, and whether the request has an end. `cuts` are the slashes behind `after`. Always inlined,
/// as [`read`] is.
#[inline(always)]
fn resource<'a>(
    method: &[u8],
    path: &'a [u8],
    query: &[u8],
    after: usize,
    [first, second, third, fourth, fifth]: [usize; 5],
) -> Option<(&'a [u8], usize, bool)> {
    // Not empty: a slash neither follows another one nor ends the path.
    let (mut start, mut resource) = (after, &path[after..first]);
    // From behind a slash to the next one; none where the path ended before.
    let (mut name, mut subresource) = (path.get(first + 1..second), path.get(second + 1..third));
    // (Made without a branch, this choice costs more than it does mispredicted.)
    if resource == b"namespaces"
        && let Some(in_namespace) = subresource
        && !matches!(in_namespace, b"status" | b"finalize")
    {
        (start, resource) = (second + 1, in_namespace);
        (name, subresource) = (path.get(third + 1..fourth), path.get(fourth + 1..fifth));
    } else if matches!(resource, b"watch" | b"proxy") {
        return None;
    }
    let long_running = match name {
        None => is_watch(method, query),
        Some(_) => subresource.is_some_and(is_long_running),
    };
    Some((resource, start, long_running))
}

/// Where the next five slashes are from `start` on; behind the last one, the end.
#[inline]
fn cuts(slashes: u128, start: usize, end: usize) -> [usize; 5] {
    let Ok(mut near) = u64::try_from(slashes >> start) else {
        return far_cuts(slashes >> start, start, end);
    };
    std::array::from_fn(|_| {
        let at = if near == 0 { end } else { start + near.trailing_zeros() as usize };
        near &= near.wrapping_sub(1);
        at
    })
}

/// The same where some are so far behind that they are not in 64 bits.
#[cold]
fn far_cuts(mut slashes: u128, start: usize, end: usize) -> [usize; 5] {
    std::array::from_fn(|_| {
        let at = (start + slashes.trailing_zeros() as usize).min(end);
        slashes &= slashes.wrapping_sub(1);
        at
    })
}

/// Step 8's `watch`, of a query in which nothing is escaped before it; `None` is for [`super::asks_to_watch`].
#[inline]
pub(super) fn asks_to_watch(query: &[u8]) -> Option<bool> {
    // Where a key starts: at the start of the query, and behind each `&`.
    let mut first = 1;
    let mut rest = query;
    while !rest.is_empty() {
        let mut padded = [0; 16];
        let (block, behind) = rest.split_first_chunk().unwrap_or_else(|| {
            padded[..rest.len()].copy_from_slice(rest);
            (&padded, &[])
        });
        if equal(block, b'%') | equal(block, b';') != 0 {
            return None;
        }
        let starts = u32::from(equal(block, b'&')) << 1 | first;
        let mut keys = starts & u32::from(equal(block, b'w'));
        while keys != 0 {
            if let Some(value) = value_of_watch(&rest[keys.trailing_zeros() as usize..]) {
                return value;
            }
            keys &= keys - 1;
        }
        first = starts >> 16;
        rest = behind;
    }
    Some(false)
}

/// Whether the pair at the start of `pairs` is `watch`, and then what it says, unless something is escaped.
#[inline]
fn value_of_watch(pairs: &[u8]) -> Option<Option<bool>> {
    let rest = pairs.strip_prefix(b"watch")?;
    let pair = rest.split(|byte| *byte == b'&').next().unwrap_or_default();
    let value = match pair {
        [] => pair,
        [b'=', value @ ..] => value,
        _ => return None,
    };
    let is_plain = !value.iter().any(|byte| matches!(byte, b'%' | b';'));
    Some(is_plain.then(|| is_true(value.iter().copied())))
}
