//! The requests of the demo: what each should come to, and what it came to.

use std::time::{Duration, Instant};

use bytes::Bytes;
use http::{HeaderMap, Method};
use loadgen::{Client, Error};
use tokio::time::timeout;

use super::TOKEN;
use super::cluster::Door;

/// Measured requests of each kind, on each way.
pub(super) const REPEATS: usize = 30;
/// Requests before those, which open connections and fill caches.
const WARM_UP: usize = 5;
/// For everything; on an idle machine it takes less than a second.
const ALL_MAX: Duration = Duration::from_secs(60);
/// For the first event of a watch.
const EVENT_MAX: Duration = Duration::from_secs(5);

/// The cluster's servers, by their place in it.
const A: usize = 0;
const B: usize = 1;

/// One request, and what is right.
struct Ask {
    title: &'static str,
    /// The server whose proxy is asked.
    asked: usize,
    how: How,
    path: &'static str,
    /// What the asked server says without a proxy.
    alone: u16,
    status: u16,
    answered_by: usize,
}

/// The way a request is made.
#[derive(Clone, Copy)]
enum How {
    Get,
    /// To the first event.
    Watch,
    /// Of a job with a new name; in a namespace of its own, so that lists stay short.
    CreateJob,
}

const fn ask(title: &'static str, asked: usize, how: How, path: &'static str, alone: u16, status: u16, answered_by: usize) -> Ask {
    Ask { title, asked, how, path, alone, status, answered_by }
}

const ASKS: [Ask; 8] = [
    ask("list pods", A, How::Get, "/api/v1/namespaces/default/pods", 200, 200, A),
    ask("get a configmap", A, How::Get, "/api/v1/namespaces/default/configmaps/demo", 200, 200, A),
    ask("list jobs (batch/v1)", A, How::Get, "/apis/batch/v1/namespaces/default/jobs", 404, 200, B),
    ask("create a job", A, How::CreateJob, "/apis/batch/v1/namespaces/demo/jobs", 404, 201, B),
    ask("watch jobs, to the first event", A, How::Watch, "/apis/batch/v1/namespaces/default/jobs?watch=true", 404, 200, B),
    ask("list flowschemas (flowcontrol v1beta3)", B, How::Get, "/apis/flowcontrol.apiserver.k8s.io/v1beta3/flowschemas", 404, 200, A),
    ask("list widgets, which no server has", A, How::Get, "/apis/example.com/v1/widgets", 404, 404, A),
    ask("discovery: which API groups are there", A, How::Get, "/apis", 200, 200, A),
];

/// What came of one request.
pub(super) struct Row {
    /// What was asked for.
    pub(super) title: &'static str,
    /// The server whose proxy was asked.
    pub(super) asked: &'static str,
    /// The status without a proxy.
    pub(super) alone: u16,
    /// The status through the proxy.
    pub(super) status: u16,
    /// The server that answered through the proxy, by its own word; empty when none did.
    pub(super) answered_by: String,
    /// Microseconds more through the proxy than straight to the server that answered; negative where noise outweighs them.
    pub(super) added: Option<i64>,
    /// What is wrong, if anything is.
    pub(super) wrong: Option<String>,
}

impl Row {
    /// Whether everything came as it should.
    pub(super) fn is_right(&self) -> bool {
        self.wrong.is_none()
    }
}

/// Sends every request, to the servers and through the proxies.
pub(super) async fn measure(doors: Vec<Door>) -> Result<Vec<Row>, String> {
    let all = async {
        let (mut servers, mut proxies) = (Vec::new(), Vec::new());
        for door in &doors {
            servers.push(connect(door, false).await?);
            proxies.push(connect(door, true).await?);
        }
        let mut rows = Vec::new();
        for ask in &ASKS {
            let row = row(ask, &doors, &servers, &proxies).await;
            rows.push(row.map_err(|error| format!("{}: {error}", ask.title))?);
        }
        Ok(rows)
    };
    timeout(ALL_MAX, all).await.map_err(|_| format!("the requests took more than {} s", ALL_MAX.as_secs()))?
}

async fn connect(door: &Door, through_proxy: bool) -> Result<Client, String> {
    let address = if through_proxy { door.proxy } else { door.server };
    Client::connect(address, &door.ca_pem, "kubernetes.default.svc", Some(TOKEN)).await.map_err(|error| error.to_string())
}

async fn row(ask: &Ask, doors: &[Door], servers: &[Client], proxies: &[Client]) -> Result<Row, Error> {
    let alone = send(&servers[ask.asked], ask).await?.status;
    let first = send(&proxies[ask.asked], ask).await?;
    let added = match doors.iter().position(|door| door.id == first.answered_by) {
        Some(answering) => Some(added(&proxies[ask.asked], &servers[answering], ask).await?),
        None => None,
    };
    let wrong = judge((alone, first.status, &first.answered_by), (ask.alone, ask.status, doors[ask.answered_by].id));
    let asked = doors[ask.asked].id;
    Ok(Row { title: ask.title, asked, alone, status: first.status, answered_by: first.answered_by, added, wrong })
}

/// What is wrong with what was found: the status without a proxy, the status with it, and who answered.
fn judge(found: (u16, u16, &str), right: (u16, u16, &str)) -> Option<String> {
    (found != right).then(|| format!("WRONG: should be {} without, {} from {} with mvproxy", right.0, right.1, right.2))
}

/// The difference of the medians. Taken in turns, so that whatever else the machine does falls on both.
async fn added(proxy: &Client, server: &Client, ask: &Ask) -> Result<i64, Error> {
    let (mut through, mut straight) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP + REPEATS {
        through.push(send(proxy, ask).await?.took);
        straight.push(send(server, ask).await?.took);
    }
    let micros = |times: &[Duration]| i64::try_from(median(&times[WARM_UP..]).as_micros()).unwrap_or(i64::MAX);
    Ok(micros(&through) - micros(&straight))
}

fn median(times: &[Duration]) -> Duration {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or_default()
}

/// One answer.
struct Answer {
    status: u16,
    answered_by: String,
    took: Duration,
}

async fn send(client: &Client, ask: &Ask) -> Result<Answer, Error> {
    let begin = Instant::now();
    let (status, headers) = match ask.how {
        How::Get => {
            let response = client.get(ask.path).await?;
            (response.status, response.headers)
        }
        How::CreateJob => {
            let job = Bytes::from_static(br#"{"kind":"Job","apiVersion":"batch/v1","metadata":{"generateName":"demo-"},"spec":{}}"#);
            let response = client.request(Method::POST, ask.path, HeaderMap::new(), job, None).await?;
            (response.status, response.headers)
        }
        How::Watch => {
            let mut watch = client.watch(ask.path).await?;
            if watch.status.is_success() {
                timeout(EVENT_MAX, watch.next_event()).await.map_err(|_| Error::Timeout("first event"))??;
            }
            (watch.status, watch.headers.clone())
        }
    };
    let took = begin.elapsed();
    let answered_by = headers.get("x-twin-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
    Ok(Answer { status: status.as_u16(), answered_by: answered_by.into(), took })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_right_when_all_of_it_is() {
        let right = (404, 200, "cp-b");
        assert_eq!(judge(right, right), None);
        for found in [(200, 200, "cp-b"), (404, 404, "cp-b"), (404, 200, "cp-a"), (404, 503, "")] {
            assert!(judge(found, right).is_some_and(|text| text.contains("should be 404 without, 200 from cp-b")), "{found:?}");
        }
    }

    #[test]
    fn the_median_is_the_middle_one() {
        let times = [9, 1, 5, 1, 700].map(Duration::from_micros);
        assert_eq!(median(&times), Duration::from_micros(5));
        assert_eq!(median(&[]), Duration::ZERO);
    }
}
