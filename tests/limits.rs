//! Limits of the whole engine, over real sockets: clients beyond them are turned away, and it goes on for the others.
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "the functions beside the tests are tests too")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use discovery::{Gvr, Server, ServerId, ServerSet, Snapshot, SnapshotBuilder};
use http::{HeaderMap, Method};
use loadgen::{Client, Twin, TwinConfig};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

mod support;

use support::frames::{self, Frames};
use support::script::{Script, answer};
use support::{IoDriver, NAME, Refusing, TOKEN, World, apis, eventually, raw};

on_both_drivers!(
    client_connections,
    handshakes_that_do_not_end,
    requests_that_wait,
    a_server_that_takes_few_streams,
    memory_for_readers_that_read_slowly,
    memory_for_readers_that_do_not_read,
    a_peer_that_moves_often,
    connections_made_with_old_certificates,
    uploads_that_trickle,
    a_shard_that_panics,
);

const LOCAL: &str = "/api/v1/namespaces/default/pods";
const PEERS: &str = "/apis/batch/v1/namespaces/default/jobs";
const PATIENCE: Duration = Duration::from_secs(10);

async fn client_connections(driver: IoDriver) {
    let world = World::on(driver).limits(|limits| limits.client_conns = 3).local("cp-a", apis::everywhere()).start();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(world.client().await);
    }
    for _ in 0..3 {
        assert!(connect(&world).await.is_err(), "a fourth came in");
    }
    for client in &clients {
        assert_eq!(client.get(LOCAL).await.unwrap().status, 200);
    }
    drop(clients.pop());
    let started = Instant::now();
    let next = loop {
        match connect(&world).await {
            Ok(client) => break client,
            Err(error) => assert!(started.elapsed() < PATIENCE, "nobody comes in after one has left: {error}"),
        }
    };
    assert_eq!(next.get(LOCAL).await.unwrap().status, 200);
    assert!(connect(&world).await.is_err(), "a fourth came in");
}

async fn connect(world: &World) -> Result<Client, loadgen::Error> {
    Client::connect(world.address(), world.pki().ca_pem(), NAME, Some(TOKEN)).await
}

async fn handshakes_that_do_not_end(driver: IoDriver) {
    let limit = Duration::from_millis(500);
    let world = World::on(driver).limits(|limits| limits.client_handshake = limit).local("cp-a", apis::everywhere()).start();
    let client = world.client().await;
    assert_eq!(client.get(LOCAL).await.unwrap().status, 200);
    let started = Instant::now();
    let mut silent = TcpStream::connect(world.address()).await.unwrap();
    let mut half = TcpStream::connect(world.address()).await.unwrap();
    // The head of a ClientHello of 512 bytes, and no more.
    half.write_all(&[22, 3, 1, 2, 0, 1, 0, 1, 252]).await.unwrap();
    // TLS is done, and the preface does not come.
    let mut mute = raw::handshake(world.address(), world.pki().ca_pem()).await;
    let mut buffer = Vec::new();
    timeout(PATIENCE, silent.read_to_end(&mut buffer)).await.expect("a silent connection stays").ok();
    timeout(PATIENCE, half.read_to_end(&mut buffer)).await.expect("half a handshake stays").ok();
    assert!(started.elapsed() >= limit, "closed after {:?}", started.elapsed());
    assert!(buffer.is_empty(), "{buffer:?}");
    timeout(PATIENCE, mute.read_to_end(&mut buffer)).await.expect("a connection without a preface stays").ok();
    assert!(client.alive());
    assert_eq!(client.get(LOCAL).await.unwrap().status, 200, "who is done with it is not meant");
}

async fn requests_that_wait(driver: IoDriver) {
    // Connections are accepted by the kernel, and nobody there says anything.
    let hung = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let world = World::on(driver)
        .limits(|limits| (limits.waiting, limits.connect, limits.server_handshake) = (5, PATIENCE, PATIENCE))
        .local_at("cp-a", apis::everywhere(), hung.local_addr().unwrap())
        .start();
    let mut waiting = Frames::connect(&world).await;
    let requests: Vec<u8> = (0..5).map(frames::nth_stream).flat_map(|stream| frames::get(stream, LOCAL)).collect();
    assert!(waiting.send(&requests).await);
    let client = world.client().await;
    let answer = client.get(LOCAL).await.unwrap();
    assert_eq!((answer.status.as_u16(), answer.header("retry-after")), (503, Some("1")));
    let status = answer.json().unwrap();
    assert_eq!((status["kind"].as_str(), status["details"]["retryAfterSeconds"].as_u64()), (Some("Status"), Some(1)), "{status}");
    assert!(status["message"].as_str().is_some_and(|text| text.contains("too many requests wait")), "{status}");
    assert!(waiting.seen().heads.is_empty(), "{:?}", waiting.seen());
}

/// A connection on which streams do not wait for each other, each with a window of 64 KiB.
async fn slow_client(world: &World) -> raw::Raw {
    let mut windows = h2::client::Builder::new();
    windows.initial_connection_window_size(1 << 24);
    raw::Raw::connect(world.address(), world.pki().ca_pem(), &windows).await
}

/// A client that asks for 4 MB and reads nothing: the engine holds what a server may send ahead of it.
async fn reader(raw: &raw::Raw) -> Result<h2::client::ResponseFuture, h2::Error> {
    Ok(raw.try_open(Method::GET, LOCAL, support::headers([("x-twin-debug", "bytes/4000000")]), true).await?.0)
}

/// It says so in its SETTINGS: nothing is sent before them that it would refuse, and each request is given to one connection.
async fn a_server_that_takes_few_streams(driver: IoDriver) {
    let world = World::on(driver).local_with("cp-a", apis::everywhere(), |config| config.max_concurrent_streams = 10).start();
    let client = Arc::new(world.client().await);
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..100 {
        let client = Arc::clone(&client);
        requests.spawn(async move { client.get(LOCAL).await.unwrap().status });
    }
    assert!(requests.join_all().await.iter().all(|status| *status == 200));
    assert_eq!((world.engine().counters().retried, world.twin("cp-a").counts().requests), (0, 100));
}

async fn memory_for_readers_that_read_slowly(driver: IoDriver) {
    const HELD: usize = 2 << 20;
    // What a server sends ahead for one of them.
    const AHEAD: usize = 256 << 10;
    let world = World::on(driver).limits(|limits| limits.held_bytes = HELD).local("cp-a", apis::everywhere()).start();
    let (quick, patient, slow) = (world.client().await, slow_client(&world).await, slow_client(&world).await);
    let mut kept = reader(&patient).await.unwrap().await.unwrap().into_body();
    let mut answers = Vec::new();
    let sent_away = loop {
        assert!(answers.len() <= HELD / (AHEAD - 65_535), "nobody is sent away");
        let answer = match reader(&slow).await {
            Ok(answer) => answer.await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(answer) => answers.push(answer.into_body()),
            Err(error) => break error,
        }
        // The one that is sent away does not get all of it.
        let ahead = || world.engine().counters().body_received >= (answers.len() * AHEAD) as u64;
        timeout(Duration::from_secs(1), eventually("all that may be sent ahead", PATIENCE, ahead)).await.ok();
        assert_eq!(quick.get(LOCAL).await.unwrap().status, 200, "beside {} readers", answers.len());
    };
    assert!(is_calm(&sent_away), "{sent_away:?}");
    // Memory is counted in blocks of 16 KiB, which need not be full.
    assert!(answers.len() >= HELD / 5 * 4 / (AHEAD + 32 * 1_024) - 1, "sent away after {} readers", answers.len());
    assert_eq!(timeout(PATIENCE, raw::read_all(&mut kept)).await.unwrap().unwrap(), 4_000_000, "who reads at last gets all of it");
    for mut body in answers {
        assert!(timeout(PATIENCE, raw::read_all(&mut body)).await.unwrap().is_err(), "a cut body is no complete one");
    }
}

async fn memory_for_readers_that_do_not_read(driver: IoDriver) {
    const HELD: usize = 1 << 20;
    let world = World::on(driver).limits(|limits| limits.held_bytes = HELD).local("cp-a", apis::everywhere()).start();
    let (quick, slow) = (world.client().await, slow_client(&world).await);
    // All at once, so that they are taken while nothing is held yet; on a slow machine the last ones come too late for that.
    let (mut readers, mut lost) = (Vec::new(), 0);
    for _ in 0..16 {
        match reader(&slow).await {
            Ok(answer) => readers.push(answer),
            Err(error) => lost += usize::from(is_calm(&error)),
        }
    }
    for answer in readers {
        let end = match answer.await {
            Ok(answer) => timeout(PATIENCE, raw::read_all(&mut answer.into_body())).await.unwrap(),
            Err(error) => Err(error),
        };
        // Told so, or cut because it would not even read that.
        lost += usize::from(end.is_err_and(|error| is_calm(&error) || error.is_io()));
    }
    assert!(lost > 0, "nobody lost its stream");
    assert_eq!(quick.get(LOCAL).await.unwrap().status, 200);
}

fn is_calm(error: &h2::Error) -> bool {
    error.is_remote() && error.reason() == Some(h2::Reason::ENHANCE_YOUR_CALM)
}

/// More addresses than a shard has slots for servers (128), each good for one request.
async fn a_peer_that_moves_often(driver: IoDriver) {
    const MOVES: usize = 300;
    let local = Refusing::new();
    let mut world = World::on(driver).local_at("cp-a", apis::everywhere(), local.address()).start();
    let client = world.client().await;
    let mut twins: Vec<Twin> = Vec::new();
    for nth in 0..8 {
        twins.push(Twin::start(TwinConfig::new(&format!("at-{nth}"), world.pki().serving().unwrap(), apis::batch())).unwrap());
    }
    for (generation, nth) in (2..).zip((0..twins.len()).cycle().take(MOVES)) {
        world.publish(moved(generation, local.address(), twins[nth].address()));
        let answer = client.get(PEERS).await.unwrap();
        assert_eq!((answer.status.as_u16(), answer.header("x-twin-id")), (200, Some(&*format!("at-{nth}"))), "move {generation}");
    }
}

fn moved(generation: u64, local: std::net::SocketAddr, peer: std::net::SocketAddr) -> Snapshot {
    let mut builder = SnapshotBuilder::new(generation);
    let local = builder.server(Server::new(ServerId::new("cp-a"), local)).unwrap();
    // A new identity each time: to the shard it is another server, as a new address would make it.
    let peer = builder.server(Server::new(ServerId::new(&format!("cp-{generation}")), peer)).unwrap();
    builder.local(local);
    builder.serve(&Gvr::new("batch", "v1", "jobs"), ServerSet::only(peer)).unwrap();
    builder.build().unwrap()
}

/// One of those that are there.
struct Held(Arc<AtomicUsize>);

impl Held {
    fn new(count: Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

async fn connections_made_with_old_certificates(driver: IoDriver) {
    let retired = Duration::from_millis(1_500);
    let plan = World::on(driver).limits(|limits| limits.retired = retired);
    let held = Arc::new(AtomicUsize::new(0));
    let holding = held.clone();
    let server = Script::start(plan.pki(), move |_, request, mut respond| {
        let holding = holding.clone();
        async move {
            if request.uri().query().is_none() {
                return answer(&mut respond, "ok");
            }
            let mut body = respond.send_response(http::Response::new(()), false).unwrap();
            body.send_data(Bytes::from_static(b"begun"), false).unwrap();
            let _held = Held::new(holding);
            std::future::poll_fn(|cx| body.poll_reset(cx)).await.ok();
        }
    })
    .await;
    let world = plan.local_at("cp-a", apis::everywhere(), server.address()).start();
    let client = world.client().await;
    let mut watch = client.watch(&format!("{LOCAL}?watch=true")).await.unwrap();
    assert_eq!(watch.next_chunk().await.unwrap().unwrap(), "begun");
    assert_eq!(held.load(Ordering::Relaxed), 1);
    let started = Instant::now();
    world.engine().set_tls(support::tls_configs(world.pki()));
    // New requests are answered all the while, on new connections.
    let ended = async {
        let end = watch.next_chunk().await;
        (started.elapsed(), end.is_err())
    };
    let asking = async {
        while started.elapsed() < retired {
            assert_eq!(client.request(Method::GET, LOCAL, HeaderMap::new(), Bytes::new(), None).await.unwrap().body, "ok");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let ((after, is_reset), ()) = timeout(PATIENCE, async { tokio::join!(ended, asking) }).await.expect("the watch goes on");
    assert!(is_reset, "a watch that was cut must not look complete");
    assert!(after >= retired, "cut after {after:?}");
    eventually("the old connection is closed", PATIENCE, || held.load(Ordering::Relaxed) == 0).await;
}

/// A byte now and then keeps no request alive: its answer has to begin in time, and a neighbour on the same connection does not notice.
async fn uploads_that_trickle(driver: IoDriver) {
    let limit = Duration::from_secs(2);
    let world = World::on(driver).limits(|limits| limits.response_head = limit).local("cp-a", apis::everywhere()).start();
    let client = raw::Raw::connect(world.address(), world.pki().ca_pem(), &h2::client::Builder::new()).await;
    let began = Instant::now();
    let (response, mut upload) = client.open(Method::POST, LOCAL, HeaderMap::new(), false).await;
    let trickle = tokio::spawn(async move {
        while upload.send_data(Bytes::from_static(b"0123456789"), false).is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    let response = timeout(PATIENCE, response).await.unwrap().unwrap();
    assert_eq!(response.status(), 504);
    assert!(began.elapsed() >= limit && began.elapsed() < limit + Duration::from_secs(3), "{:?}", began.elapsed());
    let (next, _stream) = client.open(Method::GET, LOCAL, HeaderMap::new(), true).await;
    assert_eq!(timeout(PATIENCE, next).await.unwrap().unwrap().status(), 200);
    trickle.abort();
}

/// Decision 0010: nothing goes on with a core that is half changed, and whoever runs the engine hears of it at once.
async fn a_shard_that_panics(driver: IoDriver) {
    let world = World::on(driver).shards(2).local("cp-a", apis::everywhere()).start();
    assert_eq!(world.client().await.get(LOCAL).await.unwrap().status, 200);
    assert!(world.engine().failure().is_none());
    assert!(world.engine().panic_shard(1));
    let mut failed = None;
    eventually("the failure", PATIENCE, || {
        failed = world.engine().failure();
        failed.is_some()
    })
    .await;
    assert_eq!(failed.unwrap().to_string(), "shard 1 failed: it panicked; see the message above");
}
