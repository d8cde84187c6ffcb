//! Two servers with one storage, a proxy in front of each, and a client of the first: how jobs, which only the second serves, are had
//! when one of the two ways to it is closed.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bytes::Bytes;
use discovery::Via;
use engine::Engine;
use http::{HeaderMap, HeaderValue, Method};
use loadgen::twin::{Storage, apis, server_id};
use loadgen::{Client, Pki, Twin, TwinConfig};
use tokio::runtime::Runtime;

use super::{Routes, config};
use crate::certificates::Certificates;
use crate::cli::{self, Command, Parsed, ServeFlags};

const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
const FRONT_PROXY: &str = "front-proxy-client";
/// For what takes a second on a quiet machine.
const LIMIT: Duration = Duration::from_secs(20);

struct Scene {
    runtime: Runtime,
    pki: Pki,
    /// Signs front-proxy certificates.
    front: Pki,
    /// The second serves jobs.
    twins: [Twin; 2],
    directory: PathBuf,
    peer_port: u16,
}

/// A proxy that runs.
struct Proxy {
    engine: Engine,
    routes: Routes,
}

impl Scene {
    fn new(name: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (pki, storage) = (Pki::new().unwrap(), Storage::default());
        let inside = runtime.enter();
        let twins = [("cp-a", apis::control_plane()), ("cp-b", [apis::control_plane(), apis::batch()].concat())].map(|(id, apis)| {
            let (hostname, storage) = (Some(id.to_owned()), Some(storage.clone()));
            Twin::start(TwinConfig { hostname, storage, ..TwinConfig::new(id, pki.serving().unwrap(), apis) }).unwrap()
        });
        drop(inside);
        let directory = std::env::temp_dir().join(format!("mvproxy-two-proxies-{name}-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let peer_port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Self { runtime, pki, front: Pki::new().unwrap(), twins, directory, peer_port }
    }

    /// A proxy in front of one of the servers, who may connect to `ports`.
    fn proxy(&self, nth: usize, ports: &[u16], more: &[String]) -> Proxy {
        let directory = self.directory.join(nth.to_string());
        let flags = self.flags(nth, &directory, ports, more);
        let certificates = Certificates::load(&flags).unwrap();
        let mut config = config(&flags, None).unwrap();
        let routes = Routes::open(&flags, &config, &certificates).unwrap();
        config.report = routes.report();
        let engine = Engine::start(config, certificates.configs(), &routes.readers()).unwrap();
        Proxy { engine, routes }
    }

    fn flags(&self, nth: usize, directory: &Path, ports: &[u16], more: &[String]) -> ServeFlags {
        let (cert, key) = self.pki.serving().unwrap().write(directory, "serving").unwrap();
        let (client_cert, client_key) = self.front.client(FRONT_PROXY, &[]).unwrap().write(directory, "client").unwrap();
        let kubeconfig = directory.join("kubeconfig");
        let text = "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{name: c, context: {cluster: k, user: u}}]\n\
                    clusters: [{name: k, cluster: {server: 'https://192.0.2.1'}}]\nusers: [{name: u, user: {token: t}}]\n";
        std::fs::write(&kubeconfig, text).unwrap();
        let files = [
            ("tls-cert-file", cert),
            ("tls-private-key-file", key),
            ("peer-ca-file", self.pki.write_ca(directory, "ca").unwrap()),
            ("proxy-client-cert-file", client_cert),
            ("proxy-client-key-file", client_key),
            ("requestheader-client-ca-file", self.front.write_ca(directory, "front").unwrap()),
            ("kubeconfig", kubeconfig),
        ];
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        let mut line = ["mvproxy", "serve", "--bind-address=127.0.0.1", "--secure-port=0", "--shards=1", "--peer-cidr=127.0.0.0/8"]
            .map(String::from)
            .to_vec();
        line.extend(files.map(|(flag, path)| format!("--{flag}={}", path.display())));
        line.extend([
            format!("--local-server=https://{}", self.twins[nth].address()),
            format!("--server-id={}", server_id(["cp-a", "cp-b"][nth])),
            format!("--peer-ports={}", ports.join(",")),
        ]);
        line.extend_from_slice(more);
        let Ok(Parsed::Command(Command::Serve(flags))) = cli::parse(line.into_iter().map(Into::into)) else { unreachable!() };
        *flags
    }

    fn ports(&self) -> [u16; 2] {
        self.twins.each_ref().map(|twin| twin.address().port())
    }

    /// Waits until that proxy knows what the second server serves; where requests for it go then.
    fn until_known(&self, proxy: &Proxy) -> Option<(SocketAddr, Via)> {
        let (id, began) = (server_id("cp-b"), Instant::now());
        loop {
            let status = proxy.routes.status().unwrap();
            let views = status.servers.iter().map(|server| &server.view);
            let mut known = views.filter(|view| view.id.as_str() == id && view.is_ready && view.fetched.is_some());
            if let Some(view) = known.next() {
                return view.address;
            }
            assert!(began.elapsed() < LIMIT, "{status:#?}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn client(&self, proxy: &Proxy) -> Client {
        self.runtime.block_on(Client::connect(proxy.engine.address(), self.pki.ca_pem(), "localhost", Some("t"))).unwrap()
    }

    /// Asks until the second server answers. Until then nothing may have been sent to it.
    fn until_answered(&self, client: &Client, method: &Method, body: &str) {
        let began = Instant::now();
        loop {
            let fields = HeaderMap::from_iter([(http::header::CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
            let asked = client.request(method.clone(), JOBS, fields, Bytes::copy_from_slice(body.as_bytes()), None);
            let answer = self.runtime.block_on(asked).unwrap();
            if answer.status.is_success() {
                assert_eq!(answer.header("x-twin-id"), Some("cp-b"));
                return;
            }
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            assert_eq!((answer.status.as_u16(), answer.header("retry-after").is_some()), (503, true), "{method}: {text}");
            assert!(began.elapsed() < LIMIT, "{method}: {text}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(self, proxies: Vec<Proxy>) {
        for Proxy { engine, routes } in proxies {
            routes.close();
            engine.drain();
            engine.join().unwrap();
        }
        for twin in self.twins {
            self.runtime.block_on(twin.abort());
        }
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

fn job(name: &str) -> String {
    format!(r#"{{"apiVersion":"batch/v1","kind":"Job","metadata":{{"name":"{name}"}}}}"#)
}

/// As with `--local-server https://127.0.0.1:6444`, where nobody listens at the address that the server advertises.
#[test]
fn a_server_is_had_by_the_peer_port_of_its_proxy_alone() {
    let scene = Scene::new("alone");
    let second = scene.proxy(1, &scene.ports(), &[format!("--peer-port={}", scene.peer_port)]);
    let first = scene.proxy(0, &[scene.peer_port], &["--peer-port=0".to_owned()]);
    assert_eq!(scene.until_known(&first), Some((([127, 0, 0, 1], scene.peer_port).into(), Via::Proxy)));
    let client = scene.client(&first);
    scene.until_answered(&client, &Method::GET, "");
    scene.until_answered(&client, &Method::POST, &job("by-proxy"));
    drop(client);
    scene.end(vec![first, second]);
}

/// Its server is reached at its own address. What the engine does when a proxy begins to refuse is in the scenarios of its core.
#[test]
fn a_proxy_that_does_not_take_our_certificate_gives_way() {
    let scene = Scene::new("refused");
    let names = "--requestheader-allowed-names=somebody-else".to_owned();
    let second = scene.proxy(1, &scene.ports(), &[format!("--peer-port={}", scene.peer_port), names]);
    let [_, own] = scene.ports();
    let first = scene.proxy(0, &[scene.peer_port, own], &["--peer-port=0".to_owned()]);
    scene.until_known(&first);
    let client = scene.client(&first);
    // Long enough for discovery to try the proxy's port, which listens.
    for nth in 0..60 {
        assert_eq!(scene.until_known(&first), Some((scene.twins[1].address(), Via::Apiserver)));
        scene.until_answered(&client, &Method::POST, &job(&format!("by-itself-{nth}")));
        scene.until_answered(&client, &Method::GET, "");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop(client);
    scene.end(vec![first, second]);
}
