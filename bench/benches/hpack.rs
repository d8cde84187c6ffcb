//! Header blocks in both directions: what kubectl sends, and what kube-apiserver answers.
//!
//! "First" is a block as it comes first on a connection: literals, most of them Huffman-coded and put into the dynamic table.
//! "Repeated" is the block of every later message with the same fields: references to the table, and literals only for what is never
//! put there (path, token, length, audit id).
#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::hint::black_box;

use bench::Fields;
use criterion::{Criterion, Throughput};
use engine::http2::hpack::{Decoded, Decoder, Encoder, Field, HeaderBlock};

/// The list limit of the proxy.
const LIST_MAX: usize = 64 * 1024;

fn main() {
    let mut criterion = Criterion::default().configure_from_args();
    for (name, fields) in [("kubectl request", bench::kubectl_request()), ("apiserver response", bench::apiserver_response(1_024))] {
        decode(&mut criterion, name, &fields);
        encode(&mut criterion, name, &fields);
    }
    criterion.final_summary();
}

fn decode(criterion: &mut Criterion, name: &str, fields: &Fields) {
    let mut encoder = Encoder::new();
    let first = block(&mut encoder, fields);
    let repeated = block(&mut encoder, fields);
    let mut group = criterion.benchmark_group("hpack decode");
    for (which, bytes) in [("first", &first), ("repeated", &repeated)] {
        // Either block is right for this decoder: the first one needs nothing in the table, and comes before the other.
        let mut decoder = Decoder::new(4_096);
        let mut head = HeaderBlock::default();
        assert_eq!(decoder.decode(&first, LIST_MAX, &mut head), Ok(Decoded::Complete));
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_function(format!("{name}, {which}"), |bencher| {
            bencher.iter(|| {
                head.clear();
                decoder.decode(black_box(bytes), LIST_MAX, &mut head)
            });
        });
        assert_eq!(head.len(), fields.len());
    }
    group.finish();
}

fn encode(criterion: &mut Criterion, name: &str, fields: &Fields) {
    // The fields come from a decoder, as in the proxy: what it computed about them travels along.
    let (mut decoder, mut head) = (Decoder::new(4_096), HeaderBlock::default());
    decoder.decode(&block(&mut Encoder::new(), fields), LIST_MAX, &mut head).unwrap();
    let mut encoder = Encoder::new();
    let mut out = Vec::with_capacity(8 * 1024);
    let mut group = criterion.benchmark_group("hpack encode");
    group.bench_function(format!("{name}, repeated"), |bencher| {
        bencher.iter(|| {
            out.clear();
            encoder.begin(&mut out);
            for field in head.iter() {
                encoder.field(field, &mut out);
            }
            black_box(&out);
        });
    });
    group.finish();
}

fn block(encoder: &mut Encoder, fields: &Fields) -> Vec<u8> {
    let mut out = Vec::new();
    encoder.begin(&mut out);
    for (name, value) in fields {
        encoder.field(Field::new(name.as_bytes(), value.as_bytes()), &mut out);
    }
    out
}
