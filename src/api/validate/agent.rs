//! Validation of `Agent` specs. Every field of an agent may change on a live object.

use std::path::Path;

use super::free_path::why_not_free;
use super::not_yet::{self, ANY, NotYet};
use super::{DESCRIPTION_CHARS_MAX, ID_CHARS_MAX, TITLE_CHARS_MAX, check};
use crate::api::agent::{AgentSpec, AuthMode, SandboxMode};
use crate::api::command;
use crate::api::field::FieldErrorReason::{
    FieldValueForbidden, FieldValueInvalid, FieldValueNotSupported, FieldValueRequired,
};
use crate::api::secret::SecretRef;
use crate::api::{FieldErrors, FieldPath};

/// What has no effect yet.
pub(super) const NOT_YET: &[NotYet] = &[
    ("steer", &["native", "interrupt"]),
    ("sharing", &["shared"]),
    ("process.warm", ANY),
    ("process.maxSessions", ANY),
];

/// The policies that `modeMap` may override.
const POLICIES: [&str; 4] = ["deny-all", "approve-reads", "ask", "approve-all"];

/// Every fault of the spec.
pub(crate) fn spec(spec: &AgentSpec) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    let at = FieldPath::new("spec");
    not_yet::refuse(&mut errors, spec, NOT_YET);
    if let Some(name) = &spec.display_name {
        check::line(&mut errors, at.field("displayName"), name, TITLE_CHARS_MAX);
    }
    if let Some(text) = &spec.description
        && text.chars().count() > DESCRIPTION_CHARS_MAX
    {
        let message = format!("is longer than {DESCRIPTION_CHARS_MAX} characters");
        errors.push(at.field("description"), FieldValueInvalid, message);
    }
    launch(&mut errors, &at, spec);
    credentials(&mut errors, &at, spec);
    sandbox(&mut errors, &at, spec);
    maps(&mut errors, &at, spec);
    let method = spec.auth.as_ref().and_then(|auth| auth.method.as_ref());
    check::optional_id(&mut errors, at.field("auth").field("method"), method);
    check::optional_id(&mut errors, at.field("model"), spec.model.as_ref());
    check::optional_id(&mut errors, at.field("thoughtLevel"), spec.thought_level.as_ref());
    check::options(&mut errors, &at.field("config"), &spec.config);
    check::mcp_servers(&mut errors, &at.field("mcpServers"), &spec.mcp_servers);
    check::positive(&mut errors, at.field("startTimeout"), spec.start_timeout, "");
    if let Some(timeout) = spec.first_start_timeout {
        let hint = "; leave it out for the default";
        check::positive(&mut errors, at.field("firstStartTimeout"), timeout, hint);
    }
    errors.into_result()
}

fn launch(errors: &mut FieldErrors, at: &FieldPath, spec: &AgentSpec) {
    match (&spec.command, &spec.argv) {
        (None, None) => {
            errors.push(
                at.field("command"),
                FieldValueRequired,
                "set exactly one of command and argv",
            );
        }
        (Some(_), Some(_)) => {
            errors.push(
                at.field("argv"),
                FieldValueForbidden,
                "set exactly one of command and argv",
            );
        }
        (Some(line), None) => {
            check::argument(errors, at.field("command"), line);
            if let Err(error) = command::split(line) {
                errors.push(at.field("command"), FieldValueInvalid, error.to_string());
            }
        }
        (None, Some(argv)) => {
            if argv.first().is_none_or(String::is_empty) {
                let message = "names no program; expected a program and its arguments";
                errors.push(at.field("argv"), FieldValueInvalid, message);
            }
            check::entries(errors, at.field("argv"), argv.len());
            for (index, argument) in argv.iter().enumerate() {
                check::argument(errors, at.field("argv").index(index), argument);
            }
        }
    }
    check::absolute_paths(errors, &at.field("path"), &spec.path);
    for (index, path) in spec.path.iter().enumerate() {
        if path.contains(':') {
            let message = format!("{}: a PATH entry cannot hold `:`", check::shown(path));
            errors.push(at.field("path").index(index), FieldValueInvalid, message);
        }
    }
    check::variables(errors, &at.field("env"), &spec.env);
    check::entries(errors, at.field("envPass"), spec.env_pass.len());
    for (index, name) in spec.env_pass.iter().enumerate() {
        check::variable_name(errors, at.field("envPass").index(index), name);
    }
}

/// Variables that a credential must not stand in the place of.
const NO_CREDENTIALS: [&str; 2] = ["PATH", "HOME"];

fn credentials(errors: &mut FieldErrors, at: &FieldPath, spec: &AgentSpec) {
    let at = at.field("credentialSlots");
    let is_bound = spec.auth_mode == AuthMode::BoundSecret;
    if is_bound && spec.credential_slots.is_empty() {
        let message = "must name at least one slot with authMode: bound-secret";
        errors.push(at.clone(), FieldValueRequired, message);
    }
    if !is_bound && !spec.credential_slots.is_empty() {
        let message = "has an effect with authMode: bound-secret only; set that, or leave it out";
        errors.push(at.clone(), FieldValueForbidden, message);
    }
    check::entries(errors, at.clone(), spec.credential_slots.len());
    let before = |index: usize| spec.credential_slots.iter().take(index);
    for (index, slot) in spec.credential_slots.iter().enumerate() {
        let at = at.index(index);
        check::line(errors, at.field("name"), &slot.name, ID_CHARS_MAX);
        if before(index).any(|other| other.name == slot.name) {
            let message = format!("{}: another slot has this name", check::shown(&slot.name));
            errors.push(at.field("name"), FieldValueInvalid, message);
        }
        check::variable_name(errors, at.field("targetEnv"), &slot.target_env);
        if NO_CREDENTIALS.contains(&slot.target_env.as_str()) {
            let message = format!("{}: is no variable for a credential", slot.target_env);
            errors.push(at.field("targetEnv"), FieldValueForbidden, message);
        }
        if before(index).any(|other| other.target_env == slot.target_env) {
            let message = format!("{}: another slot has this variable", slot.target_env);
            errors.push(at.field("targetEnv"), FieldValueInvalid, message);
        }
        // Without the value: somebody may have put the secret itself there.
        if let Err(expected) = SecretRef::parse(&slot.secret_ref) {
            let message = format!("is no reference to a secret: {expected}");
            errors.push(at.field("secretRef"), FieldValueInvalid, message);
        }
    }
}

fn sandbox(errors: &mut FieldErrors, at: &FieldPath, spec: &AgentSpec) {
    let at = at.field("sandbox").field("writePaths");
    check::absolute_paths(errors, &at, &spec.sandbox.write_paths);
    for (index, path) in spec.sandbox.write_paths.iter().enumerate() {
        // Wherever the data directory is.
        if Path::new(path) == Path::new("/")
            && let Some(why) = why_not_free(Path::new(path), Path::new("/data"))
        {
            errors.push(at.index(index), FieldValueForbidden, format!("{path} {why}"));
        }
    }
    if spec.sandbox.mode == SandboxMode::Off && !spec.sandbox.write_paths.is_empty() {
        let message = "has an effect with a sandbox only; set sandbox.mode, or leave it out";
        errors.push(at, FieldValueForbidden, message);
    }
}

fn maps(errors: &mut FieldErrors, at: &FieldPath, spec: &AgentSpec) {
    for (policy, mode) in &spec.mode_map {
        let at = at.field("modeMap").field(policy);
        if !POLICIES.contains(&policy.as_str()) {
            let message =
                format!("{}: expected one of {}", check::shown(policy), POLICIES.join(", "));
            errors.push(at.clone(), FieldValueNotSupported, message);
        }
        check::line(errors, at, mode, ID_CHARS_MAX);
    }
    check::entries(errors, at.field("categoryMap"), spec.category_map.len());
    for (from, to) in &spec.category_map {
        let at = at.field("categoryMap").field(from);
        check::line(errors, at.clone(), from, ID_CHARS_MAX);
        check::line(errors, at, to, ID_CHARS_MAX);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::api::Spec as _;

    fn faults(value: Value) -> Vec<String> {
        let spec: AgentSpec = serde_json::from_value(value).unwrap();
        match spec.validate() {
            Ok(()) => Vec::new(),
            Err(errors) => errors.0.iter().map(|error| error.field.to_string()).collect(),
        }
    }

    #[test]
    fn exactly_one_of_command_and_argv_is_set() {
        assert!(faults(json!({"command": "npx -y 'an agent'"})).is_empty());
        assert!(faults(json!({"argv": ["agent", "~", "$HOME && x"]})).is_empty());
        assert_eq!(faults(json!({})), ["spec.command"]);
        assert_eq!(faults(json!({"command": "a", "argv": ["a"]})), ["spec.argv"]);
        assert_eq!(faults(json!({"argv": []})), ["spec.argv"]);
        assert_eq!(faults(json!({"argv": ["a", "b\0"]})), ["spec.argv[1]"]);
    }

    #[test]
    fn write_paths_are_absolute_and_of_a_sandbox() {
        let of = |mode: &str, path: &str| {
            faults(json!({"command": "a", "sandbox": {"mode": mode, "writePaths": [path]}}))
        };
        assert!(of("workspace-write", "/cache").is_empty());
        assert!(of("read-only", "/cache").is_empty());
        for path in ["cache", "/", "//", "/./"] {
            assert_eq!(of("read-only", path), ["spec.sandbox.writePaths[0]"], "{path}");
        }
        assert_eq!(of("off", "/cache"), ["spec.sandbox.writePaths"]);
    }

    #[test]
    fn shell_syntax_in_a_command_is_refused_with_a_hint() {
        for command in ["a && b", "a | b", "a; b", "a $HOME", "~/a", "a `b`", "a > b", "a '"] {
            assert_eq!(faults(json!({"command": command})), ["spec.command"], "{command}");
        }
        let spec: AgentSpec = serde_json::from_value(json!({"command": "a && b"})).unwrap();
        let message = spec.validate().unwrap_err().to_string();
        assert!(
            message.contains("argv: [sh, -c, ...]") && message.contains("character 3"),
            "{message}"
        );
    }

    #[test]
    fn the_environment_has_well_formed_names_of_its_own() {
        assert!(
            faults(json!({"command": "a", "env": {"A_1": "x=y"}, "envPass": ["SSH_AUTH_SOCK"]}))
                .is_empty()
        );
        assert_eq!(
            faults(json!({"command": "a", "env": {"1A": "", "B": "\0", "SPAWNLET_TOKEN": "x"},
                "envPass": ["A=B"], "path": ["bin", "/a:b"]})),
            [
                "spec.path[0]",
                "spec.path[1]",
                "spec.env.1A",
                "spec.env.B",
                "spec.env.SPAWNLET_TOKEN",
                "spec.envPass[0]"
            ]
        );
    }

    #[test]
    fn a_variable_s_value_never_stands_in_a_message() {
        let spec: AgentSpec =
            serde_json::from_value(json!({"command": "a", "env": {"B": "hunter2\0"}})).unwrap();
        assert!(!spec.validate().unwrap_err().to_string().contains("hunter2"));
    }

    #[test]
    fn slots_and_their_mode_go_together() {
        let slot = json!({"name": "key", "targetEnv": "A_KEY", "secretRef": "env:A_KEY"});
        let with = |mode: &str, slots: Value| {
            faults(json!({"command": "a", "authMode": mode, "credentialSlots": slots}))
        };
        assert!(with("bound-secret", json!([slot])).is_empty());
        assert_eq!(with("bound-secret", json!([])), ["spec.credentialSlots"]);
        assert_eq!(with("native-cli", json!([slot])), ["spec.credentialSlots"]);
        assert_eq!(
            with(
                "bound-secret",
                json!([
                    {"name": "", "targetEnv": "SPAWNLET_AGENT", "secretRef": "vault:key"},
                    {"name": "a", "targetEnv": "PATH", "secretRef": "env:SPAWNLET_VAULT_KEY"},
                    {"name": "a", "targetEnv": "PATH", "secretRef": "vault:providers/a/b"},
                ])
            ),
            [
                "spec.credentialSlots[0].name",
                "spec.credentialSlots[0].targetEnv",
                "spec.credentialSlots[0].secretRef",
                "spec.credentialSlots[1].targetEnv",
                "spec.credentialSlots[1].secretRef",
                "spec.credentialSlots[2].name",
                "spec.credentialSlots[2].targetEnv",
                "spec.credentialSlots[2].targetEnv",
            ]
        );
        let slots = json!([{"name": "a", "targetEnv": "A", "secretRef": "sk-hunter2-hunter2"}]);
        let spec = json!({"command": "a", "authMode": "bound-secret", "credentialSlots": slots});
        let spec: AgentSpec = serde_json::from_value(spec).unwrap();
        assert!(!spec.validate().unwrap_err().to_string().contains("hunter2"));
    }

    #[test]
    fn maps_and_times_are_checked() {
        assert!(
            faults(json!({"command": "a", "modeMap": {"ask": "plan"},
            "categoryMap": {"thinking": "thought_level"}, "config": {"a": true, "b": "c"}}))
            .is_empty()
        );
        assert_eq!(
            faults(json!({"command": "a", "modeMap": {"all": "x"}, "categoryMap": {"a": ""},
                "config": {"n": 1}, "model": "", "startTimeout": "0s", "firstStartTimeout": "0"})),
            [
                "spec.modeMap.all",
                "spec.categoryMap.a",
                "spec.model",
                "spec.config.n",
                "spec.startTimeout",
                "spec.firstStartTimeout"
            ]
        );
    }

    #[test]
    fn an_mcp_server_is_whole_for_its_transport() {
        let servers = |list: Value| faults(json!({"command": "a", "mcpServers": list}));
        assert!(
            servers(json!([{"name": "a", "type": "stdio", "command": "x"},
            {"name": "b", "type": "http", "url": "https://h/x", "headers": {"X-A": "b"}}]))
            .is_empty()
        );
        assert_eq!(
            servers(json!([{"name": "a", "type": "stdio", "url": "http://h"},
                {"name": "a", "type": "http", "command": "x"},
                {"name": "", "type": "http", "url": "ftp://h", "headers": {"a b": "\n"}}])),
            [
                "spec.mcpServers[0].command",
                "spec.mcpServers[0].url",
                "spec.mcpServers[1].name",
                "spec.mcpServers[1].url",
                "spec.mcpServers[1].command",
                "spec.mcpServers[2].name",
                "spec.mcpServers[2].url",
                "spec.mcpServers[2].headers.a b",
                "spec.mcpServers[2].headers.a b"
            ]
        );
    }
}
