//! `Session`: a conversation with an agent, kept as a record.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::agent::{McpServer, Permissions};
pub use super::restarts::Restarts;
use super::turn::Cancel;
use super::workspace::Folder;
use super::{
    CallerToken, Code, Conditions, Dur, FieldErrors, Incarnation, Kind, Name, Object, RoleSpec,
    Spec, Time, Uid, validate,
};

/// A `Session` record.
pub type Session = Object<SessionSpec>;

/// Desired state of a `Session`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionSpec {
    /// Who runs it.
    pub provider: Provider,
    /// The `Agent` that runs it; required for `acp`.
    pub agent: String,
    /// The `Role` that it plays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// The session that made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
    /// The `Workspace` whose folders it works in. Either this or `cwd`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// The one folder of the workspace that it works in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub folder: Option<String>,
    /// The directory that it works in. Either this or `workspace`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
    /// Directories beside `cwd`.
    pub additional_directories: Vec<String>,
    /// A title for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The first turn's prompt, at most 64 KiB.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The first turn's prompt as ACP content blocks. Either this or `prompt`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_blocks: Option<Vec<Value>>,
    /// The model, resolved against the agent's live options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The thought level, resolved against the agent's live options.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought_level: Option<String>,
    /// Values of live options by exact id; strings and booleans.
    pub config: BTreeMap<String, Value>,
    /// What the agent may do; the agent's ceiling if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub permissions: Option<Permissions>,
    /// Text before the first prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub persona: Option<String>,
    /// Which tools the agent may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_filter: Option<ToolFilter>,
    /// MCP servers beside the agent's.
    pub mcp_servers: Vec<McpServer>,
    /// Whether and how far it may delegate.
    pub delegation: Delegation,
    /// Limits of each turn.
    pub run_budget: RunBudget,
    /// How long it may live, from its creation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl: Option<Dur>,
    /// How long its process is kept without a turn; 0 = off.
    pub idle_timeout: Dur,
    /// How long a turn may be without ACP traffic; 0 = off.
    pub turn_inactivity_timeout: Dur,
    /// The same while a tool call runs; `turnInactivityTimeout` if absent; 0 = off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tool_inactivity_timeout: Option<Dur>,
    /// How long the record stays after its end; 0 = for ever.
    pub ttl_after_finished: Dur,
    /// Whether it stops when its parent does.
    pub auto_stop_on_parent: bool,
    /// Whether its parent is told of ended turns.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notify_parent: Option<bool>,
    /// What happens when the agent no longer knows the session.
    pub on_session_lost: OnSessionLost,
    /// Only goes forward.
    pub desired_state: DesiredState,
}

impl Default for SessionSpec {
    fn default() -> Self {
        Self {
            provider: Provider::default(),
            agent: String::new(),
            role: None,
            parent: None,
            workspace: None,
            folder: None,
            cwd: None,
            additional_directories: Vec::new(),
            title: None,
            prompt: None,
            prompt_blocks: None,
            model: None,
            thought_level: None,
            config: BTreeMap::new(),
            permissions: None,
            persona: None,
            tool_filter: None,
            mcp_servers: Vec::new(),
            delegation: Delegation::default(),
            run_budget: RunBudget::default(),
            ttl: None,
            idle_timeout: Dur::from_secs(15 * 60),
            turn_inactivity_timeout: Dur::from_secs(10 * 60),
            tool_inactivity_timeout: None,
            ttl_after_finished: Dur::from_secs(168 * 3600),
            auto_stop_on_parent: true,
            notify_parent: None,
            on_session_lost: OnSessionLost::default(),
            desired_state: DesiredState::default(),
        }
    }
}

/// Who runs a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Provider {
    /// An ACP agent of ours.
    #[default]
    Acp,
    /// A fork of the parent's ACP session.
    Fork,
    /// A caller that the daemon does not run.
    External,
}

/// Which tools a session's agent may use.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ToolFilter {
    /// Only these.
    pub allow: Vec<String>,
    /// None of these.
    pub deny: Vec<String>,
}

/// Whether and how far a session may delegate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Delegation {
    /// Whether it gets a token of its own.
    pub enabled: bool,
    /// How deep its children may go.
    pub max_depth: u32,
    /// Children with an unfinished turn.
    pub max_children: u32,
    /// The toolsets of its token.
    pub toolsets: Vec<Toolset>,
    /// What its token may do to the fleet.
    pub control_mode: ControlMode,
}

impl Default for Delegation {
    fn default() -> Self {
        Self {
            enabled: false,
            max_depth: 1,
            max_children: 5,
            toolsets: vec![Toolset::Spawn],
            control_mode: ControlMode::default(),
        }
    }
}

/// A set of MCP tools.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Toolset {
    /// Hand a task to another agent.
    Spawn,
    /// See and address other live sessions.
    Fleet,
    /// Reply jobs.
    Jobs,
    /// Configured delegation tools.
    Subagent,
    /// Wait for and list children.
    Orchestrate,
}

impl Toolset {
    /// Whether this version has its tools. The others are names that a token may have already.
    #[must_use]
    pub const fn is_served(self) -> bool {
        match self {
            Self::Spawn => true,
            Self::Fleet | Self::Jobs | Self::Subagent | Self::Orchestrate => false,
        }
    }
}

/// What a token may do to other sessions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ControlMode {
    /// List and inspect.
    #[default]
    ReadOnly,
    /// And send and steer.
    Message,
    /// And cancel.
    Full,
}

/// Limits of each turn of a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RunBudget {
    /// Tool calls and message boundaries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_steps: Option<u32>,
    /// Wall time from the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Dur>,
    /// By the agent's usage reports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// By the agent's usage reports, in its currency.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_cost: Option<f64>,
}

/// What happens when the agent no longer knows a session.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum OnSessionLost {
    /// The session is `Expired`.
    #[default]
    Expire,
    /// A new ACP session takes over; a condition says that its memory is gone.
    New,
}

/// What users want of a session. Only goes forward: the order is the lattice.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum DesiredState {
    /// It takes turns.
    #[default]
    Running,
    /// It is stopped and stays as a record.
    Cancelled,
    /// It goes, with all that is below it.
    Deleted,
}

/// Observed state of a `Session`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionStatus {
    /// Derived from the rest by one table; nothing decides by it.
    pub phase: SessionPhase,
    /// Why, in one word.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The generation that the daemon last acted for.
    pub observed_generation: i64,
    /// `ProcessReady`, `SessionReady`, ...
    #[serde(skip_serializing_if = "Conditions::is_empty")]
    pub conditions: Conditions,
    /// How it ended. Set once, before anything of the end is carried out, and never taken back:
    /// a session with an end never starts a process again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<SessionEnd>,
    /// Who asked for its end through `desiredState`, and why. Set with the first such wish.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
    /// When the end was complete: no process of its tree was left.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// The agent's own id of the session.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub acp_session_id: Option<String>,
    /// Whether the agent was ever given a prompt in this ACP session: then losing it loses memory.
    pub prompted: bool,
    /// Whether the agent of this ACP session took what it is told before the first prompt.
    pub introduced: bool,
    /// Whether a new ACP session took the place of one that the agent lost.
    pub has_lost_memory: bool,
    /// Which run of a process this is.
    pub incarnation: Incarnation,
    /// The process that may exist. Absent: none exists.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessRecord>,
    /// The directories, pinned at the first launch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scope: Option<Scope>,
    /// The role as it was when it was first found; a later change is for new sessions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<Box<RoleSpec>>,
    /// Where it stands in the tree of sessions.
    pub lineage: Lineage,
    /// The tokens by which its owner calls the daemon.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tokens: Vec<CallerToken>,
    /// The turn that has the session now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub active_turn: Option<Name>,
    /// Turns that wait.
    pub queued_turns: u32,
    /// The turn that ended last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_turn: Option<Name>,
    /// Its response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latest_response_id: Option<Uid>,
    /// How many turns the session's own record made: the first prompt's.
    pub turns_made: u64,
    /// Turns that notices made since the last prompt from elsewhere.
    #[serde(skip_serializing_if = "super::turn::is_zero")]
    pub wakes: u32,
    /// The live options as they stood last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<ConfigValue>,
    /// What the agent can do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capabilities: Option<Capabilities>,
    /// Tokens and cost, as far as the agent reports them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Value>,
    /// Of a session without a parent: the same of its whole tree, gone sessions too.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tree_usage: Option<Value>,
    /// Failed starts in a row, for the back-off.
    pub restarts: Restarts,
    /// When the agent last sent anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_activity_at: Option<Time>,
    /// Since when it has no turn; the idle clock starts here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idle_since: Option<Time>,
    /// From when its ttl counts, if that is not its creation: the wall clock was set back between two
    /// daemons, so the creation lies ahead of this clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_counts_from: Option<Time>,
    /// The earliest of its deadlines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_deadline: Option<Time>,
}

impl Session {
    /// When its life ends by its ttl, if it has one.
    #[must_use]
    pub fn ttl_ends_at(&self) -> Option<Time> {
        let ttl = self.spec.ttl.filter(|ttl| !ttl.is_zero())?;
        let from = self.status.ttl_counts_from.or(self.metadata.creation_timestamp)?;
        Some(from.plus(ttl.get()))
    }
}

/// A session's phase, for people: see `plan::status` for the one table that derives it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum SessionPhase {
    /// Something that it refers to is not there yet, or a start waits for its back-off.
    #[default]
    Pending,
    /// A process is being started for a turn.
    Starting,
    /// It waits for a turn.
    Idle,
    /// A turn runs.
    Running,
    /// A turn is being cancelled, or the process stopped.
    Cancelling,
    /// It has no process and can be gone on with.
    Hibernated,
    /// It was stopped.
    Stopped,
    /// It could not be started.
    Failed,
    /// It cannot go on.
    Expired,
    /// It is being deleted.
    Terminating,
}

/// How a session ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SessionEnd {
    /// The final phase.
    pub outcome: EndOutcome,
    /// `Cancelled`, `TtlExpired`, `IdleTimeout`, `Inactivity`, `StartupFailure`, `SessionLost`, ...
    pub reason: String,
    /// In a sentence.
    pub message: String,
    /// The code that its running turn ends with, if one ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// When it was decided.
    pub at: Time,
}

/// The final phases of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum EndOutcome {
    /// It was stopped on purpose or by a clock.
    Stopped,
    /// It never got to work.
    Failed,
    /// It cannot go on.
    Expired,
}

/// The durable record of a process that may exist.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ProcessRecord {
    /// How far it got.
    pub state: ProcessState,
    /// Which start of the session, from 1.
    pub attempt: u64,
    /// The machine's boot.
    pub boot_id: String,
    /// The nonce in the environment of the whole tree (`SPAWNLET_INSTANCE`).
    pub instance: String,
    /// The shim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shim_pid: Option<u32>,
    /// The agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The shim's start time in clock ticks since boot (proc_pid_stat(5), field 22).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_time: Option<u64>,
    /// The inode of the shim's pidfd: one per process and boot, Linux 6.9 and later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pidfd_inode: Option<u64>,
    /// The tree's cgroup directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
}

/// How far a recorded process got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum ProcessState {
    /// It is about to be started; whether it was is not known.
    Launching,
    /// The shim is recorded, the gate open.
    Running,
    /// The stop ladder runs.
    Stopping,
    /// Whether it exists could not be found out: counts as "might be running".
    Unknown,
}

/// A session's directories.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Scope {
    /// Canonical.
    pub cwd: String,
    /// Canonical, without duplicates and without `cwd`.
    #[serde(default)]
    pub additional_directories: Vec<String>,
    /// For people: the workspace and folder, or the path.
    #[serde(default)]
    pub label: String,
    /// The workspace's folders as they were when the session was made: what a child may choose from
    /// by `folderId`. Empty without a workspace.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub folders: Vec<Folder>,
}

/// Where a session stands in the tree of sessions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Lineage {
    /// The uppermost session's uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub root: Option<Uid>,
    /// The parent's uid.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parent: Option<Uid>,
    /// 0 for a root.
    pub depth: u32,
    /// The role that it plays.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub role: Option<String>,
    /// When its ttl ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_expires_at: Option<Time>,
    /// Whether it stops when its parent does. Absent without a parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub auto_stop_on_parent: Option<bool>,
    /// The idempotency key by which its parent made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spawn_key: Option<SpawnKey>,
}

/// An idempotency key and what it was used with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpawnKey {
    /// SHA-256 of the key; 64 hex digits.
    pub sha256: String,
    /// SHA-256 of the request.
    pub request_sha256: String,
}

/// A live option of the agent and its value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigValue {
    /// The exact id.
    pub id: String,
    /// For people.
    pub name: String,
    /// `select` or `boolean`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What it stands at.
    pub current_value: Value,
}

/// What an agent declared, as far as decisions need it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Capabilities {
    /// `loadSession`.
    pub load: bool,
    /// `sessionCapabilities.resume`.
    pub resume: bool,
    /// `sessionCapabilities.close`.
    pub close: bool,
    /// `sessionCapabilities.additionalDirectories`.
    pub additional_directories: bool,
    /// `sessionCapabilities.systemPrompt`.
    pub system_prompt: bool,
    /// `mcpCapabilities.http`.
    pub mcp_http: bool,
    /// `promptCapabilities.image`.
    pub image: bool,
    /// `promptCapabilities.audio`.
    pub audio: bool,
    /// `promptCapabilities.embeddedContext`.
    pub embedded_context: bool,
}

impl Spec for SessionSpec {
    type Status = SessionStatus;
    const KIND: Kind = Kind::Session;

    fn validate(&self) -> Result<(), FieldErrors> {
        validate::session::spec(self)
    }

    fn validate_update(&self, old: &Self) -> Result<(), FieldErrors> {
        validate::session::update(old, self)
    }
}
