//! New turns: their session, its inbox, their names, large prompts and idempotency.
//!
//! Every new turn moves its session's counters on in the same commit, so that the bound of the
//! inbox and the numbers of the names are decided by the compare-and-swap of the session.

use bytes::Bytes;
use serde_json::Value;

use super::session::{has_unfinished_turn, why_not_live};
use super::slot::Slotted;
use super::{
    ATTEMPTS_MAX, Admission, Admitted, Attempt, Incoming, Outcome, Refusal, WriteOptions, admitted,
    created, expect_room, metadata, spending,
};
use crate::api::field::FieldErrorReason::{FieldValueForbidden, FieldValueInvalid};
use crate::api::session::Provider;
use crate::api::turn::{Admission as Mode, PromptBlob, TurnSource};
use crate::api::validate::INLINE_PROMPT_BYTES_MAX;
use crate::api::{
    Code, DEFAULT_NAMESPACE, FieldError, FieldErrors, FieldPath, Kind, MANAGED_BY, Name,
    OwnerReference, Session, SessionSpec, Turn, TurnSpec, Uid, naming,
};
use crate::failpoint::{self, Point};
use crate::store::records::{Keyed, Txn, idempotency_key};
use crate::store::{
    Append, BLOB_CHUNK_BYTES_MAX, BlobId, Error as StoreError, Guard, Stream, keys,
};

/// Numbers of a generated name that may be taken by names that users gave.
const NAMES_TAKEN_MAX: u64 = 1024;

/// The bytes of a prompt as they are counted and stored, and the field that it stands in.
fn prompt_bytes(text: Option<&str>, blocks: Option<&[Value]>) -> Option<(FieldPath, Bytes)> {
    if let Some(text) = text {
        let bytes = Bytes::copy_from_slice(text.as_bytes());
        return Some((FieldPath::new("spec.prompt"), bytes));
    }
    // Writing JSON values into memory cannot fail.
    let bytes = serde_json::to_vec(blocks?).unwrap_or_default();
    Some((FieldPath::new("spec.promptBlocks"), bytes.into()))
}

/// Takes a prompt over 64 KiB out of a spec, and leaves the mark of its blob there. So too one that
/// JSON's escapes make larger than twice that: it would leave no room for the rest of its record.
pub(super) fn take_large_prompt(spec: &mut TurnSpec) -> Option<Bytes> {
    let (_, bytes) = prompt_bytes(spec.prompt.as_deref(), spec.prompt_blocks.as_deref())?;
    // Writing JSON values into memory cannot fail.
    let record_bytes = serde_json::to_vec(&spec.prompt).unwrap_or_default().len();
    if bytes.len() <= INLINE_PROMPT_BYTES_MAX && record_bytes <= 2 * INLINE_PROMPT_BYTES_MAX {
        return None;
    }
    let blocks = spec.prompt.is_none();
    spec.prompt_blob = Some(PromptBlob { bytes: bytes.len() as u64, blocks });
    (spec.prompt, spec.prompt_blocks) = (None, None);
    Some(bytes)
}

impl Admission {
    pub(super) async fn create_turn(
        &self,
        incoming: Incoming<TurnSpec>,
        options: &WriteOptions,
    ) -> Result<Admitted, Refusal> {
        let Incoming { mut object, warnings } = incoming;
        self.check_prompt(&object)?;
        let prompt = take_large_prompt(&mut object.spec);
        expect_room(&object.spec)?;
        let _one_at_a_time = self.turns.lock().await;
        let mut is_appended = false;
        let result = self
            .admit_turn(&mut object, prompt.as_ref(), warnings, options, &mut is_appended)
            .await;
        let is_surely_refused = match &result {
            Ok(_) => false,
            Err(Refusal::Unavailable { is_surely_not_applied, .. }) => *is_surely_not_applied,
            Err(_) => true,
        };
        if is_appended && is_surely_refused {
            self.drop_prompt(&object.metadata.uid).await;
        }
        result
    }

    /// Drops the stored prompt of a turn that was not made.
    pub(super) async fn drop_prompt(&self, turn: &Uid) {
        let txn = Txn::new().drop_blobs(turn.clone());
        // What cannot be dropped now is swept at the next start: nobody owns it.
        if let Err(error) = txn.commit(&**self.records.store()).await {
            tracing::warn!(%error, "the prompt of a refused turn is left for the sweep");
        }
    }

    async fn admit_turn(
        &self,
        object: &mut Turn,
        prompt: Option<&Bytes>,
        warnings: Vec<String>,
        options: &WriteOptions,
        is_appended: &mut bool,
    ) -> Result<Admitted, Refusal> {
        let has_own_name = !object.metadata.name.is_empty();
        for _ in 0..ATTEMPTS_MAX {
            let session = self.session_of(object).await?;
            object.metadata.owner_references = vec![OwnerReference::of(&session)];
            if let Some(made) = self.made_by_same_key(object, prompt, &session).await? {
                return admitted(&made, warnings, Outcome::Unchanged);
            }
            expect_live(object, &session)?;
            self.check_inbox(object, &session).await?;
            expect_idle(object, &session)?;
            if object.spec.admission == Mode::Immediate
                && let Some(why) = self.tree_exhaustion(&session).await?
            {
                return Err(no_budget(object, &why));
            }
            let mut counted = session.clone();
            counted.status.queued_turns = session.status.queued_turns.saturating_add(1);
            if has_own_name {
                self.expect_free(object).await?;
            } else {
                let (name, made) = self.next_turn_name(&session).await?;
                counted.status.turns_made = made;
                object.metadata.name = name;
                check_metadata(object)?;
            }
            if options.dry_run {
                return created(object, warnings);
            }
            if let (Some(prompt), false) = (prompt, *is_appended) {
                *is_appended = true;
                self.append_prompt(object, prompt).await?;
            }
            let mut txn = Txn::new().create(object).update(&session, &counted);
            if let Some(key) = idempotency_key(object) {
                txn = txn.guard(Guard::Absent(key));
            }
            failpoint::reach(Point::AdmitBefore);
            let attempt = match object.spec.admission {
                Mode::Queue => match self.commit_new(txn, object).await? {
                    Attempt::Done => Slotted::Done,
                    Attempt::Overtaken => Slotted::Overtaken,
                },
                Mode::Immediate => {
                    let parent = session.status.lineage.parent.as_ref();
                    self.commit_with_slot(txn, object, parent).await?
                }
            };
            match attempt {
                Slotted::Done => {
                    failpoint::reach(Point::AdmitAfter);
                    return created(object, warnings);
                }
                Slotted::Full => return Err(no_slot(object)),
                Slotted::Overtaken => {}
            }
        }
        Err(Refusal::modified(Kind::Turn, &object.metadata.name))
    }

    /// The session that a turn names.
    async fn session_of(&self, turn: &Turn) -> Result<Session, Refusal> {
        let name = &turn.spec.session;
        let namespace = &turn.metadata.namespace;
        let found = self.records.get::<SessionSpec>(namespace, name).await?;
        let is_default = namespace.as_str() == DEFAULT_NAMESPACE;
        if found.is_none() && !is_default && self.namespace(namespace).await?.is_none() {
            let name = namespace.as_str().into();
            return Err(Refusal::NotFound { kind: Kind::Namespace, name });
        }
        found.ok_or_else(|| {
            let message = format!(
                "`{name}`: there is no such session in the namespace {namespace}; make it first"
            );
            let field = FieldPath::new("spec.session");
            let error = FieldError { field, reason: FieldValueInvalid, message };
            Refusal::field(Kind::Turn, &turn.metadata.name, error)
        })
    }

    /// The turn that the same idempotency key made before.
    async fn made_by_same_key(
        &self,
        turn: &Turn,
        prompt: Option<&Bytes>,
        session: &Session,
    ) -> Result<Option<Turn>, Refusal> {
        let Some(key) = idempotency_key(turn) else { return Ok(None) };
        let used_with = |what: &str, then: &str| Refusal::Conflict {
            kind: Kind::Turn,
            name: turn.metadata.name.clone(),
            why: format!(
                "its idempotencyKey was used in the session {} {what}; {then}",
                session.metadata.name
            ),
        };
        let made = match self.records.keyed::<TurnSpec>(&key, self.clock.now().time).await? {
            Keyed::Unused => return Ok(None),
            Keyed::Made(made) => *made,
            // The file that made the turn replaces it, or puts it back.
            Keyed::Spent(spent) if is_managed(turn) && spent.name == turn.metadata.name => {
                self.records.free_key(&spent).await?;
                return Ok(None);
            }
            Keyed::Spent(spent) => {
                let what = format!("for the turn {}, which was deleted since", spent.name);
                return Err(used_with(&what, "use a new key to give the prompt again"));
            }
        };
        let mut spec = made.spec.clone();
        // What was asked for since does not make it another body.
        spec.desired_state = turn.spec.desired_state;
        let is_same = spec == turn.spec
            && match prompt {
                Some(prompt) => self.blob_is(&made, prompt).await?,
                None => true,
            };
        if is_same {
            return Ok(Some(made));
        }
        let what = format!("for the turn {} with another body", made.metadata.name);
        Err(used_with(&what, "use a new key for a new turn"))
    }

    async fn check_inbox(&self, turn: &Turn, session: &Session) -> Result<(), Refusal> {
        let prefix = keys::open_turns(&session.metadata.uid);
        let (open, _) = self.records.store().list(&prefix, None, self.limits.inbox).await?;
        if open.len() < self.limits.inbox {
            return Ok(());
        }
        Err(Refusal::TooManyRequests {
            kind: Kind::Turn,
            name: turn.metadata.name.clone(),
            why: format!(
                "the inbox of the session {} is full: {} turns wait or run; try again when one has \
                 ended, or cancel one",
                session.metadata.name, self.limits.inbox
            ),
        })
    }

    /// The name of a session's next turn and the count of turns with it. Numbers that users gave to
    /// names of their own are left out.
    pub(super) async fn next_turn_name(&self, session: &Session) -> Result<(Name, u64), Refusal> {
        let made = session.status.turns_made;
        for number in made + 1..=made + NAMES_TAKEN_MAX {
            let name = naming::turn_name(&session.metadata.name, number);
            let key = keys::record(Kind::Turn, &session.metadata.namespace, &name);
            if self.records.store().get(&key).await?.is_none() {
                return Ok((name, number));
            }
        }
        Err(Refusal::Conflict {
            kind: Kind::Session,
            name: session.metadata.name.clone(),
            why: format!("its next {NAMES_TAKEN_MAX} turn names are taken; name the turn yourself"),
        })
    }

    fn check_prompt(&self, turn: &Turn) -> Result<(), Refusal> {
        let spec = &turn.spec;
        let fault = |field, reason, message| {
            let error = FieldError { field, reason, message };
            Err(Refusal::field(Kind::Turn, &turn.metadata.name, error))
        };
        if spec.source != TurnSource::default() {
            let message = "the daemon alone says which way a turn came; leave it out".to_owned();
            return fault(FieldPath::new("spec.source"), FieldValueForbidden, message);
        }
        if spec.prompt_blob.is_some() {
            let message = "the daemon alone stores prompts as blobs; give `prompt`".to_owned();
            return fault(FieldPath::new("spec.promptBlob"), FieldValueForbidden, message);
        }
        let limit = self.limits.prompt_bytes;
        match prompt_bytes(spec.prompt.as_deref(), spec.prompt_blocks.as_deref()) {
            Some((field, bytes)) if bytes.len() > limit => {
                let message = format!("{} bytes: expected at most {limit}", bytes.len());
                fault(field, FieldValueInvalid, message)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// Writes a prompt's blob under the turn's uid, before the turn is there. A repetition is seen
    /// by its offsets.
    pub(super) async fn append_prompt(&self, turn: &Turn, prompt: &Bytes) -> Result<(), Refusal> {
        let blob = prompt_of(turn);
        let mut appends = Vec::with_capacity(prompt.len().div_ceil(BLOB_CHUNK_BYTES_MAX));
        for start in (0..prompt.len()).step_by(BLOB_CHUNK_BYTES_MAX) {
            let end = prompt.len().min(start + BLOB_CHUNK_BYTES_MAX);
            let bytes = prompt.slice(start..end);
            appends.push(Append { blob: blob.clone(), offset: start as u64, bytes });
        }
        match self.blobs.append(appends.clone()).await {
            Err(StoreError::Unknown(_)) => Ok(self.blobs.append(appends).await?),
            appended => Ok(appended?),
        }
    }

    /// Whether the stored prompt of a turn is this one.
    pub(super) async fn blob_is(&self, turn: &Turn, prompt: &Bytes) -> Result<bool, Refusal> {
        let blob = prompt_of(turn);
        // One more than wanted, so that a longer one is not taken for it.
        Ok(self.blobs.read(&blob, 0, prompt.len() + 1).await? == *prompt)
    }
}

/// Whether a manifest file makes the turn.
fn is_managed(turn: &Turn) -> bool {
    turn.metadata.annotations.contains_key(MANAGED_BY)
}

fn prompt_of(turn: &Turn) -> BlobId {
    BlobId { owner: turn.metadata.uid.clone(), stream: Stream::Prompt }
}

fn expect_live(turn: &Turn, session: &Session) -> Result<(), Refusal> {
    let name = &session.metadata.name;
    if session.spec.provider == Provider::External {
        let message = format!("`{name}`: the daemon does not run an external session");
        let field = FieldPath::new("spec.session");
        let error = FieldError { field, reason: FieldValueInvalid, message };
        return Err(Refusal::field(Kind::Turn, &turn.metadata.name, error));
    }
    match why_not_live(session) {
        None => Ok(()),
        Some(why) => Err(Refusal::Conflict {
            kind: Kind::Turn,
            name: turn.metadata.name.clone(),
            why: format!("its session {name} {why}"),
        }),
    }
}

/// A turn that must not wait needs a session without an unfinished turn.
fn expect_idle(turn: &Turn, session: &Session) -> Result<(), Refusal> {
    if turn.spec.admission == Mode::Queue || !has_unfinished_turn(session) {
        return Ok(());
    }
    Err(Refusal::TooManyRequests {
        kind: Kind::Turn,
        name: turn.metadata.name.clone(),
        why: format!(
            "the session {} has a turn that is not final, and admission: immediate does not wait; \
             wait for it, or leave admission out to queue",
            session.metadata.name
        ),
    })
}

fn no_slot(turn: &Turn) -> Refusal {
    Refusal::TooManyRequests {
        kind: Kind::Turn,
        name: turn.metadata.name.clone(),
        why: "every turn slot is taken, and admission: immediate does not wait; try again when a \
              turn has ended, or leave admission out to queue"
            .to_owned(),
    }
}

fn no_budget(turn: &Turn, why: &str) -> Refusal {
    Refusal::TooManyRequests {
        kind: Kind::Turn,
        name: turn.metadata.name.clone(),
        why: format!("{}: {}", Code::TurnBudgetExhausted, spending::refused(why)),
    }
}

fn check_metadata(turn: &Turn) -> Result<(), Refusal> {
    let mut errors = FieldErrors::default();
    metadata::check(Kind::Turn, &turn.metadata, &mut errors);
    let name = turn.metadata.name.clone();
    errors.into_result().map_err(|errors| Refusal::Invalid { kind: Kind::Turn, name, errors })
}
