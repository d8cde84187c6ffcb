//! `mvproxy routes`: which server serves what, as the instance on this host knows it.

use std::collections::HashSet;
use std::process::ExitCode;

use super::{ask, print};
use crate::cli::{Output, RoutesFlags};
use crate::failure::Failure;
use crate::status::routes::{Routes, ServerRow};
use crate::table;

/// What every apiserver's id begins with.
const ID_PREFIX: &str = "apiserver-";
/// How much of an id a column shows: they end with a hash.
const SHORT_ID: usize = 12;

/// Prints the table.
pub(crate) fn run(flags: &RoutesFlags) -> Result<ExitCode, Failure> {
    let (routes, json) = ask::<Routes>(flags.status_port, "/routes")?;
    match flags.output {
        Output::Json => print(&json),
        Output::Table => print(&render(&routes, false)),
        Output::Wide => print(&render(&routes, true)),
    }
    Ok(ExitCode::SUCCESS)
}

fn render(routes: &Routes, wide: bool) -> String {
    let shown = shown_ids(&routes.servers, wide);
    let age = routes.age_seconds.map_or_else(|| "from a file".to_owned(), |age| format!("confirmed {age:.1} s ago"));
    let incomplete = if routes.complete { "" } else { "; not every server was asked yet" };
    let mut text = format!("generation {}, {age}, {} resources{incomplete}\n\n", routes.generation, routes.routes.len());
    text += &servers(&routes.servers, &shown, wide);
    text.push('\n');
    let mut head = vec!["GROUP", "VERSION", "RESOURCE"];
    head.extend(shown.iter().map(|id| &**id));
    let rows: Vec<Vec<String>> = routes.routes.iter().map(|route| row(route, &routes.servers)).collect();
    text += &table::rows(&head, &rows);
    if !routes.excluded.is_empty() {
        let names: Vec<String> = routes.excluded.iter().map(|gv| format!("{}/{}", gv.group, gv.version)).collect();
        text += &format!("\ncustom and aggregated, answered by the local server: {}\n", names.join(", "));
    }
    text
}

fn row(route: &crate::status::routes::RouteRow, servers: &[ServerRow]) -> Vec<String> {
    let serves = servers.iter().map(|server| match route.servers.contains(&server.id) {
        true => "yes",
        false if server.asked => "-",
        // It never said.
        false => "?",
    });
    let mut cells = vec![route.group.clone(), route.version.clone(), route.resource.clone()];
    cells.extend(serves.map(str::to_owned));
    cells
}

fn servers(servers: &[ServerRow], shown: &[String], wide: bool) -> String {
    let mut head = vec!["SERVER", "LOCAL", "READY", "VERSION", "ADDRESS", "VIA"];
    if wide {
        head.push("LAST ERROR");
    }
    let text = |value: &Option<String>| value.clone().unwrap_or_else(|| "-".to_owned());
    let rows = servers.iter().zip(shown).map(|(server, id)| {
        let ready = match server {
            ServerRow { ready: true, .. } => "yes",
            ServerRow { gone: true, .. } => "gone",
            ServerRow { leaving: true, .. } => "leaving",
            _ => "no",
        };
        let local = if server.local { "yes" } else { "" };
        let address = server.address.map(|address| address.to_string());
        let mut cells = vec![id.clone(), local.to_owned(), ready.to_owned(), text(&server.version), text(&address), text(&server.via)];
        if wide {
            cells.push(text(&server.error));
        }
        cells
    });
    table::rows(&head, &rows.collect::<Vec<_>>())
}

/// The ids, shortened unless that makes two the same.
fn shown_ids(servers: &[ServerRow], wide: bool) -> Vec<String> {
    let short = |server: &ServerRow| match server.id.strip_prefix(ID_PREFIX) {
        Some(hash) if !wide => hash.chars().take(SHORT_ID).collect(),
        _ => server.id.clone(),
    };
    let ids: Vec<String> = servers.iter().map(short).collect();
    if ids.iter().collect::<HashSet<_>>().len() == ids.len() { ids } else { servers.iter().map(|server| server.id.clone()).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::routes::{GroupVersionRow, RouteRow};

    fn server(id: &str, local: bool, ready: bool) -> ServerRow {
        let (via, version) = (Some("apiserver".to_owned()), Some("v1.36.0".to_owned()));
        let address = Some(([10, 0, 0, 1], 6443).into());
        let (leaving, asked, gone) = (false, true, false);
        ServerRow { id: id.into(), address, via, local, ready, leaving, asked, gone, version, error: None }
    }

    #[test]
    fn a_table_of_resources_and_servers() {
        let mut routes = Routes {
            generation: 3,
            age_seconds: Some(0.25),
            complete: false,
            servers: vec![server("apiserver-aaaaaaaaaaaaaaaa", true, true), server("cp-b", false, false)],
            routes: vec![RouteRow { group: "batch".into(), version: "v1".into(), resource: "jobs".into(), servers: vec!["cp-b".into()] }],
            excluded: vec![GroupVersionRow { group: "x.io".into(), version: "v1".into() }],
        };
        assert_eq!(
            render(&routes, false),
            "generation 3, confirmed 0.2 s ago, 1 resources; not every server was asked yet

SERVER        LOCAL  READY  VERSION  ADDRESS        VIA
aaaaaaaaaaaa  yes    yes    v1.36.0  10.0.0.1:6443  apiserver
cp-b                 no     v1.36.0  10.0.0.1:6443  apiserver

GROUP  VERSION  RESOURCE  aaaaaaaaaaaa  cp-b
batch  v1       jobs      -             yes

custom and aggregated, answered by the local server: x.io/v1
"
        );
        assert!(render(&routes, true).contains("apiserver-aaaaaaaaaaaaaaaa"));
        routes.servers[0].asked = false;
        routes.servers[1].leaving = true;
        let text = render(&routes, false);
        assert!(text.contains("batch  v1       jobs      ?             yes\n"), "it never said: {text}");
        assert!(text.contains("cp-b                 leaving  v1.36.0  "), "{text}");
    }

    #[test]
    fn ids_are_shortened_when_they_stay_apart() {
        let ids = |ids: &[&str]| shown_ids(&ids.iter().map(|id| server(id, false, true)).collect::<Vec<_>>(), false);
        assert_eq!(ids(&["apiserver-0123456789abcdef", "apiserver-fedcba9876543210"]), ["0123456789ab", "fedcba987654"]);
        assert_eq!(ids(&["apiserver-0123456789abX", "apiserver-0123456789abY"]), ["apiserver-0123456789abX", "apiserver-0123456789abY"]);
    }
}
