//! The guard: what is checked of every request before its body is read.
//!
//! In this order: Host (a page of another site that rebinds its name to 127.0.0.1 still sends its
//! own name), Origin, content encoding, bearer token, the token's rate. Tokens are compared by their SHA-256 in
//! constant time and are never logged. `/healthz` and `/livez` are open to all who pass the first
//! two. There is no CORS: no answer ever allows another origin.

use std::sync::{Arc, PoisonError, RwLock};

use axum::body::HttpBody;
use axum::extract::{Request, State as AxumState};
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use sha2::{Digest, Sha256};

use super::never_stored;
use super::rate::{Running, Usage};
use super::status::Failure;
use crate::api::config::{Config, Http};
use crate::clock::SharedClock;

/// Names of this machine for itself; the default of `allowedHosts`.
pub const LOCAL_HOSTS: [&str; 3] = ["localhost", "127.0.0.1", "[::1]"];

/// What the configuration says about callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Values of Host that are answered; one without a port stands for any port.
    pub hosts: Vec<String>,
    /// Values of Origin that are answered, `scheme://host[:port]`; one without a port stands for
    /// any port.
    pub origins: Vec<String>,
    /// How much a token may ask for.
    pub http: Http,
}

impl Default for Rules {
    fn default() -> Self {
        let origins = LOCAL_HOSTS
            .iter()
            .flat_map(|host| [format!("http://{host}"), format!("https://{host}")])
            .collect();
        Self { hosts: LOCAL_HOSTS.map(str::to_owned).to_vec(), origins, http: Http::default() }
    }
}

impl From<&Config> for Rules {
    fn from(config: &Config) -> Self {
        Self {
            hosts: config.allowed_hosts.clone(),
            origins: config.allowed_origins.clone(),
            http: config.http.clone(),
        }
    }
}

impl Rules {
    fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Failure> {
        let host = match uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => single(headers, &header::HOST),
        };
        match host {
            Some(host) if self.hosts.iter().any(|one| is_host(one, host)) => Ok(()),
            _ => Err(Failure::new(
                StatusCode::MISDIRECTED_REQUEST,
                "MisdirectedRequest",
                "the Host header names none of this daemon's hosts; \
                 use 127.0.0.1 or localhost, or add the name to allowedHosts",
            )),
        }
    }

    fn check_origin(&self, headers: &HeaderMap) -> Result<(), Failure> {
        if !headers.contains_key(header::ORIGIN) {
            return Ok(());
        }
        let is_allowed = single(headers, &header::ORIGIN)
            .is_some_and(|origin| self.origins.iter().any(|one| is_origin(one, origin)));
        if is_allowed {
            Ok(())
        } else {
            Err(Failure::forbidden(
                "requests from the page of another site are refused; \
                 if you trust it, add its origin to allowedOrigins",
            ))
        }
    }
}

/// Whom the guard lets in.
pub struct Guard {
    token_sha256: [u8; 32],
    rules: RwLock<Arc<Rules>>,
    usage: Usage,
    clock: SharedClock,
}

impl Guard {
    /// A guard that knows one token, the operator's.
    #[must_use]
    pub fn new(operator_token: &str, rules: Rules, clock: SharedClock) -> Self {
        Self {
            token_sha256: Sha256::digest(operator_token.trim().as_bytes()).into(),
            rules: RwLock::new(Arc::new(rules)),
            usage: Usage::default(),
            clock,
        }
    }

    /// Takes other rules, from the next request on.
    pub fn reload(&self, rules: Rules) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules);
    }

    fn check(&self, request: &Request) -> Result<Option<Running<'_>>, Failure> {
        let rules = Arc::clone(&self.rules.read().unwrap_or_else(PoisonError::into_inner));
        let headers = request.headers();
        rules.check_host(headers, request.uri())?;
        rules.check_origin(headers)?;
        check_encoding(headers)?;
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        if is_read && matches!(request.uri().path(), "/healthz" | "/livez") {
            return Ok(None);
        }
        self.check_token(headers)?;
        if headers.contains_key("impersonate-user") {
            return Err(Failure::forbidden(
                "impersonation (--as) is not supported; use a token of the identity that you want",
            ));
        }
        self.usage.begin(&rules.http, self.clock.now().mono).map(Some)
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Failure> {
        let presented = single(headers, &header::AUTHORIZATION)
            .and_then(|value| value.split_once(' '))
            .filter(|(scheme, _)| scheme.eq_ignore_ascii_case("bearer"))
            .map(|(_, token)| token.trim())
            .filter(|token| !token.is_empty());
        let is_known = presented.is_some_and(|token| {
            is_equal(&Sha256::digest(token.as_bytes()).into(), &self.token_sha256)
        });
        if is_known {
            Ok(())
        } else {
            Err(Failure::new(
                StatusCode::UNAUTHORIZED,
                "Unauthorized",
                "Unauthorized: send `Authorization: Bearer TOKEN`; \
                 the operator's token is in operator.token in the daemon's data directory",
            ))
        }
    }
}

/// The middleware.
pub(super) async fn check(
    AxumState(guard): AxumState<Arc<Guard>>,
    request: Request,
    next: Next,
) -> Response {
    match guard.check(&request) {
        // Held until the answer begins.
        Ok(_running) => never_stored(next.run(request).await),
        Err(failure) => {
            tracing::debug!(
                method = %request.method(),
                path = request.uri().path(),
                code = failure.code().as_u16(),
                "refused by the guard"
            );
            let mut response = failure.into_response();
            if request.body().size_hint().upper() != Some(0) {
                // The body of a refused request is not read, so the connection cannot go on.
                response
                    .headers_mut()
                    .insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            response
        }
    }
}

/// The value of a header that must stand there once.
fn single<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
}

fn check_encoding(headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get(header::CONTENT_ENCODING) {
        None => Ok(()),
        Some(value) if value == "identity" => Ok(()),
        Some(_) => Err(Failure::unsupported_media_type(
            "bodies with a Content-Encoding are not taken; send the body as it is",
        )),
    }
}

/// Whether no bit differs; takes the same time wherever they differ.
fn is_equal(left: &[u8; 32], right: &[u8; 32]) -> bool {
    let difference = left.iter().zip(right).fold(0, |sum, (left, right)| sum | (left ^ right));
    std::hint::black_box(difference) == 0
}

fn is_host(allowed: &str, host: &str) -> bool {
    allowed.eq_ignore_ascii_case(host) || allowed.eq_ignore_ascii_case(without_port(host))
}

fn is_origin(allowed: &str, origin: &str) -> bool {
    is_host(allowed, origin)
}

/// `host` of `host:port`; an IPv6 address keeps its brackets.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port))
            if !port.is_empty()
                && port.bytes().all(|byte| byte.is_ascii_digit())
                && (!name.contains('[') || name.ends_with(']')) =>
        {
            name
        }
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_does_not_count_and_a_suffix_does_not_help() {
        for host in ["localhost", "LOCALHOST:7420", "127.0.0.1:1", "[::1]", "[::1]:7420"] {
            assert!(LOCAL_HOSTS.iter().any(|one| is_host(one, host)), "{host}");
        }
        for host in ["", "localhost.evil.org", "evil.org", "127.0.0.1.evil:80", "localhost:", "::1"]
        {
            assert!(!LOCAL_HOSTS.iter().any(|one| is_host(one, host)), "{host}");
        }
        assert!(is_origin("http://localhost", "http://localhost:5173"));
        assert!(!is_origin("http://localhost", "http://localhost.evil.org"));
        assert!(!is_origin("http://localhost", "null"));
    }
}
