//! Why a TLS session ends.

use std::fmt;

/// Why a session ended or refused.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum TlsError {
    /// rustls refused what the peer did, or the peer sent an alert.
    Protocol(rustls::Error),
    /// A handshake message in too many pieces.
    HandshakeTooLong,
    /// Sending was tried before the end of the handshake.
    NotEstablished,
    /// Sending was tried after the session failed or was closed by us.
    Closed,
    /// Bytes came after the session had failed.
    Failed,
    /// The keys have encrypted as much as they may (TLS 1.2 cannot renew them).
    Exhausted,
    /// rustls is in a state that cannot be; a bug of ours.
    Unexpected,
}

impl From<rustls::Error> for TlsError {
    fn from(error: rustls::Error) -> Self {
        Self::Protocol(error)
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Protocol(error) => error.fmt(f),
            Self::HandshakeTooLong => f.write_str("handshake message in too many pieces"),
            Self::NotEstablished => f.write_str("handshake is not done"),
            Self::Closed => f.write_str("session is closed for sending"),
            Self::Failed => f.write_str("session has failed before"),
            Self::Exhausted => f.write_str("keys are exhausted"),
            Self::Unexpected => f.write_str("unexpected state of the tls library"),
        }
    }
}

impl std::error::Error for TlsError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Protocol(error) => Some(error),
            _ => None,
        }
    }
}
