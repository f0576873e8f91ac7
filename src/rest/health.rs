//! `/healthz`, `/livez`, `/readyz`.

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use serde_json::json;

use super::query::Query;
use super::{State, json_response, text_response};
use crate::api::{Condition, ConditionStatus};

/// The daemon answers: that is all that is asked.
pub(super) fn alive() -> Response {
    text_response(StatusCode::OK, "ok")
}

/// Whether the daemon is ready, with its conditions if `verbose` (JSON if that is accepted).
pub(super) fn ready(state: &State, headers: &HeaderMap, query: &Query) -> Response {
    let is_ready = state.health.is_ready();
    let code = if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let conditions = state.health.conditions();
    if headers.get(header::ACCEPT) == Some(&HeaderValue::from_static("application/json")) {
        return json_response(
            code,
            &json!({
                "ready": is_ready,
                "version": env!("CARGO_PKG_VERSION"),
                "conditions": conditions,
            }),
        );
    }
    if !query.has("verbose") {
        return text_response(code, if is_ready { "ok" } else { "not ready" });
    }
    let mut text = String::new();
    for condition in &conditions {
        text.push_str(&verbose_line(condition));
    }
    text.push_str(if is_ready {
        "readyz check passed\n"
    } else {
        "readyz check failed: leftovers are cleared and every manifest directory is listed and \
         applied once before the daemon is ready\n"
    });
    text_response(code, text)
}

fn verbose_line(condition: &Condition) -> String {
    let Condition { kind, reason, message, .. } = condition;
    let separator = if message.is_empty() { "" } else { ": " };
    match condition.status {
        // Of all daemon conditions only this one is bad when it holds.
        ConditionStatus::True if kind != "DiskPressure" => {
            format!("[+]{kind} ok: {reason}{separator}{message}\n")
        }
        ConditionStatus::False if kind == "DiskPressure" => {
            format!("[+]{kind} none: {reason}{separator}{message}\n")
        }
        ConditionStatus::True | ConditionStatus::False => {
            format!("[-]{kind} failed: {reason}{separator}{message}\n")
        }
        ConditionStatus::Unknown => format!("[?]{kind} unknown: {reason}{separator}{message}\n"),
    }
}
