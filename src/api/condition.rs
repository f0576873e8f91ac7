//! Conditions: what is true of a record now, with the reason and since when.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Time;

/// Three-valued truth. `Unknown` is a value: it means "could not be found out", not "no".
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// It could not be found out.
    Unknown,
}

/// One condition (Kubernetes API conventions, "Typical status properties").
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// The condition's name, from the closed list of its kind.
    #[serde(rename = "type")]
    pub kind: String,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, in one CamelCase word for programs.
    pub reason: String,
    /// Why, in a sentence for people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// The generation of the spec that this was found for.
    #[serde(default)]
    pub observed_generation: i64,
    /// When `status` last changed.
    pub last_transition_time: Time,
}

/// A record's conditions, at most one of each kind, in the order in which they first appeared.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Conditions(Vec<Condition>);

impl Conditions {
    /// Sets a condition. The transition time moves only when the status changes.
    pub fn set(
        &mut self,
        kind: &str,
        status: ConditionStatus,
        reason: &str,
        message: impl Into<String>,
        observed_generation: i64,
        now: Time,
    ) {
        let message = message.into();
        match self.0.iter_mut().find(|condition| condition.kind == kind) {
            Some(condition) => {
                if condition.status != status {
                    condition.last_transition_time = now;
                }
                condition.status = status;
                reason.clone_into(&mut condition.reason);
                condition.message = message;
                condition.observed_generation = observed_generation;
            }
            None => self.0.push(Condition {
                kind: kind.to_owned(),
                status,
                reason: reason.to_owned(),
                message,
                observed_generation,
                last_transition_time: now,
            }),
        }
    }

    /// Every message, to be bounded.
    pub fn messages_mut(&mut self) -> impl Iterator<Item = &mut String> {
        self.0.iter_mut().map(|condition| &mut condition.message)
    }

    /// Takes a condition away, for those that stand only while they hold.
    pub fn remove(&mut self, kind: &str) {
        self.0.retain(|condition| condition.kind != kind);
    }

    /// The condition of this kind.
    #[must_use]
    pub fn get(&self, kind: &str) -> Option<&Condition> {
        self.0.iter().find(|condition| condition.kind == kind)
    }

    /// Whether the condition is there and `True`.
    #[must_use]
    pub fn is_true(&self, kind: &str) -> bool {
        self.get(kind).is_some_and(|condition| condition.status == ConditionStatus::True)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Condition> {
        self.0.iter()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}
