//! Spans of time for people: at most two units, `3m20s`.

use std::time::Duration;

use crate::api::Time;

/// The time since `then`, `<unknown>` if there is none.
#[must_use]
pub fn since(then: Option<Time>, now: Time) -> String {
    then.map_or_else(|| "<unknown>".to_owned(), |then| span(now.since(then)))
}

/// A span in its two largest units; the second is left out where it no longer matters.
#[must_use]
pub fn span(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

fn two(large: u64, large_unit: &str, small: u64, small_unit: &str) -> String {
    if small == 0 {
        format!("{large}{large_unit}")
    } else {
        format!("{large}{large_unit}{small}{small_unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_have_at_most_two_units() {
        for (seconds, text) in [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (200, "3m20s"),
            (3600, "60m"),
            (11_000, "3h3m"),
            (90_000, "25h"),
            (200_000, "2d7h"),
            (900_000, "10d"),
        ] {
            assert_eq!(span(Duration::from_secs(seconds)), text);
        }
    }
}
