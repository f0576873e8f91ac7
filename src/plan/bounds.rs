//! What a status may hold of an agent's words: bounded here, whatever the agent sent, so that a
//! record never outgrows what the store takes (256 KiB) and a turn can always be ended.
//!
//! Applied last, to everything that a pass records; a status that is within its bounds stays as it
//! is, so that doing it again changes nothing. A value that a program may act on is left out rather
//! than cut; words for people are cut.

use serde_json::Value;

use crate::api::permission::{PermissionOption, ToolCall};
use crate::api::session::ConfigValue;
use crate::api::turn::ConfigWarning;
use crate::api::{Agent, Session, Turn};

/// A sentence with the last words of an agent in it.
const TEXT_BYTES_MAX: usize = 4096;
/// The name of an option.
const NAME_BYTES_MAX: usize = 256;
/// An option's value, or one that could be chosen.
const VALUE_BYTES_MAX: usize = 2048;
/// All options of a record.
const CONFIG_BYTES_MAX: usize = 24 * 1024;
/// All candidates of an issue; a turn has at most one for the model and one for the thought level.
const CANDIDATES_BYTES_MAX: usize = 24 * 1024;
/// All warnings of a turn.
const WARNINGS_BYTES_MAX: usize = 16 * 1024;
/// What an agent says of tokens and cost.
const USAGE_BYTES_MAX: usize = 8 * 1024;
/// What an agent says that it wants to do: a command may be long, and somebody decides by it.
const TITLE_BYTES_MAX: usize = 1024;
/// The files of a tool call that are listed.
const LOCATIONS_MAX: usize = 64;
/// The same by size; 64 requests may wait in a session at a time.
const LOCATIONS_BYTES_MAX: usize = 16 * 1024;
/// The answers of a request that are listed; agents offer two to four.
const PERMISSION_OPTIONS_MAX: usize = 16;
/// The agent's own id of a session: it cannot be cut.
pub(super) const ACP_SESSION_ID_BYTES_MAX: usize = 4096;

/// Bounds what an Agent's status has of its agent's words.
pub(super) fn agent(agent: &mut Agent) {
    for message in agent.status.conditions.messages_mut() {
        cut(message, TEXT_BYTES_MAX);
    }
}

/// A sentence as a record holds it.
pub(super) fn sentence(text: &str) -> String {
    let mut text = text.to_owned();
    cut(&mut text, TEXT_BYTES_MAX);
    text
}

/// Bounds what a session's status has from its agent.
pub(super) fn session(session: &mut Session) {
    let status = &mut session.status;
    cut(&mut status.message, TEXT_BYTES_MAX);
    cut(&mut status.restarts.last_error, TEXT_BYTES_MAX);
    if let Some(end) = &mut status.end {
        cut(&mut end.message, TEXT_BYTES_MAX);
    }
    for message in status.conditions.messages_mut() {
        cut(message, TEXT_BYTES_MAX);
    }
    options(&mut status.config);
    usage(&mut status.usage);
}

/// Bounds what a request for permission says of its tool call. A path is left out rather than cut:
/// somebody decides by it; how many are left out is told.
pub(super) fn tool_call(call: &mut ToolCall) {
    cut(&mut call.id, NAME_BYTES_MAX);
    if let Some(title) = &mut call.title {
        cut(title, TITLE_BYTES_MAX);
    }
    if let Some(kind) = &mut call.kind {
        cut(kind, NAME_BYTES_MAX);
    }
    let all = call.locations.len();
    call.locations.truncate(LOCATIONS_MAX);
    fill(&mut call.locations, LOCATIONS_BYTES_MAX, |location| location.path.len());
    let left_out = all - call.locations.len();
    call.more_locations =
        call.more_locations.saturating_add(u32::try_from(left_out).unwrap_or(u32::MAX));
}

/// Bounds the answers that a request for permission offers.
pub(super) fn permission_options(options: &mut Vec<PermissionOption>) {
    options.truncate(PERMISSION_OPTIONS_MAX);
    for option in options {
        cut(&mut option.option_id, NAME_BYTES_MAX);
        cut(&mut option.kind, NAME_BYTES_MAX);
        cut(&mut option.name, NAME_BYTES_MAX);
    }
}

/// Bounds what a turn's status has from its agent.
pub(super) fn turn(turn: &mut Turn) {
    let status = &mut turn.status;
    cut(&mut status.message, TEXT_BYTES_MAX);
    options(&mut status.config);
    for issue in &mut status.issues {
        candidates(issue);
    }
    warnings(&mut status.warnings);
    usage(&mut status.usage);
}

/// Cuts a text at a character, and shows that it was cut.
fn cut(text: &mut String, bytes_max: usize) {
    const MARK: &str = "…";
    if text.len() <= bytes_max {
        return;
    }
    let mut end = bytes_max - MARK.len();
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text.push_str(MARK);
}

fn bytes_of(value: &Value) -> usize {
    value.to_string().len()
}

/// Keeps the first ones that fit.
fn fill<T>(list: &mut Vec<T>, bytes_max: usize, bytes_of: impl Fn(&T) -> usize) {
    let mut sum = 0;
    let fits = list.iter().take_while(|item| {
        sum += bytes_of(item);
        sum <= bytes_max
    });
    let kept = fits.count();
    list.truncate(kept);
}

fn options(config: &mut Vec<ConfigValue>) {
    config.retain(|option| {
        option.id.len() <= VALUE_BYTES_MAX && bytes_of(&option.current_value) <= VALUE_BYTES_MAX
    });
    for option in config.iter_mut() {
        cut(&mut option.name, NAME_BYTES_MAX);
    }
    // Keys and punctuation of an entry take less than what is added here.
    fill(config, CONFIG_BYTES_MAX, |option| {
        64 + 2 * (option.id.len() + option.name.len()) + bytes_of(&option.current_value)
    });
}

fn candidates(issue: &mut Value) {
    let Some(Value::Array(list)) = issue.get_mut("candidates") else { return };
    list.retain(|candidate| bytes_of(candidate) <= 2 * VALUE_BYTES_MAX);
    fill(list, CANDIDATES_BYTES_MAX, bytes_of);
}

fn warnings(list: &mut Vec<ConfigWarning>) {
    for warning in list.iter_mut() {
        cut(&mut warning.message, VALUE_BYTES_MAX);
    }
    fill(list, WARNINGS_BYTES_MAX, |warning| {
        64 + 2 * (warning.option_id.len() + warning.message.len())
    });
}

fn usage(usage: &mut Option<Value>) {
    if usage.as_ref().is_some_and(|usage| bytes_of(usage) > USAGE_BYTES_MAX) {
        *usage = None;
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::permission::Location;
    use crate::api::{Code, ObjectMeta, SessionSpec, Time, TurnSpec};
    use crate::store::RECORD_BYTES_MAX;

    fn option(id: String, name: String, value: String) -> ConfigValue {
        ConfigValue { id, name, kind: "select".to_owned(), current_value: Value::String(value) }
    }

    #[test]
    fn whatever_an_agent_offers_or_says_its_records_stay_small_and_bounding_again_changes_nothing()
    {
        let long = "ü\u{1}".repeat(300_000);
        let many = |count: usize, bytes: usize| -> Vec<Value> {
            (0..count)
                .map(|n| json!({"value": format!("{n}"), "name": "n".repeat(bytes)}))
                .collect()
        };
        let config = |count: usize, bytes: usize| -> Vec<ConfigValue> {
            (0..count).map(|n| option(n.to_string(), "x".repeat(bytes), "v".to_owned())).collect()
        };
        let mut made = Turn::new(ObjectMeta::default(), TurnSpec::default());
        made.status.message.clone_from(&long);
        made.status.code = Some(Code::TurnFailed);
        made.status.usage = Some(json!({ "words": long }));
        made.status.issues = vec![
            json!({"parameter": "model", "candidates": many(3000, 300)}),
            json!({"parameter": "thought_level", "candidates": many(3, 300_000)}),
        ];
        made.status.config = config(600, 500);
        made.status.warnings = (0..300)
            .map(|n| ConfigWarning { option_id: n.to_string(), message: long.clone() })
            .collect();
        turn(&mut made);
        let bytes = serde_json::to_vec(&made).unwrap().len();
        assert!(bytes < RECORD_BYTES_MAX / 2, "{bytes}");
        assert!(!made.status.issues[0]["candidates"].as_array().unwrap().is_empty());
        assert!(!made.status.config.is_empty() && !made.status.warnings.is_empty());
        let again = made.clone();
        turn(&mut made);
        assert_eq!(made, again);

        let mut kept = Session::new(ObjectMeta::default(), SessionSpec::default());
        kept.status.message.clone_from(&long);
        kept.status.restarts.last_error.clone_from(&long);
        kept.status.config = vec![
            option("a".into(), "A".into(), long.clone()),
            option("b".into(), "B".into(), "1".into()),
        ];
        kept.status.conditions.set(
            "ProcessReady",
            crate::api::ConditionStatus::False,
            "StartFailed",
            &long,
            1,
            Time::from_millis(0),
        );
        session(&mut kept);
        let bytes = serde_json::to_vec(&kept).unwrap().len();
        assert!(bytes < RECORD_BYTES_MAX / 2, "{bytes}");
        let ids: Vec<&str> = kept.status.config.iter().map(|option| option.id.as_str()).collect();
        assert_eq!(ids, ["b"], "a value is left out, never cut");
        let again = kept.clone();
        session(&mut kept);
        assert_eq!(kept, again);
    }

    #[test]
    fn a_request_for_permission_stays_small_and_tells_what_it_leaves_out() {
        let location = |n: usize| Location { path: format!("/{n}{}", "x".repeat(1000)) };
        let mut call = ToolCall {
            id: "i".repeat(9000),
            title: Some("é".repeat(9000)),
            kind: Some("k".repeat(9000)),
            locations: (0..256).map(location).collect(),
            more_locations: 0,
        };
        let offer = || PermissionOption { name: "n".repeat(9000), ..PermissionOption::default() };
        let mut options: Vec<_> = (0..64).map(|_| offer()).collect();
        tool_call(&mut call);
        permission_options(&mut options);
        let bytes = serde_json::to_vec(&(&call, &options)).unwrap().len();
        assert!(bytes < 32 * 1024, "{bytes} bytes");
        let listed = call.locations.len();
        assert!(listed > 8 && listed + call.more_locations as usize == 256, "{listed}");
        assert!(call.locations.iter().all(|location| location.path.len() > 1000), "none is cut");
        let (again, before) = (call.clone(), options.clone());
        tool_call(&mut call);
        permission_options(&mut options);
        assert_eq!((call, options), (again, before));
    }
}
