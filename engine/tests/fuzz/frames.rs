//! Frames of hostile clients, of hostile servers, and of both, through the core's own face.

use std::cell::RefCell;
use std::time::Duration;

use engine::core::Protocol;

use super::ops::Ops;
use super::pieces::*;
use super::yard::Yard;

const SIZES: [usize; 12] = [0, 1, 5, 8, 9, 64, 100, 999, 8_192, 16_384, 16_385, 3];
const CODES: [u32; 8] = [8, 0, 7, 1, 2, 11, 13, 0xffff_ffff];
const WORDS: [u32; 12] = [1, 0, 100, 65_535, 16_384, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 4_096, 16_777_215, 3, 1_000];
const TIMES: [u64; 8] = [1, 100, 1_000, 2_100, 4_100, 11_000, 66_000, 301_000];

/// Clients send what they like; servers answer as they should.
pub fn hostile_clients(input: &[u8]) {
    let mut yard = Yard::new(false, true);
    play(&mut yard, input, &[true]);
    answer_a_neighbour(&mut yard);
    yard.finish();
}

/// Servers send what they like to clients that behave.
pub fn hostile_servers(input: &[u8]) {
    let mut yard = Yard::new(true, false);
    play(&mut yard, input, &[false]);
    yard.finish();
}

/// Whatever the others did, a client that asks for something gets an answer.
fn answer_a_neighbour(yard: &mut Yard) {
    yard.is_shut = false;
    for at in 0..yard.wires.len() {
        yard.wires[at].is_frozen = false;
        yard.wires[at].pending.clear();
        yard.drain(at);
    }
    yard.run();
    yard.pass(Duration::from_secs(1));
    // None while the core drains.
    let Some(client) = yard.accept(Protocol::Http2) else { return };
    let stream = yard.wires[client].next_stream;
    yard.deliver(client, usize::MAX);
    behave(yard, client, &mut Ops(&[0, 0]));
    let done = |yard: &mut Yard| yard.wires[client].checker.stream(stream).is_some_and(|stream| stream.is_over && !stream.is_cut);
    for at in 0..yard.wires.len() {
        for nth in 0..yard.wires[at].checker.streams.len() {
            let wire = &mut yard.wires[at];
            let asked = &mut wire.checker.streams[nth];
            if !wire.is_client && asked.is_over && !asked.is_cut && !asked.ended && !asked.answered {
                asked.ended = true;
                put_frame(&mut wire.pending, HEADERS, END_HEADERS | END_STREAM, asked.id, RESPONSES[0]);
                yard.deliver(at, usize::MAX);
            }
        }
    }
    assert!(done(yard), "a neighbour got no answer");
}

thread_local! {
    static YARD: RefCell<Option<Yard>> = const { RefCell::new(None) };
}

/// Nobody behaves, and all inputs meet one core: what one leaves behind would add up. A failure may need the inputs before it.
pub fn on_one_core(input: &[u8]) {
    YARD.with_borrow_mut(|kept| {
        // Taken out, so that a core that failed is not met again.
        let mut yard = kept.take().unwrap_or_else(|| Yard::new(false, false));
        play(&mut yard, input, &[true, false]);
        yard.finish();
        yard.pass(Duration::from_secs(1));
        *kept = Some(yard);
    });
}

/// `hostile`: clients (true), servers (false), or both.
fn play(yard: &mut Yard, input: &[u8], hostile: &[bool]) {
    let mut ops = Ops(input);
    yard.good_window = [65_535, 100, 1 << 20, 0][usize::from(input.first().unwrap_or(&0) >> 6)];
    let Some(client) = yard.accept(Protocol::Http2) else { return };
    yard.deliver(client, usize::MAX);
    if !hostile.contains(&true) {
        for _ in 0..=ops.below(3) {
            behave(yard, client, &mut Ops(&[0, ops.byte()]));
        }
    }
    let (mut holds, mut step) = (false, usize::MAX);
    while let Some(op) = ops.next() {
        let which = ops.byte();
        let side = hostile[usize::from(op >> 4) % hostile.len()];
        match op % 16 {
            0..=8 => {
                if let Some(at) = yard.nth(side, usize::from(which >> 6)) {
                    misbehave(yard, at, which, &mut ops);
                    if !holds {
                        yard.deliver(at, step);
                    }
                }
            }
            9..=11 if hostile.len() == 1 => {
                if let Some(at) = yard.nth(!side, usize::from(which)) {
                    behave(yard, at, &mut ops);
                }
            }
            12 => yard.pass(Duration::from_millis(TIMES[usize::from(which) % TIMES.len()])),
            13 => happen(yard, which, hostile),
            14 => holds = !holds,
            15 => step = [usize::MAX, 1, 2, 9, 10, 100][usize::from(which) % 6],
            _ => {}
        }
        if !holds && step != usize::MAX && which == 0 {
            step = usize::MAX;
        }
    }
    for at in 0..yard.wires.len() {
        yard.deliver(at, step);
    }
}

/// Something that is not a frame.
fn happen(yard: &mut Yard, which: u8, hostile: &[bool]) {
    let n = usize::from(which >> 4);
    match which % 8 {
        0 => {
            let at = if yard.wires.len() < 12 { yard.accept(Protocol::Http2) } else { None };
            if let Some(at) = at.filter(|_| !hostile.contains(&true)) {
                yard.deliver(at, usize::MAX);
            }
        }
        1 | 2 => {
            if let Some(at) = yard.nth(which % 8 == 1, n) {
                yard.lose(at);
            }
        }
        3 | 4 => {
            if let Some(at) = yard.nth(which % 8 == 3, n) {
                yard.wires[at].is_frozen = !yard.wires[at].is_frozen;
                yard.drain(at);
                yard.run();
            }
        }
        5 => yard.is_shut = !yard.is_shut,
        6 => {
            yard.core.retire_servers(yard.now);
            yard.run();
        }
        // A drain is for ever, so not on the core that is kept.
        _ if hostile.len() == 1 && which > 0xf0 => {
            yard.core.begin_drain(yard.now);
            yard.run();
        }
        _ => {}
    }
}

/// One frame, or something like it, behind what waits on the connection.
fn misbehave(yard: &mut Yard, at: usize, which: u8, ops: &mut Ops<'_>) {
    let wire = &mut yard.wires[at];
    let stream = pick_stream(wire, ops);
    let out = &mut wire.pending;
    let heads = if wire.is_client { &REQUESTS } else { &RESPONSES };
    match which % 16 {
        0..=2 => {
            let end = if which & 0x20 != 0 { END_STREAM } else { 0 };
            put_headers(out, stream, end, ops.pick(heads), ops);
        }
        3 | 4 => {
            let flags = ops.byte() & (END_STREAM | PADDED);
            let mut payload = vec![b'd'; ops.pick(&SIZES)];
            if flags & PADDED != 0 && !payload.is_empty() {
                payload[0] = ops.byte();
            }
            put_frame(out, DATA, flags, stream, &payload);
        }
        5 => put_frame(out, RST_STREAM, 0, stream, &ops.pick(&CODES).to_be_bytes()),
        6 => {
            let pairs: Vec<_> = (0..ops.below(4)).map(|_| (u16::from(ops.byte() % 8), ops.pick(&WORDS))).collect();
            put_settings(out, &pairs);
        }
        7 => put_frame(out, WINDOW_UPDATE, 0, if which & 0x20 != 0 { 0 } else { stream }, &ops.pick(&WORDS).to_be_bytes()),
        8 => put_frame(out, PING, ops.byte() & 1, 0, &[7; 8]),
        9 => {
            let last = if which & 0x20 != 0 { stream } else { ops.word() };
            put_frame(out, GOAWAY, 0, 0, &[last.to_be_bytes(), ops.pick(&CODES).to_be_bytes()].concat());
        }
        10 => {
            let payload = [stream.wrapping_sub(u32::from(ops.byte() & 2)).to_be_bytes(), [9; 4]].concat();
            put_frame(out, PRIORITY, 0, stream, &payload[..ops.pick(&[5, 4, 6, 0])]);
        }
        11 => {
            let block = ops.string(40);
            put_frame(out, CONTINUATION, ops.byte() & END_HEADERS, stream, block);
        }
        12 => put_frame(out, ops.pick(&[PUSH_PROMISE, 10, 0x20, 0xff, SETTINGS]), ops.byte(), stream & !1, &[0; 12]),
        13 => {
            let (kind, flags) = (ops.byte() % 12, ops.byte());
            let payload = ops.string(64);
            put_frame(out, kind, flags, stream, payload);
        }
        14 => {
            let flags = ops.byte() & !END_HEADERS;
            let block = ops.string(64);
            put_frame(out, HEADERS, flags | (which & 0x20) >> 3, stream, block);
        }
        _ => {
            let bytes = ops.string(32);
            out.extend_from_slice(bytes);
        }
    }
}

/// A header block in one frame or several, with what may stand around it.
fn put_headers(out: &mut Vec<u8>, stream: u32, end: u8, block: &[u8], ops: &mut Ops<'_>) {
    let style = ops.byte();
    let mut payload = Vec::new();
    if style & PADDED != 0 {
        payload.push(style >> 4);
    }
    if style & PRIORITISED != 0 {
        let on = if style & 0x40 != 0 { stream } else { 0 };
        payload.extend_from_slice(&on.to_be_bytes());
        payload.push(1);
    }
    payload.extend_from_slice(block);
    if style & PADDED != 0 {
        payload.resize(payload.len() + usize::from(style >> 4), 0);
    }
    let flags = end | style & (PADDED | PRIORITISED);
    let parts = usize::from(style & 3);
    if parts == 0 || style & PADDED != 0 {
        return put_frame(out, HEADERS, flags | END_HEADERS, stream, &payload);
    }
    let (first, rest) = payload.split_at(payload.len().min(6));
    put_frame(out, HEADERS, flags, stream, first);
    let mut pieces: Vec<_> = rest.chunks(rest.len().div_ceil(parts).max(1)).collect();
    let last = pieces.pop().unwrap_or_default();
    for piece in pieces {
        put_frame(out, CONTINUATION, 0, stream, piece);
    }
    put_frame(out, CONTINUATION, END_HEADERS, stream, last);
}

/// A stream the frame is for: mostly one that means something.
fn pick_stream(wire: &mut super::yard::Wire, ops: &mut Ops<'_>) -> u32 {
    let how = ops.byte();
    let recent = u32::from(how >> 4) * 2;
    match how % 16 {
        0..=5 if wire.is_client => {
            wire.next_stream += 2;
            wire.next_stream - 2
        }
        6..=11 if wire.is_client => wire.next_stream.saturating_sub(2 + recent).max(1),
        0..=11 => {
            let streams = &wire.checker.streams;
            let n = usize::from(how >> 4);
            streams.len().checked_sub(1 + n % streams.len().max(1)).map_or(1, |at| streams[at].id)
        }
        12 => 0,
        13 => wire.next_stream + recent,
        14 => recent + 2,
        _ => ops.word() & 0x7fff_ffff,
    }
}

/// One right step of a client or a server.
fn behave(yard: &mut Yard, at: usize, ops: &mut Ops<'_>) {
    let (what, which) = (ops.byte(), ops.byte());
    let wire = &mut yard.wires[at];
    let (out, n) = (&mut wire.pending, usize::from(which & 15));
    let count = wire.checker.streams.len();
    let found = count.checked_sub(1 + n % count.max(1)).map(|at| &mut wire.checker.streams[at]);
    match (what % 8, found) {
        (0 | 1, _) if wire.is_client => {
            let stream = wire.next_stream;
            wire.next_stream += 2;
            wire.checker.grant(stream, 0);
            // 0 to 3 and 6 are whole requests; the third has a body of five bytes.
            let request = [0, 1, 2, 3, 6][usize::from(which >> 4) % 5];
            put_frame(out, HEADERS, END_HEADERS | u8::from(request != 3), stream, REQUESTS[request]);
            if request == 3 {
                put_frame(out, DATA, END_STREAM, stream, b"hello");
            }
            let known = wire.checker.stream(stream).unwrap();
            (known.ended, known.is_bodiless) = (true, request == 6);
        }
        (0..=2, Some(stream)) if !wire.is_client && !stream.answered && !stream.ended => {
            let response = usize::from(which >> 4) % 9;
            // Answers without a body, with one of five bytes, or interim ones.
            let end = response == 2 || response == 3;
            put_frame(out, HEADERS, END_HEADERS | u8::from(end), stream.id, RESPONSES[if response == 8 { 0 } else { response }]);
            stream.answered = response != 4 && response != 5;
            stream.ended = end;
            if response == 1 {
                put_frame(out, DATA, END_STREAM, stream.id, b"hello");
                stream.ended = true;
            }
        }
        (3..=5, Some(stream)) if !wire.is_client && stream.answered && !stream.ended => {
            let end = which & 0x80 != 0;
            stream.ended = end;
            let size = [0, 1, 5, 100, 16_384, 9, 999, 8_192][usize::from(which >> 4) % 8];
            put_frame(out, DATA, u8::from(end), stream.id, &vec![b'g'; size]);
        }
        (6, Some(stream)) if !(stream.is_reset || stream.is_over && stream.ended) => {
            stream.is_reset = true;
            stream.ended = true;
            put_frame(out, RST_STREAM, 0, stream.id, &CODES[usize::from(which >> 4) % 5].to_be_bytes());
        }
        (7, Some(stream)) if !stream.is_over && !stream.is_reset => {
            let id = if which & 0x80 != 0 { 0 } else { stream.id };
            put_frame(out, WINDOW_UPDATE, 0, id, &1_000_u32.to_be_bytes());
            wire.checker.grant(id, 1_000);
        }
        _ => {}
    }
    yard.deliver(at, usize::MAX);
}

/// Whole stories, as operations: `op, which, stream, ...` for frames, `9, nth, what, which` for the other side.
pub fn seeds() -> Vec<Vec<u8>> {
    const ANSWER: [u8; 4] = [9, 0, 0, 0x10];
    let story = |parts: &[&[u8]]| parts.concat();
    vec![
        // A request and its answer; an upload in pieces; a watch with data both ways.
        story(&[&[0, 0x20, 0, 0, 0], &ANSWER]),
        story(&[&[0, 0, 0, 3, 0], &[0, 3, 6, 0, 2], &[9, 0, 0, 0], &[0, 3, 6, 1, 0], &[9, 0, 3, 0x10], &[9, 0, 3, 0x90]]),
        story(&[&[0, 0x20, 0, 2, 0], &[9, 0, 0, 0], &[9, 0, 3, 0x70], &[0, 7, 6, 2], &[9, 0, 3, 0x80], &[0, 5, 6, 0]]),
        // Settings, priorities, CONTINUATIONs, padding, one byte at a time.
        story(&[&[0, 6, 0, 3, 4, 1, 1, 4, 3, 10], &[0, 0x20, 0, 0, 3], &[0, 0x20, 0, 1, 0x38], &[15, 1], &[0, 0x20, 0, 4, 2], &ANSWER]),
        // Resets, GOAWAY, a lost server, time.
        story(&[&[0, 0x20, 0, 1, 0], &[9, 0, 6, 0x20], &[9, 0, 0, 0], &[13, 2], &[12, 2], &[0, 0x29, 6, 0]]),
        story(&[&[0, 0x20, 0, 0, 0], &[0, 0x20, 0, 1, 0], &[0, 5, 6, 0], &[0, 5, 0x16, 0], &[13, 0], &[0, 0x60, 0, 0, 0], &[12, 5]]),
        // Slow readers: frozen, and without windows.
        story(&[&[0, 6, 0, 1, 4, 1], &[0, 0x20, 0, 0, 0], &[9, 0, 0, 0], &[9, 0, 3, 0x70], &[9, 0, 3, 0x70], &[0, 7, 6, 3], &[13, 3]]),
        story(&[&[13, 3], &[0, 0x20, 0, 0, 0], &[9, 0, 0, 0], &[9, 0, 3, 0x60], &[13, 3], &[12, 7]]),
        // As a server: head, DATA, end; interim heads; trailers; refused.
        story(&[&[0, 0], &[0, 0, 0, 1, 0], &[0, 3, 0, 1, 2]]),
        story(&[&[1, 0x10], &[0, 0, 0, 4, 0], &[0, 0, 0, 5, 0], &[0, 0, 0, 0, 0], &[0, 3, 0, 0, 6], &[0, 0x20, 0, 8, 0]]),
        story(&[&[2, 0x30], &[0, 5, 0, 2], &[0, 5, 0, 2], &[0, 0x29, 0, 0], &[0, 0, 0x10, 6, 0]]),
        // More than the window of a connection.
        [&[0xa0, 0x10, 0, 0, 0, 0, 0][..], &[0, 3, 0, 0, 9].repeat(5)].concat(),
        [&[0x20, 0x20, 0, 0, 0][..], &[9, 0, 0, 0], &[9, 0, 3, 0x40].repeat(5)].concat(),
        // Found here: bad priorities of idle streams.
        story(&[&[0, 0x0a, 0x1d, 0, 1], &[0, 0x0a, 0x1d, 2, 1], &[0, 0x0a, 0x0e, 0, 0]]),
        // A piece of a block, something between, the rest.
        story(&[&[14, 0], &[0, 0x0e, 0, 0, 4, 0x82, 0x87, 0x84, 0], &[0, 0x0b, 6, 2, 0x84, 0, 4], &[15, 3], &[14, 0], &[0, 8, 0, 0]]),
        story(&[&[13, 5], &[0, 0x20, 0, 0, 0], &[12, 2], &[13, 5], &[12, 2], &[0, 0x20, 0, 0, 0], &[13, 0xf7], &[12, 1], &[12, 1]]),
    ]
}
