//! What happened in a world, in one number: another as soon as one byte, action or moment is another.

use std::hash::{DefaultHasher, Hasher};
use std::time::Instant;

use engine::core::{Action, Sign};

/// Everything the core said and asked for, in order. Times count from the beginning of the world.
pub struct Trace {
    base: Instant,
    sum: DefaultHasher,
}

impl Trace {
    pub fn new(base: Instant) -> Self {
        Self { base, sum: DefaultHasher::new() }
    }

    /// The far end of a connection got these bytes of the core.
    pub fn on_delivered(&mut self, bytes: &[u8], now: Instant) {
        self.note(bytes, now);
    }

    /// The core asked for this.
    pub fn on_action(&mut self, action: &Action, now: Instant) {
        let text = match action {
            // No two runs have the same clock.
            Action::Report(Sign::Lost { server, at }) => format!("lost {server:?} {:?}", *at - self.base),
            action => format!("{action:?}"),
        };
        self.note(text.as_bytes(), now);
    }

    pub fn sum(&self) -> u64 {
        self.sum.finish()
    }

    fn note(&mut self, bytes: &[u8], now: Instant) {
        self.sum.write_u64((now - self.base).as_micros() as u64);
        self.sum.write_usize(bytes.len());
        self.sum.write(bytes);
    }
}
