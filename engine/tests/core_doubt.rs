//! Servers that were lost: one that starts anew listens long before it can be used, and says of what it does not know yet that there is no
//! such thing. Where servers are probed, nothing is sent to one before a probe has succeeded since; each test is one sentence.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod sim;

use std::time::Duration;

use discovery::{Gvr, Server, ServerId, ServerSet, Snapshot, SnapshotBuilder};
use engine::core::Sign;
use sim::end::Event;
use sim::stage::{BOTH, Door, OK, Stage, THEIRS, WIDE, field, stage, status};

/// What only local serves.
const MINE: &str = "/apis/g/v1/mine";
/// Longer than a handshake takes.
const LATE: Duration = Duration::from_millis(300);

/// Local, and a peer, both vouched for so many times; who is not ready is named.
fn vouched(generation: u64, times: u32, unready: &[usize]) -> Snapshot {
    let mut builder = SnapshotBuilder::new(generation);
    let at = |id: &str, port: u16| Server::new(ServerId::new(id), ([10, 0, 0, 1], port).into());
    let servers = [builder.server(at("s0", 1)).unwrap(), builder.server(at("s1", 2)).unwrap()];
    builder.local(servers[0]);
    servers.iter().for_each(|&server| builder.vouch(server, times));
    unready.iter().for_each(|&at| builder.unready(servers[at]));
    let [local, peer] = servers.map(ServerSet::only);
    for (resource, by) in [("mine", local), ("theirs", peer), ("both", local.union(peer))] {
        builder.serve(&Gvr::new("g", "v1", resource), by).unwrap();
    }
    builder.build().unwrap()
}

/// A probed control plane, and a client that was answered by both servers.
fn probed() -> (Stage, usize) {
    let mut stage = stage();
    stage.publisher.publish(vouched(2, 1, &[]));
    let client = stage.client(WIDE);
    for (path, server) in [(MINE, 0), (THEIRS, 1)] {
        stage.get(client, path);
        answer(&mut stage, server);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    }
    (stage, client)
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
        stage.publisher.publish(vouched(3, 2, &[]));
        stage.pass(Duration::from_millis(20));
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
        stage.publisher.publish(vouched(3, 1, &[server]));
        stage.pass(Duration::from_millis(20));
        let events = stage.seen(client);
        let Event::Head { fields, .. } = &events[0] else { panic!("{events:?}") };
        assert_eq!((field(fields, ":status"), field(fields, "retry-after").is_some()), (Some("503"), true));
        assert_eq!(connections(&stage, server), 1);
        // It says so before it vouches for it: it was asked what it serves in between.
        stage.publisher.publish(vouched(4, 2, &[]));
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
    stage.publisher.publish(vouched(3, 2, &[]));
    stage.get(client, BOTH);
    assert_eq!(answer(&mut stage, 0), 1, "local again");
}

/// Its kernel takes the connection, and the server goes on with it when it is half started.
#[test]
fn a_connection_that_took_long_is_not_used_before_its_server_is_vouched_for() {
    for after in [Duration::ZERO, LATE] {
        let mut stage = stage();
        stage.publisher.publish(vouched(2, 1, &[]));
        stage.doors[0] = Door::Hangs;
        let client = stage.client(WIDE);
        stage.get(client, MINE);
        let wire = stage.wires.iter().position(|wire| wire.server == Some(0)).unwrap();
        stage.pass(after);
        stage.establish(wire);
        let is_late = after > Duration::ZERO;
        assert_eq!((answer(&mut stage, 0), &*stage.signs), if is_late { (0, &[Sign::LocalLost][..]) } else { (1, &[][..]) });
        stage.publisher.publish(vouched(3, 2, &[]));
        stage.pass(Duration::from_millis(20));
        assert_eq!(answer(&mut stage, 0), usize::from(is_late), "on the same connection");
        assert_eq!(connections(&stage, 0), 1);
    }
}

/// They were given to it when it was ready, and wait for a connection that its kernel has taken.
#[test]
fn those_who_wait_for_a_connection_go_elsewhere_when_the_server_is_not_ready_any_more() {
    let mut stage = stage();
    stage.publisher.publish(vouched(2, 1, &[]));
    stage.doors[0] = Door::Hangs;
    let client = stage.client(WIDE);
    stage.get(client, MINE);
    stage.publisher.publish(vouched(3, 1, &[0]));
    stage.pass(Duration::from_millis(100));
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"));
    let wire = stage.wires.iter().position(|wire| wire.server == Some(0)).unwrap();
    stage.establish(wire);
    stage.get(client, MINE);
    assert_eq!((answer(&mut stage, 0), status(&stage.seen(client)).as_deref()), (0, Some("503")));
}

#[test]
fn discovery_is_told_again_and_a_doubt_that_it_does_not_settle_is_dropped() {
    for (path, server, sign) in [(MINE, 0, Sign::LocalLost), (THEIRS, 1, Sign::PeerLost(([10, 0, 0, 1], 2).into()))] {
        let (mut stage, client) = probed();
        lose_all(&mut stage, server);
        stage.get(client, path);
        stage.pass(Duration::from_millis(4_900));
        assert_eq!(stage.signs, [sign; 5], "once a second");
        assert_eq!(connections(&stage, server), 1);
        stage.pass(Duration::from_millis(200));
        assert_eq!(answer(&mut stage, server), 1, "routing is as it was while discovery does not work");
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    }
}

#[test]
fn a_server_that_nobody_probes_and_one_with_another_connection_are_not_doubted() {
    let (mut stage, client) = probed();
    stage.publisher.publish(vouched(3, 0, &[]));
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
    stage.publisher.publish(vouched(3, 2, &[]));
    stage.doors[1] = Door::Refuses;
    stage.get(client, THEIRS);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"));
    stage.doors[1] = Door::Open;
    for _ in 0..4 {
        stage.pass(Duration::from_secs(1));
        stage.get(client, THEIRS);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"), "at once");
    }
    stage.publisher.publish(vouched(4, 3, &[]));
    stage.get(client, THEIRS);
    assert_eq!(answer(&mut stage, 1), 1);
}
