//! Fields whose effect comes in a later version: refused when set, never ignored.
//!
//! One table per kind, a line per field, so that a field that gets its effect costs one line. The
//! test `coverage` holds that every field of a spec has its effect or stands in its table.

use serde::Serialize;
use serde_json::Value;

use crate::api::{FieldErrors, FieldPath};

/// A field's path below `spec`, and the values that are refused: none listed means every one but
/// the default.
pub(super) type NotYet = (&'static str, &'static [&'static str]);

/// Every value but the default.
pub(super) const ANY: &[&str] = &[];

/// Refuses what stands in the table and is set.
pub(super) fn refuse<S: Serialize + Default>(errors: &mut FieldErrors, spec: &S, table: &[NotYet]) {
    // A spec is plain data with string keys: it always has a JSON form.
    let spec = serde_json::to_value(spec).unwrap_or_default();
    let default = serde_json::to_value(S::default()).unwrap_or_default();
    for (field, values) in table {
        let value = lookup(&spec, field);
        let is_refused = match value {
            None => false,
            Some(value) if values.is_empty() => {
                !is_nothing(value) && lookup(&default, field) != Some(value)
            }
            Some(value) => values.contains(&text(value).as_str()),
        };
        if is_refused {
            errors.not_supported_yet(FieldPath::new("spec").field(field));
        }
    }
}

/// The value at a dotted path.
pub(super) fn lookup<'v>(value: &'v Value, path: &str) -> Option<&'v Value> {
    path.split('.').try_fold(value, |value, name| value.get(name))
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => false,
    }
}

fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}
