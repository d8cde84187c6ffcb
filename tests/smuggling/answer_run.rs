//! Runs answers of a rogue server past a client of each version.

use super::answer_cases::{Case, Want};
use super::http2_wire::{self, Wire2};
use super::rogue::Rogue;
use crate::support::http1::{Answer, End, Wire};
use crate::support::{IoDriver, World, apis};

/// A proxy with the default limits in front of a rogue.
pub struct Stage {
    world: World,
    rogue: Rogue,
}

impl Stage {
    pub async fn on(driver: IoDriver) -> Self {
        let plan = World::on(driver);
        let rogue = Rogue::start(plan.pki()).await;
        let world = plan.local_at("rogue", apis::everywhere(), rogue.address()).start();
        Self { world, rogue }
    }
}

/// One answer to each client.
pub async fn run(stage: Stage, case: Case) -> Stage {
    for http1 in [true, false] {
        let parts = case.parts.clone();
        stage.rogue.answers(move |stream| parts.iter().flat_map(|part| part.frames(stream)).collect());
        let fault = format!("{} ({})", case.name, if http1 { "HTTP/1.1" } else { "HTTP/2" });
        if http1 { to_http1(&stage, &case, &fault).await } else { to_http2(&stage, &case, &fault).await }
    }
    stage
}

fn honest(stream: u32) -> Vec<u8> {
    [http2_wire::headers(stream, &[(":status", "200")], false), http2_wire::data(stream, b"honest", true)].concat()
}

async fn to_http1(stage: &Stage, case: &Case, fault: &str) {
    let mut wire = Wire::connect(&stage.world).await;
    wire.send(format!("{} /case HTTP/1.1\r\nHost: k\r\n\r\n", case.method)).await;
    match (case.want, read(&mut wire, case).await) {
        (Want::Fine(status, body), Ok(answer)) => {
            assert_eq!((answer.status, &answer.body[..]), (status, body.as_bytes()), "{fault}: {}", answer.head);
            let length = answer.header("content-length").is_some();
            assert!(status != 204 || !length, "{fault}: {}", answer.head);
            check_clean(fault, &answer);
        }
        (Want::Bad, Ok(answer)) => {
            assert_eq!(answer.status, 503, "{fault}: {}", answer.head);
            check_clean(fault, &answer);
        }
        (Want::Broken, Ok(answer)) => {
            // All that the head promised may have been there before the break.
            assert!(
                case.method == "HEAD" || matches!(answer.status, 204 | 304) || answer.body.is_empty() || answer.body == b"hello",
                "{fault}"
            );
            check_clean(fault, &answer);
            assert_eq!(wire.end().await, End::Reset, "{fault}");
            return;
        }
        (Want::Broken, Err(end)) => return assert_eq!(end, End::Reset, "{fault}"),
        (want, Err(end)) => panic!("{fault}: {end:?}, not {want:?}"),
    }
    stage.rogue.answers(honest);
    wire.send("GET /probe HTTP/1.1\r\nHost: k\r\n\r\n").await;
    let answer = wire.answer().await.unwrap_or_else(|end| panic!("{fault}: the next answer: {end:?}"));
    assert_eq!((answer.status, &answer.body[..]), (200, &b"honest"[..]), "{fault}: the next answer: {}", answer.head);
}

/// The final answer.
async fn read(wire: &mut Wire, case: &Case) -> Result<Answer, End> {
    let bodiless = case.method == "HEAD" || case.name.contains("204") || case.name.contains("304");
    loop {
        let answer = if bodiless {
            let (status, head) = wire.head().await?;
            Answer { status, head, body: Vec::new() }
        } else {
            wire.answer().await?
        };
        if answer.status >= 200 {
            return Ok(answer);
        }
        assert_eq!(answer.header("content-length"), None, "{}", case.name);
    }
}

fn check_clean(fault: &str, answer: &Answer) {
    assert!(!answer.head.contains("evil"), "{fault}: {}", answer.head);
}

async fn to_http2(stage: &Stage, case: &Case, fault: &str) {
    let mut wire = Wire2::connect(&stage.world).await;
    let request =
        |path: &'static str, method: &'static str| [(":method", method), (":scheme", "https"), (":path", path), (":authority", "k")];
    wire.send(&http2_wire::headers(1, &request("/case", case.method), true)).await;
    let got = wire.answer(1).await;
    match case.want {
        Want::Fine(status, body) => {
            assert!(got.status() == Some(status) && got.body == body.as_bytes() && got.ended && got.reset.is_none(), "{fault}: {got:?}");
        }
        Want::Bad => assert!(got.status() == Some(503) && got.ended, "{fault}: {got:?}"),
        Want::Broken => assert!(got.reset == Some(2) && !got.ended, "{fault}: {got:?}"),
    }
    stage.rogue.answers(honest);
    wire.send(&http2_wire::headers(3, &request("/probe", "GET"), true)).await;
    let got = wire.answer(3).await;
    assert!(got.status() == Some(200) && got.body == b"honest", "{fault}: the next answer: {got:?}");
}
