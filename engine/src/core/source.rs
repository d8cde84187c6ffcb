//! Where clients come from, as far as limits care.

use std::net::IpAddr;

/// Where a client comes from: an IPv4 address, or the /64 of an IPv6 one, all of which one host can have.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Source(u64);

impl From<IpAddr> for Source {
    fn from(address: IpAddr) -> Self {
        match address.to_canonical() {
            IpAddr::V4(v4) => Self(u64::from(v4.to_bits())),
            // Never an IPv4 one: the upper half of those is zero.
            #[allow(clippy::cast_possible_truncation, reason = "the upper half is wanted")]
            IpAddr::V6(v6) => Self((v6.to_bits() >> 64) as u64 | 1 << 63),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source::from(text.parse::<IpAddr>().unwrap())
    }

    #[test]
    fn one_host_is_one_source() {
        assert_eq!(source("10.0.0.1"), source("::ffff:10.0.0.1"));
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("fd00:1:2:3::1"), source("fd00:1:2:3:ffff::9"));
        assert_ne!(source("fd00:1:2:3::1"), source("fd00:1:2:4::1"));
        assert_ne!(source("::0.0.0.1"), source("0.0.0.1"));
    }
}
