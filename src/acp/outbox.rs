//! What waits to be written to an agent's standard input: whole lines, in order, bounded.
//!
//! Invariants: a line is written whole or not at all as far as this side can help it; a line
//! counts as sent once its last byte was accepted and flushed. Deliberately absent: deadlines; an
//! agent that does not read is found by the inactivity clock.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncWrite, AsyncWriteExt};

/// How many bytes may wait for an agent that does not read its standard input. A longer line (a
/// prompt of 768 KiB grows sixfold if all of it must be escaped) is taken only when nothing else
/// waits.
pub const WRITE_QUEUE_BYTES_MAX: usize = 2 * 1024 * 1024;

/// The room left for lines, shared by those who add them and the one who writes them.
#[derive(Clone, Debug, Default)]
pub(super) struct Room {
    waiting_bytes: Arc<AtomicUsize>,
}

impl Room {
    /// Takes room for a line, or says that there is none.
    pub(super) fn take(&self, bytes: usize) -> bool {
        let step = |waiting: usize| {
            let fits = waiting == 0 || waiting.saturating_add(bytes) <= WRITE_QUEUE_BYTES_MAX;
            fits.then(|| waiting.saturating_add(bytes))
        };
        self.waiting_bytes.fetch_update(Ordering::AcqRel, Ordering::Acquire, step).is_ok()
    }

    /// Gives room back.
    pub(super) fn give(&self, bytes: usize) {
        self.waiting_bytes.fetch_sub(bytes, Ordering::AcqRel);
    }
}

/// A line that waits; its room is taken already.
#[derive(Debug)]
pub(super) struct Line<T> {
    /// With its newline.
    pub(super) bytes: Vec<u8>,
    /// How much room was taken for it.
    pub(super) room: usize,
    /// Given back when it is written.
    pub(super) tag: T,
}

/// Writes lines in order.
#[derive(Debug)]
pub(super) struct Outbox<W, T> {
    sink: Option<W>,
    lines: VecDeque<Line<T>>,
    /// How much of the first line is written.
    written: usize,
    close_when_empty: bool,
    room: Room,
}

impl<W: AsyncWrite + Unpin, T> Outbox<W, T> {
    pub(super) fn new(sink: W, room: Room) -> Self {
        Self { sink: Some(sink), lines: VecDeque::new(), written: 0, close_when_empty: false, room }
    }

    /// Adds a line; whether it will be written: a sink that is closed, or is to be, takes none.
    pub(super) fn push(&mut self, line: Line<T>) -> bool {
        let is_open = self.sink.is_some() && !self.close_when_empty;
        if is_open {
            self.lines.push_back(line);
        } else {
            self.room.give(line.room);
        }
        is_open
    }

    /// Closes the sink once everything is written.
    pub(super) fn close(&mut self) {
        self.close_when_empty = true;
    }

    /// Whether [`Self::advance`] has something to do.
    pub(super) fn has_work(&self) -> bool {
        self.sink.is_some() && (!self.lines.is_empty() || self.close_when_empty)
    }

    /// Whether a line was written to its last byte, but not flushed. Nothing may be read then, or
    /// the answer could overtake the note that the question was sent.
    pub(super) fn is_flushing(&self) -> bool {
        self.lines.front().is_some_and(|line| self.written == line.bytes.len())
    }

    /// Writes until a line is out, and returns its tag; `None` if the sink was closed.
    ///
    /// # Errors
    ///
    /// The sink's; it is dropped then, with all that waits.
    ///
    /// # Cancel safety
    ///
    /// Safe: how far a line got is kept.
    pub(super) async fn advance(&mut self) -> std::io::Result<Option<T>> {
        let outcome = self.write_front().await;
        if let Err(error) = outcome {
            self.drop_sink();
            return Err(error);
        }
        if let Some(line) = self.lines.pop_front() {
            self.written = 0;
            self.room.give(line.room);
            return Ok(Some(line.tag));
        }
        if let Some(mut sink) = self.sink.take() {
            // The other side may be gone already; then it is as closed as can be.
            let _ = sink.shutdown().await;
        }
        Ok(None)
    }

    async fn write_front(&mut self) -> std::io::Result<()> {
        let (Some(sink), Some(line)) = (self.sink.as_mut(), self.lines.front()) else {
            return Ok(());
        };
        while self.written < line.bytes.len() {
            match sink.write(&line.bytes[self.written..]).await? {
                0 => return Err(std::io::ErrorKind::WriteZero.into()),
                count => self.written += count,
            }
        }
        sink.flush().await
    }

    fn drop_sink(&mut self) {
        self.sink = None;
        self.written = 0;
        for line in self.lines.drain(..) {
            self.room.give(line.room);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn room_is_bounded_but_one_long_line_alone_is_taken() {
        let room = Room::default();
        assert!(room.take(3 * WRITE_QUEUE_BYTES_MAX));
        assert!(!room.take(1));
        room.give(3 * WRITE_QUEUE_BYTES_MAX);
        assert!(room.take(WRITE_QUEUE_BYTES_MAX - 1));
        assert!(room.take(1));
        assert!(!room.take(1));
    }

    #[tokio::test]
    async fn a_dropped_write_goes_on_where_it_was() {
        use tokio::io::AsyncReadExt as _;
        let (sink, mut source) = tokio::io::duplex(4);
        let room = Room::default();
        let mut outbox = Outbox::new(sink, room.clone());
        assert!(room.take(11));
        outbox.push(Line { bytes: b"0123456789\n".to_vec(), room: 11, tag: 7 });
        let mut got = Vec::new();
        let sent = loop {
            if let Some(sent) = futures::FutureExt::now_or_never(outbox.advance()) {
                break sent.unwrap();
            }
            let mut some = [0; 4];
            let count = source.read(&mut some).await.unwrap();
            got.extend_from_slice(&some[..count]);
        };
        assert_eq!(sent, Some(7));
        outbox.close();
        assert_eq!(outbox.advance().await.unwrap(), None);
        source.read_to_end(&mut got).await.unwrap();
        assert_eq!(got, b"0123456789\n");
        assert!(!outbox.has_work());
    }
}
