//! What a turn's agent writes, on its way to the store: the transcript and the response.
//!
//! Appends are gathered for at most 50 ms or 256 KiB, then made durable together. While that takes
//! place nothing more is read from the agent: the store's pace is the agent's, and memory stays
//! bounded however much comes. Secrets do not get in: texts of one sort are searched over the borders
//! of their chunks, and what may be the beginning of one waits for the next chunk.

use std::borrow::Cow;
use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::acp::event::{Update, UpdateKind};
use crate::api::{Time, Uid};
use crate::secret::Redactor;
use crate::secret::redact::Stream as Clean;
use crate::store::{
    Append, BLOB_CHUNK_BYTES_MAX, BlobId, COMMIT_OPS_MAX, Error, SharedBlobs, Stream,
};

/// Gathered output is made durable when it is so large.
pub(super) const FLUSH_BYTES: usize = 256 * 1024;
/// Gathered output is made durable when it is so old.
pub(super) const FLUSH_AFTER: Duration = Duration::from_millis(50);
/// How long a store that fails is tried again before the turn is given up.
const PERSIST_TRIES: u32 = 12;
/// The first pause between two tries; it doubles up to [`PERSIST_PAUSE_MAX`].
const PERSIST_PAUSE: Duration = Duration::from_millis(50);
const PERSIST_PAUSE_MAX: Duration = Duration::from_secs(5);

/// A blob that grows at its end.
struct Growing {
    blob: BlobId,
    durable: u64,
    tail: BytesMut,
}

impl Growing {
    fn new(turn: &Uid, stream: Stream) -> Self {
        Self { blob: BlobId { owner: turn.clone(), stream }, durable: 0, tail: BytesMut::new() }
    }

    fn appends(&self, into: &mut Vec<Append>) {
        let mut offset = self.durable;
        for chunk in self.tail.chunks(BLOB_CHUNK_BYTES_MAX) {
            let bytes = Bytes::copy_from_slice(chunk);
            into.push(Append { blob: self.blob.clone(), offset, bytes });
            offset += chunk.len() as u64;
        }
    }

    fn is_durable(&mut self) {
        self.durable += self.tail.len() as u64;
        self.tail.clear();
    }
}

/// A running turn's output.
pub(super) struct Output {
    pub(super) turn: Uid,
    transcript: Growing,
    response: Growing,
    /// Whether the last thing in the response was a message: a run of chunks is one step.
    is_in_message: bool,
    pub(super) steps: u32,
    redactor: Redactor,
    sort: Sort,
    /// The text that chunks of that sort make.
    text: Clean,
}

/// What chunks must share to be one text.
#[derive(Clone, PartialEq, Eq)]
struct Sort {
    kind: UpdateKind,
    /// They came after the turn's end.
    is_late: bool,
    /// They count for the response, if they are of the message: nothing that is late does, but
    /// where the response is held open for it.
    is_answer: bool,
}

impl Output {
    pub(super) fn new(turn: Uid, redactor: Redactor) -> Self {
        Self {
            sort: Sort { kind: UpdateKind::AgentMessageChunk, is_late: false, is_answer: true },
            text: redactor.stream(),
            redactor,
            transcript: Growing::new(&turn, Stream::Transcript),
            response: Growing::new(&turn, Stream::Response),
            turn,
            is_in_message: false,
            steps: 0,
        }
    }

    /// Takes an update of the turn in: one line of the transcript, and what of it belongs to the
    /// response (the assistant's text, and a heading for each tool call; reasoning is left out).
    /// `is_held`: the response is held open for what comes late, which belongs to it then.
    pub(super) fn take(&mut self, update: &Update, at: Time, is_held: bool) {
        let is_answer = !update.late || is_held;
        let text = self.clean(update, at, is_answer);
        if !is_answer {
            return;
        }
        match &update.kind {
            UpdateKind::AgentMessageChunk => {
                if !self.is_in_message {
                    self.steps = self.steps.saturating_add(1);
                }
                self.is_in_message = true;
                if let Some(text) = text {
                    self.response.tail.extend_from_slice(text.as_bytes());
                }
            }
            UpdateKind::ToolCall => {
                self.steps = self.steps.saturating_add(1);
                self.is_in_message = false;
                let title = update.tool.as_ref().and_then(|tool| tool.title.as_deref());
                let title = self.redactor.text(title.unwrap_or("tool call"));
                let heading = format!("\n\n### {title}\n\n");
                self.response.tail.extend_from_slice(heading.as_bytes());
            }
            _ => {}
        }
    }

    /// Writes an update's line without secrets, and gives what of its text may be written now.
    fn clean<'a>(&mut self, update: &'a Update, at: Time, is_answer: bool) -> Option<Cow<'a, str>> {
        if self.redactor.is_idle() && !self.text.is_holding() {
            self.line(at, "update", update.raw.get(), update.late);
            return update.text.as_deref().map(Cow::Borrowed);
        }
        let is_text =
            matches!(update.kind, UpdateKind::AgentMessageChunk | UpdateKind::AgentThoughtChunk);
        let chunk = match is_text.then(|| chunk_text(update)).flatten() {
            Some(chunk) => chunk,
            None => {
                self.finish(at);
                let raw = self.redactor.raw_json(update.raw.get()).into_owned();
                self.line(at, "update", &raw, update.late);
                return update.text.as_deref().map(|text| self.redactor.text(text));
            }
        };
        let sort = Sort { kind: update.kind.clone(), is_late: update.late, is_answer };
        if self.sort != sort {
            self.finish(at);
            self.sort = sort;
        }
        let clean = self.text.push(chunk.as_bytes());
        let clean = match clean {
            // Most chunks: nothing is held back and nothing is crossed out.
            Cow::Borrowed(_) => {
                let raw = self.redactor.raw_json(update.raw.get()).into_owned();
                self.line(at, "update", &raw, update.late);
                return Some(chunk);
            }
            Cow::Owned(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        };
        if !clean.is_empty() {
            let raw = with_text(update.raw.get(), &clean);
            let raw = self.redactor.raw_json(&raw).into_owned();
            self.line(at, "update", &raw, update.late);
        }
        Some(Cow::Owned(clean))
    }

    /// What was held back of a text that goes on no further, as a chunk of its own.
    pub(super) fn finish(&mut self, at: Time) {
        if !self.text.is_holding() {
            return;
        }
        let rest = String::from_utf8_lossy(&self.text.finish()).into_owned();
        let Sort { kind, is_late, is_answer } = self.sort.clone();
        let chunk = serde_json::json!({
            "sessionUpdate": kind.as_str(), "content": {"type": "text", "text": rest},
        });
        self.line(at, "update", &chunk.to_string(), is_late);
        if is_answer && kind == UpdateKind::AgentMessageChunk {
            self.response.tail.extend_from_slice(rest.as_bytes());
        }
    }

    /// Writes a line of the transcript: `{"at": TIME, KEY: JSON}`, with `"late": true` for what
    /// came after the turn's end.
    pub(super) fn line(&mut self, at: Time, key: &str, json: &str, is_late: bool) {
        let tail = &mut self.transcript.tail;
        tail.extend_from_slice(format!("{{\"at\":\"{at}\",").as_bytes());
        if is_late {
            tail.extend_from_slice(b"\"late\":true,");
        }
        tail.extend_from_slice(format!("\"{key}\":").as_bytes());
        // A line is a line: raw JSON from an agent stands on one, as it came on one.
        tail.extend_from_slice(json.as_bytes());
        tail.extend_from_slice(b"}\n");
    }

    pub(super) fn pending_bytes(&self) -> usize {
        self.transcript.tail.len() + self.response.tail.len()
    }

    /// The durable lengths of transcript and response.
    pub(super) const fn durable(&self) -> (u64, u64) {
        (self.transcript.durable, self.response.durable)
    }

    /// Makes everything gathered durable. A store that fails is tried again for a while.
    ///
    /// # Errors
    ///
    /// The store's last word. What was gathered is dropped: the turn must be given up.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: an append that was made twice is seen by its offset.
    pub(super) async fn flush(&mut self, blobs: &SharedBlobs) -> Result<(), Error> {
        let mut appends = Vec::new();
        self.transcript.appends(&mut appends);
        self.response.appends(&mut appends);
        if appends.is_empty() {
            return Ok(());
        }
        // One line of an agent's may be larger than a commit takes; the offsets keep the order.
        for batch in appends.chunks(COMMIT_OPS_MAX) {
            if let Err(error) = persist(blobs, batch).await {
                self.transcript.tail.clear();
                self.response.tail.clear();
                return Err(error);
            }
        }
        self.transcript.is_durable();
        self.response.is_durable();
        Ok(())
    }
}

/// The text of a chunk; agents' thoughts are read here alone.
fn chunk_text(update: &Update) -> Option<Cow<'_, str>> {
    if let Some(text) = &update.text {
        return Some(Cow::Borrowed(text));
    }
    let raw: serde_json::Value = serde_json::from_str(update.raw.get()).ok()?;
    raw.pointer("/content/text")?.as_str().map(|text| Cow::Owned(text.to_owned()))
}

/// A chunk's update with another text.
fn with_text(raw: &str, text: &str) -> String {
    let Ok(mut update) = serde_json::from_str::<serde_json::Value>(raw) else {
        return serde_json::Value::Null.to_string();
    };
    if let Some(held) = update.pointer_mut("/content/text") {
        *held = text.into();
    }
    update.to_string()
}

/// Makes one batch durable; a store that fails is tried again for a while.
async fn persist(blobs: &SharedBlobs, batch: &[Append]) -> Result<(), Error> {
    let mut pause = PERSIST_PAUSE;
    let mut tries = 1;
    loop {
        match blobs.append(batch.to_vec()).await {
            Ok(()) => return Ok(()),
            Err(error) if tries >= PERSIST_TRIES || is_lasting(&error) => return Err(error),
            Err(_) => tokio::time::sleep(pause).await,
        }
        tries += 1;
        pause = (pause * 2).min(PERSIST_PAUSE_MAX);
    }
}

/// Whether trying again cannot help.
const fn is_lasting(error: &Error) -> bool {
    match error {
        Error::Conflict { .. } | Error::TooLarge { .. } | Error::Unsupported(_) => true,
        Error::Unavailable(_) | Error::Unknown(_) => false,
    }
}

/// A whole blob of a known length.
///
/// # Errors
///
/// The store's; `Unavailable` if it is shorter than it should be.
pub(super) async fn read_whole(
    blobs: &SharedBlobs,
    blob: &BlobId,
    bytes: u64,
) -> Result<Vec<u8>, Error> {
    let wanted = usize::try_from(bytes).unwrap_or(usize::MAX);
    let mut whole = Vec::with_capacity(wanted);
    while whole.len() < wanted {
        let chunk = blobs.read(blob, whole.len() as u64, wanted - whole.len()).await?;
        if chunk.is_empty() {
            return Err(Error::Unavailable(format!(
                "a blob of {bytes} bytes ends after {} bytes",
                whole.len()
            )));
        }
        whole.extend_from_slice(&chunk);
    }
    Ok(whole)
}

#[cfg(test)]
mod tests {
    use serde_json::value::RawValue;

    use super::*;
    use crate::secret::Secret;

    /// What transcript and response hold after these chunks: (late, held open for it, its text).
    fn written(chunks: &[(bool, bool, &str)]) -> (Vec<(bool, String)>, String) {
        let redactor = Redactor::default();
        let _lease = redactor.hold([Secret::new("sk-12345678".to_owned())]);
        let mut output = Output::new(Uid::from("t"), redactor);
        for (late, is_held, text) in chunks {
            let kind = UpdateKind::AgentMessageChunk;
            let raw = serde_json::json!({
                "sessionUpdate": kind.as_str(), "content": {"type": "text", "text": text},
            });
            let update = Update {
                turn: None,
                kind,
                raw: RawValue::from_string(raw.to_string()).unwrap(),
                text: Some((*text).to_owned()),
                tool: None,
                replay: false,
                late: *late,
            };
            output.take(&update, Time::from_millis(0), *is_held);
        }
        output.finish(Time::from_millis(0));
        let transcript = String::from_utf8(output.transcript.tail.to_vec()).unwrap();
        let line = |line: &str| {
            let line: serde_json::Value = serde_json::from_str(line).unwrap();
            let text = line["update"]["content"]["text"].as_str().unwrap().to_owned();
            (line["late"] == true, text)
        };
        let response = String::from_utf8(output.response.tail.to_vec()).unwrap();
        (transcript.lines().map(line).collect(), response)
    }

    fn lines(of: &[(bool, &str)]) -> Vec<(bool, String)> {
        of.iter().map(|(late, text)| (*late, (*text).to_owned())).collect()
    }

    #[test]
    fn what_waited_of_late_words_is_late_too_and_no_part_of_the_response() {
        let (transcript, response) = written(&[(false, false, "done"), (true, false, "late s")]);
        assert_eq!(transcript, lines(&[(false, "done"), (true, "late "), (true, "s")]));
        assert_eq!(response, "done");
        // What waited at the end of the turn is the turn's.
        let (transcript, response) = written(&[(false, false, "words"), (true, false, "k")]);
        assert_eq!(transcript, lines(&[(false, "word"), (false, "s"), (true, "k")]));
        assert_eq!(response, "words");
        // An answer that is held open takes it.
        let (transcript, response) = written(&[(false, false, "a"), (true, true, "s")]);
        assert_eq!(transcript, lines(&[(false, "a"), (true, "s")]));
        assert_eq!(response, "as");
    }

    #[test]
    fn a_secret_that_comes_late_and_in_pieces_is_crossed_out() {
        let late = ["sk-1", "2345", "678 and more"].map(|text| (true, false, text));
        let (transcript, response) = written(&late);
        assert_eq!(transcript, lines(&[(true, "[redacted] and more")]));
        assert_eq!(response, "");
    }
}
