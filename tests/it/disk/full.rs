//! C5: the file system of the daemon's directory is full.
//!
//! New work is refused by every door, what is there can be read, cancel and delete still work through
//! the ballast, and once there is room again everything goes on.

use std::io::Write as _;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::chaos::{tier, wait_for};
use crate::harness::{Daemon, Home};
use crate::mcp::Caller;

/// How long until everything works again.
const NORMAL_AGAIN_MAX: Duration = Duration::from_secs(30);
/// New sessions that a disk may still take that was filled unseen: the write that finds it full is done
/// on the ballast.
const TAKEN_UNSEEN_MAX: usize = 1;

/// Fills the disk to its last block.
fn fill(home: &Home) {
    let mut rest = std::fs::File::create(home.path("rest")).unwrap();
    for block in [64 * 1024, 4096] {
        while rest.write_all(&vec![0; block]).is_ok() {}
    }
}

fn create(daemon: &Daemon, name: &str) -> (u16, serde_json::Value) {
    let spec = json!({"agent": "a", "cwd": daemon.home().work()});
    let answer = daemon.create("sessions", &json!({"metadata": {"name": name}, "spec": spec}));
    (answer.status, answer.json())
}

/// One disk that becomes full and free again: how long it took until work was taken.
fn round(daemon: &Daemon, caller: &Caller, number: usize) -> Duration {
    let [endless, done] = ["endless", "done"].map(|name| format!("{name}{number}"));
    daemon.session(&endless, "a", json!({"prompt": "[[never]]"}));
    daemon.session(&done, "a", json!({"prompt": "[[say:done]]"}));
    daemon.ended(&format!("{done}-1"));
    daemon.until(&format!("turns/{endless}-1"), |turn| turn["status"]["delivery"] == "Sent");
    let child = caller.ask("[[say:child]]")["sessionId"].clone();
    fill(daemon.home());
    let mut taken = 0;
    let refusal = loop {
        match create(daemon, &format!("new{number}-{taken}")) {
            (201, _) => taken += 1,
            (code, refusal) => break (code, refusal),
        }
        assert!(taken <= TAKEN_UNSEEN_MAX, "round {number}: a full disk takes work");
    };
    assert_eq!(refusal.0, 503, "{}", refusal.1);
    assert_eq!(refusal.1["reason"], "ServiceUnavailable", "{}", refusal.1);
    assert!(refusal.1["message"].as_str().unwrap().contains("disk"), "{}", refusal.1);
    let refused = caller.refused("prompt_to_agent", &json!({"agentId": "a", "prompt": "hello"}));
    assert_eq!(refused, "SPAWN_STORE_UNAVAILABLE");
    // What is there is told of.
    assert!(daemon.ok(&["get", "sessions"]).contains(&endless));
    assert_eq!(caller.status(&child)["status"], "idle");
    let ready = daemon.request("GET", "/readyz?verbose").send();
    assert!(ready.text().contains("[-]DiskPressure"), "{}", ready.text());
    // And it can be ended.
    let cancel = daemon.patch(
        &format!("turns/{endless}-1"),
        &json!({
            "spec": {"desiredState": "cancelled"}
        }),
    );
    assert_eq!(cancel.status, 200, "{}", cancel.text());
    let turn = daemon.ended(&format!("{endless}-1"));
    assert_eq!(turn["status"]["phase"], "Cancelled", "{turn:#}");
    for name in [&endless, &done] {
        daemon.ok(&["delete", "session", name]);
        daemon.gone(&format!("sessions/{name}"));
    }
    std::fs::remove_file(daemon.path("rest")).unwrap();
    let since = Instant::now();
    let took = wait_for("a disk with room takes work", || {
        let (code, _) = create(daemon, &format!("again{number}"));
        (code == 201).then(|| since.elapsed())
    });
    let answer = caller.ask("[[say:normal]]");
    assert_eq!(answer["content"], "normal", "{answer:#}");
    for name in (0..taken).map(|taken| format!("new{number}-{taken}")) {
        daemon.ok(&["delete", "session", &name]);
    }
    daemon.ok(&["delete", "session", &format!("again{number}")]);
    took
}

#[test]
fn a_full_disk_takes_nothing_new_and_still_tells_cancels_and_deletes() {
    let disk = std::env::var_os("SPAWNLET_TEST_SMALL_DISK").filter(|path| !path.is_empty());
    let Some(disk) = disk else {
        eprintln!("skipped: C5: SPAWNLET_TEST_SMALL_DISK names no small file system");
        return;
    };
    let rounds = [1, 5, 20][tier()];
    // One parent makes two children in each round.
    let daemon =
        Home::within(disk.as_ref()).serve(&["--set", "limits.spawnsPerMinutePerRoot=1000"]);
    daemon.agent("a", &[], json!({}));
    let caller = Caller::new(&daemon, "me");
    let slowest = (0..rounds).map(|number| round(&daemon, &caller, number)).max().unwrap();
    println!("C5: {rounds} rounds; work is taken again after {slowest:?} at most");
    assert!(slowest < NORMAL_AGAIN_MAX, "{slowest:?}");
    let log = daemon.log();
    assert!(!log.contains("panicked"), "{log}");
    let (code, home) = daemon.stop();
    assert_eq!(code, Some(0));
    assert_eq!(home.processes(), Vec::<String>::new());
}
