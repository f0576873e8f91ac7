//! Ends: of turns whose process or daemon is gone, and of sessions.
//!
//! A session's end is decided once and recorded before anything of it is carried out. It is
//! complete (`finishedAt`) only when its process tree is proven empty; until then the running turn
//! keeps its slot.

use std::time::Duration;

use crate::api::session::{DesiredState, EndOutcome, ProcessState, SessionEnd};
use crate::api::turn::{
    Admission, Cancel, CancelBy, Delivery, SourceKind, TurnDesiredState, TurnPhase,
};
use crate::api::{Code, PROCESS_FINALIZER};

use super::draft::{Draft, holds_slot};
use super::turn::{Ending, conclude, start_failure_code};
use super::world::{Call, Fault, Live, Process, Stage, StartFailure, StopCause};
use super::{Step, cascade, configure, first_start, launch, notice, permission, stop, usage};

/// How often a process that could not be proven gone is looked at again.
const UNPROVEN_RECHECK: Duration = Duration::from_secs(5);
/// Waiting turns that end in one commit, which has 64 operations: an inbox may hold more.
pub(super) const ENDED_TURNS_MAX: usize = 8;
/// Turns removed in one commit: each is up to seven operations, of 64.
pub(super) const REMOVED_TURNS_MAX: usize = 8;

/// Ends a turn and moves the session's pointers.
pub(super) fn turn(draft: &mut Draft<'_>, index: usize, ending: &Ending<'_>) {
    let mut ended = conclude(&draft.turns[index], ending, draft.world.live(), draft.time());
    usage::add_turn(&mut draft.session.status.usage, ended.usage.as_ref());
    if ended.delivery != Delivery::NotSent && ended.response_id.is_none() {
        // What a daemon that is gone has stored of the answer stays readable.
        ended.response_id = Some(draft.turns[index].metadata.uid.clone());
        ended.response_bytes = draft.world.turns[index].stored_response_bytes;
    }
    ended.notice = notice::of_end(draft, index, &ended);
    draft.because(format!("turn {} ended: {:?}", draft.turns[index].metadata.name, ended.phase));
    draft.conclude(index, ended);
}

/// The code of a turn that the daemon's end interrupted.
const fn interruption(stopped_cleanly: bool) -> Code {
    if stopped_cleanly { Code::AppShutdown } else { Code::AppRestarted }
}

/// Turns that hold a slot by a daemon before this one: what was surely not sent and may wait waits
/// again, the rest is interrupted and never sent again.
pub(super) fn interrupt_turns(draft: &mut Draft<'_>) {
    if draft.world.may_have_running_process() {
        return;
    }
    let code = interruption(draft.world.daemon.stopped_cleanly);
    for index in 0..draft.turns.len() {
        let seen = &draft.world.turns[index];
        let (spec, status) = (&seen.record.spec, &seen.record.status);
        if !holds_slot(&seen.record) || seen.is_taken_here {
            continue;
        }
        let session_ends = draft.session.spec.desired_state > DesiredState::Running
            || draft.session.metadata.is_deleting();
        let cancelled = spec.desired_state == TurnDesiredState::Cancelled || session_ends;
        let delivery = match status.delivery {
            Delivery::Unknown if !seen.is_in_journal => Delivery::NotSent,
            kept @ (Delivery::NotSent | Delivery::Unknown | Delivery::Sent) => kept,
        };
        if cancelled || status.cancel.is_some() {
            let by = if session_ends { cascade::asked_by(draft) } else { CancelBy::Operator };
            mark_cancel(draft, index, by);
            draft.turns[index].status.delivery = delivery;
            let gone = Ending::ProcessGone { status: "the daemon restarted", stderr: "" };
            turn(draft, index, &gone);
        } else if status.delivery == Delivery::NotSent && spec.admission == Admission::Queue {
            draft.put_back(index, "Requeued", "the daemon restarted before it was sent".to_owned());
        } else {
            turn(draft, index, &Ending::Interrupted { code, delivery });
        }
    }
}

/// Says in the record who cancels a turn, once.
pub(super) fn mark_cancel(draft: &mut Draft<'_>, index: usize, by: CancelBy) {
    let at = draft.time();
    let status = &mut draft.turns[index].status;
    if status.cancel.is_none() {
        status.cancel = Some(Cancel { by, reason: launch::asked_by(by).to_owned(), at });
    }
}

/// Takes over what the agent answered, then what became of the process.
pub(super) fn settle(draft: &mut Draft<'_>) {
    let world = draft.world;
    if let Some(live) = world.live() {
        live.usage.write_to(&mut draft.session.status.usage);
        settle_prompt(draft, live);
    }
    // What became of a process is drawn from it once: with the record that it is gone.
    let was_recorded = world.session.status.process.is_some();
    match &world.process {
        Process::Absent => draft.session.status.process = None,
        Process::NotStarted { failure } => {
            draft.session.status.process = None;
            draft.act(Step::Forget);
            if was_recorded {
                start_failed(draft, failure);
            }
        }
        Process::Live(live) => {
            if let Some(process) = &mut draft.session.status.process {
                process.pid = live.pid;
            }
            if let Stage::Empty { status } = &live.stage {
                draft.session.status.process = None;
                draft.act(Step::Forget);
                if was_recorded {
                    process_gone(draft, live, status);
                }
            }
        }
        Process::Unproven => {
            if let Some(process) = &mut draft.session.status.process {
                process.state = ProcessState::Unknown;
            }
            draft.because("a process whose start was given up is not proven gone");
            draft.wake_in(UNPROVEN_RECHECK);
        }
    }
}

/// The turn that the agent has, if its record is open.
fn prompted_turn(draft: &Draft<'_>, live: &Live) -> Option<usize> {
    let prompt = live.prompt.as_ref()?;
    let index = draft.turns.iter().position(|turn| turn.metadata.uid == prompt.turn)?;
    (!draft.turns[index].status.phase.is_final()).then_some(index)
}

fn settle_prompt(draft: &mut Draft<'_>, live: &Live) {
    let Some(index) = prompted_turn(draft, live) else { return };
    configure::note_dispatch(draft, index, live);
    let Some(prompt) = &live.prompt else { return };
    if prompt.spent != usage::Spent::default() {
        draft.turns[index].status.usage = live.usage.of_turn(None, &prompt.spent);
    }
    if let Some(failure) = &prompt.persist_failure {
        turn(draft, index, &Ending::PersistFailed(failure));
        if prompt.end.is_none() && live.stop.is_none() && live.stage == Stage::Running {
            // The agent still works on what cannot be kept: no other prompt may meet it.
            stop::climb(draft, live, &StopCause::Broken);
        }
    } else if let Some(end) = &prompt.end {
        let stopping = matches!(&live.stop, Some(stop) if stop.cause == StopCause::Shutdown);
        if stopping && end.is_after_cancel && draft.turns[index].status.cancel.is_none() {
            let delivery = draft.turns[index].status.delivery;
            turn(draft, index, &Ending::Interrupted { code: Code::AppShutdown, delivery });
        } else {
            turn(draft, index, &Ending::Answered(end));
        }
    }
}

/// The process tree is proven empty: what that means for the turn that had it.
fn process_gone(draft: &mut Draft<'_>, live: &Live, exit: &str) {
    let active = draft.active_turn();
    let cause = live.stop.as_ref().map(|stop| &stop.cause);
    let was_open = matches!(live.acp.open, Call::Done(_));
    match (cause, active) {
        (Some(StopCause::StartFailed(failure)), _) => start_failed(draft, failure),
        (Some(StopCause::Shutdown), None) => first_start::interrupted(draft),
        (Some(StopCause::Unconfirmed), Some(index)) => turn(draft, index, &Ending::Unconfirmed),
        (Some(StopCause::Shutdown), Some(index)) => shut_down(draft, index),
        // The session's end concludes its turns itself; an idle process takes none with it.
        (
            Some(StopCause::End | StopCause::Idle | StopCause::Unconfirmed | StopCause::Abandoned),
            _,
        ) => {}
        (Some(StopCause::Broken) | None, active)
            if !was_open && (active.is_some() || draft.session.metadata.is_first_start()) =>
        {
            let stage = launch::unanswered(live);
            let message = format!("the agent ended before it was ready{stage} ({exit})");
            let message = launch::with_stderr(message, live);
            start_failed(draft, &StartFailure { reason: "AgentExited", message });
        }
        (Some(StopCause::Broken) | None, Some(index)) if fault(Some(live)).is_some() => {
            // The session's end says what the agent did; that it was stopped for it is our doing.
            let message = fault(Some(live)).map_or("", fault_message).to_owned();
            turn(draft, index, &Ending::Refused { code: Code::TurnFailed, message });
        }
        (Some(StopCause::Broken) | None, Some(index)) => {
            let failure = StartFailure {
                reason: "AgentExited",
                message: launch::with_stderr(format!("the agent's process ended ({exit})"), live),
            };
            launch::count_failed_start(draft, &failure);
            if draft.turns[index].status.delivery == Delivery::NotSent {
                turn(draft, index, &Ending::StartFailed(&failure));
            } else {
                turn(
                    draft,
                    index,
                    &Ending::ProcessGone { status: exit, stderr: &live.stderr_tail },
                );
            }
        }
        (Some(StopCause::Broken) | None, None) => {}
    }
}

fn shut_down(draft: &mut Draft<'_>, index: usize) {
    let (spec, status) = (&draft.turns[index].spec, &draft.turns[index].status);
    let delivery = status.delivery;
    if status.cancel.is_some() && delivery == Delivery::NotSent {
        turn(draft, index, &Ending::NeverSent);
    } else if status.cancel.is_some() {
        turn(draft, index, &Ending::Unconfirmed);
    } else if delivery == Delivery::NotSent && spec.admission == Admission::Queue {
        draft.put_back(index, "Requeued", "the daemon stopped before it was sent".to_owned());
    } else {
        turn(draft, index, &Ending::Interrupted { code: Code::AppShutdown, delivery });
    }
}

/// A start failed: counted, and the turn waits again or fails. A session that was never prompted
/// loses nothing by waiting, unless an agent waits for it: then its first failure is its end.
fn start_failed(draft: &mut Draft<'_>, failure: &StartFailure) {
    launch::count_failed_start(draft, failure);
    let Some(index) = draft.active_turn() else {
        first_start::failed(draft, failure);
        return;
    };
    let status = &draft.turns[index].status;
    if status.delivery != Delivery::NotSent {
        // It may have the prompt: never back into the queue.
        turn(draft, index, &Ending::ProcessGone { status: failure.reason, stderr: "" });
    } else if status.cancel.is_some() {
        turn(draft, index, &Ending::NeverSent);
    } else if draft.session.status.acp_session_id.is_some() {
        turn(draft, index, &Ending::StartFailed(failure));
    } else if draft.turns[index].spec.source.kind == SourceKind::Spawn
        && !draft.session.status.prompted
    {
        turn(draft, index, &Ending::StartFailed(failure));
        of_start(draft, failure);
    } else {
        draft.put_back(index, failure.reason, failure.message.clone());
    }
}

/// The session ends by a start that failed.
pub(super) fn of_start(draft: &mut Draft<'_>, failure: &StartFailure) {
    let at = draft.time();
    draft.end_session(SessionEnd {
        outcome: EndOutcome::Failed,
        reason: "StartupFailure".to_owned(),
        message: failure.message.clone(),
        code: Some(start_failure_code(failure.reason)),
        at,
    });
}

/// Decides whether and how the session ends, if it is not decided yet.
pub(super) fn decide(draft: &mut Draft<'_>) {
    if draft.session.status.end.is_some() {
        return;
    }
    let of_fault = |fault: Fault| SessionEnd {
        outcome: EndOutcome::Failed,
        reason: fault.reason().to_owned(),
        message: fault_message(fault).to_owned(),
        code: Some(Code::TurnFailed),
        at: draft.now.time,
    };
    // Deletions before cancels, what was asked of the session itself before what its parent does.
    let by_owner = cascade::end_by_owner(draft);
    let end = match draft.session.spec.desired_state {
        DesiredState::Cancelled if !draft.session.metadata.is_deleting() => {
            Some(asked_for(draft, "Cancelled", "it was cancelled"))
        }
        DesiredState::Running | DesiredState::Cancelled | DesiredState::Deleted => by_owner
            .or_else(|| {
                cascade::is_removal_wanted(&draft.session)
                    .then(|| asked_for(draft, "Deleted", "its deletion was asked for"))
            })
            .or_else(|| fault(draft.world.live()).map(of_fault)),
    };
    if let Some(end) = end {
        draft.end_session(end);
    }
}

/// The end that the session's record asks for.
fn asked_for(draft: &Draft<'_>, reason: &str, message: &str) -> SessionEnd {
    let by_parent = cascade::asked_by(draft) == CancelBy::Parent;
    SessionEnd {
        outcome: EndOutcome::Stopped,
        reason: reason.to_owned(),
        message: if by_parent {
            launch::asked_by(CancelBy::Parent).to_owned()
        } else {
            message.to_owned()
        },
        code: Some(if by_parent { Code::TurnCancelledByParent } else { Code::TurnCancelled }),
        at: draft.time(),
    }
}

const fn fault_message(fault: Fault) -> &'static str {
    match fault {
        Fault::FrameTooLarge => "the agent wrote a line over the limit of 10 MiB",
        Fault::ProtocolFailure => {
            "the agent wrote 1000 lines in a minute that are no protocol, and none that is"
        }
    }
}

fn fault(live: Option<&Live>) -> Option<Fault> {
    live.and_then(|live| live.acp.fault)
}

/// Whether a session without a process can be gone on with.
pub(super) fn expire_if_lost(draft: &mut Draft<'_>) {
    let status = &draft.session.status;
    if status.end.is_some() || status.process.is_some() || !status.prompted {
        return;
    }
    let can_go_on = status.capabilities.as_ref().is_some_and(|found| found.resume || found.load);
    if !can_go_on {
        let message = "its process is gone and its agent can neither resume nor load a session";
        expire(draft, "NotResumable", message.to_owned());
    }
}

/// Ends the session as one that cannot go on.
pub(super) fn expire(draft: &mut Draft<'_>, reason: &str, message: String) {
    let at = draft.time();
    draft.end_session(SessionEnd {
        outcome: EndOutcome::Expired,
        reason: reason.to_owned(),
        message,
        code: Some(Code::AgentProcessInvalidated),
        at,
    });
}

/// Who cancels the turns of a session that ends so.
fn cancel_by(draft: &Draft<'_>, reason: &str) -> CancelBy {
    match reason {
        "TtlExpired" => CancelBy::Ttl,
        "Inactivity" => CancelBy::Inactivity,
        "ParentStopped" => CancelBy::ParentStopped,
        "ParentDeleted" | "Orphaned" => CancelBy::ParentDeleted,
        _ => draft.session.status.cancel.as_ref().map_or(CancelBy::Operator, |cancel| cancel.by),
    }
}

/// Carries out a session's end: turns, process, then the record. Its children are told first.
pub(super) fn carry_out(draft: &mut Draft<'_>) {
    let Some(end) = draft.session.status.end.clone() else { return };
    let has_told_children = cascade::has_told_children(draft);
    draft.because(format!("the session ends: {}", end.message));
    let waiting = draft.pending_turns();
    let has_more = waiting.len() > ENDED_TURNS_MAX;
    for index in waiting.into_iter().take(ENDED_TURNS_MAX) {
        if holds_slot(&draft.turns[index]) {
            // Somebody waits for it: it counts as begun.
            end_active_turn(draft, index, &end);
            continue;
        }
        let ending = Ending::Discarded {
            code: end.code.unwrap_or(Code::TurnCancelled),
            reason: "SessionEnded",
            message: format!("the session ended before the turn: {}", end.message),
            issues: Vec::new(),
        };
        turn(draft, index, &ending);
    }
    if has_more {
        draft.wake_in(Duration::ZERO);
    }
    if let Some(index) = draft.active_turn() {
        end_active_turn(draft, index, &end);
    }
    if draft.session.status.process.is_some() {
        stop_process(draft);
        return;
    }
    if draft.world.may_have_running_process() {
        return;
    }
    if has_more || draft.active_turn().is_some() || !has_told_children {
        return;
    }
    if draft.session.status.finished_at.is_none() {
        draft.session.status.finished_at = Some(draft.now.time);
    }
    remove(draft);
}

fn end_active_turn(draft: &mut Draft<'_>, index: usize, end: &SessionEnd) {
    if end.outcome == EndOutcome::Stopped {
        let by = cancel_by(draft, &end.reason);
        mark_cancel(draft, index, by);
    }
    let status = &draft.turns[index].status;
    if status.delivery == Delivery::NotSent {
        if end.outcome == EndOutcome::Stopped {
            turn(draft, index, &Ending::NeverSent);
        } else {
            let code = end.code.unwrap_or(Code::TurnFailed);
            turn(draft, index, &Ending::Refused { code, message: end.message.clone() });
        }
    } else if draft.session.status.process.is_none() && !draft.world.may_have_running_process() {
        if end.outcome == EndOutcome::Stopped {
            turn(draft, index, &Ending::Unconfirmed);
        } else {
            let code = end.code.unwrap_or(Code::TurnFailed);
            turn(draft, index, &Ending::Refused { code, message: end.message.clone() });
        }
    } else if end.outcome == EndOutcome::Stopped {
        draft.turns[index].status.phase = TurnPhase::Cancelling;
    }
}

fn stop_process(draft: &mut Draft<'_>) {
    let world = draft.world;
    let Some(live) = world.live() else { return };
    if cascade::holds_process(draft, live) {
        cascade::cancel_prompt(draft, live);
        return;
    }
    match &live.stage {
        Stage::Gated { .. } | Stage::Running | Stage::Unprovable => {
            let cause =
                if fault(Some(live)).is_some() { StopCause::Broken } else { StopCause::End };
            stop::climb(draft, live, &cause);
        }
        Stage::Exited { at, .. } => stop::await_empty(draft, live, *at),
        Stage::Empty { .. } => {}
    }
}

/// Removes what is left of a session that has ended, once that is wanted: turns first.
fn remove(draft: &mut Draft<'_>) {
    let is_wanted = cascade::is_removal_wanted(&draft.session);
    if !is_wanted && !super::deadlines::is_retention_over(draft) {
        return;
    }
    // Unknown counts as "something is left": the next pass has looked.
    if !permission::remove(draft) {
        return;
    }
    let Some(turns) = &draft.world.below else { return };
    if cascade::goes_with_owner(draft) {
        // Its deletion is recorded first, so that watchers see it coming.
        return;
    }
    if cascade::has_children(draft) {
        draft.because("waits for its children to go");
        return;
    }
    // What was concluded in this very pass is removed in the next one, so that watchers see its
    // final state.
    if !draft.world.turns.is_empty() {
        return;
    }
    if draft.session.metadata.finalizers.iter().any(|finalizer| finalizer != PROCESS_FINALIZER) {
        draft.because("waits for finalizers that others hold");
        return;
    }
    if turns.is_empty() {
        draft.because("the session is removed");
        draft.change.removes_session = true;
    } else {
        draft.change.remove_turns.extend(turns.iter().take(REMOVED_TURNS_MAX).cloned());
    }
}
