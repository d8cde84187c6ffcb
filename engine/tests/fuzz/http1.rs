//! Heads and bodies of HTTP/1.1 clients, through the core's own face.

use engine::core::Protocol;

use super::checker::Stream;
use super::ops::Ops;
use super::pieces::*;
use super::yard::Yard;

/// What requests are made of, the usual and the famous.
const TOKENS: [&[u8]; 48] = [
    b"GET /apis/g/v1/both HTTP/1.1\r\n",
    b"POST /apis/g/v1/theirs HTTP/1.1\r\n",
    b"Host: k\r\n",
    b"\r\n",
    b"Content-Length: 5\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"5\r\nhello\r\n",
    b"0\r\n",
    b"hello",
    b"HEAD /healthz HTTP/1.0\r\n",
    b"GET https://evil/apis/g/v1/mine?watch=1 HTTP/1.1\r\n",
    b"Connection: keep-alive\r\n",
    b"Connection: close, x-drop\r\n",
    b"X-Remote-User: admin\r\n",
    b"X-Drop: 1\r\n",
    b"Expect: 100-continue\r\n",
    b"Upgrade: SPDY/3.1\r\nConnection: upgrade\r\n",
    b"Upgrade: h2c\r\n",
    b"Content-Length: 0\r\n",
    b"Content-Length: 5, 5\r\n",
    b"Content-Length: +5\r\n",
    b"Content-Length: 99999999999999999\r\n",
    b"Transfer-Encoding: xchunked\r\n",
    b"Transfer-Encoding : chunked\r\n",
    b"Transfer-Encoding:\x0bchunked\r\n",
    b"A: b\r\n c\r\n",
    b"A: b\n",
    b": empty\r\n",
    b"GET / HTTP/1.1\r\nHost: k\r\n\r\n",
    b"5;ext=1\r\nhello\r\n",
    b"5 \r\nhello\r\n",
    b"00000005\r\nhello\r\n",
    b"fffffffffffffffff\r\n",
    b"0x5\r\nhello\r\n",
    b"0;a\nb\r\n",
    b"Trailer: t\r\n",
    b"t: 1\r\n\r\n",
    b"CONNECT k:1 HTTP/1.1\r\n",
    b"OPTIONS * HTTP/1.1\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"GET  / HTTP/1.1\r\n",
    b"GET /a b HTTP/1.1\r\n",
    b"GET / HTTP/1.2\r\n",
    b"\n",
    b"\r",
    b" ",
    b"\t",
    b"\0",
];

/// A request that a server got: fields, trailers behind them, and body.
type Request = (Vec<(Vec<u8>, Vec<u8>)>, Vec<u8>);

/// What a run of the bytes came to.
#[derive(PartialEq, Eq, Debug)]
struct Outcome {
    /// The requests that servers got whole, in order.
    whole: Vec<Request>,
    answers: Vec<u8>,
    is_open: bool,
}

/// However the bytes are cut, they come to the same requests and answers, and every whole request is answered once.
pub fn heads_and_bodies(input: &[u8]) {
    let mut ops = Ops(input);
    let cut = 1 + usize::from(ops.byte() % 24);
    let mut bytes = Vec::new();
    while let Some(op) = ops.next() {
        match op {
            0..=191 => bytes.extend_from_slice(TOKENS[usize::from(op) % TOKENS.len()]),
            192..=223 => {
                let size = usize::from(op & 31);
                bytes.extend_from_slice(format!("{size:x}\r\n").as_bytes());
                bytes.resize(bytes.len() + size, b'c');
                bytes.extend_from_slice(b"\r\n");
            }
            _ => {
                let raw = ops.take(usize::from(op & 31));
                bytes.extend_from_slice(raw);
            }
        }
    }
    // Below what the core holds of requests sent ahead: above, it matters how they come.
    bytes.truncate(4_000);
    // A head is looked at again when a line has come to its end, not for every byte.
    bytes.push(b'\n');
    let (at_once, in_pieces) = (run(&bytes, usize::MAX), run(&bytes, cut));
    assert_eq!(at_once, in_pieces, "cut every {cut} bytes: {}", String::from_utf8_lossy(&bytes));
    // What servers got are requests as they were sent, in order; others were answered here.
    let mut sent = reference(&bytes).into_iter();
    for (fields, body) in &at_once.whole {
        let value = |name: &[u8]| fields.iter().find(|field| field.0 == name).map(|field| field.1.clone()).unwrap();
        let got = (value(b":method"), value(b":path"), body.clone());
        assert!(sent.any(|request| request == got), "a request nobody sent: {got:?} of {}", String::from_utf8_lossy(&bytes));
    }
}

/// Another reader of RFC 9112, simple and lenient: method, path and body of each request.
fn reference(mut bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>, Vec<u8>)> {
    let mut requests = Vec::new();
    while let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        bytes = &bytes[end + 4..];
        let mut lines = head.split("\r\n");
        let mut words = lines.next().unwrap().split(' ');
        let (method, target) = (words.next().unwrap(), words.next().unwrap_or_default());
        let path = target.strip_prefix("https://").map_or(target, |rest| &rest[rest.find('/').unwrap_or(rest.len())..]);
        let (mut length, mut chunked) = (0, false);
        for (name, value) in lines.filter_map(|line| line.split_once(':')) {
            match name.to_ascii_lowercase().as_str() {
                "content-length" => length = value.trim().parse().unwrap_or(usize::MAX),
                "transfer-encoding" => chunked = true,
                _ => {}
            }
        }
        let body = if chunked { take_chunks(&mut bytes) } else { take(&mut bytes, length) };
        let Some(body) = body else { break };
        requests.push((method.as_bytes().to_vec(), path.as_bytes().to_vec(), body));
    }
    requests
}

fn take(bytes: &mut &[u8], n: usize) -> Option<Vec<u8>> {
    let (front, rest) = bytes.split_at_checked(n)?;
    *bytes = rest;
    Some(front.to_vec())
}

fn take_chunks(bytes: &mut &[u8]) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let size = take_line(bytes)?;
        let size = usize::from_str_radix(size.split(';').next()?, 16).ok()?;
        if size == 0 {
            while !take_line(bytes)?.is_empty() {}
            return Some(body);
        }
        body.append(&mut take(bytes, size)?);
        take_line(bytes)?;
    }
}

fn take_line(bytes: &mut &[u8]) -> Option<String> {
    let end = bytes.windows(2).position(|window| window == b"\r\n")?;
    let line = String::from_utf8_lossy(&bytes[..end]).into_owned();
    *bytes = &bytes[end + 2..];
    Some(line)
}

fn run(bytes: &[u8], step: usize) -> Outcome {
    let mut yard = Yard::new(true, true);
    yard.keeps = true;
    let client = yard.accept(Protocol::Http1).unwrap();
    let mut whole = Vec::new();
    for piece in bytes.chunks(step.min(bytes.len().max(1))) {
        if !yard.wires[client].is_open {
            break;
        }
        yard.wires[client].pending.extend_from_slice(piece);
        yard.deliver(client, usize::MAX);
        while answer(&mut yard, &mut whole) {}
    }
    let wire = &mut yard.wires[client];
    let (answers, is_open) = (wire.text.take().unwrap_or_default(), wire.is_open);
    wire.text = Some(Vec::new());
    yard.finish();
    let good = b"HTTP/1.1 200 OK\r\n";
    assert_eq!(answers.windows(good.len()).filter(|window| window == good).count(), whole.len(), "{}", String::from_utf8_lossy(&answers));
    Outcome { whole, answers, is_open }
}

/// Answers one request that came whole; false when there is none.
fn answer(yard: &mut Yard, whole: &mut Vec<Request>) -> bool {
    for at in 0..yard.wires.len() {
        let wire = &mut yard.wires[at];
        let waits = |stream: &&mut Stream| stream.is_over && !stream.is_cut && !stream.ended;
        if wire.is_client || !wire.is_open {
            continue;
        }
        let Some(stream) = wire.checker.streams.iter_mut().find(waits) else { continue };
        stream.ended = true;
        let is_head = stream.fields.contains(&(b":method".to_vec(), b"HEAD".to_vec()));
        put_frame(&mut wire.pending, HEADERS, END_HEADERS | u8::from(is_head), stream.id, b"\x88\x0f\x0d\x012");
        if !is_head {
            put_frame(&mut wire.pending, DATA, END_STREAM, stream.id, b"ok");
        }
        whole.push((std::mem::take(&mut stream.fields), std::mem::take(&mut stream.body)));
        yard.deliver(at, usize::MAX);
        return true;
    }
    false
}

/// Requests by the numbers of their tokens, with the cut in front.
pub fn seeds() -> Vec<Vec<u8>> {
    vec![
        vec![0, 0, 2, 3],
        vec![6, 0, 2, 3, 0, 2, 3, 0, 2, 12, 14, 3],
        vec![1, 1, 2, 4, 3, 8, 0, 2, 3],
        vec![2, 1, 2, 5, 3, 6, 200, 7, 3, 28],
        vec![3, 1, 2, 5, 35, 3, 6, 29, 7, 36, 28],
        vec![4, 9, 3],
        vec![9, 10, 2, 11, 13, 15, 3],
        vec![5, 1, 2, 4, 5, 3, 6, 7, 3, 28],
        vec![7, 1, 2, 22, 3, 28],
        vec![8, 0, 2, 16, 3, 28],
        vec![8, 38, 2, 17, 3, 37, 2, 3],
        vec![3, 1, 2, 5, 3, 32, 6, 7, 3],
        vec![11, 1, 2, 18, 3, 0, 2, 26, 3],
        // Found here: lengths in the trailer section.
        vec![3, 1, 2, 5, 3, 7, 4, 21, 3, 28],
        [&[5][..], &[225 + 20], b"GET /apis/g/v1/both H", &[225 + 6], b"TTP/1.1"].concat(),
    ]
}
