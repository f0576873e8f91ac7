//! The shim's descendants: finding and killing them.

use std::path::PathBuf;

use rustix::process::{Pid, Signal};

/// The tree below the shim.
pub(super) struct Tree {
    /// `pipe:[inode]`, if the agent's stdout is a pipe.
    pub(super) stdout: Option<String>,
    /// The agent's cgroup; the shim itself is not in it.
    pub(super) cgroup: Option<PathBuf>,
}

impl Tree {
    /// One pass of SIGKILL over all descendants, parents first: a process that has SIGKILL pending
    /// cannot fork any more, so its list of children, read after the signal, is complete. What
    /// loses its parent meanwhile becomes the shim's child and is met in the next pass.
    pub(super) fn kill(&self) {
        if let Some(cgroup) = &self.cgroup {
            // Takes the whole directory at once (cgroups(7), Linux 5.14).
            let _ = std::fs::write(cgroup.join("cgroup.kill"), "1");
        }
        let shim = rustix::process::getpid();
        let mut open: Vec<(Pid, Pid)> = children(shim).map(|child| (shim, child)).collect();
        while let Some((parent, pid)) = open.pop() {
            let ours = if parent == shim {
                // An own child keeps its number until it is reaped, which is not done meanwhile.
                rustix::process::kill_process(pid, Signal::KILL).is_ok()
            } else {
                kill_descendant(pid, parent, shim)
            };
            if ours {
                open.extend(children(pid).map(|child| (pid, child)));
            }
        }
    }

    /// Whether a descendant has the agent's stdout open.
    pub(super) fn holds_stdout(&self) -> bool {
        let Some(stdout) = &self.stdout else { return false };
        let mut open: Vec<Pid> = children(rustix::process::getpid()).collect();
        while let Some(pid) = open.pop() {
            let listing = std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero()));
            let holds = listing.into_iter().flatten().flatten().any(|entry| {
                std::fs::read_link(entry.path())
                    .is_ok_and(|target| target.as_os_str() == stdout.as_str())
            });
            if holds {
                return true;
            }
            open.extend(children(pid));
        }
        false
    }

    /// An empty cgroup is only a directory.
    pub(super) fn remove_cgroup(&self) {
        if let Some(cgroup) = &self.cgroup {
            let _ = std::fs::remove_dir(cgroup);
        }
    }
}

/// What /proc calls one of the shim's own descriptors, if it is a pipe.
pub(super) fn pipe_name(number: i32) -> Option<String> {
    let target = std::fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
    target.to_str().filter(|name| name.starts_with("pipe:")).map(str::to_owned)
}

/// Kills a grandchild. Its number may have passed to a stranger since it was read, so it is held by
/// a pidfd first and its parent asked after that: a stranger has another parent, and if the number
/// changes hands later still, the pidfd's signal fails.
#[cfg(target_os = "linux")]
fn kill_descendant(pid: Pid, parent: Pid, shim: Pid) -> bool {
    use rustix::process::{PidfdFlags, pidfd_open, pidfd_send_signal};
    let Ok(held) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    let Some(now) = parent_of(pid) else { return false };
    (now == parent || now == shim) && pidfd_send_signal(&held, Signal::KILL).is_ok()
}

/// Without pidfds a number proves nothing.
#[cfg(not(target_os = "linux"))]
fn kill_descendant(_pid: Pid, _parent: Pid, _shim: Pid) -> bool {
    false
}

/// Field 4 of proc_pid_stat(5); the name before it may contain anything, so from the last `)`.
fn parent_of(pid: Pid) -> Option<Pid> {
    let stat = std::fs::read(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
    let end = stat.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(stat.get(end + 1..)?).ok()?;
    Pid::from_raw(rest.split_ascii_whitespace().nth(1)?.parse().ok()?)
}

/// The children of all threads of a process (proc_pid_tid_children(5)).
fn children(pid: Pid) -> impl Iterator<Item = Pid> {
    let task = format!("/proc/{}/task", pid.as_raw_nonzero());
    let mut found: Vec<Pid> = Vec::new();
    for thread in std::fs::read_dir(task).into_iter().flatten().flatten() {
        let Ok(text) = std::fs::read_to_string(thread.path().join("children")) else { continue };
        found.extend(text.split_ascii_whitespace().filter_map(to_pid));
    }
    if !std::path::Path::new("/proc/thread-self/children").exists() {
        // A kernel built without that file.
        found.extend(all().filter(|other| parent_of(*other) == Some(pid)));
    }
    found.into_iter()
}

fn all() -> impl Iterator<Item = Pid> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| to_pid(entry.file_name().to_str()?))
}

fn to_pid(text: &str) -> Option<Pid> {
    Pid::from_raw(text.parse().ok()?)
}
