//! How the guard says no: a Kubernetes `Status`, as the API behind it does.

use axum::body::Body;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

/// A Kubernetes `Status` that says no, without details.
#[must_use]
pub fn status_object(code: StatusCode, reason: &str, message: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        "code": code.as_u16(),
    })
}

/// A request that does not come through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    code: StatusCode,
    reason: &'static str,
    message: String,
    /// A header that belongs to the code.
    header: Option<(header::HeaderName, &'static str)>,
}

impl Refused {
    fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), header: None }
    }

    /// 401. Says nothing about the token that was sent.
    pub(super) fn unauthorized() -> Self {
        Self {
            header: Some((header::WWW_AUTHENTICATE, "Bearer")),
            ..Self::new(
                StatusCode::UNAUTHORIZED,
                "Unauthorized",
                "Unauthorized: send `Authorization: Bearer TOKEN`; the operator's token is in \
                 operator.token in the daemon's data directory, a caller's comes from \
                 `spawnlet token create` and goes with its session",
            )
        }
    }

    /// 403: understood and refused.
    pub(super) fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 404: there is no such thing.
    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "NotFound", message)
    }

    /// 405: nothing here takes this method.
    pub(super) fn method_not_allowed(method: &Method, allowed: &'static str) -> Self {
        let message = format!("the server does not allow {method} here; it allows {allowed}");
        Self {
            header: Some((header::ALLOW, allowed)),
            ..Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed", message)
        }
    }

    /// 413: a body over its bound.
    pub(super) fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// 415: a body of another kind than is taken here.
    pub(super) fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// 421: meant for somebody else.
    pub(super) fn misdirected(message: impl Into<String>) -> Self {
        Self::new(StatusCode::MISDIRECTED_REQUEST, "MisdirectedRequest", message)
    }

    /// 429: a limit of the token's is reached; nothing was done.
    pub(super) fn too_many(message: impl Into<String>) -> Self {
        let message = format!("{}; try again in a second", message.into());
        Self {
            header: Some((header::RETRY_AFTER, "1")),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "TooManyRequests", message)
        }
    }

    /// 500, with what the client may know; the rest is in the log.
    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// 503: nothing was done.
    pub(super) fn unavailable(message: impl Into<String>) -> Self {
        Self {
            header: Some((header::RETRY_AFTER, "1")),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message)
        }
    }

    /// The HTTP status.
    pub(super) const fn code(&self) -> StatusCode {
        self.code
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let mut status = status_object(self.code, self.reason, &self.message);
        if self.code == StatusCode::TOO_MANY_REQUESTS {
            status["details"] = json!({"retryAfterSeconds": 1});
        }
        let mut response = Response::new(Body::from(status.to_string()));
        *response.status_mut() = self.code;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some((name, value)) = self.header {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
