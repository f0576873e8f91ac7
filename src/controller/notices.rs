//! What a session is to be told of its children's turns: read for its world, and told on the open
//! streams of an external one.
//!
//! Invariants: what was told on a stream is remembered until the record says what became of it; a
//! stream that opens sets off a pass of its session.

use std::sync::Arc;

use tokio::sync::broadcast::error::RecvError;
use tokio_util::sync::CancellationToken;

use crate::api::report::Trigger;
use crate::api::session::Provider;
use crate::api::{Kind, Name, Session, Turn, TurnSpec, Uid, naming};
use crate::plan::{NOTICES_MAX, Notices, Told, World, notice_text};
use crate::ports::StreamNotice;
use crate::store::{keys, records};

use super::feed::object_key;
use super::{Controller, ObjectKey, lock};

/// Numbers of a generated name that may be taken by names that users gave.
const NAMES_TAKEN_MAX: u64 = 1024;

impl Controller {
    /// What a session is to be told, and how it could be.
    pub(super) async fn notices(&self, session: &Session) -> Result<Notices, records::Error> {
        let uid = &session.metadata.uid;
        if session.status.end.is_some() {
            return Ok(Notices::default());
        }
        let unsettled = self.records.notices_for(uid, NOTICES_MAX).await?;
        let mut notices = Notices { unsettled, ..Notices::default() };
        if notices.unsettled.is_empty() {
            return Ok(notices);
        }
        if session.spec.provider == Provider::External {
            let told = lock(&self.told);
            let outcome = |turn: &Turn| {
                let uid = &turn.metadata.uid;
                told.get(uid).map(|told| (uid.clone(), *told))
            };
            notices.told = notices.unsettled.iter().filter_map(outcome).collect();
            notices.has_stream = self.streams.as_ref().is_some_and(|streams| streams.is_open(uid));
        } else {
            notices.next_turn = self.next_turn_name(session).await?;
        }
        Ok(notices)
    }

    /// The first free name of a session's next turn; none if users took too many.
    async fn next_turn_name(
        &self,
        session: &Session,
    ) -> Result<Option<(Name, u64)>, records::Error> {
        let (metadata, made) = (&session.metadata, session.status.turns_made);
        for number in made + 1..=made + NAMES_TAKEN_MAX {
            let name = naming::turn_name(&metadata.name, number);
            let key = keys::record(Kind::Turn, &metadata.namespace, &name);
            if self.records.store().get(&key).await?.is_none() {
                return Ok(Some((name, number)));
            }
        }
        Ok(None)
    }

    /// Writes the notices of these turns to the open streams of their caller, beside any pass.
    pub(super) fn tell(&self, key: &ObjectKey, world: &World, turns: &[Turn]) {
        let Some(streams) = self.streams.clone() else { return };
        let mut due = Vec::with_capacity(turns.len());
        {
            let mut told = lock(&self.told);
            for turn in turns {
                if told.insert(turn.metadata.uid.clone(), Told::Writing).is_none() {
                    due.push(turn.clone());
                }
            }
        }
        let (caller, key) = (world.session.metadata.uid.clone(), key.clone());
        let (told, queue, turns) = (Arc::clone(&self.told), Arc::clone(&self.queue), due);
        self.spawn(async move {
            for turn in turns {
                let notice = notice_of(&turn);
                let is_written = streams.tell(&caller, &notice).await;
                let outcome = if is_written { Told::Written } else { Told::NotWritten };
                lock(&told).insert(notice.turn, outcome);
            }
            queue.add(key, Trigger::Process);
        });
    }

    /// What became of a notice is recorded: it need not be remembered any more.
    pub(super) fn forget_told(&self, turns: &[Turn]) {
        let is_settled = |turn: &&Turn| {
            turn.status.notice.as_ref().is_some_and(|notice| notice.state.is_final())
        };
        let mut told = lock(&self.told);
        for turn in turns.iter().filter(is_settled) {
            told.remove(&turn.metadata.uid);
        }
    }

    /// A turn has ended of which its caller is to be told: the caller's pass does it.
    pub(super) async fn notice_owed(&self, turn: &Turn) {
        let is_owed = turn.status.notice.as_ref().is_some_and(|notice| !notice.state.is_final());
        let Some(caller) = turn.spec.source.caller.as_ref().filter(|_| is_owed) else { return };
        match self.records.key_by_uid(caller).await {
            Ok(Some(key)) => {
                if let Some(key) = object_key(&key) {
                    self.queue.add(key, Trigger::Watch);
                }
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(%caller, %error, "a caller could not be looked up"),
        }
    }

    /// The sessions that are not told of everything yet.
    pub(super) async fn sessions_with_notices(&self) -> Result<Vec<ObjectKey>, records::Error> {
        let mut callers: Vec<Uid> = Vec::new();
        for key in self.records.pointed_at(keys::NOTICES).await? {
            let turn = self.records.at::<TurnSpec>(&key).await?;
            let caller = turn.and_then(|turn| turn.spec.source.caller);
            callers.extend(caller.filter(|caller| !callers.contains(caller)));
        }
        let mut sessions = Vec::with_capacity(callers.len());
        for caller in callers {
            sessions.extend(self.records.key_by_uid(&caller).await?.as_ref().and_then(object_key));
        }
        Ok(sessions)
    }

    /// Looks at a session whenever a stream of it opens.
    pub(super) async fn follow_streams(self: Arc<Self>, stop: CancellationToken) {
        let Some(streams) = self.streams.clone() else { return };
        let mut opened = streams.opened();
        loop {
            // Cancel-safe: a token, and a receiver's `recv`.
            let event = tokio::select! {
                () = stop.cancelled() => return,
                event = opened.recv() => event,
            };
            match event {
                Ok((namespace, name)) => {
                    self.queue.add(ObjectKey { namespace, name }, Trigger::Watch);
                }
                Err(RecvError::Lagged(_)) => match self.sessions_with_notices().await {
                    Ok(sessions) => {
                        for key in sessions {
                            self.queue.add(key, Trigger::Watch);
                        }
                    }
                    Err(error) => tracing::warn!(%error, "who waits for notices is not known"),
                },
                Err(RecvError::Closed) => return,
            }
        }
    }
}

/// What is told of a turn: ids and its phase.
fn notice_of(turn: &Turn) -> StreamNotice {
    let metadata = &turn.metadata;
    let data = serde_json::json!({
        "message": notice_text(std::slice::from_ref(turn)),
        "sessionId": metadata.owner_references.first().map(|owner| &owner.uid),
        "turnId": metadata.uid,
        "status": turn.status.phase,
        "responseId": turn.status.response_id,
    });
    StreamNotice { turn: metadata.uid.clone(), data }
}
