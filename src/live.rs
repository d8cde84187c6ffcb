//! From flags to live discovery: who is local, what may be connected to, what other proxies are told.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use discovery::inventory::Settings;
use discovery::live::{self, Access, Announcement, Certificates, Credentials, Live};
use discovery::{AllowList, ServerId};

use crate::cli::{Endpoint, ServeFlags};
use crate::failure::Failure;
use crate::files::{self, Named};
use crate::{host, log};

/// How long the local server may take to say who it is: it may be starting beside us.
const IDENTIFY: Duration = Duration::from_secs(30);

/// Where this proxy listens, and is told to be.
pub(crate) struct Own {
    pub(crate) clients: SocketAddr,
    pub(crate) peers: Option<SocketAddr>,
}

/// Starts discovery; the first snapshot says that nothing is known yet.
pub(crate) fn start(flags: &ServeFlags, own: &Own, certificates: Certificates) -> Result<Live, Failure> {
    let allowed = allowed(flags, own);
    let peers = peers(flags, &allowed)?;
    let access = Access { credentials: credentials(flags)?, certificates };
    let local_address = flags.peers.local_server.0;
    let local = match &flags.peers.server_id {
        Some(id) => ServerId::new(id),
        None => {
            let hostname =
                host::name().ok_or_else(|| Failure::runtime("this host has no name: say with --server-id which server is local"))?;
            live::identify(&access, local_address, &hostname, IDENTIFY).map_err(Failure::usage)?
        }
    };
    log::info(format_args!("the local server is {local} at {local_address}"));
    let config = live::Config {
        settings: Settings {
            local,
            local_address,
            peers,
            allowed,
            allow_endpoints: flags.peers.peer_cidr.is_empty(),
            reaches_proxies: access.certificates.client_pair.is_some(),
        },
        announcement: announcement(flags, own),
        access,
        log: |severity, line| match severity {
            live::Severity::Info => log::info(line),
            live::Severity::Warning => log::warning(line),
            live::Severity::Error => log::error(line),
        },
    };
    live::start(config).map_err(Failure::usage)
}

/// The servers of the command line: each once, and none of them ourselves.
fn peers(flags: &ServeFlags, allowed: &AllowList) -> Result<BTreeMap<ServerId, SocketAddr>, Failure> {
    let mut peers = BTreeMap::new();
    for Endpoint { id, address } in &flags.peers.peer_endpoint {
        if allowed.is_own(*address) {
            return Err(Failure::usage(format_args!(
                "--peer-endpoint {id}={address}: that is this mvproxy, or the server behind it: give the address of the other apiserver"
            )));
        }
        if peers.insert(ServerId::new(id), *address).is_some_and(|before| before != *address) {
            return Err(Failure::usage(format_args!("--peer-endpoint: {id} has two addresses: give one")));
        }
    }
    Ok(peers)
}

/// The kubeconfig is read once; a token file that it names is read again by discovery.
fn credentials(flags: &ServeFlags) -> Result<Credentials, Failure> {
    let path = flags.peers.kubeconfig.as_deref().ok_or_else(|| Failure::usage("--kubeconfig is missing"))?;
    let kubeconfig = Named { flag: "--kubeconfig", path };
    let bytes = files::read_pem(kubeconfig)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| kubeconfig.refused("not text in UTF-8: is it the right file?"))?;
    let folder = path.parent().unwrap_or(path);
    Credentials::from_kubeconfig(text, folder).map_err(|error| kubeconfig.refused(error))
}

/// Ranges and ports of peers. Without --peer-cidr the subnet of this host, and what EndpointSlices name, which discovery adds.
fn allowed(flags: &ServeFlags, own: &Own) -> AllowList {
    let mut ranges = flags.peers.peer_cidr.clone();
    if ranges.is_empty() {
        ranges.extend(host::subnet(advertised_ip(own.clients.ip())).filter(|_| !own.clients.ip().is_loopback()));
    }
    let host = host::addresses();
    let bound = [Some(own.clients), own.peers].into_iter().flatten();
    let mut ours: Vec<SocketAddr> = bound.flat_map(|bound| reached_at(bound, &host)).collect();
    // The EndpointSlice names the advertised one, also when nothing is announced: it would be a peer.
    ours.extend([flags.peers.local_server.0, server_address(flags, own)]);
    AllowList { ranges, ports: flags.peers.peer_ports.clone(), own: ours }
}

/// Where a port is reached: with every address bound, at each one of the host.
pub(crate) fn reached_at(bound: SocketAddr, host: &[IpAddr]) -> Vec<SocketAddr> {
    let all = host.iter().filter(|_| bound.ip().is_unspecified()).map(|&ip| SocketAddr::new(ip, bound.port()));
    std::iter::once(bound).chain(all).collect()
}

/// What other proxies are told; nothing when there is no peer port.
fn announcement(flags: &ServeFlags, own: &Own) -> Option<Announcement> {
    let peers = own.peers?;
    let ip = flags.peers.peer_advertise_ip.unwrap_or_else(|| advertised_ip(peers.ip()));
    let port = flags.peers.peer_advertise_port.unwrap_or_else(|| peers.port());
    Some(Announcement { peer_address: SocketAddr::new(ip, port), server_address: server_address(flags, own) })
}

/// kube-apiserver advertises its own port with the address of the host, where clients come: proxies may have a network of their own.
fn server_address(flags: &ServeFlags, own: &Own) -> SocketAddr {
    SocketAddr::new(advertised_ip(own.clients.ip()), flags.peers.local_server.0.port())
}

fn advertised_ip(bound: IpAddr) -> IpAddr {
    if bound.is_unspecified() { host::default_address().unwrap_or(bound) } else { bound }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use super::*;
    use crate::cli::{self, Command, Parsed};

    fn flags(more: &[&str]) -> ServeFlags {
        let files = ["--tls-cert-file=c", "--tls-private-key-file=k", "--peer-ca-file=p"];
        let line = ["mvproxy", "serve"].iter().chain(&files).chain(more).map(std::ffi::OsString::from);
        let Ok(Parsed::Command(Command::Serve(flags))) = cli::parse(line) else { unreachable!() };
        *flags
    }

    fn at(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    /// Else a Lease that names the address of this host makes the proxy its own peer.
    #[test]
    fn with_every_address_bound_all_of_them_are_ours() {
        let host = ["10.0.0.5".parse().unwrap(), "fd00::5".parse().unwrap()];
        assert_eq!(reached_at(at("0.0.0.0:6443"), &host), [at("0.0.0.0:6443"), at("10.0.0.5:6443"), at("[fd00::5]:6443")]);
        assert_eq!(reached_at(at("10.0.0.5:6443"), &host), [at("10.0.0.5:6443")]);
        let own = Own { clients: at("0.0.0.0:6443"), peers: Some(at("0.0.0.0:6445")) };
        let allowed = allowed(&flags(&["--peer-cidr=0.0.0.0/0,::/0,127.0.0.0/8"]), &own);
        for ip in host::addresses().into_iter().chain([IpAddr::from([127, 0, 0, 9])]) {
            assert!(![6443, 6445].iter().any(|&port| allowed.allows(SocketAddr::new(ip, port))), "{ip}");
        }
        assert!(allowed.allows(at("192.0.2.1:6443")));
    }

    /// Else the EndpointSlice's entry of the local server is a peer when nothing is announced.
    #[test]
    fn what_the_local_server_advertises_is_ours_without_a_peer_port_too() {
        let own = Own { clients: at("10.0.0.5:443"), peers: None };
        let flags = flags(&["--local-server=https://127.0.0.1:6443", "--peer-cidr=10.0.0.0/8"]);
        assert!(announcement(&flags, &own).is_none());
        let allowed = allowed(&flags, &own);
        assert!(allowed.is_own(at("10.0.0.5:6443")) && !allowed.allows(at("10.0.0.5:6443")));
        assert!(allowed.allows(at("10.0.0.6:6443")));
    }

    #[test]
    fn a_peer_of_the_command_line_has_one_address_and_is_not_us() {
        let own = Own { clients: at("0.0.0.0:443"), peers: Some(at("0.0.0.0:6445")) };
        let told = |more: &[&str]| {
            let flags = flags(&[&["--local-server=https://127.0.0.1:6444"], more].concat());
            peers(&flags, &allowed(&flags, &own)).map_err(|failure| failure.to_string())
        };
        let b = "--peer-endpoint=b=10.0.0.2:6443";
        assert_eq!(told(&[b, b]).unwrap(), BTreeMap::from([(ServerId::new("b"), at("10.0.0.2:6443"))]));
        assert!(told(&[b, "--peer-endpoint=b=10.0.0.3:6443"]).unwrap_err().contains("b has two addresses"));
        for ours in ["127.0.0.1:443", "127.0.0.1:6444", "127.0.0.1:6445"] {
            let error = told(&[&format!("--peer-endpoint=c={ours}")]).unwrap_err();
            assert!(error.contains(&format!("--peer-endpoint c={ours}: that is this mvproxy")), "{error}");
        }
    }

    #[test]
    fn the_address_of_the_server_is_not_that_of_the_proxies() {
        let own = Own { clients: at("10.0.0.5:6443"), peers: Some(at("10.0.0.5:6445")) };
        let told = |more: &[&str]| announcement(&flags(more), &own).unwrap();
        let expected = Announcement { peer_address: at("10.0.0.5:6445"), server_address: at("10.0.0.5:6444") };
        assert_eq!(told(&["--local-server=https://127.0.0.1:6444"]), expected);
        let expected = Announcement { peer_address: at("192.168.7.7:7000"), server_address: at("10.0.0.5:6443") };
        assert_eq!(told(&["--peer-advertise-ip=192.168.7.7", "--peer-advertise-port=7000"]), expected);
    }
}
