//! What a commit does to the tables, in the transaction that its group is in.
//!
//! Invariants: every guard is judged before the first write; operations happen in their order; a
//! commit takes one revision and leaves one nonce, whatever it changes.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::blobs;
use super::schema::{self, PLACE_BITS, nonce_to_sql, signed, unsigned};
use super::writer::Stopped;
use crate::store::{Change, Commit, Error, Guard, Key, Op, Record, Rev};

/// How many nonces are kept: 24 bytes each, so 24 MiB at most. A daemon asks for that of its last
/// commit, so only for a young one.
const NONCES_MAX: u64 = 1_000_000;

/// What a commit did.
pub(super) struct Effect {
    pub(super) changes: Vec<Change>,
    pub(super) nonce: u64,
}

/// Judges the guards and writes.
pub(super) fn commit(
    connection: &Connection,
    commit: &Commit,
    rev: u64,
) -> Result<Effect, Stopped> {
    for guard in &commit.guards {
        judge(connection, guard)?;
    }
    let mut changes = Vec::with_capacity(commit.ops.len());
    for (place, op) in commit.ops.iter().enumerate() {
        let id = signed((rev << PLACE_BITS) | place as u64)?;
        match op {
            Op::Put { key, value } => changes.push(put(connection, key, value, rev, id)?),
            Op::Delete { key } => changes.extend(delete(connection, key, rev, id)?),
            Op::DropBlobs { owner } => drop(blobs::drop_owner(connection, owner)?),
        }
    }
    let nonce = rand::random::<u64>();
    connection
        .prepare_cached("INSERT INTO commits (rev, nonce) VALUES (?1, ?2)")?
        .execute(params![signed(rev)?, nonce_to_sql(nonce)])?;
    Ok(Effect { changes, nonce })
}

fn judge(connection: &Connection, guard: &Guard) -> Result<(), Stopped> {
    let (key, wanted) = match guard {
        Guard::Absent(key) => (key, None),
        Guard::RevIs(key, rev) => (key, Some(rev.0)),
    };
    let found: Option<i64> = connection
        .prepare_cached("SELECT rev FROM records WHERE key = ?1")?
        .query_row([key.as_str()], |row| row.get(0))
        .optional()?;
    let found = found.map(|rev| unsigned(0, rev)).transpose()?;
    if found == wanted {
        Ok(())
    } else {
        Err(Stopped::Refused(Error::Conflict { key: key.clone() }))
    }
}

fn put(
    connection: &Connection,
    key: &Key,
    value: &Bytes,
    rev: u64,
    history_id: i64,
) -> rusqlite::Result<Change> {
    let create_rev: i64 = connection
        .prepare_cached(
            "INSERT INTO records (key, value, rev, create_rev) VALUES (?1, ?2, ?3, ?3)
             ON CONFLICT (key) DO UPDATE SET value = excluded.value, rev = excluded.rev
             RETURNING create_rev",
        )?
        .query_row(params![key.as_str(), &value[..], signed(rev)?], |row| row.get(0))?;
    remember(connection, history_id, key, value, Some(create_rev))?;
    Ok(Change::Put(Record {
        key: key.clone(),
        value: value.clone(),
        rev: Rev(rev),
        create_rev: Rev(unsigned(0, create_rev)?),
    }))
}

fn delete(
    connection: &Connection,
    key: &Key,
    rev: u64,
    history_id: i64,
) -> rusqlite::Result<Option<Change>> {
    let last: Option<Vec<u8>> = connection
        .prepare_cached("DELETE FROM records WHERE key = ?1 RETURNING value")?
        .query_row([key.as_str()], |row| row.get(0))
        .optional()?;
    let Some(last) = last else { return Ok(None) };
    remember(connection, history_id, key, &last, None)?;
    Ok(Some(Change::Delete { key: key.clone(), last: Bytes::from(last), rev: Rev(rev) }))
}

fn remember(
    connection: &Connection,
    id: i64,
    key: &Key,
    value: &[u8],
    create_rev: Option<i64>,
) -> rusqlite::Result<()> {
    connection
        .prepare_cached("INSERT INTO history (id, key, value, create_rev) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![id, key.as_str(), value, create_rev])?;
    Ok(())
}

/// Forgets the history up to a revision, and the nonces that are far too old.
pub(super) fn forget(connection: &Connection, upto: u64) -> rusqlite::Result<()> {
    connection
        .prepare_cached("DELETE FROM history WHERE id < ?1")?
        .execute([signed((upto + 1) << PLACE_BITS)?])?;
    connection
        .prepare_cached("DELETE FROM commits WHERE rev <= ?1")?
        .execute([signed(upto.saturating_sub(NONCES_MAX))?])?;
    schema::set_meta(connection, "oldest", &upto.to_string())
}

/// How large an operation's value is.
pub(super) fn op_bytes(op: &Op) -> usize {
    match op {
        Op::Put { value, .. } => value.len(),
        Op::Delete { .. } | Op::DropBlobs { .. } => 0,
    }
}
