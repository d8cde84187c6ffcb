//! Servers that were lost: one that starts anew listens long before it can be used, and says of what it does not know yet that there is no
//! such thing. Where servers are probed, nothing is sent to one before a probe has succeeded since; each test is one sentence.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod sim;

use std::time::{Duration, Instant};

use discovery::{Gvr, Server, ServerId, ServerSet, Snapshot, SnapshotBuilder, Trust};
use engine::core::Sign;
use sim::end::Event;
use sim::stage::{BOTH, Door, OK, Stage, THEIRS, WIDE, field, stage, status};

/// What only local serves.
const MINE: &str = "/apis/g/v1/mine";
/// Longer than a handshake takes.
const LATE: Duration = Duration::from_millis(300);
/// A tick, while there is a doubt.
const SOON: Duration = Duration::from_millis(50);

/// Local, and a peer, of which this is known; who is not ready is named.
fn snapshot(generation: u64, trust: Option<Trust>, unready: &[usize]) -> Snapshot {
    let mut builder = SnapshotBuilder::new(generation);
    let at = |id: &str, port: u16| Server::new(ServerId::new(id), ([10, 0, 0, 1], port).into());
    let servers = [builder.server(at("s0", 1)).unwrap(), builder.server(at("s1", 2)).unwrap()];
    builder.local(servers[0]);
    servers.iter().for_each(|&server| trust.into_iter().for_each(|trust| builder.trust(server, trust)));
    unready.iter().for_each(|&at| builder.unready(servers[at]));
    let [local, peer] = servers.map(ServerSet::only);
    for (resource, by) in [("mine", local), ("theirs", peer), ("both", local.union(peer))] {
        builder.serve(&Gvr::new("g", "v1", resource), by).unwrap();
    }
    builder.build().unwrap()
}

/// Nobody was lost yet.
const PROBED: Option<Trust> = Some(Trust { lost: None, vouched: None });

/// Probes that begin at this moment vouch for everybody.
fn publish(stage: &mut Stage, generation: u64) {
    stage.publisher.publish(snapshot(generation, Some(Trust { lost: None, vouched: Some(stage.now) }), &[]));
}

/// A probed control plane, and a client that was answered by both servers.
fn probed() -> (Stage, usize) {
    let mut stage = stage();
    stage.publisher.publish(snapshot(2, PROBED, &[]));
    let client = stage.client(WIDE);
    for (path, server) in [(MINE, 0), (THEIRS, 1)] {
        stage.get(client, path);
        answer(&mut stage, server);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    }
    (stage, client)
}

/// What discovery is told of a server that was lost then.
fn signs(server: usize, at: Instant) -> Vec<Sign> {
    let lost = Sign::Lost { server: ServerId::new(&format!("s{server}")), at };
    if server == 0 { vec![Sign::LocalLost, lost] } else { vec![lost] }
}

/// A server answers all it was asked; how many was that?
fn answer(stage: &mut Stage, server: usize) -> usize {
    let mut count = 0;
    for wire in stage.to_server(server) {
        for (arrived, _) in stage.requests(wire) {
            stage.reply(wire, arrived, &OK, true);
            count += 1;
        }
    }
    count
}

fn lose_all(stage: &mut Stage, server: usize) {
    for wire in stage.to_server(server) {
        stage.lose(wire);
    }
}

/// Connections that were ever asked for.
fn connections(stage: &Stage, server: usize) -> usize {
    stage.wires.iter().filter(|wire| wire.server == Some(server)).count()
}

#[test]
fn what_only_a_lost_server_serves_waits_until_it_is_vouched_for() {
    for (path, server) in [(MINE, 0), (THEIRS, 1)] {
        let (mut stage, client) = probed();
        lose_all(&mut stage, server);
        stage.get(client, path);
        stage.pass(Duration::from_millis(900));
        assert_eq!((connections(&stage, server), stage.seen(client)), (1, vec![]), "nobody knows who is there");
        publish(&mut stage, 3);
        stage.pass(SOON);
        assert_eq!(answer(&mut stage, server), 1);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    }
}

#[test]
fn what_only_a_lost_server_serves_is_503_when_a_probe_finds_it_away() {
    for (path, server) in [(MINE, 0), (THEIRS, 1)] {
        let (mut stage, client) = probed();
        lose_all(&mut stage, server);
        stage.ask(client, "POST", path, true);
        stage.publisher.publish(snapshot(3, PROBED, &[server]));
        stage.pass(SOON);
        let events = stage.seen(client);
        let Event::Head { fields, .. } = &events[0] else { panic!("{events:?}") };
        assert_eq!((field(fields, ":status"), field(fields, "retry-after").is_some()), (Some("503"), true));
        assert_eq!(connections(&stage, server), 1);
        // It says so before it vouches for it: it was asked what it serves in between.
        publish(&mut stage, 4);
        stage.get(client, path);
        assert_eq!(answer(&mut stage, server), 1);
    }
}

#[test]
fn what_another_server_serves_as_well_is_asked_there_at_once() {
    let (mut stage, client) = probed();
    stage.get(client, BOTH);
    let wire = stage.to_server(0)[0];
    assert_eq!(stage.requests(wire).len(), 1);
    stage.lose(wire);
    assert_eq!(answer(&mut stage, 1), 1, "a read that was lost");
    stage.get(client, BOTH);
    assert_eq!(answer(&mut stage, 1), 1, "a new one");
    publish(&mut stage, 3);
    stage.get(client, BOTH);
    assert_eq!(answer(&mut stage, 0), 1, "local again");
}

/// Its kernel takes the connection, and the server goes on with it when it is half started.
#[test]
fn a_connection_that_took_long_is_not_used_before_its_server_is_vouched_for() {
    for after in [Duration::ZERO, LATE] {
        let mut stage = stage();
        stage.publisher.publish(snapshot(2, PROBED, &[]));
        stage.doors[0] = Door::Hangs;
        let client = stage.client(WIDE);
        stage.get(client, MINE);
        let wire = stage.wires.iter().position(|wire| wire.server == Some(0)).unwrap();
        stage.pass(after);
        stage.establish(wire);
        let is_late = after > Duration::ZERO;
        let told = if is_late { signs(0, stage.now) } else { Vec::new() };
        assert_eq!((answer(&mut stage, 0), &stage.signs), (usize::from(!is_late), &told));
        publish(&mut stage, 3);
        stage.pass(SOON);
        assert_eq!(answer(&mut stage, 0), usize::from(is_late), "on the same connection");
        assert_eq!(connections(&stage, 0), 1);
    }
}

/// They were given to it when it was ready, and wait for a connection that its kernel has taken.
#[test]
fn those_who_wait_for_a_connection_go_elsewhere_when_the_server_is_not_ready_any_more() {
    let mut stage = stage();
    stage.publisher.publish(snapshot(2, PROBED, &[]));
    stage.doors[0] = Door::Hangs;
    let client = stage.client(WIDE);
    stage.get(client, MINE);
    stage.publisher.publish(snapshot(3, PROBED, &[0]));
    stage.pass(Duration::from_millis(100));
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"));
    let wire = stage.wires.iter().position(|wire| wire.server == Some(0)).unwrap();
    stage.establish(wire);
    stage.get(client, MINE);
    assert_eq!((answer(&mut stage, 0), status(&stage.seen(client)).as_deref()), (0, Some("503")));
}

#[test]
fn discovery_is_told_again_and_a_doubt_that_it_does_not_settle_is_dropped() {
    for (path, server) in [(MINE, 0), (THEIRS, 1)] {
        let (mut stage, client) = probed();
        let lost = stage.now;
        lose_all(&mut stage, server);
        assert_eq!(stage.signs, signs(server, lost));
        stage.signs.clear();
        stage.get(client, path);
        stage.pass(Duration::from_millis(4_900));
        assert_eq!(stage.signs, vec![signs(server, lost).pop().unwrap(); 4], "once a second, with the time of the loss");
        assert_eq!(connections(&stage, server), 1);
        stage.pass(Duration::from_millis(200));
        assert_eq!(answer(&mut stage, server), 1, "routing is as it was while discovery does not work");
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    }
}

#[test]
fn a_server_that_nobody_probes_and_one_with_another_connection_are_not_doubted() {
    let (mut stage, client) = probed();
    stage.publisher.publish(snapshot(3, None, &[]));
    stage.get(client, MINE);
    answer(&mut stage, 0);
    lose_all(&mut stage, 0);
    stage.get(client, MINE);
    assert_eq!(answer(&mut stage, 0), 1, "nobody probes");

    let (mut stage, client) = probed();
    stage.get(client, "/apis/g/v1/mine?watch=1");
    let [short, long] = stage.to_server(0)[..] else { panic!() };
    assert_eq!(stage.requests(long).len(), 1);
    stage.lose(short);
    stage.get(client, MINE);
    assert_eq!(answer(&mut stage, 0), 1, "its watch goes on");
}

#[test]
fn a_server_that_refuses_is_not_tried_before_it_is_vouched_for() {
    let (mut stage, client) = probed();
    lose_all(&mut stage, 1);
    publish(&mut stage, 3);
    stage.doors[1] = Door::Refuses;
    stage.get(client, THEIRS);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"));
    stage.doors[1] = Door::Open;
    for _ in 0..4 {
        stage.pass(Duration::from_secs(1));
        stage.get(client, THEIRS);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"), "at once");
    }
    publish(&mut stage, 4);
    stage.get(client, THEIRS);
    assert_eq!(answer(&mut stage, 1), 1);
}

#[test]
fn a_probe_that_began_before_the_loss_vouches_for_nobody() {
    let (mut stage, client) = probed();
    let began = stage.now;
    stage.pass(Duration::from_millis(10));
    lose_all(&mut stage, 1);
    stage.get(client, THEIRS);
    stage.publisher.publish(snapshot(3, Some(Trust { lost: None, vouched: Some(began) }), &[]));
    stage.pass(SOON);
    assert_eq!((connections(&stage, 1), answer(&mut stage, 1)), (1, 0));
    publish(&mut stage, 4);
    stage.pass(SOON);
    assert_eq!(answer(&mut stage, 1), 1);
}

/// Its own connections were closed for idleness, and show nothing.
#[test]
fn a_server_that_another_shard_lost_is_in_doubt_unless_it_has_a_connection_here() {
    for is_connected in [false, true] {
        let (mut stage, client) = probed();
        if !is_connected {
            stage.pass(Duration::from_secs(62));
        }
        assert_eq!(stage.to_server(1).len(), usize::from(is_connected));
        let client = if is_connected { client } else { stage.client(WIDE) };
        let lost = Trust { lost: Some(stage.now), vouched: None };
        stage.publisher.publish(snapshot(3, Some(lost), &[]));
        stage.get(client, THEIRS);
        assert_eq!(answer(&mut stage, 1), usize::from(is_connected));
        stage.publisher.publish(snapshot(4, Some(Trust { vouched: Some(stage.now), ..lost }), &[]));
        stage.pass(SOON);
        assert_eq!(answer(&mut stage, 1), usize::from(!is_connected));
    }
}

#[test]
fn a_server_that_leaves_and_was_lost_is_used_when_it_is_the_same() {
    let (mut stage, client) = probed();
    lose_all(&mut stage, 0);
    stage.get(client, MINE);
    let mut builder = SnapshotBuilder::new(3);
    let local = builder.server(Server::new(ServerId::new("s0"), ([10, 0, 0, 1], 1).into())).unwrap();
    builder.local(local);
    builder.leaving(local);
    builder.serve(&Gvr::new("g", "v1", "mine"), ServerSet::only(local)).unwrap();
    builder.trust(local, Trust { lost: None, vouched: Some(stage.now) });
    stage.publisher.publish(builder.build().unwrap());
    stage.pass(SOON);
    assert_eq!(answer(&mut stage, 0), 1);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
}

/// What waits for local has nothing to wait for when its last connection goes, if a peer can answer.
#[test]
fn those_who_wait_for_a_server_that_is_lost_go_where_they_can() {
    let (mut stage, client) = probed();
    stage.get(client, "/apis/g/v1/mine?watch=1");
    let [short, long] = stage.to_server(0)[..] else { panic!() };
    stage.doors[0] = Door::Hangs;
    stage.lose(short);
    stage.get(client, BOTH);
    stage.get(client, MINE);
    assert_eq!(answer(&mut stage, 1), 0, "local is there, and a connection is on its way");
    stage.lose(long);
    assert_eq!(answer(&mut stage, 1), 1);
}

#[test]
fn a_doubt_that_was_dropped_does_not_come_back_with_the_next_snapshot() {
    let (mut stage, client) = probed();
    let lost = stage.now;
    lose_all(&mut stage, 1);
    stage.publisher.publish(snapshot(3, Some(Trust { lost: Some(lost), vouched: None }), &[]));
    stage.pass(Duration::from_secs(6));
    stage.publisher.publish(snapshot(4, Some(Trust { lost: Some(lost), vouched: None }), &[]));
    stage.get(client, THEIRS);
    assert_eq!(answer(&mut stage, 1), 1);
}

/// Waiting here would keep the proxy that sent it from another server that it knows.
#[test]
fn a_hop_does_not_wait_for_a_server_in_doubt_if_another_one_serves_it() {
    let (mut stage, client) = probed();
    let peer = stage.peer(WIDE);
    stage.get(client, MINE);
    lose_all(&mut stage, 0);
    stage.get(client, MINE);
    assert_eq!(stage.seen(client), [], "who has nobody else to ask waits");
    let refused = hop(&mut stage, peer, BOTH);
    assert_eq!(stage.seen(peer), [Event::Reset { stream: refused, code: 7 }]);
    hop(&mut stage, peer, MINE);
    assert_eq!(stage.seen(peer), [], "nor has the proxy that sent this");
    publish(&mut stage, 3);
    stage.pass(SOON);
    assert_eq!((answer(&mut stage, 0), status(&stage.seen(peer)).as_deref()), (3, Some("200")));
    hop(&mut stage, peer, BOTH);
    assert_eq!((answer(&mut stage, 0), status(&stage.seen(peer)).as_deref()), (1, Some("200")));
}

#[test]
fn a_hop_that_waits_is_refused_when_the_doubt_begins_if_another_one_serves_it() {
    let mut stage = stage();
    stage.publisher.publish(snapshot(2, PROBED, &[]));
    stage.doors[0] = Door::Hangs;
    let peer = stage.peer(WIDE);
    let refused = hop(&mut stage, peer, BOTH);
    hop(&mut stage, peer, MINE);
    assert_eq!(stage.seen(peer), []);
    stage.pass(LATE);
    stage.establish(stage.wires.len() - 1);
    assert_eq!(stage.seen(peer), [Event::Reset { stream: refused, code: 7 }], "the handshake took long");
    publish(&mut stage, 3);
    stage.pass(SOON);
    assert_eq!((answer(&mut stage, 0), status(&stage.seen(peer)).as_deref()), (1, Some("200")));
}

/// What the proxy of s2 asks this one.
fn hop(stage: &mut Stage, peer: usize, path: &str) -> u32 {
    stage.ask_for(peer, path, &[("via", "2.0 mvproxy-s2")])
}

/// It asked only because its own server could not be had.
#[test]
fn a_hop_waits_for_a_server_in_doubt_if_only_the_senders_own_serves_it_too() {
    let (mut stage, client) = probed();
    let peer = stage.peer(WIDE);
    stage.get(client, MINE);
    lose_all(&mut stage, 0);
    for via in ["2.0 mvproxy-s1", "1.1 other, 2.0  mvproxy-s1 (why)"] {
        stage.ask_for(peer, BOTH, &[("via", via)]);
        assert_eq!(stage.seen(peer), [], "{via}");
    }
    publish(&mut stage, 3);
    stage.pass(SOON);
    assert_eq!(answer(&mut stage, 0), 3, "and what the client had asked before");
    assert_eq!(stage.seen(peer).iter().filter(|event| matches!(event, Event::Head { .. })).count(), 2);
}
