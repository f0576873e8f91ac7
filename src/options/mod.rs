//! An agent's live options as one value, and what a user's word for one of them means.
//!
//! Pure: depends on `api` alone. A [`Snapshot`] merges what agents offer in three ways: config
//! options, modes, and the older `models` (which becomes a synthetic option `model`). Resolution
//! goes from the exact to the loose and stops at the first level on which anything matches.

pub mod settings;

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use unicode_normalization::UnicodeNormalization;

use crate::api::agent::Permissions;
use crate::api::session::ConfigValue;

/// The category of options that select a model.
pub const MODEL: &str = "model";
/// The category of options that select how long a model thinks.
pub const THOUGHT_LEVEL: &str = "thought_level";
/// The category of options that select a mode.
pub const MODE: &str = "mode";
/// The category of options that belong to a model.
pub const MODEL_CONFIG: &str = "model_config";

/// Everything that can be set at an agent, and what it stands at.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Snapshot {
    /// Config options, in the agent's order, then the synthetic `model`.
    pub options: Vec<LiveOption>,
    /// The modes, where the agent has them.
    pub modes: Option<Modes>,
}

/// Something that can be set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LiveOption {
    /// The exact id.
    pub id: String,
    /// For people.
    pub name: String,
    /// What it is about, after the Agent's `categoryMap`.
    pub category: Option<String>,
    /// Its values and the one that it stands at.
    pub state: OptionState,
    /// How it is set.
    pub setter: Setter,
}

/// The values of an option and the one that it stands at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum OptionState {
    /// One of a list.
    Select {
        /// The value that it stands at.
        current: String,
        /// All values.
        choices: Vec<Choice>,
    },
    /// On or off.
    Boolean {
        /// The value that it stands at.
        current: bool,
    },
}

/// How an option is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Setter {
    /// `session/set_config_option`.
    ConfigOption,
    /// `session/set_model`, which is not in the protocol's schema.
    Model,
}

/// A value that an option may take; also a candidate in an [`Issue`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Choice {
    /// The exact value.
    pub value: String,
    /// For people.
    pub name: String,
    /// The group that it stands in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// For people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
}

/// The modes of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Modes {
    /// The mode that it is in.
    pub current: String,
    /// All modes.
    pub available: Vec<Choice>,
}

impl LiveOption {
    /// The value that it stands at: a string or a boolean.
    #[must_use]
    pub fn current(&self) -> Value {
        match &self.state {
            OptionState::Select { current, .. } => Value::String(current.clone()),
            OptionState::Boolean { current } => Value::Bool(*current),
        }
    }

    /// Whether it may take a value.
    #[must_use]
    pub fn takes(&self, value: &Value) -> bool {
        match (&self.state, value) {
            (OptionState::Select { choices, .. }, Value::String(text)) => {
                choices.iter().any(|choice| choice.value == *text)
            }
            (OptionState::Boolean { .. }, Value::Bool(_)) => true,
            _ => false,
        }
    }
}

impl Snapshot {
    /// The mode that the session stands in: of `modes`, else of the option that takes their place.
    #[must_use]
    pub fn mode(&self) -> Option<&str> {
        if let Some(modes) = &self.modes {
            return Some(&modes.current);
        }
        match &self.of_category(MODE).next()?.state {
            OptionState::Select { current, .. } => Some(current),
            OptionState::Boolean { .. } => None,
        }
    }

    /// An option by its exact id.
    #[must_use]
    pub fn option(&self, id: &str) -> Option<&LiveOption> {
        self.options.iter().find(|option| option.id == id)
    }

    /// The options of a category.
    pub fn of_category(&self, category: &str) -> impl Iterator<Item = &LiveOption> {
        self.options.iter().filter(move |option| option.category.as_deref() == Some(category))
    }

    /// Notes the mode, also in an option that shows it: agents that have both tell of the option
    /// later or never (a `session/set_mode` is confirmed by either update or nothing, as measured
    /// with ten agents).
    pub(crate) fn stands_at_mode(&mut self, id: &str) {
        if let Some(modes) = &mut self.modes {
            id.clone_into(&mut modes.current);
        }
        for option in &mut self.options {
            if option.category.as_deref() == Some(MODE)
                && let OptionState::Select { current, choices } = &mut option.state
                && choices.iter().any(|choice| choice.value == id)
            {
                id.clone_into(current);
            }
        }
    }

    /// As it is shown in a status.
    #[must_use]
    pub fn config_values(&self) -> Vec<ConfigValue> {
        let show = |option: &LiveOption| ConfigValue {
            id: option.id.clone(),
            name: option.name.clone(),
            kind: match option.state {
                OptionState::Select { .. } => "select".to_owned(),
                OptionState::Boolean { .. } => "boolean".to_owned(),
            },
            current_value: option.current(),
        };
        self.options.iter().map(show).collect()
    }

    /// What everything stands at, for telling two snapshots apart. The choices count too: a model
    /// that brings other thought levels with it is a change.
    #[must_use]
    pub(crate) fn state(&self) -> Vec<(String, Value, usize)> {
        let option = |option: &LiveOption| {
            let choices = match &option.state {
                OptionState::Select { choices, .. } => choices.len(),
                OptionState::Boolean { .. } => 2,
            };
            (option.id.clone(), option.current(), choices)
        };
        let mode = |modes: &Modes| {
            (String::new(), Value::String(modes.current.clone()), modes.available.len())
        };
        self.options.iter().map(option).chain(self.modes.iter().map(mode)).collect()
    }
}

/// Why a semantic field does not resolve.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Issue {
    /// `model` or `thought_level`.
    pub parameter: String,
    /// Of which sort.
    pub reason: IssueReason,
    /// What was asked for.
    pub requested: String,
    /// The option that it was looked for in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub option_id: Option<String>,
    /// That option's category.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub category: Option<String>,
    /// What could have been meant.
    pub candidates: Vec<Choice>,
}

/// The sort of an issue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IssueReason {
    /// No value matches on any level.
    Unsupported,
    /// Several values match on the first level with any.
    Ambiguous,
    /// No option of that category, or several.
    MissingCategoryOption,
}

/// The one option of `category` and the value in it that `requested` means.
///
/// # Errors
///
/// The [`Issue`], with the candidates.
pub fn resolve<'a>(
    snapshot: &'a Snapshot,
    category: &str,
    requested: &str,
) -> Result<(&'a LiveOption, &'a str), Box<Issue>> {
    let issue = |reason, option: Option<&LiveOption>, candidates: Vec<Choice>| {
        Box::new(Issue {
            parameter: category.to_owned(),
            reason,
            requested: requested.to_owned(),
            option_id: option.map(|option| option.id.clone()),
            category: option.and_then(|option| option.category.clone()),
            candidates,
        })
    };
    let mut selects = snapshot.of_category(category).filter_map(|option| match &option.state {
        OptionState::Select { choices, .. } => Some((option, choices)),
        OptionState::Boolean { .. } => None,
    });
    let (Some((option, choices)), None) = (selects.next(), selects.next()) else {
        return Err(issue(IssueReason::MissingCategoryOption, None, Vec::new()));
    };
    let matches = best_matches(choices, requested);
    match matches[..] {
        [only] => Ok((option, &only.value)),
        [] => Err(issue(IssueReason::Unsupported, Some(option), choices.clone())),
        _ => {
            let candidates = matches.into_iter().cloned().collect();
            Err(issue(IssueReason::Ambiguous, Some(option), candidates))
        }
    }
}

/// The choices that match on the first level with any match, one per value.
fn best_matches<'a>(choices: &'a [Choice], requested: &str) -> Vec<&'a Choice> {
    let wanted = normalise(requested);
    let tokens = tokens(&wanted);
    let exact = |choice: &Choice| choice.value == requested;
    let value = |choice: &Choice| !wanted.is_empty() && normalise(&choice.value) == wanted;
    let name = |choice: &Choice| !wanted.is_empty() && normalise(&choice.name) == wanted;
    let contains = |choice: &Choice| {
        let (value, name) = (normalise(&choice.value), normalise(&choice.name));
        let (in_value, in_name) = (self::tokens(&value), self::tokens(&name));
        let known = |token: &&str| in_value.contains(token) || in_name.contains(token);
        !tokens.is_empty() && tokens.iter().all(known)
    };
    let levels: [&dyn Fn(&Choice) -> bool; 4] = [&exact, &value, &name, &contains];
    for matches in levels {
        let mut found: Vec<&Choice> = Vec::new();
        for choice in choices.iter().filter(|choice| matches(choice)) {
            // The same value may stand in several groups.
            if found.iter().all(|known| known.value != choice.value) {
                found.push(choice);
            }
        }
        if !found.is_empty() {
            return found;
        }
    }
    Vec::new()
}

/// NFKC, trimmed, lower case, white space folded.
fn normalise(text: &str) -> String {
    let text: String = text.nfkc().flat_map(char::to_lowercase).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn tokens(text: &str) -> Vec<&str> {
    text.split(['/', ':', '_', '-', ' ']).filter(|token| !token.is_empty()).collect()
}

/// The names of ACP modes that stand for a permission mode, the best first.
#[must_use]
pub fn mode_names(permissions: Permissions, mode_map: &BTreeMap<String, String>) -> Vec<String> {
    const FULL: &[&str] = &[
        "full-access",
        "full_access",
        "bypassPermissions",
        "bypass_permissions",
        "agent",
        "auto",
        "acceptEdits",
    ];
    const READS: &[&str] = &["read-only", "read_only", "readOnly", "plan", "ask"];
    const ASK: &[&str] = &["default", "ask"];
    let (key, names): (&str, Vec<&str>) = match permissions {
        Permissions::DenyAll => ("deny-all", READS.to_vec()),
        Permissions::ApproveReads => ("approve-reads", READS.to_vec()),
        Permissions::Ask => ("ask", [ASK, READS].concat()),
        Permissions::ApproveAll => ("approve-all", FULL.to_vec()),
    };
    match mode_map.get(key) {
        Some(name) => vec![name.clone()],
        None => names.into_iter().map(str::to_owned).collect(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A select option for tests; each choice is `value=name`.
    pub(crate) fn select(id: &str, category: &str, current: &str, choices: &[&str]) -> LiveOption {
        let choices = choices.iter().map(|text| {
            let (value, name) = text.split_once('=').unwrap_or((text, text));
            Choice { value: value.into(), name: name.into(), group: None, description: None }
        });
        LiveOption {
            id: id.into(),
            name: id.into(),
            category: Some(category.into()),
            state: OptionState::Select { current: current.into(), choices: choices.collect() },
            setter: Setter::ConfigOption,
        }
    }

    fn check(choices: &[&str], requested: &str, expected: Result<&str, (IssueReason, usize)>) {
        let snapshot =
            Snapshot { options: vec![select("m", MODEL, "", choices)], ..Snapshot::default() };
        let found = resolve(&snapshot, MODEL, requested);
        let found = found.map(|(_, value)| value).map_err(|i| (i.reason, i.candidates.len()));
        assert_eq!(found, expected, "{requested} in {choices:?}");
    }

    #[test]
    fn a_mode_that_was_set_shows_in_the_option_that_offers_it() {
        let mut snapshot = Snapshot {
            options: vec![
                select("mode", MODE, "auto", &["auto", "full"]),
                select("style", MODE, "terse", &["terse", "long"]),
            ],
            modes: Some(Modes { current: "auto".into(), available: Vec::new() }),
        };
        snapshot.stands_at_mode("full");
        let shown: Vec<_> = snapshot.options.iter().map(LiveOption::current).collect();
        assert_eq!(shown, ["full", "terse"]);
        assert_eq!(snapshot.modes.unwrap().current, "full");
    }

    #[test]
    fn the_first_level_with_a_match_decides() {
        use IssueReason::{Ambiguous, Unsupported};
        let models = &[
            "openai/gpt-5=GPT 5",
            "openai/gpt-5-mini=GPT 5 Mini",
            "Opus=Claude Opus",
            "opus=other",
        ];
        check(models, "openai/gpt-5", Ok("openai/gpt-5"));
        check(models, "opus", Ok("opus"));
        check(models, "OPUS", Err((Ambiguous, 2)));
        check(models, "  OpenAI/GPT-5 ", Ok("openai/gpt-5"));
        check(models, "gpt  5", Ok("openai/gpt-5"));
        check(models, "ＧＰＴ ５ ｍｉｎｉ", Ok("openai/gpt-5-mini"));
        check(models, "mini", Ok("openai/gpt-5-mini"));
        check(models, "mini:openai", Ok("openai/gpt-5-mini"));
        check(models, "gpt", Err((Ambiguous, 2)));
        check(models, "gpt-6", Err((Unsupported, 4)));
        check(models, "claude", Ok("Opus"));
        check(models, " ", Err((Unsupported, 4)));
        check(models, "", Err((Unsupported, 4)));
        check(&["a=x", "a=y"], "a", Ok("a"));
    }

    #[test]
    fn none_or_several_options_of_a_category_are_an_issue() {
        let mut snapshot = Snapshot::default();
        let reason =
            |snapshot: &Snapshot| resolve(snapshot, MODEL, "x").map(|_| ()).map_err(|i| i.reason);
        assert_eq!(reason(&snapshot), Err(IssueReason::MissingCategoryOption));
        snapshot.options.push(select("a", MODEL, "x", &["x"]));
        assert!(reason(&snapshot).is_ok());
        snapshot.options.push(select("b", MODEL, "x", &["x"]));
        assert_eq!(reason(&snapshot), Err(IssueReason::MissingCategoryOption));
    }

    #[test]
    fn issues_are_written_as_users_read_them() {
        let snapshot =
            Snapshot { options: vec![select("m", MODEL, "a", &["a=A"])], ..Snapshot::default() };
        let issue = resolve(&snapshot, MODEL, "b").unwrap_err();
        let expected = serde_json::json!({"parameter": "model", "reason": "unsupported",
            "requested": "b", "optionId": "m", "category": "model",
            "candidates": [{"value": "a", "name": "A"}]});
        assert_eq!(serde_json::to_value(issue).unwrap(), expected);
    }

    #[test]
    fn an_agent_may_name_its_modes_otherwise() {
        let none = BTreeMap::new();
        assert_eq!(mode_names(Permissions::Ask, &none)[..2], ["default", "ask"]);
        assert_eq!(mode_names(Permissions::DenyAll, &none)[0], "read-only");
        let map = BTreeMap::from([("approve-all".to_owned(), "yolo".to_owned())]);
        assert_eq!(mode_names(Permissions::ApproveAll, &map), ["yolo"]);
    }
}
