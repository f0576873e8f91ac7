//! What a caller's session asks for: a new child, a turn of a new or a known one, and its end.
//!
//! One call is one commit: the child's session if it is new, its turn, the slot that the turn
//! holds, and what the tree used of its bounds are decided and written together. The caller comes
//! from its token alone. Invariants: an id of another caller, of another namespace and one that
//! does not exist are answered alike; nothing is written for what is refused; a repetition by its
//! idempotency key answers with what the first call made.
//!
//! Absent on purpose: waiting for the turn, and how things are said to a model; `mcp` does both.

mod bounds;
mod child;
mod end;
mod hooks;
mod prompt;
mod session;
mod within;

pub use session::{NotSpawned, SpawnRequest, Spawned};

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Admission, Caller, Refusal};
use crate::api::{Agent, AgentSpec, Code, Dur, Session, SessionSpec, Turn, Uid};
use crate::ports::Inputs;
use crate::store::records::Page;

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
    /// The caller has no such child (any more).
    NotFound(Uid),
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

impl SpawnRefusal {
    pub(super) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { code, message: message.into() }
    }

    fn invalid(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Code::SpawnInvalidRequest, format!("{field}: {why}"))
    }
}

/// What is left of a refusal once the request itself was judged: the store's state.
impl From<Refusal> for SpawnRefusal {
    fn from(refusal: Refusal) -> Self {
        let code = match &refusal {
            Refusal::Unavailable { .. } => Code::SpawnStoreUnavailable,
            Refusal::Conflict { .. } | Refusal::TooManyRequests { .. } => Code::SpawnUnavailable,
            Refusal::Invalid { .. } | Refusal::TooLarge { .. } => Code::SpawnInvalidRequest,
            Refusal::NotFound { .. }
            | Refusal::AlreadyExists { .. }
            | Refusal::UnknownFields { .. }
            | Refusal::BadRequest { .. }
            | Refusal::ManagedByManifest { .. }
            | Refusal::Forbidden { .. }
            | Refusal::MethodNotAllowed { .. }
            | Refusal::Internal { .. } => Code::SpawnInternalError,
        };
        if code == Code::SpawnStoreUnavailable {
            // Its words may hold paths of this machine.
            tracing::warn!(error = %refusal, "a caller's request met a store that does not answer");
            return Self::new(code, "the daemon's store takes nothing now; try again");
        }
        if code == Code::SpawnInternalError {
            // What the store holds is nothing that a caller must know of.
            tracing::error!(error = %refusal, "a caller's request met a defect");
            return Self::new(code, "the daemon met a defect; its log says more");
        }
        Self::new(code, refusal.to_string())
    }
}

/// What a caller's prompt cannot bring about is a defect: it says nothing that could be wrong in a
/// record.
impl From<NotSpawned> for SpawnRefusal {
    fn from(error: NotSpawned) -> Self {
        match error {
            NotSpawned::Refused(refusal) => refusal,
            NotSpawned::Invalid(refusal) => refusal.into(),
        }
    }
}

impl From<crate::store::Error> for SpawnRefusal {
    fn from(error: crate::store::Error) -> Self {
        Refusal::from(error).into()
    }
}

impl From<crate::store::records::Error> for SpawnRefusal {
    fn from(error: crate::store::records::Error) -> Self {
        Refusal::from(error).into()
    }
}

impl Admission {
    /// The agents that a caller may name: enabled, and their executable is there. In name order.
    /// Starts no process.
    ///
    /// # Errors
    ///
    /// `SPAWN_PARENT_SESSION_NOT_FOUND`, and the store's.
    pub async fn available_agents(
        &self,
        caller: &Caller,
        inputs: &dyn Inputs,
    ) -> Result<Vec<Agent>, SpawnRefusal> {
        self.live_caller(caller).await?;
        let mut agents = self.records.list::<AgentSpec>(None, &Page::ALL).await?.items;
        agents.retain(|agent| is_usable(agent, inputs));
        Ok(agents)
    }

    /// A child of the caller; none if there is no such session, or it is not the caller's.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn child(
        &self,
        caller: &Caller,
        session: &Uid,
    ) -> Result<Option<Session>, SpawnRefusal> {
        let found = self.records.by_uid::<SessionSpec>(session).await?;
        Ok(found.filter(|session| is_child_of(session, caller)))
    }

    /// The caller's children, oldest first.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn children(&self, caller: &Caller) -> Result<Vec<Session>, SpawnRefusal> {
        let mut children = self.records.children_of(&caller.session).await?;
        children.retain(|session| is_child_of(session, caller));
        Ok(children)
    }

    /// The caller's own session, if it may still ask for anything.
    async fn live_caller(&self, caller: &Caller) -> Result<Session, SpawnRefusal> {
        let found = self.records.get::<SessionSpec>(&caller.namespace, &caller.name).await?.filter(
            |found| {
                found.metadata.uid == caller.session
                    && super::session::why_not_live(found).is_none()
            },
        );
        found.ok_or_else(|| {
            SpawnRefusal::new(
                Code::SpawnParentSessionNotFound,
                "the session of this token has ended or is ending; make another session and token",
            )
        })
    }
}

fn is_usable(agent: &Agent, inputs: &dyn Inputs) -> bool {
    agent.spec.enabled && !agent.metadata.is_deleting() && inputs.executable(agent).is_ok()
}

fn is_child_of(session: &Session, caller: &Caller) -> bool {
    session.status.lineage.parent.as_ref() == Some(&caller.session)
        && session.metadata.namespace == caller.namespace
}
