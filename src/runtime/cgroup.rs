//! One cgroup per agent, where there is a writable cgroup v2 directory: the kernel then kills a
//! whole tree at once (measured: empty after 7 ms) and knows whether it is empty.
//!
//! The agent is in the cgroup and its shim is not: so a killed cgroup leaves the shim to reap and
//! to report. A directory is named after the mark of the tree's environment, which makes a recorded
//! path provably ours. No controller is turned on: limits are not this module's business.

use std::io;
use std::path::{Path, PathBuf};

use super::proc;

/// What each directory's name begins with.
const NAME_PREFIX: &str = "spawnlet-";

/// The daemon's own cgroup directory, if it is of cgroup v2, cgroups can be made in it, and they
/// have `cgroup.kill` (Linux 5.14); else none, and shims alone keep the trees together.
#[must_use]
pub fn detect() -> Option<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = proc::cgroup(std::process::id())?;
    let base = mounts.lines().find_map(|line| directory_of(line, &own))?;
    let probe = base.join(format!("{NAME_PREFIX}probe-{}", std::process::id()));
    std::fs::create_dir(&probe).ok()?;
    let can_kill = probe.join("cgroup.kill").exists();
    std::fs::remove_dir(&probe).ok()?;
    can_kill.then_some(base)
}

/// Where `own`, a path from the hierarchy's root, is found by this line of proc_pid_mountinfo(5):
/// fields 4 and 5 are the mount's root and its mount point, the type follows a lone hyphen.
fn directory_of(line: &str, own: &str) -> Option<PathBuf> {
    let (mount, kind) = line.split_once(" - ")?;
    if kind.split(' ').next() != Some("cgroup2") {
        return None;
    }
    let mut fields = mount.split(' ').skip(3);
    let (root, point) = (fields.next()?, fields.next()?);
    let below = Path::new(own).strip_prefix(root).ok()?;
    Some(Path::new(point).join(below))
}

/// The directory of the tree with this mark.
pub(super) fn path(base: &Path, instance: &str) -> PathBuf {
    base.join(format!("{NAME_PREFIX}{instance}"))
}

/// Whether a recorded directory is the one that was made for this mark.
pub(super) fn is_of(directory: &Path, instance: &str) -> bool {
    directory.file_name().and_then(|name| name.to_str()?.strip_prefix(NAME_PREFIX))
        == Some(instance)
}

/// The marks and directories of all trees, of any store.
pub(super) fn list(base: &Path) -> Vec<(String, PathBuf)> {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let instance = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        Some((name.to_str()?.strip_prefix(NAME_PREFIX)?.to_owned(), entry.path()))
    };
    entries.filter_map(instance).collect()
}

/// Kills all that is in it. A directory that is gone is done.
pub(super) fn kill(directory: &Path) -> io::Result<()> {
    gone_is(std::fs::write(directory.join("cgroup.kill"), "1"), ())
}

/// Whether a process is in it or below it.
pub(super) fn is_populated(directory: &Path) -> io::Result<bool> {
    let text = gone_is(std::fs::read_to_string(directory.join("cgroup.events")), String::new())?;
    Ok(text.lines().any(|line| line == "populated 1"))
}

/// Removes it, if it is empty, with the empty ones that the agent made in it.
pub(super) fn remove(directory: &Path) {
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let _ = std::fs::remove_dir(entry.path());
        }
    }
    let _ = std::fs::remove_dir(directory);
}

fn gone_is<T>(result: io::Result<T>, value: T) -> io::Result<T> {
    match result {
        // ENODEV: removed between the open and the read.
        Err(error)
            if error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(19) =>
        {
            Ok(value)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_directory_is_found_below_the_mount_of_version_2_only() {
        let hybrid = "30 29 0:26 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw";
        let old = "31 29 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu";
        let inner = "40 20 0:26 /docker/a /sys/fs/cgroup ro,nosuid master:9 - cgroup2 cgroup rw";
        let found = |line, own| directory_of(line, own);
        assert_eq!(found(hybrid, "/a/b"), Some("/sys/fs/cgroup/unified/a/b".into()));
        assert_eq!(found(old, "/a/b"), None);
        assert_eq!(found(inner, "/docker/a/x"), Some("/sys/fs/cgroup/x".into()));
        assert_eq!(found(inner, "/elsewhere"), None);
    }

    #[test]
    fn only_the_directory_of_the_same_mark_is_ours() {
        let made = path(Path::new("/sys/fs/cgroup"), "store.1");
        assert!(is_of(&made, "store.1"));
        assert!(!is_of(&made, "store.2"));
        assert!(!is_of(Path::new("/sys/fs/cgroup/system.slice"), "store.1"));
    }
}
