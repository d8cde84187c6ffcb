//! What may be connected to, of all that API objects say (threats.md §5, SSRF).
//!
//! What always holds: addresses are literals; link-local, multicast and unspecified ones are never allowed; loopback only when a range names
//! it; our own never. The check is of the very address that is about to be connected.

use std::net::{IpAddr, SocketAddr};

/// A range of addresses, such as `10.0.0.0/8`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cidr {
    network: IpAddr,
    bits: u8,
}

impl Cidr {
    /// Reads `ADDRESS/BITS`, or one address.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let network: IpAddr = address.parse().ok()?;
        let most = if network.is_ipv4() { 32 } else { 128 };
        let bits = bits.map_or(Some(most), |bits| bits.parse().ok().filter(|&bits| bits <= most))?;
        Some(Self { network, bits })
    }

    /// The range of one address.
    pub fn only(address: IpAddr) -> Self {
        Self { network: address, bits: if address.is_ipv4() { 32 } else { 128 } }
    }

    /// Is the address in it?
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.network, address.to_canonical()) {
            (IpAddr::V4(network), IpAddr::V4(address)) => {
                let shift = 32 - u32::from(self.bits);
                network.to_bits().checked_shr(shift).unwrap_or(0) == address.to_bits().checked_shr(shift).unwrap_or(0)
            }
            (IpAddr::V6(network), IpAddr::V6(address)) => {
                let shift = 128 - u32::from(self.bits);
                network.to_bits().checked_shr(shift).unwrap_or(0) == address.to_bits().checked_shr(shift).unwrap_or(0)
            }
            _ => false,
        }
    }
}

/// Ranges × ports, less ourselves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList {
    /// Ranges of peers.
    pub ranges: Vec<Cidr>,
    /// Their ports.
    pub ports: Vec<u16>,
    /// Where we listen and what we advertise. With an unspecified one, those of the host have to be named as well.
    pub own: Vec<SocketAddr>,
}

impl AllowList {
    /// May it be connected to?
    pub fn allows(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        let special = match ip {
            IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
            IpAddr::V6(v6) => v6.is_unicast_link_local(),
        };
        let never = special || ip.is_multicast() || ip.is_unspecified() || self.is_own(address);
        // A loopback address has to be meant: no range that holds more than loopback allows it.
        let named = |range: &&Cidr| !ip.is_loopback() || range.network.to_canonical().is_loopback();
        !never && self.ports.contains(&address.port()) && self.ranges.iter().filter(named).any(|range| range.contains(ip))
    }

    /// Is it ours?
    pub fn is_own(&self, address: SocketAddr) -> bool {
        let ip = address.ip().to_canonical();
        // Of loopback addresses there are too many to be named.
        let is_bound = |own: IpAddr| own == ip || (own.is_unspecified() && ip.is_loopback());
        self.own.iter().any(|own| own.port() == address.port() && is_bound(own.ip().to_canonical()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(ranges: &[&str]) -> AllowList {
        AllowList {
            ranges: ranges.iter().map(|range| Cidr::parse(range).unwrap()).collect(),
            ports: vec![6443, 6445],
            own: vec!["10.0.0.1:6443".parse().unwrap()],
        }
    }

    #[test]
    fn ranges_times_ports_less_ourselves() {
        let list = list(&["10.0.0.0/8", "fd00::/64", "192.0.2.7"]);
        for (address, allowed) in [
            ("10.1.2.3:6443", true),
            ("10.1.2.3:6445", true),
            ("10.1.2.3:22", false),
            ("10.1.2.3:0", false),
            ("11.1.2.3:6443", false),
            ("192.0.2.7:6443", true),
            ("192.0.2.8:6443", false),
            ("10.0.0.1:6443", false),
            ("[::ffff:10.0.0.1]:6443", false),
            ("10.0.0.1:6445", true),
            ("[fd00::1]:6443", true),
            ("[fd00:0:0:1::1]:6443", false),
            ("[::ffff:10.1.2.3]:6443", true),
        ] {
            assert_eq!(list.allows(address.parse().unwrap()), allowed, "{address}");
        }
    }

    #[test]
    fn some_addresses_are_never_meant() {
        let all = list(&["0.0.0.0/0", "::/0"]);
        for address in [
            "169.254.169.254:6443",
            "224.0.0.1:6443",
            "255.255.255.255:6443",
            "0.0.0.0:6443",
            "127.0.0.1:6443",
            "[::1]:6443",
            "[fe80::1]:6443",
            "[ff02::1]:6443",
            "[::]:6443",
            "[::ffff:127.0.0.1]:6443",
            "[::ffff:169.254.169.254]:6443",
        ] {
            assert!(!all.allows(address.parse().unwrap()), "{address}");
        }
        let loopback = list(&["127.0.0.0/8"]);
        assert!(loopback.allows("127.0.0.2:6443".parse().unwrap()));
        assert!(!loopback.allows("[::1]:6443".parse().unwrap()));
    }

    #[test]
    fn every_loopback_address_is_ours_when_all_are_bound() {
        for bound in ["0.0.0.0:6443", "[::]:6443"] {
            let list = AllowList { own: vec![bound.parse().unwrap()], ..list(&["127.0.0.0/8", "::1"]) };
            for (address, allowed) in [("127.0.0.2:6443", false), ("[::1]:6443", false), ("127.0.0.2:6445", true), ("[::1]:6445", true)] {
                assert_eq!(list.allows(address.parse().unwrap()), allowed, "{address} with {bound}");
            }
        }
    }

    #[test]
    fn what_is_no_range_is_none() {
        for text in ["", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "example.org", "::/129", "10.0.0/8"] {
            assert_eq!(Cidr::parse(text), None, "{text}");
        }
        assert!(Cidr::parse("0.0.0.0/0").unwrap().contains("203.0.113.9".parse().unwrap()));
    }
}
