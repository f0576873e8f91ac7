//! `spawnlet spawn`: a session makes a child of itself. Meant for agents and their scripts: who asks
//! is said by the session's token alone, and the daemon decides what the child may have.

use std::path::PathBuf;

use bytes::Bytes;
use clap::Args;
use hyper::{Method, header};
use serde_json::{Value, json};

use super::Context;
use super::client::{collection, with_query};
use super::failure::Failure;
use super::output::Output;
use super::prompt::prompt_text;
use crate::api::{Dur, Kind};
use crate::rest::resource::Resource;

const SESSION: Resource = Resource::Records(Kind::Session);
const JSON: &str = "application/json";
const IDEMPOTENCY_KEY: header::HeaderName = header::HeaderName::from_static("idempotency-key");

/// Make a child of the session whose token SPAWNLET_TOKEN holds, as an agent does.
#[derive(Debug, Args)]
#[command(after_help = "Exit codes: 65 no token, or a field is wrong, or a bound of the tree is \
                        reached; 77 the token, or more than the session itself may have; 69 no \
                        daemon; 75 no free turn slot.")]
pub(super) struct Spawn {
    /// The agent that the child runs.
    #[arg(long)]
    agent: String,
    /// How long the child lives at most, such as 30m; no longer than its parent.
    #[arg(long, value_name = "DURATION")]
    ttl: Dur,
    /// The `Role` that it plays.
    #[arg(long)]
    role: Option<String>,
    /// Its name [default: made from the agent's].
    #[arg(long)]
    name: Option<String>,
    /// Its model.
    #[arg(long)]
    model: Option<String>,
    /// Its first prompt; - reads it from standard input. Without one it waits.
    #[arg(long, value_name = "TEXT|-", allow_hyphen_values = true)]
    prompt: Option<String>,
    /// The workspace; it has to be the parent's.
    #[arg(long)]
    workspace: Option<String>,
    /// The one folder of the parent's workspace that it works in.
    #[arg(long)]
    folder: Option<String>,
    /// A tool that it may use; again for more. All of the parent's if absent.
    #[arg(long = "tool", value_name = "TOOL")]
    tools: Vec<String>,
    /// An MCP server of the parent's, by its name; again for more.
    #[arg(long = "mcp-server", value_name = "NAME")]
    mcp_servers: Vec<String>,
    /// A directory in the parent's directories, the first to work in; again for more. All of the
    /// parent's if absent.
    #[arg(long = "path", value_name = "DIR", conflicts_with = "folder")]
    paths: Vec<PathBuf>,
    /// Let it go on when the parent stops.
    #[arg(long)]
    no_auto_stop_on_parent: bool,
    /// Do not tell the parent of its ended turns.
    #[arg(long)]
    no_notify_parent: bool,
    /// Same key and same request: same child.
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// The form of output.
    #[arg(short, long, value_enum, default_value = "name")]
    output: Output,
}

impl Spawn {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        if !context.connection.clone()?.is_token_given {
            return Err(Failure::Data(
                "a session's token is required: set SPAWNLET_TOKEN; agents that may delegate have \
                 it in their environment, `spawnlet token create` makes one for others"
                    .to_owned(),
            ));
        }
        let body = self.body()?;
        let path = collection(SESSION, Some(&context.namespace));
        // Says that a child is meant: an operator's token would make a session without a parent.
        let path = with_query(&path, &[("spawn", "true")]);
        let mut headers = vec![(header::ACCEPT, JSON), (header::CONTENT_TYPE, JSON)];
        headers.extend(self.idempotency_key.as_deref().map(|key| (IDEMPOTENCY_KEY, key)));
        let body = Bytes::from(body.to_string());
        let reply = context.client()?.open(Method::POST, &path, &headers, body).await?;
        self.output.write(&reply.json().await?, SESSION, context.out)
    }

    fn body(&self) -> Result<Value, Failure> {
        let mut spec = json!({"agent": self.agent, "ttl": self.ttl});
        let texts = [
            ("role", &self.role),
            ("model", &self.model),
            ("workspace", &self.workspace),
            ("folder", &self.folder),
        ];
        for (field, text) in texts {
            if let Some(text) = text {
                spec[field] = json!(text);
            }
        }
        if let Some(prompt) = &self.prompt {
            spec["prompt"] = json!(prompt_text(Some(prompt), "")?);
        }
        if !self.tools.is_empty() {
            spec["toolFilter"] = json!({"allow": self.tools});
        }
        if !self.mcp_servers.is_empty() {
            let named = self.mcp_servers.iter().map(|name| json!({"name": name}));
            spec["mcpServers"] = named.collect();
        }
        if let Some((cwd, others)) = self.absolute_paths()?.split_first() {
            spec["cwd"] = json!(cwd);
            spec["additionalDirectories"] = json!(others);
        }
        if self.no_auto_stop_on_parent {
            spec["autoStopOnParent"] = json!(false);
        }
        if self.no_notify_parent {
            spec["notifyParent"] = json!(false);
        }
        let mut metadata = json!({});
        if let Some(name) = &self.name {
            metadata["name"] = json!(name);
        }
        Ok(json!({"metadata": metadata, "spec": spec}))
    }

    fn absolute_paths(&self) -> Result<Vec<PathBuf>, Failure> {
        let absolute = |path: &PathBuf| {
            // Resolved here, where `..` and links mean what the one who typed them sees.
            path.canonicalize()
                .map_err(|error| Failure::Data(format!("--path {}: {error}", path.display())))
        };
        self.paths.iter().map(absolute).collect()
    }
}
