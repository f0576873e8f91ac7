//! What a daemon finds at its start: trees of a daemon that died together with its shims, and
//! processes that only look like them.

use std::process::{Child, Command, Stdio};

use rustix::process::Signal;
use spawnlet::api::session::{ProcessRecord, ProcessState};
use spawnlet::runtime::leftovers::{Outcome, clear, clear_in, sweep};
use spawnlet::runtime::{boot_id, cgroup};

use super::daemon::{Holder, kill_all, options};
use super::{ESCAPES, Escape, NONE, gone, hold, token, with_token};

/// A process that is not to be touched. It dies with the test.
struct Decoy(Child);

impl Decoy {
    fn start(mark: Option<&str>) -> Self {
        let mut command = Command::new("/bin/sleep");
        command.arg(token()).env_clear().stdin(Stdio::null());
        // An emptied environment is a suspicion of its own.
        command.env("DECOY", "1");
        if let Some(mark) = mark {
            command.env("SPAWNLET_INSTANCE", mark);
        }
        Self(command.spawn().unwrap())
    }

    fn is_alive(&mut self) -> bool {
        self.0.try_wait().unwrap().is_none()
    }

    fn start_time(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap();
        stat.rsplit(')').next().unwrap().split_whitespace().nth(19).unwrap().parse().unwrap()
    }

    /// A record that points at it.
    fn record(&self, instance: &str) -> ProcessRecord {
        ProcessRecord {
            state: ProcessState::Running,
            attempt: 1,
            boot_id: boot_id().unwrap(),
            instance: instance.to_owned(),
            shim_pid: Some(self.0.id()),
            pid: None,
            start_time: Some(self.start_time()),
            pidfd_inode: None,
            cgroup: None,
        }
    }
}

impl Drop for Decoy {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn what_a_killed_daemon_and_its_shims_left_is_killed_at_the_next_start() {
    let mut holder = Holder::start(false).await;
    let tree = holder.tree();
    let shims = holder.shims();
    kill_all(&shims, Signal::STOP);
    holder.kill().await;
    kill_all(&shims, Signal::KILL);
    // As long as one of them dies, its children are known by it.
    for shim in shims {
        gone(shim).await;
    }
    let mut decoys = [
        Decoy::start(None),
        Decoy::start(Some(&format!("{}0.1", holder.prefix))),
        Decoy::start(Some(&holder.prefix)),
    ];
    let report = clear_in(holder.records.clone(), holder.prefix.clone(), None).await.unwrap();
    let marked = ESCAPES.iter().zip(&report.outcomes);
    let marked = marked.filter(|(style, _)| !matches!(style, Escape::EmptyEnvironment));
    assert!(marked.into_iter().all(|(_, outcome)| *outcome == Outcome::Killed), "{report:?}");
    assert!(decoys.iter_mut().all(Decoy::is_alive));
    // Two children emptied their environment and lost their parent: reported, not touched.
    let left = with_token(&holder.token);
    let reported: Vec<u32> = report.untouched.iter().map(|untouched| untouched.pid).collect();
    assert_eq!(left.len(), Escape::EmptyEnvironment.children());
    assert!(left.iter().all(|pid| reported.contains(pid)), "{left:?} {report:?}");
    kill_all(&left.into_iter().filter_map(hold).collect::<Vec<_>>(), Signal::KILL);
    for process in tree {
        gone(process).await;
    }
    // The second start finds nothing.
    let report = clear_in(holder.records.clone(), holder.prefix.clone(), None).await.unwrap();
    assert_eq!(report.outcomes, [Outcome::Gone; ESCAPES.len()]);
    assert_eq!(report.killed, NONE);
}

#[tokio::test]
async fn a_stopped_shim_of_a_killed_daemon_is_let_finish_its_work() {
    let mut holder = Holder::start(false).await;
    let tree = holder.tree();
    kill_all(&holder.shims(), Signal::STOP);
    holder.kill().await;
    let report = clear_in(holder.records.clone(), holder.prefix.clone(), None).await.unwrap();
    assert_eq!(report.outcomes, [Outcome::Killed; ESCAPES.len()]);
    for process in tree {
        gone(process).await;
    }
    assert_eq!(with_token(&holder.token), NONE);
}

#[tokio::test]
async fn a_recorded_cgroup_leaves_no_way_out() {
    if cgroup::detect().is_none() {
        eprintln!("skipped: no writable cgroup v2 directory");
        return;
    }
    // Found by its record, whatever today's directory is, or by its name alone.
    for recorded in [true, false] {
        let mut holder = Holder::start(true).await;
        let tree = holder.tree();
        kill_all(&holder.shims(), Signal::STOP);
        holder.kill().await;
        kill_all(&holder.shims(), Signal::KILL);
        let (records, cgroup_base) = match recorded {
            true => (holder.records.clone(), None),
            false => (Vec::new(), cgroup::detect()),
        };
        let prefix = holder.prefix.clone();
        let report = clear_in(records.clone(), prefix, cgroup_base).await.unwrap();
        assert_eq!(report.outcomes, vec![Outcome::Killed; records.len()]);
        for process in tree {
            gone(process).await;
        }
        assert_eq!(with_token(&holder.token), NONE);
        for record in &holder.records {
            assert!(!std::path::Path::new(record.cgroup.as_deref().unwrap()).exists());
        }
    }
}

#[tokio::test]
async fn a_number_that_was_used_again_is_not_signalled() {
    let store = format!("store-{}", token());
    let mark = format!("{store}.1");
    let mut stranger = Decoy::start(None);
    let mut other_store = Decoy::start(Some("another-store.1"));
    let mut records = vec![stranger.record(&mark), other_store.record(&mark)];
    // The same tick of the start time, but another inode of the pidfd.
    records.push(ProcessRecord { pidfd_inode: Some(1), ..stranger.record(&mark) });
    // Another start time, although inode and number would agree.
    let shifted = stranger.record(&mark);
    records.push(ProcessRecord { start_time: shifted.start_time.map(|time| time + 1), ..shifted });
    let report = clear(records, store).await.unwrap();
    assert_eq!(report.outcomes, [Outcome::Gone; 4]);
    assert_eq!(report.killed, NONE);
    assert!(stranger.is_alive() && other_store.is_alive());
}

#[tokio::test]
async fn the_backstop_kills_marks_that_nobody_holds_and_no_others() {
    let store = format!("store-{}", token());
    let mut live = Decoy::start(Some(&format!("{store}.live")));
    let mut stale = Decoy::start(Some(&format!("{store}.stale")));
    let mut stranger = Decoy::start(Some("another-store.stale"));
    let is_live = |mark: &str| mark == format!("{store}.live");
    let report = sweep(&options(&store), is_live).unwrap();
    assert_eq!(report.killed, [stale.0.id()]);
    gone(hold(stale.0.id()).unwrap()).await;
    assert!(live.is_alive() && stranger.is_alive() && !stale.is_alive());
    let report = sweep(&options(&store), is_live).unwrap();
    assert_eq!(report.killed, NONE);
}
