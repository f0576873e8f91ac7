//! `Turn`: one prompt turn of a session, owned by it.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::session::{ConfigValue, RunBudget};
use super::{Code, FieldErrors, Kind, Name, Object, Spec, Time, Uid, validate};

/// A `Turn` record.
pub type Turn = Object<TurnSpec>;

/// Desired state of a `Turn`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TurnSpec {
    /// The session's name.
    pub session: Name,
    /// The prompt, if it is at most 64 KiB. Either this, `promptBlocks` or `promptBlob`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt: Option<String>,
    /// The prompt as ACP content blocks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_blocks: Option<Vec<Value>>,
    /// Set by the daemon in place of a prompt over 64 KiB, which is stored as a blob of the turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_blob: Option<PromptBlob>,
    /// What happens when a limit is reached.
    pub admission: Admission,
    /// When it is given to a busy agent.
    pub deliver_at: DeliverAt,
    /// Whether nobody waits for it.
    pub background: bool,
    /// The model for this turn and on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The thought level for this turn and on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thought_level: Option<String>,
    /// Values of live options by exact id; strings and booleans.
    pub config: BTreeMap<String, Value>,
    /// Who made it.
    pub source: TurnSource,
    /// Limits of this turn, over the session's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run_budget: Option<RunBudget>,
    /// Same key and same body: same turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency_key: Option<String>,
    /// Only goes forward.
    pub desired_state: TurnDesiredState,
}

impl Default for TurnSpec {
    fn default() -> Self {
        Self {
            session: Name::default(),
            prompt: None,
            prompt_blocks: None,
            prompt_blob: None,
            admission: Admission::default(),
            deliver_at: DeliverAt::default(),
            background: true,
            model: None,
            thought_level: None,
            config: BTreeMap::new(),
            source: TurnSource::default(),
            run_budget: None,
            idempotency_key: None,
            desired_state: TurnDesiredState::default(),
        }
    }
}

/// A prompt that is stored as a blob.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PromptBlob {
    /// Its size in bytes.
    pub bytes: u64,
    /// Whether the blob holds a JSON list of content blocks (else text).
    #[serde(default)]
    pub blocks: bool,
}

/// What happens when a limit is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Admission {
    /// It is refused.
    Immediate,
    /// It waits.
    #[default]
    Queue,
}

/// When a turn is given to a busy agent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DeliverAt {
    /// After the running turn.
    #[default]
    Turn,
    /// At the running turn's next step.
    Step,
}

/// Who made a turn.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TurnSource {
    /// Which way it came.
    pub kind: SourceKind,
    /// The uid of the session that asked for it, if one did. Set by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub caller: Option<Uid>,
    /// SHA-256 of what was asked for, in 64 hex digits: a repetition by `idempotencyKey` must ask for
    /// the same. Set by the daemon.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_sha256: Option<String>,
}

/// Which way a turn came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SourceKind {
    /// API, CLI or a manifest.
    #[default]
    Operator,
    /// The spawn toolset.
    Spawn,
    /// The fleet toolset.
    FleetRelay,
    /// The subagent toolset.
    Subagent,
    /// A notice of the daemon's own.
    Notice,
}

/// What users want of a turn. Only goes forward: the order is the lattice.
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
pub enum TurnDesiredState {
    /// It runs to its end.
    #[default]
    Running,
    /// It is cancelled.
    Cancelled,
}

/// Observed state of a `Turn`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct TurnStatus {
    /// Where it stands.
    pub phase: TurnPhase,
    /// Whether the agent was given the prompt.
    pub delivery: Delivery,
    /// The agent's stop reason, as it wrote it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop_reason: Option<String>,
    /// Why it did not complete.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<Code>,
    /// Why, in one word (`WaitingForCapacity`, ...).
    #[serde(skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// Why, in a sentence.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Who cancels it and why. Set before the agent is told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cancel: Option<Cancel>,
    /// The options that it ran with.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<ConfigValue>,
    /// Why its configuration did not resolve.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub issues: Vec<Value>,
    /// Options that could not be set and did not hold it back.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<ConfigWarning>,
    /// Its response, readable from the first byte on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub response_id: Option<Uid>,
    /// The response's size.
    pub response_bytes: u64,
    /// When the loop took it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the prompt was written whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dispatched_at: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Time>,
    /// When the agent last sent anything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_activity_at: Option<Time>,
    /// When the agent last got on: text, thought or a tool call's change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_progress_at: Option<Time>,
    /// The last three activities.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recent_activity: Vec<Activity>,
    /// What it waits for somebody to decide: the oldest such request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waiting_for: Option<WaitingFor>,
    /// Tool calls and messages begun.
    pub steps: u32,
    /// As the agent reports it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usage: Option<Value>,
    /// Whether the session that asked for it was told of its end. Absent: it is not to be told.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub notice: Option<Notice>,
}

/// What became of the word to the caller that its background turn has ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Notice {
    /// How far it got. Only goes forward; it is sent at most once.
    pub state: NoticeState,
    /// Since when it stands there.
    pub at: Time,
    /// The turn of the caller's that it was sent with, where the daemon runs the caller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn: Option<Name>,
}

/// How far a notice got.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum NoticeState {
    /// It waits to be sent.
    Pending,
    /// It is being sent; it is never sent again.
    Dispatched,
    /// The caller's agent has it, or it was written to an open stream of the caller's.
    Delivered,
    /// Whether the caller has it cannot be known, or it surely does not any more.
    DeliveryUnknown,
}

impl NoticeState {
    /// Whether it keeps this state for ever.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Dispatched => false,
            Self::Delivered | Self::DeliveryUnknown => true,
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for this shape")]
pub(super) const fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Where a turn stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TurnPhase {
    /// Admitted, not taken.
    #[default]
    Pending,
    /// Taken by the loop: a process is started, the session opened, options set, or (delivery
    /// `Unknown`) the prompt is being written.
    Starting,
    /// The whole prompt is written.
    Running,
    /// It is being cancelled.
    Cancelling,
    /// The agent ended it.
    Completed,
    /// It failed.
    Failed,
    /// It was cancelled.
    Cancelled,
    /// A clock or a budget ended it.
    Expired,
    /// The daemon stopped in it.
    Interrupted,
    /// It was never given to the agent and never will be.
    Discarded,
}

impl TurnPhase {
    /// Whether the turn keeps this phase for ever.
    #[must_use]
    pub const fn is_final(self) -> bool {
        match self {
            Self::Pending | Self::Starting | Self::Running | Self::Cancelling => false,
            Self::Completed
            | Self::Failed
            | Self::Cancelled
            | Self::Expired
            | Self::Interrupted
            | Self::Discarded => true,
        }
    }
}

/// Whether the agent was given a prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Delivery {
    /// Surely not.
    #[default]
    NotSent,
    /// Cannot be known: never sent again.
    Unknown,
    /// The whole line was written.
    Sent,
}

/// Who cancels a turn and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Cancel {
    /// Who asked.
    pub by: CancelBy,
    /// Why, in a sentence.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub reason: String,
    /// When.
    pub at: Time,
}

/// Who asked for a turn's cancel; decides its final phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum CancelBy {
    /// The session's parent.
    Parent,
    /// An operator, through API, CLI or file.
    Operator,
    /// Another session, through the fleet toolset.
    FleetCancel,
    /// A steer that interrupts.
    Interrupt,
    /// The call that made the turn was cancelled.
    CallCancelled,
    /// The parent stopped.
    ParentStopped,
    /// The parent was deleted.
    ParentDeleted,
    /// The session's ttl.
    Ttl,
    /// The turn's budget.
    Budget,
    /// No traffic for too long.
    Inactivity,
    /// The agent itself, unasked.
    Agent,
}

/// An option that could not be set and did not hold the prompt back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigWarning {
    /// The option.
    pub option_id: String,
    /// What the agent said.
    pub message: String,
}

/// Something that the agent did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Activity {
    /// `message`, `thought`, `tool`, `plan`, ...
    pub kind: String,
    /// When.
    pub at: Time,
    /// A tool call's title, cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A request for permission that a turn waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(inline)]
pub struct WaitingFor {
    /// The name of the `PermissionRequest`.
    pub permission: Name,
    /// What the agent wants to do: the tool call's title, else its kind, in the agent's own words.
    pub tool: String,
    /// Since when.
    pub since: Time,
}

impl Spec for TurnSpec {
    type Status = TurnStatus;
    const KIND: Kind = Kind::Turn;

    fn validate(&self) -> Result<(), FieldErrors> {
        validate::turn::spec(self)
    }

    fn validate_update(&self, old: &Self) -> Result<(), FieldErrors> {
        validate::turn::update(old, self)
    }
}
