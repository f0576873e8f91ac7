//! `spawnlet extend`: a session's ttl becomes longer.
//!
//! The new ttl is written over the record that was read, by compare-and-swap: two who extend at the
//! same time both count, and what the session does meanwhile only makes us look again.

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::client::{Client, item};
use super::failure::Failure;
use super::named::name_of;
use super::output::text;
use crate::api::{Dur, Kind};
use crate::rest::resource::Resource;

/// Lets a session live longer: adds to its ttl, which counts from its creation.
#[derive(Debug, Args)]
pub(super) struct Extend {
    /// The session's name or uid.
    session: String,
    /// By how long: 90s, 10m, 2h.
    by: Dur,
}

/// How often a record that changed meanwhile is looked at again. Each time somebody else got on: a
/// session that starts is written a dozen times within a moment.
const TRIES_MAX: usize = 50;

impl Extend {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        if self.by.is_zero() {
            return Err(Failure::Usage("0s adds nothing; give a duration such as 10m".to_owned()));
        }
        let name = name_of(Kind::Session, &self.session)?;
        let client = context.client()?;
        let path = item(Resource::Records(Kind::Session), &context.namespace, name);
        let extended = self.extend(&client, &path).await?;
        let name = text(&extended, "/metadata/name");
        let ttl = text(&extended, "/spec/ttl");
        match ends_at(&extended) {
            Some(at) => writeln!(context.out, "session/{name} has a ttl of {ttl}, until {at}")?,
            None => writeln!(context.out, "session/{name} has a ttl of {ttl}")?,
        }
        Ok(())
    }

    async fn extend(&self, client: &Client, path: &str) -> Result<Value, Failure> {
        let mut tries = 1;
        loop {
            let session = client.get(path).await?;
            let ttl = longer(&session, self.by)?;
            let version = text(&session, "/metadata/resourceVersion");
            let patch =
                json!({"metadata": {"resourceVersion": version}, "spec": {"ttl": ttl.to_string()}});
            match client.patch(path, &patch).await {
                Err(Failure::Refused { code: 409, .. }) if tries < TRIES_MAX => tries += 1,
                outcome => return outcome,
            }
        }
    }
}

/// The ttl that the session shall have.
fn longer(session: &Value, by: Dur) -> Result<Dur, Failure> {
    let name = text(session, "/metadata/name");
    let refuse = |why: &str| Err(Failure::Failed(format!("session {name:?} {why}")));
    let is_ending = session.pointer("/metadata/deletionTimestamp").is_some()
        || !matches!(text(session, "/spec/desiredState"), "" | "running");
    if session.pointer("/status/end").is_some() {
        let reason = text(session, "/status/end/reason");
        return refuse(&format!("has ended ({reason}): there is nothing to extend"));
    }
    if is_ending {
        return refuse("is being stopped: there is nothing to extend");
    }
    match text(session, "/spec/ttl") {
        "" => refuse("has no ttl: it lives until it is stopped"),
        ttl => {
            let ttl: Dur = ttl
                .parse()
                .map_err(|error| Failure::Failed(format!("the ttl of {name:?}: {error}")))?;
            let sum = ttl.get().saturating_add(by.get());
            Ok(Dur::from_millis(u64::try_from(sum.as_millis()).unwrap_or(u64::MAX)))
        }
    }
}

/// When the session's ttl ends, as `Session::ttl_ends_at` has it.
fn ends_at(session: &Value) -> Option<String> {
    let from = session
        .pointer("/status/ttlCountsFrom")
        .or_else(|| session.pointer("/metadata/creationTimestamp"))?;
    let from: crate::api::Time = serde_json::from_value(from.clone()).ok()?;
    let ttl: Dur = text(session, "/spec/ttl").parse().ok()?;
    Some(from.plus(ttl.get()).to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(more: Value) -> Value {
        let mut session = json!({"metadata": {"name": "s"}, "spec": {"ttl": "1h"}, "status": {}});
        for (part, fields) in more.as_object().unwrap() {
            for (name, value) in fields.as_object().unwrap() {
                session[part][name] = value.clone();
            }
        }
        session
    }

    #[test]
    fn a_ttl_grows_and_what_has_none_or_ended_is_refused() {
        let by = Dur::from_secs(600);
        assert_eq!(longer(&session(json!({})), by).unwrap(), Dur::from_secs(4200));
        for (change, word) in [
            (json!({"spec": {"ttl": null}}), "no ttl"),
            (json!({"spec": {"desiredState": "cancelled"}}), "being stopped"),
            (json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}), "being stopped"),
            (json!({"status": {"end": {"reason": "TtlExpired"}}}), "TtlExpired"),
        ] {
            let refused = longer(&session(change), by).unwrap_err().to_string();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
