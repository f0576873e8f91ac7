//! `spawnlet prompt` on a session whose agent cannot be started: it says why, and does not wait for
//! what no time alone mends.

use std::path::PathBuf;

use serde_json::json;

use crate::harness::{Daemon, fakeagent};

/// What the command must have said, and how it must have ended.
#[track_caller]
fn gave_up(ran: &crate::harness::Ran, turn: &str, why: &[&str]) {
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let start = format!("error: turn/{turn} waits, and no time alone mends it: ");
    assert!(ran.err.contains(&start), "{ran:?}");
    for text in why.iter().chain(&["takes it back", "--wait"]) {
        assert!(ran.err.contains(text), "{text:?} is not in {ran:?}");
    }
}

/// A session whose agent is not there yet, and the directory that its program has to come to.
fn session_of_a_missing_agent() -> (Daemon, PathBuf) {
    let daemon = Daemon::start();
    let bin = daemon.path("work");
    daemon.agent_of("late", &["late-agent".to_owned()], json!({"path": [bin]}));
    daemon.session("one", "late", json!({}));
    (daemon, bin)
}

#[test]
fn a_prompt_for_an_agent_that_is_not_there_says_so_and_leaves_the_turn() {
    let (daemon, bin) = session_of_a_missing_agent();
    let ran = daemon.cli(&["prompt", "one", "hello"]);
    gave_up(
        &ran,
        "one-1",
        &["AgentNotInstalled: ", "late-agent", "goes on by itself", "cancel one"],
    );
    assert!(ran.err.contains("waiting: Pending AgentNotInstalled"), "it is told before: {ran:?}");
    assert_eq!(daemon.get("turns/one-1")["status"]["phase"], "Pending");
    // What is missing comes, and the turn goes on.
    std::os::unix::fs::symlink(fakeagent(), bin.join("late-agent")).unwrap();
    daemon.ok(&["agents", "check", "late"]);
    assert_eq!(daemon.ended("one-1")["status"]["phase"], "Completed");
    let ran = daemon.cli(&["prompt", "--agent", "nobody", "hello"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("AgentNotFound: there is no Agent"), "{ran:?}");
}

#[test]
fn a_prompt_with_wait_waits_for_what_is_missing() {
    let (daemon, bin) = session_of_a_missing_agent();
    let waiting = daemon.follow(&["prompt", "one", "[[say:here I am]]", "--wait"]);
    daemon.until("sessions/one", |one| one["status"]["queuedTurns"] == 1);
    std::os::unix::fs::symlink(fakeagent(), bin.join("late-agent")).unwrap();
    daemon.ok(&["agents", "check", "late"]);
    waiting.line_with("here I am");
}

#[test]
fn a_prompt_is_not_waited_for_once_starts_have_failed_too_often() {
    let daemon = Daemon::start();
    daemon.agent("locked", &["--auth=key"], json!({}));
    daemon.session("shut", "locked", json!({}));
    let ran = daemon.cli(&["prompt", "shut", "hello"]);
    gave_up(
        &ran,
        "shut-1",
        &["CrashLoopBackOff: AuthRequired: ", "agents login locked", "next prompt"],
    );

    daemon.agent("dies", &["--exit=start=3", "--stderr=no disk"], json!({}));
    daemon.session("one", "dies", json!({}));
    let ran = daemon.cli(&["prompt", "one", "hello"]);
    gave_up(&ran, "one-1", &["CrashLoopBackOff: AgentExited: ", "no disk"]);
    let starts = daemon.logged("dies").len();
    // The next prompt tries again before it gives up: what it finds is no answer to it.
    let ran = daemon.cli(&["prompt", "one", "again"]);
    gave_up(&ran, "one-2", &["CrashLoopBackOff: AgentExited: "]);
    assert!(daemon.logged("dies").len() > starts, "it was not tried again");
    assert_eq!(daemon.get("turns/one-1")["status"]["phase"], "Pending");
    let out = daemon.ok(&["cancel", "one"]);
    assert_eq!(out.lines().count(), 2, "{out}");
    daemon.ended("one-2");
}
