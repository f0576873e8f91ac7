//! The commit of a turn that must not wait: it takes one of the daemon's turn slots, or is refused.

use super::{Admission, Refusal};
use crate::api::{Turn, Uid};
use crate::store::records::Txn;

/// How a commit that takes a slot went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slotted {
    Done,
    /// A guard did not hold: look again.
    Overtaken,
    /// No slot is free; nothing was written.
    Full,
}

impl Admission {
    /// Commits a transaction that writes `turn`, and with it that the turn holds a slot. `parent` is
    /// the parent of the turn's session.
    pub(super) async fn commit_with_slot(
        &self,
        txn: Txn,
        turn: &mut Turn,
        parent: Option<&Uid>,
    ) -> Result<Slotted, Refusal> {
        let mut slots = self.slots.lock().await;
        slots.refresh(self.records.store()).await?;
        if !slots.has_free(parent, self.limits.turns) {
            return Ok(Slotted::Full);
        }
        let uid = turn.metadata.uid.clone();
        let Some(holders) = slots.after(Some(&uid), &[], parent) else {
            // It holds one already: an attempt whose outcome was unknown was carried out.
            return Ok(Slotted::Overtaken);
        };
        let txn = slots.write(txn, &holders);
        slots.begin();
        // Whatever comes of it, the holders are read anew unless it is known to have happened.
        if !self.commit_new(txn, turn).await?.is_done() {
            return Ok(Slotted::Overtaken);
        }
        if let Some(rev) = crate::store::records::parse_revision(&turn.metadata.resource_version) {
            slots.written(holders, rev);
        }
        Ok(Slotted::Done)
    }
}
