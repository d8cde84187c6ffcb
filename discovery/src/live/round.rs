//! What the thread does, round after round: take in what was reported, start what is due, publish what is new.
//!
//! The tasks that ask servers report here and decide nothing; what they report is folded into the inventory, which has no clock and no
//! socket; what it says is due is started here, within limits.

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::{Semaphore, mpsc, watch as signal};
use tokio::task::JoinSet;

use super::announce::OwnLease;
use super::fetch::{Answer, FetchError};
use super::probe::Outcome;
use super::status::{ServerStatus, Source, SourceState, Status};
use super::transport::{Leg, Place, Transport};
use super::watch::{self, Post};
use super::work::{Dials, Work};
use super::{Certificates, Config, Error, Hint, Severity};
use crate::inventory::{Ask, Event, Exclusion, GroupVersion, Inventory};
use crate::{Publisher, Reader, ServerId};

/// Reports that were not taken in yet; whoever has more to say waits. A list of all Leases that are kept has some megabytes.
const REPORTS_MAX: usize = 16;
/// Events this close make one snapshot.
const DEBOUNCE: Duration = Duration::from_millis(10);
/// The longest pause between two rounds: what has had its time goes then.
const ROUND: Duration = Duration::from_secs(1);
/// Fetches under way at one moment.
const FETCHES_MAX: usize = 8;
/// How often a token file is looked at.
const TOKEN_EVERY: Duration = Duration::from_secs(2);

/// What a task found.
pub(super) enum Report {
    Said(Event),
    Source(Source, SourceState),
    Overfull(Source, usize),
    Probed { server: ServerId, place: Place, began: Instant, outcome: Outcome },
    FetchDone(Box<FetchDone>),
    Checked { address: SocketAddr, reaches: bool },
}

/// What came of a fetch.
pub(super) struct FetchDone {
    pub(super) ask: Ask,
    pub(super) place: Place,
    pub(super) began: Instant,
    pub(super) result: Result<Answer, FetchError>,
    pub(super) version: Option<String>,
}

/// What outlives a panic.
pub(super) struct Kept {
    pub(super) config: Config,
    pub(super) inventory: Inventory,
    /// Nothing incomplete is published before, and nothing that forgets what was known.
    pub(super) hold_until: Option<Instant>,
    publisher: Publisher,
    published: Reader,
    status: Arc<ArcSwap<Status>>,
    /// The status as it grows.
    pub(super) draft: Status,
    hints: mpsc::Receiver<Hint>,
    /// Those that came last; in use are those of `config`.
    renewed: signal::Receiver<Certificates>,
    stopped: signal::Receiver<bool>,
}

impl Kept {
    pub(super) fn new(
        config: Config,
        publisher: Publisher,
        status: Arc<ArcSwap<Status>>,
        hints: mpsc::Receiver<Hint>,
        renewed: signal::Receiver<Certificates>,
        stopped: signal::Receiver<bool>,
    ) -> Self {
        let inventory = Inventory::new(config.settings.clone());
        let published = publisher.reader();
        Self { config, inventory, hold_until: None, publisher, published, status, draft: Status::default(), hints, renewed, stopped }
    }

    pub(super) fn count_panic(&mut self) {
        self.draft.panics += 1;
        self.status.store(Arc::new(self.draft.clone()));
    }

    pub(super) fn is_stopped(&self) -> bool {
        *self.stopped.borrow()
    }
}

/// A run of the thread.
pub(super) struct Round<'a> {
    pub(super) kept: &'a mut Kept,
    pub(super) transport: Transport,
    pub(super) jobs: JoinSet<()>,
    pub(super) reports: mpsc::Sender<Report>,
    watched: signal::Sender<Place>,
    pub(super) fetches: Arc<Semaphore>,
    pub(super) work: HashMap<ServerId, Work>,
    /// Of servers that left a moment ago: one that comes back is not connected to more often for it.
    pub(super) parted: HashMap<ServerId, Dials>,
    /// Group-versions that other servers answer for, as last listed.
    pub(super) aggregated: BTreeSet<GroupVersion>,
    /// Group-versions that are made of CustomResourceDefinitions, as last listed.
    pub(super) custom: BTreeSet<GroupVersion>,
    /// By [`Source`].
    sources: [SourceState; Source::ALL.len()],
    addressless: BTreeSet<ServerId>,
    /// Since when something may have to be published.
    dirty: Option<Instant>,
    /// When that was last looked at.
    attempted: Instant,
    token_read: Instant,
}

/// Runs until it is told to stop.
pub(super) async fn run(kept: &mut Kept) -> Result<(), Error> {
    let settings = &kept.config.settings;
    let transport = Transport::for_settings(&kept.config.access, settings)?;
    let local = Place { address: settings.local_address, leg: Leg::Local };
    let own = kept.config.announcement.clone().map(|announcement| OwnLease::new(&settings.local, announcement));
    let (reports, mut reported) = mpsc::channel(REPORTS_MAX);
    let (watched, place) = signal::channel(local);
    let (kept_version, written) = signal::channel(None);
    let post = Post { transport: transport.clone(), place, reports: reports.clone() };
    let mut jobs = JoinSet::new();
    for watch in watch::all(&post) {
        jobs.spawn(watch);
    }
    if let Some(own) = own.clone() {
        jobs.spawn(own.keep(post, kept_version));
    }
    let mut stop = kept.stopped.clone();
    let mut round = Round::new(kept, transport, jobs, reports, watched);
    loop {
        round.turn(Instant::now());
        let wake = tokio::time::Instant::from_std(round.next_wake(Instant::now()));
        tokio::select! {
            // It ends also when nobody could tell it to any more.
            _ = stop.wait_for(|&stopped| stopped) => break,
            Some(report) = reported.recv() => round.take(report),
            Some(hint) = round.kept.hints.recv() => round.take_hint(hint),
            Ok(()) = round.kept.renewed.changed() => round.renew(Instant::now()),
            Some(ended) = round.jobs.join_next() => if let Err(error) = ended && error.is_panic() {
                std::panic::resume_unwind(error.into_panic());
            },
            () = tokio::time::sleep_until(wake) => {}
        }
        while let Ok(report) = reported.try_recv() {
            round.take(report);
        }
    }
    let places = round.withdrawal_places();
    let Round { transport, watched, jobs, .. } = round;
    if let Some(own) = own {
        // Without them whoever keeps it ends, when what it writes is written.
        drop((reported, watched));
        own.withdraw(&transport, &places, written).await;
    }
    // Ends all that is left.
    drop(jobs);
    Ok(())
}

impl<'a> Round<'a> {
    fn new(
        kept: &'a mut Kept,
        transport: Transport,
        jobs: JoinSet<()>,
        reports: mpsc::Sender<Report>,
        watched: signal::Sender<Place>,
    ) -> Self {
        Self {
            kept,
            transport,
            jobs,
            reports,
            watched,
            fetches: Arc::new(Semaphore::new(FETCHES_MAX)),
            work: HashMap::new(),
            parted: HashMap::new(),
            aggregated: BTreeSet::new(),
            custom: BTreeSet::new(),
            sources: Source::ALL.map(|_| SourceState::Waiting),
            addressless: BTreeSet::new(),
            dirty: Some(Instant::now()),
            attempted: Instant::now(),
            token_read: Instant::now(),
        }
    }

    fn take(&mut self, report: Report) {
        let now = Instant::now();
        match report {
            Report::Said(event) => self.tell(event, now),
            Report::Source(source, state) => self.take_state(source, state),
            Report::Overfull(source, max) => self.warn(&format!("{source}: more than {max} objects: the rest is not looked at")),
            Report::Probed { server, place, began, outcome } => self.take_probe(&server, place, began, &outcome, now),
            Report::FetchDone(done) => self.take_fetch(*done, now),
            Report::Checked { address, reaches: true } => self.tell(Event::Reachable(address), now),
            Report::Checked { address, reaches: false } => self.tell(Event::Unreachable(address), now),
        }
    }

    fn take_hint(&mut self, hint: Hint) {
        let now = Instant::now();
        let probed = match hint {
            Hint::Lost { server, at } => {
                if self.work.get_mut(&server).is_none_or(|work| work.doubt(at, now)) {
                    self.tell(Event::Lost { server, at }, now);
                }
                return;
            }
            Hint::LocalInDoubt => {
                self.tell(Event::LocalInDoubt, now);
                Some(self.kept.config.settings.local.clone())
            }
            Hint::Unreachable(address) => {
                self.tell(Event::Unreachable(address), now);
                self.kept.inventory.owner(address).cloned()
            }
            Hint::Panic => panic!("asked to"),
        };
        if let Some(work) = probed.and_then(|server| self.work.get_mut(&server)) {
            work.hasten_probe(now);
        }
    }

    /// Uses the certificates that came last, and asks everybody soon: some may have been out of reach without them.
    fn renew(&mut self, now: Instant) {
        let newest = self.kept.renewed.borrow_and_update().clone();
        match self.transport.renew(&newest) {
            Ok(()) => {
                self.kept.config.access.certificates = newest;
                self.work.values_mut().for_each(|work| work.hasten(now));
                self.log("new connections use the new certificates");
            }
            Err(error) => self.warn(&format!("new certificates cannot be used: {error}: keeping those from before")),
        }
    }

    fn take_state(&mut self, source: Source, state: SourceState) {
        if source == Source::Leases && matches!(state, SourceState::Denied(_) | SourceState::Failing(_)) {
            self.kept.draft.errors.lease_list += 1;
        }
        // Whoever was watched may be gone: a probe tells.
        if matches!(state, SourceState::Failing(_)) {
            let watched = self.watched.borrow().address;
            self.work.values_mut().filter(|work| work.is_at(watched)).for_each(|work| work.hasten_probe(Instant::now()));
        }
        if state == SourceState::Synced && !self.kept.draft.was_listed(source) {
            self.kept.draft.listed.push(source);
        }
        let before = std::mem::replace(&mut self.sources[source as usize], state);
        let state = &self.sources[source as usize];
        if std::mem::discriminant(&before) != std::mem::discriminant(state) {
            let is_bad = matches!(state, SourceState::Denied(_) | SourceState::Failing(_));
            self.say(if is_bad { Severity::Warning } else { Severity::Info }, &format!("{source}: {state:?}"));
        }
    }

    /// Folds an event in.
    pub(super) fn tell(&mut self, event: Event, now: Instant) {
        if let Event::Excluded(exclusion, listed) = &event {
            let excluded = match exclusion {
                Exclusion::Aggregated => &mut self.aggregated,
                Exclusion::Custom => &mut self.custom,
            };
            *excluded = listed.iter().cloned().collect();
        }
        self.kept.inventory.apply(event, now);
        self.dirty.get_or_insert(now);
    }

    pub(super) fn log(&self, line: &str) {
        self.say(Severity::Info, line);
    }

    pub(super) fn warn(&self, line: &str) {
        self.say(Severity::Warning, line);
    }

    /// One line, whatever a server put into it.
    fn say(&self, severity: Severity, line: &str) {
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        (self.kept.config.log)(severity, &format!("discovery: {line}"));
    }

    /// One round.
    fn turn(&mut self, now: Instant) {
        self.kept.inventory.tick(now);
        self.read_token(now);
        self.transport.allow(self.kept.inventory.allowed());
        self.start_due(now);
        self.choose_watched();
        // What has had its time goes without an event.
        let is_old = now.saturating_duration_since(self.attempted) >= ROUND;
        if is_old || self.dirty.is_some_and(|since| now.saturating_duration_since(since) >= DEBOUNCE) {
            self.publish(now);
        }
        self.show();
    }

    /// When the next round is due, if nothing happens.
    fn next_wake(&self, now: Instant) -> Instant {
        let idle = self.work.values().filter_map(|work| work.next_start(now));
        let publish = self.dirty.map(|since| since + DEBOUNCE);
        idle.chain(publish).chain([now + ROUND]).min().unwrap_or(now + ROUND)
    }

    fn read_token(&mut self, now: Instant) {
        if now.saturating_duration_since(self.token_read) < TOKEN_EVERY {
            return;
        }
        self.token_read = now;
        match self.kept.config.access.credentials.read() {
            Ok(authorization) => {
                self.transport.authorize(authorization);
                self.kept.draft.credentials = None;
            }
            // The token from before may still be good.
            Err(error) => self.kept.draft.credentials = Some(error.to_string()),
        }
    }

    /// Local while it is ready; else whoever is watched while that one is; else anyone who is.
    fn choose_watched(&mut self) {
        // Before its first probe nothing speaks against it.
        if !self.work.get(&self.kept.config.settings.local).is_some_and(Work::was_probed) {
            return;
        }
        let asks = self.kept.inventory.probes();
        let is_local = |ask: &&Ask| ask.server == self.kept.config.settings.local;
        let ready = self.ready_places(&asks);
        let local = asks.iter().find(is_local).map(|ask| self.place(ask));
        let current = *self.watched.borrow();
        let best = local.filter(|local| ready.contains(local)).or_else(|| ready.contains(&current).then_some(current));
        let Some(best) = best.or_else(|| ready.first().copied()).or(local) else { return };
        if best != current {
            self.log(&format!("watching {} now, not {}", best.address, current.address));
            self.watched.send_replace(best);
        }
    }

    /// Where somebody is ready. Who refuses our credentials may serve others, but tells us nothing.
    fn ready_places(&self, asks: &[Ask]) -> Vec<Place> {
        let is_silent = |ask: &&Ask| self.work.get(&ask.server).is_some_and(Work::is_silent);
        asks.iter().filter(|ask| ask.is_ready && !is_silent(ask)).map(|ask| self.place(ask)).collect()
    }

    /// Where our Lease may be deleted: whoever is watched, then all others that are ready.
    fn withdrawal_places(&self) -> Vec<Place> {
        let watched = *self.watched.borrow();
        let ready = self.ready_places(&self.kept.inventory.probes());
        [watched].into_iter().chain(ready.into_iter().filter(|&place| place != watched)).collect()
    }

    /// How a server is spoken to.
    pub(super) fn place(&self, ask: &Ask) -> Place {
        let leg = if ask.server == self.kept.config.settings.local { Leg::Local } else { Leg::of(ask.via) };
        Place { address: ask.address, leg }
    }

    fn publish(&mut self, now: Instant) {
        (self.dirty, self.attempted) = (None, now);
        let kept = &mut *self.kept;
        let Some(built) = kept.inventory.snapshot(kept.draft.generation + 1, now) else { return };
        let is_anything_published = kept.draft.generation > 0;
        if kept.hold_until.is_some_and(|until| now < until) && is_anything_published {
            let published = kept.published.current();
            if !built.as_ref().is_ok_and(|next| next.is_complete() && !next.forgets(published)) {
                return;
            }
        }
        kept.hold_until = None;
        match built {
            Err(error) => self.warn(&format!("no snapshot: {error}")),
            Ok(next) => {
                if !next.routes_like(kept.published.current()) {
                    kept.draft.generation = next.generation();
                    kept.draft.published = Some(now);
                    kept.publisher.publish(next);
                    // Lets go of the one before.
                    kept.published.current();
                }
                kept.draft.confirmed = Some(now);
            }
        }
    }

    /// Makes the status what is known now.
    fn show(&mut self) {
        let kept = &mut *self.kept;
        let views = kept.inventory.views();
        let lacking = views.iter().filter(|view| view.address.is_none() && !view.is_gone).map(|view| view.id.clone());
        let addressless: BTreeSet<ServerId> = lacking.collect();
        // Before the endpoints are there, nobody's address may be allowed yet.
        if self.sources[Source::Endpoints as usize] != SourceState::Waiting {
            kept.draft.errors.hostport_resolution += addressless.difference(&self.addressless).count() as u64;
            self.addressless = addressless;
        }
        let servers = views.into_iter().map(|view| {
            let work = self.work.get(&view.id);
            let (version, error) = (work.and_then(|work| work.version.clone()), work.and_then(|work| work.error.clone()));
            ServerStatus { view, version, error }
        });
        kept.draft.servers = servers.collect();
        kept.draft.unfetched = kept.inventory.unfetched().map(|id| id.as_str().to_owned()).collect();
        kept.draft.sources = Source::ALL.into_iter().zip(self.sources.iter().cloned()).collect();
        kept.draft.watched = Some(self.watched.borrow().address);
        kept.status.store(Arc::new(kept.draft.clone()));
    }
}
