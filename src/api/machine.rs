//! What a machine has of the guards that the daemon stands on, as `/readyz` and `doctor` tell it.

use serde::{Deserialize, Serialize};

/// One thing of the kernel or the file system that keeps a promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Guard {
    /// One CamelCase word.
    pub name: String,
    /// Whether it is there.
    pub state: GuardState,
    /// What was found.
    pub found: String,
    /// What is lost without it. Empty while it is there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lost: String,
    /// What to do. Empty while it is there.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub hint: String,
}

/// Whether a guard is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GuardState {
    /// It is.
    Present,
    /// In part, or in a way that should be changed.
    Weak,
    /// It is not.
    Absent,
    /// It cannot be seen from here.
    Unknown,
}
