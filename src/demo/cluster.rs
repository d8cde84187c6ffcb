//! Two simulated apiservers that serve different resources, and an engine in front of each.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use discovery::{Gvr, Publisher, Server, ServerId, ServerSet, Snapshot, SnapshotBuilder};
use engine::{Config, Engine, IoDriver, Limits, tls};
use loadgen::twin::apis::{self, Api, Resource};
use loadgen::{Pki, Twin, TwinConfig};
use rustls::pki_types::UnixTime;
use tokio::runtime::Runtime;

/// Watches that somebody left open must not keep the demo from ending.
const DRAIN: Duration = Duration::from_secs(1);

/// The servers and their proxies; ends by [`Cluster::stop`].
pub(super) struct Cluster {
    pki: Pki,
    sites: Vec<Site>,
}

/// One apiserver with the proxy in front of it.
pub(super) struct Site {
    id: &'static str,
    version: &'static str,
    apis: Vec<Api>,
    twin: Twin,
    proxy: Engine,
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
    pub(super) fn start(runtime: &Runtime) -> Result<Self, StartError> {
        let pki = Pki::new()?;
        let planned = [("cp-a", "v1.31.14", with_old_flowcontrol()), ("cp-b", "v1.32.10", [apis::base(), apis::batch()].concat())];
        let mut started = Vec::new();
        for (id, version, apis) in planned {
            let config = TwinConfig {
                version: version.into(),
                require_token: true,
                stop_grace: DRAIN,
                ..TwinConfig::new(id, pki.serving()?, apis.clone())
            };
            let _inside = runtime.enter();
            started.push((id, version, apis, Twin::start(config)?));
        }
        let servers: Vec<(Server, Vec<Api>)> =
            started.iter().map(|(id, _, apis, twin)| (Server::new(ServerId::new(id), twin.address()), apis.clone())).collect();
        let mut sites = Vec::new();
        for (local, (id, version, apis, twin)) in started.into_iter().enumerate() {
            let routes = Publisher::new(snapshot(&servers, local)?);
            let proxy = Engine::start(config(), tls_configs(&pki)?, &routes.readers())?;
            sites.push(Site { id, version, apis, twin, proxy });
        }
        Ok(Self { pki, sites })
    }

    /// The apiservers, in the order they are named.
    pub(super) fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// The ways in, one per site.
    pub(super) fn doors(&self) -> Vec<Door> {
        let door =
            |site: &Site| Door { id: site.id, server: site.twin.address(), proxy: site.proxy_address(), ca_pem: self.ca_pem().into() };
        self.sites.iter().map(door).collect()
    }

    /// The certificate authority.
    pub(super) fn ca_pem(&self) -> &str {
        self.pki.ca_pem()
    }

    /// Ends the proxies, then the servers, and waits for them.
    pub(super) fn stop(self, runtime: &Runtime) {
        for site in &self.sites {
            site.proxy.drain();
        }
        for site in self.sites {
            if let Err(failed) = site.proxy.join() {
                eprintln!("mvproxy: demo: {}: {failed}", site.id);
            }
            runtime.block_on(site.twin.stop());
        }
    }
}

impl Site {
    /// The server's identity.
    pub(super) fn id(&self) -> &'static str {
        self.id
    }

    /// The Kubernetes version it pretends to be.
    pub(super) fn version(&self) -> &'static str {
        self.version
    }

    /// What it serves.
    pub(super) fn apis(&self) -> &[Api] {
        &self.apis
    }

    /// Where its proxy listens.
    pub(super) fn proxy_address(&self) -> SocketAddr {
        self.proxy.address()
    }
}

/// The older server still has a version that the newer one dropped: v1.32 was the first without it.
fn with_old_flowcontrol() -> Vec<Api> {
    let resources = vec![Resource::cluster("flowschemas", "flowschema", "FlowSchema")];
    [apis::base(), vec![Api::new("flowcontrol.apiserver.k8s.io", "v1beta3", resources)]].concat()
}

/// What a proxy in front of the server at `local` knows.
fn snapshot(servers: &[(Server, Vec<Api>)], local: usize) -> Result<Snapshot, discovery::BuildError> {
    let mut builder = SnapshotBuilder::new(1);
    for (nth, (server, apis)) in servers.iter().enumerate() {
        let index = builder.server(server.clone())?;
        if nth == local {
            builder.local(index);
        }
        for api in apis {
            for resource in &api.resources {
                builder.serve(&Gvr::new(&api.group, &api.version, &resource.plural), ServerSet::only(index))?;
            }
        }
    }
    builder.build()
}

/// One shard on any CPU: the demo may share a small machine with anything.
fn config() -> Config {
    let limits = Limits { drain: DRAIN, ..Limits::default() };
    Config {
        bind: (Ipv4Addr::LOCALHOST, 0).into(),
        cpus: vec![None],
        io_driver: IoDriver::Auto,
        files: None,
        limits,
        peer_bind: None,
        report: None,
        release: None,
    }
}

fn tls_configs(pki: &Pki) -> Result<tls::Configs, StartError> {
    let (serving, now) = (pki.serving()?, UnixTime::now());
    let pair = tls::Pair::new(serving.cert.as_bytes(), serving.key.as_bytes(), now)?;
    let clients = tls::Serving::new(&pair, &[], tls::CLIENTS_SPEAK)?;
    let servers = || tls::client_config(pki.ca_pem().as_bytes(), None, tls::SERVERS_SPEAK, now);
    Ok(tls::Configs { clients, local: servers()?, peer: servers()?, proxy: None, peer_port: None })
}

/// Why the cluster does not run; the text of whatever failed.
pub(super) struct StartError(String);

macro_rules! from {
    ($($error:ty),*) => {
        $(impl From<$error> for StartError {
            fn from(error: $error) -> Self {
                Self(error.to_string())
            }
        })*
    };
}
from!(loadgen::Error, engine::StartError, tls::ConfigError, discovery::BuildError);

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
