//! HTTP/1.1 (RFC 9112) without IO, the server side only: bytes of a client to heads and body pieces, heads and pieces of a
//! response to bytes.
//!
//! What always holds: whatever is ambiguous about where a message ends is refused and the connection closed (threats.md §1: at
//! least as strict as Go's net/http); heads leave here in the form of HTTP/2, so that one core forwards both.
//! What it does not do: upgrades (a later step), the client side (servers are always spoken to in HTTP/2).

pub(crate) mod body;
pub(crate) mod head;
pub(crate) mod write;
