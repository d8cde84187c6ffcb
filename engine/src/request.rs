//! What a request asks for: method and `:path` to a [`Target`].
//!
//! The rules are kube-apiserver's `RequestInfo` (kubernetes.md §3.5), because a request must mean here exactly
//! what it will mean there. What always holds: the path is decoded once and never cleaned (no dot segments
//! removed, no `//` merged, `;` is an ordinary byte), names are compared byte for byte, and only the part
//! before the first `?` decides where a request goes. The raw bytes are what is forwarded.
//!
//! It deliberately does not find out names, namespaces or verbs beyond what routing and time limits need, and
//! it does not refuse what a server will refuse by itself.
//!
//! "Step N" below is a step of §3.5. More than half of the file is tables of paths.

use std::fmt;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A resource: any server that serves the GVR can answer.
    Resource {
        /// The API group; empty for the core group.
        group: &'a [u8],
        /// The version.
        version: &'a [u8],
        /// The resource, without subresource.
        resource: &'a [u8],
        /// Whether the apiserver sets no time limit: a watch, a proxy, a log or a terminal (kubernetes.md §3.7).
        long_running: bool,
    },
    /// A discovery, OpenAPI or version path: any server could answer.
    Discovery,
    /// Health, metrics, debug and everything else: only about the server that is asked.
    Own {
        /// A profile runs as long as it was asked to (kubernetes.md §3.7).
        long_running: bool,
    },
}

impl<'a> Target<'a> {
    const OWN: Self = Self::Own { long_running: false };

    /// Reads a request. `path` is the raw `:path` with its query; `scratch` is written only when the path has
    /// escapes, and keeps its capacity for the next request.
    pub fn parse(method: &[u8], path: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<Self, BadPath> {
        if path == b"*" {
            // RFC 9110 §7.1: OPTIONS about the server itself.
            return Ok(Self::OWN);
        }
        if path.first() != Some(&b'/') {
            return Err(BadPath);
        }
        let (decoded, query) = match find_special(path) {
            None => (path, &[][..]),
            Some(at) if path[at] == b'?' => (&path[..at], &path[at + 1..]),
            Some(_) => {
                let (raw, query) = cut(path, b'?');
                (decode(raw, scratch)?, query)
            }
        };
        Ok(Self::classify(method, decoded, query))
    }

    /// Does the apiserver set no time limit for it?
    pub fn is_long_running(&self) -> bool {
        matches!(self, Self::Resource { long_running: true, .. } | Self::Own { long_running: true })
    }

    /// Steps 1 to 3: the path's prefix says whether it is about a resource.
    fn classify(method: &[u8], path: &'a [u8], query: &[u8]) -> Self {
        let mut parts = Parts::of(path);
        let group = match parts.next() {
            Some(b"api") => Some(&[][..]),
            Some(b"apis") => parts.next(),
            Some(b"openapi") => return Self::Discovery,
            Some(b"version") if parts.next().is_none() => return Self::Discovery,
            Some(b"debug") => return Self::Own { long_running: parts.next() == Some(b"pprof") },
            _ => return Self::OWN,
        };
        match (group, parts.next(), parts.next()) {
            (Some(group), Some(version), Some(first)) => Self::resource(method, query, [group, version, first], parts),
            _ => Self::Discovery,
        }
    }

    /// Steps 4 to 8: which resource, and whether the request has an end. `rest` follows `first`.
    fn resource(method: &[u8], query: &[u8], [group, version, first]: [&'a [u8]; 3], mut rest: Parts<'a>) -> Self {
        // Step 5: the deprecated prefix verbs, whatever the method. Alone they are the apiserver's own 500.
        let prefix_verb = matches!(first, b"watch" | b"proxy");
        let mut resource = first;
        if prefix_verb {
            let Some(next) = rest.next() else {
                return Self::OWN;
            };
            resource = next;
        }
        let (mut name, mut subresource) = (rest.next(), rest.next());
        // Step 6: a namespace in front, unless the namespace itself is meant.
        if resource == b"namespaces"
            && let Some(third) = subresource
            && !matches!(third, b"status" | b"finalize")
        {
            resource = third;
            (name, subresource) = (rest.next(), rest.next());
        }
        let nameless = name.is_none_or(<[u8]>::is_empty);
        // Step 8: only a `get` without a name can be a watch; a named object is read once, whatever the query says.
        let long_running = prefix_verb
            || subresource.is_some_and(is_long_running)
            || (nameless && matches!(method, b"GET" | b"HEAD") && asks_to_watch(query));
        Self::Resource { group, version, resource, long_running }
    }
}

/// A path that no server can read: the answer is 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadPath;

impl fmt::Display for BadPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("request path has a bad escape or does not start with a slash")
    }
}

impl std::error::Error for BadPath {}

/// The subresources without a time limit (kubernetes.md §3.7).
fn is_long_running(subresource: &[u8]) -> bool {
    matches!(subresource, b"attach" | b"exec" | b"proxy" | b"log" | b"portforward")
}

/// Step 8's `watch`: the key is there and its first value is neither `0` nor `false`; an empty value is true. Pairs
/// that Go's `url.ParseQuery` drops (with a `;` or a bad escape) are not there.
fn asks_to_watch(query: &[u8]) -> bool {
    let first = query.split(|byte| *byte == b'&').map(|pair| cut(pair, b'=')).find(|(key, value)| {
        unescape(key).eq(b"watch".iter().copied().map(Some)) && !value.contains(&b';') && unescape(value).all(|byte| byte.is_some())
    });
    let Some((_, value)) = first else {
        return false;
    };
    let lower = || unescape(value).flatten().map(|byte| byte.to_ascii_lowercase());
    !lower().eq(*b"0") && !lower().eq(*b"false")
}

/// The bytes of a part of a query, `None` in place of a bad escape.
fn unescape(escaped: &[u8]) -> impl Iterator<Item = Option<u8>> {
    let mut rest = escaped;
    std::iter::from_fn(move || {
        let (byte, after) = match rest {
            [] => return None,
            [b'%', after @ ..] => match escaped_byte(after) {
                Some((byte, after)) => (Some(byte), after),
                None => (None, after),
            },
            [b'+', after @ ..] => (Some(b' '), after),
            [byte, after @ ..] => (Some(*byte), after),
        };
        rest = after;
        Some(byte)
    })
}

/// Undoes percent-encoding once, as Go's `URL.Path` does: `%2F` is a slash from here on, `%252F` is not.
fn decode<'a>(raw: &[u8], scratch: &'a mut Vec<u8>) -> Result<&'a [u8], BadPath> {
    scratch.clear();
    let mut rest = raw;
    while let Some(at) = rest.iter().position(|byte| *byte == b'%') {
        scratch.extend_from_slice(&rest[..at]);
        let (byte, after) = escaped_byte(&rest[at + 1..]).ok_or(BadPath)?;
        scratch.push(byte);
        rest = after;
    }
    scratch.extend_from_slice(rest);
    Ok(scratch)
}

/// The byte that the two digits after a `%` stand for, and what follows them.
fn escaped_byte(after_percent: &[u8]) -> Option<(u8, &[u8])> {
    let ([high, low], rest) = after_percent.split_first_chunk()?;
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        b'A'..=b'F' => Some(byte - b'A' + 10),
        _ => None,
    };
    Some((digit(*high)? << 4 | digit(*low)?, rest))
}

/// The segments of a path (step 1): slashes at both ends do not count, empty segments between two do, so
/// `/api/v1//pods` asks for the resource with no name.
///
/// Slashes are found 64 bytes at a time without branches. Segment by segment, a loop over bytes mispredicts at nearly
/// every slash and costs more than all the rest of routing.
struct Parts<'a> {
    path: &'a [u8],
    /// Where the next segment starts; `path.len() + 1` after the last one.
    start: usize,
    /// The block of 64 bytes that `slashes` is about.
    block: usize,
    /// The slashes of the block that are not passed yet.
    slashes: u64,
}

impl<'a> Parts<'a> {
    fn of(mut path: &'a [u8]) -> Self {
        while let [b'/', rest @ ..] = path {
            path = rest;
        }
        while let [rest @ .., b'/'] = path {
            path = rest;
        }
        let slashes = slashes(&path[..path.len().min(64)]);
        Self { path, start: 0, block: 0, slashes }
    }

    #[inline]
    fn next(&mut self) -> Option<&'a [u8]> {
        if self.slashes == 0 && !self.next_block() {
            let last = self.path.get(self.start..);
            self.start = self.path.len() + 1;
            return last;
        }
        let end = self.block + self.slashes.trailing_zeros() as usize;
        self.slashes &= self.slashes - 1;
        let part = self.path.get(self.start..end);
        self.start = end + 1;
        part
    }

    /// Moves on to the next block with a slash in it; `false` when there is none.
    #[inline]
    fn next_block(&mut self) -> bool {
        self.block + 64 < self.path.len() && self.seek_block()
    }

    /// Most paths are one block, and `next` is inlined nine times.
    #[cold]
    fn seek_block(&mut self) -> bool {
        while self.slashes == 0 {
            let Some(rest) = self.path.get(self.block + 64..) else {
                return false;
            };
            self.block += 64;
            self.slashes = slashes(&rest[..rest.len().min(64)]);
        }
        true
    }
}

/// Where the path ends or begins to be escaped: the first `?` or `%`.
#[inline]
fn find_special(path: &[u8]) -> Option<usize> {
    let is_special = |byte: &u8| (*byte == b'?') | (*byte == b'%');
    // Looks at all sixteen bytes, because then the compiler looks at them at once.
    let any_special = |bytes: &[u8; 16]| bytes.iter().fold(false, |any, byte| any | is_special(byte));
    let (blocks, tail) = path.as_chunks();
    let clean = blocks.iter().take_while(|block| !any_special(block)).count();
    if clean == blocks.len() && (tail.is_empty() || path.last_chunk().is_some_and(|last| !any_special(last))) {
        return None;
    }
    let at = path[16 * clean..].iter().position(is_special)?;
    Some(16 * clean + at)
}

/// One bit for each of at most 64 bytes: whether it is a slash.
#[inline]
fn slashes(bytes: &[u8]) -> u64 {
    let in_word = |word| {
        // The multiplication gathers the eight top bits in the top byte, that of the first byte lowest.
        (equal_bytes(word, b'/') >> 7).wrapping_mul(0x0102_0408_1020_4080) >> 56
    };
    let (words, tail) = bytes.as_chunks();
    let bits = match bytes.last_chunk() {
        // The last eight bytes, less those that are in `words` already.
        Some(last) => in_word(*last) >> (8 - tail.len()),
        None => tail.iter().rev().fold(0, |bits, byte| bits << 1 | u64::from(*byte == b'/')),
    };
    words.iter().rev().fold(bits, |bits, word| bits << 8 | in_word(*word))
}

/// The top bit of each byte that is `needle`, in the order of a little-endian word.
#[inline]
fn equal_bytes(word: [u8; 8], needle: u8) -> u64 {
    const LOW_SEVEN: u64 = 0x7f7f_7f7f_7f7f_7f7f;
    // Zero where equal. A byte's sum has its top bit set unless its low seven are zero; no carry leaves a byte.
    let differing = u64::from_le_bytes(word) ^ u64::from_ne_bytes([needle; 8]);
    !(((differing & LOW_SEVEN) + LOW_SEVEN) | differing | LOW_SEVEN)
}

/// What is before and after the first `separator`; without one, all is before.
fn cut(bytes: &[u8], separator: u8) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == separator) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

#[cfg(test)]
mod tests;
