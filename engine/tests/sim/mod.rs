//! A seeded, deterministic world around one [`engine::core::Core`]: fake clients, fake servers, a fake clock, and wires that
//! fragment, stall and break. Everything that happens follows from the seed.
#![allow(dead_code, reason = "the test binaries share it, and none uses all of it")]
#![allow(missing_docs, unreachable_pub, clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, reason = "a harness")]

pub mod body;
pub mod client;
pub mod end;
pub mod link;
pub mod probes;
pub mod request;
pub mod rng;
pub mod server;
pub mod stage;
pub mod trace;
pub mod world;
