//! `spawnlet://sessions/<uid>`: the caller's sessions as MCP resources, so that a client can be told
//! when one of them has something new.

use rmcp::model::{
    ListResourcesResult, ReadResourceResult, Resource, ResourceContents, ResourceTemplate,
};
use serde_json::Value;

use super::check_session_status;
use crate::admission::Caller;
use crate::api::{Session, Uid};
use crate::mcp::Shared;
use crate::mcp::failure::Failure;
use crate::mcp::input::IDENTIFIER_CHARS_MAX;

const PREFIX: &str = "spawnlet://sessions/";
const MIME_TYPE: &str = "application/json";
/// Resources of one page.
const PAGE: usize = 100;

/// The resource of a session.
pub(in crate::mcp) fn uri_of(session: &Uid) -> String {
    format!("{PREFIX}{session}")
}

/// The session that a resource is of, whoever's it is.
pub(in crate::mcp) fn uid_in(uri: &str) -> Option<Uid> {
    let uid = uri.strip_prefix(PREFIX)?;
    let is_identifier = !uid.is_empty() && uid.len() <= IDENTIFIER_CHARS_MAX;
    (is_identifier && !uid.contains(['/', '\\', '\0'])).then(|| Uid::from(uid))
}

/// How the resources are named.
pub(in crate::mcp) fn template() -> ResourceTemplate {
    ResourceTemplate::new(format!("{PREFIX}{{sessionId}}"), "session")
        .with_description("What check_session_status says of a session of yours.")
        .with_mime_type(MIME_TYPE)
}

/// The caller's session that a resource is of.
pub(in crate::mcp) async fn own(
    shared: &Shared,
    caller: &Caller,
    uri: &str,
) -> Result<Option<Session>, Failure> {
    match uid_in(uri) {
        Some(uid) => Ok(shared.admission.child(caller, &uid).await?),
        None => Ok(None),
    }
}

/// The caller's sessions, oldest first. A cursor is the uid of the last one told of.
pub(in crate::mcp) async fn list(
    shared: &Shared,
    caller: &Caller,
    cursor: Option<&str>,
) -> Result<ListResourcesResult, Failure> {
    let mut children = shared.admission.children(caller).await?;
    if let Some(after) = cursor {
        // Uids are in the order of time, so what went in between leaves no hole.
        children.retain(|session| session.metadata.uid.as_str() > after);
    }
    let has_more = children.len() > PAGE;
    children.truncate(PAGE);
    let next = children.last().filter(|_| has_more);
    let next = next.map(|session| session.metadata.uid.as_str().to_owned());
    let mut result =
        ListResourcesResult::with_all_items(children.iter().map(resource_of).collect());
    result.next_cursor = next;
    Ok(result)
}

fn resource_of(session: &Session) -> Resource {
    let agent = &session.spec.agent;
    let name = session.metadata.name.as_str();
    Resource::new(uri_of(&session.metadata.uid), name)
        .with_description(format!("A session of the agent {agent}: what it is doing."))
        .with_mime_type(MIME_TYPE)
}

/// What `check_session_status` says of the session; none for one that is not the caller's.
pub(in crate::mcp) async fn read(
    shared: &Shared,
    caller: &Caller,
    uri: &str,
) -> Result<Option<ReadResourceResult>, Failure> {
    let Some(session) = own(shared, caller, uri).await? else { return Ok(None) };
    let uid = session.metadata.uid;
    let standing = check_session_status::of(shared, caller, &uid).await?;
    let mut told = super::told_of_child(standing, &[])?;
    if let Value::Object(fields) = &mut told {
        fields.insert("sessionId".to_owned(), Value::String(uid.to_string()));
        fields.insert("agentId".to_owned(), Value::String(session.spec.agent));
    }
    let contents = ResourceContents::text(told.to_string(), uri).with_mime_type(MIME_TYPE);
    Ok(Some(ReadResourceResult::new(vec![contents])))
}
