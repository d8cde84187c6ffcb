//! Simulated apiservers that share their objects and serve different resources, and an mvproxy in front of each, which learns from them who
//! serves what.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

use loadgen::twin::{Storage, server_id};
use loadgen::{Pki, Twin, TwinConfig, ports};
use tokio::runtime::Runtime;
use tokio::time::{Instant, sleep};

use super::directory::Directory;
use super::instance::{DRAIN, Files, Instance, Setting};
use super::plan::{self, Server};
use super::{TOKEN, kubeconfig};
use crate::failure::Failure;

/// Times that ports are chosen.
const ATTEMPTS: usize = 3;
/// For the proxies to learn everything; on an idle machine it takes less than a second.
const LEARN_MAX: Duration = Duration::from_secs(30);
const LEARN_POLL: Duration = Duration::from_millis(10);

/// The servers and their proxies; ends by [`Cluster::stop`].
pub(super) struct Cluster {
    pki: Pki,
    storage: Storage,
    sites: Vec<Site>,
}

/// One apiserver with the proxy in front of it.
pub(super) struct Site {
    server: Server,
    address: SocketAddr,
    twin: Option<Twin>,
    proxy: Instance,
}

/// How a client reaches a site.
#[derive(Clone)]
pub(super) struct Door {
    /// Which site.
    pub(super) id: &'static str,
    /// Straight to the server.
    pub(super) server: SocketAddr,
    /// Through the proxy.
    pub(super) proxy: SocketAddr,
    /// Who signed the certificates of both.
    pub(super) ca_pem: String,
}

impl Cluster {
    /// Starts everything; the simulated servers run on `runtime`.
    pub(super) fn start(runtime: &Runtime, directory: &Directory) -> Result<Self, Failure> {
        let pki = Pki::new().map_err(failed)?;
        let storage = Storage::default();
        let mut started = Vec::new();
        for server in plan::servers() {
            let _inside = runtime.enter();
            let twin = start_twin(&pki, &storage, &server, 0)?;
            started.push((server, twin));
        }
        let servers: Vec<(&'static str, SocketAddr)> = started.iter().map(|(server, twin)| (server.id, twin.address())).collect();
        let proxies = start_proxies(&servers, &pki, directory)?;
        let site = |((server, twin), proxy): ((Server, Twin), Instance)| Site { server, address: twin.address(), twin: Some(twin), proxy };
        let sites = started.into_iter().zip(proxies).map(site).collect();
        Ok(Self { pki, storage, sites })
    }

    /// Waits until every proxy knows every server.
    pub(super) async fn learned(&self) -> Result<(), String> {
        let begin = Instant::now();
        while !self.sites.iter().all(|site| site.proxy.knows(self.sites.len())) {
            if begin.elapsed() > LEARN_MAX {
                return Err(format!("the proxies did not learn who serves what within {} s", LEARN_MAX.as_secs()));
            }
            sleep(LEARN_POLL).await;
        }
        Ok(())
    }

    /// The apiservers, in the order they are named.
    pub(super) fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// The ways in, one per site.
    pub(super) fn doors(&self) -> Vec<Door> {
        let door =
            |site: &Site| Door { id: site.server.id, server: site.address, proxy: site.proxy_address(), ca_pem: self.ca_pem().into() };
        self.sites.iter().map(door).collect()
    }

    /// The certificate authority.
    pub(super) fn ca_pem(&self) -> &str {
        self.pki.ca_pem()
    }

    /// Ends the server of this name, as SIGTERM would; its proxy stays. What it was.
    pub(super) async fn stop_server(&mut self, id: &str) -> Option<&Server> {
        let site = self.sites.iter_mut().find(|site| site.server.id == id)?;
        site.twin.take()?.stop().await;
        Some(&site.server)
    }

    /// Starts a server in place of the one that was stopped. Must be called in the runtime.
    pub(super) fn start_server(&mut self, server: Server) -> Result<(), Failure> {
        let Some(site) = self.sites.iter_mut().find(|site| site.server.id == server.id) else { return Ok(()) };
        site.twin = Some(start_twin(&self.pki, &self.storage, &server, site.address.port())?);
        site.server = server;
        Ok(())
    }

    /// Ends the proxies, then the servers, and waits for them. A failure is that of a proxy which did not live to be ended.
    pub(super) fn stop(self, runtime: &Runtime) -> Result<(), Failure> {
        let mut rest = Vec::new();
        for site in self.sites {
            rest.push((site.server.id, site.proxy.drain(), site.twin));
        }
        let mut wrong = Vec::new();
        for (id, engine, twin) in rest {
            if let Err(error) = engine.join() {
                wrong.push(format!("the mvproxy of {id}: {error}"));
            }
            if let Some(twin) = twin {
                runtime.block_on(twin.stop());
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(failed(wrong.join("; "))) }
    }
}

impl Site {
    /// What the server is.
    pub(super) fn server(&self) -> &Server {
        &self.server
    }

    /// Where its proxy listens.
    pub(super) fn proxy_address(&self) -> SocketAddr {
        self.proxy.address()
    }
}

fn start_twin(pki: &Pki, storage: &Storage, server: &Server, port: u16) -> Result<Twin, Failure> {
    let config = TwinConfig {
        version: server.version.into(),
        hostname: Some(server.id.into()),
        storage: Some(storage.clone()),
        require_token: true,
        stop_grace: DRAIN,
        port,
        ..TwinConfig::new(server.id, pki.serving().map_err(failed)?, server.apis.clone())
    };
    Twin::start(config).map_err(failed)
}

/// One for each server; all know each other's ports, and nothing else.
fn start_proxies(servers: &[(&'static str, SocketAddr)], pki: &Pki, directory: &Directory) -> Result<Vec<Instance>, Failure> {
    let files = write_files(servers, pki, directory)?;
    with_free_ports(|| start_proxies_at(servers, &free_addresses(2 * servers.len())?, &files))
}

/// What the proxies read, for each server.
fn write_files(servers: &[(&'static str, SocketAddr)], pki: &Pki, directory: &Directory) -> Result<Vec<Files>, Failure> {
    let front_proxy = Pki::new().map_err(failed)?;
    let pair = front_proxy.client("front-proxy-client", &[]).map_err(failed)?;
    let serving = pki.serving().and_then(|pair| pair.write(directory.path(), "serving")).map_err(failed)?;
    let front_proxy_pair = pair.write(directory.path(), "front-proxy-client").map_err(failed)?;
    let ca = directory.write("ca.crt", pki.ca_pem())?;
    let front_proxy_ca = directory.write("front-proxy-ca.crt", front_proxy.ca_pem())?;
    let files = |&(id, server): &(&'static str, SocketAddr)| -> Result<Files, Failure> {
        let kubeconfig = directory.write(&format!("{id}.kubeconfig"), &kubeconfig::text(server, pki.ca_pem(), TOKEN))?;
        let (serving, front_proxy) = (serving.clone(), front_proxy_pair.clone());
        Ok(Files { serving, front_proxy, ca: ca.clone(), front_proxy_ca: front_proxy_ca.clone(), kubeconfig })
    };
    servers.iter().map(files).collect()
}

/// Starts with ports that were free, and again with others when somebody took one before it was bound.
fn with_free_ports<T>(mut start: impl FnMut() -> Result<T, Failure>) -> Result<T, Failure> {
    for _ in 1..ATTEMPTS {
        match start() {
            Err(failure) if is_taken(&failure) => {}
            outcome => return outcome,
        }
    }
    start()
}

/// Could a port not be bound? Everything else would be no better with other ports.
fn is_taken(failure: &Failure) -> bool {
    matches!(failure, Failure::Runtime(message) if message.starts_with("cannot listen on "))
}

/// At these addresses: the first half for clients, the second for other proxies.
fn start_proxies_at(servers: &[(&'static str, SocketAddr)], addresses: &[SocketAddr], files: &[Files]) -> Result<Vec<Instance>, Failure> {
    let (clients, peers) = addresses.split_at(servers.len());
    let ports: Vec<u16> = servers.iter().map(|server| server.1).chain(peers.iter().copied()).map(|address| address.port()).collect();
    let mut proxies: Vec<Instance> = Vec::new();
    for ((&(id, server), files), (&clients, &peers)) in servers.iter().zip(files).zip(clients.iter().zip(peers)) {
        let files = files.clone();
        match Instance::start(&Setting { server_id: server_id(id), server, clients, peers, ports: ports.clone(), files }) {
            Ok(proxy) => proxies.push(proxy),
            Err(failure) => {
                let engines: Vec<_> = proxies.into_iter().map(Instance::drain).collect();
                // How these end is nobody's concern any more.
                engines.into_iter().for_each(|engine| drop(engine.join()));
                return Err(failure);
            }
        }
    }
    Ok(proxies)
}

/// Different ones that are free now. They cannot be kept: the proxies bind them themselves.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, Failure> {
    let listeners: Vec<TcpListener> = (0..count).map(|_| ports::listen()).collect::<Result<_, _>>().map_err(failed)?;
    listeners.iter().map(TcpListener::local_addr).collect::<Result<_, _>>().map_err(failed)
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::runtime(format_args!("demo: {error}"))
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::demo::start_runtime;

    /// Starts one proxy, where somebody else has the port for clients.
    fn start_at_a_taken_port(directory: &Directory) -> Result<Vec<Instance>, Failure> {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let free = free_addresses(2).unwrap();
        let servers = [("cp-a", free[0])];
        let files = write_files(&servers, &Pki::new().unwrap(), directory).unwrap();
        start_proxies_at(&servers, &[taken.local_addr().unwrap(), free[1]], &files)
    }

    /// The words are the engine's.
    #[test]
    fn a_taken_port_is_known_by_its_failure() {
        let directory = Directory::of_test("taken").unwrap();
        let failure = start_at_a_taken_port(&directory).map(|_| ()).unwrap_err();
        assert!(is_taken(&failure), "{failure}");
        assert!(!is_taken(&failed("no permission")) && !is_taken(&Failure::usage("cannot listen on nothing")));
    }

    #[test]
    fn only_a_taken_port_is_worth_another_attempt() {
        let attempts = |outcomes: &[Result<(), &str>]| {
            let mut made = 0;
            let outcome = with_free_ports(|| {
                made += 1;
                outcomes[made - 1].map_err(Failure::runtime)
            });
            (made, outcome.is_ok())
        };
        let taken = Err("cannot listen on 127.0.0.1:1: in use");
        assert_eq!(attempts(&[Ok(())]), (1, true));
        assert_eq!(attempts(&[taken, Ok(())]), (2, true));
        assert_eq!(attempts(&[taken; ATTEMPTS]), (ATTEMPTS, false));
        assert_eq!(attempts(&[Err("cannot start a thread")]), (1, false));
    }

    #[test]
    fn a_proxy_that_failed_is_told_at_the_end() {
        let (runtime, directory) = (start_runtime().unwrap(), Directory::of_test("failed").unwrap());
        let cluster = Cluster::start(&runtime, &directory).unwrap();
        assert!(cluster.sites[1].proxy.panic_shard());
        // Until it reads no mail any more: told to end before it read this, it would end well.
        let began = Instant::now();
        while cluster.sites[1].proxy.panic_shard() {
            assert!(began.elapsed() < Duration::from_secs(10), "it does not panic");
            std::thread::sleep(Duration::from_millis(10));
        }
        let failure = cluster.stop(&runtime).unwrap_err();
        assert!(failure.to_string().contains("the mvproxy of cp-b: shard 0 failed"), "{failure}");
    }
}
