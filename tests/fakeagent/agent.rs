//! The protocol: what is answered to which method. Turns are in `turn`.

use std::collections::{HashMap, VecDeque};

use serde_json::{Value, json};

use crate::flags::Flags;
use crate::memory;
use crate::wire::{Input, Stdin, Stdout};

/// Why the agent does not go on.
pub(crate) enum Stop {
    Exit(u8),
    Io(std::io::Error),
}

impl From<std::io::Error> for Stop {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

#[derive(Clone, Default)]
pub(crate) struct Session {
    pub(crate) system: Value,
    pub(crate) prompts: usize,
    pub(crate) cwd: String,
    pub(crate) mode: String,
    pub(crate) model: String,
    pub(crate) options: Vec<Value>,
    pub(crate) servers: Value,
}

pub(crate) struct Agent {
    pub(crate) flags: Flags,
    pub(crate) stdin: Stdin,
    pub(crate) stdout: Stdout,
    pub(crate) sessions: HashMap<String, Session>,
    /// What came in the middle of a turn and is not its business.
    pub(crate) later: VecDeque<Value>,
    pub(crate) next_request: u64,
    is_authenticated: bool,
}

/// A stage is over, or the answer has been dealt with.
enum Passed {
    Answer,
    Done,
}

impl Agent {
    pub(crate) fn new(flags: Flags) -> Self {
        Self {
            flags,
            stdin: Stdin::open(),
            stdout: Stdout::open(),
            sessions: HashMap::new(),
            later: VecDeque::new(),
            next_request: 1,
            is_authenticated: false,
        }
    }

    /// Serves until standard input ends or the script says so; the exit code.
    pub(crate) fn run(mut self) -> std::io::Result<u8> {
        match self.serve() {
            Ok(()) => Ok(0),
            Err(Stop::Exit(code)) => Ok(code),
            Err(Stop::Io(error)) => Err(error),
        }
    }

    fn serve(&mut self) -> Result<(), Stop> {
        if let Some(text) = &self.flags.stderr {
            use std::io::Write as _;
            let _ = writeln!(std::io::stderr(), "{text}");
        }
        if let Some(style) = &self.flags.escape {
            crate::children::escape(style, self.flags.pid_log.as_deref())?;
        }
        if let Some(text) = self.flags.banner.clone() {
            self.stdout.raw(format!("{text}\n").as_bytes())?;
        }
        self.pass("start", &Value::Null)?;
        loop {
            let message = match self.later.pop_front() {
                Some(message) => message,
                None => match self.stdin.queue.recv() {
                    Ok(Input::Message(message)) => message,
                    Ok(Input::Garbage) => {
                        self.stdout.error(&Value::Null, -32700, "Parse error")?;
                        continue;
                    }
                    Ok(Input::End) | Err(_) if self.flags.ignore_eof => loop {
                        std::thread::park();
                    },
                    Ok(Input::End) | Err(_) => return Ok(()),
                },
            };
            self.take(&message)?;
        }
    }

    fn take(&mut self, message: &Value) -> Result<(), Stop> {
        let (id, params) = (message["id"].clone(), &message["params"]);
        let Some(method) = message["method"].as_str() else { return Ok(()) };
        match method {
            "initialize" => self.answer("initialize", &id, |agent| Ok(agent.initialize()))?,
            "authenticate" => {
                let method = params["methodId"].clone();
                self.answer("authenticate", &id, |agent| {
                    agent.is_authenticated |= agent.flags.auth.as_deref() == method.as_str();
                    Ok(json!({}))
                })?;
            }
            "session/new" => self.answer("new", &id, |agent| agent.begin(params))?,
            "session/load" => self.answer("load", &id, |agent| agent.go_on(params, true))?,
            "session/resume" => self.answer("resume", &id, |agent| agent.go_on(params, false))?,
            "session/close" => self.answer("close", &id, |agent| {
                agent.session(params)?;
                agent.sessions.remove(params["sessionId"].as_str().unwrap_or_default());
                Ok(json!({}))
            })?,
            "session/set_mode" => self.answer("set_mode", &id, |agent| agent.set_mode(params))?,
            "session/set_model" => {
                self.answer("set_model", &id, |agent| agent.set_model(params))?;
            }
            "session/set_config_option" => {
                self.answer("set_option", &id, |agent| agent.set_option(params))?;
            }
            "session/prompt" => self.prompt(&id, params)?,
            // There is no turn, or it would have been seen there.
            "session/cancel" => {}
            _ if id.is_null() => {}
            _ => self.stdout.error(&id, -32601, "Method not found")?,
        }
        if method == "initialize" && self.flags.deaf {
            self.stdin.deaf.store(true, std::sync::atomic::Ordering::SeqCst);
        }
        Ok(())
    }

    fn answer(
        &mut self,
        stage: &str,
        id: &Value,
        act: impl FnOnce(&mut Self) -> Result<Value, Refusal>,
    ) -> Result<(), Stop> {
        if let Passed::Done = self.pass(stage, id)? {
            return Ok(());
        }
        match act(self) {
            Ok(result) => self.stdout.result(id, &result)?,
            Err(Refusal { code, message }) => self.stdout.error(id, code, &message)?,
        }
        Ok(())
    }

    /// Does what the flags want at a stage.
    fn pass(&mut self, stage: &str, id: &Value) -> Result<Passed, Stop> {
        let Some(stage) = self.flags.stages.get(stage) else { return Ok(Passed::Answer) };
        std::thread::sleep(stage.delay);
        if let Some(code) = stage.exit {
            return Err(Stop::Exit(code));
        }
        if stage.silent {
            return Ok(Passed::Done);
        }
        if let Some((code, message)) = &stage.fail {
            self.stdout.error(id, *code, message)?;
            return Ok(Passed::Done);
        }
        Ok(Passed::Answer)
    }

    fn initialize(&self) -> Value {
        let all = self.flags.capabilities.iter().any(|name| name == "all");
        let has = |name: &str| all || self.flags.capabilities.iter().any(|known| known == name);
        let declared = |name: &str| if has(name) { json!({}) } else { Value::Null };
        let method = |id: &String| json!({"id": id, "name": id});
        json!({
            "protocolVersion": self.flags.protocol,
            "agentInfo": {"name": self.flags.name, "version": env!("CARGO_PKG_VERSION")},
            "agentCapabilities": {
                "loadSession": has("load"),
                "mcpCapabilities": {"http": has("http"), "sse": false},
                "promptCapabilities": {"image": has("image"), "audio": has("audio"),
                    "embeddedContext": has("embedded")},
                "sessionCapabilities": {"resume": declared("resume"), "close": declared("close"),
                    "additionalDirectories": declared("dirs"),
                    "systemPrompt": if self.flags.capabilities.iter().any(|name| name == "system")
                        { json!({}) } else { Value::Null }},
            },
            "authMethods": self.flags.auth.iter().map(method).collect::<Vec<_>>(),
        })
    }

    fn begin(&mut self, params: &Value) -> Result<Value, Refusal> {
        if self.flags.auth.is_some() && !self.is_authenticated {
            return Err(Refusal::new(-32000, "Authentication required"));
        }
        if !params["mcpServers"].is_array() {
            return Err(Refusal::new(-32602, "mcpServers is missing"));
        }
        let id = std::fs::read_to_string("/proc/sys/kernel/random/uuid")
            .map_err(|_| Refusal::new(-32603, "no random numbers"))?;
        let id = id.trim().to_owned();
        for n in 0..self.flags.early_updates {
            let update = json!({"sessionUpdate": "available_commands_update",
                "availableCommands": [{"name": format!("early-{n}"), "description": ""}]});
            self.stdout.update(&id, &update).map_err(|_| Refusal::new(-32603, "output"))?;
        }
        if let Some(path) = &self.flags.state {
            memory::remember_session(path, &id).map_err(|_| Refusal::new(-32603, "--state"))?;
        }
        let session = self.fresh(params);
        let mut answer = self.offers(&session);
        answer["sessionId"] = id.clone().into();
        self.sessions.insert(id, session);
        Ok(answer)
    }

    fn fresh(&self, params: &Value) -> Session {
        Session {
            prompts: 0,
            cwd: params["cwd"].as_str().unwrap_or_default().to_owned(),
            system: params["systemPrompt"].clone(),
            mode: self.flags.modes.first().cloned().unwrap_or_default(),
            model: self.flags.models.first().cloned().unwrap_or_default(),
            options: self.flags.options.clone(),
            servers: params["mcpServers"].clone(),
        }
    }

    fn go_on(&mut self, params: &Value, replay: bool) -> Result<Value, Refusal> {
        let id = params["sessionId"].as_str().unwrap_or_default().to_owned();
        let known = self.flags.state.as_deref().and_then(|path| memory::prompts(path, &id));
        let Some(prompts) = known else {
            return Err(Refusal::new(-32002, &format!("Resource not found: {id}")));
        };
        if replay && self.flags.replay {
            for prompt in &prompts {
                let told = self.stdout.chunk(&id, "user_message_chunk", prompt);
                told.and_then(|()| self.stdout.say(&id, &format!("(earlier) {prompt}")))
                    .map_err(|_| Refusal::new(-32603, "output"))?;
            }
        }
        let session = Session { prompts: prompts.len(), ..self.fresh(params) };
        let answer = self.offers(&session);
        self.sessions.insert(id, session);
        Ok(answer)
    }

    /// Modes, models and options of a session, as far as it has any.
    fn offers(&self, session: &Session) -> Value {
        let mut answer = json!({});
        let named = |key: &str, ids: &[String]| -> Vec<Value> {
            ids.iter().map(|id| json!({key: id, "name": id})).collect()
        };
        if !self.flags.modes.is_empty() {
            answer["modes"] = json!({"currentModeId": session.mode,
                "availableModes": named("id", &self.flags.modes)});
        }
        if !self.flags.models.is_empty() {
            answer["models"] = json!({"currentModelId": session.model,
                "availableModels": named("modelId", &self.flags.models)});
        }
        if !session.options.is_empty() {
            answer["configOptions"] = session.options.clone().into();
        }
        answer
    }

    fn session(&mut self, params: &Value) -> Result<&mut Session, Refusal> {
        let id = params["sessionId"].as_str().unwrap_or_default();
        self.sessions.get_mut(id).ok_or_else(|| Refusal::new(-32002, "Session not found"))
    }

    fn set_mode(&mut self, params: &Value) -> Result<Value, Refusal> {
        let mode = params["modeId"].as_str().unwrap_or_default().to_owned();
        let known = self.flags.modes.contains(&mode);
        let session = self.session(params)?;
        if !known {
            return Err(Refusal::new(-32602, "no such mode"));
        }
        session.mode = mode;
        Ok(json!({}))
    }

    fn set_model(&mut self, params: &Value) -> Result<Value, Refusal> {
        if self.flags.models.is_empty() {
            return Err(Refusal::new(-32601, "Method not found"));
        }
        let model = params["modelId"].as_str().unwrap_or_default().to_owned();
        let known = self.flags.models.contains(&model);
        let session = self.session(params)?;
        if !known {
            return Err(Refusal::new(-32602, "no such model"));
        }
        session.model = model;
        Ok(json!({}))
    }

    fn set_option(&mut self, params: &Value) -> Result<Value, Refusal> {
        let (id, value) = (params["configId"].clone(), params["value"].clone());
        let session = self.session(params)?;
        let option = session.options.iter_mut().find(|option| option["id"] == id);
        let option = option.ok_or_else(|| Refusal::new(-32602, "no such option"))?;
        let legal = match option["options"].as_array() {
            Some(choices) => choices.iter().any(|choice| choice["value"] == value),
            None => value.is_boolean(),
        };
        if !legal {
            return Err(Refusal::new(-32602, "no such value"));
        }
        option["currentValue"] = value.clone();
        if id == "model" {
            session.options.retain(|option| option["id"] != "effort");
            if value == "deep" {
                session.options.push(choice("effort", "thought_level", &["low", "high"]));
            }
        }
        let options = session.options.clone();
        if self.flags.tells_first {
            let session = params["sessionId"].as_str().unwrap_or_default();
            let update =
                json!({"sessionUpdate": "config_option_update", "configOptions": &options});
            self.stdout.update(session, &update).map_err(|_| Refusal::new(-32603, "output"))?;
        }
        Ok(json!({"configOptions": options}))
    }
}

/// An error answer.
pub(crate) struct Refusal {
    code: i64,
    message: String,
}

impl Refusal {
    fn new(code: i64, message: &str) -> Self {
        Self { code, message: message.to_owned() }
    }
}

fn choice(id: &str, category: &str, values: &[&str]) -> Value {
    let options: Vec<_> =
        values.iter().map(|value| json!({"value": value, "name": value})).collect();
    json!({"id": id, "name": id, "category": category, "type": "select",
        "currentValue": values[0], "options": options})
}

/// The options of `--options`.
pub(crate) fn default_options() -> Vec<Value> {
    vec![
        choice("mode", "mode", &["ask", "read-only", "full-access"]),
        choice("model", "model", &["small", "deep"]),
        json!({"id": "fast", "name": "Fast", "type": "boolean", "currentValue": false}),
    ]
}
