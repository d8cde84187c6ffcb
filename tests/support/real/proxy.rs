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
    /// Starts one in front of each server and waits until each knows all of them. `flags` replace those of the same name; `{clients}` and
    /// `{peers}` in them are ports of the proxy itself.
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
            arguments.retain(|ours| !flags.iter().any(|flag| name_of(flag) == name_of(ours)));
            let [clients, peers, status] = place;
            arguments.extend(flags.iter().map(|flag| with_own_ports(flag, place)));
            let log = plane.path(&format!("mvproxy-{}.log", server.hostname()));
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

/// `--shards` of `--shards=1`.
fn name_of(flag: &str) -> &str {
    flag.split_once('=').map_or(flag, |(name, _)| name)
}

/// A flag with the ports of the proxy itself for `{clients}` and `{peers}`.
fn with_own_ports(flag: &str, [clients, peers, _]: [SocketAddr; 3]) -> String {
    flag.replace("{clients}", &clients.port().to_string()).replace("{peers}", &peers.port().to_string())
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

    /// The same while it may be down.
    pub async fn connect(&self, user: User) -> Result<Client, Error> {
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

    /// Starts it again after [`Proxy::stop`], and waits for nothing.
    pub fn relaunch(&mut self) {
        assert!(self.process.is_none(), "it runs");
        self.launch();
    }

    /// Panics with what happened and the end of its log.
    pub fn fail(&self, what: &str) -> ! {
        match &self.process {
            Some(process) => process.fail(what),
            None => panic!("mvproxy {what}; it does not run"),
        }
    }
}

impl Proxy {
    /// Starts one in front of a server, be there others in front of it or not, and waits for nothing. `flags` replace those of the same
    /// name; one without a value takes that away. `{clients}` and `{peers}` in them are as in [`Fleet::start`].
    pub fn alone(plane: &ControlPlane, server: &Apiserver, flags: &[&str]) -> Self {
        let mut place = free();
        if let Some(ip) = flags.iter().find_map(|flag| flag.strip_prefix("--bind-address=")) {
            let ip: std::net::IpAddr = ip.parse().unwrap();
            place[..2].iter_mut().for_each(|address| address.set_ip(ip));
        }
        let [clients, peers, status] = place;
        // Files of its own: those of a hostname are written anew with every proxy of it.
        let name = format!("mvproxy-{}-{}", server.hostname(), clients.port());
        let (cert, key) = plane.pki().serving().unwrap().write(plane.path("").as_path(), &name).unwrap();
        let files = [format!("--tls-cert-file={}", cert.display()), format!("--tls-private-key-file={}", key.display())];
        let flags: Vec<&str> = files.iter().map(String::as_str).chain(flags.iter().copied()).collect();
        let mut arguments = arguments(plane, server, place);
        arguments.retain(|ours| !flags.iter().any(|flag| name_of(flag) == name_of(ours)));
        arguments.extend(flags.iter().filter(|flag| flag.contains('=')).map(|flag| with_own_ports(flag, place)));
        let (hostname, log) = (server.hostname().to_owned(), plane.path(&format!("{name}.log")));
        let mut proxy = Self { process: None, arguments, hostname, log, ca: plane.pki().ca_pem().to_owned(), clients, peers, status };
        proxy.launch();
        proxy
    }

    /// Asks as the admin, each time on a new connection, until the answer has that status.
    pub async fn wait_for(&self, path: &str, expected: StatusCode, limit: Duration) {
        let begun = Instant::now();
        loop {
            let answer = match self.connect(ADMIN).await {
                Ok(client) => client.get(path).await.map(|answer| answer.status),
                Err(error) => Err(error),
            };
            if matches!(answer, Ok(status) if status == expected) {
                return;
            }
            if begun.elapsed() > limit {
                self.fail(&format!("did not answer {path} with {expected} within {limit:?}, but {answer:?}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// The whole table of its status port.
    pub async fn routes(&self) -> serde_json::Value {
        let (status, body) = crate::support::http1::get_plain(self.status, "/routes").await;
        assert_eq!(status, 200, "{body}");
        serde_json::from_str(&body).unwrap()
    }

    /// The row of a server in it; null when it has none.
    pub async fn server_row(&self, id: &str) -> serde_json::Value {
        let table = self.routes().await;
        let mut rows = table["servers"].as_array().unwrap().iter();
        rows.find(|row| row["id"] == id).cloned().unwrap_or_default()
    }
}
