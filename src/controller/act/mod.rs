//! The steps of a plan, carried out: the only place with side effects.
//!
//! One function a step; none decides anything. Each may be run again: what a second run does is
//! said at the step's variant in `plan`.

mod grant;
mod launch;
mod permission;
mod points;
mod prompt;
mod stalled;
mod tell;

use std::sync::Arc;

use crate::acp::connection::{self, Open};
use crate::api::agent::{McpServer, McpTransport};
use crate::api::session::Capabilities;
use crate::api::token::SecretToken;
use crate::api::turn::TurnPhase;
use crate::api::{Agent, Time, Turn, Uid};
use crate::failpoint::{self, Point};
use crate::plan::capacity::Holder;
use crate::plan::introduction;
use crate::plan::world::{Call, Finding, Rung, SettingCall, Stage, Stop, StopCause};
use crate::plan::{Change, OpenAs, Step, World};
use crate::slots::Slots;
use crate::store;
use crate::store::records::{self, Records, Txn};

use super::live::Entry;
use super::{Controller, ObjectKey, requests, trees};

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
    /// No token could be made.
    #[error("the system gives no random bytes: {0}")]
    NoRandomness(String),
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
    /// Carries out one step. `granted` is the token that an earlier step of the pass made.
    pub(super) async fn act(
        &self,
        key: &ObjectKey,
        world: &World,
        step: &Step,
        granted: &mut Option<SecretToken>,
    ) -> Result<(), Error> {
        let session = &world.session.metadata.uid;
        match step {
            Step::Record(change) => self.record_and_grant(world, change, granted).await,
            Step::Launch { incarnation } => {
                self.launch(key, world, *incarnation, granted.take()).await
            }
            Step::OpenGate => {
                let entry = self.entry(session)?;
                entry.control.open_gate();
                failpoint::reach(Point::GateOpen);
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
            Step::Authenticate { method } => {
                let entry = self.entry(session)?;
                entry.view().acp.login = Call::InFlight;
                entry.acp.authenticate(method).inspect_err(|_| {
                    entry.view().acp.login = Call::NotMade;
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
            Step::Submit { turn, budget } => self.submit(world, turn, budget).await,
            Step::CancelPrompt { turn } => {
                let entry = self.entry(session)?;
                entry.acp.cancel()?;
                let now = self.clock.now().mono;
                if let Some(prompt) = entry.view().prompt.as_mut().filter(|p| p.turn == *turn) {
                    prompt.cancel_asked_at = Some(now);
                }
                Ok(())
            }
            Step::AnswerPermission { request, answer } => self.answer(session, *request, *answer),
            Step::Stop { rung, cause } => self.take_rung(session, *rung, cause),
            Step::Forget => {
                self.registry.forget(session);
                self.idle.forget(session);
                // What waits for this very process to go is looked at again.
                self.queue.add(key.clone(), crate::api::report::Trigger::Process);
                Ok(())
            }
            Step::Tell(turns) => {
                self.tell(key, world, turns);
                Ok(())
            }
        }
    }

    /// Writes what a plan records, with what only the machine can make: uids, and the token of a run
    /// that delegates.
    async fn record_and_grant(
        &self,
        world: &World,
        change: &Change,
        granted: &mut Option<SecretToken>,
    ) -> Result<(), Error> {
        let mut change = requests::with_uids(change).into_owned();
        if let (Some(run), Some(session)) = (change.new_token, &mut change.session) {
            *granted = Some(self.grant(session, run)?);
        }
        self.record(world, &change).await
    }

    /// The record of a session is gone. A process that is left of it (the store was put back to an
    /// older state) goes too.
    pub(super) fn abandon(&self, key: &ObjectKey) {
        for (uid, entry) in self.registry.of_key(key) {
            if matches!(entry.view().stage, Stage::Empty { .. }) {
                self.registry.forget(&uid);
                self.idle.forget(&uid);
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
        let mut txn =
            trees::write(transaction(world, change, self.clock.now().time), world, change);
        if let Some(turn) = &change.take_slot {
            // Before the commit: if its outcome stays unknown, the turn counts as taken here.
            self.take(turn.clone());
        }
        points::before(world, change);
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
        points::after(world, change);
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
        for turn in &change.remove_turns {
            self.spawn(permission::drop_of(self.records.clone(), turn.metadata.uid.clone()));
        }
        self.forget_told(&change.notices);
        self.reporter.events_of(world, change, self.clock.now().time);
        if let Some(hooks) = &self.hooks {
            tell::of_change(hooks.as_ref(), world, change);
        }
    }

    fn open(&self, world: &World, how: &OpenAs) -> Result<(), Error> {
        let session = &world.session;
        let entry = self.entry(&session.metadata.uid)?;
        let Finding::Found(agent) = &world.agent else { return Err(Error::ProcessGone) };
        let Some(scope) = session.status.scope.as_ref() else { return Err(Error::ProcessGone) };
        let capabilities = capabilities(&entry);
        let takes_http = capabilities.mcp_http;
        let own = entry.token.as_ref().map(|token| self.own_server(token));
        let scope = connection::Scope {
            cwd: scope.cwd.clone(),
            additional_directories: scope.additional_directories.clone(),
            system_prompt: introduction::as_system_prompt(session, &capabilities),
            mcp_servers: mcp_servers(
                [
                    own.as_slice(),
                    &session.spec.mcp_servers,
                    &agent.spec.mcp_servers,
                    &self.options.mcp_servers,
                ],
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

/// What a process's agent declared, as far as it has answered.
fn capabilities(entry: &Entry) -> Capabilities {
    match &entry.view().acp.initialize {
        Call::Done(initialized) => initialized.capabilities.clone(),
        Call::NotMade | Call::InFlight | Call::Failed(_) => Capabilities::default(),
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
fn transaction(world: &World, change: &Change, now: Time) -> Txn {
    let mut txn = Txn::new();
    if change.removes_session {
        txn = txn.retire(&world.session, now);
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
    for turn in &change.notices {
        let unsettled = &world.notices.unsettled;
        let seen = unsettled.iter().find(|seen| seen.metadata.uid == turn.metadata.uid);
        if let Some(seen) = seen {
            txn = txn.update(seen, turn);
        }
    }
    txn = change.wake.iter().fold(txn, Txn::create);
    for turn in &change.remove_turns {
        let open = world.turns.iter().map(|open| &open.record);
        let stored = world.below.iter().flatten();
        let seen = open.chain(stored).find(|seen| seen.metadata.uid == turn.metadata.uid);
        if let Some(seen) = seen {
            txn = txn.retire(seen, now);
        }
    }
    requests::write(txn, world, change)
}

/// The servers of a session: the daemon's, its own, its agent's, then the configuration's, the first
/// of each name; without those that the agent cannot reach.
fn mcp_servers(sources: [&[McpServer]; 4], takes_http: bool) -> Vec<McpServer> {
    let mut servers: Vec<McpServer> = Vec::new();
    for server in sources.into_iter().flatten() {
        let is_taken = servers.iter().any(|other| other.name == server.name);
        let is_reachable = server.transport == McpTransport::Stdio || takes_http;
        if !is_taken && is_reachable {
            servers.push(server.clone());
        }
    }
    servers
}
