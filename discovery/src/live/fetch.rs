//! Asks one server what it serves.
//!
//! What always holds: an answer is whole or it is an error; the server itself is asked (`profile=nopeer`), never what it says of others; a
//! list of group-versions that all servers share only says what to ask about.

use std::collections::BTreeSet;
use std::time::Duration;

use http::header::{ACCEPT, ETAG, IF_NONE_MATCH};
use http::{HeaderValue, Request, StatusCode};
use kube::client::Body;
use serde::Deserialize;

use super::transport::{Place, Reply, SendError, Transport};
use crate::Gvr;
use crate::documents::{self, DocumentError};
use crate::inventory::GroupVersion;

/// What is asked for, best first (kubernetes.md §1).
const ACCEPTED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
/// The longest document: 10,000 resources have some 10 MiB.
const BYTES_MAX: usize = 16 << 20;
/// The longest wait for one.
const TIME_MAX: Duration = Duration::from_secs(5);
/// More resources than any server has; a server that says so lies.
const GVRS_MAX: usize = 20_000;
/// Group-versions that are asked about one by one.
const GROUP_VERSIONS_MAX: usize = 2_000;

/// What names the documents of `/api` and `/apis` as they were last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Etags([Option<HeaderValue>; 2]);

impl Etags {
    pub(super) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// What a server said.
#[derive(Debug)]
pub(super) enum Answer {
    /// What it said last time.
    Same,
    /// All of it.
    Serves(Vec<Gvr>, Etags),
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum FetchError {
    Send(SendError),
    Status(&'static str, StatusCode),
    Document(DocumentError),
    TooMany,
}

impl std::fmt::Display for FetchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Send(error) => write!(f, "{error}"),
            Self::Status(path, status) => write!(f, "{path} was answered with {status}"),
            Self::Document(error) => write!(f, "{error}"),
            Self::TooMany => write!(f, "more than {GVRS_MAX} resources"),
        }
    }
}

impl From<SendError> for FetchError {
    fn from(error: SendError) -> Self {
        Self::Send(error)
    }
}

impl From<DocumentError> for FetchError {
    fn from(error: DocumentError) -> Self {
        Self::Document(error)
    }
}

/// Asks. `etags` are those of the last answer; `known` is what any server serves, for servers that have only the old documents.
pub(super) async fn fetch(
    transport: &Transport,
    place: Place,
    etags: &Etags,
    known: &BTreeSet<GroupVersion>,
) -> Result<Answer, FetchError> {
    let [api, apis] = &etags.0;
    let (api, apis) = tokio::try_join!(get(transport, place, "/api", api.as_ref()), get(transport, place, "/apis", apis.as_ref()))?;
    let is_same = |reply: &Reply| reply.status == StatusCode::NOT_MODIFIED;
    if is_same(&api) && is_same(&apis) {
        return Ok(Answer::Same);
    }
    // One document alone says nothing of the resources in the other.
    let api = if is_same(&api) { get(transport, place, "/api", None).await? } else { api };
    let apis = if is_same(&apis) { get(transport, place, "/apis", None).await? } else { apis };
    let mut gvrs = Vec::new();
    let mut etags = Etags::default();
    for (nth, (path, reply)) in [("/api", api), ("/apis", apis)].into_iter().enumerate() {
        if reply.status != StatusCode::OK {
            return Err(FetchError::Status(path, reply.status));
        }
        match documents::aggregated(&reply.body) {
            Ok(found) => {
                gvrs.extend(found);
                etags.0[nth] = reply.headers.get(ETAG).cloned();
            }
            Err(DocumentError::Kind(kind)) if kind == "APIVersions" || kind == "APIGroupList" => {
                let named = documents::named_group_versions(&reply.body)?;
                gvrs.extend(one_by_one(transport, place, named, path == "/api", known).await?);
            }
            Err(error) => return Err(error.into()),
        }
        if gvrs.len() > GVRS_MAX {
            return Err(FetchError::TooMany);
        }
    }
    Ok(Answer::Serves(gvrs, etags))
}

/// Asks about every group-version that anybody knows.
async fn one_by_one(
    transport: &Transport,
    place: Place,
    named: Vec<String>,
    is_core: bool,
    known: &BTreeSet<GroupVersion>,
) -> Result<Vec<Gvr>, FetchError> {
    let joined = |(group, version): &GroupVersion| if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
    let known = known.iter().filter(|(group, _)| group.is_empty() == is_core).map(joined);
    let mut all: BTreeSet<String> = named.into_iter().chain(known).collect();
    // What is no group-version cannot be part of a path.
    all.retain(|name| name.contains('/') != is_core && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./-".contains(&byte)));
    let mut found = Vec::new();
    for name in all.iter().take(GROUP_VERSIONS_MAX) {
        let path = format!("{}/{name}", if is_core { "/api" } else { "/apis" });
        let reply = get(transport, place, &path, None).await?;
        match reply.status {
            StatusCode::OK => found.extend(documents::of_group_version(&reply.body)?),
            StatusCode::NOT_FOUND => {}
            status => return Err(FetchError::Status("a group-version", status)),
        }
    }
    Ok(found)
}

async fn get(transport: &Transport, place: Place, path: &str, etag: Option<&HeaderValue>) -> Result<Reply, FetchError> {
    let mut request = Request::new(Body::from(Vec::new()));
    if let Ok(uri) = path.parse() {
        *request.uri_mut() = uri;
    }
    request.headers_mut().insert(ACCEPT, HeaderValue::from_static(ACCEPTED));
    if let Some(etag) = etag {
        request.headers_mut().insert(IF_NONE_MATCH, etag.clone());
    }
    Ok(transport.ask(place, request, BYTES_MAX, TIME_MAX).await?)
}

/// The version that a server says it has; for people only.
pub(super) async fn version(transport: &Transport, place: Place) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        git_version: String,
    }
    let mut request = Request::new(Body::from(Vec::new()));
    *request.uri_mut() = "/version".parse().ok()?;
    let reply = transport.ask(place, request, 64 << 10, TIME_MAX).await.ok()?;
    let version: Version = serde_json::from_slice(&reply.body).ok()?;
    Some(version.git_version.chars().take(64).collect())
}
