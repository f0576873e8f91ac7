//! From a key to a [`World`]: everything that one pass may know, read once.
//!
//! Reads only; costs what the session has open, not what it ever had.

use crate::api::agent::AgentSpec;
use crate::api::session::{Provider, Scope};
use crate::api::turn::{Admission, Delivery, TurnPhase};
use crate::api::workspace::{NoFolder, WorkspaceSpec};
use crate::api::{Agent, Name, Namespace, RoleSpec, Session, SessionSpec, Turn, Uid};
use crate::plan::world::{
    Call, Children, Crowd, Daemon, Finding, Live, Missing, OpenTurn, Owner, Process, Stage,
};
use crate::plan::{World, must_tell_children, next_turn};
use crate::store::records;
use crate::store::{BlobId, Stream};

use super::idle::Resident;
use super::{Controller, ObjectKey, lock, output};

/// How much of standard error goes into a message.
const STDERR_TAIL_BYTES: usize = 600;
const STDERR_TAIL_LINES: usize = 5;

/// An agent as a session has it.
struct InRole {
    /// Narrowed by the session's role, if it has one.
    agent: Finding<Agent>,
    /// Its own spec, if it was narrowed.
    own: Option<Box<AgentSpec>>,
    /// The role, if the session has not pinned it yet.
    role: Option<Box<RoleSpec>>,
}

impl Controller {
    /// The world of a session; `None` if there is no such session any more.
    pub(super) async fn observe(&self, key: &ObjectKey) -> Result<Option<World>, records::Error> {
        let Some(session) = self.records.get::<SessionSpec>(&key.namespace, &key.name).await?
        else {
            return Ok(None);
        };
        let uid = session.metadata.uid.clone();
        let mut process = self.registry.process(&uid);
        if let Process::Live(live) = &mut process
            && wants_stderr(live)
            && let Some(entry) = self.registry.entry(&uid)
        {
            live.stderr_tail = entry.stderr.last_lines(STDERR_TAIL_LINES, STDERR_TAIL_BYTES);
        }
        let records = self.records.open_turns(&uid).await?;
        let (requests, spent_requests) = self.requests(&session, &process, &records).await?;
        let mut turns = Vec::with_capacity(records.len());
        // The turn that is given to the agent next: the one that starts, or else is taken.
        let next = records
            .iter()
            .position(|turn| turn.status.phase == TurnPhase::Starting)
            .or_else(|| next_turn(&records));
        // A turn that was taken has its slot for itself: it says nothing of who comes after it.
        let waiting = next
            .map(|index| &records[index])
            .filter(|turn| turn.status.phase == TurnPhase::Pending)
            .map(|turn| turn.metadata.uid.clone());
        for (index, record) in records.into_iter().enumerate() {
            turns.push(self.open_turn(record, next == Some(index)).await?);
        }
        let below = match session.status.finished_at {
            Some(_) => Some(self.records.turns_of(&uid).await?),
            None => None,
        };
        let children = self.children(&session).await?;
        let owner = self.owner(&session).await?;
        let notices = self.notices(&session).await?;
        let needs_start = !is_ready(&process);
        let InRole { agent, own, role } = self.agent_in_role(&session, needs_start).await?;
        let scope = self.find_scope(&session, needs_start && !turns.is_empty()).await?;
        let crowd = self.crowd(&session, &process, turns.is_empty());
        let has_free_slot = self.has_free_slot(key, &session, waiting.as_ref()).await?;
        Ok(Some(World {
            turns,
            requests,
            spent_requests,
            below,
            children,
            owner,
            notices,
            agent,
            agent_spec: own,
            role,
            scope,
            process,
            has_free_slot,
            crowd,
            tree: self.tree(&session).await?,
            daemon: Daemon {
                store_id: self.options.store_id.clone(),
                boot_id: self.options.boot_id.clone(),
                is_stopping: self.is_stopping(),
                standstill: self.queue.standstill(),
                stopped_cleanly: self.options.stopped_cleanly,
                permission_timeout: self.options.permission_timeout,
            },
            session,
        }))
    }

    /// Whether a session's next turn holds a slot, or could take one now.
    async fn has_free_slot(
        &self,
        key: &ObjectKey,
        session: &Session,
        waiting: Option<&Uid>,
    ) -> Result<bool, records::Error> {
        let parent = session.status.lineage.parent.as_ref();
        let mut slots = self.slots.lock().await;
        slots.refresh(self.records.store()).await?;
        let holds_one = waiting.is_some_and(|turn| slots.holds(turn));
        let may_take =
            || lock(&self.line).may_take(key, parent, slots.holders(), self.options.limits);
        Ok(holds_one || may_take())
    }

    /// Takes down whether the session's process is idle, and tells which ones of its siblings' are
    /// too many.
    fn crowd(&self, session: &Session, process: &Process, has_no_turn: bool) -> Crowd {
        let status = &session.status;
        let Some(parent) = &status.lineage.parent else { return Crowd::default() };
        let is_resident = match process {
            Process::Live(live) => live.stage == Stage::Running && live.stop.is_none(),
            Process::Absent | Process::NotStarted { .. } | Process::Unproven => false,
        };
        let is_idle = is_resident && has_no_turn && !must_tell_children(session);
        let resident = status.idle_since.filter(|_| is_idle).map(|since| Resident {
            name: session.metadata.name.clone(),
            since,
            can_go_on: status.capabilities.as_ref().is_some_and(|found| found.resume || found.load),
        });
        let max = self.options.idle_processes_per_parent_max;
        self.idle.note(parent, &session.metadata.uid, resident, max)
    }

    /// The agent of a session as its role leaves it.
    async fn agent_in_role(
        &self,
        session: &Session,
        needs_start: bool,
    ) -> Result<InRole, records::Error> {
        let agent = self.agent_of(session, needs_start).await?;
        let Some(name) = &session.spec.role else {
            return Ok(InRole { agent, own: None, role: None });
        };
        let role = match &session.status.role {
            Some(_) => None,
            None => {
                let namespace = &session.metadata.namespace;
                let found = self.records.get::<RoleSpec>(namespace, &name.as_str().into()).await?;
                let Some(found) = found else {
                    let message =
                        format!("there is no Role {name:?} in namespace {namespace:?}; apply one");
                    let agent = Finding::Missing(Missing { reason: "RoleNotFound", message });
                    return Ok(InRole { agent, own: None, role: None });
                };
                Some(Box::new(found.spec))
            }
        };
        Ok(match (agent, session.status.role.as_ref().or(role.as_ref())) {
            (Finding::Found(mut agent), Some(narrowing)) => {
                let narrowed = narrowing.narrow(&agent.spec);
                let own = Some(Box::new(std::mem::replace(&mut agent.spec, narrowed)));
                InRole { agent: Finding::Found(agent), own, role }
            }
            (agent, _) => InRole { agent, own: None, role },
        })
    }

    /// The agent of a session, as a new process or the one that runs goes by it.
    async fn agent_of(
        &self,
        session: &Session,
        needs_start: bool,
    ) -> Result<Finding<Agent>, records::Error> {
        let found = self.find_agent(session, needs_start).await?;
        let Some(entry) = self.registry.entry(&session.metadata.uid) else { return Ok(found) };
        Ok(match found {
            // An agent that was deleted while it is in use: only new processes miss it.
            Finding::Missing(_) if !needs_start => Finding::Found(Box::new(entry.agent.clone())),
            Finding::Found(agent) => {
                entry.set_late_grace(agent.spec.late_update_grace.get());
                Finding::Found(agent)
            }
            Finding::Missing(_) | Finding::Unknown => found,
        })
    }

    /// The children of a session that ends: how many, and who must still take note of it.
    async fn children(&self, session: &Session) -> Result<Option<Children>, records::Error> {
        if !must_tell_children(session) {
            return Ok(None);
        }
        let children = self.records.children_of(&session.metadata.uid).await?;
        Ok(Some(Children::of(session, &children)))
    }

    /// What a session's parent does.
    async fn owner(&self, session: &Session) -> Result<Owner, records::Error> {
        let Some(parent) = &session.status.lineage.parent else { return Ok(Owner::None) };
        Ok(Owner::of(self.records.by_uid::<SessionSpec>(parent).await?.as_ref()))
    }

    /// Whether a turn holds its slot by this daemon's doing: it was taken here, or admitted together
    /// with its slot since the loop was built.
    fn is_ours(&self, turn: &Turn) -> bool {
        let uid: &Uid = &turn.metadata.uid;
        let is_admitted_here =
            turn.spec.admission == Admission::Immediate && !self.held_before.contains(uid);
        is_admitted_here || self.is_taken(uid)
    }

    async fn open_turn(&self, record: Turn, wants_kinds: bool) -> Result<OpenTurn, records::Error> {
        let uid = &record.metadata.uid;
        let is_taken_here = self.is_ours(&record);
        let is_in_journal = self.journal.contains(uid);
        let block_kinds = if wants_kinds { self.block_kinds(&record).await? } else { Vec::new() };
        let stored_response_bytes = if is_taken_here || record.status.delivery == Delivery::NotSent
        {
            0
        } else {
            let blob = BlobId { owner: uid.clone(), stream: Stream::Response };
            self.blobs.len(&blob).await?
        };
        Ok(OpenTurn { record, is_taken_here, is_in_journal, block_kinds, stored_response_bytes })
    }

    async fn block_kinds(&self, turn: &Turn) -> Result<Vec<String>, records::Error> {
        let spec = &turn.spec;
        let stored;
        let blocks = match (&spec.prompt_blocks, &spec.prompt_blob) {
            (Some(blocks), _) => blocks,
            (None, Some(blob)) if blob.blocks => {
                let id = BlobId { owner: turn.metadata.uid.clone(), stream: Stream::Prompt };
                let bytes = output::read_whole(&self.blobs, &id, blob.bytes).await?;
                stored =
                    serde_json::from_slice::<Vec<serde_json::Value>>(&bytes).unwrap_or_default();
                &stored
            }
            (None, _) => return Ok(vec!["text".to_owned()]),
        };
        let kind = |block: &serde_json::Value| block.get("type")?.as_str().map(str::to_owned);
        let mut kinds: Vec<_> = blocks
            .iter()
            .map(|block| kind(block).unwrap_or_else(|| "untyped".to_owned()))
            .collect();
        kinds.dedup();
        Ok(kinds)
    }

    async fn find_agent(
        &self,
        session: &Session,
        needs_start: bool,
    ) -> Result<Finding<Agent>, records::Error> {
        if session.spec.provider == Provider::External {
            return Ok(Finding::Unknown);
        }
        let name = &session.spec.agent;
        let found =
            self.records.get::<AgentSpec>(&Namespace::default(), &Name::new(name.clone())).await?;
        let missing = |reason, message| Ok(Finding::Missing(Missing { reason, message }));
        let Some(agent) = found else {
            let message =
                format!("there is no Agent {name:?}; apply one, or name another in spec.agent");
            return missing("AgentNotFound", message);
        };
        if needs_start && !agent.spec.enabled {
            return missing("AgentDisabled", format!("Agent {name:?} has enabled: false"));
        }
        if needs_start && let Err(error) = self.launcher.find_agent(&agent) {
            return missing("AgentNotInstalled", error.message);
        }
        Ok(Finding::Found(Box::new(agent)))
    }

    /// The pinned directories, looked at again before each start; else those that the spec names.
    async fn find_scope(
        &self,
        session: &Session,
        needs_look: bool,
    ) -> Result<Finding<Scope>, records::Error> {
        let spec = &session.spec;
        if let Some(pinned) = &session.status.scope {
            if !needs_look {
                return Ok(Finding::Found(Box::new(pinned.clone())));
            }
            let label = pinned.label.clone();
            let others = &pinned.additional_directories;
            let found = self.launcher.find_scope(&pinned.cwd, others, label);
            return Ok(still_within(session, pinned, found));
        }
        if let Some(cwd) = &spec.cwd {
            return Ok(self.launcher.find_scope(cwd, &spec.additional_directories, cwd.clone()));
        }
        let missing = |reason, message| Ok(Finding::Missing(Missing { reason, message }));
        let Some(name) = &spec.workspace else {
            return missing("NoDirectory", "neither spec.workspace nor spec.cwd is set".to_owned());
        };
        let workspace = self
            .records
            .get::<WorkspaceSpec>(&session.metadata.namespace, &Name::new(name.clone()))
            .await?;
        let Some(workspace) = workspace else {
            let namespace = &session.metadata.namespace;
            let message =
                format!("there is no Workspace {name:?} in namespace {namespace:?}; apply one");
            return missing("WorkspaceNotFound", message);
        };
        let picked = match workspace.spec.pick(name, spec.folder.as_deref()) {
            Ok(picked) => picked,
            Err(NoFolder::Empty) => {
                return missing("WorkspaceEmpty", format!("Workspace {name:?} has no folder"));
            }
            Err(NoFolder::Unknown(id)) => {
                let message = format!("Workspace {name:?} has no folder with id {id:?}");
                return missing("FolderNotFound", message);
            }
        };
        let additional = picked.directories(&spec.additional_directories);
        Ok(self.launcher.find_scope(&picked.main.path, &additional, picked.label))
    }
}

/// A child has the directories that were found to be its parent's, and no others: one that leads
/// elsewhere by now is as good as gone.
fn still_within(session: &Session, pinned: &Scope, found: Finding<Scope>) -> Finding<Scope> {
    let has_moved = session.status.lineage.parent.is_some()
        && matches!(&found, Finding::Found(now) if now.cwd != pinned.cwd
            || now.additional_directories != pinned.additional_directories);
    if !has_moved {
        return found;
    }
    Finding::Missing(Missing {
        reason: "DirectoryMoved",
        message: format!(
            "a directory of the session leads elsewhere than when it was made: {}; put it back, or \
             make a new session",
            pinned.label
        ),
    })
}

/// Whether a process is there that needs no start.
fn is_ready(process: &Process) -> bool {
    match process {
        Process::Live(live) => !matches!(live.stage, Stage::Empty { .. }),
        Process::Absent | Process::NotStarted { .. } | Process::Unproven => false,
    }
}

/// Whether a plan may have to tell what the agent said last: not while all is well.
fn wants_stderr(live: &Live) -> bool {
    let is_open = matches!(live.acp.open, Call::Done(_));
    !(is_open && live.stage == Stage::Running && live.stop.is_none())
}
