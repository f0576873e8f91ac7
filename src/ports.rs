//! Ports: what the API may read of the running daemon without naming the modules that run it.
//!
//! The controller, the manifests and the server implement these; `rest` (and later `mcp`) read
//! them. Nothing here writes but [`Secrets`], which are no records: desired state goes through
//! `admission` alone.

use std::path::PathBuf;

use bytes::Bytes;
use tokio::sync::{broadcast, watch};

use crate::api::machine::Guard;
use crate::api::process::ProcessSample;
use crate::api::session::ProcessRecord;
use crate::api::turn::Activity;
use crate::api::{Agent, Condition, Name, Namespace, Session, Time, Uid};

/// What is known of a session's running turn between two writes of its status.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LiveActivity {
    /// The turn.
    pub turn: Option<Uid>,
    /// When the agent last sent anything.
    pub last_activity_at: Option<Time>,
    /// When it last got on.
    pub last_progress_at: Option<Time>,
    /// The last three activities.
    pub recent: Vec<Activity>,
}

/// Reads what the controller holds in memory.
pub trait Live: Send + Sync {
    /// The activity of a session that has a process.
    fn activity(&self, session: &Uid) -> Option<LiveActivity>;

    /// The last 128 KiB that a session's agent wrote to standard error, of its newest process.
    fn stderr(&self, session: &Uid) -> Option<Bytes>;

    /// The process tree of a session as it is now, parents first.
    fn processes(&self, _process: &ProcessRecord) -> Vec<ProcessSample> {
        Vec::new()
    }

    /// The durable length in bytes of a turn's transcript, and each change of it; `None` if the
    /// turn is not running: then its transcript is complete. The sender goes with the turn.
    fn transcript(&self, turn: &Uid) -> Option<watch::Receiver<u64>>;
}

/// A manifest file and what became of it.
#[derive(Clone, Debug, PartialEq, serde::Serialize, schemars::JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// Its path, below its directory.
    pub path: String,
    /// How many documents it holds.
    pub documents: u32,
    /// `Session/default/name` of each object that it has.
    pub objects: Vec<String>,
    /// Why it is not applied: `file:line:column: field: what is wrong, what was expected`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it was last applied whole.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_at: Option<Time>,
}

/// Reads what the watched directories hold.
pub trait Manifests: Send + Sync {
    /// Every file, in path order.
    fn manifests(&self) -> Vec<Manifest>;
}

/// Reads how the daemon is.
pub trait Health: Send + Sync {
    /// Whether it is ready: leftovers gone, every manifest directory listed and applied once.
    fn is_ready(&self) -> bool;

    /// `StoreAvailable, DiskPressure, ClockSteady, WatchNative`.
    fn conditions(&self) -> Vec<Condition>;

    /// Which guards the machine has, as the daemon sees it.
    fn guards(&self) -> Vec<Guard> {
        Vec::new()
    }
}

/// Looks at what a launch would find on this machine now, before anything is promised. Starts
/// nothing.
pub trait Inputs: Send + Sync {
    /// The agent's executable, on the PATH that its process would get. `None`: the command names it
    /// relative to the session's directory, so nothing can be said without one.
    ///
    /// # Errors
    ///
    /// Where it was looked for, in a sentence.
    fn executable(&self, agent: &Agent) -> Result<Option<PathBuf>, String>;

    /// A session's directories without links in them: `cwd` first, duplicates left out.
    ///
    /// # Errors
    ///
    /// Which is not there or cannot be entered, and what was expected.
    fn directories(&self, cwd: &str, additional: &[String]) -> Result<Vec<String>, String>;
}

/// What a caller that the daemon does not run is told on its streams: that a turn has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamNotice {
    /// The turn.
    pub turn: Uid,
    /// What is told: ids and phases, nothing that a child wrote.
    pub data: serde_json::Value,
}

/// The streams that clients of external sessions keep open.
#[async_trait::async_trait]
pub trait Streams: Send + Sync {
    /// Whether a session has one that takes notices.
    fn is_open(&self, session: &Uid) -> bool;

    /// Writes a notice to each of a session's; whether one took it whole. Bounded in time.
    async fn tell(&self, session: &Uid, notice: &StreamNotice) -> bool;

    /// Where a session's record is, whenever one of its streams opens.
    fn opened(&self) -> broadcast::Receiver<(Namespace, Name)>;
}

/// Before a child is made: may change it, or refuse it.
pub const SPAWN_PRE_CREATE: &str = "spawn.pre_create";
/// A child was made.
pub const SPAWN_CREATED: &str = "spawn.created";
/// A child ends because its parent did.
pub const SPAWN_PARENT_STOPPED: &str = "spawn.parent_stopped";
/// A child's ttl ended.
pub const SPAWN_TTL_EXPIRED: &str = "spawn.ttl_expired";
/// A child has ended, and no process of it is left.
pub const SPAWN_REAPED: &str = "spawn.reaped";

/// The operator's programs before and behind what becomes of children.
#[async_trait::async_trait]
pub trait Hooks: Send + Sync {
    /// Whether there is a program for an event.
    fn has(&self, event: &str) -> bool;

    /// Asks the programs of an event in their order; each is asked with the `child` that the one
    /// before it answered. Gives the last input.
    ///
    /// # Errors
    ///
    /// A program refused or failed; why, in a sentence.
    async fn ask(&self, event: &str, input: serde_json::Value)
    -> Result<serde_json::Value, String>;

    /// Tells the programs of an event. Waits for nothing; over a bound it is dropped.
    fn tell(&self, event: &'static str, input: serde_json::Value);
}

/// What the programs of an event are told of a child: whose it is and how it stands, none of what
/// it was asked.
#[must_use]
pub fn of_child(event: &str, child: &Session) -> serde_json::Value {
    let (metadata, spec, status) = (&child.metadata, &child.spec, &child.status);
    serde_json::json!({
        "event": event,
        "child": {
            "sessionId": metadata.uid,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "agent": spec.agent,
            "ttl": spec.ttl,
            "permissions": spec.permissions,
            "lineage": status.lineage,
            "reason": status.end.as_ref().map(|end| end.reason.as_str()),
        },
    })
}

/// Why a secret was not kept. No variant holds a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SecretFault {
    /// The name or the value is none.
    #[error("{0}")]
    Invalid(String),
    /// There are too many.
    #[error("{0}")]
    Full(String),
    /// The vault's files or its key cannot be used.
    #[error("{0}")]
    Unusable(String),
}

/// Secrets at rest. Values go in; none comes out here.
pub trait Secrets: Send + Sync {
    /// All names, in order.
    ///
    /// # Errors
    ///
    /// [`SecretFault::Unusable`].
    fn names(&self) -> Result<Vec<String>, SecretFault>;

    /// Keeps a value on disk; whether the name was new.
    ///
    /// # Errors
    ///
    /// [`SecretFault`].
    fn set(&self, name: &str, value: String) -> Result<bool, SecretFault>;

    /// Removes a value; whether there was one.
    ///
    /// # Errors
    ///
    /// [`SecretFault`].
    fn delete(&self, name: &str) -> Result<bool, SecretFault>;
}
