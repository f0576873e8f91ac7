//! Durations and times as users write and read them.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A duration in humantime notation: `90s`, `10m`, `2h 30m`. Zero means "off" where a field says so.
///
/// A newtype because humantime's parser takes more than our schema publishes (years, months):
/// what is longer than 366 days is refused, so that no sum of deadlines can overflow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Dur(Duration);

/// The longest accepted duration: 366 days.
pub const DURATION_MAX: Duration = Duration::from_secs(366 * 24 * 3600);

impl Dur {
    /// No time at all: the clock that it configures is off.
    pub const ZERO: Self = Self(Duration::ZERO);

    /// A duration of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(Duration::from_secs(secs))
    }

    /// A duration of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(Duration::from_millis(millis))
    }

    /// The standard library's type.
    #[must_use]
    pub const fn get(self) -> Duration {
        self.0
    }

    /// Whether the clock that this configures is off.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0.is_zero()
    }
}

impl FromStr for Dur {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected a duration such as 90s, 10m or 2h";
        if text.trim() == "0" {
            return Ok(Self::ZERO);
        }
        let duration =
            humantime::parse_duration(text).map_err(|error| format!("{error}; {expected}"))?;
        if duration > DURATION_MAX {
            return Err(format!("longer than 366 days; {expected}"));
        }
        Ok(Self(duration))
    }
}

impl fmt::Display for Dur {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        humantime::format_duration(self.0).fmt(f)
    }
}

impl Serialize for Dur {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Dur {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Dur {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Duration".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "description": "humantime duration, for example 90s, 10m or 2h"})
    }
}

/// A moment in UTC, written as RFC 3339 with milliseconds: `2026-11-30T06:46:10.123Z`.
///
/// Kept in whole milliseconds, so that what is written and read again is equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Time(i64);

impl Time {
    /// From milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub const fn from_millis(millis: i64) -> Self {
        Self(millis)
    }

    /// Milliseconds since 1970-01-01 UTC.
    #[must_use]
    pub const fn as_millis(self) -> i64 {
        self.0
    }

    /// This moment and then `duration`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        let millis = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(millis))
    }

    /// How long ago `earlier` was, zero if it is not in the past.
    #[must_use]
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_millisecond(self.0) {
            Ok(timestamp) => write!(f, "{timestamp:.3}"),
            // Only out of jiff's range of years -9999 to 9999; a number is better than a panic.
            Err(_) => write!(f, "{}", self.0),
        }
    }
}

impl FromStr for Time {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let timestamp: jiff::Timestamp = text
            .parse()
            .map_err(|_| "expected an RFC 3339 time such as 2026-11-30T06:46:10.123Z".to_owned())?;
        Ok(Self(timestamp.as_millisecond()))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Time".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        schemars::json_schema!({"type": "string", "format": "date-time"})
    }
}
