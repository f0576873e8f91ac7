//! What a connection drops or does not understand, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// What was dropped or not understood; for metrics and conditions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines that are no messages.
    pub noise: u64,
    /// Answers to nothing that we asked, and repeated ones.
    pub stray_answers: u64,
    /// Errors without an id.
    pub unaddressed: u64,
    /// Updates for another session, malformed ones, and those above the limit for held ones.
    pub dropped_updates: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) noise: AtomicU64,
    pub(super) stray_answers: AtomicU64,
    pub(super) unaddressed: AtomicU64,
    pub(super) dropped_updates: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> Counts {
        Counts {
            noise: self.noise.load(Ordering::Relaxed),
            stray_answers: self.stray_answers.load(Ordering::Relaxed),
            unaddressed: self.unaddressed.load(Ordering::Relaxed),
            dropped_updates: self.dropped_updates.load(Ordering::Relaxed),
        }
    }
}

/// Counts one more; how many there are.
pub(super) fn count(counter: &AtomicU64) -> u64 {
    counter.fetch_add(1, Ordering::Relaxed) + 1
}
