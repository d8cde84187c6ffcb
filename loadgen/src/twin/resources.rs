//! The verbs on stored objects.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::body::read_all;
use crate::error::Error;

use super::exchange::{Answer, Entry, Exchange};
use super::path::{Target, query_flag, query_value};
use super::selector::Selector;
use super::status::{self, Cause, Details};
use super::store::{Key, Preconditions, Refusal, ResourceId, Selection, Stored};
use super::{clock, watches};

/// What a patch may be: a merge, or an apply, which creates. As YAML only what is JSON as well is read.
const MERGE_PATCH: &str = "application/merge-patch+json";
const APPLY_PATCH: &str = "application/apply-patch+yaml";

/// Answers a request for something inside a group and version.
pub(super) async fn serve(mut exchange: Exchange, target: Target) -> Result<(), Error> {
    let served = Arc::clone(&exchange.served);
    let Some((id, entry)) = served.lookup(&target) else {
        let known = served.knows_group(&target.group);
        let answer = if known { status::unknown_resource() } else { Answer::page_not_found() };
        return exchange.answer(answer).await;
    };
    if !has_route(entry, &target) {
        return exchange.answer(status::unknown_resource()).await;
    }
    let query = exchange.request.uri.query().unwrap_or_default().to_owned();
    let reading = matches!(exchange.request.method, Method::GET | Method::HEAD);
    let Some(labels) = Selector::parse(&query_value(&query, "labelSelector").unwrap_or_default()) else {
        return exchange.answer(status::bad_request("unable to parse requirement: the twin has no sets")).await;
    };
    if reading && query_flag(&query, "watch") {
        let selection = Selection { resource: id, namespace: target.namespace, name: target.name, labels };
        return watches::stream(exchange, entry, selection, &query).await;
    }
    let answer = match (exchange.request.method.clone(), target.name.is_empty()) {
        (Method::GET | Method::HEAD, true) => list(&exchange, id, entry, target, labels),
        (Method::GET | Method::HEAD, false) => find(&exchange, id, entry, &target),
        (Method::POST, true) if entry.resource.namespaced != target.namespace.is_empty() => {
            match read_object(&mut exchange, entry, &["application/json"]).await? {
                Ok(object) => create(&exchange, id, entry, &target, object),
                Err(refused) => refused,
            }
        }
        (Method::PUT, false) => match read_object(&mut exchange, entry, &["application/json"]).await? {
            Ok(object) => update(&exchange, id, entry, &target, object),
            Err(refused) => refused,
        },
        (Method::PATCH, false) => match read_object(&mut exchange, entry, &[APPLY_PATCH, MERGE_PATCH]).await? {
            Ok(object) => patch(&exchange, id, entry, &target, object),
            Err(refused) => refused,
        },
        (Method::DELETE, false) => match read_preconditions(&mut exchange).await? {
            Ok(preconditions) => delete(&exchange, id, entry, &target, &preconditions),
            Err(refused) => refused,
        },
        _ => status::method_not_allowed(),
    };
    exchange.answer(answer).await
}

/// An object as it is sent on its own: with kind and apiVersion, which lists leave out.
pub(super) fn typed(entry: &Entry, object: &Stored) -> Vec<u8> {
    let head = format!(r#"{{"kind":"{}","apiVersion":"{}","#, entry.resource.kind, entry.api_version);
    // The stored object is never `{}`: it has metadata, so what follows its brace is a field.
    [head.as_bytes(), object.json.get(1..).unwrap_or_default()].concat()
}

/// Whether kube-apiserver would have a route of this shape: no subresources, and a namespace where names need one.
fn has_route(entry: &Entry, target: &Target) -> bool {
    let place =
        if entry.resource.namespaced { target.name.is_empty() || !target.namespace.is_empty() } else { target.namespace.is_empty() };
    place && target.subresource.is_empty()
}

fn list(exchange: &Exchange, resource: ResourceId, entry: &Entry, target: Target, labels: Selector) -> Answer {
    let selection = Selection { resource, namespace: target.namespace, name: String::new(), labels };
    let (revision, objects) = exchange.served.store.list(&selection);
    let mut body = format!(
        r#"{{"kind":"{}List","apiVersion":"{}","metadata":{{"resourceVersion":"{revision}"}},"items":["#,
        entry.resource.kind, entry.api_version
    )
    .into_bytes();
    for (index, object) in objects.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(&object.json);
    }
    body.extend_from_slice(b"]}\n");
    Answer::json(StatusCode::OK, body.into())
}

fn find(exchange: &Exchange, id: ResourceId, entry: &Entry, target: &Target) -> Answer {
    let key = Key::new(id, &target.namespace, &target.name);
    match exchange.served.store.find(&key) {
        Some(object) => one(StatusCode::OK, entry, &object),
        None => status::not_found(details(entry, &target.name)),
    }
}

fn create(exchange: &Exchange, id: ResourceId, entry: &Entry, target: &Target, object: Map<String, Value>) -> Answer {
    let field = |name| metadata(&object, name);
    let (name, is_generated) = match (field("name"), field("generateName")) {
        ("", "") => {
            let message = "Required value: name or generateName is required";
            let cause = Cause { reason: "FieldValueRequired", message, field: "metadata.name" };
            // There the kind is the kind.
            return status::invalid(Details { kind: &entry.resource.kind, ..details(entry, "") }, cause);
        }
        ("", prefix) => (prefix.to_owned(), true),
        (name, _) => (name.to_owned(), false),
    };
    let namespace = field("namespace");
    if !namespace.is_empty() && namespace != target.namespace {
        return status::bad_request("the namespace of the provided object does not match the namespace sent on the request");
    }
    let create = |name: &str, object| exchange.served.store.create(Key::new(id, &target.namespace, name), object);
    let (name, created) = if is_generated {
        create_generated(&name, |name| create(name, object.clone()))
    } else {
        let created = create(&name, object);
        (name, created)
    };
    match created {
        Ok(object) => one(StatusCode::CREATED, entry, &object),
        Err(refusal) => refused(&refusal, details(entry, &name)),
    }
}

/// Five characters behind the prefix, as kube-apiserver appends them; others when somebody has these, eight times in all.
fn create_generated<T>(prefix: &str, create: impl Fn(&str) -> Result<T, Refusal>) -> (String, Result<T, Refusal>) {
    let mut left = 8;
    loop {
        left -= 1;
        let name = format!("{prefix}{}", &clock::uuid()[..5]);
        let created = create(&name);
        if left == 0 || !matches!(created, Err(Refusal::Exists)) {
            return (name, created);
        }
    }
}

fn update(exchange: &Exchange, id: ResourceId, entry: &Entry, target: &Target, object: Map<String, Value>) -> Answer {
    let name = metadata(&object, "name");
    if name != target.name {
        let message = format!("the name of the object ({name}) does not match the name on the URL ({})", target.name);
        return status::bad_request(&message);
    }
    if is_lease(entry) && metadata(&object, "resourceVersion").is_empty() {
        // Only a Lease that is not there may be put blindly, and that creates it.
        let exists = exchange.served.store.find(&Key::new(id, &target.namespace, &target.name)).is_some();
        return if exists { unconditional(details(entry, &target.name)) } else { create(exchange, id, entry, target, object) };
    }
    match exchange.served.store.update(Key::new(id, &target.namespace, &target.name), object) {
        Ok(object) => one(StatusCode::OK, entry, &object),
        Err(refusal) => refused(&refusal, details(entry, &target.name)),
    }
}

/// Leases are the one kind here whose PUT creates, and is refused when it does not say which revision it changes.
fn is_lease(entry: &Entry) -> bool {
    entry.group == "coordination.k8s.io" && entry.resource.plural == "leases"
}

fn unconditional(about: Details<'_>) -> Answer {
    let message = "Invalid value: 0: must be specified for an update";
    status::invalid(about, Cause { reason: "FieldValueInvalid", message, field: "metadata.resourceVersion" })
}

fn patch(exchange: &Exchange, id: ResourceId, entry: &Entry, target: &Target, patch: Map<String, Value>) -> Answer {
    let name = metadata(&patch, "name");
    if !name.is_empty() && name != target.name {
        let message = format!("the name of the object ({name}) does not match the name on the URL ({})", target.name);
        return status::bad_request(&message);
    }
    let creates = is_of_type(exchange, &[APPLY_PATCH]);
    match exchange.served.store.patch(Key::new(id, &target.namespace, &target.name), patch, creates) {
        Ok((object, true)) => one(StatusCode::CREATED, entry, &object),
        Ok((object, false)) => one(StatusCode::OK, entry, &object),
        Err(refusal) => refused(&refusal, details(entry, &target.name)),
    }
}

fn delete(exchange: &Exchange, id: ResourceId, entry: &Entry, target: &Target, preconditions: &Preconditions) -> Answer {
    let about = details(entry, &target.name);
    match exchange.served.store.delete(Key::new(id, &target.namespace, &target.name), preconditions) {
        Ok(last) => status::deleted(Details { uid: &last.uid, ..about }),
        // There the kind is the kind.
        Err(Refusal::Precondition(why)) => status::unmet(Details { kind: &entry.resource.kind, ..about }, &why),
        Err(refusal) => refused(&refusal, about),
    }
}

fn one(status: StatusCode, entry: &Entry, object: &Stored) -> Answer {
    let mut body = typed(entry, object);
    body.push(b'\n');
    Answer::json(status, body.into())
}

fn refused(refusal: &Refusal, about: Details<'_>) -> Answer {
    match refusal {
        Refusal::Exists => status::already_exists(about),
        Refusal::Missing => status::not_found(about),
        Refusal::Stale => status::conflict(about),
        Refusal::Precondition(why) => status::unmet(about, why),
        Refusal::Full => status::store_full(),
    }
}

fn details<'a>(entry: &'a Entry, name: &'a str) -> Details<'a> {
    Details { name, group: &entry.group, kind: &entry.resource.plural, ..Details::default() }
}

/// A string in the metadata of an object; empty where there is none.
fn metadata<'a>(object: &'a Map<String, Value>, field: &str) -> &'a str {
    object.get("metadata").and_then(|metadata| metadata.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// Is the request's body of one of these types? One that does not say is JSON.
fn is_of_type(exchange: &Exchange, types: &[&str]) -> bool {
    let given = exchange.request.headers.get(CONTENT_TYPE).map_or(&b"application/json"[..], |value| value.as_bytes());
    types.iter().any(|name| given.starts_with(name.as_bytes()))
}

/// The object in the request body, or the answer that refuses it; the outer error is the stream's.
async fn read_object(exchange: &mut Exchange, entry: &Entry, types: &[&str]) -> Result<Result<Map<String, Value>, Answer>, Error> {
    if !is_of_type(exchange, types) {
        return Ok(Err(status::unsupported_media_type()));
    }
    Ok(read_body(exchange).await?.and_then(|body| parse_object(&body, entry)))
}

/// What the `DeleteOptions` in the request body say, if there are any.
async fn read_preconditions(exchange: &mut Exchange) -> Result<Result<Preconditions, Answer>, Error> {
    Ok(read_body(exchange).await?.and_then(|body| parse_preconditions(&body)))
}

async fn read_body(exchange: &mut Exchange) -> Result<Result<Bytes, Answer>, Error> {
    let limit = exchange.served.config.max_body;
    match read_all(&mut exchange.body, limit).await {
        Ok(body) => Ok(Ok(body)),
        Err(Error::TooLarge(limit)) => Ok(Err(status::too_large(limit))),
        Err(error) => Err(error),
    }
}

fn parse_preconditions(body: &Bytes) -> Result<Preconditions, Answer> {
    #[derive(Deserialize, Default)]
    struct Options {
        #[serde(default)]
        preconditions: Option<Asked>,
    }
    #[derive(Deserialize, Default)]
    #[serde(rename_all = "camelCase")]
    struct Asked {
        uid: Option<String>,
        resource_version: Option<String>,
    }
    if body.is_empty() {
        return Ok(Preconditions::default());
    }
    let options: Options =
        serde_json::from_slice(body).map_err(|error| status::bad_request(&format!("the options provided are unrecognized: {error}")))?;
    let Asked { uid, resource_version } = options.preconditions.unwrap_or_default();
    Ok(Preconditions { uid, resource_version })
}

fn parse_object(body: &Bytes, entry: &Entry) -> Result<Map<String, Value>, Answer> {
    let object: Map<String, Value> =
        serde_json::from_slice(body).map_err(|error| status::bad_request(&format!("the object provided is unrecognized: {error}")))?;
    let expected = [("kind", &entry.resource.kind), ("apiVersion", &entry.api_version)];
    for (field, expected) in expected {
        if object.get(field).is_some_and(|given| given != expected.as_str()) {
            let message = format!("the {field} in the object does not match the expected {expected}");
            return Err(status::bad_request(&message));
        }
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn a_generated_name_that_somebody_has_is_made_anew() {
        let tried = RefCell::new(BTreeSet::new());
        let taken = |free_from: usize| {
            tried.borrow_mut().clear();
            create_generated("demo-", |name| {
                tried.borrow_mut().insert(name.to_owned());
                if tried.borrow().len() < free_from { Err(Refusal::Exists) } else { Ok(()) }
            })
        };
        let (name, created) = taken(3);
        assert_eq!((created, tried.borrow().len(), name.len()), (Ok(()), 3, "demo-".len() + 5));
        assert_eq!(taken(usize::MAX).1, Err(Refusal::Exists));
        assert!(tried.borrow().len() <= 8);
        assert_eq!(create_generated::<()>("demo-", |_| Err(Refusal::Full)).1, Err(Refusal::Full));
    }
}
