//! Who is told that a child's turn ended, and what ends MCP sessions from outside.
//!
//! One watch of the store for all: a turn that becomes final is told of once to whoever subscribed
//! to its session's resource, and a caller whose record or token is gone loses its MCP sessions. A
//! notice is a hint; what `check_session_status` says is the truth.
//!
//! Invariants: nothing polls the store; nobody who reads slowly holds up another; a subscriber that
//! lags behind is told of everything that it subscribed to.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::model::ResourceUpdatedNotificationParam;
use rmcp::service::{Peer, RoleServer, SubscriptionContext};
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::session::{Owner, Sessions};
use super::spawn::resources::uri_of;
use crate::api::{Kind, SessionSpec, TurnSpec, Uid};
use crate::store::records::decode;
use crate::store::{Change, Record, SharedStore, Watch, keys};

/// Updates that a subscriber may lag behind; then it is told of everything at once.
const UPDATES_MAX: usize = 256;
/// Resources that one client may subscribe to.
pub(super) const SUBSCRIPTIONS_MAX: usize = 256;
/// Ended turns that are remembered as told: a record is written a few times after its end at most.
const TOLD_MAX: usize = 1024;
/// How often MCP sessions that nobody uses are looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// How long a client may take to be told; one that does not read holds up itself only.
const TELL_MAX: Duration = Duration::from_secs(5);
/// The pause before a store that failed is watched again.
const WATCH_AGAIN: Duration = Duration::from_secs(1);

/// What is told from a moment on.
pub(super) struct Coming(broadcast::Receiver<Uid>);

/// Tells updates to whoever subscribed.
pub(super) struct Updates {
    /// Sessions of which a turn ended.
    ended: broadcast::Sender<Uid>,
    tasks: TaskTracker,
    /// Who listens without an MCP session, and what ends that. As many as there are connections.
    listeners: Mutex<Vec<(Owner, CancellationToken)>>,
}

impl Updates {
    pub(super) fn new() -> Self {
        Self {
            ended: broadcast::channel(UPDATES_MAX).0,
            tasks: TaskTracker::new(),
            listeners: Mutex::default(),
        }
    }

    /// Tells a client of the revisions with sessions until its session ends.
    pub(super) fn forward(
        &self,
        subscribed: Arc<Subscribed>,
        peer: Peer<RoleServer>,
        closed: CancellationToken,
    ) {
        let updates = self.ended.subscribe();
        self.tasks.spawn(forward(updates, subscribed, peer, closed));
    }

    /// What is told from now on, for [`Self::listen`].
    pub(super) fn subscribe(&self) -> Coming {
        Coming(self.ended.subscribe())
    }

    /// Tells a client of 2026-07-28 until it goes, or its token.
    pub(super) async fn listen(
        &self,
        Coming(mut updates): Coming,
        context: &SubscriptionContext,
        sessions: &BTreeSet<Uid>,
        owner: &Owner,
        stop: &CancellationToken,
    ) {
        let gone = self.add_listener(owner);
        // Off the list when this ends, however it ends.
        let _listening = gone.clone().drop_guard();
        loop {
            // Cancel-safe: tokens, and a receiver's `recv`.
            let update = tokio::select! {
                biased;
                () = context.cancelled() => return,
                () = stop.cancelled() => return,
                () = gone.cancelled() => return,
                update = updates.recv() => update,
            };
            let due: Vec<&Uid> = match &update {
                Ok(session) => sessions.get(session).into_iter().collect(),
                Err(broadcast::error::RecvError::Lagged(_)) => sessions.iter().collect(),
                Err(broadcast::error::RecvError::Closed) => return,
            };
            for session in due {
                let told = context.sink().notify_resource_updated(uri_of(session));
                if !matches!(tokio::time::timeout(TELL_MAX, told).await, Ok(Ok(()))) {
                    return;
                }
            }
        }
    }
}

impl Updates {
    fn listeners(&self) -> MutexGuard<'_, Vec<(Owner, CancellationToken)>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add_listener(&self, owner: &Owner) -> CancellationToken {
        let gone = CancellationToken::new();
        let mut listeners = self.listeners();
        listeners.retain(|(_, gone)| !gone.is_cancelled());
        listeners.push((owner.clone(), gone.clone()));
        gone
    }

    fn has_listener(&self, is_meant: impl Fn(&Owner) -> bool) -> bool {
        self.listeners().iter().any(|(owner, gone)| !gone.is_cancelled() && is_meant(owner))
    }

    fn end_of(&self, is_gone: impl Fn(&Owner) -> bool) {
        for (_, gone) in self.listeners().iter().filter(|(owner, _)| is_gone(owner)) {
            gone.cancel();
        }
    }
}

/// What a client of the revisions with sessions subscribed to.
#[derive(Default)]
pub(super) struct Subscribed(Mutex<Subscriptions>);

#[derive(Default)]
struct Subscriptions {
    sessions: BTreeSet<Uid>,
    is_followed: bool,
}

/// What a subscription came to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Added {
    /// It is the first: somebody has to forward updates from now on.
    First,
    More,
    /// There are too many.
    Full,
}

impl Subscribed {
    pub(super) fn add(&self, session: Uid) -> Added {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if state.sessions.len() >= SUBSCRIPTIONS_MAX && !state.sessions.contains(&session) {
            return Added::Full;
        }
        state.sessions.insert(session);
        if std::mem::replace(&mut state.is_followed, true) { Added::More } else { Added::First }
    }

    pub(super) fn remove(&self, session: &Uid) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).sessions.remove(session);
    }

    fn due(&self, ended: &Uid) -> Option<Uid> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.sessions.get(ended).cloned()
    }

    fn all(&self) -> Vec<Uid> {
        let state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.sessions.iter().cloned().collect()
    }
}

async fn forward(
    mut updates: broadcast::Receiver<Uid>,
    subscribed: Arc<Subscribed>,
    peer: Peer<RoleServer>,
    closed: CancellationToken,
) {
    loop {
        // Cancel-safe: a token, and a receiver's `recv`.
        let update = tokio::select! {
            biased;
            () = closed.cancelled() => return,
            update = updates.recv() => update,
        };
        let due = match update {
            Ok(ended) => subscribed.due(&ended).into_iter().collect(),
            Err(broadcast::error::RecvError::Lagged(_)) => subscribed.all(),
            Err(broadcast::error::RecvError::Closed) => return,
        };
        for session in due {
            let notice = ResourceUpdatedNotificationParam::new(uri_of(&session));
            match tokio::time::timeout(TELL_MAX, peer.notify_resource_updated(notice)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::debug!(%error, "a subscriber is gone");
                    return;
                }
                Err(_) => tracing::debug!("a subscriber does not read what it is told"),
            }
        }
    }
}

/// Follows the store for the facade, until the daemon stops.
pub struct Service {
    pub(super) store: SharedStore,
    pub(super) sessions: Arc<Sessions>,
    pub(super) updates: Arc<Updates>,
}

impl Service {
    /// Runs until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        let mut told = Told::default();
        while !stop.is_cancelled() {
            if let Err(error) = self.follow(&mut told, &stop).await {
                tracing::warn!(%error, "MCP sessions do not follow the store");
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = tokio::time::sleep(WATCH_AGAIN) => {}
                }
            }
        }
        self.updates.end_of(|_| true);
        self.sessions.end_of(|_| true).await;
        self.updates.tasks.close();
        self.updates.tasks.wait().await;
    }

    /// Follows the store until the watch is lost.
    async fn follow(
        &self,
        told: &mut Told,
        stop: &CancellationToken,
    ) -> Result<(), crate::store::Error> {
        let head = self.store.head().await?;
        let mut turns = self.store.watch(&keys::kind_prefix(Kind::Turn), head).await?;
        let mut sessions = self.store.watch(&keys::kind_prefix(Kind::Session), head).await?;
        let sweep = tokio::time::sleep(SWEEP_EVERY);
        tokio::pin!(sweep);
        loop {
            // Cancel-safe: a token, watches, a timer.
            let is_lost = tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                change = next(&mut sessions) => match change {
                    Some(change) => { self.session_changed(&change).await; false }
                    None => true,
                },
                change = next(&mut turns) => match change {
                    Some(change) => { self.turn_changed(&change, told); false }
                    None => true,
                },
                () = &mut sweep => {
                    self.sessions.sweep().await;
                    sweep.set(tokio::time::sleep(SWEEP_EVERY));
                    false
                }
            };
            if is_lost {
                return Err(crate::store::Error::Unavailable("the watch was lost".to_owned()));
            }
        }
    }

    fn turn_changed(&self, change: &Change, told: &mut Told) {
        let Change::Put(record) = change else { return };
        if self.updates.ended.receiver_count() == 0 {
            return;
        }
        let Ok(turn) = decode::<TurnSpec>(&record.key, &record.value, record.rev) else { return };
        if !turn.status.phase.is_final() || !told.is_first(&turn.metadata.uid) {
            return;
        }
        for owner in turn.metadata.owner_references {
            // Nobody listens any more: then nobody is to be told.
            let _ = self.updates.ended.send(owner.uid);
        }
    }

    /// A caller whose record went, or whose token was revoked, loses its MCP sessions.
    async fn session_changed(&self, change: &Change) {
        let (key, record) = match change {
            Change::Put(record) => (&record.key, Some(record)),
            Change::Delete { key, .. } => (key, None),
            Change::Bookmark(_)
            | Change::Compacted { .. }
            | Change::Regressed { .. }
            | Change::Lost(_) => return,
        };
        let is_meant = |owner: &Owner| match owner {
            Owner::Caller { key: its, .. } => its == key,
            Owner::Operator => false,
        };
        if !self.sessions.has_owner(is_meant) && !self.updates.has_listener(is_meant) {
            return;
        }
        let tokens = record.and_then(tokens_of);
        let is_gone = |owner: &Owner| {
            let Owner::Caller { session, token, .. } = owner else { return false };
            is_meant(owner)
                && tokens.as_ref().is_none_or(|(uid, ids)| uid != session || !ids.contains(token))
        };
        self.updates.end_of(is_gone);
        self.sessions.end_of(is_gone).await;
    }
}

/// The uid of a session's record and the ids of its tokens.
fn tokens_of(record: &Record) -> Option<(Uid, Vec<String>)> {
    let session = decode::<SessionSpec>(&record.key, &record.value, record.rev).ok()?;
    let tokens = session.status.tokens.iter().map(|token| token.id.clone()).collect();
    Some((session.metadata.uid, tokens))
}

/// The next change of records; none once the watch has to be begun anew.
async fn next(watch: &mut Watch) -> Option<Change> {
    loop {
        match watch.next().await? {
            Change::Bookmark(_) => {}
            change @ (Change::Put(_) | Change::Delete { .. }) => return Some(change),
            Change::Compacted { .. } | Change::Regressed { .. } | Change::Lost(_) => return None,
        }
    }
}

/// The turns that were told of last.
#[derive(Default)]
struct Told(VecDeque<Uid>);

impl Told {
    fn is_first(&mut self, turn: &Uid) -> bool {
        if self.0.contains(turn) {
            return false;
        }
        if self.0.len() >= TOLD_MAX {
            self.0.pop_front();
        }
        self.0.push_back(turn.clone());
        true
    }
}
