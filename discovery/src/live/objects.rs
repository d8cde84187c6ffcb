//! The few fields of API objects that are read. Whatever else they have (schemas of CRDs, say) is passed over without being kept.
//!
//! What always holds: no field of an object makes it unreadable. Many can write Leases and EndpointSlices, and one that cannot be read would
//! cost the list that it is in, and so all objects of its kind.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::de::MapAccess;
use serde::{Deserialize, Deserializer};

use super::fetch::GVRS_MAX;
use super::loose::{self, IsThere, Loose};
use crate::documents::{may_be_name, split_group_version};
use crate::inventory::{self, GroupVersion, Proxy};
use crate::leases;
use crate::{Gvr, ServerId};

/// The slice that the servers themselves keep.
const ENDPOINTS_NAME: &str = "kubernetes";

/// Declares an object with its place in the API.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $group:literal, $version:literal, $plural:literal, $scope:ident, { $($field:ident: $type:ty),* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub(super) struct $name {
            #[serde(default, deserialize_with = "metadata")]
            metadata: ObjectMeta,
            $(#[serde(default, deserialize_with = "loose::read")] $field: $type,)*
        }

        impl kube::Resource for $name {
            type DynamicType = ();
            type Scope = k8s_openapi::$scope;

            fn kind(_: &()) -> Cow<'_, str> {
                stringify!($name).into()
            }

            fn group(_: &()) -> Cow<'_, str> {
                $group.into()
            }

            fn version(_: &()) -> Cow<'_, str> {
                $version.into()
            }

            fn plural(_: &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

object!(
    /// An identity, of an apiserver or of a proxy.
    Lease, "coordination.k8s.io", "v1", "leases", NamespaceResourceScope, { spec: LeaseSpec }
);
object!(
    /// What makes group-versions custom.
    CustomResourceDefinition, "apiextensions.k8s.io", "v1", "customresourcedefinitions", ClusterResourceScope, { spec: CrdSpec }
);
object!(
    /// What makes a group-version aggregated, if it has a service.
    APIService, "apiregistration.k8s.io", "v1", "apiservices", ClusterResourceScope, { spec: ApiServiceSpec }
);
object!(
    /// Addresses of a Service.
    EndpointSlice, "discovery.k8s.io", "v1", "endpointslices", NamespaceResourceScope,
    { endpoints: Vec<Endpoint>, ports: Vec<Port> }
);
object!(
    /// Which server serves which versions of a resource.
    StorageVersion, "internal.apiserver.k8s.io", "v1alpha1", "storageversions", ClusterResourceScope, { status: StorageVersionStatus }
);

/// Declares a part of an object.
macro_rules! part {
    ($(#[$doc:meta])* $name:ident, { $($(#[$rename:meta])? $field:ident: $type:ty),* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct $name {
            $($(#[$rename])? #[serde(default, deserialize_with = "loose::read")] $field: $type,)*
        }

        impl Loose for $name {
            fn of_object<'de, A: MapAccess<'de>>(object: A) -> Result<Self, A::Error> {
                loose::fields(object)
            }
        }
    };
}

part!(
    /// What is read of metadata, and what watches need. The times in it are not: Kubernetes takes some that `ObjectMeta` does not.
    Metadata,
    {
        name: Option<String>,
        namespace: Option<String>,
        resource_version: Option<String>,
        labels: BTreeMap<String, String>,
        annotations: BTreeMap<String, String>
    }
);
part!(LeaseSpec, { holder_identity: Option<String> });
part!(CrdSpec, { group: String, versions: Vec<CrdVersion> });
part!(CrdVersion, { name: String });
part!(ApiServiceSpec, { group: String, version: String, service: IsThere });
part!(Endpoint, { addresses: Vec<String> });
part!(Port, { name: Option<String>, port: Option<u16> });
part!(StorageVersionStatus, { storage_versions: Vec<ServerStorageVersion> });
part!(ServerStorageVersion, { #[serde(rename = "apiServerID")] api_server_id: String, served_versions: Vec<String> });

fn metadata<'de, D: Deserializer<'de>>(from: D) -> Result<ObjectMeta, D::Error> {
    let Metadata { name, namespace, resource_version, labels, annotations } = loose::read(from)?;
    let (labels, annotations) = (Some(labels), Some(annotations));
    Ok(ObjectMeta { name, namespace, resource_version, labels, annotations, ..ObjectMeta::default() })
}

impl Lease {
    fn text(&self) -> leases::Text<'_> {
        leases::Text {
            namespace: self.metadata.namespace.as_deref().unwrap_or_default(),
            name: self.metadata.name.as_deref().unwrap_or_default(),
            holder: self.spec.holder_identity.as_deref(),
        }
    }
}

/// The identity of an apiserver, if it is one.
pub(super) fn identity(lease: &Lease) -> Option<inventory::Lease> {
    let (labels, annotations) = (lease.metadata.labels.as_ref(), lease.metadata.annotations.as_ref());
    leases::identity(lease.text(), |key| value(labels, key), |key| value(annotations, key))
}

/// The Lease of a proxy, if it is one.
pub(super) fn proxy(lease: &Lease) -> Option<Proxy> {
    let (labels, annotations) = (lease.metadata.labels.as_ref(), lease.metadata.annotations.as_ref());
    leases::proxy(lease.text(), |key| value(labels, key), |key| value(annotations, key))
}

/// Of labels or annotations.
fn value<'a>(all: Option<&'a BTreeMap<String, String>>, key: &str) -> Option<&'a str> {
    all?.get(key).map(String::as_str)
}

/// The group-versions of a CRD.
pub(super) fn custom(crd: &CustomResourceDefinition) -> Option<Vec<GroupVersion>> {
    let versions = crd.spec.versions.iter().filter(|version| is_group_version(&crd.spec.group, &version.name));
    Some(versions.map(|version| (crd.spec.group.as_str().into(), version.name.as_str().into())).collect())
}

/// The group-version of an APIService, if another server is behind it.
pub(super) fn aggregated(service: &APIService) -> Option<GroupVersion> {
    let spec = &service.spec;
    let is_one = spec.service.0 && is_group_version(&spec.group, &spec.version);
    is_one.then(|| (spec.group.as_str().into(), spec.version.as_str().into()))
}

fn is_group_version(group: &str, version: &str) -> bool {
    !version.is_empty() && may_be_name(version) && may_be_name(group)
}

/// The addresses of the servers' own slice: literals, each with the port that is called `https`, or the only one. Others may have its label,
/// and count for nothing: what it names may be connected to.
pub(super) fn endpoints(slice: &EndpointSlice) -> Option<Vec<SocketAddr>> {
    if slice.metadata.name.as_deref() != Some(ENDPOINTS_NAME) {
        return None;
    }
    let port = match &slice.ports[..] {
        [only] => only.port,
        several => several.iter().find(|port| port.name.as_deref() == Some("https")).and_then(|port| port.port),
    };
    let port = port.filter(|&port| port != 0)?;
    let addresses = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
    Some(addresses.filter_map(|address| Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, port))).collect())
}

/// What all StorageVersions say, as far as it can be true: no server has more than [`GVRS_MAX`].
pub(super) fn storages(listed: Vec<Vec<(ServerId, Gvr)>>) -> Vec<(ServerId, Gvr)> {
    let mut counts: HashMap<ServerId, usize> = HashMap::new();
    let mut all = listed.concat();
    all.retain(|(server, _)| {
        let count = counts.entry(server.clone()).or_default();
        *count += 1;
        *count <= GVRS_MAX
    });
    all
}

/// Who serves the resource of a StorageVersion, and in which versions. What cannot be a resource would be in the way of every snapshot.
pub(super) fn storage(version: &StorageVersion) -> Option<Vec<(ServerId, Gvr)>> {
    // `<group>.<resource>`, split at the last dot; what is served names its own group.
    let (_, resource) =
        version.metadata.name.as_deref()?.rsplit_once('.').filter(|(_, resource)| !resource.is_empty() && may_be_name(resource))?;
    let mut found = Vec::new();
    for server in &version.status.storage_versions {
        for served in &server.served_versions {
            let (group, version) = split_group_version(served);
            if is_group_version(group, version) {
                found.push((ServerId::new(&server.api_server_id), Gvr::new(group, version, resource)));
            }
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse<T: serde::de::DeserializeOwned>(text: &str) -> T {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_lease_is_read() {
        let lease: Lease = parse(
            r#"{"metadata":{"namespace":"kube-system","name":"apiserver-tqsyvnc7rs47fayzipsuqpfg4m",
                "labels":{"apiserver.kubernetes.io/identity":"kube-apiserver","kubernetes.io/hostname":"cp-a"},
                "annotations":{"kubernetes.io/peer-advertise-address":"10.0.0.1:6443"}},
                "spec":{"holderIdentity":"x_1","leaseDurationSeconds":3600}}"#,
        );
        let read = identity(&lease).unwrap();
        assert_eq!((&*read.holder, read.hostname.as_deref(), read.address), ("x_1", Some("cp-a"), "10.0.0.1:6443".parse().ok()));
        assert_eq!(proxy(&lease), None);
    }

    #[test]
    fn group_versions_of_crds_and_services_are_read() {
        let crd: CustomResourceDefinition = parse(
            r#"{"metadata":{"name":"things.example.org"},"spec":{"group":"example.org","names":{"plural":"things"},
                "versions":[{"name":"v1","served":true,"schema":{"openAPIV3Schema":{"type":"object"}}},{"name":"v2"},{"name":""}]}}"#,
        );
        assert_eq!(custom(&crd).unwrap(), [("example.org".into(), "v1".into()), ("example.org".into(), "v2".into())]);
        let service: APIService = parse(r#"{"metadata":{},"spec":{"group":"metrics.k8s.io","version":"v1beta1","service":{"name":"m"}}}"#);
        assert_eq!(aggregated(&service).unwrap(), ("metrics.k8s.io".into(), "v1beta1".into()));
        for local in
            [r#"{"metadata":{},"spec":{"group":"batch","version":"v1"}}"#, r#"{"metadata":{},"spec":{"service":null,"version":"v1"}}"#]
        {
            assert_eq!(aggregated(&parse(local)), None);
        }
    }

    #[test]
    fn endpoints_are_literals_with_a_port() {
        let text = r#"{"metadata":{"name":"kubernetes"},"addressType":"IPv4",
            "endpoints":[{"addresses":["10.0.0.1"]},{"addresses":["example.org","10.0.0.2"]}],"ports":[{"name":"https","port":6443}]}"#;
        let found = endpoints(&parse(text)).unwrap();
        assert_eq!(found, ["10.0.0.1:6443".parse().unwrap(), "10.0.0.2:6443".parse().unwrap()]);
        assert_eq!(endpoints(&parse(r#"{"metadata":{"name":"kubernetes"},"endpoints":null,"ports":null}"#)), None);
        for name in [r#"{"name":"evil"}"#, r#"{"name":"kubernetes-2"}"#, "{}"] {
            assert_eq!(endpoints(&parse(&text.replace(r#"{"name":"kubernetes"}"#, name))), None, "{name}");
        }
    }

    /// Kubernetes takes this time, and jiff does not.
    const LATEST: &str = r#"{"manager":"x","operation":"Update","time":"9999-12-31T23:59:59Z"}"#;

    #[test]
    fn an_odd_object_costs_no_other() {
        let lease = format!(
            r#"{{"metadata":{{"namespace":"kube-system","name":"apiserver-tqsyvnc7rs47fayzipsuqpfg4m","managedFields":[{LATEST}],
                "resourceVersion":"7","creationTimestamp":"9999-12-31T23:59:59Z","generation":-1e300,
                "labels":{{"apiserver.kubernetes.io/identity":"kube-apiserver","n":1,"o":{{}}}},"annotations":[1]}},
                "spec":{{"holderIdentity":"x_1"}}}}"#
        );
        let odd = [r#"{"metadata":{"name":{"a":[1]}},"spec":"none"}"#, r#"{"metadata":7,"spec":{"holderIdentity":7}}"#, "{}"];
        let list = format!(r#"{{"metadata":{{"resourceVersion":"9"}},"items":[{},{lease}]}}"#, odd.join(","));
        let list: kube::core::ObjectList<Lease> = parse(&list);
        assert_eq!(list.items.iter().filter_map(identity).count(), 1);
        for object in odd.into_iter().chain([&*lease]) {
            let event: kube::core::WatchEvent<Lease> = parse(&format!(r#"{{"type":"ADDED","object":{object}}}"#));
            let kube::core::WatchEvent::Added(lease) = event else { panic!("{event:?}") };
            assert_eq!(identity(&lease).is_some(), lease.metadata.resource_version.as_deref() == Some("7"), "{object}");
        }
    }

    #[test]
    fn what_is_no_port_is_none() {
        let of = |port: &str| {
            let ports = format!(r#""ports":[{{"name":"x","port":{port}}},{{"name":"https","port":6443}}]"#);
            endpoints(&parse(&format!(r#"{{"metadata":{{"name":"kubernetes"}},"endpoints":[{{"addresses":["10.0.0.1",1]}}],{ports}}}"#)))
        };
        for port in ["65536", "-1", "0.5", "null", "\"https\"", "[]", "{}", "true", "18446744073709551615"] {
            assert_eq!(of(port).unwrap(), ["10.0.0.1:6443".parse().unwrap()], "{port}");
            let only = format!(r#"{{"metadata":{{"name":"kubernetes"}},"endpoints":7,"ports":[{{"port":{port}}}]}}"#);
            assert_eq!(endpoints(&parse(&only)), None, "{port}");
        }
    }

    #[test]
    fn storage_versions_name_servers() {
        let version: StorageVersion = parse(
            r#"{"metadata":{"name":"rbac.authorization.k8s.io.roles"},"spec":{},"status":{"storageVersions":[
                {"apiServerID":"a","servedVersions":["rbac.authorization.k8s.io/v1"]},{"apiServerID":"b"}]}}"#,
        );
        assert_eq!(storage(&version).unwrap(), [(ServerId::new("a"), Gvr::new("rbac.authorization.k8s.io", "v1", "roles"))]);
        let core: StorageVersion =
            parse(r#"{"metadata":{"name":"core.pods"},"status":{"storageVersions":[{"apiServerID":"a","servedVersions":["v1"]}]}}"#);
        assert_eq!(storage(&core).unwrap(), [(ServerId::new("a"), Gvr::new("", "v1", "pods"))]);
    }

    #[test]
    fn storage_versions_name_what_can_be() {
        let version = |name: &str| -> StorageVersion {
            parse(&format!(
                r#"{{"metadata":{{"name":"{name}"}},"status":{{"storageVersions":[{{"apiServerID":"a","servedVersions":["v1"]}}]}}}}"#
            ))
        };
        assert!(storage(&version("core.pods")).is_some());
        for name in ["core.pods/log", "core.", "core.a b", "core", "core.\u{e4}", &format!("core.{}", "x".repeat(254))] {
            assert_eq!(storage(&version(name)), None, "{name}");
        }
    }

    #[test]
    fn no_server_is_said_to_serve_too_much() {
        let entry = |server: &str, nth: usize| (ServerId::new(server), Gvr::new("", "v1", &format!("r{nth}")));
        let many = (0..GVRS_MAX + 5).map(|nth| entry("a", nth)).collect();
        let kept = storages(vec![many, vec![entry("b", 0)], vec![entry("a", 0)]]);
        assert_eq!((kept.len(), kept.last()), (GVRS_MAX + 1, Some(&entry("b", 0))));
    }
}
