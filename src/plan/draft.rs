//! A plan in the making: the records as they shall stand, the effects, and what is waited for.

use std::time::Duration;

use crate::api::session::SessionEnd;
use crate::api::turn::{Admission, Delivery, TurnPhase};
use crate::api::{Name, Session, Time, Turn, TurnStatus};
use crate::clock::Now;

use super::world::{Rung, World};
use super::{Change, Plan, Requeue, Step, bounds, signs, spending, status};

/// What the stages of a pass hand on to each other.
pub(super) struct Draft<'w> {
    /// What was seen.
    pub(super) world: &'w World,
    /// When.
    pub(super) now: Now,
    /// The session as it shall stand.
    pub(super) session: Session,
    /// The open turns as they shall stand, in the world's order.
    pub(super) turns: Vec<Turn>,
    /// Everything else that is recorded.
    pub(super) change: Change,
    /// Whether a turn waits for one of the daemon's slots.
    pub(super) waits_for_slot: bool,
    /// Children that must look at their world.
    pub(super) wakes: Vec<Name>,
    wakes_processes: bool,
    effects: Vec<Step>,
    wake: Option<Duration>,
    why: String,
}

impl<'w> Draft<'w> {
    pub(super) fn new(world: &'w World, now: Now) -> Self {
        Self {
            world,
            now,
            session: world.session.clone(),
            turns: world.turns.iter().map(|turn| turn.record.clone()).collect(),
            change: Change::default(),
            waits_for_slot: false,
            wakes: Vec::new(),
            wakes_processes: false,
            effects: Vec::new(),
            wake: None,
            why: String::new(),
        }
    }

    /// The moment that goes into records.
    pub(super) const fn time(&self) -> Time {
        self.now.time
    }

    /// Adds an effect, carried out after everything was recorded.
    pub(super) fn act(&mut self, step: Step) {
        self.effects.push(step);
    }

    /// Whether the agent is told to cancel in this pass.
    pub(super) fn cancels(&self) -> bool {
        self.effects.iter().any(|step| {
            matches!(
                step,
                Step::CancelPrompt { .. } | Step::Stop { rung: Rung::Cancel | Rung::Close, .. }
            )
        })
    }

    /// Looks at the session again after `duration` at the latest.
    pub(super) fn wake_in(&mut self, duration: Duration) {
        self.wake = Some(self.wake.map_or(duration, |earlier| earlier.min(duration)));
    }

    /// Says what is waited for or was decided. The first word counts: it names the deepest cause.
    pub(super) fn because(&mut self, why: impl Into<String>) {
        if self.why.is_empty() {
            self.why = why.into();
        }
    }

    /// The index of the turn that has the session: taken and not final.
    pub(super) fn active_turn(&self) -> Option<usize> {
        self.turns.iter().position(is_taken)
    }

    /// The indexes of the turns that wait, oldest first.
    pub(super) fn pending_turns(&self) -> Vec<usize> {
        let pending = |turn: &Turn| turn.status.phase == TurnPhase::Pending;
        (0..self.turns.len()).filter(|&index| pending(&self.turns[index])).collect()
    }

    /// Ends a turn for ever: the session's pointers move.
    pub(super) fn conclude(&mut self, index: usize, ended: TurnStatus) {
        let turn = &mut self.turns[index];
        let was_taken = is_taken(turn);
        turn.status = ended;
        let turn = turn.clone();
        let status = &mut self.session.status;
        if turn.status.delivery != Delivery::NotSent {
            status.prompted = true;
        }
        // It took the prompt, and what stood before it.
        status.introduced |= turn.status.stop_reason.is_some();
        if turn.status.phase != TurnPhase::Discarded {
            status.latest_turn = Some(turn.metadata.name.clone());
            status.latest_response_id.clone_from(&turn.status.response_id);
        }
        if was_taken {
            status.idle_since = Some(self.now.time);
        }
        if turn.status.phase == TurnPhase::Completed {
            status.restarts = crate::api::session::Restarts::default();
        }
        if turn.metadata.is_deleting() {
            self.change.remove_turns.push(turn);
        }
    }

    /// Puts a taken turn that was surely not sent back into the queue. One that must not wait for a
    /// slot keeps the one that it has.
    pub(super) fn put_back(&mut self, index: usize, reason: &str, message: String) {
        let turn = &mut self.turns[index];
        turn.status = TurnStatus {
            reason: reason.to_owned(),
            message,
            warnings: Vec::new(),
            ..TurnStatus::default()
        };
        self.session.status.idle_since = Some(self.now.time);
    }

    /// Decides how the session ends, once: a later cause changes nothing.
    pub(super) fn end_session(&mut self, end: SessionEnd) {
        if self.session.status.end.is_none() {
            self.session.status.end = Some(end);
        }
    }

    /// Counts what this pass records of use into the session's tree.
    fn spend(&mut self) {
        let tree = &self.world.tree;
        self.change.tree_used = spending::after(self.world, &self.session, &self.turns);
        let used = self.change.tree_used.as_ref().or(tree.used.as_ref());
        if spending::is_root(&self.session) {
            self.session.status.tree_usage = used.cloned();
        } else if self.change.tree_used.is_some() {
            self.wakes.extend(tree.root.clone());
        }
        let was_over = tree.limits.excess(tree.used.as_ref()).is_some();
        self.wakes_processes = !was_over && tree.limits.excess(used).is_some();
    }

    /// The plan: what differs from the world is recorded first, then the effects follow.
    pub(super) fn finish(mut self) -> Plan {
        if !self.change.removes_session {
            status::derive(&mut self.session, &self.turns, self.world, self.now, &self.why);
            // It waits from the commit on that makes it.
            let made = u32::from(self.change.wake.is_some());
            self.session.status.queued_turns =
                self.session.status.queued_turns.saturating_add(made);
            self.spend();
            bounds::session(&mut self.session);
            if status::is_worth_writing(&self.world.session, &self.session) {
                self.change.session = Some(self.session.clone());
            }
        }
        signs::tell(self.world, &self.session, &mut self.change.agent, self.now.time);
        if let Some(agent) = &mut self.change.agent {
            bounds::agent(agent);
            // What a session's role takes from it is that session's alone.
            if let Some(own) = &self.world.agent_spec {
                agent.spec = (**own).clone();
            }
        }
        self.turns.iter_mut().for_each(bounds::turn);
        let removed: Vec<_> =
            self.change.remove_turns.iter().map(|t| t.metadata.uid.clone()).collect();
        for (seen, wanted) in self.world.turns.iter().zip(&self.turns) {
            // By what is recorded, whatever the turn went through in this pass: no slot leaks.
            if !is_taken(&seen.record) && is_taken(wanted) {
                self.change.take_slot = Some(wanted.metadata.uid.clone());
            }
            if holds_slot(&seen.record) && !holds_slot(wanted) {
                self.change.free_slots.push(wanted.metadata.uid.clone());
            }
            if seen.record != *wanted && !removed.contains(&wanted.metadata.uid) {
                self.change.turns.push(wanted.clone());
            }
        }
        let standing = status::standing(&self.session, &self.turns, self.world);
        let diff = diff(self.world, &self.session);
        let mut steps = Vec::with_capacity(self.effects.len() + 1);
        if self.change != Change::default() {
            steps.push(Step::Record(Box::new(self.change)));
        }
        steps.append(&mut self.effects);
        let requeue = self.wake.map_or(Requeue::AwaitChange, Requeue::After);
        let Self { waits_for_slot, wakes, wakes_processes, why, .. } = self;
        Plan { steps, requeue, waits_for_slot, wakes, wakes_processes, standing, why, diff }
    }
}

/// Whether a turn holds one of the daemon's slots: from when it was taken, or from its admission on
/// if it must not wait for one, until it is final.
#[must_use]
pub fn holds_slot(turn: &Turn) -> bool {
    let waits_with_slot =
        turn.status.phase == TurnPhase::Pending && turn.spec.admission == Admission::Immediate;
    is_taken(turn) || waits_with_slot
}

/// Which of a session's turns is next: one that has its slot already, so that it never waits behind
/// one that waits for a slot; else the oldest that waits.
#[must_use]
pub fn next_turn(turns: &[Turn]) -> Option<usize> {
    let is_pending = |turn: &Turn| turn.status.phase == TurnPhase::Pending;
    let with_slot = turns.iter().position(|turn| is_pending(turn) && holds_slot(turn));
    with_slot.or_else(|| turns.iter().position(is_pending))
}

/// Whether a turn was taken and is not final: it has the session, and one of the daemon's slots.
#[must_use]
pub const fn is_taken(turn: &Turn) -> bool {
    match turn.status.phase {
        TurnPhase::Starting | TurnPhase::Running | TurnPhase::Cancelling => true,
        TurnPhase::Pending
        | TurnPhase::Completed
        | TurnPhase::Failed
        | TurnPhase::Cancelled
        | TurnPhase::Expired
        | TurnPhase::Interrupted
        | TurnPhase::Discarded => false,
    }
}

/// What differs from the desired state, for reports.
fn diff(world: &World, session: &Session) -> Vec<String> {
    let mut diff = Vec::new();
    let desired = session.spec.desired_state;
    if desired != crate::api::session::DesiredState::Running && session.status.finished_at.is_none()
    {
        diff.push(format!("desired {desired:?}, not finished"));
    }
    for turn in &world.turns {
        diff.push(format!("turn {} is {:?}", turn.record.metadata.name, turn.record.status.phase));
    }
    if session.metadata.is_deleting() {
        diff.push("deletion was asked for, the record is still there".to_owned());
    }
    diff
}
