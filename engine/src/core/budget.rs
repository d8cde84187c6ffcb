//! How much of what a well-behaved other end rarely does it may do: a bucket that fills up again with time.
//!
//! What always holds: in any time `t` at most `burst + per_second * t` are taken.

use std::time::Instant;

/// How large a bucket is and how fast it fills.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    /// So many at once.
    pub burst: u32,
    /// So many more each second.
    pub per_second: u32,
}

/// A bucket. `left <= burst`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    left: u32,
    filled: Instant,
}

impl Budget {
    pub(crate) fn full(rate: Rate, now: Instant) -> Self {
        Self { left: rate.burst, filled: now }
    }

    /// Takes one; false when there is none left.
    pub(crate) fn take(&mut self, rate: Rate, now: Instant) -> bool {
        if self.left == rate.burst {
            // What passed while it was full is worth nothing.
            self.filled = now;
        } else if self.left == 0 {
            self.fill(rate, now);
        }
        self.left = match self.left.checked_sub(1) {
            Some(left) => left,
            None => return false,
        };
        true
    }

    /// Adds what the passed time is worth. Looked at only when empty: a busy honest client costs no arithmetic.
    fn fill(&mut self, rate: Rate, now: Instant) {
        let passed = now.saturating_duration_since(self.filled);
        let earned = passed.as_millis() * u128::from(rate.per_second) / 1_000;
        if earned > 0 {
            self.left = u32::try_from(earned).unwrap_or(rate.burst).min(rate.burst);
            self.filled = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_burst_then_a_trickle() {
        let rate = Rate { burst: 10, per_second: 5 };
        let start = Instant::now();
        let mut budget = Budget::full(rate, start);
        assert_eq!((0..20).filter(|_| budget.take(rate, start)).count(), 10);
        let later = start + Duration::from_secs(1);
        assert_eq!((0..20).filter(|_| budget.take(rate, later)).count(), 5);
        // However long nobody took any: a burst, not two.
        let mut rested = Budget::full(rate, start);
        assert_eq!((0..50).filter(|_| rested.take(rate, start + Duration::from_secs(60))).count(), 10);
        let much_later = start + Duration::from_secs(100);
        assert_eq!((0..20).filter(|_| budget.take(rate, much_later)).count(), 10);
    }
}
