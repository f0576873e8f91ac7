//! How much one token may ask for: requests in a time, and requests at once (`http.perTokenRate`,
//! `http.perTokenConcurrency`).
//!
//! A bucket that fills with the configured rate and holds what one period gives. A request counts
//! as running until its answer begins: streams are bounded by the number of connections.

use std::sync::{Mutex, PoisonError};

use super::status::Failure;
use crate::api::config::Http;
use crate::clock::Mono;

/// What one token has asked for lately.
#[derive(Debug, Default)]
pub(super) struct Usage {
    bucket: Mutex<Bucket>,
}

#[derive(Debug, Default)]
struct Bucket {
    /// What was taken and has not come back yet.
    used: f64,
    at: Mono,
    running: u32,
}

/// A running request; it ends with this.
pub(super) struct Running<'a>(&'a Usage);

impl Usage {
    /// Lets a request begin.
    ///
    /// # Errors
    ///
    /// 429 with Retry-After, over one of the limits.
    pub(super) fn begin(&self, http: &Http, now: Mono) -> Result<Running<'_>, Failure> {
        let mut bucket = self.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        let (count, period) =
            (f64::from(http.per_token_rate.count()), http.per_token_rate.period());
        let back = now.since(bucket.at).as_secs_f64() / period.as_secs_f64() * count;
        bucket.used = (bucket.used - back).max(0.0);
        bucket.at = now;
        if bucket.running >= http.per_token_concurrency {
            return Err(Failure::too_many(format!(
                "this token has {} requests running, the most that http.perTokenConcurrency allows",
                bucket.running
            )));
        }
        if bucket.used + 1.0 > count {
            return Err(Failure::too_many(format!(
                "this token asks more often than http.perTokenRate allows, {}",
                http.per_token_rate
            )));
        }
        bucket.used += 1.0;
        bucket.running += 1;
        Ok(Running(self))
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        let mut bucket = self.0.bucket.lock().unwrap_or_else(PoisonError::into_inner);
        bucket.running = bucket.running.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::config::Http;

    #[test]
    fn a_token_gets_its_rate_and_no_more_at_once_than_allowed() {
        let http = Http {
            per_token_rate: "2/s".parse().unwrap(),
            per_token_concurrency: 1,
            ..Http::default()
        };
        let usage = Usage::default();
        let code = |now| usage.begin(&http, Mono(now)).map(drop).map_err(|e| e.code().as_u16());
        assert_eq!(code(0), Ok(()));
        assert_eq!(code(0), Ok(()));
        assert_eq!(code(0), Err(429));
        assert_eq!(code(499), Err(429));
        assert_eq!(code(500), Ok(()));
        assert_eq!(code(500), Err(429));
        let running = usage.begin(&http, Mono(9000));
        assert!(running.is_ok());
        assert_eq!(code(9000), Err(429));
        drop(running);
        assert_eq!(code(9000), Ok(()));
    }
}
