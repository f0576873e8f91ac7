//! What a turn waits for, told to the person while nothing else is shown.
//!
//! It is read from the session's status by a watch; nothing polls, and nothing is told of a wait
//! that is over within a moment.

use std::time::Duration;

use serde_json::Value;
use tokio::sync::watch;

use super::client::Client;
use super::failure::Failure;
use super::observe::{Subject, until};
use super::output::{readable, text};

/// What lasts no longer is no wait to a person: a process starts in less.
pub(super) const QUIET: Duration = Duration::from_secs(1);

/// How long something that is missing may yet come by itself, such as an agent that a manifest file
/// is about to make.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);

/// A turn that is waited for.
#[derive(Clone, Copy)]
pub(super) struct Wait<'a> {
    pub(super) client: &'a Client,
    pub(super) session: Subject<'a>,
    pub(super) turn: &'a str,
    /// When it was made, as its record says.
    pub(super) made_at: &'a str,
    /// What lasts no longer is not told.
    pub(super) quiet: Duration,
    /// What is missing is given up after so long; `None`: never.
    pub(super) patience: Option<Duration>,
}

/// What is told of a wait.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    why: String,
    stuck: Option<Stuck>,
}

/// Why no time alone lets a turn begin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stuck {
    /// Reason and message, as the session has them.
    pub(super) why: String,
    /// Whether starts have failed too often: only a change or a new prompt tries again.
    pub(super) is_looping: bool,
}

impl Wait<'_> {
    /// Says what the turn waits for, first after the quiet time and then whenever it changes, until
    /// the turn runs or its session is gone (`None`), or until only somebody's doing can mend it.
    ///
    /// # Errors
    ///
    /// What the daemon says.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(super) async fn tell(self, mut say: impl FnMut(&str)) -> Result<Option<Stuck>, Failure> {
        let (sender, mut receiver) = watch::channel(Told::default());
        let looking = until(self.client, self.session, None, |object| {
            let Some(why) = object.and_then(|object| waits_for(object, self.turn)) else {
                return Ok(Some(()));
            };
            let stuck = object.and_then(|object| stuck(object, self.made_at));
            let new = Told { why, stuck };
            sender.send_if_modified(|told| {
                let is_new = *told != new;
                *told = new;
                is_new
            });
            Ok(None)
        });
        let telling = async {
            tokio::time::sleep(self.quiet).await;
            let mut said = String::new();
            let mut given_up = std::pin::pin!(tokio::time::sleep(Duration::ZERO));
            let mut is_missing = false;
            loop {
                let Told { why, stuck } = receiver.borrow_and_update().clone();
                if !why.is_empty() && why != said {
                    say(&format!("waiting: {why}"));
                    said = why;
                }
                let patience = self.patience.filter(|_| stuck.is_some());
                match (patience, &stuck) {
                    (Some(_), Some(found)) if found.is_looping => return stuck,
                    (Some(patience), _) if !is_missing => {
                        is_missing = true;
                        given_up.set(tokio::time::sleep(patience));
                    }
                    (Some(_), _) => {}
                    (None, _) => is_missing = false,
                }
                tokio::select! {
                    changed = receiver.changed() => if changed.is_err() { return None },
                    () = &mut given_up, if is_missing => return stuck,
                }
            }
        };
        tokio::select! {
            looked = looking => looked.map(|()| None),
            stuck = telling => Ok(stuck),
        }
    }
}

/// What keeps a session from starting its agent that no time alone mends. Failed starts of before
/// the turn was made do not count: the turn tries again.
fn stuck(session: &Value, made_at: &str) -> Option<Stuck> {
    if !text(session, "/status/activeTurn").is_empty() {
        return None;
    }
    let conditions = session.pointer("/status/conditions")?.as_array()?;
    let of = |kind: &str, status: &str| {
        conditions.iter().find(|one| one["type"] == kind && one["status"] == status)
    };
    let said = |reason: &str, condition: &Value| {
        let message = text(condition, "/message");
        readable(&format!("{reason}: {message}"))
    };
    if let Some(missing) = of("AgentResolved", "False").or_else(|| of("ScopeResolved", "False")) {
        return Some(Stuck { why: said(text(missing, "/reason"), missing), is_looping: false });
    }
    // Times of records have one form, whose order is that of its text.
    let has_failed_since = text(session, "/status/restarts/failedAt") >= made_at;
    let looping = of("Stalled", "True").filter(|one| one["reason"] == "CrashLoopBackOff");
    looping.filter(|_| has_failed_since).map(|looping| {
        let reason = format!("CrashLoopBackOff: {}", text(session, "/status/restarts/reason"));
        Stuck { why: said(&reason, looping), is_looping: true }
    })
}

/// What stands between a turn and its agent; `None` once the agent has it.
fn waits_for(session: &Value, turn: &str) -> Option<String> {
    let phase = text(session, "/status/phase");
    let active = text(session, "/status/activeTurn");
    if matches!(phase, "Running" | "Cancelling") && active == turn {
        return None;
    }
    let mut why = match text(session, "/status/reason") {
        "" => phase.to_owned(),
        reason => format!("{phase} {reason}"),
    };
    let message = text(session, "/status/message");
    if !message.is_empty() {
        why.push_str(&format!(": {message}"));
    }
    if !active.is_empty() && active != turn {
        why.push_str(&format!("; turn/{active} goes first"));
    }
    Some(readable(&why))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_wait_is_told_as_the_session_tells_it_until_the_turn_runs() {
        let status = |status: Value| waits_for(&json!({"status": status}), "t");
        assert_eq!(
            status(json!({
                "phase": "Pending", "reason": "AgentNotFound",
                "message": "there is no Agent \"x\";\nmake it",
            }))
            .unwrap(),
            "Pending AgentNotFound: there is no Agent \"x\"; make it"
        );
        assert_eq!(
            status(json!({"phase": "Running", "activeTurn": "s"})).unwrap(),
            "Running; turn/s goes first"
        );
        assert_eq!(status(json!({"phase": "Starting", "activeTurn": "t"})).unwrap(), "Starting");
        assert_eq!(status(json!({"phase": "Running", "activeTurn": "t"})), None);
        assert_eq!(status(json!({"phase": "Cancelling", "activeTurn": "t"})), None);
    }

    #[test]
    fn a_wait_is_without_hope_if_only_somebody_can_mend_it() {
        let condition = |kind: &str, status: &str, reason: &str| json!([{"type": kind, "status": status, "reason": reason, "message": "because"}]);
        let (before, after) = ("2026-01-01T00:00:00.000Z", "2026-01-01T00:00:00.001Z");
        let of = |conditions: Value, active: &str| {
            let restarts = json!({"failedAt": before, "reason": "AuthRequired"});
            let status = json!({
                "conditions": conditions, "activeTurn": active, "restarts": restarts,
            });
            move |made_at: &str| stuck(&json!({"status": status}), made_at)
        };
        let looping = of(condition("Stalled", "True", "CrashLoopBackOff"), "");
        let found = looping(before).unwrap();
        assert_eq!(found.why, "CrashLoopBackOff: AuthRequired: because");
        assert!(found.is_looping);
        assert_eq!(looping(after), None, "the turn came after the failure and tries again");
        let missing = of(condition("AgentResolved", "False", "AgentNotFound"), "");
        let found = missing(after).unwrap();
        assert_eq!((found.why.as_str(), found.is_looping), ("AgentNotFound: because", false));
        assert_eq!(of(condition("ScopeResolved", "False", "x"), "other")(before), None);
        assert_eq!(of(condition("AgentResolved", "True", "Resolved"), "")(before), None);
        assert_eq!(of(condition("Stalled", "True", "NoProgress"), "")(before), None);
    }
}
