//! The verbs on stored objects.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{Method, StatusCode};
use serde_json::{Map, Value};

use crate::body::read_all;
use crate::error::Error;

use super::exchange::{Answer, Entry, Exchange};
use super::path::{Target, query_flag};
use super::status::{self, Cause, Details};
use super::store::{Key, Refusal, ResourceId, Selection, Stored};
use super::{clock, watches};

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
    if reading && query_flag(&query, "watch") {
        let selection = Selection { resource: id, namespace: target.namespace, name: target.name };
        return watches::stream(exchange, entry, selection, &query).await;
    }
    let answer = match (exchange.request.method.clone(), target.name.is_empty()) {
        (Method::GET | Method::HEAD, true) => list(&exchange, id, entry, target),
        (Method::GET | Method::HEAD, false) => find(&exchange, id, entry, &target),
        (Method::POST, true) if entry.resource.namespaced != target.namespace.is_empty() => {
            match read_object(&mut exchange, entry).await? {
                Ok(object) => create(&exchange, id, entry, &target, object),
                Err(refused) => refused,
            }
        }
        (Method::PUT, false) => match read_object(&mut exchange, entry).await? {
            Ok(object) => update(&exchange, id, entry, &target, object),
            Err(refused) => refused,
        },
        (Method::DELETE, false) => delete(&exchange, id, entry, &target),
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

fn list(exchange: &Exchange, resource: ResourceId, entry: &Entry, target: Target) -> Answer {
    let selection = Selection { resource, namespace: target.namespace, name: String::new() };
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
    let name = match (field("name"), field("generateName")) {
        ("", "") => {
            let message = "Required value: name or generateName is required";
            let cause = Cause { reason: "FieldValueRequired", message, field: "metadata.name" };
            // There the kind is the kind.
            return status::invalid(Details { kind: &entry.resource.kind, ..details(entry, "") }, cause);
        }
        // Five characters, as kube-apiserver appends.
        ("", prefix) => format!("{prefix}{}", &clock::uuid()[..5]),
        (name, _) => name.to_owned(),
    };
    let namespace = field("namespace");
    if !namespace.is_empty() && namespace != target.namespace {
        return status::bad_request("the namespace of the provided object does not match the namespace sent on the request");
    }
    match exchange.served.store.create(Key::new(id, &target.namespace, &name), object) {
        Ok(object) => one(StatusCode::CREATED, entry, &object),
        Err(refusal) => refused(&refusal, details(entry, &name)),
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

fn delete(exchange: &Exchange, id: ResourceId, entry: &Entry, target: &Target) -> Answer {
    let about = details(entry, &target.name);
    match exchange.served.store.delete(Key::new(id, &target.namespace, &target.name)) {
        Ok(last) => status::deleted(Details { uid: &last.uid, ..about }),
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

/// The object in the request body, or the answer that refuses it; the outer error is the stream's.
async fn read_object(exchange: &mut Exchange, entry: &Entry) -> Result<Result<Map<String, Value>, Answer>, Error> {
    let content_type = exchange.request.headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    if content_type.is_some_and(|value| !value.starts_with(b"application/json")) {
        return Ok(Err(status::unsupported_media_type()));
    }
    let limit = exchange.served.config.max_body;
    let body = match read_all(&mut exchange.body, limit).await {
        Ok(body) => body,
        Err(Error::TooLarge(limit)) => return Ok(Err(status::too_large(limit))),
        Err(error) => return Err(error),
    };
    Ok(parse_object(&body, entry))
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
