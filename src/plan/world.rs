//! The World: everything that one pass over a session may know, as one value.
//!
//! `controller::observe` fills it in from one consistent reading; the planner sees nothing else.
//! What could not be found out is a value too ([`Stage::Unprovable`], [`Finding::Unknown`]): it
//! counts as "might be running".

use std::time::Duration;

use crate::api::agent::{AgentSpec, SandboxMode, StopTimes};
use crate::api::session::{Capabilities, ProcessRecord, RunBudget, Scope};
use crate::api::{Agent, Incarnation, Name, PermissionRequest, RoleSpec, Session, Turn, Uid};
use crate::clock::Mono;
use crate::options::Snapshot;
use crate::options::settings::{Done, Setting, Wanted};

use super::notice::Notices;
use super::permission::Ask;
use super::spending::Tree;
use super::usage::{Meter, Spent};

/// What one pass over a session sees.
#[derive(Clone, Debug)]
pub struct World {
    /// The record as the store has it.
    pub session: Session,
    /// Its turns that are not final, oldest first.
    pub turns: Vec<OpenTurn>,
    /// Its requests for permission that wait, and those that the agent's questions stand for, oldest
    /// first.
    pub requests: Vec<PermissionRequest>,
    /// Its requests that wait no more, oldest first; looked up only once it has finished, or where
    /// a new question needs a record.
    pub spent_requests: Option<Vec<PermissionRequest>>,
    /// Its turns, final ones too; looked up only once it has finished.
    pub below: Option<Vec<Turn>>,
    /// Its children; looked up only once its end is wanted or decided.
    pub children: Option<Children>,
    /// The session that made it.
    pub owner: Owner,
    /// What it is to be told of its children's turns.
    pub notices: Notices,
    /// The agent that it names, narrowed by its role. Missing too if the role is.
    pub agent: Finding<Agent>,
    /// The agent's own spec, where the role narrows it: its record keeps that.
    pub agent_spec: Option<Box<AgentSpec>>,
    /// The role that it was found to play, until it is pinned.
    pub role: Option<Box<RoleSpec>>,
    /// Its directories.
    pub scope: Finding<Scope>,
    /// What is known of its process.
    pub process: Process,
    /// Whether the turn that is next could take a slot now, or holds one.
    pub has_free_slot: bool,
    /// The idle processes of its parent's children that are too many.
    pub crowd: Crowd,
    /// What its tree has used and may.
    pub tree: Tree,
    /// The daemon itself.
    pub daemon: Daemon,
}

/// The idle processes of a parent's children that are too many, the least recently used first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Crowd {
    /// Whether the session's own is one of them.
    pub includes_this: bool,
    /// The sessions of the others.
    pub others: Vec<Name>,
}

/// The sessions that a session made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Children {
    /// How many there are, ended ones too.
    pub count: usize,
    /// Those that have not recorded yet what the end of this session means for them.
    pub untold: Vec<Name>,
}

/// What the planner must know of the daemon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Daemon {
    /// Marks every process of this store; the first part of a nonce.
    pub store_id: String,
    /// The machine's boot.
    pub boot_id: String,
    /// When the daemon last did not run for a while: what agents said meanwhile is still being read.
    pub standstill: Option<Standstill>,
    /// Whether the daemon is stopping in order.
    pub is_stopping: bool,
    /// Whether the daemon before this one stopped in order: its turns end `APP_SHUTDOWN`.
    pub stopped_cleanly: bool,
    /// How long a request for permission waits.
    pub permission_timeout: Duration,
}

/// A time in which the daemon did not run, or was far behind: it was stopped, or the machine is busy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// When it should have done the first thing that it did not.
    pub from: Mono,
    /// When it went on.
    pub to: Mono,
}

/// A turn that is not final.
#[derive(Clone, Debug)]
pub struct OpenTurn {
    /// The record as the store has it.
    pub record: Turn,
    /// Whether it holds its slot by this daemon's doing. A turn that holds one and was not taken
    /// here was taken, or admitted, by a daemon that is gone.
    pub is_taken_here: bool,
    /// Whether the journal has its uid: it may have been sent, and is never sent again.
    pub is_in_journal: bool,
    /// The kinds of its content blocks (`text`, `image`, ...).
    pub block_kinds: Vec<String>,
    /// What the store has of its response; looked up only where this daemon has not written it.
    pub stored_response_bytes: u64,
}

/// The session that made a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Owner {
    /// There is none.
    None,
    /// It takes turns.
    Live,
    /// It ended, or was asked to.
    Stopped,
    /// It is being deleted, and its children with it.
    Deleting,
    /// It is being deleted, and lets those children go that do not stop with it.
    Releasing,
    /// Its record is gone.
    Gone,
}

/// Something that a session refers to.
#[derive(Clone, Debug, PartialEq)]
pub enum Finding<T> {
    /// It is there.
    Found(Box<T>),
    /// It is not there, or not usable. The sentence says what and where.
    Missing(Missing),
    /// It was not looked for in this pass, or could not be: nothing may be concluded.
    Unknown,
}

/// Why a reference does not resolve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing {
    /// One CamelCase word.
    pub reason: &'static str,
    /// What is missing, where it was looked for, and what to do.
    pub message: String,
}

/// What is known of a session's process.
#[derive(Clone, Debug)]
pub enum Process {
    /// Proven: no process of this session exists.
    Absent,
    /// A start failed before a process existed, or it existed and is gone.
    NotStarted {
        /// What went wrong.
        failure: StartFailure,
    },
    /// In this daemon's hands.
    Live(Box<Live>),
    /// A process may exist that is not in the daemon's hands: its start was given up, and it is
    /// not proven gone yet.
    Unproven,
}

/// A process in this daemon's hands.
#[derive(Clone, Debug)]
pub struct Live {
    /// Which run.
    pub incarnation: Incarnation,
    /// How far the process is.
    pub stage: Stage,
    /// The agent's own pid, once it runs.
    pub pid: Option<u32>,
    /// When the launch began.
    pub launched_at: Mono,
    /// The protocol side.
    pub acp: Acp,
    /// The prompt that the agent was last given.
    pub prompt: Option<Prompt>,
    /// What the agent asks and waits for an answer to, oldest first.
    pub asks: Vec<Ask>,
    /// Whether it has asked for any permission, whatever the answer.
    pub has_asked: bool,
    /// The stop ladder, once it was begun.
    pub stop: Option<Stop>,
    /// When the agent last sent a valid message.
    pub last_activity: Mono,
    /// When the agent last got on: text, thought or a tool call's change.
    pub last_progress: Mono,
    /// When the agent last told of a tool call that is in progress, of the one that it told of
    /// last. `None`: none is.
    pub tool_heard: Option<Mono>,
    /// What it reported of tokens and cost.
    pub usage: Meter,
    /// Whether the agent sent anything since the last turn's end.
    pub is_active_after_turn: bool,
    /// The last lines of standard error, for messages.
    pub stderr_tail: String,
    /// Lines on standard output that were no protocol, since the start.
    pub noise_lines: u64,
    /// The sandbox that the kernel holds it to.
    pub sandbox: Option<Confinement>,
}

/// The sandbox of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confinement {
    /// As the agent's record asked for it when the process was started. Never off.
    pub mode: SandboxMode,
    /// The version of the kernel's interface (Landlock) that keeps to it.
    pub abi: u32,
}

/// How far a process is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The shim stands at its gate; nothing of the agent exists.
    Gated {
        /// What to record of the shim before the gate is opened.
        identity: ProcessIdentity,
    },
    /// The gate is open.
    Running,
    /// The agent's first process ended; what is left of its tree is being killed.
    Exited {
        /// How it ended, in words.
        status: String,
        /// When.
        at: Mono,
    },
    /// Proven: no process of the tree exists, and everything it wrote was read.
    Empty {
        /// How the agent ended, in words.
        status: String,
    },
    /// The shim is gone and the tree cannot be proven empty.
    Unprovable,
}

/// What identifies a process beyond its pid.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessIdentity {
    /// The shim's pid.
    pub shim_pid: u32,
    /// Clock ticks since boot.
    pub start_time: u64,
    /// One per process and boot, where the kernel has it.
    pub pidfd_inode: Option<u64>,
    /// Its cgroup, where there is one.
    pub cgroup: Option<String>,
}

impl ProcessIdentity {
    /// Writes the identity into a session's process record.
    pub fn write_to(&self, record: &mut ProcessRecord) {
        record.shim_pid = Some(self.shim_pid);
        record.start_time = Some(self.start_time);
        record.pidfd_inode = self.pidfd_inode;
        record.cgroup.clone_from(&self.cgroup);
    }
}

/// A request to the agent.
#[derive(Clone, Debug, PartialEq)]
pub enum Call<T> {
    /// Not made.
    NotMade,
    /// Made, unanswered.
    InFlight,
    /// Answered.
    Done(T),
    /// Refused.
    Failed(CallFailure),
}

/// Why the agent refused a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallFailure {
    /// What it means.
    pub kind: CallFailureKind,
    /// The JSON-RPC code.
    pub code: i64,
    /// What the agent said.
    pub message: String,
}

/// What a refused request means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallFailureKind {
    /// The agent needs a login.
    AuthRequired,
    /// The agent does not know the session.
    SessionLost,
    /// The agent does not know the method.
    MethodNotFound,
    /// The agent speaks another version of the protocol.
    ProtocolVersion,
    /// The request was never written: the agent's side was closed by then.
    NeverWritten,
    /// Anything else.
    Other,
}

/// The protocol side of a process.
#[derive(Clone, Debug, PartialEq)]
pub struct Acp {
    /// `initialize`.
    pub initialize: Call<Initialized>,
    /// `authenticate`.
    pub login: Call<()>,
    /// `session/new`, `session/resume` or `session/load`. Not made again after a login.
    pub open: Call<Opened>,
    /// How the session was opened.
    pub opened_as: Option<OpenAs>,
    /// The live options, from the newest answer or update.
    pub options: Snapshot,
    /// What was set for a turn so far, and how that went.
    pub tried: Option<(Uid, Done)>,
    /// The setting that is under way.
    pub setting: Option<Box<SettingCall>>,
    /// `session/close`.
    pub close: Call<()>,
    /// Why the stream cannot be used any longer.
    pub fault: Option<Fault>,
    /// The agent closed its standard output.
    pub is_eof: bool,
}

impl Default for Acp {
    fn default() -> Self {
        Self {
            initialize: Call::NotMade,
            login: Call::NotMade,
            open: Call::NotMade,
            opened_as: None,
            options: Snapshot::default(),
            tried: None,
            setting: None,
            close: Call::NotMade,
            fault: None,
            is_eof: false,
        }
    }
}

/// A setting that is under way.
#[derive(Clone, Debug, PartialEq)]
pub struct SettingCall {
    /// For which turn.
    pub turn: Uid,
    /// What is set.
    pub setting: Setting,
    /// What the turn wants in all, to judge the outcome by.
    pub wanted: Wanted,
    /// How the options stood when the agent was asked: some agents tell of the change before they
    /// answer.
    pub before: Snapshot,
    /// When the agent was asked.
    pub asked_at: Mono,
}

/// What an agent told in `initialize`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Initialized {
    /// The protocol version that it speaks.
    pub protocol_version: u64,
    /// What it can do.
    pub capabilities: Capabilities,
    /// The ways to log in that it offers, ids and names, for messages.
    pub auth_methods: Vec<String>,
    /// Its version, as it tells it.
    pub version: Option<String>,
    /// Its capabilities as it wrote them, for the record; nothing decides by them.
    pub declared: Option<serde_json::Value>,
}

/// An open ACP session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The agent's own id of it.
    pub acp_session_id: String,
}

/// How an ACP session is opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenAs {
    /// `session/new`.
    New,
    /// `session/resume` of this id.
    Resume(String),
    /// `session/load` of this id.
    Load(String),
}

/// Why an agent's output cannot be used any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fault {
    /// A line over the frame limit.
    FrameTooLarge,
    /// A thousand bad lines in a minute without a valid one.
    ProtocolFailure,
}

impl Fault {
    /// The reason as it stands in the record.
    #[must_use]
    pub const fn reason(self) -> &'static str {
        match self {
            Self::FrameTooLarge => "FrameTooLarge",
            Self::ProtocolFailure => "ProtocolFailure",
        }
    }
}

/// The prompt that the agent was last given.
#[derive(Clone, Debug, PartialEq)]
pub struct Prompt {
    /// Of which turn.
    pub turn: Uid,
    /// When the whole line was written; `None` while it is being written.
    pub written_at: Option<Mono>,
    /// When we asked the connection to cancel it.
    pub cancel_asked_at: Option<Mono>,
    /// The response, once everything before it is durable.
    pub end: Option<PromptEnd>,
    /// The response's size in bytes, as far as it is durable.
    pub response_bytes: u64,
    /// Tool calls and messages begun.
    pub steps: u32,
    /// Why the turn's output could not be stored.
    pub persist_failure: Option<String>,
    /// What the turn may use, as it was when the prompt was given.
    pub budget: RunBudget,
    /// What it used so far, by the agent's reports.
    pub spent: Spent,
    /// Since when it has used more than that; of the time that it takes nothing is said here.
    pub over_budget_since: Option<Mono>,
}

impl Prompt {
    /// The prompt of a turn, as it is before anything of it was written.
    #[must_use]
    pub fn new(turn: Uid, budget: RunBudget) -> Self {
        Self {
            turn,
            written_at: None,
            cancel_asked_at: None,
            end: None,
            response_bytes: 0,
            steps: 0,
            persist_failure: None,
            budget,
            spent: Spent::default(),
            over_budget_since: None,
        }
    }
}

/// The response to a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct PromptEnd {
    /// What the agent said.
    pub answer: Result<StopReason, CallFailure>,
    /// Whether it came after our `session/cancel`.
    pub is_after_cancel: bool,
    /// As the agent reports it.
    pub usage: Option<serde_json::Value>,
}

/// Why an agent ended a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// `end_turn`.
    EndTurn,
    /// `max_tokens`.
    MaxTokens,
    /// `max_turn_requests`.
    MaxTurnRequests,
    /// `refusal`.
    Refusal,
    /// `cancelled`.
    Cancelled,
    /// A word that this version does not know.
    Unknown(String),
}

impl StopReason {
    /// The reason as the agent wrote it.
    #[must_use]
    pub fn as_str(&self) -> &str {
        match self {
            Self::EndTurn => "end_turn",
            Self::MaxTokens => "max_tokens",
            Self::MaxTurnRequests => "max_turn_requests",
            Self::Refusal => "refusal",
            Self::Cancelled => "cancelled",
            Self::Unknown(text) => text,
        }
    }
}

/// Why a start failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StartFailure {
    /// One CamelCase word.
    pub reason: &'static str,
    /// What went wrong, with the last lines of standard error where there are any.
    pub message: String,
}

/// Where the stop ladder stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stop {
    /// The last rung that was taken.
    pub rung: Rung,
    /// When.
    pub since: Mono,
    /// Kills that did not empty the tree in time.
    pub unconfirmed: u32,
    /// Why the process is stopped.
    pub cause: StopCause,
}

/// The rungs of the stop ladder, from soft to hard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rung {
    /// `session/cancel`.
    Cancel,
    /// `session/close`.
    Close,
    /// Standard input is closed.
    Eof,
    /// SIGTERM and SIGCONT to the agent's group.
    Term,
    /// The whole tree is killed.
    Kill,
}

/// Why a process is stopped; decides what becomes of its session and turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopCause {
    /// The session ends; the record says how.
    End,
    /// No turn for too long.
    Idle,
    /// The start failed or took too long.
    StartFailed(StartFailure),
    /// The agent did not confirm the cancel of a turn.
    Unconfirmed,
    /// The agent closed its output or broke the protocol.
    Broken,
    /// The agent still has a prompt whose turn has ended.
    Abandoned,
    /// The daemon stops.
    Shutdown,
}

impl World {
    /// The stop times of the agent, or the defaults where the agent is gone.
    #[must_use]
    pub fn stop_times(&self) -> StopTimes {
        match &self.agent {
            Finding::Found(agent) => agent.spec.stop.clone(),
            Finding::Missing(_) | Finding::Unknown => StopTimes::default(),
        }
    }

    /// The process in this daemon's hands.
    #[must_use]
    pub fn live(&self) -> Option<&Live> {
        match &self.process {
            Process::Live(live) => Some(live),
            Process::Absent | Process::NotStarted { .. } | Process::Unproven => None,
        }
    }

    /// Whether a process of the session could still run. Unknown counts as yes.
    #[must_use]
    pub fn may_have_running_process(&self) -> bool {
        match &self.process {
            Process::Absent | Process::NotStarted { .. } => false,
            Process::Live(live) => !matches!(live.stage, Stage::Empty { .. }),
            Process::Unproven => true,
        }
    }
}
