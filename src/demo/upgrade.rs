//! The rolling upgrade: one server after another is stopped and started anew while clients go on asking every proxy.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use loadgen::Client;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::cluster::{Cluster, Door};
use super::rows::{JOBS, PODS, POLICIES, answered_by, connect};
use super::tally::Tally;
use super::{narration, plan};
use crate::failure::Failure;

/// What every client asks for, again and again: resources that a server which stays up serves.
const ASKED: [(&str, &str); 3] = [("pods", PODS), ("jobs", JOBS), ("mutatingadmissionpolicies", POLICIES)];
/// Between two requests of a client.
const PAUSE: Duration = Duration::from_millis(5);
/// For one answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);
/// Before the first step, and after each server is back.
const CALM: Duration = Duration::from_millis(500);
/// How long a server is away.
const AWAY: Duration = Duration::from_millis(1_500);
/// For a proxy to notice that its server is back; it takes less than a second.
const BACK_MAX: Duration = Duration::from_secs(8);
const BACK_POLL: Duration = Duration::from_millis(20);

/// Performs it, and tells of each step; what all clients were told.
pub(super) async fn perform(cluster: &mut Cluster, tell: impl Fn(&str) -> Result<(), Failure>) -> Result<Tally, Failure> {
    let doors = cluster.doors();
    let traffic = Traffic::start(&doors).await.map_err(failed)?;
    let upgrades = plan::upgrades();
    let ids: Vec<&str> = upgrades.iter().map(|server| server.id).collect();
    tell(&narration::opening(&ids, upgrades.first().map_or("", |server| server.version), traffic.tasks.len()))?;
    let begin = Instant::now();
    sleep(CALM).await;
    let mut total = traffic.take();
    for server in upgrades {
        let (id, version) = (server.id, server.version);
        let door = doors.iter().find(|door| door.id == id).ok_or_else(|| failed(format_args!("there is no {id} to upgrade")))?;
        let stopped = Instant::now();
        let old = cluster.stop_server(id).await.ok_or_else(|| failed(format_args!("{id} is not running")))?;
        let (old_version, (titles, _)) = (old.version, served(old));
        sleep(AWAY).await;
        let tally = traffic.take();
        tell(&narration::stopped(id, old_version, &titles, stopped.elapsed(), &tally))?;
        total.add(tally);
        let started = Instant::now();
        let (_, paths) = served(&server);
        cluster.start_server(server)?;
        is_back(door, &paths).await.map_err(failed)?;
        let back = started.elapsed();
        sleep(CALM).await;
        let tally = traffic.take();
        tell(&narration::started(id, version, back, &tally))?;
        total.add(tally);
    }
    total.add(traffic.take());
    tell(&narration::closing(&total, begin.elapsed()))?;
    Ok(total)
}

/// What of that which is asked for a server serves itself: names and paths.
fn served(server: &plan::Server) -> (Vec<&'static str>, Vec<&'static str>) {
    let is_served = |plural: &str| server.apis.iter().flat_map(|api| &api.resources).any(|resource| resource.plural == plural);
    ASKED.into_iter().filter(|(plural, _)| is_served(plural)).unzip()
}

/// Waits until what its own server serves is answered by it.
async fn is_back(door: &Door, paths: &[&str]) -> Result<(), String> {
    let client = connect(door, true).await?;
    let begin = Instant::now();
    for path in paths {
        loop {
            let answer = timeout(ANSWER_MAX, client.get(path)).await;
            if let Ok(Ok(answer)) = answer
                && answered_by(&answer.headers) == door.id
            {
                break;
            }
            if begin.elapsed() > BACK_MAX {
                return Err(format!("the mvproxy of {} did not go back to its server within {} s", door.id, BACK_MAX.as_secs()));
            }
            sleep(BACK_POLL).await;
        }
    }
    Ok(())
}

/// Clients at work; dropping it ends them.
struct Traffic {
    tally: Arc<Mutex<Tally>>,
    tasks: JoinSet<()>,
}

impl Traffic {
    /// One client for each site and resource.
    async fn start(doors: &[Door]) -> Result<Self, String> {
        let mut traffic = Self { tally: Arc::default(), tasks: JoinSet::new() };
        for door in doors {
            for (title, path) in ASKED {
                let client = connect(door, true).await?;
                traffic.tasks.spawn(ask(client, door.id, title, path, Arc::clone(&traffic.tally)));
            }
        }
        Ok(traffic)
    }

    /// What was counted since the last time.
    fn take(&self) -> Tally {
        std::mem::take(&mut *self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Asks until it is dropped.
async fn ask(client: Client, asked: &'static str, title: &'static str, path: &'static str, tally: Arc<Mutex<Tally>>) {
    loop {
        let outcome = match timeout(ANSWER_MAX, client.get(path)).await {
            Ok(Ok(answer)) => Ok((answer.status.as_u16(), answered_by(&answer.headers))),
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err(format!("no answer in {} s", ANSWER_MAX.as_secs())),
        };
        tally.lock().unwrap_or_else(PoisonError::into_inner).note(asked, title, outcome);
        sleep(PAUSE).await;
    }
}

fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::runtime(format_args!("demo: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody stands in for a server in what it never served.
    #[test]
    fn a_server_is_missed_for_what_it_serves() {
        let names = |servers: Vec<plan::Server>| servers.iter().map(|server| served(server).0).collect::<Vec<_>>();
        let (jobs, policies) = ("jobs", "mutatingadmissionpolicies");
        assert_eq!(names(plan::servers()), [vec!["pods"], vec!["pods", jobs], vec!["pods", jobs, policies]]);
        assert_eq!(names(plan::upgrades()), [vec!["pods", policies], vec!["pods", jobs, policies]]);
        assert_eq!(served(&plan::servers()[1]).1, [PODS, JOBS]);
    }
}
