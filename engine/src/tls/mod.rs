//! The TLS seam: wire bytes in, plaintext out; plaintext in, wire bytes out.
//!
//! The only place of the engine that calls rustls. A [`Session`] is one end of one connection, [`server_config`] and
//! [`client_config`] turn PEM bytes into what sessions share, [`WireBuf`] is where their output goes.
//!
//! What always holds: bytes given to `plain` were authenticated and come in the order in which they were sent; nothing from
//! the network panics; a session that failed stays failed.
//!
//! What it deliberately does not do: sockets, files, deadlines (all the caller's), 0-RTT, and deciding who a client is.

use std::sync::Arc;

use discovery::{PROXY_HTTP1, PROXY_HTTP2};
use rustls::{ClientConfig, ServerConfig};

mod config;
mod error;
mod front_proxy;
mod serving;
mod session;
#[cfg(test)]
mod tests;
mod wire;

pub use config::{ConfigError, check_pair, client_config, server_config, server_name};
pub use error::TlsError;
pub use front_proxy::peer_port_config;
pub use serving::{Pair, Serving};
pub use session::{MAX_RECORD, Received, Session};
pub use wire::WireBuf;

/// What clients may speak, the better one first.
pub const CLIENTS_SPEAK: &[&[u8]] = &[b"h2", b"http/1.1"];
/// What servers are spoken to in.
pub const SERVERS_SPEAK: &[&[u8]] = &[b"h2"];
/// What we offer at the peer port of another proxy.
pub const PROXIES_SPEAK: &[&[u8]] = &[PROXY_HTTP2];
/// What the peer port offers, to proxies first.
pub const PEER_PORT_SPEAKS: &[&[u8]] = &[PROXY_HTTP2, PROXY_HTTP1, b"h2", b"http/1.1"];

/// Does it mean HTTP/2?
pub(crate) fn is_http2(alpn: Option<&[u8]>) -> bool {
    alpn.is_some_and(|alpn| alpn == b"h2" || alpn == PROXY_HTTP2)
}

/// What new connections are made with. Replaced as a whole when a file has changed; connections that are there keep what they have.
#[derive(Clone, Debug)]
pub struct Configs {
    /// How clients are served.
    pub clients: Serving,
    /// How the local server is verified.
    pub local: Arc<ClientConfig>,
    /// How peers are verified.
    pub peer: Arc<ClientConfig>,
    /// The same, with our front-proxy certificate, for the peer ports of other proxies; without one they are not connected to.
    pub proxy: Option<Arc<ClientConfig>>,
    /// How peers are served at the peer port, if there is one.
    pub peer_port: Option<Arc<ServerConfig>>,
}

#[cfg(feature = "seam-mark")]
std::thread_local! {
    static IN_SEAM: std::cell::Cell<bool> = const { std::cell::Cell::new(false) };
}

/// Whether this thread is inside a call to rustls; a counting allocator asks this to tell rustls' allocations from ours.
#[cfg(feature = "seam-mark")]
pub fn in_seam() -> bool {
    IN_SEAM.get()
}

/// Runs one call to rustls, marked for `in_seam` when the feature is on.
#[inline(always)]
fn seam<T>(call: impl FnOnce() -> T) -> T {
    #[cfg(feature = "seam-mark")]
    IN_SEAM.set(true);
    let result = call();
    #[cfg(feature = "seam-mark")]
    IN_SEAM.set(false);
    result
}
