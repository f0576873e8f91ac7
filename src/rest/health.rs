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
                "guards": state.health.guards(),
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
    let bad: Vec<&str> =
        conditions.iter().filter(|one| is_bad(one)).map(|one| one.kind.as_str()).collect();
    if is_ready {
        text.push_str("readyz check passed\n");
    } else if bad.is_empty() {
        text.push_str(
            "readyz check failed: leftovers are cleared and every manifest directory is listed \
             and applied once before the daemon is ready\n",
        );
    } else {
        text.push_str(&format!("readyz check failed: {}\n", bad.join(", ")));
    }
    text_response(code, text)
}

/// Of all daemon conditions only `DiskPressure` is bad when it holds; `Unknown` is neither.
fn is_bad(condition: &Condition) -> bool {
    match condition.status {
        ConditionStatus::True => condition.kind == "DiskPressure",
        ConditionStatus::False => condition.kind != "DiskPressure",
        ConditionStatus::Unknown => false,
    }
}

fn verbose_line(condition: &Condition) -> String {
    let Condition { kind, reason, message, .. } = condition;
    let separator = if message.is_empty() { "" } else { ": " };
    match condition.status {
        ConditionStatus::Unknown => format!("[?]{kind} unknown: {reason}{separator}{message}\n"),
        _ if is_bad(condition) => format!("[-]{kind} failed: {reason}{separator}{message}\n"),
        ConditionStatus::True => format!("[+]{kind} ok: {reason}{separator}{message}\n"),
        ConditionStatus::False => format!("[+]{kind} none: {reason}{separator}{message}\n"),
    }
}
