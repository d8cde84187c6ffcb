//! `mvproxy serve` in a process of its own: for what is counted by the process (memory, files, time) and for the files it reads.

use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use loadgen::twin::apis::Api;
use loadgen::{KeyPairPem, Pki, Twin};

use super::tools::Directory;

/// Of somebody with a token. Where the server is, is said elsewhere.
const KUBECONFIG: &str = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                          clusters: [{name: k, cluster: {server: 'https://192.0.2.1'}}]\nusers: [{name: u, user: {token: t}}]\n";

/// A running proxy; killed when dropped.
pub struct Binary {
    child: Child,
    address: SocketAddr,
    log: Arc<Mutex<String>>,
    directory: Directory,
}

/// The files it is started with.
pub struct Files(Directory);

impl Files {
    /// An authority, a serving pair, and routes to `servers`, local first.
    pub fn new(pki: &Pki, servers: &[(&Twin, &str, &[Api])]) -> Self {
        Self::at(pki, &servers.iter().map(|&(twin, id, apis)| (twin.address(), id, apis)).collect::<Vec<_>>())
    }

    /// The same for servers of any kind.
    pub fn at(pki: &Pki, servers: &[(SocketAddr, &str, &[Api])]) -> Self {
        let directory = Directory::new();
        pki.write_ca(directory.path(), "ca").unwrap();
        pki.serving().unwrap().write(directory.path(), "serving").unwrap();
        let mut routes = format!("local: {}\nservers:\n", servers[0].1);
        for (address, id, apis) in servers {
            writeln!(routes, "- id: {id}\n  address: {address}\n  serves:").unwrap();
            for api in *apis {
                let resources: Vec<_> = api.resources.iter().map(|resource| resource.plural.as_str()).collect();
                let resources = resources.join(", ");
                writeln!(routes, "  - {{group: \"{}\", version: {}, resources: [{resources}]}}", api.group, api.version).unwrap();
            }
        }
        directory.write("routes.yaml", routes.as_bytes());
        Self(directory)
    }

    /// Where a file of that name is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes another pair.
    pub fn pair(&self, name: &str, pair: &KeyPairPem) {
        pair.write(self.0.path(), name).unwrap();
    }

    /// The command that serves with them, one shard, without a status port: tests run side by side.
    pub fn command(&self) -> Command {
        self.command_with_status(0)
    }

    /// The same with a status port.
    pub fn command_with_status(&self, port: u16) -> Command {
        self.command_on(0, port)
    }

    /// The same for clients at that port, where others have to know it beforehand.
    pub fn command_on(&self, port: u16, status: u16) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_mvproxy"));
        command.args(["serve", "--bind-address=127.0.0.1", "--shards=1"]);
        command.args([format!("--secure-port={port}"), format!("--status-port={status}")]);
        let files = [
            ("--tls-cert-file", "serving.crt"),
            ("--tls-private-key-file", "serving.key"),
            ("--peer-ca-file", "ca.crt"),
            ("--static-routes", "routes.yaml"),
        ];
        command.args(files.map(|(flag, name)| format!("{flag}={}", self.path(name).display())));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// The command that asks the server at that address, and those it names, what they serve; without a status port and a peer port.
    pub fn live_command(&self, local: SocketAddr) -> Command {
        self.0.write("kubeconfig", KUBECONFIG.as_bytes());
        let mut command = Command::new(env!("CARGO_BIN_EXE_mvproxy"));
        command.args(["serve", "--bind-address=127.0.0.1", "--secure-port=0", "--status-port=0", "--peer-port=0"]);
        command.arg(format!("--local-server=https://{local}"));
        let files = [
            ("--tls-cert-file", "serving.crt"),
            ("--tls-private-key-file", "serving.key"),
            ("--peer-ca-file", "ca.crt"),
            ("--kubeconfig", "kubeconfig"),
        ];
        command.args(files.map(|(flag, name)| format!("{flag}={}", self.path(name).display())));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    /// Runs it as it is.
    pub fn start_plain(self) -> Binary {
        let command = self.command();
        self.start(command)
    }

    /// Runs that command, or one with other flags.
    pub fn start(self, mut command: Command) -> Binary {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let kept = log.clone();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                let mut log = kept.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        let mut binary = Binary { child, address: SocketAddr::from(([0, 0, 0, 0], 0)), log, directory: self.0 };
        let line = binary.wait_for_log("serving on ", Duration::from_secs(30));
        binary.address = line.split("serving on ").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
        binary
    }
}

impl Binary {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where a file that it reads is.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// What it said so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// The first line with `text` in it.
    pub fn wait_for_log(&self, text: &str, limit: Duration) -> String {
        let started = Instant::now();
        loop {
            if let Some(line) = self.log().lines().find(|line| line.contains(text)) {
                return line.into();
            }
            assert!(started.elapsed() < limit, "{text:?} is not in the log:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its id, to send it a signal.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Resident memory, in bytes.
    pub fn resident(&self) -> usize {
        let statm = self.proc("statm");
        statm.split(' ').nth(1).unwrap().parse::<usize>().unwrap() * 4096
    }

    /// User and system time, in clock ticks of 10 ms.
    pub fn ticks(&self) -> u64 {
        let stat = self.proc("stat");
        let fields: Vec<_> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
        fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
    }

    /// Open files.
    pub fn files(&self) -> usize {
        std::fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    fn proc(&self, name: &str) -> String {
        std::fs::read_to_string(format!("/proc/{}/{name}", self.child.id())).unwrap()
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}
