//! Tells of jumps of the wall clock: one event each.
//!
//! Deadlines run on the steady clock and are not touched by a jump; people who read times in records
//! have to know of it. Noticed by whichever pass comes next, so that an idle daemon does nothing.

use std::sync::atomic::Ordering;

use crate::api::{Session, Time};

use super::Controller;

/// Wall and steady clock may differ by so much more than at the last look.
const JUMP_MIN_MS: u64 = 5000;

impl Controller {
    /// Looks whether the wall clock has jumped since the last pass over any session. The event is
    /// about the session whose pass noticed it.
    pub(super) fn watch_wall_clock(&self, session: &Session, now: Time) {
        let skew_ms = self.clock.wall_skew_ms();
        let before_ms = self.wall_skew_ms.swap(skew_ms, Ordering::SeqCst);
        let moved_ms = skew_ms.saturating_sub(before_ms);
        if moved_ms.unsigned_abs() > JUMP_MIN_MS {
            tracing::warn!(moved_ms, "the wall clock jumped");
            self.reporter.clock_jumped(&session.metadata, moved_ms, now);
        }
    }
}
