//! Children that nobody here started: what a dead shim leaves behind.
//!
//! The daemon is a child subreaper, so the tree of a shim that died comes to the daemon, one
//! process after the other as their parents go. This module knows which children were started
//! here, and clears away the others.
//!
//! Invariants: starting a child and noting it are one step under one lock, so a child that was
//! listed and not noted was not started here. It is killed only if nothing else can have become a
//! child of this process: none was there when it became a subreaper, and it is not the first
//! process of its pid namespace (which inherits strangers); or else if it carries the store's
//! mark. Only children that were not started here are reaped here.
//!
//! Who starts a child without `start` in a process that called [`become_subreaper`] has it
//! killed: everything that starts a process is in `runtime`, and goes through here.

use std::collections::HashSet;
use std::io;
use std::os::fd::OwnedFd;
use std::process::Child;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::proc;
use super::sys::{self, pidfd};

/// Which children are whose. One for the process, as the kernel has one list of children for it.
struct Family {
    /// Whether orphans come here at all.
    subreaper: bool,
    /// Whether each child not in `started` must be a descendant of one that was.
    closed: bool,
    started: HashSet<u32>,
}

static FAMILY: Mutex<Option<Family>> = Mutex::new(None);

fn family() -> MutexGuard<'static, Option<Family>> {
    // A panic under the lock leaves a set that is still true: at worst a pid too many.
    FAMILY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn known(family: &mut Option<Family>) -> &mut Family {
    family.get_or_insert_with(|| Family {
        subreaper: false,
        closed: false,
        started: HashSet::new(),
    })
}

/// Makes this process inherit the trees of shims that die. Call it once, before anything is
/// started: children that exist already are taken for strangers, and then only marked orphans are
/// killed.
///
/// # Errors
///
/// The kernel has no such thing; trees of dead shims are then found by their mark and cgroup alone.
pub fn become_subreaper() -> io::Result<()> {
    let mut family = family();
    sys::set_subreaper()?;
    let me = std::process::id();
    let strangers =
        proc::children(me).into_iter().any(|pid| !known(&mut family).started.contains(&pid));
    let known = known(&mut family);
    known.subreaper = true;
    known.closed = !strangers && me != 1;
    Ok(())
}

/// Starts a child and notes it.
pub(super) fn start(spawn: impl FnOnce() -> io::Result<Child>) -> io::Result<Child> {
    let mut family = family();
    let child = spawn()?;
    known(&mut family).started.insert(child.id());
    Ok(child)
}

/// Takes a child's exit status and forgets it, in one step: its number is free from then on. To be
/// called when it has exited, so that it does not wait.
pub(super) fn reap(child: &mut Child) -> io::Result<std::process::ExitStatus> {
    let mut family = family();
    let status = child.wait()?;
    known(&mut family).started.remove(&child.id());
    Ok(status)
}

/// Whether trees of dead shims come here.
pub(super) fn come_here() -> bool {
    family().as_ref().is_some_and(|family| family.subreaper)
}

/// What [`clear`] found.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Orphans {
    /// Killed in this pass: they may take a moment to go.
    pub(super) killed: Vec<u32>,
    /// Alive and not provably of this store.
    pub(super) untouched: Vec<u32>,
}

/// Kills the orphans that are provably of the store with this mark, with all below them, and reaps
/// those that are dead. To be repeated until it finds none: what is killed leaves its children.
pub(super) fn clear(is_ours: impl Fn(&str) -> bool) -> Orphans {
    let mut orphans = Orphans::default();
    let family = family();
    let Some(known) = family.as_ref().filter(|family| family.subreaper) else { return orphans };
    let me = std::process::id();
    for pid in proc::children(me) {
        if known.started.contains(&pid) {
            continue;
        }
        let Ok(held) = pidfd::open(pid) else { continue };
        // Read after the handle was taken: still a child of ours, so the handle is on that child.
        let Some(stat) = proc::stat(pid).filter(|stat| stat.parent == me) else { continue };
        if stat.is_dead() {
            pidfd::reap(&held);
            continue;
        }
        let marked = || proc::instance(pid).ok().flatten().is_some_and(|mark| is_ours(&mark));
        if known.closed || marked() {
            kill_with_descendants(pid, &held, &[me]);
            orphans.killed.push(pid);
        } else {
            orphans.untouched.push(pid);
        }
    }
    orphans
}

/// Kills a process and what is below it, parents first: a process with SIGKILL pending cannot fork,
/// so its children, read after the signal, are complete. A descendant is signalled only if its
/// parent, read while it is held, is the one it was found under, or one of `adopters`.
pub(super) fn kill_with_descendants(pid: u32, held: &OwnedFd, adopters: &[u32]) {
    if pidfd::kill(held).is_ok() {
        kill_descendants(pid, adopters);
    }
}

/// As [`kill_with_descendants`], but leaves the uppermost alone. Returns how many were met.
pub(super) fn kill_descendants(root: u32, adopters: &[u32]) -> usize {
    let below = |parent: u32| proc::children(parent).into_iter().map(move |pid| (parent, pid));
    let mut open: Vec<(u32, u32)> = below(root).collect();
    let mut met = 0;
    while let Some((parent, pid)) = open.pop() {
        let Ok(held) = pidfd::open(pid) else { continue };
        let is_below = |stat: &proc::Stat| stat.parent == parent || adopters.contains(&stat.parent);
        if proc::stat(pid).is_some_and(|stat| is_below(&stat)) && pidfd::kill(&held).is_ok() {
            met += 1;
            open.extend(below(pid));
        }
    }
    met
}
