//! The other side of every test: a simulated kube-apiserver and an HTTP/2 client.
//!
//! Always: both ends speak HTTP/2 through the `h2` crate, and the twin HTTP/1.1 through `hyper`, so that they share no code, and
//! therefore no bug, with the proxy under test; this crate depends on neither `engine` nor `discovery`. Nothing here needs a process-wide
//! crypto provider, and every buffer, wait and count has a limit.
//!
//! Deliberately absent: upgrades, authorisation. What the twin does not cover is listed in [`twin`].

pub mod client;
pub mod error;
pub mod pki;
pub mod ports;
pub mod twin;

mod body;
mod tls;

pub use client::Client;
pub use error::Error;
pub use pki::{KeyPairPem, Pki};
pub use twin::{Twin, TwinConfig};
