//! What a twin serves: groups, versions and resources, and two standard sets of them.

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
pub fn base() -> Vec<Api> {
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

/// `batch/v1`, for the server that has it while another does not.
pub fn batch() -> Vec<Api> {
    let batch = vec![Resource::namespaced("jobs", "job", "Job"), Resource::namespaced("cronjobs", "cronjob", "CronJob")];
    vec![Api::new("batch", "v1", batch)]
}
