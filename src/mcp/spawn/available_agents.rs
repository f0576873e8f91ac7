//! `available_agents`: whom a task can be handed to. Starts no process and makes no session.

use rmcp::model::{JsonObject, Tool};
use serde_json::json;

use super::results::{Agents, Listed, schema};
use super::{Definition, reads};
use crate::mcp::Shared;
use crate::mcp::call::Call;
use crate::mcp::failure::Failure;
use crate::mcp::input::Arguments;

pub(super) const NAME: &str = "available_agents";

pub(super) fn definition() -> Tool {
    Definition {
        name: NAME,
        title: "List agents",
        description: "\
Lists the coding agents on this machine that you can hand a task to with prompt_to_agent. Takes no \
arguments, starts nothing and costs nothing. Use an agentId from here exactly as it is.",
        input: json!({}),
        required: &[],
        output: schema::<Agents>(),
        annotations: reads(),
    }
    .tool()
}

pub(super) async fn call(
    shared: &Shared,
    call: &Call,
    arguments: Option<JsonObject>,
) -> Result<Agents, Failure> {
    Arguments::new(NAME, &[], arguments)?;
    let agents = shared.admission.available_agents(&call.caller, shared.inputs.as_ref()).await?;
    let agents = agents
        .into_iter()
        .map(|agent| {
            let agent_id = agent.metadata.name.as_str().to_owned();
            let name = agent.spec.display_name.unwrap_or_else(|| agent_id.clone());
            Listed { agent_id, name, description: agent.spec.description }
        })
        .collect();
    Ok(Agents { agents })
}
