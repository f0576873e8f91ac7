//! Agents that need a login: one `authenticate` and one more try to open the session, or else what
//! a person has to do.
//!
//! Only the method that the Agent names (`auth.method`) is ever used: a method of the agent's own
//! choice may open a browser where nobody is. Who must log in is told on the session that failed
//! and by the condition `AuthRequired` of the Agent, which the next session that opens clears.

use crate::api::agent::AUTH_REQUIRED;
use crate::api::condition::ConditionStatus;
use crate::api::{Agent, Time};

use super::draft::Draft;
use super::world::{Call, CallFailure, CallFailureKind, Finding, Live, StartFailure};
use super::{Step, bounds};

/// The method to log in by, if opening the session failed for want of a login and a login can
/// still help.
pub(super) fn method(draft: &Draft<'_>, live: &Live) -> Option<String> {
    let Call::Failed(failure) = &live.acp.open else { return None };
    let Finding::Found(agent) = &draft.world.agent else { return None };
    let method = agent.spec.auth.as_ref()?.method.clone()?;
    let may_help = match &live.acp.login {
        Call::NotMade | Call::InFlight => true,
        // Done: the second refusal is the last word.
        Call::Done(()) | Call::Failed(_) => false,
    };
    (failure.kind == CallFailureKind::AuthRequired && may_help).then_some(method)
}

/// Plans the login, or waits for its answer.
pub(super) fn answer(draft: &mut Draft<'_>, live: &Live, method: String) {
    match &live.acp.login {
        Call::NotMade => {
            draft.because(format!("the agent needs a login; it is tried by {method:?}"));
            draft.act(Step::Authenticate { method });
        }
        Call::InFlight | Call::Done(()) | Call::Failed(_) => {
            draft.because("waits for the agent's answer to the login");
        }
    }
}

/// Why a start fails for want of a login, and what to do.
pub(super) fn required(draft: &Draft<'_>, failure: &CallFailure, live: &Live) -> StartFailure {
    let methods = match &live.acp.initialize {
        Call::Done(initialized) if !initialized.auth_methods.is_empty() => {
            initialized.auth_methods.join(", ")
        }
        Call::Done(_) | Call::NotMade | Call::InFlight | Call::Failed(_) => "none".to_owned(),
    };
    let tried = match &live.acp.login {
        Call::Failed(refusal) => format!("; the login by auth.method failed: {}", refusal.message),
        Call::Done(()) => "; the login by auth.method did not help".to_owned(),
        Call::NotMade | Call::InFlight => String::new(),
    };
    let agent = &draft.world.session.spec.agent;
    StartFailure {
        reason: "AuthRequired",
        message: format!(
            "the agent needs a login ({}{tried}); it offers: {methods}; log in with `spawnlet agents \
             login {agent}` or set auth.method to one that needs nobody, then send a new prompt",
            failure.message
        ),
    }
}

/// Whether the record says that the agent needs a login.
pub(super) fn is_required(agent: &Agent) -> bool {
    agent.status.conditions.is_true(AUTH_REQUIRED)
}

/// Tells on the agent's record that it needs a login, once.
pub(super) fn note_required(draft: &mut Draft<'_>, message: &str) {
    let Finding::Found(found) = &draft.world.agent else { return };
    let message = bounds::sentence(message);
    let is_told = found
        .status
        .conditions
        .get(AUTH_REQUIRED)
        .is_some_and(|told| told.status == ConditionStatus::True && told.message == message);
    if is_told {
        return;
    }
    let mut agent = (**found).clone();
    let generation = agent.metadata.generation;
    let (status, now) = (ConditionStatus::True, draft.time());
    agent.status.conditions.set(AUTH_REQUIRED, status, "LoginNeeded", message, generation, now);
    draft.change.agent = Some(agent);
}

/// The agent opened a session: it needs no login (any more).
pub(super) fn note_open(agent: &mut Agent, now: Time) {
    if is_required(agent) {
        let generation = agent.metadata.generation;
        let status = ConditionStatus::False;
        agent.status.conditions.set(AUTH_REQUIRED, status, "SessionOpened", "", generation, now);
    }
}
