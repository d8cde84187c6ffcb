//! From the one thread that knows the cluster to the shards that route by it.
//!
//! What always holds: a reader sees some published snapshot, whole, and never an older one than before;
//! looking costs one relaxed load while nothing has changed; a shard never frees a snapshot (4 MiB given
//! back to the allocator would stall its requests), because the publisher keeps each retired one until no
//! reader holds it. So at most one retired snapshot per reader is kept (two while it changes over), and
//! what callers clone.
//!
//! It does not wake anybody: a reader that never looks keeps its snapshot, which is why shards look on a
//! tick even without requests.

use std::sync::Arc;

use arc_swap::{ArcSwap, Cache};

use crate::Snapshot;

/// The control side: replaces the current snapshot. There is one.
///
/// Dropping it leaves its readers the last snapshot for good.
pub struct Publisher {
    current: Arc<ArcSwap<Snapshot>>,
    /// Replaced, but still in some reader's hands at the last publish.
    retired: Vec<Arc<Snapshot>>,
}

impl Publisher {
    /// Publishes the first snapshot.
    pub fn new(first: Snapshot) -> Self {
        Self { current: Arc::new(ArcSwap::from_pointee(first)), retired: Vec::new() }
    }

    /// Replaces the current snapshot, and frees the retired ones that nobody holds any more.
    pub fn publish(&mut self, next: Snapshot) {
        // `swap` waits until every load under way has its own count, so a count of one below means
        // that only `retired` holds it, and nobody can take another from there.
        self.retired.push(self.current.swap(Arc::new(next)));
        self.retired.retain(|snapshot| Arc::strong_count(snapshot) > 1);
    }

    /// A reader for one shard, which starts with the current snapshot.
    pub fn reader(&self) -> Reader {
        self.readers().reader()
    }

    /// What makes readers, for threads that do not have the publisher.
    pub fn readers(&self) -> Readers {
        Readers(Arc::clone(&self.current))
    }

    /// How many replaced snapshots are still kept.
    pub fn retired(&self) -> usize {
        self.retired.len()
    }
}

/// Makes readers. Cloning is cheap; it holds no snapshot.
#[derive(Clone)]
pub struct Readers(Arc<ArcSwap<Snapshot>>);

impl Readers {
    /// A reader for one shard, which starts with the current snapshot.
    pub fn reader(&self) -> Reader {
        Reader(Cache::new(Arc::clone(&self.0)))
    }
}

/// A shard's side: the current snapshot, one relaxed load away.
pub struct Reader(Cache<Arc<ArcSwap<Snapshot>>, Arc<Snapshot>>);

impl Reader {
    /// The current snapshot. Taking it lets go of the one returned before.
    #[inline]
    pub fn current(&mut self) -> &Arc<Snapshot> {
        self.0.load()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;
    use crate::{Server, ServerId, SnapshotBuilder};

    fn snapshot(generation: u64) -> Snapshot {
        let mut builder = SnapshotBuilder::new(generation);
        let server = Server::new(ServerId::new("cp-a"), ([127, 0, 0, 1], 6443).into());
        let local = builder.server(server).unwrap();
        builder.local(local);
        builder.build().unwrap()
    }

    #[test]
    fn a_reader_follows_the_publisher() {
        let mut publisher = Publisher::new(snapshot(1));
        let mut early = publisher.reader();
        assert_eq!(early.current().generation(), 1);
        publisher.publish(snapshot(2));
        assert_eq!(early.current().generation(), 2);
        assert_eq!(publisher.reader().current().generation(), 2);
    }

    #[test]
    fn readers_outlive_the_publisher() {
        let publisher = Publisher::new(snapshot(1));
        let mut reader = publisher.reader();
        drop(publisher);
        assert_eq!(reader.current().generation(), 1);
    }

    #[test]
    fn a_retired_snapshot_is_freed_by_the_publisher() {
        let mut publisher = Publisher::new(snapshot(1));
        let mut reader = publisher.reader();
        let first = Arc::downgrade(reader.current());
        publisher.publish(snapshot(2));
        assert_eq!(publisher.retired(), 1);
        assert_eq!(reader.current().generation(), 2);
        assert!(first.upgrade().is_some(), "the reader must not have freed it");
        publisher.publish(snapshot(3));
        assert!(first.upgrade().is_none());
    }

    #[test]
    fn idle_readers_hold_at_most_one_snapshot_each() {
        let mut publisher = Publisher::new(snapshot(1));
        let mut readers = Vec::new();
        for generation in 2..100 {
            if generation <= 9 {
                readers.push(publisher.reader());
            }
            publisher.publish(snapshot(generation));
            assert!(publisher.retired() <= readers.len());
        }
        assert_eq!(publisher.retired(), readers.len());
        for reader in &mut readers {
            reader.current();
        }
        publisher.publish(snapshot(100));
        // All of them hold 99 now.
        assert_eq!(publisher.retired(), 1);
        drop(readers);
        publisher.publish(snapshot(101));
        assert_eq!(publisher.retired(), 0);
    }

    #[test]
    fn generations_never_go_back_under_contention() {
        const READERS: usize = 3;
        let mut publisher = Publisher::new(snapshot(0));
        let done = AtomicBool::new(false);
        let mut retired_most = 0;
        std::thread::scope(|scope| {
            for _ in 0..READERS {
                let mut reader = publisher.reader();
                let done = &done;
                scope.spawn(move || {
                    let mut seen = 0;
                    while !done.load(Ordering::Relaxed) {
                        let now = reader.current().generation();
                        assert!(now >= seen);
                        seen = now;
                    }
                });
            }
            for generation in 1..2_000 {
                publisher.publish(snapshot(generation));
                retired_most = retired_most.max(publisher.retired());
            }
            done.store(true, Ordering::Relaxed);
        });
        assert!(retired_most <= 2 * READERS, "{retired_most}");
        publisher.publish(snapshot(2_000));
        assert_eq!(publisher.retired(), 0);
    }
}
