//! One mvproxy of the demo: as `mvproxy serve` starts it, from flags, in this process.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use discovery::Via;
use discovery::live::{ServerStatus, Source, Status};
use engine::Engine;

use crate::certificates::Certificates;
use crate::cli::{self, Command, Parsed, ServeFlags};
use crate::failure::Failure;
use crate::serve::{self, Routes};

/// Watches that somebody left open must not keep the demo from ending.
pub(super) const DRAIN: Duration = Duration::from_secs(1);

/// What its flags are made of.
pub(super) struct Setting {
    /// The server behind it.
    pub(super) server_id: String,
    pub(super) server: SocketAddr,
    pub(super) clients: SocketAddr,
    pub(super) peers: SocketAddr,
    /// Every port that a peer may have.
    pub(super) ports: Vec<u16>,
    pub(super) files: Files,
}

/// Where its files are.
#[derive(Clone)]
pub(super) struct Files {
    /// Certificate, then key.
    pub(super) serving: (PathBuf, PathBuf),
    pub(super) front_proxy: (PathBuf, PathBuf),
    pub(super) ca: PathBuf,
    pub(super) front_proxy_ca: PathBuf,
    pub(super) kubeconfig: PathBuf,
}

/// A running proxy; ends by [`Instance::drain`].
pub(super) struct Instance {
    engine: Engine,
    routes: Routes,
}

impl Instance {
    /// Starts it. What it knows comes later.
    pub(super) fn start(setting: &Setting) -> Result<Self, Failure> {
        let flags = flags(setting)?;
        let certificates = Certificates::load(&flags)?;
        let mut config = serve::config(&flags, None)?;
        // On any CPU: the demo may share a small machine with anything.
        config.cpus = vec![None];
        config.limits.drain = DRAIN;
        let routes = Routes::open(&flags, &config, &certificates)?;
        config.report = routes.report();
        match Engine::start(config, certificates.configs(), &routes.readers()) {
            Ok(engine) => Ok(Self { engine, routes }),
            Err(error) => {
                routes.close();
                Err(Failure::runtime(error))
            }
        }
    }

    /// Where clients come in.
    pub(super) fn address(&self) -> SocketAddr {
        self.engine.address()
    }

    /// Does it know all of so many servers, and the way to each?
    pub(super) fn knows(&self, servers: usize) -> bool {
        self.routes.status().is_some_and(|status| is_complete(&status, servers))
    }

    /// Takes its Lease away and lets requests end.
    pub(super) fn drain(self) -> Engine {
        self.routes.close();
        self.engine.drain();
        self.engine
    }

    #[cfg(test)]
    pub(super) fn panic_shard(&self) -> bool {
        self.engine.panic_shard(0)
    }
}

/// Everything was listed, and every server asked; every peer is reached through its proxy.
fn is_complete(status: &Status, servers: usize) -> bool {
    let is_listed = Source::ALL.into_iter().filter(|source| !source.is_optional()).all(|source| status.was_listed(source));
    let is_known = |server: &ServerStatus| {
        let view = &server.view;
        view.is_ready && view.fetched.is_some() && (view.is_local || matches!(view.address, Some((_, Via::Proxy))))
    };
    is_listed && status.generation > 0 && status.servers.len() == servers && status.servers.iter().all(is_known)
}

/// The command line, read as any other.
fn flags(setting: &Setting) -> Result<Box<ServeFlags>, Failure> {
    match cli::parse(arguments(setting).into_iter().map(Into::into))? {
        Parsed::Command(Command::Serve(flags)) => Ok(flags),
        _ => Err(Failure::runtime("demo: its own flags are not understood")),
    }
}

fn arguments(setting: &Setting) -> Vec<String> {
    let files = &setting.files;
    let ports: Vec<String> = setting.ports.iter().map(u16::to_string).collect();
    let mut arguments = vec![
        "mvproxy".to_owned(),
        "serve".to_owned(),
        format!("--bind-address={}", setting.clients.ip()),
        format!("--secure-port={}", setting.clients.port()),
        format!("--peer-port={}", setting.peers.port()),
        "--status-port=0".to_owned(),
        "--requestheader-allowed-names=front-proxy-client".to_owned(),
        format!("--local-server=https://{}", setting.server),
        format!("--server-id={}", setting.server_id),
        "--peer-cidr=127.0.0.0/8".to_owned(),
        format!("--peer-ports={}", ports.join(",")),
    ];
    let paths = [
        ("tls-cert-file", &files.serving.0),
        ("tls-private-key-file", &files.serving.1),
        ("peer-ca-file", &files.ca),
        ("requestheader-client-ca-file", &files.front_proxy_ca),
        ("proxy-client-cert-file", &files.front_proxy.0),
        ("proxy-client-key-file", &files.front_proxy.1),
        ("kubeconfig", &files.kubeconfig),
    ];
    arguments.extend(paths.map(|(flag, path)| format!("--{flag}={}", path.display())));
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flags_are_understood() {
        let pair = |name: &str| (PathBuf::from(format!("{name}.crt")), PathBuf::from(format!("{name}.key")));
        let files = Files {
            serving: pair("serving"),
            front_proxy: pair("front-proxy"),
            ca: "ca.crt".into(),
            front_proxy_ca: "front-proxy-ca.crt".into(),
            kubeconfig: "kube config".into(),
        };
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let setting =
            Setting { server_id: "apiserver-x".into(), server: local(1), clients: local(2), peers: local(3), ports: vec![1, 3, 5], files };
        let flags = flags(&setting).unwrap();
        assert_eq!((flags.secure_port, flags.peers.peer_port, flags.peers.local_server.0), (2, 3, local(1)));
        assert_eq!(flags.peers.peer_ports, [1, 3, 5]);
        assert_eq!(flags.peers.kubeconfig.as_deref(), Some(std::path::Path::new("kube config")));
        assert!(flags.static_routes.is_none() && flags.peers.requestheader_client_ca_file.is_some());
    }
}
