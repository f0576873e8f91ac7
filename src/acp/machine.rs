//! One connection as a state machine: commands and lines go in, events and lines come out. No I/O
//! and no clock of its own, so that the tests play any order of things in no time.
//!
//! Invariants: events leave in the order of the wire; an answer counts only if its id is, letter by
//! letter, that of a request whose line was written whole, and only once; one prompt at a time; a
//! `session/cancel` is never sent off after its turn's answer. What an agent asks is in `requests` and `services`.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::codec::{FRAME_BYTES_MAX, Frame};
use super::connection::{Command, Open, Options, Scope};
use super::counts::{Counters, count};
use super::event::{
    Event, Failure, FailureKind, Fault, NAME_BYTES_MAX, Opened, Update, UpdateKind, cut,
};
use super::permission::ToolCalls;
use super::requests::Unanswered;
use super::services::Serving;
use super::update::Reported;
use super::wire::{self, Asked};
use crate::api::Uid;
use crate::api::session::Capabilities;
use crate::clock::Mono;
use crate::options::settings::Setting;
use crate::options::{OptionState, Setter, Snapshot};

/// Updates that come before the answer to `session/new` are held for it, so many at most.
const HELD_UPDATES_MAX: usize = 100;
/// The same by size, or a hundred long lines would be a gigabyte.
const HELD_BYTES_MAX: usize = FRAME_BYTES_MAX;
/// How many requests of ours may be unanswered. The owner sends a handful.
const PENDING_MAX: usize = 64;
/// So much noise within [`NOISE_WINDOW`], without a message between, ends the session.
const NOISE_LINES_MAX: usize = 1000;
/// See [`NOISE_LINES_MAX`].
const NOISE_WINDOW: Duration = Duration::from_secs(60);
/// How much of a noisy line is kept.
const NOISE_BYTES_MAX: usize = 4096;
/// A cancel right behind a prompt is lost on some agents: it waits for the turn's first update, or
/// so long.
const CANCEL_AFTER: Duration = Duration::from_millis(250);
/// A cancel that brings no answer for so long is written once more.
const CANCEL_AGAIN_AFTER: Duration = Duration::from_secs(2);

/// A line to write.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) bytes: Vec<u8>,
    pub(super) sent: Sent,
}

/// What was written when a line is out.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sent {
    Request(u64),
    Cancel(Option<Uid>),
    Answer { bytes: usize },
}

#[derive(Debug)]
struct Pending {
    asked: Request,
    written: bool,
}

#[derive(Debug)]
enum Request {
    Initialize,
    Authenticate,
    Open { known: Option<String> },
    Set(Setting),
    Prompt(Uid),
    Close,
}

#[derive(Debug)]
struct Prompt {
    turn: Uid,
    written: Option<Mono>,
    has_updates: bool,
    cancel: Cancel,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cancel {
    No,
    Asked,
    Written { at: Mono },
    WrittenTwice,
}

/// The state of a connection.
#[derive(Debug)]
pub(super) struct Machine {
    pub(super) options: Options,
    pub(super) events: VecDeque<Event>,
    pub(super) lines: Vec<Outgoing>,
    counters: Arc<Counters>,
    next_id: u64,
    pending: HashMap<u64, Pending>,
    capabilities: Capabilities,
    pub(super) session: Option<String>,
    is_opening: bool,
    is_replaying: bool,
    held: Vec<Reported>,
    held_bytes: usize,
    prompt: Option<Prompt>,
    had_turn: bool,
    /// From a cancel to the next prompt: requests of that turn that come later are cancelled too.
    pub(super) is_cancelled: bool,
    snapshot: Snapshot,
    pub(super) tools: ToolCalls,
    pub(super) open_requests: Vec<Unanswered>,
    pub(super) serving: Serving,
    pub(super) next_request: u64,
    noise: VecDeque<Mono>,
    pub(super) is_broken: bool,
}

impl Machine {
    pub(super) fn new(options: Options, counters: Arc<Counters>) -> Self {
        Self {
            options,
            events: VecDeque::new(),
            lines: Vec::new(),
            counters,
            next_id: 1,
            pending: HashMap::new(),
            capabilities: Capabilities::default(),
            session: None,
            is_opening: false,
            is_replaying: false,
            held: Vec::new(),
            held_bytes: 0,
            prompt: None,
            had_turn: false,
            is_cancelled: false,
            snapshot: Snapshot::default(),
            tools: ToolCalls::default(),
            open_requests: Vec::new(),
            serving: Serving::default(),
            next_request: 1,
            noise: VecDeque::new(),
            is_broken: false,
        }
    }

    /// The turn whose prompt was written and not answered.
    pub(super) fn turn(&self) -> Option<Uid> {
        let prompt = self.prompt.as_ref().filter(|prompt| prompt.written.is_some())?;
        Some(prompt.turn.clone())
    }

    /// Carries a command out.
    pub(super) fn on_command(&mut self, command: Command, now: Mono) {
        match command {
            Command::Initialize => {
                self.ask("initialize", &wire::initialize_params(), Request::Initialize);
            }
            Command::Authenticate(method) => {
                let params = json!({"methodId": method});
                self.ask("authenticate", &params, Request::Authenticate);
            }
            Command::Open(open) => self.open(open),
            Command::Set(what) => self.set(what),
            Command::Prompt { turn, blocks } => self.begin(turn, &blocks),
            Command::Cancel => self.cancel(now),
            Command::Answer { request, answer } => self.answer_open(request, answer),
            Command::Close => match self.session.clone() {
                Some(session) => {
                    self.cancel_open_requests();
                    let params = json!({"sessionId": session});
                    self.ask("session/close", &params, Request::Close);
                }
                None => self.events.push_back(Event::SessionClosed),
            },
        }
    }

    fn ask(&mut self, method: &str, params: &Value, asked: Request) -> bool {
        let bytes = wire::request(self.next_id, method, params);
        self.ask_line(bytes, asked)
    }

    /// Sends a request's line, made for `next_id`; whether there was room for one.
    fn ask_line(&mut self, bytes: Vec<u8>, asked: Request) -> bool {
        if self.pending.len() >= PENDING_MAX {
            self.not_sent(asked, "too many requests are unanswered");
            return false;
        }
        let id = self.next_id;
        self.next_id += 1;
        self.pending.insert(id, Pending { asked, written: false });
        self.lines.push(Outgoing { bytes, sent: Sent::Request(id) });
        true
    }

    fn not_sent(&mut self, asked: Request, why: &str) {
        self.fail(asked, wire::own_failure(FailureKind::NotSent, why));
    }

    fn open(&mut self, open: Open) {
        let (method, scope, known): (_, Scope, Option<String>) = match open {
            Open::New(scope) => ("session/new", scope, None),
            Open::Resume { acp_session_id, scope } => {
                ("session/resume", scope, Some(acp_session_id))
            }
            Open::Load { acp_session_id, scope } => ("session/load", scope, Some(acp_session_id)),
        };
        if self.session.is_some() || self.is_opening {
            return self.not_sent(Request::Open { known }, "a session is open already");
        }
        let declared = self.capabilities.additional_directories;
        let mut params: Map<String, Value> =
            wire::scope_params(&scope, self.options.additional_directories, declared);
        if let Some(session) = &known {
            params.insert("sessionId".into(), session.clone().into());
        }
        if self.ask(method, &Value::Object(params), Request::Open { known: known.clone() }) {
            self.is_opening = true;
            // Updates come before the answer to a load: they are this session's, and history.
            self.is_replaying = known.is_some();
            self.session = known;
        }
    }

    fn set(&mut self, what: Setting) {
        let Some(session) = self.session.clone() else {
            return self.not_sent(Request::Set(what), "no session is open");
        };
        let (method, params) = match &what {
            Setting::Mode(id) => ("session/set_mode", json!({"sessionId": session, "modeId": id})),
            Setting::Model(id) => {
                ("session/set_model", json!({"sessionId": session, "modelId": id}))
            }
            Setting::Option { id, value } => {
                let mut params = json!({"sessionId": session, "configId": id, "value": value});
                if value.is_boolean() {
                    params["type"] = "boolean".into();
                }
                ("session/set_config_option", params)
            }
        };
        self.ask(method, &params, Request::Set(what));
    }

    fn begin(&mut self, turn: Uid, blocks: &RawValue) {
        let Some(session) = self.session.clone().filter(|_| !self.is_opening) else {
            return self.not_sent(Request::Prompt(turn), "no session is open");
        };
        if self.prompt.is_some() {
            return self.not_sent(Request::Prompt(turn), "a turn runs already");
        }
        let bytes = wire::prompt(self.next_id, &session, blocks);
        if self.ask_line(bytes, Request::Prompt(turn.clone())) {
            self.is_cancelled = false;
            let cancel = Cancel::No;
            self.prompt = Some(Prompt { turn, written: None, has_updates: false, cancel });
        }
    }

    /// Answers what is open with `cancelled`, then cancels; once a turn.
    fn cancel(&mut self, now: Mono) {
        self.is_cancelled = true;
        self.cancel_open_requests();
        match &mut self.prompt {
            Some(prompt) if prompt.cancel == Cancel::No => {
                prompt.cancel = Cancel::Asked;
                if prompt.has_updates {
                    self.advance_cancel(now);
                }
            }
            Some(_) => {}
            None => self.write_cancel(),
        }
    }

    fn write_cancel(&mut self) {
        let Some(session) = self.session.as_deref() else { return };
        let bytes = wire::notification("session/cancel", &json!({"sessionId": session}));
        let turn = self.prompt.as_ref().map(|prompt| prompt.turn.clone());
        self.lines.push(Outgoing { bytes, sent: Sent::Cancel(turn) });
    }

    /// When [`Self::on_time`] has something to do.
    pub(super) fn deadline(&self) -> Option<Mono> {
        let prompt = self.prompt.as_ref()?;
        match prompt.cancel {
            Cancel::Asked => Some(prompt.written?.plus(CANCEL_AFTER)),
            Cancel::Written { at } => Some(at.plus(CANCEL_AGAIN_AFTER)),
            Cancel::No | Cancel::WrittenTwice => None,
        }
    }

    /// Does what has become due.
    pub(super) fn on_time(&mut self, now: Mono) {
        if self.deadline().is_some_and(|deadline| deadline <= now) {
            self.advance_cancel(now);
        }
    }

    fn advance_cancel(&mut self, now: Mono) {
        let Some(prompt) = &mut self.prompt else { return };
        prompt.cancel = match prompt.cancel {
            Cancel::Asked => Cancel::Written { at: now },
            Cancel::Written { .. } => Cancel::WrittenTwice,
            Cancel::No | Cancel::WrittenTwice => return,
        };
        self.write_cancel();
    }

    /// Notes that a line was written whole.
    pub(super) fn on_sent(&mut self, sent: Sent, now: Mono) {
        match sent {
            Sent::Request(id) => {
                let Some(pending) = self.pending.get_mut(&id) else { return };
                pending.written = true;
                if let (Request::Prompt(turn), Some(prompt)) = (&pending.asked, &mut self.prompt) {
                    prompt.written = Some(now);
                    self.events.push_back(Event::PromptWritten { turn: turn.clone() });
                }
            }
            Sent::Cancel(turn) => self.events.push_back(Event::CancelWritten { turn }),
            Sent::Answer { .. } => {}
        }
    }

    /// Reads a line.
    pub(super) fn on_line(&mut self, line: &[u8], now: Mono) {
        let Ok(frame) = Frame::parse(line) else {
            return self.on_noise(line, now);
        };
        self.noise.clear();
        match frame {
            Frame::Request { id, method, params } => self.on_request(id, &method, params),
            Frame::Notification { method, params } => self.on_notification(&method, params, now),
            Frame::Response { id, outcome } => self.on_response(id, outcome),
            Frame::Unaddressed => {
                count(&self.counters.unaddressed);
            }
        }
    }

    fn on_noise(&mut self, line: &[u8], now: Mono) {
        let kept = &line[..line.len().min(NOISE_BYTES_MAX)];
        self.events.push_back(Event::Noise {
            line: String::from_utf8_lossy(kept).into_owned(),
            count: count(&self.counters.noise),
        });
        while self.noise.front().is_some_and(|first| now.since(*first) > NOISE_WINDOW) {
            self.noise.pop_front();
        }
        self.noise.push_back(now);
        if self.noise.len() >= NOISE_LINES_MAX {
            self.break_off(Fault::ProtocolFailure { lines: self.noise.len() });
        }
    }

    /// Says what is wrong, once; lines are not read any more.
    pub(super) fn break_off(&mut self, fault: Fault) {
        if !std::mem::replace(&mut self.is_broken, true) {
            self.events.push_back(Event::Fault(fault));
        }
    }

    fn on_notification(&mut self, method: &str, params: Option<&RawValue>, now: Mono) {
        if method == "session/update" {
            match params.and_then(super::update::read) {
                Some(reported) => self.on_update(reported, now),
                None => {
                    count(&self.counters.dropped_updates);
                }
            }
        } else if method == "$/cancel_request" {
            self.withdraw(params);
        } else if !method.starts_with("$/") {
            let method = cut(method, NAME_BYTES_MAX).to_owned();
            self.events.push_back(Event::Traffic { method, refused: None });
        }
    }

    fn on_update(&mut self, reported: Reported, now: Mono) {
        match &self.session {
            Some(session) if *session == reported.session => self.deliver(reported, now),
            None => {
                let bytes = self.held_bytes + reported.raw.get().len();
                if self.held.len() < HELD_UPDATES_MAX && bytes <= HELD_BYTES_MAX {
                    self.held_bytes = bytes;
                    self.held.push(reported);
                } else {
                    count(&self.counters.dropped_updates);
                }
            }
            Some(_) => {
                count(&self.counters.dropped_updates);
            }
        }
    }

    fn deliver(&mut self, reported: Reported, now: Mono) {
        let turn = self.turn();
        if let (Some(_), Some(prompt)) = (&turn, &mut self.prompt) {
            prompt.has_updates = true;
            if prompt.cancel == Cancel::Asked {
                self.advance_cancel(now);
            }
        }
        let Reported { kind, raw, text, details, tool, .. } = reported;
        if let (Some(tool), Some(details)) = (&tool, &details) {
            self.tools.learn(&tool.id, details);
        }
        let changes = details.filter(|_| {
            matches!(kind, UpdateKind::CurrentModeUpdate | UpdateKind::ConfigOptionUpdate)
        });
        self.events.push_back(Event::Update(Update {
            replay: self.is_replaying,
            late: turn.is_none() && self.had_turn,
            turn,
            kind,
            raw,
            text,
            tool,
        }));
        if changes.is_some_and(|changes| self.take_changes(&changes)) && !self.is_opening {
            self.events.push_back(Event::OptionsChanged(self.snapshot.clone()));
        }
    }

    /// Takes in new options or a new mode; whether anything changed.
    fn take_changes(&mut self, said: &Value) -> bool {
        let before = self.snapshot.clone();
        if let Some(options) = wire::config_options(said, &self.options.category_map) {
            self.replace_options(options);
        }
        if let Some(mode) = wire::text(said, "currentModeId") {
            self.snapshot.stands_at_mode(&mode);
        }
        self.snapshot != before
    }

    /// A new list of config options; the synthetic model option stays beside it.
    fn replace_options(&mut self, options: Vec<crate::options::LiveOption>) {
        let old = std::mem::replace(&mut self.snapshot.options, options);
        let model = old.into_iter().find(|option| option.setter == Setter::Model);
        wire::keep_model_option(&mut self.snapshot, model);
    }

    fn on_response(&mut self, id: &RawValue, outcome: Result<&RawValue, &RawValue>) {
        // Only the text that we wrote: neither "7" nor 7.0 nor 07 is our 7.
        let known = id.get().parse::<u64>().ok().filter(|number| number.to_string() == id.get());
        let known = known.filter(|id| self.pending.get(id).is_some_and(|request| request.written));
        let Some(pending) = known.and_then(|id| self.pending.remove(&id)) else {
            count(&self.counters.stray_answers);
            return;
        };
        let asked = match &pending.asked {
            Request::Initialize | Request::Authenticate | Request::Open { known: None } => {
                Asked::Start
            }
            Request::Open { known: Some(_) } => Asked::GoOn,
            Request::Set(_) | Request::Prompt(_) | Request::Close => Asked::Session,
        };
        match outcome {
            Ok(result) => self.succeed(pending.asked, result),
            Err(error) => self.fail(pending.asked, wire::failure(error, asked)),
        }
    }

    fn succeed(&mut self, asked: Request, result: &RawValue) {
        match asked {
            Request::Initialize => {
                let outcome = wire::initialized(result);
                if let Ok(initialized) = &outcome {
                    self.capabilities = initialized.capabilities.clone();
                }
                self.events.push_back(Event::Initialized(outcome));
            }
            Request::Authenticate => self.events.push_back(Event::Authenticated(Ok(()))),
            Request::Open { known } => self.opened(known, result),
            Request::Set(what) => {
                let outcome = self.configured(&what, result);
                self.events.push_back(Event::Configured { what, outcome });
            }
            Request::Prompt(turn) => {
                self.end_prompt();
                let outcome = wire::prompt_end(result);
                self.events.push_back(Event::PromptEnded { turn, outcome });
            }
            Request::Close => self.closed(),
        }
    }

    fn fail(&mut self, asked: Request, failure: Failure) {
        let event = match asked {
            Request::Initialize => Event::Initialized(Err(failure)),
            Request::Authenticate => Event::Authenticated(Err(failure)),
            Request::Open { .. } => {
                if failure.kind != FailureKind::NotSent {
                    self.is_opening = false;
                    self.is_replaying = false;
                    self.session = None;
                }
                Event::Opened(Err(failure))
            }
            Request::Set(what) => Event::Configured { what, outcome: Err(failure) },
            Request::Prompt(turn) => {
                if self.prompt.as_ref().is_some_and(|prompt| prompt.turn == turn)
                    && failure.kind != FailureKind::NotSent
                {
                    self.end_prompt();
                }
                Event::PromptEnded { turn, outcome: Err(failure) }
            }
            Request::Close => return self.closed(),
        };
        self.events.push_back(event);
    }

    fn end_prompt(&mut self) {
        self.prompt = None;
        self.had_turn = true;
    }

    fn closed(&mut self) {
        self.session = None;
        self.events.push_back(Event::SessionClosed);
    }

    fn opened(&mut self, known: Option<String>, result: &RawValue) {
        let answer = wire::parse(result);
        let id = match (&answer, known) {
            (Ok(_), Some(known)) => Some(known),
            (Ok(answer), None) => wire::text(answer, "sessionId").filter(|id| !id.is_empty()),
            (Err(_), _) => None,
        };
        let (Ok(answer), Some(acp_session_id)) = (answer, id) else {
            let message = "the answer has no sessionId";
            let failure = wire::own_failure(FailureKind::Malformed, message);
            return self.fail(Request::Open { known: None }, failure);
        };
        self.is_opening = false;
        self.is_replaying = false;
        self.snapshot = wire::snapshot(&answer, &self.options.category_map);
        self.session = Some(acp_session_id.clone());
        let options = self.snapshot.clone();
        self.events.push_back(Event::Opened(Ok(Opened { acp_session_id, options })));
        self.held_bytes = 0;
        for reported in std::mem::take(&mut self.held) {
            // No turn runs yet, so no time is needed.
            self.on_update(reported, Mono::default());
        }
    }

    /// The options after a set that the agent confirmed.
    fn configured(&mut self, what: &Setting, result: &RawValue) -> Result<Snapshot, Failure> {
        match what {
            Setting::Mode(id) => {
                self.snapshot.stands_at_mode(id);
            }
            Setting::Model(id) => {
                for option in &mut self.snapshot.options {
                    if let (Setter::Model, OptionState::Select { current, .. }) =
                        (option.setter, &mut option.state)
                    {
                        current.clone_from(id);
                    }
                }
            }
            Setting::Option { .. } => {
                let answer = wire::parse(result)?;
                let options = wire::config_options(&answer, &self.options.category_map);
                let Some(options) = options else {
                    let message = "the answer lacks the full list of options";
                    return Err(wire::own_failure(FailureKind::Malformed, message));
                };
                self.replace_options(options);
            }
        }
        Ok(self.snapshot.clone())
    }
}
