//! What a turn's agent writes, on its way to the store: the transcript and the response.
//!
//! Appends are gathered for at most 50 ms or 256 KiB, then made durable together. While that takes
//! place nothing more is read from the agent: the store's pace is the agent's, and memory stays
//! bounded however much comes.

use std::time::Duration;

use bytes::{Bytes, BytesMut};

use crate::acp::event::{Update, UpdateKind};
use crate::api::{Time, Uid};
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
}

impl Output {
    pub(super) fn new(turn: Uid) -> Self {
        Self {
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
        self.line(at, "update", update.raw.get(), update.late);
        if update.late && !is_held {
            return;
        }
        match &update.kind {
            UpdateKind::AgentMessageChunk => {
                if !self.is_in_message {
                    self.steps = self.steps.saturating_add(1);
                }
                self.is_in_message = true;
                if let Some(text) = &update.text {
                    self.response.tail.extend_from_slice(text.as_bytes());
                }
            }
            UpdateKind::ToolCall => {
                self.steps = self.steps.saturating_add(1);
                self.is_in_message = false;
                let title = update.tool.as_ref().and_then(|tool| tool.title.as_deref());
                let heading = format!("\n\n### {}\n\n", title.unwrap_or("tool call"));
                self.response.tail.extend_from_slice(heading.as_bytes());
            }
            _ => {}
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
