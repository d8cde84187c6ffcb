//! Waiting for more than one socket at once, when there is much to do.
//!
//! A fast proxy between slower neighbours wakes up for every second request: it sleeps, wakes and writes to the server for each few of them
//! (decision 0022). While many sockets are busy, and after a wake-up in which several of them were read, the ring is asked for more events
//! together: for twice as many as there were, but not for long. The same while much is read for many requests, which comes in pieces as small
//! as the other side writes them. With few, everybody soon waits for the next event, and nothing else comes: nobody waits.
//!
//! What always holds: a wait ends after `Limits::gather_time`, whatever happens; it only puts off the wait of the runtime, which finds what
//! came in the meantime. It takes no completion from the ring, and gives the kernel no memory beyond the call.
//!
//! monoio waits for one event only and does not show its ring; so the ring is looked for among the files of the process, once.

use std::os::fd::RawFd;
use std::time::{Duration, Instant};

use super::sys;
use crate::config::Limits;

/// From this version on an event of a socket does not wake a thread that waits for more of them.
const LAZY_WAKE: (u32, u32) = (6, 7);

/// The ring of a thread that has one with DEFER_TASKRUN.
pub(crate) struct Gather {
    ring: RawFd,
}

impl Gather {
    /// Finds the ring of this thread, or says why nothing will be gathered. Reads files and starts a thread: for the start.
    pub(crate) fn of_this_thread() -> Result<Self, &'static str> {
        if kernel().is_none_or(|version| version < LAZY_WAKE) {
            return Err("the kernel is older than 6.7");
        }
        own_ring().map(|ring| Self { ring }).ok_or("the ring is not found in /proc/self/fd")
    }

    /// Waits for so many events, so long at most.
    pub(crate) fn wait(&self, events: u32, at_most: Duration) {
        sys::wait_for(self.ring, events, at_most);
    }
}

/// Counts what was read lately, and the sockets, each once: in periods of `Limits::gather_period` or a little more. What one had counts until
/// the next one ends.
#[derive(Default)]
pub(crate) struct Lately {
    /// The number of this period, and when it began.
    period: u32,
    began: Option<Instant>,
    /// What was read in this period, and in the one before it.
    read: Read,
    before: Read,
}

/// What was read in a period.
#[derive(Clone, Copy, Default)]
struct Read {
    sockets: u32,
    bytes: usize,
}

/// The number of the period in which a socket was last read.
#[derive(Clone, Copy, Default)]
pub(crate) struct LastRead(Option<u32>);

impl Lately {
    /// So many bytes were read from a socket.
    pub(crate) fn note(&mut self, last: &mut LastRead, bytes: usize, now: Instant, limits: &Limits) {
        let age = now.saturating_duration_since(*self.began.get_or_insert(now));
        if age >= limits.gather_period {
            // After a pause nobody is busy.
            self.before = if age < 2 * limits.gather_period { self.read } else { Read::default() };
            (self.read, self.began, self.period) = (Read::default(), Some(now), self.period.wrapping_add(1));
        }
        self.read.bytes += bytes;
        if last.0.replace(self.period) != Some(self.period) {
            self.read.sockets += 1;
        }
    }

    /// How many sockets there were.
    fn sockets(&self) -> u32 {
        self.before.sockets.max(self.read.sockets)
    }

    /// How many bytes.
    fn bytes(&self) -> usize {
        self.before.bytes.max(self.read.bytes)
    }

    /// How many events to wait for after a wake-up that read from so many sockets, if it pays. `requests` says whether so many are under way.
    pub(crate) fn wanted(&self, limits: &Limits, reads: u32, requests: impl FnOnce(usize) -> bool) -> Option<u32> {
        let is_much = reads > 0 && self.bytes() >= limits.gather_bytes && self.sockets() >= limits.gather_sockets;
        if is_much && requests(limits.gather_requests) {
            return Some(limits.gather_events);
        }
        let are_many = reads >= limits.gather_from && self.sockets() >= limits.gather_busy;
        are_many.then(|| reads.saturating_mul(2).min(limits.gather_events))
    }
}

/// The version of the kernel, as far as it matters.
fn kernel() -> Option<(u32, u32)> {
    #[expect(clippy::disallowed_methods, reason = "at the start, when nobody is served yet")]
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// The ring that this thread may enter and another one may not: with DEFER_TASKRUN only the thread that made it. One without may be entered
/// by anybody, so it may be somebody else's; one that is not there any more was.
#[expect(clippy::disallowed_methods, reason = "at the start, when nobody is served yet")]
fn own_ring() -> Option<RawFd> {
    let files = std::fs::read_dir("/proc/self/fd").ok()?;
    let is_ring = |path: &std::path::Path| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == "anon_inode:[io_uring]");
    let rings = files.flatten().filter(|file| is_ring(&file.path())).filter_map(|file| file.file_name().to_str()?.parse().ok());
    let mut open: Vec<RawFd> = rings.filter(|ring| sys::may_enter(*ring)).collect();
    std::thread::scope(|scope| scope.spawn(|| open.retain(|ring| !sys::may_enter(*ring))).join()).ok()?;
    open.into_iter().find(|ring| sys::may_enter(*ring))
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;
    use std::io::Write;
    use std::os::unix::net::UnixStream as StdUnixStream;
    use std::pin::{Pin, pin};
    use std::task::Poll;

    use monoio::net::UnixStream;

    use super::*;
    use crate::shard::ring::{Rung, build};

    #[test]
    fn few_are_not_gathered_and_many_are_enough() {
        let limits = Limits { gather_from: 3, gather_busy: 40, gather_events: 16, ..Limits::default() };
        let of_busy = |sockets| {
            let lately = Lately { read: Read { sockets, bytes: 0 }, ..Lately::default() };
            [0, 1, 2, 3, 7, 8, 9, u32::MAX].map(|reads| lately.wanted(&limits, reads, |_| panic!("that little is not asked about")))
        };
        assert_eq!(of_busy(40), [None, None, None, Some(6), Some(14), Some(16), Some(16), Some(16)]);
        assert_eq!(of_busy(39), [None; 8]);
    }

    #[test]
    fn much_is_gathered_if_it_is_for_many() {
        let limits = Limits { gather_bytes: 1_000, gather_requests: 32, gather_sockets: 6, gather_events: 16, ..Limits::default() };
        let wanted = |bytes, sockets, reads, requests| {
            let lately = Lately { before: Read { sockets, bytes }, ..Lately::default() };
            lately.wanted(&limits, reads, |many| requests >= many)
        };
        assert_eq!(wanted(1_000, 6, 1, 32), Some(16));
        let less = [wanted(999, 6, 1, 32), wanted(1_000, 5, 1, 32), wanted(1_000, 6, 0, 32), wanted(1_000, 6, 1, 31)];
        assert_eq!(less, [None; 4]);
    }

    #[test]
    fn sockets_are_counted_once_in_a_period_and_forgotten_after_a_pause() {
        let (limits, began) = (Limits::default(), Instant::now());
        let (mut lately, mut sockets) = (Lately::default(), [LastRead::default(); 50]);
        let mut read = |n: usize, halves_of_a_period: u32| {
            let now = began + limits.gather_period / 2 * halves_of_a_period;
            sockets[..n].iter_mut().for_each(|last| lately.note(last, 10, now, &limits));
            assert!(lately.bytes() >= 10 * n, "each time, and not once in a period");
            lately.sockets()
        };
        assert_eq!((read(30, 0), read(30, 0), read(40, 1)), (30, 30, 40));
        // The period ends, and what it had counts until the next one ends.
        assert_eq!((read(1, 2), read(20, 3)), (40, 40));
        assert_eq!((read(1, 4), read(50, 5)), (20, 50));
        // A pause, and everybody again at once.
        assert_eq!((read(3, 9), read(50, 20)), (3, 50));
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
            std::thread::spawn(|| assert_eq!(own_ring(), None)).join().unwrap();
        });
        // One that everybody may enter is nobody's.
        let plain = build(Rung::Plain).unwrap();
        std::thread::spawn(|| assert_eq!(own_ring(), None)).join().unwrap();
        assert_eq!(own_ring(), None);
        drop(plain);
    }

    #[test]
    fn this_kernel_has_a_version() {
        assert!(kernel().is_some_and(|version| version > (4, 0)), "{:?}", kernel());
    }
}
