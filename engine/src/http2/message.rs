//! What makes a decoded head or trailer section well formed (RFC 9113 §8.2, §8.3), judged field by field.

use super::hpack::{Field, HeaderBlock, Token};

/// Body length that is not known from the head.
pub(crate) const UNKNOWN_LENGTH: u64 = u64::MAX;

/// What every hop to a peer has in its `via`, in front of the id of the server whose proxy sent it.
pub(crate) const VIA_NAME: &[u8] = b"mvproxy-";

/// Why a message is refused: a stream error PROTOCOL_ERROR (RFC 9113 §8.1.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Malformed;

/// What a request head says that the forwarder needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestFacts {
    pub(crate) content_length: u64,
    pub(crate) is_head: bool,
    pub(crate) is_connect: bool,
    pub(crate) is_get: bool,
    /// A `via` names a proxy of our kind: it was decided already.
    pub(crate) is_hop: bool,
}

/// Checks a request head.
pub(crate) fn check_request(block: &HeaderBlock) -> Result<RequestFacts, Malformed> {
    let mut facts = RequestFacts { content_length: UNKNOWN_LENGTH, is_head: false, is_connect: false, is_get: false, is_hop: false };
    let (mut method, mut path, mut scheme, mut authority, mut host) = (false, false, false, false, false);
    let (mut regular, mut is_options, mut asterisk) = (false, false, false);
    for field in block.iter() {
        if field.token.is_pseudo() {
            // Pseudo-header fields come first (§8.3), each once, none that belongs to responses.
            let seen = match field.token {
                Token::METHOD => &mut method,
                Token::PATH => &mut path,
                Token::SCHEME => &mut scheme,
                Token::AUTHORITY => &mut authority,
                _ => return Err(Malformed),
            };
            if regular || std::mem::replace(seen, true) || !field.valid {
                return Err(Malformed);
            }
            match field.token {
                Token::METHOD => {
                    facts.is_get = field.value == b"GET";
                    facts.is_head = field.value == b"HEAD";
                    facts.is_connect = field.value == b"CONNECT";
                    is_options = field.value == b"OPTIONS";
                    check_method(field.value)?;
                }
                Token::PATH => {
                    asterisk = field.value == b"*";
                    check_path(field.value)?;
                }
                Token::AUTHORITY if !valid_authority(field.value) => return Err(Malformed),
                Token::SCHEME if field.value != b"https" && field.value != b"http" => return Err(Malformed),
                _ => {}
            }
            continue;
        }
        regular = true;
        check_regular(&field)?;
        match field.token {
            Token::CONTENT_LENGTH => facts.content_length = one_length(facts.content_length, field.value)?,
            Token::VIA => facts.is_hop |= proxies_in(field.value).next().is_some(),
            // Two would be read differently by different servers.
            Token::HOST if std::mem::replace(&mut host, true) || !valid_authority(field.value) => return Err(Malformed),
            _ => {}
        }
    }
    // `*` is OPTIONS' alone (§8.3.1).
    let complete = method && (!asterisk || is_options) && if facts.is_connect { authority } else { path && scheme };
    if complete { Ok(facts) } else { Err(Malformed) }
}

/// The ids of the servers whose proxies a `via` names. A list of: protocol, name, perhaps a comment (RFC 9110 §7.6.3).
pub(crate) fn proxies_in(via: &[u8]) -> impl Iterator<Item = &[u8]> {
    via.split(|&byte| byte == b',').filter_map(|hop| {
        let mut words = hop.split(|byte| matches!(byte, b' ' | b'\t')).filter(|word| !word.is_empty());
        words.nth(1)?.strip_prefix(VIA_NAME)
    })
}

/// Checks a response head: its status and content-length.
pub(crate) fn check_response(block: &HeaderBlock) -> Result<(u16, u64), Malformed> {
    let mut status = None;
    let mut content_length = UNKNOWN_LENGTH;
    let mut regular = false;
    for field in block.iter() {
        if field.token.is_pseudo() {
            if field.token != Token::STATUS || regular || status.is_some() {
                return Err(Malformed);
            }
            status = Some(parse_status(field.value)?);
            continue;
        }
        regular = true;
        check_regular(&field)?;
        if field.token == Token::CONTENT_LENGTH {
            content_length = one_length(content_length, field.value)?;
        }
    }
    // An h2 connection never switches protocols (§8.6).
    status.filter(|&status| status != 101).map(|status| (status, content_length)).ok_or(Malformed)
}

/// The status of a response head.
pub(crate) fn status_of(head: &HeaderBlock) -> Option<u16> {
    head.first(Token::STATUS).and_then(|digits| parse_status(digits).ok())
}

/// Trailers: regular fields only (§8.1), and none that says how long the message is or whom it is for (RFC 9110 §6.5.1): who joins
/// trailers to the head would read another message than we did.
pub(crate) fn check_trailers(block: &HeaderBlock) -> Result<(), Malformed> {
    block.iter().try_for_each(|field| match field.token {
        Token::CONTENT_LENGTH | Token::HOST | Token::TE => Err(Malformed),
        token if token.is_pseudo() => Err(Malformed),
        _ => check_regular(&field),
    })
}

/// May a regular field be forwarded in a request? Identity headers and the loop marker of a client are not; `host` is in `:authority`.
pub(crate) fn forwarded_in_request(token: Token) -> bool {
    !matches!(token, Token::X_REMOTE | Token::PEER_PROXIED | Token::HOST)
}

fn check_regular(field: &Field<'_>) -> Result<(), Malformed> {
    if !field.valid || field.name.first() == Some(&b':') {
        return Err(Malformed);
    }
    match field.token {
        // Connection-specific fields do not exist in HTTP/2 (§8.2.2).
        Token::CONNECTION | Token::KEEP_ALIVE | Token::PROXY_CONNECTION | Token::TRANSFER_ENCODING | Token::UPGRADE => Err(Malformed),
        Token::TE if field.value != b"trailers" => Err(Malformed),
        _ => Ok(()),
    }
}

fn check_method(method: &[u8]) -> Result<(), Malformed> {
    let token = |b: &u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(b);
    if !method.is_empty() && method.iter().all(token) { Ok(()) } else { Err(Malformed) }
}

/// Not empty, no user in it (RFC 9113 §8.3.1), and nothing that is no host and port; the set is that of Go's `ValidHostHeader`.
pub(crate) fn valid_authority(authority: &[u8]) -> bool {
    !authority.is_empty() && authority.iter().fold(true, |ok, &byte| ok & AUTHORITY_BYTES[usize::from(byte)])
}

const AUTHORITY_BYTES: [bool; 256] = {
    let mut allowed = [false; 256];
    let bytes = b"!$%&'()*+,-.:;=[]_~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut at = 0;
    while at < bytes.len() {
        allowed[bytes[at] as usize] = true;
        at += 1;
    }
    allowed
};

/// `*` or an absolute path of visible characters: a raw blank would be a request-line injection where it is written as HTTP/1.
fn check_path(path: &[u8]) -> Result<(), Malformed> {
    let visible = |&b: &u8| b > b' ' && b != 0x7f && b != b'#';
    let shape = path == b"*" || path.first() == Some(&b'/');
    if shape && path.iter().all(visible) { Ok(()) } else { Err(Malformed) }
}

fn parse_status(value: &[u8]) -> Result<u16, Malformed> {
    let &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else { return Err(Malformed) };
    let digit = |d: u8| u16::from(d - b'0');
    Ok(digit(a) * 100 + digit(b) * 10 + digit(c))
}

/// A content-length of digits only, and none that contradicts an earlier one.
fn one_length(before: u64, value: &[u8]) -> Result<u64, Malformed> {
    if value.is_empty() || value.len() > 18 || before != UNKNOWN_LENGTH {
        return Err(Malformed);
    }
    value.iter().try_fold(0u64, |sum, &b| if b.is_ascii_digit() { Ok(sum * 10 + u64::from(b - b'0')) } else { Err(Malformed) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(fields: &[(&str, &str)]) -> HeaderBlock {
        let mut block = HeaderBlock::default();
        for (name, value) in fields {
            block.push(name.as_bytes(), value.as_bytes());
        }
        block
    }

    const GET: [(&str, &str); 3] = [(":method", "GET"), (":scheme", "https"), (":path", "/api")];

    #[test]
    fn a_plain_request_is_well_formed() {
        let facts = check_request(&block(&[&GET[..], &[("content-length", "12"), ("te", "trailers")]].concat())).unwrap();
        assert_eq!((facts.content_length, facts.is_head, facts.is_connect), (12, false, false));
    }

    #[test]
    fn malformed_requests() {
        let with = |extra: &[(&str, &str)]| check_request(&block(&[&GET[..], extra].concat())).is_err();
        assert!(with(&[(":path", "/b")]), "twice");
        assert!(with(&[("a", "b"), (":authority", "late")]));
        assert!(with(&[(":status", "200")]));
        assert!(with(&[("connection", "close")]));
        assert!(with(&[("transfer-encoding", "chunked")]));
        assert!(with(&[("te", "gzip")]));
        assert!(with(&[("content-length", "1"), ("content-length", "1")]));
        assert!(with(&[("content-length", "+1")]));
        assert!(with(&[("content-length", "")]));
        assert!(with(&[("host", "a"), ("host", "a")]));
        for host in ["", "a b", "root@a", "a/b", "a?b", "a#b", "a\\b", "\u{e9}"] {
            assert!(with(&[("host", host)]), "{host:?}");
            assert!(check_request(&block(&[&GET[..], &[(":authority", host)]].concat())).is_err(), "{host:?}");
        }
        assert!(!with(&[("host", "[::1]:6443")]));
        for (method, fine) in [("OPTIONS", true), ("GET", false)] {
            // Whichever comes first.
            assert_eq!(check_request(&block(&[(":path", "*"), (":scheme", "https"), (":method", method)])).is_ok(), fine);
        }
        for path in ["", "api", "/a b", "/a#b", "/a\tb"] {
            assert!(check_request(&block(&[(":method", "GET"), (":scheme", "https"), (":path", path)])).is_err(), "{path:?}");
        }
        assert!(check_request(&block(&[(":method", "GET"), (":scheme", "https")])).is_err());
        assert!(check_request(&block(&[(":method", "G T"), (":scheme", "https"), (":path", "/")])).is_err());
    }

    #[test]
    fn responses() {
        assert_eq!(check_response(&block(&[(":status", "204")])), Ok((204, UNKNOWN_LENGTH)));
        for bad in ["", "20", "2000", "0x1", "101"] {
            assert!(check_response(&block(&[(":status", bad)])).is_err(), "{bad:?}");
        }
        assert!(check_response(&block(&[("a", "b")])).is_err());
        for name in [":status", "content-length", "host", "te", "transfer-encoding"] {
            assert!(check_trailers(&block(&[(name, "trailers")])).is_err(), "{name}");
        }
        assert!(check_trailers(&block(&[("x-sum", "1")])).is_ok());
    }
}
