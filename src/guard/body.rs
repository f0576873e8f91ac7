//! Request bodies: bounded in bytes and in time for whoever reads them.

use std::pin::Pin;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, HttpBody};
use axum::http::{HeaderMap, header};
use bytes::Bytes;
use futures::{StreamExt, stream};
use http_body_util::BodyExt;
use tokio::time::{Sleep, sleep};

use super::refused::Refused;

/// How long a body may take, from the moment that somebody begins to read it.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a body was not read to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFault {
    /// It is larger than it may be: 413.
    #[error("the request body is larger than the limit of {bytes_max} bytes (mcp.requestBytes)")]
    TooLarge {
        /// The bound.
        bytes_max: usize,
    },
    /// It did not come in time: 408.
    #[error("the request body took longer than {} s", BODY_TIMEOUT.as_secs())]
    TooSlow,
    /// The client broke off: 400.
    #[error("the request body broke off")]
    Broken,
}

/// Refuses a body that is told to be over the bound, before anything of it comes.
pub(super) fn check_length(headers: &HeaderMap, bytes_max: usize) -> Result<(), Refused> {
    let told = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok())
        .and_then(|text| text.parse::<u64>().ok());
    match told {
        Some(bytes) if bytes > bytes_max as u64 => {
            Err(Refused::too_large(BodyFault::TooLarge { bytes_max }.to_string()))
        }
        Some(_) | None => Ok(()),
    }
}

/// The same body, which ends in a [`BodyFault`] over the bound of bytes or of time.
pub(super) fn bounded(body: Body, bytes_max: usize) -> Body {
    if body.is_end_stream() {
        return body;
    }
    let rest = Rest { source: body.into_data_stream(), left: bytes_max, bytes_max, patience: None };
    Body::from_stream(stream::try_unfold(rest, |mut rest| async move {
        Ok::<_, BodyFault>(rest.next().await?.map(|chunk| (chunk, rest)))
    }))
}

/// Reads a whole body that came through the guard.
///
/// # Errors
///
/// [`BodyFault`].
pub async fn read(body: Body) -> Result<Bytes, BodyFault> {
    match body.collect().await {
        Ok(collected) => Ok(collected.to_bytes()),
        Err(error) => {
            // Every layer between may have wrapped it.
            let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
            while let Some(inner) = cause {
                if let Some(fault) = inner.downcast_ref::<BodyFault>() {
                    return Err(fault.clone());
                }
                cause = inner.source();
            }
            Err(BodyFault::Broken)
        }
    }
}

/// What is still to come of a body.
struct Rest {
    source: BodyDataStream,
    left: usize,
    bytes_max: usize,
    patience: Option<Pin<Box<Sleep>>>,
}

impl Rest {
    async fn next(&mut self) -> Result<Option<Bytes>, BodyFault> {
        let patience = self.patience.get_or_insert_with(|| Box::pin(sleep(BODY_TIMEOUT)));
        // Cancel-safe: a timer, and a stream's `next`.
        let next = tokio::select! {
            biased;
            next = self.source.next() => next.transpose(),
            () = patience.as_mut() => return Err(BodyFault::TooSlow),
        };
        match next {
            Ok(None) => Ok(None),
            Err(error) => {
                tracing::debug!(%error, "a request body broke off");
                Err(BodyFault::Broken)
            }
            Ok(Some(chunk)) => match self.left.checked_sub(chunk.len()) {
                Some(left) => {
                    self.left = left;
                    Ok(Some(chunk))
                }
                None => Err(BodyFault::TooLarge { bytes_max: self.bytes_max }),
            },
        }
    }
}
