//! Runs cases of HTTP/1.1: what the client gets, what the server sees, and what a request behind the case becomes.

use super::case::{HIDDEN, Stage, Want};
use super::http1_cases::Case;
use crate::support::http1::{Answer, Wire};

/// How the bytes of a case are given to TLS.
#[derive(Clone, Copy, Debug)]
pub enum Cut {
    /// In one write, with what follows them.
    Whole,
    /// Seven at a time, so that no line and no size arrives in one piece.
    Sevens,
}

/// Longer inputs are written whole.
const LONG: usize = 4_000;

/// One case on a connection of its own.
pub async fn run(mut stage: Stage, case: Case, cut: Cut) -> Stage {
    let fault = format!("{} ({cut:?})", case.name);
    let mut wire = Wire::connect(&stage.world).await;
    let behind = match case.want {
        Want::Took(..) => "GET /probe HTTP/1.1\r\nHost: k\r\n\r\n".to_owned(),
        Want::Unfinished => String::new(),
        // What an attacker would hide behind the case.
        _ => format!("GET {HIDDEN} HTTP/1.1\r\nHost: k\r\n\r\n"),
    };
    let input = [&case.input[..], behind.as_bytes()].concat();
    match cut {
        Cut::Sevens if input.len() < LONG => {
            for piece in input.chunks(7) {
                wire.send(piece).await;
            }
        }
        _ => wire.send(&input).await,
    }
    let accepted = judge(&mut wire, &fault, case.want).await;
    if case.input.windows(6).any(|part| part.eq_ignore_ascii_case(b"X-End:")) {
        stage.expect_field("x-end");
    }
    if matches!(case.want, Want::Unfinished) {
        stage.check(&fault, &[]).await;
    }
    drop(wire);
    stage.check(&fault, &accepted).await;
    stage
}

/// Reads the answers; the requests that the server must have seen.
async fn judge(wire: &mut Wire, fault: &str, want: Want) -> Vec<(&'static str, &'static [u8])> {
    match want {
        Want::Took(path, body) => {
            for _ in 0..2 {
                check_server_answer(fault, &answer(wire, fault).await);
            }
            vec![(path, body), ("/probe", b"")]
        }
        Want::Refused(status) => {
            check_refusal(wire, fault, status).await;
            vec![]
        }
        Want::TookThenRefused(path, body, status) => {
            check_server_answer(fault, &answer(wire, fault).await);
            check_refusal(wire, fault, status).await;
            vec![(path, body)]
        }
        Want::TookThenClosed(path) => {
            let answer = answer(wire, fault).await;
            check_server_answer(fault, &answer);
            check_over(wire, fault).await;
            vec![(path, b"")]
        }
        Want::Unfinished => vec![],
        Want::Reset(_) | Want::GoAway(_) => panic!("{fault}: HTTP/1.1 has no frames"),
    }
}

/// The next answer.
pub async fn answer(wire: &mut Wire, fault: &str) -> Answer {
    wire.answer().await.unwrap_or_else(|end| panic!("{fault}: no answer, {end:?}"))
}

/// It is the recorder's.
pub fn check_server_answer(fault: &str, answer: &Answer) {
    assert_eq!((answer.status, answer.header("x-seen"), &answer.body[..]), (200, Some("yes"), &b"seen"[..]), "{fault}: {}", answer.head);
}

/// A Status of the proxy's own, and the end of the connection.
async fn check_refusal(wire: &mut Wire, fault: &str, status: u16) {
    let answer = answer(wire, fault).await;
    assert_eq!((answer.status, answer.header("connection")), (status, Some("close")), "{fault}: {}", answer.head);
    assert_eq!(answer.header("x-seen"), None, "{fault}");
    let body: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
    assert_eq!((body["kind"].as_str(), body["code"].as_u64()), (Some("Status"), Some(u64::from(status))), "{fault}");
    check_over(wire, fault).await;
}

/// Nothing more is answered, even to what is sent now; a reset is as good as a goodbye to a client that still sends.
async fn check_over(wire: &mut Wire, _fault: &str) {
    wire.send(format!("GET {HIDDEN} HTTP/1.1\r\nHost: k\r\n\r\n")).await;
    wire.end().await;
}
