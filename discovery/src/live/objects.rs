//! The few fields of API objects that are read. Whatever else they have (schemas of CRDs, say) is passed over without being kept.

use std::borrow::Cow;
use std::net::{IpAddr, SocketAddr};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::documents::split_group_version;
use crate::inventory::{self, GroupVersion, Proxy};
use crate::leases;
use crate::table::NAME_MAX;
use crate::{Gvr, ServerId};

/// Declares an object with its place in the API.
macro_rules! object {
    ($(#[$doc:meta])* $name:ident, $group:literal, $version:literal, $plural:literal, $scope:ident, { $($field:ident: $type:ty),* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Deserialize)]
        #[serde(rename_all = "camelCase")]
        pub(super) struct $name {
            metadata: ObjectMeta,
            $(#[serde(default)] $field: $type,)*
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
    { endpoints: Option<Vec<Endpoint>>, ports: Option<Vec<Port>> }
);
object!(
    /// Which server serves which versions of a resource.
    StorageVersion, "internal.apiserver.k8s.io", "v1alpha1", "storageversions", ClusterResourceScope, { status: StorageVersionStatus }
);

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct LeaseSpec {
    holder_identity: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct CrdSpec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    versions: Vec<CrdVersion>,
}

#[derive(Clone, Debug, Deserialize)]
struct CrdVersion {
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct ApiServiceSpec {
    #[serde(default)]
    group: String,
    #[serde(default)]
    version: String,
    service: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
struct Endpoint {
    #[serde(default)]
    addresses: Vec<String>,
}

#[derive(Clone, Debug, Deserialize)]
struct Port {
    name: Option<String>,
    port: Option<u16>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct StorageVersionStatus {
    storage_versions: Option<Vec<ServerStorageVersion>>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ServerStorageVersion {
    #[serde(rename = "apiServerID", default)]
    api_server_id: String,
    served_versions: Option<Vec<String>>,
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
    leases::identity(
        lease.text(),
        |key| labels.and_then(|labels| labels.get(key)).map(String::as_str),
        |key| annotations.and_then(|annotations| annotations.get(key)).map(String::as_str),
    )
}

/// The Lease of a proxy, if it is one.
pub(super) fn proxy(lease: &Lease) -> Option<Proxy> {
    let (labels, annotations) = (lease.metadata.labels.as_ref(), lease.metadata.annotations.as_ref());
    leases::proxy(
        lease.text(),
        |key| labels.and_then(|labels| labels.get(key)).map(String::as_str),
        |key| annotations.and_then(|annotations| annotations.get(key)).map(String::as_str),
    )
}

/// The group-versions of a CRD.
pub(super) fn custom(crd: &CustomResourceDefinition) -> Option<Vec<GroupVersion>> {
    let versions = crd.spec.versions.iter().filter(|version| is_group_version(&crd.spec.group, &version.name));
    Some(versions.map(|version| (crd.spec.group.as_str().into(), version.name.as_str().into())).collect())
}

/// The group-version of an APIService, if another server is behind it.
pub(super) fn aggregated(service: &APIService) -> Option<GroupVersion> {
    let spec = &service.spec;
    let is_one = spec.service.is_some() && is_group_version(&spec.group, &spec.version);
    is_one.then(|| (spec.group.as_str().into(), spec.version.as_str().into()))
}

fn is_group_version(group: &str, version: &str) -> bool {
    !version.is_empty() && version.len() <= NAME_MAX && group.len() <= NAME_MAX
}

/// The addresses of a slice: literals, each with the port that is called `https`, or the only one.
pub(super) fn endpoints(slice: &EndpointSlice) -> Option<Vec<SocketAddr>> {
    let ports = slice.ports.as_deref().unwrap_or_default();
    let port = match ports {
        [only] => only.port,
        several => several.iter().find(|port| port.name.as_deref() == Some("https")).and_then(|port| port.port),
    };
    let port = port.filter(|&port| port != 0)?;
    let addresses = slice.endpoints.iter().flatten().flat_map(|endpoint| &endpoint.addresses);
    Some(addresses.filter_map(|address| Some(SocketAddr::new(address.parse::<IpAddr>().ok()?, port))).collect())
}

/// Who serves the resource of a StorageVersion, and in which versions.
pub(super) fn storage(version: &StorageVersion) -> Option<Vec<(ServerId, Gvr)>> {
    // `<group>.<resource>`, split at the last dot; what is served names its own group.
    let (_, resource) = version.metadata.name.as_deref()?.rsplit_once('.')?;
    let mut found = Vec::new();
    for server in version.status.storage_versions.iter().flatten() {
        for served in server.served_versions.iter().flatten() {
            let (group, version) = split_group_version(served);
            if is_group_version(group, version) && !resource.is_empty() {
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
        let slice: EndpointSlice = parse(
            r#"{"metadata":{},"addressType":"IPv4","endpoints":[{"addresses":["10.0.0.1"]},{"addresses":["example.org","10.0.0.2"]}],
                "ports":[{"name":"https","port":6443}]}"#,
        );
        assert_eq!(endpoints(&slice).unwrap(), ["10.0.0.1:6443".parse().unwrap(), "10.0.0.2:6443".parse().unwrap()]);
        assert_eq!(endpoints(&parse(r#"{"metadata":{},"endpoints":null,"ports":null}"#)), None);
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
}
