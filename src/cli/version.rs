//! `spawnlet version`.

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::doctor::Form;
use super::failure::Failure;
use super::output::text;

/// Print the versions of client and daemon.
#[derive(Debug, Args)]
pub(super) struct Version {
    /// Only the client's.
    #[arg(long)]
    client: bool,
    /// The form of output.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

impl Version {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = env!("CARGO_PKG_VERSION");
        let daemon = if self.client { None } else { daemon_version(context).await };
        match self.output {
            Form::Json => {
                let versions = json!({"client": client, "daemon": daemon});
                writeln!(context.out, "{versions:#}")?;
            }
            Form::Text => {
                writeln!(context.out, "client  {client}")?;
                if !self.client {
                    let version = daemon.as_ref().map(|daemon| text(daemon, "/gitVersion"));
                    writeln!(context.out, "daemon  {}", version.unwrap_or("not reached"))?;
                }
            }
        }
        Ok(())
    }
}

/// What the daemon says, if there is one: asking for versions is no reason to fail.
async fn daemon_version(context: &Context<'_>) -> Option<Value> {
    context.client().ok()?.get("/version").await.ok()
}
