//! Asks one server whether it can be used.

use std::time::{Duration, Instant};

use http::{HeaderMap, StatusCode};

use super::transport::{Limits, Place, Reply, SendError, Transport};
use crate::inventory::Readiness;

/// Without etcd: a server whose etcd is away still knows better than the proxy what to answer, and `/readyz` as a whole hangs then.
const PATH: &str = "/readyz?exclude=etcd&exclude=etcd-readiness";
/// How often a server that is ready is asked.
const EVERY: Duration = Duration::from_secs(1);
/// How often one that is not is.
const EVERY_UNREADY: Duration = Duration::from_millis(250);
/// What `/readyz` says has a line per check.
const ANSWER: Limits = Limits { bytes: 64 << 10, time: Duration::from_secs(2) };
/// Answers that did not come, in a row, before a server is not ready: a pause of its process is no failure.
const TIMEOUTS_MAX: u32 = 2;
/// How long a server has to keep silent before it counts as ready: one that starts denies everything for some 0.2 s.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// What a probe found.
#[derive(Debug)]
pub(super) enum Outcome {
    Ready,
    /// It says that it is not, on a connection that was made then.
    Unready(StatusCode, Option<Instant>),
    /// It is not there, or it is somebody else.
    Refused(String),
    TimedOut,
    /// It is there, and says nothing to us: it refuses our credentials, and whoever has none (`--anonymous-auth=false`).
    Silent(StatusCode),
}

/// What probes found so far.
#[derive(Debug)]
pub(super) struct Health {
    readiness: Readiness,
    timeouts: u32,
    /// Since when it is silent.
    silent: Option<Instant>,
    /// When it last said that it is ready.
    ready_at: Option<Instant>,
    /// When somebody last lost it, if no probe has vouched for it since.
    doubted: Option<Instant>,
    /// When the last probe began that did.
    vouched: Option<Instant>,
}

/// What is known of a server after a probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) readiness: Readiness,
    /// Somebody lost it before the probe began, and the probe found it to be there.
    pub(super) vouches: bool,
}

impl Health {
    /// Of a process that was never asked: whoever lost the one before waits for somebody to vouch for it.
    pub(super) fn new(now: Instant) -> Self {
        Self { readiness: Readiness::Unready, timeouts: 0, silent: None, ready_at: None, doubted: Some(now), vouched: None }
    }

    /// Did the last probe find that it refuses our credentials?
    pub(super) fn is_silent(&self) -> bool {
        self.silent.is_some()
    }

    /// Somebody lost it then: it may be another process now, which listens long before it can be used. False if that is known, or settled.
    pub(super) fn doubt(&mut self, lost: Instant) -> bool {
        let is_news = self.doubted.max(self.vouched) < Some(lost);
        if is_news {
            (self.doubted, self.silent) = (Some(lost), None);
        }
        is_news
    }

    /// Does it take a probe that begins later than this one to settle a doubt?
    pub(super) fn is_doubted_since(&self, began: Instant) -> bool {
        self.doubted.is_some_and(|doubted| began < doubted)
    }

    /// Takes in what came of the probe that began then. One that says no on a connection from when it was ready has not gone yet; on a new
    /// one it may be another process, which is starting. One that is silent is what it was: a bad token of ours must not take all servers
    /// out of service.
    pub(super) fn take(&mut self, outcome: &Outcome, began: Instant, now: Instant) -> Finding {
        self.silent = self.silent.or(Some(now)).filter(|_| matches!(outcome, Outcome::Silent(_)));
        let is_silent_for_long = self.silent.is_some_and(|since| now.saturating_duration_since(since) >= SILENT_FOR);
        self.timeouts = if matches!(outcome, Outcome::TimedOut) { self.timeouts + 1 } else { 0 };
        self.readiness = match outcome {
            // It may have been the process before.
            Outcome::Ready if self.is_doubted_since(began) => self.readiness,
            Outcome::Ready => Readiness::Ready,
            Outcome::Silent(_) if is_silent_for_long => Readiness::Ready,
            Outcome::Silent(_) => self.readiness,
            Outcome::Unready(_, connected) if self.readiness != Readiness::Unready && self.is_same(*connected) => Readiness::Leaving,
            Outcome::TimedOut if self.timeouts < TIMEOUTS_MAX && self.doubted.is_none() => self.readiness,
            Outcome::Unready(..) | Outcome::Refused(_) | Outcome::TimedOut => Readiness::Unready,
        };
        let is_ready = matches!(outcome, Outcome::Ready) || is_silent_for_long;
        if is_ready && !self.is_doubted_since(began) {
            self.ready_at = Some(now);
        }
        // One that leaves is the process that was ready.
        let is_there = is_ready || self.readiness == Readiness::Leaving;
        let vouches = is_there && self.doubted.is_some_and(|doubted| began >= doubted);
        if vouches {
            (self.doubted, self.vouched) = (None, Some(began));
        }
        Finding { readiness: self.readiness, vouches }
    }

    /// Is who answered on a connection that was made then the process that last said that it is ready?
    fn is_same(&self, connected: Option<Instant>) -> bool {
        connected.zip(self.ready_at).is_some_and(|(connected, ready)| connected <= ready)
    }

    /// When it is asked again, after the last one began.
    pub(super) fn every(&self) -> Duration {
        if self.readiness == Readiness::Ready && self.timeouts == 0 && self.doubted.is_none() { EVERY } else { EVERY_UNREADY }
    }
}

/// Asks. That our own credentials are good for nothing says nothing of the server: then it is asked as anybody may ask it.
pub(super) async fn probe(transport: &Transport, place: Place) -> Outcome {
    let mut answer = twice(|| transport.get(place, PATH, HeaderMap::new(), ANSWER)).await;
    let is_refused = matches!(&answer, Ok(reply) if reply.status == StatusCode::UNAUTHORIZED);
    if is_refused {
        answer = twice(|| transport.get_as_nobody(place, PATH, ANSWER)).await;
    }
    match answer {
        Ok(reply) if reply.status == StatusCode::OK => Outcome::Ready,
        Ok(reply) if is_refused && matches!(reply.status, StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN) => {
            Outcome::Silent(reply.status)
        }
        Ok(reply) => Outcome::Unready(reply.status, reply.connected),
        Err(SendError::TimedOut) => Outcome::TimedOut,
        Err(error) => Outcome::Refused(error.to_string()),
    }
}

/// Does anybody answer there, whatever the answer is? One connection at most.
pub(super) async fn answers(transport: &Transport, place: Place) -> bool {
    transport.get(place, PATH, HeaderMap::new(), ANSWER).await.is_ok()
}

/// Again if it broke off: a connection that was kept open may have ended just now.
async fn twice<F: Future<Output = Result<Reply, SendError>>>(ask: impl Fn() -> F) -> Result<Reply, SendError> {
    match ask().await {
        Err(SendError::Broken(_)) => ask().await,
        answer => answer,
    }
}

#[cfg(test)]
mod tests {
    use Readiness::{Leaving, Ready, Unready};

    use super::*;

    /// A server and the time since the start, in milliseconds. Probes take no time.
    struct Case {
        start: Instant,
        health: Health,
    }

    impl Case {
        fn new() -> Self {
            let start = Instant::now();
            Self { start, health: Health::new(start) }
        }

        fn at(&self, ms: u64) -> Instant {
            self.start + Duration::from_millis(ms)
        }

        fn take(&mut self, outcome: &Outcome, ms: u64) -> Readiness {
            self.find(outcome, ms).readiness
        }

        fn find(&mut self, outcome: &Outcome, ms: u64) -> Finding {
            let now = self.at(ms);
            self.health.take(outcome, now, now)
        }

        /// An error on a connection that was made then.
        fn error(&self, connected: u64) -> Outcome {
            Outcome::Unready(StatusCode::INTERNAL_SERVER_ERROR, Some(self.at(connected)))
        }
    }

    fn refused() -> Outcome {
        Outcome::Refused(String::new())
    }

    fn silent() -> Outcome {
        Outcome::Silent(StatusCode::UNAUTHORIZED)
    }

    #[test]
    fn one_slow_answer_is_no_death_and_one_refusal_is() {
        let mut case = Case::new();
        assert_eq!(case.take(&Outcome::TimedOut, 0), Unready, "not before the first success");
        assert_eq!(case.health.every(), EVERY_UNREADY);
        assert_eq!(case.take(&Outcome::Ready, 1), Ready);
        assert_eq!(case.health.every(), EVERY);
        assert_eq!(case.take(&Outcome::TimedOut, 2), Ready);
        assert_eq!(case.health.every(), EVERY_UNREADY, "in doubt it is asked soon");
        assert_eq!(case.take(&Outcome::Ready, 3), Ready, "in between");
        assert_eq!(case.take(&Outcome::TimedOut, 4), Ready);
        assert_eq!(case.take(&Outcome::TimedOut, 5), Unready);
        assert_eq!(case.take(&Outcome::TimedOut, 6), Unready);
        assert_eq!(case.take(&Outcome::Ready, 7), Ready);
        assert_eq!(case.take(&refused(), 8), Unready);
        assert_eq!(case.take(&Outcome::Ready, 9), Ready);
        assert_eq!(case.take(&case.error(9), 10), Leaving);
        assert_eq!(case.take(&case.error(9), 11), Leaving);
        assert_eq!(case.take(&refused(), 12), Unready);
        assert_eq!(case.take(&case.error(9), 13), Unready, "it starts");
        case.take(&Outcome::Ready, 14);
        case.health = Health::new(case.at(15));
        assert_eq!(case.find(&Outcome::TimedOut, 15), Finding { readiness: Unready, vouches: false });
        assert_eq!(case.find(&Outcome::Ready, 16), Finding { readiness: Ready, vouches: true }, "another process");
    }

    /// One that is killed and started again between two probes is there all the time, and denies everything at first.
    #[test]
    fn an_error_on_a_new_connection_may_be_that_of_another_process() {
        let mut case = Case::new();
        assert_eq!(case.take(&Outcome::Ready, 10), Ready);
        assert_eq!(case.take(&case.error(11), 12), Unready);
        assert_eq!(case.take(&Outcome::Ready, 20), Ready);
        assert_eq!(case.take(&case.error(15), 21), Leaving);
        assert_eq!(case.take(&case.error(22), 23), Unready);
        case.take(&Outcome::Ready, 30);
        assert_eq!(case.take(&Outcome::Unready(StatusCode::FORBIDDEN, None), 31), Unready);
    }

    #[test]
    fn a_doubt_is_settled_by_a_later_probe_only() {
        let mut case = Case::new();
        let vouches = Finding { readiness: Ready, vouches: true };
        assert_eq!(case.find(&Outcome::Ready, 0), vouches);
        assert_eq!(case.find(&Outcome::Ready, 1), Finding { vouches: false, ..vouches });
        case.health.doubt(case.at(5));
        assert_eq!(case.health.every(), EVERY_UNREADY);
        assert!(case.health.is_doubted_since(case.at(4)) && !case.health.is_doubted_since(case.at(5)));
        let early = case.health.take(&Outcome::Ready, case.at(4), case.at(6));
        assert_eq!(early, Finding { vouches: false, ..vouches }, "it began before");
        assert_eq!(case.find(&Outcome::Ready, 7), vouches);
        assert_eq!(case.find(&Outcome::Ready, 8), Finding { vouches: false, ..vouches }, "once");
        case.health.doubt(case.at(9));
        assert_eq!(case.take(&Outcome::TimedOut, 10), Unready, "it listens and does not answer: it starts");
        assert_eq!(case.find(&refused(), 11), Finding { readiness: Unready, vouches: false });
        assert_eq!(case.find(&Outcome::Ready, 12), vouches);
        case.health.doubt(case.at(13));
        assert_eq!(case.find(&case.error(12), 14), Finding { readiness: Leaving, vouches: true }, "the same process");
        case.take(&Outcome::Ready, 15);
        case.health.doubt(case.at(20));
        assert_eq!(case.find(&silent(), 30), Finding { vouches: false, ..vouches }, "it may be starting");
        case.health.doubt(case.at(20));
        assert_eq!(case.find(&silent(), 5_030), vouches);
    }

    #[test]
    fn a_silent_server_is_what_it_was_and_ready_after_a_while() {
        let mut case = Case::new();
        assert_eq!(case.take(&silent(), 0), Unready, "it may be starting");
        assert_eq!(case.take(&silent(), 4_999), Unready);
        assert_eq!(case.take(&silent(), 5_000), Ready);
        assert_eq!(case.take(&refused(), 6_000), Unready);
        assert_eq!(case.take(&silent(), 7_000), Unready, "from the start");
        assert_eq!(case.take(&Outcome::Ready, 8_000), Ready);
        assert_eq!(case.take(&silent(), 9_000), Ready);
        assert_eq!(case.take(&case.error(8_000), 10_000), Leaving);
        assert_eq!(case.take(&silent(), 11_000), Leaving);
        assert_eq!(case.take(&silent(), 16_000), Ready);
    }
}
