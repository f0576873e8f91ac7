//! Every line of the table, and which of two comes first.

use serde_json::{Value, json};

use super::*;

const SESSION: &str = "01890a5d-ac96-774b-bcce-b302099a8000";

fn session(status: Value) -> Session {
    session_of(json!({"agent": "a"}), status)
}

fn session_of(spec: Value, status: Value) -> Session {
    serde_json::from_value(json!({
        "apiVersion": "spawnlet.dev/v1alpha1", "kind": "Session",
        "metadata": {"name": "s", "namespace": "default", "uid": SESSION},
        "spec": spec, "status": status,
    }))
    .unwrap()
}

fn turn(number: u32, status: Value) -> Turn {
    serde_json::from_value(json!({
        "apiVersion": "spawnlet.dev/v1alpha1", "kind": "Turn",
        "metadata": {
            "name": format!("s-{number}"), "namespace": "default", "uid": format!("turn-{number}"),
            "creationTimestamp": "2026-01-01T00:00:00.000Z",
        },
        "spec": {"session": "s", "prompt": "p"}, "status": status,
    }))
    .unwrap()
}

/// What is said of records.
struct Told<'a> {
    session: Session,
    open: Option<&'a Turn>,
    latest: Option<&'a Turn>,
    newest: Option<&'a Turn>,
}

impl Told<'_> {
    fn json(&self) -> Value {
        let known = Known {
            session: &self.session,
            open: self.open,
            latest: self.latest,
            newest: self.newest.or(self.latest),
            live: None,
        };
        let told = serde_json::to_value(of(&known)).unwrap();
        let schema = crate::mcp::spawn::results::schema::<Standing>();
        if let Err(error) = jsonschema::validate(&Value::Object(schema), &told) {
            panic!("{told:#}: {error}");
        }
        told
    }
}

fn told(status: Value, latest: Option<&Turn>) -> Value {
    Told { session: session(status), open: None, latest, newest: None }.json()
}

fn end(outcome: &str, reason: &str, code: Option<&str>) -> Value {
    let at = "2026-01-01T00:00:00Z";
    let mut end = json!({"outcome": outcome, "reason": reason, "message": "why", "at": at});
    if let Some(code) = code {
        end["code"] = code.into();
    }
    json!({"end": end})
}

fn status_and_code(told: &Value) -> (&str, &str) {
    (told["status"].as_str().unwrap(), told["code"].as_str().unwrap_or_default())
}

#[test]
fn an_unfinished_turn_comes_before_everything_else() {
    for phase in ["Pending", "Starting", "Running", "Cancelling"] {
        let open = turn(2, json!({"phase": phase}));
        let failed = turn(1, json!({"phase": "Failed", "code": "TURN_FAILED"}));
        for status in [json!({}), end("Failed", "StartupFailure", Some("SPAWN_AGENT_START_FAILED"))]
        {
            let told = Told {
                session: session(status),
                open: Some(&open),
                latest: Some(&failed),
                newest: Some(&open),
            }
            .json();
            assert_eq!(told["status"], "running");
            assert_eq!(told["phase"], phase);
            assert_eq!(told["turnId"], "turn-2");
            assert_eq!(told["mode"], "background");
            assert_eq!(told["startedAt"], "2026-01-01T00:00:00.000Z");
        }
    }
}

#[test]
fn a_turn_that_waits_for_somebody_says_for_what() {
    let waiting = json!({"permission": "s-1-p2", "tool": "rm -r build",
        "since": "2026-01-01T00:00:01.000Z"});
    let open = turn(1, json!({"phase": "Running", "waitingFor": waiting}));
    let session = session(json!({}));
    let known = Known {
        session: &session,
        open: Some(&open),
        latest: None,
        newest: Some(&open),
        live: None,
    };
    let told = serde_json::to_value(of(&known)).unwrap();
    assert_eq!((&told["status"], &told["waitingFor"]), (&json!("running"), &waiting));
}

#[test]
fn what_is_live_is_newer_than_the_record() {
    let at = |ms: i64| Time::from_millis(1_767_225_600_000 + ms);
    let mut open = turn(1, json!({"phase": "Running", "startedAt": at(1000)}));
    open.spec.background = false;
    let activity = |ms: i64| Activity { kind: "tool".into(), at: at(ms), message: None };
    let live = LiveActivity {
        turn: Some("turn-1".into()),
        last_activity_at: Some(at(9000)),
        last_progress_at: Some(at(8000)),
        recent: (1..=5).map(|n| activity(n * 1000)).collect(),
    };
    let session = session(json!({}));
    let told = |live: &LiveActivity| {
        let known = Known {
            session: &session,
            open: Some(&open),
            latest: None,
            newest: Some(&open),
            live: Some(live),
        };
        serde_json::to_value(of(&known)).unwrap()
    };
    let now = told(&live);
    assert_eq!(now["mode"], "sync");
    assert_eq!(now["lastActivityAt"], json!(at(9000)));
    assert_eq!(now["lastProgressAt"], json!(at(8000)));
    assert_eq!(now["recentActivity"].as_array().unwrap().len(), RECENT_MAX);
    assert_eq!(now["recentActivity"][2]["at"], json!(at(5000)));
    // What is live of another turn says nothing of this one.
    let stale = told(&LiveActivity { turn: Some("turn-0".into()), ..live });
    assert_eq!(stale["lastActivityAt"], json!(at(1000)));
    assert_eq!(stale["recentActivity"], json!([]));
}

#[test]
fn a_session_that_failed_or_was_ended_is_an_error() {
    let done = turn(1, json!({"phase": "Completed", "responseId": "turn-1"}));
    for (outcome, reason, code, said) in [
        ("Failed", "StartupFailure", Some("SPAWN_AGENT_START_FAILED"), "SPAWN_AGENT_START_FAILED"),
        ("Failed", "AuthRequired", Some("SPAWN_AGENT_AUTH_REQUIRED"), "SPAWN_AGENT_AUTH_REQUIRED"),
        ("Failed", "StartupFailure", None, "SPAWN_AGENT_START_FAILED"),
        ("Failed", "ProtocolFailure", Some("TURN_FAILED"), "TURN_FAILED"),
        ("Stopped", "Cancelled", Some("TURN_CANCELLED"), "TURN_CANCELLED"),
        ("Stopped", "Cancelled", Some("TURN_CANCELLED_BY_PARENT"), "TURN_CANCELLED_BY_PARENT"),
        ("Stopped", "Inactivity", Some("TURN_INACTIVITY_TIMEOUT"), "TURN_INACTIVITY_TIMEOUT"),
        ("Stopped", "ParentDeleted", Some("PARENT_SESSION_DELETED"), "PARENT_SESSION_DELETED"),
    ] {
        let told = told(end(outcome, reason, code), Some(&done));
        assert_eq!(status_and_code(&told), ("error", said), "{outcome} {reason}");
        assert_eq!(told["latestTurnId"], "turn-1");
        assert_eq!(told["latestResponseId"], "turn-1");
        assert_eq!(told["responseId"], "turn-1");
        assert_eq!(told["message"], "why");
    }
}

#[test]
fn a_cancel_is_told_by_who_asked_also_before_the_loop_came_to_it() {
    let by = |by: &str| json!({"cancel": {"by": by, "at": "2026-01-01T00:00:00Z"}});
    for (who, code) in [("Parent", "TURN_CANCELLED_BY_PARENT"), ("Operator", "TURN_CANCELLED")] {
        let session = session_of(json!({"agent": "a", "desiredState": "cancelled"}), by(who));
        let told = Told { session, open: None, latest: None, newest: None }.json();
        assert_eq!(status_and_code(&told), ("error", code));
        let mut ended = end("Stopped", "Cancelled", Some("TURN_CANCELLED"));
        ended["cancel"] = by(who)["cancel"].clone();
        assert_eq!(status_and_code(&super::tests::told(ended, None)), ("error", code));
    }
}

#[test]
fn an_agent_that_did_not_confirm_is_told_of_by_its_turn() {
    let stopped = turn(
        1,
        json!({
            "phase": "Expired", "code": "TURN_CANCEL_UNCONFIRMED",
            "cancel": {"by": "Inactivity", "at": "2026-01-01T00:00:00Z"},
        }),
    );
    let ended = end("Stopped", "Inactivity", Some("TURN_INACTIVITY_TIMEOUT"));
    assert_eq!(status_and_code(&told(ended, Some(&stopped))), ("error", "TURN_CANCEL_UNCONFIRMED"));
}

#[test]
fn a_ttl_during_a_turn_is_an_error_and_after_one_an_expiry() {
    let ended = || end("Stopped", "TtlExpired", Some("TTL_EXPIRED"));
    let during =
        turn(1, json!({"phase": "Expired", "code": "TTL_EXPIRED", "responseId": "turn-1"}));
    let before = turn(1, json!({"phase": "Completed", "responseId": "turn-1"}));
    let during = told(ended(), Some(&during));
    assert_eq!(status_and_code(&during), ("error", "TTL_EXPIRED"));
    assert_eq!(during["responseId"], "turn-1");
    let after = told(ended(), Some(&before));
    assert_eq!(status_and_code(&after), ("expired", "TTL_EXPIRED"));
    assert_eq!(after["latestResponseId"], "turn-1");
    assert_eq!(status_and_code(&told(ended(), None)), ("expired", "TTL_EXPIRED"));
}

#[test]
fn a_session_that_cannot_go_on_is_expired() {
    let interrupted = turn(1, json!({"phase": "Interrupted", "code": "APP_RESTARTED"}));
    for (outcome, reason, code) in [
        ("Stopped", "IdleTimeout", None),
        ("Expired", "SessionLost", Some("AGENT_PROCESS_INVALIDATED")),
        ("Expired", "NotResumable", Some("AGENT_PROCESS_INVALIDATED")),
    ] {
        // Also where the latest turn was interrupted: the line before counts.
        let told = told(end(outcome, reason, code), Some(&interrupted));
        assert_eq!(status_and_code(&told), ("expired", code.unwrap_or_default()), "{reason}");
        assert_eq!(told["message"], "why");
        assert_eq!(told["latestTurnId"], "turn-1");
    }
    let lost = json!({"prompted": true, "capabilities": {"close": true}});
    assert_eq!(status_and_code(&told(lost, None)), ("expired", "AGENT_PROCESS_INVALIDATED"));
    for goes_on in [
        json!({"prompted": true, "capabilities": {"resume": true}}),
        json!({"prompted": true, "capabilities": {"load": true}}),
        json!({"prompted": false, "capabilities": {}}),
    ] {
        assert_eq!(told(goes_on, None)["status"], "idle");
    }
}

#[test]
fn an_interrupted_turn_says_whether_the_agent_had_it() {
    for (code, delivery) in [("APP_SHUTDOWN", "Sent"), ("APP_RESTARTED", "Unknown")] {
        let latest = turn(
            1,
            json!({
                "phase": "Interrupted", "code": code, "delivery": delivery, "message": "why",
                "responseId": "turn-1",
            }),
        );
        let told = told(json!({}), Some(&latest));
        assert_eq!(status_and_code(&told), ("interrupted", code));
        assert_eq!(told["delivery"], delivery);
        assert_eq!(told["latestResponseId"], "turn-1");
    }
}

#[test]
fn a_turn_that_did_not_complete_is_an_error() {
    for (phase, code) in [
        ("Failed", "TURN_FAILED"),
        ("Failed", "AGENT_PROCESS_INVALIDATED"),
        ("Cancelled", "TURN_CANCELLED"),
        ("Expired", "TURN_BUDGET_EXHAUSTED"),
    ] {
        let latest = turn(1, json!({"phase": phase, "code": code, "message": "why"}));
        let told = told(json!({}), Some(&latest));
        assert_eq!(status_and_code(&told), ("error", code));
        assert_eq!(told["latestTurnId"], "turn-1");
        assert!(told.get("responseId").is_none());
    }
}

#[test]
fn otherwise_a_session_is_idle() {
    assert_eq!(told(json!({}), None), json!({"status": "idle"}));
    let latest = turn(
        1,
        json!({
            "phase": "Completed", "stopReason": "max_tokens", "responseId": "turn-1",
        }),
    );
    assert_eq!(
        told(json!({}), Some(&latest)),
        json!({
            "status": "idle", "latestTurnId": "turn-1", "latestResponseId": "turn-1",
            "stopReason": "max_tokens",
        })
    );
}

#[test]
fn an_idle_session_tells_of_a_prompt_that_did_not_get_to_the_agent() {
    let latest = turn(1, json!({"phase": "Completed"}));
    let issue = json!({
        "parameter": "model", "reason": "unsupported", "requested": "x", "candidates": [],
    });
    let newest = |code: &str, phase: &str, issues: Value| {
        turn(2, json!({"phase": phase, "code": code, "message": "why", "issues": issues}))
    };
    let told = |newest: &Turn| {
        let session = session(json!({}));
        Told { session, open: None, latest: Some(&latest), newest: Some(newest) }.json()
    };
    let required = newest("SPAWN_CONFIGURATION_REQUIRED", "Discarded", json!([issue]));
    assert_eq!(
        told(&required)["discarded"],
        json!({
            "turnId": "turn-2", "code": "SPAWN_CONFIGURATION_REQUIRED", "message": "why",
            "issues": [issue],
        })
    );
    let failed = newest("SPAWN_CONFIG_FAILED", "Discarded", json!([]));
    assert_eq!(told(&failed)["discarded"]["code"], "SPAWN_CONFIG_FAILED");
    // A message that was dropped from the inbox is nobody's configuration.
    let dropped = newest("TURN_CANCELLED", "Discarded", json!([]));
    assert!(told(&dropped).get("discarded").is_none());
}
