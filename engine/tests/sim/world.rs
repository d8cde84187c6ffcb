//! The world: who is there, what goes wrong, and what must be true at the end.

use std::time::{Duration, Instant};

use engine::Limits;
use engine::core::{Action, ConnKey, Core, Ended, Port, Protocol, Sign};

use super::client::Client;
use super::end::{End, Event, INITIAL_WINDOW, MAX_STREAMS};
use super::link::{Far, Link, State};
use super::probes::Probes;
use super::request::{Outcome, Request};
use super::rng::Rng;
use super::server::Server;
use super::trace::Trace;

/// Nothing may stand still for longer than this: the limit for a response head is 65 s.
const STUCK: Duration = Duration::from_secs(70);

/// Everything that one seed decides.
pub struct World {
    pub rng: Rng,
    pub core: Core,
    pub now: Instant,
    pub rounds: usize,
    pub clients: Vec<Client>,
    pub servers: Vec<Server>,
    pub links: Vec<Link>,
    pub requests: Vec<Request>,
    /// Answers (request, number) that servers are busy with.
    pub work: Vec<(usize, usize)>,
    pub body_max: u64,
    /// Percent of requests that are cancelled, and of answers that go wrong; per mille and round of connection faults.
    pub cancels: usize,
    pub faults: usize,
    breaks: usize,
    drain_at: Option<usize>,
    is_draining: bool,
    /// Answers are of this length, and clients give no connection window back.
    pub probe: Option<u64>,
    /// While true, things go wrong.
    pub is_chaos: bool,
    next_tick: Instant,
    last_move: Instant,
    /// When something happened to a stream: PINGs move bytes for ever.
    last_progress: Instant,
    piece_max: usize,
    limits: Limits,
    probes: Probes,
    /// What happened, for who wants to compare.
    pub trace: Trace,
}

impl World {
    pub fn new(seed: u64, base: Instant) -> Self {
        let mut rng = Rng::new(seed);
        let servers: Vec<_> = (0..rng.between(2, 4))
            .map(|at| Server { is_down: false, is_hung: false, serves_theirs: at == 1 || (at > 1 && rng.percent(60)) })
            .collect();
        let probes = Probes::new(&servers, &mut rng);
        let limits = random_limits(&mut rng);
        let core = Core::new(limits.clone(), probes.publisher.reader(), seed, base);
        let is_large = rng.percent(4);
        let is_faulty = rng.percent(65);
        // Some worlds are crowded.
        let clients_max = if rng.below(8) == 0 { 12 } else { 4 };
        let clients = (0..rng.between(1, clients_max))
            .map(|_| Client {
                link: None,
                left: if is_large { rng.between(10, 60) } else { rng.between(1, 8) },
                concurrency: rng.pick(&[1, 3, 8, 90]),
                active: Vec::new(),
            })
            .collect();
        Self {
            core,
            now: base,
            rounds: 0,
            clients,
            servers,
            links: Vec::new(),
            requests: Vec::new(),
            work: Vec::new(),
            body_max: if is_large || rng.percent(15) { 300 * 1_024 } else { rng.pick(&[100, 5_000, 70_000]) },
            cancels: if is_faulty { rng.pick(&[0, 10, 40]) } else { 0 },
            faults: if is_faulty { rng.pick(&[0, 5, 30]) } else { 0 },
            breaks: if is_faulty { rng.pick(&[0, 5, 20]) } else { 0 },
            drain_at: rng.percent(12).then(|| rng.below(150)),
            is_draining: false,
            probe: None,
            is_chaos: true,
            next_tick: base,
            last_move: base,
            last_progress: base,
            piece_max: rng.pick(&[3, 40, 2_000, 20_000, 100_000]),
            limits,
            rng,
            probes,
            trace: Trace::new(base),
        }
    }

    /// Plays the whole life of the world.
    pub fn run(&mut self) {
        for at in 0..self.clients.len() {
            self.connect_client(at);
        }
        while self.rounds < 1_500 && (self.rounds < 60 || self.clients.iter().any(|client| client.left > 0)) {
            self.round();
            self.break_something();
        }
        self.calm_down();
        while self.clients.iter().any(|client| !client.active.is_empty() || client.left > 0) || !self.work.is_empty() {
            self.round();
            assert!(self.now - self.last_progress < STUCK, "nothing moves: {}", self.report());
        }
        self.settle();
        self.check_requests();
        self.check_tables();
        self.check_windows();
        if self.rng.percent(40) {
            self.probe_windows();
        }
        self.end();
    }

    fn connect_client(&mut self, at: usize) {
        let Some(key) = self.core.handle_accepted(Port::Clients, None, self.now) else {
            assert!(self.is_draining);
            self.clients[at].left = 0;
            return;
        };
        let window = self.rng.pick(&[0, 1, 100, 65_535, 65_535, 1 << 20]);
        let end = End::client(&[(INITIAL_WINDOW, window)]);
        let open_at = self.now + Duration::from_millis(self.rng.below(20) as u64);
        let state = State::Connecting { at: open_at, refused: false };
        self.links.push(Link::new(key, Far::Client(at), end, state, self.now, &mut self.rng));
        self.clients[at].link = Some(self.links.len() - 1);
    }

    /// One step of time: everyone acts, every wire moves.
    pub fn round(&mut self) {
        self.rounds += 1;
        let moved = self.last_move == self.now;
        let step = if self.is_chaos || moved { self.rng.between(1, 8) } else { 100 };
        self.now += Duration::from_millis(step as u64);
        self.probes.run(&self.servers, self.is_chaos, self.now);
        if self.now >= self.next_tick {
            self.core.handle_tick(self.now);
            self.next_tick = self.core.next_tick(self.now);
        }
        for at in 0..self.clients.len() {
            self.client_acts(at);
        }
        let first = self.rng.below(self.links.len());
        for at in (0..self.links.len()).map(|at| (at + first) % self.links.len()).collect::<Vec<_>>() {
            if matches!(self.links[at].far, Far::Server(_)) {
                self.server_acts(at);
            }
            self.collect();
            self.move_link(at);
        }
        self.collect();
    }

    /// Takes what the core wants done.
    fn collect(&mut self) {
        while let Some(key) = self.core.poll_dirty() {
            let at = self.link_of(key);
            self.links[at].dirty = self.links[at].state == State::Open;
        }
        while let Some(action) = self.core.poll_action() {
            self.trace.on_action(&action, self.now);
            match action {
                Action::Connect { conn, address, .. } => self.connect_server(conn, usize::from(address.port()) - 1),
                Action::Report(Sign::Lost { server, at }) => {
                    let server = server.as_str()[1..].parse().unwrap();
                    self.probes.on_lost(server, at, self.now, &mut self.rng);
                }
                Action::Blame { .. } | Action::Report(_) => {}
                Action::Read { .. } | Action::Cut { .. } => unreachable!("only for HTTP/1.1"),
                Action::Close { conn } => {
                    let at = self.link_of(conn);
                    let until = self.now + Duration::from_secs(1);
                    self.links[at].begin_close(&mut self.core, until);
                }
            }
        }
    }

    fn link_of(&self, key: ConnKey) -> usize {
        self.links.iter().rposition(|link| link.key == key).expect("a connection the core was told of")
    }

    fn connect_server(&mut self, key: ConnKey, server: usize) {
        self.probes.on_connect(server, self.now);
        let max = self.rng.pick(&[1, 2, 5, 100, 100]);
        let window = self.rng.pick(&[0, 100, 65_535, 65_535, 1 << 20]);
        let end = End::server(&[(MAX_STREAMS, max), (INITIAL_WINDOW, window)]);
        let at = self.now + Duration::from_millis(self.rng.below(30) as u64);
        let at = if self.servers[server].is_hung { self.now + Duration::from_secs(60) } else { at };
        let state = State::Connecting { at, refused: self.servers[server].is_down };
        self.links.push(Link::new(key, Far::Server(server), end, state, self.now, &mut self.rng));
    }

    fn move_link(&mut self, at: usize) {
        let now = self.now;
        match self.links[at].state {
            State::Gone => {}
            State::Connecting { at: open_at, .. } if now < open_at => {}
            State::Connecting { refused: true, .. } => {
                self.links[at].kill(&mut self.core, Ended::Unreachable, now);
                self.last_move = now;
            }
            State::Connecting { .. } => {
                self.links[at].state = State::Open;
                self.core.handle_established(self.links[at].key, Protocol::Http2, now);
                self.last_move = now;
            }
            State::Open => self.move_bytes(at),
            State::Closing { until } => {
                let (_, events) = self.links[at].deliver(&mut self.core, usize::MAX, now, &mut self.trace);
                self.see(at, events);
                // The other side may not have heard yet.
                let piece = self.piece();
                self.links[at].feed(&mut self.core, piece, now);
                if self.links[at].has_delivered() || now >= until {
                    self.lose(at);
                }
            }
        }
    }

    fn move_bytes(&mut self, at: usize) {
        let now = self.now;
        for _ in 0..self.rng.between(1, 4) {
            if !self.links[at].is_open() {
                return;
            }
            let piece = self.piece();
            let moved = match self.rng.below(3) {
                0 => self.links[at].feed(&mut self.core, piece, now),
                1 => self.links[at].drain(&mut self.core),
                _ => {
                    let (n, events) = self.links[at].deliver(&mut self.core, piece, now, &mut self.trace);
                    self.see(at, events);
                    n
                }
            };
            if moved > 0 {
                self.last_move = now;
            }
            self.collect();
        }
    }

    fn piece(&mut self) -> usize {
        // Small pieces for a while, then it has to go on.
        let max = if self.rounds > 300 { self.piece_max.max(20_000) } else { self.piece_max };
        self.rng.between(1, max)
    }

    fn see(&mut self, at: usize, events: Vec<Event>) {
        for event in events {
            self.last_progress = self.now;
            match self.links[at].far {
                Far::Client(_) => self.client_sees(at, event),
                Far::Server(_) => self.server_sees(at, event),
            }
        }
    }

    /// A connection ends for both sides.
    fn lose(&mut self, at: usize) {
        self.links[at].kill(&mut self.core, Ended::Lost, self.now);
        self.last_move = self.now;
        match self.links[at].far {
            Far::Client(client) => {
                for id in std::mem::take(&mut self.clients[client].active) {
                    self.requests[id].outcome.get_or_insert(Outcome::Lost);
                }
                self.clients[client].link = None;
                if self.clients[client].left > 0 {
                    self.connect_client(client);
                }
            }
            Far::Server(_) => {
                let gone: Vec<_> = self.work.iter().copied().filter(|&(id, n)| self.requests[id].answers[n].link == at).collect();
                for (id, answer) in gone {
                    self.stop(id, answer);
                }
            }
        }
    }

    fn break_something(&mut self) {
        if self.drain_at == Some(self.rounds) {
            self.drain_at = None;
            self.is_draining = true;
            self.core.begin_drain(self.now);
        }
        if !self.rng.per_mille(self.breaks) {
            return;
        }
        let (at, server) = (self.rng.below(self.links.len()), self.rng.below(self.servers.len()));
        let is_server = matches!(self.links[at].far, Far::Server(_));
        let pause = Duration::from_millis(self.rng.pick(&[50, 500, 3_000, 9_000]));
        match self.rng.below(10) {
            0 | 1 if self.links[at].is_open() => self.lose(at),
            2 | 3 if is_server && self.links[at].is_open() && self.links[at].goaway.is_none() => self.server_goes_away(at),
            4 => self.servers[server].is_down ^= true,
            5 => self.servers[server].is_hung ^= true,
            6 => self.links[at].stalled_until = self.now + pause,
            7 => self.links[at].delayed_until = self.now + pause.min(Duration::from_millis(500)),
            8 => {
                let down: Vec<_> =
                    (0..self.links.len()).filter(|&at| self.links[at].far == Far::Server(server) && self.links[at].is_open()).collect();
                self.servers[server].is_down = true;
                down.into_iter().for_each(|at| self.lose(at));
            }
            _ if self.rng.percent(20) => self.now += Duration::from_millis(self.rng.below(5_000) as u64),
            _ => {}
        }
    }

    fn calm_down(&mut self) {
        self.is_chaos = false;
        self.last_progress = self.now;
        for server in &mut self.servers {
            (server.is_down, server.is_hung) = (false, false);
        }
        for link in &mut self.links {
            (link.stalled_until, link.delayed_until) = (self.now, self.now);
            if matches!(link.state, State::Connecting { .. }) {
                link.state = State::Connecting { at: self.now, refused: false };
            }
        }
    }

    /// Lets every wire run empty.
    fn settle(&mut self) {
        for round in 0.. {
            self.round();
            if self.links.iter().all(|link| !link.is_open() || link.is_quiet()) {
                return;
            }
            assert!(round < 20_000, "the wires never run empty");
        }
    }

    fn check_requests(&self) {
        for (id, request) in self.requests.iter().enumerate() {
            let asked = request.answers.iter().filter(|answer| !answer.void).count();
            // What only reads may be asked for once more when its server is gone, and may always be sent again.
            let is_read = ["GET", "HEAD"].contains(&request.method) && !request.is_watch && request.body == 0;
            assert!(asked <= 1 + usize::from(is_read), "request {id} was given to {asked} servers: {request:?}");
            if let Some(Outcome::Refused { retriable: true, .. }) = request.outcome
                && !is_read
            {
                assert_eq!(asked, 0, "request {id}: Retry-After though a server got it: {request:?}");
            }
            assert!(request.outcome.is_some(), "request {id} never ended");
            let is_harmless = self.cancels + self.faults + self.breaks == 0 && !self.is_draining;
            // One connection for all, or little at a time on each, can be so slow that a request waits too long.
            let is_slow = self.limits.server_conns == 1 || self.limits.out_high < 20_000;
            let is_late = is_slow && matches!(request.outcome, Some(Outcome::Refused { status: 503 | 504, .. }));
            if is_harmless && !is_late {
                assert_eq!(request.outcome, Some(Outcome::Complete), "request {id}: {request:?}");
            }
        }
    }

    /// All requests are over, and no table has anything of them: their clients are still there, so nothing else has taken it away.
    fn check_tables(&mut self) {
        let deadline = self.now + Duration::from_secs(70);
        while (self.core.in_use().1, self.core.leftovers()) != (0, [0; 9]) {
            self.round();
            assert!(self.now < deadline, "exchanges {}, leftovers {:?}", self.core.in_use().1, self.core.leftovers());
        }
    }

    /// Every window the core granted on a connection is back, but for the last quarter.
    fn check_windows(&self) {
        for link in self.links.iter().filter(|link| link.is_open() && link.is_quiet()) {
            let granted = i64::from(self.limits.connection_window);
            assert!(link.end.send_window > granted - granted / 4, "{:?}: {} left of {granted}", link.far, link.end.send_window);
            assert!(link.end.all_settings_acked(), "{:?}: SETTINGS not acknowledged", link.far);
        }
        let counters = self.core.counters();
        assert!(counters.body_copied <= counters.body_received, "{counters:?}");
        let all_complete = self.requests.iter().all(|request| {
            let whole = request.answers.iter().all(|answer| answer.is_ended && answer.is_upload_done);
            request.outcome == Some(Outcome::Complete) && whole
        });
        if all_complete {
            assert_eq!(counters.body_copied, counters.body_received);
        }
    }

    /// The core knows to the byte what it may send: a response as large as a client's whole connection window arrives.
    fn probe_windows(&mut self) {
        // A server that was down is tried again.
        let rested = self.now + self.limits.server_backoff;
        while self.now < rested {
            self.round();
        }
        for at in 0..self.clients.len() {
            let Some(link) = self.clients[at].link.filter(|&link| self.links[link].is_open()) else { continue };
            if self.links[link].end.core_goaway.is_some() || self.is_draining {
                continue;
            }
            self.probe = Some(self.links[link].end.recv_window as u64);
            let id = self.ask_probe(at, link);
            self.last_progress = self.now;
            while self.requests[id].outcome.is_none() {
                self.round();
                assert!(self.now - self.last_progress < STUCK, "window lost: {} left", self.links[link].end.recv_window);
            }
            // It had been idle for so long that a GOAWAY crossed what it asked for.
            let is_passed_over = self.links[link].end.core_goaway.is_some_and(|last| last < self.requests[id].stream);
            if !is_passed_over {
                assert_eq!((self.requests[id].outcome, self.links[link].end.recv_window), (Some(Outcome::Complete), 0));
            }
            self.links[link].end.grant(0, 65_535);
            self.probe = None;
        }
    }

    /// Everyone leaves; the core must be empty soon.
    fn end(&mut self) {
        for at in 0..self.links.len() {
            if matches!(self.links[at].far, Far::Client(_)) && self.links[at].is_open() {
                self.lose(at);
            }
        }
        let (_, exchanges, _) = self.core.in_use();
        assert_eq!(exchanges, 0, "exchanges without clients");
        let deadline = self.now + Duration::from_secs(70);
        while self.core.in_use() != (0, 0, 0) {
            self.round();
            assert!(self.now < deadline, "in use: {:?}", self.core.in_use());
        }
        self.collect();
        assert_eq!(self.core.leftovers(), [0; 9], "of requests that are over");
        assert!(!self.is_draining || self.core.is_drained());
    }

    fn report(&self) -> String {
        let open: Vec<_> = self.clients.iter().flat_map(|client| &client.active).map(|&id| (id, &self.requests[id])).collect();
        let links: Vec<_> = self.links.iter().filter(|link| link.state != State::Gone).map(|link| (link.far, link.state)).collect();
        format!("{open:#?}\n{links:?}\n{:?} work {:?}", self.core.in_use(), self.work)
    }
}

fn random_limits(rng: &mut Rng) -> Limits {
    Limits {
        connection_window: rng.pick(&[100_000, 1 << 20, 16 << 20]),
        out_high: rng.pick(&[1_000, 20_000, 128 * 1_024]),
        retry_body: rng.pick(&[0, 1_000, 64 * 1_024]),
        server_conns: rng.pick(&[1, 3, 256]),
        ..Limits::default()
    }
}
