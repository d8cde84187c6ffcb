//! Everything a wake-up produces for a connection leaves in one write: the single biggest gain that was measured (design.md §2).
#![expect(clippy::unwrap_used, reason = "the functions beside the tests are tests too")]

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use loadgen::Pki;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_rustls::server::TlsStream;

mod support;

use support::frames::{self, DATA, END_HEADERS, END_STREAM, Frames, HEADERS, SETTINGS, frame, nth_stream};
use support::{IoDriver, World, apis, eventually, script};

on_both_drivers!(a_hundred_requests_and_a_hundred_answers, answers_for_eight_clients, a_body_in_many_records);

const PATH: &str = "/api/v1/pods";
const PATIENCE: Duration = Duration::from_secs(10);
/// A shard without requests publishes its counters once a second.
const TICKS: Duration = Duration::from_millis(1_200);
/// The preface of a client (RFC 9113 §3.4).
const PREFACE: usize = 24;

async fn a_hundred_requests_and_a_hundred_answers(driver: IoDriver) {
    let (world, server) = world(driver).await;
    let mut client = Frames::connect(&world).await;
    server.warm(&mut client).await;
    for round in 0..2 {
        let streams = (1 + round * 100..1 + (round + 1) * 100).map(nth_stream);
        let before = writes(&world).await;
        let requests: Vec<u8> = streams.flat_map(|stream| frames::get(stream, PATH)).collect();
        assert!(client.send(&requests).await);
        server.arrived(100).await;
        let asked = writes(&world).await;
        assert_eq!(asked - before, 1, "100 requests that came in one record");
        server.answer(small_answer).await;
        eventually("100 answers", PATIENCE, || client.seen().ended.len() == 1 + (round + 1) * 100).await;
        assert_eq!(writes(&world).await - asked, 1, "100 answers that came in one record");
    }
}

async fn answers_for_eight_clients(driver: IoDriver) {
    let (world, server) = world(driver).await;
    let mut clients = Vec::new();
    for nth in 0..8 {
        clients.push(Frames::connect(&world).await);
        server.warm(&mut clients[nth]).await;
    }
    for client in &mut clients {
        let requests: Vec<u8> = (1..5).map(nth_stream).flat_map(|stream| frames::get(stream, PATH)).collect();
        assert!(client.send(&requests).await);
    }
    server.arrived(32).await;
    let asked = writes(&world).await;
    server.answer(small_answer).await;
    for client in &clients {
        eventually("its answers", PATIENCE, || client.seen().ended.len() == 5).await;
    }
    assert_eq!(writes(&world).await - asked, 8, "one for each client");
}

/// 60,000 bytes are four records and more than one frame: one write where they came in one read, never more than one for a read.
async fn a_body_in_many_records(driver: IoDriver) {
    let (world, server) = world(driver).await;
    let mut client = Frames::connect(&world).await;
    server.warm(&mut client).await;
    assert!(client.send(&frames::get(nth_stream(1), PATH)).await);
    server.arrived(1).await;
    let asked = writes(&world).await;
    server.answer(large_answer).await;
    eventually("the answer", PATIENCE, || client.seen().ended.len() == 2).await;
    // The four records may come in as many reads, when the kernel is slow to hand them over.
    let written = writes(&world).await - asked;
    assert!(written <= 4, "{written} writes for a body of four records");
}

/// The engine in front of a [`Batcher`].
async fn world(driver: IoDriver) -> (World, Batcher) {
    // A PING would be a write too.
    let plan = World::on(driver).limits(|limits| limits.ping_after = Duration::from_secs(600));
    let server = Batcher::start(plan.pki()).await;
    (plan.local_at("cp-a", apis::everywhere(), server.address).start(), server)
}

/// Writes to all sockets so far: read until nothing is added any more.
async fn writes(world: &World) -> u64 {
    let mut written = world.engine().counters().writes;
    loop {
        tokio::time::sleep(TICKS).await;
        let before = std::mem::replace(&mut written, world.engine().counters().writes);
        if written == before {
            return written;
        }
    }
}

/// Status 200 (RFC 7541 appendix A) and a short body.
fn small_answer(stream: u32) -> Vec<u8> {
    [frame(HEADERS, END_HEADERS, stream, &[0x88]), frame(DATA, END_STREAM, stream, b"a body of 20 bytes..")].concat()
}

fn large_answer(stream: u32) -> Vec<u8> {
    let data = |flags| frame(DATA, flags, stream, &[b'x'; 15_000]);
    [frame(HEADERS, END_HEADERS, stream, &[0x88]), data(0), data(0), data(0), data(END_STREAM)].concat()
}

/// A server that answers when it is told, everything it was asked in one write.
struct Batcher {
    address: SocketAddr,
    connection: Arc<Mutex<Connection>>,
    task: JoinHandle<()>,
}

#[derive(Default)]
struct Connection {
    out: Option<WriteHalf<TlsStream<TcpStream>>>,
    /// Streams with a request that has no answer.
    asked: Vec<u32>,
}

impl Batcher {
    async fn start(pki: &Pki) -> Self {
        let acceptor = script::acceptor(&pki.serving().unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let connection = Arc::new(Mutex::new(Connection::default()));
        let shared = connection.clone();
        let task = tokio::spawn(async move {
            let (tcp, _) = listener.accept().await.unwrap();
            tcp.set_nodelay(true).unwrap();
            let (input, mut out) = tokio::io::split(acceptor.accept(tcp).await.unwrap());
            // MAX_CONCURRENT_STREAMS of 1,000, so that all goes over one connection.
            let settings = [frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 3, 232]), frame(SETTINGS, 1, 0, &[])].concat();
            out.write_all(&settings).await.unwrap();
            out.flush().await.unwrap();
            shared.lock().unwrap().out = Some(out);
            read(input, &shared).await;
        });
        Self { address, connection, task }
    }

    /// One request of the client, so that all connections are there.
    async fn warm(&self, client: &mut Frames) {
        assert!(client.send(&frames::get(1, PATH)).await);
        self.arrived(1).await;
        self.answer(small_answer).await;
        eventually("the first answer", PATIENCE, || client.seen().ended == [1]).await;
    }

    async fn arrived(&self, count: usize) {
        eventually("the requests", PATIENCE, || self.connection.lock().unwrap().asked.len() == count).await;
    }

    async fn answer(&self, answer: impl Fn(u32) -> Vec<u8>) {
        let (mut out, asked) = {
            let mut connection = self.connection.lock().unwrap();
            (connection.out.take().unwrap(), std::mem::take(&mut connection.asked))
        };
        let answers: Vec<u8> = asked.into_iter().flat_map(answer).collect();
        out.write_all(&answers).await.unwrap();
        out.flush().await.unwrap();
        self.connection.lock().unwrap().out = Some(out);
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn read(mut input: ReadHalf<TlsStream<TcpStream>>, connection: &Mutex<Connection>) {
    input.read_exact(&mut [0; PREFACE]).await.unwrap();
    while let Ok((kind, _, stream, _)) = frames::read_frame(&mut input).await {
        if kind == HEADERS {
            connection.lock().unwrap().asked.push(stream);
        }
    }
}
