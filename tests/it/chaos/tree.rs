//! What of a daemon's agents is alive, by two signs that do not depend on its records: the store's
//! mark in a process's environment, and the test's directory in its command line (which a child
//! with an emptied environment keeps).

use std::collections::BTreeSet;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A live process of an agent's tree, or a shim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Sighting {
    pub(crate) pid: u32,
    /// Clock ticks since boot (proc_pid_stat(5), field 22).
    pub(crate) start_time: u64,
    /// `STORE.SESSION.ATTEMPT`, if it has one.
    pub(crate) mark: Option<String>,
    pub(crate) is_shim: bool,
}

impl Sighting {
    /// The uid of the session that it is of.
    pub(crate) fn session(&self) -> Option<&str> {
        self.mark.as_deref().and_then(|mark| mark.split('.').nth(1))
    }

    pub(crate) fn text(&self) -> String {
        let mark = self.mark.as_deref().unwrap_or("without a mark");
        let kind = if self.is_shim { "shim" } else { "process" };
        format!("{kind} {} ({mark})", self.pid)
    }
}

/// State, parent and start time of a process.
pub(crate) fn stat(pid: u32) -> Option<(char, u32, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    Some((state, parent, fields.nth(17)?.parse().ok()?))
}

fn pids() -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Everything alive that belongs to a store's agents. Daemons are left out.
pub(crate) fn sightings(store_id: &str, directory: &str) -> BTreeSet<Sighting> {
    pids().into_iter().filter_map(|pid| sight(pid, store_id, directory)).collect()
}

fn sight(pid: u32, store_id: &str, directory: &str) -> Option<Sighting> {
    let command = std::fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let program = String::from_utf8_lossy(command.split(|byte| *byte == 0).next()?).into_owned();
    let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
    let prefix = format!("SPAWNLET_INSTANCE={store_id}.");
    let mark = environment
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .find(|variable| variable.starts_with(&prefix))
        .and_then(|variable| Some(variable.split_once('=')?.1.to_owned()));
    let is_named =
        String::from_utf8_lossy(&command).contains(directory) && program.ends_with("/fakeagent");
    if mark.is_none() && !is_named {
        return None;
    }
    // Last: a process that has exited since is not alive.
    let (_, _, start_time) = stat(pid).filter(|(state, _, _)| !"ZX".contains(*state))?;
    Some(Sighting { pid, start_time, mark, is_shim: program.ends_with("spawnlet-shim") })
}

pub(crate) fn hold(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.try_into().ok()?)?, PidfdFlags::empty()).ok()
}

/// Waits until nothing is alive; how long that took, or what is left at the deadline.
pub(crate) fn wait_until_empty(
    store_id: &str,
    directory: &str,
    since: Instant,
    limit: Duration,
) -> Result<Duration, BTreeSet<Sighting>> {
    loop {
        let alive = sightings(store_id, directory);
        if alive.is_empty() {
            return Ok(since.elapsed());
        }
        for held in alive.iter().filter_map(|sighting| hold(sighting.pid)) {
            let left = limit.saturating_sub(since.elapsed());
            let left = Timespec {
                tv_sec: left.as_secs().try_into().expect("seconds"),
                tv_nsec: left.subsec_nanos().into(),
            };
            let _ = poll(&mut [PollFd::new(&held, PollFlags::IN)], Some(&left));
        }
        if since.elapsed() >= limit {
            let alive = sightings(store_id, directory);
            return if alive.is_empty() { Ok(since.elapsed()) } else { Err(alive) };
        }
    }
}

/// Children of a process that have ended and were not waited for.
pub(crate) fn zombies(parent: u32) -> Vec<u32> {
    let is_zombie = |pid: &u32| matches!(stat(*pid), Some(('Z', of, _)) if of == parent);
    pids().into_iter().filter(is_zombie).collect()
}
