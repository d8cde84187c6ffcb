//! Programs of other people: curl, nghttp, nghttpd.
//!
//! A missing program fails the test and names the Debian package: an interoperability test that skips itself proves nothing.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use loadgen::Pki;

/// The path of a program; `package` is the Debian package that has it.
pub fn program(name: &str, package: &str) -> PathBuf {
    let path = std::env::var_os("PATH").unwrap_or_default();
    // Debian puts servers into sbin, which is not on every user's path.
    let places = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    let found = places.map(|place| place.join(name)).find(|candidate| candidate.is_file());
    found.unwrap_or_else(|| panic!("`{name}` is not installed: apt-get install {package}"))
}

/// curl, quiet.
pub fn curl() -> Command {
    let mut command = Command::new(program("curl", "curl"));
    command.args(["--silent", "--show-error", "--http2", "--max-time", "60"]);
    command
}

/// nghttp; it verifies no certificates.
pub fn nghttp() -> Command {
    let mut command = Command::new(program("nghttp", "nghttp2-client"));
    command.args(["--no-verify-peer", "--timeout=60"]);
    command
}

/// Runs a program on a thread where it may block; it must succeed.
pub async fn run(mut command: Command) -> Output {
    let text = format!("{command:?}");
    let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}: {}: {stderr}", output.status);
    output
}

/// A directory that goes when it is dropped.
pub struct Directory(PathBuf);

impl Directory {
    /// A new one, for this test alone.
    pub fn new() -> Self {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let nth = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("mvproxy-test-{}-{nth}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Writes a file into it; subdirectories of `name` are made.
    pub fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// A running nghttpd; killed when dropped.
pub struct Nghttpd {
    child: Child,
    address: SocketAddr,
    directory: Directory,
}

impl Nghttpd {
    /// Serves the files of a new directory, and answers uploads with what was uploaded.
    pub fn start(pki: &Pki) -> Self {
        let directory = Directory::new();
        let (cert, key) = pki.serving().unwrap().write(directory.path(), "serving").unwrap();
        let files = directory.path().join("files");
        std::fs::create_dir_all(&files).unwrap();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let child = Command::new(program("nghttpd", "nghttp2-server"))
            .args(["--address=127.0.0.1", "--echo-upload", "--workers=1"])
            .arg(format!("--htdocs={}", files.display()))
            .args([address.port().to_string().as_ref(), key.as_os_str(), cert.as_os_str()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let nghttpd = Self { child, address, directory };
        let started = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            assert!(started.elapsed() < Duration::from_secs(10), "nghttpd does not listen on {address}");
            std::thread::sleep(Duration::from_millis(20));
        }
        nghttpd
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Makes a file that it serves at `/<name>`.
    pub fn serve(&self, name: &str, bytes: &[u8]) {
        self.directory.write(&format!("files/{name}"), bytes);
    }

    /// Stops the process, as a server that hangs: its sockets stay open and its kernel goes on acknowledging.
    pub fn freeze(&self) {
        self.signal(libc::SIGSTOP);
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(libc::SIGCONT);
    }

    #[allow(unsafe_code, reason = "std can only kill")]
    fn signal(&self, signal: i32) {
        let pid = i32::try_from(self.child.id()).unwrap();
        // SAFETY: kill has no memory effects; the child is not yet waited for, so the pid is its own.
        let outcome = unsafe { libc::kill(pid, signal) };
        assert_eq!(outcome, 0, "cannot signal nghttpd");
    }
}

impl Drop for Nghttpd {
    fn drop(&mut self) {
        // SIGKILL ends a stopped process too.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// A port of 127.0.0.1 for a program that cannot be told to take any and say which.
pub fn free_port() -> u16 {
    loadgen::ports::free().unwrap()
}
