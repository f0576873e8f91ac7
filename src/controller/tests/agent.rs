//! An ACP agent in a few lines, which does what its script says.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::ground::Ground;

/// How an agent behaves; the command of its Agent record says which.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Script {
    /// It never answers a prompt unless cancelled.
    pub(super) endless: bool,
    /// It ignores `session/cancel`.
    pub(super) stubborn: bool,
    /// It ignores the end of its standard input and SIGTERM.
    pub(super) ignores_term: bool,
    /// It can neither resume nor load.
    pub(super) forgetful: bool,
    /// It offers modes, and never answers when one is set.
    pub(super) silent_settings: bool,
    /// It sends more updates after the answer to a prompt.
    pub(super) late: bool,
    /// It sends a dozen more updates after each answer to a prompt, so far apart.
    pub(super) lingers: Option<Duration>,
    /// How many permissions it asks for at once in each prompt.
    pub(super) asks: usize,
    /// After how long it takes its questions back.
    pub(super) withdraws: Option<Duration>,
    /// It asks for permission when it is cancelled, and ends once it is answered.
    pub(super) asks_on_cancel: bool,
    /// It answers with all its might at the moment of a cancel: `end_turn`.
    pub(super) answers_cancel_with_end: bool,
    /// The method that it gets no answer to.
    pub(super) silent_at: Option<String>,
    /// The method at which it ends.
    pub(super) crash_at: Option<String>,
    /// Its process tree is never proven empty.
    pub(super) immortal: bool,
    /// A launch of it fails.
    pub(super) missing: bool,
    /// It never answers a prompt, and says something so often.
    pub(super) talks: Duration,
    /// How long it thinks before it answers a prompt.
    pub(super) thinks: Duration,
}

impl Script {
    /// `word word=value ...`.
    pub(super) fn parse(command: &str) -> Self {
        let mut script = Self::default();
        for word in command.split_whitespace() {
            let (word, value) = word.split_once('=').unwrap_or((word, ""));
            match word {
                "answer" => {}
                "endless" => script.endless = true,
                "stubborn" => script.stubborn = true,
                "ignores-term" => script.ignores_term = true,
                "forgetful" => script.forgetful = true,
                "silent-settings" => script.silent_settings = true,
                "late" => script.late = true,
                "lingers-ms" => {
                    script.lingers = Some(Duration::from_millis(value.parse().unwrap()));
                }
                "asks" => script.asks = value.parse().unwrap_or(1),
                "withdraws-ms" => {
                    script.withdraws = Some(Duration::from_millis(value.parse().unwrap()));
                }
                "asks-on-cancel" => script.asks_on_cancel = true,
                "ends-on-cancel" => script.answers_cancel_with_end = true,
                "silent-at" => script.silent_at = Some(value.to_owned()),
                "crash-at" => script.crash_at = Some(value.to_owned()),
                "immortal" => script.immortal = true,
                "missing" => script.missing = true,
                "talks-ms" => script.talks = Duration::from_millis(value.parse().unwrap()),
                "thinks-ms" => script.thinks = Duration::from_millis(value.parse().unwrap()),
                other => panic!("no such behaviour: {other}"),
            }
        }
        script
    }
}

/// What runs in a scripted process.
pub(super) struct Agent {
    pub(super) script: Script,
    pub(super) ground: Arc<Ground>,
    pub(super) stdin: DuplexStream,
    pub(super) stdout: DuplexStream,
    pub(super) buffer: Vec<u8>,
    /// The open prompt's request id.
    pub(super) prompt: Option<Value>,
    /// Questions that were not answered.
    pub(super) unanswered: usize,
}

impl Agent {
    /// Runs to its end and says how it ended.
    pub(super) async fn run(mut self) -> String {
        loop {
            let Some(message) = self.read().await else {
                if self.script.ignores_term {
                    std::future::pending::<()>().await;
                }
                return "exit code 0".to_owned();
            };
            if let Some(status) = self.take(&message).await {
                return status;
            }
        }
    }

    async fn read(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).unwrap());
            }
            let mut bytes = [0; 4096];
            match self.stdin.read(&mut bytes).await {
                Ok(0) | Err(_) => return None,
                Ok(read) => self.buffer.extend_from_slice(&bytes[..read]),
            }
        }
    }

    async fn write(&mut self, message: Value) {
        // The daemon may be gone; then nobody reads.
        let _ = self.stdout.write_all(format!("{message}\n").as_bytes()).await;
    }

    async fn answer(&mut self, id: &Value, result: Value) {
        self.write(json!({"jsonrpc": "2.0", "id": id, "result": result})).await;
    }

    async fn say(&mut self, text: &str) {
        self.write(json!({"jsonrpc": "2.0", "method": "session/update", "params": {
            "sessionId": "acp", "update": {"sessionUpdate": "agent_message_chunk",
            "content": {"type": "text", "text": text}}}}))
            .await;
    }

    /// Takes one message. `Some`: it ends so.
    async fn take(&mut self, message: &Value) -> Option<String> {
        let method = message["method"].as_str().unwrap_or_default().to_owned();
        let id = message["id"].clone();
        if method == "session/prompt" {
            let text = prompt_text(message);
            self.ground.prompted(text);
        }
        if !method.is_empty() && self.script.crash_at.as_deref() == Some(&method) {
            return Some("exit code 3".to_owned());
        }
        if !method.is_empty() && self.script.silent_at.as_deref() == Some(&method) {
            return None;
        }
        match method.as_str() {
            "initialize" => self.initialize(&id).await,
            "session/new" | "session/load" | "session/resume" => {
                let mut opened = json!({});
                if method == "session/new" {
                    opened["sessionId"] = json!("acp");
                }
                if self.script.silent_settings {
                    opened["modes"] = json!({"currentModeId": "ask", "availableModes": [
                        {"id": "ask", "name": "Ask"},
                        {"id": "bypassPermissions", "name": "Bypass Permissions"}]});
                }
                self.answer(&id, opened).await;
            }
            "session/prompt" => self.on_prompt(&id, message).await,
            "session/cancel" => self.on_cancel().await,
            "session/close" => self.answer(&id, json!({})).await,
            "" => self.on_permission(message).await,
            _ => {}
        }
        None
    }

    async fn initialize(&mut self, id: &Value) {
        let capabilities = if self.script.forgetful {
            json!({})
        } else {
            json!({"loadSession": true, "sessionCapabilities": {"resume": {}, "close": {}}})
        };
        self.answer(
            id,
            json!({"protocolVersion": 1, "agentCapabilities": capabilities,
            "agentInfo": {"name": "scripted", "version": "1.2.3"}}),
        )
        .await;
    }

    async fn on_prompt(&mut self, id: &Value, message: &Value) {
        assert_eq!(self.prompt, None, "a prompt in a prompt");
        let text = prompt_text(message);
        self.prompt = Some(id.clone());
        self.say(&format!("echo: {text}")).await;
        if self.script.asks > 0 {
            self.ask(self.script.asks).await;
            if let Some(wait) = self.script.withdraws {
                tokio::time::sleep(wait).await;
                self.write(json!({"jsonrpc": "2.0", "method": "$/cancel_request",
                    "params": {"requestId": "p1"}}))
                    .await;
            }
            return;
        }
        while !self.script.talks.is_zero() {
            tokio::time::sleep(self.script.talks).await;
            self.say(".").await;
        }
        if self.script.endless || self.script.stubborn || self.script.asks_on_cancel {
            return;
        }
        if !self.script.thinks.is_zero() {
            tokio::time::sleep(self.script.thinks).await;
        }
        self.end("end_turn").await;
    }

    async fn ask(&mut self, count: usize) {
        self.unanswered = count;
        for number in 1..=count {
            self.write(json!({"jsonrpc": "2.0", "id": format!("p{number}"),
                "method": "session/request_permission",
                "params": {"sessionId": "acp",
                    "toolCall": {"toolCallId": format!("c{number}"), "kind": "edit",
                        "title": format!("writes file {number}")},
                    "options": [{"optionId": "y", "name": "Yes", "kind": "allow_once"},
                        {"optionId": "n", "name": "No", "kind": "reject_once"}]}}))
                .await;
        }
    }

    async fn on_permission(&mut self, message: &Value) {
        let outcome = &message["result"]["outcome"];
        let said = outcome["optionId"].as_str().or_else(|| outcome["outcome"].as_str());
        let said = said.unwrap_or("nothing").to_owned();
        self.ground.note(format!("permission {said}"));
        self.unanswered -= 1;
        if said != "cancelled" {
            self.say(&format!(" permission: {said}")).await;
            if self.unanswered == 0 {
                self.end("end_turn").await;
            }
        } else if self.script.asks_on_cancel {
            self.end("cancelled").await;
        }
    }

    async fn on_cancel(&mut self) {
        self.ground.note("cancel".to_owned());
        if self.script.stubborn {
            return;
        }
        if self.script.asks_on_cancel {
            self.ask(1).await;
            return;
        }
        let reason = if self.script.answers_cancel_with_end { "end_turn" } else { "cancelled" };
        self.end(reason).await;
    }

    async fn end(&mut self, reason: &str) {
        let Some(id) = self.prompt.take() else { return };
        self.answer(&id, json!({"stopReason": reason})).await;
        if self.script.late {
            for number in 0..3 {
                self.say(&format!("late {number}")).await;
            }
            tokio::time::sleep(Duration::from_millis(500)).await;
            self.say("much later").await;
        }
        if let Some(pause) = self.script.lingers {
            for number in 0..12 {
                self.say(&format!("late {number}")).await;
                tokio::time::sleep(pause).await;
            }
        }
    }
}

/// What the user wrote: what the agent is told of its session stands before it.
fn prompt_text(message: &Value) -> &str {
    let blocks = message["params"]["prompt"].as_array().unwrap();
    blocks.last().unwrap()["text"].as_str().unwrap()
}
