//! What the benches share: the routes of a large cluster, and the heads of an ordinary request and its response.
//!
//! `benches/routing.rs` measures path to verdict, `benches/hpack.rs` header blocks in both directions, `benches/core.rs` whole
//! exchanges through the core of a shard. All of them run without sockets, TLS or threads; what those cost is in
//! docs/BENCHMARKING.md.

use discovery::{BuildError, Gvr, Server, ServerId, ServerSet, Snapshot, SnapshotBuilder};

mod cluster;

pub use cluster::{CUSTOM, Cluster, PATHS};

/// GVRs of [`large_snapshot`].
pub const GVRS: usize = 10_000;
/// Resources of each group of [`large_snapshot`].
const RESOURCES: usize = 50;

/// A list of header fields, name and value.
pub type Fields = Vec<(&'static str, String)>;

/// Three servers and 10,000 GVRs: `v1/pods` and most others on all of them, `batch/v1/jobs` and every eighth other only on peers.
pub fn large_snapshot() -> Result<Snapshot, BuildError> {
    let mut builder = SnapshotBuilder::new(1);
    let mut servers = Vec::new();
    for nth in 1..=3 {
        let address = ([10, 0, 0, nth], 6443).into();
        servers.push(builder.server(Server::new(ServerId::new(&format!("cp-{nth}")), address))?);
    }
    builder.local(servers[0]);
    let everybody: ServerSet = servers.iter().copied().collect();
    let peers = everybody.without(ServerSet::only(servers[0]));
    builder.serve(&Gvr::new("", "v1", "pods"), everybody)?;
    builder.serve(&Gvr::new("batch", "v1", "jobs"), peers)?;
    for nth in 0..GVRS - 2 {
        let by = if nth % 8 == 0 { peers } else { everybody };
        builder.serve(&Gvr::new(&group(nth), "v1", &resource(nth)), by)?;
    }
    builder.build()
}

/// The path of an object of the `nth` made-up GVR of [`large_snapshot`]; `nth < GVRS - 2`.
pub fn path_of(nth: usize) -> String {
    format!("/apis/{}/v1/namespaces/default/{}/object-{nth}", group(nth), resource(nth))
}

/// What kubectl sends to list pods, with a service account's token.
pub fn kubectl_request() -> Fields {
    let accept = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    let plain = [
        (":method", "GET"),
        (":scheme", "https"),
        (":path", "/api/v1/namespaces/default/pods?limit=500"),
        (":authority", "10.96.0.1:443"),
        ("accept", accept),
        ("user-agent", "kubectl/v1.36.4 (linux/amd64) kubernetes/7a1e9b2"),
        ("kubectl-command", "kubectl get"),
        ("kubectl-session", "5c1a3f5e-7d0b-4a58-9f0e-3f1f2f9a7c11"),
        ("accept-encoding", "gzip"),
    ];
    let mut fields: Fields = plain.map(|(name, value)| (name, value.to_owned())).into();
    fields.push(("authorization", format!("Bearer {}", "eyJhbGciOiJSUzI1NiIs".repeat(45))));
    fields
}

/// The head with which kube-apiserver answers it, for a body of `length` bytes.
pub fn apiserver_response(length: usize) -> Fields {
    let plain = [
        (":status", "200"),
        ("audit-id", "0f3e6a0e-5f0c-4c27-8b5e-6a2f6f7d1c90"),
        ("cache-control", "no-cache, private"),
        ("content-type", "application/json"),
        ("x-kubernetes-pf-flowschema-uid", "2b9f1c8e-90d5-4a4b-8f2d-0b7f5e3d6a21"),
        ("x-kubernetes-pf-prioritylevel-uid", "9d4c7b52-1e6f-4e0a-9a3c-5c8d2f1e7b43"),
        ("date", "Mon, 16 Nov 2026 05:14:02 GMT"),
    ];
    let mut fields: Fields = plain.map(|(name, value)| (name, value.to_owned())).into();
    fields.push(("content-length", length.to_string()));
    fields
}

fn group(nth: usize) -> String {
    format!("team-{}.example.com", nth / RESOURCES)
}

fn resource(nth: usize) -> String {
    format!("widgets{}", nth % RESOURCES)
}
