//! Request bodies: read whole, within the guard's bounds, and of the media types that are taken.

use axum::body::Body;
use axum::http::{HeaderMap, StatusCode, header};
use bytes::Bytes;

use super::status::Failure;
use crate::guard::{self, BodyFault};

/// Reads a whole body.
///
/// # Errors
///
/// 413 over the bound, 408 if it takes too long, 400 if the client breaks off.
pub(super) async fn read(body: Body) -> Result<Bytes, Failure> {
    guard::read_body(body).await.map_err(|fault| match fault {
        BodyFault::TooLarge { .. } => Failure::too_large(fault.to_string()),
        BodyFault::TooSlow => {
            Failure::new(StatusCode::REQUEST_TIMEOUT, "Timeout", fault.to_string())
        }
        BodyFault::Broken => Failure::bad_request(fault.to_string()),
    })
}

/// The same for a body that may have been read before; then it is empty.
pub(super) async fn take(body: &mut Option<Body>) -> Result<Bytes, Failure> {
    read(body.take().unwrap_or_default()).await
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
