//! A client of the API: HTTP/1.1 over one connection that is kept.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Longer than any answer takes on a busy machine.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum NoAnswer {
    /// Nothing was sent.
    NotSent,
    /// The connection broke after something was sent.
    Broken,
}

pub(crate) struct Client {
    stream: TcpStream,
    host: String,
    token: String,
    buffer: Vec<u8>,
}

impl Client {
    pub(crate) fn connect(address: &str, token: &str) -> Result<Self, NoAnswer> {
        let stream = TcpStream::connect(address).map_err(|_| NoAnswer::NotSent)?;
        stream.set_nodelay(true).map_err(|_| NoAnswer::NotSent)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT)).map_err(|_| NoAnswer::NotSent)?;
        let (host, token) = (address.to_owned(), token.to_owned());
        Ok(Self { stream, host, token, buffer: Vec::new() })
    }

    /// Where the daemon listens.
    pub(crate) fn address(&self) -> &str {
        &self.host
    }

    /// The status code and the body.
    pub(crate) fn call(
        &mut self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value), NoAnswer> {
        let media_type =
            if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let path = format!("/apis/spawnlet.dev/v1alpha1/{path}");
        self.send(
            method,
            &path,
            &format!("Accept: application/json\r\nContent-Type: {media_type}"),
            body,
        )
    }

    /// The same anywhere, with these lines in the head.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        head: &str,
        body: Option<&Value>,
    ) -> Result<(u16, Value), NoAnswer> {
        let body = body.map(Value::to_string).unwrap_or_default();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: {}\r\nAuthorization: Bearer {}\r\n{head}\r\n\
             Content-Length: {}\r\n\r\n{body}",
            self.host,
            self.token,
            body.len()
        );
        self.stream.write_all(request.as_bytes()).map_err(|_| NoAnswer::Broken)?;
        self.read_answer().map_err(|_| NoAnswer::Broken)
    }

    fn read_answer(&mut self) -> io::Result<(u16, Value)> {
        let head = loop {
            if let Some(end) = find(&self.buffer, b"\r\n\r\n") {
                break self.take(end + 4)?;
            }
            self.fill()?;
        };
        let head = String::from_utf8_lossy(&head).to_lowercase();
        let code = head.split(' ').nth(1).and_then(|code| code.parse().ok());
        let code = code.ok_or_else(|| io::Error::other(format!("no status: {head}")))?;
        let value =
            |name: &str| head.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let body = if value("transfer-encoding:") == Some("chunked") {
            self.read_chunks()?
        } else {
            let length = value("content-length:").and_then(|length| length.parse().ok());
            self.take(length.unwrap_or(0))?
        };
        Ok((code, serde_json::from_slice(&body).unwrap_or(Value::Null)))
    }

    fn read_chunks(&mut self) -> io::Result<Vec<u8>> {
        let mut body = Vec::new();
        loop {
            let line = loop {
                if let Some(end) = find(&self.buffer, b"\r\n") {
                    break self.take(end + 2)?;
                }
                self.fill()?;
            };
            let size = String::from_utf8_lossy(&line);
            let size = usize::from_str_radix(size.trim(), 16).map_err(io::Error::other)?;
            let chunk = self.take(size + 2)?;
            if size == 0 {
                return Ok(body);
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }

    fn take(&mut self, bytes: usize) -> io::Result<Vec<u8>> {
        while self.buffer.len() < bytes {
            self.fill()?;
        }
        let rest = self.buffer.split_off(bytes);
        Ok(std::mem::replace(&mut self.buffer, rest))
    }

    fn fill(&mut self) -> io::Result<()> {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            count => {
                self.buffer.extend_from_slice(&piece[..count]);
                Ok(())
            }
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}
