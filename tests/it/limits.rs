//! Bounds on what sessions hold: slots that stuck agents have, and processes that wait for turns.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::Daemon;
use crate::mcp::Caller;

/// Quicker than any agent could be asked anything.
const AT_ONCE: Duration = Duration::from_millis(50);

/// The rounds of the test catalogue from tier 1 on.
fn rounds() -> usize {
    let tier = std::env::var("SPAWNLET_TIER").ok().and_then(|tier| tier.parse().ok()).unwrap_or(0);
    if tier >= 1 { 20 } else { 1 }
}

/// What is answered, and that it is at once: the quickest of three, as the machine may be busy.
fn at_once(what: &str, ask: impl Fn() -> Value) -> Value {
    let mut best = Duration::MAX;
    let mut answer = Value::Null;
    for _ in 0..3 {
        let begun = Instant::now();
        answer = ask();
        best = best.min(begun.elapsed());
    }
    assert!(best < AT_ONCE, "{what} took {best:?}");
    answer
}

/// Test catalogue J4.
#[test]
fn with_every_slot_stuck_calls_are_answered_at_once_and_an_operator_frees_them() {
    let daemon = Daemon::start();
    let stop = json!({"stop": {"cancel": "300ms", "close": "100ms", "eof": "200ms",
        "term": "100ms"}});
    let stuck = ["--cap=all", "--on-cancel=ignore", "--on-eof=ignore", "--ignore-term"];
    daemon.agent("a", &stuck, stop);
    let callers = ["one", "two"].map(|name| Caller::new(&daemon, name));
    for _ in 0..rounds() {
        // Four slots a parent, eight in all.
        let begun: Vec<(usize, Value)> =
            (0..8).map(|n| (n % 2, callers[n % 2].begin("[[say:x]][[never]]"))).collect();
        let third = Caller::new(&daemon, "three");
        let arguments = json!({"agentId": "a", "prompt": "more"});
        for caller in [&third, &callers[0]] {
            let told = at_once("a refusal", || caller.told("prompt_to_agent", &arguments));
            assert_eq!(told["status"], "capacity_exceeded", "{told:#}");
            assert_eq!(told["code"], "SPAWN_CAPACITY_EXCEEDED");
        }
        for (caller, begun) in &begun {
            let status = at_once("a status", || callers[*caller].status(&begun["sessionId"]));
            assert_eq!(status["status"], "running", "{status:#}");
        }
        for (_, begun) in &begun {
            daemon.ok(&["cancel", begun["sessionId"].as_str().unwrap()]);
        }
        for (_, begun) in &begun {
            let turn = crate::mcp::name_of(&daemon, "turns", &begun["turnId"]);
            let turn = daemon.ended(&turn);
            assert_eq!(turn["status"]["phase"], "Cancelled", "{turn:#}");
            assert_eq!(turn["status"]["cancel"]["by"], "Operator");
        }
        let free = third.begin("[[say:room]]");
        let turn = crate::mcp::name_of(&daemon, "turns", &free["turnId"]);
        assert_eq!(daemon.ended(&turn)["status"]["phase"], "Completed");
    }
}

#[test]
fn a_parents_children_keep_so_many_idle_processes_and_the_eldest_hibernate() {
    let daemon = Daemon::with(&["--set", "limits.maxIdleProcessesPerParent=2"]);
    let state = format!("--state={}", daemon.path("state").display());
    daemon.agent("a", &["--cap=all", &state], json!({}));
    let (me, other) = (Caller::new(&daemon, "me"), Caller::new(&daemon, "other"));
    let child = |caller: &Caller| {
        let begun = caller.begin("[[count]]");
        let turn = crate::mcp::name_of(&daemon, "turns", &begun["turnId"]);
        daemon.ended(&turn);
        crate::mcp::name_of(&daemon, "sessions", &begun["sessionId"])
    };
    let theirs = child(&other);
    let mine: Vec<String> = (0..2).map(|_| child(&me)).collect();
    // It is used again: from now on the second is the eldest.
    daemon.ask(&mine[0], "[[count]]");
    let third = child(&me);
    daemon.phase(&mine[1], "Hibernated");
    for name in [&mine[0], &third, &theirs] {
        assert_eq!(daemon.phase(name, "Idle")["status"]["incarnation"], 1);
    }
    // Nothing is lost by it, and sessions without a parent count to nobody.
    for name in ["r1", "r2", "r3"] {
        daemon.session(name, "a", json!({"prompt": "[[count]]"}));
        daemon.ended(&format!("{name}-1"));
    }
    let turn = daemon.ask(&mine[1], "[[count]]");
    assert_eq!(daemon.response(turn["metadata"]["name"].as_str().unwrap()), "prompt 2");
    daemon.phase(&mine[0], "Hibernated");
    for name in ["r1", "r2", "r3"] {
        assert_eq!(daemon.get(&format!("sessions/{name}"))["status"]["phase"], "Idle");
    }
}
