//! What users ask for in a simulated life, as far as admission would take it.

use rand::RngExt;

use super::Sim;
use super::shelf::LIMITS;
use crate::api::session::{DesiredState, Lineage, OnSessionLost, SessionSpec};
use crate::api::turn::{Admission, SourceKind, TurnDesiredState, TurnSpec};
use crate::api::{DELETION_PROPAGATION, Dur, FIRST_START, Name, PROCESS_FINALIZER, Session, Turn};
use crate::plan::capacity::{Holder, has_free_slot};
use crate::plan::model::metadata;

impl Sim {
    /// Somebody asks for something at random.
    pub(super) fn somebody_asks(&mut self) {
        if self.daemon.as_ref().is_none_or(|daemon| daemon.is_stopping) {
            return;
        }
        let deletes = if self.setting.is_deletion_heavy { 40 } else { 8 };
        match self.random.random_range(0..100) {
            dice if dice < deletes => self.ask_deletion(),
            dice if dice < deletes + 8 => self.ask_session_cancel(),
            dice if dice < deletes + 16 => self.ask_turn_cancel(),
            dice if dice < deletes + 20 => self.ask_other_clocks(),
            dice if dice < deletes + 30 => self.ask_decision(),
            dice if dice % 2 == 0 => self.ask_session(),
            _ => self.ask_turn(),
        }
    }

    fn any_session(&mut self) -> Option<Session> {
        let count = self.shelf.sessions.len();
        let index = if count == 0 { return None } else { self.random.random_range(0..count) };
        self.shelf.sessions.values().nth(index).cloned()
    }

    fn ask_session(&mut self) {
        if self.shelf.sessions.len() >= self.setting.sessions {
            return;
        }
        let parent = self.any_session().filter(|_| self.random.random_range(0..4) > 0);
        let parent = parent.filter(|parent| self.may_have_child(parent));
        let is_first_start = parent.is_none() && self.one_in(20);
        let uid = self.next_uid();
        let name = Name::from(format!("s{:04}", self.uids));
        let mut meta = metadata(name.as_str(), uid.as_str());
        meta.finalizers.push(PROCESS_FINALIZER.to_owned());
        if is_first_start {
            meta.annotations.insert(FIRST_START.to_owned(), "true".to_owned());
        }
        meta.creation_timestamp = Some(self.now().time);
        meta.resource_version = self.shelf.next_revision();
        let pick = |dice: usize, from: [u64; 3]| Dur::from_secs(from[dice]);
        let dice: [usize; 5] = std::array::from_fn(|_| self.random.random_range(0..3));
        let spec = SessionSpec {
            agent: "a".into(),
            cwd: Some("/w".into()),
            parent: parent.as_ref().map(|parent| parent.metadata.name.as_str().to_owned()),
            ttl: [None, Some(Dur::from_secs(120)), Some(Dur::from_secs(4000))][dice[0]],
            idle_timeout: pick(dice[1], [0, 30, 900]),
            // A week is not waited for.
            ttl_after_finished: pick(dice[4], [60, 1000, 604_800]),
            turn_inactivity_timeout: pick(dice[2], [20, 60, 600]),
            auto_stop_on_parent: self.random.random_range(0..4) > 0,
            on_session_lost: [OnSessionLost::Expire, OnSessionLost::New][dice[3] % 2],
            ..SessionSpec::default()
        };
        let mut session = Session::new(meta, spec);
        if let Some(parent) = &parent {
            let above = &parent.status.lineage;
            session.status.lineage = Lineage {
                root: Some(above.root.clone().unwrap_or_else(|| parent.metadata.uid.clone())),
                parent: Some(parent.metadata.uid.clone()),
                depth: above.depth + 1,
                ..Lineage::default()
            };
        }
        self.judge.born(&uid, self.mono(), is_first_start);
        self.note(|| format!("{name} is made below {:?}", session.spec.parent));
        self.shelf.sessions.insert(name.clone(), session);
        self.wake(&name);
    }

    fn may_have_child(&self, parent: &Session) -> bool {
        parent.status.lineage.depth < self.setting.depth
            && self.shelf.children_of(&parent.metadata.uid).len() < self.setting.fan_out
            && !crate::plan::must_tell_children(parent)
            && !parent.metadata.is_first_start()
    }

    fn ask_turn(&mut self) {
        let Some(session) = self.any_session() else { return };
        if crate::plan::must_tell_children(&session) || session.metadata.is_first_start() {
            return;
        }
        let (key, parent) = (session.metadata.name, session.status.lineage.parent);
        let is_busy = self.shelf.turns_of(&key).any(|turn| !turn.status.phase.is_final());
        let is_immediate = self.one_in(2);
        let is_full = !has_free_slot(&self.shelf.holders, parent.as_ref(), LIMITS);
        if is_immediate && (is_busy || is_full) {
            return;
        }
        let uid = self.next_uid();
        let name = format!("{key}-{:04}", self.uids);
        let mut meta = metadata(&name, uid.as_str());
        meta.resource_version = self.shelf.next_revision();
        let mut spec =
            TurnSpec { session: key.clone(), prompt: Some("hello".into()), ..TurnSpec::default() };
        if is_immediate {
            spec.admission = Admission::Immediate;
            spec.source.kind = SourceKind::Spawn;
            self.shelf.holders.push(Holder { turn: uid, parent });
        }
        self.note(|| format!("{name} is asked for ({:?})", spec.admission));
        self.shelf.turns.insert(Name::from(name), Turn::new(meta, spec));
        self.wake(&key);
    }

    fn ask_turn_cancel(&mut self) {
        let open: Vec<_> = self
            .shelf
            .turns
            .values()
            .filter(|turn| !turn.status.phase.is_final())
            .map(|turn| (turn.metadata.name.clone(), turn.spec.session.clone()))
            .collect();
        if open.is_empty() {
            return;
        }
        let (name, session) = open[self.random.random_range(0..open.len())].clone();
        self.note(|| format!("{name} is cancelled"));
        self.shelf.edit_turn(&name, |turn| {
            turn.spec.desired_state = TurnDesiredState::Cancelled;
        });
        self.wake(&session);
    }

    fn ask_session_cancel(&mut self) {
        let Some(session) = self.any_session() else { return };
        let name = session.metadata.name;
        self.note(|| format!("{name} is stopped"));
        self.shelf.edit_session(&name, |session| {
            session.spec.desired_state = session.spec.desired_state.max(DesiredState::Cancelled);
        });
        self.wake(&name);
    }

    fn ask_other_clocks(&mut self) {
        let Some(session) = self.any_session() else { return };
        let name = session.metadata.name;
        let ttl = [None, Some(Dur::from_secs(30)), Some(Dur::from_secs(9000))];
        let ttl = ttl[self.random.random_range(0..3)];
        self.shelf.edit_session(&name, |session| session.spec.ttl = ttl);
        self.wake(&name);
    }

    fn ask_deletion(&mut self) {
        let Some(session) = self.any_session() else { return };
        let now = self.now().time;
        let (name, children) = {
            let children = self.shelf.children_of(&session.metadata.uid);
            (session.metadata.name, children)
        };
        let may_let_go = children.iter().all(|child| !child.spec.auto_stop_on_parent);
        let order = match self.random.random_range(0..3) {
            0 => "Foreground",
            1 if may_let_go => "Orphan",
            _ => "Background",
        };
        self.note(|| format!("{name} is deleted ({order})"));
        self.shelf.edit_session(&name, |session| {
            if !session.metadata.is_deleting() {
                session
                    .metadata
                    .annotations
                    .insert(DELETION_PROPAGATION.to_owned(), order.to_owned());
                session.metadata.deletion_timestamp = Some(now);
            }
        });
        self.wake(&name);
    }
}
