//! The part of `describe` of a session that tells stuck from idle: for how long it has been in its
//! phase, what its turn did last, and its processes with the time that they use right now.

use std::io::Write;

use serde_json::{Value, json};

use super::Context;
use super::client::{Client, item};
use super::failure::Failure;
use super::output::{TablePrinter, readable, text};
use crate::api::{Dur, Kind, Time};
use crate::rest::resource::Resource;

/// Writes the part, if the session has a process or a turn.
pub(super) async fn write(
    client: &Client,
    session: &Value,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let status = &session["status"];
    if status["process"].is_null() && status["activeTurn"].is_null() {
        return Ok(());
    }
    let at = |kind, name| item(Resource::Records(kind), &context.namespace, name);
    let name = text(session, "/metadata/name");
    let seen = client.get(&format!("{}/processes", at(Kind::Session, name))).await?;
    let turn = match status["activeTurn"].as_str() {
        Some(turn) => Some(client.get(&at(Kind::Turn, turn)).await?),
        None => None,
    };
    let Some(now) = time(&seen["at"]) else { return Ok(()) };
    write_now(session, turn.as_ref(), &seen, now, context.out)?;
    write_processes(&seen, context.out)
}

fn write_now(
    session: &Value,
    turn: Option<&Value>,
    seen: &Value,
    now: Time,
    out: &mut dyn Write,
) -> Result<(), Failure> {
    let status = &session["status"];
    let since = match turn.map(|turn| &turn["status"]) {
        Some(turn) => [&turn["cancel"]["at"], &turn["dispatchedAt"], &turn["startedAt"]]
            .into_iter()
            .find_map(time),
        None => [&status["end"]["at"], &status["idleSince"]].into_iter().find_map(time),
    };
    let lasts = since.map_or_else(String::new, |since| format!(" for {}", span(since, now)));
    writeln!(out, "Now:\n  {:<14}{}{lasts}", "Phase:", text(session, "/status/phase"))?;
    let agent = match (seen["pid"].as_u64(), seen["isAlive"] == true) {
        (Some(pid), true) => format!("pid {pid}, alive"),
        (Some(pid), false) => format!("pid {pid}, gone"),
        (None, _) => "no process yet".to_owned(),
    };
    writeln!(out, "  {:<14}{agent}", "Agent:")?;
    let Some(turn) = turn else { return Ok(()) };
    let heard = [&turn["status"]["lastActivityAt"], &turn["status"]["dispatchedAt"]];
    if let Some(heard) = heard.into_iter().find_map(time) {
        let ends = silence_ends(session, turn, heard, now);
        let (name, silent) = (text(turn, "/metadata/name"), span(heard, now));
        writeln!(out, "  {:<14}{name}, silent for {silent}{ends}", "Turn:")?;
    }
    let recent = turn["status"]["recentActivity"].as_array();
    for (index, one) in recent.into_iter().flatten().enumerate() {
        let label = if index == 0 { "Activity:" } else { "" };
        let ago =
            time(&one["at"]).map_or_else(String::new, |at| format!("{} ago: ", span(at, now)));
        let told = [text(one, "/kind"), text(one, "/message")].join(" ");
        writeln!(out, "  {label:<14}{ago}{}", readable(told.trim()))?;
    }
    Ok(())
}

/// When the turn ends for its silence, unless its agent says something before.
fn silence_ends(session: &Value, turn: &Value, heard: Time, now: Time) -> String {
    if !turn["status"]["waitingFor"].is_null() {
        return "; it waits for an answer, so no clock of silence runs".to_owned();
    }
    let patience = |name: &str| {
        let spec = session["spec"].get(name)?;
        serde_json::from_value::<Dur>(spec.clone()).ok().filter(|span| !span.is_zero())
    };
    let Some(turn) = patience("turnInactivityTimeout") else { return String::new() };
    let left = |patience: Dur| span(now, heard.plus(patience.get()));
    let tool = patience("toolInactivityTimeout").filter(|tool| *tool != turn);
    let tool = tool.map_or_else(String::new, |tool| {
        format!(" ({} while a tool call is in progress)", left(tool))
    });
    format!("; it is cancelled for silence in {}{tool}", left(turn))
}

fn write_processes(seen: &Value, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(processes) = seen["processes"].as_array().filter(|list| !list.is_empty()) else {
        return Ok(());
    };
    writeln!(out, "Processes (CPU NOW: within {} ms):", seen["sampledOverMs"])?;
    let millis = |value: &Value| Dur::from_millis(value.as_u64().unwrap_or_default()).to_string();
    let whole =
        |value: &Value| Dur::from_secs(value.as_u64().unwrap_or_default() / 1000).to_string();
    let rows: Vec<Value> = processes
        .iter()
        .map(|one| {
            json!({"cells": [
                format!("  {}", one["pid"]),
                one["parent"].to_string(),
                readable(text(one, "/name")),
                text(one, "/state"),
                whole(&one["ageMs"]),
                millis(&one["cpuMs"]),
                millis(&one["cpuDeltaMs"]),
                format!("{} KiB", one["residentKib"]),
            ]})
        })
        .collect();
    let names = ["  Pid", "Parent", "Program", "State", "Age", "CPU", "CPU now", "Memory"];
    let columns: Vec<Value> =
        names.iter().map(|name| json!({"name": name, "priority": 0})).collect();
    TablePrinter::default().print(&json!({"columnDefinitions": columns, "rows": rows}), out)?;
    Ok(())
}

fn time(value: &Value) -> Option<Time> {
    serde_json::from_value(value.clone()).ok()
}

/// From one moment to a later one, in whole seconds; what lies behind is 0s.
fn span(from: Time, to: Time) -> String {
    Dur::from_secs(to.since(from).as_secs()).to_string()
}
