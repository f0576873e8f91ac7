//! `spawnlet demo-agent`: an ACP agent inside the binary, to try things with. It uses no network
//! and no file, asks for nothing, and does what words in the prompt tell it.
//!
//! It speaks ACP version 1 on standard input and output: `initialize`, `session/new`,
//! `session/set_config_option`, `session/prompt`, `session/cancel`. It declares neither
//! `session/load` nor `session/resume`: what it remembers of a session is in its memory, and that
//! ends with the process. It exits at the end of its standard input.
//!
//! One loop reads and writes; each turn is a task that tells the loop what to write, so that a
//! cancel, a setting or another session's prompt is taken while a turn runs.

use std::collections::HashMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::AsyncRead;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::codec::{FramedRead, LinesCodec};
use tokio_util::sync::CancellationToken;

use super::get::eprint_line;

/// The version of the protocol that it speaks.
const PROTOCOL_VERSION: u64 = 1;
/// The longest line that it reads: the daemon gives prompts of up to 16 MiB, if it is told to, and
/// escaping makes text longer.
const LINE_BYTES_MAX: usize = 32 * 1024 * 1024;
/// How far turns run ahead of the writing.
const TOLD_MAX: usize = 16;
/// Sessions that it keeps; each is a few words and its last prompt.
const SESSIONS_MAX: usize = 256;
/// In how many pieces an answer is given at most.
const PIECES_MAX: usize = 8;
/// The longest `[[slow:SECONDS]]`.
const SLOW_SECONDS_MAX: f64 = 86_400.0;

/// The options that can be set: id and category, a name, and the values, the default first.
const OPTIONS: [(&str, &str, [&str; 2]); 2] =
    [("model", "Model", ["small", "large"]), ("thought_level", "Thinking", ["low", "high"])];

// The error codes of JSON-RPC.
const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;
const INTERNAL_ERROR: i64 = -32603;

/// What the help says of the words.
const WORDS: &str = "\
It is started by the daemon, as the command of an Agent: `command: spawnlet demo-agent`. It repeats
each prompt. Words in the prompt have it do something else:
  [[slow:SECONDS]]  spreads the answer over so many seconds
  [[recall]]        repeats the prompt before this one
  [[hang]]          does not end until it is cancelled
  [[fail]]          answers with an error";

/// Be an ACP agent that repeats its prompts, to try things with.
#[derive(Debug, Args)]
#[command(after_help = WORDS)]
pub(super) struct DemoAgent {}

impl DemoAgent {
    pub(super) fn run(self) -> ExitCode {
        let outcome = tokio::runtime::Builder::new_current_thread().enable_all().build().and_then(
            |runtime| {
                let outcome = runtime.block_on(serve(tokio::io::stdin(), &mut io::stdout()));
                // A read of standard input may be under way; nobody waits for it.
                runtime.shutdown_background();
                outcome
            },
        );
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprint_line(&format!("demo-agent: {error}"));
                ExitCode::FAILURE
            }
        }
    }
}

/// Answers until the input ends. Turns that run then end without an answer.
async fn serve(input: impl AsyncRead + Unpin, out: &mut (dyn Write + Send)) -> io::Result<()> {
    let mut lines = FramedRead::new(input, LinesCodec::new_with_max_length(LINE_BYTES_MAX));
    let (teller, mut told) = mpsc::channel(TOLD_MAX);
    let mut agent = Agent { sessions: HashMap::new(), turns: JoinSet::new(), teller, out };
    loop {
        // Both are cancel safe: a line or a message is taken only when its branch wins.
        tokio::select! {
            biased;
            Some(told) = told.recv() => agent.tell(told)?,
            line = lines.next() => match line {
                None => return Ok(()),
                Some(line) => agent.take(&line.map_err(io::Error::other)?)?,
            }
        }
    }
}

struct Agent<'a> {
    sessions: HashMap<String, Session>,
    turns: JoinSet<()>,
    teller: mpsc::Sender<Told>,
    out: &'a mut (dyn Write + Send),
}

/// A conversation.
struct Session {
    /// The values of [`OPTIONS`], in their order.
    values: [&'static str; OPTIONS.len()],
    last_prompt: Option<String>,
    /// Cancels the turn that runs.
    turn: Option<CancellationToken>,
}

/// What a turn has the loop write.
struct Told {
    session: String,
    message: Value,
    /// Whether the turn is over with it.
    is_end: bool,
}

type Answer = Result<Value, (i64, String)>;

impl Agent<'_> {
    fn take(&mut self, line: &str) -> io::Result<()> {
        let Ok(message) = serde_json::from_str::<Value>(line) else {
            return self.answer(&Value::Null, Err((PARSE_ERROR, "this line is no JSON".into())));
        };
        let (id, params) = (&message["id"], &message["params"]);
        let answer = match message["method"].as_str() {
            Some("initialize") => Ok(json!({
                "protocolVersion": PROTOCOL_VERSION,
                "agentInfo": {"name": "demo-agent", "title": "Demo agent",
                    "version": env!("CARGO_PKG_VERSION")},
                "agentCapabilities": {"loadSession": false},
                "authMethods": [],
            })),
            Some("session/new") => self.open(),
            Some("session/set_config_option") => self.set(params),
            Some("session/prompt") => match self.begin(id, params) {
                // The turn answers.
                Ok(()) => return Ok(()),
                Err(refused) => Err(refused),
            },
            Some("session/cancel") => {
                let session = params["sessionId"].as_str().and_then(|id| self.sessions.get(id));
                if let Some(turn) = session.and_then(|session| session.turn.as_ref()) {
                    turn.cancel();
                }
                return Ok(());
            }
            // A notification gets no answer, and a response is to nothing that was asked.
            _ if id.is_null() => return Ok(()),
            None => return Ok(()),
            Some(method) => Err((METHOD_NOT_FOUND, format!("there is no method {method}"))),
        };
        self.answer(id, answer)
    }

    fn open(&mut self) -> Answer {
        if self.sessions.len() >= SESSIONS_MAX {
            return Err((INVALID_REQUEST, format!("it has {SESSIONS_MAX} sessions already")));
        }
        let id = format!("demo-{}", self.sessions.len() + 1);
        let values = OPTIONS.map(|(_, _, [default, _])| default);
        let session = Session { values, last_prompt: None, turn: None };
        let opened = json!({"sessionId": id, "configOptions": options(&session)});
        self.sessions.insert(id, session);
        Ok(opened)
    }

    fn session(&mut self, params: &Value) -> Result<&mut Session, (i64, String)> {
        let id = params["sessionId"].as_str().unwrap_or_default();
        self.sessions
            .get_mut(id)
            .ok_or_else(|| (INVALID_PARAMS, format!("there is no session {id:?}")))
    }

    fn set(&mut self, params: &Value) -> Answer {
        let session = self.session(params)?;
        let (id, value) = (&params["configId"], &params["value"]);
        let place = OPTIONS.iter().position(|(option, _, _)| id == option);
        let found = place.and_then(|place| {
            let value = OPTIONS[place].2.into_iter().find(|known| value == known)?;
            Some((place, value))
        });
        let Some((place, value)) = found else {
            return Err((INVALID_PARAMS, format!("{id} cannot be set to {value}")));
        };
        session.values[place] = value;
        Ok(json!({"configOptions": options(session)}))
    }

    /// Begins a turn.
    fn begin(&mut self, id: &Value, params: &Value) -> Result<(), (i64, String)> {
        let teller = self.teller.clone();
        let session = self.session(params)?;
        if session.turn.is_some() {
            return Err((INVALID_REQUEST, "a turn of this session runs already".into()));
        }
        let blocks = params["prompt"].as_array().map_or(&[][..], Vec::as_slice);
        // What spawnlet tells of the session is marked; it is not the user's text.
        let said = blocks.iter().filter(|block| block["_meta"]["spawnlet.dev/context"].is_null());
        let text: String = said.filter_map(|block| block["text"].as_str()).collect();
        let script = Script::of(&text, session.last_prompt.as_deref());
        let cancel = CancellationToken::new();
        let turn = Turn {
            id: id.clone(),
            session: params["sessionId"].as_str().unwrap_or_default().to_owned(),
            seen: json!({"letters": text.chars().count(), "model": session.values[0],
                "thoughtLevel": session.values[1]}),
            script,
            teller,
        };
        session.last_prompt = Some(text);
        session.turn = Some(cancel.clone());
        // Those that are over are let go of, so that the set holds no more than run.
        while self.turns.try_join_next().is_some() {}
        self.turns.spawn(turn.run(cancel));
        Ok(())
    }

    fn tell(&mut self, told: Told) -> io::Result<()> {
        if told.is_end
            && let Some(session) = self.sessions.get_mut(&told.session)
        {
            session.turn = None;
        }
        self.write(&told.message)
    }

    fn answer(&mut self, id: &Value, answer: Answer) -> io::Result<()> {
        self.write(&response(id, answer))
    }

    /// Writes a message as one line, and flushes it: the client waits for it.
    fn write(&mut self, message: &Value) -> io::Result<()> {
        writeln!(self.out, "{message}")?;
        self.out.flush()
    }
}

fn response(id: &Value, answer: Answer) -> Value {
    match answer {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err((code, message)) => {
            json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
        }
    }
}

/// The options of a session as they stand.
fn options(session: &Session) -> Vec<Value> {
    let option = |((id, name, values), current): (&(&str, &str, [&str; 2]), &&str)| {
        let choices = values.map(|value| json!({"value": value, "name": value}));
        json!({"id": id, "name": name, "category": id, "type": "select",
            "currentValue": current, "options": choices})
    };
    OPTIONS.iter().zip(&session.values).map(option).collect()
}

/// What a prompt asks for.
#[derive(Debug, PartialEq)]
struct Script {
    answer: String,
    /// Over how long the answer is spread.
    spread: Duration,
    end: End,
}

/// How a turn ends by itself.
#[derive(Debug, PartialEq)]
enum End {
    Done,
    Never,
    Error,
}

impl Script {
    fn of(prompt: &str, before: Option<&str>) -> Self {
        let has = |word: &str| prompt.contains(word);
        let end = if has("[[fail]]") {
            End::Error
        } else if has("[[hang]]") {
            End::Never
        } else {
            End::Done
        };
        let answer = match (&end, has("[[recall]]"), before) {
            (End::Never, _, _) => "This turn ends when it is cancelled.".to_owned(),
            (_, true, Some(before)) => format!("Before that you said: {before}"),
            (_, true, None) => "You said nothing before that.".to_owned(),
            (_, false, _) => format!("You said: {prompt}"),
        };
        let seconds = prompt.split_once("[[slow:").and_then(|(_, rest)| rest.split_once("]]"));
        let seconds: Option<f64> = seconds.and_then(|(seconds, _)| seconds.trim().parse().ok());
        let spread = seconds.filter(|seconds| *seconds <= SLOW_SECONDS_MAX);
        let spread = spread.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        Self { answer, spread: spread.unwrap_or_default(), end }
    }
}

/// A turn that runs.
struct Turn {
    /// The request that is answered at its end.
    id: Value,
    session: String,
    /// What its tool call tells.
    seen: Value,
    script: Script,
    teller: mpsc::Sender<Told>,
}

impl Turn {
    async fn run(self, cancel: CancellationToken) {
        let outcome = tokio::select! {
            biased;
            () = cancel.cancelled() => Ok(json!({"stopReason": "cancelled"})),
            outcome = self.play() => outcome,
        };
        self.tell(response(&self.id, outcome), true).await;
    }

    async fn play(&self) -> Answer {
        self.update(json!({"sessionUpdate": "tool_call", "toolCallId": "look", "kind": "other",
            "title": "Look at the prompt", "status": "in_progress"}))
            .await;
        self.update(json!({"sessionUpdate": "tool_call_update", "toolCallId": "look",
            "status": "completed", "rawOutput": self.seen}))
            .await;
        if self.script.end == End::Error {
            return Err((INTERNAL_ERROR, "the prompt asked for a failure".into()));
        }
        let pieces = pieces(&self.script.answer);
        let pause = self.script.spread / u32::try_from(pieces.len()).unwrap_or(u32::MAX).max(1);
        for piece in pieces {
            self.update(json!({"sessionUpdate": "agent_message_chunk",
                "content": {"type": "text", "text": piece}}))
                .await;
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        if self.script.end == End::Never {
            std::future::pending::<()>().await;
        }
        Ok(json!({"stopReason": "end_turn"}))
    }

    async fn update(&self, update: Value) {
        let params = json!({"sessionId": self.session, "update": update});
        let message = json!({"jsonrpc": "2.0", "method": "session/update", "params": params});
        self.tell(message, false).await;
    }

    async fn tell(&self, message: Value, is_end: bool) {
        // The loop has ended if nobody takes it, and the process with it.
        let _ = self.teller.send(Told { session: self.session.clone(), message, is_end }).await;
    }
}

/// A text in a few pieces, cut behind spaces.
fn pieces(text: &str) -> Vec<String> {
    let words: Vec<&str> = text.split_inclusive(' ').collect();
    let each = words.len().div_ceil(PIECES_MAX).max(1);
    words.chunks(each).map(<[&str]>::concat).collect()
}

#[cfg(test)]
mod tests;
