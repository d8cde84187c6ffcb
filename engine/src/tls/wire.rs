//! The output buffer of TLS sessions.
//!
//! rustls writes into an initialised `&mut [u8]`. Growing a `Vec` for every record would zero every byte before it is
//! overwritten, so a [`WireBuf`] keeps its `Vec` at the greatest length it ever had and counts the filled part itself:
//! each byte of capacity is zeroed once. Bytes past the filled part are old ciphertext, never plaintext (rustls encrypts in a
//! buffer of its own and copies the finished record).

/// Wire bytes waiting to be sent; keeps its memory when cleared.
#[derive(Debug, Default)]
pub struct WireBuf {
    /// Initialised bytes; `len <= bytes.len()`.
    bytes: Vec<u8>,
    len: usize,
}

impl WireBuf {
    /// An empty buffer without memory.
    pub const fn new() -> Self {
        Self { bytes: Vec::new(), len: 0 }
    }

    /// An empty buffer that takes `capacity` bytes without growing.
    pub fn with_capacity(capacity: usize) -> Self {
        Self { bytes: vec![0; capacity], len: 0 }
    }

    /// The bytes to send.
    pub fn filled(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// How many bytes there are to send.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many bytes fit without zeroing or growing.
    pub fn capacity(&self) -> usize {
        self.bytes.len()
    }

    /// Forgets the bytes and keeps the memory.
    pub fn clear(&mut self) {
        self.len = 0;
    }

    /// Takes the memory out, with the number of filled bytes at its front.
    ///
    /// The vector is longer than that: give an io_uring write the range `..filled`, do not truncate, and hand the vector back
    /// with [`WireBuf::from_vec`] when the kernel is done with it.
    pub fn into_vec(self) -> (Vec<u8>, usize) {
        (self.bytes, self.len)
    }

    /// An empty buffer that reuses the initialised bytes of `bytes`.
    pub fn from_vec(bytes: Vec<u8>) -> Self {
        Self { bytes, len: 0 }
    }

    /// At least `room` bytes after the filled ones, to be written and then accounted for with `advance`.
    pub(super) fn spare(&mut self, room: usize) -> &mut [u8] {
        let end = self.len + room;
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        &mut self.bytes[self.len..]
    }

    /// Counts `written` bytes of the last `spare` as filled.
    pub(super) fn advance(&mut self, written: usize) {
        self.len = (self.len + written).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clearing_keeps_every_initialised_byte() {
        let mut wire = WireBuf::new();
        wire.spare(100)[..3].copy_from_slice(b"abc");
        wire.advance(3);
        assert_eq!(wire.filled(), b"abc");
        wire.clear();
        assert!(wire.is_empty());
        assert_eq!(wire.capacity(), 100);
        assert_eq!(&wire.spare(1)[..3], b"abc", "nothing is zeroed again");
    }

    #[test]
    fn the_vector_comes_back_without_growing() {
        let mut wire = WireBuf::with_capacity(64);
        wire.spare(10)[..2].copy_from_slice(b"hi");
        wire.advance(2);
        let (bytes, filled) = wire.into_vec();
        assert_eq!((&bytes[..filled], bytes.len()), (&b"hi"[..], 64));
        let wire = WireBuf::from_vec(bytes);
        assert_eq!((wire.len(), wire.capacity()), (0, 64));
    }
}
