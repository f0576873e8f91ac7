//! The stages of a pass over a session, in order.

use crate::api::Code;
use crate::api::session::{EndOutcome, Provider, SessionEnd};
use crate::api::turn::{Cancel, CancelBy, Delivery, TurnDesiredState, TurnPhase};
use crate::clock::Now;

use super::deadlines::{self, Clock};
use super::draft::{Draft, holds_slot, next_turn};
use super::turn::Ending;
use super::world::{Live, Process, Stage, StopCause, World};
use super::{
    Plan, Step, budget, cascade, ending, first_start, launch, notice, permission, spending, status,
    stop,
};

/// Decides what one pass does.
pub(super) fn plan(world: &World, now: Now) -> Plan {
    let mut draft = Draft::new(world, now);
    deadlines::set_right(&mut draft);
    cascade::follow_owner(&mut draft);
    launch::forgive(&mut draft);
    ending::settle(&mut draft);
    ending::interrupt_turns(&mut draft);
    status::resolve(&mut draft);
    ending::decide(&mut draft);
    clocks(&mut draft);
    ending::expire_if_lost(&mut draft);
    if draft.session.status.end.is_some() {
        ending::carry_out(&mut draft);
    } else if world.session.spec.provider == Provider::External {
        discard_turns(&mut draft);
    } else if world.daemon.is_stopping {
        shut_down(&mut draft);
    } else {
        run(&mut draft);
    }
    permission::settle(&mut draft);
    notice::settle(&mut draft);
    draft.finish()
}

/// The clocks that end a session, or its process, or its turn.
fn clocks(draft: &mut Draft<'_>) {
    if draft.session.status.end.is_some() {
        return;
    }
    let running = deadlines::running(draft.world, &draft.session, &draft.turns, draft.now);
    if let Some(look) = deadlines::next_look(draft.world, draft.now.mono) {
        draft.wake_in(look);
    }
    if let Some(next) = deadlines::next_in(&running) {
        draft.wake_in(next);
    }
    spending::cancel_if_over(draft);
    let at = draft.time();
    match deadlines::first_over(&running) {
        // A start that took too long is seen to where it is driven: it fails, the session stays.
        None | Some(Clock::Start) => {}
        Some(Clock::Budget) => end_by_budget(draft),
        Some(Clock::Ttl) => draft.end_session(deadlines::ttl_end(at)),
        Some(Clock::Inactivity) => draft.end_session(SessionEnd {
            outcome: EndOutcome::Stopped,
            reason: "Inactivity".to_owned(),
            message: silence(draft),
            code: Some(Code::TurnInactivityTimeout),
            at,
        }),
        Some(Clock::Idle) => park(draft, "it had no turn for its idleTimeout"),
    }
}

/// The running turn has used what it may: it is cancelled, its session goes on.
fn end_by_budget(draft: &mut Draft<'_>) {
    let Some(live) = draft.world.live() else { return };
    let Some((_, reason)) = budget::due(live, &draft.turns, draft.now) else { return };
    let Some(index) = draft.active_turn() else { return };
    let at = draft.time();
    draft.turns[index].status.cancel = Some(Cancel { by: CancelBy::Budget, reason, at });
}

/// For how long the agent was silent, as a sentence.
fn silence(draft: &Draft<'_>) -> String {
    let spec = &draft.session.spec;
    let live = draft.world.live();
    match live.and_then(|live| deadlines::call_in_progress(draft.world, live)) {
        Some(_) => format!(
            "the agent sent nothing for {} while a tool call was in progress",
            spec.tool_inactivity_timeout.unwrap_or(spec.turn_inactivity_timeout)
        ),
        None => format!("the agent sent nothing for {} in a turn", spec.turn_inactivity_timeout),
    }
}

/// An idle process goes: the session hibernates if its agent can take it up again.
fn park(draft: &mut Draft<'_>, why: &str) {
    let Some(live) = draft.world.live() else { return };
    if live.stop.is_some() || matches!(live.stage, Stage::Empty { .. }) {
        return;
    }
    let status = &draft.session.status;
    let can_go_on = !status.prompted
        || status.capabilities.as_ref().is_some_and(|found| found.resume || found.load);
    if can_go_on {
        draft.because(format!("{why}: its process is stopped, it can be gone on with"));
        stop::climb(draft, live, &StopCause::Idle);
    } else {
        let at = draft.time();
        draft.end_session(SessionEnd {
            outcome: EndOutcome::Stopped,
            reason: "IdleTimeout".to_owned(),
            message: format!("{why}, and its agent can neither resume nor load"),
            code: None,
            at,
        });
    }
}

/// The daemon stops: what runs is cancelled, then stopped; what waits goes on waiting.
fn shut_down(draft: &mut Draft<'_>) {
    let world = draft.world;
    draft.because("the daemon stops");
    let Some(live) = world.live() else { return };
    match &live.stage {
        Stage::Gated { .. } | Stage::Running | Stage::Unprovable => {
            stop::climb(draft, live, &StopCause::Shutdown);
        }
        Stage::Exited { at, .. } => stop::await_empty(draft, live, *at),
        Stage::Empty { .. } => {}
    }
}

/// The daemon runs no agent of an external session. Admission refuses turns of one; what is there
/// all the same is not left waiting.
fn discard_turns(draft: &mut Draft<'_>) {
    draft.because("an external session: the daemon runs no agent of it");
    let waiting = draft.pending_turns();
    if waiting.len() > ending::ENDED_TURNS_MAX {
        draft.wake_in(std::time::Duration::ZERO);
    }
    for index in waiting.into_iter().take(ending::ENDED_TURNS_MAX) {
        let ending = Ending::Discarded {
            code: Code::SpawnInvalidRequest,
            reason: "ExternalSession",
            message: "an external session takes no turns".to_owned(),
            issues: Vec::new(),
        };
        ending::turn(draft, index, &ending);
    }
}

/// A session that takes turns.
fn run(draft: &mut Draft<'_>) {
    let is_cancelled =
        |index: &usize| draft.turns[*index].spec.desired_state == TurnDesiredState::Cancelled;
    let cancelled: Vec<_> = draft.pending_turns().into_iter().filter(is_cancelled).collect();
    if cancelled.len() > ending::ENDED_TURNS_MAX {
        draft.wake_in(std::time::Duration::ZERO);
    }
    for index in cancelled.into_iter().take(ending::ENDED_TURNS_MAX) {
        ending::mark_cancel(draft, index, CancelBy::Operator);
        ending::turn(draft, index, &Ending::NeverSent);
    }
    if matches!(draft.world.process, Process::Unproven) {
        // Neither a second process nor the end of a turn that this one may have.
        return;
    }
    if let Some(live) = draft.world.live() {
        if is_going(live) {
            go_on_stopping(draft, live);
            return;
        }
        if has_abandoned_prompt(draft, live) {
            draft.because("the agent still has the prompt of a turn that has ended");
            stop::climb(draft, live, &StopCause::Abandoned);
            return;
        }
    }
    match draft.active_turn() {
        _ if draft.session.metadata.is_first_start() => first_start::drive(draft),
        Some(index) => drive(draft, index),
        None => take_next(draft),
    }
}

/// Whether a process is on its way out, whatever the turns want.
fn is_going(live: &Live) -> bool {
    live.stop.is_some()
        || matches!(live.stage, Stage::Exited { .. } | Stage::Unprovable)
        || (live.acp.is_eof && matches!(live.stage, Stage::Running))
}

/// Whether the agent works on a prompt whose turn is over (its output could not be stored): it
/// would take no other.
fn has_abandoned_prompt(draft: &Draft<'_>, live: &Live) -> bool {
    let active = draft.active_turn().map(|index| &draft.turns[index].metadata.uid);
    stop::is_prompt_open(live)
        && live.prompt.as_ref().is_some_and(|prompt| Some(&prompt.turn) != active)
}

fn go_on_stopping(draft: &mut Draft<'_>, live: &Live) {
    match &live.stage {
        Stage::Exited { at, .. } => stop::await_empty(draft, live, *at),
        Stage::Gated { .. } | Stage::Running | Stage::Unprovable => {
            let cause = live.stop.as_ref().map_or(StopCause::Broken, |stop| stop.cause.clone());
            stop::climb(draft, live, &cause);
        }
        Stage::Empty { .. } => {}
    }
}

/// Takes the turn that is next if everything that it needs is there.
fn take_next(draft: &mut Draft<'_>) {
    let Some(index) = next_turn(&draft.turns) else {
        rest(draft);
        return;
    };
    if spending::holds_back(draft, index) {
        return;
    }
    let needs_process =
        draft.world.live().is_none_or(|live| matches!(live.stage, Stage::Empty { .. }));
    if needs_process && !launch::can_start(draft) {
        let never = launch::why_never(draft);
        match never.filter(|_| launch::must_not_wait(&draft.turns[index].spec)) {
            Some(never) => ending::turn(draft, index, &never),
            None => wait_with(draft, index, "CannotStart"),
        }
        return;
    }
    if is_slot_of_another(draft, index) {
        draft.wake_in(std::time::Duration::ZERO);
        return;
    }
    if !draft.world.has_free_slot {
        draft.because("waits for capacity: every turn slot of the daemon is taken");
        draft.waits_for_slot = true;
        wait_with(draft, index, "WaitingForCapacity");
        return;
    }
    let turn = &mut draft.turns[index];
    turn.status.phase = TurnPhase::Starting;
    turn.status.reason.clear();
    turn.status.message.clear();
    turn.status.started_at = Some(draft.now.time);
    draft.session.status.idle_since = None;
    if needs_process && draft.world.live().is_some() {
        // The empty process is let go of in this pass; the next one launches.
        return;
    }
    drive(draft, index);
}

/// Whether the slot that was seen is that of a turn which ended in this very pass: the next one looks
/// for one of its own.
fn is_slot_of_another(draft: &Draft<'_>, index: usize) -> bool {
    let seen: Vec<_> = draft.world.turns.iter().map(|turn| turn.record.clone()).collect();
    next_turn(&seen).is_some_and(|next| next != index && holds_slot(&seen[next]))
        && !holds_slot(&draft.turns[index])
}

/// Says on a waiting turn what it waits for.
fn wait_with(draft: &mut Draft<'_>, index: usize, reason: &str) {
    let turn = &mut draft.turns[index];
    reason.clone_into(&mut turn.status.reason);
}

/// No turn: the idle clock runs if there is a process.
fn rest(draft: &mut Draft<'_>) {
    if draft.world.live().is_some() && draft.session.status.idle_since.is_none() {
        draft.session.status.idle_since = Some(draft.now.time);
        let idle = draft.session.spec.idle_timeout;
        if !idle.is_zero() {
            draft.wake_in(idle.get());
        }
    }
    draft.wakes.extend(draft.world.crowd.others.iter().cloned());
    if draft.world.crowd.includes_this {
        park(draft, "its parent has too many children with an idle process, this is the eldest");
    }
    draft.because("no turn");
}

/// Drives the turn that has the session.
fn drive(draft: &mut Draft<'_>, index: usize) {
    if draft.turns[index].spec.desired_state == TurnDesiredState::Cancelled {
        ending::mark_cancel(draft, index, CancelBy::Operator);
    }
    let is_cancelled = draft.turns[index].status.cancel.is_some();
    let delivery = draft.turns[index].status.delivery;
    match (is_cancelled, delivery) {
        (true, Delivery::NotSent) => {
            ending::turn(draft, index, &Ending::NeverSent);
            draft.wake_in(std::time::Duration::ZERO);
        }
        (true, Delivery::Unknown | Delivery::Sent) => cancel(draft, index),
        (false, Delivery::NotSent | Delivery::Unknown) => launch::progress(draft, index),
        (false, Delivery::Sent) if draft.world.live().is_none() => {
            ending::turn(draft, index, &Ending::ProcessGone { status: "unknown", stderr: "" });
        }
        (false, Delivery::Sent) if draft.world.live().is_some_and(permission::is_waiting) => {
            draft.because("waits for somebody to decide what the agent asks");
        }
        (false, Delivery::Sent) => draft.because("the turn runs"),
    }
}

/// Cancels the turn that the agent has.
fn cancel(draft: &mut Draft<'_>, index: usize) {
    let world = draft.world;
    draft.turns[index].status.phase = TurnPhase::Cancelling;
    let uid = draft.turns[index].metadata.uid.clone();
    let Some(live) = world.live() else {
        ending::turn(draft, index, &Ending::Unconfirmed);
        return;
    };
    let Some(prompt) = live.prompt.as_ref().filter(|prompt| prompt.turn == uid) else {
        // Recorded as being written, but this process never had it.
        ending::turn(draft, index, &Ending::NeverSent);
        return;
    };
    draft.because("waits for the agent to confirm the cancel");
    if prompt.cancel_asked_at.is_none() {
        // The connection chooses the moment: right behind a prompt some agents lose a cancel.
        draft.act(Step::CancelPrompt { turn: uid });
    }
    let asked =
        draft.turns[index].status.cancel.as_ref().map_or(draft.now.time, |cancel| cancel.at);
    let grace = world.stop_times().cancel.get();
    let passed = draft.time().since(asked);
    if passed >= grace {
        stop::climb(draft, live, &StopCause::Unconfirmed);
    } else {
        draft.wake_in(grace.saturating_sub(passed));
    }
}
