//! Admission as the manifests use it: find, apply, delete, and refusals as faults of a document.

use std::sync::Arc;

use serde_json::Value;

use super::diff::ObjectId;
use super::document::Checked;
use super::yaml::Error;
use crate::admission::{
    Admission, Admitted, Applied, DeleteOptions, FieldValidation, Refusal, WriteOptions, Writer,
};
use crate::api::{FieldError, Kind, MANAGED_BY, Name, Namespace, Uid};
use crate::store::keys;

/// An object as it is in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Which object has the name now.
    pub(super) uid: Uid,
    /// The file that it belongs to.
    pub(super) source: Option<String>,
    /// Whether its deletion was asked for.
    pub(super) is_deleting: bool,
}

/// What came of a document.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Written {
    /// The object is as the document says.
    Done {
        /// The object.
        uid: Uid,
        /// What the writer should know.
        warnings: Vec<String>,
    },
    /// The old object goes first; the document is to be applied again.
    Replacing,
}

/// The way to admission.
#[derive(Clone)]
pub(super) struct Gate {
    admission: Arc<Admission>,
}

impl Gate {
    pub(super) const fn new(admission: Arc<Admission>) -> Self {
        Self { admission }
    }

    /// The object that has this name.
    pub(super) async fn find(&self, object: &ObjectId) -> Result<Option<Found>, Refusal> {
        let records = self.admission.records();
        let found = records.get_value(object.kind, &object.namespace, &object.name).await?;
        Ok(found.as_ref().map(found_in))
    }

    /// Makes the object be as the document says; a dry run only tells whether it would be taken.
    pub(super) async fn apply(
        &self,
        document: &Checked,
        source: &str,
        dry_run: bool,
    ) -> Result<Written, Refusal> {
        let kind = document.claim.object.kind;
        let options = WriteOptions {
            dry_run,
            field_validation: FieldValidation::Strict,
            ..WriteOptions::default()
        };
        let writer = Writer::Manifest { source: source.to_owned() };
        let body = document.document.value.clone();
        match self.admission.apply(kind, body, &options, &writer).await? {
            Applied::Admitted(Admitted { object, warnings, .. }) => {
                Ok(Written::Done { uid: uid_in(&object), warnings })
            }
            Applied::Replacing { .. } => Ok(Written::Replacing),
        }
    }

    /// Asks for the end of exactly this object, with all that is below it.
    pub(super) async fn delete(&self, object: &ObjectId, uid: &Uid) -> Result<(), Refusal> {
        let options = DeleteOptions { uid: Some(uid.clone()), ..DeleteOptions::default() };
        let ObjectId { kind, namespace, name } = object;
        match self.admission.delete(*kind, namespace, name, &options).await {
            Err(Refusal::NotFound { .. }) | Ok(_) => Ok(()),
            Err(refusal) => Err(refusal),
        }
    }

    /// Every object that belongs to a file. For the start.
    pub(super) async fn managed(&self) -> Result<Vec<(ObjectId, Found)>, Refusal> {
        let records = self.admission.records();
        let mut managed = Vec::new();
        for key in records.pointed_at(keys::MANAGED).await? {
            let Some(value) = records.value_at(&key).await? else { continue };
            let found = found_in(&value);
            let kind = value["kind"].as_str().and_then(Kind::parse);
            if let (Some(kind), true) = (kind, found.source.is_some()) {
                let text = |field| value["metadata"][field].as_str().unwrap_or_default();
                let object = ObjectId {
                    kind,
                    namespace: Namespace::from(text("namespace")),
                    name: Name::from(text("name")),
                };
                managed.push((object, found));
            }
        }
        Ok(managed)
    }
}

fn found_in(value: &Value) -> Found {
    let metadata = &value["metadata"];
    Found {
        uid: uid_in(value),
        source: metadata["annotations"][MANAGED_BY].as_str().map(str::to_owned),
        is_deleting: metadata["deletionTimestamp"].is_string(),
    }
}

fn uid_in(value: &Value) -> Uid {
    Uid::from(value["metadata"]["uid"].as_str().unwrap_or_default())
}

/// A refusal as faults of the document, each where its field stands.
pub(super) fn faults(document: &Checked, refusal: &Refusal) -> Vec<Error> {
    let fields = refusal.field_errors();
    if fields.is_empty() {
        return vec![document.fault(refusal.to_string())];
    }
    let fault =
        |error: &FieldError| document.document.fault(error.field.as_str(), error.message.clone());
    fields.iter().map(fault).collect()
}
