//! The one error type of the crate.

use std::{fmt, io};

/// What went wrong, and at which layer.
#[derive(Debug)]
pub enum Error {
    /// A socket or a file; the text says what was being done.
    Io(String, io::Error),
    /// A certificate could not be made.
    Certificate(rcgen::Error),
    /// A certificate or key in PEM form could not be read.
    Pem(String),
    /// TLS configuration or handshake.
    Tls(rustls::Error),
    /// A reset, a GOAWAY, a cut connection or a protocol error.
    Http2(h2::Error),
    /// A request that cannot be written down in HTTP (path, header).
    Request(http::Error),
    /// A body or line above the limit, in bytes.
    TooLarge(usize),
    /// Nothing came in time; the text says what was waited for.
    Timeout(&'static str),
    /// A body that should have been JSON was not.
    Json(serde_json::Error),
}

impl Error {
    /// The code of the RST_STREAM or GOAWAY behind this error, if there was one.
    pub fn reason(&self) -> Option<h2::Reason> {
        match self {
            Self::Http2(error) => error.reason(),
            _ => None,
        }
    }

    /// Whether the far end reset this one stream (RFC 9113 §5.4.2), as opposed to losing the whole connection.
    pub fn is_reset(&self) -> bool {
        matches!(self, Self::Http2(error) if error.is_reset() && error.is_remote())
    }

    /// Whether the far end sent GOAWAY and this stream was not processed (RFC 9113 §6.8).
    pub fn is_go_away(&self) -> bool {
        matches!(self, Self::Http2(error) if error.is_go_away())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(doing, source) => write!(f, "{doing}: {source}"),
            Self::Certificate(source) => write!(f, "cannot make certificate: {source}"),
            Self::Pem(what) => write!(f, "cannot read PEM: {what}"),
            Self::Tls(source) => write!(f, "TLS: {source}"),
            Self::Http2(source) => write!(f, "HTTP/2: {source}"),
            Self::Request(source) => write!(f, "invalid request: {source}"),
            Self::TooLarge(limit) => write!(f, "more than {limit} bytes"),
            Self::Timeout(what) => write!(f, "timed out: {what}"),
            Self::Json(source) => write!(f, "invalid JSON: {source}"),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(_, source) => Some(source),
            Self::Certificate(source) => Some(source),
            Self::Tls(source) => Some(source),
            Self::Http2(source) => Some(source),
            Self::Request(source) => Some(source),
            Self::Json(source) => Some(source),
            Self::Pem(_) | Self::TooLarge(_) | Self::Timeout(_) => None,
        }
    }
}

impl From<rcgen::Error> for Error {
    fn from(source: rcgen::Error) -> Self {
        Self::Certificate(source)
    }
}

impl From<rustls::Error> for Error {
    fn from(source: rustls::Error) -> Self {
        Self::Tls(source)
    }
}

impl From<h2::Error> for Error {
    fn from(source: h2::Error) -> Self {
        Self::Http2(source)
    }
}

impl From<http::Error> for Error {
    fn from(source: http::Error) -> Self {
        Self::Request(source)
    }
}

impl From<serde_json::Error> for Error {
    fn from(source: serde_json::Error) -> Self {
        Self::Json(source)
    }
}
