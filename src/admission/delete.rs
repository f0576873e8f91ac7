//! The end of objects. What may have a process is only asked to end: the controller takes its
//! record away once the process tree is proven empty.

use std::any::Any;

use super::kinds::Admissible;
use super::{ATTEMPTS_MAX, Admission, Refusal, to_value};
use crate::api::field::FieldErrorReason::FieldValueNotSupported;
use crate::api::{
    AgentSpec, DEFAULT_NAMESPACE, DELETION_PROPAGATION, FieldError, FieldPath, Kind, Name,
    Namespace, NamespaceSpec, Object, RoleSpec, Session, SessionSpec, Turn, TurnSpec, Uid,
    WorkspaceSpec,
};
use crate::failpoint::{self, Point};
use crate::store::records::{Page, Txn, removals};
use crate::store::{COMMIT_OPS_MAX, keys};

/// In which order a session and what it owns go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Propagation {
    /// The children first.
    #[default]
    Foreground,
    /// The session's own process first.
    Background,
    /// The children stay; refused for children that stop with their parent.
    Orphan,
}

/// How a deletion is to be done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeleteOptions {
    /// The order.
    pub propagation: Propagation,
    /// Only this object, not another one of the same name.
    pub uid: Option<Uid>,
    /// Only if it was last written at this `resourceVersion`.
    pub resource_version: Option<String>,
    /// Check all, write nothing.
    pub dry_run: bool,
    /// Whether the session's parent asks, by its own token.
    pub by_parent: bool,
}

/// A deletion that was taken.
#[derive(Clone, Debug, PartialEq)]
pub struct Deleted {
    /// The object as it is now, or as it was last.
    pub object: serde_json::Value,
    /// Whether it is gone. Otherwise it is on its way, with a `deletionTimestamp`.
    pub is_gone: bool,
}

impl Admission {
    /// Deletes an object, or asks for its end:
    ///
    /// - agents and workspaces go at once; sessions that use them are not touched;
    /// - a session's desired state becomes `deleted`; the controller removes the record;
    /// - a turn goes at once if it is final, else it is cancelled first;
    /// - a namespace takes what is in it along, and goes when its last session has gone.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; nothing was written. For a namespace, a part of what is in it may have been
    /// asked to end already; asking again goes on.
    pub async fn delete(
        &self,
        kind: Kind,
        namespace: &Namespace,
        name: &Name,
        options: &DeleteOptions,
    ) -> Result<Deleted, Refusal> {
        match kind {
            Kind::Agent => self.delete_object::<AgentSpec>(namespace, name, options).await,
            Kind::Workspace => self.delete_object::<WorkspaceSpec>(namespace, name, options).await,
            Kind::Role => self.delete_object::<RoleSpec>(namespace, name, options).await,
            Kind::Session => self.delete_object::<SessionSpec>(namespace, name, options).await,
            Kind::Turn => self.delete_object::<TurnSpec>(namespace, name, options).await,
            Kind::Namespace => Box::pin(self.delete_namespace(name, options)).await,
            Kind::PermissionRequest | Kind::Event => Err(Refusal::MethodNotAllowed { kind }),
        }
    }

    pub(super) async fn delete_object<S: Admissible>(
        &self,
        namespace: &Namespace,
        name: &Name,
        options: &DeleteOptions,
    ) -> Result<Deleted, Refusal> {
        for _ in 0..ATTEMPTS_MAX {
            let old = self.existing::<S>(namespace, name).await?;
            check_preconditions(&old, options)?;
            self.check_orphans(&old, options).await?;
            let is_gone = self.goes_at_once(&old).await?;
            let mut new = old.clone();
            if !is_gone {
                self.ask_for_the_end(&mut new, options);
                if options.by_parent && new.spec != old.spec {
                    super::update::mark_cancel(&mut new, self.clock.now().time);
                }
            }
            if options.dry_run || (!is_gone && new == old) {
                return Ok(Deleted { object: to_value(&new)?, is_gone });
            }
            failpoint::reach(Point::DeleteBefore);
            let attempt = if is_gone {
                self.commit_removal(&old).await?
            } else {
                self.commit_new(Txn::new().update(&old, &new), &mut new).await?.is_done()
            };
            if attempt {
                failpoint::reach(Point::DeleteAfter);
                return Ok(Deleted { object: to_value(&new)?, is_gone });
            }
        }
        Err(Refusal::modified(S::KIND, name))
    }

    /// Removes a record, and before it the requests for permission that are its; false if one of
    /// them was changed since.
    async fn commit_removal<S: Admissible>(&self, old: &Object<S>) -> Result<bool, Refusal> {
        let requests = if S::KIND == Kind::Turn {
            self.records.requests_of(&old.metadata.uid).await?
        } else {
            Vec::new()
        };
        for txn in removals(&requests) {
            match txn.commit(&**self.records.store()).await {
                Ok(_) => {}
                Err(error) if error.is_conflict() => return Ok(false),
                Err(error) => return Err(error.into()),
            }
        }
        let txn = Txn::new().retire(old, self.clock.now().time);
        match txn.commit(&**self.records.store()).await {
            Ok(_) => Ok(true),
            Err(error) if error.is_conflict() => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether nothing has to end before the record may go.
    async fn goes_at_once<S: Admissible>(&self, object: &Object<S>) -> Result<bool, Refusal> {
        let any: &dyn Any = object;
        if let Some(session) = any.downcast_ref::<Session>() {
            return Ok(session.metadata.finalizers.is_empty());
        }
        if let Some(turn) = any.downcast_ref::<Turn>() {
            if turn.status.phase.is_final() {
                return Ok(true);
            }
            // A turn whose session is gone has nobody who would end it.
            let owner = turn.metadata.owner_references.first();
            return match owner {
                Some(owner) => Ok(self.records.by_uid::<SessionSpec>(&owner.uid).await?.is_none()),
                None => Ok(true),
            };
        }
        Ok(true)
    }

    fn ask_for_the_end<S: Admissible>(&self, object: &mut Object<S>, options: &DeleteOptions) {
        let before = object.spec.clone();
        object.spec.ask_for_the_end();
        if object.spec != before {
            object.metadata.generation += 1;
        }
        // The first deletion's time stays; a later one may still change the order.
        object.metadata.deletion_timestamp.get_or_insert(self.clock.now().time);
        if S::KIND == Kind::Session {
            let annotations = &mut object.metadata.annotations;
            let mut set =
                |value: &str| annotations.insert(DELETION_PROPAGATION.into(), value.into());
            match options.propagation {
                Propagation::Foreground => annotations.remove(DELETION_PROPAGATION),
                Propagation::Background => set("Background"),
                Propagation::Orphan => set("Orphan"),
            };
        }
    }

    async fn check_orphans<S: Admissible>(
        &self,
        object: &Object<S>,
        options: &DeleteOptions,
    ) -> Result<(), Refusal> {
        if options.propagation != Propagation::Orphan || S::KIND != Kind::Session {
            return Ok(());
        }
        let children = self.records.children_of(&object.metadata.uid).await?;
        let Some(child) = children.iter().find(|child| child.spec.auto_stop_on_parent) else {
            return Ok(());
        };
        let message = format!(
            "Orphan: the child {} stops with its parent (autoStopOnParent); expected Foreground or \
             Background",
            child.metadata.name
        );
        let field = FieldPath::new("propagationPolicy");
        let error = FieldError { field, reason: FieldValueNotSupported, message };
        Err(Refusal::field(S::KIND, &object.metadata.name, error))
    }

    async fn delete_namespace(
        &self,
        name: &Name,
        options: &DeleteOptions,
    ) -> Result<Deleted, Refusal> {
        if name.as_str() == DEFAULT_NAMESPACE {
            return Err(Refusal::Forbidden {
                kind: Kind::Namespace,
                name: name.clone(),
                why: "this namespace always exists".to_owned(),
            });
        }
        for _ in 0..ATTEMPTS_MAX {
            let old = self.existing::<NamespaceSpec>(&Namespace::default(), name).await?;
            check_preconditions(&old, options)?;
            let mut ending = self.terminating(&old);
            if options.dry_run {
                return Ok(Deleted { object: to_value(&ending)?, is_gone: false });
            }
            // From here on nothing new comes into it: a creation is guarded by this record.
            let txn = Txn::new().update(&old, &ending);
            if !self.commit_new(txn, &mut ending).await?.is_done() {
                continue;
            }
            self.empty(&Namespace::from(name.as_str()), options).await?;
            let is_gone = self.finish_namespace(&ending).await?;
            return Ok(Deleted { object: to_value(&ending)?, is_gone });
        }
        Err(Refusal::modified(Kind::Namespace, name))
    }

    /// Deletes what is in a namespace, or asks for its end.
    async fn empty(&self, namespace: &Namespace, options: &DeleteOptions) -> Result<(), Refusal> {
        let options = DeleteOptions { propagation: options.propagation, ..Default::default() };
        self.delete_all::<SessionSpec>(namespace, &options).await?;
        self.delete_all::<WorkspaceSpec>(namespace, &options).await?;
        self.delete_all::<RoleSpec>(namespace, &options).await?;
        // Turns go with their sessions; what has none is removed here.
        self.delete_all::<TurnSpec>(namespace, &options).await?;
        let prefix = keys::namespace_prefix(Kind::Event, namespace);
        loop {
            let (events, _) = self.records.store().list(&prefix, None, COMMIT_OPS_MAX).await?;
            if events.is_empty() {
                return Ok(());
            }
            let txn = events.into_iter().fold(Txn::new(), |txn, event| txn.delete_raw(event.key));
            txn.commit(&**self.records.store()).await?;
        }
    }

    async fn delete_all<S: Admissible>(
        &self,
        namespace: &Namespace,
        options: &DeleteOptions,
    ) -> Result<(), Refusal> {
        for object in self.records.list::<S>(Some(namespace), &Page::ALL).await?.items {
            match self.delete_object::<S>(namespace, &object.metadata.name, options).await {
                Ok(_) | Err(Refusal::NotFound { .. }) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(())
    }
}

fn check_preconditions<S: Admissible>(
    object: &Object<S>,
    options: &DeleteOptions,
) -> Result<(), Refusal> {
    let metadata = &object.metadata;
    let wrong = |field: &str, wanted: &str, found: &str| Refusal::Conflict {
        kind: S::KIND,
        name: metadata.name.clone(),
        why: format!("the precondition failed: {field} is {found}, not {wanted}"),
    };
    if let Some(uid) = &options.uid
        && *uid != metadata.uid
    {
        return Err(wrong("the UID", uid.as_str(), metadata.uid.as_str()));
    }
    if let Some(version) = &options.resource_version
        && *version != metadata.resource_version
    {
        return Err(wrong("the resourceVersion", version, &metadata.resource_version));
    }
    Ok(())
}
