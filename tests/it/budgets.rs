//! What turns may use, and what they used: steps, time, tokens, cost.

use serde_json::{Value, json};

use crate::harness::Daemon;

/// A directive: the agent reports tokens in its context, and what its session has cost.
pub(crate) fn usage(used: u64, cost: f64) -> String {
    let update = json!({"sessionUpdate": "usage_update", "used": used, "size": 200_000,
        "cost": {"amount": cost, "currency": "USD"}});
    format!("[[update:{update}]]")
}

/// Judges a turn that is over.
#[track_caller]
pub(crate) fn is_out_of_budget(turn: &Value, words: &str) {
    assert_eq!(turn["status"]["phase"], "Expired", "{turn:#}");
    assert_eq!(turn["status"]["code"], "TURN_BUDGET_EXHAUSTED", "{turn:#}");
    assert_eq!(turn["status"]["cancel"]["by"], "Budget");
    let message = turn["status"]["message"].as_str().unwrap();
    assert!(message.contains(words), "{message}");
}

#[test]
fn a_turn_over_its_budget_is_cancelled_and_its_session_takes_the_next() {
    let daemon = Daemon::start();
    let state = format!("--state={}", daemon.path("state").display());
    daemon.agent("plain", &["--cap=all", &state], json!({}));
    let stop = json!({"stop": {"cancel": "200ms", "eof": "100ms", "term": "100ms"}});
    daemon.agent("deaf", &["--cap=all", &state, "--on-cancel=ignore"], stop);
    let steps = "[[tool:a:read:/x]][[say:one]][[tool:b:read:/x]][[never]]";
    let tokens = format!("{}{}[[never]]", usage(900, 0.0), usage(2100, 0.0));
    let cost = format!("{}{}[[never]]", usage(5, 0.25), usage(6, 0.75));
    for (name, agent, budget, prompt, words) in [
        ("time", "plain", json!({"timeout": "300ms"}), "[[say:x]][[never]]", "timeout"),
        ("unheard", "deaf", json!({"timeout": "300ms"}), "[[say:x]][[never]]", "timeout"),
        ("steps", "plain", json!({"maxSteps": 2}), steps, "maxSteps is 2"),
        ("tokens", "plain", json!({"maxTokens": 2000}), &tokens, "2100 tokens"),
        ("cost", "plain", json!({"maxCost": 0.5}), &cost, "maxCost is 0.5"),
    ] {
        daemon.session(name, agent, json!({"runBudget": budget, "prompt": prompt}));
        is_out_of_budget(&daemon.ended(&format!("{name}-1")), words);
        // Each turn has it for itself, and what the agent said stays.
        let next = daemon.ask(name, "[[count]]");
        assert_eq!(next["status"]["phase"], "Completed", "{name}: {next:#}");
        assert_eq!(daemon.response(next["metadata"]["name"].as_str().unwrap()), "prompt 2");
    }
    assert_eq!(daemon.response("time-1"), "x");

    // A turn's own limits count; the session's where it has none.
    let budget = json!({"timeout": "300ms", "maxSteps": 100});
    let turn = json!({"metadata": {"name": "own"}, "spec": {"session": "tokens",
        "prompt": "[[never]]", "runBudget": budget}});
    assert_eq!(daemon.create("turns", &turn).status, 201);
    is_out_of_budget(&daemon.ended("own"), "timeout");
    // What allows nothing is refused.
    let nothing = json!({"runBudget": {"maxSteps": 0, "timeout": "0s"}});
    let body = json!({"metadata": {"name": "no"}, "spec": {"agent": "plain", "cwd": "/"}});
    let mut body: Value = body;
    body["spec"]["runBudget"] = nothing["runBudget"].clone();
    let refused = daemon.create("sessions", &body);
    assert_eq!(refused.status, 422);
    assert!(refused.text().contains("spec.runBudget.maxSteps"), "{}", refused.text());
}

/// Known failures H11.
#[test]
fn what_turns_used_is_told_of_each_and_summed_up_on_the_session() {
    let daemon = Daemon::start();
    let state = format!("--state={}", daemon.path("state").display());
    daemon.agent("plain", &["--cap=all", &state], json!({}));
    let prompt = format!("{}[[say:one]]", usage(1000, 0.5));
    daemon.session("s", "plain", json!({"idleTimeout": "300ms", "prompt": prompt}));
    let turn = daemon.ended("s-1");
    let cost = |amount: f64| json!({"amount": amount, "currency": "USD"});
    let wanted = json!({"contextGrowth": 1000, "cost": cost(0.5)});
    assert_eq!(turn["status"]["usage"], wanted, "{turn:#}");
    daemon.phase("s", "Hibernated");
    // The next process goes on from there; its agent counts from the session's beginning.
    let turn = daemon.ask("s", &format!("{}[[say:two]]", usage(1500, 0.75)));
    assert_eq!(turn["status"]["usage"], json!({"contextGrowth": 500, "cost": cost(0.25)}));
    let session =
        daemon.until("sessions/s", |session| session["status"]["usage"]["cost"]["amount"] == 0.75);
    assert_eq!(session["status"]["usage"]["context"], json!({"used": 1500, "size": 200_000}));
}
