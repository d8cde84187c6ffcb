//! Answers the proxy makes itself: `metav1.Status` JSON with constant text, in one place.
//!
//! The text names no address: what a client may see must not tell it what can be reached from here (threats.md §5e).

use crate::http2::hpack::{HeaderBlock, Token};
use crate::route::Refusal;

/// Why a request is answered here.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Failure {
    /// No server that serves the resource could be reached, and none was asked: the request can be sent again.
    NoServer,
    /// The server went away before it answered; it may have done what it was asked.
    Interrupted,
    /// The server did not answer in time.
    Timeout,
    /// Too many requests wait for the server.
    Overloaded,
    /// A hop from another proxy for what is not served here.
    NotServedHere,
    /// The servers of the resource left a moment ago.
    ServersGone,
    /// Some server was not asked yet what it serves, and it may be this.
    NotYetKnown,
    /// The path has an escape that is none.
    BadPath,
    /// The header list is longer than we take.
    HeadTooLarge,
    /// CONNECT: never a tunnel.
    MethodNotAllowed,
    /// HTTP/1.1 that is not well formed, or whose end is not clear.
    BadRequest,
    /// A transfer coding or an upgrade that we do not do.
    NotImplemented,
    /// Neither HTTP/1.0 nor HTTP/1.1.
    VersionNotSupported,
}

impl Failure {
    /// Was nothing done because of what is missing here, so that another proxy's server may do it?
    pub(crate) fn is_for_another(self) -> bool {
        matches!(self, Self::NoServer | Self::NotServedHere | Self::ServersGone | Self::NotYetKnown)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::NotServedHere => Self::NotServedHere,
            Refusal::ServersGone => Self::ServersGone,
            Refusal::NotYetKnown => Self::NotYetKnown,
        }
    }
}

/// A ready answer.
pub(crate) struct Answer {
    pub(crate) status: &'static [u8],
    pub(crate) body: &'static [u8],
    pub(crate) retry_after: Option<&'static [u8]>,
}

impl Answer {
    /// The status as a number.
    pub(crate) fn code(&self) -> u16 {
        self.status.iter().fold(0, |sum, &digit| sum * 10 + u16::from(digit - b'0'))
    }

    /// Appends the head.
    pub(crate) fn put_fields(&self, head: &mut HeaderBlock) {
        let mut digits = [0; 20];
        head.push_token(Token::STATUS, self.status);
        head.push_token(Token::CONTENT_TYPE, b"application/json");
        head.push_token(Token::CACHE_CONTROL, b"no-cache, private");
        head.push_token(Token::CONTENT_LENGTH, decimal(self.body.len(), &mut digits));
        if let Some(seconds) = self.retry_after {
            head.push_token(Token::RETRY_AFTER, seconds);
        }
    }
}

/// `n` in decimal digits.
fn decimal(mut n: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        #[allow(clippy::cast_possible_truncation, reason = "a digit")]
        let digit = (n % 10) as u8;
        digits[at] = b'0' + digit;
        n /= 10;
        if n == 0 {
            return &digits[at..];
        }
    }
}

macro_rules! status {
    ($code:literal, $reason:literal, $message:literal) => {
        status!($code, $reason, $message, "")
    };
    ($code:literal, $reason:literal, $message:literal, $details:literal) => {
        concat!(
            r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":""#,
            $message,
            r#"","reason":""#,
            $reason,
            r#"","#,
            $details,
            r#""code":"#,
            $code,
            "}\n"
        )
        .as_bytes()
    };
}

macro_rules! retriable_status {
    ($code:literal, $reason:literal, $message:literal) => {
        status!($code, $reason, $message, r#""details":{"retryAfterSeconds":1},"#)
    };
}

impl Failure {
    /// `Retry-After` is an order to client-go, for any verb: only where no server can have processed the request, or where that does no harm (a read
    /// that was lost once and then found nobody left to ask, decision 0015).
    pub(crate) fn answer(self) -> Answer {
        let (status, body, retry): (&'static [u8], &'static [u8], bool) = match self {
            Self::NoServer => (
                b"503",
                retriable_status!("503", "ServiceUnavailable", "no apiserver that serves the requested resource can be reached"),
                true,
            ),
            Self::Interrupted => {
                (b"503", status!("503", "ServiceUnavailable", "Error while proxying request to destination apiserver"), false)
            }
            Self::Timeout => (b"504", status!("504", "Timeout", "Timeout: request did not complete within the allotted timeout"), false),
            Self::Overloaded => {
                (b"503", retriable_status!("503", "ServiceUnavailable", "too many requests wait for the destination apiserver"), true)
            }
            Self::NotServedHere => (
                b"503",
                retriable_status!("503", "ServiceUnavailable", "the apiserver this request was proxied to does not serve the resource"),
                true,
            ),
            Self::ServersGone => {
                (b"503", retriable_status!("503", "ServiceUnavailable", "the apiservers that serve the requested resource are gone"), true)
            }
            Self::NotYetKnown => (
                b"503",
                retriable_status!("503", "ServiceUnavailable", "it is not yet known which apiservers serve the requested resource"),
                true,
            ),
            Self::BadPath => (b"400", status!("400", "BadRequest", "the request path has an invalid escape"), false),
            Self::HeadTooLarge => (b"431", status!("431", "RequestHeaderFieldsTooLarge", "the request header list is too large"), false),
            Self::BadRequest => (b"400", status!("400", "BadRequest", "the request is malformed"), false),
            Self::NotImplemented => (
                b"501",
                status!("501", "NotImplemented", "transfer codings other than chunked, and protocol upgrades, are not supported"),
                false,
            ),
            Self::VersionNotSupported => {
                (b"505", status!("505", "HTTPVersionNotSupported", "only HTTP/1.0, HTTP/1.1 and HTTP/2 are supported"), false)
            }
            Self::MethodNotAllowed => (b"405", status!("405", "MethodNotAllowed", "CONNECT is not supported"), false),
        };
        Answer { status, body, retry_after: retry.then_some(b"1") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Failure; 13] = [
        Failure::NoServer,
        Failure::Interrupted,
        Failure::Timeout,
        Failure::Overloaded,
        Failure::NotServedHere,
        Failure::ServersGone,
        Failure::NotYetKnown,
        Failure::BadPath,
        Failure::HeadTooLarge,
        Failure::MethodNotAllowed,
        Failure::BadRequest,
        Failure::NotImplemented,
        Failure::VersionNotSupported,
    ];

    #[test]
    fn every_failure_is_a_status_with_its_code() {
        for failure in ALL {
            let answer = failure.answer();
            let body = std::str::from_utf8(answer.body).unwrap();
            let code = std::str::from_utf8(answer.status).unwrap();
            assert!(body.starts_with(r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":""#), "{body}");
            assert!(body.ends_with(&format!("\"code\":{code}}}\n")), "{body}");
            assert_eq!(answer.retry_after.is_some(), body.contains("retryAfterSeconds"), "{failure:?}");
        }
    }

    #[test]
    fn retry_after_only_when_nothing_was_processed() {
        let retriable: Vec<_> = ALL.into_iter().filter(|failure| failure.answer().retry_after.is_some()).collect();
        assert_eq!(retriable, [Failure::NoServer, Failure::Overloaded, Failure::NotServedHere, Failure::ServersGone, Failure::NotYetKnown]);
    }
}
