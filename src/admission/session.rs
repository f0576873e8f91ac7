//! New sessions: their place in the tree, and their first turn, which is made in the same commit,
//! so that no pass of the loop has to find out whether it was made already.

use super::turn::{PROMPT_INLINE_BYTES_MAX, owned_by, prompt_bytes};
use super::{ATTEMPTS_MAX, Admission, Admitted, Incoming, Refusal, WriteOptions, Writer, created};
use crate::api::field::FieldErrorReason::FieldValueInvalid;
use crate::api::session::DesiredState;
use crate::api::{
    FieldError, FieldPath, Kind, Name, ObjectMeta, OwnerReference, Session, SessionSpec, Turn,
    TurnSpec,
};
use crate::store::records::Txn;

impl Admission {
    pub(super) async fn create_session(
        &self,
        incoming: Incoming<SessionSpec>,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Admitted, Refusal> {
        let Incoming { mut object, warnings } = incoming;
        check_prompt(&object)?;
        for _ in 0..ATTEMPTS_MAX {
            let home = self.home(&object, writer).await?;
            let parent = self.parent_of(&object).await?;
            if let Some(parent) = &parent {
                place_below(&mut object, parent);
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
            if self.commit_new(txn, &mut object).await?.is_done() {
                return created(&object, warnings);
            }
            self.expect_free(&object).await?;
        }
        Err(Refusal::modified(Kind::Session, &object.metadata.name))
    }

    /// The parent that the session names; it must be there and live.
    async fn parent_of(&self, session: &Session) -> Result<Option<Session>, Refusal> {
        let Some(name) = &session.spec.parent else { return Ok(None) };
        let name = Name::from(name.as_str());
        let found = self.records.get::<SessionSpec>(&session.metadata.namespace, &name).await?;
        let Some(parent) = found else {
            let message = format!("`{name}`: there is no such session in the namespace");
            let field = FieldPath::new("spec.parent");
            let error = FieldError { field, reason: FieldValueInvalid, message };
            return Err(Refusal::field(Kind::Session, &session.metadata.name, error));
        };
        if let Some(why) = why_not_live(&parent) {
            return Err(Refusal::Conflict {
                kind: Kind::Session,
                name: session.metadata.name.clone(),
                why: format!("its parent {name} {why}"),
            });
        }
        Ok(Some(parent))
    }

    /// The turn that the session's own prompt makes, and its count in the session.
    async fn first_turn(&self, session: &mut Session) -> Result<Option<Turn>, Refusal> {
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
            owner_references: vec![owned_by(session)],
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

/// Why a session takes neither turns nor children; none if it does.
pub(super) fn why_not_live(session: &Session) -> Option<String> {
    if session.metadata.is_deleting() {
        return Some("is being deleted; make a new session".to_owned());
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

fn place_below(session: &mut Session, parent: &Session) {
    let above = &parent.status.lineage;
    let lineage = &mut session.status.lineage;
    lineage.root = Some(above.root.clone().unwrap_or_else(|| parent.metadata.uid.clone()));
    lineage.parent = Some(parent.metadata.uid.clone());
    lineage.depth = above.depth.saturating_add(1);
    session.metadata.owner_references = vec![OwnerReference {
        api_version: parent.api_version.clone(),
        kind: parent.kind.clone(),
        name: parent.metadata.name.clone(),
        uid: parent.metadata.uid.clone(),
        controller: None,
        block_owner_deletion: Some(true),
    }];
}

fn check_prompt(session: &Session) -> Result<(), Refusal> {
    let spec = &session.spec;
    let Some((field, bytes)) = prompt_bytes(spec.prompt.as_deref(), spec.prompt_blocks.as_deref())
    else {
        return Ok(());
    };
    if bytes.len() <= PROMPT_INLINE_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "{} bytes: expected at most {PROMPT_INLINE_BYTES_MAX}; give a longer prompt to a Turn",
        bytes.len()
    );
    let error = FieldError { field, reason: FieldValueInvalid, message };
    Err(Refusal::field(Kind::Session, &session.metadata.name, error))
}
