//! The kernel sandbox of an agent's tree: Landlock, applied in the forked child just before exec.
//!
//! In the child and not in the shim, because Landlock's signal scope lets a process signal
//! whatever is in its own domain: a shim inside could be killed by its agent. What the child may do
//! holds for everything that it starts, in whatever session or group, and cannot be widened.
//!
//! Landlock only allows, it cannot take a subtree out of what was allowed. So that the daemon's
//! directory can stay unreadable, reading is allowed beside it: for each directory on the way to a
//! hidden one, every entry that does not lead there. Source: landlock(7), and
//! Documentation/userspace-api/landlock.rst of Linux for the numbers.
//!
//! Invariants: a rule that was asked for and cannot be made is an error, and nothing is executed
//! then; only what is optional (a device that this machine lacks, an entry that vanished or that
//! must not be looked at) is left out, which allows less. Absent on purpose: rules for the network,
//! and the right to list directories: names are not hidden.

use std::ffi::{CStr, OsStr, c_int, c_long, c_uint};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;
use rustix::thread::CapabilitySet;

use super::wire;

// The system calls have no wrapper in C libraries; their numbers are the same on all machines.
const CREATE_RULESET: c_long = 444;
const ADD_RULE: c_long = 445;
const RESTRICT_SELF: c_long = 446;
const RULE_PATH_BENEATH: c_int = 1;

unsafe extern "C" {
    fn syscall(number: c_long, ...) -> c_long;
}

// LANDLOCK_ACCESS_FS_*: what is handled, and so denied where no rule allows it.
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const REMOVE_DIR: u64 = 1 << 4;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_CHAR: u64 = 1 << 6;
const MAKE_DIR: u64 = 1 << 7;
const MAKE_REG: u64 = 1 << 8;
const MAKE_SOCK: u64 = 1 << 9;
const MAKE_FIFO: u64 = 1 << 10;
const MAKE_BLOCK: u64 = 1 << 11;
const MAKE_SYM: u64 = 1 << 12;
const REFER: u64 = 1 << 13;
const TRUNCATE: u64 = 1 << 14;
const IOCTL_DEV: u64 = 1 << 15;

/// What can be allowed of a file; the rest is of directories.
const OF_FILES: u64 = WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV;
/// Below a directory that may be written. No device can be made there.
const BELOW: u64 = WRITE_FILE
    | READ_FILE
    | TRUNCATE
    | REMOVE_DIR
    | REMOVE_FILE
    | MAKE_DIR
    | MAKE_REG
    | MAKE_SOCK
    | MAKE_FIFO
    | MAKE_SYM
    | REFER;
const HANDLED: u64 = BELOW | MAKE_CHAR | MAKE_BLOCK | IOCTL_DEV;
/// LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET and LANDLOCK_SCOPE_SIGNAL.
const SCOPES: u64 = 1 | 1 << 1;

#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

#[repr(C, packed)]
struct PathBeneath {
    allowed_access: u64,
    parent_fd: c_int,
}

/// Binds this process, and all that it will start, to the rules of a launch block.
pub(super) fn apply<'a>(rules: impl Iterator<Item = &'a CStr>) -> Result<(), Errno> {
    let ruleset = Ruleset::new()?;
    let mut hidden: Vec<PathBuf> = Vec::new();
    for rule in rules {
        let (kind, path) = rule.to_bytes().split_first().ok_or(Errno::INVAL)?;
        let path = Path::new(OsStr::from_bytes(path));
        match *kind {
            wire::RULE_WRITE => ruleset.allow(&open_exact(path)?, BELOW)?,
            wire::RULE_DEVICE => match open_exact(path) {
                Ok(device) => ruleset.allow(&device, BELOW | IOCTL_DEV)?,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error),
            },
            wire::RULE_HIDE => hidden.push(path.to_owned()),
            _ => return Err(Errno::INVAL),
        }
    }
    ruleset.allow_reading_beside(&hidden)?;
    give_up_sight()?;
    ruleset.restrict()
}

/// Gives up the powers of root by which a process looks into others past the sandbox: newer kernels
/// show the environment of any process to whoever may watch performance. Whoever is not root has none
/// of them.
fn give_up_sight() -> Result<(), Errno> {
    let powers = CapabilitySet::SYS_PTRACE
        | CapabilitySet::PERFMON
        | CapabilitySet::SYS_ADMIN
        | CapabilitySet::CHECKPOINT_RESTORE;
    let mut held = rustix::thread::capabilities(None)?;
    if !held.permitted.intersects(powers) {
        return Ok(());
    }
    // A program that root executes would have them back from the bounding set.
    for power in powers.iter() {
        rustix::thread::remove_capability_from_bounding_set(power)?;
    }
    held.effective.remove(powers);
    held.permitted.remove(powers);
    held.inheritable.remove(powers);
    rustix::thread::set_capabilities(None, held)
}

struct Ruleset(OwnedFd);

impl Ruleset {
    fn new() -> Result<Self, Errno> {
        let attributes =
            RulesetAttributes { handled_access_fs: HANDLED, handled_access_net: 0, scoped: SCOPES };
        let size = size_of::<RulesetAttributes>();
        // SAFETY: the attributes are of the given size, and are read during the call only.
        let number = unsafe { syscall(CREATE_RULESET, &raw const attributes, size, 0 as c_uint) };
        let number = c_int::try_from(number).ok().filter(|number| *number >= 0);
        // SAFETY: a new descriptor of this process, close-on-exec, that nobody else knows of.
        number.map(|number| Self(unsafe { OwnedFd::from_raw_fd(number) })).ok_or_else(errno)
    }

    fn allow(&self, at: &OwnedFd, access: u64) -> Result<(), Errno> {
        let is_directory =
            FileType::from_raw_mode(rustix::fs::fstat(at)?.st_mode) == FileType::Directory;
        let allowed_access = if is_directory { access } else { access & OF_FILES };
        let rule = PathBeneath { allowed_access, parent_fd: at.as_raw_fd() };
        let ruleset = self.0.as_raw_fd();
        // SAFETY: the rule is of the shape that its type says, and is read during the call only.
        let done =
            unsafe { syscall(ADD_RULE, ruleset, RULE_PATH_BENEATH, &raw const rule, 0 as c_uint) };
        if done == 0 { Ok(()) } else { Err(errno()) }
    }

    /// Allows reading everywhere but in what is hidden. Links are left out: what they lead to has
    /// a place of its own.
    fn allow_reading_beside(&self, hidden: &[PathBuf]) -> Result<(), Errno> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut ways = vec![PathBuf::from("/")];
        while let Some(way) = ways.pop() {
            // Not to be listed: nothing in it can be allowed one by one.
            let Ok(entries) = std::fs::read_dir(&way) else { continue };
            for entry in entries.flatten() {
                let path = entry.path();
                if hidden.contains(&path) || entry.file_type().is_ok_and(|kind| kind.is_symlink()) {
                    continue;
                }
                if hidden.iter().any(|hidden| hidden.starts_with(&path)) {
                    ways.push(path);
                    continue;
                }
                // Gone meanwhile, or not to be looked at.
                let Ok(entry) = rustix::fs::open(&path, flags, Mode::empty()) else { continue };
                self.allow(&entry, READ_FILE)?;
            }
        }
        Ok(())
    }

    fn restrict(self) -> Result<(), Errno> {
        // SAFETY: the call takes a descriptor and flags, and touches no memory.
        let done = unsafe { syscall(RESTRICT_SELF, self.0.as_raw_fd(), 0 as c_uint) };
        if done == 0 { Ok(()) } else { Err(errno()) }
    }
}

/// Opens a path that was resolved before: a link in it now has come since, and is an error.
fn open_exact(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    rustix::fs::openat2(CWD, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS)
}

fn errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
