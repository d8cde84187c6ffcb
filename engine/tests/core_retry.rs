//! What becomes of a request whose server is lost, refuses it or cannot be had; each test is one sentence.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod sim;

use std::time::Duration;

use discovery::{Gvr, Server, ServerId, ServerSet, SnapshotBuilder};
use engine::core::Sign;
use sim::end::Event;
use sim::stage::{BOTH, Door, OK, Stage, THEIRS, WATCH, WIDE, asked, body, field, pattern, reset, stage, status};

#[test]
fn a_refused_stream_is_retried_on_another_connection() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reset(wire, arrived, 7);
    let other = stage.to_server(0)[1];
    assert_eq!((stage.requests(wire), stage.requests(other)), (vec![], vec![(1, BOTH.to_owned())]));
    stage.reply(other, 1, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
}

#[test]
fn a_refused_stream_is_retried_on_the_same_connection_when_no_other_can_be_had() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.doors[0] = Door::Refuses;
    stage.reset(wire, arrived, 7);
    assert_eq!(stage.requests(wire), [(3, BOTH.to_owned())]);
    stage.reply(wire, 3, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
}

#[test]
fn a_request_is_refused_three_times_at_most() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reset(wire, arrived, 7);
    for _ in 0..2 {
        let arrivals: Vec<_> =
            (0..stage.wires.len()).flat_map(|at| stage.requests(at).into_iter().map(move |found| (at, found.0))).collect();
        assert_eq!(arrivals.len(), 1);
        stage.reset(arrivals[0].0, arrivals[0].1, 7);
    }
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"));
    assert_eq!(stage.core.in_use().1, 0);
}

#[test]
fn above_goaway_is_retried() {
    let mut stage = stage();
    let (client, _, wire, _) = asked(&mut stage, BOTH, 0);
    stage.get(client, BOTH);
    stage.wires[wire].end.goaway(1, 0);
    stage.run();
    let other = *stage.to_server(0).last().unwrap();
    assert!(other != wire && stage.requests(other).len() == 1);
    stage.reply(wire, 1, &OK, true);
    assert!(!stage.wires[wire].is_open, "a drained connection is closed");
    stage.reply(other, 1, &OK, true);
    let answered = stage.seen(client).iter().filter(|event| matches!(event, Event::Head { .. })).count();
    assert_eq!(answered, 2);
}

#[test]
fn a_response_that_began_above_goaway_is_not_asked_for_again() {
    let mut stage = stage();
    let (client, stream, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reply(wire, arrived, &OK, false);
    stage.wires[wire].end.goaway(0, 0);
    stage.send(wire, arrived, b"rest", true);
    let events = stage.seen(client);
    assert_eq!((body(&events, stream), stage.to_server(0)), (b"rest".to_vec(), vec![]));
}

#[test]
fn a_lost_server_before_the_head_is_503() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    for (method, path) in [("POST", BOTH), ("DELETE", BOTH), ("GET", WATCH)] {
        stage.ask(client, method, path, true);
        let wire = *stage.to_server(0).last().unwrap();
        stage.lose(wire);
        let events = stage.seen(client);
        assert_eq!(status(&events).as_deref(), Some("503"), "{method}");
        let Event::Head { fields, .. } = &events[0] else { panic!() };
        assert_eq!(field(fields, "retry-after"), None, "the server may have processed it");
    }
}

#[test]
fn what_only_reads_is_asked_for_once_more_when_its_server_is_lost() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    for method in ["GET", "HEAD"] {
        let stream = stage.ask(client, method, THEIRS, true);
        for _ in 0..2 {
            assert_eq!(stage.seen(client), []);
            let wire = [stage.to_server(1), stage.to_server(2)].concat().into_iter().find(|&wire| !stage.requests(wire).is_empty());
            stage.lose(wire.unwrap());
        }
        let events = stage.seen(client);
        assert_eq!(status(&events).as_deref(), Some("503"), "stream {stream} was asked for twice");
    }
    stage.get(client, THEIRS);
    let wire = |stage: &mut Stage| {
        let wires = [stage.to_server(1), stage.to_server(2)].concat();
        wires.into_iter().find_map(|wire| Some((wire, stage.requests(wire).first()?.0))).unwrap()
    };
    let (first, _) = wire(&mut stage);
    stage.lose(first);
    let (second, arrived) = wire(&mut stage);
    stage.reply(second, arrived, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
}

#[test]
fn a_head_without_anything_behind_it_is_not_passed_on_and_can_be_had_elsewhere() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    let stream = stage.get(client, BOTH);
    let wire = stage.to_server(0)[0];
    stage.reply(wire, 1, &OK, false);
    assert_eq!(stage.seen(client), []);
    stage.doors[0] = Door::Refuses;
    stage.lose(wire);
    let wire = [stage.to_server(1), stage.to_server(2)].concat()[0];
    let arrived = stage.requests(wire)[0].0;
    stage.reply(wire, arrived, &OK, false);
    stage.send(wire, arrived, b"all of it", true);
    let events = stage.seen(client);
    assert_eq!((status(&events).as_deref(), body(&events, stream)), (Some("200"), b"all of it".to_vec()));
    // A watch has its head at once.
    stage.doors[0] = Door::Open;
    stage.pass(Duration::from_secs(1));
    stage.get(client, WATCH);
    let watch = [stage.to_server(0), stage.to_server(1), stage.to_server(2)].concat();
    let (wire, arrived) = watch.into_iter().find_map(|wire| Some((wire, stage.requests(wire).first()?.0))).unwrap();
    stage.reply(wire, arrived, &OK, false);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
}

#[test]
fn a_503_that_says_come_back_is_asked_for_elsewhere() {
    const DOWN: [(&str, &str); 2] = [(":status", "503"), ("retry-after", "1")];
    let mut stage = stage();
    let client = stage.client(WIDE);
    let ask = |stage: &mut Stage, method, path, fields: &[(&str, &str)], end| {
        stage.ask(client, method, path, true);
        let wire = stage.to_server(0)[0];
        let arrived = stage.requests(wire)[0].0;
        stage.reply(wire, arrived, fields, end);
    };
    ask(&mut stage, "GET", BOTH, &DOWN, false);
    let wire = [stage.to_server(1), stage.to_server(2)].concat()[0];
    let arrived = stage.requests(wire)[0].0;
    let local = stage.to_server(0)[0];
    assert!(reset(&std::mem::take(&mut stage.wires[local].events)).is_some(), "the answer is not wanted");
    assert_eq!(stage.seen(client), []);
    stage.reply(wire, arrived, &DOWN, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"), "once");
    for (method, path, fields) in [("POST", BOTH, &DOWN[..]), ("GET", "/apis/g/v1/mine", &DOWN), ("GET", BOTH, &DOWN[..1])] {
        ask(&mut stage, method, path, fields, true);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"), "{method} {path}: passed on");
    }
}

#[test]
fn a_request_that_was_decided_makes_no_second_hop() {
    let mut stage = stage();
    let (client, peer) = (stage.client(WIDE), stage.peer(WIDE));
    for via in ["2.0 mvproxy-s1", "1.1 other, 2.0 mvproxy-s9"] {
        for (path, expected) in [(THEIRS, "503"), (BOTH, "200")] {
            stage.ask_for(client, path, &[("via", via)]);
            answer_all(&mut stage);
            assert_eq!(status(&stage.seen(client)).as_deref(), Some(expected), "{path} with {via}");
        }
    }
    for (path, expected) in [(THEIRS, "503"), (BOTH, "200"), ("/apis/g/v1/unknown", "200"), ("/apis", "200")] {
        stage.get(peer, path);
        for wire in stage.to_server(0) {
            let events = stage.seen(wire);
            for event in &events {
                let Event::Head { fields, .. } = event else { continue };
                assert_eq!(field(fields, "x-kubernetes-peer-proxied"), Some("true"), "the server sends it no further");
            }
            stage.wires[wire].events = events;
        }
        answer_all(&mut stage);
        assert_eq!(status(&stage.seen(peer)).as_deref(), Some(expected), "{path} from a peer");
    }
    assert_eq!((stage.to_server(1), stage.to_server(2)), (vec![], vec![]));
    stage.ask_for(client, THEIRS, &[("via", "1.1 other (in front of mvproxy-s1)")]);
    let wire = [stage.to_server(1), stage.to_server(2)].concat()[0];
    let events = stage.seen(wire);
    let Some(Event::Head { fields, .. }) = events.first() else { panic!("{events:?}") };
    let via: Vec<_> = fields.iter().filter(|(name, _)| name == "via").map(|(_, value)| value.as_str()).collect();
    assert_eq!(via, ["1.1 other (in front of mvproxy-s1)", "2.0 mvproxy-s0"]);
}

#[test]
fn a_local_server_is_in_doubt_when_its_connection_is_lost_and_not_when_we_close_it() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    stage.get(client, BOTH);
    answer_all(&mut stage);
    stage.pass(Duration::from_secs(62));
    assert_eq!((stage.to_server(0), stage.signs.len()), (vec![], 0), "closed for idleness, by us");
    let client = stage.client(WIDE);
    stage.get(client, BOTH);
    let wire = stage.to_server(0)[0];
    stage.wires[wire].end.goaway(1_000, 0);
    stage.run();
    stage.lose(wire);
    assert_eq!(stage.signs, [], "a GOAWAY proves nothing");
    stage.get(client, BOTH);
    let wire = *stage.to_server(0).last().unwrap();
    stage.lose(wire);
    assert_eq!(stage.signs, [Sign::LocalLost]);
}

/// The local server answers everything.
fn answer_all(stage: &mut Stage) {
    for wire in stage.to_server(0) {
        for (arrived, ..) in stage.requests(wire) {
            stage.reply(wire, arrived, &OK, true);
        }
    }
}

#[test]
fn a_lost_server_after_the_head_is_a_reset() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reply(wire, arrived, &OK, false);
    stage.send(wire, arrived, b"half", false);
    stage.lose(wire);
    assert_eq!(reset(&stage.seen(client)), Some(2));
    assert_eq!(stage.core.in_use().1, 0);
}

#[test]
fn a_request_that_never_left_is_retried_when_the_server_is_lost() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reply(wire, arrived, &OK, true);
    stage.wires[wire].is_frozen = true;
    stage.get(client, BOTH);
    stage.lose(wire);
    let other = stage.to_server(0)[0];
    assert_eq!(stage.requests(other), [(1, BOTH.to_owned())]);
}

#[test]
fn local_down_goes_to_a_peer_that_serves_it() {
    let mut stage = stage();
    stage.doors[0] = Door::Refuses;
    let client = stage.client(WIDE);
    stage.get(client, BOTH);
    let peer = *[stage.to_server(1), stage.to_server(2)].concat().first().unwrap();
    let Event::Head { fields, .. } = stage.seen(peer).remove(0) else { panic!() };
    assert_eq!(field(&fields, "x-kubernetes-peer-proxied"), Some("true"));
    stage.reply(peer, 1, &OK, true);
    // What only local serves has nobody else.
    stage.seen(client);
    stage.get(client, "/apis/g/v1/mine");
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"));
}

#[test]
fn no_server_is_503_with_retry_after_and_status_body() {
    let mut stage = stage();
    stage.doors = [Door::Refuses; 3];
    let client = stage.client(WIDE);
    let stream = stage.get(client, THEIRS);
    let events = stage.seen(client);
    let Event::Head { fields, .. } = &events[0] else { panic!() };
    assert_eq!((field(fields, ":status"), field(fields, "retry-after")), (Some("503"), Some("1")));
    let text = String::from_utf8(body(&events, stream)).unwrap();
    assert!(text.contains(r#""kind":"Status""#) && text.contains(r#""code":503"#), "{text}");
}

#[test]
fn a_lane_that_cannot_connect_sends_its_requests_elsewhere() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    stage.get(client, BOTH);
    stage.doors[0] = Door::Refuses;
    stage.get(client, WATCH);
    let peers = [stage.to_server(1), stage.to_server(2)].concat();
    assert_eq!(stage.requests(peers[0]), [(1, WATCH.to_owned())]);
    stage.get(client, BOTH);
    let local = stage.to_server(0)[0];
    assert_eq!(stage.requests(local).len(), 2, "the open connection of the other lane goes on");
}

#[test]
fn post_body_up_to_64k_is_replayed() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    let stream = stage.ask(client, "POST", BOTH, false);
    stage.send(client, stream, &pattern(64 * 1_024), true);
    let wire = stage.to_server(0)[0];
    assert!(body(&stage.seen(wire), 1) == pattern(64 * 1_024));
    stage.reset(wire, 1, 7);
    let other = stage.to_server(0)[1];
    assert!(body(&stage.seen(other), 1) == pattern(64 * 1_024));
    stage.reply(other, 1, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    let counters = stage.core.counters();
    assert_eq!((counters.body_copied, stage.core.in_use().1), (64 * 1_024, 0), "sent twice, copied once");
}

#[test]
fn larger_body_gets_refused_stream() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    let stream = stage.ask(client, "POST", BOTH, false);
    stage.send(client, stream, &pattern(64 * 1_024 + 1), false);
    let wire = stage.to_server(0)[0];
    stage.reset(wire, 1, 7);
    assert_eq!((reset(&stage.seen(client)), stage.core.in_use().1), (Some(7), 0));
}

#[test]
fn a_peer_that_came_back_gets_its_share_again() {
    let mut stage = stage();
    stage.doors[1] = Door::Refuses;
    let client = stage.client(WIDE);
    for _ in 0..20 {
        stage.get(client, THEIRS);
    }
    let served = |stage: &mut Stage| stage.to_server(1).iter().filter(|&&at| stage.wires[at].is_open).count();
    assert_eq!(served(&mut stage), 0);
    stage.doors[1] = Door::Open;
    stage.pass(Duration::from_secs(1));
    for _ in 0..20 {
        stage.get(client, THEIRS);
    }
    assert!(served(&mut stage) > 0, "probed beside the traffic");
    stage.get(client, THEIRS);
    let to_it: usize = stage.to_server(1).into_iter().map(|at| stage.requests(at).len()).sum();
    assert!(to_it > 0);
}

#[test]
fn a_server_that_leaves_is_asked_when_nobody_else_can_be() {
    for (leaving, of_mine) in [(true, "200"), (false, "503")] {
        let mut stage = stage();
        let client = stage.client(WIDE);
        let mut builder = SnapshotBuilder::new(2);
        let at = |id: &str, port: u16| Server::new(ServerId::new(id), ([10, 0, 0, 1], port).into());
        let local = builder.server(at("s0", 1)).unwrap();
        let peer = builder.server(at("s1", 2)).unwrap();
        builder.local(local);
        if leaving {
            builder.leaving(local)
        } else {
            builder.unready(local)
        }
        let both = ServerSet::only(local).union(ServerSet::only(peer));
        builder.serve(&Gvr::new("g", "v1", "both"), both).unwrap();
        builder.serve(&Gvr::new("g", "v1", "mine"), ServerSet::only(local)).unwrap();
        stage.publisher.publish(builder.build().unwrap());
        stage.get(client, BOTH);
        let wire = stage.to_server(1)[0];
        assert_eq!(stage.requests(wire), [(1, BOTH.to_owned())], "one that is ready is better");
        stage.reply(wire, 1, &OK, true);
        stage.seen(client);
        stage.get(client, "/apis/g/v1/mine");
        answer_all(&mut stage);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some(of_mine));
    }
}
