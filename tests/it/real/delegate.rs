//! Real agents that others delegate to, and that delegate themselves: a real MCP client (or the
//! agent's own) over HTTP to the built daemon.

use serde_json::{Value, json};

use super::rig::{Rig, Signal};
use super::{Loose, agents, traits};
use crate::harness::Caller;

/// The second agent: of the binary itself, so that each case needs one real agent alone.
const SECOND: &str = "apiVersion: spawnlet.dev/v1alpha1
kind: Agent
metadata: {name: second}
spec: {command: spawnlet demo-agent}
";
const TOOLS: [&str; 5] = [
    "available_agents",
    "cancel_session",
    "check_session_status",
    "prompt_to_agent",
    "read_response",
];

/// A daemon with the agent, and a client that may spawn it.
struct Delegation {
    rig: Rig,
    agent: String,
    token: String,
    caller: Caller,
}

impl Delegation {
    async fn start(agent: &str) -> Self {
        let rig = Rig::start(agent, SECOND).await;
        for name in [agent, "second"] {
            rig.appears("agents", name).await;
            let agent = format!("agent/{name}");
            rig.cli(&["wait", &agent, "--for", "condition=Available", "--timeout", "60s"]).await;
        }
        let work = rig.work();
        let arguments = ["token", "create", "--session", "me", "--permissions", "approve-all"];
        let more = ["--cwd", work.to_str().unwrap(), "-o", "json"];
        let made = rig.cli(&[&arguments[..], &more[..]].concat()).await;
        let made: Value = serde_json::from_str(&made).unwrap();
        rig.phase("session/me", "Idle").await;
        let token = made["token"].as_str().unwrap().to_owned();
        let caller = Caller::connect(made["mcpUrl"].as_str().unwrap(), &token).await;
        Self { rig, agent: agent.to_owned(), token, caller }
    }

    /// The same client at the daemon that runs now.
    async fn reconnect(&mut self) {
        self.caller = Caller::connect(&self.rig.mcp_url(), &self.token).await;
    }

    /// A prompt that begins a session, answered when its turn has ended.
    async fn ask(&self, prompt: &str) -> Value {
        let arguments = json!({"agentId": self.agent, "prompt": prompt, "background": false});
        completed(self.caller.prompt(&arguments).await)
    }

    /// The next prompt of a session, answered when its turn has ended.
    async fn go_on(&self, session: &Value, prompt: &str) -> Value {
        let arguments = json!({
            "agentId": self.agent, "sessionId": session, "prompt": prompt, "background": false,
        });
        self.caller.prompt(&arguments).await
    }

    /// A prompt in the background, in a session that there is or in a new one.
    async fn begin(&self, session: Option<&Value>, prompt: &str) -> Value {
        let mut arguments = json!({"agentId": self.agent, "prompt": prompt});
        if let Some(session) = session {
            arguments["sessionId"] = session.clone();
        }
        let told = self.caller.prompt(&arguments).await;
        assert_eq!(told["status"], "accepted", "{told:#}");
        told
    }

    /// The record of the kind with this uid, as `KIND/NAME`.
    async fn object(&self, kind: &str, uid: &Value) -> String {
        let list = self.rig.cli(&["get", &format!("{kind}s"), "-o", "json"]).await;
        let list: Value = serde_json::from_str(&list).unwrap();
        let items = list["items"].as_array().unwrap();
        let found = items.iter().find(|item| item["metadata"]["uid"] == *uid);
        let found = found.unwrap_or_else(|| panic!("no {kind} {uid} in {list:#}"));
        format!("{kind}/{}", found["metadata"]["name"].as_str().unwrap())
    }

    /// A prompt in the background whose tool call runs until somebody ends it, with a child in the
    /// background; told when that runs.
    async fn begin_tool(&self) -> Value {
        let path = self.rig.work().join("signal");
        let signal = Signal::new(path.clone());
        let tool = format!("[[tool:run echo up > {}; sleep 300 & sleep 300]]", path.display());
        let begun = self.begin(None, &tool).await;
        signal.wait().await;
        // The control of all that follows: the scan does see the agent and its children.
        let running = self.rig.processes();
        let sleepers = running.iter().filter(|line| line.contains("sleep 300")).count();
        assert!(sleepers >= 1 && running.len() > sleepers, "{running:?}");
        begun
    }

    /// What holds of a session whose turn the end of the daemon interrupted: it is told, nothing
    /// is sent again, and the session goes on by a new prompt if the agent can.
    async fn goes_on(&mut self, session: &Value, code: &str) {
        self.reconnect().await;
        let status = self.caller.status(session).await;
        assert_eq!((&status["status"], &status["code"]), (&json!("interrupted"), &json!(code)));
        assert_eq!(self.rig.processes(), [""; 0], "left by the end of the daemon");
        let told = self.go_on(session, "[[recall]]").await;
        if traits(&self.agent).can_resume || told["status"] == "completed" {
            let memory = completed(told);
            assert!(memory["content"].as_str().unwrap().contains("first words"), "{memory:#}");
            assert_eq!(self.rig.count_asked("slow words", "[[recall]]").await, 0, "sent again");
        } else {
            assert_eq!(told["code"], "AGENT_PROCESS_INVALIDATED", "{told:#}");
            assert_eq!(self.caller.status(session).await["status"], "expired");
            assert_eq!(self.go_on(session, "and now").await["status"], "expired");
        }
    }

    /// Deletes the caller, with which everything of its goes.
    async fn finish(self) {
        self.caller.close().await;
        self.rig.finish("session/me").await;
    }
}

fn completed(told: Value) -> Value {
    assert_eq!(told["status"], "completed", "{told:#}");
    told
}

#[tokio::test]
async fn delegated_work_is_answered_in_the_foreground_and_continued() {
    for agent in agents() {
        let work = Delegation::start(&agent).await;
        let mut tools = work.caller.tools().await;
        tools.sort_unstable();
        assert_eq!(tools, TOOLS);
        let listed = work.caller.told("available_agents", &json!({})).await;
        let listed = listed["agents"].as_array().unwrap();
        assert!(listed.iter().any(|listed| listed["agentId"] == *agent), "{listed:?}");

        let first = work.ask("hello from a caller").await;
        let content = first["content"].as_str().unwrap();
        assert!(content.contains("STUB: hello from a caller"), "{content}");
        assert_eq!(first["truncated"], false);
        let session = &first["sessionId"];
        let second = completed(work.go_on(session, "[[recall]]").await);
        assert_eq!(second["sessionId"], *session);
        let memory = second["content"].as_str().unwrap();
        assert!(memory.contains("recall: [") && memory.contains("hello from a caller"), "{memory}");
        let read = work.caller.read(session, &first["responseId"], 65_536).await;
        assert_eq!(read, content, "the first response has changed");
        work.finish().await;
    }
}

#[tokio::test]
async fn delegated_work_in_the_background_is_followed_and_read_byte_for_byte() {
    for agent in agents() {
        let work = Delegation::start(&agent).await;
        // Characters of one to four bytes, so that pieces would end within one; and no two lines
        // alike, or an agent may take it for a model that goes round in circles.
        let text: String = (0..2500).map(|line| format!("{line} aä€😀\n")).collect();
        let text = text.trim_end();
        let begun = work.begin(None, &format!("[[slow:2]][[say:{text}]]")).await;
        let session = &begun["sessionId"];
        let status = work.caller.status(session).await;
        assert_eq!((&status["status"], &status["mode"]), (&json!("running"), &json!("background")));
        assert_eq!(status["turnId"], begun["turnId"], "{status:#}");
        let turn = work.object("turn", &begun["turnId"]).await;
        work.rig.phase(&turn, "Completed").await;
        let status = work.caller.status(session).await;
        assert_eq!(status["status"], "idle", "{status:#}");
        assert_eq!(status["latestTurnId"], begun["turnId"], "{status:#}");
        let read = work.caller.read(session, &status["latestResponseId"], 4097).await;
        // Codex puts a warning of its own before the first answer.
        assert!(read.ends_with(text), "{} of {} bytes: {read:.200}", read.len(), text.len());
        let stored = work.rig.cli(&["response", turn.trim_start_matches("turn/")]).await;
        assert!(stored == read, "{} of {} bytes", read.len(), stored.len());
        work.finish().await;
    }
}

#[tokio::test]
async fn a_model_named_loosely_is_set_and_one_that_there_is_not_sends_nothing() {
    for agent in agents() {
        let mut work = Delegation::start(&agent).await;
        let mut arguments = json!({
            "agentId": agent, "prompt": "are you set", "background": false,
            "model": "no such model",
        });
        let told = work.caller.prompt(&arguments).await;
        assert_eq!(told["status"], "configuration_required", "{told:#}");
        assert_eq!(told["promptDispatched"], false, "{told:#}");
        assert_eq!(work.caller.status(&told["sessionId"]).await["status"], "idle");
        let issue = &told["issues"][0];
        let loose = traits(&agent).loose_model;
        let reason = if loose.is_some() { "unsupported" } else { "missing_category_option" };
        assert_eq!((&issue["parameter"], &issue["reason"]), (&json!("model"), &json!(reason)));
        let candidates = issue["candidates"].as_array().map(Vec::as_slice).unwrap_or_default();
        let Some(Loose { said, value, asked }) = loose else {
            assert!(candidates.is_empty(), "{told:#}");
            work.finish().await;
            continue;
        };
        assert!(candidates.iter().any(|candidate| candidate["value"] == value), "{told:#}");

        arguments["sessionId"] = told["sessionId"].clone();
        arguments["model"] = said.into();
        let done = completed(work.caller.prompt(&arguments).await);
        assert_eq!(done["sessionId"], told["sessionId"]);
        let content = done["content"].as_str().unwrap();
        assert!(content.contains("STUB: are you set"), "{content}");
        let mut options = done["config"].as_array().unwrap().iter();
        let set = options.find(|option| option["id"] == "model").unwrap();
        assert_eq!(set["currentValue"], value, "{done:#}");
        let request = work.rig.asked("are you set").await;
        assert_eq!(request["model"], asked, "what the model server was asked for");
        work.finish().await;
    }
}

#[tokio::test]
async fn a_cancel_by_the_caller_in_a_tool_call_leaves_no_process() {
    for agent in agents() {
        let work = Delegation::start(&agent).await;
        let begun = work.begin_tool().await;
        let session = &begun["sessionId"];
        let turn = work.object("turn", &begun["turnId"]).await;
        let object = work.object("session", session).await;
        let cancel = json!({"sessionId": session});
        let told = work.caller.told("cancel_session", &cancel).await;
        assert_eq!(told, json!({"cancelled": true}));
        work.rig.phase(&turn, "Cancelled").await;
        let status = work.caller.status(session).await;
        let code = json!("TURN_CANCELLED_BY_PARENT");
        assert_eq!((&status["status"], &status["code"]), (&json!("error"), &code), "{status:#}");
        work.rig.phase(&object, "Stopped").await;
        assert_eq!(work.rig.processes(), [""; 0], "left by the cancel");
        let again = work.caller.told("cancel_session", &cancel).await;
        assert_eq!(again, json!({"cancelled": false, "reason": "Session not found"}));
        assert_ne!(work.go_on(session, "and now").await["status"], "completed");
        work.finish().await;
    }
}

#[tokio::test]
async fn after_a_crash_a_delegated_turn_is_interrupted_and_its_session_goes_on() {
    for agent in agents() {
        let mut work = Delegation::start(&agent).await;
        let session = work.ask("first words").await["sessionId"].clone();
        work.begin(Some(&session), "slow words [[slow:20]]").await;
        work.rig.asked("slow words").await;
        work.rig.crash_and_restart().await;
        work.goes_on(&session, "APP_RESTARTED").await;
        work.finish().await;
    }
}

#[tokio::test]
async fn an_orderly_stop_interrupts_a_delegated_turn_and_its_session_goes_on() {
    for agent in agents() {
        let mut work = Delegation::start(&agent).await;
        let session = work.ask("first words").await["sessionId"].clone();
        work.begin(Some(&session), "slow words [[slow:20]]").await;
        work.rig.asked("slow words").await;
        work.rig.stop_and_restart().await;
        work.goes_on(&session, "APP_SHUTDOWN").await;
        work.finish().await;
    }
}

#[tokio::test]
async fn with_the_caller_go_its_sessions_and_their_processes() {
    for agent in agents() {
        let work = Delegation::start(&agent).await;
        let idle = work.ask("stay").await["sessionId"].clone();
        work.begin_tool().await;
        work.object("session", &idle).await;
        work.rig.cli(&["delete", "session/me", "--wait", "--timeout", "60s"]).await;
        assert_eq!(work.rig.processes(), [""; 0], "left by the deletion");
        let left = work.rig.cli(&["get", "sessions,turns", "-o", "name"]).await;
        assert_eq!(left, "", "left by the deletion");
        // The client has nobody to say goodbye to.
        drop(work.caller);
        work.rig.end().await;
    }
}

#[tokio::test]
async fn an_agent_delegates_to_another_by_its_own_client() {
    for agent in agents() {
        let work = Delegation::start(&agent).await;
        work.rig.add_manifest("host.yaml", &host(&work));
        work.rig.appears("sessions", "host").await;
        // Longer than it takes until the daemon tells of progress. Escaped, or the agent's model
        // would take it for its own.
        let inner = r"\u005b\u005bslow:12\u005d\u005d passed on";
        let call = format!(
            r#"[[tool:call prompt_to_agent {{"agentId": "second", "prompt": "{inner}", "background": false}}]]"#
        );
        let answer = work.rig.cli(&["prompt", "host", &format!("delegate {call}")]).await;
        assert!(answer.contains("STUB: delegate"), "{answer}");
        assert!(answer.contains("completed") && answer.contains("passed on"), "{answer}");
        let children = work.rig.cli(&["get", "sessions", "-o", "json"]).await;
        let children: Value = serde_json::from_str(&children).unwrap();
        let mut children = children["items"].as_array().unwrap().iter();
        let child = children.find(|item| item["spec"]["agent"] == "second").unwrap();
        assert_eq!(child["spec"]["parent"], "me", "{child:#}");
        work.rig.cli(&["delete", "session/host", "--wait", "--timeout", "60s"]).await;
        work.finish().await;
    }
}

/// A session of the agent that reaches the daemon as the caller does.
fn host(work: &Delegation) -> String {
    let Delegation { rig, agent, token, .. } = work;
    let (cwd, url) = (rig.work().display().to_string(), rig.mcp_url());
    format!(
        "apiVersion: spawnlet.dev/v1alpha1
kind: Session
metadata: {{name: host}}
spec:
  agent: {agent}
  cwd: {cwd}
  mcpServers:
  - name: spawnlet
    type: http
    url: {url}
    headers: {{Authorization: Bearer {token}}}
"
    )
}
