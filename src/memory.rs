//! The allocator of the program.
#![allow(unsafe_code, reason = "one call of the allocator's C interface")]

/// glibc's allocator costs rustls half its speed on large bodies.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Gives what the calling thread has freed back to the system. By itself mimalloc does that only while the thread allocates, and a
/// shard without requests does not.
pub(crate) fn release() {
    // SAFETY: it takes no pointer, and may be called by any thread at any time.
    unsafe { libmimalloc_sys::mi_collect(true) }
}
