//! Figures: what idle sessions cost (J2), how long a start takes with many records (J3), and how soon
//! a new turn is taken (J5). Printed; tier 0 leaves them out.

use std::sync::mpsc::sync_channel;
use std::time::{Duration, Instant};

use serde_json::json;

use super::rig::{Rig, ticks};
use crate::chaos::tier;

/// J2: a hundred sessions that wait for somebody.
#[test]
fn the_cost_of_idle_sessions_is_told() {
    let seconds: u64 = [0, 20, 300][tier()];
    if seconds == 0 {
        return;
    }
    let mut rig = Rig::new(&["limits.maxActiveTurns=50"]);
    for number in 0..100 {
        rig.session(&format!("i{number}"), &json!({"prompt": "[[say:idle]]"}));
    }
    rig.wait_until_all_turns_are_final();
    let alive = rig.world.alive().iter().filter(|sighting| sighting.is_shim).count();
    let (_sender, clock) = sync_channel::<()>(1);
    let before = ticks(rig.daemon.pid());
    let _ = clock.recv_timeout(Duration::from_secs(seconds));
    let spent = ticks(rig.daemon.pid()) - before;
    #[expect(clippy::cast_precision_loss, reason = "hundredths of a second")]
    let percent = spent as f64 / seconds as f64;
    println!(
        "J2: 100 idle sessions, {alive} with a process: {percent:.2} % of a core in {seconds} s"
    );
    assert!(percent < 10.0, "an idle daemon works");
    rig.stop();
}

/// J3: a start with many records.
#[test]
fn the_start_with_many_records_is_told() {
    let records = [0, 1000, 10_000][tier()];
    if records == 0 {
        return;
    }
    let mut rig = Rig::new(&[]);
    for number in 0..records {
        rig.session(&format!("r{number}"), &json!({}));
    }
    assert!(rig.daemon.stop().success());
    let mut daemon = rig.world.start();
    let took = daemon.wait_until_ready(&rig.world);
    let mut client = rig.world.connect(&daemon);
    let listed = Instant::now();
    let (_, list) = client.call("GET", "namespaces/default/sessions", None).unwrap();
    assert_eq!(list["items"].as_array().unwrap().len(), records);
    println!("J3: {records} sessions: ready after {took:?}, listed in {:?}", listed.elapsed());
    assert!(daemon.stop().success());
}

/// J5: from the answer to a new turn to the loop's first step for it.
#[test]
fn the_time_until_a_turn_is_taken_is_told() {
    let turns = [0, 200, 1000][tier()];
    if turns == 0 {
        return;
    }
    let mut rig = Rig::new(&[]);
    rig.session("s", &json!({"prompt": "[[say:warm]]"}));
    rig.end_of("s-1");
    let mut waits = Vec::new();
    for _ in 0..turns {
        let asked = Instant::now();
        let turn = rig.turn("s", "[[say:x]]");
        loop {
            let (_, found) = rig.get(&format!("turns/{turn}"));
            if found["status"]["phase"] != "Pending" {
                break;
            }
            assert!(asked.elapsed() < Duration::from_secs(60), "it is not taken");
        }
        waits.push(asked.elapsed());
        rig.end_of(&turn);
    }
    waits.sort_unstable();
    let (p50, p99) = (waits[turns / 2], waits[turns * 99 / 100]);
    println!("J5: {turns} turns, asked to taken as a client sees it: p50 {p50:?}, p99 {p99:?}");
    rig.stop();
}
