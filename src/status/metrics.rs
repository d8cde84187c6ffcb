//! `/metrics` in the text form of Prometheus (0.0.4): KEP-4020's names, as dashboards know them, and our own.
//!
//! What always holds: every name has its help and type once, and all its rows together; labels are names of resources that a snapshot
//! knew, ids of servers, and words of ours, so their number is limited.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::time::Instant;

use discovery::Snapshot;
use discovery::live::{Source, SourceState, Status};
use engine::ShardView;
use engine::core::{ADDED_BOUNDS, Added, LaneLoad, PeerError, Tally};

use super::http::Reply;

/// All of it, as of now.
pub(super) fn reply(shards: &[ShardView], snapshot: Option<&Snapshot>, status: Option<&Status>) -> Reply {
    let mut page = Page::default();
    put_kep(&mut page, shards, status);
    put_requests(&mut page, shards);
    put_pools(&mut page, shards);
    if let Some(snapshot) = snapshot {
        put_snapshot(&mut page, snapshot, status);
    }
    if let Some(status) = status {
        put_discovery(&mut page, status);
    }
    page.put(
        "mvproxy_build_info",
        "gauge",
        "Always 1; the version is the label.",
        [(vec![("version", env!("CARGO_PKG_VERSION").into())], 1)],
    );
    Reply { status: 200, content_type: "text/plain; version=0.0.4; charset=utf-8", body: page.0 }
}

type Labels = Vec<(&'static str, String)>;

/// The text as it grows.
#[derive(Default)]
struct Page(String);

impl Page {
    /// One metric with all its rows.
    fn put<V: Display>(&mut self, name: &str, kind: &str, help: &str, rows: impl IntoIterator<Item = (Labels, V)>) {
        self.head(name, kind, help);
        for (labels, value) in rows {
            self.row(name, &labels, value);
        }
    }

    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Into a string nothing can fail.
        writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}").ok();
    }

    fn row(&mut self, name: &str, labels: &[(&str, String)], value: impl Display) {
        self.0.push_str(name);
        for (at, (label, text)) in labels.iter().enumerate() {
            let text = text.replace('\\', r"\\").replace('"', r#"\""#).replace('\n', r"\n");
            write!(self.0, "{}{label}=\"{text}\"", if at == 0 { '{' } else { ',' }).ok();
        }
        writeln!(self.0, "{} {value}", if labels.is_empty() { "" } else { "}" }).ok();
    }
}

/// The names of KEP-4020.
fn put_kep(page: &mut Page, shards: &[ShardView], status: Option<&Status>) {
    let rerouted = merged(shards, |shard| &shard.meters.rerouted);
    let rows = rerouted.into_iter().map(|((code, name), count)| (named("code", code.to_string(), name), count));
    page.put("apiserver_rerouted_request_total", "counter", "Requests that peers answered, by status code and resource.", rows);
    let errors = merged(shards, |shard| &shard.meters.peer_errors).into_iter().map(|((kind, name), count)| {
        let kind = match kind {
            PeerError::EndpointResolution => "endpoint_resolution",
            PeerError::ProxyTransport => "proxy_transport",
        };
        (named("type", kind.to_owned(), name), count)
    });
    page.put("apiserver_peer_proxy_errors_total", "counter", "Requests for peers that no peer answered, by cause and resource.", errors);
    let errors = status.map(|status| status.errors).unwrap_or_default();
    let rows = [
        ("lease_list", errors.lease_list),
        ("hostport_resolution", errors.hostport_resolution),
        ("fetch_discovery", errors.fetch_discovery),
    ];
    let rows = rows.map(|(kind, count)| (vec![("type", kind.to_owned())], count));
    page.put("apiserver_peer_discovery_sync_errors_total", "counter", "Failures to learn who the servers are and what they serve.", rows);
}

type Name = [String; 3];

/// The sum over the shards.
fn merged<K: Ord + Copy>(shards: &[ShardView], of: impl Fn(&ShardView) -> &Tally<K>) -> BTreeMap<(K, Name), u64> {
    let mut sums = BTreeMap::new();
    for row in shards.iter().flat_map(|shard| of(shard).rows()) {
        let name = [&row.gvr.group, &row.gvr.version, &row.gvr.resource].map(|part| part.to_string());
        *sums.entry((row.kind, name)).or_insert(0) += row.count;
    }
    sums
}

fn named(label: &'static str, text: String, [group, version, resource]: Name) -> Labels {
    vec![(label, text), ("group", group), ("version", version), ("resource", resource)]
}

fn put_requests(page: &mut Page, shards: &[ShardView]) {
    let mut each = |name: &str, kind: &str, help: &str, of: fn(&ShardView) -> u64| {
        let rows = shards.iter().enumerate().map(|(at, shard)| (vec![("shard", at.to_string())], of(shard)));
        page.put(name, kind, help, rows);
    };
    each("mvproxy_requests_total", "counter", "Requests taken from clients.", |shard| shard.counters.requests);
    each("mvproxy_rerouted_total", "counter", "Times a request was given to a peer.", |shard| shard.counters.rerouted);
    each("mvproxy_retried_total", "counter", "Times a request was given to another connection or server.", |shard| shard.counters.retried);
    each("mvproxy_refused_total", "counter", "Requests that mvproxy answered itself.", |shard| shard.counters.refused);
    each("mvproxy_body_bytes_total", "counter", "Body bytes forwarded, of both directions.", |shard| shard.counters.body_received);
    each("mvproxy_client_connections", "gauge", "Open connections of clients.", |shard| shard.connections as u64);
    each(
        "mvproxy_metrics_dropped_total",
        "counter",
        "Requests not counted by resource because there were too many kinds of them.",
        |shard| shard.meters.rerouted.dropped() + shard.meters.peer_errors.dropped(),
    );
    let sum = |of: fn(&ShardView) -> &Added| {
        shards.iter().map(of).fold(Added::default(), |mut sum, added| {
            sum.buckets.iter_mut().zip(added.buckets).for_each(|(sum, count)| *sum += count);
            sum.nanos += added.nanos;
            sum
        })
    };
    let help = "Time that mvproxy adds on the way to a server: from the wake-up that brought the head of a request to its being written.";
    put_added(page, "mvproxy_request_added_seconds", help, &sum(|shard| &shard.meters.request_added));
    let help = "Time that mvproxy adds on the way back: from the wake-up that brought the head of an answer to its being written.";
    put_added(page, "mvproxy_response_added_seconds", help, &sum(|shard| &shard.meters.answer_added));
}

fn put_added(page: &mut Page, name: &str, help: &str, added: &Added) {
    page.head(name, "histogram", help);
    let mut count = 0;
    let ends = ADDED_BOUNDS.iter().map(|bound| bound.as_secs_f64().to_string()).chain(["+Inf".to_owned()]);
    for (end, bucket) in ends.zip(added.buckets) {
        count += bucket;
        page.row(&format!("{name}_bucket"), &[("le", end)], count);
    }
    #[expect(clippy::cast_precision_loss, reason = "a sum of seconds needs no more than a float has")]
    page.row(&format!("{name}_sum"), &[], added.nanos as f64 / 1e9);
    page.row(&format!("{name}_count"), &[], count);
}

/// What all shards have open to each server.
fn put_pools(page: &mut Page, shards: &[ShardView]) {
    let mut pools: BTreeMap<(String, &'static str), LaneLoad> = BTreeMap::new();
    let mut down: BTreeMap<String, usize> = BTreeMap::new();
    for server in shards.iter().flat_map(|shard| &shard.meters.servers) {
        *down.entry(server.id.as_str().to_owned()).or_default() += usize::from(server.is_down);
        for (lane, load) in ["short", "long"].into_iter().zip(server.lanes) {
            let sum = pools.entry((server.id.as_str().to_owned(), lane)).or_default();
            sum.connections += load.connections;
            sum.streams += load.streams;
            sum.waiting += load.waiting;
        }
    }
    let rows = |of: fn(&LaneLoad) -> usize| {
        let labels = |(server, lane): &(String, &'static str)| vec![("server", server.clone()), ("lane", (*lane).to_owned())];
        pools.iter().map(|(key, load)| (labels(key), of(load))).collect::<Vec<_>>()
    };
    page.put("mvproxy_server_connections", "gauge", "Open connections to a server.", rows(|load| load.connections));
    page.put("mvproxy_server_streams", "gauge", "Requests under way at a server.", rows(|load| load.streams));
    page.put("mvproxy_server_waiting", "gauge", "Requests that wait for a connection to a server.", rows(|load| load.waiting));
    let down = down.into_iter().map(|(server, shards)| (vec![("server", server)], shards));
    page.put("mvproxy_server_unreachable_shards", "gauge", "Shards that cannot connect to a server at the moment.", down);
}

fn put_snapshot(page: &mut Page, snapshot: &Snapshot, status: Option<&Status>) {
    page.put("mvproxy_snapshot_generation", "gauge", "Grows with every routing table.", [(Vec::new(), snapshot.generation())]);
    page.put("mvproxy_snapshot_resources", "gauge", "Resources in the routing table.", [(Vec::new(), snapshot.routes().count())]);
    page.put("mvproxy_servers", "gauge", "Servers in the routing table.", [(Vec::new(), snapshot.servers().len())]);
    let ready = snapshot.servers().iter().enumerate().map(|(at, server)| {
        let is_ready = snapshot.ready().iter().any(|index| index.get() == at);
        (vec![("server", server.id.as_str().to_owned())], u8::from(is_ready))
    });
    page.put("mvproxy_server_ready", "gauge", "Is 1 when the server may be sent requests.", ready);
    let age = |at: Option<Instant>| at.map(|at| (Vec::new(), at.elapsed().as_secs_f64()));
    let published = age(status.and_then(|status| status.published));
    page.put("mvproxy_snapshot_age_seconds", "gauge", "Time since the routing table changed.", published);
    let confirmed = age(status.and_then(|status| status.confirmed));
    page.put("mvproxy_snapshot_confirmed_age_seconds", "gauge", "Time since the routing table was found to be what is known.", confirmed);
}

fn put_discovery(page: &mut Page, status: &Status) {
    page.put("mvproxy_discovery_panics_total", "counter", "Times discovery panicked and was started again.", [(Vec::new(), status.panics)]);
    let synced = Source::ALL.map(|source| {
        let is_synced = status.source(source) == SourceState::Synced;
        (vec![("source", source.to_string())], u8::from(is_synced))
    });
    page.put("mvproxy_discovery_synced", "gauge", "Is 1 while the list of the source is kept up to date.", synced);
    page.put(
        "mvproxy_discovery_servers_unasked",
        "gauge",
        "Servers that never said what they serve.",
        [(Vec::new(), status.unfetched.len())],
    );
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use discovery::static_routes;

    use super::*;

    #[test]
    fn labels_are_escaped() {
        let mut page = Page::default();
        page.put("x", "gauge", "h.", [(vec![("a", "q\"b\\c\nd".to_owned()), ("b", String::new())], 1.5)]);
        assert_eq!(page.0, "# HELP x h.\n# TYPE x gauge\nx{a=\"q\\\"b\\\\c\\nd\",b=\"\"} 1.5\n");
    }

    #[test]
    fn buckets_are_cumulative() {
        let mut page = Page::default();
        let added = Added { buckets: [3, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1], nanos: 7_500_000_000 };
        put_added(&mut page, "mvproxy_request_added_seconds", "h.", &added);
        let rows: Vec<&str> = page.0.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            (rows[0], rows[2]),
            ("mvproxy_request_added_seconds_bucket{le=\"0.00001\"} 3", "mvproxy_request_added_seconds_bucket{le=\"0.00005\"} 5")
        );
        assert_eq!(
            rows[13..],
            [
                "mvproxy_request_added_seconds_bucket{le=\"+Inf\"} 6",
                "mvproxy_request_added_seconds_sum 7.5",
                "mvproxy_request_added_seconds_count 6"
            ]
        );
    }

    #[test]
    fn troubles_of_discovery_are_shown() {
        let mut status = Status { panics: 2, unfetched: vec!["cp-b".into()], ..Status::default() };
        status.errors.lease_list = 3;
        status.errors.hostport_resolution = 4;
        status.errors.fetch_discovery = 5;
        status.sources = vec![(Source::Leases, SourceState::Synced), (Source::CustomResources, SourceState::Failing("oh".into()))];
        let body = reply(&[], None, Some(&status)).body;
        for row in [
            "mvproxy_discovery_panics_total 2",
            "mvproxy_discovery_servers_unasked 1",
            "apiserver_peer_discovery_sync_errors_total{type=\"lease_list\"} 3",
            "apiserver_peer_discovery_sync_errors_total{type=\"hostport_resolution\"} 4",
            "apiserver_peer_discovery_sync_errors_total{type=\"fetch_discovery\"} 5",
            "mvproxy_discovery_synced{source=\"leases\"} 1",
            "mvproxy_discovery_synced{source=\"customresourcedefinitions\"} 0",
        ] {
            assert!(body.lines().any(|line| line == row), "{row} should be in:\n{body}");
        }
    }

    #[test]
    fn every_name_has_its_help_once() {
        let snapshot = static_routes::parse(r#"{local: a, servers: [{id: a, address: "1.1.1.1:1", serves: []}]}"#).unwrap();
        let reply = reply(&[], Some(&snapshot), Some(&Status::default()));
        let mut names = HashSet::new();
        for line in reply.body.lines().filter(|line| line.starts_with("# HELP")) {
            let name = line.split(' ').nth(2).unwrap();
            assert!(names.insert(name.to_owned()) && line.ends_with('.'), "{line}");
        }
        for line in reply.body.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            let base = ["_bucket", "_sum", "_count"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
            assert!(names.contains(base), "{line}");
        }
        assert!(reply.body.contains("mvproxy_server_ready{server=\"a\"} 1\n"), "{}", reply.body);
        assert!(reply.body.contains("apiserver_peer_discovery_sync_errors_total{type=\"fetch_discovery\"} 0\n"), "{}", reply.body);
    }
}
