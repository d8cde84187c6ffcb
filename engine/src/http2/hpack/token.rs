//! A known header name as a small number, so that rules on names are table look-ups.
//!
//! A name of the HPACK static table has the number of its first entry there (RFC 7541 Appendix A),
//! which is also the index that the encoder writes for it. Names outside that table are numbered
//! from 62.

use super::static_table::STATIC_LEN;

/// A header name this proxy has rules for, or [`Token::OTHER`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Token(u8);

/// One more than the highest number; a power of two, so that a masked look-up needs no bounds
/// check.
const TOKENS: usize = 128;

macro_rules! tokens {
    ($($ident:ident = $number:literal $name:literal,)*) => {
        impl Token {
            $(#[doc = concat!("`", $name, "`")] pub const $ident: Self = Self($number);)*
        }
        const LISTED: &[(Token, &[u8])] = &[$((Token::$ident, $name.as_bytes()),)*];
    };
}

tokens! {
    AUTHORITY = 1 ":authority",
    METHOD = 2 ":method",
    PATH = 4 ":path",
    SCHEME = 6 ":scheme",
    STATUS = 8 ":status",
    ACCEPT_CHARSET = 15 "accept-charset",
    ACCEPT_ENCODING = 16 "accept-encoding",
    ACCEPT_LANGUAGE = 17 "accept-language",
    ACCEPT_RANGES = 18 "accept-ranges",
    ACCEPT = 19 "accept",
    ACCESS_CONTROL_ALLOW_ORIGIN = 20 "access-control-allow-origin",
    AGE = 21 "age",
    ALLOW = 22 "allow",
    AUTHORIZATION = 23 "authorization",
    CACHE_CONTROL = 24 "cache-control",
    CONTENT_DISPOSITION = 25 "content-disposition",
    CONTENT_ENCODING = 26 "content-encoding",
    CONTENT_LANGUAGE = 27 "content-language",
    CONTENT_LENGTH = 28 "content-length",
    CONTENT_LOCATION = 29 "content-location",
    CONTENT_RANGE = 30 "content-range",
    CONTENT_TYPE = 31 "content-type",
    COOKIE = 32 "cookie",
    DATE = 33 "date",
    ETAG = 34 "etag",
    EXPECT = 35 "expect",
    EXPIRES = 36 "expires",
    FROM = 37 "from",
    HOST = 38 "host",
    IF_MATCH = 39 "if-match",
    IF_MODIFIED_SINCE = 40 "if-modified-since",
    IF_NONE_MATCH = 41 "if-none-match",
    IF_RANGE = 42 "if-range",
    IF_UNMODIFIED_SINCE = 43 "if-unmodified-since",
    LAST_MODIFIED = 44 "last-modified",
    LINK = 45 "link",
    LOCATION = 46 "location",
    MAX_FORWARDS = 47 "max-forwards",
    PROXY_AUTHENTICATE = 48 "proxy-authenticate",
    PROXY_AUTHORIZATION = 49 "proxy-authorization",
    RANGE = 50 "range",
    REFERER = 51 "referer",
    REFRESH = 52 "refresh",
    RETRY_AFTER = 53 "retry-after",
    SERVER = 54 "server",
    SET_COOKIE = 55 "set-cookie",
    STRICT_TRANSPORT_SECURITY = 56 "strict-transport-security",
    TRANSFER_ENCODING = 57 "transfer-encoding",
    USER_AGENT = 58 "user-agent",
    VARY = 59 "vary",
    VIA = 60 "via",
    WWW_AUTHENTICATE = 61 "www-authenticate",
    CONNECTION = 62 "connection",
    KEEP_ALIVE = 63 "keep-alive",
    PROXY_CONNECTION = 64 "proxy-connection",
    UPGRADE = 65 "upgrade",
    TE = 66 "te",
    TRAILER = 67 "trailer",
    AUDIT_ID = 68 "audit-id",
    X_FORWARDED_FOR = 69 "x-forwarded-for",
    PROTOCOL = 70 ":protocol",
    TRACEPARENT = 71 "traceparent",
    PEER_PROXIED = 72 "x-kubernetes-peer-proxied",
}

impl Token {
    /// Not a known name.
    pub const OTHER: Self = Self(0);
    /// Every name that starts with `x-remote-`, `_` counting as `-`.
    pub const X_REMOTE: Self = Self(73);
    /// Every name that starts with `impersonate-`, `_` counting as `-`.
    pub const IMPERSONATE: Self = Self(74);

    /// The token of a lower-case name; [`Token::OTHER`] when it is not known. Names that differ
    /// from `x-remote-*` or `x-kubernetes-peer-proxied` only in `_` for `-` have their tokens:
    /// servers behind CGI-like gateways confuse the two, so they are stripped alike.
    #[inline]
    #[must_use]
    pub fn of(name: &[u8]) -> Self {
        let (Some(&first), Some(&last)) = (name.first(), name.last()) else {
            return Self::OTHER;
        };
        let token = SLOTS[slot(name.len(), first, name[name.len() / 2], last)];
        if NAMES[usize::from(token.0) % TOKENS] == name {
            return token;
        }
        match first {
            b'x' | b'i' => Self::of_class(name),
            _ => Self::OTHER,
        }
    }

    /// The name that the token stands for; `None` for [`Token::OTHER`] and the prefix classes.
    #[inline]
    #[must_use]
    pub fn name(self) -> Option<&'static [u8]> {
        Some(NAMES[usize::from(self.0) % TOKENS]).filter(|name| !name.is_empty())
    }

    /// Whether it is a pseudo-header that exists (RFC 9113 §8.3, RFC 8441 §4).
    #[inline]
    #[must_use]
    pub fn is_pseudo(self) -> bool {
        matches!(self, Self::AUTHORITY | Self::METHOD | Self::PATH | Self::SCHEME | Self::STATUS | Self::PROTOCOL)
    }

    /// Whether every field with the token has the same name, so that the name need not be stored.
    /// Not so for a name with look-alikes: a stored look-alike must never come back as the real
    /// name.
    #[inline]
    pub(super) const fn implies_name(self) -> bool {
        self.0 != Self::OTHER.0 && self.0 < Self::PEER_PROXIED.0
    }

    /// The implied name; empty when the name has to be stored.
    #[inline]
    pub(super) fn implied_name(self) -> &'static [u8] {
        IMPLIED[usize::from(self.0) % TOKENS]
    }

    /// The number, below 128.
    #[inline]
    pub(super) const fn number(self) -> u8 {
        self.0
    }

    /// The token of the static table's entry (`index` from 1 to 61).
    pub(super) const fn of_static(index: u8) -> Self {
        Self(match index {
            2 | 3 => 2,
            4 | 5 => 4,
            6 | 7 => 6,
            8..=14 => 8,
            _ => index,
        })
    }

    /// The first static table entry with the name; 0 when there is none.
    #[inline]
    pub(super) const fn static_index(self) -> u8 {
        if (self.0 as usize) < STATIC_LEN { self.0 } else { 0 }
    }

    fn of_class(name: &[u8]) -> Self {
        let alike = |start: &[u8]| {
            name.len() >= start.len() && start.iter().zip(name).all(|(&want, &byte)| want == byte || (want == b'-' && byte == b'_'))
        };
        let peer_proxied = b"x-kubernetes-peer-proxied";
        if alike(b"x-remote-") {
            Self::X_REMOTE
        } else if alike(b"impersonate-") {
            Self::IMPERSONATE
        } else if name.len() == peer_proxied.len() && alike(peer_proxied) {
            Self::PEER_PROXIED
        } else {
            Self::OTHER
        }
    }
}

static NAMES: [&[u8]; TOKENS] = names(Token(u8::MAX));
static IMPLIED: [&[u8]; TOKENS] = names(Token::PEER_PROXIED);

/// The names of the tokens below `end`.
const fn names(end: Token) -> [&'static [u8]; TOKENS] {
    let mut names: [&[u8]; TOKENS] = [b""; TOKENS];
    let mut at = 0;
    while at < LISTED.len() {
        let (token, name) = LISTED[at];
        if token.0 < end.0 {
            names[token.0 as usize] = name;
        }
        at += 1;
    }
    names
}

/// A perfect hash over the listed names: the only candidate for a name is in its slot.
static SLOTS: [Token; 256] = {
    let mut slots = [Token::OTHER; 256];
    let mut at = 0;
    while at < LISTED.len() {
        let (token, name) = LISTED[at];
        let slot = slot(name.len(), name[0], name[name.len() / 2], name[name.len() - 1]);
        assert!(slots[slot].0 == 0, "two names in one slot: search another factor");
        slots[slot] = token;
        at += 1;
    }
    slots
};

/// Length and three bytes tell all listed names apart; the factor was found by trial.
#[inline]
const fn slot(length: usize, first: u8, middle: u8, last: u8) -> usize {
    #[expect(clippy::cast_possible_truncation, reason = "the name is compared afterwards")]
    let key = u32::from_le_bytes([length as u8, first, middle, last]);
    (key.wrapping_mul(0x6683_6887) >> 24) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_agrees_with_name() {
        for &(token, name) in LISTED {
            assert_eq!(Token::of(name), token);
            assert_eq!(token.name(), Some(name));
            assert_eq!(token.is_pseudo(), name[0] == b':');
            let mut longer = name.to_vec();
            longer.push(b'z');
            assert_eq!(Token::of(&longer), Token::OTHER);
            assert_eq!(Token::of(&name[..name.len() - 1]), Token::OTHER);
        }
        for class in [Token::OTHER, Token::X_REMOTE, Token::IMPERSONATE] {
            assert_eq!(class.name(), None);
        }
        for name in [&b""[..], b":", b"x", b"i", b"Accept", &[b'a'; 300]] {
            assert_eq!(Token::of(name), Token::OTHER);
        }
    }

    #[test]
    fn look_alikes_have_the_token_of_what_they_look_like() {
        for name in ["x-remote-user", "x_remote_user", "x-remote_user", "x_remote-group", "x-remote-extra-scopes", "x-remote-"] {
            assert_eq!(Token::of(name.as_bytes()), Token::X_REMOTE, "{name}");
        }
        for name in ["x_kubernetes_peer_proxied", "x-kubernetes_peer-proxied", "x-kubernetes-peer-proxied"] {
            assert_eq!(Token::of(name.as_bytes()), Token::PEER_PROXIED, "{name}");
        }
        for name in ["impersonate-user", "impersonate_group", "impersonate-extra-x"] {
            assert_eq!(Token::of(name.as_bytes()), Token::IMPERSONATE, "{name}");
        }
        for name in ["x-remote", "x-remoteuser", "impersonate", "x-kubernetes-peer-proxied-", "x-kubernetes-peer.proxied"] {
            assert_eq!(Token::of(name.as_bytes()), Token::OTHER, "{name}");
        }
    }
}
