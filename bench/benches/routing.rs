//! Path to verdict: `Target::parse` and `route::decide` on a snapshot of 10,000 GVRs.
#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::hint::black_box;

use criterion::{Criterion, Throughput};
use discovery::Snapshot;
use engine::request::Target;
use engine::route::{self, Verdict};

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

/// Paths that are walked in turn, so that neither the table nor the branch predictor knows the next one.
const MANY: usize = 4_096;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    let snapshot = bench::large_snapshot().unwrap();
    assert_eq!(snapshot.gvrs(), bench::GVRS);
    one_path(&mut criterion, &snapshot);
    many_paths(&mut criterion, &snapshot);
    criterion.final_summary();
}

fn one_path(criterion: &mut Criterion, snapshot: &Snapshot) {
    let mut group = criterion.benchmark_group("routing");
    let mut scratch = Vec::with_capacity(256);
    for (name, path) in PATHS {
        group.bench_function(name, |bencher| bencher.iter(|| verdict(snapshot, black_box(path.as_bytes()), &mut scratch)));
    }
    group.finish();
}

fn many_paths(criterion: &mut Criterion, snapshot: &Snapshot) {
    // A stride that is prime to the number of GVRs visits them in no order.
    let paths: Vec<String> = (0..MANY).map(|nth| bench::path_of(nth * 7_919 % (bench::GVRS - 2))).collect();
    let mut scratch = Vec::with_capacity(256);
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

fn verdict(snapshot: &Snapshot, path: &[u8], scratch: &mut Vec<u8>) -> Verdict {
    let target = Target::parse(black_box(b"GET"), path, scratch).unwrap();
    route::decide(snapshot, &target, black_box(false))
}
