//! C4: an fdatasync or fsync of the daemon fails with EIO, once or from then on.
//!
//! What was acknowledged is there after the next start, what was refused for sure is not; while the
//! store is read-only it says so, answers reads and takes nothing; when the disk works again the store
//! opens itself, checks, and goes on.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use crate::chaos::{seed, wait_for};
use crate::harness::{Daemon, Strace};
use crate::mcp::Caller;

const RUNS: u64 = 10;
/// How many at a time: a run mostly waits for the store to be opened again, which is tried every five
/// seconds.
const LANES: u64 = 10;
/// Syncs of a thread that go well, at most.
const GOOD_SYNCS_MAX: u64 = 40;
/// Sessions that are made until one is refused, at most.
const SESSIONS_MAX: usize = 400;
/// How long the store may take to be open again on a disk that works.
const OPEN_AGAIN_MAX: Duration = Duration::from_secs(30);

/// What the daemon said to a create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Yes,
    /// Nothing was done: try again.
    No,
    /// It may have been done.
    Unknown,
}

/// What a disk may not do to a history.
fn faults(history: &[(String, Said)], there: &BTreeSet<String>) -> Vec<String> {
    let fault = |(name, said): &(String, Said)| match (said, there.contains(name)) {
        (Said::Yes, false) => Some(format!("{name} was acknowledged and is gone")),
        (Said::No, true) => Some(format!("{name} was refused and is there")),
        (Said::Yes, true) | (Said::No, false) | (Said::Unknown, _) => None,
    };
    history.iter().filter_map(fault).collect()
}

fn create(daemon: &Daemon, name: &str) -> Said {
    let spec = json!({"agent": "a", "cwd": daemon.home().work(), "prompt": "[[say:x]]"});
    let answer = daemon.create("sessions", &json!({"metadata": {"name": name}, "spec": spec}));
    match (answer.status, answer.json()["details"]["retryAfterSeconds"].is_number()) {
        (201, _) => Said::Yes,
        (503, true) => Said::No,
        (500 | 503, _) => Said::Unknown,
        (other, _) => panic!("{name}: {other} {}", answer.text()),
    }
}

fn sessions(daemon: &Daemon) -> BTreeSet<String> {
    let path = "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions";
    let answer = daemon.request("GET", path).send();
    assert_eq!(answer.status, 200, "{}", answer.text());
    let items = answer.json()["items"].as_array().cloned().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// What the daemon says of itself: ready or not, and its store's condition.
fn readiness(daemon: &Daemon) -> (u16, Value) {
    let answer = daemon.request("GET", "/readyz").header("accept", "application/json").send();
    let told = answer.json();
    let conditions = told["conditions"].as_array().unwrap();
    let store = conditions.iter().find(|one| one["type"] == "StoreAvailable").unwrap();
    (answer.status, store.clone())
}

/// What holds while no sync works: nothing is taken, everything can be read, and it is said why.
fn is_read_only(daemon: &Daemon, caller: &Caller, known: &Value) {
    // A reset that is under way has not failed yet.
    let store = wait_for("the store says that it is read-only", || {
        let (code, store) = readiness(daemon);
        (code == 503 && store["status"] == "False").then_some(store)
    });
    assert_eq!(store["reason"], "ReadOnly", "{store}");
    let refused = caller.refused("prompt_to_agent", &json!({"agentId": "a", "prompt": "hello"}));
    assert_eq!(refused, "SPAWN_STORE_UNAVAILABLE");
    assert!(!sessions(daemon).is_empty());
    assert!(caller.status(known)["status"].is_string());
}

/// One daemon with one fault: what it said before the disk worked again, and what was wrong.
fn run(number: u64, random: &mut StdRng) -> (Duration, Vec<String>) {
    // A call that finds no slot is told that, and not of the store.
    let daemon = Daemon::with(&["--set", "limits.maxActiveTurns=1000"]);
    daemon.agent("a", &[], json!({}));
    let caller = Caller::new(&daemon, "me");
    let known = caller.ask("[[say:known]]")["sessionId"].clone();
    let good = random.random_range(1..=GOOD_SYNCS_MAX);
    let is_lasting = number % 2 == 1;
    let when = if is_lasting { format!("{good}+") } else { good.to_string() };
    let strace = Strace::syncs(daemon.pid(), &format!("error=EIO:when={when}"));
    let mut history = Vec::new();
    while history.last().is_none_or(|(_, said)| *said == Said::Yes) {
        assert!(history.len() < SESSIONS_MAX, "run {number}: no sync failed ({when})");
        let name = format!("s{}", history.len());
        history.push((name.clone(), create(&daemon, &name)));
    }
    if is_lasting {
        is_read_only(&daemon, &caller, &known);
    }
    drop(strace);
    let since = Instant::now();
    let open_again = wait_for("the store is open again", || {
        let name = format!("s{}", history.len());
        history.push((name.clone(), create(&daemon, &name)));
        (history.last().unwrap().1 == Said::Yes).then(|| since.elapsed())
    });
    assert_eq!(readiness(&daemon).0, 200);
    for (name, said) in &history {
        if *said == Said::Yes {
            daemon.ended(&format!("{name}-1"));
        }
    }
    let log = daemon.log();
    assert!(!log.contains("panicked"), "{log}");
    let daemon = daemon.kill9().serve(&[]);
    let faults = faults(&history, &sessions(&daemon));
    let (code, home) = daemon.stop();
    assert_eq!(code, Some(0));
    assert_eq!(home.processes(), Vec::<String>::new());
    (open_again, faults)
}

#[test]
fn a_disk_that_fails_to_sync_makes_the_store_read_only_until_it_works_and_loses_nothing() {
    if !Strace::is_there("C4") {
        return;
    }
    let seed = seed();
    let lane = |lane: u64| {
        let mut random = StdRng::seed_from_u64(seed.wrapping_add(lane << 32));
        (lane..RUNS).step_by(LANES as usize).map(|run_| run(run_, &mut random)).collect::<Vec<_>>()
    };
    let runs: Vec<_> = std::thread::scope(|scope| {
        let lanes: Vec<_> = (0..LANES).map(|number| scope.spawn(move || lane(number))).collect();
        lanes.into_iter().flat_map(|lane| lane.join().unwrap()).collect()
    });
    let slowest = runs.iter().map(|(open_again, _)| *open_again).max().unwrap();
    let faults: Vec<_> = runs.into_iter().flat_map(|(_, faults)| faults).collect();
    println!("C4: seed {seed}, {RUNS} runs; open again after {slowest:?} at most; {faults:?}");
    assert_eq!(faults, Vec::<String>::new(), "seed {seed}");
    assert!(slowest < OPEN_AGAIN_MAX, "{slowest:?}");
}

/// The negative control: the judge finds a store that acknowledges what it did not write, and one
/// that did what it refused.
#[test]
fn a_store_that_lies_of_a_failing_disk_is_found() {
    let history = |said| [("a".to_owned(), Said::Yes), ("b".to_owned(), said)];
    let there = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    assert_eq!(faults(&history(Said::Yes), &there(&["a"])).len(), 1);
    assert_eq!(faults(&history(Said::No), &there(&["a", "b"])).len(), 1);
    assert_eq!(faults(&history(Said::Unknown), &there(&["b"])).len(), 1);
    for there in [there(&["a"]), there(&["a", "b"])] {
        assert!(faults(&history(Said::Unknown), &there).is_empty());
    }
    assert!(faults(&history(Said::Yes), &there(&["a", "b"])).is_empty());
    assert!(faults(&history(Said::No), &there(&["a"])).is_empty());
}
