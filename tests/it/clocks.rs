//! Starts that fail, and the clocks of sessions: each alone, all in one daemon.

use serde_json::{Value, json};

use crate::harness::Daemon;

fn condition<'a>(object: &'a Value, kind: &str) -> &'a Value {
    crate::harness::condition(object, kind).unwrap_or(&Value::Null)
}

/// A waiting turn's session, once the start has failed for this reason.
fn failed(daemon: &Daemon, session: &str, reason: &str) -> Value {
    daemon.until(&format!("sessions/{session}"), |found| {
        found["status"]["restarts"]["reason"] == reason
    })
}

#[test]
fn a_start_that_fails_leaves_the_turn_waiting_and_says_why() {
    let daemon = Daemon::start();
    let quick = json!({"startTimeout": "400ms", "stop": {"eof": "100ms", "term": "100ms"}});
    daemon.agent("mute", &["--silent=initialize"], quick.clone());
    daemon.agent("no-new", &["--silent=new"], quick);
    daemon.agent("v9", &["--protocol=9"], json!({}));
    daemon.agent("login", &["--auth=by-hand"], json!({}));
    daemon.agent("refuses", &["--fail=new=-32603:no room", "--stderr=disk is full"], json!({}));
    for name in ["mute", "no-new", "v9", "login", "refuses"] {
        daemon.session(name, name, json!({"prompt": "hello"}));
    }
    for (name, reason, words) in [
        ("mute", "StartTimeout", "initialize within 400ms"),
        ("no-new", "StartTimeout", "session/new within 400ms"),
        ("v9", "ProtocolVersion", "protocol version 9"),
        ("login", "AuthRequired", "by-hand"),
        ("refuses", "HandshakeFailed", "no room"),
    ] {
        let session = failed(&daemon, name, reason);
        let error = session["status"]["restarts"]["lastError"].as_str().unwrap();
        assert!(error.contains(words), "{name}: {error}");
        let turn = daemon.get(&format!("turns/{name}-1"));
        // Back in the queue, or taken again: the first retry comes at once.
        let phase = turn["status"]["phase"].as_str().unwrap();
        assert!(matches!(phase, "Pending" | "Starting"), "{turn:#}");
        assert_eq!(turn["status"]["delivery"], "NotSent");
    }
    let session = failed(&daemon, "refuses", "HandshakeFailed");
    let error = session["status"]["restarts"]["lastError"].as_str().unwrap();
    assert!(error.contains("disk is full"), "standard error is told: {error}");
    // What waiting cannot cure is not tried again.
    for name in ["v9", "login"] {
        let session = daemon.until(&format!("sessions/{name}"), |session| {
            condition(session, "Stalled")["reason"] == "CrashLoopBackOff"
        });
        assert_eq!(session["status"]["incarnation"], 1, "{session:#}");
        assert_eq!(session["status"]["phase"], "Pending", "{session:#}");
    }
}

#[test]
fn a_session_waits_for_what_it_refers_to_and_for_an_agent_that_starts() {
    let daemon = Daemon::start();
    // No agent at all, then one without a program, then a good one.
    let later = daemon.path("work/later").display().to_string();
    daemon.session("unknown", "unborn", json!({"prompt": "[[say:here]]"}));
    let session = daemon.until("sessions/unknown", |session| {
        condition(session, "AgentResolved")["status"] == "False"
    });
    assert_eq!(session["status"]["phase"], "Pending", "{session:#}");
    daemon.agent_of("unborn", &["/no/such/program".to_owned()], json!({}));
    daemon.until("sessions/unknown", |session| {
        session["status"].to_string().contains("/no/such/program")
    });
    daemon.agent("unborn", &["--cap=all"], json!({}));
    daemon.phase("unknown", "Idle");
    assert_eq!(daemon.response("unknown-1"), "here");

    // A directory that is made later.
    daemon.session("nowhere", "unborn", json!({"cwd": later, "prompt": "[[cwd]]"}));
    let session = daemon.until("sessions/nowhere", |session| {
        condition(session, "ScopeResolved")["status"] == "False"
    });
    assert_eq!(session["status"]["phase"], "Pending", "{session:#}");
    assert!(condition(&session, "ScopeResolved")["message"].as_str().unwrap().contains("later"));
    std::fs::create_dir(&later).unwrap();
    daemon.phase("nowhere", "Idle");
    assert_eq!(daemon.response("nowhere-1"), later);

    // An agent that ends at once is tried five times, then left alone until it is changed.
    daemon.agent("loops", &["--exit=start=3", "--stderr=cannot start"], json!({}));
    daemon.session("loop", "loops", json!({"prompt": "[[say:cured]]"}));
    let session = daemon.until("sessions/loop", |session| {
        condition(session, "Stalled")["reason"] == "CrashLoopBackOff"
    });
    assert_eq!(session["status"]["incarnation"], 5, "{session:#}");
    assert!(session.to_string().contains("cannot start"), "{session:#}");
    daemon.agent("loops", &["--cap=all"], json!({}));
    let session = daemon.phase("loop", "Idle");
    assert!(condition(&session, "Stalled").is_null(), "{session:#}");
    assert_eq!(daemon.response("loop-1"), "cured");
}

#[test]
fn each_clock_of_a_session_ends_what_it_is_for() {
    let daemon = Daemon::start();
    let state = format!("--state={}", daemon.path("state").display());
    daemon.agent("plain", &["--cap=all", &state], json!({}));
    let silent = json!({"turnInactivityTimeout": "500ms", "prompt": "[[say:part]][[never]]"});
    daemon.session("silent", "plain", silent);
    daemon.session("idle", "plain", json!({"idleTimeout": "400ms", "prompt": "[[count]]"}));
    daemon.session("old", "plain", json!({"ttl": "1500ms", "prompt": "[[say:x]][[never]]"}));
    daemon.session("aged", "plain", json!({"ttl": "1500ms", "prompt": "[[say:done]]"}));
    let brief = json!({"ttlAfterFinished": "300ms", "prompt": "[[say:done]]"});
    daemon.session("brief", "plain", brief);

    // No traffic in a turn.
    let turn = daemon.ended("silent-1");
    assert_eq!(turn["status"]["phase"], "Expired", "{turn:#}");
    assert_eq!(turn["status"]["code"], "TURN_INACTIVITY_TIMEOUT", "{turn:#}");
    assert_eq!(turn["status"]["cancel"]["by"], "Inactivity");
    let session = daemon.phase("silent", "Stopped");
    assert_eq!(session["status"]["reason"], "Inactivity", "{session:#}");

    // No turn: the process goes, the conversation does not.
    let session = daemon.phase("idle", "Hibernated");
    assert!(session["status"]["process"].is_null(), "{session:#}");
    let ran = daemon.cli(&["prompt", "idle", "[[count]]"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "prompt 2\n"), "{ran:?}");
    assert_eq!(daemon.get("sessions/idle")["status"]["incarnation"], 2);

    // The end of its life: over a turn, and over a session that has finished one.
    let session = daemon.phase("old", "Stopped");
    assert_eq!(session["status"]["reason"], "TtlExpired", "{session:#}");
    let turn = daemon.get("turns/old-1");
    assert_eq!(turn["status"]["phase"], "Expired", "{turn:#}");
    assert_eq!(turn["status"]["code"], "TTL_EXPIRED", "{turn:#}");
    let session = daemon.phase("aged", "Stopped");
    assert_eq!(session["status"]["reason"], "TtlExpired", "{session:#}");
    assert_eq!(daemon.get("turns/aged-1")["status"]["phase"], "Completed");

    // The record of one that has ended.
    daemon.phase("brief", "Idle");
    daemon.ok(&["stop", "brief"]);
    daemon.gone("sessions/brief");
}

/// Known failures B05, B06.
#[test]
fn tool_calls_have_a_clock_of_their_own_and_standard_error_re_arms_none() {
    let daemon = Daemon::start();
    daemon.agent("plain", &["--cap=all"], json!({}));
    let clocks = |turn: &str, tool: &str, prompt: &str| json!({"turnInactivityTimeout": turn, "toolInactivityTimeout": tool, "prompt": prompt});
    // Allowed more than a turn is, and given it only while the call is in progress.
    let long = "[[open-tool:build]][[sleep:1500]][[say:built]]";
    daemon.session("long", "plain", clocks("500ms", "1m", long));
    let lost = "[[open-tool:build]][[sleep:500]][[say:on]][[sleep:500]][[say:on]][[never]]";
    daemon.session("lost", "plain", clocks("700ms", "900ms", lost));
    daemon.session("short", "plain", clocks("10m", "400ms", "[[open-tool:build]][[never]]"));
    let ended = "[[tool:build:read:/x]][[sleep:1500]][[say:thought]]";
    daemon.session("ended", "plain", clocks("10m", "400ms", ended));
    let noisy = "[[stderr:10]][[sleep:200]]".repeat(20) + "[[say:alive]]";
    daemon.session("noisy", "plain", clocks("700ms", "0", &noisy));

    assert_eq!(daemon.ended("long-1")["status"]["phase"], "Completed");
    assert_eq!(daemon.ended("ended-1")["status"]["phase"], "Completed");
    for (turn, words) in [
        ("short-1", "400ms while a tool call was in progress"),
        // Its completion never came, and the watchdog is on all the same.
        ("lost-1", "700ms in a turn"),
        ("noisy-1", "700ms in a turn"),
    ] {
        let turn = daemon.ended(turn);
        assert_eq!(turn["status"]["code"], "TURN_INACTIVITY_TIMEOUT", "{turn:#}");
        let session = turn["spec"]["session"].as_str().unwrap();
        let session = daemon.phase(session, "Stopped");
        let message = session["status"]["message"].as_str().unwrap();
        assert!(message.contains(words), "{message}");
    }
}

/// Known failures H09.
#[test]
fn a_ttl_is_extended_while_its_session_lives() {
    let daemon = Daemon::start();
    daemon.agent("plain", &["--cap=all"], json!({}));
    for name in ["kept", "left"] {
        daemon.session(name, "plain", json!({"ttl": "2s", "prompt": "[[say:x]]"}));
    }
    let said = daemon.ok(&["extend", "kept", "1h"]);
    assert!(said.contains("session/kept has a ttl of 1h 2s, until 20"), "{said}");
    let kept = daemon.get("sessions/kept");
    assert_eq!(kept["spec"]["ttl"], "1h 2s");
    daemon.phase("left", "Stopped");
    let kept = daemon.until("sessions/kept", |session| {
        session["status"]["observedGeneration"] == session["metadata"]["generation"]
    });
    assert_eq!(kept["status"]["phase"], "Idle", "{kept:#}");
    let ends = kept["status"]["lineage"]["ttlExpiresAt"].as_str().unwrap();
    assert!(said.trim().ends_with(ends), "{said} {ends}");
    let table = daemon.ok(&["get", "sessions", "-o", "wide"]);
    let column = table.lines().next().unwrap().find("LEFT").unwrap();
    let row = table.lines().find(|line| line.starts_with("kept")).unwrap();
    assert!(row[column..].starts_with("59m") || row[column..].starts_with("60m"), "{table}");

    daemon.session("endless", "plain", json!({}));
    for (arguments, code, words) in [
        (["extend", "left", "1h"], 1, "has ended (TtlExpired)"),
        (["extend", "endless", "1h"], 1, "has no ttl"),
        (["extend", "nobody", "1h"], 1, "not found"),
        (["extend", "kept", "0s"], 2, "adds nothing"),
        (["extend", "kept", "soon"], 2, "soon"),
    ] {
        let refused = daemon.cli(&arguments);
        assert_eq!(refused.code, Some(code), "{refused:?}");
        assert!(refused.err.contains(words), "{refused:?}");
    }
    // Less is a patch, and may end it at once.
    assert_eq!(daemon.patch("sessions/kept", &json!({"spec": {"ttl": "1s"}})).status, 200);
    assert_eq!(daemon.phase("kept", "Stopped")["status"]["reason"], "TtlExpired");
}

/// Known failures D05.
#[test]
fn a_response_waits_for_late_chunks_if_its_agent_says_so() {
    let daemon = Daemon::start();
    daemon.agent("hasty", &["--cap=all"], json!({}));
    daemon.agent("slow", &["--cap=all"], json!({"lateUpdateGrace": "1s"}));
    for name in ["hasty", "slow"] {
        daemon.session(name, name, json!({"prompt": "[[say:a ]][[late:2:50]]"}));
        assert_eq!(daemon.ended(&format!("{name}-1"))["status"]["phase"], "Completed");
    }
    assert_eq!(daemon.response("hasty-1"), "a ");
    assert_eq!(daemon.response("slow-1"), "a late 0late 1");
}
