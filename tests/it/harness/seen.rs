//! What tests ask of agents, and look for on objects.

use serde_json::Value;

use super::Daemon;

/// A condition of an object.
pub(crate) fn condition<'o>(object: &'o Value, kind: &str) -> Option<&'o Value> {
    object["status"]["conditions"].as_array()?.iter().find(|found| found["type"] == kind)
}

impl Daemon {
    /// Makes a turn and gives it as it ended.
    pub(crate) fn ask(&self, session: &str, prompt: &str) -> Value {
        let turn = self.turn(session, prompt);
        self.ended(&turn)
    }

    /// What a session's agent says to a prompt.
    pub(crate) fn say(&self, session: &str, prompt: &str) -> String {
        let turn = self.ask(session, prompt);
        assert_eq!(turn["status"]["phase"], "Completed", "{turn:#}");
        self.response(turn["metadata"]["name"].as_str().unwrap())
    }
}
