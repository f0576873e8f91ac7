//! MCP sessions (`Mcp-Session-Id`) of the revisions that have them: whose each is, and how many.
//!
//! A session id is no authentication: it is bound to the token that opened it, and to everybody
//! else it does not exist. It ends with the token's session, by DELETE, or when it was not used for
//! long; then the client opens another. Nothing of a turn hangs on it.
//!
//! Invariants: the number of sessions is bounded, of one token and of all; a session with an open
//! stream or call is never thrown out; a call is known as cancelled only if its client said so, so
//! that a session that ends takes no work back.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::Stream;
use rmcp::model::ServerJsonRpcMessage;
use rmcp::model::{ClientJsonRpcMessage, ClientNotification, ClientRequest, RequestId};
use rmcp::transport::common::server_side_http::ServerSseMessage;
use rmcp::transport::streamable_http_server::SessionManager;
use rmcp::transport::streamable_http_server::session::SessionId;
use rmcp::transport::streamable_http_server::session::local::{
    LocalSessionManager, LocalSessionManagerError,
};
use tokio_util::sync::CancellationToken;

use crate::api::Uid;
use crate::clock::{Mono, SharedClock};
use crate::guard::Principal;
use crate::store::{Key, keys};

/// Sessions in all: each costs two tasks and some small buffers, so this is a few MiB.
const SESSIONS_MAX: usize = 512;
/// Sessions of one token: more than the clients of one person; some never close theirs.
const SESSIONS_OF_TOKEN_MAX: usize = 32;
/// Calls of one session that may wait at a time.
const CALLS_OF_SESSION_MAX: usize = 64;
/// How long a session is kept without a request or an open stream.
const IDLE_MAX: Duration = Duration::from_secs(3600);
/// How long a session may be without an owner: its first answer is on its way then.
const UNBOUND_MAX: Duration = Duration::from_secs(60);

/// Whose a session is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    Operator,
    Caller {
        /// The session of the token.
        session: Uid,
        /// Where its record is.
        key: Key,
        /// Which of its tokens.
        token: String,
    },
}

impl From<&Principal> for Owner {
    fn from(principal: &Principal) -> Self {
        match principal {
            Principal::Operator => Self::Operator,
            Principal::Caller(bearer) => Self::Caller {
                session: bearer.caller.session.clone(),
                key: keys::record(
                    crate::api::Kind::Session,
                    &bearer.caller.namespace,
                    &bearer.caller.name,
                ),
                token: bearer.id.clone(),
            },
        }
    }
}

struct Entry {
    owner: Option<Owner>,
    used_at: Mono,
    /// Open streams and running calls.
    uses: usize,
    /// Running tool calls, and whether their client cancelled them.
    calls: HashMap<RequestId, bool>,
    closed: CancellationToken,
}

/// Every session is taken, and none of them is idle.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Full;

/// The sessions.
pub(super) struct Sessions {
    local: LocalSessionManager,
    entries: Mutex<HashMap<SessionId, Entry>>,
    clock: SharedClock,
}

impl Sessions {
    pub(super) fn new(clock: SharedClock) -> Self {
        let mut local = LocalSessionManager::default();
        // Idle sessions are closed here, where it is known what still runs in them.
        local.session_config.keep_alive = None;
        // Clients of the revisions in use take an event without data for a broken one.
        local.session_config.sse_retry = None;
        Self { local, entries: Mutex::new(HashMap::new()), clock }
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<SessionId, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there is such a session and it is this owner's.
    pub(super) fn is_of(&self, id: &str, owner: &Owner) -> bool {
        self.entries().get(id).is_some_and(|entry| entry.owner.as_ref() == Some(owner))
    }

    /// Says whose a new session is.
    pub(super) fn bind(&self, id: &str, owner: Owner) {
        if let Some(entry) = self.entries().get_mut(id) {
            entry.owner.get_or_insert(owner);
        }
    }

    /// Closes what is idle, and if need be what was not used for longest, so that one more fits.
    pub(super) async fn make_room(&self, owner: &Owner) -> Result<(), Full> {
        self.sweep().await;
        loop {
            let victim = {
                let entries = self.entries();
                let own = |entry: &Entry| entry.owner.as_ref() == Some(owner);
                let owned = entries.values().filter(|entry| own(entry)).count();
                if owned < SESSIONS_OF_TOKEN_MAX && entries.len() < SESSIONS_MAX {
                    return Ok(());
                }
                let only_own = owned >= SESSIONS_OF_TOKEN_MAX;
                entries
                    .iter()
                    .filter(|(_, entry)| entry.uses == 0 && (!only_own || own(entry)))
                    .min_by_key(|(_, entry)| entry.used_at)
                    .map(|(id, _)| id.clone())
            };
            let Some(victim) = victim else { return Err(Full) };
            self.close(&victim).await;
        }
    }

    /// Closes sessions that were not used for long.
    pub(super) async fn sweep(&self) {
        let now = self.clock.now().mono;
        self.close_where(|entry| {
            let limit = if entry.owner.is_some() { IDLE_MAX } else { UNBOUND_MAX };
            entry.uses == 0 && now.since(entry.used_at) >= limit
        })
        .await;
    }

    /// Closes the sessions of owners that are so.
    pub(super) async fn end_of(&self, is_gone: impl Fn(&Owner) -> bool) {
        self.close_where(|entry| entry.owner.as_ref().is_some_and(&is_gone)).await;
    }

    /// Whether some owner is so.
    pub(super) fn has_owner(&self, is_meant: impl Fn(&Owner) -> bool) -> bool {
        self.entries().values().any(|entry| entry.owner.as_ref().is_some_and(&is_meant))
    }

    async fn close_where(&self, is_over: impl Fn(&Entry) -> bool) {
        let over: Vec<SessionId> = {
            let entries = self.entries();
            entries.iter().filter(|(_, entry)| is_over(entry)).map(|(id, _)| id.clone()).collect()
        };
        for id in over {
            self.close(&id).await;
        }
    }

    async fn close(&self, id: &SessionId) {
        if let Err(error) = self.close_session(id).await {
            tracing::debug!(%error, "an MCP session did not close in order");
        }
    }

    /// How many there are.
    #[cfg(test)]
    pub(super) fn count(&self) -> usize {
        self.entries().len()
    }

    /// Ends with the session.
    pub(super) fn closed(&self, id: &str) -> Option<CancellationToken> {
        self.entries().get(id).map(|entry| entry.closed.clone())
    }

    fn touch(&self, id: &str) {
        let now = self.clock.now().mono;
        if let Some(entry) = self.entries().get_mut(id) {
            entry.used_at = now;
        }
    }

    /// Keeps a session from being closed as idle.
    pub(super) fn hold(self: &Arc<Self>, id: &str) -> Option<Held> {
        let id = {
            let mut entries = self.entries();
            let (id, entry) =
                entries.get_key_value(id).map(|(id, _)| id.clone()).and_then(|id| {
                    let entry = entries.get_mut(&id)?;
                    Some((id, entry))
                })?;
            entry.uses += 1;
            id
        };
        Some(Held { sessions: Arc::clone(self), id, call: None })
    }

    /// The same for a tool call, of which is known whether its client cancelled it. `Err`: the
    /// session has too many.
    pub(super) fn call(self: &Arc<Self>, id: &str, call: &RequestId) -> Result<Option<Held>, Full> {
        let is_over =
            self.entries().get(id).is_some_and(|entry| entry.calls.len() > CALLS_OF_SESSION_MAX);
        let held = self.hold(id).map(|mut held| {
            held.call = Some(call.clone());
            held
        });
        if is_over { Err(Full) } else { Ok(held) }
    }
}

/// A use of a session; it ends with this value.
pub(super) struct Held {
    sessions: Arc<Sessions>,
    id: SessionId,
    call: Option<RequestId>,
}

impl Held {
    /// Whether the client cancelled this call. Its session may be gone since: then it did not.
    pub(super) fn was_cancelled(&self) -> bool {
        let entries = self.sessions.entries();
        let Some(entry) = entries.get(&self.id) else { return false };
        self.call.as_ref().is_some_and(|call| entry.calls.get(call).copied() == Some(true))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let now = self.sessions.clock.now().mono;
        if let Some(entry) = self.sessions.entries().get_mut(&self.id) {
            entry.uses = entry.uses.saturating_sub(1);
            entry.used_at = now;
            if let Some(call) = &self.call {
                entry.calls.remove(call);
            }
        }
    }
}

impl SessionManager for Sessions {
    type Error = LocalSessionManagerError;
    type Transport = <LocalSessionManager as SessionManager>::Transport;

    async fn create_session(&self) -> Result<(SessionId, Self::Transport), Self::Error> {
        let (id, transport) = self.local.create_session().await?;
        let entry = Entry {
            owner: None,
            used_at: self.clock.now().mono,
            uses: 0,
            calls: HashMap::new(),
            closed: CancellationToken::new(),
        };
        self.entries().insert(id.clone(), entry);
        Ok((id, transport))
    }

    async fn initialize_session(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<ServerJsonRpcMessage, Self::Error> {
        self.local.initialize_session(id, message).await
    }

    async fn has_session(&self, id: &SessionId) -> Result<bool, Self::Error> {
        self.local.has_session(id).await
    }

    async fn close_session(&self, id: &SessionId) -> Result<(), Self::Error> {
        let removed = self.entries().remove(id);
        if let Some(entry) = removed {
            entry.closed.cancel();
        }
        self.local.close_session(id).await
    }

    async fn create_stream(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.touch(id);
        if let ClientJsonRpcMessage::Request(request) = &message
            && matches!(request.request, ClientRequest::CallToolRequest(_))
            && let Some(entry) = self.entries().get_mut(id)
        {
            // Known before the call begins, so that a cancel which follows at once finds it.
            entry.calls.insert(request.id.clone(), false);
        }
        self.local.create_stream(id, message).await
    }

    async fn accept_message(
        &self,
        id: &SessionId,
        message: ClientJsonRpcMessage,
    ) -> Result<(), Self::Error> {
        self.touch(id);
        if let ClientJsonRpcMessage::Notification(notification) = &message
            && let ClientNotification::CancelledNotification(cancelled) = &notification.notification
            && let Some(call) = &cancelled.params.request_id
            && let Some(entry) = self.entries().get_mut(id)
            // Some clients cancel each call that is over: that is nothing to remember.
            && let Some(was_cancelled) = entry.calls.get_mut(call)
        {
            *was_cancelled = true;
        }
        self.local.accept_message(id, message).await
    }

    async fn create_standalone_stream(
        &self,
        id: &SessionId,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.touch(id);
        self.local.create_standalone_stream(id).await
    }

    async fn resume(
        &self,
        id: &SessionId,
        last_event_id: String,
    ) -> Result<impl Stream<Item = ServerSseMessage> + Send + Sync + 'static, Self::Error> {
        self.touch(id);
        self.local.resume(id, last_event_id).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;

    fn owner(token: &str) -> Owner {
        Owner::Caller {
            session: "s".into(),
            key: Key::new("/session/default/s"),
            token: token.into(),
        }
    }

    fn sessions() -> (Arc<ManualClock>, Arc<Sessions>) {
        let clock = Arc::new(ManualClock::default());
        (Arc::clone(&clock), Arc::new(Sessions::new(clock)))
    }

    async fn open(sessions: &Sessions, token: &str) -> SessionId {
        sessions.make_room(&owner(token)).await.unwrap();
        let (id, _transport) = sessions.create_session().await.unwrap();
        sessions.bind(&id, owner(token));
        id
    }

    #[tokio::test]
    async fn a_session_is_its_tokens_alone() {
        let (_, sessions) = sessions();
        let id = open(&sessions, "one").await;
        assert!(sessions.is_of(&id, &owner("one")));
        assert!(!sessions.is_of(&id, &owner("two")));
        assert!(!sessions.is_of(&id, &Owner::Operator));
        assert!(!sessions.is_of("made-up", &owner("one")));
        sessions.bind(&id, owner("two"));
        assert!(!sessions.is_of(&id, &owner("two")), "it is never given away");
    }

    #[tokio::test]
    async fn the_number_of_sessions_stays_bounded_and_what_is_in_use_stays() {
        let (clock, sessions) = sessions();
        let first = open(&sessions, "one").await;
        let held = sessions.hold(&first).unwrap();
        for _ in 0..2 * SESSIONS_OF_TOKEN_MAX {
            clock.advance(Duration::from_secs(1));
            open(&sessions, "one").await;
        }
        assert_eq!(sessions.count(), SESSIONS_OF_TOKEN_MAX);
        assert!(sessions.is_of(&first, &owner("one")), "an open stream keeps it");
        for token in 0..2 * SESSIONS_MAX {
            clock.advance(Duration::from_millis(1));
            open(&sessions, &format!("token {token}")).await;
        }
        assert_eq!(sessions.count(), SESSIONS_MAX);
        assert!(sessions.is_of(&first, &owner("one")));
        drop(held);
        clock.advance(IDLE_MAX);
        sessions.sweep().await;
        assert_eq!(sessions.count(), 0);
    }

    #[tokio::test]
    async fn where_all_are_in_use_none_is_thrown_out() {
        let (_, sessions) = sessions();
        let mut held = Vec::new();
        for _ in 0..SESSIONS_OF_TOKEN_MAX {
            let id = open(&sessions, "one").await;
            held.push(sessions.hold(&id).unwrap());
        }
        assert_eq!(sessions.make_room(&owner("one")).await, Err(Full));
        assert_eq!(sessions.make_room(&owner("two")).await, Ok(()));
    }

    #[tokio::test]
    async fn a_session_ends_with_its_owner() {
        let (_, sessions) = sessions();
        let one = open(&sessions, "one").await;
        let two = open(&sessions, "two").await;
        let closed = sessions.closed(&one).unwrap();
        sessions.end_of(|gone| *gone == owner("one")).await;
        assert!(closed.is_cancelled());
        assert!(!sessions.has_session(&one).await.unwrap());
        assert!(sessions.has_session(&two).await.unwrap());
    }
}
