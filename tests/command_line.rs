//! The binary as somebody at a shell meets it: messages, exit codes, signals.
#![expect(clippy::unwrap_used, reason = "the functions beside the tests are tests too")]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use loadgen::twin::apis;
use loadgen::{Client, Pki, Twin, TwinConfig};
use rustix::process::{Pid, Signal, kill_process};

/// No command of these tests takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

const GATE_OFF: (&str, &str) = ("--feature-gates", "UnknownVersionInteroperabilityProxy=false");
/// As in the routing file of [`Files`].
const LOCAL: (&str, &str) = ("--local-server", "https://127.0.0.1:9");

/// Files to name on a command line, removed at the end.
struct Files {
    directory: PathBuf,
    pki: Pki,
}

impl Files {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("mvproxy-{test}-{}", std::process::id()));
        fs::create_dir_all(&directory).unwrap();
        let pki = Pki::new().unwrap();
        pki.write_ca(&directory, "ca").unwrap();
        pki.serving().unwrap().write(&directory, "serving").unwrap();
        pki.client("front-proxy", &[]).unwrap().write(&directory, "proxy").unwrap();
        let files = Self { directory, pki };
        files.write("empty", "");
        files.write("routes.yaml", &routes(SocketAddr::from(([127, 0, 0, 1], 9))));
        files
    }

    fn path(&self, name: &str) -> String {
        self.directory.join(name).display().to_string()
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.directory.join(name), text).unwrap();
        self.path(name)
    }

    /// A good command line; what `changes` names is replaced, added, or left out when its value is `-`.
    fn serve(&self, changes: &[(&str, &str)]) -> Command {
        let mut flags = vec![
            ("--bind-address", "127.0.0.1".to_owned()),
            ("--secure-port", "0".to_owned()),
            ("--status-port", "0".to_owned()),
            ("--tls-cert-file", self.path("serving.crt")),
            ("--tls-private-key-file", self.path("serving.key")),
            ("--peer-ca-file", self.path("ca.crt")),
            ("--static-routes", self.path("routes.yaml")),
            ("--shards", "1".to_owned()),
        ];
        flags.retain(|(flag, _)| changes.iter().all(|(changed, _)| changed != flag));
        flags.extend(changes.iter().filter(|(_, value)| *value != "-").map(|(flag, value)| (*flag, (*value).to_owned())));
        let mut command = mvproxy(&["serve"]);
        command.args(flags.iter().map(|(flag, value)| format!("{flag}={value}")));
        command
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.directory).ok();
    }
}

fn routes(local: SocketAddr) -> String {
    format!(
        "local: cp-a\nservers:\n- id: cp-a\n  address: {local}\n  serves:\n  - {{group: \"\", version: v1, resources: [configmaps, pods]}}\n"
    )
}

fn mvproxy(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mvproxy"));
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command that ends by itself: exit code, stdout, stderr.
fn run(mut command: Command) -> (i32, String, String) {
    let mut child = command.spawn().unwrap();
    let (mut out, mut err) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let reader = thread::spawn(move || {
        let mut text = String::new();
        out.read_to_string(&mut text).unwrap();
        text
    });
    let status = ended(&mut child);
    let mut text = String::new();
    err.read_to_string(&mut text).unwrap();
    (status.code().unwrap(), reader.join().unwrap(), text)
}

fn ended(child: &mut Child) -> ExitStatus {
    let begin = Instant::now();
    while begin.elapsed() < PATIENCE {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    panic!("it should have ended by itself");
}

/// A proxy that serves.
struct Running {
    child: Child,
    address: SocketAddr,
    /// Log lines up to the one that says where it serves.
    log: String,
    /// Kept open: what it still has to say must have somewhere to go.
    stderr: BufReader<ChildStderr>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let mut running = Self { child, address: SocketAddr::from(([0, 0, 0, 0], 0)), log: String::new(), stderr };
        while running.address.port() == 0 {
            let begin = running.log.len();
            assert_ne!(running.stderr.read_line(&mut running.log).unwrap(), 0, "it ended:\n{}", running.log);
            if let Some((_, rest)) = running.log[begin..].split_once("serving on ") {
                running.address = rest.split(' ').next().unwrap().parse().unwrap();
            }
        }
        running
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    fn exit_code(&mut self) -> Option<i32> {
        ended(&mut self.child).code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // A test that failed must not leave it behind.
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn assert_refused(what: &str, command: Command, code: i32, expected: &[&str]) {
    let (actual, stdout, stderr) = run(command);
    assert_eq!(actual, code, "{what}: {stderr}");
    assert_eq!(stdout, "", "{what}");
    assert_eq!(stderr.lines().count(), 1, "{what}: {stderr}");
    assert!(stderr.starts_with("mvproxy: error: "), "{what}: {stderr}");
    for part in expected {
        assert!(stderr.contains(part), "{what}: {part:?} should be in: {stderr}");
    }
}

#[test]
fn a_bad_flag_is_a_usage_error() {
    let files = Files::new("flags");
    for (flag, value, cause, fix) in [
        ("--bind-address", "localhost", "not an IP address", "10.0.0.5"),
        ("--secure-port", "65536", "not a port", "0 to 65535"),
        ("--status-port", "-1", "not a port", "0 to 65535"),
        ("--shards", "0", "not a number of shards", "1 to 128"),
        ("--shards", "129", "not a number of shards", "1 to 128"),
        ("--cpu-list", "1,x", "--cpu-list: `x` is no cpu", "0-3,6"),
        ("--cpu-list", "4000", "cpu 4000 is not one this process may use", "choose from"),
        ("--io-driver", "kqueue", "invalid value 'kqueue'", "auto, io_uring, epoll"),
        ("--http2-max-streams-per-connection", "0", "not a number of streams", "1 to 10000"),
        ("--bind-adress", "127.0.0.1", "unexpected argument", "'--bind-address'"),
        ("--tls-cert-file", "-", "required arguments were not provided", "--tls-cert-file"),
        ("--tls-private-key-file", "-", "required arguments were not provided", "--tls-private-key-file"),
        ("--peer-ca-file", "-", "required arguments were not provided", "--peer-ca-file"),
        ("--static-routes", "-", "nothing says who serves what", "--kubeconfig=FILE"),
        ("--logging-format", "xml", "invalid value 'xml'", "text, json"),
        ("--proxy-client-cert-file", "x", "required arguments were not provided", "--proxy-client-key-file"),
    ] {
        assert_refused(flag, files.serve(&[(flag, value)]), 2, &[cause, fix]);
    }
    assert_refused("nothing", mvproxy(&[]), 2, &["no command", "`mvproxy serve`"]);
    assert_refused("no such command", mvproxy(&["run"]), 2, &["unrecognized subcommand 'run'", "--help"]);
}

#[test]
fn a_file_with_wrong_content_is_a_usage_error() {
    let files = Files::new("content");
    files.pki.serving().unwrap().write(&files.directory, "other").unwrap();
    let (cert, key, other) = (files.path("serving.crt"), files.path("serving.key"), files.path("other.key"));
    let cut = fs::read_to_string(&cert).unwrap();
    let cut = files.write("cut.crt", &cut[..cut.len() / 2]);
    let garbage = files.write("garbage.crt", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n");
    let (empty, proxy) = (files.path("empty"), files.path("proxy.crt"));
    let stranger = files.write("stranger.yaml", &routes(SocketAddr::from(([127, 0, 0, 1], 9))).replace("local: cp-a", "local: cp-z"));
    let binary = files.path("binary");
    fs::write(&binary, [0xff, 0xfe, 0]).unwrap();
    for (changes, cause, fix) in [
        (&[("--tls-cert-file", &*empty)][..], "no certificate in it", "BEGIN CERTIFICATE"),
        (&[("--tls-cert-file", &key)], "no certificate in it", "is it empty, or the key file?"),
        (&[("--tls-cert-file", &cut)], "not valid pem", "is the file cut short"),
        (&[("--tls-cert-file", &garbage)], "garbage.crt: certificate 1 does not parse", "issue it again"),
        (&[("--tls-private-key-file", &empty)], "no private key in it", "BEGIN PRIVATE KEY"),
        (&[("--tls-private-key-file", &other)], "the private key does not match the certificate", "--tls-private-key-file"),
        (&[("--peer-ca-file", &empty)], "--peer-ca-file", "BEGIN CERTIFICATE"),
        (&[("--local-ca-file", &garbage)], "--local-ca-file", "take it out of the file"),
        (&[("--proxy-client-cert-file", &proxy), ("--proxy-client-key-file", &key)], "does not match", "--proxy-client-key-file"),
        (&[("--static-routes", &empty)], "--static-routes", "empty"),
        (&[("--static-routes", &cert)], "--static-routes", "line"),
        (&[("--static-routes", &stranger)], "`local` is `cp-z`", "name one of `servers`"),
        (&[("--static-routes", &binary)], "not text in UTF-8", "is it the right file?"),
        (&[("--secure-port", "9")], "server `cp-a` has the address 127.0.0.1:9", "--secure-port"),
        (
            &[("--secure-port", "9"), LOCAL, GATE_OFF, ("--static-routes", "-")],
            "--local-server 127.0.0.1:9: mvproxy itself",
            "--bind-address",
        ),
    ] {
        assert_refused(cause, files.serve(changes), 2, &[cause, fix]);
    }
}

#[test]
fn a_file_that_cannot_be_read_is_a_runtime_error() {
    let files = Files::new("unreadable");
    let (missing, directory) = (files.path("missing"), files.path("."));
    for flag in ["--tls-cert-file", "--tls-private-key-file", "--peer-ca-file", "--local-ca-file", "--static-routes"] {
        assert_refused(flag, files.serve(&[(flag, &missing)]), 1, &[flag, "missing: cannot be read", "check the path"]);
        assert_refused(flag, files.serve(&[(flag, &directory)]), 1, &[flag, "cannot be read", "name the file in it"]);
    }
}

#[test]
fn a_port_in_use_is_a_runtime_error() {
    let files = Files::new("port");
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port().to_string();
    let expected = [&*format!(":{port}"), "another process listens there", "--secure-port"];
    for address in ["127.0.0.1", "0.0.0.0"] {
        let command = files.serve(&[("--secure-port", &port), ("--bind-address", address)]);
        assert_refused("a listener", command, 1, &expected);
    }
    let elsewhere = files.serve(&[("--bind-address", "203.0.113.9")]);
    assert_refused("not our address", elsewhere, 1, &["203.0.113.9", "no interface of this machine", "--bind-address"]);
}

/// SO_REUSEPORT would let it in, and it would take every other connection.
#[test]
fn a_second_mvproxy_on_the_port_is_refused() {
    let files = Files::new("second");
    let mut first = Running::start(files.serve(&[("--shards", "2")]));
    let port = first.address.port().to_string();
    for driver in ["auto", "epoll"] {
        let second = files.serve(&[("--secure-port", &port), ("--io-driver", driver)]);
        assert_refused("second", second, 1, &[":", "another mvproxy", "--secure-port"]);
    }
    first.signal(Signal::TERM);
    assert_eq!(first.exit_code(), Some(0));
    // The port is free again at once.
    let mut third = Running::start(files.serve(&[("--secure-port", &port)]));
    third.signal(Signal::INT);
    assert_eq!(third.exit_code(), Some(0));
}

#[test]
fn verbose_says_what_it_runs_on_and_warns_once() {
    let files = Files::new("verbose");
    let (cert, key) = (files.path("proxy.crt"), files.path("proxy.key"));
    let mut command =
        files.serve(&[("--shards", "3"), ("--io-driver", "epoll"), ("--proxy-client-cert-file", &cert), ("--proxy-client-key-file", &key)]);
    command.args(["-vv", "--peer-cidr=10.0.0.0/8"]);
    let mut proxy = Running::start(command);
    for part in ["shard 0: ", "shard 2: ", "epoll", "limit of open files: "] {
        assert!(proxy.log.contains(part), "{part:?} should be in:\n{}", proxy.log);
    }
    let warnings: Vec<&str> = proxy.log.lines().filter(|line| line.starts_with('W')).collect();
    assert_eq!(warnings.len(), 1, "{}", proxy.log);
    for part in ["--proxy-client-cert-file", "--peer-cidr: not used with --static-routes"] {
        assert!(warnings[0].contains(part), "{part:?} should be in {warnings:?}");
    }
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.exit_code(), Some(0));
}

/// Where the local server is, the routing file says, also when nothing else in it counts.
#[test]
fn with_the_gate_off_the_local_server_is_still_that_of_the_file() {
    let files = Files::new("gate");
    let mut proxy = Running::start(files.serve(&[GATE_OFF]));
    assert!(proxy.log.contains("the local server at 127.0.0.1:9 alone"), "{}", proxy.log);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.exit_code(), Some(0));
}

/// Each shard is a thread that may run on one CPU only, another one each, and clients are told how many streams they may open.
#[test]
fn shards_are_pinned_and_streams_limited() {
    let files = Files::new("pinned");
    let cpus = thread::available_parallelism().unwrap().get().min(2);
    let shards = cpus.to_string();
    let mut proxy = Running::start(files.serve(&[("--shards", &shards), ("--http2-max-streams-per-connection", "7")]));
    let mut pins = Vec::new();
    for task in fs::read_dir(format!("/proc/{}/task", proxy.child.id())).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let value = |key: &str| status.lines().find_map(|line| line.strip_prefix(key)).unwrap().trim().to_owned();
        if value("Name:").starts_with("shard-") {
            pins.push(value("Cpus_allowed_list:"));
        }
    }
    pins.sort();
    pins.dedup();
    assert!(pins.len() == cpus && pins.iter().all(|pin| pin.parse::<u32>().is_ok()), "{pins:?}");
    let asked = Command::new("nghttp").args(["--no-verify-peer", "-nv", &format!("https://{}/", proxy.address)]).output().unwrap();
    let told = String::from_utf8(asked.stdout).unwrap();
    assert!(told.contains("SETTINGS_MAX_CONCURRENT_STREAMS(0x03):7]"), "{told}");
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.exit_code(), Some(0));
}

/// The file says everything but what the command line says otherwise.
#[test]
fn flags_may_come_from_a_file() {
    let files = Files::new("config");
    let head = "apiVersion: mvproxy.io/v1alpha1\nkind: ProxyConfiguration\n";
    let [cert, key, ca, routes] = ["serving.crt", "serving.key", "ca.crt", "routes.yaml"].map(|name| files.path(name));
    let body = format!(
        "bindAddress: 127.0.0.1\nsecurePort: 1\nstatus-port: 0\ntlsCertFile: {cert}\ntlsPrivateKeyFile: {key}\npeerCaFile: {ca}\n\
         staticRoutes: {routes}\nshards: 2\nloggingFormat: json\nv: 1\n"
    );
    let config = files.write("config.yaml", &format!("{head}{body}"));
    let mut proxy = Running::start(mvproxy(&["serve", "--config", &config, "--secure-port=0"]));
    assert_ne!(proxy.address.port(), 1);
    let lines: Vec<serde_json::Value> = proxy.log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let said = |text: &str| lines.iter().any(|line| line["msg"].as_str().unwrap().contains(text));
    assert!(said("shard 1: ") && !said("shard 2: ") && said("config.yaml"), "{}", proxy.log);
    assert!(lines.iter().all(|line| line["ts"].as_f64().unwrap() > 1.7e12 && line["v"] == 0), "{}", proxy.log);
    assert!(lines[0]["caller"].as_str().unwrap().starts_with("src/serve.rs:"), "{}", proxy.log);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.exit_code(), Some(0));

    let missing = files.path("missing");
    assert_refused("no file", mvproxy(&["serve", "--config", &missing]), 1, &["--config", "cannot be read", "check the path"]);
    for (text, expected) in [
        (format!("{head}{body}securePrt: 1\n"), ["unknown key `securePrt`", "did you mean `securePort`?"]),
        (format!("{head}{}", body.replace("shards: 2", "shards: many")), ["invalid value 'many' for '--shards <N>'", "config.yaml"]),
        (format!("kind: ProxyConfiguration\n{body}"), ["`apiVersion` is missing", "mvproxy.io/v1alpha1"]),
    ] {
        files.write("config.yaml", &text);
        assert_refused(&text, mvproxy(&["serve", "--config", &config]), 2, &expected);
    }
}

/// What runs finishes, a watch is reset so that nobody takes it for complete, and the exit code is 0.
#[tokio::test]
async fn a_signal_lets_requests_finish() {
    let files = Files::new("drain");
    let twin = Twin::start(TwinConfig::new("cp-a", files.pki.serving().unwrap(), apis::everywhere())).unwrap();
    let text = files.write("twin.yaml", &routes(twin.address()));
    for signal in [Signal::TERM, Signal::INT] {
        let mut proxy = Running::start(files.serve(&[("--static-routes", &text)]));
        let client = Client::connect(proxy.address, files.pki.ca_pem(), "localhost", Some("t")).await.unwrap();
        let mut watch = client.watch("/api/v1/pods?watch=true").await.unwrap();
        let seen = twin.counts().requests;
        let slow = tokio::spawn(async move { client.get("/debug/twin/slow/1000").await });
        while twin.counts().requests == seen {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        proxy.signal(signal);
        let ended = loop {
            match watch.next_event().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("a watch that was cut looks complete"),
                Err(error) => break error,
            }
        };
        assert!(ended.is_reset(), "{ended}");
        let slow = slow.await.unwrap().unwrap();
        assert_eq!((slow.status.as_u16(), &slow.body[..]), (200, &b"ok"[..]));
        drop(watch);
        assert_eq!(proxy.exit_code(), Some(0));
    }
    twin.stop().await;
}

/// Also that what was wired answers, and that a drain waits for a running request.
#[tokio::test]
async fn the_second_signal_ends_at_once() {
    let files = Files::new("signals");
    let twin = Twin::start(TwinConfig::new("cp-a", files.pki.serving().unwrap(), apis::everywhere())).unwrap();
    let text = files.write("twin.yaml", &routes(twin.address()));
    for (signal, expected) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let mut proxy = Running::start(files.serve(&[("--static-routes", &text)]));
        let client = Client::connect(proxy.address, files.pki.ca_pem(), "localhost", Some("t")).await.unwrap();
        let pods = client.get("/api/v1/pods").await.unwrap();
        assert_eq!((pods.status.as_u16(), pods.header("x-twin-id")), (200, Some("cp-a")));
        let seen = twin.counts().requests;
        let hanging = tokio::spawn(async move { client.get("/debug/twin/hang").await.map(|_| ()) });
        while twin.counts().requests == seen {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        proxy.signal(signal);
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(proxy.child.try_wait().unwrap(), None, "a request is running");
        proxy.signal(signal);
        assert_eq!(proxy.exit_code(), Some(expected));
        assert!(hanging.await.unwrap().is_err());
    }
    twin.stop().await;
}

#[test]
fn help_and_version_go_to_stdout() {
    let (code, version, stderr) = run(mvproxy(&["--version"]));
    assert_eq!((code, &*version, &*stderr), (0, concat!("mvproxy ", env!("CARGO_PKG_VERSION"), "\n"), ""));
    for (arguments, expected) in [
        (&["--help"][..], &["serve", "routes", "explain", "skew", "demo", "Exit codes:"][..]),
        (&["routes", "--help"], &["--status-port", "[default: 6446]", "-o wide", "Examples:", "Exit codes:"]),
        (&["explain", "--help"], &["<METHOD> <PATH>", "Examples:"]),
        (&["skew", "--help"], &["--kubeconfig", "version skew policy", "Examples:"]),
        (&["serve", "-h"], &["--tls-cert-file", "Exit codes:"]),
        (&["demo", "--help"], &["--once", "Examples:", "Exit codes:"]),
        (
            &["serve", "--help"],
            &["Serving clients:", "Reaching apiservers:", "[default: 6443]", "bypass the proxy", "Examples:", "local: cp-a", "Exit codes:"],
        ),
    ] {
        let (code, stdout, stderr) = run(mvproxy(arguments));
        assert_eq!((code, &*stderr), (0, ""), "{arguments:?}");
        for part in expected {
            assert!(stdout.contains(part), "{arguments:?}: {part:?} should be in:\n{stdout}");
        }
        assert!(stdout.lines().all(|line| line.chars().count() <= 100), "{arguments:?}:\n{stdout}");
    }
}

/// The routing file of `--help` is one that is taken.
#[test]
fn the_example_in_the_help_works() {
    let files = Files::new("example");
    let (_, help, _) = run(mvproxy(&["serve", "--help"]));
    let example: Vec<&str> = help.lines().skip_while(|line| *line != "    local: cp-a").take_while(|line| !line.is_empty()).collect();
    let text = files.write("example.yaml", &example.join("\n"));
    let mut proxy = Running::start(files.serve(&[("--static-routes", &text)]));
    assert!(proxy.log.contains("cp-a at 127.0.0.1:6443, 1 peers, 4 resources"), "{}", proxy.log);
    proxy.signal(Signal::TERM);
    assert_eq!(proxy.exit_code(), Some(0));
}

#[test]
fn the_demo_shows_its_table() {
    let directory = Files::new("demo");
    let mut command = mvproxy(&["demo", "--once"]);
    command.env("TMPDIR", &directory.directory);
    let before = listed(&directory.directory);
    let (code, stdout, stderr) = run(command);
    assert_eq!((code, &*stderr), (0, ""), "{stdout}");
    let steps = ["cp-a v1.35.8 stopped", "cp-a v1.36.4 started", "cp-b v1.35.8 stopped", "cp-b v1.36.4 started", "Upgraded in"];
    for part in ["added latency", "list jobs (batch/v1)", "create a job", "answered by", "µs"].into_iter().chain(steps) {
        assert!(stdout.contains(part), "{part:?} should be in:\n{stdout}");
    }
    let wrong_404s = stdout.lines().filter(|line| line.contains("wrong 404s")).count();
    assert_eq!(wrong_404s, steps.len(), "{stdout}");
    assert!(stdout.lines().filter(|line| line.contains("wrong 404s")).all(|line| line.contains(", 0 wrong 404s")), "{stdout}");
    assert!(!stdout.contains("WRONG") && !stdout.contains("nobody"), "{stdout}");
    assert!(stdout.lines().all(|line| line.chars().count() <= 110), "{stdout}");
    assert_eq!(listed(&directory.directory), before);
}

#[test]
fn the_demo_ends_by_a_signal_without_a_trace() {
    let files = Files::new("demo-signal");
    let mut command = mvproxy(&["demo"]);
    command.env("TMPDIR", &files.directory);
    let before = listed(&files.directory);
    let mut child = command.spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    while !text.contains("Ctrl-C ends it") {
        assert_ne!(stdout.read_line(&mut text).unwrap(), 0, "it ended:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 110 + files.directory.display().to_string().len()), "{text}");
    let config = text.split("--kubeconfig=").nth(1).unwrap().split(' ').next().unwrap();
    assert!(fs::read_to_string(config).unwrap().contains("certificate-authority-data: "));
    // The line that it shows, as a reader would paste it.
    let line = text.split_once("curl ").unwrap().1.split_once("\n\n").unwrap().0;
    let asked = Command::new("sh").arg("-c").arg(format!("curl --silent --max-time 10 {line}")).output().unwrap();
    let answer = String::from_utf8_lossy(&asked.stdout);
    assert!(answer.starts_with("HTTP/2 200") && answer.contains("x-twin-id: cp-") && answer.contains("JobList"), "{line}:\n{answer}");
    kill_process(Pid::from_raw(child.id().try_into().unwrap()).unwrap(), Signal::INT).unwrap();
    assert_eq!(ended(&mut child).code(), Some(0));
    assert_eq!(listed(&files.directory), before);
}

fn listed(directory: &Path) -> Vec<PathBuf> {
    let mut names: Vec<PathBuf> = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect();
    names.sort();
    names
}
