//! `spawnlet logs`.

use clap::{Args, ValueEnum};

use super::Context;
use super::client::{item, with_query};
use super::failure::Failure;
use super::named::name_of;
use crate::api::Kind;
use crate::rest::resource::Resource;

/// Show what a session's turns said.
#[derive(Debug, Args)]
pub(super) struct Logs {
    /// The session's name or uid.
    session: String,
    /// Go on with what comes, until the turn or the session ends.
    #[arg(short, long)]
    follow: bool,
    /// This turn only.
    #[arg(long, value_name = "TURN")]
    turn: Option<String>,
    /// What the agent's newest process wrote to standard error (its last 128 KiB).
    #[arg(long, conflicts_with_all = ["follow", "turn", "output"])]
    stderr: bool,
    /// The form: text for people, json with one object an entry, acp as the agent sent it.
    #[arg(short, long, value_enum, default_value_t)]
    output: Form,
}

/// The form of a transcript.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Form {
    /// For people.
    #[default]
    Text,
    /// One JSON object an entry.
    Json,
    /// The agent's session updates.
    Acp,
}

impl Logs {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let name = name_of(Kind::Session, &self.session)?;
        let turn = self.turn.as_deref().map(|turn| name_of(Kind::Turn, turn)).transpose()?;
        let client = context.client()?;
        let session = item(Resource::Records(Kind::Session), &context.namespace, name);
        let path = if self.stderr {
            with_query(&format!("{session}/logs"), &[("stderr", "1")])
        } else {
            let format = match self.output {
                Form::Text => "text",
                Form::Json => "json",
                Form::Acp => "acp",
            };
            let query = [
                ("turn", turn.unwrap_or_default()),
                ("follow", if self.follow { "true" } else { "" }),
                ("format", format),
            ];
            with_query(&format!("{session}/transcript"), &query)
        };
        let mut reply = client.stream(&path, "*/*").await?;
        while let Some(chunk) = reply.chunk().await? {
            if self.stderr && context.is_terminal {
                // What an agent wrote must not steer the terminal.
                let text = crate::rest::printable(&String::from_utf8_lossy(&chunk));
                context.out.write_all(text.as_bytes())?;
            } else {
                context.out.write_all(&chunk)?;
            }
            context.out.flush()?;
        }
        Ok(())
    }
}
