//! What a manifest file says of an object: make it, change it, or replace it.

use serde_json::Value;

use super::kinds::Admissible;
use super::metadata::{self, Mode};
use super::{
    ATTEMPTS_MAX, Admission, Admitted, DeleteOptions, Refusal, WriteOptions, Writer, decode,
    ownership,
};
use crate::api::field::FieldErrorReason::FieldValueRequired;
use crate::api::{
    AgentSpec, DEFAULT_NAMESPACE, FieldError, FieldErrors, FieldPath, Kind, Name, NamespaceSpec,
    Object, RoleSpec, SessionSpec, TurnSpec, Uid, WorkspaceSpec,
};

/// What came of a document.
#[derive(Clone, Debug, PartialEq)]
pub enum Applied {
    /// The object is as the document says.
    Admitted(Admitted),
    /// The document changes what cannot be changed on a live object, or the object is on its way
    /// out: it goes (dry run: it would go), and the document is to be applied again once it is
    /// gone.
    Replacing {
        /// The object that goes.
        uid: Uid,
    },
}

impl Admission {
    /// Makes the object of a document be as the document says. Its namespace is made if it is not
    /// there. Desired state is never moved back: the difference is a warning.
    ///
    /// Labels and annotations that others added stay; those that an earlier document of the object
    /// had and this one has not go.
    ///
    /// # Errors
    ///
    /// [`Refusal`]; nothing was written.
    pub async fn apply(
        &self,
        kind: Kind,
        body: Value,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Applied, Refusal> {
        match kind {
            Kind::Agent => self.apply_object::<AgentSpec>(body, options, writer).await,
            Kind::Workspace => self.apply_object::<WorkspaceSpec>(body, options, writer).await,
            Kind::Role => self.apply_object::<RoleSpec>(body, options, writer).await,
            Kind::Namespace => self.apply_object::<NamespaceSpec>(body, options, writer).await,
            Kind::Session => {
                Box::pin(self.apply_object::<SessionSpec>(body, options, writer)).await
            }
            Kind::Turn => Box::pin(self.apply_object::<TurnSpec>(body, options, writer)).await,
            Kind::PermissionRequest | Kind::Event => Err(Refusal::MethodNotAllowed { kind }),
        }
    }

    async fn apply_object<S: Admissible>(
        &self,
        body: Value,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Applied, Refusal> {
        let validation = options.field_validation;
        let (mut document, warnings) = decode::decode::<S>(body.clone(), validation)?;
        if document.metadata.name.is_empty() {
            let message = format!("a document of a {} needs a name", S::KIND);
            let field = FieldPath::new("metadata.name");
            let error = FieldError { field, reason: FieldValueRequired, message };
            return Err(Refusal::field(S::KIND, &Name::default(), error));
        }
        if S::KIND.is_namespaced() && document.metadata.namespace.is_empty() {
            document.metadata.namespace = DEFAULT_NAMESPACE.into();
        }
        let (namespace, name) = (&document.metadata.namespace, &document.metadata.name);
        for _ in 0..ATTEMPTS_MAX {
            let Some(old) = self.records.get::<S>(namespace, name).await? else {
                let made = self.create(S::KIND, None, body.clone(), options, writer).await;
                match made {
                    // Somebody else made it since it was looked for.
                    Err(Refusal::AlreadyExists { .. }) => continue,
                    made => return made.map(Applied::Admitted),
                }
            };
            if old.metadata.is_deleting() {
                return Ok(Applied::Replacing { uid: old.metadata.uid });
            }
            let mut written = document.clone();
            self.settle_prompt(&old, &mut written.spec).await?;
            let mut warnings = warnings.clone();
            if written.spec.keep_forward(&old.spec) {
                warnings.push(
                    "spec.desiredState: the record has moved on and is not taken back".to_owned(),
                );
            }
            if must_replace(&old, &written) {
                check(&written)?;
                let uid = old.metadata.uid;
                if options.dry_run
                    || !self.delete_for_replacement::<S>(namespace, name, &uid).await?
                {
                    return Ok(Applied::Replacing { uid });
                }
                continue;
            }
            ownership::keep_what_others_wrote(&old.metadata, &mut written.metadata);
            let new = self.merged(&old, written, Mode::Put, options, writer)?;
            if let Some(admitted) = self.replace(&old, new, warnings, options).await? {
                return Ok(Applied::Admitted(admitted));
            }
        }
        Err(Refusal::modified(S::KIND, name))
    }

    /// Asks for the end of an object whose document replaces it; tells whether it is gone already.
    async fn delete_for_replacement<S: Admissible>(
        &self,
        namespace: &crate::api::Namespace,
        name: &Name,
        uid: &Uid,
    ) -> Result<bool, Refusal> {
        let options = DeleteOptions { uid: Some(uid.clone()), ..DeleteOptions::default() };
        match self.delete_object::<S>(namespace, name, &options).await {
            Ok(deleted) => Ok(deleted.is_gone),
            // It went, or another one has its name: look again.
            Err(Refusal::NotFound { .. } | Refusal::Conflict { .. }) => Ok(true),
            Err(refusal) => Err(refusal),
        }
    }
}

/// Whether a document is for another object than the stored one: it changes what is immutable, or
/// the object has ended and the document changed since.
fn must_replace<S: Admissible>(old: &Object<S>, written: &Object<S>) -> bool {
    let mut desired = written.spec.clone();
    desired.take_desired_state(&old.spec);
    desired != old.spec
        && (S::has_ended(&old.status) || desired.validate_update(&old.spec).is_err())
}

/// A document that cannot be carried out must not take the old object with it.
fn check<S: Admissible>(written: &Object<S>) -> Result<(), Refusal> {
    let mut errors = FieldErrors::default();
    metadata::check(S::KIND, &written.metadata, &mut errors);
    errors.0.extend(written.spec.validate().err().unwrap_or_default().0);
    let name = written.metadata.name.clone();
    errors.into_result().map_err(|errors| Refusal::Invalid { kind: S::KIND, name, errors })
}
