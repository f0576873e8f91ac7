//! From a YAML file to an answer, and how turns end.

use serde_json::{Value, json};

use crate::harness::{Daemon, fakeagent, quoted};

/// Stop times that a test can wait for.
fn quick_stop() -> Value {
    json!({"stop": {"cancel": "300ms", "close": "100ms", "eof": "100ms", "term": "100ms"}})
}

/// A file with an agent and a session of it that has a prompt.
fn write_hello(daemon: &Daemon) {
    daemon.write_manifest(
        "hello.yaml",
        &format!(
            "# An agent and a session of it.
apiVersion: spawnlet.dev/v1alpha1
kind: Agent
metadata: {{name: scripted}}
spec:
  argv: [{}, --cap=all, --state={}]
---
apiVersion: spawnlet.dev/v1alpha1
kind: Session
metadata:
  name: hello
  labels: {{of: yaml}}
spec:
  agent: scripted
  cwd: {}
  prompt: |
    [[think:hm]][[tool:Reads:read:/etc/hosts]][[say:Hello, ]][[say:world]] [[count]]
",
            quoted(fakeagent()).trim_matches('"'),
            daemon.path("state").display(),
            quoted(daemon.home().work()),
        ),
    );
}

#[test]
fn a_session_of_a_yaml_file_is_answered_and_goes_on_with_a_second_turn() {
    let daemon = Daemon::start();
    write_hello(&daemon);
    let session = daemon.until("sessions/hello", |session| {
        session["status"]["latestTurn"].is_string() && session["status"]["phase"] == "Idle"
    });
    let turn = session["status"]["latestTurn"].as_str().unwrap();
    assert_eq!(session["metadata"]["labels"]["of"], "yaml");
    assert_eq!(daemon.response(turn), "\n\n### Reads\n\nHello, worldprompt 1");

    // Transcript, reports and events, by the command line.
    let logs = daemon.ok(&["logs", "hello"]);
    for text in ["Hello, ", "world", "Reads"] {
        assert!(logs.contains(text), "{text}: {logs}");
    }
    let entries = daemon.ok(&["logs", "hello", "-o", "json"]);
    let kinds: Vec<String> = entries
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|entry| entry["kind"].as_str().unwrap_or_default().to_owned())
        .filter(|kind| kind.starts_with("agent_") || kind.starts_with("tool_"))
        .collect();
    let told = [
        "agent_thought_chunk",
        "tool_call",
        "tool_call_update",
        "agent_message_chunk",
        "agent_message_chunk",
        "agent_message_chunk",
    ];
    assert_eq!(kinds, told, "{entries}");
    let reports = daemon.ok(&["report", "session/hello", "-o", "json"]);
    let reports: Value = serde_json::from_str(&reports).unwrap();
    let steps: Vec<&str> = reports["items"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|report| report["steps"].as_array().unwrap())
        .map(|step| step["name"].as_str().unwrap())
        .collect();
    assert!(steps.len() >= 4, "{reports:#}");
    assert!(daemon.ok(&["report", "session/hello"]).contains("hello"), "a table of reports");
    let events = daemon.ok(&["events"]);
    assert!(events.contains("hello"), "{events}");
    let described = daemon.ok(&["describe", "session/hello"]);
    for text in ["hello", "Conditions", "ProcessReady"] {
        assert!(described.contains(text), "{text}: {described}");
    }

    // A second turn goes on in the same conversation and process.
    let ran = daemon.cli(&["prompt", "hello", "[[count]]"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "prompt 2\n"), "{ran:?}");
    let after = daemon.get("sessions/hello");
    assert_eq!(after["status"]["incarnation"], 1);
    assert_eq!(after["status"]["acpSessionId"], session["status"]["acpSessionId"]);
    assert_eq!(daemon.get(&format!("turns/{turn}"))["status"]["phase"], "Completed");
}

#[test]
fn a_cancel_ends_the_turn_and_the_session_goes_on() {
    let daemon = Daemon::start();
    let flag = |name: &str, file: &str| format!("--{name}={}", daemon.path(file).display());
    daemon.agent("obeys", &["--cap=all", &flag("state", "one")], json!({}));
    daemon.agent(
        "stubborn",
        &["--cap=all", "--on-cancel=ignore", &flag("state", "two")],
        quick_stop(),
    );
    let states = ["plain", "end_turn", "error"];

    // The agent says so, or anything else: after our cancel the turn is cancelled.
    daemon.session("one", "obeys", json!({}));
    for how in states {
        let how = if how == "plain" { String::new() } else { format!("[[on-cancel:{how}]]") };
        let turn = daemon.turn("one", &format!("{how}[[say:part]][[never]]"));
        daemon.said("one", &turn, "part");
        daemon.ok(&["cancel", "one"]);
        let ended = daemon.ended(&turn);
        assert_eq!(ended["status"]["phase"], "Cancelled", "{ended:#}");
        assert_eq!(ended["status"]["code"], "TURN_CANCELLED");
        assert_eq!(ended["status"]["cancel"]["by"], "Operator");
        assert_eq!(daemon.response(&turn), "part", "what was said stays readable");
    }
    let pid = daemon.ask("one", "[[pid]]");
    assert_eq!(pid["status"]["phase"], "Completed", "{pid:#}");
    assert_eq!(daemon.get("sessions/one")["status"]["incarnation"], 1, "the process stays");

    // The agent does not answer: its process goes after the grace, the session does not.
    daemon.session("two", "stubborn", json!({}));
    let turn = daemon.turn("two", "[[say:part]][[never]]");
    daemon.said("two", &turn, "part");
    daemon.ok(&["cancel", "two"]);
    let ended = daemon.ended(&turn);
    assert_eq!(ended["status"]["phase"], "Cancelled", "{ended:#}");
    assert_eq!(ended["status"]["code"], "TURN_CANCELLED");
    assert!(ended["status"]["message"].as_str().unwrap().contains("did not confirm"), "{ended:#}");
    let ran = daemon.cli(&["prompt", "two", "[[count]]"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "prompt 2\n"), "{ran:?}");
    assert_eq!(daemon.get("sessions/two")["status"]["incarnation"], 2);

    // A waiting turn that is cancelled is never sent.
    let running = daemon.turn("one", "[[say:running]][[never]]");
    daemon.said("one", &running, "running");
    let waiting = daemon.turn("one", "[[say:never]]");
    daemon.patch(&format!("turns/{waiting}"), &json!({"spec": {"desiredState": "cancelled"}}));
    let ended = daemon.ended(&waiting);
    assert_eq!(ended["status"]["phase"], "Cancelled", "{ended:#}");
    assert_eq!(ended["status"]["delivery"], "NotSent");
    assert_eq!(daemon.get(&format!("turns/{running}"))["status"]["phase"], "Running");
}

#[test]
fn an_agent_that_ends_or_fails_in_a_turn_fails_that_turn_alone() {
    let daemon = Daemon::start();
    let state = format!("--state={}", daemon.path("state").display());
    daemon.agent("plain", &["--cap=all", &state, "--stderr=these are my last words"], json!({}));
    for (session, prompt) in
        [("crash", "[[say:part]][[crash]]"), ("zero", "[[say:part]][[exit:0]]")]
    {
        daemon.session(session, "plain", json!({}));
        let ended = daemon.ask(session, prompt);
        assert_eq!(ended["status"]["phase"], "Failed", "{ended:#}");
        assert_eq!(ended["status"]["code"], "AGENT_PROCESS_INVALIDATED");
        let message = ended["status"]["message"].as_str().unwrap();
        assert!(message.contains("these are my last words"), "{message}");
        let turn = ended["metadata"]["name"].as_str().unwrap();
        assert_eq!(daemon.response(turn), "part");
        let ran = daemon.cli(&["prompt", session, "[[count]]"]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), "prompt 2\n"), "{ran:?}");
    }
    daemon.session("answers", "plain", json!({}));
    for (prompt, phase, code, exit) in [
        ("[[error:-32603:it broke]]", "Failed", "TURN_FAILED", 1),
        ("[[stop:refusal]]", "Failed", "TURN_FAILED", 1),
        ("[[stop:of_its_own]]", "Failed", "TURN_FAILED", 1),
        ("[[stop:cancelled]]", "Cancelled", "TURN_CANCELLED", 3),
        ("[[say:a]][[stop:max_tokens]]", "Completed", "", 0),
    ] {
        let ran = daemon.cli(&["prompt", "answers", prompt, "-o", "json"]);
        assert_eq!(ran.code, Some(exit), "{ran:?}");
        let turn: Value = serde_json::from_str(&ran.out).unwrap();
        assert_eq!(turn["status"]["phase"], phase, "{turn:#}");
        assert_eq!(turn["status"]["code"].as_str().unwrap_or_default(), code, "{turn:#}");
    }
    assert_eq!(daemon.get("sessions/answers")["status"]["incarnation"], 1);
}

#[test]
fn a_setting_that_does_not_resolve_discards_the_turn_and_names_the_candidates() {
    let daemon = Daemon::start();
    daemon.agent("options", &["--cap=all", "--options"], json!({}));
    daemon.agent("models", &["--cap=all", "--models=quick,slow"], json!({}));
    daemon.session("one", "options", json!({}));
    let ran = daemon.cli(&["prompt", "one", "hello", "--model", "huge", "-o", "json"]);
    assert_eq!(ran.code, Some(65), "{ran:?}");
    let turn: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(turn["status"]["phase"], "Discarded", "{turn:#}");
    assert_eq!(turn["status"]["code"], "SPAWN_CONFIGURATION_REQUIRED", "{turn:#}");
    assert_eq!(turn["status"]["delivery"], "NotSent");
    let issues = turn["status"]["issues"].to_string();
    assert!(issues.contains("small") && issues.contains("deep"), "{issues}");
    // The session is usable, and a model that is there is set.
    let ran = daemon.cli(&["prompt", "one", "[[config]]", "--model", "deep"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let config: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(config["options"]["model"], "deep", "{config}");
    assert_eq!(config["options"]["mode"], "full-access", "approve-all takes the widest mode");
    // The old way to choose a model.
    daemon.session("two", "models", json!({"model": "slow"}));
    let ran = daemon.cli(&["prompt", "two", "[[config]]"]);
    let config: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(config["model"], "slow", "{config}");
}

#[test]
fn a_model_is_set_at_an_agent_that_tells_of_it_before_it_answers() {
    let daemon = Daemon::start();
    daemon.agent("options", &["--cap=all", "--options", "--tells-first"], json!({}));
    daemon.session("one", "options", json!({"permissions": "ask"}));
    let ran = daemon.cli(&["prompt", "one", "[[config]]", "--model", "deep"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let config: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(config["options"]["model"], "deep", "{config}");
}

#[test]
fn a_session_waits_for_a_slot_and_then_runs() {
    let daemon = Daemon::with(&["--set", "limits.maxActiveTurns=1"]);
    daemon.agent("plain", &["--cap=all"], json!({}));
    daemon.session("first", "plain", json!({}));
    let first = daemon.turn("first", "[[say:running]][[never]]");
    daemon.said("first", &first, "running");
    daemon.session("second", "plain", json!({"prompt": "[[say:at last]]"}));
    let waiting =
        daemon.until("turns/second-1", |turn| turn["status"]["reason"] == "WaitingForCapacity");
    assert_eq!(waiting["status"]["phase"], "Pending");
    let session = daemon.get("sessions/second");
    assert_eq!(session["status"]["reason"], "WaitingForCapacity", "{session:#}");
    daemon.ok(&["cancel", "first"]);
    daemon.phase("second", "Idle");
    assert_eq!(daemon.response("second-1"), "at last");
}
