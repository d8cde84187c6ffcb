//! What the status port says, and the commands that ask it.
#![expect(clippy::unwrap_used, reason = "the functions beside the tests are tests too")]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use loadgen::twin::server_id;
use loadgen::{Client, Pki, Twin, TwinConfig};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

mod support;

use support::binary::{Binary, Files};
use support::tools::free_port;
use support::{NAME, TOKEN, apis, eventually};

const PATIENCE: Duration = Duration::from_secs(30);

/// Two twins that differ, and an mvproxy with a status port in front of the first.
struct Scene {
    pki: Pki,
    twins: Vec<Twin>,
    proxy: Binary,
    port: u16,
}

impl Scene {
    fn start() -> Self {
        let pki = Pki::new().unwrap();
        let (some, both) = (apis::everywhere(), [apis::everywhere(), apis::batch()].concat());
        let twin = |id, apis: &Vec<_>| Twin::start(TwinConfig::new(id, pki.serving().unwrap(), apis.clone())).unwrap();
        let twins = vec![twin("cp-a", &some), twin("cp-b", &both)];
        let files = Files::new(&pki, &[(&twins[0], "cp-a", &some), (&twins[1], "cp-b", &both)]);
        let port = free_port();
        let command = files.command_with_status(port);
        let proxy = files.start(command);
        Self { pki, twins, proxy, port }
    }

    fn get(&self, path: &str) -> (u16, String) {
        exchange(self.port, &format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n"))
    }

    fn json(&self, path: &str) -> Value {
        let (status, body) = self.get(path);
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    async fn client(&self) -> Client {
        Client::connect(self.proxy.address(), self.pki.ca_pem(), NAME, Some(TOKEN)).await.unwrap()
    }

    /// The value of a metric, with its labels as they are printed.
    fn metric(&self, row: &str) -> Option<f64> {
        let (status, page) = self.get("/metrics");
        assert_eq!(status, 200);
        page.lines().find_map(|line| line.strip_prefix(row)?.strip_prefix(' ')?.parse().ok())
    }
}

fn connect(port: u16) -> TcpStream {
    let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Status and body of the answer to some bytes.
fn exchange(port: u16, bytes: &str) -> (u16, String) {
    let mut stream = connect(port);
    stream.write_all(bytes.as_bytes()).unwrap();
    answer(&mut stream)
}

fn answer(stream: &mut TcpStream) -> (u16, String) {
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {text:?}"));
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

fn mvproxy(arguments: &[&str]) -> (i32, String, String) {
    let Output { status, stdout, stderr } = Command::new(env!("CARGO_BIN_EXE_mvproxy")).args(arguments).output().unwrap();
    (status.code().unwrap(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn health_is_said_as_kube_apiserver_says_it() {
    let scene = Scene::start();
    for path in ["/livez", "/healthz", "/readyz", "/readyz/shards", "/readyz/"] {
        assert_eq!(scene.get(path), (200, "ok".to_owned()), "{path}");
    }
    let verbose = "[+]ping ok\n[+]shards ok\n[+]started ok\n[+]shutdown ok\nreadyz check passed\n";
    assert_eq!(scene.get("/readyz?verbose"), (200, verbose.to_owned()));
    assert_eq!(scene.get("/livez?verbose").1, "[+]ping ok\n[+]shards ok\nlivez check passed\n");
    assert_eq!(scene.get("/nothing").0, 404);
    assert_eq!(exchange(scene.port, "POST /livez HTTP/1.1\r\nContent-Length: 1\r\n\r\nx").0, 405);
    assert_eq!(exchange(scene.port, "HEAD /livez HTTP/1.1\r\n\r\n"), (200, String::new()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_is_not_ready() {
    let scene = Scene::start();
    let client = scene.client().await;
    let seen = scene.twins[0].counts().requests;
    let hanging = tokio::spawn(async move { client.get("/debug/twin/hang").await.map(|_| ()) });
    eventually("the request is under way", PATIENCE, || scene.twins[0].counts().requests > seen).await;
    kill_process(Pid::from_raw(scene.proxy.pid().try_into().unwrap()).unwrap(), Signal::TERM).unwrap();
    eventually("not ready any more", PATIENCE, || scene.get("/readyz").0 == 500).await;
    let (_, body) = scene.get("/readyz");
    assert!(body.contains("[-]shutdown failed: it is ending\n") && body.ends_with("readyz check failed\n"), "{body}");
    assert_eq!(scene.get("/livez").0, 200);
    hanging.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_asks_badly_holds_nothing_up() {
    let scene = Scene::start();
    assert_eq!(exchange(scene.port, "\x16\x03\x01\x02\x00 nonsense\r\n\r\n").0, 400);
    assert_eq!(exchange(scene.port, &format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(9_000))).0, 431);
    let mut cut = connect(scene.port);
    cut.write_all(b"GET /livez HT").unwrap();
    cut.shutdown(Shutdown::Write).unwrap();
    assert_eq!(answer(&mut cut).0, 400);
    // Sixteen may say nothing for two seconds; the others, and a probe behind them, wait for their places.
    let began = Instant::now();
    let mut silent: Vec<TcpStream> = (0..20).map(|_| connect(scene.port)).collect();
    assert_eq!(scene.get("/livez").0, 200, "a probe is answered, if late");
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    let answers: Vec<u16> = silent.iter_mut().map(|stream| answer(stream).0).collect();
    assert_eq!(answers, [408; 20]);
    assert!(began.elapsed() >= Duration::from_secs(1) && began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    eventually("there is room again", PATIENCE, || scene.get("/livez").0 == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn routes_are_those_of_the_file() {
    let scene = Scene::start();
    let routes = scene.json("/routes");
    assert_eq!((&routes["generation"], &routes["complete"], &routes["ageSeconds"]), (&1.into(), &true.into(), &Value::Null));
    let address = scene.twins[0].address().to_string();
    assert_eq!(routes["servers"][0]["id"], "cp-a");
    assert_eq!((&routes["servers"][0]["address"], &routes["servers"][0]["local"]), (&address.into(), &true.into()));
    assert_eq!((&routes["servers"][1]["via"], &routes["servers"][1]["ready"]), (&"apiserver".into(), &true.into()));
    let served = |resource: &str| {
        let rows = routes["routes"].as_array().unwrap();
        rows.iter().find(|row| row["resource"] == resource).map(|row| row["servers"].to_string())
    };
    assert_eq!(served("configmaps").unwrap(), r#"["cp-a","cp-b"]"#);
    assert_eq!(served("jobs").unwrap(), r#"["cp-b"]"#);

    let port = scene.port.to_string();
    let (code, table, stderr) = mvproxy(&["routes", "--status-port", &port]);
    assert_eq!((code, &*stderr), (0, ""));
    let row = table.lines().find(|line| line.contains(" jobs ")).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["batch", "v1", "jobs", "-", "yes"], "{table}");
    assert!(table.lines().all(|line| line.trim_end() == line), "{table}");
    let (code, json, _) = mvproxy(&["routes", "--status-port", &port, "-o", "json"]);
    assert_eq!((code, serde_json::from_str::<Value>(&json).unwrap()), (0, routes));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn explanations_come_true() {
    let scene = Scene::start();
    let client = scene.client().await;
    let port = scene.port.to_string();
    for (path, guard, verdict) in [
        ("/api/v1/namespaces/default/configmaps?limit=1", "served-here", "local"),
        ("/apis/batch/v1/namespaces/default/jobs?limit=1&x=a%20b", "served-by-peers", "peer"),
        ("/apis/batch%2Fv1/jobs", "served-by-peers", "peer"),
        ("/version", "discovery-path", "local"),
        ("/apis/nobody/v1/things", "unknown-resource", "local"),
    ] {
        let (code, json, _) = mvproxy(&["explain", "GET", path, "--status-port", &port, "-o", "json"]);
        let explained: Value = serde_json::from_str(&json).unwrap();
        assert_eq!((code, &explained["path"]), (0, &path.into()));
        assert_eq!((&explained["guard"], &explained["verdict"]), (&guard.into(), &verdict.into()), "{path}");
        let answered = client.get(path).await.unwrap();
        assert_eq!(answered.header("x-twin-id").unwrap(), explained["candidates"][0]["id"], "{path}");
    }
    let (code, text, _) = mvproxy(&["explain", "GET", "/apis/batch/v1/jobs", "--status-port", &port]);
    assert!(code == 0 && text.contains("verdict  peer\n") && text.contains("the local server does not serve batch/v1/jobs"), "{text}");
    assert_eq!(scene.get("/explain").0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_count_what_was_done() {
    let mut scene = Scene::start();
    let client = scene.client().await;
    let names = r#"group="batch",version="v1",resource="jobs""#;
    for _ in 0..3 {
        assert_eq!(client.get("/apis/batch/v1/jobs").await.unwrap().status, 200);
        assert_eq!(client.get("/api/v1/pods").await.unwrap().status, 200);
        client.get("/apis/made/up/names").await.unwrap();
    }
    let rerouted = format!("apiserver_rerouted_request_total{{code=\"200\",{names}}}");
    eventually("all requests are counted", PATIENCE, || scene.metric("mvproxy_request_added_seconds_count") == Some(9.0)).await;
    eventually("all answers are counted", PATIENCE, || scene.metric("mvproxy_response_added_seconds_count") == Some(9.0)).await;
    for sum in ["mvproxy_request_added_seconds_sum", "mvproxy_response_added_seconds_sum"] {
        assert!(scene.metric(sum).is_some_and(|seconds| seconds > 0.0), "work takes time too: {sum}");
    }
    assert_eq!((scene.metric(&rerouted), scene.metric("mvproxy_requests_total{shard=\"0\"}")), (Some(3.0), Some(9.0)));
    assert_eq!(scene.metric("mvproxy_client_connections{shard=\"0\"}"), Some(1.0));
    assert_eq!(scene.metric("mvproxy_server_connections{server=\"cp-b\",lane=\"short\"}"), Some(1.0));
    assert_eq!(
        (scene.metric("mvproxy_snapshot_generation"), scene.metric("mvproxy_server_ready{server=\"cp-b\"}")),
        (Some(1.0), Some(1.0))
    );
    // What nobody serves is in no label, whoever asks for it.
    assert!(!scene.get("/metrics").1.contains("made"));

    scene.twins.pop().unwrap().abort().await;
    let errors = format!("apiserver_peer_proxy_errors_total{{type=\"proxy_transport\",{names}}}");
    eventually("the peer is missed", PATIENCE, || scene.metric("mvproxy_server_connections{server=\"cp-b\",lane=\"short\"}") == Some(0.0))
        .await;
    assert_eq!(client.get("/apis/batch/v1/jobs").await.unwrap().status, 503);
    eventually("the failure is counted", PATIENCE, || scene.metric(&errors).is_some_and(|count| count >= 1.0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k4_groups_that_nobody_serves_do_not_grow_the_metrics() {
    let scene = Scene::start();
    let client = scene.client().await;
    for nth in 0..2_000 {
        client.get(&format!("/apis/group-{nth}.example.com/v{nth}/things-{nth}")).await.unwrap();
    }
    eventually("all requests are counted", PATIENCE, || scene.metric("mvproxy_request_added_seconds_count") == Some(2_000.0)).await;
    let (before, metrics) = (scene.get("/metrics").1.lines().count(), scene.get("/metrics").1);
    assert!(!metrics.contains("example.com") && !metrics.contains("things-"), "{metrics}");
    for nth in 2_000..2_500 {
        client.get(&format!("/apis/group-{nth}.example.com/v{nth}/things-{nth}")).await.unwrap();
    }
    eventually("all requests are counted", PATIENCE, || scene.metric("mvproxy_request_added_seconds_count") == Some(2_500.0)).await;
    assert_eq!(scene.get("/metrics").1.lines().count(), before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_status_port_in_use_is_a_runtime_error() {
    let scene = Scene::start();
    let taken = free_port();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, taken)).unwrap();
    let files = Files::new(&scene.pki, &[(&scene.twins[0], "cp-a", &apis::everywhere())]);
    let output = files.command_with_status(taken).output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert!(stderr.contains("another process listens there") && stderr.contains("--status-port"), "{stderr}");
    drop(listener);
    for command in [&["routes"][..], &["explain", "GET", "/api"]] {
        let (code, stdout, stderr) = mvproxy(&[command, &["--status-port", &taken.to_string()]].concat());
        assert_eq!((code, &*stdout, stderr.lines().count()), (1, "", 1), "{stderr}");
        assert!(stderr.contains("no mvproxy answers on 127.0.0.1:") && stderr.contains("is `mvproxy serve` running"), "{stderr}");
    }
}

/// Nothing says which server is local. The server answers, so it is not waited for as one that starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_host_that_no_lease_names_is_exit_2_with_the_candidates() {
    let (pki, host) = (Pki::new().unwrap(), "nobody-is-called-so");
    let config = TwinConfig::new("cp-a", pki.serving().unwrap(), apis::control_plane());
    let twin = Twin::start(TwinConfig { hostname: Some(host.to_owned()), ..config }).unwrap();
    let files = Files::new(&pki, &[(&twin, "cp-a", &apis::everywhere())]);
    let began = Instant::now();
    let mut child = files.live_command(twin.address()).spawn().unwrap();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if began.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert_eq!(status.code(), Some(2), "{stderr}");
    let last = stderr.lines().last().unwrap();
    assert!(last.starts_with("mvproxy: error: no apiserver's identity Lease has the label kubernetes.io/hostname="), "{stderr}");
    assert!(last.ends_with(&format!("say which is local with --server-id; there are {} (host {host})", server_id(host))), "{stderr}");
}
