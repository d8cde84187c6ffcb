//! The commands that ask a running mvproxy what it knows, over its status port: `routes`, `explain`, `skew`.

pub(crate) mod explain;
pub(crate) mod routes;
pub(crate) mod skew;

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

use serde::de::DeserializeOwned;

use crate::failure::Failure;

/// The other side is on this host, and answers within 2 s or not at all.
const PATIENCE: Duration = Duration::from_secs(5);
/// 65,536 resources on 128 servers are not half of it.
const ANSWER_MAX: u64 = 64 << 20;

/// Asks the instance behind that port; the path is escaped already.
fn ask<T: DeserializeOwned>(port: u16, path: &str) -> Result<(T, String), Failure> {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    let text = get(address, path).map_err(|error| {
        let cause = if error.kind() == io::ErrorKind::ConnectionRefused { "nothing listens there".to_owned() } else { error.to_string() };
        Failure::runtime(format_args!(
            "no mvproxy answers on {address}: {cause}: is `mvproxy serve` running on this host, with this --status-port?"
        ))
    })?;
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).unwrap_or_default();
    if !head.starts_with("HTTP/1.") || status != "200" {
        let said = body.lines().next().unwrap_or_default();
        return Err(Failure::runtime(format_args!(
            "{address} answered {status} {said}: is it the --status-port of an mvproxy that has started?"
        )));
    }
    let value = serde_json::from_str(body).map_err(|error| {
        Failure::runtime(format_args!("the answer of {address} cannot be read: {error}: is it an mvproxy of another version?"))
    })?;
    Ok((value, body.to_owned()))
}

fn get(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes())?;
    let mut answer = Vec::new();
    stream.take(ANSWER_MAX).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// A value for a query.
fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped += &format!("%{byte:02X}");
        }
        escaped
    })
}

/// Prints; a closed pipe (`| head`) is nobody's failure.
fn print(text: &str) {
    io::stdout().write_all(text.as_bytes()).ok();
}
