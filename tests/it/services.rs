//! Files and terminals that agents ask the daemon for, as agents and operators see them.

use serde_json::{Value, json};

use crate::harness::Daemon;

/// A daemon whose agent `plain` does what its prompts say.
fn daemon() -> Daemon {
    let daemon = Daemon::with(&[]);
    daemon.agent("plain", &["--cap=all"], json!({}));
    daemon
}

/// What the agent says to one prompt under a policy.
fn said(daemon: &Daemon, session: &str, policy: &str, prompt: &str) -> String {
    let spec = json!({"permissions": policy, "prompt": prompt});
    daemon.session(session, "plain", spec);
    let turn = format!("{session}-1");
    let ended = daemon.ended(&turn);
    assert_eq!(ended["status"]["phase"], "Completed", "{ended:#}");
    daemon.response(&turn)
}

/// Waits until a question of the turn waits, and tells its name.
fn asked(daemon: &Daemon, turn: &str, not: Option<&str>) -> String {
    let name =
        |turn: &Value| turn["status"]["waitingFor"]["permission"].as_str().map(str::to_owned);
    let turn = daemon.until(&format!("turns/{turn}"), |turn| {
        name(turn).is_some_and(|name| Some(name.as_str()) != not)
    });
    name(&turn).unwrap()
}

#[test]
fn every_policy_gives_what_its_row_of_the_table_says() {
    let daemon = daemon();
    std::fs::write(daemon.path("work/read"), "old text").unwrap();
    let path = |name: &str| daemon.path(name).display().to_string();
    let prompt = |name: &str| {
        format!(
            "[[fs:read:{}]][[say: | ]][[fs:write:{}:new]][[say: | ]][[terminal:echo out]]",
            path("work/read"),
            path(&format!("work/{name}/file")),
        )
    };
    let refused = |method: &str, policy: &str| {
        format!("error -32602: {method} is refused: permissions are {policy}")
    };
    let (read, write, run) = ("fs/read_text_file", "fs/write_text_file", "terminal/create");
    let told = |policy: &str, session: &str| said(&daemon, session, policy, &prompt(session));
    let none = [read, write, run].map(|method| refused(method, "deny-all")).join(" | ");
    assert_eq!(told("deny-all", "deny"), none);
    let reads = [write, run].map(|method| refused(method, "approve-reads")).join(" | ");
    assert_eq!(told("approve-reads", "reads"), format!("old text | {reads}"));
    assert_eq!(told("approve-all", "all"), "old text | written | 0: out\n");
    assert_eq!(std::fs::read_to_string(path("work/all/file")).unwrap(), "new");
    for name in ["deny", "reads"] {
        assert!(!daemon.path("work").join(name).exists());
    }
    // Asked of a person, one after the other.
    daemon.session("asks", "plain", json!({"permissions": "ask", "prompt": prompt("asks")}));
    let first = asked(&daemon, "asks-1", None);
    let request = daemon.get(&format!("permissionrequests/{first}"));
    let file = path("work/asks/file");
    assert_eq!(request["spec"]["toolCall"]["title"], format!("Write {file}"), "{request:#}");
    assert_eq!(request["spec"]["toolCall"]["kind"], "edit");
    assert_eq!(request["spec"]["toolCall"]["locations"], json!([{"path": file}]));
    assert!(!daemon.path("work/asks").exists());
    daemon.ok(&["approve", &first]);
    let second = asked(&daemon, "asks-1", Some(&first));
    let request = daemon.get(&format!("permissionrequests/{second}"));
    assert_eq!(request["spec"]["toolCall"]["title"], "echo out", "{request:#}");
    assert_eq!(request["spec"]["toolCall"]["kind"], "execute");
    daemon.ok(&["deny", &second]);
    daemon.ended("asks-1");
    assert_eq!(daemon.response("asks-1"), "old text | written | error -32602: it was denied");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "new");
}

#[test]
fn nothing_outside_of_the_sessions_directories_is_read_written_or_worked_in() {
    let daemon = daemon();
    let path = |name: &str| daemon.path(name).display().to_string();
    for name in ["extra", "outside"] {
        std::fs::create_dir(daemon.path(name)).unwrap();
    }
    std::fs::write(daemon.path("outside/secret"), "canary").unwrap();
    std::fs::write(daemon.path("extra/file"), "extra").unwrap();
    std::os::unix::fs::symlink(daemon.path("outside"), daemon.path("work/out")).unwrap();
    std::os::unix::fs::symlink(daemon.path("extra"), daemon.path("work/in")).unwrap();
    let prompt = format!(
        "[[fs:read:{}]]\n[[say: | ]][[fs:read:{}]][[say: | ]][[fs:write:{}:x]][[say: | ]]\
         [[fs:read:{}]][[say: | ]][[fs:read:work/file]][[say: | ]][[fs:read:{}]][[say: | ]]\
         [[rpc:terminal/create:{}]]",
        path("work/in/file"),
        path("work/out/secret"),
        path("work/out/new"),
        path("work/../outside/secret"),
        path("work/none"),
        json!({"command": "true", "cwd": path("work/out")}),
    );
    let spec = json!({"permissions": "approve-all", "prompt": prompt,
        "additionalDirectories": [path("extra")]});
    daemon.session("one", "plain", spec);
    daemon.ended("one-1");
    let outside = "error -32602: the path is outside of the session's directories";
    let absolute =
        "error -32602: the path must be absolute, without NUL, and at most 4096 bytes long";
    let none = "error -32002: there is no such file or directory";
    assert_eq!(
        daemon.response("one-1"),
        ["extra", outside, outside, outside, absolute, none, outside].join(" | ")
    );
    assert!(!daemon.path("outside/new").exists());
}

#[test]
fn a_terminal_has_the_agents_environment_without_what_is_the_agents_own() {
    let daemon = daemon();
    let create = json!({"command": "env", "env": [{"name": "MINE", "value": "given"},
        {"name": "SPAWNLET_TOKEN", "value": "forged"}]});
    let prompt = format!(
        "[[rpc:terminal/create:{create}]][[rpc:terminal/wait_for_exit:{id}]]\
         [[rpc:terminal/output:{id}]][[rpc:terminal/release:{id}]][[rpc:terminal/output:{id}]]\
         [[say: | ]][[terminal:pwd]][[say: | ]][[terminal:sh -c 'kill -9 $$']][[say: | ]]\
         [[terminal:no-such-program]][[say: | ]][[terminal:sh -c 'echo a >&2; echo b; exit 7']]",
        id = json!({"terminalId": "terminal-1"}),
    );
    let text = said(&daemon, "one", "approve-all", &prompt);
    let parts: Vec<_> = text.split(" | ").collect();
    assert!(parts[0].contains("MINE=given") && parts[0].contains("IT_ROOT="), "{text}");
    assert!(parts[0].contains("SPAWNLET_INSTANCE=") && !parts[0].contains("forged"), "{text}");
    for own in ["SPAWNLET_TOKEN", "SPAWNLET_SESSION_ID", "SPAWNLET_URL"] {
        assert!(!parts[0].contains(own), "{own} in {text}");
    }
    assert!(parts[0].contains(r#"{"exitCode":0,"signal":null}"#), "{text}");
    assert!(parts[0].contains("there is no such terminal"), "{text}");
    let work = daemon.path("work").canonicalize().unwrap();
    assert_eq!(parts[1].trim(), format!("0: {}", work.display()));
    assert_eq!(parts[2].trim(), "SIGKILL:");
    assert!(parts[3].starts_with("error -32602: \"no-such-program\" was not found"), "{text}");
    assert_eq!(parts[4].trim(), "7: a\nb");
}

#[test]
fn a_terminals_output_and_the_number_of_terminals_are_bounded() {
    let daemon = daemon();
    let id = json!({"terminalId": "terminal-1"});
    let create = json!({"command": "sh", "args": ["-c", "printf 'aääää'"], "outputByteLimit": 4});
    let prompt = format!(
        "[[rpc:terminal/create:{create}]][[rpc:terminal/wait_for_exit:{id}]][[say: | ]]\
         [[rpc:terminal/output:{id}]][[say: | ]]{}[[rpc:terminal/kill:{}]][[say: | ]]\
         [[rpc:terminal/wait_for_exit:{}]]",
        "[[terminal-open:sleep 1000]]".repeat(16),
        json!({"terminalId": "terminal-2"}),
        json!({"terminalId": "terminal-2"}),
    );
    let text = said(&daemon, "one", "approve-all", &prompt);
    let parts: Vec<_> = text.split(" | ").collect();
    let output: Value = serde_json::from_str(parts[1]).unwrap();
    assert_eq!(output["output"], "ää");
    assert_eq!(
        (&output["truncated"], &output["exitStatus"]["exitCode"]),
        (&json!(true), &json!(0))
    );
    assert!(parts[2].starts_with("terminal-2terminal-3") && parts[2].contains("terminal-16error"));
    assert!(parts[2].contains("has 16 terminals already"), "{text}");
    assert_eq!(parts[3], r#"{"exitCode":null,"signal":"SIGKILL"}"#);
}

/// A turn that has a terminal with a process that left its group, and one that it waits for.
fn busy(daemon: &Daemon, session: &str) {
    let started = daemon.path("work").join(session).display().to_string();
    let prompt = format!(
        "[[terminal-open:sh -c 'setsid sleep 1001 & echo > {started}; sleep 1002']]\
         [[terminal:sh -c 'until [ -s {started} ]; do sleep 0.02; done']][[say:ready]]\
         [[terminal:sleep 1003]][[never]]"
    );
    daemon.session(session, "plain", json!({"permissions": "approve-all", "prompt": prompt}));
    daemon.said(session, &format!("{session}-1"), "ready");
    assert!(!sleepers(daemon).is_empty());
}

fn sleepers(daemon: &Daemon) -> Vec<String> {
    daemon.processes().into_iter().filter(|line| line.contains("sleep 100")).collect()
}

#[test]
fn no_process_of_a_terminal_outlives_its_turn_its_session_or_the_daemon() {
    let daemon = daemon();
    // The turn's own end.
    let text = said(&daemon, "ends", "approve-all", "[[terminal-open:sleep 1000]]");
    assert_eq!(text, "terminal-1");
    daemon.home().no_process_with("sleep 100");

    // A cancel: the agent's own wait ends with it.
    busy(&daemon, "cancels");
    daemon.ok(&["cancel", "cancels"]);
    assert_eq!(daemon.ended("cancels-1")["status"]["phase"], "Cancelled");
    daemon.home().no_process_with("sleep 100");

    // An agent that crashes leaves none either.
    let crash = "[[terminal-open:sh -c 'setsid sleep 1001 & sleep 1002']][[crash]]";
    daemon.session("crashes", "plain", json!({"permissions": "approve-all", "prompt": crash}));
    daemon.ended("crashes-1");
    daemon.home().no_process_with("sleep 100");

    // Once a session is told to have stopped, or is gone, nothing of it is left.
    busy(&daemon, "stops");
    daemon.ok(&["stop", "stops"]);
    daemon.phase("stops", "Stopped");
    assert_eq!(sleepers(&daemon), Vec::<String>::new());
    busy(&daemon, "deleted");
    daemon.ok(&["delete", "session", "deleted", "--wait"]);
    assert_eq!(sleepers(&daemon), Vec::<String>::new());

    // Nor does a daemon that is killed leave any.
    busy(&daemon, "killed");
    daemon.kill9().no_process();
}
