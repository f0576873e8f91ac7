//! `Event`: what happened to an object, in core/v1's shape. Aggregated by object, type, reason and
//! message, kept for an hour.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Kind, Name, Namespace, ObjectMeta, Time, Uid};

/// A core/v1 Event. Flat: it has neither spec nor status.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Event {
    /// `v1`.
    pub api_version: String,
    /// `Event`.
    pub kind: String,
    /// Name, namespace, uid, times.
    pub metadata: ObjectMeta,
    /// The object that it happened to.
    pub involved_object: ObjectReference,
    /// `Normal` or `Warning`.
    #[serde(rename = "type")]
    pub severity: EventType,
    /// One CamelCase word.
    pub reason: String,
    /// A sentence.
    pub message: String,
    /// How often.
    pub count: u32,
    /// When first.
    pub first_timestamp: Time,
    /// When last.
    pub last_timestamp: Time,
    /// Who says so.
    pub source: EventSource,
}

/// Whether an event needs attention.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EventType {
    /// As it should be.
    Normal,
    /// Somebody may want to look.
    Warning,
}

/// Points at an object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ObjectReference {
    /// Group and version.
    pub api_version: String,
    /// The kind.
    pub kind: String,
    /// Absent for cluster kinds.
    #[serde(default, skip_serializing_if = "Namespace::is_empty")]
    pub namespace: Namespace,
    /// The name.
    pub name: Name,
    /// The uid.
    #[serde(default, skip_serializing_if = "Uid::is_empty")]
    pub uid: Uid,
}

impl ObjectReference {
    /// A reference to an object of this kind with this metadata.
    #[must_use]
    pub fn to(kind: Kind, metadata: &ObjectMeta) -> Self {
        Self {
            api_version: kind.api_version().to_owned(),
            kind: kind.as_str().to_owned(),
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
            uid: metadata.uid.clone(),
        }
    }
}

/// Who tells of an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct EventSource {
    /// `spawnlet`.
    pub component: String,
}
