//! Waits until an object is as wanted: one list, then a watch. Nothing polls.

use std::time::Duration;

use serde_json::Value;

use super::client::{Client, collection, with_query};
use super::failure::Failure;
use super::output::text;
use crate::rest::resource::Resource;

/// Which object is looked at.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) resource: Resource,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
}

/// Looks at an object (`None`: it is not there) until `check` gives a result.
///
/// # Errors
///
/// What `check` and the daemon say, and `TryAgain` after `timeout`.
pub(super) async fn until<T>(
    client: &Client,
    subject: Subject<'_>,
    timeout: Option<Duration>,
    mut check: impl FnMut(Option<&Value>) -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let watching = watch(client, subject, &mut check);
    let Some(timeout) = timeout else { return watching.await };
    tokio::time::timeout(timeout, watching).await.unwrap_or_else(|_| {
        Err(Failure::TryAgain(format!(
            "timed out after {} waiting for {}/{}",
            humantime::format_duration(timeout),
            subject.resource.singular(),
            subject.name
        )))
    })
}

async fn watch<T>(
    client: &Client,
    subject: Subject<'_>,
    check: &mut impl FnMut(Option<&Value>) -> Result<Option<T>, Failure>,
) -> Result<T, Failure> {
    let path = collection(subject.resource, Some(subject.namespace));
    let selector = format!("metadata.name={}", subject.name);
    // Each turn of this loop is one list and one watch; the daemon ends a watch when it stops, and
    // then the next list fails.
    loop {
        let list = client.get(&with_query(&path, &[("fieldSelector", &selector)])).await?;
        if let Some(found) = check(list.pointer("/items/0"))? {
            return Ok(found);
        }
        let query = [
            ("watch", "1"),
            ("fieldSelector", &selector),
            ("resourceVersion", text(&list, "/metadata/resourceVersion")),
        ];
        let mut events = client.stream(&with_query(&path, &query), "application/json").await?;
        while let Some(event) = events.json_line().await? {
            let object = event.get("object");
            let found = match text(&event, "/type") {
                "ADDED" | "MODIFIED" => check(object)?,
                "DELETED" => check(None)?,
                "ERROR" => match error_of(&event) {
                    failure if failure.is_expired() => break,
                    failure => return Err(failure),
                },
                _ => None,
            };
            if let Some(found) = found {
                return Ok(found);
            }
        }
    }
}

/// The failure that an ERROR event tells.
pub(super) fn error_of(event: &Value) -> Failure {
    let status = event.get("object").cloned().unwrap_or_default();
    let code = status.get("code").and_then(Value::as_u64).unwrap_or(500);
    Failure::of_status(u16::try_from(code).unwrap_or(500), status.to_string().as_bytes())
}
