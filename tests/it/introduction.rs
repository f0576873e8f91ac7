//! What an agent is told of its session: where it takes a system prompt, there; else once, before
//! the first prompt, in a block of its own. And directories that an agent cannot be told of.

use serde_json::json;

use crate::harness::Daemon;

#[test]
fn an_agent_is_told_of_its_session_before_its_first_prompt_only() {
    let daemon = Daemon::start();
    let flag = |name: &str| format!("--{name}={}", daemon.path("log").join(name).display());
    let flags = ["--cap=all", &flag("state"), &flag("prompt-log")];
    daemon.agent("plain", &flags, json!({"stop": {"eof": "100ms", "term": "100ms"}}));
    // An error is no sign that the agent took it: it is told again.
    let spec = json!({"persona": "Speak like a pirate.", "idleTimeout": "1s"});
    daemon.session("crew", "plain", spec);
    daemon.ask("crew", "[[error:-32603:no room]]");
    daemon.ask("crew", "[[say:aye]]");
    daemon.ask("crew", "[[say:again]]");
    // A process after the first one goes on with a session that was told.
    daemon.phase("crew", "Hibernated");
    daemon.ask("crew", "[[say:back]]");
    let prompts = daemon.logged("prompt-log");
    let told: Vec<&str> = prompts.iter().map(|line| line["told"].as_str().unwrap()).collect();
    assert_eq!(prompts.len(), 4, "{prompts:?}");
    for told in &told[..2] {
        assert!(told.contains("session: crew (") && told.contains("like a pirate"), "{told}");
        assert!(told.contains(&daemon.home().work()), "{told}");
    }
    assert_eq!(told[2..], ["", ""]);
    assert_eq!(prompts[1]["text"], "[[say:aye]]", "the user's text stands alone");
}

#[test]
fn an_agent_that_takes_a_system_prompt_gets_it_at_each_opening_and_in_no_prompt() {
    let daemon = Daemon::start();
    let flag = |name: &str| format!("--{name}={}", daemon.path("log").join(name).display());
    let flags = ["--cap=resume,system", &flag("state"), &flag("prompt-log")];
    daemon.agent("system", &flags, json!({"stop": {"eof": "100ms", "term": "100ms"}}));
    daemon.session("crew", "system", json!({"persona": "Be brief.", "idleTimeout": "1s"}));
    daemon.ask("crew", "[[say:aye]]");
    daemon.phase("crew", "Hibernated");
    daemon.ask("crew", "[[say:back]]");
    let prompts = daemon.logged("prompt-log");
    assert_eq!(prompts.len(), 2);
    for line in prompts {
        assert_eq!(line["told"], "");
        assert_eq!(line["system"]["mode"], "append", "{line}");
        let text = line["system"]["content"][0]["text"].as_str().unwrap();
        assert!(text.contains("Be brief.") && text.contains("session: crew ("), "{text}");
    }
}

#[test]
fn directories_that_an_agent_does_not_take_are_told_of_on_the_session() {
    let daemon = Daemon::start();
    daemon.agent("takes", &["--cap=dirs"], json!({}));
    daemon.agent("plain", &[], json!({}));
    let extra = daemon.path("log").display().to_string();
    for name in ["takes", "plain"] {
        let spec = json!({"additionalDirectories": [extra], "prompt": "[[say:here]]"});
        daemon.session(name, name, spec);
        daemon.phase(name, "Idle");
    }
    let says = |name: &str| {
        let status = daemon.get(&format!("sessions/{name}"))["status"]["conditions"].clone();
        status.to_string().contains("AdditionalDirectoriesUnsupported")
    };
    assert!(says("plain") && !says("takes"));
}
