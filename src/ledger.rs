//! What trees of sessions have used, as the store has it: one small record a tree, shared by
//! admission, which reads it, and the loop, which writes it.
//!
//! It is written in the commit that writes what a session used, guarded by what the pass has read:
//! so each use is counted once. The uppermost session shows the sums in its own record; a mark says
//! that they were written by another session and not shown yet, so that a daemon which dies between
//! the two shows them after its next start. Absent: any decision.

use serde_json::Value;

use crate::api::{Kind, Name, Namespace, Session, SessionSpec, Uid};
use crate::store::records::{Error, Records, Txn};
use crate::store::{Guard, Rev, keys};

/// The sums of one tree.
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    /// The uppermost session.
    pub tree: Uid,
    /// What was used; `None`: nothing yet.
    pub used: Option<Value>,
    /// The revision that this was read at.
    pub rev: Option<Rev>,
}

/// Reads the sums of a session's tree. Sessions that were let go by a parent that is gone are a tree
/// of their own, below the uppermost one that is there.
///
/// # Errors
///
/// The store's.
pub async fn read(records: &Records, session: &Session) -> Result<Ledger, Error> {
    let lineage = &session.status.lineage;
    let own = &session.metadata.uid;
    let root = lineage.root.as_ref().filter(|_| lineage.parent.is_some()).unwrap_or(own);
    let found = read_of(records, root.clone()).await?;
    if found.used.is_some() || root == own || records.key_by_uid(root).await?.is_some() {
        return Ok(found);
    }
    let (mut top, mut above) = (own.clone(), lineage.parent.clone());
    while let Some(uid) = above {
        let Some(parent) = records.by_uid::<SessionSpec>(&uid).await? else { break };
        (top, above) = (uid, parent.status.lineage.parent);
    }
    read_of(records, top).await
}

async fn read_of(records: &Records, tree: Uid) -> Result<Ledger, Error> {
    let record = records.store().get(&keys::quota_usage(&tree)).await?;
    let rev = record.as_ref().map(|record| record.rev);
    let used = record.and_then(|record| serde_json::from_slice(&record.value).ok());
    Ok(Ledger { tree, used, rev })
}

/// Writes the sums, guarded by the revision that they were made from. `told`: the uppermost session,
/// which does not show them yet; `None`: it does from this commit on.
pub fn write(
    txn: Txn,
    tree: &Uid,
    rev: Option<Rev>,
    used: &Value,
    told: Option<(&Namespace, &Name)>,
) -> Txn {
    // Numbers and names: they always have a JSON form.
    let value = serde_json::to_vec(used).unwrap_or_default();
    let txn = guarded(txn, tree, rev).put_raw(keys::quota_usage(tree), value);
    let mark = keys::quota_untold(tree);
    match told {
        Some((namespace, root)) => {
            let key = keys::record(Kind::Session, namespace, root);
            txn.put_raw(mark, key.as_str().as_bytes().to_vec())
        }
        None => txn.delete_raw(mark),
    }
}

/// The uppermost session shows the sums as they were read at this revision.
pub fn shown(txn: Txn, tree: &Uid, rev: Option<Rev>) -> Txn {
    guarded(txn, tree, rev).delete_raw(keys::quota_untold(tree))
}

fn guarded(txn: Txn, tree: &Uid, rev: Option<Rev>) -> Txn {
    let key = keys::quota_usage(tree);
    txn.guard(match rev {
        Some(rev) => Guard::RevIs(key, rev),
        None => Guard::Absent(key),
    })
}
