//! One socket with its TLS session: what the IO side keeps for a connection of the core.

use std::os::fd::RawFd;
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

use monoio::net::TcpStream;

use super::gate::Ticket;
use super::gather::LastRead;
use crate::core::{ConnKey, Source};
use crate::tls::Session;

/// A socket with its session.
pub(crate) struct Link {
    pub(crate) key: ConnKey,
    pub(crate) stream: Rc<TcpStream>,
    pub(crate) fd: RawFd,
    pub(crate) session: Session,
    pub(crate) is_client: bool,
    pub(crate) last_read: LastRead,
    /// Where a client comes from, when the kernel could tell.
    pub(crate) source: Option<Source>,
    /// A client's place at the gate, until its handshake is over.
    pub(crate) handshake: Option<Ticket>,
    /// Wire bytes of a record whose end has not come; no memory when there are none.
    pub(crate) tail: Vec<u8>,
    /// Wire bytes the socket did not take: `pending[sent..]`. While there are any, nothing else is encrypted.
    pub(crate) pending: Vec<u8>,
    pub(crate) sent: usize,
    /// The writer task, started when the socket first was full.
    pub(crate) writer: Writer,
    /// The reader task, while it waits for the client to read what we have for it.
    pub(crate) held_reader: Option<Waker>,
    /// It was told to calm down: nobody waits for it to read that.
    pub(crate) is_offender: bool,
    /// When the core asked to close it.
    pub(crate) closing: Option<Instant>,
}

/// The task that waits for room in the socket.
pub(crate) enum Writer {
    /// Never needed so far.
    None,
    /// Waits for room.
    Busy,
    /// Waits to be needed.
    Parked(Waker),
}

impl Link {
    pub(crate) fn new(key: ConnKey, stream: Rc<TcpStream>, fd: RawFd, session: Session, is_client: bool) -> Self {
        Self {
            key,
            stream,
            fd,
            session,
            is_client,
            last_read: LastRead::default(),
            source: None,
            handshake: None,
            tail: Vec::new(),
            pending: Vec::new(),
            sent: 0,
            writer: Writer::None,
            held_reader: None,
            is_offender: false,
            closing: None,
        }
    }

    pub(crate) fn is_blocked(&self) -> bool {
        !self.pending.is_empty()
    }
}
