//! What a session shows of itself: conditions, and the one table that derives its phase.
//!
//! Derived last in every pass from what is recorded; nothing decides by it.

use crate::api::agent::AdditionalDirectories;
use crate::api::condition::ConditionStatus::{False, True, Unknown};
use crate::api::report::Outcome;
use crate::api::session::{DesiredState, EndOutcome, ProcessState, Provider, SessionPhase};
use crate::api::turn::TurnPhase;
use crate::api::{Session, SessionStatus, Time, Turn};
use crate::clock::Now;

use super::deadlines::{self, Due};
use super::draft::Draft;
use super::stop::is_prompt_open;
use super::world::{Call, Finding, Live, Missing, Stage, World};
use super::{permission, sandbox, spending};

/// The annotation that names the manifest file that made an object.
pub const MANAGED_BY: &str = "spawnlet.dev/managed-by";

/// The condition of a session whose agent takes its main directory alone.
const DIRECTORIES_UNSUPPORTED: &str = "AdditionalDirectoriesUnsupported";

/// The condition of a session with which the daemon itself does not get on.
const RECONCILE_STALLED: &str = "ReconcileStalled";

/// The condition of who has no way to the daemon but its environment, on sessions and on agents.
pub(super) const DELEGATION_UNAVAILABLE: &str = "DelegationUnavailable";

/// The condition of who never asks, on sessions and on agents.
pub(super) const NOT_ENFORCED: &str = "PermissionsNotEnforced";

/// The reason of what an external session shows.
const EXTERNAL: &str = "External";

/// Says whether agent, role and directories were found, and pins the role and the directories.
pub(super) fn resolve(draft: &mut Draft<'_>) {
    let world = draft.world;
    let (now, generation) = (draft.time(), draft.session.metadata.generation);
    let status = &mut draft.session.status;
    if let Finding::Found(scope) = &world.scope
        && status.scope.is_none()
    {
        status.scope = Some((**scope).clone());
    }
    if status.role.is_none() {
        status.role.clone_from(&world.role);
    }
    let mut set = |kind: &str, missing: Option<&Missing>| match missing {
        None => status.conditions.set(kind, True, "Resolved", "", generation, now),
        Some(missing) => {
            status.conditions.set(
                kind,
                False,
                missing.reason,
                missing.message.clone(),
                generation,
                now,
            );
        }
    };
    match &world.agent {
        Finding::Found(_) => set("AgentResolved", None),
        Finding::Missing(missing) => set("AgentResolved", Some(missing)),
        Finding::Unknown => {}
    }
    match &world.scope {
        Finding::Found(_) => set("ScopeResolved", None),
        Finding::Missing(missing) => set("ScopeResolved", Some(missing)),
        Finding::Unknown => {}
    }
}

/// Fills in everything that is derived.
pub(super) fn derive(session: &mut Session, turns: &[Turn], world: &World, now: Now, why: &str) {
    let generation = session.metadata.generation;
    session.status.observed_generation = generation;
    let active = turns.iter().find(|turn| is_active(turn));
    let pending = turns.iter().filter(|turn| turn.status.phase == TurnPhase::Pending);
    let queued = u32::try_from(pending.count()).unwrap_or(u32::MAX);
    session.status.active_turn = active.map(|turn| turn.metadata.name.clone());
    session.status.queued_turns = queued;
    session.status.lineage.ttl_expires_at = session.ttl_ends_at();
    let has_parent = session.status.lineage.parent.is_some();
    session.status.lineage.auto_stop_on_parent =
        has_parent.then_some(session.spec.auto_stop_on_parent);
    session.status.next_deadline = deadlines::next_durable(session, turns);
    conditions(session, world, now.time);
    progress(session, active, world, now);
    let (phase, reason) = phase(session, active, queued, world);
    let status = &mut session.status;
    status.phase = phase;
    status.reason = reason;
    status.message = match (&status.end, phase) {
        (Some(end), _) => end.message.clone(),
        (None, SessionPhase::Pending) => why.to_owned(),
        (None, _) => String::new(),
    };
}

fn is_active(turn: &Turn) -> bool {
    turn.status.phase != TurnPhase::Pending && !turn.status.phase.is_final()
}

/// The one table from what is recorded to the phase that people see, and a reason in one word.
fn phase(
    session: &Session,
    active: Option<&Turn>,
    queued: u32,
    world: &World,
) -> (SessionPhase, String) {
    let status = &session.status;
    if session.metadata.is_deleting() || session.spec.desired_state == DesiredState::Deleted {
        return (SessionPhase::Terminating, "Deleted".to_owned());
    }
    if let Some(end) = &status.end {
        let phase = match (status.finished_at, end.outcome) {
            (None, _) => SessionPhase::Cancelling,
            (Some(_), EndOutcome::Stopped) => SessionPhase::Stopped,
            (Some(_), EndOutcome::Failed) => SessionPhase::Failed,
            (Some(_), EndOutcome::Expired) => SessionPhase::Expired,
        };
        return (phase, end.reason.clone());
    }
    if session.spec.provider == Provider::External {
        return (SessionPhase::Idle, EXTERNAL.to_owned());
    }
    if let Some(turn) = active {
        let phase = match turn.status.phase {
            TurnPhase::Starting => SessionPhase::Starting,
            TurnPhase::Running => SessionPhase::Running,
            TurnPhase::Cancelling => SessionPhase::Cancelling,
            TurnPhase::Pending
            | TurnPhase::Completed
            | TurnPhase::Failed
            | TurnPhase::Cancelled
            | TurnPhase::Expired
            | TurnPhase::Interrupted
            | TurnPhase::Discarded => SessionPhase::Idle,
        };
        let reason = turn.status.waiting_for.as_ref().map_or("", |_| "WaitingForPermission");
        return (phase, reason.to_owned());
    }
    if status.process.is_some() {
        let is_first = session.metadata.is_first_start();
        let phase = if is_first { SessionPhase::Starting } else { SessionPhase::Idle };
        return (phase, String::new());
    }
    if let Some(reason) = unresolved(world) {
        return (SessionPhase::Pending, reason.to_owned());
    }
    if status.prompted {
        return (SessionPhase::Hibernated, status.restarts.reason.clone());
    }
    match (queued, status.restarts.count) {
        (0, _) => (SessionPhase::Idle, "NotStarted".to_owned()),
        (_, 0) if spending::shown(session, world).is_some() => {
            (SessionPhase::Pending, spending::EXHAUSTED.to_owned())
        }
        (_, 0) if world.has_free_slot => (SessionPhase::Pending, "Queued".to_owned()),
        (_, 0) => (SessionPhase::Pending, "WaitingForCapacity".to_owned()),
        (_, _) => (SessionPhase::Pending, status.restarts.reason.clone()),
    }
}

/// How the session stands, for reports: what does not converge, and whether it still may.
pub(super) fn standing(session: &Session, turns: &[Turn], world: &World) -> Outcome {
    let status = &session.status;
    let is_ending = status.end.is_some() && status.finished_at.is_none();
    if !is_ending && turns.iter().any(|turn| turn.status.waiting_for.is_some()) {
        return Outcome::Waiting;
    }
    let is_starting = session.metadata.is_first_start() && status.finished_at.is_none();
    if is_ending || is_starting || turns.iter().any(is_active) {
        return Outcome::Progressing;
    }
    if session.metadata.is_deleting() {
        return Outcome::Waiting;
    }
    if status.end.is_some() {
        return Outcome::Converged;
    }
    if unresolved(world).is_some() {
        return Outcome::Waiting;
    }
    let has_waiting_turn = turns.iter().any(|turn| turn.status.phase == TurnPhase::Pending);
    match (has_waiting_turn, status.restarts.count, status.restarts.next_attempt_at) {
        (false, _, _) => Outcome::Converged,
        (true, 0, _) => Outcome::Waiting,
        (true, _, Some(_)) => Outcome::BackOff,
        (true, _, None) => Outcome::Failed,
    }
}

fn unresolved(world: &World) -> Option<&'static str> {
    match (&world.agent, &world.scope) {
        (Finding::Missing(missing), _) | (_, Finding::Missing(missing)) => Some(missing.reason),
        (Finding::Found(_) | Finding::Unknown, Finding::Found(_) | Finding::Unknown) => None,
    }
}

fn conditions(session: &mut Session, world: &World, now: Time) {
    let generation = session.metadata.generation;
    let is_managed = session.metadata.annotations.contains_key(MANAGED_BY);
    let is_external = session.spec.provider == Provider::External;
    let has_ended = session.status.end.is_some();
    let delegates = session.spec.delegation.enabled;
    let not_enforced = permission::is_not_enforced(session, world);
    let status = &mut session.status;
    let (ready, reason, message) = if is_external { not_run_here() } else { process_ready(status) };
    status.conditions.set("ProcessReady", ready, &reason, message, generation, now);
    let live = world.live();
    let is_open = live.is_some_and(|live| matches!(live.acp.open, Call::Done(_)));
    let (ready, reason) = match (is_external, status.process.is_some() && is_open) {
        (true, _) if has_ended => (False, "Ended"),
        (true, _) => (True, EXTERNAL),
        (false, true) => (True, "Open"),
        (false, false) => (False, "NotOpen"),
    };
    status.conditions.set("SessionReady", ready, reason, "", generation, now);
    flag(status, "ManagedByManifest", is_managed, ("FromFile", ""), generation, now);
    let lost = status.has_lost_memory;
    let message = "the agent lost the session; a new one without its memory took its place";
    flag(status, "MemoryLost", lost, ("SessionLost", message), generation, now);
    let unconfirmed = live.is_some_and(is_unconfirmed);
    let message = "the process tree was killed and is not proven empty; it is killed again";
    flag(status, "KillUnconfirmed", unconfirmed, ("StillPopulated", message), generation, now);
    // This very pass came through.
    status.conditions.remove(RECONCILE_STALLED);
    let works_on = live.is_some_and(is_active_after_turn);
    let message = "the agent went on by itself after its turn was answered: it is not idle";
    flag(status, "ActivityAfterTurn", works_on, ("LateActivity", message), generation, now);
    let is_deaf = status.capabilities.as_ref().is_some_and(|found| !found.mcp_http);
    let message = "the agent takes no MCP servers over HTTP: its token is in its environment alone";
    let no_way = is_deaf && delegates && !is_external;
    flag(status, DELEGATION_UNAVAILABLE, no_way, ("NoHttpServers", message), generation, now);
    if let Some(holds) = not_enforced {
        let told = ("NeverAsked", permission::not_enforced(world));
        flag(status, NOT_ENFORCED, holds, told, generation, now);
    }
    sandbox::tell(status, world, generation, now);
    let left_out = !is_external && leaves_directories_out(status, world);
    let message = "the agent does not declare additional directories; it was not told of them \
                    (additionalDirectories: extension of the Agent sends them all the same)";
    let reason = ("NotDeclared", message);
    flag(status, DIRECTORIES_UNSUPPORTED, left_out, reason, generation, now);
    if live.is_some_and(|live| live.noise_lines > 0) {
        let message =
            "the agent writes lines to standard output that are no protocol; they are skipped";
        status.conditions.set("StdoutNoise", True, "NotJsonRpc", message, generation, now);
    }
}

/// Whether the running turn gets on, and what keeps the session from it if nothing does.
fn progress(session: &mut Session, active: Option<&Turn>, world: &World, now: Now) {
    let generation = session.metadata.generation;
    let exhausted = spending::shown(session, world);
    let patience = session.spec.turn_inactivity_timeout;
    let status = &mut session.status;
    let due = world.live().and_then(|live| deadlines::is_stalled(world, live, now.mono));
    let is_stalled = active.is_some() && matches!(due, Some(Due::Over(_)));
    let is_looping = status.restarts.count > 0 && status.restarts.next_attempt_at.is_none();
    let (reason, message) = if is_looping {
        ("CrashLoopBackOff", status.restarts.last_error.clone())
    } else {
        let message = format!(
            "the agent sends, but neither text nor thought nor a tool's news for {patience}"
        );
        ("NoProgress", message)
    };
    let holds = is_looping || is_stalled;
    flag(status, "Stalled", holds, (reason, &message), generation, now.time);
    match (active, is_stalled) {
        (None, _) => match exhausted {
            Some(why) => {
                let reason = spending::EXHAUSTED;
                status.conditions.set("Progressing", False, reason, why, generation, now.time);
            }
            None => status.conditions.remove("Progressing"),
        },
        (Some(_), false) => {
            status.conditions.set("Progressing", True, "TurnActive", "", generation, now.time);
        }
        (Some(_), true) => {
            status.conditions.set("Progressing", False, reason, message, generation, now.time);
        }
    }
}

/// Whether the session has directories that its agent is not told of. What is not known now stays
/// as it was told.
fn leaves_directories_out(status: &SessionStatus, world: &World) -> bool {
    let Finding::Found(agent) = &world.agent else {
        return status.conditions.is_true(DIRECTORIES_UNSUPPORTED);
    };
    let has_any =
        status.scope.as_ref().is_some_and(|scope| !scope.additional_directories.is_empty());
    let is_told = match agent.spec.additional_directories {
        AdditionalDirectories::Extension => true,
        AdditionalDirectories::None => false,
        AdditionalDirectories::Auto => {
            status.capabilities.as_ref().is_none_or(|can| can.additional_directories)
        }
    };
    has_any && !is_told
}

/// Whether an agent goes on after the end of its turn, of which its answer told.
pub(super) fn is_active_after_turn(live: &Live) -> bool {
    live.is_active_after_turn && live.stage == Stage::Running && !is_prompt_open(live)
}

/// A session whose pass hung or panicked, as it shall stand: nothing else of it is known.
#[must_use]
pub fn stalled(session: &Session, why: &str, now: Time) -> Session {
    let mut session = session.clone();
    let generation = session.metadata.generation;
    let conditions = &mut session.status.conditions;
    conditions.set(RECONCILE_STALLED, True, "PassGivenUp", why, generation, now);
    session
}

/// A condition that stands only while it holds.
fn flag(
    status: &mut SessionStatus,
    kind: &str,
    holds: bool,
    (reason, message): (&str, &str),
    generation: i64,
    now: Time,
) {
    if holds {
        status.conditions.set(kind, True, reason, message, generation, now);
    } else {
        status.conditions.remove(kind);
    }
}

fn is_unconfirmed(live: &Live) -> bool {
    live.stage == Stage::Unprovable || live.stop.as_ref().is_some_and(|stop| stop.unconfirmed > 0)
}

/// An external session has no process, and needs none.
fn not_run_here() -> (crate::api::ConditionStatus, String, String) {
    (False, EXTERNAL.to_owned(), "the daemon runs no process of an external session".to_owned())
}

fn process_ready(status: &SessionStatus) -> (crate::api::ConditionStatus, String, String) {
    match &status.process {
        None if status.restarts.count > 0 => {
            let reason = if status.restarts.next_attempt_at.is_some() {
                "BackOff"
            } else {
                "CrashLoopBackOff"
            };
            (False, reason.to_owned(), status.restarts.last_error.clone())
        }
        None if status.incarnation.0 == 0 => {
            (False, "NotStarted".to_owned(), "a process is started for a turn".to_owned())
        }
        None => (False, "NotRunning".to_owned(), String::new()),
        Some(process) => match process.state {
            ProcessState::Launching => (False, "Launching".to_owned(), String::new()),
            ProcessState::Running => (True, "Running".to_owned(), String::new()),
            ProcessState::Stopping => (False, "Stopping".to_owned(), String::new()),
            ProcessState::Unknown => (Unknown, "KillUnconfirmed".to_owned(), String::new()),
        },
    }
}

/// Whether the record differs in more than what may be written along with something else.
pub(super) fn is_worth_writing(seen: &Session, wanted: &Session) -> bool {
    if seen.spec != wanted.spec || seen.metadata != wanted.metadata {
        return true;
    }
    let mut wanted = wanted.status.clone();
    wanted.last_activity_at = seen.status.last_activity_at;
    wanted.config.clone_from(&seen.status.config);
    seen.status != wanted
}
