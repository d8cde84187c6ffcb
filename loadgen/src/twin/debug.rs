//! Behaviours that tests ask for by name, at `/debug/twin/<name>` or at any path with `x-twin-debug: <name>`:
//!
//! | name | what happens |
//! |---|---|
//! | `echo` | GET: the request head as JSON; other methods: the body and the trailers come back as they arrive |
//! | `bytes/<n>` | n bytes of a known pattern, see [`pattern_byte`] |
//! | `slow/<ms>` | 200 after that time |
//! | `hang` | no answer at all |
//! | `reset/<code>` | RST_STREAM with that code instead of a response |
//! | `truncate/<n>` | `content-length` 2n, n bytes, then RST_STREAM(INTERNAL_ERROR) |
//! | `trailers` | a body and two trailers |
//! | `early` | a full response before the request body is read, then RST_STREAM(NO_ERROR) as Go does |
//! | `informational` | 103 with a `link`, then 200 |
//! | `continue` | 100, then as `echo` |

use std::future::poll_fn;
use std::sync::LazyLock;
use std::time::Duration;

use bytes::Bytes;
use h2::{Reason, SendStream};
use http::header::{CONTENT_LENGTH, LINK, TRAILER};
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use serde_json::json;
use tokio::sync::oneshot;

use crate::body::send_all;
use crate::error::Error;

use super::exchange::{Answer, Exchange};
use super::status;

/// `bytes` and `truncate` send at most this much.
const BYTES_MAX: u64 = 1 << 30;
/// `slow` waits at most this long.
const SLOW_MAX: Duration = Duration::from_secs(600);
const BINARY: &str = "application/octet-stream";

/// The byte at `index` of what `bytes/<n>` and `truncate/<n>` send; it repeats every 256 bytes.
pub fn pattern_byte(index: u64) -> u8 {
    // Only the lowest byte of the product counts, so the index may be cut to a byte first.
    index.to_le_bytes()[0].wrapping_mul(31).wrapping_add(7)
}

/// One of the names above, with its argument.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Behaviour {
    Echo,
    Bytes(u64),
    Slow(Duration),
    Hang,
    Reset(Reason),
    Truncate(u64),
    Trailers,
    Early,
    Informational,
    Continue,
}

impl Behaviour {
    /// `None` for an unknown name, and for an argument that is missing, malformed or above its limit.
    pub(super) fn parse(asked: &str) -> Option<Self> {
        let (name, argument) = asked.split_once('/').unwrap_or((asked, ""));
        let number = argument.parse::<u64>().ok();
        Some(match name {
            "bytes" => Self::Bytes(number.filter(|count| *count <= BYTES_MAX)?),
            "truncate" => Self::Truncate(number.filter(|count| *count <= BYTES_MAX)?),
            "slow" => Self::Slow(number.map(Duration::from_millis).filter(|wait| *wait <= SLOW_MAX)?),
            "reset" => Self::Reset(Reason::from(u32::try_from(number?).ok()?)),
            _ if !argument.is_empty() => return None,
            "echo" => Self::Echo,
            "hang" => Self::Hang,
            "trailers" => Self::Trailers,
            "early" => Self::Early,
            "informational" => Self::Informational,
            "continue" => Self::Continue,
            _ => return None,
        })
    }

    /// Behaves so.
    pub(super) async fn act(self, exchange: Exchange) -> Result<(), Error> {
        match self {
            Self::Echo if matches!(exchange.request.method, Method::GET | Method::HEAD) => echo_head(exchange).await,
            Self::Echo => echo(exchange).await,
            Self::Bytes(count) => bytes(exchange, count).await,
            Self::Slow(wait) => slow(exchange, wait).await,
            Self::Hang => hang(exchange).await,
            Self::Reset(reason) => {
                let mut exchange = exchange;
                exchange.respond.send_reset(reason);
                Ok(())
            }
            Self::Truncate(count) => truncate(exchange, count).await,
            Self::Trailers => trailers(exchange).await,
            Self::Early => exchange.answer(Answer::text(StatusCode::OK, "early\n")).await,
            Self::Informational => {
                let link = [(LINK, HeaderValue::from_static("</style.css>; rel=preload"))];
                let exchange = informational(exchange, StatusCode::EARLY_HINTS, link.into_iter().collect())?;
                exchange.answer(Answer::text(StatusCode::OK, "after the hints\n")).await
            }
            Self::Continue => echo(informational(exchange, StatusCode::CONTINUE, HeaderMap::new())?).await,
        }
    }
}

/// The request head as JSON. Headers keep their order, except that lines of one name stand together.
async fn echo_head(exchange: Exchange) -> Result<(), Error> {
    let request = &exchange.request;
    let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
    let headers: Vec<[String; 2]> = request.headers.iter().map(|(name, value)| [name.as_str().into(), text(value)]).collect();
    let body = json!({
        "method": request.method.as_str(),
        "scheme": request.uri.scheme_str(),
        "authority": request.uri.authority().map(|authority| authority.as_str()),
        "path": request.uri.path_and_query().map(|path| path.as_str()),
        "clientCertificate": exchange.certified,
        "headers": headers,
    });
    let answer = Answer::json(StatusCode::OK, status::json(&body));
    exchange.answer(answer).await
}

/// Sends the body back as it comes. What cannot be sent on is not released, so the client feels its own slowness.
async fn echo(mut exchange: Exchange) -> Result<(), Error> {
    let mut stream = start(&mut exchange, StatusCode::OK)?;
    while let Some(chunk) = exchange.body.data().await {
        let chunk = chunk?;
        let taken = chunk.len();
        send_all(&mut stream, chunk, false).await?;
        exchange.body.flow_control().release_capacity(taken)?;
    }
    match exchange.body.trailers().await? {
        Some(trailers) => stream.send_trailers(trailers)?,
        None => stream.send_data(Bytes::new(), true)?,
    }
    Ok(())
}

async fn bytes(mut exchange: Exchange, count: u64) -> Result<(), Error> {
    let mut head = exchange.head(StatusCode::OK, BINARY);
    head.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(count));
    let mut stream = exchange.respond.send_response(head, false)?;
    send_pattern(&mut stream, count).await?;
    Ok(stream.send_data(Bytes::new(), true)?)
}

async fn slow(mut exchange: Exchange, wait: Duration) -> Result<(), Error> {
    let respond = &mut exchange.respond;
    tokio::select! {
        () = tokio::time::sleep(wait) => {}
        reason = poll_fn(|cx| respond.poll_reset(cx)) => return Err(h2::Error::from(reason?).into()),
    }
    exchange.answer(Answer::text(StatusCode::OK, "ok")).await
}

/// Waits for the client to give up.
async fn hang(mut exchange: Exchange) -> Result<(), Error> {
    let reason = poll_fn(|cx| exchange.respond.poll_reset(cx)).await?;
    Err(h2::Error::from(reason).into())
}

async fn truncate(mut exchange: Exchange, count: u64) -> Result<(), Error> {
    let mut head = exchange.head(StatusCode::OK, BINARY);
    head.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(2 * count));
    let mut stream = exchange.respond.send_response(head, false)?;
    let (sent, written) = oneshot::channel();
    send_pattern(&mut stream, count.saturating_sub(1)).await?;
    // A reset discards what is queued (headers included), so it has to wait until the last byte has left the queue.
    let last = Bytes::from_owner(LastByte([pattern_byte(count.saturating_sub(1))], sent));
    send_all(&mut stream, last.slice(..usize::from(count > 0)), false).await?;
    drop(last);
    // The sender is never used: that it is dropped is the news.
    drop(written.await);
    stream.send_reset(Reason::INTERNAL_ERROR);
    Ok(())
}

/// A byte that tells, by dropping its sender, when HTTP/2 has written it.
struct LastByte([u8; 1], #[expect(dead_code, reason = "dropping it is its use")] oneshot::Sender<()>);

impl AsRef<[u8]> for LastByte {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

async fn trailers(mut exchange: Exchange) -> Result<(), Error> {
    let mut head = exchange.head(StatusCode::OK, "text/plain; charset=utf-8");
    head.headers_mut().insert(TRAILER, HeaderValue::from_static("x-twin-trailer, x-twin-count"));
    let mut stream = exchange.respond.send_response(head, false)?;
    send_all(&mut stream, Bytes::from_static(b"trailers follow\n"), false).await?;
    let mut trailers = HeaderMap::new();
    trailers.insert("x-twin-trailer", HeaderValue::from_static("yes"));
    trailers.insert("x-twin-count", HeaderValue::from_static("2"));
    Ok(stream.send_trailers(trailers)?)
}

fn informational(mut exchange: Exchange, status: StatusCode, headers: HeaderMap) -> Result<Exchange, Error> {
    let mut head = Response::new(());
    *head.status_mut() = status;
    *head.headers_mut() = headers;
    exchange.respond.send_informational(head)?;
    Ok(exchange)
}

fn start(exchange: &mut Exchange, status: StatusCode) -> Result<SendStream<Bytes>, Error> {
    let head = exchange.head(status, BINARY);
    Ok(exchange.respond.send_response(head, false)?)
}

async fn send_pattern(stream: &mut SendStream<Bytes>, count: u64) -> Result<(), h2::Error> {
    // A multiple of the pattern's period, so that every block begins alike and none is copied.
    static BLOCK: LazyLock<Bytes> = LazyLock::new(|| (0..64 * 1024).map(pattern_byte).collect());
    let mut left = count;
    while left > 0 {
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(BLOCK.len());
        send_all(stream, BLOCK.slice(..len), false).await?;
        left -= len as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_with_their_limits() {
        let table = [
            ("echo", Some(Behaviour::Echo)),
            ("echo/1", None),
            ("bytes/0", Some(Behaviour::Bytes(0))),
            ("bytes", None),
            ("bytes/-1", None),
            ("bytes/1073741825", None),
            ("slow/20", Some(Behaviour::Slow(Duration::from_millis(20)))),
            ("slow/600001", None),
            ("reset/8", Some(Behaviour::Reset(Reason::CANCEL))),
            ("reset/4294967296", None),
            ("truncate/5", Some(Behaviour::Truncate(5))),
            ("", None),
        ];
        for (asked, expected) in table {
            assert_eq!(Behaviour::parse(asked), expected, "{asked}");
        }
    }

    #[test]
    fn the_pattern_is_the_documented_one() {
        for index in [0u64, 1, 255, 256, 65_535, 65_536, 123_456_789] {
            assert_eq!(u64::from(pattern_byte(index)), (index * 31 + 7) & 0xff);
        }
    }
}
