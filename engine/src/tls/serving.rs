//! Which certificate a client is shown: by the name the client asks for, without one by the address it
//! came to, else the default one (threats.md T4). Requests are never routed by that name.

use std::net::IpAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::client::verify_server_name;
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::{ClientHello, ParsedCertificate, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use super::config::{ConfigError, pair, provider, server_config_with};

/// A certificate with its key, checked.
#[derive(Clone, Debug)]
pub struct Pair(Arc<CertifiedKey>);

impl Pair {
    /// From PEM: the server's own certificate first, intermediate ones after it; the key not encrypted.
    pub fn new(cert_pem: &[u8], key_pem: &[u8], now: UnixTime) -> Result<Self, ConfigError> {
        Ok(Self(Arc::new(pair(cert_pem, key_pem, &provider(), now)?)))
    }
}

/// What clients are served with.
#[derive(Clone, Debug)]
pub struct Serving {
    default: Arc<ServerConfig>,
    named: Arc<[Named]>,
    /// For each of `named` the configuration that shows it to a client that names no server.
    configs: Vec<Arc<ServerConfig>>,
}

impl Serving {
    /// A default pair, and others with the names (`*.` for one label) and addresses they are for; without any, those in the certificate count. The
    /// first that fits is taken.
    pub fn new(default: &Pair, others: &[(Pair, Vec<String>)], alpn: &[&[u8]]) -> Result<Self, ConfigError> {
        let named: Arc<[Named]> = others.iter().map(|(pair, names)| Named { names: names.clone(), key: Arc::clone(&pair.0) }).collect();
        let config = |unnamed: &Arc<CertifiedKey>| {
            let choice = Choice { unnamed: Arc::clone(unnamed), default: Arc::clone(&default.0), named: Arc::clone(&named) };
            server_config_with(Arc::new(choice), provider(), alpn)
        };
        let configs = named.iter().map(|named| config(&named.key)).collect::<Result<_, _>>()?;
        Ok(Self { default: config(&default.0)?, named: Arc::clone(&named), configs })
    }

    /// Does the address a client came to matter?
    pub(crate) fn looks_at_addresses(&self) -> bool {
        !self.configs.is_empty()
    }

    /// How a client that came to that address is served.
    pub(crate) fn config_for(&self, address: Option<IpAddr>) -> &Arc<ServerConfig> {
        let name = address.map(|address| ServerName::from(address.to_canonical()));
        let at = name.and_then(|name| self.named.iter().position(|named| named.is_for(&name)));
        at.and_then(|at| self.configs.get(at)).unwrap_or(&self.default)
    }
}

#[derive(Debug)]
struct Named {
    names: Vec<String>,
    key: Arc<CertifiedKey>,
}

impl Named {
    fn is_for(&self, asked: &ServerName<'_>) -> bool {
        if self.names.is_empty() {
            let leaf = self.key.cert.first().and_then(|leaf| ParsedCertificate::try_from(leaf).ok());
            return leaf.is_some_and(|leaf| verify_server_name(&leaf, asked).is_ok());
        }
        match asked {
            ServerName::DnsName(asked) => self.names.iter().any(|name| name_covers(name, asked.as_ref())),
            asked => self.names.iter().any(|name| ServerName::try_from(name.as_str()).is_ok_and(|name| name == *asked)),
        }
    }
}

/// Is `asked` what `name` says? A `*` stands for the first label.
fn name_covers(name: &str, asked: &str) -> bool {
    let asked = asked.strip_suffix('.').unwrap_or(asked);
    let Some(parent) = name.strip_prefix("*.") else { return name.eq_ignore_ascii_case(asked) };
    asked.split_once('.').is_some_and(|(first, rest)| !first.is_empty() && rest.eq_ignore_ascii_case(parent))
}

/// Chooses by the name a client asks for.
#[derive(Debug)]
struct Choice {
    /// For a client that asks for none.
    unnamed: Arc<CertifiedKey>,
    /// For a client that asks for one nobody has.
    default: Arc<CertifiedKey>,
    named: Arc<[Named]>,
}

impl ResolvesServerCert for Choice {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let Some(asked) = hello.server_name() else { return Some(Arc::clone(&self.unnamed)) };
        let asked = ServerName::try_from(asked).ok();
        let named = asked.and_then(|asked| self.named.iter().find(|named| named.is_for(&asked)));
        Some(Arc::clone(named.map_or(&self.default, |named| &named.key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cover_themselves_and_one_label() {
        for (name, asked, covers) in [
            ("a.example", "a.example", true),
            ("A.example", "a.EXAMPLE", true),
            ("a.example", "a.example.", true),
            ("a.example", "b.example", false),
            ("*.example", "a.example", true),
            ("*.example", "a.b.example", false),
            ("*.example", "example", false),
            ("*.example", ".example", false),
            ("*", "a", false),
        ] {
            assert_eq!(name_covers(name, asked), covers, "{name} {asked}");
        }
    }
}
