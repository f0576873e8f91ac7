//! What a change to a live object may touch: the column "M" of the record contract.

use serde::Serialize;

use super::check::shown;
use crate::api::field::FieldErrorReason::FieldValueForbidden;
use crate::api::{FieldErrors, FieldPath};

/// When a change to a field takes effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// At once.
    Live,
    /// For the next turn.
    NextTurn,
    /// Only forward; the kind's own code compares.
    Forward,
    /// Never.
    Immutable,
}

/// Refuses changes of immutable fields.
pub(super) fn refuse_changes<S: Serialize>(
    errors: &mut FieldErrors,
    old: &S,
    new: &S,
    column: &[(&'static str, Change)],
) {
    // A spec is plain data with string keys: it always has a JSON form.
    let old = serde_json::to_value(old).unwrap_or_default();
    let new = serde_json::to_value(new).unwrap_or_default();
    for (field, change) in column {
        let (was, is) = (old.get(field), new.get(field));
        if *change == Change::Immutable && was != is {
            let was = was.map_or_else(|| "not set".to_owned(), shown_value);
            errors.push(
                FieldPath::new("spec").field(field),
                FieldValueForbidden,
                format!("is immutable: it is {was}; make a new object for another value"),
            );
        }
    }
}

fn shown_value(value: &serde_json::Value) -> String {
    match value {
        // Lists and objects may hold variables and headers, which may be secrets.
        serde_json::Value::Array(_) => "another list".to_owned(),
        serde_json::Value::Object(_) => "another object".to_owned(),
        serde_json::Value::String(text) => shown(text),
        other => other.to_string(),
    }
}

/// Refuses a way back.
pub(super) fn refuse_backward<T: Ord + Serialize>(errors: &mut FieldErrors, old: &T, new: &T) {
    if new < old {
        let text = |state: &T| {
            serde_json::to_value(state).ok().and_then(|text| text.as_str().map(str::to_owned))
        };
        errors.push(
            FieldPath::new("spec.desiredState"),
            FieldValueForbidden,
            format!(
                "only goes forward: it is {}, and {} comes before that",
                text(old).unwrap_or_default(),
                text(new).unwrap_or_default()
            ),
        );
    }
}
