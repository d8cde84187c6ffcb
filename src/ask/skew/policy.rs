//! Kubernetes' version skew policy, as far as it is about apiservers and what talks to them on nodes. Pure.
//!
//! - kube-apiservers of a control plane are within one minor version of each other;
//! - a kubelet is not newer than any kube-apiserver, and at most three minors older (two before v1.25);
//! - a kube-proxy likewise.

use std::fmt;

/// A minor version of Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Minor {
    major: u32,
    minor: u32,
}

impl Minor {
    /// The minor of `v1.36.4-rc.0+build` and the like.
    pub(super) fn parse(version: &str) -> Option<Self> {
        let (major, rest) = version.strip_prefix('v')?.split_once('.')?;
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let is_cut_well = matches!(rest[digits..].chars().next(), None | Some('.' | '-' | '+'));
        let minor = rest[..digits].parse().ok().filter(|_| is_cut_well)?;
        Some(Self { major: major.parse().ok()?, minor })
    }

    /// How many minors older it is; none when it is newer, and no number would do when majors differ.
    fn older_than(self, other: Self) -> u32 {
        if self.major == other.major { other.minor.saturating_sub(self.minor) } else { u32::from(self < other) * u32::MAX }
    }
}

impl fmt::Display for Minor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "v{}.{}", self.major, self.minor)
    }
}

/// A minor version and somebody who has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) minor: Minor,
    pub(super) example: String,
}

/// The first minor that may be three older.
const THREE_SINCE: Minor = Minor { major: 1, minor: 25 };

/// A sentence for everything that is outside the policy. What is unknown is left out by the caller.
pub(super) fn violations(servers: &[Found], kubelets: &[Found], proxies: &[Found]) -> Vec<String> {
    let oldest = servers.iter().min_by_key(|found| found.minor);
    let newest = servers.iter().max_by_key(|found| found.minor);
    let (Some(oldest), Some(newest)) = (oldest, newest) else { return Vec::new() };
    let mut sentences = Vec::new();
    if oldest.minor.older_than(newest.minor) > 1 {
        sentences.push(format!(
            "kube-apiserver {} is {} and {} is {}: they may be one minor version apart at most",
            oldest.example, oldest.minor, newest.example, newest.minor
        ));
    }
    for (component, found) in [("kubelet", kubelets), ("kube-proxy", proxies)] {
        for Found { minor, example } in found {
            let most = if *minor < THREE_SINCE { 2 } else { 3 };
            if *minor > oldest.minor {
                sentences.push(format!(
                    "{component} of {example} is {minor}, newer than kube-apiserver {}, which is {}: upgrade all kube-apiservers first",
                    oldest.example, oldest.minor
                ));
            } else if minor.older_than(newest.minor) > most {
                sentences.push(format!(
                    "{component} of {example} is {minor}, more than {most} minor versions older than kube-apiserver {}, which is {}",
                    newest.example, newest.minor
                ));
            }
        }
    }
    sentences
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_as_they_are_written() {
        for (text, expected) in [
            ("v1.36.0", Some("v1.36")),
            ("v1.36", Some("v1.36")),
            ("v1.33.5-gke.1080000", Some("v1.33")),
            ("v1.36.0-alpha.1+abc", Some("v1.36")),
            ("v1.30+", Some("v1.30")),
            ("1.36.0", None),
            ("v1.x", None),
            ("v1.36x", None),
            ("latest", None),
            ("", None),
        ] {
            assert_eq!(Minor::parse(text).map(|minor| minor.to_string()).as_deref(), expected, "{text}");
        }
    }

    fn found(minors: &[u32]) -> Vec<Found> {
        minors.iter().map(|&minor| Found { minor: Minor { major: 1, minor }, example: format!("n{minor}") }).collect()
    }

    #[test]
    fn the_policy() {
        for (servers, kubelets, proxies, expected) in [
            (&[36][..], &[36][..], &[36][..], &[][..]),
            (&[35, 36], &[35, 34, 33], &[33], &[]),
            (&[35, 36, 35], &[], &[], &[]),
            (&[34, 36], &[], &[], &["kube-apiserver n34 is v1.34 and n36 is v1.36: they may be one minor version apart at most"]),
            (
                &[35, 36],
                &[36],
                &[],
                &["kubelet of n36 is v1.36, newer than kube-apiserver n35, which is v1.35: upgrade all kube-apiservers first"],
            ),
            (&[35, 36], &[], &[36], &["kube-proxy of n36 is v1.36, newer than kube-apiserver n35"]),
            // Three older than one server, four older than the other.
            (&[35, 36], &[32], &[], &["kubelet of n32 is v1.32, more than 3 minor versions older than kube-apiserver n36, which is v1.36"]),
            (&[28], &[25], &[], &[]),
            (&[27], &[24], &[], &["kubelet of n24 is v1.24, more than 2 minor versions older"]),
            (&[26], &[24], &[], &[]),
            (&[34, 36], &[37], &[31], &["kube-apiserver n34", "kubelet of n37", "kube-proxy of n31"]),
            (&[], &[20], &[], &[]),
        ] {
            let sentences = violations(&found(servers), &found(kubelets), &found(proxies));
            assert_eq!(sentences.len(), expected.len(), "{servers:?} {kubelets:?} {proxies:?}: {sentences:?}");
            for (sentence, start) in sentences.iter().zip(expected) {
                assert!(sentence.starts_with(start), "{sentence}");
            }
        }
    }

    #[test]
    fn another_major_is_never_near() {
        let two = Found { minor: Minor { major: 2, minor: 0 }, example: "x".into() };
        assert_eq!(violations(&[found(&[36]), vec![two]].concat(), &[], &[]).len(), 1);
    }
}
