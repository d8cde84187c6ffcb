//! Which of sixteen bytes are a given one.
#![allow(unsafe_code, reason = "a function with a target feature is unsafe to call")]

/// One bit a byte, the first one lowest.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(super) fn equal(bytes: &[u8; 16], needle: u8) -> u16 {
    // SAFETY: every x86-64 processor has SSE2.
    unsafe { equal_by_sse2(u128::from_le_bytes(*bytes), needle) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse2")]
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "halves, on purpose; and sixteen bits of the mask are set at most")]
fn equal_by_sse2(bytes: u128, needle: u8) -> u16 {
    use std::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};

    let bytes = _mm_set_epi64x((bytes >> 64) as i64, bytes as i64);
    _mm_movemask_epi8(_mm_cmpeq_epi8(bytes, _mm_set1_epi8(needle.cast_signed()))) as u16
}

/// One bit a byte, the first one lowest.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub(super) fn equal(bytes: &[u8; 16], needle: u8) -> u16 {
    bytes.iter().rev().fold(0, |mask, byte| mask << 1 | u16::from(*byte == needle))
}

#[cfg(test)]
mod tests {
    use super::equal;

    #[test]
    fn every_place_and_every_byte() {
        for byte in 0..=u8::MAX {
            assert_eq!(equal(&[byte; 16], byte), u16::MAX);
            assert_eq!(equal(&[byte; 16], byte.wrapping_add(1)), 0);
            for place in 0..16 {
                let mut bytes = [byte ^ 0x80; 16];
                bytes[place] = byte;
                assert_eq!(equal(&bytes, byte), 1 << place);
            }
        }
    }
}
