//! The program's memory: its allocator, and how it is copied.
#![allow(unsafe_code, reason = "the C interfaces of the allocator and of glibc's memcpy")]

/// glibc's allocator costs rustls half its speed on large bodies.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives what the calling thread has freed back to the system. By itself mimalloc does that only while the thread allocates, and a
/// shard without requests does not.
pub(crate) fn release() {
    // SAFETY: it takes no pointer, and may be called by any thread at any time.
    unsafe { libmimalloc_sys::mi_collect(true) }
}

/// `memcpy` for everything that is linked into the program, rustls above all, in place of glibc's.
///
/// Debian 12's glibc (2.36) copies what is longer than 2 KiB with `rep movsb` where the CPU says that this is fast. On AMD's Zen 3 and 4 it is
/// not, for places that are not aligned alike. So glibc gets no more than that at a time. See docs/decisions/0020.
#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod copy {
    /// From one byte more on glibc may take `rep movsb`, whatever the CPU has.
    const PIECE: usize = 2048;

    /// As C's.
    ///
    /// # Safety
    ///
    /// As C's: `len` bytes can be read from `from` and written to `to`, and they do not overlap.
    #[unsafe(no_mangle)]
    unsafe extern "C" fn memcpy(to: *mut u8, from: *const u8, len: usize) -> *mut u8 {
        if len <= PIECE {
            // A call of glibc's `memmove`, which on x86-64 is the same code as its `memcpy`; `copy_nonoverlapping` would call this function.
            // SAFETY: as the caller's.
            unsafe { from.copy_to(to, len) };
        } else {
            // SAFETY: as the caller's.
            unsafe { in_pieces(to, from, len) };
        }
        to
    }

    /// Apart from the above, so that short copies need no registers saved.
    ///
    /// # Safety
    ///
    /// As [`memcpy`].
    #[inline(never)]
    unsafe fn in_pieces(to: *mut u8, from: *const u8, len: usize) {
        let mut done = 0;
        while done < len {
            let piece = PIECE.min(len - done);
            // SAFETY: `done + piece <= len`, and the caller vouches for `len` bytes at both places.
            unsafe { from.add(done).copy_to(to.add(done), piece) };
            done += piece;
        }
    }
}

#[cfg(test)]
mod tests {
    /// Lengths around those of pieces, and all ways to be off a word.
    #[test]
    fn copies_are_exact() {
        let source: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 256).to_le_bytes()[0]).collect();
        for len in [0, 1, 2047, 2048, 2049, 4095, 4096, 4097, 6144, 16_384, 19_000] {
            for (from, to) in [(0, 0), (1, 0), (0, 1), (63, 7), (999, 1000)] {
                let mut place = vec![0xAA; to + len + 9];
                // Not inlined: the length is not known.
                place[to..to + std::hint::black_box(len)].copy_from_slice(&source[from..from + std::hint::black_box(len)]);
                assert_eq!(place[to..to + len], source[from..from + len], "{len} bytes from {from} to {to}");
                assert!(place[..to].iter().chain(&place[to + len..]).all(|&byte| byte == 0xAA), "beside {len} bytes");
            }
        }
    }
}
