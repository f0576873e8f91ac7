//! Uids: UUID v7 in the order in which they are made.
//!
//! Key order of a session's turns is their order, so two uids of one millisecond must sort too: the
//! 12 bits behind the time count up (RFC 9562, 6.2, method 1), and the time never goes back while
//! the daemon runs. One maker is shared by everybody who makes records.

use std::sync::{Arc, Mutex, PoisonError};

use crate::api::{Time, Uid};
use crate::clock::SharedClock;

/// The counter has 12 bits; at its end the time is moved on by a millisecond.
const COUNTER_MAX: u16 = 0x0fff;

/// Makes uids.
pub struct Uids {
    clock: SharedClock,
    last: Mutex<(u64, u16)>,
}

/// A maker that the whole program shares.
pub type SharedUids = Arc<Uids>;

/// When a uid was made, in milliseconds since 1970, and which one of that millisecond it is.
fn made_at(uid: &Uid) -> Option<(u64, u16)> {
    let uuid = uuid::Uuid::parse_str(uid.as_str()).ok()?;
    let bytes = uuid.as_bytes();
    let ms = bytes[..6].iter().fold(0_u64, |ms, byte| ms << 8 | u64::from(*byte));
    Some((ms, u16::from_be_bytes([bytes[6], bytes[7]]) & COUNTER_MAX))
}

/// Whether a uid was made later than a time: by an earlier daemon, whose wall clock was ahead.
#[must_use]
pub fn is_after(uid: &Uid, time: Time) -> bool {
    let ms = u64::try_from(time.as_millis()).unwrap_or(0);
    made_at(uid).is_some_and(|(made, _)| made > ms)
}

impl Uids {
    /// A maker that takes its times from `clock`.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self { clock, last: Mutex::new((0, 0)) }
    }

    /// Every further uid sorts behind this one, which an earlier daemon made: the order of a
    /// session's turns outlives a daemon whose wall clock was ahead.
    pub fn go_behind(&self, uid: &Uid) {
        let Some((ms, counter)) = made_at(uid) else { return };
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        *last = (*last).max((ms, counter));
    }

    /// A uid that sorts behind every earlier one of this maker.
    #[must_use]
    pub fn make(&self) -> Uid {
        let now = u64::try_from(self.clock.now().time.as_millis()).unwrap_or(0);
        let (ms, counter) = {
            // A panic elsewhere leaves the pair whole: it is written in one go.
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            *last = match *last {
                (ms, _) if now > ms => (now, 0),
                (ms, COUNTER_MAX) => (ms + 1, 0),
                (ms, counter) => (ms, counter + 1),
            };
            *last
        };
        let mut random: [u8; 10] = rand::random();
        let [high, low] = counter.to_be_bytes();
        (random[0], random[1]) = (high, low);
        Uid::new(uuid::Builder::from_unix_timestamp_millis(ms, &random).into_uuid().to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, ManualClock};

    #[test]
    fn uids_of_one_millisecond_sort_in_the_order_of_their_making() {
        let uids = Uids::new(Arc::new(ManualClock::default()));
        let made: Vec<Uid> = (0..10_000).map(|_| uids.make()).collect();
        assert!(made.is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_uid_tells_whether_it_was_made_by_a_clock_that_was_ahead() {
        let clock = Arc::new(ManualClock::default());
        let made = Uids::new(clock.clone()).make();
        let at = clock.now().time;
        assert!(!is_after(&made, at));
        assert!(is_after(&made, Time::from_millis(at.as_millis() - 1)));
        assert!(!is_after(&Uid::from("no uuid"), Time::from_millis(0)));
    }

    #[test]
    fn uids_sort_behind_those_of_a_daemon_whose_clock_was_ahead() {
        let ahead = Arc::new(ManualClock::default());
        ahead.advance(std::time::Duration::from_secs(90_000));
        let earlier = Uids::new(ahead);
        let (_, newest) = (earlier.make(), earlier.make());
        let uids = Uids::new(Arc::new(ManualClock::default()));
        uids.go_behind(&Uid::from("no uuid"));
        uids.go_behind(&newest);
        let made: Vec<Uid> = std::iter::once(newest).chain((0..3).map(|_| uids.make())).collect();
        assert!(made.is_sorted_by(|a, b| a < b), "{made:?}");
    }

    #[test]
    fn a_uid_is_a_uuid_of_version_seven() {
        let uid = Uids::new(Arc::new(ManualClock::default())).make();
        let parsed = uuid::Uuid::parse_str(uid.as_str()).unwrap();
        assert_eq!(parsed.get_version_num(), 7);
        assert_eq!(parsed.to_string(), uid.as_str());
    }
}
