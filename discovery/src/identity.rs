//! Which server is local: the choice, without the asking.

use std::fmt;

use crate::ServerId;
use crate::inventory::Lease;
use crate::leases::name_on;

/// Why no server could be called local.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceError {
    hostname: Box<str>,
    /// Servers whose Lease names our host; none, or several.
    pub matching: Vec<ServerId>,
    /// All servers, with the hosts they name.
    pub candidates: Vec<(ServerId, Option<Box<str>>)>,
}

impl fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (count, hostname) = (self.matching.len(), &self.hostname);
        match count {
            0 => write!(f, "no apiserver's identity Lease has the label kubernetes.io/hostname={hostname}")?,
            _ => write!(f, "{count} apiservers' identity Leases have the label kubernetes.io/hostname={hostname}")?,
        }
        write!(f, ": say which is local with --server-id; there are")?;
        if self.candidates.is_empty() {
            return write!(f, " none");
        }
        for (nth, (id, host)) in self.candidates.iter().enumerate() {
            let separator = if nth == 0 { " " } else { ", " };
            write!(f, "{separator}{id} (host {})", host.as_deref().unwrap_or("unknown"))?;
        }
        Ok(())
    }
}

impl std::error::Error for ChoiceError {}

/// The server whose Lease names our host; of several the one whose name is the hash of our host's, as it is when kube-apiserver wrote it.
/// Nobody can write another with that name.
pub fn choose(hostname: &str, leases: &[Lease]) -> Result<ServerId, ChoiceError> {
    let is_ours = |lease: &&Lease| lease.hostname.as_deref() == Some(hostname);
    let matching: Vec<ServerId> = leases.iter().filter(is_ours).map(|lease| lease.id.clone()).collect();
    let chosen = match &matching[..] {
        [only] => Some(only),
        several => several.iter().find(|id| id.as_str() == name_on(hostname)),
    };
    chosen.cloned().ok_or_else(|| {
        let candidates = leases.iter().map(|lease| (lease.id.clone(), lease.hostname.clone())).collect();
        ChoiceError { hostname: hostname.into(), matching, candidates }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(id: &str, host: Option<&str>) -> Lease {
        Lease { id: ServerId::new(id), holder: "x".into(), address: None, hostname: host.map(Into::into) }
    }

    #[test]
    fn the_one_on_our_host_is_local() {
        let leases = [lease("a", Some("one")), lease("b", Some("two")), lease("c", None)];
        assert_eq!(choose("two", &leases), Ok(ServerId::new("b")));
    }

    #[test]
    fn of_several_the_one_that_our_host_names_is_local() {
        let ours = name_on("one");
        let (forged, real) = (lease("apiserver-aaaaaaaaaaaaaaaaaaaaaaaaaa", Some("one")), lease(&ours, Some("one")));
        assert_eq!(choose("one", &[forged.clone(), real]), Ok(ServerId::new(&ours)));
        assert_eq!(choose("one", std::slice::from_ref(&forged)), Ok(forged.id.clone()), "alone it may be one of another making");
        // A name of ours without our label, and the hash of another host, say nothing.
        let strangers = [forged, lease("b", Some("one")), lease(&ours, Some("two")), lease(&name_on("two"), Some("one"))];
        assert_eq!(choose("one", &strangers).unwrap_err().matching.len(), 3);
    }

    #[test]
    fn none_or_several_is_an_error_that_names_them() {
        let leases = [lease("a", Some("one")), lease("b", Some("one")), lease("c", None)];
        let none = choose("two", &leases).unwrap_err();
        assert_eq!(
            none.to_string(),
            "no apiserver's identity Lease has the label kubernetes.io/hostname=two: say which is local with --server-id; \
             there are a (host one), b (host one), c (host unknown)"
        );
        let several = choose("one", &leases).unwrap_err();
        assert_eq!(several.matching, [ServerId::new("a"), ServerId::new("b")]);
        assert!(several.to_string().starts_with("2 apiservers' identity Leases have"), "{several}");
        assert!(choose("one", &[]).unwrap_err().to_string().ends_with("there are none"));
    }
}
