//! Body bytes that tell which message and which offset they belong to.

use std::sync::OnceLock;

/// A prime, so that no frame or window size divides it.
const PERIOD: usize = 65_521;

fn pattern() -> &'static [u8] {
    static PATTERN: OnceLock<Vec<u8>> = OnceLock::new();
    PATTERN.get_or_init(|| {
        let mut state = 1u32;
        let mut once: Vec<u8> = Vec::with_capacity(PERIOD * 2);
        for _ in 0..PERIOD {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            once.push((state >> 24) as u8);
        }
        once.extend_from_within(..);
        once
    })
}

fn place(message: u64, offset: u64) -> usize {
    ((message.wrapping_mul(7_919) + offset) % PERIOD as u64) as usize
}

/// `len <= PERIOD` bytes of the body of `message` from `offset` on.
pub fn bytes(message: u64, offset: u64, len: usize) -> &'static [u8] {
    let at = place(message, offset);
    &pattern()[at..at + len]
}

/// Are these the bytes of `message` at `offset`?
pub fn is(message: u64, offset: u64, got: &[u8]) -> bool {
    got == bytes(message, offset, got.len())
}
