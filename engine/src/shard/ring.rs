//! Which kernel interface a shard runs on: the best one that the kernel takes.
//!
//! ```text
//!  auto:      DEFER_TASKRUN -> COOP_TASKRUN -> plain -> epoll
//!  io_uring:  DEFER_TASKRUN -> COOP_TASKRUN -> plain -> error
//!  epoll:     epoll
//! ```
//!
//! A ring is built on the thread that will use it (SINGLE_ISSUER). It has no timer: a wait with a timeout costs a kernel timer and
//! two looks at the clock each time, so the control thread sends ticks instead.

use std::fmt;
use std::future::Future;
use std::io;

use monoio::{IoUringDriver, LegacyDriver, Runtime, RuntimeBuilder};

use crate::config::IoDriver;

/// Submission queue: enough for every connection of a busy shard to re-arm in one wake-up; more are submitted in rounds.
const ENTRIES: u32 = 4_096;

/// One way to run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Rung {
    /// Completions run only when we ask for them (Linux 6.1): the cheapest.
    DeferTaskrun,
    /// Completions do not interrupt us (Linux 5.19).
    CoopTaskrun,
    /// io_uring without flags (Linux 5.6).
    Plain,
    /// epoll.
    Epoll,
}

impl fmt::Display for Rung {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::DeferTaskrun => "io_uring (SINGLE_ISSUER | DEFER_TASKRUN)",
            Self::CoopTaskrun => "io_uring (COOP_TASKRUN)",
            Self::Plain => "io_uring (no flags)",
            Self::Epoll => "epoll",
        })
    }
}

/// A runtime on one of the rungs.
pub(crate) enum Ring {
    Uring(Runtime<IoUringDriver>),
    Epoll(Runtime<LegacyDriver>),
}

impl Ring {
    pub(crate) fn block_on<F: Future>(&mut self, future: F) -> F::Output {
        match self {
            Self::Uring(runtime) => runtime.block_on(future),
            Self::Epoll(runtime) => runtime.block_on(future),
        }
    }
}

/// What was built, and a line for each rung that was refused.
#[derive(Debug)]
pub(crate) struct Climbed<T> {
    pub(crate) ring: T,
    pub(crate) rung: Rung,
    pub(crate) refusals: Vec<String>,
}

/// Tries the rungs in order.
pub(crate) fn climb<T>(driver: IoDriver, mut build: impl FnMut(Rung) -> io::Result<T>) -> Result<Climbed<T>, String> {
    const ALL: &[Rung] = &[Rung::DeferTaskrun, Rung::CoopTaskrun, Rung::Plain, Rung::Epoll];
    let rungs = match driver {
        IoDriver::Auto => ALL,
        IoDriver::IoUring => &ALL[..3],
        IoDriver::Epoll => &ALL[3..],
        IoDriver::CoopTaskrun => &ALL[1..2],
        IoDriver::PlainIoUring => &ALL[2..3],
    };
    let mut refusals = Vec::new();
    for &rung in rungs {
        match build(rung) {
            Ok(ring) => return Ok(Climbed { ring, rung, refusals }),
            Err(error) => refusals.push(format!("{rung} refused: {error}{}", hint(&error))),
        }
    }
    Err(format!("no IO driver: {}", refusals.join("; ")))
}

fn hint(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM) => " (sysctl kernel.io_uring_disabled or a seccomp profile forbids it; --io-driver=epoll works without)",
        Some(libc::ENOMEM) => " (raise the memlock limit, or --io-driver=epoll)",
        Some(libc::EINVAL) => " (the kernel is too old for these flags)",
        _ => "",
    }
}

/// Builds the runtime of one rung on the calling thread.
pub(crate) fn build(rung: Rung) -> io::Result<Ring> {
    let mut ring = io_uring::IoUring::builder();
    match rung {
        Rung::DeferTaskrun => {
            ring.setup_single_issuer().setup_defer_taskrun();
        }
        Rung::CoopTaskrun => {
            ring.setup_coop_taskrun();
        }
        Rung::Plain => {}
        Rung::Epoll => return RuntimeBuilder::<LegacyDriver>::new().build().map(Ring::Epoll),
    }
    RuntimeBuilder::<IoUringDriver>::new().uring_builder(ring).with_entries(ENTRIES).build().map(Ring::Uring)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that takes only rungs from `first_taken` on.
    fn refusing(driver: IoDriver, first_taken: usize) -> Result<(Rung, usize), String> {
        let mut tried = 0;
        climb(driver, |rung| {
            tried += 1;
            if tried > first_taken { Ok(rung) } else { Err(io::Error::from_raw_os_error(libc::EINVAL)) }
        })
        .map(|climbed| (climbed.rung, climbed.refusals.len()))
    }

    #[test]
    fn each_refusal_leads_one_rung_down() {
        assert_eq!(refusing(IoDriver::Auto, 0), Ok((Rung::DeferTaskrun, 0)));
        assert_eq!(refusing(IoDriver::Auto, 1), Ok((Rung::CoopTaskrun, 1)));
        assert_eq!(refusing(IoDriver::Auto, 2), Ok((Rung::Plain, 2)));
        assert_eq!(refusing(IoDriver::Auto, 3), Ok((Rung::Epoll, 3)));
        assert!(refusing(IoDriver::Auto, 4).is_err());
    }

    #[test]
    fn io_uring_never_becomes_epoll() {
        let error = refusing(IoDriver::IoUring, 3).unwrap_err();
        assert!(error.contains("DEFER_TASKRUN") && error.contains("no flags") && !error.contains("epoll refused"), "{error}");
        assert_eq!(refusing(IoDriver::Epoll, 0), Ok((Rung::Epoll, 0)));
    }

    #[test]
    fn a_refusal_by_policy_names_the_policy() {
        let error = climb::<()>(IoDriver::IoUring, |_| Err(io::Error::from_raw_os_error(libc::EPERM))).unwrap_err();
        assert!(error.contains("io_uring_disabled") && error.contains("--io-driver=epoll"), "{error}");
    }

    #[test]
    fn this_kernel_runs_every_rung() {
        for rung in [Rung::DeferTaskrun, Rung::CoopTaskrun, Rung::Plain, Rung::Epoll] {
            let sum = std::thread::spawn(move || build(rung).map(|mut ring| ring.block_on(async { 1 + 1 }))).join().unwrap();
            assert_eq!(sum.unwrap(), 2, "{rung}");
        }
    }
}
