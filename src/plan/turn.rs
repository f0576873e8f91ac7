//! How a turn ends: from what happened to its one final state.

use crate::api::turn::{Cancel, CancelBy, Delivery, TurnPhase};
use crate::api::{Code, Time, Turn, TurnStatus};

use super::world::{CallFailure, CallFailureKind, Live, PromptEnd, StartFailure, StopReason};

/// What happened to a turn.
pub(super) enum Ending<'a> {
    /// The agent answered the prompt.
    Answered(&'a PromptEnd),
    /// The agent's process ended without an answer.
    ProcessGone {
        /// How, in words.
        status: &'a str,
        /// The last lines of its standard error.
        stderr: &'a str,
    },
    /// The agent did not confirm the cancel; its process tree was stopped.
    Unconfirmed,
    /// Cancelled before the agent was given anything.
    NeverSent,
    /// The daemon stopped in it.
    Interrupted {
        /// `APP_SHUTDOWN` or `APP_RESTARTED`.
        code: Code,
        /// Whether the agent was given the prompt.
        delivery: Delivery,
    },
    /// The agent could not be started.
    StartFailed(&'a StartFailure),
    /// It is not given to the agent, and never will be.
    Discarded {
        /// Why, for programs.
        code: Code,
        /// Why, in one word.
        reason: &'static str,
        /// Why, in a sentence.
        message: String,
        /// What is missing, where it is the configuration.
        issues: Vec<serde_json::Value>,
    },
    /// Its output could not be stored.
    PersistFailed(&'a str),
    /// The prompt cannot be given to this agent.
    Refused {
        /// Why, for programs.
        code: Code,
        /// Why, in a sentence.
        message: String,
    },
}

/// The status of a turn that ends so. Final states are kept for ever, so this is called once.
pub(super) fn conclude(
    turn: &Turn,
    ending: &Ending<'_>,
    live: Option<&Live>,
    now: Time,
) -> TurnStatus {
    let mut status = begin(turn, live, now);
    match ending {
        Ending::Answered(end) => answered(&mut status, end, now),
        Ending::ProcessGone { status: exit, stderr } => process_gone(&mut status, exit, stderr),
        Ending::Unconfirmed => {
            if !apply_cancel(&mut status, false) {
                let message = "the agent's process was stopped".to_owned();
                fail(&mut status, Code::AgentProcessInvalidated, message);
            }
        }
        Ending::NeverSent => {
            status.delivery = Delivery::NotSent;
            status.response_id = None;
            if !apply_cancel(&mut status, true) {
                discard(&mut status, Code::TurnCancelled, "the turn was never sent".to_owned());
            }
        }
        Ending::Interrupted { code, delivery } => {
            status.phase = TurnPhase::Interrupted;
            status.delivery = *delivery;
            status.code = Some(*code);
            status.message = interrupted_message(*code, *delivery);
        }
        Ending::StartFailed(failure) => {
            status.reason = failure.reason.to_owned();
            fail(&mut status, start_failure_code(failure.reason), failure.message.clone());
        }
        Ending::Discarded { code, reason, message, issues } => {
            discard(&mut status, *code, message.clone());
            status.reason = (*reason).to_owned();
            status.issues.clone_from(issues);
        }
        Ending::PersistFailed(message) => {
            let message = format!("the turn's output could not be stored: {message}");
            fail(&mut status, Code::TurnPersistFailed, message);
        }
        Ending::Refused { code, message } => fail(&mut status, *code, message.clone()),
    }
    status
}

/// The code of a start that failed so.
pub(super) fn start_failure_code(reason: &str) -> Code {
    if reason == "AuthRequired" {
        Code::SpawnAgentAuthRequired
    } else {
        Code::SpawnAgentStartFailed
    }
}

/// What every end has in common.
fn begin(turn: &Turn, live: Option<&Live>, now: Time) -> TurnStatus {
    let mut status = turn.status.clone();
    status.finished_at = Some(now);
    status.reason.clear();
    status.message.clear();
    if let Some(live) = live
        && let Some(prompt) = live.prompt.as_ref().filter(|p| p.turn == turn.metadata.uid)
    {
        status.response_bytes = prompt.response_bytes;
        status.steps = prompt.steps;
        // The id is given out with the end, so that what it names never changes.
        status.response_id = Some(turn.metadata.uid.clone());
        let answered = prompt.end.as_ref().and_then(|end| end.usage.as_ref());
        status.usage = live.usage.of_turn(answered, &prompt.spent);
    }
    status
}

fn process_gone(status: &mut TurnStatus, exit: &str, stderr: &str) {
    if apply_cancel(status, true) {
        return;
    }
    let tail =
        if stderr.is_empty() { String::new() } else { format!("; its last words: {stderr}") };
    let message = format!("the agent's process ended without an answer ({exit}){tail}");
    fail(status, Code::AgentProcessInvalidated, message);
}

fn interrupted_message(code: Code, delivery: Delivery) -> String {
    let how = if code == Code::AppShutdown { "was stopped" } else { "crashed" };
    let sent = match delivery {
        Delivery::NotSent => "the agent was not given the prompt",
        Delivery::Unknown => "whether the agent was given the prompt cannot be known",
        Delivery::Sent => "the agent had the prompt",
    };
    format!("the daemon {how} during the turn; {sent}; it is not sent again")
}

fn answered(status: &mut TurnStatus, end: &PromptEnd, now: Time) {
    status.stop_reason = end.answer.as_ref().ok().map(|reason| reason.as_str().to_owned());
    // Whatever the agent says after our cancel, the turn is cancelled: real agents answer a cancel
    // with any stop reason or error.
    if end.is_after_cancel && apply_cancel(status, true) {
        return;
    }
    status.cancel = None;
    match &end.answer {
        Ok(StopReason::EndTurn | StopReason::MaxTokens | StopReason::MaxTurnRequests) => {
            status.phase = TurnPhase::Completed;
            status.code = None;
        }
        Ok(StopReason::Cancelled) => {
            status.cancel = Some(Cancel {
                by: CancelBy::Agent,
                reason: "the agent ended the turn as cancelled, unasked".to_owned(),
                at: now,
            });
            apply_cancel(status, true);
        }
        Ok(StopReason::Refusal) => {
            fail(status, Code::TurnFailed, "the agent refused the prompt (refusal)".to_owned());
        }
        Ok(StopReason::Unknown(reason)) => fail(
            status,
            Code::TurnFailed,
            format!("the agent ended the turn with a stop reason that is not known: {reason:?}"),
        ),
        Err(CallFailure { kind: CallFailureKind::NeverWritten, message, .. }) => {
            status.delivery = Delivery::NotSent;
            status.response_id = None;
            fail(status, Code::AgentProcessInvalidated, message.clone());
        }
        Err(CallFailure { code, message, .. }) => {
            fail(
                status,
                Code::TurnFailed,
                format!("the agent answered with error {code}: {message}"),
            );
        }
    }
}

fn fail(status: &mut TurnStatus, code: Code, message: String) {
    status.phase = TurnPhase::Failed;
    status.code = Some(code);
    status.message = message;
}

fn discard(status: &mut TurnStatus, code: Code, message: String) {
    status.phase = TurnPhase::Discarded;
    status.delivery = Delivery::NotSent;
    status.code = Some(code);
    status.message = message;
    status.response_id = None;
}

/// Ends the turn by the cancel that its record has. `false`: it has none.
fn apply_cancel(status: &mut TurnStatus, is_confirmed: bool) -> bool {
    let Some(cancel) = &status.cancel else { return false };
    let (phase, code) = cancelled_as(cancel.by, is_confirmed);
    status.phase = phase;
    status.code = Some(code);
    status.message = if is_confirmed {
        cancel.reason.clone()
    } else {
        format!(
            "{}; the agent did not confirm the cancel, its process tree was stopped",
            cancel.reason
        )
    };
    true
}

/// The final phase and code of a turn that was cancelled so.
const fn cancelled_as(by: CancelBy, is_confirmed: bool) -> (TurnPhase, Code) {
    match by {
        CancelBy::Parent => (TurnPhase::Cancelled, Code::TurnCancelledByParent),
        CancelBy::ParentDeleted => (TurnPhase::Cancelled, Code::ParentSessionDeleted),
        CancelBy::Operator
        | CancelBy::FleetCancel
        | CancelBy::Interrupt
        | CancelBy::CallCancelled
        | CancelBy::ParentStopped
        | CancelBy::Agent => (TurnPhase::Cancelled, Code::TurnCancelled),
        CancelBy::Ttl => (TurnPhase::Expired, Code::TtlExpired),
        CancelBy::Budget => (TurnPhase::Expired, Code::TurnBudgetExhausted),
        CancelBy::Inactivity if is_confirmed => (TurnPhase::Expired, Code::TurnInactivityTimeout),
        CancelBy::Inactivity => (TurnPhase::Expired, Code::TurnCancelUnconfirmed),
    }
}
