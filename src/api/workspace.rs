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

/// The folders of a session in a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picked<'w> {
    /// Where it works.
    pub main: &'w Folder,
    /// What it may use beside that: the other folders, if none was named.
    pub others: &'w [Folder],
    /// `WORKSPACE` or `WORKSPACE/FOLDER`, for people.
    pub label: String,
}

/// Why a workspace has no folder for a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NoFolder {
    /// It has none at all.
    Empty,
    /// It has none with this id.
    Unknown(String),
}

impl WorkspaceSpec {
    /// The folders of a session: the first and the others, or the named one alone. `name` is the
    /// workspace's.
    ///
    /// # Errors
    ///
    /// [`NoFolder`].
    pub fn pick(&self, name: &str, folder: Option<&str>) -> Result<Picked<'_>, NoFolder> {
        match folder {
            None => {
                let (main, others) = self.folders.split_first().ok_or(NoFolder::Empty)?;
                Ok(Picked { main, others, label: name.to_owned() })
            }
            Some(id) => {
                let main = self.folders.iter().find(|folder| folder.id == id);
                let main = main.ok_or_else(|| NoFolder::Unknown(id.to_owned()))?;
                Ok(Picked { main, others: &[], label: format!("{name}/{id}") })
            }
        }
    }
}

impl Picked<'_> {
    /// All of them.
    pub fn folders(&self) -> impl Iterator<Item = &Folder> {
        std::iter::once(self.main).chain(self.others)
    }

    /// The paths beside the main one, then a session's own.
    #[must_use]
    pub fn directories(&self, own: &[String]) -> Vec<String> {
        self.others.iter().map(|folder| folder.path.clone()).chain(own.iter().cloned()).collect()
    }
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
