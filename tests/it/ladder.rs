//! The stop ladder's times on real processes that do not make it easy (test catalogue D5).
//!
//! Judged by what the daemon reports: each rung is a step of a pass, with the time of that pass.

use std::time::Instant;

use serde_json::{Value, json};
use spawnlet::api::Time;

use crate::chaos::{is_short, tier};
use crate::harness::{DEADLINE, Daemon};

/// How often each kind of agent is stopped, two at a time; `SPAWNLET_TIER` brings it to 25 and more,
/// but for `SPAWNLET_SHORT`.
fn rounds() -> usize {
    match (tier(), is_short()) {
        (0, _) => 1,
        (_, true) => 2,
        (_, false) => 13,
    }
}

/// The pauses of the ladder in milliseconds, as the agents below have them.
const CANCEL: i64 = 1000;
const CLOSE: i64 = 300;
const EOF: i64 = 1000;
const TERM: i64 = 250;
/// How late a rung may be: a busy machine, and the time of a pass.
const LATE: i64 = 500;
/// What a kill may take before the tree is killed again.
const KILL: i64 = 2000;

fn millis(value: &Value) -> i64 {
    let time: Time = serde_json::from_value(value.clone()).unwrap();
    time.as_millis()
}

/// The rungs that were taken of a session's process, and when, once there are so many.
fn rungs(daemon: &Daemon, session: &str, count: usize) -> Vec<(String, i64)> {
    let begun = Instant::now();
    loop {
        let mut reports = daemon.get("reconcilereports")["items"].as_array().unwrap().clone();
        reports.retain(|report| report["object"]["name"] == session);
        reports.sort_by_key(|report| report["sequence"].as_u64());
        let mut found = Vec::new();
        for report in &reports {
            for step in report["steps"].as_array().into_iter().flatten() {
                let name = step["name"].as_str().unwrap();
                if let Some(rung) = name.strip_prefix("Stop(").and_then(|s| s.strip_suffix(')')) {
                    found.push((rung.to_owned(), millis(&report["startedAt"])));
                }
            }
        }
        if found.len() >= count {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "{session}: {found:?} of {reports:#?}");
        std::thread::yield_now();
    }
}

/// Each rung comes its pause after the one before; `close` may be answered at once.
fn keeps_times(what: &str, rungs: &[(String, i64)]) {
    for pair in rungs.windows(2) {
        let (least, most) = match pair[0].0.as_str() {
            "Cancel" => (CANCEL, CANCEL),
            "Close" => (0, CLOSE),
            "Eof" => (EOF, EOF),
            "Term" => (TERM, TERM),
            other => panic!("{what}: nothing comes after {other}: {rungs:?}"),
        };
        let passed = pair[1].1 - pair[0].1;
        assert!(passed >= least - 20 && passed <= most + LATE, "{what}: {passed} ms in {rungs:?}");
    }
}

fn names(rungs: &[(String, i64)]) -> Vec<&str> {
    rungs.iter().map(|(name, _)| name.as_str()).collect()
}

/// A session whose turn has said `begun`; it and its turn.
fn begun(daemon: &Daemon, agent: &str, round: usize, prompt: &str) -> (String, String) {
    let session = format!("{agent}-{round}");
    daemon.session(&session, agent, json!({}));
    let turn = daemon.turn(&session, prompt);
    daemon.said(&session, &turn, "begun");
    (session, turn)
}

fn cancel(daemon: &Daemon, session: &str) {
    let patch = json!({"spec": {"desiredState": "cancelled"}});
    let answer = daemon.patch(&format!("sessions/{session}"), &patch);
    assert_eq!(answer.status, 200, "{}", answer.text());
}

/// Test catalogue D5: SIGTERM ignored; stopped by SIGSTOP; standard output held open by a child;
/// standard output closed by an agent that lives.
#[test]
fn agents_that_do_not_go_are_stopped_in_the_ladders_times() {
    let daemon = Daemon::start();
    let stop = json!({"stop": {"cancel": "1s", "close": "300ms", "eof": "1s", "term": "250ms"}});
    let stays = ["--cap=all", "--ignore-term", "--on-eof=ignore", "--on-cancel=ignore"];
    daemon.agent("ignores", &stays, stop.clone());
    daemon.agent("stopped", &["--cap=all"], stop.clone());
    daemon.agent("holds", &["--cap=all"], stop.clone());
    daemon.agent("closes", &stays, stop);
    for round in (0..rounds() * 2).step_by(2) {
        let pair = [round, round + 1];
        let cancelled: Vec<_> = pair
            .iter()
            .flat_map(|&round| {
                [
                    begun(&daemon, "ignores", round, "[[say:begun]][[never]]").0,
                    begun(&daemon, "stopped", round, "[[say:begun]][[stop-self]][[never]]").0,
                ]
            })
            .collect();
        let by_themselves: Vec<_> = pair
            .iter()
            .flat_map(|&round| {
                [
                    begun(&daemon, "holds", round, "[[escape:hold]][[say:begun]][[exit:0]]"),
                    begun(&daemon, "closes", round, "[[say:begun]][[close-stdout]][[never]]"),
                ]
            })
            .collect();
        for session in &cancelled {
            cancel(&daemon, session);
        }
        for session in &cancelled {
            let ended = daemon.phase(session, "Stopped");
            let is_deaf = session.starts_with("ignores");
            let found = rungs(&daemon, session, if is_deaf { 5 } else { 4 });
            let all = ["Cancel", "Close", "Eof", "Term", "Kill"];
            assert_eq!(names(&found), all[..found.len()], "{session}");
            keeps_times(session, &found);
            let finished = millis(&ended["status"]["finishedAt"]);
            assert!(finished - found.last().unwrap().1 <= KILL, "{session}: {found:?} {finished}");
        }
        for (session, turn) in &by_themselves {
            let ended = daemon.ended(turn);
            assert_eq!(ended["status"]["code"], "AGENT_PROCESS_INVALIDATED", "{ended:#}");
            let sent = millis(&ended["status"]["dispatchedAt"]);
            let finished = millis(&ended["status"]["finishedAt"]);
            if session.starts_with("holds") {
                // The shim waits 250 ms for what holds standard output, then kills it.
                assert!(finished - sent <= 250 + LATE, "{session}: {} ms", finished - sent);
                continue;
            }
            let found = rungs(&daemon, session, 3);
            assert_eq!(names(&found), ["Eof", "Term", "Kill"], "{session}");
            keeps_times(session, &found);
            assert!(found[0].1 - sent <= LATE, "{session}: {found:?}, sent at {sent}");
            assert!(finished - found[2].1 <= KILL, "{session}: {found:?} {finished}");
        }
    }
    daemon.home().no_process();
}
