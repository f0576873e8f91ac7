//! New sessions, and their first turn: it is made in the same commit, so that no turn of somebody
//! else can come before it. The name of the turn counts in the session (`turnsMade`), by which the
//! loop sees that it has none to make.

use super::turn::owned_by;
use super::{ATTEMPTS_MAX, Admission, Admitted, Incoming, Refusal, WriteOptions, Writer, created};
use crate::api::session::DesiredState;
use crate::api::{Kind, ObjectMeta, Session, SessionSpec, Turn, TurnSpec};
use crate::store::records::Txn;

impl Admission {
    pub(super) async fn create_session(
        &self,
        incoming: Incoming<SessionSpec>,
        options: &WriteOptions,
        writer: &Writer,
    ) -> Result<Admitted, Refusal> {
        let Incoming { mut object, warnings } = incoming;
        for _ in 0..ATTEMPTS_MAX {
            let home = self.home(&object, writer).await?;
            let first = self.first_turn(&mut object).await?;
            if options.dry_run {
                self.expect_free(&object).await?;
                return created(&object, warnings);
            }
            let mut txn = home.join(Txn::new().create(&object));
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

/// Why a session takes no turns; none if it does.
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
