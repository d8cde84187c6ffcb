//! The `--config` file: flags of `mvproxy serve` in YAML, for those who keep them in a repository.
//!
//! ```yaml
//! apiVersion: mvproxy.io/v1alpha1
//! kind: ProxyConfiguration
//! securePort: 6443
//! peerEndpoint: {cp-b: "10.0.0.6:6443"}
//! ```
//!
//! What always holds: a key is a flag, in lowerCamelCase or as the flag is spelled, and means what it means; a key that is none is an error;
//! what the command line says wins, also over a key that cannot be used with it; of feature gates each for itself. The file becomes arguments, so that the same code judges both.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgAction};
use serde::Deserialize;
use serde_saphyr::{DefaultMessageFormatter, MessageFormatter};

use crate::failure::Failure;
use crate::files::{self, Named};

const API_VERSION: &str = "mvproxy.io/v1alpha1";
const KIND: &str = "ProxyConfiguration";
const FLAG: &str = "--config";
/// The flag without a long name.
const VERBOSITY: &str = "v";
/// The flag that is a set of values, each with a name.
const GATES: &str = "feature-gates";

/// A value as it is written.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Value {
    One(Scalar),
    Many(Vec<Scalar>),
    /// `NAME=VALUE` for each, as feature gates are written in other Kubernetes files.
    Named(BTreeMap<String, Scalar>),
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Scalar {
    Bool(bool),
    Number(i64),
    Text(String),
}

impl std::fmt::Display for Scalar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Bool(value) => value.fmt(f),
            Self::Number(value) => value.fmt(f),
            Self::Text(value) => value.fmt(f),
        }
    }
}

/// The file that the command line names.
pub(super) fn named(arguments: &[OsString]) -> Option<PathBuf> {
    let mut rest = arguments.iter().skip(1);
    if rest.next()? != "serve" {
        return None;
    }
    while let Some(argument) = rest.next() {
        let text = argument.to_str().unwrap_or_default();
        if text == FLAG {
            return rest.next().map(Into::into);
        }
        if let Some(path) = text.strip_prefix(FLAG).and_then(|rest| rest.strip_prefix('=')) {
            return Some(path.into());
        }
    }
    None
}

/// Adds what the file says, and the command line does not, to the command line. `serve` is the command's definition.
pub(super) fn merge(arguments: &mut Vec<OsString>, path: &Path, serve: &clap::Command) -> Result<(), Failure> {
    let file = Named { flag: FLAG, path };
    let text = files::text(file)?;
    let added = read(&text, arguments, serve).map_err(|why| file.refused(why))?;
    // Behind the command's name, in front of its flags: of two values for one gate the last one counts.
    arguments.splice(2..2, added.into_iter().map(Into::into));
    Ok(())
}

fn read(text: &str, given: &[OsString], serve: &clap::Command) -> Result<Vec<String>, String> {
    let options = serde_saphyr::options! { with_snippet: false, budget: serde_saphyr::budget! { max_documents: 1 } };
    let mut keys: BTreeMap<String, Value> = serde_saphyr::from_str_with_options(text, options).map_err(|error| {
        let line = error.location().map_or_else(String::new, |at| format!("line {}: ", at.line()));
        let message = DefaultMessageFormatter.format_message(&error);
        let message = message.lines().next().unwrap_or_default();
        format!("{line}not a configuration: {message}: write `KEY: VALUE` with flags as keys")
    })?;
    for (key, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = keys.remove(key);
        if !matches!(&found, Some(Value::One(Scalar::Text(value))) if value == expected) {
            return Err(format!("`{key}` is missing or another one: write `{key}: {expected}`"));
        }
    }
    let mut added = Vec::new();
    for (key, value) in keys {
        if key == VERBOSITY {
            added.extend(verbosity(&value, given)?);
            continue;
        }
        let flag = find(&key, serve)?;
        let is_won = is_given(flag, given) && flag.get_long() != Some(GATES);
        if !is_won && !is_excluded(flag, given, serve) {
            added.extend(arguments_of(&key, flag, value)?);
        }
    }
    Ok(added)
}

/// The flag that a key is.
fn find<'a>(key: &str, serve: &'a clap::Command) -> Result<&'a Arg, String> {
    let wanted = flag_name(key);
    let flags = || serve.get_arguments().filter(|arg| arg.get_long().is_some_and(|long| !["config", "help"].contains(&long)));
    if let Some(flag) = flags().find(|flag| names(flag).any(|name| name == wanted)) {
        return Ok(flag);
    }
    let nearest = flags().flat_map(names).min_by_key(|name| distance(name, &wanted));
    let hint = nearest
        .filter(|name| distance(name, &wanted) <= wanted.len() / 2)
        .map_or_else(|| "keys are the flags of 'mvproxy serve --help'".to_owned(), |name| format!("did you mean `{}`?", key_name(name)));
    Err(format!("unknown key `{}`: {hint}", key.escape_debug()))
}

fn names(flag: &Arg) -> impl Iterator<Item = &str> {
    flag.get_long().into_iter().chain(flag.get_all_aliases().into_iter().flatten())
}

/// Does the command line have it?
fn is_given(flag: &Arg, given: &[OsString]) -> bool {
    let is_it = |argument: &str| {
        let name = argument.split_once('=').map_or(argument, |(name, _)| name);
        name.strip_prefix("--").is_some_and(|name| names(flag).any(|own| own == name))
    };
    given.iter().any(|argument| argument.to_str().is_some_and(is_it))
}

/// Does the command line have a flag that this one cannot be used with? It would be an error, and the command line wins.
fn is_excluded(flag: &Arg, given: &[OsString], serve: &clap::Command) -> bool {
    let excludes = |one: &Arg, other: &Arg| serve.get_arg_conflicts_with(one).iter().any(|found| found.get_id() == other.get_id());
    // clap knows it of one of the two only.
    serve.get_arguments().any(|other| (excludes(flag, other) || excludes(other, flag)) && is_given(other, given))
}

fn arguments_of(key: &str, flag: &Arg, value: Value) -> Result<Vec<String>, String> {
    let long = flag.get_long().unwrap_or_default();
    let values = match value {
        Value::One(value) => vec![value.to_string()],
        Value::Many(_) | Value::Named(_) if !matches!(flag.get_action(), ArgAction::Append) => {
            return Err(format!("`{key}` takes one value, not several"));
        }
        Value::Many(values) => values.iter().map(ToString::to_string).collect(),
        Value::Named(values) => values.iter().map(|(name, value)| format!("{name}={value}")).collect(),
    };
    Ok(values.into_iter().map(|value| format!("--{long}={value}")).collect())
}

fn verbosity(value: &Value, given: &[OsString]) -> Result<Option<String>, String> {
    let level = match value {
        Value::One(Scalar::Number(level)) => usize::try_from(*level).ok().filter(|level| *level <= 9),
        _ => None,
    };
    let level = level.ok_or_else(|| format!("`{VERBOSITY}` is a number from 0 to 9"))?;
    let is_given = given.iter().any(|argument| argument.to_str().is_some_and(|text| text.starts_with("-v")));
    Ok((level > 0 && !is_given).then(|| format!("-{}", VERBOSITY.repeat(level))))
}

/// `securePort` or `secure-port` -> `secure-port`.
fn flag_name(key: &str) -> String {
    key.chars().fold(String::new(), |mut name, c| {
        if c.is_ascii_uppercase() {
            name.push('-');
        }
        name.push(c.to_ascii_lowercase());
        name
    })
}

/// `secure-port` -> `securePort`.
fn key_name(flag: &str) -> String {
    let mut words = flag.split('-');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |mut key, word| {
        let (initial, rest) = word.split_at(word.len().min(1));
        key += &initial.to_ascii_uppercase();
        key += rest;
        key
    })
}

/// How many letters have to be changed, added or left out to make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let change = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// What a file with these lines adds to that command line.
    fn added(lines: &str, given: &str) -> Result<Vec<String>, String> {
        let command = super::super::Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let given: Vec<OsString> = given.split_whitespace().map(Into::into).collect();
        read(&format!("apiVersion: {API_VERSION}\nkind: {KIND}\n{lines}\n"), &given, serve)
    }

    #[test]
    fn keys_are_flags() {
        for (line, expected) in [
            ("securePort: 6443", &["--secure-port=6443"][..]),
            ("secure-port: 6443", &["--secure-port=6443"]),
            ("http2MaxStreamsPerConnection: 7", &["--http2-max-streams-per-connection=7"]),
            ("peerAdvertiseAddress: 10.0.0.1", &["--peer-advertise-ip=10.0.0.1"]),
            ("peerCidr: [10.0.0.0/8, fd00::/8]", &["--peer-cidr=10.0.0.0/8", "--peer-cidr=fd00::/8"]),
            ("featureGates: {A: true, B: false}", &["--feature-gates=A=true", "--feature-gates=B=false"]),
            ("peerEndpoint: {cp-b: \"10.0.0.6:6443\"}", &["--peer-endpoint=cp-b=10.0.0.6:6443"]),
            ("v: 2", &["-vv"]),
            ("v: 0", &[]),
            ("", &[]),
        ] {
            assert_eq!(added(line, "mvproxy serve").unwrap(), expected, "{line}");
        }
    }

    #[test]
    fn the_command_line_wins() {
        let lines = "securePort: 1\npeerAdvertiseIp: 10.0.0.1\nv: 2\nshards: 2";
        let added = |given| added(lines, given).unwrap();
        assert_eq!(added("mvproxy serve --secure-port 2 --peer-advertise-address=10.0.0.2 -v"), ["--shards=2"]);
        assert_eq!(added("mvproxy serve --secure-port=2 --shards=1"), ["--peer-advertise-ip=10.0.0.1", "-vv"]);
    }

    #[test]
    fn gates_of_both_count_and_those_of_the_command_line_win() {
        let gates = |given: &str| {
            let path = std::env::temp_dir().join(format!("mvproxy-gates-{}.yaml", std::process::id()));
            let gate = "UnknownVersionInteroperabilityProxy";
            std::fs::write(&path, format!("apiVersion: {API_VERSION}\nkind: {KIND}\nfeatureGates: {{{gate}: false}}\n")).unwrap();
            let mut arguments: Vec<OsString> = ["mvproxy", "serve", given].map(Into::into).into();
            let command = super::super::Cli::command();
            merge(&mut arguments, &path, command.find_subcommand("serve").unwrap()).unwrap();
            std::fs::remove_file(path).unwrap();
            let arguments = arguments.iter().map(|argument| argument.to_str().unwrap()).collect::<Vec<_>>().join(" ");
            arguments.replace(gate, "GATE")
        };
        assert_eq!(gates("--feature-gates=Other=true"), "mvproxy serve --feature-gates=GATE=false --feature-gates=Other=true");
        let won = "--feature-gates=UnknownVersionInteroperabilityProxy=true";
        assert_eq!(gates(won), "mvproxy serve --feature-gates=GATE=false --feature-gates=GATE=true");
    }

    #[test]
    fn the_command_line_wins_over_what_it_excludes() {
        for (lines, given, expected) in [
            ("staticRoutes: r\nshards: 2", "--kubeconfig k", &["--shards=2"][..]),
            ("kubeconfig: k\nshards: 2", "--static-routes=r", &["--shards=2"]),
            // Both in the file are one mistake in one place.
            ("kubeconfig: k\nstaticRoutes: r", "", &["--kubeconfig=k", "--static-routes=r"]),
        ] {
            assert_eq!(added(lines, &format!("mvproxy serve {given}")).unwrap(), expected, "{lines} {given}");
        }
    }

    #[test]
    fn what_is_no_flag_is_an_error() {
        for (line, expected) in [
            ("securePrt: 1", "unknown key `securePrt`: did you mean `securePort`?"),
            ("tlsCertfile: x", "unknown key `tlsCertfile`: did you mean `tlsCertFile`?"),
            ("quux: 1", "unknown key `quux`: keys are the flags of 'mvproxy serve --help'"),
            ("config: x", "unknown key `config`: "),
            ("securePort: [1, 2]", "`securePort` takes one value, not several"),
            ("v: loud", "`v` is a number from 0 to 9"),
            ("securePort: 1\nsecurePort: 2", "line 4: not a configuration: "),
        ] {
            let error = added(line, "mvproxy serve").unwrap_err();
            assert!(error.starts_with(expected), "{line}: {error}");
        }
        let command = super::super::Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        for (text, expected) in [
            ("kind: ProxyConfiguration", "`apiVersion` is missing or another one: write `apiVersion: mvproxy.io/v1alpha1`"),
            ("apiVersion: mvproxy.io/v1alpha1\nkind: Pod", "`kind` is missing or another one: write `kind: ProxyConfiguration`"),
            ("- a", "line 1: not a configuration: "),
        ] {
            let error = read(text, &[], serve).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
    }

    #[test]
    fn the_file_is_found() {
        let named = |line: &str| named(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(named("mvproxy serve --shards 1 --config=a.yaml"), Some("a.yaml".into()));
        assert_eq!(named("mvproxy serve --config a.yaml"), Some("a.yaml".into()));
        assert_eq!(named("mvproxy serve --config"), None);
        assert_eq!(named("mvproxy demo --config a.yaml"), None);
    }

    #[test]
    fn names_go_both_ways() {
        for (key, flag) in [("securePort", "secure-port"), ("shards", "shards"), ("http2MaxStreams", "http2-max-streams")] {
            assert_eq!((flag_name(key), key_name(flag)), (flag.to_owned(), key.to_owned()));
        }
        assert_eq!((distance("kitten", "sitting"), distance("", "ab"), distance("ab", "ab")), (3, 2, 0));
    }
}
