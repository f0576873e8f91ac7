//! What outlives the process: files that are only ever appended to, one whole line per write, so
//! that many processes may share one and a kill never leaves half a line.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use serde_json::{Value, json};

/// Appends a line by a single write.
pub(crate) fn append(path: &Path, message: &Value) -> std::io::Result<()> {
    let mut line = message.to_string();
    line.push('\n');
    OpenOptions::new().create(true).append(true).open(path)?.write_all(line.as_bytes())
}

/// The prompts that a session had, if it is known.
pub(crate) fn prompts(path: &Path, session: &str) -> Option<Vec<String>> {
    let text = std::fs::read_to_string(path).ok()?;
    let mut found: Option<Vec<String>> = None;
    for line in text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        if line["session"] == session {
            let prompts = found.get_or_insert_default();
            prompts.extend(line["prompt"].as_str().map(str::to_owned));
        }
    }
    found
}

pub(crate) fn remember_session(path: &Path, session: &str) -> std::io::Result<()> {
    append(path, &json!({"session": session}))
}

pub(crate) fn remember_prompt(path: &Path, session: &str, text: &str) -> std::io::Result<()> {
    append(path, &json!({"session": session, "prompt": text}))
}
