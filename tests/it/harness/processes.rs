//! Which processes a daemon has left: found by a mark in their environment or command line, so
//! that no list of the daemon's own has to be believed.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// Processes with the path of a test's directory in environment or command line, but for the
/// binary itself (daemon and verbs). Zombies have neither.
pub(super) fn of(root: &Path) -> Vec<(u32, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        let is_marked =
            |text: &[u8]| memchr::memmem::find(text, root.as_os_str().as_bytes()).is_some();
        let is_ours = line.starts_with(super::SPAWNLET.as_bytes())
            && line.get(super::SPAWNLET.len()) == Some(&0);
        if !is_ours && (is_marked(&line) || is_marked(&environment)) {
            found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
        }
    }
    found
}

/// Waits until a process has ended. Whether it has.
pub(crate) fn wait_gone(pid: u32, deadline: Duration) -> bool {
    let Ok(pidfd) =
        pidfd_open(Pid::from_raw(pid.try_into().unwrap()).unwrap(), PidfdFlags::empty())
    else {
        return true;
    };
    let limit = Timespec { tv_sec: deadline.as_secs().try_into().unwrap(), tv_nsec: 0 };
    poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit)).unwrap() == 1
}
