//! Dates and ids as the API writes them. The functions of time are pure: the seconds come in.

use std::hash::{BuildHasher, RandomState};
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970 now.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The form of the `date` header (RFC 9110 §5.6.7): `Thu, 01 Jan 1970 00:00:00 GMT`.
pub(super) fn http_date(seconds: u64) -> String {
    const DAYS: [&str; 7] = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"];
    const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let civil = Civil::from_seconds(seconds);
    let weekday = DAYS[(seconds / 86_400 % 7) as usize];
    let month = MONTHS[((civil.month - 1) % 12) as usize];
    format!("{weekday}, {:02} {month} {} {} GMT", civil.day, civil.year, civil.time)
}

/// The form of `creationTimestamp` (RFC 3339): `1970-01-01T00:00:00Z`.
pub(super) fn timestamp(seconds: u64) -> String {
    let civil = Civil::from_seconds(seconds);
    format!("{}-{:02}-{:02}T{}Z", civil.year, civil.month, civil.day, civil.time)
}

/// Now in the form of `renewTime`: `1970-01-01T00:00:00.000000Z`.
pub(super) fn micro_time_now() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    micro_time(since.as_secs(), since.subsec_micros())
}

fn micro_time(seconds: u64, micros: u32) -> String {
    let timestamp = timestamp(seconds);
    format!("{}.{micros:06}Z", timestamp.trim_end_matches('Z'))
}

/// A new id in the form of a version 4 UUID; unique, not secret.
pub(super) fn uuid() -> String {
    // Every `RandomState` has keys of its own, seeded by the operating system.
    let [a, b] = [0u8, 1].map(|salt| RandomState::new().hash_one(salt));
    let (head, tail) = (a >> 32, a & 0xffff_ffff);
    format!("{head:08x}-{:04x}-4{:03x}-{:04x}-{:012x}", tail >> 16, tail & 0xfff, 0x8000 | (b >> 48) & 0x3fff, b & 0xffff_ffff_ffff)
}

struct Civil {
    year: u64,
    month: u64,
    day: u64,
    time: String,
}

impl Civil {
    /// The Gregorian calendar with years that begin in March, so that the leap day is the last day of one.
    fn from_seconds(seconds: u64) -> Self {
        let (days, second) = (seconds / 86_400 + 719_468, seconds % 86_400);
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let march_month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * march_month + 2) / 5 + 1;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        let year = 400 * era + year_of_era + u64::from(month <= 2);
        let time = format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60);
        Self { year, month, day, time }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right() {
        let table = [
            (0, "Thu, 01 Jan 1970 00:00:00 GMT", "1970-01-01T00:00:00Z"),
            (951_782_400, "Tue, 29 Feb 2000 00:00:00 GMT", "2000-02-29T00:00:00Z"),
            (1_735_689_599, "Tue, 31 Dec 2024 23:59:59 GMT", "2024-12-31T23:59:59Z"),
            (4_107_542_400, "Mon, 01 Mar 2100 00:00:00 GMT", "2100-03-01T00:00:00Z"),
        ];
        for (seconds, http, rfc3339) in table {
            assert_eq!(http_date(seconds), http);
            assert_eq!(timestamp(seconds), rfc3339);
        }
        assert_eq!(micro_time(951_782_400, 42), "2000-02-29T00:00:00.000042Z");
    }

    #[test]
    fn uuids_have_the_form_and_differ() {
        let id = uuid();
        let lengths: Vec<usize> = id.split('-').map(str::len).collect();
        assert_eq!(lengths, [8, 4, 4, 4, 12], "{id}");
        assert_eq!(&id[14..15], "4");
        assert_ne!(id, uuid());
    }
}
