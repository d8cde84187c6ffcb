//! Versions of kubelets and kube-proxies, from Node and Pod objects of the cluster.
//!
//! The Node's own field for kube-proxy's version is deprecated and empty in new clusters, so the image of its pods is read.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use discovery::live::{self, Access};
use serde::Deserialize;
use serde::de::DeserializeOwned;

/// Nodes list their images: 250 of them are some megabytes.
const PAGE: usize = 250;
/// Pages of one list: 25,000 nodes, five times what a cluster may have.
const PAGES_MAX: usize = 100;

/// Who has which version: a version, how many have it, one of them.
pub(super) type Versions = BTreeMap<String, (usize, String)>;

/// The versions of all kubelets, or why they are not known.
pub(super) fn kubelets(access: &Access, server: SocketAddr) -> Result<Versions, String> {
    let nodes: Vec<Node> = list(access, server, "/api/v1/nodes?")?;
    Ok(counted(nodes.into_iter().map(|node| (node.status.node_info.kubelet_version, node.metadata.name))))
}

/// The same of kube-proxies.
pub(super) fn proxies(access: &Access, server: SocketAddr) -> Result<Versions, String> {
    let pods: Vec<Pod> = list(access, server, "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app%3Dkube-proxy&")?;
    Ok(counted(pods.into_iter().map(|pod| {
        let named = pod.spec.containers.iter().find(|container| container.name == "kube-proxy");
        let image = named.or_else(|| pod.spec.containers.first()).map_or("", |container| &*container.image);
        (tag(image).to_owned(), pod.spec.node_name.unwrap_or(pod.metadata.name))
    })))
}

fn counted(found: impl Iterator<Item = (String, String)>) -> Versions {
    let mut versions = Versions::new();
    for (version, name) in found {
        versions.entry(version).or_insert((0, name)).0 += 1;
    }
    versions
}

/// The tag of an image, empty when it has none: a port is in front of a slash, a digest behind an `@`.
fn tag(image: &str) -> &str {
    let image = image.split('@').next().unwrap_or_default();
    image.rsplit('/').next().and_then(|name| name.split_once(':')).map_or("", |(_, tag)| tag)
}

fn list<T: DeserializeOwned>(access: &Access, server: SocketAddr, path: &str) -> Result<Vec<T>, String> {
    let mut items = Vec::new();
    let mut next = String::new();
    for _ in 0..PAGES_MAX {
        let path = format!("{path}limit={PAGE}&continue={}", super::super::escape(&next));
        let (status, body) = live::get(access, server, &path).map_err(|error| error.to_string())?;
        match status {
            200 => {}
            401 | 403 => return Err(format!("denied ({status})")),
            _ => return Err(format!("{server} answered {status}")),
        }
        let page: List<T> = serde_json::from_slice(&body).map_err(|error| error.to_string())?;
        items.extend(page.items);
        next = page.metadata.next.unwrap_or_default();
        if next.is_empty() {
            return Ok(items);
        }
    }
    Err(format!("more than {} objects", PAGE * PAGES_MAX))
}

#[derive(Deserialize)]
struct List<T> {
    #[serde(default)]
    metadata: ListMeta,
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(rename = "continue")]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Meta {
    name: String,
}

#[derive(Deserialize)]
struct Node {
    metadata: Meta,
    status: NodeStatus,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeStatus {
    node_info: NodeInfo,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NodeInfo {
    kubelet_version: String,
}

#[derive(Deserialize)]
struct Pod {
    metadata: Meta,
    spec: PodSpec,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PodSpec {
    node_name: Option<String>,
    containers: Vec<Container>,
}

#[derive(Deserialize)]
struct Container {
    name: String,
    image: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_of_images() {
        for (image, expected) in [
            ("registry.k8s.io/kube-proxy:v1.36.0", "v1.36.0"),
            ("registry:5000/kube-proxy:v1.36.0@sha256:abc", "v1.36.0"),
            ("registry:5000/kube-proxy", ""),
            ("kube-proxy@sha256:abc", ""),
            ("kube-proxy:v1.35.1-eksbuild.2", "v1.35.1-eksbuild.2"),
            ("", ""),
        ] {
            assert_eq!(tag(image), expected, "{image}");
        }
    }

    #[test]
    fn objects_are_read() {
        let list: List<Node> = serde_json::from_str(
            r#"{"metadata":{"continue":"x"},"items":[{"metadata":{"name":"a"},"status":{"nodeInfo":{"kubeletVersion":"v1.36.0"}}}]}"#,
        )
        .unwrap();
        assert_eq!((list.metadata.next.as_deref(), &*list.items[0].status.node_info.kubelet_version), (Some("x"), "v1.36.0"));
        let counts = counted([("v1", "a"), ("v2", "b"), ("v1", "c")].into_iter().map(|(v, n)| (v.to_owned(), n.to_owned())));
        assert_eq!(counts["v1"], (2, "a".to_owned()));
    }
}
