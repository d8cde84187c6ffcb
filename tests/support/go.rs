//! Programs in Go, built once per test process from `tests/tools`: the conformance suites of other people, and our client and server on
//! Go's `net/http`, which is what kube-apiserver and client-go are made of.
//!
//! Versions are pinned in `tests/tools/go.mod`; Go keeps what it fetched and built, so only the first build takes long.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

use loadgen::Pki;

use super::tools::{Directory, program};

/// What is built, by the last part of its name.
const PACKAGES: [&str; 3] =
    ["github.com/summerwind/h2spec/cmd/h2spec", "github.com/summerwind/h2spec/cmd/h2specd", "mvproxy.test/tools/gohttp"];

/// The conformance suite for servers: it is a client.
pub fn h2spec() -> Command {
    built("h2spec")
}

/// The conformance suite for clients: it is a server.
pub fn h2specd() -> Command {
    built("h2specd")
}

/// `tests/tools/gohttp`.
pub fn gohttp() -> Command {
    built("gohttp")
}

fn built(name: &str) -> Command {
    static PLACE: OnceLock<PathBuf> = OnceLock::new();
    Command::new(PLACE.get_or_init(build).join(name))
}

fn build() -> PathBuf {
    let place = Path::new(env!("CARGO_TARGET_TMPDIR")).join("go");
    std::fs::create_dir_all(&place).unwrap();
    // Another test process may want the same.
    let lock = File::create(place.join("lock")).unwrap();
    lock.lock().unwrap();
    eprintln!("building the programs of tests/tools with Go; the first time fetches their sources");
    let mut go = Command::new(program("go", "golang (1.26.0 or newer); tests/run fetches it"));
    go.current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tools")).arg("build").arg("-o").arg(&place).args(PACKAGES);
    let status = go.status().unwrap();
    assert!(status.success(), "{go:?}: {status}");
    place
}

/// A running `gohttp server`, which has the settings of kube-apiserver; killed when dropped.
pub struct GoServer {
    child: Child,
    address: SocketAddr,
    _certificate: Directory,
}

impl GoServer {
    /// Starts one that ends the connection of that share of the requests with GOAWAY.
    pub fn start(pki: &Pki, goaway_chance: f64) -> Self {
        let directory = Directory::new();
        let (cert, key) = pki.serving().unwrap().write(directory.path(), "serving").unwrap();
        let mut command = gohttp();
        command.arg("server").arg("--cert").arg(cert).arg("--key").arg(key).arg(format!("--goaway-chance={goaway_chance}"));
        // It ends with its standard input, so that it does not outlive a test that is killed.
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().parse().unwrap();
        Self { child, address, _certificate: directory }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for GoServer {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
