//! Secrets from outside: they reach the agent that they are for, and nothing else has them (G3).

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Daemon, Home, fakeagent};

/// Values that must be nowhere but in one agent's environment.
const VAULT: &str = "sk-canary-vault-4f1e7a";
const QUOTED: &str = "canary \"quoted\"\\ and\nbroken é-9b2d";
const FROM_ENV: &str = "sk-canary-env-c03d51";
const UNBOUND: &str = "sk-canary-unbound-77aa01";
const STALE: &str = "canary-stale-token-5150aa";
const VAULT_KEY: &str = "c4a7c4a7c4a7c4a7c4a7c4a7c4a7c4a7c4a7c4a7c4a7c4a7c4a7c4a7c4a7c4a7";
/// What must be found where the canaries are looked for, or the search proves nothing.
const CONTROL: &str = "control-word-81c2";

fn serve() -> Daemon {
    let env = [
        ("SPAWNLET_VAULT_KEY", VAULT_KEY),
        ("SPAWNLET_TOKEN", STALE),
        ("OTHER_API_KEY", UNBOUND),
        ("GIVEN_KEY", FROM_ENV),
    ];
    Home::new().serve_with(&env, &["--log-level", "trace"])
}

fn slots() -> Value {
    json!({
        "authMode": "bound-secret",
        "credentialSlots": [
            {"name": "vault", "targetEnv": "A_KEY", "secretRef": "vault:providers/a/key", "required": true},
            {"name": "quoted", "targetEnv": "B_KEY", "secretRef": "vault:providers/a/quoted"},
            {"name": "env", "targetEnv": "C_KEY", "secretRef": "env:GIVEN_KEY", "required": true},
        ],
    })
}

/// An agent that tells its secrets wherever it can: on standard error, in its text, its thoughts,
/// its tool calls and its errors.
fn talker(daemon: &Daemon, name: &str, flags: &str) {
    let script = daemon.path("work").join(name);
    std::fs::write(&script, flags).unwrap();
    let start = "echo \"$A_KEY $C_KEY control-word-81c2\" >&2; echo \"$B_KEY\" >&2; exec \"$@\"";
    let argv = ["/bin/sh", "-c", start, "sh", fakeagent().to_str().unwrap()].map(str::to_owned);
    let script = format!("--script={}", script.display());
    let argv: Vec<String> = argv.into_iter().chain([script]).collect();
    daemon.agent_of(name, &argv, slots());
}

/// Every file below a directory but those that are made to hold a secret.
fn files(directory: &Path, found: &mut Vec<(String, Vec<u8>)>) {
    for entry in std::fs::read_dir(directory).unwrap().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files(&path, found);
        } else if path.is_file() && !path.ends_with("operator.token") {
            found.push((path.display().to_string(), std::fs::read(&path).unwrap_or_default()));
        }
    }
}

fn processes(daemon: &Daemon, found: &mut Vec<(String, Vec<u8>)>) {
    let agents: Vec<String> =
        daemon.processes().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let pid = entry.file_name().to_string_lossy().into_owned();
        if !pid.bytes().all(|byte| byte.is_ascii_digit()) {
            continue;
        }
        let read = |file: &str| std::fs::read(entry.path().join(file)).unwrap_or_default();
        found.push((format!("arguments of {pid}"), read("cmdline")));
        let environment = read("environ");
        let holds = |text: &[u8]| memchr::memmem::find(&environment, text).is_some();
        // The agents have theirs, the daemon was given what it was given.
        let is_agent = agents.contains(&pid) || holds(b"SPAWNLET_SESSION_ID=");
        if !is_agent && pid != daemon.pid().to_string() {
            found.push((format!("environment of {pid}"), environment));
        }
    }
}

/// What every verb that shows something says.
fn answers(daemon: &Daemon, turn: &str, found: &mut Vec<(String, Vec<u8>)>) {
    for verb in [
        &["get", "sessions", "-o", "yaml"][..],
        &["get", "turns", "-o", "yaml"],
        &["get", "agents", "-o", "yaml"],
        &["describe", "session", "errs"],
        &["describe", "session", "talks"],
        &["report"],
        &["events"],
        &["logs", "talks", "--stderr"],
        &["logs", "talks", "-o", "acp"],
        &["logs", "talks"],
        &["response", turn],
        &["secret", "list"],
        &["config"],
    ] {
        let ran = daemon.cli(verb);
        found.push((verb.join(" "), format!("{}{}", ran.out, ran.err).into_bytes()));
    }
}

#[test]
fn secrets_are_in_the_one_environment_that_they_are_for_and_nowhere_else() {
    let daemon = serve();
    for (name, value) in [("key", VAULT), ("quoted", QUOTED)] {
        let ran =
            daemon.cli_with(&["secret", "set", &format!("providers/a/{name}")], value.as_bytes());
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    let caller = daemon.ok(&["token", "create", "--session", "caller", "-o", "json"]);
    let caller: Value = serde_json::from_str(&caller).unwrap();
    let caller = caller["token"].as_str().unwrap();
    // Split over chunks, in a thought, a title and an error too.
    let (left, right) = VAULT.split_at(11);
    let each = format!(
        "[[say:{left}]][[say:{right}]][[think:{FROM_ENV}]][[tool:{VAULT}:read:/x]][[say:{CONTROL}]][[say:{left}]]"
    );
    talker(&daemon, "talks", &format!("cap all\neach {each}\n"));
    talker(&daemon, "errs", &format!("fail new=-32603:{CONTROL} {VAULT} {FROM_ENV}\n"));
    daemon.session("talks", "talks", json!({}));
    daemon.session("errs", "errs", json!({"prompt": "hello"}));
    let turn = daemon.turn("talks", "[[env:A_KEY]] [[env:B_KEY]] [[env:OTHER_API_KEY]] [[env:SPAWNLET_VAULT_KEY]] [[env:SPAWNLET_TOKEN]]");
    daemon.ended(&turn);
    daemon.until("sessions/errs", |session| {
        session["status"]["restarts"]["lastError"].as_str().is_some_and(|e| e.contains(CONTROL))
    });

    let response = daemon.response(&turn);
    assert!(response.contains("[redacted]"), "{response}");
    // The three that the agent was not given, and what only looked like the beginning of one.
    assert_eq!(response.matches("(not set)").count(), 3, "{response}");
    assert!(response.contains(&format!("{left}[redacted]")), "{response}");

    let mut found = Vec::new();
    files(&daemon.path("data"), &mut found);
    processes(&daemon, &mut found);
    answers(&daemon, &turn, &mut found);
    found.push(("the log".to_owned(), daemon.log().into_bytes()));

    let operator = daemon.token();
    let quoted = json!(QUOTED).to_string();
    let quoted = quoted.trim_matches('"');
    let canaries =
        [VAULT, QUOTED, quoted, FROM_ENV, UNBOUND, STALE, VAULT_KEY, operator.trim(), caller];
    for (place, bytes) in &found {
        for canary in canaries {
            let is_there = memchr::memmem::find(bytes, canary.as_bytes()).is_some();
            assert!(!is_there, "{canary} is in {place}:\n{}", String::from_utf8_lossy(bytes));
        }
    }
    for place in ["logs talks", "logs talks --stderr", "response", "describe session errs"] {
        let (_, bytes) = found.iter().find(|(name, _)| name.starts_with(place)).unwrap();
        assert!(memchr::memmem::find(bytes, CONTROL.as_bytes()).is_some(), "{place}");
    }
    let in_files = found.iter().any(|(place, bytes)| {
        place.contains("/data/") && memchr::memmem::find(bytes, CONTROL.as_bytes()).is_some()
    });
    assert!(in_files, "the store's files hold what agents say as plain text");
    let agent = std::fs::read_dir("/proc").unwrap().flatten().any(|entry| {
        let environment = std::fs::read(entry.path().join("environ")).unwrap_or_default();
        memchr::memmem::find(&environment, format!("A_KEY={VAULT}").as_bytes()).is_some()
    });
    assert!(agent, "the agent itself has it");
}

#[test]
fn a_credential_that_is_missing_fails_the_start_and_names_its_slot() {
    let daemon = Daemon::start();
    daemon.agent("poor", &["--cap=all"], slots());
    daemon.session("poor", "poor", json!({"prompt": "hello"}));
    let session = daemon.until("sessions/poor", |session| {
        session["status"]["restarts"]["reason"] == "CredentialMissing"
    });
    let error = session["status"]["restarts"]["lastError"].as_str().unwrap();
    assert!(error.contains("\"vault\"") && error.contains("secret set providers/a/key"), "{error}");
    let refused = json!({"spec": {"credentialSlots": [
        {"name": "a", "targetEnv": "SPAWNLET_AGENT", "secretRef": "env:A"}]}});
    assert_eq!(daemon.patch("agents/poor", &refused).status, 422);
}

#[test]
fn the_vault_takes_values_from_standard_input_alone() {
    let daemon = Daemon::start();
    let named = ["secret", "set", "providers/a/key"];
    assert_eq!(daemon.cli_with(&named, b"sk-12345678\n").code, Some(0));
    assert_eq!(daemon.ok(&["secret", "list"]), "providers/a/key\n");
    assert_eq!(daemon.cli(&["secret", "set", "providers/a/key", VAULT]).code, Some(2));
    assert_eq!(daemon.cli_with(&["secret", "set", "key"], VAULT.as_bytes()).code, Some(2));
    let short = daemon.cli_with(&named, b"short");
    assert_eq!(short.code, Some(65), "{short:?}");
    assert_eq!(daemon.cli_with(&named, b"\n").code, Some(65));
    for file in ["vault.json", "vault.key"] {
        let mode = std::fs::metadata(daemon.path("data").join(file)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{file}");
    }
    let caller = daemon.ok(&["token", "create", "--session", "caller", "-o", "json"]);
    let caller: Value = serde_json::from_str(&caller).unwrap();
    let token = ["--token", caller["token"].as_str().unwrap()];
    let refused = daemon.cli(&[&token[..], &["secret", "list"]].concat());
    assert_eq!(refused.code, Some(1), "{refused:?}");
    // A daemon after this one has them, and one without the key says so.
    let (_, home) = daemon.stop();
    std::fs::rename(home.path("data/vault.key"), home.path("data/away")).unwrap();
    let daemon = home.serve(&[]);
    assert_eq!(daemon.ok(&["secret", "list"]), "providers/a/key\n");
    let lost = daemon.cli_with(&named, VAULT.as_bytes());
    assert!(lost.err.contains("vault.key is gone"), "{lost:?}");
    assert_eq!(
        daemon.ok(&["secret", "delete", "providers/a/key"]),
        "secret/providers/a/key deleted\n"
    );
    assert_eq!(daemon.cli(&["secret", "delete", "providers/a/key"]).code, Some(1));
}

#[test]
fn an_agent_with_a_home_of_its_own_has_it_below_the_data_directory_and_logs_in_there() {
    let daemon = Daemon::start();
    daemon.agent("homely", &["--cap=all"], json!({"homePolicy": "isolated"}));
    daemon.session("homely", "homely", json!({"prompt": "[[env:HOME]] [[env:XDG_CONFIG_HOME]]"}));
    daemon.phase("homely", "Idle");
    let home = daemon.path("data/providers/homely/home").display().to_string();
    assert_eq!(daemon.response("homely-1"), format!("{home}{home}/.config"));
    let mode = std::fs::metadata(&home).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);

    // A login is a program that a person runs with that home.
    let told = daemon.ok(&["agents", "login", "homely", "--", "/bin/sh", "-c", "echo $HOME"]);
    assert_eq!(told.trim(), home);
    let unknown = daemon.cli(&["agents", "login", "homely"]);
    assert_eq!(unknown.code, Some(2), "{unknown:?}");
    assert!(unknown.err.contains("behind `--`"), "{unknown:?}");
    assert_eq!(daemon.cli(&["agents", "login", "nobody"]).code, Some(1));

    // Where a link leads out of it, nothing starts.
    std::fs::remove_dir_all(&home).unwrap();
    std::os::unix::fs::symlink(daemon.path("work"), &home).unwrap();
    daemon.session("linked", "homely", json!({"prompt": "hello"}));
    let session = daemon.until("sessions/linked", |session| {
        session["status"]["restarts"]["reason"] == "HomeUnusable"
    });
    assert!(session.to_string().contains("is a link"), "{session:#}");
}

fn auth_required(agent: &Value) -> Option<&str> {
    crate::harness::condition(agent, "AuthRequired")?["status"].as_str()
}

#[test]
fn a_needed_login_is_answered_once_by_the_method_that_the_agent_names() {
    let daemon = Daemon::start();
    daemon.agent("login", &["--cap=all", "--auth=by-key"], json!({}));
    daemon.session("login", "login", json!({"prompt": "[[say:in]]"}));
    let agent = daemon.until("agents/login", |agent| auth_required(agent) == Some("True"));
    let told = agent["status"]["conditions"].to_string();
    assert!(told.contains("by-key") && told.contains("spawnlet agents login login"), "{told}");
    let session = daemon.get("sessions/login");
    assert_eq!(session["status"]["incarnation"], 1, "no loop: {session:#}");

    // A method that does not help is tried once.
    let wrong = json!({"spec": {"auth": {"method": "by-hand"}}});
    assert_eq!(daemon.patch("agents/login", &wrong).status, 200);
    let session = daemon.until("sessions/login", |session| {
        session["status"]["restarts"]["lastError"].as_str().is_some_and(|e| e.contains("not help"))
    });
    assert_eq!(session["status"]["incarnation"], 2, "{session:#}");

    // The right one brings the waiting turn to its end, and the condition with it.
    let right = json!({"spec": {"auth": {"method": "by-key"}}});
    assert_eq!(daemon.patch("agents/login", &right).status, 200);
    daemon.phase("login", "Idle");
    assert_eq!(daemon.response("login-1"), "in");
    daemon.until("agents/login", |agent| auth_required(agent) == Some("False"));
}
