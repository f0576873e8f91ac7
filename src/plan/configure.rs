//! From an open ACP session to a prompt that the agent has: its settings, then the dispatch.
//!
//! Each call plans the one next thing, as in `launch`. Whatever a turn wants that does not resolve
//! ends it before anything is sent.

use crate::api::agent::Permissions;
use crate::api::condition::ConditionStatus::{self, False, True};
use crate::api::session::Capabilities;
use crate::api::turn::{Delivery, TurnPhase};
use crate::api::{AgentSpec, Code, SessionSpec, TurnSpec};
use crate::options::settings::{Done, Next, Wanted, next_setting};
use crate::options::{Issue, IssueReason, mode_names};

use super::draft::Draft;
use super::launch::{start_timeout, time_left};
use super::turn::Ending;
use super::world::{Finding, Live};
use super::{Step, budget, ending};

/// Sets what is still to be set, then gives the prompt to the agent.
pub(super) fn configure(draft: &mut Draft<'_>, index: usize, live: &Live) {
    if let Some(call) = &live.acp.setting {
        draft.because("waits for the agent to set an option");
        draft.wake_in(time_left(draft, call.asked_at));
        return;
    }
    let Finding::Found(agent) = &draft.world.agent else { return };
    let turn = &draft.turns[index];
    let wanted = wanted(&agent.spec, &draft.session.spec, &turn.spec);
    let uid = turn.metadata.uid.clone();
    let nothing = Done::default();
    let done = match &live.acp.tried {
        Some((turn, done)) if *turn == uid => done,
        Some(_) | None => &nothing,
    };
    let (code, reason, message, issues) = match next_setting(&wanted, &live.acp.options, done) {
        Next::Set(setting) => {
            draft.because(format!("sets {setting}"));
            draft.act(Step::Set { turn: uid, setting, wanted: Box::new(wanted) });
            draft.wake_in(start_timeout(draft.world));
            return;
        }
        Next::Done(warnings) => {
            let (reason, message) = match warnings.len() {
                0 => ("Applied", String::new()),
                count => ("AppliedInPart", format!("{count} not set: see the turn's warnings")),
            };
            note_applied(draft, True, reason, &message);
            draft.turns[index].status.warnings = warnings;
            draft.turns[index].status.config = live.acp.options.config_values();
            draft.session.status.config = live.acp.options.config_values();
            dispatch(draft, index, live);
            return;
        }
        Next::Required(issues) => {
            let values = issues.iter().filter_map(|issue| serde_json::to_value(issue).ok());
            let (values, message) = (values.collect(), describe(&issues));
            (Code::SpawnConfigurationRequired, "ConfigurationRequired", message, values)
        }
        Next::Failed(message) => (Code::SpawnConfigFailed, "ConfigFailed", message, Vec::new()),
        Next::Invalid(message) => (Code::SpawnInvalidRequest, "ConfigInvalid", message, Vec::new()),
        Next::Denied(message) => {
            (Code::SpawnPermissionDenied, "PermissionDenied", message, Vec::new())
        }
    };
    // Whoever is told of the issues is told of the options that they are about.
    draft.session.status.config = live.acp.options.config_values();
    note_applied(draft, False, reason, &message);
    ending::turn(draft, index, &Ending::Discarded { code, reason, message, issues });
}

/// Whether the options stand as the turn that came last wanted them.
fn note_applied(draft: &mut Draft<'_>, holds: ConditionStatus, reason: &str, message: &str) {
    let (generation, now) = (draft.session.metadata.generation, draft.time());
    draft.session.status.conditions.set("ConfigApplied", holds, reason, message, generation, now);
}

/// What a turn wants of the agent's options: its own words, then the session's, then the agent's.
fn wanted(agent: &AgentSpec, session: &SessionSpec, turn: &TurnSpec) -> Wanted {
    let first = |texts: [&Option<String>; 3]| texts.into_iter().flatten().next().cloned();
    let mut config = agent.config.clone();
    config.extend(session.config.clone());
    config.extend(turn.config.clone());
    let permissions = session.permissions.unwrap_or(agent.permissions).min(agent.permissions);
    Wanted {
        modes: mode_names(permissions, &agent.mode_map),
        only_these_modes: permissions < Permissions::ApproveAll,
        model: first([&turn.model, &session.model, &agent.model]),
        thought_level: first([&turn.thought_level, &session.thought_level, &agent.thought_level]),
        config,
    }
}

/// What does not resolve, as a sentence.
fn describe(issues: &[Issue]) -> String {
    let sentences = issues.iter().map(|issue| {
        let (parameter, requested) = (&issue.parameter, &issue.requested);
        let values: Vec<_> = issue.candidates.iter().map(|choice| choice.value.as_str()).collect();
        let values = values.join(", ");
        match issue.reason {
            IssueReason::Unsupported => {
                format!("{parameter} {requested:?} is not offered; the agent offers: {values}")
            }
            IssueReason::Ambiguous => {
                format!("{parameter} {requested:?} means several: {values}; name one")
            }
            IssueReason::MissingCategoryOption => {
                format!(
                    "{parameter} {requested:?} cannot be set: the agent has no one option for it"
                )
            }
        }
    });
    sentences.collect::<Vec<_>>().join("; ")
}

fn dispatch(draft: &mut Draft<'_>, index: usize, live: &Live) {
    let capabilities = draft.session.status.capabilities.clone().unwrap_or_default();
    if let Some(kind) =
        draft.world.turns[index].block_kinds.iter().find(|kind| !takes_block(&capabilities, kind))
    {
        let message = format!("the agent does not take content blocks of type {kind:?}");
        let ending = Ending::Refused { code: Code::PromptCapabilityMismatch, message };
        ending::turn(draft, index, &ending);
        return;
    }
    let turn = &mut draft.turns[index];
    let uid = turn.metadata.uid.clone();
    let is_given = live.prompt.as_ref().is_some_and(|prompt| prompt.turn == uid);
    match turn.status.delivery {
        Delivery::NotSent => {
            turn.status.delivery = Delivery::Unknown;
            draft.because("the prompt is being written");
            submit(draft, index);
        }
        Delivery::Unknown if is_given => draft.because("the prompt is being written"),
        // Recorded, but the pass ended before the journal had it: surely not written.
        Delivery::Unknown if !draft.world.turns[index].is_in_journal => {
            draft.because("the prompt is being written");
            submit(draft, index);
        }
        Delivery::Unknown | Delivery::Sent => {
            let ending =
                Ending::Interrupted { code: Code::AppRestarted, delivery: Delivery::Unknown };
            ending::turn(draft, index, &ending);
        }
    }
}

fn submit(draft: &mut Draft<'_>, index: usize) {
    let turn = &draft.turns[index];
    let budget = budget::of_turn(&draft.session.spec.run_budget, turn.spec.run_budget.as_ref());
    let turn = turn.metadata.uid.clone();
    draft.act(Step::Submit { turn, budget: Box::new(budget) });
}

/// Text and resource links are for every agent (ACP, prompt capabilities).
fn takes_block(capabilities: &Capabilities, kind: &str) -> bool {
    match kind {
        "text" | "resource_link" => true,
        "image" => capabilities.image,
        "audio" => capabilities.audio,
        "resource" => capabilities.embedded_context,
        _ => false,
    }
}

/// The prompt was written whole: the turn runs.
pub(super) fn note_dispatch(draft: &mut Draft<'_>, index: usize, live: &Live) {
    let turn = &mut draft.turns[index];
    let is_written = live
        .prompt
        .as_ref()
        .is_some_and(|prompt| prompt.turn == turn.metadata.uid && prompt.written_at.is_some());
    if is_written && turn.status.delivery == Delivery::Unknown {
        turn.status.delivery = Delivery::Sent;
        turn.status.dispatched_at = Some(draft.now.time);
        if turn.status.phase == TurnPhase::Starting {
            turn.status.phase = TurnPhase::Running;
        }
        draft.session.status.prompted = true;
    }
}
