//! `spawnlet cancel`: a session's turns end, the session stays.

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::client::{Client, collection, item, with_query};
use super::failure::Failure;
use super::output::text;
use crate::api::Kind;
use crate::rest::resource::Resource;

const SESSION: Resource = Resource::Records(Kind::Session);
const TURN: Resource = Resource::Records(Kind::Turn);

/// Cancel a session's turns: those that wait and the one that runs. The session goes on.
#[derive(Debug, Args)]
pub(super) struct Cancel {
    /// The session's name or uid.
    session: String,
    /// Leave the turns that wait; the next one starts then.
    #[arg(long)]
    keep_inbox: bool,
}

impl Cancel {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let client = context.client()?;
        let session = client.get(&item(SESSION, &context.namespace, &self.session)).await?;
        let open = open_turns(&client, &context.namespace, &session).await?;
        let active = text(&session, "/status/activeTurn");
        let has_begun = |turn: &Value| {
            text(turn, "/metadata/name") == active || turn.pointer("/status/startedAt").is_some()
        };
        // The waiting ones first, so that none of them starts when the running one ends.
        let (running, waiting): (Vec<_>, Vec<_>) = open.into_iter().partition(has_begun);
        let chosen = if self.keep_inbox { Vec::new() } else { waiting };
        let mut count = 0;
        for turn in chosen.iter().chain(&running) {
            let name = text(turn, "/metadata/name");
            let patch = json!({"spec": {"desiredState": "cancelled"}});
            client.patch(&item(TURN, &context.namespace, name), &patch).await?;
            writeln!(context.out, "turn/{name} is being cancelled")?;
            count += 1;
        }
        if count == 0 {
            writeln!(context.out, "no turn to cancel")?;
        }
        Ok(())
    }
}

/// A session's turns that have not ended, oldest first.
async fn open_turns(
    client: &Client,
    namespace: &str,
    session: &Value,
) -> Result<Vec<Value>, Failure> {
    let selector = format!("spec.session={}", text(session, "/metadata/name"));
    let path = with_query(&collection(TURN, Some(namespace)), &[("fieldSelector", &selector)]);
    let mut list = client.get(&path).await?;
    let mut turns = match list["items"].take() {
        Value::Array(turns) => turns,
        _ => Vec::new(),
    };
    turns.retain(|turn| {
        turn.pointer("/status/finishedAt").is_none()
            && text(turn, "/spec/desiredState") != "cancelled"
    });
    turns.sort_by(|left, right| text(left, "/metadata/uid").cmp(text(right, "/metadata/uid")));
    Ok(turns)
}
