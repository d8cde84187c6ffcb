//! Runs cases of HTTP/2: what the client gets, what the server sees, and whether the connection still works.

use super::case::{Stage, Want};
use super::http2_cases::{Case, Part};
use super::http2_wire::{self, Wire2};

/// One case on a connection of its own.
pub async fn run(mut stage: Stage, case: Case) -> Stage {
    let fault = case.name.clone();
    let mut wire = Wire2::connect(&stage.world).await;
    wire.send(&frames(&case, 1)).await;
    if matches!(case.want, Want::Unfinished) {
        stage.check(&fault, &[]).await;
        drop(wire);
        stage.check(&fault, &[]).await;
        return stage;
    }
    let got = wire.answer(1).await;
    let mut accepted: Vec<(&str, &[u8])> = Vec::new();
    match case.want {
        Want::GoAway(code) => {
            assert_eq!(got.goaway, Some(code), "{fault}: {got:?}");
            stage.check(&fault, &[]).await;
            return stage;
        }
        Want::Took(path, body) => {
            assert!(got.status() == Some(200) && got.is_from_server() && got.body == b"seen" && got.reset.is_none(), "{fault}: {got:?}");
            accepted.push((path, body));
            // `:authority` wins, else `host` becomes it.
            let value_of = |name: &str| case.fields.iter().find(|(other, _)| other == name).map(|(_, value)| value);
            if let Some(authority) = value_of(":authority").or_else(|| value_of("host")) {
                stage.expect_authority(authority);
            }
        }
        Want::Refused(status) => assert!(got.status() == Some(status) && !got.is_from_server(), "{fault}: {got:?}"),
        Want::Reset(code) => assert!(got.reset == Some(code) && got.heads.is_empty(), "{fault}: {got:?}"),
        other => panic!("{fault}: HTTP/2 has no {other:?}"),
    }
    if case.fields.iter().any(|(name, _)| name == "x-end") {
        stage.expect_field("x-end");
    }
    // The fault was the stream's alone.
    let probe = [(":method", "GET"), (":scheme", "https"), (":path", "/probe"), (":authority", "k")];
    wire.send(&http2_wire::headers(3, &probe, true)).await;
    let got = wire.answer(3).await;
    assert!(got.status() == Some(200) && got.is_from_server(), "{fault}: the next request: {got:?}");
    accepted.push(("/probe", b""));
    stage.check(&fault, &accepted).await;
    stage
}

/// The request on that stream.
fn frames(case: &Case, stream: u32) -> Vec<u8> {
    let fields: Vec<_> = case.fields.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let mut frames = http2_wire::headers(stream, &fields, case.parts.is_empty());
    for part in case.parts {
        frames.extend(match *part {
            Part::Data(text) => http2_wire::data(stream, text.as_bytes(), false),
            Part::Last(text) => http2_wire::data(stream, text.as_bytes(), true),
            Part::Trailers(fields) => http2_wire::headers(stream, fields, true),
            Part::MoreHeaders(fields) => http2_wire::headers(stream, fields, false),
        });
    }
    frames
}
