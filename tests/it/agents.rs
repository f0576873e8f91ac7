//! Agents and whether they can run: the bundled ones, the look at their programs, and what they
//! say of themselves.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Daemon, binary};

const BUNDLED: usize = 14;

fn manifests() -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("manifests/agents").display().to_string()
}

fn available(agent: &Value) -> Option<&Value> {
    crate::harness::condition(agent, "Available")
}

/// A program that can be executed, if nothing of it is asked.
fn program(directory: &Path, name: &str) {
    let path = directory.join(name);
    std::fs::write(&path, "#!/bin/sh\nexit 1\n").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
}

/// The cells of a table's row.
fn row<'t>(table: &'t str, name: &str) -> Vec<&'t str> {
    let rows = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut found = rows.filter(|cells| cells.first() == Some(&name));
    found.next().unwrap_or_else(|| panic!("no row of {name} in:\n{table}"))
}

#[test]
fn the_bundled_agents_are_valid_and_each_tells_whether_it_can_run() {
    let daemon = Daemon::start();
    let valid = daemon.ok(&["validate", "-f", &manifests()]);
    assert_eq!(valid.lines().count(), BUNDLED, "{valid}");
    let applied = daemon.ok(&["apply", "-f", &manifests()]);
    assert_eq!(applied.matches(" created").count(), BUNDLED, "{applied}");
    let list = daemon.request("GET", "/apis/spawnlet.dev/v1alpha1/agents").send().json();
    let agents = list["items"].as_array().unwrap();
    assert_eq!(agents.len(), BUNDLED);
    for agent in agents {
        let name = agent["metadata"]["name"].as_str().unwrap();
        let agent = daemon.until(&format!("agents/{name}"), |agent| available(agent).is_some());
        let found = available(&agent).unwrap();
        let is_installed = agent["status"]["installed"].as_bool().unwrap();
        let (status, reason) =
            if is_installed { ("True", "Found") } else { ("False", "NotInstalled") };
        assert_eq!((&found["status"], &found["reason"]), (&json!(status), &json!(reason)));
        let table = daemon.ok(&["get", "agents"]);
        assert_eq!(row(&table, name)[2], is_installed.to_string(), "{table}");
    }
    // What is there stays, whoever made it.
    let again = daemon.ok(&["agents", "import"]);
    assert_eq!(again.matches("exists already, left alone").count(), BUNDLED, "{again}");
}

#[test]
fn bundled_agents_are_imported_by_name_or_by_what_is_installed() {
    let daemon = Daemon::start();
    let bin = daemon.path("work");
    program(&bin, "gemini");
    let ran = daemon.cli_on_path(&bin, &["agents", "import", "--installed"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(ran.out.matches(" created").count(), 1, "{ran:?}");
    assert!(ran.out.contains("agent/gemini created"), "{ran:?}");
    assert!(ran.out.contains("agent/codex skipped: npx is not on the PATH"), "{ran:?}");

    daemon.patch("agents/gemini", &json!({"spec": {"description": "mine"}}));
    let out = daemon.ok(&["agents", "import", "vibe", "gemini"]);
    assert_eq!(out, "agent/vibe created\nagent/gemini exists already, left alone\n");
    assert_eq!(daemon.get("agents/gemini")["spec"]["description"], "mine");
    let vibe = daemon.get("agents/vibe");
    assert_eq!(vibe["spec"]["categoryMap"]["thinking"], "thought_level");
    // A later apply of the file merges, and finds nothing to do.
    let file = format!("{}/vibe.yaml", manifests());
    assert_eq!(daemon.ok(&["apply", "-f", &file]), "agent/vibe unchanged\n");

    let ran = daemon.cli(&["agents", "import", "nobody"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    assert!(ran.err.contains("claude, cline"), "{ran:?}");
}

#[test]
fn a_check_finds_what_was_installed_meanwhile_and_fails_for_what_is_not_there() {
    let daemon = Daemon::start();
    let bin = daemon.path("work");
    let spec = json!({"command": "late-agent --acp", "path": [bin]});
    daemon.create("agents", &json!({"metadata": {"name": "late"}, "spec": spec}));
    // One that belongs to a file is checked like any other.
    daemon.write_manifest(
        "never.yaml",
        "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata: {name: never}\n\
         spec: {command: never-agent}\n",
    );
    daemon.until("agents/never", |agent| available(agent).is_some());
    let agent = daemon.until("agents/late", |agent| available(agent).is_some());
    let found = available(&agent).unwrap();
    assert_eq!((&found["status"], &found["reason"]), (&json!("False"), &json!("NotInstalled")));
    let message = found["message"].as_str().unwrap();
    assert!(message.contains(&bin.display().to_string()), "{message}");

    let ran = daemon.cli(&["agents", "check", "late"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert_eq!(row(&ran.out, "late"), ["late", "false"]);
    assert!(ran.err.contains("agent/late: NotInstalled: ") && ran.err.contains("not available"));

    program(&bin, "late-agent");
    let out = daemon.ok(&["agents", "check", "late"]);
    let path = bin.join("late-agent").display().to_string();
    assert_eq!(row(&out, "late"), ["late", "true", &path]);
    assert_eq!(daemon.ok(&["agents"]).lines().count(), 3, "header and two agents");

    // Of all, what is missing is told and no failure; of a named one it is one.
    let ran = daemon.cli(&["agents", "check"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert_eq!(row(&ran.out, "never"), ["never", "false"]);
    assert_eq!(daemon.cli(&["agents", "check", "late", "never"]).code, Some(1));
    assert_eq!(daemon.cli(&["agents", "check", "unheard-of"]).code, Some(1));

    daemon.patch("agents/late", &json!({"spec": {"enabled": false}}));
    let ran = daemon.cli(&["agents", "check", "late"]);
    assert_eq!((ran.code, row(&ran.out, "late")[1]), (Some(1), "true"), "{ran:?}");
    assert!(ran.err.contains("Disabled"), "{ran:?}");
}

#[test]
fn the_demo_agent_takes_turns_cancels_and_settings() {
    let daemon = Daemon::start();
    // Spawnlet's own directory is first on the path of every agent.
    let manifest = "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata: {name: demo}\n\
                    spec: {command: spawnlet demo-agent}\n";
    let ran = daemon.cli_with(&["apply", "-f", "-"], manifest.as_bytes());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let checked = daemon.ok(&["agents", "check", "demo"]);
    assert_eq!(row(&checked, "demo"), ["demo", "true", binary()]);

    daemon.session("one", "demo", json!({}));
    let ran = daemon.cli(&["prompt", "one", "hello there"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("You said: hello there"), "{ran:?}");
    let recalled = daemon.ask("one", "[[recall]]");
    let recalled = daemon.response(recalled["metadata"]["name"].as_str().unwrap());
    assert!(recalled.contains("Before that you said: hello there"), "{recalled}");

    let turn = daemon.turn("one", "[[hang]]");
    daemon.said("one", &turn, "cancelled.");
    daemon.ok(&["cancel", "one"]);
    let ended = daemon.ended(&turn);
    assert_eq!(ended["status"]["phase"], "Cancelled", "{ended:#}");
    assert_eq!(ended["status"]["stopReason"], "cancelled", "{ended:#}");
    let failed = daemon.ask("one", "[[fail]]");
    assert_eq!(failed["status"]["code"], "TURN_FAILED", "{failed:#}");

    let ran = daemon.cli(&["prompt", "one", "set", "--model", "large", "-o", "json"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let turn: Value = serde_json::from_str(&ran.out).unwrap();
    let set = turn["status"]["config"].as_array().unwrap().iter();
    let set: Vec<_> = set.map(|option| (&option["id"], &option["currentValue"])).collect();
    let [model, thinking] = [json!("model"), json!("thought_level")];
    assert_eq!(set, [(&model, &json!("large")), (&thinking, &json!("low"))], "{turn:#}");
    let ran = daemon.cli(&["prompt", "one", "set", "--model", "enormous"]);
    assert_eq!(ran.code, Some(65), "{ran:?}");
    assert_eq!(daemon.get("sessions/one")["status"]["incarnation"], 1, "one process did it all");

    // What it said of itself is in its record.
    let agent = daemon.get("agents/demo");
    assert_eq!(agent["status"]["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(agent["status"]["capabilities"]["loadSession"], false);
    let table = daemon.ok(&["get", "agents"]);
    assert_eq!(row(&table, "demo")[2..4], ["true", env!("CARGO_PKG_VERSION")], "{table}");
    daemon.ok(&["delete", "session", "one", "--wait"]);

    // By hand: it answers, and goes at the end of its input.
    let line = b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"initialize\",\"params\":{}}\n";
    let ran = daemon.cli_with(&["demo-agent"], line);
    assert_eq!((ran.code, ran.out.lines().count()), (Some(0), 1), "{ran:?}");
    let answer: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(answer["result"]["agentInfo"]["name"], "demo-agent", "{answer}");
}
