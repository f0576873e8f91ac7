//! How a caller ends what it asked for: its child, or the call itself.

use super::{Made, SpawnRefusal};
use crate::admission::session::has_unfinished_turn;
use crate::admission::{ATTEMPTS_MAX, Admission, Caller};
use crate::api::session::DesiredState;
use crate::api::turn::{Cancel, CancelBy, Delivery, TurnDesiredState};
use crate::api::{Code, TurnSpec, Uid};
use crate::store::records::Txn;

impl Admission {
    /// Asks for the end of a child that has an unfinished turn. `true`: the wish is durable. `false`:
    /// there is no such child, or nothing of it to cancel; nothing was written.
    ///
    /// # Errors
    ///
    /// `SPAWN_PARENT_SESSION_NOT_FOUND`, and the store's.
    pub async fn cancel_child(&self, caller: &Caller, session: &Uid) -> Result<bool, SpawnRefusal> {
        self.live_caller(caller).await?;
        for _ in 0..ATTEMPTS_MAX {
            let Some(old) = self.child(caller, session).await? else { return Ok(false) };
            if !has_unfinished_turn(&old) {
                return Ok(false);
            }
            if old.spec.desired_state != DesiredState::Running {
                return Ok(true);
            }
            let mut new = old.clone();
            new.spec.desired_state = DesiredState::Cancelled;
            new.metadata.generation += 1;
            new.status.cancel = Some(Cancel {
                by: CancelBy::Parent,
                reason: "the parent session cancelled it".to_owned(),
                at: self.clock.now().time,
            });
            if self.commit_new(Txn::new().update(&old, &new), &mut new).await?.is_done() {
                return Ok(true);
            }
        }
        Err(overtaken())
    }

    /// Takes back a call that was cancelled, if its prompt was not on its way to the agent yet: the
    /// turn is cancelled, and a session that the call made is deleted. `false`: it is too late, or
    /// the turn is over; nothing was written.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn withdraw(&self, caller: &Caller, made: &Made) -> Result<bool, SpawnRefusal> {
        let by_call = || Cancel {
            by: CancelBy::CallCancelled,
            reason: "the call that made it was cancelled".to_owned(),
            at: self.clock.now().time,
        };
        for _ in 0..ATTEMPTS_MAX {
            let Some(session) = self.child(caller, &made.session.metadata.uid).await? else {
                return Ok(false);
            };
            let found = self.records.by_uid::<TurnSpec>(&made.turn.metadata.uid).await?;
            let Some(old) = found.filter(|turn| {
                !turn.status.phase.is_final() && turn.status.delivery == Delivery::NotSent
            }) else {
                return Ok(false);
            };
            let mut turn = old.clone();
            turn.spec.desired_state = TurnDesiredState::Cancelled;
            // What is taken back can be asked for again: no agent was given anything.
            turn.spec.idempotency_key = None;
            turn.metadata.generation += 1;
            turn.status.cancel.get_or_insert_with(by_call);
            let mut txn = Txn::new().update(&old, &turn);
            if made.is_new_session && !made.is_repeat {
                let mut ending = session.clone();
                ending.spec.desired_state = DesiredState::Deleted;
                ending.metadata.generation += 1;
                ending.metadata.deletion_timestamp.get_or_insert(self.clock.now().time);
                ending.status.cancel.get_or_insert_with(by_call);
                txn = txn.update(&session, &ending);
            }
            if self.commit_new(txn, &mut turn).await?.is_done() {
                return Ok(true);
            }
        }
        Err(overtaken())
    }
}

pub(super) fn overtaken() -> SpawnRefusal {
    SpawnRefusal::new(Code::SpawnUnavailable, "others were faster each time; try again")
}
