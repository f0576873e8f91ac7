//! What a session shows of the kernel sandbox around its agent: the condition `SandboxApplied`.
//!
//! The sandbox is put on by the shim before the agent is executed, so a process that runs is in the
//! one that it was started with. Absent: any decision. A sandbox that cannot be had fails the start
//! (`launch`), and nothing goes on without it.

use crate::api::agent::SandboxMode;
use crate::api::condition::ConditionStatus::{False, True};
use crate::api::{SessionStatus, Time};

use super::world::{Confinement, Finding, Live, Stage, World};

const APPLIED: &str = "SandboxApplied";
/// The reason of a start that failed because the kernel has no such sandbox.
pub(super) const UNAVAILABLE: &str = "SandboxUnavailable";

/// Tells of the sandbox of the process that runs, or ran last.
pub(super) fn tell(status: &mut SessionStatus, world: &World, generation: i64, now: Time) {
    let is_asked_for = match &world.agent {
        Finding::Found(agent) => Some(agent.spec.sandbox.mode != SandboxMode::Off),
        Finding::Missing(_) | Finding::Unknown => None,
    };
    let conditions = &mut status.conditions;
    match (world.live(), is_asked_for) {
        (Some(live), _) if live.sandbox.is_some() => {
            let Some(sandbox) = live.sandbox.filter(|_| has_begun(live)) else { return };
            conditions.set(APPLIED, True, "Landlock", describe(sandbox), generation, now);
        }
        (Some(_), Some(true)) => {
            let message = "the agent asks for a sandbox since this process was started; the next \
                           one has it";
            conditions.set(APPLIED, False, "StartedWithout", message, generation, now);
        }
        (None, _) if status.restarts.count > 0 && status.restarts.reason == UNAVAILABLE => {
            let message = status.restarts.last_error.clone();
            conditions.set(APPLIED, False, UNAVAILABLE, message, generation, now);
        }
        // Nothing runs: what is true of the last process stays told, what is not goes.
        (None, None | Some(true)) if conditions.is_true(APPLIED) => {}
        (Some(_), None) => {}
        (None | Some(_), _) => conditions.remove(APPLIED),
    }
}

/// Whether the agent was executed, which it is inside its sandbox only.
fn has_begun(live: &Live) -> bool {
    match live.stage {
        Stage::Gated { .. } => false,
        Stage::Running | Stage::Exited { .. } | Stage::Empty { .. } | Stage::Unprovable => {
            live.pid.is_some()
        }
    }
}

fn describe(Confinement { mode, abi }: Confinement) -> String {
    let what = match mode {
        SandboxMode::WorkspaceWrite => "workspace-write: it writes in the session's directories",
        SandboxMode::ReadOnly => "read-only: it writes nothing of the session's",
        SandboxMode::Off => "off",
    };
    format!("{what}, and signals nothing outside (Landlock ABI {abi})")
}
