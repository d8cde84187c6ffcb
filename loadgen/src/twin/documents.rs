//! The aggregated and the legacy discovery documents of one set of APIs, written once at the start. Pure.
//!
//! Always: only the aggregated documents have an ETag, and it depends on nothing but the document.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::RangeInclusive;

use bytes::Bytes;

use super::apis::Api;
use super::path::Path;
use super::status::line;
use super::wire;

/// The aggregated documents: version, content type, and the minor versions of Kubernetes that have it.
const AGGREGATED: [(&str, &str, RangeInclusive<u32>); 2] = [
    ("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList", 30..=u32::MAX),
    ("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", 26..=32),
];

/// One document, ready to be sent.
#[derive(Debug, Clone)]
pub(super) struct Document {
    pub(super) body: Bytes,
    pub(super) content_type: &'static str,
    /// Quoted, as in the header; only aggregated documents have one.
    pub(super) etag: Option<String>,
}

/// What is at a path.
pub(super) enum Found<'a> {
    Document(&'a Document),
    Nothing,
    /// A document, but in no form that the client takes.
    NotAcceptable,
}

/// In what form a client wants `/api` and `/apis`.
#[derive(Debug, PartialEq, Eq)]
enum Form {
    /// Aggregated, of this version of `apidiscovery.k8s.io`.
    Aggregated(&'static str),
    Legacy,
    None,
}

/// All documents of a twin.
pub(super) struct Documents {
    /// The minor version of Kubernetes.
    minor: u32,
    /// By path and version of `apidiscovery.k8s.io`.
    aggregated: HashMap<(&'static str, &'static str), Document>,
    /// By path.
    legacy: HashMap<String, Document>,
}

impl Documents {
    pub(super) fn new(apis: &[Api], address: &str, minor: u32) -> Self {
        let mut aggregated = HashMap::new();
        for (version, content_type, _) in AGGREGATED {
            for (path, core) in [("/api", true), ("/apis", false)] {
                let body = aggregated_list(apis, core, version);
                let etag = Some(etag(&body));
                aggregated.insert((path, version), Document { body, content_type, etag });
            }
        }
        Self { minor, aggregated, legacy: legacy_documents(apis, address) }
    }

    /// The document for a path in the form that `accept` prefers.
    pub(super) fn find(&self, path: &Path, accept: &str) -> Found<'_> {
        let legacy = |path: &str| self.legacy.get(path).map_or(Found::Nothing, Found::Document);
        match path {
            Path::Core => self.root("/api", accept),
            Path::Groups => self.root("/apis", accept),
            Path::Group(group) => legacy(&format!("/apis/{group}")),
            Path::GroupVersion(group, version) => legacy(&group_version_path(group, version)),
            _ => Found::Nothing,
        }
    }

    fn root(&self, path: &'static str, accept: &str) -> Found<'_> {
        let document = match preferred(accept, self.minor) {
            Form::Aggregated(version) => self.aggregated.get(&(path, version)),
            Form::Legacy => self.legacy.get(path),
            Form::None => return Found::NotAcceptable,
        };
        document.map_or(Found::Nothing, Found::Document)
    }
}

/// The form that the first acceptable clause of `accept` asks for.
///
/// Parameters come in any order; weights (`q`) are ignored, as clients list what they prefer first.
fn preferred(accept: &str, minor: u32) -> Form {
    if accept.is_empty() {
        return Form::Legacy;
    }
    for clause in accept.split(',') {
        let mut parts = clause.split(';').map(str::trim);
        if !matches!(parts.next(), Some("application/json" | "application/*" | "*/*")) {
            continue;
        }
        let parameters: HashMap<&str, &str> = parts.filter_map(|part| part.split_once('=')).collect();
        let known = match (parameters.get("g"), parameters.get("as")) {
            (None, None) => return Form::Legacy,
            (Some(&"apidiscovery.k8s.io"), Some(&"APIGroupDiscoveryList")) => {
                AGGREGATED.iter().find(|(version, _, minors)| parameters.get("v") == Some(version) && minors.contains(&minor))
            }
            _ => None,
        };
        if let Some((version, ..)) = known {
            return Form::Aggregated(version);
        }
    }
    Form::None
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
    line(&wire::GroupDiscoveryList {
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
    insert("/api".into(), line(&body));
    let named: Vec<wire::Group<'_>> =
        groups.iter().filter(|(name, _)| !name.is_empty()).map(|(name, apis)| wire::Group::new(name, apis)).collect();
    for group in &named {
        let body = wire::TypedGroup { kind: "APIGroup", api_version: "v1", group };
        insert(format!("/apis/{}", group.name), line(&body));
    }
    let body = wire::GroupList { kind: "APIGroupList", api_version: "v1", groups: named };
    insert("/apis".into(), line(&body));
    for api in apis {
        insert(group_version_path(&api.group, &api.version), line(&wire::ResourceList::new(api)));
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
            (format!("{nopeer},{v2},application/json"), 36, Form::Aggregated("v2")),
            (format!("{beta},{v2}"), 36, Form::Aggregated("v2")),
            (format!("{beta},{v2}"), 32, Form::Aggregated("v2beta1")),
            (format!("{v2},{beta}"), 29, Form::Aggregated("v2beta1")),
            (format!("{v2},application/json"), 25, Form::Legacy),
            (format!("application/json,{v2}"), 36, Form::Legacy),
            (format!("application/vnd.kubernetes.protobuf,{v2}"), 36, Form::Aggregated("v2")),
            (beta.into(), 36, Form::None),
            (v2.replace("v2", "v9"), 36, Form::None),
            ("*/*".into(), 36, Form::Legacy),
            (String::new(), 36, Form::Legacy),
        ];
        for (accept, minor, expected) in table {
            assert_eq!(preferred(&accept, minor), expected, "{accept} of v1.{minor}");
        }
    }

    #[test]
    fn documents_are_what_kube_apiserver_writes() {
        let documents = Documents::new(&apis::batch(), "127.0.0.1:6443", 36);
        let text = |path, accept: &str| match documents.find(&Path::parse(path), accept) {
            Found::Document(document) => String::from_utf8(document.body.to_vec()).unwrap(),
            _ => String::new(),
        };
        assert_eq!(
            text("/apis/batch", ""),
            r#"{"kind":"APIGroup","apiVersion":"v1","name":"batch","versions":[{"groupVersion":"batch/v1","version":"v1"}],"preferredVersion":{"groupVersion":"batch/v1","version":"v1"}}
"#
        );
        assert!(text("/apis/batch/v1", "").starts_with(
            r#"{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"batch/v1","resources":[{"name":"jobs","singularName":"job","namespaced":true,"kind":"Job","verbs":["#
        ));
        assert!(text("/apis", AGGREGATED[0].1).starts_with(
            r#"{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{"name":"batch"},"versions":[{"version":"v1","resources":[{"resource":"jobs","responseKind":{"group":"","version":"","kind":"Job"},"scope":"Namespaced","singularResource":"job","verbs":["#
        ));
        assert_eq!(text("/apis/apps", ""), "");
    }

    #[test]
    fn the_etag_follows_the_document() {
        let etag = |apis: &[Api]| {
            let documents = Documents::new(apis, "a", 36);
            documents.aggregated[&("/apis", "v2")].etag.clone().unwrap()
        };
        assert_eq!(etag(&apis::everywhere()), etag(&apis::everywhere()));
        assert_ne!(etag(&apis::everywhere()), etag(&apis::batch()));
    }
}
