//! Where a request goes.
//!
//! [`explain`] (of which [`decide`] is the half that matters) reads like the list of guards of kubernetes.md §3.2, the first hit decides. What always holds: it is
//! pure, and every set it returns is of the snapshot it was given; local is in none of them; a request that came
//! from a peer never leaves for another one.
//!
//! It does not know which servers are healthy: the pool picks from the set it gets.

use discovery::{ServerSet, Snapshot, Standing};

use super::request::Target;

/// What was decided about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The local server answers.
    Local {
        /// The peers that could answer as well, asked only while local is down.
        fallback: ServerSet,
    },
    /// One of these peers answers; local cannot. Never empty.
    Peer(ServerSet),
    /// The proxy answers with an error.
    Refuse(Refusal),
}

impl Verdict {
    /// The local server or nobody.
    const LOCAL_ONLY: Self = Self::Local { fallback: ServerSet::empty() };
}

/// Why the proxy answers itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A peer sent the request here, but only other servers serve the resource: 503, because the peer's view and ours
    /// differ for a moment. A second hop could go round in circles, and a 404 from local would be wrong.
    NotServedHere,
    /// The servers of the resource left a moment ago: 503, because they come back, or another one with their version does.
    ServersGone,
    /// Some server was not asked yet what it serves: 503, because it may be this.
    NotYetKnown,
}

/// The guard that decided, for people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guard {
    /// No path of the API: health, metrics, debug and the like.
    OwnPath,
    /// Discovery, OpenAPI, version.
    DiscoveryPath,
    /// A peer's proxy sent it, so it goes no further.
    Hop,
    /// Local serves the resource.
    ServedHere,
    /// Local served it a moment ago, and may not any more; peers do.
    LocalInDoubt,
    /// Only peers serve it.
    ServedByPeers,
    /// A custom resource or an aggregated API.
    Excluded,
    /// Those who served it left a moment ago.
    Gone,
    /// Nobody is known to serve it, and not all were asked.
    Unasked,
    /// Nobody serves it.
    Unknown,
}

/// Decides where a request goes. `marker` says that another proxy sent it (by the peer port, or its `Via` says so), having decided already.
#[inline]
pub fn decide(snapshot: &Snapshot, target: &Target<'_>, marker: bool) -> Verdict {
    explain(snapshot, target, marker).1
}

/// The same, with the guard that decided.
#[inline]
pub fn explain(snapshot: &Snapshot, target: &Target<'_>, marker: bool) -> (Guard, Verdict) {
    let name = match target {
        // §3.2 rule 1: not a resource request -> local. Health, metrics and debug are about local alone.
        Target::Own { .. } => return (Guard::OwnPath, Verdict::LOCAL_ONLY),
        // Rule 1 too; any server has an answer to these, but rule 2 forbids a second hop.
        Target::Discovery if marker => return (Guard::Hop, Verdict::LOCAL_ONLY),
        Target::Discovery => {
            return (Guard::DiscoveryPath, Verdict::Local { fallback: snapshot.peers() });
        }
        Target::Resource { name, .. } => name,
    };
    let servers = match snapshot.lookup(name) {
        Ok(servers) => servers,
        Err(standing) => return nobody(snapshot, standing, marker),
    };
    let is_named_here = servers.contains(snapshot.local());
    let here = is_named_here && !snapshot.passes_over_local(servers);
    // Rule 2: marked -> local, without a second hop. Unlike kube-apiserver, what only others serve is refused: its 404
    // would tell a client that the resource does not exist.
    if marker {
        return (Guard::Hop, if here { Verdict::LOCAL_ONLY } else { Verdict::Refuse(Refusal::NotServedHere) });
    }
    // Rule 3 (nothing known yet -> local) needs no guard: a shard starts with a snapshot.
    // Rule 4: local serves it -> local, and the peers that serve it too stand by.
    let peers = servers.intersect(snapshot.peers());
    if here {
        return (Guard::ServedHere, Verdict::Local { fallback: peers });
    }
    // Rules 6 and 7: only peers serve it -> one of them. Every server of a snapshot has an address.
    (if is_named_here { Guard::LocalInDoubt } else { Guard::ServedByPeers }, Verdict::Peer(peers))
}

/// Rule 5: nobody serves it -> local, which answers 404, if that is the whole truth.
fn nobody(snapshot: &Snapshot, standing: Standing, marker: bool) -> (Guard, Verdict) {
    let (guard, verdict) = match standing {
        Standing::Unknown => (Guard::Unknown, Verdict::LOCAL_ONLY),
        // Custom resources and aggregated APIs are the same on all servers: any has the answer while local is down, but for a hop.
        Standing::Excluded if marker => (Guard::Excluded, Verdict::LOCAL_ONLY),
        Standing::Excluded => (Guard::Excluded, Verdict::Local { fallback: snapshot.peers() }),
        Standing::Gone => (Guard::Gone, Verdict::Refuse(Refusal::ServersGone)),
        Standing::Unasked => (Guard::Unasked, Verdict::Refuse(Refusal::NotYetKnown)),
    };
    (if marker { Guard::Hop } else { guard }, verdict)
}

#[cfg(test)]
mod tests {
    use discovery::{Gvr, Server, ServerId, SnapshotBuilder, static_routes};

    use super::*;
    use crate::request::Scratch;

    /// cp-a is local; `both` is on all three, `mine` on local, `theirs` on cp-b and cp-c.
    fn snapshot() -> Snapshot {
        static_routes::parse(
            r#"
local: cp-a
servers:
- {id: cp-b, address: "10.0.0.2:6443", serves: [{group: g, version: v1, resources: [both, theirs]}]}
- {id: cp-a, address: "10.0.0.1:6443", serves: [{group: g, version: v1, resources: [both, mine]}]}
- {id: cp-c, address: "10.0.0.3:6443", serves: [{group: g, version: v1, resources: [both, theirs]}]}
"#,
        )
        .unwrap()
    }

    /// A verdict as text.
    fn decided(path: &str, marker: bool) -> String {
        let (snapshot, mut scratch) = (snapshot(), Scratch::default());
        let target = Target::parse(b"GET", path.as_bytes(), &mut scratch).unwrap();
        let ids = |set: ServerSet| {
            let ids: Vec<_> = set.iter().map(|i| snapshot.servers()[i.get()].id.as_str()).collect();
            ids.join(" ")
        };
        match decide(&snapshot, &target, marker) {
            Verdict::Local { fallback } if fallback.is_empty() => "local".to_owned(),
            Verdict::Local { fallback } => format!("local, or {}", ids(fallback)),
            Verdict::Peer(peers) => format!("peer {}", ids(peers)),
            Verdict::Refuse(refusal) => format!("{refusal:?}"),
        }
    }

    #[test]
    fn a_hop_is_no_excuse_for_a_404() {
        let build = |fill: fn(&mut SnapshotBuilder)| {
            let mut builder = SnapshotBuilder::new(1);
            let local = builder.server(Server::new(ServerId::new("cp-a"), "10.0.0.1:6443".parse().unwrap())).unwrap();
            builder.local(local);
            fill(&mut builder);
            builder.build().unwrap()
        };
        let gone = build(|builder| builder.gone(&Gvr::new("g", "v1", "r")).unwrap());
        let unasked = build(SnapshotBuilder::incomplete);
        let custom = build(|builder| builder.exclude("g", "v1").unwrap());
        let mut scratch = Scratch::default();
        let target = Target::parse(b"GET", b"/apis/g/v1/r", &mut scratch).unwrap();
        assert_eq!(decide(&gone, &target, true), Verdict::Refuse(Refusal::ServersGone));
        assert_eq!(decide(&unasked, &target, true), Verdict::Refuse(Refusal::NotYetKnown));
        assert_eq!(decide(&custom, &target, true), Verdict::LOCAL_ONLY);
    }

    #[test]
    fn a_local_server_in_doubt_gives_way_to_a_ready_peer() {
        let build = |is_peer_ready: bool, is_in_doubt: bool| {
            let mut builder = SnapshotBuilder::new(1);
            let at = |id: &str, port| Server::new(ServerId::new(id), ([10, 0, 0, 1], port).into());
            let (local, peer) = (builder.server(at("cp-a", 1)).unwrap(), builder.server(at("cp-b", 2)).unwrap());
            builder.local(local);
            if !is_peer_ready {
                builder.unready(peer);
            }
            if is_in_doubt {
                builder.doubt_local();
            }
            builder.serve(&Gvr::new("g", "v1", "both"), ServerSet::only(local).union(ServerSet::only(peer))).unwrap();
            builder.serve(&Gvr::new("g", "v1", "mine"), ServerSet::only(local)).unwrap();
            (builder.build().unwrap(), ServerSet::only(peer))
        };
        let mut scratch = Scratch::default();
        let mut explained = |snapshot: &Snapshot, path: &[u8], marker| {
            let target = Target::parse(b"GET", path, &mut scratch).unwrap();
            explain(snapshot, &target, marker)
        };
        let (snapshot, peer) = build(true, true);
        assert_eq!(explained(&snapshot, b"/apis/g/v1/both", false), (Guard::LocalInDoubt, Verdict::Peer(peer)));
        assert_eq!(explained(&snapshot, b"/apis/g/v1/both", true), (Guard::Hop, Verdict::Refuse(Refusal::NotServedHere)));
        assert_eq!(explained(&snapshot, b"/apis/g/v1/mine", false), (Guard::ServedHere, Verdict::LOCAL_ONLY), "nobody else has it");
        for (is_peer_ready, is_in_doubt) in [(false, true), (true, false)] {
            let (snapshot, peer) = build(is_peer_ready, is_in_doubt);
            assert_eq!(explained(&snapshot, b"/apis/g/v1/both", false), (Guard::ServedHere, Verdict::Local { fallback: peer }));
            assert_eq!(explained(&snapshot, b"/apis/g/v1/both", true), (Guard::Hop, Verdict::LOCAL_ONLY));
        }
    }

    #[test]
    fn every_guard() {
        for (path, unmarked, marked) in [
            ("/healthz", "local", "local"),
            ("/", "local", "local"),
            ("/apis/g/v1/watch", "local", "local"),
            ("/apis", "local, or cp-b cp-c", "local"),
            ("/apis/g/v1", "local, or cp-b cp-c", "local"),
            ("/apis/g/v1/both", "local, or cp-b cp-c", "local"),
            ("/apis/g/v1/mine", "local", "local"),
            ("/apis/g/v1/theirs", "peer cp-b cp-c", "NotServedHere"),
            ("/apis/g/v1/namespaces/x/theirs/y/status?watch=1", "peer cp-b cp-c", "NotServedHere"),
            ("/apis/g%2Fv1/theirs", "peer cp-b cp-c", "NotServedHere"),
            ("/apis/g/v1/watch/theirs", "peer cp-b cp-c", "NotServedHere"),
            ("/apis/g/v1//theirs", "local", "local"),
            ("/apis/g/v1/unknown", "local", "local"),
            ("/apis/G/v1/theirs", "local", "local"),
            ("/api/v1/theirs", "local", "local"),
        ] {
            assert_eq!(decided(path, false), unmarked, "{path}");
            assert_eq!(decided(path, true), marked, "{path}, marked");
        }
    }
}
