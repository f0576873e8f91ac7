//! Whether a process is inside an agent's tree: asked of whoever connects to the daemon's socket,
//! which is for operators.
//!
//! Two signs, each enough: it descends from this daemon (a shim is the subreaper of its tree, and the
//! daemon of its shims, so nobody leaves by letting the parent die), or it or one of its ancestors
//! carries the store's mark. What cannot be found out of the process itself counts as inside.

use super::leftovers::is_of_store;
use super::proc;

/// More ancestors than any real process has; a chain that changes while it is followed ends.
const ANCESTORS_MAX: usize = 256;

/// Whether a process is inside a tree of the store with this prefix of marks
/// ([`super::Options::instance_prefix`]).
#[must_use]
pub fn is_inside_a_tree(pid: u32, prefix: &str) -> bool {
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
