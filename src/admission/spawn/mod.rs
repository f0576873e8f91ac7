//! What a caller's session asks for: a turn of a new or a known child, and its end.
//!
//! One call is one commit: the child's session if it is new, its turn, the slot that the turn
//! holds, and what the tree used of its bounds are decided and written together. The caller comes
//! from its token alone. Invariants: an id of another caller, of another namespace and one that
//! does not exist are answered alike; nothing is written for what is refused; a repetition by its
//! idempotency key answers with what the first call made.
//!
//! Absent on purpose: waiting for the turn, and how things are said to a model; `mcp` does both.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::api::{Code, Dur, Session, Turn, Uid};

/// What a caller asks for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PromptRequest {
    /// The agent.
    pub agent: String,
    /// The prompt.
    pub prompt: String,
    /// A child to go on with; a new one if absent.
    pub session: Option<Uid>,
    /// The one folder of a new child, by its id in the caller's scope.
    pub folder: Option<String>,
    /// The model, semantic.
    pub model: Option<String>,
    /// The thought level, semantic.
    pub thought_level: Option<String>,
    /// Values of live options by exact id.
    pub config: BTreeMap<String, Value>,
    /// Whether nobody waits for the end.
    pub background: bool,
    /// How long a new child may live.
    pub ttl: Option<Dur>,
    /// Same key and same request: same turn.
    pub idempotency_key: Option<String>,
}

/// What became of a request that is not wrong in itself.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompted {
    /// The turn exists.
    Turn(Box<Made>),
    /// The caller has no such child.
    NotFound,
    /// The child has a turn that is not final.
    Busy(Box<Session>),
    /// The child cannot go on.
    Expired(Box<Session>),
    /// Every turn slot is taken.
    Full,
}

/// A turn that was admitted.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// The child.
    pub session: Session,
    /// Its turn.
    pub turn: Turn,
    /// Whether this very call made the session.
    pub is_new_session: bool,
    /// Whether an earlier call with the same key had made the turn.
    pub is_repeat: bool,
}

/// Why a caller's request was refused. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct SpawnRefusal {
    /// For programs.
    pub code: Code,
    /// What is wrong, where, and what to do. Names nothing that the caller must not know.
    pub message: String,
}
