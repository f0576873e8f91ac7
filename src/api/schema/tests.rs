//! The generated documents: structural, in step with the types, and checked in.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::*;

const OURS: [Kind; 6] =
    [Kind::Agent, Kind::Workspace, Kind::Role, Kind::Session, Kind::Turn, Kind::PermissionRequest];

fn checked_in(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("crds-like-specs").join(name)
}

#[test]
fn the_checked_in_crds_are_those_of_the_types() {
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    for kind in OURS {
        let path = checked_in(&format!("{}.yaml", kind.plural()));
        let head = "# Generated from the types in src/api. Renew: UPDATE_GOLDEN=1 cargo test --lib api::schema\n";
        let text = format!("{head}{}", yaml(&crd(kind).unwrap()));
        if update {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == text,
            "crds-like-specs/{}.yaml is stale; renew it with\n  UPDATE_GOLDEN=1 cargo test --lib api::schema",
            kind.plural()
        );
    }
    let listed = std::fs::read_dir(checked_in("")).unwrap().count();
    assert_eq!(listed, OURS.len(), "crds-like-specs/ holds a file of no kind");
}

#[test]
fn the_core_kinds_have_a_schema_and_no_crd() {
    for kind in [Kind::Event, Kind::Namespace] {
        assert!(crd(kind).is_none());
        assert_eq!(schema(kind)["type"], "object");
    }
    assert_eq!(
        schema(Kind::Event)["x-kubernetes-group-version-kind"],
        json!([{"group": "", "version": "v1", "kind": "Event"}])
    );
}

/// Walks a schema and says what is not structural in it.
fn check_structural(schema: &Value, path: &str, faults: &mut Vec<String>) {
    const KEYWORDS: [&str; 20] = [
        "type",
        "description",
        "default",
        "enum",
        "format",
        "minimum",
        "maximum",
        "minLength",
        "maxLength",
        "pattern",
        "minItems",
        "maxItems",
        "required",
        "properties",
        "items",
        "additionalProperties",
        "x-kubernetes-preserve-unknown-fields",
        "x-kubernetes-list-type",
        "x-kubernetes-list-map-keys",
        "x-kubernetes-group-version-kind",
    ];
    let Some(map) = schema.as_object() else {
        faults.push(format!("{path}: no object"));
        return;
    };
    for key in map.keys().filter(|key| !KEYWORDS.contains(&key.as_str())) {
        faults.push(format!("{path}: {key}"));
    }
    let free = map.get("x-kubernetes-preserve-unknown-fields") == Some(&json!(true));
    match map.get("type").and_then(Value::as_str) {
        Some("object" | "array" | "string" | "integer" | "number" | "boolean") => {}
        None if free => {}
        other => faults.push(format!("{path}: type {other:?}")),
    }
    if map.contains_key("properties") && map.contains_key("additionalProperties") {
        faults.push(format!("{path}: properties and additionalProperties"));
    }
    if map.get("type") == Some(&json!("array")) && !map.contains_key("items") {
        faults.push(format!("{path}: a list without items"));
    }
    if map.get("default") == Some(&Value::Null) {
        faults.push(format!("{path}: default null"));
    }
    for (name, property) in map.get("properties").and_then(Value::as_object).into_iter().flatten() {
        check_structural(property, &format!("{path}.{name}"), faults);
    }
    for below in ["items", "additionalProperties"] {
        if let Some(schema) = map.get(below) {
            check_structural(schema, &format!("{path}.{below}"), faults);
        }
    }
}

#[test]
fn every_schema_is_structural() {
    for kind in Kind::ALL {
        let mut faults = Vec::new();
        check_structural(&schema(kind), kind.as_str(), &mut faults);
        assert!(faults.is_empty(), "{faults:#?}");
    }
}

#[test]
fn every_field_of_a_spec_has_a_description() {
    fn walk(schema: &Value, path: &str, bare: &mut Vec<String>) {
        for (name, property) in schema["properties"].as_object().into_iter().flatten() {
            let path = format!("{path}.{name}");
            if property["description"].as_str().is_none_or(str::is_empty) {
                bare.push(path.clone());
            }
            walk(property, &path, bare);
            walk(&property["items"], &path, bare);
        }
    }
    let mut bare = Vec::new();
    for kind in OURS {
        walk(&schema(kind), kind.as_str(), &mut bare);
    }
    bare.retain(|path| path.matches('.').count() > 1);
    assert!(bare.is_empty(), "{bare:#?}");
}

#[test]
fn lists_enumerations_defaults_and_free_json_are_as_a_cluster_wants_them() {
    let folders = schema(Kind::Workspace)["properties"]["spec"]["properties"]["folders"].clone();
    assert_eq!(folders["x-kubernetes-list-type"], "map");
    assert_eq!(folders["x-kubernetes-list-map-keys"], json!(["id"]));
    assert_eq!(folders["items"]["required"], json!(["id", "path"]));
    let session = schema(Kind::Session)["properties"]["spec"]["properties"].clone();
    assert_eq!(
        session["permissions"]["enum"],
        json!(["deny-all", "approve-reads", "ask", "approve-all"])
    );
    assert_eq!(session["permissions"]["type"], "string");
    assert_eq!(session["idleTimeout"]["default"], "15m");
    assert_eq!(session["autoStopOnParent"]["default"], true);
    assert_eq!(session["delegation"]["properties"]["toolsets"]["default"], json!(["spawn"]));
    assert_eq!(session["config"]["type"], "object");
    assert_eq!(
        session["config"]["additionalProperties"],
        json!({"x-kubernetes-preserve-unknown-fields": true})
    );
    assert_eq!(session["desiredState"]["enum"], json!(["running", "cancelled", "deleted"]));
    let turn = schema(Kind::Turn)["properties"]["spec"].clone();
    assert_eq!(turn["required"], json!(["session"]));
    let status = crd(Kind::Session).unwrap()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        ["properties"]["status"]
        .clone();
    assert_eq!(status["properties"]["conditions"]["x-kubernetes-list-type"], "map");
    assert!(status["properties"]["phase"].get("default").is_none());
}

#[test]
fn decoded_defaults_are_the_schema_s_defaults() {
    // As a cluster fills them in: one level, since an object that is absent stays so.
    fn from_schema(schema: &Value) -> Value {
        let properties = schema["properties"].as_object().unwrap();
        let fields = properties
            .iter()
            .filter_map(|(name, property)| Some((name.clone(), property.get("default")?.clone())));
        Value::Object(fields.collect())
    }
    fn check<S: Spec + Default>() {
        let filled = from_schema(&schema(S::KIND)["properties"]["spec"]);
        let decoded: S = serde_json::from_value(filled).unwrap();
        assert_eq!(decoded, S::default(), "{}", S::KIND);
    }
    check::<AgentSpec>();
    check::<WorkspaceSpec>();
    check::<TurnSpec>();
    check::<SessionSpec>();
}

#[test]
fn a_crd_names_its_kind_for_every_client() {
    let crd = crd(Kind::Session).unwrap();
    assert_eq!(crd["metadata"]["name"], "sessions.spawnlet.dev");
    assert_eq!(crd["spec"]["names"]["shortNames"], json!(["se"]));
    assert_eq!(crd["spec"]["names"]["categories"], json!(["spawnlet", "all"]));
    assert_eq!(crd["spec"]["versions"][0]["subresources"], json!({"status": {}}));
    assert_eq!(super::crd(Kind::Agent).unwrap()["spec"]["scope"], "Cluster");
    let metadata =
        &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["metadata"];
    assert_eq!(*metadata, json!({"type": "object"}));
}

#[test]
fn words_that_older_yaml_takes_for_booleans_are_quoted() {
    let text = yaml(&json!({"a": "off", "b": ["no", "yes it is"], "c": "fine", "d": false}));
    assert_eq!(text, "a: 'off'\nb:\n- 'no'\n- yes it is\nc: fine\nd: false\n");
    // Texts of several lines are not quoted line by line, so none may look like such a field.
    for kind in OURS {
        for line in schema(kind).to_string().split("\\n") {
            assert!(!line.ends_with(": off") && !line.ends_with("- off"), "{line}");
        }
    }
}
