//! The `spawn` toolset: five tools by which an agent hands a task to another agent.
//!
//! One file a tool: it takes its arguments apart, asks `admission`, and puts the answer in the words
//! of [`results`]. What records mean is in [`standing`], waiting in [`wait`].
//!
//! Invariants: nothing in an input names a caller, a parent or a workspace; an id of somebody else
//! is answered as one that is not there, with the same bytes; no answer names a path of the daemon; what
//! an agent wrote is escaped in every answer but its response, which is its own words byte for byte.

mod available_agents;
mod cancel_session;
mod check_session_status;
mod prompt_to_agent;
mod read_response;
pub(super) mod resources;
mod results;
mod standing;
mod wait;

use std::sync::{Arc, LazyLock};

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde::Serialize;
use serde_json::{Value, json};

use super::Shared;
use super::call::Call;
use super::failure::Failure;
use super::input::IDENTIFIER_CHARS_MAX;
use crate::api::Code;
use crate::boundary::escape::escape_texts;

/// A tool of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SpawnTool {
    AvailableAgents,
    PromptToAgent,
    CheckSessionStatus,
    ReadResponse,
    CancelSession,
}

impl SpawnTool {
    const ALL: [Self; 5] = [
        Self::AvailableAgents,
        Self::PromptToAgent,
        Self::CheckSessionStatus,
        Self::ReadResponse,
        Self::CancelSession,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::AvailableAgents => available_agents::NAME,
            Self::PromptToAgent => prompt_to_agent::NAME,
            Self::CheckSessionStatus => check_session_status::NAME,
            Self::ReadResponse => read_response::NAME,
            Self::CancelSession => cancel_session::NAME,
        }
    }

    /// The tool of this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.name() == name)
    }

    /// How the tool is declared.
    pub(super) fn definition(self) -> Tool {
        static DEFINITIONS: LazyLock<Vec<Tool>> = LazyLock::new(|| {
            vec![
                available_agents::definition(),
                prompt_to_agent::definition(),
                check_session_status::definition(),
                read_response::definition(),
                cancel_session::definition(),
            ]
        });
        DEFINITIONS[self as usize].clone()
    }
}

/// Every tool, as it is declared.
pub(super) fn tools() -> Vec<Tool> {
    SpawnTool::ALL.into_iter().map(SpawnTool::definition).collect()
}

/// Calls a tool.
pub(super) async fn call(
    shared: &Shared,
    call: &Call,
    tool: SpawnTool,
    arguments: Option<JsonObject>,
) -> Result<Value, Failure> {
    match tool {
        SpawnTool::AvailableAgents => told(available_agents::call(shared, call, arguments).await?),
        SpawnTool::PromptToAgent => {
            told_of_child(prompt_to_agent::call(shared, call, arguments).await?, &["content"])
        }
        SpawnTool::CheckSessionStatus => {
            told_of_child(check_session_status::call(shared, call, arguments).await?, &[])
        }
        SpawnTool::ReadResponse => told(read_response::call(shared, call, arguments).await?),
        SpawnTool::CancelSession => told(cancel_session::call(shared, call, arguments).await?),
    }
}

fn told(result: impl Serialize) -> Result<Value, Failure> {
    serde_json::to_value(result).map_err(|error| {
        tracing::error!(%error, "a result cannot be written");
        Failure::new(Code::SpawnInternalError, "the daemon failed on this call; its log says more")
    })
}

/// The same of what a child had a part in: its texts are escaped, but the named fields, which are its
/// answer byte for byte.
fn told_of_child(result: impl Serialize, verbatim: &[&str]) -> Result<Value, Failure> {
    let mut told = told(result)?;
    escape_texts(&mut told, verbatim);
    Ok(told)
}

/// How a tool is declared.
struct Definition {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    /// The properties of its input.
    input: Value,
    required: &'static [&'static str],
    output: JsonObject,
    annotations: ToolAnnotations,
}

impl Definition {
    fn tool(self) -> Tool {
        let mut input = JsonObject::new();
        input.insert("type".to_owned(), "object".into());
        input.insert("properties".to_owned(), self.input);
        input.insert("required".to_owned(), json!(self.required));
        input.insert("additionalProperties".to_owned(), false.into());
        let mut tool = Tool::new(self.name, self.description, Arc::new(input));
        tool.title = Some(self.title.to_owned());
        tool.output_schema = Some(Arc::new(self.output));
        tool.annotations = Some(self.annotations);
        tool
    }
}

/// A tool that changes nothing.
fn reads() -> ToolAnnotations {
    ToolAnnotations::new().read_only(true).idempotent(true).open_world(false)
}

/// The schema of an identifier.
fn identifier(description: &str) -> Value {
    json!({
        "type": "string",
        "minLength": 1,
        "maxLength": IDENTIFIER_CHARS_MAX,
        "description": description,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tool_is_declared_under_its_name_with_flat_strict_input() {
        for tool in SpawnTool::ALL {
            let definition = tool.definition();
            assert_eq!(definition.name, tool.name());
            assert_eq!(SpawnTool::named(tool.name()), Some(tool));
            let input = &definition.input_schema;
            assert_eq!(input["type"], "object");
            assert_eq!(input["additionalProperties"], false);
            for composed in ["oneOf", "anyOf", "allOf", "$defs", "$ref"] {
                assert!(!input.contains_key(composed), "{} {composed}", tool.name());
            }
            jsonschema::validator_for(&Value::Object(input.as_ref().clone())).unwrap();
            let output = definition.output_schema.unwrap();
            assert_eq!(output["type"], "object");
            assert!(definition.annotations.is_some());
        }
        assert_eq!(SpawnTool::named("Prompt_To_Agent"), None);
    }

    #[test]
    fn no_tool_lets_its_input_say_who_calls() {
        for tool in SpawnTool::ALL {
            let definition = tool.definition();
            let fields = definition.input_schema["properties"].as_object().unwrap();
            for name in fields.keys() {
                for forbidden in ["caller", "parent", "workspace", "depth", "namespace", "token"] {
                    assert!(!name.to_lowercase().contains(forbidden), "{} {name}", tool.name());
                }
            }
        }
    }

    #[test]
    fn what_a_model_must_know_before_it_prompts_is_said() {
        let description = SpawnTool::PromptToAgent.definition().description.unwrap();
        for fact in ["share", "disjoint files", "no lock", "untrusted", "check_session_status"] {
            assert!(description.contains(fact), "{fact}: {description}");
        }
    }
}
