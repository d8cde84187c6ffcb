//! Limits of a shard that hold whatever its clients and servers do; each test is one sentence.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "tests")]

mod sim;

use std::net::Ipv4Addr;
use std::time::Duration;

use discovery::{Gvr, Server, ServerId, ServerSet, Snapshot, SnapshotBuilder};
use engine::core::{Action, Port};
use engine::{Limits, Rate};
use sim::end::{Event, HeadStyle, INITIAL_WINDOW, MAX_STREAMS};
use sim::stage::{BOTH, Door, OK, Stage, THEIRS, WATCH, WIDE, body, field, pattern, reset, status};

/// Servers a shard can tell apart.
const SLOTS: u16 = 128;

/// A client that reads nothing, and for which the server sends `count` bytes.
fn hold(stage: &mut Stage, count: usize) -> usize {
    let reader = stage.client(0);
    hold_for(stage, reader, count);
    reader
}

/// `count` bytes more that a client does not read.
fn hold_for(stage: &mut Stage, reader: usize, count: usize) {
    stage.get(reader, BOTH);
    let wire = stage.to_server(0)[0];
    let arrived = stage.requests(wire).last().unwrap().0;
    stage.reply(wire, arrived, &OK, false);
    stage.send(wire, arrived, &vec![7; count], false);
}

#[test]
fn above_80_percent_of_held_bytes_new_streams_are_refused_and_below_taken() {
    let mut stage = Stage::new(Limits { held_bytes: 200_000, ..Limits::default() });
    let client = stage.client(WIDE);
    let readers: Vec<_> = (0..3).map(|_| hold(&mut stage, 45_000)).collect();
    assert!(stage.core.in_use().2 <= 160_000);
    stage.get(client, BOTH);
    let wire = stage.to_server(0)[0];
    assert_eq!(stage.requests(wire).len(), 1, "taken at {} bytes", stage.core.in_use().2);
    hold(&mut stage, 45_000);
    assert!((160_001..200_000).contains(&stage.core.in_use().2));
    let refused = stage.get(client, BOTH);
    assert_eq!(stage.seen(client), [Event::Reset { stream: refused, code: 7 }], "REFUSED_STREAM: it may be sent again");
    for &reader in &readers {
        assert_eq!(reset(&stage.seen(reader)), None, "who holds no more than others keeps its stream");
    }
    stage.lose(readers[0]);
    stage.get(client, BOTH);
    assert_eq!(stage.requests(wire).len(), 1, "taken again at {} bytes", stage.core.in_use().2);
}

#[test]
fn the_address_that_holds_most_is_sent_away_and_nobody_is_refused() {
    let mut stage = Stage::new(Limits { held_bytes: 400_000, ..Limits::default() });
    let bad = Ipv4Addr::new(10, 9, 9, 9);
    let client = stage.client(WIDE);
    // Larger than any connection of the other address at first, but alone.
    let innocent = hold(&mut stage, 90_000);
    let readers: Vec<_> = [50_000, 60_000, 60_000].map(|count| (stage.client_from(bad, 0), count)).to_vec();
    for &(reader, count) in &readers {
        hold_for(&mut stage, reader, count);
    }
    let gone = |stage: &mut Stage, reader| stage.seen(reader).iter().any(|event| matches!(event, Event::GoAway { code: 11, .. }));
    assert_eq!(readers.iter().filter(|&&(reader, _)| gone(&mut stage, reader)).count(), 0, "{}", stage.core.in_use().2);
    hold_for(&mut stage, readers[2].0, 25_000);
    assert!(stage.core.in_use().2 <= 280_000, "{}", stage.core.in_use().2);
    let left: Vec<_> = readers.iter().map(|&(reader, _)| gone(&mut stage, reader)).collect();
    assert_eq!(left, [false, false, true], "the largest goes, and it was enough");
    assert!(!gone(&mut stage, innocent));
    let stream = stage.get(client, BOTH);
    assert_eq!(reset(&stage.seen(client)), None, "stream {stream} is taken");
}

#[test]
fn what_sockets_do_not_take_and_heads_that_wait_count_as_held() {
    let mut stage = Stage::new(Limits { held_bytes: 100_000, ..Limits::default() });
    stage.doors = [Door::Hangs; 3];
    let client = stage.client(WIDE);
    let long = "x".repeat(30_000);
    for _ in 0..3 {
        stage.ask_for(client, BOTH, &[("x-long", &long)]);
    }
    stage.pass(Duration::from_secs(1));
    assert_eq!(stage.core.in_use().2, 0, "nothing of it is a body");
    let events = stage.seen(client);
    assert!(events.iter().any(|event| matches!(event, Event::GoAway { code: 11, .. })), "{events:?}");
}

#[test]
fn above_all_of_held_bytes_those_who_do_not_read_lose_and_nobody_else() {
    let mut stage = Stage::new(Limits { held_bytes: 200_000, ..Limits::default() });
    let (quick, late) = (stage.client(WIDE), stage.client(0));
    let stream = stage.get(quick, BOTH);
    stage.get(late, BOTH);
    let wire = stage.to_server(0)[0];
    let arrived: Vec<_> = stage.requests(wire).iter().map(|request| request.0).collect();
    for &arrived in &arrived {
        stage.reply(wire, arrived, &OK, false);
    }
    for _ in 0..4 {
        hold(&mut stage, 45_000);
    }
    stage.send(wire, arrived[1], &[9; 20_000], false);
    assert_eq!(reset(&stage.seen(late)), Some(11), "ENHANCE_YOUR_CALM");
    stage.send(wire, arrived[0], &[8; 300_000], true);
    assert_eq!(body(&stage.seen(quick), stream).len(), 300_000);
}

#[test]
fn a_full_queue_is_overloaded_and_who_left_it_makes_room() {
    let mut stage = Stage::new(Limits { waiting: 2, ..Limits::default() });
    stage.doors = [Door::Hangs; 3];
    let client = stage.client(WIDE);
    let waiting = [stage.get(client, BOTH), stage.get(client, BOTH)];
    let overloaded = stage.get(client, BOTH);
    let events = stage.seen(client);
    let Event::Head { stream, fields, .. } = &events[0] else { panic!("{events:?}") };
    assert_eq!((*stream, field(fields, ":status"), field(fields, "retry-after")), (overloaded, Some("503"), Some("1")));
    let text = String::from_utf8(body(&events, overloaded)).unwrap();
    assert!(text.contains("too many requests wait"), "{text}");
    stage.reset(client, waiting[0], 8);
    stage.get(client, BOTH);
    assert_eq!((stage.seen(client), stage.core.in_use().1), (vec![], 2), "it waits in the place of the one that left");
}

#[test]
fn a_shard_takes_so_many_clients_and_one_more_when_one_has_left() {
    let mut stage = Stage::new(Limits { client_conns: 3, ..Limits::default() });
    let clients = [stage.client(WIDE), stage.client(WIDE), stage.client(WIDE)];
    assert_eq!(stage.core.handle_accepted(Port::Clients, None, stage.now), None);
    stage.lose(clients[1]);
    assert!(stage.core.handle_accepted(Port::Clients, None, stage.now).is_some());
    assert_eq!(stage.core.handle_accepted(Port::Clients, None, stage.now), None);
}

#[test]
fn retired_connections_take_nothing_new_and_end_with_their_last_request() {
    let mut stage = Stage::new(Limits::default());
    let client = stage.client(WIDE);
    stage.get(client, BOTH);
    let watch = stage.get(client, WATCH);
    let [short, long] = stage.to_server(0)[..] else { panic!() };
    let (short, long) = if stage.wires[short].events.is_empty() { (long, short) } else { (short, long) };
    assert_eq!((stage.requests(short).len(), stage.requests(long).len()), (1, 1));
    stage.core.retire_servers(stage.now);
    stage.run();
    stage.get(client, BOTH);
    let new = *stage.to_server(0).last().unwrap();
    assert!(![short, long].contains(&new) && stage.requests(new).len() == 1, "the next request has a new connection");
    stage.reply(short, 1, &OK, true);
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"), "what runs is answered");
    assert!(!stage.wires[short].is_open && stage.wires[new].is_open);
    stage.reply(long, 1, &OK, false);
    stage.seen(client);
    let retired = Limits::default().retired;
    stage.pass(retired.checked_sub(Duration::from_secs(2)).unwrap());
    assert!(stage.wires[long].is_open, "a watch may go on");
    stage.pass(Duration::from_secs(3));
    assert!(!stage.wires[long].is_open, "but not for ever");
    let events = stage.seen(client);
    assert!(events.contains(&Event::Reset { stream: watch, code: 2 }), "{events:?}");
}

#[test]
fn an_idle_connection_is_retired_at_once_and_one_being_made_is_kept() {
    let mut stage = Stage::new(Limits::default());
    let client = stage.client(WIDE);
    stage.get(client, BOTH);
    let idle = stage.to_server(0)[0];
    stage.reply(idle, 1, &OK, true);
    stage.doors[0] = Door::Hangs;
    stage.get(client, WATCH);
    stage.core.retire_servers(stage.now);
    stage.run();
    assert!(!stage.wires[idle].is_open);
    assert_eq!(stage.core.in_use(), (2, 1, 0), "the client, and the connection its watch waits for");
}

/// Local, and one peer at the n-th address; `count` servers in all have been peers before.
fn moved(generation: u64, nth: u16) -> Snapshot {
    let mut builder = SnapshotBuilder::new(generation);
    let at = |id: &str, nth: u16| Server::new(ServerId::new(id), ([10, 0, 0, 1], nth + 1).into());
    let local = builder.server(at("s0", 0)).unwrap();
    let peer = builder.server(at("peer", nth)).unwrap();
    builder.local(local);
    builder.serve(&Gvr::new("g", "v1", "theirs"), ServerSet::only(peer)).unwrap();
    builder.serve(&Gvr::new("g", "v1", "both"), ServerSet::only(local)).unwrap();
    builder.build().unwrap()
}

#[test]
fn a_peer_may_move_more_often_than_there_are_slots() {
    let mut stage = Stage::new(Limits::default());
    let client = stage.client(WIDE);
    for nth in 3..4 * SLOTS {
        stage.publisher.publish(moved(u64::from(nth), nth));
        stage.get(client, THEIRS);
        let Some(&wire) = stage.to_server(usize::from(nth)).first() else {
            panic!("after {nth} moves: {:?}", stage.seen(client));
        };
        assert_eq!(stage.requests(wire), [(1, THEIRS.to_owned())]);
        stage.reply(wire, 1, &OK, true);
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("200"));
        stage.pass(Duration::from_millis(100));
    }
    let open = (1..usize::from(4 * SLOTS)).flat_map(|server| stage.to_server(server)).count();
    assert_eq!(open, 1, "where it was it has no connections");
}

#[test]
fn a_request_for_an_older_place_never_goes_to_the_server_that_took_it() {
    let mut stage = Stage::new(Limits::default());
    let client = stage.client(WIDE);
    // Its peer refuses, and local hangs: it waits for local with the peer in mind.
    stage.doors = [Door::Hangs, Door::Refuses, Door::Refuses];
    stage.get(client, BOTH);
    assert_eq!(stage.core.in_use().1, 1);
    for nth in 3..3 * SLOTS {
        stage.publisher.publish(moved(u64::from(nth), nth));
        stage.pass(Duration::from_millis(10));
    }
    let before = stage.wires.len();
    stage.doors = [Door::Refuses; 3];
    stage.pass(Duration::from_secs(6));
    assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"), "nobody it may go to is left");
    let asked: Vec<_> = (before..stage.wires.len()).filter_map(|wire| stage.wires[wire].server).collect();
    assert!(asked.iter().all(|&server| server < 3), "connections were made to {asked:?}");
    assert!(!std::iter::from_fn(|| stage.core.poll_action()).any(|action| matches!(action, Action::Connect { .. })));
}

#[test]
fn a_request_follows_a_peer_that_moved() {
    let mut stage = Stage::new(Limits::default());
    let client = stage.client(WIDE);
    stage.publisher.publish(moved(2, 1));
    stage.doors[1] = Door::Hangs;
    stage.get(client, THEIRS);
    stage.publisher.publish(moved(3, 5));
    stage.get(client, BOTH);
    let wire = stage.to_server(5)[0];
    assert_eq!(stage.requests(wire), [(1, THEIRS.to_owned())], "it waited for a connection");
    stage.get(client, THEIRS);
    stage.publisher.publish(moved(4, 6));
    stage.get(client, BOTH);
    let refused = stage.requests(wire)[0].0;
    stage.reset(wire, refused, 7);
    let wire = stage.to_server(6)[0];
    assert_eq!(stage.requests(wire), [(1, THEIRS.to_owned())], "it was refused");
}

#[test]
fn a_connection_begun_with_old_certificates_takes_no_requests() {
    let mut stage = Stage::new(Limits::default());
    let client = stage.client(WIDE);
    stage.doors = [Door::Hangs; 3];
    stage.get(client, BOTH);
    let old = stage.wires.len() - 1;
    stage.core.retire_servers(stage.now);
    stage.doors = [Door::Open; 3];
    stage.establish(old);
    assert!(!stage.wires[old].is_open);
    let new = stage.to_server(0)[0];
    assert_eq!(stage.requests(new), [(1, BOTH.to_owned())]);
}

#[test]
fn h2_a_stream_that_was_left_keeps_its_place_while_a_server_works_on_it() {
    let (none, many) = (Rate { burst: 0, per_second: 0 }, Rate { burst: 100_000, per_second: 0 });
    let mut stage = Stage::new(Limits { client_streams: 3, server_resets: none, client_resets: many, ..Limits::default() });
    let client = stage.client(WIDE);
    for _ in 0..3 {
        let stream = stage.get(client, BOTH);
        stage.reset(client, stream, 8);
    }
    stage.get(client, BOTH);
    assert_eq!(reset(&stage.seen(client)), Some(7), "three are still worked on");
    let wire = stage.to_server(0)[0];
    let working = stage.requests(wire);
    assert_eq!(working.len(), 3);
    for (stream, _) in working {
        stage.reply(wire, stream, &OK, true);
    }
    stage.get(client, BOTH);
    assert_eq!(stage.requests(wire).len(), 1);
}

#[test]
fn watches_that_were_left_keep_no_other_from_its_end_in_a_drain() {
    let (none, many) = (Rate { burst: 0, per_second: 0 }, Rate { burst: 100_000, per_second: 0 });
    let mut stage = Stage::new(Limits { client_streams: 2_000, server_resets: none, client_resets: many, ..Limits::default() });
    stage.server_settings = vec![(MAX_STREAMS, 2_000), (INITIAL_WINDOW, WIDE)];
    let client = stage.client(WIDE);
    for _ in 0..1_100 {
        let stream = stage.get(client, WATCH);
        stage.reset(client, stream, 8);
    }
    stage.get(client, WATCH);
    stage.seen(client);
    stage.core.begin_drain(stage.now);
    stage.pass(Duration::from_secs(2));
    assert_eq!(reset(&stage.seen(client)), Some(8));
}

/// Sends a body for as long as there is a window, and tells how much it was; a MiB is too much.
fn send_what_is_taken(stage: &mut Stage, wire: usize, stream: u32) -> usize {
    let mut sent = 0;
    while sent < 1 << 20 {
        let room = stage.wires[wire].end.room(stream);
        if room == 0 {
            break;
        }
        stage.send(wire, stream, &vec![7; room], false);
        sent += room;
    }
    sent
}

#[test]
fn an_upload_that_its_server_does_not_take_is_one_window_long() {
    const HELD: usize = 80 * 1_024;
    // Before an answer begins the body is kept for a retry, and while the outbox shares its blocks each full frame takes two.
    for (window, is_frozen, is_answered, held) in
        [(0, false, false, HELD), (0, false, true, HELD), (WIDE, true, false, 128 * 1_024), (WIDE, true, true, HELD)]
    {
        let case = format!("window {window}, socket full: {is_frozen}, answered: {is_answered}");
        let mut stage = Stage::new(Limits::default());
        stage.server_settings = vec![(MAX_STREAMS, 100), (INITIAL_WINDOW, window)];
        let client = stage.client(WIDE);
        let stream = stage.ask(client, "POST", BOTH, false);
        let wire = stage.to_server(0)[0];
        if is_answered {
            stage.reply(wire, 1, &OK, false);
        }
        stage.wires[wire].is_frozen = is_frozen;
        assert_eq!(send_what_is_taken(&mut stage, client, stream), Limits::default().client_window as usize, "{case}");
        assert!(stage.core.in_use().2 <= held, "{} bytes held: {case}", stage.core.in_use().2);
        // It was held back for that alone: it goes on when the server takes it.
        stage.wires[wire].is_frozen = false;
        if window == 0 {
            stage.wires[wire].end.grant(1, WIDE);
        }
        stage.run();
        stage.send(client, stream, &[7; 100_000], true);
        let sent = 100_000 + Limits::default().client_window as usize;
        assert_eq!((body(&stage.seen(wire), 1).len(), stage.core.in_use().2), (sent, 0), "{case}");
    }
}

#[test]
fn an_upload_in_small_pieces_holds_little_and_leaves_in_few_frames() {
    let mut stage = Stage::new(Limits::default());
    let client = stage.client(WIDE);
    let stream = stage.ask(client, "POST", BOTH, false);
    let sent = pattern(63_000);
    for piece in sent.chunks(9) {
        stage.wires[client].end.data(stream, piece, false, None);
    }
    let pieces = std::mem::take(&mut stage.wires[client].end.out);
    stage.core.handle_bytes(stage.wires[client].key, &pieces, stage.now);
    let held = stage.core.in_use().2;
    assert!(held <= 5 * Limits::default().retry_body, "{held} bytes for {} of a body", sent.len());
    stage.run();
    let wire = stage.to_server(0)[0];
    let events = stage.seen(wire);
    let frames = events.iter().filter(|event| matches!(event, Event::Data { .. })).count();
    assert_eq!(body(&events, 1), sent);
    assert!(frames < 50, "{frames} frames");
}

/// A Go server answers every DATA frame on a stream that it has ended with a reset. Others share its connection.
#[test]
fn a_late_reset_for_each_data_frame_is_no_flood_and_more_are() {
    const FRAMES: usize = 3_000;
    let mut stage = Stage::new(Limits::default());
    let (client, neighbour) = (stage.client(WIDE), stage.client(WIDE));
    let stream = stage.ask(client, "POST", BOTH, false);
    for _ in 0..FRAMES {
        stage.wires[client].end.data(stream, b"9 bytes..", false, None);
        stage.run();
    }
    stage.get(neighbour, BOTH);
    let wire = stage.to_server(0)[0];
    let asked = stage.requests(wire);
    stage.reply(wire, 1, &OK, true);
    stage.reset(wire, 1, 0);
    let late = |stage: &mut Stage, count| {
        for _ in 0..count {
            stage.wires[wire].end.frame(3, 0, 1, &5_u32.to_be_bytes());
        }
        stage.run();
    };
    late(&mut stage, FRAMES);
    assert!(stage.wires[wire].is_open, "the connection of others");
    stage.reply(wire, asked[1].0, &OK, true);
    assert_eq!(status(&stage.seen(neighbour)).as_deref(), Some("200"));
    late(&mut stage, FRAMES);
    assert!(!stage.wires[wire].is_open, "nothing was sent that these could be for");
}

/// A watch that stays and one with a bad token, for which the server ends the connection. False when nobody got them.
fn pin_one(stage: &mut Stage, client: usize) -> bool {
    stage.get(client, WATCH);
    stage.get(client, WATCH);
    let wire = *stage.to_server(0).last().unwrap();
    let arrived = stage.requests(wire);
    let [(watch, _), (junk, _)] = arrived.as_slice() else { return false };
    stage.reply(wire, *watch, &OK, false);
    stage.reply(wire, *junk, &[(":status", "401")], true);
    stage.wires[wire].end.goaway(*junk, 0);
    stage.run();
    true
}

#[test]
fn connections_that_a_goaway_ended_have_a_limit_too() {
    let mut stage = Stage::new(Limits { server_conns: 2, server_conns_factor: 3, ..Limits::default() });
    let client = stage.client(WIDE);
    let pinned = (0..20).filter(|_| pin_one(&mut stage, client)).count();
    let made = |stage: &Stage| stage.wires.iter().filter(|wire| wire.server == Some(0)).count();
    assert_eq!((pinned, made(&stage)), (6, 6));
    // Suspicion asks for a connection as well.
    let wires = stage.to_server(0);
    wires.iter().for_each(|&wire| stage.wires[wire].is_mute = true);
    stage.pass(Duration::from_secs(5));
    assert_eq!((made(&stage), stage.to_server(0).len()), (6, 6));
    wires.iter().for_each(|&wire| stage.wires[wire].is_mute = false);
    // When one has ended, there is room for those who wait.
    stage.send(wires[0], 1, b"", true);
    let open = stage.to_server(0);
    assert_eq!((open.len(), open.contains(&wires[0])), (6, false));
    assert_eq!(stage.requests(open[5]).len(), 28);
}

#[test]
fn all_uploads_of_a_client_may_end_with_their_server_and_it_is_not_blamed() {
    let mut stage = Stage::new(Limits { client_streams: 400, ..Limits::default() });
    stage.server_settings = vec![(MAX_STREAMS, 1_000), (INITIAL_WINDOW, WIDE)];
    let client = stage.client(WIDE);
    let streams: Vec<_> = (0..400).map(|_| stage.ask(client, "POST", BOTH, false)).collect();
    let wire = stage.to_server(0)[0];
    assert_eq!(stage.requests(wire).len(), 400);
    stage.lose(wire);
    let ended = stage.seen(client).iter().filter(|event| matches!(event, Event::Reset { code: 0, .. })).count();
    assert_eq!(ended, 400);
    // What was on its way when the client was told.
    for stream in streams {
        stage.wires[client].end.data(stream, b"late bytes of a body", false, None);
        stage.wires[client].end.headers(stream, &[("x-late", "trailer")], true, HeadStyle::default());
    }
    stage.run();
    assert_eq!((stage.seen(client), stage.wires[client].is_open), (vec![], true));
}

/// It answers before the bodies come, which are on their way by then.
#[test]
fn many_uploads_that_are_refused_are_no_flood() {
    let mut stage = Stage::new(Limits::default());
    stage.doors = [Door::Refuses; 3];
    let client = stage.client(WIDE);
    for nth in 0..3_000 {
        let fields = [(":method", "POST"), (":scheme", "https"), (":authority", "stage"), (":path", BOTH)];
        let end = &mut stage.wires[client].end;
        let stream = end.open(&fields, false, HeadStyle::default());
        end.data(stream, &[7; 1_000], true, None);
        stage.run();
        assert_eq!(status(&stage.seen(client)).as_deref(), Some("503"), "request {nth}");
    }
    // Those on a stream that is over are one, whatever is on its way.
    for _ in 0..3_000 {
        stage.wires[client].end.frame(0, 0, 1, &[7; 9]);
        stage.run();
    }
    assert!(!stage.wires[client].is_open);
}
