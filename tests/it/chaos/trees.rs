//! What becomes of live trees when the daemon dies alone or with its shims, and of a second
//! daemon on the same directory.

use std::collections::BTreeSet;

use rustix::process::{Signal, pidfd_send_signal};
use serde_json::json;

use super::daemon::{Daemon, World, wait_for};
use super::judge::Kind;
use super::load::{collection, item, list};
use super::tree::hold;
use super::{OUTLIVES_MAX, alone, tier};

/// Live agents at the kill (D3).
const AGENTS: usize = 20;
/// `limits.maxActiveTurns` that lets all of them run.
const ALL_AT_ONCE: &str = "limits.maxActiveTurns=20";

/// Makes sessions whose turns never end, and waits until all are in the middle of one.
fn begin(world: &World, daemon: &Daemon, agent: &str, round: usize, prompt: &str) {
    let mut client = world.connect(daemon);
    for session in 0..AGENTS {
        let body = json!({"metadata": {"name": format!("s{round}-{session}")},
            "spec": {"agent": agent, "cwd": world.text("work"), "prompt": prompt}});
        let (code, answer) = client.call("POST", &collection(Kind::Session), Some(&body)).unwrap();
        assert_eq!(code, 201, "{answer}");
    }
    let lines =
        |name: &str| std::fs::read_to_string(world.path(name)).unwrap_or_default().lines().count();
    wait_for("all agents have a prompt", || {
        (lines("prompts") == AGENTS * (round + 1)).then_some(())
    });
    // Agent and two children a session have noted themselves once they all run.
    wait_for("all children run", || (lines("pids") == 3 * AGENTS * (round + 1)).then_some(()));
}

/// Deletes what a dead daemon left as records.
fn delete_all(world: &World, daemon: &Daemon) {
    let mut client = world.connect(daemon);
    for session in list(&mut client, Kind::Session) {
        client.call("DELETE", &item(Kind::Session, &session.name), None).unwrap();
    }
    wait_for("all sessions are gone", || list(&mut client, Kind::Session).is_empty().then_some(()));
}

#[test]
fn no_tree_outlives_a_killed_daemon_by_five_seconds() {
    let _alone = alone();
    let world = World::new(&[ALL_AT_ONCE]);
    let mut slowest = std::time::Duration::ZERO;
    let rounds = [3, 50, 50][tier()];
    for round in 0..rounds {
        let mut daemon = world.start_ready();
        delete_all(&world, &daemon);
        begin(&world, &daemon, "stubborn", round, "[[escape:setsid]][[escape:double]][[never]]");
        // Shim, agent and two children each.
        assert!(world.alive().len() >= 4 * AGENTS, "{}", world.alive().len());
        let killed = daemon.kill();
        match world.wait_until_empty(killed, OUTLIVES_MAX) {
            Ok(took) => slowest = slowest.max(took),
            Err(left) => panic!("round {round}: left: {left:#?}"),
        }
    }
    println!("{rounds} kills with {AGENTS} agents: the longest life after one {slowest:?}");
}

#[test]
fn trees_whose_shims_died_too_are_gone_before_the_next_daemon_is_ready() {
    let _alone = alone();
    let world = World::new(&[ALL_AT_ONCE]);
    let rounds = [2, 20, 20][tier()];
    for round in 0..rounds {
        let mut daemon = world.start_ready();
        delete_all(&world, &daemon);
        begin(&world, &daemon, "stubborn", round, "[[escape:setsid]][[escape:double]][[never]]");
        let alive = world.alive();
        let shims: Vec<_> = alive.iter().filter(|sighting| sighting.is_shim).collect();
        assert_eq!(shims.len(), AGENTS);
        let held: Vec<_> = shims.iter().filter_map(|shim| hold(shim.pid)).collect();
        // Stopped first, so that none can end its tree before it dies.
        for signal in [Signal::STOP, Signal::KILL] {
            for shim in &held {
                pidfd_send_signal(shim, signal).unwrap();
            }
            if signal == Signal::STOP {
                daemon.kill();
            }
        }
        // The control: without the next start all the trees live on. (The first of the two forks
        // of a doubly forked child may still have been there above.)
        let orphans = world.alive().iter().filter(|sighting| !sighting.is_shim).count();
        assert!(orphans >= 3 * AGENTS, "{orphans}");
        let mut next = world.start();
        next.wait_until_ready(&world);
        let mut left = world.alive();
        left.retain(|sighting| sighting.start_time < next.start_time);
        assert_eq!(left, BTreeSet::new(), "round {round}");
        assert!(next.stop().success());
    }
    println!("{rounds} kills of a daemon and {AGENTS} shims: nothing left");
}

#[test]
fn a_second_daemon_is_refused_until_the_first_is_killed() {
    let _alone = alone();
    let world = World::new(&[]);
    let mut first = world.start_ready();
    let mut client = world.connect(&first);
    for round in 0..[5, 50, 50][tier()] {
        let code = world.run_to_end();
        assert_eq!(code, Some(i32::from(spawnlet::server::EXIT_LOCKED)));
        // The first works on, on the connection that it had. It is killed while it starts an agent:
        // a child that has not become its shim yet has all that the daemon had, the lock too.
        let session = json!({"metadata": {"name": format!("s{round}")},
            "spec": {"agent": "forgetful", "cwd": world.text("work"), "prompt": "hello"}});
        let (code, answer) =
            client.call("POST", &collection(Kind::Session), Some(&session)).unwrap();
        assert_eq!(code, 201, "{answer}");
        let (code, answer) = client.call("GET", &item(Kind::Session, "s0"), None).unwrap();
        assert_eq!(code, 200, "{answer}");
        first.kill();
        first = world.start_ready();
        client = world.connect(&first);
    }
    wait_for("the first turn is final", || list(&mut client, Kind::Turn)[0].end.clone());
    assert!(first.stop().success());
}
