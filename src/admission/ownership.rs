//! Who an object belongs to. A file's object is marked with the file; its spec is written there,
//! and others may only move desired state on, delete it, label and annotate it.

use super::kinds::Admissible;
use super::{Refusal, WriteOptions, Writer};
use crate::api::field::FieldErrorReason::FieldValueForbidden;
use crate::api::{FieldErrors, FieldPath, MANAGED_BY, Object, ObjectMeta};

/// The annotation that lists the labels and annotations which an object has from its file, so that
/// they go when the document no longer has them.
const APPLIED: &str = "spawnlet.dev/applied-metadata";
const LABEL: &str = "label:";
const ANNOTATION: &str = "annotation:";

/// Marks what a file makes, and takes the marks off what others make of a copy.
pub(super) fn mark(metadata: &mut ObjectMeta, writer: &Writer) {
    match writer {
        Writer::Manifest { source } => {
            mark_applied(metadata);
            metadata.annotations.insert(MANAGED_BY.to_owned(), source.clone());
        }
        Writer::Operator | Writer::Parent => {
            metadata.annotations.remove(MANAGED_BY);
            metadata.annotations.remove(APPLIED);
        }
    }
}

/// Writes down which labels and annotations a document has.
fn mark_applied(metadata: &mut ObjectMeta) {
    let is_ours = |key: &&String| *key != MANAGED_BY && *key != APPLIED;
    let labels = metadata.labels.keys().map(|key| format!("{LABEL}{key}"));
    let annotations = metadata.annotations.keys().filter(is_ours);
    let annotations = annotations.map(|key| format!("{ANNOTATION}{key}"));
    let applied: Vec<String> = labels.chain(annotations).collect();
    if applied.is_empty() {
        metadata.annotations.remove(APPLIED);
    } else {
        metadata.annotations.insert(APPLIED.to_owned(), applied.join(","));
    }
}

/// Adds to a document's metadata what others wrote to the stored object: everything that an earlier
/// document did not bring.
pub(super) fn keep_what_others_wrote(old: &ObjectMeta, document: &mut ObjectMeta) {
    mark_applied(document);
    let applied: Vec<&str> =
        old.annotations.get(APPLIED).map(|keys| keys.split(',').collect()).unwrap_or_default();
    let is_applied = |prefix: &str, key: &str| {
        applied.iter().any(|applied| applied.strip_prefix(prefix) == Some(key))
    };
    for (key, value) in &old.labels {
        if !is_applied(LABEL, key) {
            document.labels.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
    for (key, value) in &old.annotations {
        if key != APPLIED && key != MANAGED_BY && !is_applied(ANNOTATION, key) {
            document.annotations.entry(key.clone()).or_insert_with(|| value.clone());
        }
    }
}

/// Decides the mark of a changed object, and whether the change is the writer's to make.
pub(super) fn settle<S: Admissible>(
    old: &Object<S>,
    new: &mut Object<S>,
    options: &WriteOptions,
    writer: &Writer,
    errors: &mut FieldErrors,
) -> Result<(), Refusal> {
    if let Writer::Manifest { source } = writer {
        new.metadata.annotations.insert(MANAGED_BY.to_owned(), source.clone());
        return Ok(());
    }
    let owner = old.metadata.annotations.get(MANAGED_BY);
    let written = new.metadata.annotations.get(MANAGED_BY);
    if written.is_some() && written != owner {
        let field = FieldPath::new("metadata.annotations").field(MANAGED_BY);
        errors.push(field, FieldValueForbidden, "the daemon alone marks the objects of files");
    }
    let Some(owner) = owner else { return Ok(()) };
    let mut desired = new.spec.clone();
    desired.take_desired_state(&old.spec);
    if desired == old.spec {
        let annotations = &mut new.metadata.annotations;
        annotations.insert(MANAGED_BY.to_owned(), owner.clone());
        match old.metadata.annotations.get(APPLIED) {
            Some(applied) => annotations.insert(APPLIED.to_owned(), applied.clone()),
            None => annotations.remove(APPLIED),
        };
        return Ok(());
    }
    if options.force {
        mark(&mut new.metadata, writer);
        return Ok(());
    }
    Err(Refusal::ManagedByManifest {
        kind: S::KIND,
        name: old.metadata.name.clone(),
        source_path: owner.clone(),
    })
}
