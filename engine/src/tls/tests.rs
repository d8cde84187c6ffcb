//! Two sessions, or a session and rustls' own buffered connection, talk through byte vectors.

use std::io::{Read, Write};
use std::sync::Arc;

use proptest::prelude::*;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::UnixTime;
use rustls::{AlertDescription, ClientConfig, ClientConnection, RootCertStore, ServerConfig};

use super::*;

const H2: &[&[u8]] = &[b"h2"];

/// A certificate authority made for one test.
pub(super) struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    pub(super) fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    pub(super) fn pem(&self) -> String {
        self.0.pem()
    }

    /// Certificate and key, for the name that peers are verified by, valid from one year to another.
    pub(super) fn issue(&self, from: i32, to: i32) -> (String, String) {
        let mut params = CertificateParams::new(vec!["kubernetes.default.svc".into()]).unwrap();
        params.not_before = rcgen::date_time_ymd(from, 1, 1);
        params.not_after = rcgen::date_time_ymd(to, 1, 1);
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.0).unwrap();
        (certificate.pem(), key.serialize_pem())
    }

    fn server_config(&self) -> Arc<ServerConfig> {
        let (cert, key) = self.issue(2020, 2100);
        server_config(cert.as_bytes(), key.as_bytes(), H2, UnixTime::now()).unwrap()
    }

    fn client_config(&self) -> Arc<ClientConfig> {
        client_config(self.pem().as_bytes(), None, H2, UnixTime::now()).unwrap()
    }

    fn client_config_tls12(&self) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS12])
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Arc::new(config)
    }
}

/// A session with what a driver keeps beside it.
struct End {
    session: Session,
    inbox: Vec<u8>,
    out: WireBuf,
    plain: Vec<u8>,
    established: u32,
    closed: bool,
    error: Option<TlsError>,
}

impl End {
    fn new(session: Session) -> Self {
        let mut end =
            Self { session, inbox: Vec::new(), out: WireBuf::new(), plain: Vec::new(), established: 0, closed: false, error: None };
        end.feed(&[]);
        end
    }

    fn feed(&mut self, bytes: &[u8]) {
        self.inbox.extend_from_slice(bytes);
        let plain = &mut self.plain;
        let received = self.session.receive(&mut self.inbox, &mut self.out, |bytes| plain.extend_from_slice(bytes));
        self.inbox.drain(..received.consumed);
        assert!(self.inbox.len() < MAX_RECORD);
        self.established += u32::from(received.established);
        self.closed = received.closed;
        self.error = self.error.take().or(received.error);
    }

    fn take_out(&mut self) -> Vec<u8> {
        let bytes = self.out.filled().to_vec();
        self.out.clear();
        bytes
    }

    fn send(&mut self, plaintext: &[u8]) {
        self.session.send(plaintext, &mut self.out).unwrap();
    }
}

struct Pair {
    client: End,
    server: End,
}

impl Pair {
    fn new(client: &Arc<ClientConfig>, server: &Arc<ServerConfig>) -> Self {
        Self { client: End::new(Session::client(client, server_name()).unwrap()), server: End::new(Session::server(server).unwrap()) }
    }

    fn established() -> Self {
        let authority = Authority::new();
        let mut pair = Self::new(&authority.client_config(), &authority.server_config());
        pair.exchange(|all| all);
        pair.assert_established();
        pair
    }

    /// Carries bytes both ways until nobody has anything to say; `split` picks the length of the next piece.
    fn exchange(&mut self, mut split: impl FnMut(usize) -> usize) {
        loop {
            let (up, down) = (self.client.take_out(), self.server.take_out());
            if up.is_empty() && down.is_empty() {
                return;
            }
            for (end, bytes) in [(&mut self.server, up), (&mut self.client, down)] {
                let mut rest = &bytes[..];
                while !rest.is_empty() {
                    let (now, later) = rest.split_at(split(rest.len()).clamp(1, rest.len()));
                    end.feed(now);
                    rest = later;
                }
            }
        }
    }

    fn assert_established(&self) {
        for end in [&self.client, &self.server] {
            assert_eq!((end.established, &end.error), (1, &None));
            assert!(end.session.is_established());
            assert_eq!(end.session.alpn(), Some(&b"h2"[..]));
        }
        assert_eq!(self.client.session.peer_certificates().unwrap().len(), 1);
        assert!(self.server.session.peer_certificates().is_none());
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| ((i * 31) >> 3).to_le_bytes()[0]).collect()
}

fn records(mut wire: &[u8]) -> usize {
    let mut count = 0;
    while let [_, _, _, high, low, rest @ ..] = wire {
        wire = &rest[usize::from(u16::from_be_bytes([*high, *low]))..];
        count += 1;
    }
    count
}

#[test]
fn a_megabyte_goes_both_ways_in_both_versions_however_it_is_cut() {
    let authority = Authority::new();
    let server = authority.server_config();
    let sent = pattern(1 << 20);
    for client in [authority.client_config(), authority.client_config_tls12()] {
        for piece in [1, 7, 1_460, 16_406, usize::MAX] {
            let mut pair = Pair::new(&client, &server);
            pair.exchange(|_| piece);
            pair.assert_established();
            let sent = if piece == 1 { &sent[..40_000] } else { &sent[..] };
            pair.client.send(sent);
            pair.server.send(sent);
            pair.exchange(|_| piece);
            assert!(pair.server.plain == sent && pair.client.plain == sent);
            assert!(pair.server.inbox.is_empty() && pair.client.inbox.is_empty());
        }
    }
}

#[test]
fn full_records_are_full() {
    let mut pair = Pair::established();
    for (len, expected) in [(0, 0), (1, 1), (16_384, 1), (16_385, 2), (5 * 16_384, 5)] {
        pair.client.send(&pattern(len));
        assert_eq!(records(&pair.client.take_out()), expected, "{len} bytes");
    }
}

#[test]
fn every_record_of_a_buffer_is_plaintext_of_its_own() {
    let mut pair = Pair::established();
    for text in ["one", "two", "three"] {
        pair.client.send(text.as_bytes());
    }
    let mut wire = pair.client.take_out();
    let whole = wire.len();
    pair.client.send(b"four");
    wire.extend_from_slice(&pair.client.take_out()[..9]);
    let mut seen = Vec::new();
    let received = pair.server.session.receive(&mut wire, &mut pair.server.out, |text| seen.push(text.to_vec()));
    assert_eq!(seen, [&b"one"[..], b"two", b"three"]);
    assert_eq!(received.consumed, whole, "the tail is the caller's to keep");
    assert!(!received.closed && received.error.is_none() && pair.server.out.is_empty());
}

#[test]
fn a_server_of_another_authority_is_refused_with_an_alert() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let mut pair = Pair::new(&ours.client_config(), &theirs.server_config());
    pair.exchange(|all| all);
    let text = pair.client.error.unwrap().to_string();
    assert!(text.contains("invalid peer certificate"), "{text}");
    assert!(matches!(pair.server.error, Some(TlsError::Protocol(rustls::Error::AlertReceived(_)))));
    let refused = pair.client.session.send(b"secret", &mut pair.client.out);
    assert_eq!(refused, Err(TlsError::Closed));
    assert!(pair.client.out.is_empty(), "nothing leaks");
}

#[test]
fn protocols_without_overlap_are_refused_with_an_alert() {
    let authority = Authority::new();
    let ca = authority.pem();
    let client = client_config(ca.as_bytes(), None, &[b"spdy/3"], UnixTime::now()).unwrap();
    let mut pair = Pair::new(&client, &authority.server_config());
    pair.exchange(|all| all);
    let alert = rustls::Error::AlertReceived(AlertDescription::NoApplicationProtocol);
    assert_eq!(pair.client.error, Some(TlsError::Protocol(alert)));
}

#[test]
fn plain_http_is_an_error_with_an_alert_and_stays_one() {
    let mut server = End::new(Session::server(&Authority::new().server_config()).unwrap());
    server.feed(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n");
    assert!(matches!(server.error, Some(TlsError::Protocol(_))));
    assert_eq!(server.take_out()[0], 21, "an alert record");
    server.error = None;
    server.feed(b"more");
    assert_eq!(server.error, Some(TlsError::Failed));
    assert!(server.out.is_empty() && server.inbox.is_empty());
}

#[test]
fn a_forged_record_ends_the_session() {
    let mut pair = Pair::established();
    pair.client.send(b"good");
    let good = pair.client.take_out();
    pair.client.send(b"evil");
    let mut wire = pair.client.take_out();
    wire[7] ^= 1;
    let tail = wire.clone();
    pair.server.feed(&[good, wire, tail].concat());
    assert_eq!(pair.server.plain, b"good");
    assert_eq!(pair.server.error, Some(TlsError::Protocol(rustls::Error::DecryptError)));
    assert_eq!(records(pair.server.out.filled()), 1, "one alert");
    assert!(!pair.server.session.is_established());
}

#[test]
fn close_notify_is_seen_and_ends_the_plaintext() {
    let mut pair = Pair::established();
    pair.client.send(b"last");
    pair.client.session.close_notify(&mut pair.client.out);
    pair.client.session.close_notify(&mut pair.client.out);
    assert_eq!(records(pair.client.out.filled()), 2, "sent once");
    let late = pair.client.session.send(b"late", &mut pair.client.out);
    assert_eq!(late, Err(TlsError::Closed));
    let wire = [pair.client.take_out(), b"ignored".to_vec()].concat();
    pair.server.feed(&wire);
    assert!(pair.server.closed && pair.server.error.is_none() && pair.server.inbox.is_empty());
    assert_eq!(pair.server.plain, b"last");
    // The other direction stays open (RFC 8446 §6.1).
    pair.server.send(b"answer");
    pair.server.session.close_notify(&mut pair.server.out);
    pair.exchange(|all| all);
    assert!(pair.client.plain.is_empty(), "we did not wait for it");
}

/// A forged record here trips an assertion inside rustls, in builds that have them.
#[test]
fn nothing_is_read_after_our_close_notify() {
    let mut pair = Pair::established();
    pair.server.session.close_notify(&mut pair.server.out);
    pair.client.send(b"late");
    let mut wire = pair.client.take_out();
    pair.server.feed(&wire);
    wire[7] ^= 1;
    pair.server.feed(&wire);
    assert!(pair.server.plain.is_empty() && pair.server.inbox.is_empty());
    assert!(pair.server.error.is_none() && !pair.server.closed);
}

#[test]
fn an_end_without_close_notify_is_not_closed() {
    let mut pair = Pair::established();
    pair.client.send(&pattern(1_000));
    let wire = pair.client.take_out();
    pair.server.feed(&wire[..500]);
    pair.server.feed(&[]);
    assert!(!pair.server.closed && pair.server.plain.is_empty());
}

#[test]
fn nothing_is_sent_before_the_handshake() {
    let mut server = End::new(Session::server(&Authority::new().server_config()).unwrap());
    let early = server.session.send(b"early", &mut server.out);
    assert_eq!(early, Err(TlsError::NotEstablished));
    server.session.close_notify(&mut server.out);
    assert!(server.out.is_empty() && !server.session.is_established());
}

/// Broke rustls' indexing when a write came with an empty slice between the pieces of a ticket.
#[test]
fn writes_between_the_pieces_of_a_handshake_message_are_fine() {
    let authority = Authority::new();
    let mut server = ServerConfig::clone(&authority.server_config());
    server.max_fragment_size = Some(32);
    let mut pair = Pair::new(&authority.client_config(), &Arc::new(server));
    let hello = pair.client.take_out();
    pair.server.feed(&hello);
    let flight = pair.server.take_out();
    pair.client.feed(&flight);
    let finished = pair.client.take_out();
    pair.server.feed(&finished);
    let ticket = pair.server.take_out();
    assert!(records(&ticket) > 3, "the ticket comes in pieces");
    for byte in ticket {
        pair.client.feed(&[byte]);
        pair.client.send(b"x");
    }
    pair.server.send(b"done");
    pair.exchange(|all| all);
    pair.assert_established();
    assert_eq!(pair.client.plain, b"done");
    assert!(pair.server.plain.iter().all(|byte| *byte == b'x'));
}

#[test]
fn a_handshake_message_in_tiny_pieces_is_bounded() {
    let mut server = End::new(Session::server(&Authority::new().server_config()).unwrap());
    server.feed(&[22, 3, 1, 0, 4, 1, 0, 0xff, 0xff]);
    for _ in 0..20_000 {
        server.feed(&[22, 3, 1, 0, 1, 0]);
    }
    assert_eq!(server.error, Some(TlsError::HandshakeTooLong));
}

#[test]
fn a_key_update_asked_for_by_the_peer_is_answered_before_the_next_record() {
    let authority = Authority::new();
    let mut server = End::new(Session::server(&authority.server_config()).unwrap());
    let mut peer = ClientConnection::new(authority.client_config(), server_name()).unwrap();
    let talk = |peer: &mut ClientConnection, server: &mut End| {
        for _ in 0..4 {
            let mut wire = Vec::new();
            while peer.wants_write() {
                peer.write_tls(&mut wire).unwrap();
            }
            server.feed(&wire);
            let wire = server.take_out();
            let mut rest = &wire[..];
            while !rest.is_empty() {
                peer.read_tls(&mut rest).unwrap();
                peer.process_new_packets().unwrap();
            }
        }
    };
    talk(&mut peer, &mut server);
    for round in 0..3 {
        peer.refresh_traffic_keys().unwrap();
        peer.writer().write_all(b"ping").unwrap();
        talk(&mut peer, &mut server);
        server.out = WireBuf::new();
        server.send(b"pong");
        assert_eq!(records(server.out.filled()), 2, "key update, pong");
        talk(&mut peer, &mut server);
        let mut pong = [0; 4];
        peer.reader().read_exact(&mut pong).unwrap();
        assert_eq!(&pong, b"pong", "round {round}");
    }
    assert_eq!(server.plain, b"pingpingping");
}

#[test]
fn the_second_connection_resumes() {
    let authority = Authority::new();
    let (client, server) = (authority.client_config(), authority.server_config());
    let mut kinds = Vec::new();
    for _ in 0..2 {
        let mut end = End::new(Session::server(&server).unwrap());
        let mut peer = ClientConnection::new(client.clone(), server_name()).unwrap();
        for _ in 0..3 {
            let mut wire = Vec::new();
            while peer.wants_write() {
                peer.write_tls(&mut wire).unwrap();
            }
            end.feed(&wire);
            peer.read_tls(&mut &end.take_out()[..]).unwrap();
            peer.process_new_packets().unwrap();
        }
        assert!(end.session.is_established());
        kinds.push(peer.handshake_kind().unwrap());
        let suite = peer.negotiated_cipher_suite().unwrap().suite();
        assert_eq!(suite, rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    }
    assert_eq!(kinds, [rustls::HandshakeKind::Full, rustls::HandshakeKind::Resumed]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_split_keeps_the_stream(
        lens in proptest::collection::vec(0usize..40_000, 1..6),
        pieces in proptest::collection::vec(1usize..20_000, 1..20),
    ) {
        let mut pair = Pair::established();
        let mut sent = Vec::new();
        for len in lens {
            let text = pattern(len);
            pair.client.send(&text);
            sent.extend_from_slice(&text);
        }
        let mut pieces = pieces.into_iter().cycle();
        pair.exchange(|_| pieces.next().unwrap_or(1));
        prop_assert!(pair.server.plain == sent && pair.server.error.is_none());
    }

    #[test]
    fn a_flipped_byte_never_panics_nor_yields_other_plaintext(
        at in any::<prop::sample::Index>(),
        flip in 1u8..,
        handshake in any::<bool>(),
    ) {
        let mut pair = if handshake {
            let authority = Authority::new();
            Pair::new(&authority.client_config(), &authority.server_config())
        } else {
            let mut pair = Pair::established();
            pair.client.send(&pattern(300));
            pair
        };
        let mut wire = pair.client.take_out();
        let at = at.index(wire.len());
        wire[at] ^= flip;
        pair.server.feed(&wire);
        // A flip in the version of a record's head goes unseen, as it must (RFC 8446 §5.1).
        prop_assert!(pair.server.plain.is_empty() || pair.server.plain == pattern(300));
        pair.exchange(|all| all);
    }

    #[test]
    fn garbage_never_panics(wire in proptest::collection::vec(any::<u8>(), 0..200), header in any::<bool>()) {
        let mut pair = Pair::established();
        let mut fresh = End::new(Session::server(&Authority::new().server_config()).unwrap());
        let wire = if header { [vec![23, 3, 3, 0], wire].concat() } else { wire };
        for end in [&mut pair.server, &mut pair.client, &mut fresh] {
            end.feed(&wire);
            prop_assert!(end.plain.is_empty());
            if end.session.is_established() {
                end.send(b"x");
            }
        }
    }
}
