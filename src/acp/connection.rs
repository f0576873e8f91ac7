//! One connection to one agent: options, a service that somebody runs, and a handle to speak to it.
//!
//! Where it stands: between an agent's pipes and the controller. Invariants: one task owns all
//! state; calls never wait, they are carried out in order; events come in the order of the wire,
//! the answer to a prompt behind the updates before it; while the owner does not take events
//! nothing more is read, so nothing is lost and nothing grows. Deliberately absent: deadlines of
//! calls. What can be known without pipes is in `machine`.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::codec::{FRAME_BYTES_MAX, LineReader, ReadError};
use super::counts::{Counters, Counts};
use super::event::{Event, Fault};
use super::machine::{Machine, Sent};
use super::outbox::{Line, Outbox, Room, WRITE_QUEUE_BYTES_MAX};
use super::permission::Answer;
use super::roots::Roots;
use super::services::{Refusal, Reply};
use crate::api::Uid;
use crate::api::agent::{AdditionalDirectories, McpServer, Permissions};
use crate::clock::SharedClock;
use crate::options::settings::Setting;

/// How many calls may wait for the service; it takes them at once unless its owner is asleep.
const COMMANDS_MAX: usize = 32;
/// With so many events waiting for the owner no calls are taken. Reading stops at the first one;
/// these are what calls have led to.
const EVENTS_MAX: usize = 256;
/// With so many answers waiting for the agent to read them nothing more is read from it.
const ANSWERS_MAX: usize = 64;
/// How many answers to the agent's calls are taken ahead: each may be a large text, and who has one
/// waits.
const SERVED_MAX: usize = 1;
/// The room that a call without a prompt is reckoned with.
const COMMAND_BYTES: usize = 1024;

/// How a connection behaves.
#[derive(Clone)]
pub struct Options {
    /// What the agent may do when it asks.
    pub permissions: Permissions,
    /// The session's directories, canonical.
    pub roots: Roots,
    /// Renames option categories.
    pub category_map: BTreeMap<String, String>,
    /// How additional directories are given to the agent.
    pub additional_directories: AdditionalDirectories,
    /// For the times of cancels and of noise.
    pub clock: SharedClock,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Options").field("permissions", &self.permissions).finish_non_exhaustive()
    }
}

/// Which ACP session to open.
#[derive(Clone, Debug)]
pub enum Open {
    /// A new one.
    New(Scope),
    /// An earlier one, without its history.
    Resume {
        /// The agent's id of it.
        acp_session_id: String,
        /// Where.
        scope: Scope,
    },
    /// An earlier one; the agent repeats its history.
    Load {
        /// The agent's id of it.
        acp_session_id: String,
        /// Where.
        scope: Scope,
    },
}

/// Where a session works and with which servers.
#[derive(Clone, Debug, Default)]
pub struct Scope {
    /// Absolute.
    pub cwd: String,
    /// Absolute. Sent as [`Options::additional_directories`] says: with `Auto` only to agents that
    /// declare them.
    pub additional_directories: Vec<String>,
    /// Sent as they are. Leave `http` ones out for agents that do not declare `mcp_http`.
    pub mcp_servers: Vec<McpServer>,
    /// Added to the agent's own instructions. Only for agents that declare `system_prompt`.
    pub system_prompt: Option<String>,
}

#[derive(Debug)]
pub(super) enum Command {
    Initialize,
    Authenticate(String),
    Open(Open),
    Set(Setting),
    Prompt { turn: Uid, blocks: Box<RawValue> },
    Cancel,
    Answer { request: u64, answer: Answer },
    Close,
}

/// A call was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// Too much waits for the agent, which does not read its standard input.
    #[error("more than {WRITE_QUEUE_BYTES_MAX} bytes wait for the agent to read them")]
    Full,
    /// The service has ended, or standard input was closed.
    #[error("the connection is closed")]
    Closed,
}

/// What became of a call that was carried out.
type Served = (u64, Result<Reply, Refusal>);

struct Envelope {
    command: Command,
    room: usize,
}

/// Speaks to a [`Service`]. No call waits; each one's outcome is an event.
#[derive(Clone)]
pub struct Handle {
    commands: mpsc::Sender<Envelope>,
    served: mpsc::Sender<Served>,
    room: Room,
    close: CancellationToken,
    counters: Arc<Counters>,
}

impl Handle {
    /// Begins; then [`Event::Initialized`].
    ///
    /// # Errors
    ///
    /// [`Refused`], as of every call here.
    pub fn initialize(&self) -> Result<(), Refused> {
        self.send(Command::Initialize, COMMAND_BYTES)
    }

    /// Logs in by one of the agent's methods; then [`Event::Authenticated`].
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn authenticate(&self, method: &str) -> Result<(), Refused> {
        self.send(Command::Authenticate(method.to_owned()), COMMAND_BYTES)
    }

    /// Opens a session, one at a time; then [`Event::Opened`].
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn open(&self, open: Open) -> Result<(), Refused> {
        self.send(Command::Open(open), COMMAND_BYTES)
    }

    /// Sets a mode, an option or the model; then [`Event::Configured`].
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn set(&self, what: Setting) -> Result<(), Refused> {
        self.send(Command::Set(what), COMMAND_BYTES)
    }

    /// Sets the mode, by `session/set_mode`.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn set_mode(&self, id: &str) -> Result<(), Refused> {
        self.set(Setting::Mode(id.to_owned()))
    }

    /// Sets a config option to a string or a boolean.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn set_option(&self, id: &str, value: Value) -> Result<(), Refused> {
        self.set(Setting::Option { id: id.to_owned(), value })
    }

    /// Sets the model, by `session/set_model`.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn set_model(&self, id: &str) -> Result<(), Refused> {
        self.set(Setting::Model(id.to_owned()))
    }

    /// Gives the agent a prompt, a JSON list of content blocks; then [`Event::PromptWritten`],
    /// updates, and [`Event::PromptEnded`]. A prompt while another is unanswered is not sent.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn prompt(&self, turn: Uid, blocks: Box<RawValue>) -> Result<(), Refused> {
        let bytes = COMMAND_BYTES + blocks.get().len();
        self.send(Command::Prompt { turn, blocks }, bytes)
    }

    /// Cancels the turn: every request for permission that is open, or comes later in it, is
    /// answered `cancelled`; then `session/cancel` is written, as soon as the turn had its first
    /// update or 250 ms after its prompt was written, and once more if that brings no answer in
    /// 2 s. A second call in a turn does nothing. Without a turn it is written at once.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn cancel(&self) -> Result<(), Refused> {
        self.send(Command::Cancel, 0)
    }

    /// Answers a request for permission that waits; then [`Event::PermissionAsked`] again. One that
    /// does not wait any more is left alone.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn answer(&self, request: u64, answer: Answer) -> Result<(), Refused> {
        self.send(Command::Answer { request, answer }, 0)
    }

    /// Answers a call of [`Event::Service`]. It waits while much waits for the agent to read it; of
    /// a connection that has ended nothing is waited for.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the call may stay unanswered.
    pub async fn serve(&self, request: u64, outcome: Result<Reply, Refusal>) {
        // The agent is gone.
        let _ = self.served.send((request, outcome)).await;
    }

    /// Closes the session; then [`Event::SessionClosed`]. Only for agents that declare it.
    ///
    /// # Errors
    ///
    /// [`Refused`].
    pub fn close_session(&self) -> Result<(), Refused> {
        self.send(Command::Close, 0)
    }

    /// Closes the agent's standard input once what waits is written. Dropping every handle does
    /// the same.
    pub fn close_stdin(&self) {
        self.close.cancel();
    }

    /// What was dropped or not understood so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counters.read()
    }

    fn send(&self, command: Command, room: usize) -> Result<(), Refused> {
        if self.close.is_cancelled() {
            return Err(Refused::Closed);
        }
        if room > 0 && !self.room.take(room) {
            return Err(Refused::Full);
        }
        self.commands.try_send(Envelope { command, room }).map_err(|error| {
            self.room.give(room);
            match error {
                mpsc::error::TrySendError::Full(_) => Refused::Full,
                mpsc::error::TrySendError::Closed(_) => Refused::Closed,
            }
        })
    }
}

/// The task of a connection.
pub struct Service<R, W> {
    reader: LineReader<R>,
    outbox: Outbox<W, Sent>,
    commands: mpsc::Receiver<Envelope>,
    served: mpsc::Receiver<Served>,
    close: CancellationToken,
    events: mpsc::Sender<Event>,
    machine: Machine,
    clock: SharedClock,
    room: Room,
    /// Answers that wait to be written: how many, and their bytes.
    answers: (usize, usize),
}

/// Makes a connection over an agent's pipes. `events` is bounded by its maker; its bound is how
/// far reading runs ahead.
pub fn connect<W, R>(
    stdin: W,
    stdout: R,
    options: Options,
    events: mpsc::Sender<Event>,
) -> (Handle, Service<R, W>)
where
    W: AsyncWrite + Unpin,
    R: AsyncRead + Unpin,
{
    let (sender, commands) = mpsc::channel(COMMANDS_MAX);
    let (send_served, served) = mpsc::channel(SERVED_MAX);
    let (room, close, counters) = (Room::default(), CancellationToken::new(), Arc::default());
    let service = Service {
        reader: LineReader::new(stdout, FRAME_BYTES_MAX),
        outbox: Outbox::new(stdin, room.clone()),
        commands,
        served,
        close: close.clone(),
        events,
        clock: options.clock.clone(),
        machine: Machine::new(options, Arc::clone(&counters)),
        room: room.clone(),
        answers: (0, 0),
    };
    (Handle { commands: sender, served: send_served, room, close, counters }, service)
}

impl<R, W> Service<R, W>
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    /// Serves the connection until standard output ends and [`Event::Eof`] was taken, or until
    /// nobody takes events any more.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the pipes; a line may then be half written.
    pub async fn run(mut self) {
        let events = self.events.clone();
        let mut is_open = true;
        let mut at_end = false;
        loop {
            self.post();
            if at_end && self.machine.events.is_empty() {
                return;
            }
            let now = self.clock.now().mono;
            let due = self.machine.deadline().map(|deadline| deadline.since(now));
            let takes_calls = is_open && self.machine.events.len() < EVENTS_MAX;
            let may_read = !at_end && self.may_read();
            let takes_answers = self.takes_answers();
            tokio::select! {
                biased;
                // Cancel safe: a permit that is not used is given back.
                permit = events.reserve(), if !self.machine.events.is_empty() => {
                    let Ok(permit) = permit else { return };
                    if let Some(event) = self.machine.events.pop_front() {
                        permit.send(event);
                    }
                }
                // Cancel safe: the outbox keeps how far it got.
                sent = self.outbox.advance(), if self.outbox.has_work() => self.note_sent(sent),
                // Cancel safe.
                () = self.close.cancelled(), if is_open => {
                    is_open = false;
                    while let Ok(envelope) = self.commands.try_recv() {
                        self.obey(envelope);
                    }
                    self.outbox.close();
                }
                // Cancel safe.
                envelope = self.commands.recv(), if takes_calls => match envelope {
                    Some(envelope) => self.obey(envelope),
                    None => self.close.cancel(),
                },
                // Cancel safe.
                Some((request, outcome)) = self.served.recv(), if takes_answers => {
                    self.machine.served(request, outcome);
                }
                // Cancel safe: the deadline is taken anew each time.
                () = tokio::time::sleep(due.unwrap_or_default()), if due.is_some() => {
                    self.machine.on_time(self.clock.now().mono);
                }
                // Cancel safe: the reader keeps what it read.
                end = read(&mut self.reader, &mut self.machine, &self.clock), if may_read => {
                    if end {
                        at_end = true;
                        self.machine.events.push_back(Event::Eof);
                    }
                }
            }
        }
    }

    fn may_read(&self) -> bool {
        self.machine.events.is_empty() && !self.outbox.is_flushing() && self.takes_answers()
    }

    const fn takes_answers(&self) -> bool {
        let (count, bytes) = self.answers;
        count < ANSWERS_MAX && bytes < WRITE_QUEUE_BYTES_MAX
    }

    fn obey(&mut self, envelope: Envelope) {
        self.machine.on_command(envelope.command, self.clock.now().mono);
        self.post_with_room(envelope.room);
    }

    /// Gives the machine's lines to the outbox.
    fn post(&mut self) {
        self.post_with_room(0);
    }

    /// The same; the room that a call took goes with its line, or is given back.
    fn post_with_room(&mut self, mut room: usize) {
        for line in self.machine.lines.drain(..) {
            let answer_bytes = match line.sent {
                Sent::Answer { bytes } => Some(bytes),
                Sent::Request(_) | Sent::Cancel(_) => None,
            };
            let room = match line.sent {
                Sent::Request(_) => std::mem::take(&mut room),
                Sent::Cancel(_) | Sent::Answer { .. } => 0,
            };
            let waits = self.outbox.push(Line { bytes: line.bytes, room, tag: line.sent });
            if let Some(bytes) = answer_bytes.filter(|_| waits) {
                self.answers = (self.answers.0 + 1, self.answers.1 + bytes);
            }
        }
        self.room.give(room);
    }

    fn note_sent(&mut self, sent: std::io::Result<Option<Sent>>) {
        match sent {
            Ok(Some(sent)) => {
                if let Sent::Answer { bytes } = sent {
                    self.answers = (self.answers.0 - 1, self.answers.1 - bytes);
                }
                self.machine.on_sent(sent, self.clock.now().mono);
            }
            Ok(None) => {}
            Err(error) => {
                self.answers = (0, 0);
                let message = error.to_string();
                self.machine.events.push_back(Event::Fault(Fault::Write { message }));
            }
        }
    }
}

/// Reads a line into the machine; whether the stream ended. A broken stream is read to its end and
/// dropped, so that the agent does not hang on a full pipe while it ends.
async fn read<R: AsyncRead + Unpin>(
    reader: &mut LineReader<R>,
    machine: &mut Machine,
    clock: &SharedClock,
) -> bool {
    if machine.is_broken {
        reader.discard().await;
        return true;
    }
    match reader.next_line().await {
        Ok(Some(line)) => {
            machine.on_line(line, clock.now().mono);
            false
        }
        Ok(None) => true,
        Err(ReadError::FrameTooLarge { limit_bytes }) => {
            machine.break_off(Fault::FrameTooLarge { limit_bytes });
            false
        }
        Err(ReadError::Read(error)) => {
            machine.break_off(Fault::Read { message: error.to_string() });
            true
        }
    }
}
