//! Asks one server whether it can be used.

use std::time::Duration;

use http::{Request, StatusCode};
use kube::client::Body;

use super::transport::{Place, SendError, Transport};
use crate::inventory::Readiness;

/// Without etcd: a server whose etcd is away still knows better than the proxy what to answer, and `/readyz` as a whole hangs then.
const PATH: &str = "/readyz?exclude=etcd&exclude=etcd-readiness";
/// How often a server that is ready is asked.
const EVERY: Duration = Duration::from_secs(1);
/// How often one that is not is.
const EVERY_UNREADY: Duration = Duration::from_millis(250);
/// The longest wait for an answer.
const TIME_MAX: Duration = Duration::from_secs(2);
/// Answers that did not come, in a row, before a server is not ready: a pause of its process is no failure.
const TIMEOUTS_MAX: u32 = 2;

/// What a probe found.
#[derive(Debug)]
pub(super) enum Outcome {
    Ready,
    /// It says that it is not.
    Unready(StatusCode),
    /// It is not there, or it is somebody else.
    Refused(String),
    TimedOut,
}

/// What probes found so far.
#[derive(Debug, Default)]
pub(super) struct Health {
    readiness: Readiness,
    timeouts: u32,
}

impl Health {
    /// Takes an outcome in; is the server ready? One that never was and says no is starting, one that was has not gone yet.
    pub(super) fn take(&mut self, outcome: &Outcome) -> Readiness {
        self.timeouts = if matches!(outcome, Outcome::TimedOut) { self.timeouts + 1 } else { 0 };
        self.readiness = match outcome {
            Outcome::Ready => Readiness::Ready,
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

/// Asks.
pub(super) async fn probe(transport: &Transport, place: Place) -> Outcome {
    let ask = || {
        let mut request = Request::new(Body::from(Vec::new()));
        if let Ok(uri) = PATH.parse() {
            *request.uri_mut() = uri;
        }
        transport.ask(place, request, 64 << 10, TIME_MAX)
    };
    let mut answer = ask().await;
    // A connection that was kept open may have ended just now.
    if matches!(answer, Err(SendError::Broken(_))) {
        answer = ask().await;
    }
    match answer {
        Ok(reply) if reply.status == StatusCode::OK => Outcome::Ready,
        Ok(reply) => Outcome::Unready(reply.status),
        Err(SendError::TimedOut) => Outcome::TimedOut,
        Err(error) => Outcome::Refused(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_slow_answer_is_no_death_and_one_refusal_is() {
        use Readiness::{Leaving, Ready, Unready};
        let mut health = Health::default();
        let refused = || Outcome::Refused(String::new());
        assert_eq!(health.take(&Outcome::TimedOut), Unready, "not before the first success");
        assert_eq!(health.every(), EVERY_UNREADY);
        assert_eq!(health.take(&Outcome::Ready), Ready);
        assert_eq!(health.every(), EVERY);
        assert_eq!(health.take(&Outcome::TimedOut), Ready);
        assert_eq!(health.every(), EVERY_UNREADY, "in doubt it is asked soon");
        assert_eq!(health.take(&Outcome::Ready), Ready, "in between");
        assert_eq!(health.take(&Outcome::TimedOut), Ready);
        assert_eq!(health.take(&Outcome::TimedOut), Unready);
        assert_eq!(health.take(&Outcome::TimedOut), Unready);
        assert_eq!(health.take(&Outcome::Ready), Ready);
        assert_eq!(health.take(&refused()), Unready);
        assert_eq!(health.take(&Outcome::Ready), Ready);
        assert_eq!(health.take(&Outcome::Unready(StatusCode::INTERNAL_SERVER_ERROR)), Leaving);
        assert_eq!(health.take(&Outcome::Unready(StatusCode::INTERNAL_SERVER_ERROR)), Leaving);
        assert_eq!(health.take(&refused()), Unready);
        assert_eq!(health.take(&Outcome::Unready(StatusCode::FORBIDDEN)), Unready, "it starts");
        health.take(&Outcome::Ready);
        health.reset();
        assert_eq!(health.take(&Outcome::TimedOut), Unready);
    }
}
