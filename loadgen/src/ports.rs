//! Ports of 127.0.0.1 that stay where they are.
//!
//! A port that the kernel chose (port 0) is one of those it gives to outgoing connections as well: once its server is gone for a moment,
//! anybody's connection may have it. Those here are below that range, so that a server that is started again finds its port free, and so
//! does a program that must be told one.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The ports: below `net.ipv4.ip_local_port_range`, which starts at 32,768 unless somebody changed it.
const FIRST: u32 = 20_000;
const COUNT: u32 = 10_000;
/// How many are tried. Processes start at different ones.
const TRIES: u32 = 1_000;

/// Listens on one of them.
pub fn listen() -> io::Result<TcpListener> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let mut outcome = Err(io::ErrorKind::AddrInUse.into());
    for _ in 0..TRIES {
        let nth = std::process::id().wrapping_mul(97).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = u16::try_from(FIRST + nth % COUNT).unwrap_or(0);
        outcome = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
        if outcome.is_ok() {
            break;
        }
    }
    outcome
}

/// One that nobody has now, for a program that cannot be told to take any and say which.
pub fn free() -> io::Result<u16> {
    Ok(listen()?.local_addr()?.port())
}
