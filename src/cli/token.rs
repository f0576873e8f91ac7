//! `spawnlet token`: tokens by which agents and programs that the daemon does not run call it.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use hyper::Method;
use serde_json::{Value, json};

use super::Context;
use super::client::{Client, collection, encode, item};
use super::doctor::Form;
use super::failure::Failure;
use super::get::{eprint_line, whole_list};
use super::output::{TablePrinter, text};
use crate::api::agent::Permissions;
use crate::api::session::{ControlMode, Toolset};
use crate::api::{Dur, Kind};
use crate::rest::resource::Resource;

const SESSION: Resource = Resource::Records(Kind::Session);

/// Make, list, replace and revoke tokens of callers.
#[derive(Debug, Args)]
pub(super) struct Token {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Make a token, and its session if that is not there. The token is shown this once.
    Create(Create),
    /// Show the tokens that sessions have.
    List(List),
    /// Replace a token by a new one that opens the same.
    Rotate(Rotate),
    /// End a token at once.
    Revoke(Revoke),
}

/// What a token is for. A session that is there already keeps its directories and permissions.
#[derive(Debug, Args)]
pub(super) struct Terms {
    /// The workspace whose folders the caller's agents work in.
    #[arg(long, conflicts_with = "cwd")]
    workspace: Option<String>,
    /// The directory that they work in [default: the current one].
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// The toolsets that it opens: spawn, fleet, jobs, subagent, orchestrate. Only spawn has tools
    /// so far.
    #[arg(long, value_delimiter = ',', value_parser = word::<Toolset>, default_value = "spawn")]
    toolsets: Vec<Toolset>,
    /// What it may do to other sessions: read-only, message or full.
    #[arg(long, value_name = "MODE", value_parser = word::<ControlMode>, default_value = "read-only")]
    control_mode: ControlMode,
    /// What agents of this caller may do at most: deny-all, approve-reads, ask or approve-all.
    #[arg(long, value_name = "MODE", value_parser = word::<Permissions>)]
    permissions: Option<Permissions>,
    /// How long it is taken, 30m, 12h, 7d [default: until it is revoked].
    #[arg(long, value_name = "DURATION")]
    expires: Option<Dur>,
}

/// A word of the API.
fn word<T: serde::de::DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_json::from_value(json!(text)).map_err(|error| error.to_string())
}

/// Make a token.
#[derive(Debug, Args)]
struct Create {
    /// The session that calls; made if it is not there.
    #[arg(long, value_name = "NAME")]
    session: String,
    #[command(flatten)]
    terms: Terms,
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// Show tokens.
#[derive(Debug, Args)]
struct List {
    /// A session; all of the namespace if absent.
    session: Option<String>,
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// Replace a token.
#[derive(Debug, Args)]
struct Rotate {
    /// The session that it belongs to.
    session: String,
    /// The token's id, as `token list` shows it.
    id: String,
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// End a token.
#[derive(Debug, Args)]
struct Revoke {
    /// The session that it belongs to.
    session: String,
    /// The token's id, as `token list` shows it.
    id: String,
}

impl Token {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        match self.verb {
            Verb::Create(verb) => verb.run(context).await,
            Verb::List(verb) => verb.run(context).await,
            Verb::Rotate(verb) => verb.run(context).await,
            Verb::Revoke(verb) => verb.run(context).await,
        }
    }
}

impl Terms {
    /// Makes a token of a session by these terms and gives the daemon's answer. `is_own_directory`:
    /// a session that is there has to be one of this directory.
    pub(super) async fn make(
        &self,
        client: &Client,
        namespace: &str,
        session: &str,
        is_own_directory: bool,
    ) -> Result<Value, Failure> {
        let path = item(SESSION, namespace, session);
        let mut body = json!({"toolsets": self.toolsets, "controlMode": self.control_mode});
        if let Some(mode) = self.permissions {
            body["permissions"] = json!(mode);
        }
        if let Some(lifetime) = self.expires {
            body["expiresIn"] = json!(lifetime);
        }
        let is_told = self.workspace.is_some() || self.cwd.is_some();
        if let Some(workspace) = &self.workspace {
            body["workspace"] = json!(workspace);
        } else if is_told || is_own_directory || !is_there(client, &path).await? {
            body["cwd"] = json!(self.directory()?);
        }
        client.post(&format!("{path}/token"), &body).await
    }

    /// The directory that was named, or the current one.
    pub(super) fn directory(&self) -> Result<PathBuf, Failure> {
        let directory = self.cwd.clone().unwrap_or_else(|| ".".into());
        std::path::absolute(&directory)
            .map_err(|error| Failure::Usage(format!("--cwd {}: {error}", directory.display())))
    }
}

async fn is_there(client: &Client, path: &str) -> Result<bool, Failure> {
    match client.get(path).await {
        Ok(_) => Ok(true),
        Err(failure) if failure.is_not_found() => Ok(false),
        Err(failure) => Err(failure),
    }
}

impl Create {
    async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = context.client()?;
        let made = self.terms.make(&client, &context.namespace, &self.session, false).await?;
        show(&made, self.output, context)
    }
}

impl Rotate {
    /// The new one is there before the old one ends: a failure in between leaves two, not none.
    async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = context.client()?;
        let path = format!("{}/token", item(SESSION, &context.namespace, &self.session));
        let tokens = client.get(&path).await?;
        let items = tokens.get("items").and_then(Value::as_array);
        let old = items.into_iter().flatten().find(|token| text(token, "/id") == self.id);
        let Some(old) = old else {
            return Err(Failure::Failed(format!(
                "session/{} has no token {}; `spawnlet token list` shows what it has",
                self.session, self.id
            )));
        };
        let mut body = json!({});
        for field in ["toolsets", "controlMode", "expiresAt"] {
            if let Some(value) = old.get(field) {
                body[field] = value.clone();
            }
        }
        let made = client.post(&path, &body).await?;
        show(&made, self.output, context)?;
        end(&client, &path, &self.id).await
    }
}

/// Shows a new token.
fn show(made: &Value, output: Form, context: &mut Context<'_>) -> Result<(), Failure> {
    match output {
        Form::Json => {
            let part = |name: &str| made.get(name).cloned().unwrap_or_default();
            let shown = json!({
                "namespace": part("namespace"), "session": part("session"),
                "token": part("token"), "mcpUrl": part("mcpUrl"),
            });
            writeln!(context.out, "{shown:#}")?;
        }
        Form::Text => {
            let (session, id) = (text(made, "/session"), text(made, "/id"));
            writeln!(context.out, "session   {session}")?;
            writeln!(context.out, "id        {id}")?;
            writeln!(context.out, "token     {}", text(made, "/token"))?;
            writeln!(context.out, "MCP       {}", text(made, "/mcpUrl"))?;
            eprint_line(&format!(
                "The token is shown only now. Give it to one client, as the header\n\
                 `Authorization: Bearer TOKEN` at the address after MCP; `spawnlet mcp-config`\n\
                 writes that down in the client's own form. `spawnlet token revoke {session} {id}`\n\
                 ends it, and so does deleting the session."
            ));
        }
    }
    context.out.flush()?;
    Ok(())
}

async fn end(client: &Client, path: &str, id: &str) -> Result<(), Failure> {
    let path = format!("{path}/{}", encode(id));
    client.send(Method::DELETE, &path, "application/json", &json!({})).await?;
    Ok(())
}

impl List {
    async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = context.client()?;
        let sessions = match &self.session {
            Some(session) => vec![session.clone()],
            None => {
                let path = collection(SESSION, Some(&context.namespace));
                with_tokens(&whole_list(&client, &path, &[]).await?)
            }
        };
        let mut items = Vec::new();
        let mut printer = TablePrinter::default();
        for session in &sessions {
            let path = format!("{}/token", item(SESSION, &context.namespace, session));
            let told = match self.output {
                Form::Json => client.get(&path).await,
                Form::Text => client.table(&path).await,
            };
            let told = match told {
                // It went while the list was read.
                Err(failure) if failure.is_not_found() && self.session.is_none() => continue,
                told => told?,
            };
            match (self.output, told.get("items").and_then(Value::as_array)) {
                (Form::Json, Some(tokens)) => items.extend(tokens.iter().cloned()),
                (Form::Json, None) => {}
                (Form::Text, _) => {
                    printer.print(&told, context.out)?;
                }
            }
        }
        match self.output {
            Form::Json => writeln!(context.out, "{:#}", json!({"items": items}))?,
            Form::Text if !printer.has_printed() => eprint_line("no tokens"),
            Form::Text => {}
        }
        Ok(())
    }
}

/// The names of the sessions that have tokens.
fn with_tokens(list: &Value) -> Vec<String> {
    let has_tokens = |session: &&Value| {
        session
            .pointer("/status/tokens")
            .and_then(Value::as_array)
            .is_some_and(|all| !all.is_empty())
    };
    let sessions = list.get("items").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    sessions.iter().filter(has_tokens).map(|one| text(one, "/metadata/name").to_owned()).collect()
}

impl Revoke {
    async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = context.client()?;
        let path = format!("{}/token", item(SESSION, &context.namespace, &self.session));
        end(&client, &path, &self.id).await?;
        writeln!(context.out, "token {} of session/{} is revoked", self.id, self.session)?;
        Ok(())
    }
}
