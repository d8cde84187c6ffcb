//! What a shard counts beside [`Counters`](super::Counters): what went to peers by resource, how long requests waited here, and what its pools hold.
//!
//! What always holds: names are those of resources that a snapshot knew, or empty; there are at most [`ROWS_MAX`] of them in a table; to
//! count allocates only when a row is new; the numbers are plain memory of the shard, and others see copies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use discovery::{Gvr, ServerId, Snapshot};

use super::Core;
use super::exchange::Exchange;
use super::pool::Pool;
use crate::http2::hpack::{HeaderBlock, Token};
use crate::request::{Scratch, Target};
use crate::respond::Failure;

/// Rows of one table: 200 resources with 20 status codes each.
const ROWS_MAX: usize = 4_096;

/// Heads of one wake-up that are remembered until it ends: more than a shard has in a busy one.
const LEAVING_MAX: usize = 4_096;

/// The upper ends of the buckets of [`Added`]: a wake-up takes microseconds, waiting for a server up to seconds.
pub const ADDED_BOUNDS: [Duration; 13] = [
    Duration::from_micros(10),
    Duration::from_micros(25),
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(250),
    Duration::from_micros(500),
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(25),
    Duration::from_millis(100),
    Duration::from_millis(500),
    Duration::from_secs(1),
    Duration::from_secs(5),
];

/// Why a request that only peers could answer was answered here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PeerError {
    /// No peer was there to be asked.
    EndpointResolution,
    /// A peer was asked, and did not answer.
    ProxyTransport,
}

/// How often something happened, by resource.
#[derive(Debug)]
pub struct Tally<K> {
    /// In the order of kind, group, version and resource.
    rows: Vec<Row<K>>,
    /// What was not counted because there are too many rows.
    dropped: u64,
}

/// One row of a [`Tally`].
#[derive(Clone, Debug)]
pub struct Row<K> {
    /// What happened.
    pub kind: K,
    /// To what; empty names when it is no resource that is known.
    pub gvr: Arc<Gvr>,
    /// How often.
    pub count: u64,
}

impl<K: Ord + Copy> Tally<K> {
    /// The rows, in order.
    pub fn rows(&self) -> &[Row<K>] {
        &self.rows
    }

    /// How often something was not counted because there are too many rows.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    fn add(&mut self, kind: K, [group, version, resource]: [&[u8]; 3]) {
        let order = |row: &Row<K>| {
            let name = (row.gvr.group.as_bytes(), row.gvr.version.as_bytes(), row.gvr.resource.as_bytes());
            row.kind.cmp(&kind).then_with(|| name.cmp(&(group, version, resource)))
        };
        match self.rows.binary_search_by(order) {
            Ok(at) => self.rows[at].count += 1,
            Err(at) if self.rows.len() < ROWS_MAX => {
                let [group, version, resource] = [group, version, resource].map(String::from_utf8_lossy);
                self.rows.insert(at, Row { kind, gvr: Arc::new(Gvr::new(&group, &version, &resource)), count: 1 });
            }
            Err(_) => self.dropped += 1,
        }
    }
}

impl<K> Default for Tally<K> {
    fn default() -> Self {
        Self { rows: Vec::new(), dropped: 0 }
    }
}

impl<K: Clone> Clone for Tally<K> {
    fn clone(&self) -> Self {
        Self { rows: self.rows.clone(), dropped: self.dropped }
    }

    /// Into the memory that is there.
    fn clone_from(&mut self, other: &Self) {
        self.rows.clone_from(&other.rows);
        self.dropped = other.dropped;
    }
}

/// How long heads were here: from the wake-up that brought them to the end of the one that wrote them.
#[derive(Clone, Debug, Default)]
pub struct Added {
    /// By [`ADDED_BOUNDS`], and one for what took longer. Not cumulative.
    pub buckets: [u64; ADDED_BOUNDS.len() + 1],
    /// The sum.
    pub nanos: u64,
}

impl Added {
    fn add(&mut self, time: Duration) {
        let bucket = ADDED_BOUNDS.iter().position(|bound| time <= *bound).unwrap_or(ADDED_BOUNDS.len());
        self.buckets[bucket] += 1;
        self.nanos = self.nanos.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    }
}

/// Which way a head goes.
#[derive(Clone, Copy, Debug)]
enum Way {
    ToServer,
    ToClient,
}

/// What a shard has open to a server.
#[derive(Clone, Debug)]
pub struct ServerLoad {
    /// Which.
    pub id: ServerId,
    /// Where.
    pub address: SocketAddr,
    /// For requests that end soon, and for watches.
    pub lanes: [LaneLoad; 2],
    /// Connections to it fail.
    pub is_down: bool,
}

/// What a lane has open.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LaneLoad {
    /// Connections, those under way not counted.
    pub connections: usize,
    /// Requests on them.
    pub streams: usize,
    /// Requests that wait for one.
    pub waiting: usize,
}

/// All of it.
#[derive(Debug, Default)]
pub struct Meters {
    /// Answers of peers, by status code.
    pub rerouted: Tally<u16>,
    /// Requests for peers that no peer answered.
    pub peer_errors: Tally<PeerError>,
    /// How long heads of requests were here.
    pub request_added: Added,
    /// How long heads of answers were.
    pub answer_added: Added,
    /// The pools.
    pub servers: Vec<ServerLoad>,
    /// Heads that leave with this wake-up, and how long they waited before it. No copy has them.
    leaving: Vec<(Way, Duration)>,
}

impl Clone for Meters {
    fn clone(&self) -> Self {
        let mut copy = Self::default();
        copy.clone_from(self);
        copy
    }

    /// Into the memory that is there.
    fn clone_from(&mut self, other: &Self) {
        self.rerouted.clone_from(&other.rerouted);
        self.peer_errors.clone_from(&other.peer_errors);
        self.request_added = other.request_added.clone();
        self.answer_added = other.answer_added.clone();
        self.servers.clone_from(&other.servers);
    }
}

impl Meters {
    /// A server answered. Only what came from a peer is of interest, and only its head: the path is read once more for it.
    pub(super) fn count_rerouted(&mut self, status: u16, request: &HeaderBlock, scratch: &mut Scratch, snapshot: &Snapshot) {
        self.rerouted.add(status, name_of(request, scratch, snapshot));
    }

    /// A request is answered here.
    pub(super) fn count_failure(&mut self, failure: Failure, entry: &Exchange, scratch: &mut Scratch, snapshot: &Snapshot) {
        let kind = match failure {
            Failure::NotServedHere | Failure::ServersGone | Failure::NotYetKnown => PeerError::EndpointResolution,
            Failure::NoServer | Failure::Interrupted | Failure::Timeout | Failure::Overloaded if entry.is_for_peers => {
                if entry.attempts == 0 { PeerError::EndpointResolution } else { PeerError::ProxyTransport }
            }
            _ => return,
        };
        self.peer_errors.add(kind, name_of(&entry.request, scratch, snapshot));
    }

    /// The head of a request leaves with this wake-up, after it waited so long.
    pub(super) fn count_request(&mut self, waited: Duration) {
        self.leave(Way::ToServer, waited);
    }

    /// The head of an answer does.
    pub(super) fn count_answer(&mut self, waited: Duration) {
        self.leave(Way::ToClient, waited);
    }

    fn leave(&mut self, way: Way, waited: Duration) {
        if self.leaving.len() >= LEAVING_MAX {
            self.settle(Duration::ZERO);
        }
        self.leaving.push((way, waited));
    }

    /// What leaves has left; the wake-up took so long.
    fn settle(&mut self, work: Duration) {
        for (way, waited) in self.leaving.drain(..) {
            let added = match way {
                Way::ToServer => &mut self.request_added,
                Way::ToClient => &mut self.answer_added,
            };
            added.add(waited + work);
        }
    }
}

impl Core {
    /// A wake-up is over, and all that it had to say is written: counts how long the heads among that were here. `elapsed`, how long the
    /// wake-up took, is asked for only if there are any.
    pub fn end_wake_up(&mut self, elapsed: impl FnOnce() -> Duration) {
        if !self.meters.leaving.is_empty() {
            self.meters.settle(elapsed());
        }
    }

    /// Copies what was counted, and what the pools hold now, into `copy`.
    pub fn copy_meters(&self, copy: &mut Meters) {
        copy.clone_from(&self.meters);
        let lane =
            |pool: &Pool| LaneLoad { connections: pool.conns.len(), streams: pool.streams(&self.conns), waiting: pool.waiting.len() };
        let known = self.servers.iter().filter(|server| !server.left || !server.is_unused());
        copy.servers.extend(known.map(|server| ServerLoad {
            id: server.id.clone(),
            address: server.address,
            lanes: [lane(&server.lanes[0]), lane(&server.lanes[1])],
            is_down: server.is_down(),
        }));
    }
}

/// The resource that a request asks for, if the snapshot knows it: nobody may make rows by asking for what is not there.
fn name_of<'a>(request: &'a HeaderBlock, scratch: &'a mut Scratch, snapshot: &Snapshot) -> [&'a [u8]; 3] {
    let (Some(method), Some(path)) = (request.first(Token::METHOD), request.first(Token::PATH)) else { return [&[]; 3] };
    match Target::parse(method, path, scratch) {
        Ok(Target::Resource { name, .. }) if snapshot.knows(&name) => [name.group, name.version, name.resource],
        _ => [&[]; 3],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_in_order_and_limited() {
        let mut tally = Tally::default();
        for (code, resource) in [(404, "b"), (200, "b"), (200, "a"), (200, "b"), (404, "b"), (404, "b")] {
            tally.add(code, [b"g", b"v1", resource.as_bytes()]);
        }
        let rows: Vec<_> = tally.rows().iter().map(|row| (row.kind, row.gvr.to_string(), row.count)).collect();
        assert_eq!(rows, [(200, "g/v1/a".into(), 1), (200, "g/v1/b".into(), 2), (404, "g/v1/b".into(), 3)]);
        for nth in 0..ROWS_MAX {
            tally.add(200, [b"many", b"v1", nth.to_string().as_bytes()]);
        }
        assert_eq!((tally.rows().len(), tally.dropped()), (ROWS_MAX, 3));
        tally.add(404, [b"g", b"v1", b"b"]);
        assert_eq!(tally.rows().last().unwrap().count, 4);
        let mut copy = Tally::default();
        copy.clone_from(&tally);
        assert_eq!((copy.rows().len(), copy.dropped()), (ROWS_MAX, 3));
    }

    /// Else anybody could fill the table by asking for what is not there.
    #[test]
    fn only_known_resources_are_named() {
        let routes = r#"{local: a, servers: [{id: a, address: "1.1.1.1:1", serves: [{group: batch, version: v1, resources: [jobs]}]}]}"#;
        let snapshot = discovery::static_routes::parse(routes).unwrap();
        for (path, expected) in [
            ("/apis/batch/v1/namespaces/x/jobs/y?watch=1", ["batch", "v1", "jobs"]),
            ("/apis/batch%2Fv1/jobs", ["batch", "v1", "jobs"]),
            ("/apis/batch/v1/jobz", [""; 3]),
            ("/apis/batch/v1", [""; 3]),
            ("/healthz", [""; 3]),
            ("%", [""; 3]),
        ] {
            let mut request = HeaderBlock::default();
            request.push_token(Token::METHOD, b"GET");
            request.push_token(Token::PATH, path.as_bytes());
            assert_eq!(name_of(&request, &mut Scratch::default(), &snapshot), expected.map(str::as_bytes), "{path}");
        }
    }

    #[test]
    fn times_fall_into_buckets() {
        let mut added = Added::default();
        for micros in [0, 10, 11, 1_000, 6_000_000] {
            added.add(Duration::from_micros(micros));
        }
        assert_eq!(added.buckets, [2, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(added.nanos, 6_001_021_000);
    }

    #[test]
    fn what_leaves_with_a_wake_up_waited_for_its_end() {
        let mut meters = Meters::default();
        meters.count_request(Duration::ZERO);
        meters.count_answer(Duration::from_millis(3));
        assert_eq!((meters.request_added.nanos, meters.answer_added.nanos), (0, 0), "not yet");
        meters.settle(Duration::from_micros(20));
        assert_eq!((meters.request_added.nanos, meters.answer_added.nanos), (20_000, 3_020_000));
        meters.settle(Duration::from_micros(20));
        assert_eq!((meters.request_added.buckets[1], meters.answer_added.buckets[7]), (1, 1), "once");
        for _ in 0..2 * LEAVING_MAX {
            meters.count_request(Duration::ZERO);
        }
        assert!(meters.leaving.len() <= LEAVING_MAX);
    }
}
