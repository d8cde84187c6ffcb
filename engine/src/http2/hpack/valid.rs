//! Which bytes field names and values may have (RFC 9113 §8.2.1).

use super::Token;

/// Whether `name` is a lower-case field name: token characters (RFC 9110 §5.6.2) without upper
/// case, and not empty. A leading `:` is allowed only in a pseudo-header that exists; whether it
/// may stand where it does is the caller's rule.
#[must_use]
pub fn valid_name(name: &[u8]) -> bool {
    match name {
        [] => false,
        [b':', ..] => Token::of(name).is_pseudo(),
        _ => name.iter().fold(true, |ok, &byte| ok & NAME_BYTES[usize::from(byte)]),
    }
}

/// Whether `value` has no control character but tabs, and neither starts nor ends with a space or tab. RFC 9113 asks for less (no NUL,
/// CR or LF), but Go servers refuse all of them, and an HTTP/1.1 client may take one for the end of a line.
#[must_use]
pub fn valid_value(value: &[u8]) -> bool {
    let (Some(&first), Some(&last)) = (value.first(), value.last()) else {
        return true;
    };
    if matches!(first, b' ' | b'\t') || matches!(last, b' ' | b'\t') {
        return false;
    }
    let Some(end) = value.last_chunk::<8>() else {
        return value.iter().all(allowed);
    };
    // Eight bytes at a time; the last word overlaps the one before it.
    let (words, _) = value.as_chunks::<8>();
    let found = words.iter().fold(forbidden(*end), |found, word| found | forbidden(*word));
    // Tabs are rare enough to look again.
    found == 0 || value.iter().all(allowed)
}

fn allowed(byte: &u8) -> bool {
    (*byte >= b' ' && *byte != 0x7F) || *byte == b'\t'
}

const NAME_BYTES: [bool; 256] = {
    let mut allowed = [false; 256];
    let bytes = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyz";
    let mut at = 0;
    while at < bytes.len() {
        allowed[bytes[at] as usize] = true;
        at += 1;
    }
    allowed
};

/// Not 0 exactly when one of the eight bytes is below space, or DEL.
#[inline]
fn forbidden(word: [u8; 8]) -> u64 {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH: u64 = 0x8080_8080_8080_8080;
    let word = u64::from_le_bytes(word);
    // A borrow marks false bytes only above a true one, so "not 0" is exact.
    let below = |word: u64, limit: u64| word.wrapping_sub(ONES * limit) & !word & HIGH;
    below(word, 0x20) | below(word ^ (ONES * 0x7F), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_of_a_name() {
        for byte in 0..=255_u8 {
            let token = byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
            let want = token && !byte.is_ascii_uppercase();
            assert_eq!(valid_name(&[b'a', byte]), want, "{byte}");
        }
        assert!(!valid_name(b""));
        assert!(valid_name(b":path") && !valid_name(b":foo") && !valid_name(b":") && !valid_name(b"a:b"));
    }

    #[test]
    fn every_byte_at_every_place_of_a_value() {
        for length in 1..30 {
            for at in 0..length {
                for byte in 0..=255_u8 {
                    let mut value = vec![b'v'; length];
                    value[at] = byte;
                    let outer = at == 0 || at == length - 1;
                    let refused = matches!(byte, 0..=8 | 10..=31 | 127) || outer && matches!(byte, 9 | 32);
                    assert_eq!(valid_value(&value), !refused, "{length} {at} {byte}");
                }
            }
        }
        assert!(valid_value(b""));
    }
}
