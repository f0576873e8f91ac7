//! `.../sessions/{name}/transcript` and `/logs`: what a session's turns said, whole or followed.
//!
//! Following waits for the length that the controller publishes (`ports::Live::transcript`) and for
//! changes of records; nothing polls. A turn's transcript is complete once its record says that it
//! ended. What the controller owes: its sender is there before the turn's record leaves `Pending`.
//! What a caller reads ends with its token.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use bytes::Bytes;
use serde_json::Value;
use tokio::sync::watch;

use super::leash::{Leash, ended};
use super::query::Query;
use super::read::{find, object_at, object_of, pointed};
use super::render::{Format, Renderer};
use super::resource::{Item, Resource};
use super::sight::Sight;
use super::status::Failure;
use super::{State, never_stored, text_response};
use crate::api::turn::TurnPhase;
use crate::api::{Kind, Uid};
use crate::store::{BlobId, Change, Key, Record, Stream, Watch, keys};

/// Bytes of a blob that are in memory at a time for one reader.
pub(super) const READ_BYTES: usize = 64 * 1024;

/// `.../logs`: the agent's standard error with `stderr=1`, else the transcript.
pub(super) async fn logs(
    state: &Arc<State>,
    sight: &Sight,
    item: &Item,
    query: &Query,
) -> Result<Response, Failure> {
    if !query.bool("stderr")? {
        return transcript(state, sight, item, query).await;
    }
    // What an agent writes there is for those who run it.
    if !sight.is_all() {
        return Err(Failure::not_found(item.resource, &item.name));
    }
    let session = object_of(&find(state, sight, item, Kind::Session).await?)?;
    match state.live.stderr(&uid_of(&session)) {
        Some(bytes) => {
            let mut response = text_response(StatusCode::OK, bytes);
            no_sniffing(&mut response);
            Ok(never_stored(response))
        }
        None => Err(Failure::new(
            StatusCode::NOT_FOUND,
            "NotFound",
            format!(
                "session {:?} has had no agent process since the daemon started, so there is no \
                 standard error of it; the transcript is in .../transcript",
                item.name
            ),
        )),
    }
}

/// `.../transcript?turn=&follow=&format=`.
pub(super) async fn transcript(
    state: &Arc<State>,
    sight: &Sight,
    item: &Item,
    query: &Query,
) -> Result<Response, Failure> {
    let format = Format::parse(query.get("format"))?;
    let is_followed = query.bool("follow")?;
    let record = find(state, sight, item, Kind::Session).await?;
    let session = object_of(&record)?;
    let uid = uid_of(&session);
    let leash = Leash::of(state, sight).await?;
    let mut stream = Transcripts {
        state: Arc::clone(state),
        format,
        is_followed,
        waiting: VecDeque::new(),
        current: None,
        more: None,
        is_over: false,
    };
    if let Some(name) = query.get("turn") {
        stream.waiting.push_back(turn_of(state, sight, item, &session, name).await?);
    } else {
        let (records, rev) = state.store.list(&keys::turns_of(&uid), None, 0).await?;
        stream.waiting = records.iter().filter_map(TurnRef::of_index).collect();
        if is_followed && !is_over(&session) {
            stream.more = Some(More {
                turns: state.store.watch(&keys::turns_of(&uid), rev).await?,
                session: state.store.watch(record.key.as_str(), record.rev).await?,
                key: record.key,
            });
        }
    }
    let chunks = futures::stream::unfold((stream, leash), |(mut stream, mut leash)| async move {
        // A stream that is over is not asked again, so what it had begun may be dropped.
        let chunk = tokio::select! {
            biased;
            () = ended(&mut leash) => stream.cut(),
            chunk = stream.next() => chunk,
        };
        chunk.map(|chunk| (chunk, (stream, leash)))
    });
    let mut response = Response::new(Body::from_stream(chunks));
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(format.media_type()));
    no_sniffing(&mut response);
    Ok(never_stored(response))
}

/// What an agent wrote is never to be taken for a page.
pub(super) fn no_sniffing(response: &mut Response) {
    response
        .headers_mut()
        .insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
}

pub(super) fn uid_of(object: &Value) -> Uid {
    Uid::new(object.pointer("/metadata/uid").and_then(Value::as_str).unwrap_or_default())
}

/// The turn of this session that a query names.
async fn turn_of(
    state: &State,
    sight: &Sight,
    session_item: &Item,
    session: &Value,
    name: &str,
) -> Result<TurnRef, Failure> {
    let resource = Resource::Records(Kind::Turn);
    let item = Item { resource, name: name.to_owned(), ..session_item.clone() };
    let record = find(state, sight, &item, Kind::Turn).await?;
    let turn = object_of(&record)?;
    if turn.pointer("/spec/session") != session.pointer("/metadata/name") {
        return Err(Failure::not_found(resource, name));
    }
    Ok(TurnRef { uid: uid_of(&turn), key: record.key })
}

/// A turn whose transcript is to be read.
#[derive(Clone, Debug)]
struct TurnRef {
    uid: Uid,
    key: Key,
}

impl TurnRef {
    /// From an index record of [`keys::turns_of`].
    fn of_index(record: &Record) -> Option<Self> {
        let (_, uid) = record.key.as_str().rsplit_once('/')?;
        Some(Self { uid: Uid::new(uid), key: pointed(&record.value)? })
    }

    fn name(&self) -> &str {
        self.key.as_str().rsplit('/').next().unwrap_or_default()
    }
}

/// Whether a record says that its object ended.
fn is_over(object: &Value) -> bool {
    object.pointer("/status/finishedAt").is_some_and(Value::is_string)
}

/// Whether a turn ended.
fn is_turn_over(turn: &Value) -> bool {
    let phase = turn.pointer("/status/phase").cloned();
    let phase = phase.and_then(|phase| serde_json::from_value::<TurnPhase>(phase).ok());
    is_over(turn) || phase.is_some_and(TurnPhase::is_final)
}

/// Where later turns of a followed session come from.
struct More {
    turns: Watch,
    session: Watch,
    key: Key,
}

/// The transcripts of one or all turns of a session, one after the other.
struct Transcripts {
    state: Arc<State>,
    format: Format,
    is_followed: bool,
    waiting: VecDeque<TurnRef>,
    current: Option<(Reader, Renderer)>,
    more: Option<More>,
    is_over: bool,
}

impl Transcripts {
    async fn next(&mut self) -> Option<Result<Bytes, Failed>> {
        while !self.is_over {
            if let Some((reader, renderer)) = &mut self.current {
                let out = match reader.next(&self.state).await {
                    Ok(Some(bytes)) => renderer.push(bytes),
                    Ok(None) => {
                        let out = renderer.end();
                        self.current = None;
                        out
                    }
                    Err(failure) => return Some(self.fail(&failure)),
                };
                if !out.is_empty() {
                    return Some(Ok(out));
                }
                continue;
            }
            if let Some(turn) = self.waiting.pop_front() {
                let renderer = Renderer::new(self.format, turn.name());
                self.current = Some((Reader::new(turn, self.is_followed), renderer));
                continue;
            }
            match self.more().await {
                Some(turn) => self.waiting.push_back(turn),
                None => self.is_over = true,
            }
        }
        None
    }

    /// The next turn of a followed session; `None` once the session is over.
    async fn more(&mut self) -> Option<TurnRef> {
        let more = self.more.as_mut()?;
        loop {
            // Turns first: those that came before the session's end are still shown. All branches
            // are cancel-safe.
            tokio::select! {
                biased;
                () = self.state.shutdown.cancelled() => return None,
                change = more.turns.next() => match change? {
                    Change::Put(record) if record.create_rev == record.rev => {
                        if let Some(turn) = TurnRef::of_index(&record) {
                            return Some(turn);
                        }
                    }
                    Change::Put(_) | Change::Delete { .. } | Change::Bookmark(_) => {}
                    Change::Compacted { .. } | Change::Regressed { .. } | Change::Lost(_) => {
                        return None;
                    }
                },
                change = more.session.next() => match change? {
                    Change::Put(record) if record.key == more.key => {
                        let object = object_at(&record.key, &record.value, record.rev).ok()?;
                        if is_over(&object) {
                            return None;
                        }
                    }
                    Change::Delete { key, .. } if key == more.key => return None,
                    Change::Put(_) | Change::Delete { .. } | Change::Bookmark(_) => {}
                    Change::Compacted { .. } | Change::Regressed { .. } | Change::Lost(_) => {
                        return None;
                    }
                },
            }
        }
    }

    /// The end of a stream whose reader may read no more: as a watch ends, if it is followed; what
    /// would else look whole is cut off.
    fn cut(&mut self) -> Option<Result<Bytes, Failed>> {
        let was_over = std::mem::replace(&mut self.is_over, true);
        let why = "the token opens nothing any more";
        (!was_over && !self.is_followed).then(|| Err(Failed(why.to_owned())))
    }

    /// A stream that cannot go on is cut off, so that the client sees that it is not whole.
    fn fail(&mut self, failure: &Failure) -> Result<Bytes, Failed> {
        self.is_over = true;
        tracing::warn!(message = failure.message(), "a transcript stream broke off");
        Err(Failed(failure.message().to_owned()))
    }
}

/// Why a stream was cut off.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct Failed(pub(super) String);

/// How the end of a turn's transcript is found.
enum Growth {
    /// Not looked at yet.
    Unknown,
    /// The controller publishes the length.
    Live(watch::Receiver<u64>),
    /// Nothing comes any more: what is there is read to its end.
    Complete,
}

/// Reads a turn's transcript from the front.
struct Reader {
    turn: TurnRef,
    offset: u64,
    growth: Growth,
}

impl Reader {
    fn new(turn: TurnRef, is_followed: bool) -> Self {
        let growth = if is_followed { Growth::Unknown } else { Growth::Complete };
        Self { turn, offset: 0, growth }
    }

    /// The next bytes; `None` at the end.
    async fn next(&mut self, state: &State) -> Result<Option<Bytes>, Failure> {
        let blob = BlobId { owner: self.turn.uid.clone(), stream: Stream::Transcript };
        loop {
            if matches!(self.growth, Growth::Unknown) {
                self.growth = match self.join(state).await? {
                    Some(growth) => growth,
                    None => return Ok(None),
                };
            }
            // Marked as seen before reading, so that no growth after the read is missed.
            if let Growth::Live(length) = &mut self.growth {
                length.borrow_and_update();
            }
            let bytes = state.blobs.read(&blob, self.offset, READ_BYTES).await?;
            if !bytes.is_empty() {
                self.offset += bytes.len() as u64;
                return Ok(Some(bytes));
            }
            match &mut self.growth {
                Growth::Unknown => {}
                Growth::Complete => return Ok(None),
                Growth::Live(length) => {
                    // Both branches are cancel-safe.
                    let changed = tokio::select! {
                        biased;
                        () = state.shutdown.cancelled() => return Ok(None),
                        changed = length.changed() => changed,
                    };
                    if changed.is_err() {
                        self.growth = Growth::Complete;
                    }
                }
            }
        }
    }

    /// Waits until the turn runs or is over; `None` at the daemon's shutdown.
    async fn join(&self, state: &State) -> Result<Option<Growth>, Failure> {
        let after = state.store.head().await?;
        let mut changes = state.store.watch(self.turn.key.as_str(), after).await?;
        loop {
            if let Some(length) = state.live.transcript(&self.turn.uid) {
                return Ok(Some(Growth::Live(length)));
            }
            match state.store.get(&self.turn.key).await? {
                Some(record) if !is_turn_over(&object_of(&record)?) => {}
                Some(_) | None => return Ok(Some(Growth::Complete)),
            }
            // Both branches are cancel-safe.
            let change = tokio::select! {
                biased;
                () = state.shutdown.cancelled() => return Ok(None),
                change = changes.next() => change,
            };
            match change {
                None => return Ok(None),
                Some(Change::Lost(_) | Change::Compacted { .. } | Change::Regressed { .. }) => {
                    let after = state.store.head().await?;
                    changes = state.store.watch(self.turn.key.as_str(), after).await?;
                }
                Some(Change::Put(_) | Change::Delete { .. } | Change::Bookmark(_)) => {}
            }
        }
    }
}
