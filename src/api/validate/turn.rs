//! Validation of `Turn` specs and of their changes.
//!
//! The upper bound of a prompt is absent: the configuration sets it (`limits.promptBytes`), and
//! admission turns what is over [`INLINE_PROMPT_BYTES_MAX`](super::INLINE_PROMPT_BYTES_MAX) into a
//! blob.

use super::column::{self, Change};
use super::not_yet::{self, NotYet};
use super::{IDEMPOTENCY_KEY_CHARS_MAX, check};
use crate::api::field::FieldErrorReason::{FieldValueForbidden, FieldValueRequired};
use crate::api::turn::TurnSpec;
use crate::api::{FieldErrors, FieldPath};

/// What has no effect yet.
pub(super) const NOT_YET: &[NotYet] =
    &[("deliverAt", &["step"]), ("source.kind", &["fleet-relay", "subagent"])];

/// The column "M".
pub(super) const COLUMN: &[(&str, Change)] = &[
    ("session", Change::Immutable),
    ("prompt", Change::Immutable),
    ("promptBlocks", Change::Immutable),
    ("promptBlob", Change::Immutable),
    ("admission", Change::Immutable),
    ("deliverAt", Change::Immutable),
    ("background", Change::Immutable),
    ("model", Change::Immutable),
    ("thoughtLevel", Change::Immutable),
    ("config", Change::Immutable),
    ("source", Change::Immutable),
    ("runBudget", Change::Immutable),
    ("idempotencyKey", Change::Immutable),
    ("desiredState", Change::Forward),
];

/// Every fault of the spec.
pub(crate) fn spec(spec: &TurnSpec) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    let at = FieldPath::new("spec");
    not_yet::refuse(&mut errors, spec, NOT_YET);
    check::name(&mut errors, at.field("session"), spec.session.as_str());
    let prompts = [spec.prompt.is_some(), spec.prompt_blocks.is_some(), spec.prompt_blob.is_some()];
    match prompts.into_iter().filter(|is_set| *is_set).count() {
        0 => {
            let message = "set exactly one of prompt and promptBlocks";
            errors.push(at.field("prompt"), FieldValueRequired, message);
        }
        1 => {}
        _ => {
            let field = if spec.prompt_blocks.is_some() { "promptBlocks" } else { "promptBlob" };
            let message = "set exactly one of prompt and promptBlocks";
            errors.push(at.field(field), FieldValueForbidden, message);
        }
    }
    if let Some(prompt) = &spec.prompt {
        check::prompt(&mut errors, at.field("prompt"), prompt);
    }
    if let Some(blocks) = &spec.prompt_blocks {
        check::blocks(&mut errors, &at.field("promptBlocks"), blocks);
    }
    check::optional_id(&mut errors, at.field("model"), spec.model.as_ref());
    check::optional_id(&mut errors, at.field("thoughtLevel"), spec.thought_level.as_ref());
    check::options(&mut errors, &at.field("config"), &spec.config);
    if let Some(budget) = &spec.run_budget {
        check::run_budget(&mut errors, &at.field("runBudget"), budget);
    }
    if let Some(key) = &spec.idempotency_key {
        check::line(&mut errors, at.field("idempotencyKey"), key, IDEMPOTENCY_KEY_CHARS_MAX);
    }
    errors.into_result()
}

/// Every fault of the change.
pub(crate) fn update(old: &TurnSpec, new: &TurnSpec) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    column::refuse_changes(&mut errors, old, new, COLUMN);
    column::refuse_backward(&mut errors, &old.desired_state, &new.desired_state);
    errors.into_result()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::Spec as _;

    fn turn(value: Value) -> TurnSpec {
        serde_json::from_value(value).unwrap()
    }

    fn paths(result: Result<(), FieldErrors>) -> Vec<String> {
        match result {
            Ok(()) => Vec::new(),
            Err(errors) => errors.0.iter().map(|error| error.field.to_string()).collect(),
        }
    }

    #[test]
    fn a_turn_needs_a_session_and_one_prompt() {
        assert!(turn(json!({"session": "s", "prompt": "p"})).validate().is_ok());
        assert!(turn(json!({"session": "s", "promptBlob": {"bytes": 9}})).validate().is_ok());
        assert_eq!(paths(turn(json!({})).validate()), ["spec.session", "spec.prompt"]);
        let both = json!({"session": "s", "prompt": "p", "promptBlob": {"bytes": 9}});
        assert_eq!(paths(turn(both).validate()), ["spec.promptBlob"]);
        let empty = json!({"session": "s", "promptBlocks": []});
        assert_eq!(paths(turn(empty).validate()), ["spec.promptBlocks"]);
    }

    #[test]
    fn only_the_desired_state_of_a_live_turn_changes_and_only_forward() {
        let old = turn(json!({"session": "s", "prompt": "p"}));
        let cancelled = turn(json!({"session": "s", "prompt": "p", "desiredState": "cancelled"}));
        assert!(cancelled.validate_update(&old).is_ok());
        assert_eq!(paths(old.validate_update(&cancelled)), ["spec.desiredState"]);
        let other = turn(json!({"session": "t", "prompt": "q", "model": "m"}));
        assert_eq!(
            paths(other.validate_update(&old)),
            ["spec.session", "spec.prompt", "spec.model"]
        );
    }
}
