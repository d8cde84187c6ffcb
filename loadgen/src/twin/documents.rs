//! The aggregated and the legacy discovery documents of one set of APIs, written once at the start. Pure.
//!
//! Always: only the aggregated documents have an ETag, and it depends on nothing but the document.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use bytes::Bytes;

use super::apis::Api;
use super::path::Path;
use super::status::json;
use super::wire;

/// The content types of the aggregated documents, newest first.
const AGGREGATED: [(&str, &str); 2] = [
    ("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
    ("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"),
];

/// One document, ready to be sent.
#[derive(Debug, Clone)]
pub(super) struct Document {
    pub(super) body: Bytes,
    pub(super) content_type: &'static str,
    /// Quoted, as in the header; only aggregated documents have one.
    pub(super) etag: Option<String>,
}

/// All documents of a twin.
pub(super) struct Documents {
    /// By path and version of `apidiscovery.k8s.io`.
    aggregated: HashMap<(&'static str, &'static str), Document>,
    /// By path.
    legacy: HashMap<String, Document>,
}

impl Documents {
    pub(super) fn new(apis: &[Api], address: &str) -> Self {
        let mut aggregated = HashMap::new();
        for (version, content_type) in AGGREGATED {
            for (path, core) in [("/api", true), ("/apis", false)] {
                let body = aggregated_list(apis, core, version);
                let etag = Some(etag(&body));
                aggregated.insert((path, version), Document { body, content_type, etag });
            }
        }
        Self { aggregated, legacy: legacy_documents(apis, address) }
    }

    /// The document for a path in the form that `accept` prefers; `None` where the path has none.
    pub(super) fn find(&self, path: &Path, accept: &str) -> Option<&Document> {
        let aggregated = |path| self.aggregated.get(&(path, preferred(accept)?));
        let legacy = |path: &str| self.legacy.get(path);
        match path {
            Path::Core => aggregated("/api").or_else(|| legacy("/api")),
            Path::Groups => aggregated("/apis").or_else(|| legacy("/apis")),
            Path::Group(group) => legacy(&format!("/apis/{group}")),
            Path::GroupVersion(group, version) => legacy(&group_version_path(group, version)),
            _ => None,
        }
    }
}

/// The version of `apidiscovery.k8s.io` that the first acceptable clause of `accept` asks for; `None` is legacy.
///
/// Parameters come in any order; weights (`q`) are ignored, as clients list what they prefer first.
fn preferred(accept: &str) -> Option<&'static str> {
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        if !matches!(parts.next(), Some("application/json" | "application/*" | "*/*")) {
            continue;
        }
        let parameters: HashMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        let known = match (parameters.get("g"), parameters.get("as")) {
            (None, None) => return None,
            (Some(&"apidiscovery.k8s.io"), Some(&"APIGroupDiscoveryList")) => {
                AGGREGATED.iter().find(|(version, _)| parameters.get("v") == Some(version))
            }
            _ => None,
        };
        if let Some((version, _)) = known {
            return Some(version);
        }
    }
    None
}

fn etag(body: &Bytes) -> String {
    let mut hasher = DefaultHasher::new();
    body.hash(&mut hasher);
    format!("\"{:016X}\"", hasher.finish())
}

fn group_version_path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") }
}

fn aggregated_list(apis: &[Api], core: bool, version: &str) -> Bytes {
    let items = groups(apis)
        .into_iter()
        .filter(|(group, _)| group.is_empty() == core)
        .map(|(name, versions)| wire::GroupDiscovery::new(name, &versions))
        .collect();
    json(&wire::GroupDiscoveryList {
        kind: "APIGroupDiscoveryList",
        api_version: format!("apidiscovery.k8s.io/{version}"),
        metadata: wire::Empty {},
        items,
    })
}

fn legacy_documents(apis: &[Api], address: &str) -> HashMap<String, Document> {
    let mut documents = HashMap::new();
    let mut insert = |path: String, body: Bytes| {
        documents.insert(path, Document { body, content_type: "application/json", etag: None });
    };
    let groups = groups(apis);
    let core = groups.iter().find(|(name, _)| name.is_empty());
    let versions = core.map_or_else(Vec::new, |(_, apis)| apis.iter().map(|api| &api.version[..]).collect());
    let cidrs = [wire::AddressByCidr { client_cidr: "0.0.0.0/0", server_address: address }];
    let body = wire::ApiVersions { kind: "APIVersions", versions, server_address_by_client_cidrs: cidrs };
    insert("/api".into(), json(&body));
    let named: Vec<wire::Group<'_>> =
        groups.iter().filter(|(name, _)| !name.is_empty()).map(|(name, apis)| wire::Group::new(name, apis)).collect();
    for group in &named {
        let body = wire::TypedGroup { kind: "APIGroup", api_version: "v1", group };
        insert(format!("/apis/{}", group.name), json(&body));
    }
    let body = wire::GroupList { kind: "APIGroupList", api_version: "v1", groups: named };
    insert("/apis".into(), json(&body));
    for api in apis {
        insert(group_version_path(&api.group, &api.version), json(&wire::ResourceList::new(api)));
    }
    documents
}

/// The group-versions by group, both in the order they were given.
fn groups(apis: &[Api]) -> Vec<(&str, Vec<&Api>)> {
    let mut groups: Vec<(&str, Vec<&Api>)> = Vec::new();
    for api in apis {
        match groups.iter_mut().find(|(name, _)| *name == api.group) {
            Some((_, versions)) => versions.push(api),
            None => groups.push((&api.group, vec![api])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::twin::apis;

    #[test]
    fn accept_decides_the_form() {
        let v2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let nopeer = "application/json;v=v2;as=APIGroupDiscoveryList;profile=nopeer;g=apidiscovery.k8s.io";
        let beta = "application/json; g=apidiscovery.k8s.io; v=v2beta1; as=APIGroupDiscoveryList";
        let table = [
            (format!("{nopeer},{v2},application/json"), Some("v2")),
            (format!("{beta},{v2}"), Some("v2beta1")),
            (format!("application/json,{v2}"), None),
            (format!("application/vnd.kubernetes.protobuf,{v2}"), Some("v2")),
            (v2.replace("v2", "v9"), None),
            ("*/*".into(), None),
            (String::new(), None),
        ];
        for (accept, expected) in table {
            assert_eq!(preferred(&accept), expected, "{accept}");
        }
    }

    #[test]
    fn documents_are_what_kube_apiserver_writes() {
        let documents = Documents::new(&apis::batch(), "127.0.0.1:6443");
        let text = |path, accept: &str| String::from_utf8(documents.find(&Path::parse(path), accept).unwrap().body.to_vec()).unwrap();
        assert_eq!(
            text("/apis/batch", ""),
            r#"{"kind":"APIGroup","apiVersion":"v1","name":"batch","versions":[{"groupVersion":"batch/v1","version":"v1"}],"preferredVersion":{"groupVersion":"batch/v1","version":"v1"}}"#
        );
        assert!(text("/apis/batch/v1", "").starts_with(
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"batch/v1","resources":[{"name":"jobs","singularName":"job","namespaced":true,"kind":"Job","verbs":["#
        ));
        assert!(text("/apis", AGGREGATED[0].1).starts_with(
            r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"batch","creationTimestamp":null},"versions":[{"version":"v1","resources":[{"resource":"jobs","responseKind":{"group":"batch","version":"v1","kind":"Job"},"scope":"Namespaced","singularResource":"job","verbs":["#
        ));
        assert!(documents.find(&Path::parse("/apis/apps"), "").is_none());
    }

    #[test]
    fn the_etag_follows_the_document() {
        let etag = |apis: &[Api]| {
            let documents = Documents::new(apis, "a");
            documents.find(&Path::Groups, AGGREGATED[0].1).unwrap().etag.clone().unwrap()
        };
        assert_eq!(etag(&apis::base()), etag(&apis::base()));
        assert_ne!(etag(&apis::base()), etag(&apis::batch()));
    }
}
