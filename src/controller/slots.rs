//! The daemon's turn slots: who holds one, as the store has it.
//!
//! The holders are a record of their own, guarded in the commit that takes a turn, so that a slot
//! is never given twice. One change at a time: a pass holds the lock for its commit.

use crate::api::Uid;
use crate::plan::Change;
use crate::plan::capacity::{Holder, Limits, has_free_slot};
use crate::store::records::Txn;
use crate::store::{Error, Guard, Rev, SharedStore, keys};

/// The holders and the revision that they were read at.
#[derive(Debug, Default)]
pub(super) struct Slots {
    holders: Vec<Holder>,
    rev: Option<Rev>,
    /// Whether the store may hold something else: read before it is relied on.
    is_stale: bool,
}

impl Slots {
    /// What the store holds.
    pub(super) async fn load(store: &SharedStore) -> Result<Self, Error> {
        let record = store.get(&keys::quota_global()).await?;
        let rev = record.as_ref().map(|record| record.rev);
        let holders = record.and_then(|record| serde_json::from_slice(&record.value).ok());
        Ok(Self { holders: holders.unwrap_or_default(), rev, is_stale: false })
    }

    /// Reads anew what may have changed in a commit whose outcome is unknown.
    pub(super) async fn refresh(&mut self, store: &SharedStore) -> Result<(), Error> {
        if self.is_stale {
            *self = Self::load(store).await?;
        }
        Ok(())
    }

    /// Whether one more turn may run.
    pub(super) fn has_free(&self, parent: Option<&Uid>, limits: Limits) -> bool {
        has_free_slot(&self.holders, parent, limits)
    }

    /// A commit that writes the holders begins: until its outcome is known, the store may hold
    /// something else. Whoever waits for the outcome may be dropped.
    pub(super) const fn begin(&mut self) {
        self.is_stale = true;
    }

    /// Who holds a slot.
    pub(super) fn holders(&self) -> &[Holder] {
        &self.holders
    }

    /// Without the holders that hold nothing any more; `None` if there are none such.
    pub(super) fn without(&self, gone: &[Uid]) -> Option<Vec<Holder>> {
        let mut holders = self.holders.clone();
        holders.retain(|holder| !gone.contains(&holder.turn));
        (holders != self.holders).then_some(holders)
    }

    /// Adds the change of holders to a commit; `None` if there is none.
    pub(super) fn change(&self, change: &Change, parent: Option<&Uid>) -> Option<Vec<Holder>> {
        let mut holders = self.holders.clone();
        holders.retain(|holder| !change.free_slots.contains(&holder.turn));
        if let Some(turn) = &change.take_slot {
            holders.push(Holder { turn: turn.clone(), parent: parent.cloned() });
        }
        (holders != self.holders).then_some(holders)
    }

    /// Writes the holders in this transaction, guarded by what they were read at.
    pub(super) fn write(&self, txn: Txn, holders: &[Holder]) -> Txn {
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
    pub(super) fn written(&mut self, holders: Vec<Holder>, rev: Rev) {
        self.holders = holders;
        self.rev = Some(rev);
        self.is_stale = false;
    }
}
