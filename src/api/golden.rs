//! Golden files of every stored format: what an older version wrote is read whole and written
//! again as it was. A field that is new is added to its file. Any other failure means that records
//! at rest are read differently: write a migration, do not change the file.

use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::namespace::NamespaceSpec;
use super::{
    AgentSpec, Event, Kind, Object, PermissionRequestSpec, ReconcileReport, RoleSpec, SessionSpec,
    TurnSpec, WorkspaceSpec, schema,
};

fn read(name: &str) -> Value {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(format!("{name}.json"));
    serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

fn check<T: Serialize + DeserializeOwned>(name: &str) {
    let golden = read(name);
    let decoded: T = serde_json::from_value(golden.clone()).unwrap();
    let encoded = serde_json::to_value(&decoded).unwrap();
    assert!(encoded == golden, "tests/golden/{name}.json is written as {encoded:#}");
}

/// Paths of fields that the schema has and the value has not, in no element of a list.
fn missing(schema: &Value, values: &[&Value], path: &str, found: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}.{name}");
        let below: Vec<&Value> = values.iter().filter_map(|value| value.get(name)).collect();
        if below.is_empty() {
            found.push(path);
            continue;
        }
        missing(property, &below, &path, found);
        let elements: Vec<&Value> =
            below.iter().filter_map(|value| value.as_array()).flatten().collect();
        missing(&property["items"], &elements, &path, found);
    }
}

#[test]
fn every_stored_format_is_read_and_written_as_it_was() {
    check::<Object<AgentSpec>>("agent");
    check::<Object<WorkspaceSpec>>("workspace");
    check::<Object<RoleSpec>>("role");
    check::<Object<SessionSpec>>("session");
    check::<Object<TurnSpec>>("turn");
    check::<Object<PermissionRequestSpec>>("permissionrequest");
    check::<Object<NamespaceSpec>>("namespace");
    check::<Event>("event");
    check::<ReconcileReport>("report");
}

#[test]
fn the_golden_records_hold_every_field() {
    for kind in Kind::ALL {
        let record = read(kind.singular());
        let mut found = Vec::new();
        missing(&schema::schema(kind), &[&record], kind.as_str(), &mut found);
        // Cluster kinds have no namespace.
        found.retain(|path| kind.is_namespaced() || !path.ends_with("metadata.namespace"));
        assert!(found.is_empty(), "tests/golden/{}.json lacks {found:#?}", kind.singular());
    }
}

#[test]
fn the_golden_records_are_valid_by_their_schemas() {
    for kind in Kind::ALL {
        let validator = jsonschema::validator_for(&schema::schema(kind)).unwrap();
        let record = read(kind.singular());
        let faults: Vec<String> =
            validator.iter_errors(&record).map(|fault| fault.to_string()).collect();
        assert!(faults.is_empty(), "{kind}: {faults:#?}");
    }
}

#[test]
fn an_empty_spec_is_read_as_the_default_and_written_without_absent_fields() {
    let spec: SessionSpec = serde_json::from_value(serde_json::json!({})).unwrap();
    assert_eq!(spec, SessionSpec::default());
    let written = serde_json::to_value(&spec).unwrap();
    assert!(written.as_object().unwrap().values().all(|value| !value.is_null()), "{written}");
}
