//! What a case expects, and how what the recorder saw is held against it.

use http::HeaderMap;

use super::recorder::{EARLY, Entry, Record, Recorder};
use crate::support::http1::Wire;
use crate::support::{IoDriver, World, apis};

/// The path of the request in every case that does not care.
pub const CASE: &str = "/case";
/// The path of what an attacker hides in or behind a request; nobody may ever see it.
pub const HIDDEN: &str = "/hidden";

/// What becomes of the input of a case.
#[derive(Clone, Copy, Debug)]
pub enum Want {
    /// The server sees exactly this path and body.
    Took(&'static str, &'static [u8]),
    /// The proxy answers with this status, and no server sees a complete request. HTTP/1.1: the connection is closed.
    Refused(u16),
    /// The server sees the path and body; what follows is refused with the status.
    TookThenRefused(&'static str, &'static [u8], u16),
    /// The server sees the path; then the connection is closed, whatever follows.
    TookThenClosed(&'static str),
    /// Nothing is answered, the client goes away, and no server ever sees a complete request.
    Unfinished,
    /// HTTP/2: GOAWAY with the code.
    GoAway(u32),
    /// HTTP/2: RST_STREAM with the code.
    Reset(u32),
}

/// The most common expectation.
pub const fn took(body: &'static str) -> Want {
    Want::Took(CASE, body.as_bytes())
}

/// A proxy with the default limits in front of a recorder, and a connection whose requests end each case.
pub struct Stage {
    pub world: World,
    recorder: Recorder,
    sentinel: Wire,
    /// Requests that were refused after they had begun, and their cases.
    begun: Vec<(String, Entry)>,
    expected_field: Option<&'static str>,
    expected_authority: Option<String>,
}

impl Stage {
    pub async fn on(driver: IoDriver) -> Self {
        let plan = World::on(driver);
        let recorder = Recorder::start(plan.pki()).await;
        let world = plan.local_at("recorder", apis::everywhere(), recorder.address()).start();
        let sentinel = Wire::connect(&world).await;
        Self { world, recorder, sentinel, begun: Vec::new(), expected_field: None, expected_authority: None }
    }

    /// Everything the server saw of a case. What the proxy sent on before is in front of the sentinel's request: one shard has one
    /// connection for these, and its streams arrive in order.
    async fn seen(&mut self, fault: &str) -> Vec<Entry> {
        self.sentinel.send("GET /sentinel HTTP/1.1\r\nHost: k\r\n\r\n").await;
        let answer = self.sentinel.answer().await.unwrap();
        assert_eq!((answer.status, &answer.body[..]), (200, &b"seen"[..]), "{fault}: the sentinel");
        let mut records = self.recorder.take();
        let last = records.pop().map(|entry| entry.lock().unwrap().path.clone());
        assert_eq!(last.as_deref(), Some("/sentinel"), "{fault}: the sentinel is last: {records:?}");
        records
    }

    /// The first request of the next check must have this field.
    pub fn expect_field(&mut self, name: &'static str) {
        self.expected_field = Some(name);
    }

    /// The first request of the next check must be for this authority.
    pub fn expect_authority(&mut self, authority: &str) {
        self.expected_authority = Some(authority.to_owned());
    }

    /// Compares what the server saw with the requests that should have been accepted, in order; `fault` names the case. A request
    /// that was refused in its body may have begun, and nothing else.
    pub async fn check(&mut self, fault: &str, accepted: &[(&str, &[u8])]) {
        let (mut complete, mut begun) = (Vec::new(), 0);
        for entry in self.seen(fault).await {
            let record = entry.lock().unwrap().clone();
            check_clean(fault, &record);
            if let Some(name) = self.expected_field.take() {
                assert!(record.fields.contains_key(name), "{fault}: the server did not get `{name}`");
            }
            if let Some(authority) = self.expected_authority.take() {
                assert_eq!(record.authority, Some(authority), "{fault}");
            }
            assert_ne!(record.path, HIDDEN, "{fault}: DESYNC");
            if record.complete || record.path.starts_with(EARLY) {
                complete.push((record.path, record.body));
            } else {
                begun += 1;
                self.begun.push((fault.to_owned(), entry));
            }
        }
        let complete: Vec<_> = complete.iter().map(|(path, body)| (path.as_str(), &body[..])).collect();
        assert_eq!(complete, accepted, "{fault}: seen and accepted differ");
        assert!(begun <= 1, "{fault}: {begun} requests begun");
    }

    /// What was refused while it came has not become complete since.
    pub fn finish(&self) {
        for (fault, entry) in &self.begun {
            assert!(!entry.lock().unwrap().complete, "{fault}: refused, and yet the server has all of it");
        }
    }
}

/// Runs cases one after the other on a stage; all that fail are named before the test does.
pub struct Stages<S, M> {
    make: M,
    stage: Option<S>,
    failed: usize,
}

impl<S: 'static, M: AsyncFn() -> S> Stages<S, M> {
    pub fn new(make: M) -> Self {
        Self { make, stage: None, failed: 0 }
    }

    /// One case. After one that failed the next gets a stage of its own.
    pub async fn run<F: Future<Output = S> + 'static>(&mut self, case: impl FnOnce(S) -> F) {
        let stage = match self.stage.take() {
            Some(stage) => stage,
            None => (self.make)().await,
        };
        // A task of its own, for its panics.
        let task = async { tokio::task::spawn_local(case(stage)).await };
        match tokio::task::LocalSet::new().run_until(task).await {
            Ok(stage) => self.stage = Some(stage),
            Err(_) => self.failed += 1,
        }
    }

    /// The last stage.
    pub fn finish(self) -> Option<S> {
        assert_eq!(self.failed, 0, "cases failed");
        self.stage
    }
}

/// Fields that no server may get from a client, whatever the case.
fn check_clean(fault: &str, record: &Record) {
    assert_ne!(record.method, "CONNECT", "{fault}: a tunnel");
    let trailers = record.trailers.iter().flat_map(HeaderMap::keys);
    for name in record.fields.keys().chain(trailers) {
        let alike = name.as_str().replace('_', "-");
        assert!(!alike.starts_with("x-remote-") && alike != "x-kubernetes-peer-proxied", "{fault}: the server got `{name}`");
        let forbidden = ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade", "x-hop"];
        assert!(!forbidden.contains(&name.as_str()), "{fault}: the server got `{name}`");
    }
    assert!(!record.fields.contains_key("host"), "{fault}: `host` is in `:authority`");
    for name in record.trailers.iter().flat_map(HeaderMap::keys) {
        assert!(!["content-length", "host", "te"].contains(&name.as_str()), "{fault}: the server got `{name}` in trailers");
    }
    if let Some(length) = record.fields.get("content-length").filter(|_| record.complete) {
        assert_eq!(length.to_str().unwrap().parse(), Ok(record.body.len()), "{fault}: content-length and body differ");
    }
}
