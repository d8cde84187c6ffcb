//! Answers of a server that lies: to clients of both versions they must be an answer, an error, or a break; never a second answer.

use super::http2_wire::{self, Fields};
use crate::support::frames::{END_HEADERS, frame};

/// What a client gets.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    /// This status and body, and the connection serves the next request.
    Fine(u16, &'static str),
    /// 503 from the proxy, and the connection serves the next request.
    Bad,
    /// A break: HTTP/2 INTERNAL_ERROR, HTTP/1.1 a cut connection. What came before it may have looked complete.
    Broken,
}

use Want::{Bad, Broken, Fine};

/// A frame of an answer; `true` ends the stream.
#[derive(Clone, Copy, Debug)]
pub enum Part {
    Head(Fields<'static>, bool),
    Data(&'static str, bool),
    /// That many times the head.
    Heads(usize, Fields<'static>),
    /// That many fields of that many bytes.
    Large(usize, usize),
    /// PUSH_PROMISE of stream 2.
    Push,
}

use Part::{Data, Head, Heads, Large, Push};

impl Part {
    pub fn frames(&self, stream: u32) -> Vec<u8> {
        const PUSH_PROMISE: u8 = 5;
        match *self {
            Head(fields, end) => http2_wire::headers(stream, fields, end),
            Data(text, end) => http2_wire::data(stream, text.as_bytes(), end),
            Heads(count, fields) => http2_wire::headers(stream, fields, false).repeat(count),
            Large(count, bytes) => http2_wire::headers(stream, &[&[OK][..], &vec![("a", &*"a".repeat(bytes)); count]].concat(), false),
            Push => {
                let promised = [&[0, 0, 0, 2][..], &http2_wire::block(&[(":method", "GET"), (":path", "/evil")])].concat();
                frame(PUSH_PROMISE, END_HEADERS, stream, &promised)
            }
        }
    }
}

/// One answer.
#[derive(Clone)]
pub struct Case {
    pub name: String,
    pub method: &'static str,
    pub parts: Vec<Part>,
    pub want: Want,
}

const OK: (&str, &str) = (":status", "200");

/// Every case.
pub fn all() -> Vec<Case> {
    let heads = HEADS.iter().map(|&(fields, want)| Case {
        name: format!("head: {fields:?}"),
        method: "GET",
        parts: vec![Head(fields, false), Data("hello", true)],
        want,
    });
    let trailers = TRAILERS.iter().map(|&(fields, want)| Case {
        name: format!("trailers: {fields:?}"),
        method: "GET",
        parts: vec![Head(&[OK], false), Data("hello", false), Head(fields, true)],
        want,
    });
    let whole =
        WHOLE.iter().map(|&(name, method, parts, want)| Case { name: format!("whole: {name}"), method, parts: parts.to_vec(), want });
    heads.chain(trailers).chain(whole).collect()
}

/// Heads in front of `hello`.
const HEADS: &[(Fields<'static>, Want)] = &[
    (&[OK], Fine(200, "hello")),
    (&[OK, ("content-length", "5")], Fine(200, "hello")),
    (&[OK, ("x", "a\tb \u{e9}")], Fine(200, "hello")),
    (&[(":status", "299")], Fine(299, "hello")),
    (&[(":status", "999")], Fine(999, "hello")),
    (&[], Bad),
    (&[("a", "b")], Bad),
    (&[(":status", "")], Bad),
    (&[(":status", "20")], Bad),
    (&[(":status", "2000")], Bad),
    (&[(":status", "099")], Bad),
    (&[(":status", "abc")], Bad),
    (&[(":status", "+20")], Bad),
    (&[(":status", "2 0")], Bad),
    (&[(":status", "200 OK")], Bad),
    (&[(":status", "200\r\nevil: 1")], Bad),
    (&[(":status", "101")], Bad),
    (&[(":status", "101"), ("upgrade", "websocket")], Bad),
    (&[OK, OK], Bad),
    (&[OK, (":status", "404")], Bad),
    (&[("a", "b"), OK], Bad),
    (&[OK, (":path", "/evil")], Bad),
    (&[OK, (":evil", "1")], Bad),
    (&[OK, ("content-length", "")], Bad),
    (&[OK, ("content-length", "five")], Bad),
    (&[OK, ("content-length", "+5")], Bad),
    (&[OK, ("content-length", "-5")], Bad),
    (&[OK, ("content-length", "0x5")], Bad),
    (&[OK, ("content-length", " 5")], Bad),
    (&[OK, ("content-length", "5, 5")], Bad),
    (&[OK, ("content-length", "5"), ("content-length", "5")], Bad),
    (&[OK, ("content-length", "5"), ("content-length", "0")], Bad),
    (&[OK, ("content-length", "18446744073709551621")], Bad),
    (&[OK, ("transfer-encoding", "chunked")], Bad),
    (&[OK, ("transfer-encoding", "identity")], Bad),
    (&[OK, ("transfer-encoding", "chunked"), ("content-length", "5")], Bad),
    (&[OK, ("connection", "close")], Bad),
    (&[OK, ("connection", "keep-alive")], Bad),
    (&[OK, ("keep-alive", "5")], Bad),
    (&[OK, ("proxy-connection", "close")], Bad),
    (&[OK, ("upgrade", "h2c")], Bad),
    (&[OK, ("te", "gzip")], Bad),
    (&[OK, ("a", "b\r\nevil: 1")], Bad),
    (&[OK, ("a", "b\r\n\r\nHTTP/1.1 200 OK\r\nevil: 1\r\n\r\n")], Bad),
    (&[OK, ("a", "b\nevil: 1")], Bad),
    (&[OK, ("a", "b\revil: 1")], Bad),
    (&[OK, ("a", "b\0")], Bad),
    (&[OK, ("a", "b\x01")], Bad),
    (&[OK, ("a", "b\x0b")], Bad),
    (&[OK, ("a", "b\x7f")], Bad),
    (&[OK, ("a", " b")], Bad),
    (&[OK, ("a", "b\t")], Bad),
    (&[OK, ("set-cookie", "a=b\r\nevil: 1")], Bad),
    (&[OK, ("location", "/\r\nevil: 1")], Bad),
    (&[OK, ("a: b\r\nevil", "1")], Bad),
    (&[OK, ("a\nevil", "1")], Bad),
    (&[OK, ("a\0", "1")], Bad),
    (&[OK, ("a ", "1")], Bad),
    (&[OK, ("a:", "1")], Bad),
    (&[OK, ("", "evil")], Bad),
    (&[OK, ("Content-Length", "5")], Bad),
    (&[OK, ("\u{e4}", "evil")], Bad),
];

/// Trailers behind `hello`.
const TRAILERS: &[(Fields<'static>, Want)] = &[
    (&[("x-sum", "1")], Fine(200, "hello")),
    (&[], Fine(200, "hello")),
    (&[OK], Broken),
    (&[(":status", "103")], Broken),
    (&[(":path", "/evil")], Broken),
    (&[("content-length", "5")], Broken),
    (&[("transfer-encoding", "chunked")], Broken),
    (&[("connection", "close")], Broken),
    (&[("host", "evil")], Broken),
    (&[("X-Sum", "1")], Broken),
    (&[("x-sum", "1\r\n\r\nHTTP/1.1 200 OK\r\nevil: 1")], Broken),
    (&[("x-sum", "1\nevil: 1")], Broken),
    (&[("x-sum", "1\0")], Broken),
    (&[("x-sum\r\nevil", "1")], Broken),
    (&[("", "evil")], Broken),
];

const LENGTH: Fields<'static> = &[OK, ("content-length", "5")];
const NO_CONTENT: Fields<'static> = &[(":status", "204")];
const NOT_MODIFIED: Fields<'static> = &[(":status", "304"), ("content-length", "5")];
const HINTS: Fields<'static> = &[(":status", "103"), ("link", "</a>")];
const BURIED: &str = "0\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 4\r\nevil: 1\r\n\r\nevil";

/// Whole answers to a method.
const WHOLE: &[(&str, &str, &[Part], Want)] = &[
    ("nothing", "GET", &[Head(&[OK], true)], Fine(200, "")),
    ("a length of 0", "GET", &[Head(&[OK, ("content-length", "0")], true)], Fine(200, "")),
    ("pieces", "GET", &[Head(LENGTH, false), Data("he", false), Data("", false), Data("llo", true)], Fine(200, "hello")),
    ("an answer inside", "GET", &[Head(&[OK], false), Data(BURIED, true)], Fine(200, BURIED)),
    ("an answer inside, in two", "GET", &[Head(&[OK], false), Data("a\r\n", false), Data("0\r\n\r\n", true)], Fine(200, "a\r\n0\r\n\r\n")),
    ("longer than its length", "GET", &[Head(LENGTH, false), Data("hello evil", true)], Broken),
    ("longer than its length, later", "GET", &[Head(LENGTH, false), Data("hello", false), Data(BURIED, true)], Broken),
    ("longer than a length of 0", "GET", &[Head(&[OK, ("content-length", "0")], false), Data("evil", true)], Broken),
    ("shorter than its length", "GET", &[Head(LENGTH, false), Data("hell", true)], Broken),
    ("nothing of its length", "GET", &[Head(LENGTH, false), Data("", true)], Broken),
    ("nothing of its length, at once", "GET", &[Head(LENGTH, true)], Bad),
    ("trailers before its length", "GET", &[Head(LENGTH, false), Data("hell", false), Head(&[("x-sum", "1")], true)], Broken),
    ("trailers that end nothing", "GET", &[Head(&[OK], false), Data("hello", false), Head(&[("x-sum", "1")], false)], Broken),
    ("two answers", "GET", &[Head(&[OK], false), Head(&[OK, ("evil", "1")], false), Data("evil", true)], Broken),
    ("a body without a head", "GET", &[Data("evil", true)], Bad),
    ("204", "GET", &[Head(NO_CONTENT, true)], Fine(204, "")),
    ("204 with a length", "GET", &[Head(&[(":status", "204"), ("content-length", "5")], true)], Fine(204, "")),
    ("204 with a body", "GET", &[Head(NO_CONTENT, false), Data("evil", true)], Broken),
    ("204 with an empty body", "GET", &[Head(NO_CONTENT, false), Data("", true)], Fine(204, "")),
    ("304 with a length", "GET", &[Head(NOT_MODIFIED, true)], Fine(304, "")),
    ("304 with a body", "GET", &[Head(NOT_MODIFIED, false), Data("hello", true)], Broken),
    ("205 with a body", "GET", &[Head(&[(":status", "205")], false), Data("hello", true)], Fine(205, "hello")),
    ("HEAD", "HEAD", &[Head(LENGTH, true)], Fine(200, "")),
    ("HEAD without a length", "HEAD", &[Head(&[OK], true)], Fine(200, "")),
    ("HEAD with a body", "HEAD", &[Head(LENGTH, false), Data("hello", true)], Broken),
    ("HEAD with an empty body", "HEAD", &[Head(LENGTH, false), Data("", true)], Fine(200, "")),
    ("HEAD with trailers", "HEAD", &[Head(LENGTH, false), Head(&[("x-sum", "1")], true)], Fine(200, "")),
    ("103 first", "GET", &[Head(HINTS, false), Head(&[OK], false), Data("hello", true)], Fine(200, "hello")),
    ("100 with a length", "GET", &[Head(&[(":status", "100"), ("content-length", "5")], false), Head(&[OK], true)], Fine(200, "")),
    ("16 of 103", "GET", &[Heads(16, HINTS), Head(&[OK], true)], Fine(200, "")),
    ("17 of 103", "GET", &[Heads(17, HINTS), Head(&[OK], true)], Bad),
    ("100,000 of 103", "GET", &[Heads(100_000, HINTS), Head(&[OK], true)], Bad),
    ("103 that ends", "GET", &[Head(HINTS, true)], Bad),
    ("103 with a body", "GET", &[Head(HINTS, false), Data("evil", false)], Bad),
    ("103 with a transfer coding", "GET", &[Head(&[(":status", "103"), ("transfer-encoding", "chunked")], false)], Bad),
    ("103 with CR LF", "GET", &[Head(&[(":status", "103"), ("link", "a\r\n\r\nHTTP/1.1 200 OK")], false)], Bad),
    ("103 behind the answer", "GET", &[Head(&[OK], false), Head(HINTS, false)], Broken),
    ("a longer block than may be", "GET", &[Large(1, 70_000), Data("evil", true)], Bad),
    ("a longer list than may be", "GET", &[Large(2_000, 1), Data("evil", true)], Bad),
    ("a push", "GET", &[Push], Bad),
];
