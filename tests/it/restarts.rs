//! The end of the daemon, and what its successor makes of it.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::{Daemon, Home, signal};

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

/// Test catalogue D11; `SPAWNLET_TIER` brings it to its 50 stops. The first has agents that take the
/// whole ladder; every second one is told twice.
#[test]
fn an_orderly_stop_with_every_slot_taken_ends_in_time_and_leaves_nothing() {
    let is_slow = std::env::var("SPAWNLET_TIER").is_ok_and(|tier| tier == "1" || tier == "2");
    let rounds = if is_slow { 50 } else { 2 };
    let mut home = Home::new();
    for round in 0..rounds {
        let daemon = home.serve(&[]);
        let stays = ["--cap=all", "--ignore-term", "--on-eof=ignore", "--on-cancel=ignore"];
        daemon.agent("stays", &stays, json!({}));
        daemon.agent("plain", &["--cap=all"], json!({}));
        let names: Vec<_> = (0..8).map(|number| format!("s{round}-{number}")).collect();
        let turns: Vec<_> = names
            .iter()
            .enumerate()
            .map(|(number, name)| {
                let agent = if round == 0 && number < 2 { "stays" } else { "plain" };
                daemon.session(name, agent, json!({}));
                daemon.turn(name, "[[say:begun]][[never]]")
            })
            .collect();
        for (name, turn) in names.iter().zip(&turns) {
            daemon.said(name, turn, "begun");
        }
        let begun = Instant::now();
        if round % 2 == 1 {
            signal(daemon.pid(), Signal::TERM);
        }
        let (code, stopped) = daemon.stop();
        let took = begun.elapsed();
        assert_eq!(code, Some(0), "round {round}");
        assert!(took <= Duration::from_secs(15), "round {round}: {took:?}");
        // The second signal does not wait for the processes; their shims do.
        stopped.no_process();
        let daemon = stopped.serve(&[]);
        for (name, turn) in names.iter().zip(&turns) {
            let ended = daemon.ended(turn);
            assert_eq!(ended["status"]["phase"], "Interrupted", "round {round}: {ended:#}");
            assert_eq!(ended["status"]["code"], "APP_SHUTDOWN", "round {round}: {ended:#}");
            daemon.ok(&["delete", "session", name]);
        }
        let (_, next) = daemon.stop();
        home = next;
    }
    assert_eq!(home.processes(), Vec::<String>::new());
}
