//! The flags about the other servers: how they are found, and how proxies reach each other.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Args;
use discovery::Cidr;

const DISCOVERY: &str = "Finding apiservers";
const PEERS: &str = "Other proxies";

/// Where the kube-apiserver behind the proxy listens, when nothing else is said.
const LOCAL_SERVER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6443);

/// The gate that kube-apiserver has for its own proxy.
const GATE: &str = "UnknownVersionInteroperabilityProxy";

/// How servers are found and reached.
#[derive(Args, Debug)]
pub(crate) struct PeerFlags {
    /// The kubeconfig whose credentials (a token) the proxy asks the apiservers with who serves what
    ///
    /// Only the user of its current context is used: where to connect to and whom to believe are said by --local-server, --local-ca-file and
    /// --peer-ca-file. The rights it needs are in docs/manifests/rbac.yaml.
    #[arg(long, value_name = "FILE", conflicts_with = "static_routes", help_heading = DISCOVERY)]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The kube-apiserver behind this proxy, as https://IP:PORT
    ///
    /// With --static-routes the file says where it is.
    #[arg(long, value_name = "URL", value_parser = server_url, default_value_t = Url(LOCAL_SERVER), help_heading = DISCOVERY)]
    pub(crate) local_server: Url,

    /// The id of the kube-apiserver behind this proxy: the name of its Lease in kube-system
    ///
    /// By default the one whose label kubernetes.io/hostname is the name of this host. When there is none or more than one, the error names
    /// the candidates. Who may write Leases in kube-system can make a second one: name it where that matters.
    #[arg(long, value_name = "ID", value_parser = clap::builder::NonEmptyStringValueParser::new(), help_heading = DISCOVERY)]
    pub(crate) server_id: Option<String>,

    /// An apiserver and where it is reached, before what the cluster says; may be given more than once
    #[arg(long, value_name = "ID=IP:PORT", value_parser = endpoint, help_heading = DISCOVERY)]
    pub(crate) peer_endpoint: Vec<Endpoint>,

    /// The ranges that addresses named by the cluster have to be in [default: those of the kubernetes EndpointSlice, and the subnet of
    /// this host]
    ///
    /// Link-local and multicast addresses are never connected to, loopback only when a range of it is named here.
    #[arg(long, value_name = "CIDR,...", value_parser = cidr, value_delimiter = ',', help_heading = DISCOVERY)]
    pub(crate) peer_cidr: Vec<Cidr>,

    /// The ports that addresses named by the cluster may have
    #[arg(long, value_name = "PORT,...", value_delimiter = ',', default_values_t = [6443, 6445], help_heading = DISCOVERY)]
    pub(crate) peer_ports: Vec<u16>,

    /// Gates of kube-apiserver as NAME=true|false; UnknownVersionInteroperabilityProxy=false sends everything to the local server
    #[arg(long, value_name = "GATE=BOOL,...", value_parser = gate, value_delimiter = ',', help_heading = DISCOVERY)]
    pub(crate) feature_gates: Vec<Gate>,

    /// The port for other proxies, on --bind-address; 0 is none
    ///
    /// They have to show a front-proxy certificate. What comes in there is served by the local server and by no other.
    #[arg(long, value_name = "PORT", value_parser = super::port, default_value = "6445", help_heading = PEERS)]
    pub(crate) peer_port: u16,

    /// The authorities that sign front-proxy certificates, in PEM form; without it there is no peer port
    #[arg(long, value_name = "FILE", help_heading = PEERS)]
    pub(crate) requestheader_client_ca_file: Option<PathBuf>,

    /// The common names that front-proxy certificates may have; blank: any that the authorities signed
    #[arg(long, value_name = "NAME,...", value_delimiter = ',', help_heading = PEERS)]
    pub(crate) requestheader_allowed_names: Vec<String>,

    /// The address that other proxies should use [default: --bind-address]
    #[arg(long, alias = "peer-advertise-address", value_name = "IP", value_parser = super::ip, help_heading = PEERS)]
    pub(crate) peer_advertise_ip: Option<IpAddr>,

    /// The port that other proxies should use [default: --peer-port]
    #[arg(long, value_name = "PORT", value_parser = super::port, help_heading = PEERS)]
    pub(crate) peer_advertise_port: Option<u16>,
}

impl PeerFlags {
    /// May requests go to other servers?
    pub(crate) fn is_on(&self) -> bool {
        self.feature_gates.iter().rev().find(|gate| gate.name == GATE).is_none_or(|gate| gate.is_on)
    }

    /// Names that count; an empty one is how kube-apiserver is told that any will do.
    pub(crate) fn allowed_names(&self) -> Vec<String> {
        self.requestheader_allowed_names.iter().map(|name| name.trim().to_owned()).filter(|name| !name.is_empty()).collect()
    }

    /// Gates that mean nothing here.
    pub(crate) fn unknown_gates(&self) -> impl Iterator<Item = &str> {
        self.feature_gates.iter().map(|gate| &*gate.name).filter(|&name| name != GATE)
    }
}

/// `https://IP:PORT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Url(pub(crate) SocketAddr);

impl std::fmt::Display for Url {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "https://{}", self.0)
    }
}

/// A server and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoint {
    pub(crate) id: String,
    pub(crate) address: SocketAddr,
}

/// A feature gate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    name: String,
    is_on: bool,
}

pub(super) fn server_url(text: &str) -> Result<Url, &'static str> {
    let address = text.strip_prefix("https://").map(|rest| rest.strip_suffix('/').unwrap_or(rest));
    let address = address.and_then(|address| address.parse::<SocketAddr>().ok()).filter(|address| address.port() != 0);
    address.map(Url).ok_or("not a server: write https://IP:PORT, such as https://127.0.0.1:6444 (names are not looked up)")
}

fn endpoint(text: &str) -> Result<Endpoint, &'static str> {
    let wrong = "not a server and its address: write ID=IP:PORT";
    let (id, address) = text.split_once('=').filter(|(id, _)| !id.is_empty()).ok_or(wrong)?;
    let address: SocketAddr = address.parse().map_err(|_| wrong)?;
    if address.port() == 0 {
        return Err("port 0 is none: write the port that the server listens on");
    }
    Ok(Endpoint { id: id.to_owned(), address })
}

fn cidr(text: &str) -> Result<Cidr, &'static str> {
    Cidr::parse(text).ok_or("not a range of addresses: write one such as 10.0.0.0/24 or fd00::/64")
}

fn gate(text: &str) -> Result<Gate, &'static str> {
    let wrong = "not a gate: write NAME=true or NAME=false";
    let (name, value) = text.split_once('=').ok_or(wrong)?;
    let is_on = value.parse().map_err(|_| wrong)?;
    Ok(Gate { name: name.to_owned(), is_on })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_checked() {
        assert_eq!(server_url("https://127.0.0.1:6444").unwrap().0, "127.0.0.1:6444".parse().unwrap());
        assert_eq!(server_url("https://[::1]:6444/").unwrap().to_string(), "https://[::1]:6444");
        for wrong in
            ["http://127.0.0.1:1", "127.0.0.1:1", "https://localhost:1", "https://127.0.0.1", "https://127.0.0.1:0", "https://1.1.1.1:1/x"]
        {
            assert!(server_url(wrong).is_err(), "{wrong}");
        }
        assert_eq!(endpoint("a=10.0.0.1:6443").unwrap(), Endpoint { id: "a".into(), address: "10.0.0.1:6443".parse().unwrap() });
        for wrong in ["a", "=10.0.0.1:1", "a=b", "a=10.0.0.1", "a=10.0.0.1:0"] {
            assert!(endpoint(wrong).is_err(), "{wrong}");
        }
        assert_eq!(gate("X=false").unwrap(), Gate { name: "X".into(), is_on: false });
        assert!(gate("X").is_err() && gate("X=1").is_err());
    }
}
