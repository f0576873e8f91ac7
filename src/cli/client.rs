//! The HTTP client: one connection a request, over TCP or the daemon's socket.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::{Method, Request, StatusCode, header};
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::JoinSet;

use super::connect::{Connection, Endpoint};
use super::failure::Failure;
use super::get::eprint_line;
use crate::rest::resource::Resource;

/// How long the daemon may take to accept a connection; it is on this machine or near.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest answer that is read into memory at once (lists); streams have no bound.
const ANSWER_BYTES_MAX: usize = 512 * 1024 * 1024;
/// The longest line of a stream; the longest that the daemon sends is an agent's of 10 MiB, with
/// what JSON escaping adds to it.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Asks for a table, and for the plain objects of a daemon that has none.
pub(super) const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";
const JSON: &str = "application/json";
pub(super) const MERGE_PATCH: &str = "application/merge-patch+json";

/// The daemon.
pub(super) struct Client {
    connection: Connection,
}

/// An answer whose body is still to be read.
pub(super) struct Reply {
    pub(super) body: Incoming,
    rest: BytesMut,
    // Drives the connection for as long as the body is read.
    _driver: JoinSet<()>,
}

impl Client {
    pub(super) const fn new(connection: Connection) -> Self {
        Self { connection }
    }

    /// Where the daemon is.
    pub(super) const fn endpoint(&self) -> &Endpoint {
        &self.connection.endpoint
    }

    /// A plain object or list.
    pub(super) async fn get(&self, path: &str) -> Result<Value, Failure> {
        self.open(Method::GET, path, &[(header::ACCEPT, JSON)], Bytes::new()).await?.json().await
    }

    /// The same as a table.
    pub(super) async fn table(&self, path: &str) -> Result<Value, Failure> {
        self.open(Method::GET, path, &[(header::ACCEPT, TABLE)], Bytes::new()).await?.json().await
    }

    /// A stream.
    pub(super) async fn stream(&self, path: &str, accept: &str) -> Result<Reply, Failure> {
        self.open(Method::GET, path, &[(header::ACCEPT, accept)], Bytes::new()).await
    }

    /// Sends an object, a patch or options.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        media_type: &str,
        body: &Value,
    ) -> Result<Value, Failure> {
        let headers = [(header::ACCEPT, JSON), (header::CONTENT_TYPE, media_type)];
        self.open(method, path, &headers, Bytes::from(body.to_string())).await?.json().await
    }

    /// Creates an object.
    pub(super) async fn post(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(Method::POST, path, JSON, body).await
    }

    /// Changes an object by a merge patch (RFC 7396).
    pub(super) async fn patch(&self, path: &str, body: &Value) -> Result<Value, Failure> {
        self.send(Method::PATCH, path, MERGE_PATCH, body).await
    }

    /// Sends a request; an answer of 400 and above is a failure.
    pub(super) async fn open(
        &self,
        method: Method,
        path: &str,
        headers: &[(header::HeaderName, &str)],
        body: Bytes,
    ) -> Result<Reply, Failure> {
        let (code, mut reply) = self.ask(method, path, headers, body).await?;
        if code.as_u16() < 400 {
            return Ok(reply);
        }
        let body = reply.bytes().await?;
        Err(Failure::of_status(code.as_u16(), &body))
    }

    /// Sends a request and gives whatever comes.
    pub(super) async fn ask(
        &self,
        method: Method,
        path: &str,
        headers: &[(header::HeaderName, &str)],
        body: Bytes,
    ) -> Result<(StatusCode, Reply), Failure> {
        let host = match &self.connection.endpoint {
            Endpoint::Tcp(authority) => authority.as_str(),
            Endpoint::Unix(_) => "localhost",
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, host)
            .header(header::USER_AGENT, concat!("spawnlet/", env!("CARGO_PKG_VERSION")));
        if let Some(token) = &self.connection.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        for (name, value) in headers {
            request = request.header(name, *value);
        }
        let request = request.body(Full::new(body)).map_err(|_| {
            Failure::Usage("a name or the token has characters that cannot be sent".to_owned())
        })?;
        match &self.connection.endpoint {
            Endpoint::Tcp(authority) => {
                let stream = self.connect(TcpStream::connect(authority.as_str())).await?;
                // Nothing is lost but some speed if the system refuses it.
                let _ = stream.set_nodelay(true);
                self.exchange(stream, request).await
            }
            Endpoint::Unix(path) => {
                let stream = self.connect(UnixStream::connect(path)).await?;
                self.exchange(stream, request).await
            }
        }
    }

    async fn connect<S>(
        &self,
        connecting: impl Future<Output = std::io::Result<S>>,
    ) -> Result<S, Failure> {
        match tokio::time::timeout(CONNECT_TIMEOUT, connecting).await {
            Ok(Ok(stream)) => Ok(stream),
            Ok(Err(error)) => Err(self.unreachable(&error)),
            Err(_) => Err(self.unreachable(&"it does not accept connections")),
        }
    }

    async fn exchange<S>(
        &self,
        stream: S,
        request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Reply), Failure>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let lost = |error: hyper::Error| self.unreachable(&error);
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(lost)?;
        let mut driver = JoinSet::new();
        driver.spawn(async move {
            // Its error is also the request's or the body's.
            let _ = connection.await;
        });
        let response = sender.send_request(request).await.map_err(lost)?;
        let code = response.status();
        for warning in response.headers().get_all(header::WARNING) {
            if let Some(text) = warning_text(warning.as_bytes()) {
                eprint_line(&format!("warning: {text}"));
            }
        }
        let reply = Reply { body: response.into_body(), rest: BytesMut::new(), _driver: driver };
        Ok((code, reply))
    }

    fn unreachable(&self, why: &dyn std::fmt::Display) -> Failure {
        Failure::Unreachable(format!(
            "no daemon answers at {}: {why}; start one with `spawnlet serve`, or name it with \
             --server or --data-dir",
            self.connection.endpoint
        ))
    }
}

impl Reply {
    /// The whole body.
    pub(super) async fn bytes(&mut self) -> Result<Bytes, Failure> {
        Limited::new(&mut self.body, ANSWER_BYTES_MAX)
            .collect()
            .await
            .map(http_body_util::Collected::to_bytes)
            .map_err(|error| Failure::Failed(format!("the answer broke off: {error}")))
    }

    pub(super) async fn json(mut self) -> Result<Value, Failure> {
        let bytes = self.bytes().await?;
        serde_json::from_slice(&bytes)
            .map_err(|error| Failure::Failed(format!("the answer is no JSON: {error}")))
    }

    /// The next bytes of a stream; `None` at its end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, Failure> {
        loop {
            match self.body.frame().await {
                None => return Ok(None),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
                Some(Err(error)) => {
                    return Err(Failure::TryAgain(format!("the stream broke off: {error}")));
                }
            }
        }
    }

    /// The next line of a stream as JSON; `None` at its end.
    pub(super) async fn json_line(&mut self) -> Result<Option<Value>, Failure> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.split_to(end + 1);
                return serde_json::from_slice(&line).map(Some).map_err(|error| {
                    Failure::Failed(format!("a line of the stream is no JSON: {error}"))
                });
            }
            if self.rest.len() > LINE_BYTES_MAX {
                return Err(Failure::Failed("a line of the stream is over 64 MiB".to_owned()));
            }
            match self.chunk().await? {
                Some(chunk) => self.rest.extend_from_slice(&chunk),
                None => return Ok(None),
            }
        }
    }
}

/// The text of a `Warning: 299 - "text"` header.
fn warning_text(header: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(header);
    let quoted = text.strip_prefix("299 - \"")?.strip_suffix('"')?;
    let mut out = String::with_capacity(quoted.len());
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        out.push(if character == '\\' { characters.next()? } else { character });
    }
    Some(crate::rest::printable(&out))
}

/// The path of a collection; `None`: of all namespaces.
pub(super) fn collection(resource: Resource, namespace: Option<&str>) -> String {
    let base = if resource.is_core() {
        "/api/v1".to_owned()
    } else {
        format!("/apis/{}", resource.api_version())
    };
    match namespace {
        Some(namespace) if resource.is_namespaced() => {
            format!("{base}/namespaces/{}/{}", encode(namespace), resource.plural())
        }
        _ => format!("{base}/{}", resource.plural()),
    }
}

/// The path of an object.
pub(super) fn item(resource: Resource, namespace: &str, name: &str) -> String {
    format!("{}/{}", collection(resource, Some(namespace)), encode(name))
}

/// A path with a query; pairs without a value are left out.
pub(super) fn with_query(path: &str, pairs: &[(&str, &str)]) -> String {
    let query: Vec<String> = pairs
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| format!("{key}={}", encode(value)))
        .collect();
    if query.is_empty() { path.to_owned() } else { format!("{path}?{}", query.join("&")) }
}

/// Percent-encodes everything but unreserved characters (RFC 3986, 2.3).
pub(super) fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_encoded_and_empty_pairs_left_out() {
        let session = Resource::parse("se").unwrap();
        assert_eq!(
            item(session, "n", "a/b"),
            "/apis/spawnlet.dev/v1alpha1/namespaces/n/sessions/a%2Fb"
        );
        assert_eq!(collection(Resource::parse("ev").unwrap(), None), "/api/v1/events");
        assert_eq!(with_query("/x", &[("a", ""), ("b", "1,2")]), "/x?b=1%2C2");
        assert_eq!(with_query("/x", &[("a", "")]), "/x");
    }

    #[test]
    fn warnings_are_read_back_as_they_were_said() {
        let header = br#"299 - "unknown field \"spec.titel\"""#;
        assert_eq!(warning_text(header).unwrap(), "unknown field \"spec.titel\"");
        assert_eq!(warning_text(b"199 x"), None);
    }
}
