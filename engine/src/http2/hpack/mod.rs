//! HPACK, RFC 7541, in both directions: header blocks to [`HeaderBlock`]s and back.
//!
//! What always holds: no input panics; memory is bounded by the table sizes, the list limit and the
//! length of the block being read; in the steady state neither direction allocates. What a field
//! costs to understand (its [`Token`], whether it is valid, its hash) is computed once, when it
//! arrives as a literal, and kept in the dynamic table beside its bytes.
//!
//! It does not judge header lists (order of pseudo-headers, names that may not repeat, `connection`
//! and its kind): that is the caller's. It only says per field whether its bytes are allowed
//! ([`Field::valid`]).

mod block;
mod decoder;
mod encoder;
mod hash;
mod huffman;
mod integer;
mod static_table;
mod table;
mod token;
mod valid;

#[cfg(test)]
mod tests;

pub use block::{Field, HeaderBlock};
pub use decoder::{Decoded, Decoder, HpackError};
pub use encoder::Encoder;
pub use token::Token;
pub use valid::{valid_name, valid_value};

/// The table size both ends start with (RFC 9113 §6.5.2), and the largest this encoder uses.
const DEFAULT_TABLE_SIZE: usize = 4096;

/// What an entry counts on top of its bytes (RFC 7541 §4.1; the same in RFC 9113 §6.5.2).
const FIELD_OVERHEAD: usize = 32;
