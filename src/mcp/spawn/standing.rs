//! What `check_session_status` says of records: one pure table, first line that holds.
//!
//! Stands between what the store holds and what a model is told. It reads neither clock nor store,
//! and it decides by turns and by the session's recorded end, never by the session's phase.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use super::results::Issues;
use crate::api::session::{DesiredState, EndOutcome, SessionEnd};
use crate::api::turn::{Activity, CancelBy, Delivery, TurnPhase};
use crate::api::{Code, Name, Session, Time, Turn, Uid};
use crate::ports::LiveActivity;

/// The most activities that are told of.
const RECENT_MAX: usize = 3;

/// All that is known of a session of the caller's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) session: &'a Session,
    /// The turn that is not final, the one that the agent has first.
    pub(super) open: Option<&'a Turn>,
    /// The turn that ended last and was not discarded.
    pub(super) latest: Option<&'a Turn>,
    /// The turn that was made last.
    pub(super) newest: Option<&'a Turn>,
    /// What is newer than the records.
    pub(super) live: Option<&'a LiveActivity>,
}

/// What a session is doing, as its parent sees it.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(super) enum Standing {
    /// You have no such session.
    NotFound,
    /// A turn is not finished.
    Running(Running),
    /// It has no turn and takes one.
    Idle {
        /// The turn that ended last.
        #[serde(skip_serializing_if = "Option::is_none")]
        latest_turn_id: Option<Uid>,
        /// What it answered; read it with read_response.
        #[serde(skip_serializing_if = "Option::is_none")]
        latest_response_id: Option<Uid>,
        /// Why the agent stopped.
        #[serde(skip_serializing_if = "Option::is_none")]
        stop_reason: Option<String>,
        /// The newest prompt never reached the agent.
        #[serde(skip_serializing_if = "Option::is_none")]
        discarded: Option<Discarded>,
    },
    /// The latest turn, or the session, failed.
    Error {
        /// Why, for programs.
        code: Code,
        /// Why, in a sentence.
        message: String,
        /// What the agent had said until then.
        #[serde(skip_serializing_if = "Option::is_none")]
        response_id: Option<Uid>,
        #[serde(skip_serializing_if = "Option::is_none")]
        latest_turn_id: Option<Uid>,
        #[serde(skip_serializing_if = "Option::is_none")]
        latest_response_id: Option<Uid>,
    },
    /// The session cannot go on; begin a new one.
    Expired {
        /// Why, for programs.
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<Code>,
        /// Why, in a sentence.
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        latest_turn_id: Option<Uid>,
        #[serde(skip_serializing_if = "Option::is_none")]
        latest_response_id: Option<Uid>,
    },
    /// The daemon stopped in the latest turn, which is never sent again by itself.
    Interrupted {
        /// APP_SHUTDOWN or APP_RESTARTED.
        code: Code,
        /// Why, in a sentence.
        message: String,
        /// Whether the agent had been given the prompt.
        delivery: Delivery,
        #[serde(skip_serializing_if = "Option::is_none")]
        latest_turn_id: Option<Uid>,
        #[serde(skip_serializing_if = "Option::is_none")]
        latest_response_id: Option<Uid>,
    },
}

/// A turn that is not finished.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub(super) struct Running {
    pub(super) turn_id: Uid,
    /// How far it is.
    pub(super) phase: TurnPhase,
    /// Whether a call waits for its end.
    pub(super) mode: Mode,
    pub(super) started_at: Time,
    /// When the agent last sent anything.
    pub(super) last_activity_at: Time,
    /// When it last got on: text, thought or a tool call.
    pub(super) last_progress_at: Time,
    /// The last three things that it did. Titles are the agent's own words.
    pub(super) recent_activity: Vec<Activity>,
    /// It waits for somebody to allow or deny what it wants to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) waiting_for: Option<Waiting>,
}

/// What a turn waits for somebody to decide.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub(super) struct Waiting {
    /// The name of the request.
    pub(super) permission: Name,
    /// What it wants to do, in the agent's own words: untrusted.
    pub(super) tool: String,
    /// Since when.
    pub(super) since: Time,
}

/// Whether a call waits for a turn's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
pub(super) enum Mode {
    Sync,
    Background,
}

/// A prompt that never reached the agent, because of its configuration.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub(super) struct Discarded {
    pub(super) turn_id: Uid,
    /// SPAWN_CONFIGURATION_REQUIRED, SPAWN_CONFIG_FAILED, SPAWN_INVALID_REQUEST or
    /// SPAWN_PERMISSION_DENIED.
    pub(super) code: Code,
    pub(super) message: String,
    /// What does not resolve, with candidates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(with = "Issues")]
    pub(super) issues: Vec<Value>,
}

/// The table, first line that holds.
pub(super) fn of(known: &Known<'_>) -> Standing {
    let latest_turn_id = known.latest.map(|turn| turn.metadata.uid.clone());
    let latest_response_id = known.latest.and_then(|turn| turn.status.response_id.clone());
    if let Some(turn) = known.open {
        return Standing::Running(running(known, turn));
    }
    let error = |code, message| Standing::Error {
        code,
        message,
        response_id: latest_response_id.clone(),
        latest_turn_id: latest_turn_id.clone(),
        latest_response_id: latest_response_id.clone(),
    };
    match end_of(known) {
        None => {}
        Some(Ended::Error(code, message)) => return error(code, message),
        Some(Ended::Expired(code, message)) => {
            return Standing::Expired {
                code,
                message: Some(message),
                latest_turn_id,
                latest_response_id,
            };
        }
    }
    let Some(latest) = known.latest else { return idle(known, latest_turn_id, latest_response_id) };
    let status = &latest.status;
    match status.phase {
        TurnPhase::Interrupted => Standing::Interrupted {
            code: status.code.unwrap_or(Code::AppRestarted),
            message: status.message.clone(),
            delivery: status.delivery,
            latest_turn_id,
            latest_response_id,
        },
        TurnPhase::Failed | TurnPhase::Cancelled | TurnPhase::Expired => {
            error(code_of(latest), status.message.clone())
        }
        TurnPhase::Completed
        | TurnPhase::Discarded
        | TurnPhase::Pending
        | TurnPhase::Starting
        | TurnPhase::Running
        | TurnPhase::Cancelling => idle(known, latest_turn_id, latest_response_id),
    }
}

/// The code of a turn that did not complete. The loop gives one; a turn without is a defect.
pub(super) fn code_of(turn: &Turn) -> Code {
    turn.status.code.unwrap_or(Code::TurnFailed)
}

/// How a session that ended is told of.
#[derive(Clone, Debug, PartialEq)]
enum Ended {
    Error(Code, String),
    Expired(Option<Code>, String),
}

fn end_of(known: &Known<'_>) -> Option<Ended> {
    let status = &known.session.status;
    if let Some(end) = &status.end {
        return Some(recorded_end(known, end));
    }
    if known.session.spec.desired_state != DesiredState::Running
        || known.session.metadata.is_deleting()
    {
        // The loop has not come to it yet: what it will record is certain.
        return Some(Ended::Error(cancel_code(known), "the session was cancelled".to_owned()));
    }
    let is_lost = status.prompted
        && status.process.is_none()
        && status.capabilities.as_ref().is_some_and(|found| !found.resume && !found.load);
    is_lost.then(|| {
        let message = "its process is gone and its agent can neither resume nor load a session";
        Ended::Expired(Some(Code::AgentProcessInvalidated), message.to_owned())
    })
}

fn recorded_end(known: &Known<'_>, end: &SessionEnd) -> Ended {
    let message = end.message.clone();
    match (end.outcome, end.code) {
        (EndOutcome::Failed, code) => {
            Ended::Error(code.unwrap_or(Code::SpawnAgentStartFailed), message)
        }
        (EndOutcome::Expired, code) => Ended::Expired(code, message),
        // The idle clock has no code of a turn's: it runs between turns only.
        (EndOutcome::Stopped, None) => Ended::Expired(None, message),
        (EndOutcome::Stopped, Some(Code::TtlExpired)) => {
            let by_ttl = |turn: &Turn| turn.status.code == Some(Code::TtlExpired);
            match known.latest.filter(|turn| by_ttl(turn)) {
                Some(turn) => Ended::Error(code_of(turn), turn.status.message.clone()),
                None => Ended::Expired(Some(Code::TtlExpired), message),
            }
        }
        (EndOutcome::Stopped, Some(Code::TurnCancelled)) => {
            Ended::Error(cancel_code(known), message)
        }
        (EndOutcome::Stopped, Some(code)) => {
            // The turn may know better: an agent that did not confirm was stopped.
            let latest = known.latest.filter(|turn| {
                turn.status.cancel.as_ref().is_some_and(|cancel| cancel.by == CancelBy::Inactivity)
            });
            Ended::Error(latest.map_or(code, code_of), message)
        }
    }
}

/// The code of a session's cancel, by who asked.
fn cancel_code(known: &Known<'_>) -> Code {
    match known.session.status.cancel.as_ref().map(|cancel| cancel.by) {
        Some(CancelBy::Parent) => Code::TurnCancelledByParent,
        Some(CancelBy::ParentDeleted) => Code::ParentSessionDeleted,
        Some(CancelBy::Ttl) => Code::TtlExpired,
        Some(CancelBy::Budget) => Code::TurnBudgetExhausted,
        Some(CancelBy::Inactivity) => Code::TurnInactivityTimeout,
        Some(
            CancelBy::Operator
            | CancelBy::FleetCancel
            | CancelBy::Interrupt
            | CancelBy::CallCancelled
            | CancelBy::ParentStopped
            | CancelBy::Agent,
        )
        | None => Code::TurnCancelled,
    }
}

fn idle(known: &Known<'_>, turn: Option<Uid>, response: Option<Uid>) -> Standing {
    let completed = known.latest.filter(|turn| turn.status.phase == TurnPhase::Completed);
    let discarded = known.newest.and_then(|turn| {
        let code = turn.status.code.filter(|code| is_of_configuration(*code))?;
        (turn.status.phase == TurnPhase::Discarded).then(|| Discarded {
            turn_id: turn.metadata.uid.clone(),
            code,
            message: turn.status.message.clone(),
            issues: turn.status.issues.clone(),
        })
    });
    Standing::Idle {
        latest_turn_id: turn,
        latest_response_id: response,
        stop_reason: completed.and_then(|turn| turn.status.stop_reason.clone()),
        discarded,
    }
}

/// Whether a turn was discarded because its options do not resolve or cannot be set.
pub(super) const fn is_of_configuration(code: Code) -> bool {
    matches!(
        code,
        Code::SpawnConfigurationRequired
            | Code::SpawnConfigFailed
            | Code::SpawnInvalidRequest
            | Code::SpawnPermissionDenied
    )
}

fn running(known: &Known<'_>, turn: &Turn) -> Running {
    let status = &turn.status;
    let live = known.live.filter(|live| live.turn.as_ref() == Some(&turn.metadata.uid));
    let started_at = started_at(turn);
    let last_progress_at = live
        .and_then(|live| live.last_progress_at)
        .or(status.last_progress_at)
        .map_or(started_at, |at| at.max(started_at));
    let recent = live.map(|live| &live.recent).filter(|recent| !recent.is_empty());
    let recent = recent.unwrap_or(&status.recent_activity);
    Running {
        turn_id: turn.metadata.uid.clone(),
        phase: status.phase,
        mode: if turn.spec.background { Mode::Background } else { Mode::Sync },
        started_at,
        last_activity_at: last_activity_at(turn, known.live),
        last_progress_at,
        recent_activity: recent[recent.len().saturating_sub(RECENT_MAX)..].to_vec(),
        waiting_for: status.waiting_for.as_ref().map(|waiting| Waiting {
            permission: waiting.permission.clone(),
            tool: waiting.tool.clone(),
            since: waiting.since,
        }),
    }
}

/// When the loop took a turn; while it has not, when it was made.
pub(super) fn started_at(turn: &Turn) -> Time {
    turn.status
        .started_at
        .or(turn.metadata.creation_timestamp)
        // Admission gives every record its time.
        .unwrap_or(Time::from_millis(0))
}

/// When the agent of an open turn last sent anything.
pub(super) fn last_activity_at(turn: &Turn, live: Option<&LiveActivity>) -> Time {
    let started_at = started_at(turn);
    let live = live.filter(|live| live.turn.as_ref() == Some(&turn.metadata.uid));
    live.and_then(|live| live.last_activity_at)
        .or(turn.status.last_activity_at)
        .map_or(started_at, |at| at.max(started_at))
}

#[cfg(test)]
mod tests;
