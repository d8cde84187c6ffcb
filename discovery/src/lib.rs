//! The control plane's side of routing: which apiserver serves which group/version/resource, and how
//! the shards learn of it.
//!
//! Read in this order: [`Gvr`] and [`ServerId`] are the words, [`Snapshot`] is one immutable table of
//! them, [`Publisher`] and [`Reader`] hand a snapshot to the shards, and [`static_routes`] makes one
//! from a file. [`inventory`] makes them from what a cluster says; `live` (a feature, so that the engine
//! builds without kube) asks the cluster.
//!
//! What always holds: a published snapshot never changes and names exactly one local server; a lookup
//! takes no lock and allocates nothing; a shard never frees a snapshot.
//!
//! What this crate does not do: outside `live` it opens no socket, reads no file and no clock, and it does
//! not decide where a request goes (the engine's `route` does). Addresses are literals; nothing here resolves names.

mod allow;
pub mod documents;
mod gvr;
mod handoff;
pub mod identity;
pub mod inventory;
pub mod leases;
#[cfg(feature = "live")]
pub mod live;
mod name;
mod names;
mod server;
mod snapshot;
pub mod static_routes;
mod table;

pub use allow::{AllowList, Cidr};
pub use gvr::Gvr;
pub use handoff::{Publisher, Reader, Readers};
pub use name::Name;
pub use server::{PROXY_HTTP1, PROXY_HTTP2, Server, ServerId, ServerIndex, ServerSet, Via};
pub use snapshot::{BuildError, Snapshot, SnapshotBuilder, Standing, Trust};
