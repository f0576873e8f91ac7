//! From a file's documents to records that may be applied, with every fault placed.
//!
//! A file is taken whole or not at all: [`check_file`] gives all its documents or all its faults.
//! What depends on the store (immutable fields, references, namespaces) is admission's; its faults
//! are placed by [`Checked::place`].
//!
//! Absent on purpose: defaults. Files and the API write through the same admission.

use std::collections::BTreeMap;

use serde_json::Value;
use sha2::{Digest, Sha256};

use super::diff::{Claim, DocumentHash, ObjectId};
use super::yaml::{self, Document, Error, Format};
use crate::api::namespace::{DEFAULT_NAMESPACE, NamespaceSpec};
use crate::api::{
    API_VERSION, AgentSpec, FieldErrors, Kind, Name, Namespace, Object, RoleSpec, SessionSpec,
    Spec, TurnSpec, WorkspaceSpec, validate,
};

/// What the daemon sets in metadata. A file that was made from a read record may hold it, as files
/// for `kubectl apply` may; it says nothing, and neither does the status.
const METADATA_OF_THE_DAEMON: [&str; 10] = [
    "creationTimestamp",
    "deletionGracePeriodSeconds",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "ownerReferences",
    "resourceVersion",
    "selfLink",
    "uid",
];
/// The kinds that a file may hold.
const KINDS: [Kind; 6] =
    [Kind::Agent, Kind::Workspace, Kind::Role, Kind::Session, Kind::Turn, Kind::Namespace];
/// From how many characters on a value under a name like `API_TOKEN` looks like a secret.
const SECRET_CHARS_MIN: usize = 16;

/// A document whose own text is in order.
#[derive(Clone, Debug)]
pub struct Checked {
    /// The object that it names, and the hash of what it says.
    pub claim: Claim,
    /// The document, its namespace filled in.
    pub document: Document,
    /// What is allowed and should not be so.
    pub warnings: Vec<Error>,
}

impl Checked {
    /// Places faults that were found in the record.
    #[must_use]
    pub fn place(&self, faults: &FieldErrors) -> Vec<Error> {
        let fault = |fault: &crate::api::FieldError| {
            self.document.fault(fault.field.as_str(), fault.message.clone())
        };
        faults.0.iter().map(fault).collect()
    }

    /// A fault of the document as a whole, placed at its name.
    #[must_use]
    pub fn fault(&self, message: impl Into<String>) -> Error {
        self.document.fault("metadata.name", message)
    }
}

/// Checks every document of a file.
///
/// # Errors
///
/// All faults of all documents, in the order of the file; of broken syntax the first alone.
pub fn check_file(bytes: &[u8], format: Format) -> Result<Vec<Checked>, Vec<Error>> {
    let documents = yaml::parse_documents(bytes, format).map_err(|fault| vec![fault])?;
    let mut checked: Vec<Checked> = Vec::new();
    let mut faults = Vec::new();
    let mut names = BTreeMap::new();
    for document in documents {
        match check(document) {
            Ok(document) => {
                let place = document.document.places.start();
                if let Some(first) = names.insert(document.claim.object.clone(), place) {
                    faults.push(document.fault(format!(
                        "{} stands twice in the file, first at {first}, expected once",
                        document.claim.object
                    )));
                }
                checked.push(document);
            }
            Err(found) => faults.extend(found),
        }
    }
    if faults.is_empty() { Ok(checked) } else { Err(faults) }
}

/// Checks one document.
///
/// # Errors
///
/// Its faults.
pub fn check(mut document: Document) -> Result<Checked, Vec<Error>> {
    let kind = kind_of(&document).map_err(|fault| vec![fault])?;
    normalise(&mut document.value, kind);
    let hash = canonical_hash(&document.value);
    let mut faults = metadata_faults(&document, kind);
    let found = match kind {
        Kind::Agent => spec_faults::<AgentSpec>(&document),
        Kind::Workspace => spec_faults::<WorkspaceSpec>(&document),
        Kind::Role => spec_faults::<RoleSpec>(&document),
        Kind::Session => spec_faults::<SessionSpec>(&document),
        Kind::Turn => spec_faults::<TurnSpec>(&document),
        Kind::Namespace => spec_faults::<NamespaceSpec>(&document),
        // `kind_of` has refused them: the daemon alone makes them.
        Kind::PermissionRequest | Kind::Event => Vec::new(),
    };
    // The typed pass names the same place again where metadata is of a wrong type.
    for fault in found {
        if !faults.iter().any(|known: &Error| known.field == fault.field) {
            faults.push(fault);
        }
    }
    if !faults.is_empty() {
        faults.sort_by_key(|fault| fault.place);
        return Err(faults);
    }
    let metadata = &document.value["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap_or_default().to_owned();
    let namespace = match text("namespace") {
        namespace if !namespace.is_empty() || !kind.is_namespaced() => namespace,
        _ => DEFAULT_NAMESPACE.to_owned(),
    };
    let object = ObjectId {
        kind,
        namespace: Namespace::new(namespace.as_str()),
        name: Name::new(text("name")),
    };
    if kind.is_namespaced() {
        document.value["metadata"]["namespace"] = Value::String(namespace);
    }
    let warnings = secret_warnings(&document);
    let place = document.places.value_of("metadata.name");
    Ok(Checked { claim: Claim { object, hash, place }, document, warnings })
}

fn kind_of(document: &Document) -> Result<Kind, Error> {
    let Some(fields) = document.value.as_object() else {
        return Err(document.fault("", "not a mapping, expected a record"));
    };
    let text = |field: &str| match fields.get(field) {
        Some(Value::String(text)) => Ok(text.as_str()),
        Some(_) => Err(document.fault(field, "not a string, expected a string")),
        None => Err(document.fault(field, format!("is missing, expected {field} of the record"))),
    };
    let version = text("apiVersion")?;
    let name = text("kind")?;
    let names = || KINDS.map(Kind::as_str).join(", ");
    let kind = KINDS.into_iter().find(|kind| kind.as_str() == name).ok_or_else(|| {
        document.fault(
            "kind",
            format!("{name:?} is no kind of a manifest, expected one of {}", names()),
        )
    })?;
    if version != kind.api_version() {
        let message = format!("{version:?} is not served, expected {}", kind.api_version());
        return Err(document.fault("apiVersion", message));
    }
    debug_assert!(kind == Kind::Namespace || version == API_VERSION, "core kinds are two");
    Ok(kind)
}

/// Takes out what says nothing: the status, what the daemon sets, and nulls (as Kubernetes does:
/// `title:` is a title that is not there).
fn normalise(document: &mut Value, kind: Kind) {
    let Some(fields) = document.as_object_mut() else { return };
    fields.remove("status");
    if kind == Kind::Namespace {
        // One is written without a spec everywhere.
        fields.entry("spec").or_insert_with(|| Value::Object(serde_json::Map::new()));
    }
    for part in ["metadata", "spec"] {
        if let Some(Value::Object(fields)) = fields.get_mut(part) {
            fields.retain(|_, value| !value.is_null());
        }
    }
    if let Some(Value::Object(metadata)) = fields.get_mut("metadata") {
        metadata.retain(|field, _| !METADATA_OF_THE_DAEMON.contains(&field.as_str()));
    }
}

fn metadata_faults(document: &Document, kind: Kind) -> Vec<Error> {
    let mut faults = Vec::new();
    let Some(metadata) = document.value.get("metadata") else {
        faults.push(document.fault("metadata", "is missing, expected a name in it"));
        return faults;
    };
    let Some(metadata) = metadata.as_object() else {
        faults.push(document.fault("metadata", "not a mapping, expected a name in it"));
        return faults;
    };
    if metadata.contains_key("generateName") {
        let mut fault =
            document.fault("metadata.generateName", "not allowed in a file, expected a name");
        fault.place = document.places.name_of("metadata.generateName");
        faults.push(fault);
    }
    match metadata.get("name") {
        None => faults.push(document.fault("metadata.name", "is missing, expected a name")),
        Some(Value::String(name)) if name.is_empty() => {
            faults.push(document.fault("metadata.name", "is empty, expected a name"));
        }
        Some(Value::String(_)) => {}
        Some(_) => faults.push(
            document.fault("metadata.name", "not a string, expected a string (quote a number)"),
        ),
    }
    if !kind.is_namespaced() && metadata.contains_key("namespace") {
        let message = format!("{kind} has no namespace, expected none");
        faults.push(document.fault("metadata.namespace", message));
    }
    faults
}

/// Faults that the record's type and its own validation find.
fn spec_faults<S: Spec>(document: &Document) -> Vec<Error> {
    let decoded = yaml::decode::<Object<S>>(document);
    match decoded {
        Err(faults) => faults,
        Ok(object) => {
            let mut metadata = object.metadata;
            // What the file leaves out is filled in once it is in order.
            if S::KIND.is_namespaced() && metadata.namespace.is_empty() {
                metadata.namespace = Namespace::new(DEFAULT_NAMESPACE);
            }
            [validate::metadata(S::KIND, &metadata), object.spec.validate()]
                .into_iter()
                .filter_map(Result::err)
                .flat_map(|faults| faults.0)
                .map(|fault| document.fault(fault.field.as_str(), fault.message))
                .collect()
        }
    }
}

/// The hash of what a document says: keys sorted, so that comments, layout and order of fields do
/// not count, and neither do the file's name nor the document's place in it.
#[must_use]
pub fn canonical_hash(value: &Value) -> DocumentHash {
    let mut text = String::new();
    canonical(value, &mut text);
    let digest = Sha256::digest(text.as_bytes());
    DocumentHash(crate::api::hex(&digest))
}

fn canonical(value: &Value, text: &mut String) {
    match value {
        Value::Object(map) => {
            let sorted: BTreeMap<&String, &Value> = map.iter().collect();
            text.push('{');
            for (key, value) in sorted {
                text.push_str(&Value::from(key.as_str()).to_string());
                text.push(':');
                canonical(value, text);
                text.push(',');
            }
            text.push('}');
        }
        Value::Array(items) => {
            text.push('[');
            for item in items {
                canonical(item, text);
                text.push(',');
            }
            text.push(']');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            text.push_str(&value.to_string());
        }
    }
}

/// Variables and headers whose value looks like a key. The value is never told.
fn secret_warnings(document: &Document) -> Vec<Error> {
    let mut maps = vec![("spec.env".to_owned(), &document.value["spec"]["env"])];
    if let Some(servers) = document.value["spec"]["mcpServers"].as_array() {
        for (index, server) in servers.iter().enumerate() {
            for field in ["env", "headers"] {
                maps.push((format!("spec.mcpServers[{index}].{field}"), &server[field]));
            }
        }
    }
    let mut warnings = Vec::new();
    for (path, map) in maps {
        for (name, value) in map.as_object().into_iter().flatten() {
            if value.as_str().is_some_and(|value| looks_like_secret(name, value)) {
                warnings.push(document.fault(
                    &format!("{path}.{name}"),
                    "looks like a secret in plain text, expected a credential slot that names it",
                ));
            }
        }
    }
    warnings
}

fn looks_like_secret(name: &str, value: &str) -> bool {
    /// How well-known services begin their keys.
    const PREFIXES: [&str; 10] =
        ["sk-", "sk_live_", "ghp_", "gho_", "github_pat_", "glpat-", "xox", "AKIA", "AIza", "eyJ"];
    const NAMES: [&str; 5] = ["KEY", "TOKEN", "SECRET", "PASSWORD", "AUTHORIZATION"];
    let value = value.strip_prefix("Bearer ").unwrap_or(value);
    if value.contains("-----BEGIN") {
        return true;
    }
    let is_token = value.len() >= SECRET_CHARS_MIN
        && value.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+=".contains(c));
    let name = name.to_ascii_uppercase();
    is_token
        && (PREFIXES.iter().any(|prefix| value.starts_with(prefix))
            || NAMES.iter().any(|part| name.contains(part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str) -> Result<Vec<Checked>, Vec<String>> {
        check_file(text.as_bytes(), Format::Yaml)
            .map_err(|faults| faults.iter().map(Error::to_string).collect())
    }

    fn check_faults(text: &str, expect: &[&str]) {
        assert_eq!(check(text).expect_err(text), expect, "{text}");
    }

    const AGENT: &str = "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata:\n  name: a\nspec:\n  argv: [a]\n";
    const SESSION: &str = "apiVersion: spawnlet.dev/v1alpha1\nkind: Session\nmetadata:\n  name: s\nspec:\n  agent: a\n  cwd: /w\n";

    #[test]
    fn documents_name_their_objects() {
        let documents = check(&format!(
            "{AGENT}---\n{SESSION}---\napiVersion: v1\nkind: Namespace\nmetadata: {{name: team}}\n"
        ))
        .unwrap();
        let names: Vec<_> =
            documents.iter().map(|document| document.claim.object.to_string()).collect();
        assert_eq!(names, ["Agent/a", "Session/default/s", "Namespace/team"]);
        assert_eq!(documents[1].document.value["metadata"]["namespace"], "default");
    }

    #[test]
    fn every_fault_of_every_document_is_told_with_its_place() {
        let text = format!(
            "{AGENT}  startTimeot: 5s\n---\n{}---\n{SESSION}  ttl: [1]\n",
            SESSION.replace("agent: a", "agnt: a").replace("name: s", "nam: s")
        );
        check_faults(
            &text,
            &[
                "7:3: spec.startTimeot: unknown field, expected a field of this kind",
                "12:3: metadata.name: is missing, expected a name",
                "12:3: metadata.nam: unknown field, expected a field of this kind",
                "14:3: spec.agnt: unknown field, expected a field of this kind",
                "24:8: spec.ttl: invalid type: sequence, expected a string",
            ],
        );
    }

    #[test]
    fn kinds_and_versions_are_known_ones() {
        check_faults("a: 1", &["1:1: apiVersion: is missing, expected apiVersion of the record"]);
        check_faults("- 1", &["1:1: not a mapping, expected a record"]);
        check_faults(
            "apiVersion: v1\nkind: Pod\n",
            &[
                "2:7: kind: \"Pod\" is no kind of a manifest, expected one of Agent, Workspace, Role, Session, Turn, Namespace",
            ],
        );
        check_faults(
            "apiVersion: v1\nkind: Agent\n",
            &["1:13: apiVersion: \"v1\" is not served, expected spawnlet.dev/v1alpha1"],
        );
        check_faults(
            "apiVersion: spawnlet.dev/v1alpha1\nkind: Agent\nmetadata: {name: 7, namespace: x}\nspec: {argv: [a]}\nstatus: {}\n",
            &[
                "3:18: metadata.name: not a string, expected a string (quote a number)",
                "3:32: metadata.namespace: Agent has no namespace, expected none",
            ],
        );
    }

    #[test]
    fn an_object_stands_once_in_a_file() {
        check_faults(
            &format!("{AGENT}---\n{AGENT}"),
            &["11:9: metadata.name: Agent/a stands twice in the file, first at 1:1, expected once"],
        );
    }

    #[test]
    fn only_what_a_document_says_changes_its_hash() {
        let hash = |text: &str| check(text).unwrap()[0].claim.hash.clone();
        let plain = hash(AGENT);
        assert_eq!(hash(&format!("# note\n{}", AGENT.replace("[a]", "\n    - 'a' # b"))), plain);
        assert_eq!(
            hash(
                "spec: {argv: [a]}\nkind: Agent\nmetadata: {name: a}\napiVersion: spawnlet.dev/v1alpha1\n"
            ),
            plain
        );
        let read_back = AGENT.replace("name: a", "name: a\n  uid: x\n  generation: 3")
            + "status: {installed: true}\n";
        assert_eq!(hash(&read_back.replace("[a]", "[a]\n  model:")), plain);
        assert_ne!(hash(&AGENT.replace("[a]", "[a, b]")), plain);
    }

    #[test]
    fn what_looks_like_a_key_is_a_warning_that_does_not_tell_it() {
        let text = format!(
            "{AGENT}  env:\n    OPENAI_API_KEY: sk-abcdefghijklmnop\n    KEY_PATH: /home/me/a/long/path\n    MODE: fast\n    DB_PASSWORD: aaaaaaaaaaaaaaaaaaaa\n"
        );
        let warnings = check(&text).unwrap().remove(0).warnings;
        let lines: Vec<_> = warnings.iter().map(Error::to_string).collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("8:21: spec.env.OPENAI_API_KEY: looks like"));
        assert!(lines[1].starts_with("11:18: spec.env.DB_PASSWORD: looks like"));
        assert!(!lines[0].contains("sk-"));
    }

    #[test]
    fn numbers_and_booleans_are_no_text() {
        check_faults(
            &AGENT.replace("[a]", "[a]\n  env: {A: 1}"),
            &["7:12: spec.env.A: invalid type: integer `1`, expected a string"],
        );
        // YAML 1.1 would have made this a boolean.
        assert!(check(&AGENT.replace("[a]", "[a]\n  env: {A: no}")).is_ok());
    }
}
