//! The public conformance suite for HTTP/2, both halves: what the proxy is to its clients, and what it is to servers.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::net::{Ipv4Addr, TcpListener};
use std::process::Command;
use std::sync::atomic::{AtomicU16, Ordering};

use http::Response;
use loadgen::Pki;
use loadgen::twin::apis::{Api, Resource};
use support::go::{h2spec, h2specd};
use support::raw::read_all;
use support::script::Script;
use support::tools::{Directory, program};
use support::{IoDriver, Refusing, World, apis, noise};

on_both_drivers!(h2spec_passes_on_a_local_path, h2spec_passes_on_a_path_of_a_peer, h2specd_passes_behind_the_proxy);

async fn h2spec_passes_on_a_local_path(driver: IoDriver) {
    h2spec_passes(driver, "/api/v1/namespaces/default/configmaps/demo").await;
}

async fn h2spec_passes_on_a_path_of_a_peer(driver: IoDriver) {
    h2spec_passes(driver, "/apis/batch/v1/namespaces/default/jobs").await;
}

/// Behind the proxy is a server that answers when it has all of the request: two cases send something wrong inside a request, and an
/// answer that is complete before that would rightly have ended the stream.
async fn h2spec_passes(driver: IoDriver, path: &str) {
    let plan = World::on(driver);
    let (local, peer) = (patient(plan.pki()).await, patient(plan.pki()).await);
    let world = plan.local_at("cp-a", apis::everywhere(), local.address()).peer_at("cp-b", apis::batch(), peer.address()).start();
    let mut suite = h2spec();
    suite.args(["--strict", "--tls", "--insecure", "--timeout", "5", "--host", "127.0.0.1", "--port"]);
    suite.arg(world.address().port().to_string()).args(["--path", path]);
    let report = run(suite).await;
    let failures = report.find("Failures:").map_or("", |at| &report[at..]);
    assert!(report.contains("147 tests, 147 passed, 0 skipped, 0 failed"), "{failures}\n{report}");
}

async fn patient(pki: &Pki) -> Script {
    Script::start(pki, |_, request, mut respond| async move {
        // The suite breaks off requests of its own and streams it was answered on: then there is nobody to answer.
        if read_all(&mut request.into_body()).await.is_ok()
            && let Ok(mut body) = respond.send_response(Response::new(()), false)
        {
            body.send_data(noise(1_000, 1), true).ok();
        }
    })
    .await
}

/// How many cases the client half has: it listens on as many ports, one for each.
const CASES: u16 = 57;

/// Cases that ask for what we do not do, as section, number and name.
const NOT_FOR_A_PROXY: [&str; 2] = [
    // DATA or HEADERS on a stream that both sides have ended. RFC 7540 §5.1 demanded a connection error and RFC 9113 §5.1 allows one
    // ("MAY"). Our connection to a server carries the requests and watches of everybody, so only the stream is reset (STREAM_CLOSED).
    "5.1. Stream States × 8: closed: Sends a DATA frame",
    "5.1. Stream States × 9: closed: Sends a HEADERS frame",
];

/// The suite is the servers, one for each case: it listens on a port for each, and runs a command that shall connect to that port. The
/// command asks the proxy for the resource that only the server on that port has.
async fn h2specd_passes_behind_the_proxy(driver: IoDriver) {
    let first = free_ports(CASES);
    let nobody = Refusing::new();
    // A second attempt would be a second connection, and its verdict would count in place of the first one's.
    let mut plan = World::on(driver).limits(|limits| limits.attempts = 1).local_at("cp-a", apis::everywhere(), nobody.address());
    for port in first..first + CASES {
        let api = Api::new("h2specd", "v1", vec![Resource::cluster(&format!("case{port}"), "case", "Case")]);
        plan = plan.peer_at(&format!("case-{port}"), vec![api], (Ipv4Addr::LOCALHOST, port).into());
    }
    let world = plan.start();
    let directory = Directory::new();
    let (cert, key) = world.pki().serving().unwrap().write(directory.path(), "serving").unwrap();
    let mut suite = h2specd();
    suite.args(["--tls", "--host", "127.0.0.1", "--from-port", &first.to_string(), "--exec", &ask(&world, &directory)]);
    suite.arg("--cert-file").arg(cert).arg("--cert-key-file").arg(key);
    let report = run(suite).await;
    let total =
        format!("{CASES} tests, {} passed, 0 skipped, {} failed", usize::from(CASES) - NOT_FOR_A_PROXY.len(), NOT_FOR_A_PROXY.len());
    assert!(failed_cases(&report) == NOT_FOR_A_PROXY && report.contains(&total), "{report}");
}

/// The command that is called with `https://127.0.0.1:<port>/` and asks the proxy for that case.
fn ask(world: &World, directory: &Directory) -> String {
    let curl = program("curl", "curl");
    let url = format!("https://{}/apis/h2specd/v1/case${{port%/}}", world.address());
    // The suite gives a case 3 s.
    let script = format!("port=${{1##*:}}\nexec {} --silent --insecure --http2 --max-time 2 --output /dev/null {url}\n", curl.display());
    format!("sh {}", directory.write("ask", script.as_bytes()).display())
}

/// Section and name of every case that failed, in order.
fn failed_cases(report: &str) -> Vec<String> {
    let mut section = "";
    let mut failed = Vec::new();
    // The failures are repeated at the end.
    for line in report.lines().map(str::trim).take_while(|line| !line.starts_with("Failures")) {
        if line.starts_with("× ") {
            failed.push(format!("{section} {line}"));
        } else if line.starts_with(|first: char| first.is_ascii_digit()) {
            section = line;
        }
    }
    failed
}

/// Runs a suite to its end; what it printed, without what h2specd prints about its own listeners while it ends.
async fn run(mut suite: Command) -> String {
    let output = tokio::task::spawn_blocking(move || suite.output().unwrap()).await.unwrap();
    let report = String::from_utf8_lossy(&output.stdout);
    report.lines().filter(|line| !line.starts_with("accept tcp")).flat_map(|line| [line, "\n"]).collect()
}

/// The first of `count` ports in a row that nobody has, below those that the kernel gives to outgoing connections.
fn free_ports(count: u16) -> u16 {
    // Above those of `loadgen::ports`.
    static NEXT: AtomicU16 = AtomicU16::new(30_000);
    loop {
        let first = NEXT.fetch_add(count, Ordering::Relaxed);
        assert!(first < 32_000, "no {count} free ports in a row");
        if (first..first + count).all(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()) {
            return first;
        }
    }
}
