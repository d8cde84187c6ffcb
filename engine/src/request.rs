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
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A target as text: `group/version/resource`, with ` long` behind it, or the name of the kind.
    fn parsed(method: &str, path: &str) -> String {
        match Target::parse(method.as_bytes(), path.as_bytes(), &mut Vec::new()) {
            Ok(Target::Resource { group, version, resource, long_running }) => {
                let names = [group, version, resource].map(String::from_utf8_lossy).join("|");
                if long_running { names + " long" } else { names }
            }
            Ok(Target::Discovery) => "discovery".to_owned(),
            Ok(Target::Own { long_running: false }) => "own".to_owned(),
            Ok(Target::Own { long_running: true }) => "own long".to_owned(),
            Err(BadPath) => "bad".to_owned(),
        }
    }

    fn check(method: &str, table: &[(&str, &str)]) {
        for (path, expected) in table {
            assert_eq!(parsed(method, path), *expected, "{method} {path}");
        }
    }

    #[test]
    fn resources() {
        check(
            "GET",
            &[
                ("/api/v1/pods", "|v1|pods"),
                ("/api/v1/pods/", "|v1|pods"),
                ("//api/v1/pods//", "|v1|pods"),
                ("/api/v1/nodes/n1", "|v1|nodes"),
                ("/api/v1/namespaces/x/pods", "|v1|pods"),
                ("/api/v1/namespaces/x/pods/y", "|v1|pods"),
                ("/api/v1/namespaces/x/pods/y/status", "|v1|pods"),
                ("/api/v1/namespaces/x/pods/y/status/z/a/b", "|v1|pods"),
                ("/apis/apps/v1/deployments", "apps|v1|deployments"),
                ("/apis/apps/v1/namespaces/x/deployments/y", "apps|v1|deployments"),
                ("/apis/a.b.example.org/v1beta1/things", "a.b.example.org|v1beta1|things"),
                // Any string is a version or a resource; case is kept.
                ("/api/V1/Pods", "|V1|Pods"),
                ("/apis/Apps/v1/x", "Apps|v1|x"),
                ("/api/apps/v1/deployments", "|apps|v1"),
            ],
        );
    }

    #[test]
    fn namespaces_are_a_prefix_or_the_resource() {
        check(
            "GET",
            &[
                ("/api/v1/namespaces", "|v1|namespaces"),
                ("/api/v1/namespaces/x", "|v1|namespaces"),
                ("/api/v1/namespaces/x/", "|v1|namespaces"),
                ("/api/v1/namespaces/x/status", "|v1|namespaces"),
                ("/api/v1/namespaces/x/finalize", "|v1|namespaces"),
                ("/api/v1/namespaces/x/status/y", "|v1|namespaces"),
                ("/api/v1/namespaces/x/Status", "|v1|Status"),
                ("/api/v1/namespaces/x/namespaces", "|v1|namespaces"),
                ("/api/v1/namespaces/x/namespaces/y/pods", "|v1|namespaces"),
                ("/apis/g/v1/namespaces/x", "g|v1|namespaces"),
                ("/apis/g/v1/namespaces/x/finalize", "g|v1|namespaces"),
                ("/apis/g/v1/namespaces/x/things", "g|v1|things"),
                ("/api/v1/Namespaces/x/pods", "|v1|Namespaces"),
            ],
        );
    }

    #[test]
    fn inner_empty_segments_count() {
        check(
            "GET",
            &[
                ("/api//v1/pods", "||v1"),
                ("/api/v1//pods", "|v1|"),
                ("/apis//v1/pods", "|v1|pods"),
                ("/apis/g//pods", "g||pods"),
                ("/api/v1/namespaces//pods", "|v1|pods"),
                ("/api/v1/namespaces/x//pods", "|v1|"),
                ("/apis//apps/v1/deployments", "|apps|v1"),
                ("/api/v1/./pods", "|v1|."),
                ("/api/v1/../v1/pods", "|v1|.."),
                ("/./api/v1/pods", "own"),
                ("/x/../api/v1/pods", "own"),
                ("/api/v1/pods;x=1", "|v1|pods;x=1"),
                ("/api;x/v1/pods", "own"),
                ("/api/v1/pods#x", "|v1|pods#x"),
                ("/api/v1/a+b", "|v1|a+b"),
            ],
        );
    }

    #[test]
    fn escapes_are_undone_once() {
        check(
            "GET",
            &[
                ("/apis/batch%2Fv1/jobs", "batch|v1|jobs"),
                ("/apis/batch%2fv1/jobs", "batch|v1|jobs"),
                ("/apis/batch%252Fv1/jobs", "discovery"),
                ("/apis/batch%252Fv1/jobs/x", "batch%2Fv1|jobs|x"),
                ("/%61pi/v1/p%6Fds", "|v1|pods"),
                ("/api%2Fv1%2Fpods", "|v1|pods"),
                ("/%2F/api/v1/pods%2F", "|v1|pods"),
                ("/api/v1/pods%2F%2e%2e%2Fsecrets", "|v1|pods"),
                ("/api/v1/%2e%2e/pods", "|v1|.."),
                // A decoded question mark is part of the path; the query begins at the first raw one.
                ("/api/v1/pods%3Fwatch=1", "|v1|pods?watch=1"),
                ("/api/v1/pods?watch=%", "|v1|pods"),
                ("/api/v1/a%00b", "|v1|a\0b"),
                ("/api/v1/namespaces%2Fx/pods", "|v1|pods"),
                ("/api/v1/%77atch/pods", "|v1|pods long"),
            ],
        );
    }

    #[test]
    fn what_cannot_be_decoded_is_bad() {
        for path in [
            "",
            "api/v1/pods",
            "?watch=1",
            "%2Fapi",
            "*/x",
            "http://h/api",
            "/%",
            "/%2",
            "/%zz",
            "/%2z",
            "/%z2",
            "/api/v1/pods%",
            "/healthz%",
            "/api/v1/pods/%%41",
            "/%?41",
            "/a%4",
            "/%+1",
            "/% 1",
        ] {
            assert_eq!(parsed("GET", path), "bad", "{path}");
        }
    }

    #[test]
    fn paths_that_are_no_resource() {
        check(
            "GET",
            &[
                ("/api", "discovery"),
                ("/api/", "discovery"),
                ("//api", "discovery"),
                ("/api/v1", "discovery"),
                ("/api/v1/", "discovery"),
                ("/apis", "discovery"),
                ("/apis/", "discovery"),
                ("/apis?timeout=32s", "discovery"),
                ("/apis/batch", "discovery"),
                ("/apis/batch/v1", "discovery"),
                ("/apis/batch/v1/", "discovery"),
                ("/openapi/v2", "discovery"),
                ("/openapi/v3", "discovery"),
                ("/openapi/v3/apis/batch/v1?hash=1", "discovery"),
                ("/version", "discovery"),
                ("/version/", "discovery"),
                ("/version/x", "own"),
                ("/", "own"),
                ("//", "own"),
                ("/?watch=1", "own"),
                ("*", "own"),
                ("/healthz", "own"),
                ("/livez", "own"),
                ("/readyz/etcd", "own"),
                ("/metrics", "own"),
                ("/debug/pprof/profile", "own long"),
                ("/debug/pprofile", "own"),
                ("/.well-known/openid-configuration", "own"),
                ("/openid/v1/jwks", "own"),
                ("/API/v1/pods", "own"),
                ("/Apis/batch/v1/jobs", "own"),
                ("/apiss/batch/v1/jobs", "own"),
                ("/x/api/v1/pods", "own"),
            ],
        );
    }

    #[test]
    fn prefix_verbs() {
        let table = [
            ("/api/v1/watch/pods", "|v1|pods long"),
            ("/api/v1/watch/namespaces/x/pods/y", "|v1|pods long"),
            ("/api/v1/watch/namespaces/x", "|v1|namespaces long"),
            ("/api/v1/watch/namespaces/x/status", "|v1|namespaces long"),
            ("/apis/apps/v1/watch/deployments", "apps|v1|deployments long"),
            ("/api/v1/proxy/nodes/n1/x", "|v1|nodes long"),
            ("/api/v1/proxy/namespaces/x/services/y/a/b", "|v1|services long"),
            ("/api/v1/watch/watch", "|v1|watch long"),
            ("/api/v1/watch//", "own"),
            ("/api/v1/watch", "own"),
            ("/api/v1/watch/", "own"),
            ("/api/v1/proxy?x", "own"),
            ("/apis/apps/v1/proxy", "own"),
            ("/apis/apps/watch/x", "apps|watch|x"),
            ("/apis/watch/v1", "discovery"),
            ("/api/v1/Watch/pods", "|v1|Watch"),
        ];
        for method in ["GET", "POST", "DELETE", "get", ""] {
            check(method, &table);
        }
    }

    #[test]
    fn the_watch_parameter() {
        for (query, watch) in [
            ("watch=true", true),
            ("watch=1", true),
            ("watch=", true),
            ("watch", true),
            ("watch=no", true),
            ("watch=00", true),
            ("watch=true&watch=false", true),
            ("a=b&watch=1&c=d", true),
            ("&&watch", true),
            ("w%61tch=%31", true),
            ("watch=1=2", true),
            ("watch=fals%65", false),
            ("watch=%30", false),
            ("watch=0", false),
            ("watch=false", false),
            ("watch=FaLSE", false),
            ("watch=false&watch=true", false),
            ("watch=+0", true),
            ("Watch=true", false),
            ("watching=true", false),
            ("awatch=true", false),
            ("watch%3D1", false),
            ("x=watch", false),
            ("=watch", false),
            ("", false),
            // Pairs that Go drops.
            ("watch=1;a=2", false),
            ("a=1;watch=1", false),
            ("watch=%zz", false),
            ("watch=%", false),
            ("watch%=1", false),
            ("watch=%zz&watch=1", true),
            ("watch=0;&watch=1", true),
            ("watch?=1", false),
        ] {
            let expected = if watch { "|v1|pods long" } else { "|v1|pods" };
            for path in ["/api/v1/pods", "/api/v1/namespaces/x/pods", "/api/v1/namespaces/x/pods/", "/%61pi/v1/pods"] {
                let path = format!("{path}?{query}");
                assert_eq!(parsed("GET", &path), expected, "{path}");
                assert_eq!(parsed("HEAD", &path), expected, "{path}");
                for method in ["POST", "DELETE", "PUT", "PATCH", "get", "OPTIONS", ""] {
                    assert_eq!(parsed(method, &path), "|v1|pods", "{method} {path}");
                }
            }
            // A named object is not watched this way.
            assert_eq!(parsed("GET", &format!("/api/v1/namespaces/x/pods/y?{query}")), "|v1|pods");
        }
        check(
            "GET",
            &[
                ("/api/v1/namespaces?watch=1", "|v1|namespaces long"),
                ("/api/v1/namespaces/x?watch=1", "|v1|namespaces"),
                ("/api/v1/pods//x?watch=1", "|v1|pods long"),
                ("/api/v1/pods?fieldSelector=metadata.name%3Dy&watch=1", "|v1|pods long"),
            ],
        );
    }

    #[test]
    fn subresources_without_an_end() {
        for subresource in ["attach", "exec", "proxy", "log", "portforward"] {
            for method in ["GET", "POST"] {
                check(
                    method,
                    &[
                        (&format!("/api/v1/namespaces/x/pods/y/{subresource}?a=b"), "|v1|pods long"),
                        (&format!("/api/v1/nodes/n1/{subresource}/metrics"), "|v1|nodes long"),
                        (&format!("/api/v1/pods//{subresource}"), "|v1|pods long"),
                        (&format!("/api/v1/pods/{subresource}"), "|v1|pods"),
                        (&format!("/api/v1/pods/y/z/{subresource}"), "|v1|pods"),
                    ],
                );
            }
        }
        check(
            "GET",
            &[
                ("/api/v1/namespaces/x/log", "|v1|log"),
                ("/api/v1/namespaces/x/pods/y/logs", "|v1|pods"),
                ("/api/v1/namespaces/x/pods/y/LOG", "|v1|pods"),
                ("/api/v1/namespaces/x/pods/y/scale", "|v1|pods"),
            ],
        );
    }

    /// Segments that end, start or lie around the borders of 8 and 64 bytes.
    #[test]
    fn long_paths() {
        for length in 0..200 {
            let group = "g".repeat(length);
            for tail in ["", "/", "/name", "/n/status", "?watch=0", "/%6e"] {
                let path = format!("/apis/{group}/v1/namespaces/{group}/things{tail}");
                assert_eq!(parsed("GET", &path), format!("{group}|v1|things"), "{path}");
            }
        }
    }

    #[test]
    fn plain_paths_leave_the_scratch_alone() {
        let mut scratch = Vec::new();
        Target::parse(b"GET", b"/api/v1/pods?a=%41", &mut scratch).unwrap();
        assert_eq!(scratch.capacity(), 0);
    }

    /// RequestInfo in the words of kubernetes.md §3.5, with every convenience.
    fn naive(path: &[u8]) -> Option<[Vec<u8>; 3]> {
        let text = str::from_utf8(path).unwrap();
        let mut parts: Vec<&str> = text.trim_matches('/').split('/').collect();
        let mut group = "";
        match parts.remove(0) {
            "api" if parts.len() >= 2 => {}
            "apis" if parts.len() >= 3 => group = parts.remove(0),
            _ => return None,
        }
        let version = parts.remove(0);
        if ["proxy", "watch"].contains(&parts[0]) {
            parts.remove(0);
        }
        if parts.first()? == &"namespaces" && parts.len() > 2 && !["status", "finalize"].contains(&parts[2]) {
            parts.drain(..2);
        }
        Some([group, version, parts[0]].map(|name| name.as_bytes().to_vec()))
    }

    fn names(target: Target<'_>) -> Option<[Vec<u8>; 3]> {
        match target {
            Target::Resource { group, version, resource, .. } => Some([group, version, resource].map(<[u8]>::to_vec)),
            Target::Discovery | Target::Own { .. } => None,
        }
    }

    const PIECES: &str =
        "(/|/|//|api|apis|v1|batch|pods|namespaces|status|finalize|watch|proxy|log|x|%|%2F|%252F|%2e|;|é|\\?|&|watch=1){0,12}";

    proptest! {
        #[test]
        fn parts_are_what_split_gives(path in "[/a\u{af}\u{2f00}]{0,200}") {
            let mut parts = Parts::of(path.as_bytes());
            for part in path.trim_matches('/').split('/') {
                prop_assert_eq!(parts.next(), Some(part.as_bytes()));
            }
            prop_assert_eq!(parts.next(), None);
            prop_assert_eq!(parts.next(), None);
        }

        #[test]
        fn random_bytes_never_panic(
            method in proptest::collection::vec(any::<u8>(), 0..8),
            path in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut scratch = Vec::new();
            let bare = Target::parse(&method, &path, &mut scratch).is_ok();
            prop_assert!(!bare || matches!(path[0], b'/' | b'*'));
            let slashed = [b"/api/", &path[..]].concat();
            let read = Target::parse(&method, &slashed, &mut scratch);
            prop_assert!(read.is_ok() || slashed.contains(&b'%'));
        }

        #[test]
        fn equals_the_naive_reading(path in "(/|/|//|api|apis|v1|batch|pods|namespaces|status|finalize|watch|proxy|log|x|;|é){0,12}") {
            let path = format!("/{path}");
            let mut scratch = Vec::new();
            let target = Target::parse(b"GET", path.as_bytes(), &mut scratch).unwrap();
            prop_assert_eq!(names(target), naive(path.as_bytes()));
        }

        /// Escaping every byte changes nothing but where the bytes are kept.
        #[test]
        fn escaped_equals_plain(path in "[/a-z?%0-9]{0,4}(/|/|//|api|apis|v1|pods|namespaces|watch|x|%2F){0,12}") {
            let plain = format!("/{path}");
            let escaped: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let mut scratch = Vec::new();
            let escaped = format!("/{escaped}");
            let target = Target::parse(b"GET", escaped.as_bytes(), &mut scratch).unwrap();
            prop_assert_eq!(names(target), naive(plain.as_bytes()));
        }

        #[test]
        fn the_query_never_changes_where_it_goes(path in PIECES, query in "[a-z=&;%?/0-9]{0,30}") {
            let plain = path.replace('?', "");
            let plain = format!("/{plain}");
            let asked = format!("{plain}?{query}");
            let (mut one, mut two) = (Vec::new(), Vec::new());
            let without = Target::parse(b"GET", plain.as_bytes(), &mut one).map(names);
            let with = Target::parse(b"GET", asked.as_bytes(), &mut two).map(names);
            prop_assert_eq!(without, with);
        }
    }
}
