//! Request bodies: bounded in bytes and in time, and of the media types that are taken.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};

use super::status::Failure;

/// The largest request body (`mcp.requestBytes`): room for a prompt of 768 KiB in any escaping
/// that JSON libraries use by default.
pub const BODY_BYTES_MAX: usize = 2 * 1024 * 1024;
/// How long a request body may take.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Reads a whole body.
///
/// # Errors
///
/// 413 over the bound (before anything is read, if the client tells the length), 408 if it takes
/// too long, 400 if the client breaks off.
pub(super) async fn read(headers: &HeaderMap, body: Body) -> Result<Bytes, Failure> {
    let told = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<u64>().ok());
    if told.is_some_and(|bytes| bytes > BODY_BYTES_MAX as u64) {
        return Err(too_large());
    }
    let whole = Limited::new(body, BODY_BYTES_MAX).collect();
    match tokio::time::timeout(BODY_TIMEOUT, whole).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => Err(too_large()),
        Ok(Err(error)) => {
            tracing::debug!(%error, "a request body broke off");
            Err(Failure::bad_request("the request body broke off"))
        }
        Err(_) => Err(Failure::new(
            StatusCode::REQUEST_TIMEOUT,
            "Timeout",
            format!("the request body took longer than {} s", BODY_TIMEOUT.as_secs()),
        )),
    }
}

/// The same for a body that may have been read before; then it is empty.
pub(super) async fn take(headers: &HeaderMap, body: &mut Option<Body>) -> Result<Bytes, Failure> {
    read(headers, body.take().unwrap_or_default()).await
}

fn too_large() -> Failure {
    Failure::too_large(format!(
        "the request body is larger than the limit of {BODY_BYTES_MAX} bytes"
    ))
}

/// The media type of a body, without parameters, in lower case; `None` if there is no header.
pub(super) fn media_type(headers: &HeaderMap) -> Option<String> {
    let value = headers.get(header::CONTENT_TYPE)?;
    let text = value.to_str().unwrap_or("?");
    Some(text.split(';').next().unwrap_or_default().trim().to_ascii_lowercase())
}

/// Takes JSON, also where no type is told (kube, `create --raw`).
///
/// # Errors
///
/// 415 for another type.
pub(super) fn expect_json(headers: &HeaderMap) -> Result<(), Failure> {
    match media_type(headers).as_deref() {
        None | Some("" | "application/json") => Ok(()),
        Some(other) => Err(Failure::unsupported_media_type(format!(
            "the body is {other}; send application/json"
        ))),
    }
}

/// Takes a JSON merge patch (RFC 7396).
///
/// # Errors
///
/// 415 for another type; clients print the text.
pub(super) fn expect_merge_patch(headers: &HeaderMap) -> Result<(), Failure> {
    match media_type(headers).as_deref() {
        Some("application/merge-patch+json") => Ok(()),
        other => Err(Failure::unsupported_media_type(format!(
            "the patch is {}; only application/merge-patch+json is supported here \
             (kubectl patch --type=merge)",
            other.filter(|text| !text.is_empty()).unwrap_or("of no type")
        ))),
    }
}
