//! The system calls that need `unsafe`, or have no portable form.
//!
//! Everything else of `runtime` is built on these. Linux first: elsewhere the functions say
//! `Unsupported`, and the callers go on without what they give.

#![allow(unsafe_code, reason = "the one file of the library that may")]

use std::ffi::OsStr;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::{INSTANCE_VARIABLE, wire};

/// Below this number the shim's fixed descriptors lie; the originals are moved above it, so that
/// putting one in its place never covers another.
const FIXED_FD_END: i32 = 16;

/// The agent's ends of its three pipes.
pub(super) struct Stdio3 {
    pub(super) stdin: OwnedFd,
    pub(super) stdout: OwnedFd,
    pub(super) stderr: OwnedFd,
}

/// The shim's ends of its three pipes.
pub(super) struct ShimPipes {
    pub(super) lifeline: OwnedFd,
    pub(super) gate: OwnedFd,
    pub(super) status: OwnedFd,
}

/// Starts the shim with nothing in its environment but its mark.
#[expect(clippy::disallowed_methods, reason = "runtime is where processes are started")]
pub(super) fn start_shim(
    shim: &Path,
    instance: &OsStr,
    stdio: Stdio3,
    pipes: ShimPipes,
) -> io::Result<Child> {
    let out_of_the_way = |fd: OwnedFd| rustix::io::fcntl_dupfd_cloexec(&fd, FIXED_FD_END);
    let fixed = [
        (wire::LIFELINE_FD, out_of_the_way(pipes.lifeline)?),
        (wire::GATE_FD, out_of_the_way(pipes.gate)?),
        (wire::STATUS_FD, out_of_the_way(pipes.status)?),
    ];
    let mut command = Command::new(shim);
    command
        .env_clear()
        .env(INSTANCE_VARIABLE, instance)
        .current_dir("/")
        .stdin(Stdio::from(stdio.stdin))
        .stdout(Stdio::from(stdio.stdout))
        .stderr(Stdio::from(stdio.stderr));
    let place = move || {
        for (number, fd) in &fixed {
            // SAFETY: the number is given a descriptor here and never closed through this value.
            // Should the standard library's pipe for a failed exec lie there, only its message is
            // lost: the shim's greeting does not come, which is an error of its own.
            let mut target = ManuallyDrop::new(unsafe { OwnedFd::from_raw_fd(*number) });
            rustix::io::dup2(fd, &mut target)?;
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes system calls only, and allocates nothing.
    unsafe { command.pre_exec(place) };
    command.spawn()
}

/// A handle on a process that keeps meaning that process, whatever becomes of its number.
#[cfg(target_os = "linux")]
pub(super) mod pidfd {
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};

    use rustix::process::{
        Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, pidfd_send_signal, waitid,
    };

    /// statfs(2) of a pidfd on kernels where it has an inode of its own (Linux 6.9).
    const PIDFS_MAGIC: rustix::fs::FsWord = 0x5049_4446;

    /// Opens one; `NotFound` if no process has the number.
    pub(in super::super) fn open(pid: u32) -> io::Result<OwnedFd> {
        let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let number = number.ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))?;
        match pidfd_open(number, PidfdFlags::empty()) {
            Ok(fd) => Ok(fd),
            Err(rustix::io::Errno::SRCH) => Err(io::ErrorKind::NotFound.into()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Kills it. Gone already counts as done.
    pub(in super::super) fn kill(fd: impl AsFd) -> io::Result<()> {
        send(fd, Signal::KILL)
    }

    /// Stops it, so that it can neither fork nor exit.
    pub(in super::super) fn stop(fd: impl AsFd) -> io::Result<()> {
        send(fd, Signal::STOP)
    }

    /// Lets it go on, if it was stopped.
    pub(in super::super) fn resume(fd: impl AsFd) -> io::Result<()> {
        send(fd, Signal::CONT)
    }

    fn send(fd: impl AsFd, signal: Signal) -> io::Result<()> {
        match pidfd_send_signal(fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Its inode, one per process and boot, where the kernel gives it one.
    pub(in super::super) fn inode(fd: impl AsFd) -> Option<u64> {
        let kind = rustix::fs::fstatfs(&fd).ok()?;
        (kind.f_type == PIDFS_MAGIC)
            .then(|| rustix::fs::fstat(&fd).ok().map(|stat| stat.st_ino))
            .flatten()
    }

    /// Takes the exit status of a child that has exited, so that no zombie stays.
    pub(in super::super) fn reap(fd: impl AsFd) {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        // ECHILD: it is no child of ours, or was taken before.
        let _ = waitid(WaitId::PidFd(fd.as_fd()), options);
    }
}

/// Readiness of a pidfd: readable once its process has exited (pidfd_open(2)). Called within a
/// runtime.
pub(super) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an OwnedFd stays open, and the same, as long as it exists, and the AsyncFd owns it.
    unsafe { AsyncFd::register_with_interest(fd, Interest::READABLE) }.map_err(io::Error::from)
}

/// A handle on the process at the other end of a socket, which keeps meaning the one that connected,
/// whoever has its number since (SO_PEERPIDFD, Linux 6.5).
#[cfg(target_os = "linux")]
pub(super) fn peer_pidfd(socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let mut number: libc::c_int = -1;
    let mut length: libc::socklen_t = 4;
    // SAFETY: the kernel writes at most `length` bytes, an int, to `number`, and both outlive the call.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERPIDFD,
            (&raw mut number).cast(),
            &raw mut length,
        )
    };
    if failed != 0 || number < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for the caller, and nothing else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Where there are no pidfds.
#[cfg(not(target_os = "linux"))]
pub(super) fn peer_pidfd(_socket: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Where there are no pidfds.
#[cfg(not(target_os = "linux"))]
pub(super) mod pidfd {
    use std::io;
    use std::os::fd::{AsFd, OwnedFd};

    pub(in super::super) fn open(_pid: u32) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn kill(_fd: impl AsFd) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn stop(_fd: impl AsFd) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn resume(_fd: impl AsFd) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    pub(in super::super) fn inode(_fd: impl AsFd) -> Option<u64> {
        None
    }

    pub(in super::super) fn reap(_fd: impl AsFd) {}
}

/// Makes this process the parent of orphans among its descendants (PR_SET_CHILD_SUBREAPER).
#[cfg(target_os = "linux")]
pub(super) fn set_subreaper() -> io::Result<()> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid())).map_err(io::Error::from)
}

/// There is no such thing elsewhere.
#[cfg(not(target_os = "linux"))]
pub(super) fn set_subreaper() -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Whether this process is the parent of orphans among its descendants.
#[cfg(target_os = "linux")]
pub(super) fn is_subreaper() -> bool {
    rustix::process::child_subreaper().is_ok_and(|found| found.is_some())
}

/// There is no such thing elsewhere.
#[cfg(not(target_os = "linux"))]
pub(super) fn is_subreaper() -> bool {
    false
}

/// The version of Landlock's interface (landlock_create_ruleset(2)); none where it is missing or
/// turned off.
#[cfg(target_os = "linux")]
pub(super) fn landlock_abi() -> Option<u32> {
    use std::ffi::{c_long, c_uint};
    // There is no wrapper in C libraries; the number is the same on all machines.
    const CREATE_RULESET: c_long = 444;
    const VERSION: c_uint = 1;
    unsafe extern "C" {
        fn syscall(number: c_long, ...) -> c_long;
    }
    // SAFETY: with this flag the call takes no attributes, and touches no memory.
    let found = unsafe { syscall(CREATE_RULESET, std::ptr::null::<u8>(), 0_usize, VERSION) };
    u32::try_from(found).ok().filter(|abi| *abi > 0)
}

/// There is no such thing elsewhere.
#[cfg(not(target_os = "linux"))]
pub(super) fn landlock_abi() -> Option<u32> {
    None
}

/// Whether openat2(2) works here.
#[cfg(target_os = "linux")]
pub(super) fn has_openat2() -> bool {
    use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat2};
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    openat2(CWD, "/", flags, Mode::empty(), ResolveFlags::NO_SYMLINKS).is_ok()
}

/// There is no such thing elsewhere.
#[cfg(not(target_os = "linux"))]
pub(super) fn has_openat2() -> bool {
    false
}

/// The type of the file system that a path is on (statfs(2)).
#[cfg(target_os = "linux")]
pub(super) fn file_system(path: &Path) -> Option<u64> {
    let kind = rustix::fs::statfs(path).ok()?.f_type;
    // Of a width that depends on the machine; the numbers have 32 bits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "32 bits are meant")]
    let kind = kind as u32;
    Some(u64::from(kind))
}

/// The numbers mean nothing elsewhere.
#[cfg(not(target_os = "linux"))]
pub(super) fn file_system(_path: &Path) -> Option<u64> {
    None
}
