//! Whether a process is inside an agent's tree: asked of whoever connects to the daemon's socket,
//! which is for operators.
//!
//! Two signs, each enough: it descends from this daemon (a shim is the subreaper of its tree, and the
//! daemon of its shims, so nobody leaves by letting the parent die), or it or one of its ancestors
//! carries the store's mark. What cannot be found out of the process itself counts as inside.
//!
//! Whoever is to be the operator without a token is proved besides to be the process that connected:
//! a number alone could have been given to an innocent one while the connection waited.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

use super::leftovers::is_of_store;
use super::proc;
use super::sys;

/// More ancestors than any real process has; a chain that changes while it is followed ends.
const ANCESTORS_MAX: usize = 256;

/// The process at the other end of a socket.
#[derive(Debug)]
pub struct Peer {
    pid: u32,
    uid: u32,
    held: Option<OwnedFd>,
}

impl Peer {
    /// Who connected; none if the kernel does not say.
    #[must_use]
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let known = sockopt::socket_peercred(&socket).ok()?;
        let pid = u32::try_from(known.pid.as_raw_nonzero().get()).ok()?;
        let held = sys::peer_pidfd(socket.as_fd()).ok();
        Some(Self { pid, uid: known.uid.as_raw(), held })
    }

    /// Whether it is inside a tree of the store with this prefix of marks
    /// ([`super::Options::instance_prefix`]).
    #[must_use]
    pub fn is_inside_a_tree(&self, prefix: &str) -> bool {
        is_inside_a_tree(self.pid, prefix)
    }

    /// Whether it runs as the user of this process, and lives: so all that was found out by its
    /// number is true of it. Where the kernel cannot tell (before Linux 6.5) it is not.
    #[must_use]
    pub fn is_proven_own_user(&self) -> bool {
        let Some(held) = &self.held else { return false };
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Readable once it has exited (pidfd_open(2)).
        let exited = poll(&mut [PollFd::new(held, PollFlags::IN)], Some(&now));
        self.uid == rustix::process::geteuid().as_raw() && exited == Ok(0)
    }
}

/// Whether a process is inside a tree of the store with this prefix of marks
/// ([`super::Options::instance_prefix`]).
fn is_inside_a_tree(pid: u32, prefix: &str) -> bool {
    let me = std::process::id();
    let mut at = pid;
    for _ in 0..ANCESTORS_MAX {
        let is_marked =
            proc::instance(at).map(|mark| mark.is_some_and(|mark| is_of_store(&mark, prefix)));
        let is_it = at == pid;
        match is_marked {
            Ok(true) => return true,
            Ok(false) => {}
            // An ancestor may be another user's: a login, a terminal's server.
            Err(_) if is_it => return true,
            Err(_) => {}
        }
        let Some(stat) = proc::stat(at) else { return true };
        if stat.parent == me {
            return true;
        }
        if stat.parent <= 1 {
            return false;
        }
        at = stat.parent;
    }
    true
}
