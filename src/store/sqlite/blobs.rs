//! Blobs: rows of chunks, one for each append.
//!
//! Invariants: the chunks of a blob follow each other without a gap from 0; `blobs.bytes` is
//! where the next one goes.

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension as _, params};

use super::schema::{signed, unsigned};
use super::writer::Stopped;
use crate::api::Uid;
use crate::store::{Append, BlobId, Error, Key, Stream};

/// How a stream is stored. Never renumbered.
const fn code(stream: Stream) -> i64 {
    match stream {
        Stream::Prompt => 1,
        Stream::Transcript => 2,
        Stream::Response => 3,
    }
}

/// What a wrong offset names as its conflict.
fn key(blob: &BlobId) -> Key {
    let stream = match blob.stream {
        Stream::Prompt => "prompt",
        Stream::Transcript => "transcript",
        Stream::Response => "response",
    };
    Key::new(format!("/blob/{}/{stream}", blob.owner))
}

fn find(connection: &Connection, blob: &BlobId) -> rusqlite::Result<Option<(i64, u64)>> {
    connection
        .prepare_cached("SELECT id, bytes FROM blobs WHERE owner = ?1 AND stream = ?2")?
        .query_row(params![blob.owner.as_str(), code(blob.stream)], |row| {
            Ok((row.get(0)?, unsigned(1, row.get(1)?)?))
        })
        .optional()
}

/// The blob's length.
pub(super) fn len(connection: &Connection, blob: &BlobId) -> rusqlite::Result<u64> {
    Ok(find(connection, blob)?.map_or(0, |(_, bytes)| bytes))
}

/// One append, in the transaction that `connection` is in.
pub(super) fn append(connection: &Connection, append: &Append) -> Result<(), Stopped> {
    let conflict = || Stopped::Refused(Error::Conflict { key: key(&append.blob) });
    let found = find(connection, &append.blob)?;
    let length = found.map_or(0, |(_, bytes)| bytes);
    if append.offset > length {
        return Err(conflict());
    }
    if append.bytes.is_empty() {
        return Ok(());
    }
    if append.offset < length {
        // Perhaps the same append again, whose answer was lost.
        let there = read(connection, &append.blob, append.offset, append.bytes.len())?;
        return if there == append.bytes { Ok(()) } else { Err(conflict()) };
    }
    let id = match found {
        Some((id, _)) => id,
        None => {
            let sql = "INSERT INTO blobs (owner, stream, bytes) VALUES (?1, ?2, 0)";
            let owner = append.blob.owner.as_str();
            connection.prepare_cached(sql)?.insert(params![owner, code(append.blob.stream)])?
        }
    };
    connection
        .prepare_cached("INSERT INTO chunks (blob, start, data) VALUES (?1, ?2, ?3)")?
        .execute(params![id, signed(length)?, &append.bytes[..]])?;
    let bytes = length.saturating_add(append.bytes.len() as u64);
    connection
        .prepare_cached("UPDATE blobs SET bytes = ?2 WHERE id = ?1")?
        .execute(params![id, signed(bytes)?])?;
    Ok(())
}

/// Up to `max` bytes from `offset`.
pub(super) fn read(
    connection: &Connection,
    blob: &BlobId,
    offset: u64,
    max: usize,
) -> rusqlite::Result<Bytes> {
    let Some((id, length)) = find(connection, blob)? else { return Ok(Bytes::new()) };
    if offset >= length || max == 0 {
        return Ok(Bytes::new());
    }
    let first: i64 = connection
        .prepare_cached(
            "SELECT coalesce(max(start), 0) FROM chunks WHERE blob = ?1 AND start <= ?2",
        )?
        .query_row(params![id, signed(offset)?], |row| row.get(0))?;
    let mut out: Vec<u8> = Vec::new();
    let sql = "SELECT start, data FROM chunks WHERE blob = ?1 AND start >= ?2 ORDER BY start";
    let mut statement = connection.prepare_cached(sql)?;
    let mut rows = statement.query(params![id, first])?;
    let mut position = offset;
    while let Some(row) = rows.next()? {
        let start = unsigned(0, row.get(0)?)?;
        let data = row.get_ref(1)?.as_blob()?;
        // A hole is damage; what is before it is all that is whole.
        let Some(skip) = position.checked_sub(start) else { break };
        let Some(rest) = usize::try_from(skip).ok().and_then(|skip| data.get(skip..)) else {
            break;
        };
        let take = rest.len().min(max - out.len());
        out.extend_from_slice(&rest[..take]);
        position += take as u64;
        if out.len() == max {
            break;
        }
    }
    Ok(Bytes::from(out))
}

/// Removes every blob of an owner and tells how many there were.
pub(super) fn drop_owner(connection: &Connection, owner: &Uid) -> rusqlite::Result<u64> {
    connection
        .prepare_cached("DELETE FROM chunks WHERE blob IN (SELECT id FROM blobs WHERE owner = ?1)")?
        .execute([owner.as_str()])?;
    let dropped = connection
        .prepare_cached("DELETE FROM blobs WHERE owner = ?1")?
        .execute([owner.as_str()])?;
    Ok(dropped as u64)
}

/// Everybody who owns a blob.
pub(super) fn owners(connection: &mut Connection) -> rusqlite::Result<Vec<Uid>> {
    let mut statement = connection.prepare_cached("SELECT DISTINCT owner FROM blobs")?;
    let rows = statement.query_map([], |row| row.get::<_, String>(0))?;
    rows.map(|owner| owner.map(Uid::from)).collect()
}
