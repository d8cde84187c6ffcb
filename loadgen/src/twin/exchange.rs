//! One request with its response: who answers it, and the headers every answer has.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::header::{ACCEPT, AUTHORIZATION, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, DATE, ETAG, IF_NONE_MATCH, VARY};
use http::{HeaderName, HeaderValue, Method, Request, Response, StatusCode, request};
use serde_json::json;
use tokio::sync::watch;

use crate::body::send_all;
use crate::error::Error;

use super::apis::{Api, Resource};
use super::debug::Behaviour;
use super::documents::{Document, Documents, Found};
use super::path::{Path, Target};
use super::store::{Key, ResourceId, Store};
use super::{Counters, TwinConfig, clock, resources, samples, status};

const AUDIT_ID: HeaderName = HeaderName::from_static("audit-id");
const TWIN_ID: HeaderName = HeaderName::from_static("x-twin-id");
/// Asks for a behaviour of `debug.rs` whatever the path is.
const TWIN_DEBUG: HeaderName = HeaderName::from_static("x-twin-debug");
const NOSNIFF: (HeaderName, HeaderValue) = (http::header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));

/// What all exchanges of a twin share.
pub(super) struct Served {
    pub(super) config: TwinConfig,
    pub(super) counters: Counters,
    pub(super) store: Arc<Store>,
    id: HeaderValue,
    documents: Documents,
    table: Vec<Entry>,
    /// When `/readyz` is 200.
    ready_at: Instant,
}

/// One served resource.
pub(super) struct Entry {
    id: ResourceId,
    pub(super) group: String,
    pub(super) version: String,
    /// The `apiVersion` of its objects.
    pub(super) api_version: String,
    pub(super) resource: Resource,
}

impl Served {
    pub(super) fn new(config: TwinConfig, address: SocketAddr) -> Result<Self, Error> {
        let id = HeaderValue::try_from(&config.id).map_err(http::Error::from)?;
        let store = config.storage.clone().unwrap_or_default().store();
        let entry = |api: &Api, resource: &Resource| Entry {
            id: store.resource(&api.group, &resource.plural),
            group: api.group.clone(),
            version: api.version.clone(),
            api_version: api.group_version(),
            resource: resource.clone(),
        };
        let all = config.apis.iter().flat_map(|api| api.resources.iter().map(move |resource| (api, resource)));
        let table: Vec<Entry> = all.map(|(api, resource)| entry(api, resource)).collect();
        for entry in &table {
            for sample in samples::of(&entry.resource) {
                // Refused where the resource has other versions, or other twins share it, and then the object is there.
                drop(store.create(Key::new(entry.id, sample.namespace, sample.name), sample.fields));
            }
        }
        let documents = Documents::new(&config.apis, &address.to_string(), minor(&config.version));
        let ready_at = Instant::now() + config.start.map_or(Duration::ZERO, |start| start.listens + start.serves);
        Ok(Self { config, counters: Counters::default(), store, id, documents, table, ready_at })
    }

    pub(super) fn lookup(&self, target: &Target) -> Option<(ResourceId, &Entry)> {
        let is_it =
            |entry: &&Entry| entry.group == target.group && entry.version == target.version && entry.resource.plural == target.resource;
        self.table.iter().find(is_it).map(|entry| (entry.id, entry))
    }

    pub(super) fn knows_group(&self, group: &str) -> bool {
        self.config.apis.iter().any(|api| api.group == group)
    }
}

/// A complete answer, its body in memory.
#[derive(Debug)]
pub(super) struct Answer {
    status: StatusCode,
    content_type: &'static str,
    headers: Vec<(HeaderName, HeaderValue)>,
    pub(super) body: Bytes,
}

impl Answer {
    pub(super) fn json(status: StatusCode, body: Bytes) -> Self {
        Self { status, content_type: "application/json", headers: Vec::new(), body }
    }

    pub(super) fn text(status: StatusCode, body: &'static str) -> Self {
        let body = Bytes::from_static(body.as_bytes());
        Self { content_type: "text/plain; charset=utf-8", headers: vec![NOSNIFF], ..Self::json(status, body) }
    }

    /// A path that no part of the server knows.
    pub(super) fn page_not_found() -> Self {
        Self::text(StatusCode::NOT_FOUND, "404 page not found\n")
    }
}

/// A request whose response is still to be sent. Dropping it resets the stream.
pub(super) struct Exchange {
    pub(super) served: Arc<Served>,
    pub(super) request: request::Parts,
    pub(super) body: RecvStream,
    pub(super) respond: SendResponse<Bytes>,
    /// Whether the connection showed a client certificate.
    pub(super) certified: bool,
    pub(super) stopping: watch::Receiver<bool>,
    audit_id: HeaderValue,
}

impl Exchange {
    pub(super) fn new(
        served: Arc<Served>,
        request: Request<RecvStream>,
        respond: SendResponse<Bytes>,
        certified: bool,
        stopping: watch::Receiver<bool>,
    ) -> Self {
        let (request, body) = request.into_parts();
        let new_id = || HeaderValue::try_from(clock::uuid()).unwrap_or(HeaderValue::from_static("none"));
        let audit_id = request.headers.get(AUDIT_ID).cloned().unwrap_or_else(new_id);
        Self { served, request, body, respond, certified, stopping, audit_id }
    }

    /// Answers the request.
    pub(super) async fn serve(self) -> Result<(), Error> {
        if self.served.config.require_token && !self.authenticated() {
            return self.answer(status::unauthorized()).await;
        }
        let path = Path::parse(self.request.uri.path());
        let forced = self.request.headers.get(TWIN_DEBUG).map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
        let path = forced.map_or(path, Path::Debug);
        match path {
            Path::Debug(asked) => match Behaviour::parse(&asked) {
                Some(behaviour) => behaviour.act(self).await,
                None => self.answer(Answer::page_not_found()).await,
            },
            Path::Resource(target) => resources::serve(self, target).await,
            Path::Version => {
                let answer = version(&self.served.config.version);
                self.answer(answer).await
            }
            Path::Health => {
                let is_ready = Instant::now() >= self.served.ready_at;
                let (status, text) = if is_ready { (StatusCode::OK, "ok") } else { (StatusCode::INTERNAL_SERVER_ERROR, "starting") };
                self.answer(Answer::text(status, text)).await
            }
            Path::Core | Path::Groups | Path::Group(_) | Path::GroupVersion(..) | Path::Unknown => {
                let answer = self.document(&path);
                self.answer(answer).await
            }
        }
    }

    /// Sends a complete answer. What is left of the request body is not read: `h2` then sends RST_STREAM(NO_ERROR)
    /// after the response (RFC 9113 §8.1), as Go does.
    pub(super) async fn answer(mut self, answer: Answer) -> Result<(), Error> {
        let mut head = self.head(answer.status, answer.content_type);
        for (name, value) in answer.headers {
            head.headers_mut().insert(name, value);
        }
        if answer.status != StatusCode::NOT_MODIFIED {
            head.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(answer.body.len()));
        }
        let bodiless = answer.body.is_empty() || self.request.method == Method::HEAD;
        let mut stream = self.respond.send_response(head, bodiless)?;
        if !bodiless {
            send_all(&mut stream, answer.body, true).await?;
        }
        Ok(())
    }

    /// The head of a response, with the headers that every one has.
    pub(super) fn head(&self, status: StatusCode, content_type: &'static str) -> Response<()> {
        let mut head = Response::new(());
        *head.status_mut() = status;
        let headers = head.headers_mut();
        headers.insert(AUDIT_ID, self.audit_id.clone());
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
        if let Ok(date) = HeaderValue::try_from(clock::http_date(clock::now())) {
            headers.insert(DATE, date);
        }
        headers.insert(TWIN_ID, self.served.id.clone());
        head
    }

    /// Any bearer token is a user; so is a verified client certificate.
    fn authenticated(&self) -> bool {
        let bearer = self.request.headers.get(AUTHORIZATION).and_then(|value| value.to_str().ok());
        let token = bearer.and_then(|value| value.trim().split_once(' '));
        let token = token.is_some_and(|(scheme, token)| scheme.eq_ignore_ascii_case("bearer") && !token.trim().is_empty());
        token || self.certified
    }

    fn document(&self, path: &Path) -> Answer {
        // Clauses may come in several header lines (RFC 9110 §5.2).
        let accept: Vec<&str> = self.request.headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
        let document = match (self.served.documents.find(path, &accept.join(",")), path) {
            (Found::Document(document), _) => document,
            (Found::NotAcceptable, _) => return status::not_acceptable(),
            (Found::Nothing, Path::GroupVersion(group, _)) if self.served.knows_group(group) => return status::unknown_resource(),
            (Found::Nothing, _) => return Answer::page_not_found(),
        };
        if !matches!(self.request.method, Method::GET | Method::HEAD) {
            return status::method_not_allowed();
        }
        let Document { body, content_type, etag } = document.clone();
        let mut answer = Answer { content_type, ..Answer::json(StatusCode::OK, body) };
        // Aggregated documents alone have one, and only they are said to depend on who asks and how.
        if let Some(etag) = etag.and_then(|etag| HeaderValue::try_from(etag).ok()) {
            if self.request.headers.get(IF_NONE_MATCH) == Some(&etag) {
                answer.status = StatusCode::NOT_MODIFIED;
                answer.body = Bytes::new();
            }
            answer.headers.push((ETAG, etag));
            answer.headers.push((VARY, HeaderValue::from_static("Accept")));
            answer.headers.push((CACHE_CONTROL, HeaderValue::from_static("public")));
        }
        answer
    }
}

/// 36 of `v1.36.4`.
pub(super) fn minor(git_version: &str) -> u32 {
    git_version.split('.').nth(1).and_then(|minor| minor.parse().ok()).unwrap_or_default()
}

/// The answer of `/version` for a version such as `v1.36.4`.
fn version(git_version: &str) -> Answer {
    let major = git_version.trim_start_matches('v').split('.').next().unwrap_or_default();
    let minor = minor(git_version);
    let body = json!({
        "major": major,
        "minor": minor.to_string(),
        "emulationMajor": major,
        "emulationMinor": minor.to_string(),
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": minor.saturating_sub(1).to_string(),
        "gitVersion": git_version,
        "gitCommit": "twin",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "none",
        "compiler": "none",
        "platform": "linux/amd64",
    });
    Answer::json(StatusCode::OK, status::json(&body))
}
