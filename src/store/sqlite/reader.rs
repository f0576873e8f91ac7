//! Reading: a few connections, each used by one read at a time on a blocking thread.
//!
//! Invariants: a read sees one snapshot (WAL); a reader never waits for the writer; connections
//! of before a reset are not used after it.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use rusqlite::{Connection, OpenFlags, OptionalExtension as _, Row, params};
use tokio::sync::Semaphore;

use super::schema::{self, unsigned};
use crate::store::{Error, Key, Record, Rev, past};

/// How many reads run at once. More than the cores of a small machine gains nothing, and each
/// holds a page cache of up to 2 MiB.
const READERS_MAX: usize = 4;
/// How long a reader waits for a lock. Only recovery and schema changes lock readers out.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// The pool.
pub(super) struct Readers {
    path: PathBuf,
    slots: Semaphore,
    idle: Mutex<Vec<(u64, Connection)>>,
    generation: AtomicU64,
}

impl Readers {
    /// A pool without connections: they are made when they are wanted.
    pub(super) fn new(path: PathBuf) -> Self {
        Self {
            path,
            slots: Semaphore::new(READERS_MAX),
            idle: Mutex::new(Vec::new()),
            generation: AtomicU64::new(0),
        }
    }

    /// Runs a read on a blocking thread.
    pub(super) async fn run<T, F>(self: &Arc<Self>, read: F) -> Result<T, Error>
    where
        T: Send + 'static,
        F: FnOnce(&mut Connection) -> rusqlite::Result<T> + Send + 'static,
    {
        let closed = |_| Error::Unavailable("the store is closed".to_owned());
        let _slot = self.slots.acquire().await.map_err(closed)?;
        let pool = Arc::clone(self);
        let work = move || {
            let (generation, mut connection) = pool.take()?;
            let result = read(&mut connection);
            pool.put_back(generation, connection);
            result
        };
        match tokio::task::spawn_blocking(work).await {
            Ok(result) => result.map_err(|error| Error::Unavailable(format!("read: {error}"))),
            Err(error) => Err(Error::Unavailable(format!("read: {error}"))),
        }
    }

    /// Drops every connection; reads that run keep theirs until they end.
    pub(super) fn renew(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.lock_idle().clear();
    }

    /// Refuses every later read.
    pub(super) fn close(&self) {
        self.slots.close();
        self.renew();
    }

    fn take(&self) -> rusqlite::Result<(u64, Connection)> {
        if let Some(idle) = self.lock_idle().pop() {
            return Ok(idle);
        }
        let generation = self.generation.load(Ordering::SeqCst);
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        connection.busy_timeout(BUSY_TIMEOUT)?;
        connection.pragma_update(None, "query_only", true)?;
        connection.pragma_update(None, "trusted_schema", false)?;
        Ok((generation, connection))
    }

    fn put_back(&self, generation: u64, connection: Connection) {
        let mut idle = self.lock_idle();
        // Compared under the lock, so that a renewal in between leaves nothing behind.
        if generation == self.generation.load(Ordering::SeqCst) {
            idle.push((generation, connection));
        }
    }

    fn lock_idle(&self) -> std::sync::MutexGuard<'_, Vec<(u64, Connection)>> {
        // A list of connections is whole whatever panicked while it was held.
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One record.
pub(super) fn get(connection: &Connection, key: &str) -> rusqlite::Result<Option<Record>> {
    connection
        .prepare_cached("SELECT key, value, rev, create_rev FROM records WHERE key = ?1")?
        .query_row([key], record)
        .optional()
}

/// A page of records, and the revision that they are a picture of.
pub(super) fn list(
    connection: &mut Connection,
    prefix: &str,
    after: Option<&Key>,
    limit: usize,
) -> rusqlite::Result<(Vec<Record>, Rev)> {
    let snapshot = connection.transaction()?;
    let head = schema::head(&snapshot)?;
    // What follows `after` if that lies in the range, else all of the range.
    let (sql, start) = match after {
        Some(after) if after.as_str() >= prefix => (
            "SELECT key, value, rev, create_rev FROM records WHERE key > ?1 ORDER BY key",
            after.as_str(),
        ),
        _ => {
            ("SELECT key, value, rev, create_rev FROM records WHERE key >= ?1 ORDER BY key", prefix)
        }
    };
    let mut records = Vec::new();
    {
        let mut statement = snapshot.prepare_cached(sql)?;
        let mut rows = statement.query([start])?;
        while limit == 0 || records.len() < limit {
            let Some(row) = rows.next()? else { break };
            let record = record(row)?;
            if !record.key.as_str().starts_with(prefix) {
                break;
            }
            records.push(record);
        }
    }
    snapshot.finish()?;
    Ok((records, Rev(head)))
}

/// The last record whose key begins with the prefix.
pub(super) fn last(connection: &Connection, prefix: &str) -> rusqlite::Result<Option<Record>> {
    connection
        .prepare_cached(
            "SELECT key, value, rev, create_rev FROM records WHERE key >= ?1 AND key < ?2 \
             ORDER BY key DESC LIMIT 1",
        )?
        .query_row(params![prefix, past(prefix)], record)
        .optional()
}

/// The nonce that the commit of a revision left.
pub(super) fn nonce(connection: &Connection, rev: Rev) -> rusqlite::Result<Option<u64>> {
    let Ok(rev) = i64::try_from(rev.0) else { return Ok(None) };
    connection
        .prepare_cached("SELECT nonce FROM commits WHERE rev = ?1")?
        .query_row(params![rev], |row| row.get(0).map(schema::nonce_from_sql))
        .optional()
}

fn record(row: &Row<'_>) -> rusqlite::Result<Record> {
    Ok(Record {
        key: Key::new(row.get::<_, String>(0)?),
        value: Bytes::from(row.get::<_, Vec<u8>>(1)?),
        rev: Rev(unsigned(2, row.get(2)?)?),
        create_rev: Rev(unsigned(3, row.get(3)?)?),
    })
}
