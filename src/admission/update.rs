//! Changes of objects that are there: replace and patch.

use std::any::Any;

use serde_json::Value;

use super::kinds::Admissible;
use super::metadata::{self, Mode};
use super::turn::take_large_prompt;
use super::{
    ATTEMPTS_MAX, Admission, Admitted, Outcome, Refusal, WriteOptions, Writer, admitted, decode,
    ownership, to_value,
};
use crate::api::turn::{Cancel, CancelBy};
use crate::api::{FieldErrors, Name, Namespace, Object, Session, Time, Turn};
use crate::store::records::Txn;

/// What is to be changed, by whom and how.
pub(super) struct Target<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) name: &'a Name,
    pub(super) options: &'a WriteOptions,
    pub(super) writer: &'a Writer,
}

/// A change as it was asked for.
pub(super) enum Change {
    /// The whole object as it should be.
    Whole(Value),
    /// What differs.
    Patch(Value),
}

impl Change {
    const fn mode(&self) -> Mode {
        match self {
            Self::Whole(_) => Mode::Put,
            Self::Patch(_) => Mode::Patch,
        }
    }

    /// The `resourceVersion` that the writer saw, if it says so.
    fn precondition(&self) -> Result<Option<String>, Refusal> {
        let (Self::Whole(body) | Self::Patch(body)) = self;
        match body.get("metadata").and_then(|metadata| metadata.get("resourceVersion")) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(version)) if version.is_empty() => Ok(None),
            Some(Value::String(version)) => Ok(Some(version.clone())),
            Some(other) => Err(Refusal::BadRequest {
                why: format!("metadata.resourceVersion: {other}: expected a string"),
            }),
        }
    }

    /// The whole document that the change makes of `old`.
    fn applied_to<S: Admissible>(&self, old: &Object<S>) -> Result<Value, Refusal> {
        match self {
            Self::Whole(body) => Ok(body.clone()),
            Self::Patch(patch) => {
                let mut body = to_value(old)?;
                decode::merge(&mut body, patch.clone());
                Ok(body)
            }
        }
    }
}

/// Says on a session or turn that its parent asked for its end, unless somebody did before.
pub(super) fn mark_cancel<S: Admissible>(object: &mut Object<S>, at: Time) {
    let by_parent = || Cancel {
        by: CancelBy::Parent,
        reason: "the parent session cancelled it".to_owned(),
        at,
    };
    let any = object as &mut dyn Any;
    if let Some(session) = any.downcast_mut::<Session>() {
        session.status.cancel.get_or_insert_with(by_parent);
    } else if let Some(turn) = any.downcast_mut::<Turn>() {
        turn.status.cancel.get_or_insert_with(by_parent);
    }
}

impl Admission {
    pub(super) async fn change_object<S: Admissible>(
        &self,
        target: &Target<'_>,
        change: Change,
    ) -> Result<Admitted, Refusal> {
        let precondition = change.precondition()?;
        let name = target.name;
        for _ in 0..ATTEMPTS_MAX {
            let old = self.existing::<S>(target.namespace, name).await?;
            if precondition.as_ref().is_some_and(|seen| *seen != old.metadata.resource_version) {
                return Err(Refusal::modified(S::KIND, name));
            }
            let mut body = change.applied_to(&old)?;
            let namespace = S::KIND.is_namespaced().then_some(target.namespace);
            decode::address(&mut body, namespace, Some(name))?;
            let validation = target.options.field_validation;
            let (mut written, warnings) = decode::decode::<S>(body, validation)?;
            if !written.metadata.uid.is_empty() && written.metadata.uid != old.metadata.uid {
                return Err(Refusal::modified(S::KIND, name));
            }
            self.settle_prompt(&old, &mut written.spec).await?;
            let new = self.merged(&old, written, change.mode(), target.options, target.writer)?;
            if let Some(admitted) = self.replace(&old, new, warnings, target.options).await? {
                return Ok(admitted);
            }
        }
        Err(Refusal::modified(S::KIND, name))
    }

    pub(super) async fn existing<S: Admissible>(
        &self,
        namespace: &Namespace,
        name: &Name,
    ) -> Result<Object<S>, Refusal> {
        let found = self.records.get::<S>(namespace, name).await?;
        found.ok_or_else(|| Refusal::NotFound { kind: S::KIND, name: name.clone() })
    }

    /// Writes `new` over `old`, if there is a difference; none if somebody else was faster.
    pub(super) async fn replace<S: Admissible>(
        &self,
        old: &Object<S>,
        mut new: Object<S>,
        warnings: Vec<String>,
        options: &WriteOptions,
    ) -> Result<Option<Admitted>, Refusal> {
        if new == *old {
            return admitted(old, warnings, Outcome::Unchanged).map(Some);
        }
        if !options.dry_run {
            let txn = Txn::new().update(old, &new);
            if !self.commit_new(txn, &mut new).await?.is_done() {
                return Ok(None);
            }
        }
        admitted(&new, warnings, Outcome::Updated).map(Some)
    }

    /// The object that a writer's document makes of a stored one.
    pub(super) fn merged<S: Admissible>(
        &self,
        old: &Object<S>,
        written: Object<S>,
        mode: Mode,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Object<S>, Refusal> {
        if let Some(why) = S::why_too_late(old, &written.spec) {
            return Err(Refusal::Conflict { kind: S::KIND, name: old.metadata.name.clone(), why });
        }
        let mut errors = FieldErrors::default();
        let mut new = Object {
            metadata: metadata::updated(
                S::KIND,
                &old.metadata,
                written.metadata,
                mode,
                &mut errors,
            ),
            spec: written.spec,
            ..old.clone()
        };
        metadata::check(S::KIND, &new.metadata, &mut errors);
        ownership::settle(old, &mut new, options, writer, &mut errors)?;
        if new.spec != old.spec {
            new.metadata.generation += 1;
            errors.0.extend(new.spec.validate().err().unwrap_or_default().0);
            self.check_free_paths(&new.spec, &mut errors);
            errors.0.extend(new.spec.validate_update(&old.spec).err().unwrap_or_default().0);
        }
        if new.spec.wants_removal() {
            new.metadata.deletion_timestamp.get_or_insert(self.clock.now().time);
        }
        if *writer == Writer::Parent && new.spec != old.spec {
            mark_cancel(&mut new, self.clock.now().time);
        }
        let name = old.metadata.name.clone();
        errors.into_result().map_err(|errors| Refusal::Invalid { kind: S::KIND, name, errors })?;
        Ok(new)
    }

    /// Makes a document that holds the large prompt of a stored turn equal to it.
    pub(super) async fn settle_prompt<S: Admissible>(
        &self,
        old: &Object<S>,
        written: &mut S,
    ) -> Result<(), Refusal> {
        let (Some(old), Some(written)) =
            ((old as &dyn Any).downcast_ref::<Turn>(), written.as_turn_mut())
        else {
            return Ok(());
        };
        if old.spec.prompt_blob.is_none() || written.prompt_blob.is_some() {
            return Ok(());
        }
        let mut stored = written.clone();
        let Some(prompt) = take_large_prompt(&mut stored) else { return Ok(()) };
        if stored.prompt_blob == old.spec.prompt_blob && self.blob_is(old, &prompt).await? {
            *written = stored;
        }
        Ok(())
    }
}
