//! The guard: what is checked of every HTTP request, to REST and to MCP, before its body is read.
//!
//! In this order: method, Host (a page of another site that rebinds its name to 127.0.0.1 still
//! sends its own name), Origin, content type, content encoding, length of the body, bearer token,
//! the token's rate, the toolset that an MCP path names. What comes through carries its
//! [`Principal`]; whoever answers looks at that alone to know who asks. `/healthz` and `/livez` are
//! open to all who pass what comes before the token; they carry none.
//!
//! Invariants: the operator's token is compared in constant time and callers' tokens are looked up
//! by their SHA-256; no token is ever logged; the rate is counted only of tokens that are good, so
//! that a stranger can take nothing from anybody; a refused request's body is not read; no answer
//! is kept by a cache.
//!
//! Absent on purpose: CORS (no answer ever allows another origin), cookies, and anything that MCP
//! sends about itself: session ids and `_meta` say nothing about who asks.

mod body;
mod rate;
mod refused;
mod rules;
#[cfg(test)]
mod tests;

use std::sync::{Arc, PoisonError, RwLock};

use axum::Router;
use axum::body::HttpBody;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};
use tower_http::catch_panic::CatchPanicLayer;

use crate::admission::{Admission, Bearer};
use crate::api::session::Toolset;
use crate::clock::SharedClock;

pub use body::{BodyFault, read as read_body};
pub use refused::status_object;
pub use rules::{LOCAL_HOSTS, Rules};

use rate::{Running, Usages};
use refused::Refused;
use rules::single;

/// What the path of every MCP endpoint begins with.
const MCP: &str = "/mcp";
/// A run of hex digits from this length on may be a token; uids and short hashes are shorter.
const SECRET_DIGITS: usize = 32;

/// Who sends a request: the one thing that says so. In the extensions of every request that came
/// through the guard, but for the open paths.
#[derive(Clone, Debug, PartialEq)]
pub enum Principal {
    /// Who holds the operator's token, or came over the socket as the daemon's own user.
    Operator,
    /// A session, by one of its tokens.
    Caller(Bearer),
}

/// In the extensions of a request that came over the daemon's own socket from an operator: one that
/// needs no token. Nothing on the wire can put it there.
#[derive(Clone, Copy, Debug)]
pub struct AtSocket;

impl Principal {
    /// Whether the token opens a toolset. The operator's opens all: it may look at their tools.
    #[must_use]
    pub fn opens(&self, toolset: Toolset) -> bool {
        match self {
            Self::Operator => true,
            Self::Caller(bearer) => bearer.toolsets.contains(&toolset),
        }
    }

    /// The verified token, unless it is the operator's.
    #[must_use]
    pub const fn caller(&self) -> Option<&Bearer> {
        match self {
            Self::Operator => None,
            Self::Caller(bearer) => Some(bearer),
        }
    }

    /// Under what its requests are counted.
    fn usage_key(&self) -> &str {
        match self {
            Self::Operator => "operator",
            Self::Caller(bearer) => &bearer.id,
        }
    }
}

/// Whom the daemon lets in.
pub struct Guard {
    operator_sha256: [u8; 32],
    admission: Arc<Admission>,
    rules: RwLock<Arc<Rules>>,
    usages: Usages,
    clock: SharedClock,
}

/// What a request may do: whose it is, and its place among the running ones.
struct Pass<'a> {
    principal: Option<Principal>,
    _running: Option<Running<'a>>,
}

impl Guard {
    /// A guard that knows the operator's token, and callers' by `admission`.
    #[must_use]
    pub fn new(
        operator_token: &str,
        admission: Arc<Admission>,
        rules: Rules,
        clock: SharedClock,
    ) -> Self {
        Self {
            operator_sha256: Sha256::digest(operator_token.trim().as_bytes()).into(),
            admission,
            rules: RwLock::new(Arc::new(rules)),
            usages: Usages::default(),
            clock,
        }
    }

    /// Takes other rules, from the next request on. The bound of bodies stays as it was at the
    /// start: those behind the guard may have a buffer for it.
    pub fn reload(&self, rules: Rules) {
        let mut held = self.rules.write().unwrap_or_else(PoisonError::into_inner);
        *held = Arc::new(Rules { body_bytes: held.body_bytes, ..rules });
    }

    fn rules(&self) -> Arc<Rules> {
        Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Lets a request through or not, by its head.
    async fn check(&self, request: &Parts, rules: &Rules) -> Result<Pass<'_>, Refused> {
        let Parts { method, uri, headers, extensions, .. } = request;
        let path = uri.path();
        check_method(method, path)?;
        rules.check_host(headers, uri)?;
        rules.check_origin(headers)?;
        check_type(method, path, headers)?;
        check_encoding(headers)?;
        body::check_length(headers, rules.body_bytes)?;
        let is_read = matches!(*method, Method::GET | Method::HEAD);
        if is_read && matches!(path, "/healthz" | "/livez") {
            return Ok(Pass { principal: None, _running: None });
        }
        let principal = if extensions.get::<AtSocket>().is_some()
            && !headers.contains_key(header::AUTHORIZATION)
        {
            Principal::Operator
        } else {
            // A token counts wherever it is sent: who has one that is no good is not let in by the
            // door that it came to.
            self.principal(headers).await?
        };
        if headers.contains_key("impersonate-user") {
            return Err(Refused::forbidden(
                "impersonation (--as) is not supported; use a token of the identity that you want",
            ));
        }
        let now = self.clock.now().mono;
        let running = self.usages.begin(principal.usage_key(), &rules.http, now)?;
        check_toolset(&principal, path)?;
        Ok(Pass { principal: Some(principal), _running: Some(running) })
    }

    /// Whose token the request carries. The text of a refusal is the same for all that are not
    /// good: it must not tell a token that was never made from one that has expired.
    async fn principal(&self, headers: &HeaderMap) -> Result<Principal, Refused> {
        let presented = single(headers, &header::AUTHORIZATION)
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .filter(|token| !token.is_empty());
        let Some(token) = presented else { return Err(Refused::unauthorized()) };
        if is_equal(&Sha256::digest(token.as_bytes()).into(), &self.operator_sha256) {
            return Ok(Principal::Operator);
        }
        match self.admission.bearer(token).await {
            Ok(Some(bearer)) => Ok(Principal::Caller(bearer)),
            Ok(None) => Err(Refused::unauthorized()),
            Err(refusal) => {
                tracing::warn!(%refusal, "a token cannot be looked up");
                Err(Refused::unavailable("tokens cannot be looked up now; try again"))
            }
        }
    }
}

/// Puts a router, and all that was merged into it, behind the guard. What passes has a
/// [`Principal`] in its extensions and a body that ends with a fault over the bound of bytes or
/// time ([`read_body`] reads it). Answers may take as long as they want. A panic ends its own
/// request only.
pub fn protect(router: Router, guard: Arc<Guard>) -> Router {
    router
        .layer(CatchPanicLayer::custom(on_panic))
        .layer(middleware::from_fn_with_state(guard, pass_or_refuse))
}

async fn pass_or_refuse(State(guard): State<Arc<Guard>>, request: Request, next: Next) -> Response {
    let rules = guard.rules();
    // Taken apart, because a body cannot be looked at while something is waited for.
    let (mut parts, body) = request.into_parts();
    match guard.check(&parts, &rules).await {
        Ok(Pass { principal, _running }) => {
            parts.extensions.remove::<Principal>();
            if let Some(principal) = principal {
                parts.extensions.insert(principal);
            }
            let body = body::bounded(body, rules.body_bytes);
            // Held until the answer begins: its place among the running ones.
            never_stored(next.run(Request::from_parts(parts, body)).await)
        }
        Err(refused) => {
            tracing::debug!(
                method = %parts.method,
                path = shown(parts.uri.path()),
                code = refused.code().as_u16(),
                "refused by the guard"
            );
            let mut response = never_stored(refused.into_response());
            if body.size_hint().upper() != Some(0) {
                // The body of a refused request is not read, so the connection cannot go on.
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}

/// Marks a response as one that no cache may keep.
fn never_stored(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A bug ends its own request only. The panic's text is in the log, not in the answer.
fn on_panic(panic: Box<dyn std::any::Any + Send + 'static>) -> Response {
    let text = panic
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("not a text");
    tracing::error!(panic = text, "a request panicked");
    Refused::internal("the daemon failed on this request; its log says more").into_response()
}

/// A path as it may stand in a log: what looks like a token, which has no business there, is
/// crossed out.
#[must_use]
pub fn shown(path: &str) -> String {
    let mut shown = String::with_capacity(path.len());
    let mut rest = path;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_hexdigit).count();
        let other = rest[digits..].find(|c: char| c.is_ascii_hexdigit());
        let other = other.map_or(rest.len(), |at| digits + at);
        shown.push_str(if digits >= SECRET_DIGITS { "[...]" } else { &rest[..digits] });
        shown.push_str(&rest[digits..other]);
        rest = &rest[other..];
    }
    shown
}

fn is_mcp(path: &str) -> bool {
    path.strip_prefix(MCP).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Only methods that something here takes. What a path allows of them it says itself.
fn check_method(method: &Method, path: &str) -> Result<(), Refused> {
    let (is_known, allowed) = if is_mcp(path) {
        let is_known = matches!(*method, Method::GET | Method::POST | Method::DELETE);
        (is_known, "GET, POST, DELETE")
    } else {
        let is_known = matches!(
            *method,
            Method::GET
                | Method::HEAD
                | Method::POST
                | Method::PUT
                | Method::PATCH
                | Method::DELETE
        );
        (is_known, "GET, HEAD, POST, PUT, PATCH, DELETE")
    };
    if is_known { Ok(()) } else { Err(Refused::method_not_allowed(method, allowed)) }
}

/// A body is JSON. What pages can send without being asked (forms, plain text) never is. REST takes
/// a body without a type too (`kubectl create --raw`); patches have types of their own, which it
/// judges itself.
fn check_type(method: &Method, path: &str, headers: &HeaderMap) -> Result<(), Refused> {
    if !matches!(*method, Method::POST | Method::PUT | Method::DELETE) {
        return Ok(());
    }
    let is_json = |value: &str| {
        let media = value.split(';').next().unwrap_or_default().trim();
        media.eq_ignore_ascii_case("application/json")
    };
    let is_fine = if headers.contains_key(header::CONTENT_TYPE) {
        single(headers, &header::CONTENT_TYPE)
            .is_some_and(|value| is_json(value) || (value.is_empty() && !is_mcp(path)))
    } else {
        !is_mcp(path) || *method != Method::POST
    };
    if is_fine {
        Ok(())
    } else {
        Err(Refused::unsupported_media_type("only JSON bodies are taken; send application/json"))
    }
}

fn check_encoding(headers: &HeaderMap) -> Result<(), Refused> {
    match headers.get(header::CONTENT_ENCODING) {
        None => Ok(()),
        Some(value) if value == "identity" => Ok(()),
        Some(_) => Err(Refused::unsupported_media_type(
            "bodies with a Content-Encoding are not taken; send the body as it is",
        )),
    }
}

/// A path that names one toolset needs a token with it. An unknown name is the router's 404, and
/// one in disguise (percent-encoded, which the router would take apart) is one here.
fn check_toolset(principal: &Principal, path: &str) -> Result<(), Refused> {
    let Some(rest) = path.strip_prefix("/mcp/") else { return Ok(()) };
    let name = rest.split('/').next().unwrap_or_default();
    if name.contains('%') {
        return Err(Refused::not_found("there is no such toolset"));
    }
    match serde_json::from_value::<Toolset>(serde_json::json!(name)).ok() {
        Some(toolset) if !principal.opens(toolset) => Err(Refused::forbidden(
            "this token does not open this toolset; an operator makes one that does with \
             `spawnlet token create --toolsets`",
        )),
        _ => Ok(()),
    }
}

/// Whether no bit differs; takes the same time wherever they differ.
fn is_equal(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left.iter().zip(right).fold(0, |sum, (left, right)| sum | (left ^ right));
    std::hint::black_box(difference) == 0
}
