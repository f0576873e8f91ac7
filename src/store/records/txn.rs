//! One commit over several records.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::spent::Spent;
use super::{Error, encode, index, key_of, parse_revision};
use crate::api::{Kind, Object, PermissionRequest, Spec, Time, Uid};
use crate::store::{COMMIT_OPS_MAX, Commit, Guard, Key, Op, Rev, Store, keys};

/// Collects guards and writes; [`Txn::commit`] does them all or none. A fault in what was collected
/// is told there.
///
/// Writing one record twice in a transaction is a fault of the caller: the second write's secondary
/// keys would be computed from a state that is not stored.
#[derive(Debug, Default)]
#[must_use = "nothing is written before the commit"]
pub struct Txn {
    commit: Commit,
    fault: Option<Error>,
}

impl Txn {
    /// One without guards or writes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Writes a record that is not there yet.
    pub fn create<S: Spec>(mut self, object: &Object<S>) -> Self {
        let key = key_of(object);
        self.commit.guards.push(Guard::Absent(key.clone()));
        self.put(key, object);
        for (key, value) in index(object) {
            self.commit.ops.push(Op::Put { key, value });
        }
        self
    }

    /// Replaces `old`, as it was read, by `new`; both have the same name and uid.
    pub fn update<S: Spec>(mut self, old: &Object<S>, new: &Object<S>) -> Self {
        let key = key_of(old);
        self.guard_unchanged(&key, old);
        self.put(key, new);
        let mut stale: BTreeMap<Key, Bytes> = index(old).into_iter().collect();
        for (key, value) in index(new) {
            if stale.remove(&key).as_ref() != Some(&value) {
                self.commit.ops.push(Op::Put { key, value });
            }
        }
        self.commit.ops.extend(stale.into_keys().map(|key| Op::Delete { key }));
        self
    }

    /// Removes a record as it was read, with its secondary keys and its blobs. An idempotency key
    /// that is still to be known at `now` stays behind, as one that is spent.
    pub fn retire<S: Spec>(self, object: &Object<S>, now: Time) -> Self {
        match Spent::of(object, now) {
            None => self.remove(object),
            Some((key, spent)) => self.remove_but(object, Some(&key)).spend(key, &spent),
        }
    }

    /// Removes a record as it was read, with all its secondary keys and its blobs.
    pub fn remove<S: Spec>(self, object: &Object<S>) -> Self {
        self.remove_but(object, None)
    }

    fn remove_but<S: Spec>(mut self, object: &Object<S>, kept: Option<&Key>) -> Self {
        let key = key_of(object);
        self.guard_unchanged(&key, object);
        self.commit.ops.push(Op::Delete { key });
        let indexed = index(object).into_iter().map(|(key, _)| key);
        let gone = indexed.filter(|key| Some(key) != kept);
        self.commit.ops.extend(gone.map(|key| Op::Delete { key }));
        if S::KIND == Kind::Session {
            // What its tree used is counted no more once the root is gone.
            let root = &object.metadata.uid;
            for key in [keys::quota_root(root), keys::quota_usage(root), keys::quota_untold(root)] {
                self.commit.ops.push(Op::Delete { key });
            }
        }
        self.drop_blobs(object.metadata.uid.clone())
    }

    /// Holds the commit back unless `object` is still as it was read.
    pub fn unchanged<S: Spec>(mut self, object: &Object<S>) -> Self {
        self.guard_unchanged(&key_of(object), object);
        self
    }

    /// Adds a guard.
    pub fn guard(mut self, guard: Guard) -> Self {
        self.commit.guards.push(guard);
        self
    }

    /// Writes a value that is no typed record.
    pub fn put_raw(mut self, key: Key, value: impl Into<Bytes>) -> Self {
        self.commit.ops.push(Op::Put { key, value: value.into() });
        self
    }

    /// Removes a key; no fault if it is not there.
    pub fn delete_raw(mut self, key: Key) -> Self {
        self.commit.ops.push(Op::Delete { key });
        self
    }

    /// Removes every blob of an owner.
    pub fn drop_blobs(mut self, owner: Uid) -> Self {
        self.commit.ops.push(Op::DropBlobs { owner });
        self
    }

    /// How many operations it has; a commit takes [`COMMIT_OPS_MAX`].
    #[must_use]
    pub fn ops(&self) -> usize {
        self.commit.ops.len()
    }

    /// Does it all at one revision, durably, or nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Store`] with a conflict if a guard does not hold; [`Error::TooManyOps`],
    /// [`Error::BadRevision`] and [`Error::Encode`] before anything is asked of the store.
    pub async fn commit(self, store: &dyn Store) -> Result<Rev, Error> {
        if let Some(fault) = self.fault {
            return Err(fault);
        }
        if self.commit.ops.len() > COMMIT_OPS_MAX {
            return Err(Error::TooManyOps { ops: self.commit.ops.len() });
        }
        Ok(store.commit(self.commit).await?)
    }

    fn spend(mut self, key: Key, spent: &Spent) -> Self {
        let at = spent.forgotten_at();
        match serde_json::to_vec(spent) {
            Ok(mark) => self.put_raw(at, key.as_str().to_owned()).put_raw(key, mark),
            Err(error) => {
                self.fail(Error::Encode { key, message: error.to_string() });
                self
            }
        }
    }

    fn put<S: Spec>(&mut self, key: Key, object: &Object<S>) {
        match encode(&key, object) {
            Ok(value) => self.commit.ops.push(Op::Put { key, value }),
            Err(fault) => self.fail(fault),
        }
    }

    fn guard_unchanged<S: Spec>(&mut self, key: &Key, object: &Object<S>) {
        let version = &object.metadata.resource_version;
        match parse_revision(version) {
            Some(rev) => self.commit.guards.push(Guard::RevIs(key.clone(), rev)),
            None => self.fail(Error::BadRevision { key: key.clone(), version: version.clone() }),
        }
    }

    fn fail(&mut self, fault: Error) {
        // The first fault is the one to tell: later ones may follow from it.
        self.fault.get_or_insert(fault);
    }
}

/// Removes requests for permission, as they were read: as many in a commit as it takes.
pub fn removals(requests: &[PermissionRequest]) -> impl Iterator<Item = Txn> + '_ {
    /// Each is at most six operations.
    const REQUESTS_MAX: usize = COMMIT_OPS_MAX / 6;
    requests.chunks(REQUESTS_MAX).map(|chunk| chunk.iter().fold(Txn::new(), Txn::remove))
}
