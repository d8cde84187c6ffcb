//! Listening sockets, one per shard on one address, and which shard a new connection goes to.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicUsize, Ordering};

use socket2::{Domain, Protocol, Socket, Type};

/// Connections that may wait to be accepted: a herd of 4,096 clients after a restart is not refused.
const BACKLOG: i32 = 4_096;

/// Where one shard listens.
pub(crate) struct Listeners {
    pub(crate) clients: TcpListener,
    pub(crate) peers: Option<TcpListener>,
}

/// Binds one listener per shard.
///
/// SO_REUSEPORT would let a second process of the same user share the port silently, so the port is bound once without it
/// first.
pub(crate) fn bind(address: SocketAddr, shards: usize) -> io::Result<Vec<TcpListener>> {
    let probe = socket(address, false)?;
    let address = probe.local_addr()?.as_socket().ok_or_else(|| io::Error::other("not an IP address"))?;
    drop(probe);
    (0..shards)
        .map(|_| {
            let socket = socket(address, true)?;
            socket.listen(BACKLOG)?;
            Ok(TcpListener::from(socket))
        })
        .collect()
}

fn socket(address: SocketAddr, share: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(share)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    Ok(socket)
}

/// Client connections of each shard, on cache lines of their own.
pub(crate) struct Loads(Vec<Padded>);

#[repr(align(128))]
#[derive(Default)]
struct Padded(AtomicUsize);

impl Loads {
    pub(crate) fn new(shards: usize) -> Self {
        Self((0..shards).map(|_| Padded::default()).collect())
    }

    /// Reserves a place on the least loaded shard; `own` where it is as good as any.
    pub(crate) fn reserve(&self, own: usize) -> usize {
        let load = |at: usize| self.0[at].0.load(Ordering::Relaxed);
        let target = (0..self.0.len()).fold(own, |best, at| if load(at) < load(best) { at } else { best });
        self.0[target].0.fetch_add(1, Ordering::Relaxed);
        target
    }

    /// Client connections of all shards.
    pub(crate) fn total(&self) -> usize {
        self.0.iter().map(|load| load.0.load(Ordering::Relaxed)).sum()
    }

    /// Moves a reservation, when the shard it was for could not be told.
    pub(crate) fn keep(&self, from: usize, own: usize) {
        self.release(from);
        self.0[own].0.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn release(&self, shard: usize) {
        self.0[shard].0.fetch_sub(1, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, shard: usize) -> usize {
        self.0[shard].0.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_in_use_is_noticed_even_with_reuse_port() {
        let first = bind("127.0.0.1:0".parse().unwrap(), 2).unwrap();
        let address = first[0].local_addr().unwrap();
        assert_eq!(bind(address, 1).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn connections_go_to_the_least_loaded() {
        let loads = Loads::new(3);
        let mut counts = [0; 3];
        for n in 0..30 {
            counts[loads.reserve(n % 2)] += 1;
        }
        assert_eq!(counts, [10, 10, 10]);
        loads.release(2);
        assert_eq!(loads.reserve(0), 2);
    }
}
