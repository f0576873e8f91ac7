//! A store that misbehaves on purpose, by a seed: for tests of whatever stands on a store.
//!
//! It wraps a real engine and does what any engine may do by the contract of
//! [`Store`](super::Store): answers that are lost after or before the write, a conflict that is
//! none, unavailability, watches that are lost or compacted, slowness. The same seed and the same
//! order of calls give the same faults.
//!
//! Invariants: it never answers a success that the engine did not give; while it is off it is the
//! engine.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::{
    Append, BlobId, Blobs, Change, Commit, Error, Guard, Key, Op, Record, Rev, SharedBlobs,
    SharedStore, Store, Watch,
};
use crate::api::Uid;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Fault {
    /// The write is done and answered `Unknown`.
    UnknownApplied,
    /// The write is not done and answered `Unknown`.
    UnknownNotApplied,
    /// The write is not done and answered `Conflict`, although its guards may hold.
    Conflict,
    /// Nothing is done.
    Unavailable,
    /// A watch ends with `Lost`, between two revisions.
    Lost,
    /// A watch starts with `Compacted`.
    Compacted,
    /// The call takes longer.
    Delay,
}

/// How often what goes wrong, each in a thousand calls that it can happen to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Of commits and appends.
    pub unknown_applied: u32,
    /// Of commits and appends.
    pub unknown_not_applied: u32,
    /// Of commits with a guard.
    pub conflict: u32,
    /// Of all calls.
    pub unavailable: u32,
    /// Of the revisions that a watch tells.
    pub lost: u32,
    /// Of watches that are begun.
    pub compacted: u32,
    /// Of all calls.
    pub delay: u32,
    /// The longest delay, in milliseconds of tokio's clock.
    pub delay_ms_max: u64,
}

impl Plan {
    /// Much of everything, for short runs.
    #[must_use]
    pub const fn harsh() -> Self {
        Self {
            unknown_applied: 60,
            unknown_not_applied: 60,
            conflict: 60,
            unavailable: 60,
            lost: 30,
            compacted: 100,
            delay: 100,
            delay_ms_max: 50,
        }
    }
}

/// The faulty store.
pub struct FaultStore {
    store: SharedStore,
    blobs: SharedBlobs,
    plan: Plan,
    is_on: AtomicBool,
    state: Mutex<State>,
    watches: Mutex<JoinSet<()>>,
}

struct State {
    rng: StdRng,
    scripted: VecDeque<Fault>,
    counts: BTreeMap<Fault, u64>,
}

/// How many changes wait in a wrapped watch, as in the engine's own.
const WATCH_CHANGES_MAX: usize = 128;

/// What a call may suffer.
const OF_READS: &[Fault] = &[Fault::Unavailable];
const OF_WRITES: &[Fault] = &[Fault::UnknownApplied, Fault::UnknownNotApplied, Fault::Unavailable];
const OF_GUARDED: &[Fault] =
    &[Fault::UnknownApplied, Fault::UnknownNotApplied, Fault::Unavailable, Fault::Conflict];
const OF_WATCHES: &[Fault] = &[Fault::Unavailable, Fault::Compacted];

impl FaultStore {
    /// A store that is faulty by `plan`, and on.
    #[must_use]
    pub fn new(store: SharedStore, blobs: SharedBlobs, plan: Plan, seed: u64) -> Self {
        Self {
            store,
            blobs,
            plan,
            is_on: AtomicBool::new(true),
            state: Mutex::new(State {
                rng: StdRng::seed_from_u64(seed),
                scripted: VecDeque::new(),
                counts: BTreeMap::new(),
            }),
            watches: Mutex::new(JoinSet::new()),
        }
    }

    /// Switches the faults. A watch is as it was when it was begun.
    pub fn set_on(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::SeqCst);
    }

    /// Does this to the next call that it can happen to, whatever the plan; even while it is off.
    /// Several are done in their order. Not for [`Fault::Lost`] and [`Fault::Delay`].
    pub fn script(&self, fault: Fault) {
        self.lock().scripted.push_back(fault);
    }

    /// How often what went wrong.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<Fault, u64> {
        self.lock().counts.clone()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    const fn rate(&self, fault: Fault) -> u32 {
        match fault {
            Fault::UnknownApplied => self.plan.unknown_applied,
            Fault::UnknownNotApplied => self.plan.unknown_not_applied,
            Fault::Conflict => self.plan.conflict,
            Fault::Unavailable => self.plan.unavailable,
            Fault::Lost => self.plan.lost,
            Fault::Compacted => self.plan.compacted,
            Fault::Delay => self.plan.delay,
        }
    }

    /// Waits perhaps, and tells what happens to a call that these can happen to.
    async fn draw(&self, possible: &[Fault]) -> Option<Fault> {
        let (wait, fault) = self.decide(possible);
        if let Some(wait) = wait {
            tokio::time::sleep(wait).await;
        }
        fault
    }

    fn decide(&self, possible: &[Fault]) -> (Option<Duration>, Option<Fault>) {
        let mut state = self.lock();
        if state.scripted.front().is_some_and(|next| possible.contains(next)) {
            let fault = state.scripted.pop_front();
            state.count(fault);
            return (None, fault);
        }
        if !self.is_on.load(Ordering::SeqCst) {
            return (None, None);
        }
        let mut wait = None;
        if state.happens(self.plan.delay) {
            let ms = state.rng.random_range(0..=self.plan.delay_ms_max);
            wait = Some(Duration::from_millis(ms));
            state.count(Some(Fault::Delay));
        }
        let fault = possible.iter().copied().find(|fault| state.happens(self.rate(*fault)));
        state.count(fault);
        (wait, fault)
    }

    async fn spoil_read(&self) -> Result<(), Error> {
        match self.draw(OF_READS).await {
            Some(_) => Err(injected_unavailable()),
            None => Ok(()),
        }
    }

    /// A generator of its own for a watch, so that how fast watchers read changes nothing else.
    fn fork(&self) -> StdRng {
        StdRng::seed_from_u64(self.lock().rng.random())
    }
}

impl State {
    fn happens(&mut self, per_mille: u32) -> bool {
        per_mille > 0 && self.rng.random_range(0..1000) < per_mille
    }

    fn count(&mut self, fault: Option<Fault>) {
        if let Some(fault) = fault {
            *self.counts.entry(fault).or_default() += 1;
        }
    }
}

fn injected_unavailable() -> Error {
    Error::Unavailable("injected".to_owned())
}

fn injected_unknown() -> Error {
    Error::Unknown("injected".to_owned())
}

/// The key that an invented conflict names.
fn some_key(commit: &Commit) -> Key {
    let of_guard = commit.guards.first().map(|guard| match guard {
        Guard::Absent(key) | Guard::RevIs(key, _) => key.clone(),
    });
    let of_op = || {
        commit.ops.iter().find_map(|op| match op {
            Op::Put { key, .. } | Op::Delete { key } => Some(key.clone()),
            Op::DropBlobs { .. } => None,
        })
    };
    of_guard.or_else(of_op).unwrap_or_else(|| Key::new("/"))
}

fn rev_of(change: &Change) -> Option<Rev> {
    match change {
        Change::Put(record) => Some(record.rev),
        Change::Delete { rev, .. } => Some(*rev),
        Change::Bookmark(_)
        | Change::Compacted { .. }
        | Change::Regressed { .. }
        | Change::Lost(_) => None,
    }
}

#[async_trait]
impl Store for FaultStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        self.spoil_read().await?;
        self.store.get(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<(Vec<Record>, Rev), Error> {
        self.spoil_read().await?;
        self.store.list(prefix, after, limit).await
    }

    async fn last(&self, prefix: &str) -> Result<Option<Record>, Error> {
        self.spoil_read().await?;
        self.store.last(prefix).await
    }

    async fn commit(&self, commit: Commit) -> Result<Rev, Error> {
        let possible = if commit.guards.is_empty() { OF_WRITES } else { OF_GUARDED };
        match self.draw(possible).await {
            None => self.store.commit(commit).await,
            Some(Fault::UnknownApplied) => {
                // Refusals stay what they are: they are certain.
                self.store.commit(commit).await?;
                Err(injected_unknown())
            }
            Some(Fault::UnknownNotApplied) => Err(injected_unknown()),
            Some(Fault::Conflict) => Err(Error::Conflict { key: some_key(&commit) }),
            Some(Fault::Unavailable | Fault::Lost | Fault::Compacted | Fault::Delay) => {
                Err(injected_unavailable())
            }
        }
    }

    async fn watch(&self, prefix: &str, after: Rev) -> Result<Watch, Error> {
        let fault = self.draw(OF_WATCHES).await;
        if fault == Some(Fault::Unavailable) {
            return Err(injected_unavailable());
        }
        let (changes, receiver) = mpsc::channel(WATCH_CHANGES_MAX);
        if fault == Some(Fault::Compacted) {
            let oldest = self.store.head().await?;
            // The channel is new and has room.
            let _ = changes.try_send(Change::Compacted { oldest });
            return Ok(Watch::new(receiver));
        }
        let mut inner = self.store.watch(prefix, after).await?;
        if self.plan.lost == 0 {
            return Ok(inner);
        }
        // When it is lost is decided here and not as it goes: in how many revisions.
        let mut rng = self.fork();
        let mut left = 0_u32;
        while rng.random_range(0..1000) >= self.plan.lost {
            left += 1;
        }
        if !self.is_on.load(Ordering::SeqCst) {
            return Ok(inner);
        }
        let mut watches = self.watches.lock().unwrap_or_else(PoisonError::into_inner);
        while watches.try_join_next().is_some() {}
        watches.spawn(async move {
            let mut told = None;
            while let Some(change) = inner.next().await {
                let rev = rev_of(&change);
                if rev.is_some() && rev != told {
                    // Only between revisions: within one, starting anew would lose its rest.
                    let Some(rest) = left.checked_sub(1) else {
                        let _ = changes.send(Change::Lost("injected".to_owned())).await;
                        return;
                    };
                    left = rest;
                    told = rev;
                }
                if changes.send(change).await.is_err() {
                    return;
                }
            }
        });
        Ok(Watch::new(receiver))
    }

    async fn head(&self) -> Result<Rev, Error> {
        self.spoil_read().await?;
        self.store.head().await
    }

    async fn compact(&self, keep_after: Rev) -> Result<(), Error> {
        self.spoil_read().await?;
        self.store.compact(keep_after).await
    }

    async fn identity(&self) -> Result<String, Error> {
        self.spoil_read().await?;
        self.store.identity().await
    }

    async fn nonce(&self, rev: Rev) -> Result<Option<u64>, Error> {
        self.spoil_read().await?;
        self.store.nonce(rev).await
    }

    async fn verify(&self, rev: Rev, nonce: u64) -> Result<bool, Error> {
        self.spoil_read().await?;
        self.store.verify(rev, nonce).await
    }

    async fn reset(&self) -> Result<(), Error> {
        self.spoil_read().await?;
        self.store.reset().await
    }

    fn has_room(&self) -> bool {
        self.store.has_room()
    }

    fn fault(&self) -> Option<String> {
        self.store.fault()
    }
}

#[async_trait]
impl Blobs for FaultStore {
    async fn append(&self, appends: Vec<Append>) -> Result<(), Error> {
        match self.draw(OF_WRITES).await {
            None => self.blobs.append(appends).await,
            Some(Fault::UnknownApplied) => {
                self.blobs.append(appends).await?;
                Err(injected_unknown())
            }
            Some(Fault::UnknownNotApplied) => Err(injected_unknown()),
            Some(
                Fault::Conflict
                | Fault::Unavailable
                | Fault::Lost
                | Fault::Compacted
                | Fault::Delay,
            ) => Err(injected_unavailable()),
        }
    }

    async fn read(&self, blob: &BlobId, offset: u64, max: usize) -> Result<Bytes, Error> {
        self.spoil_read().await?;
        self.blobs.read(blob, offset, max).await
    }

    async fn len(&self, blob: &BlobId) -> Result<u64, Error> {
        self.spoil_read().await?;
        self.blobs.len(blob).await
    }

    async fn sweep(
        &self,
        is_owned: &(dyn for<'a> Fn(&'a Uid) -> bool + Send + Sync),
    ) -> Result<u64, Error> {
        self.spoil_read().await?;
        self.blobs.sweep(is_owned).await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::store::{conformance, sqlite};

    fn engine(dir: &tempfile::TempDir) -> Arc<sqlite::SqliteStore> {
        let options = sqlite::Options { ballast_bytes: 0, ..sqlite::Options::default() };
        Arc::new(sqlite::open(dir.path(), options).unwrap().0)
    }

    fn faulty(engine: &Arc<sqlite::SqliteStore>, seed: u64) -> FaultStore {
        let plan = Plan { delay_ms_max: 1, ..Plan::harsh() };
        FaultStore::new(engine.clone(), engine.clone(), plan, seed)
    }

    /// Increments one record for a while and tells every answer in short.
    async fn answers(store: &FaultStore, name: &str) -> Vec<String> {
        let key = Key::new(format!("/fault/{name}"));
        let mut answers = Vec::new();
        for number in 0..100 {
            let guards = match store.get(&key).await {
                Ok(Some(record)) => vec![Guard::RevIs(key.clone(), record.rev)],
                Ok(None) => vec![Guard::Absent(key.clone())],
                Err(_) => continue,
            };
            let ops = vec![Op::Put { key: key.clone(), value: number.to_string().into() }];
            answers.push(match store.commit(Commit { guards, ops }).await {
                Ok(_) => "ok".to_owned(),
                Err(error) => error.to_string(),
            });
        }
        answers
    }

    #[tokio::test]
    async fn one_seed_gives_the_same_faults_and_another_gives_others() {
        let dir = tempfile::TempDir::new().unwrap();
        let engine = engine(&dir);
        let mut runs = Vec::new();
        for seed in [7, 7, 8] {
            let store = faulty(&engine, seed);
            runs.push(answers(&store, "same").await);
            let mut counts = store.counts();
            for fault in OF_GUARDED.iter().chain(&[Fault::Delay]) {
                assert!(counts.remove(fault).unwrap() > 0, "{fault:?}");
            }
        }
        assert_eq!(runs[0], runs[1]);
        assert_ne!(runs[0], runs[2]);
    }

    #[tokio::test]
    async fn whoever_starts_lost_watches_anew_misses_nothing() {
        let dir = tempfile::TempDir::new().unwrap();
        let engine = engine(&dir);
        let store = faulty(&engine, 3);
        for number in 0..200 {
            let value = Bytes::from(number.to_string());
            let op = |name: &str| Op::Put { key: Key::new(name), value: value.clone() };
            let ops = vec![op("/fault/a"), op("/fault/b")];
            engine.commit(Commit { guards: Vec::new(), ops }).await.unwrap();
        }
        let (mut last, mut told, mut losses) = (Rev(0), 0, 0);
        while told < 400 {
            let Ok(mut watch) = store.watch("/fault/", last).await else { continue };
            while told < 400
                && let Some(change) = watch.next().await
            {
                match change {
                    Change::Put(record) => {
                        assert_eq!(record.value, Bytes::from((told / 2).to_string()));
                        last = record.rev;
                        told += 1;
                    }
                    Change::Lost(_) => losses += 1,
                    Change::Compacted { oldest } => assert_eq!(oldest, Rev(200)),
                    Change::Bookmark(_) | Change::Regressed { .. } | Change::Delete { .. } => {}
                }
            }
        }
        assert!(losses > 0);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn while_it_is_off_it_conforms() {
        let dir = tempfile::TempDir::new().unwrap();
        let store = faulty(&engine(&dir), 5);
        store.set_on(false);
        conformance::run_all_on(Arc::new(store)).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    #[should_panic(expected = "called `Result::unwrap()`")]
    async fn while_it_is_on_it_does_not_conform() {
        let dir = tempfile::TempDir::new().unwrap();
        conformance::run_all_on(Arc::new(faulty(&engine(&dir), 5))).await;
    }
}
