//! A server that writes down every request it sees: method, path, fields and body, and whether its end came.
//!
//! It is on the `h2` crate, so what it sees was read by other code than the engine's. Each answer carries
//! `x-seen`, which tells an answer of the server from one of the proxy.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, Request, Response};
use loadgen::Pki;
use tokio::net::TcpListener;
use tokio::task::{JoinHandle, JoinSet};

use crate::support::script;

/// A path under this is answered before its body is read.
pub const EARLY: &str = "/early";

/// One request.
#[derive(Clone, Debug)]
pub struct Record {
    pub method: String,
    pub path: String,
    pub authority: Option<String>,
    pub fields: HeaderMap,
    pub body: Vec<u8>,
    pub trailers: Option<HeaderMap>,
    /// END_STREAM came: the request is one, not the beginning of one.
    pub complete: bool,
}

/// A record that may still grow.
pub type Entry = Arc<Mutex<Record>>;

/// A running server; dropping it ends it with its connections.
pub struct Recorder {
    address: SocketAddr,
    records: Arc<Mutex<Vec<Entry>>>,
    task: JoinHandle<()>,
}

impl Recorder {
    pub async fn start(pki: &Pki) -> Self {
        let acceptor = script::acceptor(&pki.serving().unwrap());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        let records = Arc::new(Mutex::new(Vec::new()));
        let shared = records.clone();
        let task = tokio::spawn(async move {
            let mut conns = JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.unwrap();
                let (acceptor, records) = (acceptor.clone(), shared.clone());
                conns.spawn(async move {
                    let Ok(tls) = acceptor.accept(tcp).await else { return };
                    let Ok(mut http2) = h2::server::Builder::new().max_header_list_size(1 << 20).handshake(tls).await else { return };
                    let mut exchanges = JoinSet::new();
                    while let Some(Ok((request, respond))) = http2.accept().await {
                        // Here, so that the order is that of the streams.
                        let entry = Arc::new(Mutex::new(Record::of(&request)));
                        records.lock().unwrap().push(entry.clone());
                        exchanges.spawn(answer(request.into_body(), respond, entry));
                    }
                });
            }
        });
        Self { address, records, task }
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What came since the last time.
    pub fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut self.records.lock().unwrap())
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Record {
    fn of(request: &Request<RecvStream>) -> Self {
        let uri = request.uri();
        Self {
            method: request.method().to_string(),
            path: uri.path_and_query().map_or_else(String::new, ToString::to_string),
            authority: uri.authority().map(ToString::to_string),
            fields: request.headers().clone(),
            body: Vec::new(),
            trailers: None,
            complete: request.body().is_end_stream(),
        }
    }
}

/// Writes a body down as it comes, then answers.
async fn answer(mut body: RecvStream, mut respond: SendResponse<Bytes>, entry: Entry) {
    let (early, complete) = {
        let record = entry.lock().unwrap();
        (record.path.starts_with(EARLY), record.complete)
    };
    if !early && !complete {
        while let Some(piece) = body.data().await {
            let Ok(piece) = piece else { return };
            body.flow_control().release_capacity(piece.len()).ok();
            entry.lock().unwrap().body.extend_from_slice(&piece);
        }
        let Ok(trailers) = body.trailers().await else { return };
        let mut record = entry.lock().unwrap();
        record.trailers = trailers;
        record.complete = true;
    }
    let response = Response::builder().header("x-seen", "yes").header("content-length", 4).body(()).unwrap();
    if let Ok(mut stream) = respond.send_response(response, false) {
        stream.send_data(Bytes::from_static(b"seen"), true).ok();
    }
}
