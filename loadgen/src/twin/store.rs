//! The objects of a twin, in memory, with revisions and a bounded log of events for watches.
//!
//! Always: every write takes the next revision, which becomes the object's `resourceVersion`; the log holds the last
//! events in revision order without a gap, so a watch either sees every event after its position or is told that it
//! came too late. Bytes held <= [`BYTES_MAX`] for objects plus [`LOG_BYTES_MAX`] for the log.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use serde_json::{Map, Value};
use tokio::sync::watch;

use super::clock;
use super::status::json;

/// All objects together; a test that stores more has a bug.
const BYTES_MAX: usize = 256 << 20;
/// Events kept for watches that start in the past.
const LOG_LEN_MAX: usize = 1024;
/// The same in bytes, as one object may have megabytes.
const LOG_BYTES_MAX: usize = 64 << 20;

/// A resource's place in the table of a twin.
pub(super) type ResourceId = usize;

/// Where an object is; ordered so that a collection is a range.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) resource: ResourceId,
    /// Empty for the whole cluster.
    pub(super) namespace: String,
    pub(super) name: String,
}

impl Key {
    pub(super) fn new(resource: ResourceId, namespace: &str, name: &str) -> Self {
        Self { resource, namespace: namespace.into(), name: name.into() }
    }
}

/// What a list or a watch is about: one resource, in one namespace or, when that is empty, in all of them.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    pub(super) resource: ResourceId,
    pub(super) namespace: String,
    /// Only the object of this name, unless empty.
    pub(super) name: String,
}

impl Selection {
    fn covers(&self, key: &Key) -> bool {
        key.resource == self.resource
            && (self.namespace.is_empty() || key.namespace == self.namespace)
            && (self.name.is_empty() || key.name == self.name)
    }

    fn range(&self) -> Range<Key> {
        Key::new(self.resource, &self.namespace, "")..Key::new(self.resource + 1, "", "")
    }
}

/// One revision of an object, as JSON without `kind` and `apiVersion`.
#[derive(Debug)]
pub(super) struct Stored {
    pub(super) json: Bytes,
    pub(super) uid: String,
    created: String,
    revision: u64,
}

/// What happened to an object.
#[derive(Debug, Clone)]
pub(super) struct Event {
    /// `ADDED`, `MODIFIED` or `DELETED`.
    pub(super) kind: &'static str,
    pub(super) revision: u64,
    pub(super) object: Arc<Stored>,
    key: Key,
}

/// Why a write was refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Exists,
    Missing,
    /// The `resourceVersion` in the body is not the current one.
    Stale,
    Full,
}

/// The events after the asked revision are no longer all in the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expired;

pub(super) struct Store {
    state: Mutex<State>,
    /// The current revision, for those who wait for the next.
    revision: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<Key, Arc<Stored>>,
    bytes: usize,
    log: VecDeque<Event>,
    log_bytes: usize,
    revision: u64,
}

impl Store {
    pub(super) fn new() -> Self {
        // Revision 0 means "any" in a list or watch, so the first state of all is 1.
        let state = State { revision: 1, ..State::default() };
        Self { state: Mutex::new(state), revision: watch::Sender::new(1) }
    }

    pub(super) fn find(&self, key: &Key) -> Option<Arc<Stored>> {
        self.state().objects.get(key).cloned()
    }

    /// The objects of a selection, and the revision they are as of.
    pub(super) fn list(&self, selection: &Selection) -> (u64, Vec<Arc<Stored>>) {
        let state = self.state();
        let range = state.objects.range(selection.range());
        // The range of one namespace runs on into the later ones.
        let covered = range.filter(|(key, _)| selection.covers(key));
        (state.revision, covered.map(|(_, object)| Arc::clone(object)).collect())
    }

    pub(super) fn create(&self, key: Key, object: Map<String, Value>) -> Result<Arc<Stored>, Refusal> {
        let mut state = self.state();
        if state.objects.contains_key(&key) {
            return Err(Refusal::Exists);
        }
        let (uid, created) = (clock::uuid(), clock::timestamp(clock::now()));
        let stored = Arc::new(Stored::new(&key, object, uid, created, state.revision + 1));
        state.insert(key, &stored, "ADDED")?;
        self.publish(state);
        Ok(stored)
    }

    pub(super) fn update(&self, key: Key, object: Map<String, Value>) -> Result<Arc<Stored>, Refusal> {
        let mut state = self.state();
        let old = state.objects.get(&key).ok_or(Refusal::Missing)?;
        let asked = object.get("metadata").and_then(|metadata| metadata.get("resourceVersion")).and_then(Value::as_str);
        if asked.is_some_and(|asked| !asked.is_empty() && asked != old.revision.to_string()) {
            return Err(Refusal::Stale);
        }
        let (uid, created) = (old.uid.clone(), old.created.clone());
        let same = Stored::new(&key, object.clone(), uid.clone(), created.clone(), old.revision);
        if same.json == old.json {
            // What changes nothing is no event.
            return Ok(Arc::clone(old));
        }
        let stored = Arc::new(Stored::new(&key, object, uid, created, state.revision + 1));
        state.insert(key, &stored, "MODIFIED")?;
        self.publish(state);
        Ok(stored)
    }

    pub(super) fn delete(&self, key: Key) -> Result<Arc<Stored>, Refusal> {
        let mut state = self.state();
        let old = state.objects.remove(&key).ok_or(Refusal::Missing)?;
        state.bytes -= old.json.len();
        // A DELETED event carries the object with the revision of its end.
        let object = serde_json::from_slice(&old.json).unwrap_or_default();
        let revision = state.revision + 1;
        let last = Arc::new(Stored::new(&key, object, old.uid.clone(), old.created.clone(), revision));
        state.record(key, &last, "DELETED");
        self.publish(state);
        Ok(last)
    }

    /// Tells the current revision, and every later one.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// The events of a selection after `revision`, oldest first, and the revision they reach up to.
    pub(super) fn events_after(&self, revision: u64, selection: &Selection) -> Result<(u64, Vec<Event>), Expired> {
        let state = self.state();
        let first = state.log.front().map_or(state.revision + 1, |event| event.revision);
        if revision + 1 < first {
            return Err(Expired);
        }
        let new = state.log.iter().filter(|event| event.revision > revision && selection.covers(&event.key));
        Ok((state.revision, new.cloned().collect()))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No code that holds the lock panics half way through a change.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn publish(&self, state: MutexGuard<'_, State>) {
        self.revision.send_replace(state.revision);
    }
}

impl State {
    fn insert(&mut self, key: Key, stored: &Arc<Stored>, event: &'static str) -> Result<(), Refusal> {
        let freed = self.objects.get(&key).map_or(0, |old| old.json.len());
        let bytes = self.bytes - freed + stored.json.len();
        if bytes > BYTES_MAX {
            return Err(Refusal::Full);
        }
        self.bytes = bytes;
        self.objects.insert(key.clone(), Arc::clone(stored));
        self.record(key, stored, event);
        Ok(())
    }

    fn record(&mut self, key: Key, object: &Arc<Stored>, kind: &'static str) {
        self.revision = object.revision;
        self.log_bytes += object.json.len();
        self.log.push_back(Event { kind, revision: object.revision, object: Arc::clone(object), key });
        while self.log.len() > LOG_LEN_MAX || self.log_bytes > LOG_BYTES_MAX {
            let Some(oldest) = self.log.pop_front() else {
                break;
            };
            self.log_bytes -= oldest.object.json.len();
        }
    }
}

impl Stored {
    /// Stamps the metadata that only the server may set.
    fn new(key: &Key, mut object: Map<String, Value>, uid: String, created: String, revision: u64) -> Self {
        object.remove("kind");
        object.remove("apiVersion");
        let mut metadata = match object.remove("metadata") {
            Some(Value::Object(metadata)) => metadata,
            _ => Map::new(),
        };
        metadata.insert("name".into(), key.name.clone().into());
        if !key.namespace.is_empty() {
            metadata.insert("namespace".into(), key.namespace.clone().into());
        }
        metadata.insert("uid".into(), uid.clone().into());
        metadata.insert("creationTimestamp".into(), created.clone().into());
        metadata.insert("resourceVersion".into(), revision.to_string().into());
        object.insert("metadata".into(), metadata.into());
        Self { json: json(&object), uid, created, revision }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Selection {
        Selection { resource: 0, namespace: String::new(), name: String::new() }
    }

    #[test]
    fn lists_keep_to_their_resource_and_namespace() {
        let store = Store::new();
        for (resource, namespace, name) in [(0, "a", "x"), (0, "b", "x"), (0, "b", "y"), (1, "b", "x")] {
            store.create(Key::new(resource, namespace, name), Map::new()).unwrap();
        }
        assert_eq!(store.list(&all()).1.len(), 3);
        assert_eq!(store.list(&Selection { namespace: "a".into(), ..all() }).1.len(), 1);
        assert_eq!(store.list(&Selection { namespace: "b".into(), name: "y".into(), ..all() }).1.len(), 1);
        assert_eq!(store.list(&Selection { resource: 1, ..all() }).1.len(), 1);
    }

    #[test]
    fn writes_are_refused_for_the_right_reason() {
        let store = Store::new();
        let key = Key::new(0, "a", "x");
        assert_eq!(store.update(key.clone(), Map::new()).unwrap_err(), Refusal::Missing);
        assert_eq!(store.delete(key.clone()).unwrap_err(), Refusal::Missing);
        store.create(key.clone(), Map::new()).unwrap();
        assert_eq!(store.create(key.clone(), Map::new()).unwrap_err(), Refusal::Exists);
        let stale = serde_json::from_str(r#"{"metadata":{"resourceVersion":"999"}}"#).unwrap();
        assert_eq!(store.update(key.clone(), stale).unwrap_err(), Refusal::Stale);
        let current = serde_json::from_str(r#"{"metadata":{"resourceVersion":"2"}}"#).unwrap();
        store.update(key, current).unwrap();
    }

    #[test]
    fn an_update_that_changes_nothing_is_no_event() {
        let store = Store::new();
        let key = Key::new(0, "a", "x");
        let created = store.create(key.clone(), Map::new()).unwrap();
        let same = store.update(key, Map::new()).unwrap();
        assert_eq!((same.json.clone(), *store.subscribe().borrow()), (created.json.clone(), 2));
    }

    #[test]
    fn events_come_in_order_and_expire() {
        let store = Store::new();
        let key = Key::new(0, "a", "x");
        store.create(key.clone(), Map::new()).unwrap();
        store.update(key.clone(), Map::from_iter([("data".into(), Value::Null)])).unwrap();
        store.delete(key.clone()).unwrap();
        let (reached, events) = store.events_after(2, &all()).unwrap();
        let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
        assert_eq!((reached, kinds), (4, vec!["MODIFIED", "DELETED"]));
        for _ in 0..LOG_LEN_MAX {
            store.create(key.clone(), Map::new()).unwrap();
            store.delete(key.clone()).unwrap();
        }
        assert_eq!(store.events_after(2, &all()).unwrap_err(), Expired);
    }
}
