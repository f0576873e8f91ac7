//! Which option to set next, so that an agent stands where a turn wants it.
//!
//! Pure: one function over what is wanted, what the agent offers now, and what was tried. After
//! each set the caller plans again on the agent's full new snapshot, as a model may bring other
//! options with it. Invariants: the order is mode, model, model_config, thought_level, others; a
//! semantic field that cannot be had fails closed; an option that only `config` names becomes a
//! warning. Deliberately absent: sending, and waiting for answers.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{
    Issue, IssueReason, LiveOption, MODE, MODEL, MODEL_CONFIG, Setter, Snapshot, THOUGHT_LEVEL,
    resolve,
};
use crate::api::turn::ConfigWarning;

/// Something to set at the agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Setting {
    /// By `session/set_mode`.
    Mode(String),
    /// By `session/set_config_option`; a string or a boolean.
    Option {
        /// The option's id.
        id: String,
        /// The value.
        value: Value,
    },
    /// By `session/set_model`.
    Model(String),
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Mode(mode) => write!(f, "mode {mode}"),
            Self::Option { id, value } => write!(f, "option {id} = {value}"),
            Self::Model(model) => write!(f, "model {model}"),
        }
    }
}

/// What a turn wants.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Wanted {
    /// Names of modes, the best first (`options::mode_names`). None offered: no call.
    pub modes: Vec<String>,
    /// Whether no other mode may be set by `config`: the session may not do everything, and what a
    /// mode allows is not asked for any more.
    pub only_these_modes: bool,
    /// The model, semantic.
    pub model: Option<String>,
    /// The thought level, semantic.
    pub thought_level: Option<String>,
    /// Values by exact id.
    pub config: BTreeMap<String, Value>,
}

impl Wanted {
    /// After so many sets it is given up.
    fn rounds_max(&self) -> usize {
        let fields = usize::from(!self.modes.is_empty())
            + usize::from(self.model.is_some())
            + usize::from(self.thought_level.is_some());
        4.max((fields + self.config.len() + 1) * 3)
    }
}

/// What was tried for a turn so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Done {
    rounds: usize,
    seen: Vec<Vec<(String, Value, usize)>>,
    tried: BTreeSet<String>,
    warnings: Vec<ConfigWarning>,
    failure: Option<String>,
}

/// The mode's place among what was tried; no option can have this id, as agents' are not empty.
const MODE_KEY: &str = "";

impl Done {
    /// Takes in how a set ended: the agent's full new snapshot, or why it failed.
    pub fn record(
        &mut self,
        wanted: &Wanted,
        before: &Snapshot,
        what: &Setting,
        outcome: Result<&Snapshot, &str>,
    ) {
        self.rounds += 1;
        let semantic = is_semantic(wanted, before, what);
        if self.seen.is_empty() {
            self.seen.push(before.state());
        }
        let problem = match outcome {
            Err(message) => Some(message.to_owned()),
            Ok(after) => {
                let state = after.state();
                let again = self.seen.contains(&state);
                self.seen.push(state);
                again.then(|| "the agent's options came back to an earlier state".to_owned())
            }
        };
        let key = match what {
            Setting::Mode(_) => MODE_KEY,
            Setting::Option { id, .. } => id,
            Setting::Model(_) => MODEL,
        };
        if !semantic {
            self.tried.insert(key.to_owned());
        }
        match problem {
            Some(message) if semantic => {
                self.failure = Some(format!("option `{key}` could not be set: {message}"));
            }
            Some(message) => {
                let option_id = if key == MODE_KEY { MODE.to_owned() } else { key.to_owned() };
                self.warnings.push(ConfigWarning { option_id, message });
            }
            None => {}
        }
    }
}

/// Whether a set serves a semantic field.
fn is_semantic(wanted: &Wanted, snapshot: &Snapshot, what: &Setting) -> bool {
    let id = match what {
        Setting::Mode(_) => return false,
        Setting::Option { id, .. } => id,
        Setting::Model(_) => MODEL,
    };
    [(MODEL, &wanted.model), (THOUGHT_LEVEL, &wanted.thought_level)].into_iter().any(
        |(category, field)| {
            field.is_some() && snapshot.of_category(category).any(|option| option.id == id)
        },
    )
}

/// What to do next.
#[derive(Clone, Debug, PartialEq)]
pub enum Next {
    /// Set this, [`Done::record`] the outcome, ask again.
    Set(Setting),
    /// Everything stands as wanted, but for the warnings.
    Done(Vec<ConfigWarning>),
    /// A semantic field does not resolve: `configuration_required`, nothing may be sent.
    Required(Vec<Issue>),
    /// An unknown id, an illegal value or a contradiction: the request is wrong.
    Invalid(String),
    /// A mode that the session's permissions do not go with.
    Denied(String),
    /// A semantic field could not be set: `SPAWN_CONFIG_FAILED`, nothing may be sent.
    Failed(String),
}

/// The next step from `snapshot` to `wanted`, after what was `done`.
#[must_use]
pub fn next_setting(wanted: &Wanted, snapshot: &Snapshot, done: &Done) -> Next {
    if let Some(failure) = &done.failure {
        return Next::Failed(failure.clone());
    }
    let next = plan(wanted, snapshot, done);
    match next {
        Next::Set(_) if done.rounds >= wanted.rounds_max() => {
            Next::Failed(format!("the options did not settle in {} rounds", done.rounds))
        }
        next => next,
    }
}

fn plan(wanted: &Wanted, snapshot: &Snapshot, done: &Done) -> Next {
    if let Some(setting) = mode_setting(wanted, snapshot, done) {
        return Next::Set(setting);
    }
    if let Some(next) = config_settings(wanted, snapshot, done, Some(MODE)) {
        return next;
    }
    match semantic(wanted, snapshot, MODEL, wanted.model.as_deref()) {
        Ok(Some(setting)) => return Next::Set(setting),
        Ok(None) => {}
        Err(next) => return with_thought_level(wanted, snapshot, next),
    }
    // From here on the model is settled, and so is the list of options.
    for category in [Some(MODEL), Some(MODEL_CONFIG)] {
        if let Some(next) = config_settings(wanted, snapshot, done, category) {
            return next;
        }
    }
    let unknown = |id: &&String| snapshot.option(id).is_none() && !done.tried.contains(*id);
    if let Some(id) = wanted.config.keys().find(unknown) {
        return Next::Invalid(format!("config: the agent has no option `{id}`"));
    }
    match semantic(wanted, snapshot, THOUGHT_LEVEL, wanted.thought_level.as_deref()) {
        Ok(Some(setting)) => return Next::Set(setting),
        Ok(None) => {}
        Err(next) => return next,
    }
    for category in [Some(THOUGHT_LEVEL), None] {
        if let Some(next) = config_settings(wanted, snapshot, done, category) {
            return next;
        }
    }
    Next::Done(done.warnings.clone())
}

/// The first wished mode that the agent offers, unless it stands there or was tried.
fn mode_setting(wanted: &Wanted, snapshot: &Snapshot, done: &Done) -> Option<Setting> {
    // A mode that the user names by its option's id is the user's choice.
    let named = |option: &LiveOption| wanted.config.contains_key(&option.id);
    if done.tried.contains(MODE_KEY) || snapshot.of_category(MODE).any(named) {
        return None;
    }
    let first_of = |offered: &[super::Choice]| {
        wanted.modes.iter().find_map(|name| {
            let same = |choice: &&super::Choice| choice.value.eq_ignore_ascii_case(name);
            offered.iter().find(same).map(|choice| choice.value.clone())
        })
    };
    if let Some(modes) = &snapshot.modes {
        let mode = first_of(&modes.available)?;
        return (mode != modes.current).then_some(Setting::Mode(mode));
    }
    let option = snapshot.of_category(MODE).next()?;
    let super::OptionState::Select { current, choices } = &option.state else {
        return None;
    };
    let mode = first_of(choices)?;
    let wanted = mode != *current && !done.tried.contains(&option.id);
    wanted.then(|| Setting::Option { id: option.id.clone(), value: Value::String(mode) })
}

/// What a semantic field asks to be set; nothing if it stands there.
fn semantic(
    wanted: &Wanted,
    snapshot: &Snapshot,
    category: &str,
    requested: Option<&str>,
) -> Result<Option<Setting>, Next> {
    let Some(requested) = requested else { return Ok(None) };
    let (option, value) =
        resolve(snapshot, category, requested).map_err(|issue| Next::Required(vec![*issue]))?;
    let value = Value::String(value.to_owned());
    if let Some(other) = wanted.config.get(&option.id).filter(|other| **other != value) {
        return Err(Next::Invalid(format!(
            "config: `{}` is {other}, but `{category}` asks for {value}",
            option.id
        )));
    }
    Ok((option.current() != value).then(|| setting(option, value)))
}

/// Adds what is wrong with the thought level, so that both can be put right at once. That its
/// option is missing says nothing while the model is not settled.
fn with_thought_level(wanted: &Wanted, snapshot: &Snapshot, next: Next) -> Next {
    let Next::Required(mut issues) = next else { return next };
    if let Some(requested) = wanted.thought_level.as_deref() {
        match resolve(snapshot, THOUGHT_LEVEL, requested) {
            Err(issue) if issue.reason != IssueReason::MissingCategoryOption => issues.push(*issue),
            Err(_) | Ok(_) => {}
        }
    }
    Next::Required(issues)
}

/// The next of the exactly named options in a category; `None` as category: all that are left.
fn config_settings(
    wanted: &Wanted,
    snapshot: &Snapshot,
    done: &Done,
    category: Option<&str>,
) -> Option<Next> {
    for (id, value) in &wanted.config {
        let Some(option) = snapshot.option(id) else { continue };
        if category.is_some() && option.category.as_deref() != category {
            continue;
        }
        if wanted.only_these_modes
            && option.category.as_deref() == Some(MODE)
            && !wanted
                .modes
                .iter()
                .any(|mode| value.as_str().is_some_and(|v| v.eq_ignore_ascii_case(mode)))
        {
            return Some(Next::Denied(format!(
                "config: `{id}` cannot be {value}: the session's permissions go with {}",
                wanted.modes.join(", ")
            )));
        }
        if !option.takes(value) {
            return Some(Next::Invalid(format!("config: `{id}` cannot be {value}")));
        }
        if option.current() != *value && !done.tried.contains(id) {
            return Some(Next::Set(setting(option, value.clone())));
        }
    }
    None
}

fn setting(option: &LiveOption, value: Value) -> Setting {
    match (option.setter, value) {
        (Setter::Model, Value::String(model)) => Setting::Model(model),
        (_, value) => Setting::Option { id: option.id.clone(), value },
    }
}
