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
const C: usize = 2;

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
    /// Any of these.
    answered_by: &'static [usize],
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

const fn ask(
    title: &'static str,
    asked: usize,
    how: How,
    path: &'static str,
    (alone, status): (u16, u16),
    answered_by: &'static [usize],
) -> Ask {
    Ask { title, asked, how, path, alone, status, answered_by }
}

pub(super) const PODS: &str = "/api/v1/namespaces/default/pods";
pub(super) const JOBS: &str = "/apis/batch/v1/namespaces/default/jobs";
pub(super) const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies";
const WORKLOADS: &str = "/apis/scheduling.k8s.io/v1alpha1/namespaces/default/workloads";

const ASKS: [Ask; 9] = [
    ask("list pods", A, How::Get, PODS, (200, 200), &[A]),
    ask("get a configmap", A, How::Get, "/api/v1/namespaces/default/configmaps/demo", (200, 200), &[A]),
    ask("list jobs (batch/v1)", A, How::Get, JOBS, (404, 200), &[B, C]),
    ask("create a job", A, How::CreateJob, "/apis/batch/v1/namespaces/demo/jobs", (404, 201), &[B, C]),
    ask("watch jobs, to the first event", A, How::Watch, "/apis/batch/v1/namespaces/default/jobs?watch=true", (404, 200), &[B, C]),
    ask("list mutatingadmissionpolicies", B, How::Get, POLICIES, (404, 200), &[C]),
    ask("list workloads (scheduling v1alpha1)", C, How::Get, WORKLOADS, (404, 200), &[B]),
    ask("list widgets, which no server has", A, How::Get, "/apis/example.com/v1/widgets", (404, 404), &[A]),
    ask("discovery: which API groups are there", A, How::Get, "/apis", (200, 200), &[A]),
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

/// Opens a connection to a site.
pub(super) async fn connect(door: &Door, through_proxy: bool) -> Result<Client, String> {
    let address = if through_proxy { door.proxy } else { door.server };
    Client::connect(address, &door.ca_pem, "kubernetes.default.svc", Some(TOKEN)).await.map_err(|error| error.to_string())
}

async fn row(ask: &Ask, doors: &[Door], servers: &[Client], proxies: &[Client]) -> Result<Row, Error> {
    let alone = send(&servers[ask.asked], ask).await?.status;
    let first = send(&proxies[ask.asked], ask).await?;
    let answerers: Vec<&str> = ask.answered_by.iter().filter_map(|&at| doors.get(at)).map(|door| door.id).collect();
    let judge = |answer: &Answer| judge((alone, answer.status, &answer.answered_by), (ask.alone, ask.status, &answerers));
    let mut wrong = judge(&first);
    let mut added = None;
    if let Some(answering) = doors.iter().position(|door| door.id == first.answered_by) {
        let (through, straight) = repeat(&proxies[ask.asked], &servers[answering], ask).await?;
        added = Some(difference(&through, &straight));
        wrong = wrong.or_else(|| through.iter().find_map(judge));
    }
    let asked = doors[ask.asked].id;
    Ok(Row { title: ask.title, asked, alone, status: first.status, answered_by: first.answered_by, added, wrong })
}

/// What is wrong with what was found: the status without a proxy, the status with it, and who answered.
fn judge(found: (u16, u16, &str), right: (u16, u16, &[&str])) -> Option<String> {
    let is_right = (found.0, found.1) == (right.0, right.1) && right.2.contains(&found.2);
    let by = if found.2.is_empty() { "no server" } else { found.2 };
    (!is_right).then(|| {
        let right = format!("should be {} without, {} from {} with mvproxy", right.0, right.1, right.2.join(" or "));
        format!("WRONG: {right}; was {}, {} from {by}", found.0, found.1)
    })
}

/// The answers through the proxy, and straight from a server. In turns, so that whatever else the machine does falls on both.
async fn repeat(proxy: &Client, server: &Client, ask: &Ask) -> Result<(Vec<Answer>, Vec<Answer>), Error> {
    let (mut through, mut straight) = (Vec::new(), Vec::new());
    for _ in 0..WARM_UP + REPEATS {
        through.push(send(proxy, ask).await?);
        straight.push(send(server, ask).await?);
    }
    Ok((through, straight))
}

/// Of the medians, the first requests left out; in microseconds.
fn difference(through: &[Answer], straight: &[Answer]) -> i64 {
    let micros = |answers: &[Answer]| {
        let times: Vec<Duration> = answers.iter().skip(WARM_UP).map(|answer| answer.took).collect();
        i64::try_from(median(&times).as_micros()).unwrap_or(i64::MAX)
    };
    micros(through) - micros(straight)
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
                let event = timeout(EVENT_MAX, watch.next_event()).await.ok().transpose()?.flatten();
                event.ok_or(Error::Timeout("first event"))?;
            }
            (watch.status, watch.headers.clone())
        }
    };
    let took = begin.elapsed();
    Ok(Answer { status: status.as_u16(), answered_by: answered_by(&headers), took })
}

/// The server that answered, by its own word; empty when none did.
pub(super) fn answered_by(headers: &HeaderMap) -> String {
    headers.get("x-twin-id").and_then(|id| id.to_str().ok()).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_right_when_all_of_it_is() {
        let right = (404, 200, &["cp-b", "cp-c"][..]);
        assert_eq!(judge((404, 200, "cp-b"), right), None);
        assert_eq!(judge((404, 200, "cp-c"), right), None);
        for found in [(200, 200, "cp-b"), (404, 404, "cp-b"), (404, 200, "cp-a"), (404, 503, "")] {
            assert!(judge(found, right).is_some_and(|text| text.contains("should be 404 without, 200 from cp-b or cp-c")), "{found:?}");
        }
    }

    /// The first answers are slow, and do not count.
    #[test]
    fn the_added_latency_is_that_of_the_warm() {
        let answers = |cold: u64, warm: u64| -> Vec<Answer> {
            let answer = |took: u64| Answer { status: 200, answered_by: "cp-a".into(), took: Duration::from_micros(took) };
            (0..WARM_UP + REPEATS).map(|at| answer(if at < WARM_UP { cold } else { warm })).collect()
        };
        assert_eq!(difference(&answers(9_000, 150), &answers(10, 100)), 50);
        assert_eq!(difference(&answers(9_000, 100), &answers(10, 103)), -3);
    }

    #[test]
    fn the_median_is_the_middle_one() {
        let times = [9, 1, 5, 1, 700].map(Duration::from_micros);
        assert_eq!(median(&times), Duration::from_micros(5));
        assert_eq!(median(&[]), Duration::ZERO);
    }
}
