//! `mvproxy demo`: what the proxy does, shown with two simulated apiservers on this machine.
//!
//! What always holds: every number printed was measured in this run; the only traces are sockets on 127.0.0.1 and one directory, which is
//! removed at the end. Nothing else of the binary uses `loadgen`.

mod cluster;
mod directory;
mod kubeconfig;
mod rows;
mod table;

use std::io::Write;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver};

use tokio::runtime;

use crate::cli::DemoFlags;
use crate::failure::Failure;
use crate::signals;
use cluster::Cluster;
use directory::Directory;
use rows::Row;

/// The bearer token of every request; the simulated servers want one, and it passes through the proxy as it is.
const TOKEN: &str = "demo-token";

/// What the main thread waits for.
enum Event {
    /// A signal.
    Stop,
    /// All requests were sent, or one could not be.
    Rows(Result<Vec<Row>, String>),
}

/// Shows the table; then waits for a signal, unless it is to run `once`.
pub(crate) fn run(flags: &DemoFlags) -> Result<ExitCode, Failure> {
    let (sender, events) = mpsc::channel();
    let stop = sender.clone();
    // Fails only when the program is about to end anyway; so below.
    signals::listen(move |_| {
        stop.send(Event::Stop).ok();
    })?;
    let directory = Directory::new()?;
    let failed = |error| Failure::runtime(format_args!("demo: cannot start threads: {error}"));
    let runtime = runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().map_err(failed)?;
    let cluster = Cluster::start(&runtime).map_err(|error| Failure::runtime(format_args!("demo: {error}")))?;
    let rows = rows::measure(cluster.doors());
    runtime.spawn(async move { sender.send(Event::Rows(rows.await)).ok() });
    show(&table::introduction(&cluster))?;
    let code = present(flags, &cluster, &directory, &events);
    cluster.stop(&runtime);
    code
}

fn present(flags: &DemoFlags, cluster: &Cluster, directory: &Directory, events: &Receiver<Event>) -> Result<ExitCode, Failure> {
    let rows = match events.recv() {
        Ok(Event::Rows(rows)) => rows.map_err(|error| Failure::runtime(format_args!("demo: {error}")))?,
        // Ended by hand; but somebody who asked for a verdict must not take this for a good one.
        Ok(Event::Stop) | Err(_) => return Ok(ExitCode::from(u8::from(flags.once))),
    };
    show(&table::results(&rows))?;
    if flags.once {
        return Ok(ExitCode::from(verdict(&rows)));
    }
    show(&invitation(cluster, directory)?)?;
    // Nothing but a signal comes any more.
    events.recv().ok();
    Ok(ExitCode::SUCCESS)
}

/// The exit code of a run that is asked for one: 0 when there are rows and all of them are right.
fn verdict(rows: &[Row]) -> u8 {
    u8::from(rows.is_empty() || !rows.iter().all(Row::is_right))
}

/// Two lines to type, with the files they need.
fn invitation(cluster: &Cluster, directory: &Directory) -> Result<String, Failure> {
    let Some(asked) = cluster.sites().first() else { return Ok(String::new()) };
    let server: SocketAddr = asked.proxy_address();
    let ca = directory.write("ca.crt", cluster.ca_pem())?;
    let config = directory.write("kubeconfig", &kubeconfig::text(server, cluster.ca_pem(), TOKEN))?;
    let path = "/apis/batch/v1/namespaces/default/jobs";
    Ok(format!(
        "Still running. Ask the mvproxy of {id}, which has no jobs of its own, for jobs (x-twin-id says who answered):\n\n  \
         kubectl --kubeconfig={config} get --raw \\\n    {path}\n\n  \
         curl --http2 -i --cacert {ca} -H 'Authorization: Bearer {TOKEN}' \\\n    https://{server}{path}\n\n\
         Ctrl-C ends it and removes {directory}.\n",
        id = asked.id(),
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
    use super::*;

    #[test]
    fn one_wrong_row_is_a_failure() {
        let row = |wrong: Option<&str>| Row {
            title: "list pods",
            asked: "cp-a",
            alone: 200,
            status: 200,
            answered_by: "cp-a".into(),
            added: None,
            wrong: wrong.map(str::to_owned),
        };
        assert_eq!(verdict(&[row(None), row(None)]), 0);
        assert_eq!(verdict(&[row(None), row(Some("WRONG: should be 200")), row(None)]), 1);
        assert_eq!(verdict(&[]), 1, "nothing was shown");
    }
}
