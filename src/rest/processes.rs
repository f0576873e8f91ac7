//! `.../processes` of a session: its process tree as it is now, and what it does: for an operator who
//! wants to know whether an agent is stuck.
//!
//! Two looks at the kernel's tables, a little apart, at the time of asking; nothing is kept.

use std::time::Duration;

use axum::response::Response;
use serde_json::{Value, json};

use super::read::{find, object_of};
use super::resource::Item;
use super::sight::Sight;
use super::status::Failure;
use super::{State, ok};
use crate::api::Kind;
use crate::api::process::ProcessSample;
use crate::api::session::ProcessRecord;

/// Between the two looks: long enough for what works to use some of the kernel's 10 ms ticks.
const APART: Duration = Duration::from_millis(200);

/// Answers with the tree.
pub(super) async fn processes(
    state: &State,
    sight: &Sight,
    item: &Item,
) -> Result<Response, Failure> {
    // What runs on the machine is for those who run it.
    if !sight.is_all() {
        return Err(Failure::not_found(item.resource, &item.name));
    }
    let session = object_of(&find(state, sight, item, Kind::Session).await?)?;
    let record = session
        .pointer("/status/process")
        .and_then(|record| serde_json::from_value::<ProcessRecord>(record.clone()).ok());
    let Some(record) = record else {
        let at = state.clock.now().time;
        return Ok(ok(&json!({"at": at, "isAlive": false, "processes": []})));
    };
    let before = state.live.processes(&record);
    tokio::time::sleep(APART).await;
    let after = state.live.processes(&record);
    let is_alive = after.iter().any(|one| Some(one.pid) == record.pid && one.state != 'Z');
    let listed: Vec<Value> = after.iter().map(|one| with_delta(one, &before)).collect();
    Ok(ok(&json!({
        "at": state.clock.now().time,
        "pid": record.pid,
        "isAlive": is_alive,
        "sampledOverMs": APART.as_millis(),
        "processes": listed,
    })))
}

/// A process with the processor time that it used between the two looks.
fn with_delta(one: &ProcessSample, before: &[ProcessSample]) -> Value {
    let earlier = before.iter().find(|other| other.pid == one.pid && other.age_ms <= one.age_ms);
    let used = one.cpu_ms.saturating_sub(earlier.map_or(0, |other| other.cpu_ms));
    let mut value = json!(one);
    value["cpuDeltaMs"] = json!(used);
    value
}
