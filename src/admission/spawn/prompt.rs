//! A turn for a caller: every check in its order, then one commit.

use bytes::Bytes;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::bounds::TreeUse;
use super::child::Wish;
use super::end::overtaken;
use super::within::Grant;
use super::{Made, PromptRequest, Prompted, SpawnRefusal};
use crate::admission::session::{has_unfinished_turn, why_not_live};
use crate::admission::slot::Slotted;
use crate::admission::turn::take_large_prompt;
use crate::admission::{ATTEMPTS_MAX, Admission, Caller};
use crate::api::turn::{Admission as Mode, SourceKind, TurnSource};
use crate::api::{
    AgentSpec, Code, Name, Namespace, ObjectMeta, OwnerReference, Session, SessionSpec, Spec as _,
    Turn, TurnSpec, hex,
};
use crate::failpoint::{self, Point};
use crate::ports::Inputs;
use crate::store::records::{Keyed, Txn, idempotency_key};
use crate::store::{Guard, Rev, keys};

/// What a request comes to: refused in an answer of its own, or a turn to write.
enum Checked {
    Answer(Prompted),
    Write(Box<Draft>),
}

/// Everything that one commit writes.
struct Draft {
    parent: Session,
    /// The child as it was read; none for a new one.
    known: Option<Session>,
    child: Session,
    turn: Turn,
    tree: Option<(TreeUse, Option<Rev>)>,
}

impl Admission {
    /// Admits a turn of a new or a known child of the caller.
    ///
    /// # Errors
    ///
    /// [`SpawnRefusal`]; nothing was written.
    ///
    /// # Cancel safety
    ///
    /// The turn may or may not have been made; see [`Admission::create`].
    pub async fn prompt(
        &self,
        caller: &Caller,
        request: PromptRequest,
        inputs: &dyn Inputs,
    ) -> Result<Prompted, SpawnRefusal> {
        let (spec, prompt) = self.check_input(caller, &request)?;
        let mut turn = Turn::new(ObjectMeta::default(), spec);
        let mut wish = wish_of(&request);
        if request.session.is_none() && self.answered_before(caller, &turn).await?.is_none() {
            self.pre_create(caller, &mut wish, inputs).await?;
        }
        let _one_at_a_time = self.turns.lock().await;
        let mut is_appended = false;
        turn.metadata.uid = self.uids.make();
        let outcome = Box::pin(self.admit_prompt(
            caller,
            (&request, &wish),
            inputs,
            &mut turn,
            prompt.as_ref(),
            &mut is_appended,
        ))
        .await;
        let is_made = match &outcome {
            Ok(Prompted::Turn(made)) => !made.is_repeat,
            Ok(_) => false,
            // It may have been written all the same: the sweep at start decides.
            Err(refusal) => refusal.code == Code::SpawnStoreUnavailable,
        };
        if is_appended && !is_made {
            self.drop_prompt(&turn.metadata.uid).await;
        }
        outcome
    }

    async fn admit_prompt(
        &self,
        caller: &Caller,
        (request, wish): (&PromptRequest, &Wish),
        inputs: &dyn Inputs,
        turn: &mut Turn,
        prompt: Option<&Bytes>,
        is_appended: &mut bool,
    ) -> Result<Prompted, SpawnRefusal> {
        for _ in 0..ATTEMPTS_MAX {
            let draft = match self.check(caller, (request, wish), inputs, turn).await? {
                Checked::Answer(answer) => return Ok(answer),
                Checked::Write(draft) => *draft,
            };
            *turn = draft.turn;
            if !self.records.store().has_room() {
                return Err(disk_is_full());
            }
            if let (Some(prompt), false) = (prompt, *is_appended) {
                *is_appended = true;
                self.append_prompt(turn, prompt).await?;
            }
            let mut txn = Txn::new().unchanged(&draft.parent).create(turn);
            txn = match &draft.known {
                Some(known) => txn.update(known, &draft.child),
                None => txn.create(&draft.child),
            };
            if let Some((tree, rev)) = &draft.tree {
                txn = write_tree(txn, &draft.child, tree, *rev);
            }
            if let Some(key) = idempotency_key(turn) {
                txn = txn.guard(Guard::Absent(key));
            }
            failpoint::reach(Point::ChildBefore);
            match self.commit_with_slot(txn, turn, Some(&caller.session)).await? {
                Slotted::Done => {
                    failpoint::reach(Point::ChildAfter);
                    if draft.known.is_none() {
                        self.tell_created(&draft.child);
                    }
                    return Ok(Prompted::Turn(Box::new(Made {
                        is_new_session: draft.known.is_none(),
                        session: draft.child,
                        turn: turn.clone(),
                        is_repeat: false,
                    })));
                }
                Slotted::Full => return Ok(Prompted::Full),
                Slotted::Overtaken => {}
            }
        }
        Err(overtaken())
    }

    /// What is wrong with the input itself, whatever the store holds; and the turn's spec, without
    /// its session, with the prompt beside it if it is a large one.
    fn check_input(
        &self,
        caller: &Caller,
        request: &PromptRequest,
    ) -> Result<(TurnSpec, Option<Bytes>), SpawnRefusal> {
        if request.session.is_some() {
            let fixed =
                "a session keeps its scope and its ttl; leave it out, or leave sessionId out";
            if request.folder.is_some() {
                return Err(SpawnRefusal::invalid("folderId", fixed));
            }
            if request.ttl.is_some() {
                return Err(SpawnRefusal::invalid("ttl", fixed));
            }
        }
        let (bytes, limit) = (request.prompt.len(), self.limits.prompt_bytes);
        if bytes > limit {
            let why = format!("{bytes} bytes: expected at most {limit}");
            return Err(SpawnRefusal::invalid("prompt", why));
        }
        let mut spec = TurnSpec {
            // Its name is not known yet, and its syntax is the daemon's own.
            session: caller.name.clone(),
            prompt: Some(request.prompt.clone()),
            admission: Mode::Immediate,
            background: request.background,
            model: request.model.clone(),
            thought_level: request.thought_level.clone(),
            config: request.config.clone(),
            source: TurnSource {
                kind: SourceKind::Spawn,
                caller: Some(caller.session.clone()),
                request_sha256: Some(fingerprint(request)),
            },
            idempotency_key: request.idempotency_key.clone(),
            ..TurnSpec::default()
        };
        if let Err(errors) = spec.validate() {
            let named: Vec<String> = errors
                .0
                .iter()
                .map(|error| format!("{}: {}", input_name(error.field.as_str()), error.message))
                .collect();
            return Err(SpawnRefusal::new(Code::SpawnInvalidRequest, named.join("; ")));
        }
        let prompt = take_large_prompt(&mut spec);
        if crate::admission::expect_room(&spec).is_err() {
            let why = "with the prompt these are more than a request may hold; leave some out";
            return Err(SpawnRefusal::invalid("config", why));
        }
        Ok((spec, prompt))
    }

    /// Every check that needs the store, in their order.
    async fn check(
        &self,
        caller: &Caller,
        (request, wish): (&PromptRequest, &Wish),
        inputs: &dyn Inputs,
        turn: &Turn,
    ) -> Result<Checked, SpawnRefusal> {
        let parent = self.live_caller(caller).await?;
        if let Some(answer) = self.answered_before(caller, turn).await? {
            return Ok(Checked::Answer(answer));
        }
        let (known, mut child) = match &request.session {
            Some(uid) => {
                let Some(known) = self.child(caller, uid).await? else {
                    return Ok(Checked::Answer(Prompted::NotFound(uid.clone())));
                };
                if !has_unfinished_turn(&known) && why_not_live(&known).is_some() {
                    return Ok(Checked::Answer(Prompted::Expired(Box::new(known))));
                }
                check_known(&known, request, inputs)?;
                (Some(known.clone()), known)
            }
            None => {
                self.expect_usable_agent(&wish.spec.agent, inputs).await?;
                (None, Box::pin(self.new_child(&parent, wish, inputs)).await?)
            }
        };
        self.check_children(&parent).await?;
        self.check_tree_budget(&parent).await?;
        let tree = match known {
            Some(_) => None,
            None => Some(self.count_in_tree(&child).await?),
        };
        if has_unfinished_turn(&child) {
            return Ok(Checked::Answer(Prompted::Busy(Box::new(child))));
        }
        let mut turn = turn.clone();
        let (name, made) = self.next_turn_name(&child).await?;
        child.status.turns_made = made;
        child.status.queued_turns = child.status.queued_turns.saturating_add(1);
        turn.spec.session = child.metadata.name.clone();
        turn.metadata = ObjectMeta {
            name,
            namespace: child.metadata.namespace.clone(),
            uid: turn.metadata.uid,
            generation: 1,
            creation_timestamp: Some(self.clock.now().time),
            owner_references: vec![OwnerReference::of(&child)],
            ..ObjectMeta::default()
        };
        Ok(Checked::Write(Box::new(Draft { parent, known, child, turn, tree })))
    }

    /// What an earlier call with the same key made; nothing is sent again, even if that is gone.
    async fn answered_before(
        &self,
        caller: &Caller,
        turn: &Turn,
    ) -> Result<Option<Prompted>, SpawnRefusal> {
        let Some(key) = idempotency_key(turn) else { return Ok(None) };
        let keyed = self.records.keyed::<TurnSpec>(&key, self.clock.now().time).await?;
        let used_with = match &keyed {
            Keyed::Unused => return Ok(None),
            Keyed::Made(made) => &made.spec.source.request_sha256,
            Keyed::Spent(spent) => &spent.request_sha256,
        };
        if *used_with != turn.spec.source.request_sha256 {
            return Err(SpawnRefusal::new(
                Code::SpawnIdempotencyConflict,
                "idempotencyKey: it was used with another input; use a new key for a new request",
            ));
        }
        let made = match keyed {
            Keyed::Unused => return Ok(None),
            Keyed::Made(made) => *made,
            Keyed::Spent(spent) => return Ok(Some(Prompted::NotFound(spent.session))),
        };
        let session =
            self.records.get::<SessionSpec>(&made.metadata.namespace, &made.spec.session).await?;
        let session = session.filter(|session| super::is_child_of(session, caller));
        Ok(session.map(|session| {
            let made = Made { session, turn: made, is_new_session: false, is_repeat: true };
            Prompted::Turn(Box::new(made))
        }))
    }

    pub(super) async fn expect_usable_agent(
        &self,
        name: &str,
        inputs: &dyn Inputs,
    ) -> Result<(), SpawnRefusal> {
        let found = self.records.get::<AgentSpec>(&Namespace::default(), &Name::from(name)).await?;
        if found.is_some_and(|agent| super::is_usable(&agent, inputs)) {
            return Ok(());
        }
        let why =
            format!("agentId: {name:?} is no agent that can be used; available_agents lists them");
        Err(SpawnRefusal::new(Code::SpawnAgentNotFound, why))
    }

    /// A parent's children with an unfinished turn are those that hold a slot.
    pub(super) async fn check_children(&self, parent: &Session) -> Result<(), SpawnRefusal> {
        let most = parent.spec.delegation.max_children as usize;
        let mut slots = self.slots.lock().await;
        slots.refresh(self.records.store()).await?;
        let parent = Some(&parent.metadata.uid);
        let running = slots.holders().iter().filter(|holder| holder.parent.as_ref() == parent);
        if running.count() < most {
            return Ok(());
        }
        Err(SpawnRefusal::new(
            Code::SpawnChildrenExceeded,
            format!(
                "{most} children have an unfinished turn, the most that this session's \
                 delegation.maxChildren allows; wait for one, or cancel one"
            ),
        ))
    }

    /// What the tree uses with this child in it, and the revision that it was read at.
    pub(super) async fn count_in_tree(
        &self,
        child: &Session,
    ) -> Result<(TreeUse, Option<Rev>), SpawnRefusal> {
        let Some(root) = &child.status.lineage.root else { return Ok((TreeUse::default(), None)) };
        let record = self.records.store().get(&keys::quota_root(root)).await?;
        let rev = record.as_ref().map(|record| record.rev);
        let mut tree: TreeUse = record
            .and_then(|record| serde_json::from_slice(&record.value).ok())
            .unwrap_or_default();
        let most = self.limits.children_per_root;
        if tree.is_full(most) {
            let mut running = Vec::with_capacity(tree.sessions.len());
            for uid in std::mem::take(&mut tree.sessions) {
                let found = self.records.by_uid::<SessionSpec>(&uid).await?;
                if found.is_some_and(|session| can_run(&session)) {
                    running.push(uid);
                }
            }
            tree.sessions = running;
        }
        if tree.is_full(most) {
            return Err(SpawnRefusal::new(
                Code::SpawnChildrenExceeded,
                format!(
                    "this tree of sessions has {most} that can still run, the most that \
                     limits.maxChildrenTotalPerRoot allows; go on with an idle one, or wait until one \
                     hibernates or ends"
                ),
            ));
        }
        let now = self.clock.now().time;
        tree.add(&child.metadata.uid, now, self.limits.spawns_per_minute_per_root)?;
        Ok((tree, rev))
    }
}

/// Whether a session counts in its tree: neither final nor hibernated.
fn can_run(session: &Session) -> bool {
    let status = &session.status;
    let is_hibernated =
        status.process.is_none() && status.prompted && !has_unfinished_turn(session);
    status.finished_at.is_none() && !is_hibernated
}

/// What a request may not ask of a child that is there.
fn check_known(
    known: &Session,
    request: &PromptRequest,
    inputs: &dyn Inputs,
) -> Result<(), SpawnRefusal> {
    if known.spec.agent != request.agent {
        let why = format!(
            "{:?}: this session runs {:?}; name that, or leave sessionId out for a new session",
            request.agent, known.spec.agent
        );
        return Err(SpawnRefusal::invalid("agentId", why));
    }
    // A process that is there has its directories; a new one needs them.
    match &known.status.scope {
        Some(scope) if known.status.process.is_none() => inputs
            .directories(&scope.cwd, &scope.additional_directories)
            .map(drop)
            .map_err(|why| SpawnRefusal::new(Code::SessionFolderPathMissing, why)),
        Some(_) | None => Ok(()),
    }
}

/// Nothing new is taken while there is no room for it.
pub(super) fn disk_is_full() -> SpawnRefusal {
    SpawnRefusal::new(
        Code::SpawnStoreUnavailable,
        "the disk of the daemon is full: nothing new is taken until space is freed; status, \
         responses and cancels still work",
    )
}

/// The child that a prompt without a session asks for.
fn wish_of(request: &PromptRequest) -> Wish {
    let spec = SessionSpec {
        agent: request.agent.clone(),
        folder: request.folder.clone(),
        ttl: request.ttl,
        ..SessionSpec::default()
    };
    Wish { metadata: ObjectMeta::default(), spec, is_ttl_required: false, grant: Grant::default() }
}

pub(super) fn write_tree(txn: Txn, child: &Session, tree: &TreeUse, rev: Option<Rev>) -> Txn {
    let Some(root) = &child.status.lineage.root else { return txn };
    let key = keys::quota_root(root);
    let guard = match rev {
        Some(rev) => Guard::RevIs(key.clone(), rev),
        None => Guard::Absent(key.clone()),
    };
    // Uids and numbers: they always have a JSON form.
    txn.guard(guard).put_raw(key, serde_json::to_vec(tree).unwrap_or_default())
}

/// The tool's name of a field of the record.
fn input_name(field: &str) -> String {
    let field = field.strip_prefix("spec.").unwrap_or(field);
    match field.strip_prefix("thoughtLevel") {
        Some(rest) => format!("thought_level{rest}"),
        None => field.to_owned(),
    }
}

/// What a repetition must have in common with the first call: everything that was asked for.
fn fingerprint(request: &PromptRequest) -> String {
    let PromptRequest {
        agent,
        prompt,
        session,
        folder,
        model,
        thought_level,
        config,
        background,
        ttl,
        idempotency_key: _,
    } = request;
    let asked =
        json!([agent, prompt, session, folder, model, thought_level, config, background, ttl]);
    hex(&Sha256::digest(asked.to_string().as_bytes()))
}
