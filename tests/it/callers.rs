//! Tokens of callers, as an operator hands them out and as a client uses them.

use serde_json::{Value, json};

use crate::harness::{Answer, Daemon, Request, path_of};

/// What a client sends first (MCP, lifecycle).
fn initialize() -> Value {
    json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
        "protocolVersion": "2025-06-18", "capabilities": {},
        "clientInfo": {"name": "it", "version": "0"},
    }})
}

/// A token as `token create -o json` prints it.
fn create(daemon: &Daemon, arguments: &[&str]) -> Value {
    let all: Vec<&str> =
        ["token", "create", "-o", "json"].iter().chain(arguments).copied().collect();
    serde_json::from_str(&daemon.ok(&all)).unwrap()
}

/// A request of a caller.
fn by(daemon: &Daemon, token: &str, method: &str, path: &str) -> Request {
    Request::new(daemon.address(), method, path).bearer(token)
}

fn code(daemon: &Daemon, token: &str, path: &str) -> u16 {
    by(daemon, token, "GET", path).send().status
}

#[test]
fn a_token_is_made_used_listed_and_revoked() {
    let daemon = Daemon::start();
    let work = daemon.home().work();
    let made = create(&daemon, &["--session", "me", "--cwd", &work]);
    let keys: Vec<&String> = made.as_object().unwrap().keys().collect();
    assert_eq!(keys, ["namespace", "session", "token", "mcpUrl"]);
    assert_eq!((&made["namespace"], &made["session"]), (&json!("default"), &json!("me")));
    let url = made["mcpUrl"].as_str().unwrap();
    assert_eq!(url, format!("http://{}/mcp", daemon.address()));
    let token = made["token"].as_str().unwrap();

    let session = daemon.until("sessions/me", |session| session["status"]["phase"] == "Idle");
    assert_eq!(session["spec"]["provider"], "external");
    assert_eq!(session["spec"]["cwd"], work.as_str());
    assert_eq!(code(&daemon, token, &path_of("sessions/me")), 200);
    assert_eq!(code(&daemon, token, &path_of("sessions/you")), 404);
    assert_eq!(code(&daemon, token, &path_of("agents")), 404);
    // The token opens what it was made for.
    assert_eq!(code(&daemon, token, "/mcp/fleet"), 403);
    assert_eq!(code(&daemon, token, "/mcp/nothing"), 404);

    // A second one for people; the session is there, so its directory need not be named again.
    let shown = daemon.cli(&["token", "create", "--session", "me", "--expires", "2h"]);
    assert_eq!(shown.code, Some(0), "{shown:?}");
    let line = |name: &str| {
        let found = shown.out.lines().find_map(|line| line.strip_prefix(name));
        found.unwrap_or_else(|| panic!("{shown:?}")).trim().to_owned()
    };
    assert_eq!((line("session"), line("MCP")), ("me".to_owned(), url.to_owned()));
    assert!(shown.err.contains("shown only now"), "{shown:?}");
    let (second, id) = (line("token"), line("id"));
    assert_eq!(code(&daemon, &second, &path_of("sessions/me")), 200);

    let list = daemon.ok(&["token", "list"]);
    assert!(list.starts_with("ID "), "{list}");
    assert_eq!(list.lines().count(), 3, "{list}");
    let row = list.lines().find(|line| line.starts_with(&id)).unwrap();
    assert!(row.contains("me") && row.contains("spawn") && row.contains("in "), "{list}");
    assert_eq!(daemon.ok(&["token", "list", "me"]), list);
    let json: Value = serde_json::from_str(&daemon.ok(&["token", "list", "-o", "json"])).unwrap();
    assert_eq!(json["items"].as_array().unwrap().len(), 2);
    for text in [&list, &json.to_string(), &daemon.ok(&["get", "session", "me", "-o", "yaml"])] {
        assert!(!text.contains(&token[9..]) && !text.contains("sha256"), "{text}");
    }

    // Replaced: the new one opens the same until the same time.
    let expires = |items: &Value| -> Vec<Value> {
        let items = items["items"].as_array().unwrap();
        items.iter().filter_map(|token| token.get("expiresAt").cloned()).collect()
    };
    let rotated = daemon.ok(&["token", "rotate", "me", &id, "-o", "json"]);
    let third = serde_json::from_str::<Value>(&rotated).unwrap()["token"].clone();
    let third = third.as_str().unwrap();
    assert_eq!(code(&daemon, &second, &path_of("sessions/me")), 401);
    assert_eq!(code(&daemon, third, &path_of("sessions/me")), 200);
    let after: Value = serde_json::from_str(&daemon.ok(&["token", "list", "-o", "json"])).unwrap();
    assert_eq!(expires(&after), expires(&json));
    assert_eq!(daemon.cli(&["token", "rotate", "me", &id]).code, Some(1));

    let id = after["items"][1]["id"].as_str().unwrap().to_owned();
    daemon.ok(&["token", "revoke", "me", &id]);
    assert_eq!(code(&daemon, third, &path_of("sessions/me")), 401);
    assert_eq!(code(&daemon, token, &path_of("sessions/me")), 200);
    let again = daemon.cli(&["token", "revoke", "me", &id]);
    assert_eq!(again.code, Some(1), "{again:?}");
    assert!(again.err.contains("has no token"), "{again:?}");
    assert!(!daemon.log().contains(&token[9..]), "the token is in the log");
}

#[test]
fn a_token_outlives_the_daemon_and_ends_with_its_session() {
    let daemon = Daemon::with(&["--log-level", "trace"]);
    let work = daemon.home().work();
    let made = create(&daemon, &["--session", "me", "--cwd", &work]);
    let token = made["token"].as_str().unwrap().to_owned();
    let own = path_of("sessions/me");
    assert_eq!(code(&daemon, &token, &own), 200);
    assert!(!daemon.log().contains(&token[9..]), "the token is in the log");
    let home = daemon.kill9();
    let daemon = home.serve(&["--log-level", "trace"]);
    assert_eq!(code(&daemon, &token, &own), 200);

    daemon.ok(&["delete", "session", "me", "--wait"]);
    let gone = by(&daemon, &token, "GET", &own).send();
    assert_eq!(gone.status, 401, "{}", gone.text());
    assert!(gone.head.to_lowercase().contains("www-authenticate: bearer"), "{}", gone.head);
    let refused: Answer = by(&daemon, &token, "POST", "/mcp").json_body(&initialize()).send();
    assert_eq!(refused.status, 401);
    // Another session of that name is another caller.
    create(&daemon, &["--session", "me", "--cwd", &work]);
    assert_eq!(code(&daemon, &token, &own), 401);
    assert!(!daemon.log().contains(&token[9..]), "the token is in the log");
}

#[test]
fn a_token_is_refused_with_what_to_do() {
    let daemon = Daemon::start();
    let work = daemon.home().work();
    create(&daemon, &["--session", "me", "--cwd", &work]);
    for (arguments, exit, words) in [
        (&["--session", "me", "--cwd", "/"][..], 65, "another cwd"),
        (&["--session", "me", "--permissions", "deny-all"], 65, "another permissions"),
        (&["--session", "me", "--toolsets", "everything"], 2, "everything"),
        (&["--session", "me", "--expires", "0s"], 65, "expiresIn"),
        (&["--session", "Not A Name"], 65, "Not A Name"),
        (&["--session", "new", "-n", "nowhere"], 1, "nowhere"),
        (&[], 2, "--session"),
    ] {
        let all: Vec<&str> = ["token", "create"].iter().chain(arguments).copied().collect();
        let ran = daemon.cli(&all);
        assert_eq!(ran.code, Some(exit), "{ran:?}");
        assert!(ran.err.contains(words), "{ran:?}");
    }
    let warned = daemon.cli(&["token", "create", "--session", "me", "--toolsets", "spawn,fleet"]);
    assert_eq!(warned.code, Some(0), "{warned:?}");
    assert!(warned.err.contains("fleet is not served"), "{warned:?}");
    // A caller makes no tokens.
    let token = create(&daemon, &["--session", "me"])["token"].as_str().unwrap().to_owned();
    let ran = daemon.cli(&["--token", &token, "token", "create", "--session", "me"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
}

#[test]
fn each_client_gets_a_configuration_that_lets_it_in() {
    let daemon = Daemon::start();
    let work = daemon.home().work();
    let url = format!("http://{}/mcp", daemon.address());
    let mut tokens = Vec::new();
    for (client, pointer) in [
        ("claude-code", "/mcpServers/spawnlet"),
        ("cursor", "/mcpServers/spawnlet"),
        ("vscode", "/servers/spawnlet"),
        ("generic", "/mcpServers/spawnlet"),
    ] {
        let ran = daemon.cli(&["mcp-config", "--client", client, "--cwd", &work]);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        let told: Value = serde_json::from_str(&ran.out).unwrap();
        let server = told.pointer(pointer).unwrap();
        assert_eq!(server["url"], url.as_str());
        let bearer = server["headers"]["Authorization"].as_str().unwrap();
        tokens.push((client, bearer.strip_prefix("Bearer ").unwrap().to_owned()));
        assert!(ran.err.contains("out of version control"), "{ran:?}");
    }
    let ran = daemon.ok(&["mcp-config", "--client", "codex", "--cwd", &work]);
    let lines: Vec<&str> = ran.lines().collect();
    assert_eq!(lines[..2], ["[mcp_servers.spawnlet]", &format!("url = \"{url}\"")]);
    let bearer = lines[2].strip_prefix("http_headers = { \"Authorization\" = \"Bearer ").unwrap();
    tokens.push(("codex", bearer.strip_suffix("\" }").unwrap().to_owned()));
    for (client, token) in &tokens {
        // Named after the client and the directory, `work`.
        let own = path_of(&format!("sessions/{client}-work"));
        assert_eq!(code(&daemon, token, &own), 200, "{client}");
    }

    // A token that is there already is written down as it is, and the daemon is not asked.
    let token = &tokens[0].1;
    let arguments = ["mcp-config", "--client", "generic", "--caller-token", "-"];
    let ran = daemon.cli_with(&arguments, format!("{token}\n").as_bytes());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let told: Value = serde_json::from_str(&ran.out).unwrap();
    let server = &told["mcpServers"]["spawnlet"];
    assert_eq!(server["url"], url.as_str());
    assert_eq!(server["headers"]["Authorization"], format!("Bearer {token}"));
    // The same client in another directory of that name is somebody else.
    let other = daemon.path("log/work");
    std::fs::create_dir(&other).unwrap();
    let other = other.display().to_string();
    let ran = daemon.cli(&["mcp-config", "--client", "codex", "--cwd", &other]);
    assert_eq!(ran.code, Some(65), "{ran:?}");
    assert!(ran.err.contains("another cwd"), "{ran:?}");
}

#[test]
fn the_daemon_s_files_are_the_owner_s_alone() {
    use std::os::unix::fs::PermissionsExt as _;
    let daemon = Daemon::start();
    for name in ["data/address", "data/operator.token", "data/spawnlet.sock"] {
        let mode = std::fs::metadata(daemon.path(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
    // One that an earlier version left is closed too.
    let (_, home) = daemon.stop();
    let address = home.path("data/address");
    std::fs::set_permissions(&address, std::fs::Permissions::from_mode(0o644)).unwrap();
    let daemon = home.serve(&[]);
    let mode = std::fs::metadata(address).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(daemon.stop().0, Some(0));
}

#[test]
fn a_caller_watches_its_children_and_nobody_elses_until_its_token_ends() {
    let daemon = Daemon::start();
    let work = daemon.home().work();
    daemon.agent("quiet", &[], json!({}));
    let made = create(&daemon, &["--session", "me", "--cwd", &work]);
    let token = made["token"].as_str().unwrap();
    daemon.until("sessions/me", |session| session["status"]["phase"] == "Idle");
    let watch = format!("{}?watch=1", path_of("sessions"));
    let mut stream = by(&daemon, token, "GET", &watch).stream();
    daemon.session("foreign", "quiet", json!({"prompt": "[[say:what nobody else may see]]"}));
    daemon.ended("foreign-1");
    daemon.ok(&["delete", "session", "foreign", "--wait"]);
    let body = json!({"metadata": {"name": "child"}, "spec": {"agent": "quiet", "ttl": "1h"}});
    let child = by(&daemon, token, "POST", &path_of("sessions")).json_body(&body).send();
    assert_eq!(child.status, 201, "{}", child.text());
    daemon.ok(&["delete", "session", "child", "--wait"]);
    let mut seen = Vec::new();
    while seen.last().is_none_or(|last| last != "DELETED child") {
        let event = stream.next_json().expect("the watch ended");
        let kind = event["type"].as_str().unwrap();
        let name = event["object"]["metadata"]["name"].as_str().unwrap();
        seen.push(format!("{kind} {name}"));
    }
    assert!(seen.contains(&"ADDED child".to_owned()), "{seen:?}");
    assert!(!seen.iter().any(|one| one.ends_with(" foreign")), "{seen:?}");
    let list: Value = serde_json::from_str(&daemon.ok(&["token", "list", "-o", "json"])).unwrap();
    daemon.ok(&["token", "revoke", "me", list["items"][0]["id"].as_str().unwrap()]);
    assert_eq!(stream.next_json(), None, "it ends with the token");
}
