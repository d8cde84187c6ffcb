//! What clients were told while servers came and went. Pure.

use std::collections::BTreeMap;

/// Answers, counted. All requests are for resources that some server serves all the time, so every 404 is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tally {
    pub(super) requests: u64,
    pub(super) wrong_404s: u64,
    /// Whatever else is not 200 from a server that says who it is.
    pub(super) failures: u64,
    /// The first of both.
    pub(super) first_wrong: Option<String>,
    /// Successes by the site whose proxy was asked, what for, and the server that answered.
    answered: BTreeMap<(&'static str, &'static str, String), u64>,
}

impl Tally {
    /// Counts one request: what was asked for at which site, and the status with the server that answered, or why there is none.
    pub(super) fn note(&mut self, asked: &'static str, title: &'static str, outcome: Result<(u16, String), String>) {
        self.requests += 1;
        let wrong = match outcome {
            Ok((200, by)) if !by.is_empty() => {
                *self.answered.entry((asked, title, by)).or_default() += 1;
                return;
            }
            Ok((404, _)) => {
                self.wrong_404s += 1;
                "404".to_owned()
            }
            Ok((status, _)) => {
                self.failures += 1;
                status.to_string()
            }
            Err(error) => {
                self.failures += 1;
                error
            }
        };
        self.first_wrong.get_or_insert_with(|| format!("{title} at {asked}: {wrong}"));
    }

    /// Adds what was counted later.
    pub(super) fn add(&mut self, later: Self) {
        self.requests += later.requests;
        self.wrong_404s += later.wrong_404s;
        self.failures += later.failures;
        self.first_wrong = self.first_wrong.take().or(later.first_wrong);
        for (key, count) in later.answered {
            *self.answered.entry(key).or_default() += count;
        }
    }

    /// Who answered for the server of a site what it serves itself, `served`, and how often.
    pub(super) fn stand_ins(&self, asked: &str, served: &[&str]) -> BTreeMap<&str, u64> {
        let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
        for ((site, title, by), count) in &self.answered {
            if *site == asked && by != asked && served.contains(title) {
                *counts.entry(&**by).or_default() += count;
            }
        }
        counts
    }

    /// Was every request answered as it should be?
    pub(super) fn is_right(&self) -> bool {
        self.requests > 0 && self.wrong_404s == 0 && self.failures == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_told_apart() {
        let mut tally = Tally::default();
        assert!(!tally.is_right(), "nothing was asked");
        for (title, by) in [("pods", "cp-b"), ("pods", "cp-a"), ("nodes", "cp-b"), ("pods", "cp-c"), ("jobs", "cp-b")] {
            tally.note("cp-a", title, Ok((200, by.into())));
        }
        assert!(tally.is_right());
        // Jobs are not answered in place of a server that has none.
        assert_eq!(tally.stand_ins("cp-a", &["pods", "nodes"]), BTreeMap::from([("cp-b", 2), ("cp-c", 1)]));
        assert!(tally.stand_ins("cp-b", &["pods"]).is_empty());
        for (outcome, counts) in [
            (Ok((404, "cp-a".to_owned())), (1, 0)),
            (Ok((503, String::new())), (1, 1)),
            (Err("reset".to_owned()), (1, 2)),
            (Ok((200, String::new())), (1, 3)),
        ] {
            tally.note("cp-a", "jobs", outcome);
            assert_eq!((tally.wrong_404s, tally.failures), counts);
        }
        assert_eq!((tally.requests, tally.first_wrong.as_deref(), tally.is_right()), (9, Some("jobs at cp-a: 404"), false));
    }

    #[test]
    fn counts_are_added() {
        let mut all = Tally::default();
        for wrong in [None, Some("503"), Some("other")] {
            let mut later = Tally::default();
            later.note("cp-b", "pods", wrong.map_or_else(|| Ok((200, "cp-c".to_owned())), |why| Err(why.to_owned())));
            all.add(later);
        }
        assert_eq!((all.requests, all.failures, all.first_wrong.as_deref()), (3, 2, Some("pods at cp-b: 503")));
        assert_eq!(all.stand_ins("cp-b", &["pods"]), BTreeMap::from([("cp-c", 1)]));
    }
}
