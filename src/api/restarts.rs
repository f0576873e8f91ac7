//! What is remembered of starts that failed (`status.restarts` of a session).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Time, Uid};

/// Failed starts in a row.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Restarts {
    /// How many. A turn that ends well resets it.
    pub count: u32,
    /// The generation of the session that they were seen at: a newer one resets them.
    pub generation: i64,
    /// The generation of the agent that they were seen at: a newer one resets them.
    pub agent_generation: i64,
    /// When the next start may be tried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_attempt_at: Option<Time>,
    /// The newest prompt that has waited through one: a later one tries again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_prompt: Option<Uid>,
    /// When the last one failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failed_at: Option<Time>,
    /// What went wrong last, in one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// What went wrong last, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub last_error: String,
}
