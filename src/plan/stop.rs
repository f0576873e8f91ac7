//! The stop ladder: from asking to killing, each rung a state with its deadline.
//!
//! The same for everybody who wants a process gone, and it goes on whoever hangs up. It ends only
//! when the tree is proven empty; a tree that cannot be proven empty is killed again with back-off
//! and keeps its slot.

use std::time::Duration;

use crate::api::session::ProcessState;
use crate::clock::Mono;

use super::Step;
use super::draft::Draft;
use super::world::{Call, Live, Rung, Stage, Stop, StopCause};

/// The longest pause between two kills of a tree that does not empty.
const KILL_BACKOFF_MAX: Duration = Duration::from_secs(60);
/// How long the shim may take to empty the tree of an agent that ended by itself (it waits 250 ms
/// for descendants that hold standard output, then kills), before the daemon kills too.
const EXIT_DRAIN: Duration = Duration::from_secs(2);

/// Takes the next rung if its time has come, and says when to look again. To be called in every
/// pass while the process shall go.
pub(super) fn climb(draft: &mut Draft<'_>, live: &Live, cause: &StopCause) {
    note_state(draft, live);
    match &live.stop {
        None => begin(draft, live, cause),
        Some(stop) => go_on(draft, live, stop),
    }
}

/// Says in the record that the process goes, or that nobody can say whether it is gone.
fn note_state(draft: &mut Draft<'_>, live: &Live) {
    let unconfirmed = live.stop.as_ref().is_some_and(|stop| stop.unconfirmed > 0);
    if let Some(process) = &mut draft.session.status.process {
        process.state = if unconfirmed || live.stage == Stage::Unprovable {
            ProcessState::Unknown
        } else {
            ProcessState::Stopping
        };
    }
}

fn begin(draft: &mut Draft<'_>, live: &Live, cause: &StopCause) {
    let rung = match (&live.stage, cause) {
        // Nothing of the agent exists, or only what ignores its leader's end.
        (Stage::Gated { .. } | Stage::Exited { .. } | Stage::Unprovable, _) => Rung::Kill,
        // A start that hangs is killed at once: there is nobody to ask.
        (_, StopCause::StartFailed(_)) if !matches!(live.acp.open, Call::Done(_)) => Rung::Kill,
        // Its cancel was already sent and not confirmed, or its output is of no use.
        (_, StopCause::Unconfirmed | StopCause::Broken) => after_cancel(live),
        _ if wants_cancel(live) => Rung::Cancel,
        _ => after_cancel(live),
    };
    take(draft, live, rung, cause.clone());
}

fn go_on(draft: &mut Draft<'_>, live: &Live, stop: &Stop) {
    let times = draft.world.stop_times();
    let passed = draft.now.mono.since(stop.since);
    let prompt_open = is_prompt_open(live);
    let (is_over, wait) = match stop.rung {
        Rung::Cancel => {
            let wait = if prompt_open { times.cancel.get() } else { times.idle_cancel.get() };
            (!prompt_open && !live.is_active_after_turn, wait)
        }
        Rung::Close => (!matches!(live.acp.close, Call::InFlight), times.close.get()),
        Rung::Eof => (false, times.eof.get()),
        Rung::Term => (false, times.term.get()),
        Rung::Kill => {
            let pause = times.kill.get().saturating_mul(1 << stop.unconfirmed.min(5));
            (false, pause.min(KILL_BACKOFF_MAX))
        }
    };
    if !is_over && passed < wait {
        draft.because(format!("the process is being stopped ({:?})", stop.rung));
        draft.wake_in(wait.saturating_sub(passed));
        return;
    }
    let next = match stop.rung {
        Rung::Cancel => after_cancel(live),
        Rung::Close => Rung::Eof,
        Rung::Eof => Rung::Term,
        Rung::Term | Rung::Kill => Rung::Kill,
    };
    // An agent that has ended needs no more asking: what is left of its tree does.
    let next = if matches!(live.stage, Stage::Exited { .. }) { Rung::Kill } else { next };
    take(draft, live, next, stop.cause.clone());
}

fn take(draft: &mut Draft<'_>, live: &Live, rung: Rung, cause: StopCause) {
    let times = draft.world.stop_times();
    let wait = match rung {
        Rung::Cancel if is_prompt_open(live) => times.cancel,
        Rung::Cancel => times.idle_cancel,
        Rung::Close => times.close,
        Rung::Eof => times.eof,
        Rung::Term => times.term,
        Rung::Kill => times.kill,
    };
    draft.because(format!("the process is being stopped ({rung:?})"));
    draft.act(Step::Stop { rung, cause });
    draft.wake_in(wait.get());
}

/// Waits for the shim to empty the tree of an agent that ended by itself, and helps if it takes
/// too long.
pub(super) fn await_empty(draft: &mut Draft<'_>, live: &Live, ended_at: Mono) {
    note_state(draft, live);
    let passed = draft.now.mono.since(ended_at);
    if let Some(stop) = &live.stop {
        go_on(draft, live, stop);
    } else if passed < EXIT_DRAIN {
        draft.wake_in(EXIT_DRAIN.saturating_sub(passed));
    } else {
        take(draft, live, Rung::Kill, StopCause::Broken);
    }
    draft.because("the agent ended; what is left of its process tree is being killed");
}

fn after_cancel(live: &Live) -> Rung {
    let declares_close = match &live.acp.initialize {
        Call::Done(initialized) => initialized.capabilities.close,
        Call::NotMade | Call::InFlight | Call::Failed(_) => false,
    };
    let is_open = matches!(live.acp.open, Call::Done(_));
    let can_write = !live.acp.is_eof && live.acp.fault.is_none();
    if declares_close && is_open && can_write { Rung::Close } else { Rung::Eof }
}

/// A prompt that runs is cancelled first; so is what an agent does on its own after a turn.
fn wants_cancel(live: &Live) -> bool {
    is_prompt_open(live) || (live.is_active_after_turn && matches!(live.acp.open, Call::Done(_)))
}

/// Whether the agent has a prompt that it did not answer.
pub(super) fn is_prompt_open(live: &Live) -> bool {
    live.prompt.as_ref().is_some_and(|prompt| prompt.end.is_none())
}
