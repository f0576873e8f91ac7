//! A small blocking HTTP client. It speaks HTTP/1.0, so that a body ends with its connection.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;

use serde_json::Value;

use super::DEADLINE;

pub(crate) struct Request {
    address: String,
    method: String,
    path: String,
    host: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Request {
    pub(crate) fn new(address: &str, method: &str, path: &str) -> Self {
        Self {
            address: address.to_owned(),
            method: method.to_owned(),
            path: path.to_owned(),
            host: address.to_owned(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    pub(crate) fn bearer(self, token: &str) -> Self {
        self.header("authorization", &format!("Bearer {}", token.trim()))
    }

    pub(crate) fn host(mut self, host: &str) -> Self {
        host.clone_into(&mut self.host);
        self
    }

    pub(crate) fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.push((name.to_owned(), value.to_owned()));
        self
    }

    pub(crate) fn body(mut self, body: &[u8]) -> Self {
        self.body = body.to_vec();
        self
    }

    pub(crate) fn json_body(self, body: &Value) -> Self {
        self.header("content-type", "application/json").body(body.to_string().as_bytes())
    }

    fn connect(&self) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
        let mut head = format!("{} {} HTTP/1.0\r\nhost: {}\r\n", self.method, self.path, self.host);
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", self.body.len()));
        stream.write_all(head.as_bytes()).unwrap();
        // A body that is too large is answered before all of it is read.
        let _ = stream.write_all(&self.body);
        stream
    }

    fn open(&self) -> (u16, String, BufReader<TcpStream>) {
        let stream = self.connect();
        let mut reader = BufReader::new(stream);
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(reader.read_line(&mut head).unwrap() > 0, "no answer to {}", self.path);
        }
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_lowercase(), reader)
    }

    /// Sends it and reads the whole answer.
    pub(crate) fn send(&self) -> Answer {
        let (status, head, mut reader) = self.open();
        let mut body = Vec::new();
        let read = reader.read_to_end(&mut body);
        assert!(read.is_ok() || status == 413, "{}: {read:?}", self.path);
        Answer { status, head, body }
    }

    /// Sends it and reads nothing; the connection ends with what this gives.
    pub(crate) fn begin(&self) -> TcpStream {
        self.connect()
    }

    /// Sends it and reads the answer line by line.
    pub(crate) fn stream(&self) -> Stream {
        let (status, _, reader) = self.open();
        assert_eq!(status, 200, "{}", self.path);
        Stream { reader }
    }
}

pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }
}

pub(crate) struct Stream {
    reader: BufReader<TcpStream>,
}

impl Stream {
    /// The next line; `None` at the end, or when nothing comes any more.
    pub(crate) fn next_json(&mut self) -> Option<Value> {
        let mut line = String::new();
        match self.reader.read_line(&mut line) {
            Ok(0) | Err(_) => None,
            Ok(_) => Some(serde_json::from_str(&line).unwrap()),
        }
    }
}
