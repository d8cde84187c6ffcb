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
//! "Step N" below is a step of §3.5. Nearly all requests are read by `quick`, which knows plain paths only; the rules for all of them are
//! here.

mod equal;
mod quick;
mod text;

use std::fmt;

use discovery::Name;

use text::Text;

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A resource: any server that serves the GVR can answer.
    Resource {
        /// Which one, without subresource.
        name: Name<'a>,
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

    /// Reads a request. `path` is the raw `:path` with its query; what `scratch` had from another request does not matter.
    #[inline]
    pub fn parse(method: &[u8], path: &'a [u8], scratch: &'a mut Scratch) -> Result<Self, BadPath> {
        let Scratch { text, decoded } = scratch;
        match quick::read(method, path, text) {
            Some(target) => Ok(target),
            None => Self::parse_any(method, path, decoded),
        }
    }

    /// The same for any path.
    #[cold]
    fn parse_any(method: &[u8], path: &'a [u8], scratch: &'a mut Vec<u8>) -> Result<Self, BadPath> {
        if path == b"*" {
            // RFC 9110 §7.1: OPTIONS about the server itself.
            return Ok(Self::OWN);
        }
        if path.first() != Some(&b'/') {
            return Err(BadPath);
        }
        let (raw, query) = cut(path, b'?');
        let decoded = if raw.contains(&b'%') { decode(raw, scratch)? } else { raw };
        Ok(Self::classify(method, decoded, query))
    }

    /// Does the apiserver set no time limit for it?
    pub fn is_long_running(&self) -> bool {
        matches!(self, Self::Resource { long_running: true, .. } | Self::Own { long_running: true })
    }

    /// Steps 1 to 3: the path's prefix says whether it is about a resource.
    fn classify(method: &[u8], path: &'a [u8], query: &[u8]) -> Self {
        let mut parts = parts(path);
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
    fn resource(method: &[u8], query: &[u8], [group, version, first]: [&'a [u8]; 3], mut rest: impl Iterator<Item = &'a [u8]>) -> Self {
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
        let long_running =
            prefix_verb || subresource.is_some_and(is_long_running) || (name.is_none_or(<[u8]>::is_empty) && is_watch(method, query));
        Self::Resource { name: Name::new(group, version, resource), long_running }
    }
}

/// Where a path is copied to: all of it when it has escapes, else its beginning. Kept from one request to the next, so that nothing is
/// allocated.
#[derive(Default)]
pub struct Scratch {
    text: Text,
    decoded: Vec<u8>,
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

/// The segments of a path (step 1): slashes at both ends do not count, empty segments between two do, so `/api/v1//pods` asks for the
/// resource with no name.
fn parts(mut path: &[u8]) -> impl Iterator<Item = &[u8]> {
    while let [b'/', rest @ ..] = path {
        path = rest;
    }
    while let [rest @ .., b'/'] = path {
        path = rest;
    }
    path.split(|byte| *byte == b'/')
}

/// Step 8: only a `get` without a name can be a watch; a named object is read once, whatever the query says. Always inlined, as
/// [`quick::read`] is.
#[inline(always)]
fn is_watch(method: &[u8], query: &[u8]) -> bool {
    !query.is_empty() && matches!(method, b"GET" | b"HEAD") && quick::asks_to_watch(query).unwrap_or_else(|| asks_to_watch(query))
}

/// Step 8's `watch`: the key is there and its first value is neither `0` nor `false`; an empty value is true. Pairs
/// that Go's `url.ParseQuery` drops (with a `;` or a bad escape) are not there.
fn asks_to_watch(query: &[u8]) -> bool {
    let first = query.split(|byte| *byte == b'&').map(|pair| cut(pair, b'=')).find(|(key, value)| {
        unescape(key).eq(b"watch".iter().copied().map(Some)) && !value.contains(&b';') && unescape(value).all(|byte| byte.is_some())
    });
    first.is_some_and(|(_, value)| is_true(unescape(value).flatten()))
}

/// Is it neither `0` nor `false`?
fn is_true(value: impl Iterator<Item = u8> + Clone) -> bool {
    let lower = || value.clone().map(|byte| byte.to_ascii_lowercase());
    !lower().eq(*b"0") && !lower().eq(*b"false")
}

/// The bytes of a part of a query, `None` in place of a bad escape.
fn unescape(escaped: &[u8]) -> impl Iterator<Item = Option<u8>> + Clone {
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

/// What is before and after the first `separator`; without one, all is before.
fn cut(bytes: &[u8], separator: u8) -> (&[u8], &[u8]) {
    match bytes.iter().position(|byte| *byte == separator) {
        Some(at) => (&bytes[..at], &bytes[at + 1..]),
        None => (bytes, &[]),
    }
}

#[cfg(test)]
mod tests;
