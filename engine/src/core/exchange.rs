//! One request with its response: two legs, each one stream of one connection.
//!
//! What always holds: a leg that is closed has no stream in its connection's table, and nothing waits to be sent on it; the request head is kept
//! until the response head came.

use std::time::Instant;

use super::body::Holding;
use super::pool::{Lane, SlotSet};
use super::{ConnKey, ServerSlot};
use crate::http2::hpack::HeaderBlock;
use crate::http2::message::UNKNOWN_LENGTH;

/// A leg of an exchange: towards the client or towards the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    Down = 0,
    Up = 1,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Down => Self::Up,
            Self::Up => Self::Down,
        }
    }
}

/// One stream, seen from us.
#[derive(Default)]
pub(crate) struct Leg {
    pub(crate) conn: Option<ConnKey>,
    pub(crate) stream: u32,
    /// What we may still send on the stream; negative after the other side lowered its initial window (RFC 9113 §6.9.2).
    pub(crate) send_window: i64,
    /// What the other side may still send: `recv_window + owed + uncredited == granted window`, while the stream is open.
    pub(crate) recv_window: i64,
    /// Received, and not yet taken by the other leg.
    pub(crate) owed: u32,
    /// Taken by the other leg, and not yet told in a WINDOW_UPDATE.
    pub(crate) uncredited: u32,
    /// Body bytes the sender still has to send by its content-length.
    pub(crate) body_left: u64,
    /// The other side ended its direction.
    pub(crate) recv_end: bool,
    /// We put END_STREAM.
    pub(crate) send_end: bool,
    /// The stream is out of its connection's table: ended both ways, or reset.
    pub(crate) closed: bool,
    /// Is it in its connection's list of blocked exchanges?
    pub(crate) listed: bool,
    /// Bytes to be sent on this leg that wait.
    pub(crate) holding: Holding,
    /// Trailers to be sent on this leg behind what waits.
    pub(crate) trailers: Option<HeaderBlock>,
}

/// How far the response has come.
///
/// ```text
///  Waiting --stream opened--> Asked --final head--> Answering
///     ^                         |                       ^
///     '------- retry -----------'   answered here ------'  (from Waiting and Asked)
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// In the queue of a server's lane, without a stream.
    Waiting,
    /// Sent (at least put into an outbox), no final response head yet.
    Asked,
    /// The response head went to the client.
    Answering,
}

/// One request with its response.
pub(crate) struct Exchange {
    pub(crate) legs: [Leg; 2],
    pub(crate) phase: Phase,
    /// The request head, kept until the response head comes.
    pub(crate) request: HeaderBlock,
    pub(crate) lane: Lane,
    pub(crate) is_head: bool,
    /// 1xx heads that came.
    pub(crate) informational: u8,
    /// Goes to the local server when that can be had.
    pub(crate) prefers_local: bool,
    /// Was it meant for peers from the beginning, because local does not serve it?
    pub(crate) is_for_peers: bool,
    /// Servers that may answer beside it, those already asked taken out.
    pub(crate) others: SlotSet,
    pub(crate) attempts: u8,
    /// How often it stood above a GOAWAY's last id.
    pub(crate) goaways: u8,
    /// The head of an answer of which nothing else came yet.
    pub(crate) held_head: Option<HeaderBlock>,
    /// Another proxy sent it here: it goes no further.
    pub(crate) was_decided: bool,
    /// Did another mvproxy send it, over HTTP/2 to the peer port?
    pub(crate) is_hop: bool,
    /// May it be asked once more although a server may have begun? Only what reads, and ends.
    pub(crate) may_repeat: bool,
    /// May its 503 be one that all servers give alike, that of an extension server behind them? Then only a text of the apiserver's own sends it
    /// to another one.
    pub(crate) is_503_shared: bool,
    pub(crate) server: ServerSlot,
    /// The connection that did not take it.
    pub(crate) refused_by: Option<ConnKey>,
    /// Outbox mark in front of the request head: was it ever on the wire?
    pub(crate) head_mark: u64,
    pub(crate) since: Instant,
    /// When the head of the answer came, or bytes last went to the client.
    pub(crate) moved: Instant,
    /// The client is gone, and the server's stream is not reset yet.
    pub(crate) abandoned: bool,
}

impl Exchange {
    pub(crate) fn new(request: HeaderBlock, lane: Lane, now: Instant) -> Self {
        let leg = || Leg { body_left: UNKNOWN_LENGTH, ..Leg::default() };
        Self {
            legs: [leg(), leg()],
            phase: Phase::Waiting,
            request,
            lane,
            is_head: false,
            informational: 0,
            prefers_local: false,
            is_for_peers: false,
            others: SlotSet::default(),
            attempts: 0,
            goaways: 0,
            held_head: None,
            was_decided: false,
            is_hop: false,
            may_repeat: false,
            is_503_shared: false,
            server: ServerSlot::NONE,
            refused_by: None,
            head_mark: 0,
            since: now,
            moved: now,
            abandoned: false,
        }
    }

    pub(crate) fn leg(&mut self, side: Side) -> &mut Leg {
        &mut self.legs[side as usize]
    }

    /// Did a server begin to answer, whether the client knows of it or not?
    pub(crate) fn is_begun(&self) -> bool {
        self.phase == Phase::Answering || self.held_head.is_some()
    }

    #[cfg(test)]
    pub(crate) fn for_tests() -> Self {
        Self::new(HeaderBlock::default(), Lane::Short, Instant::now())
    }
}
