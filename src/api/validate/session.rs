//! Validation of `Session` specs and of their changes.

use super::column::{self, Change};
use super::not_yet::{self, ANY, NotYet};
use super::{INLINE_PROMPT_BYTES_MAX, TITLE_CHARS_MAX, check, workspace};
use crate::api::field::FieldErrorReason::{
    FieldValueDuplicate, FieldValueForbidden, FieldValueInvalid, FieldValueRequired,
};
use crate::api::session::{Provider, SessionSpec};
use crate::api::{FieldErrors, FieldPath};

/// What has no effect yet.
pub(super) const NOT_YET: &[NotYet] =
    &[("provider", &["fork"]), ("toolFilter.allow", ANY), ("toolFilter.deny", ANY)];

/// The column "M".
pub(super) const COLUMN: &[(&str, Change)] = &[
    ("provider", Change::Immutable),
    ("agent", Change::Immutable),
    ("role", Change::Immutable),
    ("parent", Change::Immutable),
    ("workspace", Change::Immutable),
    ("cwd", Change::Immutable),
    ("folder", Change::Immutable),
    ("additionalDirectories", Change::Immutable),
    ("title", Change::Live),
    ("prompt", Change::Immutable),
    ("promptBlocks", Change::Immutable),
    ("model", Change::NextTurn),
    ("thoughtLevel", Change::NextTurn),
    ("config", Change::NextTurn),
    ("permissions", Change::Immutable),
    ("persona", Change::Immutable),
    ("toolFilter", Change::Immutable),
    ("mcpServers", Change::Immutable),
    ("delegation", Change::Immutable),
    ("runBudget", Change::NextTurn),
    ("ttl", Change::Live),
    ("idleTimeout", Change::Live),
    ("turnInactivityTimeout", Change::Live),
    ("toolInactivityTimeout", Change::Live),
    ("ttlAfterFinished", Change::Live),
    ("autoStopOnParent", Change::Live),
    ("notifyParent", Change::Live),
    ("onSessionLost", Change::Live),
    ("desiredState", Change::Forward),
];

/// The largest bound of a delegation's depth and children: beyond it a tree is a fault, not a plan.
const DELEGATION_MAX: u32 = 1000;

/// Every fault of the spec.
pub(crate) fn spec(spec: &SessionSpec) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    let at = FieldPath::new("spec");
    not_yet::refuse(&mut errors, spec, NOT_YET);
    match spec.provider {
        Provider::External => external(&mut errors, &at, spec),
        Provider::Acp | Provider::Fork => {
            check::name(&mut errors, at.field("agent"), &spec.agent);
        }
    }
    if let Some(role) = &spec.role {
        check::name(&mut errors, at.field("role"), role);
    }
    if let Some(parent) = &spec.parent {
        check::name(&mut errors, at.field("parent"), parent);
    }
    scope(&mut errors, &at, spec);
    first_prompt(&mut errors, &at, spec);
    if let Some(title) = &spec.title {
        check::line(&mut errors, at.field("title"), title, TITLE_CHARS_MAX);
    }
    check::optional_id(&mut errors, at.field("model"), spec.model.as_ref());
    check::optional_id(&mut errors, at.field("thoughtLevel"), spec.thought_level.as_ref());
    check::options(&mut errors, &at.field("config"), &spec.config);
    check::mcp_servers(&mut errors, &at.field("mcpServers"), &spec.mcp_servers);
    delegation(&mut errors, &at.field("delegation"), spec);
    if let Some(ttl) = spec.ttl {
        check::positive(&mut errors, at.field("ttl"), ttl, "; leave it out for no ttl");
    }
    check::run_budget(&mut errors, &at.field("runBudget"), &spec.run_budget);
    errors.into_result()
}

/// A session that the daemon does not run has no agent, no turns and no process.
fn external(errors: &mut FieldErrors, at: &FieldPath, spec: &SessionSpec) {
    let none = SessionSpec::default();
    let set = [
        ("agent", spec.agent != none.agent),
        ("role", spec.role.is_some()),
        ("parent", spec.parent.is_some()),
        ("prompt", spec.prompt.is_some()),
        ("promptBlocks", spec.prompt_blocks.is_some()),
        ("model", spec.model.is_some()),
        ("thoughtLevel", spec.thought_level.is_some()),
        ("config", !spec.config.is_empty()),
        ("mcpServers", !spec.mcp_servers.is_empty()),
        ("runBudget", spec.run_budget != none.run_budget),
        ("ttl", spec.ttl.is_some()),
    ];
    for (field, _) in set.into_iter().filter(|(_, is_set)| *is_set) {
        let message = "an external session is not run by the daemon: leave this out";
        errors.push(at.field(field), FieldValueForbidden, message);
    }
}

fn scope(errors: &mut FieldErrors, at: &FieldPath, spec: &SessionSpec) {
    match (&spec.workspace, &spec.cwd) {
        (None, None) => {
            errors.push(
                at.field("cwd"),
                FieldValueRequired,
                "set exactly one of workspace and cwd",
            );
        }
        (Some(_), Some(_)) => {
            errors.push(
                at.field("cwd"),
                FieldValueForbidden,
                "set exactly one of workspace and cwd",
            );
        }
        (Some(workspace), None) => check::name(errors, at.field("workspace"), workspace),
        (None, Some(cwd)) => check::absolute_path(errors, at.field("cwd"), cwd),
    }
    if let Some(folder) = &spec.folder {
        workspace::folder_id(errors, at.field("folder"), folder);
        if spec.workspace.is_none() {
            let message = "names a folder of a workspace: set workspace too, or leave it out";
            errors.push(at.field("folder"), FieldValueForbidden, message);
        }
    }
    check::absolute_paths(errors, &at.field("additionalDirectories"), &spec.additional_directories);
}

fn first_prompt(errors: &mut FieldErrors, at: &FieldPath, spec: &SessionSpec) {
    if spec.prompt.is_some() && spec.prompt_blocks.is_some() {
        let message = "set at most one of prompt and promptBlocks";
        errors.push(at.field("promptBlocks"), FieldValueForbidden, message);
    }
    if let Some(prompt) = &spec.prompt {
        check::prompt(errors, at.field("prompt"), prompt);
        inline_size(errors, at.field("prompt"), prompt.len());
    }
    if let Some(blocks) = &spec.prompt_blocks {
        check::blocks(errors, &at.field("promptBlocks"), blocks);
        let bytes = blocks.iter().map(|block| block.to_string().len()).sum();
        inline_size(errors, at.field("promptBlocks"), bytes);
    }
}

fn inline_size(errors: &mut FieldErrors, at: FieldPath, bytes: usize) {
    if bytes > INLINE_PROMPT_BYTES_MAX {
        let message = format!(
            "has {bytes} bytes; at most {INLINE_PROMPT_BYTES_MAX} are allowed here: use a Turn for more"
        );
        errors.push(at, FieldValueInvalid, message);
    }
}

fn delegation(errors: &mut FieldErrors, at: &FieldPath, spec: &SessionSpec) {
    let delegation = &spec.delegation;
    for (field, value) in
        [("maxDepth", delegation.max_depth), ("maxChildren", delegation.max_children)]
    {
        if !(1..=DELEGATION_MAX).contains(&value) {
            let message = format!("{value}: expected 1 to {DELEGATION_MAX}");
            errors.push(at.field(field), FieldValueInvalid, message);
        }
    }
    for (index, toolset) in delegation.toolsets.iter().enumerate() {
        if delegation.toolsets.iter().take(index).any(|earlier| earlier == toolset) {
            let message = "stands twice; toolsets are a set";
            errors.push(at.field("toolsets").index(index), FieldValueDuplicate, message);
        }
    }
}

/// Every fault of the change.
pub(crate) fn update(old: &SessionSpec, new: &SessionSpec) -> Result<(), FieldErrors> {
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

    fn session(change: &Value) -> SessionSpec {
        let mut value = json!({"agent": "a", "cwd": "/srv"});
        for (name, field) in change.as_object().unwrap() {
            value[name] = field.clone();
        }
        serde_json::from_value(value).unwrap()
    }

    fn paths(result: Result<(), FieldErrors>) -> Vec<String> {
        match result {
            Ok(()) => Vec::new(),
            Err(errors) => errors.0.iter().map(|error| error.field.to_string()).collect(),
        }
    }

    fn faults(change: &Value) -> Vec<String> {
        paths(session(change).validate())
    }

    #[test]
    fn exactly_one_of_workspace_and_cwd_is_set() {
        assert!(faults(&json!({})).is_empty());
        assert!(faults(&json!({"cwd": null, "workspace": "w", "folder": "f"})).is_empty());
        assert_eq!(faults(&json!({"cwd": null})), ["spec.cwd"]);
        assert_eq!(faults(&json!({"workspace": "w"})), ["spec.cwd"]);
        assert_eq!(faults(&json!({"cwd": "srv"})), ["spec.cwd"]);
        assert_eq!(faults(&json!({"folder": "f"})), ["spec.folder"]);
        let directories = json!({"additionalDirectories": ["/a", "", "b"]});
        assert_eq!(
            faults(&directories),
            ["spec.additionalDirectories[1]", "spec.additionalDirectories[2]"]
        );
    }

    #[test]
    fn the_first_prompt_has_one_form_and_at_most_64_kib() {
        let blocks = json!([{"type": "text", "text": "x"}]);
        assert!(faults(&json!({"promptBlocks": blocks})).is_empty());
        assert!(faults(&json!({"prompt": "x".repeat(64 * 1024)})).is_empty());
        assert_eq!(faults(&json!({"prompt": "x".repeat(64 * 1024 + 1)})), ["spec.prompt"]);
        assert_eq!(faults(&json!({"prompt": " "})), ["spec.prompt"]);
        assert_eq!(faults(&json!({"prompt": "x", "promptBlocks": blocks})), ["spec.promptBlocks"]);
        let bad = json!({"promptBlocks": [1, {}, {"type": "text"}, {"type": "x"}]});
        assert_eq!(
            faults(&bad),
            [
                "spec.promptBlocks[0]",
                "spec.promptBlocks[1].type",
                "spec.promptBlocks[2].text",
                "spec.promptBlocks[3].type"
            ]
        );
    }

    #[test]
    fn names_titles_and_bounds_are_checked() {
        assert_eq!(faults(&json!({"agent": ""})), ["spec.agent"]);
        assert_eq!(faults(&json!({"agent": "A_b"})), ["spec.agent"]);
        assert_eq!(faults(&json!({"title": "x".repeat(TITLE_CHARS_MAX + 1)})), ["spec.title"]);
        assert_eq!(faults(&json!({"title": "a\nb"})), ["spec.title"]);
        assert_eq!(faults(&json!({"ttl": "0s"})), ["spec.ttl"]);
        assert_eq!(
            faults(&json!({"delegation": {"maxDepth": 0, "toolsets": ["fleet", "fleet"]}})),
            ["spec.delegation.maxDepth", "spec.delegation.toolsets[1]"]
        );
    }

    #[test]
    fn every_toolset_name_is_accepted() {
        let toolsets = json!(["spawn", "fleet", "jobs", "subagent", "orchestrate"]);
        assert!(faults(&json!({"delegation": {"toolsets": toolsets}})).is_empty());
    }

    #[test]
    fn a_budget_allows_more_than_nothing() {
        let budget = json!({"maxSteps": 1, "timeout": "1s", "maxTokens": 1, "maxCost": 0.01});
        assert!(faults(&json!({"runBudget": budget})).is_empty());
        let budget = json!({"maxSteps": 0, "timeout": "0s", "maxTokens": 0, "maxCost": -1.0});
        let fields = ["maxSteps", "timeout", "maxTokens", "maxCost"];
        let fields = fields.map(|field| format!("spec.runBudget.{field}"));
        assert_eq!(faults(&json!({"runBudget": budget})), fields);
    }

    #[test]
    fn an_external_session_has_nothing_of_one_that_the_daemon_runs() {
        let external = json!({"provider": "external", "agent": "", "cwd": "/srv",
            "delegation": {"enabled": true}});
        assert!(faults(&external).is_empty());
        let run = json!({"provider": "external", "prompt": "x", "ttl": "1h"});
        assert_eq!(faults(&run), ["spec.agent", "spec.prompt", "spec.ttl"]);
    }

    #[test]
    fn immutable_fields_do_not_change_on_a_live_session() {
        let old = session(&json!({"prompt": "a"}));
        let changes = json!({"agent": "b", "cwd": "/x", "prompt": "b", "permissions": "ask",
            "mcpServers": [{"name": "a", "type": "stdio", "command": "x"}]});
        assert_eq!(
            paths(session(&changes).validate_update(&old)),
            ["spec.agent", "spec.cwd", "spec.prompt", "spec.permissions", "spec.mcpServers"]
        );
        let live =
            json!({"prompt": "a", "title": "t", "model": "m", "ttl": "1h", "idleTimeout": "0"});
        assert!(session(&live).validate_update(&old).is_ok());
    }

    #[test]
    fn desired_state_only_goes_forward() {
        let states = ["running", "cancelled", "deleted"];
        for (from, old) in states.iter().enumerate() {
            for (to, new) in states.iter().enumerate() {
                let old = session(&json!({"desiredState": old}));
                let result = session(&json!({"desiredState": new})).validate_update(&old);
                assert_eq!(result.is_ok(), to >= from, "{old:?} {new}");
            }
        }
    }
}
