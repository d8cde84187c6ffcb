//! Our side: a core with connections of the test's.

use engine::core::Protocol;
use engine::{Limits, Rate};

use super::outcome::{Message, Outcome, told};
use super::pieces::*;
use super::script::Step;
use super::yard::Yard;

fn limits() -> Limits {
    // Floods are tests/floods.rs' matter.
    let endless = Rate { burst: 100_000, per_second: 1 };
    Limits { client_resets: endless, server_resets: endless, idle_frames: endless, ..Limits::default() }
}

/// The core as a server: the script is its client.
pub struct Server {
    yard: Yard,
    client: usize,
}

impl Server {
    pub fn new() -> Self {
        let mut yard = Yard::with(limits(), false, true);
        yard.keeps = true;
        let client = yard.accept(Protocol::Http2).unwrap();
        yard.deliver(client, usize::MAX);
        Self { yard, client }
    }

    pub fn take(&mut self, step: &Step, outcome: &mut Outcome) {
        if self.yard.wires[self.client].is_open {
            self.yard.wires[self.client].pending.extend_from_slice(&step.bytes);
            self.yard.deliver(self.client, usize::MAX);
        }
        while self.answer() {}
        let servers = self.yard.wires.iter().filter(|wire| !wire.is_client).flat_map(|wire| &wire.checker.streams);
        let checker = &self.yard.wires[self.client].checker;
        outcome.update(servers.map(message), &checker.resets, checker.goaway.filter(|&code| code != 0));
    }

    /// Lets the server answer one request that is due.
    fn answer(&mut self) -> bool {
        for at in 0..self.yard.wires.len() {
            let wire = &mut self.yard.wires[at];
            if wire.is_client || !wire.is_open {
                continue;
            }
            let due = |stream: &&mut super::checker::Stream| {
                let path = told(&stream.fields, ":path").unwrap_or_default();
                !stream.answered && !stream.is_cut && (path.ends_with("early") || stream.is_over && !path.ends_with("never"))
            };
            let Some(stream) = wire.checker.streams.iter_mut().find(due) else { continue };
            (stream.answered, stream.ended) = (true, true);
            let id = stream.id;
            put_frame(&mut wire.pending, HEADERS, END_HEADERS | END_STREAM, id, b"\x88");
            self.yard.deliver(at, usize::MAX);
            return true;
        }
        false
    }
}

/// The core as a client: the script is its server, and a client asks through it.
pub struct Client {
    yard: Yard,
    client: usize,
    server: Option<usize>,
}

impl Client {
    /// Three requests, the second a HEAD, the third with a body that is not complete.
    pub fn new() -> Self {
        let mut yard = Yard::with(limits(), true, false);
        yard.keeps = true;
        let client = yard.accept(Protocol::Http2).unwrap();
        for (id, method) in [(1, "GET"), (3, "HEAD"), (5, "POST")] {
            let path = super::script::path(id, "never");
            let fields = [(":method", method), (":scheme", "https"), (":path", path.as_str()), (":authority", "k")];
            let end = if method == "POST" { 0 } else { END_STREAM };
            let block = super::script::block(&fields, super::script::Literal::Plain);
            let wire = &mut yard.wires[client];
            put_frame(&mut wire.pending, HEADERS, END_HEADERS | end, id, &block);
            wire.checker.grant(id, 0);
            wire.checker.stream(id).unwrap().is_bodiless = method == "HEAD";
        }
        yard.deliver(client, usize::MAX);
        let server = yard.nth(false, 0);
        // The script says its SETTINGS itself.
        yard.wires[server.unwrap()].pending.clear();
        Self { yard, client, server }
    }

    pub fn take(&mut self, step: &Step, outcome: &mut Outcome) {
        let server = self.server.unwrap();
        if self.yard.wires[server].is_open {
            self.yard.wires[server].pending.extend_from_slice(&step.bytes);
            self.yard.deliver(server, usize::MAX);
        }
        let answers = self.yard.wires[self.client].checker.streams.iter();
        // Answers that the core makes itself are no server's.
        let own = ("cache-control".to_owned(), "no-cache, private".to_owned());
        let answers =
            answers.map(|stream| (stream.id.to_string(), message(stream).1)).filter(|(_, message)| !message.fields.contains(&own));
        let checker = &self.yard.wires[server].checker;
        outcome.update(answers, &checker.resets, checker.goaway.filter(|&code| code != 0));
    }
}

fn message(stream: &super::checker::Stream) -> (String, Message) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut fields: Vec<_> = stream.fields.iter().map(|(name, value)| (text(name), text(value))).collect();
    fields.sort();
    let never = stream.never.iter().map(|name| text(name)).collect();
    (
        told(&stream.fields, ":path").unwrap_or_default(),
        Message { fields, body: stream.body.clone(), is_whole: stream.is_over && !stream.is_cut, never },
    )
}
