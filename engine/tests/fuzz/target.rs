//! Method and `:path` to a target and a verdict.

use std::cell::RefCell;
use std::fmt::Write as _;

use discovery::{Publisher, Reader, static_routes};
use engine::request::{Scratch, Target};
use engine::route;

use super::ops::Ops;
use super::yard::ROUTES;

const SEGMENTS: [&str; 32] = [
    "api",
    "apis",
    "v1",
    "g",
    "apps",
    "namespaces",
    "default",
    "pods",
    "both",
    "theirs",
    "mine",
    "watch",
    "proxy",
    "status",
    "finalize",
    "log",
    "exec",
    "attach",
    "portforward",
    "openapi",
    "version",
    "debug",
    "pprof",
    "healthz",
    "..",
    ".",
    "",
    "%2F",
    "%2e%2e",
    "%",
    "%zz",
    ";a=b",
];
const QUERIES: [&str; 12] = [
    "watch=1",
    "watch=true",
    "watch=0",
    "watch=False",
    "watch",
    "watch=",
    "limit=500",
    "w%61tch=1",
    "watch=%31",
    "watch=1;a",
    "watch=%zz",
    "a=b",
];
const METHODS: [&[u8]; 7] = [b"GET", b"HEAD", b"POST", b"DELETE", b"OPTIONS", b"get", b""];

thread_local! {
    static ROUTING: RefCell<(Publisher, Reader)> = RefCell::new({
        let publisher = Publisher::new(static_routes::parse(ROUTES).unwrap());
        let reader = publisher.reader();
        (publisher, reader)
    });
}

/// Any path has one meaning, it is the same however the path is escaped, and it is routed.
pub fn path_to_target(input: &[u8]) {
    let mut ops = Ops(input);
    let method = ops.pick(&METHODS);
    let mut path = Vec::new();
    while let Some(op) = ops.next() {
        match op % 8 {
            0 => path.extend_from_slice(ops.string(24)),
            1 => path.push(b'/'),
            2 => {
                path.push(if path.contains(&b'?') { b'&' } else { b'?' });
                path.extend_from_slice(ops.pick(&QUERIES).as_bytes());
            }
            3 => path.extend_from_slice(ops.pick(&SEGMENTS).as_bytes()),
            _ => {
                path.push(b'/');
                path.extend_from_slice(ops.pick(&SEGMENTS).as_bytes());
            }
        }
    }
    let mut scratch = Scratch::default();
    let parsed = Target::parse(method, &path, &mut scratch);
    let shape = path == b"*" || path.first() == Some(&b'/');
    if let Ok(target) = &parsed {
        assert!(shape);
        ROUTING.with_borrow_mut(|(_, reader)| {
            let snapshot = reader.current();
            let (direct, marked) = (route::decide(snapshot, target, false), route::decide(snapshot, target, true));
            assert!(!matches!(marked, route::Verdict::Peer(_)), "a marked request never goes on: {marked:?} {direct:?}");
        });
    }
    if let Some(escaped) = escape(&path) {
        let mut scratch = Scratch::default();
        assert_eq!(Target::parse(method, &escaped, &mut scratch), parsed, "{}", String::from_utf8_lossy(&escaped));
    }
}

/// The same path with every byte escaped that is not yet; `None` for what is no path.
fn escape(path: &[u8]) -> Option<Vec<u8>> {
    let end = path.iter().position(|&b| b == b'?').unwrap_or(path.len());
    let (raw, query) = path.split_at(end);
    let (b'/', raw) = raw.split_first()? else { return None };
    let mut escaped = String::from("/");
    let mut left = 0;
    for byte in raw {
        if *byte == b'%' {
            left = 3;
        }
        if left > 0 {
            left -= 1;
            // Part of an escape, or of what should be one: left as it is, unless it is not text.
            if !byte.is_ascii() {
                return None;
            }
            escaped.push(char::from(*byte));
        } else {
            write!(escaped, "%{byte:02X}").unwrap();
        }
    }
    Some([escaped.as_bytes(), query].concat())
}

pub fn seeds() -> Vec<Vec<u8>> {
    // Segments by their number in the list.
    let path = |segments: &[u8]| {
        let mut seed = vec![0];
        seed.extend(segments.iter().flat_map(|&segment| [4, segment]));
        seed
    };
    let mut watch = path(&[1, 3, 2, 8]);
    watch.extend([2, 0, 2, 6]);
    let mut escaped = path(&[1]);
    escaped.extend([3, 27, 3, 3, 3, 27, 3, 2, 4, 9]);
    let raw = [&[0, 0, 20][..], b"/api/v1/nodes?watch=1"].concat();
    vec![
        path(&[0, 2, 5, 6, 7]),
        path(&[0, 2, 5, 6, 7, 3, 15]),
        path(&[1, 4, 2, 5, 6, 8, 3, 13]),
        path(&[0, 2, 11, 5, 6, 7]),
        path(&[19, 2]),
        path(&[20]),
        path(&[21, 22]),
        path(&[1, 26, 26, 24]),
        path(&[0, 2, 29]),
        watch,
        escaped,
        raw,
    ]
}
