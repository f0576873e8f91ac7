//! What a whole tree of sessions may use: how many can still run, and how many are made in a
//! minute. Pure, but for who is asked which sessions count no more.
//!
//! The sessions that count are kept in one record per root, which the commit that makes a child
//! guards and writes. Sessions that ended or hibernated are not taken off it by whoever ends them:
//! the record is gone through when it is full, so that an end costs nothing here.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::api::{Code, Time, Uid};

use super::SpawnRefusal;

/// The span that the rate is counted over.
const RATE_SPAN: Duration = Duration::from_secs(60);

/// What a tree used, as the store has it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct TreeUse {
    /// Sessions that could still run when this was written last; at most the bound of them.
    pub(super) sessions: Vec<Uid>,
    /// When sessions were made within the last minute, oldest first.
    made_at: Vec<Time>,
}

impl TreeUse {
    /// Counts one more session.
    ///
    /// # Errors
    ///
    /// `SPAWN_RATE_EXCEEDED` over the rate, with the time to wait.
    pub(super) fn add(
        &mut self,
        session: &Uid,
        now: Time,
        per_minute: usize,
    ) -> Result<(), SpawnRefusal> {
        // A clock that was set back leaves times of the future: they count no more either.
        self.made_at.retain(|&at| at <= now && now.since(at) < RATE_SPAN);
        if self.made_at.len() >= per_minute {
            let oldest = self.made_at.first().copied().unwrap_or(now);
            let wait = RATE_SPAN.saturating_sub(now.since(oldest)).as_secs() + 1;
            return Err(SpawnRefusal::new(
                Code::SpawnRateExceeded,
                format!(
                    "this tree of sessions made {per_minute} sessions within a minute, the most \
                     that limits.spawnsPerMinutePerRoot allows; go on with one that is there, or \
                     ask again in {wait} s"
                ),
            ));
        }
        self.made_at.push(now);
        self.sessions.push(session.clone());
        Ok(())
    }

    /// Whether the bound of sessions that can run is reached.
    pub(super) fn is_full(&self, sessions_max: usize) -> bool {
        self.sessions.len() >= sessions_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: i64) -> Time {
        Time::from_millis(ms)
    }

    #[test]
    fn the_rate_is_that_of_the_last_minute() {
        let mut used = TreeUse::default();
        let code = |used: &mut TreeUse, ms| {
            used.add(&"s".into(), at(ms), 2).map_err(|refusal| refusal.code)
        };
        assert_eq!(code(&mut used, 0), Ok(()));
        assert_eq!(code(&mut used, 30_000), Ok(()));
        assert_eq!(code(&mut used, 59_999), Err(Code::SpawnRateExceeded));
        assert_eq!(code(&mut used, 60_000), Ok(()));
        assert_eq!(code(&mut used, 60_000), Err(Code::SpawnRateExceeded));
        // Set back by a year: what lies in the future does not hold anybody up.
        assert_eq!(code(&mut used, -31_536_000_000), Ok(()));
    }

    #[test]
    fn a_refused_session_is_not_counted() {
        let mut used = TreeUse::default();
        used.add(&"a".into(), at(0), 1).unwrap();
        used.add(&"b".into(), at(1), 1).unwrap_err();
        assert_eq!(used.sessions, [Uid::from("a")]);
        assert!(used.is_full(1));
        assert!(!used.is_full(2));
    }
}
