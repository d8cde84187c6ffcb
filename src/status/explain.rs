//! `/explain`: what would become of a request, and which guard of `engine::route` decides it.
//!
//! It asks the very function that routes, so it cannot say something else. What it does not know is what the pools of the shards know:
//! whether a connection to a server works at this moment.

use discovery::{ServerSet, Snapshot};
use engine::request::{Scratch, Target};
use engine::route::{self, Guard, Refusal, Verdict};
use serde::{Deserialize, Serialize};

use super::routes::ServerRow;

/// What was decided, and why.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Explanation {
    pub(crate) generation: u64,
    pub(crate) method: String,
    pub(crate) path: String,
    pub(crate) target: TargetRow,
    /// Which guard decided.
    pub(crate) guard: String,
    /// `local`, `peer` or `refuse`.
    pub(crate) verdict: String,
    /// The status code when nobody is asked, or nobody who may be asked is ready or at least answers.
    pub(crate) status: Option<u16>,
    /// Who may answer, in the order of preference.
    pub(crate) candidates: Vec<Candidate>,
    pub(crate) why: String,
}

/// What the request asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TargetRow {
    /// `resource`, `discovery`, `own` or `invalid`.
    pub(crate) kind: String,
    pub(crate) group: Option<String>,
    pub(crate) version: Option<String>,
    pub(crate) resource: Option<String>,
    /// Without a time limit: a watch, a log, a terminal.
    pub(crate) long_running: bool,
}

/// A server that may answer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Candidate {
    #[serde(flatten)]
    pub(crate) server: ServerRow,
    /// Asked only while local is down.
    pub(crate) standby: bool,
}

/// Explains one request; `servers` are the rows of [`super::routes::servers`].
pub(super) fn of(snapshot: &Snapshot, servers: &[ServerRow], method: &str, path: &str) -> Explanation {
    let mut scratch = Scratch::default();
    let parsed = Target::parse(method.as_bytes(), path.as_bytes(), &mut scratch);
    let mut explanation = Explanation {
        generation: snapshot.generation(),
        method: method.to_owned(),
        path: path.to_owned(),
        target: target_row(parsed.as_ref().ok()),
        guard: "invalid-path".to_owned(),
        verdict: "refuse".to_owned(),
        status: Some(400),
        candidates: Vec::new(),
        why: "the path has a bad escape or does not start with a slash, so no server could read it".to_owned(),
    };
    let Ok(target) = parsed else { return explanation };
    let (guard, verdict) = route::explain(snapshot, &target, false);
    let rows = |set: ServerSet, standby| candidates(snapshot, servers, set, standby);
    explanation.guard = name(guard).to_owned();
    explanation.verdict = match verdict {
        Verdict::Local { .. } => "local",
        Verdict::Peer(_) => "peer",
        Verdict::Refuse(_) => "refuse",
    }
    .to_owned();
    explanation.candidates = match verdict {
        Verdict::Local { fallback } => {
            let mut all = rows(ServerSet::only(snapshot.local()), false);
            all.extend(rows(fallback, true));
            all
        }
        Verdict::Peer(peers) => rows(peers, false),
        Verdict::Refuse(_) => Vec::new(),
    };
    let nobody = !explanation.candidates.iter().any(|candidate| candidate.server.ready || candidate.server.leaving);
    explanation.status = nobody.then_some(503);
    explanation.why = why(guard, verdict, &explanation);
    explanation
}

fn candidates(snapshot: &Snapshot, servers: &[ServerRow], set: ServerSet, standby: bool) -> Vec<Candidate> {
    let ids = set.iter().map(|index| snapshot.servers()[index.get()].id.as_str());
    let rows = ids.filter_map(|id| servers.iter().find(|row| row.id == id));
    rows.map(|row| Candidate { server: row.clone(), standby }).collect()
}

fn target_row(target: Option<&Target<'_>>) -> TargetRow {
    let text = |bytes: &[u8]| Some(String::from_utf8_lossy(bytes).into_owned());
    let mut row = TargetRow { kind: "invalid".to_owned(), group: None, version: None, resource: None, long_running: false };
    let Some(target) = target else { return row };
    row.long_running = target.is_long_running();
    match *target {
        Target::Resource { name, .. } => {
            row.kind = "resource".to_owned();
            (row.group, row.version, row.resource) = (text(name.group), text(name.version), text(name.resource));
        }
        Target::Discovery => row.kind = "discovery".to_owned(),
        Target::Own { .. } => row.kind = "own".to_owned(),
    }
    row
}

fn name(guard: Guard) -> &'static str {
    match guard {
        Guard::OwnPath => "own-path",
        Guard::DiscoveryPath => "discovery-path",
        Guard::Hop => "hop",
        Guard::ServedHere => "served-here",
        Guard::LocalInDoubt => "local-in-doubt",
        Guard::ServedByPeers => "served-by-peers",
        Guard::Excluded => "custom-or-aggregated",
        Guard::Gone => "servers-gone",
        Guard::Unasked => "not-all-servers-asked",
        Guard::Unknown => "unknown-resource",
    }
}

/// One sentence.
fn why(guard: Guard, verdict: Verdict, explanation: &Explanation) -> String {
    let target = &explanation.target;
    let parts = [&target.group, &target.version, &target.resource].map(|part| part.as_deref().unwrap_or_default());
    let resource = parts.into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("/");
    let cause = match guard {
        Guard::OwnPath => "the path is about the server that is asked, so the local server answers it and no other may".to_owned(),
        Guard::DiscoveryPath => {
            "any server can answer discovery, OpenAPI and version paths: local does, a peer while local is down".to_owned()
        }
        Guard::Hop => "another proxy sent it here, so it goes no further".to_owned(),
        Guard::ServedHere => format!("the local server serves {resource}"),
        Guard::LocalInDoubt => {
            format!(
                "the local server served {resource}, but is down or restarting, or was not asked since, and these peers serve it; one of them gets it"
            )
        }
        Guard::ServedByPeers => {
            format!("the local server does not serve {resource}, these peers do; one of them gets it, the less loaded of two")
        }
        Guard::Excluded => {
            format!(
                "{resource} is of a custom resource or an aggregated API, which all servers serve alike: local does, a peer while local is down"
            )
        }
        Guard::Gone => format!("the servers of {resource} left less than a minute ago and may come back, so it is no 404"),
        Guard::Unasked => format!("nobody is known to serve {resource}, but not every server was asked yet, so it is no 404"),
        Guard::Unknown => format!("no server serves {resource}, so the local server answers, which will be a 404"),
    };
    let ready: Vec<_> = explanation.candidates.iter().filter(|candidate| candidate.server.ready).collect();
    let leaving = explanation.candidates.iter().any(|candidate| candidate.server.leaving);
    let outcome = match verdict {
        Verdict::Refuse(Refusal::NotServedHere | Refusal::ServersGone | Refusal::NotYetKnown) => "it is answered 503 with Retry-After",
        _ if ready.is_empty() && leaving => "none of those who may answer is ready, but one that leaves still answers",
        _ if ready.is_empty() => "none of those who may answer is ready, so it is answered 503 with Retry-After",
        Verdict::Local { .. } if !ready[0].server.local => "local is not ready, so one of the others that are answers",
        _ => return cause,
    };
    format!("{cause}; {outcome}")
}

#[cfg(test)]
mod tests {
    use discovery::static_routes;

    use super::*;
    use crate::status::routes;

    /// What is decided about a path, and by whom it may be answered.
    fn explained(path: &str) -> (String, String, Option<u16>, String) {
        let snapshot = static_routes::parse(
            r#"
local: cp-a
servers:
- {id: cp-a, address: "10.0.0.1:6443", serves: [{group: "", version: v1, resources: [pods]}]}
- {id: cp-b, address: "10.0.0.2:6443", serves: [{group: "", version: v1, resources: [pods]}, {group: batch, version: v1, resources: [jobs]}]}
"#,
        )
        .unwrap();
        let explanation = of(&snapshot, &routes::servers(&snapshot, None), "GET", path);
        let ids: Vec<_> =
            explanation.candidates.iter().map(|row| format!("{}{}", row.server.id, if row.standby { "?" } else { "" })).collect();
        assert!(!explanation.why.is_empty());
        (explanation.guard, explanation.verdict, explanation.status, ids.join(" "))
    }

    #[test]
    fn every_kind_of_path() {
        for (path, guard, verdict, status, candidates) in [
            ("/healthz", "own-path", "local", None, "cp-a"),
            ("/apis", "discovery-path", "local", None, "cp-a cp-b?"),
            ("/api/v1/pods", "served-here", "local", None, "cp-a cp-b?"),
            ("/apis/batch/v1/namespaces/x/jobs?watch=1", "served-by-peers", "peer", None, "cp-b"),
            ("/apis/nobody/v1/things", "unknown-resource", "local", None, "cp-a"),
            ("pods", "invalid-path", "refuse", Some(400), ""),
        ] {
            assert_eq!(explained(path), (guard.to_owned(), verdict.to_owned(), status, candidates.to_owned()), "{path}");
        }
    }

    #[test]
    fn a_local_server_that_is_down_is_not_said_to_lack_what_it_served() {
        let mut builder = discovery::SnapshotBuilder::new(1);
        let at = |id: &str, port: u16| discovery::Server::new(discovery::ServerId::new(id), ([10, 0, 0, 1], port).into());
        let (local, peer) = (builder.server(at("cp-a", 1)).unwrap(), builder.server(at("cp-b", 2)).unwrap());
        builder.local(local);
        builder.unready(local);
        builder.doubt_local();
        let pods = discovery::Gvr::new("", "v1", "pods");
        builder.serve(&pods, ServerSet::only(local).union(ServerSet::only(peer))).unwrap();
        let snapshot = builder.build().unwrap();
        let explanation = of(&snapshot, &routes::servers(&snapshot, None), "GET", "/api/v1/pods");
        assert_eq!((&*explanation.guard, &*explanation.verdict, explanation.status), ("local-in-doubt", "peer", None));
        assert!(explanation.why.starts_with("the local server served v1/pods, but is down or restarting"), "{}", explanation.why);
        let routes = routes::of(&snapshot, None, std::time::Instant::now());
        assert_eq!(routes.routes[0].servers, ["cp-a", "cp-b"]);
    }

    #[test]
    fn who_is_not_ready_is_said() {
        let mut builder = discovery::SnapshotBuilder::new(1);
        let local = builder.server(discovery::Server::new(discovery::ServerId::new("cp-a"), ([10, 0, 0, 1], 1).into())).unwrap();
        builder.local(local);
        builder.unready(local);
        builder.incomplete();
        let snapshot = builder.build().unwrap();
        let servers = routes::servers(&snapshot, None);
        let version = of(&snapshot, &servers, "GET", "/version");
        assert_eq!(version.status, Some(503));
        assert!(version.why.ends_with("none of those who may answer is ready, so it is answered 503 with Retry-After"), "{}", version.why);
        let pods = of(&snapshot, &servers, "GET", "/api/v1/pods");
        assert_eq!((&*pods.guard, &*pods.verdict, pods.status), ("not-all-servers-asked", "refuse", Some(503)));
    }

    /// The engine asks such a server when nobody else can be asked.
    #[test]
    fn who_leaves_still_answers() {
        for (peer_is_ready, expected) in
            [(false, "one that leaves still answers"), (true, "local is not ready, so one of the others that are answers")]
        {
            let mut builder = discovery::SnapshotBuilder::new(1);
            let at = |id: &str, port: u16| discovery::Server::new(discovery::ServerId::new(id), ([10, 0, 0, 1], port).into());
            let local = builder.server(at("cp-a", 1)).unwrap();
            let peer = builder.server(at("cp-b", 2)).unwrap();
            builder.local(local);
            builder.leaving(local);
            if !peer_is_ready {
                builder.unready(peer);
            }
            let snapshot = builder.build().unwrap();
            let version = of(&snapshot, &routes::servers(&snapshot, None), "GET", "/version");
            assert_eq!(version.status, None);
            assert!(version.why.ends_with(expected), "{}", version.why);
        }
    }
}
