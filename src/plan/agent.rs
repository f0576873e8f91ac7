//! What an Agent's record tells of whether it can run: the status that follows from the record and
//! from what a look for its executable found.
//!
//! The loop's part is `controller::agents`. Nothing is started for it: version, capabilities and
//! the last start come from sessions (`plan::launch`), and stay as they are here.

use crate::api::agent::{AVAILABLE, LastCheck, check_request};
use crate::api::condition::ConditionStatus;
use crate::api::{Agent, AgentStatus, Time};

/// What a look for an agent's executable found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The program, as an absolute path.
    Found(String),
    /// The command names its program relative to the session's directory: nothing can be said of
    /// it without one.
    BelowSession,
    /// It is not there. The sentence says where it was looked for.
    Missing(String),
}

/// The status of an agent after a look. The same look at the same record gives the same status, so
/// that nothing is written twice: only a request that is new moves a time.
#[must_use]
pub fn status(agent: &Agent, lookup: &Lookup, now: Time) -> AgentStatus {
    let mut status = agent.status.clone();
    (status.installed, status.executable) = match lookup {
        Lookup::Found(path) => (Some(true), Some(path.clone())),
        Lookup::BelowSession => (None, None),
        Lookup::Missing(_) => (Some(false), None),
    };
    let (holds, reason, message) = available(agent, lookup);
    let generation = agent.metadata.generation;
    status.conditions.set(AVAILABLE, holds, reason, message, generation, now);
    if let Some(request) = check_request(&agent.metadata)
        && status.last_check.as_ref().is_none_or(|last| last.request != request)
    {
        status.last_check = Some(LastCheck { at: now, request });
    }
    status
}

fn available(agent: &Agent, lookup: &Lookup) -> (ConditionStatus, &'static str, String) {
    if !agent.spec.enabled {
        let message = "spec.enabled is false: sessions do not start it".to_owned();
        return (ConditionStatus::False, "Disabled", message);
    }
    match lookup {
        Lookup::Found(_) => (ConditionStatus::True, "Found", String::new()),
        Lookup::BelowSession => (
            ConditionStatus::Unknown,
            "BelowSession",
            "the program is named relative to a session's directory and is looked for when one \
             starts it"
                .to_owned(),
        ),
        Lookup::Missing(message) => (ConditionStatus::False, "NotInstalled", message.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::{AgentSpec, CHECK_REQUESTED, ObjectMeta};

    fn agent(enabled: bool) -> Agent {
        let spec = AgentSpec { command: Some("a".into()), enabled, ..AgentSpec::default() };
        let metadata = ObjectMeta { name: "a".into(), generation: 3, ..ObjectMeta::default() };
        Agent::new(metadata, spec)
    }

    fn at(millis: i64) -> Time {
        Time::from_millis(millis)
    }

    #[test]
    fn an_agent_is_available_while_it_is_enabled_and_its_program_is_there() {
        let found = Lookup::Found("/bin/a".into());
        let missing = Lookup::Missing("\"a\" was not found in /x, /y".into());
        for (enabled, lookup, installed, holds, reason, says) in [
            (true, &found, Some(true), ConditionStatus::True, "Found", ""),
            (false, &found, Some(true), ConditionStatus::False, "Disabled", "spec.enabled"),
            (true, &missing, Some(false), ConditionStatus::False, "NotInstalled", "/x, /y"),
            (false, &missing, Some(false), ConditionStatus::False, "Disabled", "spec.enabled"),
            (true, &Lookup::BelowSession, None, ConditionStatus::Unknown, "BelowSession", "dir"),
        ] {
            let status = status(&agent(enabled), lookup, at(5));
            let condition = status.conditions.get(AVAILABLE).unwrap();
            assert_eq!(status.installed, installed, "{lookup:?}");
            assert_eq!((condition.status, condition.reason.as_str()), (holds, reason));
            assert!(condition.message.contains(says), "{condition:?}");
            assert_eq!(condition.observed_generation, 3);
            assert_eq!(status.executable.is_some(), *lookup == found);
        }
    }

    #[test]
    fn a_second_look_that_finds_the_same_changes_nothing() {
        let mut agent = agent(true);
        agent.metadata.annotations.insert(CHECK_REQUESTED.into(), "one".into());
        let found = Lookup::Found("/bin/a".into());
        agent.status = status(&agent, &found, at(5));
        assert_eq!(status(&agent, &found, at(9)), agent.status);

        agent.metadata.annotations.insert(CHECK_REQUESTED.into(), "two".into());
        let answered = status(&agent, &found, at(9));
        assert_eq!(answered.last_check, Some(LastCheck { at: at(9), request: "two".into() }));
        assert_eq!(answered.conditions, agent.status.conditions);
    }

    #[test]
    fn a_request_is_answered_once_however_long_it_is() {
        let mut agent = agent(true);
        agent.metadata.annotations.insert(CHECK_REQUESTED.into(), "é".repeat(100_000));
        let lookup = Lookup::BelowSession;
        agent.status = status(&agent, &lookup, at(5));
        let request = &agent.status.last_check.as_ref().unwrap().request;
        assert_eq!(request.chars().count(), 128);
        assert_eq!(status(&agent, &lookup, at(9)), agent.status);
    }
}
