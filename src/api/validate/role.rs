//! Validation of `Role` specs.

use super::not_yet::{self, ANY, NotYet};
use super::{TITLE_CHARS_MAX, check};
use crate::api::agent::Permissions;
use crate::api::field::FieldErrorReason::{FieldValueInvalid, FieldValueRequired};
use crate::api::role::RoleSpec;
use crate::api::{FieldErrors, FieldPath};

/// What has no effect yet.
pub(super) const NOT_YET: &[NotYet] = &[("tools", ANY)];

/// Every fault of the spec.
pub(crate) fn spec(spec: &RoleSpec) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    let at = FieldPath::new("spec");
    not_yet::refuse(&mut errors, spec, NOT_YET);
    let description = at.field("description");
    if spec.description.trim().is_empty() {
        errors.push(description, FieldValueRequired, "must say in a line what the role is for");
    } else {
        check::line(&mut errors, description, &spec.description, TITLE_CHARS_MAX);
    }
    check::optional_id(&mut errors, at.field("model"), spec.model.as_ref());
    check::mcp_servers(&mut errors, &at.field("mcpServers"), &spec.mcp_servers);
    if spec.sandbox_mode.is_some()
        && spec.permissions.is_some_and(|asked| asked > Permissions::ApproveReads)
    {
        let message = "beside sandboxMode: read-only it is approve-reads or deny-all";
        errors.push(at.field("permissions"), FieldValueInvalid, message);
    }
    errors.into_result()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Spec as _;

    fn faults(spec: serde_json::Value) -> Vec<String> {
        let spec: RoleSpec = serde_json::from_value(spec).unwrap();
        let errors = spec.validate().err().unwrap_or_default();
        errors.0.iter().map(|error| error.field.to_string()).collect()
    }

    #[test]
    fn a_role_says_what_it_is_for_and_asks_for_nothing_that_contradicts() {
        let none: [&str; 0] = [];
        assert_eq!(faults(json!({"description": "Reads.", "sandboxMode": "read-only"})), none);
        assert_eq!(faults(json!({})), ["spec.description"]);
        assert_eq!(faults(json!({"description": "a\nb"})), ["spec.description"]);
        assert_eq!(faults(json!({"description": "x", "tools": ["read"]})), ["spec.tools"]);
        let wide = json!({"description": "x", "sandboxMode": "read-only", "permissions": "ask"});
        assert_eq!(faults(wide), ["spec.permissions"]);
    }
}
