//! Roles: what a kind of session is told, and what it may do at most.

use serde_json::{Value, json};

use crate::harness::{Daemon, condition};

/// A daemon whose agent `plain` notes its prompts and does what they say.
fn daemon() -> Daemon {
    let daemon = Daemon::start();
    let flag = |name: &str| format!("--{name}={}", daemon.path("log").join(name).display());
    daemon.agent(
        "plain",
        &["--cap=all", "--options", &flag("state"), &flag("prompt-log")],
        json!({"stop": {"eof": "100ms", "term": "100ms"}}),
    );
    daemon
}

fn role(daemon: &Daemon, name: &str, spec: Value) {
    let mut whole = json!({"description": "For a test."});
    whole.as_object_mut().unwrap().extend(spec.as_object().unwrap().clone());
    let answer = daemon.create("roles", &json!({"metadata": {"name": name}, "spec": whole}));
    assert_eq!(answer.status, 201, "{}", answer.text());
}

fn manifest(persona: &str) -> String {
    format!(
        "apiVersion: spawnlet.dev/v1alpha1\nkind: Role\nmetadata: {{name: reviewer}}\nspec:\n  \
         description: Reads a change and says what is wrong with it.\n  persona: |\n    {persona}\n"
    )
}

#[test]
fn an_agent_is_told_its_role_once_and_keeps_the_one_that_it_was_made_with() {
    let daemon = daemon();
    // The file comes later than the session: it waits, and says for what.
    let spec = json!({"role": "reviewer", "persona": "Be brief.", "idleTimeout": "1s",
        "prompt": "[[say:aye]]"});
    daemon.session("early", "plain", spec.clone());
    let waits = daemon.until("sessions/early", |session| {
        condition(session, "AgentResolved").is_some_and(|found| found["status"] == "False")
    });
    assert_eq!(waits["status"]["phase"], "Pending");
    let found = condition(&waits, "AgentResolved").unwrap();
    assert_eq!(found["reason"], "RoleNotFound");
    assert!(found["message"].as_str().unwrap().contains("no Role \"reviewer\""), "{found}");
    assert_eq!(daemon.processes(), Vec::<String>::new());

    daemon.write_manifest("roles.yaml", &manifest("Name file and line."));
    assert_eq!(daemon.ended("early-1")["status"]["phase"], "Completed");
    let early = daemon.get("sessions/early");
    assert_eq!(early["status"]["lineage"]["role"], "reviewer");
    assert_eq!(condition(&early, "AgentResolved").unwrap()["status"], "True");
    assert!(daemon.ok(&["get", "roles"]).contains("Reads a change"));
    assert!(daemon.ok(&["describe", "role", "reviewer"]).contains("Name file and line."));

    // A change is for new sessions, also where an old one has a new process.
    daemon.phase("early", "Hibernated");
    daemon.write_manifest("roles.yaml", &manifest("Praise everything."));
    daemon.until("roles/reviewer", |role| {
        role["spec"]["persona"].as_str().is_some_and(|text| text.contains("Praise"))
    });
    daemon.ask("early", "[[say:back]]");
    daemon.session("late", "plain", spec);
    daemon.ended("late-1");
    assert!(daemon.get("sessions/early")["status"]["role"].to_string().contains("file and line"));

    let prompts = daemon.logged("prompt-log");
    let told: Vec<&str> = prompts.iter().map(|line| line["told"].as_str().unwrap()).collect();
    let [first, second, third] = told[..] else { panic!("{prompts:?}") };
    let (role, persona) =
        (first.find("<spawnlet-role name=\"reviewer\">"), first.find("Be brief."));
    assert!(role.is_some() && role < persona, "{first}");
    assert!(first.contains("Name file and line.") && !first.contains("Praise"), "{first}");
    assert_eq!(second, "");
    assert!(third.contains("Praise everything.") && !third.contains("file and line"), "{third}");
}

#[test]
fn a_role_narrows_what_its_sessions_may_do_and_sets_their_model() {
    let daemon = daemon();
    let path = daemon.path("work/file").display().to_string();
    let ask = format!("[[ask:edit:{path}]]");
    daemon.session("free", "plain", json!({}));
    let allowed = daemon.say("free", &ask);
    role(&daemon, "bystander", json!({"permissions": "deny-all", "model": "deep"}));
    daemon.session("held", "plain", json!({"role": "bystander", "permissions": "approve-all"}));
    let denied = daemon.say("held", &ask);
    assert_ne!(allowed, denied, "nobody was asked, and it may not");
    // What its first start says on an agent's record changes nothing for whoever comes next.
    daemon.agent("other", &["--cap=all", "--options"], json!({}));
    daemon.session("first", "other", json!({"role": "bystander"}));
    assert_eq!(daemon.say("first", &ask), denied);
    let agent = daemon.until("agents/other", |agent| agent["status"]["lastStart"].is_object());
    assert_eq!(agent["spec"]["permissions"], "approve-all", "{agent:#}");
    assert!(agent["spec"]["model"].is_null(), "{agent:#}");
    daemon.session("next", "other", json!({}));
    assert_eq!(daemon.say("next", &ask), allowed);
    let config: Value = serde_json::from_str(&daemon.say("held", "[[config]]")).unwrap();
    assert_eq!(config["options"]["model"], "deep", "{config}");

    // What a role cannot be is refused, and the field named.
    let wrong =
        json!({"metadata": {"name": "bad"}, "spec": {"description": "x", "sandboxMode": "off"}});
    let answer = daemon.create("roles", &wrong);
    assert_eq!(answer.status, 422, "{}", answer.text());
    let wrong = json!({"metadata": {"name": "bad"}, "spec": {}});
    assert!(daemon.create("roles", &wrong).text().contains("spec.description"));
}

#[test]
fn a_caller_gives_its_child_a_role_that_is_there_and_no_other() {
    let daemon = daemon();
    role(&daemon, "bystander", json!({"permissions": "deny-all", "persona": "Look on."}));
    let delegation = json!({"enabled": true});
    daemon.session("chief", "plain", json!({"ttl": "1h", "delegation": delegation}));
    let spawn = |role: &str| {
        let line = "spawnlet spawn --agent plain --ttl 5m --prompt hello";
        daemon.say("chief", &format!("[[run:{line} --name {role} --role {role}]]"))
    };
    let servers = json!([{"name": "more", "type": "stdio", "command": "/bin/true"}]);
    role(&daemon, "equipped", json!({"mcpServers": servers}));
    let refused = spawn("equipped");
    assert!(refused.starts_with("exit 77") && refused.contains("\"more\""), "{refused}");
    let refused = spawn("ghost");
    assert!(!refused.starts_with("exit 0") && refused.contains("role: \"ghost\""), "{refused}");
    assert_eq!(daemon.cli(&["get", "session", "ghost"]).code, Some(1));
    assert_eq!(spawn("bystander"), "exit 0\nsession/bystander\n");
    daemon.ended("bystander-1");
    let child = daemon.get("sessions/bystander");
    assert_eq!(child["status"]["lineage"]["role"], "bystander");
    let told = daemon.logged("prompt-log").pop().unwrap();
    assert!(told["told"].as_str().unwrap().contains("Look on."), "{told}");

    // What a role holds a parent to, its children are held to.
    let spec = json!({"role": "bystander", "ttl": "1h", "delegation": delegation});
    daemon.session("warden", "plain", spec);
    let line = "spawnlet spawn --agent plain --ttl 5m --name ward";
    assert!(daemon.say("warden", &format!("[[run:{line}]]")).starts_with("exit 0"));
    assert_eq!(daemon.get("sessions/ward")["spec"]["permissions"], "deny-all");
}

#[test]
fn a_read_only_role_is_in_the_kernels_sandbox_or_not_at_all() {
    let daemon = daemon();
    role(&daemon, "reader", json!({"sandboxMode": "read-only"}));
    // Where the scripted agent notes its processes.
    let sandbox = json!({"mode": "workspace-write", "writePaths": [daemon.path("log")]});
    daemon.agent("bound", &["--cap=all"], json!({"sandbox": sandbox}));
    daemon.session("r", "bound", json!({"role": "reader"}));
    daemon.turn("r", "[[run:touch made]]");
    let has = spawnlet::runtime::sandbox::abi()
        .is_some_and(|abi| abi >= spawnlet::runtime::sandbox::ABI_MIN);
    if !has {
        eprintln!("this kernel has no such sandbox: nothing starts");
        daemon
            .until("sessions/r", |one| one["status"]["restarts"]["reason"] == "SandboxUnavailable");
        return;
    }
    daemon.ended("r-1");
    assert!(daemon.response("r-1").starts_with("exit 1"), "{}", daemon.response("r-1"));
    assert!(!daemon.path("work/made").exists());
    let session = daemon.get("sessions/r");
    let applied = condition(&session, "SandboxApplied").unwrap();
    assert!(applied["message"].as_str().unwrap().starts_with("read-only"), "{applied}");
}
