//! The last of what an agent wrote to its standard error.
//!
//! It is always drained, so that an agent never blocks on it, and kept in memory only, as a ring:
//! a flood costs time, not memory. It proves nothing and drives nothing: stderr is no activity.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::secret::Redactor;

/// How much of one process's standard error is kept (page "From a Session record to a live ACP
/// process").
pub const STDERR_BYTES_MAX: usize = 128 * 1024;
/// How much is read at once: what a pipe gives in one read by default.
const READ_BYTES: usize = 16 * 1024;

/// A shared ring of bytes. A cheap handle.
#[derive(Clone, Debug, Default)]
pub struct Ring {
    kept: Arc<Mutex<VecDeque<u8>>>,
    redactor: Redactor,
}

impl Ring {
    /// A ring that secrets do not get into by [`Self::drain`].
    #[must_use]
    pub fn without_secrets(redactor: Redactor) -> Self {
        Self { redactor, ..Self::default() }
    }

    /// Adds to it, and forgets the oldest over [`STDERR_BYTES_MAX`].
    pub fn push(&self, bytes: &[u8]) {
        let bytes = bytes.get(bytes.len().saturating_sub(STDERR_BYTES_MAX)..).unwrap_or_default();
        let mut kept = self.lock();
        let over = (kept.len() + bytes.len()).saturating_sub(STDERR_BYTES_MAX);
        kept.drain(..over);
        kept.extend(bytes);
    }

    /// All that is kept, as it was written. The first character may be cut.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        self.lock().iter().copied().collect()
    }

    /// The last lines for a message: at most `lines` of them and `bytes_max` bytes, without the
    /// empty ones. What is no UTF-8 is replaced.
    #[must_use]
    pub fn last_lines(&self, lines: usize, bytes_max: usize) -> String {
        let bytes = self.bytes();
        let text = String::from_utf8_lossy(&bytes);
        let mut last: Vec<&str> =
            text.lines().rev().filter(|line| !line.trim().is_empty()).take(lines).collect();
        last.reverse();
        let joined = last.join("\n");
        let from = joined.ceil_char_boundary(joined.len().saturating_sub(bytes_max));
        joined.get(from..).unwrap_or_default().to_owned()
    }

    /// Reads to the end and keeps the last of it. Returns how many bytes there were.
    ///
    /// # Errors
    ///
    /// The reader's.
    ///
    /// # Cancel safety
    ///
    /// What was read is kept, but for what may be the beginning of a secret.
    pub async fn drain(&self, mut reader: impl AsyncRead + Unpin) -> io::Result<u64> {
        let mut buffer = vec![0; READ_BYTES];
        let mut total = 0_u64;
        let mut stream = self.redactor.stream();
        loop {
            let count = reader.read(&mut buffer).await?;
            if count == 0 {
                self.push(&stream.finish());
                return Ok(total);
            }
            total = total.saturating_add(u64::try_from(count).unwrap_or(u64::MAX));
            self.push(&stream.push(buffer.get(..count).unwrap_or_default()));
        }
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<u8>> {
        // Bytes are whole whatever panicked.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_last_128_kib_of_a_flood_are_kept() {
        let ring = Ring::default();
        let flood: Vec<u8> = (0..1_000_003_u32).flat_map(u32::to_le_bytes).collect();
        let total = ring.drain(flood.as_slice()).await.unwrap();
        assert_eq!(total, flood.len() as u64);
        assert_eq!(ring.bytes(), flood[flood.len() - STDERR_BYTES_MAX..]);
        assert!(ring.lock().capacity() <= 2 * STDERR_BYTES_MAX);
    }

    #[test]
    fn a_piece_larger_than_the_ring_leaves_its_end() {
        let ring = Ring::default();
        ring.push(b"before");
        let piece: Vec<u8> = (0..=255).cycle().take(STDERR_BYTES_MAX + 7).collect();
        ring.push(&piece);
        assert_eq!(ring.bytes(), piece[7..]);
    }

    #[test]
    fn the_last_lines_are_bounded_and_whole_characters() {
        let ring = Ring::default();
        ring.push("one\n\ntwo\n  \nthrée\n".as_bytes());
        assert_eq!(ring.last_lines(2, 100), "two\nthrée");
        assert_eq!(ring.last_lines(9, 4), "rée");
        assert_eq!(ring.last_lines(9, 3), "ée");
        assert_eq!(ring.last_lines(9, 2), "e");
        ring.push(b"\xff bad");
        assert_eq!(ring.last_lines(1, 100), "\u{fffd} bad");
    }
}
