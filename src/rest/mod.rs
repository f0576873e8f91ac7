//! The REST API, Kubernetes style: records, discovery, tables, watches, streams.
//!
//! Stands before the loop: it puts desired state into the store through `admission` alone, and
//! reads what the daemon saw. Paths are taken apart by one function ([`resource::parse_path`])
//! instead of a route table, so that every answer, also to a path or verb that does not exist, is
//! a `Status`.
//!
//! Invariants: nothing is read of a body before the guard let the request in; bodies, pages of
//! memory, headers and connections are bounded; nothing but desired state is written; every
//! response is `no-store`; no token is ever logged.
//!
//! Absent on purpose: CORS, compression (wrong for watches), protobuf, and for now:
//! server-side apply, JSON patch, OpenAPI, the reviews of `kubectl auth`.

pub mod age;
mod body;
mod discovery;
mod health;
mod leash;
mod own;
mod processes;
mod query;
mod read;
mod render;
mod reports;
pub mod resource;
mod response;
mod secrets;
mod selector;
mod serve;
mod sight;
mod status;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod token;
mod transcript;
mod view;
mod watch;
mod write;

use std::sync::Arc;

use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State as AxumState};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio_util::sync::CancellationToken;

pub use render::printable;
pub use serve::{Judge, Listener, Peer, serve};
pub use status::Failure;

use crate::admission::Admission;
use crate::clock::SharedClock;
use crate::guard;
use crate::ports::{Health, Inputs, Live, Manifests, Secrets};
use crate::store::{SharedBlobs, SharedStore};
use query::Query;
use resource::{Item, Resource, Target, parse_path};
use sight::Sight;

/// What the API is built on.
pub struct State {
    /// Records are read here; nothing here writes them.
    pub store: SharedStore,
    /// Transcripts and responses are read here.
    pub blobs: SharedBlobs,
    /// The one way in for desired state.
    pub admission: Arc<Admission>,
    /// What the controller holds in memory.
    pub live: Arc<dyn Live>,
    /// What the watched directories hold.
    pub manifests: Arc<dyn Manifests>,
    /// The vault: values go in, names come out.
    pub secrets: Arc<dyn Secrets>,
    /// Looks at what a launch would find, before a caller is promised a child.
    pub inputs: Arc<dyn Inputs>,
    /// How the daemon is.
    pub health: Arc<dyn Health>,
    /// For ages.
    pub clock: SharedClock,
    /// Where callers find the MCP endpoint, `http://HOST:PORT/mcp`.
    pub mcp_url: String,
    /// Ends watches and followed streams.
    pub shutdown: CancellationToken,
}

/// The API as a router, to be put behind the guard ([`crate::guard::protect`]): a request that did
/// not come through it is refused here, but for whether the daemon is alive.
pub fn router(state: State) -> Router {
    Router::new().fallback(answer).with_state(Arc::new(state))
}

async fn answer(AxumState(state): AxumState<Arc<State>>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let mut body = Some(body);
    // Boxed, because the futures of the verbs are large.
    let mut response = match Box::pin(dispatch(&state, &parts, &mut body)).await {
        Ok(response) => response,
        Err(failure) => failure.into_response(),
    };
    // A body that nobody read is read now, else the connection would be closed under the client's
    // next request without a word.
    let is_clean = match body {
        Some(body) => body::read(body).await.is_ok(),
        None => !matches!(
            response.status(),
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
        ),
    };
    if !is_clean {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    let path = guard::shown(parts.uri.path());
    let (method, code) = (&parts.method, response.status().as_u16());
    tracing::debug!(%method, path, code, "request");
    response
}

async fn dispatch(
    state: &Arc<State>,
    parts: &Parts,
    body: &mut Option<Body>,
) -> Result<Response, Failure> {
    let path = parts.uri.path();
    let target = parse_path(path).ok_or_else(|| Failure::no_such_path(path))?;
    let query = Query::of(&parts.uri)?;
    if target == Target::Alive && is_read(parts) {
        return Ok(health::alive());
    }
    let sight = Sight::of(state, parts, &target).await?;
    match target {
        Target::Collection { resource, namespace } => {
            collection(state, &sight, resource, namespace, &query, parts, body).await
        }
        Target::Item(item) => one(state, &sight, &item, &query, parts, body).await,
        Target::Secret(name) => secrets::change(state, name, parts, body).await,
        _ if !is_read(parts) => Err(Failure::method_not_allowed(parts.method.as_str(), "GET is")),
        Target::Alive => Ok(health::alive()),
        Target::Ready => Ok(health::ready(state, &parts.headers, &query)),
        Target::Secrets => secrets::list(state).await,
        Target::Version => Ok(discovery::version()),
        Target::CoreVersions => Ok(discovery::core_versions(&parts.headers)),
        Target::Groups => Ok(discovery::groups(&parts.headers)),
        Target::Group => Ok(discovery::group()),
        Target::Resources { is_core } => Ok(discovery::resources(is_core)),
    }
}

const fn is_read(parts: &Parts) -> bool {
    matches!(parts.method, Method::GET | Method::HEAD)
}

async fn collection(
    state: &Arc<State>,
    sight: &Sight,
    resource: Resource,
    namespace: Option<String>,
    query: &Query,
    parts: &Parts,
    body: &mut Option<Body>,
) -> Result<Response, Failure> {
    let namespace = namespace.as_deref();
    let headers = &parts.headers;
    match (&parts.method, resource) {
        (&(Method::GET | Method::HEAD), Resource::Reports) => {
            reports::reports(state, namespace, headers, query).await
        }
        (&(Method::GET | Method::HEAD), Resource::Manifests) => {
            reports::manifests(state, headers, query).await
        }
        (&(Method::GET | Method::HEAD), Resource::Records(kind)) => {
            if query.bool("watch")? {
                let what = watch::Subject { resource, kind, namespace };
                watch::open(state, sight, what, headers, query).await
            } else {
                read::list(state, sight, resource, kind, namespace, headers, query).await
            }
        }
        (&Method::POST, Resource::Records(kind)) if resource.is_writable() => {
            if resource.is_namespaced() && namespace.is_none() {
                return Err(Failure::method_not_allowed(
                    "POST",
                    &format!("create it in its namespace: .../namespaces/NS/{}", kind.plural()),
                ));
            }
            if let Some(bearer) = sight.bearer() {
                return own::spawn(state, bearer, headers, query, body).await;
            }
            if query.bool("spawn")? {
                return Err(own::caller_required());
            }
            own::expect_no_key(headers)?;
            write::create(state, kind, namespace, headers, query, body).await
        }
        (method, _) => Err(Failure::method_not_allowed(
            method.as_str(),
            &format!("of {} it allows {}", resource.plural(), resource.verbs().join(", ")),
        )),
    }
}

async fn one(
    state: &Arc<State>,
    sight: &Sight,
    item: &Item,
    query: &Query,
    parts: &Parts,
    body: &mut Option<Body>,
) -> Result<Response, Failure> {
    use crate::api::Kind;
    let Resource::Records(kind) = item.resource else {
        return Err(Failure::no_such_path(parts.uri.path()));
    };
    let is_read = is_read(parts);
    match (item.subresource.as_deref(), kind) {
        (None, _) if is_read && query.bool("watch")? => Err(Failure::bad_request(
            "one object is watched through its collection: \
             ?watch=true&fieldSelector=metadata.name=NAME",
        )),
        (None, _) if is_read => read::get(state, sight, item, kind, &parts.headers, query).await,
        (None, _) if item.resource.is_writable() => {
            write::change(state, sight, item, kind, query, parts, body).await
        }
        (Some("status"), _) if is_read && discovery::has_status(item.resource) => {
            read::get(state, sight, item, kind, &parts.headers, query).await
        }
        (Some("status"), _) if discovery::has_status(item.resource) => Err(Failure::forbidden(
            "status is written by the daemon alone; write spec to say what you want",
        )),
        (Some("transcript"), Kind::Session) if is_read => {
            transcript::transcript(state, sight, item, query).await
        }
        (Some("processes"), Kind::Session) if is_read => {
            processes::processes(state, sight, item).await
        }
        (Some("logs"), Kind::Session) if is_read => {
            transcript::logs(state, sight, item, query).await
        }
        (Some("response"), Kind::Turn) if is_read => {
            response::response(state, sight, item, &parts.headers).await
        }
        (Some("token"), Kind::Session) => {
            token::tokens(state, item, query, &parts.method, &parts.headers, body).await
        }
        (Some(other), Kind::Session) if other.starts_with("token/") => {
            let id = other.trim_start_matches("token/");
            token::revoke(state, item, id, &parts.method).await
        }
        (Some("transcript" | "logs" | "processes"), Kind::Session)
        | (Some("response"), Kind::Turn) => {
            Err(Failure::method_not_allowed(parts.method.as_str(), "GET is"))
        }
        (None, _) => Err(Failure::method_not_allowed(
            parts.method.as_str(),
            &format!("of {} it allows {}", kind.plural(), item.resource.verbs().join(", ")),
        )),
        (Some(_), _) => Err(Failure::no_such_path(parts.uri.path())),
    }
}

/// A JSON answer.
fn json_response(code: StatusCode, body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    never_stored(response)
}

fn ok(body: &Value) -> Response {
    json_response(StatusCode::OK, body)
}

fn text_response(code: StatusCode, body: impl Into<Body>) -> Response {
    let mut response = Response::new(body.into());
    *response.status_mut() = code;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    never_stored(response)
}

/// Marks a response as one that no cache may keep.
fn never_stored(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
