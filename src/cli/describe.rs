//! `spawnlet describe`: one object with everything that was said about it.

use std::io::Write;

use clap::Args;
use serde_json::{Value, json};

use super::Context;
use super::client::{Client, collection, item, with_query};
use super::events::{selector_of, sort_by_time};
use super::failure::Failure;
use super::get::parse_subject;
use super::output::{TablePrinter, readable, text};
use crate::api::Kind;
use crate::rest::resource::Resource;

/// Reports that are shown; `spawnlet report` shows all.
const REPORTS: &str = "5";

/// Show everything about one object: record, conditions, reports, events.
#[derive(Debug, Args)]
pub(super) struct Describe {
    /// A kind, or KIND/NAME.
    kind: String,
    /// The name or uid.
    name: Option<String>,
}

impl Describe {
    pub(super) async fn run(self, context: &mut Context<'_>) -> Result<(), Failure> {
        let (resource, name) = parse_subject(&self.kind, self.name.as_deref())?;
        let Some(name) = name else {
            return Err(Failure::Usage("which one? give KIND NAME or KIND/NAME".to_owned()));
        };
        if !resource.verbs().contains(&"get") {
            let plural = resource.plural();
            return Err(Failure::Usage(format!("{plural} are listed only: spawnlet get {plural}")));
        }
        let client = context.client()?;
        let object = client.get(&item(resource, &context.namespace, &name)).await?;
        write_record(&object, context.out)?;
        if resource == Resource::Records(Kind::Session) {
            requests(&client, &object, context).await?;
            super::doing::write(&client, &object, context).await?;
        }
        if !resource.is_core() {
            reports(&client, &object, context).await?;
        }
        events(&client, resource, &object, context).await
    }
}

fn write_record(object: &Value, out: &mut dyn Write) -> Result<(), Failure> {
    for (label, pointer) in [
        ("Name:", "/metadata/name"),
        ("Namespace:", "/metadata/namespace"),
        ("Kind:", "/kind"),
        ("Uid:", "/metadata/uid"),
        ("Created:", "/metadata/creationTimestamp"),
        ("Deleting since:", "/metadata/deletionTimestamp"),
    ] {
        let text = text(object, pointer);
        if !text.is_empty() {
            writeln!(out, "{label:<16}{text}")?;
        }
    }
    for (label, pointer) in
        [("Labels", "/metadata/labels"), ("Annotations", "/metadata/annotations")]
    {
        write_section(label, object.pointer(pointer), out)?;
    }
    write_section("Spec", object.get("spec"), out)?;
    let mut status = object.get("status").cloned().unwrap_or_default();
    let conditions = status.as_object_mut().and_then(|status| status.remove("conditions"));
    write_section("Status", Some(&status), out)?;
    write_conditions(conditions.as_ref(), out)
}

/// A part of the record as indented YAML.
fn write_section(label: &str, part: Option<&Value>, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(part) = part.filter(|part| part.as_object().is_some_and(|map| !map.is_empty())) else {
        return Ok(());
    };
    let yaml = serde_yaml::to_string(part)
        .map_err(|error| Failure::Failed(format!("no YAML: {error}")))?;
    writeln!(out, "{label}:")?;
    for line in yaml.lines() {
        writeln!(out, "  {}", crate::rest::printable(line))?;
    }
    Ok(())
}

fn write_conditions(conditions: Option<&Value>, out: &mut dyn Write) -> Result<(), Failure> {
    let Some(conditions) = conditions.and_then(Value::as_array) else { return Ok(()) };
    let column = |name: &str| json!({"name": name, "priority": 0});
    let rows: Vec<Value> = conditions
        .iter()
        .map(|one| {
            let cells = ["/type", "/status", "/reason", "/lastTransitionTime", "/message"]
                .map(|pointer| readable(text(one, pointer)));
            json!({"cells": cells})
        })
        .collect();
    let names = ["  Type", "Status", "Reason", "Since", "Message"].map(column);
    let indented: Vec<Value> = rows
        .into_iter()
        .map(|mut row| {
            row["cells"][0] = json!(format!("  {}", text(&row, "/cells/0")));
            row
        })
        .collect();
    writeln!(out, "Conditions:")?;
    let table = json!({"columnDefinitions": names, "rows": indented});
    TablePrinter::default().print(&table, out)?;
    Ok(())
}

/// What the session's agent waits for somebody to decide; nothing is said if it waits for nothing.
async fn requests(
    client: &Client,
    session: &Value,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let resource = Resource::Records(Kind::PermissionRequest);
    let selector = format!("status.phase=Pending,spec.session={}", text(session, "/metadata/name"));
    let path = collection(resource, Some(text(session, "/metadata/namespace")));
    let table = client.table(&with_query(&path, &[("fieldSelector", &selector)])).await?;
    if table["rows"].as_array().is_none_or(Vec::is_empty) {
        return Ok(());
    }
    print_section("Asks (spawnlet approve NAME, or deny NAME)", &table, context.out)
}

async fn reports(
    client: &Client,
    object: &Value,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let query = [("object", text(object, "/metadata/uid")), ("limit", REPORTS)];
    let path = with_query(&collection(Resource::Reports, None), &query);
    print_section("Reports", &client.table(&path).await?, context.out)
}

async fn events(
    client: &Client,
    resource: Resource,
    object: &Value,
    context: &mut Context<'_>,
) -> Result<(), Failure> {
    let about = format!("{}/{}", resource.singular(), text(object, "/metadata/name"));
    let namespace = Some(text(object, "/metadata/namespace")).filter(|text| !text.is_empty());
    let path = collection(Resource::Records(Kind::Event), namespace);
    let selector = selector_of(&about)?;
    let query = [("fieldSelector", selector.as_str()), ("includeObject", "Object")];
    let mut table = client.table(&with_query(&path, &query)).await?;
    sort_by_time(&mut table);
    print_section("Events", &table, context.out)
}

fn print_section(label: &str, table: &Value, out: &mut dyn Write) -> Result<(), Failure> {
    if table["rows"].as_array().is_none_or(Vec::is_empty) {
        writeln!(out, "{label}: none")?;
        return Ok(());
    }
    writeln!(out, "{label}:")?;
    TablePrinter::default().print(table, out)?;
    Ok(())
}
