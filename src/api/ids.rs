//! Identifiers as types of their own, so that a turn's uid can never stand where a session's
//! name is wanted.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

macro_rules! string_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema, Default)]
        #[serde(transparent)]
        #[schemars(inline)]
        pub struct $name(String);

        impl $name {
            /// Takes the text as it is; validation belongs to the record that holds it.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// The text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }

            /// Whether there is no text at all (metadata before admission).
            #[must_use]
            pub fn is_empty(&self) -> bool {
                self.0.is_empty()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.0)
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.to_owned())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text)
            }
        }
    };
}

string_id! {
    /// A record's identity for ever: a UUID v7, lower case with hyphens, made at admission.
    Uid
}
string_id! {
    /// A record's name in its namespace: a DNS label (RFC 1123, at most 63 characters).
    Name
}
string_id! {
    /// The isolation boundary of records: a DNS label. Empty for cluster kinds.
    Namespace
}

/// Which run of an agent process for a session: 1 for the first, 0 while there was none.
///
/// Every event of a process carries its incarnation; older ones are dropped.
#[derive(
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Debug,
    Default,
    Serialize,
    Deserialize,
    JsonSchema,
)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// The incarnation after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
