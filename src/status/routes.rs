//! `/routes`: which server serves what, as JSON. The commands that read it share these types.

use std::net::SocketAddr;
use std::time::Instant;

use discovery::live::{ServerStatus, Status};
use discovery::{Server, ServerSet, Snapshot, Via};
use serde::{Deserialize, Serialize};

/// The whole table.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Routes {
    /// Grows with every table that was published.
    pub(crate) generation: u64,
    /// How long ago it was found to be what is known; `None` when it comes from a file.
    pub(crate) age_seconds: Option<f64>,
    /// Was every server asked what it serves?
    pub(crate) complete: bool,
    pub(crate) servers: Vec<ServerRow>,
    pub(crate) routes: Vec<RouteRow>,
    /// Group-versions of custom resources and aggregated APIs, which every server serves alike: local answers for them.
    pub(crate) excluded: Vec<GroupVersionRow>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ServerRow {
    pub(crate) id: String,
    /// Where requests for it go; `None` when no address may be used.
    pub(crate) address: Option<SocketAddr>,
    /// What is there: `apiserver`, or `proxy` for the peer port of its mvproxy.
    pub(crate) via: Option<String>,
    pub(crate) local: bool,
    pub(crate) ready: bool,
    /// Not ready any more, but it answers: asked when nobody else can be.
    pub(crate) leaving: bool,
    /// Did it ever say what it serves?
    pub(crate) asked: bool,
    /// It left a moment ago.
    pub(crate) gone: bool,
    /// As it said itself.
    pub(crate) version: Option<String>,
    /// Why it was last found not to be ready, or did not say what it serves.
    pub(crate) error: Option<String>,
}

/// One resource, and who serves it, by id.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct RouteRow {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) servers: Vec<String>,
}

/// A group and a version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct GroupVersionRow {
    pub(crate) group: String,
    pub(crate) version: String,
}

/// The table of this moment. Without live discovery there is no `status`.
pub(super) fn of(snapshot: &Snapshot, status: Option<&Status>, now: Instant) -> Routes {
    let ids = |set: ServerSet| set.iter().map(|index| snapshot.servers()[index.get()].id.as_str().to_owned()).collect();
    let mut routes: Vec<RouteRow> = snapshot
        .routes()
        .map(|(gvr, set)| RouteRow {
            group: gvr.group.into(),
            version: gvr.version.into(),
            resource: gvr.resource.into(),
            servers: ids(set),
        })
        .collect();
    routes.sort();
    let mut excluded: Vec<_> = snapshot.excluded().map(|(group, version)| GroupVersionRow { group, version }).collect();
    excluded.sort();
    let age = status.and_then(|status| status.confirmed).map(|at| now.saturating_duration_since(at).as_secs_f64());
    Routes {
        generation: snapshot.generation(),
        age_seconds: age,
        complete: snapshot.is_complete(),
        servers: servers(snapshot, status),
        routes,
        excluded,
    }
}

/// Every server of the table, then those that discovery knows beside them; local first, else by id.
pub(super) fn servers(snapshot: &Snapshot, status: Option<&Status>) -> Vec<ServerRow> {
    let known = status.map_or(&[][..], |status| &status.servers);
    let named = |id: &str| known.iter().find(|server| server.view.id.as_str() == id);
    let mut rows: Vec<ServerRow> = snapshot
        .servers()
        .iter()
        .enumerate()
        .map(|(at, server)| {
            let is_in = |set: ServerSet| set.iter().any(|index| index.get() == at);
            let known = named(server.id.as_str());
            ServerRow {
                local: snapshot.local().get() == at,
                ready: is_in(snapshot.ready()),
                leaving: is_in(snapshot.leaving()),
                ..in_table(server, known)
            }
        })
        .collect();
    let beside = known.iter().filter(|server| !snapshot.servers().iter().any(|row| row.id == server.view.id));
    rows.extend(beside.map(|server| ServerRow {
        id: server.view.id.as_str().to_owned(),
        address: server.view.address.map(|(address, _)| address),
        via: server.view.address.map(|(_, via)| via_name(via).to_owned()),
        local: server.view.is_local,
        ready: false,
        leaving: false,
        asked: server.view.fetched.is_some(),
        gone: server.view.is_gone,
        version: server.version.clone(),
        error: server.error.clone(),
    }));
    rows.sort_by(|a, b| (!a.local, &a.id).cmp(&(!b.local, &b.id)));
    rows
}

/// What a file says needs no asking.
fn in_table(server: &Server, known: Option<&ServerStatus>) -> ServerRow {
    ServerRow {
        id: server.id.as_str().to_owned(),
        address: Some(server.address),
        via: Some(via_name(server.via).to_owned()),
        local: false,
        ready: false,
        leaving: false,
        asked: known.is_none_or(|known| known.view.fetched.is_some()),
        gone: false,
        version: known.and_then(|known| known.version.clone()),
        error: known.and_then(|known| known.error.clone()),
    }
}

fn via_name(via: Via) -> &'static str {
    match via {
        Via::Apiserver => "apiserver",
        Via::Proxy => "proxy",
    }
}

#[cfg(test)]
mod tests {
    use discovery::inventory::View;
    use discovery::{Gvr, ServerId, SnapshotBuilder};

    use super::*;

    #[test]
    fn the_table_and_what_is_beside_it() {
        let mut builder = SnapshotBuilder::new(7);
        let b = builder.server(Server::new(ServerId::new("cp-b"), ([10, 0, 0, 2], 6443).into())).unwrap();
        let a = builder.server(Server::new(ServerId::new("cp-z"), ([10, 0, 0, 1], 6443).into())).unwrap();
        builder.local(a);
        builder.leaving(b);
        builder.serve(&Gvr::new("batch", "v1", "jobs"), ServerSet::only(b)).unwrap();
        builder.serve(&Gvr::new("", "v1", "pods"), ServerSet::only(a)).unwrap();
        builder.exclude("example.com", "v1").unwrap();
        let snapshot = builder.build().unwrap();
        let gone = View {
            id: ServerId::new("cp-c"),
            is_local: false,
            address: None,
            is_ready: false,
            is_gone: true,
            holder: None,
            fetched: None,
            gvrs: 3,
        };
        let unasked = View { id: ServerId::new("cp-b"), is_gone: false, gvrs: 0, ..gone.clone() };
        let of = |view, version: Option<&str>| ServerStatus { view, version: version.map(Into::into), error: None };
        let status = Status { servers: vec![of(gone, Some("v1.36.0")), of(unasked, None)], ..Status::default() };
        let routes = super::of(&snapshot, Some(&status), Instant::now());
        let servers: Vec<_> = routes.servers.iter().map(|row| (&*row.id, row.local, row.ready, row.gone)).collect();
        assert_eq!(servers, [("cp-z", true, true, false), ("cp-b", false, false, false), ("cp-c", false, false, true)]);
        let more: Vec<_> = routes.servers.iter().map(|row| (row.leaving, row.asked)).collect();
        assert_eq!(more, [(false, true), (true, false), (false, false)], "cp-b leaves, and was never asked");
        assert_eq!((routes.servers[1].version.as_deref(), routes.servers[2].version.as_deref()), (None, Some("v1.36.0")));
        let names: Vec<_> = routes.routes.iter().map(|row| (&*row.group, &*row.resource, row.servers.concat())).collect();
        assert_eq!(names, [("", "pods", "cp-z".to_owned()), ("batch", "jobs", "cp-b".to_owned())]);
        assert_eq!(routes.excluded, [GroupVersionRow { group: "example.com".into(), version: "v1".into() }]);
        let text = serde_json::to_string(&routes).unwrap();
        assert!(text.starts_with(r#"{"generation":7,"ageSeconds":null,"complete":true,"#), "{text}");
        let again: Routes = serde_json::from_str(&text).unwrap();
        assert_eq!(again.servers, routes.servers);
    }
}
