//! Attacks kept up against the real binary with its default limits: the attacker comes back whenever it is cut off. On the same shard a
//! neighbour with a connection, and newcomers from another address, must not notice.
//!
//! A few seconds of each; `MVPROXY_LONG=1` runs each for 30 s, and a recorded client for five minutes. `-- --nocapture` prints the figures.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, reason = "a test stops at the first surprise, helpers included")]

mod support;

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use http::{Method, StatusCode};
use loadgen::{Client, Pki};
use support::attacks::{self, HANG, SHORT, WATCH};
use support::frames::{END_HEADERS, END_STREAM, HEADERS, PING, RST_STREAM, SETTINGS, block, frame, get, nth_stream};
use support::siege::{ALONE, ATTACKER, Besieger, LIMIT, Siege, Tally, connect, each, is_long, keep_up};
use support::{NAME, TOKEN, headers, hostile, raw};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpSocket;
use tokio::time::{sleep, timeout};

/// What only the peer serves.
const PEERS: &str = "/apis/batch/v1/namespaces/default/jobs";

macro_rules! sieges {
    ($($name:ident: $attacks:expr, $deaf:expr;)+) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            let _alone = ALONE.lock().await;
            Siege::new().await.cuts_off($attacks, $deaf).await;
        })+
    };
}

sieges! {
    h1_rapid_reset: attacks::H1, false;
    h2_made_you_reset: attacks::H2, false;
    h3_answers_nobody_reads: attacks::H3, true;
    h4_continuation_flood: attacks::H4, false;
    h6_ping_and_settings_floods: attacks::H6, false;
    h7_empty_data: attacks::H7, false;
    h9_window_updates: attacks::H9, false;
    h10_priorities: attacks::H10, false;
}

/// Answered with 431, and cut off when it goes on: work, but no memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h5_hpack_bomb() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let mut bomb = block(0x82, SHORT);
    bomb.extend([0x40, 1, b'a', 0x7f, 0xa1, 0x1e]);
    bomb.extend([b'a'; 4_000]);
    bomb.extend([0xbe; 10_000]);
    let mut cookies = block(0x82, SHORT);
    for _ in 0..2_500 {
        // cookie, a crumb of one byte, never indexed.
        cookies.extend([0x1f, 0x11, 1, b'c']);
    }
    for (what, payload) in [("4 KB × 10,000", bomb), ("cookie crumbs", cookies)] {
        let (address, ca) = (siege.proxy.address(), siege.pki.ca_pem().to_owned());
        let besiege = || {
            let (ca, payload) = (ca.clone(), payload.clone());
            Besieger::start(move |stop, tally| {
                keep_up(address, ca, stop, tally, move |nth| {
                    let bomb = frame(HEADERS, END_HEADERS | END_STREAM, nth_stream(nth), &payload);
                    async { bomb }
                })
            })
        };
        siege.withstands(what, each(2), true, besiege).await;
    }
    siege.recovers().await;
}

/// 100 answers of 1 MB that are not read: held back at the server, not here.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h8_slow_readers() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let (address, ca) = (siege.proxy.address(), siege.pki.ca_pem().to_owned());
    for (what, window) in [("window 0", 0u32), ("window 1", 1)] {
        let besiege = || {
            let ca = ca.clone();
            Besieger::start(move |stop, tally| {
                keep_up(address, ca, stop, tally, move |nth| async move {
                    match nth {
                        0 => frame(SETTINGS, 0, 0, &[&[0, 4][..], &window.to_be_bytes()].concat()),
                        1..=100 => get(nth_stream(nth), "/debug/twin/bytes/1000000"),
                        _ => {
                            sleep(Duration::from_millis(20)).await;
                            Vec::new()
                        }
                    }
                })
            })
        };
        siege.withstands(what, each(2), false, besiege).await;
    }
    siege.recovers().await;
}

/// More streams than allowed, streams that go backwards, streams of the wrong kind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h11_too_many_streams() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let (address, ca) = (siege.proxy.address(), siege.pki.ca_pem().to_owned());
    type Piece = fn(usize) -> Vec<u8>;
    let kinds: [(&str, Piece); 3] = [
        ("without end", |nth| get(nth_stream(nth), HANG)),
        ("backwards", |nth| get(0x00ff_ffff - 2 * (nth as u32 % 1_000_000), HANG)),
        ("even", |nth| get(2 + 2 * nth as u32, HANG)),
    ];
    for (what, piece) in kinds {
        let besiege = || {
            let ca = ca.clone();
            Besieger::start(move |stop, tally| keep_up(address, ca, stop, tally, move |nth| async move { piece(nth) }))
        };
        siege.withstands(what, each(3), true, besiege).await;
    }
    siege.recovers().await;
}

/// 1,000 connections that say nothing after TLS, or nothing after the preface: each costs little, and goes when its time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h13_stalls_before_the_first_request() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let before = siege.proxy.resident();
    let mut silent = Vec::new();
    for nth in 0..1_000 {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind((ATTACKER, 0).into()).unwrap();
        let tcp = socket.connect(siege.proxy.address()).await.unwrap();
        let mut tls = raw::handshake_on(tcp, siege.pki.ca_pem(), b"h2").await.unwrap();
        if nth % 2 == 0 {
            tokio::io::AsyncWriteExt::write_all(&mut tls, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n").await.unwrap();
        }
        silent.push((Instant::now(), tls));
    }
    let each = siege.proxy.resident().saturating_sub(before) / silent.len();
    println!("1,000 silent connections: {each} bytes each");
    assert!(each <= 16 << 10, "{each} bytes each");
    assert_eq!(siege.neighbour.get(SHORT).await.unwrap().status, StatusCode::OK);
    for (opened, mut tls) in silent {
        let mut rest = Vec::new();
        timeout(LIMIT + LIMIT, tokio::io::AsyncReadExt::read_to_end(&mut tls, &mut rest)).await.unwrap().ok();
        assert!(opened.elapsed() < Duration::from_secs(15), "{:?}", opened.elapsed());
    }
    siege.recovers().await;
}

/// Half handshakes, as many as one can open: the oldest are cut, and who comes next is served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t6_half_handshakes() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let address = siege.proxy.address();
    let besiege = || {
        Besieger::start(move |stop, tally| async move {
            let mut open = std::collections::VecDeque::new();
            while !stop.load(Ordering::Relaxed) {
                let socket = TcpSocket::new_v4().unwrap();
                socket.bind((ATTACKER, 0).into()).unwrap();
                // The backlog is full: the proxy takes no more than it can stand.
                let Ok(Ok(mut tcp)) = timeout(Duration::from_millis(50), socket.connect(address)).await else { continue };
                tcp.write_all(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03").await.ok();
                tally.connections.fetch_add(1, Ordering::Relaxed);
                open.push_back(tcp);
                if open.len() > 1_000 {
                    open.pop_front();
                }
            }
        })
    };
    siege.withstands("half handshakes", each(1), false, besiege).await;
    siege.recovers().await;
}

/// A server that floods whoever asks it: the client has its answer in time, and who asks another server does not notice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn h12_floods_of_a_server() {
    let _alone = ALONE.lock().await;
    for (what, flood) in hostile::FLOODS {
        let pki = Pki::new().unwrap();
        let peer = hostile::server(&pki, frame(SETTINGS, 0, 0, &[]), flood).await;
        let siege = Siege::beside(pki, Some(peer)).await;
        let (address, ca) = (siege.proxy.address(), siege.pki.ca_pem().to_owned());
        let besiege = || {
            let ca = ca.clone();
            Besieger::start(move |stop, tally| async move {
                let client = Client::connect(address, &ca, NAME, Some(TOKEN)).await.unwrap();
                while !stop.load(Ordering::Relaxed) {
                    let asked = Instant::now();
                    if let Ok(answer) = client.get(PEERS).await {
                        assert!(answer.status == StatusCode::SERVICE_UNAVAILABLE || what.contains("trailers"), "{what}: {}", answer.status);
                    }
                    assert!(asked.elapsed() < Duration::from_secs(5), "{what}: {:?}", asked.elapsed());
                    tally.pieces.fetch_add(1, Ordering::Relaxed);
                }
            })
        };
        siege.withstands(what, each(hostile::FLOODS.len()), false, besiege).await;
        siege.recovers().await;
    }
}

/// A huge upload streams through: what it costs is its window.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn k4_a_huge_upload_costs_its_window() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let megabytes = if is_long() { 1_024 } else { 128 };
    let client = raw::Raw::connect(siege.proxy.address(), siege.pki.ca_pem(), &h2::client::Builder::new()).await;
    let (response, mut stream) = client.open(Method::POST, "/debug/twin/echo", headers([]), false).await;
    let echoed = tokio::spawn(async move {
        let mut response = response.await.unwrap();
        raw::read_all(response.body_mut()).await.unwrap()
    });
    let (before, mut most) = (siege.proxy.resident(), 0);
    let piece = support::noise(1 << 20, 4);
    for _ in 0..megabytes {
        raw::send_some(&mut stream, piece.clone()).await.unwrap();
        most = most.max(siege.proxy.resident());
    }
    stream.send_data(bytes::Bytes::new(), true).unwrap();
    assert_eq!(timeout(LIMIT, echoed).await.unwrap().unwrap(), megabytes << 20);
    let grown = most.saturating_sub(before);
    println!("{megabytes} MB up and down: memory + {:.1} MiB", grown as f64 / 1_048_576.0);
    assert!(grown < 8 << 20, "{grown}");
}

/// What controllers do: watches, lists, requests given up by timeouts, pings. Nobody cuts them off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_benign_client_is_left_alone() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let time = if is_long() { Duration::from_secs(30) } else { Duration::from_secs(3) };
    let tally = Tally::default();
    let mut frames = connect(siege.proxy.address(), siege.pki.ca_pem(), &tally).await.unwrap();
    let (began, mut stream, mut round, mut asked) = (Instant::now(), 1, 0, 0);
    let mut watches = std::collections::VecDeque::new();
    while began.elapsed() < time {
        // Every 50 ms: ten requests, one that is given up; every second a list, a watch opened and the oldest closed, a PING.
        let mut batch = Vec::new();
        let mut next = || {
            stream += 2;
            stream - 2
        };
        for _ in 0..10 {
            batch.extend(get(next(), SHORT));
            asked += 1;
        }
        let given_up = next();
        batch.extend(get(given_up, HANG));
        if round % 20 == 0 {
            batch.extend(get(next(), "/debug/twin/bytes/60000"));
            asked += 1;
            let watch = next();
            batch.extend(get(watch, WATCH));
            watches.push_back(watch);
            if watches.len() > 10 {
                batch.extend(frame(RST_STREAM, 0, watches.pop_front().unwrap(), &[0, 0, 0, 8]));
            }
            batch.extend(frame(PING, 0, 0, b"are you?"));
        }
        // What was received is given back, as every client does.
        batch.extend(frame(support::frames::WINDOW_UPDATE, 0, 0, &[0, 0x02, 0, 0]));
        assert!(frames.send(&batch).await, "cut off after {:?}", began.elapsed());
        sleep(Duration::from_millis(50)).await;
        assert!(frames.send(&frame(RST_STREAM, 0, given_up, &[0, 0, 0, 8])).await);
        round += 1;
        let seen = frames.seen();
        assert!(seen.goaway.is_none() && !seen.closed, "after {:?}: {:?}", began.elapsed(), seen.goaway);
    }
    support::eventually("all answers", LIMIT, || frames.seen().ended.len() >= asked).await;
    println!("{asked} answered, {round} given up, in {:?}", began.elapsed());
}

/// Something that a recorded client does.
#[derive(Clone, Copy)]
enum Step {
    Watch,
    Get,
    List,
    Write,
    /// Gives up the n-th watch.
    End(usize),
}

/// A recorded trace as steps in the order of time: the times of the requests are those of the trace, and watches end as they did.
fn recorded() -> Vec<(Duration, Step)> {
    let trace = include_str!("traces/controllers.txt").lines().filter(|line| !line.starts_with('#'));
    let (mut steps, mut watches) = (Vec::new(), 0);
    for line in trace {
        let fields: Vec<_> = line.split(' ').collect();
        let [at, verb, path, lasted, _] = fields[..] else { panic!("{line}") };
        let millis = |text: &str| Duration::from_millis(text.parse().unwrap());
        let step = match verb {
            "watch" => Step::Watch,
            "GET" if path.contains("limit=") => Step::List,
            "GET" => Step::Get,
            _ => Step::Write,
        };
        steps.push((millis(at), step));
        if verb == "watch" {
            steps.push((millis(at) + millis(lasted), Step::End(watches)));
            watches += 1;
        }
    }
    steps.sort_by_key(|&(at, _)| at);
    steps
}

/// A recorded client of a real cluster, again and again on one connection: lists, watches, many of them given up by timeouts. Nobody cuts it off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_client_is_left_alone() {
    let _alone = ALONE.lock().await;
    let siege = Siege::new().await;
    let time = if is_long() { Duration::from_secs(300) } else { Duration::from_secs(3) };
    let mut frames = connect(siege.proxy.address(), siege.pki.ca_pem(), &Tally::default()).await.unwrap();
    let (began, mut stream, mut asked, mut given_up) = (Instant::now(), 1, 0, 0);
    while began.elapsed() < time {
        let (round, mut watches) = (Instant::now(), Vec::new());
        for (at, step) in recorded() {
            tokio::time::sleep_until((round + at).into()).await;
            if began.elapsed() >= time {
                break;
            }
            let bytes = match step {
                Step::Watch => get(stream, WATCH),
                Step::Get => get(stream, SHORT),
                Step::List => get(stream, "/debug/twin/bytes/60000"),
                Step::Write => {
                    let head = support::frames::post(stream, "/debug/twin/echo");
                    [head, frame(support::frames::DATA, END_STREAM, stream, &[b'x'; 300])].concat()
                }
                Step::End(nth) => frame(RST_STREAM, 0, watches[nth], &[0, 0, 0, 8]),
            };
            match step {
                Step::Watch => watches.push(stream),
                Step::End(_) => given_up += 1,
                _ => asked += 1,
            }
            stream += if matches!(step, Step::End(_)) { 0 } else { 2 };
            // What was received is given back, as every client does.
            let credit = frame(support::frames::WINDOW_UPDATE, 0, 0, &[0, 0, 0xf0, 0]);
            assert!(frames.send(&[bytes, credit].concat()).await, "cut off after {:?}", began.elapsed());
            let seen = frames.seen();
            assert!(seen.goaway.is_none() && !seen.closed, "after {:?}: {:?}", began.elapsed(), seen.goaway);
        }
    }
    support::eventually("all answers", LIMIT, || frames.seen().ended.len() >= asked).await;
    println!("{asked} answered, {given_up} watches given up, in {:?}", began.elapsed());
    assert!(asked > 30);
}
