//! The types of the discovery documents, fields in the order in which kube-apiserver writes them.

use serde::Serialize;

use super::apis::{Api, Resource};

/// The verbs a twin has for every resource.
const VERBS: [&str; 7] = ["create", "delete", "get", "list", "patch", "update", "watch"];

#[derive(Serialize)]
pub(super) struct Empty {}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupDiscoveryList<'a> {
    pub(super) kind: &'static str,
    pub(super) api_version: String,
    pub(super) metadata: Empty,
    pub(super) items: Vec<GroupDiscovery<'a>>,
}

#[derive(Serialize)]
pub(super) struct GroupDiscovery<'a> {
    metadata: GroupMetadata<'a>,
    versions: Vec<VersionDiscovery<'a>>,
}

#[derive(Serialize)]
struct GroupMetadata<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
}

#[derive(Serialize)]
struct VersionDiscovery<'a> {
    version: &'a str,
    resources: Vec<ResourceDiscovery<'a>>,
    freshness: &'static str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceDiscovery<'a> {
    resource: &'a str,
    response_kind: GroupVersionKind<'a>,
    scope: &'static str,
    singular_resource: &'a str,
    verbs: [&'static str; VERBS.len()],
}

/// Group and version are empty where they are those of the document's own place.
#[derive(Serialize)]
struct GroupVersionKind<'a> {
    group: &'static str,
    version: &'static str,
    kind: &'a str,
}

impl<'a> GroupDiscovery<'a> {
    pub(super) fn new(name: &'a str, versions: &[&'a Api]) -> Self {
        Self { metadata: GroupMetadata { name }, versions: versions.iter().map(|api| VersionDiscovery::new(api)).collect() }
    }
}

impl<'a> VersionDiscovery<'a> {
    fn new(api: &'a Api) -> Self {
        let resource = |resource: &'a Resource| ResourceDiscovery {
            resource: &resource.plural,
            response_kind: GroupVersionKind { group: "", version: "", kind: &resource.kind },
            scope: if resource.namespaced { "Namespaced" } else { "Cluster" },
            singular_resource: &resource.singular,
            verbs: VERBS,
        };
        Self { version: &api.version, resources: api.resources.iter().map(resource).collect(), freshness: "Current" }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ApiVersions<'a> {
    pub(super) kind: &'static str,
    pub(super) versions: Vec<&'a str>,
    #[serde(rename = "serverAddressByClientCIDRs")]
    pub(super) server_address_by_client_cidrs: [AddressByCidr<'a>; 1],
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct AddressByCidr<'a> {
    #[serde(rename = "clientCIDR")]
    pub(super) client_cidr: &'static str,
    pub(super) server_address: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct GroupList<'a> {
    pub(super) kind: &'static str,
    pub(super) api_version: &'static str,
    pub(super) groups: Vec<Group<'a>>,
}

/// A group on its own; in a list it has neither kind nor apiVersion.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TypedGroup<'a> {
    pub(super) kind: &'static str,
    pub(super) api_version: &'static str,
    #[serde(flatten)]
    pub(super) group: &'a Group<'a>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Group<'a> {
    pub(super) name: &'a str,
    versions: Vec<GroupVersion<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    preferred_version: Option<GroupVersion<'a>>,
}

#[derive(Serialize, Clone)]
#[serde(rename_all = "camelCase")]
struct GroupVersion<'a> {
    group_version: String,
    version: &'a str,
}

impl<'a> Group<'a> {
    /// The first version is the preferred one.
    pub(super) fn new(name: &'a str, apis: &[&'a Api]) -> Self {
        let version = |api: &&'a Api| GroupVersion { group_version: api.group_version(), version: &api.version };
        let versions: Vec<GroupVersion<'a>> = apis.iter().map(version).collect();
        Self { name, preferred_version: versions.first().cloned(), versions }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ResourceList<'a> {
    kind: &'static str,
    /// The core group's list goes without.
    #[serde(skip_serializing_if = "Option::is_none")]
    api_version: Option<&'static str>,
    group_version: String,
    resources: Vec<ListedResource<'a>>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ListedResource<'a> {
    name: &'a str,
    singular_name: &'a str,
    namespaced: bool,
    kind: &'a str,
    verbs: [&'static str; VERBS.len()],
}

impl<'a> ResourceList<'a> {
    pub(super) fn new(api: &'a Api) -> Self {
        let resource = |resource: &'a Resource| ListedResource {
            name: &resource.plural,
            singular_name: &resource.singular,
            namespaced: resource.namespaced,
            kind: &resource.kind,
            verbs: VERBS,
        };
        Self {
            kind: "APIResourceList",
            api_version: (!api.group.is_empty()).then_some("v1"),
            group_version: api.group_version(),
            resources: api.resources.iter().map(resource).collect(),
        }
    }
}
