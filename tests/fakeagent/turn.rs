//! A turn: the directives of a prompt, one after the other.

use std::sync::mpsc::RecvTimeoutError;
use std::time::Duration;

use serde_json::{Value, json};

use crate::agent::{Agent, Stop};
use crate::caller;
use crate::children;
use crate::flags::OnCancel;
use crate::memory;
use crate::wire::Input;

/// How a turn is to end, and what it has found out on the way.
pub(crate) struct Turn {
    pub(crate) session: String,
    meta: Value,
    stop_reason: String,
    error: Option<(i64, String)>,
    on_cancel: OnCancel,
    is_cancelled: bool,
    /// Kinds of answers that requests for permission offer.
    offer: Vec<String>,
    /// The answer that came to the request that is waited for.
    answer: Option<Value>,
    is_twice: bool,
    late: Option<(usize, Duration)>,
    tools: usize,
}

/// A chunk of `[[big]]`.
const CHUNK_BYTES: usize = 64 * 1024;
/// What is written at a time where bytes are meant, not lines.
const PIECE: &[u8] = &[b'x'; 64 * 1024];

impl Agent {
    pub(crate) fn prompt(&mut self, id: &Value, params: &Value) -> Result<(), Stop> {
        let session = params["sessionId"].as_str().unwrap_or_default().to_owned();
        let blocks = params["prompt"].as_array().cloned().unwrap_or_default();
        let (told, said): (Vec<_>, Vec<_>) =
            blocks.iter().partition(|block| !block["_meta"]["spawnlet.dev/context"].is_null());
        let text: String = said.iter().filter_map(|block| block["text"].as_str()).collect();
        let told: String = told.iter().filter_map(|block| block["text"].as_str()).collect();
        if let Some(path) = &self.flags.prompt_log {
            let short: String = text.chars().take(500).collect();
            let system = self.sessions.get(&session).map(|known| known.system.clone());
            let line = json!({"session": session, "text": short, "bytes": text.len(),
                "told": told, "system": system, "meta": params["_meta"], "pid": std::process::id()});
            memory::append(path, &line)?;
        }
        let Some(known) = self.sessions.get_mut(&session) else {
            return Ok(self.stdout.error(id, -32002, "Session not found")?);
        };
        known.prompts += 1;
        if let Some(path) = &self.flags.state {
            memory::remember_prompt(path, &session, &text)?;
        }
        let mut turn = Turn {
            session,
            meta: params["_meta"].clone(),
            stop_reason: "end_turn".into(),
            error: None,
            on_cancel: self.flags.on_cancel,
            is_cancelled: false,
            offer: ["allow_once", "reject_once"].map(str::to_owned).into(),
            answer: None,
            is_twice: false,
            late: None,
            tools: 0,
        };
        if let Some(stage) = self.flags.stages.get("prompt") {
            let (delay, exit, silent) = (stage.delay, stage.exit, stage.silent);
            turn.error.clone_from(&stage.fail);
            self.wait(&mut turn, Some(delay))?;
            if let Some(code) = exit {
                return Err(Stop::Exit(code));
            }
            if silent {
                return Ok(());
            }
        }
        let each = self.flags.each.clone();
        self.follow(&mut turn, &each)?;
        self.follow(&mut turn, &text)?;
        self.end(id, &turn)
    }

    /// Does what the directives in a text say; a text without any is echoed.
    fn follow(&mut self, turn: &mut Turn, text: &str) -> Result<(), Stop> {
        let mut rest = text;
        let mut found = false;
        while let Some((_, from)) = rest.split_once("[[") {
            let Some((directive, after)) = from.split_once("]]") else { break };
            // JSON may end in brackets of its own.
            let extra = after.len() - after.trim_start_matches(']').len();
            let directive = &from[..directive.len() + extra];
            found = true;
            if turn.is_cancelled {
                return Ok(());
            }
            let (name, argument) = directive.split_once(':').unwrap_or((directive, ""));
            self.obey(turn, name, argument)?;
            rest = &after[extra..];
        }
        if !found && !text.is_empty() && !turn.is_cancelled {
            self.stdout.say(&turn.session, "echo: ")?;
            self.stdout.say(&turn.session, text)?;
        }
        Ok(())
    }

    fn obey(&mut self, turn: &mut Turn, name: &str, argument: &str) -> Result<(), Stop> {
        let session = turn.session.clone();
        match name {
            "say" => self.stdout.say(&session, argument)?,
            "think" => self.stdout.chunk(&session, "agent_thought_chunk", argument)?,
            "big" => self.big(turn, argument)?,
            "updates" => {
                for _ in 0..number(argument) {
                    self.stdout.say(&session, ".")?;
                }
            }
            "tool" | "open-tool" => self.tool(turn, name, argument)?,
            "offer" => turn.offer = argument.split(',').map(str::to_owned).collect(),
            "ask" | "ask-more" => self.ask(turn, name, argument)?,
            "request" => {
                let params = json!({"sessionId": session, "path": "/", "command": "true"});
                let answer = self.request(turn, argument, &params)?;
                self.stdout.say(&session, &format!("{argument}: {}", answer["error"]["code"]))?;
            }
            "sleep" => {
                let time = Duration::from_millis(number(argument) as u64);
                self.wait(turn, Some(time))?;
            }
            "never" => self.wait(turn, None)?,
            "on-cancel" => {
                turn.on_cancel = OnCancel::parse(argument).unwrap_or(OnCancel::Cancelled);
            }
            "stop" => argument.clone_into(&mut turn.stop_reason),
            "error" => {
                let (code, message) = argument.split_once(':').unwrap_or((argument, "it failed"));
                turn.error = Some((code.parse().unwrap_or(-32603), message.to_owned()));
            }
            "twice" => turn.is_twice = true,
            "late" => {
                let (count, ms) = argument.split_once(':').unwrap_or((argument, "0"));
                turn.late = Some((number(count), Duration::from_millis(number(ms) as u64)));
            }
            _ => self.obey_more(turn, name, argument)?,
        }
        Ok(())
    }

    /// Directives that tell about the process, or harm it or its peer.
    fn obey_more(&mut self, turn: &mut Turn, name: &str, argument: &str) -> Result<(), Stop> {
        if let Some(text) = self.facts(turn, name, argument)? {
            return Ok(self.stdout.say(&turn.session, &text)?);
        }
        if self.use_client(turn, name, argument)? {
            return Ok(());
        }
        match name {
            "raw" => self.stdout.raw(format!("{argument}\n").as_bytes())?,
            "garbage" => {
                for n in 0..number(argument) {
                    self.stdout.raw(format!("garbage {n}\n").as_bytes())?;
                }
            }
            "flood" => flood(number(argument), |piece| self.stdout.raw(piece))?,
            "stderr" => {
                use std::io::Write as _;
                flood(number(argument), |piece| std::io::stderr().write_all(piece))?;
            }
            "update" => {
                let update = serde_json::from_str(argument).unwrap_or(Value::Null);
                self.stdout.update(&turn.session, &update)?;
            }
            "foreign" => self.stdout.say("another-session", "foreign")?,
            "answer" => self.stdout.raw(
                format!(
                    "{{\"jsonrpc\":\"2.0\",\"id\":{argument},\"result\":{{\"stopReason\":\"end_turn\"}}}}\n"
                )
                .as_bytes(),
            )?,
            "escape" => children::escape(argument, self.flags.pid_log.as_deref())?,
            "deaf" => self.stdin.deaf.store(true, std::sync::atomic::Ordering::SeqCst),
            "close-stdout" => children::close_stdout()?,
            "stop-self" => children::stop_self(),
            "exit" => return Err(Stop::Exit(u8::try_from(number(argument)).unwrap_or(1))),
            "crash" => std::process::abort(),
            _ => self.stdout.say(&turn.session, &format!("unknown directive {name}"))?,
        }
        Ok(())
    }

    /// What a directive wants to know; `None` if it is about something else.
    fn facts(&self, turn: &Turn, name: &str, argument: &str) -> std::io::Result<Option<String>> {
        let known = self.sessions.get(&turn.session).cloned().unwrap_or_default();
        Ok(Some(match name {
            "count" => format!("prompt {}", known.prompts),
            "session" => turn.session.clone(),
            "config" => json!({"mode": known.mode, "model": known.model, "cwd": known.cwd,
                "options": known.options.iter().map(|option|
                    (option["id"].as_str().unwrap_or_default().to_owned(),
                        option["currentValue"].clone()))
                    .collect::<serde_json::Map<_, _>>()})
            .to_string(),
            "env" if argument.is_empty() => {
                let mut all: Vec<_> = std::env::vars_os()
                    .map(|(name, value)| format!("{}={}", name.display(), value.display()))
                    .collect();
                all.sort();
                all.join("\n")
            }
            "env" => std::env::var(argument).unwrap_or_else(|_| "(not set)".into()),
            "fds" => children::descriptors()?,
            "servers" => known.servers.to_string(),
            "run" => children::run(argument)?,
            "attack" => crate::attack::attack(argument)?,
            "mcp" => caller::call(&known.servers, argument)?,
            "cwd" => std::env::current_dir()?.display().to_string(),
            "pid" => std::process::id().to_string(),
            "meta" => turn.meta.to_string(),
            _ => return Ok(None),
        }))
    }

    /// `BYTES` bytes that a reader can check: each line of 64 bytes begins with its number.
    fn big(&mut self, turn: &mut Turn, argument: &str) -> Result<(), Stop> {
        let (bytes, chunk) = argument.split_once(':').unwrap_or((argument, ""));
        let chunk_bytes = if chunk.is_empty() { CHUNK_BYTES } else { number(chunk).max(1) };
        let (mut left, mut line) = (number(bytes), 0_usize);
        let mut text = String::new();
        while left > 0 {
            while text.len() < chunk_bytes.min(left) {
                text.push_str(&format!("{line:016} {:.<46}\n", ""));
                line += 1;
            }
            let rest = text.split_off(chunk_bytes.min(left));
            self.stdout.say(&turn.session, &text)?;
            left -= text.len();
            text = rest;
            self.wait(turn, Some(Duration::ZERO))?;
            if turn.is_cancelled {
                break;
            }
        }
        Ok(())
    }

    fn tool(&mut self, turn: &mut Turn, name: &str, argument: &str) -> Result<(), Stop> {
        turn.tools += 1;
        let id = format!("tool-{}", turn.tools);
        let mut parts = argument.splitn(3, ':');
        let title = parts.next().unwrap_or_default();
        let kind = parts.next().unwrap_or("other");
        let locations: Vec<_> = parts.map(|path| json!({"path": path})).collect();
        let begun = json!({"sessionUpdate": "tool_call", "toolCallId": id, "title": title,
            "kind": kind, "status": "pending", "locations": locations});
        self.stdout.update(&turn.session, &begun)?;
        if name == "tool" {
            let ended = json!({"sessionUpdate": "tool_call_update", "toolCallId": id,
                "status": "completed"});
            self.stdout.update(&turn.session, &ended)?;
        }
        Ok(())
    }

    fn ask(&mut self, turn: &mut Turn, name: &str, argument: &str) -> Result<(), Stop> {
        turn.tools += 1;
        let (kind, path) = argument.split_once(':').unwrap_or((argument, ""));
        let mut call = json!({"toolCallId": format!("tool-{}", turn.tools), "title": "Asks",
            "status": "pending"});
        if !kind.is_empty() {
            call["kind"] = kind.into();
        }
        if !path.is_empty() {
            call["locations"] = json!([{"path": path}]);
        }
        let option = |kind: &String| json!({"optionId": kind, "name": kind, "kind": kind});
        let options: Vec<_> = turn.offer.iter().map(option).collect();
        let params = json!({"sessionId": turn.session, "toolCall": call, "options": options});
        if name == "ask-more" {
            self.send_request("session/request_permission", &params)?;
            return Ok(());
        }
        let answer = self.request(turn, "session/request_permission", &params)?;
        let outcome = &answer["result"]["outcome"];
        let picked = outcome["optionId"].as_str().or_else(|| outcome["outcome"].as_str());
        let text = format!("permission: {}", picked.unwrap_or("no answer"));
        Ok(self.stdout.say(&turn.session, &text)?)
    }

    fn send_request(&mut self, method: &str, params: &Value) -> std::io::Result<u64> {
        let id = self.next_request;
        self.next_request += 1;
        let request = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        self.stdout.send(&request)?;
        Ok(id)
    }

    /// Sends a request and waits for its answer, whatever else comes.
    pub(crate) fn request(
        &mut self,
        turn: &mut Turn,
        method: &str,
        params: &Value,
    ) -> Result<Value, Stop> {
        let id = self.send_request(method, params)?;
        turn.answer = None;
        loop {
            self.wait_for_input(turn, None)?;
            if let Some(answer) = turn.answer.take_if(|answer| answer["id"] == id) {
                return Ok(answer);
            }
        }
    }

    /// Looks at what comes until the time is over or a cancel is obeyed.
    fn wait(&mut self, turn: &mut Turn, time: Option<Duration>) -> Result<(), Stop> {
        #[expect(clippy::disallowed_methods, reason = "an agent has a clock of its own")]
        let begun = std::time::Instant::now();
        while !turn.is_cancelled {
            let left = time.map(|time| time.saturating_sub(begun.elapsed()));
            if !self.wait_for_input(turn, left)? {
                break;
            }
        }
        Ok(())
    }

    /// Takes one message in; `false` if none came in time.
    fn wait_for_input(&mut self, turn: &mut Turn, time: Option<Duration>) -> Result<bool, Stop> {
        let input = match time {
            Some(time) => match self.stdin.queue.recv_timeout(time) {
                Ok(input) => input,
                Err(RecvTimeoutError::Timeout) => return Ok(false),
                Err(RecvTimeoutError::Disconnected) => Input::End,
            },
            None => self.stdin.queue.recv().unwrap_or(Input::End),
        };
        match input {
            Input::Message(message) if message["method"] == "session/cancel" => {
                let silent = self.flags.stages.get("cancel").is_some_and(|stage| stage.silent);
                match turn.on_cancel {
                    OnCancel::Exit => return Err(Stop::Exit(1)),
                    OnCancel::Ignore => {}
                    _ => turn.is_cancelled = !silent,
                }
            }
            Input::Message(message) if message["method"].is_null() => turn.answer = Some(message),
            Input::Message(message) => self.later.push_back(message),
            Input::Garbage => {}
            Input::End if self.flags.ignore_eof => loop {
                std::thread::park();
            },
            Input::End => return Err(Stop::Exit(0)),
        }
        Ok(true)
    }

    fn end(&mut self, id: &Value, turn: &Turn) -> Result<(), Stop> {
        let stop_reason = match turn.on_cancel {
            OnCancel::Cancelled if turn.is_cancelled => "cancelled",
            OnCancel::EndTurn if turn.is_cancelled => "end_turn",
            _ => &turn.stop_reason,
        };
        let cancel_error = (-32603, "Internal error: cancelled".to_owned());
        let error = match turn.on_cancel {
            OnCancel::Error if turn.is_cancelled => Some(&cancel_error),
            _ => turn.error.as_ref(),
        };
        for _ in 0..if turn.is_twice { 2 } else { 1 } {
            match error {
                Some((code, message)) => self.stdout.error(id, *code, message)?,
                None => self.stdout.result(id, &json!({"stopReason": stop_reason}))?,
            }
        }
        if let Some((count, pause)) = turn.late {
            for n in 0..count {
                std::thread::sleep(pause);
                self.stdout.say(&turn.session, &format!("late {n}"))?;
            }
        }
        Ok(())
    }
}

fn number(text: &str) -> usize {
    text.trim().parse().unwrap_or(0)
}

fn flood(
    mut bytes: usize,
    mut write: impl FnMut(&[u8]) -> std::io::Result<()>,
) -> std::io::Result<()> {
    while bytes > 0 {
        let piece = &PIECE[..bytes.min(PIECE.len())];
        write(piece)?;
        bytes -= piece.len();
    }
    Ok(())
}
