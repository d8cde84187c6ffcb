//! Lists and watches of the API objects that say who is there: one task per kind, which speaks in whole lists.
//!
//! What always holds: nothing is said before a list is complete; a list that fails says nothing, so what was said before stays; what did
//! not change is not said again (Leases are renewed all the time); after a failure that was reported comes a new list, which says that all
//! is well again (a watch that goes on says nothing until an object changes); of each kind there is a limit, and who was there first stays.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::api::Api;
use kube::runtime::watcher;
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch as signal};

use super::objects::{self, APIService, CustomResourceDefinition, EndpointSlice, Lease, StorageVersion};
use super::round::Report;
use super::status::{Source, SourceState};
use super::transport::{Place, Transport, with_causes};
use crate::inventory::{Event, Exclusion};
use crate::leases;

/// Objects in one answer of a list: CRDs have some 100 KiB each.
const PAGE: u32 = 100;
/// The same of Leases, which many may create: the largest that etcd takes has 9 MB as JSON, and a page of them has to fit `transport::LIST`.
pub(super) const LEASES_PAGE: u32 = 10;
/// Leases of servers that are kept, and Leases of proxies: whoever may create them must not decide about our memory. Four times what the
/// inventory looks at, so that it can choose.
const LEASES_MAX: usize = 4_096;
/// Objects of any other kind that are kept: more than a cluster can have, and few may create them.
const OBJECTS_MAX: usize = 65_536;
/// How long a watch runs before it is made anew.
const WATCH_SECONDS: u32 = 240;
/// The first and the longest pause after a failure.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(5));
/// Failures that are further apart have nothing to do with each other. Longer than the longest pause.
const FAILURES_APART: Duration = Duration::from_secs(10);
/// The longest text of an error that is kept.
const ERROR_LEN_MAX: usize = 300;
/// How often an API that is not there is looked for.
const ABSENT_PAUSE: Duration = Duration::from_secs(10);
/// A restarting server denies everything for some 0.2 s; only what stays denied is.
const DENIED_FOR: Duration = Duration::from_secs(2);

/// What a watch needs beside its kind.
#[derive(Clone)]
pub(super) struct Post {
    pub(super) transport: Transport,
    /// The server that is watched.
    pub(super) place: signal::Receiver<Place>,
    pub(super) reports: mpsc::Sender<Report>,
}

/// One kind of object.
struct Kind<K, T> {
    source: Source,
    api: fn(kube::Client) -> Api<K>,
    selector: Option<String>,
    /// Objects in one answer of a list.
    page: u32,
    /// Objects that are kept.
    max: usize,
    /// What an object says, if it is meant.
    read: fn(&K) -> Option<T>,
    /// What all of them say.
    say: fn(Vec<T>) -> Event,
    denied: Option<Event>,
}

/// All watches, as futures that never end while somebody listens.
pub(super) fn all(post: &Post) -> Vec<futures::future::BoxFuture<'static, ()>> {
    let labelled = |(key, value): (&str, &str)| Some(format!("{key}={value}"));
    let leases = Kind::<Lease, _> {
        source: Source::Leases,
        api: |client| Api::namespaced(client, leases::NAMESPACE),
        selector: labelled(leases::IDENTITY_LABEL),
        page: LEASES_PAGE,
        max: LEASES_MAX,
        read: objects::identity,
        say: Event::Leases,
        denied: None,
    };
    let proxies = Kind::<Lease, _> {
        source: Source::Proxies,
        api: |client| Api::namespaced(client, leases::NAMESPACE),
        selector: labelled(leases::PROXY_LABEL),
        page: LEASES_PAGE,
        max: LEASES_MAX,
        read: objects::proxy,
        say: Event::Proxies,
        denied: None,
    };
    let custom = Kind::<CustomResourceDefinition, _> {
        source: Source::CustomResources,
        api: Api::all,
        selector: None,
        page: PAGE,
        max: OBJECTS_MAX,
        read: objects::custom,
        say: |listed| Event::Excluded(Exclusion::Custom, listed.concat()),
        denied: Some(Event::ExcludedDenied(Exclusion::Custom)),
    };
    let aggregated = Kind::<APIService, _> {
        source: Source::ApiServices,
        api: Api::all,
        selector: None,
        page: PAGE,
        max: OBJECTS_MAX,
        read: objects::aggregated,
        say: |listed| Event::Excluded(Exclusion::Aggregated, listed),
        denied: Some(Event::ExcludedDenied(Exclusion::Aggregated)),
    };
    let endpoints = Kind::<EndpointSlice, _> {
        source: Source::Endpoints,
        api: |client| Api::namespaced(client, "default"),
        selector: labelled(("kubernetes.io/service-name", "kubernetes")),
        page: PAGE,
        max: OBJECTS_MAX,
        read: objects::endpoints,
        say: |listed| Event::Endpoints(listed.concat()),
        denied: None,
    };
    let storage = Kind::<StorageVersion, _> {
        source: Source::StorageVersions,
        api: Api::all,
        selector: None,
        page: PAGE,
        max: OBJECTS_MAX,
        read: objects::storage,
        say: |listed| Event::StorageVersions(objects::storages(listed)),
        denied: None,
    };
    vec![
        Box::pin(follow(leases, post.clone())),
        Box::pin(follow(proxies, post.clone())),
        Box::pin(follow(custom, post.clone())),
        Box::pin(follow(aggregated, post.clone())),
        Box::pin(follow(endpoints, post.clone())),
        Box::pin(follow(storage, post.clone())),
    ]
}

/// What a watch knows: `objects.len() <= max`.
struct Store<T> {
    max: usize,
    /// What is being listed.
    staged: Option<BTreeMap<String, T>>,
    /// What was said last; nothing before the first list is complete.
    objects: Option<BTreeMap<String, T>>,
    /// Since the last list began: did some find no room, and was that said?
    is_over: bool,
    is_over_said: bool,
}

impl<T: Clone + PartialEq> Store<T> {
    fn new(max: usize) -> Self {
        Self { max, staged: None, objects: None, is_over: false, is_over_said: false }
    }

    /// Takes an event in; what to say, if there is something new.
    fn take<K: kube::Resource>(&mut self, event: watcher::Event<K>, read: fn(&K) -> Option<T>) -> Option<Vec<T>> {
        let name = |object: &K| object.meta().name.clone().unwrap_or_default();
        let is_new = match event {
            watcher::Event::Init => {
                self.staged = Some(BTreeMap::new());
                (self.is_over, self.is_over_said) = (false, false);
                false
            }
            watcher::Event::InitApply(object) => {
                if let Some(read) = read(&object) {
                    self.stage(name(&object), read);
                }
                false
            }
            watcher::Event::InitDone => self.end_list(),
            watcher::Event::Apply(object) => match read(&object) {
                Some(read) => self.put(name(&object), read),
                None => self.remove(&name(&object)),
            },
            watcher::Event::Delete(object) => self.remove(&name(&object)),
        };
        self.objects.as_ref().filter(|_| is_new && self.staged.is_none()).map(|objects| objects.values().cloned().collect())
    }

    /// Did an object find no room for the first time since the last list began?
    fn is_over_now(&mut self) -> bool {
        self.is_over && !std::mem::replace(&mut self.is_over_said, true)
    }

    /// Those that were there before have room in any case: nobody drives them out with names that are listed earlier.
    fn stage(&mut self, name: String, object: T) {
        let Some(staged) = &mut self.staged else { return };
        let was_there = self.objects.as_ref().is_some_and(|objects| objects.contains_key(&name));
        if staged.len() < self.max || was_there {
            staged.insert(name, object);
        } else {
            self.is_over = true;
        }
    }

    /// A list is complete; does it say something new?
    fn end_list(&mut self) -> bool {
        let Some(mut listed) = self.staged.take() else { return false };
        let mut surplus = listed.len().saturating_sub(self.max);
        self.is_over |= surplus > 0;
        listed.retain(|name, _| {
            let goes = surplus > 0 && self.objects.as_ref().is_none_or(|objects| !objects.contains_key(name));
            surplus -= usize::from(goes);
            !goes
        });
        let listed = Some(listed);
        let is_new = self.objects != listed;
        self.objects = listed;
        is_new
    }

    /// Is it new?
    fn put(&mut self, name: String, object: T) -> bool {
        let Some(objects) = &mut self.objects else { return false };
        if objects.len() >= self.max && !objects.contains_key(&name) {
            self.is_over = true;
            return false;
        }
        let is_same = objects.get(&name) == Some(&object);
        if !is_same {
            objects.insert(name, object);
        }
        !is_same
    }

    /// Was it there?
    fn remove(&mut self, name: &str) -> bool {
        self.objects.as_mut().is_some_and(|objects| objects.remove(name).is_some())
    }
}

async fn follow<K, T>(kind: Kind<K, T>, mut post: Post)
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    T: Clone + PartialEq + Send + 'static,
{
    let mut store = Store::new(kind.max);
    let mut failures = Failures::default();
    let mut watched = None;
    loop {
        let place = *post.place.borrow_and_update();
        if watched.replace(place) != Some(place) {
            failures.count = 0;
        }
        let config = watcher::Config { label_selector: kind.selector.clone(), ..watcher::Config::default() };
        let config = config.page_size(kind.page).timeout(WATCH_SECONDS);
        let mut events = std::pin::pin!(watcher::watcher((kind.api)(post.transport.kube(place)), config));
        loop {
            let item = tokio::select! {
                changed = post.place.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
                item = events.next() => item,
            };
            let (pause, goes_on) = match item {
                None => break,
                Some(Ok(event)) => {
                    let said = store.take(event, kind.read);
                    if store.is_over_now() {
                        post.report(Report::Overfull(kind.source, kind.max)).await;
                    }
                    if store.staged.is_none() && failures.end() {
                        post.report(Report::Source(kind.source, SourceState::Synced)).await;
                    }
                    if let Some(all) = said {
                        post.report(Report::Said((kind.say)(all))).await;
                    }
                    continue;
                }
                Some(Err(error)) => failures.take(&kind, &error, &post).await,
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => if !goes_on {
                    break;
                },
                changed = post.place.changed() => match changed {
                    Ok(()) => break,
                    Err(_) => return,
                },
            }
        }
    }
}

impl Post {
    /// Nobody listens only while everything ends.
    async fn report(&self, report: Report) {
        drop(self.reports.send(report).await);
    }
}

/// Failures in a row.
#[derive(Default)]
struct Failures {
    /// Since the last pause of [`FAILURES_APART`]: lists that succeed do not end the row, or a watch that always fails would be listed anew
    /// without a pause.
    count: u32,
    last: Option<Instant>,
    is_synced: bool,
    denied: Option<Instant>,
}

impl Failures {
    /// All is well; was it not before?
    fn end(&mut self) -> bool {
        self.denied = None;
        !std::mem::replace(&mut self.is_synced, true)
    }

    /// How long to wait, and whether the watch goes on then.
    async fn take<K, T>(&mut self, kind: &Kind<K, T>, error: &watcher::Error, post: &Post) -> (Duration, bool) {
        let state = state_of(error);
        let is_denied = matches!(state, SourceState::Denied(_));
        let is_absent = state == SourceState::Absent;
        self.denied = if is_denied { self.denied.or_else(|| Some(Instant::now())) } else { None };
        // A watch that is too old is made anew soon, and is no failure.
        if state == SourceState::Synced {
            return (PAUSE.0, false);
        }
        if self.last.replace(Instant::now()).is_none_or(|last| last.elapsed() >= FAILURES_APART) {
            self.count = 0;
        }
        // Every watch breaks off once in a while, and goes on.
        let goes_on = self.count == 0 && is_break(error);
        if !goes_on {
            self.is_synced = false;
            post.report(Report::Source(kind.source, state)).await;
        }
        if let (Some(since), Some(event)) = (self.denied, &kind.denied)
            && since.elapsed() >= DENIED_FOR
        {
            post.report(Report::Said(event.clone())).await;
        }
        self.count = (self.count + 1).min(16);
        (if is_absent { ABSENT_PAUSE } else { (PAUSE.0 * 2u32.pow(self.count - 1)).min(PAUSE.1) }, goes_on)
    }
}

/// Did a watch break off, with nothing lost? What an event that cannot be read said is lost: only a list tells it.
fn is_break(error: &watcher::Error) -> bool {
    matches!(error, watcher::Error::WatchFailed(cause) if !matches!(cause, kube::Error::SerdeError(_)))
}

fn state_of(error: &watcher::Error) -> SourceState {
    let code = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status)) | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => {
            status.code
        }
        watcher::Error::WatchError(status) => status.code,
        _ => 0,
    };
    let text = || with_causes(error).chars().take(ERROR_LEN_MAX).collect::<String>();
    match code {
        401 | 403 => SourceState::Denied(text()),
        404 => SourceState::Absent,
        410 => SourceState::Synced,
        _ => SourceState::Failing(text()),
    }
}

#[cfg(test)]
mod tests {
    use watcher::Event::{Apply, Delete, Init, InitApply, InitDone};

    use super::*;

    /// A Lease that says only this.
    fn lease(name: &str, says: &str) -> Lease {
        serde_json::from_value(serde_json::json!({"metadata": {"name": name, "resourceVersion": says}})).unwrap()
    }

    /// A store with room for two, and all that it says.
    struct Case(Store<String>);

    impl Case {
        fn take(&mut self, event: watcher::Event<Lease>) -> Option<String> {
            self.0.take(event, |lease| kube::Resource::meta(lease).resource_version.clone()).map(|all| all.join(" "))
        }

        fn list(&mut self, named: &[&str]) -> Option<String> {
            assert_eq!(self.take(Init), None);
            for name in named {
                assert_eq!(self.take(InitApply(lease(name, name))), None);
            }
            self.take(InitDone)
        }
    }

    #[test]
    fn what_did_not_change_is_not_said_again() {
        let mut case = Case(Store::new(2));
        assert_eq!(case.list(&[]).as_deref(), Some(""), "the first list in any case");
        assert_eq!(case.take(Apply(lease("a", "a"))).as_deref(), Some("a"));
        assert_eq!(case.take(Apply(lease("a", "a"))), None);
        assert_eq!(case.list(&["a"]), None);
        assert_eq!(case.take(Apply(lease("a", "b"))).as_deref(), Some("b"));
        assert_eq!(case.take(Delete(lease("x", "x"))), None);
        assert_eq!(case.take(Delete(lease("a", "b"))).as_deref(), Some(""));
    }

    #[test]
    fn beyond_the_limit_those_stay_that_were_there() {
        let mut case = Case(Store::new(2));
        assert_eq!(case.list(&["m", "n"]).as_deref(), Some("m n"));
        assert!(!case.0.is_over_now());
        assert_eq!(case.take(Apply(lease("a", "a"))), None, "no room");
        assert!(case.0.is_over_now());
        assert_eq!(case.take(Apply(lease("b", "b"))), None);
        assert!(!case.0.is_over_now(), "once for each list");
        assert_eq!(case.take(Apply(lease("n", "o"))).as_deref(), Some("m o"));
        assert_eq!(case.list(&["a", "b", "c", "m", "n"]).as_deref(), Some("m n"), "earlier names drive nobody out");
        assert!(case.0.is_over_now());
        assert_eq!(case.list(&["a", "b", "n"]).as_deref(), Some("b n"), "there is room for one");
        assert!(case.0.is_over_now());
        assert_eq!(case.take(Delete(lease("b", "b"))).as_deref(), Some("n"));
        assert_eq!(case.take(Apply(lease("a", "a"))).as_deref(), Some("a n"));
    }

    #[test]
    fn after_an_event_that_cannot_be_read_all_is_listed_anew() {
        let unreadable = serde_json::from_str::<Lease>("[").unwrap_err();
        assert!(!is_break(&watcher::Error::WatchFailed(kube::Error::SerdeError(unreadable))));
        let broken = std::io::ErrorKind::ConnectionReset.into();
        assert!(is_break(&watcher::Error::WatchFailed(kube::Error::ReadEvents(broken))));
    }
}
