//! `/secrets` and `/secrets/providers/{agent}/{slot}`: the vault, for operators.
//!
//! Secrets are no records: they have no watch, no version and no body to be read. PUT and DELETE
//! change one, GET of the collection gives names. No answer, error or log has a value in it.

use std::sync::Arc;

use axum::body::Body;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode};
use axum::response::Response;
use serde::Deserialize;
use serde_json::{Value, json};

use super::status::Failure;
use super::{State, body, json_response, ok};
use crate::api::API_VERSION;
use crate::ports::{SecretFault, Secrets};

/// What a PUT brings.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Told {
    value: String,
}

/// GET of the names.
pub(super) async fn list(state: &State) -> Result<Response, Failure> {
    let names = with_vault(state, |vault| vault.names()).await?;
    let items: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
    Ok(ok(&json!({
        "kind": "SecretNameList", "apiVersion": API_VERSION, "metadata": {}, "items": items,
    })))
}

/// PUT and DELETE of one.
pub(super) async fn change(
    state: &State,
    name: String,
    parts: &Parts,
    request_body: &mut Option<Body>,
) -> Result<Response, Failure> {
    match parts.method {
        Method::PUT => {
            body::expect_json(&parts.headers)?;
            let told = body::take(request_body).await?;
            // Not the parser's own words: they may repeat what it read.
            let told: Told = Some(&told)
                // A list would be read as the fields in their order.
                .filter(|told| told.trim_ascii_start().starts_with(b"{"))
                .and_then(|told| serde_json::from_slice(told).ok())
                .ok_or_else(|| {
                    Failure::bad_request("the body is no {\"value\": \"...\"} of a secret")
                })?;
            let shown = name.clone();
            let is_new = with_vault(state, move |vault| vault.set(&name, told.value)).await?;
            tracing::info!(secret = shown, is_new, "a secret was set");
            let code = if is_new { StatusCode::CREATED } else { StatusCode::OK };
            Ok(json_response(code, &success(&shown)))
        }
        Method::DELETE => {
            let shown = name.clone();
            let was_there = with_vault(state, move |vault| vault.delete(&name)).await?;
            if !was_there {
                return Err(Failure::new(
                    StatusCode::NOT_FOUND,
                    "NotFound",
                    format!("there is no secret {shown:?}; `spawnlet secret list` shows the names"),
                ));
            }
            tracing::info!(secret = shown, "a secret was deleted");
            Ok(ok(&success(&shown)))
        }
        _ => Err(Failure::method_not_allowed(
            parts.method.as_str(),
            "a secret is set by PUT and removed by DELETE; nothing gives its value",
        )),
    }
}

fn success(name: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {"name": name, "kind": "secrets"},
    })
}

/// Asks the vault, which reads and syncs files, off the threads that serve.
async fn with_vault<T: Send + 'static>(
    state: &State,
    ask: impl FnOnce(&dyn Secrets) -> Result<T, SecretFault> + Send + 'static,
) -> Result<T, Failure> {
    let vault = Arc::clone(&state.secrets);
    let answered = tokio::task::spawn_blocking(move || ask(vault.as_ref())).await;
    let outcome = answered.map_err(|error| {
        tracing::error!(%error, "the vault did not answer");
        Failure::internal("the vault did not answer")
    })?;
    outcome.map_err(|fault| match fault {
        SecretFault::Invalid(message) => {
            Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "Invalid", message)
        }
        SecretFault::Full(message) => Failure::new(StatusCode::CONFLICT, "Conflict", message),
        SecretFault::Unusable(message) => {
            tracing::error!(message, "the vault cannot be used");
            Failure::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
        }
    })
}
