//! `.../sessions/{name}/token`: tokens of callers, made, listed and revoked by operators.
//!
//! The token itself stands in the one answer that makes it and nowhere else.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use axum::response::Response;
use serde_json::{Value, json};

use super::query::Query;
use super::read::{find, object_of};
use super::resource::Item;
use super::sight::Sight;
use super::status::Failure;
use super::view::View;
use super::{State, age, body, json_response, ok, write};
use crate::admission::token::TokenRequest;
use crate::api::session::Toolset;
use crate::api::{API_VERSION, CallerToken, Kind, Name, Namespace, Time};

/// GET and POST of a session's tokens. POST makes the session too if it is not there.
pub(super) async fn tokens(
    state: &State,
    item: &Item,
    query: &Query,
    method: &Method,
    headers: &HeaderMap,
    request_body: &mut Option<Body>,
) -> Result<Response, Failure> {
    match *method {
        Method::GET | Method::HEAD => list(state, item, headers, query).await,
        Method::POST => create(state, item, headers, request_body).await,
        _ => Err(Failure::method_not_allowed(method.as_str(), "GET and POST are")),
    }
}

async fn create(
    state: &State,
    item: &Item,
    headers: &HeaderMap,
    request_body: &mut Option<Body>,
) -> Result<Response, Failure> {
    body::expect_json(headers)?;
    let told = body::take(request_body).await?;
    let request: TokenRequest = if told.iter().all(u8::is_ascii_whitespace) {
        TokenRequest::default()
    } else {
        serde_json::from_slice(&told)
            .map_err(|error| Failure::bad_request(format!("the body is no request: {error}")))?
    };
    let (namespace, name) = address(item);
    let made = state.admission.create_token(&namespace, &name, &request).await?;
    let answer = json!({
        "namespace": namespace,
        "session": name,
        "token": made.token,
        "mcpUrl": state.mcp_url,
        "id": made.stored.id,
        "toolsets": made.stored.toolsets,
        "controlMode": made.stored.control_mode,
        "expiresAt": made.stored.expires_at,
    });
    let mut response = json_response(StatusCode::CREATED, &answer);
    for toolset in made.stored.toolsets.iter().filter(|toolset| !toolset.is_served()) {
        let warning = format!(
            "the toolset {} is not served by this version: the token opens it once it is",
            word(*toolset)
        );
        let value = HeaderValue::from_str(&write::warning_header(&warning));
        response.headers_mut().extend(value.ok().map(|value| (write::WARNING, value)));
    }
    Ok(response)
}

async fn list(
    state: &State,
    item: &Item,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response, Failure> {
    let view = View::of(headers, query)?;
    let session = object_of(&find(state, &Sight::All, item, Kind::Session).await?)?;
    let tokens: Vec<CallerToken> = match session.pointer("/status/tokens") {
        None => Vec::new(),
        Some(tokens) => serde_json::from_value(tokens.clone()).map_err(|error| {
            tracing::error!(%error, "tokens of a session cannot be read");
            Failure::internal("the tokens of this session cannot be read")
        })?,
    };
    let name = session.pointer("/metadata/name").cloned().unwrap_or_default();
    let now = state.clock.now().time;
    Ok(ok(&match view {
        View::Table(_) => table(&name, &tokens, now),
        View::Plain | View::Partial => json!({
            "kind": "TokenList",
            "apiVersion": API_VERSION,
            "metadata": {},
            "items": tokens.iter().map(|token| shown(&name, token)).collect::<Vec<_>>(),
        }),
    }))
}

/// DELETE of one token.
pub(super) async fn revoke(
    state: &State,
    item: &Item,
    id: &str,
    method: &Method,
) -> Result<Response, Failure> {
    if *method != Method::DELETE {
        return Err(Failure::method_not_allowed(method.as_str(), "DELETE is"));
    }
    let (namespace, name) = address(item);
    match state.admission.revoke_token(&namespace, &name, id).await? {
        Some(token) => Ok(ok(&json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Success",
            "details": {"name": token.id, "kind": "tokens"},
        }))),
        None => Err(Failure::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!(
                "session {name:?} has no token {id:?}; `spawnlet token list` shows what it has"
            ),
        )),
    }
}

fn address(item: &Item) -> (Namespace, Name) {
    (Namespace::new(item.namespace.clone().unwrap_or_default()), Name::new(item.name.as_str()))
}

/// A token without its hash, which says nothing to anybody.
fn shown(session: &Value, token: &CallerToken) -> Value {
    let mut shown = json!({
        "id": token.id,
        "session": session,
        "toolsets": token.toolsets,
        "controlMode": token.control_mode,
        "createdAt": token.created_at,
    });
    if let (Some(at), Some(map)) = (token.expires_at, shown.as_object_mut()) {
        map.insert("expiresAt".to_owned(), json!(at));
    }
    shown
}

fn table(session: &Value, tokens: &[CallerToken], now: Time) -> Value {
    let columns: Vec<Value> = [
        ("Id", 0, "Names the token for revoking it."),
        ("Session", 0, "Whose token it is."),
        ("Toolsets", 0, "What it opens."),
        ("Control", 1, "What it may do to other sessions."),
        ("Age", 0, "How long ago it was made."),
        ("Expires", 0, "How long it is still taken."),
    ]
    .map(|(name, priority, description)| {
        json!({"name": name, "type": "string", "format": "", "priority": priority,
               "description": description})
    })
    .to_vec();
    let rows: Vec<Value> = tokens
        .iter()
        .map(|token| {
            let toolsets: Vec<String> = token.toolsets.iter().map(|one| word(*one)).collect();
            let expires = match token.expires_at {
                None => "never".to_owned(),
                Some(at) if at <= now => "expired".to_owned(),
                Some(at) => format!("in {}", age::span(at.since(now))),
            };
            json!({"cells": [token.id, session, toolsets.join(","), token.control_mode,
                             age::since(Some(token.created_at), now), expires]})
        })
        .collect();
    json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {},
        "columnDefinitions": columns,
        "rows": rows,
    })
}

/// A toolset as it is written.
fn word(toolset: Toolset) -> String {
    json!(toolset).as_str().unwrap_or_default().to_owned()
}
