//! Requests for permission, as the loop reads and writes their records: which of them a session's
//! world has, whose they are, and what goes along with a turn.

use std::borrow::Cow;

use crate::api::permission::PermissionRequestSpec;
use crate::api::{PermissionRequest, Session, Turn, Uid};
use crate::plan::permission::name_of;
use crate::plan::world::Process;
use crate::plan::{Change, World};
use crate::store::keys;
use crate::store::records::{self, Txn};

use super::{Controller, ObjectKey};

/// The session that a request belongs to.
pub(super) fn asked_by(request: &PermissionRequest) -> ObjectKey {
    let namespace = request.metadata.namespace.clone();
    ObjectKey { namespace, name: request.spec.session.clone() }
}

/// What a world has of requests: those that wait or that the agent's questions stand for, and, where
/// they are needed, the others.
pub(super) type Seen = (Vec<PermissionRequest>, Option<Vec<PermissionRequest>>);

impl Controller {
    pub(super) async fn requests(
        &self,
        session: &Session,
        process: &Process,
        turns: &[Turn],
    ) -> Result<Seen, records::Error> {
        let uid = &session.metadata.uid;
        let mut found = self.records.asking(uid).await?;
        let asks = match process {
            Process::Live(live) => &live.asks[..],
            Process::Absent | Process::NotStarted { .. } | Process::Unproven => &[],
        };
        let mut is_new = false;
        let mut in_the_way = Vec::new();
        for ask in asks {
            // A turn that is over has no record to look for: what is left of it waits, or is told.
            let Some(turn) = turns.iter().find(|turn| turn.metadata.uid == ask.turn) else {
                continue;
            };
            let name = name_of(&turn.metadata.name, ask);
            if found.iter().any(|request| request.metadata.name == name) {
                continue;
            }
            let namespace = &session.metadata.namespace;
            match self.records.get::<PermissionRequestSpec>(namespace, &name).await? {
                // A turn of that name was there before, and left this.
                Some(request) if !is_of(&request, &turn.metadata.uid) => {
                    is_new = true;
                    in_the_way.push(request);
                }
                Some(request) if !request.status.phase.is_pending() => found.push(request),
                // It was made since the list was read: the next pass sees it.
                Some(_) | None => is_new = true,
            }
        }
        let wants_spent = is_new || session.status.finished_at.is_some();
        let spent = if wants_spent {
            let mut all = self.records.requests_of(uid).await?;
            all.retain(|request| !request.status.phase.is_pending());
            let is_known = |one: &PermissionRequest| all.iter().all(|other| other != one);
            in_the_way.retain(is_known);
            all.extend(in_the_way);
            Some(all)
        } else {
            None
        };
        Ok((found, spent))
    }

    /// The sessions with a request that waits: no daemon but this one has the agent that asked.
    pub(super) async fn asking_sessions(&self) -> Result<Vec<ObjectKey>, records::Error> {
        let mut sessions = Vec::new();
        for key in self.records.pointed_at(keys::ASKING).await? {
            if let Some(request) = self.records.at::<PermissionRequestSpec>(&key).await? {
                sessions.push(asked_by(&request));
            }
        }
        Ok(sessions)
    }
}

fn is_of(request: &PermissionRequest, owner: &Uid) -> bool {
    request.metadata.owner_references.iter().any(|found| found.uid == *owner)
}

/// A change whose new records have uids; the planner, which is pure, makes none.
pub(super) fn with_uids(change: &Change) -> Cow<'_, Change> {
    let is_new = |request: &PermissionRequest| request.metadata.uid.is_empty();
    if change.wake.is_none() && !change.requests.iter().any(is_new) {
        return Cow::Borrowed(change);
    }
    let mut change = change.clone();
    for request in change.requests.iter_mut().filter(|request| is_new(request)) {
        request.metadata.uid = Uid::new(uuid::Uuid::now_v7().to_string());
    }
    if let Some(wake) = &mut change.wake {
        wake.metadata.uid = Uid::new(uuid::Uuid::now_v7().to_string());
    }
    Cow::Owned(change)
}

/// Adds what a change writes of requests: each by compare-and-swap on what the world holds, or new.
pub(super) fn write(mut txn: Txn, world: &World, change: &Change) -> Txn {
    for request in &change.requests {
        let name = &request.metadata.name;
        match world.requests.iter().find(|seen| seen.metadata.name == *name) {
            Some(seen) => txn = txn.update(seen, request),
            None => txn = txn.create(request),
        }
    }
    change.remove_requests.iter().fold(txn, Txn::remove)
}
