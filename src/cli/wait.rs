//! `spawnlet wait`.

use std::time::Duration;

use clap::Args;
use serde_json::Value;

use super::Context;
use super::client::item;
use super::delete::is_gone;
use super::failure::Failure;
use super::get::parse_subject;
use super::observe::{Subject, until};
use super::output::text;
use crate::api::Kind;
use crate::rest::resource::Resource;

/// Wait until an object is as told.
#[derive(Debug, Args)]
pub(super) struct Wait {
    /// KIND/NAME, or a kind.
    kind: String,
    /// The name or uid.
    name: Option<String>,
    /// What to wait for: condition=X, condition=X=False, phase=Y, or delete.
    #[arg(long = "for", value_name = "WHAT", value_parser = Goal::parse)]
    goal: Goal,
    /// How long to wait; for ever if absent. Exit code 75 when it is over.
    #[arg(long, value_parser = humantime::parse_duration)]
    timeout: Option<Duration>,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Goal {
    Condition { kind: String, status: String },
    Phase(String),
    Delete,
}

impl Goal {
    fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            None if text.eq_ignore_ascii_case("delete") => Ok(Self::Delete),
            Some(("phase", phase)) if !phase.is_empty() => Ok(Self::Phase(phase.to_owned())),
            Some(("condition", rest)) if !rest.is_empty() => {
                let (kind, status) = rest.split_once('=').unwrap_or((rest, "True"));
                Ok(Self::Condition { kind: kind.to_owned(), status: status.to_owned() })
            }
            _ => Err("expected condition=X, condition=X=False, phase=Y or delete".to_owned()),
        }
    }

    /// What no object of this kind ever is, is a slip.
    fn expect_of(&self, resource: Resource) -> Result<(), Failure> {
        let Self::Phase(wanted) = self else { return Ok(()) };
        let phases = phases(resource);
        if phases.iter().any(|phase| phase.eq_ignore_ascii_case(wanted)) {
            return Ok(());
        }
        let kind = resource.kind();
        Err(Failure::Usage(match phases.as_slice() {
            [] => format!("phase={wanted}: {kind}s have no phase; wait for a condition"),
            known => format!("phase={wanted}: the phases of {kind}s are {}", known.join(", ")),
        }))
    }

    /// Why an object that is not there yet will never be.
    fn out_of_reach(&self, resource: Resource, object: Option<&Value>) -> Option<String> {
        let Self::Phase(wanted) = self else { return None };
        let phase = text(object?, "/status/phase");
        // A session that has ended can still be deleted.
        let can_end = resource == Resource::Records(Kind::Session)
            && wanted.eq_ignore_ascii_case("Terminating");
        let is_final = object?.pointer("/status/finishedAt").is_some() && !can_end;
        is_final.then(|| format!("is {phase} and stays so: it cannot become {wanted} any more"))
    }

    fn is_reached(&self, object: Option<&Value>, uid: &str) -> bool {
        match self {
            Self::Delete => is_gone(object, uid).is_some(),
            Self::Phase(phase) => object
                .is_some_and(|object| text(object, "/status/phase").eq_ignore_ascii_case(phase)),
            Self::Condition { kind, status } => object
                .and_then(|object| object.pointer("/status/conditions")?.as_array())
                .is_some_and(|conditions| {
                    conditions.iter().any(|one| {
                        text(one, "/type").eq_ignore_ascii_case(kind)
                            && text(one, "/status").eq_ignore_ascii_case(status)
                    })
                }),
        }
    }
}

/// The phases that objects of a kind can have, by its schema.
fn phases(resource: Resource) -> Vec<String> {
    let Resource::Records(kind) = resource else { return Vec::new() };
    let schema = crate::api::schema::schema(kind);
    let known = schema.pointer("/properties/status/properties/phase/enum");
    let known = known.and_then(Value::as_array).into_iter().flatten();
    known.filter_map(|phase| phase.as_str().map(str::to_owned)).collect()
}

impl Wait {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let (resource, name) = parse_subject(&self.kind, self.name.as_deref())?;
        let Some(name) = name else {
            return Err(Failure::Usage("for which one? give KIND/NAME".to_owned()));
        };
        let client = context.client()?;
        let object = match client.get(&item(resource, &context.namespace, &name)).await {
            Ok(object) => object,
            Err(failure) if failure.is_not_found() && self.goal == Goal::Delete => return Ok(()),
            Err(failure) => return Err(failure),
        };
        self.goal.expect_of(resource)?;
        let (name, uid) = (text(&object, "/metadata/name"), text(&object, "/metadata/uid"));
        let subject = Subject { resource, namespace: &context.namespace, name };
        until(&client, subject, self.timeout, |object| {
            if self.goal.is_reached(object, uid) {
                return Ok(Some(()));
            }
            match is_gone(object, uid) {
                Some(()) => {
                    Err(Failure::Failed(format!("{name} was deleted while it was waited for")))
                }
                None => match self.goal.out_of_reach(resource, object) {
                    Some(why) => Err(Failure::Failed(format!("{name} {why}"))),
                    None => Ok(None),
                },
            }
        })
        .await?;
        writeln!(context.out, "{}/{name} condition met", resource.singular())?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn goals_are_read_and_judged() {
        let object = json!({"metadata": {"uid": "u"}, "status": {
            "phase": "Idle", "conditions": [{"type": "ProcessReady", "status": "False"}],
        }});
        for (text, is_reached) in [
            ("phase=idle", true),
            ("phase=Running", false),
            ("condition=ProcessReady", false),
            ("condition=ProcessReady=False", true),
            ("condition=Other", false),
            ("delete", false),
        ] {
            let goal = Goal::parse(text).unwrap();
            assert_eq!(goal.is_reached(Some(&object), "u"), is_reached, "{text}");
        }
        let session = Resource::Records(Kind::Session);
        assert!(Goal::parse("phase=idle").unwrap().expect_of(session).is_ok());
        let wrong = Goal::parse("phase=Nope").unwrap().expect_of(session).unwrap_err().to_string();
        assert!(wrong.contains("Idle, Running") && wrong.contains("Nope"), "{wrong}");
        let no_phase = Goal::parse("phase=Idle").unwrap();
        assert!(no_phase.expect_of(Resource::Records(Kind::Agent)).is_err());
        assert!(Goal::Delete.is_reached(None, "u"));
        assert!(Goal::Delete.is_reached(Some(&object), "other"));
        for text in ["", "phase=", "condition=", "jsonpath=x"] {
            assert!(Goal::parse(text).is_err(), "{text}");
        }
    }
}
