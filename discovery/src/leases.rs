//! Which Leases are believed, and what they say. Pure: names, labels and annotations come in as text.
//!
//! What always holds: only `kube-system`, only the label and the form of name that kube-apiserver itself gives its Leases, only addresses
//! that are literals. Many can write Leases (threats.md §5); what they can make us do is bounded by the allow-list on top of this.

use std::net::SocketAddr;

use crate::ServerId;
use crate::inventory::{Lease, Proxy};

/// Where identity Leases are.
pub const NAMESPACE: &str = "kube-system";
/// What identity Leases are labelled with.
pub const IDENTITY_LABEL: (&str, &str) = ("apiserver.kubernetes.io/identity", "kube-apiserver");
/// Where a kube-apiserver names its host.
pub const HOSTNAME_LABEL: &str = "kubernetes.io/hostname";
/// Where a kube-apiserver says that peers reach it.
pub const ADDRESS_ANNOTATION: &str = "kubernetes.io/peer-advertise-address";
/// What our own Leases are labelled with. Never the label of kube-apiserver: its proxies would take us for a server.
pub const PROXY_LABEL: (&str, &str) = ("mvproxy.io/identity", "peer");
/// What our own Leases are called, before the id of the server.
pub const PROXY_PREFIX: &str = "mvproxy-";
/// Where our own Leases name the peer port.
pub const PROXY_ADDRESS_ANNOTATION: &str = "mvproxy.io/peer-address";
/// Where our own Leases name the address that the server behind advertises.
pub const PROXY_SERVER_ANNOTATION: &str = "mvproxy.io/server-address";
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

/// `apiserver-` and 26 characters of base32 (kubernetes.md §1).
fn is_identity(name: &str) -> bool {
    let digits = name.strip_prefix("apiserver-");
    digits.is_some_and(|digits| digits.len() == 26 && digits.bytes().all(|byte| matches!(byte, b'a'..=b'z' | b'2'..=b'7')))
}

/// `IP:PORT`, a literal, with a port.
fn address(text: &str) -> Option<SocketAddr> {
    if text.len() > TEXT_MAX {
        return None;
    }
    text.parse::<SocketAddr>().ok().filter(|address| address.port() != 0)
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
