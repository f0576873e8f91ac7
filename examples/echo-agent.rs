//! `echo-agent`: the smallest whole ACP agent, to try spawnlet with and to start your own from.
//!
//! An agent reads JSON-RPC 2.0 messages from standard input, one per line, and writes messages to
//! standard output, one per line. Standard output carries nothing else: logs go to standard error.
//! These are the methods that a client needs:
//!
//! - `initialize`: both sides say which version they speak and what they can.
//! - `session/new`: begins a conversation in a directory.
//! - `session/prompt`: one turn. While it runs, `session/update` notifications tell what happens;
//!   the response says why the turn ended.
//! - `session/cancel`: a notification; the running turn ends with the stop reason `cancelled`.
//!
//! It knows nothing of `session/load` and `session/resume`, so it does not declare them, and a
//! session of it ends with its process. The protocol: <https://agentclientprotocol.com>.

use std::collections::{HashSet, VecDeque};
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, sync_channel};

use serde_json::{Value, json};

/// The version of the protocol that this agent speaks.
const PROTOCOL_VERSION: u64 = 1;
/// How many messages are read ahead of the one that is worked on.
const READ_AHEAD: usize = 64;

// The error codes of JSON-RPC.
const PARSE_ERROR: i64 = -32700;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

fn main() -> std::io::Result<()> {
    // Reading has a thread of its own: a cancel must be seen while a turn runs.
    let (sender, messages) = sync_channel(READ_AHEAD);
    std::thread::spawn(move || {
        #[expect(clippy::disallowed_methods, reason = "the client writes whole lines")]
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            // `None` stands for a line that is no JSON.
            if sender.send(serde_json::from_str(&line).ok()).is_err() {
                return;
            }
        }
        // Standard input has ended, so `sender` goes, and the loop in `run` ends.
    });
    Agent { messages, later: VecDeque::new(), sessions: HashSet::new() }.run()
}

struct Agent {
    /// What the reading thread has read.
    messages: Receiver<Option<Value>>,
    /// What came while a turn ran, and waits for its end.
    later: VecDeque<Option<Value>>,
    /// The ids of all sessions.
    sessions: HashSet<String>,
}

impl Agent {
    fn run(&mut self) -> std::io::Result<()> {
        while let Some(message) = self.later.pop_front().or_else(|| self.messages.recv().ok()) {
            match message {
                Some(message) => self.take(&message)?,
                None => fail(&Value::Null, PARSE_ERROR, "this line is no JSON")?,
            }
        }
        Ok(())
    }

    fn take(&mut self, message: &Value) -> std::io::Result<()> {
        let (id, params) = (&message["id"], &message["params"]);
        match message["method"].as_str() {
            Some("initialize") => respond(
                id,
                &json!({
                    "protocolVersion": PROTOCOL_VERSION,
                    "agentInfo": {"name": "echo-agent", "version": env!("CARGO_PKG_VERSION")},
                    // What is not declared is not offered: a prompt may hold text only.
                    "agentCapabilities": {},
                    "authMethods": [],
                }),
            ),
            Some("session/new") => {
                // `params.cwd` is the directory to work in. Echoes do not need one.
                let session = format!("echo-{}", self.sessions.len() + 1);
                self.sessions.insert(session.clone());
                respond(id, &json!({"sessionId": session}))
            }
            Some("session/prompt") => match params["sessionId"].as_str() {
                Some(session) if self.sessions.contains(session) => {
                    let stop_reason = self.turn(session, params)?;
                    respond(id, &json!({"stopReason": stop_reason}))
                }
                _ => fail(id, INVALID_PARAMS, "there is no such session"),
            },
            // A notification has no id, and gets no answer; one that is not known means nothing.
            // A cancel that comes here found no turn, so there is nothing to do either.
            _ if id.is_null() => Ok(()),
            Some(method) => fail(id, METHOD_NOT_FOUND, &format!("there is no method {method}")),
            // A response: this agent never asks, so it is none of ours.
            None => Ok(()),
        }
    }

    /// One turn: a tool call, then the prompt's text in two chunks. Returns the stop reason.
    fn turn(&mut self, session: &str, params: &Value) -> std::io::Result<&'static str> {
        let blocks = params["prompt"].as_array().map_or(&[][..], Vec::as_slice);
        // What spawnlet tells of the session is marked; it is not the user's text.
        let said = blocks.iter().filter(|block| block["_meta"]["spawnlet.dev/context"].is_null());
        let text: String = said.filter_map(|block| block["text"].as_str()).collect();

        // A tool call is announced under an id of its own; later updates change what they name.
        let steps = [
            json!({"sessionUpdate": "tool_call", "toolCallId": "count", "title": "Count letters",
                "kind": "other", "status": "in_progress"}),
            json!({"sessionUpdate": "tool_call_update", "toolCallId": "count",
                "status": "completed", "rawOutput": {"letters": text.chars().count()}}),
            chunk("You said: "),
            chunk(&text),
        ];
        for step in steps {
            if self.is_cancelled(session) {
                return Ok("cancelled");
            }
            let params = json!({"sessionId": session, "update": step});
            send(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))?;
        }
        Ok("end_turn")
    }

    /// Whether the client has cancelled this session's turn. Looks at what was read and does not
    /// wait; an agent that waits, for its model or a tool, looks in the meantime.
    fn is_cancelled(&mut self, session: &str) -> bool {
        let mut is_cancelled = false;
        while let Ok(message) = self.messages.try_recv() {
            match message {
                Some(message) if message["method"] == "session/cancel" => {
                    is_cancelled |= message["params"]["sessionId"] == session;
                }
                other => self.later.push_back(other),
            }
        }
        is_cancelled
    }
}

/// A piece of the answer. The client puts them together; where they are cut does not matter.
fn chunk(text: &str) -> Value {
    json!({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})
}

fn respond(id: &Value, result: &Value) -> std::io::Result<()> {
    send(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
}

fn fail(id: &Value, code: i64, message: &str) -> std::io::Result<()> {
    let error = json!({"code": code, "message": message});
    send(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
}

/// Writes a message as one line, and flushes it: the client waits for it.
fn send(message: &Value) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "{message}")?;
    stdout.flush()
}
