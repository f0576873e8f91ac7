//! A store that judges and disturbs: it sees every commit, breaks the N-th call, and stands still
//! at the N-th commit as a daemon does that dies there.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::ground::Ground;
use crate::api::turn::TurnPhase;
use crate::api::{TurnSpec, Uid};
use crate::store::records::decode;
use crate::store::{
    Append, BlobId, Blobs, Commit, Error, Key, Op, Record, Rev, SharedBlobs, SharedStore, Store,
    Watch,
};

/// Where a daemon dies at a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// The commit never happens.
    Before,
    /// It happens, and nobody hears of it.
    After,
}

/// What a read does that does not come back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trap {
    Panics,
    Hangs,
}

/// The store of a daemon.
pub(super) struct Gate {
    store: SharedStore,
    blobs: SharedBlobs,
    ground: Arc<Ground>,
    finals: Mutex<HashMap<Uid, TurnPhase>>,
    commits: AtomicU64,
    calls: AtomicU64,
    stop: Mutex<Option<(u64, Side)>>,
    fail: Mutex<Option<(u64, Error)>>,
    /// What a read of this key does instead.
    trap: Mutex<Option<(Key, Trap)>>,
    /// The daemon stands at the commit where it dies.
    pub(super) stood: CancellationToken,
}

impl Gate {
    pub(super) fn new(store: SharedStore, blobs: SharedBlobs, ground: Arc<Ground>) -> Self {
        Self {
            store,
            blobs,
            ground,
            finals: Mutex::default(),
            commits: AtomicU64::new(0),
            calls: AtomicU64::new(0),
            stop: Mutex::new(None),
            fail: Mutex::new(None),
            trap: Mutex::new(None),
            stood: CancellationToken::new(),
        }
    }

    /// The store as the next daemon finds it: nothing of what was planned for this one.
    pub(super) fn successor(&self) -> Self {
        let next = Self::new(self.store.clone(), self.blobs.clone(), Arc::clone(&self.ground));
        next.finals.lock().unwrap().clone_from(&self.finals.lock().unwrap());
        next
    }

    /// Reads of this key do not come back.
    pub(super) fn trap(&self, trap: Option<(Key, Trap)>) {
        *self.trap.lock().unwrap() = trap;
    }

    /// Stands still at this commit from now on.
    pub(super) fn stop_at(&self, commit: u64, side: Side) {
        *self.stop.lock().unwrap() = Some((self.commits.load(Ordering::SeqCst) + commit, side));
    }

    /// Breaks this call from now on, once.
    pub(super) fn fail_at(&self, call: u64, error: Error) {
        *self.fail.lock().unwrap() = Some((self.calls.load(Ordering::SeqCst) + call, error));
    }

    pub(super) fn calls(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Whether the call that was to be broken came.
    pub(super) fn has_failed(&self) -> bool {
        self.fail.lock().unwrap().is_none()
    }

    fn call(&self) -> Option<Error> {
        let number = self.calls.fetch_add(1, Ordering::SeqCst);
        let mut fail = self.fail.lock().unwrap();
        let is_now = fail.as_ref().is_some_and(|(at, _)| *at <= number);
        if is_now { fail.take().map(|(_, error)| error) } else { None }
    }

    fn broken(&self) -> Result<(), Error> {
        self.call().map_or(Ok(()), Err)
    }

    /// A final state is kept for ever.
    fn judge(&self, commit: &Commit) {
        for op in &commit.ops {
            let Op::Put { key, value } = op else { continue };
            if !key.as_str().starts_with("/turn/") {
                continue;
            }
            let turn = decode::<TurnSpec>(key, value, Rev::default()).unwrap();
            let mut finals = self.finals.lock().unwrap();
            let uid = &turn.metadata.uid;
            match finals.get(uid) {
                Some(phase) if *phase != turn.status.phase => self.ground.violation(format!(
                    "{} was {phase:?} and became {:?}",
                    turn.metadata.name, turn.status.phase
                )),
                Some(_) => {}
                None if turn.status.phase.is_final() => {
                    finals.insert(uid.clone(), turn.status.phase);
                }
                None => {}
            }
        }
    }

    async fn stand(&self) {
        self.stood.cancel();
        std::future::pending::<()>().await;
    }
}

#[async_trait]
impl Store for Gate {
    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        self.broken()?;
        let trap = self.trap.lock().unwrap().clone().filter(|(trapped, _)| trapped == key);
        match trap {
            Some((_, Trap::Panics)) => panic!("a pass over a trap"),
            Some((_, Trap::Hangs)) => std::future::pending::<()>().await,
            None => {}
        }
        self.store.get(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<(Vec<Record>, Rev), Error> {
        self.broken()?;
        self.store.list(prefix, after, limit).await
    }

    async fn last(&self, prefix: &str) -> Result<Option<Record>, Error> {
        self.broken()?;
        self.store.last(prefix).await
    }

    async fn commit(&self, commit: Commit) -> Result<Rev, Error> {
        let number = self.commits.fetch_add(1, Ordering::SeqCst);
        let stop = self.stop.lock().unwrap().filter(|(at, _)| *at <= number).map(|(_, side)| side);
        if stop == Some(Side::Before) || self.stood.is_cancelled() {
            self.stand().await;
        }
        let error = self.call();
        if let Some(error) = error.as_ref().filter(|error| !matches!(error, Error::Unknown(_))) {
            return Err(error.clone());
        }
        let outcome = self.store.commit(commit.clone()).await;
        if matches!(outcome, Ok(_) | Err(Error::Unknown(_))) {
            self.judge(&commit);
        }
        if stop == Some(Side::After) {
            self.stand().await;
        }
        // An unknown outcome, of what has happened.
        error.map_or(outcome, Err)
    }

    async fn watch(&self, prefix: &str, after: Rev) -> Result<Watch, Error> {
        self.broken()?;
        self.store.watch(prefix, after).await
    }

    async fn head(&self) -> Result<Rev, Error> {
        self.broken()?;
        self.store.head().await
    }

    async fn compact(&self, keep_after: Rev) -> Result<(), Error> {
        self.store.compact(keep_after).await
    }

    async fn identity(&self) -> Result<String, Error> {
        self.store.identity().await
    }

    async fn nonce(&self, rev: Rev) -> Result<Option<u64>, Error> {
        self.store.nonce(rev).await
    }

    async fn verify(&self, rev: Rev, nonce: u64) -> Result<bool, Error> {
        self.store.verify(rev, nonce).await
    }

    async fn reset(&self) -> Result<(), Error> {
        self.store.reset().await
    }
}

#[async_trait]
impl Blobs for Gate {
    async fn append(&self, appends: Vec<Append>) -> Result<(), Error> {
        if self.stood.is_cancelled() {
            self.stand().await;
        }
        self.broken()?;
        self.blobs.append(appends).await
    }

    async fn read(&self, blob: &BlobId, offset: u64, max: usize) -> Result<Bytes, Error> {
        self.broken()?;
        self.blobs.read(blob, offset, max).await
    }

    async fn len(&self, blob: &BlobId) -> Result<u64, Error> {
        self.blobs.len(blob).await
    }

    async fn sweep(
        &self,
        is_owned: &(dyn for<'a> Fn(&'a Uid) -> bool + Send + Sync),
    ) -> Result<u64, Error> {
        self.blobs.sweep(is_owned).await
    }
}
