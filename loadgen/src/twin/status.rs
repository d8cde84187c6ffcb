//! `metav1.Status` bodies, word for word as kube-apiserver writes them. Pure.

use bytes::Bytes;
use http::StatusCode;
use serde::Serialize;

use super::exchange::Answer;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Status<'a> {
    kind: &'static str,
    api_version: &'static str,
    metadata: Empty,
    status: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    message: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    details: Option<Details<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u16>,
}

#[derive(Serialize)]
struct Empty {}

/// Which object a Status is about; empty fields are left out.
#[derive(Serialize, Clone, Copy, Default)]
pub(super) struct Details<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) group: &'a str,
    /// The plural of the resource: kube-apiserver puts that here, not the kind.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) kind: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    pub(super) uid: &'a str,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) causes: &'a [Cause<'a>],
}

/// What is wrong with one field.
#[derive(Serialize, Clone, Copy)]
pub(super) struct Cause<'a> {
    pub(super) reason: &'static str,
    pub(super) message: &'a str,
    pub(super) field: &'static str,
}

impl Details<'_> {
    /// `pods "x"` or `jobs.batch "x"`.
    fn qualified(&self) -> String {
        let dot = if self.group.is_empty() { "" } else { "." };
        format!("{}{dot}{} \"{}\"", self.kind, self.group, self.name)
    }
}

pub(super) fn unauthorized() -> Answer {
    failure(StatusCode::UNAUTHORIZED, "Unauthorized", "Unauthorized", None)
}

/// A path inside a known group that no route matches.
pub(super) fn unknown_resource() -> Answer {
    let message = "the server could not find the requested resource";
    failure(StatusCode::NOT_FOUND, "NotFound", message, Some(Details::default()))
}

pub(super) fn method_not_allowed() -> Answer {
    let message = "the server does not allow this method on the requested resource";
    failure(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message, Some(Details::default()))
}

pub(super) fn not_found(about: Details<'_>) -> Answer {
    failure(StatusCode::NOT_FOUND, "NotFound", &format!("{} not found", about.qualified()), Some(about))
}

pub(super) fn already_exists(about: Details<'_>) -> Answer {
    let message = format!("{} already exists", about.qualified());
    failure(StatusCode::CONFLICT, "AlreadyExists", &message, Some(about))
}

pub(super) fn conflict(about: Details<'_>) -> Answer {
    let message = format!(
        "Operation cannot be fulfilled on {}: the object has been modified; please apply your changes to the latest version and try again",
        about.qualified()
    );
    failure(StatusCode::CONFLICT, "Conflict", &message, Some(about))
}

/// The object is not what a delete wants it to be; `why` says how not.
pub(super) fn unmet(about: Details<'_>, why: &str) -> Answer {
    let message = format!("Operation cannot be fulfilled on {}: {why}", about.qualified());
    failure(StatusCode::CONFLICT, "Conflict", &message, Some(about))
}

pub(super) fn bad_request(message: &str) -> Answer {
    failure(StatusCode::BAD_REQUEST, "BadRequest", message, None)
}

pub(super) fn unsupported_media_type() -> Answer {
    let message = "the body of the request was in an unknown format - accepted media types include: \
        application/json, application/yaml, application/vnd.kubernetes.protobuf";
    failure(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message, None)
}

pub(super) fn not_acceptable() -> Answer {
    let message = "only the following media types are accepted: application/json, application/yaml, application/vnd.kubernetes.protobuf";
    failure(StatusCode::NOT_ACCEPTABLE, "NotAcceptable", message, None)
}

/// A field of the object must not be as it is; `cause` says why.
pub(super) fn invalid(about: Details<'_>, cause: Cause<'_>) -> Answer {
    let message = format!("{} is invalid: {}: {}", about.qualified(), cause.field, cause.message);
    failure(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", &message, Some(Details { causes: &[cause], ..about }))
}

pub(super) fn too_large(limit: usize) -> Answer {
    let message = format!("Request entity too large: limit is {limit}");
    failure(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", &message, None)
}

/// The store is full; kube-apiserver passes on etcd's words for the same.
pub(super) fn store_full() -> Answer {
    failure(StatusCode::INTERNAL_SERVER_ERROR, "", "etcdserver: mvcc: database space exceeded", None)
}

/// The answer to a successful delete.
pub(super) fn deleted(about: Details<'_>) -> Answer {
    Answer::json(StatusCode::OK, line(&status("Success", "", "", Some(about), None)))
}

/// The object of an ERROR event: the revision a watch asked for is no longer known.
pub(super) fn expired() -> Bytes {
    let message = "too old resource version";
    json(&status("Failure", message, "Expired", None, Some(StatusCode::GONE)))
}

fn failure(code: StatusCode, reason: &'static str, message: &str, about: Option<Details<'_>>) -> Answer {
    Answer::json(code, line(&status("Failure", message, reason, about, Some(code))))
}

fn status<'a>(
    status: &'static str,
    message: &'a str,
    reason: &'static str,
    details: Option<Details<'a>>,
    code: Option<StatusCode>,
) -> Status<'a> {
    let code = code.map(|code| code.as_u16());
    Status { kind: "Status", api_version: "v1", metadata: Empty {}, status, message, reason, details, code }
}

/// JSON with the newline that kube-apiserver writes behind it.
pub(super) fn line(value: &impl Serialize) -> Bytes {
    let mut line = json(value).to_vec();
    line.push(b'\n');
    line.into()
}

/// JSON of one of our own types.
pub(super) fn json(value: &impl Serialize) -> Bytes {
    // Only maps with keys that are not strings and failing `Serialize` impls fail; our types have neither.
    serde_json::to_vec(value).map_or_else(|_| Bytes::from_static(b"{}"), Bytes::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_match_kube_apiserver() {
        let about = Details { name: "x", group: "batch", kind: "jobs", ..Details::default() };
        let table = [
            (
                unauthorized(),
                r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}"#,
            ),
            (
                unknown_resource(),
                r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the server could not find the requested resource","reason":"NotFound","details":{},"code":404}"#,
            ),
            (
                not_found(about),
                r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"jobs.batch \"x\" not found","reason":"NotFound","details":{"name":"x","group":"batch","kind":"jobs"},"code":404}"#,
            ),
        ];
        for (answer, expected) in table {
            assert_eq!(answer.body, format!("{expected}\n"));
        }
    }
}
