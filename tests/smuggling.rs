//! Malformed and smuggled requests and answers, over TLS, with the default limits.
//!
//! Bars (threats.md §1, "What a Go net/http server does with hostile input"): what the server sees is exactly what the proxy accepted,
//! and nothing is accepted that must be refused. The server is a recorder; every case ends with a request whose answer proves that all
//! of the case has arrived there, or never will.

#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise, helpers included")]
#![allow(unreachable_pub, reason = "the modules are of this file alone")]

mod support;

#[path = "smuggling"]
mod smuggling {
    pub mod answer_cases;
    pub mod answer_run;
    pub mod case;
    pub mod http1_cases;
    pub mod http1_run;
    pub mod http2_cases;
    pub mod http2_run;
    pub mod http2_wire;
    pub mod mutants;
    pub mod recorder;
    pub mod reference;
    pub mod rogue;
}

use smuggling::case::{self, Stages};
use smuggling::http1_run::Cut;
use smuggling::{answer_cases, answer_run, http1_cases, http1_run, http2_cases, http2_run, mutants, reference};
use support::IoDriver;

on_both_drivers!(http1_requests, h14_pseudo_headers, h15_header_names, http2_bodies, answers, mutants_of_http1);

/// Enough that every line of the seeds is hit by every kind of change.
const MUTANTS: usize = 1_500;

async fn http1_requests(driver: IoDriver) {
    let mut stages = Stages::new(move || case::Stage::on(driver));
    for case in http1_cases::all() {
        for cut in [Cut::Whole, Cut::Sevens] {
            let case = case.clone();
            stages.run(|stage| http1_run::run(stage, case, cut)).await;
        }
    }
    stages.finish().iter().for_each(case::Stage::finish);
}

async fn h14_pseudo_headers(driver: IoDriver) {
    http2_requests(driver, &["head", "path", "method", "authority", "host"]).await;
}

/// Those of HTTP/1.1 are in `http1_requests`.
async fn h15_header_names(driver: IoDriver) {
    http2_requests(driver, &["fields", "identity", "identity in CONTINUATION"]).await;
}

async fn http2_bodies(driver: IoDriver) {
    http2_requests(driver, &["body", "large"]).await;
}

async fn http2_requests(driver: IoDriver, groups: &[&str]) {
    let mut stages = Stages::new(move || case::Stage::on(driver));
    for case in http2_cases::all().into_iter().filter(|case| groups.contains(&case.group())) {
        stages.run(|stage| http2_run::run(stage, case)).await;
    }
    stages.finish().iter().for_each(case::Stage::finish);
}

async fn answers(driver: IoDriver) {
    let mut stages = Stages::new(move || answer_run::Stage::on(driver));
    for case in answer_cases::all() {
        stages.run(|stage| answer_run::run(stage, case)).await;
    }
    stages.finish();
}

/// Requests changed at random, on one connection each. Most are refused; the seed is fixed.
async fn mutants_of_http1(driver: IoDriver) {
    let mut stages = Stages::new(move || case::Stage::on(driver));
    let mut dice = mutants::Dice::new(1);
    let (mut ends, mut accepted) = ([0; 4], 0);
    for _ in 0..MUTANTS {
        let input = dice.mutant();
        let (requests, then) = reference::read(&input);
        accepted += requests.len();
        ends[then as usize] += 1;
        if then != reference::Then::Odd {
            stages.run(|stage| mutants::run(stage, input)).await;
        }
    }
    stages.finish().iter().for_each(case::Stage::finish);
    println!("{MUTANTS} mutants with {accepted} good requests; then the connection waits, refuses, closes, left out: {ends:?}");
}

/// The bar, and names that say which case failed.
#[test]
fn there_are_enough_cases() {
    let names: Vec<_> = http1_cases::all()
        .into_iter()
        .map(|case| format!("HTTP/1.1 {}", case.name))
        .chain(http2_cases::all().into_iter().map(|case| format!("HTTP/2 {}", case.name)))
        .chain(answer_cases::all().into_iter().map(|case| format!("answer {}", case.name)))
        .collect();
    let count = |kind: &str| names.iter().filter(|name| name.starts_with(kind)).count();
    println!(
        "{} cases: {} requests of HTTP/1.1 (each in two cuts), {} of HTTP/2, {} answers (to clients of both)",
        names.len(),
        count("HTTP/1.1"),
        count("HTTP/2"),
        count("answer")
    );
    assert!(names.len() >= 300);
    assert_eq!(names.iter().collect::<std::collections::HashSet<_>>().len(), names.len(), "two cases have one name");
}
