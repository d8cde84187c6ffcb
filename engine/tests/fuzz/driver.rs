//! Makes inputs, runs a target on them, and says how to see a failure again.
//!
//! What always holds: input `n` of a target depends on `n` alone (a seed of the corpus changed by chance that comes from `n`), so the
//! number is enough to make it again. There is no feedback from coverage: depth comes from inputs being operations.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Inputs of each target in a plain `cargo test`.
const SMOKE: u64 = 20_000;
/// Longest input: longer ones cost time and find what several short ones find.
const LONGEST: usize = 512;
/// One input that takes longer hangs; they take microseconds.
const HANG: Duration = Duration::from_secs(20);
/// Memory of the process at the end, above that after a tenth of the inputs.
const GROWTH: usize = 24 << 20;
/// Runs spent on making a failing input smaller.
const SHRINKING: usize = 4_000;

thread_local! {
    /// Is a failure of this thread expected, and not to be printed?
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

/// Runs `target` on as many inputs as the environment says.
pub fn fuzz(name: &str, corpus: &[Vec<u8>], target: fn(&[u8])) {
    hush();
    if let Ok(hex) = std::env::var("MVPROXY_FUZZ_INPUT") {
        return target(&from_hex(&hex));
    }
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let (asked, first) = (number("MVPROXY_FUZZ"), number("MVPROXY_FUZZ_SEED"));
    let count = asked.unwrap_or_else(|| if first.is_some() { 1 } else { SMOKE });
    let first = first.unwrap_or(0);
    let (done, over) = (AtomicU64::new(first), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| watch(name, &done, &over));
        let outcome = catch_unwind(AssertUnwindSafe(|| run(name, corpus, target, first..first + count, &done)));
        over.store(true, Ordering::Relaxed);
        watch.thread().unpark();
        if let Err(panic) = outcome {
            std::panic::resume_unwind(panic);
        }
    });
}

fn run(name: &str, corpus: &[Vec<u8>], target: fn(&[u8]), seeds: std::ops::Range<u64>, done: &AtomicU64) {
    let (begun, count) = (Instant::now(), seeds.end - seeds.start);
    let warm = seeds.start + count / 10;
    let (mut rss_warm, mut input) = (0, Vec::new());
    for seed in seeds {
        if seed == warm {
            rss_warm = rss();
        }
        make(seed, corpus, &mut input);
        if !survives(target, &input) {
            let small = shrink(target, input);
            // Once more, for its message.
            assert!(catch_unwind(|| target(&small)).is_err() || name.ends_with("one_core"));
            panic!(
                "{name} fails on input {seed}; replay with\n  MVPROXY_FUZZ_SEED={seed} cargo test -p engine --test fuzz {name}\nor, made smaller, \
                 with\n  MVPROXY_FUZZ_INPUT={} cargo test -p engine --test fuzz {name}",
                to_hex(&small)
            );
        }
        done.store(seed, Ordering::Relaxed);
    }
    let grown = rss().saturating_sub(rss_warm);
    let took = begun.elapsed().as_secs_f64();
    println!("{name}: {count} executions, {:.0}/s, {took:.1} s, {} KiB grown since the first tenth", count as f64 / took, grown >> 10);
    assert!(grown <= GROWTH, "{name}: memory grew by {grown} bytes");
}

/// An input that never ends cannot be caught: says which it is, and ends the process.
fn watch(name: &str, done: &AtomicU64, over: &AtomicBool) {
    let (mut last, mut since) = (done.load(Ordering::Relaxed), Instant::now());
    while !over.load(Ordering::Relaxed) {
        std::thread::park_timeout(Duration::from_secs(1));
        let now = done.load(Ordering::Relaxed);
        if now != last {
            (last, since) = (now, Instant::now());
        } else if since.elapsed() > HANG && !over.load(Ordering::Relaxed) {
            eprintln!("{name} hangs on the input after {last}: MVPROXY_FUZZ_SEED={}", last + 1);
            std::process::abort();
        }
    }
}

fn survives(target: fn(&[u8]), input: &[u8]) -> bool {
    QUIET.set(true);
    let survived = catch_unwind(|| target(input)).is_ok();
    QUIET.set(false);
    survived
}

/// Takes away what is not needed to fail.
fn shrink(target: fn(&[u8]), mut input: Vec<u8>) -> Vec<u8> {
    let (mut piece, mut left) = (input.len().div_ceil(2), SHRINKING);
    while piece > 0 && left > 0 {
        let mut at = 0;
        while at < input.len() && left > 0 {
            left -= 1;
            let mut smaller = input[..at].to_vec();
            smaller.extend_from_slice(&input[input.len().min(at + piece)..]);
            if survives(target, &smaller) {
                at += piece;
            } else {
                input = smaller;
            }
        }
        piece /= 2;
    }
    input
}

/// Input number `seed`.
fn make(seed: u64, corpus: &[Vec<u8>], input: &mut Vec<u8>) {
    let mut chance = Chance::new(seed);
    input.clear();
    // One in eight is nothing but chance.
    if chance.below(8) != 0 {
        input.extend_from_slice(&corpus[chance.below(corpus.len())]);
    }
    if chance.below(4) == 0 {
        let other = &corpus[chance.below(corpus.len())];
        let (at, from) = (chance.below(input.len() + 1), chance.below(other.len() + 1));
        input.truncate(at);
        input.extend_from_slice(&other[from..]);
    }
    if input.is_empty() {
        input.extend((0..=chance.below(96)).map(|_| chance.any() as u8));
    }
    for _ in 0..chance.below(12) {
        havoc(&mut chance, input);
    }
    input.truncate(LONGEST);
}

/// One small change.
fn havoc(chance: &mut Chance, input: &mut Vec<u8>) {
    const TELLING: [u8; 12] = [0, 1, 2, 3, 4, 8, 9, 0x1f, 0x7f, 0x80, 0xfe, 0xff];
    let at = chance.below(input.len() + 1);
    match (chance.below(8), input.get_mut(at)) {
        (0, Some(byte)) => *byte ^= 1 << chance.below(8),
        (1 | 2, Some(byte)) => *byte = chance.any() as u8,
        (3, Some(byte)) => *byte = TELLING[chance.below(TELLING.len())],
        (4, Some(byte)) => *byte = byte.wrapping_add(chance.below(9) as u8).wrapping_sub(4),
        (5, Some(_)) => {
            let end = (at + 1 + chance.below(8)).min(input.len());
            input.drain(at..end);
        }
        (6, Some(_)) => {
            let end = (at + 1 + chance.below(24)).min(input.len());
            let to = chance.below(input.len() + 1);
            let copy = input[at..end].to_vec();
            input.splice(to..to, copy);
        }
        _ => {
            let new: Vec<u8> = (0..=chance.below(6)).map(|_| chance.any() as u8).collect();
            input.splice(at..at, new);
        }
    }
}

/// xorshift64* from a mixed seed.
struct Chance(u64);

impl Chance {
    fn new(seed: u64) -> Self {
        let mixed = (seed ^ (seed >> 31)).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Self((mixed ^ (mixed >> 29)) | 1)
    }

    fn any(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&mut self, n: usize) -> usize {
        (self.any() % n.max(1) as u64) as usize
    }
}

/// Bytes of memory the process has; 0 where /proc is not there.
fn rss() -> usize {
    #[allow(clippy::disallowed_methods, reason = "a test reads /proc")]
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split_whitespace().nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4_096
}

/// Failures of inputs are told once, by `run`, and not for each attempt to make them smaller.
fn hush() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if !QUIET.get() {
                before(info);
            }
        }));
    });
}

fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|at| u8::from_str_radix(&text[at * 2..at * 2 + 2], 16).unwrap()).collect()
}
