//! Rules of metadata: syntax, and who may write what of it.

use std::collections::BTreeMap;

use crate::api::field::FieldErrorReason::{
    FieldValueForbidden, FieldValueInvalid, FieldValueNotSupported, FieldValueRequired,
};
use crate::api::naming::LABEL_CHARS_MAX;
use crate::api::{FieldErrors, FieldPath, Kind, ObjectMeta, PROCESS_FINALIZER};

/// The longest prefix of a label's key (a DNS subdomain, RFC 1123).
const SUBDOMAIN_CHARS_MAX: usize = 253;
/// All annotations of a record: half of what a record may hold, so that spec and status fit beside
/// them.
const ANNOTATIONS_BYTES_MAX: usize = 128 * 1024;

/// How the metadata of a write relates to what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The whole object: what the daemon set and the writer leaves out stays.
    Put,
    /// A patch of the stored object: what is missing was taken out on purpose.
    Patch,
}

/// Checks the syntax of what a writer gave.
pub(super) fn validate(kind: Kind, metadata: &ObjectMeta, errors: &mut FieldErrors) {
    let root = FieldPath::new("metadata");
    if metadata.name.is_empty() {
        let message = format!("a {kind} needs a name or a generateName");
        errors.push(root.field("name"), FieldValueRequired, message);
    } else {
        check_label("name", metadata.name.as_str(), errors);
    }
    if kind.is_namespaced() {
        check_label("namespace", metadata.namespace.as_str(), errors);
    } else if !metadata.namespace.is_empty() {
        let message = format!("a {kind} has no namespace");
        errors.push(root.field("namespace"), FieldValueForbidden, message);
    }
    let labels = root.field("labels");
    for (key, value) in &metadata.labels {
        check_key(&labels, key, errors);
        if !value.is_empty() && !is_qualified_part(value) {
            let message = format!(
                "`{value}`: expected at most {LABEL_CHARS_MAX} letters, digits, `-`, `_` or `.`, \
                 beginning and ending with a letter or digit"
            );
            errors.push(labels.field(key), FieldValueInvalid, message);
        }
    }
    check_annotations(&metadata.annotations, errors);
    check_finalizers(kind, metadata, errors);
}

/// Whether a text is a DNS label (RFC 1123).
pub(super) fn is_dns_label(text: &str) -> bool {
    let is_inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=LABEL_CHARS_MAX).contains(&text.len())
        && text.chars().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

fn check_label(field: &str, text: &str, errors: &mut FieldErrors) {
    if !is_dns_label(text) {
        let message = format!(
            "`{text}`: expected a DNS label: at most {LABEL_CHARS_MAX} lower-case letters, digits \
             or `-`, beginning and ending with a letter or digit"
        );
        errors.push(FieldPath::new("metadata").field(field), FieldValueInvalid, message);
    }
}

fn check_key(path: &FieldPath, key: &str, errors: &mut FieldErrors) {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if prefix.is_some_and(|prefix| !is_subdomain(prefix)) || !is_qualified_part(name) {
        let message = format!(
            "the key `{key}`: expected `name` or `dns.prefix/name`, the name of at most \
             {LABEL_CHARS_MAX} letters, digits, `-`, `_` or `.`"
        );
        errors.push(path.field(key), FieldValueInvalid, message);
    }
}

fn is_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_CHARS_MAX && text.split('.').all(is_dns_label)
}

fn is_qualified_part(text: &str) -> bool {
    let is_edge = |c: Option<char>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    text.len() <= LABEL_CHARS_MAX
        && is_edge(text.chars().next())
        && is_edge(text.chars().next_back())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
}

fn check_annotations(annotations: &BTreeMap<String, String>, errors: &mut FieldErrors) {
    let path = FieldPath::new("metadata.annotations");
    for key in annotations.keys() {
        check_key(&path, key, errors);
    }
    let bytes: usize = annotations.iter().map(|(key, value)| key.len() + value.len()).sum();
    if bytes > ANNOTATIONS_BYTES_MAX {
        let message = format!("{bytes} bytes in all: expected at most {ANNOTATIONS_BYTES_MAX}");
        errors.push(path, FieldValueInvalid, message);
    }
}

/// Nothing but the daemon would ever take a foreign finalizer away, so none is taken in.
fn check_finalizers(kind: Kind, metadata: &ObjectMeta, errors: &mut FieldErrors) {
    for (index, finalizer) in metadata.finalizers.iter().enumerate() {
        if kind != Kind::Session || finalizer != PROCESS_FINALIZER {
            let path = FieldPath::new("metadata.finalizers").index(index);
            let message = format!(
                "`{finalizer}`: expected no finalizer but `{PROCESS_FINALIZER}`, which the daemon \
                 sets on sessions"
            );
            errors.push(path, FieldValueNotSupported, message);
        }
    }
}

/// The metadata of an update: labels and annotations as written, the rest as stored.
pub(super) fn updated(
    kind: Kind,
    old: &ObjectMeta,
    written: ObjectMeta,
    mode: Mode,
    errors: &mut FieldErrors,
) -> ObjectMeta {
    let root = FieldPath::new("metadata");
    let may_be_left_out = mode == Mode::Put;
    check_finalizers(kind, &written, errors);
    let finalizers_left_out = written.finalizers.is_empty() && may_be_left_out;
    if !finalizers_left_out && old.finalizers.iter().any(|f| !written.finalizers.contains(f)) {
        let message = "the daemon alone removes its finalizer, once no process is left";
        errors.push(root.field("finalizers"), FieldValueForbidden, message);
    }
    let owners_left_out = written.owner_references.is_empty() && may_be_left_out;
    if !owners_left_out && written.owner_references != old.owner_references {
        let message = "the daemon alone sets owner references";
        errors.push(root.field("ownerReferences"), FieldValueForbidden, message);
    }
    ObjectMeta { labels: written.labels, annotations: written.annotations, ..old.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn faults(change: impl FnOnce(&mut ObjectMeta)) -> Vec<String> {
        let mut metadata =
            ObjectMeta { name: "a".into(), namespace: "default".into(), ..ObjectMeta::default() };
        change(&mut metadata);
        let mut errors = FieldErrors::default();
        validate(Kind::Session, &metadata, &mut errors);
        errors.0.into_iter().map(|error| error.field.as_str().to_owned()).collect()
    }

    #[test]
    fn names_are_dns_labels() {
        for name in ["A", "a.b", "-a", "a-", "a b", &"a".repeat(64), "ä"] {
            assert_eq!(faults(|m| m.name = name.into()), ["metadata.name"], "{name}");
        }
        assert_eq!(faults(|m| m.name = "a".repeat(63).into()), Vec::<String>::new());
    }

    #[test]
    fn label_keys_and_values_have_a_syntax() {
        let label = |key: &str, value: &str| {
            faults(|m| m.labels = BTreeMap::from([(key.to_owned(), value.to_owned())]))
        };
        assert!(label("app.kubernetes.io/name", "My_app.1").is_empty());
        assert!(label("app", "").is_empty());
        assert_eq!(label("a/b/c", "x"), ["metadata.labels.a/b/c"]);
        assert_eq!(label("app", "x y"), ["metadata.labels.app"]);
        assert_eq!(label("_app", "x"), ["metadata.labels._app"]);
    }

    #[test]
    fn annotations_are_bounded_as_a_whole() {
        let value = "x".repeat(ANNOTATIONS_BYTES_MAX);
        let found = faults(|m| m.annotations = BTreeMap::from([("a".to_owned(), value)]));
        assert_eq!(found, ["metadata.annotations"]);
    }

    #[test]
    fn a_foreign_finalizer_is_refused() {
        let found = faults(|m| m.finalizers = vec![PROCESS_FINALIZER.into(), "x/y".into()]);
        assert_eq!(found, ["metadata.finalizers[1]"]);
    }
}
