//! Holds the tables against the types: every field of a spec has an effect or is refused, and every
//! field says what a change to it does.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::column::Change;
use super::not_yet::NotYet;
use super::{agent, permission, role, session, turn};
use crate::api::{AgentSpec, PermissionRequestSpec, RoleSpec, SessionSpec, Spec, TurnSpec};

/// What the daemon carries out, by path; a path covers what is below it.
const AGENT: &[&str] = &[
    "enabled",
    "displayName",
    "description",
    "command",
    "argv",
    "path",
    "env",
    "envPolicy",
    "envPass",
    "homePolicy",
    "auth.method",
    // `bound-secret` needs slots, and slots need it: `slots_and_their_mode_go_together`.
    "authMode",
    "credentialSlots",
    "sandbox.mode",
    // Refused without a mode: `write_paths_are_absolute_and_of_a_sandbox`.
    "sandbox.writePaths",
    "permissions",
    "modeMap",
    "categoryMap",
    "model",
    "thoughtLevel",
    "config",
    "mcpServers",
    "startTimeout",
    "firstStartTimeout",
    "stop",
    "additionalDirectories",
    "lateUpdateGrace",
];
const SESSION: &[&str] = &[
    "agent",
    "role",
    "parent",
    "workspace",
    "folder",
    "cwd",
    "additionalDirectories",
    "title",
    "prompt",
    "promptBlocks",
    "model",
    "thoughtLevel",
    "config",
    "permissions",
    "persona",
    "mcpServers",
    // Refused where the daemon runs the session: `only_an_external_session_delegates_yet`.
    "delegation.enabled",
    // Read when delegation is enabled.
    "delegation.maxDepth",
    "delegation.maxChildren",
    "delegation.toolsets",
    "delegation.controlMode",
    "runBudget",
    "ttl",
    "idleTimeout",
    "turnInactivityTimeout",
    "toolInactivityTimeout",
    "ttlAfterFinished",
    "autoStopOnParent",
    "notifyParent",
    "onSessionLost",
    "desiredState",
];
const ROLE: &[&str] =
    &["description", "persona", "model", "sandboxMode", "permissions", "mcpServers"];
const TURN: &[&str] = &[
    "session",
    "prompt",
    "promptBlocks",
    "promptBlob",
    "admission",
    "background",
    "model",
    "thoughtLevel",
    "config",
    // Set by the daemon alone.
    "source.caller",
    "source.requestSha256",
    "runBudget",
    "idempotencyKey",
    "desiredState",
];

fn schema<S: Spec>() -> Value {
    serde_json::to_value(schemars::schema_for!(S)).unwrap()
}

/// What a property's schema is, through references and "or null".
fn resolve<'v>(root: &'v Value, mut schema: &'v Value) -> &'v Value {
    loop {
        if let Some(name) = schema["$ref"].as_str() {
            schema = root.pointer(name.trim_start_matches('#')).unwrap();
        } else if let Some(list) = schema["anyOf"].as_array() {
            schema = list.iter().find(|entry| entry["type"] != "null").unwrap();
        } else {
            return schema;
        }
    }
}

/// Paths of every field that is not an object of fields itself.
fn leaves(root: &Value, schema: &Value, path: &str, found: &mut Vec<(String, Value)>) {
    let schema = resolve(root, schema);
    match schema["properties"].as_object() {
        Some(properties) => {
            for (name, property) in properties {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(root, property, &path, found);
            }
        }
        None => found.push((path.to_owned(), schema.clone())),
    }
}

fn all_leaves<S: Spec>() -> Vec<(String, Value)> {
    let root = schema::<S>();
    let mut found = Vec::new();
    leaves(&root, &root, "", &mut found);
    found
}

fn every_field_has_an_effect_or_is_refused<S: Spec>(supported: &[&str], not_yet: &[NotYet]) {
    let leaves = all_leaves::<S>();
    for (path, _) in &leaves {
        let covers = |field: &&str| path == *field || path.starts_with(&format!("{field}."));
        let is_supported = supported.iter().any(covers);
        let is_refused = not_yet.iter().any(|(field, _)| covers(field));
        assert!(is_supported != is_refused, "{}: {path}: in none or both", S::KIND);
    }
    for field in supported.iter().copied().chain(not_yet.iter().map(|(field, _)| *field)) {
        let covered =
            |(path, _): &(String, Value)| path == field || path.starts_with(&format!("{field}."));
        assert!(leaves.iter().any(covered), "{}: {field}: no such field", S::KIND);
    }
}

/// A value that is not the default, from the field's schema.
fn sample(field: &str, leaf: &Value, default: Option<&Value>) -> Value {
    let kind = leaf["type"].as_str().or_else(|| leaf["type"][0].as_str());
    match kind {
        Some("boolean") => json!(!default.and_then(Value::as_bool).unwrap_or_default()),
        Some("integer" | "number") => json!(7),
        Some("array") => json!(["a"]),
        Some("string") => json!("7s"),
        other => panic!("{field}: no sample for {other:?}"),
    }
}

fn set(spec: &mut Value, path: &str, value: Value) {
    let mut at = spec;
    for name in path.split('.') {
        if at.is_null() {
            *at = json!({});
        }
        at = &mut at[name];
    }
    *at = value;
}

fn each_listed_field_is_refused<S: Spec>(minimal: &Value, not_yet: &[NotYet]) {
    let minimal_spec: S = serde_json::from_value(minimal.clone()).unwrap();
    minimal_spec.validate().unwrap();
    let defaults = serde_json::to_value(&minimal_spec).unwrap();
    let leaves = all_leaves::<S>();
    for (field, values) in not_yet {
        let default = super::not_yet::lookup(&defaults, field);
        let (_, leaf) = leaves.iter().find(|(path, _)| path == field).unwrap();
        let values: Vec<Value> = match leaf["type"].as_str() {
            _ if values.is_empty() => vec![sample(field, leaf, default)],
            _ if values.iter().all(|value| ["true", "false"].contains(value)) => {
                values.iter().map(|value| json!(*value == "true")).collect()
            }
            _ => values.iter().map(|value| json!(value)).collect(),
        };
        for value in values {
            let mut document = minimal.clone();
            set(&mut document, field, value.clone());
            let spec: S = serde_json::from_value(document).unwrap();
            let errors = spec.validate().unwrap_err();
            let is_refused = |error: &crate::api::FieldError| {
                error.field.as_str() == format!("spec.{field}")
                    && error.message.contains("not supported yet")
            };
            assert!(errors.0.iter().any(is_refused), "{}: {field}: {value}: {errors}", S::KIND);
        }
    }
}

fn every_field_says_what_a_change_does<S: Spec>(column: &[(&str, Change)]) {
    let schema = schema::<S>();
    let fields: BTreeSet<&str> =
        schema["properties"].as_object().unwrap().keys().map(String::as_str).collect();
    let listed: BTreeSet<&str> = column.iter().map(|(field, _)| *field).collect();
    assert_eq!(fields, listed, "{}", S::KIND);
    assert_eq!(listed.len(), column.len(), "{}: a field stands twice", S::KIND);
}

#[test]
fn every_field_has_its_effect_or_is_refused() {
    every_field_has_an_effect_or_is_refused::<AgentSpec>(AGENT, agent::NOT_YET);
    every_field_has_an_effect_or_is_refused::<SessionSpec>(SESSION, session::NOT_YET);
    every_field_has_an_effect_or_is_refused::<RoleSpec>(ROLE, role::NOT_YET);
    every_field_has_an_effect_or_is_refused::<TurnSpec>(TURN, turn::NOT_YET);
}

#[test]
fn every_field_without_an_effect_is_refused_when_set() {
    each_listed_field_is_refused::<AgentSpec>(&json!({"command": "agent"}), agent::NOT_YET);
    let session = json!({"agent": "a", "cwd": "/"});
    each_listed_field_is_refused::<SessionSpec>(&session, session::NOT_YET);
    let role = json!({"description": "d"});
    each_listed_field_is_refused::<RoleSpec>(&role, role::NOT_YET);
    let turn = json!({"session": "s", "prompt": "p"});
    each_listed_field_is_refused::<TurnSpec>(&turn, turn::NOT_YET);
}

#[test]
fn defaults_written_out_are_accepted() {
    let spec: SessionSpec = serde_json::from_value(json!({
        "provider": "acp", "agent": "a", "cwd": "/", "toolFilter": {"allow": [], "deny": []},
        "autoStopOnParent": true, "notifyParent": true, "runBudget": {},
        "delegation": {"enabled": false, "maxDepth": 1, "maxChildren": 5, "toolsets": ["spawn"]},
        "turnInactivityTimeout": "10m", "toolInactivityTimeout": "600s",
    }))
    .unwrap();
    spec.validate().unwrap();
}

#[test]
fn every_field_has_its_place_in_the_column_of_changes() {
    every_field_says_what_a_change_does::<SessionSpec>(session::COLUMN);
    every_field_says_what_a_change_does::<TurnSpec>(turn::COLUMN);
    every_field_says_what_a_change_does::<PermissionRequestSpec>(permission::COLUMN);
}
