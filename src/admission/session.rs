//! New sessions, and their first turn: it is made in the same commit, so that no turn of somebody
//! else can come before it. The name of the turn counts in the session (`turnsMade`), by which the
//! loop sees that it has none to make.

use super::{
    ATTEMPTS_MAX, Admission, Admitted, Incoming, Refusal, WriteOptions, Writer, created,
    expect_room,
};
use crate::api::agent::Permissions;
use crate::api::field::FieldErrorReason::FieldValueInvalid;
use crate::api::session::{DesiredState, Lineage, Provider, Scope};
use crate::api::workspace::NoFolder;
use crate::api::{
    AgentSpec, FIRST_START, FieldError, FieldPath, Kind, Namespace, ObjectMeta, OwnerReference,
    Session, SessionSpec, Turn, TurnSpec, WorkspaceSpec,
};
use crate::failpoint::{self, Point};
use crate::store::records::Txn;

impl Admission {
    pub(super) async fn create_session(
        &self,
        incoming: Incoming<SessionSpec>,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Admitted, Refusal> {
        let Incoming { mut object, warnings } = incoming;
        expect_room(&object.spec)?;
        if object.metadata.is_first_start() {
            expect_no_prompt(&object)?;
        }
        for _ in 0..ATTEMPTS_MAX {
            let home = self.home(&object, writer).await?;
            let parent = self.place_below_parent(&mut object).await?;
            object.status.lineage.role.clone_from(&object.spec.role);
            if object.spec.provider == Provider::External {
                self.settle_scope(&mut object).await?;
            }
            let first = self.first_turn(&mut object).await?;
            if options.dry_run {
                self.expect_free(&object).await?;
                return created(&object, warnings);
            }
            let mut txn = home.join(Txn::new().create(&object));
            if let Some(parent) = &parent {
                txn = txn.unchanged(parent);
            }
            if let Some(first) = &first {
                txn = txn.create(first);
            }
            failpoint::reach(Point::AdmitBefore);
            if self.commit_new(txn, &mut object).await?.is_done() {
                failpoint::reach(Point::AdmitAfter);
                return created(&object, warnings);
            }
            self.expect_free(&object).await?;
        }
        Err(Refusal::modified(Kind::Session, &object.metadata.name))
    }

    /// Makes a session the child of the one that its spec names.
    async fn place_below_parent(&self, session: &mut Session) -> Result<Option<Session>, Refusal> {
        let Some(name) = session.spec.parent.clone() else { return Ok(None) };
        let namespace = session.metadata.namespace.clone();
        let found = self.records.get::<SessionSpec>(&namespace, &name.as_str().into()).await?;
        let why = match &found {
            None => Some("is not there; make it first".to_owned()),
            Some(parent) => why_not_live(parent),
        };
        let (Some(parent), None) = (found, &why) else {
            let message = format!("`{name}`: this session {}", why.unwrap_or_default());
            return Err(at_fault(session, "spec.parent", message));
        };
        let ceiling = permissions_of(&parent, self.agent_of(&parent).await?.as_ref());
        match session.spec.permissions {
            Some(wanted) if wanted > ceiling => {
                let message = format!("is wider than what the parent {name} may do itself");
                return Err(at_fault(session, "spec.permissions", message));
            }
            Some(_) => {}
            None => session.spec.permissions = narrowed(ceiling),
        }
        session.metadata.owner_references = vec![OwnerReference::of(&parent)];
        session.status.lineage = lineage_below(&parent);
        Ok(Some(parent))
    }

    /// The agent that a session runs as its role leaves it, if the daemon runs it and knows both.
    pub(super) async fn agent_of(&self, session: &Session) -> Result<Option<AgentSpec>, Refusal> {
        let SessionSpec { provider, agent, role, .. } = &session.spec;
        if *provider == Provider::External {
            return Ok(None);
        }
        let agent = agent.as_str().into();
        let found = self.records.get::<AgentSpec>(&Namespace::default(), &agent).await?;
        let Some(agent) = found else { return Ok(None) };
        Ok(match (role, &session.status.role) {
            (None, _) => Some(agent.spec),
            (Some(_), Some(role)) => Some(role.narrow(&agent.spec)),
            // Nobody knows yet what it will be held to.
            (Some(_), None) => None,
        })
    }

    /// The directories of a session that the daemon does not run: nothing else ever settles them,
    /// and its children get them as they are now.
    async fn settle_scope(&self, session: &mut Session) -> Result<(), Refusal> {
        let spec = &session.spec;
        let Some(name) = &spec.workspace else {
            let cwd = spec.cwd.clone().unwrap_or_default();
            let additional_directories = spec.additional_directories.clone();
            let label = cwd.clone();
            session.status.scope =
                Some(Scope { cwd, additional_directories, label, folders: Vec::new() });
            return Ok(());
        };
        let namespace = &session.metadata.namespace;
        let found = self.records.get::<WorkspaceSpec>(namespace, &name.as_str().into()).await?;
        let Some(workspace) = found else {
            let message =
                format!("`{name}`: there is no such workspace in {namespace}; apply it first");
            return Err(at_fault(session, "spec.workspace", message));
        };
        let picked = match workspace.spec.pick(name, spec.folder.as_deref()) {
            Ok(picked) => picked,
            Err(missing) => {
                let message = match missing {
                    NoFolder::Unknown(id) => {
                        format!("`{id}`: the workspace {name} has no such folder")
                    }
                    NoFolder::Empty => format!("`{name}`: this workspace has no folder"),
                };
                return Err(at_fault(session, "spec.folder", message));
            }
        };
        session.status.scope = Some(Scope {
            cwd: picked.main.path.clone(),
            additional_directories: picked.directories(&spec.additional_directories),
            folders: picked.folders().cloned().collect(),
            label: picked.label.clone(),
        });
        Ok(())
    }

    /// The turn that the session's own prompt makes, and its count in the session.
    pub(super) async fn first_turn(&self, session: &mut Session) -> Result<Option<Turn>, Refusal> {
        if session.spec.prompt.is_none() && session.spec.prompt_blocks.is_none() {
            return Ok(None);
        }
        session.status.turns_made = 0;
        let (name, made) = self.next_turn_name(session).await?;
        session.status.turns_made = made;
        session.status.queued_turns = 1;
        let metadata = ObjectMeta {
            name,
            namespace: session.metadata.namespace.clone(),
            uid: self.uids.make(),
            generation: 1,
            creation_timestamp: session.metadata.creation_timestamp,
            owner_references: vec![OwnerReference::of(session)],
            ..ObjectMeta::default()
        };
        let spec = TurnSpec {
            session: session.metadata.name.clone(),
            prompt: session.spec.prompt.clone(),
            prompt_blocks: session.spec.prompt_blocks.clone(),
            ..TurnSpec::default()
        };
        Ok(Some(Turn::new(metadata, spec)))
    }
}

/// What a session may do at most. `agent`: as its role leaves it, see [`Admission::agent_of`].
pub(super) fn permissions_of(session: &Session, agent: Option<&AgentSpec>) -> Permissions {
    let own = session.spec.permissions;
    if session.spec.provider == Provider::External {
        return own.unwrap_or(Permissions::ApproveAll);
    }
    // Of an agent that is gone nothing is known: its children get the least.
    let ceiling = agent.map_or(Permissions::DenyAll, |agent| agent.permissions);
    own.map_or(ceiling, |own| own.min(ceiling))
}

/// Where a child of this session stands.
pub(super) fn lineage_below(parent: &Session) -> Lineage {
    let above = &parent.status.lineage;
    Lineage {
        root: Some(above.root.clone().unwrap_or_else(|| parent.metadata.uid.clone())),
        parent: Some(parent.metadata.uid.clone()),
        depth: above.depth.saturating_add(1),
        ..Lineage::default()
    }
}

/// The permissions that a child gets of a ceiling: the agent's own bound it too, so that the widest
/// needs no word.
pub(super) fn narrowed(ceiling: Permissions) -> Option<Permissions> {
    (ceiling < Permissions::ApproveAll).then_some(ceiling)
}

/// A session that is there for a start alone has an agent that the daemon runs, and no prompt.
fn expect_no_prompt(session: &Session) -> Result<(), Refusal> {
    let spec = &session.spec;
    if spec.provider != Provider::External && spec.prompt.is_none() && spec.prompt_blocks.is_none()
    {
        return Ok(());
    }
    let message = "is for a session that the daemon runs and that has no prompt".to_owned();
    Err(at_fault(session, &format!("metadata.annotations.{FIRST_START}"), message))
}

fn at_fault(session: &Session, field: &str, message: String) -> Refusal {
    let field = FieldPath::new(field);
    let error = FieldError { field, reason: FieldValueInvalid, message };
    Refusal::field(Kind::Session, &session.metadata.name, error)
}

/// Whether a session has a turn that is not final.
pub(super) fn has_unfinished_turn(session: &Session) -> bool {
    session.status.active_turn.is_some() || session.status.queued_turns > 0
}

/// Why a session takes no turns; none if it does.
pub(super) fn why_not_live(session: &Session) -> Option<String> {
    if session.metadata.is_deleting() {
        return Some("is being deleted; make a new session".to_owned());
    }
    if session.metadata.is_first_start() {
        return Some("is there to start its agent once and takes no turns".to_owned());
    }
    if let Some(end) = &session.status.end {
        return Some(format!("has ended ({}); make a new session", end.reason));
    }
    match session.spec.desired_state {
        DesiredState::Running => None,
        DesiredState::Cancelled | DesiredState::Deleted => {
            Some("was cancelled and never runs again; make a new session".to_owned())
        }
    }
}
