//! A kubeconfig, as kubectl reads it. Pure.

use std::net::SocketAddr;

/// A configuration with one cluster, one user and the context that joins them.
pub(super) fn text(server: SocketAddr, ca_pem: &str, token: &str) -> String {
    format!(
        "apiVersion: v1
kind: Config
current-context: mvproxy-demo
clusters:
- name: mvproxy-demo
  cluster:
    server: https://{server}
    certificate-authority-data: {ca}
users:
- name: demo
  user:
    token: {token}
contexts:
- name: mvproxy-demo
  context:
    cluster: mvproxy-demo
    user: demo
",
        ca = base64(ca_pem.as_bytes())
    )
}

/// RFC 4648 §4, with padding.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let word = (0..3).fold(0_u32, |word, at| word << 8 | u32::from(chunk.get(at).copied().unwrap_or(0)));
        for place in 0..4 {
            // `n` bytes fill `n + 1` characters.
            let character = if place <= chunk.len() { ALPHABET[(word >> (18 - 6 * place) & 63) as usize] } else { b'=' };
            text.push(char::from(character));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 4648 §10.
    #[test]
    fn base64_test_vectors() {
        for (bytes, expected) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE="), ("foobar", "Zm9vYmFy")]
        {
            assert_eq!(base64(bytes.as_bytes()), expected);
        }
        assert_eq!(base64(&[0xfb, 0xff, 0xfe]), "+//+");
    }

    #[test]
    fn names_the_server_and_the_token() {
        let text = text(([127, 0, 0, 1], 8443).into(), "pem", "secret");
        for part in ["server: https://127.0.0.1:8443\n", "certificate-authority-data: cGVt\n", "token: secret\n"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
