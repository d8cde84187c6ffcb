//! The name of a Kubernetes resource type.

use std::fmt;

/// A group/version/resource, as exact strings: Kubernetes compares them byte for byte, and a
/// subresource is not part of it (`pods/log` routes as `pods`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Gvr {
    /// The API group; empty for the core group.
    pub group: Box<str>,
    /// The version within the group, for example `v1beta1`.
    pub version: Box<str>,
    /// The plural, lower-case resource name, for example `deployments`.
    pub resource: Box<str>,
}

impl Gvr {
    /// A name from its three parts; `group` is empty for the core group.
    pub fn new(group: &str, version: &str, resource: &str) -> Self {
        Self { group: group.into(), version: version.into(), resource: resource.into() }
    }
}

/// `group/version/resource`; the core group is left out (`v1/pods`), as Kubernetes writes it.
impl fmt::Display for Gvr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.group.is_empty() {
            write!(f, "{}/", self.group)?;
        }
        write!(f, "{}/{}", self.version, self.resource)
    }
}

#[cfg(test)]
mod tests {
    use super::Gvr;

    #[test]
    fn display_leaves_the_core_group_out() {
        assert_eq!(Gvr::new("", "v1", "pods").to_string(), "v1/pods");
        assert_eq!(Gvr::new("batch", "v1", "jobs").to_string(), "batch/v1/jobs");
    }
}
