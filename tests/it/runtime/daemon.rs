//! What becomes of trees when the daemon dies, or its shims do. The daemon is this test executable
//! once more, told by a variable to hold processes: so it can be killed, and be a subreaper.

use std::os::fd::OwnedFd;
use std::process::Stdio;

use rustix::process::{Signal, pidfd_send_signal};
use spawnlet::api::session::{ProcessRecord, ProcessState};
use spawnlet::runtime::{Launcher, Options, ProcessEvent, become_subreaper, boot_id, cgroup};
use tokio::io::{AsyncBufReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::{
    DEADLINE, ESCAPES, NONE, bash, gone, hold, is_zombie_of, lines, token, until_empty, with_token,
};

/// `PREFIX TOKEN`, and `cgroup` behind it where cgroups are wanted.
const HOLDER: &str = "SPAWNLET_TEST_HOLDER";

/// The other daemon's program; nothing when it runs as a test.
#[tokio::test]
async fn holder() {
    let Ok(config) = std::env::var(HOLDER) else { return };
    let mut words = config.split(' ').map(str::to_owned);
    let (prefix, token) = (words.next().unwrap(), words.next().unwrap());
    become_subreaper().unwrap();
    let cgroup_base = words.next().and_then(|_| cgroup::detect());
    let launcher = Launcher::new(Options { cgroup_base, ..options(&prefix) });
    let mut held = Vec::new();
    for style in ESCAPES {
        let spec = bash(&launcher, &style.script(&token, "exit 0"));
        let instance = spec.instance.clone();
        let mut process = launcher.spawn(spec).await.unwrap();
        let identity = process.identity().clone();
        let mut events = process.events().unwrap();
        process.open_gate().unwrap();
        let ProcessEvent::Started { pid } = super::next(&mut events).await else {
            panic!("{style:?} did not start");
        };
        let mut stdout = BufReader::new(process.take_stdout().unwrap());
        lines(&mut stdout, style.children()).await;
        let record = ProcessRecord {
            state: ProcessState::Running,
            attempt: 1,
            boot_id: boot_id().unwrap(),
            instance,
            shim_pid: Some(identity.shim_pid),
            pid: Some(pid),
            start_time: Some(identity.start_time),
            pidfd_inode: identity.pidfd_inode,
            cgroup: identity.cgroup.map(|path| path.to_str().unwrap().to_owned()),
        };
        println!("\nheld {}", serde_json::to_string(&record).unwrap());
        held.push((process, events, stdout));
    }
    println!("\nup");
    for (_, events, _) in &mut held {
        let seen = until_empty(events).await;
        println!("\nempty {}", seen.contains(&ProcessEvent::ShimGone));
    }
    // Until the test has looked.
    let mut line = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut line).await.unwrap();
}

/// Of a store without cgroups.
pub(super) fn options(prefix: &str) -> Options {
    Options {
        shim_path: env!("CARGO_BIN_EXE_spawnlet-shim").into(),
        instance_prefix: prefix.to_owned(),
        cgroup_base: None,
    }
}

/// A daemon that holds the six escapes.
pub(super) struct Holder {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    _stdin: ChildStdin,
    pub(super) prefix: String,
    pub(super) token: String,
    pub(super) records: Vec<ProcessRecord>,
}

impl Holder {
    pub(super) async fn start(with_cgroup: bool) -> Self {
        let token = token();
        let prefix = format!("held-{token}");
        let cgroup = if with_cgroup { " cgroup" } else { "" };
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "runtime::daemon::holder", "--nocapture"])
            .env(HOLDER, format!("{prefix} {token}{cgroup}"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let _stdin = child.stdin.take().unwrap();
        let mut holder = Self { child, lines, _stdin, prefix, token, records: Vec::new() };
        loop {
            let line = holder.line().await;
            if let Some(record) = line.strip_prefix("held ") {
                holder.records.push(serde_json::from_str(record).unwrap());
            } else if line == "up" {
                return holder;
            }
        }
    }

    async fn line(&mut self) -> String {
        let line = tokio::time::timeout(DEADLINE, self.lines.next_line()).await;
        line.expect("the daemon is silent").unwrap().expect("the daemon ended")
    }

    /// Handles on all processes of its trees: agents, children, shims.
    pub(super) fn tree(&self) -> Vec<OwnedFd> {
        let shims = self.records.iter().filter_map(|record| record.shim_pid);
        with_token(&self.token).into_iter().chain(shims).filter_map(hold).collect()
    }

    pub(super) fn shims(&self) -> Vec<OwnedFd> {
        self.records.iter().filter_map(|record| hold(record.shim_pid?)).collect()
    }

    pub(super) async fn kill(&mut self) {
        self.child.kill().await.unwrap();
    }
}

pub(super) fn kill_all(pidfds: &[OwnedFd], signal: Signal) {
    for pidfd in pidfds {
        let _ = pidfd_send_signal(pidfd, signal);
    }
}

#[tokio::test]
async fn no_escape_survives_its_daemon() {
    let mut holder = Holder::start(false).await;
    let tree = holder.tree();
    assert!(tree.len() > ESCAPES.iter().map(|style| style.children()).sum());
    holder.kill().await;
    for process in tree {
        gone(process).await;
    }
    assert_eq!(with_token(&holder.token), NONE);
}

#[tokio::test]
async fn the_daemon_clears_the_trees_of_dead_shims() {
    let mut holder = Holder::start(false).await;
    let tree = holder.tree();
    // Stopped first, so that none can end its tree before it dies.
    let shims = holder.shims();
    assert_eq!(shims.len(), ESCAPES.len());
    kill_all(&shims, Signal::STOP);
    kill_all(&shims, Signal::KILL);
    for _ in ESCAPES {
        loop {
            match holder.line().await.strip_prefix("empty ") {
                Some(shim_gone) => break assert_eq!(shim_gone, "true"),
                None => continue,
            }
        }
    }
    for process in tree {
        gone(process).await;
    }
    assert_eq!(with_token(&holder.token), NONE);
    let daemon = holder.child.id().unwrap();
    let children = std::fs::read_to_string(format!("/proc/{daemon}/task/{daemon}/children"));
    let children: Vec<u32> =
        children.unwrap().split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(children.iter().filter(|pid| is_zombie_of(daemon)(pid)).count(), 0, "zombies");
    assert_eq!(children, NONE);
}
