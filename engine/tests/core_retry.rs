//! What becomes of a request whose server is lost, refuses it or cannot be had; each test is one sentence.
//!
//! Longer than 600 lines: it is one subject, and a rule is read beside its exceptions, which share one stage.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod sim;

use std::time::Duration;

use discovery::{Gvr, Server, ServerId, ServerSet, Snapshot, SnapshotBuilder, Via};
use engine::core::{Action, Port, Protocol, Sign};
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
fn a_server_that_ends_connections_often_is_asked_often() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    let goaway = |stage: &mut Stage| {
        let wire = *stage.to_server(0).last().unwrap();
        assert_eq!(stage.requests(wire).len(), 1);
        stage.wires[wire].end.goaway(0, 0);
        stage.run();
    };
    stage.get(client, "/apis/g/v1/mine");
    (0..10).for_each(|_| goaway(&mut stage));
    let wire = *stage.to_server(0).last().unwrap();
    let arrived = stage.requests(wire)[0].0;
    stage.reply(wire, arrived, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    stage.get(client, "/apis/g/v1/mine");
    (0..11).for_each(|_| goaway(&mut stage));
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"), "eight times for nothing, and three");
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

/// The routes of every day, and `custom/v1`, which is nobody's in particular: a custom resource, or an aggregated API.
fn with_excluded() -> Snapshot {
    let mut builder = SnapshotBuilder::new(2);
    let mut all = ServerSet::empty();
    for (id, port) in [("s0", 1), ("s1", 2), ("s2", 3)] {
        let server = builder.server(Server::new(ServerId::new(id), ([10, 0, 0, 1], port).into())).unwrap();
        if port == 1 {
            builder.local(server);
        }
        all.insert(server);
    }
    builder.serve(&Gvr::new("g", "v1", "both"), all).unwrap();
    builder.exclude("custom", "v1").unwrap();
    builder.build().unwrap()
}

/// The extension server of an aggregated API is down: that is the same news at every apiserver.
#[test]
fn a_503_of_an_aggregated_api_is_passed_on_and_no_peer_is_asked() {
    const DOWN: [(&str, &str); 2] = [(":status", "503"), ("retry-after", "1")];
    for (path, is_passed_on) in [
        ("/apis/custom/v1/things", true),
        ("/apis/custom/v1/namespaces/n/things/x", true),
        ("/apis/custom/v1", true),
        ("/apis", true),
        (BOTH, false),
    ] {
        for method in ["GET", "HEAD"] {
            let mut stage = stage();
            stage.publisher.publish(with_excluded());
            let client = stage.client(WIDE);
            stage.ask(client, method, path, true);
            let wire = stage.to_server(0)[0];
            let arrived = stage.requests(wire)[0].0;
            stage.reply(wire, arrived, &DOWN, true);
            let events = stage.seen(client);
            let peers = stage.to_server(1).len() + stage.to_server(2).len();
            assert_eq!((status(&events).is_some(), peers), (is_passed_on, usize::from(!is_passed_on)), "{method} {path}");
            if is_passed_on {
                let Event::Head { fields, .. } = &events[0] else { panic!("{events:?}") };
                assert_eq!((field(fields, ":status"), field(fields, "retry-after")), (Some("503"), Some("1")), "{method} {path}");
            }
        }
    }
}

/// An apiserver that goes down, or is not up yet, says so. (So does an extension server made of the same library: then one more is asked, once.)
#[test]
fn a_503_of_an_apiserver_that_goes_down_is_asked_for_elsewhere_even_for_a_custom_resource() {
    const DOWN: [(&str, &str); 2] = [(":status", "503"), ("retry-after", "1")];
    const LEAVES: &[u8] = br#"{"kind":"Status","status":"Failure","message":"apiserver is shutting down","code":503}"#;
    const BEGINS: &[u8] = b"the request has been made before all known HTTP paths have been installed, please try again";
    const OTHER: &[u8] =
        br#"{"kind":"Status","status":"Failure","message":"the server is currently unable to handle the request","code":503}"#;
    for (method, path, fields, text, is_asked) in [
        ("GET", "/apis/custom/v1/things", &DOWN[..], LEAVES, true),
        ("GET", "/apis", &DOWN, LEAVES, true),
        ("GET", "/apis/custom/v1", &DOWN, BEGINS, true),
        ("GET", "/apis/custom/v1/things", &DOWN, OTHER, false),
        ("GET", "/apis/custom/v1/things", &DOWN[..1], LEAVES, false),
        ("GET", "/apis/custom/v1/things", &[(":status", "500"), ("retry-after", "1")], LEAVES, false),
        ("GET", "/apis/custom/v1/things?watch=1", &DOWN, LEAVES, false),
        ("POST", "/apis/custom/v1/things", &DOWN, LEAVES, false),
    ] {
        for ends_with_text in [true, false] {
            let mut stage = stage();
            stage.publisher.publish(with_excluded());
            let client = stage.client(WIDE);
            let stream = stage.ask(client, method, path, true);
            let wire = stage.to_server(0)[0];
            let arrived = stage.requests(wire)[0].0;
            stage.reply(wire, arrived, fields, false);
            stage.send(wire, arrived, text, ends_with_text);
            if !is_asked {
                if !ends_with_text {
                    stage.send(wire, arrived, b"", true);
                }
                let events = stage.seen(client);
                let peers = stage.to_server(1).len() + stage.to_server(2).len();
                assert_eq!(
                    (status(&events).as_deref(), body(&events, stream), peers),
                    (Some(fields[0].1), text.to_vec(), 0),
                    "{method} {path}"
                );
                continue;
            }
            assert_eq!(stage.seen(client), [], "{path}: nothing of the first answer");
            assert_eq!(
                reset(&std::mem::take(&mut stage.wires[wire].events)).is_some(),
                !ends_with_text,
                "{path}: what is left is not wanted"
            );
            let wire = [stage.to_server(1), stage.to_server(2)].concat()[0];
            let arrived = stage.requests(wire)[0].0;
            stage.reply(wire, arrived, &OK, false);
            stage.send(wire, arrived, b"all of it", true);
            let events = stage.seen(client);
            assert_eq!((status(&events).as_deref(), body(&events, stream)), (Some("200"), b"all of it".to_vec()), "{path}");
        }
    }
}

#[test]
fn a_peer_stands_in_for_a_custom_resource_while_local_is_down() {
    let mut stage = stage();
    stage.publisher.publish(with_excluded());
    stage.doors[0] = Door::Refuses;
    let client = stage.client(WIDE);
    for path in ["/apis/custom/v1/things", "/apis"] {
        stage.get(client, path);
        let peers = [stage.to_server(1), stage.to_server(2)].concat();
        let (wire, arrived) = peers.into_iter().find_map(|wire| Some((wire, stage.requests(wire).first()?.0))).unwrap();
        stage.reply(wire, arrived, &OK, true);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"), "{path}");
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
fn of_two_peers_the_one_with_less_to_do_is_asked() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    stage.get(client, THEIRS);
    let loaded = if stage.to_server(1).is_empty() { 2 } else { 1 };
    let idle = 3 - loaded;
    for nth in 0..50 {
        stage.get(client, THEIRS);
        let wires = stage.to_server(idle);
        let found = wires.into_iter().find_map(|wire| Some((wire, stage.requests(wire).first()?.0)));
        let (wire, arrived) = found.unwrap_or_else(|| panic!("request {nth} went to the loaded one"));
        stage.reply(wire, arrived, &OK, true);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    }
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

/// Local, and peers that serve `theirs`, reached in their ways. The port is the place in [`Stage::doors`].
fn with_peers(generation: u64, peers: &[(&str, u16, Via)]) -> Snapshot {
    let mut builder = SnapshotBuilder::new(generation);
    let at = |id: &str, port: u16| Server::new(ServerId::new(id), ([10, 0, 0, 1], port).into());
    let local = builder.server(at("s0", 1)).unwrap();
    builder.local(local);
    let mut theirs = ServerSet::empty();
    for &(id, port, via) in peers {
        theirs.insert(builder.server(Server { via, ..at(id, port) }).unwrap());
    }
    builder.serve(&Gvr::new("g", "v1", "theirs"), theirs).unwrap();
    builder.build().unwrap()
}

/// The connection to a server that was asked for first.
fn first_to(stage: &Stage, server: usize) -> usize {
    stage.wires.iter().position(|wire| wire.server == Some(server)).unwrap()
}

/// With TLS 1.3 a proxy that does not take our certificate says so when the handshake is over for us.
#[test]
fn a_proxy_that_is_lost_before_it_spoke_was_sent_nothing() {
    let mut stage = stage();
    stage.doors[1] = Door::Hangs;
    stage.publisher.publish(with_peers(2, &[("s1", 2, Via::Proxy), ("s2", 3, Via::Apiserver)]));
    let client = stage.client(WIDE);
    for _ in 0..20 {
        stage.ask(client, "POST", THEIRS, true);
    }
    let wire = first_to(&stage, 1);
    stage.wires[wire].is_mute = true;
    stage.establish(wire);
    assert!(stage.requests(wire).is_empty(), "it has not spoken");
    stage.lose(wire);
    assert_eq!(stage.signs, [Sign::Unreachable(([10, 0, 0, 1], 2).into())]);
    let (other, mut answered) = (first_to(&stage, 2), 0);
    for (arrived, _) in stage.requests(other) {
        stage.reply(other, arrived, &OK, true);
        answered += usize::from(status(&stage.seen(client)).as_deref() == Some("200"));
    }
    assert_eq!((answered, stage.core.in_use().1), (20, 0), "all of them were answered elsewhere");
    assert_eq!(stage.wires.iter().filter(|wire| wire.server == Some(1)).count(), 1, "it is left alone for a while");
}

#[test]
fn the_only_server_behind_a_proxy_that_refuses_us_is_asked_at_its_own_address() {
    for method in ["GET", "POST"] {
        let mut stage = stage();
        stage.doors[1] = Door::Hangs;
        stage.publisher.publish(with_peers(2, &[("s1", 2, Via::Proxy)]));
        let client = stage.client(WIDE);
        stage.ask(client, method, THEIRS, true);
        let wire = first_to(&stage, 1);
        stage.wires[wire].is_mute = true;
        stage.establish(wire);
        stage.lose(wire);
        let events = stage.seen(client);
        let Event::Head { fields, .. } = &events[0] else { panic!() };
        assert_eq!((field(fields, ":status"), field(fields, "retry-after").is_some()), (Some("503"), true), "nothing was sent");
        assert_eq!(stage.signs, [Sign::Unreachable(([10, 0, 0, 1], 2).into())]);
        // What discovery makes of the sign.
        stage.publisher.publish(with_peers(3, &[("s1", 3, Via::Apiserver)]));
        stage.ask(client, method, THEIRS, true);
        let wire = first_to(&stage, 2);
        let arrived = stage.requests(wire)[0].0;
        stage.reply(wire, arrived, &OK, true);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    }
}

#[test]
fn what_a_proxy_could_not_do_is_done_elsewhere() {
    let mut stage = stage();
    stage.publisher.publish(with_peers(2, &[("s1", 2, Via::Proxy), ("s2", 3, Via::Apiserver)]));
    let client = stage.client(WIDE);
    // A proxy that refuses at once looks as if it had least to do.
    for _ in 0..20 {
        stage.ask(client, "POST", THEIRS, true);
        for wire in stage.to_server(1) {
            let arrived: Vec<u32> = stage.requests(wire).into_iter().map(|found| found.0).collect();
            arrived.into_iter().for_each(|stream| stage.reset(wire, stream, 7));
        }
        let (wire, stream) = stage.to_server(2).into_iter().find_map(|wire| Some((wire, stage.requests(wire).first()?.0))).unwrap();
        stage.reply(wire, stream, &OK, true);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    }
}

#[test]
fn what_cannot_be_done_at_the_peer_port_is_refused_to_a_proxy_and_503_to_others() {
    let mut stage = stage();
    stage.doors[0] = Door::Refuses;
    let peer = stage.peer(WIDE);
    for path in [BOTH, THEIRS] {
        stage.ask_for(peer, path, &[("via", "2.0 mvproxy-s1")]);
        assert_eq!(reset(&stage.seen(peer)), Some(7), "{path}: nothing was done, and another server may do it");
        stage.ask_for(peer, path, &[]);
        assert_eq!(status(&stage.seen(peer)).as_deref(), Some("503"), "{path}");
    }
    assert_eq!(stage.core.in_use().1, 0);
}

#[test]
fn a_proxy_gets_what_waits_when_it_speaks() {
    let mut stage = stage();
    stage.doors[1] = Door::Hangs;
    stage.publisher.publish(with_peers(2, &[("s1", 2, Via::Proxy)]));
    let client = stage.client(WIDE);
    stage.get(client, THEIRS);
    stage.get(client, THEIRS);
    let wire = first_to(&stage, 1);
    stage.establish(wire);
    assert_eq!(stage.requests(wire).len(), 2);
    assert_eq!(stage.wires.iter().filter(|wire| wire.server == Some(1)).count(), 1, "no second connection was asked for");
    stage.reply(wire, 1, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
}

#[test]
fn a_proxy_that_does_not_speak_in_time_is_unreachable_and_one_that_is_retired_is_not() {
    let mut stage = stage();
    stage.doors[1] = Door::Hangs;
    stage.publisher.publish(with_peers(2, &[("s1", 2, Via::Proxy)]));
    let client = stage.client(WIDE);
    stage.get(client, THEIRS);
    let wire = first_to(&stage, 1);
    stage.wires[wire].is_mute = true;
    stage.establish(wire);
    stage.core.retire_servers(stage.now);
    stage.run();
    assert_eq!((stage.signs.len(), stage.seen(client).len()), (0, 0));
    let limit = stage.core.limits().server_handshake;
    stage.pass(limit + Duration::from_millis(200));
    assert_eq!(stage.signs, [Sign::Unreachable(([10, 0, 0, 1], 2).into())]);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"));
}

/// The discovery of another proxy speaks it.
#[test]
fn a_request_at_the_peer_port_makes_no_second_hop_in_http1_either() {
    for (path, refused, asked) in [(THEIRS, true, None), (BOTH, false, Some("10.0.0.1:1"))] {
        let mut stage = stage();
        let peer = stage.core.handle_accepted(Port::Peers, None, stage.now).unwrap();
        stage.core.handle_established(peer, Protocol::Http1, stage.now);
        stage.core.handle_bytes(peer, format!("GET {path} HTTP/1.1\r\nhost: x\r\n\r\n").as_bytes(), stage.now);
        let mut answer = Vec::new();
        stage.core.drain_output(peer, |bytes| answer.extend_from_slice(bytes));
        assert_eq!(answer.starts_with(b"HTTP/1.1 503 "), refused, "{path}: {}", String::from_utf8_lossy(&answer));
        let connected = std::iter::from_fn(|| stage.core.poll_action()).find_map(|action| match action {
            Action::Connect { address, .. } => Some(address.to_string()),
            _ => None,
        });
        assert_eq!(connected.as_deref(), asked, "{path}");
    }
}
