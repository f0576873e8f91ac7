//! A machine with a scripted peer: lines are written at once, time is a number.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::acp::connection::{Command, Open, Options, Scope};
use crate::acp::counts::{Counters, Counts};
use crate::acp::event::{Event, PermissionAsked, PromptEnd, Update};
use crate::acp::machine::{Machine, Sent};
use crate::acp::roots::Roots;
use crate::api::Uid;
use crate::api::agent::{AdditionalDirectories, Permissions};
use crate::clock::{ManualClock, Mono};

pub(super) fn options() -> Options {
    Options {
        permissions: Permissions::ApproveAll,
        roots: Roots::new(vec![PathBuf::from("/")]),
        category_map: BTreeMap::new(),
        additional_directories: AdditionalDirectories::Auto,
        clock: Arc::new(ManualClock::default()),
    }
}

pub(super) fn blocks(text: &str) -> Box<RawValue> {
    RawValue::from_string(json!([{"type": "text", "text": text}]).to_string()).unwrap()
}

pub(super) struct Bench {
    pub(super) machine: Machine,
    pub(super) counters: Arc<Counters>,
    pub(super) now: Mono,
    /// What the agent was sent.
    pub(super) sent: Vec<Value>,
}

impl Bench {
    pub(super) fn new(options: Options) -> Self {
        let counters = Arc::new(Counters::default());
        let machine = Machine::new(options, Arc::clone(&counters));
        Self { machine, counters, now: Mono(0), sent: Vec::new() }
    }

    /// With session `s` open.
    pub(super) fn open(options: Options) -> Self {
        let mut bench = Self::new(options);
        bench.command(Command::Initialize);
        bench.result(json!({"protocolVersion": 1, "agentCapabilities": {}}));
        bench.command(Command::Open(Open::New(Scope::default())));
        bench.result(json!({"sessionId": "s"}));
        bench.events();
        bench
    }

    /// With turn `t` running.
    pub(super) fn running(options: Options) -> Self {
        let mut bench = Self::open(options);
        bench.prompt("t");
        bench.events();
        bench
    }

    pub(super) fn command(&mut self, command: Command) {
        self.machine.on_command(command, self.now);
        self.write();
    }

    pub(super) fn prompt(&mut self, turn: &str) {
        self.command(Command::Prompt { turn: Uid::from(turn), blocks: blocks("hi") });
    }

    pub(super) fn line(&mut self, line: &str) {
        self.bytes(line.as_bytes());
    }

    pub(super) fn bytes(&mut self, line: &[u8]) {
        self.machine.on_line(line, self.now);
        self.write();
    }

    /// The agent's update of session `s`.
    pub(super) fn update(&mut self, update: Value) {
        self.line(&update_line("s", &update));
    }

    /// The agent's answer to the newest request.
    pub(super) fn result(&mut self, result: Value) {
        let id = self.last_id();
        self.line(&json!({"jsonrpc": "2.0", "id": id, "result": result}).to_string());
    }

    pub(super) fn error(&mut self, code: i64, message: &str) {
        let id = self.last_id();
        let error = json!({"code": code, "message": message});
        self.line(&json!({"jsonrpc": "2.0", "id": id, "error": error}).to_string());
    }

    pub(super) fn last_id(&self) -> u64 {
        let with_method =
            |message: &&Value| message["id"].is_u64() && message["method"].is_string();
        self.sent.iter().rfind(with_method).unwrap()["id"].as_u64().unwrap()
    }

    pub(super) fn pass(&mut self, duration: Duration) {
        self.now = self.now.plus(duration);
        self.machine.on_time(self.now);
        self.write();
    }

    fn write(&mut self) {
        for line in std::mem::take(&mut self.machine.lines) {
            assert_eq!(line.bytes.iter().filter(|b| **b == b'\n').count(), 1);
            // The id of an agent's request goes back as it came, also if no number here holds it.
            let message = serde_json::from_slice(&line.bytes).unwrap_or_else(|_| {
                serde_json::from_slice::<serde::de::IgnoredAny>(&line.bytes).unwrap();
                Value::Null
            });
            if line.sent != (Sent::Answer { bytes: line.bytes.len() }) {
                self.machine.on_sent(line.sent, self.now);
            }
            self.sent.push(message);
        }
    }

    pub(super) fn events(&mut self) -> Vec<Event> {
        self.machine.events.drain(..).collect()
    }

    pub(super) fn updates(&mut self) -> Vec<Update> {
        let update = |event| match event {
            Event::Update(update) => Some(update),
            _ => None,
        };
        self.events().into_iter().filter_map(update).collect()
    }

    pub(super) fn ends(&mut self) -> Vec<(Uid, Result<PromptEnd, String>)> {
        let end = |event| match event {
            Event::PromptEnded { turn, outcome } => Some((turn, outcome.map_err(|e| e.message))),
            _ => None,
        };
        self.events().into_iter().filter_map(end).collect()
    }

    pub(super) fn asked(&mut self) -> Vec<PermissionAsked> {
        let asked = |event| match event {
            Event::PermissionAsked(asked) => Some(asked),
            _ => None,
        };
        self.events().into_iter().filter_map(asked).collect()
    }

    pub(super) fn counts(&self) -> Counts {
        self.counters.read()
    }

    /// How often a method was sent.
    pub(super) fn times(&self, method: &str) -> usize {
        self.sent.iter().filter(|message| message["method"] == method).count()
    }
}

pub(super) fn update_line(session: &str, update: &Value) -> String {
    json!({"jsonrpc": "2.0", "method": "session/update",
        "params": {"sessionId": session, "update": update}})
    .to_string()
}

pub(super) fn chunk(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}
