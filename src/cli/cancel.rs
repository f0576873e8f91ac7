//! `spawnlet cancel`: a session's turns end, the session stays.

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::client::{Client, collection, item, with_query};
use super::failure::Failure;
use super::named::name_of;
use super::output::text;
use crate::api::Kind;
use crate::rest::resource::Resource;

const SESSION: Resource = Resource::Records(Kind::Session);
const TURN: Resource = Resource::Records(Kind::Turn);

/// Cancel a session's turns: those that wait and the one that runs; or one turn. The session goes on.
#[derive(Debug, Args)]
pub(super) struct Cancel {
    /// The session's name or uid; or turn/NAME for this turn alone.
    #[arg(value_name = "SESSION | turn/TURN")]
    session: String,
    /// Leave the turns that wait; the next one starts then.
    #[arg(long)]
    keep_inbox: bool,
}

impl Cancel {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        if let Some(turn) = self.turn()? {
            let client = context.client()?;
            let turn = client.get(&item(TURN, &context.namespace, turn)).await?;
            let chosen = if is_open(&turn) { std::slice::from_ref(&turn) } else { &[] };
            return cancel(&client, chosen, context).await;
        }
        let name = name_of(Kind::Session, &self.session)?;
        let client = context.client()?;
        let session = client.get(&item(SESSION, &context.namespace, name)).await?;
        let open = open_turns(&client, &context.namespace, &session).await?;
        let active = text(&session, "/status/activeTurn");
        let has_begun = |turn: &Value| {
            text(turn, "/metadata/name") == active || turn.pointer("/status/startedAt").is_some()
        };
        // The waiting ones first, so that none of them starts when the running one ends.
        let (running, waiting): (Vec<_>, Vec<_>) = open.into_iter().partition(has_begun);
        let mut chosen = if self.keep_inbox { Vec::new() } else { waiting };
        chosen.extend(running);
        cancel(&client, &chosen, context).await
    }

    /// The turn, if one is named instead of a session.
    fn turn(&self) -> Result<Option<&str>, Failure> {
        let prefix = self.session.split_once('/').and_then(|(kind, _)| Resource::parse(kind));
        match prefix {
            Some(Resource::Records(Kind::Turn)) if self.keep_inbox => Err(Failure::Usage(
                "--keep-inbox goes with a session: one turn leaves the others alone".to_owned(),
            )),
            Some(Resource::Records(Kind::Turn)) => name_of(Kind::Turn, &self.session).map(Some),
            _ => Ok(None),
        }
    }
}

async fn cancel(
    client: &Client,
    turns: &[Value],
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    for turn in turns {
        let name = text(turn, "/metadata/name");
        let patch = json!({"spec": {"desiredState": "cancelled"}});
        client.patch(&item(TURN, &context.namespace, name), &patch).await?;
        writeln!(context.out, "turn/{name} is being cancelled")?;
    }
    if turns.is_empty() {
        writeln!(context.out, "no turn to cancel")?;
    }
    Ok(())
}

fn is_open(turn: &Value) -> bool {
    turn.pointer("/status/finishedAt").is_none() && text(turn, "/spec/desiredState") != "cancelled"
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
    turns.retain(is_open);
    turns.sort_by(|left, right| text(left, "/metadata/uid").cmp(text(right, "/metadata/uid")));
    Ok(turns)
}
