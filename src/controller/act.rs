//! The steps of a plan, carried out: the only place with side effects.
//!
//! One function a step; none decides anything. Each may be run again: what a second run does is
//! said at the step's variant in `plan`.

use std::sync::Arc;

use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::acp::connection::{self, Open, Unattended, connect};
use crate::acp::roots::Roots;
use crate::api::agent::{McpServer, McpTransport};
use crate::api::session::Scope;
use crate::api::turn::TurnPhase;
use crate::api::{Agent, Incarnation, Turn, Uid};
use crate::plan::capacity::Holder;
use crate::plan::world::{
    Acp, Call, CallFailure, CallFailureKind, Finding, Live, Prompt, PromptEnd, Rung, SettingCall,
    Stage, StartFailure, Stop, StopCause,
};
use crate::plan::{Change, OpenAs, Step, World};
use crate::slots::Slots;
use crate::store::records::{self, Records, Txn};
use crate::store::{self, BlobId, Stream};

use super::live::{Entry, Registry};
use super::output;
use super::process::{LaunchError, LaunchRequest, Launched, Launcher, ProcessEvent};
use super::pump::{Pump, State};
use super::{Controller, ObjectKey, Queue};

/// How far reading runs ahead of the pump. Small: a waiting event may hold a line of 10 MiB.
const ACP_EVENTS_MAX: usize = 16;
/// The largest prompt: `limits.promptBytes` bounds it at admission, this bounds the read.
const PROMPT_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// Why a step failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// The records were not written.
    #[error("{0}")]
    Records(#[from] records::Error),
    /// A blob or the store itself failed.
    #[error("{0}")]
    Store(#[from] store::Error),
    /// Every slot is taken by now.
    #[error("every turn slot of the daemon is taken")]
    NoFreeSlot,
    /// The process that the step is for is not in the daemon's hands any more.
    #[error("the process is gone")]
    ProcessGone,
    /// The turn's uid is in the journal: it may have been sent, and is never sent again.
    #[error("the turn's prompt may have been sent before; it is not sent again")]
    InJournal,
    /// The journal could not be written.
    #[error("the journal could not be written: {0}")]
    Journal(String),
    /// The agent cannot take the call now.
    #[error("the call could not be made: {0}")]
    Refused(#[from] connection::Refused),
    /// The prompt cannot be read as content blocks.
    #[error("the prompt could not be read: {0}")]
    Prompt(String),
}

impl Error {
    /// Whether the world has just changed: look again at once, it is no failure.
    pub(super) const fn is_stale_world(&self) -> bool {
        matches!(
            self,
            Self::Records(records::Error::Store(store::Error::Conflict { .. }))
                | Self::NoFreeSlot
                | Self::ProcessGone
                | Self::InJournal
        )
    }
}

impl Controller {
    /// Carries out one step.
    pub(super) async fn act(
        &self,
        key: &ObjectKey,
        world: &World,
        step: &Step,
    ) -> Result<(), Error> {
        let session = &world.session.metadata.uid;
        match step {
            Step::Record(change) => self.record(world, change).await,
            Step::Launch { incarnation } => self.launch(key, world, *incarnation).await,
            Step::OpenGate => {
                let entry = self.entry(session)?;
                entry.control.open_gate();
                entry.view().stage = Stage::Running;
                Ok(())
            }
            Step::Initialize => {
                let entry = self.entry(session)?;
                entry.view().acp.initialize = Call::InFlight;
                entry.acp.initialize().inspect_err(|_| {
                    entry.view().acp.initialize = Call::NotMade;
                })?;
                Ok(())
            }
            Step::Open(how) => self.open(world, how),
            Step::Set { turn, setting, wanted } => {
                let entry = self.entry(session)?;
                let before = entry.view().acp.options.clone();
                entry.view().acp.setting = Some(Box::new(SettingCall {
                    turn: turn.clone(),
                    setting: setting.clone(),
                    wanted: (**wanted).clone(),
                    before,
                    asked_at: self.clock.now().mono,
                }));
                entry.acp.set(setting.clone()).inspect_err(|_| entry.view().acp.setting = None)?;
                Ok(())
            }
            Step::Submit { turn } => self.submit(world, turn).await,
            Step::CancelPrompt { turn } => {
                let entry = self.entry(session)?;
                entry.acp.cancel()?;
                let now = self.clock.now().mono;
                if let Some(prompt) = entry.view().prompt.as_mut().filter(|p| p.turn == *turn) {
                    prompt.cancel_asked_at = Some(now);
                }
                Ok(())
            }
            Step::Stop { rung, cause } => self.take_rung(session, *rung, cause),
            Step::Forget => {
                self.registry.forget(session);
                // What waits for this very process to go is looked at again.
                self.queue.add(key.clone(), crate::api::report::Trigger::Process);
                Ok(())
            }
        }
    }

    /// The record of a session is gone. A process that is left of it (the store was put back to an
    /// older state) goes too.
    pub(super) fn abandon(&self, key: &ObjectKey) {
        for (uid, entry) in self.registry.of_key(key) {
            if matches!(entry.view().stage, Stage::Empty { .. }) {
                self.registry.forget(&uid);
            } else {
                tracing::warn!(session = %key, %uid, "a process without a record is killed");
                entry.control.kill_tree();
            }
        }
    }

    /// Writes who holds the slots, beside any pass.
    pub(super) async fn write_holders(
        &self,
        slots: &mut Slots,
        holders: Vec<Holder>,
    ) -> Result<(), records::Error> {
        let txn = slots.write(Txn::new(), &holders);
        slots.begin();
        let rev = txn.commit(self.records.store().as_ref()).await?;
        slots.written(holders, rev);
        Ok(())
    }

    fn entry(&self, session: &Uid) -> Result<Arc<Entry>, Error> {
        self.registry.entry(session).ok_or(Error::ProcessGone)
    }

    async fn record(&self, world: &World, change: &Change) -> Result<(), Error> {
        let parent = world.session.status.lineage.parent.as_ref();
        let mut slots = self.slots.lock().await;
        slots.refresh(self.records.store()).await?;
        if let Some(turn) = &change.take_slot
            && !slots.holds(turn)
            && !slots.has_free(parent, self.options.limits)
        {
            return Err(Error::NoFreeSlot);
        }
        let holders = slots.after(change.take_slot.as_ref(), &change.free_slots, parent);
        let mut txn = transaction(world, change);
        if let Some(turn) = &change.take_slot {
            // Before the commit: if its outcome stays unknown, the turn counts as taken here.
            self.take(turn.clone());
        }
        let outcome = if let Some(holders) = holders {
            txn = slots.write(txn, &holders);
            slots.begin();
            let outcome = txn.commit(self.records.store().as_ref()).await;
            if let Ok(rev) = &outcome {
                slots.written(holders, *rev);
            }
            drop(slots);
            outcome
        } else {
            drop(slots);
            txn.commit(self.records.store().as_ref()).await
        };
        if let (Err(error), Some(turn)) = (&outcome, &change.take_slot)
            && !matches!(error, records::Error::Store(store::Error::Unknown(_)))
        {
            self.untake(turn);
        }
        outcome?;
        self.after_record(world, change);
        Ok(())
    }

    /// What follows from a commit that happened: turns that ended or wait again are not ours any
    /// more, ended ones leave the journal, and people are told. Waits for nothing, so that a pass
    /// is not given up between a record and what it was the intention of.
    fn after_record(&self, world: &World, change: &Change) {
        for turn in change.turns.iter().chain(&change.remove_turns) {
            if is_let_go(turn) {
                self.untake(&turn.metadata.uid);
            }
            if turn.status.phase.is_final() {
                let (journal, uid) = (Arc::clone(&self.journal), turn.metadata.uid.clone());
                self.spawn(async move {
                    if let Err(error) = journal.settle(&uid).await {
                        tracing::warn!(turn = %uid, %error, "the journal could not be trimmed");
                    }
                });
            }
        }
        self.reporter.events_of(world, change, self.clock.now().time);
    }

    async fn launch(
        &self,
        key: &ObjectKey,
        world: &World,
        incarnation: Incarnation,
    ) -> Result<(), Error> {
        let session = &world.session;
        let uid = &session.metadata.uid;
        if self.registry.knows(uid, incarnation) {
            return Ok(());
        }
        let (Finding::Found(agent), Finding::Found(scope)) = (&world.agent, &world.scope) else {
            return Err(Error::ProcessGone);
        };
        let instance = crate::plan::instance(&world.daemon.store_id, uid.as_str(), incarnation.0);
        let mut session = session.clone();
        session.status.incarnation = incarnation;
        let request =
            LaunchRequest { session, agent: (**agent).clone(), scope: (**scope).clone(), instance };
        self.registry.starting(uid.clone(), incarnation);
        // A start goes on if the pass is given up: what it brings is claimed, or killed and waited
        // for. Until then a process may exist, and the planner is told so.
        let (sender, started) = oneshot::channel();
        let start = Start {
            launcher: Arc::clone(&self.launcher),
            registry: Arc::clone(&self.registry),
            queue: Arc::clone(&self.queue),
            key: key.clone(),
            session: uid.clone(),
        };
        self.spawn(start.run(request, sender));
        match started.await {
            Ok(Ok(launched)) => self.adopt(key, world, incarnation, agent, scope, launched),
            Ok(Err(error)) => {
                let failure = StartFailure { reason: error.reason, message: error.message };
                self.registry.not_started(uid.clone(), failure);
            }
            // It panicked: nothing is known of a process.
            Err(_) => tracing::error!(session = %key, "a start ended without an outcome"),
        }
        self.queue.add(key.clone(), crate::api::report::Trigger::Process);
        Ok(())
    }

    /// Takes a started process into the daemon's hands.
    fn adopt(
        &self,
        key: &ObjectKey,
        world: &World,
        incarnation: Incarnation,
        agent: &Agent,
        scope: &Scope,
        launched: Launched,
    ) {
        let now = self.clock.now();
        let spec = &world.session.spec;
        let permissions =
            spec.permissions.unwrap_or(agent.spec.permissions).min(agent.spec.permissions);
        let mut roots = vec![std::path::PathBuf::from(&scope.cwd)];
        roots.extend(scope.additional_directories.iter().map(Into::into));
        let options = connection::Options {
            permissions,
            unattended: Unattended::Reject,
            roots: Roots::new(roots),
            category_map: agent.spec.category_map.clone(),
            additional_directories: agent.spec.additional_directories,
            clock: Arc::clone(&self.clock),
        };
        let (events, acp_events) = mpsc::channel(ACP_EVENTS_MAX);
        let (handle, service) = connect(launched.stdin, launched.stdout, options, events);
        let stderr = crate::runtime::stderr::Ring::default();
        let view = Live {
            incarnation,
            stage: Stage::Gated { identity: launched.identity },
            pid: None,
            launched_at: now.mono,
            acp: Acp::default(),
            prompt: None,
            stop: None,
            last_activity: now.mono,
            is_tool_running: false,
            is_active_after_turn: false,
            stderr_tail: String::new(),
            noise_lines: 0,
        };
        let entry = Arc::new(Entry::new(
            key.clone(),
            agent.clone(),
            view,
            handle,
            launched.control,
            stderr.clone(),
        ));
        self.registry.insert(world.session.metadata.uid.clone(), Arc::clone(&entry));
        let stderr_end = CancellationToken::new();
        let pump = Pump {
            key: key.clone(),
            entry,
            registry: Arc::clone(&self.registry),
            queue: Arc::clone(&self.queue),
            blobs: Arc::clone(&self.blobs),
            records: self.records.clone(),
            clock: Arc::clone(&self.clock),
            acp: acp_events,
            process: launched.events,
            stderr_end: stderr_end.clone(),
            state: State::default(),
        };
        let drain = async move {
            if let Err(error) = stderr.drain(launched.stderr).await {
                tracing::debug!(%error, "standard error could not be read to its end");
            }
            stderr_end.cancel();
        };
        self.spawn(async move {
            tokio::join!(service.run(), pump.run(), drain);
        });
    }

    fn open(&self, world: &World, how: &OpenAs) -> Result<(), Error> {
        let session = &world.session;
        let entry = self.entry(&session.metadata.uid)?;
        let Finding::Found(agent) = &world.agent else { return Err(Error::ProcessGone) };
        let Some(scope) = session.status.scope.as_ref() else { return Err(Error::ProcessGone) };
        let takes_http = match &entry.view().acp.initialize {
            Call::Done(initialized) => initialized.capabilities.mcp_http,
            Call::NotMade | Call::InFlight | Call::Failed(_) => false,
        };
        let scope = connection::Scope {
            cwd: scope.cwd.clone(),
            additional_directories: scope.additional_directories.clone(),
            mcp_servers: mcp_servers(
                &session.spec.mcp_servers,
                &agent.spec.mcp_servers,
                takes_http,
            ),
        };
        let open = match how.clone() {
            OpenAs::New => Open::New(scope),
            OpenAs::Resume(acp_session_id) => Open::Resume { acp_session_id, scope },
            OpenAs::Load(acp_session_id) => Open::Load { acp_session_id, scope },
        };
        {
            let mut view = entry.view();
            view.acp.opened_as = Some(how.clone());
            view.acp.open = Call::InFlight;
        }
        entry.acp.open(open).inspect_err(|_| entry.view().acp.open = Call::NotMade)?;
        Ok(())
    }

    async fn submit(&self, world: &World, turn: &Uid) -> Result<(), Error> {
        let entry = self.entry(&world.session.metadata.uid)?;
        let Some(open) = world.turns.iter().find(|open| open.record.metadata.uid == *turn) else {
            return Err(Error::ProcessGone);
        };
        if self.journal.contains(turn) {
            return Err(Error::InJournal);
        }
        let blocks = self.blocks(&open.record).await?;
        self.journal.record(turn).await.map_err(|error| Error::Journal(error.to_string()))?;
        let now = self.clock.now().mono;
        {
            let mut view = entry.view();
            view.last_activity = now;
            view.is_active_after_turn = false;
            view.prompt = Some(Prompt {
                turn: turn.clone(),
                written_at: None,
                cancel_asked_at: None,
                end: None,
                response_bytes: 0,
                steps: 0,
                persist_failure: None,
            });
        }
        *entry.activity() =
            crate::ports::LiveActivity { turn: Some(turn.clone()), ..Default::default() };
        if let Err(refused) = entry.acp.prompt(turn.clone(), blocks) {
            // Surely not written, and never will be: its uid is in the journal.
            let message = format!("the prompt could not be given to the agent: {refused}");
            let failure = CallFailure { kind: CallFailureKind::NeverWritten, code: 0, message };
            if let Some(prompt) = entry.view().prompt.as_mut().filter(|p| p.turn == *turn) {
                prompt.end =
                    Some(PromptEnd { answer: Err(failure), is_after_cancel: false, usage: None });
            }
            self.queue.add(entry.key.clone(), crate::api::report::Trigger::Process);
        }
        Ok(())
    }

    /// A turn's prompt as a JSON list of content blocks.
    async fn blocks(&self, turn: &Turn) -> Result<Box<RawValue>, Error> {
        let fault = |error: serde_json::Error| Error::Prompt(error.to_string());
        let text_block = |text: &str| serde_json::json!([{"type": "text", "text": text}]);
        let spec = &turn.spec;
        if let Some(text) = &spec.prompt {
            return serde_json::value::to_raw_value(&text_block(text)).map_err(fault);
        }
        if let Some(blocks) = &spec.prompt_blocks {
            return serde_json::value::to_raw_value(blocks).map_err(fault);
        }
        let Some(stored) = &spec.prompt_blob else {
            return Err(Error::Prompt("the turn has none".to_owned()));
        };
        let blob = BlobId { owner: turn.metadata.uid.clone(), stream: Stream::Prompt };
        let bytes =
            output::read_whole(&self.blobs, &blob, stored.bytes.min(PROMPT_BYTES_MAX)).await?;
        let text = String::from_utf8(bytes).map_err(|error| Error::Prompt(error.to_string()))?;
        if stored.blocks {
            RawValue::from_string(text).map_err(fault)
        } else {
            serde_json::value::to_raw_value(&text_block(&text)).map_err(fault)
        }
    }

    fn take_rung(&self, session: &Uid, rung: Rung, cause: &StopCause) -> Result<(), Error> {
        let entry = self.entry(session)?;
        let now = self.clock.now().mono;
        {
            let mut view = entry.view();
            let killed_before = view.stop.as_ref().filter(|stop| stop.rung == Rung::Kill);
            let unconfirmed = killed_before.map_or(0, |stop| stop.unconfirmed.saturating_add(1));
            view.stop = Some(Stop { rung, since: now, unconfirmed, cause: cause.clone() });
            if rung == Rung::Cancel
                && let Some(prompt) = &mut view.prompt
            {
                prompt.cancel_asked_at = Some(now);
            }
            if rung == Rung::Close {
                view.acp.close = Call::InFlight;
            }
        }
        // A connection that takes no call any more is climbed past by the ladder's own clock.
        match rung {
            Rung::Cancel => drop(entry.acp.cancel()),
            Rung::Close => drop(entry.acp.close_session()),
            Rung::Eof => entry.acp.close_stdin(),
            Rung::Term => entry.control.terminate(),
            Rung::Kill => entry.control.kill_tree(),
        }
        Ok(())
    }
}

/// A start of a process, which outlives the pass that asked for it.
struct Start {
    launcher: Arc<dyn Launcher>,
    registry: Arc<Registry>,
    queue: Arc<Queue>,
    key: ObjectKey,
    session: Uid,
}

impl Start {
    async fn run(
        self,
        request: LaunchRequest,
        claimed_by: oneshot::Sender<Result<Launched, LaunchError>>,
    ) {
        let unclaimed = match claimed_by.send(self.launcher.launch(request).await) {
            Ok(()) => return,
            Err(outcome) => outcome,
        };
        let message = match unclaimed {
            Ok(mut launched) => {
                launched.control.kill_tree();
                loop {
                    match launched.events.next().await {
                        Some(ProcessEvent::TreeEmpty) => break,
                        Some(_) => {}
                        // Not proven gone, and nobody left to tell: it counts as running.
                        None => return,
                    }
                }
                "the launch took too long; what it started was killed".to_owned()
            }
            Err(error) => error.message,
        };
        let failure = StartFailure { reason: "LaunchTimeout", message };
        self.registry.not_started(self.session, failure);
        self.queue.add(self.key, crate::api::report::Trigger::Process);
    }
}

/// Whether a turn, as it was just recorded, is not in this daemon's hands (any more).
const fn is_let_go(turn: &Turn) -> bool {
    turn.status.phase.is_final() || matches!(turn.status.phase, TurnPhase::Pending)
}

/// Removes what was written for a turn that went in the same moment. What fails here is removed by
/// the sweep at the next start.
pub(super) async fn drop_blobs(records: &Records, turn: Uid) {
    let txn = Txn::new().drop_blobs(turn);
    if let Err(error) = txn.commit(records.store().as_ref()).await {
        tracing::warn!(%error, "late output of a turn that is gone could not be removed");
    }
}

/// Writes an agent's status over what was seen of it.
pub(super) async fn record_agent(
    records: &Records,
    seen: &Agent,
    wanted: &Agent,
) -> Result<(), Error> {
    Txn::new().update(seen, wanted).commit(records.store().as_ref()).await?;
    Ok(())
}

/// The commit of a change: every record by compare-and-swap on what the world holds.
fn transaction(world: &World, change: &Change) -> Txn {
    let mut txn = Txn::new();
    if change.removes_session {
        txn = txn.remove(&world.session);
    } else if let Some(session) = &change.session {
        txn = txn.update(&world.session, session);
    } else {
        // Turns are decided on what the session was: it must still be so.
        txn = txn.unchanged(&world.session);
    }
    if let (Some(agent), Finding::Found(seen)) = (&change.agent, &world.agent) {
        txn = txn.update(seen, agent);
    }
    for turn in &change.turns {
        let seen = world.turns.iter().find(|open| open.record.metadata.uid == turn.metadata.uid);
        if let Some(seen) = seen {
            txn = txn.update(&seen.record, turn);
        }
    }
    for turn in &change.remove_turns {
        let open = world.turns.iter().map(|open| &open.record);
        let stored = world.below.iter().flatten();
        let seen = open.chain(stored).find(|seen| seen.metadata.uid == turn.metadata.uid);
        if let Some(seen) = seen {
            txn = txn.remove(seen);
        }
    }
    txn
}

/// The servers of a session: its own, then the agent's, by name; without those that the agent
/// cannot reach.
fn mcp_servers(session: &[McpServer], agent: &[McpServer], takes_http: bool) -> Vec<McpServer> {
    let mut servers: Vec<McpServer> = Vec::new();
    for server in session.iter().chain(agent) {
        let is_taken = servers.iter().any(|other| other.name == server.name);
        let is_reachable = server.transport == McpTransport::Stdio || takes_http;
        if !is_taken && is_reachable {
            servers.push(server.clone());
        }
    }
    servers
}
