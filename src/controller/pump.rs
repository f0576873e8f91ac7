//! The pump of one process: it takes what connection and process tell, in order, and turns it into
//! the view that the planner sees and into durable output.
//!
//! It decides nothing. What matters to a decision pokes the session's key; what is only traffic
//! does not, so that ten thousand updates make no pass.

mod options;
mod permission;
mod usage;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::acp::event::{self, Event, FailureKind, Update, UpdateKind};
use crate::api::report::Trigger;
use crate::api::turn::Activity;
use crate::api::{TurnSpec, Uid};
use crate::clock::{Mono, SharedClock};
use crate::plan::world::{
    Call, CallFailure, CallFailureKind, Fault, Initialized, Opened, Prompt, PromptEnd, Stage,
    StopReason,
};
use crate::secret::Redactor;
use crate::store::SharedBlobs;
use crate::store::records::{self, Records};

use super::live::{Entry, Registry};
use super::output::{FLUSH_AFTER, FLUSH_BYTES, Output};
use super::process::{Events, ProcessEvent};
use super::services::Desk;
use super::{ObjectKey, Queue};

/// Activities that are shown of a running turn.
const RECENT_MAX: usize = 3;
/// How much of a tool call's title is shown.
const TITLE_CHARS_MAX: usize = 120;
/// Tool calls watched at once: an agent that opens more is not helped to live longer.
const TOOL_CALLS_MAX: usize = 1024;

/// How long the end of standard error is waited for once the tree is empty: a stranger may hold it.
const STDERR_DRAIN: Duration = Duration::from_secs(1);

/// The pump of one process.
pub(super) struct Pump {
    pub(super) key: ObjectKey,
    pub(super) entry: Arc<Entry>,
    pub(super) registry: Arc<Registry>,
    pub(super) queue: Arc<Queue>,
    pub(super) blobs: SharedBlobs,
    pub(super) records: Records,
    pub(super) clock: SharedClock,
    pub(super) acp: mpsc::Receiver<Event>,
    pub(super) process: Box<dyn Events>,
    /// Takes what the agent asks for.
    pub(super) desk: Desk,
    /// Standard error was read to its end.
    pub(super) stderr_end: CancellationToken,
    /// What an agent says passes by it before anything is kept.
    pub(super) redactor: Redactor,
    /// Whether the planner is told of every use: the whole tree has a limit.
    pub(super) tells_use: bool,
    pub(super) state: State,
}

/// An answer that is held open for what its agent still sends (`lateUpdateGrace`).
struct Held {
    turn: Uid,
    end: PromptEnd,
    until: Mono,
}

/// What the pump remembers between two events.
#[derive(Default)]
pub(super) struct State {
    output: Option<Output>,
    /// Since when the oldest of what is gathered waits.
    pending_since: Option<Mono>,
    is_cancel_written: bool,
    /// Tool calls that are in progress, and when each was last told of.
    open_tools: HashMap<String, Mono>,
    exit: Option<String>,
    is_tree_empty: bool,
    is_eof: bool,
    process_is_over: bool,
    /// The turn of `output` was answered: what still comes is late.
    is_turn_over: bool,
    /// The turn's answer, while it waits for late chunks.
    held: Option<Held>,
    /// A report of usage that came after the turn's answer was told of.
    is_late_usage_told: bool,
    /// The turn whose output could not be stored: it was given up, and nothing more of it is kept.
    given_up: Option<Uid>,
}

impl Pump {
    /// Runs until no process of the tree is left and everything it wrote was taken.
    pub(super) async fn run(mut self) {
        while !self.is_over() {
            let (has_pending, left) = self.until_flush();
            let (is_held, held_left) = self.until_release();
            // Both receivers lose nothing when the other branch wins; the flush follows outside.
            tokio::select! {
                biased;
                event = self.process.next(), if !self.state.process_is_over => {
                    self.on_process(event);
                }
                event = self.acp.recv(), if !self.state.is_eof => match event {
                    Some(event) => self.on_event(event).await,
                    None => self.at_eof(),
                },
                () = tokio::time::sleep(left), if has_pending => self.flush().await,
                () = tokio::time::sleep(held_left), if is_held => self.release().await,
            }
            if self.state.is_eof || self.state.process_is_over {
                self.release().await;
            }
            let is_full =
                self.state.output.as_ref().is_some_and(|out| out.pending_bytes() >= FLUSH_BYTES);
            if is_full {
                self.flush().await;
            }
        }
        self.finish().await;
        if self.state.is_tree_empty {
            // Nobody of the tree holds the pipe any more: its end is near, and what it said last is
            // told.
            let _ = tokio::time::timeout(STDERR_DRAIN, self.stderr_end.cancelled()).await;
            let status = self.state.exit.clone().unwrap_or_else(|| "unknown".to_owned());
            self.entry.view().stage = Stage::Empty { status };
        }
        self.poke();
    }

    /// Whether nothing more can come: the tree is empty, or nobody is left to tell of it.
    const fn is_over(&self) -> bool {
        self.state.is_eof && (self.state.is_tree_empty || self.state.process_is_over)
    }

    /// Whether anything is gathered, and how long it may still wait.
    fn until_flush(&mut self) -> (bool, Duration) {
        let has_pending = self.state.output.as_ref().is_some_and(|out| out.pending_bytes() > 0);
        if !has_pending {
            self.state.pending_since = None;
            return (false, FLUSH_AFTER);
        }
        let now = self.clock.now().mono;
        let since = *self.state.pending_since.get_or_insert(now);
        (true, FLUSH_AFTER.saturating_sub(now.since(since)))
    }

    /// Whether an answer is held open for late chunks, and for how long still.
    fn until_release(&self) -> (bool, Duration) {
        match &self.state.held {
            Some(held) => (true, held.until.since(self.clock.now().mono)),
            None => (false, Duration::ZERO),
        }
    }

    /// An answer that was held open counts now.
    async fn release(&mut self) {
        if let Some(held) = self.state.held.take() {
            self.end_turn(&held.turn, held.end).await;
        }
    }

    fn poke(&self) {
        self.queue.add(self.key.clone(), Trigger::Process);
    }

    fn on_process(&mut self, event: Option<ProcessEvent>) {
        match event {
            Some(ProcessEvent::Started { pid }) => {
                // Recorded along with whatever is recorded next.
                self.entry.view().pid = Some(pid);
                return;
            }
            Some(ProcessEvent::ExecFailed { message }) => {
                self.state.exit = Some(format!("the program could not be executed: {message}"));
            }
            Some(ProcessEvent::Exited { status }) => {
                crate::failpoint::reach(crate::failpoint::Point::ExitNoticed);
                self.state.exit = Some(status.clone());
                let at = self.clock.now().mono;
                let mut view = self.entry.view();
                if view.stage != Stage::Unprovable {
                    view.stage = Stage::Exited { status, at };
                }
            }
            Some(ProcessEvent::TreeEmpty) => self.state.is_tree_empty = true,
            Some(ProcessEvent::ShimGone) => self.entry.view().stage = Stage::Unprovable,
            None => {
                self.state.process_is_over = true;
                if !self.state.is_tree_empty {
                    self.entry.view().stage = Stage::Unprovable;
                }
            }
        }
        self.poke();
    }

    fn at_eof(&mut self) {
        self.state.is_eof = true;
        self.entry.view().acp.is_eof = true;
        self.poke();
    }

    async fn on_event(&mut self, event: Event) {
        let now = self.clock.now();
        // Only what is of the protocol re-arms the inactivity clock.
        match &event {
            Event::Noise { .. } | Event::Fault(_) | Event::Eof => {}
            Event::PromptWritten { .. } | Event::CancelWritten { .. } => {}
            _ => {
                self.entry.view().last_activity = now.mono;
                self.entry.activity().last_activity_at = Some(now.time);
            }
        }
        match event {
            Event::Update(update) => self.on_update(&update).await,
            Event::PromptWritten { turn } => {
                self.begin(&turn).await;
                self.with_prompt(&turn, |prompt| prompt.written_at = Some(now.mono));
                self.poke();
            }
            Event::CancelWritten { .. } => {
                self.state.is_cancel_written = true;
                self.desk.cancel();
            }
            Event::Service(job) => self.desk.begin(job),
            Event::PromptEnded { turn, outcome } => self.on_prompt_ended(&turn, outcome).await,
            Event::PermissionAsked(asked) => self.on_permission(asked, now.time),
            Event::Noise { count, .. } => {
                let mut view = self.entry.view();
                let is_first = view.noise_lines == 0;
                view.noise_lines = count;
                drop(view);
                if is_first {
                    self.poke();
                }
            }
            Event::Traffic { .. } => {}
            Event::Eof => self.at_eof(),
            other => self.on_answer(other),
        }
    }

    /// Answers to our own requests, and what breaks the connection.
    fn on_answer(&mut self, event: Event) {
        let mut view = self.entry.view();
        match event {
            Event::Initialized(outcome) => {
                view.acp.initialize = match outcome {
                    Ok(found) => Call::Done(initialized(&self.redactor, found)),
                    Err(failure) => Call::Failed(call_failure(&self.redactor, &failure)),
                };
            }
            Event::Authenticated(Ok(())) => {
                view.acp.login = Call::Done(());
                view.acp.open = Call::NotMade;
            }
            Event::Authenticated(Err(failure)) => {
                view.acp.login = Call::Failed(call_failure(&self.redactor, &failure));
            }
            Event::Opened(outcome) => {
                view.acp.open = match outcome {
                    Ok(opened) => {
                        view.acp.options = options::without_secrets(&self.redactor, opened.options);
                        Call::Done(Opened { acp_session_id: opened.acp_session_id })
                    }
                    Err(failure) => Call::Failed(call_failure(&self.redactor, &failure)),
                };
            }
            Event::Configured { mut outcome, .. } => {
                if let Err(failure) = &mut outcome {
                    failure.message = self.redactor.text(&failure.message).into_owned();
                }
                if let Some(call) = view.acp.setting.take() {
                    let mut done = match view.acp.tried.take() {
                        Some((turn, done)) if turn == call.turn => done,
                        Some(_) | None => crate::options::settings::Done::default(),
                    };
                    let told = outcome.as_ref().map_err(|failure| failure.message.as_str());
                    done.record(&call.wanted, &call.before, &call.setting, told);
                    view.acp.tried = Some((call.turn, done));
                }
                if let Ok(options) = outcome {
                    view.acp.options = options::without_secrets(&self.redactor, options);
                }
            }
            Event::OptionsChanged(options) => {
                view.acp.options = options::without_secrets(&self.redactor, options);
                return;
            }
            Event::SessionClosed => view.acp.close = Call::Done(()),
            Event::Fault(event::Fault::FrameTooLarge { .. }) => {
                view.acp.fault = Some(Fault::FrameTooLarge);
            }
            Event::Fault(event::Fault::ProtocolFailure { .. }) => {
                view.acp.fault = Some(Fault::ProtocolFailure);
            }
            Event::Fault(event::Fault::Read { .. } | event::Fault::Write { .. }) => {
                view.acp.is_eof = true;
            }
            _ => return,
        }
        drop(view);
        self.poke();
    }

    /// A turn's output begins with the first thing that is heard of it. `None`: it was given up.
    async fn begin(&mut self, turn: &Uid) -> Option<&mut Output> {
        if self.state.given_up.as_ref() == Some(turn) {
            return None;
        }
        let is_new = self.state.output.as_ref().is_none_or(|output| output.turn != *turn);
        if is_new {
            // What the turn before was told too late is its own all the same.
            self.finish().await;
            self.state.is_cancel_written = false;
            self.state.open_tools.clear();
            self.state.is_turn_over = false;
            self.state.is_late_usage_told = false;
            self.state.given_up = None;
            self.state.output = None;
        }
        let redactor = &self.redactor;
        let new = || Output::new(turn.clone(), redactor.clone());
        Some(self.state.output.get_or_insert_with(new))
    }

    /// Changes what the view says of the turn's prompt, if it still shows that one.
    fn with_prompt(&self, turn: &Uid, change: impl FnOnce(&mut Prompt)) {
        let mut view = self.entry.view();
        if let Some(prompt) = view.prompt.as_mut().filter(|prompt| prompt.turn == *turn) {
            change(prompt);
        }
    }

    async fn on_update(&mut self, update: &Update) {
        let now = self.clock.now();
        if update.replay {
            return;
        }
        self.note_tools(update, now.mono);
        self.note_usage(update);
        if is_progress(&update.kind) {
            self.entry.view().last_progress = now.mono;
            self.entry.activity().last_progress_at = Some(now.time);
            let title = update.tool.as_ref().and_then(|tool| tool.title.as_deref());
            self.note_activity(activity_name(&update.kind), title);
        }
        if let Some(turn) = &update.turn {
            let Some(output) = self.begin(turn).await else { return };
            output.take(update, now.time, false);
            let steps = output.steps;
            self.with_prompt(turn, |prompt| prompt.steps = steps);
            self.note_excess(turn, now.mono);
        } else if update.late {
            let is_held = self.state.held.is_some();
            if is_progress(&update.kind) && !is_held {
                let was = std::mem::replace(&mut self.entry.view().is_active_after_turn, true);
                if !was {
                    self.poke();
                }
            }
            // What comes after a turn's end goes to its transcript, marked.
            if let Some(output) = &mut self.state.output {
                output.take(update, now.time, is_held);
            }
        }
    }

    fn note_tools(&mut self, update: &Update, now: Mono) {
        let Some(tool) = &update.tool else { return };
        let open = &mut self.state.open_tools;
        let is_over = matches!(tool.status.as_deref(), Some("completed" | "failed"));
        if is_over {
            open.remove(&tool.id);
        } else if open.len() < TOOL_CALLS_MAX || open.contains_key(&tool.id) {
            open.insert(tool.id.clone(), now);
        }
        self.entry.view().tool_heard = open.values().max().copied();
    }

    fn note_activity(&self, kind: &str, message: Option<&str>) {
        let at = self.clock.now().time;
        let message = message.map(|text| self.redactor.text(text));
        let message = message.map(|text| text.chars().take(TITLE_CHARS_MAX).collect::<String>());
        let mut activity = self.entry.activity();
        let mut recent: VecDeque<_> = std::mem::take(&mut activity.recent).into();
        match recent.back_mut().filter(|last| last.kind == kind && last.message == message) {
            Some(last) => last.at = at,
            None => recent.push_back(Activity { kind: kind.to_owned(), at, message }),
        }
        while recent.len() > RECENT_MAX {
            recent.pop_front();
        }
        activity.recent = recent.into();
    }

    /// The answer to a prompt is shown to the planner only once everything before it is durable.
    async fn on_prompt_ended(
        &mut self,
        turn: &Uid,
        outcome: Result<event::PromptEnd, event::Failure>,
    ) {
        self.desk.end_turn();
        self.begin(turn).await;
        let is_after_cancel = self.state.is_cancel_written || self.was_cancelled_unwritten(turn);
        let (answer, usage) = match outcome {
            Ok(mut end) => {
                end.stop_reason = self.redactor.text(&end.stop_reason).into_owned();
                if let Some(usage) = &mut end.usage {
                    self.redactor.json(usage);
                }
                (Ok(stop_reason(&end)), end.usage)
            }
            Err(failure) => (Err(call_failure(&self.redactor, &failure)), None),
        };
        let end = PromptEnd { answer, is_after_cancel, usage };
        let grace = self.entry.late_grace();
        if grace.is_zero() || is_after_cancel || end.answer.is_err() {
            self.end_turn(turn, end).await;
        } else {
            let until = self.clock.now().mono.plus(grace);
            self.state.held = Some(Held { turn: turn.clone(), end, until });
        }
    }

    /// Shows a turn's end to the planner.
    async fn end_turn(&mut self, turn: &Uid, end: PromptEnd) {
        self.finish().await;
        self.state.is_turn_over = true;
        self.state.open_tools.clear();
        self.entry.view().tool_heard = None;
        self.with_prompt(turn, |prompt| prompt.end = Some(end));
        self.poke();
    }

    /// Whether the cancel was asked for before the prompt was written whole: whatever the agent
    /// then made of it, it is an answer to a cancelled prompt.
    fn was_cancelled_unwritten(&self, turn: &Uid) -> bool {
        let view = self.entry.view();
        let prompt = view.prompt.as_ref().filter(|prompt| prompt.turn == *turn);
        prompt.is_some_and(|prompt| match (prompt.cancel_asked_at, prompt.written_at) {
            (Some(asked), Some(written)) => asked <= written,
            (Some(_), None) => true,
            (None, _) => false,
        })
    }

    /// Makes everything durable that came so far: no text goes on behind this.
    async fn finish(&mut self) {
        let now = self.clock.now().time;
        if let Some(output) = &mut self.state.output {
            output.finish(now);
        }
        self.flush().await;
    }

    async fn flush(&mut self) {
        let Some(output) = &mut self.state.output else { return };
        if output.pending_bytes() == 0 {
            return;
        }
        self.state.pending_since = None;
        // A turn that has ended may be deleted at any moment: late words bring nothing back.
        let is_late = self.state.is_turn_over;
        let turn = output.turn.clone();
        if is_late && !matches!(is_stored(&self.records, &turn).await, Ok(true)) {
            self.state.output = None;
            return;
        }
        let outcome = output.flush(&self.blobs).await;
        let (transcript, response) = output.durable();
        match outcome {
            Ok(()) if is_late => {
                if matches!(is_stored(&self.records, &turn).await, Ok(false)) {
                    super::act::drop_blobs(&self.records, turn).await;
                    self.state.output = None;
                }
            }
            Ok(()) => {
                self.registry.transcript_grew(&turn, transcript);
                self.with_prompt(&turn, |prompt| prompt.response_bytes = response);
            }
            Err(error) => {
                tracing::error!(%turn, %error, "a turn's output could not be stored");
                let message = error.to_string();
                self.state.output = None;
                self.state.given_up = Some(turn.clone());
                self.with_prompt(&turn, |prompt| prompt.persist_failure = Some(message));
                self.poke();
            }
        }
    }
}

/// A pump that ends in any other way than by the end of its process knows nothing of the tree.
impl Drop for Pump {
    fn drop(&mut self) {
        let mut view = self.entry.view();
        if !matches!(view.stage, Stage::Empty { .. }) {
            view.stage = Stage::Unprovable;
            drop(view);
            self.poke();
        }
    }
}

/// Whether a turn's record is there.
async fn is_stored(records: &Records, turn: &Uid) -> Result<bool, records::Error> {
    Ok(records.by_uid::<TurnSpec>(turn).await?.is_some())
}

const fn is_progress(kind: &UpdateKind) -> bool {
    matches!(
        kind,
        UpdateKind::AgentMessageChunk
            | UpdateKind::AgentThoughtChunk
            | UpdateKind::ToolCall
            | UpdateKind::ToolCallUpdate
            | UpdateKind::Plan
    )
}

const fn activity_name(kind: &UpdateKind) -> &'static str {
    match kind {
        UpdateKind::AgentMessageChunk => "message",
        UpdateKind::AgentThoughtChunk => "thought",
        UpdateKind::ToolCall | UpdateKind::ToolCallUpdate => "tool",
        UpdateKind::Plan => "plan",
        _ => "update",
    }
}

/// What an agent told of itself, as far as it is kept.
fn initialized(redactor: &Redactor, found: event::Initialized) -> Initialized {
    let mut declared = found.raw_capabilities;
    if let Some(declared) = &mut declared {
        redactor.json(declared);
    }
    let methods = found.auth_methods.into_iter();
    Initialized {
        protocol_version: found.protocol_version,
        capabilities: found.capabilities,
        auth_methods: methods.map(|method| redactor.text(&shown(&method)).into_owned()).collect(),
        version: found.agent_version.map(|version| redactor.text(&version).into_owned()),
        declared,
    }
}

/// A way to log in, for messages.
fn shown(method: &event::AuthMethod) -> String {
    if method.id == method.name {
        method.id.clone()
    } else {
        format!("{} ({})", method.id, method.name)
    }
}

fn call_failure(redactor: &Redactor, failure: &event::Failure) -> CallFailure {
    let kind = match failure.kind {
        FailureKind::AuthRequired => CallFailureKind::AuthRequired,
        FailureKind::SessionLost => CallFailureKind::SessionLost,
        FailureKind::MethodNotFound => CallFailureKind::MethodNotFound,
        FailureKind::ProtocolVersion => CallFailureKind::ProtocolVersion,
        FailureKind::Malformed | FailureKind::NotSent | FailureKind::Other => {
            CallFailureKind::Other
        }
    };
    let message = redactor.text(&failure.words()).into_owned();
    CallFailure { kind, code: failure.code, message }
}

fn stop_reason(end: &event::PromptEnd) -> StopReason {
    match end.reason {
        event::StopReason::EndTurn => StopReason::EndTurn,
        event::StopReason::MaxTokens => StopReason::MaxTokens,
        event::StopReason::MaxTurnRequests => StopReason::MaxTurnRequests,
        event::StopReason::Refusal => StopReason::Refusal,
        event::StopReason::Cancelled => StopReason::Cancelled,
        event::StopReason::Unknown => StopReason::Unknown(end.stop_reason.clone()),
    }
}
