//! One tool call: who makes it, how its client is told of progress, and how it may end early.

use std::time::Duration;

use rmcp::model::{ProgressNotificationParam, ProgressToken, ProtocolVersion};
use rmcp::service::{Peer, RequestContext, RoleServer};
use tokio_util::sync::CancellationToken;

use super::session::Held;
use crate::admission::Caller;

/// How long a client may take to be told of progress: one that does not read holds up itself only.
const TELL_MAX: Duration = Duration::from_secs(1);

/// A call of a caller's.
pub(super) struct Call {
    /// Who calls, from the token alone.
    pub(super) caller: Caller,
    /// Whom progress is told to, if the client asked for it.
    teller: Option<(Peer<RoleServer>, ProgressToken)>,
    ended: CancellationToken,
    /// Its place in a session, in the revisions that have sessions.
    held: Option<Held>,
    /// Whether the client's leaving is a cancel: in 2026-07-28 it is.
    is_cancelled_by_leaving: bool,
}

/// How a call ended before its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// The client cancelled it.
    Cancelled,
    /// Nobody waits for the answer any more. That takes nothing back.
    Left,
}

impl Call {
    pub(super) fn new(
        caller: Caller,
        context: &RequestContext<RoleServer>,
        held: Option<Held>,
    ) -> Self {
        let teller = context.meta.get_progress_token().map(|token| (context.peer.clone(), token));
        Self {
            caller,
            teller,
            ended: context.ct.clone(),
            held,
            is_cancelled_by_leaving: is_modern(context),
        }
    }

    /// Waits until the call ends early.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub(super) async fn ended(&self) -> Ending {
        self.ended.cancelled().await;
        let said_so = self.held.as_ref().is_some_and(Held::was_cancelled);
        if said_so || self.is_cancelled_by_leaving { Ending::Cancelled } else { Ending::Left }
    }

    /// Tells of progress, the `count`th time. A client that is gone or does not listen is no fault.
    pub(super) async fn tell(&self, count: u32, message: String) {
        let Some((peer, token)) = &self.teller else { return };
        let progress =
            ProgressNotificationParam::new(token.clone(), f64::from(count)).with_message(message);
        match tokio::time::timeout(TELL_MAX, peer.notify_progress(progress)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "progress was not told"),
            Err(_) => tracing::debug!("a client does not read what it is told"),
        }
    }
}

/// Whether a request is of the revision without sessions.
pub(super) fn is_modern(context: &RequestContext<RoleServer>) -> bool {
    context
        .meta
        .protocol_version()
        .is_some_and(|version| version.as_str() >= ProtocolVersion::V_2026_07_28.as_str())
}
