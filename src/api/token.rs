//! Tokens of callers: what a bearer token may do. A token belongs to one session and goes with its
//! record; the token itself is never stored, only its SHA-256.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::session::{ControlMode, Toolset};
use super::{Incarnation, Time};

/// The most tokens of one session: enough for every client of a person, and a bound of its record.
pub const TOKENS_MAX: usize = 16;

/// A token of a caller, as its session's status holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CallerToken {
    /// Names the token in lists and for revoking; says nothing of the token.
    pub id: String,
    /// SHA-256 of the store's id, a colon and the token; 64 hex digits.
    pub sha256: String,
    /// The toolsets that it opens.
    pub toolsets: Vec<Toolset>,
    /// What it may do to other sessions.
    #[serde(default)]
    pub control_mode: ControlMode,
    /// The run of the session's process that it was made for; a later one ends it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<Incarnation>,
    /// When it was made.
    pub created_at: Time,
    /// From when on it is refused; never if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<Time>,
}
