//! The hash by which the encoder finds a field in its dynamic table.
//!
//! It is not keyed: a table holds at most 128 entries, so a client that makes all of them collide
//! gains a walk over 128 numbers. Equal hashes are always followed by a comparison of the bytes.

use super::Token;

/// An odd constant with well-spread bits (2^64 divided by the golden ratio).
const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;

/// Hash of a whole field; never 0, which means "not computed yet".
#[inline]
pub(super) fn field_hash(token: Token, name: &[u8], value: &[u8]) -> u32 {
    let seed = if token.implies_name() { u64::from(token.number()) } else { absorb(FACTOR, name) };
    let hash = (absorb(seed, value) >> 32) as u32;
    hash.max(1)
}

/// Takes `bytes` in eight at a time; the last word overlaps the one before, so that no length needs
/// a byte loop.
#[inline]
fn absorb(seed: u64, bytes: &[u8]) -> u64 {
    let mut state = mix(seed ^ FACTOR.wrapping_mul(bytes.len() as u64 + 1));
    if let Some(last) = bytes.last_chunk::<8>() {
        let (words, _) = bytes.as_chunks::<8>();
        for word in words {
            state = mix(state ^ u64::from_le_bytes(*word));
        }
        mix(state ^ u64::from_le_bytes(*last))
    } else if let (Some(head), Some(tail)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        let word = u64::from(u32::from_le_bytes(*head)) << 32 | u64::from(u32::from_le_bytes(*tail));
        mix(state ^ word)
    } else {
        let word = bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        mix(state ^ word)
    }
}

#[inline]
fn mix(word: u64) -> u64 {
    let product = u128::from(word) * u128::from(FACTOR);
    #[expect(clippy::cast_possible_truncation, reason = "folds the two halves of the product")]
    let folded = product as u64 ^ (product >> 64) as u64;
    folded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differs_by_name_value_and_length() {
        let mut seen = std::collections::HashSet::new();
        for name in [&b"a"[..], b"b", b"longer-name-than-eight"] {
            for length in 0..40 {
                let mut value = vec![b'v'; length];
                assert!(seen.insert(field_hash(Token::OTHER, name, &value)));
                for at in 0..length {
                    value[at] ^= 1;
                    assert!(seen.insert(field_hash(Token::OTHER, name, &value)), "{length} {at}");
                    value[at] ^= 1;
                }
            }
        }
        assert!(!seen.contains(&0));
    }
}
