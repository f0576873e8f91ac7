//! Uids: UUID v7 in the order in which they are made.
//!
//! Key order of a session's turns is their order, so two uids of one millisecond must sort too: the
//! 12 bits behind the time count up (RFC 9562, 6.2, method 1), and the time never goes back while
//! the daemon runs. One maker is shared by everybody who makes records.

use std::sync::{Arc, Mutex, PoisonError};

use crate::api::Uid;
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

impl Uids {
    /// A maker that takes its times from `clock`.
    #[must_use]
    pub fn new(clock: SharedClock) -> Self {
        Self { clock, last: Mutex::new((0, 0)) }
    }

    /// Every further uid sorts behind this one, which an earlier daemon made: the order of a
    /// session's turns outlives a daemon whose wall clock was ahead.
    pub fn go_behind(&self, uid: &Uid) {
        let Ok(uuid) = uuid::Uuid::parse_str(uid.as_str()) else { return };
        let bytes = uuid.as_bytes();
        let ms = bytes[..6].iter().fold(0_u64, |ms, byte| ms << 8 | u64::from(*byte));
        let counter = u16::from_be_bytes([bytes[6], bytes[7]]) & COUNTER_MAX;
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
    use crate::clock::ManualClock;

    #[test]
    fn uids_of_one_millisecond_sort_in_the_order_of_their_making() {
        let uids = Uids::new(Arc::new(ManualClock::default()));
        let made: Vec<Uid> = (0..10_000).map(|_| uids.make()).collect();
        assert!(made.is_sorted_by(|a, b| a < b));
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
