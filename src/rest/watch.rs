//! watch: a stream of changes, one JSON object a line.
//!
//! Starts from nothing (everything as ADDED), from a revision, or as a streaming list
//! (`sendInitialEvents`). Each object that starts or ceases to match the selector is told as ADDED
//! or DELETED. A watcher holds its place in the store's log, the keys that match now (only if they
//! can change their mind) and at most one encoded event: a slow client holds back itself alone.

use std::collections::{HashSet, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::time::Sleep;

use super::leash::{Glance, Leash, due, ended, stub};
use super::query::Query;
use super::read::{object_at, object_of, prefix_of};
use super::resource::Resource;
use super::selector::Filter;
use super::sight::Sight;
use super::status::Failure;
use super::view::View;
use super::{State, never_stored};
use crate::api::Kind;
use crate::store::{Change, Key, Record, Rev, Watch};

/// How long after news that did not concern a watcher it gets a bookmark, if it wants any: rare
/// enough to cost nothing, often enough that it can come back before history is forgotten.
const BOOKMARK_AFTER: Duration = Duration::from_secs(30);

/// What is watched.
#[derive(Clone, Copy, Debug)]
pub(super) struct Subject<'a> {
    pub(super) resource: Resource,
    pub(super) kind: Kind,
    /// All of them, if none is named.
    pub(super) namespace: Option<&'a str>,
}

/// Opens a watch on a collection.
pub(super) async fn open(
    state: &Arc<State>,
    sight: &Sight,
    Subject { resource, kind, namespace }: Subject<'_>,
    headers: &HeaderMap,
    query: &Query,
) -> Result<Response, Failure> {
    let view = View::of(headers, query)?;
    let filter = Filter::of(resource, query)?;
    let start = Start::of(query)?;
    let timeout = query.number("timeoutSeconds")?;
    let wants_bookmarks = query.bool("allowWatchBookmarks")?;
    let prefix = prefix_of(kind, namespace, &filter);
    let mut watcher = Watcher {
        source: None,
        since: Rev(0),
        prefix,
        view,
        resource,
        kind,
        leash: Leash::of(state, sight).await?,
        tracked: filter.is_mutable().then(Tracked::default),
        filter,
        initial: VecDeque::new(),
        ends_initial: matches!(start, Start::List),
        wants_bookmarks,
        told: Rev(0),
        bookmark_due: None,
        deadline: timeout
            .filter(|seconds| *seconds > 0)
            .map(|seconds| Box::pin(tokio::time::sleep(Duration::from_secs(seconds)))),
        is_over: false,
        state: Arc::clone(state),
    };
    watcher.start(start).await?;
    let stream = futures::stream::unfold(watcher, |mut watcher| async move {
        let chunk = watcher.next().await?;
        Some((Ok::<_, std::convert::Infallible>(chunk), watcher))
    });
    let mut response = Response::new(Body::from_stream(stream));
    *response.status_mut() = StatusCode::OK;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    Ok(never_stored(response))
}

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    /// Everything as it is, then what changes.
    All,
    /// The same, with a bookmark between the two.
    List,
    /// What changed after a revision.
    After(Rev),
    /// What changes from now on.
    Now,
}

impl Start {
    fn of(query: &Query) -> Result<Self, Failure> {
        match query.get("resourceVersionMatch") {
            None | Some("NotOlderThan") => {}
            Some(other) => {
                return Err(Failure::bad_request(format!(
                    "query resourceVersionMatch={other}: a watch takes NotOlderThan alone"
                )));
            }
        }
        let rev = query.number("resourceVersion")?.unwrap_or(0);
        Ok(match (query.bool("sendInitialEvents")?, rev) {
            (true, _) => Self::List,
            // Asked for in so many words: nothing of what is there.
            (false, 0) if query.has("sendInitialEvents") => Self::Now,
            (false, 0) => Self::All,
            (false, rev) => Self::After(Rev(rev)),
        })
    }
}

/// Which objects the client holds, for selectors that an object can start or cease to match.
#[derive(Debug, Default)]
struct Tracked {
    /// These match, as far as was told.
    matching: HashSet<Key>,
    /// What the client holds is that of this revision.
    start: Rev,
    /// The revision of the watch's own list. Of what changed between the two it cannot be known
    /// whether it matched at the start.
    listed: Rev,
    /// Of these something was told, or left out, since the start.
    settled: HashSet<Key>,
}

impl Tracked {
    /// Whether the client may hold an object that changed at `rev`, for all that is known. To be
    /// asked once for each change, in order. `made`: when it was created, if that is known.
    fn may_be_held(&mut self, key: &Key, made: Option<Rev>, rev: Rev) -> bool {
        if rev > self.listed {
            self.settled.clear();
            return false;
        }
        let is_first = self.settled.insert(key.clone());
        is_first && made.is_none_or(|made| made <= self.start)
    }
}

struct Watcher {
    state: Arc<State>,
    source: Option<Watch>,
    /// Everything up to here was read from the store.
    since: Rev,
    prefix: String,
    view: View,
    resource: Resource,
    kind: Kind,
    /// What bounds a caller's watch.
    leash: Option<Leash>,
    filter: Filter,
    tracked: Option<Tracked>,
    initial: VecDeque<Record>,
    ends_initial: bool,
    wants_bookmarks: bool,
    /// The revision that the client can come back from.
    told: Rev,
    bookmark_due: Option<Pin<Box<Sleep>>>,
    deadline: Option<Pin<Box<Sleep>>>,
    is_over: bool,
}

/// What ended the wait for the next thing to do.
enum Wake {
    Shutdown,
    Deadline,
    Bookmark,
    Change(Option<Change>),
}

impl Watcher {
    async fn start(&mut self, start: Start) -> Result<(), Failure> {
        match start {
            Start::All | Start::List => {
                let (records, rev) = self.state.store.list(&self.prefix, None, 0).await?;
                self.initial = records.into();
                self.since = rev;
            }
            Start::After(_) | Start::Now => {
                let head = self.state.store.head().await?;
                let since = if let Start::After(since) = start { since } else { head };
                if since > head {
                    return Err(regressed(since, head));
                }
                self.since = since;
                self.seed(since).await?;
            }
        }
        self.told = self.since;
        self.source = Some(self.state.store.watch(&self.prefix, self.since).await?);
        Ok(())
    }

    /// Finds out what matches at the start of a watch from a revision.
    async fn seed(&mut self, since: Rev) -> Result<(), Failure> {
        if self.tracked.is_none() && self.leash.is_none() {
            return Ok(());
        }
        let (records, listed) = self.state.store.list(&self.prefix, None, 0).await?;
        if let Some(tracked) = &mut self.tracked {
            (tracked.start, tracked.listed) = (since, listed);
        }
        for record in records.into_iter().filter(|record| record.create_rev <= since) {
            if let Some(leash) = &mut self.leash {
                leash.seed(self.kind, &record).await?;
            }
            if let Some(tracked) = &mut self.tracked
                && record.rev <= since
                && self.filter.matches(&object_of(&record)?)
            {
                tracked.matching.insert(record.key);
            }
        }
        Ok(())
    }

    /// The next line; `None` once the watch is over.
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            if self.is_over {
                return None;
            }
            if let Some(record) = self.initial.pop_front() {
                match self.on_initial(&record).await {
                    Some(line) => return Some(line),
                    None => continue,
                }
            }
            if self.ends_initial {
                self.ends_initial = false;
                return Some(self.bookmark(true));
            }
            match self.wait().await {
                Wake::Shutdown => return None,
                Wake::Deadline => {
                    self.is_over = true;
                    let has_news = self.wants_bookmarks && self.since > self.told;
                    return has_news.then(|| self.bookmark(false));
                }
                Wake::Bookmark => {
                    self.bookmark_due = None;
                    return Some(self.bookmark(false));
                }
                Wake::Change(change) => {
                    if let Some(line) = self.on_change(change).await {
                        return Some(line);
                    }
                }
            }
        }
    }

    async fn wait(&mut self) -> Wake {
        let Some(source) = &mut self.source else { return Wake::Change(None) };
        // Every branch is cancel-safe: a token, two timers, and two times `Watch::next`.
        tokio::select! {
            biased;
            () = self.state.shutdown.cancelled() => Wake::Shutdown,
            () = ended(&mut self.leash) => Wake::Shutdown,
            () = due(&mut self.deadline) => Wake::Deadline,
            change = source.next() => Wake::Change(change),
            () = due(&mut self.bookmark_due) => Wake::Bookmark,
        }
    }

    /// The object of a change, if the one who watches may be told of it; else what is told instead.
    async fn seen(
        &mut self,
        key: &Key,
        object: Result<Value, Failure>,
        is_gone: bool,
    ) -> Result<Value, Option<Bytes>> {
        let object = match (object, &self.leash) {
            (Ok(object), _) => object,
            (Err(failure), None) => return Err(Some(self.fail(&failure))),
            // Whose it is cannot be read: nothing is told of it.
            (Err(_), Some(_)) => return Err(None),
        };
        let Some(leash) = &mut self.leash else { return Ok(object) };
        match leash.judge(self.kind, key, &object, is_gone).await {
            Ok(Glance::Seen) => Ok(object),
            Ok(Glance::Foreign) => {
                self.plan_bookmark();
                Err(None)
            }
            Ok(Glance::Ended) => {
                self.is_over = true;
                Err(None)
            }
            Ok(Glance::Ceased) => {
                let was_match = match &mut self.tracked {
                    None => self.filter.matches(&object),
                    Some(tracked) => tracked.matching.remove(key),
                };
                Err(was_match.then(|| self.event("DELETED", stub(&object))))
            }
            Err(failure) => Err(Some(self.fail(&failure))),
        }
    }

    async fn on_initial(&mut self, record: &Record) -> Option<Bytes> {
        let object = match self.seen(&record.key, object_of(record), false).await {
            Ok(object) => object,
            Err(told) => return told,
        };
        if !self.filter.matches(&object) {
            return None;
        }
        if let Some(tracked) = &mut self.tracked {
            tracked.matching.insert(record.key.clone());
        }
        Some(self.event("ADDED", object))
    }

    async fn on_change(&mut self, change: Option<Change>) -> Option<Bytes> {
        match change {
            Some(Change::Put(record)) => {
                self.since = record.rev;
                self.on_put(&record).await
            }
            Some(Change::Delete { key, last, rev }) => {
                self.since = rev;
                self.on_delete(&key, &last, rev).await
            }
            Some(Change::Bookmark(rev)) => {
                self.since = self.since.max(rev);
                self.plan_bookmark();
                None
            }
            Some(Change::Compacted { oldest }) => Some(self.fail(&Failure::expired(format!(
                "too old resource version: {} ({oldest}); list anew and watch from there",
                self.since
            )))),
            Some(Change::Regressed { head }) => Some(self.fail(&regressed(self.since, head))),
            Some(Change::Lost(reason)) => {
                tracing::warn!(%reason, since = %self.since, "a watch was lost and starts again");
                match self.state.store.watch(&self.prefix, self.since).await {
                    Ok(source) => {
                        self.source = Some(source);
                        None
                    }
                    Err(error) => Some(self.fail(&error.into())),
                }
            }
            None => {
                self.is_over = true;
                None
            }
        }
    }

    async fn on_put(&mut self, record: &Record) -> Option<Bytes> {
        let object = match self.seen(&record.key, object_of(record), false).await {
            Ok(object) => object,
            Err(told) => return told,
        };
        let is_match = self.filter.matches(&object);
        let kind = match &mut self.tracked {
            None if !is_match => None,
            None if record.create_rev == record.rev => Some("ADDED"),
            None => Some("MODIFIED"),
            Some(tracked) => {
                let was_unknown =
                    tracked.may_be_held(&record.key, Some(record.create_rev), record.rev);
                let was_match = if is_match {
                    !tracked.matching.insert(record.key.clone())
                } else {
                    tracked.matching.remove(&record.key)
                };
                match (was_match || was_unknown, is_match) {
                    (false, false) => None,
                    (false, true) => Some("ADDED"),
                    (true, true) => Some("MODIFIED"),
                    (true, false) => Some("DELETED"),
                }
            }
        };
        if kind.is_none() {
            self.plan_bookmark();
        }
        kind.map(|kind| self.event(kind, object))
    }

    async fn on_delete(&mut self, key: &Key, last: &[u8], rev: Rev) -> Option<Bytes> {
        let object = match self.seen(key, object_at(key, last, rev), true).await {
            Ok(object) => object,
            Err(told) => return told,
        };
        let was_match = match &mut self.tracked {
            None => self.filter.matches(&object),
            Some(tracked) => {
                let was_unknown = tracked.may_be_held(key, None, rev);
                tracked.matching.remove(key) || (was_unknown && self.filter.matches(&object))
            }
        };
        was_match.then(|| self.event("DELETED", object))
    }

    fn plan_bookmark(&mut self) {
        if self.wants_bookmarks && self.since > self.told && self.bookmark_due.is_none() {
            self.bookmark_due = Some(Box::pin(tokio::time::sleep(BOOKMARK_AFTER)));
        }
    }

    fn event(&mut self, kind: &str, object: Value) -> Bytes {
        self.told = self.since;
        self.bookmark_due = None;
        let object = self.view.one(self.resource, object, self.state.clock.now().time);
        line(&json!({"type": kind, "object": object}))
    }

    fn bookmark(&mut self, ends_initial: bool) -> Bytes {
        self.told = self.since;
        let mut metadata = json!({"resourceVersion": self.since.to_string()});
        if let (true, Some(map)) = (ends_initial, metadata.as_object_mut()) {
            map.insert("annotations".to_owned(), json!({"k8s.io/initial-events-end": "true"}));
        }
        let object = json!({
            "kind": self.resource.kind(),
            "apiVersion": self.resource.api_version(),
            "metadata": metadata,
        });
        let object = match self.view {
            View::Plain => object,
            // A bookmark as a table has one row without cells; its object carries the annotation.
            View::Table(_) => json!({
                "kind": "Table",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": {"resourceVersion": self.since.to_string()},
                "columnDefinitions": [],
                "rows": [{"cells": [], "object": super::view::partial(&object)}],
            }),
            View::Partial => super::view::partial(&object),
        };
        line(&json!({"type": "BOOKMARK", "object": object}))
    }

    /// The last line of a watch that cannot go on.
    fn fail(&mut self, failure: &Failure) -> Bytes {
        self.is_over = true;
        line(&json!({"type": "ERROR", "object": failure.to_value()}))
    }
}

fn regressed(since: Rev, head: Rev) -> Failure {
    Failure::expired(format!(
        "resourceVersion {since} lies after the store's newest, {head}: the store was put back to \
         an older state; list anew and watch from there"
    ))
}

fn line(event: &Value) -> Bytes {
    let mut text = event.to_string();
    text.push('\n');
    Bytes::from(text)
}
