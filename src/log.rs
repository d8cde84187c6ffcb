//! Log lines on stderr in the forms kube-apiserver's have (klog), so that what reads those reads these.
//!
//! As text, `I1116 05:14:02.123456    1234 serve.rs:10] message`: severity, month and day, time (UTC), process, place in the source. As JSON,
//! `{"ts":1763270042123.456,"caller":"src/serve.rs:10","msg":"message","v":0}`: time in milliseconds; errors have no `v`.

use std::backtrace::BacktraceStatus;
use std::fmt;
use std::io::Write;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Said once, at start.
static IS_JSON: AtomicBool = AtomicBool::new(false);
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// The form of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Text,
    Json,
}

/// From now on lines have this form.
pub(crate) fn set_format(format: Format) {
    IS_JSON.store(format == Format::Json, Ordering::Relaxed);
}

/// From now on only errors are said: the demo tells its own story, and that servers go away is part of it.
pub(crate) fn set_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Says what happened.
#[track_caller]
pub(crate) fn info(message: impl fmt::Display) {
    write(Severity::Info, Location::caller(), &message);
}

/// Says what somebody should look at.
#[track_caller]
pub(crate) fn warning(message: impl fmt::Display) {
    write(Severity::Warning, Location::caller(), &message);
}

/// Says what failed.
#[track_caller]
pub(crate) fn error(message: impl fmt::Display) {
    write(Severity::Error, Location::caller(), &message);
}

/// Says why the program ends: a line for people, unless something else reads the lines.
#[track_caller]
pub(crate) fn end(failure: impl fmt::Display) {
    if IS_JSON.load(Ordering::Relaxed) {
        write(Severity::Error, Location::caller(), &failure);
    } else {
        eprintln!("{failure}");
    }
}

/// From now on a panic is a line like the others; with RUST_BACKTRACE set, a long one.
pub(crate) fn take_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let backtrace = std::backtrace::Backtrace::capture();
        let trace = if backtrace.status() == BacktraceStatus::Captured { format!("\n{backtrace}") } else { String::new() };
        let thread = std::thread::current();
        let message = panic.payload_as_str().unwrap_or("no message");
        let line = format!("thread {} panicked: {message}{trace}", thread.name().unwrap_or("without a name"));
        write(Severity::Error, panic.location().unwrap_or(Location::caller()), &line);
    }));
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Severity {
    Info,
    Warning,
    Error,
}

fn write(severity: Severity, place: &Location<'_>, message: &dyn fmt::Display) {
    if severity != Severity::Error && IS_QUIET.load(Ordering::Relaxed) {
        return;
    }
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let stamp = Stamp { seconds: since_epoch.as_secs(), micros: since_epoch.subsec_micros() };
    let place = (place.file(), place.line());
    let line = if IS_JSON.load(Ordering::Relaxed) {
        json_line(severity, &stamp, place, &message.to_string())
    } else {
        text_line(severity, &stamp, place, message)
    };
    // One write, so that lines of several threads do not mix; with stderr gone there is nobody to tell.
    drop(std::io::stderr().write_all(line.as_bytes()));
}

fn text_line(severity: Severity, stamp: &Stamp, (file, line): (&str, u32), message: &dyn fmt::Display) -> String {
    let severity = match severity {
        Severity::Info => 'I',
        Severity::Warning => 'W',
        Severity::Error => 'E',
    };
    let file = file.rsplit('/').next().unwrap_or_default();
    format!("{severity}{stamp} {:>7} {file}:{line}] {message}\n", std::process::id())
}

fn json_line(severity: Severity, stamp: &Stamp, (file, line): (&str, u32), message: &str) -> String {
    let ts = format!("{}.{:03}", stamp.seconds * 1_000 + u64::from(stamp.micros / 1_000), stamp.micros % 1_000);
    let start = file.rmatch_indices('/').nth(1).map_or(0, |(at, _)| at + 1);
    let caller = serde_json::Value::from(format!("{}:{line}", &file[start..]));
    let level = if severity == Severity::Error { "" } else { r#","v":0"# };
    format!("{{\"ts\":{ts},\"caller\":{caller},\"msg\":{}{level}}}\n", serde_json::Value::from(message))
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
    use super::*;

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

    #[test]
    fn lines_have_klogs_form() {
        let stamp = Stamp { seconds: 951_782_400, micros: 123_045 };
        let text = text_line(Severity::Warning, &stamp, ("src/live/x.rs", 7), &"hm");
        assert!(text.starts_with("W0229 00:00:00.123045 ") && text.ends_with(" x.rs:7] hm\n"), "{text}");
        assert_eq!(
            json_line(Severity::Info, &stamp, ("src/live/x.rs", 7), "a \"b\"\n"),
            "{\"ts\":951782400123.045,\"caller\":\"live/x.rs:7\",\"msg\":\"a \\\"b\\\"\\n\",\"v\":0}\n"
        );
        assert_eq!(
            json_line(Severity::Error, &stamp, ("x.rs", 7), "oh"),
            "{\"ts\":951782400123.045,\"caller\":\"x.rs:7\",\"msg\":\"oh\"}\n"
        );
    }
}
