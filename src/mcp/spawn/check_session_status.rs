//! `check_session_status`: what a session is doing. Never waits.

use rmcp::model::{JsonObject, Tool};
use serde_json::json;

use super::results::schema;
use super::standing::{self, Known, Standing};
use super::{Definition, identifier, reads};
use crate::admission::Caller;
use crate::api::turn::TurnPhase;
use crate::api::{Session, Turn, TurnSpec, Uid};
use crate::mcp::Shared;
use crate::mcp::call::Call;
use crate::mcp::failure::Failure;
use crate::mcp::input::Arguments;
use crate::store::keys;
use crate::store::records::Error;

pub(super) const NAME: &str = "check_session_status";

pub(super) fn definition() -> Tool {
    Definition {
        name: NAME,
        title: "Check a session",
        description: "\
Says what a session of yours is doing, without waiting. `running`: a turn works; look again later (a \
minute between looks is often enough; lastProgressAt tells whether it gets on; with waitingFor it \
waits for a person to allow or deny something). `idle`: the turn \
ended; read its answer with read_response and latestResponseId, or go on with prompt_to_agent and the \
same sessionId. `error`: the turn or the session failed; responseId, if there is one, is what had \
been said until then. `interrupted`: the daemon stopped in the turn; nothing is sent again by itself. \
`expired`: the session cannot go on; begin a new one. `not_found`: you have no such session.",
        input: json!({"sessionId": identifier("The session, as prompt_to_agent gave it.")}),
        required: &["sessionId"],
        output: schema::<Standing>(),
        annotations: reads(),
    }
    .tool()
}

pub(super) async fn call(
    shared: &Shared,
    call: &Call,
    arguments: Option<JsonObject>,
) -> Result<Standing, Failure> {
    let session = Arguments::new(NAME, &["sessionId"], arguments)?.required("sessionId")?;
    of(shared, &call.caller, &Uid::from(session)).await
}

/// What a session of a caller's is doing.
pub(super) async fn of(
    shared: &Shared,
    caller: &Caller,
    session: &Uid,
) -> Result<Standing, Failure> {
    if shared.admission.child(caller, session).await?.is_none() {
        return Ok(Standing::NotFound);
    }
    // Before the session: a turn that ends in between is the session's latest turn then. The other
    // way round it would be neither.
    let open = shared.records.open_turns(session).await?;
    match shared.admission.child(caller, session).await? {
        Some(session) => Ok(of_own(shared, &session, &open).await?),
        None => Ok(Standing::NotFound),
    }
}

/// What a session is doing that is known to be the caller's.
async fn of_own(shared: &Shared, session: &Session, open: &[Turn]) -> Result<Standing, Error> {
    let uid = &session.metadata.uid;
    let latest = match &session.status.latest_turn {
        Some(name) => shared.records.get::<TurnSpec>(&session.metadata.namespace, name).await?,
        None => None,
    };
    let newest = match shared.records.pointed_at(&keys::turns_of(uid)).await?.last() {
        Some(key) => shared.records.at::<TurnSpec>(key).await?,
        None => None,
    };
    let live = shared.live.activity(uid);
    Ok(standing::of(&Known {
        session,
        open: first_open(open),
        latest: latest.as_ref().filter(|turn| is_told_of(turn)),
        newest: newest.as_ref(),
        live: live.as_ref(),
    }))
}

/// The open turn that the agent has, or gets next.
pub(super) fn first_open(open: &[Turn]) -> Option<&Turn> {
    let is_open = |turn: &&Turn| !turn.status.phase.is_final();
    let is_taken = |turn: &&Turn| turn.status.phase != TurnPhase::Pending;
    open.iter().filter(is_open).find(is_taken).or_else(|| open.iter().find(is_open))
}

/// A turn that was discarded is no latest turn.
fn is_told_of(turn: &Turn) -> bool {
    turn.status.phase.is_final() && turn.status.phase != TurnPhase::Discarded
}
