//! The end of the daemon, and what its successor makes of it.

use serde_json::json;

use crate::harness::{Daemon, Home};

/// A daemon with two sessions: one in a turn with escaped children, one idle.
fn busy(home: Home) -> (Daemon, String) {
    let daemon = home.serve(&[]);
    let flag = |name: &str| format!("--{name}={}", daemon.path("log").join(name).display());
    daemon.agent("plain", &["--cap=all", &flag("state"), &flag("prompt-log")], json!({}));
    daemon.session("idle", "plain", json!({"prompt": "[[say:first]]"}));
    daemon.phase("idle", "Idle");
    daemon.session("busy", "plain", json!({}));
    let prompt = "[[say:part]][[escape:setsid]][[escape:double]][[escape:scrub]][[say:begun]]\
                  [[never]]";
    let turn = daemon.turn("busy", prompt);
    daemon.said("busy", &turn, "begun");
    (daemon, turn)
}

/// What holds after every restart: nothing was sent twice, and the sessions go on.
fn goes_on(daemon: &Daemon, turn: &str, code: &str) {
    let ended = daemon.ended(turn);
    assert_eq!(ended["status"]["phase"], "Interrupted", "{ended:#}");
    assert_eq!(ended["status"]["code"], code, "{ended:#}");
    assert_eq!(ended["status"]["delivery"], "Sent", "{ended:#}");
    assert!(daemon.response(turn).starts_with("part"), "{}", daemon.response(turn));
    let ran = daemon.cli(&["prompt", "busy", "[[count]]"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "prompt 2\n"), "{ran:?}");
    let ran = daemon.cli(&["prompt", "idle", "[[count]]"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "prompt 2\n"), "{ran:?}");
    let prompts = daemon.logged("prompt-log");
    assert_eq!(prompts.len(), 4, "{prompts:#?}");
    let begun = |entry: &&serde_json::Value| entry["text"].as_str().unwrap().contains("begun");
    assert_eq!(prompts.iter().filter(begun).count(), 1, "{prompts:#?}");
}

#[test]
fn after_a_crash_the_turn_is_interrupted_and_the_session_resumes() {
    let (daemon, turn) = busy(Home::new());
    let home = daemon.kill9();
    // The shims see the daemon's end by themselves.
    home.no_process();
    let daemon = home.serve(&[]);
    daemon.phase("busy", "Hibernated");
    goes_on(&daemon, &turn, "APP_RESTARTED");
}

#[test]
fn an_orderly_stop_interrupts_turns_leaves_no_process_and_exits_with_0() {
    let (daemon, turn) = busy(Home::new());
    let (code, home) = daemon.stop();
    assert_eq!(code, Some(0));
    assert_eq!(home.processes(), Vec::<String>::new());
    let daemon = home.serve(&[]);
    goes_on(&daemon, &turn, "APP_SHUTDOWN");
}
