//! The store of a simulated life: records with versions, the slots, the journal. It outlives every
//! daemon, and a commit is all or nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::agent::AgentSpec;
use crate::api::{Agent, Name, PermissionRequest, Session, Turn, Uid};
use crate::plan::capacity::{Holder, Limits};
use crate::plan::model::metadata;

/// As of a small daemon, so that its bounds are met often.
pub(super) const LIMITS: Limits = Limits { max_active_turns: 3, max_active_turns_per_parent: 2 };

/// What is stored.
pub(super) struct Shelf {
    pub(super) sessions: BTreeMap<Name, Session>,
    /// By session, oldest first.
    pub(super) turns: BTreeMap<Name, Turn>,
    pub(super) requests: BTreeMap<Name, PermissionRequest>,
    pub(super) agent: Agent,
    pub(super) holders: Vec<Holder>,
    pub(super) journal: BTreeSet<Uid>,
    revision: u64,
}

impl Shelf {
    pub(super) fn new() -> Self {
        let spec = AgentSpec { command: Some("agent".into()), ..AgentSpec::default() };
        Self {
            sessions: BTreeMap::new(),
            turns: BTreeMap::new(),
            requests: BTreeMap::new(),
            agent: Agent::new(metadata("a", "agent"), spec),
            holders: Vec::new(),
            journal: BTreeSet::new(),
            revision: 0,
        }
    }

    pub(super) fn next_revision(&mut self) -> String {
        self.revision += 1;
        self.revision.to_string()
    }

    /// Writes a session as a user does: whatever version it has.
    pub(super) fn edit_session(&mut self, name: &Name, edit: impl FnOnce(&mut Session)) {
        let revision = self.next_revision();
        if let Some(session) = self.sessions.get_mut(name) {
            edit(session);
            session.metadata.generation += 1;
            session.metadata.resource_version = revision;
        }
    }

    pub(super) fn edit_turn(&mut self, name: &Name, edit: impl FnOnce(&mut Turn)) {
        let revision = self.next_revision();
        if let Some(turn) = self.turns.get_mut(name) {
            edit(turn);
            turn.metadata.resource_version = revision;
        }
    }

    pub(super) fn turns_of<'s>(&'s self, session: &'s Name) -> impl Iterator<Item = &'s Turn> {
        self.turns.values().filter(move |turn| turn.spec.session == *session)
    }

    pub(super) fn children_of(&self, parent: &Uid) -> Vec<Session> {
        let is_child = |session: &&Session| session.status.lineage.parent.as_ref() == Some(parent);
        self.sessions.values().filter(is_child).cloned().collect()
    }

    pub(super) fn by_uid(&self, uid: &Uid) -> Option<&Session> {
        self.sessions.values().find(|session| session.metadata.uid == *uid)
    }

    pub(super) fn holds_slot(&self, turn: &Uid) -> bool {
        self.holders.iter().any(|holder| holder.turn == *turn)
    }
}
