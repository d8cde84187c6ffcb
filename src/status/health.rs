//! Whether it lives and whether it is ready, check by check, in the form in which kube-apiserver says it.
//!
//! One difference: kube-apiserver withholds the reason of a check that failed, because anybody may ask it. Here only this host may.
//!
//! What always holds: what was learned once stays good. A cluster that cannot be asked for a while takes no proxy out of service.

use std::fmt::Write;
use std::time::Duration;

use discovery::live::{Source, SourceState, Status};
use engine::ShardView;

use super::http::{Reply, Request};

/// A shard has a tick every second; one that had none for this long stands still.
const SHARD_SILENCE: Duration = Duration::from_secs(10);
/// How long servers that were not asked yet keep it from being ready (design.md §6).
const ASK_TIME: Duration = Duration::from_secs(10);

/// One check.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Check {
    name: String,
    failure: Option<String>,
}

impl Check {
    pub(super) fn new(name: impl Into<String>, failure: Option<String>) -> Self {
        Self { name: name.into(), failure }
    }
}

/// Do the shards move? Before they are started (`None`) there is nothing that could be dead.
pub(super) fn shards(shards: Option<&[ShardView]>) -> Check {
    let failure = shards.and_then(|shards| {
        let silent = shards.iter().position(|shard| shard.silent_for >= SHARD_SILENCE);
        silent.map(|at| format!("shard {at} stands still")).or_else(|| shards.is_empty().then(|| "the shards have ended".to_owned()))
    });
    Check::new("shards", failure)
}

/// What live discovery has to know before clients may come. `uptime` is that of discovery; `identified`: was [`is_identified`] ever true?
pub(super) fn discovery(status: &Status, announces: bool, uptime: Duration, identified: bool) -> Vec<Check> {
    let snapshot = (status.generation == 0).then(|| "nothing was learned yet about who serves what".to_owned());
    let needed = Source::ALL.into_iter().filter(|source| !source.is_optional() && (announces || *source != Source::OwnLease));
    let sources = needed.map(|source| Check::new(format!("discovery-{source}"), source_failure(status, source)));
    let unasked = (uptime < ASK_TIME && !status.unfetched.is_empty()).then(|| format!("not asked yet: {}", status.unfetched.join(", ")));
    let local = status.servers.iter().find(|server| server.view.is_local);
    let local_failure = match local {
        Some(server) if server.view.is_ready => None,
        Some(server) => Some(server.error.clone().unwrap_or_else(|| "it was not found to be ready".to_owned())),
        None => Some("nothing is known of it yet".to_owned()),
    };
    let mut checks = vec![Check::new("snapshot", snapshot)];
    checks.extend(sources);
    let identity = if identified { None } else { no_identity(status) };
    checks.extend([Check::new("servers-asked", unasked), Check::new("identity", identity), Check::new("local-server", local_failure)]);
    checks
}

/// Does a Lease bear the name that the local server is said to have?
pub(super) fn is_identified(status: &Status) -> bool {
    status.servers.iter().any(|server| server.view.is_local && server.view.holder.is_some())
}

/// A wrong --server-id: the local server would be held for a peer, and one that is never asked, because its address is ours.
fn no_identity(status: &Status) -> Option<String> {
    let others = status.servers.iter().filter(|server| !server.view.is_local && !server.view.is_gone && server.view.holder.is_some());
    let others: Vec<&str> = others.map(|server| server.view.id.as_str()).collect();
    let local = status.servers.iter().find(|server| server.view.is_local).filter(|local| local.view.holder.is_none())?;
    // Without any Lease the cluster keeps none.
    let is_wrong = status.was_listed(Source::Leases) && !others.is_empty();
    is_wrong.then(|| format!("no identity Lease is named {}; there are {}: is --server-id right?", local.view.id, others.join(", ")))
}

fn source_failure(status: &Status, source: Source) -> Option<String> {
    if status.was_listed(source) {
        return None;
    }
    match status.source(source) {
        SourceState::Synced => None,
        SourceState::Waiting => Some("nothing came yet".to_owned()),
        SourceState::Absent => Some("no server has the API".to_owned()),
        SourceState::Denied(why) => Some(format!("denied: {why}: see docs/manifests/rbac.yaml")),
        SourceState::Failing(why) => Some(why),
    }
}

/// `/livez` and the like, for all checks or, as in `/livez/shards`, for one of them.
pub(super) fn reply(endpoint: &str, only: Option<&str>, checks: &[Check], request: &Request) -> Reply {
    if let Some(name) = only {
        return match checks.iter().find(|check| check.name == name) {
            None => Reply::text(404, "404 page not found\n"),
            Some(Check { failure: Some(why), .. }) => Reply::text(500, format!("internal server error: {}\n", one_line(why))),
            Some(_) => Reply::text(200, "ok"),
        };
    }
    let mut excluded: Vec<&str> = request.query.iter().filter(|(key, _)| key == "exclude").map(|(_, name)| &**name).collect();
    let mut text = String::new();
    let mut failed = false;
    for check in checks {
        let before = excluded.len();
        excluded.retain(|name| *name != check.name);
        let line = match &check.failure {
            _ if excluded.len() < before => format!("[+]{} excluded: ok", check.name),
            None => format!("[+]{} ok", check.name),
            Some(why) => {
                failed = true;
                format!("[-]{} failed: {}", check.name, one_line(why))
            }
        };
        // Into a string nothing can fail.
        writeln!(text, "{line}").ok();
    }
    if !excluded.is_empty() {
        let names: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
        writeln!(text, "warn: some health checks cannot be excluded: no matches for {}", names.join(",")).ok();
    }
    match (failed, request.value("verbose")) {
        (true, _) => Reply::text(500, format!("{text}{endpoint} check failed\n")),
        (false, None) => Reply::text(200, "ok"),
        (false, Some(_)) => Reply::text(200, format!("{text}{endpoint} check passed\n")),
    }
}

/// What a server said may have more.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use discovery::ServerId;
    use discovery::inventory::View;
    use discovery::live::ServerStatus;

    use super::*;

    fn request(query: &[(&str, &str)]) -> Request {
        Request::for_tests("/readyz", query)
    }

    fn checks(failure: Option<&str>) -> Vec<Check> {
        vec![Check::new("ping", None), Check::new("shards", failure.map(Into::into))]
    }

    #[test]
    fn the_form_is_that_of_kube_apiserver() {
        let good = checks(None);
        let bad = checks(Some("shard 1\nstands still"));
        for (checks, query, status, body) in [
            (&good, &[][..], 200, "ok"),
            (&good, &[("verbose", "")], 200, "[+]ping ok\n[+]shards ok\nreadyz check passed\n"),
            (&bad, &[], 500, "[+]ping ok\n[-]shards failed: shard 1 stands still\nreadyz check failed\n"),
            (&bad, &[("verbose", ""), ("exclude", "shards")], 200, "[+]ping ok\n[+]shards excluded: ok\nreadyz check passed\n"),
            (
                &good,
                &[("verbose", ""), ("exclude", "etcd")],
                200,
                "[+]ping ok\n[+]shards ok\nwarn: some health checks cannot be excluded: no matches for \"etcd\"\nreadyz check passed\n",
            ),
        ] {
            let reply = reply("readyz", None, checks, &request(query));
            assert_eq!((reply.status, &*reply.body), (status, body));
        }
        for (only, status) in [("ping", 200), ("shards", 500), ("etcd", 404)] {
            assert_eq!(reply("readyz", Some(only), &bad, &request(&[])).status, status, "{only}");
        }
    }

    fn ready() -> Status {
        let view = View {
            id: ServerId::new("cp-a"),
            is_local: true,
            address: None,
            is_ready: true,
            is_gone: false,
            holder: None,
            fetched: None,
            gvrs: 0,
        };
        Status {
            generation: 1,
            listed: Source::ALL.into_iter().filter(|source| !source.is_optional()).collect(),
            servers: vec![ServerStatus { view, version: None, error: None }],
            ..Status::default()
        }
    }

    /// The checks that fail, `name: reason`.
    fn failing(status: &Status, uptime: u64) -> Vec<String> {
        let checks = discovery(status, true, Duration::from_secs(uptime), is_identified(status));
        checks.into_iter().filter_map(|check| Some(format!("{}: {}", check.name, check.failure?))).collect()
    }

    #[test]
    fn not_ready_before_everything_was_learned() {
        assert_eq!(failing(&ready(), 1), [""; 0]);
        let new = failing(&Status::default(), 1);
        assert_eq!(new.len(), 8, "{new:?}");
        let unlearned = Status { generation: 0, ..ready() };
        assert_eq!(failing(&unlearned, 60), ["snapshot: nothing was learned yet about who serves what"]);
        let unasked = Status { unfetched: vec!["cp-b".into()], ..ready() };
        assert_eq!(failing(&unasked, 9), ["servers-asked: not asked yet: cp-b"]);
        assert_eq!(failing(&unasked, 10), [""; 0]);
        let mut restarting = ready();
        restarting.servers[0].view.is_ready = false;
        restarting.servers[0].error = Some("refused".into());
        assert_eq!(failing(&restarting, 60), ["local-server: refused"]);
    }

    #[test]
    fn a_wrong_server_id_is_said_until_its_lease_was_seen() {
        let mut status = ready();
        let local = status.servers[0].view.clone();
        let other = View { id: ServerId::new("apiserver-b"), is_local: false, holder: Some("b".into()), ..local };
        status.servers.push(ServerStatus { view: other, version: None, error: None });
        let wrong = "identity: no identity Lease is named cp-a; there are apiserver-b: is --server-id right?";
        assert_eq!(failing(&status, 60), [wrong]);
        let unlisted = Status { listed: Vec::new(), ..status.clone() };
        assert!(!failing(&unlisted, 60).iter().any(|line| line.starts_with("identity")));
        status.servers[0].view.holder = Some("a".into());
        assert_eq!(failing(&status, 60), [""; 0]);
        // A server that ends deletes its Lease.
        status.servers[0].view.holder = None;
        assert!(discovery(&status, true, Duration::ZERO, true).iter().all(|check| check.failure.is_none()));
    }

    #[test]
    fn a_source_counts_until_it_was_listed_once() {
        let states = [SourceState::Waiting, SourceState::Denied("no".into()), SourceState::Failing("oh".into()), SourceState::Absent];
        for state in states {
            let mut status = Status { sources: vec![(Source::CustomResources, state.clone())], ..ready() };
            assert_eq!(failing(&status, 60), [""; 0], "{state:?}");
            status.listed.retain(|source| *source != Source::CustomResources);
            let failing = failing(&status, 60);
            assert!(failing.len() == 1 && failing[0].starts_with("discovery-customresourcedefinitions: "), "{state:?}: {failing:?}");
        }
        let status = Status { listed: Vec::new(), sources: vec![(Source::ApiServices, SourceState::Denied("403".into()))], ..ready() };
        let denied = failing(&status, 60);
        assert!(denied.contains(&"discovery-apiservices: denied: 403: see docs/manifests/rbac.yaml".to_owned()), "{denied:?}");
        // Without a Lease of our own there is nothing to wait for.
        assert!(!discovery(&status, false, Duration::ZERO, false).iter().any(|check| check.name == "discovery-own-lease"));
    }
}
