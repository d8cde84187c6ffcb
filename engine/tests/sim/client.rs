//! What fake clients do: ask, upload, read, change their minds; and what they check of every response.

use std::time::Duration;

use super::body;
use super::end::{Event, HeadStyle, INITIAL_WINDOW};
use super::request::{Outcome, Request, Wanted, download, upload};
use super::world::World;

/// A fake client: one connection after the other.
#[derive(Debug)]
pub struct Client {
    pub link: Option<usize>,
    pub left: usize,
    pub concurrency: usize,
    pub active: Vec<usize>,
}

impl World {
    pub fn client_acts(&mut self, at: usize) {
        let Some(link) = self.clients[at].link.filter(|&link| self.links[link].is_open()) else { return };
        if self.links[link].end.core_goaway.is_some() {
            // It may not open streams here any more.
            self.clients[at].left = 0;
        }
        let busy = self.clients[at].active.len();
        if self.clients[at].left > 0 && busy < self.clients[at].concurrency && self.rng.percent(60) {
            self.clients[at].left -= 1;
            self.ask(at, link);
        }
        if self.now < self.links[link].stalled_until {
            return;
        }
        for id in self.clients[at].active.clone() {
            self.upload(id);
        }
        if self.is_chaos && self.rng.per_mille(20) {
            let window = self.rng.pick(&[0, 1, 100, 65_535, 1 << 20]);
            self.links[link].end.settings(&[(INITIAL_WINDOW, window)]);
        }
        if self.rng.percent(50) {
            let generous = !self.is_chaos || self.rounds > 200;
            self.links[link].grant(generous, self.probe.is_some());
        }
    }

    fn ask(&mut self, client: usize, link: usize) {
        let id = self.requests.len();
        let mut request = Request::random(client, link, self.body_max, &mut self.rng);
        if self.is_chaos && self.rng.percent(self.cancels) {
            request.cancel_at = Some(self.now + Duration::from_millis(self.rng.below(600) as u64));
        }
        let (path, text, length) = (request.path(id), id.to_string(), request.body.to_string());
        let mut fields =
            vec![(":method", request.method), (":scheme", "https"), (":authority", "sim"), (":path", path.as_str()), ("x-sim-id", &text)];
        let end = request.body == 0 && self.rng.percent(90);
        if request.has_length && (request.body > 0 || !end) {
            fields.push(("content-length", &length));
        }
        if self.rng.percent(15) {
            let spoofs = [("x-remote-user", "admin"), ("x-kubernetes-peer-proxied", "true"), ("x_remote_group", "system:masters")];
            fields.push(self.rng.pick(&spoofs));
        }
        let big = "b".repeat(if self.rng.percent(2) { 40_000 } else { self.rng.below(100) });
        fields.push(("x-big", &big));
        let style = HeadStyle {
            parts: 1 + big.len() / 10_000 + if self.rng.percent(20) { self.rng.between(1, 3) } else { 0 },
            padding: self.rng.percent(10).then_some(9),
            priority: self.rng.percent(10),
        };
        request.stream = self.links[link].end.open(&fields, end, style);
        request.is_sent = end;
        self.requests.push(request);
        self.clients[client].active.push(id);
    }

    /// A plain GET of what is everywhere.
    pub fn ask_probe(&mut self, client: usize, link: usize) -> usize {
        let id = self.requests.len();
        let mut request = Request::random(client, link, 0, &mut self.rng);
        (request.method, request.wanted, request.is_watch, request.is_sent) = ("GET", Wanted::Both, false, true);
        let (path, text) = (request.path(id), id.to_string());
        let fields = [(":method", "GET"), (":scheme", "https"), (":authority", "sim"), (":path", &path), ("x-sim-id", &text)];
        request.stream = self.links[link].end.open(&fields, true, HeadStyle::default());
        self.requests.push(request);
        self.clients[client].active.push(id);
        id
    }

    /// Sends a piece of a body, or cancels.
    fn upload(&mut self, id: usize) {
        let request = &mut self.requests[id];
        let (end, stream) = (&mut self.links[request.link].end, request.stream);
        if request.outcome.is_some() && (request.is_sent || !end.streams[&stream].is_open()) {
            // It was answered before the upload was complete, and now that is over too.
            self.clients[request.client].active.retain(|&active| active != id);
            return;
        }
        if request.cancel_at.is_some_and(|at| at <= self.now) {
            end.reset(stream, self.rng.pick(&[8, 8, 0, 2]));
            if request.outcome.is_none() {
                self.finish(id, Outcome::Cancelled);
            }
            return;
        }
        if request.is_sent || self.rng.percent(30) {
            return;
        }
        let left = request.body - request.sent;
        let padding = (request.pads && self.rng.percent(50)).then(|| self.rng.below(200) as u8);
        let extra = padding.map_or(0, |padding| usize::from(padding) + 1);
        let Some(room) = end.room(stream).checked_sub(extra) else { return };
        let piece = self.rng.pick(&[1, 500, 20_000]);
        let n = room.min(left as usize).min(self.rng.between(1, piece));
        if n == 0 && left > 0 && padding.is_none() {
            return;
        }
        let last = n as u64 == left && !request.trailers;
        if n > 0 || last || padding.is_some() {
            end.data(stream, body::bytes(upload(id), request.sent, n), last, padding);
        }
        request.sent += n as u64;
        request.is_sent = last;
        if request.trailers && request.sent == request.body {
            let fields = [("x-sim-trailer", "up"), ("x-remote-user", "spoofed")];
            end.headers(stream, &fields, true, HeadStyle::default());
            request.is_sent = true;
        }
    }

    pub fn finish(&mut self, id: usize, outcome: Outcome) {
        let request = &mut self.requests[id];
        assert!(request.outcome.is_none(), "request {id} ended twice");
        request.outcome = Some(outcome);
        if request.is_sent || !matches!(outcome, Outcome::Complete | Outcome::Refused { .. }) {
            let client = request.client;
            self.clients[client].active.retain(|&active| active != id);
        }
    }

    pub fn client_sees(&mut self, link: usize, event: Event) {
        let id_of = |world: &Self, stream: u32| {
            world.requests.iter().rposition(|request| request.link == link && request.stream == stream).expect("a stream it opened")
        };
        match event {
            Event::Head { stream, fields, end } => {
                let id = id_of(self, stream);
                self.on_response_head(id, &fields);
                if end {
                    self.on_response_end(id, None);
                }
            }
            Event::Data { stream, bytes, end } => {
                let id = id_of(self, stream);
                let request = &mut self.requests[id];
                if let Some(answer) = request.answered_by {
                    assert!(body::is(download(id, answer), request.received, &bytes), "request {id}: wrong bytes at {}", request.received);
                }
                request.received += bytes.len() as u64;
                if end {
                    self.on_response_end(id, None);
                }
            }
            Event::Trailers { stream, fields } => {
                let id = id_of(self, stream);
                self.on_response_end(id, Some(fields));
            }
            Event::Reset { stream, code } => {
                let id = id_of(self, stream);
                assert!([0, 2, 7, 8, 13].contains(&code), "request {id}: reset with {code}");
                if self.requests[id].outcome.is_none() {
                    self.finish(id, Outcome::Reset(code));
                }
            }
            Event::GoAway { code, .. } => assert_eq!(code, 0, "GOAWAY to a client that keeps the rules"),
        }
    }

    fn on_response_head(&mut self, id: usize, fields: &[(String, String)]) {
        let value = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        let status: u16 = value(":status").unwrap().parse().unwrap();
        let request = &mut self.requests[id];
        let Some(named) = value("x-sim-id") else {
            assert!(matches!(status, 503 | 504), "request {id}: status {status} of the proxy");
            assert_eq!(value("content-type"), Some("application/json"));
            assert!(value("content-length").is_some());
            request.is_retriable = value("retry-after").is_some();
            request.status = Some(status);
            return;
        };
        assert_eq!(named, id.to_string(), "another request's response");
        let answer: usize = value("x-sim-answer").unwrap().parse().unwrap();
        let truth = &request.answers[answer];
        if status < 200 {
            request.interims += 1;
            return;
        }
        assert!(!truth.void, "request {id}: a response on a refused stream");
        assert_eq!(status.to_string(), truth.status);
        request.status = Some(status);
        request.answered_by = Some(answer);
    }

    fn on_response_end(&mut self, id: usize, trailers: Option<Vec<(String, String)>>) {
        let request = &self.requests[id];
        let Some(answer) = request.answered_by else {
            let outcome = Outcome::Refused { status: request.status.expect("a head"), retriable: request.is_retriable };
            return self.finish(id, outcome);
        };
        let truth = &request.answers[answer];
        assert!(truth.is_ended, "request {id}: ended cleanly, but the server did not end it: {truth:?}");
        let length = if request.method == "HEAD" { 0 } else { truth.body };
        assert_eq!(request.received, length, "request {id}: bytes of the response");
        assert_eq!(trailers.is_some(), truth.trailers, "request {id}: trailers");
        assert!(trailers.is_none_or(|fields| fields == [("x-sim-trailer".to_owned(), "down".to_owned())]));
        self.finish(id, Outcome::Complete);
    }
}
