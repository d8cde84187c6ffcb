//! Our own Lease, by which other proxies find our peer port: kept while we run, deleted when we stop.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, StatusCode};
use k8s_openapi::jiff::Timestamp;
use kube::client::Body;
use serde::Deserialize;
use tokio::sync::watch as signal;

use super::leases_path;
use super::round::Report;
use super::status::{Source, SourceState};
use super::transport::{Limits, Place, Reply, SendError, Transport};
use super::watch::Post;
use crate::ServerId;
use crate::leases::{NAMESPACE, PROXY_ADDRESS_ANNOTATION, PROXY_LABEL, PROXY_PREFIX, PROXY_SERVER_ANNOTATION};

/// How often it is renewed.
const EVERY: Duration = Duration::from_secs(10);
/// How soon a failure is made good.
const EVERY_FAILED: Duration = Duration::from_secs(1);
/// A Lease, as the server sends it back.
const ANSWER: Limits = Limits { bytes: 1 << 20, time: Duration::from_secs(3) };
/// How long a write under way is waited for before it is deleted.
const WRITE_END_MAX: Duration = Duration::from_secs(1);
/// How long readers may take it for ours; ours do not look at it.
const LEASE_SECONDS: u64 = 40;

/// What the Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// Where our peer port is reached.
    pub peer_address: SocketAddr,
    /// What the server behind us advertises as its own address.
    pub server_address: SocketAddr,
}

/// The Lease of one run of the program.
#[derive(Clone)]
pub(super) struct OwnLease {
    name: String,
    holder: String,
    announcement: Announcement,
}

impl OwnLease {
    pub(super) fn new(local: &ServerId, announcement: Announcement) -> Self {
        let holder = format!("{PROXY_PREFIX}{local}_{}-{}", std::process::id(), Timestamp::now().as_nanosecond());
        Self { name: format!("{PROXY_PREFIX}{local}"), holder, announcement }
    }

    /// Keeps it, and says in `kept` which version of it is ours.
    pub(super) async fn keep(self, mut post: Post, kept: signal::Sender<Option<String>>) {
        let mut last: Option<SourceState> = None;
        loop {
            let place = *post.place.borrow_and_update();
            let state = match self.apply(&post.transport, place).await {
                Ok(version) => {
                    kept.send_replace(Some(version));
                    SourceState::Synced
                }
                Err(state) => state,
            };
            let pause = if state == SourceState::Synced { EVERY } else { EVERY_FAILED };
            if last.as_ref() != Some(&state) {
                drop(post.reports.send(Report::Source(Source::OwnLease, state.clone())).await);
                last = Some(state);
            }
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                changed = post.place.changed() => if changed.is_err() {
                    return;
                },
            }
        }
    }

    /// Writes it as it should be, whether or not it was there; the version it has then.
    async fn apply(&self, transport: &Transport, place: Place) -> Result<String, SourceState> {
        let lease = serde_json::json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": self.name,
                "namespace": NAMESPACE,
                "labels": { PROXY_LABEL.0: PROXY_LABEL.1 },
                "annotations": {
                    PROXY_ADDRESS_ANNOTATION: self.announcement.peer_address.to_string(),
                    PROXY_SERVER_ANNOTATION: self.announcement.server_address.to_string(),
                },
            },
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": LEASE_SECONDS,
                "renewTime": format!("{:.6}", Timestamp::now()),
            },
        });
        #[derive(Deserialize)]
        struct Written {
            metadata: Metadata,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Metadata {
            resource_version: String,
        }
        let answer = self.send(transport, place, Method::PATCH, "?fieldManager=mvproxy&force=true", &lease).await;
        let reply = answer.map_err(|error| SourceState::Failing(error.to_string()))?;
        match reply.status {
            StatusCode::OK | StatusCode::CREATED => {
                let written = serde_json::from_slice::<Written>(&reply.body);
                written.map(|written| written.metadata.resource_version).map_err(|error| SourceState::Failing(error.to_string()))
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(SourceState::Denied(format!("writing it: {}", reply.status))),
            status => Err(SourceState::Failing(format!("writing it: {status}"))),
        }
    }

    /// Deletes it, if it is still the version that we wrote last: another run of the program may have taken over. The local server may be
    /// going down with us: then another is asked. `kept` has no sender when nothing is being written any more.
    pub(super) async fn withdraw(&self, transport: &Transport, places: &[Place], mut kept: signal::Receiver<Option<String>>) {
        let deadline = Instant::now() + ANSWER.time;
        // What is being written changes the version.
        let written = async { while kept.changed().await.is_ok() {} };
        // If it takes longer, the version from before has to do.
        tokio::time::timeout(WRITE_END_MAX, written).await.ok();
        let Some(version) = kept.borrow().clone() else { return };
        let options = serde_json::json!({
            "apiVersion": "v1", "kind": "DeleteOptions", "preconditions": { "resourceVersion": version },
        });
        for (place, left) in places.iter().zip((1..=places.len()).rev()) {
            // One that hangs leaves time for the others.
            let share = deadline.saturating_duration_since(Instant::now()) / u32::try_from(left).unwrap_or(u32::MAX);
            let answer = tokio::time::timeout(share, self.send(transport, *place, Method::DELETE, "", &options)).await;
            // Deleted, or gone, or another's: nothing more is to be done.
            let is_done = |status: StatusCode| status.is_success() || matches!(status, StatusCode::NOT_FOUND | StatusCode::CONFLICT);
            if matches!(answer, Ok(Ok(reply)) if is_done(reply.status)) {
                return;
            }
        }
    }

    async fn send(
        &self,
        transport: &Transport,
        place: Place,
        method: Method,
        query: &str,
        body: &serde_json::Value,
    ) -> Result<Reply, SendError> {
        let kind = if method == Method::PATCH { "application/apply-patch+yaml" } else { "application/json" };
        let mut request = Request::new(Body::from(body.to_string().into_bytes()));
        *request.method_mut() = method;
        let path = leases_path(&format!("/{}{query}", self.name));
        *request.uri_mut() = path.parse().map_err(|_| SendError::BadPath(path))?;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        transport.ask(place, request, ANSWER).await
    }
}
