//! One HTTP request to `/mcp` or `/mcp/<toolset>`, before and after the protocol library has it.
//!
//! The guard let it in and says who asks. Here: the path names a toolset that there is, a session id
//! is the asker's own, a body is JSON. What the library is given carries [`Access`], and no
//! credentials any more.

use std::borrow::Cow;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use rmcp::transport::streamable_http_server::session::SessionId;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use serde::de::IgnoredAny;
use serde_json::json;

use super::Shared;
use super::server::Facade;
use super::session::{Owner, Sessions};
use crate::api::session::Toolset;
use crate::guard::{BodyFault, Principal, read_body};

/// Names a session of the older revisions.
const SESSION_ID: &str = "mcp-session-id";
/// JSON-RPC 2.0, section 5.1.
const PARSE_ERROR: i32 = -32700;
const INVALID_REQUEST: i32 = -32600;

/// What the facade knows of a request beside its body.
#[derive(Clone)]
pub(super) struct Access {
    /// Who asks.
    pub(super) principal: Principal,
    /// The one toolset that the path names; all of the token's if it names none.
    pub(super) toolset: Option<Toolset>,
    /// The MCP session, in the revisions that have them.
    pub(super) session: Option<SessionId>,
}

impl Access {
    /// Whether this request may see a toolset.
    pub(super) fn opens(&self, toolset: Toolset) -> bool {
        self.toolset.is_none_or(|named| named == toolset) && self.principal.opens(toolset)
    }
}

/// The facade behind its paths.
pub(super) struct Endpoint {
    shared: Arc<Shared>,
    service: StreamableHttpService<Facade, Sessions>,
}

impl Endpoint {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        let mut config = StreamableHttpServerConfig::default()
            // The guard has checked Host and Origin by the daemon's own lists.
            .disable_allowed_hosts()
            .disable_allowed_origins()
            .with_sse_retry(None)
            .with_json_response(true)
            // The guard bounds bodies, by a configuration that may change while the daemon runs.
            .with_max_request_body_bytes(usize::MAX);
        config.cancellation_token = shared.shutdown.clone();
        let facade = Arc::clone(&shared);
        let service = StreamableHttpService::new(
            move || Ok(Facade::new(Arc::clone(&facade))),
            Arc::clone(&shared.sessions),
            config,
        );
        Self { shared, service }
    }
}

/// A request that the library does not get.
struct Fault {
    status: StatusCode,
    /// Of JSON-RPC.
    code: i32,
    message: Cow<'static, str>,
    /// A header that belongs to it.
    header: Option<(header::HeaderName, &'static str)>,
}

impl Fault {
    fn new(status: StatusCode, code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { status, code, message: message.into(), header: None }
    }
}

/// A JSON-RPC error outside any call.
impl IntoResponse for Fault {
    fn into_response(self) -> Response {
        let error = json!({"code": self.code, "message": self.message});
        let body = json!({"jsonrpc": "2.0", "id": null, "error": error});
        let mut response = Response::new(Body::from(body.to_string()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some((name, value)) = self.header {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

/// Answers a request.
pub(super) async fn answer(State(endpoint): State<Arc<Endpoint>>, request: Request) -> Response {
    match Box::pin(endpoint.answer(request)).await {
        Ok(response) => response,
        Err(fault) => fault.into_response(),
    }
}

impl Endpoint {
    async fn answer(&self, request: Request) -> Result<Response, Fault> {
        let toolset = named_toolset(request.uri().path())?;
        let Some(principal) = request.extensions().get::<Principal>().cloned() else {
            // Only a defect leads here: the guard stands before every path.
            return Err(Fault::new(
                StatusCode::UNAUTHORIZED,
                INVALID_REQUEST,
                "who asks is not known",
            ));
        };
        let owner = Owner::from(&principal);
        let session = self.own_session(request.headers(), &owner)?;
        let opens_session = request.method() == Method::POST && session.is_none();
        let access = Access { principal, toolset, session: session.clone() };
        let (mut parts, body) = request.into_parts();
        // Nothing that the library logs or keeps can hold a token.
        parts.headers.remove(header::AUTHORIZATION);
        parts.extensions.insert(access);
        let body = if parts.method == Method::POST { read(body).await? } else { Body::empty() };
        if opens_session && self.shared.sessions.make_room(&owner).await.is_err() {
            return Err(full());
        }
        let opens_stream = parts.method == Method::GET;
        let held = session.as_ref().and_then(|id| self.shared.sessions.hold(id));
        let response = self.service.handle(Request::from_parts(parts, body)).await.map(Body::new);
        if response.status() == StatusCode::UNSUPPORTED_MEDIA_TYPE {
            // The body's type is right and it is JSON: then it is no message of the protocol.
            return Err(Fault::new(
                StatusCode::BAD_REQUEST,
                INVALID_REQUEST,
                "the body is no JSON-RPC message of MCP",
            ));
        }
        let opened = response.headers().get(SESSION_ID).and_then(|id| id.to_str().ok());
        let held = match opened {
            Some(id) if opens_session => {
                self.shared.sessions.bind(id, owner);
                self.shared.sessions.hold(id)
            }
            _ => held,
        };
        let is_stream = opens_stream && response.status().is_success();
        let stream = session.filter(|_| is_stream).map(|id| self.shared.streams.open(&id));
        // A session is in use as long as one of its streams is open.
        Ok(response.map(|body| {
            Body::from_stream(body.into_data_stream().inspect(move |_| {
                let _ = (&held, &stream);
            }))
        }))
    }

    /// The session that the request names. One of somebody else is answered as one that is not
    /// there; the client then opens a new one.
    fn own_session(&self, headers: &HeaderMap, owner: &Owner) -> Result<Option<SessionId>, Fault> {
        let mut values = headers.get_all(SESSION_ID).iter();
        let Some(first) = values.next() else { return Ok(None) };
        let is_one = values.next().is_none();
        let id = first.to_str().ok().filter(|id| is_one && self.shared.sessions.is_of(id, owner));
        id.map(|id| Some(id.into())).ok_or_else(|| {
            Fault::new(
                StatusCode::NOT_FOUND,
                INVALID_REQUEST,
                "there is no such session; initialize again",
            )
        })
    }
}

/// The toolset of a path; none for the path of all.
fn named_toolset(path: &str) -> Result<Option<Toolset>, Fault> {
    let Some(name) = path.strip_prefix("/mcp/") else { return Ok(None) };
    if name == "spawn" {
        return Ok(Some(Toolset::Spawn));
    }
    Err(Fault::new(
        StatusCode::NOT_FOUND,
        INVALID_REQUEST,
        "there is no such toolset; spawn is one",
    ))
}

/// The whole body, which must be JSON.
async fn read(body: Body) -> Result<Body, Fault> {
    let bytes = read_body(body).await.map_err(|fault| {
        let code = match fault {
            BodyFault::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            BodyFault::TooSlow => StatusCode::REQUEST_TIMEOUT,
            BodyFault::Broken => StatusCode::BAD_REQUEST,
        };
        // What is left of the body is not read.
        Fault {
            header: Some((header::CONNECTION, "close")),
            ..Fault::new(code, INVALID_REQUEST, fault.to_string())
        }
    })?;
    match serde_json::from_slice::<IgnoredAny>(&bytes) {
        Ok(_) => Ok(Body::from(bytes)),
        Err(error) => {
            let message = format!("the body is no JSON that can be read: {error}");
            Err(Fault::new(StatusCode::BAD_REQUEST, PARSE_ERROR, message))
        }
    }
}

fn full() -> Fault {
    let message =
        "too many MCP sessions are open, of this token or in all; close one, then try again";
    Fault {
        header: Some((header::RETRY_AFTER, "1")),
        ..Fault::new(StatusCode::SERVICE_UNAVAILABLE, INVALID_REQUEST, message)
    }
}
