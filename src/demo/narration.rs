//! What the upgrade says of itself, one line a step. Pure; no line is longer than 110 columns, unless an error is.

use std::time::Duration;

use super::tally::Tally;

/// What is about to happen.
pub(super) fn opening(ids: &[&str], version: &str, clients: usize) -> String {
    format!(
        "Rolling upgrade of {} to {version}, one after the other. Meanwhile {clients} clients, one for each mvproxy\n\
         and resource, list pods, jobs and mutatingadmissionpolicies. A server that is up has each, so a 404 is wrong:\n\n",
        ids.join(" and ")
    )
}

/// A server was away for a while, which `served` that much of what is asked for.
pub(super) fn stopped(id: &str, version: &str, served: &[&str], away: Duration, tally: &Tally) -> String {
    let mut names: Vec<String> = tally.stand_ins(id, served).iter().map(|(by, count)| format!("{by} ({count})")).collect();
    if names.is_empty() {
        names.push("nobody".to_owned());
    }
    format!("{id} {version} stopped: for {} {} answered for it; {}\n", seconds(away), names.join(", "), counts(tally))
}

/// It is there again, and its proxy has noticed.
pub(super) fn started(id: &str, version: &str, back: Duration, tally: &Tally) -> String {
    format!("{id} {version} started: its mvproxy goes to it again after {}; {}\n", seconds(back), counts(tally))
}

/// All of it.
pub(super) fn closing(total: &Tally, took: Duration) -> String {
    let none = if total.failures == 0 { ", 0 other failures" } else { "" };
    let wrong = total.first_wrong.as_ref().map_or_else(String::new, |first| format!("\nWRONG: the first: {first}"));
    format!("\nUpgraded in {}: {}{none}.{wrong}\n\n", seconds(took), counts(total))
}

/// Failures that are no 404s only where there are some.
fn counts(tally: &Tally) -> String {
    let noun = |count: u64, one: &str| format!("{count} {one}{}", if count == 1 { "" } else { "s" });
    let mut text = format!("{}, {}", noun(tally.requests, "request"), noun(tally.wrong_404s, "wrong 404"));
    if tally.failures > 0 {
        text += &format!(", {}", noun(tally.failures, "other failure"));
    }
    text
}

fn seconds(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(at_a: &[(&str, u64)]) -> Tally {
        let mut tally = Tally::default();
        for &(by, count) in at_a {
            (0..count).for_each(|_| tally.note("cp-a", "pods", Ok((200, by.to_owned()))));
        }
        tally
    }

    #[test]
    fn steps_are_lines() {
        let calm = tally(&[("cp-a", 1), ("cp-b", 3), ("cp-c", 2)]);
        assert_eq!(
            stopped("cp-a", "v1.35.8", &["pods"], Duration::from_millis(1_540), &calm),
            "cp-a v1.35.8 stopped: for 1.5 s cp-b (3), cp-c (2) answered for it; 6 requests, 0 wrong 404s\n"
        );
        assert_eq!(
            started("cp-a", "v1.36.4", Duration::from_millis(260), &calm),
            "cp-a v1.36.4 started: its mvproxy goes to it again after 0.3 s; 6 requests, 0 wrong 404s\n"
        );
        assert_eq!(closing(&calm, Duration::from_secs(6)), "\nUpgraded in 6.0 s: 6 requests, 0 wrong 404s, 0 other failures.\n\n");
        for (served, tally) in [(&["pods"], tally(&[])), (&["jobs"], calm)] {
            assert!(stopped("cp-a", "v1", served, Duration::ZERO, &tally).contains("nobody answered"));
        }
    }

    #[test]
    fn what_went_wrong_is_called_out() {
        let mut bad = tally(&[("cp-b", 1)]);
        bad.note("cp-a", "jobs", Ok((404, "cp-a".into())));
        bad.note("cp-b", "pods", Ok((503, String::new())));
        let text = closing(&bad, Duration::from_secs(1));
        assert!(text.contains("3 requests, 1 wrong 404, 1 other failure.\nWRONG: the first: jobs at cp-a: 404\n"), "{text}");
        let text = started("cp-a", "v1.36.4", Duration::from_secs(1), &bad);
        assert!(text.ends_with("; 3 requests, 1 wrong 404, 1 other failure\n"), "{text}");
    }

    #[test]
    fn lines_are_short_enough() {
        let busy = tally(&[("cp-b", 99_999), ("cp-c", 99_999)]);
        let text = [
            opening(&["cp-a", "cp-b"], "v1.36.4", 9),
            stopped("cp-a", "v1.35.8", &["pods"], Duration::from_secs(2), &busy),
            started("cp-a", "v1.36.4", Duration::from_secs(2), &busy),
            closing(&busy, Duration::from_secs(20)),
        ];
        for line in text.iter().flat_map(|text| text.lines()) {
            assert!(line.chars().count() <= 110, "{line}");
        }
    }
}
