//! What `kubectl get` shows of our kinds on a real cluster: the columns of our own tables, as far
//! as a JSONPath reaches them.

use serde_json::{Value, json};

use crate::api::Kind;

struct Column {
    name: &'static str,
    kind: &'static str,
    path: &'static str,
    /// 1 for columns of `-o wide`.
    priority: u8,
}

const fn column(name: &'static str, kind: &'static str, path: &'static str) -> Column {
    Column { name, kind, path, priority: 0 }
}

const fn wide(name: &'static str, kind: &'static str, path: &'static str) -> Column {
    Column { name, kind, path, priority: 1 }
}

const AGE: Column = column("Age", "date", ".metadata.creationTimestamp");

const AGENT: &[Column] = &[
    column("Enabled", "boolean", ".spec.enabled"),
    column("Installed", "boolean", ".status.installed"),
    column("Version", "string", ".status.version"),
    AGE,
    wide("Executable", "string", ".status.executable"),
];
const WORKSPACE: &[Column] = &[AGE, wide("Main", "string", ".spec.folders[0].path")];
const ROLE: &[Column] = &[
    column("Description", "string", ".spec.description"),
    AGE,
    wide("Model", "string", ".spec.model"),
    wide("Permissions", "string", ".spec.permissions"),
    wide("Sandbox", "string", ".spec.sandboxMode"),
];
const SESSION: &[Column] = &[
    column("Agent", "string", ".spec.agent"),
    column("Phase", "string", ".status.phase"),
    column("Reason", "string", ".status.reason"),
    column("Turn", "string", ".status.activeTurn"),
    column("Queued", "integer", ".status.queuedTurns"),
    AGE,
    wide("Cwd", "string", ".status.scope.cwd"),
    wide("Parent", "string", ".spec.parent"),
    wide("Pid", "integer", ".status.process.pid"),
    wide("Activity", "date", ".status.lastActivityAt"),
    wide("Expires", "string", ".status.lineage.ttlExpiresAt"),
    wide("Message", "string", ".status.message"),
];
const TURN: &[Column] = &[
    column("Session", "string", ".spec.session"),
    column("Phase", "string", ".status.phase"),
    column("Code", "string", ".status.code"),
    column("Bytes", "integer", ".status.responseBytes"),
    AGE,
    wide("Delivery", "string", ".status.delivery"),
    wide("Response", "string", ".status.responseId"),
    wide("Message", "string", ".status.message"),
];
const PERMISSION: &[Column] = &[
    column("Session", "string", ".spec.session"),
    column("Tool", "string", ".spec.toolCall.title"),
    column("Kind", "string", ".spec.toolCall.kind"),
    column("Phase", "string", ".status.phase"),
    column("Decision", "string", ".spec.decision"),
    AGE,
    wide("Turn", "string", ".spec.turn"),
    wide("Location", "string", ".spec.toolCall.locations[0].path"),
    wide("Expires", "string", ".status.expiresAt"),
    wide("Message", "string", ".status.message"),
];

pub(super) fn of(kind: Kind) -> Value {
    let columns = match kind {
        Kind::Agent => AGENT,
        Kind::Workspace => WORKSPACE,
        Kind::Role => ROLE,
        Kind::Session => SESSION,
        Kind::Turn => TURN,
        Kind::PermissionRequest => PERMISSION,
        Kind::Event | Kind::Namespace => &[],
    };
    let shown = columns.iter().map(|column| {
        let mut value = json!({
            "name": column.name,
            "type": column.kind,
            "jsonPath": column.path,
        });
        if column.priority > 0 {
            value["priority"] = json!(column.priority);
        }
        value
    });
    shown.collect()
}
