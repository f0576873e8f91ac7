//! The promises, checked where they can be broken: at each commit and each effect.
//!
//! It knows what really happened (what agents were given, which processes exist), and holds it
//! against what the records say.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::shelf::{LIMITS, Shelf};
use super::{Outcome, broken};
use crate::api::session::DesiredState;
use crate::api::turn::{Delivery, TurnStatus};
use crate::api::{PermissionRequest, Session, Time, Turn, Uid};
use crate::clock::{Mono, Now};
use crate::plan::spending::tokens_of;
use crate::plan::{Change, holds_slot};

/// What a life has seen, so that a test can demand that all of it occurs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) prompts: usize,
    pub(super) ended_turns: usize,
    pub(super) removed_sessions: usize,
    pub(super) crashes: usize,
    pub(super) crashes_within_a_pass: usize,
    pub(super) conflicts: usize,
    pub(super) faults: usize,
    pub(super) clock_jumps: usize,
    pub(super) unconfirmed_kills: usize,
    /// Launches of sessions that are there for one.
    pub(super) first_starts: usize,
    /// Questions that agents were answered one by one.
    pub(super) answers: usize,
    pub(super) reasons: BTreeSet<String>,
    /// Lives and ends that an earlier daemon recorded ahead of the clock.
    pub(super) times_set_right: usize,
    /// The most tokens that were counted of one tree.
    pub(super) tokens: u64,
    /// The most passes over one session between two moments.
    pub(super) passes_at_once: usize,
}

impl Seen {
    /// Adds what another life has seen.
    pub(super) fn add(&mut self, other: Self) {
        self.prompts += other.prompts;
        self.ended_turns += other.ended_turns;
        self.removed_sessions += other.removed_sessions;
        self.crashes += other.crashes;
        self.crashes_within_a_pass += other.crashes_within_a_pass;
        self.conflicts += other.conflicts;
        self.faults += other.faults;
        self.clock_jumps += other.clock_jumps;
        self.unconfirmed_kills += other.unconfirmed_kills;
        self.first_starts += other.first_starts;
        self.answers += other.answers;
        self.reasons.extend(other.reasons);
        self.times_set_right += other.times_set_right;
        self.tokens = self.tokens.max(other.tokens);
        self.passes_at_once = self.passes_at_once.max(other.passes_at_once);
    }
}

/// When a session was made, by every clock.
#[derive(Clone, Copy, Debug)]
struct Birth {
    mono: Mono,
    /// Which run of the daemon.
    boot: usize,
    /// Whether it is there for one start of its agent, and how often that was launched.
    first_start: Option<usize>,
    /// From when its ttl counts, if that was set right.
    counts_from: Option<Time>,
}

/// What really happened.
#[derive(Default)]
pub(super) struct Judge {
    pub(super) seen: Seen,
    /// Prompts that were on their way to an agent, by turn.
    submitted: BTreeSet<Uid>,
    /// Those that an agent has.
    given: BTreeSet<Uid>,
    ended: BTreeMap<Uid, TurnStatus>,
    gone: BTreeSet<Uid>,
    births: BTreeMap<Uid, Birth>,
    /// Tokens that turns used, by tree.
    used: BTreeMap<Uid, u64>,
    pub(super) boot: usize,
    /// When that run began.
    pub(super) begun: Option<Now>,
}

impl Judge {
    pub(super) fn born(&mut self, session: &Uid, mono: Mono, is_first_start: bool) {
        let first_start = is_first_start.then_some(0);
        self.births.insert(
            session.clone(),
            Birth { mono, boot: self.boot, first_start, counts_from: None },
        );
    }

    /// A prompt is on its way to an agent (P2, P5).
    pub(super) fn submitted(&mut self, turn: &Uid, session: &Uid) -> Outcome {
        if self.gone.contains(session) {
            return broken(format!("P5: {session} is gone and was given a prompt"));
        }
        if !self.submitted.insert(turn.clone()) {
            return broken(format!("P2: the prompt of {turn} was given twice"));
        }
        Ok(())
    }

    /// An agent has a prompt, whole.
    pub(super) fn given(&mut self, turn: &Uid) {
        self.given.insert(turn.clone());
        self.seen.prompts += 1;
    }

    /// A process was started (P5, P6); for a first start only once.
    pub(super) fn launched(&mut self, session: &Uid, is_alive: bool) -> Outcome {
        if self.gone.contains(session) {
            return broken(format!("P5: {session} is gone and was started again"));
        }
        if is_alive {
            return broken(format!("P6: {session} has a process and was started again"));
        }
        let birth = self.births.get_mut(session);
        if let Some(launches) = birth.and_then(|birth| birth.first_start.as_mut()) {
            *launches += 1;
            self.seen.first_starts += 1;
            if *launches > 1 {
                return broken(format!("first start: {session} was started {launches} times"));
            }
        }
        Ok(())
    }

    /// A commit is about to be written over `stored`.
    pub(super) fn commit(
        &mut self,
        shelf: &Shelf,
        stored: &Session,
        change: &Change,
        is_alive: bool,
        now: Now,
    ) -> Outcome {
        let uid = &stored.metadata.uid;
        if let Some(session) = &change.session {
            self.session(stored, session, is_alive, now)?;
        }
        for turn in &change.turns {
            let seen = shelf.turns.get(&turn.metadata.name);
            self.turn(seen, turn)?;
        }
        for turn in &change.remove_turns {
            let goes = may_be_removed(stored, now.time)
                || shelf.turns.get(&turn.metadata.name).is_some_and(|t| t.metadata.is_deleting());
            if !goes {
                return broken(format!("P1: {} was removed unasked", turn.metadata.name));
            }
        }
        if change.removes_session {
            if is_alive {
                return broken(format!("P6: {uid} was removed while it has a process"));
            }
            if !shelf.children_of(uid).is_empty() {
                return broken(format!("P7: {uid} was removed before its children"));
            }
            if !may_be_removed(stored, now.time) {
                return broken(format!("P1: {uid} was removed unasked"));
            }
            self.gone.insert(uid.clone());
            self.seen.removed_sessions += 1;
        }
        Ok(())
    }

    fn session(&mut self, stored: &Session, wanted: &Session, is_alive: bool, now: Now) -> Outcome {
        let name = &stored.metadata.name;
        if wanted.spec != stored.spec {
            return broken(format!("P14: the loop wrote the spec of {name}"));
        }
        if stored.metadata.is_deleting() && !wanted.metadata.is_deleting() {
            return broken(format!("P14: the deletion of {name} was lost"));
        }
        if stored.status.end.is_some() && wanted.status.end != stored.status.end {
            return broken(format!("P3: {name} ended twice"));
        }
        let finishes = stored.status.finished_at.is_none() && wanted.status.finished_at.is_some();
        if finishes && is_alive {
            return broken(format!("P6: {name} is told as ended and has a process"));
        }
        self.set_right(stored, wanted)?;
        let Some(end) = wanted.status.end.as_ref().filter(|_| stored.status.end.is_none()) else {
            return Ok(());
        };
        self.seen.reasons.insert(end.reason.clone());
        // A later daemon goes by the wall clock as it found it: only this one's word counts.
        let birth = self.births.get(&stored.metadata.uid);
        let lived = birth.filter(|birth| birth.boot == self.boot).map(|b| now.mono.since(b.mono));
        if let (Some(lived), Some(ttl), "TtlExpired") = (lived, stored.spec.ttl, &*end.reason)
            && lived < ttl.get()
        {
            return broken(format!("P11: {name} lived {lived:?} of its {ttl}"));
        }
        Ok(())
    }

    /// A life that was found to begin ahead of the clock begins here, for this daemon.
    fn set_right(&mut self, stored: &Session, wanted: &Session) -> Outcome {
        let (old, new) = (&stored.status, &wanted.status);
        let is_kept_anew = old.finished_at.is_some() && old.finished_at != new.finished_at;
        let lives_anew = old.ttl_counts_from != new.ttl_counts_from;
        self.seen.times_set_right += usize::from(is_kept_anew) + usize::from(lives_anew);
        let (Some(from), Some(begun)) = (new.ttl_counts_from.filter(|_| lives_anew), self.begun)
        else {
            return Ok(());
        };
        if from < begun.time {
            return broken(format!("P11: {} counts from before its daemon", stored.metadata.name));
        }
        if let Some(birth) = self.births.get_mut(&stored.metadata.uid) {
            if birth.counts_from.is_some_and(|before| before <= begun.time) {
                let name = &stored.metadata.name;
                return broken(format!(
                    "P11: {name} has its whole time again, by a clock that ran on"
                ));
            }
            birth.counts_from = Some(from);
            // The pass looked a while before it could write.
            (birth.mono, birth.boot) = (begun.mono.plus(from.since(begun.time)), self.boot);
        }
        Ok(())
    }

    /// A session that is ended for silence was silent (P10). What its agent says between the look
    /// and the commit comes too late.
    pub(super) fn silence(&self, stored: &Session, change: &Change, quiet: Duration) -> Outcome {
        let end = change.session.as_ref().and_then(|session| session.status.end.as_ref());
        let is_new = stored.status.end.is_none() && end.is_some_and(|e| e.reason == "Inactivity");
        let allowed = stored.spec.turn_inactivity_timeout.get();
        if is_new && quiet < allowed {
            let name = &stored.metadata.name;
            return broken(format!("P10: {name} was ended after {quiet:?} of {allowed:?}"));
        }
        Ok(())
    }

    /// Requests for permission end once, keep what was decided, and go before their session.
    pub(super) fn requests(&self, shelf: &Shelf, stored: &Session, change: &Change) -> Outcome {
        for wanted in &change.requests {
            let name = &wanted.metadata.name;
            let Some(seen) = shelf.requests.get(name) else { continue };
            if !seen.status.phase.is_pending() {
                return broken(format!("P3: {name} has ended and was written again"));
            }
            if seen.spec != wanted.spec {
                return broken(format!("P14: the loop wrote the spec of {name}"));
            }
        }
        let is_its = |one: &PermissionRequest| one.spec.session == stored.metadata.name;
        if change.removes_session && shelf.requests.values().any(is_its) {
            return broken("P7: a session was removed before its requests".to_owned());
        }
        Ok(())
    }

    fn turn(&mut self, stored: Option<&Turn>, wanted: &Turn) -> Outcome {
        let (name, uid) = (&wanted.metadata.name, &wanted.metadata.uid);
        let Some(stored) = stored else {
            return broken(format!("P5: {name} is gone and was written again"));
        };
        if stored.spec != wanted.spec {
            return broken(format!("P14: the loop wrote the spec of {name}"));
        }
        if stored.status.phase.is_final() {
            return broken(format!("P3: {name} is final and was written again"));
        }
        let was_given = self.given.contains(uid);
        if wanted.status.delivery == Delivery::Sent && !was_given {
            return broken(format!("P4: {name} is told as sent; no agent has it"));
        }
        if !wanted.status.phase.is_final() {
            return Ok(());
        }
        if wanted.status.delivery == Delivery::NotSent && was_given {
            return broken(format!("P2: {name} is told as not sent; an agent has it"));
        }
        if self.ended.insert(uid.clone(), wanted.status.clone()).is_some() {
            return broken(format!("P3: {name} ended twice"));
        }
        self.seen.ended_turns += 1;
        Ok(())
    }

    /// What a commit's turns used more than was recorded of them.
    pub(super) fn used(&mut self, shelf: &Shelf, stored: &Session, change: &Change) {
        let sum = self.used.entry(shelf.tree_id(stored)).or_default();
        for turn in &change.turns {
            let seen = shelf.turns.get(&turn.metadata.name);
            let before = tokens_of(seen.and_then(|turn| turn.status.usage.as_ref()));
            *sum += tokens_of(turn.status.usage.as_ref()).saturating_sub(before);
        }
    }

    /// What is counted of each tree is what its turns used, deleted ones too.
    pub(super) fn sums(&mut self, shelf: &Shelf) -> Outcome {
        for session in shelf.sessions.values() {
            let tree = shelf.tree_id(session);
            let counted = shelf.ledgers.get(&tree).and_then(|(used, _)| used["tokens"].as_u64());
            let (counted, used) = (counted.unwrap_or(0), self.used.get(&tree).copied());
            if counted != used.unwrap_or(0) {
                return broken(format!(
                    "H11: {counted} tokens of {tree} are counted, {used:?} were used"
                ));
            }
            self.seen.tokens = self.seen.tokens.max(counted);
        }
        Ok(())
    }

    /// Who holds a slot, after a commit: nobody beyond the bounds, and those who should.
    pub(super) fn slots(&self, shelf: &Shelf) -> Outcome {
        if shelf.holders.len() > LIMITS.max_active_turns {
            return broken("A5: more turns than slots");
        }
        for holder in &shelf.holders {
            let of_parent = shelf.holders.iter().filter(|other| other.parent == holder.parent);
            if holder.parent.is_some() && of_parent.count() > LIMITS.max_active_turns_per_parent {
                return broken("A5: more turns of one parent than it may have");
            }
        }
        let should: BTreeSet<_> =
            shelf.turns.values().filter(|t| holds_slot(t)).map(|t| &t.metadata.uid).collect();
        let do_hold: BTreeSet<_> = shelf.holders.iter().map(|holder| &holder.turn).collect();
        if should != do_hold {
            return broken(format!("A5: {do_hold:?} hold slots, {should:?} should"));
        }
        Ok(())
    }
}

/// Whether somebody asked for a session's removal, or its time is over.
fn may_be_removed(session: &Session, now: Time) -> bool {
    let keep = session.spec.ttl_after_finished;
    let is_over =
        session.status.finished_at.is_some_and(|at| !keep.is_zero() && now >= at.plus(keep.get()));
    session.metadata.is_deleting() || session.spec.desired_state == DesiredState::Deleted || is_over
}
