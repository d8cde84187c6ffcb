//! Which server is local: the choice, without the asking.

use std::fmt;

use crate::ServerId;
use crate::inventory::Lease;

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

/// The only server whose Lease names our host. Of several, one may be forged and one left over from a host that had our name: a person says
/// which it is.
pub fn choose(hostname: &str, leases: &[Lease]) -> Result<ServerId, ChoiceError> {
    let is_ours = |lease: &&Lease| lease.hostname.as_deref() == Some(hostname);
    let matching: Vec<ServerId> = leases.iter().filter(is_ours).map(|lease| lease.id.clone()).collect();
    if let [only] = &matching[..] {
        return Ok(only.clone());
    }
    let candidates = leases.iter().map(|lease| (lease.id.clone(), lease.hostname.clone())).collect();
    Err(ChoiceError { hostname: hostname.into(), matching, candidates })
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
