//! Files that an agent asks the daemon to read or to write, inside of its session's directories.
//!
//! The directories are opened once, when the agent is launched; from then on every path is opened
//! below one of those descriptors by `openat2` with RESOLVE_BENEATH and RESOLVE_NO_MAGICLINKS
//! (openat2(2)), so that the kernel itself refuses whatever would leave it. The path is resolved
//! beforehand too, but only to find out which directory it is in: links between two of the
//! session's directories and absolute ones lead where they should. A link swapped in between is
//! refused by the kernel, or followed where it stays inside.
//!
//! Invariants: nothing outside is opened, made or changed, whatever is renamed or linked meanwhile;
//! only regular files are read or written, and nothing else is waited for (FIFOs are opened without
//! blocking, and refused); what is read and written is bounded. Absent on purpose: a way without
//! `openat2`: where the kernel has none, every request is refused. All calls block.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader, Write as _};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

/// How much text is read at once; a longer file is read in parts, by `line` and `limit`.
pub const READ_BYTES_MAX: usize = 2 * 1024 * 1024;
/// How much of a file is looked through for the lines that are wanted.
const SCAN_BYTES_MAX: usize = 256 * 1024 * 1024;
/// A longer path is refused by Linux itself (path_resolution(7)).
const PATH_BYTES_MAX: usize = 4096;
/// `openat2` gives up with EAGAIN while something is renamed on its way: so often it is repeated.
const AGAIN_MAX: usize = 64;
/// Inside is what the kernel reaches without leaving, and without the links of /proc.
const INSIDE: ResolveFlags = ResolveFlags::BENEATH.union(ResolveFlags::NO_MAGICLINKS);

/// Why a file was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The path cannot be one.
    #[error("the path must be absolute, without NUL, and at most {PATH_BYTES_MAX} bytes long")]
    Path,
    /// It leads out of the session's directories.
    #[error("the path is outside of the session's directories")]
    Outside,
    /// There is no such file or directory.
    #[error("there is no such file or directory")]
    NotFound,
    /// It is something else than what was asked for.
    #[error("it is {found}, expected {expected}")]
    Kind {
        /// What it is.
        found: &'static str,
        /// What it should be.
        expected: &'static str,
    },
    /// There is too much of it.
    #[error("it has more than {bytes_max} bytes; ask for a part of it by line and limit")]
    TooLarge {
        /// What is given at once.
        bytes_max: usize,
    },
    /// It is no text.
    #[error("the file is not UTF-8 text")]
    NotText,
    /// It is renamed all the time.
    #[error("the path changes too often to be opened")]
    Unsteady,
    /// The kernel cannot keep a path inside.
    #[error("this kernel has no openat2 (Linux 5.6), so files are neither read nor written")]
    Unsupported,
    /// The system refused it.
    #[error("the system refused it: {0}")]
    System(#[source] io::Error),
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        match errno {
            Errno::XDEV | Errno::LOOP => Self::Outside,
            Errno::NOENT => Self::NotFound,
            Errno::NOSYS => Self::Unsupported,
            Errno::AGAIN => Self::Unsteady,
            Errno::NOTDIR => Self::Kind { found: "no directory", expected: "a directory" },
            Errno::ISDIR => Self::Kind { found: "a directory", expected: "a file" },
            // A FIFO without a reader (open(2)), or a socket.
            Errno::NXIO => Self::Kind { found: "no regular file", expected: "a regular file" },
            other => Self::System(other.into()),
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::System(error)
    }
}

/// The directories of a session, held open.
#[derive(Debug)]
pub struct Folders {
    roots: Result<Vec<(PathBuf, OwnedFd)>, Errno>,
}

/// Where a path leads: what of it exists, below one of the directories, and what is to come.
struct Place<'a> {
    root: &'a OwnedFd,
    /// Without links, when it was looked at; "." for the directory itself.
    found: PathBuf,
    /// Below `found`: plain names. Empty if all of it exists.
    missing: PathBuf,
}

impl Folders {
    /// Opens directories, which must be canonical. What goes wrong is told by each request.
    #[must_use]
    pub fn open(roots: &[PathBuf]) -> Self {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |path: &PathBuf| {
            let fd = open_at(CWD, path, flags, ResolveFlags::NO_SYMLINKS)?;
            Ok((path.clone(), fd))
        };
        Self { roots: roots.iter().map(open).collect() }
    }

    /// The text of a file: from `line` on (the first is 1), at most `limit` lines.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn read(&self, path: &str, line: Option<u32>, limit: Option<u32>) -> Result<String, Error> {
        let place = self.locate(path)?;
        if !place.missing.as_os_str().is_empty() {
            return Err(Error::NotFound);
        }
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = open_at(place.root, &place.found, flags, INSIDE)?;
        regular(&file)?;
        let text = lines(File::from(file), line.unwrap_or(1).max(1), limit)?;
        String::from_utf8(text).map_err(|_| Error::NotText)
    }

    /// Makes a file say `text`, and makes it and its directories if they are not there. Who reads
    /// meanwhile finds the old text or the new one: it is written beside it and put in its place,
    /// with the old permissions; where the directory allows no new file, it is written over.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn write(&self, path: &str, text: &str) -> Result<(), Error> {
        let place = self.locate(path)?;
        let whole = place.found.join(&place.missing);
        let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
            return Err(Errno::ISDIR.into());
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = if place.missing.as_os_str().is_empty() {
            let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
            open_at(place.root, parent, flags, INSIDE)?
        } else {
            let mut directory = open_at(place.root, &place.found, flags, INSIDE)?;
            let new = place.missing.parent().into_iter().flat_map(Path::components);
            for name in new {
                // One plain name at a time, and no link: nothing can lead elsewhere.
                match rustix::fs::mkdirat(&directory, name.as_os_str(), Mode::from_raw_mode(0o777))
                {
                    Ok(()) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(errno.into()),
                }
                let flags = flags | OFlags::NOFOLLOW;
                directory = rustix::fs::openat(&directory, name.as_os_str(), flags, Mode::empty())?;
            }
            directory
        };
        replace(&directory, name, text.as_bytes())
    }

    /// Where a directory is, links resolved.
    ///
    /// # Errors
    ///
    /// [`Error`].
    pub fn directory(&self, path: &str) -> Result<PathBuf, Error> {
        let place = self.locate(path)?;
        if !place.missing.as_os_str().is_empty() {
            return Err(Error::NotFound);
        }
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = open_at(place.root, &place.found, flags, INSIDE)?;
        Ok(std::fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd()))?)
    }

    /// Finds out which directory a path is in. Only advice: what is opened is up to the kernel.
    fn locate(&self, path: &str) -> Result<Place<'_>, Error> {
        let roots = self.roots.as_ref().map_err(|errno| Error::from(*errno))?;
        if path.len() > PATH_BYTES_MAX || path.contains('\0') || !path.starts_with('/') {
            return Err(Error::Path);
        }
        let path = Path::new(path);
        for ancestor in path.ancestors() {
            if let Ok(real) = ancestor.canonicalize() {
                let missing = path.strip_prefix(ancestor).unwrap_or(path);
                let is_plain =
                    missing.components().all(|part| matches!(part, Component::Normal(_)));
                let within = |(root, fd)| Some((fd, real.strip_prefix::<&PathBuf>(root).ok()?));
                let inside = roots.iter().map(|(root, fd)| (root, fd)).filter_map(within);
                let nearest = inside.min_by_key(|(_, rest)| rest.as_os_str().len());
                let (root, rest) = nearest.filter(|_| is_plain).ok_or(Error::Outside)?;
                let found = if rest.as_os_str().is_empty() { Path::new(".") } else { rest };
                return Ok(Place { root, found: found.to_owned(), missing: missing.to_owned() });
            }
            if ancestor.symlink_metadata().is_ok_and(|known| known.is_symlink()) {
                // Nobody can say where a dangling link will lead.
                return Err(Error::Outside);
            }
        }
        Err(Error::Outside)
    }
}

fn open_at(
    directory: impl AsFd,
    path: &Path,
    flags: OFlags,
    resolve: ResolveFlags,
) -> Result<OwnedFd, Errno> {
    let mut outcome = Err(Errno::AGAIN);
    for _ in 0..AGAIN_MAX {
        outcome = rustix::fs::openat2(directory.as_fd(), path, flags, Mode::empty(), resolve);
        if !matches!(outcome, Err(Errno::AGAIN | Errno::INTR)) {
            break;
        }
    }
    outcome
}

/// The permissions of a regular file; anything else is refused.
fn regular(file: &OwnedFd) -> Result<Mode, Error> {
    let known = rustix::fs::fstat(file)?;
    let found = match FileType::from_raw_mode(known.st_mode) {
        FileType::RegularFile => return Ok(Mode::from_raw_mode(known.st_mode & 0o7777)),
        FileType::Directory => "a directory",
        FileType::Fifo => "a FIFO",
        FileType::Socket => "a socket",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        FileType::Symlink | FileType::Unknown => "no regular file",
    };
    Err(Error::Kind { found, expected: "a regular file" })
}

/// Lines of a file, with their ends, as bytes.
fn lines(file: File, first: u32, limit: Option<u32>) -> Result<Vec<u8>, Error> {
    let mut reader = BufReader::with_capacity(64 * 1024, file);
    let mut text = Vec::new();
    let (mut line, mut scanned) = (1_u64, 0_usize);
    let first = u64::from(first);
    let end = limit.map_or(u64::MAX, |limit| first.saturating_add(u64::from(limit)));
    while line < end {
        let bytes = match reader.fill_buf() {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        if bytes.is_empty() {
            break;
        }
        let newline = memchr::memchr(b'\n', bytes);
        let count = newline.map_or(bytes.len(), |at| at + 1);
        if line >= first {
            if text.len() + count > READ_BYTES_MAX {
                return Err(Error::TooLarge { bytes_max: READ_BYTES_MAX });
            }
            text.extend_from_slice(&bytes[..count]);
        }
        line += u64::from(newline.is_some());
        scanned += count;
        if scanned > SCAN_BYTES_MAX {
            return Err(Error::TooLarge { bytes_max: SCAN_BYTES_MAX });
        }
        reader.consume(count);
    }
    Ok(text)
}

/// Puts a text in a file's place, by its plain name in a directory.
fn replace(directory: &OwnedFd, name: &OsStr, text: &[u8]) -> Result<(), Error> {
    // It says whether the file may be written at all, and what it is, without waiting for anybody.
    let flags =
        OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let old = match rustix::fs::openat(directory, name, flags, Mode::empty()) {
        Ok(file) => Some((regular(&file)?, file)),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(errno.into()),
    };
    let beside = format!(".spawnlet-{}", uuid::Uuid::new_v4().simple());
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let new = match rustix::fs::openat(directory, &*beside, flags, Mode::from_raw_mode(0o666)) {
        Ok(new) => new,
        Err(errno @ (Errno::ACCESS | Errno::PERM)) => match old {
            Some((_, file)) => return write_over(File::from(file), text),
            None => return Err(errno.into()),
        },
        Err(errno) => return Err(errno.into()),
    };
    let outcome = fill(new, old.map(|(mode, _)| mode), text)
        .and_then(|()| Ok(rustix::fs::renameat(directory, &*beside, directory, name)?));
    if outcome.is_err() {
        let _ = rustix::fs::unlinkat(directory, &*beside, AtFlags::empty());
    }
    outcome
}

fn fill(file: OwnedFd, mode: Option<Mode>, text: &[u8]) -> Result<(), Error> {
    if let Some(mode) = mode {
        rustix::fs::fchmod(&file, mode)?;
    }
    Ok(File::from(file).write_all(text)?)
}

fn write_over(mut file: File, text: &[u8]) -> Result<(), Error> {
    file.set_len(0)?;
    Ok(file.write_all(text)?)
}

#[cfg(test)]
mod tests;
