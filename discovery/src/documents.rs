//! Kubernetes' discovery documents, as far as routing needs them: which resources a server names.
//!
//! What always holds: a document is read whole or not at all; it is at most [`BYTES_MAX`] long and [`DEPTH_MAX`] deep, so that a server that
//! lies about itself costs time but no stack (threats.md K4); an entry with a name that Kubernetes would not allow is left out and counted:
//! some names come from extension apiservers, and are in the documents of all servers.
//!
//! It does not fetch anything, and it knows nothing of servers.

use std::fmt;

use serde::Deserialize;

use crate::Gvr;
use crate::name::NAME_MAX;

/// The longest document (threats.md K4): a cluster with 10,000 resources has some 10 MiB.
pub const BYTES_MAX: usize = 32 << 20;
/// The deepest nesting: real ones have 8.
pub const DEPTH_MAX: usize = 64;

/// Why a document cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DocumentError {
    /// Longer than [`BYTES_MAX`].
    TooLong,
    /// Nested deeper than [`DEPTH_MAX`].
    TooDeep,
    /// Not the JSON it should be; the text says where.
    Malformed(String),
    /// Another kind of object.
    Kind(String),
}

impl fmt::Display for DocumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong => write!(f, "longer than {BYTES_MAX} bytes"),
            Self::TooDeep => write!(f, "nested deeper than {DEPTH_MAX}"),
            Self::Malformed(why) => write!(f, "not a discovery document: {why}"),
            Self::Kind(kind) => write!(f, "not a discovery document but `{kind}`"),
        }
    }
}

impl std::error::Error for DocumentError {}

/// What a document names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Named {
    /// Its resources.
    pub gvrs: Vec<Gvr>,
    /// How many entries were left out because of a name that cannot be one.
    pub left_out: usize,
}

impl Named {
    fn add(&mut self, group: &str, version: &str, resource: &str) {
        if !version.is_empty() && !resource.is_empty() && [group, version, resource].into_iter().all(may_be_name) {
            self.gvrs.push(Gvr::new(group, version, resource));
        } else {
            self.left_out += 1;
        }
    }
}

/// The resources of an aggregated document (`APIGroupDiscoveryList`, v2 or v2beta1), of `/api` or `/apis`.
pub fn aggregated(bytes: &[u8]) -> Result<Named, DocumentError> {
    let list: GroupList = parse(bytes)?;
    expect(&list.kind, "APIGroupDiscoveryList")?;
    let mut named = Named::default();
    for group in &list.items {
        for version in &group.versions {
            for resource in &version.resources {
                named.add(&group.metadata.name, &version.version, &resource.resource);
            }
        }
    }
    Ok(named)
}

/// The resources of one group-version (`APIResourceList`, `/apis/<group>/<version>`); subresources are left out, and not counted.
pub fn of_group_version(bytes: &[u8]) -> Result<Named, DocumentError> {
    let list: ResourceList = parse(bytes)?;
    expect(&list.kind, "APIResourceList")?;
    let (group, version) = split_group_version(&list.group_version);
    let mut named = Named::default();
    for resource in list.resources.iter().flatten().filter(|resource| !resource.name.contains('/')) {
        named.add(group, version, &resource.name);
    }
    Ok(named)
}

/// The group-versions that a document of the old form names (`APIVersions` of `/api`, `APIGroupList` of `/apis`). The list comes from objects
/// that all servers share: it says what to ask a server about, not what the server serves.
pub fn named_group_versions(bytes: &[u8]) -> Result<Vec<String>, DocumentError> {
    let list: NamedVersions = parse(bytes)?;
    if list.kind == "APIVersions" {
        return Ok(list.versions);
    }
    expect(&list.kind, "APIGroupList")?;
    Ok(list.groups.into_iter().flat_map(|group| group.versions).map(|version| version.group_version).collect())
}

/// `group/version`, or the bare version of the core group.
pub fn split_group_version(text: &str) -> (&str, &str) {
    text.split_once('/').unwrap_or(("", text))
}

#[derive(Deserialize)]
struct GroupList {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    items: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    #[serde(default)]
    metadata: Metadata,
    #[serde(default)]
    versions: Vec<Version>,
}

#[derive(Default, Deserialize)]
struct Metadata {
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct Version {
    version: String,
    #[serde(default)]
    resources: Vec<Resource>,
}

#[derive(Deserialize)]
struct Resource {
    resource: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ResourceList {
    #[serde(default)]
    kind: String,
    group_version: String,
    /// Null where there are none, in Go.
    resources: Option<Vec<NamedResource>>,
}

#[derive(Deserialize)]
struct NamedResource {
    name: String,
}

#[derive(Deserialize)]
struct NamedVersions {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    versions: Vec<String>,
    #[serde(default)]
    groups: Vec<NamedGroup>,
}

#[derive(Deserialize)]
struct NamedGroup {
    #[serde(default)]
    versions: Vec<NamedVersion>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NamedVersion {
    group_version: String,
}

fn parse<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, DocumentError> {
    if bytes.len() > BYTES_MAX {
        return Err(DocumentError::TooLong);
    }
    if depth(bytes) > DEPTH_MAX {
        return Err(DocumentError::TooDeep);
    }
    serde_json::from_slice(bytes).map_err(|error| DocumentError::Malformed(error.to_string()))
}

fn expect(kind: &str, expected: &str) -> Result<(), DocumentError> {
    if kind == expected { Ok(()) } else { Err(DocumentError::Kind(kind.chars().take(64).collect())) }
}

/// May it be a group, a version or a resource? What no path can name would only be in the way.
pub(crate) fn may_be_name(name: &str) -> bool {
    name.len() <= NAME_MAX && name.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'/')
}

/// How deep brackets are nested, strings left out. One pass over bytes that may be no JSON at all.
fn depth(bytes: &[u8]) -> usize {
    let (mut depth, mut deepest, mut in_string, mut escaped) = (0usize, 0, false, false);
    for &byte in bytes {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGGREGATED: &str = r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[
        {"metadata":{"name":"batch","creationTimestamp":null},"versions":[{"version":"v1","freshness":"Current","resources":[
            {"resource":"cronjobs","responseKind":{"group":"","version":"","kind":"CronJob"},"scope":"Namespaced","verbs":["list"]},
            {"resource":"jobs","scope":"Namespaced","subresources":[{"subresource":"status","verbs":["get"]}]}]}]},
        {"metadata":{},"versions":[{"version":"v1","resources":[{"resource":"pods"}]},{"version":"v2"}]}]}"#;

    fn names(gvrs: &[Gvr]) -> Vec<String> {
        gvrs.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_aggregated_document_names_resources() {
        assert_eq!(names(&aggregated(AGGREGATED.as_bytes()).unwrap().gvrs), ["batch/v1/cronjobs", "batch/v1/jobs", "v1/pods"]);
    }

    #[test]
    fn a_group_version_names_resources_and_not_their_parts() {
        let text = r#"{"kind":"APIResourceList","groupVersion":"batch/v1","resources":[{"name":"jobs"},{"name":"jobs/status"}]}"#;
        assert_eq!(names(&of_group_version(text.as_bytes()).unwrap().gvrs), ["batch/v1/jobs"]);
        let text = r#"{"kind":"APIResourceList","groupVersion":"v1","resources":[{"name":"pods"}]}"#;
        assert_eq!(names(&of_group_version(text.as_bytes()).unwrap().gvrs), ["v1/pods"]);
    }

    #[test]
    fn old_forms_name_group_versions() {
        let named = |text: &str| named_group_versions(text.as_bytes());
        assert_eq!(named(r#"{"kind":"APIVersions","versions":["v1"],"serverAddressByClientCIDRs":[]}"#).unwrap(), ["v1"]);
        let groups = r#"{"kind":"APIGroupList","groups":[{"name":"batch","versions":[{"groupVersion":"batch/v1","version":"v1"}]}]}"#;
        assert_eq!(named(groups).unwrap(), ["batch/v1"]);
        assert_eq!(named(r#"{"kind":"Status"}"#), Err(DocumentError::Kind("Status".into())));
    }

    #[test]
    fn what_is_no_document_is_refused() {
        let refused = |text: &str| aggregated(text.as_bytes()).unwrap_err();
        assert!(matches!(refused("{"), DocumentError::Malformed(_)));
        assert!(matches!(refused("[1]"), DocumentError::Malformed(_)));
        assert_eq!(refused(r#"{"kind":"Status","items":[]}"#), DocumentError::Kind("Status".into()));
        assert_eq!(refused("{}"), DocumentError::Kind(String::new()));
    }

    #[test]
    fn a_name_that_is_none_costs_its_entry_and_no_other() {
        for name in ["", "a b", "a/b", "a\\nb", "\u{e4}", &"x".repeat(254)] {
            let named = aggregated(AGGREGATED.replace("cronjobs", name).as_bytes()).unwrap();
            assert_eq!((names(&named.gvrs), named.left_out), (vec!["batch/v1/jobs".into(), "v1/pods".into()], 1), "{name:?}");
        }
        let named = aggregated(AGGREGATED.replace(r#""name":"batch""#, r#""name":"ba tch""#).as_bytes()).unwrap();
        assert_eq!((names(&named.gvrs), named.left_out), (vec!["v1/pods".into()], 2));
        let text = r#"{"kind":"APIResourceList","groupVersion":"batch/v1",
            "resources":[{"name":"jobs"},{"name":"a b"},{"name":"jobs/status"}]}"#;
        let named = of_group_version(text.as_bytes()).unwrap();
        assert_eq!((names(&named.gvrs), named.left_out), (vec!["batch/v1/jobs".into()], 1));
        let none = of_group_version(br#"{"kind":"APIResourceList","groupVersion":"batch/v1","resources":null}"#);
        assert_eq!(none, Ok(Named::default()));
    }

    #[test]
    fn a_bomb_is_an_error_and_no_stack_overflow() {
        assert_eq!(aggregated("[".repeat(1_000_000).as_bytes()), Err(DocumentError::TooDeep));
        assert_eq!(aggregated(r#"{"a":"#.repeat(65).as_bytes()), Err(DocumentError::TooDeep));
        assert_eq!(aggregated(&vec![b' '; BYTES_MAX + 1]), Err(DocumentError::TooLong));
        // Brackets in strings are text.
        let text = AGGREGATED.replace("CronJob", &"[{".repeat(100));
        assert!(aggregated(text.as_bytes()).is_ok());
        let text = AGGREGATED.replace("CronJob", &format!(r#"\"{}"#, "[".repeat(100)));
        assert!(aggregated(text.as_bytes()).is_ok());
    }
}
