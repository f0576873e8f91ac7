//! `Status` objects: the one shape in which this API says no.
//!
//! The text that clients see is made here; causes that might name internals stay in the log.
//! Reasons are Kubernetes' own (`metav1.StatusReason`), because clients decide by them.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::{Value, json};

use super::resource::Resource;
use crate::admission::Refusal;
use crate::api::Code;
use crate::guard::status_object;
use crate::store;

/// A refused or failed request.
#[derive(Clone, Debug, PartialEq)]
pub struct Failure {
    code: StatusCode,
    reason: &'static str,
    message: String,
    details: Option<Box<Details>>,
    retry_after_seconds: Option<u32>,
}

/// What the failure is about.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Details {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "str::is_empty")]
    group: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    kind: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    causes: Vec<Cause>,
    #[serde(rename = "retryAfterSeconds", skip_serializing_if = "Option::is_none")]
    retry_after_seconds: Option<u32>,
}

/// One fault of several.
#[derive(Clone, Debug, PartialEq, Serialize)]
struct Cause {
    reason: Value,
    #[serde(skip_serializing_if = "String::is_empty")]
    field: String,
    message: String,
}

impl Failure {
    /// A failure without details.
    #[must_use]
    pub fn new(code: StatusCode, reason: &'static str, message: impl Into<String>) -> Self {
        Self { code, reason, message: message.into(), details: None, retry_after_seconds: None }
    }

    /// 400: the request is malformed.
    #[must_use]
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequest", message)
    }

    /// 401: nobody knows who asks.
    #[must_use]
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "Unauthorized",
            "Unauthorized: send `Authorization: Bearer TOKEN`",
        )
    }

    /// 403: understood and refused.
    #[must_use]
    pub fn forbidden(message: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "Forbidden", message)
    }

    /// 404 for a path that this API does not have.
    #[must_use]
    pub fn no_such_path(path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!(
                "the server could not find the requested resource {path}; \
                 GET /apis/spawnlet.dev/v1alpha1 lists what there is"
            ),
        )
    }

    /// 404 for an object. `details.kind` is the plural here, as Kubernetes has it.
    #[must_use]
    pub fn not_found(resource: Resource, name: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!("{} \"{name}\" not found", resource.qualified()),
        )
        .about(resource.plural(), resource, name)
    }

    /// 405: the path is there, the verb is not.
    #[must_use]
    pub fn method_not_allowed(method: &str, hint: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "MethodNotAllowed",
            format!("the server does not allow {method} here; {hint}"),
        )
    }

    /// 406: none of the asked-for media types.
    #[must_use]
    pub fn not_acceptable() -> Self {
        Self::new(
            StatusCode::NOT_ACCEPTABLE,
            "NotAcceptable",
            "only application/json is served, also with as=Table or as=PartialObjectMetadata; \
             send Accept: application/json",
        )
    }

    /// 410: history is gone, list anew.
    #[must_use]
    pub fn expired(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "Expired", message)
    }

    /// 413: a body or value over its bound.
    #[must_use]
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestEntityTooLarge", message)
    }

    /// 415: a body of another kind than is taken here.
    #[must_use]
    pub fn unsupported_media_type(message: impl Into<String>) -> Self {
        Self::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", message)
    }

    /// 500, with what the client may know; the rest is in the log.
    #[must_use]
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "InternalError", message)
    }

    /// 503 for what was surely not done: clients try again after `Retry-After`.
    #[must_use]
    pub fn unavailable(message: impl Into<String>) -> Self {
        let mut failure = Self::new(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", message);
        failure.retry_after_seconds = Some(1);
        failure
    }

    /// Says what the failure is about.
    #[must_use]
    pub fn about(mut self, kind: &'static str, resource: Resource, name: &str) -> Self {
        self.details = Some(Box::new(Details {
            name: name.to_owned(),
            group: resource.group(),
            kind,
            retry_after_seconds: self.retry_after_seconds,
            ..Details::default()
        }));
        self
    }

    /// Asks the client to try again; only where nothing was done.
    #[must_use]
    pub const fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    /// Names the public code that the failure has.
    #[must_use]
    pub fn because(mut self, code: Code, message: &str) -> Self {
        let cause =
            Cause { reason: json!(code), field: String::new(), message: message.to_owned() };
        self.details = Some(Box::new(Details {
            causes: vec![cause],
            ..self.details.map_or_else(Details::default, |details| *details)
        }));
        self
    }

    /// The HTTP status.
    #[must_use]
    pub const fn code(&self) -> StatusCode {
        self.code
    }

    /// The sentence for the client.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The `Status` object.
    #[must_use]
    pub fn to_value(&self) -> Value {
        let mut status = status_object(self.code, self.reason, &self.message);
        if let (Some(details), Some(map)) = (&self.details, status.as_object_mut()) {
            map.insert("details".to_owned(), json!(details));
        }
        status
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        let code =
            StatusCode::from_u16(refusal.code()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if code.is_server_error() {
            tracing::error!(%refusal, "a write failed");
        }
        let told = refusal.details();
        let causes = told
            .causes
            .into_iter()
            .map(|error| Cause {
                reason: json!(error.reason),
                field: error.field.as_str().to_owned(),
                message: error.message,
            })
            .collect();
        let details = Details {
            name: told.name,
            group: told.group,
            kind: told.kind,
            causes,
            retry_after_seconds: told.retry_after_secs,
        };
        Self {
            code,
            reason: refusal.reason(),
            message: refusal.to_string(),
            details: (details != Details::default()).then(|| Box::new(details)),
            retry_after_seconds: told.retry_after_secs,
        }
    }
}

impl From<store::Error> for Failure {
    /// Where a store error has no better meaning. `Conflict` and `TooLarge` mean something only to
    /// those who wrote, so here they are what is left over.
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Conflict { .. } => Self::new(
                StatusCode::CONFLICT,
                "Conflict",
                format!("{error}; read it and try again"),
            ),
            store::Error::TooLarge { .. } => Self::too_large(error.to_string()),
            store::Error::Unavailable(_) => Self::unavailable(format!(
                "{error}; nothing was changed, try again; `spawnlet doctor` says more"
            )),
            store::Error::Unknown(_) => {
                Self::internal(format!("{error}; read the object before you try again"))
            }
            store::Error::Unsupported(_) => Self::internal(error.to_string()),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let mut response = super::json_response(self.code, &self.to_value());
        if let Some(seconds) = self.retry_after_seconds {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        if self.code == StatusCode::UNAUTHORIZED {
            response
                .headers_mut()
                .insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// The `Status` object of a deletion that left nothing to show.
#[must_use]
pub(super) fn deleted(resource: Resource, name: &str, uid: &str) -> Value {
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": name,
            "group": resource.group(),
            "kind": resource.plural(),
            "uid": uid,
        },
    })
}
