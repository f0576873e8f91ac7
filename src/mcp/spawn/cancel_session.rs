//! `cancel_session`: asks for the end of a session that works.

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::json;

use super::results::{Cancelled, schema};
use super::{Definition, identifier};
use crate::api::Uid;
use crate::mcp::Shared;
use crate::mcp::call::Call;
use crate::mcp::failure::Failure;
use crate::mcp::input::Arguments;

pub(super) const NAME: &str = "cancel_session";

/// What is said where there is nothing to cancel: one text for absent, foreign and finished.
const NOTHING: &str = "Session not found";

pub(super) fn definition() -> Tool {
    Definition {
        name: NAME,
        title: "Cancel a session",
        description: "\
Ends a session of yours that is working. {cancelled: true} means that the end was asked for and will \
happen, not that it has happened: check_session_status shows `error` with the code \
TURN_CANCELLED_BY_PARENT once it has. A session that was cancelled cannot be prompted again; what it \
had answered stays readable. A session that is not working is not touched: {cancelled: false}.",
        input: json!({"sessionId": identifier("The session, as prompt_to_agent gave it.")}),
        required: &["sessionId"],
        output: schema::<Cancelled>(),
        annotations: ToolAnnotations::new()
            .read_only(false)
            .destructive(true)
            .idempotent(true)
            .open_world(false),
    }
    .tool()
}

pub(super) async fn call(
    shared: &Shared,
    call: &Call,
    arguments: Option<JsonObject>,
) -> Result<Cancelled, Failure> {
    let session = Arguments::new(NAME, &["sessionId"], arguments)?.required("sessionId")?;
    let cancelled = shared.admission.cancel_child(&call.caller, &Uid::from(session)).await?;
    let reason = (!cancelled).then(|| NOTHING.to_owned());
    Ok(Cancelled { cancelled, reason })
}
