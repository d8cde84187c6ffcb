//! Which versions of Kubernetes the tests run, and where their programs are.

use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{LazyLock, Mutex};

/// A minor version of Kubernetes, such as `1.36`, or a release of one, such as `1.36.3`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Version(&'static str);

impl Version {
    /// v1.35, the newest release of it that is committed in `tests/real`.
    pub const V1_35: Self = Self("1.35");
    /// v1.36, likewise.
    pub const V1_36: Self = Self("1.36");

    /// The oldest of the versions to test with.
    pub fn older() -> Self {
        asked()[0]
    }

    /// The newest of the versions to test with.
    pub fn newer() -> Self {
        *asked().last().unwrap()
    }

    /// That of a minor version, 36 for v1.36, if it is one of those to test with. Tests that are about it say that they are left out.
    pub fn of_minor(minor: u32) -> Option<Self> {
        let found = asked().iter().copied().find(|version| version.minor() == minor);
        if found.is_none() {
            let thread = std::thread::current();
            let test = thread.name().unwrap_or("a test");
            let line = format!("LEFT OUT: {test}: v1.{minor} is not one of MVPROXY_REAL_VERSIONS\n");
            // Not `println`: what a test prints is shown only when it fails.
            std::io::stderr().write_all(line.as_bytes()).ok();
        }
        found
    }

    /// 36 of 1.36.
    pub fn minor(self) -> u32 {
        self.numbers().get(1).copied().unwrap_or_default()
    }

    fn numbers(self) -> Vec<u32> {
        let number = |text: &str| text.parse().unwrap_or_else(|_| panic!("not a version of Kubernetes: {}", self.0));
        self.0.split('.').map(number).collect()
    }
}

/// The versions to test with, oldest first: those of `MVPROXY_REAL_VERSIONS`, or the committed ones.
fn asked() -> &'static [Version] {
    static ASKED: LazyLock<Vec<Version>> = LazyLock::new(|| {
        let named = std::env::var("MVPROXY_REAL_VERSIONS").unwrap_or_default();
        let mut versions: Vec<_> = named.split(',').map(str::trim).filter(|name| !name.is_empty()).map(version).collect();
        if versions.is_empty() {
            versions = vec![Version::V1_35, Version::V1_36];
        }
        versions.sort_by_key(|version| version.numbers());
        versions
    });
    &ASKED
}

fn version(name: &str) -> Version {
    let version = Version(name.trim_start_matches('v').to_owned().leak());
    assert!(matches!(version.numbers()[..], [1, _] | [1, _, _]), "MVPROXY_REAL_VERSIONS: {name} is not like 1.35 or 1.35.8");
    version
}

/// etcd.
pub async fn etcd() -> PathBuf {
    provide("etcd".into()).await
}

/// kubectl, the same for servers of all versions.
pub async fn kubectl() -> PathBuf {
    provide("kubectl".into()).await
}

/// kube-apiserver of a version.
pub async fn kube_apiserver(version: Version) -> PathBuf {
    provide(format!("kube-apiserver-{}", version.0)).await
}

/// Where a program is; builds it when it is missing, which may take minutes.
async fn provide(program: String) -> PathBuf {
    static BUILT: LazyLock<Mutex<HashMap<String, PathBuf>>> = LazyLock::new(Mutex::default);
    let build = move || BUILT.lock().unwrap().entry(program).or_insert_with_key(|program| build(program)).clone();
    tokio::task::spawn_blocking(build).await.unwrap()
}

fn build(program: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    // target/tmp is the only place that cargo tells a test; the programs are beside it.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("real");
    let mut command = Command::new(root.join("tests/real/build"));
    let output = command.arg(directory).arg(program).stdin(Stdio::null()).stderr(Stdio::inherit()).output().unwrap();
    assert!(output.status.success(), "cannot build {program}: {}; its reasons are above, on stderr", output.status);
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}
