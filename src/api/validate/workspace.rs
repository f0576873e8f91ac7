//! Validation of `Workspace` specs.

use std::collections::BTreeSet;

use super::{TITLE_CHARS_MAX, check};
use crate::api::field::FieldErrorReason::{
    FieldValueDuplicate, FieldValueInvalid, FieldValueRequired,
};
use crate::api::workspace::WorkspaceSpec;
use crate::api::{FieldErrors, FieldPath};

/// Every fault of the spec.
pub(crate) fn spec(spec: &WorkspaceSpec) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    let at = FieldPath::new("spec.folders");
    if spec.folders.is_empty() {
        errors.push(at.clone(), FieldValueRequired, "must name at least one folder");
    }
    check::entries(&mut errors, at.clone(), spec.folders.len());
    let mut ids = BTreeSet::new();
    for (index, folder) in spec.folders.iter().enumerate() {
        let at = at.index(index);
        folder_id(&mut errors, at.field("id"), &folder.id);
        if !ids.insert(folder.id.as_str()) {
            let message = format!("{} stands twice; ids are unique", check::shown(&folder.id));
            errors.push(at.field("id"), FieldValueDuplicate, message);
        }
        if let Some(name) = &folder.name {
            check::line(&mut errors, at.field("name"), name, TITLE_CHARS_MAX);
        }
        check::absolute_path(&mut errors, at.field("path"), &folder.path);
    }
    errors.into_result()
}

/// A folder's id: as short and plain as a label's value, since it is a key of a list-map.
pub(super) fn folder_id(errors: &mut FieldErrors, at: FieldPath, id: &str) {
    let allowed = |char: char| char.is_ascii_alphanumeric() || "_.-".contains(char);
    if id.is_empty() || id.len() > 63 || !id.chars().all(allowed) {
        let message =
            format!("{}: expected 1 to 63 letters, digits, `_`, `.` and `-`", check::shown(id));
        errors.push(at, FieldValueInvalid, message);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Spec as _;

    fn faults(folders: serde_json::Value) -> Vec<String> {
        let spec: WorkspaceSpec = serde_json::from_value(json!({ "folders": folders })).unwrap();
        match spec.validate() {
            Ok(()) => Vec::new(),
            Err(errors) => errors.0.iter().map(|error| error.field.to_string()).collect(),
        }
    }

    #[test]
    fn folders_need_unique_ids_and_absolute_paths() {
        assert!(
            faults(json!([{"id": "api", "path": "/srv/api"}, {"id": "web", "path": "/srv"}]))
                .is_empty()
        );
        assert_eq!(faults(json!([])), ["spec.folders"]);
        assert_eq!(
            faults(
                json!([{"id": "a", "path": "/a"}, {"id": "a", "path": "b"}, {"id": "", "path": "~/x"}])
            ),
            [
                "spec.folders[1].id",
                "spec.folders[1].path",
                "spec.folders[2].id",
                "spec.folders[2].path"
            ]
        );
    }
}
