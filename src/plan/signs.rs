//! What an Agent's record shows of what its sessions met: that its starts fail again and again, that
//! it takes no servers over HTTP, that nothing but its own caution binds it.
//!
//! Told where a session's own state changes, not wherever it stands: so two sessions of one agent of
//! which each shows something else do not write over each other for ever. The newest news counts.
//! Absent: `Available` (`plan::agent`) and `AuthRequired` (`plan::login`).

use crate::api::agent::Permissions;
use crate::api::condition::ConditionStatus::True;
use crate::api::session::Provider;
use crate::api::{Agent, Session, Time};

use super::permission;
use super::status::{DELEGATION_UNAVAILABLE, NOT_ENFORCED};
use super::world::{Finding, World};

/// Starts of it failed too often.
const CRASH_LOOPING: &str = "CrashLooping";

/// Tells on the agent what is new of a session. `recorded`: the agent as this pass records it
/// already, if it does.
pub(super) fn tell(world: &World, session: &Session, recorded: &mut Option<Agent>, now: Time) {
    let Finding::Found(seen) = &world.agent else { return };
    if session.spec.provider == Provider::External {
        return;
    }
    let mut agent = recorded.clone().unwrap_or_else(|| (**seen).clone());
    let generation = agent.metadata.generation;
    let conditions = &mut agent.status.conditions;
    let (before, after) = (&world.session.status, &session.status);
    let begins = |kind: &str| !before.conditions.is_true(kind) && after.conditions.is_true(kind);
    if begins("SessionReady") {
        conditions.remove(CRASH_LOOPING);
        if after.capabilities.as_ref().is_some_and(|can| !can.mcp_http) {
            let message = "it does not declare mcpCapabilities.http: sessions of it that delegate \
                           have their token in the environment alone";
            let reason = "NoHttpServers";
            conditions.set(DELEGATION_UNAVAILABLE, True, reason, message, generation, now);
        } else {
            conditions.remove(DELEGATION_UNAVAILABLE);
        }
        if seen.spec.permissions == Permissions::ApproveAll {
            conditions.remove(NOT_ENFORCED);
        }
    }
    let is_looping = |session: &Session| {
        let restarts = &session.status.restarts;
        restarts.count > 0 && restarts.next_attempt_at.is_none()
    };
    if is_looping(session) && !is_looping(&world.session) {
        let (reason, message) = (&after.restarts.reason, after.restarts.last_error.clone());
        conditions.set(CRASH_LOOPING, True, reason, message, generation, now);
    }
    if begins(NOT_ENFORCED) {
        let message = permission::not_enforced(world);
        conditions.set(NOT_ENFORCED, True, "NeverAsked", message, generation, now);
    } else if world.live().is_some_and(|live| live.has_asked) {
        conditions.remove(NOT_ENFORCED);
    }
    if agent.status != seen.status {
        *recorded = Some(agent);
    }
}
