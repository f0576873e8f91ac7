//! Numbers of processes that were used again (test catalogue D8): a record of a process that is
//! gone, and a decoy that has its number. No decoy is signalled.
//!
//! 30 decoys; 500 with `SPAWNLET_TIER` 1 or 2. The numbers are had by writing `ns_last_pid` (proc(5),
//! the kernel's own way of restoring processes), which needs root and no unsafe code, as clone3 with
//! `set_tid` would: that takes a number for certain, this one is beaten now and then by another
//! process of the machine, and is tried with the next process. Without root it says so.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, WaitOptions, getpid, set_child_subreaper, waitpid};
use spawnlet::api::session::{ProcessRecord, ProcessState};
use spawnlet::runtime::boot_id;
use spawnlet::runtime::leftovers::{Outcome, clear};

use super::{NONE, hold, token};
use crate::chaos::tier;
use crate::harness::Daemon;

const LAST_PID: &str = "/proc/sys/kernel/ns_last_pid";
/// Decoys of one look.
const AT_ONCE: usize = 25;
/// A number is had after a few tries at most, on any machine that gets anything done.
const TRIES: usize = 2000;

fn may_choose() -> bool {
    let may = std::fs::read_to_string(LAST_PID)
        .is_ok_and(|last| std::fs::write(LAST_PID, last.trim()).is_ok());
    if !may {
        eprintln!("skipped: {LAST_PID} cannot be written, which takes root");
    }
    may
}

/// Field 22 of proc_pid_stat(5).
fn start_time(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap()
}

fn inode(pid: u32) -> u64 {
    rustix::fs::fstat(hold(pid).unwrap()).unwrap().st_ino
}

fn sleeper(mark: Option<&str>) -> Child {
    let mut command = Command::new("/bin/sleep");
    command.arg(token()).env_clear().env("PATH", "/bin").stdin(Stdio::null());
    if let Some(mark) = mark {
        command.env("SPAWNLET_INSTANCE", mark);
    }
    command.spawn().unwrap()
}

/// Waits until a process that was left to this one has ended, and takes its number off the machine.
fn reap(pid: u32) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap());
    waitpid(pid, WaitOptions::empty()).unwrap();
}

fn end(child: &mut Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// Processes that are not to be touched. They die with the test.
#[derive(Default)]
struct Decoys(Vec<Child>);

impl Drop for Decoys {
    fn drop(&mut self) {
        self.0.iter_mut().for_each(end);
    }
}

impl Decoys {
    fn are_alive(&mut self) -> bool {
        self.0.iter_mut().all(|child| child.try_wait().unwrap().is_none())
    }

    /// Starts one with this number, if nobody else takes it first.
    fn take(&mut self, pid: u32, mark: Option<&str>) -> bool {
        std::fs::write(LAST_PID, (pid - 1).to_string()).unwrap();
        let mut child = sleeper(mark);
        if child.id() == pid {
            self.0.push(child);
            return true;
        }
        end(&mut child);
        false
    }
}

/// What is the same as in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The number alone.
    Number,
    /// The start time too: the same tick of 10 ms. The inode is not.
    Tick,
    /// And the nonce, of another state directory; the kernel gives no inodes.
    Nonce,
}

/// A process as a daemon of this store records it, which is gone, and a decoy in its place.
fn reused(decoys: &mut Decoys, store: &str, kind: Kind) -> ProcessRecord {
    let nonce = token();
    let instance = format!("{store}.{nonce}");
    let copied = format!("another-{store}.{nonce}");
    for _ in 0..TRIES {
        let mut child = sleeper(Some(&instance));
        let pid = child.id();
        let (started, inode) = (start_time(pid), inode(pid));
        end(&mut child);
        let mark = (kind == Kind::Nonce).then_some(copied.as_str());
        if !decoys.take(pid, mark) {
            continue;
        }
        let is_same_tick = start_time(pid) == started;
        if is_same_tick == (kind == Kind::Number) {
            end(&mut decoys.0.pop().unwrap());
            continue;
        }
        return ProcessRecord {
            state: ProcessState::Running,
            attempt: 1,
            boot_id: boot_id().unwrap(),
            instance,
            shim_pid: Some(pid),
            pid: None,
            start_time: Some(started),
            pidfd_inode: (kind != Kind::Nonce).then_some(inode),
            cgroup: None,
        };
    }
    panic!("{kind:?}: no number was had in {TRIES} tries");
}

/// Test catalogue D8.
#[tokio::test]
async fn no_decoy_with_a_recorded_number_is_signalled() {
    if !may_choose() {
        return;
    }
    let count = if tier() == 0 { 30 } else { 500 };
    let store = format!("store-{}", token());
    let kinds = [Kind::Number, Kind::Tick, Kind::Nonce];
    let mut made = 0;
    while made < count {
        let mut decoys = Decoys::default();
        let some = AT_ONCE.min(count - made);
        let records: Vec<_> = (made..made + some)
            .map(|number| reused(&mut decoys, &store, kinds[number % kinds.len()]))
            .collect();
        made += some;
        let report = clear(records.clone(), store.clone()).await.unwrap();
        assert_eq!(report.outcomes, vec![Outcome::Gone; some]);
        assert_eq!(report.killed, NONE);
        assert!(decoys.are_alive());
        // The control: whoever goes by the number would have hit each of them.
        let numbers = records.iter().filter_map(|record| record.shim_pid);
        assert!(numbers.eq(decoys.0.iter().map(Child::id)));
    }
}

/// The control of the above: what is the recorded process itself is killed.
#[tokio::test]
async fn what_carries_the_recorded_mark_is_signalled() {
    let store = format!("store-{}", token());
    let instance = format!("{store}.{}", token());
    let mut child = sleeper(Some(&instance));
    let record = ProcessRecord {
        state: ProcessState::Running,
        attempt: 1,
        boot_id: boot_id().unwrap(),
        instance,
        shim_pid: Some(child.id()),
        pid: None,
        start_time: Some(start_time(child.id())),
        pidfd_inode: None,
        cgroup: None,
    };
    let report = clear(vec![record], store).await.unwrap();
    assert_eq!((report.outcomes, report.killed), (vec![Outcome::Killed], vec![child.id()]));
    child.wait().unwrap();
}

/// Test catalogue D8, through the whole daemon: killed, its shims' numbers used again, and started.
#[test]
fn a_daemon_that_starts_again_signals_no_decoy() {
    if !may_choose() {
        return;
    }
    let mut daemon = Daemon::start();
    let mut decoys = Decoys::default();
    let rounds = if tier() == 0 { 1 } else { 5 };
    for round in 0..rounds {
        daemon.agent("plain", &["--cap=all"], serde_json::json!({}));
        let names: Vec<_> = (0..4).map(|number| format!("s{round}-{number}")).collect();
        for name in &names {
            daemon.session(name, "plain", serde_json::json!({"prompt": "[[say:begun]][[never]]"}));
            daemon.said(name, &format!("{name}-1"), "begun");
        }
        let shims: Vec<u32> = names
            .iter()
            .map(|name| {
                let session = daemon.get(&format!("sessions/{name}"));
                u32::try_from(session["status"]["process"]["shimPid"].as_u64().unwrap()).unwrap()
            })
            .collect();
        // A number is to be had once its process is reaped, which is for this process to do then.
        set_child_subreaper(Some(getpid())).unwrap();
        let home = daemon.kill9();
        for shim in &shims {
            reap(*shim);
        }
        set_child_subreaper(None).unwrap();
        home.no_process();
        let before = decoys.0.len();
        for shim in shims {
            let _ = (0..TRIES).find(|_| decoys.take(shim, None));
        }
        let had = decoys.0.len() - before;
        assert!(had > 0, "no number was had");
        daemon = home.serve(&[]);
        assert!(decoys.are_alive(), "round {round}");
        for name in &names {
            daemon.ok(&["delete", "session", name, "--wait"]);
        }
        assert!(decoys.are_alive(), "round {round}");
    }
}
