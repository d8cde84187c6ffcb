//! Who may come in: handshakes under way, counted by address, and addresses that were sent away.
//!
//! What always holds: at most `handshakes` are under way, and at most `handshakes_per_address` of one address; beyond that the oldest
//! is cut, because an honest one is done in milliseconds. An address whose client was told to calm down opens at most
//! `offender_conns` new connections for `offence`: without that, a client that reconnects would make us pay a handshake, which
//! is dear, for every flood, which is cheap. At most `offenders` such addresses are remembered.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use crate::config::Limits;
use crate::core::{Budget, ConnKey, Port, Source};

/// A handshake under way.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Ticket(u64);

struct Handshake {
    conn: ConnKey,
    from: (Port, Source),
    since: Instant,
}

struct Offender {
    conns: Budget,
    until: Instant,
}

/// The gate of one shard.
pub(crate) struct Gate {
    limits: Limits,
    next: u64,
    /// By age.
    handshakes: BTreeMap<Ticket, Handshake>,
    by_source: HashMap<(Port, Source), usize>,
    offenders: HashMap<Source, Offender>,
}

impl Gate {
    pub(crate) fn new(limits: &Limits) -> Self {
        Self { limits: limits.clone(), next: 0, handshakes: BTreeMap::new(), by_source: HashMap::new(), offenders: HashMap::new() }
    }

    /// May a connection from there come in?
    pub(crate) fn admits(&mut self, source: Source, now: Instant) -> bool {
        if self.offenders.is_empty() {
            return true;
        }
        self.offenders.retain(|_, offender| offender.until > now);
        let rate = self.limits.offender_conns;
        self.offenders.get_mut(&source).is_none_or(|offender| offender.conns.take(rate, now))
    }

    /// A client of that address was told to calm down.
    pub(crate) fn blame(&mut self, source: Source, now: Instant) {
        let (rate, until) = (self.limits.offender_conns, now + self.limits.offence);
        if let Some(offender) = self.offenders.get_mut(&source) {
            offender.until = until;
        } else if self.offenders.len() < self.limits.offenders {
            self.offenders.insert(source, Offender { conns: Budget::full(rate, now), until });
        }
    }

    /// A handshake begins; the second value is a connection to be cut for it.
    pub(crate) fn begin(&mut self, conn: ConnKey, from: (Port, Source), now: Instant) -> (Ticket, Option<ConnKey>) {
        let of_source = self.by_source.entry(from).or_default();
        *of_source += 1;
        let oldest = if *of_source > self.limits.handshakes_per_address {
            self.handshakes.values().find(|handshake| handshake.from == from)
        } else if self.handshakes.len() >= self.limits.handshakes {
            self.handshakes.values().next()
        } else {
            None
        };
        let cut = oldest.map(|handshake| handshake.conn);
        let ticket = Ticket(self.next);
        self.next += 1;
        self.handshakes.insert(ticket, Handshake { conn, from, since: now });
        (ticket, cut)
    }

    /// A handshake is over, one way or the other.
    pub(crate) fn end(&mut self, ticket: Ticket) {
        let Some(handshake) = self.handshakes.remove(&ticket) else { return };
        if let Some(count) = self.by_source.get_mut(&handshake.from) {
            *count -= 1;
            if *count == 0 {
                self.by_source.remove(&handshake.from);
            }
        }
    }

    /// Should new connections wait in the backlog?
    pub(crate) fn is_crowded(&self, now: Instant) -> bool {
        let is_young = |oldest: &Handshake| now - oldest.since < self.limits.herd_age;
        self.handshakes.len() >= self.limits.herd && self.handshakes.values().next().is_some_and(is_young)
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};
    use std::time::Duration;

    use super::*;
    use crate::core::Rate;
    use crate::core::slab::Slab;

    fn source(text: &str) -> Source {
        Source::from(text.parse::<IpAddr>().unwrap())
    }

    /// A gate, and names for connections.
    fn gate(handshakes: usize, per_address: usize) -> (Gate, impl FnMut() -> ConnKey) {
        let rate = Rate { burst: 3, per_second: 1 };
        let limits = Limits { handshakes, handshakes_per_address: per_address, offender_conns: rate, ..Limits::default() };
        let mut slab = Slab::new();
        let now = Instant::now();
        let conn = move || slab.insert(crate::core::Conn::new(crate::core::Role::Downstream, &Limits::default(), now));
        (Gate::new(&limits), conn)
    }

    #[test]
    fn the_oldest_handshake_of_a_crowded_address_is_cut() {
        let (mut gate, mut conn) = gate(100, 2);
        let (now, a, b) = (Instant::now(), source("10.0.0.1"), source("10.0.0.2"));
        let other = conn();
        assert_eq!(gate.begin(other, (Port::Clients, b), now).1, None);
        let (first, second, third, fourth) = (conn(), conn(), conn(), conn());
        let (first_ticket, cut) = gate.begin(first, (Port::Clients, a), now);
        assert_eq!(cut, None);
        assert_eq!(gate.begin(second, (Port::Clients, a), now).1, None);
        assert_eq!(gate.begin(third, (Port::Clients, a), now).1, Some(first));
        gate.end(first_ticket);
        gate.end(first_ticket);
        assert_eq!(gate.begin(fourth, (Port::Clients, a), now).1, Some(second));
    }

    #[test]
    fn the_oldest_of_all_is_cut_when_there_are_too_many() {
        let (mut gate, mut conn) = gate(3, 2);
        let now = Instant::now();
        let conns: Vec<_> = (0..4).map(|_| conn()).collect();
        for (nth, &conn) in conns[..3].iter().enumerate() {
            assert_eq!(gate.begin(conn, (Port::Clients, source(&format!("10.0.0.{nth}"))), now).1, None);
        }
        assert_eq!(gate.begin(conns[3], (Port::Clients, source("10.0.0.3")), now).1, Some(conns[0]));
    }

    #[test]
    fn a_herd_waits_and_stallers_do_not_make_others_wait() {
        let (mut gate, mut conn) = gate(10_000, 10_000);
        let now = Instant::now();
        let tickets: Vec<_> = (0..gate.limits.herd).map(|_| gate.begin(conn(), (Port::Clients, source("10.0.0.1")), now).0).collect();
        assert!(gate.is_crowded(now));
        assert!(!gate.is_crowded(now + gate.limits.herd_age));
        gate.end(tickets[0]);
        assert!(!gate.is_crowded(now));
        tickets.into_iter().for_each(|ticket| gate.end(ticket));
        assert!(gate.by_source.is_empty() && gate.handshakes.is_empty());
    }

    #[test]
    fn an_offender_comes_back_slowly_and_is_forgiven() {
        let (mut gate, _) = gate(1, 1);
        let (now, bad, good) = (Instant::now(), source("10.0.0.1"), source("10.0.0.2"));
        gate.blame(bad, now);
        assert_eq!((0..10).filter(|_| gate.admits(bad, now)).count(), 3);
        assert_eq!((0..10).filter(|_| gate.admits(good, now)).count(), 10);
        assert_eq!((0..10).filter(|_| gate.admits(bad, now + Duration::from_secs(2))).count(), 2);
        assert_eq!((0..10).filter(|_| gate.admits(bad, now + Limits::default().offence)).count(), 10);
        assert!(gate.offenders.is_empty());
        for nth in 0..2 * gate.limits.offenders {
            let address = Ipv4Addr::from_bits(u32::try_from(nth).unwrap());
            gate.blame(Source::from(IpAddr::V4(address)), now);
        }
        assert_eq!(gate.offenders.len(), gate.limits.offenders);
    }
}
