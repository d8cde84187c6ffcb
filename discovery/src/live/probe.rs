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
    /// It says that it is not.
    Unready(StatusCode),
    /// It is not there, or it is somebody else.
    Refused(String),
    TimedOut,
    /// It is there, and says nothing to us: it refuses our credentials, and whoever has none (`--anonymous-auth=false`).
    Silent(StatusCode),
}

/// What probes found so far.
#[derive(Debug, Default)]
pub(super) struct Health {
    readiness: Readiness,
    timeouts: u32,
    /// Since when it is silent.
    silent: Option<Instant>,
}

impl Health {
    /// Did the last probe find that it refuses our credentials?
    pub(super) fn is_silent(&self) -> bool {
        self.silent.is_some()
    }

    /// Takes an outcome in; is the server ready? One that never was and says no is starting, one that was has not gone yet. One that is
    /// silent is what it was: a bad token of ours must not take all servers out of service.
    pub(super) fn take(&mut self, outcome: &Outcome, now: Instant) -> Readiness {
        self.silent = self.silent.or(Some(now)).filter(|_| matches!(outcome, Outcome::Silent(_)));
        let is_silent_for_long = self.silent.is_some_and(|since| now.saturating_duration_since(since) >= SILENT_FOR);
        self.timeouts = if matches!(outcome, Outcome::TimedOut) { self.timeouts + 1 } else { 0 };
        self.readiness = match outcome {
            Outcome::Ready => Readiness::Ready,
            Outcome::Silent(_) if is_silent_for_long => Readiness::Ready,
            Outcome::Silent(_) => self.readiness,
            Outcome::Unready(_) if self.readiness != Readiness::Unready => Readiness::Leaving,
            Outcome::TimedOut if self.timeouts < TIMEOUTS_MAX => self.readiness,
            Outcome::Unready(_) | Outcome::Refused(_) | Outcome::TimedOut => Readiness::Unready,
        };
        self.readiness
    }

    /// It is another process now.
    pub(super) fn reset(&mut self) {
        *self = Self::default();
    }

    /// When it is asked again, after the last one began.
    pub(super) fn every(&self) -> Duration {
        if self.readiness == Readiness::Ready && self.timeouts == 0 { EVERY } else { EVERY_UNREADY }
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
        Ok(reply) => Outcome::Unready(reply.status),
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
    use super::*;

    #[test]
    fn one_slow_answer_is_no_death_and_one_refusal_is() {
        use Readiness::{Leaving, Ready, Unready};
        let mut health = Health::default();
        let now = Instant::now();
        let refused = || Outcome::Refused(String::new());
        assert_eq!(health.take(&Outcome::TimedOut, now), Unready, "not before the first success");
        assert_eq!(health.every(), EVERY_UNREADY);
        assert_eq!(health.take(&Outcome::Ready, now), Ready);
        assert_eq!(health.every(), EVERY);
        assert_eq!(health.take(&Outcome::TimedOut, now), Ready);
        assert_eq!(health.every(), EVERY_UNREADY, "in doubt it is asked soon");
        assert_eq!(health.take(&Outcome::Ready, now), Ready, "in between");
        assert_eq!(health.take(&Outcome::TimedOut, now), Ready);
        assert_eq!(health.take(&Outcome::TimedOut, now), Unready);
        assert_eq!(health.take(&Outcome::TimedOut, now), Unready);
        assert_eq!(health.take(&Outcome::Ready, now), Ready);
        assert_eq!(health.take(&refused(), now), Unready);
        assert_eq!(health.take(&Outcome::Ready, now), Ready);
        assert_eq!(health.take(&Outcome::Unready(StatusCode::INTERNAL_SERVER_ERROR), now), Leaving);
        assert_eq!(health.take(&Outcome::Unready(StatusCode::INTERNAL_SERVER_ERROR), now), Leaving);
        assert_eq!(health.take(&refused(), now), Unready);
        assert_eq!(health.take(&Outcome::Unready(StatusCode::FORBIDDEN), now), Unready, "it starts");
        health.take(&Outcome::Ready, now);
        health.reset();
        assert_eq!(health.take(&Outcome::TimedOut, now), Unready);
    }

    #[test]
    fn a_silent_server_is_what_it_was_and_ready_after_a_while() {
        use Readiness::{Leaving, Ready, Unready};
        let (start, silent) = (Instant::now(), || Outcome::Silent(StatusCode::UNAUTHORIZED));
        let mut health = Health::default();
        let mut take = |outcome: &Outcome, ms: u64| health.take(outcome, start + Duration::from_millis(ms));
        assert_eq!(take(&silent(), 0), Unready, "it may be starting");
        assert_eq!(take(&silent(), 4_999), Unready);
        assert_eq!(take(&silent(), 5_000), Ready);
        assert_eq!(take(&Outcome::Refused(String::new()), 6_000), Unready);
        assert_eq!(take(&silent(), 7_000), Unready, "from the start");
        assert_eq!(take(&Outcome::Ready, 8_000), Ready);
        assert_eq!(take(&silent(), 9_000), Ready);
        assert_eq!(take(&Outcome::Unready(StatusCode::INTERNAL_SERVER_ERROR), 10_000), Leaving);
        assert_eq!(take(&silent(), 11_000), Leaving);
        assert_eq!(take(&silent(), 16_000), Ready);
    }
}
