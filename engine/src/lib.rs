//! The data plane of mvproxy: what a request meets, in the order it meets it.
//!
//! [`tls`] turns wire bytes into plaintext; [`http2`] cuts plaintext into frames; [`request`] reads what is asked for;
//! [`route`] decides who answers; [`core`] joins the client's stream with the server's and moves bytes between them;
//! `respond` makes the answers that no server makes. A shard (one pinned thread, one ring) drives a `core` of its own.
//!
//! What always holds: after start no shard reads a file or makes a blocking call, and no lock is on the path of a request (rustls takes
//! short ones at a handshake, for session tickets).

pub mod config;
pub mod core;
pub mod cpus;
mod engine;
pub(crate) mod http1;
pub mod http2;
pub mod request;
pub(crate) mod respond;
pub mod route;
mod shard;
pub mod tls;

pub use config::{Config, IoDriver, Limits, Rate, Report};
pub use engine::{Engine, Observer, ShardFailed, ShardView, StartError};
