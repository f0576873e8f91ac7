//! Who connects to the daemon's socket, which is for operators: asked of the kernel, not of the peer.
//!
//! An agent of this daemon is known by its descent (a shim is the subreaper of its tree, and the daemon
//! of its shims, so nobody leaves by letting the parent die) or by the store's mark. What it cannot
//! shed, whatever dies and whatever it scrubs, is that every shim gives up new privileges for its whole
//! tree (prctl(2), PR_SET_NO_NEW_PRIVS): so nobody is the operator by who it is that has done so. That
//! holds for agents of other daemons of the same user too. What cannot be found out counts against
//! the peer.
//!
//! Whoever is to be the operator without a token is proved besides to be the process that connected:
//! a number alone could have been given to an innocent one while the connection waited.
//!
//! Cheap, as agents may connect as often as they like: at most `ANCESTORS_MAX` lines and one
//! environment are read.

use std::cell::OnceCell;
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
    mark: OnceCell<Mark>,
}

/// The mark of a tree that a process carries.
#[derive(Debug)]
enum Mark {
    None,
    Of(String),
    /// Its environment cannot be read: another user's, or of who has gone.
    Unknown,
}

impl Peer {
    /// Who connected; none if the kernel does not say.
    #[must_use]
    pub fn of(socket: impl AsFd) -> Option<Self> {
        let known = sockopt::socket_peercred(&socket).ok()?;
        let pid = u32::try_from(known.pid.as_raw_nonzero().get()).ok()?;
        let held = sys::peer_pidfd(socket.as_fd()).ok();
        Some(Self { pid, uid: known.uid.as_raw(), held, mark: OnceCell::new() })
    }

    /// Whether it is inside a tree of the store with this prefix of marks
    /// ([`super::Options::instance_prefix`]).
    #[must_use]
    pub fn is_inside_a_tree(&self, prefix: &str) -> bool {
        descends_from_here(self.pid)
            || match self.mark() {
                Mark::None => false,
                Mark::Of(mark) => is_of_store(mark, prefix),
                Mark::Unknown => true,
            }
    }

    /// Read once, and only if it is asked for: an environment may be large.
    fn mark(&self) -> &Mark {
        self.mark.get_or_init(|| match proc::instance(self.pid) {
            Ok(None) => Mark::None,
            Ok(Some(mark)) => Mark::Of(mark),
            Err(_) => Mark::Unknown,
        })
    }

    /// Whether it runs as the user of this process, in no daemon's tree, and lives: so all that was
    /// found out by its number is true of it. Where the kernel cannot tell (before Linux 6.5) it is not.
    #[must_use]
    pub fn is_proven_own_user(&self) -> bool {
        let Some(held) = &self.held else { return false };
        let is_free = matches!(self.mark(), Mark::None)
            && proc::has_no_new_privileges(self.pid) == Some(false);
        if !is_free {
            return false;
        }
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Readable once it has exited (pidfd_open(2)).
        let exited = poll(&mut [PollFd::new(held, PollFlags::IN)], Some(&now));
        self.uid == rustix::process::geteuid().as_raw() && exited == Ok(0)
    }
}

/// Whether this process is an ancestor of another one.
fn descends_from_here(pid: u32) -> bool {
    let me = std::process::id();
    let mut at = pid;
    for _ in 0..ANCESTORS_MAX {
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
