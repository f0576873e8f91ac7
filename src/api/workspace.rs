//! `Workspace`: named folders. A session takes a snapshot of it at its creation.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Conditions, FieldErrors, Kind, Object, Spec, validate};

/// A `Workspace` record.
pub type Workspace = Object<WorkspaceSpec>;

/// Desired state of a `Workspace`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceSpec {
    /// The folders; the first is the main one. Ids are unique.
    pub folders: Vec<Folder>,
}

/// One folder of a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Folder {
    /// Names the folder in `folder` and `folderId`.
    pub id: String,
    /// A name for people; the id if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// An absolute path of the daemon's machine.
    pub path: String,
}

/// Observed state of a `Workspace`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkspaceStatus {
    /// None is defined yet.
    #[serde(skip_serializing_if = "Conditions::is_empty")]
    pub conditions: Conditions,
}

impl Spec for WorkspaceSpec {
    type Status = WorkspaceStatus;
    const KIND: Kind = Kind::Workspace;

    fn validate(&self) -> Result<(), FieldErrors> {
        validate::workspace::spec(self)
    }

    fn validate_update(&self, _old: &Self) -> Result<(), FieldErrors> {
        Ok(())
    }
}
