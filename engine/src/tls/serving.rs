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

    pub(super) fn key(&self) -> CertifiedKey {
        CertifiedKey::clone(&self.0)
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
    /// A default pair, and others with the names (`*.` for one label) and addresses they are for; without any, those in the certificate count.
    /// As in kube-apiserver, a name beats a wildcard, then a name that was given beats one from a certificate, then the first pair wins.
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
        let at = name.and_then(|name| best(&self.named, &name));
        at.and_then(|at| self.configs.get(at)).unwrap_or(&self.default)
    }
}

#[derive(Debug)]
struct Named {
    names: Vec<String>,
    key: Arc<CertifiedKey>,
}

/// How well a pair fits what a client asks for, the best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fit {
    Name,
    NameInCertificate,
    Wildcard,
    WildcardInCertificate,
}

impl Named {
    fn fit(&self, asked: &ServerName<'_>) -> Option<Fit> {
        if self.names.is_empty() {
            return self.fit_of_certificate(asked);
        }
        let fit_of = |name: &String| match asked {
            ServerName::DnsName(asked) if name_covers(name, asked.as_ref()) && name.starts_with("*.") => Some(Fit::Wildcard),
            ServerName::DnsName(asked) => name_covers(name, asked.as_ref()).then_some(Fit::Name),
            asked => ServerName::try_from(name.as_str()).is_ok_and(|name| name == *asked).then_some(Fit::Name),
        };
        self.names.iter().filter_map(fit_of).min()
    }

    fn fit_of_certificate(&self, asked: &ServerName<'_>) -> Option<Fit> {
        let leaf = ParsedCertificate::try_from(self.key.cert.first()?).ok()?;
        verify_server_name(&leaf, asked).ok()?;
        // A certificate does not tell which of its names it was; a wildcard is as good for a neighbour that nobody has.
        let neighbour = match asked {
            ServerName::DnsName(asked) => asked.as_ref().split_once('.').map(|(_, parent)| format!("mvproxy-none.{parent}")),
            _ => None,
        };
        let neighbour = neighbour.and_then(|name| ServerName::try_from(name).ok());
        let is_wildcard = neighbour.is_some_and(|neighbour| verify_server_name(&leaf, &neighbour).is_ok());
        Some(if is_wildcard { Fit::WildcardInCertificate } else { Fit::NameInCertificate })
    }
}

/// The place of the pair that fits best.
fn best(named: &[Named], asked: &ServerName<'_>) -> Option<usize> {
    let fits = named.iter().enumerate().filter_map(|(at, named)| Some((named.fit(asked)?, at)));
    fits.min().map(|(_, at)| at)
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
        let named = asked.and_then(|asked| self.named.get(best(&self.named, &asked)?));
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
