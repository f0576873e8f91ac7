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
use super::output::text;
use crate::rest::printable;

/// What lasts no longer is no wait to a person: a process starts in less.
pub(super) const QUIET: Duration = Duration::from_secs(1);

/// Says what `turn` waits for, first after `quiet` and then whenever it changes, until the turn
/// runs or its session is gone.
///
/// # Errors
///
/// What the daemon says.
///
/// # Cancel safety
///
/// May be dropped at any time.
pub(super) async fn tell(
    client: &Client,
    session: Subject<'_>,
    turn: &str,
    quiet: Duration,
    mut say: impl FnMut(&str),
) -> Result<(), Failure> {
    let (sender, mut receiver) = watch::channel(String::new());
    let looking = until(client, session, None, |object| {
        let Some(why) = object.and_then(|object| waits_for(object, turn)) else {
            return Ok(Some(()));
        };
        sender.send_if_modified(|told| {
            let is_new = *told != why;
            *told = why;
            is_new
        });
        Ok(None)
    });
    let telling = async {
        tokio::time::sleep(quiet).await;
        loop {
            let why = receiver.borrow_and_update().clone();
            if !why.is_empty() {
                say(&format!("waiting: {why}"));
            }
            if receiver.changed().await.is_err() {
                return;
            }
        }
    };
    tokio::select! {
        looked = looking => looked,
        () = telling => Ok(()),
    }
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
    Some(printable(&why).replace('\n', " "))
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
}
