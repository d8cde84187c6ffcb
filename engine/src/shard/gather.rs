//! Waiting for more than one socket at once, when many are busy.
//!
//! A fast proxy between slower neighbours wakes up for every second request: it sleeps, wakes and writes to the server for each few of them
//! (decision 0022). After a wake-up in which several sockets were read, the ring is asked for more events together: for twice as many as
//! there were, but not for long. A client that is alone never waits.
//!
//! What always holds: a wait ends after `Limits::gather_time`, whatever happens; it only puts off the wait of the runtime, which finds what
//! came in the meantime. It takes no completion from the ring, and gives the kernel no memory beyond the call.
//!
//! monoio waits for one event only and does not show its ring; so the ring is looked for among the files of the process, once.

use std::os::fd::RawFd;

use super::sys;
use crate::config::Limits;

/// The ring of a thread that has one with DEFER_TASKRUN: only then events do not wake a thread that waits for more of them.
pub(crate) struct Gather {
    ring: RawFd,
}

impl Gather {
    /// Finds the ring that this thread alone may use; other threads' rings refuse it (SINGLE_ISSUER). Reads files: for the start.
    pub(crate) fn of_this_thread() -> Option<Self> {
        let files = std::fs::read_dir("/proc/self/fd").ok()?;
        let is_ring = |path: &std::path::Path| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[io_uring]");
        let mut rings = files.flatten().filter(|file| is_ring(&file.path()));
        rings.find_map(|file| {
            let ring = file.file_name().to_str()?.parse().ok()?;
            sys::may_enter(ring).then_some(Self { ring })
        })
    }

    /// Waits for more events after a wake-up that read from so many sockets, if they were many.
    pub(crate) fn wait(&self, limits: &Limits, reads: u32) {
        if let Some(events) = wanted(limits, reads) {
            sys::wait_for(self.ring, events, limits.gather_time);
        }
    }
}

/// How many events are waited for.
fn wanted(limits: &Limits, reads: u32) -> Option<u32> {
    (reads >= limits.gather_from).then(|| reads.saturating_mul(2).min(limits.gather_events))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream as StdUnixStream;
    use std::pin::{Pin, pin};
    use std::task::Poll;
    use std::time::{Duration, Instant};

    use monoio::net::UnixStream;

    use super::*;
    use crate::shard::ring::{Rung, build};

    #[test]
    fn few_are_not_gathered_and_many_are_enough() {
        let limits = Limits { gather_from: 3, gather_events: 16, ..Limits::default() };
        let wanted = [0, 1, 2, 3, 7, 8, 9, u32::MAX].map(|reads| wanted(&limits, reads));
        assert_eq!(wanted, [None, None, None, Some(6), Some(14), Some(16), Some(16), Some(16)]);
    }

    /// Runs `check` on a thread with a ring.
    fn on_a_ring(check: impl AsyncFnOnce(Gather) + Send + 'static) {
        let thread = std::thread::spawn(|| {
            let mut ring = build(Rung::DeferTaskrun).unwrap();
            let gather = Gather::of_this_thread().unwrap();
            ring.block_on(check(gather));
        });
        thread.join().unwrap();
    }

    fn waited(gather: &Gather, events: u32, at_most: Duration) -> Duration {
        let began = Instant::now();
        sys::wait_for(gather.ring, events, at_most);
        began.elapsed()
    }

    #[test]
    fn a_wait_without_events_ends() {
        on_a_ring(async |gather| {
            let waited = waited(&gather, 2, Duration::from_millis(30));
            assert!(waited >= Duration::from_millis(30) && waited < Duration::from_secs(10), "{waited:?}");
        });
    }

    #[test]
    fn one_event_of_two_is_waited_with_and_two_are_enough() {
        on_a_ring(async |gather| {
            let (ours, mut theirs): (Vec<_>, Vec<_>) = (0..2).map(|_| StdUnixStream::pair().unwrap()).unzip();
            let ours: Vec<_> = ours.into_iter().map(|end| UnixStream::from_std(end).unwrap()).collect();
            let (mut first, mut second) = (pin!(ours[0].readable(false)), pin!(ours[1].readable(false)));
            let once = |future: Pin<&mut dyn Future<Output = std::io::Result<()>>>, context: &mut std::task::Context<'_>| {
                assert!(future.poll(context).is_pending());
            };
            // As after a wake-up: both are asked for, but the kernel does not know yet.
            poll_fn(|context| {
                once(first.as_mut(), context);
                once(second.as_mut(), context);
                Poll::Ready(())
            })
            .await;
            theirs[0].write_all(b"x").unwrap();
            let alone = waited(&gather, 2, Duration::from_millis(30));
            assert!(alone >= Duration::from_millis(30), "{alone:?}");
            theirs[1].write_all(b"x").unwrap();
            let both = waited(&gather, 2, Duration::from_secs(10));
            assert!(both < Duration::from_secs(5), "{both:?}");
            // Neither was lost.
            first.await.unwrap();
            second.await.unwrap();
        });
    }

    #[test]
    fn rings_of_others_are_not_ours() {
        on_a_ring(async |_| {
            std::thread::spawn(|| assert!(Gather::of_this_thread().is_none())).join().unwrap();
        });
    }
}
