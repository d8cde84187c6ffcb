//! `labelSelector`: which labels an object must have. Pure.
//!
//! Known are `key=value`, `key==value`, `key!=value`, `key` and `!key`, joined by commas; sets (`key in (a, b)`) are not.

use std::collections::BTreeMap;

/// The labels of an object.
pub(super) type Labels = BTreeMap<String, String>;

/// What is asked of the labels; nothing at all by default.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selector(Vec<Requirement>);

#[derive(Debug, Clone, PartialEq, Eq)]
enum Requirement {
    Equal(String, String),
    /// Also of an object without the label, as in Kubernetes.
    NotEqual(String, String),
    Present(String),
    Absent(String),
}

impl Selector {
    /// `None` for what is not known here.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(Requirement::parse).collect::<Option<_>>().map(Self)
    }

    pub(super) fn matches(&self, labels: &Labels) -> bool {
        self.0.iter().all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn parse(part: &str) -> Option<Self> {
        let word = |text: &str| {
            let text = text.trim();
            (!text.contains([' ', '(', ')', '=', '!'])).then(|| text.to_owned())
        };
        let key = |text: &str| word(text).filter(|key| !key.is_empty());
        Some(match (part.split_once("!="), part.split_once('=')) {
            (Some((name, value)), _) => Self::NotEqual(key(name)?, word(value)?),
            (None, Some((name, value))) => Self::Equal(key(name)?, word(value.strip_prefix('=').unwrap_or(value))?),
            (None, None) => match part.strip_prefix('!') {
                Some(name) => Self::Absent(key(name)?),
                None => Self::Present(key(part)?),
            },
        })
    }

    fn matches(&self, labels: &Labels) -> bool {
        match self {
            Self::Equal(key, value) => labels.get(key) == Some(value),
            Self::NotEqual(key, value) => labels.get(key) != Some(value),
            Self::Present(key) => labels.contains_key(key),
            Self::Absent(key) => !labels.contains_key(key),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_choose_by_labels() {
        let labels = Labels::from([("a.io/b".into(), "c".into()), ("d".into(), String::new())]);
        for (text, expected) in [
            ("", true),
            ("a.io/b=c", true),
            ("a.io/b==c", true),
            ("a.io/b=d", false),
            ("a.io/b!=d,d=", true),
            ("a.io/b!=c", false),
            ("e!=f", true),
            ("d", true),
            ("e", false),
            ("!e, d", true),
            ("!d", false),
            ("a.io/b=c,e", false),
        ] {
            assert_eq!(Selector::parse(text).unwrap().matches(&labels), expected, "{text}");
        }
        for unknown in ["a in (b,c)", "=b", "!", "a=b=c"] {
            assert_eq!(Selector::parse(unknown), None, "{unknown}");
        }
    }
}
