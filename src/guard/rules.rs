//! Which names of the daemon and which pages are answered, and how much may be asked for.

use axum::http::{HeaderMap, Uri, header};

use super::refused::Refused;
use crate::api::config::{Config, Http, Mcp};

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
    /// The largest body, in bytes (`mcp.requestBytes`): by default room for a prompt of 768 KiB in
    /// any escaping that JSON libraries use.
    pub body_bytes: usize,
}

impl Default for Rules {
    fn default() -> Self {
        let origins = LOCAL_HOSTS
            .iter()
            .flat_map(|host| [format!("http://{host}"), format!("https://{host}")])
            .collect();
        Self {
            hosts: LOCAL_HOSTS.map(str::to_owned).to_vec(),
            origins,
            http: Http::default(),
            body_bytes: bytes_of(&Mcp::default()),
        }
    }
}

impl From<&Config> for Rules {
    fn from(config: &Config) -> Self {
        Self {
            hosts: config.allowed_hosts.clone(),
            origins: config.allowed_origins.clone(),
            http: config.http.clone(),
            body_bytes: bytes_of(&config.mcp),
        }
    }
}

fn bytes_of(mcp: &Mcp) -> usize {
    usize::try_from(mcp.request_bytes.get()).unwrap_or(usize::MAX)
}

impl Rules {
    pub(super) fn check_host(&self, headers: &HeaderMap, uri: &Uri) -> Result<(), Refused> {
        let host = match uri.authority() {
            Some(authority) => Some(authority.as_str()),
            None => single(headers, &header::HOST),
        };
        match host {
            Some(host) if self.hosts.iter().any(|one| is_host(one, host)) => Ok(()),
            _ => Err(Refused::misdirected(
                "the Host header names none of this daemon's hosts; \
                 use 127.0.0.1 or localhost, or add the name to allowedHosts",
            )),
        }
    }

    pub(super) fn check_origin(&self, headers: &HeaderMap) -> Result<(), Refused> {
        if !headers.contains_key(header::ORIGIN) {
            return Ok(());
        }
        let is_allowed = single(headers, &header::ORIGIN)
            .is_some_and(|origin| self.origins.iter().any(|one| is_origin(one, origin)));
        if is_allowed {
            Ok(())
        } else {
            Err(Refused::forbidden(
                "requests from the page of another site are refused; \
                 if you trust it, add its origin to allowedOrigins",
            ))
        }
    }
}

/// The value of a header that must stand there once.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &header::HeaderName) -> Option<&'a str> {
    let mut values = headers.get_all(name).iter();
    let first = values.next()?.to_str().ok()?;
    values.next().is_none().then_some(first)
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
