//! The data directory: private to its owner, and to one daemon at a time.
//!
//! Invariants: nothing in the directory is read or written before the lock is held; the lock goes
//! with the process, however it ends (flock(2): the kernel drops it with the last descriptor).
//! The last one may be an heir's: a child of a killed daemon that has not become its shim yet has
//! the daemon's descriptors until it does. That takes milliseconds, and is waited for.
//!
//! Absent on purpose: breaking a lock. A lock that is held has a living holder.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, Mode, OFlags};

use super::OpenError;

/// The file that is locked. It holds the holder's pid, for the message of whoever comes second.
const LOCK_FILE: &str = "lock";
/// Present while the store is closed and was closed in good order.
const CLEAN_FILE: &str = "clean";
/// The longest pid that is read back from the lock file, in bytes.
const PID_BYTES_MAX: usize = 16;
/// How often the lock of a dead holder is tried again.
const HEIR_TRY_EVERY: Duration = Duration::from_millis(10);
/// How many times: 5 s, by when nothing of a killed daemon is left.
const HEIR_TRIES_MAX: u32 = 500;
/// Only the owner may look into the directory.
const DIR_MODE: u32 = 0o700;
/// Only the owner may read the files.
pub(super) const FILE_MODE: u32 = 0o600;
/// Others may write: somebody else could exchange files under us.
const OTHERS_WRITE: u32 = 0o022;

/// A checked data directory that this process alone holds.
#[derive(Debug)]
pub(super) struct DataDir {
    path: PathBuf,
    dir: File,
    /// Held, not read: the lock lasts as long as the descriptor.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if it is missing, checks it and takes its lock.
    ///
    /// # Errors
    ///
    /// [`OpenError::Directory`] if it is a symbolic link, no directory, somebody else's or writable
    /// by others; [`OpenError::Locked`] if another process holds it.
    pub(super) fn claim(path: &Path) -> Result<Self, OpenError> {
        // Without a trailing slash, which would follow a link.
        let path: PathBuf = path.components().collect();
        if !path.exists() {
            let made = DirBuilder::new().recursive(true).mode(DIR_MODE).create(&path);
            made.map_err(|source| OpenError::Io { path: path.clone(), source })?;
        }
        let dir = open_checked(&path)?;
        let lock = take_lock(&path)?;
        Ok(Self { path, dir, _lock: lock })
    }

    /// A file in the directory.
    pub(super) fn file(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Makes the names in the directory durable.
    pub(super) fn sync(&self) -> Result<(), OpenError> {
        self.dir.sync_all().map_err(|source| OpenError::Io { path: self.path.clone(), source })
    }

    /// Whether the store was closed in good order.
    pub(super) fn has_clean_mark(&self) -> bool {
        self.file(CLEAN_FILE).exists()
    }

    /// Takes the mark of a good end away, durably, before anything is written.
    pub(super) fn take_clean_mark(&self) -> Result<(), OpenError> {
        let path = self.file(CLEAN_FILE);
        match std::fs::remove_file(&path) {
            Ok(()) => self.sync(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(source) => Err(OpenError::Io { path, source }),
        }
    }

    /// Leaves the mark of a good end.
    pub(super) fn leave_clean_mark(&self) -> Result<(), OpenError> {
        write_durably(&self.file(CLEAN_FILE), b"")?;
        self.sync()
    }
}

/// Writes a small file whole and syncs it. The directory is the caller's to sync.
pub(super) fn write_durably(path: &Path, bytes: &[u8]) -> Result<(), OpenError> {
    let write = || {
        let mut file = private_options().create(true).write(true).truncate(true).open(path)?;
        file.write_all(bytes)?;
        file.sync_all()
    };
    write().map_err(|source| OpenError::Io { path: path.to_owned(), source })
}

/// Options for a file that only the owner may read and that is no link.
pub(super) fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    let flags = i32::try_from(OFlags::NOFOLLOW.bits()).unwrap_or(0);
    options.mode(FILE_MODE).custom_flags(flags);
    options
}

fn open_checked(path: &Path) -> Result<File, OpenError> {
    let refuse = |reason: String| OpenError::Directory { path: path.to_owned(), reason };
    let io = |error: rustix::io::Errno| OpenError::Io {
        path: path.to_owned(),
        source: std::io::Error::from(error),
    };
    let is_link = std::fs::symlink_metadata(path)
        .map_err(|source| OpenError::Io { path: path.to_owned(), source })?
        .is_symlink();
    if is_link {
        return Err(refuse("it is a symbolic link; name the directory itself".to_owned()));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let dir = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| match error {
        rustix::io::Errno::NOTDIR => refuse("it is not a directory".to_owned()),
        other => io(other),
    })?;
    // Asked of the descriptor, so that what was checked is what is used.
    let stat = rustix::fs::fstat(&dir).map_err(io)?;
    let user = rustix::process::geteuid().as_raw();
    if stat.st_uid != user {
        let reason = format!("it belongs to user {}, and this is user {user}", stat.st_uid);
        return Err(refuse(reason));
    }
    let mode = stat.st_mode & 0o777;
    if mode & OTHERS_WRITE != 0 {
        let reason = format!("others may write to it (mode {mode:o}); run `chmod 700` on it");
        return Err(refuse(reason));
    }
    if mode != DIR_MODE {
        rustix::fs::fchmod(&dir, Mode::from_raw_mode(DIR_MODE)).map_err(io)?;
    }
    Ok(File::from(dir))
}

fn take_lock(dir: &Path) -> Result<File, OpenError> {
    let path = dir.join(LOCK_FILE);
    let io = |source: std::io::Error| OpenError::Io { path: path.clone(), source };
    let opened = private_options().create(true).read(true).write(true).open(&path);
    let mut file = opened.map_err(|error| OpenError::Directory {
        path: dir.to_owned(),
        reason: format!(
            "its file {LOCK_FILE} cannot be opened for writing ({error}); make the directory and \
             its files writable for this user, or name another data directory"
        ),
    })?;
    let mut tries = 0;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => break,
            Err(rustix::io::Errno::WOULDBLOCK) => {
                // Read anew each time: a holder that has just started may not have written it.
                let pid = read_pid(&file);
                if tries == HEIR_TRIES_MAX || !pid.is_some_and(is_dead) {
                    return Err(OpenError::Locked { path: dir.to_owned(), pid });
                }
            }
            Err(error) => return Err(io(error.into())),
        }
        tries += 1;
        std::thread::sleep(HEIR_TRY_EVERY);
    }
    // The pid is for people: that it could not be written (a full disk) stops nothing.
    let _ = file.set_len(0);
    let _ = file.seek(SeekFrom::Start(0));
    let _ = file.write_all(std::process::id().to_string().as_bytes());
    Ok(file)
}

fn read_pid(file: &File) -> Option<u32> {
    let mut bytes = [0; PID_BYTES_MAX];
    let length = file.read_at(&mut bytes, 0).ok()?;
    std::str::from_utf8(&bytes[..length]).ok()?.trim().parse().ok()
}

/// Whether there surely is no such process. Where /proc cannot tell, it may live.
fn is_dead(pid: u32) -> bool {
    Path::new("/proc/self").exists() && !Path::new("/proc").join(pid.to_string()).exists()
}
