//! A transcript's lines as clients want them: raw, as one JSON object an entry, or as text.
//!
//! The text is for terminals: control characters of the agent are taken out, so that its output
//! cannot move the cursor or set the clipboard. Raw and JSON stay what the agent sent.

use std::collections::HashMap;

use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};

use super::status::Failure;

/// The longest line that is rendered; a longer one is named and left out. An agent's line is at
/// most 10 MiB, and an entry is little more than its line.
const LINE_BYTES_MAX: usize = 11 * 1024 * 1024;

/// Tool calls whose titles are remembered at a time; after that, ids are shown.
const TITLES_MAX: usize = 256;
/// The longest id and title that are remembered.
const TITLE_BYTES_MAX: usize = 4096;

/// The wanted form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// For people.
    Text,
    /// One JSON object an entry: `{turn, kind, text?, tool?}`.
    Json,
    /// The agent's session updates, as they were stored.
    Acp,
}

impl Format {
    /// Reads `format=`.
    ///
    /// # Errors
    ///
    /// 400 for an unknown one.
    pub(super) fn parse(text: Option<&str>) -> Result<Self, Failure> {
        match text {
            None | Some("text") => Ok(Self::Text),
            Some("json") => Ok(Self::Json),
            Some("acp") => Ok(Self::Acp),
            Some(other) => Err(Failure::bad_request(format!(
                "query format={other}: expected text, json or acp"
            ))),
        }
    }

    /// The media type of such a stream.
    #[must_use]
    pub(super) const fn media_type(self) -> &'static str {
        match self {
            Self::Text => "text/plain; charset=utf-8",
            Self::Json | Self::Acp => "application/x-ndjson",
        }
    }
}

/// What the last piece of text was, so that chunks of one message stay together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Section {
    Start,
    Message,
    Thought,
    User,
    Line,
}

/// Turns bytes of a transcript into bytes for a client, line by line. Holds at most one line.
#[derive(Debug)]
pub(super) struct Renderer {
    format: Format,
    turn: String,
    partial: BytesMut,
    is_skipping: bool,
    section: Section,
    is_line_open: bool,
    /// Titles of tool calls by id, because later updates need not repeat them.
    titles: HashMap<String, String>,
}

impl Renderer {
    /// A renderer for a turn's transcript.
    #[must_use]
    pub(super) fn new(format: Format, turn: &str) -> Self {
        Self {
            format,
            turn: turn.to_owned(),
            partial: BytesMut::new(),
            is_skipping: false,
            section: Section::Start,
            is_line_open: false,
            titles: HashMap::new(),
        }
    }

    /// Takes the next bytes and gives what is whole now.
    #[must_use]
    pub(super) fn push(&mut self, bytes: Bytes) -> Bytes {
        if self.format == Format::Acp {
            return bytes;
        }
        let mut out = String::new();
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            let Some(line) = piece.strip_suffix(b"\n") else {
                self.keep(piece);
                continue;
            };
            self.keep(line);
            let line = self.partial.split();
            if std::mem::take(&mut self.is_skipping) {
                self.note(&mut out, "an update over 11 MiB is left out; see format=acp");
            } else {
                self.render(&line, &mut out);
            }
        }
        Bytes::from(out)
    }

    /// What closes the output of this turn.
    #[must_use]
    pub(super) fn end(&mut self) -> Bytes {
        let mut out = String::new();
        if !self.partial.is_empty() {
            let line = self.partial.split();
            self.render(&line, &mut out);
        }
        self.break_line(&mut out);
        Bytes::from(out)
    }

    fn keep(&mut self, piece: &[u8]) {
        if self.partial.len() + piece.len() > LINE_BYTES_MAX {
            self.is_skipping = true;
        }
        if self.is_skipping {
            self.partial.clear();
        } else {
            self.partial.extend_from_slice(piece);
        }
    }

    fn render(&mut self, line: &[u8], out: &mut String) {
        if line.iter().all(u8::is_ascii_whitespace) {
            return;
        }
        let Ok(entry) = serde_json::from_slice::<Value>(line) else {
            self.note(out, "a line that is no JSON is left out; see format=acp");
            return;
        };
        let entry = Entry::of(&entry);
        match self.format {
            Format::Acp => {}
            Format::Json => {
                out.push_str(&entry.to_value(&self.turn).to_string());
                out.push('\n');
            }
            Format::Text => self.text(&entry, out),
        }
    }

    fn text(&mut self, entry: &Entry<'_>, out: &mut String) {
        match (entry.kind, entry.text) {
            ("agent_message_chunk", Some(text)) => self.chunk(Section::Message, "", text, out),
            ("agent_thought_chunk", Some(text)) => {
                self.chunk(Section::Thought, "[thought] ", text, out);
            }
            ("user_message_chunk", Some(text)) => self.chunk(Section::User, "[user] ", text, out),
            ("tool_call" | "tool_call_update", _) => self.tool(entry, out),
            ("plan", _) => self.line(out, &format!("[plan] {} entries", entry.plan_entries)),
            _ => {}
        }
    }

    fn tool(&mut self, entry: &Entry<'_>, out: &mut String) {
        let part = |name: &str| {
            entry
                .tool
                .as_ref()
                .and_then(|tool| tool.get(name))
                .and_then(Value::as_str)
                .unwrap_or("")
        };
        let (id, title, status) = (part("id"), part("title"), part("status"));
        // An update that changes neither is progress inside the call.
        if title.is_empty() && status.is_empty() {
            return;
        }
        if !title.is_empty() && id.len() + title.len() <= TITLE_BYTES_MAX {
            if self.titles.len() >= TITLES_MAX {
                self.titles.clear();
            }
            self.titles.insert(id.to_owned(), title.to_owned());
        }
        let name = match self.titles.get(id) {
            _ if !title.is_empty() => title,
            Some(known) => known,
            None => id,
        };
        let line = match status {
            "" => format!("[tool] {name}"),
            status => format!("[tool] {name} ({status})"),
        };
        self.line(out, &line);
    }

    fn chunk(&mut self, section: Section, label: &str, text: &str, out: &mut String) {
        if self.section != section {
            self.break_line(out);
            out.push_str(label);
            self.section = section;
        }
        let clean = printable(text);
        if let Some(last) = clean.chars().next_back() {
            self.is_line_open = last != '\n';
        }
        out.push_str(&clean);
    }

    fn line(&mut self, out: &mut String, text: &str) {
        self.break_line(out);
        self.section = Section::Line;
        out.push_str(&printable(text).replace('\n', " "));
        out.push('\n');
    }

    fn note(&mut self, out: &mut String, text: &str) {
        match self.format {
            Format::Text => self.line(out, &format!("[spawnlet] {text}")),
            Format::Json => {
                let note = json!({"turn": self.turn, "kind": "omitted", "text": text});
                out.push_str(&note.to_string());
                out.push('\n');
            }
            Format::Acp => {}
        }
    }

    fn break_line(&mut self, out: &mut String) {
        if std::mem::take(&mut self.is_line_open) {
            out.push('\n');
        }
    }
}

/// The parts of a session update that people ask for.
struct Entry<'a> {
    kind: &'a str,
    text: Option<&'a str>,
    tool: Option<Value>,
    plan_entries: usize,
}

impl<'a> Entry<'a> {
    /// Reads a stored line: an update, or one in an envelope (`update`, `params.update`).
    fn of(line: &'a Value) -> Self {
        let update = line
            .pointer("/params/update")
            .or_else(|| line.get("update"))
            .filter(|update| update.is_object())
            .unwrap_or(line);
        let part = |name: &str| update.get(name).and_then(Value::as_str);
        let kind = part("sessionUpdate").unwrap_or("unknown");
        let tool = part("toolCallId").map(|id| {
            let mut tool = serde_json::Map::new();
            tool.insert("id".to_owned(), json!(id));
            for name in ["title", "kind", "status"] {
                if let Some(value) = part(name) {
                    tool.insert(name.to_owned(), json!(value));
                }
            }
            Value::Object(tool)
        });
        Self {
            kind,
            text: update.pointer("/content/text").and_then(Value::as_str),
            tool,
            plan_entries: update.get("entries").and_then(Value::as_array).map_or(0, Vec::len),
        }
    }

    fn to_value(&self, turn: &str) -> Value {
        let mut value = json!({"turn": turn, "kind": self.kind});
        if let Some(map) = value.as_object_mut() {
            if let Some(text) = self.text {
                map.insert("text".to_owned(), json!(text));
            }
            if let Some(tool) = &self.tool {
                map.insert("tool".to_owned(), tool.clone());
            }
        }
        value
    }
}

/// Text without control characters (but line feed and tab) and without the characters that turn
/// the direction of writing.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .filter(|character| match character {
            '\n' | '\t' => true,
            // What turns a line around, or is not seen at all.
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' => false,
            '\u{2060}'..='\u{206f}' | '\u{feff}' => false,
            other => !other.is_control(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(format: Format, pieces: &[&str]) -> String {
        let mut renderer = Renderer::new(format, "t-1");
        let mut out = Vec::new();
        for piece in pieces {
            out.extend_from_slice(&renderer.push(Bytes::copy_from_slice(piece.as_bytes())));
        }
        out.extend_from_slice(&renderer.end());
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn chunks_of_a_message_stay_together_across_reads() {
        let text = render(
            Format::Text,
            &[
                "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"type\":\"text\",\"te",
                "xt\":\"Hel\"}}\n{\"update\":{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"text\":\"lo\\u001b[2J\"}}}\n",
                "{\"sessionUpdate\":\"tool_call\",\"toolCallId\":\"c\",\"title\":\"Read\",\"status\":\"pending\"}\n",
                "{\"sessionUpdate\":\"tool_call_update\",\"toolCallId\":\"c\",\"status\":\"completed\"}\n",
                "{\"sessionUpdate\":\"agent_thought_chunk\",\"content\":{\"text\":\"hm\"}}",
            ],
        );
        assert_eq!(
            text,
            "Hello[2J\n[tool] Read (pending)\n[tool] Read (completed)\n[thought] hm\n"
        );
    }

    #[test]
    fn json_has_one_object_an_entry_and_acp_is_untouched() {
        let line =
            "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"text\":\"a\\u001b\"}}\n";
        let json: Value = serde_json::from_str(&render(Format::Json, &[line])).unwrap();
        assert_eq!(json, json!({"turn": "t-1", "kind": "agent_message_chunk", "text": "a\u{1b}"}));
        assert_eq!(render(Format::Acp, &[line]), line);
        assert!(render(Format::Json, &["broken\n"]).contains("omitted"));
    }

    #[test]
    fn a_line_over_the_bound_is_named_and_the_next_one_is_read() {
        let long = "x".repeat(LINE_BYTES_MAX);
        let next = "{\"sessionUpdate\":\"agent_message_chunk\",\"content\":{\"text\":\"on\"}}\n";
        let text = render(Format::Text, &[&long, &long, "\n", next]);
        assert_eq!(text, "[spawnlet] an update over 11 MiB is left out; see format=acp\non\n");
    }
}
