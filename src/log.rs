//! Log lines on stderr in the form kube-apiserver's have (klog), so that what reads those reads these.
//!
//! `I1116 05:14:02.123456    1234 serve.rs:10] message`: severity, month and day, time (UTC), process, place in the source.

use std::fmt;
use std::io::Write;
use std::panic::Location;
use std::time::{SystemTime, UNIX_EPOCH};

/// Says what happened.
#[track_caller]
pub(crate) fn info(message: impl fmt::Display) {
    write('I', Location::caller(), &message);
}

/// Says what somebody should look at.
#[track_caller]
pub(crate) fn warning(message: impl fmt::Display) {
    write('W', Location::caller(), &message);
}

/// Says what failed.
#[track_caller]
pub(crate) fn error(message: impl fmt::Display) {
    write('E', Location::caller(), &message);
}

fn write(severity: char, place: &Location<'_>, message: &dyn fmt::Display) {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let file = place.file().rsplit('/').next().unwrap_or_default();
    let stamp = Stamp { seconds: since_epoch.as_secs(), micros: since_epoch.subsec_micros() };
    let line = format!("{severity}{stamp} {:>7} {file}:{}] {message}\n", std::process::id(), place.line());
    // One write, so that lines of several threads do not mix; with stderr gone there is nobody to tell.
    drop(std::io::stderr().write_all(line.as_bytes()));
}

/// A moment as `1116 05:14:02.123456`.
struct Stamp {
    seconds: u64,
    micros: u32,
}

impl fmt::Display for Stamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.seconds / 86_400, self.seconds % 86_400);
        // Years are counted from March, so that the leap day is the last of one: 719,468 days lie between 0000-03-01 and
        // 1970-01-01, and 146,097 are 400 years.
        let day = (days + 719_468) % 146_097;
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        write!(f, "{month:02}{day:02} {:02}:{:02}:{:02}.{:06}", second / 3_600, second / 60 % 60, second % 60, self.micros)
    }
}

#[cfg(test)]
mod tests {
    use super::Stamp;

    #[test]
    fn stamps_are_calendar_days_and_times() {
        for (seconds, micros, expected) in [
            (0, 0, "0101 00:00:00.000000"),
            (951_782_399, 999_999, "0228 23:59:59.999999"),
            (951_782_400, 5, "0229 00:00:00.000005"),
            (1_767_225_599, 120_000, "1231 23:59:59.120000"),
            (4_107_542_400, 0, "0301 00:00:00.000000"),
        ] {
            assert_eq!(Stamp { seconds, micros }.to_string(), expected);
        }
    }
}
