//! What every engine must do, as a list of cases over the two traits.
//!
//! Each case has a prefix of its own, so that they can run on a store that holds other things. One
//! after the other: compaction is the whole store's. A case that fails panics; that is how a test
//! reports, and this is a test that other modules share.

#![expect(clippy::unwrap_used, reason = "a failed case panics, and its caller is a test")]

mod blobs;

use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;

use super::fault::{Fault, FaultStore, Plan};
use super::{
    Append, BLOB_CHUNK_BYTES_MAX, BlobId, COMMIT_OPS_MAX, Change, Commit, Error, Guard, Key, Op,
    RECORD_BYTES_MAX, Record, Rev, SharedBlobs, SharedStore, Store as _, Stream, Watch,
};
use crate::api::Uid;

/// A case that waits longer than this for a change has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine and a prefix that nobody else uses.
#[derive(Clone)]
pub struct Bench {
    /// The records.
    pub store: SharedStore,
    /// The blobs.
    pub blobs: SharedBlobs,
    /// What every key of the case begins with.
    pub prefix: String,
}

/// What a case returns.
pub type Running = Pin<Box<dyn Future<Output = ()> + Send>>;

/// One case.
pub struct Case {
    /// The fact that it holds.
    pub name: &'static str,
    /// Panics if it does not.
    pub run: fn(Bench) -> Running,
}

macro_rules! cases {
    ($($name:path),* $(,)?) => {
        /// All of them.
        pub const CASES: &[Case] =
            &[$(Case { name: stringify!($name), run: |bench| Box::pin($name(bench)) }),*];
    };
}

cases![
    a_commit_is_read_back_with_its_revisions,
    guards_hold_on_keys_that_are_not_written,
    a_commit_is_done_whole_or_not_at_all,
    all_operations_of_a_commit_have_one_revision,
    revisions_grow_and_the_head_follows,
    delete_and_create_in_one_commit_is_a_new_record,
    deleting_what_is_not_there_changes_nothing,
    lists_are_in_key_order_and_pages_join,
    a_prefix_does_not_reach_its_neighbours,
    a_watch_tells_every_change_in_order_once,
    a_watch_begun_while_others_write_has_no_gap,
    a_slow_watch_misses_nothing,
    a_watch_from_before_compaction_says_compacted,
    a_watch_from_ahead_of_the_head_says_regressed,
    what_is_too_large_is_refused_whole,
    the_largest_record_and_commit_are_taken,
    unknown_outcomes_are_read_back,
    many_writers_on_one_key_lose_no_update,
    nonces_tell_the_commit,
    blobs::blobs_grow_by_appends_and_are_read_in_ranges,
    blobs::a_repeated_append_is_done_and_another_is_a_conflict,
    blobs::appends_are_done_whole_or_not_at_all,
    blobs::blobs_go_with_their_owner,
    blobs::the_sweep_leaves_owned_blobs,
];

/// Runs every case, one after the other.
pub async fn run_all(store: SharedStore, blobs: SharedBlobs) {
    for case in CASES {
        let run = uuid::Uuid::new_v4().simple();
        let prefix = format!("/conformance/{run}/{}/", case.name);
        tracing::info!(case = case.name, "conformance");
        (case.run)(Bench { store: store.clone(), blobs: blobs.clone(), prefix }).await;
    }
}

impl Bench {
    fn key(&self, name: &str) -> Key {
        Key::new(format!("{}{name}", self.prefix))
    }

    fn put(&self, name: &str, value: &str) -> Op {
        Op::Put { key: self.key(name), value: Bytes::from(value.to_owned()) }
    }

    fn delete(&self, name: &str) -> Op {
        Op::Delete { key: self.key(name) }
    }

    async fn commit(&self, guards: Vec<Guard>, ops: Vec<Op>) -> Result<Rev, Error> {
        self.store.commit(Commit { guards, ops }).await
    }

    async fn write(&self, name: &str, value: &str) -> Rev {
        self.commit(Vec::new(), vec![self.put(name, value)]).await.unwrap()
    }

    async fn get(&self, name: &str) -> Option<Record> {
        self.store.get(&self.key(name)).await.unwrap()
    }

    async fn value(&self, name: &str) -> Option<String> {
        self.get(name).await.map(|record| text(&record.value))
    }

    async fn watch(&self, after: Rev) -> Watch {
        self.store.watch(&self.prefix, after).await.unwrap()
    }

    fn owner(&self) -> Uid {
        Uid::new(uuid::Uuid::now_v7().to_string())
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The next change that is no bookmark.
async fn next(watch: &mut Watch) -> Change {
    loop {
        let change = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap().unwrap();
        if !matches!(change, Change::Bookmark(_)) {
            return change;
        }
    }
}

/// A change in short: its key's end, what was written or that it was removed, when.
fn short(bench: &Bench, change: &Change) -> (String, String, Rev) {
    let name = |key: &Key| key.as_str().strip_prefix(bench.prefix.as_str()).unwrap().to_owned();
    match change {
        Change::Put(record) => (name(&record.key), text(&record.value), record.rev),
        Change::Delete { key, last, rev } => (name(key), format!("-{}", text(last)), *rev),
        Change::Bookmark(_)
        | Change::Compacted { .. }
        | Change::Regressed { .. }
        | Change::Lost(_) => panic!("no change of a record: {change:?}"),
    }
}

async fn a_commit_is_read_back_with_its_revisions(bench: Bench) {
    assert_eq!(bench.get("a").await, None);
    let first = bench.commit(vec![Guard::Absent(bench.key("a"))], vec![bench.put("a", "1")]);
    let first = first.await.unwrap();
    let second = bench.commit(vec![Guard::RevIs(bench.key("a"), first)], vec![bench.put("a", "2")]);
    let second = second.await.unwrap();
    let record = bench.get("a").await.unwrap();
    assert_eq!((text(&record.value).as_str(), record.rev), ("2", second));
    assert_eq!(record.create_rev, first);
}

async fn guards_hold_on_keys_that_are_not_written(bench: Bench) {
    let rev = bench.write("guard", "1").await;
    let absent = Guard::Absent(bench.key("none"));
    let is = Guard::RevIs(bench.key("guard"), rev);
    bench.commit(vec![absent.clone(), is.clone()], vec![bench.put("a", "1")]).await.unwrap();
    bench.write("guard", "2").await;
    let stale = bench.commit(vec![absent, is], vec![bench.put("a", "2")]).await;
    assert_eq!(stale, Err(Error::Conflict { key: bench.key("guard") }));
    let taken = bench.commit(vec![Guard::Absent(bench.key("a"))], vec![bench.put("b", "1")]).await;
    assert_eq!(taken, Err(Error::Conflict { key: bench.key("a") }));
    let gone = vec![Guard::RevIs(bench.key("none"), rev)];
    let gone = bench.commit(gone, vec![bench.put("b", "1")]).await;
    assert_eq!(gone, Err(Error::Conflict { key: bench.key("none") }));
    assert_eq!(bench.value("a").await.as_deref(), Some("1"));
    assert_eq!(bench.get("b").await, None);
}

async fn a_commit_is_done_whole_or_not_at_all(bench: Bench) {
    bench.write("a", "1").await;
    let guards = vec![Guard::Absent(bench.key("x")), Guard::Absent(bench.key("a"))];
    let ops = vec![bench.put("x", "1"), bench.delete("a"), bench.put("y", "1")];
    let refused = bench.commit(guards, ops.clone()).await;
    assert_eq!(refused, Err(Error::Conflict { key: bench.key("a") }));
    let (records, _) = bench.store.list(&bench.prefix, None, 0).await.unwrap();
    assert_eq!(records.len(), 1);
    bench.commit(Vec::new(), ops).await.unwrap();
    let (records, _) = bench.store.list(&bench.prefix, None, 0).await.unwrap();
    let keys: Vec<Key> = records.into_iter().map(|record| record.key).collect();
    assert_eq!(keys, [bench.key("x"), bench.key("y")]);
}

async fn all_operations_of_a_commit_have_one_revision(bench: Bench) {
    let before = bench.write("old", "0").await;
    let mut watch = bench.watch(before).await;
    let ops = vec![bench.put("a", "1"), bench.delete("old"), bench.put("b", "2")];
    let rev = bench.commit(Vec::new(), ops).await.unwrap();
    let mut told = Vec::new();
    for _ in 0..3 {
        told.push(short(&bench, &next(&mut watch).await));
    }
    let expected = [("a", "1"), ("old", "-0"), ("b", "2")];
    assert_eq!(told, expected.map(|(key, value)| (key.to_owned(), value.to_owned(), rev)));
}

async fn revisions_grow_and_the_head_follows(bench: Bench) {
    let mut last = bench.store.head().await.unwrap();
    for number in 0..5 {
        let rev = bench.write("a", &number.to_string()).await;
        assert!(rev > last);
        last = rev;
        assert!(bench.store.head().await.unwrap() >= rev);
    }
    let (_, rev) = bench.store.list(&bench.prefix, None, 0).await.unwrap();
    assert!(rev >= last);
}

async fn delete_and_create_in_one_commit_is_a_new_record(bench: Bench) {
    let first = bench.write("a", "1").await;
    let mut watch = bench.watch(first).await;
    let guards = vec![Guard::RevIs(bench.key("a"), first)];
    let ops = vec![bench.delete("a"), bench.put("a", "2")];
    let rev = bench.commit(guards, ops).await.unwrap();
    let record = bench.get("a").await.unwrap();
    assert_eq!((record.rev, record.create_rev), (rev, rev));
    assert_eq!(short(&bench, &next(&mut watch).await), ("a".to_owned(), "-1".to_owned(), rev));
    assert_eq!(next(&mut watch).await, Change::Put(record));
}

async fn deleting_what_is_not_there_changes_nothing(bench: Bench) {
    let start = bench.store.head().await.unwrap();
    bench.commit(Vec::new(), vec![bench.delete("none")]).await.unwrap();
    let end = bench.write("end", "1").await;
    let mut watch = bench.watch(start).await;
    assert_eq!(short(&bench, &next(&mut watch).await), ("end".to_owned(), "1".to_owned(), end));
}

async fn lists_are_in_key_order_and_pages_join(bench: Bench) {
    // More than one page of anything: 300 records of 2 KiB.
    let value = "v".repeat(2048);
    let names: Vec<String> = (0..300).map(|number| format!("r{number:04}")).collect();
    for some in names.rchunks(COMMIT_OPS_MAX) {
        let ops = some.iter().rev().map(|name| bench.put(name, &value)).collect();
        bench.commit(Vec::new(), ops).await.unwrap();
    }
    let (all, _) = bench.store.list(&bench.prefix, None, 0).await.unwrap();
    let keys: Vec<Key> = all.iter().map(|record| record.key.clone()).collect();
    assert_eq!(keys, names.iter().map(|name| bench.key(name)).collect::<Vec<_>>());
    let last = bench.store.last(&bench.prefix).await.unwrap();
    assert_eq!(last.as_ref(), all.last());
    let middle = bench.store.last(bench.key("r0123").as_str()).await.unwrap();
    assert_eq!(middle.as_ref(), Some(&all[123]));
    assert_eq!(bench.store.last(bench.key("s").as_str()).await.unwrap(), None);
    let mut joined: Vec<Record> = Vec::new();
    loop {
        let after = joined.last().map(|record| record.key.clone());
        let (page, _) = bench.store.list(&bench.prefix, after.as_ref(), 64).await.unwrap();
        assert!(page.len() <= 64);
        if page.is_empty() {
            break;
        }
        joined.extend(page);
    }
    assert_eq!(joined, all);
    // A start before the prefix is the beginning; one that was removed still says where.
    let before = Key::new("/");
    assert_eq!(bench.store.list(&bench.prefix, Some(&before), 1).await.unwrap().0[..], all[..1]);
    bench.commit(Vec::new(), vec![bench.delete("r0009")]).await.unwrap();
    let after = bench.key("r0009");
    let page = bench.store.list(&bench.prefix, Some(&after), 1).await.unwrap().0;
    assert_eq!(page[..], all[10..11]);
}

async fn a_prefix_does_not_reach_its_neighbours(bench: Bench) {
    let start = bench.store.head().await.unwrap();
    for name in ["b/1", "ba", "b", "c/1", "b/\u{10ffff}", "b\u{0}", "B/1", "b/%", "b_1"] {
        bench.write(name, name).await;
    }
    let prefix = format!("{}b/", bench.prefix);
    let (records, _) = bench.store.list(&prefix, None, 0).await.unwrap();
    let values: Vec<String> = records.iter().map(|record| text(&record.value)).collect();
    assert_eq!(values, ["b/%", "b/1", "b/\u{10ffff}"]);
    let mut watch = bench.store.watch(&prefix, start).await.unwrap();
    for expected in ["b/1", "b/\u{10ffff}", "b/%"] {
        assert_eq!(short(&bench, &next(&mut watch).await).0, expected);
    }
}

async fn a_watch_tells_every_change_in_order_once(bench: Bench) {
    let start = bench.store.head().await.unwrap();
    let mut expected = Vec::new();
    let mut watch = None;
    for number in 0..40 {
        if number == 20 {
            // Half of it is history for this one.
            watch = Some(bench.watch(start).await);
        }
        let name = format!("k{}", number % 3);
        let value = number.to_string();
        let rev = bench.write(&name, &value).await;
        expected.push((name, value, rev));
    }
    let mut watch = watch.unwrap();
    let mut again = bench.watch(expected[9].2).await;
    for change in &expected {
        assert_eq!(&short(&bench, &next(&mut watch).await), change);
    }
    for change in &expected[10..] {
        assert_eq!(&short(&bench, &next(&mut again).await), change);
    }
}

async fn a_watch_begun_while_others_write_has_no_gap(bench: Bench) {
    let start = bench.store.head().await.unwrap();
    let mut writers = JoinSet::new();
    for writer in 0..4 {
        let bench = bench.clone();
        writers.spawn(async move {
            for number in 0..25 {
                bench.write(&format!("w{writer}"), &number.to_string()).await;
            }
        });
    }
    // Each is begun at another moment of the writing.
    let mut watches = Vec::new();
    for number in 0..4 {
        watches.push(bench.watch(start).await);
        bench.write("main", &number.to_string()).await;
    }
    writers.join_all().await;
    for mut watch in watches {
        let mut seen: BTreeMap<String, i32> = BTreeMap::new();
        let mut last = start;
        for _ in 0..104 {
            let (name, value, rev) = short(&bench, &next(&mut watch).await);
            assert!(rev > last, "a revision came twice or late");
            last = rev;
            let expected = seen.entry(name).or_default();
            assert_eq!(value, expected.to_string());
            *expected += 1;
        }
        assert_eq!(seen.into_values().collect::<Vec<_>>(), [4, 25, 25, 25, 25]);
    }
}

async fn a_slow_watch_misses_nothing(bench: Bench) {
    let start = bench.store.head().await.unwrap();
    let mut watch = bench.watch(start).await;
    // Far more than any channel holds, and nobody reads.
    let rounds = 40_u32;
    for round in 0..rounds {
        let ops = (0..COMMIT_OPS_MAX).map(|n| bench.put(&format!("k{n}"), &round.to_string()));
        bench.commit(Vec::new(), ops.collect()).await.unwrap();
    }
    let mut last = start;
    let mut told = 0;
    while told < rounds as usize * COMMIT_OPS_MAX {
        match next(&mut watch).await {
            Change::Lost(_) => watch = bench.watch(last).await,
            change => {
                let (name, value, rev) = short(&bench, &change);
                assert_eq!(name, format!("k{}", told % COMMIT_OPS_MAX));
                assert_eq!(value, (told / COMMIT_OPS_MAX).to_string());
                last = rev;
                told += 1;
            }
        }
    }
}

async fn a_watch_from_before_compaction_says_compacted(bench: Bench) {
    let first = bench.write("a", "1").await;
    let second = bench.write("a", "2").await;
    let third = bench.write("a", "3").await;
    bench.store.compact(second).await.unwrap();
    let mut early = bench.watch(first).await;
    let Change::Compacted { oldest } = next(&mut early).await else { panic!("not compacted") };
    assert!(oldest >= second);
    let mut late = bench.watch(oldest.max(second)).await;
    assert_eq!(short(&bench, &next(&mut late).await).2, third);
    // The records are all there, and so is what was forgotten already.
    assert_eq!(bench.value("a").await.as_deref(), Some("3"));
    bench.store.compact(first).await.unwrap();
    let mut late = bench.watch(second).await;
    assert_eq!(short(&bench, &next(&mut late).await).2, third);
}

async fn a_watch_from_ahead_of_the_head_says_regressed(bench: Bench) {
    let rev = bench.write("a", "1").await;
    let mut watch = bench.watch(Rev(rev.0 + 1_000_000)).await;
    let Change::Regressed { head } = next(&mut watch).await else { panic!("not regressed") };
    assert!(head >= rev);
    let mut from_head = bench.watch(rev).await;
    let end = bench.write("end", "1").await;
    assert_eq!(short(&bench, &next(&mut from_head).await).2, end);
}

async fn what_is_too_large_is_refused_whole(bench: Bench) {
    let is_too_large = |result: Result<Rev, Error>| matches!(result, Err(Error::TooLarge { .. }));
    let large = "x".repeat(RECORD_BYTES_MAX + 1);
    let ops = vec![bench.put("a", "1"), bench.put("b", &large)];
    assert!(is_too_large(bench.commit(Vec::new(), ops).await));
    let ops = (0..=COMMIT_OPS_MAX).map(|n| bench.put(&n.to_string(), "1")).collect();
    assert!(is_too_large(bench.commit(Vec::new(), ops).await));
    let (records, _) = bench.store.list(&bench.prefix, None, 0).await.unwrap();
    assert_eq!(records, []);
    let blob = BlobId { owner: bench.owner(), stream: Stream::Prompt };
    let bytes = Bytes::from(vec![b'x'; BLOB_CHUNK_BYTES_MAX + 1]);
    let append = Append { blob: blob.clone(), offset: 0, bytes };
    let refused = bench.blobs.append(vec![append]).await;
    assert!(matches!(refused, Err(Error::TooLarge { .. })));
    assert_eq!(bench.blobs.len(&blob).await.unwrap(), 0);
}

async fn the_largest_record_and_commit_are_taken(bench: Bench) {
    let large = "x".repeat(RECORD_BYTES_MAX);
    let rev = bench.write("large", &large).await;
    assert_eq!(bench.value("large").await.as_deref(), Some(large.as_str()));
    let ops = (0..COMMIT_OPS_MAX).map(|n| bench.put(&format!("m{n:02}"), "1")).collect();
    bench.commit(Vec::new(), ops).await.unwrap();
    let mut watch = bench.watch(Rev(rev.0 - 1)).await;
    assert_eq!(short(&bench, &next(&mut watch).await).1, large);
    for n in 0..COMMIT_OPS_MAX {
        assert_eq!(short(&bench, &next(&mut watch).await).0, format!("m{n:02}"));
    }
}

async fn unknown_outcomes_are_read_back(bench: Bench) {
    let faulty = FaultStore::new(bench.store.clone(), bench.blobs.clone(), Plan::default(), 1);
    let commit = |name: &str| Commit {
        guards: vec![Guard::Absent(bench.key(name))],
        ops: vec![bench.put(name, "1")],
    };
    faulty.script(Fault::UnknownApplied);
    assert!(matches!(faulty.commit(commit("a")).await, Err(Error::Unknown(_))));
    assert_eq!(bench.value("a").await.as_deref(), Some("1"));
    // The same commit again is refused by its guard: nothing happens twice.
    let again = faulty.commit(commit("a")).await;
    assert_eq!(again, Err(Error::Conflict { key: bench.key("a") }));
    faulty.script(Fault::UnknownNotApplied);
    assert!(matches!(faulty.commit(commit("b")).await, Err(Error::Unknown(_))));
    assert_eq!(bench.get("b").await, None);
    faulty.commit(commit("b")).await.unwrap();
}

async fn many_writers_on_one_key_lose_no_update(bench: Bench) {
    const WRITERS: u64 = 32;
    const ROUNDS: u64 = 8;
    bench.write("counter", "0").await;
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let bench = bench.clone();
        writers.spawn(async move {
            let mut done = 0;
            while done < ROUNDS {
                let record = bench.get("counter").await.unwrap();
                let number: u64 = text(&record.value).parse().unwrap();
                let guards = vec![Guard::RevIs(bench.key("counter"), record.rev)];
                let ops = vec![bench.put("counter", &(number + 1).to_string())];
                match bench.commit(guards, ops).await {
                    Ok(_) => done += 1,
                    Err(error) => {
                        assert_eq!(error, Error::Conflict { key: bench.key("counter") });
                    }
                }
            }
        });
    }
    writers.join_all().await;
    assert_eq!(bench.value("counter").await, Some((WRITERS * ROUNDS).to_string()));
}

async fn nonces_tell_the_commit(bench: Bench) {
    let rev = bench.write("a", "1").await;
    let nonce = bench.store.nonce(rev).await.unwrap().unwrap();
    assert!(bench.store.verify(rev, nonce).await.unwrap());
    assert!(!bench.store.verify(rev, nonce.wrapping_add(1)).await.unwrap());
    let ahead = Rev(rev.0 + 1_000_000);
    assert_eq!(bench.store.nonce(ahead).await.unwrap(), None);
    assert!(!bench.store.verify(ahead, nonce).await.unwrap());
    bench.store.compact(rev).await.unwrap();
    assert!(bench.store.verify(rev, nonce).await.unwrap());
    let identity = bench.store.identity().await.unwrap();
    assert!(!identity.is_empty());
    assert_eq!(bench.store.identity().await.unwrap(), identity);
}

/// Runs the cases on an engine that is one type.
pub async fn run_all_on<S>(engine: Arc<S>)
where
    S: super::Store + super::Blobs + 'static,
{
    run_all(engine.clone(), engine).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::MemoryStore;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn the_store_in_memory_conforms() {
        run_all_on(Arc::new(MemoryStore::default())).await;
    }
}
