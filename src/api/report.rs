//! `ReconcileReport`: what one pass saw, decided and did. Flat, read-only, served by the API; the
//! last 32 per object are kept, and 10000 in all.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::event::ObjectReference;
use super::{Dur, Time, Uid};

/// One pass of the loop over one object, where anything was done, refused or failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ReconcileReport {
    /// The object.
    pub object: ObjectReference,
    /// Its uid.
    pub uid: Uid,
    /// The generation that was acted for.
    pub generation: i64,
    /// Counts the reports of this object, from 1.
    pub sequence: u64,
    /// What set the pass off.
    pub trigger: Trigger,
    /// What was seen, in one line.
    pub observed: String,
    /// What differed from the desired state.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub diff: Vec<String>,
    /// What was done, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepReport>,
    /// How it stands after the pass.
    pub outcome: Outcome,
    /// Why, in a sentence: what is waited for, or what failed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub why: String,
    /// When the object is looked at again at the latest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub requeue_after: Option<Dur>,
    /// The earliest deadline of the object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_deadline: Option<Time>,
    /// When the pass began.
    pub started_at: Time,
    /// How long it took.
    pub duration_ms: u64,
}

/// One step of a pass.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct StepReport {
    /// The step's name, `Launch`.
    pub name: String,
    /// How it went.
    pub outcome: StepOutcome,
    /// How long it took.
    pub duration_ms: u64,
    /// What went wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// How a step went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum StepOutcome {
    /// It was carried out.
    Done,
    /// It was refused or failed.
    Failed,
    /// An earlier one failed.
    Skipped,
}

/// What set a pass off.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Trigger {
    /// A record changed.
    Watch,
    /// A deadline or a back-off ended.
    Timer,
    /// The process or its agent did something.
    Process,
    /// The periodic backstop.
    Resync,
    /// The daemon started.
    Boot,
}

/// How an object stands after a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Outcome {
    /// As desired.
    Converged,
    /// A step was done and the next one follows.
    Progressing,
    /// For something outside: a turn's end, a reference, capacity.
    Waiting,
    /// A failed step is tried again later.
    BackOff,
    /// It cannot be reached without a change.
    Failed,
}
