//! The id of an apiserver: the name of its identity Lease and its `apiServerID` in StorageVersions.

use aws_lc_rs::digest::{SHA256, digest};

/// The id of the kube-apiserver on that host (kubernetes.md §1).
pub fn server_id(hostname: &str) -> String {
    let mut hashed = Vec::new();
    for part in [hostname, "kube-apiserver"] {
        hashed.extend_from_slice(&u16::try_from(part.len()).unwrap().to_be_bytes());
        hashed.extend_from_slice(part.as_bytes());
    }
    format!("apiserver-{}", base32(&digest(&SHA256, &hashed).as_ref()[..16]))
}

/// RFC 4648 §6 in lower case, without padding.
fn base32(bytes: &[u8]) -> String {
    let bit = |at: usize| bytes.get(at / 8).is_some_and(|byte| byte >> (7 - at % 8) & 1 == 1);
    let digit = |at: usize| (0..5).fold(0, |digit, offset| digit << 1 | usize::from(bit(at + offset)));
    (0..bytes.len() * 8).step_by(5).map(|at| char::from(b"abcdefghijklmnopqrstuvwxyz234567"[digit(at)])).collect()
}
