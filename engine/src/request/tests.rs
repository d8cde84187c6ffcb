//! What paths mean.

use proptest::prelude::*;

use super::*;

/// A target as text: `group/version/resource`, with ` long` behind it, or the name of the kind.
fn parsed(method: &str, path: &str) -> String {
    match Target::parse(method.as_bytes(), path.as_bytes(), &mut Scratch::default()) {
        Ok(Target::Resource { name, long_running }) => {
            let names = [name.group, name.version, name.resource].map(String::from_utf8_lossy).join("|");
            if long_running { names + " long" } else { names }
        }
        Ok(Target::Discovery) => "discovery".to_owned(),
        Ok(Target::Own { long_running: false }) => "own".to_owned(),
        Ok(Target::Own { long_running: true }) => "own long".to_owned(),
        Err(BadPath) => "bad".to_owned(),
    }
}

fn check(method: &str, table: &[(&str, &str)]) {
    for (path, expected) in table {
        assert_eq!(parsed(method, path), *expected, "{method} {path}");
    }
}

#[test]
fn resources() {
    check(
        "GET",
        &[
            ("/api/v1/pods", "|v1|pods"),
            ("/api/v1/pods/", "|v1|pods"),
            ("//api/v1/pods//", "|v1|pods"),
            ("/api/v1/nodes/n1", "|v1|nodes"),
            ("/api/v1/namespaces/x/pods", "|v1|pods"),
            ("/api/v1/namespaces/x/pods/y", "|v1|pods"),
            ("/api/v1/namespaces/x/pods/y/status", "|v1|pods"),
            ("/api/v1/namespaces/x/pods/y/status/z/a/b", "|v1|pods"),
            ("/apis/apps/v1/deployments", "apps|v1|deployments"),
            ("/apis/apps/v1/namespaces/x/deployments/y", "apps|v1|deployments"),
            ("/apis/a.b.example.org/v1beta1/things", "a.b.example.org|v1beta1|things"),
            // Any string is a version or a resource; case is kept.
            ("/api/V1/Pods", "|V1|Pods"),
            ("/apis/Apps/v1/x", "Apps|v1|x"),
            ("/api/apps/v1/deployments", "|apps|v1"),
        ],
    );
}

#[test]
fn namespaces_are_a_prefix_or_the_resource() {
    check(
        "GET",
        &[
            ("/api/v1/namespaces", "|v1|namespaces"),
            ("/api/v1/namespaces/x", "|v1|namespaces"),
            ("/api/v1/namespaces/x/", "|v1|namespaces"),
            ("/api/v1/namespaces/x/status", "|v1|namespaces"),
            ("/api/v1/namespaces/x/finalize", "|v1|namespaces"),
            ("/api/v1/namespaces/x/status/y", "|v1|namespaces"),
            ("/api/v1/namespaces/x/Status", "|v1|Status"),
            ("/api/v1/namespaces/x/namespaces", "|v1|namespaces"),
            ("/api/v1/namespaces/x/namespaces/y/pods", "|v1|namespaces"),
            ("/apis/g/v1/namespaces/x", "g|v1|namespaces"),
            ("/apis/g/v1/namespaces/x/finalize", "g|v1|namespaces"),
            ("/apis/g/v1/namespaces/x/things", "g|v1|things"),
            ("/api/v1/Namespaces/x/pods", "|v1|Namespaces"),
        ],
    );
}

#[test]
fn inner_empty_segments_count() {
    check(
        "GET",
        &[
            ("/api//v1/pods", "||v1"),
            ("/api/v1//pods", "|v1|"),
            ("/apis//v1/pods", "|v1|pods"),
            ("/apis/g//pods", "g||pods"),
            ("/api/v1/namespaces//pods", "|v1|pods"),
            ("/api/v1/namespaces/x//pods", "|v1|"),
            ("/apis//apps/v1/deployments", "|apps|v1"),
            ("/api/v1/./pods", "|v1|."),
            ("/api/v1/../v1/pods", "|v1|.."),
            ("/./api/v1/pods", "own"),
            ("/x/../api/v1/pods", "own"),
            ("/api/v1/pods;x=1", "|v1|pods;x=1"),
            ("/api;x/v1/pods", "own"),
            ("/api/v1/pods#x", "|v1|pods#x"),
            ("/api/v1/a+b", "|v1|a+b"),
        ],
    );
}

#[test]
fn escapes_are_undone_once() {
    check(
        "GET",
        &[
            ("/apis/batch%2Fv1/jobs", "batch|v1|jobs"),
            ("/apis/batch%2fv1/jobs", "batch|v1|jobs"),
            ("/apis/batch%252Fv1/jobs", "discovery"),
            ("/apis/batch%252Fv1/jobs/x", "batch%2Fv1|jobs|x"),
            ("/%61pi/v1/p%6Fds", "|v1|pods"),
            ("/api%2Fv1%2Fpods", "|v1|pods"),
            ("/%2F/api/v1/pods%2F", "|v1|pods"),
            ("/api/v1/pods%2F%2e%2e%2Fsecrets", "|v1|pods"),
            ("/api/v1/%2e%2e/pods", "|v1|.."),
            // A decoded question mark is part of the path; the query begins at the first raw one.
            ("/api/v1/pods%3Fwatch=1", "|v1|pods?watch=1"),
            ("/api/v1/pods?watch=%", "|v1|pods"),
            ("/api/v1/a%00b", "|v1|a\0b"),
            ("/api/v1/namespaces%2Fx/pods", "|v1|pods"),
            ("/api/v1/%77atch/pods", "|v1|pods long"),
        ],
    );
}

#[test]
fn what_cannot_be_decoded_is_bad() {
    for path in [
        "",
        "api/v1/pods",
        "?watch=1",
        "%2Fapi",
        "*/x",
        "http://h/api",
        "/%",
        "/%2",
        "/%zz",
        "/%2z",
        "/%z2",
        "/api/v1/pods%",
        "/healthz%",
        "/api/v1/pods/%%41",
        "/%?41",
        "/a%4",
        "/%+1",
        "/% 1",
    ] {
        assert_eq!(parsed("GET", path), "bad", "{path}");
    }
}

#[test]
fn paths_that_are_no_resource() {
    check(
        "GET",
        &[
            ("/api", "discovery"),
            ("/api/", "discovery"),
            ("//api", "discovery"),
            ("/api/v1", "discovery"),
            ("/api/v1/", "discovery"),
            ("/apis", "discovery"),
            ("/apis/", "discovery"),
            ("/apis?timeout=32s", "discovery"),
            ("/apis/batch", "discovery"),
            ("/apis/batch/v1", "discovery"),
            ("/apis/batch/v1/", "discovery"),
            ("/openapi/v2", "discovery"),
            ("/openapi/v3", "discovery"),
            ("/openapi/v3/apis/batch/v1?hash=1", "discovery"),
            ("/version", "discovery"),
            ("/version/", "discovery"),
            ("/version/x", "own"),
            ("/", "own"),
            ("//", "own"),
            ("/?watch=1", "own"),
            ("*", "own"),
            ("/healthz", "own"),
            ("/livez", "own"),
            ("/readyz/etcd", "own"),
            ("/metrics", "own"),
            ("/debug/pprof/profile", "own long"),
            ("/debug/pprofile", "own"),
            ("/.well-known/openid-configuration", "own"),
            ("/openid/v1/jwks", "own"),
            ("/API/v1/pods", "own"),
            ("/Apis/batch/v1/jobs", "own"),
            ("/apiss/batch/v1/jobs", "own"),
            ("/x/api/v1/pods", "own"),
        ],
    );
}

#[test]
fn prefix_verbs() {
    let table = [
        ("/api/v1/watch/pods", "|v1|pods long"),
        ("/api/v1/watch/namespaces/x/pods/y", "|v1|pods long"),
        ("/api/v1/watch/namespaces/x", "|v1|namespaces long"),
        ("/api/v1/watch/namespaces/x/status", "|v1|namespaces long"),
        ("/apis/apps/v1/watch/deployments", "apps|v1|deployments long"),
        ("/api/v1/proxy/nodes/n1/x", "|v1|nodes long"),
        ("/api/v1/proxy/namespaces/x/services/y/a/b", "|v1|services long"),
        ("/api/v1/watch/watch", "|v1|watch long"),
        ("/api/v1/watch//", "own"),
        ("/api/v1/watch", "own"),
        ("/api/v1/watch/", "own"),
        ("/api/v1/proxy?x", "own"),
        ("/apis/apps/v1/proxy", "own"),
        ("/apis/apps/watch/x", "apps|watch|x"),
        ("/apis/watch/v1", "discovery"),
        ("/api/v1/Watch/pods", "|v1|Watch"),
    ];
    for method in ["GET", "POST", "DELETE", "get", ""] {
        check(method, &table);
    }
}

#[test]
fn the_watch_parameter() {
    for (query, watch) in [
        ("watch=true", true),
        ("watch=1", true),
        ("watch=", true),
        ("watch", true),
        ("watch=no", true),
        ("watch=00", true),
        ("watch=true&watch=false", true),
        ("a=b&watch=1&c=d", true),
        ("&&watch", true),
        ("w%61tch=%31", true),
        ("watch=1=2", true),
        ("watch=fals%65", false),
        ("watch=%30", false),
        ("watch=0", false),
        ("watch=false", false),
        ("watch=FaLSE", false),
        ("watch=false&watch=true", false),
        ("watch=+0", true),
        ("Watch=true", false),
        ("watching=true", false),
        ("awatch=true", false),
        ("watch%3D1", false),
        ("x=watch", false),
        ("=watch", false),
        ("", false),
        // Pairs that Go drops.
        ("watch=1;a=2", false),
        ("a=1;watch=1", false),
        ("watch=%zz", false),
        ("watch=%", false),
        ("watch%=1", false),
        ("watch=%zz&watch=1", true),
        ("watch=0;&watch=1", true),
        ("watch?=1", false),
    ] {
        let expected = if watch { "|v1|pods long" } else { "|v1|pods" };
        for path in ["/api/v1/pods", "/api/v1/namespaces/x/pods", "/api/v1/namespaces/x/pods/", "/%61pi/v1/pods"] {
            let path = format!("{path}?{query}");
            assert_eq!(parsed("GET", &path), expected, "{path}");
            assert_eq!(parsed("HEAD", &path), expected, "{path}");
            for method in ["POST", "DELETE", "PUT", "PATCH", "get", "OPTIONS", ""] {
                assert_eq!(parsed(method, &path), "|v1|pods", "{method} {path}");
            }
        }
        // A named object is not watched this way.
        assert_eq!(parsed("GET", &format!("/api/v1/namespaces/x/pods/y?{query}")), "|v1|pods");
    }
    check(
        "GET",
        &[
            ("/api/v1/namespaces?watch=1", "|v1|namespaces long"),
            ("/api/v1/namespaces/x?watch=1", "|v1|namespaces"),
            ("/api/v1/pods//x?watch=1", "|v1|pods long"),
            ("/api/v1/pods?fieldSelector=metadata.name%3Dy&watch=1", "|v1|pods long"),
        ],
    );
}

#[test]
fn subresources_without_an_end() {
    for subresource in ["attach", "exec", "proxy", "log", "portforward"] {
        for method in ["GET", "POST"] {
            check(
                method,
                &[
                    (&format!("/api/v1/namespaces/x/pods/y/{subresource}?a=b"), "|v1|pods long"),
                    (&format!("/api/v1/nodes/n1/{subresource}/metrics"), "|v1|nodes long"),
                    (&format!("/api/v1/pods//{subresource}"), "|v1|pods long"),
                    (&format!("/api/v1/pods/{subresource}"), "|v1|pods"),
                    (&format!("/api/v1/pods/y/z/{subresource}"), "|v1|pods"),
                ],
            );
        }
    }
    check(
        "GET",
        &[
            ("/api/v1/namespaces/x/log", "|v1|log"),
            ("/api/v1/namespaces/x/pods/y/logs", "|v1|pods"),
            ("/api/v1/namespaces/x/pods/y/LOG", "|v1|pods"),
            ("/api/v1/namespaces/x/pods/y/scale", "|v1|pods"),
        ],
    );
}

/// Segments that end, start or lie around the borders of 8 and 64 bytes.
#[test]
fn long_paths() {
    for length in 0..200 {
        let group = "g".repeat(length);
        for tail in ["", "/", "/name", "/n/status", "?watch=0", "/%6e"] {
            let path = format!("/apis/{group}/v1/namespaces/{group}/things{tail}");
            assert_eq!(parsed("GET", &path), format!("{group}|v1|things"), "{path}");
        }
    }
}

#[test]
fn plain_paths_leave_the_scratch_alone() {
    let mut scratch = Scratch::default();
    Target::parse(b"GET", b"/api/v1/pods?a=%41", &mut scratch).unwrap();
    assert_eq!(scratch.decoded.capacity(), 0);
}

/// RequestInfo in the words of kubernetes.md §3.5, with every convenience.
fn naive(path: &[u8]) -> Option<[Vec<u8>; 3]> {
    let text = str::from_utf8(path).unwrap();
    let mut parts: Vec<&str> = text.trim_matches('/').split('/').collect();
    let mut group = "";
    match parts.remove(0) {
        "api" if parts.len() >= 2 => {}
        "apis" if parts.len() >= 3 => group = parts.remove(0),
        _ => return None,
    }
    let version = parts.remove(0);
    if ["proxy", "watch"].contains(&parts[0]) {
        parts.remove(0);
    }
    if parts.first()? == &"namespaces" && parts.len() > 2 && !["status", "finalize"].contains(&parts[2]) {
        parts.drain(..2);
    }
    Some([group, version, parts[0]].map(|name| name.as_bytes().to_vec()))
}

fn names(target: Target<'_>) -> Option<[Vec<u8>; 3]> {
    match target {
        Target::Resource { name, .. } => Some([name.group, name.version, name.resource].map(<[u8]>::to_vec)),
        Target::Discovery | Target::Own { .. } => None,
    }
}

/// What clients ask for.
const PLAIN: &str = "/(api/v1|apis/[a-z.]{1,30}/v1(beta1)?)(/namespaces/[a-z-]{1,12})?/[a-z]{1,30}(/[a-z0-9-]{1,20}(/status|/log)?)?\
    ([?](limit=500|watch=true|allowWatchBookmarks=true&watch=1))?";

/// Segments that go beyond what is read together, and whatever must not be read quickly.
const LONG_PIECES: &str =
    "((/|/|/|/|//|namespaces/|status|finalize|watch|proxy|log|exec|[a-z]{1,12}|[a-z]{30,60}|%|%2F|é|[?]|&|watch=1)){0,12}";

const PIECES: &str = "(/|/|//|api|apis|v1|batch|pods|namespaces|status|finalize|watch|proxy|log|x|%|%2F|%252F|%2e|;|é|\\?|&|watch=1){0,12}";

proptest! {
    /// What is read quickly is what the rules for any path say, and most of what clients ask is.
    #[test]
    fn quick_equals_any(method in "GET|HEAD|POST", root in "/api/v1|/apis/[a-z]{1,70}/v1", path in LONG_PIECES, plain in PLAIN) {
        for path in [format!("{root}/{path}"), plain.clone()] {
            let (mut text, mut scratch) = (Text::default(), Vec::new());
            if let Some(quick) = quick::read(method.as_bytes(), path.as_bytes(), &mut text) {
                prop_assert_eq!(Ok(quick), Target::parse_any(method.as_bytes(), path.as_bytes(), &mut scratch), "{}", path);
            }
        }
        prop_assert!(quick::read(method.as_bytes(), plain.as_bytes(), &mut Text::default()).is_some(), "{}", plain);
    }

    #[test]
    fn quick_watch_equals_any(query in "(watch|w|wa|=|=|&|&|0|1|false|FALSE|%|%77|;|[+]|resourceVersion=12345678|limit=500){0,12}") {
        if let Some(quick) = quick::asks_to_watch(query.as_bytes()) {
            prop_assert_eq!(quick, asks_to_watch(query.as_bytes()), "{}", query);
        }
    }

    #[test]
    fn random_bytes_never_panic(
        method in proptest::collection::vec(any::<u8>(), 0..8),
        path in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let mut scratch = Scratch::default();
        let bare = Target::parse(&method, &path, &mut scratch).is_ok();
        prop_assert!(!bare || matches!(path[0], b'/' | b'*'));
        let slashed = [b"/api/", &path[..]].concat();
        let read = Target::parse(&method, &slashed, &mut scratch);
        prop_assert!(read.is_ok() || slashed.contains(&b'%'));
    }

    #[test]
    fn equals_the_naive_reading(path in "(/|/|//|api|apis|v1|batch|pods|namespaces|status|finalize|watch|proxy|log|x|;|é){0,12}") {
        let path = format!("/{path}");
        let mut scratch = Scratch::default();
        let target = Target::parse(b"GET", path.as_bytes(), &mut scratch).unwrap();
        prop_assert_eq!(names(target), naive(path.as_bytes()));
    }

    /// Escaping every byte changes nothing but where the bytes are kept.
    #[test]
    fn escaped_equals_plain(path in "[/a-z?%0-9]{0,4}(/|/|//|api|apis|v1|pods|namespaces|watch|x|%2F){0,12}") {
        let plain = format!("/{path}");
        let escaped: String = path.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let mut scratch = Scratch::default();
        let escaped = format!("/{escaped}");
        let target = Target::parse(b"GET", escaped.as_bytes(), &mut scratch).unwrap();
        prop_assert_eq!(names(target), naive(plain.as_bytes()));
    }

    #[test]
    fn the_query_never_changes_where_it_goes(path in PIECES, query in "[a-z=&;%?/0-9]{0,30}") {
        let plain = path.replace('?', "");
        let plain = format!("/{plain}");
        let asked = format!("{plain}?{query}");
        let (mut one, mut two) = (Scratch::default(), Scratch::default());
        let without = Target::parse(b"GET", plain.as_bytes(), &mut one).map(names);
        let with = Target::parse(b"GET", asked.as_bytes(), &mut two).map(names);
        prop_assert_eq!(without, with);
    }
}
