//! The daemon's turn slots: who holds one, as the store has it.
//!
//! The holders are a record of their own, guarded in the commit that takes a slot, so that a slot
//! is never given twice. Slots are taken by the admission of a turn that must not wait and by the
//! pass that takes a waiting turn; both share this value and hold its lock for their commit.

use std::sync::Arc;

use tokio::sync::Mutex;

use crate::api::Uid;
use crate::plan::capacity::{Holder, Limits, has_free_slot};
use crate::store::records::Txn;
use crate::store::{Error, Guard, Rev, SharedStore, keys};

/// The slots, shared by all who take one.
pub type SharedSlots = Arc<Mutex<Slots>>;

/// The holders and the revision that they were read at.
#[derive(Debug, Default)]
pub struct Slots {
    holders: Vec<Holder>,
    rev: Option<Rev>,
    /// Whether the store may hold something else: read before it is relied on.
    is_stale: bool,
}

impl Slots {
    /// What the store holds.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn load(store: &SharedStore) -> Result<Self, Error> {
        let record = store.get(&keys::quota_global()).await?;
        let rev = record.as_ref().map(|record| record.rev);
        let holders = record.and_then(|record| serde_json::from_slice(&record.value).ok());
        Ok(Self { holders: holders.unwrap_or_default(), rev, is_stale: false })
    }

    /// Reads anew what may have changed in a commit whose outcome is unknown.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn refresh(&mut self, store: &SharedStore) -> Result<(), Error> {
        if self.is_stale {
            *self = Self::load(store).await?;
        }
        Ok(())
    }

    /// Whether one more turn may run.
    #[must_use]
    pub fn has_free(&self, parent: Option<&Uid>, limits: Limits) -> bool {
        has_free_slot(&self.holders, parent, limits)
    }

    /// A commit that writes the holders begins: until its outcome is known, the store may hold
    /// something else. Whoever waits for the outcome may be dropped.
    pub const fn begin(&mut self) {
        self.is_stale = true;
    }

    /// Who holds a slot.
    #[must_use]
    pub fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Without the holders that hold nothing any more; `None` if there are none such.
    #[must_use]
    pub fn without(&self, gone: &[Uid]) -> Option<Vec<Holder>> {
        let mut holders = self.holders.clone();
        holders.retain(|holder| !gone.contains(&holder.turn));
        (holders != self.holders).then_some(holders)
    }

    /// Whether a turn holds a slot.
    #[must_use]
    pub fn holds(&self, turn: &Uid) -> bool {
        self.holders.iter().any(|holder| holder.turn == *turn)
    }

    /// The holders after a turn took a slot and others gave theirs back; `None` if that changes
    /// nothing. A turn that has a slot keeps it.
    #[must_use]
    pub fn after(
        &self,
        take: Option<&Uid>,
        free: &[Uid],
        parent: Option<&Uid>,
    ) -> Option<Vec<Holder>> {
        let mut holders = self.holders.clone();
        holders.retain(|holder| !free.contains(&holder.turn));
        if let Some(turn) = take
            && !holders.iter().any(|holder| holder.turn == *turn)
        {
            holders.push(Holder { turn: turn.clone(), parent: parent.cloned() });
        }
        (holders != self.holders).then_some(holders)
    }

    /// Writes the holders in this transaction, guarded by what they were read at.
    pub fn write(&self, txn: Txn, holders: &[Holder]) -> Txn {
        let key = keys::quota_global();
        let guard = match self.rev {
            Some(rev) => Guard::RevIs(key.clone(), rev),
            None => Guard::Absent(key.clone()),
        };
        // A list of strings: it always has a JSON form.
        let value = serde_json::to_vec(holders).unwrap_or_default();
        txn.guard(guard).put_raw(key, value)
    }

    /// The commit that wrote these holders happened.
    pub fn written(&mut self, holders: Vec<Holder>, rev: Rev) {
        self.holders = holders;
        self.rev = Some(rev);
        self.is_stale = false;
    }
}
