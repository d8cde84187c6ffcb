//! The Huffman code of string literals (RFC 7541 §5.2, Appendix B).
//!
//! The code is canonical (shorter codes first, then by symbol), so the lengths below are all of it;
//! every table is computed from them when the crate is compiled. Decoding looks at [`STEP`] bits at
//! a time, which is mostly two symbols.

use super::HpackError;

/// Bits of the code of each byte (RFC 7541 Appendix B). EOS, the 257th symbol, is 30 ones.
#[rustfmt::skip]
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
];

const LONGEST: usize = 30;

/// Bits looked at in one step of decoding: two of the common codes (5 to 7 bits) and a table of 16
/// KiB.
const STEP: usize = 12;

/// Steps that the 57 bits of one load are always enough for.
const STEPS_PER_LOAD: usize = 4;

/// Bytes that `bytes` takes when coded.
pub(super) fn encoded_len(bytes: &[u8]) -> usize {
    let bits: usize = bytes.iter().map(|&byte| usize::from(LENGTHS[usize::from(byte)])).sum();
    bits.div_ceil(8)
}

/// Appends the code of `bytes`, padded with ones.
pub(super) fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    // The lowest `waiting` bits of `bits` are not written yet; waiting < 32 between bytes, so 32 +
    // LONGEST bits always fit.
    let mut bits = 0_u64;
    let mut waiting = 0;
    for &byte in bytes {
        let length = LENGTHS[usize::from(byte)];
        bits = bits << length | u64::from(CODES[usize::from(byte)]);
        waiting += length;
        if waiting >= 32 {
            waiting -= 32;
            #[expect(clippy::cast_possible_truncation, reason = "takes 32 bits")]
            out.extend_from_slice(&((bits >> waiting) as u32).to_be_bytes());
        }
    }
    let left = usize::from(waiting).div_ceil(8);
    let padding = left * 8 - usize::from(waiting);
    let last = bits << padding | ((1 << padding) - 1);
    out.extend_from_slice(&last.to_be_bytes()[8 - left..]);
}

/// Appends the bytes that `coded` stands for, at most 8/5 of its length.
pub(super) fn decode(coded: &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let start = out.len();
    // The shortest code has 5 bits; a step stores two bytes even when it decoded one.
    out.resize(start + coded.len() * 8 / 5 + 2, 0);
    let result = decode_into(coded, &mut out[start..]);
    out.truncate(start + result.unwrap_or(0));
    result.map(|_| ())
}

fn decode_into(coded: &[u8], out: &mut [u8]) -> Result<usize, HpackError> {
    let end = coded.len() * 8;
    let mut bit = 0;
    let mut written = 0;
    // While 64 bits are left, all steps of one load are within the string.
    while end - bit >= 64 {
        let mut window = load(coded, bit);
        for _ in 0..STEPS_PER_LOAD {
            let step = STEPS[(window >> (64 - STEP)) as usize];
            if step.is_long() {
                let (byte, bits) = decode_long(load(coded, bit))?;
                if bits > end - bit {
                    return Err(HpackError::InvalidHuffman);
                }
                out[written] = byte;
                written += 1;
                bit += bits;
                break;
            }
            out[written..written + 2].copy_from_slice(&step.bytes());
            written += step.symbols();
            bit += step.bits();
            window <<= step.bits();
        }
    }
    decode_end(coded, end - bit, out, written)
}

/// The last `left` bits, fewer than 64, where each code has to be checked to lie within the string.
fn decode_end(coded: &[u8], mut left: usize, out: &mut [u8], mut written: usize) -> Result<usize, HpackError> {
    let mut window = load_last(coded, left);
    while left > 0 {
        let step = STEPS[(window >> (64 - STEP)) as usize];
        let bits = if step.bits() <= left && !step.is_long() {
            out[written..written + 2].copy_from_slice(&step.bytes());
            written += step.symbols();
            step.bits()
        } else if left < 8 && window == u64::MAX {
            // Padding: fewer than 8 bits, all ones (§5.2). No code is that short and all ones.
            return Ok(written);
        } else {
            let (byte, bits) = if step.is_long() { decode_long(window)? } else { step.first() };
            if bits > left {
                return Err(HpackError::InvalidHuffman);
            }
            out[written] = byte;
            written += 1;
            bits
        };
        left -= bits;
        window = window << bits | ((1 << bits) - 1);
    }
    Ok(written)
}

/// At least 57 bits from `bit` on, ones behind the end.
#[inline]
fn load(coded: &[u8], bit: usize) -> u64 {
    match coded.get(bit / 8..).and_then(<[u8]>::first_chunk::<8>) {
        Some(word) => u64::from_be_bytes(*word) << (bit % 8),
        None => load_last(coded, coded.len() * 8 - bit),
    }
}

/// The last `left` bits, fewer than 64, followed by ones.
#[inline]
fn load_last(coded: &[u8], left: usize) -> u64 {
    let last = match coded.last_chunk::<8>() {
        Some(word) => u64::from_be_bytes(*word),
        None => coded.iter().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    };
    let ones = u64::MAX >> left;
    // In two shifts, since `left` may be 0.
    last << (63 - left) << 1 | ones
}

/// Decodes the one symbol at the top of `window` whose code is longer than a step.
#[cold]
fn decode_long(window: u64) -> Result<(u8, usize), HpackError> {
    for bits in STEP + 1..=LONGEST {
        #[expect(clippy::cast_possible_truncation, reason = "at most 30 bits")]
        let code = (window >> (64 - bits)) as usize;
        let rank = code.wrapping_sub(FIRST_CODE[bits] as usize);
        if rank < COUNT[bits] {
            // 30 ones are EOS, which may not occur (§5.2): its rank is the 257th, behind the table.
            let byte = BY_RANK.get(FIRST_RANK[bits] + rank).ok_or(HpackError::InvalidHuffman)?;
            return Ok((*byte, bits));
        }
    }
    Err(HpackError::InvalidHuffman)
}

/// How many codes have each length, EOS included.
const COUNT: [usize; LONGEST + 1] = {
    let mut count = [0; LONGEST + 1];
    let mut byte = 0;
    while byte < 256 {
        count[LENGTHS[byte] as usize] += 1;
        byte += 1;
    }
    count[LONGEST] += 1;
    count
};

/// The first code of each length.
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
const FIRST_CODE: [u32; LONGEST + 1] = {
    let mut first = [0; LONGEST + 1];
    let mut bits = 1;
    while bits <= LONGEST {
        first[bits] = (first[bits - 1] + COUNT[bits - 1] as u32) << 1;
        bits += 1;
    }
    first
};

/// How many codes are shorter than each length.
const FIRST_RANK: [usize; LONGEST + 1] = {
    let mut first = [0; LONGEST + 1];
    let mut bits = 1;
    while bits <= LONGEST {
        first[bits] = first[bits - 1] + COUNT[bits - 1];
        bits += 1;
    }
    first
};

/// The bytes in the order of their codes, and the codes.
static BY_RANK: [u8; 256] = RANKED.0;
static CODES: [u32; 256] = RANKED.1;
#[expect(clippy::cast_possible_truncation, reason = "small numbers")]
const RANKED: ([u8; 256], [u32; 256]) = {
    let mut by_rank = [0; 256];
    let mut codes = [0; 256];
    let mut seen = [0; LONGEST + 1];
    let mut byte = 0;
    while byte < 256 {
        let bits = LENGTHS[byte] as usize;
        by_rank[FIRST_RANK[bits] + seen[bits]] = byte as u8;
        codes[byte] = FIRST_CODE[bits] + seen[bits] as u32;
        seen[bits] += 1;
        byte += 1;
    }
    (by_rank, codes)
};

/// What [`STEP`] bits decode to, as one 32-bit load: bits of the codes, how many codes, their one
/// or two bytes. All 0: a code that is longer than a step. The bits come first because the next
/// step waits for them.
#[derive(Clone, Copy)]
struct Step(u32);

impl Step {
    const fn new(bits: usize, symbols: usize, bytes: [u8; 2]) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "bits <= STEP, symbols <= 2")]
        Self(u32::from_le_bytes([bits as u8, symbols as u8, bytes[0], bytes[1]]))
    }

    #[inline]
    fn is_long(self) -> bool {
        self.0 == 0
    }

    #[inline]
    fn bits(self) -> usize {
        (self.0 & 63) as usize
    }

    #[inline]
    fn symbols(self) -> usize {
        (self.0 >> 8 & 3) as usize
    }

    #[inline]
    fn bytes(self) -> [u8; 2] {
        let [_, _, first, second] = self.0.to_le_bytes();
        [first, second]
    }

    /// The first byte and the bits of its code.
    fn first(self) -> (u8, usize) {
        let [byte, _] = self.bytes();
        (byte, usize::from(LENGTHS[usize::from(byte)]))
    }
}

static STEPS: [Step; 1 << STEP] = {
    let mut steps = [Step(0); 1 << STEP];
    let mut prefix = 0;
    while prefix < 1 << STEP {
        let (first, first_bits) = short_code(prefix, STEP);
        if first_bits > 0 {
            let (second, second_bits) = short_code(prefix, STEP - first_bits);
            let symbols = if second_bits > 0 { 2 } else { 1 };
            steps[prefix] = Step::new(first_bits + second_bits, symbols, [first, second]);
        }
        prefix += 1;
    }
    steps
};

/// The byte whose code is at the top of the low `available` bits of `prefix`, and the code's
/// length; length 0 when there is none.
const fn short_code(prefix: usize, available: usize) -> (u8, usize) {
    let mut bits = 5;
    while bits <= available {
        let code = (prefix & ((1 << available) - 1)) >> (available - bits);
        let rank = code.wrapping_sub(FIRST_CODE[bits] as usize);
        if rank < COUNT[bits] {
            return (RANKED.0[FIRST_RANK[bits] + rank], bits);
        }
        bits += 1;
    }
    (0, 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(bytes: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        encode(bytes, &mut out);
        assert_eq!(out.len(), encoded_len(bytes));
        out
    }

    fn decoded(coded: &[u8]) -> Result<Vec<u8>, HpackError> {
        let mut out = b"kept".to_vec();
        decode(coded, &mut out)?;
        Ok(out.split_off(4))
    }

    #[test]
    fn codes_of_appendix_b() {
        let sample = [(b'0', 0), (b'a', 3), (b' ', 0x14), (b':', 0x5C), (b'&', 0xF8), (b'?', 0x3FC), (b'\\', 0x7FFF0)];
        for (byte, code) in sample {
            assert_eq!(CODES[usize::from(byte)], code, "{byte}");
        }
        assert_eq!((CODES[0], CODES[22], CODES[255], CODES[249]), (0x1FF8, 0x3FFF_FFFE, 0x3FF_FFEE, 0xFFF_FFFE));
    }

    #[test]
    fn padding_is_short_and_all_ones() {
        assert_eq!(decoded(b""), Ok(vec![]));
        assert_eq!(decoded(&[0x1F]), Ok(b"a".to_vec()));
        assert_eq!(decoded(&[0x1E]), Err(HpackError::InvalidHuffman));
        assert_eq!(decoded(&[0x1F, 0xFF]), Err(HpackError::InvalidHuffman), "11 bits of padding");
        assert_eq!(decoded(&[0xFF]), Err(HpackError::InvalidHuffman), "8 bits of padding");
        assert_eq!(decoded(&[0x00]), Err(HpackError::InvalidHuffman), "padding of zeros");
    }

    #[test]
    fn eos_is_refused_wherever_it_stands() {
        for before in 0..20 {
            let mut coded = vec![0; 5 * before / 8 + 1];
            coded.extend_from_slice(&[0xFF; 4]);
            assert_eq!(decoded(&coded), Err(HpackError::InvalidHuffman));
            coded.extend_from_slice(&[0; 20]);
            assert_eq!(decoded(&coded), Err(HpackError::InvalidHuffman));
        }
    }

    #[test]
    fn every_pair_of_bytes_round_trips() {
        for first in 0..=255 {
            for second in 0..=255 {
                let bytes = [first, second];
                assert_eq!(decoded(&encoded(&bytes)), Ok(bytes.to_vec()));
            }
        }
    }

    proptest! {
        #[test]
        fn round_trip(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            prop_assert_eq!(decoded(&encoded(&bytes)), Ok(bytes));
        }

        #[test]
        fn text_round_trip(text in "[ -~]{0,300}") {
            prop_assert_eq!(decoded(&encoded(text.as_bytes())), Ok(text.into_bytes()));
        }

        /// A string has one coding only: what decodes, encodes back to the same bytes.
        #[test]
        fn what_decodes_is_canonical(coded in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(bytes) = decoded(&coded) {
                prop_assert_eq!(encoded(&bytes), coded);
            }
        }
    }
}
