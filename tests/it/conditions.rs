//! What sessions and agents show of themselves, beside what other files hold.

use serde_json::{Value, json};

use crate::harness::Daemon;

/// A condition of an object: status and reason.
fn condition<'o>(object: &'o Value, kind: &str) -> Option<(&'o str, &'o str)> {
    let found = crate::harness::condition(object, kind)?;
    Some((found["status"].as_str()?, found["reason"].as_str()?))
}

/// Known failures G04 and G05.
#[test]
fn an_agent_that_goes_on_after_its_turn_is_shown_and_is_not_idle() {
    let daemon = Daemon::start();
    daemon.agent("a", &["--cap=all"], json!({}));
    let spec = json!({"idleTimeout": "600ms", "prompt": "[[late:6:300]][[say:x]]"});
    daemon.session("s", "a", spec);
    let turn = daemon.ended("s-1");
    assert_eq!(turn["status"]["phase"], "Completed");
    let working =
        daemon.until("sessions/s", |session| condition(session, "ActivityAfterTurn").is_some());
    assert_eq!(condition(&working, "ActivityAfterTurn"), Some(("True", "LateActivity")));
    assert_eq!(working["status"]["phase"], "Idle");
    let parked = daemon.phase("s", "Hibernated");
    assert_eq!(condition(&parked, "ActivityAfterTurn"), None);
    // All of it was heard before: the transcript has it, whichever pieces it came in, marked as late.
    let stored = daemon.ok(&["logs", "s", "-o", "acp"]);
    let late: String = stored
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|line| line["late"] == true)
        .map(|line| line["update"]["content"]["text"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(late, "late 0late 1late 2late 3late 4late 5");
    assert_eq!(daemon.response("s-1"), "x");
}

#[test]
fn a_session_tells_whether_its_options_stand_and_an_agent_what_its_sessions_met() {
    let daemon = Daemon::start();
    daemon.agent("a", &["--cap=load", "--options"], json!({}));
    let spec = json!({"prompt": "one", "model": "deep", "delegation": {"enabled": true}});
    daemon.session("s", "a", spec);
    daemon.ended("s-1");
    let session = daemon.get("sessions/s");
    assert_eq!(condition(&session, "ConfigApplied"), Some(("True", "Applied")), "{session:#}");
    let deaf = Some(("True", "NoHttpServers"));
    assert_eq!(condition(&session, "DelegationUnavailable"), deaf);
    let agent = daemon.get("agents/a");
    assert_eq!(condition(&agent, "DelegationUnavailable"), deaf, "{agent:#}");
    daemon.patch("sessions/s", &json!({"spec": {"model": "no such"}}));
    let turn = daemon.ask("s", "two");
    assert_eq!(turn["status"]["phase"], "Discarded");
    let session = daemon.get("sessions/s");
    let failed = Some(("False", "ConfigurationRequired"));
    assert_eq!(condition(&session, "ConfigApplied"), failed);

    // It may do less than everything and never asks.
    daemon.agent("quiet", &["--cap=all"], json!({"permissions": "ask"}));
    daemon.session("q", "quiet", json!({"prompt": "one"}));
    daemon.ended("q-1");
    let agent = daemon.until("agents/quiet", |agent| {
        condition(agent, "PermissionsNotEnforced") == Some(("True", "NeverAsked"))
    });
    assert_eq!(condition(&agent, "DelegationUnavailable"), None, "{agent:#}");

    // One that never starts; the one that does takes it off.
    daemon.agent_of("broken", &["/bin/false".to_owned()], json!({}));
    daemon.session("b", "broken", json!({"prompt": "one"}));
    let agent = daemon.until("agents/broken", |agent| condition(agent, "CrashLooping").is_some());
    assert_eq!(condition(&agent, "CrashLooping").unwrap().0, "True");
    daemon.agent("broken", &["--cap=all"], json!({}));
    daemon.ended("b-1");
    let agent = daemon.get("agents/broken");
    assert_eq!(condition(&agent, "CrashLooping"), None, "{agent:#}");
}

/// Known failures A16, B07 and B13.
#[test]
fn describe_tells_stuck_from_idle_and_what_runs_in_the_background() {
    let daemon = Daemon::start();
    daemon.agent("a", &["--cap=all"], json!({}));
    let job = "[[escape:setsid]][[tool:t:read:/x]][[say:x]][[never]]";
    daemon.session("s", "a", json!({"prompt": job, "turnInactivityTimeout": "10m"}));
    daemon.said("s", "s-1", "x");
    let session = daemon.get("sessions/s");
    let path = crate::harness::path_of("sessions/s");
    let seen = daemon.request("GET", &format!("{path}/processes")).send().json();
    assert_eq!(seen["pid"], session["status"]["process"]["pid"], "{seen:#}");
    assert_eq!(seen["isAlive"], true);
    let processes = seen["processes"].as_array().unwrap();
    let named = |name: &str| processes.iter().find(|one| one["name"] == name);
    assert_eq!(named("fakeagent").unwrap()["pid"], seen["pid"], "{seen:#}");
    let job = processes.iter().find(|one| one["pid"] != seen["pid"]).unwrap();
    assert!(job["cpuDeltaMs"].is_u64() && job["residentKib"].as_u64() > Some(0), "{job:#}");
    let out = daemon.ok(&["describe", "session", "s"]);
    for part in [
        "Running for ",
        &format!("pid {}, alive", seen["pid"]),
        "s-1, silent for ",
        "it is cancelled for silence in 9m",
        "Activity:",
        &job["pid"].to_string(),
    ] {
        assert!(out.contains(part), "{part}: {out}");
    }
    daemon.ok(&["stop", "s"]);
    daemon.phase("s", "Stopped");
    let seen = daemon.request("GET", &format!("{path}/processes")).send().json();
    assert_eq!((&seen["isAlive"], &seen["processes"]), (&json!(false), &json!([])));
}
