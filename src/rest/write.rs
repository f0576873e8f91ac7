//! create, update, patch, delete: all of them through `admission`, which decides.

use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::Value;

use super::query::Query;
use super::read::{find, object_of};
use super::resource::{Item, Resource};
use super::sight::Sight;
use super::status::{Failure, deleted};
use super::view::View;
use super::{State, body, json_response, own};
use crate::admission::{
    Admitted, DeleteOptions, FieldValidation, Outcome, Propagation, WriteOptions, Writer,
};
use crate::api::{Kind, Name, Namespace, Uid};

/// Tells a client what was odd about a request that was taken (RFC 7234, 5.5).
pub(super) const WARNING: HeaderName = HeaderName::from_static("warning");
/// The most warnings that are told; the rest would only fill the headers.
const WARNINGS_MAX: usize = 32;
/// The longest warning, in characters.
const WARNING_CHARS_MAX: usize = 256;

/// POST to a collection.
pub(super) async fn create(
    state: &Arc<State>,
    kind: Kind,
    namespace: Option<&str>,
    headers: &HeaderMap,
    query: &Query,
    request_body: &mut Option<Body>,
) -> Result<Response, Failure> {
    let view = View::of(headers, query)?;
    let options = options(query)?;
    body::expect_json(headers)?;
    let document = parse(&body::take(request_body).await?)?;
    let namespace = namespace.map(Namespace::new);
    let admitted = state
        .admission
        .create(kind, namespace.as_ref(), document, &options, &Writer::Operator)
        .await?;
    let code = match admitted.outcome {
        Outcome::Created => StatusCode::CREATED,
        // The same request had made it before.
        Outcome::Updated | Outcome::Unchanged => StatusCode::OK,
    };
    Ok(answer(state, Resource::Records(kind), view, code, admitted))
}

/// PUT, PATCH or DELETE of an object.
pub(super) async fn change(
    state: &Arc<State>,
    sight: &Sight,
    item: &Item,
    kind: Kind,
    query: &Query,
    parts: &Parts,
    request_body: &mut Option<Body>,
) -> Result<Response, Failure> {
    let headers = &parts.headers;
    match &parts.method {
        &Method::DELETE => {
            return delete(state, sight, item, kind, query, headers, request_body).await;
        }
        _ if !sight.is_all() && kind != Kind::PermissionRequest => {
            return own::move_on(state, sight, item, kind, query, parts, request_body).await;
        }
        &Method::PUT => body::expect_json(headers)?,
        &Method::PATCH => body::expect_merge_patch(headers)?,
        method => {
            let hint =
                format!("of {} it allows {}", kind.plural(), item.resource.verbs().join(", "));
            return Err(Failure::method_not_allowed(method.as_str(), &hint));
        }
    }
    let view = View::of(headers, query)?;
    let options = options(query)?;
    let document = parse(&body::take(request_body).await?)?;
    let (namespace, name) = address(state, sight, item, kind).await?;
    if !sight.is_all() {
        expect_decision(&document)?;
    }
    let (admission, writer) = (&state.admission, Writer::Operator);
    let admitted = if parts.method == Method::PUT {
        admission.update(kind, &namespace, &name, document, &options, &writer).await?
    } else {
        admission.patch(kind, &namespace, &name, document, &options, &writer).await?
    };
    Ok(answer(state, item.resource, view, StatusCode::OK, admitted))
}

async fn delete(
    state: &Arc<State>,
    sight: &Sight,
    item: &Item,
    kind: Kind,
    query: &Query,
    headers: &HeaderMap,
    request_body: &mut Option<Body>,
) -> Result<Response, Failure> {
    let view = View::of(headers, query)?;
    body::expect_json(headers)?;
    let told = body::take(request_body).await?;
    let told: DeleteBody = if told.iter().all(u8::is_ascii_whitespace) {
        DeleteBody::default()
    } else {
        serde_json::from_slice(&told).map_err(|error| {
            Failure::bad_request(format!("the body is no DeleteOptions: {error}"))
        })?
    };
    let mut options = told.options(query)?;
    let (namespace, name) = if sight.is_all() {
        address(state, sight, item, kind).await?
    } else {
        let own::Owned { namespace, name, uid } = own::owned(state, sight, item, kind).await?;
        options.uid.get_or_insert(Uid::new(uid));
        options.by_parent = true;
        own::expect_no_orphans(options.propagation)?;
        (namespace, name)
    };
    let gone = state.admission.delete(kind, &namespace, &name, &options).await?;
    if gone.is_gone && !options.dry_run {
        let uid = gone.object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        return Ok(json_response(StatusCode::OK, &deleted(item.resource, name.as_str(), uid)));
    }
    let now = state.clock.now().time;
    Ok(json_response(StatusCode::OK, &view.one(item.resource, gone.object, now)))
}

/// Namespace and name of the object that a path names by name or uid.
async fn address(
    state: &State,
    sight: &Sight,
    item: &Item,
    kind: Kind,
) -> Result<(Namespace, Name), Failure> {
    let object = object_of(&find(state, sight, item, kind).await?)?;
    let part = |name: &str| {
        let pointer = format!("/metadata/{name}");
        object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    Ok((Namespace::new(part("namespace")), Name::new(part("name"))))
}

/// What a caller writes is a decision and nothing else; it may say of which version of the request.
fn expect_decision(patch: &Value) -> Result<(), Failure> {
    let has_only = |value: Option<&Value>, names: &[&str]| {
        let fields = value.and_then(Value::as_object);
        fields.is_none_or(|fields| fields.keys().all(|name| names.contains(&name.as_str())))
    };
    let is_decision = has_only(Some(patch), &["apiVersion", "kind", "metadata", "spec"])
        && has_only(patch.get("metadata"), &["name", "namespace", "uid", "resourceVersion"])
        && has_only(patch.get("spec"), &["decision"]);
    if is_decision {
        return Ok(());
    }
    Err(Failure::forbidden("with a caller's token only spec.decision of a request is written"))
}

pub(super) fn options(query: &Query) -> Result<WriteOptions, Failure> {
    let field_validation = match query.get("fieldValidation") {
        None | Some("Warn") => FieldValidation::Warn,
        Some("Strict") => FieldValidation::Strict,
        Some("Ignore") => FieldValidation::Ignore,
        Some(other) => {
            return Err(Failure::bad_request(format!(
                "query fieldValidation={other}: expected Strict, Warn or Ignore"
            )));
        }
    };
    Ok(WriteOptions { dry_run: query.is_dry_run()?, field_validation, force: query.bool("force")? })
}

pub(super) fn parse(bytes: &[u8]) -> Result<Value, Failure> {
    if bytes.iter().all(u8::is_ascii_whitespace) {
        return Err(Failure::bad_request("the body is empty; expected a JSON object"));
    }
    let value: Value = serde_json::from_slice(bytes)
        .map_err(|error| Failure::bad_request(format!("the body is no JSON: {error}")))?;
    if value.is_object() {
        Ok(value)
    } else {
        // Python's client sends JSON patch lists under the merge patch's type.
        Err(Failure::bad_request("the body is no JSON object"))
    }
}

pub(super) fn answer(
    state: &State,
    resource: Resource,
    view: View,
    code: StatusCode,
    admitted: Admitted,
) -> Response {
    let object = view.one(resource, admitted.object, state.clock.now().time);
    let mut response = json_response(code, &object);
    for warning in admitted.warnings.iter().take(WARNINGS_MAX) {
        if let Ok(value) = HeaderValue::from_bytes(warning_header(warning).as_bytes()) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// `299 - "text"`; quotes and backslashes are escaped, control characters are spaces.
pub(super) fn warning_header(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 8);
    for character in text.chars().take(WARNING_CHARS_MAX) {
        match character {
            '"' | '\\' => {
                quoted.push('\\');
                quoted.push(character);
            }
            other if other.is_control() => quoted.push(' '),
            other => quoted.push(other),
        }
    }
    format!("299 - \"{quoted}\"")
}

/// meta/v1 `DeleteOptions`. `gracePeriodSeconds` is not looked at: how long a process is given is
/// its agent's `stop`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeleteBody {
    propagation_policy: Option<String>,
    /// Older clients say so what `propagationPolicy` says.
    orphan_dependents: Option<bool>,
    preconditions: Option<Preconditions>,
    dry_run: Option<Vec<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

impl DeleteBody {
    /// With what the query says, where the body says nothing.
    fn options(self, query: &Query) -> Result<DeleteOptions, Failure> {
        let policy = self.propagation_policy.as_deref().or_else(|| query.get("propagationPolicy"));
        let is_orphaning = match self.orphan_dependents {
            Some(is_orphaning) => is_orphaning,
            None => query.bool("orphanDependents")?,
        };
        let propagation = match policy {
            None | Some("") if is_orphaning => Propagation::Orphan,
            Some(policy) if is_orphaning && policy != "Orphan" => {
                return Err(Failure::bad_request(format!(
                    "propagationPolicy {policy:?} and orphanDependents: expected one of them"
                )));
            }
            None | Some("" | "Foreground") => Propagation::Foreground,
            Some("Background") => Propagation::Background,
            Some("Orphan") => Propagation::Orphan,
            Some(other) => {
                return Err(Failure::bad_request(format!(
                    "propagationPolicy {other:?}: expected Foreground, Background or Orphan"
                )));
            }
        };
        let dry_run = match self.dry_run.unwrap_or_default().as_slice() {
            [] => query.is_dry_run()?,
            [all] if all == "All" => true,
            other => {
                return Err(Failure::bad_request(format!("dryRun {other:?}: expected [\"All\"]")));
            }
        };
        let preconditions = self.preconditions.unwrap_or_default();
        Ok(DeleteOptions {
            propagation,
            uid: preconditions.uid.map(Uid::new),
            resource_version: preconditions.resource_version,
            dry_run,
            by_parent: false,
        })
    }
}
