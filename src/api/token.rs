//! Tokens of callers: what a bearer token may do. A token belongs to one session and goes with its
//! record; the token itself is never stored, only its SHA-256.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::session::{ControlMode, Toolset};
use super::{Incarnation, Time, hex};

/// What every token begins with, so that people and scanners of secrets know one.
const PREFIX: &str = "spawnlet_";
/// Random bytes of a token.
pub const TOKEN_BYTES: usize = 32;
/// Hex digits of the hash that name a token.
const ID_DIGITS: usize = 12;

/// The most tokens of one session: enough for every client of a person, and a bound of its record.
pub const TOKENS_MAX: usize = 16;

/// A caller's token itself. It is never stored, and its `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretToken(String);

impl SecretToken {
    /// The token of these bytes, which are random.
    #[must_use]
    pub fn new(random: &[u8; TOKEN_BYTES]) -> Self {
        Self(format!("{PREFIX}{}", hex(random)))
    }

    /// Whether a text can be one of ours at all.
    #[must_use]
    pub fn is_shaped(text: &str) -> bool {
        text.strip_prefix(PREFIX).map_or(0, str::len) == 2 * TOKEN_BYTES
    }

    /// The text, for whom the token is for.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What is stored of a token: SHA-256 of the store's id, a colon and the token, so that a token
    /// of another store opens nothing here. 64 hex digits.
    #[must_use]
    pub fn sha256(store_id: &str, token: &str) -> String {
        let digest = Sha256::new_with_prefix(store_id.as_bytes())
            .chain_update(b":")
            .chain_update(token.as_bytes())
            .finalize();
        hex(&digest)
    }
}

impl fmt::Debug for SecretToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretToken")
    }
}

/// What names a token of this hash in lists.
#[must_use]
pub fn id_of(sha256: &str) -> String {
    sha256.chars().take(ID_DIGITS).collect()
}

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
