//! The streams on which callers that the daemon does not run are told of their children.
//!
//! A client of the revisions with sessions opens one beside its calls (GET); a notice is a log
//! message on it. The revision without sessions has no stream that carries one: its clients are told
//! by the updates that they subscribed to.
//!
//! Invariants: a session's notices go to streams of its own tokens alone; a stream whose client asked
//! for higher levels only counts as none; writing is bounded in time; nothing here outlives its
//! client's session.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

#[expect(deprecated, reason = "the revisions with sessions have log messages")]
use rmcp::model::{LoggingLevel, LoggingMessageNotificationParam};
use rmcp::service::{Peer, RoleServer};
use rmcp::transport::streamable_http_server::session::SessionId;
use tokio::sync::broadcast;

use crate::api::{Name, Namespace, Uid};
use crate::guard::Principal;
use crate::ports::{self, StreamNotice};

/// How long a client may take to be told.
const TELL_MAX: Duration = Duration::from_secs(5);
/// Openings that the loop may lag behind; then it looks at every session with notices.
const OPENED_MAX: usize = 64;

/// Who is told: a session and where its record is.
#[derive(Clone, Debug)]
struct Caller {
    session: Uid,
    record: (Namespace, Name),
}

#[derive(Default)]
struct Entry {
    caller: Option<Caller>,
    peer: Option<Peer<RoleServer>>,
    /// Streams that are open.
    open: usize,
    /// The client wants no messages of level `info`.
    is_quiet: bool,
}

impl Entry {
    const fn takes_notices(&self) -> bool {
        self.open > 0 && !self.is_quiet && self.peer.is_some() && self.caller.is_some()
    }

    fn is_over(&self) -> bool {
        self.open == 0 && self.peer.as_ref().is_none_or(Peer::is_transport_closed)
    }
}

/// The streams of every MCP session.
pub struct Streams {
    entries: Mutex<HashMap<SessionId, Entry>>,
    opened: broadcast::Sender<(Namespace, Name)>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { entries: Mutex::default(), opened: broadcast::channel(OPENED_MAX).0 }
    }
}

impl Streams {
    fn entries(&self) -> MutexGuard<'_, HashMap<SessionId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A client is ready for messages.
    pub(super) fn introduce(&self, id: &SessionId, principal: &Principal, peer: Peer<RoleServer>) {
        let Some(bearer) = principal.caller() else { return };
        let caller = &bearer.caller;
        let record = (caller.namespace.clone(), caller.name.clone());
        self.change(id, |entry| {
            entry.caller = Some(Caller { session: caller.session.clone(), record });
            entry.peer = Some(peer);
        });
    }

    /// A client opened a stream; it is open until the value goes.
    pub(super) fn open(self: &Arc<Self>, id: &SessionId) -> OpenStream {
        self.change(id, |entry| entry.open += 1);
        OpenStream { streams: Arc::clone(self), id: id.clone() }
    }

    /// A client says what it wants to be told.
    #[expect(deprecated, reason = "the revisions with sessions have levels")]
    pub(super) fn set_level(&self, id: &SessionId, level: LoggingLevel) {
        let is_quiet = !matches!(level, LoggingLevel::Debug | LoggingLevel::Info);
        self.change(id, |entry| entry.is_quiet = is_quiet);
    }

    /// Changes what is known of a session, and tells the loop if it takes notices since then.
    fn change(&self, id: &SessionId, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.entries();
        entries.retain(|other, entry| other == id || !entry.is_over());
        let entry = entries.entry(id.clone()).or_default();
        let was_taking = entry.takes_notices();
        change(entry);
        if let (false, true, Some(caller)) = (was_taking, entry.takes_notices(), &entry.caller) {
            // Nobody listens before the loop runs: its first pass looks by itself.
            let _ = self.opened.send(caller.record.clone());
        }
    }

    fn peers_of(&self, session: &Uid) -> Vec<Peer<RoleServer>> {
        let is_its = |entry: &&Entry| {
            entry.takes_notices()
                && entry.caller.as_ref().is_some_and(|caller| caller.session == *session)
        };
        self.entries().values().filter(is_its).filter_map(|entry| entry.peer.clone()).collect()
    }
}

/// A stream that is open.
pub(super) struct OpenStream {
    streams: Arc<Streams>,
    id: SessionId,
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        let mut entries = self.streams.entries();
        if let Some(entry) = entries.get_mut(&self.id) {
            entry.open = entry.open.saturating_sub(1);
            if entry.is_over() {
                entries.remove(&self.id);
            }
        }
    }
}

#[async_trait::async_trait]
impl ports::Streams for Streams {
    fn is_open(&self, session: &Uid) -> bool {
        !self.peers_of(session).is_empty()
    }

    async fn tell(&self, session: &Uid, notice: &StreamNotice) -> bool {
        let mut is_written = false;
        for peer in self.peers_of(session) {
            #[expect(deprecated, reason = "the revisions with sessions have log messages")]
            let told = {
                let message =
                    LoggingMessageNotificationParam::new(LoggingLevel::Info, notice.data.clone())
                        .with_logger("spawnlet");
                tokio::time::timeout(TELL_MAX, peer.notify_logging_message(message)).await
            };
            is_written |= matches!(told, Ok(Ok(())));
        }
        is_written
    }

    fn opened(&self) -> broadcast::Receiver<(Namespace, Name)> {
        self.opened.subscribe()
    }
}
