//! A request head: from bytes to a header block in the form of HTTP/2.
//!
//! What always holds: a head whose end, or whose body's end, two readers could see in different places is refused (threats.md §1); what comes
//! out has the pseudo-headers first, lower-case names, and no header that is about the connection.

use crate::http2::hpack::{HeaderBlock, Token, valid_value};
use crate::http2::message::valid_authority;

/// Header lines of one request, or of its trailers; Go has no limit of its own, real requests have under 40. Not a field of `Limits`,
/// because it is the length of an array on the stack.
const MAX_LINES: usize = 128;

/// How the body of a request is framed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    /// No body.
    None,
    /// That many bytes.
    Length(u64),
    /// Chunks until the last one.
    Chunked,
}

/// What a head says about its connection and its body.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RequestHead {
    pub(crate) framing: Framing,
    /// May another request follow?
    pub(crate) keep_alive: bool,
    /// HTTP/1.0: no chunked answer.
    pub(crate) is_1_0: bool,
    /// Asks to leave HTTP for another protocol.
    pub(crate) is_upgrade: bool,
    /// Bytes of the head.
    pub(crate) len: usize,
}

/// Why a head is refused; the connection is closed after the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum BadHead {
    /// Not HTTP/1, or not well formed.
    Malformed,
    /// It is not clear where the message ends.
    Framing,
    /// A transfer coding other than `chunked`.
    Coding,
    /// More lines than we take.
    TooLarge,
    /// A version we do not speak.
    Version,
}

/// Reads a head from the front of `bytes` into `block`. `None` when it is not complete yet.
pub(crate) fn parse(bytes: &[u8], block: &mut HeaderBlock) -> Result<Option<RequestHead>, BadHead> {
    // httparse skips empty lines in front, from the first one at each look, so a client could make it walk them again and again.
    if bytes.first().is_some_and(|&b| b == b'\r' || b == b'\n') {
        return Err(BadHead::Malformed);
    }
    let mut lines = [httparse::EMPTY_HEADER; MAX_LINES];
    let mut request = httparse::Request::new(&mut lines);
    let len = match request.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => return Err(BadHead::TooLarge),
        Err(httparse::Error::Version) => return Err(BadHead::Version),
        Err(_) => return Err(BadHead::Malformed),
    };
    // httparse takes a bare LF as the end of a line; others do not, and that is a desync.
    if bare_line_feed(&bytes[..len]) {
        return Err(BadHead::Malformed);
    }
    let is_1_0 = request.version == Some(0);
    let facts = Facts::of(request.headers, is_1_0)?;
    let (method, target) = (request.method.ok_or(BadHead::Malformed)?, request.path.ok_or(BadHead::Malformed)?);
    let (authority, path) = split_target(method, target.as_bytes())?;
    let authority = authority.or(facts.host);
    block.push_token(Token::METHOD, method.as_bytes());
    block.push_token(Token::SCHEME, b"https");
    block.push_token(Token::PATH, path);
    if let Some(authority) = authority {
        block.push_token(Token::AUTHORITY, authority);
    }
    push_lines(request.headers, facts.connection_lines, block)?;
    Ok(Some(RequestHead { framing: facts.framing, keep_alive: facts.keep_alive, is_1_0, is_upgrade: facts.is_upgrade, len }))
}

/// Reads a trailer section, its empty line included.
pub(crate) fn parse_trailers(bytes: &[u8], block: &mut HeaderBlock) -> Result<(), BadHead> {
    let mut lines = [httparse::EMPTY_HEADER; MAX_LINES];
    match httparse::parse_headers(bytes, &mut lines) {
        // Whoever joins them to the head would read another message than we did (RFC 9110 §6.5.1).
        Ok(httparse::Status::Complete((_, lines))) if lines.iter().any(|line| is_hop_by_hop(line.name.to_ascii_lowercase().as_bytes())) => {
            Err(BadHead::Malformed)
        }
        Ok(httparse::Status::Complete((_, lines))) => push_lines(lines, false, block),
        _ => Err(BadHead::Malformed),
    }
}

fn bare_line_feed(head: &[u8]) -> bool {
    head.iter().enumerate().any(|(at, &b)| b == b'\n' && (at == 0 || head[at - 1] != b'\r'))
}

/// What the connection-level lines say together.
struct Facts<'a> {
    framing: Framing,
    keep_alive: bool,
    is_upgrade: bool,
    host: Option<&'a [u8]>,
    connection_lines: bool,
}

impl<'a> Facts<'a> {
    fn of(lines: &[httparse::Header<'a>], is_1_0: bool) -> Result<Self, BadHead> {
        let mut facts = Self { framing: Framing::None, keep_alive: !is_1_0, is_upgrade: false, host: None, connection_lines: false };
        let (mut length, mut chunked, mut offers_protocol) = (None, false, false);
        for line in lines {
            let value = trim(line.value);
            let is = |name: &str| line.name.eq_ignore_ascii_case(name);
            if is("content-length") {
                // Two are refused even when they agree: somebody down the line may read the other one.
                if length.replace(parse_length(value).ok_or(BadHead::Framing)?).is_some() {
                    return Err(BadHead::Framing);
                }
            } else if is("transfer-encoding") {
                if chunked || !value.eq_ignore_ascii_case(b"chunked") {
                    return Err(BadHead::Coding);
                }
                chunked = true;
            } else if is("host") {
                // Judged here, because the authority of an absolute form may hide it.
                if facts.host.replace(value).is_some() || !valid_authority(value) {
                    return Err(BadHead::Malformed);
                }
            } else if is("upgrade") {
                // An offer of HTTP/2 without TLS is ignored, as by kube-apiserver.
                offers_protocol |= !value.eq_ignore_ascii_case(b"h2c");
            } else if is("connection") {
                facts.connection_lines = true;
                facts.note_connection(value, is_1_0);
            }
        }
        // HTTP/1.0 has no transfer codings (Pingora CVE-2026-2835), and a length beside one is an attack (RFC 9112 §6.3).
        if chunked && (is_1_0 || length.is_some()) {
            return Err(BadHead::Framing);
        }
        if facts.host.is_none() && !is_1_0 {
            return Err(BadHead::Malformed);
        }
        facts.is_upgrade &= offers_protocol;
        facts.framing = match length {
            _ if chunked => Framing::Chunked,
            None | Some(0) => Framing::None,
            Some(length) => Framing::Length(length),
        };
        Ok(facts)
    }

    fn note_connection(&mut self, value: &[u8], is_1_0: bool) {
        for option in options(value) {
            if option.eq_ignore_ascii_case(b"close") {
                self.keep_alive = false;
            } else if option.eq_ignore_ascii_case(b"keep-alive") && is_1_0 {
                self.keep_alive = true;
            } else if option.eq_ignore_ascii_case(b"upgrade") {
                self.is_upgrade = true;
            }
        }
    }
}

/// Copies the end-to-end lines, names in lower case.
fn push_lines(lines: &[httparse::Header<'_>], connection_lines: bool, block: &mut HeaderBlock) -> Result<(), BadHead> {
    for line in lines {
        let value = trim(line.value);
        if !valid_value(value) {
            return Err(BadHead::Malformed);
        }
        let mut short = [0; 64];
        let long;
        let name: &[u8] = if let Some(short) = short.get_mut(..line.name.len()) {
            short.copy_from_slice(line.name.as_bytes());
            short.make_ascii_lowercase();
            short
        } else {
            long = line.name.to_ascii_lowercase();
            long.as_bytes()
        };
        if is_hop_by_hop(name) || (connection_lines && named_in_connection(lines, name)) {
            continue;
        }
        block.push(name, value);
    }
    Ok(())
}

/// Lines that are about this connection alone, in lower case; `host` is in `:authority`.
fn is_hop_by_hop(name: &[u8]) -> bool {
    matches!(
        name,
        b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" | b"te" | b"host" | b"http2-settings"
    )
}

/// Is the line one that `Connection` declares hop-by-hop (RFC 9110 §7.6.1)?
fn named_in_connection(lines: &[httparse::Header<'_>], name: &[u8]) -> bool {
    lines
        .iter()
        .filter(|line| line.name.eq_ignore_ascii_case("connection"))
        .any(|line| options(line.value).any(|option| option.eq_ignore_ascii_case(name)))
}

fn options(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|&b| b == b',').map(trim).filter(|option| !option.is_empty())
}

/// Origin-form as it is; absolute-form to its authority and path (RFC 9112 §3.2).
fn split_target<'a>(method: &str, target: &'a [u8]) -> Result<(Option<&'a [u8]>, &'a [u8]), BadHead> {
    if target.first() == Some(&b'/') || (target == b"*" && method == "OPTIONS") || method == "CONNECT" {
        return Ok((None, target));
    }
    let rest = strip_scheme(target).ok_or(BadHead::Malformed)?;
    let end = rest.iter().position(|&b| b == b'/' || b == b'?').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    match path.first() {
        _ if authority.is_empty() => Err(BadHead::Malformed),
        Some(b'/') => Ok((Some(authority), path)),
        None => Ok((Some(authority), b"/")),
        Some(_) => Err(BadHead::Malformed),
    }
}

fn strip_scheme(target: &[u8]) -> Option<&[u8]> {
    let at = |n: usize| target.split_at_checked(n);
    match (at(8), at(7)) {
        (Some((scheme, rest)), _) if scheme.eq_ignore_ascii_case(b"https://") => Some(rest),
        (_, Some((scheme, rest))) if scheme.eq_ignore_ascii_case(b"http://") => Some(rest),
        _ => None,
    }
}

fn parse_length(value: &[u8]) -> Option<u64> {
    if value.is_empty() || value.len() > 18 {
        return None;
    }
    value.iter().try_fold(0u64, |sum, b| b.is_ascii_digit().then(|| sum * 10 + u64::from(b - b'0')))
}

fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] = value {
        value = rest;
    }
    while let [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(text: &str) -> Result<Option<(RequestHead, Vec<String>)>, BadHead> {
        let mut block = HeaderBlock::default();
        let parsed = parse(text.as_bytes(), &mut block)?;
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ok(parsed.map(|head| (head, block.iter().map(|field| format!("{}={}", text(field.name), text(field.value))).collect())))
    }

    #[test]
    fn a_plain_get() {
        let (facts, fields) = head("GET /api/v1/pods?limit=1 HTTP/1.1\r\nHost: kube\r\nAccept: */*\r\n\r\nrest").unwrap().unwrap();
        assert_eq!((facts.framing, facts.keep_alive, facts.is_1_0, facts.is_upgrade), (Framing::None, true, false, false));
        assert_eq!(fields, [":method=GET", ":scheme=https", ":path=/api/v1/pods?limit=1", ":authority=kube", "accept=*/*"]);
        assert!(head("GET / HTTP/1.1\r\nHost: k").unwrap().is_none());
    }

    #[test]
    fn hop_by_hop_lines_stay_here() {
        let text =
            "GET / HTTP/1.1\r\nHost: k\r\nConnection: close, X-Drop\r\nX-Drop: 1\r\nTE: trailers\r\nKeep-Alive: 5\r\nX-Keep: 1\r\n\r\n";
        let (facts, fields) = head(text).unwrap().unwrap();
        assert!(!facts.keep_alive);
        assert_eq!(fields[4..], ["x-keep=1"]);
    }

    #[test]
    fn absolute_form_is_routed_by_its_path() {
        let (_, fields) = head("GET https://evil/b?c HTTP/1.1\r\nHost: k\r\n\r\n").unwrap().unwrap();
        assert_eq!(fields[2..4], [":path=/b?c", ":authority=evil"]);
    }

    #[test]
    fn what_is_ambiguous_is_refused() {
        let with = |lines: &str| head(&format!("POST / HTTP/1.1\r\nHost: k\r\n{lines}\r\n")).map(|_| ());
        for (lines, want) in [
            ("Content-Length: 5\r\nTransfer-Encoding: chunked\r\n", BadHead::Framing),
            ("Transfer-Encoding: xchunked\r\n", BadHead::Coding),
            ("Transfer-Encoding: chunked, identity\r\n", BadHead::Coding),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", BadHead::Coding),
            ("Transfer-Encoding:\r\n", BadHead::Coding),
            ("Content-Length: 5\r\nContent-Length: 6\r\n", BadHead::Framing),
            ("Content-Length: 5\r\nContent-Length: 5\r\n", BadHead::Framing),
            ("Content-Length: 5, 5\r\n", BadHead::Framing),
            ("Content-Length: +5\r\n", BadHead::Framing),
            ("Content-Length: 0x5\r\n", BadHead::Framing),
            ("Content-Length:\r\n", BadHead::Framing),
            ("Content-Length: 99999999999999999999\r\n", BadHead::Framing),
            ("A: b\n", BadHead::Malformed),
            ("A: b\r\n c\r\n", BadHead::Malformed),
            ("A : b\r\n", BadHead::Malformed),
            (": b\r\n", BadHead::Malformed),
            ("Host: other\r\n", BadHead::Malformed),
            ("A: b\0c\r\n", BadHead::Malformed),
        ] {
            assert_eq!(with(lines), Err(want), "{lines:?}");
        }
        for bare in [
            "GET / HTTP/1.1\nHost: k\n\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET  / HTTP/1.1\r\nHost: k\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: k\r\n\r\n",
        ] {
            assert!(head(bare).is_err(), "{bare:?}");
        }
        assert_eq!(head("GET / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").map(|_| ()), Err(BadHead::Framing));
        assert_eq!(head("GET / HTTP/2.0\r\nHost: k\r\n\r\n").map(|_| ()), Err(BadHead::Version));
    }
}
