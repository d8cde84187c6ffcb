//! The servers of the demo: what each is and serves, before the upgrade and after it. Pure.

use loadgen::twin::apis::{self, Api, Resource};

/// The Kubernetes versions that the simulated servers pretend to be.
const OLD: &str = "v1.35.8";
const NEW: &str = "v1.36.4";

/// One apiserver, as it is started.
pub(super) struct Server {
    /// Its name, and that of its host.
    pub(super) id: &'static str,
    pub(super) version: &'static str,
    pub(super) apis: Vec<Api>,
    /// What others have not, or it has not, in a few words.
    pub(super) differs: &'static str,
}

/// In the middle of an upgrade: one is new already.
pub(super) fn servers() -> Vec<Server> {
    vec![
        Server { id: "cp-a", version: OLD, apis: old_apis(), differs: "batch/v1 is off" },
        Server {
            id: "cp-b",
            version: OLD,
            apis: [old_apis(), apis::batch(), workloads()].concat(),
            differs: "scheduling.k8s.io/v1alpha1, dropped by v1.36, is on",
        },
        Server {
            id: "cp-c",
            version: NEW,
            apis: [new_apis(), apis::batch()].concat(),
            differs: "mutatingadmissionpolicies in v1, new in v1.36",
        },
    ]
}

/// What the old ones become, one after the other.
pub(super) fn upgrades() -> Vec<Server> {
    vec![
        Server { id: "cp-a", version: NEW, apis: new_apis(), differs: "batch/v1 is off" },
        Server { id: "cp-b", version: NEW, apis: [new_apis(), apis::batch()].concat(), differs: "" },
    ]
}

/// What every server of the old version has.
fn old_apis() -> Vec<Api> {
    [apis::everywhere(), apis::control_plane(), admission(&[])].concat()
}

/// The same of the new version, which adds one.
fn new_apis() -> Vec<Api> {
    let new = Resource::cluster("mutatingadmissionpolicies", "mutatingadmissionpolicy", "MutatingAdmissionPolicy");
    [apis::everywhere(), apis::control_plane(), admission(&[new])].concat()
}

fn admission(more: &[Resource]) -> Vec<Api> {
    let old = Resource::cluster("validatingadmissionpolicies", "validatingadmissionpolicy", "ValidatingAdmissionPolicy");
    vec![Api::new("admissionregistration.k8s.io", "v1", [&[old][..], more].concat())]
}

fn workloads() -> Vec<Api> {
    vec![Api::new("scheduling.k8s.io", "v1alpha1", vec![Resource::namespaced("workloads", "workload", "Workload")])]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn serves(server: &Server, group: &str, resource: &str) -> bool {
        server.apis.iter().any(|api| api.group == group && api.resources.iter().any(|served| served.plural == resource))
    }

    /// What is asked for while servers come and go is always served by one that stays, else a 404 would be right.
    #[test]
    fn an_upgrade_takes_nothing_away_that_is_asked_for() {
        let before = servers();
        let upgrades = upgrades();
        for after in &upgrades {
            let server = before.iter().find(|server| server.id == after.id).unwrap();
            assert_ne!(server.version, after.version);
            for (group, resource) in [("", "pods"), ("batch", "jobs"), ("admissionregistration.k8s.io", "mutatingadmissionpolicies")] {
                assert!(serves(after, group, resource) || !serves(server, group, resource), "{} {resource}", after.id);
                let mut stay = before.iter().filter(|other| upgrades.iter().all(|upgrade| upgrade.id != other.id));
                assert!(stay.any(|other| serves(other, group, resource)), "{resource}");
            }
        }
    }

    #[test]
    fn the_servers_differ() {
        let all = servers();
        let [a, b, c] = &all[..] else { panic!("three") };
        assert!(!serves(a, "batch", "jobs") && serves(b, "batch", "jobs") && serves(c, "batch", "jobs"));
        assert!(serves(b, "scheduling.k8s.io", "workloads") && !serves(c, "scheduling.k8s.io", "workloads"));
        let policies = |server: &Server| serves(server, "admissionregistration.k8s.io", "mutatingadmissionpolicies");
        assert_eq!([a, b, c].map(policies), [false, false, true]);
    }
}
