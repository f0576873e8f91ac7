//! What the tools do with real agents behind them.

use serde_json::{Value, json};

use super::{Caller, messages, name_of};
use crate::harness::Daemon;

fn daemon(flags: &[&str]) -> (Daemon, Caller) {
    with(&[], flags)
}

fn with(settings: &[&str], flags: &[&str]) -> (Daemon, Caller) {
    let arguments: Vec<&str> = settings.iter().flat_map(|set| ["--set", set]).collect();
    let daemon = Daemon::with(&arguments);
    let state = format!("--state={}", daemon.path("state").display());
    let log = format!("--prompt-log={}", daemon.path("prompts").display());
    let mut all = vec!["--cap=all", &state, &log];
    all.extend(flags);
    daemon.agent("a", &all, json!({"stop": {"cancel": "300ms", "close": "100ms", "eof": "100ms"}}));
    let caller = Caller::new(&daemon, "me");
    (daemon, caller)
}

#[test]
fn a_task_is_handed_over_looked_at_and_read() {
    let (daemon, me) = daemon(&[]);
    let agents = me.told("available_agents", &json!({}));
    assert_eq!(agents, json!({"agents": [{"agentId": "a", "name": "a"}]}));
    let begun = me.begin("[[tool:Reads:read:/etc/hosts]][[say:done]]");
    let turn = name_of(&daemon, "turns", &begun["turnId"]);
    assert_eq!(daemon.ended(&turn)["status"]["phase"], "Completed");
    let status = me.status(&begun["sessionId"]);
    assert_eq!((&status["status"], &status["stopReason"]), (&json!("idle"), &json!("end_turn")));
    let read = me.read(&begun["sessionId"], &status["latestResponseId"], 4096);
    assert_eq!(read, "\n\n### Reads\n\ndone");

    // The same conversation goes on.
    let again = json!({
        "agentId": "a", "prompt": "[[count]]", "sessionId": begun["sessionId"],
        "background": false,
    });
    let told = me.told("prompt_to_agent", &again);
    assert_eq!((&told["status"], &told["content"]), (&json!("completed"), &json!("prompt 2")));

    // To others it is not there.
    let other = Caller::new(&daemon, "other");
    assert_eq!(other.status(&begun["sessionId"]), json!({"status": "not_found"}));
    let told = other.told("prompt_to_agent", &again);
    assert_eq!(told, json!({"status": "not_found", "sessionId": begun["sessionId"]}));
}

#[test]
fn a_long_answer_of_any_letters_is_read_byte_for_byte_also_after_a_restart() {
    let (daemon, me) = daemon(&[]);
    let text = "zwölf Boxkämpfer — 十二拳擊手 😀🏳️‍🌈 ".repeat(6000);
    assert!(text.len() > 300 * 1024);
    let told = me.ask(&text);
    // What the scripted agent makes of a prompt without directives.
    let text = format!("echo: {text}");
    assert_eq!(told["truncated"], true);
    let (session, response) = (&told["sessionId"], &told["responseId"]);
    let first = told["content"].as_str().unwrap();
    assert!(text.starts_with(first) && first.len() <= 24 * 1024);
    assert!(me.read(session, response, 65_536) == text);
    assert!(me.read(session, response, 1023) == text);
    let (_, home) = daemon.stop();
    let daemon = home.serve(&[]);
    let me = me.at(&daemon);
    let piece = me.told(
        "read_response",
        &json!({
            "sessionId": session, "responseId": response, "cursor": told["nextCursor"],
        }),
    );
    let second = piece["content"].as_str().unwrap();
    assert!(text[first.len()..].starts_with(second), "the cursor is as good as before");
}

#[test]
fn a_model_is_found_by_what_it_is_called() {
    let (_daemon, me) = daemon(&["--options"]);
    let ask = |model: &str, session: Option<&Value>| {
        let mut arguments = json!({
            "agentId": "a", "prompt": "[[config]]", "model": model, "background": false,
        });
        if let Some(session) = session {
            arguments["sessionId"] = session.clone();
        }
        me.told("prompt_to_agent", &arguments)
    };
    let told = ask(" DEEP ", None);
    assert_eq!(told["status"], "completed", "{told:#}");
    let config = told["config"].as_array().unwrap();
    let model = config.iter().find(|option| option["id"] == "model").unwrap();
    assert_eq!(model["currentValue"], "deep");

    let told = ask("enormous", None);
    assert_eq!(told["status"], "configuration_required", "{told:#}");
    assert_eq!(told["promptDispatched"], false);
    let issue = &told["issues"][0];
    assert_eq!((&issue["parameter"], &issue["reason"]), (&json!("model"), &json!("unsupported")));
    assert_eq!(issue["candidates"].as_array().unwrap().len(), 2);
    assert!(told["config"].as_array().is_some_and(|config| !config.is_empty()), "{told:#}");
    // No turn has used anything up: the same session takes one of the candidates.
    let status = me.status(&told["sessionId"]);
    assert_eq!(status["status"], "idle", "{status:#}");
    assert_eq!(status["discarded"]["code"], "SPAWN_CONFIGURATION_REQUIRED");
    let again = ask("small", Some(&told["sessionId"]));
    assert_eq!(again["status"], "completed", "{again:#}");
    assert_eq!(again["sessionId"], told["sessionId"]);
    assert!(me.status(&told["sessionId"]).get("discarded").is_none());
}

#[test]
fn a_cancelled_session_is_over() {
    let (daemon, me) = daemon(&[]);
    let begun = me.begin("[[say:part]][[never]]");
    let session = name_of(&daemon, "sessions", &begun["sessionId"]);
    let turn = name_of(&daemon, "turns", &begun["turnId"]);
    daemon.said(&session, &turn, "part");
    let running = me.status(&begun["sessionId"]);
    assert_eq!((&running["status"], &running["mode"]), (&json!("running"), &json!("background")));
    let told = me.told("cancel_session", &json!({"sessionId": begun["sessionId"]}));
    assert_eq!(told, json!({"cancelled": true}));
    daemon.until(&format!("sessions/{session}"), |session| {
        session["status"]["finishedAt"].is_string()
    });
    let status = me.status(&begun["sessionId"]);
    assert_eq!(status["status"], "error", "{status:#}");
    assert_eq!(status["code"], "TURN_CANCELLED_BY_PARENT", "{status:#}");
    assert_eq!(me.read(&begun["sessionId"], &status["responseId"], 100), "part");
    let again = json!({"agentId": "a", "prompt": "x", "sessionId": begun["sessionId"]});
    assert_eq!(me.told("prompt_to_agent", &again)["status"], "expired");
    let told = me.told("cancel_session", &json!({"sessionId": begun["sessionId"]}));
    assert_eq!(told, json!({"cancelled": false, "reason": "Session not found"}));
}

#[test]
fn a_repeated_call_is_answered_with_what_the_first_one_made() {
    let (daemon, me) = daemon(&[]);
    let arguments = json!({
        "agentId": "a", "prompt": "[[count]]", "background": false, "idempotencyKey": "once",
    });
    let first = me.told("prompt_to_agent", &arguments);
    assert_eq!(first["content"], "prompt 1", "{first:#}");
    assert_eq!(me.told("prompt_to_agent", &arguments), first);
    let mut other = arguments.clone();
    other["prompt"] = "something else".into();
    assert_eq!(me.refused("prompt_to_agent", &other), "SPAWN_IDEMPOTENCY_CONFLICT");
    let prompts = std::fs::read_to_string(daemon.path("prompts")).unwrap();
    assert_eq!(prompts.lines().count(), 1, "{prompts}");
}

#[test]
fn a_repeated_call_gives_no_prompt_again_though_its_child_was_deleted() {
    let (daemon, me) = daemon(&[]);
    let arguments = json!({
        "agentId": "a", "prompt": "[[count]]", "background": false, "idempotencyKey": "once",
    });
    let first = me.told("prompt_to_agent", &arguments);
    let child = name_of(&daemon, "sessions", &first["sessionId"]);
    daemon.ok(&["delete", "session", &child, "--wait"]);
    let gone = json!({"status": "not_found", "sessionId": first["sessionId"]});
    assert_eq!(me.told("prompt_to_agent", &arguments), gone);
    // The same after a crash.
    let daemon = daemon.kill9().serve(&[]);
    let me = me.at(&daemon);
    assert_eq!(me.told("prompt_to_agent", &arguments), gone);
    let mut other = arguments.clone();
    other["prompt"] = "something else".into();
    assert_eq!(me.refused("prompt_to_agent", &other), "SPAWN_IDEMPOTENCY_CONFLICT");
    let prompts = std::fs::read_to_string(daemon.path("prompts")).unwrap();
    assert_eq!(prompts.lines().count(), 1, "{prompts}");
}

#[test]
fn what_is_at_work_is_busy_and_a_fifth_has_no_room() {
    let (_daemon, me) = daemon(&[]);
    let begun: Vec<Value> = (0..4).map(|_| me.begin("[[never]]")).collect();
    let arguments = json!({"agentId": "a", "prompt": "x"});
    let told = me.told("prompt_to_agent", &arguments);
    assert_eq!(
        told,
        json!({"status": "capacity_exceeded", "code": "SPAWN_CAPACITY_EXCEEDED", "retryable": true})
    );
    let mut again = arguments.clone();
    again["sessionId"] = begun[0]["sessionId"].clone();
    let told = me.told("prompt_to_agent", &again);
    assert_eq!((&told["status"], &told["sessionId"]), (&json!("busy"), &begun[0]["sessionId"]));
}

#[test]
fn a_call_that_waits_too_long_goes_on_in_the_background() {
    let (daemon, me) = with(&["mcp.maxWait=700ms", "mcp.progressEvery=50ms"], &[]);
    let arguments = json!({"agentId": "a", "prompt": "[[never]]", "background": false});
    let params = json!({
        "name": "prompt_to_agent", "arguments": arguments, "_meta": {"progressToken": 5},
    });
    let mut all = messages(&me.request("tools/call", params).send());
    let told = all.pop().unwrap()["result"]["structuredContent"].clone();
    assert_eq!(told["status"], "running", "{told:#}");
    assert!(!all.is_empty(), "no progress was told");
    for notice in all {
        assert_eq!(notice["method"], "notifications/progress");
        assert_eq!(notice["params"]["progressToken"], 5);
    }
    let turn = name_of(&daemon, "turns", &told["turnId"]);
    daemon.until(&format!("turns/{turn}"), |turn| turn["status"]["phase"] == "Running");
    let status = me.status(&told["sessionId"]);
    assert_eq!((&status["status"], &status["mode"]), (&json!("running"), &json!("sync")));
}

#[test]
fn accepted_is_never_said_of_an_agent_that_does_not_start() {
    for stage in ["start", "initialize", "new"] {
        let (_daemon, me) = daemon(&[&format!("--exit={stage}=3")]);
        for background in [true, false] {
            let arguments = json!({"agentId": "a", "prompt": "x", "background": background});
            let told = me.told("prompt_to_agent", &arguments);
            assert_eq!(told["status"], "error", "{stage}: {told:#}");
            assert_eq!(told["code"], "SPAWN_AGENT_START_FAILED", "{stage}: {told:#}");
            let status = me.status(&told["sessionId"]);
            assert_eq!((&status["status"], &status["code"]), (&json!("error"), &told["code"]));
        }
    }
    let (_daemon, me) = daemon(&["--exit=prompt=3"]);
    let arguments = json!({"agentId": "a", "prompt": "x", "background": false});
    let told = me.told("prompt_to_agent", &arguments);
    assert_eq!(told["code"], "AGENT_PROCESS_INVALIDATED", "{told:#}");
}

#[test]
fn a_client_that_hangs_up_takes_nothing_back_from_an_agent() {
    let (daemon, me) = daemon(&[]);
    let first = json!({"agentId": "a", "prompt": "[[say:x]]", "background": false});
    let session = me.told("prompt_to_agent", &first)["sessionId"].clone();
    // Test catalogue F10. One session for all: what may be made in a minute is bounded.
    for round in 0..if crate::chaos::tier() == 0 { 20 } else { 200 } {
        let arguments = json!({
            "agentId": "a", "prompt": format!("[[say:begun]][[sleep:50]][[say: {round}]]"),
            "sessionId": session, "background": false,
        });
        let before = turns(&daemon);
        let connection = me.tool("prompt_to_agent", &arguments).begin();
        let turn = new_turn(&daemon, &before);
        daemon.until(&format!("turns/{turn}"), |turn| turn["status"]["delivery"] == "Sent");
        drop(connection);
        assert_eq!(daemon.ended(&turn)["status"]["phase"], "Completed");
    }
    assert!(me.told("available_agents", &json!({}))["agents"].is_array());
}

#[test]
fn a_client_that_hangs_up_before_the_agent_has_the_prompt_takes_its_call_back() {
    let (daemon, me) = daemon(&["--silent=new"]);
    let arguments = json!({"agentId": "a", "prompt": "x"});
    let connection = me.tool("prompt_to_agent", &arguments).begin();
    let turn = new_turn(&daemon, &[]);
    let session = daemon.get(&format!("turns/{turn}"))["spec"]["session"].clone();
    drop(connection);
    daemon.gone(&format!("sessions/{}", session.as_str().unwrap()));
    assert!(!daemon.has(&format!("turns/{turn}")));
}

#[test]
fn a_crash_of_the_daemon_is_told_of_and_nothing_is_sent_again() {
    let (daemon, me) = daemon(&[]);
    let begun = me.begin("[[say:part]][[never]]");
    let session = name_of(&daemon, "sessions", &begun["sessionId"]);
    let turn = name_of(&daemon, "turns", &begun["turnId"]);
    daemon.said(&session, &turn, "part");
    let daemon = daemon.kill9().serve(&[]);
    let me = me.at(&daemon);
    daemon.ended(&turn);
    let status = me.status(&begun["sessionId"]);
    assert_eq!(
        (&status["status"], &status["code"]),
        (&json!("interrupted"), &json!("APP_RESTARTED"))
    );
    assert_eq!(status["delivery"], "Sent", "{status:#}");
    let again = json!({
        "agentId": "a", "prompt": "[[count]]", "sessionId": begun["sessionId"], "background": false,
    });
    let told = me.told("prompt_to_agent", &again);
    assert_eq!(told["content"], "prompt 2", "{told:#}");
}

/// The names of all turns.
fn turns(daemon: &Daemon) -> Vec<String> {
    let path = "/apis/spawnlet.dev/v1alpha1/namespaces/default/turns";
    let list = daemon.request("GET", path).send().json();
    let items = list["items"].as_array().unwrap();
    items.iter().map(|item| item["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}

/// A turn that was not there before, as the watch tells of it.
fn new_turn(daemon: &Daemon, before: &[String]) -> String {
    let path = "/apis/spawnlet.dev/v1alpha1/namespaces/default/turns?watch=true";
    let mut watch = daemon.request("GET", path).stream();
    loop {
        let event = watch.next_json().expect("a turn is made");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
        if event["type"] == "ADDED" && !before.iter().any(|known| known == name) {
            return name.to_owned();
        }
    }
}
