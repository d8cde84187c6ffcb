//! As much HTTP/1.1 as a status port needs: one GET or HEAD for each connection, read and answered within limits.
//!
//! What always holds: at most [`CONNECTIONS_MAX`] connections are served at once, each for at most [`REQUEST_TIME`]; a head has at most
//! [`HEAD_MAX`] bytes. Nothing here is shared with the shards but the CPUs.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A scraper, a kubelet and a few people.
const CONNECTIONS_MAX: usize = 16;
/// From the connection to the last byte of the answer.
const REQUEST_TIME: Duration = Duration::from_secs(2);
/// A path of 4 KiB, escaped, and what browsers send beside it.
const HEAD_MAX: usize = 8 * 1024;
const HEADERS_MAX: usize = 64;
/// After an accept that failed (no files left): there is nothing to wait for.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Between two looks whether a place is free.
const PLACE_PAUSE: Duration = Duration::from_millis(5);
/// How much longer an answer may take than what it answers.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// What was asked for.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) path: String,
    /// Decoded.
    pub(super) query: Vec<(String, String)>,
    is_head: bool,
}

impl Request {
    /// The first value of that name.
    pub(super) fn value(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }
}

#[cfg(test)]
impl Request {
    pub(super) fn for_tests(path: &str, query: &[(&str, &str)]) -> Self {
        let query = query.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Self { path: path.to_owned(), query, is_head: false }
    }
}

/// What is answered.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) content_type: &'static str,
    pub(super) body: String,
}

impl Reply {
    pub(super) fn text(status: u16, body: impl Into<String>) -> Self {
        Self { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }

    fn bytes(&self, is_head: bool) -> Vec<u8> {
        let reason = match self.status {
            200 => "OK",
            400 => "Bad Request",
            404 => "Not Found",
            405 => "Method Not Allowed",
            408 => "Request Timeout",
            431 => "Request Header Fields Too Large",
            503 => "Service Unavailable",
            _ => "Internal Server Error",
        };
        let head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\nCache-Control: no-cache, private\r\n\
             Content-Length: {}\r\nConnection: close\r\n\r\n",
            self.status,
            self.content_type,
            self.body.len()
        );
        let body = if is_head { "" } else { &self.body };
        [head.as_bytes(), body.as_bytes()].concat()
    }
}

/// Answers for as long as the program runs, on threads of its own.
pub(super) fn start(listener: TcpListener, answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> io::Result<()> {
    let answer = Arc::new(answer);
    // Every connection holds a clone of it.
    let place = Arc::new(());
    let accept = move || {
        loop {
            let Ok((stream, _)) = listener.accept() else {
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            };
            // Each has its limit, so a place is free soon; a probe that waits for it is better than one that is told no.
            while Arc::strong_count(&place) > CONNECTIONS_MAX {
                std::thread::sleep(PLACE_PAUSE);
            }
            let deadline = Instant::now() + REQUEST_TIME;
            let (answer, place) = (Arc::clone(&answer), Arc::clone(&place));
            let serve = move || {
                // Whoever is gone needs no answer.
                serve(&stream, deadline, &*answer).ok();
                drop(place);
            };
            // Without a thread the connection is closed: who asks sees that something is wrong.
            std::thread::Builder::new().name("status-request".to_owned()).spawn(serve).ok();
        }
    };
    std::thread::Builder::new().name("status".to_owned()).spawn(accept).map(drop)
}

fn serve(stream: &TcpStream, deadline: Instant, answer: &dyn Fn(&Request) -> Reply) -> io::Result<()> {
    let (reply, is_head) = match read(stream, deadline) {
        Ok(request) => (answer(&request), request.is_head),
        Err(refused) => (refused, false),
    };
    write(stream, &reply.bytes(is_head), deadline)?;
    stream.shutdown(Shutdown::Write)?;
    // What is still unread would make the close a reset, which may overtake the answer.
    let mut rest = [0; 1024];
    while wait(stream, deadline).is_ok() && (&*stream).read(&mut rest)? > 0 {}
    Ok(())
}

fn read(stream: &TcpStream, deadline: Instant) -> Result<Request, Reply> {
    let mut head = Vec::new();
    let mut chunk = [0; 1024];
    loop {
        if let Some(request) = parse(&head)? {
            return Ok(request);
        }
        if head.len() >= HEAD_MAX {
            return Err(Reply::text(431, "the head is too long\n"));
        }
        let received = wait(stream, deadline).and_then(|()| (&*stream).read(&mut chunk));
        match received {
            Ok(0) => return Err(Reply::text(400, "the head is not complete\n")),
            Ok(n) => head.extend_from_slice(&chunk[..n]),
            Err(_) => return Err(Reply::text(408, "the head did not come in time\n")),
        }
    }
}

/// Lets the next read take no longer than the deadline.
fn wait(stream: &TcpStream, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    stream.set_read_timeout(Some(left))
}

fn write(mut stream: &TcpStream, mut bytes: &[u8], deadline: Instant) -> io::Result<()> {
    while !bytes.is_empty() {
        let left = (deadline + LAST_WORDS).saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        let written = stream.write(bytes)?;
        bytes = &bytes[written..];
    }
    Ok(())
}

/// A request, or `None` while more has to come.
fn parse(head: &[u8]) -> Result<Option<Request>, Reply> {
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    match request.parse(head) {
        Ok(httparse::Status::Partial) => return Ok(None),
        Ok(httparse::Status::Complete(_)) => {}
        Err(_) => return Err(Reply::text(400, "this is no HTTP/1.1 request\n")),
    }
    let is_head = match request.method {
        Some("GET") => false,
        Some("HEAD") => true,
        _ => return Err(Reply::text(405, "only GET and HEAD\n")),
    };
    let target = request.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(name), decode(value))
    });
    Ok(Some(Request { path: path.to_owned(), query: pairs.collect(), is_head }))
}

/// Undoes the escapes of a query; what is no escape stays as it is.
fn decode(escaped: &str) -> String {
    let digit = |byte: Option<&u8>| byte.and_then(|&byte| char::from(byte).to_digit(16)).and_then(|digit| u8::try_from(digit).ok());
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match (first, digit(after.first()), digit(after.get(1))) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(high << 4 | low);
                rest = &after[2..];
            }
            (b'+', ..) => bytes.push(b' '),
            _ => bytes.push(first),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_are_read() {
        let request = parse(b"GET /explain?method=GET&path=%2Fapi%2Fv1%3Fx%3D1&verbose HTTP/1.1\r\nHost: x\r\n\r\n").unwrap().unwrap();
        assert_eq!((&*request.path, request.is_head), ("/explain", false));
        assert_eq!((request.value("path"), request.value("verbose"), request.value("x")), (Some("/api/v1?x=1"), Some(""), None));
        assert!(parse(b"HEAD / HTTP/1.1\r\n\r\n").unwrap().unwrap().is_head);
        assert_eq!(parse(b"GET / HTTP/1.1\r\nHost: x\r\n").unwrap(), None);
        for (head, status) in [(&b"POST / HTTP/1.1\r\n\r\n"[..], 405), (b"\x16\x03\x01\x02\x00", 400), (b"GET / HTTP/9\r\n\r\n", 400)] {
            assert_eq!(parse(head).unwrap_err().status, status, "{head:?}");
        }
    }

    #[test]
    fn escapes_are_undone_once() {
        for (escaped, plain) in
            [("a%2Fb", "a/b"), ("%252F", "%2F"), ("a+b", "a b"), ("%", "%"), ("%2", "%2"), ("%zz", "%zz"), ("%ff", "\u{fffd}")]
        {
            assert_eq!(decode(escaped), plain);
        }
    }

    #[test]
    fn replies_end_the_connection() {
        let bytes = Reply::text(200, "ok").bytes(false);
        let text = String::from_utf8(bytes).unwrap();
        assert!(text.starts_with("HTTP/1.1 200 OK\r\n") && text.ends_with("Content-Length: 2\r\nConnection: close\r\n\r\nok"), "{text}");
        assert!(Reply::text(200, "ok").bytes(true).ends_with(b"\r\n\r\n"));
    }
}
