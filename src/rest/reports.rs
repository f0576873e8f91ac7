//! The flat, read-only resources: reconcile reports and manifest files.

use std::collections::HashMap;

use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::query::Query;
use super::read::{object_of, pointed};
use super::resource::Resource;
use super::selector::Filter;
use super::status::Failure;
use super::view::{ListMeta, View};
use super::{State, ok};
use crate::api::{API_VERSION, Name, Namespace, Uid};
use crate::store::{Record, keys};

/// Reports listed if no limit is given; at most 10000 are kept in all.
const REPORTS_DEFAULT: usize = 500;

/// Reports, newest first: of one object (`object=Kind/namespace/name` or a uid), of a namespace,
/// or of all; with `failing=true` the newest of each object, if that failed, backs off or waits.
pub(super) async fn reports(
    state: &State,
    namespace: Option<&str>,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response, Failure> {
    let view = View::of(headers, query)?;
    let filter = Filter::of(Resource::Reports, query)?;
    let is_failing = query.bool("failing")?;
    let limit = query
        .number("limit")?
        .filter(|limit| *limit > 0)
        .map_or(REPORTS_DEFAULT, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    let prefix = match query.get("object") {
        Some(object) => keys::reports_of(&uid_of(state, object).await?),
        None => keys::REPORTS.to_owned(),
    };
    let (records, rev) = state.store.list(&prefix, None, 0).await?;
    let mut reports = records
        .iter()
        .map(report_value)
        .filter(|report| match (namespace, report) {
            (Some(namespace), Ok(report)) => {
                report.pointer("/object/namespace").and_then(Value::as_str) == Some(namespace)
            }
            _ => true,
        })
        .collect::<Result<Vec<Value>, Failure>>()?;
    if is_failing {
        reports = newest_of_each(reports);
        reports
            .retain(|report| matches!(text(report, "outcome"), "BackOff" | "Failed" | "Waiting"));
        reports = of_what_is_there(state, reports).await?;
    }
    reports.retain(|report| filter.matches(report));
    reports.sort_by(|left, right| {
        (text(right, "startedAt"), number(right)).cmp(&(text(left, "startedAt"), number(left)))
    });
    reports.truncate(limit);
    let meta = ListMeta { resource_version: rev.to_string(), next: None };
    Ok(ok(&view.list(Resource::Reports, reports, &meta, state.clock.now().time)))
}

fn text<'a>(report: &'a Value, field: &str) -> &'a str {
    report.get(field).and_then(Value::as_str).unwrap_or_default()
}

fn number(report: &Value) -> u64 {
    report.get("sequence").and_then(Value::as_u64).unwrap_or_default()
}

/// A report with the envelope that clients expect of a list's item.
fn report_value(record: &Record) -> Result<Value, Failure> {
    let mut report = object_of(record)?;
    let name = record.key.as_str().trim_start_matches(keys::REPORTS).replace('/', "-");
    let namespace = report.pointer("/object/namespace").cloned();
    let made = report.get("startedAt").cloned();
    if let Some(map) = report.as_object_mut() {
        let mut metadata = json!({"name": name, "resourceVersion": record.rev.to_string()});
        if let Some(metadata) = metadata.as_object_mut() {
            metadata.extend(namespace.map(|namespace| ("namespace".to_owned(), namespace)));
            metadata.extend(made.map(|made| ("creationTimestamp".to_owned(), made)));
        }
        map.insert("apiVersion".to_owned(), json!(API_VERSION));
        map.insert("kind".to_owned(), json!(Resource::Reports.kind()));
        map.insert("metadata".to_owned(), metadata);
    }
    Ok(report)
}

fn newest_of_each(reports: Vec<Value>) -> Vec<Value> {
    let mut newest: HashMap<String, Value> = HashMap::new();
    for report in reports {
        let uid = text(&report, "uid").to_owned();
        if newest.get(&uid).is_none_or(|known| number(known) < number(&report)) {
            newest.insert(uid, report);
        }
    }
    newest.into_values().collect()
}

/// Without the reports of deleted objects, which outlive them: those wait for nothing.
async fn of_what_is_there(state: &State, reports: Vec<Value>) -> Result<Vec<Value>, Failure> {
    let mut there = Vec::with_capacity(reports.len());
    for report in reports {
        if state.store.get(&keys::uid(&Uid::new(text(&report, "uid")))).await?.is_some() {
            there.push(report);
        }
    }
    Ok(there)
}

/// The uid that `Kind/namespace/name`, `Kind/name` (cluster kinds) or a uid stands for.
async fn uid_of(state: &State, object: &str) -> Result<Uid, Failure> {
    let wrong = || {
        Failure::bad_request(format!(
            "query object={object}: expected Kind/namespace/name, Kind/name for cluster kinds, \
             or a uid"
        ))
    };
    let parts: Vec<&str> = object.split('/').collect();
    let (kind, namespace, name) = match parts.as_slice() {
        [uid] if uuid::Uuid::parse_str(uid).is_ok() => return Ok(Uid::new(*uid)),
        [kind, name] => (*kind, "", *name),
        [kind, namespace, name] => (*kind, *namespace, *name),
        _ => return Err(wrong()),
    };
    let resource = Resource::parse(kind).ok_or_else(wrong)?;
    let Resource::Records(kind) = resource else { return Err(wrong()) };
    if kind.is_namespaced() == namespace.is_empty() {
        return Err(wrong());
    }
    let key = keys::record(kind, &Namespace::new(namespace), &Name::new(name));
    if let Some(record) = state.store.get(&key).await? {
        let object = object_of(&record)?;
        let uid = object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default();
        return Ok(Uid::new(uid));
    }
    // A uid in the name's place.
    if uuid::Uuid::parse_str(name).is_ok() {
        let pointer = state.store.get(&keys::uid(&Uid::new(name))).await?;
        if pointer.and_then(|pointer| pointed(&pointer.value)).is_some() {
            return Ok(Uid::new(name));
        }
    }
    Err(Failure::not_found(resource, name))
}

/// What the watched directories hold.
pub(super) async fn manifests(
    state: &State,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response, Failure> {
    let view = View::of(headers, query)?;
    let filter = Filter::of(Resource::Manifests, query)?;
    let rev = state.store.head().await?;
    let items = state
        .manifests
        .manifests()
        .iter()
        .map(|manifest| {
            let mut value = json!(manifest);
            if let Some(map) = value.as_object_mut() {
                map.insert("apiVersion".to_owned(), json!(API_VERSION));
                map.insert("kind".to_owned(), json!(Resource::Manifests.kind()));
                map.insert("metadata".to_owned(), json!({"name": manifest.path}));
            }
            value
        })
        .filter(|manifest| filter.matches(manifest))
        .collect();
    let meta = ListMeta { resource_version: rev.to_string(), next: None };
    Ok(ok(&view.list(Resource::Manifests, items, &meta, state.clock.now().time)))
}
