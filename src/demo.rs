//! `mvproxy demo`: what the proxy does, shown with three simulated apiservers on this machine, and an upgrade of them.
//!
//! What always holds: every number printed was measured in this run; the only traces are sockets on 127.0.0.1 and one directory, which is
//! removed at the end. Nothing else of the binary uses `loadgen`.
//!
//! Read `plan` (the servers), `cluster` and `instance` (what runs), `rows` (the requests), `upgrade` (the steps), and `table`, `narration`
//! (what is printed).

mod cluster;
mod directory;
mod instance;
mod kubeconfig;
mod narration;
mod plan;
mod rows;
mod table;
mod tally;
mod upgrade;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;

use tokio::runtime::{self, Runtime};
use tokio::sync::oneshot;

use crate::cli::DemoFlags;
use crate::failure::Failure;
use crate::{log, signals};
use cluster::Cluster;
use directory::Directory;
use rows::Row;
use tally::Tally;

/// The bearer token of every request; the simulated servers want one, and it passes through the proxy as it is.
const TOKEN: &str = "demo-token";

/// Shows the table and the upgrade; then waits for a signal, unless it is to run `once`.
pub(crate) fn run(flags: &DemoFlags) -> Result<ExitCode, Failure> {
    log::set_quiet();
    let (stop, mut stopped) = oneshot::channel();
    // Fails only when the program is about to end anyway.
    signals::listen(move |_| {
        stop.send(()).ok();
    })?;
    let directory = Directory::new()?;
    let runtime = start_runtime()?;
    let mut cluster = Cluster::start(&runtime, &directory)?;
    let shown = runtime.block_on(async {
        tokio::select! {
            shown = present(&mut cluster) => Some(shown),
            _ = &mut stopped => None,
        }
    });
    let code = match shown {
        // Somebody who asked for a verdict must not take this for a good one.
        None if flags.once => Err(Failure::runtime("demo: ended by a signal before everything was shown")),
        None => Ok(0),
        Some(Err(failure)) => Err(failure),
        Some(Ok(verdict)) if flags.once => Ok(verdict),
        Some(Ok(_)) => invitation(&cluster, &directory).and_then(|text| show(&text)).map(|()| {
            // Nothing but a signal comes any more.
            runtime.block_on(stopped).ok();
            0
        }),
    };
    conclude(code, cluster.stop(&runtime)).map(ExitCode::from)
}

/// Where the simulated servers and the clients run.
fn start_runtime() -> Result<Runtime, Failure> {
    let failed = |error| Failure::runtime(format_args!("demo: cannot start threads: {error}"));
    runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed)
}

/// The exit code, unless what was shown or how it ended is a failure.
fn conclude(code: Result<u8, Failure>, ended: Result<(), Failure>) -> Result<u8, Failure> {
    match (code, ended) {
        (code, Ok(())) => code,
        (Ok(_), Err(failure)) => Err(failure),
        (Err(first), Err(second)) => Err(Failure::runtime(format_args!("{}; {}", first.into_message(), second.into_message()))),
    }
}

/// Everything that is shown; the exit code of a run that is asked for one. Dropping the future stops it between two steps.
async fn present(cluster: &mut Cluster) -> Result<u8, Failure> {
    let failed = |error: String| Failure::runtime(format_args!("demo: {error}"));
    show(&table::introduction(cluster))?;
    cluster.learned().await.map_err(failed)?;
    let rows = rows::measure(cluster.doors()).await.map_err(failed)?;
    show(&table::results(&rows))?;
    let tally = upgrade::perform(cluster, show).await?;
    Ok(verdict(&rows, &tally))
}

/// 0 when there are rows and all of them are right, and so was the upgrade.
fn verdict(rows: &[Row], tally: &Tally) -> u8 {
    u8::from(rows.is_empty() || !rows.iter().all(Row::is_right) || !tally.is_right())
}

/// Two lines to type, with the files they need.
fn invitation(cluster: &Cluster, directory: &Directory) -> Result<String, Failure> {
    let Some(asked) = cluster.sites().first() else { return Ok(String::new()) };
    let server: SocketAddr = asked.proxy_address();
    let ca = directory.write("ca.crt", cluster.ca_pem())?;
    let config = directory.write("kubeconfig", &kubeconfig::text(server, cluster.ca_pem(), TOKEN))?;
    let path = "/apis/batch/v1/namespaces/default/jobs";
    Ok(format!(
        "Still running. Ask the mvproxy of {id}, whose server has no jobs, for jobs (x-twin-id says who answered):\n\n  \
         kubectl --kubeconfig={config} get --raw \\\n    {path}\n\n  \
         curl --http2 -i --cacert {ca} -H 'Authorization: Bearer {TOKEN}' \\\n    https://{server}{path}\n\n\
         Ctrl-C ends it and removes {directory}.\n",
        id = asked.server().id,
        config = config.display(),
        ca = ca.display(),
        directory = directory.path().display(),
    ))
}

/// Unlike `print!`, a closed pipe is an error here, not a panic.
fn show(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    let written = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    written.map_err(|error| Failure::runtime(format_args!("demo: cannot print: {error}")))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn a_bad_end_is_a_failure_whatever_was_shown() {
        let bad = |text: &str| Err(Failure::runtime(text));
        for (code, ended, expected) in [
            (Ok(0), Ok(()), Ok(0)),
            (Ok(1), Ok(()), Ok(1)),
            (Ok(0), bad("b"), Err("b")),
            (Err(Failure::runtime("a")), Ok(()), Err("a")),
            (Err(Failure::runtime("a")), bad("b"), Err("a; b")),
        ] {
            assert_eq!(conclude(code, ended).map_err(Failure::into_message), expected.map_err(str::to_owned));
        }
    }

    /// As by Ctrl-C, or a closed pipe: a server is away, and everything else ends all the same.
    #[test]
    fn an_upgrade_that_ends_half_way_leaves_nothing_running() {
        let (runtime, directory) = (start_runtime().unwrap(), Directory::of_test("half-way").unwrap());
        let mut cluster = Cluster::start(&runtime, &directory).unwrap();
        let doors = cluster.doors();
        let tell = |line: &str| if line.contains(" stopped") { Err(Failure::runtime("enough")) } else { Ok(()) };
        let outcome = runtime.block_on(async {
            cluster.learned().await.unwrap();
            upgrade::perform(&mut cluster, tell).await
        });
        assert!(outcome.is_err_and(|failure| failure.into_message() == "enough"));
        cluster.stop(&runtime).unwrap();
        for address in doors.iter().flat_map(|door| [door.server, door.proxy]) {
            assert!(TcpStream::connect(address).is_err(), "{address}");
        }
    }

    #[test]
    fn one_wrong_answer_is_a_failure() {
        let row = |wrong: Option<&str>| Row {
            title: "list pods",
            asked: "cp-a",
            alone: 200,
            status: 200,
            answered_by: "cp-a".into(),
            added: None,
            wrong: wrong.map(str::to_owned),
        };
        let mut tally = Tally::default();
        tally.note("cp-a", "pods", Ok((200, "cp-a".into())));
        assert_eq!(verdict(&[row(None), row(None)], &tally), 0);
        assert_eq!(verdict(&[row(None), row(Some("WRONG: should be 200")), row(None)], &tally), 1);
        assert_eq!(verdict(&[], &tally), 1, "nothing was shown");
        assert_eq!(verdict(&[row(None)], &Tally::default()), 1, "nothing was asked");
        tally.note("cp-a", "jobs", Ok((404, "cp-a".into())));
        assert_eq!(verdict(&[row(None)], &tally), 1, "a wrong 404");
    }
}
