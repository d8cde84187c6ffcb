//! What live discovery knows and how it is doing, for the status port. Read by anybody at any time; written by the one thread.

use std::fmt;
use std::net::SocketAddr;
use std::time::Instant;

use crate::inventory::View;

/// Where knowledge comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Source {
    /// Identity Leases of apiservers.
    Leases,
    /// Leases of proxies.
    Proxies,
    /// CustomResourceDefinitions.
    CustomResources,
    /// APIServices.
    ApiServices,
    /// EndpointSlices of `default/kubernetes`.
    Endpoints,
    /// StorageVersions, where the API exists.
    StorageVersions,
    /// Not a source but a sink: our own Lease.
    OwnLease,
}

impl Source {
    /// All of them.
    pub const ALL: [Self; 7] =
        [Self::Leases, Self::Proxies, Self::CustomResources, Self::ApiServices, Self::Endpoints, Self::StorageVersions, Self::OwnLease];

    /// Is nothing lost without it? StorageVersions are off in most clusters.
    pub fn is_optional(self) -> bool {
        matches!(self, Self::StorageVersions)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Leases => "leases",
            Self::Proxies => "proxies",
            Self::CustomResources => "customresourcedefinitions",
            Self::ApiServices => "apiservices",
            Self::Endpoints => "endpointslices",
            Self::StorageVersions => "storageversions",
            Self::OwnLease => "own-lease",
        })
    }
}

/// How a source is doing. What it said before stays believed, whatever it is now.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum SourceState {
    /// Nothing came yet.
    #[default]
    Waiting,
    /// Its list is here, and kept up to date.
    Synced,
    /// RBAC forbids it; with the answer.
    Denied(String),
    /// No server has the API.
    Absent,
    /// It does not work at the moment; with the error.
    Failing(String),
}

/// Failures since the start, as KEP-4020 counts them (`apiserver_peer_discovery_sync_errors_total`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SyncErrors {
    /// Identity Leases could not be listed.
    pub lease_list: u64,
    /// A server has no address that may be connected to.
    pub hostport_resolution: u64,
    /// A server did not say what it serves.
    pub fetch_discovery: u64,
}

/// One server.
#[derive(Clone, Debug)]
pub struct ServerStatus {
    /// What routing knows of it.
    pub view: View,
    /// Its version, as far as it said.
    pub version: Option<String>,
    /// Why its last probe or fetch failed, if it did.
    pub error: Option<String>,
}

/// All of it, at one moment.
#[derive(Clone, Debug, Default)]
pub struct Status {
    /// The generation of the published snapshot; 0 is the empty one of the start.
    pub generation: u64,
    /// When it was published.
    pub published: Option<Instant>,
    /// When it was last found to be what is known.
    pub confirmed: Option<Instant>,
    /// Sources whose list came at least once: what they said then stays believed.
    pub listed: Vec<Source>,
    /// Every source.
    pub sources: Vec<(Source, SourceState)>,
    /// Every server.
    pub servers: Vec<ServerStatus>,
    /// Servers that are known, and never said what they serve.
    pub unfetched: Vec<String>,
    /// Failures.
    pub errors: SyncErrors,
    /// How often the thread panicked and was started again.
    pub panics: u64,
    /// The server that is watched.
    pub watched: Option<SocketAddr>,
    /// Why credentials could not be read, if they could not.
    pub credentials: Option<String>,
}

impl Status {
    /// Did its list come at least once?
    pub fn was_listed(&self, source: Source) -> bool {
        self.listed.contains(&source)
    }

    /// The state of a source.
    pub fn source(&self, source: Source) -> SourceState {
        self.sources.iter().find(|(of, _)| *of == source).map(|(_, state)| state.clone()).unwrap_or_default()
    }
}
