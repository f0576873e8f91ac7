//! The ballast: space that is set aside, so that a full disk can still be tidied up.
//!
//! SQLite needs space even to delete (measured: DELETE fails on a full file system). So a file of
//! 16 MiB is kept; when a write finds the disk full it is removed and the write is tried once
//! more. From then on, and already when less than a quarter of it is free, [`Ballast::is_low`]
//! says so: admission refuses new work, and the engine refuses appends to blobs, because a single
//! transcript would eat the ballast. Cancels, deletes and status writes go on. Once there is room
//! for the file and half as much again it is made anew.
//!
//! Invariants: the file is never larger than a quarter of the file system.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use super::lock::private_options;

/// Its file.
const FILE: &str = "ballast";

/// The file, and what is known of the disk.
#[derive(Debug)]
pub(super) struct Ballast {
    dir: PathBuf,
    bytes: u64,
    is_there: AtomicBool,
    is_low: AtomicBool,
    /// What a test says is free, plus one; 0 asks the file system.
    pretended_free: AtomicU64,
}

impl Ballast {
    /// Makes the file if there is room for it. `bytes` is the most that it takes.
    pub(super) fn new(dir: &Path, bytes: u64) -> Self {
        let total = rustix::fs::statvfs(dir)
            .map_or(u64::MAX, |stat| stat.f_blocks.saturating_mul(stat.f_frsize));
        let ballast = Self {
            dir: dir.to_owned(),
            bytes: bytes.min(total / 4),
            is_there: AtomicBool::new(false),
            is_low: AtomicBool::new(false),
            pretended_free: AtomicU64::new(0),
        };
        let length = std::fs::metadata(ballast.path()).map_or(0, |found| found.len());
        ballast.is_there.store(length > 0 && length >= ballast.bytes, Ordering::SeqCst);
        ballast.check();
        ballast
    }

    /// The size of the file when it is there.
    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether new work must be refused.
    pub(super) fn is_low(&self) -> bool {
        self.is_low.load(Ordering::SeqCst)
    }

    /// Looks at the disk: says low below the low-water mark, makes the file anew when there is room.
    pub(super) fn check(&self) {
        if !self.is_there.load(Ordering::SeqCst) {
            // Before there is room for more than the file, making it would only fill the disk.
            let made = self.has_room() && self.make().is_ok();
            self.is_there.store(made, Ordering::SeqCst);
        }
        let is_there = self.is_there.load(Ordering::SeqCst);
        if !is_there || self.free() < self.bytes / 4 {
            self.set_low(true);
        } else if self.free() >= self.bytes / 2 {
            self.set_low(false);
        }
    }

    /// Gives the space back. `false` if it was given back before: then the disk is really full.
    pub(super) fn release(&self) -> bool {
        self.set_low(true);
        if !self.is_there.swap(false, Ordering::SeqCst) {
            return false;
        }
        std::fs::remove_file(self.path()).is_ok()
    }

    /// Lets a test say how much is free.
    #[cfg(test)]
    pub(super) fn pretend_free(&self, bytes: Option<u64>) {
        let stored = bytes.map_or(0, |bytes| bytes.saturating_add(1));
        self.pretended_free.store(stored, Ordering::SeqCst);
    }

    fn has_room(&self) -> bool {
        let wanted = if self.is_there.load(Ordering::SeqCst) {
            self.bytes / 2
        } else {
            self.bytes.saturating_add(self.bytes / 2)
        };
        self.free() >= wanted
    }

    fn set_low(&self, is_low: bool) {
        if self.is_low.swap(is_low, Ordering::SeqCst) != is_low {
            if is_low {
                tracing::warn!(dir = %self.dir.display(), "the disk is nearly full: new work is refused");
            } else {
                tracing::info!(dir = %self.dir.display(), "the disk has room again");
            }
        }
    }

    /// Bytes that are free for us. An error counts as room: a write will say more.
    fn free(&self) -> u64 {
        match self.pretended_free.load(Ordering::SeqCst) {
            0 => rustix::fs::statvfs(&self.dir)
                .map_or(u64::MAX, |stat| stat.f_bavail.saturating_mul(stat.f_frsize)),
            stored => stored - 1,
        }
    }

    fn make(&self) -> std::io::Result<()> {
        if self.bytes == 0 {
            return Ok(());
        }
        let file = private_options().create(true).truncate(true).write(true).open(self.path())?;
        let allocate = || -> std::io::Result<()> {
            match rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, self.bytes) {
                Ok(()) => {}
                // Not every file system can set space aside: then it is written.
                Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                    std::io::copy(&mut std::io::repeat(0).take(self.bytes), &mut &file)?;
                }
                Err(error) => return Err(error.into()),
            }
            file.sync_all()
        };
        allocate().inspect_err(|_| {
            // Half a ballast on a full disk helps nobody.
            let _ = std::fs::remove_file(self.path());
        })
    }

    fn path(&self) -> PathBuf {
        self.dir.join(FILE)
    }
}
