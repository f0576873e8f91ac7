//! Files and terminals that an agent asks us for: reading of its requests, the policy, and the
//! answers. Carrying them out is the owner's: what is allowed comes as [`super::Event::Service`],
//! and what became of it comes back through `Handle::serve`, in any order.
//!
//! Invariants: every request gets one answer; no more than a bounded number of them, and of bytes
//! in them, is unanswered; what changes anything is begun only in a turn that is not cancelled.
//! Absent: whether a path is inside of the session's directories is known to who opens it alone
//! ([`crate::acp::roots`] is asked only before a person is).

use std::collections::HashMap;

use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use super::codec::FRAME_BYTES_MAX;
use super::event::{Event, NAME_BYTES_MAX, ToolUpdate, cut};
use super::machine::Machine;
use super::permission::{Choice, Need, Verdict, judge_service};
use super::requests::{INTERNAL_ERROR, INVALID_PARAMS, REQUEST_CANCELLED, Subject, Unanswered};
use crate::api::agent::Permissions;

/// The protocol's code for something that is not there.
const RESOURCE_NOT_FOUND: i32 = -32002;
/// How many bytes requests that are not answered may hold together: more than one frame has.
const HELD_BYTES_MAX: usize = 2 * FRAME_BYTES_MAX;
/// How much of a terminal's output is kept if the agent names no limit, and at most.
const OUTPUT_BYTES_MAX: usize = 64 * 1024;
/// How much of an error's words an agent is told.
const REASON_BYTES_MAX: usize = 1024;

/// What an agent asks for.
pub enum Call {
    /// `fs/read_text_file`.
    Read {
        /// As the agent wrote it.
        path: String,
        /// The first line, from 1.
        line: Option<u32>,
        /// How many lines.
        limit: Option<u32>,
    },
    /// `fs/write_text_file`.
    Write {
        /// As the agent wrote it.
        path: String,
        /// The whole text.
        content: String,
    },
    /// `terminal/create`.
    Create(NewTerminal),
    /// `terminal/output`, of the terminal with this id.
    Output(String),
    /// `terminal/wait_for_exit`.
    Wait(String),
    /// `terminal/kill`.
    Kill(String),
    /// `terminal/release`.
    Release(String),
}

/// A program to run.
pub struct NewTerminal {
    /// The program, without a shell.
    pub command: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Variables beside those that the owner gives.
    pub env: Vec<(String, String)>,
    /// Where; the session's working directory if absent.
    pub cwd: Option<String>,
    /// How much of its output is kept.
    pub output_bytes_max: usize,
}

// Texts, arguments and variables may hold secrets.
impl std::fmt::Debug for Call {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.method())
    }
}

/// What became of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Of a file that was read.
    Text(String),
    /// The id of a terminal that was started.
    Created(String),
    /// What a terminal wrote.
    Output {
        /// The end of it.
        text: String,
        /// Whether there was more.
        is_cut: bool,
        /// How it ended, if it has.
        exit: Option<Exit>,
    },
    /// How a terminal ended.
    Exited(Exit),
    /// It was done.
    Done,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Exit {
    /// By itself.
    Code(u32),
    /// By a signal of this name.
    Signal(String),
}

/// Why a call was not carried out, in words for the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// It may not be, or makes no sense.
    Refused(String),
    /// There is no such file.
    NotFound(String),
    /// It was tried and failed.
    Failed(String),
}

/// A call that is allowed, to be carried out.
#[derive(Debug)]
pub struct Job {
    /// Names it towards `Handle::serve`.
    pub request: u64,
    /// What to do.
    pub call: Call,
}

/// Calls that are being carried out.
#[derive(Debug, Default)]
pub(super) struct Serving(HashMap<u64, (Box<RawValue>, usize)>);

impl Serving {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn bytes(&self) -> usize {
        self.0.values().map(|(_, bytes)| bytes).sum()
    }
}

impl Call {
    const fn method(&self) -> &'static str {
        match self {
            Self::Read { .. } => "fs/read_text_file",
            Self::Write { .. } => "fs/write_text_file",
            Self::Create(_) => "terminal/create",
            Self::Output(_) => "terminal/output",
            Self::Wait(_) => "terminal/wait_for_exit",
            Self::Kill(_) => "terminal/kill",
            Self::Release(_) => "terminal/release",
        }
    }

    const fn need(&self) -> Need {
        match self {
            Self::Read { .. } => Need::Read,
            Self::Write { .. } => Need::Write,
            Self::Create(_) => Need::Run,
            Self::Output(_) | Self::Wait(_) | Self::Kill(_) | Self::Release(_) => Need::Use,
        }
    }

    /// What it holds while it waits.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Write { path, content } => path.len() + content.len(),
            Self::Create(new) => {
                let env = new.env.iter().map(|(name, value)| name.len() + value.len());
                let args = new.args.iter().map(String::len);
                new.command.len() + args.chain(env).sum::<usize>()
            }
            Self::Read { path: text, .. }
            | Self::Output(text)
            | Self::Wait(text)
            | Self::Kill(text)
            | Self::Release(text) => text.len(),
        }
    }

    /// The directory or file that a person is asked about.
    fn target(&self) -> Option<&str> {
        match self {
            Self::Read { path, .. } | Self::Write { path, .. } => Some(path),
            Self::Create(new) => new.cwd.as_deref(),
            Self::Output(_) | Self::Wait(_) | Self::Kill(_) | Self::Release(_) => None,
        }
    }

    /// How it is shown to a person who is asked.
    pub(super) fn tool(&self) -> ToolUpdate {
        let (title, kind) = match self {
            Self::Create(new) => {
                let words = std::iter::once(&new.command).chain(&new.args).map(String::as_str);
                (words.collect::<Vec<_>>().join(" "), "execute")
            }
            Self::Write { path, .. } => (format!("Write {path}"), "edit"),
            Self::Read { path, .. } => (format!("Read {path}"), "read"),
            Self::Output(id) | Self::Wait(id) | Self::Kill(id) | Self::Release(id) => {
                (id.clone(), "execute")
            }
        };
        ToolUpdate {
            id: self.method().to_owned(),
            title: Some(cut(&title, 8 * NAME_BYTES_MAX).to_owned()),
            status: None,
            kind: Some(kind.to_owned()),
        }
    }
}

type Refused = (i32, String);

impl Machine {
    /// Takes a request for a file or a terminal in; `None` if it is about something else.
    pub(super) fn on_service(
        &mut self,
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
    ) -> Option<Result<(), Refused>> {
        let call = match read(method, params)? {
            Ok((session, call)) if self.session.as_deref() == Some(&*session) => call,
            Ok(_) => return Some(Err(invalid("sessionId is not this session's"))),
            Err(refusal) => return Some(Err(refusal)),
        };
        Some(self.admit(id, call))
    }

    fn admit(&mut self, id: &RawValue, call: Call) -> Result<(), Refused> {
        let changes = matches!(call.need(), Need::Write | Need::Run);
        if changes && self.is_cancelled {
            return Err((REQUEST_CANCELLED, "the turn is being cancelled".to_owned()));
        }
        let policy = self.options.permissions;
        let verdict = judge_service(policy, call.need());
        let is_inside = || call.target().is_none_or(|path| self.options.roots.contain(path));
        match verdict {
            Verdict::Allow if call.need() == Need::Run && self.turn().is_none() => {
                return Err(invalid("no turn runs that the terminal could belong to"));
            }
            Verdict::Allow => {}
            Verdict::Wait if self.turn().is_none() => {
                return Err(invalid("no turn runs in which somebody could be asked"));
            }
            Verdict::Wait if !is_inside() => {
                return Err(invalid("the path is outside of the session's directories"));
            }
            Verdict::Wait => {}
            Verdict::Reject
            | Verdict::RejectOutside
            | Verdict::RejectOutOfTurn
            | Verdict::Answered
            | Verdict::Cancelled => {
                let method = call.method();
                let message = format!("{method} is refused: permissions are {}", name(policy));
                return Err((INVALID_PARAMS, message));
            }
        }
        let waiting: usize = self.open_requests.iter().map(Unanswered::bytes).sum();
        if self.serving.bytes() + waiting + call.bytes() > HELD_BYTES_MAX {
            let message = format!("requests with more than {HELD_BYTES_MAX} bytes are unanswered");
            return Err((INTERNAL_ERROR, message));
        }
        self.has_room()?;
        let request = self.take_number();
        if verdict == Verdict::Allow {
            self.begin_service(request, id.to_owned(), call);
        } else {
            let mut asked = self.asked(request, call.tool(), Verdict::Wait, None);
            asked.targets = call.target().map(str::to_owned).into_iter().collect();
            asked.offered = offered();
            self.events.push_back(Event::PermissionAsked(asked));
            let subject = Subject::Service { call, turn: self.turn() };
            self.open_requests.push(Unanswered { request, id: id.to_owned(), subject });
        }
        Ok(())
    }

    pub(super) fn begin_service(&mut self, request: u64, id: Box<RawValue>, call: Call) {
        self.serving.0.insert(request, (id, call.bytes()));
        self.events.push_back(Event::Service(Job { request, call }));
    }

    /// Answers a call that was carried out, or was not.
    pub(super) fn served(&mut self, request: u64, outcome: Result<Reply, Refusal>) {
        let Some((id, _)) = self.serving.0.remove(&request) else { return };
        match outcome {
            Ok(reply) => self.reply(&id, Ok(&result(reply))),
            Err(refusal) => {
                let (code, reason) = match refusal {
                    Refusal::Refused(reason) => (INVALID_PARAMS, reason),
                    Refusal::NotFound(reason) => (RESOURCE_NOT_FOUND, reason),
                    Refusal::Failed(reason) => (INTERNAL_ERROR, reason),
                };
                self.reply(&id, Err((code, cut(&reason, REASON_BYTES_MAX))));
            }
        }
    }
}

/// What a person picks from: the answers of a request for permission.
fn offered() -> Vec<Choice> {
    let choice = |id: &str, name: &str| Choice {
        id: id.to_owned(),
        kind: id.to_owned(),
        name: name.to_owned(),
    };
    vec![choice("allow_once", "Allow"), choice("reject_once", "Reject")]
}

const fn name(policy: Permissions) -> &'static str {
    match policy {
        Permissions::DenyAll => "deny-all",
        Permissions::ApproveReads => "approve-reads",
        Permissions::Ask => "ask",
        Permissions::ApproveAll => "approve-all",
    }
}

fn invalid(what: &str) -> Refused {
    (INVALID_PARAMS, what.to_owned())
}

fn result(reply: Reply) -> Value {
    match reply {
        Reply::Text(content) => json!({"content": content}),
        Reply::Created(id) => json!({"terminalId": id}),
        Reply::Output { text, is_cut, exit } => {
            let mut result = json!({"output": text, "truncated": is_cut});
            if let Some(exit) = exit {
                result["exitStatus"] = status(exit);
            }
            result
        }
        Reply::Exited(exit) => status(exit),
        Reply::Done => json!({}),
    }
}

fn status(exit: Exit) -> Value {
    match exit {
        Exit::Code(code) => json!({"exitCode": code, "signal": null}),
        Exit::Signal(name) => json!({"exitCode": null, "signal": name}),
    }
}

/// All that the seven methods have for parameters.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Params {
    session_id: String,
    path: Option<String>,
    content: Option<String>,
    line: Option<u32>,
    limit: Option<u32>,
    terminal_id: Option<String>,
    command: Option<String>,
    args: Option<Vec<String>>,
    env: Option<Vec<Variable>>,
    cwd: Option<String>,
    output_byte_limit: Option<u64>,
}

#[derive(Deserialize)]
struct Variable {
    name: String,
    value: String,
}

/// Reads a request: whose it is and what it asks for. `None`: the method is another one.
fn read(method: &str, params: Option<&RawValue>) -> Option<Result<(String, Call), Refused>> {
    let build: fn(Params) -> Option<Call> = match method {
        "fs/read_text_file" => {
            |it| Some(Call::Read { path: it.path?, line: it.line, limit: it.limit })
        }
        "fs/write_text_file" => |it| Some(Call::Write { path: it.path?, content: it.content? }),
        "terminal/create" => |it| {
            let limit = it.output_byte_limit.and_then(|limit| usize::try_from(limit).ok());
            let env = it.env.unwrap_or_default().into_iter();
            Some(Call::Create(NewTerminal {
                command: it.command.filter(|command| !command.is_empty())?,
                args: it.args.unwrap_or_default(),
                env: env.map(|variable| (variable.name, variable.value)).collect(),
                cwd: it.cwd,
                output_bytes_max: limit.unwrap_or(OUTPUT_BYTES_MAX).min(OUTPUT_BYTES_MAX),
            }))
        },
        "terminal/output" => |it| it.terminal_id.map(Call::Output),
        "terminal/wait_for_exit" => |it| it.terminal_id.map(Call::Wait),
        "terminal/kill" => |it| it.terminal_id.map(Call::Kill),
        "terminal/release" => |it| it.terminal_id.map(Call::Release),
        _ => return None,
    };
    let params = params.and_then(|params| serde_json::from_str::<Params>(params.get()).ok());
    let call = params.and_then(|mut params| {
        let session = std::mem::take(&mut params.session_id);
        Some((session, build(params)?))
    });
    Some(call.ok_or_else(|| invalid("parameters are missing or cannot be read")))
}
