//! Why a store is not opened, and what to do about it.

use std::path::PathBuf;

use super::{DATABASE_FILE, ID_FILE, MARK_FILE};

/// Why the store was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The directory is not safe to use.
    #[error("the data directory {} cannot be used: {reason}", .path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why, and what to do.
        reason: String,
    },
    /// Another daemon has it. The command line gives this an exit code of its own.
    #[error(
        "another spawnlet ({}) is running on the data directory {}",
        .pid.map_or_else(|| "pid unknown".to_owned(), |pid| format!("pid {pid}")),
        .path.display()
    )]
    Locked {
        /// The directory.
        path: PathBuf,
        /// The other's process id, if it could be read.
        pid: Option<u32>,
    },
    /// A newer program wrote it.
    #[error(
        "the store has schema version {found}, and this spawnlet knows versions up to {supported}: \
         run the newer spawnlet, or put a backup of before its first start back"
    )]
    Newer {
        /// The file's version.
        found: i64,
        /// The newest that this program can read.
        supported: i64,
    },
    /// It is somebody else's database.
    #[error("{DATABASE_FILE} was not made by spawnlet: name another data directory")]
    Foreign,
    /// The file is gone or empty, although there was a store.
    #[error(
        "{DATABASE_FILE} is missing or empty although a store was made here: put a backup back, \
         or remove {ID_FILE} to start with an empty store"
    )]
    Missing,
    /// The file belongs to another store than the directory.
    #[error(
        "{DATABASE_FILE} belongs to another store than {ID_FILE} says: put this store's backup \
         back, or remove {ID_FILE} to go on with this one"
    )]
    Mixed,
    /// The store was further than its file is.
    #[error(
        "the store's newest revision is {head}, but {acknowledged} was acknowledged: the write-ahead \
         log ({DATABASE_FILE}-wal) was cut or removed, or an older {DATABASE_FILE} was put back. Put \
         the log or the newer file back, or remove {MARK_FILE} to go on with what is there or with \
         a backup"
    )]
    Regressed {
        /// The newest revision in the file.
        head: u64,
        /// The newest that was acknowledged.
        acknowledged: u64,
    },
    /// The store has another commit where an acknowledged one was.
    #[error(
        "revision {rev} of the store is not the one acknowledged: another {DATABASE_FILE} was put \
         back. Put the newest back, or remove {MARK_FILE} to go on with what is there"
    )]
    Diverged {
        /// The acknowledged revision.
        rev: u64,
    },
    /// The file is damaged.
    #[error("{DATABASE_FILE} is damaged ({0}): put a backup back")]
    Corrupt(String),
    /// The engine failed otherwise.
    #[error("the store could not be opened: {0}")]
    Engine(String),
    /// A file could not be read or written.
    #[error("{}: {source}", .path.display())]
    Io {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}
