//! The record of a new child: what it inherits of its caller, and what it may not have more of.

use std::time::Duration;

use super::within::{self, Grant};
use super::{NotSpawned, SpawnRefusal};
use crate::admission::session::{lineage_below, narrowed, permissions_of};
use crate::admission::{Admission, Refusal, metadata};
use crate::api::agent::{McpServer, Permissions, Sandbox, SandboxMode};
use crate::api::session::{DesiredState, Provider, Scope};
use crate::api::{
    AgentSpec, Code, Dur, FieldErrors, Kind, Namespace, ObjectMeta, OwnerReference,
    PROCESS_FINALIZER, RoleSpec, Session, SessionSpec, Spec as _, Time, naming,
};
use crate::ports::Inputs;

/// The role that no child plays, however it is written.
const COORDINATOR: &str = "coordinator";
/// What the daemon's own annotations begin with: a caller sets none of them.
const OWN_ANNOTATIONS: &str = "spawnlet.dev/";

/// A child as a caller wants it. What it does not say comes from the parent.
pub(super) struct Wish {
    pub(super) metadata: ObjectMeta,
    pub(super) spec: SessionSpec,
    pub(super) is_ttl_required: bool,
    /// What the caller's own token opens.
    pub(super) grant: Grant,
}

impl Admission {
    /// The child that a wish makes, not yet written.
    pub(super) async fn new_child(
        &self,
        parent: &Session,
        wish: &Wish,
        inputs: &dyn Inputs,
    ) -> Result<Session, NotSpawned> {
        let now = self.clock.now().time;
        check_identity(parent, &wish.spec)?;
        let scope = scope_of_child(parent, &wish.spec, inputs)?;
        let role = self.role_of_child(parent, &wish.spec).await?;
        let agent = self.agent_of(parent).await?;
        let ceiling = permissions_of(parent, agent.as_ref());
        let permissions = permissions_of_child(ceiling, wish.spec.permissions)?;
        if parent.spec.provider != Provider::External {
            self.check_sandbox(agent.as_ref(), &wish.spec.agent, role.as_deref()).await?;
        }
        let servers = agent.map(|agent| agent.mcp_servers).unwrap_or_default();
        let mcp_servers =
            servers_of_child(parent, &servers, &wish.spec.mcp_servers, role.as_deref())?;
        check_tools_and_delegation(parent, wish)?;
        if wish.is_ttl_required && wish.spec.ttl.is_none() {
            return Err(SpawnRefusal::invalid("ttl", "is required here, such as 30m").into());
        }
        let ttl = self.ttl_of_child(parent, wish.spec.ttl, now)?;
        check_depth(parent)?;
        let uid = self.uids.make();
        let spec = SessionSpec {
            parent: Some(parent.metadata.name.as_str().to_owned()),
            cwd: Some(scope.cwd.clone()),
            additional_directories: scope.additional_directories.clone(),
            workspace: None,
            folder: None,
            permissions,
            mcp_servers,
            ttl: Some(ttl),
            ..wish.spec.clone()
        };
        let asked = &wish.metadata;
        let name = match (&asked.generate_name, asked.name.is_empty()) {
            (_, false) => asked.name.clone(),
            (Some(prefix), true) => naming::generated_name(prefix, &uid),
            (None, true) => naming::session_name(&spec.agent, &uid),
        };
        let mut annotations = asked.annotations.clone();
        annotations.retain(|key, _| !key.starts_with(OWN_ANNOTATIONS));
        let metadata = ObjectMeta {
            name,
            namespace: parent.metadata.namespace.clone(),
            uid,
            generation: 1,
            creation_timestamp: Some(now),
            owner_references: vec![OwnerReference::of(parent)],
            finalizers: vec![PROCESS_FINALIZER.to_owned()],
            labels: asked.labels.clone(),
            annotations,
            ..ObjectMeta::default()
        };
        let mut errors = FieldErrors::default();
        metadata::check(Kind::Session, &metadata, &mut errors);
        errors.0.extend(spec.validate().err().unwrap_or_default().0);
        let name = metadata.name.clone();
        errors.into_result().map_err(|errors| Refusal::Invalid {
            kind: Kind::Session,
            name,
            errors,
        })?;
        let mut child = Session::new(metadata, spec);
        child.status.scope = Some(scope);
        child.status.lineage = lineage_below(parent);
        child.status.lineage.role.clone_from(&child.spec.role);
        child.status.role = role;
        child.status.lineage.ttl_expires_at = Some(now.plus(ttl.get()));
        child.status.lineage.auto_stop_on_parent = Some(child.spec.auto_stop_on_parent);
        Ok(child)
    }

    /// The role that a child is to play. A caller is told at once of one that is not there.
    async fn role_of_child(
        &self,
        parent: &Session,
        wish: &SessionSpec,
    ) -> Result<Option<Box<RoleSpec>>, NotSpawned> {
        let Some(name) = &wish.role else { return Ok(None) };
        let namespace = &parent.metadata.namespace;
        let found = self.records.get::<RoleSpec>(namespace, &name.as_str().into()).await;
        match found.map_err(Refusal::from)? {
            Some(role) => Ok(Some(Box::new(role.spec))),
            None => {
                let why = format!("{name:?} is no role in namespace {namespace:?}");
                Err(SpawnRefusal::invalid("role", why).into())
            }
        }
    }

    /// A child's agent is in a sandbox that is no wider than its parent's. An agent that is not there
    /// is refused elsewhere; of a parent's that is gone nothing is known, so it counts as the narrowest.
    async fn check_sandbox(
        &self,
        parent: Option<&AgentSpec>,
        child: &str,
        role: Option<&RoleSpec>,
    ) -> Result<(), NotSpawned> {
        let narrowest = Sandbox { mode: SandboxMode::ReadOnly, write_paths: Vec::new() };
        let parent = parent.map_or(&narrowest, |parent| &parent.sandbox);
        let found = self.records.get::<AgentSpec>(&Namespace::default(), &child.into()).await;
        match found.map_err(Refusal::from)? {
            Some(child) if !within::sandbox(&sandbox_of(&child.spec, role), parent) => {
                let name = &child.metadata.name;
                let why = "has a wider sandbox than the calling session's agent";
                Err(denied("agent", format!("{name} {why}")).into())
            }
            Some(_) | None => Ok(()),
        }
    }

    /// A child lives no longer than its parent. Only what was asked for explicitly is refused.
    fn ttl_of_child(
        &self,
        parent: &Session,
        asked: Option<Dur>,
        now: Time,
    ) -> Result<Dur, SpawnRefusal> {
        let left = parent_time_left(parent, now);
        let longest = left.map_or(self.limits.ttl_max, |left| left.min(self.limits.ttl_max));
        match asked {
            None => Ok(whole_millis(self.limits.default_child_ttl.min(longest))),
            Some(ttl) if ttl.is_zero() => {
                Err(SpawnRefusal::invalid("ttl", "expected a span longer than 0"))
            }
            Some(ttl) if ttl.get() > longest => {
                let longest = whole_millis(longest);
                let why = format!("{ttl}: expected at most {longest}");
                Err(SpawnRefusal::invalid("ttl", why))
            }
            Some(ttl) => Ok(ttl),
        }
    }
}

fn whole_millis(span: Duration) -> Dur {
    Dur::from_millis(u64::try_from(span.as_millis()).unwrap_or(u64::MAX).max(1))
}

fn parent_time_left(parent: &Session, now: Time) -> Option<Duration> {
    Some(parent.ttl_ends_at()?.since(now))
}

fn denied(field: &str, why: impl std::fmt::Display) -> SpawnRefusal {
    SpawnRefusal::new(Code::SpawnPermissionDenied, format!("{field}: {why}"))
}

/// The sandbox of an agent in a role.
fn sandbox_of(agent: &AgentSpec, role: Option<&RoleSpec>) -> Sandbox {
    role.map_or_else(|| agent.sandbox.clone(), |role| role.narrow(agent).sandbox)
}

/// What a caller's child is not: somebody else's, another kind of session, an owner of others.
fn check_identity(parent: &Session, wish: &SessionSpec) -> Result<(), SpawnRefusal> {
    if wish.role.as_ref().is_some_and(|role| role.trim().eq_ignore_ascii_case(COORDINATOR)) {
        return Err(denied("role", "no child is a coordinator"));
    }
    if wish.provider == Provider::External {
        return Err(denied("provider", "a child is a session that the daemon runs"));
    }
    let is_own = |name: &String| name.as_str() == parent.metadata.name.as_str();
    if !wish.parent.as_ref().is_none_or(is_own) {
        return Err(denied("parent", "it is the calling session; leave it out"));
    }
    if wish.desired_state != DesiredState::Running {
        return Err(SpawnRefusal::invalid("desiredState", "a new child is `running`"));
    }
    Ok(())
}

/// The whole scope of the parent as it was when the parent was made, or the part of it that the
/// child is to have. Its directories are without links, and stand in the parent's.
fn scope_of_child(
    parent: &Session,
    wish: &SessionSpec,
    inputs: &dyn Inputs,
) -> Result<Scope, SpawnRefusal> {
    let Some(scope) = &parent.status.scope else {
        return Err(SpawnRefusal::new(
            Code::SpawnUnavailable,
            "the directories of the calling session are not settled yet; try again",
        ));
    };
    let missing = |why| SpawnRefusal::new(Code::SessionFolderPathMissing, why);
    let written =
        || std::iter::once(&scope.cwd).chain(&scope.additional_directories).map(String::as_str);
    // What has gone, or leads elsewhere by now, is nothing that the parent still has.
    let is_pinned = parent.spec.provider != Provider::External;
    let roots: Vec<String> = written()
        .filter_map(|root| Some((root, inputs.directories(root, &[]).ok()?.into_iter().next()?)))
        .filter(|(root, found)| !is_pinned || found == root)
        .map(|(_, found)| found)
        .collect();
    let mut child = part_of_scope(scope, wish)?;
    for (field, path) in asked_paths(wish) {
        let places = written().chain(roots.iter().map(String::as_str));
        if !within::is_inside(path, places) {
            return Err(denied(field, format!("{path:?} is outside of the calling session's")));
        }
    }
    let found = inputs.directories(&child.cwd, &child.additional_directories).map_err(missing)?;
    for path in &found {
        if !within::is_inside(path, roots.iter().map(String::as_str)) {
            return Err(denied("cwd", format!("{path:?} is outside of the calling session's")));
        }
    }
    let mut found = found.into_iter();
    child.cwd = found.next().unwrap_or_default();
    child.additional_directories = found.collect();
    Ok(child)
}

fn asked_paths(wish: &SessionSpec) -> impl Iterator<Item = (&'static str, &String)> {
    let additional = wish.additional_directories.iter().map(|path| ("additionalDirectories", path));
    wish.cwd.iter().map(|path| ("cwd", path)).chain(additional)
}

/// The directories that a child is to have, as they are written down or asked for.
fn part_of_scope(scope: &Scope, wish: &SessionSpec) -> Result<Scope, SpawnRefusal> {
    if let Some(workspace) = &wish.workspace {
        if wish.cwd.is_some() {
            return Err(SpawnRefusal::invalid("cwd", "set at most one of workspace and cwd"));
        }
        let own = scope.label.split('/').next().filter(|_| !scope.folders.is_empty());
        if own != Some(workspace.as_str()) {
            let why = format!("{workspace:?} is not the calling session's workspace");
            return Err(denied("workspace", why));
        }
    }
    let mut part = match &wish.folder {
        None => scope.clone(),
        Some(wanted) => one_folder(scope, wanted)?,
    };
    match &wish.cwd {
        None if wish.additional_directories.is_empty() => {}
        None => part.additional_directories.clone_from(&wish.additional_directories),
        Some(cwd) => {
            part = Scope {
                cwd: cwd.clone(),
                additional_directories: wish.additional_directories.clone(),
                label: cwd.clone(),
                folders: Vec::new(),
            };
        }
    }
    Ok(part)
}

/// One folder of the scope, by its id.
fn one_folder(scope: &Scope, wanted: &str) -> Result<Scope, SpawnRefusal> {
    let Some(folder) = scope.folders.iter().find(|folder| folder.id == wanted) else {
        let ids: Vec<&str> = scope.folders.iter().map(|folder| folder.id.as_str()).collect();
        let offer = if ids.is_empty() {
            "it has no named folders; leave folderId out".to_owned()
        } else {
            format!("it has {}", ids.join(", "))
        };
        let message = format!("folderId: {wanted:?} is no folder of the calling session: {offer}");
        return Err(SpawnRefusal::new(Code::SessionFolderRemoved, message));
    };
    Ok(Scope {
        cwd: folder.path.clone(),
        additional_directories: Vec::new(),
        label: format!("{}/{}", scope.label, folder.id),
        folders: vec![folder.clone()],
    })
}

fn permissions_of_child(
    ceiling: Permissions,
    wanted: Option<Permissions>,
) -> Result<Option<Permissions>, SpawnRefusal> {
    match wanted {
        Some(wanted) if wanted > ceiling => {
            Err(denied("permissions", "wider than what the calling session may do itself"))
        }
        Some(wanted) => Ok(Some(wanted)),
        None => Ok(narrowed(ceiling)),
    }
}

/// The entries of the parent's that a child's stand for: its own, and its agent's. What the child's
/// role would give it is among them too.
fn servers_of_child(
    parent: &Session,
    agent: &[McpServer],
    wanted: &[McpServer],
    role: Option<&RoleSpec>,
) -> Result<Vec<McpServer>, SpawnRefusal> {
    let all: Vec<McpServer> = parent.spec.mcp_servers.iter().chain(agent).cloned().collect();
    let found = |server: &McpServer| {
        within::server(server, &all).cloned().ok_or_else(|| {
            let name = &server.name;
            denied("mcpServers", format!("{name:?} is none of the calling session's, as it stands"))
        })
    };
    for server in role.into_iter().flat_map(|role| &role.mcp_servers) {
        found(server)?;
    }
    wanted.iter().map(found).collect()
}

fn check_tools_and_delegation(parent: &Session, wish: &Wish) -> Result<(), SpawnRefusal> {
    let spec = &wish.spec;
    if !within::tools(spec.tool_filter.as_ref(), parent.spec.tool_filter.as_ref()) {
        return Err(denied("toolFilter", "lets more tools through than the calling session has"));
    }
    match within::delegation(&spec.delegation, &parent.spec.delegation, &wish.grant) {
        Some(field) => {
            let why = "is more than the calling session's own";
            Err(denied(&format!("delegation.{field}"), why))
        }
        None => Ok(()),
    }
}

fn check_depth(parent: &Session) -> Result<(), SpawnRefusal> {
    let depth = parent.status.lineage.depth.saturating_add(1);
    let deepest = parent.spec.delegation.max_depth;
    if parent.spec.delegation.enabled && depth <= deepest {
        return Ok(());
    }
    Err(SpawnRefusal::new(
        Code::SpawnDepthExceeded,
        format!(
            "the child would stand {depth} levels below the first session; this session's \
             delegation allows {deepest}"
        ),
    ))
}
