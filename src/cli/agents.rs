//! `spawnlet agents`: which agents there are and whether their programs are found.
//!
//! `check` asks the daemon for a fresh look by an annotation, and waits for the status that answers
//! it: the daemon's own path counts, not that of the terminal. With `--warm` it has them started
//! (`warm`).

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};

use super::Context;
use super::bundled::Import;
use super::client::{Client, collection, item};
use super::failure::Failure;
use super::get::{eprint_line, whole_list};
use super::login::Login;
use super::observe::{Subject, until};
use super::output::{TablePrinter, readable};
use super::warm;
use crate::api::agent::{AVAILABLE, check_request};
use crate::api::{Agent, CHECK_REQUESTED, Kind};
use crate::rest::resource::Resource;

pub(super) const AGENTS: Resource = Resource::Records(Kind::Agent);

/// Show agents and whether they are there; check again; add those that are known.
#[derive(Debug, Args)]
pub(super) struct Agents {
    #[command(subcommand)]
    pub(super) what: Option<What>,
}

#[derive(Debug, Subcommand)]
pub(super) enum What {
    /// Look for the agents' programs again, on the daemon's path. Starts nothing but with --warm.
    Check(Check),
    /// Add bundled agents. Objects that are there are left alone.
    Import(Import),
    /// Log in to an agent in this terminal, in the home that it has.
    Login(Login),
}

/// Look for the agents' programs again.
#[derive(Debug, Args)]
pub(super) struct Check {
    /// Agents; all if none is named. Of a named one that is not available it is said why, and the
    /// exit code is 1.
    names: Vec<String>,
    /// Have the daemon start each named agent once, up to an open session, and stop it again:
    /// what it downloads first is there then, and its version and capabilities are known. In an
    /// empty directory, without a prompt, one after the other.
    #[arg(long, requires = "names")]
    warm: bool,
    /// How long to wait for the daemon's answer [default: 30s; of --warm: as long as a start may
    /// take]. Exit code 75 when it is over.
    #[arg(long, value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
    /// With --warm: how each start went, as one JSON document.
    #[arg(short, long, value_enum, requires = "warm")]
    output: Option<Form>,
}

/// The form of what `--warm` tells.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Form {
    Json,
}

/// How long the answer to a look takes at most: a look is a few calls into the file system.
const ANSWER_MAX: Duration = Duration::from_secs(30);

impl Agents {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        match self.what {
            Some(What::Check(check)) => check.run(context).await,
            Some(What::Import(import)) => import.run(context).await,
            // `run` of the command line took it before.
            Some(What::Login(_)) => Ok(()),
            None => {
                let agents = all(&context.client()?).await?;
                show(&agents, context)
            }
        }
    }
}

impl Check {
    async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        if self.warm {
            return warm::run(&self.names, self.timeout, self.output.is_some(), context).await;
        }
        let client = context.client()?;
        let names = if self.names.is_empty() {
            all(&client).await?.into_iter().map(|agent| agent.metadata.name.to_string()).collect()
        } else {
            self.names.clone()
        };
        // All at once, then the answers: they come in whatever order.
        let mut asked = Vec::with_capacity(names.len());
        for name in &names {
            let request = json!({CHECK_REQUESTED: uuid::Uuid::now_v7().to_string()});
            let patch = json!({"metadata": {"annotations": request}});
            asked.push(decode(client.patch(&item(AGENTS, "", name), &patch).await?)?);
        }
        let mut agents = Vec::with_capacity(asked.len());
        for asked in &asked {
            agents.push(answer(&client, asked, self.timeout.unwrap_or(ANSWER_MAX)).await?);
        }
        show(&agents, context)?;
        if !self.names.is_empty() {
            agents.iter().for_each(tell_why);
        }
        let missing: Vec<&str> = agents
            .iter()
            .filter(|agent| !agent.status.conditions.is_true(AVAILABLE))
            .map(|agent| agent.metadata.name.as_str())
            .collect();
        if self.names.is_empty() || missing.is_empty() {
            return Ok(());
        }
        Err(Failure::Failed(format!("not available: {}", missing.join(", "))))
    }
}

/// Waits for the status that answers a request, or one that came after it.
async fn answer(client: &Client, asked: &Agent, timeout: Duration) -> Result<Agent, Failure> {
    let name = asked.metadata.name.as_str();
    let subject = Subject { resource: AGENTS, namespace: "", name };
    until(client, subject, Some(timeout), |object| {
        let agent = object.cloned().map(decode).transpose()?;
        let Some(agent) = agent.filter(|agent| agent.metadata.uid == asked.metadata.uid) else {
            return Err(Failure::Failed(format!("agent/{name} was deleted meanwhile")));
        };
        let answered = agent.status.last_check.as_ref().map(|last| last.request.as_str());
        let is_answered =
            answered.is_some() && answered == check_request(&agent.metadata).as_deref();
        Ok(is_answered.then_some(agent))
    })
    .await
}

async fn all(client: &Client) -> Result<Vec<Agent>, Failure> {
    let mut list = whole_list(client, &collection(AGENTS, None), &[]).await?;
    let items = list["items"].as_array_mut().map(std::mem::take).unwrap_or_default();
    items
        .into_iter()
        .map(|mut item| {
            // Items of a list need not say what they are.
            item["apiVersion"] = json!(AGENTS.api_version());
            item["kind"] = json!(AGENTS.kind());
            decode(item)
        })
        .collect()
}

pub(super) fn decode(agent: Value) -> Result<Agent, Failure> {
    serde_json::from_value(agent)
        .map_err(|error| Failure::Failed(format!("the daemon's answer is no Agent: {error}")))
}

fn show(agents: &[Agent], context: &mut Context<'_>) -> Result<(), Failure> {
    const COLUMNS: [&str; 4] = ["Name", "Installed", "Executable", "Version"];
    let rows: Vec<Value> = agents.iter().map(|agent| json!({"cells": cells(agent)})).collect();
    let columns: Vec<Value> =
        COLUMNS.iter().map(|name| json!({"name": name, "priority": 0})).collect();
    let table = json!({"columnDefinitions": columns, "rows": rows});
    if TablePrinter::new(false, false).print(&table, context.out)? == 0 {
        eprint_line("no agents found; `spawnlet agents import` adds the bundled ones");
    }
    Ok(())
}

/// Says why an agent is not available, if it is not.
fn tell_why(agent: &Agent) {
    let conditions = &agent.status.conditions;
    if let Some(found) = conditions.get(AVAILABLE).filter(|_| !conditions.is_true(AVAILABLE)) {
        let name = &agent.metadata.name;
        eprint_line(&readable(&format!("agent/{name}: {}: {}", found.reason, found.message)));
    }
}

fn cells(agent: &Agent) -> [String; 4] {
    let status = &agent.status;
    let installed = status.installed.map(|installed| installed.to_string());
    [
        agent.metadata.name.to_string(),
        installed.unwrap_or_default(),
        readable(status.executable.as_deref().unwrap_or_default()),
        readable(status.version.as_deref().unwrap_or_default()),
    ]
}
