//! `.../turns/{name}/response`: what the agent answered, byte for byte, in ranges.
//!
//! Read in bounded pieces as the client takes them: an answer of any size costs one piece.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use serde_json::Value;

use super::read::{find, object_of};
use super::resource::Item;
use super::sight::Sight;
use super::status::Failure;
use super::transcript::{Failed, READ_BYTES, no_sniffing, uid_of};
use super::{State, never_stored};
use crate::api::{Kind, Namespace};
use crate::store::{BlobId, Record, Stream, keys};

/// Whether more may come: `false` while the turn runs.
const COMPLETE: HeaderName = HeaderName::from_static("spawnlet-response-complete");

/// Turns read at a time while a response id is looked for.
const SEARCH_RECORDS: usize = 256;

/// The response, or the one range of it that was asked for.
pub(super) async fn response(
    state: &Arc<State>,
    sight: &Sight,
    item: &Item,
    headers: &HeaderMap,
) -> Result<Response, Failure> {
    let record = match find(state, sight, item, Kind::Turn).await {
        Ok(record) => record,
        Err(failure) => by_response_id(state, sight, item).await?.ok_or(failure)?,
    };
    let turn = object_of(&record)?;
    let blob = BlobId { owner: uid_of(&turn), stream: Stream::Response };
    let length = state.blobs.len(&blob).await?;
    let (range, code) = match Range::of(headers, length) {
        Range::Whole => (0..length, StatusCode::OK),
        Range::Part(range) => (range, StatusCode::PARTIAL_CONTENT),
        Range::Unsatisfiable => return Ok(unsatisfiable(length)),
    };
    let (start, bytes) = (range.start, range.end - range.start);
    let pieces = futures::stream::try_unfold(
        Pieces { state: Arc::clone(state), blob, next: start, end: range.end },
        |mut pieces| async move { Ok::<_, Failed>(pieces.next().await?.map(|piece| (piece, pieces))) },
    );
    let mut response = Response::new(Body::from_stream(pieces));
    *response.status_mut() = code;
    let is_complete = turn.pointer("/status/finishedAt").is_some_and(Value::is_string);
    let map = response.headers_mut();
    map.insert(header::CONTENT_LENGTH, HeaderValue::from(bytes));
    map.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    map.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain; charset=utf-8"));
    map.insert(COMPLETE, HeaderValue::from_static(if is_complete { "true" } else { "false" }));
    if code == StatusCode::PARTIAL_CONTENT {
        let text = format!("bytes {start}-{}/{length}", start + bytes.saturating_sub(1));
        map.extend(HeaderValue::from_str(&text).ok().map(|value| (header::CONTENT_RANGE, value)));
    }
    no_sniffing(&mut response);
    Ok(never_stored(response))
}

/// The turn of this namespace whose response has this id.
async fn by_response_id(
    state: &State,
    sight: &Sight,
    item: &Item,
) -> Result<Option<Record>, Failure> {
    if uuid::Uuid::parse_str(&item.name).is_err() {
        return Ok(None);
    }
    let namespace = Namespace::new(item.namespace.clone().unwrap_or_default());
    let prefix = keys::namespace_prefix(Kind::Turn, &namespace);
    let mut after = None;
    loop {
        let (records, _) = state.store.list(&prefix, after.as_ref(), SEARCH_RECORDS).await?;
        let is_last = records.len() < SEARCH_RECORDS;
        for record in records {
            let turn = object_of(&record)?;
            let is_named =
                turn.pointer("/status/responseId").and_then(Value::as_str) == Some(&item.name);
            if is_named && sight.sees(Kind::Turn, &turn) {
                return Ok(Some(record));
            }
            after = Some(record.key);
        }
        if is_last {
            return Ok(None);
        }
    }
}

/// The rest of a range.
struct Pieces {
    state: Arc<State>,
    blob: BlobId,
    next: u64,
    end: u64,
}

impl Pieces {
    async fn next(&mut self) -> Result<Option<Bytes>, Failed> {
        if self.next >= self.end {
            return Ok(None);
        }
        let wanted = usize::try_from(self.end - self.next).unwrap_or(READ_BYTES).min(READ_BYTES);
        let piece = self
            .state
            .blobs
            .read(&self.blob, self.next, wanted)
            .await
            .map_err(|error| Failed(error.to_string()))?;
        if piece.is_empty() {
            return Err(Failed("the response was deleted while it was read".to_owned()));
        }
        self.next += piece.len() as u64;
        Ok(Some(piece))
    }
}

fn unsatisfiable(length: u64) -> Response {
    let mut response = Failure::new(
        StatusCode::RANGE_NOT_SATISFIABLE,
        "RangeNotSatisfiable",
        format!("the range lies behind the response's end; it has {length} bytes"),
    )
    .into_response();
    response.headers_mut().extend(
        HeaderValue::from_str(&format!("bytes */{length}"))
            .ok()
            .map(|value| (header::CONTENT_RANGE, value)),
    );
    response
}

/// What a Range header asks for (RFC 9110, 14.2). Several ranges, other units and what cannot be
/// read are ignored, as the RFC allows.
#[derive(Debug, PartialEq)]
enum Range {
    Whole,
    Part(std::ops::Range<u64>),
    Unsatisfiable,
}

impl Range {
    fn of(headers: &HeaderMap, length: u64) -> Self {
        headers
            .get(header::RANGE)
            .and_then(|value| value.to_str().ok())
            .and_then(|text| Self::parse(text, length))
            .unwrap_or(Self::Whole)
    }

    fn parse(text: &str, length: u64) -> Option<Self> {
        let (first, last) = text.trim().strip_prefix("bytes=")?.split_once('-')?;
        if first.is_empty() {
            let suffix: u64 = last.parse().ok()?;
            if suffix == 0 {
                return Some(Self::Unsatisfiable);
            }
            return Some(match length {
                0 => Self::Unsatisfiable,
                _ => Self::Part(length.saturating_sub(suffix)..length),
            });
        }
        let first: u64 = first.parse().ok()?;
        let last = if last.is_empty() { u64::MAX } else { last.parse().ok()? };
        if last < first {
            return None;
        }
        Some(if first >= length {
            Self::Unsatisfiable
        } else {
            Self::Part(first..last.saturating_add(1).min(length))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_follow_the_rfc() {
        for (text, range) in [
            ("bytes=0-4", Some(Range::Part(0..5))),
            ("bytes=5-", Some(Range::Part(5..10))),
            ("bytes=-3", Some(Range::Part(7..10))),
            ("bytes=-30", Some(Range::Part(0..10))),
            ("bytes=8-99", Some(Range::Part(8..10))),
            ("bytes=10-", Some(Range::Unsatisfiable)),
            ("bytes=-0", Some(Range::Unsatisfiable)),
            ("bytes=4-2", None),
            ("bytes=0-1,3-4", None),
            ("lines=0-1", None),
        ] {
            assert_eq!(Range::parse(text, 10), range, "{text}");
        }
    }
}
