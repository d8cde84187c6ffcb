//! The certificate files: read at start, and again whenever they change (threats.md T8).
//!
//! What always holds: a certificate and its key are used together or not at all; files that cannot be read or used leave what was there,
//! with one line in the log; what was built last is what the files last said rightly.
//!
//! Contents are compared, not times: links swapped by a kubelet, files renamed over, or written in place all look the same that way.

use std::sync::Arc;

use discovery::live;
use engine::tls::{self, Configs, Pair, Serving};
use rustls::pki_types::UnixTime;
use rustls::{ClientConfig, ServerConfig};

use crate::cli::{ServeFlags, SniFiles};
use crate::failure::Failure;
use crate::files::{self, Named};
use crate::log;

/// All certificate files of a command line, and what they say.
pub(crate) struct Certificates<'a> {
    /// The default pair, and those for other names.
    pairs: Vec<Watched<'a, Pair>>,
    serving: Serving,
    peer: Watched<'a, Arc<ClientConfig>>,
    local: Watched<'a, Arc<ClientConfig>>,
    /// How the peer ports of other proxies are verified, and what they are shown.
    proxy: Option<Watched<'a, Arc<ClientConfig>>>,
    /// Who may come to ours.
    requestheader: Option<Watched<'a, Vec<u8>>>,
    allowed_names: Vec<String>,
    peer_port: Option<Arc<ServerConfig>>,
    sni: &'a [SniFiles],
}

impl<'a> Certificates<'a> {
    /// Reads all of them.
    pub(crate) fn load(flags: &'a ServeFlags) -> Result<Self, Failure> {
        let sni = flags.tls_sni_cert_key.as_slice();
        let default = [("--tls-cert-file", &flags.tls_cert_file), ("--tls-private-key-file", &flags.tls_private_key_file)];
        let others = sni.iter().map(|pair| [("--tls-sni-cert-key", &pair.cert), ("--tls-sni-cert-key", &pair.key)]);
        let files = std::iter::once(default).chain(others).map(|pair| pair.map(|(flag, path)| Named { flag, path }));
        let pairs = files.map(|pair| Watched::load(pair.into(), build_pair)).collect::<Result<Vec<_>, _>>()?;
        let ca = Named { flag: "--peer-ca-file", path: &flags.peer_ca_file };
        let local_ca = flags.local_ca_file.as_deref().map_or(ca, |path| Named { flag: "--local-ca-file", path });
        let proxy = match (&flags.proxy_client_cert_file, &flags.proxy_client_key_file) {
            (Some(cert), Some(key)) => {
                let cert = Named { flag: "--proxy-client-cert-file", path: cert };
                let key = Named { flag: "--proxy-client-key-file", path: key };
                Some(Watched::load(vec![ca, cert, key], proxy_verifier)?)
            }
            _ => None,
        };
        let requestheader = flags.peers.requestheader_client_ca_file.as_deref();
        let requestheader = requestheader.map(|path| Named { flag: "--requestheader-client-ca-file", path });
        let requestheader = requestheader.map(|file| Watched::load(vec![file], authorities)).transpose()?;
        let mut certificates = Self {
            serving: serving(&pairs, sni)?,
            pairs,
            peer: Watched::load(vec![ca], verifier)?,
            local: Watched::load(vec![local_ca], verifier)?,
            proxy,
            requestheader,
            allowed_names: flags.peers.allowed_names(),
            peer_port: None,
            sni,
        };
        certificates.peer_port = certificates.build_peer_port()?;
        Ok(certificates)
    }

    /// What new connections are made with.
    pub(crate) fn configs(&self) -> Configs {
        Configs {
            clients: self.serving.clone(),
            local: Arc::clone(&self.local.built),
            peer: Arc::clone(&self.peer.built),
            proxy: self.proxy.as_ref().map(|proxy| Arc::clone(&proxy.built)),
            peer_port: self.peer_port.clone(),
        }
    }

    /// What discovery makes its connections with: the bytes that those of requests are made of.
    pub(crate) fn for_discovery(&self) -> live::Certificates {
        live::Certificates {
            local_ca: self.local.used[0].clone(),
            peer_ca: self.peer.used[0].clone(),
            client_pair: self.proxy.as_ref().map(|proxy| (proxy.used[1].clone(), proxy.used[2].clone())),
        }
    }

    /// The peer port shows the default pair. Other proxies speak HTTP/2 there, and their discovery HTTP/1.1.
    fn build_peer_port(&self) -> Result<Option<Arc<ServerConfig>>, Failure> {
        let Some(authorities) = &self.requestheader else { return Ok(None) };
        let built = tls::peer_port_config(&self.pairs[0].built, &authorities.built, &self.allowed_names, tls::PEER_PORT_SPEAKS);
        built.map(Some).map_err(|error| authorities.files[0].refused(error))
    }

    /// Reads them again: true when something new is to be used.
    pub(crate) fn reload(&mut self) -> bool {
        // Each pair for itself: one that is wrong holds up no other.
        let mut changed = false;
        for pair in &mut self.pairs {
            changed |= pair.reload(build_pair);
        }
        if changed {
            match serving(&self.pairs, self.sni) {
                Ok(built) => self.serving = built,
                Err(failure) => log::error(failure.into_message()),
            }
        }
        let peer = self.peer.reload(verifier);
        let local = self.local.reload(verifier);
        let proxy = self.proxy.as_mut().is_some_and(|proxy| proxy.reload(proxy_verifier));
        let requestheader = self.requestheader.as_mut().is_some_and(|file| file.reload(authorities));
        if changed || requestheader {
            match self.build_peer_port() {
                Ok(built) => self.peer_port = built,
                Err(failure) => log::error(failure.into_message()),
            }
        }
        changed || peer || local || proxy || requestheader
    }
}

/// Files that are used together.
struct Watched<'a, T> {
    files: Vec<Named<'a>>,
    /// What was last looked at.
    seen: Vec<Vec<u8>>,
    /// What `built` was made of.
    used: Vec<Vec<u8>>,
    built: T,
    trouble: Trouble,
}

/// What is wrong with what was last looked at. Told only when it is still wrong at the next look: between a new certificate and its new key
/// the pair never fits.
enum Trouble {
    None,
    New(String),
    Told(String),
}

impl<'a, T> Watched<'a, T> {
    fn load(files: Vec<Named<'a>>, build: impl Fn(&[Named<'_>], &[Vec<u8>]) -> Result<T, Failure>) -> Result<Self, Failure> {
        let seen = read(&files)?;
        let built = build(&files, &seen)?;
        Ok(Self { files, used: seen.clone(), seen, built, trouble: Trouble::None })
    }

    /// True when the files changed and are right.
    fn reload(&mut self, build: impl Fn(&[Named<'_>], &[Vec<u8>]) -> Result<T, Failure>) -> bool {
        let bytes = match read(&self.files) {
            Ok(bytes) => bytes,
            Err(failure) => return self.complain(failure.into_message()),
        };
        // What was wrong may be right by now: a certificate that was not valid yet.
        if bytes == self.seen && matches!(self.trouble, Trouble::None) {
            return false;
        }
        let built = build(&self.files, &bytes);
        self.seen = bytes;
        match built {
            Ok(built) => {
                self.built = built;
                self.used.clone_from(&self.seen);
                self.trouble = Trouble::None;
                log::info(format_args!("reloaded {}", self.names()));
                true
            }
            Err(failure) => self.complain(failure.into_message()),
        }
    }

    /// Says what is wrong, when it was so before, and once.
    fn complain(&mut self, text: String) -> bool {
        match &self.trouble {
            Trouble::Told(told) if *told == text => false,
            Trouble::New(new) if *new == text => self.tell(text),
            _ => {
                self.trouble = Trouble::New(text);
                false
            }
        }
    }

    fn tell(&mut self, text: String) -> bool {
        log::error(format_args!("{text}: keeping what was loaded before"));
        self.trouble = Trouble::Told(text);
        false
    }

    fn names(&self) -> String {
        let names: Vec<_> = self.files.iter().map(|file| format!("{} {}", file.flag, file.path.display())).collect();
        names.join(", ")
    }
}

fn read(files: &[Named<'_>]) -> Result<Vec<Vec<u8>>, Failure> {
    files.iter().map(|&file| files::read_pem(file)).collect()
}

fn build_pair(files: &[Named<'_>], bytes: &[Vec<u8>]) -> Result<Pair, Failure> {
    Pair::new(&bytes[0], &bytes[1], UnixTime::now()).map_err(|error| files::pair_refused(files[0], files[1], &error))
}

fn serving(pairs: &[Watched<'_, Pair>], sni: &[SniFiles]) -> Result<Serving, Failure> {
    let others: Vec<_> = pairs.iter().skip(1).zip(sni).map(|(pair, sni)| (pair.built.clone(), sni.names.clone())).collect();
    Serving::new(&pairs[0].built, &others, tls::CLIENTS_SPEAK).map_err(Failure::runtime)
}

fn verifier(files: &[Named<'_>], bytes: &[Vec<u8>]) -> Result<Arc<ClientConfig>, Failure> {
    tls::client_config(&bytes[0], None, tls::SERVERS_SPEAK, UnixTime::now()).map_err(|error| files[0].refused(error))
}

/// Authorities, then our certificate and key.
fn proxy_verifier(files: &[Named<'_>], bytes: &[Vec<u8>]) -> Result<Arc<ClientConfig>, Failure> {
    tls::check_pair(&bytes[1], &bytes[2], UnixTime::now()).map_err(|error| files::pair_refused(files[1], files[2], &error))?;
    let built = tls::client_config(&bytes[0], Some((&bytes[1], &bytes[2])), tls::PROXIES_SPEAK, UnixTime::now());
    built.map_err(|error| files[0].refused(error))
}

/// Checked, and kept as they are.
fn authorities(files: &[Named<'_>], bytes: &[Vec<u8>]) -> Result<Vec<u8>, Failure> {
    tls::client_config(&bytes[0], None, tls::SERVERS_SPEAK, UnixTime::now()).map_err(|error| files[0].refused(error))?;
    Ok(bytes[0].clone())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test")]
mod tests {
    use std::path::PathBuf;

    use loadgen::{KeyPairPem, Pki};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject;
    use rustls::{ClientConnection, Connection, ServerConnection};

    use super::*;
    use crate::cli::{self, Command, Parsed};

    /// The files of a proxy with a peer port, in a directory that goes with them.
    struct Files {
        directory: PathBuf,
        /// Signs front-proxy certificates.
        front: Pki,
        first: KeyPairPem,
    }

    impl Files {
        fn new(name: &str) -> (Self, ServeFlags) {
            let directory = std::env::temp_dir().join(format!("mvproxy-certificates-{name}-{}", std::process::id()));
            let (pki, front) = (Pki::new().unwrap(), Pki::new().unwrap());
            let first = front.client("front-proxy-client", &[]).unwrap();
            let (cert, key) = pki.serving().unwrap().write(&directory, "serving").unwrap();
            let (client_cert, client_key) = first.write(&directory, "client").unwrap();
            let files = [
                ("tls-cert-file", cert),
                ("tls-private-key-file", key),
                ("peer-ca-file", pki.write_ca(&directory, "ca").unwrap()),
                ("proxy-client-cert-file", client_cert),
                ("proxy-client-key-file", client_key),
                ("requestheader-client-ca-file", front.write_ca(&directory, "front").unwrap()),
            ];
            let mut line = vec!["mvproxy".to_owned(), "serve".to_owned()];
            line.extend(files.map(|(flag, path)| format!("--{flag}={}", path.display())));
            let Ok(Parsed::Command(Command::Serve(flags))) = cli::parse(line.into_iter().map(Into::into)) else { unreachable!() };
            (Self { directory, front, first }, *flags)
        }

        fn write(&self, name: &str, text: &str) {
            std::fs::write(self.directory.join(name), text).unwrap();
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.directory).ok();
        }
    }

    /// What a proxy shows at the peer port of another with the same files, if it is let in there.
    fn shown(certificates: &Certificates<'_>) -> Option<CertificateDer<'static>> {
        let configs = certificates.configs();
        let server = let_in(configs.proxy.unwrap(), configs.peer_port.unwrap())?;
        server.peer_certificates().map(|chain| chain[0].clone())
    }

    /// The server's end of a connection, if it lets the client in.
    fn let_in(client: Arc<ClientConfig>, server: Arc<ServerConfig>) -> Option<Connection> {
        let mut client = Connection::from(ClientConnection::new(client, tls::server_name()).unwrap());
        let mut server = Connection::from(ServerConnection::new(server).unwrap());
        while client.is_handshaking() || server.is_handshaking() {
            carry(&mut client, &mut server).ok()?;
            carry(&mut server, &mut client).unwrap();
        }
        Some(server)
    }

    fn carry(from: &mut Connection, to: &mut Connection) -> Result<(), rustls::Error> {
        let mut wire = Vec::new();
        while from.wants_write() {
            from.write_tls(&mut wire).unwrap();
        }
        let mut rest = wire.as_slice();
        while !rest.is_empty() {
            to.read_tls(&mut rest).unwrap();
            to.process_new_packets()?;
        }
        Ok(())
    }

    fn der(pair: &KeyPairPem) -> Option<CertificateDer<'static>> {
        Some(CertificateDer::from_pem_slice(pair.cert.as_bytes()).unwrap())
    }

    /// What the log says of files that are wrong.
    fn told<T>(watched: Option<&Watched<'_, T>>) -> String {
        match &watched.unwrap().trouble {
            Trouble::Told(text) => text.clone(),
            Trouble::None | Trouble::New(_) => String::new(),
        }
    }

    #[test]
    fn t8_a_new_front_proxy_pair_is_shown_and_a_broken_one_is_not() {
        let (files, flags) = Files::new("pair");
        let mut certificates = Certificates::load(&flags).unwrap();
        assert!(!certificates.reload(), "nothing changed");
        assert_eq!(shown(&certificates), der(&files.first));
        let next = files.front.client("front-proxy-client", &[]).unwrap();
        files.write("client.key", &next.key);
        assert!(!certificates.reload(), "its certificate is still to come");
        assert_eq!(shown(&certificates), der(&files.first));
        files.write("client.crt", &next.cert);
        assert!(certificates.reload());
        assert_eq!(shown(&certificates), der(&next));
        for (name, text, flag) in
            [("client.key", files.first.key.as_str(), "--proxy-client-key-file"), ("client.crt", "", "--proxy-client-cert-file")]
        {
            files.write(name, text);
            assert!(!certificates.reload() && !certificates.reload(), "{flag}");
            let told = told(certificates.proxy.as_ref());
            assert!(told.starts_with(flag), "{told}");
            assert_eq!(shown(&certificates), der(&next), "{flag}");
        }
    }

    #[test]
    fn the_peer_port_speaks_with_proxies_and_with_their_discovery() {
        let (_files, flags) = Files::new("spoken");
        let configs = Certificates::load(&flags).unwrap().configs();
        for spoken in [discovery::PROXY_HTTP2, discovery::PROXY_HTTP1, b"h2", b"http/1.1"] {
            let mut client = ClientConfig::clone(configs.proxy.as_ref().unwrap());
            client.alpn_protocols = vec![spoken.to_vec()];
            let server = let_in(Arc::new(client), Arc::clone(configs.peer_port.as_ref().unwrap())).unwrap();
            assert_eq!(server.alpn_protocol(), Some(spoken));
        }
    }

    #[test]
    fn t8_discovery_gets_what_requests_are_sent_with() {
        let (files, flags) = Files::new("discovery");
        let mut certificates = Certificates::load(&flags).unwrap();
        let before = certificates.for_discovery();
        let pair = |pair: &KeyPairPem| Some((pair.cert.clone().into_bytes(), pair.key.clone().into_bytes()));
        assert_eq!((before.client_pair.clone(), &before.local_ca), (pair(&files.first), &before.peer_ca));
        let (other, next) = (Pki::new().unwrap(), files.front.client("front-proxy-client", &[]).unwrap());
        files.write("ca.crt", "not a certificate");
        files.write("client.key", &next.key);
        assert!(!certificates.reload());
        assert_eq!(certificates.for_discovery(), before, "neither can be used");
        files.write("ca.crt", other.ca_pem());
        files.write("client.crt", &next.cert);
        assert!(certificates.reload());
        let after = certificates.for_discovery();
        let ca = other.ca_pem().as_bytes();
        assert_eq!((after.local_ca.as_slice(), after.peer_ca.as_slice(), after.client_pair), (ca, ca, pair(&next)));
    }

    #[test]
    fn t8_a_new_requestheader_authority_counts_and_a_broken_one_does_not() {
        let (files, flags) = Files::new("requestheader");
        let mut certificates = Certificates::load(&flags).unwrap();
        let other = Pki::new().unwrap();
        files.write("front.crt", other.ca_pem());
        assert!(certificates.reload());
        assert_eq!(shown(&certificates), None, "of the authority that counted before");
        files.write("front.crt", "not a certificate");
        assert!(!certificates.reload() && !certificates.reload());
        let told = told(certificates.requestheader.as_ref());
        assert!(told.starts_with("--requestheader-client-ca-file"), "{told}");
        let next = other.client("front-proxy-client", &[]).unwrap();
        files.write("client.key", &next.key);
        files.write("client.crt", &next.cert);
        assert!(certificates.reload());
        assert_eq!(shown(&certificates), der(&next));
    }
}
