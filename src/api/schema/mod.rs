//! JSON schemas and CustomResourceDefinitions of the kinds, generated from the Rust types.
//!
//! Both are the same structural schema (Kubernetes, "Specifying a structural schema"): everything
//! inlined, one type per field, no `oneOf`, free JSON marked `x-kubernetes-preserve-unknown-fields`.
//! Descriptions are the types' doc comments, defaults those that decoding fills in. The documents
//! below `crds-like-specs/` are checked in and a test holds them against the types. Absent: what a
//! schema cannot say (exactly one of two fields, immutability): `validate` says it.

mod columns;
mod structural;
#[cfg(test)]
mod tests;

use serde_json::{Value, json};

use super::{
    AgentSpec, Event, GROUP, Kind, ObjectMeta, PermissionRequestSpec, RoleSpec, SessionSpec, Spec,
    TurnSpec, VERSION, WorkspaceSpec, namespace::NamespaceSpec,
};

/// What `kubectl get all` and `kubectl get spawnlet` show.
pub const CATEGORIES: [&str; 2] = ["spawnlet", "all"];

/// Words that are booleans in YAML 1.1 and texts in 1.2.
const BOOLEAN_WORDS: [&str; 6] = ["y", "n", "yes", "no", "on", "off"];

/// The structural schema of a kind's whole object, without references, with
/// `x-kubernetes-group-version-kind`.
#[must_use]
pub fn schema(kind: Kind) -> Value {
    let mut schema = match kind {
        Kind::Agent => object::<AgentSpec>("How an ACP agent is started and what it may do."),
        Kind::Workspace => {
            object::<WorkspaceSpec>("Named folders. A session takes a snapshot at its creation.")
        }
        Kind::Role => object::<RoleSpec>("What a kind of session is told, and may do at most."),
        Kind::Session => object::<SessionSpec>("A conversation with an agent, kept as a record."),
        Kind::Turn => object::<TurnSpec>("One prompt turn of a session, owned by it."),
        Kind::PermissionRequest => object::<PermissionRequestSpec>(
            "An agent waits for somebody to decide whether it may do something.",
        ),
        Kind::Namespace => object::<NamespaceSpec>("The isolation boundary of records."),
        Kind::Event => structural::of(&schemars::schema_for!(Event)),
    };
    let version = if kind.group().is_empty() { kind.api_version() } else { VERSION };
    schema["x-kubernetes-group-version-kind"] =
        json!([{"group": kind.group(), "version": version, "kind": kind.as_str()}]);
    schema
}

/// The CustomResourceDefinition (`apiextensions.k8s.io/v1`) of a kind of ours; `None` for the core
/// kinds, which every cluster has.
#[must_use]
pub fn crd(kind: Kind) -> Option<Value> {
    if kind.api_version() != super::API_VERSION {
        return None;
    }
    let mut schema = schema(kind);
    if let Some(map) = schema.as_object_mut() {
        map.remove("x-kubernetes-group-version-kind");
    }
    // The API server brings its own schema of metadata and takes no other.
    schema["properties"]["metadata"] = json!({"type": "object"});
    Some(json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{}.{GROUP}", kind.plural())},
        "spec": {
            "group": GROUP,
            "names": {
                "kind": kind.as_str(),
                "listKind": format!("{kind}List"),
                "plural": kind.plural(),
                "singular": kind.singular(),
                "shortNames": kind.short_names(),
                "categories": CATEGORIES,
            },
            "scope": if kind.is_namespaced() { "Namespaced" } else { "Cluster" },
            "versions": [{
                "name": VERSION,
                "served": true,
                "storage": true,
                "subresources": {"status": {}},
                "additionalPrinterColumns": columns::of(kind),
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    }))
}

/// A document as YAML that YAML 1.1 parsers (kubectl's) read the same: words such as `off` and `no`,
/// booleans to them, are quoted.
#[must_use]
pub fn yaml(document: &Value) -> String {
    // A JSON value has string keys and plain scalars: it always has a YAML form.
    let text = serde_yaml::to_string(document).unwrap_or_default();
    let mut quoted = String::with_capacity(text.len());
    for line in text.lines() {
        let value = line.rfind(": ").or_else(|| line.rfind("- ")).map(|start| start + 2);
        match value.map(|start| line.split_at(start)) {
            Some((key, word)) if BOOLEAN_WORDS.contains(&word.to_ascii_lowercase().as_str()) => {
                quoted.push_str(key);
                quoted.push('\'');
                quoted.push_str(word);
                quoted.push('\'');
            }
            Some(_) | None => quoted.push_str(line),
        }
        quoted.push('\n');
    }
    quoted
}

fn object<S: Spec>(description: &str) -> Value {
    let mut spec = structural::of(&schemars::schema_for!(S));
    amend(S::KIND, &mut spec);
    let mut status = structural::of(&schemars::schema_for!(S::Status));
    structural::remove_defaults(&mut status);
    let metadata = structural::of(&schemars::schema_for!(ObjectMeta));
    json!({
        "type": "object",
        "description": description,
        "required": ["spec"],
        "properties": {
            "apiVersion": {
                "type": "string",
                "description": format!("`{}`.", S::KIND.api_version()),
            },
            "kind": {"type": "string", "description": format!("`{}`.", S::KIND)},
            "metadata": metadata,
            "spec": spec,
            "status": status,
        },
    })
}

/// What the derive cannot know: fields whose default is no valid value are required, and lists that
/// are maps by a key.
fn amend(kind: Kind, spec: &mut Value) {
    let required = match kind {
        Kind::Turn => "session",
        Kind::Workspace => "folders",
        Kind::Role => "description",
        // An external session has no agent, so the field is not required by the schema.
        Kind::Session => {
            structural::remove_default(&mut spec["properties"]["agent"]);
            return;
        }
        Kind::Agent | Kind::PermissionRequest | Kind::Event | Kind::Namespace => return,
    };
    structural::remove_default(&mut spec["properties"][required]);
    spec["required"] = json!([required]);
    if kind == Kind::Workspace {
        let folders = &mut spec["properties"]["folders"];
        folders["minItems"] = json!(1);
        folders["x-kubernetes-list-type"] = json!("map");
        folders["x-kubernetes-list-map-keys"] = json!(["id"]);
    }
}
