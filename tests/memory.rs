//! What an idle connection and an open watch cost the proxy in resident memory.
//!
//! The proxy is the real binary, and its clients are a herd in a process of its own: either needs a descriptor per connection.
//! `cargo test --test memory -- --nocapture` prints the figures.
#![expect(clippy::unwrap_used, reason = "the functions beside the tests are tests too")]

use std::fmt;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use loadgen::client::Watch;
use loadgen::twin::apis;
use loadgen::{Client, Pki, Twin, TwinConfig};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::task::JoinSet;

const IDLE_CONNECTIONS: usize = 10_000;
const IDLE_BYTES_MAX: f64 = 16.0 * 1024.0;
const WATCHING_CONNECTIONS: usize = 1_000;
const WATCHES_EACH: usize = 10;
const WATCH_BYTES_MAX: f64 = 2.0 * 1024.0;

/// Connections that make the proxy allocate what it has only once.
const FEW: usize = 8;
/// Long enough for the proxy to see that a connection is idle and to take its buffers back.
const REST: Duration = Duration::from_secs(5);
/// Connections the herd opens at a time.
const OPENING: usize = 32;
/// Where to, the file with the authority, and how many.
const HERD: &str = "MVPROXY_TEST_HERD";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_idle_connections() {
    let proxy = Proxy::start("idle");
    Herd::start(&proxy, FEW).end();
    let before = proxy.memory();
    let mut herd = Herd::start(&proxy, IDLE_CONNECTIONS);
    let after = proxy.memory();
    tokio::time::sleep(REST).await;
    let idle = proxy.memory();
    let each = |memory: Memory| memory.per(before, IDLE_CONNECTIONS);
    println!("{IDLE_CONNECTIONS} connections, each with one request, opened in {:.1} s", herd.took.as_secs_f64());
    println!("before {before}, right after {after}, idle {idle}");
    println!("per connection: {:.0} bytes right after, {:.0} bytes idle", each(after), each(idle));
    assert!(each(idle) <= IDLE_BYTES_MAX, "{:.0} bytes each", each(idle));
    herd.end();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_watches_on_each_of_a_thousand_connections() {
    let proxy = Proxy::start("watches");
    Herd::start(&proxy, FEW).end();
    let empty = proxy.memory();
    let mut herd = Herd::start(&proxy, WATCHING_CONNECTIONS);
    tokio::time::sleep(REST).await;
    let (before, servers_before) = (proxy.memory(), proxy.twin.counts().connections);
    let watches = herd.watch();
    tokio::time::sleep(REST).await;
    let (after, servers_after) = (proxy.memory(), proxy.twin.counts().connections);
    let each = after.per(before, watches);
    println!("{watches} watches on {WATCHING_CONNECTIONS} connections, {} more connections to the server", servers_after - servers_before);
    println!("without connections {empty}, before {before}, after {after}");
    println!("per watch: {each:.0} bytes, those connections included");
    assert!(each <= WATCH_BYTES_MAX, "{each:.0} bytes each");
    // Watches may have taken memory that was resident already: so all together is looked at too.
    let both = after.per(empty, WATCHING_CONNECTIONS);
    println!("per connection with its {WATCHES_EACH} watches: {both:.0} bytes");
    assert!(both <= IDLE_BYTES_MAX + WATCHES_EACH as f64 * WATCH_BYTES_MAX, "{both:.0} bytes each");
    herd.end();
}

/// Not a test by itself: the process of the herd, when a test above starts this program again.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn herd() {
    let Ok(arguments) = std::env::var(HERD) else { return };
    let [address, ca, count] = arguments.split(' ').collect::<Vec<_>>().try_into().unwrap();
    let (address, count): (SocketAddr, usize) = (address.parse().unwrap(), count.parse().unwrap());
    let ca = fs::read_to_string(ca).unwrap();
    raise_nofile(count);
    let mut clients = Vec::with_capacity(count);
    let mut opening = JoinSet::new();
    for _ in 0..count {
        if opening.len() == OPENING {
            clients.push(opening.join_next().await.unwrap().unwrap());
        }
        opening.spawn(open(address, ca.clone()));
    }
    clients.extend(opening.join_all().await);
    println!("herd: {count}");
    let mut watches: Vec<Watch> = Vec::new();
    for line in std::io::stdin().lines() {
        assert_eq!(line.unwrap(), "watch");
        for client in &clients {
            for _ in 0..WATCHES_EACH {
                watches.push(watch(client).await);
            }
        }
        println!("herd: {}", watches.len());
    }
    assert!(clients.iter().all(Client::alive));
}

/// A connection that has been used once: nothing of it is still to be allocated.
async fn open(address: SocketAddr, ca: String) -> Client {
    let client = Client::connect(address, &ca, "localhost", Some("token")).await.unwrap();
    assert_eq!(client.get("/api/v1/namespaces/default/configmaps/demo").await.unwrap().status, 200);
    client
}

/// A watch that has sent its first event.
async fn watch(client: &Client) -> Watch {
    let mut watch = client.watch("/api/v1/namespaces/default/configmaps?watch=true").await.unwrap();
    assert_eq!(watch.status, 200);
    assert!(watch.next_event().await.unwrap().is_some());
    watch
}

fn raise_nofile(count: usize) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum }).unwrap();
    let enough = limit.maximum.is_none_or(|maximum| maximum > count as u64 + 100);
    assert!(enough, "{count} connections need as many descriptors: raise the hard limit (ulimit -Hn)");
}

/// The binary in front of a twin.
struct Proxy {
    process: Child,
    _stderr: BufReader<ChildStderr>,
    twin: Twin,
    address: SocketAddr,
    directory: PathBuf,
}

impl Proxy {
    fn start(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("mvproxy-memory-{test}-{}", std::process::id()));
        let pki = Pki::new().unwrap();
        let ca = pki.write_ca(&directory, "ca").unwrap();
        let (cert, key) = pki.serving().unwrap().write(&directory, "serving").unwrap();
        let twin = Twin::start(TwinConfig::new("cp-a", pki.serving().unwrap(), apis::everywhere())).unwrap();
        let routes = directory.join("routes.yaml");
        let serves = r#"{group: "", version: v1, resources: [configmaps]}"#;
        let text = format!("local: cp-a\nservers:\n- id: cp-a\n  address: {}\n  serves:\n  - {serves}\n", twin.address());
        fs::write(&routes, text).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_mvproxy"));
        command.args(["serve", "--bind-address=127.0.0.1", "--secure-port=0", "--status-port=0", "--shards=2"]);
        for (flag, file) in
            [("--tls-cert-file", &cert), ("--tls-private-key-file", &key), ("--peer-ca-file", &ca), ("--static-routes", &routes)]
        {
            command.arg(flag).arg(file);
        }
        let mut process = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut stderr = BufReader::new(process.stderr.take().unwrap());
        let line = next_line(&mut stderr, "serving on ");
        let address = line.split(' ').next().unwrap().parse().unwrap();
        Self { process, _stderr: stderr, twin, address, directory }
    }

    fn memory(&self) -> Memory {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Memory { kib: line.trim().strip_suffix(" kB").unwrap().parse().unwrap() }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // What cannot be ended or removed has ended or gone.
        self.process.kill().ok();
        self.process.wait().ok();
        fs::remove_dir_all(&self.directory).ok();
    }
}

/// Resident memory of the proxy.
#[derive(Clone, Copy)]
struct Memory {
    kib: u32,
}

impl Memory {
    /// Bytes gained since `before` for each of `count`.
    fn per(self, before: Self, count: usize) -> f64 {
        (f64::from(self.kib) - f64::from(before.kib)) * 1024.0 / count as f64
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.1} MiB", f64::from(self.kib) / 1024.0)
    }
}

/// Clients in a process of their own.
struct Herd {
    process: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    took: Duration,
}

impl Herd {
    /// Opens connections; all of them are open when it returns.
    fn start(proxy: &Proxy, connections: usize) -> Self {
        let since = Instant::now();
        let ca = proxy.directory.join("ca.crt");
        let mut process = Command::new(std::env::current_exe().unwrap())
            .args(["herd", "--exact", "--nocapture"])
            .env(HERD, format!("{} {} {connections}", proxy.address, ca.display()))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdin = process.stdin.take();
        let mut stdout = BufReader::new(process.stdout.take().unwrap());
        next_line(&mut stdout, "herd: ");
        Self { process, stdin, stdout, took: since.elapsed() }
    }

    /// Opens [`WATCHES_EACH`] watches on each connection; returns how many there are.
    fn watch(&mut self) -> usize {
        writeln!(self.stdin.as_mut().unwrap(), "watch").unwrap();
        next_line(&mut self.stdout, "herd: ").trim().parse().unwrap()
    }

    /// Closes all connections, none of which may have been closed before.
    fn end(&mut self) {
        drop(self.stdin.take());
        assert!(self.process.wait().unwrap().success());
    }
}

impl Drop for Herd {
    fn drop(&mut self) {
        // Ended already, unless a test failed.
        self.process.kill().ok();
        self.process.wait().ok();
    }
}

/// Reads to the line that has `mark` in it; returns what follows the mark.
fn next_line(from: &mut impl BufRead, mark: &str) -> String {
    let mut line = String::new();
    while from.read_line(&mut line).unwrap() > 0 {
        if let Some((_, rest)) = line.split_once(mark) {
            return rest.to_owned();
        }
        line.clear();
    }
    panic!("ended without `{mark}`");
}
