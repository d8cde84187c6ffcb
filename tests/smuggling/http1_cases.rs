//! Requests of HTTP/1.1 that readers understand differently, that are malformed, or that only look so.
//!
//! Tables, by what varies. Conventions that hold everywhere: a field `X-Hop` must not reach the server, `X-End` must.

use super::case::{CASE, Want, took};

use Want::{Refused, Took, TookThenClosed, TookThenRefused, Unfinished};

/// One input and what becomes of it.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub input: Vec<u8>,
    pub want: Want,
}

/// Bytes, because some inputs are no text.
type Text = &'static [u8];

const HELLO: &str = "5\r\nhello\r\n0\r\n\r\n";
const BURIED: &str = "GET /hidden HTTP/1.1\r\nHost: k\r\n\r\n";

/// Every case.
pub fn all() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |group: &str, name: &str, parts: &[&[u8]], want: Want| {
        cases.push(Case { name: format!("{group}: {name}"), input: parts.concat(), want });
    };
    let post = b"POST /case HTTP/1.1\r\nHost: k\r\n";
    for (name, lines, want) in CODINGS {
        add("coding", name, &[post, lines, b"\r\n\r\n", HELLO.as_bytes()], *want);
    }
    for (name, lines, want) in LENGTHS {
        add("length", name, &[post, lines, b"\r\n\r\n", b"hello"], *want);
    }
    for (name, body, want) in CHUNKS {
        add("chunks", name, &[post, b"Transfer-Encoding: chunked\r\n\r\n", body], *want);
    }
    for (name, line, want) in REQUEST_LINES {
        add("request line", name, &[line, b"\r\nHost: k\r\n\r\n"], *want);
    }
    for (name, lines, want) in LINES {
        add("lines", name, &[b"GET /case HTTP/1.1\r\nHost: k\r\n", lines, b"\r\n\r\n"], *want);
    }
    for (name, line, want) in HOSTS {
        add("host", name, &[b"GET /case HTTP/1.1\r\n", line, b"\r\n"], *want);
    }
    for name in IDENTITY {
        let line = format!("{name}\r\nX-End: 1\r\n\r\n");
        add("identity", name, &[b"GET /case HTTP/1.1\r\nHost: k\r\n", line.as_bytes()], took(""));
    }
    for (name, text, want) in WHOLE {
        add("whole", name, &[text], *want);
    }
    cases.extend(made());
    cases
}

/// Cases that are too long to be written down.
fn made() -> Vec<Case> {
    let get = |lines: String| format!("GET /case HTTP/1.1\r\nHost: k\r\n{lines}\r\n");
    let chunked = |body: String| format!("POST /case HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n{body}");
    let long = |count: usize| "a".repeat(count);
    let length = BURIED.len();
    let cases = [
        ("a value of 70,000 bytes", get(format!("A: {}\r\n", long(70_000))), Refused(431)),
        ("a name of 70,000 bytes", get(format!("{}: a\r\n", long(70_000))), Refused(431)),
        ("a value of 2 MiB", get(format!("A: {}\r\n", long(2 << 20))), Refused(431)),
        ("a target of 70,000 bytes", format!("GET /{} HTTP/1.1\r\nHost: k\r\n\r\n", long(70_000)), Refused(431)),
        ("a method of 70,000 bytes", format!("{} /case HTTP/1.1\r\nHost: k\r\n\r\n", long(70_000)), Refused(431)),
        ("just above the limit", get(format!("A: {}\r\n", long(65_536))), Refused(431)),
        ("just below the limit", get(format!("A: {}\r\n", long(64_000))), took("")),
        ("300 lines", get("A: b\r\n".repeat(300)), Refused(431)),
        ("129 lines", get("A: b\r\n".repeat(128)), Refused(431)),
        ("128 lines", get("A: b\r\n".repeat(127)), took("")),
        ("50 identities", get("X-Remote-Group: system:masters\r\n".repeat(50)), took("")),
        ("2,000 bytes of chunk extension", chunked(format!("5;{}\r\nhello\r\n0\r\n\r\n", long(2_000))), Refused(400)),
        ("100 extensions of 50 bytes", chunked(format!("1;{}\r\na\r\n", long(50)).repeat(100) + "0\r\n\r\n"), Refused(400)),
        ("trailers of 9,000 bytes", chunked(format!("{HELLO}A: {}\r\n\r\n", long(9_000)).replacen("\r\n\r\nA", "\r\nA", 1)), Refused(400)),
        ("129 trailers", chunked(format!("0\r\n{}\r\n", "A: b\r\n".repeat(129))), Refused(400)),
        (
            "a request in a body",
            format!("POST /case HTTP/1.1\r\nHost: k\r\nContent-Length: {length}\r\n\r\n{BURIED}"),
            Took(CASE, BURIED.as_bytes()),
        ),
        (
            "a request in the body of a GET",
            format!("GET /case HTTP/1.1\r\nHost: k\r\nContent-Length: {length}\r\n\r\n{BURIED}"),
            Took(CASE, BURIED.as_bytes()),
        ),
        ("a request in a chunk", chunked(format!("{length:x}\r\n{BURIED}\r\n0\r\n\r\n")), Took(CASE, BURIED.as_bytes())),
        (
            "a request in the body of a CONNECT",
            format!("CONNECT k:443 HTTP/1.1\r\nHost: k\r\nContent-Length: {length}\r\n\r\n{BURIED}"),
            Refused(405),
        ),
        (
            "a request in the body of what is refused",
            format!("POST /%zz HTTP/1.1\r\nHost: k\r\nContent-Length: {length}\r\n\r\n{BURIED}"),
            Refused(400),
        ),
        (
            "a request in a body that was answered early",
            format!("POST /early HTTP/1.1\r\nHost: k\r\nContent-Length: 5000\r\n\r\n{BURIED}"),
            TookThenClosed("/early"),
        ),
        (
            "a request in chunks that were answered early",
            format!("POST /early HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n1000\r\n{BURIED}"),
            TookThenClosed("/early"),
        ),
        (
            "a request in the body of an upgrade",
            format!("POST /case HTTP/1.1\r\nHost: k\r\nConnection: upgrade\r\nUpgrade: x\r\nContent-Length: {length}\r\n\r\n{BURIED}"),
            Refused(501),
        ),
    ];
    cases.into_iter().map(|(name, input, want)| Case { name: format!("made: {name}"), input: input.into_bytes(), want }).collect()
}

/// Lines that say `chunked`, or seem to, in front of one chunk.
const CODINGS: &[(&str, Text, Want)] = &[
    ("plain", b"Transfer-Encoding: chunked", took("hello")),
    ("upper case", b"TRANSFER-ENCODING: CHUNKED", took("hello")),
    ("no blank", b"Transfer-Encoding:chunked", took("hello")),
    ("tabs around", b"Transfer-Encoding:\tchunked\t", took("hello")),
    ("named in Connection", b"Connection: transfer-encoding\r\nTransfer-Encoding: chunked", took("hello")),
    ("with a trailer announced", b"Trailer: X-Sum\r\nTransfer-Encoding: chunked", took("hello")),
    ("xchunked", b"Transfer-Encoding: xchunked", Refused(501)),
    ("chunkedx", b"Transfer-Encoding: chunkedx", Refused(501)),
    ("chunked, identity", b"Transfer-Encoding: chunked, identity", Refused(501)),
    ("identity, chunked", b"Transfer-Encoding: identity, chunked", Refused(501)),
    ("gzip, chunked", b"Transfer-Encoding: gzip, chunked", Refused(501)),
    ("chunked twice in a line", b"Transfer-Encoding: chunked, chunked", Refused(501)),
    ("comma behind", b"Transfer-Encoding: chunked,", Refused(501)),
    ("comma in front", b"Transfer-Encoding: ,chunked", Refused(501)),
    ("identity", b"Transfer-Encoding: identity", Refused(501)),
    ("empty", b"Transfer-Encoding:", Refused(501)),
    ("gzip", b"Transfer-Encoding: gzip", Refused(501)),
    ("cow", b"Transfer-Encoding: cow", Refused(501)),
    ("quoted", b"Transfer-Encoding: \"chunked\"", Refused(501)),
    ("parameter", b"Transfer-Encoding: chunked;q=1", Refused(501)),
    ("blank inside", b"Transfer-Encoding: chun ked", Refused(501)),
    ("two words", b"Transfer-Encoding: chunked chunked", Refused(501)),
    ("non-ASCII", b"Transfer-Encoding: chunked\xff", Refused(501)),
    ("two lines", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", Refused(501)),
    ("two lines, then identity", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", Refused(501)),
    ("two lines, identity first", b"Transfer-Encoding: identity\r\nTransfer-Encoding: chunked", Refused(501)),
    ("two lines, one empty", b"Transfer-Encoding: chunked\r\nTransfer-Encoding:", Refused(501)),
    ("two lines, names in two cases", b"Transfer-Encoding: chunked\r\ntransfer-encoding: cow", Refused(501)),
    ("vertical tab in front", b"Transfer-Encoding: \x0bchunked", Refused(400)),
    ("form feed behind", b"Transfer-Encoding: chunked\x0c", Refused(400)),
    ("NUL behind", b"Transfer-Encoding: chunked\0", Refused(400)),
    ("DEL behind", b"Transfer-Encoding: chunked\x7f", Refused(400)),
    ("blank before the colon", b"Transfer-Encoding : chunked", Refused(400)),
    ("tab before the colon", b"Transfer-Encoding\t: chunked", Refused(400)),
    ("vertical tab before the colon", b"Transfer-Encoding\x0b: chunked", Refused(400)),
    ("blank before the name", b" Transfer-Encoding: chunked", Refused(400)),
    ("folded", b"Transfer-Encoding:\r\n chunked", Refused(400)),
    ("folded before the colon", b"Transfer-Encoding\r\n : chunked", Refused(400)),
    ("behind a bare CR", b"X: y\rTransfer-Encoding: chunked", Refused(400)),
    ("behind a bare LF", b"X: y\nTransfer-Encoding: chunked", Refused(400)),
    ("behind CR CR LF", b"X: y\r\r\nTransfer-Encoding: chunked", Refused(400)),
    ("underscore is another name", b"Transfer_Encoding: chunked", TookThenRefused(CASE, b"", 400)),
    ("TE is another name", b"TE: chunked", TookThenRefused(CASE, b"", 400)),
    ("a length in front", b"Content-Length: 5\r\nTransfer-Encoding: chunked", Refused(400)),
    ("a length behind", b"Transfer-Encoding: chunked\r\nContent-Length: 5", Refused(400)),
    ("a length of 0", b"Content-Length: 0\r\nTransfer-Encoding: chunked", Refused(400)),
    ("a length that is right", b"Content-Length: 15\r\nTransfer-Encoding: chunked", Refused(400)),
    ("a length, named in Connection", b"Connection: content-length\r\nContent-Length: 5\r\nTransfer-Encoding: chunked", Refused(400)),
    ("a length, both in lower case", b"content-length: 5\r\ntransfer-encoding: chunked", Refused(400)),
    ("a length and identity", b"Content-Length: 15\r\nTransfer-Encoding: identity", Refused(501)),
    ("a length and cow", b"Content-Length: 15\r\nTransfer-Encoding: cow", Refused(501)),
];

/// Lines that give the length of `hello`, or seem to.
const LENGTHS: &[(&str, Text, Want)] = &[
    ("plain", b"Content-Length: 5", took("hello")),
    ("lower case, no blank", b"content-length:5", took("hello")),
    ("tabs around", b"Content-Length:\t5 \t", took("hello")),
    ("zeros in front", b"Content-Length: 0005", took("hello")),
    ("named in Connection", b"Connection: content-length\r\nContent-Length: 5", took("hello")),
    ("with Expect", b"Expect: 100-continue\r\nContent-Length: 5", took("hello")),
    ("with an unknown Expect", b"Expect: 200-ok\r\nContent-Length: 5", took("hello")),
    ("with two Expects", b"Expect: 100-continue\r\nExpect: 100-continue\r\nContent-Length: 5", took("hello")),
    ("longer than what comes", b"Content-Length: 6", Unfinished),
    ("much longer than what comes", b"Content-Length: 999999999999999999", Unfinished),
    ("two equal", b"Content-Length: 5\r\nContent-Length: 5", Refused(400)),
    ("two different", b"Content-Length: 5\r\nContent-Length: 6", Refused(400)),
    ("two, the first 0", b"Content-Length: 0\r\nContent-Length: 5", Refused(400)),
    ("two, in two cases", b"Content-Length: 5\r\ncontent-length: 0", Refused(400)),
    ("two, one empty", b"Content-Length: 5\r\nContent-Length:", Refused(400)),
    ("list of equals", b"Content-Length: 5, 5", Refused(400)),
    ("list without blank", b"Content-Length: 5,5", Refused(400)),
    ("list of different", b"Content-Length: 5,0", Refused(400)),
    ("comma behind", b"Content-Length: 5,", Refused(400)),
    ("plus", b"Content-Length: +5", Refused(400)),
    ("minus", b"Content-Length: -5", Refused(400)),
    ("minus zero", b"Content-Length: -0", Refused(400)),
    ("hexadecimal", b"Content-Length: 0x5", Refused(400)),
    ("hexadecimal digit", b"Content-Length: a", Refused(400)),
    ("fraction", b"Content-Length: 5.0", Refused(400)),
    ("exponent", b"Content-Length: 5e0", Refused(400)),
    ("empty", b"Content-Length:", Refused(400)),
    ("blanks only", b"Content-Length:   ", Refused(400)),
    ("blank inside", b"Content-Length: 5 5", Refused(400)),
    ("semicolon", b"Content-Length: 5;", Refused(400)),
    ("quoted", b"Content-Length: \"5\"", Refused(400)),
    ("underscore in the number", b"Content-Length: 0_5", Refused(400)),
    ("a word", b"Content-Length: five", Refused(400)),
    ("a wide digit", b"Content-Length: \xef\xbc\x95", Refused(400)),
    ("2^64 + 5", b"Content-Length: 18446744073709551621", Refused(400)),
    ("2^63", b"Content-Length: 9223372036854775808", Refused(400)),
    ("2^32 + 5 has too few bytes", b"Content-Length: 4294967301", Unfinished),
    ("40 digits", b"Content-Length: 0000000000000000000000000000000000000005", Refused(400)),
    ("vertical tab", b"Content-Length: \x0b5", Refused(400)),
    ("NUL", b"Content-Length: 5\0", Refused(400)),
    ("blank before the colon", b"Content-Length : 5", Refused(400)),
    ("tab before the colon", b"Content-Length\t: 5", Refused(400)),
    ("folded", b"Content-Length:\r\n 5", Refused(400)),
    ("folded number", b"Content-Length: 5\r\n 0", Refused(400)),
    ("NUL in the name", b"Content\0-Length: 5", Refused(400)),
    ("behind a bare LF", b"X: y\nContent-Length: 5", Refused(400)),
    ("behind a bare CR", b"X: y\rContent-Length: 5", Refused(400)),
    ("in front of an empty name", b"Content-Length: 5\r\n: x", Refused(400)),
];

/// Bodies in chunks.
const CHUNKS: &[(&str, Text, Want)] = &[
    ("one", b"5\r\nhello\r\n0\r\n\r\n", took("hello")),
    ("two", b"2\r\nhe\r\n3\r\nllo\r\n0\r\n\r\n", took("hello")),
    ("none", b"0\r\n\r\n", took("")),
    ("zeros in front", b"0005\r\nhello\r\n000\r\n\r\n", took("hello")),
    ("hexadecimal, both cases", b"A\r\n0123456789\r\nb\r\n0123456789a\r\n0\r\n\r\n", took("01234567890123456789a")),
    ("extension", b"5;a=b\r\nhello\r\n0;c\r\n\r\n", took("hello")),
    ("quoted extension", b"5;a=\"b;c\"\r\nhello\r\n0\r\n\r\n", took("hello")),
    ("an end inside a chunk", b"12\r\n0\r\n\r\nGET /hidden H\r\n0\r\n\r\n", took("0\r\n\r\nGET /hidden H")),
    ("trailer", b"5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n", took("hello")),
    ("trailer: identity", b"5\r\nhello\r\n0\r\nX-Remote-User: root\r\n\r\n", took("hello")),
    ("trailer: look-alike", b"5\r\nhello\r\n0\r\nx_remote_user: root\r\nX-Remote_Group: a\r\n\r\n", took("hello")),
    ("trailer: marker", b"5\r\nhello\r\n0\r\nX-Kubernetes-Peer-Proxied: true\r\n\r\n", took("hello")),
    ("something behind the end", b"5\r\nhello\r\n0\r\n\r\n{}", TookThenRefused(CASE, b"hello", 400)),
    ("an end, twice", b"0\r\n\r\n0\r\n\r\n", TookThenRefused(CASE, b"", 400)),
    ("no end", b"5\r\nhello\r\n", Unfinished),
    ("no end of trailers", b"5\r\nhello\r\n0\r\nX: y\r\n", Unfinished),
    ("a chunk of 2^40 - 1 that does not come", b"ffffffffff\r\nhello", Unfinished),
    ("LF behind the size", b"5\nhello\r\n0\r\n\r\n", Refused(400)),
    ("LF behind the chunk", b"5\r\nhello\n0\r\n\r\n", Refused(400)),
    ("LF behind the last size", b"5\r\nhello\r\n0\n\r\n", Refused(400)),
    ("LF as the end", b"5\r\nhello\r\n0\r\n\n", Refused(400)),
    ("LF behind an extension", b"5;a\nhello\r\n0\r\n\r\n", Refused(400)),
    ("LF behind a trailer", b"0\r\nX: y\n\r\n", Refused(400)),
    ("CR behind the size", b"5\rhello\r\n0\r\n\r\n", Refused(400)),
    ("CR CR LF behind the size", b"5\r\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("CR in an extension", b"5;a\rb\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("CR in a trailer", b"0\r\nX: y\rZ: a\r\n\r\n", Refused(400)),
    ("CR alone as the end", b"0\r\n\rGET", Refused(400)),
    ("NUL in an extension", b"5;a\0\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("no line end behind the chunk", b"5\r\nhello0\r\n\r\n", Refused(400)),
    ("chunk longer than its size", b"5\r\nhello!\r\n0\r\n\r\n", Refused(400)),
    ("chunk shorter than its size", b"5\r\nhell\r\n0\r\n\r\n", Refused(400)),
    ("minus", b"-5\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("plus", b"+5\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("0x", b"0x5\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("h", b"5h\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("no digit of sixteen", b"g\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("no size", b"\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("only an extension", b";a=b\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("blank in front", b" 5\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("blank behind", b"5 \r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("tab behind", b"5\t\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("blank before the extension", b"5 ;a\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("comma", b"5,5\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("fraction", b"5.0\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("underscore", b"0_5\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("2^64 + 5", b"10000000000000005\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("2^64 - 5", b"fffffffffffffffb\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("2^128 + 5", b"100000000000000000000000000000005\r\nhello\r\n0\r\n\r\n", Refused(400)),
    ("eleven zeros", b"5\r\nhello\r\n00000000000\r\n\r\n", Refused(400)),
    ("trailer: content-length", b"5\r\nhello\r\n0\r\nContent-Length: 5\r\n\r\n", Refused(400)),
    ("trailer: transfer-encoding", b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n", Refused(400)),
    ("trailer: host", b"5\r\nhello\r\n0\r\nHost: evil\r\n\r\n", Refused(400)),
    ("trailer: connection", b"5\r\nhello\r\n0\r\nConnection: close\r\n\r\n", Refused(400)),
    ("trailer: upgrade", b"5\r\nhello\r\n0\r\nUpgrade: h2c\r\n\r\n", Refused(400)),
    ("trailer: te", b"5\r\nhello\r\n0\r\nTE: trailers\r\n\r\n", Refused(400)),
    ("trailer: blank before the colon", b"5\r\nhello\r\n0\r\nX : y\r\n\r\n", Refused(400)),
    ("trailer: blank in front", b"5\r\nhello\r\n0\r\n X: y\r\n\r\n", Refused(400)),
    ("trailer: folded", b"5\r\nhello\r\n0\r\nX: y\r\n z\r\n\r\n", Refused(400)),
    ("trailer: no name", b"5\r\nhello\r\n0\r\n: y\r\n\r\n", Refused(400)),
    ("trailer: no colon", b"5\r\nhello\r\n0\r\nX\r\n\r\n", Refused(400)),
    ("trailer: NUL", b"5\r\nhello\r\n0\r\nX: a\0b\r\n\r\n", Refused(400)),
    ("trailer: a request line", b"5\r\nhello\r\n0\r\nGET /hidden HTTP/1.1\r\n\r\n", Refused(400)),
    ("trailer: a pseudo-header", b"5\r\nhello\r\n0\r\n:path: /hidden\r\n\r\n", Refused(400)),
];

/// First lines, in front of `Host: k`.
const REQUEST_LINES: &[(&str, Text, Want)] = &[
    ("origin form", b"GET /case HTTP/1.1", took("")),
    ("query with a bad escape", b"GET /case?a=%zz HTTP/1.1", Took("/case?a=%zz", b"")),
    ("escaped slash", b"GET /a%2Fb HTTP/1.1", Took("/a%2Fb", b"")),
    ("dot segments", b"GET /a/../b HTTP/1.1", Took("/a/../b", b"")),
    ("two slashes", b"GET //evil/case HTTP/1.1", Took("//evil/case", b"")),
    ("semicolon", b"GET /case;a=b HTTP/1.1", Took("/case;a=b", b"")),
    ("a URL in the query", b"GET /case?http://evil/ HTTP/1.1", Took("/case?http://evil/", b"")),
    ("absolute form", b"GET https://evil/case HTTP/1.1", took("")),
    ("absolute form, http", b"GET http://evil:80/case HTTP/1.1", took("")),
    ("absolute form, upper case", b"GET HTTPS://evil/case HTTP/1.1", took("")),
    ("absolute form without path", b"GET https://evil HTTP/1.1", Took("/", b"")),
    ("asterisk form", b"OPTIONS * HTTP/1.1", Took("*", b"")),
    ("unknown method", b"BREW /case HTTP/1.1", took("")),
    ("method in lower case", b"get /case HTTP/1.1", took("")),
    ("method with odd characters", b"M-S!#$%&'*+.^_`|~ /case HTTP/1.1", took("")),
    ("CONNECT, authority form", b"CONNECT evil:443 HTTP/1.1", Refused(405)),
    ("CONNECT, origin form", b"CONNECT /case HTTP/1.1", Refused(405)),
    ("CONNECT, absolute form", b"CONNECT https://evil/case HTTP/1.1", Refused(405)),
    ("GET *", b"GET * HTTP/1.1", Refused(400)),
    ("OPTIONS **", b"OPTIONS ** HTTP/1.1", Refused(400)),
    ("authority form", b"GET evil:443 HTTP/1.1", Refused(400)),
    ("no slash", b"GET case HTTP/1.1", Refused(400)),
    ("only a query", b"GET ?a=b HTTP/1.1", Refused(400)),
    ("fragment", b"GET /case#a HTTP/1.1", Refused(400)),
    ("fragment in the query", b"GET /case?a#b HTTP/1.1", Refused(400)),
    ("fragment in absolute form", b"GET https://evil/case#a HTTP/1.1", Refused(400)),
    ("bad escape", b"GET /%zz HTTP/1.1", Refused(400)),
    ("half an escape", b"GET /case%2 HTTP/1.1", Refused(400)),
    ("percent at the end", b"GET /case% HTTP/1.1", Refused(400)),
    ("backslash", b"GET \\case HTTP/1.1", Refused(400)),
    ("ftp", b"GET ftp://evil/case HTTP/1.1", Refused(400)),
    ("javascript", b"GET javascript:alert(1) HTTP/1.1", Refused(400)),
    ("absolute form without authority", b"GET https:///case HTTP/1.1", Refused(400)),
    ("absolute form, only a query", b"GET https://evil?case HTTP/1.1", Refused(400)),
    ("absolute form with user", b"GET https://root@evil/case HTTP/1.1", Refused(400)),
    ("absolute form with user and password", b"GET https://root:x@evil/case HTTP/1.1", Refused(400)),
    ("absolute form with a backslash", b"GET https://evil\\@k/case HTTP/1.1", Refused(400)),
    ("absolute form with one slash", b"GET https:/evil/case HTTP/1.1", Refused(400)),
    ("blank in the target", b"GET /ca se HTTP/1.1", Refused(505)),
    ("a request line in the target", b"GET /case HTTP/1.1 HTTP/1.1", Refused(400)),
    ("NUL in the target", b"GET /ca\0se HTTP/1.1", Refused(400)),
    ("control in the target", b"GET /ca\x01se HTTP/1.1", Refused(400)),
    ("DEL in the target", b"GET /ca\x7fse HTTP/1.1", Refused(400)),
    ("no UTF-8 in the target", b"GET /ca\xffse HTTP/1.1", Refused(400)),
    ("tab in the target", b"GET /ca\tse HTTP/1.1", Refused(400)),
    ("two blanks behind the method", b"GET  /case HTTP/1.1", Refused(400)),
    ("two blanks behind the target", b"GET /case  HTTP/1.1", Refused(505)),
    ("tab behind the method", b"GET\t/case HTTP/1.1", Refused(400)),
    ("tab behind the target", b"GET /case\tHTTP/1.1", Refused(400)),
    ("blank in front", b" GET /case HTTP/1.1", Refused(400)),
    ("blank behind", b"GET /case HTTP/1.1 ", Refused(400)),
    ("CR CR LF behind", b"GET /case HTTP/1.1\r", Refused(400)),
    ("no target", b"GET HTTP/1.1", Refused(400)),
    ("no method", b"/case HTTP/1.1", Refused(400)),
    ("empty method", b" /case HTTP/1.1", Refused(400)),
    ("method with @", b"G@T /case HTTP/1.1", Refused(400)),
    ("method with a parenthesis", b"GET( /case HTTP/1.1", Refused(400)),
    ("method with a colon", b"GET: /case HTTP/1.1", Refused(400)),
    ("method with NUL", b"GE\0T /case HTTP/1.1", Refused(400)),
    ("method not ASCII", b"G\xc3\x89T /case HTTP/1.1", Refused(400)),
    ("a byte order mark", b"\xef\xbb\xbfGET /case HTTP/1.1", Refused(400)),
    ("HTTP/0.9", b"GET /case", Refused(400)),
    ("HTTP/0.9 by name", b"GET /case HTTP/0.9", Refused(505)),
    ("HTTP/1.2", b"GET /case HTTP/1.2", Refused(505)),
    ("HTTP/1.10", b"GET /case HTTP/1.10", Refused(400)),
    ("HTTP/1.", b"GET /case HTTP/1.", Refused(505)),
    ("HTTP/1", b"GET /case HTTP/1", Refused(505)),
    ("HTTP/01.1", b"GET /case HTTP/01.1", Refused(505)),
    ("HTTP/2.0", b"GET /case HTTP/2.0", Refused(505)),
    ("HTTP/2", b"GET /case HTTP/2", Refused(505)),
    ("HTTP/3.0", b"GET /case HTTP/3.0", Refused(505)),
    ("http/1.1", b"GET /case http/1.1", Refused(505)),
    ("HTTP/1,1", b"GET /case HTTP/1,1", Refused(505)),
    ("HTTP /1.1", b"GET /case HTTP /1.1", Refused(505)),
    ("HTTPS/1.1", b"GET /case HTTPS/1.1", Refused(505)),
    ("ICY", b"GET /case ICY", Refused(505)),
    ("the preface of HTTP/2", b"PRI * HTTP/2.0", Refused(505)),
];

/// Lines behind `Host: k` of a GET.
const LINES: &[(&str, Text, Want)] = &[
    ("no value", b"X-End:", took("")),
    ("no blank", b"X-End:b", took("")),
    ("tab inside a value", b"X-End: b\tc", took("")),
    ("a value that is not ASCII", b"X-End: \xc3\xa9\xff", took("")),
    ("underscore in a name", b"X-End: 1\r\nA_b: c", took("")),
    ("colon in a value", b"X-End: http://a:1/", took("")),
    ("hop by hop", b"X-End: 1\r\nConnection: X-Hop\r\nX-Hop: 1", took("")),
    ("hop by hop, named behind", b"X-Hop: 1\r\nX-End: 1\r\nconnection: keep-alive , x-HOP", took("")),
    ("hop by hop, two lines", b"Connection: a\r\nConnection: x-hop\r\nX-Hop: 1\r\nX-End: 1", took("")),
    ("what Connection cannot take: host", b"Connection: host, x-end-not\r\nX-End: 1", took("")),
    ("Connection of commas", b"Connection: ,, ,\r\nX-End: 1", took("")),
    ("Keep-Alive, Proxy-Connection, TE", b"Keep-Alive: 5\r\nProxy-Connection: keep-alive\r\nTE: gzip\r\nX-End: 1", took("")),
    ("h2c is ignored", b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAM\r\nX-End: 1", took("")),
    ("Upgrade that Connection does not name", b"Upgrade: websocket\r\nX-End: 1", took("")),
    ("Connection: upgrade without one", b"Connection: upgrade\r\nX-End: 1", took("")),
    ("Connection: close", b"Connection: close", TookThenClosed(CASE)),
    ("Connection: close in a list", b"Connection: keep-alive, CLOSE", TookThenClosed(CASE)),
    ("Upgrade: websocket", b"Connection: Upgrade\r\nUpgrade: websocket", Refused(501)),
    ("Upgrade: SPDY/3.1", b"connection: keep-alive, upgrade\r\nupgrade: SPDY/3.1", Refused(501)),
    ("Upgrade: two", b"Connection: Upgrade\r\nUpgrade: h2c, websocket", Refused(501)),
    ("Upgrade: h2c and another line", b"Connection: Upgrade\r\nUpgrade: h2c\r\nUpgrade: websocket", Refused(501)),
    ("Upgrade: TLS", b"Connection: Upgrade\r\nUpgrade: TLS/1.0", Refused(501)),
    ("bare LF", b"A: b\nC: d", Refused(400)),
    ("bare CR", b"A: b\rC: d", Refused(400)),
    ("bare CR behind the name", b"A\r: b", Refused(400)),
    ("CR LF CR", b"A: b\r\n\rC: d", Refused(400)),
    ("folded with a blank", b"A: b\r\n c", Refused(400)),
    ("folded with a tab", b"A: b\r\n\tc", Refused(400)),
    ("folded into a request", b"A: b\r\n GET /hidden HTTP/1.1", Refused(400)),
    ("blank before the colon", b"A : b", Refused(400)),
    ("tab before the colon", b"A\t: b", Refused(400)),
    ("blank in the name", b"A b: c", Refused(400)),
    ("empty name", b": b", Refused(400)),
    ("only a colon", b":", Refused(400)),
    ("no colon", b"A", Refused(400)),
    ("a pseudo-header", b":path: /hidden", Refused(400)),
    ("NUL in a name", b"A\0: b", Refused(400)),
    ("NUL in a value", b"A: b\0c", Refused(400)),
    ("control in a value", b"A: \x01", Refused(400)),
    ("escape in a value", b"A: \x1b[1m", Refused(400)),
    ("backspace in a value", b"A: b\x08", Refused(400)),
    ("DEL in a value", b"A: \x7f", Refused(400)),
    ("DEL in a name", b"A\x7f: b", Refused(400)),
    ("a name that is not ASCII", b"\xc3\x84: b", Refused(400)),
    ("a name with a byte of 255", b"A\xff: b", Refused(400)),
    ("a name with a parenthesis", b"A(: b", Refused(400)),
    ("a name with a slash", b"A/: b", Refused(400)),
    ("a name with a quote", b"A\"b: c", Refused(400)),
    ("a name with brackets", b"A[]: c", Refused(400)),
    ("a name with an equals sign", b"A=: c", Refused(400)),
    ("a name with @", b"A@: c", Refused(400)),
    ("a name with a comma", b"A,B: c", Refused(400)),
    ("two hosts, equal", b"Host: k", Refused(400)),
    ("two hosts, different", b"Host: evil", Refused(400)),
    ("two hosts, in two cases", b"hOsT: evil", Refused(400)),
    ("a second host with a blank", b"Host : evil", Refused(400)),
];

/// The line with the host, with its end; then the empty line.
const HOSTS: &[(&str, Text, Want)] = &[
    ("with port", b"Host: k:443\r\n", took("")),
    ("IPv4", b"Host: 127.0.0.1\r\n", took("")),
    ("IPv6", b"Host: [::1]:6443\r\n", took("")),
    ("blanks around", b"Host: \t k \t\r\n", took("")),
    ("none", b"", Refused(400)),
    ("empty", b"Host:\r\n", Refused(400)),
    ("blank inside", b"Host: k evil\r\n", Refused(400)),
    ("tab inside", b"Host: k\tevil\r\n", Refused(400)),
    ("path", b"Host: k/hidden\r\n", Refused(400)),
    ("query", b"Host: k?a\r\n", Refused(400)),
    ("fragment", b"Host: k#a\r\n", Refused(400)),
    ("user", b"Host: root@k\r\n", Refused(400)),
    ("URL", b"Host: https://k/\r\n", Refused(400)),
    ("backslash", b"Host: k\\evil\r\n", Refused(400)),
    ("quotes", b"Host: \"k\"\r\n", Refused(400)),
    ("angle brackets", b"Host: <k>\r\n", Refused(400)),
    ("braces", b"Host: {k}\r\n", Refused(400)),
    ("not ASCII", b"Host: k\xc3\xa9\r\n", Refused(400)),
    ("NUL", b"Host: k\0\r\n", Refused(400)),
    ("folded", b"Host: k\r\n evil\r\n", Refused(400)),
    ("in a trailer of blanks", b" Host: k\r\n", Refused(400)),
];

/// Fields that only the proxy may write, and what looks like them (threats.md §3, S1 to S3, S5).
const IDENTITY: &[&str] = &[
    "X-Remote-User: admin",
    "x-remote-user: admin",
    "X-REMOTE-USER: admin",
    "X-Remote-User: a\r\nX-Remote-User: b",
    "X-Remote-User:",
    "X-Remote-Uid: 0",
    "X-Remote-Group: system:masters",
    "X-Remote-Extra-Scopes: a",
    "X-Remote-Extra-scopes.authorization.k8s.io%2Fa: b",
    "X-Remote-: a",
    "X-Remote-User%20: admin",
    "X-Remote-User.: admin",
    "x_remote_user: admin",
    "X-Remote_User: admin",
    "X_Remote-Group: system:masters",
    "X_REMOTE_EXTRA_A: b",
    "X-Kubernetes-Peer-Proxied: true",
    "x_kubernetes_peer_proxied: true",
    "X-Kubernetes_Peer-Proxied: true",
    "Connection: x-remote-user\r\nX-Remote-User: admin",
    "Connection: x-remote-user, x-remote-group\r\nX-Remote-Group: system:masters",
    "Connection: x-kubernetes-peer-proxied\r\nX-Kubernetes-Peer-Proxied: true",
    "Connection: X-Forwarded-For, X-Remote-User\r\nX-Remote-User: a",
];

/// Inputs with nothing in common.
const WHOLE: &[(&str, Text, Want)] = &[
    ("1.0 with chunks", b"POST /case HTTP/1.0\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", Refused(400)),
    (
        "1.0 with chunks, kept alive",
        b"POST /case HTTP/1.0\r\nConnection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        Refused(400),
    ),
    ("1.0 with identity", b"POST /case HTTP/1.0\r\nHost: k\r\nTransfer-Encoding: identity\r\n\r\n", Refused(501)),
    ("1.0", b"GET /case HTTP/1.0\r\nHost: k\r\n\r\n", TookThenClosed(CASE)),
    ("1.0 without host", b"GET /case HTTP/1.0\r\n\r\n", TookThenClosed(CASE)),
    ("1.0 with two hosts", b"GET /case HTTP/1.0\r\nHost: a\r\nHost: b\r\n\r\n", Refused(400)),
    ("1.0 with two lengths", b"POST /case HTTP/1.0\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", Refused(400)),
    ("only LF", b"GET /case HTTP/1.1\nHost: k\n\n", Refused(400)),
    ("LF behind the request line", b"GET /case HTTP/1.1\nHost: k\r\n\r\n", Refused(400)),
    ("LF as the empty line", b"GET /case HTTP/1.1\r\nHost: k\r\n\n", Refused(400)),
    ("only CR", b"GET /case HTTP/1.1\rHost: k\r\r", Refused(400)),
    ("an empty line in front", b"\r\nGET /case HTTP/1.1\r\nHost: k\r\n\r\n", Refused(400)),
    ("an empty line, and nothing yet", b"\n", Refused(400)),
    ("LF in front", b"\nGET /case HTTP/1.1\r\nHost: k\r\n\r\n", Refused(400)),
    ("NUL in front", b"\0GET /case HTTP/1.1\r\nHost: k\r\n\r\n", Refused(400)),
    ("blank before the first line", b"GET /case HTTP/1.1\r\n Host: k\r\n\r\n", Refused(400)),
    ("an answer", b"HTTP/1.1 200 OK\r\nHost: k\r\n\r\n", Refused(400)),
    ("a frame of HTTP/2", b"\0\0\0\x04\0\0\0\0\0", Refused(400)),
    ("the preface of HTTP/2, whole", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0", Refused(505)),
    ("a ClientHello", b"\x16\x03\x01\x00\xf8\x01\x00\x00\xf4\x03\x03\r\n\r\n", Refused(400)),
    ("PROXY protocol", b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\nGET /case HTTP/1.1\r\nHost: k\r\n\r\n", Refused(505)),
    (
        "a body longer than its length",
        b"POST /case HTTP/1.1\r\nHost: k\r\nContent-Length: 4\r\n\r\nhell{}",
        TookThenRefused(CASE, b"hell", 400),
    ),
    (
        "a line end behind a body",
        b"POST /case HTTP/1.1\r\nHost: k\r\nContent-Length: 5\r\n\r\nhello\r\n",
        TookThenRefused(CASE, b"hello", 400),
    ),
    (
        "a good one, then both framings",
        b"GET /case HTTP/1.1\r\nHost: k\r\n\r\nPOST /b HTTP/1.1\r\nHost: k\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n",
        TookThenRefused(CASE, b"", 400),
    ),
    ("a good one, then no host", b"GET /case HTTP/1.1\r\nHost: k\r\n\r\nGET /b HTTP/1.1\r\n\r\n", TookThenRefused(CASE, b"", 400)),
    (
        "a good one, then CONNECT",
        b"GET /case HTTP/1.1\r\nHost: k\r\n\r\nCONNECT k:1 HTTP/1.1\r\nHost: k\r\n\r\n",
        TookThenRefused(CASE, b"", 405),
    ),
    (
        "a good one, then an upgrade",
        b"GET /case HTTP/1.1\r\nHost: k\r\n\r\nGET /b HTTP/1.1\r\nHost: k\r\nConnection: upgrade\r\nUpgrade: a\r\n\r\n",
        TookThenRefused(CASE, b"", 501),
    ),
    ("length in a GET", b"GET /case HTTP/1.1\r\nHost: k\r\nContent-Length: 5\r\n\r\nhello", took("hello")),
    ("chunks in a DELETE", b"DELETE /case HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n", took("hello")),
    ("POST without a length", b"POST /case HTTP/1.1\r\nHost: k\r\n\r\n", took("")),
    ("PUT with a length of 0", b"PUT /case HTTP/1.1\r\nHost: k\r\nContent-Length: 0\r\n\r\n", took("")),
    ("an unfinished line", b"GET /case HTTP/1.1\r\nHost: k", Unfinished),
    ("an unfinished head", b"GET /case HTTP/1.1\r\nHost: k\r\n", Unfinished),
    ("half an empty line", b"GET /case HTTP/1.1\r\nHost: k\r\n\r", Unfinished),
];
