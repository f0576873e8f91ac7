//! From a document to a typed record, with the path of each field that is wrong or unknown.

use serde_json::{Map, Value};

use super::refusal::unknown_field;
use super::{FieldValidation, Refusal};
use crate::api::field::FieldErrorReason;
use crate::api::{FieldError, FieldPath, Name, Namespace, Object, Spec};

/// What the daemon alone sets; a writer's values (of a file that was read back) are not looked at.
const METADATA_OF_THE_DAEMON: [&str; 6] = [
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "managedFields",
    "selfLink",
];

/// A document as its kind's type, and the warnings that came of it.
pub(super) fn decode<S: Spec>(
    body: Value,
    validation: FieldValidation,
) -> Result<(Object<S>, Vec<String>), Refusal> {
    let body = prepare::<S>(body)?;
    let mut unknown = Vec::new();
    let mut track = serde_path_to_error::Track::new();
    let deserializer = serde_path_to_error::Deserializer::new(&body, &mut track);
    let decoded: Result<Object<S>, serde_json::Error> =
        serde_ignored::deserialize(deserializer, |path| unknown.push(field_path(&path)));
    let object = decoded.map_err(|error| {
        let name = body["metadata"]["name"].as_str().unwrap_or_default();
        let field = FieldPath::new(track.path().to_string());
        let reason = FieldErrorReason::FieldValueInvalid;
        let message = error.to_string();
        Refusal::field(S::KIND, &Name::from(name), FieldError { field, reason, message })
    })?;
    let warnings = match validation {
        FieldValidation::Strict if !unknown.is_empty() => {
            return Err(Refusal::UnknownFields { fields: unknown });
        }
        FieldValidation::Strict | FieldValidation::Ignore => Vec::new(),
        FieldValidation::Warn => unknown.iter().map(unknown_field).collect(),
    };
    Ok((object, warnings))
}

/// The document with what every record has, and without what writers do not write.
fn prepare<S: Spec>(body: Value) -> Result<Value, Refusal> {
    let Value::Object(mut body) = body else {
        return Err(bad(format!("expected a {} as a JSON object", S::KIND)));
    };
    fill(&mut body, "apiVersion", S::KIND.api_version())?;
    fill(&mut body, "kind", S::KIND.as_str())?;
    body.remove("status");
    for part in ["metadata", "spec"] {
        let fields = body.entry(part).or_insert_with(|| Value::Object(Map::new()));
        if fields.is_null() {
            *fields = Value::Object(Map::new());
        }
        // As Kubernetes does: a null is a field that is not there.
        if let Value::Object(fields) = fields {
            fields.retain(|_, value| !value.is_null());
        }
    }
    if let Some(Value::Object(metadata)) = body.get_mut("metadata") {
        for field in METADATA_OF_THE_DAEMON {
            metadata.remove(field);
        }
    }
    Ok(Value::Object(body))
}

fn fill(body: &mut Map<String, Value>, field: &str, expected: &str) -> Result<(), Refusal> {
    match body.get(field) {
        None | Some(Value::Null) => {
            body.insert(field.to_owned(), Value::String(expected.to_owned()));
            Ok(())
        }
        Some(Value::String(found)) if found == expected => Ok(()),
        Some(found) => Err(bad(format!("{field}: {found} given, \"{expected}\" expected"))),
    }
}

fn bad(why: String) -> Refusal {
    Refusal::BadRequest { why }
}

/// serde's path in our notation, `spec.folders[0].path`.
fn field_path(path: &serde_ignored::Path<'_>) -> FieldPath {
    match path {
        serde_ignored::Path::Root => FieldPath::new(""),
        serde_ignored::Path::Seq { parent, index } => field_path(parent).index(*index),
        serde_ignored::Path::Map { parent, key } => field_path(parent).field(key),
        serde_ignored::Path::Some { parent }
        | serde_ignored::Path::NewtypeStruct { parent }
        | serde_ignored::Path::NewtypeVariant { parent } => field_path(parent),
    }
}

/// Puts the request's namespace and name into the document's metadata where they are left out.
pub(super) fn address(
    body: &mut Value,
    namespace: Option<&Namespace>,
    name: Option<&Name>,
) -> Result<(), Refusal> {
    let Value::Object(body) = body else { return Ok(()) };
    let metadata = body.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
    if metadata.is_null() {
        *metadata = Value::Object(Map::new());
    }
    let Value::Object(metadata) = metadata else { return Ok(()) };
    let wanted =
        [("namespace", namespace.map(Namespace::as_str)), ("name", name.map(Name::as_str))];
    for (field, wanted) in wanted {
        let Some(wanted) = wanted else { continue };
        match metadata.get(field) {
            None | Some(Value::Null) => {
                metadata.insert(field.to_owned(), Value::String(wanted.to_owned()));
            }
            Some(Value::String(found)) if found == wanted || found.is_empty() => {
                metadata.insert(field.to_owned(), Value::String(wanted.to_owned()));
            }
            Some(found) => {
                return Err(bad(format!(
                    "the {field} of the object ({found}) does not match the {field} on the \
                     request (\"{wanted}\")"
                )));
            }
        }
    }
    Ok(())
}

/// JSON merge patch (RFC 7386).
pub(super) fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::{SessionSpec, WorkspaceSpec};

    fn decode_session(body: Value, validation: FieldValidation) -> Result<Vec<String>, Refusal> {
        decode::<SessionSpec>(body, validation).map(|(_, warnings)| warnings)
    }

    #[test]
    fn strict_validation_names_every_unknown_field() {
        let body = json!({"spec": {"titel": "x", "delegation": {"deep": 1}}, "extra": 1});
        let refusal = decode_session(body, FieldValidation::Strict).unwrap_err();
        let text = refusal.to_string();
        assert!(text.starts_with("strict decoding error: unknown field \""), "{text}");
        for field in ["\"spec.titel\"", "\"spec.delegation.deep\"", "\"extra\""] {
            assert!(text.contains(field), "{text}");
        }
        assert_eq!(refusal.code(), 400);
    }

    #[test]
    fn an_unknown_field_in_a_list_has_its_index_in_the_path() {
        let body = json!({"spec": {"folders": [{"id": "a", "path": "/a", "pth": 1}]}});
        let refusal = decode::<WorkspaceSpec>(body, FieldValidation::Strict).unwrap_err();
        assert!(refusal.to_string().contains("\"spec.folders[0].pth\""), "{refusal}");
    }

    #[test]
    fn lax_validation_warns_or_says_nothing() {
        let body = json!({"spec": {"titel": "x"}});
        let warnings = decode_session(body.clone(), FieldValidation::Warn).unwrap();
        assert_eq!(warnings, ["unknown field \"spec.titel\""]);
        assert!(decode_session(body, FieldValidation::Ignore).unwrap().is_empty());
    }

    #[test]
    fn a_wrong_type_names_the_field_and_what_was_expected() {
        let body = json!({"spec": {"folders": [{"id": "a", "path": 3}]}});
        let refusal = decode::<WorkspaceSpec>(body, FieldValidation::Warn).unwrap_err();
        let error = &refusal.field_errors()[0];
        assert_eq!(error.field.as_str(), "spec.folders[0].path");
        assert!(error.message.contains("expected a string"), "{}", error.message);
    }

    #[test]
    fn status_and_what_the_daemon_sets_are_not_looked_at() {
        let body = json!({"metadata": {"generation": "x", "managedFields": [{}]}, "status": 3});
        assert!(decode_session(body, FieldValidation::Strict).is_ok());
    }

    #[test]
    fn a_null_is_a_field_that_is_not_there() {
        let body = json!({"metadata": {"labels": null}, "spec": {"config": null}});
        assert!(decode_session(body, FieldValidation::Strict).is_ok());
    }

    #[test]
    fn another_kind_or_version_is_a_bad_request() {
        for body in [json!({"kind": "Turn"}), json!({"apiVersion": "v1"}), json!([])] {
            let refusal = decode_session(body, FieldValidation::Warn).unwrap_err();
            assert_eq!(refusal.code(), 400);
        }
    }

    #[test]
    fn a_merge_patch_sets_removes_and_replaces_lists_whole() {
        let mut target = json!({"a": {"b": 1, "c": 2}, "l": [1, 2]});
        merge(&mut target, json!({"a": {"b": null, "d": {"e": null, "f": 1}}, "l": [3]}));
        assert_eq!(target, json!({"a": {"c": 2, "d": {"f": 1}}, "l": [3]}));
    }

    #[test]
    fn the_request_and_the_object_must_name_the_same() {
        let mut body = json!({"metadata": {"namespace": "a"}});
        assert!(address(&mut body, Some(&"a".into()), Some(&"n".into())).is_ok());
        assert_eq!(body["metadata"]["name"], "n");
        assert!(address(&mut body, Some(&"b".into()), None).is_err());
    }
}
