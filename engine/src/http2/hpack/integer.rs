//! Integers with a prefix (RFC 7541 §5.1).

use super::HpackError;

/// Reads the integer whose first byte is `first`, its value in the low bits that `mask` covers; the
/// bytes after it come off `rest`. At most four follow: every length and index in a block that a
/// connection may hold fits, and longer is an error (§5.1).
#[inline]
pub(super) fn read(first: u8, mask: u8, rest: &mut &[u8]) -> Result<usize, HpackError> {
    let value = first & mask;
    if value < mask { Ok(usize::from(value)) } else { read_long(mask, rest) }
}

fn read_long(mask: u8, rest: &mut &[u8]) -> Result<usize, HpackError> {
    let mut value = usize::from(mask);
    for shift in [0, 7, 14, 21] {
        let (&byte, after) = rest.split_first().ok_or(HpackError::Truncated)?;
        *rest = after;
        value += usize::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err(HpackError::IntegerOverflow)
}

/// Writes `value` into the bits that `mask` covers, the representation's `pattern` in the others.
#[inline]
pub(super) fn write(value: usize, pattern: u8, mask: u8, out: &mut Vec<u8>) {
    match u8::try_from(value) {
        Ok(small) if small < mask => out.push(pattern | small),
        _ => write_long(value, pattern, mask, out),
    }
}

fn write_long(value: usize, pattern: u8, mask: u8, out: &mut Vec<u8>) {
    out.push(pattern | mask);
    let mut left = value - usize::from(mask);
    while left >= 0x80 {
        #[expect(clippy::cast_possible_truncation, reason = "seven bits are kept")]
        out.push(left as u8 | 0x80);
        left >>= 7;
    }
    #[expect(clippy::cast_possible_truncation, reason = "left < 0x80")]
    out.push(left as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appendix_c_1() {
        let mut out = Vec::new();
        write(10, 0, 0x1F, &mut out);
        write(1337, 0, 0x1F, &mut out);
        write(42, 0, 0xFF, &mut out);
        assert_eq!(out, [0x0A, 0x1F, 0x9A, 0x0A, 0x2A]);
    }

    #[test]
    fn round_trips_at_the_edges() {
        for mask in [0x0F, 0x1F, 0x3F, 0x7F] {
            for value in [0, 1, 14, 15, 16, 30, 31, 32, 62, 63, 126, 127, 128, 255, 4096, 1 << 20, (1 << 28) - 1] {
                let mut out = Vec::new();
                write(value, 0, mask, &mut out);
                let mut rest = &out[1..];
                assert_eq!(read(out[0], mask, &mut rest), Ok(value));
                assert!(rest.is_empty());
            }
        }
    }

    #[test]
    fn too_long_or_cut_is_an_error() {
        assert_eq!(read(0x7F, 0x7F, &mut &[0xFF, 0xFF, 0xFF, 0xFF, 0x00][..]), Err(HpackError::IntegerOverflow));
        assert_eq!(read(0x7F, 0x7F, &mut &[0x80, 0x80, 0x80, 0x80, 0x00][..]), Err(HpackError::IntegerOverflow));
        assert_eq!(read(0x7F, 0x7F, &mut &[0x80][..]), Err(HpackError::Truncated));
    }
}
