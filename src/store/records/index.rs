//! Which secondary keys a record has: a pure function of the record, so that an update writes only
//! what differs between its two states.

use std::any::Any;

use bytes::Bytes;
use sha2::{Digest, Sha256};

use super::key_of;
use crate::api::{
    ConditionStatus, Kind, MANAGED_BY, Name, Namespace, Object, ObjectMeta, PermissionRequest,
    Session, Spec, Turn, Uid,
};
use crate::store::{Key, keys};

/// The secondary keys of an object and their values; each value is the key of a record.
#[must_use]
pub fn index<S: Spec>(object: &Object<S>) -> Vec<(Key, Bytes)> {
    let target = Bytes::from(key_of(object).as_str().to_owned());
    let mut found = vec![keys::uid(&object.metadata.uid)];
    if object.metadata.annotations.contains_key(MANAGED_BY) {
        found.push(keys::managed(&object.metadata.uid));
    }
    let any: &dyn Any = object;
    if let Some(session) = any.downcast_ref::<Session>() {
        index_session(session, &mut found);
    } else if let Some(turn) = any.downcast_ref::<Turn>() {
        index_turn(turn, &mut found);
    } else if let Some(request) = any.downcast_ref::<PermissionRequest>() {
        index_request(request, &mut found);
    }
    found.into_iter().map(|key| (key, target.clone())).collect()
}

/// The session that owns a turn or a request.
pub(super) fn session_of(metadata: &ObjectMeta) -> Option<&Uid> {
    let owners = &metadata.owner_references;
    owners.iter().find(|owner| owner.kind == Kind::Session.as_str()).map(|owner| &owner.uid)
}

fn index_request(request: &PermissionRequest, found: &mut Vec<Key>) {
    let uid = &request.metadata.uid;
    let owners = &request.metadata.owner_references;
    found.extend(owners.iter().map(|owner| keys::request_of(&owner.uid, uid)));
    if let Some(session) = session_of(&request.metadata)
        && request.status.phase.is_pending()
    {
        found.push(keys::asking(session, uid));
    }
}

fn index_turn(turn: &Turn, found: &mut Vec<Key>) {
    let Some(session) = session_of(&turn.metadata) else { return };
    found.push(keys::turn_of(session, &turn.metadata.uid));
    if !turn.status.phase.is_final() {
        found.push(keys::open_turn(session, &turn.metadata.uid));
    }
    found.extend(idempotency_key(turn));
    found.extend(unsettled_notice(turn));
}

/// Where a caller finds the ended turns of which it is not told yet.
fn unsettled_notice(turn: &Turn) -> Option<Key> {
    let notice = turn.status.notice.as_ref().filter(|notice| !notice.state.is_final());
    let caller = turn.spec.source.caller.as_ref()?;
    notice.map(|_| keys::notice(caller, &turn.metadata.uid))
}

/// Where the turn of an idempotency key is found.
#[must_use]
pub fn idempotency_key(turn: &Turn) -> Option<Key> {
    let digest = Sha256::digest(turn.spec.idempotency_key.as_ref()?.as_bytes());
    // A key of the spawn toolset is its caller's: the same call may make a session first.
    let scope = turn.spec.source.caller.as_ref().or_else(|| session_of(&turn.metadata))?;
    Some(keys::idempotency(scope, &crate::api::hex(&digest)))
}

/// Where the child of an idempotency key is found.
#[must_use]
pub fn spawn_key(session: &Session) -> Option<Key> {
    let lineage = &session.status.lineage;
    let key = lineage.spawn_key.as_ref()?;
    Some(keys::spawn_key(lineage.parent.as_ref()?, &key.sha256))
}

fn index_session(session: &Session, found: &mut Vec<Key>) {
    let uid = &session.metadata.uid;
    if !is_at_rest(session) {
        found.push(keys::awake(uid));
    }
    if let Some(at) = session.status.next_deadline {
        found.push(keys::deadline(at.as_millis(), uid));
    }
    found.extend(session.status.finished_at.map(|at| keys::finished(at.as_millis(), uid)));
    if let Some(parent) = &session.status.lineage.parent {
        found.push(keys::child_of(parent, uid));
    }
    found.extend(spawn_key(session));
    found.extend(session.status.tokens.iter().map(|token| keys::token(&token.sha256)));
    found.extend(waits_for_agent(session));
    found.extend(waits_for_workspace(session));
    found.extend(waits_for_role(session));
}

/// Whether nothing would come of looking at the session after a start: what still happens to it
/// is set off by a change, by a deadline (which has a key of its own), or by its parent.
fn is_at_rest(session: &Session) -> bool {
    let status = &session.status;
    let is_quiet = status.process.is_none()
        && status.active_turn.is_none()
        && status.queued_turns == 0
        && !session.metadata.is_deleting()
        && status.observed_generation == session.metadata.generation;
    // Without an end it is idle or hibernated, unless it was asked to stop or waits for something
    // that may be there after the start.
    let is_idle = status.end.is_none()
        && !session.metadata.is_first_start()
        && session.spec.desired_state == crate::api::session::DesiredState::Running
        && waits_for_agent(session).is_none()
        && !is_false(session, "ScopeResolved");
    is_quiet && (status.finished_at.is_some() || is_idle)
}

/// A session whose starts failed waits for its agent too: a new generation of it tries again.
fn waits_for_agent(session: &Session) -> Option<Key> {
    let waits = is_false(session, "AgentResolved") || session.status.restarts.count > 0;
    waits.then(|| {
        let agent = Name::from(session.spec.agent.as_str());
        keys::waiting_for(Kind::Agent, &Namespace::default(), &agent, &session.metadata.uid)
    })
}

fn waits_for_role(session: &Session) -> Option<Key> {
    let role = session.spec.role.as_deref().filter(|_| session.status.role.is_none())?;
    is_false(session, "AgentResolved").then(|| waiting_in_namespace(session, Kind::Role, role))
}

fn waits_for_workspace(session: &Session) -> Option<Key> {
    let workspace = session.spec.workspace.as_deref()?;
    is_false(session, "ScopeResolved")
        .then(|| waiting_in_namespace(session, Kind::Workspace, workspace))
}

/// A session waits for something of its own namespace.
fn waiting_in_namespace(session: &Session, kind: Kind, name: &str) -> Key {
    let metadata = &session.metadata;
    keys::waiting_for(kind, &metadata.namespace, &Name::from(name), &metadata.uid)
}

fn is_false(session: &Session, condition: &str) -> bool {
    let found = session.status.conditions.get(condition);
    found.is_some_and(|condition| condition.status == ConditionStatus::False)
}
