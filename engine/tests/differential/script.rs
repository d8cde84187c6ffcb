//! Frame sequences: what is sent, step by step, to both sides.

use super::pieces::*;

/// One thing that is sent; `what` is what the list of allowed differences knows it by.
#[derive(Clone, Debug)]
pub struct Step {
    pub what: &'static str,
    pub bytes: Vec<u8>,
}

pub type Fields = Vec<(String, String)>;

/// How a field is written (RFC 7541 §6.2).
#[derive(Clone, Copy)]
pub enum Literal {
    Plain = 0,
    Never = 0x10,
    Indexed = 0x40,
}

/// A header block of literals.
pub fn block(fields: &[(&str, &str)], literal: Literal) -> Vec<u8> {
    let mut out = Vec::new();
    for (name, value) in fields {
        out.push(literal as u8);
        for text in [name, value] {
            assert!(text.len() < 127);
            out.push(text.len() as u8);
            out.extend_from_slice(text.as_bytes());
        }
    }
    out
}

pub fn step(what: &'static str, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Step {
    let mut bytes = Vec::new();
    put_frame(&mut bytes, kind, flags, stream, payload);
    Step { what, bytes }
}

/// The path of a request says its stream, and when it is answered: `early`, at its `end`, or `never`.
pub fn path(stream: u32, answered: &str) -> String {
    format!("/apis/g/v1/both/{stream}-{answered}")
}

/// A request head with fields behind the usual ones.
pub fn request(what: &'static str, stream: u32, answered: &str, extra: &[(&str, &str)], end: bool) -> Step {
    let path = path(stream, answered);
    let method = if end { "GET" } else { "POST" };
    let mut fields = vec![(":method", method), (":scheme", "https"), (":path", path.as_str()), (":authority", "k")];
    fields.extend_from_slice(extra);
    step(what, HEADERS, END_HEADERS | u8::from(end), stream, &block(&fields, Literal::Plain))
}

/// A response head.
pub fn response(what: &'static str, stream: u32, fields: &[(&str, &str)], end: bool) -> Step {
    step(what, HEADERS, END_HEADERS | u8::from(end), stream, &block(fields, Literal::Plain))
}

pub fn data(stream: u32, bytes: &[u8], end: bool) -> Step {
    data_of("data", stream, bytes, end)
}

pub fn data_of(what: &'static str, stream: u32, bytes: &[u8], end: bool) -> Step {
    step(what, DATA, u8::from(end), stream, bytes)
}

pub fn settings(what: &'static str, pairs: &[(u16, u32)]) -> Step {
    let mut bytes = Vec::new();
    put_settings(&mut bytes, pairs);
    Step { what, bytes }
}

/// Every kind of frame on a stream, right and wrong.
pub fn frames_on(id: u32) -> Vec<Step> {
    let word = |n: u32| n.to_be_bytes();
    let trailers = block(&[("t", "1")], Literal::Plain);
    let on = |n: u32| [&word(n)[..], &[16]].concat();
    vec![
        data(id, b"abc", false),
        data(id, b"abc", true),
        data(id, b"", true),
        step("data", DATA, PADDED, id, b"\x02abc\0\0"),
        step("padding-too-long", DATA, PADDED, id, b"\x06abc\0\0"),
        step("padding-without-length", DATA, PADDED, id, b""),
        step("trailers", HEADERS, END_HEADERS | END_STREAM, id, &trailers),
        step("trailers-without-end", HEADERS, END_HEADERS, id, &trailers),
        step("trailers-with-pseudo", HEADERS, END_HEADERS | END_STREAM, id, &block(&[(":status", "200")], Literal::Plain)),
        step("headers-padding-too-long", HEADERS, END_HEADERS | END_STREAM | PADDED, id, b"\x09\x82"),
        step("headers-priority-cut", HEADERS, END_HEADERS | END_STREAM | PRIORITISED, id, b"\0\0\0"),
        step("not-hpack", HEADERS, END_HEADERS | END_STREAM, id, b"\xff\xff\xff\xff\xff\xff\xff"),
        step("index-0", HEADERS, END_HEADERS | END_STREAM, id, b"\x80"),
        step("index-beyond", HEADERS, END_HEADERS | END_STREAM, id, b"\xc5"),
        step("update-too-large", HEADERS, END_HEADERS | END_STREAM, id, b"\x3f\xe1\xff\x03\x82"),
        step("update-late", HEADERS, END_HEADERS | END_STREAM, id, b"\x82\x20"),
        step("priority", PRIORITY, 0, id, &on(id + 100)),
        step("priority-on-itself", PRIORITY, 0, id, &on(id)),
        step("priority-length", PRIORITY, 0, id, &word(0)),
        step("reset", RST_STREAM, 0, id, &word(8)),
        step("reset-length", RST_STREAM, 0, id, b"\0\0\0"),
        step("window-update", WINDOW_UPDATE, 0, id, &word(1)),
        step("window-update-0", WINDOW_UPDATE, 0, id, &word(0)),
        step("window-overflow", WINDOW_UPDATE, 0, id, &word(0x7fff_ffff)),
        step("window-update-length", WINDOW_UPDATE, 0, id, b"\0\0\x01"),
        step("continuation", CONTINUATION, END_HEADERS, id, b""),
        step("push-promise", PUSH_PROMISE, END_HEADERS, id, b"\0\0\0\x02\x82"),
        step("unknown", 0x42, 0xff, id, b"what"),
        step("settings-on-stream", SETTINGS, 0, id, b""),
        step("ping-on-stream", PING, 0, id, &[0; 8]),
        step("goaway-on-stream", GOAWAY, 0, id, &[0; 8]),
        step("too-long", DATA, 0, id, &[0; 16_385]),
        step("block-interrupted", HEADERS, 0, id, b"\x82").then(step("", PING, 0, 0, &[0; 8])),
        step("block-of-another", HEADERS, 0, id, b"\x82").then(step("", CONTINUATION, END_HEADERS, id + 2, b"")),
    ]
}

/// Frames of the connection, right and wrong, and every setting.
pub fn connection_frames() -> Vec<Step> {
    let word = |n: u32| n.to_be_bytes();
    let mut steps = vec![
        step("ping", PING, 0, 0, &[1; 8]),
        step("ping-ack", PING, ACK, 0, &[1; 8]),
        step("ping-length", PING, 0, 0, &[1; 7]),
        step("ping-length", PING, 0, 0, &[1; 9]),
        step("settings-ack", SETTINGS, ACK, 0, b""),
        step("settings-ack-length", SETTINGS, ACK, 0, &[0; 6]),
        step("settings-length", SETTINGS, 0, 0, &[0; 5]),
        step("window-update", WINDOW_UPDATE, 0, 0, &word(1)),
        step("connection-window-update-0", WINDOW_UPDATE, 0, 0, &word(0)),
        step("connection-window-overflow", WINDOW_UPDATE, 0, 0, &word(0x7fff_ffff)),
        step("goaway-length", GOAWAY, 0, 0, &[0; 7]),
        step("data-on-0", DATA, 0, 0, b"a"),
        step("headers-on-0", HEADERS, END_HEADERS, 0, b"\x82"),
        step("priority-on-0", PRIORITY, 0, 0, &[0; 5]),
        step("reset-on-0", RST_STREAM, 0, 0, &[0; 4]),
        step("continuation-on-0", CONTINUATION, END_HEADERS, 0, b""),
        step("push-promise-on-0", PUSH_PROMISE, END_HEADERS, 0, b"\0\0\0\x02\x82"),
        step("unknown", 0x42, 0, 0, b"what"),
        step("even-stream", HEADERS, END_HEADERS | END_STREAM, 2, b"\x82\x87\x84"),
        step("too-long", PING, 0, 0, &[0; 16_385]),
    ];
    for (id, values) in [
        (1, &[0, 1, 64, 4_096, 65_536, u32::MAX][..]),
        (2, &[0, 1, 2, u32::MAX]),
        (3, &[0, 1, u32::MAX]),
        (4, &[0, 1, 65_535, 0x7fff_ffff, 0x8000_0000, u32::MAX]),
        (5, &[0, 1, 16_383, 16_384, 0xff_ffff, 0x100_0000, u32::MAX]),
        (6, &[0, 1, u32::MAX]),
        (8, &[0, 1, 2]),
        (0x99, &[7]),
    ] {
        let what = match id {
            2 => "enable-push",
            4 => "initial-window",
            5 => "max-frame-size",
            8 => "connect-protocol",
            _ => "settings",
        };
        steps.extend(values.iter().map(|&value| settings(what, &[(id, value)])));
    }
    steps.push(settings("settings", &[(1, 0), (1, 4_096), (4, 0), (4, 70_000)]));
    steps
}

/// Fields that may or may not stand in a message, whatever its direction.
pub fn regular_fields() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    vec![
        ("field", vec![("a", "b")]),
        ("field", vec![("a", "b"), ("a", "c"), ("b", "")]),
        ("field", vec![("a", "b c\t\u{80}")]),
        ("te", vec![("te", "trailers")]),
        ("field", vec![("cookie", "a=1"), ("cookie", "b=2")]),
        ("te-other", vec![("te", "gzip")]),
        ("hop-by-hop", vec![("connection", "close")]),
        ("hop-by-hop", vec![("keep-alive", "1")]),
        ("hop-by-hop", vec![("proxy-connection", "close")]),
        ("hop-by-hop", vec![("transfer-encoding", "chunked")]),
        ("hop-by-hop", vec![("upgrade", "h2c")]),
        ("upper-case-name", vec![("A", "b")]),
        ("bad-name", vec![("", "b")]),
        ("bad-name", vec![("a b", "c")]),
        ("bad-name", vec![("a\u{1}", "c")]),
        ("bad-name", vec![("a:b", "c")]),
        ("bad-value", vec![("a", "b\r\nc: d")]),
        ("bad-value", vec![("a", "b\nc")]),
        ("bad-value", vec![("a", "b\0c")]),
        ("outer-blanks", vec![("a", " b")]),
        ("outer-blanks", vec![("a", "b\t")]),
        ("control-in-value", vec![("a", "b\u{1}c")]),
        ("unknown-pseudo", vec![(":what", "c")]),
        ("late-pseudo", vec![("a", "b"), (":authority", "k")]),
        ("two-lengths", vec![("content-length", "3"), ("content-length", "3")]),
        ("two-lengths", vec![("content-length", "3"), ("content-length", "4")]),
        ("bad-length", vec![("content-length", "+3")]),
        ("bad-length", vec![("content-length", "3a")]),
        ("bad-length", vec![("content-length", "")]),
        ("bad-length", vec![("content-length", "-1")]),
        ("long-length", vec![("content-length", "9999999999999999999")]),
        ("bad-length", vec![("content-length", "99999999999999999999")]),
    ]
}

/// Pseudo-headers of requests, in place of the usual ones.
pub fn request_pseudos(path: &str) -> Vec<(&'static str, Vec<(&str, &str)>)> {
    let get = |rest: &[(&'static str, &'static str)]| [&[(":method", "GET"), (":scheme", "https"), (":path", path)][..], rest].concat();
    vec![
        ("pseudo", get(&[])),
        ("pseudo", get(&[(":authority", "k:1")])),
        ("pseudo", vec![(":path", path), (":authority", "k"), (":scheme", "https"), (":method", "DELETE")]),
        ("pseudo-twice", get(&[(":method", "GET")])),
        ("pseudo-twice", get(&[(":path", "/")])),
        ("pseudo-twice", get(&[(":scheme", "https")])),
        ("authority-twice", get(&[(":authority", "k"), (":authority", "k")])),
        ("pseudo-missing", vec![(":method", "GET"), (":scheme", "https")]),
        ("pseudo-missing", vec![(":method", "GET"), (":path", path)]),
        ("pseudo-missing", vec![(":scheme", "https"), (":path", path)]),
        ("pseudo-of-response", get(&[(":status", "200")])),
        ("connect-protocol-header", get(&[(":protocol", "websocket")])),
        ("bad-path", vec![(":method", "GET"), (":scheme", "https"), (":path", "")]),
        ("bad-path", vec![(":method", "GET"), (":scheme", "https"), (":path", "apis")]),
        ("blank-in-path", vec![(":method", "GET"), (":scheme", "https"), (":path", "/a b")]),
        ("fragment-in-path", vec![(":method", "GET"), (":scheme", "https"), (":path", "/a#b")]),
        ("bad-method", vec![(":method", "G T"), (":scheme", "https"), (":path", path)]),
        ("bad-method", vec![(":method", ""), (":scheme", "https"), (":path", path)]),
        ("bad-scheme", vec![(":method", "GET"), (":scheme", "ht tp"), (":path", path)]),
        ("other-scheme", vec![(":method", "GET"), (":scheme", "ftp"), (":path", path)]),
        ("bad-authority", get(&[(":authority", "k k")])),
        ("userinfo", get(&[(":authority", "u@k")])),
        ("host", get(&[(":authority", "k"), ("host", "other")])),
        ("connect", vec![(":method", "CONNECT"), (":authority", "k:1")]),
        ("connect-with-path", vec![(":method", "CONNECT"), (":authority", "k:1"), (":scheme", "https"), (":path", path)]),
    ]
}

/// Pseudo-headers of responses.
pub fn response_pseudos() -> Vec<(&'static str, Vec<(&'static str, &'static str)>)> {
    vec![
        ("status", vec![(":status", "200")]),
        ("status", vec![(":status", "503")]),
        ("status", vec![(":status", "999")]),
        ("switching", vec![(":status", "101")]),
        ("status-twice", vec![(":status", "200"), (":status", "200")]),
        ("status-missing", vec![("a", "b")]),
        ("status-late", vec![("a", "b"), (":status", "200")]),
        ("bad-status", vec![(":status", "20")]),
        ("bad-status", vec![(":status", "2000")]),
        ("bad-status", vec![(":status", "abc")]),
        ("bad-status", vec![(":status", "099")]),
        ("pseudo-of-request", vec![(":status", "200"), (":path", "/")]),
    ]
}

impl Step {
    /// Both at once.
    pub fn then(mut self, next: Self) -> Self {
        self.bytes.extend_from_slice(&next.bytes);
        self
    }
}
