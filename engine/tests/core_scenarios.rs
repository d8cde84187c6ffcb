//! What the core does in single, well-defined cases; each test is one sentence.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod sim;

use std::time::Duration;

use engine::core::Meters;
use engine::{Limits, Rate};
use sim::end::{Event, MAX_STREAMS};
use sim::stage::{BOTH, Door, OK, Stage, THEIRS, WATCH, WIDE, asked, body, pattern, reset, stage, status};

#[test]
fn a_request_goes_to_local_and_its_response_back() {
    let mut stage = stage();
    let (client, stream, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reply(wire, arrived, &OK, false);
    stage.send(wire, arrived, &pattern(100_000), true);
    let events = stage.seen(client);
    assert_eq!(status(&events).as_deref(), Some("200"));
    assert!(body(&events, stream) == pattern(100_000));
    assert_eq!(stage.core.in_use().1, 0);
    let counters = stage.core.counters();
    assert_eq!((counters.body_received, counters.body_copied), (100_000, 100_000));
}

#[test]
fn a_slow_reader_does_not_slow_its_neighbour() {
    let mut stage = stage();
    let (slow, quick) = (stage.client(1_000), stage.client(WIDE));
    let (slow_stream, quick_stream) = (stage.get(slow, BOTH), stage.get(quick, BOTH));
    let wire = stage.to_server(0)[0];
    assert_eq!(stage.requests(wire).len(), 2);
    stage.reply(wire, 1, &OK, false);
    stage.reply(wire, 3, &OK, false);
    // All that the proxy takes for the one that does not read, then the neighbour's.
    while stage.wires[wire].end.room(1) > 0 {
        let n = stage.wires[wire].end.room(1);
        stage.send(wire, 1, &pattern(n), false);
    }
    stage.send(wire, 3, &pattern(900_000), true);
    assert!(body(&stage.seen(quick), quick_stream) == pattern(900_000));
    assert_eq!(body(&stage.seen(slow), slow_stream).len(), 1_000);
    assert!(stage.core.in_use().2 <= 300 * 1_024, "held: {}", stage.core.in_use().2);
}

#[test]
fn readers_that_hold_more_than_a_connection_window_do_not_slow_their_neighbour() {
    const WINDOW: u32 = 300_000;
    const HELD: usize = 200_000;
    let mut stage = Stage::new(Limits { connection_window: WINDOW, ..Limits::default() });
    let slow = [(); 3].map(|()| stage.client(0));
    let quick = stage.client(WIDE);
    slow.iter().for_each(|&reader| _ = stage.get(reader, BOTH));
    let stream = stage.get(quick, BOTH);
    let wire = stage.to_server(0)[0];
    let arrived: Vec<_> = stage.requests(wire).iter().map(|request| request.0).collect();
    assert_eq!(arrived.len(), 4, "all on one connection");
    for &at in &arrived {
        stage.reply(wire, at, &OK, false);
    }
    for &at in &arrived[..3] {
        stage.send(wire, at, &pattern(HELD), false);
    }
    assert!(stage.core.in_use().2 >= 3 * HELD, "{} bytes held", stage.core.in_use().2);
    let left = stage.wires[wire].end.send_window;
    assert!(left > i64::from(WINDOW - WINDOW / 4), "{left} left of the connection's window");
    stage.send(wire, arrived[3], &pattern(900_000), true);
    assert!(body(&stage.seen(quick), stream) == pattern(900_000));
}

/// Its connection takes no more, so nothing looks through the list of those that wait for it.
#[test]
fn a_stream_that_is_over_waits_for_no_connection() {
    let held_back = |stage: &Stage| stage.core.leftovers()[1];
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reply(wire, arrived, &OK, false);
    stage.wires[client].is_frozen = true;
    stage.send(wire, arrived, &pattern(200_000), false);
    assert_eq!(held_back(&stage), 1, "more of an answer than an outbox takes");
    stage.reset(wire, arrived, 2);
    assert_eq!(held_back(&stage), 0);
    let client = stage.client(WIDE);
    let uploads = [(); 3].map(|()| stage.ask(client, "POST", BOTH, false));
    stage.wires[wire].is_frozen = true;
    for upload in uploads {
        stage.send(client, upload, &pattern(60_000), false);
    }
    assert_eq!(held_back(&stage), 1, "more of three uploads");
    stage.lose(client);
    assert_eq!(held_back(&stage), 0);
}

/// The connection's window comes back in pieces, and each is less than what waits of the list.
#[test]
fn a_long_answer_does_not_keep_an_event_of_a_watch_back() {
    let mut stage = stage();
    let client = stage.client(1 << 30);
    let (list, watch) = (stage.get(client, BOTH), stage.get(client, WATCH));
    let [of_list, of_watch] = stage.to_server(0)[..] else { panic!() };
    for wire in [of_list, of_watch] {
        stage.reply(wire, 1, &OK, false);
    }
    send_what_is_taken(&mut stage, of_list, 1);
    assert_eq!(stage.wires[client].end.recv_window, 0);
    stage.send(of_watch, 1, b"event", false);
    stage.seen(client);
    for round in 0..100 {
        stage.wires[client].end.grant(0, 32_768);
        stage.run();
        send_what_is_taken(&mut stage, of_list, 1);
        let events = stage.seen(client);
        assert!(body(&events, list).len() <= 32_768);
        if !body(&events, watch).is_empty() {
            assert!(round <= 1, "round {round}");
            return;
        }
    }
    panic!("100 grants of 32 KiB, and no byte of the event");
}

/// Sends for as long as there is a window.
fn send_what_is_taken(stage: &mut Stage, wire: usize, stream: u32) {
    while stage.wires[wire].end.room(stream) > 0 {
        let room = stage.wires[wire].end.room(stream);
        stage.send(wire, stream, &vec![1; room], false);
    }
}

#[test]
fn watches_and_short_requests_never_share_a_connection() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    for path in [BOTH, WATCH, BOTH, WATCH] {
        stage.get(client, path);
    }
    let wires = stage.to_server(0);
    let mut lanes: Vec<_> = wires.iter().map(|&wire| stage.requests(wire)).collect();
    lanes.sort();
    let paths = |lane: &[(u32, String)]| lane.iter().map(|found| found.1.clone()).collect::<Vec<_>>();
    assert_eq!(lanes.len(), 2);
    assert_eq!((paths(&lanes[0]), paths(&lanes[1])), (vec![BOTH.to_owned(); 2], vec![WATCH.to_owned(); 2]));
}

#[test]
fn short_requests_at_servers_are_many_and_watches_are_none() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    for path in [BOTH, WATCH, THEIRS, WATCH, BOTH] {
        stage.get(client, path);
    }
    let are = |stage: &Stage| [1, 3, 4].map(|many| stage.core.has_short_requests(many));
    assert_eq!(are(&stage), [true, true, false]);
    for server in [0, 1, 2] {
        for wire in stage.to_server(server) {
            for (stream, _) in stage.requests(wire).into_iter().filter(|(_, path)| path != WATCH) {
                stage.reply(wire, stream, &OK, true);
            }
        }
    }
    assert_eq!(are(&stage), [false; 3]);
}

#[test]
fn the_next_connection_opens_at_80_percent() {
    let mut stage = stage();
    stage.server_settings = vec![(MAX_STREAMS, 10)];
    let client = stage.client(WIDE);
    for _ in 0..8 {
        stage.get(client, BOTH);
    }
    assert_eq!(stage.to_server(0).len(), 1);
    stage.get(client, BOTH);
    assert_eq!(stage.to_server(0).len(), 2);
    stage.get(client, BOTH);
    let wires = stage.to_server(0);
    assert_eq!((stage.requests(wires[0]).len(), stage.requests(wires[1]).len()), (9, 1));
}

#[test]
fn who_waits_is_served_when_the_server_allows_more_streams() {
    let mut stage = Stage::new(Limits { server_conns: 1, ..Limits::default() });
    stage.server_settings = vec![(MAX_STREAMS, 1)];
    let client = stage.client(WIDE);
    stage.get(client, BOTH);
    stage.get(client, BOTH);
    let wire = stage.to_server(0)[0];
    assert_eq!(stage.requests(wire).len(), 1);
    stage.wires[wire].end.settings(&[(MAX_STREAMS, 2)]);
    stage.run();
    assert_eq!(stage.requests(wire).len(), 1);
}

#[test]
fn drain_finishes_short_requests_and_resets_watches() {
    let mut stage = stage();
    let (client, short, wire, arrived) = asked(&mut stage, BOTH, 0);
    let watch = stage.get(client, WATCH);
    stage.core.begin_drain(stage.now);
    stage.run();
    assert_eq!(stage.seen(client), [Event::GoAway { last: 0x7fff_ffff, code: 0 }]);
    stage.pass(Duration::from_millis(700));
    assert_eq!(stage.seen(client), [Event::GoAway { last: 3, code: 0 }, Event::Reset { stream: watch, code: 8 }]);
    // A client that opens a stream all the same is refused, and GOAWAY's last id does not rise.
    let late = stage.get(client, BOTH);
    assert_eq!(stage.seen(client), [Event::Reset { stream: late, code: 7 }]);
    stage.reply(wire, arrived, &OK, false);
    stage.send(wire, arrived, b"done", true);
    let events = stage.seen(client);
    assert_eq!((body(&events, short), events.last()), (b"done".to_vec(), Some(&Event::GoAway { last: 3, code: 0 })));
    assert!(stage.core.is_drained() && !stage.wires[client].is_open);
}

#[test]
fn a_drain_ends_at_its_limit() {
    let mut stage = stage();
    let (client, ..) = asked(&mut stage, BOTH, 0);
    stage.core.begin_drain(stage.now);
    stage.pass(Duration::from_secs(26));
    assert!(stage.core.is_drained() && !stage.wires[client].is_open);
    assert!(!stage.seen(client).iter().any(|event| matches!(event, Event::Data { .. } | Event::Head { .. })));
}

#[test]
fn a_hung_server_is_dead_within_six_seconds() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    stage.get(client, BOTH);
    let wire = stage.to_server(0)[0];
    stage.wires[wire].is_frozen = true;
    stage.doors[0] = Door::Hangs;
    stage.pass(Duration::from_secs(5));
    assert_eq!(stage.seen(client), []);
    // Under suspicion it gets no new requests.
    stage.get(client, BOTH);
    stage.ask(client, "POST", "/apis/g/v1/mine", true);
    stage.pass(Duration::from_secs(1));
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"), "nobody else has it");
    let peers = [stage.to_server(1), stage.to_server(2)].concat();
    assert_eq!(peers.iter().map(|&at| stage.requests(at).len()).sum::<usize>(), 2, "the new one, and the one that only reads");
}

#[test]
fn a_server_that_answers_pings_may_take_its_time() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.pass(Duration::from_secs(50));
    assert!(stage.wires[wire].end.pings > 10);
    stage.reply(wire, arrived, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
}

#[test]
fn a_short_request_without_answer_is_504_and_a_watch_waits_on() {
    let mut stage = stage();
    let (client, _, wire, _) = asked(&mut stage, BOTH, 0);
    stage.get(client, WATCH);
    stage.pass(Duration::from_secs(67));
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("504"));
    assert_eq!(reset(&stage.seen(wire)), Some(8), "the server need not go on");
    assert_eq!(stage.core.in_use().1, 1);
}

#[test]
fn h12_a_server_that_sends_heads_for_a_stream_that_is_over_is_cut_off() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    for _ in 0..2_000 {
        stage.reply(wire, arrived, &[(":status", "103")], false);
    }
    assert_eq!(stage.core.in_use().1, 0, "its request is over");
    assert!(!stage.wires[wire].is_open && stage.wires[client].is_open);
}

#[test]
fn a_malformed_answer_is_503_and_its_server_is_told() {
    for fields in [&[(":status", "abc")][..], &[(":status", "200"), (":status", "200")], &[("no-status", "x")]] {
        let mut stage = stage();
        let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
        stage.reply(wire, arrived, fields, false);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"), "{fields:?}");
        assert_eq!(reset(&stage.seen(wire)), Some(1), "{fields:?}");
    }
}

#[test]
fn a_response_shorter_than_its_content_length_is_a_reset() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reply(wire, arrived, &[(":status", "200"), ("content-length", "10")], false);
    stage.send(wire, arrived, b"short", true);
    let events = stage.seen(client);
    assert_eq!((reset(&events), stage.core.in_use().1), (Some(2), 0));
}

#[test]
fn an_early_response_ends_the_upload_with_no_error() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    let stream = stage.ask(client, "POST", BOTH, false);
    stage.send(client, stream, b"begin", false);
    let wire = stage.to_server(0)[0];
    stage.reply(wire, 1, &[(":status", "413")], true);
    stage.reset(wire, 1, 0);
    let events = stage.seen(client);
    assert_eq!((status(&events).as_deref(), reset(&events), stage.core.in_use().1), (Some("413"), Some(0), 0));
}

#[test]
fn padding_gives_its_window_back() {
    // More such frames than a client with the default budget may send.
    let idle_frames = Rate { burst: 10_000, per_second: 0 };
    let mut stage = Stage::new(Limits { idle_frames, ..Limits::default() });
    let client = stage.client(WIDE);
    let stream = stage.ask(client, "POST", BOTH, false);
    for _ in 0..2_000 {
        stage.wires[client].end.data(stream, b"", false, Some(99));
        stage.run();
        assert!(stage.wires[client].end.room(stream) > 0);
    }
    stage.send(client, stream, b"body", true);
    let wire = stage.to_server(0)[0];
    assert_eq!(body(&stage.seen(wire), 1), b"body");
}

#[test]
fn a_long_upload_loses_no_window() {
    let mut stage = stage();
    let client = stage.client(WIDE);
    let stream = stage.ask(client, "POST", BOTH, false);
    let wire = stage.to_server(0)[0];
    stage.reply(wire, 1, &OK, false);
    for _ in 0..3_000 {
        stage.send(client, stream, &[7; 300], false);
        stage.send(wire, 1, &[8; 900], false);
        stage.seen(client);
        stage.seen(wire);
        stage.wires[client].end.grant(stream, 900);
        stage.wires[wire].end.grant(1, 300);
        // All was taken: what is not given back yet is less than half.
        assert!(stage.wires[client].end.streams[&stream].send_window > 32 * 1_024);
        assert!(stage.wires[wire].end.streams[&1].send_window > 128 * 1_024);
    }
}

#[test]
fn a_client_that_leaves_cancels_its_requests() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.lose(client);
    assert_eq!((stage.seen(wire), stage.core.in_use().1), (vec![Event::Reset { stream: arrived, code: 8 }], 0));
}

/// What becomes of a request whose client has gone is no answer of ours, and no error that anybody saw.
#[test]
fn nobody_is_answered_who_is_gone() {
    let mut stage = Stage::new(Limits { server_resets: Rate { burst: 0, per_second: 0 }, ..Limits::default() });
    let client = stage.client(WIDE);
    // What reads is asked for once more, which ends otherwise.
    stage.ask(client, "POST", BOTH, true);
    let wire = stage.to_server(0)[0];
    stage.seen(wire);
    stage.lose(client);
    assert_eq!((stage.seen(wire), stage.core.in_use().1), (vec![], 1), "the budget of resets is spent: it runs on");
    let before = stage.core.counters();
    stage.lose(wire);
    let after = stage.core.counters();
    assert_eq!((after.refused, after.body_received, stage.core.in_use().1), (before.refused, before.body_received, 0));
}

#[test]
fn idle_connections_are_closed() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reply(wire, arrived, &OK, true);
    stage.pass(Duration::from_secs(62));
    assert!(!stage.wires[wire].is_open && stage.wires[client].is_open);
    stage.pass(Duration::from_secs(30));
    assert!(!stage.wires[client].is_open);
    assert_eq!(stage.core.in_use(), (0, 0, 0));
}

#[test]
fn an_idle_connection_is_no_proof_that_a_hung_server_lives() {
    let mut stage = stage();
    let (client, _, wire, arrived) = asked(&mut stage, WATCH, 0);
    stage.reply(wire, arrived, &OK, true);
    stage.get(client, BOTH);
    let busy = *stage.to_server(0).last().unwrap();
    assert_ne!(busy, wire, "watches have connections of their own");
    for at in [wire, busy] {
        stage.wires[at].is_frozen = true;
    }
    stage.doors[0] = Door::Hangs;
    stage.pass(Duration::from_secs(6));
    stage.seen(client);
    stage.get(client, BOTH);
    let peers = [stage.to_server(1), stage.to_server(2)].concat();
    let asked = peers.iter().map(|&at| stage.requests(at).len()).sum::<usize>();
    assert_eq!(asked, 2, "what was lost, and the next request, go straight to a peer");
}

#[test]
fn a_reader_that_stopped_reading_loses_its_stream() {
    let mut stage = stage();
    let client = stage.client(1_000);
    stage.get(client, BOTH);
    let wire = stage.to_server(0)[0];
    stage.reply(wire, 1, &OK, false);
    stage.send(wire, 1, &pattern(5_000), false);
    stage.pass(Duration::from_secs(295));
    assert_eq!(reset(&stage.seen(client)), None);
    stage.pass(Duration::from_secs(10));
    assert_eq!(reset(&stage.seen(client)), Some(8));
}

#[test]
fn a_head_over_the_limit_is_431_and_the_connection_goes_on() {
    let mut stage = Stage::new(Limits { header_list: 1_000, ..Limits::default() });
    let client = stage.client(WIDE);
    let path = format!("{BOTH}?{}", "x".repeat(2_000));
    stage.get(client, &path);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("431"));
    let stream = stage.ask(client, "HEAD", &path, true);
    let events = stage.seen(client);
    let is_end = |event: &Event| matches!(event, Event::Head { end: true, .. });
    assert!(status(&events).as_deref() == Some("431") && events.iter().any(is_end) && body(&events, stream).is_empty(), "{events:?}");
    stage.get(client, BOTH);
    let wire = stage.to_server(0)[0];
    stage.reply(wire, 1, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
}

#[test]
fn a_full_queue_is_503_with_retry_after() {
    let mut stage = Stage::new(Limits { waiting: 2, ..Limits::default() });
    stage.doors = [Door::Hangs; 3];
    let client = stage.client(WIDE);
    for _ in 0..3 {
        stage.get(client, BOTH);
    }
    let events = stage.seen(client);
    assert_eq!(status(&events).as_deref(), Some("503"));
    assert_eq!(stage.core.in_use().1, 2);
}

#[test]
fn clients_that_reset_all_they_ask_for_open_few_connections() {
    let rate = Rate { burst: 100_000, per_second: 0 };
    let mut stage = Stage::new(Limits { client_resets: rate, idle_frames: rate, ..Limits::default() });
    for _ in 0..40 {
        let client = stage.client(WIDE);
        for _ in 0..100 {
            let stream = stage.get(client, BOTH);
            stage.reset(client, stream, 8);
        }
    }
    assert_eq!(stage.to_server(0).len(), 3, "one to begin with, and two for the streams that wait for their reset");
    // An honest request waits no longer than it takes to reset some.
    let client = stage.client(WIDE);
    stage.get(client, "/apis/g/v1/both/honest");
    stage.pass(Duration::from_millis(600));
    let honest = |requests: Vec<(u32, String)>| requests.into_iter().find(|(_, path)| path.ends_with("honest"));
    let arrived = stage.to_server(0).into_iter().find_map(|wire| honest(stage.requests(wire)).map(|(stream, _)| (wire, stream)));
    let (wire, stream) = arrived.unwrap();
    stage.reply(wire, stream, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    stage.pass(Duration::from_secs(5));
    assert_eq!(stage.core.in_use().1, 0);
}

#[test]
fn nothing_is_said_on_a_stream_that_its_client_reset() {
    let none = Rate { burst: 0, per_second: 0 };
    let mut stage = Stage::new(Limits { server_resets: none, ..Limits::default() });
    let (client, stream, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reset(client, stream, 8);
    assert!(stage.seen(wire).is_empty(), "the server has had its resets");
    stage.reply(wire, arrived, &[(":status", "103")], false);
    stage.reply(wire, arrived, &OK, false);
    stage.send(wire, arrived, &pattern(1_000), true);
    assert!(stage.seen(client).is_empty());
    assert_eq!(stage.core.in_use().1, 0);
}

#[test]
fn the_time_that_heads_are_here_is_counted() {
    let mut stage = stage();
    let (client, stream, wire, arrived) = asked(&mut stage, BOTH, 0);
    stage.reply(wire, arrived, &OK, false);
    stage.pass(Duration::from_millis(50));
    stage.send(wire, arrived, b"all of it", true);
    assert_eq!(body(&stage.seen(client), stream), b"all of it");
    stage.get(client, BOTH);
    let arrived = stage.requests(wire)[0].0;
    stage.reply(wire, arrived, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
    // As if all of it had been one wake-up.
    stage.core.end_wake_up(|| Duration::from_micros(7));
    stage.core.end_wake_up(|| unreachable!("nothing is left to count"));
    let mut meters = Meters::default();
    stage.core.copy_meters(&mut meters);
    let (requests, answers) = (meters.request_added, meters.answer_added);
    assert_eq!((answers.nanos, answers.buckets), (50_014_000, [1, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]));
    assert_eq!((requests.nanos, requests.buckets[0], requests.buckets.iter().sum::<u64>()), (14_000, 2, 2));
}
