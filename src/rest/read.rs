//! get and list.
//!
//! Works on JSON as it is stored, so that reading costs no round through the types.

use axum::http::HeaderMap;
use axum::response::Response;
use serde_json::{Value, json};

use super::query::Query;
use super::resource::{Item, Resource};
use super::selector::Filter;
use super::sight::Sight;
use super::status::Failure;
use super::view::{ListMeta, View};
use super::{State, ok};
use crate::api::{Kind, Name, Namespace, Uid};
use crate::store::{Key, Record, Rev, keys};

/// Records read from the store at a time while a filtered page is filled.
const PAGE_RECORDS: usize = 256;

/// One object, by name or uid.
pub(super) async fn get(
    state: &State,
    sight: &Sight,
    item: &Item,
    kind: Kind,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response, Failure> {
    let view = View::of(headers, query)?;
    let record = find(state, sight, item, kind).await?;
    let mut object = object_of(&record)?;
    overlay_activity(state, kind, &mut object);
    Ok(ok(&view.one(item.resource, object, state.clock.now().time)))
}

/// The record that a path names: by name, or by uid if no record has that name. What the one who
/// asks does not see is not there.
pub(super) async fn find(
    state: &State,
    sight: &Sight,
    item: &Item,
    kind: Kind,
) -> Result<Record, Failure> {
    let found = match state.store.get(&key_of(item, kind)).await? {
        Some(record) => Some(record),
        None => by_uid(state, item, kind, &Uid::new(item.name.as_str())).await?,
    };
    match found {
        Some(record) if sight.is_all() || sight.sees(kind, &object_of(&record)?) => Ok(record),
        Some(_) | None => Err(Failure::not_found(item.resource, &item.name)),
    }
}

/// The key of the record that a path names by name.
pub(super) fn key_of(item: &Item, kind: Kind) -> Key {
    let namespace = Namespace::new(item.namespace.clone().unwrap_or_default());
    keys::record(kind, &namespace, &Name::new(item.name.as_str()))
}

/// The record with this uid, if it is of the path's kind and namespace.
async fn by_uid(
    state: &State,
    item: &Item,
    kind: Kind,
    uid: &Uid,
) -> Result<Option<Record>, Failure> {
    if uuid::Uuid::parse_str(uid.as_str()).is_err() {
        return Ok(None);
    }
    let Some(pointer) = state.store.get(&keys::uid(uid)).await? else { return Ok(None) };
    let Some(key) = pointed(&pointer.value) else { return Ok(None) };
    let namespace = Namespace::new(item.namespace.clone().unwrap_or_default());
    if !key.as_str().starts_with(&keys::namespace_prefix(kind, &namespace)) {
        return Ok(None);
    }
    Ok(state.store.get(&key).await?)
}

/// The key that a secondary record holds, written plainly or as a JSON string.
pub(super) fn pointed(value: &[u8]) -> Option<Key> {
    let text = std::str::from_utf8(value).ok()?;
    let text = serde_json::from_str::<String>(text).unwrap_or_else(|_| text.to_owned());
    Some(Key::new(text))
}

/// The object that a record holds, with its resourceVersion.
pub(super) fn object_of(record: &Record) -> Result<Value, Failure> {
    object_at(&record.key, &record.value, record.rev)
}

/// The object in a record's bytes, at a revision.
pub(super) fn object_at(key: &Key, value: &[u8], rev: Rev) -> Result<Value, Failure> {
    let mut object: Value = serde_json::from_slice(value).map_err(|error| {
        tracing::error!(%key, %error, "a record is no JSON");
        Failure::internal(format!(
            "the record {key} cannot be read: it is no JSON; `spawnlet doctor` says more"
        ))
    })?;
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.insert("resourceVersion".to_owned(), json!(rev.to_string()));
    }
    Ok(object)
}

/// Puts what the controller holds in memory over what was last written.
fn overlay_activity(state: &State, kind: Kind, object: &mut Value) {
    let uid_at = |object: &Value, pointer: &str| {
        object.pointer(pointer).and_then(Value::as_str).map(Uid::new)
    };
    let session = match kind {
        Kind::Session => uid_at(object, "/metadata/uid"),
        Kind::Turn => uid_at(object, "/metadata/ownerReferences/0/uid"),
        Kind::Agent
        | Kind::Workspace
        | Kind::Role
        | Kind::PermissionRequest
        | Kind::Event
        | Kind::Namespace => None,
    };
    let Some(activity) = session.and_then(|session| state.live.activity(&session)) else { return };
    if kind == Kind::Turn && activity.turn != uid_at(object, "/metadata/uid") {
        return;
    }
    let Some(status) = object.get_mut("status").and_then(Value::as_object_mut) else { return };
    if let Some(at) = activity.last_activity_at {
        status.insert("lastActivityAt".to_owned(), json!(at));
    }
    if kind == Kind::Turn {
        if let Some(at) = activity.last_progress_at {
            status.insert("lastProgressAt".to_owned(), json!(at));
        }
        if !activity.recent.is_empty() {
            status.insert("recentActivity".to_owned(), json!(activity.recent));
        }
    }
}

/// All objects of a kind that match.
pub(super) async fn list(
    state: &State,
    sight: &Sight,
    resource: Resource,
    kind: Kind,
    namespace: Option<&str>,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response, Failure> {
    let view = View::of(headers, query)?;
    let filter = Filter::of(resource, query)?;
    let matches = |object: &Value| filter.matches(object) && sight.sees(kind, object);
    let limit = match query.number("limit")? {
        None | Some(0) => usize::MAX,
        Some(limit) => usize::try_from(limit).unwrap_or(usize::MAX),
    };
    check_revision(state, query).await?;
    let prefix = prefix_of(kind, namespace, &filter);
    let page = match query.get("continue") {
        Some(token) => Page::from_token(token, &prefix)?,
        None => Page::default(),
    };
    let (objects, meta) = fill(state, &prefix, &matches, limit, page).await?;
    Ok(ok(&view.list(resource, objects, &meta, state.clock.now().time)))
}

/// The prefix of the keys of a collection; where the filter demands a name, of that name alone (and
/// of those that begin with it).
pub(super) fn prefix_of(kind: Kind, namespace: Option<&str>, filter: &Filter) -> String {
    match (namespace, filter.field("metadata.name")) {
        (None, _) if kind.is_namespaced() => keys::kind_prefix(kind),
        (namespace, name) => {
            let namespace = Namespace::new(namespace.unwrap_or_default());
            let prefix = keys::namespace_prefix(kind, &namespace);
            format!("{prefix}{}", name.unwrap_or_default())
        }
    }
}

/// Where a page begins, and the revision that its first page was a picture of: a watch from there
/// sees what changed between the pages, so tokens need not expire.
#[derive(Clone, Debug, Default, PartialEq)]
struct Page {
    after: Option<Key>,
    rev: Option<Rev>,
}

impl Page {
    /// Hexadecimal of `REVISION KEY`: opaque, and safe in a URL.
    fn token(&self) -> Option<String> {
        let (key, rev) = (self.after.as_ref()?, self.rev?);
        Some(crate::api::hex(format!("{rev} {key}").as_bytes()))
    }

    fn from_token(token: &str, prefix: &str) -> Result<Self, Failure> {
        let wrong = || {
            Failure::bad_request(
                "the continue token is none of this list's; list anew without continue",
            )
        };
        let bytes: Vec<u8> = token
            .as_bytes()
            .chunks(2)
            .map(|pair| std::str::from_utf8(pair).ok().and_then(|s| u8::from_str_radix(s, 16).ok()))
            .collect::<Option<_>>()
            .ok_or_else(wrong)?;
        let text = String::from_utf8(bytes).map_err(|_| wrong())?;
        let (rev, key) = text.split_once(' ').ok_or_else(wrong)?;
        if !key.starts_with(prefix) {
            return Err(wrong());
        }
        let rev = Rev(rev.parse().map_err(|_| wrong())?);
        Ok(Self { after: Some(Key::new(key)), rev: Some(rev) })
    }
}

async fn fill(
    state: &State,
    prefix: &str,
    matches: &(dyn Fn(&Value) -> bool + Sync),
    limit: usize,
    mut page: Page,
) -> Result<(Vec<Value>, ListMeta), Failure> {
    let mut objects = Vec::new();
    // All at once if there is no limit: then the list is one consistent picture.
    let step = if limit == usize::MAX { 0 } else { PAGE_RECORDS };
    loop {
        let (records, rev) = state.store.list(prefix, page.after.as_ref(), step).await?;
        let rev = *page.rev.get_or_insert(rev);
        let is_last = step == 0 || records.len() < step;
        let count = records.len();
        for (index, record) in records.into_iter().enumerate() {
            let object = object_of(&record)?;
            page.after = Some(record.key);
            if matches(&object) {
                objects.push(object);
            }
            if objects.len() == limit && !(is_last && index + 1 == count) {
                let meta = ListMeta { resource_version: rev.to_string(), next: page.token() };
                return Ok((objects, meta));
            }
        }
        if is_last {
            return Ok((objects, ListMeta { resource_version: rev.to_string(), next: None }));
        }
    }
}

/// Lists are always of the newest state. `Exact` can be served for that alone, and a revision that
/// the store has not reached means that it was put back to an older state.
async fn check_revision(state: &State, query: &Query) -> Result<(), Failure> {
    let wanted = Rev(query.number("resourceVersion")?.unwrap_or(0));
    let is_exact = match query.get("resourceVersionMatch") {
        None | Some("NotOlderThan") => false,
        Some("Exact") => true,
        Some(other) => {
            return Err(Failure::bad_request(format!(
                "query resourceVersionMatch={other}: expected NotOlderThan or Exact"
            )));
        }
    };
    if wanted == Rev(0) {
        return Ok(());
    }
    let head = state.store.head().await?;
    if wanted > head || (is_exact && wanted != head) {
        return Err(Failure::expired(format!(
            "resourceVersion {wanted} is not the store's newest, {head}; \
             list anew without resourceVersion"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_continue_token_belongs_to_its_list() {
        let page = Page { after: Some(Key::new("/session/default/a")), rev: Some(Rev(7)) };
        let token = page.token().unwrap();
        assert_eq!(Page::from_token(&token, "/session/default/").unwrap(), page);
        assert!(Page::from_token(&token, "/turn/").is_err());
        assert!(Page::from_token("zz", "/turn/").is_err());
        assert!(Page::from_token("\u{e9}a", "/turn/").is_err());
    }
}
