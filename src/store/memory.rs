//! A store without a disk: for tests, and for the planner's in-memory loop. It keeps the contract
//! of [`Store`] and [`Blobs`] in everything but durability, so what passes on it passes on a real
//! engine unless a crash or a disk is what is tested.
//!
//! Absent on purpose: faults. A faulty store wraps a good one.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;
use bytes::Bytes;
use tokio::sync::mpsc;

use super::{
    Append, BLOB_CHUNK_BYTES_MAX, BlobId, Blobs, COMMIT_OPS_MAX, Change, Commit, Error, Guard, Key,
    Op, RECORD_BYTES_MAX, Record, Rev, Store, Watch, past,
};
use crate::api::Uid;

/// Changes that a watcher may lag behind before it is told `Lost` and has to start anew: more than
/// any test writes between two reads.
const WATCH_LAG_MAX: usize = 4096;

/// Records and blobs in memory.
#[doc(hidden)]
#[derive(Default)]
pub struct MemoryStore {
    state: Mutex<State>,
    is_full: AtomicBool,
}

#[derive(Default)]
struct State {
    head: u64,
    /// Changes up to this revision are forgotten.
    compacted: u64,
    records: BTreeMap<Key, Record>,
    history: VecDeque<(u64, Change)>,
    nonces: BTreeMap<u64, u64>,
    watchers: Vec<Watcher>,
    blobs: HashMap<BlobId, Vec<u8>>,
}

struct Watcher {
    prefix: String,
    changes: mpsc::Sender<Change>,
}

impl MemoryStore {
    /// An empty store at revision 0.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Says that there is no room for new work, or that there is again.
    pub fn set_full(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::SeqCst);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A commit checks everything before it changes anything, so a poisoned state is whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn check(&self, commit: &Commit) -> Result<(), Error> {
        if commit.ops.len() > COMMIT_OPS_MAX {
            return Err(Error::TooLarge {
                what: format!("a commit of {} operations", commit.ops.len()),
                limit: format!("{COMMIT_OPS_MAX} operations"),
            });
        }
        for op in &commit.ops {
            if let Op::Put { key, value } = op
                && value.len() > RECORD_BYTES_MAX
            {
                return Err(Error::TooLarge {
                    what: format!("the record {key} of {} bytes", value.len()),
                    limit: format!("{RECORD_BYTES_MAX} bytes"),
                });
            }
        }
        for guard in &commit.guards {
            let (key, holds) = match guard {
                Guard::Absent(key) => (key, !self.records.contains_key(key)),
                Guard::RevIs(key, rev) => {
                    (key, self.records.get(key).is_some_and(|record| record.rev == *rev))
                }
            };
            if !holds {
                return Err(Error::Conflict { key: key.clone() });
            }
        }
        Ok(())
    }

    fn apply(&mut self, op: Op, rev: Rev) {
        match op {
            Op::Put { key, value } => {
                let create_rev = self.records.get(&key).map_or(rev, |record| record.create_rev);
                let record = Record { key: key.clone(), value, rev, create_rev };
                self.records.insert(key, record.clone());
                self.tell(rev, &record.key.clone(), &Change::Put(record));
            }
            Op::Delete { key } => {
                if let Some(record) = self.records.remove(&key) {
                    let change = Change::Delete { key: key.clone(), last: record.value, rev };
                    self.tell(rev, &key, &change);
                }
            }
            Op::DropBlobs { owner } => self.blobs.retain(|id, _| id.owner != owner),
        }
    }

    fn tell(&mut self, rev: Rev, key: &Key, change: &Change) {
        self.history.push_back((rev.0, change.clone()));
        self.watchers.retain(|watcher| {
            if !key.as_str().starts_with(&watcher.prefix) {
                return !watcher.changes.is_closed();
            }
            // The last place is kept for `Lost`. Nobody else sends, so it stays free.
            let (message, keep) = if watcher.changes.capacity() > 1 {
                (change.clone(), true)
            } else {
                (Change::Lost("the watcher fell behind".to_owned()), false)
            };
            watcher.changes.try_send(message).is_ok() && keep
        });
    }
}

#[async_trait]
impl Store for MemoryStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        Ok(self.state().records.get(key).cloned())
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<(Vec<Record>, Rev), Error> {
        let state = self.state();
        let limit = if limit == 0 { usize::MAX } else { limit };
        let records = state
            .records
            .range(Key::new(prefix)..)
            .take_while(|(key, _)| key.as_str().starts_with(prefix))
            .filter(|(key, _)| after.is_none_or(|after| *key > after))
            .take(limit)
            .map(|(_, record)| record.clone())
            .collect();
        Ok((records, Rev(state.head)))
    }

    async fn last(&self, prefix: &str) -> Result<Option<Record>, Error> {
        let state = self.state();
        let mut found = state.records.range(Key::new(prefix)..Key::new(past(prefix))).rev();
        Ok(found.next().map(|(_, record)| record.clone()))
    }

    async fn commit(&self, commit: Commit) -> Result<Rev, Error> {
        let mut state = self.state();
        state.check(&commit)?;
        state.head += 1;
        let rev = Rev(state.head);
        for op in commit.ops {
            state.apply(op, rev);
        }
        state.nonces.insert(rev.0, rand::random());
        Ok(rev)
    }

    async fn watch(&self, prefix: &str, after: Rev) -> Result<Watch, Error> {
        let mut state = self.state();
        let refused = if after.0 > state.head {
            Some(Change::Regressed { head: Rev(state.head) })
        } else if after.0 < state.compacted {
            Some(Change::Compacted { oldest: Rev(state.compacted) })
        } else {
            None
        };
        let backlog: Vec<Change> = match refused {
            Some(change) => vec![change],
            None => state
                .history
                .iter()
                .filter(|(rev, change)| {
                    *rev > after.0 && key_of(change).is_some_and(|key| key.starts_with(prefix))
                })
                .map(|(_, change)| change.clone())
                .collect(),
        };
        let is_refused = after.0 > state.head || after.0 < state.compacted;
        let (changes, receiver) = mpsc::channel(backlog.len() + WATCH_LAG_MAX);
        for change in backlog {
            // There is room: the channel was made larger than the backlog.
            let _ = changes.try_send(change);
        }
        if !is_refused {
            state.watchers.push(Watcher { prefix: prefix.to_owned(), changes });
        }
        Ok(Watch::new(receiver))
    }

    async fn head(&self) -> Result<Rev, Error> {
        Ok(Rev(self.state().head))
    }

    async fn compact(&self, keep_after: Rev) -> Result<(), Error> {
        let mut state = self.state();
        let keep_after = keep_after.0.min(state.head);
        state.compacted = state.compacted.max(keep_after);
        while state.history.front().is_some_and(|(rev, _)| *rev <= keep_after) {
            state.history.pop_front();
        }
        Ok(())
    }

    async fn identity(&self) -> Result<String, Error> {
        // One store lives as long as its process; nothing can be mistaken for it later.
        Ok("memory".to_owned())
    }

    async fn nonce(&self, rev: Rev) -> Result<Option<u64>, Error> {
        Ok(self.state().nonces.get(&rev.0).copied())
    }

    async fn verify(&self, rev: Rev, nonce: u64) -> Result<bool, Error> {
        Ok(self.state().nonces.get(&rev.0) == Some(&nonce))
    }

    async fn reset(&self) -> Result<(), Error> {
        Ok(())
    }

    fn has_room(&self) -> bool {
        !self.is_full.load(Ordering::SeqCst)
    }
}

fn key_of(change: &Change) -> Option<&str> {
    match change {
        Change::Put(record) => Some(record.key.as_str()),
        Change::Delete { key, .. } => Some(key.as_str()),
        Change::Bookmark(_)
        | Change::Compacted { .. }
        | Change::Regressed { .. }
        | Change::Lost(_) => None,
    }
}

#[async_trait]
impl Blobs for MemoryStore {
    async fn append(&self, appends: Vec<Append>) -> Result<(), Error> {
        let mut state = self.state();
        // What the blobs become; put in place only once every append fits.
        let mut grown: HashMap<BlobId, Vec<u8>> = HashMap::new();
        for append in appends {
            if append.bytes.len() > BLOB_CHUNK_BYTES_MAX {
                return Err(Error::TooLarge {
                    what: format!("a chunk of {} bytes", append.bytes.len()),
                    limit: format!("{BLOB_CHUNK_BYTES_MAX} bytes"),
                });
            }
            let blob = grown
                .entry(append.blob.clone())
                .or_insert_with(|| state.blobs.get(&append.blob).cloned().unwrap_or_default());
            let offset = usize::try_from(append.offset).unwrap_or(usize::MAX);
            if offset == blob.len() {
                blob.extend_from_slice(&append.bytes);
                continue;
            }
            let there = offset
                .checked_add(append.bytes.len())
                .and_then(|end| blob.get(offset..end))
                .is_some_and(|there| there == append.bytes);
            if !there {
                let key = format!("/blob/{}/{:?}", append.blob.owner, append.blob.stream);
                return Err(Error::Conflict { key: Key::new(key) });
            }
        }
        state.blobs.extend(grown);
        Ok(())
    }

    async fn read(&self, blob: &BlobId, offset: u64, max: usize) -> Result<Bytes, Error> {
        let state = self.state();
        let bytes = state.blobs.get(blob).map_or(&[][..], Vec::as_slice);
        let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
        let end = start.saturating_add(max).min(bytes.len());
        Ok(Bytes::copy_from_slice(&bytes[start..end]))
    }

    async fn len(&self, blob: &BlobId) -> Result<u64, Error> {
        let length = self.state().blobs.get(blob).map_or(0, Vec::len);
        Ok(u64::try_from(length).unwrap_or(u64::MAX))
    }

    async fn sweep(
        &self,
        is_owned: &(dyn for<'a> Fn(&'a Uid) -> bool + Send + Sync),
    ) -> Result<u64, Error> {
        let mut state = self.state();
        let before = state.blobs.len();
        state.blobs.retain(|id, _| is_owned(&id.owner));
        Ok(u64::try_from(before - state.blobs.len()).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::Stream;
    use crate::store::conformance::{Bench, CASES};

    #[tokio::test]
    async fn the_store_does_what_every_engine_must() {
        let store = Arc::new(MemoryStore::new());
        for case in CASES {
            let (store, blobs) = (store.clone(), store.clone());
            (case.run)(Bench { store, blobs, prefix: format!("/{}/", case.name) }).await;
        }
    }

    fn put(key: &str, value: &'static str) -> Op {
        Op::Put { key: Key::new(key), value: Bytes::from_static(value.as_bytes()) }
    }

    async fn write(store: &MemoryStore, ops: Vec<Op>) -> Rev {
        store.commit(Commit { guards: vec![], ops }).await.unwrap()
    }

    fn text(change: Option<Change>) -> String {
        match change {
            Some(Change::Put(record)) => format!("put {} at {}", record.key, record.rev),
            Some(Change::Delete { key, rev, .. }) => format!("delete {key} at {rev}"),
            other => format!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_watch_tells_what_was_before_it_and_what_comes_in_one_order() {
        let store = MemoryStore::new();
        let first = write(&store, vec![put("/a/1", "x")]).await;
        write(&store, vec![put("/a/2", "x"), put("/b/1", "x")]).await;
        let mut watch = store.watch("/a/", first).await.unwrap();
        write(&store, vec![Op::Delete { key: Key::new("/a/1") }, put("/a/1", "y")]).await;
        assert_eq!(text(watch.next().await), "put /a/2 at 2");
        assert_eq!(text(watch.next().await), "delete /a/1 at 3");
        assert_eq!(text(watch.next().await), "put /a/1 at 3");
    }

    #[tokio::test]
    async fn a_failed_guard_leaves_everything_as_it_was() {
        let store = MemoryStore::new();
        write(&store, vec![put("/a/1", "x")]).await;
        let guards = vec![Guard::Absent(Key::new("/a/2")), Guard::Absent(Key::new("/a/1"))];
        let refused = store.commit(Commit { guards, ops: vec![put("/a/2", "y")] }).await;
        assert_eq!(refused, Err(Error::Conflict { key: Key::new("/a/1") }));
        assert_eq!(store.get(&Key::new("/a/2")).await.unwrap(), None);
        assert_eq!(store.head().await.unwrap(), Rev(1));
    }

    #[tokio::test]
    async fn a_guard_may_name_a_key_that_is_not_written() {
        let store = MemoryStore::new();
        let rev = write(&store, vec![put("/a/1", "x")]).await;
        let guards = vec![Guard::RevIs(Key::new("/a/1"), rev)];
        store.commit(Commit { guards, ops: vec![put("/a/2", "y")] }).await.unwrap();
        assert_eq!(store.get(&Key::new("/a/1")).await.unwrap().unwrap().rev, rev);
    }

    #[tokio::test]
    async fn a_second_write_keeps_the_revision_of_the_creation() {
        let store = MemoryStore::new();
        let created = write(&store, vec![put("/a/1", "x")]).await;
        let written = write(&store, vec![put("/a/1", "y")]).await;
        let record = store.get(&Key::new("/a/1")).await.unwrap().unwrap();
        assert_eq!((record.create_rev, record.rev), (created, written));
    }

    #[tokio::test]
    async fn a_watch_from_a_forgotten_revision_says_compacted() {
        let store = MemoryStore::new();
        write(&store, vec![put("/a/1", "x")]).await;
        write(&store, vec![put("/a/1", "y")]).await;
        store.compact(Rev(2)).await.unwrap();
        let mut watch = store.watch("/a/", Rev(1)).await.unwrap();
        assert_eq!(watch.next().await, Some(Change::Compacted { oldest: Rev(2) }));
        assert_eq!(watch.next().await, None);
    }

    #[tokio::test]
    async fn a_watch_ahead_of_the_head_says_regressed() {
        let store = MemoryStore::new();
        let mut watch = store.watch("/a/", Rev(7)).await.unwrap();
        assert_eq!(watch.next().await, Some(Change::Regressed { head: Rev(0) }));
    }

    #[tokio::test]
    async fn a_watcher_that_falls_behind_is_told_so_after_what_it_may_still_have() {
        let store = MemoryStore::new();
        let mut watch = store.watch("/a/", Rev(0)).await.unwrap();
        for _ in 0..=WATCH_LAG_MAX {
            write(&store, vec![put("/a/1", "x")]).await;
        }
        for _ in 1..WATCH_LAG_MAX {
            assert!(matches!(watch.next().await, Some(Change::Put(_))));
        }
        assert!(matches!(watch.next().await, Some(Change::Lost(_))));
        assert_eq!(watch.next().await, None);
    }

    #[tokio::test]
    async fn pages_follow_each_other_without_a_gap() {
        let store = MemoryStore::new();
        write(&store, vec![put("/a/1", "x"), put("/a/2", "x"), put("/a/3", "x")]).await;
        let (first, _) = store.list("/a/", None, 2).await.unwrap();
        let (second, _) = store.list("/a/", Some(&first[1].key), 2).await.unwrap();
        let keys: Vec<_> = first.iter().chain(&second).map(|r| r.key.as_str()).collect();
        assert_eq!(keys, ["/a/1", "/a/2", "/a/3"]);
    }

    #[tokio::test]
    async fn what_is_too_large_is_refused() {
        let store = MemoryStore::new();
        let value = Bytes::from(vec![0; RECORD_BYTES_MAX + 1]);
        let ops = vec![Op::Put { key: Key::new("/a"), value }];
        let refused = store.commit(Commit { guards: vec![], ops }).await;
        assert!(matches!(refused, Err(Error::TooLarge { .. })));
        let ops = vec![put("/a", "x"); COMMIT_OPS_MAX + 1];
        let refused = store.commit(Commit { guards: vec![], ops }).await;
        assert!(matches!(refused, Err(Error::TooLarge { .. })));
    }

    #[tokio::test]
    async fn a_commit_is_known_again_by_its_nonce() {
        let store = MemoryStore::new();
        let rev = write(&store, vec![]).await;
        let nonce = store.nonce(rev).await.unwrap().unwrap();
        assert!(store.verify(rev, nonce).await.unwrap());
        assert!(!store.verify(rev, nonce.wrapping_add(1)).await.unwrap());
    }

    fn append(offset: u64, bytes: &'static str) -> Append {
        let blob = BlobId { owner: Uid::from("u"), stream: Stream::Prompt };
        Append { blob, offset, bytes: Bytes::from_static(bytes.as_bytes()) }
    }

    #[tokio::test]
    async fn a_repeated_append_is_seen_and_a_wrong_offset_refused() {
        let store = MemoryStore::new();
        store.append(vec![append(0, "hello"), append(5, " you")]).await.unwrap();
        store.append(vec![append(5, " you")]).await.unwrap();
        assert!(matches!(store.append(vec![append(5, " me!")]).await, Err(Error::Conflict { .. })));
        assert!(matches!(store.append(vec![append(10, "!")]).await, Err(Error::Conflict { .. })));
        let blob = append(0, "").blob;
        assert_eq!(store.read(&blob, 6, 100).await.unwrap(), "you");
        assert_eq!(store.len(&blob).await.unwrap(), 9);
    }

    #[tokio::test]
    async fn blobs_go_in_their_owners_commit_and_in_the_sweep() {
        let store = MemoryStore::new();
        store.append(vec![append(0, "hello")]).await.unwrap();
        write(&store, vec![Op::DropBlobs { owner: Uid::from("u") }]).await;
        assert_eq!(store.len(&append(0, "").blob).await.unwrap(), 0);
        store.append(vec![append(0, "hello")]).await.unwrap();
        assert_eq!(store.sweep(&|_| false).await.unwrap(), 1);
    }
}
