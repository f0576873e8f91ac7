//! `agents check --warm`: the first start of an agent, inside the daemon, without a prompt.

use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::harness::{Daemon, fakeagent, finish, spawnlet};

const WARM: [&str; 3] = ["agents", "check", "--warm"];

fn warm(daemon: &Daemon, more: &[&str]) -> crate::harness::Ran {
    let arguments: Vec<&str> = WARM.iter().chain(more).copied().collect();
    daemon.cli(&arguments)
}

/// Nothing of a start is left: no session, no process, no directory.
fn nothing_is_left(daemon: &Daemon) {
    let sessions = daemon.request("GET", "/apis/spawnlet.dev/v1alpha1/sessions").send().json();
    assert_eq!(sessions["items"], json!([]), "{sessions:#}");
    daemon.home().no_process();
}

/// The command, running.
fn start(daemon: &Daemon, agent: &str) -> Child {
    let mut command = spawnlet();
    command.arg("--data-dir").arg(daemon.path("data")).args(WARM).arg(agent);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The one session that is there, once its agent's process runs.
fn running(daemon: &Daemon) -> Value {
    let path = "/apis/spawnlet.dev/v1alpha1/namespaces/default/sessions?watch=1";
    let mut stream = daemon.request("GET", path).stream();
    while let Some(event) = stream.next_json() {
        if event["object"]["status"]["process"]["state"] == "Running" {
            return event["object"].clone();
        }
    }
    panic!("no session has a process\n{}", daemon.log());
}

#[test]
fn a_warm_check_starts_each_agent_once_and_says_how_it_went() {
    let daemon = Daemon::start();
    daemon.agent("good", &["--cap=all"], json!({}));
    daemon.agent("loaded", &["--early-updates=3"], json!({"homePolicy": "isolated"}));
    let ran = warm(&daemon, &["good", "loaded"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let lines: Vec<&str> = ran.out.lines().collect();
    assert_eq!(lines.len(), 2, "{ran:?}");
    assert!(lines[0].starts_with("agent/good ok: ") && lines[0].contains(", started in "));
    assert!(lines[1].starts_with("agent/loaded ok: "), "{ran:?}");
    assert!(ran.err.contains("agent/good is being started, for 1m at most"), "{ran:?}");

    let agent = daemon.get("agents/good");
    assert_eq!(agent["status"]["capabilities"]["loadSession"], true, "{agent:#}");
    assert!(agent["status"]["version"].is_string() && agent["status"]["lastStart"].is_object());
    assert_eq!(daemon.logged("good").len(), 1, "one process");
    nothing_is_left(&daemon);

    let ran = warm(&daemon, &["good", "-o", "json"]);
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(told["agents"][0]["ok"], true, "{told:#}");
    let agent = daemon.get("agents/good");
    assert_eq!(told["agents"][0]["lastStart"], agent["status"]["lastStart"], "the newest start");
    assert_eq!(daemon.logged("good").len(), 2);
}

#[test]
fn a_warm_check_that_fails_tells_the_stage_and_what_the_agent_said() {
    let daemon = Daemon::start();
    let spec = json!({"startTimeout": "1s"});
    let cases: [(&str, &[&str], &str, &str); 7] = [
        ("dies", &["--exit=start=3", "--stderr=no key"], "AgentExited", "no key"),
        ("dies-in-new", &["--exit=new=3"], "AgentExited", "without an answer to session/new"),
        ("hangs", &["--silent=initialize", "--stderr=thinking"], "StartTimeout", "thinking"),
        ("hangs-in-new", &["--silent=new"], "StartTimeout", "did not answer session/new within 1s"),
        ("errs", &["--fail=new=-32603:no disk"], "HandshakeFailed", "no disk"),
        ("old", &["--protocol=7"], "ProtocolVersion", "version 7"),
        ("locked", &["--auth=key"], "AuthRequired", "agents login locked"),
    ];
    for (name, flags, _, _) in cases {
        daemon.agent(name, flags, spec.clone());
    }
    daemon.agent_of("absent", &["no-such-program".to_owned()], json!({}));
    for (name, _, reason, said) in cases {
        let ran = warm(&daemon, &[name]);
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{ran:?}");
        let line = ran.err.lines().find(|line| line.contains(" failed: ")).unwrap();
        assert!(line.starts_with(&format!("agent/{name} failed: {reason}: ")), "{line}");
        assert!(line.contains(said), "{line}");
        assert!(ran.err.contains(&format!("error: not started: {name}")), "{ran:?}");
        assert_eq!(daemon.get(&format!("agents/{name}"))["status"].get("lastStart"), None);
        assert!(daemon.logged(name).len() < 2, "{name} was started more than once");
    }
    let conditions = daemon.get("agents/locked")["status"]["conditions"].clone();
    let required = conditions.as_array().unwrap().iter().find(|it| it["type"] == "AuthRequired");
    assert_eq!(required.unwrap()["status"], "True", "{conditions:#}");

    let ran = warm(&daemon, &["absent", "hangs", "nobody", "-o", "json"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    let reasons: Vec<&str> =
        (0..3).map(|index| told["agents"][index]["reason"].as_str().unwrap()).collect();
    assert_eq!(reasons, ["AgentNotInstalled", "StartTimeout", "AgentNotFound"], "{told:#}");
    assert_eq!(warm(&daemon, &[]).code, Some(2), "which agents has to be said");
    nothing_is_left(&daemon);
}

#[test]
fn a_first_start_that_downloads_has_its_time_once_and_later_starts_have_theirs() {
    let daemon = Daemon::start();
    let npx = daemon.path("work").join("npx");
    std::os::unix::fs::symlink(fakeagent(), &npx).unwrap();
    let argv = [npx.display().to_string(), "--delay=initialize=1500".to_owned()];
    daemon.agent_of("late", &argv, json!({"startTimeout": "500ms"}));
    let ran = warm(&daemon, &["late"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("for 5m at most"), "{ran:?}");
    // It was started once: what is there needs no download.
    let ran = warm(&daemon, &["late"]);
    assert!(ran.err.contains("StartTimeout: the agent did not answer initialize within 500ms"));
    assert_eq!(ran.code, Some(1), "{ran:?}");
    nothing_is_left(&daemon);
}

#[test]
fn a_warm_check_that_is_stopped_or_takes_too_long_leaves_nothing() {
    let daemon = Daemon::start();
    daemon.agent("hangs", &["--silent=initialize", "--ignore-term"], json!({}));
    for signal in [Signal::INT, Signal::TERM] {
        let child = start(&daemon, "hangs");
        running(&daemon);
        kill_process(Pid::from_child(&child), signal).unwrap();
        let output = finish(child, None);
        assert_eq!(output.status.code(), Some(1));
        let err = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(err.contains("stopped; agent/hangs was not started to the end"), "{err}");
        nothing_is_left(&daemon);
    }
    let ran = warm(&daemon, &["hangs", "--timeout", "200ms"]);
    assert_eq!(ran.code, Some(75), "{ran:?}");
    nothing_is_left(&daemon);
}

#[test]
fn a_daemon_that_is_killed_in_a_first_start_leaves_no_process_and_no_lie() {
    let daemon = Daemon::start();
    daemon.agent("hangs", &["--silent=new"], json!({}));
    let child = start(&daemon, "hangs");
    let name = running(&daemon)["metadata"]["name"].as_str().unwrap().to_owned();
    let home = daemon.kill9();
    assert_ne!(finish(child, None).status.code(), Some(0));
    home.no_process();
    let daemon = home.serve(&[]);
    let session =
        daemon.until(&format!("sessions/{name}"), |it| it["status"]["finishedAt"].is_string());
    assert_eq!(session["status"]["phase"], "Failed", "{session:#}");
    assert_eq!(session["status"]["reason"], "StartInterrupted", "{session:#}");
    assert_eq!(daemon.get("agents/hangs")["status"].get("lastStart"), None);
    assert!(daemon.logged("hangs").len() < 2, "it was started again");
    daemon.home().no_process();
}

#[test]
fn a_session_for_a_start_takes_no_turns_and_is_one_from_the_beginning() {
    let daemon = Daemon::start();
    daemon.agent("hangs", &["--silent=new"], json!({}));
    let mark = json!({"spawnlet.dev/first-start": "true"});
    let body =
        |spec: Value| json!({"metadata": {"name": "one", "annotations": mark}, "spec": spec});
    let work = daemon.home().work();
    let refused =
        daemon.create("sessions", &body(json!({"agent": "hangs", "cwd": work, "prompt": "x"})));
    assert_eq!(refused.status, 422, "{}", refused.text());
    let made = daemon.create("sessions", &body(json!({"agent": "hangs", "cwd": work})));
    assert_eq!(made.status, 201, "{}", made.text());
    let ran = daemon.cli(&["prompt", "one", "hello"]);
    assert!(ran.err.contains("takes no turns"), "{ran:?}");
    daemon.session("other", "hangs", json!({}));
    let patched = daemon.patch("sessions/other", &json!({"metadata": {"annotations": mark}}));
    assert_eq!(patched.status, 422, "{}", patched.text());
    daemon.ok(&["delete", "session", "one", "--wait"]);
    daemon.home().no_process();
}
