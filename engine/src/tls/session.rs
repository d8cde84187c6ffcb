//! One end of one TLS connection, driven through rustls' unbuffered API.
//!
//! What always holds:
//! - rustls has seen every whole record that `receive` counted as consumed; what the caller keeps is shorter than one record.
//! - `fragment` is empty, or holds exactly the records rustls has already decrypted but not finished with, because a handshake
//!   message runs on into the next record. rustls keeps *offsets* into them and indexes without a check, so whatever is passed to
//!   it must start with these bytes: an empty slice at that moment panics, and the peer chooses that moment.
//! - after an error rustls is called only to fetch the alert: it does not remember every error, and would decrypt on.
//!
//! It deliberately does not know about sockets and deadlines. The end of the stream is the caller's to notice: without
//! `closed` before it, it is a truncation (RFC 8446 §6.1).

use std::fmt;
use std::sync::Arc;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{
    ConnectionState, EncodeError, EncodeTlsData, EncryptError, InsufficientSizeError, UnbufferedStatus, WriteTraffic,
};
use rustls::{ClientConfig, CommonState, ServerConfig};

use super::error::TlsError;
use super::seam;
use super::wire::WireBuf;

/// Wire bytes of the longest record that is accepted, header included (RFC 5246 §6.2.3; TLS 1.3 allows less).
pub const MAX_RECORD: usize = HEADER + MAX_PAYLOAD;

/// Content type, version, length (RFC 8446 §5.1).
const HEADER: usize = 5;
const MAX_PAYLOAD: usize = 16_384 + 2_048;

/// Plaintext of one full record.
const FRAGMENT: usize = 16_384;

/// What a record adds to its plaintext at most: header, explicit nonce and tag of AES-GCM in TLS 1.2 (TLS 1.3: 22).
const OVERHEAD: usize = HEADER + 8 + 16;

/// Bytes of a handshake message that may wait for the rest of it. rustls takes messages of up to 64 KiB, and records of one
/// byte each would make 1.5 MiB of them.
const MAX_FRAGMENT_BYTES: usize = 80 * 1024;

/// One end of one TLS connection.
pub struct Session {
    conn: Conn,
    /// See the module doc; without memory nearly always.
    fragment: Vec<u8>,
    failed: bool,
    peer_closed: bool,
    close_sent: bool,
}

/// Boxed: rustls' own state is about a kilobyte, and sessions live in tables.
enum Conn {
    Server(Box<UnbufferedServerConnection>),
    Client(Box<UnbufferedClientConnection>),
}

/// What [`Session::receive`] saw.
#[derive(Debug, Default)]
#[must_use]
pub struct Received {
    /// Bytes to remove from the front of the wire bytes; the rest is an incomplete record and belongs in front of the next read.
    pub consumed: usize,
    /// The handshake ended in this call. Plaintext may have come in the same call.
    pub established: bool,
    /// The peer has said that it sends nothing more (close_notify), in this call or before.
    pub closed: bool,
    /// The session is over; the alert that tells the peer so, if there is one, has been appended to the output.
    pub error: Option<TlsError>,
}

impl Session {
    /// The accepting end.
    pub fn server(config: &Arc<ServerConfig>) -> Result<Self, TlsError> {
        let conn = seam(|| UnbufferedServerConnection::new(config.clone()))?;
        Ok(Self::new(Conn::Server(Box::new(conn))))
    }

    /// The connecting end; call [`Session::receive`] with no bytes to get its first flight.
    pub fn client(config: &Arc<ClientConfig>, name: ServerName<'static>) -> Result<Self, TlsError> {
        let conn = seam(|| UnbufferedClientConnection::new(config.clone(), name))?;
        Ok(Self::new(Conn::Client(Box::new(conn))))
    }

    fn new(conn: Conn) -> Self {
        Self { conn, fragment: Vec::new(), failed: false, peer_closed: false, close_sent: false }
    }

    /// Decrypts, in place, the whole records at the front of `wire`.
    ///
    /// `plain` gets the plaintext of each application-data record, in order; handshake messages and alerts are appended to
    /// `out`. What is not consumed must be presented again, unchanged, in front of the bytes that follow it; it is shorter
    /// than [`MAX_RECORD`]. After an error or `closed` everything is consumed and nothing more reaches `plain`.
    pub fn receive(&mut self, wire: &mut [u8], out: &mut WireBuf, mut plain: impl FnMut(&[u8])) -> Received {
        if self.failed {
            return self.received(wire.len(), false, Some(TlsError::Failed));
        }
        if self.close_sent {
            // rustls asserts that no alert follows a close_notify, and a forged record would make one.
            return self.received(wire.len(), true, None);
        }
        let before = self.is_established();
        match self.decrypt(wire, out, &mut plain) {
            // RFC 8446 §6.1: what follows a closure alert is ignored.
            Ok(_) if self.peer_closed => self.received(wire.len(), before, None),
            Ok(whole) => self.received(whole, before, None),
            Err(error) => self.received(wire.len(), before, Some(error)),
        }
    }

    /// Encrypts `plaintext` and appends the records to `out`: full ones of 16,384 bytes, and one for what is left.
    ///
    /// An error other than [`TlsError::NotEstablished`] ends the session.
    pub fn send(&mut self, plaintext: &[u8], out: &mut WireBuf) -> Result<(), TlsError> {
        if self.failed || self.close_sent {
            return Err(TlsError::Closed);
        }
        if !self.is_established() {
            return Err(TlsError::NotEstablished);
        }
        let result = self.write(Write::Records(plaintext), out);
        if result.is_err() {
            self.fail(&mut [], out);
        }
        result
    }

    /// Appends the alert that says we send nothing more; does nothing before the handshake is done, after an error, or twice.
    ///
    /// What arrives afterwards is consumed unread: both directions end here.
    pub fn close_notify(&mut self, out: &mut WireBuf) {
        if self.failed || self.close_sent || !self.is_established() {
            return;
        }
        self.close_sent = true;
        if self.write(Write::CloseNotify, out).is_err() {
            self.fail(&mut [], out);
        }
    }

    /// Whether the handshake is done and the session still works: traffic may be sent.
    pub fn is_established(&self) -> bool {
        !self.failed && !self.conn.state().is_handshaking()
    }

    /// The protocol agreed on (RFC 7301); `None` when the client offered none.
    pub fn alpn(&self) -> Option<&[u8]> {
        self.conn.state().alpn_protocol()
    }

    /// The chain the peer presented, its own certificate first; also after a resumption.
    pub fn peer_certificates(&self) -> Option<&[CertificateDer<'static>]> {
        self.conn.state().peer_certificates()
    }

    fn received(&self, consumed: usize, before: bool, error: Option<TlsError>) -> Received {
        Received { consumed, established: !before && self.is_established(), closed: self.peer_closed, error }
    }

    /// Gives rustls the whole records of `wire`, behind those it is not finished with; returns how many bytes they are.
    fn decrypt(&mut self, wire: &mut [u8], out: &mut WireBuf, plain: &mut impl FnMut(&[u8])) -> Result<usize, TlsError> {
        // Counted before rustls moves bytes about in them.
        let whole = whole_records(wire);
        if self.fragment.is_empty() {
            let done = self.process(wire, out, plain)?;
            if done < whole && !self.peer_closed {
                self.fragment.extend_from_slice(&wire[done..whole]);
            }
        } else {
            let mut fragment = std::mem::take(&mut self.fragment);
            fragment.extend_from_slice(&wire[..whole]);
            let done = self.process(&mut fragment, out, plain)?;
            if done < fragment.len() && !self.peer_closed {
                fragment.drain(..done);
                self.fragment = fragment;
            }
        }
        if self.fragment.len() > MAX_FRAGMENT_BYTES {
            self.failed = true;
            return Err(TlsError::HandshakeTooLong);
        }
        Ok(whole)
    }

    /// Runs rustls over `wire` until it wants more bytes; returns how many it is done with.
    fn process(&mut self, wire: &mut [u8], out: &mut WireBuf, plain: &mut impl FnMut(&[u8])) -> Result<usize, TlsError> {
        let mut done = 0;
        loop {
            let rest = wire.get_mut(done..).unwrap_or_default();
            let (discard, step) = self.conn.step(rest, out, plain);
            done += discard;
            match step {
                Ok(Step::Again) => {}
                Ok(Step::Blocked) => return Ok(done),
                Ok(Step::PeerClosed) => self.peer_closed = true,
                Err(error) => {
                    self.fail(wire.get_mut(done..).unwrap_or_default(), out);
                    return Err(error);
                }
            }
        }
    }

    /// Ends the session and fetches what rustls still has to say, an alert as a rule.
    fn fail(&mut self, rest: &mut [u8], out: &mut WireBuf) {
        self.failed = true;
        // While output is queued rustls hands it out before it looks at `rest`, so nothing more is decrypted.
        while self.conn.state().wants_write() {
            if let (_, Err(_)) = self.conn.step(rest, out, &mut |_| {}) {
                return;
            }
        }
    }

    fn write(&mut self, write: Write<'_>, out: &mut WireBuf) -> Result<(), TlsError> {
        // Not an empty slice: see the module doc on `fragment`.
        let wire = &mut self.fragment[..];
        loop {
            let done = match &mut self.conn {
                Conn::Server(conn) => step_write(seam(|| conn.process_tls_records(wire)), write, out),
                Conn::Client(conn) => step_write(seam(|| conn.process_tls_records(wire)), write, out),
            }?;
            if done {
                return Ok(());
            }
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("established", &self.is_established())
            .field("failed", &self.failed)
            .field("peer_closed", &self.peer_closed)
            .field("close_sent", &self.close_sent)
            .finish_non_exhaustive()
    }
}

impl Conn {
    fn state(&self) -> &CommonState {
        match self {
            Self::Server(conn) => conn,
            Self::Client(conn) => conn,
        }
    }

    fn step(&mut self, wire: &mut [u8], out: &mut WireBuf, plain: &mut impl FnMut(&[u8])) -> (usize, Result<Step, TlsError>) {
        match self {
            Self::Server(conn) => step(seam(|| conn.process_tls_records(wire)), out, plain),
            Self::Client(conn) => step(seam(|| conn.process_tls_records(wire)), out, plain),
        }
    }
}

/// What is to be written once rustls lets traffic through.
#[derive(Clone, Copy)]
enum Write<'a> {
    Records(&'a [u8]),
    CloseNotify,
}

enum Step {
    /// Something was done; rustls may have more for us.
    Again,
    /// Nothing happens before the next bytes or the next write.
    Blocked,
    PeerClosed,
}

/// Answers one status of rustls while receiving; returns the bytes it is done with.
fn step<D>(status: UnbufferedStatus<'_, '_, D>, out: &mut WireBuf, plain: &mut impl FnMut(&[u8])) -> (usize, Result<Step, TlsError>) {
    let mut discard = status.discard;
    let step = match status.state {
        Ok(ConnectionState::ReadTraffic(mut traffic)) => loop {
            match seam(|| traffic.next_record()) {
                Some(Ok(record)) => {
                    discard += record.discard;
                    plain(record.payload);
                }
                Some(Err(error)) => break Err(error.into()),
                None => break Ok(Step::Again),
            }
        },
        Ok(ConnectionState::EncodeTlsData(mut message)) => encode(&mut message, out).map(|()| Step::Again),
        Ok(ConnectionState::TransmitTlsData(message)) => {
            message.done();
            Ok(Step::Again)
        }
        Ok(ConnectionState::PeerClosed) => Ok(Step::PeerClosed),
        Ok(ConnectionState::WriteTraffic(_) | ConnectionState::BlockedHandshake | ConnectionState::Closed) => Ok(Step::Blocked),
        // Early data is never accepted (`max_early_data_size` is 0).
        Ok(_) => Err(TlsError::Unexpected),
        Err(error) => Err(error.into()),
    };
    (discard, step)
}

/// Answers one status of rustls while writing; true when `write` is in `out`.
fn step_write<D>(status: UnbufferedStatus<'_, '_, D>, write: Write<'_>, out: &mut WireBuf) -> Result<bool, TlsError> {
    // `receive` has drained every message, so rustls is done with nothing new here.
    debug_assert_eq!(status.discard, 0);
    match status.state? {
        ConnectionState::WriteTraffic(mut traffic) => {
            encrypt(&mut traffic, write, out)?;
            Ok(true)
        }
        ConnectionState::EncodeTlsData(mut message) => {
            encode(&mut message, out)?;
            Ok(false)
        }
        ConnectionState::TransmitTlsData(message) => {
            message.done();
            Ok(false)
        }
        ConnectionState::BlockedHandshake => Err(TlsError::NotEstablished),
        ConnectionState::Closed => Err(TlsError::Closed),
        _ => Err(TlsError::Unexpected),
    }
}

fn encode<D>(message: &mut EncodeTlsData<'_, D>, out: &mut WireBuf) -> Result<(), TlsError> {
    let mut room = 0;
    loop {
        let spare = out.spare(room);
        match seam(|| message.encode(spare)) {
            Ok(written) => {
                out.advance(written);
                return Ok(());
            }
            Err(EncodeError::InsufficientSize(InsufficientSizeError { required_size })) if required_size > room => {
                room = required_size;
            }
            Err(_) => return Err(TlsError::Unexpected),
        }
    }
}

fn encrypt<D>(traffic: &mut WriteTraffic<'_, D>, write: Write<'_>, out: &mut WireBuf) -> Result<(), TlsError> {
    let mut room = match write {
        Write::Records(plaintext) => plaintext.len() + plaintext.len().div_ceil(FRAGMENT) * OVERHEAD,
        Write::CloseNotify => 2 + OVERHEAD,
    };
    loop {
        let spare = out.spare(room);
        let result = seam(|| match write {
            Write::Records(plaintext) => traffic.encrypt(plaintext, spare),
            Write::CloseNotify => traffic.queue_close_notify(spare),
        });
        match result {
            Ok(written) => {
                out.advance(written);
                return Ok(());
            }
            // A key update waits to go out first (RFC 8446 §4.6.3); nothing was encrypted yet.
            Err(EncryptError::InsufficientSize(InsufficientSizeError { required_size })) if required_size > room => {
                room = required_size;
            }
            Err(_) => return Err(TlsError::Exhausted),
        }
    }
}

/// How many bytes at the front of `wire` are whole records; all of them when rustls will refuse what it finds.
fn whole_records(wire: &[u8]) -> usize {
    let mut end = 0;
    while let Some(&[_, _, _, high, low]) = wire[end..].first_chunk::<HEADER>() {
        let payload = usize::from(u16::from_be_bytes([high, low]));
        if payload >= MAX_PAYLOAD {
            return wire.len();
        }
        if wire.len() - end < HEADER + payload {
            break;
        }
        end += HEADER + payload;
    }
    end
}
