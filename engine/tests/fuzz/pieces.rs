//! Frames and header blocks that operations are made of.

pub const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const ACK: u8 = 1;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const PRIORITISED: u8 = 32;

/// Request heads: first those that a server gets, then those that are refused, in one way or another.
pub const REQUESTS: [&[u8]; 20] = [
    b"\x82\x87\x04\x0f/apis/g/v1/both",
    b"\x82\x87\x04\x11/apis/g/v1/theirs",
    b"\x82\x87\x04\x17/apis/g/v1/both?watch=1",
    b"\x83\x87\x04\x0f/apis/g/v1/mine\x0f\x0d\x015",
    b"\x83\x87\x04\x11/apis/g/v1/theirs\x40\x03x-a\x03one\x40\x03x-b\x03two",
    b"\x82\x87\x84\xbe\xbf",
    b"\x02\x04HEAD\x87\x04\x08/healthz",
    b"\x20\x3f\xe1\x1f\x82\x87\x84",
    b"\x82\x87\x84\x40\x0dx-remote-user\x05admin\x10\x0dauthorization\x03abc",
    b"\x82\x87\x84\x0f\x0d\x0210\x0f\x0d\x0210",
    b"\x02\x07CONNECT\x01\x01k",
    b"\x82\x87",
    b"\x82\x82\x87\x84",
    b"\x87\x84\x40\x01A\x01b\x82",
    b"\x82\x87\x84\x40\x0aconnection\x05close",
    b"\x82\x87\x04\x04/%zz",
    b"\x82\x87\x84\x00\x01a\x02\r\n",
    b"\x82\x87\x84\x90",
    b"\x3f\xff\xff\xff\x0f\x82",
    b"\xff\xff\xff\xff\xff\xff",
];

/// Response heads and trailers: first good ones, then bad ones.
pub const RESPONSES: [&[u8]; 20] = [
    b"\x88",
    b"\x88\x0f\x0d\x015",
    b"\x89",
    b"\x8b\x0f\x0d\x0299",
    b"\x08\x03100",
    b"\x08\x03103\x40\x04link\x01x",
    b"\x88\x40\x03x-a\x03one\x40\x03x-b\x03two",
    b"\x88\xbe\xbf",
    b"\x40\x07trailer\x01t",
    b"\x8e",
    b"\x20\x3f\xe1\x1f\x88",
    b"\x08\x03101",
    b"\x08\x03999",
    b"\x88\x88",
    b"\x08\x0220",
    b"\x88\x0f\x0d\x02-1",
    b"\x88\x40\x11transfer-encoding\x07chunked",
    b"\x82\x88",
    b"\xff\xff\xff\xff\xff\xff",
    b"",
];

pub fn put_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

pub fn put_settings(out: &mut Vec<u8>, pairs: &[(u16, u32)]) {
    let payload: Vec<u8> = pairs.iter().flat_map(|(id, value)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat()).collect();
    put_frame(out, SETTINGS, 0, 0, &payload);
}
