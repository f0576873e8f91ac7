//! The envelope of every record.

use std::fmt::Debug;

use schemars::JsonSchema;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{FieldErrors, Kind, ObjectMeta};

/// What a kind's spec type tells of its kind.
pub trait Spec:
    Clone + Debug + PartialEq + Serialize + DeserializeOwned + JsonSchema + Send + Sync + 'static
{
    /// What the daemon writes about such a record.
    type Status: Clone
        + Debug
        + Default
        + PartialEq
        + Serialize
        + DeserializeOwned
        + JsonSchema
        + Send
        + Sync
        + 'static;

    /// The kind that this is the spec of.
    const KIND: Kind;

    /// Whether the spec is one that the daemon can carry out.
    ///
    /// # Errors
    ///
    /// Every fault found, each with its field path, the value and what was expected.
    fn validate(&self) -> Result<(), FieldErrors>;

    /// Whether the change from `old` to `self` is allowed on a live object.
    ///
    /// # Errors
    ///
    /// The immutable or forward-only fields that the change touches.
    fn validate_update(&self, old: &Self) -> Result<(), FieldErrors>;
}

/// A record: metadata, what is wanted, what was seen.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", bound = "S: Spec")]
pub struct Object<S: Spec> {
    /// Group and version of the kind.
    pub api_version: String,
    /// The kind's name.
    pub kind: String,
    /// Name, uid, generation and so on.
    pub metadata: ObjectMeta,
    /// Desired state, written by users.
    pub spec: S,
    /// Observed state, written by the daemon alone.
    #[serde(default)]
    pub status: S::Status,
}

impl<S: Spec> Object<S> {
    /// A record as it is before admission: metadata as given, an empty status.
    pub fn new(metadata: ObjectMeta, spec: S) -> Self {
        Self {
            api_version: S::KIND.api_version().to_owned(),
            kind: S::KIND.as_str().to_owned(),
            metadata,
            spec,
            status: S::Status::default(),
        }
    }
}
