//! How many shards there are, and which CPU each is pinned to.
//!
//! What always holds: at least one shard and at most [`SHARDS_MAX`]; no CPU has two shards, and none is outside the affinity
//! mask, where pinning would fail. [`choose`] is pure; only [`allowed`] asks the machine.
//!
//! It does not read the cgroup: files are the caller's.

use std::fmt;

/// The most shards: the 256 connections a server gets are divided among them, one for watches and one for the rest at least.
pub const SHARDS_MAX: usize = 128;

/// Shards when nobody says: one CPU carries 50,000 requests a second and more, and each shard opens its own connections to
/// every server.
const SHARDS_DEFAULT_MAX: usize = 4;

/// The CPUs this process may run on, in ascending order; empty when the kernel does not say.
pub fn allowed() -> Vec<usize> {
    core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect()
}

/// One entry per shard: the CPU it is pinned to, or `None` where there are more shards than CPUs.
///
/// `shards` is how many were asked for; without it there is one for each CPU of `list`, and without that as many as there are CPUs in
/// `allowed` and whole CPUs in `quota`, at most four. `list` is of the form `0-3,6`.
pub fn choose(shards: Option<usize>, list: Option<&str>, allowed: &[usize], quota: Option<f64>) -> Result<Vec<Option<usize>>, CpuError> {
    let listed = list.map(|list| parse(list, allowed)).transpose()?;
    let count = match (shards, &listed) {
        (Some(count), _) => count,
        (None, Some(listed)) => listed.len(),
        (None, None) => default_count(allowed.len(), quota),
    };
    if !(1..=SHARDS_MAX).contains(&count) {
        return Err(CpuError::ShardCount(count));
    }
    let cpus = listed.as_deref().unwrap_or(allowed);
    Ok((0..count).map(|shard| cpus.get(shard).copied()).collect())
}

/// Rounded down: shards that together may use less than a CPU each would be stopped by the quota in turn, and their requests with them.
fn default_count(allowed: usize, quota: Option<f64>) -> usize {
    let within = |count: &usize| quota.is_none_or(|quota| f64::from(u32::try_from(*count).unwrap_or(u32::MAX)) <= quota);
    (1..=allowed.min(SHARDS_DEFAULT_MAX)).take_while(within).last().unwrap_or(1)
}

/// The CPUs of a list, in its order.
fn parse(list: &str, allowed: &[usize]) -> Result<Vec<usize>, CpuError> {
    let mut cpus = Vec::new();
    for part in list.split(',') {
        let bad = || CpuError::Malformed(part.to_owned());
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first).ok_or_else(bad)?, number(last).ok_or_else(bad)?);
        if first > last {
            return Err(bad());
        }
        // Stops at the first CPU that is not there, so a huge range costs nothing.
        for cpu in first..=last {
            if !allowed.contains(&cpu) {
                return Err(CpuError::NotAllowed(cpu, allowed.into()));
            }
            if cpus.contains(&cpu) {
                return Err(CpuError::Twice(cpu));
            }
            cpus.push(cpu);
        }
    }
    Ok(cpus)
}

/// Digits only: `parse` alone would take `+3`.
fn number(text: &str) -> Option<usize> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

/// Why there is no choice, with the fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpuError {
    /// This part of the list is no CPU and no range.
    Malformed(String),
    /// The CPU is not among those the process may use, which are these.
    NotAllowed(usize, Box<[usize]>),
    /// The CPU is in the list more than once.
    Twice(usize),
    /// No shards, or more than [`SHARDS_MAX`].
    ShardCount(usize),
}

impl fmt::Display for CpuError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(part) => write!(f, "`{part}` is no cpu and no range of cpus: write a list such as 0-3,6"),
            Self::NotAllowed(cpu, allowed) if allowed.is_empty() => {
                write!(f, "cpu {cpu} cannot be chosen, because the kernel does not say which this process may use: leave the list out")
            }
            Self::NotAllowed(cpu, allowed) => {
                write!(f, "cpu {cpu} is not one this process may use: choose from {} (its affinity mask)", Ranges(allowed))
            }
            Self::Twice(cpu) => write!(f, "cpu {cpu} is named twice: name each once, or ask for more shards than cpus"),
            Self::ShardCount(count) => write!(f, "{count} shards cannot be started: ask for 1 to {SHARDS_MAX}"),
        }
    }
}

impl std::error::Error for CpuError {}

/// Ascending numbers in the form that [`parse`] reads.
struct Ranges<'a>(&'a [usize]);

impl fmt::Display for Ranges<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, run) in self.0.chunk_by(|a, b| a + 1 == *b).enumerate() {
            let comma = if nth > 0 { "," } else { "" };
            match run {
                [first, .., last] => write!(f, "{comma}{first}-{last}")?,
                [only] => write!(f, "{comma}{only}")?,
                [] => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The choice as text: a CPU each, `-` where unpinned.
    fn chosen(shards: Option<usize>, list: Option<&str>, allowed: &[usize], quota: Option<f64>) -> String {
        let show = |cpu: Option<usize>| cpu.map_or_else(|| "-".to_owned(), |cpu| cpu.to_string());
        match choose(shards, list, allowed, quota) {
            Ok(cpus) => cpus.into_iter().map(show).collect::<Vec<_>>().join(" "),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_default_is_the_least_of_four_the_mask_and_the_quota() {
        let eight: Vec<usize> = (0..8).collect();
        for (allowed, quota, expected) in [
            (&eight[..], None, "0 1 2 3"),
            (&eight[..], Some(16.0), "0 1 2 3"),
            (&eight[..], Some(2.0), "0 1"),
            (&eight[..], Some(2.9), "0 1"),
            (&eight[..], Some(0.5), "0"),
            (&eight[..], Some(0.0), "0"),
            (&eight[..], Some(f64::NAN), "0"),
            (&[5, 7], None, "5 7"),
            (&[5, 7], Some(1.0), "5"),
            (&[], None, "-"),
        ] {
            assert_eq!(chosen(None, None, allowed, quota), expected, "{allowed:?} {quota:?}");
        }
    }

    #[test]
    fn what_was_asked_for_is_what_comes() {
        let four = [0, 1, 2, 3];
        for (shards, list, expected) in [
            (Some(1), None, "0"),
            (Some(4), None, "0 1 2 3"),
            (Some(6), None, "0 1 2 3 - -"),
            (None, Some("2"), "2"),
            (None, Some("3,0-1"), "3 0 1"),
            (Some(1), Some("2-3"), "2"),
            (Some(3), Some("2-3"), "2 3 -"),
        ] {
            // An explicit wish is not cut to the quota.
            assert_eq!(chosen(shards, list, &four, Some(1.0)), expected, "{shards:?} {list:?}");
        }
    }

    #[test]
    fn refusals_say_what_to_write() {
        let some = [0, 1, 2, 5];
        for (shards, list, expected) in [
            (Some(0), None, "0 shards cannot be started"),
            (Some(129), None, "129 shards cannot be started: ask for 1 to 128"),
            (None, Some(""), "`` is no cpu"),
            (None, Some("a"), "`a` is no cpu"),
            (None, Some("1,"), "`` is no cpu"),
            (None, Some("-1"), "`-1` is no cpu"),
            (None, Some("1-"), "`1-` is no cpu"),
            (None, Some("+1"), "`+1` is no cpu"),
            (None, Some("1 "), "`1 ` is no cpu"),
            (None, Some("2-1"), "`2-1` is no cpu"),
            (None, Some("0-1-2"), "`0-1-2` is no cpu"),
            (None, Some("99999999999999999999"), "`99999999999999999999` is no cpu"),
            (None, Some("1,1"), "cpu 1 is named twice"),
            (None, Some("0-2,1-2"), "cpu 1 is named twice"),
            (None, Some("3"), "cpu 3 is not one this process may use: choose from 0-2,5 (its affinity mask)"),
            (None, Some("0-18446744073709551615"), "cpu 3 is not one"),
        ] {
            let text = chosen(shards, list, &some, None);
            assert!(text.starts_with(expected), "{list:?}: {text}");
        }
        assert!(chosen(None, Some("0"), &[], None).ends_with("leave the list out"));
    }

    #[test]
    fn this_process_may_run_somewhere() {
        let allowed = allowed();
        assert!(!allowed.is_empty() && allowed.is_sorted(), "{allowed:?}");
    }
}
