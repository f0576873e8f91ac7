//! What /proc tells of processes. Everything read here is stale at once: whoever signals holds a
//! pidfd first and looks after that.

use std::collections::HashMap;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;

use super::INSTANCE_VARIABLE;

/// What most environments take.
const ENVIRON_BYTES: usize = 16 * 1024;
/// The most that is read of one process's environment (execve(2): what Linux takes at most).
const ENVIRON_BYTES_MAX: u64 = 8 * 1024 * 1024;

/// The fields of proc_pid_stat(5) that identify a process and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    pub(super) state: char,
    pub(super) parent: u32,
    pub(super) group: u32,
    pub(super) session: u32,
    /// In clock ticks since boot: steps of 10 ms, so alone it identifies nothing.
    pub(super) start_time: u64,
}

impl Stat {
    /// Whether it has exited and only waits to be reaped.
    pub(super) const fn is_dead(self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The stat line of a process; none if it is gone.
pub(super) fn stat(pid: u32) -> Option<Stat> {
    parse_stat(&stat_line(pid)?)
}

fn stat_line(pid: u32) -> Option<Vec<u8>> {
    /// 52 fields of at most 20 digits, and a name of at most 64 bytes.
    const BYTES_MAX: usize = 2048;
    read(&format!("/proc/{pid}/stat"), BYTES_MAX, BYTES_MAX as u64).ok()
}

/// Reads a file of /proc of about `expected` bytes, at most `most`. It does not know its length, so
/// `fs::read` would feel its way in many small reads: a sweep reads a few files of every process.
fn read(path: &str, expected: usize, most: u64) -> io::Result<Vec<u8>> {
    use std::io::Read;
    let mut bytes = Vec::with_capacity(expected);
    std::fs::File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The name in the second field may hold spaces and parentheses: the rest begins behind the last.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let end = line.iter().rposition(|byte| *byte == b')')?;
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().take(20).collect();
    // Field 3, the state, is the first behind the name.
    let field = |number: usize| fields.get(number - 3).copied();
    Some(Stat {
        state: field(3)?.chars().next()?,
        parent: field(4)?.parse().ok()?,
        group: field(5)?.parse().ok()?,
        session: field(6)?.parse().ok()?,
        start_time: field(22)?.parse().ok()?,
    })
}

/// What a process has used, for people.
pub(super) struct Usage {
    /// The name of its program.
    pub(super) name: String,
    /// In clock ticks, within it and by the system for it.
    pub(super) cpu_ticks: u64,
    /// In KiB.
    pub(super) resident_kib: u64,
}

/// Reads that of a process; none if it is gone.
pub(super) fn usage(pid: u32) -> Option<Usage> {
    let line = stat_line(pid)?;
    let (begin, end) =
        (line.iter().position(|byte| *byte == b'(')?, line.iter().rposition(|byte| *byte == b')')?);
    let name = String::from_utf8_lossy(line.get(begin + 1..end)?).into_owned();
    let rest = std::str::from_utf8(line.get(end + 1..)?).ok()?;
    // Fields 14 and 15; field 3 is the first behind the name.
    let mut ticks =
        rest.split_ascii_whitespace().skip(11).map_while(|text| text.parse::<u64>().ok());
    let cpu_ticks = ticks.next()?.saturating_add(ticks.next()?);
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident_kib = resident.and_then(|text| text.split_ascii_whitespace().next()?.parse().ok());
    Some(Usage { name, cpu_ticks, resident_kib: resident_kib.unwrap_or_default() })
}

/// How long the machine has been up.
pub(super) fn uptime_ms() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = text.split_ascii_whitespace().next()?.parse().ok()?;
    std::time::Duration::try_from_secs_f64(seconds).ok()?.as_millis().try_into().ok()
}

/// The children of all threads of a process, as they were (proc_pid_tid_children(5)).
pub(super) fn children(pid: u32) -> Vec<u32> {
    if !std::path::Path::new("/proc/thread-self/children").exists() {
        // A kernel built without that file.
        let all = snapshot().unwrap_or_default();
        return all.iter().filter(|(_, stat)| stat.parent == pid).map(|(pid, _)| *pid).collect();
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let mut found = Vec::new();
    for thread in threads {
        let text = std::fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        found.extend(text.split_ascii_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
    }
    found
}

/// All processes that exist now.
pub(super) fn pids() -> io::Result<Vec<u32>> {
    let entries = std::fs::read_dir("/proc")?;
    let number = |entry: std::fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    Ok(entries.flatten().filter_map(number).collect())
}

/// The stat lines of all processes that exist now.
pub(super) fn snapshot() -> io::Result<HashMap<u32, Stat>> {
    Ok(pids()?.into_iter().filter_map(|pid| Some((pid, stat(pid)?))).collect())
}

/// Those of `snapshot` that stand below one of `roots`, without the roots.
pub(super) fn descendants(snapshot: &HashMap<u32, Stat>, roots: &[u32]) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for (pid, stat) in snapshot {
        children.entry(stat.parent).or_default().push(*pid);
    }
    let mut open: Vec<u32> = roots.to_vec();
    let mut found = Vec::new();
    // Each is taken out of the map when it is met: ends even if stale parents make a ring.
    while let Some(pid) = open.pop() {
        let below = children.remove(&pid).unwrap_or_default();
        found.extend(below.iter().filter(|pid| !roots.contains(pid)));
        open.extend(below);
    }
    found
}

/// The mark in the environment that a process was started with.
///
/// # Errors
///
/// Its environment cannot be read: another user's, or not dumpable. `NotFound`: it is gone.
pub(super) fn instance(pid: u32) -> io::Result<Option<String>> {
    let environ = read_environ(pid)?;
    let marks = environ.split(|byte| *byte == 0).filter_map(|variable| {
        variable.strip_prefix(INSTANCE_VARIABLE.as_bytes())?.strip_prefix(b"=")
    });
    let mut marks = marks.map(|value| String::from_utf8_lossy(value).into_owned());
    Ok(marks.next())
}

fn read_environ(pid: u32) -> io::Result<Vec<u8>> {
    read(&format!("/proc/{pid}/environ"), ENVIRON_BYTES, ENVIRON_BYTES_MAX).map_err(|error| {
        match error.raw_os_error() {
            // ESRCH: it went between the open and the read.
            Some(3) => io::ErrorKind::NotFound.into(),
            _ => error,
        }
    })
}

/// Whether a process has given up, for itself and all that it will ever start, to gain privileges
/// (`NoNewPrivs` of proc_pid_status(5)); none if the kernel does not say.
pub(super) fn has_no_new_privileges(pid: u32) -> Option<bool> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("NoNewPrivs:"))?;
    Some(line.trim() != "0")
}

/// Whether a process has an environment without PATH, as no login, service or agent of ours starts
/// any: it was emptied. Threads of the kernel have no command line either, and are none.
pub(super) fn has_bare_environment(pid: u32) -> bool {
    let Ok(environ) = read_environ(pid) else { return false };
    let has_path = environ.split(|byte| *byte == 0).any(|variable| variable.starts_with(b"PATH="));
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    !has_path && !command.is_empty()
}

/// The user that owns a process; root for those that are not dumpable.
pub(super) fn owner(pid: u32) -> Option<u32> {
    std::fs::metadata(format!("/proc/{pid}")).ok().map(|metadata| metadata.uid())
}

/// The process's directory of the unified cgroup hierarchy, from its root (cgroups(7)).
pub(super) fn cgroup(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    text.lines().find_map(|line| line.strip_prefix("0::")).map(str::to_owned)
}

/// The name of the machine's current boot: processes recorded under another are gone.
///
/// # Errors
///
/// The kernel does not tell it.
pub fn boot_id() -> io::Result<String> {
    let text = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    Ok(std::ffi::OsStr::from_bytes(text.trim_ascii()).to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_name_cannot_forge_the_fields_behind_it() {
        let line = b"77 (a) R 1 2 3 (b) S 5 6 7 0 -1 0 0 0 0 0 0 0 0 0 20 0 1 0 4242 9 9";
        let expected = Stat { state: 'S', parent: 5, group: 6, session: 7, start_time: 4242 };
        assert_eq!(parse_stat(line), Some(expected));
    }

    #[test]
    fn a_short_line_is_no_process() {
        assert_eq!(parse_stat(b"77 (a) R 1 2"), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn descendants_end_even_where_stale_parents_make_a_ring() {
        let of = |parent| Stat { state: 'S', parent, group: 0, session: 0, start_time: 0 };
        let snapshot = HashMap::from([(2, of(1)), (3, of(2)), (4, of(5)), (5, of(4)), (6, of(9))]);
        let mut found = descendants(&snapshot, &[1, 4]);
        found.sort_unstable();
        assert_eq!(found, [2, 3, 5]);
    }
}
