//! The kernel sandbox: what an agent that means harm tries is denied with it (D10), and done without
//! it; and what the machine's guards are said to be.
//!
//! Where the kernel has no such sandbox these tests say so and hold nothing but the refusal.
#![allow(clippy::print_stderr, reason = "skipped parts say so")]

use serde_json::{Value, json};

use crate::harness::Daemon;

/// How often everything is tried (D10 of the catalogue).
const TIMES: usize = 20;
/// What is outside the sandbox in every mode.
const DENIED: [&str; 12] = [
    "kill-shim",
    "kill-daemon",
    "trace-shim",
    "trace-daemon",
    "see-shim",
    "see-daemon",
    "write-outside",
    "append-outside",
    "rename-outside",
    "write-state",
    "read-token",
    "link-token",
];
/// What an agent needs in every mode.
const DONE: [&str; 3] = ["read-outside", "write-temp", "write-null"];

fn has_sandbox() -> bool {
    let abi = spawnlet::runtime::sandbox::abi();
    let has = abi.is_some_and(|abi| abi >= spawnlet::runtime::sandbox::ABI_MIN);
    if !has {
        eprintln!("skipped: this kernel cannot keep to a sandbox (Landlock ABI {abi:?})");
    }
    has
}

/// A daemon with a session `s` of an agent in this mode.
fn daemon(mode: &str) -> Daemon {
    let daemon = Daemon::start();
    std::fs::create_dir(daemon.path("outside")).unwrap();
    std::fs::write(daemon.path("outside/victim"), "x").unwrap();
    let sandbox = match mode {
        "off" => json!({"mode": "off"}),
        // Where the scripted agent notes its processes.
        _ => json!({"mode": mode, "writePaths": [daemon.path("log")]}),
    };
    daemon.agent("bound", &["--cap=all"], json!({"sandbox": sandbox}));
    // The scripted agent remembers no session; a killed process costs this one its memory.
    daemon.session("s", "bound", json!({"onSessionLost": "new"}));
    daemon
}

fn attack(daemon: &Daemon, signal: &str) -> String {
    let (data, outside) = (daemon.path("data"), daemon.path("outside"));
    let prompt = format!("[[attack:{signal} {} {}]]", data.display(), outside.display());
    daemon.say("s", &prompt)
}

fn all(names: &[&str], result: &str) -> Vec<String> {
    names.iter().map(|name| format!("{name}={result}")).collect()
}

fn condition(daemon: &Daemon, kind: &str) -> Option<Value> {
    crate::harness::condition(&daemon.get("sessions/s"), kind).cloned()
}

#[test]
fn what_a_sandboxed_agent_tries_outside_is_denied_each_time_and_its_work_is_not() {
    if !has_sandbox() {
        return;
    }
    for mode in ["workspace-write", "read-only"] {
        let daemon = daemon(mode);
        for _ in 0..TIMES {
            let told = attack(&daemon, "KILL");
            let lines: Vec<&str> = told.lines().collect();
            for expected in all(&DENIED, "denied").into_iter().chain(all(&DONE, "done")) {
                assert!(lines.contains(&expected.as_str()), "{mode}: no {expected} in\n{told}");
            }
            let work = if mode == "read-only" { "write-work=denied" } else { "write-work=done" };
            assert!(lines.contains(&work), "{mode}: no {work} in\n{told}");
        }
        // It holds for whatever leaves the agent's session and group, too.
        let outside = daemon.path("outside/escaped");
        let run = format!("[[run:setsid -w touch {}]]", outside.display());
        let turn = daemon.ask("s", &run);
        let said = daemon.response(turn["metadata"]["name"].as_str().unwrap());
        assert!(said.starts_with("exit 1"), "{said}");
        assert!(!outside.exists() && !daemon.path("data/made").exists());
        // One process all along: nothing had to be started again.
        assert_eq!(daemon.logged("bound").len(), 1);
        let applied = condition(&daemon, "SandboxApplied").unwrap();
        assert_eq!((&applied["status"], &applied["reason"]), (&json!("True"), &json!("Landlock")));
        let message = applied["message"].as_str().unwrap();
        assert!(message.starts_with(mode) && message.contains("ABI "), "{message}");
        daemon.ok(&["stop", "s"]);
        daemon.phase("s", "Stopped");
        assert_eq!(daemon.processes(), Vec::<String>::new());
    }
}

/// The negative control of D10: without a sandbox the same is done, and what comes of it is found
/// and cleared.
#[test]
fn without_a_sandbox_the_same_is_done_and_a_killed_shim_is_noticed_and_cleared() {
    let daemon = daemon("off");
    let told = attack(&daemon, "0");
    let named = ["kill-shim", "kill-daemon", "write-outside", "write-state", "read-token"];
    for expected in all(&named, "done") {
        assert!(told.lines().any(|line| line == expected), "no {expected} in\n{told}");
    }
    assert_eq!(condition(&daemon, "SandboxApplied"), None);
    for _ in 0..3 {
        let turn = daemon.turn("s", "[[escape:setsid]][[escape:scrub]][[say:begun]][[never]]");
        daemon.said("s", &turn, "begun");
        let session =
            daemon.until("sessions/s", |one| one["status"]["process"]["shimPid"].is_u64());
        let shim =
            u32::try_from(session["status"]["process"]["shimPid"].as_u64().unwrap()).unwrap();
        crate::harness::signal(shim, rustix::process::Signal::KILL);
        let ended = daemon.ended(&turn);
        assert_eq!(ended["status"]["phase"], "Failed", "{ended:#}");
        daemon.until("sessions/s", |one| one["status"]["process"].is_null());
        assert_eq!(daemon.processes(), Vec::<String>::new());
    }
}

#[test]
fn a_sandbox_that_cannot_be_had_keeps_the_agent_from_being_started() {
    let daemon = Daemon::start();
    // A link to what holds the daemon's own directory: only a start follows it.
    let link = daemon.path("work").join("link");
    std::os::unix::fs::symlink(daemon.path(""), &link).unwrap();
    let spec = json!({"sandbox": {"mode": "workspace-write", "writePaths": [link]}});
    daemon.agent("greedy", &[], spec);
    daemon.session("s", "greedy", json!({}));
    daemon.turn("s", "[[say:never]]");
    let session = daemon.until("sessions/s", |one| one["status"]["restarts"]["reason"].is_string());
    let restarts = &session["status"]["restarts"];
    let message = restarts["lastError"].as_str().unwrap();
    if spawnlet::runtime::sandbox::abi().is_none_or(|abi| abi < 6) {
        assert_eq!(restarts["reason"], "SandboxUnavailable", "{session:#}");
        assert_eq!(condition(&daemon, "SandboxApplied").unwrap()["status"], "False");
    } else {
        assert_eq!(restarts["reason"], "SandboxPathUnusable", "{session:#}");
        assert!(message.contains("sandbox.writePaths[0]: ") && message.contains("data directory"));
    }
    assert_eq!(daemon.logged("greedy").len(), 0);
    assert_eq!(daemon.processes(), Vec::<String>::new());
}

#[test]
fn a_path_that_can_never_be_given_free_is_refused_before_it_is_stored() {
    let daemon = Daemon::start();
    let (root, data) = (daemon.path(""), daemon.path("data"));
    let root = root.canonicalize().unwrap();
    let why = "which a sandboxed agent must not have";
    for (path, problem) in [
        (std::path::Path::new("/"), "holds"),
        (root.as_path(), "holds"),
        (&root.join("data"), "is in"),
        (&root.join("data/tmp"), "is in"),
    ] {
        let sandbox = json!({"mode": "read-only", "writePaths": ["/tmp/cache", path]});
        let body =
            json!({"metadata": {"name": "greedy"}, "spec": {"command": "a", "sandbox": sandbox}});
        let refused = daemon.create("agents", &body);
        let text = refused.text();
        assert_eq!(refused.status, 422, "{text}");
        assert!(text.contains("spec.sandbox.writePaths[1]"), "{text}");
        assert!(text.contains(problem) && text.contains(why), "{text}");
    }
    // Of what depends on the daemon a check without one knows nothing, of `/` it does.
    let manifest = |path: &str| {
        format!(
            "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata: {{name: greedy}}\n\
             spec:\n  command: a\n  sandbox: {{mode: read-only, writePaths: [{path}]}}\n"
        )
    };
    let ran = daemon.cli_with(&["validate", "-f", "-"], manifest("/").as_bytes());
    assert_eq!(ran.code, Some(65), "{ran:?}");
    assert!(ran.err.contains(why) || ran.out.contains(why), "{ran:?}");
    let ran =
        daemon.cli_with(&["apply", "-f", "-"], manifest(&data.display().to_string()).as_bytes());
    assert_eq!(ran.code, Some(65), "{ran:?}");
    // An agent that has no sandbox may name what it likes, which is refused for another reason; one
    // that gets such a path later is refused as well.
    let body = json!({"metadata": {"name": "calm"}, "spec": {"command": "a"}});
    assert_eq!(daemon.create("agents", &body).status, 201);
    let patch = json!({"spec": {"sandbox": {"mode": "read-only", "writePaths": [root]}}});
    assert_eq!(daemon.patch("agents/calm", &patch).status, 422);
}

#[test]
fn the_doctor_tells_the_guards_of_the_machine_in_the_daemon_and_without_one() {
    let daemon = Daemon::start();
    let text = daemon.ok(&["doctor"]);
    assert!(text.contains("guards, as the daemon sees its machine:"), "{text}");
    let told: Value = serde_json::from_str(&daemon.ok(&["doctor", "-o", "json"])).unwrap();
    let guards = told["guards"].as_array().unwrap();
    let state = |name: &str| {
        let found = guards.iter().find(|guard| guard["name"] == name);
        found.unwrap_or_else(|| panic!("no {name} in {told:#}"))["state"].as_str().unwrap()
    };
    for name in ["Subreaper", "DataDirectory", "Listener"] {
        assert_eq!(state(name), "present", "{told:#}");
    }
    let abi = spawnlet::runtime::sandbox::abi();
    assert_eq!(state("Landlock") == "present", abi.is_some_and(|abi| abi >= 6), "{told:#}");
    for name in ["Cgroup", "PidfdInode", "Openat2", "OpenFiles", "FileSystem"] {
        assert_ne!(state(name), "unknown", "{told:#}");
    }
    let (_, home) = daemon.stop();
    let mut alone = crate::harness::spawnlet();
    alone.arg("--data-dir").arg(home.path("data")).arg("doctor");
    let output = alone.output().unwrap();
    assert_eq!(output.status.code(), Some(69));
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("guards, as this command sees the machine"), "{text}");
    assert!(text.contains("unknown     Listener"), "{text}");
}

#[test]
fn a_child_of_a_sandboxed_agent_is_in_no_wider_sandbox() {
    if !has_sandbox() {
        return;
    }
    let daemon = daemon("workspace-write");
    daemon.agent("free", &["--cap=all"], json!({}));
    let delegation = json!({"delegation": {"enabled": true}, "onSessionLost": "new"});
    daemon.session("chief", "bound", delegation);
    let spawn = |agent: &str, name: &str| {
        let words = format!("spawnlet spawn --agent {agent} --ttl 5m --name {name}");
        let turn = daemon.ask("chief", &format!("[[run:{words}]]"));
        daemon.response(turn["metadata"]["name"].as_str().unwrap())
    };
    let refused = spawn("free", "escaped");
    assert!(refused.starts_with("exit 77"), "{refused}");
    assert!(!daemon.has("sessions/escaped"));
    let made = spawn("bound", "inside");
    assert!(made.starts_with("exit 0"), "{made}");
}
