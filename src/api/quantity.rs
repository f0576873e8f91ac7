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

/// A number of bytes: `768Ki`, `2Mi`, or a plain number. Suffixes are Kubernetes' (`Ki`, `Mi`, `Gi`
/// by 1024; `k`, `M`, `G` by 1000).
///
/// A newtype because a bare number in a configuration says nothing of its unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bytes(u64);

/// Suffixes and their factors, the largest binary ones first: the order in which they are written.
const BYTE_SUFFIXES: [(&str, u64); 6] = [
    ("Gi", 1 << 30),
    ("Mi", 1 << 20),
    ("Ki", 1 << 10),
    ("G", 1_000_000_000),
    ("M", 1_000_000),
    ("k", 1000),
];

impl Bytes {
    /// A number of bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }

    /// `kibibytes` times 1024 bytes.
    #[must_use]
    pub const fn kibi(kibibytes: u64) -> Self {
        Self(kibibytes << 10)
    }

    /// `mebibytes` times 1024 times 1024 bytes.
    #[must_use]
    pub const fn mebi(mebibytes: u64) -> Self {
        Self(mebibytes << 20)
    }

    /// The number of bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The number of bytes as a size in memory, the largest there is where it does not fit.
    #[must_use]
    pub fn as_usize(self) -> usize {
        usize::try_from(self.0).unwrap_or(usize::MAX)
    }
}

impl FromStr for Bytes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected a number of bytes such as 768Ki or 2Mi".to_owned();
        let text = text.trim();
        let (digits, factor) = BYTE_SUFFIXES
            .iter()
            .find_map(|(suffix, factor)| Some((text.strip_suffix(suffix)?, *factor)))
            .unwrap_or((text, 1));
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(expected());
        }
        let number: u64 = digits.parse().map_err(|_| expected())?;
        number.checked_mul(factor).map(Self).ok_or_else(expected)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only the binary suffixes: they are the ones that defaults are written in.
        let whole = |(_, factor): &&(&str, u64)| self.0 != 0 && self.0.is_multiple_of(*factor);
        match BYTE_SUFFIXES.iter().take(3).find(whole) {
            Some((suffix, factor)) => write!(f, "{}{suffix}", self.0 / factor),
            None => write!(f, "{}", self.0),
        }
    }
}

impl Serialize for Bytes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "expected a number of bytes such as 768Ki or 2Mi")]
        enum Form {
            Number(u64),
            Text(String),
        }
        match Form::deserialize(deserializer)? {
            Form::Number(bytes) => Ok(Self(bytes)),
            Form::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// How often something may happen: `200/s` or `30/m`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Rate {
    count: u32,
    per: RateUnit,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum RateUnit {
    Second,
    Minute,
}

impl Rate {
    /// `count` a second.
    #[must_use]
    pub const fn per_second(count: u32) -> Self {
        Self { count, per: RateUnit::Second }
    }

    /// How often in [`Rate::period`].
    #[must_use]
    pub const fn count(self) -> u32 {
        self.count
    }

    /// The time that the count is for: a second or a minute.
    #[must_use]
    pub const fn period(self) -> Duration {
        match self.per {
            RateUnit::Second => Duration::from_secs(1),
            RateUnit::Minute => Duration::from_mins(1),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || "expected a rate such as 200/s or 30/m".to_owned();
        let (count, unit) = text.trim().split_once('/').ok_or_else(expected)?;
        let per = match unit {
            "s" => RateUnit::Second,
            "m" => RateUnit::Minute,
            _ => return Err(expected()),
        };
        if !count.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(expected());
        }
        Ok(Self { count: count.parse().map_err(|_| expected())?, per })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = match self.per {
            RateUnit::Second => "s",
            RateUnit::Minute => "m",
        };
        write!(f, "{}/{unit}", self.count)
    }
}

impl Serialize for Rate {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_read_as_they_are_written() {
        for text in ["90s", "10m", "2h 30m", "0", "300ms"] {
            let duration: Dur = text.parse().unwrap();
            assert_eq!(duration.to_string().parse::<Dur>().unwrap(), duration, "{text}");
        }
        for text in ["", "5", "-1s", "ten", "400days"] {
            assert!(text.parse::<Dur>().is_err(), "{text}");
        }
    }

    #[test]
    fn times_keep_their_milliseconds() {
        let time: Time = "2026-11-30T06:46:10.123Z".parse().unwrap();
        assert_eq!(time.to_string(), "2026-11-30T06:46:10.123Z");
        let whole: Time = "2026-11-30T07:46:10+01:00".parse().unwrap();
        assert_eq!(whole.to_string(), "2026-11-30T06:46:10.000Z");
        assert!("yesterday".parse::<Time>().is_err());
    }

    #[test]
    fn bytes_have_a_unit_and_one_way_to_be_written() {
        for (text, bytes, written) in [
            ("768Ki", 786_432, "768Ki"),
            ("2Mi", 2_097_152, "2Mi"),
            ("1024Ki", 1 << 20, "1Mi"),
            ("100", 100, "100"),
            ("2k", 2000, "2000"),
            ("0", 0, "0"),
        ] {
            let quantity: Bytes = text.parse().unwrap();
            assert_eq!((quantity.get(), quantity.to_string().as_str()), (bytes, written));
        }
        for text in ["", "Ki", "-1", "+1", "1.5Mi", "1KiB", "99999999999Gi"] {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
        assert_eq!(serde_json::from_str::<Bytes>("5").unwrap(), Bytes::new(5));
    }

    #[test]
    fn rates_are_counts_per_second_or_minute() {
        assert_eq!("200/s".parse::<Rate>().unwrap(), Rate::per_second(200));
        assert_eq!("30/m".parse::<Rate>().unwrap().period().as_secs(), 60);
        for text in ["200", "200/h", "/s", "-1/s", "+1/s"] {
            assert!(text.parse::<Rate>().is_err(), "{text}");
        }
    }
}
