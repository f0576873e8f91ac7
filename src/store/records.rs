//! The typed layer over `Store`: records in, records out, with their secondary keys.
//!
//! [`Records`] reads, [`Txn`] writes, `index` says which secondary keys a record has. Used by
//! the controller, the API and the manifests, so that no two of them disagree on a key.
//!
//! Invariants: `metadata.resourceVersion` is the record's revision, filled in on reading and never
//! kept in the stored value; every write is a compare-and-swap; a record and its secondary keys
//! change in one commit. Reading is tolerant: fields of a later version are ignored.
//!
//! Absent on purpose: validation (admission does it) and caching.

mod index;
mod spent;
mod txn;

use std::ops::ControlFlow;

use serde_json::Value;

use super::{Error as StoreError, Key, Record, Rev, SharedStore, keys};
use crate::api::{
    Kind, Name, Namespace, Object, PermissionRequest, Session, Spec, Time, Turn, Uid,
};

pub use index::{idempotency_key, index, spawn_key};
pub use spent::{Keyed, Spent};
pub use txn::{Txn, removals};

/// Records that a walk reads at a time.
const WALK_PAGE: usize = 256;

/// Why a record could not be read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The store did not do it.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The store holds a value that is no such record.
    #[error("the stored record {key} cannot be read: {message}")]
    Decode {
        /// Which.
        key: Key,
        /// What is wrong with it.
        message: String,
    },
    /// A record cannot be written as JSON.
    #[error("the record {key} cannot be written: {message}")]
    Encode {
        /// Which.
        key: Key,
        /// What is wrong with it.
        message: String,
    },
    /// A transaction of more operations than a commit takes.
    #[error("a transaction of {ops} operations; a commit takes {}", super::COMMIT_OPS_MAX)]
    TooManyOps {
        /// How many it has.
        ops: usize,
    },
    /// An update of an object that was not read from the store.
    #[error("{key}: `{version}` is no resourceVersion of this store")]
    BadRevision {
        /// Of which record.
        key: Key,
        /// What stands there.
        version: String,
    },
}

impl Error {
    /// Whether somebody else was faster: read again.
    #[must_use]
    pub const fn is_conflict(&self) -> bool {
        matches!(self, Self::Store(StoreError::Conflict { .. }))
    }
}

/// The revision that a `resourceVersion` stands for; `None` if it is none of ours.
#[must_use]
pub fn parse_revision(resource_version: &str) -> Option<Rev> {
    resource_version.parse().ok().map(Rev)
}

/// A record's key.
#[must_use]
pub fn key_of<S: Spec>(object: &Object<S>) -> Key {
    keys::record(S::KIND, &object.metadata.namespace, &object.metadata.name)
}

/// A record's value as an object of its kind, its `resourceVersion` filled in.
///
/// # Errors
///
/// [`Error::Decode`] if the value is no such object.
pub fn decode<S: Spec>(key: &Key, value: &[u8], rev: Rev) -> Result<Object<S>, Error> {
    let mut object: Object<S> = serde_json::from_slice(value)
        .map_err(|error| Error::Decode { key: key.clone(), message: error.to_string() })?;
    object.metadata.resource_version = rev.to_string();
    Ok(object)
}

/// A record's value as JSON of any kind, its `resourceVersion` filled in.
///
/// # Errors
///
/// [`Error::Decode`] if the value is no JSON object.
pub fn decode_value(key: &Key, value: &[u8], rev: Rev) -> Result<Value, Error> {
    let mut object: Value = serde_json::from_slice(value)
        .map_err(|error| Error::Decode { key: key.clone(), message: error.to_string() })?;
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return Err(Error::Decode { key: key.clone(), message: "it has no metadata".to_owned() });
    };
    metadata.insert("resourceVersion".to_owned(), Value::String(rev.to_string()));
    Ok(object)
}

/// What an object is stored as.
pub(super) fn encode<S: Spec>(key: &Key, object: &Object<S>) -> Result<bytes::Bytes, Error> {
    let mut stored = object.clone();
    stored.metadata.resource_version.clear();
    serde_json::to_vec(&stored)
        .map(bytes::Bytes::from)
        .map_err(|error| Error::Encode { key: key.clone(), message: error.to_string() })
}

/// Which part of a list is wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// The last key of the page before; none: from the start.
    pub after: Option<Key>,
    /// How many at most; 0: all.
    pub limit: usize,
}

impl Page {
    /// Everything in one page.
    pub const ALL: Self = Self { after: None, limit: 0 };
}

/// A page of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed<T> {
    /// In key order.
    pub items: Vec<T>,
    /// The revision that this is a consistent picture of; a watch goes on from it.
    pub rev: Rev,
    /// Where the next page begins; `None` if this is the last.
    pub next: Option<Key>,
}

/// Reads records.
#[derive(Clone)]
pub struct Records {
    store: SharedStore,
}

impl Records {
    /// A reader of this store.
    #[must_use]
    pub const fn new(store: SharedStore) -> Self {
        Self { store }
    }

    /// The store itself, for commits and watches.
    #[must_use]
    pub fn store(&self) -> &SharedStore {
        &self.store
    }

    /// One record.
    ///
    /// # Errors
    ///
    /// The store's, and [`Error::Decode`]. So for every read here.
    pub async fn get<S: Spec>(
        &self,
        namespace: &Namespace,
        name: &Name,
    ) -> Result<Option<Object<S>>, Error> {
        self.at(&keys::record(S::KIND, namespace, name)).await
    }

    /// One record of any kind, as JSON.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn get_value(
        &self,
        kind: Kind,
        namespace: &Namespace,
        name: &Name,
    ) -> Result<Option<Value>, Error> {
        self.value_at(&keys::record(kind, namespace, name)).await
    }

    /// The record with this key, as JSON.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn value_at(&self, key: &Key) -> Result<Option<Value>, Error> {
        let record = self.store.get(key).await?;
        record.map(|record| decode_value(&record.key, &record.value, record.rev)).transpose()
    }

    /// The record with a uid; `None` too if that is a record of another kind.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn by_uid<S: Spec>(&self, uid: &Uid) -> Result<Option<Object<S>>, Error> {
        let Some(key) = self.key_by_uid(uid).await? else { return Ok(None) };
        if !key.as_str().starts_with(&keys::kind_prefix(S::KIND)) {
            return Ok(None);
        }
        // The name may have been given to another object since the index was read.
        Ok(self.at::<S>(&key).await?.filter(|object| object.metadata.uid == *uid))
    }

    /// The key of the record with a uid, of whatever kind.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn key_by_uid(&self, uid: &Uid) -> Result<Option<Key>, Error> {
        self.store.get(&keys::uid(uid)).await?.map(|record| key_in(&record)).transpose()
    }

    /// The uid that sorts last: the newest, unless the clock of an earlier daemon was ahead.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn newest_uid(&self) -> Result<Option<Uid>, Error> {
        let last = self.store.last(keys::UIDS).await?;
        Ok(last.and_then(|last| last.key.as_str().strip_prefix(keys::UIDS).map(Uid::from)))
    }

    /// The newest end of a session that is still there, unless the clock of an earlier daemon was ahead.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn newest_end(&self) -> Result<Option<Time>, Error> {
        let last = self.store.last(keys::FINISHED).await?;
        Ok(last.and_then(|last| keys::time_in(&last.key, keys::FINISHED)))
    }

    /// The records of a kind, of one namespace or of all.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn list<S: Spec>(
        &self,
        namespace: Option<&Namespace>,
        page: &Page,
    ) -> Result<Listed<Object<S>>, Error> {
        self.page(S::KIND, namespace, page, |record| decode(&record.key, &record.value, record.rev))
            .await
    }

    /// The records of a kind as JSON, of one namespace or of all.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn list_values(
        &self,
        kind: Kind,
        namespace: Option<&Namespace>,
        page: &Page,
    ) -> Result<Listed<Value>, Error> {
        self.page(kind, namespace, page, |record| {
            decode_value(&record.key, &record.value, record.rev)
        })
        .await
    }

    /// A session's turns that are not final, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn open_turns(&self, session: &Uid) -> Result<Vec<Turn>, Error> {
        self.through(&keys::open_turns(session)).await
    }

    /// All of a session's turns, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn turns_of(&self, session: &Uid) -> Result<Vec<Turn>, Error> {
        self.through(&keys::turns_of(session)).await
    }

    /// A session's requests for permission that wait, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn asking(&self, session: &Uid) -> Result<Vec<PermissionRequest>, Error> {
        self.through(&keys::asking_of(session)).await
    }

    /// All requests for permission of a session or of a turn, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn requests_of(&self, owner: &Uid) -> Result<Vec<PermissionRequest>, Error> {
        self.through(&keys::requests_of(owner)).await
    }

    /// Ended turns of which a session is not told yet, oldest first; at most `limit`.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn notices_for(&self, caller: &Uid, limit: usize) -> Result<Vec<Turn>, Error> {
        let (found, _) = self.store.list(&keys::notices_for(caller), None, limit).await?;
        let mut turns = Vec::with_capacity(found.len());
        for record in &found {
            turns.extend(self.at(&key_in(record)?).await?);
        }
        Ok(turns)
    }

    /// A session's children, oldest first.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn children_of(&self, session: &Uid) -> Result<Vec<Session>, Error> {
        self.through(&keys::children_of(session)).await
    }

    /// The keys that the secondary keys with this prefix point at, in order, each once. For
    /// [`keys::AWAKE`], [`keys::DEADLINES`] and [`keys::waiting_for_prefix`].
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn pointed_at(&self, prefix: &str) -> Result<Vec<Key>, Error> {
        let (records, _) = self.store.list(prefix, None, 0).await?;
        let mut found: Vec<Key> = Vec::with_capacity(records.len());
        let mut seen = std::collections::HashSet::new();
        for record in &records {
            let key = key_in(record)?;
            if seen.insert(key.clone()) {
                found.push(key);
            }
        }
        Ok(found)
    }

    /// Shows what the store has under a prefix, in key order, until `visit` has seen enough. A page
    /// at a time, so that neither memory nor the store is taken by all of it at once; what is written
    /// meanwhile may be seen or not.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn walk(
        &self,
        prefix: &str,
        mut visit: impl FnMut(Record) -> ControlFlow<()>,
    ) -> Result<(), StoreError> {
        let mut after: Option<Key> = None;
        loop {
            let (page, _) = self.store.list(prefix, after.as_ref(), WALK_PAGE).await?;
            let last = page.last().filter(|_| page.len() == WALK_PAGE);
            after = last.map(|record| record.key.clone());
            for record in page {
                if visit(record).is_break() {
                    return Ok(());
                }
            }
            if after.is_none() {
                return Ok(());
            }
        }
    }

    /// The object that a secondary key points at.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn pointed_at_by<S: Spec>(&self, key: &Key) -> Result<Option<Object<S>>, Error> {
        match self.store.get(key).await? {
            Some(record) => self.at(&key_in(&record)?).await,
            None => Ok(None),
        }
    }

    /// The object with this key.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn at<S: Spec>(&self, key: &Key) -> Result<Option<Object<S>>, Error> {
        let record = self.store.get(key).await?;
        record.map(|record| decode(&record.key, &record.value, record.rev)).transpose()
    }

    /// The objects that an index points at. What went between the two reads is left out: a reader
    /// that decides anything by them writes with a guard and is told.
    async fn through<S: Spec>(&self, prefix: &str) -> Result<Vec<Object<S>>, Error> {
        let keys = self.pointed_at(prefix).await?;
        let mut objects = Vec::with_capacity(keys.len());
        for key in keys {
            objects.extend(self.at(&key).await?);
        }
        Ok(objects)
    }

    async fn page<T>(
        &self,
        kind: Kind,
        namespace: Option<&Namespace>,
        page: &Page,
        decode: impl Fn(&Record) -> Result<T, Error>,
    ) -> Result<Listed<T>, Error> {
        let prefix = match namespace {
            Some(namespace) => keys::namespace_prefix(kind, namespace),
            None => keys::kind_prefix(kind),
        };
        // One more than asked for tells whether there is a next page.
        let wanted = if page.limit == 0 { 0 } else { page.limit.saturating_add(1) };
        let (mut records, rev) = self.store.list(&prefix, page.after.as_ref(), wanted).await?;
        let has_more = page.limit > 0 && records.len() > page.limit;
        if has_more {
            records.truncate(page.limit);
        }
        let next = if has_more { records.last().map(|record| record.key.clone()) } else { None };
        let items = records.iter().map(decode).collect::<Result<_, _>>()?;
        Ok(Listed { items, rev, next })
    }
}

/// The key that a secondary key points at.
fn key_in(record: &Record) -> Result<Key, Error> {
    match std::str::from_utf8(&record.value) {
        Ok(text) => Ok(Key::new(text)),
        Err(error) => Err(Error::Decode { key: record.key.clone(), message: error.to_string() }),
    }
}

#[cfg(test)]
mod stale;
#[cfg(test)]
mod tests;
