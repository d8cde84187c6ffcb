//! What fake servers do with requests, well or badly; and what they check of them.

use std::time::Duration;

use super::body;
use super::end::{Event, HeadStyle, MAX_STREAMS};
use super::link::Far;
use super::request::{Answer, Fault, Wanted, body_len, download, upload};
use super::world::World;

/// A fake apiserver; number 0 is local.
#[derive(Debug)]
pub struct Server {
    pub is_down: bool,
    /// Accepts, and then says nothing.
    pub is_hung: bool,
    pub serves_theirs: bool,
}

impl World {
    pub fn server_acts(&mut self, link: usize) {
        if !self.links[link].is_open() || self.now < self.links[link].stalled_until {
            return;
        }
        let mine: Vec<_> = self.work.iter().copied().filter(|&(id, answer)| self.requests[id].answers[answer].link == link).collect();
        for (id, answer) in mine {
            self.answer(id, answer);
        }
        if self.is_chaos && self.rng.per_mille(10) {
            let limit = self.rng.between(1, 100) as u32;
            self.links[link].end.settings(&[(MAX_STREAMS, limit)]);
        }
        if self.rng.percent(50) {
            let generous = !self.is_chaos || self.rounds > 200;
            self.links[link].grant(generous, false);
        }
    }

    /// One step of one answer.
    fn answer(&mut self, id: usize, at: usize) {
        let is_head = self.requests[id].method == "HEAD";
        let is_watch = self.requests[id].is_watch;
        let answer = &mut self.requests[id].answers[at];
        // A watch has no time limit: it is answered at last.
        let never = answer.fault == Some(Fault::NeverAnswers) && (self.is_chaos || !is_watch);
        if answer.not_before > self.now || never {
            return;
        }
        let (end, stream) = (&mut self.links[answer.link].end, answer.stream);
        let resets = match answer.fault {
            Some(Fault::Refuse) => Some(7),
            Some(Fault::ResetAt { sent, code }) if answer.sent >= sent => Some(code),
            _ => None,
        };
        if let Some(code) = resets {
            answer.void = answer.fault == Some(Fault::Refuse);
            end.reset(stream, code);
            return self.stop(id, at);
        }
        if answer.is_ended {
            return;
        }
        if !answer.is_head_sent {
            if answer.waits_for_upload && !answer.is_upload_done {
                return;
            }
            return self.answer_head(id, at);
        }
        let left = answer.body - answer.sent;
        if is_watch && self.is_chaos && left < 100 {
            return;
        }
        let piece = self.rng.pick(&[1, 700, 20_000]);
        let n = if is_head { 0 } else { end.room(stream).min(left as usize).min(self.rng.between(1, piece)) };
        let short = answer.fault == Some(Fault::EndsShort);
        let last = is_head || n as u64 == left || (short && answer.sent > 0);
        if n == 0 && !last {
            return;
        }
        let bytes = body::bytes(download(id, at), answer.sent, n);
        answer.sent += n as u64;
        if last && answer.trailers && !short {
            if n > 0 {
                end.data(stream, bytes, false, None);
            }
            end.headers(stream, &[("x-sim-trailer", "down")], true, HeadStyle::default());
        } else {
            let padding = (end.room(stream) > n + 30 && self.rng.percent(5)).then_some(20);
            end.data(stream, bytes, last, padding);
        }
        if last {
            self.end_answer(id, at);
        }
    }

    fn answer_head(&mut self, id: usize, at: usize) {
        let is_head = self.requests[id].method == "HEAD";
        let answer = &mut self.requests[id].answers[at];
        let (end, stream) = (&mut self.links[answer.link].end, answer.stream);
        let (id_text, at_text, length) = (id.to_string(), at.to_string(), answer.body.to_string());
        let mut fields = vec![(":status", answer.status), ("x-sim-id", id_text.as_str()), ("x-sim-answer", at_text.as_str())];
        let style =
            HeadStyle { parts: if self.rng.percent(10) { 3 } else { 1 }, padding: self.rng.percent(5).then_some(3), priority: false };
        if answer.interim > 0 {
            answer.interim -= 1;
            fields[0].1 = "103";
            end.headers(stream, &fields, false, style);
            return;
        }
        if answer.has_length {
            fields.push(("content-length", &length));
        }
        let over = (is_head || answer.body == 0) && !answer.trailers && answer.fault.is_none() && self.rng.percent(80);
        end.headers(stream, &fields, over, style);
        answer.is_head_sent = true;
        if over {
            self.end_answer(id, at);
        }
    }

    fn end_answer(&mut self, id: usize, at: usize) {
        let answer = &mut self.requests[id].answers[at];
        answer.is_ended = answer.fault != Some(Fault::EndsShort);
        if !answer.is_upload_done && answer.resets_upload {
            self.links[answer.link].end.reset(answer.stream, 0);
            return self.stop(id, at);
        }
        if answer.is_upload_done || !answer.is_ended {
            self.stop(id, at);
        }
    }

    /// The server has nothing more to do with it.
    pub fn stop(&mut self, id: usize, at: usize) {
        self.requests[id].answers[at].dead = true;
        self.work.retain(|&work| work != (id, at));
    }

    pub fn server_sees(&mut self, link: usize, event: Event) {
        let find = |world: &Self, stream: u32| {
            let is = |&&(id, at): &&(usize, usize)| {
                let answer = &world.requests[id].answers[at];
                answer.link == link && answer.stream == stream
            };
            world.work.iter().find(is).copied()
        };
        match event {
            Event::Head { stream, fields, end } => self.on_request(link, stream, &fields, end),
            Event::Data { stream, bytes, end } => {
                let Some((id, at)) = find(self, stream) else { return };
                let answer = &mut self.requests[id].answers[at];
                assert!(body::is(upload(id), answer.uploaded, &bytes), "request {id}: wrong upload at {}", answer.uploaded);
                answer.uploaded += bytes.len() as u64;
                if end {
                    self.on_upload_end(id, at, false);
                }
            }
            Event::Trailers { stream, fields } => {
                let Some((id, at)) = find(self, stream) else { return };
                assert_eq!(fields, [("x-sim-trailer".to_owned(), "up".to_owned())]);
                self.on_upload_end(id, at, true);
            }
            Event::Reset { stream, code } => {
                let Some((id, at)) = find(self, stream) else { return };
                let short = self.requests[id].answers[at].fault == Some(Fault::EndsShort);
                assert!(code == 8 || (short && code == 1), "request {id}: reset with {code}");
                self.stop(id, at);
            }
            Event::GoAway { code, .. } => assert_eq!(code, 0, "GOAWAY to a server that keeps the rules"),
        }
    }

    fn on_upload_end(&mut self, id: usize, at: usize, trailers: bool) {
        let request = &mut self.requests[id];
        assert!(request.is_sent, "request {id}: an end the client did not send");
        assert_eq!((request.answers[at].uploaded, trailers), (request.body, request.trailers), "request {id}: upload");
        request.answers[at].is_upload_done = true;
        if request.answers[at].is_ended {
            self.stop(id, at);
        }
    }

    fn on_request(&mut self, link: usize, stream: u32, fields: &[(String, String)], end: bool) {
        let value = |name: &str| fields.iter().find(|(n, _)| n == name).map(|(_, value)| value.as_str());
        let id: usize = value("x-sim-id").unwrap().parse().unwrap();
        let Far::Server(server) = self.links[link].far else { panic!("a client got a request") };
        let request = &self.requests[id];
        assert_eq!((value(":method"), value(":path")), (Some(request.method), Some(request.path(id).as_str())));
        let markers: Vec<_> =
            fields.iter().filter(|(name, _)| name == "x-kubernetes-peer-proxied").map(|(_, value)| value.as_str()).collect();
        assert_eq!(markers, if server == 0 { vec![] } else { vec!["true"] }, "loop marker");
        assert!(!fields.iter().any(|(name, _)| name.starts_with("x-remote") || name.starts_with("x_remote")), "spoofed identity");
        match request.wanted {
            Wanted::Local | Wanted::Unknown => assert_eq!(server, 0),
            Wanted::Peers => assert!(self.servers[server].serves_theirs && server > 0),
            Wanted::Both => {}
        }
        let lane = self.links[link].is_watch_lane.get_or_insert(request.is_watch);
        assert_eq!(*lane, request.is_watch, "watches and short requests share a connection");
        if self.links[link].goaway.is_some_and(|last| stream > last) {
            return;
        }
        let mut answer = self.random_answer(id, link, stream);
        answer.is_upload_done = end;
        if end {
            assert!(self.requests[id].is_sent && self.requests[id].body == 0);
        }
        self.requests[id].answers.push(answer);
        self.work.push((id, self.requests[id].answers.len() - 1));
    }

    fn random_answer(&mut self, id: usize, link: usize, stream: u32) -> Answer {
        let (now, body_max) = (self.now, self.body_max);
        let is_head = self.requests[id].method == "HEAD";
        let rng = &mut self.rng;
        let body = self.probe.unwrap_or_else(|| body_len(body_max, rng));
        let faulty = self.is_chaos && rng.percent(self.faults);
        let fault = faulty.then(|| match rng.below(10) {
            0..=2 => Fault::Refuse,
            3..=6 => Fault::ResetAt { sent: rng.below(body as usize + 1) as u64, code: rng.pick(&[0, 1, 2, 7, 8, 11, 13]) },
            7 | 8 => Fault::EndsShort,
            _ => Fault::NeverAnswers,
        });
        let (fault, body) = match fault {
            Some(Fault::EndsShort) if is_head => (None, body),
            Some(Fault::EndsShort) => (fault, body + 70_000),
            Some(Fault::ResetAt { code: 7, sent: 0 }) => (Some(Fault::Refuse), body),
            Some(Fault::NeverAnswers) if rng.percent(70) => (None, body),
            fault => (fault, body),
        };
        Answer {
            link,
            stream,
            void: false,
            dead: false,
            not_before: now + Duration::from_millis(rng.pick(&[0, 0, 3, 50])),
            interim: if rng.percent(10) { rng.between(1, 3) } else { 0 },
            status: rng.pick(&["200", "200", "201", "404", "500"]),
            has_length: fault == Some(Fault::EndsShort) || rng.percent(50),
            trailers: !is_head && rng.percent(15),
            body,
            waits_for_upload: rng.percent(70),
            resets_upload: rng.percent(50),
            fault,
            is_head_sent: false,
            sent: 0,
            is_ended: false,
            uploaded: 0,
            is_upload_done: false,
        }
    }

    /// GOAWAY: what it has begun to answer it finishes, and of the rest perhaps some.
    pub fn server_goes_away(&mut self, link: usize) {
        let mut last = self.rng.between(0, 2) as u32;
        let mut above = Vec::new();
        for &(id, at) in &self.work {
            let answer = &self.requests[id].answers[at];
            if answer.link == link && (answer.is_head_sent || answer.interim < 1 && self.rng.percent(40)) {
                last = last.max(answer.stream);
            }
        }
        for request in &self.requests {
            for answer in request.answers.iter().filter(|answer| answer.link == link && answer.dead) {
                last = last.max(answer.stream);
            }
        }
        for &(id, at) in &self.work {
            let answer = &self.requests[id].answers[at];
            if answer.link == link && answer.stream > last {
                above.push((id, at));
            }
        }
        for (id, at) in above {
            self.requests[id].answers[at].void = true;
            self.stop(id, at);
        }
        self.links[link].goaway = Some(last);
        self.links[link].end.goaway(last, 0);
    }
}
