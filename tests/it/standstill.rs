//! A daemon that is stopped by SIGSTOP and goes on later (test catalogue I3): whoever talked
//! meanwhile is ended by no clock, and what was due meanwhile is done.
//!
//! Stopped for 4 s; three times at tier 1; ten times for 30 s at tier 2.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::chaos::tier;
use crate::harness::{Daemon, signal};

/// Sessions that talk all the time, in each round.
const TALKERS: usize = 4;
/// How far apart their words are.
const APART_MS: u64 = 150;
/// How long after the standstill what was due may take: the daemon reads first, for 2 s.
const DUE_MAX: Duration = Duration::from_secs(6);

fn rounds() -> (usize, Duration) {
    let (count, seconds) = [(1, 4), (3, 4), (10, 30)][tier()];
    (count, Duration::from_secs(seconds))
}

/// What one round made of its sessions.
#[derive(Debug, Default)]
struct History {
    /// How the turns of those ended that talked.
    talked: Vec<(String, Value)>,
    /// The code of the turn whose agent was silent; why the session ended whose time was over; the
    /// phase of the one that had been idle for long enough, and of the one that had not.
    silent: Value,
    old: Value,
    idle: Value,
    kept: Value,
}

/// What must not be in it.
fn faults(history: &History) -> Vec<String> {
    let talked = history.talked.iter().map(|(name, phase)| (&**name, phase, "Completed"));
    talked
        .chain([
            ("silent", &history.silent, "TURN_INACTIVITY_TIMEOUT"),
            ("old", &history.old, "TtlExpired"),
            ("idle", &history.idle, "Hibernated"),
            ("kept", &history.kept, "Idle"),
        ])
        .filter(|(_, found, wanted)| *found != wanted)
        .map(|(name, found, wanted)| format!("{name}: {found}, expected {wanted}"))
        .collect()
}

fn pass(time: Duration) {
    let (_open, clock) = sync_channel::<()>(0);
    let _ = clock.recv_timeout(time);
}

fn state(pid: u32) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(") ").next().unwrap().chars().next().unwrap()
}

/// One round; the daemon and, where `agents_too`, those who talk stand still.
fn stand_still(daemon: &Daemon, number: usize, time: Duration, agents_too: bool) -> History {
    let name = |what: &str| format!("{what}-{number}");
    let session = |what: &str, spec: Value| daemon.session(&name(what), "plain", spec);
    let quiet = json!({"prompt": "[[say:begun]]", "ttl": "2h"});
    let begun = Instant::now();
    session("old", quiet);
    session("kept", json!({"prompt": "[[say:begun]]", "idleTimeout": "1h"}));
    daemon.phase(&name("old"), "Idle");
    daemon.phase(&name("kept"), "Idle");
    // From a half to nearly all of the time that nobody reads.
    let words = (time + DUE_MAX).as_millis() as u64 / APART_MS;
    let talk = format!("[[sleep:{APART_MS}]][[say:.]]").repeat(words as usize);
    let patience =
        |part: usize| time * u32::try_from(TALKERS + part).unwrap() / (2 * TALKERS as u32);
    let talkers: Vec<String> = (1..=TALKERS).map(|part| name(&format!("talks{part}"))).collect();
    for (talker, part) in talkers.iter().zip(1..) {
        let prompt = format!("[[say:begun]]{talk}");
        let patience = format!("{}ms", patience(part).as_millis() - 100);
        daemon.session(
            talker,
            "plain",
            json!({"turnInactivityTimeout": patience, "prompt": prompt}),
        );
    }
    let patience = format!("{}ms", (time / 2).as_millis());
    session(
        "silent",
        json!({"turnInactivityTimeout": patience, "prompt": "[[say:begun]][[never]]"}),
    );
    let all = talkers.iter().chain([&name("silent")]).cloned().collect::<Vec<_>>();
    for name in &all {
        daemon.said(name, &format!("{name}-1"), "begun");
    }
    session("idle", json!({"prompt": "[[say:begun]]", "idleTimeout": patience}));
    daemon.ended(&format!("{}-1", name("idle")));
    let ttl = json!({"spec": {"ttl": format!("{}ms", (begun.elapsed() + time / 2).as_millis())}});
    assert_eq!(daemon.patch(&format!("sessions/{}", name("old")), &ttl).status, 200);
    let agents: Vec<u32> = talkers
        .iter()
        .filter(|_| agents_too)
        .map(|name| {
            let session = daemon.get(&format!("sessions/{name}"));
            u32::try_from(session["status"]["process"]["pid"].as_u64().unwrap()).unwrap()
        })
        .collect();
    signal(daemon.pid(), Signal::STOP);
    for agent in &agents {
        signal(*agent, Signal::STOP);
    }
    pass(time);
    assert_eq!(state(daemon.pid()), 'T');
    signal(daemon.pid(), Signal::CONT);
    let goes_on = Instant::now();
    let mut history = History::default();
    let ended = daemon.ended(&format!("{}-1", name("silent")));
    history.silent = ended["status"]["code"].clone();
    history.old = daemon.phase(&name("old"), "Stopped")["status"]["reason"].clone();
    history.idle = daemon.phase(&name("idle"), "Hibernated")["status"]["phase"].clone();
    let took = goes_on.elapsed();
    assert!(took <= DUE_MAX, "what was due is done after {took:?}");
    for talker in &talkers {
        let turn = daemon.ended(&format!("{talker}-1"));
        history.talked.push((talker.clone(), turn["status"]["phase"].clone()));
    }
    history.kept = daemon.get(&format!("sessions/{}", name("kept")))["status"]["phase"].clone();
    history
}

/// Test catalogue I3.
#[test]
fn a_daemon_that_was_stopped_ends_nobody_who_was_talking_and_all_that_was_due() {
    let (count, time) = rounds();
    let daemon = Daemon::start();
    daemon.agent("plain", &["--cap=all"], json!({}));
    for number in 0..count {
        let history = stand_still(&daemon, number, time, false);
        assert_eq!(faults(&history), Vec::<String>::new(), "round {number}: {history:#?}");
        for what in ["idle", "kept"] {
            daemon.ok(&["stop", &format!("{what}-{number}")]);
        }
    }
}

/// The negative control: whose agent says nothing either is ended, and the judge finds that.
#[test]
fn the_same_clocks_end_those_whose_agents_were_stopped_too() {
    let daemon = Daemon::start();
    daemon.agent("plain", &["--cap=all"], json!({}));
    let history = stand_still(&daemon, 0, Duration::from_secs(4), true);
    let found = faults(&history);
    assert_eq!(found.len(), TALKERS, "{found:?}");
    assert!(found.iter().all(|fault| fault.contains("Expired")), "{found:?}");
}
