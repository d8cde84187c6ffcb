//! `mvproxy explain METHOD PATH`: what would become of a request, and why.

use std::fmt::Write;
use std::process::ExitCode;

use super::{ask, escape, print};
use crate::cli::{ExplainFlags, TextOutput};
use crate::failure::Failure;
use crate::status::explain::Explanation;
use crate::table;

/// Prints what the instance says.
pub(crate) fn run(flags: &ExplainFlags) -> Result<ExitCode, Failure> {
    let path = format!("/explain?method={}&path={}", escape(&flags.method), escape(&flags.path));
    let (explanation, json) = ask::<Explanation>(flags.status_port, &path)?;
    match flags.output {
        TextOutput::Json => print(&json),
        TextOutput::Text => print(&render(&explanation)),
    }
    Ok(ExitCode::SUCCESS)
}

fn render(explanation: &Explanation) -> String {
    let target = &explanation.target;
    let names = [&target.group, &target.version, &target.resource].map(|part| part.as_deref().unwrap_or_default());
    let names = names.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    let long = if target.long_running { ", without a time limit" } else { "" };
    let verdict = match explanation.status {
        Some(status) => format!("{}: {status}", explanation.verdict),
        None => explanation.verdict.clone(),
    };
    let mut text = String::new();
    let target = [&*target.kind, &names].join(" ");
    // Into a string nothing can fail.
    writeln!(text, "request  {} {}", explanation.method, explanation.path).ok();
    writeln!(text, "target   {}{long}", target.trim_end()).ok();
    writeln!(text, "guard    {}", explanation.guard).ok();
    writeln!(text, "verdict  {verdict}").ok();
    writeln!(text, "why      {}", explanation.why).ok();
    if !explanation.candidates.is_empty() {
        let rows = explanation.candidates.iter().map(|candidate| {
            let server = &candidate.server;
            let address = server.address.map_or_else(|| "-".to_owned(), |address| address.to_string());
            let role = match (server.local, candidate.standby) {
                (true, _) => "local",
                (false, true) => "peer, while local is down",
                (false, false) => "peer",
            };
            let ready = match (server.ready, server.leaving) {
                (true, _) => "yes",
                (false, true) => "leaving",
                (false, false) => "no",
            };
            vec![server.id.clone(), role.to_owned(), ready.to_owned(), address]
        });
        text.push('\n');
        text += &table::rows(&["MAY ANSWER", "AS", "READY", "ADDRESS"], &rows.collect::<Vec<_>>());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_for_people() {
        let json = r#"{"generation":1,"method":"GET","path":"/apis/batch/v1/jobs?watch=1",
            "target":{"kind":"resource","group":"batch","version":"v1","resource":"jobs","longRunning":true},
            "guard":"served-by-peers","verdict":"peer","status":null,"why":"because",
            "candidates":[{"id":"cp-b","address":"10.0.0.2:6443","via":"proxy","local":false,"ready":true,"leaving":false,"asked":true,"gone":false,
            "version":null,"error":null,"standby":false}]}"#;
        let mut explanation: Explanation = serde_json::from_str(json).unwrap();
        assert_eq!(
            render(&explanation),
            "request  GET /apis/batch/v1/jobs?watch=1
target   resource batch/v1/jobs, without a time limit
guard    served-by-peers
verdict  peer
why      because

MAY ANSWER  AS    READY  ADDRESS
cp-b        peer  yes    10.0.0.2:6443
"
        );
        explanation.status = Some(503);
        assert!(render(&explanation).contains("verdict  peer: 503\n"));
        (explanation.candidates[0].server.ready, explanation.candidates[0].server.leaving) = (false, true);
        assert!(render(&explanation).contains("cp-b        peer  leaving  10.0.0.2:6443\n"));
    }

    #[test]
    fn everything_unusual_is_escaped() {
        assert_eq!(escape("/api/v1/pods?watch=1&x=ä b"), "/api/v1/pods%3Fwatch%3D1%26x%3D%C3%A4%20b");
    }
}
