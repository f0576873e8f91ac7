//! The checks that the kinds share. Each adds what it finds to the list and goes on.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::{ENTRIES_MAX, ID_CHARS_MAX, PATH_BYTES_MAX, VALUE_BYTES_MAX};
use crate::api::agent::{McpServer, McpTransport};
use crate::api::field::FieldErrorReason::{
    FieldValueDuplicate, FieldValueForbidden, FieldValueInvalid, FieldValueNotSupported,
    FieldValueRequired,
};
use crate::api::session::RunBudget;
use crate::api::{Dur, FieldErrors, FieldPath};

/// Variables that the daemon sets itself: a value in a record would never reach the agent.
const OWN_VARIABLES: [&str; 13] = [
    "SPAWNLET_AGENT",
    "SPAWNLET_AUTH_MODE",
    "SPAWNLET_BIN",
    "SPAWNLET_ENV_POLICY",
    "SPAWNLET_HOME_POLICY",
    "SPAWNLET_INSTANCE",
    "SPAWNLET_MODEL",
    "SPAWNLET_NAMESPACE",
    "SPAWNLET_PARENT_SESSION_ID",
    "SPAWNLET_SESSION_ID",
    "SPAWNLET_SESSION_NAME",
    "SPAWNLET_TOKEN",
    "SPAWNLET_URL",
];

/// The kinds of ACP content blocks (ACP v1, `ContentBlock`).
const BLOCK_TYPES: [&str; 5] = ["text", "image", "audio", "resource_link", "resource"];

/// The most characters of a value that a message repeats.
const SHOWN_CHARS_MAX: usize = 80;

/// A value as messages show it: quoted, escaped and cut.
pub(in crate::api) fn shown(value: &str) -> String {
    let cut: String = value.chars().take(SHOWN_CHARS_MAX).collect();
    if cut.len() < value.len() { format!("{cut:?}...") } else { format!("{cut:?}") }
}

/// Whether `text` is a DNS label (RFC 1123): Kubernetes' shape of a name.
#[must_use]
pub fn is_dns_label(text: &str) -> bool {
    let bytes = text.as_bytes();
    let alphanumeric = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    bytes.len() <= 63
        && bytes.first().is_some_and(alphanumeric)
        && bytes.last().is_some_and(alphanumeric)
        && bytes.iter().all(|byte| alphanumeric(byte) || *byte == b'-')
}

/// A name of a record, or a reference to one.
pub(super) fn name(errors: &mut FieldErrors, at: FieldPath, value: &str) {
    if value.is_empty() {
        errors.push(at, FieldValueRequired, "must be set");
    } else if !is_dns_label(value) {
        let message = format!(
            "{}: expected a DNS label: at most 63 lower case letters, digits and hyphens, a letter or digit at both ends",
            shown(value)
        );
        errors.push(at, FieldValueInvalid, message);
    }
}

/// A short text of one line: not empty, no control characters, at most `chars_max` characters.
pub(in crate::api) fn line(errors: &mut FieldErrors, at: FieldPath, value: &str, chars_max: usize) {
    if value.trim().is_empty() {
        errors.push(at, FieldValueInvalid, "is empty: leave it out or give it a text");
    } else if value.chars().any(char::is_control) {
        let message = format!("{}: expected one line without control characters", shown(value));
        errors.push(at, FieldValueInvalid, message);
    } else if value.chars().count() > chars_max {
        let message = format!(
            "{} has {} characters; at most {chars_max} are allowed",
            shown(value),
            value.chars().count()
        );
        errors.push(at, FieldValueInvalid, message);
    }
}

/// A text that becomes an argument or a variable: no NUL, bounded. The value is never shown.
pub(super) fn argument(errors: &mut FieldErrors, at: FieldPath, value: &str) {
    if value.contains('\0') {
        errors.push(at, FieldValueInvalid, "holds a NUL character; expected a text without one");
    } else if value.len() > VALUE_BYTES_MAX {
        let message = format!("has {} bytes; at most {VALUE_BYTES_MAX} are allowed", value.len());
        errors.push(at, FieldValueInvalid, message);
    }
}

/// A list or map with at most [`ENTRIES_MAX`] entries.
pub(super) fn entries(errors: &mut FieldErrors, at: FieldPath, count: usize) {
    if count > ENTRIES_MAX {
        let message = format!("has {count} entries; at most {ENTRIES_MAX} are allowed");
        errors.push(at, FieldValueInvalid, message);
    }
}

/// An absolute path of the daemon's machine. Whether it exists is seen when it is used.
pub(super) fn absolute_path(errors: &mut FieldErrors, at: FieldPath, value: &str) {
    if value.is_empty() {
        errors.push(at, FieldValueRequired, "must be set to an absolute path");
    } else if value.starts_with('~') {
        let message = format!("{}: `~` is not expanded; expected an absolute path", shown(value));
        errors.push(at, FieldValueInvalid, message);
    } else if !value.starts_with('/') {
        let message = format!("{}: expected an absolute path", shown(value));
        errors.push(at, FieldValueInvalid, message);
    } else if value.contains('\0') || value.len() > PATH_BYTES_MAX {
        let message = format!(
            "{}: expected a path of at most {PATH_BYTES_MAX} bytes without NUL",
            shown(value)
        );
        errors.push(at, FieldValueInvalid, message);
    }
}

/// A list of absolute paths.
pub(super) fn absolute_paths(errors: &mut FieldErrors, at: &FieldPath, values: &[String]) {
    entries(errors, at.clone(), values.len());
    for (index, value) in values.iter().enumerate() {
        absolute_path(errors, at.index(index), value);
    }
}

/// The name of a variable.
pub(super) fn variable_name(errors: &mut FieldErrors, at: FieldPath, value: &str) {
    let first = value.chars().next();
    let allowed = |char: char| char.is_ascii_alphanumeric() || "_.-".contains(char);
    if first.is_none_or(|char| char.is_ascii_digit()) || !value.chars().all(allowed) {
        let message = format!(
            "{}: expected a variable's name: letters, digits, `_`, `.` and `-`, no digit first",
            shown(value)
        );
        errors.push(at, FieldValueInvalid, message);
    } else if OWN_VARIABLES.contains(&value) {
        let message = format!("{value} is set by the daemon itself");
        errors.push(at, FieldValueForbidden, message);
    } else if value.chars().count() > ID_CHARS_MAX {
        let message = format!("is longer than {ID_CHARS_MAX} characters");
        errors.push(at, FieldValueInvalid, message);
    }
}

/// Variables by name.
pub(super) fn variables(
    errors: &mut FieldErrors,
    at: &FieldPath,
    values: &BTreeMap<String, String>,
) {
    entries(errors, at.clone(), values.len());
    for (name, value) in values {
        variable_name(errors, at.field(name), name);
        argument(errors, at.field(name), value);
    }
}

/// Values of live options by id: strings and booleans, as ACP has them.
pub(super) fn options(errors: &mut FieldErrors, at: &FieldPath, values: &BTreeMap<String, Value>) {
    entries(errors, at.clone(), values.len());
    for (id, value) in values {
        line(errors, at.field(id), id, ID_CHARS_MAX);
        match value {
            Value::Bool(_) => {}
            Value::String(text) => argument(errors, at.field(id), text),
            Value::Null | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
                let message =
                    format!("{}: expected a string or true or false", shown(&value.to_string()));
                errors.push(at.field(id), FieldValueInvalid, message);
            }
        }
    }
}

/// Neither empty nor over the bound, where a model or thought level is given at all.
pub(super) fn optional_id(errors: &mut FieldErrors, at: FieldPath, value: Option<&String>) {
    if let Some(value) = value {
        line(errors, at, value, ID_CHARS_MAX);
    }
}

/// A duration that cannot be "off".
pub(super) fn positive(errors: &mut FieldErrors, at: FieldPath, value: Dur, hint: &str) {
    if value.is_zero() {
        errors.push(at, FieldValueInvalid, format!("0s: expected a duration above zero{hint}"));
    }
}

/// The limits of a turn: what allows nothing would end every turn at its beginning.
pub(super) fn run_budget(errors: &mut FieldErrors, at: &FieldPath, budget: &RunBudget) {
    let hint = "; leave it out for no limit";
    let mut refuse = |field: &str, text: String| {
        let message = format!("{text}: expected more than 0{hint}");
        errors.push(at.field(field), FieldValueInvalid, message);
    };
    if budget.max_steps == Some(0) {
        refuse("maxSteps", "0".to_owned());
    }
    if let Some(timeout) = budget.timeout.filter(|timeout| timeout.is_zero()) {
        refuse("timeout", timeout.to_string());
    }
    if budget.max_tokens == Some(0) {
        refuse("maxTokens", "0".to_owned());
    }
    if let Some(cost) = budget.max_cost.filter(|cost| !cost.is_finite() || *cost <= 0.0) {
        refuse("maxCost", cost.to_string());
    }
}

/// A prompt as text.
pub(super) fn prompt(errors: &mut FieldErrors, at: FieldPath, value: &str) {
    if value.trim().is_empty() {
        errors.push(at, FieldValueInvalid, "is empty; expected a text for the agent");
    }
}

/// A prompt as ACP content blocks.
pub(super) fn blocks(errors: &mut FieldErrors, at: &FieldPath, values: &[Value]) {
    if values.is_empty() {
        errors.push(at.clone(), FieldValueInvalid, "is empty; expected at least one content block");
    }
    entries(errors, at.clone(), values.len());
    for (index, value) in values.iter().enumerate() {
        let at = at.index(index);
        let Some(block) = value.as_object() else {
            errors.push(at, FieldValueInvalid, "expected an ACP content block, an object");
            continue;
        };
        match block.get("type").and_then(Value::as_str) {
            None => {
                let message = format!("must be one of {}", BLOCK_TYPES.join(", "));
                errors.push(at.field("type"), FieldValueRequired, message);
            }
            Some("text") if !block.get("text").is_some_and(Value::is_string) => {
                errors.push(at.field("text"), FieldValueRequired, "must be a string");
            }
            Some(kind) if !BLOCK_TYPES.contains(&kind) => {
                let message =
                    format!("{}: expected one of {}", shown(kind), BLOCK_TYPES.join(", "));
                errors.push(at.field("type"), FieldValueNotSupported, message);
            }
            Some(_) => {}
        }
    }
}

/// MCP servers: each whole for its transport, names unique.
pub(in crate::api) fn mcp_servers(errors: &mut FieldErrors, at: &FieldPath, servers: &[McpServer]) {
    entries(errors, at.clone(), servers.len());
    let mut names = BTreeSet::new();
    for (index, server) in servers.iter().enumerate() {
        let at = at.index(index);
        line(errors, at.field("name"), &server.name, ID_CHARS_MAX);
        if !names.insert(server.name.as_str()) {
            let message = format!("{} stands twice; names are unique", shown(&server.name));
            errors.push(at.field("name"), FieldValueDuplicate, message);
        }
        match server.transport {
            McpTransport::Stdio => stdio_server(errors, &at, server),
            McpTransport::Http => http_server(errors, &at, server),
        }
    }
}

fn stdio_server(errors: &mut FieldErrors, at: &FieldPath, server: &McpServer) {
    match server.command.as_deref() {
        None | Some("") => {
            errors.push(at.field("command"), FieldValueRequired, "must be set for type stdio");
        }
        Some(command) => argument(errors, at.field("command"), command),
    }
    entries(errors, at.field("args"), server.args.len());
    for (index, value) in server.args.iter().enumerate() {
        argument(errors, at.field("args").index(index), value);
    }
    variables(errors, &at.field("env"), &server.env);
    only_for(errors, at.field("url"), server.url.is_some(), "http");
    only_for(errors, at.field("headers"), !server.headers.is_empty(), "http");
}

/// An http:// or https:// address.
pub(in crate::api) fn http_url(errors: &mut FieldErrors, at: FieldPath, url: &str) {
    let rest = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    let is_whole = rest.is_some_and(|rest| !rest.is_empty() && !rest.starts_with('/'));
    if !is_whole || url.chars().any(|char| char.is_whitespace() || char.is_control()) {
        let message = format!("{}: expected an http:// or https:// address", shown(url));
        errors.push(at, FieldValueInvalid, message);
    }
}

fn http_server(errors: &mut FieldErrors, at: &FieldPath, server: &McpServer) {
    match server.url.as_deref() {
        None | Some("") => {
            errors.push(at.field("url"), FieldValueRequired, "must be set for type http");
        }
        Some(url) => http_url(errors, at.field("url"), url),
    }
    entries(errors, at.field("headers"), server.headers.len());
    for (name, value) in &server.headers {
        let at = at.field("headers").field(name);
        let is_token =
            |char: char| char.is_ascii_alphanumeric() || "!#$%&'*+-.^_`|~".contains(char);
        if name.is_empty() || !name.chars().all(is_token) {
            let message = format!("{}: expected a header's name (RFC 9110, token)", shown(name));
            errors.push(at.clone(), FieldValueInvalid, message);
        }
        if value.chars().any(|char| char.is_control() && char != '\t') {
            errors.push(at.clone(), FieldValueInvalid, "holds a control character");
        }
        argument(errors, at, value);
    }
    only_for(errors, at.field("command"), server.command.is_some(), "stdio");
    only_for(errors, at.field("args"), !server.args.is_empty(), "stdio");
    only_for(errors, at.field("env"), !server.env.is_empty(), "stdio");
}

fn only_for(errors: &mut FieldErrors, at: FieldPath, is_set: bool, transport: &str) {
    if is_set {
        errors.push(at, FieldValueForbidden, format!("is only for type {transport}"));
    }
}
