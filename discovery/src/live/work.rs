//! What is under way with each server: its next probe, its next fetch, and what came of the last ones.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::StatusCode;

use super::fetch::{self, Answer, Before, Etags};
use super::probe::{self, Finding, Health, Outcome};
use super::round::{FetchDone, Report, Round};
use super::transport::{Leg, Place};
use crate::ServerId;
use crate::inventory::{Ask, Event, Readiness};

/// The shortest time between two probes of one server, whatever happens.
const PROBES_APART: Duration = Duration::from_millis(50);
/// The same while only API objects say that there is a server, and of connections that are tried because an address is new: what Leases can
/// make us dial is bounded (threats.md §5). A server writes its Lease when it listens already, so that its first probe is answered.
const DIALS_APART: Duration = Duration::from_secs(1);
/// From the loss of a server to its probe: shards lose their connections one after the other, and one probe is enough for all.
const DOUBTS_TOGETHER: Duration = Duration::from_millis(10);
/// The shortest time between two fetches; a server that starts anew is asked at once.
const FETCHES_APART: Duration = Duration::from_millis(200);
/// The first and the longest pause after a fetch that failed.
const FETCH_PAUSE: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// When an address of a server was last connected to.
#[derive(Clone, Copy, Default)]
pub(super) struct Dials {
    probed: Option<Instant>,
    checked: Option<Instant>,
}

impl Dials {
    fn are_old(&self, now: Instant) -> bool {
        let is_old = |at: Option<Instant>| at.is_none_or(|at| now.saturating_duration_since(at) >= DIALS_APART);
        is_old(self.probed) && is_old(self.checked)
    }
}

/// What is under way with one server.
pub(super) struct Work {
    place: Place,
    /// Named on the command line, or it answered there as a server does.
    is_proven: bool,
    holder: Option<Box<str>>,
    health: Health,
    is_probing: bool,
    /// Did a probe ever end?
    was_probed: bool,
    dials: Dials,
    next_probe: Instant,
    /// What the last probe said: ready, reachable. Only what differs is said again.
    told: Option<(Readiness, bool)>,
    is_fetching: bool,
    failures: u32,
    next_fetch: Instant,
    etags: Etags,
    /// Entries that its last answer lost to bad names.
    left_out: usize,
    pub(super) version: Option<String>,
    /// Since when that may be another.
    version_doubted: Option<Instant>,
    pub(super) error: Option<String>,
}

impl Work {
    fn new(place: Place, is_named: bool, holder: Option<Box<str>>, dials: Dials, now: Instant) -> Self {
        Self {
            place,
            is_proven: is_named,
            holder,
            health: Health::new(now),
            is_probing: false,
            was_probed: false,
            dials,
            next_probe: now,
            told: None,
            is_fetching: false,
            failures: 0,
            next_fetch: now,
            etags: Etags::default(),
            left_out: 0,
            version: None,
            version_doubted: Some(now),
            error: None,
        }
    }

    /// Another process, or another address, is asked from scratch.
    fn follow(&mut self, place: Place, is_named: bool, holder: Option<&str>, now: Instant) {
        let is_other = self.holder.as_deref() != holder;
        if is_other && self.holder.is_some() {
            // Whoever can write Leases cannot take local out of service.
            if place.leg != Leg::Local {
                self.health = Health::new(now);
            }
        }
        if self.place != place {
            self.is_proven = is_named;
        }
        if is_other || self.place != place {
            (self.place, self.holder) = (place, holder.map(Into::into));
            (self.next_probe, self.next_fetch, self.failures) = (now, now, 0);
            self.etags = Etags::default();
            (self.told, self.version_doubted) = (None, Some(now));
        }
    }

    /// Somebody lost it then: it is probed soon, and what the probe finds is news.
    /// False if that is known.
    pub(super) fn doubt(&mut self, lost: Instant, now: Instant) -> bool {
        let is_news = self.health.doubt(lost);
        if is_news {
            self.hasten_probe(now);
        }
        is_news
    }

    /// Something about it may have changed: it is probed soon, and what the probe finds is news.
    pub(super) fn hasten_probe(&mut self, now: Instant) {
        self.told = None;
        self.next_probe = self.next_probe.min(now + DOUBTS_TOGETHER);
    }

    /// What failed may work now.
    pub(super) fn hasten(&mut self, now: Instant) {
        (self.next_probe, self.next_fetch) = (now, now);
    }

    /// Did a probe ever end, whatever it found?
    pub(super) fn was_probed(&self) -> bool {
        self.was_probed
    }

    /// Does it refuse our credentials?
    pub(super) fn is_silent(&self) -> bool {
        self.health.is_silent()
    }

    /// Is it asked there?
    pub(super) fn is_at(&self, address: SocketAddr) -> bool {
        self.place.address == address
    }

    /// When it may be probed, if it is not being probed.
    fn probe_at(&self) -> Instant {
        let apart = if self.is_proven { PROBES_APART } else { DIALS_APART };
        self.dials.probed.map_or(self.next_probe, |at| self.next_probe.max(at + apart))
    }

    /// When something can be started again, if it is not under way.
    pub(super) fn next_start(&self, now: Instant) -> Option<Instant> {
        let probe = (!self.is_probing).then(|| self.probe_at());
        let fetch = Some(self.next_fetch).filter(|&at| !self.is_fetching && at > now);
        probe.into_iter().chain(fetch).min()
    }
}

impl Round<'_> {
    /// Starts every probe, fetch and check that is due.
    pub(super) fn start_due(&mut self, now: Instant) {
        self.start_probes(now);
        for ask in self.kept.inventory.due(now) {
            let place = self.place(&ask);
            if let Some(work) = self.work.get_mut(&ask.server).filter(|work| !work.is_fetching && now >= work.next_fetch) {
                work.is_fetching = true;
                // A server may leave and come back between two rounds, and be forgotten meanwhile: that nothing changed would say nothing.
                let etags = if ask.is_fetched { work.etags.clone() } else { Etags::default() };
                let is_doubted = work.version_doubted.is_some();
                self.start_fetch(ask, place, etags, is_doubted, now);
            }
        }
        for (server, address, via) in self.kept.inventory.checks(now) {
            let Some(work) = self.work.get_mut(&server) else { continue };
            // Where it is probed, the probe tells.
            let is_probed = !work.is_proven && work.is_at(address);
            if !is_probed && work.dials.checked.is_none_or(|at| now.saturating_duration_since(at) >= DIALS_APART) {
                work.dials.checked = Some(now);
                self.start_check(Place { address, leg: Leg::of(via) });
            }
        }
    }

    fn start_probes(&mut self, now: Instant) {
        let asks = self.kept.inventory.probes();
        let parted = &mut self.parted;
        self.work.retain(|server, work| {
            let is_asked = asks.iter().any(|ask| ask.server == *server);
            if !is_asked {
                parted.insert(server.clone(), work.dials);
            }
            is_asked
        });
        self.parted.retain(|_, dials| !dials.are_old(now));
        for ask in asks {
            let (place, is_named) = (self.place(&ask), self.is_named(&ask));
            let parted = &mut self.parted;
            let work = self.work.entry(ask.server.clone()).or_insert_with(|| {
                let dials = parted.remove(&ask.server).unwrap_or_default();
                Work::new(place, is_named, ask.holder.clone(), dials, now)
            });
            work.follow(place, is_named, ask.holder.as_deref(), now);
            // It left and came back between two rounds: that it is ready was forgotten, and is news.
            if !ask.is_ready && matches!(work.told, Some((Readiness::Ready, _))) {
                work.hasten_probe(now);
            }
            if !work.is_probing && now >= work.probe_at() {
                (work.is_probing, work.dials.probed) = (true, Some(now));
                self.start_probe(ask.server, place, now);
            }
        }
    }

    /// Is it to be found there because the command line says so?
    fn is_named(&self, ask: &Ask) -> bool {
        let settings = &self.kept.config.settings;
        ask.server == settings.local || settings.peers.get(&ask.server) == Some(&ask.address)
    }

    fn start_probe(&mut self, server: ServerId, place: Place, began: Instant) {
        let (transport, reports) = (self.transport.clone(), self.reports.clone());
        self.jobs.spawn(async move {
            let outcome = probe::probe(&transport, place).await;
            drop(reports.send(Report::Probed { server, place, began, outcome }).await);
        });
    }

    /// Local waits for no other server: what it serves decides about every request.
    fn start_fetch(&mut self, ask: Ask, place: Place, etags: Etags, is_version_doubted: bool, began: Instant) {
        let (transport, reports, fetches) = (self.transport.clone(), self.reports.clone(), Arc::clone(&self.fetches));
        let (aggregated, custom) = (self.aggregated.clone(), self.custom.clone());
        let before = Before { etags, known: self.kept.inventory.group_versions(), aggregated, custom };
        self.jobs.spawn(async move {
            // Never closed.
            let _permit = if place.leg == Leg::Local { None } else { fetches.acquire().await.ok() };
            let result = fetch::fetch(&transport, place, &before).await;
            let asks_version = matches!(&result, Ok(Answer::Serves(..))) || (result.is_ok() && is_version_doubted);
            let version = if asks_version { fetch::version(&transport, place).await } else { None };
            drop(reports.send(Report::FetchDone(Box::new(FetchDone { ask, place, began, result, version }))).await);
        });
    }

    /// That somebody listens proves nothing: it may be frozen, or somebody else, and with TLS 1.3 a peer port refuses a certificate when the
    /// handshake is over for us. So it is asked.
    fn start_check(&mut self, place: Place) {
        let (transport, reports) = (self.transport.clone(), self.reports.clone());
        self.jobs.spawn(async move {
            let reaches = probe::answers(&transport, place).await;
            drop(reports.send(Report::Checked { address: place.address, reaches }).await);
        });
    }

    pub(super) fn take_probe(&mut self, server: &ServerId, place: Place, began: Instant, outcome: &Outcome, now: Instant) {
        let Some(work) = self.work.get_mut(server) else { return };
        (work.is_probing, work.was_probed) = (false, true);
        if work.place != place {
            return;
        }
        work.is_proven |= matches!(outcome, Outcome::Ready | Outcome::Unready(..) | Outcome::Silent(_));
        let Finding { readiness, vouches } = work.health.take(outcome, began, now);
        work.next_probe = if work.health.is_doubted_since(began) { now } else { began + work.health.every() };
        work.error = match outcome {
            Outcome::Ready => work.error.take().filter(|_| work.failures > 0),
            Outcome::Unready(status, _) => Some(format!("/readyz was answered with {status}")),
            Outcome::Refused(why) => Some(why.clone()),
            Outcome::Silent(status) => Some(silence(*status, readiness)),
            Outcome::TimedOut => Some("/readyz was not answered in time".to_owned()),
        };
        let reaches = match outcome {
            Outcome::Ready | Outcome::Unready(..) | Outcome::Silent(_) => true,
            Outcome::Refused(_) => false,
            Outcome::TimedOut => readiness != Readiness::Unready,
        };
        let is_news = work.told.replace((readiness, reaches)) != Some((readiness, reaches));
        if is_news || vouches {
            // While it was away it may have become another one.
            work.version_doubted = Some(now);
            self.tell(Event::Probed { server: server.clone(), readiness, vouched: vouches.then_some(began) }, now);
            let reach = if reaches { Event::Reachable } else { Event::Unreachable };
            self.tell(reach(place.address), now);
        }
    }

    pub(super) fn take_fetch(&mut self, done: FetchDone, now: Instant) {
        let FetchDone { ask, place, began, result, version } = done;
        let Some(work) = self.work.get_mut(&ask.server) else { return };
        work.is_fetching = false;
        if work.place != place {
            return;
        }
        work.next_fetch = began + FETCHES_APART;
        if version.is_some() {
            work.version = version;
            work.version_doubted = work.version_doubted.filter(|&since| began < since);
        }
        let mut news = None;
        let serves = match result {
            Ok(Answer::Same) => None,
            Ok(Answer::Serves(named, etags)) => {
                // Of another process they say nothing.
                work.etags = if work.holder == ask.holder { etags } else { Etags::default() };
                if std::mem::replace(&mut work.left_out, named.left_out) < named.left_out {
                    news = Some(format!("{} at {}: {} resources with bad names are left out", ask.server, ask.address, named.left_out));
                }
                Some(named.gvrs)
            }
            Err(error) => {
                work.failures = (work.failures + 1).min(16);
                work.next_fetch = now + (FETCH_PAUSE.0 * 2u32.pow(work.failures - 1)).min(FETCH_PAUSE.1);
                work.error = Some(error.to_string());
                self.kept.draft.errors.fetch_discovery += 1;
                self.warn(&format!("{} at {}: {error}", ask.server, ask.address));
                return;
            }
        };
        if work.failures > 0 {
            (work.failures, work.error) = (0, None);
        }
        if let Some(news) = news {
            self.warn(&news);
        }
        self.tell(Event::Fetched { server: ask.server, holder: ask.holder, began, serves }, now);
    }
}

/// What the status says of a server that tells us nothing.
fn silence(status: StatusCode, readiness: Readiness) -> String {
    let counted = if readiness == Readiness::Ready { "it counts as ready" } else { "it does not count as ready yet" };
    format!("/readyz refuses our credentials, and is answered with {status} without: {counted}")
}
