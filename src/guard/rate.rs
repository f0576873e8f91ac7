//! How much one token may ask for: requests in a time, and requests at once (`http.perTokenRate`,
//! `http.perTokenConcurrency`).
//!
//! A bucket a token, which fills with the configured rate and holds what one period gives. A
//! request counts as running until its answer begins: streams are bounded by the number of
//! connections. A token that has not asked for a while has no bucket; only good tokens get one, so
//! the table has at most as many as there are tokens, and never more than [`USAGES_MAX`].

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::refused::Refused;
use crate::api::config::Http;
use crate::clock::Mono;

/// Tokens that may be in use at the same time: some 100 bytes each, and far more than there are
/// sessions that a daemon can run.
const USAGES_MAX: usize = 16 * 1024;
/// From how many buckets on idle ones are looked for.
const SWEEP_FROM: usize = 64;

/// What every token has asked for lately.
#[derive(Debug, Default)]
pub(super) struct Usages(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    buckets: HashMap<String, Bucket>,
    /// The size at which idle ones are looked for again: twice what the last look left, so that a
    /// new bucket costs the same however many there are.
    sweep_at: usize,
}

#[derive(Debug, Default)]
struct Bucket {
    /// What was taken and has not come back yet.
    used: f64,
    at: Mono,
    running: u32,
}

/// A running request; it ends with this.
pub(super) struct Running<'a> {
    usages: &'a Usages,
    key: String,
}

impl Bucket {
    /// Gives back what has come back since.
    fn refill(&mut self, http: &Http, now: Mono) {
        let (count, period) =
            (f64::from(http.per_token_rate.count()), http.per_token_rate.period());
        let back = now.since(self.at).as_secs_f64() / period.as_secs_f64() * count;
        self.used = (self.used - back).max(0.0);
        self.at = now;
    }

    fn begin(&mut self, http: &Http, now: Mono) -> Result<(), Refused> {
        self.refill(http, now);
        if self.running >= http.per_token_concurrency {
            return Err(Refused::too_many(format!(
                "this token has {} requests running, the most that http.perTokenConcurrency allows",
                self.running
            )));
        }
        if self.used + 1.0 > f64::from(http.per_token_rate.count()) {
            return Err(Refused::too_many(format!(
                "this token asks more often than http.perTokenRate allows, {}",
                http.per_token_rate
            )));
        }
        self.used += 1.0;
        self.running += 1;
        Ok(())
    }
}

impl Table {
    /// The bucket of a token; none if there are too many already.
    fn bucket(&mut self, key: &str, http: &Http, now: Mono) -> Option<&mut Bucket> {
        let is_new = !self.buckets.contains_key(key);
        if is_new && self.buckets.len() >= self.sweep_at.max(SWEEP_FROM) {
            self.buckets.retain(|_, bucket| {
                bucket.refill(http, now);
                bucket.running > 0 || bucket.used > 0.0
            });
            self.sweep_at = (2 * self.buckets.len()).min(USAGES_MAX);
        }
        if is_new && self.buckets.len() >= USAGES_MAX {
            return None;
        }
        Some(self.buckets.entry(key.to_owned()).or_default())
    }
}

impl Usages {
    /// Lets a request of a token begin.
    ///
    /// # Errors
    ///
    /// 429 with Retry-After, over one of the limits.
    pub(super) fn begin(&self, key: &str, http: &Http, now: Mono) -> Result<Running<'_>, Refused> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(bucket) = table.bucket(key, http, now) else {
            return Err(Refused::too_many("too many tokens are in use at the same time"));
        };
        bucket.begin(http, now)?;
        Ok(Running { usages: self, key: key.to_owned() })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut table = self.usages.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = table.buckets.get_mut(&self.key) {
            bucket.running = bucket.running.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http(rate: &str, at_once: u32) -> Http {
        let per_token_rate = rate.parse().unwrap();
        Http { per_token_rate, per_token_concurrency: at_once, ..Http::default() }
    }

    #[test]
    fn a_token_gets_its_rate_and_no_more_at_once_than_allowed() {
        let http = http("2/s", 1);
        let usages = Usages::default();
        let of =
            |key, now| usages.begin(key, &http, Mono(now)).map(drop).map_err(|e| e.code().as_u16());
        let code = |now| of("a", now);
        assert_eq!(code(0), Ok(()));
        assert_eq!(code(0), Ok(()));
        assert_eq!(code(0), Err(429));
        assert_eq!(of("b", 0), Ok(()), "each token has its own");
        assert_eq!(code(499), Err(429));
        assert_eq!(code(500), Ok(()));
        assert_eq!(code(500), Err(429));
        let running = usages.begin("a", &http, Mono(9000));
        assert!(running.is_ok());
        assert_eq!(code(9000), Err(429));
        assert_eq!(of("b", 9000), Ok(()));
        drop(running);
        assert_eq!(code(9000), Ok(()));
    }

    #[test]
    fn idle_tokens_cost_nothing_and_busy_ones_are_bounded() {
        let http = http("1/s", 1);
        let usages = Usages::default();
        let size = || usages.0.lock().unwrap().buckets.len();
        for round in 0..100 {
            for key in 0..64 {
                let key = format!("{round}/{key}");
                assert!(usages.begin(&key, &http, Mono(2000 * round)).is_ok());
            }
        }
        assert!(size() <= 2 * SWEEP_FROM, "{}", size());
        let busy: Vec<_> = (0..USAGES_MAX)
            .map_while(|key| usages.begin(&format!("busy/{key}"), &http, Mono(900_000)).ok())
            .collect();
        assert_eq!(size(), USAGES_MAX);
        assert_eq!(busy.len(), USAGES_MAX);
        assert!(usages.begin("one more", &http, Mono(900_000)).is_err());
        drop(busy);
        assert!(usages.begin("one more", &http, Mono(990_000)).is_ok());
        assert_eq!(size(), 1);
    }
}
