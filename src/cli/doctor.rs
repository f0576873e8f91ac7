//! `spawnlet doctor`: asks the daemon how it is.

use clap::{Args, ValueEnum};
use hyper::{Method, header};
use serde_json::{Value, json};

use super::Context;
use super::failure::Failure;
use super::output::text;

/// Ask the daemon how it is. Exit code 1 if something is wrong.
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
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = context.client()?;
        let headers = [(header::ACCEPT, "application/json")];
        let (code, mut reply) =
            client.ask(Method::GET, "/readyz?verbose", &headers, bytes::Bytes::new()).await?;
        let body = reply.bytes().await?;
        let told: Value = serde_json::from_slice(&body).unwrap_or_default();
        // Readiness is told with 503 too; anything else is a refusal.
        if told.get("ready").is_none() {
            return Err(Failure::of_status(code.as_u16(), &body));
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
    format!(
        "{}={} {}{separator}{message}",
        text(condition, "/type"),
        text(condition, "/status"),
        text(condition, "/reason"),
    )
}
