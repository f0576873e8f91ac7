//! Agents that make children of their own sessions: over the command line and as callers over MCP,
//! with the token that their run was given.

use serde_json::{Value, json};

use crate::harness::{Answer, Daemon, Request, condition, path_of};

/// A daemon with an agent that delegates, its session `chief`, and an agent for the children.
fn office(capabilities: &str, delegation: Value) -> Daemon {
    let daemon = Daemon::with(&["--log-level", "trace"]);
    let state = format!("--state={}", daemon.path("log/state").display());
    daemon.agent("boss", &[&format!("--cap={capabilities}"), &state], json!({}));
    daemon.agent("worker", &[], json!({}));
    daemon.session("chief", "boss", json!({"ttl": "1h", "delegation": delegation}));
    daemon
}

/// The token of the process that a session's agent is now. It goes by a file, so that it is in no
/// transcript.
fn token_of(daemon: &Daemon, session: &str) -> String {
    let copy = daemon.path("environ");
    let prompt = format!("[[run:cp /proc/self/environ {}]]", copy.display());
    assert!(daemon.say(session, &prompt).starts_with("exit 0"));
    let environ = std::fs::read(&copy).unwrap();
    std::fs::remove_file(&copy).unwrap();
    let environ = String::from_utf8(environ).unwrap();
    let found = environ.split('\0').find_map(|line| line.strip_prefix("SPAWNLET_TOKEN="));
    found.unwrap_or_default().to_owned()
}

fn by(daemon: &Daemon, token: &str, method: &str, object: &str) -> Request {
    Request::new(daemon.address(), method, &path_of(object)).bearer(token)
}

/// A child that a token makes over REST.
fn spawn(daemon: &Daemon, token: &str, name: &str, spec: &Value) -> Answer {
    let body = json!({"metadata": {"name": name}, "spec": spec});
    by(daemon, token, "POST", "sessions").json_body(&body).send()
}

#[test]
fn an_agent_makes_children_by_command_line_and_by_mcp() {
    let daemon = office("http,resume", json!({"enabled": true}));
    daemon.session("other", "worker", json!({}));
    let said = daemon
        .say("chief", "[[run:spawnlet spawn --agent worker --ttl 5m --name kid --prompt hello]]");
    assert_eq!(said, "exit 0\nsession/kid\n");
    let kid = daemon.get("sessions/kid");
    let chief = daemon.get("sessions/chief");
    let lineage = &kid["status"]["lineage"];
    assert_eq!(lineage["parent"], chief["metadata"]["uid"]);
    assert_eq!((&lineage["depth"], &lineage["autoStopOnParent"]), (&json!(1), &json!(true)));
    let turn = daemon.ended("kid-1");
    assert_eq!(turn["status"]["phase"], "Completed", "{turn}");
    assert_eq!(turn["spec"]["source"]["kind"], "spawn");
    // A child delegates only if it was said so.
    assert_eq!(daemon.say("kid", "[[env:SPAWNLET_TOKEN]]"), "(not set)");
    assert_eq!(daemon.say("kid", "[[servers]]"), "[]");

    // It sees itself and its own, and nobody else.
    let said = daemon.say("chief", "[[run:spawnlet get sessions -o name]]");
    assert_eq!(said, "exit 0\nsession/chief\nsession/kid\n");
    assert!(daemon.say("chief", "[[run:spawnlet get session other]]").starts_with("exit 1"));
    assert!(daemon.say("chief", "[[run:spawnlet get agents]]").starts_with("exit 1"));
    let said = daemon.say("chief", "[[run:spawnlet response kid-1]]");
    assert_eq!(said, "exit 0\necho: hello");

    // The same way over MCP, in the server that it was told of.
    let listed = daemon.say("chief", "[[mcp:available_agents:{}]]");
    assert!(listed.contains("worker"), "{listed}");
    let call = json!({"agentId": "worker", "prompt": "hi", "background": false});
    let told = daemon.say("chief", &format!("[[mcp:prompt_to_agent:{call}]]"));
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["status"], &told["content"]), (&json!("completed"), &json!("echo: hi")));

    // A child that works is cancelled by its parent, and then deleted.
    let made = daemon.say(
        "chief",
        "[[run:spawnlet spawn --agent worker --ttl 5m --name slow --idempotency-key k]]",
    );
    assert_eq!(made, "exit 0\nsession/slow\n");
    let running = daemon.turn("slow", "[[say:here.]][[never]]");
    daemon.said("slow", &running, "here.");
    assert!(daemon.say("chief", "[[run:spawnlet cancel slow]]").starts_with("exit 0"));
    let ended = daemon.ended(&running);
    assert_eq!(ended["status"]["phase"], "Cancelled", "{ended}");
    assert_eq!(ended["status"]["cancel"]["by"], "Parent", "{ended}");
    let repeated = "[[run:spawnlet spawn --agent worker --ttl 5m --name slow --idempotency-key k]]";
    assert_eq!(daemon.say("chief", repeated), "exit 0\nsession/slow\n");
    assert!(daemon.say("chief", "[[run:spawnlet delete session slow]]").starts_with("exit 0"));
    daemon.gone("sessions/slow");
    let refused = daemon.say("chief", repeated);
    assert!(refused.starts_with("exit 65"), "{refused}");
    assert!(refused.contains("slow") && refused.contains("was deleted since"), "{refused}");
    assert!(!daemon.has("sessions/slow"));
    // What is above and beside it stays.
    assert!(daemon.say("chief", "[[run:spawnlet delete session chief]]").starts_with("exit 1"));
    assert!(daemon.say("chief", "[[run:spawnlet stop other]]").starts_with("exit 1"));
    assert!(daemon.has("sessions/chief") && daemon.has("sessions/other"));
}

#[test]
fn each_run_has_a_token_of_its_own_which_is_nowhere_else() {
    let daemon = office("http,resume", json!({"enabled": true}));
    let first = token_of(&daemon, "chief");
    assert_eq!(by(&daemon, &first, "GET", "sessions/chief").send().status, 200);
    let crashed = daemon.ask("chief", "[[crash]]");
    assert_eq!(crashed["status"]["phase"], "Failed", "{crashed}");
    // Until the next run has its own, nothing has changed.
    assert_eq!(by(&daemon, &first, "GET", "sessions/chief").send().status, 200);
    let second = token_of(&daemon, "chief");
    assert_ne!(first, second);
    assert_eq!(by(&daemon, &first, "GET", "sessions/chief").send().status, 401);
    let spec = json!({"agent": "worker", "ttl": "1m"});
    assert_eq!(spawn(&daemon, &first, "kid", &spec).status, 401);
    assert_eq!(spawn(&daemon, &second, "kid", &spec).status, 201);
    let record = daemon.get("sessions/chief");
    assert_eq!(record["status"]["tokens"].as_array().unwrap().len(), 1);

    // In no record, no log, no argument, no file.
    let listed = daemon.ok(&["get", "sessions,turns,events", "-o", "json"]);
    let reports = daemon.ok(&["report", "-o", "json"]);
    let processes = daemon.processes().join("\n");
    let log = daemon.log();
    let (_, home) = daemon.stop();
    for token in [&first, &second] {
        let secret = token.strip_prefix("spawnlet_").unwrap();
        for text in [&listed, &reports, &processes, &log] {
            assert!(!text.contains(secret), "{text}");
        }
        for entry in std::fs::read_dir(home.path("data")).unwrap() {
            let path = entry.unwrap().path();
            let bytes = std::fs::read(&path).unwrap_or_default();
            let found = bytes.windows(secret.len()).any(|part| part == secret.as_bytes());
            assert!(!found, "{} holds a token", path.display());
        }
    }
}

#[test]
fn an_agent_is_refused_with_the_exit_code_that_says_why() {
    let daemon = office("http", json!({"enabled": true}));
    let data = daemon.path("data").display().to_string();
    let base = "spawn --agent worker --ttl 5m";
    for (command, exit, words) in [
        (format!("env -u SPAWNLET_TOKEN spawnlet {base}"), 65, "token is required"),
        // The operator's token is in reach of the process, and not used.
        (format!("env -u SPAWNLET_TOKEN spawnlet --data-dir {data} get sessions"), 77, ""),
        // Nor does it open the socket from in there, and nobody is the operator there for who it is.
        (
            format!(
                "env -u SPAWNLET_URL -u SPAWNLET_TOKEN spawnlet --data-dir {data} get sessions"
            ),
            77,
            "inside an agent's tree",
        ),
        (
            format!(
                "env -u SPAWNLET_URL SPAWNLET_TOKEN={} spawnlet --data-dir {data} get sessions",
                daemon.token()
            ),
            77,
            "inside an agent's tree",
        ),
        (
            format!(
                "env -i {} --token {} --data-dir {data} get sessions",
                env!("CARGO_BIN_EXE_spawnlet"),
                daemon.token()
            ),
            77,
            "inside an agent's tree",
        ),
        (format!("env SPAWNLET_TOKEN=x spawnlet {base}"), 77, "Unauthorized"),
        (format!("spawnlet --server http://127.0.0.1:1 {base}"), 69, "no daemon"),
        ("spawnlet spawn --agent worker".to_owned(), 2, "--ttl"),
        ("spawnlet spawn --agent worker --ttl 2h".to_owned(), 65, "SPAWN_INVALID_REQUEST"),
        ("spawnlet spawn --agent nobody --ttl 5m".to_owned(), 65, "SPAWN_AGENT_NOT_FOUND"),
        (format!("spawnlet {base} --role Coordinator"), 77, "SPAWN_PERMISSION_DENIED"),
        (format!("spawnlet {base} --role reviewer"), 65, "role"),
        (format!("spawnlet {base} --path /etc"), 77, "SPAWN_PERMISSION_DENIED"),
        (format!("spawnlet {base} --workspace other"), 77, "SPAWN_PERMISSION_DENIED"),
        (format!("spawnlet {base} --mcp-server mail"), 77, "SPAWN_PERMISSION_DENIED"),
    ] {
        let said = daemon.say("chief", &format!("[[run:{command}]]"));
        assert!(said.starts_with(&format!("exit {exit}\n")), "{command}: {said}");
        assert!(said.contains(words), "{command}: {said}");
    }
    // Negative control: from outside the same token opens the same socket.
    daemon.ok(&["--token", &daemon.token(), "get", "sessions"]);
    // A link to the outside leads nowhere.
    let work = daemon.home().work();
    std::os::unix::fs::symlink("/etc", format!("{work}/out")).unwrap();
    let token = token_of(&daemon, "chief");
    let spec = json!({"agent": "worker", "ttl": "1m", "cwd": format!("{work}/out")});
    let refused = spawn(&daemon, &token, "kid", &spec);
    assert_eq!(refused.status, 403, "{}", refused.text());
    // Nor does a directory that becomes one before the child's process is started.
    std::fs::create_dir(format!("{work}/in")).unwrap();
    let spec = json!({"agent": "worker", "ttl": "1m", "cwd": format!("{work}/in")});
    assert_eq!(spawn(&daemon, &token, "kid", &spec).status, 201);
    std::fs::remove_dir(format!("{work}/in")).unwrap();
    std::os::unix::fs::symlink("/etc", format!("{work}/in")).unwrap();
    daemon.turn("kid", "[[cwd]]");
    let kid = daemon.until("sessions/kid", |kid| kid["status"]["reason"] == "DirectoryMoved");
    assert_eq!(kid["status"]["phase"], "Pending", "{kid}");
}

/// F01, F02: how deep a child stands is counted in records, whatever its environment says.
#[test]
fn no_child_goes_deeper_or_further_than_its_ancestors_may() {
    let daemon = office("http", json!({"enabled": true, "maxDepth": 2, "maxChildren": 2}));
    daemon.agent("lead", &["--cap=http"], json!({}));
    let token = token_of(&daemon, "chief");
    let wide =
        json!({"agent": "lead", "ttl": "5m", "delegation": {"enabled": true, "maxDepth": 3}});
    assert_eq!(spawn(&daemon, &token, "kid", &wide).status, 403);
    let spec = |ttl: &str| {
        let delegation = json!({"enabled": true, "maxDepth": 2, "maxChildren": 2});
        json!({"agent": "lead", "ttl": ttl, "delegation": delegation})
    };
    assert_eq!(spawn(&daemon, &token, "kid", &spec("5m")).status, 201);
    let token = token_of(&daemon, "kid");
    // Its parent has lived for a moment: as long as that one is too long for a child of it.
    assert_eq!(spawn(&daemon, &token, "grandkid", &spec("5m")).status, 422);
    assert_eq!(spawn(&daemon, &token, "grandkid", &spec("3m")).status, 201);
    let said = daemon.say("grandkid", "[[run:spawnlet spawn --agent worker --ttl 1m]]");
    assert!(said.starts_with("exit 65\n"), "{said}");
    assert!(said.contains("SPAWN_DEPTH_EXCEEDED"), "{said}");
    let said =
        daemon.say("grandkid", "[[mcp:prompt_to_agent:{\"agentId\":\"worker\",\"prompt\":\"x\"}]]");
    assert!(said.contains("SPAWN_DEPTH_EXCEEDED"), "{said}");
    let forged = "[[run:env SPAWNLET_SESSION_ID=x SPAWNLET_PARENT_SESSION_ID=y \
                  spawnlet spawn --agent worker --ttl 1m]]";
    assert!(daemon.say("grandkid", forged).contains("SPAWN_DEPTH_EXCEEDED"));
    // The whole family goes with its head, deepest first, and no token of it opens anything.
    daemon.ok(&["delete", "session", "chief", "--wait"]);
    assert!(!daemon.has("sessions/kid") && !daemon.has("sessions/grandkid"));
    assert_eq!(by(&daemon, &token, "GET", "sessions").send().status, 401);
    daemon.home().no_process();
}

#[test]
fn an_agent_without_mcp_over_http_has_the_command_line_alone() {
    let daemon = office("resume", json!({"enabled": true}));
    assert_eq!(daemon.say("chief", "[[servers]]"), "[]");
    let chief = daemon.get("sessions/chief");
    let told = condition(&chief, "DelegationUnavailable").unwrap();
    assert_eq!((&told["status"], &told["reason"]), (&json!("True"), &json!("NoHttpServers")));
    let said = daemon.say("chief", "[[run:spawnlet spawn --agent worker --ttl 1m --name kid]]");
    assert_eq!(said, "exit 0\nsession/kid\n");
    // Without delegation there is no way at all.
    daemon.session("plain", "boss", json!({}));
    assert_eq!(
        daemon.say("plain", "[[env:SPAWNLET_TOKEN]] [[env:SPAWNLET_URL]]"),
        "(not set)(not set)"
    );
    // The end of the parent is the end of its children.
    daemon.ok(&["stop", "chief"]);
    let kid = daemon.phase("kid", "Stopped");
    assert_eq!(kid["status"]["reason"], "ParentStopped", "{kid}");
}

/// A daemon with these hooks, and a caller's token.
fn hooked(home: crate::harness::Home, hooks: &Value) -> (Daemon, String) {
    let daemon = home.serve(&["--set", &format!("hooks={hooks}")]);
    daemon.agent("worker", &[], json!({}));
    daemon.agent("tester", &[], json!({}));
    let work = daemon.home().work();
    let made = daemon.ok(&["token", "create", "--session", "me", "--cwd", &work, "-o", "json"]);
    let made: Value = serde_json::from_str(&made).unwrap();
    (daemon, made["token"].as_str().unwrap().to_owned())
}

/// A program of an operator's: a script for the shell, which it is named to.
fn script(home: &crate::harness::Home, name: &str, text: &str) -> String {
    let path = home.path(name);
    std::fs::write(&path, text).unwrap();
    format!("/bin/sh {}", path.display())
}

#[test]
fn a_hook_changes_or_refuses_a_child_and_what_it_makes_is_checked_again() {
    let home = crate::harness::Home::new();
    let command = script(
        &home,
        "ask",
        "input=$(cat)\n\
         case $input in\n\
         *'\"agent\":\"worker\"'*) echo '{\"child\":{\"agent\":\"tester\",\"ttl\":\"1m\",\"permissions\":\"deny-all\"}}';;\n\
         *'\"ttl\":\"2m\"'*) echo '{\"child\":{\"ttl\":\"99h\"}}';;\n\
         *'\"ttl\":\"3m\"'*) echo '{\"child\":{\"cwd\":\"/etc\"}}';;\n\
         *'\"ttl\":\"4m\"'*) echo nonsense;;\n\
         *'\"ttl\":\"5m\"'*) exit 3;;\n\
         *'\"ttl\":\"6m\"'*) sleep 600;;\n\
         esac\n",
    );
    let hooks = json!([{"event": "spawn.pre_create", "command": command, "timeout": "2s"}]);
    let (daemon, token) = hooked(home, &hooks);
    let changed = spawn(&daemon, &token, "a", &json!({"agent": "worker", "ttl": "30m"}));
    assert_eq!(changed.status, 201, "{}", changed.text());
    let spec = &changed.json()["spec"];
    assert_eq!((&spec["agent"], &spec["ttl"]), (&json!("tester"), &json!("1m")));
    assert_eq!(spec["permissions"], "deny-all");
    let same = spawn(&daemon, &token, "b", &json!({"agent": "tester", "ttl": "1m"}));
    assert_eq!((same.status, &same.json()["spec"]["ttl"]), (201, &json!("1m")));
    for (ttl, status, words) in [
        ("2m", 422, "ttl"),
        ("3m", 403, "cwd"),
        ("4m", 403, "no JSON"),
        ("5m", 403, "exit code 3"),
        ("6m", 403, "longer than 2s"),
    ] {
        let refused = spawn(&daemon, &token, "c", &json!({"agent": "tester", "ttl": ttl}));
        assert_eq!(refused.status, status, "{ttl}: {}", refused.text());
        assert!(refused.text().contains(words), "{ttl}: {}", refused.text());
    }
    assert!(!daemon.has("sessions/c"));
    daemon.ok(&["delete", "session", "me", "--wait"]);
    daemon.stop().1.no_process();
}

#[test]
fn hooks_are_told_what_becomes_of_children_and_hold_nothing_up() {
    let home = crate::harness::Home::new();
    let fifo = home.path("told");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().unwrap();
    assert!(made.success());
    let command = script(&home, "tell", &format!("exec cat > {}\n", fifo.display()));
    let events = ["spawn.created", "spawn.parent_stopped", "spawn.ttl_expired", "spawn.reaped"];
    let hooks: Vec<Value> = events
        .iter()
        .map(|event| json!({"event": event, "command": command, "timeout": "1m"}))
        .collect();
    let (daemon, token) = hooked(home, &json!(hooks));
    // Nobody reads what is told yet: the children are made and end all the same.
    let spec = json!({"agent": "worker", "ttl": "10m"});
    assert_eq!(spawn(&daemon, &token, "a", &spec).status, 201);
    let short = json!({"agent": "worker", "ttl": "1ms"});
    assert_eq!(spawn(&daemon, &token, "b", &short).status, 201);
    daemon.phase("b", "Stopped");
    daemon.ok(&["stop", "me"]);
    daemon.phase("a", "Stopped");
    let mut told = Vec::new();
    while told.len() < 6 {
        let text = std::fs::read_to_string(&fifo).unwrap();
        for one in serde_json::Deserializer::from_str(&text).into_iter::<Value>() {
            let one = one.unwrap();
            assert!(one["child"]["lineage"]["parent"].is_string(), "{one}");
            let part = |value: &Value| value.as_str().unwrap().to_owned();
            told.push((part(&one["child"]["name"]), part(&one["event"])));
        }
    }
    let of = |name: &str| -> Vec<&str> {
        told.iter().filter(|(of, _)| of == name).map(|(_, event)| event.as_str()).collect()
    };
    assert_eq!(of("a"), ["spawn.created", "spawn.parent_stopped", "spawn.reaped"]);
    assert_eq!(of("b"), ["spawn.created", "spawn.ttl_expired", "spawn.reaped"]);
}
