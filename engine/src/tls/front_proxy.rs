//! Who may come to the peer port: holders of a front-proxy certificate (kubernetes.md §3.3, requestheader).
//!
//! What always holds: a session is established only with a certificate whose chain ends in the requestheader authorities, and whose common
//! name is one of those allowed (none named: any). Nothing is resumed, so every connection is judged by the files of its day. A chain
//! that is too long costs no signature (threats.md T6).

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::SingleCertAndKey;
use rustls::{CertificateError, DigitallySignedStruct, DistinguishedName, Error, ServerConfig, SignatureScheme};

use super::config::{ConfigError, protocols, provider, roots};
use super::serving::Pair;

/// Certificates of one chain: a cluster signs with one authority or two, and what is beside the path is only there to be tried in vain.
const CHAIN_CERTIFICATES: usize = 10;
/// Bytes of one chain: ten certificates with large RSA keys and many names. rustls reads no longer list today, but does not promise it.
const CHAIN_BYTES: usize = 64 * 1024;

/// `id-at-commonName`, 2.5.4.3, as DER has it.
const COMMON_NAME: &[u8] = &[0x55, 0x04, 0x03];
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const OBJECT_IDENTIFIER: u8 = 0x06;
const UTF8_STRING: u8 = 0x0c;
const PRINTABLE_STRING: u8 = 0x13;
const IA5_STRING: u8 = 0x16;

/// The configuration of the peer port: a front-proxy certificate is required, and its common name is one of `allowed`, if there are any.
pub fn peer_port_config(pair: &Pair, ca_pem: &[u8], allowed: &[String], alpn: &[&[u8]]) -> Result<Arc<ServerConfig>, ConfigError> {
    let provider = provider();
    let chains = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca_pem)?), provider.clone()).build();
    let chains = chains.map_err(|error| ConfigError::Library(Error::General(error.to_string())))?;
    let verifier = FrontProxy { chains, allowed: allowed.to_vec() };
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(ConfigError::Library)?
        .with_client_cert_verifier(Arc::new(verifier))
        .with_cert_resolver(Arc::new(SingleCertAndKey::from(pair.key())));
    config.alpn_protocols = protocols(alpn);
    // A resumed session would bring a chain that nobody looked at again (threats.md T3).
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    config.max_early_data_size = 0;
    Ok(Arc::new(config))
}

struct FrontProxy {
    chains: Arc<dyn ClientCertVerifier>,
    allowed: Vec<String>,
}

impl fmt::Debug for FrontProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FrontProxy").field("allowed", &self.allowed).finish_non_exhaustive()
    }
}

impl ClientCertVerifier for FrontProxy {
    fn client_auth_mandatory(&self) -> bool {
        true
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.chains.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        leaf: &CertificateDer<'_>,
        others: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        if is_too_long(leaf, others) {
            return Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
        }
        let verified = self.chains.verify_client_cert(leaf, others, now)?;
        let allowed = || common_name(leaf).is_some_and(|name| self.allowed.contains(&name));
        if self.allowed.is_empty() || allowed() {
            Ok(verified)
        } else {
            Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls12_signature(message, leaf, signed)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        leaf: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.chains.verify_tls13_signature(message, leaf, signed)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.chains.supported_verify_schemes()
    }
}

fn is_too_long(leaf: &[u8], others: &[CertificateDer<'_>]) -> bool {
    others.len() >= CHAIN_CERTIFICATES || leaf.len() + others.iter().map(|other| other.len()).sum::<usize>() > CHAIN_BYTES
}

/// The common name of a certificate's subject; the last one, as Go has it, when there are several.
fn common_name(leaf: &CertificateDer<'_>) -> Option<String> {
    let parsed = webpki::EndEntityCert::try_from(leaf).ok()?;
    let mut subject = parsed.subject();
    let mut found = None;
    while !subject.is_empty() {
        let mut set = element(&mut subject, SET)?;
        while !set.is_empty() {
            let mut attribute = element(&mut set, SEQUENCE)?;
            if element(&mut attribute, OBJECT_IDENTIFIER)? == COMMON_NAME {
                let kind = *attribute.first()?;
                let value = element(&mut attribute, kind)?;
                let is_text = matches!(kind, UTF8_STRING | PRINTABLE_STRING | IA5_STRING);
                found = if is_text { String::from_utf8(value.to_vec()).ok() } else { None };
            }
        }
    }
    found
}

/// Takes the element of that kind from the front of `input`.
fn element<'a>(input: &mut &'a [u8], kind: u8) -> Option<&'a [u8]> {
    let (&first, rest) = input.split_first()?;
    let (&length, rest) = rest.split_first()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        // Longer forms: one or two bytes of length. No name is longer.
        0x81 => (usize::from(*rest.first()?), &rest[1..]),
        0x82 => (usize::from(u16::from_be_bytes([*rest.first()?, *rest.get(1)?])), &rest[2..]),
        _ => return None,
    };
    if first != kind || rest.len() < length {
        return None;
    }
    let (value, rest) = rest.split_at(length);
    *input = rest;
    Some(value)
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, DnType, KeyPair};
    use rustls::pki_types::pem::PemObject;

    use super::super::tests::Authority;
    use super::*;

    fn named(names: &[&str]) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, "an organization");
        for &name in names {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        params.distinguished_name.push(DnType::CountryName, "CH");
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    #[test]
    fn the_common_name_is_read() {
        let long = "x".repeat(300);
        for name in ["front-proxy-client", "a", "with blank, and comma", "Ünïcode", &long] {
            assert_eq!(common_name(&named(&[name])).as_deref(), Some(name));
        }
        assert_eq!(common_name(&named(&[])), None);
    }

    /// The chain itself is good: only what is beside it makes it too long.
    #[test]
    fn t6_chains_are_bounded_before_anything_is_verified() {
        let authority = Authority::new();
        let (cert, _) = authority.issue(2020, 2100);
        let leaf = CertificateDer::from_pem_slice(cert.as_bytes()).unwrap();
        let ca = CertificateDer::from_pem_slice(authority.pem().as_bytes()).unwrap();
        let roots = Arc::new(roots(authority.pem().as_bytes()).unwrap());
        let chains = WebPkiClientVerifier::builder_with_provider(roots, provider()).build().unwrap();
        let verifier = FrontProxy { chains, allowed: Vec::new() };
        let verify = |leaf: &[u8], others: &[CertificateDer<'_>]| {
            verifier.verify_client_cert(&CertificateDer::from(leaf), others, UnixTime::now()).map(|_| ())
        };
        let too_long = Err(Error::InvalidCertificate(CertificateError::ApplicationVerificationFailure));
        let blank = |len| CertificateDer::from(vec![0; len]);
        let room = CHAIN_BYTES - leaf.len();
        for (others, expected) in [
            (vec![ca.clone(); CHAIN_CERTIFICATES - 1], Ok(())),
            (vec![ca; CHAIN_CERTIFICATES], too_long.clone()),
            (vec![blank(room)], Ok(())),
            (vec![blank(room + 1)], too_long.clone()),
        ] {
            assert_eq!(verify(&leaf, &others), expected, "{} others", others.len());
        }
        // What is wrong with the first certificate is not even looked at.
        assert_eq!(verify(b"none", &vec![leaf.clone(); CHAIN_CERTIFICATES]), too_long);
        assert_eq!(verify(b"none", &[]), Err(Error::InvalidCertificate(CertificateError::BadEncoding)));
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let der = named(&["front-proxy-client"]);
        for at in 0..der.len() {
            for value in [0, 0x7f, 0x80, 0x81, 0x82, 0x83, 0xff] {
                let mut bytes = der.to_vec();
                bytes[at] = value;
                common_name(&CertificateDer::from(bytes));
            }
        }
        for mut input in [&[][..], &[0x30], &[0x30, 0x81], &[0x30, 0x82, 1], &[0x30, 0x83, 0, 0, 0], &[0x30, 5, 0]] {
            assert_eq!(element(&mut input, SEQUENCE), None);
        }
    }
}
