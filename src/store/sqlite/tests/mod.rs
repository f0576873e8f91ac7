//! What only this engine promises: durability, refusals, the full disk, shared fsyncs.

mod disk;
mod mark;
mod nth;

use std::path::Path;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};

use rusqlite::{Connection, ffi};
use tempfile::TempDir;

use super::*;
use crate::store::{Change, Guard, conformance};

/// Lets the engine fail at a step that a test names.
#[derive(Default)]
pub(super) struct Trips {
    next: Mutex<Option<(u32, i32)>>,
    /// How many pages the file may have; set by the writer at its next step.
    wanted_pages: AtomicI64,
    /// How many it may have once the ballast is released.
    quota_pages: AtomicI64,
}

impl Shared {
    /// A place where tests let the engine fail.
    pub(super) fn trip(&self) -> rusqlite::Result<()> {
        let mut next = self.trips.next.lock().unwrap();
        match &mut *next {
            None => Ok(()),
            Some((0, code)) => {
                let error = ffi::Error::new(*code);
                *next = None;
                Err(rusqlite::Error::SqliteFailure(error, None))
            }
            Some((steps, _)) => {
                *steps -= 1;
                Ok(())
            }
        }
    }

    /// A pretended disk has room for this many pages and no more.
    pub(super) fn limit_pages(&self, connection: &Connection) {
        let pages = self.trips.wanted_pages.swap(0, Ordering::SeqCst);
        if pages > 0 {
            connection.pragma_update(None, "max_page_count", pages).unwrap();
        }
    }

    /// The ballast of a pretended disk gives back pages instead of bytes.
    pub(super) fn lift_quota(&self, connection: &Connection) {
        let pages = self.trips.quota_pages.swap(0, Ordering::SeqCst);
        if pages > 0 {
            connection.pragma_update(None, "max_page_count", pages).unwrap();
        }
    }
}

fn options() -> Options {
    Options { ballast_bytes: 64 * 1024, ..Options::default() }
}

fn open_in(dir: &Path) -> Arc<SqliteStore> {
    Arc::new(open(dir, options()).unwrap().0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlite_conforms() {
    let dir = TempDir::new().unwrap();
    conformance::run_all_on(open_in(dir.path())).await;
}

fn key(name: &str) -> Key {
    Key::new(format!("/t/{name}"))
}

fn put(name: &str, value: &str) -> Op {
    Op::Put { key: key(name), value: Bytes::from(value.to_owned()) }
}

async fn write(store: &SqliteStore, name: &str, value: &str) -> Result<Rev, Error> {
    store.commit(Commit { guards: Vec::new(), ops: vec![put(name, value)] }).await
}

async fn value(store: &SqliteStore, name: &str) -> Option<Bytes> {
    store.get(&key(name)).await.unwrap().map(|record| record.value)
}

async fn delete(store: &SqliteStore, name: &str) -> Result<Rev, Error> {
    let ops = vec![Op::Delete { key: key(name) }];
    store.commit(Commit { guards: Vec::new(), ops }).await
}

fn blob(owner: &str) -> BlobId {
    BlobId { owner: Uid::from(owner), stream: crate::store::Stream::Transcript }
}

fn append(owner: &str, offset: u64, bytes: &[u8]) -> Vec<Append> {
    vec![Append { blob: blob(owner), offset, bytes: Bytes::copy_from_slice(bytes) }]
}

/// What kill -9 leaves: the files as they are while the store is open.
fn copy_as_after_a_kill(from: &Path) -> TempDir {
    let to = TempDir::new().unwrap();
    for name in [DATABASE_FILE, "store.db-wal", ID_FILE, MARK_FILE] {
        std::fs::copy(from.join(name), to.path().join(name)).unwrap();
    }
    to
}

fn trip(store: &SqliteStore, steps: u32, code: i32) {
    *store.shared.trips.next.lock().unwrap() = Some((steps, code));
}

#[tokio::test]
async fn a_clean_close_spares_the_check_and_a_drop_does_not() {
    let dir = TempDir::new().unwrap();
    let (store, opened) = open(dir.path(), options()).unwrap();
    assert_eq!(opened, Opened { is_new: true, was_unclean: false, migrated_from: None });
    let rev = write(&store, "a", "1").await.unwrap();
    let id = store.identity().await.unwrap();
    let mut watch = store.watch("/", rev).await.unwrap();
    store.close().await;
    assert!(matches!(write(&store, "a", "2").await, Err(Error::Unavailable(_))));
    assert!(matches!(store.get(&key("a")).await, Err(Error::Unavailable(_))));
    assert!(store.watch("/", rev).await.is_err());
    while watch.next().await.is_some() {}
    store.close().await;
    drop(store);
    let (store, opened) = open(dir.path(), options()).unwrap();
    assert_eq!(opened, Opened { is_new: false, was_unclean: false, migrated_from: None });
    assert_eq!(value(&store, "a").await.unwrap(), "1");
    assert_eq!(store.identity().await.unwrap(), id);
    assert!(write(&store, "a", "2").await.unwrap() > rev);
    drop(store);
    let (store, opened) = open(dir.path(), options()).unwrap();
    assert_eq!(opened, Opened { is_new: false, was_unclean: true, migrated_from: None });
    assert_eq!(value(&store, "a").await.unwrap(), "2");
}

#[tokio::test]
async fn every_acknowledged_write_survives_a_kill() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    for round in 0..20_u64 {
        let rev = write(&store, &round.to_string(), "x").await.unwrap();
        store.append(append("turn", round * 3, b"abc")).await.unwrap();
        if round % 5 != 0 {
            continue;
        }
        let copy = copy_as_after_a_kill(dir.path());
        let (copied, opened) = open(copy.path(), options()).unwrap();
        assert!(opened.was_unclean);
        assert_eq!(copied.head().await.unwrap(), rev);
        let nonce = store.nonce(rev).await.unwrap().unwrap();
        assert!(copied.verify(rev, nonce).await.unwrap());
        for earlier in 0..=round {
            assert!(value(&copied, &earlier.to_string()).await.is_some());
        }
        assert_eq!(copied.len(&blob("turn")).await.unwrap(), (round + 1) * 3);
    }
}

#[tokio::test]
async fn an_old_backup_is_seen_by_its_nonces() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    write(&store, "a", "1").await.unwrap();
    let backup = TempDir::new().unwrap();
    store.backup(&backup.path().join(DATABASE_FILE)).await.unwrap();
    assert!(store.backup(&backup.path().join(DATABASE_FILE)).await.is_err());
    let lost = write(&store, "a", "2").await.unwrap();
    let nonce = store.nonce(lost).await.unwrap().unwrap();
    let old = open_in(backup.path());
    assert_eq!(old.identity().await.unwrap(), store.identity().await.unwrap());
    assert_eq!(value(&old, "a").await.unwrap(), "1");
    assert!(!old.verify(lost, nonce).await.unwrap());
    // The same revision again, by another commit, is still not the one that was lost.
    assert_eq!(write(&old, "a", "3").await.unwrap(), lost);
    assert!(!old.verify(lost, nonce).await.unwrap());
}

#[tokio::test]
async fn a_second_daemon_is_refused_with_the_pid_of_the_first() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    for _ in 0..3 {
        let Err(OpenError::Locked { pid, .. }) = open(dir.path(), options()) else {
            panic!("opened twice");
        };
        assert_eq!(pid, Some(std::process::id()));
    }
    write(&store, "a", "1").await.unwrap();
    drop(store);
    assert_eq!(value(&open_in(dir.path()), "a").await.unwrap(), "1");
}

/// Above the largest that Linux gives out (proc_sys_kernel(5), `pid_max`).
const NO_PID: u32 = 1 << 23;

#[test]
fn the_lock_of_a_dead_daemon_that_a_child_still_has_is_waited_for() {
    let dir = TempDir::new().unwrap();
    drop(open_in(dir.path()));
    let path = dir.path().join("lock");
    let heir = std::fs::File::options().write(true).open(&path).unwrap();
    rustix::fs::flock(&heir, rustix::fs::FlockOperation::LockExclusive).unwrap();
    std::fs::write(&path, NO_PID.to_string()).unwrap();
    let (sender, opening) = std::sync::mpsc::sync_channel(1);
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| {
            sender.send(()).unwrap();
            open(dir.path(), options()).map(drop)
        });
        opening.recv().unwrap();
        drop(heir);
        opened.join().unwrap().unwrap();
    });
}

#[tokio::test]
async fn files_are_private_and_unsafe_directories_refused() {
    use std::os::unix::fs::PermissionsExt as _;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let chmod = |path: &Path, mode| {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let base = TempDir::new().unwrap();
    let dir = base.path().join("deep/data");
    let store = open_in(&dir);
    write(&store, "a", "1").await.unwrap();
    assert!(value(&store, "a").await.is_some());
    assert_eq!(mode(&dir), 0o700);
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&dir).unwrap() {
        let entry = entry.unwrap();
        assert_eq!(mode(&entry.path()), 0o600, "{:?}", entry.file_name());
        names.push(entry.file_name());
    }
    assert!(names.contains(&"store.db-wal".into()) && names.contains(&"ballast".into()));
    drop(store);
    chmod(&dir, 0o755);
    drop(open_in(&dir));
    assert_eq!(mode(&dir), 0o700);
    for unsafe_mode in [0o777, 0o770, 0o702] {
        chmod(&dir, unsafe_mode);
        let error = open(&dir, options()).err().unwrap();
        assert!(matches!(error, OpenError::Directory { .. }));
        assert!(error.to_string().contains("chmod 700"), "{error}");
    }
    chmod(&dir, 0o700);
    let link = base.path().join("link");
    std::os::unix::fs::symlink(&dir, &link).unwrap();
    for path in [link.clone(), link.join("")] {
        let error = open(&path, options()).err().unwrap();
        assert!(error.to_string().contains("symbolic link"), "{error}");
    }
    let file = base.path().join("file");
    std::fs::write(&file, "").unwrap();
    let error = open(&file, options()).err().unwrap();
    assert!(error.to_string().contains("not a directory"), "{error}");
}

#[tokio::test]
async fn a_directory_of_another_user_is_refused() {
    let dir = TempDir::new().unwrap();
    let other = Some(rustix::fs::Uid::from_raw(12345));
    if rustix::fs::chown(dir.path(), other, None).is_err() {
        eprintln!("skipped: only root may give a directory away");
        return;
    }
    let error = open(dir.path(), options()).err().unwrap();
    assert!(error.to_string().contains("belongs to user 12345"), "{error}");
}

#[tokio::test]
async fn newer_and_foreign_files_are_refused_and_left_alone() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    write(&store, "a", "1").await.unwrap();
    store.close().await;
    drop(store);
    let file = dir.path().join(DATABASE_FILE);
    let set = |pragma: &str, number: i64| {
        let connection = Connection::open(&file).unwrap();
        connection.pragma_update(None, pragma, number).unwrap();
    };
    set("user_version", schema::VERSION + 1);
    let error = open(dir.path(), options()).err().unwrap();
    assert!(matches!(error, OpenError::Newer { .. }));
    assert!(error.to_string().contains("run the newer spawnlet"), "{error}");
    set("user_version", schema::VERSION);
    set("application_id", 7);
    assert!(matches!(open(dir.path(), options()), Err(OpenError::Foreign)));
    set("application_id", 0x5350_574E);
    assert_eq!(value(&open_in(dir.path()), "a").await.unwrap(), "1");
}

#[tokio::test]
async fn a_missing_empty_or_exchanged_file_is_no_new_store() {
    let dir = TempDir::new().unwrap();
    drop(open_in(dir.path()));
    let file = dir.path().join(DATABASE_FILE);
    for make in [|file: &Path| std::fs::remove_file(file), |file: &Path| std::fs::write(file, "")] {
        make(&file).unwrap();
        let error = open(dir.path(), options()).err().unwrap();
        assert!(matches!(error, OpenError::Missing), "{error}");
    }
    let other = TempDir::new().unwrap();
    drop(open_in(other.path()));
    std::fs::copy(other.path().join(DATABASE_FILE), &file).unwrap();
    assert!(matches!(open(dir.path(), options()), Err(OpenError::Mixed)));
}

/// The first format, as a file of its time would hold it. Never edited: later versions must open
/// it with all that is in it (70, K1).
const GOLDEN_V1: &str = include_str!("golden_v1.sql");

#[tokio::test]
async fn a_store_of_version_1_opens_with_all_its_data() {
    let dir = TempDir::new().unwrap();
    let golden = Connection::open(dir.path().join(DATABASE_FILE)).unwrap();
    golden.execute_batch(GOLDEN_V1).unwrap();
    golden.close().unwrap();
    let store = open_in(dir.path());
    assert_eq!(store.identity().await.unwrap(), "00112233445566778899aabbccddeeff");
    assert_eq!(store.head().await.unwrap(), Rev(3));
    let record = store.get(&key("b")).await.unwrap().unwrap();
    assert_eq!((record.value, record.rev, record.create_rev), ("two".into(), Rev(3), Rev(1)));
    assert!(store.verify(Rev(3), u64::MAX).await.unwrap());
    let mut watch = store.watch("/t/", Rev(1)).await.unwrap();
    let deleted = Change::Delete { key: key("a"), last: "one".into(), rev: Rev(2) };
    assert_eq!(watch.next().await.unwrap(), deleted);
    assert!(matches!(watch.next().await.unwrap(), Change::Put(record) if record.rev == Rev(3)));
    let owner = BlobId { owner: Uid::from("u"), stream: crate::store::Stream::Prompt };
    assert_eq!(store.read(&owner, 1, 9).await.unwrap(), "ello");
    // What this program makes has the tables of the golden file, until there is a version 2.
    let fresh = TempDir::new().unwrap();
    drop(open_in(fresh.path()));
    let tables = |dir: &Path| -> Vec<String> {
        let connection = Connection::open(dir.join(DATABASE_FILE)).unwrap();
        let sql = "SELECT sql FROM sqlite_schema WHERE sql NOT NULL ORDER BY name";
        let mut statement = connection.prepare(sql).unwrap();
        let rows = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
        rows.map(|sql| sql.unwrap().split_whitespace().collect()).collect()
    };
    assert_eq!(tables(fresh.path()), tables(dir.path()));
}

#[tokio::test]
async fn damaged_files_are_refused_or_open_consistently() {
    use rand::rngs::StdRng;
    use rand::{RngExt as _, SeedableRng as _};
    let dir = TempDir::new().unwrap();
    let mut store = open_in(dir.path());
    for number in 0..60_u64 {
        if number == 30 {
            // So that one half is in the file and the other in the log.
            store.close().await;
            drop(store);
            store = open_in(dir.path());
        }
        let filler = number.to_string().repeat(400);
        write(&store, &format!("{number:02}"), &filler).await.unwrap();
        store.append(append("turn", number * 100, &[b'x'; 100])).await.unwrap();
    }
    let original = copy_as_after_a_kill(dir.path());
    let mut rng = StdRng::seed_from_u64(9);
    let (mut refused, mut opened) = (0, 0);
    let is_slow = std::env::var("SPAWNLET_TIER").is_ok_and(|tier| tier == "1" || tier == "2");
    for round in 0..if is_slow { 500 } else { 60 } {
        let copy = copy_as_after_a_kill(original.path());
        let name = if round % 2 == 0 { "store.db-wal" } else { DATABASE_FILE };
        let file = copy.path().join(name);
        let mut bytes = std::fs::read(&file).unwrap();
        match round % 3 {
            0 => bytes.truncate(rng.random_range(0..bytes.len())),
            1 => {
                let at = rng.random_range(0..bytes.len());
                let end = bytes.len().min(at + 2000);
                rng.fill(&mut bytes[at..end]);
            }
            _ => {
                let at = rng.random_range(0..bytes.len());
                bytes[at] ^= 1 << rng.random_range(0..8);
            }
        }
        std::fs::write(&file, bytes).unwrap();
        let is_marked = round % 4 != 0;
        if !is_marked {
            std::fs::write(copy.path().join(MARK_FILE), "").unwrap();
        }
        let Ok((store, _)) = open(copy.path(), options()) else {
            refused += 1;
            continue;
        };
        opened += 1;
        let listed = store.list("/t/", None, 0).await;
        let read = store.read(&blob("turn"), 0, 100_000).await;
        if name == DATABASE_FILE {
            // What the check does not find is refused when it is read, or is a value; never nothing.
            assert!(listed.is_err() || listed.is_ok_and(|(records, _)| !records.is_empty()));
            drop(write(&store, "99", "x").await);
            continue;
        }
        // Without a mark a log that was cut is an earlier moment: the records up to it, and no
        // hole. With one nothing that was acknowledged is missing.
        let (records, head) = listed.unwrap();
        assert_eq!(records.len() as u64, head.0, "round {round}");
        assert!(head.0 >= if is_marked { 60 } else { 30 }, "round {round}");
        for (number, record) in records.iter().enumerate() {
            assert_eq!(record.key, key(&format!("{number:02}")));
        }
        assert_eq!(read.unwrap().len() as u64, store.len(&blob("turn")).await.unwrap());
        write(&store, "99", "x").await.unwrap();
    }
    assert!(refused > 5 && opened > 5, "{refused} {opened}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_share_their_fsyncs() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    let mut writers = JoinSet::new();
    for writer in 0..32 {
        let store = Arc::clone(&store);
        writers.spawn(async move {
            for number in 0..20 {
                write(&store, &format!("{writer}"), &number.to_string()).await.unwrap();
            }
        });
    }
    writers.join_all().await;
    let (groups, jobs) = store.write_counts();
    assert_eq!(jobs, 640);
    assert!(groups * 3 < jobs, "{groups} transactions for {jobs} jobs");
}

#[tokio::test]
async fn a_refused_job_takes_nothing_of_its_group_with_it() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    write(&store, "taken", "1").await.unwrap();
    let refused = Commit {
        guards: vec![Guard::Absent(key("taken"))],
        ops: vec![put("never", "1"), Op::DropBlobs { owner: Uid::from("turn") }],
    };
    let (first, append, second, third, bad) = tokio::join!(
        write(&store, "a", "1"),
        store.append(append("turn", 0, b"abc")),
        store.commit(refused),
        write(&store, "b", "1"),
        store.append(append("turn", 9, b"abc")),
    );
    let (first, third) = (first.unwrap(), third.unwrap());
    append.unwrap();
    assert_eq!(second, Err(Error::Conflict { key: key("taken") }));
    assert!(matches!(bad, Err(Error::Conflict { .. })));
    assert_eq!(third, Rev(first.0 + 1));
    assert_eq!(value(&store, "never").await, None);
    assert_eq!(store.len(&blob("turn")).await.unwrap(), 3);
}

#[tokio::test]
async fn history_is_bounded_by_itself() {
    let dir = TempDir::new().unwrap();
    let options = Options { history_revisions_max: 50, ..options() };
    let (store, _) = open(dir.path(), options).unwrap();
    for round in 0..30 {
        let names: Vec<String> = (0..64).map(|number| format!("{number}")).collect();
        let value = round.to_string();
        futures::future::join_all(names.iter().map(|name| write(&store, name, &value))).await;
    }
    let head = store.head().await.unwrap();
    let mut watch = store.watch("/", Rev(0)).await.unwrap();
    let Some(Change::Compacted { oldest }) = watch.next().await else { panic!("not compacted") };
    assert!(oldest.0 + 50 <= head.0 && oldest.0 + 50 + 512 > head.0, "{oldest} {head}");
    let connection = Connection::open(dir.path().join(DATABASE_FILE)).unwrap();
    let sql = "SELECT count(*) FROM history";
    let rows: u64 = connection.query_row(sql, [], |row| row.get::<_, i64>(0)).unwrap() as u64;
    assert_eq!(rows, head.0 - oldest.0);
}

#[tokio::test]
async fn a_failed_group_reaches_every_job_and_nothing_of_it_stands() {
    // Steps of a transaction of one job: before BEGIN, the job, its end, before COMMIT, after it.
    for (code, is_fatal) in [
        (ffi::SQLITE_IOERR, true),
        (ffi::SQLITE_IOERR_FSYNC, true),
        (ffi::SQLITE_CORRUPT, true),
        (ffi::SQLITE_BUSY, false),
        (ffi::SQLITE_NOMEM, false),
    ] {
        for step in 0..5 {
            let dir = TempDir::new().unwrap();
            let store = open_in(dir.path());
            let before = write(&store, "before", "1").await.unwrap();
            let mut watch = store.watch("/t/", before).await.unwrap();
            assert_eq!(watch.next().await, Some(Change::Bookmark(before)));
            trip(&store, step, code);
            let (put, append) =
                tokio::join!(write(&store, "a", "1"), store.append(append("turn", 0, b"abc")));
            let case = format!("code {code} at step {step}");
            // The first job may have been a group of its own.
            let failed = put.clone().err().unwrap_or_else(|| append.clone().unwrap_err());
            match &failed {
                Error::Unavailable(_) => assert!(step <= 3, "{case}"),
                Error::Unknown(_) => assert!(step >= 3, "{case}"),
                other => panic!("{case}: {other}"),
            }
            let is_fatal = is_fatal || matches!(failed, Error::Unknown(_));
            assert_eq!(store.fault().is_some(), is_fatal, "{case}");
            // Reads are answered all the while.
            assert_eq!(value(&store, "before").await.unwrap(), "1");
            if is_fatal {
                let refused = write(&store, "b", "1").await.unwrap_err();
                assert!(matches!(refused, Error::Unavailable(_)), "{case}");
                assert!(refused.to_string().contains("read-only"), "{refused}");
                store.reset().await.unwrap();
            }
            let is_applied = value(&store, "a").await.is_some();
            assert!(is_applied || put.is_err(), "{case}: acknowledged and gone");
            assert!(!is_applied || !matches!(put, Err(Error::Unavailable(_))), "{case}");
            // The watch goes on over it without a gap.
            let rev = write(&store, "c", "1").await.unwrap();
            let mut told = watch.next().await.unwrap();
            if is_applied {
                assert!(matches!(told, Change::Put(record) if record.key == key("a")), "{case}");
                told = watch.next().await.unwrap();
            }
            assert!(matches!(told, Change::Put(record) if record.rev == rev), "{case}");
        }
    }
}

#[tokio::test]
async fn a_reset_refuses_a_file_that_lost_acknowledged_commits() {
    let dir = TempDir::new().unwrap();
    let store = open_in(dir.path());
    let rev = write(&store, "a", "1").await.unwrap();
    let connection = Connection::open(dir.path().join(DATABASE_FILE)).unwrap();
    connection.execute("DELETE FROM commits WHERE rev = ?1", [rev.0 as i64]).unwrap();
    drop(connection);
    let refused = store.reset().await.unwrap_err();
    assert!(refused.to_string().contains("are gone"), "{refused}");
    assert!(store.fault().is_some());
    assert!(matches!(write(&store, "a", "2").await, Err(Error::Unavailable(_))));
}
