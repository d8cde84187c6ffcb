//! Who we are to the servers we ask: the bearer token of a kubeconfig.

use std::fmt;
use std::path::{Path, PathBuf};

use http::HeaderValue;
use kube::config::Kubeconfig;
use secrecy::ExposeSecret;

/// The longest token: those of service accounts have some 1,000 bytes.
const TOKEN_MAX: usize = 16 << 10;

/// A bearer token, the file that has it, or both: then the file counts, and the token until it can be read.
#[derive(Clone)]
pub struct Credentials(Token);

#[derive(Clone)]
enum Token {
    Given(HeaderValue),
    File { path: PathBuf, until_then: Option<HeaderValue> },
}

/// Why there are none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CredentialsError(String);

impl fmt::Display for CredentialsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for CredentialsError {}

impl Credentials {
    /// This token, for good.
    pub fn token(token: &str) -> Result<Self, CredentialsError> {
        header(token).map(|header| Self(Token::Given(header)))
    }

    /// The user of the kubeconfig's current context. `folder` is where the file is: relative names in it begin there.
    ///
    /// The server and the CA of the kubeconfig are not used: where to connect to and whom to believe are settings of the proxy.
    pub fn from_kubeconfig(text: &str, folder: &Path) -> Result<Self, CredentialsError> {
        let config = Kubeconfig::from_yaml(text).map_err(|error| CredentialsError(format!("not a kubeconfig: {error}")))?;
        let context = config.current_context.as_deref().unwrap_or_default();
        let found = config.contexts.iter().find(|named| named.name == context).and_then(|named| named.context.as_ref());
        let found = found.ok_or_else(|| CredentialsError(format!("the kubeconfig's current-context `{context}` is not in it")))?;
        let user = found.user.as_deref().unwrap_or_default();
        let named = config.auth_infos.iter().find(|named| named.name == user).and_then(|named| named.auth_info.as_ref());
        let auth = named.ok_or_else(|| CredentialsError(format!("the kubeconfig's user `{user}` is not in it")))?;
        match (&auth.token, &auth.token_file) {
            (token, Some(file)) => {
                let until_then = token.as_ref().map(|token| header(token.expose_secret())).transpose()?;
                Ok(Self(Token::File { path: folder.join(file), until_then }))
            }
            (Some(token), None) => Self::token(token.expose_secret()),
            (None, None) => Err(CredentialsError(format!("the kubeconfig's user `{user}` has neither `token` nor `tokenFile`"))),
        }
    }

    /// The value of `authorization` at this moment; reads the file if there is one.
    pub(super) fn read(&self) -> Result<HeaderValue, CredentialsError> {
        match &self.0 {
            Token::Given(header) => Ok(header.clone()),
            Token::File { path, .. } => {
                let text = std::fs::read_to_string(path);
                header(&text.map_err(|error| CredentialsError(format!("token file {}: {error}", path.display())))?)
            }
        }
    }

    /// The same for the first time, when there is none from before.
    pub(super) fn read_first(&self) -> Result<HeaderValue, CredentialsError> {
        match (self.read(), &self.0) {
            (Err(_), Token::File { until_then: Some(header), .. }) => Ok(header.clone()),
            (read, _) => read,
        }
    }
}

/// Shows no token.
impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Token::Given(_) => f.write_str("a token"),
            Token::File { path, .. } => write!(f, "the token in {}", path.display()),
        }
    }
}

fn header(token: &str) -> Result<HeaderValue, CredentialsError> {
    let token = token.trim();
    let is_one = !token.is_empty() && token.len() <= TOKEN_MAX && token.bytes().all(|byte| byte.is_ascii_graphic());
    let value = is_one.then(|| HeaderValue::from_str(&format!("Bearer {token}")).ok()).flatten();
    let mut value = value.ok_or_else(|| CredentialsError("the bearer token is empty or no token".to_owned()))?;
    value.set_sensitive(true);
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kubeconfig(user: &str) -> String {
        format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\ncontexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
             clusters: [{{name: k, cluster: {{server: 'https://192.0.2.1'}}}}]\nusers: [{{name: u, user: {user}}}]\n"
        )
    }

    #[test]
    fn the_token_is_the_current_contexts() {
        let read = |user: &str| Credentials::from_kubeconfig(&kubeconfig(user), Path::new("/nowhere"));
        let given = read("{token: abc}").unwrap();
        assert_eq!(given.read().unwrap().to_str().unwrap(), "Bearer abc");
        assert!(given.read().unwrap().is_sensitive());
        assert!(read("{}").unwrap_err().to_string().contains("neither"));
        let text = kubeconfig("{token: abc}").replace("current-context: c", "current-context: d");
        assert!(Credentials::from_kubeconfig(&text, Path::new("/")).unwrap_err().to_string().contains("`d`"));
        assert!(Credentials::from_kubeconfig("a: [", Path::new("/")).is_err());
    }

    #[test]
    fn a_token_file_is_read_anew() {
        let folder = std::env::temp_dir().join(format!("mvproxy-token-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let credentials = Credentials::from_kubeconfig(&kubeconfig("{tokenFile: t}"), &folder).unwrap();
        assert!(credentials.read().is_err());
        for token in ["one", "two\n"] {
            std::fs::write(folder.join("t"), token).unwrap();
            assert_eq!(credentials.read().unwrap().to_str().unwrap(), format!("Bearer {}", token.trim()));
        }
        let both =
            |file: &str| Credentials::from_kubeconfig(&kubeconfig(&format!("{{token: given, tokenFile: {file}}}")), &folder).unwrap();
        assert_eq!(both("t").read_first().unwrap(), "Bearer two");
        assert_eq!(both("none").read_first().unwrap(), "Bearer given");
        assert!(both("none").read().is_err(), "the one from before stays");
        for token in ["", "a b", "a\u{7f}", &"x".repeat(TOKEN_MAX + 1)] {
            std::fs::write(folder.join("t"), token).unwrap();
            assert!(credentials.read().is_err(), "{}", token.len());
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn debug_shows_no_token() {
        assert_eq!(format!("{:?}", Credentials::token("secret").unwrap()), "a token");
    }
}
