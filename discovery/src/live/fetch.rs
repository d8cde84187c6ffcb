//! Asks one server what it serves.
//!
//! What always holds: an answer is whole or it is an error; the server itself is asked (`profile=nopeer`), never what it says of others; a
//! list of group-versions that all servers share only says what to ask about; all of it ends within [`TIME_MAX`].

use std::collections::BTreeSet;
use std::time::Duration;

use http::header::{ACCEPT, ETAG, IF_NONE_MATCH};
use http::{HeaderMap, HeaderValue, StatusCode};
use serde::Deserialize;

use super::transport::{Limits, Place, Reply, SendError, Transport};
use crate::Gvr;
use crate::documents::{self, DocumentError, Named};
use crate::inventory::GroupVersion;

/// What is asked for, best first (kubernetes.md §1).
const ACCEPTED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList;profile=nopeer,\
application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,\
application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
/// One document.
const DOCUMENT: Limits = Limits { bytes: documents::BYTES_MAX, time: Duration::from_secs(5) };
/// All documents of a server: one by one they are some hundreds, of some milliseconds each.
const TIME_MAX: Duration = Duration::from_secs(15);
/// What `/version` says.
const VERSION: Limits = Limits { bytes: 64 << 10, time: Duration::from_secs(5) };
/// The longest version that is shown.
const VERSION_LEN_MAX: usize = 64;
/// More resources of its own than any server has; a server that says so lies.
pub(super) const GVRS_MAX: usize = 20_000;
/// Group-versions that are asked about one by one: more of its own than any server has.
const GROUP_VERSIONS_MAX: usize = 2_000;

/// What names the documents of `/api` and `/apis` as they were last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Etags([Option<HeaderValue>; 2]);

/// What a server said.
#[derive(Debug)]
pub(super) enum Answer {
    /// What it said last time.
    Same,
    /// All of it.
    Serves(Named, Etags),
}

/// What is known before a server is asked.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// Those of its last answer.
    pub(super) etags: Etags,
    /// What any server serves, for servers that have only the old documents.
    pub(super) known: BTreeSet<GroupVersion>,
    /// What other servers answer for: nobody is routed by it, and one of them that is dead or slow must not cost us the rest.
    pub(super) aggregated: BTreeSet<GroupVersion>,
    /// What CustomResourceDefinitions make: nobody is routed by it either.
    pub(super) custom: BTreeSet<GroupVersion>,
}

impl Before {
    fn is_excluded(&self, gvr: &Gvr) -> bool {
        let group_version = (gvr.group.clone(), gvr.version.clone());
        self.aggregated.contains(&group_version) || self.custom.contains(&group_version)
    }
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum FetchError {
    Send(SendError),
    Status(&'static str, StatusCode),
    Document(DocumentError),
    TooMany,
    TooManyGroupVersions,
    TooSlow,
}

impl std::fmt::Display for FetchError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Send(error) => write!(f, "{error}"),
            Self::Status(path, status) => write!(f, "{path} was answered with {status}"),
            Self::Document(error) => write!(f, "{error}"),
            Self::TooMany => write!(f, "more than {GVRS_MAX} resources"),
            Self::TooManyGroupVersions => write!(f, "more than {GROUP_VERSIONS_MAX} group-versions"),
            Self::TooSlow => write!(f, "no whole answer in {} s", TIME_MAX.as_secs()),
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

/// Asks.
pub(super) async fn fetch(transport: &Transport, place: Place, before: &Before) -> Result<Answer, FetchError> {
    tokio::time::timeout(TIME_MAX, documents_of(transport, place, before)).await.unwrap_or(Err(FetchError::TooSlow))
}

async fn documents_of(transport: &Transport, place: Place, before: &Before) -> Result<Answer, FetchError> {
    let [api, apis] = &before.etags.0;
    let (api, apis) = tokio::try_join!(get(transport, place, "/api", api.as_ref()), get(transport, place, "/apis", apis.as_ref()))?;
    let is_same = |reply: &Reply| reply.status == StatusCode::NOT_MODIFIED;
    if is_same(&api) && is_same(&apis) {
        return Ok(Answer::Same);
    }
    // One document alone says nothing of the resources in the other.
    let api = if is_same(&api) { get(transport, place, "/api", None).await? } else { api };
    let apis = if is_same(&apis) { get(transport, place, "/apis", None).await? } else { apis };
    let mut all = Named::default();
    let mut etags = Etags::default();
    for (nth, (path, reply)) in [("/api", api), ("/apis", apis)].into_iter().enumerate() {
        if reply.status != StatusCode::OK {
            return Err(FetchError::Status(path, reply.status));
        }
        match documents::aggregated(&reply.body) {
            Ok(named) => {
                add(&mut all, named);
                etags.0[nth] = reply.headers.get(ETAG).cloned();
            }
            Err(DocumentError::Kind(kind)) if kind == "APIVersions" || kind == "APIGroupList" => {
                let group_versions = documents::named_group_versions(&reply.body)?;
                add(&mut all, one_by_one(transport, place, group_versions, path == "/api", before).await?);
            }
            Err(error) => return Err(error.into()),
        }
    }
    // What is left out now may be the server's own when the same document is fetched again.
    let etags = if limit(&mut all, before)? { Etags::default() } else { etags };
    Ok(Answer::Serves(all, etags))
}

/// Leaves out what nobody is routed by, if there is too much; was it? An extension apiserver with many resources is in the documents of all
/// servers, and must not cost us what they serve themselves.
fn limit(all: &mut Named, before: &Before) -> Result<bool, FetchError> {
    if all.gvrs.len() <= GVRS_MAX {
        return Ok(false);
    }
    all.gvrs.retain(|gvr| !before.is_excluded(gvr));
    if all.gvrs.len() > GVRS_MAX { Err(FetchError::TooMany) } else { Ok(true) }
}

fn add(all: &mut Named, more: Named) {
    all.gvrs.extend(more.gvrs);
    all.left_out += more.left_out;
}

/// Asks about every group-version that anybody knows, and that is the server's own.
async fn one_by_one(transport: &Transport, place: Place, listed: Vec<String>, is_core: bool, before: &Before) -> Result<Named, FetchError> {
    let mut all = Named::default();
    for name in own_group_versions(listed, is_core, before)? {
        let path = format!("{}/{name}", if is_core { "/api" } else { "/apis" });
        let reply = get(transport, place, &path, None).await?;
        match reply.status {
            StatusCode::OK => add(&mut all, documents::of_group_version(&reply.body)?),
            StatusCode::NOT_FOUND => {}
            status => return Err(FetchError::Status("a group-version", status)),
        }
    }
    Ok(all)
}

/// What is to be asked about: the core group, or all others. Nobody is routed by the rest.
fn own_group_versions(listed: Vec<String>, is_core: bool, before: &Before) -> Result<BTreeSet<String>, FetchError> {
    let joined = |(group, version): &GroupVersion| if group.is_empty() { version.to_string() } else { format!("{group}/{version}") };
    let known = before.known.iter().filter(|(group, _)| group.is_empty() == is_core).map(joined);
    let mut wanted: BTreeSet<String> = listed.into_iter().chain(known).collect();
    // What is no group-version cannot be part of a path.
    wanted.retain(|name| name.contains('/') != is_core && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"./-".contains(&byte)));
    for others in before.aggregated.iter().chain(&before.custom).map(joined) {
        wanted.remove(&others);
    }
    // Without some of them it would be said not to serve what it serves.
    if wanted.len() > GROUP_VERSIONS_MAX { Err(FetchError::TooManyGroupVersions) } else { Ok(wanted) }
}

async fn get(transport: &Transport, place: Place, path: &str, etag: Option<&HeaderValue>) -> Result<Reply, FetchError> {
    let mut headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(ACCEPTED))]);
    if let Some(etag) = etag {
        headers.insert(IF_NONE_MATCH, etag.clone());
    }
    Ok(transport.get(place, path, headers, DOCUMENT).await?)
}

/// The version that a server says it has; for people only.
pub(super) async fn version(transport: &Transport, place: Place) -> Option<String> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Version {
        git_version: String,
    }
    let reply = transport.get(place, "/version", HeaderMap::new(), VERSION).await.ok()?;
    let version: Version = serde_json::from_slice(&reply.body).ok()?;
    Some(version.git_version.chars().take(VERSION_LEN_MAX).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_nobody_is_routed_by_is_not_counted() {
        let named = |own: usize, others: usize| {
            let own = (0..own).map(|nth| Gvr::new("batch", "v1", &format!("r{nth}")));
            let others = (0..others).map(|nth| Gvr::new(["a.org", "c.org"][nth % 2], "v1", &format!("r{nth}")));
            Named { gvrs: own.chain(others).collect(), left_out: 0 }
        };
        let one = |group: &str| BTreeSet::from([(group.into(), "v1".into())]);
        let before = Before { aggregated: one("a.org"), custom: one("c.org"), ..Before::default() };
        for (own, others, is_less, kept) in
            [(1, GVRS_MAX - 1, false, GVRS_MAX), (1, GVRS_MAX, true, 1), (GVRS_MAX, 2, true, GVRS_MAX), (GVRS_MAX, 0, false, GVRS_MAX)]
        {
            let mut all = named(own, others);
            assert_eq!((limit(&mut all, &before).unwrap(), all.gvrs.len()), (is_less, kept), "{own} {others}");
        }
        assert!(matches!(limit(&mut named(GVRS_MAX + 1, 1), &before), Err(FetchError::TooMany)));
        assert!(matches!(limit(&mut named(1, GVRS_MAX), &Before::default()), Err(FetchError::TooMany)));
    }

    #[test]
    fn group_versions_are_asked_about_all_or_none() {
        let (max, known) = (GROUP_VERSIONS_MAX, BTreeSet::from([("k.org".into(), "v1".into()), ("".into(), "v2".into())]));
        let others = |group: &str| (0..5).map(|nth| (format!("{group}{nth}.org").into(), "v1".into())).collect();
        let before = Before { known, aggregated: others("a"), custom: others("c"), ..Before::default() };
        let listed = |own: usize| {
            let own = (0..own).map(|nth| format!("g{nth}/v1"));
            own.chain((0..5).flat_map(|nth| [format!("a{nth}.org/v1"), format!("c{nth}.org/v1")])).collect::<Vec<_>>()
        };
        for own in [0, 1, max - 1] {
            let wanted = own_group_versions(listed(own), false, &before).unwrap();
            assert!(wanted.len() == own + 1 && wanted.contains("k.org/v1"), "{own}: {}", wanted.len());
        }
        assert!(matches!(own_group_versions(listed(max), false, &before), Err(FetchError::TooManyGroupVersions)));
        assert_eq!(
            own_group_versions(vec!["v1".into(), "../v1".into(), "v 1".into()], true, &before).unwrap(),
            ["v1", "v2"].map(Into::into).into()
        );
    }
}
