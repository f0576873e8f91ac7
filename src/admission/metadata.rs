//! Who may write what of metadata. Its syntax is the records' own matter.

use std::collections::BTreeMap;

use crate::api::field::FieldErrorReason::{FieldValueForbidden, FieldValueNotSupported};
use crate::api::{
    FIRST_START, FieldErrors, FieldPath, Kind, ObjectMeta, PROCESS_FINALIZER, validate,
};

/// How the metadata of a write relates to what is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The whole object: what the daemon set and the writer leaves out stays.
    Put,
    /// A patch of the stored object: what is missing was taken out on purpose.
    Patch,
}

/// Checks what a writer gave.
pub(super) fn check(kind: Kind, metadata: &ObjectMeta, errors: &mut FieldErrors) {
    errors.0.extend(validate::metadata(kind, metadata).err().unwrap_or_default().0);
    check_finalizers(kind, metadata, errors);
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
    let mut annotations = written.annotations;
    keep_first_start(kind, old, &mut annotations, errors);
    ObjectMeta { labels: written.labels, annotations, ..old.clone() }
}

/// What a session is there for is said when it is made: it stays, and none gets it later.
fn keep_first_start(
    kind: Kind,
    old: &ObjectMeta,
    annotations: &mut BTreeMap<String, String>,
    errors: &mut FieldErrors,
) {
    if kind != Kind::Session {
        return;
    }
    match old.annotations.get(FIRST_START) {
        Some(value) => {
            annotations.insert(FIRST_START.to_owned(), value.clone());
        }
        None if annotations.contains_key(FIRST_START) => {
            let path = FieldPath::new("metadata.annotations").field(FIRST_START);
            let message = "is set when a session is made, or never; make a new session";
            errors.push(path, FieldValueForbidden, message);
        }
        None => {}
    }
}
