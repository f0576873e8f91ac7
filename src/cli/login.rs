//! `spawnlet agents login`: the arguments, and the agent as the daemon has it. The program is
//! started by what the top of the program gives in (`server::login`).

use std::path::PathBuf;

use clap::Args;

use super::Context;
use super::agents::AGENTS;
use super::client::item;
use super::connect::default_data_dir;
use super::failure::Failure;
use crate::api::Agent;

/// What the help says beyond the first line.
const ABOUT: &str = "\
The program gets what the agent would: its variables and PATH and, with homePolicy: isolated, the \
agent's own home below the data directory, so that the agent finds the login there. Credentials of \
the vault are not given to it. Without a COMMAND the own login of claude, codex, opencode and pi is \
run; the protocol has no login by terminal that works for every agent, so of others it has to be \
told. Works on the daemon's machine, as the daemon's user.";

/// Log in to an agent in this terminal, in the home that it has.
#[derive(Clone, Debug, Args)]
#[command(after_help = ABOUT)]
pub(super) struct Login {
    /// The agent.
    name: String,
    /// The login command, instead of the one that is known.
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<String>,
}

/// What a login needs to know.
#[derive(Clone, Debug)]
pub struct LoginOptions {
    /// The agent's record.
    pub agent: Agent,
    /// The daemon's data directory.
    pub data_dir: PathBuf,
    /// The command that was told; empty: the known one.
    pub command: Vec<String>,
}

impl Login {
    /// Asks the daemon for the agent.
    pub(super) async fn options(
        self,
        context: &Context<'_>,
        global_data_dir: Option<PathBuf>,
    ) -> Result<LoginOptions, Failure> {
        let record = context.client()?.get(&item(AGENTS, "", &self.name)).await?;
        let agent = serde_json::from_value(record).map_err(|error| {
            Failure::Failed(format!("the daemon's answer is no Agent: {error}"))
        })?;
        let data_dir = global_data_dir.or_else(|| default_data_dir(&|name| std::env::var_os(name)));
        let data_dir = data_dir.ok_or_else(|| {
            Failure::Usage("name the daemon's data directory with --data-dir".to_owned())
        })?;
        Ok(LoginOptions { agent, data_dir, command: self.command })
    }
}
