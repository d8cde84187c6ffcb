//! Attacks with frames: what is sent first, and what is sent then, without end (threats.md §1).

use super::frames::{
    CONTINUATION, DATA, END_STREAM, GOAWAY, HEADERS, PING, PRIORITY, RST_STREAM, SETTINGS, WINDOW_UPDATE, block, frame, get, nth_stream,
    post,
};

pub const SHORT: &str = "/api/v1/namespaces/default/pods";
pub const WATCH: &str = "/api/v1/namespaces/default/configmaps?watch=true";
pub const HANG: &str = "/debug/twin/hang";

/// A flood that is to be cut off.
#[derive(Clone, Copy)]
pub struct Attack {
    pub name: &'static str,
    pub first: fn() -> Vec<u8>,
    /// The n-th piece.
    pub piece: fn(usize) -> Vec<u8>,
}

const fn attack(name: &'static str, first: fn() -> Vec<u8>, piece: fn(usize) -> Vec<u8>) -> Attack {
    Attack { name, first, piece }
}

fn nothing() -> Vec<u8> {
    Vec::new()
}

fn hanging() -> Vec<u8> {
    get(1, HANG)
}

fn asked() -> Vec<u8> {
    get(1, SHORT)
}

fn uploading() -> Vec<u8> {
    post(1, HANG)
}

fn goaway() -> Vec<u8> {
    frame(GOAWAY, 0, 0, &[0; 8])
}

fn reset(path: &str, nth: usize) -> Vec<u8> {
    [get(nth_stream(nth), path), frame(RST_STREAM, 0, nth_stream(nth), &[0, 0, 0, 8])].concat()
}

/// A request, and a fault that makes the other side reset it.
fn faulty(nth: usize, fault: fn(u32) -> Vec<u8>) -> Vec<u8> {
    [get(nth_stream(nth), HANG), fault(nth_stream(nth))].concat()
}

/// Literals without indexing, none of which ends where its frame does.
fn continuation(len: usize) -> Vec<u8> {
    frame(CONTINUATION, 0, 1, &b"\x00\x01a\x05aaaaa".iter().copied().cycle().take(len).collect::<Vec<_>>())
}

fn open_block() -> Vec<u8> {
    frame(HEADERS, END_STREAM, 1, &block(0x82, SHORT))
}

pub const H1: &[Attack] = &[
    attack("rapid reset", nothing, |nth| reset(SHORT, nth)),
    attack("rapid reset of watches", nothing, |nth| reset(WATCH, nth)),
    attack("rapid reset of what hangs", nothing, |nth| reset(HANG, nth)),
    attack("resets of an ended stream", asked, |_| frame(RST_STREAM, 0, 1, &[0, 0, 0, 8])),
];

pub const H2: &[Attack] = &[
    attack("WINDOW_UPDATE of 0", nothing, |nth| faulty(nth, |stream| frame(WINDOW_UPDATE, 0, stream, &[0; 4]))),
    attack("WINDOW_UPDATE beyond 2^31 - 1", nothing, |nth| {
        faulty(nth, |stream| frame(WINDOW_UPDATE, 0, stream, &[0x7f, 0xff, 0xff, 0xff]))
    }),
    attack("PRIORITY of itself", nothing, |nth| {
        faulty(nth, |stream| frame(PRIORITY, 0, stream, &[&stream.to_be_bytes()[..], &[1]].concat()))
    }),
    attack("PRIORITY of a wrong length", nothing, |nth| faulty(nth, |stream| frame(PRIORITY, 0, stream, &[0; 4]))),
    attack("HEADERS after END_STREAM", nothing, |nth| faulty(nth, |stream| get(stream, HANG))),
    attack("requests behind a GOAWAY", || [hanging(), goaway()].concat(), |nth| get(nth_stream(nth + 1), SHORT)),
    attack("DATA after END_STREAM", nothing, |nth| faulty(nth, |stream| frame(DATA, 0, stream, b"0123456789"))),
];

/// For an attacker that does not read: each piece makes us write.
pub const H3: &[Attack] = &[
    attack("resets that nobody reads", asked, |_| frame(DATA, 0, 1, b"0123456789")),
    attack("PINGs whose answers nobody reads", nothing, |_| frame(PING, 0, 0, b"flooding")),
];

pub const H4: &[Attack] = &[
    attack("empty CONTINUATION", open_block, |_| continuation(0)),
    attack("small CONTINUATION", open_block, |_| continuation(10)),
    attack("full CONTINUATION", open_block, |_| continuation(16_000)),
];

pub const H6: &[Attack] = &[
    attack("PING", nothing, |_| frame(PING, 0, 0, b"flooding")),
    attack("answers to PINGs", nothing, |_| frame(PING, 1, 0, b"flooding")),
    attack("SETTINGS", nothing, |_| frame(SETTINGS, 0, 0, &[])),
    attack("SETTINGS with windows", hanging, |nth| frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0xff, u8::from(nth % 2 == 0)])),
    attack("GOAWAY", hanging, |_| goaway()),
    attack("unknown frames", nothing, |_| frame(0xfa, 0, 0, &[])),
];

pub const H7: &[Attack] = &[
    attack("empty DATA", uploading, |_| frame(DATA, 0, 1, &[])),
    attack("only padding", uploading, |_| frame(DATA, 8, 1, &[3, 0, 0, 0])),
    attack("tiny DATA", || post(1, "/debug/twin/echo"), |_| frame(DATA, 0, 1, b"x")),
];

pub const H9: &[Attack] = &[
    attack("WINDOW_UPDATE of the connection", nothing, |_| frame(WINDOW_UPDATE, 0, 0, &[0, 0, 0, 1])),
    attack("WINDOW_UPDATE of a stream", hanging, |_| frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
    attack("WINDOW_UPDATE of an ended stream", asked, |_| frame(WINDOW_UPDATE, 0, 1, &[0, 0, 0, 1])),
];

pub const H10: &[Attack] = &[
    attack("PRIORITY of idle streams", nothing, |nth| frame(PRIORITY, 0, nth_stream(nth), &[0, 0, 0, 0, 1])),
    attack("PRIORITY of one stream", asked, |_| frame(PRIORITY, 0, 1, &[0, 0, 0, 0, 1])),
];
