//! mvproxy in front of real servers: one for each, all knowing each other's ports.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use http::StatusCode;
use loadgen::{Client, Error};
use rustix::process::Signal;

use super::apiserver::Apiserver;
use super::plane::{ADMIN, ControlPlane, MVPROXY, User};
use super::process::{EXIT_LIMIT, Process};
use crate::support::NAME;
use crate::support::tools::free_port;

/// For a proxy to know all servers.
const READY_LIMIT: Duration = Duration::from_secs(60);
/// A resource of a group-version that nobody serves: 503 while somebody was not asked yet, 404 then.
const NOBODYS: &str = "/apis/nobody.example/v1/things";

/// The proxies of a control plane, in the order of their servers.
pub struct Fleet {
    pub proxies: Vec<Proxy>,
}

/// One mvproxy; killed when dropped.
pub struct Proxy {
    process: Option<Process>,
    arguments: Vec<String>,
    hostname: String,
    log: PathBuf,
    ca: String,
    pub clients: SocketAddr,
    pub peers: SocketAddr,
    pub status: SocketAddr,
}

impl Fleet {
    /// Starts one in front of each server and waits until each knows all of them. `flags` come last.
    pub async fn start(plane: &ControlPlane, servers: &[&Apiserver], flags: &[&str]) -> Self {
        let mut fleet = Self::launch(plane, servers, flags);
        for proxy in &mut fleet.proxies {
            proxy.wait_ready().await;
        }
        fleet
    }

    /// Starts them and waits for nothing.
    pub fn launch(plane: &ControlPlane, servers: &[&Apiserver], flags: &[&str]) -> Self {
        let places: Vec<[SocketAddr; 3]> = servers.iter().map(|_| free()).collect();
        let ports = servers.iter().map(|server| server.address().port()).chain(places.iter().map(|place| place[1].port()));
        let ports: Vec<String> = ports.map(|port| port.to_string()).collect();
        let ports = format!("--peer-ports={}", ports.join(","));
        let proxies = servers.iter().zip(places).map(|(server, place)| {
            let mut arguments = arguments(plane, server, place);
            arguments.push(ports.clone());
            arguments.extend(flags.iter().map(|&flag| flag.to_owned()));
            let log = plane.path(&format!("mvproxy-{}.log", server.hostname()));
            let [clients, peers, status] = place;
            let hostname = server.hostname().to_owned();
            let mut proxy = Proxy { process: None, arguments, hostname, log, ca: plane.pki().ca_pem().to_owned(), clients, peers, status };
            proxy.launch();
            proxy
        });
        Self { proxies: proxies.collect() }
    }
}

fn arguments(plane: &ControlPlane, server: &Apiserver, [clients, peers, status]: [SocketAddr; 3]) -> Vec<String> {
    let name = format!("mvproxy-{}", server.hostname());
    plane.pki().serving().unwrap().write(plane.path("").as_path(), &name).unwrap();
    let file = |flag: &str, name: &str| format!("--{flag}={}", plane.path(name).display());
    vec![
        env!("CARGO_BIN_EXE_mvproxy").to_owned(),
        "serve".to_owned(),
        format!("--bind-address={}", clients.ip()),
        format!("--secure-port={}", clients.port()),
        format!("--peer-port={}", peers.port()),
        format!("--status-port={}", status.port()),
        "--shards=1".to_owned(),
        file("tls-cert-file", &format!("{name}.crt")),
        file("tls-private-key-file", &format!("{name}.key")),
        file("peer-ca-file", "ca.crt"),
        file("requestheader-client-ca-file", "front-proxy-ca.crt"),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        file("proxy-client-cert-file", "front-proxy-client.crt"),
        file("proxy-client-key-file", "front-proxy-client.key"),
        format!("--kubeconfig={}", plane.kubeconfig(server.address(), MVPROXY).display()),
        format!("--local-server=https://{}", server.address()),
        "--peer-cidr=127.0.0.0/8".to_owned(),
    ]
}

/// Three ports that are free now. mvproxy refuses one that is shared, so they cannot be kept.
fn free() -> [SocketAddr; 3] {
    [(); 3].map(|()| SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())))
}

impl Proxy {
    fn launch(&mut self) {
        self.process = Some(Process::start("mvproxy", Some(&self.hostname), self.arguments.clone(), &self.log));
    }

    /// A client of it.
    pub async fn client(&self, user: User) -> Client {
        self.connect(user).await.unwrap_or_else(|error| self.fail(&format!("takes nobody: {error}")))
    }

    async fn connect(&self, user: User) -> Result<Client, Error> {
        Client::connect(self.clients, &self.ca, NAME, Some(user.token)).await
    }

    /// Waits until it has asked every server.
    pub async fn wait_ready(&mut self) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.as_mut().and_then(Process::ended) {
                self.fail(&format!("ended: {status}"));
            }
            if let Ok(client) = self.connect(ADMIN).await
                && client.get(NOBODYS).await.is_ok_and(|answer| answer.status == StatusCode::NOT_FOUND)
            {
                return;
            }
            if begun.elapsed() > READY_LIMIT {
                self.fail(&format!("did not know all servers within {READY_LIMIT:?}"));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Ends it with SIGTERM.
    pub async fn stop(&mut self) {
        let mut process = self.process.take().expect("it runs");
        process.signal(Signal::TERM);
        let status = process.wait(EXIT_LIMIT).await;
        assert!(status.success(), "{status}");
    }

    /// Panics with what happened and the end of its log.
    pub fn fail(&self, what: &str) -> ! {
        match &self.process {
            Some(process) => process.fail(what),
            None => panic!("mvproxy {what}; it does not run"),
        }
    }
}
