//! A child that a caller writes as a record (REST, `spawnlet spawn`): the same checks, bounds and
//! one commit as for `prompt_to_agent`, with more said about the child.
//!
//! Its idempotency key is kept with the child itself, because a child may be made without a turn.

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::SpawnRefusal;
use super::child::Wish;
use super::end::overtaken;
use super::prompt::{disk_is_full, write_tree};
use super::within::Grant;
use crate::admission::decode::{self, decode};
use crate::admission::slot::Slotted;
use crate::admission::{
    ATTEMPTS_MAX, Admission, Bearer, Caller, FieldValidation, Refusal, expect_room,
};
use crate::api::session::{SpawnKey, Toolset};
use crate::api::turn::{Admission as Mode, SourceKind, TurnSource};
use crate::api::{Code, Session, SessionSpec, Turn, hex};
use crate::ports::Inputs;
use crate::store::Guard;
use crate::store::records::{Keyed, Txn, spawn_key};

/// The most bytes of an idempotency key, as of a turn's.
const KEY_BYTES_MAX: usize = 128;

/// A session that a caller asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct SpawnRequest {
    /// The record as the caller wrote it; an MCP server of the caller's may be named alone.
    pub body: Value,
    /// What becomes of unknown fields.
    pub field_validation: FieldValidation,
    /// Same key and same body: same child.
    pub idempotency_key: Option<String>,
    /// Check all, write nothing.
    pub dry_run: bool,
}

/// A child that a caller asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Spawned {
    /// The child.
    pub session: Session,
    /// Whether an earlier request with the same key had made it.
    pub is_repeat: bool,
    /// What the caller should know.
    pub warnings: Vec<String>,
}

/// Why a child was not made. Nothing was written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotSpawned {
    /// By a rule of the tree of sessions.
    #[error("{0}")]
    Refused(#[from] SpawnRefusal),
    /// As any such record of anybody would be.
    #[error("{0}")]
    Invalid(#[from] Refusal),
}

impl Admission {
    /// Makes a child of the caller's session.
    ///
    /// # Errors
    ///
    /// [`NotSpawned`]; nothing was written.
    ///
    /// # Cancel safety
    ///
    /// The child may or may not have been made; with an idempotency key it can be asked for again.
    pub async fn spawn(
        &self,
        bearer: &Bearer,
        request: SpawnRequest,
        inputs: &dyn Inputs,
    ) -> Result<Spawned, NotSpawned> {
        let caller = &bearer.caller;
        if !bearer.toolsets.contains(&Toolset::Spawn) {
            let why = "this token does not open the toolset spawn, so it makes no sessions";
            return Err(SpawnRefusal::new(Code::SpawnPermissionDenied, why).into());
        }
        let key = fingerprint(&request)?;
        let dry_run = request.dry_run;
        let (mut wish, warnings) = read(bearer, request)?;
        let parent = self.live_caller(caller).await?;
        if let Some(session) = self.spawned_before(&parent, key.as_ref()).await? {
            return Ok(Spawned { session, is_repeat: true, warnings });
        }
        self.pre_create(caller, &mut wish, inputs).await?;
        let _one_at_a_time = self.turns.lock().await;
        for _ in 0..ATTEMPTS_MAX {
            let parent = self.live_caller(caller).await?;
            if let Some(session) = self.spawned_before(&parent, key.as_ref()).await? {
                return Ok(Spawned { session, is_repeat: true, warnings });
            }
            self.expect_usable_agent(&wish.spec.agent, inputs).await?;
            let mut child = Box::pin(self.new_child(&parent, &wish, inputs)).await?;
            child.status.lineage.spawn_key.clone_from(&key);
            self.expect_free(&child).await?;
            expect_room(&child.spec)?;
            let mut first = self.first_turn(&mut child).await?;
            if let Some(turn) = &mut first {
                self.check_children(&parent).await?;
                self.check_tree_budget(&parent).await?;
                // The same rules as for a call of a tool: it holds a slot, or is not taken.
                turn.spec.admission = Mode::Immediate;
                turn.spec.source = TurnSource {
                    kind: SourceKind::Spawn,
                    caller: Some(caller.session.clone()),
                    request_sha256: None,
                };
            }
            let (tree, rev) = self.count_in_tree(&child).await?;
            if dry_run {
                return Ok(Spawned { session: child, is_repeat: false, warnings });
            }
            if !self.records.store().has_room() {
                return Err(disk_is_full().into());
            }
            let mut txn = write_tree(Txn::new().unchanged(&parent), &child, &tree, rev);
            if let Some(key) = spawn_key(&child) {
                txn = txn.guard(Guard::Absent(key));
            }
            if self.commit_child(txn, caller, &mut child, first).await? {
                self.tell_created(&child);
                return Ok(Spawned { session: child, is_repeat: false, warnings });
            }
        }
        Err(overtaken().into())
    }

    /// Commits a child and its first turn, if it has one. `false`: somebody else was faster.
    async fn commit_child(
        &self,
        txn: Txn,
        caller: &Caller,
        child: &mut Session,
        first: Option<Turn>,
    ) -> Result<bool, NotSpawned> {
        let txn = txn.create(child);
        let Some(mut turn) = first else {
            return Ok(self.commit_new(txn, child).await?.is_done());
        };
        let txn = txn.create(&turn);
        match self.commit_with_slot(txn, &mut turn, Some(&caller.session)).await? {
            Slotted::Done => {
                child.metadata.resource_version.clone_from(&turn.metadata.resource_version);
                Ok(true)
            }
            Slotted::Overtaken => Ok(false),
            Slotted::Full => {
                let why = "every turn slot that this session may use is taken; wait for a turn to \
                           end, or cancel one";
                Err(SpawnRefusal::new(Code::SpawnCapacityExceeded, why).into())
            }
        }
    }

    /// What an earlier request with the same key made.
    async fn spawned_before(
        &self,
        parent: &Session,
        key: Option<&SpawnKey>,
    ) -> Result<Option<Session>, SpawnRefusal> {
        let Some(key) = key else { return Ok(None) };
        let at = crate::store::keys::spawn_key(&parent.metadata.uid, &key.sha256);
        let conflict = |why: String| Err(SpawnRefusal::new(Code::SpawnIdempotencyConflict, why));
        match self.records.keyed::<SessionSpec>(&at, self.clock.now().time).await? {
            Keyed::Unused => Ok(None),
            Keyed::Made(made) if made.status.lineage.spawn_key.as_ref() == Some(key) => {
                Ok(Some(*made))
            }
            Keyed::Spent(spent) if spent.request_sha256.as_ref() == Some(&key.request_sha256) => {
                conflict(format!(
                    "the session {} that the idempotency key made was deleted since; use a new key \
                     for a new one",
                    spent.name
                ))
            }
            Keyed::Made(_) | Keyed::Spent(_) => conflict(
                "the idempotency key was used with another request; use a new key for a new one"
                    .to_owned(),
            ),
        }
    }
}

/// The key of a request and what it was used with.
fn fingerprint(request: &SpawnRequest) -> Result<Option<SpawnKey>, SpawnRefusal> {
    let Some(key) = &request.idempotency_key else { return Ok(None) };
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        let why = format!("expected 1 to {KEY_BYTES_MAX} bytes");
        return Err(SpawnRefusal::invalid("the idempotency key", why));
    }
    Ok(Some(SpawnKey {
        sha256: hex(&Sha256::digest(key.as_bytes())),
        request_sha256: hex(&Sha256::digest(request.body.to_string().as_bytes())),
    }))
}

/// The wish that a body holds.
fn read(bearer: &Bearer, request: SpawnRequest) -> Result<(Wish, Vec<String>), Refusal> {
    let mut body = request.body;
    decode::address(&mut body, Some(&bearer.caller.namespace), None)?;
    let servers = body.pointer_mut("/spec/mcpServers").and_then(Value::as_array_mut);
    for server in servers.into_iter().flatten().filter_map(Value::as_object_mut) {
        // Named alone: which kind it is, the caller's own entry says.
        server.entry("type").or_insert_with(|| "stdio".into());
    }
    let (written, warnings) = decode::<SessionSpec>(body, request.field_validation)?;
    let grant = Grant { toolsets: bearer.toolsets.clone(), control_mode: bearer.control_mode };
    let wish =
        Wish { metadata: written.metadata, spec: written.spec, is_ttl_required: true, grant };
    Ok((wish, warnings))
}
