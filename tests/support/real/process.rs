//! Processes of a test: their logs, signals and ports.

use std::fs::OpenOptions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use socket2::{Domain, Socket, Type};

/// From a signal to the end: a server that was told to end first lets its requests finish.
pub const EXIT_LIMIT: Duration = Duration::from_secs(90);

/// From SIGSTOP to the stop of the last thread.
const FREEZE_LIMIT: Duration = Duration::from_secs(10);

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

    /// Stops it, as a server that hangs: its sockets stay open and its kernel goes on acknowledging. None of its threads runs any more
    /// when this returns.
    pub fn freeze(&self) {
        self.signal(Signal::STOP);
        let begun = Instant::now();
        while !self.stopped() {
            if begun.elapsed() > FREEZE_LIMIT {
                self.fail(&format!("did not stop within {FREEZE_LIMIT:?}"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Lets it go on.
    pub fn thaw(&self) {
        self.signal(Signal::CONT);
    }

    /// Whether every thread is stopped: the first to see the signal stops the others, and on a busy machine that takes its time.
    fn stopped(&self) -> bool {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.pid())).unwrap();
        tasks.map_while(Result::ok).all(|task| {
            // A thread may end in between. The state comes behind the name, which ends with the last parenthesis.
            let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            stat.rsplit(") ").next().is_none_or(|rest| rest.is_empty() || rest.starts_with('T'))
        })
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

/// An address of this machine that is not loopback, for what refuses those. What is sent to it stays on the machine.
pub fn own_ip() -> IpAddr {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).unwrap();
    // Sends nothing: it only asks from which address one would. TEST-NET-1 (RFC 5737).
    socket.connect((Ipv4Addr::new(192, 0, 2, 1), 9)).expect("this machine has no address but loopback");
    socket.local_addr().unwrap().ip()
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
