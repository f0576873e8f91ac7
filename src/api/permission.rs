//! `PermissionRequest`: an agent waits for somebody to decide whether it may do something.
//!
//! The daemon makes these records; users write `spec.decision` and nothing else of them, once. A
//! request belongs to its session and turn and goes with them. What stands in it are the agent's
//! own words, bounded by `plan::bounds`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{FieldErrors, Kind, Name, Object, Spec, Time, validate};

/// A `PermissionRequest` record.
pub type PermissionRequest = Object<PermissionRequestSpec>;

/// What is asked, and what was decided.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PermissionRequestSpec {
    /// The session's name.
    pub session: Name,
    /// The turn's name.
    pub turn: Name,
    /// What the agent wants to do.
    pub tool_call: ToolCall,
    /// The answers that the agent offers. Only the first of kind `allow_once` or `reject_once` is
    /// ever picked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<PermissionOption>,
    /// What was decided. Written once, by an operator or the parent of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision: Option<Decision>,
}

/// What an agent wants to do, in its own words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolCall {
    /// The agent's id of the tool call.
    pub id: String,
    /// For people: often the command, or the file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// `read, edit, delete, move, search, execute, think, fetch, other`, or a word of the agent's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// The files that it is about. All of them are inside the session's directories.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub locations: Vec<Location>,
    /// How many more files it is about than are listed.
    #[serde(skip_serializing_if = "is_zero")]
    pub more_locations: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// A file that a tool call is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Location {
    /// Its path.
    pub path: String,
}

/// An answer that an agent offers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PermissionOption {
    /// The agent's id of it.
    pub option_id: String,
    /// `allow_once, allow_always, reject_once, reject_always`.
    pub kind: String,
    /// For people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
}

/// What was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Decision {
    /// This once.
    Allow,
    /// Not this time.
    Deny,
}

impl Decision {
    /// As it is written.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Allow => "allow",
            Self::Deny => "deny",
        }
    }
}

/// Observed state of a `PermissionRequest`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PermissionRequestStatus {
    /// Where it stands.
    pub phase: PermissionPhase,
    /// When the agent gets `reject_once` if nobody has decided until then.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
    /// When it ceased to wait.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
}

/// Where a request stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum PermissionPhase {
    /// The agent waits for a decision.
    #[default]
    Pending,
    /// It was decided, and the agent is told so.
    Answered,
    /// Nobody decided in time: the agent is told `reject_once`.
    TimedOut,
    /// Its turn was cancelled or is over, or the agent asks no more.
    Cancelled,
}

impl PermissionPhase {
    /// Whether the agent waits for a decision.
    #[must_use]
    pub const fn is_pending(self) -> bool {
        match self {
            Self::Pending => true,
            Self::Answered | Self::TimedOut | Self::Cancelled => false,
        }
    }
}

impl Spec for PermissionRequestSpec {
    type Status = PermissionRequestStatus;
    const KIND: Kind = Kind::PermissionRequest;

    fn validate(&self) -> Result<(), FieldErrors> {
        // The daemon makes them; the types say all that there is to say of a decision.
        Ok(())
    }

    fn validate_update(&self, old: &Self) -> Result<(), FieldErrors> {
        validate::permission::update(old, self)
    }
}
