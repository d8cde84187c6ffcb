//! `?watch=true`: the events of a selection as JSON lines.
//!
//! Without `resourceVersion` (or with 0) a watch begins with ADDED events for what is there, otherwise right after that
//! revision. Where `allowWatchBookmarks` asks for it, bookmarks say how far it has come. It ends cleanly after `timeoutSeconds`, and
//! when the twin stops.

use std::future::poll_fn;
use std::time::Duration;

use bytes::Bytes;
use h2::SendStream;
use http::{Method, StatusCode};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::body::send_all;
use crate::error::Error;

use super::exchange::{Entry, Exchange};
use super::path::{query_flag, query_value};
use super::resources::typed;
use super::store::Selection;
use super::{serve, status};

/// The least that kube-apiserver lets a watch live when it does not say how long (`--min-request-timeout`).
const TIMEOUT_DEFAULT: Duration = Duration::from_secs(1_800);
/// A longer `timeoutSeconds` is cut to this.
const TIMEOUT_MAX: Duration = Duration::from_secs(86_400);

/// How often a bookmark comes, and how long before the end the last one: as in kube-apiserver.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// How long a client that does not read may hold a watch beyond its time.
const OVERTIME: Duration = Duration::from_secs(30);

/// Streams events until the time is over, the twin stops or the client goes.
pub(super) async fn stream(mut exchange: Exchange, entry: &Entry, selection: Selection, query: &str) -> Result<(), Error> {
    let asked = query_value(query, "timeoutSeconds").and_then(|value| value.parse().ok());
    let life = asked.map_or(TIMEOUT_DEFAULT, Duration::from_secs).min(TIMEOUT_MAX);
    let head = exchange.head(StatusCode::OK, "application/json");
    let bodiless = exchange.request.method == Method::HEAD;
    let stream = exchange.respond.send_response(head, bodiless)?;
    if bodiless {
        return Ok(());
    }
    let deadline = Instant::now() + life;
    let mut watch = Watch { stream, exchange: &mut exchange, entry, selection, deadline };
    // Past this point the stream is in the middle of a line, and dropping it is a reset: never a clean end.
    match timeout_at(deadline + OVERTIME, watch.run(query)).await {
        Ok(ended) => Ok(ended?),
        Err(_) => Err(Error::Timeout("client to read its watch")),
    }
}

struct Watch<'a> {
    stream: SendStream<Bytes>,
    exchange: &'a mut Exchange,
    entry: &'a Entry,
    selection: Selection,
    deadline: Instant,
}

impl Watch<'_> {
    /// Sends what there is, then what comes; ends the stream only between two lines.
    async fn run(&mut self, query: &str) -> Result<(), h2::Error> {
        let mut revisions = self.exchange.served.store.subscribe();
        let mut position = self.begin(query).await?;
        let mut bookmark = query_flag(query, "allowWatchBookmarks").then(|| next_bookmark(Instant::now(), self.deadline)).flatten();
        loop {
            let new = self.exchange.served.store.events_after(position, &self.selection);
            let Ok((reached, events)) = new else {
                return send_all(&mut self.stream, line("ERROR", &status::expired()), true).await;
            };
            for event in events {
                self.send(event.kind, &typed(self.entry, &event.object)).await?;
            }
            position = reached;
            let stream = &mut self.stream;
            let is_bookmark_due = tokio::select! {
                changed = revisions.wait_for(|revision| *revision > position) => {
                    drop(changed);
                    false
                }
                () = sleep_until(bookmark.unwrap_or(self.deadline)), if bookmark.is_some() => true,
                reason = poll_fn(|cx| stream.poll_reset(cx)) => return Err(reason?.into()),
                () = sleep_until(self.deadline) => break,
                () = serve::stopped(&mut self.exchange.stopping) => break,
            };
            if is_bookmark_due {
                self.send("BOOKMARK", bookmark_object(self.entry, position, "").as_bytes()).await?;
                bookmark = next_bookmark(Instant::now(), self.deadline);
            }
        }
        self.stream.send_data(Bytes::new(), true)
    }

    /// Sends the initial events, if the query asks for any; returns the revision to go on from.
    async fn begin(&mut self, query: &str) -> Result<u64, h2::Error> {
        let asked = query_value(query, "resourceVersion").and_then(|value| value.parse().ok());
        let streaming_list = query_flag(query, "sendInitialEvents");
        let mut position = asked.unwrap_or(0);
        if position == 0 || streaming_list {
            let (revision, objects) = self.exchange.served.store.list(&self.selection);
            for object in objects {
                self.send("ADDED", &typed(self.entry, &object)).await?;
            }
            position = revision;
        }
        if streaming_list {
            let end = r#","annotations":{"k8s.io/initial-events-end":"true"}"#;
            self.send("BOOKMARK", bookmark_object(self.entry, position, end).as_bytes()).await?;
        }
        Ok(position)
    }

    async fn send(&mut self, kind: &str, object: &[u8]) -> Result<(), h2::Error> {
        send_all(&mut self.stream, line(kind, object), false).await
    }
}

fn line(kind: &str, object: &[u8]) -> Bytes {
    [format!(r#"{{"type":"{kind}","object":"#).as_bytes(), object, b"}\n"].concat().into()
}

/// The object of a bookmark: nothing but its revision, and what is `added` to the metadata.
fn bookmark_object(entry: &Entry, revision: u64, added: &str) -> String {
    let (kind, api_version) = (&entry.resource.kind, &entry.api_version);
    format!(r#"{{"kind":"{kind}","apiVersion":"{api_version}","metadata":{{"resourceVersion":"{revision}"{added}}}}}"#)
}

/// When the next bookmark is due, if there is time for one.
fn next_bookmark(now: Instant, deadline: Instant) -> Option<Instant> {
    let last = deadline.checked_sub(BOOKMARK_BEFORE_END).filter(|last| *last > now)?;
    Some(last.min(now + BOOKMARK_EVERY))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookmarks_come_every_minute_and_before_the_end() {
        let now = Instant::now();
        let due = |left: u64| next_bookmark(now, now + Duration::from_secs(left)).map(|at| (at - now).as_secs());
        assert_eq!([due(2), due(3), due(62), due(240)], [None, Some(1), Some(60), Some(60)]);
    }
}
