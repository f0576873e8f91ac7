//! Who asks, and what of the records he may see.
//!
//! An operator sees all. A caller (a session, by its token) sees itself, its children, and their
//! turns and requests for permission, which it may decide, and may make, cancel and delete its
//! children: to it everything else is as if it were not there, and an answer about what is foreign is
//! the same as one about what is missing.

use std::collections::HashSet;

use axum::http::Method;
use axum::http::request::Parts;
use serde_json::Value;

use super::State;
use super::resource::{Item, Resource, Target};
use super::status::Failure;
use crate::admission::Bearer;
use crate::api::{Kind, Uid};
use crate::guard::Principal;
use crate::store::keys;

/// What a request may see.
#[derive(Debug)]
pub(super) enum Sight {
    /// Everything.
    All,
    /// What belongs to a caller, as it was when the request came.
    Own {
        /// Who it is.
        bearer: Box<Bearer>,
        /// Its children.
        children: HashSet<Uid>,
    },
}

impl Sight {
    /// What the sender of a request sees; refuses what it must not even ask for.
    ///
    /// # Errors
    ///
    /// 401 if the request did not come through the guard; for a caller 404 for all but reading
    /// sessions, turns and requests and deciding on requests, and 403 for deciding once it is at its
    /// end.
    pub(super) async fn of(state: &State, parts: &Parts, target: &Target) -> Result<Self, Failure> {
        let bearer = match parts.extensions.get::<Principal>() {
            None => return Err(Failure::unauthorized()),
            Some(Principal::Operator) => return Ok(Self::All),
            Some(Principal::Caller(bearer)) => bearer,
        };
        let is_allowed = match super::is_read(parts) {
            true => is_open(target),
            false => may_write(&parts.method, target, bearer),
        };
        if !is_allowed {
            return Err(missing(target, parts.uri.path()));
        }
        if parts.method == Method::PATCH && is_request(target) && !bearer.is_live {
            return Err(Failure::forbidden(
                "the session of this token has ended or is ending: it decides nothing any more",
            ));
        }
        let prefix = keys::children_of(&bearer.caller.session);
        let (children, _) = state.store.list(&prefix, None, 0).await?;
        let uid = |key: &str| key.strip_prefix(&prefix).map(Uid::from);
        let children = children.iter().filter_map(|child| uid(child.key.as_str())).collect();
        Ok(Self::Own { bearer: Box::new(bearer.clone()), children })
    }

    /// Whether an object is there for the one who asks.
    pub(super) fn sees(&self, kind: Kind, object: &Value) -> bool {
        let Self::Own { bearer, children } = self else { return true };
        let session = &bearer.caller.session;
        let uid = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(Uid::from);
        match kind {
            Kind::Session => uid("/metadata/uid")
                .is_some_and(|found| found == *session || children.contains(&found)),
            Kind::Turn | Kind::PermissionRequest => uid("/metadata/ownerReferences/0/uid")
                .is_some_and(|owner| children.contains(&owner)),
            Kind::Agent | Kind::Workspace | Kind::Role | Kind::Namespace | Kind::Event => false,
        }
    }

    /// Who asks, unless it is the operator.
    pub(super) fn bearer(&self) -> Option<&Bearer> {
        match self {
            Self::All => None,
            Self::Own { bearer, .. } => Some(bearer),
        }
    }

    /// Whether a session is the caller's own.
    pub(super) fn is_own_session(&self, uid: &str) -> bool {
        self.bearer().is_some_and(|bearer| bearer.caller.session.as_str() == uid)
    }

    /// Whether it is the operator's.
    pub(super) const fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }
}

/// What callers may write at all: new sessions in their own namespace, and the end of what is theirs.
fn may_write(method: &Method, target: &Target, bearer: &Bearer) -> bool {
    let own = bearer.caller.namespace.as_str();
    match target {
        Target::Collection { resource: Resource::Records(Kind::Session), namespace } => {
            *method == Method::POST && namespace.as_deref() == Some(own)
        }
        Target::Item(Item { resource, subresource: None, .. }) => match resource {
            Resource::Records(Kind::Session) => matches!(*method, Method::PATCH | Method::DELETE),
            Resource::Records(Kind::Turn | Kind::PermissionRequest) => *method == Method::PATCH,
            _ => false,
        },
        _ => false,
    }
}

/// What callers may read at all.
fn is_open(target: &Target) -> bool {
    let is_own = |resource: &Resource| {
        matches!(resource, Resource::Records(Kind::Session | Kind::Turn | Kind::PermissionRequest))
    };
    match target {
        Target::Collection { resource, .. } => is_own(resource),
        Target::Item(item) => {
            is_own(&item.resource)
                && matches!(
                    item.subresource.as_deref(),
                    None | Some("status" | "transcript" | "logs" | "response")
                )
        }
        Target::Alive
        | Target::Ready
        | Target::Version
        | Target::Secrets
        | Target::Secret(_)
        | Target::CoreVersions
        | Target::Groups
        | Target::Group
        | Target::Resources { .. } => false,
    }
}

/// Whether it is a request for permission itself, which a caller may decide.
fn is_request(target: &Target) -> bool {
    matches!(
        target,
        Target::Item(Item {
            resource: Resource::Records(Kind::PermissionRequest),
            subresource: None,
            ..
        })
    )
}

/// The answer about something that is not there.
fn missing(target: &Target, path: &str) -> Failure {
    match target {
        Target::Item(Item { resource, name, subresource: None, .. }) => {
            Failure::not_found(*resource, name)
        }
        _ => Failure::no_such_path(path),
    }
}
