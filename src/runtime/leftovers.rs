//! What an earlier daemon left running: found by its record or its mark, and killed.
//!
//! Shims kill their trees when the daemon dies, so there is something to do only if they died too
//! (measured: then always). It runs at start before anything else, and, as a backstop, every few
//! seconds for marks that no live process of ours has.
//!
//! Invariants: nothing is signalled but through a pidfd, and only if what was read *after* the
//! pidfd was opened proves it ours: a recorded shim by its start time and (the pidfd's inode or its
//! mark), any other process by this store's mark, or as a descendant of one that is proven and
//! stopped. Another user's process, or one whose environment cannot be read, is reported and not
//! touched. Nothing is ever adopted: an agent whose daemon is gone has lost its pipes.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::sys::pidfd;
use super::{Options, cgroup, orphans, proc};
use crate::api::session::ProcessRecord;

/// How often it is looked whether what was killed is gone.
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long at most: nothing may outlive a killed daemon by more than 5 s.
const LOOKS_MAX: Duration = Duration::from_secs(5);
/// Rounds of looking for what a process forked before it could be stopped. Each round stops all
/// that it finds, so only what forks faster than this reads needs a second.
const FREEZE_ROUNDS_MAX: u32 = 8;

/// What became of leftovers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Of each record that was given, in its order.
    pub outcomes: Vec<Outcome>,
    /// The pids that were killed.
    pub killed: Vec<u32>,
    /// What looks like a leftover and could not be proven one, or not be read.
    pub untouched: Vec<Untouched>,
}

/// What became of a recorded process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing of it was found alive.
    Gone,
    /// Something of it was killed, and is gone.
    Killed,
    /// Something of it is still there: it counts as running.
    Unconfirmed,
}

/// A process that was left alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Untouched {
    /// Which.
    pub pid: u32,
    /// Why.
    pub why: &'static str,
}

/// What one pass over marked processes did.
#[derive(Debug, Default)]
pub(super) struct Marked {
    /// Those that were killed in this pass, with their mark; none for a descendant without one.
    pub(super) killed: Vec<(u32, Option<String>)>,
    pub(super) untouched: Vec<Untouched>,
}

/// Kills what earlier daemons of this store left, and waits until it is gone, at most 5 s.
/// To be called before the first launch: every mark of the store counts as an earlier daemon's.
///
/// # Errors
///
/// /proc cannot be read, so nothing is known.
///
/// # Cancel safety
///
/// May be called again: it is done when nothing is found.
pub async fn clear(records: Vec<ProcessRecord>, prefix: String) -> io::Result<Report> {
    clear_in(records, prefix, cgroup::detect()).await
}

/// As [`clear`], with the directory that this store's cgroups lie in, if it has any.
///
/// # Errors
///
/// As [`clear`].
///
/// # Cancel safety
///
/// As [`clear`].
pub async fn clear_in(
    records: Vec<ProcessRecord>,
    prefix: String,
    cgroup_base: Option<PathBuf>,
) -> io::Result<Report> {
    let mut search = Search::new(records, prefix, cgroup_base)?;
    let mut too_long = std::pin::pin!(tokio::time::sleep(LOOKS_MAX));
    let mut looks = 0;
    loop {
        let (done, back) = tokio::task::spawn_blocking(move || {
            let done = search.pass(looks);
            (done, search)
        })
        .await
        .map_err(io::Error::other)?;
        search = back;
        if done? {
            break;
        }
        looks += 1;
        tokio::select! {
            biased;
            () = &mut too_long => break,
            () = tokio::time::sleep(LOOK_AGAIN) => {}
        }
    }
    Ok(search.report())
}

/// Kills, in one pass, what carries this store's mark and is of no live process of ours. Returns
/// what was found; what it killed is gone when a later pass finds nothing. `is_live` is asked anew
/// for each process: a mark must be live before the first process that carries it.
///
/// # Errors
///
/// /proc cannot be read.
pub fn sweep(options: &Options, is_live: impl Fn(&str) -> bool) -> io::Result<Report> {
    proc::pids()?;
    let is_stale = |mark: &str| is_of_store(mark, &options.instance_prefix) && !is_live(mark);
    clear_cgroups(options.cgroup_base.as_deref(), is_stale);
    let marked = kill_marked(is_stale);
    let orphans = orphans::clear(is_stale);
    let mut killed: Vec<u32> = marked.killed.into_iter().map(|(pid, _)| pid).collect();
    killed.extend(orphans.killed);
    killed.sort_unstable();
    killed.dedup();
    let orphaned = |pid| Untouched { pid, why: "an orphan without this store's mark" };
    let mut untouched = marked.untouched;
    untouched.extend(orphans.untouched.into_iter().map(orphaned));
    Ok(Report { outcomes: Vec::new(), killed, untouched })
}

/// Whether a mark is of the store with this prefix: the prefix, a dot, and a nonce.
#[must_use]
pub(super) fn is_of_store(mark: &str, prefix: &str) -> bool {
    mark.strip_prefix(prefix).is_some_and(|nonce| nonce.len() > 1 && nonce.starts_with('.'))
}

struct Search {
    records: Vec<ProcessRecord>,
    prefix: String,
    cgroup_base: Option<PathBuf>,
    boot_id: String,
    outcomes: Vec<Outcome>,
    killed: HashSet<u32>,
    untouched: Vec<Untouched>,
}

impl Search {
    fn new(
        records: Vec<ProcessRecord>,
        prefix: String,
        cgroup_base: Option<PathBuf>,
    ) -> io::Result<Self> {
        Ok(Self {
            outcomes: vec![Outcome::Gone; records.len()],
            boot_id: proc::boot_id()?,
            records,
            prefix,
            cgroup_base,
            killed: HashSet::new(),
            untouched: Vec::new(),
        })
    }

    /// Looks at everything once; true if nothing was found alive.
    fn pass(&mut self, look: u32) -> io::Result<bool> {
        proc::pids()?;
        self.untouched.clear();
        let prefix = &self.prefix;
        let is_ours = |mark: &str| is_of_store(mark, prefix);
        let mut alive = clear_cgroups(self.cgroup_base.as_deref(), is_ours);
        let mut other_alive = false;
        for record in self.records.iter().filter(|record| record.boot_id == self.boot_id) {
            let in_cgroup = clear_recorded_cgroup(record);
            let shim = match identify(record) {
                Found::Gone => false,
                Found::Stranger(untouched) => {
                    self.untouched.push(untouched);
                    false
                }
                Found::Ours(pid, held) => {
                    self.killed.insert(pid);
                    end_shim(pid, &held, look);
                    true
                }
            };
            if in_cgroup || shim {
                alive.insert(record.instance.clone());
            }
        }
        let marked = kill_marked(is_ours);
        for (pid, mark) in marked.killed {
            self.killed.insert(pid);
            other_alive = true;
            alive.extend(mark);
        }
        self.untouched.extend(marked.untouched);
        for (record, outcome) in self.records.iter().zip(&mut self.outcomes) {
            *outcome = match (alive.contains(&record.instance), *outcome) {
                (true, _) => Outcome::Unconfirmed,
                (false, Outcome::Unconfirmed) => Outcome::Killed,
                (false, before) => before,
            };
        }
        Ok(alive.is_empty() && !other_alive)
    }

    fn report(mut self) -> Report {
        self.untouched.extend(self.look_alikes());
        let mut killed: Vec<u32> = self.killed.into_iter().collect();
        killed.sort_unstable();
        Report { outcomes: self.outcomes, killed, untouched: self.untouched }
    }

    /// What may be of a recorded tree and has no mark: in its session or group; or younger, and with
    /// an emptied environment, or an orphan that can gain no privileges, as all below a shim. Its
    /// own, or strangers by reuse or chance: nothing can tell.
    fn look_alikes(&self) -> Vec<Untouched> {
        let records = || self.records.iter().filter(|record| record.boot_id == self.boot_id);
        let is_recorded = |number| {
            records().any(|record| record.shim_pid == Some(number) || record.pid == Some(number))
        };
        let Some(since) = records().filter_map(|record| record.start_time).min() else {
            return Vec::new();
        };
        let user = rustix::process::geteuid().as_raw();
        // Who takes in the orphans of a daemon stands above it, and so above its successor.
        let above: HashSet<u32> = own_line().into_iter().map(|(pid, _)| pid).collect();
        let judge = |(pid, stat): (u32, proc::Stat)| {
            // What carries a mark is another store's, or was killed by ours.
            let is_suspect = stat.start_time >= since
                && proc::owner(pid) == Some(user)
                && proc::instance(pid).is_ok_and(|mark| mark.is_none());
            let why = if is_recorded(stat.session) || is_recorded(stat.group) {
                "in a recorded session, without the mark"
            } else if is_suspect && proc::has_bare_environment(pid) {
                "younger than a recorded process, with an emptied environment"
            } else if is_suspect
                && above.contains(&stat.parent)
                && proc::has_no_new_privileges(pid) == Some(true)
            {
                "younger than a recorded process, an orphan without the mark that can gain no \
                 privileges, as agents are"
            } else {
                return None;
            };
            Some(Untouched { pid, why })
        };
        let snapshot = proc::snapshot().unwrap_or_default();
        let alive = snapshot.into_iter().filter(|(_, stat)| !stat.is_dead());
        let mut found: Vec<Untouched> = alive.filter_map(judge).collect();
        found.sort_unstable_by_key(|untouched| untouched.pid);
        found
    }
}

enum Found {
    Gone,
    Ours(u32, OwnedFd),
    Stranger(Untouched),
}

/// Whether the recorded shim still exists. The handle first: what is read then is read of the
/// process that the handle is on, or of a later one, to which the signal does not go.
fn identify(record: &ProcessRecord) -> Found {
    let Some(pid) = record.shim_pid else { return Found::Gone };
    let held = match pidfd::open(pid) {
        Ok(held) => held,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Found::Gone,
        Err(_) => return Found::Stranger(Untouched { pid, why: "it could not be held" }),
    };
    let Some(stat) = proc::stat(pid).filter(|stat| !stat.is_dead()) else { return Found::Gone };
    if record.start_time != Some(stat.start_time) {
        return Found::Gone;
    }
    let same_inode = match (record.pidfd_inode, pidfd::inode(&held)) {
        (Some(recorded), Some(now)) if recorded != now => return Found::Gone,
        (Some(_), Some(_)) => true,
        (None, _) | (_, None) => false,
    };
    let mark = proc::instance(pid);
    if proc::owner(pid) != Some(rustix::process::geteuid().as_raw()) {
        return Found::Stranger(Untouched { pid, why: "another user's" });
    }
    let same_mark = matches!(&mark, Ok(Some(mark)) if *mark == record.instance);
    if same_inode || same_mark {
        return Found::Ours(pid, held);
    }
    match mark {
        Ok(_) => Found::Gone,
        Err(_) => Found::Stranger(Untouched { pid, why: "its environment cannot be read" }),
    }
}

/// Lets a shim do its work, and does it if it does not: what is below it first, so that nothing
/// loses the parent by which it is known, and the shim last.
fn end_shim(pid: u32, held: &OwnedFd, look: u32) {
    let _ = pidfd::resume(held);
    if orphans::kill_descendants(pid, &[pid]) == 0 && look > 0 {
        let _ = pidfd::kill(held);
    }
}

/// Kills what is in cgroups of this store, recorded or not, and removes the empty ones. Returns the
/// marks of those that were not empty.
fn clear_cgroups(base: Option<&Path>, is_stale: impl Fn(&str) -> bool) -> HashSet<String> {
    let mut populated = HashSet::new();
    for (instance, directory) in base.map(cgroup::list).unwrap_or_default() {
        if is_stale(&instance) && clear_cgroup(&directory) {
            populated.insert(instance);
        }
    }
    populated
}

/// Kills the cgroup of a record, which may lie below another directory than today's; true if
/// something is in it.
fn clear_recorded_cgroup(record: &ProcessRecord) -> bool {
    let directory = record.cgroup.as_deref().map(Path::new);
    let directory = directory.filter(|directory| cgroup::is_of(directory, &record.instance));
    directory.is_some_and(clear_cgroup)
}

fn clear_cgroup(directory: &Path) -> bool {
    let populated = cgroup::is_populated(directory).unwrap_or(true);
    if populated {
        let _ = cgroup::kill(directory);
    } else {
        cgroup::remove(directory);
    }
    populated
}

/// Stops, then kills, all processes whose mark is ours, and all below them. Stopped first, so that
/// a descendant that emptied its environment cannot lose the parent by which it is known.
pub(super) fn kill_marked(is_ours: impl Fn(&str) -> bool) -> Marked {
    let mut marked = Marked::default();
    let mut held: HashMap<u32, (OwnedFd, Option<String>)> = HashMap::new();
    let mut looked_at: HashSet<(u32, u64)> = own_line();
    for _ in 0..FREEZE_ROUNDS_MAX {
        let Ok(mut snapshot) = proc::snapshot() else { break };
        snapshot.retain(|_, stat| !stat.is_dead());
        let mut found: Vec<(u32, Option<String>)> = Vec::new();
        for (pid, stat) in &snapshot {
            if held.contains_key(pid) || !looked_at.insert((*pid, stat.start_time)) {
                continue;
            }
            let mark = proc::instance(*pid).ok().flatten();
            if let Some(mark) = mark.filter(|mark| is_ours(mark)) {
                found.push((*pid, Some(mark)));
            }
        }
        let roots: Vec<u32> =
            held.keys().copied().chain(found.iter().map(|(pid, _)| *pid)).collect();
        let below = proc::descendants(&snapshot, &roots);
        found.extend(below.into_iter().map(|pid| (pid, None)));
        let mut news = false;
        for (pid, mark) in found {
            match hold(pid, mark.as_deref(), &snapshot) {
                Held::Ours(fd) => {
                    let _ = pidfd::stop(&fd);
                    news = true;
                    held.insert(pid, (fd, mark));
                }
                Held::Not => {}
                Held::Foreign => {
                    marked.untouched.push(Untouched { pid, why: "another user's, with our mark" });
                }
            }
        }
        if !news {
            break;
        }
    }
    for (pid, (fd, mark)) in held {
        if pidfd::kill(&fd).is_ok() {
            marked.killed.push((pid, mark));
        }
    }
    marked
}

enum Held {
    Ours(OwnedFd),
    Foreign,
    Not,
}

/// Holds a process and looks again whether it is the one that was found.
fn hold(pid: u32, mark: Option<&str>, snapshot: &HashMap<u32, proc::Stat>) -> Held {
    let Ok(fd) = pidfd::open(pid) else { return Held::Not };
    let (Some(before), Some(now)) = (snapshot.get(&pid), proc::stat(pid)) else { return Held::Not };
    let is_same = now.start_time == before.start_time && !now.is_dead();
    let is_proven = match mark {
        Some(mark) => proc::instance(pid).is_ok_and(|now| now.as_deref() == Some(mark)),
        None => now.parent == before.parent,
    };
    if !is_same || !is_proven {
        return Held::Not;
    }
    if proc::owner(pid) == Some(rustix::process::geteuid().as_raw()) {
        Held::Ours(fd)
    } else {
        Held::Foreign
    }
}

/// This process and those above it. A daemon that was started by an agent of its own store has a
/// marked line; to kill that would be to kill itself.
fn own_line() -> HashSet<(u32, u64)> {
    let mut line = HashSet::new();
    let mut pid = std::process::id();
    while let Some(stat) = proc::stat(pid) {
        if !line.insert((pid, stat.start_time)) || stat.parent == 0 {
            break;
        }
        pid = stat.parent;
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_ours_by_the_whole_prefix_only() {
        assert!(is_of_store("store-a.1", "store-a"));
        assert!(!is_of_store("store-ab.1", "store-a"));
        assert!(!is_of_store("store-a.", "store-a"));
        assert!(!is_of_store("store-a", "store-a"));
        assert!(!is_of_store("store.1", "store-a"));
    }

    #[tokio::test]
    async fn a_record_of_another_boot_is_gone_without_a_look() {
        let record = ProcessRecord {
            state: crate::api::session::ProcessState::Running,
            attempt: 1,
            boot_id: "an earlier one".into(),
            instance: "no-such-store.1".into(),
            shim_pid: Some(std::process::id()),
            pid: None,
            start_time: proc::stat(std::process::id()).map(|stat| stat.start_time),
            pidfd_inode: None,
            cgroup: None,
        };
        let report = clear_in(vec![record], "no-such-store".into(), None).await.unwrap();
        assert_eq!(report, Report { outcomes: vec![Outcome::Gone], ..Report::default() });
    }
}
