//! `loginPath: capture`: programs that only a login shell finds, under a service's short PATH.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use serde_json::{Value, json};

use crate::harness::{Daemon, Home, fakeagent};

/// What service managers give.
const SERVICE: &str = "/usr/local/bin:/usr/bin:/bin";
const CAPTURE: [&str; 2] = ["--set", "loginPath=capture"];

/// A login shell whose profile does this before the command is run.
fn shell(home: &Home, profile: &str) -> String {
    let path = home.path("work").join("login-shell");
    let script = format!("#!/bin/sh\n[ \"$1\" = -lc ] || exit 9\n{profile}\neval \"$2\"\n");
    std::fs::write(&path, script).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
    path.display().to_string()
}

/// A directory with an agent that is on no service's PATH.
fn hidden(home: &Home) -> String {
    let bin = home.path("work").join("nvm bin");
    std::fs::create_dir(&bin).unwrap();
    std::os::unix::fs::symlink(fakeagent(), bin.join("hidden-agent")).unwrap();
    bin.display().to_string()
}

fn serve(home: Home, shell: &str, arguments: &[&str]) -> Daemon {
    home.serve_with(&[("PATH", SERVICE), ("SHELL", shell)], arguments)
}

fn agent_path(daemon: &Daemon) -> Value {
    let told: Value = serde_json::from_str(&daemon.ok(&["doctor", "-o", "json"])).unwrap();
    let guards = told["guards"].as_array().unwrap();
    guards.iter().find(|guard| guard["name"] == "AgentPath").unwrap().clone()
}

fn add_agent(daemon: &Daemon) {
    daemon.agent_of("hidden", &["hidden-agent".to_owned(), "--cap=all".to_owned()], json!({}));
}

#[test]
fn an_agent_that_only_a_login_shell_finds_is_found_and_gets_the_same_path() {
    let home = Home::new();
    let bin = hidden(&home);
    let shell =
        shell(&home, &format!("echo welcome back\nread -r line && exit 8\nPATH='{bin}'\":$PATH\""));
    let daemon = serve(home, &shell, &CAPTURE);
    add_agent(&daemon);
    let checked = daemon.ok(&["agents", "check", "hidden"]);
    let program = Path::new(&bin).join("hidden-agent");
    assert!(checked.contains(&program.display().to_string()), "{checked}");
    daemon.session("one", "hidden", json!({}));
    let turn = daemon.ask("one", "[[env:PATH]]");
    let path = daemon.response(turn["metadata"]["name"].as_str().unwrap());
    let path = path.trim().trim_start_matches("PATH=");
    assert!(path.ends_with(&format!("{SERVICE}:{bin}")), "the service's own come first: {path}");
    let guard = agent_path(&daemon);
    let found = guard["found"].as_str().unwrap();
    assert!(found.contains(&format!("{SERVICE}:{bin}; the last 1 are of the login")), "{found}");
    daemon.ok(&["delete", "session", "one", "--wait"]);
    daemon.home().no_process();
}

#[test]
fn without_it_the_login_shell_is_not_asked_and_the_error_says_where_was_looked() {
    let home = Home::new();
    hidden(&home);
    let asked = home.path("work").join("asked");
    let shell = shell(&home, &format!("touch '{}'", asked.display()));
    let daemon = serve(home, &shell, &[]);
    add_agent(&daemon);
    let ran = daemon.cli(&["agents", "check", "hidden"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("/usr/bin, /bin"), "{ran:?}");
    assert!(!asked.exists(), "the login shell was run");
    assert!(agent_path(&daemon)["found"].as_str().unwrap().ends_with(SERVICE));
}

#[test]
fn a_login_shell_that_fails_or_hangs_is_told_of_and_keeps_nothing_from_starting() {
    let cases = [
        ("echo hush-hush >&2\nexit 3", "it ended with "),
        ("exec >/dev/null", "it did not tell its PATH"),
        ("sleep 600 &\nexec sleep 600", "it took longer than 5s"),
        ("yes\n", "it answered more than "),
    ];
    for (profile, why) in cases {
        let home = Home::new();
        let shell = shell(&home, profile);
        let daemon = serve(home, &shell, &CAPTURE);
        let mut logged = daemon.log_line("");
        while !logged.contains("loginPath") {
            assert!(!logged.contains("hush-hush"), "it may be a secret: {logged}");
            logged = daemon.log_line("");
        }
        assert!(logged.contains(why), "{logged}");
        let guard = agent_path(&daemon);
        assert_eq!(guard["state"], "weak", "{guard:#}");
        assert!(guard["found"].as_str().unwrap().contains(why), "{guard:#}");
        assert!(guard["hint"].as_str().unwrap().contains("spec.path"), "{guard:#}");
        // Its tree is gone: it was killed before the daemon told that it listens.
        daemon.home().no_process_with("login-shell");
    }
    // No such shell at all.
    let daemon = serve(Home::new(), "/no/such/shell", &CAPTURE);
    assert_eq!(agent_path(&daemon)["state"], "weak");
}
