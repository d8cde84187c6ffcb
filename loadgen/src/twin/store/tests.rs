//! The store alone.

use super::*;

fn all() -> Selection {
    Selection { resource: 0, namespace: String::new(), name: String::new(), labels: Selector::default() }
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
    assert_eq!(store.delete(key.clone(), &Preconditions::default()).unwrap_err(), Refusal::Missing);
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
    store.delete(key.clone(), &Preconditions::default()).unwrap();
    let (reached, events) = store.events_after(2, &all()).unwrap();
    let kinds: Vec<_> = events.iter().map(|event| event.kind).collect();
    assert_eq!((reached, kinds), (4, vec!["MODIFIED", "DELETED"]));
    for _ in 0..LOG_LEN_MAX {
        store.create(key.clone(), Map::new()).unwrap();
        store.delete(key.clone(), &Preconditions::default()).unwrap();
    }
    assert_eq!(store.events_after(2, &all()).unwrap_err(), Expired);
}

/// As in kube-apiserver, which waits for it, however far away it is.
#[test]
fn a_revision_of_the_future_is_not_gone_back_from() {
    let store = Store::new();
    let key = Key::new(0, "a", "x");
    store.create(key.clone(), Map::new()).unwrap();
    for future in [4, u64::MAX - 1, u64::MAX] {
        let (reached, events) = store.events_after(future, &all()).unwrap();
        assert_eq!((reached, events.len()), (future, 0));
    }
    for value in 3..6 {
        store.update(key.clone(), Map::from_iter([("data".into(), value.into())])).unwrap();
    }
    let (reached, events) = store.events_after(4, &all()).unwrap();
    assert_eq!((reached, events.iter().map(|event| event.revision).collect::<Vec<_>>()), (5, vec![5]));
}

fn labelled(value: &str) -> Map<String, Value> {
    serde_json::from_value(serde_json::json!({"metadata": {"labels": {"a": value}}})).unwrap()
}

#[test]
fn a_selector_sees_objects_come_and_go_with_their_labels() {
    let store = Store::new();
    let key = Key::new(0, "a", "x");
    store.create(key.clone(), labelled("no")).unwrap();
    store.update(key.clone(), labelled("yes")).unwrap();
    store.patch(key.clone(), Map::from_iter([("data".into(), 1.into())]), false).unwrap();
    let selection = Selection { labels: Selector::parse("a=yes").unwrap(), ..all() };
    assert_eq!(store.list(&selection).1.len(), 1);
    store.update(key.clone(), labelled("no")).unwrap();
    assert_eq!(store.list(&selection).1.len(), 0);
    store.delete(key, &Preconditions::default()).unwrap();
    let kinds = |selection: &Selection| store.events_after(1, selection).unwrap().1.iter().map(|event| event.kind).collect::<Vec<_>>();
    assert_eq!(kinds(&selection), ["ADDED", "MODIFIED", "DELETED"]);
    assert_eq!(kinds(&all()), ["ADDED", "MODIFIED", "MODIFIED", "MODIFIED", "DELETED"]);
}

/// As kube-apiserver's watch cache has it.
#[test]
fn an_object_that_leaves_a_selector_ends_as_it_last_was_in_it() {
    let store = Store::new();
    let key = Key::new(0, "a", "x");
    store.create(key.clone(), labelled("yes")).unwrap();
    let left = store.update(key.clone(), labelled("no")).unwrap();
    let selection = Selection { labels: Selector::parse("a=yes").unwrap(), ..all() };
    let (_, events) = store.events_after(left.revision - 1, &selection).unwrap();
    let [event] = &events[..] else { panic!("{events:?}") };
    let object: Value = serde_json::from_slice(&event.object.json).unwrap();
    assert_eq!((event.kind, &object["metadata"]["labels"]["a"]), ("DELETED", &"yes".into()));
    assert_eq!(object["metadata"]["resourceVersion"], left.revision.to_string());
    store.delete(key, &Preconditions::default()).unwrap();
    let (_, events) = store.events_after(left.revision, &all()).unwrap();
    assert_eq!((events[0].kind, &*events[0].object.labels["a"]), ("DELETED", "no"));
}

#[test]
fn the_log_holds_no_more_bytes_than_it_may() {
    let store = Store::new();
    let key = Key::new(0, "a", "x");
    store.create(key.clone(), Map::new()).unwrap();
    for value in ["a", "b", "c", "d"] {
        store.update(key.clone(), Map::from_iter([("data".into(), value.repeat(LOG_BYTES_MAX / 4).into())])).unwrap();
        let state = store.state();
        let objects = state.log.iter().flat_map(|event| event.before.iter().chain([&event.object]));
        let held: usize = objects.map(|object| object.json.len()).sum();
        assert!(state.log_bytes == held && held <= LOG_BYTES_MAX, "{} {held}", state.log_bytes);
    }
}

#[test]
fn a_patch_creates_only_where_it_may() {
    let store = Store::new();
    let key = Key::new(0, "a", "x");
    assert_eq!(store.patch(key.clone(), labelled("1"), false).unwrap_err(), Refusal::Missing);
    assert!(store.patch(key.clone(), labelled("1"), true).unwrap().1);
    let (patched, is_new) = store.patch(key.clone(), labelled("2"), true).unwrap();
    assert!(!is_new && patched.labels["a"] == "2");
    let stale = serde_json::from_str(r#"{"metadata":{"resourceVersion":"999"}}"#).unwrap();
    assert_eq!(store.patch(key, stale, true).unwrap_err(), Refusal::Stale);
}

#[test]
fn preconditions_protect_what_changed() {
    let store = Store::new();
    let key = Key::new(0, "a", "x");
    let made = store.create(key.clone(), Map::new()).unwrap();
    let version = |version: &str| Preconditions { resource_version: Some(version.into()), ..Preconditions::default() };
    let refused = store.delete(key.clone(), &version("1")).unwrap_err();
    assert!(matches!(&refused, Refusal::Precondition(why) if why.contains("(1) does not match the ResourceVersion in record (2)")));
    let other = Preconditions { uid: Some("x".into()), ..Preconditions::default() };
    assert!(matches!(store.delete(key.clone(), &other), Err(Refusal::Precondition(_))));
    store.delete(key, &Preconditions { uid: Some(made.uid.clone()), ..version("2") }).unwrap();
}

#[test]
fn a_resource_is_the_same_to_everybody() {
    let store = Store::new();
    let (jobs, pods) = (store.resource("batch", "jobs"), store.resource("", "pods"));
    assert_ne!(jobs, pods);
    assert_eq!((store.resource("batch", "jobs"), store.resource("", "pods")), (jobs, pods));
}
