//! `spawnlet doctor`: asks the daemon how it is, and which guards its machine has.
//!
//! The daemon looks, because its limits, mounts and kernel may be others than a terminal's. Where
//! none answers, this command looks itself and says so.

use std::io::Write;

use clap::{Args, ValueEnum};
use hyper::{Method, header};
use serde_json::{Value, json};

use super::Context;
use super::client::Client;
use super::failure::Failure;
use super::output::{one_line, text};
use crate::api::machine::{Guard, GuardState};

/// Ask the daemon how it is, and which guards its machine has. Exit code 1 if something is wrong; a
/// guard that is missing is told, and is no failure.
#[derive(Debug, Args)]
pub(super) struct Doctor {
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// The form of output of verbs that show no records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(super) enum Form {
    /// For people.
    #[default]
    Text,
    /// For programs.
    Json,
}

impl Doctor {
    /// The code and body of the daemon's answer.
    async fn ask(&self, client: &Client) -> Result<(u16, bytes::Bytes), Failure> {
        let headers = [(header::ACCEPT, "application/json")];
        let (code, mut reply) =
            client.ask(Method::GET, "/readyz?verbose", &headers, bytes::Bytes::new()).await?;
        Ok((code.as_u16(), reply.bytes().await?))
    }

    /// Tells what can be told without a daemon; gives the failure that there is none.
    fn alone(&self, why: String, context: &mut Context<'_>) -> Result<Failure, Failure> {
        let guards = (context.guards)();
        match self.output {
            Form::Json => {
                let told = json!({"ready": false, "guards": guards, "guardsSeenBy": "client"});
                writeln!(context.out, "{told:#}")?;
            }
            Form::Text => {
                writeln!(context.out, "daemon      not reached")?;
                writeln!(context.out, "client      {}", env!("CARGO_PKG_VERSION"))?;
                let title = "guards, as this command sees the machine (a daemon may see others):";
                show(title, guards, context.out)?;
            }
        }
        Ok(Failure::Unreachable(why))
    }

    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = context.client()?;
        let asked = self.ask(&client).await;
        let (code, body) = match asked {
            Err(Failure::Unreachable(why)) => return Err(self.alone(why, context)?),
            asked => asked?,
        };
        let told: Value = serde_json::from_slice(&body).unwrap_or_default();
        // Readiness is told with 503 too; anything else is a refusal.
        if told.get("ready").is_none() {
            return Err(Failure::of_status(code, &body));
        }
        let is_ready = told["ready"] == json!(true);
        let conditions = told["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        let faults: Vec<String> = conditions.iter().filter(|one| !is_well(one)).map(said).collect();
        match self.output {
            Form::Json => writeln!(context.out, "{told:#}")?,
            Form::Text => {
                writeln!(context.out, "daemon      {}", client.endpoint())?;
                writeln!(context.out, "version     {}", text(&told, "/version"))?;
                writeln!(context.out, "client      {}", env!("CARGO_PKG_VERSION"))?;
                writeln!(context.out, "ready       {}", if is_ready { "yes" } else { "no" })?;
                for one in conditions {
                    let mark = if is_well(one) { "ok " } else { "BAD" };
                    writeln!(context.out, "{mark}         {}", said(one))?;
                }
                let guards = serde_json::from_value(told["guards"].clone()).unwrap_or_default();
                show("guards, as the daemon sees its machine:", guards, context.out)?;
            }
        }
        match (is_ready, faults.as_slice()) {
            (true, []) => Ok(()),
            (true, faults) => {
                Err(Failure::Failed(format!("it is not well: {}", faults.join("; "))))
            }
            (false, _) => {
                // A condition that is merely unknown keeps nothing from being ready.
                let why: Vec<String> =
                    conditions.iter().filter(|one| is_bad(one)).map(said).collect();
                Err(Failure::Failed(if why.is_empty() {
                    "the daemon is not ready: it clears leftovers and reads the manifests first; \
                     ask again in a moment"
                        .to_owned()
                } else {
                    format!("the daemon is not ready: {}", why.join("; "))
                }))
            }
        }
    }
}

/// One guard a line, and below it what is lost without it.
fn show(title: &str, guards: Vec<Guard>, out: &mut dyn Write) -> Result<(), Failure> {
    if guards.is_empty() {
        return Ok(());
    }
    writeln!(out, "\n{title}")?;
    for Guard { name, state, found, lost, hint } in guards {
        let mark = match state {
            GuardState::Present => "ok",
            GuardState::Weak => "weak",
            GuardState::Absent => "missing",
            GuardState::Unknown => "unknown",
        };
        writeln!(out, "{mark:<12}{name:<14}{}", one_line(&found))?;
        for (what, text) in [("lost", lost), ("hint", hint)] {
            if !text.is_empty() {
                writeln!(out, "{:26}{what}: {}", "", one_line(&text))?;
            }
        }
    }
    Ok(())
}

/// Of the daemon's conditions only `DiskPressure` is bad when it holds.
fn is_well(condition: &Value) -> bool {
    let wanted = if text(condition, "/type") == "DiskPressure" { "False" } else { "True" };
    text(condition, "/status") == wanted
}

/// Whether a condition says that something is wrong, rather than nothing.
fn is_bad(condition: &Value) -> bool {
    !is_well(condition) && matches!(text(condition, "/status"), "True" | "False")
}

/// A condition in one line.
fn said(condition: &Value) -> String {
    let message = text(condition, "/message");
    let separator = if message.is_empty() { "" } else { ": " };
    one_line(&format!(
        "{}={} {}{separator}{message}",
        text(condition, "/type"),
        text(condition, "/status"),
        text(condition, "/reason"),
    ))
}
