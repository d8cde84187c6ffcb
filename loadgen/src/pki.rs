//! Certificates made on the fly: one CA, serving and client certificates signed by it.
//!
//! Always: ECDSA P-256 keys, private keys never on disk except through [`KeyPairPem::write`], which gives them
//! mode 0600. The validity spans every clock a test machine may have; expiry is not what these are for.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose};

use crate::error::Error;

mod x509;

/// Names that every serving certificate carries: what a client dials, and what peers verify.
const SERVING_NAMES: [&str; 4] = ["localhost", "kubernetes.default.svc", "127.0.0.1", "::1"];

/// A certificate and its private key, both in PEM form.
#[derive(Clone)]
pub struct KeyPairPem {
    /// The certificate, leaf only.
    pub cert: String,
    /// The private key, PKCS #8.
    pub key: String,
}

impl KeyPairPem {
    /// Writes `<name>.crt` and `<name>.key` (mode 0600) into `dir`, which is made if missing; returns both paths.
    pub fn write(&self, dir: &Path, name: &str) -> Result<(PathBuf, PathBuf), Error> {
        let cert = dir.join(format!("{name}.crt"));
        let key = dir.join(format!("{name}.key"));
        write_file(&cert, &self.cert, 0o644)?;
        write_file(&key, &self.key, 0o600)?;
        Ok((cert, key))
    }
}

// The key must not reach a log through `{:?}`.
impl std::fmt::Debug for KeyPairPem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeyPairPem").field("cert", &self.cert).finish_non_exhaustive()
    }
}

/// One certificate authority and what it signs.
pub struct Pki {
    issuer: Issuer<'static, KeyPair>,
    ca: String,
}

impl Pki {
    /// A new CA with a new key.
    pub fn new() -> Result<Self, Error> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, "mvproxy test CA");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
        let key = new_key()?;
        let ca = params.self_signed(&key)?.pem();
        Ok(Self { issuer: Issuer::new(params, key), ca })
    }

    /// A serving certificate for DNS:localhost, DNS:kubernetes.default.svc, IP:127.0.0.1 and IP:::1.
    pub fn serving(&self) -> Result<KeyPairPem, Error> {
        self.serving_for(&SERVING_NAMES)
    }

    /// A serving certificate for these DNS names and addresses alone.
    pub fn serving_for(&self, names: &[&str]) -> Result<KeyPairPem, Error> {
        let names: Vec<String> = names.iter().copied().map(String::from).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, "kube-apiserver");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = new_key()?;
        let cert = params.signed_by(&key, &self.issuer)?.pem();
        Ok(KeyPairPem { cert, key: key.serialize_pem() })
    }

    /// A client certificate: `cn` is the user, every entry of `orgs` a group, in that order.
    pub fn client(&self, cn: &str, orgs: &[&str]) -> Result<KeyPairPem, Error> {
        let mut params = CertificateParams::default();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        let key = new_key()?;
        let draft = params.signed_by(&key, &self.issuer)?;
        let der = x509::with_subject(draft.der(), cn, orgs, self.issuer.key())?;
        Ok(KeyPairPem { cert: x509::certificate_pem(&der), key: key.serialize_pem() })
    }

    /// The CA certificate.
    pub fn ca_pem(&self) -> &str {
        &self.ca
    }

    /// Writes the CA certificate to `<dir>/<name>.crt`; returns the path.
    pub fn write_ca(&self, dir: &Path, name: &str) -> Result<PathBuf, Error> {
        let path = dir.join(format!("{name}.crt"));
        write_file(&path, &self.ca, 0o644)?;
        Ok(path)
    }
}

fn new_key() -> Result<KeyPair, Error> {
    Ok(KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?)
}

/// Replaces the file by a new one: an old file would keep its old mode.
fn write_file(path: &Path, text: &str, mode: u32) -> Result<(), Error> {
    let failed = |source| Error::Io(format!("cannot write {}", path.display()), source);
    if let Some(dir) = path.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map_err(failed)?;
    file.write_all(text.as_bytes()).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn keys_are_written_for_the_owner_only() {
        let pki = Pki::new().unwrap();
        let dir = std::env::temp_dir().join(format!("loadgen-pki-{}", std::process::id()));
        let pair = pki.client("alice", &["a", "b", "c"]).unwrap();
        let (cert, key) = pair.write(&dir, "alice").unwrap();
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(cert).unwrap(), pair.cert);
        assert_eq!(fs::read_to_string(pki.write_ca(&dir, "ca").unwrap()).unwrap(), pki.ca_pem());
        fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn debug_output_hides_the_key() {
        let pair = Pki::new().unwrap().serving().unwrap();
        assert!(!format!("{pair:?}").contains("PRIVATE KEY"));
    }
}
