//! The wire: lines of bytes, and the JSON-RPC envelope around a message.
//!
//! Where it stands: [`LineReader`] cuts an agent's standard output into lines, [`Frame::parse`]
//! says what a line is. Invariants: no more than [`FRAME_BYTES_MAX`] (and one read) is ever held
//! for a line; a line is decoded whole, so no character is cut; the last line counts without its
//! newline too; ids stay the text that the peer wrote (a number larger than an `f64`'s mantissa
//! would come back changed otherwise). Deliberately absent: batches (ACP has none), and every
//! meaning of a method.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use tokio::io::{AsyncRead, AsyncReadExt};

/// The longest line that is taken, in bytes without its newline. Agents echo a prompt of 1 MiB in
/// one line, and escapes may make six bytes of one.
pub const FRAME_BYTES_MAX: usize = 10 * 1024 * 1024;

/// The longest id that is taken, of a request or of a tool call: it is kept as long as what it
/// names, and agents write UUIDs at most.
pub const ID_BYTES_MAX: usize = 1024;

/// How much is asked of the pipe at a time: what a Linux pipe holds (pipe(7)).
const READ_BYTES: usize = 64 * 1024;

/// Why there is no line.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A line is longer than the limit. What follows cannot be read as lines any more.
    #[error("the agent wrote a line of more than {limit_bytes} bytes")]
    FrameTooLarge {
        /// The limit that it broke.
        limit_bytes: usize,
    },
    /// The pipe failed.
    #[error("the agent's standard output could not be read")]
    Read(#[source] std::io::Error),
}

/// Cuts a stream of bytes into lines, in memory that is bounded by the longest legal line.
#[derive(Debug)]
pub struct LineReader<R> {
    source: R,
    buffer: Vec<u8>,
    /// What was handed out: bytes before this belong to lines already returned.
    start: usize,
    /// Up to here no newline was found.
    scanned: usize,
    end_of_stream: bool,
    line_bytes_max: usize,
}

impl<R: AsyncRead + Unpin> LineReader<R> {
    /// A reader that takes lines of at most `line_bytes_max` bytes.
    pub fn new(source: R, line_bytes_max: usize) -> Self {
        Self {
            source,
            buffer: Vec::new(),
            start: 0,
            scanned: 0,
            end_of_stream: false,
            line_bytes_max,
        }
    }

    /// The next line without its end (`\n` or `\r\n`) and without a byte order mark; `None` at the
    /// end of the stream.
    ///
    /// # Errors
    ///
    /// [`ReadError`]; after [`ReadError::FrameTooLarge`] only [`Self::discard`] makes sense.
    ///
    /// # Cancel safety
    ///
    /// Safe: what was read stays in the buffer.
    pub async fn next_line(&mut self) -> Result<Option<&[u8]>, ReadError> {
        loop {
            if let Some(offset) = memchr::memchr(b'\n', &self.buffer[self.scanned..]) {
                let (start, end) = (self.start, self.scanned + offset);
                if end - start > self.line_bytes_max {
                    return Err(self.too_large());
                }
                self.start = end + 1;
                self.scanned = end + 1;
                return Ok(Some(trim(&self.buffer[start..end])));
            }
            self.scanned = self.buffer.len();
            if self.buffer.len() - self.start > self.line_bytes_max {
                return Err(self.too_large());
            }
            if self.end_of_stream {
                let start = std::mem::replace(&mut self.start, self.buffer.len());
                let rest = &self.buffer[start..];
                return Ok(if rest.is_empty() { None } else { Some(trim(rest)) });
            }
            self.fill().await?;
        }
    }

    /// Reads on and drops everything, until the end of the stream.
    ///
    /// # Cancel safety
    ///
    /// Safe: there is nothing to lose.
    pub async fn discard(&mut self) {
        self.buffer = Vec::new();
        self.start = 0;
        self.scanned = 0;
        let mut sink = vec![0; READ_BYTES];
        while matches!(self.source.read(&mut sink).await, Ok(count) if count > 0) {}
    }

    async fn fill(&mut self) -> Result<(), ReadError> {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.scanned -= self.start;
            self.start = 0;
            // One long line must not keep its memory for the life of the session.
            if self.buffer.len() < READ_BYTES && self.buffer.capacity() > 4 * READ_BYTES {
                self.buffer.shrink_to(2 * READ_BYTES);
            }
        }
        let filled = self.buffer.len();
        if self.buffer.capacity() - filled < READ_BYTES {
            // Doubling by hand: Vec's own would take twice the limit for a line just below it.
            let wanted = (filled * 2).clamp(filled + READ_BYTES, self.ceiling().max(filled + 1));
            self.buffer.reserve_exact(wanted - filled);
        }
        let room = (self.buffer.capacity() - filled).min(READ_BYTES);
        self.buffer.resize(filled + room, 0);
        let outcome = ReadInto { source: &mut self.source, buffer: &mut self.buffer, filled };
        let count = outcome.read().await.map_err(ReadError::Read)?;
        self.end_of_stream = count == 0;
        Ok(())
    }

    fn ceiling(&self) -> usize {
        self.line_bytes_max + READ_BYTES
    }

    fn too_large(&self) -> ReadError {
        ReadError::FrameTooLarge { limit_bytes: self.line_bytes_max }
    }
}

/// A read in progress; whether it ends or is dropped, the buffer is cut back to what was read.
struct ReadInto<'a, R> {
    source: &'a mut R,
    buffer: &'a mut Vec<u8>,
    filled: usize,
}

impl<R: AsyncRead + Unpin> ReadInto<'_, R> {
    async fn read(mut self) -> std::io::Result<usize> {
        let filled = self.filled;
        let count = self.source.read(&mut self.buffer[filled..]).await?;
        self.filled += count;
        Ok(count)
    }
}

impl<R> Drop for ReadInto<'_, R> {
    fn drop(&mut self) {
        self.buffer.truncate(self.filled);
    }
}

/// Takes off a carriage return at the end and a byte order mark at the beginning.
fn trim(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    line.strip_prefix(b"\xef\xbb\xbf").unwrap_or(line)
}

/// A line that is a JSON-RPC 2.0 message.
#[derive(Debug)]
pub enum Frame<'a> {
    /// Wants an answer under `id`.
    Request {
        /// As the agent wrote it.
        id: &'a RawValue,
        /// The method's name.
        method: Cow<'a, str>,
        /// Its parameters.
        params: Option<&'a RawValue>,
    },
    /// Wants no answer.
    Notification {
        /// The method's name.
        method: Cow<'a, str>,
        /// Its parameters.
        params: Option<&'a RawValue>,
    },
    /// Answers a request of ours, if `id` is one.
    Response {
        /// As the agent wrote it.
        id: &'a RawValue,
        /// The `result`, or the `error`.
        outcome: Result<&'a RawValue, &'a RawValue>,
    },
    /// An error that belongs to no request: without an id, or with a null one. JSON-RPC has it for
    /// lines that the peer could not parse; one agent sends it for notifications that it does not
    /// know.
    Unaddressed,
}

/// A line that is no JSON-RPC message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a JSON-RPC 2.0 message")]
pub struct Malformed;

#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(borrow)]
    jsonrpc: Cow<'a, str>,
    #[serde(borrow, default, deserialize_with = "present")]
    id: Option<&'a RawValue>,
    #[serde(borrow, default)]
    method: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "present")]
    params: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    result: Option<&'a RawValue>,
    #[serde(borrow, default, deserialize_with = "present")]
    error: Option<&'a RawValue>,
}

/// Tells a field that is null from one that is not there.
fn present<'de: 'a, 'a, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<&'a RawValue>, D::Error> {
    <&RawValue>::deserialize(deserializer).map(Some)
}

impl<'a> Frame<'a> {
    /// What a line says.
    ///
    /// # Errors
    ///
    /// [`Malformed`] for everything that is no JSON-RPC 2.0 message: text, scalars, lists, objects
    /// of another kind (structured logs have an `id` too), a name twice, both or none of `result`
    /// and `error`.
    pub fn parse(line: &'a [u8]) -> Result<Self, Malformed> {
        let text = std::str::from_utf8(line).map_err(|_| Malformed)?;
        // serde takes a list for a struct.
        if !text.trim_start().starts_with('{') {
            return Err(Malformed);
        }
        let envelope: Envelope<'a> = serde_json::from_str(text).map_err(|_| Malformed)?;
        if envelope.jsonrpc != "2.0" {
            return Err(Malformed);
        }
        if envelope.id.is_some_and(|id| !is_id(id)) {
            return Err(Malformed);
        }
        match envelope {
            Envelope { method: Some(_), result: Some(_), .. }
            | Envelope { method: Some(_), error: Some(_), .. } => Err(Malformed),
            Envelope { method: Some(method), id: Some(id), params, .. } => {
                Ok(Frame::Request { id, method, params })
            }
            Envelope { method: Some(method), id: None, params, .. } => {
                Ok(Frame::Notification { method, params })
            }
            Envelope { id, result: None, error: Some(error), .. } => match id {
                Some(id) if id.get() != "null" => Ok(Frame::Response { id, outcome: Err(error) }),
                Some(_) | None => Ok(Frame::Unaddressed),
            },
            Envelope { id: Some(id), result: Some(result), error: None, .. }
                if id.get() != "null" =>
            {
                Ok(Frame::Response { id, outcome: Ok(result) })
            }
            Envelope { .. } => Err(Malformed),
        }
    }
}

/// JSON-RPC ids are strings, numbers or null.
fn is_id(id: &RawValue) -> bool {
    let text = id.get();
    if text.len() > ID_BYTES_MAX {
        return false;
    }
    text == "null" || text.starts_with(|c: char| c == '"' || c == '-' || c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn lines(input: &[u8], limit: usize) -> (Vec<Vec<u8>>, Option<ReadError>) {
        let mut reader = LineReader::new(input, limit);
        let mut found = Vec::new();
        loop {
            match reader.next_line().await {
                Ok(Some(line)) => found.push(line.to_vec()),
                Ok(None) => return (found, None),
                Err(error) => return (found, Some(error)),
            }
        }
    }

    #[tokio::test]
    async fn line_ends_marks_and_the_unfinished_last_line_are_understood() {
        let (found, error) = lines(b"\xef\xbb\xbfa\r\nb\n\nc\0d\r\n\xff\xfe\nlast", 100).await;
        assert!(error.is_none());
        let expected: [&[u8]; 6] = [b"a", b"b", b"", b"c\0d", b"\xff\xfe", b"last"];
        assert_eq!(found, expected);
    }

    #[tokio::test]
    async fn a_line_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() {
        let mut input = vec![b'x'; FRAME_BYTES_MAX];
        input.push(b'\n');
        let (found, error) = lines(&input, FRAME_BYTES_MAX).await;
        assert_eq!((found.len(), error.is_none()), (1, true));

        let mut input = vec![b'x'; FRAME_BYTES_MAX + 1];
        let (found, error) = lines(&input, FRAME_BYTES_MAX).await;
        assert_eq!(found.len(), 0);
        assert!(matches!(error, Some(ReadError::FrameTooLarge { .. })));
        input.push(b'\n');
        let (_, error) = lines(&input, FRAME_BYTES_MAX).await;
        assert!(matches!(error, Some(ReadError::FrameTooLarge { .. })));
    }

    #[tokio::test]
    async fn memory_is_bounded_by_the_limit_and_given_back() {
        let mut input = vec![b'x'; FRAME_BYTES_MAX];
        input.extend_from_slice(b"\nshort\n");
        let mut reader = LineReader::new(&input[..], FRAME_BYTES_MAX);
        assert_eq!(reader.next_line().await.unwrap().unwrap().len(), FRAME_BYTES_MAX);
        assert!(reader.buffer.capacity() <= FRAME_BYTES_MAX + 2 * READ_BYTES);
        assert_eq!(reader.next_line().await.unwrap(), Some(&b"short"[..]));
        assert_eq!(reader.next_line().await.unwrap(), None);
        assert!(reader.buffer.capacity() <= 4 * READ_BYTES);
    }

    #[tokio::test]
    async fn a_dropped_read_loses_nothing() {
        use tokio::io::AsyncWriteExt as _;
        let (mut write, read) = tokio::io::duplex(16);
        let mut reader = LineReader::new(read, 100);
        write.write_all(b"{\"a\"").await.unwrap();
        for _ in 0..3 {
            let step = futures::FutureExt::now_or_never(reader.next_line());
            assert!(step.is_none());
        }
        write.write_all(b":1}\n").await.unwrap();
        assert_eq!(reader.next_line().await.unwrap(), Some(&b"{\"a\":1}"[..]));
    }

    fn shape(line: &str) -> &'static str {
        match Frame::parse(line.as_bytes()) {
            Ok(Frame::Request { .. }) => "request",
            Ok(Frame::Notification { .. }) => "notification",
            Ok(Frame::Response { outcome: Ok(_), .. }) => "result",
            Ok(Frame::Response { outcome: Err(_), .. }) => "error",
            Ok(Frame::Unaddressed) => "unaddressed",
            Err(Malformed) => "noise",
        }
    }

    #[test]
    fn only_whole_json_rpc_messages_are_frames() {
        for (line, expected) in [
            (r#"{"jsonrpc":"2.0","id":1,"result":null}"#, "result"),
            (r#" {"jsonrpc":"2.0","id":"x","result":{}} "#, "result"),
            (r#"{"jsonrpc":"2.0","id":1,"error":{}}"#, "error"),
            (r#"{"jsonrpc":"2.0","error":{}}"#, "unaddressed"),
            (r#"{"jsonrpc":"2.0","id":null,"error":{}}"#, "unaddressed"),
            (r#"{"jsonrpc":"2.0","id":null,"result":{}}"#, "noise"),
            (r#"{"jsonrpc":"2.0","result":{}}"#, "noise"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{},"error":{}}"#, "noise"),
            (r#"{"jsonrpc":"2.0","id":1}"#, "noise"),
            (r#"{"jsonrpc":"2.0","id":1,"id":2,"result":{}}"#, "noise"),
            (r#"{"jsonrpc":"2.0","id":{},"result":{}}"#, "noise"),
            (r#"{"jsonrpc":"2.0","id":true,"result":{}}"#, "noise"),
            (r#"{"jsonrpc":"1.0","id":1,"result":{}}"#, "noise"),
            (r#"{"id":1,"result":{}}"#, "noise"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m"}"#, "request"),
            (r#"{"jsonrpc":"2.0","id":null,"method":"m"}"#, "request"),
            (r#"{"jsonrpc":"2.0","method":"m","params":{}}"#, "notification"),
            (r#"{"jsonrpc":"2.0","id":1,"method":"m","result":{}}"#, "noise"),
            (r#"{"jsonrpc":"2.0","method":7}"#, "noise"),
            (r#"["2.0",1,"m"]"#, "noise"),
            (r#"[{"jsonrpc":"2.0","method":"m"}]"#, "noise"),
            ("1", "noise"),
            ("\"text\"", "noise"),
            ("Starting server...", "noise"),
            ("", "noise"),
            ("\0", "noise"),
        ] {
            assert_eq!(shape(line), expected, "{line}");
        }
    }

    #[test]
    fn ids_stay_the_text_that_was_written() {
        for id in ["123456789012345678901234567890", "1.50", "1e3", "-0", "\"\\u0031\"", "\"1\""] {
            let line = format!(r#"{{"jsonrpc":"2.0","id":{id},"method":"m"}}"#);
            let Ok(Frame::Request { id: found, .. }) = Frame::parse(line.as_bytes()) else {
                panic!("{line} is a request");
            };
            assert_eq!(found.get(), id);
        }
    }

    #[test]
    fn deep_nesting_neither_overflows_nor_is_refused_where_it_is_not_read() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        let line = format!(r#"{{"jsonrpc":"2.0","method":"m","params":{deep}}}"#);
        assert_eq!(shape(&line), "notification");
    }
}
