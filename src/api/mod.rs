//! The records: what users want (`spec`) and what the daemon saw (`status`).
//!
//! One kind per file, each with its spec, its status, its defaults and its validation. Pure data:
//! no I/O, no clock, no randomness, so that the planner can be tested on values alone. These and
//! the wire modules' are the only serialisable types of the program.
//!
//! Source of names, fields and defaults: the record contract that ARCHITECTURE.md describes.

pub mod agent;
pub mod code;
pub mod command;
pub mod condition;
pub mod config;
pub mod event;
pub mod field;
#[cfg(test)]
mod golden;
pub mod hex;
pub mod ids;
pub mod kind;
pub mod machine;
pub mod metadata;
pub mod namespace;
pub mod naming;
pub mod object;
pub mod permission;
pub mod process;
pub mod quantity;
pub mod report;
pub mod restarts;
pub mod role;
pub mod schema;
pub mod secret;
pub mod session;
pub mod token;
pub mod turn;
pub mod validate;
pub mod workspace;

pub use agent::{Agent, AgentSpec, AgentStatus};
pub use code::Code;
pub use condition::{Condition, ConditionStatus, Conditions};
pub use config::Config;
pub use event::Event;
pub use field::{FieldError, FieldErrors, FieldPath};
pub use hex::hex;
pub use ids::{Incarnation, Name, Namespace, Uid};
pub use kind::Kind;
pub use metadata::{ObjectMeta, OwnerReference};
pub use namespace::{DEFAULT_NAMESPACE, NamespaceRecord, NamespaceSpec, NamespaceStatus};
pub use object::{Object, Spec};
pub use permission::{PermissionRequest, PermissionRequestSpec, PermissionRequestStatus};
pub use quantity::{Dur, Time};
pub use report::ReconcileReport;
pub use role::{Role, RoleSpec, RoleStatus};
pub use session::{Session, SessionSpec, SessionStatus};
pub use token::CallerToken;
pub use turn::{Turn, TurnSpec, TurnStatus};
pub use workspace::{Workspace, WorkspaceSpec, WorkspaceStatus};

/// The API group of every kind of ours.
pub const GROUP: &str = "spawnlet.dev";
/// The only served version of the group.
pub const VERSION: &str = "v1alpha1";
/// `GROUP/VERSION`, as it stands in a document's `apiVersion`.
pub const API_VERSION: &str = "spawnlet.dev/v1alpha1";
/// Holds a session's record until its process tree is proven empty; the daemon alone removes it.
pub const PROCESS_FINALIZER: &str = "spawnlet.dev/process";
/// The annotation that names the manifest file that an object belongs to. Only the daemon writes it.
pub const MANAGED_BY: &str = "spawnlet.dev/managed-by";
/// The annotation that asks for a fresh look at an agent's executable. A value that the status has
/// not answered yet is a request, whatever it is.
pub const CHECK_REQUESTED: &str = "spawnlet.dev/check-requested";
/// The annotation of a session whose agent is started once, without a prompt, and stopped again:
/// `spawnlet agents check --warm` makes them. Set with the session or never, whatever its value.
pub const FIRST_START: &str = "spawnlet.dev/first-start";
/// The annotation that tells in which order a session's tree goes: `Background` or `Orphan`.
/// Absent: `Foreground`.
pub const DELETION_PROPAGATION: &str = "spawnlet.dev/deletion-propagation";
