//! TLS configurations of the twin and the client: HTTP/2, from the twin HTTP/1.1 as well, provider always named.

use std::sync::Arc;

use rustls::RootCertStore;
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use crate::error::Error;
use crate::pki::KeyPairPem;

/// What a client offers, and a server prefers (RFC 7301).
const HTTP2: &[u8] = b"h2";
/// What a server speaks as well.
pub(crate) const HTTP1: &[u8] = b"http/1.1";

/// Server side; with `client_ca` a client certificate is requested but not required, as kube-apiserver does.
pub(crate) fn server_config(pair: &KeyPairPem, client_ca: Option<&str>) -> Result<Arc<rustls::ServerConfig>, Error> {
    let builder = rustls::ServerConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?;
    let builder = match client_ca {
        None => builder.with_no_client_auth(),
        Some(ca) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots(ca)?), provider())
                .allow_unauthenticated()
                .build()
                .map_err(|error| Error::Pem(format!("client CA: {error}")))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let (chain, key) = certified_key(pair)?;
    let mut config = builder.with_single_cert(chain, key)?;
    config.alpn_protocols = vec![HTTP2.to_vec(), HTTP1.to_vec()];
    Ok(Arc::new(config))
}

/// Client side; trusts `ca` alone, and shows `pair` when asked for a certificate.
pub(crate) fn client_config(ca: &str, pair: Option<&KeyPairPem>) -> Result<Arc<rustls::ClientConfig>, Error> {
    let builder =
        rustls::ClientConfig::builder_with_provider(provider()).with_safe_default_protocol_versions()?.with_root_certificates(roots(ca)?);
    let mut config = match pair {
        None => builder.with_no_client_auth(),
        Some(pair) => {
            let (chain, key) = certified_key(pair)?;
            builder.with_client_auth_cert(chain, key)?
        }
    };
    config.alpn_protocols = vec![HTTP2.to_vec()];
    Ok(Arc::new(config))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}

fn roots(pem: &str) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots.add(certificate)?;
    }
    Ok(roots)
}

fn certified_key(pair: &KeyPairPem) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>), Error> {
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|error| Error::Pem(format!("key: {error}")))?;
    Ok((certificates(&pair.cert)?, key))
}

fn certificates(pem: &str) -> Result<Vec<CertificateDer<'static>>, Error> {
    let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    match chain {
        Ok(chain) if !chain.is_empty() => Ok(chain),
        Ok(_) => Err(Error::Pem(String::from("no certificate in it"))),
        Err(error) => Err(Error::Pem(format!("certificate: {error}"))),
    }
}
