//! What is under way with each server: its next probe, its next fetch, and what came of the last ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::fetch::{self, Answer, Etags};
use super::probe::{self, Health, Outcome};
use super::round::{Fetched, Report, Round};
use super::transport::Place;
use crate::ServerId;
use crate::inventory::{Ask, Event, Readiness};

/// The shortest time between two probes of one server, whatever happens.
const PROBES_APART: Duration = Duration::from_millis(200);
/// The same of connections that are tried because an address is new: what Leases can make us dial is bounded (threats.md §5).
const CHECKS_APART: Duration = Duration::from_secs(1);
/// The same of fetches; a server that starts anew is asked at once.
const FETCHES_APART: Duration = Duration::from_millis(200);
/// The first and the longest pause after a fetch that failed.
const FETCH_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// What is under way with one server.
pub(super) struct Work {
    place: Place,
    holder: Option<Box<str>>,
    health: Health,
    is_probing: bool,
    probed: Option<Instant>,
    next_probe: Instant,
    /// What the last probe said: ready, reachable. Only what differs is said again.
    told: Option<(Readiness, bool)>,
    is_fetching: bool,
    failures: u32,
    next_fetch: Instant,
    etags: Etags,
    checked: Option<Instant>,
    pub(super) version: Option<String>,
    pub(super) error: Option<String>,
}

impl Work {
    fn new(place: Place, holder: Option<Box<str>>, now: Instant) -> Self {
        Self {
            place,
            holder,
            health: Health::default(),
            is_probing: false,
            probed: None,
            next_probe: now,
            told: None,
            is_fetching: false,
            failures: 0,
            next_fetch: now,
            etags: Etags::default(),
            checked: None,
            version: None,
            error: None,
        }
    }

    /// Another process, or another address, is asked from scratch.
    fn follow(&mut self, place: Place, holder: Option<&str>, now: Instant) {
        let is_other = self.holder.as_deref() != holder;
        if is_other && self.holder.is_some() {
            self.health.reset();
        }
        if is_other || self.place != place {
            (self.place, self.holder) = (place, holder.map(Into::into));
            (self.next_probe, self.next_fetch, self.failures) = (now, now, 0);
            self.etags = Etags::default();
            self.told = None;
        }
    }

    /// Somebody says that it does not answer: it is probed soon, and what the probe finds is news.
    pub(super) fn doubt(&mut self, now: Instant) {
        (self.next_probe, self.told) = (now, None);
    }

    /// Is it asked there?
    pub(super) fn is_at(&self, address: SocketAddr) -> bool {
        self.place.address == address
    }

    fn may_probe(&self, now: Instant) -> bool {
        !self.is_probing && now >= self.next_probe && self.probed.is_none_or(|at| now.saturating_duration_since(at) >= PROBES_APART)
    }

    /// When something can be started again, if it is not under way.
    pub(super) fn next_start(&self, now: Instant) -> Option<Instant> {
        let probe = (!self.is_probing).then(|| self.probed.map_or(self.next_probe, |at| self.next_probe.max(at + PROBES_APART)));
        let fetch = Some(self.next_fetch).filter(|&at| !self.is_fetching && at > now);
        probe.into_iter().chain(fetch).min()
    }
}

impl Round<'_> {
    /// Starts every probe, fetch and check that is due.
    pub(super) fn start_due(&mut self, now: Instant) {
        let asks = self.kept.inventory.probes();
        self.work.retain(|server, _| asks.iter().any(|ask| ask.server == *server));
        for ask in asks {
            let place = self.place(&ask);
            let work = self.work.entry(ask.server.clone()).or_insert_with(|| Work::new(place, ask.holder.clone(), now));
            work.follow(place, ask.holder.as_deref(), now);
            if work.may_probe(now) {
                (work.is_probing, work.probed) = (true, Some(now));
                self.start_probe(ask.server, place);
            }
        }
        for ask in self.kept.inventory.due(now) {
            let place = self.place(&ask);
            if let Some(work) = self.work.get_mut(&ask.server).filter(|work| !work.is_fetching && now >= work.next_fetch) {
                work.is_fetching = true;
                let etags = work.etags.clone();
                self.start_fetch(ask, place, etags, now);
            }
        }
        for (server, address) in self.kept.inventory.checks(now) {
            let Some(work) = self.work.get_mut(&server) else { continue };
            if work.checked.is_none_or(|at| now.saturating_duration_since(at) >= CHECKS_APART) {
                work.checked = Some(now);
                self.start_check(address);
            }
        }
    }

    fn start_probe(&mut self, server: ServerId, place: Place) {
        let (transport, reports) = (self.transport.clone(), self.reports.clone());
        self.jobs.spawn(async move {
            let outcome = probe::probe(&transport, place).await;
            drop(reports.send(Report::Probed { server, place, outcome }).await);
        });
    }

    fn start_fetch(&mut self, ask: Ask, place: Place, etags: Etags, began: Instant) {
        let (transport, reports, fetches) = (self.transport.clone(), self.reports.clone(), Arc::clone(&self.fetches));
        let known = self.kept.inventory.group_versions();
        self.jobs.spawn(async move {
            // Never closed.
            let Ok(_permit) = fetches.acquire().await else { return };
            let result = fetch::fetch(&transport, place, &etags, &known).await;
            let version = if etags.is_empty() && result.is_ok() { fetch::version(&transport, place).await } else { None };
            drop(reports.send(Report::Fetched(Box::new(Fetched { ask, place, began, result, version }))).await);
        });
    }

    fn start_check(&mut self, address: SocketAddr) {
        let (transport, reports) = (self.transport.clone(), self.reports.clone());
        self.jobs.spawn(async move {
            let reaches = transport.reaches(address).await;
            drop(reports.send(Report::Checked { address, reaches }).await);
        });
    }

    pub(super) fn take_probe(&mut self, server: &ServerId, place: Place, outcome: &Outcome, now: Instant) {
        let Some(work) = self.work.get_mut(server) else { return };
        work.is_probing = false;
        if work.place != place {
            return;
        }
        let readiness = work.health.take(outcome);
        work.next_probe = work.probed.unwrap_or(now) + work.health.every();
        work.error = match outcome {
            Outcome::Ready => work.error.take().filter(|_| work.failures > 0),
            Outcome::Unready(status) => Some(format!("/readyz was answered with {status}")),
            Outcome::Refused(why) => Some(why.clone()),
            Outcome::TimedOut => Some("/readyz was not answered in time".to_owned()),
        };
        let reaches = match outcome {
            Outcome::Ready | Outcome::Unready(_) => true,
            Outcome::Refused(_) => false,
            Outcome::TimedOut => readiness != Readiness::Unready,
        };
        if work.told.replace((readiness, reaches)) != Some((readiness, reaches)) {
            self.tell(Event::Probed { server: server.clone(), readiness }, now);
            let reach = if reaches { Event::Reachable } else { Event::Unreachable };
            self.tell(reach(place.address), now);
        }
    }

    pub(super) fn take_fetch(&mut self, fetched: Fetched, now: Instant) {
        let Fetched { ask, place, began, result, version } = fetched;
        let Some(work) = self.work.get_mut(&ask.server) else { return };
        work.is_fetching = false;
        if work.place != place {
            return;
        }
        work.next_fetch = began + FETCHES_APART;
        work.version = version.or_else(|| work.version.take());
        let serves = match result {
            Ok(Answer::Same) => None,
            Ok(Answer::Serves(serves, etags)) => {
                // Of another process they say nothing.
                work.etags = if work.holder == ask.holder { etags } else { Etags::default() };
                Some(serves)
            }
            Err(error) => {
                work.failures = (work.failures + 1).min(16);
                work.next_fetch = now + (FETCH_PAUSE.0 * 2u32.pow(work.failures - 1)).min(FETCH_PAUSE.1);
                work.error = Some(error.to_string());
                self.kept.draft.errors.fetch_discovery += 1;
                self.log(&format!("{} at {}: {error}", ask.server, ask.address));
                return;
            }
        };
        if work.failures > 0 {
            (work.failures, work.error) = (0, None);
        }
        self.tell(Event::Fetched { server: ask.server, holder: ask.holder, began, serves }, now);
    }
}
