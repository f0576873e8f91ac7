//! How far the store was acknowledged, in a small file beside the database.
//!
//! A log that is cut or removed after a kill, or an older database that is put back, still opens:
//! `SQLite` sees an earlier moment and nothing wrong. The mark tells what was promised since.
//!
//! Invariants: the mark is written after its commit is durable, so the database is never behind it
//! by itself; it is not synced, so a power cut may leave it older or torn, which is no alarm; it
//! counts only for the store whose id it names.
//!
//! Absent on purpose: appends to blobs. They have no revision.

use std::fs::File;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use sha2::{Digest as _, Sha256};

use super::lock::{FILE_MODE, private_options};
use super::{BUSY_TIMEOUT, OpenError, reader, schema};
use crate::store::Rev;

/// The mark's file in the data directory.
pub(super) const MARK_FILE: &str = "store.head";
/// The first word of the file: what it is, and its format.
const MAGIC: &str = "spawnlet-head-1";
/// More than a mark has, in bytes: what follows it is not ours and is not read.
const MARK_BYTES_MAX: usize = 256;

/// The newest commit that was acknowledged, as the file tells it.
#[derive(PartialEq, Eq, Debug)]
struct Mark {
    store_id: String,
    rev: u64,
    nonce: u64,
}

/// The file, open for the thread that writes.
pub(super) struct MarkFile(File);

impl MarkFile {
    /// Opens the file, or makes an empty one, which is no mark.
    pub(super) fn open(path: &Path) -> Result<Self, OpenError> {
        let open = || {
            let file = private_options().create(true).write(true).truncate(false).open(path)?;
            file.set_permissions(std::fs::Permissions::from_mode(FILE_MODE))?;
            Ok(Self(file))
        };
        open().map_err(|source| OpenError::Io { path: path.to_owned(), source })
    }

    /// Marks a durable commit. Every mark of a store is as long, so one write replaces the last.
    pub(super) fn set(&self, store_id: &str, rev: u64, nonce: u64) {
        // The commit stands whatever becomes of its mark: the last one or none is left then.
        if let Err(error) = self.0.write_all_at(line(store_id, rev, nonce).as_bytes(), 0) {
            tracing::debug!(%error, "{MARK_FILE} was not written");
        }
    }
}

fn line(store_id: &str, rev: u64, nonce: u64) -> String {
    let text = format!("{MAGIC} {store_id} {rev:020} {nonce:016x}");
    let sum = checksum(&text);
    format!("{text} {sum:016x}\n")
}

fn checksum(text: &str) -> u64 {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().take(8).fold(0, |sum, byte| (sum << 8) | u64::from(*byte))
}

/// Reads the mark. A torn or foreign one is none.
fn read(path: &Path) -> Result<Option<Mark>, OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let file = match private_options().read(true).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io(source)),
    };
    let mut bytes = [0; MARK_BYTES_MAX];
    let length = file.read_at(&mut bytes, 0).map_err(io)?;
    Ok(std::str::from_utf8(&bytes[..length]).ok().and_then(parse))
}

fn parse(text: &str) -> Option<Mark> {
    let text = text.lines().next()?;
    let mut words = text.split(' ').skip(1);
    let store_id = words.next()?.to_owned();
    let rev = words.next()?.parse().ok()?;
    let nonce = u64::from_str_radix(words.next()?, 16).ok()?;
    // Written again it must be the same: that compares the magic and the checksum too.
    (line(&store_id, rev, nonce).trim_end() == text).then_some(Mark { store_id, rev, nonce })
}

/// Refuses a database that is behind its mark, or that has another commit in its place.
/// Changes nothing in either file.
pub(super) fn check(path: &Path, database: &Path) -> Result<(), OpenError> {
    let Some(mark) = read(path)? else { return Ok(()) };
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(database, flags)?;
    // Else closing it would put what is left of the log into the file, and remove the log.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    let is_made = schema::inspect(&connection)? > 0;
    let (head, nonce) = if is_made {
        if schema::meta(&connection, "store_id")?.is_some_and(|id| id != mark.store_id) {
            // Another store's: whether that is right is for its id to tell.
            return Ok(());
        }
        (schema::head(&connection)?, reader::nonce(&connection, Rev(mark.rev))?)
    } else {
        (0, None)
    };
    if head < mark.rev {
        return Err(OpenError::Regressed { head, acknowledged: mark.rev });
    }
    // Very old nonces are forgotten, and a mark may be old.
    if nonce.is_some_and(|nonce| nonce != mark.nonce) {
        return Err(OpenError::Diverged { rev: mark.rev });
    }
    Ok(())
}
