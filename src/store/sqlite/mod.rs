//! The default engine: one SQLite file in the data directory, for records and blobs.
//!
//! WAL with `synchronous=FULL` (measured: 60 power cuts lost nothing; NORMAL lost 6258 acknowledged
//! rows), one writer thread with group commit (387 -> 9000 writes a second), readers beside it.
//!
//! Invariants: what was acknowledged survives kill -9 and power loss; one daemon at a time holds
//! the directory; nothing is made anew where something is missing or damaged; after an I/O error
//! nothing is written until [`Store::reset`].
//!
//! Absent on purpose: repair. A damaged file is refused, with what to do.

mod apply;
mod ballast;
mod blobs;
mod error;
mod feed;
mod lock;
mod mark;
mod reader;
mod schema;
mod writer;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

pub use error::OpenError;

use async_trait::async_trait;
use bytes::Bytes;
use rusqlite::{Connection, ErrorCode, OpenFlags};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use self::ballast::Ballast;
use self::feed::{Feed, WATCH_CHANGES_MAX};
use self::lock::DataDir;
use self::mark::MARK_FILE;
use self::reader::Readers;
use self::writer::{Job, QUEUE_JOBS_MAX, Work, Writer};
use super::{
    Append, BLOB_CHUNK_BYTES_MAX, BlobId, Blobs, COMMIT_OPS_MAX, Commit, Error, Key, Op,
    RECORD_BYTES_MAX, Record, Rev, Store, Watch,
};
use crate::api::Uid;

/// The database's file in the data directory.
const DATABASE_FILE: &str = "store.db";
/// Holds the store's id beside the database, so that an emptied or exchanged one is seen.
const ID_FILE: &str = "store.id";
/// The longest id that is read back, in bytes. Ours have 32.
const ID_BYTES_MAX: u64 = 64;
/// How long the writer waits for a lock: only somebody with a SQLite shell could hold it.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// The log is cut to this after a checkpoint, so that one large commit does not keep its space.
const WAL_BYTES_KEPT: i64 = 16 * 1024 * 1024;
/// The most guards of one commit: the records that it writes, and as many that it only reads.
const GUARDS_MAX: usize = 2 * COMMIT_OPS_MAX;

/// How the engine is set.
#[derive(Clone, Debug)]
pub struct Options {
    /// The size of the ballast in bytes; a quarter of the file system if that is less.
    pub ballast_bytes: u64,
    /// How many revisions of history are kept, at least. Whoever watches from further back is told
    /// `Compacted` and lists. At 8 KiB a change the default takes 80 MiB at most.
    pub history_revisions_max: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { ballast_bytes: 16 * 1024 * 1024, history_revisions_max: 10_000 }
    }
}

/// What was found when the store was opened.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Opened {
    /// There was none: it was made.
    pub is_new: bool,
    /// It was not closed in good order, so its file was checked.
    pub was_unclean: bool,
    /// The schema version that was found, if it was an older one and was brought up.
    pub migrated_from: Option<i64>,
}

impl From<rusqlite::Error> for OpenError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Corrupt(error.to_string())
            }
            _ => Self::Engine(error.to_string()),
        }
    }
}

/// What the threads and the handle share.
struct Shared {
    dir: DataDir,
    database: PathBuf,
    id: String,
    options: Options,
    feed: Arc<Feed>,
    readers: Arc<Readers>,
    ballast: Ballast,
    fault: Mutex<Option<String>>,
    groups: AtomicU64,
    jobs: AtomicU64,
    #[cfg(test)]
    trips: tests::Trips,
}

impl Shared {
    fn fault(&self) -> Option<String> {
        self.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn set_fault(&self, reason: String) {
        tracing::error!(reason, "the store is read-only until it is reset");
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    }

    fn clear_fault(&self) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn count_group(&self, jobs: usize) {
        self.groups.fetch_add(1, Ordering::Relaxed);
        self.jobs.fetch_add(jobs as u64, Ordering::Relaxed);
    }

    /// A place where tests let the engine fail.
    #[cfg(not(test))]
    #[expect(clippy::unused_self, clippy::unnecessary_wraps, reason = "tests fill it")]
    const fn trip(&self) -> rusqlite::Result<()> {
        Ok(())
    }
}

/// Joins the writer when it is dropped. Dropped after the channel that the writer reads.
struct Joined(Option<std::thread::JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic of the writer was shown by the panic hook.
            let _ = thread.join();
        }
    }
}

/// Records and blobs in one SQLite file.
///
/// Dropping it without [`SqliteStore::close`] waits for the group that is being written, loses
/// nothing that was acknowledged, and makes the next start check the file.
pub struct SqliteStore {
    jobs: mpsc::Sender<Job>,
    watches: Mutex<JoinSet<()>>,
    shared: Arc<Shared>,
    // After `jobs`: fields are dropped in their order, and the thread ends when nobody can ask.
    _writer: Joined,
}

/// Claims the data directory and opens its store, or makes it. Blocks; for an unclean stop as
/// long as reading the whole file takes.
///
/// # Errors
///
/// See [`OpenError`]. No record is changed in a store that is refused.
pub fn open(data_dir: &Path, options: Options) -> Result<(SqliteStore, Opened), OpenError> {
    let dir = DataDir::claim(data_dir)?;
    let database = dir.file(DATABASE_FILE);
    let had_file = prepare_file(&dir, &database)?;
    if had_file {
        mark::check(&dir.file(MARK_FILE), &database)?;
    }
    let mut connection = connect_writer(&database)?;
    let found = schema::inspect(&connection)?;
    let was_unclean = had_file && found > 0 && !dir.has_clean_mark();
    if was_unclean {
        quick_check(&connection)?;
    }
    dir.take_clean_mark()?;
    schema::migrate(&mut connection, found)?;
    let id = settle_identity(&dir, &connection)?;

    let head = Rev(schema::head(&connection)?);
    let ballast = Ballast::new(&dir.file(""), options.ballast_bytes);
    let shared = Arc::new(Shared {
        readers: Arc::new(Readers::new(database.clone())),
        feed: Arc::new(Feed::new(head)),
        dir,
        database,
        id,
        options,
        ballast,
        fault: Mutex::new(None),
        groups: AtomicU64::new(0),
        jobs: AtomicU64::new(0),
        #[cfg(test)]
        trips: tests::Trips::default(),
    });
    let (jobs, queue) = mpsc::channel(QUEUE_JOBS_MAX);
    let writer = Writer::new(Arc::clone(&shared), connection)?;
    let thread = std::thread::Builder::new()
        .name("store-writer".to_owned())
        .spawn(move || writer.run(queue))
        .map_err(|source| OpenError::Io { path: shared.database.clone(), source })?;
    let store = SqliteStore {
        jobs,
        watches: Mutex::new(JoinSet::new()),
        shared,
        _writer: Joined(Some(thread)),
    };
    let migrated_from = (found > 0 && found < schema::VERSION).then_some(found);
    Ok((store, Opened { is_new: found == 0, was_unclean, migrated_from }))
}

/// Makes the file, private, if there never was one. Tells whether it was there.
fn prepare_file(dir: &DataDir, database: &Path) -> Result<bool, OpenError> {
    use std::os::unix::fs::PermissionsExt as _;
    let io = |source| OpenError::Io { path: database.to_owned(), source };
    // Made before SQLite sees it: its other files take the mode of this one.
    let opened =
        lock::private_options().read(true).write(true).create(true).truncate(false).open(database);
    let file = opened.map_err(io)?;
    file.set_permissions(std::fs::Permissions::from_mode(lock::FILE_MODE)).map_err(io)?;
    let is_empty = file.metadata().map_err(io)?.len() == 0;
    let has_id = dir.file(ID_FILE).exists();
    if is_empty && has_id {
        return Err(OpenError::Missing);
    }
    if is_empty {
        file.sync_all().map_err(io)?;
        dir.sync()?;
    }
    Ok(!is_empty)
}

/// Sees that the store's id is the one that belongs here, and writes it beside a store that is new.
fn settle_identity(dir: &DataDir, connection: &Connection) -> Result<String, OpenError> {
    use std::io::Read as _;
    let path = dir.file(ID_FILE);
    let id = schema::meta(connection, "store_id")?
        .ok_or_else(|| OpenError::Corrupt("it has no store id".to_owned()))?;
    match std::fs::File::open(&path) {
        Ok(file) => {
            let mut beside = String::new();
            file.take(ID_BYTES_MAX)
                .read_to_string(&mut beside)
                .map_err(|source| OpenError::Io { path, source })?;
            if beside.trim() != id {
                return Err(OpenError::Mixed);
            }
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            // First into the file itself: a log that is cut must not leave an empty store.
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))?;
            lock::write_durably(&path, id.as_bytes())?;
            dir.sync()?;
        }
        Err(source) => return Err(OpenError::Io { path, source }),
    }
    Ok(id)
}

/// The one connection that writes.
fn connect_writer(path: &Path) -> Result<Connection, OpenError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // Takes effect in an empty file only; lets a low disk have back what deletes made free.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))?;
    if !mode.eq_ignore_ascii_case("wal") {
        return Err(OpenError::Engine(format!("no write-ahead log here (mode {mode})")));
    }
    connection.pragma_update(None, "synchronous", "FULL")?;
    // Ours, so that its errors are seen: SQLite's own automatic checkpoint swallows them.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", WAL_BYTES_KEPT)?;
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "trusted_schema", false)?;
    connection.pragma_update(None, "cell_size_check", true)?;
    connection.set_prepared_statement_cache_capacity(64);
    Ok(connection)
}

/// Reads the whole file and sees whether it hangs together.
fn quick_check(connection: &Connection) -> Result<(), OpenError> {
    let verdict: String = connection.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
    if verdict == "ok" { Ok(()) } else { Err(OpenError::Corrupt(verdict)) }
}

impl SqliteStore {
    /// Whether new work must be refused because the disk is full or nearly so. Cheap; asking is
    /// also what makes the engine see that there is room again.
    #[must_use]
    pub fn is_disk_low(&self) -> bool {
        let is_low = self.shared.ballast.is_low();
        if is_low {
            // A full queue looks at the disk by itself, after its next group.
            let _ = self.jobs.try_send(Job::CheckDisk);
        }
        is_low
    }

    /// How many transactions and how many jobs were written since the start.
    #[must_use]
    pub fn write_counts(&self) -> (u64, u64) {
        (self.shared.groups.load(Ordering::Relaxed), self.shared.jobs.load(Ordering::Relaxed))
    }

    /// Ends every watch, writes what is queued, and leaves the mark that spares the next start its
    /// check. Afterwards everything is `Unavailable`. The directory's lock goes when the store is
    /// dropped.
    ///
    /// # Cancel safety
    ///
    /// Once the queue has taken it, it goes on by itself.
    pub async fn close(&self) {
        self.lock_watches().abort_all();
        let (reply, done) = oneshot::channel();
        if self.jobs.send(Job::Close(reply)).await.is_ok() {
            // An error: the writer is gone already.
            let _ = done.await;
        }
    }

    /// Writes a consistent copy of the store to a new file.
    ///
    /// # Errors
    ///
    /// `Unavailable` if the file exists or cannot be written; nothing is left of it then.
    pub async fn backup(&self, to: &Path) -> Result<(), Error> {
        let to = to.to_owned();
        let failed = |error: &dyn std::fmt::Display| Error::Unavailable(format!("backup: {error}"));
        let opened = lock::private_options().create_new(true).write(true).open(&to);
        let file = opened.map_err(|error| failed(&error))?;
        let target = to.clone();
        let copied = self
            .shared
            .readers
            .run(move |source| {
                let mut copy = Connection::open(&target)?;
                // In one step, so that it is one snapshot: in WAL mode that holds up no writer.
                rusqlite::backup::Backup::new(source, &mut copy)?.step(-1)?;
                copy.close().map_err(|(_, error)| error)
            })
            .await;
        let synced = copied.and_then(|()| file.sync_all().map_err(|error| failed(&error)));
        synced.inspect_err(|_| drop(std::fs::remove_file(&to)))
    }

    async fn ask(&self, job: impl FnOnce(writer::Reply) -> Job) -> Result<u64, Error> {
        let (reply, answer) = oneshot::channel();
        let closed = |_| Error::Unavailable("the store is closed".to_owned());
        self.jobs.send(job(reply)).await.map_err(closed)?;
        answer.await.unwrap_or_else(|_| Err(Error::Unknown("the writer has ended".to_owned())))
    }

    async fn write(&self, work: Work) -> Result<u64, Error> {
        self.ask(|reply| Job::Write(work, reply)).await
    }

    fn lock_watches(&self) -> std::sync::MutexGuard<'_, JoinSet<()>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn too_large(what: &str, limit: String) -> Error {
    Error::TooLarge { what: what.to_owned(), limit }
}

fn check_commit(commit: &Commit) -> Result<(), Error> {
    if commit.ops.len() > COMMIT_OPS_MAX {
        return Err(too_large("the commit", format!("{COMMIT_OPS_MAX} operations")));
    }
    if commit.guards.len() > GUARDS_MAX {
        return Err(too_large("the commit", format!("{GUARDS_MAX} guards")));
    }
    for op in &commit.ops {
        if apply::op_bytes(op) > RECORD_BYTES_MAX
            && let Op::Put { key, .. } = op
        {
            return Err(too_large(
                &format!("the record {key}"),
                format!("{RECORD_BYTES_MAX} bytes"),
            ));
        }
    }
    Ok(())
}

#[async_trait]
impl Store for SqliteStore {
    async fn get(&self, key: &Key) -> Result<Option<Record>, Error> {
        let key = key.clone();
        self.shared.readers.run(move |connection| reader::get(connection, key.as_str())).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&Key>,
        limit: usize,
    ) -> Result<(Vec<Record>, Rev), Error> {
        let prefix = prefix.to_owned();
        let after = after.cloned();
        let read = move |connection: &mut Connection| {
            reader::list(connection, &prefix, after.as_ref(), limit)
        };
        self.shared.readers.run(read).await
    }

    async fn last(&self, prefix: &str) -> Result<Option<Record>, Error> {
        let prefix = prefix.to_owned();
        let read = move |connection: &mut Connection| reader::last(connection, &prefix);
        self.shared.readers.run(read).await
    }

    async fn commit(&self, commit: Commit) -> Result<Rev, Error> {
        check_commit(&commit)?;
        self.write(Work::Commit(commit)).await.map(Rev)
    }

    async fn watch(&self, prefix: &str, after: Rev) -> Result<Watch, Error> {
        if self.jobs.is_closed() {
            return Err(Error::Unavailable("the store is closed".to_owned()));
        }
        let (changes, receiver) = mpsc::channel(WATCH_CHANGES_MAX);
        let feed = Arc::clone(&self.shared.feed);
        let readers = Arc::clone(&self.shared.readers);
        let served = feed::serve(feed, readers, prefix.to_owned(), after, changes);
        let mut watches = self.lock_watches();
        while watches.try_join_next().is_some() {}
        watches.spawn(served);
        Ok(Watch::new(receiver))
    }

    async fn head(&self) -> Result<Rev, Error> {
        self.shared.readers.run(|connection| schema::head(connection)).await.map(Rev)
    }

    async fn compact(&self, keep_after: Rev) -> Result<(), Error> {
        self.write(Work::Compact(keep_after)).await.map(drop)
    }

    async fn identity(&self) -> Result<String, Error> {
        Ok(self.shared.id.clone())
    }

    async fn nonce(&self, rev: Rev) -> Result<Option<u64>, Error> {
        self.shared.readers.run(move |connection| reader::nonce(connection, rev)).await
    }

    async fn verify(&self, rev: Rev, nonce: u64) -> Result<bool, Error> {
        self.nonce(rev).await.map(|found| found == Some(nonce))
    }

    async fn reset(&self) -> Result<(), Error> {
        self.ask(Job::Reset).await.map(drop)
    }

    fn has_room(&self) -> bool {
        !self.is_disk_low()
    }

    fn fault(&self) -> Option<String> {
        self.shared.fault()
    }
}

#[async_trait]
impl Blobs for SqliteStore {
    async fn append(&self, appends: Vec<Append>) -> Result<(), Error> {
        if appends.len() > COMMIT_OPS_MAX {
            return Err(too_large("the append", format!("{COMMIT_OPS_MAX} chunks")));
        }
        if appends.iter().any(|append| append.bytes.len() > BLOB_CHUNK_BYTES_MAX) {
            return Err(too_large("the chunk", format!("{BLOB_CHUNK_BYTES_MAX} bytes")));
        }
        self.write(Work::Append(appends)).await.map(drop)
    }

    async fn read(&self, blob: &BlobId, offset: u64, max: usize) -> Result<Bytes, Error> {
        let blob = blob.clone();
        let read = move |connection: &mut Connection| blobs::read(connection, &blob, offset, max);
        self.shared.readers.run(read).await
    }

    async fn len(&self, blob: &BlobId) -> Result<u64, Error> {
        let blob = blob.clone();
        self.shared.readers.run(move |connection| blobs::len(connection, &blob)).await
    }

    async fn sweep(
        &self,
        is_owned: &(dyn for<'a> Fn(&'a Uid) -> bool + Send + Sync),
    ) -> Result<u64, Error> {
        let owners = self.shared.readers.run(blobs::owners).await?;
        let lost: Vec<Uid> = owners.into_iter().filter(|owner| !is_owned(owner)).collect();
        let mut swept = 0;
        for some in lost.chunks(COMMIT_OPS_MAX) {
            swept += self.write(Work::DropOwners(some.to_vec())).await?;
        }
        Ok(swept)
    }
}
