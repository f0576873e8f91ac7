//! Lines in and lines out.

use std::io::{BufReader, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use serde_json::{Value, json};

/// What was read.
pub(crate) enum Input {
    Message(Value),
    /// A line that is no JSON.
    Garbage,
    End,
}

/// How many messages are read ahead.
const AHEAD: usize = 1024;

/// Standard input as a queue; once `deaf` is set nothing more is read.
pub(crate) struct Stdin {
    pub(crate) queue: Receiver<Input>,
    pub(crate) deaf: Arc<AtomicBool>,
}

impl Stdin {
    pub(crate) fn open() -> Self {
        let (sender, queue) = sync_channel(AHEAD);
        let deaf = Arc::new(AtomicBool::new(false));
        let is_deaf = Arc::clone(&deaf);
        std::thread::spawn(move || read(&sender, &is_deaf));
        Self { queue, deaf }
    }
}

fn read(sender: &SyncSender<Input>, deaf: &AtomicBool) {
    let mut stdin = BufReader::new(std::io::stdin());
    loop {
        while deaf.load(Ordering::SeqCst) {
            std::thread::park();
        }
        let mut line = Vec::new();
        let input = match read_line(&mut stdin, &mut line) {
            Ok(true) => match serde_json::from_slice(&line) {
                Ok(message) => Input::Message(message),
                Err(_) => Input::Garbage,
            },
            Ok(false) | Err(_) => Input::End,
        };
        let is_end = matches!(input, Input::End);
        if sender.send(input).is_err() || is_end {
            return;
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the daemon under test writes whole lines")]
fn read_line<R: Read>(stdin: &mut BufReader<R>, line: &mut Vec<u8>) -> std::io::Result<bool> {
    use std::io::BufRead as _;
    Ok(stdin.read_until(b'\n', line)? > 0)
}

/// Standard output, a line at a time.
pub(crate) struct Stdout(std::io::Stdout);

impl Stdout {
    pub(crate) fn open() -> Self {
        Self(std::io::stdout())
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.0.write_all(bytes)?;
        self.0.flush()
    }

    pub(crate) fn send(&mut self, message: &Value) -> std::io::Result<()> {
        let mut line = message.to_string();
        line.push('\n');
        self.raw(line.as_bytes())
    }

    pub(crate) fn result(&mut self, id: &Value, result: &Value) -> std::io::Result<()> {
        self.send(&json!({"jsonrpc": "2.0", "id": id, "result": result}))
    }

    pub(crate) fn error(&mut self, id: &Value, code: i64, message: &str) -> std::io::Result<()> {
        let error = json!({"code": code, "message": message});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "error": error}))
    }

    pub(crate) fn update(&mut self, session: &str, update: &Value) -> std::io::Result<()> {
        let params = json!({"sessionId": session, "update": update});
        self.send(&json!({"jsonrpc": "2.0", "method": "session/update", "params": params}))
    }

    /// A chunk of the answer.
    pub(crate) fn say(&mut self, session: &str, text: &str) -> std::io::Result<()> {
        self.chunk(session, "agent_message_chunk", text)
    }

    pub(crate) fn chunk(&mut self, session: &str, kind: &str, text: &str) -> std::io::Result<()> {
        let content = json!({"type": "text", "text": text});
        self.update(session, &json!({"sessionUpdate": kind, "content": content}))
    }
}
