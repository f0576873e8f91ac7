//! The tables, and how an older file becomes a present one.
//!
//! Invariants: `user_version` counts the migrations that a file has had; each migration and its
//! count are one transaction; a file with more of them than this program knows is refused, and
//! so is one that another program made.

use rusqlite::{Connection, OptionalExtension as _, params};

use super::OpenError;
use crate::failpoint::{self, Point};

/// Marks a file as ours (`file(1)` shows it): "SPWN".
const APPLICATION_ID: i32 = 0x5350_574E;

/// How many bits of a history row's id say which change of its revision it is. 2^6 is
/// [`COMMIT_OPS_MAX`](crate::store::COMMIT_OPS_MAX).
pub(super) const PLACE_BITS: u32 = 6;

/// Each brings a file one version further. Never edited once released, only added to.
const MIGRATIONS: &[&str] = &[
    // 1: the first.
    //
    // `history.id` is the revision and the place in it, so that a range of revisions is a range of
    // row ids. Records and chunks have row ids of their own because SQLite reads a whole row to
    // compare it if it is the key of a WITHOUT ROWID table, and rows here are up to 256 KiB.
    "CREATE TABLE meta (
        name TEXT NOT NULL PRIMARY KEY,
        value TEXT NOT NULL
     ) STRICT, WITHOUT ROWID;
     CREATE TABLE records (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL UNIQUE,
        value BLOB NOT NULL,
        rev INTEGER NOT NULL,
        create_rev INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE commits (
        rev INTEGER PRIMARY KEY,
        nonce INTEGER NOT NULL
     ) STRICT;
     CREATE TABLE history (
        id INTEGER PRIMARY KEY,
        key TEXT NOT NULL,
        value BLOB NOT NULL,
        create_rev INTEGER
     ) STRICT;
     CREATE TABLE blobs (
        id INTEGER PRIMARY KEY,
        owner TEXT NOT NULL,
        stream INTEGER NOT NULL,
        bytes INTEGER NOT NULL,
        UNIQUE (owner, stream)
     ) STRICT;
     CREATE TABLE chunks (
        id INTEGER PRIMARY KEY,
        blob INTEGER NOT NULL,
        start INTEGER NOT NULL,
        data BLOB NOT NULL,
        UNIQUE (blob, start)
     ) STRICT;
     INSERT INTO meta VALUES ('oldest', '0'), ('resets', '0');",
];

/// The version that this program writes.
pub(super) const VERSION: i64 = MIGRATIONS.len() as i64;

/// Refuses what cannot be opened. Tells the version of the rest, 0 for a new file.
pub(super) fn inspect(connection: &Connection) -> Result<i64, OpenError> {
    let found: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if found > VERSION {
        return Err(OpenError::Newer { found, supported: VERSION });
    }
    let application: i32 =
        connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let is_empty = found == 0 && application == 0 && !has_tables(connection)?;
    if !is_empty && (application != APPLICATION_ID || found < 1) {
        return Err(OpenError::Foreign);
    }
    Ok(found)
}

/// Brings a file that [`inspect`] found to be of version `found` to [`VERSION`]. A new one gets its
/// store id too.
pub(super) fn migrate(connection: &mut Connection, found: i64) -> Result<(), OpenError> {
    for version in found..VERSION {
        let transaction = connection.transaction()?;
        let index = usize::try_from(version).unwrap_or(usize::MAX);
        if let Some(sql) = MIGRATIONS.get(index) {
            transaction.execute_batch(sql)?;
        }
        if version == 0 {
            // With the tables: a daemon that dies here leaves a store with an id, or none at all.
            set_meta(&transaction, "store_id", &uuid::Uuid::new_v4().simple().to_string())?;
        }
        transaction.pragma_update(None, "application_id", APPLICATION_ID)?;
        transaction.pragma_update(None, "user_version", version + 1)?;
        failpoint::reach(Point::MigrationBefore);
        transaction.commit()?;
        failpoint::reach(Point::MigrationAfter);
    }
    Ok(())
}

fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row("SELECT EXISTS (SELECT 1 FROM sqlite_schema)", [], |row| row.get(0))
}

/// Reads one line of `meta`.
pub(super) fn meta(connection: &Connection, name: &str) -> rusqlite::Result<Option<String>> {
    connection
        .prepare_cached("SELECT value FROM meta WHERE name = ?1")?
        .query_row([name], |row| row.get(0))
        .optional()
}

/// Writes one line of `meta`.
pub(super) fn set_meta(connection: &Connection, name: &str, value: &str) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT OR REPLACE INTO meta (name, value) VALUES (?1, ?2)")?
        .execute(params![name, value])?;
    Ok(())
}

/// The oldest revision that a watch may start after.
pub(super) fn oldest(connection: &Connection) -> rusqlite::Result<u64> {
    let text = meta(connection, "oldest")?;
    text.and_then(|text| text.parse().ok()).ok_or(rusqlite::Error::QueryReturnedNoRows)
}

/// The newest revision, 0 if nothing was ever committed.
pub(super) fn head(connection: &Connection) -> rusqlite::Result<u64> {
    let head: i64 = connection
        .prepare_cached("SELECT coalesce(max(rev), 0) FROM commits")?
        .query_row([], |row| row.get(0))?;
    unsigned(0, head)
}

/// A number of ours as SQLite has it. Revisions and lengths stay far below 2^57.
pub(super) fn signed(number: u64) -> rusqlite::Result<i64> {
    i64::try_from(number).map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

/// A number of SQLite's as we have it. A negative one is damage, and no panic.
pub(super) fn unsigned(column: usize, number: i64) -> rusqlite::Result<u64> {
    u64::try_from(number).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(column, number))
}

/// A nonce as SQLite has it: the same bits.
pub(super) const fn nonce_to_sql(nonce: u64) -> i64 {
    i64::from_ne_bytes(nonce.to_ne_bytes())
}

/// A nonce as we have it: the same bits.
pub(super) const fn nonce_from_sql(nonce: i64) -> u64 {
    u64::from_ne_bytes(nonce.to_ne_bytes())
}
