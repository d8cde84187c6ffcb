//! Which Leases are believed, and what they say. Pure: names, labels and annotations come in as text.
//!
//! What always holds: only `kube-system`, only the label and the form of name that kube-apiserver itself gives its Leases, only addresses
//! that are literals. Many can write Leases (threats.md §5); what they can make us do is bounded by the allow-list on top of this.

use std::net::SocketAddr;

use aws_lc_rs::digest::{SHA256, digest};

use crate::ServerId;
use crate::inventory::{Lease, Proxy};

/// Where identity Leases are.
pub(crate) const NAMESPACE: &str = "kube-system";
/// What identity Leases are labelled with.
pub(crate) const IDENTITY_LABEL: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
/// What identity Leases are called, before the hash of the host.
const IDENTITY_PREFIX: &str = "apiserver-";
/// Where a kube-apiserver names its host.
const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
/// Where a kube-apiserver says that peers reach it.
const ADDRESS_ANNOTATION: &str = "kubernetes.io/peer-advertise-address";
/// What our own Leases are labelled with. Never the label of kube-apiserver: its proxies would take us for a server.
pub(crate) const PROXY_LABEL: (&str, &str) = ("mvproxy.io/identity", "peer");
/// What our own Leases are called, before the id of the server.
pub(crate) const PROXY_PREFIX: &str = "mvproxy-";
/// Where our own Leases name the peer port.
pub(crate) const PROXY_ADDRESS_ANNOTATION: &str = "mvproxy.io/peer-address";
/// Where our own Leases name the address that the server behind advertises.
pub(crate) const PROXY_SERVER_ANNOTATION: &str = "mvproxy.io/server-address";
/// No holder or address is longer.
const TEXT_MAX: usize = 512;

/// A Lease as text.
#[derive(Clone, Copy, Debug)]
pub struct Text<'a> {
    /// `metadata.namespace`.
    pub namespace: &'a str,
    /// `metadata.name`.
    pub name: &'a str,
    /// `spec.holderIdentity`.
    pub holder: Option<&'a str>,
}

/// An identity Lease, if it is one. `label` and `annotation` look up values by key.
pub fn identity<'a>(
    text: Text<'_>,
    label: impl Fn(&str) -> Option<&'a str>,
    annotation: impl Fn(&str) -> Option<&'a str>,
) -> Option<Lease> {
    let holder = text.holder.filter(|holder| !holder.is_empty() && holder.len() <= TEXT_MAX)?;
    let fits = text.namespace == NAMESPACE && label(IDENTITY_LABEL.0) == Some(IDENTITY_LABEL.1) && is_identity(text.name);
    let hostname = label(HOSTNAME_LABEL).filter(|name| !name.is_empty() && name.len() <= TEXT_MAX);
    fits.then(|| Lease {
        id: ServerId::new(text.name),
        holder: holder.into(),
        address: annotation(ADDRESS_ANNOTATION).and_then(address),
        hostname: hostname.map(Into::into),
    })
}

/// A Lease of another mvproxy, if it is one.
pub fn proxy<'a>(text: Text<'_>, label: impl Fn(&str) -> Option<&'a str>, annotation: impl Fn(&str) -> Option<&'a str>) -> Option<Proxy> {
    let server = text.name.strip_prefix(PROXY_PREFIX).filter(|id| is_identity(id))?;
    if text.namespace != NAMESPACE || label(PROXY_LABEL.0) != Some(PROXY_LABEL.1) {
        return None;
    }
    Some(Proxy {
        server: ServerId::new(server),
        address: annotation(PROXY_ADDRESS_ANNOTATION).and_then(address)?,
        advertised: annotation(PROXY_SERVER_ANNOTATION).and_then(address),
    })
}

/// What the kube-apiserver of a host calls its Lease: a hash of the host's name (k8s.io/apiserver, pkg/server/config.go).
pub fn name_on(hostname: &str) -> String {
    let mut hashed = Vec::new();
    for part in [hostname, "kube-apiserver"] {
        // Names of hosts have at most 253 bytes.
        hashed.extend_from_slice(&u16::try_from(part.len()).unwrap_or(u16::MAX).to_be_bytes());
        hashed.extend_from_slice(part.as_bytes());
    }
    format!("{IDENTITY_PREFIX}{}", base32(&digest(&SHA256, &hashed).as_ref()[..16]))
}

/// Is it called what the kube-apiserver of the host that it names would call it?
pub(crate) fn is_named_by_host(lease: &Lease) -> bool {
    lease.hostname.as_deref().is_some_and(|hostname| name_on(hostname) == lease.id.as_str())
}

/// RFC 4648 §6 in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let digit = |at: usize| (0..5).fold(0, |digit, offset| digit << 1 | usize::from(bit(at + offset)));
    (0..bytes.len() * 8).step_by(5).map(|at| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[digit(at)])).collect()
}

/// `apiserver-` and 26 characters of base32 (kubernetes.md §1).
fn is_identity(name: &str) -> bool {
    let digits = name.strip_prefix(IDENTITY_PREFIX);
    digits.is_some_and(|digits| digits.len() == 26 && digits.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')))
}

/// `IP:PORT`, a literal, with a port. Two texts that lead to the same place are the same address.
fn address(text: &str) -> Option<SocketAddr> {
    if text.len() > TEXT_MAX {
        return None;
    }
    let address = text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0)?;
    Some(SocketAddr::new(address.ip().to_canonical(), address.port()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "apiserver-tqsyvnc7rs47fayzipsuqpfg4m";

    fn read(namespace: &str, name: &str, label: &str, holder: Option<&str>, at: &str) -> Option<Lease> {
        let text = Text { namespace, name, holder };
        let (label, at) = (label.to_owned(), at.to_owned());
        identity(text, |key| (key == IDENTITY_LABEL.0).then_some(&*label), |key| (key == ADDRESS_ANNOTATION).then_some(&*at))
    }

    #[test]
    fn an_identity_lease_is_believed() {
        let lease = read("kube-system", NAME, "kube-apiserver", Some("x_1"), "10.0.0.1:6443").unwrap();
        assert_eq!((lease.id.as_str(), &*lease.holder, lease.address), (NAME, "x_1", Some("10.0.0.1:6443".parse().unwrap())));
    }

    #[test]
    fn what_is_none_is_not() {
        let good = ("kube-system", NAME, "kube-apiserver", Some("x"));
        let longer = format!("{NAME}a");
        let upper = NAME.to_uppercase();
        for (namespace, name, label, holder) in [
            ("default", good.1, good.2, good.3),
            (good.0, "apiserver-short", good.2, good.3),
            (good.0, &longer, good.2, good.3),
            (good.0, &upper, good.2, good.3),
            (good.0, "evil", good.2, good.3),
            (good.0, good.1, "kube-scheduler", good.3),
            (good.0, good.1, good.2, None),
            (good.0, good.1, good.2, Some("")),
        ] {
            assert_eq!(read(namespace, name, label, holder, "10.0.0.1:6443"), None, "{namespace} {name} {label} {holder:?}");
        }
    }

    #[test]
    fn an_address_that_is_none_leaves_the_rest() {
        let megabyte = "1".repeat(1 << 20);
        for at in ["", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:65536", "example.org:6443", "10.0.0.1:6443/x", " 10.0.0.1:6443", &megabyte] {
            let lease = read("kube-system", NAME, "kube-apiserver", Some("x"), at).unwrap();
            assert_eq!(lease.address, None, "{}", &at[..at.len().min(40)]);
        }
    }

    #[test]
    fn a_place_has_one_address() {
        for (text, place) in [
            ("[::ffff:10.0.0.1]:6443", "10.0.0.1:6443"),
            ("[2001:db8::1%7]:6443", "[2001:db8::1]:6443"),
            ("[2001:0db8:0::0001]:6443", "[2001:db8::1]:6443"),
        ] {
            assert_eq!(address(text), place.parse().ok(), "{text}");
        }
    }

    #[test]
    fn a_lease_is_named_by_its_host() {
        // As seen on real servers.
        assert_eq!(name_on("cp-a"), NAME);
        // RFC 4648 §10.
        assert_eq!(base32(b"foobar"), "mzxw6ytboi");
        let on = |hostname: Option<&str>| {
            let hostname = hostname.map(Into::into);
            Lease { id: ServerId::new(NAME), holder: "x".into(), address: None, hostname }
        };
        assert!(is_named_by_host(&on(Some("cp-a"))));
        assert!(!is_named_by_host(&on(Some("cp-b"))));
        assert!(!is_named_by_host(&on(None)));
    }

    #[test]
    fn a_proxy_says_where_it_is() {
        let name = format!("{PROXY_PREFIX}{NAME}");
        let read = |namespace, name: &str, at: &'static str| {
            let text = Text { namespace, name, holder: None };
            proxy(text, |_| Some(PROXY_LABEL.1), |key| (key == PROXY_ADDRESS_ANNOTATION).then_some(at))
        };
        let found = read("kube-system", &name, "10.0.0.2:6445").unwrap();
        assert_eq!((found.server.as_str(), found.address, found.advertised), (NAME, "10.0.0.2:6445".parse().unwrap(), None));
        assert_eq!(read("default", &name, "10.0.0.2:6445"), None);
        assert_eq!(read("kube-system", NAME, "10.0.0.2:6445"), None);
        assert_eq!(read("kube-system", &name, "nowhere"), None);
    }
}
