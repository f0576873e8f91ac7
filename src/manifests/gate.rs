//! What the manifests ask of admission, the one way in for desired state.
//!
//! A trait, so that the rules of `apply` can be tested against any answer.

use async_trait::async_trait;
use serde_json::Value;

use super::diff::ObjectId;
use crate::api::{FieldErrors, Uid};

/// The annotation that names the file an object belongs to.
pub const SOURCE_ANNOTATION: &str = "spawnlet.dev/manifest";

/// An object as it is in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Which object has the name now.
    pub uid: Uid,
    /// The file that it belongs to.
    pub source: Option<String>,
    /// Whether its deletion was asked for.
    pub is_deleting: bool,
    /// Whether it is a session or turn in its final phase.
    pub has_ended: bool,
}

/// What a file wants written.
#[derive(Clone, Copy, Debug)]
pub struct Write<'a> {
    /// The object.
    pub object: &'a ObjectId,
    /// The document.
    pub document: &'a Value,
    /// The file, for the annotation.
    pub source: &'a str,
    /// Only say whether it would be taken.
    pub dry_run: bool,
}

/// Why admission did not take it.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// Fields of the record are at fault.
    #[error("{0}")]
    Fields(FieldErrors),
    /// The change touches only fields that cannot be changed on a live object.
    #[error("{0}")]
    Immutable(FieldErrors),
    /// Something else is in the way, and stays so until something is changed.
    #[error("{0}")]
    Other(String),
    /// The same may be taken later.
    #[error("{0}")]
    Later(String),
}

/// Admission, as the manifests see it.
#[async_trait]
pub trait Gate: Send + Sync {
    /// The object that has this name.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    async fn find(&self, object: &ObjectId) -> Result<Option<Found>, Refusal>;

    /// Makes the object, and its namespace if that is missing. A dry run tells no uid.
    ///
    /// # Errors
    ///
    /// Why it is not taken.
    async fn create(&self, write: Write<'_>) -> Result<Uid, Refusal>;

    /// Writes the document over the object; desired state only goes forward.
    ///
    /// # Errors
    ///
    /// Why it is not taken.
    async fn update(&self, write: Write<'_>) -> Result<(), Refusal>;

    /// Asks for the deletion of exactly this object, with all that is below it; no fault if it is
    /// gone.
    ///
    /// # Errors
    ///
    /// Why it is not taken.
    async fn delete(&self, object: &ObjectId, uid: &Uid) -> Result<(), Refusal>;
}
