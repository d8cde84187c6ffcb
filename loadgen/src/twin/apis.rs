//! What a twin serves: groups, versions and resources, and standard sets of them.

/// One group and version with its resources.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Api {
    /// The group; empty for the core group.
    pub group: String,
    /// The version, such as `v1`.
    pub version: String,
    /// What is served in it.
    pub resources: Vec<Resource>,
}

/// One resource, named as aggregated discovery names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The path segment, such as `pods`.
    pub plural: String,
    /// The singular name, such as `pod`.
    pub singular: String,
    /// The kind, such as `Pod`.
    pub kind: String,
    /// Whether its objects live in namespaces.
    pub namespaced: bool,
}

impl Api {
    /// A group and version; `group` is empty for the core group.
    pub fn new(group: &str, version: &str, resources: Vec<Resource>) -> Self {
        Self { group: group.into(), version: version.into(), resources }
    }

    /// `v1` in the core group, otherwise `group/version`: the form of `apiVersion`.
    pub fn group_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}

impl Resource {
    /// A resource whose objects live in namespaces.
    pub fn namespaced(plural: &str, singular: &str, kind: &str) -> Self {
        Self { plural: plural.into(), singular: singular.into(), kind: kind.into(), namespaced: true }
    }

    /// A resource of the whole cluster.
    pub fn cluster(plural: &str, singular: &str, kind: &str) -> Self {
        Self { namespaced: false, ..Self::namespaced(plural, singular, kind) }
    }
}

/// What every server has: the core group's common resources, and Deployments.
pub fn everywhere() -> Vec<Api> {
    let core = vec![
        Resource::cluster("namespaces", "namespace", "Namespace"),
        Resource::cluster("nodes", "node", "Node"),
        Resource::namespaced("pods", "pod", "Pod"),
        Resource::namespaced("configmaps", "configmap", "ConfigMap"),
        Resource::namespaced("secrets", "secret", "Secret"),
        Resource::namespaced("services", "service", "Service"),
    ];
    let apps = vec![Resource::namespaced("deployments", "deployment", "Deployment")];
    vec![Api::new("", "v1", core), Api::new("apps", "v1", apps)]
}

/// What says who serves what: what discovery watches, StorageVersions left out, which most servers do not have.
pub fn control_plane() -> Vec<Api> {
    vec![
        Api::new("coordination.k8s.io", "v1", vec![Resource::namespaced("leases", "lease", "Lease")]),
        Api::new("discovery.k8s.io", "v1", vec![Resource::namespaced("endpointslices", "endpointslice", "EndpointSlice")]),
        Api::new("apiregistration.k8s.io", "v1", vec![Resource::cluster("apiservices", "apiservice", "APIService")]),
        Api::new(
            "apiextensions.k8s.io",
            "v1",
            vec![Resource::cluster("customresourcedefinitions", "customresourcedefinition", "CustomResourceDefinition")],
        ),
    ]
}

/// StorageVersions, for a server that has the alpha API on. A twin with a hostname writes its own then.
pub fn storage_versions() -> Vec<Api> {
    vec![Api::new("internal.apiserver.k8s.io", "v1alpha1", vec![Resource::cluster("storageversions", "storageversion", "StorageVersion")])]
}

/// `batch/v1`, for the server that has it while another does not.
pub fn batch() -> Vec<Api> {
    let batch = vec![Resource::namespaced("jobs", "job", "Job"), Resource::namespaced("cronjobs", "cronjob", "CronJob")];
    vec![Api::new("batch", "v1", batch)]
}
