//! The same bytes to the core and to the h2 crate, in both roles: the same comes of them, or the difference is on the list.
//!
//! What is compared after every step: connection errors, stream errors, and messages that were handed on whole (fields, body,
//! trailers). Where the two differ the script ends, because from there on they are in different states.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "some of the harness is shared with the fuzz targets")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation, reason = "tests")]

mod allowed;
#[path = "../fuzz/checker.rs"]
mod checker;
mod oracle;
mod ours;
mod outcome;
#[path = "../fuzz/pieces.rs"]
mod pieces;
mod script;
#[path = "../fuzz/yard.rs"]
mod yard;

use std::collections::BTreeMap;

use outcome::{Message, Outcome, Verdict};
use pieces::*;
use script::*;

/// Random scripts of each role.
const SCRIPTS: u64 = 3_000;

/// Which end the script is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    /// The core and h2 are servers.
    Server,
    /// They are clients.
    Client,
}

/// What scripts came to: differences by name, and scripts without one.
#[derive(Default, Debug)]
struct Tally {
    same: usize,
    differences: BTreeMap<&'static str, usize>,
    unexplained: BTreeMap<String, String>,
}

impl Tally {
    fn run(&mut self, role: Role, steps: &[Step]) {
        match role {
            Role::Server => {
                let (mut ours, mut theirs) = (ours::Server::new(), oracle::Server::new());
                self.walk(role, steps, |step, outcome| ours.take(step, outcome), |step, outcome| theirs.take(step, outcome));
            }
            Role::Client => {
                let (mut ours, mut theirs) = (ours::Client::new(), oracle::Client::new());
                self.walk(role, steps, |step, outcome| ours.take(step, outcome), |step, outcome| theirs.take(step, outcome));
            }
        }
    }

    fn walk(&mut self, role: Role, steps: &[Step], mut ours: impl FnMut(&Step, &mut Outcome), mut theirs: impl FnMut(&Step, &mut Outcome)) {
        let (mut our, mut their) = (Outcome::default(), Outcome::default());
        for (at, step) in steps.iter().enumerate() {
            let (before, their_before) = (our.clone(), their.clone());
            ours(step, &mut our);
            theirs(step, &mut their);
            let (verdict, their_verdict) = (our.since(&before), their.since(&their_before));
            let same = verdict == their_verdict && (our.goaway.is_some() || same_messages(&our, &their));
            if !same {
                let what = match step.bytes.get(5..9) {
                    _ if role == Role::Client && at == 0 => "first-frame",
                    Some(id) if verdict == Verdict::Fine && before.resets.iter().any(|reset| reset.0.to_be_bytes() == *id) => "late",
                    _ => step.what,
                };
                match allowed::find(role, what, &verdict, &their_verdict) {
                    Some(name) => *self.differences.entry(name).or_default() += 1,
                    None => {
                        let key = format!("{role:?} {what}: ours {}, theirs {}", verdict.class(), their_verdict.class());
                        let story: Vec<_> = steps[..=at].iter().map(|step| step.what).collect();
                        let detail = format!("{story:?}\n  {:x?}\n  ours {:?}\n  theirs {:?}", step.bytes, normal(&our), normal(&their));
                        self.unexplained.entry(key).or_insert(detail);
                    }
                }
                return;
            }
            if our.goaway.is_some() {
                break;
            }
        }
        self.same += 1;
    }

    /// Every difference must have been on the list.
    fn close(self, name: &str) {
        println!("{name}: {} scripts the same, differences {:?}", self.same, self.differences);
        for (key, detail) in &self.unexplained {
            println!("{key}\n  {detail}");
        }
        assert!(self.unexplained.is_empty(), "{} differences that are not on the list", self.unexplained.len());
    }
}

/// Whole messages, without what the two sides have in different form.
fn normal(outcome: &Outcome) -> BTreeMap<&str, Message> {
    let mut whole: BTreeMap<&str, Message> = outcome.whole().into_iter().map(|(key, message)| (key, message.clone())).collect();
    for message in whole.values_mut() {
        message.fields.retain(|(name, _)| name != ":scheme" && name != ":authority" && name != "host");
    }
    whole
}

fn same_messages(ours: &Outcome, theirs: &Outcome) -> bool {
    let (mut ours, mut theirs) = (normal(ours), normal(theirs));
    // What no hop may index is not indexed here; more fields than that may be (RFC 7541 §7.1.3).
    let kept =
        theirs.iter().all(|(key, message)| ours.get(key).is_some_and(|our| message.never.iter().all(|name| our.never.contains(name))));
    ours.values_mut().chain(theirs.values_mut()).for_each(|message| message.never.clear());
    kept && ours == theirs
}

/// Ways for a stream 1 to be in each state of RFC 9113 §5.1, seen from a server.
fn server_states() -> Vec<Vec<Step>> {
    let reset = step("reset", RST_STREAM, 0, 1, &8u32.to_be_bytes());
    vec![
        vec![],
        vec![request("request", 3, "end", &[], true)],
        vec![request("request", 1, "end", &[], false)],
        vec![request("request", 1, "end", &[("content-length", "3")], false)],
        vec![request("request", 1, "end", &[], false), data(1, b"abc", false)],
        vec![request("request", 1, "early", &[], false)],
        vec![request("request", 1, "never", &[], true)],
        vec![request("request", 1, "end", &[], true)],
        vec![request("request", 1, "end", &[], false), data(1, b"abc", true)],
        vec![request("request", 1, "end", &[], false), reset],
        vec![request("request", 1, "end", &[("content-length", "9")], true)],
    ]
}

/// The same seen from a client that asked for 1, 3 (HEAD) and 5 (an upload).
fn client_states() -> Vec<Vec<Step>> {
    let hello = settings("settings", &[(3, 100)]);
    let head = |stream, fields: &[(&str, &str)], end| response("response", stream, fields, end);
    let mut states = vec![
        vec![],
        vec![hello.clone()],
        vec![hello.clone(), head(1, &[(":status", "103")], false)],
        vec![hello.clone(), head(1, &[(":status", "200")], false)],
        vec![hello.clone(), head(1, &[(":status", "200"), ("content-length", "3")], false)],
        vec![hello.clone(), head(1, &[(":status", "200")], false), data(1, b"abc", false)],
        vec![hello.clone(), head(1, &[(":status", "200")], true)],
    ];
    states.push(vec![hello.clone(), head(1, &[(":status", "200")], false), data(1, b"abc", true)]);
    states.push(vec![hello.clone(), head(1, &[(":status", "200"), ("content-length", "9")], true)]);
    states
}

#[test]
fn every_state_and_frame_as_a_server() {
    let mut tally = Tally::default();
    for state in server_states() {
        for next in frames_on(1).into_iter().chain(connection_frames()) {
            let script = [state.clone(), vec![next, request("request", 99, "end", &[("a", "b")], true)]].concat();
            tally.run(Role::Server, &script);
        }
    }
    tally.close("states as a server");
}

#[test]
fn every_state_and_frame_as_a_client() {
    let mut tally = Tally::default();
    for state in client_states() {
        for stream in [1, 3, 5, 7, 2] {
            for next in frames_on(stream) {
                tally.run(Role::Client, &[state.clone(), vec![next, data(1, b"abc", true)]].concat());
            }
        }
        // We ask for nothing before the first SETTINGS, which may allow no stream: h2 has asked by then.
        let then = if state.is_empty() { None } else { Some(response("response", 3, &[(":status", "200")], true)) };
        for next in connection_frames() {
            tally.run(Role::Client, &[state.clone(), vec![next], then.clone().into_iter().collect()].concat());
        }
    }
    tally.close("states as a client");
}

#[test]
fn every_rule_of_fields() {
    let mut tally = Tally::default();
    let target = path(1, "end");
    let head = |what, fields: &[(&str, &str)], literal| step(what, HEADERS, END_HEADERS | END_STREAM, 1, &block(fields, literal));
    let hello = settings("settings", &[]);
    for literal in [Literal::Plain, Literal::Never, Literal::Indexed] {
        for (what, fields) in request_pseudos(&target) {
            tally.run(Role::Server, &[head(what, &fields, literal), request("request", 3, "end", &[], true)]);
        }
        for (what, fields) in regular_fields() {
            let request_head = [&request_pseudos(&target)[1].1[..], &fields].concat();
            let open = step(what, HEADERS, END_HEADERS, 1, &block(&request_head, literal));
            let in_trailers = match what {
                "te" => "te-in-trailers",
                _ if what.contains("length") => "length-in-trailers",
                _ => what,
            };
            let trailers = step(in_trailers, HEADERS, END_HEADERS | END_STREAM, 1, &block(&fields, literal));
            tally.run(Role::Server, &[head(what, &request_head, literal), request("request", 3, "end", &[], true)]);
            tally.run(Role::Server, &[open, data(1, b"abc", true), request("request", 3, "end", &[], true)]);
            tally.run(Role::Server, &[request("request", 1, "end", &[], false), data(1, b"abc", false), trailers.clone()]);
            let response_head = [&[(":status", "200")][..], &fields].concat();
            let open = step(what, HEADERS, END_HEADERS, 1, &block(&response_head, literal));
            tally.run(
                Role::Client,
                &[hello.clone(), head(what, &response_head, literal), response("response", 3, &[(":status", "200")], true)],
            );
            tally.run(Role::Client, &[hello.clone(), open, data(1, b"abc", true)]);
            tally.run(Role::Client, &[hello.clone(), response("response", 1, &[(":status", "200")], false), trailers]);
        }
        for (what, fields) in response_pseudos() {
            tally.run(Role::Client, &[hello.clone(), head(what, &fields, literal), response("response", 3, &[(":status", "200")], true)]);
        }
    }
    tally.close("fields");
}

#[test]
fn content_length_against_the_body() {
    let mut tally = Tally::default();
    let hello = settings("settings", &[]);
    for length in ["0", "2", "3", "4"] {
        for bodies in [&[][..], &[&b"abc"[..]], &[b"a", b"bc"], &[b"abc", b""], &[b"abcd"]] {
            for (trailers, stream, status) in [(false, 1, "200"), (true, 1, "200"), (false, 3, "200"), (false, 1, "204"), (true, 1, "304")]
            {
                let what = if status == "200" && stream == 1 { "body" } else { "body-of-none" };
                let last = |at: usize| !trailers && at + 1 == bodies.len();
                let mut rest: Vec<_> = bodies.iter().enumerate().map(|(at, body)| data_of(what, stream, body, last(at))).collect();
                if trailers {
                    rest.push(step(what, HEADERS, END_HEADERS | END_STREAM, stream, &block(&[("t", "1")], Literal::Plain)));
                }
                let end = rest.is_empty();
                let lengths = [("content-length", length)];
                let head = step(
                    "length",
                    HEADERS,
                    END_HEADERS | u8::from(end),
                    stream,
                    &block(&[(":status", status), lengths[0]], Literal::Plain),
                );
                tally.run(Role::Client, &[vec![hello.clone(), head], rest.clone()].concat());
                tally.run(Role::Server, &[vec![request("length", stream, "end", &lengths, end)], rest].concat());
            }
        }
    }
    tally.close("content-length");
}

#[test]
fn random_scripts() {
    for role in [Role::Server, Role::Client] {
        let mut tally = Tally::default();
        for seed in 0..SCRIPTS {
            tally.run(role, &random_script(role, seed));
        }
        tally.close(&format!("random {role:?}"));
    }
}

/// Random numbers below `n`: xorshift64*.
fn chance(seed: u64) -> impl FnMut(usize) -> usize {
    let mut state = (seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move |n| {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        (state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }
}

/// Size updates, entries and references, from request to request.
#[test]
fn tables_stay_in_step() {
    let mut tally = Tally::default();
    for seed in 0..SCRIPTS / 4 {
        let (mut below, mut steps) = (chance(seed), Vec::new());
        // Sizes of the entries, newest first.
        let (mut limit, mut table) = (4_096, Vec::new());
        for stream in (1..40).step_by(2) {
            let mut head = Vec::new();
            for _ in 0..below(3) {
                let (bytes, size) = [(&b"\x20"[..], 0), (b"\x3f\x09", 40), (b"\x3f\x45", 100), (b"\x3f\xe1\x1f", 4_096)][below(4)];
                head.extend_from_slice(bytes);
                limit = size;
                evict(&mut table, limit);
            }
            let path = path(stream, "end");
            head.extend(block(&[(":method", "GET"), (":scheme", "https"), (":path", &path)], Literal::Plain));
            for _ in 0..below(5) {
                let literal = [Literal::Plain, Literal::Never, Literal::Indexed, Literal::Indexed][below(4)];
                let field = [("a", "b"), ("c", "a value that takes some room"), ("authorization", "x"), ("d", "")][below(4)];
                // One in a hundred references is to nothing.
                let entries = table.len() + usize::from(below(100) == 0);
                if below(3) == 0 && entries > 0 {
                    head.push(0xbe + below(entries) as u8);
                    continue;
                }
                head.extend(block(&[field], literal));
                if literal as u8 == Literal::Indexed as u8 {
                    table.insert(0, field.0.len() + field.1.len() + 32);
                    evict(&mut table, limit);
                }
            }
            steps.push(step("index-beyond", HEADERS, END_HEADERS | END_STREAM, stream, &head));
        }
        tally.run(Role::Server, &steps);
    }
    assert!(tally.same > 100, "too many scripts end early: {}", tally.same);
    tally.close("tables");
}

/// Drops the oldest entries until the rest fit (RFC 7541 §4.3).
fn evict(table: &mut Vec<usize>, limit: usize) {
    while table.iter().sum::<usize>() > limit {
        table.pop();
    }
}

/// Some messages, well-formed frames around them, and something that may not be.
fn random_script(role: Role, seed: u64) -> Vec<Step> {
    let mut below = chance(seed);
    let mut steps = if role == Role::Client { vec![settings("settings", &[(3, 100)])] } else { vec![] };
    let (regular, conn) = (regular_fields(), connection_frames());
    let (mut next, mut headed) = (1, Vec::new());
    for _ in 0..3 + below(6) {
        let stream = 1 + 2 * below(4) as u32;
        match (below(8), role) {
            (0..=3, Role::Server) => {
                let (what, fields) = regular[if below(4) == 0 { below(regular.len()) } else { below(5) }].clone();
                let answered = ["end", "early", "never"][below(3)];
                steps.push(request(what, next, answered, &fields, below(2) == 0));
                headed.push(next);
                next += 2;
            }
            (0..=3, Role::Client) => {
                let (what, fields) = regular[if below(4) == 0 { below(regular.len()) } else { below(5) }].clone();
                let (stream, status) = ([1, 3, 5][below(3)], ["200", "404", "103", "500"][below(4)]);
                // Behind a head only trailers may come.
                let what = if headed.contains(&stream) { "second-head" } else { what };
                let (head, end) = ([&[(":status", status)][..], &fields].concat(), below(2) == 0);
                steps.push(response(what, stream, &head, end));
                if status != "103" || end {
                    headed.push(stream);
                }
            }
            (4, _) => steps.push(conn[below(conn.len())].clone()),
            (5, _) => steps.push(data(
                if below(8) > 0 { headed.last().copied().unwrap_or(stream) } else { stream },
                &vec![b'x'; below(2_000)],
                below(2) == 0,
            )),
            _ => {
                let frames = frames_on(stream);
                steps.push(frames[below(frames.len())].clone());
            }
        }
    }
    steps
}
