//! TLS configurations from PEM bytes.
//!
//! Pure: the caller reads the files, puts their path in front of an error, and says what time it is. A [`ConfigError`] names the
//! likely cause and the fix. Suites are in our order, AES-128-GCM first: ChaCha20 costs 3.7 times as much on large bodies.
//!
//! Each configuration has resumption secrets of its own, so replacing one on reload forgets every ticket given out under it.
//!
//! It deliberately does not ask clients for certificates yet; the peer port does ([`super::peer_port_config`]).

use std::fmt;
use std::sync::Arc;

use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::{self, cipher_suite};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, DnsName, InvalidDnsNameError, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, ParsedCertificate, ResolvesServerCert};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CertificateError, ClientConfig, InconsistentKeys, RootCertStore, ServerConfig, SupportedCipherSuite};

/// Our preference; TLS 1.3 first, then the forward-secret AEAD suites of TLS 1.2.
const SUITES: &[SupportedCipherSuite] = &[
    cipher_suite::TLS13_AES_128_GCM_SHA256,
    cipher_suite::TLS13_AES_256_GCM_SHA384,
    cipher_suite::TLS13_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
    cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
    cipher_suite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
];

/// Tickets a connecting configuration remembers. All servers share one name, so build one configuration per server: a ticket of
/// another server only costs a full handshake, but it is useless.
const CLIENT_SESSIONS: usize = 8;

/// The configuration of a listener: TLS 1.2 and 1.3, `alpn` in the order we prefer, no client certificates.
pub fn server_config(cert_pem: &[u8], key_pem: &[u8], alpn: &[&[u8]], now: UnixTime) -> Result<Arc<ServerConfig>, ConfigError> {
    let provider = provider();
    let pair = pair(cert_pem, key_pem, &provider, now)?;
    server_config_with(Arc::new(SingleCertAndKey::from(pair)), provider, alpn)
}

/// The same with a choice of certificates.
pub(super) fn server_config_with(
    certificates: Arc<dyn ResolvesServerCert>,
    provider: Arc<CryptoProvider>,
    alpn: &[&[u8]],
) -> Result<Arc<ServerConfig>, ConfigError> {
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ConfigError::Library)?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.ignore_client_order = true;
    config.alpn_protocols = protocols(alpn);
    // Tickets hold the session, the server holds one key: no memory per client, and any number of them can resume.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(ConfigError::Library)?;
    config.send_tls13_tickets = 1;
    // 0-RTT can be replayed (RFC 8446 §8).
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

/// The configuration of connections to servers whose chain ends in one of the certificates of `ca_pem`; `client` is the
/// certificate and key we present when asked.
pub fn client_config(
    ca_pem: &[u8],
    client: Option<(&[u8], &[u8])>,
    alpn: &[&[u8]],
    now: UnixTime,
) -> Result<Arc<ClientConfig>, ConfigError> {
    let provider = provider();
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(ConfigError::Library)?
        .with_root_certificates(roots(ca_pem)?);
    let mut config = match client {
        Some((cert_pem, key_pem)) => {
            let pair = pair(cert_pem, key_pem, &provider, now)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(pair)))
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = protocols(alpn);
    config.resumption = Resumption::in_memory_sessions(CLIENT_SESSIONS);
    config.enable_early_data = false;
    Ok(Arc::new(config))
}

/// Checks a certificate and its key without using them.
pub fn check_pair(cert_pem: &[u8], key_pem: &[u8], now: UnixTime) -> Result<(), ConfigError> {
    pair(cert_pem, key_pem, &provider(), now).map(|_| ())
}

/// The name every kube-apiserver's certificate carries; peers are verified by it, whatever their address (threats.md T7).
pub fn server_name() -> ServerName<'static> {
    static NAME: Result<DnsName<'static>, InvalidDnsNameError> = DnsName::try_from_str("kubernetes.default.svc");
    const { assert!(NAME.is_ok()) }
    match &NAME {
        Ok(name) => ServerName::DnsName(name.clone()),
        Err(_) => unreachable!("the compiler has evaluated it"),
    }
}

pub(super) fn provider() -> Arc<CryptoProvider> {
    Arc::new(CryptoProvider { cipher_suites: SUITES.to_vec(), ..aws_lc_rs::default_provider() })
}

pub(super) fn protocols(alpn: &[&[u8]]) -> Vec<Vec<u8>> {
    alpn.iter().map(|protocol| protocol.to_vec()).collect()
}

pub(super) fn pair(cert_pem: &[u8], key_pem: &[u8], provider: &CryptoProvider, now: UnixTime) -> Result<CertifiedKey, ConfigError> {
    let chain = certificates(cert_pem)?;
    let leaf = chain.first().ok_or(ConfigError::NoCertificate)?;
    check_validity(leaf, provider, now)?;
    let key = PrivateKeyDer::from_pem_slice(key_pem).map_err(|error| match error {
        pem::Error::NoItemsFound if is_encrypted(key_pem) => ConfigError::KeyEncrypted,
        pem::Error::NoItemsFound => ConfigError::NoKey,
        error => ConfigError::Pem(error),
    })?;
    CertifiedKey::from_der(chain, key, provider).map_err(|error| match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => ConfigError::KeyMismatch,
        error => ConfigError::BadKey(error),
    })
}

/// Every certificate of `pem`, at least one.
fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, ConfigError> {
    let chain = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>().map_err(ConfigError::Pem)?;
    if chain.is_empty() {
        return Err(ConfigError::NoCertificate);
    }
    Ok(chain)
}

pub(super) fn roots(ca_pem: &[u8]) -> Result<RootCertStore, ConfigError> {
    let mut roots = RootCertStore::empty();
    for (index, certificate) in certificates(ca_pem)?.into_iter().enumerate() {
        roots.add(certificate).map_err(|error| ConfigError::BadCertificate(index + 1, error))?;
    }
    Ok(roots)
}

fn is_encrypted(key_pem: &[u8]) -> bool {
    let label = b"ENCRYPTED PRIVATE KEY";
    key_pem.windows(label.len()).any(|window| window == label)
}

/// Refuses a certificate that no client would accept at `now`.
///
/// The verifier looks at the validity before it looks for an issuer, so with no roots at all it stops either there or at the
/// issuer, about which this check has no opinion.
fn check_validity(leaf: &CertificateDer<'_>, provider: &CryptoProvider, now: UnixTime) -> Result<(), ConfigError> {
    let parsed = ParsedCertificate::try_from(leaf).map_err(|error| ConfigError::BadCertificate(1, error))?;
    let verdict = verify_server_cert_signed_by_trust_anchor(
        &parsed,
        &RootCertStore::empty(),
        &[],
        now,
        provider.signature_verification_algorithms.all,
    );
    match verdict {
        Err(rustls::Error::InvalidCertificate(CertificateError::ExpiredContext { not_after, .. })) => Err(ConfigError::Expired(not_after)),
        Err(rustls::Error::InvalidCertificate(CertificateError::NotValidYetContext { not_before, .. })) => {
            Err(ConfigError::NotYetValid(not_before))
        }
        _ => Ok(()),
    }
}

/// Why a configuration could not be made, with the fix.
#[derive(Debug)]
#[non_exhaustive]
pub enum ConfigError {
    /// The bytes are not PEM.
    Pem(pem::Error),
    /// There is no certificate where at least one is needed.
    NoCertificate,
    /// There is no private key.
    NoKey,
    /// The private key needs a passphrase.
    KeyEncrypted,
    /// The nth certificate (from 1) does not parse.
    BadCertificate(usize, rustls::Error),
    /// The private key does not parse, or is of a kind that cannot be used.
    BadKey(rustls::Error),
    /// Certificate and private key do not belong together.
    KeyMismatch,
    /// The certificate was valid until then.
    Expired(UnixTime),
    /// The certificate is valid from then on.
    NotYetValid(UnixTime),
    /// rustls refused the settings, or the system has no randomness.
    Library(rustls::Error),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pem(error) => write!(f, "not valid pem ({error}): is the file cut short, or der?"),
            Self::NoCertificate => f.write_str(
                "no certificate in it: it must hold a \"BEGIN CERTIFICATE\" block (is it empty, or the key file?)",
            ),
            Self::NoKey => f.write_str(
                "no private key in it: it must hold a \"BEGIN PRIVATE KEY\" block (is it empty, or the certificate file?)",
            ),
            Self::KeyEncrypted => f.write_str(
                "the private key is encrypted: decrypt it with `openssl pkey -in KEY -out PLAIN`",
            ),
            Self::BadCertificate(nth, error) => {
                write!(f, "certificate {nth} does not parse: {error}; issue it again, or take it out of the file")
            }
            Self::BadKey(error) => {
                write!(f, "unusable private key: {error}; use an rsa (2048 bits or more), ecdsa or ed25519 key")
            }
            Self::KeyMismatch => f.write_str(
                "the private key does not match the certificate: they must come from the same request, and the server's own certificate must be the first in its file",
            ),
            Self::Expired(at) => {
                write!(f, "the certificate expired on {}: renew it", Date(*at))
            }
            Self::NotYetValid(at) => write!(
                f,
                "the certificate is not valid before {}: is the clock right?",
                Date(*at)
            ),
            Self::Library(error) => write!(f, "tls library: {error}; take another certificate or key"),
        }
    }
}

impl std::error::Error for ConfigError {}

/// A moment as `2026-01-31 23:59:59 UTC`.
struct Date(UnixTime);

impl fmt::Display for Date {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (days, second) = (self.0.as_secs() / 86_400, self.0.as_secs() % 86_400);
        // Years are counted from March, so that the leap day is the last day of one; 719,468 days lie between
        // 0000-03-01 and 1970-01-01, 146,097 in 400 years.
        let (era, day) = ((days + 719_468) / 146_097, (days + 719_468) % 146_097);
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (month, carry) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
        write!(
            f,
            "{:04}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC",
            era * 400 + year + carry,
            second / 3_600,
            second / 60 % 60,
            second % 60
        )
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::tests::Authority;
    use super::*;

    fn refusal(cert: &str, key: &str) -> String {
        let (cert, key) = (cert.as_bytes(), key.as_bytes());
        let error = server_config(cert, key, &[b"h2"], UnixTime::now()).unwrap_err();
        let same = check_pair(cert, key, UnixTime::now()).unwrap_err();
        assert_eq!(error.to_string(), same.to_string());
        error.to_string()
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        let authority = Authority::new();
        let (cert, key) = authority.issue(2020, 2100);
        let (other_cert, _) = authority.issue(2020, 2100);
        let (old_cert, old_key) = authority.issue(2020, 2021);
        let (new_cert, new_key) = authority.issue(2099, 2100);
        let der_garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        let key_garbage = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        let locked = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
        let cut = &cert[..cert.len() / 2];
        for (cert, key, expected) in [
            ("", &key[..], "no certificate in it"),
            (&key, &key, "no certificate in it"),
            (&cert, "", "no private key in it"),
            (&cert, &cert, "no private key in it"),
            (&cert, locked, "the private key is encrypted"),
            (cut, &key, "not valid pem"),
            (der_garbage, &key, "certificate 1 does not parse"),
            (&cert, key_garbage, "unusable private key"),
            (&other_cert, &key, "the private key does not match the certificate"),
            (&old_cert, &old_key, "the certificate expired on 2021-01-01 00:00:00 UTC: renew it"),
            (&new_cert, &new_key, "the certificate is not valid before 2099-01-01 00:00:00 UTC"),
        ] {
            let text = refusal(cert, key);
            assert!(text.starts_with(expected), "{text:?} should be {expected:?}");
        }
        check_pair(cert.as_bytes(), key.as_bytes(), UnixTime::now()).unwrap();
    }

    #[test]
    fn a_client_needs_authorities_and_a_good_pair() {
        let authority = Authority::new();
        let (cert, key) = authority.issue(2020, 2100);
        let (ca, now) = (authority.pem(), UnixTime::now());
        let text = |ca: &str, pair: Option<(&[u8], &[u8])>| {
            client_config(ca.as_bytes(), pair, &[], now).map(|_| ()).map_err(|error| error.to_string())
        };
        let pair = (cert.as_bytes(), key.as_bytes());
        assert_eq!(text(&ca, None), Ok(()));
        assert_eq!(text(&[&ca[..], &ca].concat(), Some(pair)), Ok(()));
        assert!(text("", None).unwrap_err().starts_with("no certificate"));
        let second = [&ca, "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"].concat();
        assert!(text(&second, None).unwrap_err().starts_with("certificate 2 does not parse"));
        assert!(text(&ca, Some((pair.0, b""))).unwrap_err().starts_with("no private key"));
    }

    #[test]
    fn dates_are_calendar_dates() {
        for (second, expected) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_767_225_599, "2025-12-31 23:59:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            let at = UnixTime::since_unix_epoch(Duration::from_secs(second));
            assert_eq!(Date(at).to_string(), expected);
        }
    }

    #[test]
    fn peers_are_verified_by_the_service_name() {
        assert_eq!(server_name().to_str(), "kubernetes.default.svc");
    }
}
