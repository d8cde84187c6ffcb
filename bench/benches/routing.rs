//! Path to verdict: `Target::parse` and `route::decide`, and how long a table takes to be built.
//!
//! `decide 200x3` and `decide 10,000x100` (GVRs × servers) walk 4,096 shuffled paths, hits and misses, so that neither the table nor the
//! branch predictor knows the next one; the paths lie one behind the other. A figure is the time of one path. Beside it `hashbrown` (with its
//! own hash, which is no secret), with the same parse and the same guards.
#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::hash::{Hash, Hasher};
use std::hint::black_box;
use std::time::{Duration, Instant};

use bench::{CUSTOM, Cluster, PATHS as MANY};
use criterion::{Criterion, Throughput};
use discovery::{Gvr, Name, ServerSet, Snapshot};
use engine::request::{Scratch, Target};
use engine::route::{self, Verdict};
use hashbrown::{Equivalent, HashMap, HashSet};

/// Name and path of single cases.
const PATHS: [(&str, &str); 7] = [
    ("core resource", "/api/v1/namespaces/default/pods/web-0"),
    ("watch", "/api/v1/pods?allowWatchBookmarks=true&resourceVersion=12345&watch=true"),
    ("peer", "/apis/batch/v1/namespaces/default/jobs"),
    ("unknown", "/apis/unknown.example.com/v1/namespaces/default/things"),
    ("escaped", "/apis/batch%2Fv1/namespaces/default/jobs/a%20b"),
    ("discovery", "/apis/batch/v1"),
    ("health", "/readyz?verbose"),
];

/// The most that a snapshot of 10,000 GVRs on 100 servers may take on the heap.
const HEAP_MAX: usize = 4 << 20;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let snapshot = bench::large_snapshot().unwrap();
    assert_eq!(snapshot.gvrs(), bench::GVRS);
    one_path(&mut criterion, &snapshot);
    many_paths(&mut criterion, &snapshot);
    let (small, large) = (Cluster::new(200, 3).unwrap(), Cluster::new(10_000, 100).unwrap());
    decide(&mut criterion, "decide 200x3", &small);
    decide(&mut criterion, "decide 10,000x100", &large);
    build(&mut criterion, "snapshot build 10,000x100", &large);
    criterion.final_summary();
}

fn one_path(criterion: &mut Criterion, snapshot: &Snapshot) {
    let mut group = criterion.benchmark_group("routing");
    let mut scratch = Scratch::default();
    for (name, path) in PATHS {
        group.bench_function(name, |bencher| bencher.iter(|| verdict(snapshot, black_box(path.as_bytes()), &mut scratch)));
    }
    group.finish();
}

fn many_paths(criterion: &mut Criterion, snapshot: &Snapshot) {
    // A stride that is prime to the number of GVRs visits them in no order.
    let paths: Vec<String> = (0..MANY).map(|nth| bench::path_of(nth * 7_919 % (bench::GVRS - 2))).collect();
    let mut scratch = Scratch::default();
    let mut group = criterion.benchmark_group("routing");
    group.throughput(Throughput::Elements(MANY as u64));
    group.bench_function("4096 resources in turn", |bencher| {
        bencher.iter(|| {
            for path in &paths {
                black_box(verdict(snapshot, path.as_bytes(), &mut scratch));
            }
        });
    });
    group.finish();
}

fn decide(criterion: &mut Criterion, name: &str, cluster: &Cluster) {
    let (snapshot, baseline, paths) = (cluster.snapshot().unwrap(), Baseline::new(cluster), cluster.paths());
    let paths: Vec<&str> = paths.lines().collect();
    assert_eq!(snapshot.gvrs(), cluster.serves().len() + CUSTOM.len());
    let mut scratch = Scratch::default();
    let mut misses = 0;
    for path in &paths {
        let ours = verdict(&snapshot, path.as_bytes(), &mut scratch);
        assert_eq!(ours, baseline.verdict(&snapshot, path.as_bytes(), &mut scratch), "{path}");
        misses += usize::from(!baseline.knows(path.as_bytes(), &mut scratch));
    }
    assert!((MANY / 5..MANY / 3).contains(&misses), "{misses} misses");
    let mut group = criterion.benchmark_group(name);
    // One path is one element, and one iteration.
    group.throughput(Throughput::Elements(1));
    group.bench_function("snapshot", |bencher| {
        bencher.iter_custom(|count| walk(&paths, count, |path| verdict(&snapshot, path, &mut scratch)));
    });
    group.bench_function("hashbrown", |bencher| {
        bencher.iter_custom(|count| walk(&paths, count, |path| baseline.verdict(&snapshot, path, &mut scratch)));
    });
    group.finish();
}

/// How long `count` paths take, again from the start when they are at their end.
fn walk(paths: &[&str], count: u64, mut each: impl FnMut(&[u8]) -> Verdict) -> Duration {
    let count = usize::try_from(count).unwrap();
    let (rounds, rest) = (count / paths.len(), &paths[..count % paths.len()]);
    let began = Instant::now();
    for _ in 0..rounds {
        ask(paths, &mut each);
    }
    ask(rest, &mut each);
    began.elapsed()
}

/// A function of its own, so that what is measured is inlined once and here, as in the engine, which asks in one place.
#[inline(never)]
fn ask(paths: &[&str], each: &mut impl FnMut(&[u8]) -> Verdict) {
    for path in paths {
        // By reference: a copy that only the bench makes waits for what was written a moment ago in other pieces.
        black_box(&each(black_box(path.as_bytes())));
    }
}

fn build(criterion: &mut Criterion, name: &str, cluster: &Cluster) {
    let inventory = cluster.inventory();
    let now = Instant::now();
    let snapshot = inventory.snapshot(1, now).unwrap().unwrap();
    assert_eq!((snapshot.gvrs(), snapshot.ready().len()), (cluster.serves().len() + CUSTOM.len(), snapshot.servers().len()));
    let bytes = snapshot.heap_bytes();
    println!("{name}: {bytes} bytes on the heap, of {HEAP_MAX}");
    assert!(bytes <= HEAP_MAX);
    let mut group = criterion.benchmark_group(name);
    group.bench_function("from what is known", |bencher| bencher.iter_with_large_drop(|| inventory.snapshot(1, now)));
    group.bench_function("the table alone", |bencher| bencher.iter_with_large_drop(|| cluster.snapshot()));
    group.finish();
}

#[inline(always)]
fn verdict(snapshot: &Snapshot, path: &[u8], scratch: &mut Scratch) -> Verdict {
    let target = Target::parse(black_box(b"GET"), path, scratch).unwrap();
    route::decide(snapshot, &target, black_box(false))
}

/// The table that anybody would write first.
struct Baseline {
    serves: HashMap<Owned, ServerSet>,
    excluded: HashSet<[Box<[u8]>; 2]>,
}

#[derive(Hash, PartialEq, Eq)]
struct Owned {
    group: Box<[u8]>,
    version: Box<[u8]>,
    resource: Box<[u8]>,
}

/// Hashed as [`Owned`] is.
#[derive(Hash)]
struct Borrowed<'a> {
    group: &'a [u8],
    version: &'a [u8],
    resource: &'a [u8],
}

impl Equivalent<Owned> for Borrowed<'_> {
    fn equivalent(&self, key: &Owned) -> bool {
        *self.group == *key.group && *self.version == *key.version && *self.resource == *key.resource
    }
}

/// Hashed as an array is: with its length.
struct GroupVersion<'a> {
    group: &'a [u8],
    version: &'a [u8],
}

impl Hash for GroupVersion<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        [self.group, self.version].hash(state);
    }
}

impl Equivalent<[Box<[u8]>; 2]> for GroupVersion<'_> {
    fn equivalent(&self, key: &[Box<[u8]>; 2]) -> bool {
        *self.group == *key[0] && *self.version == *key[1]
    }
}

impl Baseline {
    fn new(cluster: &Cluster) -> Self {
        let owned = |Gvr { group, version, resource }: &Gvr| Owned {
            group: group.as_bytes().into(),
            version: version.as_bytes().into(),
            resource: resource.as_bytes().into(),
        };
        let bytes = |text: &str| text.as_bytes().into();
        Self {
            serves: cluster.serves().iter().map(|(gvr, by)| (owned(gvr), *by)).collect(),
            excluded: CUSTOM.iter().map(|(group, version)| [bytes(group), bytes(version)]).collect(),
        }
    }

    fn knows(&self, path: &[u8], scratch: &mut Scratch) -> bool {
        let target = Target::parse(b"GET", path, scratch).unwrap();
        matches!(target, Target::Resource { name: Name { group, version, resource, .. }, .. } if self.serves.contains_key(&Borrowed { group, version, resource }))
    }

    /// Of the snapshot only who is who.
    #[inline(always)]
    fn verdict(&self, snapshot: &Snapshot, path: &[u8], scratch: &mut Scratch) -> Verdict {
        let target = Target::parse(black_box(b"GET"), path, scratch).unwrap();
        let nobody = ServerSet::empty();
        let Target::Resource { name: Name { group, version, resource, .. }, .. } = target else {
            return Verdict::Local { fallback: nobody };
        };
        let Some(serving) = self.serves.get(&Borrowed { group, version, resource }).copied() else {
            let is_excluded = self.excluded.contains(&GroupVersion { group, version });
            return Verdict::Local { fallback: if is_excluded { snapshot.peers() } else { nobody } };
        };
        let peers = serving.intersect(snapshot.peers());
        if serving.contains(snapshot.local()) || peers.is_empty() {
            return Verdict::Local { fallback: peers };
        }
        Verdict::Peer(peers)
    }
}
