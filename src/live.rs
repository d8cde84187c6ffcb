//! From flags to live discovery: who is local, what may be connected to, what other proxies are told.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use discovery::inventory::Settings;
use discovery::live::{self, Access, Announcement, Credentials, Live};
use discovery::{AllowList, ServerId};

use crate::cli::ServeFlags;
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
pub(crate) fn start(flags: &ServeFlags, own: &Own) -> Result<Live, Failure> {
    let access = access(flags)?;
    let local_address = flags.peers.local_server.0;
    let local = match &flags.peers.server_id {
        Some(id) => ServerId::new(id),
        None => {
            let hostname =
                host::name().ok_or_else(|| Failure::runtime("this host has no name: say with --server-id which server is local"))?;
            live::identify(&access, local_address, &hostname, IDENTIFY)
                .map_err(|error| Failure::usage(format_args!("{error}: say with --server-id which server is local")))?
        }
    };
    log::info(format_args!("the local server is {local} at {local_address}"));
    let config = live::Config {
        settings: Settings {
            local,
            local_address,
            peers: flags.peers.peer_endpoint.iter().map(|peer| (ServerId::new(&peer.id), peer.address)).collect(),
            allowed: allowed(flags, own),
            allow_endpoints: flags.peers.peer_cidr.is_empty(),
            reaches_proxies: access.client_pair.is_some(),
        },
        announcement: announcement(flags, own),
        access,
        log: |line| log::info(line),
    };
    live::start(config).map_err(Failure::usage)
}

fn access(flags: &ServeFlags) -> Result<Access, Failure> {
    let path = flags.peers.kubeconfig.as_deref().ok_or_else(|| Failure::usage("--kubeconfig is missing"))?;
    let kubeconfig = Named { flag: "--kubeconfig", path };
    let bytes = files::read_pem(kubeconfig)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| kubeconfig.refused("not text in UTF-8: is it the right file?"))?;
    let folder = path.parent().unwrap_or(path);
    let credentials = Credentials::from_kubeconfig(text, folder).map_err(|error| kubeconfig.refused(error))?;
    let peer_ca = files::read_pem(Named { flag: "--peer-ca-file", path: &flags.peer_ca_file })?;
    let local_ca = match &flags.local_ca_file {
        Some(path) => files::read_pem(Named { flag: "--local-ca-file", path })?,
        None => peer_ca.clone(),
    };
    let client_pair = match (&flags.proxy_client_cert_file, &flags.proxy_client_key_file) {
        (Some(cert), Some(key)) => Some((
            files::read_pem(Named { flag: "--proxy-client-cert-file", path: cert })?,
            files::read_pem(Named { flag: "--proxy-client-key-file", path: key })?,
        )),
        _ => None,
    };
    Ok(Access { credentials, local_ca, peer_ca, client_pair })
}

/// Ranges and ports of peers. Without --peer-cidr the subnet of this host, and what EndpointSlices name, which discovery adds.
fn allowed(flags: &ServeFlags, own: &Own) -> AllowList {
    let mut ranges = flags.peers.peer_cidr.clone();
    if ranges.is_empty() {
        ranges.extend(host::subnet(own.clients.ip()).filter(|_| !own.clients.ip().is_loopback()));
    }
    let mut ours = vec![own.clients, flags.peers.local_server.0];
    ours.extend(own.peers);
    AllowList { ranges, ports: flags.peers.peer_ports.clone(), own: ours }
}

/// What other proxies are told; nothing when there is no peer port.
fn announcement(flags: &ServeFlags, own: &Own) -> Option<Announcement> {
    let peers = own.peers?;
    let ip = flags.peers.peer_advertise_ip.unwrap_or_else(|| advertised_ip(peers.ip()));
    let port = flags.peers.peer_advertise_port.unwrap_or_else(|| peers.port());
    // kube-apiserver advertises its own port with the address of the host.
    let server_address = SocketAddr::new(ip, flags.peers.local_server.0.port());
    Some(Announcement { peer_address: SocketAddr::new(ip, port), server_address })
}

fn advertised_ip(bound: IpAddr) -> IpAddr {
    if bound.is_unspecified() { host::default_address().unwrap_or(bound) } else { bound }
}
