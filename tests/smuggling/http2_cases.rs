//! Requests of HTTP/2 that would be something else to a server behind, above all when it reads them as HTTP/1.1.
//!
//! Tables, by what varies. A field `x-end` must reach the server.

use super::case::{CASE, HIDDEN, Want, took};
use super::http2_wire::Fields;

use Want::{GoAway, Refused, Reset, Took, Unfinished};

/// What follows the head.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Data(&'static str),
    /// DATA with END_STREAM.
    Last(&'static str),
    /// HEADERS with END_STREAM.
    Trailers(Fields<'static>),
    /// HEADERS without it.
    MoreHeaders(Fields<'static>),
}

use Part::{Data, Last, MoreHeaders, Trailers};

/// One request and what becomes of it.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub fields: Vec<(String, String)>,
    pub parts: &'static [Part],
    pub want: Want,
}

impl Case {
    /// The table it is of.
    pub fn group(&self) -> &str {
        self.name.split(':').next().unwrap()
    }
}

const METHOD: (&str, &str) = (":method", "GET");
const POST: (&str, &str) = (":method", "POST");
const SCHEME: (&str, &str) = (":scheme", "https");
const PATH: (&str, &str) = (":path", "/case");
const AUTHORITY: (&str, &str) = (":authority", "k");
/// PROTOCOL_ERROR.
const MALFORMED: Want = Reset(1);

/// Every case.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |group: &str, name: &str, fields: Fields<'_>, parts: &'static [Part], want: Want| {
        let fields = fields.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        cases.push(Case { name: format!("{group}: {name}"), fields, parts, want });
    };
    for (name, fields, want) in HEADS {
        add("head", name, fields, &[], *want);
    }
    for (path, want) in PATHS {
        add("path", &format!("{path:?}"), &[METHOD, SCHEME, (":path", path), AUTHORITY], &[], *want);
    }
    for (method, want) in METHODS {
        add("method", &format!("{method:?}"), &[(":method", method), SCHEME, PATH, AUTHORITY], &[], *want);
    }
    for (authority, want) in AUTHORITIES {
        add("authority", &format!("{authority:?}"), &[METHOD, SCHEME, PATH, (":authority", authority)], &[], *want);
        add("host", &format!("{authority:?}"), &[METHOD, SCHEME, PATH, ("host", authority)], &[], *want);
    }
    for (fields, want) in FIELDS {
        add("fields", &format!("{fields:?}"), &[&[METHOD, SCHEME, PATH, AUTHORITY], *fields].concat(), &[], *want);
    }
    for name in IDENTITY {
        add("identity", name, &[METHOD, SCHEME, PATH, AUTHORITY, (name, "admin"), ("x-end", "1"), (name, "")], &[], took(""));
        let far = "a".repeat(20_000);
        add("identity in CONTINUATION", name, &[METHOD, SCHEME, PATH, AUTHORITY, ("x-end", &far), (name, "admin")], &[], took(""));
    }
    for (name, fields, parts, want) in BODIES {
        add("body", name, &[&[POST, SCHEME, PATH, AUTHORITY], *fields].concat(), parts, *want);
    }
    // A block longer than the list may be is no request any more; one that grows beyond it is (431).
    const LONGER: Want = GoAway(11);
    let long = "a".repeat(70_000);
    add("large", "value", &[METHOD, SCHEME, PATH, AUTHORITY, ("a", &long)], &[], LONGER);
    add("large", "name", &[METHOD, SCHEME, PATH, AUTHORITY, (&long, "a")], &[], LONGER);
    add("large", "path", &[METHOD, SCHEME, (":path", &format!("/{long}")), AUTHORITY], &[], LONGER);
    add("large", "many", &[&[METHOD, SCHEME, PATH, AUTHORITY], &[("a", "b"); 2_000][..]].concat(), &[], Refused(431));
    add("large", "with a body", &[POST, SCHEME, PATH, AUTHORITY, ("a", &long)], &[Last("hello")], LONGER);
    cases
}

/// Whole heads, without a body.
const HEADS: &[(&str, Fields<'static>, Want)] = &[
    ("plain", &[METHOD, SCHEME, PATH, AUTHORITY], took("")),
    ("any order", &[AUTHORITY, PATH, METHOD, SCHEME], took("")),
    ("no authority", &[METHOD, SCHEME, PATH], took("")),
    ("host for authority", &[METHOD, SCHEME, PATH, ("host", "k")], took("")),
    ("host and authority", &[METHOD, SCHEME, PATH, AUTHORITY, ("host", "k")], took("")),
    ("host is not authority", &[METHOD, SCHEME, PATH, AUTHORITY, ("host", "evil")], took("")),
    ("two hosts", &[METHOD, SCHEME, PATH, ("host", "k"), ("host", "k")], MALFORMED),
    ("two hosts and authority", &[METHOD, SCHEME, PATH, AUTHORITY, ("host", "k"), ("host", "evil")], MALFORMED),
    ("nothing", &[], MALFORMED),
    ("no method", &[SCHEME, PATH, AUTHORITY], MALFORMED),
    ("no scheme", &[METHOD, PATH, AUTHORITY], MALFORMED),
    ("no path", &[METHOD, SCHEME, AUTHORITY], MALFORMED),
    ("only method", &[METHOD], MALFORMED),
    ("two methods", &[METHOD, POST, SCHEME, PATH, AUTHORITY], MALFORMED),
    ("two equal methods", &[METHOD, METHOD, SCHEME, PATH, AUTHORITY], MALFORMED),
    ("two schemes", &[METHOD, SCHEME, SCHEME, PATH, AUTHORITY], MALFORMED),
    ("two paths", &[METHOD, SCHEME, PATH, (":path", "/hidden"), AUTHORITY], MALFORMED),
    ("two equal paths", &[METHOD, SCHEME, PATH, PATH, AUTHORITY], MALFORMED),
    ("two authorities", &[METHOD, SCHEME, PATH, AUTHORITY, (":authority", "evil")], MALFORMED),
    ("method behind a field", &[SCHEME, PATH, AUTHORITY, ("a", "b"), METHOD], MALFORMED),
    ("path behind a field", &[METHOD, SCHEME, AUTHORITY, ("a", "b"), PATH], MALFORMED),
    ("authority behind a field", &[METHOD, SCHEME, PATH, ("a", "b"), AUTHORITY], MALFORMED),
    ("second path behind a field", &[METHOD, SCHEME, PATH, AUTHORITY, ("a", "b"), (":path", "/hidden")], MALFORMED),
    ("status", &[METHOD, SCHEME, PATH, AUTHORITY, (":status", "200")], MALFORMED),
    ("protocol", &[METHOD, SCHEME, PATH, AUTHORITY, (":protocol", "websocket")], MALFORMED),
    ("unknown pseudo-header", &[METHOD, SCHEME, PATH, AUTHORITY, (":version", "1")], MALFORMED),
    ("empty pseudo-header", &[METHOD, SCHEME, PATH, AUTHORITY, (":", "1")], MALFORMED),
    ("pseudo-header in upper case", &[METHOD, SCHEME, (":Path", "/case"), AUTHORITY], MALFORMED),
    ("pseudo-header with a blank", &[METHOD, SCHEME, PATH, (":path ", "/hidden"), AUTHORITY], MALFORMED),
    ("scheme http", &[METHOD, (":scheme", "http"), PATH, AUTHORITY], took("")),
    ("scheme empty", &[METHOD, (":scheme", ""), PATH, AUTHORITY], MALFORMED),
    ("scheme ftp", &[METHOD, (":scheme", "ftp"), PATH, AUTHORITY], MALFORMED),
    ("scheme with a URL", &[METHOD, (":scheme", "https://evil/hidden?"), PATH, AUTHORITY], MALFORMED),
    ("scheme in upper case", &[METHOD, (":scheme", "HTTPS"), PATH, AUTHORITY], MALFORMED),
    ("scheme with CR LF", &[METHOD, (":scheme", "https\r\n"), PATH, AUTHORITY], MALFORMED),
    ("CONNECT", &[(":method", "CONNECT"), AUTHORITY], Refused(405)),
    ("CONNECT to somewhere", &[(":method", "CONNECT"), (":authority", "127.0.0.1:22")], Refused(405)),
    ("CONNECT with a path", &[(":method", "CONNECT"), SCHEME, PATH, AUTHORITY], Refused(405)),
    ("CONNECT without authority", &[(":method", "CONNECT")], MALFORMED),
    ("CONNECT, extended", &[(":method", "CONNECT"), SCHEME, PATH, AUTHORITY, (":protocol", "websocket")], MALFORMED),
    ("OPTIONS *", &[(":method", "OPTIONS"), SCHEME, (":path", "*"), AUTHORITY], Took("*", b"")),
    ("* before its method", &[(":path", "*"), (":method", "GET"), SCHEME, AUTHORITY], MALFORMED),
];

const PATHS: &[(&str, Want)] = &[
    ("/a%2Fb", Took("/a%2Fb", b"")),
    ("//evil/b", Took("//evil/b", b"")),
    ("/a/../b;c=d?e=f;g%zz", Took("/a/../b;c=d?e=f;g%zz", b"")),
    ("*", MALFORMED),
    ("", MALFORMED),
    ("case", MALFORMED),
    ("?a", MALFORMED),
    ("https://evil/hidden", MALFORMED),
    ("evil:443", MALFORMED),
    ("/ca se", MALFORMED),
    (" /case", MALFORMED),
    ("/case ", MALFORMED),
    ("/case HTTP/1.1\r\nHost: k\r\n\r\nGET /hidden", MALFORMED),
    ("/case\r\n", MALFORMED),
    ("/ca\nse", MALFORMED),
    ("/ca\rse", MALFORMED),
    ("/ca\tse", MALFORMED),
    ("/ca\0se", MALFORMED),
    ("/ca\x01se", MALFORMED),
    ("/ca\x1bse", MALFORMED),
    ("/ca\x7fse", MALFORMED),
    ("/case#a", MALFORMED),
    ("/case?a#b", MALFORMED),
    ("/%zz", Refused(400)),
    ("/case%", Refused(400)),
    ("/case%2", Refused(400)),
    ("/%\u{e9}\u{e9}", Refused(400)),
];

const METHODS: &[(&str, Want)] = &[
    ("BREW", took("")),
    ("get", took("")),
    ("", MALFORMED),
    (" GET", MALFORMED),
    ("GET ", MALFORMED),
    ("GE T", MALFORMED),
    ("GET /hidden HTTP/1.1\r\nHost: k\r\n\r\nGET", MALFORMED),
    ("GET\r\n", MALFORMED),
    ("GET\0", MALFORMED),
    ("GET\t", MALFORMED),
    ("GET/", MALFORMED),
    ("GET:", MALFORMED),
    ("(GET)", MALFORMED),
    ("G@T", MALFORMED),
    ("\"GET\"", MALFORMED),
    ("G\u{c9}T", MALFORMED),
];

/// In `:authority`, and in `host` alone.
const AUTHORITIES: &[(&str, Want)] = &[
    ("k:443", took("")),
    ("127.0.0.1:6443", took("")),
    ("[::1]:6443", took("")),
    ("", MALFORMED),
    ("root@k", MALFORMED),
    ("root:x@k", MALFORMED),
    ("k/hidden", MALFORMED),
    ("k?a", MALFORMED),
    ("k#a", MALFORMED),
    ("k evil", MALFORMED),
    (" k", MALFORMED),
    ("k ", MALFORMED),
    ("k\tevil", MALFORMED),
    ("k\r\nX-Remote-User: root", MALFORMED),
    ("k\nX: y", MALFORMED),
    ("k\0", MALFORMED),
    ("k\x7f", MALFORMED),
    ("k\\evil", MALFORMED),
    ("\"k\"", MALFORMED),
    ("<k>", MALFORMED),
    ("k\u{e9}", MALFORMED),
];

/// Fields behind a good head.
const FIELDS: &[(Fields<'static>, Want)] = &[
    (&[("x-end", "b\tc d")], took("")),
    (&[("x-end", "")], took("")),
    (&[("x-end", "\u{e9}")], took("")),
    (&[("te", "trailers"), ("x-end", "1")], took("")),
    (&[("cookie", "a=b"), ("x-end", "1"), ("cookie", "c=d")], took("")),
    (&[("x-end", "1"), ("a_b", "c"), ("a.b", "c")], took("")),
    (&[("expect", "100-continue"), ("x-end", "1")], took("")),
    (&[("http2-settings", "AAM"), ("x-end", "1")], took("")),
    (&[("content-length", "0"), ("x-end", "1")], took("")),
    (&[("impersonate-user", "a"), ("authorization", "b"), ("authorization", "c"), ("x-end", "1")], took("")),
    (&[("connection", "close")], MALFORMED),
    (&[("connection", "keep-alive")], MALFORMED),
    (&[("connection", "")], MALFORMED),
    (&[("connection", "x-remote-user")], MALFORMED),
    (&[("keep-alive", "5")], MALFORMED),
    (&[("proxy-connection", "keep-alive")], MALFORMED),
    (&[("transfer-encoding", "chunked")], MALFORMED),
    (&[("transfer-encoding", "identity")], MALFORMED),
    (&[("transfer-encoding", "")], MALFORMED),
    (&[("upgrade", "websocket")], MALFORMED),
    (&[("upgrade", "h2c")], MALFORMED),
    (&[("te", "gzip")], MALFORMED),
    (&[("te", "trailers, gzip")], MALFORMED),
    (&[("te", "")], MALFORMED),
    (&[("te", "trailers"), ("te", "gzip")], MALFORMED),
    (&[("A", "b")], MALFORMED),
    (&[("aB", "c")], MALFORMED),
    (&[("Content-Length", "0")], MALFORMED),
    (&[("Transfer-Encoding", "chunked")], MALFORMED),
    (&[("X-Remote-User", "root")], MALFORMED),
    (&[("", "a")], MALFORMED),
    (&[(" ", "a")], MALFORMED),
    (&[("a ", "b")], MALFORMED),
    (&[(" a", "b")], MALFORMED),
    (&[("a b", "c")], MALFORMED),
    (&[("a\t", "b")], MALFORMED),
    (&[("a:", "b")], MALFORMED),
    (&[("a: b\r\nx-remote-user", "root")], MALFORMED),
    (&[("transfer-encoding: chunked\r\na", "b")], MALFORMED),
    (&[("a\r\nb", "c")], MALFORMED),
    (&[("a\nb", "c")], MALFORMED),
    (&[("a\0b", "c")], MALFORMED),
    (&[("a\x01", "b")], MALFORMED),
    (&[("a\x7f", "b")], MALFORMED),
    (&[("\u{e4}", "b")], MALFORMED),
    (&[("a(", "b")], MALFORMED),
    (&[("a/b", "c")], MALFORMED),
    (&[("a\"", "b")], MALFORMED),
    (&[("a{}", "b")], MALFORMED),
    (&[("a@", "b")], MALFORMED),
    (&[("a=", "b")], MALFORMED),
    (&[("a,b", "c")], MALFORMED),
    (&[("a", "b\r\nx-remote-user: root")], MALFORMED),
    (&[("a", "b\r\n\r\nGET /hidden HTTP/1.1\r\nHost: k\r\n\r\n")], MALFORMED),
    (&[("a", "b\nx-remote-user: root")], MALFORMED),
    (&[("a", "b\rx-remote-user: root")], MALFORMED),
    (&[("a", "\r\n")], MALFORMED),
    (&[("a", "b\0c")], MALFORMED),
    (&[("a", "0123456789\x00123456789")], MALFORMED),
    (&[("a", "\x01")], MALFORMED),
    (&[("a", "0123456789\x0b0123456789")], MALFORMED),
    (&[("a", "\x1b[1m")], MALFORMED),
    (&[("a", "b\x7f")], MALFORMED),
    (&[("a", "0123456789\x7f0123456789")], MALFORMED),
    (&[("a", " b")], MALFORMED),
    (&[("a", "b ")], MALFORMED),
    (&[("a", "\tb")], MALFORMED),
    (&[("a", "b\t")], MALFORMED),
    (&[("a", " ")], MALFORMED),
    (&[("cookie", "a=b\r\nc: d")], MALFORMED),
    (&[("content-type", "a\r\nb: c")], MALFORMED),
    (&[("authorization", "Bearer a\0")], MALFORMED),
    (&[("content-length", "5")], MALFORMED),
    (&[("content-length", "0"), ("content-length", "0")], MALFORMED),
    (&[("content-length", "")], MALFORMED),
    (&[("content-length", "+0")], MALFORMED),
    (&[("content-length", "-0")], MALFORMED),
    (&[("content-length", "0x0")], MALFORMED),
    (&[("content-length", "0, 0")], MALFORMED),
    (&[("content-length", "0 0")], MALFORMED),
    (&[("content-length", "zero")], MALFORMED),
    (&[("content-length", "18446744073709551616")], MALFORMED),
    (&[("content-length", "18446744073709551615")], MALFORMED),
];

/// Names that only the proxy may write, and what looks like them.
const IDENTITY: &[&str] = &[
    "x-remote-user",
    "x-remote-uid",
    "x-remote-group",
    "x-remote-extra-scopes",
    "x-remote-",
    "x-remote-user%20",
    "x_remote_user",
    "x-remote_user",
    "x_remote-group",
    "x_remote_extra_a",
    "x-kubernetes-peer-proxied",
    "x_kubernetes_peer_proxied",
    "x-kubernetes_peer-proxied",
];

/// A POST: fields of its head, and what follows.
const BODIES: &[(&str, Fields<'static>, &[Part], Want)] = &[
    ("plain", &[], &[Last("hello")], took("hello")),
    ("in pieces", &[], &[Data("he"), Data(""), Data("llo"), Last("")], took("hello")),
    ("a length", &[("content-length", "5")], &[Last("hello")], took("hello")),
    ("a length, in pieces", &[("content-length", "5")], &[Data("hel"), Data("lo"), Last("")], took("hello")),
    ("a length with zeros", &[("content-length", "005")], &[Last("hello")], took("hello")),
    ("a length of 0", &[("content-length", "0")], &[Last("")], took("")),
    ("no length and a request inside", &[], &[Last("GET /hidden HTTP/1.1\r\n\r\n")], Took(CASE, b"GET /hidden HTTP/1.1\r\n\r\n")),
    ("chunks inside are a body", &[], &[Last("0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n")], took("0\r\n\r\nGET /hidden HTTP/1.1\r\n\r\n")),
    ("trailers", &[], &[Data("hello"), Trailers(&[("x-sum", "1")])], took("hello")),
    ("trailers and a length", &[("content-length", "5")], &[Data("hello"), Trailers(&[("x-sum", "1")])], took("hello")),
    ("trailers without a body", &[], &[Trailers(&[("x-sum", "1")])], took("")),
    ("empty trailers", &[], &[Data("hello"), Trailers(&[])], took("hello")),
    ("trailers: identity", &[], &[Data("hello"), Trailers(&[("x-remote-user", "root"), ("x_remote_group", "a")])], took("hello")),
    ("trailers: marker", &[], &[Data("hello"), Trailers(&[("x-kubernetes-peer-proxied", "true")])], took("hello")),
    ("no end", &[], &[Data("hello")], Unfinished),
    ("no end of a length", &[("content-length", "6")], &[Data("hello")], Unfinished),
    ("only a head", &[], &[Data("")], Unfinished),
    ("shorter than its length", &[("content-length", "6")], &[Last("hello")], MALFORMED),
    ("much shorter than its length", &[("content-length", "999999999999")], &[Last("hello")], MALFORMED),
    ("nothing of its length", &[("content-length", "5")], &[Last("")], MALFORMED),
    ("longer than its length", &[("content-length", "4")], &[Last("hello")], MALFORMED),
    ("longer than its length, in pieces", &[("content-length", "5")], &[Data("hello"), Last("!")], MALFORMED),
    ("longer than its length, later", &[("content-length", "5")], &[Data("hello"), Data("GET /hidden HTTP/1.1\r\n\r\n")], MALFORMED),
    ("longer than a length of 0", &[("content-length", "0")], &[Last("hello")], MALFORMED),
    ("trailers before its length", &[("content-length", "6")], &[Data("hello"), Trailers(&[("x-sum", "1")])], MALFORMED),
    ("two lengths", &[("content-length", "5"), ("content-length", "5")], &[Last("hello")], MALFORMED),
    ("two different lengths", &[("content-length", "5"), ("content-length", "0")], &[Last("hello")], MALFORMED),
    ("a length with a plus", &[("content-length", "+5")], &[Last("hello")], MALFORMED),
    ("a length list", &[("content-length", "5,5")], &[Last("hello")], MALFORMED),
    ("2^64 + 5", &[("content-length", "18446744073709551621")], &[Last("hello")], MALFORMED),
    ("chunked", &[("transfer-encoding", "chunked")], &[Last("0\r\n\r\n")], MALFORMED),
    ("chunked and a length", &[("transfer-encoding", "chunked"), ("content-length", "5")], &[Last("0\r\n\r\n")], MALFORMED),
    ("trailers: pseudo-header", &[], &[Data("hello"), Trailers(&[(":path", HIDDEN)])], MALFORMED),
    ("trailers: status", &[], &[Data("hello"), Trailers(&[(":status", "200")])], MALFORMED),
    ("trailers: unknown pseudo-header", &[], &[Data("hello"), Trailers(&[(":a", "b")])], MALFORMED),
    ("trailers: content-length", &[], &[Data("hello"), Trailers(&[("content-length", "5")])], MALFORMED),
    ("trailers: transfer-encoding", &[], &[Data("hello"), Trailers(&[("transfer-encoding", "chunked")])], MALFORMED),
    ("trailers: host", &[], &[Data("hello"), Trailers(&[("host", "evil")])], MALFORMED),
    ("trailers: connection", &[], &[Data("hello"), Trailers(&[("connection", "close")])], MALFORMED),
    ("trailers: upgrade", &[], &[Data("hello"), Trailers(&[("upgrade", "h2c")])], MALFORMED),
    ("trailers: upper case", &[], &[Data("hello"), Trailers(&[("X-Sum", "1")])], MALFORMED),
    ("trailers: CR LF", &[], &[Data("hello"), Trailers(&[("x-sum", "1\r\nx-remote-user: root")])], MALFORMED),
    ("trailers: empty name", &[], &[Data("hello"), Trailers(&[("", "1")])], MALFORMED),
    ("trailers: blank behind", &[], &[Data("hello"), Trailers(&[("x-sum", "1 ")])], MALFORMED),
    ("more headers", &[], &[MoreHeaders(&[("x-sum", "1")])], MALFORMED),
    ("more headers behind a body", &[], &[Data("hello"), MoreHeaders(&[("x-sum", "1")]), Last("")], MALFORMED),
    ("a second request on the stream", &[], &[MoreHeaders(&[METHOD, SCHEME, (":path", HIDDEN), AUTHORITY])], MALFORMED),
    ("a second complete request on the stream", &[], &[Trailers(&[METHOD, SCHEME, (":path", HIDDEN), AUTHORITY])], MALFORMED),
];
