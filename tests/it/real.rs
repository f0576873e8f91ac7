//! Real agents against a stub model server: the built binary, driven by its CLI alone.
//!
//! `SPAWNLET_REAL_AGENTS` names the agents, separated by commas; without it there is nothing to
//! run. `scripts/real-agents.sh` installs them and sets it. Two columns of page 80 of the
//! specification differ by agent and are given here as [`Traits`]; the rest is one contract.
#![allow(clippy::disallowed_methods, reason = "these tests start the processes that they test")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a failure is the test's failure")]

mod asks;
mod delegate;
mod ends;
mod rig;
mod survival;

use rig::{Rig, Signal};

/// What differs from agent to agent.
struct Traits {
    /// A status of the model server that the agent passes on at once, instead of trying again for
    /// longer than a test may take.
    error: u16,
    /// The mode that a session with `permissions: approve-reads` is put in; `None`: it offers none.
    reads_mode: Option<&'static str>,
    /// A model that it offers beside the one that it begins with; `None`: only that one.
    other_model: Option<&'static str>,
    /// A model that it offers, as somebody may name it; `None`: it offers none.
    loose_model: Option<Loose>,
    /// Whether it can always go on with a session in a new process.
    can_resume: bool,
    /// Whether it ends the commands of a cancelled turn. What it leaves goes with its process.
    ends_commands: bool,
    /// Whether it tells of a model that fails in an answer like any other (page 80), so that the
    /// turn is `Completed`.
    fails_in_text: bool,
    /// Whether it sends a text that its model did not answer once more with the next one, so that
    /// the stub does the same again.
    keeps_unanswered: bool,
}

/// A model by another name than its own.
struct Loose {
    said: &'static str,
    /// The value that this means.
    value: &'static str,
    /// What the agent then asks the model server for.
    asked: &'static str,
}

/// What is so of most agents.
fn most() -> Traits {
    Traits {
        error: 400,
        reads_mode: Some("plan"),
        other_model: None,
        loose_model: None,
        can_resume: true,
        ends_commands: true,
        fails_in_text: false,
        keeps_unanswered: false,
    }
}

fn traits(agent: &str) -> Traits {
    match agent {
        "codexz" => Traits {
            reads_mode: Some("read-only"),
            other_model: Some("gpt-5.4"),
            loose_model: Some(Loose { said: " GPT-5.4 ", value: "gpt-5.4", asked: "gpt-5.4" }),
            ends_commands: false,
            ..most()
        },
        "claude" => Traits {
            loose_model: Some(Loose { said: "HAIKU", value: "haiku", asked: "claude-haiku-5-5" }),
            keeps_unanswered: true,
            ..most()
        },
        "opencode" => Traits {
            other_model: Some("stub/stub-model-2"),
            loose_model: Some(Loose {
                said: "Model 2",
                value: "stub/stub-model-2",
                asked: "stub-model-2",
            }),
            ..most()
        },
        // It declares session/load, which fails after most ends of its process, not after all.
        "gemini" => Traits {
            loose_model: Some(Loose {
                said: "pro 2.5",
                value: "gemini-2.5-pro",
                asked: "gemini-2.5-pro",
            }),
            can_resume: false,
            ..most()
        },
        // Its one model is told by the environment, and no option.
        "copilot" => Traits {
            reads_mode: Some("https://agentclientprotocol.com/protocol/session-modes#plan"),
            fails_in_text: true,
            ..most()
        },
        "qwen" => Traits {
            loose_model: Some(Loose {
                said: " STUB-model ",
                value: "$runtime|openai|stub-model(openai)",
                asked: "stub-model",
            }),
            keeps_unanswered: true,
            ..most()
        },
        other => panic!("nothing is known of the agent {other}"),
    }
}

fn agents() -> Vec<String> {
    let names = std::env::var("SPAWNLET_REAL_AGENTS").unwrap_or_default();
    names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

const SESSION: &str = "apiVersion: spawnlet.dev/v1alpha1
kind: Session
metadata: {name: one}
spec:
  agent: {agent}
  cwd: {work}
";

/// The stub's model repeats what it was asked; what an agent puts before that is its business.
fn assert_answers(answer: &str, prompt: &str) {
    let (_, echo) = answer.split_once("STUB: ").unwrap_or_else(|| panic!("no echo in {answer}"));
    assert!(echo.contains(prompt), "{answer}");
}

/// A session whose process ended goes on in a new one and knows what it was told; or says that it
/// cannot, where its agent is not sure to load its sessions. Whether it went on.
async fn remembers(rig: &Rig, agent: &str, words: &str) -> bool {
    let answer = rig.try_cli(&["prompt", "one", "[[recall]]"]).await;
    if answer.status.success() || traits(agent).can_resume {
        let memory = String::from_utf8_lossy(&answer.stdout);
        assert!(memory.contains("recall: [") && memory.contains(words), "{answer:?}");
        return true;
    }
    rig.phase("session/one", "Expired").await;
    false
}

async fn session(agent: &str, more: &str) -> Rig {
    session_of(agent, more, &[]).await
}

/// The same, of a daemon that is configured by `KEY=VALUE`.
async fn session_of(agent: &str, more: &str, settings: &[&str]) -> Rig {
    let rig = Rig::start_with(agent, &format!("{SESSION}{more}"), settings).await;
    rig.appears("sessions", "one").await;
    rig
}

#[tokio::test]
async fn a_yaml_session_is_answered_and_its_second_turn_continues_it() {
    for agent in agents() {
        let rig = session(&agent, "  prompt: hello from yaml\n").await;
        rig.appears("turns", "one-1").await;
        rig.phase("turn/one-1", "Completed").await;
        let answer = rig.cli(&["response", "one-1"]).await;
        assert_answers(&answer, "hello from yaml");
        let logs = rig.cli(&["logs", "one"]).await;
        assert!(logs.contains("STUB: hello from yaml"), "{logs}");
        let updates = rig.cli(&["logs", "one", "-o", "acp"]).await;
        assert!(updates.contains("agent_message_chunk"), "{updates}");
        let reports = rig.cli(&["report", "session/one"]).await;
        for step in ["Launch", "Initialize", "OpenNew", "Submit"] {
            assert!(reports.contains(step), "{step} is not in\n{reports}");
        }
        let manifests = rig.cli(&["get", "manifests", "-o", "json"]).await;
        assert!(manifests.contains("all.yaml"), "{manifests}");

        let memory = rig.cli(&["prompt", "one", "[[recall]]"]).await;
        assert!(memory.contains("recall: [") && memory.contains("hello from yaml"), "{memory}");
        let first = rig.cli(&["response", "one-1"]).await;
        assert_eq!(first, answer);
        rig.finish("session/one").await;
    }
}

#[tokio::test]
async fn model_and_permission_mode_are_set_before_the_prompt() {
    for agent in agents() {
        let traits = traits(&agent);
        let model = traits.other_model.map(|model| format!("  model: {model}\n"));
        let more = format!("  permissions: approve-reads\n{}", model.unwrap_or_default());
        let mut rig = session(&agent, &more).await;
        let answer = rig.cli(&["prompt", "one", "are you set"]).await;
        assert_answers(&answer, "are you set");
        let turn = rig.record("turn/one-1").await;
        let status = &turn["status"];
        assert_eq!(status["warnings"], serde_json::Value::Null, "{status:#}");
        let value = |id: &str| {
            let mut options = status["config"].as_array().into_iter().flatten();
            let option = options.find(|option| option["id"] == id);
            option.map(|option| option["currentValue"].clone())
        };
        if let Some(mode) = traits.reads_mode {
            // An agent that has modes and no options shows it in the reports alone.
            let reports = rig.cli(&["report", "session/one"]).await;
            let is_set = reports.contains(&format!("Set(mode {mode})"));
            assert!(value("mode") == Some(mode.into()) || is_set, "{status:#}\n{reports}");
        }
        if let Some(model) = traits.other_model {
            assert_eq!(value("model"), Some(model.into()), "{status:#}");
            let asked = rig.asked("are you set").await;
            let asked = asked["model"].as_str().unwrap();
            assert!(model.ends_with(asked), "the model server was asked for {asked}");
        }
        rig.finish("session/one").await;
    }
}

#[tokio::test]
async fn a_cancel_in_a_tool_call_ends_the_turn_and_a_stop_its_children() {
    for agent in agents() {
        let rig = session(&agent, "").await;
        let signal = Signal::new(rig.work().join("signal"));
        let path = rig.work().join("signal");
        let tool = format!("[[tool:run echo up > {}; sleep 300 & sleep 300]]", path.display());
        rig.cli(&["prompt", "one", &tool, "--detach"]).await;
        signal.wait().await;
        // The control of all that follows: the scan does see the agent and its children.
        let running = rig.processes();
        let sleepers = running.iter().filter(|line| line.contains("sleep 300")).count();
        assert!(sleepers >= 1 && running.len() > sleepers, "{running:?}");

        rig.cli(&["cancel", "one"]).await;
        rig.phase("turn/one-1", "Cancelled").await;
        rig.cli(&["stop", "one"]).await;
        rig.phase("session/one", "Stopped").await;
        assert_eq!(rig.processes(), [""; 0], "left by the stop");
        rig.finish("session/one").await;
    }
}

#[tokio::test]
async fn a_command_that_needs_a_permission_is_not_run_by_a_session_that_may_only_read() {
    for agent in agents() {
        // What it asks all the same, nobody allows.
        let settings = &["permissionTimeout=1s"];
        let rig = session_of(&agent, "  permissions: approve-reads\n", settings).await;
        let path = rig.work().join("touched");
        let tool = format!("[[tool:bash touch {}]]", path.display());
        rig.cli(&["prompt", "one", &tool, "--detach"]).await;
        // Agents differ in how they end such a turn (page 80); it ends, and the session goes on.
        let answer = rig.cli(&["prompt", "one", "and now"]).await;
        assert_answers(&answer, "and now");
        assert!(!path.exists(), "the command was run");
        rig.finish("session/one").await;
    }
}

#[tokio::test]
async fn a_deletion_in_a_tool_call_leaves_no_process() {
    for agent in agents() {
        let rig = session(&agent, "").await;
        let signal = Signal::new(rig.work().join("signal"));
        let path = rig.work().join("signal");
        let tool = format!("[[tool:run echo up > {}; sleep 300 & sleep 300]]", path.display());
        rig.cli(&["prompt", "one", &tool, "--detach"]).await;
        signal.wait().await;
        rig.finish("session/one").await;
    }
}

#[tokio::test]
async fn a_turn_whose_model_is_silent_can_be_cancelled_and_the_session_goes_on() {
    for agent in agents() {
        let mut rig = session(&agent, "").await;
        rig.cli(&["prompt", "one", "say nothing [[hang:1]]", "--detach"]).await;
        rig.asked("say nothing").await;
        rig.cli(&["cancel", "one"]).await;
        rig.phase("turn/one-1", "Cancelled").await;
        let answer = rig.cli(&["prompt", "one", "and now"]).await;
        assert_answers(&answer, "and now");
        rig.finish("session/one").await;
    }
}

#[tokio::test]
async fn a_crash_of_the_daemon_interrupts_the_turn_which_is_not_sent_again() {
    for agent in agents() {
        let mut rig = session(&agent, "").await;
        rig.cli(&["prompt", "one", "first words"]).await;
        rig.cli(&["prompt", "one", "slow words [[slow:20]]", "--detach"]).await;
        rig.asked("slow words").await;
        // The agent may be faster than the record that says what it was given.
        rig.phase("turn/one-2", "Running").await;
        rig.crash_and_restart().await;
        rig.phase("turn/one-2", "Interrupted").await;
        let turn = rig.record("turn/one-2").await;
        assert_eq!(turn["status"]["delivery"], "Sent", "{turn:#}");
        assert_eq!(turn["status"]["code"], "APP_RESTARTED", "{turn:#}");
        assert_eq!(rig.processes(), [""; 0], "left by the crash");
        if remembers(&rig, &agent, "first words").await {
            assert_eq!(rig.count_asked("slow words", "[[recall]]").await, 0, "sent again");
        }
        rig.finish("session/one").await;
    }
}

#[tokio::test]
async fn an_idle_session_hibernates_and_remembers_when_it_is_woken() {
    for agent in agents() {
        let rig = session(&agent, "  idleTimeout: 1s\n").await;
        rig.cli(&["prompt", "one", "keep this"]).await;
        rig.phase("session/one", "Hibernated").await;
        assert_eq!(rig.processes(), [""; 0], "left by the hibernation");
        if remembers(&rig, &agent, "keep this").await {
            let record = rig.record("session/one").await;
            assert_eq!(record["status"]["incarnation"], 2, "{record:#}");
        }
        rig.finish("session/one").await;
    }
}

#[tokio::test]
async fn an_error_of_the_model_fails_the_turn_in_the_agents_words() {
    for agent in agents() {
        let rig = session(&agent, "").await;
        let code = traits(&agent).error;
        let output = rig.try_cli(&["prompt", "one", &format!("bad [[error:{code}]]")]).await;
        if traits(&agent).fails_in_text {
            assert_eq!(output.status.code(), Some(0), "{output:?}");
            let answer = String::from_utf8_lossy(&output.stdout).into_owned();
            assert!(answer.contains(&code.to_string()), "{answer}");
            let answer = rig.cli(&["prompt", "one", "again"]).await;
            assert_answers(&answer, "again");
            rig.finish("session/one").await;
            continue;
        }
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        let turn = rig.record("turn/one-1").await;
        assert_eq!(turn["status"]["phase"], "Failed", "{turn:#}");
        assert_eq!(turn["status"]["code"], "TURN_FAILED", "{turn:#}");
        let message = turn["status"]["message"].as_str().unwrap();
        assert!(message.contains(&format!("stub error {code}")), "{message}");
        if !traits(&agent).keeps_unanswered {
            let answer = rig.cli(&["prompt", "one", "again"]).await;
            assert_answers(&answer, "again");
        }
        rig.finish("session/one").await;
    }
}
