//! Fuzz targets: whatever the bytes, no crash, no hang, no growth, and the rules each target names.
//!
//! A target is a function of bytes that reads them as operations (open a stream, cut here, let time pass), so that a changed byte is a
//! changed deed and not only a broken frame. `cargo test` runs some thousand inputs of each.
//!
//! `MVPROXY_FUZZ=n` runs `n` inputs of each, with figures: `MVPROXY_FUZZ=10000000 cargo test --release -p engine --test fuzz --
//! --nocapture --test-threads 1`. `MVPROXY_FUZZ_SEED=n` runs input `n` alone, or `MVPROXY_FUZZ` inputs from it on;
//! `MVPROXY_FUZZ_INPUT=hex` runs those bytes.
#![allow(unreachable_pub, missing_docs, clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, reason = "tests")]

mod checker;
mod driver;
mod frames;
mod hpack;
mod http1;
mod ops;
mod pieces;
mod target;
mod yard;

use driver::fuzz;

#[test]
fn hpack_decode() {
    fuzz("hpack_decode", &hpack::block_seeds(), hpack::decode);
}

#[test]
fn hpack_round_trip() {
    fuzz("hpack_round_trip", &hpack::list_seeds(), hpack::round_trip);
}

#[test]
fn frames_of_hostile_clients() {
    fuzz("frames_of_hostile_clients", &frames::seeds(), frames::hostile_clients);
}

#[test]
fn frames_of_hostile_servers() {
    fuzz("frames_of_hostile_servers", &frames::seeds(), frames::hostile_servers);
}

#[test]
fn frames_of_both_on_one_core() {
    fuzz("frames_of_both_on_one_core", &frames::seeds(), frames::on_one_core);
}

#[test]
fn http1_heads_and_bodies() {
    fuzz("http1_heads_and_bodies", &http1::seeds(), http1::heads_and_bodies);
}

#[test]
fn path_to_target() {
    fuzz("path_to_target", &target::seeds(), target::path_to_target);
}
