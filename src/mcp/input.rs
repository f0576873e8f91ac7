//! A tool's arguments, taken apart field by field: strict, and every fault names its field.
//!
//! Who calls, in which workspace, how deep: none of it is a field of any tool, so an input that
//! tries to say it is refused like every unknown field.

use std::collections::BTreeMap;
use std::fmt;

use rmcp::model::JsonObject;
use serde_json::Value;

use super::failure::Failure;

/// The most characters of an identifier.
pub(super) const IDENTIFIER_CHARS_MAX: usize = 256;

/// Arguments that are taken out one by one; what is left over in the end is a fault.
pub(super) struct Arguments {
    tool: &'static str,
    fields: &'static [&'static str],
    left: JsonObject,
}

impl Arguments {
    /// The arguments of a tool that has these fields.
    pub(super) fn new(
        tool: &'static str,
        fields: &'static [&'static str],
        given: Option<JsonObject>,
    ) -> Result<Self, Failure> {
        let left = given.unwrap_or_default();
        if let Some(name) = left.keys().find(|name| !fields.contains(&name.as_str())) {
            let takes = match fields {
                [] => "takes none".to_owned(),
                fields => format!("takes {}", fields.join(", ")),
            };
            return Err(Failure::field(
                &shown(name),
                format!("there is no such field; {tool} {takes}"),
            ));
        }
        Ok(Self { tool, fields, left })
    }

    /// A field's value. `null` is a value, and of no field's type.
    fn take(&mut self, name: &'static str) -> Option<Value> {
        debug_assert!(self.fields.contains(&name), "{} has no field {name}", self.tool);
        self.left.remove(name)
    }

    /// A text of `min` to `max` characters.
    pub(super) fn text(
        &mut self,
        name: &'static str,
        chars: (usize, usize),
    ) -> Result<Option<String>, Failure> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let expected = |got: &dyn fmt::Display| {
            let (min, max) = chars;
            let bounds = match (min, max) {
                (min, usize::MAX) => format!("at least {min} characters"),
                (min, max) => format!("{min} to {max} characters"),
            };
            Failure::field(name, format!("expected a string of {bounds}, got {got}"))
        };
        let Value::String(text) = value else { return Err(expected(&kind(&value))) };
        let count = text.chars().count();
        if count < chars.0 || count > chars.1 {
            return Err(expected(&format!("one of {count}")));
        }
        Ok(Some(text))
    }

    /// An identifier: 1 to 256 characters without `/`, `\` or NUL.
    pub(super) fn identifier(&mut self, name: &'static str) -> Result<Option<String>, Failure> {
        let text = self.text(name, (1, IDENTIFIER_CHARS_MAX))?;
        match text {
            Some(text) if text.contains(['/', '\\', '\0']) => {
                Err(Failure::field(name, "an identifier has no /, \\ or NUL"))
            }
            text => Ok(text),
        }
    }

    /// An identifier that must be there.
    pub(super) fn required(&mut self, name: &'static str) -> Result<String, Failure> {
        self.identifier(name)?.ok_or_else(|| missing(name))
    }

    /// Yes or no.
    pub(super) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, Failure> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(flag)) => Ok(Some(flag)),
            Some(other) => {
                Err(Failure::field(name, format!("expected true or false, got {}", kind(&other))))
            }
        }
    }

    /// A whole number.
    pub(super) fn number(
        &mut self,
        name: &'static str,
        range: std::ops::RangeInclusive<u64>,
    ) -> Result<Option<u64>, Failure> {
        let Some(value) = self.take(name) else { return Ok(None) };
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(Failure::field(
                name,
                format!(
                    "expected a whole number from {} to {}, got {}",
                    range.start(),
                    range.end(),
                    if value.is_number() { value.to_string() } else { kind(&value).to_owned() }
                ),
            )),
        }
    }

    /// Texts and booleans by name.
    pub(super) fn options(
        &mut self,
        name: &'static str,
    ) -> Result<BTreeMap<String, Value>, Failure> {
        let Some(value) = self.take(name) else { return Ok(BTreeMap::new()) };
        let Value::Object(options) = value else {
            let got = kind(&value);
            return Err(Failure::field(name, format!("expected a map of option ids, got {got}")));
        };
        for (id, value) in &options {
            if !value.is_string() && !value.is_boolean() {
                return Err(Failure::field(
                    &format!("{name}.{}", shown(id)),
                    format!("expected a string or a boolean, got {}", kind(value)),
                ));
            }
        }
        Ok(options.into_iter().collect())
    }
}

/// A field that must be there is not.
pub(super) fn missing(name: &str) -> Failure {
    Failure::field(name, "is required")
}

/// What sort of a value this is.
const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

/// A name that somebody made up, cut so that no answer grows with it.
fn shown(name: &str) -> String {
    const SHOWN_CHARS_MAX: usize = 64;
    name.chars().take(SHOWN_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Code;

    const FIELDS: &[&str] = &["id", "text", "flag", "number", "options"];

    fn given(value: Value) -> Arguments {
        Arguments::new("tool", FIELDS, value.as_object().cloned()).unwrap()
    }

    fn fault<T: fmt::Debug>(result: Result<T, Failure>) -> String {
        let failure = result.unwrap_err();
        assert_eq!(failure.code, Code::SpawnInvalidRequest);
        failure.message
    }

    #[test]
    fn every_fault_names_its_field() {
        let unknown = |name: &str| {
            let given = json!({name: "x"}).as_object().cloned();
            fault(Arguments::new("tool", FIELDS, given).map(|_| ()))
        };
        for name in ["workspaceId", "parentSession", "caller", "depth", "ID"] {
            let message = unknown(name);
            assert!(message.starts_with(&format!("{name}: there is no such field")), "{message}");
        }
        assert!(unknown(&"x".repeat(10_000)).len() < 300);

        for (value, expected) in [
            (json!({"id": 5}), "id: expected a string of 1 to 256 characters, got a number"),
            (json!({"id": ""}), "id: expected a string of 1 to 256 characters, got one of 0"),
            (
                json!({"id": "ä".repeat(257)}),
                "id: expected a string of 1 to 256 characters, got one of 257",
            ),
            (json!({"id": "a/b"}), "id: an identifier has no /, \\ or NUL"),
            (json!({"id": "a\\b"}), "id: an identifier has no /, \\ or NUL"),
            (json!({"id": "a\0b"}), "id: an identifier has no /, \\ or NUL"),
            (json!({}), "id: is required"),
            (json!({"id": null}), "id: expected a string of 1 to 256 characters, got null"),
        ] {
            assert_eq!(fault(given(value).required("id")), expected);
        }
        assert_eq!(
            given(json!({"id": "ä".repeat(256)})).required("id").unwrap().chars().count(),
            256
        );

        let message = fault(given(json!({"text": ""})).text("text", (1, usize::MAX)));
        assert_eq!(message, "text: expected a string of at least 1 characters, got one of 0");
        let message = fault(given(json!({"flag": "yes"})).flag("flag"));
        assert_eq!(message, "flag: expected true or false, got a string");
        for (value, got) in [(json!(3), "3"), (json!(1.5), "1.5"), (json!("9"), "a string")] {
            let message = fault(given(json!({"number": value})).number("number", 4..=8));
            assert_eq!(message, format!("number: expected a whole number from 4 to 8, got {got}"));
        }
        let message = fault(given(json!({"options": {"a": "b", "c": 1}})).options("options"));
        assert_eq!(message, "options.c: expected a string or a boolean, got a number");
        let message = fault(given(json!({"options": []})).options("options"));
        assert_eq!(message, "options: expected a map of option ids, got a list");
    }

    #[test]
    fn what_is_right_is_taken() {
        let mut arguments = given(json!({
            "id": "x", "text": "t", "flag": false, "number": 8, "options": {"a": true, "b": "c"},
        }));
        assert_eq!(arguments.required("id").unwrap(), "x");
        assert_eq!(arguments.text("text", (1, 5)).unwrap().as_deref(), Some("t"));
        assert_eq!(arguments.flag("flag").unwrap(), Some(false));
        assert_eq!(arguments.number("number", 4..=8).unwrap(), Some(8));
        assert_eq!(arguments.options("options").unwrap().len(), 2);
        assert_eq!(given(json!({})).flag("flag").unwrap(), None);
    }
}
