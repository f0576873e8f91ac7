//! From what `schemars` derives (JSON Schema 2020-12) to a structural schema (OpenAPI 3.0 as
//! Kubernetes takes it).

use serde_json::{Map, Value, json};

/// How deep types may nest: far above ours, and an end for one that holds itself.
const DEPTH_MAX: usize = 32;
/// Keywords that keep their meaning.
const KEPT: [&str; 9] = [
    "type",
    "description",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
];

/// The structural form of a derived schema.
pub(super) fn of(schema: &schemars::Schema) -> Value {
    convert(schema.as_value(), schema.as_value(), 0)
}

/// Takes the default of one field away.
pub(super) fn remove_default(field: &mut Value) {
    if let Some(map) = field.as_object_mut() {
        map.remove("default");
    }
}

/// Takes all defaults away: what the daemon writes has none.
pub(super) fn remove_defaults(schema: &mut Value) {
    remove_default(schema);
    if let Some(properties) = schema.get_mut("properties").and_then(Value::as_object_mut) {
        properties.values_mut().for_each(remove_defaults);
    }
    for below in ["items", "additionalProperties"] {
        if let Some(schema) = schema.get_mut(below) {
            remove_defaults(schema);
        }
    }
}

fn convert(root: &Value, schema: &Value, depth: usize) -> Value {
    let Some(source) = schema.as_object() else { return any() };
    if depth > DEPTH_MAX {
        return any();
    }
    if let Some(target) = target(root, source) {
        let mut result = convert(root, target, depth + 1);
        // A field's own text says more than its type's.
        for key in ["description", "default"] {
            if let Some(value) = source.get(key).filter(|value| !value.is_null()) {
                result[key] = value.clone();
            }
        }
        return result;
    }
    if let Some(variants) = source.get("oneOf").and_then(Value::as_array) {
        return words(source, variants);
    }
    let mut result = Map::new();
    for key in KEPT {
        if let Some(value) = source.get(key) {
            result.insert(key.to_owned(), value.clone());
        }
    }
    one_type(&mut result);
    if let Some(default) = source.get("default").filter(|value| !value.is_null()) {
        result.insert("default".to_owned(), default.clone());
    }
    if let Some(values) = source.get("enum").and_then(Value::as_array) {
        let values: Vec<_> = values.iter().filter(|value| !value.is_null()).cloned().collect();
        result.insert("enum".to_owned(), values.into());
    }
    formats(source, &mut result);
    below(root, source, &mut result, depth);
    if result.get("type").is_none() {
        result.insert("x-kubernetes-preserve-unknown-fields".to_owned(), json!(true));
    }
    Value::Object(result)
}

/// Free JSON.
fn any() -> Value {
    json!({"x-kubernetes-preserve-unknown-fields": true})
}

/// What a reference, or "a reference or null", points at.
fn target<'v>(root: &'v Value, source: &'v Map<String, Value>) -> Option<&'v Value> {
    if let Some(reference) = source.get("$ref").and_then(Value::as_str) {
        return root.pointer(reference.trim_start_matches('#'));
    }
    let list = source.get("anyOf").and_then(Value::as_array)?;
    list.iter().find(|entry| entry.get("type").and_then(Value::as_str) != Some("null"))
}

/// An enumeration of words: `oneOf` with a constant and a text each becomes `enum`, and the texts go
/// into the description.
fn words(source: &Map<String, Value>, variants: &[Value]) -> Value {
    let mut values = Vec::new();
    let mut lines = Vec::new();
    for variant in variants {
        let text = variant.get("description").and_then(Value::as_str).unwrap_or_default();
        let listed = variant.get("enum").and_then(Value::as_array);
        for value in variant.get("const").into_iter().chain(listed.into_iter().flatten()) {
            if let Some(word) = value.as_str() {
                lines.push(format!("{word}: {text}").trim_end_matches([':', ' ']).to_owned());
            }
            values.push(value.clone());
        }
    }
    let about = source.get("description").and_then(Value::as_str).unwrap_or_default();
    json!({"type": "string", "description": format!("{about}\n{}", lines.join("\n")), "enum": values})
}

/// "A type or null" is that type: an absent field says the same.
fn one_type(result: &mut Map<String, Value>) {
    let one = result
        .get("type")
        .and_then(Value::as_array)
        .and_then(|types| types.iter().find(|entry| entry.as_str() != Some("null")).cloned());
    if let Some(one) = one {
        result.insert("type".to_owned(), one);
    }
}

/// Formats that OpenAPI knows; Rust's unsigned ones become the signed one that holds them.
fn formats(source: &Map<String, Value>, result: &mut Map<String, Value>) {
    let format = match source.get("format").and_then(Value::as_str) {
        Some("uint8" | "uint16" | "int8" | "int16" | "int32") => "int32",
        Some("uint32" | "int64" | "uint64" | "uint" | "int") => "int64",
        Some("float" | "double") => "double",
        Some("date-time") => "date-time",
        Some(_) | None => return,
    };
    result.insert("format".to_owned(), json!(format));
}

fn below(root: &Value, source: &Map<String, Value>, result: &mut Map<String, Value>, depth: usize) {
    if let Some(properties) = source.get("properties").and_then(Value::as_object) {
        let properties = properties.iter().map(|(name, property)| {
            let mut schema = convert(root, property, depth + 1);
            if name == "conditions" {
                schema["x-kubernetes-list-type"] = json!("map");
                schema["x-kubernetes-list-map-keys"] = json!(["type"]);
            }
            (name.clone(), schema)
        });
        result.insert("properties".to_owned(), Value::Object(properties.collect()));
    }
    if let Some(required) = source.get("required") {
        result.insert("required".to_owned(), required.clone());
    }
    if let Some(items) = source.get("items") {
        result.insert("items".to_owned(), convert(root, items, depth + 1));
    }
    match source.get("additionalProperties") {
        None | Some(Value::Bool(false)) => {}
        Some(schema) => {
            result.insert("additionalProperties".to_owned(), convert(root, schema, depth + 1));
        }
    }
}
