//! Requests of HTTP/1.1 that were changed at random, the same for the same seed, against the reference.

use super::case::Stage;
use super::http1_run;
use super::reference::{self, Then};
use crate::support::http1::Wire;

/// What is changed: several requests on one connection, with every framing.
const SEEDS: &[&str] = &[
    "GET /a HTTP/1.1\r\nHost: k\r\nAccept: */*\r\n\r\nGET /b HTTP/1.1\r\nHost: k\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: k\r\nContent-Length: 5\r\n\r\nhelloGET /b HTTP/1.1\r\nHost: k\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\nGET /b HTTP/1.1\r\nHost: k\r\n\r\n",
    "POST /a HTTP/1.1\r\nHost: k\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nX-Sum: 1\r\n\r\nGET /b HTTP/1.1\r\nHost: k\r\n\r\n",
    "PUT https://k/a HTTP/1.1\r\nHost: k\r\nConnection: x-other\r\nX-Other: 1\r\nContent-Length: 40\r\n\r\nGET /inner HTTP/1.1\r\nHost: k\r\nA: bcd\r\n\r\nGET /b HTTP/1.1\r\nHost: k\r\n\r\n",
    "POST /a HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: 2\r\n\r\nhiGET /b HTTP/1.1\r\nHost: k\r\n\r\n",
];

/// What is put in.
const PIECES: &[&[u8]] = &[
    b"\r",
    b"\n",
    b"\r\n",
    b"\r\n\r\n",
    b" ",
    b"\t",
    b"\0",
    b"\x0b",
    b"\x7f",
    b"\xff",
    b":",
    b",",
    b";",
    b"0",
    b"5",
    b"f",
    b"-",
    b"+",
    b"%",
    b"#",
    b"/",
    b"a",
    b"0\r\n\r\n",
    b"Content-Length: 5\r\n",
    b"Content-Length: 0\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: identity\r\n",
    b"Host: k\r\n",
    b"Connection: close\r\n",
    b"Connection: upgrade\r\nUpgrade: a\r\n",
    b"X: y\r\n",
    b" folded\r\n",
    b"GET /inner HTTP/1.1\r\nHost: k\r\n\r\n",
    b"X-Remote-User: root\r\n",
];

/// A small generator: the tests must not depend on a crate's choice of one.
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Below `end`.
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % end
    }

    /// A changed request.
    pub fn mutant(&mut self) -> Vec<u8> {
        let mut input = SEEDS[self.below(SEEDS.len())].as_bytes().to_vec();
        for _ in 0..=self.below(3) {
            let at = self.below(input.len());
            match self.below(6) {
                0 => drop(input.remove(at)),
                1 | 2 => {
                    let piece = PIECES[self.below(PIECES.len())];
                    // Whole lines mostly go between lines: elsewhere they only make noise.
                    let is_line = piece.len() > 4 && self.below(4) > 0;
                    let line_end = input[at..].windows(2).position(|two| two == b"\r\n").map_or(input.len(), |end| at + end + 2);
                    let at = if is_line { line_end } else { at };
                    input.splice(at..at, piece.iter().copied());
                }
                3 => input[at] = PIECES[self.below(PIECES.len())][0],
                4 => input[at] ^= 0x20,
                // A line again, or two lines joined.
                _ => {
                    let end = input[at..].windows(2).position(|two| two == b"\r\n").map_or(input.len(), |end| at + end + 2);
                    let line = input[at..end].to_vec();
                    input.splice(end..end, line);
                }
            }
        }
        input
    }
}

/// One input: exactly the requests of the reference are seen and answered, and then happens what the reference says.
pub async fn run(mut stage: Stage, input: Vec<u8>) -> Stage {
    let (requests, then) = reference::read(&input);
    let fault = format!("{:?}, which is {requests:?} and {then:?}", String::from_utf8_lossy(&input));
    let mut wire = Wire::connect(&stage.world).await;
    wire.send(&input).await;
    for _ in &requests {
        http1_run::check_server_answer(&fault, &http1_run::answer(&mut wire, &fault).await);
    }
    match then {
        Then::Refused => {
            let answer = http1_run::answer(&mut wire, &fault).await;
            assert!(answer.status >= 400 && answer.header("x-seen").is_none(), "{fault}: {}", answer.head);
            wire.end().await;
        }
        Then::Closed => drop(wire.end().await),
        Then::Waits | Then::Odd => {}
    }
    let accepted: Vec<_> = requests.iter().map(|request| (request.path.as_str(), &request.body[..])).collect();
    stage.check(&fault, &accepted).await;
    drop(wire);
    stage.check(&fault, &[]).await;
    stage
}
