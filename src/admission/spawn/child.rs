//! The record of a new child: what it inherits of its caller, and what it may not have more of.

use std::time::Duration;

use super::{PromptRequest, SpawnRefusal};
use crate::admission::Admission;
use crate::admission::session::{lineage_below, narrowed};
use crate::admission::turn::owned_by;
use crate::api::session::Scope;
use crate::api::{
    Code, Dur, ObjectMeta, PROCESS_FINALIZER, Session, SessionSpec, Spec as _, Time, naming,
};
use crate::ports::Inputs;

impl Admission {
    /// The child that a request makes, not yet written.
    pub(super) async fn new_child(
        &self,
        parent: &Session,
        request: &PromptRequest,
        inputs: &dyn Inputs,
    ) -> Result<Session, SpawnRefusal> {
        let now = self.clock.now().time;
        let scope = scope_of_child(parent, request.folder.as_deref())?;
        inputs
            .directories(&scope.cwd, &scope.additional_directories)
            .map_err(|why| SpawnRefusal::new(Code::SessionFolderPathMissing, why))?;
        let ceiling = self.permissions_of(parent).await?;
        let ttl = self.ttl_of_child(parent, request.ttl, now)?;
        check_depth(parent)?;
        let uid = self.uids.make();
        let metadata = ObjectMeta {
            name: naming::session_name(&request.agent, &uid),
            namespace: parent.metadata.namespace.clone(),
            uid,
            generation: 1,
            creation_timestamp: Some(now),
            owner_references: vec![owned_by(parent)],
            finalizers: vec![PROCESS_FINALIZER.to_owned()],
            ..ObjectMeta::default()
        };
        let spec = SessionSpec {
            agent: request.agent.clone(),
            parent: Some(parent.metadata.name.as_str().to_owned()),
            cwd: Some(scope.cwd.clone()),
            additional_directories: scope.additional_directories.clone(),
            permissions: narrowed(ceiling),
            ttl: Some(ttl),
            ..SessionSpec::default()
        };
        spec.validate().map_err(|errors| {
            SpawnRefusal::new(Code::SpawnInvalidRequest, format!("the new session: {errors}"))
        })?;
        let mut child = Session::new(metadata, spec);
        child.status.scope = Some(scope);
        child.status.lineage = lineage_below(parent);
        Ok(child)
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
    let ttl = parent.spec.ttl.filter(|ttl| !ttl.is_zero())?;
    let created = parent.metadata.creation_timestamp?;
    Some(created.plus(ttl.get()).since(now))
}

/// The whole scope of the parent as it was when the parent was made, or the one folder of it.
fn scope_of_child(parent: &Session, folder: Option<&str>) -> Result<Scope, SpawnRefusal> {
    let Some(scope) = &parent.status.scope else {
        return Err(SpawnRefusal::new(
            Code::SpawnUnavailable,
            "the directories of the calling session are not settled yet; try again",
        ));
    };
    let Some(wanted) = folder else { return Ok(scope.clone()) };
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
