//! Tables: the columns of each kind, and rows as people read them.
//!
//! The CLI and kubectl print the cells as they are, so ages and durations are formatted here.

use serde_json::{Value, json};

use super::age;
use super::resource::Resource;
use super::view::{Include, partial};
use crate::api::{Kind, Time};

/// One column: its name, the schema's type, its format and its priority (above 0: `-o wide`).
struct Column {
    name: &'static str,
    kind: &'static str,
    format: &'static str,
    priority: u8,
    description: &'static str,
    cell: fn(&Value, Time) -> Value,
}

const fn column(
    name: &'static str,
    description: &'static str,
    cell: fn(&Value, Time) -> Value,
) -> Column {
    Column { name, kind: "string", format: "", priority: 0, description, cell }
}

impl Column {
    const fn wide(mut self) -> Self {
        self.priority = 1;
        self
    }

    const fn number(mut self) -> Self {
        self.kind = "integer";
        self
    }
}

const NAME: Column = Column {
    name: "Name",
    kind: "string",
    // Clients put the resource before the cells of this format.
    format: "name",
    priority: 0,
    description: "The name, unique in its namespace.",
    cell: |object, _| text(object, "/metadata/name"),
};
const AGE: Column = column("Age", "How long ago it was made.", |object, now| {
    since(object, "/metadata/creationTimestamp", now)
});

const AGENT: &[Column] = &[
    NAME,
    column("Enabled", "Whether sessions may use it.", |o, _| text(o, "/spec/enabled")),
    column("Installed", "Whether its executable was found.", |o, _| text(o, "/status/installed")),
    column("Version", "As it told in its last start.", |o, _| text(o, "/status/version")),
    AGE,
    column("Command", "How it is started.", |o, _| command(o)).wide(),
    column("Executable", "The program that was found.", |o, _| text(o, "/status/executable"))
        .wide(),
];
const WORKSPACE: &[Column] = &[
    NAME,
    column("Folders", "How many folders it has.", |o, _| count(o, "/spec/folders")).number(),
    AGE,
    column("Main", "The first folder's path.", |o, _| text(o, "/spec/folders/0/path")).wide(),
];
const ROLE: &[Column] = &[
    NAME,
    column("Description", "What it is for.", |o, _| text(o, "/spec/description")),
    AGE,
    column("Model", "The default model of its sessions.", |o, _| text(o, "/spec/model")).wide(),
    column("Permissions", "What they may do at most.", |o, _| text(o, "/spec/permissions")).wide(),
    column("Sandbox", "Their kernel sandbox.", |o, _| text(o, "/spec/sandboxMode")).wide(),
];
const SESSION: &[Column] = &[
    NAME,
    column("Agent", "The agent that runs it.", |o, _| text(o, "/spec/agent")),
    column("Phase", "Where it stands.", |o, _| phase(o)),
    column("Reason", "Why, in one word.", |o, _| text(o, "/status/reason")),
    column("Turn", "The turn that has it now.", |o, _| text(o, "/status/activeTurn")),
    column("Queued", "Turns that wait.", |o, _| number(o, "/status/queuedTurns")).number(),
    AGE,
    column("Cwd", "The directory that it works in.", |o, _| {
        first(o, &["/status/scope/cwd", "/spec/cwd"])
    })
    .wide(),
    column("Parent", "The session that made it.", |o, _| text(o, "/spec/parent")).wide(),
    column("Pid", "Its agent's process.", |o, _| text(o, "/status/process/pid")).wide(),
    column("Activity", "When its agent last sent anything.", |o, now| {
        since(o, "/status/lastActivityAt", now)
    })
    .wide(),
    column("Left", "How long until its ttl ends.", |o, now| {
        until(o, "/status/lineage/ttlExpiresAt", now)
    })
    .wide(),
    column("Message", "Why, in a sentence.", |o, _| text(o, "/status/message")).wide(),
];
const TURN: &[Column] = &[
    NAME,
    column("Session", "The session that it belongs to.", |o, _| text(o, "/spec/session")),
    column("Phase", "Where it stands.", |o, _| phase(o)),
    column("Reason", "Its code, stop reason or reason.", |o, _| {
        first(o, &["/status/code", "/status/reason", "/status/stopReason"])
    }),
    column("Bytes", "The size of its response.", |o, _| number(o, "/status/responseBytes"))
        .number(),
    column("Took", "How long it runs or ran.", took),
    AGE,
    column("Delivery", "Whether the agent was given the prompt.", |o, _| {
        text(o, "/status/delivery")
    })
    .wide(),
    column("Response", "The id of its response.", |o, _| text(o, "/status/responseId")).wide(),
    column("Message", "Why, in a sentence.", |o, _| text(o, "/status/message")).wide(),
];
const PERMISSION: &[Column] = &[
    NAME,
    column("Session", "The session that asks.", |o, _| text(o, "/spec/session")),
    column("Tool", "What its agent wants to do, in the agent's words.", |o, _| {
        beginning(&first(o, &["/spec/toolCall/title", "/spec/toolCall/id"]))
    }),
    column("Kind", "Of which kind that is.", |o, _| text(o, "/spec/toolCall/kind")),
    column("Phase", "Where it stands.", |o, _| phase(o)),
    column("Decision", "What was decided.", |o, _| text(o, "/spec/decision")),
    column("Left", "How long the agent still waits.", left),
    AGE,
    column("Turn", "The turn that asks.", |o, _| text(o, "/spec/turn")).wide(),
    column("Location", "The first file that it is about.", |o, _| {
        text(o, "/spec/toolCall/locations/0/path")
    })
    .wide(),
    column("Message", "Why, in a sentence.", |o, _| text(o, "/status/message")).wide(),
];
const EVENT: &[Column] = &[
    column("Last Seen", "How long ago it last happened.", |o, now| since(o, "/lastTimestamp", now)),
    column("Type", "Normal or Warning.", |o, _| text(o, "/type")),
    column("Reason", "In one word.", |o, _| text(o, "/reason")),
    column("Object", "What it happened to.", |o, _| involved(o, "/involvedObject")),
    column("Message", "In a sentence.", |o, _| text(o, "/message")),
    column("First Seen", "How long ago it first happened.", |o, now| {
        since(o, "/firstTimestamp", now)
    })
    .wide(),
    column("Count", "How often it happened.", |o, _| number(o, "/count")).number().wide(),
    Column { priority: 1, ..NAME },
];
const NAMESPACE: &[Column] =
    &[NAME, column("Status", "Active or Terminating.", |o, _| first(o, &["/status/phase"])), AGE];
const REPORT: &[Column] = &[
    column("Object", "What was reconciled.", |o, _| involved(o, "/object")),
    column("Seq", "Counts the object's reports.", |o, _| number(o, "/sequence")).number(),
    column("Trigger", "What set the pass off.", |o, _| text(o, "/trigger")),
    column("Outcome", "How it stands after the pass.", |o, _| text(o, "/outcome")),
    column("Steps", "What was done.", |o, _| steps(o)),
    column("Why", "What is waited for, or what failed.", |o, _| text(o, "/why")),
    column("Next Try", "When it is looked at again at the latest.", |o, _| {
        text(o, "/requeueAfter")
    }),
    column("Age", "How long ago the pass began.", |o, now| since(o, "/startedAt", now)),
    column("Observed", "What was seen.", |o, _| text(o, "/observed")).wide(),
    column("Ms", "How long the pass took.", |o, _| number(o, "/durationMs")).number().wide(),
];
const MANIFEST: &[Column] = &[
    column("Path", "The file.", |o, _| text(o, "/path")),
    column("Documents", "How many documents it holds.", |o, _| number(o, "/documents")).number(),
    column("Objects", "How many objects it has.", |o, _| count(o, "/objects")).number(),
    column("Applied", "How long ago it was last applied whole.", |o, now| {
        since(o, "/appliedAt", now)
    }),
    column("Error", "Why it is not applied.", |o, _| text(o, "/error")),
];

const fn columns(resource: Resource) -> &'static [Column] {
    match resource {
        Resource::Records(Kind::Agent) => AGENT,
        Resource::Records(Kind::Workspace) => WORKSPACE,
        Resource::Records(Kind::Role) => ROLE,
        Resource::Records(Kind::Session) => SESSION,
        Resource::Records(Kind::Turn) => TURN,
        Resource::Records(Kind::PermissionRequest) => PERMISSION,
        Resource::Records(Kind::Event) => EVENT,
        Resource::Records(Kind::Namespace) => NAMESPACE,
        Resource::Reports => REPORT,
        Resource::Manifests => MANIFEST,
    }
}

/// A `Table` of objects; `metadata` is the list's.
#[must_use]
pub(super) fn of(
    resource: Resource,
    objects: &[Value],
    metadata: &Value,
    include: Include,
    now: Time,
) -> Value {
    let columns = columns(resource);
    let definitions: Vec<Value> = columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name,
                "type": column.kind,
                "format": column.format,
                "description": column.description,
                "priority": column.priority,
            })
        })
        .collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let cells: Vec<Value> =
                columns.iter().map(|column| (column.cell)(object, now)).collect();
            match include {
                Include::Metadata => json!({"cells": cells, "object": partial(object)}),
                Include::Object => json!({"cells": cells, "object": object}),
                Include::None => json!({"cells": cells}),
            }
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": definitions,
        "rows": rows,
    })
}

fn text(object: &Value, pointer: &str) -> Value {
    match object.pointer(pointer) {
        None | Some(Value::Null) => json!(""),
        Some(Value::String(text)) => json!(one_line(text)),
        Some(other) => json!(other.to_string()),
    }
}

/// The first of the fields that says something.
fn first(object: &Value, pointers: &[&str]) -> Value {
    pointers
        .iter()
        .map(|pointer| text(object, pointer))
        .find(|value| value != "")
        .unwrap_or_else(|| json!(""))
}

/// Characters of an agent's words in a cell: more would push the other cells, and rows, out of sight.
const WORDS_CHARS_MAX: usize = 60;

/// A cell is one line, and does nothing to the terminal that shows it.
fn one_line(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    super::render::printable(&line)
}

/// The beginning of an agent's own words.
fn beginning(value: &Value) -> Value {
    let text = value.as_str().unwrap_or_default();
    match text.char_indices().nth(WORDS_CHARS_MAX) {
        Some((end, _)) => json!(format!("{}…", &text[..end])),
        None => json!(text),
    }
}

fn number(object: &Value, pointer: &str) -> Value {
    object.pointer(pointer).filter(|value| value.is_number()).cloned().unwrap_or_else(|| json!(0))
}

fn count(object: &Value, pointer: &str) -> Value {
    json!(object.pointer(pointer).and_then(Value::as_array).map_or(0, Vec::len))
}

fn time(object: &Value, pointer: &str) -> Option<Time> {
    object.pointer(pointer).and_then(Value::as_str)?.parse().ok()
}

fn since(object: &Value, pointer: &str, now: Time) -> Value {
    match time(object, pointer) {
        None => json!(""),
        then => json!(age::since(then, now)),
    }
}

/// How long until then, nothing once it has come.
fn until(object: &Value, pointer: &str, now: Time) -> Value {
    time(object, pointer).map_or_else(|| json!(""), |then| json!(age::span(then.since(now))))
}

/// The phase; a record that the loop has not seen yet is `Pending`.
fn phase(object: &Value) -> Value {
    match text(object, "/status/phase") {
        phase if phase == "" => json!("Pending"),
        phase => phase,
    }
}

fn took(object: &Value, now: Time) -> Value {
    let Some(started) = time(object, "/status/startedAt") else { return json!("") };
    let ended = time(object, "/status/finishedAt").unwrap_or(now);
    json!(age::span(ended.since(started)))
}

/// How long is left until a request times out; nothing once it does not wait.
fn left(object: &Value, now: Time) -> Value {
    match time(object, "/status/expiresAt") {
        Some(end) if phase(object) == "Pending" => json!(age::span(end.since(now))),
        Some(_) | None => json!(""),
    }
}

fn command(object: &Value) -> Value {
    match object.pointer("/spec/argv").and_then(Value::as_array) {
        Some(argv) => {
            let words: Vec<&str> = argv.iter().filter_map(Value::as_str).collect();
            json!(one_line(&shell_words::join(words)))
        }
        None => text(object, "/spec/command"),
    }
}

fn involved(object: &Value, pointer: &str) -> Value {
    let part = |name: &str| {
        object.pointer(pointer).and_then(|of| of.get(name)).and_then(Value::as_str).unwrap_or("")
    };
    json!(one_line(&format!("{}/{}", part("kind").to_ascii_lowercase(), part("name"))))
}

fn steps(object: &Value) -> Value {
    let steps = object.get("steps").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let names: Vec<String> = steps
        .iter()
        .map(|step| {
            let part = |name: &str| step.get(name).and_then(Value::as_str).unwrap_or("");
            match part("outcome") {
                "Done" => part("name").to_owned(),
                other => format!("{}({other})", part("name")),
            }
        })
        .collect();
    json!(one_line(&names.join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_row_shows_where_it_stands_and_carries_its_metadata() {
        let object = json!({
            "metadata": {"name": "a", "namespace": "n", "creationTimestamp": "2026-01-01T00:00:00.000Z"},
            "spec": {"agent": "echo"},
            "status": {"phase": "Running", "reason": "x\u{1b}[2J", "activeTurn": "a-1", "queuedTurns": 2},
        });
        let now = "2026-01-01T00:03:20Z".parse().unwrap();
        let resource = Resource::Records(Kind::Session);
        let table = of(resource, &[object], &json!({}), Include::Metadata, now);
        let row = &table["rows"][0];
        assert_eq!(row["cells"][0], "a");
        assert_eq!(row["cells"][2], "Running");
        assert_eq!(row["cells"][3], "x [2J");
        assert_eq!(row["cells"][5], 2);
        assert_eq!(row["cells"][6], "3m20s");
        assert_eq!(row["object"]["metadata"]["namespace"], "n");
        assert_eq!(row["object"]["kind"], "PartialObjectMetadata");
        assert_eq!(table["columnDefinitions"][0]["format"], "name");
    }

    #[test]
    fn every_row_has_a_cell_for_every_column() {
        for resource in Resource::ALL {
            let table = of(resource, &[json!({})], &json!({}), Include::None, Time::from_millis(0));
            let columns = table["columnDefinitions"].as_array().unwrap();
            assert_eq!(table["rows"][0]["cells"].as_array().unwrap().len(), columns.len());
            assert!(columns.iter().any(|column| column["priority"] == 0));
        }
    }
}
