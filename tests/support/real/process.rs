//! Processes of a test: their logs, signals and ports.

use std::fs::OpenOptions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};

/// From a signal to the end: a server that was told to end first lets its requests finish.
pub const EXIT_LIMIT: Duration = Duration::from_secs(90);

/// How much of a log a panic shows.
const TAIL_LINES: usize = 40;
const TAIL_LINE_MAX: usize = 400;

/// A running process; killed when dropped.
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `arguments`; what it prints goes to the end of the file `log`. With a hostname it runs in a UTS namespace of its own.
    pub fn start(name: &str, hostname: Option<&str>, arguments: Vec<String>, log: &Path) -> Self {
        // Both programs become the next one with exec, so the pid stays.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]);
        if let Some(hostname) = hostname {
            // Who is not root may have a namespace of users in which to be.
            let user: &[&str] = if rustix::process::geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
            command.arg("unshare").args(user).args(["--uts", "sh", "-c", r#"hostname "$0" && exec "$@""#, hostname]);
        }
        let file = OpenOptions::new().create(true).append(true).open(log).unwrap();
        command.args(arguments).stdin(Stdio::null()).stdout(file.try_clone().unwrap()).stderr(file);
        let child = spawn(command).unwrap_or_else(|error| panic!("cannot start {name} with setpriv (util-linux): {error}"));
        Self { name: name.into(), child, log: log.into() }
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap_or_else(|error| panic!("cannot signal {}: {error}", self.name));
    }

    /// How it ended, if it did.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.child.try_wait().unwrap()
    }

    /// Waits for its end.
    pub async fn wait(&mut self, limit: Duration) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.ended() {
                return status;
            }
            if begun.elapsed() > limit {
                self.fail(&format!("did not end within {limit:?}"));
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Panics with what happened and the end of the log.
    pub fn fail(&self, what: &str) -> ! {
        panic!("{} {what}; the end of its log:\n{}", self.name, self.tail());
    }

    fn tail(&self) -> String {
        let log = std::fs::read(&self.log).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let mut lines: Vec<String> = log.lines().rev().take(TAIL_LINES).map(|line| line.chars().take(TAIL_LINE_MAX).collect()).collect();
        lines.reverse();
        lines.join("\n")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // SIGKILL ends a stopped process too.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// Spawns from a thread that lives as long as this process: the death signal of a child is bound to the *thread* that started it, and the
/// threads of a runtime come and go.
fn spawn(command: Command) -> io::Result<Child> {
    type Request = (Command, Sender<io::Result<Child>>);
    static SPAWNER: LazyLock<Sender<Request>> = LazyLock::new(|| {
        let (send, receive) = channel::<Request>();
        std::thread::spawn(move || {
            for (mut command, reply) in receive {
                reply.send(command.spawn()).ok();
            }
        });
        send
    });
    let (reply, answer) = channel();
    SPAWNER.send((command, reply)).unwrap();
    answer.recv().unwrap()
}

/// A port that nobody else is given as long as this lives, whether its server is up or down.
///
/// It is bound but does not listen: while no server shares it (SO_REUSEPORT, by a flag of the server), connections are refused.
pub struct Port {
    _socket: Socket,
    address: SocketAddr,
}

impl Port {
    /// A free one at that address.
    pub fn reserve(ip: IpAddr) -> Self {
        let at = SocketAddr::from((ip, 0));
        let socket = Socket::new(Domain::for_address(at), Type::STREAM, None).unwrap();
        socket.set_reuse_port(true).unwrap();
        socket.bind(&at.into()).unwrap_or_else(|error| panic!("cannot take a port at {ip}: {error}"));
        let address = socket.local_addr().unwrap().as_socket().unwrap();
        Self { _socket: socket, address }
    }

    /// One on 127.0.0.1.
    pub fn local() -> Self {
        Self::reserve(Ipv4Addr::LOCALHOST.into())
    }

    /// Where it is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}
