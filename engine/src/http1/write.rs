//! A response: from a header block in the form of HTTP/2 to bytes of HTTP/1.1.
//!
//! What always holds: exactly one framing is announced, and it is the one the body is written in; a client that cannot be told where a body
//! ends is told that the connection closes behind it.

use crate::http2::hpack::{HeaderBlock, Token};

/// How the body of a response is framed for the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Framing {
    /// No body: HEAD, 204, 304, 1xx.
    None,
    /// Nothing, and the head says so.
    Empty,
    /// By the content-length the server gave.
    Length,
    /// Chunks, because the length is not known.
    Chunked,
    /// Until the connection ends: HTTP/1.0 without a length.
    Close,
}

/// Chooses the framing of a final response.
pub(crate) fn framing(status: u16, is_head: bool, has_length: bool, is_1_0: bool) -> Framing {
    match status {
        _ if is_head => Framing::None,
        100..=199 | 204 | 304 => Framing::None,
        _ if has_length => Framing::Length,
        _ if is_1_0 => Framing::Close,
        _ => Framing::Chunked,
    }
}

/// What a head says about the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Persistence {
    /// Nothing: HTTP/1.1 goes on by itself.
    Unsaid,
    /// It goes on, which a client of HTTP/1.0 that asked for it has to be told.
    KeepAlive,
    /// No other answer follows.
    Close,
}

/// Writes a head.
pub(crate) fn put_head(out: &mut Vec<u8>, block: &HeaderBlock, status: u16, framing: Framing, persistence: Persistence) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(block.first(Token::STATUS).unwrap_or(b"502"));
    out.push(b' ');
    out.extend_from_slice(reason(status));
    out.extend_from_slice(b"\r\n");
    // These have no body and may not say how long it is (RFC 9110 §8.6): a client that believed it would take the next answer for it.
    let bodiless = status < 200 || status == 204;
    let left_out = |token: Token| token.is_pseudo() || (bodiless && token == Token::CONTENT_LENGTH);
    for field in block.iter().filter(|field| !left_out(field.token)) {
        put_line(out, field.name, field.value);
    }
    if framing == Framing::Chunked {
        out.extend_from_slice(b"transfer-encoding: chunked\r\n");
    }
    if framing == Framing::Empty {
        out.extend_from_slice(b"content-length: 0\r\n");
    }
    match persistence {
        Persistence::Unsaid => {}
        Persistence::KeepAlive => out.extend_from_slice(b"connection: keep-alive\r\n"),
        Persistence::Close => out.extend_from_slice(b"connection: close\r\n"),
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes one header line.
pub(crate) fn put_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Writes the size line in front of a chunk of `len` bytes, which is not empty.
pub(crate) fn put_chunk_size(out: &mut Vec<u8>, len: usize) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut shift = usize::BITS - 4 - (len.leading_zeros() & !3);
    loop {
        out.push(DIGITS[(len >> shift) & 0xf]);
        if shift == 0 {
            break;
        }
        shift -= 4;
    }
    out.extend_from_slice(b"\r\n");
}

/// Writes the last chunk and the trailers.
pub(crate) fn put_last_chunk(out: &mut Vec<u8>, trailers: Option<&HeaderBlock>) {
    out.extend_from_slice(b"0\r\n");
    for field in trailers.into_iter().flat_map(HeaderBlock::iter) {
        put_line(out, field.name, field.value);
    }
    out.extend_from_slice(b"\r\n");
}

/// A reason phrase for every status: some clients do not read a status line without one.
fn reason(status: u16) -> &'static [u8] {
    match status {
        100 => b"Continue",
        101 => b"Switching Protocols",
        103 => b"Early Hints",
        200 => b"OK",
        201 => b"Created",
        202 => b"Accepted",
        204 => b"No Content",
        206 => b"Partial Content",
        301 => b"Moved Permanently",
        302 => b"Found",
        303 => b"See Other",
        304 => b"Not Modified",
        307 => b"Temporary Redirect",
        308 => b"Permanent Redirect",
        400 => b"Bad Request",
        401 => b"Unauthorized",
        403 => b"Forbidden",
        404 => b"Not Found",
        405 => b"Method Not Allowed",
        406 => b"Not Acceptable",
        409 => b"Conflict",
        410 => b"Gone",
        411 => b"Length Required",
        412 => b"Precondition Failed",
        413 => b"Request Entity Too Large",
        415 => b"Unsupported Media Type",
        416 => b"Requested Range Not Satisfiable",
        422 => b"Unprocessable Entity",
        429 => b"Too Many Requests",
        431 => b"Request Header Fields Too Large",
        500 => b"Internal Server Error",
        501 => b"Not Implemented",
        502 => b"Bad Gateway",
        503 => b"Service Unavailable",
        504 => b"Gateway Timeout",
        505 => b"HTTP Version Not Supported",
        _ => match status / 100 {
            1 => b"Informational",
            2 => b"Success",
            3 => b"Redirection",
            4 => b"Client Error",
            _ => b"Server Error",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_hexadecimal() {
        for (len, want) in [(1, "1\r\n"), (15, "f\r\n"), (16, "10\r\n"), (4096, "1000\r\n"), (16_375, "3ff7\r\n"), (0xabcdef, "abcdef\r\n")]
        {
            let mut out = Vec::new();
            put_chunk_size(&mut out, len);
            assert_eq!(String::from_utf8(out).unwrap(), want);
        }
    }

    #[test]
    fn heads_have_a_reason_phrase_and_their_framing() {
        let mut block = HeaderBlock::default();
        block.push(b":status", b"299");
        block.push(b"content-type", b"text/plain");
        let mut out = Vec::new();
        put_head(&mut out, &block, 299, Framing::Chunked, Persistence::Close);
        let text = String::from_utf8(out).unwrap();
        assert_eq!(text, "HTTP/1.1 299 Success\r\ncontent-type: text/plain\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n");
    }

    #[test]
    fn no_length_where_there_is_no_body() {
        for (status, has) in [(100, false), (103, false), (204, false), (200, true), (304, true)] {
            let mut block = HeaderBlock::default();
            block.push(b":status", status.to_string().as_bytes());
            block.push(b"content-length", b"5");
            let mut out = Vec::new();
            put_head(&mut out, &block, status, Framing::None, Persistence::Unsaid);
            assert_eq!(String::from_utf8(out).unwrap().contains("content-length"), has, "{status}");
        }
    }

    #[test]
    fn framing_by_status_method_and_version() {
        assert_eq!(framing(200, true, true, false), Framing::None);
        assert_eq!(framing(304, false, true, false), Framing::None);
        assert_eq!(framing(200, false, true, true), Framing::Length);
        assert_eq!(framing(200, false, false, true), Framing::Close);
        assert_eq!(framing(200, false, false, false), Framing::Chunked);
    }
}
