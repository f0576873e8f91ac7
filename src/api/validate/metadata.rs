//! Validation of metadata, the same for every kind (Kubernetes API conventions, "Metadata";
//! label syntax: "Labels and Selectors").

use super::check::{self, shown};
use crate::api::field::FieldErrorReason::{
    FieldValueForbidden, FieldValueInvalid, FieldValueRequired,
};
use crate::api::{FieldErrors, FieldPath, Kind, ObjectMeta};

/// The longest label value and the longest name part of a key, in bytes.
const LABEL_BYTES_MAX: usize = 63;
/// The longest prefix of a label's key, in bytes (a DNS subdomain).
const PREFIX_BYTES_MAX: usize = 253;
/// All annotations of a record together, in bytes: Kubernetes' bound.
const ANNOTATIONS_BYTES_MAX: usize = 256 * 1024;
/// The most labels, finalizers and owner references of a record.
const ENTRIES_MAX: usize = 64;

/// Every fault of a record's metadata, after its name and namespace were set.
///
/// # Errors
///
/// Each fault with its field, the value and what is allowed.
pub fn metadata(kind: Kind, metadata: &ObjectMeta) -> Result<(), FieldErrors> {
    let mut errors = FieldErrors::default();
    let at = FieldPath::new("metadata");
    match &metadata.generate_name {
        // Cut and completed by admission; what is left must be a name's beginning.
        Some(prefix) if metadata.name.is_empty() => {
            let start = prefix.trim_end_matches('-');
            check::name(&mut errors, at.field("generateName"), start);
        }
        Some(_) | None => check::name(&mut errors, at.field("name"), metadata.name.as_str()),
    }
    if kind.is_namespaced() {
        check::name(&mut errors, at.field("namespace"), metadata.namespace.as_str());
    } else if !metadata.namespace.is_empty() {
        let message = format!("must not be set: {kind} has no namespace");
        errors.push(at.field("namespace"), FieldValueForbidden, message);
    }
    few(&mut errors, at.field("labels"), metadata.labels.len());
    for (key, value) in &metadata.labels {
        let at = at.field("labels").field(key);
        label_key(&mut errors, at.clone(), key);
        if !is_label_text(value) && !value.is_empty() {
            let message = format!(
                "{}: expected at most 63 letters, digits, `-`, `_` and `.`, a letter or digit at both ends",
                shown(value)
            );
            errors.push(at, FieldValueInvalid, message);
        }
    }
    for key in metadata.annotations.keys() {
        label_key(&mut errors, at.field("annotations").field(key), &key.to_ascii_lowercase());
    }
    let bytes: usize =
        metadata.annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > ANNOTATIONS_BYTES_MAX {
        let message = format!("have {bytes} bytes; at most {ANNOTATIONS_BYTES_MAX} are allowed");
        errors.push(at.field("annotations"), FieldValueInvalid, message);
    }
    few(&mut errors, at.field("finalizers"), metadata.finalizers.len());
    for (index, finalizer) in metadata.finalizers.iter().enumerate() {
        label_key(&mut errors, at.field("finalizers").index(index), finalizer);
    }
    owners(&mut errors, &at.field("ownerReferences"), metadata);
    errors.into_result()
}

fn owners(errors: &mut FieldErrors, at: &FieldPath, metadata: &ObjectMeta) {
    few(errors, at.clone(), metadata.owner_references.len());
    for (index, owner) in metadata.owner_references.iter().enumerate() {
        let at = at.index(index);
        for (field, value) in [
            ("apiVersion", owner.api_version.as_str()),
            ("kind", owner.kind.as_str()),
            ("name", owner.name.as_str()),
            ("uid", owner.uid.as_str()),
        ] {
            if value.is_empty() {
                errors.push(at.field(field), FieldValueRequired, "must be set");
            }
        }
    }
}

fn few(errors: &mut FieldErrors, at: FieldPath, count: usize) {
    if count > ENTRIES_MAX {
        let message = format!("has {count} entries; at most {ENTRIES_MAX} are allowed");
        errors.push(at, FieldValueInvalid, message);
    }
}

fn label_key(errors: &mut FieldErrors, at: FieldPath, key: &str) {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    let is_prefix = |prefix: &str| {
        prefix.len() <= PREFIX_BYTES_MAX && prefix.split('.').all(check::is_dns_label)
    };
    if !prefix.is_none_or(is_prefix) || !is_label_text(name) {
        let message = format!(
            "{}: expected NAME or DOMAIN/NAME, where NAME is at most 63 letters, digits, `-`, `_` and `.`",
            shown(key)
        );
        errors.push(at, FieldValueInvalid, message);
    }
}

fn is_label_text(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.len() <= LABEL_BYTES_MAX
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(byte))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn faults(kind: Kind, value: serde_json::Value) -> Vec<String> {
        let meta: ObjectMeta = serde_json::from_value(value).unwrap();
        match metadata(kind, &meta) {
            Ok(()) => Vec::new(),
            Err(errors) => errors.0.iter().map(|error| error.field.to_string()).collect(),
        }
    }

    #[test]
    fn names_are_dns_labels_and_cluster_kinds_have_no_namespace() {
        assert!(faults(Kind::Session, json!({"name": "a-1", "namespace": "default"})).is_empty());
        assert!(faults(Kind::Agent, json!({"generateName": "a-"})).is_empty());
        for name in ["", "A", "-a", "a-", "a.b", "a_b", &"a".repeat(64), "ä"] {
            let value = json!({"name": name, "namespace": "default"});
            assert_eq!(faults(Kind::Session, value), ["metadata.name"], "{name}");
        }
        assert_eq!(faults(Kind::Session, json!({"name": "a"})), ["metadata.namespace"]);
        let value = json!({"name": "a", "namespace": "b"});
        assert_eq!(faults(Kind::Agent, value), ["metadata.namespace"]);
    }

    #[test]
    fn labels_have_kubernetes_syntax() {
        let good = json!({"name": "a", "labels": {"app": "", "example.com/x_Y.z": "A-b"}});
        assert!(faults(Kind::Agent, good).is_empty());
        let bad = json!({"name": "a", "labels": {"a b": "", "UP.com/x": "y", "ok": "-no"}});
        assert_eq!(
            faults(Kind::Agent, bad),
            ["metadata.labels.UP.com/x", "metadata.labels.a b", "metadata.labels.ok"]
        );
        let long = json!({"name": "a", "annotations": {"x": "y".repeat(ANNOTATIONS_BYTES_MAX)}});
        assert_eq!(faults(Kind::Agent, long), ["metadata.annotations"]);
    }
}
