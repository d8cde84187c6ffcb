//! Memory: what is held, for whom, and who has to go when it becomes too much.
//!
//! What always holds: above `full_percent` of `held_bytes` the address that holds most is sent away, its largest connections first, until
//! `relieved_percent` is left; only when nobody stands out are new streams of everybody refused. What is in blocks is counted as it comes
//! and goes, the rest once a second.

use std::collections::HashMap;

use super::conn::{Conn, Role, State};
use super::exchange::Side;
use super::source::Source;
use super::{ConnKey, Core};
use crate::http2::Reason;
use crate::http2::hpack::HeaderBlock;

/// What a client connection takes, TLS included, when nothing is held for it: measured, not a limit.
const CLIENT: usize = 8 * 1024;

/// A client connection and what is held for it.
struct Holder {
    conn: ConnKey,
    source: Option<Source>,
    bytes: usize,
}

impl Core {
    /// Is the shard short of memory?
    pub(super) fn is_full(&self) -> bool {
        self.held() > self.part_of_held(self.limits.full_percent)
    }

    /// So many percent of `held_bytes`.
    fn part_of_held(&self, percent: usize) -> usize {
        self.limits.held_bytes.saturating_mul(percent) / 100
    }

    fn held(&self) -> usize {
        self.blocks.in_use() + self.held_beside
    }

    /// Counts what is held beside the blocks: plaintext and wire bytes that a socket does not take, heads and frames that are not complete,
    /// request heads that wait for an answer.
    pub(super) fn count_held(&mut self) {
        let of_conns: usize = (0..self.conns.places()).filter_map(|at| self.conns.get(self.conns.key_at(at)?)).map(Conn::held).sum();
        let heads = |at| {
            let entry = self.exchanges.get(self.exchanges.key_at(at)?)?;
            Some(entry.request.retained() + entry.held_head.as_ref().map_or(0, HeaderBlock::retained))
        };
        let of_heads: usize = (0..self.exchanges.places()).filter_map(heads).sum();
        self.held_beside = of_conns + of_heads;
    }

    /// The IO side holds that much for a connection.
    pub fn note_outside(&mut self, key: ConnKey, bytes: usize) {
        if let Some(conn) = self.conns.get_mut(key) {
            conn.outside = bytes;
        }
    }

    /// Lets go of spare memory that nobody needed for a while; what is left, about.
    pub fn trim(&mut self) -> usize {
        self.blocks.trim();
        self.buffers.trim();
        self.blocks.memory() + self.buffers.memory() + self.held_beside + self.clients * CLIENT
    }

    /// Sends away who holds most while memory is short.
    pub(super) fn relieve(&mut self) {
        if !self.is_full() || self.now < self.next_relief {
            return;
        }
        self.next_relief = self.now + self.limits.relief_pause;
        let holders = self.holders();
        let mut by_source: HashMap<Option<Source>, usize> = HashMap::new();
        for holder in &holders {
            *by_source.entry(holder.source).or_default() += holder.bytes;
        }
        let worst = by_source.into_iter().max_by_key(|&(_, bytes)| bytes);
        let (stands_out, enough) = (self.part_of_held(self.limits.stands_out_percent), self.part_of_held(self.limits.relieved_percent));
        let Some((source, _)) = worst.filter(|&(_, bytes)| bytes > stands_out) else { return };
        let mut left = self.held();
        for holder in holders.into_iter().filter(|holder| holder.source == source) {
            if left <= enough {
                break;
            }
            left = left.saturating_sub(holder.bytes);
            self.close_conn(holder.conn, Reason::ENHANCE_YOUR_CALM);
        }
        self.count_held();
    }

    /// Client connections and what is held for each, the largest first.
    fn holders(&self) -> Vec<Holder> {
        let mut bytes = vec![0; self.conns.places()];
        for entry in (0..self.exchanges.places()).filter_map(|at| self.exchanges.get(self.exchanges.key_at(at)?)) {
            let down = &entry.legs[Side::Down as usize];
            if let Some(conn) = down.conn.filter(|&conn| !down.closed && self.conns.get(conn).is_some()) {
                bytes[conn.index()] += entry.request.retained() + entry.legs.iter().map(|leg| leg.holding.held()).sum::<usize>();
            }
        }
        let holder = |at| {
            let key = self.conns.key_at(at)?;
            let conn = self.conns.get(key).filter(|conn| conn.role == Role::Downstream && conn.state != State::Closing && !conn.is_peer)?;
            Some(Holder { conn: key, source: conn.source, bytes: bytes[at] + conn.held() })
        };
        let mut holders: Vec<_> = (0..self.conns.places()).filter_map(holder).collect();
        holders.sort_unstable_by_key(|holder| std::cmp::Reverse(holder.bytes));
        holders
    }
}
