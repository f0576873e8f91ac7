//! Kubernetes object metadata, as far as our records carry it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Name, Namespace, Time, Uid};

/// What every record carries beside spec and status (Kubernetes API conventions, "Metadata").
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectMeta {
    /// The record's name; made from the record if absent (or from `generateName`).
    #[serde(skip_serializing_if = "Name::is_empty")]
    pub name: Name,
    /// A prefix for a generated name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_name: Option<String>,
    /// Empty for cluster kinds.
    #[serde(skip_serializing_if = "Namespace::is_empty")]
    pub namespace: Namespace,
    /// Set at admission, UUID v7.
    #[serde(skip_serializing_if = "Uid::is_empty")]
    pub uid: Uid,
    /// Counts changes of spec, from 1.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: i64,
    /// The store's revision of this record, opaque to users. Never stored in the value: the store
    /// fills it in on reading.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Set at admission.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<Time>,
    /// Set once deletion was asked for; never taken back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<Time>,
    /// For selectors.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// For people and tools.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Who owns this record: a turn's session, a session's parent.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
    /// The record stays while one of these is left.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub finalizers: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(number: &i64) -> bool {
    *number == 0
}

impl ObjectMeta {
    /// Whether deletion was asked for.
    #[must_use]
    pub fn is_deleting(&self) -> bool {
        self.deletion_timestamp.is_some()
    }

    /// Whether a session is there for one start of its agent alone.
    #[must_use]
    pub fn is_first_start(&self) -> bool {
        self.annotations.contains_key(super::FIRST_START)
    }
}

/// A record that owns another: when it goes, the owned one goes before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// The owner's `apiVersion`.
    pub api_version: String,
    /// The owner's kind.
    pub kind: String,
    /// The owner's name.
    pub name: Name,
    /// The owner's uid: the reference holds for exactly this object.
    pub uid: Uid,
    /// Whether the owner's controller manages this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
    /// Whether the owner's foreground deletion waits for this object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_owner_deletion: Option<bool>,
}

impl OwnerReference {
    /// The reference to what controls something: a session, of its turns and of its children.
    #[must_use]
    pub fn of(owner: &super::Session) -> Self {
        Self {
            api_version: owner.api_version.clone(),
            kind: owner.kind.clone(),
            name: owner.metadata.name.clone(),
            uid: owner.metadata.uid.clone(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }
    }
}
