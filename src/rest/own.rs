//! What a caller writes: children of its session, their end, and the end of their turns.
//!
//! Invariants: what is not the caller's child is not there for it, in the same words as what was
//! never made; of what is there it moves desired state on and nothing else; the object that is
//! written is the very one that was looked at (by its uid).

use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use super::query::Query;
use super::read::{find, object_of};
use super::resource::{Item, Resource};
use super::sight::Sight;
use super::status::Failure;
use super::write::{answer, options, parse};
use super::{State, body};
use crate::admission::spawn::{NotSpawned, SpawnRefusal, SpawnRequest};
use crate::admission::{Admitted, Bearer, Outcome, Propagation, Writer};
use crate::api::{Code, Kind, Name, Namespace};
use crate::rest::view::View;

/// Same key and same body: same child.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// Makes a child of the caller's session.
pub(super) async fn spawn(
    state: &Arc<State>,
    bearer: &Bearer,
    headers: &HeaderMap,
    query: &Query,
    request_body: &mut Option<Body>,
) -> Result<Response, Failure> {
    let view = View::of(headers, query)?;
    let options = options(query)?;
    body::expect_json(headers)?;
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let key = match (keys.next(), keys.next()) {
        (None, _) => None,
        (Some(value), None) => {
            let wrong = || Failure::bad_request("Idempotency-Key: expected visible ASCII");
            Some(value.to_str().map_err(|_| wrong())?.to_owned())
        }
        (Some(_), Some(_)) => {
            return Err(Failure::bad_request("Idempotency-Key: it is there twice, expected one"));
        }
    };
    let request = SpawnRequest {
        body: parse(&body::take(request_body).await?)?,
        field_validation: options.field_validation,
        idempotency_key: key,
        dry_run: options.dry_run,
    };
    let spawned = Box::pin(state.admission.spawn(bearer, request, state.inputs.as_ref())).await?;
    let (code, outcome) = match spawned.is_repeat {
        true => (StatusCode::OK, Outcome::Unchanged),
        false => (StatusCode::CREATED, Outcome::Created),
    };
    let object = serde_json::to_value(&spawned.session)
        .map_err(|error| Failure::internal(error.to_string()))?;
    let admitted = Admitted { object, warnings: spawned.warnings, outcome };
    Ok(answer(state, Resource::Records(Kind::Session), view, code, admitted))
}

/// A key that would do nothing is refused, so that nobody relies on it.
///
/// # Errors
///
/// 400 if there is one.
pub(super) fn expect_no_key(headers: &HeaderMap) -> Result<(), Failure> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        return Err(Failure::bad_request(
            "Idempotency-Key: only children that a caller makes with its own token have one; give a \
             turn `spec.idempotencyKey`, and other objects a name, which makes them once",
        ));
    }
    Ok(())
}

/// `spawnlet spawn` makes children; an operator's token is nobody's child.
pub(super) fn caller_required() -> Failure {
    let why = "a child is made with its parent's token; an operator makes sessions with \
               `spawnlet apply` or `spawnlet prompt --agent`";
    let code = Code::SpawnParentSessionRequired;
    Failure::forbidden(format!("{code}: {why}")).because(code, why)
}

/// What a write is about: which object of the caller's, and by which words it is written.
pub(super) struct Owned {
    pub(super) namespace: Namespace,
    pub(super) name: Name,
    pub(super) uid: String,
}

/// The caller's child, or a turn of one, that a path names.
pub(super) async fn owned(
    state: &State,
    sight: &Sight,
    item: &Item,
    kind: Kind,
) -> Result<Owned, Failure> {
    let object = object_of(&find(state, sight, item, kind).await?)?;
    let part = |name: &str| {
        let pointer = format!("/metadata/{name}");
        object.pointer(&pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    };
    let uid = part("uid");
    if !sight.bearer().is_none_or(|bearer| bearer.is_live) {
        let code = Code::SpawnParentSessionNotFound;
        let why = "the session of this token has ended or is ending";
        return Err(Failure::forbidden(format!("{code}: {why}")).because(code, why));
    }
    if sight.is_own_session(&uid) {
        // It reads itself; what becomes of it is its parent's or an operator's to say.
        return Err(Failure::not_found(item.resource, &item.name));
    }
    Ok(Owned { namespace: Namespace::new(part("namespace")), name: Name::new(part("name")), uid })
}

/// A caller's deletion takes what is below along: what is let go would be a root of its own, outside
/// the bounds and the lifetime of the caller's tree. An operator may let it go.
///
/// # Errors
///
/// 403 if children are to stay.
pub(super) fn expect_no_orphans(propagation: Propagation) -> Result<(), Failure> {
    if propagation != Propagation::Orphan {
        return Ok(());
    }
    let code = Code::SpawnPermissionDenied;
    let why = "propagationPolicy Orphan: a caller's children end with it, and theirs with them; \
               expected Foreground or Background";
    Err(Failure::forbidden(format!("{code}: {why}")).because(code, why))
}

/// Moves the desired state of a child, or of a child's turn, on.
pub(super) async fn move_on(
    state: &Arc<State>,
    sight: &Sight,
    item: &Item,
    kind: Kind,
    query: &Query,
    parts: &Parts,
    request_body: &mut Option<Body>,
) -> Result<Response, Failure> {
    if parts.method != Method::PATCH {
        return Err(Failure::not_found(item.resource, &item.name));
    }
    body::expect_merge_patch(&parts.headers)?;
    let view = View::of(&parts.headers, query)?;
    let options = options(query)?;
    let mut patch = parse(&body::take(request_body).await?)?;
    let owned = owned(state, sight, item, kind).await?;
    if !is_wish(&patch) {
        return Err(Failure::forbidden(
            "a session's token writes spec.desiredState of its children and of their turns, and \
             nothing else of them",
        ));
    }
    patch["metadata"]["uid"] = json!(owned.uid);
    let writer = Writer::Parent;
    let (namespace, name) = (&owned.namespace, &owned.name);
    let admitted = state.admission.patch(kind, namespace, name, patch, &options, &writer).await?;
    Ok(answer(state, item.resource, view, StatusCode::OK, admitted))
}

/// Whether a patch asks for another desired state and for nothing else. What it says of the object
/// that it is for is compared, not written.
fn is_wish(patch: &Value) -> bool {
    let only = |value: Option<&Value>, allowed: &[&str]| {
        value
            .and_then(Value::as_object)
            .is_some_and(|fields| fields.keys().all(|field| allowed.contains(&field.as_str())))
    };
    let is_named = patch.get("metadata").is_none()
        || only(patch.get("metadata"), &["name", "namespace", "uid", "resourceVersion"]);
    only(Some(patch), &["apiVersion", "kind", "metadata", "spec"])
        && is_named
        && only(patch.get("spec"), &["desiredState"])
        && patch.pointer("/spec/desiredState").is_some_and(Value::is_string)
}

impl From<NotSpawned> for Failure {
    fn from(error: NotSpawned) -> Self {
        match error {
            NotSpawned::Refused(refusal) => refusal.into(),
            NotSpawned::Invalid(refusal) => refusal.into(),
        }
    }
}

impl From<SpawnRefusal> for Failure {
    /// The code stands before the sentence and in `details.causes`.
    fn from(refusal: SpawnRefusal) -> Self {
        let (code, reason) = status_of(refusal.code);
        let message = format!("{}: {}", refusal.code, refusal.message);
        let failure = Self::new(code, reason, message).because(refusal.code, &refusal.message);
        let may_pass =
            matches!(code, StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS);
        if may_pass { failure.retry_after(1) } else { failure }
    }
}

/// The HTTP status that a code is said with.
const fn status_of(code: Code) -> (StatusCode, &'static str) {
    match code {
        Code::SpawnParentSessionNotFound
        | Code::SpawnParentSessionRequired
        | Code::SpawnPermissionDenied
        | Code::SessionFolderRemoved => (StatusCode::FORBIDDEN, "Forbidden"),
        Code::SpawnDepthExceeded
        | Code::SpawnChildrenExceeded
        | Code::SpawnRateExceeded
        | Code::SpawnIdempotencyConflict => (StatusCode::CONFLICT, "Conflict"),
        Code::SpawnCapacityExceeded => (StatusCode::TOO_MANY_REQUESTS, "TooManyRequests"),
        Code::SpawnUnavailable | Code::SpawnStoreUnavailable => {
            (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable")
        }
        Code::SpawnInternalError => (StatusCode::INTERNAL_SERVER_ERROR, "InternalError"),
        Code::SpawnNotFound => (StatusCode::NOT_FOUND, "NotFound"),
        // What is wrong with the request itself; the codes of turns do not come here.
        _ => (StatusCode::UNPROCESSABLE_ENTITY, "Invalid"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wish_is_a_wish() {
        for patch in [
            json!({"spec": {"desiredState": "cancelled"}}),
            json!({"metadata": {"uid": "u", "resourceVersion": "7"},
                   "spec": {"desiredState": "deleted"}}),
        ] {
            assert!(is_wish(&patch), "{patch}");
        }
        for patch in [
            json!({}),
            json!({"spec": {}}),
            json!({"spec": {"desiredState": null}}),
            json!({"spec": {"desiredState": "cancelled", "ttl": "9h"}}),
            json!({"metadata": {"labels": {}}, "spec": {"desiredState": "cancelled"}}),
            json!({"status": {}, "spec": {"desiredState": "cancelled"}}),
            json!({"metadata": "x", "spec": {"desiredState": "cancelled"}}),
        ] {
            assert!(!is_wish(&patch), "{patch}");
        }
    }
}
