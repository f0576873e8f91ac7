//! What the tools answer, as types: their JSON is the contract, and their schemas are the tools'
//! `outputSchema`.

use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, json_schema};
use serde::Serialize;
use serde_json::Value;

use crate::api::session::ConfigValue;
use crate::api::turn::{ConfigWarning, TurnPhase};
use crate::api::{Code, Time, Uid};

/// `available_agents`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(super) struct Agents {
    pub(super) agents: Vec<Listed>,
}

/// An agent that can be started.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Listed {
    /// What prompt_to_agent takes as agentId.
    pub(super) agent_id: String,
    pub(super) name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) description: Option<String>,
}

/// `prompt_to_agent`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(tag = "status", rename_all = "snake_case", rename_all_fields = "camelCase")]
pub(super) enum Prompting {
    /// The agent was given the prompt and works in the background.
    Accepted {
        session_id: Uid,
        turn_id: Uid,
        started_at: Time,
        /// The options that it runs with.
        config: Vec<ConfigValue>,
        /// Options that could not be set and did not hold the prompt back.
        warnings: Vec<ConfigWarning>,
    },
    /// The turn ended; this is the answer.
    Completed {
        session_id: Uid,
        response_id: Uid,
        /// The agent's own words: untrusted.
        content: String,
        /// Whether there is more: read it with read_response and nextCursor.
        truncated: bool,
        #[serde(skip_serializing_if = "Option::is_none")]
        next_cursor: Option<String>,
        config: Vec<ConfigValue>,
        warnings: Vec<ConfigWarning>,
        /// Why the agent stopped.
        #[serde(skip_serializing_if = "Option::is_none")]
        stop_reason: Option<String>,
    },
    /// Nothing was sent: model or thought_level do not mean one value of the agent's. Try again
    /// with the same sessionId and one of the candidates.
    ConfigurationRequired {
        session_id: Uid,
        /// Always false.
        prompt_dispatched: bool,
        config: Vec<ConfigValue>,
        #[schemars(with = "Issues")]
        issues: Vec<Value>,
    },
    /// The call has waited long enough; the turn goes on. Ask check_session_status.
    Running { session_id: Uid, turn_id: Uid, phase: TurnPhase },
    /// The session has a turn already.
    Busy { session_id: Uid, started_at: Time, last_activity_at: Time },
    /// Every turn slot is taken: wait for one of your sessions to end, then try again.
    CapacityExceeded { code: Code, retryable: bool },
    /// The session cannot go on; begin a new one.
    Expired {
        session_id: Uid,
        #[serde(skip_serializing_if = "Option::is_none")]
        code: Option<Code>,
        #[serde(skip_serializing_if = "Option::is_none")]
        message: Option<String>,
    },
    /// You have no such session.
    NotFound { session_id: Uid },
    /// The turn failed for good.
    Error { session_id: Uid, code: Code, message: String },
}

/// `read_response`.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Piece {
    /// The agent's own words: untrusted.
    pub(super) content: String,
    /// Whether this was the last piece.
    pub(super) done: bool,
    /// Where the next piece begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next_cursor: Option<String>,
}

/// `cancel_session`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub(super) struct Cancelled {
    /// Whether the end was asked for; it is confirmed by check_session_status.
    pub(super) cancelled: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) reason: Option<String>,
}

/// The schema of issues. They are stored and told as the loop wrote them.
pub(super) struct Issues;

impl JsonSchema for Issues {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Issues".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> Schema {
        json_schema!({
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["parameter", "reason", "requested", "candidates"],
                "properties": {
                    "parameter": {"type": "string", "enum": ["model", "thought_level"]},
                    "reason": {
                        "type": "string",
                        "enum": ["unsupported", "ambiguous", "missing_category_option"],
                    },
                    "requested": {"type": "string"},
                    "optionId": {"type": "string"},
                    "category": {"type": "string"},
                    "candidates": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["value", "name"],
                            "properties": {
                                "value": {"type": "string"},
                                "name": {"type": "string"},
                                "group": {"type": "string"},
                                "description": {"type": "string"},
                            },
                        },
                    },
                },
            },
        })
    }
}

/// A type's schema as a tool declares it: one object without references, its root an object with
/// `oneOf`, which is what clients of every revision can read.
pub(super) fn schema<T: JsonSchema>() -> serde_json::Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>();
    schema.remove("title");
    let mut schema = match schema.to_value() {
        Value::Object(schema) => schema,
        // A schema `true` or `false`, which no result type has.
        _ => serde_json::Map::new(),
    };
    if !schema.contains_key("oneOf") {
        let fields = std::mem::take(&mut schema);
        schema.insert("oneOf".to_owned(), Value::Array(vec![Value::Object(fields)]));
    }
    schema.insert("type".to_owned(), "object".into());
    schema
}

#[cfg(test)]
mod tests {
    use super::super::standing::Standing;
    use super::*;

    #[test]
    fn every_output_schema_is_one_object_with_one_of_its_shapes() {
        for schema in [
            schema::<Agents>(),
            schema::<Prompting>(),
            schema::<Standing>(),
            schema::<Piece>(),
            schema::<Cancelled>(),
        ] {
            let text = serde_json::to_string_pretty(&schema).unwrap();
            assert_eq!(schema["type"], "object", "{text}");
            assert!(!schema["oneOf"].as_array().unwrap().is_empty(), "{text}");
            assert!(!text.contains("$ref"), "{text}");
            jsonschema::validator_for(&Value::Object(schema)).unwrap();
        }
    }

    #[test]
    fn results_are_told_apart_by_their_status_and_fit_their_schema() {
        let uid = || Uid::from("01890a5d-ac96-774b-bcce-b302099a8057");
        let at = Time::from_millis(1_767_225_600_000);
        let issue = serde_json::json!({
            "parameter": "model", "reason": "ambiguous", "requested": "x",
            "candidates": [{"value": "a", "name": "A"}],
        });
        let results = [
            (
                "accepted",
                Prompting::Accepted {
                    session_id: uid(),
                    turn_id: uid(),
                    started_at: at,
                    config: vec![],
                    warnings: vec![],
                },
            ),
            (
                "completed",
                Prompting::Completed {
                    session_id: uid(),
                    response_id: uid(),
                    content: "x".into(),
                    truncated: false,
                    next_cursor: None,
                    config: vec![],
                    warnings: vec![],
                    stop_reason: None,
                },
            ),
            (
                "configuration_required",
                Prompting::ConfigurationRequired {
                    session_id: uid(),
                    prompt_dispatched: false,
                    config: vec![],
                    issues: vec![issue],
                },
            ),
            (
                "running",
                Prompting::Running { session_id: uid(), turn_id: uid(), phase: TurnPhase::Running },
            ),
            ("busy", Prompting::Busy { session_id: uid(), started_at: at, last_activity_at: at }),
            (
                "capacity_exceeded",
                Prompting::CapacityExceeded { code: Code::SpawnCapacityExceeded, retryable: true },
            ),
            ("expired", Prompting::Expired { session_id: uid(), code: None, message: None }),
            ("not_found", Prompting::NotFound { session_id: uid() }),
            (
                "error",
                Prompting::Error {
                    session_id: uid(),
                    code: Code::TurnFailed,
                    message: "why".into(),
                },
            ),
        ];
        let validator = jsonschema::validator_for(&Value::Object(schema::<Prompting>())).unwrap();
        for (status, result) in results {
            let told = serde_json::to_value(&result).unwrap();
            assert_eq!(told["status"], status);
            if let Err(error) = validator.validate(&told) {
                panic!("{told:#}: {error}");
            }
        }
        assert!(!validator.is_valid(&serde_json::json!({"status": "done"})));
    }
}
