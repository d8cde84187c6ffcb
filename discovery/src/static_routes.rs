//! Routes from a file, for clusters without live discovery, for tests and for the demo.
//!
//! ```yaml
//! local: cp-a
//! servers:
//! - id: cp-a
//!   address: 127.0.0.1:6444
//!   serves:
//!   - {group: "", version: v1, resources: [configmaps, pods]}
//! - id: cp-b
//!   address: 127.0.0.1:7444
//!   serves:
//!   - {group: batch, version: v1, resources: [jobs]}
//! ```
//!
//! What always holds: a file is taken whole or not at all, and what it does not mean to say is an error: no
//! key is ignored, no name is guessed. Every error is one line with the cause, the fix and, where there is one, the line.
//!
//! It does not read the file, and it does not watch it: the caller does.

use std::fmt;
use std::net::SocketAddr;

use serde::Deserialize;
use serde_saphyr::{DefaultMessageFormatter, Error as YamlError, MessageFormatter, Spanned};

use crate::{BuildError, Gvr, Server, ServerId, ServerIndex, ServerSet, Snapshot, SnapshotBuilder};

/// The largest file taken: 9 servers with 10,000 GVRs each stay below it.
pub const TEXT_MAX: usize = 4 << 20;

/// A snapshot of generation 1 from the text of a routing file.
pub fn parse(text: &str) -> Result<Snapshot, RoutesError> {
    if text.len() > TEXT_MAX {
        let message = format!("the file has more than {TEXT_MAX} bytes: list fewer resources");
        return Err(RoutesError::new(None, message));
    }
    let options = serde_saphyr::options! {
        with_snippet: false,
        // The size of the text is the limit; these only must not come before it.
        budget: serde_saphyr::budget! { max_nodes: TEXT_MAX, max_events: TEXT_MAX, max_documents: 1 },
    };
    let file: RoutesFile = serde_saphyr::from_str_with_options(text, options).map_err(yaml_error)?;
    build(&file)
}

/// Why a routing file was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutesError {
    line: Option<u64>,
    message: String,
}

impl RoutesError {
    fn new(line: Option<u64>, message: String) -> Self {
        Self { line, message }
    }

    /// An error about one value of the file.
    fn at<T>(value: &Spanned<T>, message: String) -> Self {
        Self::new(Some(value.defined.line()), message)
    }

    /// The line at fault, counted from 1, where one is.
    pub fn line(&self) -> Option<u64> {
        self.line
    }
}

impl fmt::Display for RoutesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        f.write_str(&self.message)
    }
}

impl std::error::Error for RoutesError {}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RoutesFile {
    local: Spanned<String>,
    servers: Vec<ServerEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServerEntry {
    id: Spanned<String>,
    address: Spanned<String>,
    serves: Vec<ServesEntry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ServesEntry {
    group: Spanned<String>,
    version: Spanned<String>,
    resources: Spanned<Vec<Spanned<String>>>,
}

fn build(file: &RoutesFile) -> Result<Snapshot, RoutesError> {
    let mut builder = SnapshotBuilder::new(1);
    let mut local = None;
    for entry in &file.servers {
        let index = add_server(&mut builder, entry)?;
        if entry.id.value == file.local.value {
            local = Some(index);
        }
        for serves in &entry.serves {
            add_resources(&mut builder, serves, index)?;
        }
    }
    let Some(local) = local else {
        let message = format!("`local` is `{}`, which is no server's id: name one of `servers`", file.local.value);
        return Err(RoutesError::at(&file.local, message));
    };
    builder.local(local);
    builder.build().map_err(|error| RoutesError::new(None, error.to_string()))
}

fn add_server(builder: &mut SnapshotBuilder, entry: &ServerEntry) -> Result<ServerIndex, RoutesError> {
    let id = &entry.id;
    if id.value.is_empty() {
        return Err(RoutesError::at(id, "`id` is empty: give the server a name".to_owned()));
    }
    let address: SocketAddr = entry.address.value.parse().map_err(|_| {
        let message = format!(
            "address `{}` is not IP:PORT: write the address itself, not a host name, for example 10.0.0.1:6443 or [fd00::1]:6443",
            entry.address.value.escape_debug()
        );
        RoutesError::at(&entry.address, message)
    })?;
    if address.port() == 0 {
        let message = format!("address {address} has port 0: write the port the server listens on");
        return Err(RoutesError::at(&entry.address, message));
    }
    let server = Server::new(ServerId::new(&id.value), address);
    builder.server(server).map_err(|error| match error {
        BuildError::DuplicateAddress(_) => RoutesError::at(&entry.address, format!("{error}: correct one of them")),
        BuildError::DuplicateId(_) => RoutesError::at(id, format!("{error}: rename one of them")),
        _ => RoutesError::at(id, format!("{error}: remove some")),
    })
}

fn add_resources(builder: &mut SnapshotBuilder, entry: &ServesEntry, by: ServerIndex) -> Result<(), RoutesError> {
    if entry.version.value.is_empty() {
        return Err(RoutesError::at(&entry.version, "`version` is empty: write for example `v1`".to_owned()));
    }
    if entry.resources.value.is_empty() {
        let message = "`resources` is empty: list resources or remove the entry".to_owned();
        return Err(RoutesError::at(&entry.resources, message));
    }
    for name in [&entry.group, &entry.version] {
        if name.value.contains('/') {
            let message = format!("`{}` contains `/`: write group and version apart", name.value.escape_debug());
            return Err(RoutesError::at(name, message));
        }
    }
    for resource in &entry.resources.value {
        if resource.value.is_empty() {
            return Err(RoutesError::at(resource, "a resource is empty: write for example `pods`".to_owned()));
        }
        if resource.value.contains('/') {
            let message = format!("`{}` contains `/`: subresources follow their resource, leave them out", resource.value.escape_debug());
            return Err(RoutesError::at(resource, message));
        }
        let gvr = Gvr::new(&entry.group.value, &entry.version.value, &resource.value);
        builder.serve(&gvr, ServerSet::only(by)).map_err(|error| RoutesError::at(resource, format!("{error}: shorten or remove it")))?;
    }
    Ok(())
}

/// The parser's errors in our words; those that a typing mistake does not cause keep the parser's.
fn yaml_error(error: YamlError) -> RoutesError {
    let message = match &error {
        YamlError::SerdeUnknownField { field, expected, .. } => {
            format!("unknown key `{}`: use {}", field.escape_debug(), expected.join(", "))
        }
        YamlError::SerdeMissingField { field: field @ "local", .. } => {
            format!("key `{field}` is missing: add `local: ` and the id of the server behind this proxy")
        }
        YamlError::SerdeMissingField { field, .. } => format!("key `{field}` is missing: add it"),
        YamlError::DuplicateMappingKey { key, .. } => {
            let key = key.as_deref().unwrap_or_default();
            format!("key `{}` is given twice: remove one", key.escape_debug())
        }
        YamlError::Eof { .. } => "the file is empty or ends too early: write `local` and `servers`".to_owned(),
        other => {
            let message = DefaultMessageFormatter.format_message(other);
            let line = message.lines().next().unwrap_or_default();
            format!("not a routing file: {line}: compare it with the example in the manual")
        }
    };
    RoutesError::new(error.location().map(|location| location.line()), message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Name;

    const GOOD: &str = r#"
local: cp-a
servers:
- id: cp-a
  address: 127.0.0.1:6444
  serves:
  - {group: "", version: v1, resources: [configmaps, pods]}
- id: cp-b
  address: "[::1]:7444"
  serves:
  - {group: batch, version: v1, resources: [jobs]}
  - {group: "", version: v1, resources: [pods]}
"#;

    fn ids(snapshot: &Snapshot, set: ServerSet) -> Vec<&str> {
        set.iter().map(|server| snapshot.servers()[server.get()].id.as_str()).collect()
    }

    #[test]
    fn a_good_file_becomes_a_snapshot() {
        let snapshot = parse(GOOD).unwrap();
        assert_eq!(snapshot.generation(), 1);
        assert_eq!(snapshot.gvrs(), 3);
        assert_eq!(ids(&snapshot, ServerSet::only(snapshot.local())), ["cp-a"]);
        assert_eq!(snapshot.servers()[1].address, "[::1]:7444".parse().unwrap());
        for (group, resource, by) in
            [("", "configmaps", &["cp-a"][..]), ("", "pods", &["cp-a", "cp-b"]), ("batch", "jobs", &["cp-b"]), ("batch", "cronjobs", &[])]
        {
            let found = snapshot.lookup(&Name::new(group.as_bytes(), b"v1", resource.as_bytes())).unwrap_or_default();
            assert_eq!(ids(&snapshot, found), by, "{group}/v1/{resource}");
        }
    }

    #[test]
    fn an_alias_repeats_a_list() {
        let text = GOOD.replace("[configmaps, pods]", "&core [configmaps, pods]").replace("[pods]}", "*core}");
        let snapshot = parse(&text).unwrap();
        assert_eq!(ids(&snapshot, snapshot.lookup(&Name::new(b"", b"v1", b"configmaps")).unwrap()), ["cp-a", "cp-b"]);
    }

    #[test]
    fn a_server_may_serve_nothing() {
        let text = "local: a\nservers: [{id: a, address: '127.0.0.1:1', serves: []}]";
        assert_eq!(parse(text).unwrap().gvrs(), 0);
    }

    /// What is replaced in the good file, by what, and the error.
    const MISTAKES: &[(&str, &str, &str)] = &[
        ("local: cp-a\n", "", "line 2: key `local` is missing: add `local: ` and the id of the server behind this proxy"),
        ("local: cp-a", "local: cp-c", "line 2: `local` is `cp-c`, which is no server's id: name one of `servers`"),
        ("local: cp-a", "local: cp-a\nlokal: x", "line 3: unknown key `lokal`: use local, servers"),
        ("local: cp-a", "local: cp-a\nlocal: cp-b", "line 3: key `local` is given twice: remove one"),
        ("  address: 127.0.0.1:6444\n", "", "line 5: key `address` is missing: add it"),
        ("address: 127.0.0.1:6444", "adress: 127.0.0.1:6444", "line 5: unknown key `adress`: use id, address, serves"),
        ("group: batch", "groups: batch", "line 11: unknown key `groups`: use group, version, resources"),
        ("id: cp-b", "id: cp-a", "line 8: server id `cp-a` is used twice: rename one of them"),
        ("id: cp-b", "id: ''", "line 8: `id` is empty: give the server a name"),
        ("\"[::1]:7444\"", "127.0.0.1:6444", "line 9: address 127.0.0.1:6444 belongs to two servers: correct one of them"),
        ("\"[::1]:7444\"", "127.0.0.1:0", "line 9: address 127.0.0.1:0 has port 0: write the port the server listens on"),
        ("batch, version: v1", "batch, version: ''", "line 11: `version` is empty: write for example `v1`"),
        ("batch, version: v1", "batch, version: batch/v1", "line 11: `batch/v1` contains `/`: write group and version apart"),
        ("[jobs]", "[]", "line 11: `resources` is empty: list resources or remove the entry"),
        ("[jobs]", "['']", "line 11: a resource is empty: write for example `pods`"),
        ("[jobs]", "[jobs/status]", "line 11: `jobs/status` contains `/`: subresources follow their resource, leave them out"),
    ];

    #[test]
    fn mistakes_are_named_with_their_line() {
        for (from, to, error) in MISTAKES {
            let text = GOOD.replace(from, to);
            assert_ne!(text, GOOD, "{from}");
            assert_eq!(parse(&text).unwrap_err().to_string(), *error);
        }
    }

    #[test]
    fn only_literal_addresses() {
        for address in ["localhost:6443", "127.0.0.1", "127.0.0.1:", ":6443", "::1:6443", "https://127.0.0.1:6443", "127.0.0.1:70000", ""] {
            let text = GOOD.replace("127.0.0.1:6444", &format!("'{address}'"));
            let error = parse(&text).unwrap_err();
            assert_eq!(error.line(), Some(5), "{address}: {error}");
            assert!(error.to_string().contains("is not IP:PORT"), "{error}");
        }
    }

    #[test]
    fn what_is_no_routing_file_is_one_line() {
        let long = GOOD.replace("jobs", &"j".repeat(254));
        for text in [
            "",
            "---\n",
            "# nothing\n",
            "[]",
            "local: [",
            "local: a\n\tservers: []",
            "a: b: c",
            "hello",
            "local:\nservers: []",
            long.as_str(),
        ] {
            let error = parse(text).unwrap_err().to_string();
            assert!(!error.contains('\n') && error.contains(": "), "{text:?}: {error}");
            assert!(error.chars().next().is_some_and(char::is_lowercase), "{text:?}: {error}");
        }
        assert!(parse("local: a\nservers: []").unwrap_err().to_string().contains("no server's id"));
        assert!(parse(&format!("{GOOD}---\n{GOOD}")).is_err());
    }

    #[test]
    fn too_long_a_text_is_refused_unread() {
        let error = parse(&" ".repeat(TEXT_MAX + 1)).unwrap_err();
        assert_eq!(error.line(), None);
        assert!(error.to_string().contains("4194304 bytes"), "{error}");
    }

    #[test]
    fn a_large_file_is_within_the_parsers_limits() {
        let resources: Vec<String> = (0..10_000).map(|i| format!("resource{i}")).collect();
        let mut text = String::from("local: cp-0\nservers:\n");
        for server in 0..20 {
            text += &format!("- id: cp-{server}\n  address: 10.0.0.{server}:6443\n  serves:\n");
            text += &format!("  - {{group: g, version: v1, resources: [{}]}}\n", resources.join(", "));
        }
        assert!(text.len() < TEXT_MAX);
        let snapshot = parse(&text).unwrap();
        assert_eq!(snapshot.lookup(&Name::new(b"g", b"v1", b"resource9999")).unwrap().len(), 20);
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(at in 0..GOOD.len(), with in "[-:{}\\[\\]&*a \n]{0,3}", cut in 0..8usize) {
            let end = (at + cut).min(GOOD.len());
            let text = format!("{}{with}{}", &GOOD[..at], &GOOD[end..]);
            if let Err(error) = parse(&text) {
                prop_assert!(!error.to_string().contains('\n'), "{}", error);
            }
        }
    }
}
