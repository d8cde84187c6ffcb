//! What was asked and what was answered: the truth that both ends are checked against.

use std::time::Instant;

use super::rng::Rng;

/// What a request asks for, by who serves it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Wanted {
    Local,
    Peers,
    Both,
    Unknown,
}

/// How a request ended at the client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// A server's response, to its end.
    Complete,
    /// An answer of the proxy itself.
    Refused { status: u16, retriable: bool },
    /// The core reset the stream.
    Reset(u32),
    /// The client did.
    Cancelled,
    /// The client's connection ended first.
    Lost,
}

/// What goes wrong with one answer, and when.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    Refuse,
    ResetAt {
        sent: u64,
        code: u32,
    },
    /// Ends before its content-length.
    EndsShort,
    NeverAnswers,
}

/// One arrival of a request at a server.
#[derive(Debug)]
pub struct Answer {
    pub link: usize,
    pub stream: u32,
    /// Refused, or above the last id of a GOAWAY: it does not count as asked.
    pub void: bool,
    pub dead: bool,
    pub not_before: Instant,
    pub interim: usize,
    pub status: &'static str,
    pub has_length: bool,
    pub trailers: bool,
    pub body: u64,
    pub waits_for_upload: bool,
    pub resets_upload: bool,
    pub fault: Option<Fault>,
    pub is_head_sent: bool,
    pub sent: u64,
    pub is_ended: bool,
    pub uploaded: u64,
    pub is_upload_done: bool,
}

/// A request as its client made it.
#[derive(Debug)]
pub struct Request {
    pub client: usize,
    pub link: usize,
    pub stream: u32,
    pub method: &'static str,
    pub wanted: Wanted,
    pub is_watch: bool,
    pub body: u64,
    pub sent: u64,
    pub has_length: bool,
    pub trailers: bool,
    pub pads: bool,
    pub is_sent: bool,
    pub cancel_at: Option<Instant>,
    pub interims: usize,
    pub status: Option<u16>,
    pub answered_by: Option<usize>,
    pub is_retriable: bool,
    pub received: u64,
    pub outcome: Option<Outcome>,
    pub answers: Vec<Answer>,
}

impl Request {
    pub fn random(client: usize, link: usize, body_max: u64, rng: &mut Rng) -> Self {
        let wanted = rng.pick(&[Wanted::Local, Wanted::Peers, Wanted::Both, Wanted::Both, Wanted::Unknown]);
        let is_watch = rng.percent(12);
        let method = if is_watch { "GET" } else { rng.pick(&["GET", "GET", "POST", "POST", "PUT", "HEAD"]) };
        let body = if matches!(method, "POST" | "PUT") { body_len(body_max, rng) } else { 0 };
        Self {
            client,
            link,
            stream: 0,
            method,
            wanted,
            is_watch,
            body,
            sent: 0,
            has_length: rng.percent(60),
            trailers: body > 0 && rng.percent(15),
            pads: rng.percent(15),
            is_sent: false,
            cancel_at: None,
            interims: 0,
            status: None,
            answered_by: None,
            is_retriable: false,
            received: 0,
            outcome: None,
            answers: Vec::new(),
        }
    }

    pub fn path(&self, id: usize) -> String {
        let resource = match self.wanted {
            Wanted::Local => "mine",
            Wanted::Peers => "theirs",
            Wanted::Both => "both",
            Wanted::Unknown => "unknown",
        };
        let watch = if self.is_watch { "&watch=1" } else { "" };
        format!("/apis/g/v1/{resource}?id={id}{watch}")
    }
}

/// Names the body of a request.
pub fn upload(id: usize) -> u64 {
    id as u64 * 64
}

/// Names the body of an answer.
pub fn download(id: usize, answer: usize) -> u64 {
    id as u64 * 64 + 1 + answer as u64
}

/// Mostly small, sometimes at the edges, sometimes large.
pub fn body_len(max: u64, rng: &mut Rng) -> u64 {
    let edges = [0, 1, 16_375, 16_376, 16_384, 65_535, 65_536, 65_537];
    let len = match rng.below(10) {
        0..=4 => rng.below(3_000) as u64,
        5 | 6 => rng.below(40_000) as u64,
        7 => edges[rng.below(edges.len())],
        _ => rng.below(300 * 1_024) as u64,
    };
    len.min(max)
}
