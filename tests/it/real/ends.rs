//! Every end of a session, in a tool call with children in the background: afterwards the record
//! tells the truth, and no process is left.
//!
//! Judged by the marks that the daemon puts into the environment of what it starts, and by handles
//! on the very processes that were seen to run, those of the command included.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal as Sig, pidfd_open};
use serde_json::{Value, json};

use super::rig::{DEADLINE, Rig, Signal, signal_process};
use super::{agents, assert_answers, traits};

/// A session with a command in its turn, and handles on all of its processes.
struct Busy {
    name: String,
    /// Fields of its spec.
    spec: String,
    agent: u64,
    shim: u64,
    tree: Vec<(String, OwnedFd)>,
}

/// A handle on a process, unless it has gone.
fn hold(pid: u64) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid.try_into().unwrap())?, PidfdFlags::empty()).ok()
}

/// Waits until a process has ended.
fn ended(what: &str, handle: &OwnedFd) {
    let limit = Timespec { tv_sec: DEADLINE.as_secs().try_into().unwrap(), tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(handle, PollFlags::IN)], Some(&limit)).unwrap();
    assert_eq!(ready, 1, "{what} has not ended");
}

/// A session's manifest.
fn manifest(rig: &Rig, name: &str, spec: &str) -> String {
    format!(
        "apiVersion: spawnlet.dev/v1alpha1\nkind: Session\nmetadata: {{name: {name}}}\n\
        spec:\n  cwd: {}\n{spec}",
        rig.work().display()
    )
}

impl Busy {
    /// A session of its own whose turn runs a command; told when that runs.
    async fn begin(rig: &Rig, agent: &str, name: &str, more: &str) -> Self {
        let last = "sleep 300";
        Self::begin_command(rig, agent, name, more, last).await
    }

    /// The same; `last` is what the command does while its children run.
    async fn begin_command(rig: &Rig, agent: &str, name: &str, more: &str, last: &str) -> Self {
        let path = rig.work().join(format!("signal-{name}"));
        let signal = Signal::new(path.clone());
        // One child in the background, and one that has left the command's session as well.
        let tool = format!(
            "[[tool:run setsid sleep 301 > /dev/null 2>&1 & sleep 302 > /dev/null 2>&1 & \
            echo up > {}; {last}]]",
            path.display()
        );
        let spec = format!("  agent: {agent}\n  prompt: {}\n{more}", json!(tool));
        rig.apply(&manifest(rig, name, &spec)).await;
        signal.wait().await;
        let record = rig.record(&format!("session/{name}")).await;
        let process = &record["status"]["process"];
        let (agent, shim) =
            (process["pid"].as_u64().unwrap(), process["shimPid"].as_u64().unwrap());
        let tree = rig.tree(name);
        // The control of all that follows: the scan does see the agent and its children.
        let sleepers = tree.iter().filter(|(_, line)| line.contains("sleep 30")).count();
        assert!(sleepers >= 1 && tree.iter().any(|(pid, _)| *pid == agent), "{tree:?}");
        let tree = tree.into_iter().chain([(shim, format!("the shim of {name}"))]);
        let tree = tree.filter_map(|(pid, line)| Some((line, hold(pid)?))).collect();
        Self { name: name.to_owned(), spec, agent, shim, tree }
    }

    fn session(&self) -> String {
        format!("session/{}", self.name)
    }

    /// Its one turn.
    fn turn(&self) -> String {
        format!("turn/{}-1", self.name)
    }

    /// Adds to the session's spec, or changes what it says.
    async fn change(&self, rig: &Rig, more: &str) {
        rig.apply(&manifest(rig, &self.name, &format!("{}{more}", self.spec))).await;
    }

    /// Signals the agent itself, as the daemon's record has it.
    fn signal_agent(&self, signal: Sig) {
        signal_process(self.agent, signal);
    }

    fn signal_shim(&self, signal: Sig) {
        signal_process(self.shim, signal);
    }

    /// All that is there of the session's processes.
    fn left(&self, rig: &Rig) -> Vec<String> {
        rig.tree(&self.name).into_iter().map(|(_, line)| line).collect()
    }

    /// No process is left of the session, not of its command and not of its shim.
    fn leaves_nothing(self, rig: &Rig) {
        assert_eq!(self.left(rig), [""; 0], "left of {}", self.name);
        for (line, handle) in self.tree {
            ended(&line, &handle);
        }
    }

    /// The turn and the session have ended as told, and no process is left.
    async fn ended_as(self, rig: &Rig, turn: (&str, Value), session: (&str, Value)) {
        rig.phase(&self.session(), session.0).await;
        assert_eq!(self.left(rig), [""; 0], "left of {}", self.name);
        let record = rig.record(&self.session()).await;
        assert_eq!(record["status"]["reason"], session.1, "{record:#}");
        assert!(record["status"]["process"].is_null(), "{record:#}");
        let record = rig.record(&self.turn()).await;
        let status = &record["status"];
        assert_eq!((&status["phase"], &status["code"]), (&json!(turn.0), &turn.1), "{record:#}");
        self.leaves_nothing(rig);
    }
}

#[tokio::test]
async fn every_end_that_somebody_asks_for_leaves_no_process() {
    for agent in agents() {
        let rig = Rig::start(&agent, "").await;
        let stopped = Busy::begin(&rig, &agent, "stopped", "").await;
        rig.cli(&["stop", "stopped"]).await;
        let turn = ("Cancelled", json!("TURN_CANCELLED"));
        stopped.ended_as(&rig, turn, ("Stopped", json!("Cancelled"))).await;

        let deleted = Busy::begin(&rig, &agent, "deleted", "").await;
        rig.cli(&["delete", &deleted.session(), "--wait", "--timeout", "60s"]).await;
        deleted.leaves_nothing(&rig);
        let left = rig.cli(&["get", "turns", "-o", "name"]).await;
        assert!(!left.contains("deleted"), "{left}");

        // The turn is cancelled and its session goes on: its agent ends the command, or what is
        // left of that goes with the session.
        let cancelled = Busy::begin(&rig, &agent, "cancelled", "").await;
        rig.cli(&["cancel", "cancelled"]).await;
        rig.phase(&cancelled.turn(), "Cancelled").await;
        rig.phase(&cancelled.session(), "Idle").await;
        if traits(&agent).ends_commands {
            for (line, handle) in &cancelled.tree {
                if line.starts_with("sleep 300") {
                    ended(line, handle);
                }
            }
        }
        let answer = rig.cli(&["prompt", "cancelled", "and now"]).await;
        assert_answers(&answer, "and now");
        rig.cli(&["stop", "cancelled"]).await;
        let turn = ("Cancelled", json!("TURN_CANCELLED"));
        cancelled.ended_as(&rig, turn, ("Stopped", json!("Cancelled"))).await;

        // Its parent's end is its own.
        let work = rig.work();
        let arguments = ["token", "create", "--session", "me", "--permissions", "approve-all"];
        let made = [&arguments[..], &["--cwd", work.to_str().unwrap()]].concat();
        rig.cli(&made).await;
        rig.phase("session/me", "Idle").await;
        let child = Busy::begin(&rig, &agent, "child", "  parent: me\n").await;
        rig.cli(&["delete", "session/me", "--wait", "--timeout", "60s"]).await;
        assert_eq!(rig.processes(), [""; 0], "left by the parent's end");
        child.leaves_nothing(&rig);
        rig.end().await;
    }
}

#[tokio::test]
async fn every_end_by_a_clock_leaves_no_process() {
    for agent in agents() {
        let rig = Rig::start(&agent, "").await;
        // The clocks are shortened in the tool call: how long an agent takes until then differs.
        let old = Busy::begin(&rig, &agent, "old", "").await;
        old.change(&rig, "  ttl: 1s\n").await;
        let turn = ("Expired", json!("TTL_EXPIRED"));
        old.ended_as(&rig, turn, ("Stopped", json!("TtlExpired"))).await;

        let silent = Busy::begin(&rig, &agent, "silent", "").await;
        silent.change(&rig, "  turnInactivityTimeout: 1s\n  toolInactivityTimeout: 1s\n").await;
        let turn = ("Expired", json!("TURN_INACTIVITY_TIMEOUT"));
        silent.ended_as(&rig, turn, ("Stopped", json!("Inactivity"))).await;

        // The command ends, its children need not: the agent's business until its process goes.
        let idle = "  idleTimeout: 1s\n";
        let idle = Busy::begin_command(&rig, &agent, "idle", idle, "sleep 3").await;
        rig.phase(&idle.session(), "Hibernated").await;
        let turn = rig.record(&idle.turn()).await;
        assert_eq!(turn["status"]["phase"], "Completed", "{turn:#}");
        idle.leaves_nothing(&rig);
        rig.end().await;
    }
}

#[tokio::test]
async fn every_end_by_a_crash_or_by_the_daemons_end_leaves_no_process() {
    for agent in agents() {
        let mut rig = Rig::start(&agent, "").await;
        let crashed = Busy::begin(&rig, &agent, "crashed", "").await;
        crashed.signal_agent(Sig::KILL);
        rig.phase(&crashed.turn(), "Failed").await;
        rig.phase(&crashed.session(), "Hibernated").await;
        let turn = rig.record(&crashed.turn()).await;
        assert_eq!(turn["status"]["code"], "AGENT_PROCESS_INVALIDATED", "{turn:#}");
        crashed.leaves_nothing(&rig);

        // SIGTERM.
        let stopped = Busy::begin(&rig, &agent, "stopped", "").await;
        rig.stop_and_restart().await;
        interrupted(&rig, stopped, "APP_SHUTDOWN").await;

        // SIGKILL: its shims see to it, before anything is started again.
        let killed = Busy::begin(&rig, &agent, "killed", "").await;
        rig.crash().await;
        for (line, handle) in &killed.tree {
            ended(line, handle);
        }
        assert_eq!(rig.processes(), [""; 0], "left by the daemon");
        rig.restart().await;
        interrupted(&rig, killed, "APP_RESTARTED").await;

        // SIGKILL to daemon and shim at once: only the next daemon can.
        let orphaned = Busy::begin(&rig, &agent, "orphaned", "").await;
        orphaned.signal_shim(Sig::STOP);
        rig.crash().await;
        orphaned.signal_shim(Sig::KILL);
        assert!(!orphaned.left(&rig).is_empty(), "nothing was left to find");
        rig.restart().await;
        interrupted(&rig, orphaned, "APP_RESTARTED").await;
        rig.end().await;
    }
}

/// The turn was interrupted for this reason, and nothing is left of it.
async fn interrupted(rig: &Rig, busy: Busy, code: &str) {
    rig.phase(&busy.turn(), "Interrupted").await;
    let turn = rig.record(&busy.turn()).await;
    let status = &turn["status"];
    assert_eq!((&status["code"], &status["delivery"]), (&json!(code), &json!("Sent")), "{turn:#}");
    rig.phase(&busy.session(), "Hibernated").await;
    busy.leaves_nothing(rig);
}
