//! The store of a simulated life: records with versions, the slots, the journal. It outlives every
//! daemon, and a commit is all or nothing.

use std::collections::{BTreeMap, BTreeSet};

use crate::api::agent::AgentSpec;
use crate::api::{Agent, Name, PermissionRequest, Session, Turn, Uid};
use crate::plan::capacity::{Holder, Limits};
use crate::plan::model::metadata;
use crate::plan::spending::{self, Tree};

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
    /// What trees used, by their uppermost session, and the revision of it.
    pub(super) ledgers: BTreeMap<Uid, (serde_json::Value, u64)>,
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
            ledgers: BTreeMap::new(),
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

    /// Which tree a session counts in.
    pub(super) fn tree_id(&self, session: &Session) -> Uid {
        let own = &session.metadata.uid;
        let lineage = &session.status.lineage;
        let root = lineage.root.as_ref().filter(|_| lineage.parent.is_some()).unwrap_or(own);
        if root == own || self.ledgers.contains_key(root) || self.by_uid(root).is_some() {
            return root.clone();
        }
        let (mut top, mut above) = (own.clone(), lineage.parent.clone());
        while let Some(parent) = above.and_then(|uid| self.by_uid(&uid)) {
            top = parent.metadata.uid.clone();
            above = parent.status.lineage.parent.clone();
        }
        top
    }

    pub(super) fn tree_of(&self, session: &Session) -> Tree {
        let id = self.tree_id(session);
        let ledger = self.ledgers.get(&id);
        Tree {
            root: self
                .by_uid(&id)
                .map(|root| root.metadata.name.clone())
                .filter(|name| *name != session.metadata.name),
            used: ledger.map(|(used, _)| used.clone()),
            revision: ledger.map(|(_, revision)| *revision),
            limits: spending::Limits::default(),
            id,
        }
    }

    pub(super) fn holds_slot(&self, turn: &Uid) -> bool {
        self.holders.iter().any(|holder| holder.turn == *turn)
    }
}
