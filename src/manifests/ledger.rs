//! The durable marks: what each file made, so that a restart deletes what was removed meanwhile,
//! and makes nothing again that somebody else removed.
//!
//! Invariant: a mark is written after the object that it is of. A crash between the two leaves an
//! object that names its file, which is taken up again by that; a mark before its object would be
//! a tombstone of what never was.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::diff::{DocumentHash, ObjectId};
use super::directory::Identity;
use crate::api::{Kind, Name, Namespace, Uid};
use crate::store::{self, Commit, Guard, Op, Rev, SharedStore, keys};

/// A mark as it is stored; directories by path, since their order may change between two starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    /// The watched directory.
    pub(super) directory: String,
    /// The file below it.
    pub(super) path: String,
    /// The document that was applied last; empty while the object is being replaced.
    pub(super) hash: DocumentHash,
    /// The object that was made; empty if the file found it (a namespace that was there).
    pub(super) uid: Uid,
    /// The directory as it was when the object was last seen in it.
    pub(super) identity: Identity,
}

/// The stored form.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Stored {
    kind: String,
    namespace: Namespace,
    name: Name,
    directory: String,
    path: String,
    hash: String,
    uid: Uid,
    inode: u64,
    /// Text, since JSON numbers of other programs end at 2^53.
    born_ns: String,
}

/// All marks, and the revision of each.
#[derive(Default)]
pub(super) struct Ledger {
    entries: BTreeMap<ObjectId, (Entry, Rev)>,
}

impl Ledger {
    /// Reads all marks. What cannot be read is left out: then the object is taken up again by the
    /// file that it names.
    pub(super) async fn load(store: &SharedStore) -> Result<Self, store::Error> {
        let (records, _) = store.list(keys::MANIFESTS, None, 0).await?;
        let mut ledger = Self::default();
        for record in records {
            match decode(&record.value) {
                Some((object, entry)) => {
                    ledger.entries.insert(object, (entry, record.rev));
                }
                None => tracing::warn!(key = %record.key, "a manifest mark cannot be read"),
            }
        }
        Ok(ledger)
    }

    pub(super) fn get(&self, object: &ObjectId) -> Option<&Entry> {
        self.entries.get(object).map(|(entry, _)| entry)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&ObjectId, &Entry)> {
        self.entries.iter().map(|(object, (entry, _))| (object, entry))
    }

    /// Writes a mark.
    pub(super) async fn put(
        &mut self,
        store: &SharedStore,
        object: &ObjectId,
        entry: Entry,
    ) -> Result<(), store::Error> {
        let known = self.entries.get(object);
        if known.is_some_and(|(known, _)| *known == entry) {
            return Ok(());
        }
        let key = keys::manifest(object.kind, &object.namespace, &object.name);
        let guard = match known {
            Some((_, rev)) => Guard::RevIs(key.clone(), *rev),
            None => Guard::Absent(key.clone()),
        };
        let stored = Stored {
            kind: object.kind.as_str().to_owned(),
            namespace: object.namespace.clone(),
            name: object.name.clone(),
            directory: entry.directory.clone(),
            path: entry.path.clone(),
            hash: entry.hash.0.clone(),
            uid: entry.uid.clone(),
            inode: entry.identity.inode(),
            born_ns: entry.identity.born_ns().to_string(),
        };
        let value = serde_json::to_vec(&stored)
            .map_err(|error| store::Error::Unsupported(error.to_string()))?
            .into();
        let commit = Commit { guards: vec![guard], ops: vec![Op::Put { key, value }] };
        let rev = store.commit(commit).await?;
        self.entries.insert(object.clone(), (entry, rev));
        Ok(())
    }

    /// Removes a mark.
    pub(super) async fn remove(
        &mut self,
        store: &SharedStore,
        object: &ObjectId,
    ) -> Result<(), store::Error> {
        let Some((_, rev)) = self.entries.get(object) else { return Ok(()) };
        let key = keys::manifest(object.kind, &object.namespace, &object.name);
        let guards = vec![Guard::RevIs(key.clone(), *rev)];
        store.commit(Commit { guards, ops: vec![Op::Delete { key }] }).await?;
        self.entries.remove(object);
        Ok(())
    }
}

fn decode(value: &[u8]) -> Option<(ObjectId, Entry)> {
    let stored: Stored = serde_json::from_slice(value).ok()?;
    let kind = Kind::parse(&stored.kind)?;
    let object = ObjectId { kind, namespace: stored.namespace, name: stored.name };
    let entry = Entry {
        directory: stored.directory,
        path: stored.path,
        hash: DocumentHash(stored.hash),
        uid: stored.uid,
        identity: Identity::new(stored.inode, stored.born_ns.parse().ok()?),
    };
    Some((object, entry))
}
