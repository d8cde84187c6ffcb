//! Short messages to a shard from another thread, through a socketpair of its own: a connection to take over, a tick of the
//! clock, or the order to drain.
//!
//! What always holds: sending never blocks; a message arrives whole or not at all (datagrams).

use std::io;
use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixDatagram, UnixStream};

use super::sys;
use crate::core::Port;

/// What a shard can be told.
#[derive(Debug)]
pub(crate) enum Mail {
    /// A connection that another shard accepted, at that port.
    Adopt(OwnedFd, Port),
    /// Time passed.
    Tick,
    /// Stop accepting, let running requests finish, end.
    Drain,
    /// Panic; only tests send it.
    Panic,
}

const ADOPT: u8 = 1;
const DRAIN: u8 = 2;
const TICK: u8 = 3;
const PANIC: u8 = 4;
const ADOPT_PEER: u8 = 5;
const LEN: usize = 5;

/// The sending end; shared by all threads.
#[derive(Debug)]
pub(crate) struct Sender(UnixDatagram);

/// The receiving end, to be watched by the shard's ring.
pub(crate) struct Receiver(UnixStream);

/// A mailbox.
pub(crate) fn mailbox() -> io::Result<(Sender, Receiver)> {
    let (sender, receiver) = UnixDatagram::pair()?;
    sender.set_nonblocking(true)?;
    receiver.set_nonblocking(true)?;
    // monoio has no type for a datagram pair; for waiting, any Unix socket type will do.
    Ok((Sender(sender), Receiver(UnixStream::from(OwnedFd::from(receiver)))))
}

impl Sender {
    /// Gives a connection away; back when the mailbox is full or gone.
    pub(crate) fn adopt(&self, connection: OwnedFd, port: Port) -> Result<(), OwnedFd> {
        let kind = match port {
            Port::Clients => ADOPT,
            Port::Peers => ADOPT_PEER,
        };
        let fd = connection.into_raw_fd();
        let [a, b, c, d] = fd.to_ne_bytes();
        match self.0.send(&[kind, a, b, c, d]) {
            Ok(LEN) => Ok(()),
            _ => Err(sys::adopt(fd)),
        }
    }

    /// Orders the drain. False when the shard is gone, or has too much mail.
    pub(crate) fn drain(&self) -> bool {
        self.0.send(&[DRAIN, 0, 0, 0, 0]).is_ok()
    }

    /// Makes the shard panic, for tests.
    pub(crate) fn panic(&self) -> bool {
        self.0.send(&[PANIC, 0, 0, 0, 0]).is_ok()
    }

    /// Says that time passed. False when the shard is gone, or has too much mail.
    pub(crate) fn tick(&self) -> bool {
        self.0.send(&[TICK, 0, 0, 0, 0]).is_ok()
    }
}

impl Receiver {
    /// The socket to wait on, and the number to read mail from.
    pub(crate) fn into_stream(self) -> io::Result<(monoio::net::UnixStream, RawFd)> {
        let fd = self.0.as_raw_fd();
        Ok((monoio::net::UnixStream::from_std(self.0)?, fd))
    }
}

/// Takes the next message; `None` when there is none now.
pub(crate) fn next(fd: RawFd) -> Option<Mail> {
    let mut message = [0; LEN];
    match (sys::receive(fd, &mut message).ok()?, message) {
        (LEN, [ADOPT, a, b, c, d]) => Some(Mail::Adopt(sys::adopt(RawFd::from_ne_bytes([a, b, c, d])), Port::Clients)),
        (LEN, [ADOPT_PEER, a, b, c, d]) => Some(Mail::Adopt(sys::adopt(RawFd::from_ne_bytes([a, b, c, d])), Port::Peers)),
        (LEN, [DRAIN, ..]) => Some(Mail::Drain),
        (LEN, [TICK, ..]) => Some(Mail::Tick),
        (LEN, [PANIC, ..]) => Some(Mail::Panic),
        _ => None,
    }
}
