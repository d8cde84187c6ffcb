//! HTTP/2 (RFC 9113) without IO, written for forwarding: bytes in, frames out, and back.
//!
//! What always holds: no socket, no clock; DATA payload is handed on in pieces as it arrives and is never
//! assembled; every other frame is handed on whole.
//! What it does not do: stream states and windows, which belong to `crate::core`.

pub(crate) mod frame;
pub mod hpack;
pub(crate) mod inbound;
pub(crate) mod message;

pub(crate) use frame::Reason;
