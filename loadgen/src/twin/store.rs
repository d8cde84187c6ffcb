//! The objects of a twin, or of several that share them, in memory, with revisions and a bounded log of events for watches.
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
use super::merge::merge;
use super::selector::{Labels, Selector};
use super::status::json;

/// All objects together; a test that stores more has a bug.
const BYTES_MAX: usize = 256 << 20;
/// Events kept for watches that start in the past.
const LOG_LEN_MAX: usize = 1024;
/// The same in bytes, as one object may have megabytes.
const LOG_BYTES_MAX: usize = 64 << 20;

/// A group's resource, whatever the version: objects are stored once.
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
    pub(super) labels: Selector,
}

impl Selection {
    fn covers(&self, key: &Key) -> bool {
        key.resource == self.resource
            && (self.namespace.is_empty() || key.namespace == self.namespace)
            && (self.name.is_empty() || key.name == self.name)
    }

    /// What an event is to somebody who sees nothing but the selection: an object whose labels change comes into it, or leaves it. One that
    /// leaves is seen as it last was in it.
    fn seen(&self, event: &Event) -> Option<Event> {
        if !self.covers(&event.key) {
            return None;
        }
        let before = event.before.as_ref().filter(|old| self.labels.matches(&old.labels));
        let is_in = event.kind != "DELETED" && self.labels.matches(&event.object.labels);
        let (kind, object) = match (before, is_in) {
            (None, true) => ("ADDED", Arc::clone(&event.object)),
            (Some(_), true) => ("MODIFIED", Arc::clone(&event.object)),
            (Some(_), false) if event.kind == "DELETED" => ("DELETED", Arc::clone(&event.object)),
            (Some(old), false) => ("DELETED", Arc::new(old.ended(&event.key, event.revision))),
            (None, false) => return None,
        };
        Some(Event { kind, object, ..event.clone() })
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
    labels: Labels,
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
    /// What it was, if it was there.
    before: Option<Arc<Stored>>,
}

impl Event {
    fn bytes(&self) -> usize {
        self.object.json.len() + self.before.as_ref().map_or(0, |old| old.json.len())
    }
}

/// What an object must still be to be deleted.
#[derive(Debug, Default)]
pub(super) struct Preconditions {
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
}

/// Why a write was refused.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    Exists,
    Missing,
    /// The `resourceVersion` in the body is not the current one.
    Stale,
    /// The object is not what it should be; in the words of kube-apiserver.
    Precondition(String),
    Full,
}

/// The events after the asked revision are no longer all in the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Expired;

#[derive(Debug)]
pub(super) struct Store {
    state: Mutex<State>,
    /// The current revision, for those who wait for the next.
    revision: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Group and plural, by [`ResourceId`].
    resources: Vec<(String, String)>,
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

    /// The id of a resource, which it gets when it is first asked for.
    pub(super) fn resource(&self, group: &str, plural: &str) -> ResourceId {
        let mut state = self.state();
        let resources = &mut state.resources;
        resources.iter().position(|known| (&*known.0, &*known.1) == (group, plural)).unwrap_or_else(|| {
            resources.push((group.into(), plural.into()));
            resources.len() - 1
        })
    }

    pub(super) fn find(&self, key: &Key) -> Option<Arc<Stored>> {
        self.state().objects.get(key).cloned()
    }

    /// The objects of a selection, and the revision they are as of.
    pub(super) fn list(&self, selection: &Selection) -> (u64, Vec<Arc<Stored>>) {
        let state = self.state();
        let range = state.objects.range(selection.range());
        // The range of one namespace runs on into the later ones.
        let covered = range.filter(|(key, object)| selection.covers(key) && selection.labels.matches(&object.labels));
        (state.revision, covered.map(|(_, object)| Arc::clone(object)).collect())
    }

    pub(super) fn create(&self, key: Key, object: Map<String, Value>) -> Result<Arc<Stored>, Refusal> {
        let mut state = self.state();
        if state.objects.contains_key(&key) {
            return Err(Refusal::Exists);
        }
        let stored = state.add(key, object)?;
        self.publish(state);
        Ok(stored)
    }

    pub(super) fn update(&self, key: Key, object: Map<String, Value>) -> Result<Arc<Stored>, Refusal> {
        let mut state = self.state();
        let stored = state.replace(key, object)?;
        self.publish(state);
        Ok(stored)
    }

    /// Merges `patch` into the object (RFC 7396). Where there is none, that is it, if `creates`; whether it was so is the second value.
    pub(super) fn patch(&self, key: Key, patch: Map<String, Value>, creates: bool) -> Result<(Arc<Stored>, bool), Refusal> {
        let mut state = self.state();
        let (stored, is_new) = match state.objects.get(&key) {
            None if creates => (state.add(key, patch)?, true),
            None => return Err(Refusal::Missing),
            Some(old) => {
                let mut object: Map<String, Value> = serde_json::from_slice(&old.json).unwrap_or_default();
                merge(&mut object, patch);
                (state.replace(key, object)?, false)
            }
        };
        self.publish(state);
        Ok((stored, is_new))
    }

    pub(super) fn delete(&self, key: Key, preconditions: &Preconditions) -> Result<Arc<Stored>, Refusal> {
        let mut state = self.state();
        state.objects.get(&key).ok_or(Refusal::Missing)?.meets(preconditions)?;
        let old = state.objects.remove(&key).ok_or(Refusal::Missing)?;
        state.bytes -= old.json.len();
        let last = Arc::new(old.ended(&key, state.revision + 1));
        state.record(key, &last, "DELETED", Some(old));
        self.publish(state);
        Ok(last)
    }

    /// Tells the current revision, and every later one.
    pub(super) fn subscribe(&self) -> watch::Receiver<u64> {
        self.revision.subscribe()
    }

    /// The events of a selection after `revision`, oldest first, and the revision they reach up to, which is the later of the two.
    pub(super) fn events_after(&self, revision: u64, selection: &Selection) -> Result<(u64, Vec<Event>), Expired> {
        let state = self.state();
        let first = state.log.front().map_or(state.revision + 1, |event| event.revision);
        // Anybody may ask for the last revision that a u64 can say.
        if revision.saturating_add(1) < first {
            return Err(Expired);
        }
        let new = state.log.iter().filter(|event| event.revision > revision);
        Ok((state.revision.max(revision), new.filter_map(|event| selection.seen(event)).collect()))
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
    /// A new object.
    fn add(&mut self, key: Key, object: Map<String, Value>) -> Result<Arc<Stored>, Refusal> {
        let (uid, created) = (clock::uuid(), clock::timestamp(clock::now()));
        let stored = Arc::new(Stored::new(&key, object, uid, created, self.revision + 1));
        self.insert(key, &stored, "ADDED")?;
        Ok(stored)
    }

    /// The object in place of the one that is there.
    fn replace(&mut self, key: Key, object: Map<String, Value>) -> Result<Arc<Stored>, Refusal> {
        let old = self.objects.get(&key).ok_or(Refusal::Missing)?;
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
        let stored = Arc::new(Stored::new(&key, object, uid, created, self.revision + 1));
        self.insert(key, &stored, "MODIFIED")?;
        Ok(stored)
    }

    fn insert(&mut self, key: Key, stored: &Arc<Stored>, event: &'static str) -> Result<(), Refusal> {
        let old = self.objects.get(&key);
        let bytes = self.bytes - old.map_or(0, |old| old.json.len()) + stored.json.len();
        if bytes > BYTES_MAX {
            return Err(Refusal::Full);
        }
        let before = old.cloned();
        self.bytes = bytes;
        self.objects.insert(key.clone(), Arc::clone(stored));
        self.record(key, stored, event, before);
        Ok(())
    }

    fn record(&mut self, key: Key, object: &Arc<Stored>, kind: &'static str, before: Option<Arc<Stored>>) {
        let event = Event { kind, revision: object.revision, object: Arc::clone(object), key, before };
        self.revision = event.revision;
        self.log_bytes += event.bytes();
        self.log.push_back(event);
        while self.log.len() > LOG_LEN_MAX || self.log_bytes > LOG_BYTES_MAX {
            let Some(oldest) = self.log.pop_front() else {
                break;
            };
            self.log_bytes -= oldest.bytes();
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
        let labels = labels(&metadata);
        object.insert("metadata".into(), metadata.into());
        Self { json: json(&object), uid, labels, created, revision }
    }

    /// A DELETED event carries the object as it last was, with the revision of its end.
    fn ended(&self, key: &Key, revision: u64) -> Self {
        let object = serde_json::from_slice(&self.json).unwrap_or_default();
        Self::new(key, object, self.uid.clone(), self.created.clone(), revision)
    }

    fn meets(&self, preconditions: &Preconditions) -> Result<(), Refusal> {
        let (uid, version) = (&preconditions.uid, &preconditions.resource_version);
        if let Some(asked) = uid.as_ref().filter(|asked| **asked != self.uid) {
            return Err(Refusal::Precondition(format!(
                "the UID in the precondition ({asked}) does not match the UID in record ({}). \
                 The object might have been deleted and then recreated",
                self.uid
            )));
        }
        if let Some(asked) = version.as_ref().filter(|asked| **asked != self.revision.to_string()) {
            return Err(Refusal::Precondition(format!(
                "the ResourceVersion in the precondition ({asked}) does not match the ResourceVersion in record ({}). \
                 The object might have been modified",
                self.revision
            )));
        }
        Ok(())
    }
}

/// Values that are no text are no labels.
fn labels(metadata: &Map<String, Value>) -> Labels {
    let labels = metadata.get("labels").and_then(Value::as_object).into_iter().flatten();
    labels.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}

#[cfg(test)]
mod tests;
