//! Files named on the command line, read whole and within limits; errors name the flag and the file.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use discovery::{Snapshot, static_routes};
use engine::tls::ConfigError;

use crate::failure::Failure;

/// The largest certificate or key file; bundles with all public authorities have 250 KiB.
const PEM_MAX: usize = 1 << 20;
/// The largest configuration file.
const TEXT_MAX: usize = 1 << 20;

/// A flag and the file that it names.
#[derive(Clone, Copy)]
pub(crate) struct Named<'a> {
    /// With its dashes.
    pub(crate) flag: &'static str,
    pub(crate) path: &'a Path,
}

/// The routing file.
pub(crate) fn routes(file: Named<'_>) -> Result<Snapshot, Failure> {
    let bytes = read(file, static_routes::TEXT_MAX)?;
    let text = std::str::from_utf8(&bytes).map_err(|_| file.refused("not text in UTF-8: is it the right file?"))?;
    static_routes::parse(text).map_err(|error| file.refused(error))
}

/// A file of ours that is text.
pub(crate) fn text(file: Named<'_>) -> Result<String, Failure> {
    String::from_utf8(read(file, TEXT_MAX)?).map_err(|_| file.refused("not text in UTF-8: is it the right file?"))
}

/// A certificate, key or bundle.
pub(crate) fn read_pem(file: Named<'_>) -> Result<Vec<u8>, Failure> {
    read(file, PEM_MAX)
}

impl Named<'_> {
    /// The file was read, but what is in it is wrong.
    pub(crate) fn refused(self, why: impl std::fmt::Display) -> Failure {
        Failure::usage(format_args!("{} {}: {why}", self.flag, self.path.display()))
    }
}

/// Blames the file that is at fault.
pub(crate) fn pair_refused(cert: Named<'_>, key: Named<'_>, error: &ConfigError) -> Failure {
    match error {
        ConfigError::NoKey | ConfigError::KeyEncrypted | ConfigError::BadKey(_) | ConfigError::KeyMismatch => key.refused(error),
        ConfigError::Pem(_) => {
            let (other, path) = (key.flag, key.path.display());
            Failure::usage(format_args!("{} {} or {other} {path}: {error}", cert.flag, cert.path.display()))
        }
        _ => cert.refused(error),
    }
}

fn read(file: Named<'_>, max: usize) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let opened = File::open(file.path);
    let ended = opened.and_then(|opened| opened.take(max as u64 + 1).read_to_end(&mut bytes));
    ended.map_err(|error| {
        let fix = match error.kind() {
            io::ErrorKind::NotFound => "check the path",
            io::ErrorKind::PermissionDenied => "let the user that mvproxy runs as read it",
            io::ErrorKind::IsADirectory => "name the file in it",
            _ => "check the file and its file system",
        };
        Failure::runtime(format_args!("{} {}: cannot be read: {error}: {fix}", file.flag, file.path.display()))
    })?;
    if bytes.len() > max {
        return Err(file.refused(format_args!("more than {max} bytes: is it the right file?")));
    }
    Ok(bytes)
}
