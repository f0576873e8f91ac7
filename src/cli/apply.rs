//! `spawnlet apply`: a three-way merge between what the file said last, what it says now, and what
//! is there, in the way and with the annotation of `kubectl apply`, so that both may be used on the
//! same object.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::client::{Client, collection, item, with_query};
use super::failure::Failure;
use super::files::load;
use super::get::eprint_line;
use super::output::{Output, name_of, text};
use crate::rest::resource::Resource;

/// What the object's file said last.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";
pub(super) const MANAGER: &str = "spawnlet-apply";

/// Create or change objects as files say.
#[derive(Debug, Args)]
pub(super) struct Apply {
    /// A file, a directory, or - for standard input; repeatable.
    #[arg(short = 'f', long = "filename", required = true, value_name = "FILE|DIR|-")]
    files: Vec<PathBuf>,
    /// Check all on the daemon, change nothing.
    #[arg(long)]
    dry_run: bool,
    /// Take over objects that belong to a manifest file of the daemon.
    #[arg(long)]
    force: bool,
    /// Print the objects in this form instead of what was done.
    #[arg(short, long, value_enum)]
    output: Option<Output>,
}

impl Apply {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let loaded = load(&self.files, &context.namespace)?;
        let client = context.client()?;
        for one in loaded {
            for warning in &one.checked.warnings {
                eprint_line(&format!("warning: {}:{warning}", one.source));
            }
            let resource = Resource::Records(one.checked.claim.object.kind);
            let document = one.checked.document.value;
            let (object, done) = self
                .apply(&client, resource, &document)
                .await
                .map_err(|failure| at(&one.source, &name_of(&document, resource), failure))?;
            if object.pointer("/metadata/deletionTimestamp").is_some() {
                let name = name_of(&object, resource);
                let why = format!(
                    "{name} is being deleted, so nothing comes of this; apply it again once it is \
                     gone (`spawnlet wait {name} --for delete`)"
                );
                return Err(Failure::TryAgain(why));
            }
            match self.output {
                Some(output) => output.write_one(&object, resource, context.out)?,
                None => {
                    let suffix = if self.dry_run { " (dry run)" } else { "" };
                    writeln!(context.out, "{} {done}{suffix}", name_of(&object, resource))?;
                }
            }
        }
        Ok(())
    }

    async fn apply(
        &self,
        client: &Client,
        resource: Resource,
        document: &Value,
    ) -> Result<(Value, &'static str), Failure> {
        let (namespace, name) =
            (text(document, "/metadata/namespace"), text(document, "/metadata/name"));
        let query = [
            ("fieldManager", MANAGER),
            ("fieldValidation", "Strict"),
            ("dryRun", if self.dry_run { "All" } else { "" }),
            ("force", if self.force { "true" } else { "" }),
        ];
        let path = item(resource, namespace, name);
        match client.get(&path).await {
            Ok(live) => {
                let patch = patch(document, &live);
                let object = client.patch(&with_query(&path, &query), &patch).await?;
                let version = |object: &Value| text(object, "/metadata/resourceVersion").to_owned();
                let is_same =
                    version(&object) == version(&live) && object.get("spec") == live.get("spec");
                Ok((object, if is_same { "unchanged" } else { "configured" }))
            }
            Err(failure) if failure.is_not_found() => {
                let path = with_query(&collection(resource, Some(namespace)), &query);
                Ok((client.post(&path, &annotated(document)).await?, "created"))
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Puts the file and the object before the daemon's words.
fn at(source: &str, name: &str, failure: Failure) -> Failure {
    match failure {
        Failure::Refused { code, reason, message } => {
            Failure::Refused { code, reason, message: format!("{source}: {name}: {message}") }
        }
        other => other,
    }
}

/// The document with the annotation that the next apply compares with.
pub(super) fn annotated(document: &Value) -> Value {
    let mut document = document.clone();
    let said = said(&document);
    let metadata = document.as_object_mut().map(|map| map.entry("metadata").or_insert(json!({})));
    if let Some(annotations) = metadata
        .and_then(Value::as_object_mut)
        .map(|map| map.entry("annotations").or_insert(json!({})))
        .and_then(Value::as_object_mut)
    {
        annotations.insert(LAST_APPLIED.to_owned(), json!(said));
    }
    document
}

/// What a document says, without an annotation that it may have been read back with.
fn said(document: &Value) -> String {
    let mut document = document.clone();
    if let Some(annotations) =
        document.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut)
    {
        annotations.remove(LAST_APPLIED);
    }
    document.to_string()
}

/// The merge patch that makes `live` be as `document` says.
fn patch(document: &Value, live: &Value) -> Value {
    let last = live
        .pointer("/metadata/annotations")
        .and_then(|annotations| annotations.get(LAST_APPLIED))
        .and_then(Value::as_str)
        .and_then(|text| serde_json::from_str::<Value>(text).ok())
        .unwrap_or_default();
    let mut patch = annotated(document);
    remove_dropped(&mut patch, &last);
    if let Some(map) = patch.as_object_mut() {
        map.remove("status");
    }
    patch
}

/// Adds a null for each field that `last` had and `patch` has not.
fn remove_dropped(patch: &mut Value, last: &Value) {
    let (Some(patch), Some(last)) = (patch.as_object_mut(), last.as_object()) else { return };
    for (key, old) in last {
        match patch.get_mut(key) {
            Some(new) => remove_dropped(new, old),
            None => {
                patch.insert(key.clone(), Value::Null);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_left_the_file_are_taken_out_and_foreign_ones_stay() {
        let last = json!({"metadata": {"name": "a", "labels": {"x": "1", "y": "2"}},
                          "spec": {"title": "t", "config": {"k": "v"}, "agent": "e"}});
        let live = json!({"metadata": {"name": "a", "labels": {"x": "1", "y": "2", "z": "3"},
                                       "annotations": {LAST_APPLIED: last.to_string()}},
                          "spec": {"title": "t", "agent": "e", "ttl": "1h"}});
        let document = json!({"metadata": {"name": "a", "labels": {"x": "1"}},
                              "spec": {"agent": "e"}});
        let patch = patch(&document, &live);
        assert_eq!(patch["metadata"]["labels"], json!({"x": "1", "y": null}));
        assert_eq!(patch["spec"], json!({"agent": "e", "title": null, "config": null}));
        let said = patch["metadata"]["annotations"][LAST_APPLIED].as_str().unwrap();
        assert_eq!(serde_json::from_str::<Value>(said).unwrap(), document);
    }
}
