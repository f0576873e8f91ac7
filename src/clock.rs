//! The clock: one reading a pass, steady while the daemon runs.
//!
//! Times in records come from the wall clock as it stood when the daemon started, and go on by the
//! kernel's boot clock (it counts suspend). So a jump of the wall clock neither fires nor postpones
//! a deadline, and stored deadlines, being wall times, survive a restart. [`Clock::wall_skew_ms`]
//! tells how far the wall clock has since moved away.
//!
//! The only file that may read a clock; `clippy.toml` bans the calls elsewhere.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use crate::api::Time;

/// One reading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Now {
    /// For records and durable deadlines.
    pub time: Time,
    /// For what lives in memory only, such as inactivity: it excludes suspend.
    pub mono: Mono,
}

/// Milliseconds of the monotonic clock since the daemon started.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Mono(pub u64);

impl Mono {
    /// This moment and then `duration`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)))
    }

    /// How long ago `earlier` was, zero if it is not in the past.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }
}

/// Where time comes from.
pub trait Clock: Send + Sync {
    /// One reading.
    fn now(&self) -> Now;

    /// How far the wall clock stands from [`Now::time`], in milliseconds; positive: ahead.
    fn wall_skew_ms(&self) -> i64;
}

/// A clock that the whole program shares.
pub type SharedClock = Arc<dyn Clock>;

/// The machine's clock. Its monotonic side is tokio's, so that paused time in tests moves it.
#[derive(Debug)]
pub struct SystemClock {
    started_wall_ms: i64,
    started: tokio::time::Instant,
    started_suspend_ms: i64,
}

impl SystemClock {
    /// A clock that starts now.
    #[must_use]
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads the clock")]
    pub fn new() -> Self {
        Self {
            started_wall_ms: wall_ms(),
            started: tokio::time::Instant::now(),
            started_suspend_ms: suspended_ms(),
        }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Now {
        let mono = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        let suspended = suspended_ms() - self.started_suspend_ms;
        let elapsed = i64::try_from(mono).unwrap_or(i64::MAX).saturating_add(suspended);
        Now {
            time: Time::from_millis(self.started_wall_ms.saturating_add(elapsed)),
            mono: Mono(mono),
        }
    }

    fn wall_skew_ms(&self) -> i64 {
        wall_ms() - self.now().time.as_millis()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the file that reads the clock")]
fn wall_ms() -> i64 {
    match std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH) {
        Ok(elapsed) => i64::try_from(elapsed.as_millis()).unwrap_or(i64::MAX),
        Err(before) => -i64::try_from(before.duration().as_millis()).unwrap_or(i64::MAX),
    }
}

/// How long the machine has slept since it booted (clock_gettime(2): `CLOCK_BOOTTIME` counts
/// suspend, `CLOCK_MONOTONIC` does not).
#[cfg(target_os = "linux")]
fn suspended_ms() -> i64 {
    use rustix::time::{ClockId, clock_gettime};
    let ms = |id| {
        let reading = clock_gettime(id);
        reading.tv_sec * 1000 + reading.tv_nsec / 1_000_000
    };
    // Two readings are never taken at one instant; what is under a second is no sleep.
    let difference = ms(ClockId::Boottime) - ms(ClockId::Monotonic);
    difference / 1000 * 1000
}

#[cfg(not(target_os = "linux"))]
fn suspended_ms() -> i64 {
    0
}

/// A clock that tests move by hand.
#[derive(Debug, Default)]
pub struct ManualClock {
    ms: AtomicI64,
    skew_ms: AtomicI64,
}

/// 2026-01-01T00:00:00Z, where manual clocks start.
const MANUAL_EPOCH_MS: i64 = 1_767_225_600_000;

impl ManualClock {
    /// Lets time pass.
    pub fn advance(&self, duration: Duration) {
        self.ms
            .fetch_add(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX), Ordering::SeqCst);
    }

    /// Moves the wall clock alone.
    pub fn jump_wall(&self, ms: i64) {
        self.skew_ms.fetch_add(ms, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Now {
        let ms = self.ms.load(Ordering::SeqCst);
        Now {
            time: Time::from_millis(MANUAL_EPOCH_MS + ms),
            mono: Mono(u64::try_from(ms).unwrap_or(0)),
        }
    }

    fn wall_skew_ms(&self) -> i64 {
        self.skew_ms.load(Ordering::SeqCst)
    }
}
