//! `mvproxy skew`: which versions there are in the cluster, whether Kubernetes supports them together, and what the servers serve differently.

mod nodes;
mod policy;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::process::ExitCode;

use discovery::live::{Access, Certificates, Credentials};
use serde::Serialize;

use self::nodes::Versions;
use self::policy::{Found, Minor};
use super::{ask, print};
use crate::cli::{SkewFlags, TextOutput};
use crate::failure::Failure;
use crate::files::{self, Named};
use crate::status::routes::{RouteRow, Routes};
use crate::table;

/// What was found.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Report {
    /// Is nothing outside the policy, as far as is known?
    supported: bool,
    violations: Vec<String>,
    versions: Vec<VersionRow>,
    /// What is not known, and why.
    unknown: Vec<String>,
    /// What not all servers serve: who does, and what.
    differences: Vec<Difference>,
}

#[derive(Debug, Serialize)]
struct VersionRow {
    component: &'static str,
    version: String,
    count: usize,
    /// One that has it.
    example: String,
}

#[derive(Debug, Serialize)]
struct Difference {
    servers: Vec<String>,
    resources: Vec<String>,
}

/// Prints what was found; exit code 1 when it is outside the policy.
pub(crate) fn run(flags: &SkewFlags) -> Result<ExitCode, Failure> {
    let (routes, _) = ask::<Routes>(flags.status_port, "/routes")?;
    let (kubelets, proxies) = match (access(flags)?, server(flags, &routes)) {
        (Some(access), Some(server)) => (nodes::kubelets(&access, server), nodes::proxies(&access, server)),
        (Some(_), None) => (Err("no --server".to_owned()), Err("no --server".to_owned())),
        (None, _) => (Err(NOT_ASKED.to_owned()), Err(NOT_ASKED.to_owned())),
    };
    let report = report(&routes, kubelets, proxies);
    match flags.output {
        TextOutput::Text => print(&render(&report)),
        TextOutput::Json => {
            let json = serde_json::to_string_pretty(&report).map_err(Failure::runtime)?;
            print(&(json + "\n"));
        }
    }
    Ok(if report.supported { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

const NOT_ASKED: &str = "not asked: give --kubeconfig and --ca-file";

fn access(flags: &SkewFlags) -> Result<Option<Access>, Failure> {
    let (Some(path), Some(ca)) = (&flags.kubeconfig, &flags.ca_file) else { return Ok(None) };
    let kubeconfig = Named { flag: "--kubeconfig", path };
    let text = files::text(kubeconfig)?;
    let folder = path.parent().unwrap_or(path);
    let credentials = Credentials::from_kubeconfig(&text, folder).map_err(|error| kubeconfig.refused(error))?;
    let ca = files::read_pem(Named { flag: "--ca-file", path: ca })?;
    let certificates = Certificates { local_ca: ca.clone(), peer_ca: ca, client_pair: None };
    Ok(Some(Access { credentials, certificates }))
}

/// Who is asked: the server that was named, else the one behind the instance.
fn server(flags: &SkewFlags, routes: &Routes) -> Option<SocketAddr> {
    let local = || routes.servers.iter().find(|server| server.local).and_then(|server| server.address);
    flags.server.map(|url| url.0).or_else(local)
}

fn report(routes: &Routes, kubelets: Result<Versions, String>, proxies: Result<Versions, String>) -> Report {
    let mut unknown = Vec::new();
    let mut servers = Vec::new();
    for server in routes.servers.iter().filter(|server| !server.gone) {
        match &server.version {
            // Each by itself: which one is old is what is asked for.
            Some(version) => servers.push((version.clone(), (1, server.id.clone()))),
            None => unknown.push(format!("kube-apiserver {}: it did not say", server.id)),
        }
        if !server.asked {
            unknown.push(format!("resources of kube-apiserver {}: it did not say what it serves", server.id));
        }
    }
    let mut versions = Vec::new();
    let mut found = Vec::new();
    let components = [("kube-apiserver", Ok(servers)), ("kubelet", kubelets.map(rows)), ("kube-proxy", proxies.map(rows))];
    for (component, known) in components {
        let known = known.unwrap_or_else(|why| {
            unknown.push(format!("{component}: {why}"));
            Vec::new()
        });
        let mut minors = Vec::new();
        for (version, (count, example)) in known {
            match Minor::parse(&version) {
                Some(minor) => minors.push(Found { minor, example: example.clone() }),
                None => unknown.push(format!("{component} of {example}: {version:?} is no version")),
            }
            versions.push(VersionRow { component, version, count, example });
        }
        found.push(minors);
    }
    let violations = match &*found {
        [servers, kubelets, proxies] => policy::violations(servers, kubelets, proxies),
        _ => Vec::new(),
    };
    Report { supported: violations.is_empty(), violations, versions, unknown, differences: differences(routes) }
}

fn rows(versions: Versions) -> Vec<(String, (usize, String))> {
    versions.into_iter().collect()
}

/// Resources that some server does not serve, of those that said what they serve; by who does.
fn differences(routes: &Routes) -> Vec<Difference> {
    let all: Vec<&String> =
        routes.servers.iter().filter(|server| !server.gone && server.address.is_some() && server.asked).map(|server| &server.id).collect();
    let is_missed = |route: &&RouteRow| all.iter().any(|id| !route.servers.contains(id));
    let mut by_servers: BTreeMap<&[String], Vec<String>> = BTreeMap::new();
    for route in routes.routes.iter().filter(is_missed) {
        let group = if route.group.is_empty() { String::new() } else { format!("{}/", route.group) };
        by_servers.entry(&route.servers).or_default().push(format!("{group}{}/{}", route.version, route.resource));
    }
    by_servers.into_iter().map(|(servers, resources)| Difference { servers: servers.to_vec(), resources }).collect()
}

fn render(report: &Report) -> String {
    let rows =
        report.versions.iter().map(|row| vec![row.component.to_owned(), row.version.clone(), row.count.to_string(), row.example.clone()]);
    let mut text = table::rows(&["COMPONENT", "VERSION", "COUNT", "SUCH AS"], &rows.collect::<Vec<_>>());
    for line in &report.unknown {
        text += &format!("unknown: {line}\n");
    }
    text.push('\n');
    match &*report.differences {
        [] => text += "all servers serve the same resources\n",
        differences => {
            for difference in differences {
                text += &format!("only {}: {}\n", difference.servers.join(", "), difference.resources.join(", "));
            }
        }
    }
    text.push('\n');
    if report.supported {
        let known = if report.unknown.is_empty() { "" } else { ", as far as is known" };
        text += &format!("within Kubernetes' version skew policy{known}\n");
    }
    for sentence in &report.violations {
        text += &format!("outside Kubernetes' version skew policy: {sentence}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::routes::ServerRow;

    fn routes(versions: &[(&str, Option<&str>)]) -> Routes {
        let server = |&(id, version): &(&str, Option<&str>)| ServerRow {
            id: id.into(),
            address: Some(([10, 0, 0, 1], 1).into()),
            via: None,
            local: id == "a",
            ready: true,
            leaving: false,
            asked: true,
            gone: false,
            version: version.map(Into::into),
            error: None,
        };
        let row = |resource: &str, servers: &[&str]| RouteRow {
            group: String::new(),
            version: "v1".into(),
            resource: resource.into(),
            servers: servers.iter().map(|&id| id.into()).collect(),
        };
        Routes {
            generation: 1,
            age_seconds: None,
            complete: true,
            servers: versions.iter().map(server).collect(),
            routes: vec![row("pods", &["a", "b"]), row("x", &["b"]), row("y", &["b"])],
            excluded: Vec::new(),
        }
    }

    fn with_pods_everywhere(mut routes: Routes) -> Routes {
        routes.routes[0].servers = routes.servers.iter().map(|server| server.id.clone()).collect();
        routes
    }

    fn versions(of: &[(&str, usize)]) -> Versions {
        of.iter().map(|&(version, count)| (version.to_owned(), (count, format!("n-{version}")))).collect()
    }

    #[test]
    fn a_report_for_people() {
        let report = report(
            &with_pods_everywhere(routes(&[("a", Some("v1.35.1")), ("b", Some("v1.36.0")), ("c", Some("v1.35.1"))])),
            Ok(versions(&[("v1.35.0", 3), ("v1.36.0", 1)])),
            Err("denied (403)".into()),
        );
        assert_eq!(
            render(&report),
            "COMPONENT       VERSION  COUNT  SUCH AS
kube-apiserver  v1.35.1  1      a
kube-apiserver  v1.36.0  1      b
kube-apiserver  v1.35.1  1      c
kubelet         v1.35.0  3      n-v1.35.0
kubelet         v1.36.0  1      n-v1.36.0
unknown: kube-proxy: denied (403)

only b: v1/x, v1/y

outside Kubernetes' version skew policy: kubelet of n-v1.36.0 is v1.36, newer than kube-apiserver a, which is v1.35: upgrade all kube-apiservers first
"
        );
        assert!(!report.supported);
    }

    #[test]
    fn what_is_unknown_is_no_violation() {
        let report = report(&routes(&[("a", None), ("b", Some("v1.36.0"))]), Ok(versions(&[("odd", 1)])), Ok(versions(&[("", 2)])));
        assert!(report.supported);
        assert_eq!(
            report.unknown,
            ["kube-apiserver a: it did not say", "kubelet of n-odd: \"odd\" is no version", "kube-proxy of n-: \"\" is no version"]
        );
        assert!(render(&report).ends_with("within Kubernetes' version skew policy, as far as is known\n"));
    }

    /// Else every resource looks like one that it does not serve.
    #[test]
    fn a_server_that_never_said_what_it_serves_makes_no_difference() {
        let mut routes = routes(&[("a", Some("v1.36.0")), ("b", Some("v1.36.0")), ("c", None)]);
        routes.servers[2].asked = false;
        let report = report(&routes, Ok(Versions::new()), Ok(Versions::new()));
        let only: Vec<_> = report.differences.iter().map(|row| (row.servers.join(" "), row.resources.join(" "))).collect();
        assert_eq!(only, [("b".to_owned(), "v1/x v1/y".to_owned())]);
        assert_eq!(report.unknown[1], "resources of kube-apiserver c: it did not say what it serves");
    }
}
