//! From changes in the store to keys in the queue: the watch, the boot and the backstops.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::api::report::Trigger;
use crate::api::{
    Kind, Name, Namespace, PermissionRequestSpec, Session, SessionSpec, TurnSpec, Uid,
};
use crate::plan::holds_slot;
use crate::store::records::{self, decode};
use crate::store::uids::is_after;
use crate::store::{Change, Key, Rev, Watch, keys};

use super::requests::asked_by;
use super::{Controller, ObjectKey, RESYNC_EVERY, lock};

/// Pause before a lost watch is begun anew.
const WATCH_AGAIN: Duration = Duration::from_millis(200);

/// Follows everything that a session's world is made of, until told to stop.
pub(super) async fn follow(controller: Arc<Controller>, from: Rev, stop: CancellationToken) {
    let kinds = [
        Kind::Session,
        Kind::Turn,
        Kind::PermissionRequest,
        Kind::Agent,
        Kind::Workspace,
        Kind::Role,
    ];
    let follows = kinds.map(|kind| follow_kind(&controller, kind, from));
    tokio::select! {
        _ = futures::future::join_all(follows) => {}
        () = stop.cancelled() => {}
    }
}

async fn follow_kind(controller: &Controller, kind: Kind, from: Rev) {
    let mut seen = from;
    loop {
        match controller.records.store().watch(&keys::kind_prefix(kind), seen).await {
            Ok(watch) => {
                if !follow_watch(controller, kind, watch, &mut seen).await {
                    return;
                }
            }
            Err(error) => tracing::warn!(%kind, %error, "a watch could not be begun"),
        }
        seen = catch_up(controller).await;
    }
}

/// What happened since a watch was lost may be past the store's memory: everything is looked at
/// instead, however often the store has to be asked. Tells the revision to go on from; it lies
/// before the one seen last if the store was put back to an older state.
async fn catch_up(controller: &Controller) -> Rev {
    loop {
        tokio::time::sleep(WATCH_AGAIN).await;
        // First the revision, then the look: what changes in between comes twice.
        let head = match controller.records.store().head().await {
            Ok(head) => head,
            Err(error) => {
                tracing::warn!(%error, "the store's revision could not be read");
                continue;
            }
        };
        if let Err(error) = controller.agents.look_at_all(Trigger::Resync).await {
            tracing::warn!(%error, "the agents could not be read");
            continue;
        }
        if controller.resync().await {
            return head;
        }
    }
}

/// Follows one watch to its end. `false`: the store was closed.
async fn follow_watch(
    controller: &Controller,
    kind: Kind,
    mut watch: Watch,
    seen: &mut Rev,
) -> bool {
    loop {
        match watch.next().await {
            None => return false,
            Some(Change::Put(record)) => {
                *seen = record.rev;
                controller.changed(kind, &record.key, &record.value, false).await;
            }
            Some(Change::Delete { key, last, rev }) => {
                *seen = rev;
                controller.changed(kind, &key, &last, true).await;
            }
            Some(Change::Bookmark(rev)) => *seen = rev,
            Some(Change::Lost(why)) => {
                tracing::warn!(%kind, why, "a watch was lost");
                return true;
            }
            Some(Change::Compacted { .. } | Change::Regressed { .. }) => return true,
        }
    }
}

/// `/<kind>/<namespace>/<name>` as an object's key.
pub(super) fn object_key(key: &Key) -> Option<ObjectKey> {
    let mut parts = key.as_str().splitn(4, '/').skip(2);
    let (namespace, name) = (parts.next()?, parts.next()?);
    Some(ObjectKey { namespace: Namespace::from(namespace), name: Name::from(name) })
}

impl Controller {
    /// A record changed: whose world is it part of?
    async fn changed(&self, kind: Kind, key: &Key, value: &[u8], is_gone: bool) {
        match kind {
            Kind::Session => {
                if let Some(key) = object_key(key) {
                    self.queue.add(key, Trigger::Watch);
                }
                match decode::<SessionSpec>(key, value, Rev::default()) {
                    Ok(session) => self.session_changed(&session, is_gone).await,
                    Err(error) => tracing::error!(%key, %error, "a session cannot be read"),
                }
            }
            Kind::Turn => match decode::<TurnSpec>(key, value, Rev::default()) {
                Ok(turn) => {
                    self.notice_owed(&turn).await;
                    let key =
                        ObjectKey { namespace: turn.metadata.namespace, name: turn.spec.session };
                    self.queue.add(key, Trigger::Watch);
                }
                Err(error) => tracing::error!(%key, %error, "a turn cannot be read"),
            },
            Kind::PermissionRequest => {
                match decode::<PermissionRequestSpec>(key, value, Rev::default()) {
                    Ok(request) => self.queue.add(asked_by(&request), Trigger::Watch),
                    Err(error) => tracing::error!(%key, %error, "a request cannot be read"),
                }
            }
            Kind::Agent | Kind::Workspace | Kind::Role => {
                let Some(object) = object_key(key) else { return };
                if kind == Kind::Agent {
                    self.agents.changed(object.name.clone());
                }
                let prefix = keys::waiting_for_prefix(kind, &object.namespace, &object.name);
                match self.records.pointed_at(&prefix).await {
                    Ok(waiting) => self.add_all(&waiting, Trigger::Watch),
                    Err(error) => tracing::warn!(%error, "who waits for {key} could not be read"),
                }
            }
            Kind::Event | Kind::Namespace => {}
        }
    }

    /// A session changed: its parent may wait for its end. The other way round a parent that ends
    /// wakes its children in its own pass; only one that is gone before them has none.
    async fn session_changed(&self, session: &Session, is_gone: bool) {
        let ends = is_gone || session.status.end.is_some() || session.metadata.is_deleting();
        // A child that was let go is none any more; its parent waited for that too.
        let was_let_go = session.status.lineage.parent.is_none();
        if let Some(parent) = session.spec.parent.as_deref().filter(|_| ends || was_let_go) {
            let namespace = session.metadata.namespace.clone();
            self.queue.add(ObjectKey { namespace, name: Name::from(parent) }, Trigger::Watch);
        }
        if is_gone {
            self.add_children(&session.metadata.uid).await;
        }
    }

    /// The children of a session that is gone look at their world. There are none unless the store
    /// was put back to an older state.
    async fn add_children(&self, parent: &Uid) {
        match self.records.pointed_at(&keys::children_of(parent)).await {
            Ok(children) => self.add_all(&children, Trigger::Watch),
            Err(error) => tracing::warn!(%parent, %error, "children could not be read"),
        }
    }

    fn add_all(&self, keys: &[Key], trigger: Trigger) {
        for key in keys.iter().filter_map(object_key) {
            self.queue.add(key, trigger);
        }
    }

    /// Queues everything that is not at rest, and gives back the revision to follow from.
    pub(super) async fn boot(&self) -> Result<Rev, records::Error> {
        // First the revision, then the list: what changes in between comes twice, never not at all.
        let rev = self.records.store().head().await?;
        let mut awake = self.sessions_at(keys::AWAKE).await?;
        awake.extend(self.asking_sessions().await?);
        awake.extend(self.sessions_with_notices().await?);
        awake.extend(self.roots_untold().await?);
        if awake.is_empty() {
            self.booted.send_replace(true);
        }
        lock(&self.booting).extend(awake.iter().cloned());
        for key in awake {
            self.queue.add(key, Trigger::Boot);
        }
        self.free_what_nobody_holds().await?;
        if self.is_clock_set_back().await? {
            self.look_at_deadlines().await?;
        }
        self.schedule_deadlines().await?;
        Ok(rev)
    }

    /// Slots whose turn is gone, final or waits without one are given back: no pass would do it. The
    /// others' sessions are looked at.
    async fn free_what_nobody_holds(&self) -> Result<(), records::Error> {
        let mut slots = self.slots.lock().await;
        let mut gone = Vec::new();
        for holder in slots.holders() {
            match self.records.by_uid::<TurnSpec>(&holder.turn).await? {
                Some(turn) if holds_slot(&turn) => {
                    let key =
                        ObjectKey { namespace: turn.metadata.namespace, name: turn.spec.session };
                    self.queue.add(key, Trigger::Boot);
                }
                Some(_) | None => gone.push(holder.turn.clone()),
            }
        }
        if let Some(holders) = slots.without(&gone) {
            tracing::warn!(turns = gone.len(), "slots were held by turns that have ended");
            self.write_holders(&mut slots, holders).await?;
        }
        Ok(())
    }

    /// The backstop: everything that is not at rest is looked at, and the deadlines of the next
    /// minutes are set. `false`: the store could not be read.
    pub(super) async fn resync(&self) -> bool {
        self.reporter.prune();
        // One after the other: the first that cannot be read ends it.
        self.look_again(self.sessions_at(keys::AWAKE).await, "what is awake")
            && self.look_again(self.sessions_with_notices().await, "who is to be told")
            && self.look_again(self.roots_untold().await, "which sums are not shown")
            && self
                .look_again(self.schedule_deadlines().await.map(|()| Vec::new()), "the deadlines")
    }

    /// Queues what the resync has read; `false`, and a line in the log, if it could not.
    fn look_again(&self, read: Result<Vec<ObjectKey>, records::Error>, what: &str) -> bool {
        match read {
            Ok(found) => {
                found.into_iter().for_each(|key| self.queue.add(key, Trigger::Resync));
                true
            }
            Err(error) => {
                tracing::warn!(%error, "the resync could not read {what}");
                false
            }
        }
    }

    /// The sessions that records of the store point at.
    pub(super) async fn sessions_at(&self, prefix: &str) -> Result<Vec<ObjectKey>, records::Error> {
        let found = self.records.pointed_at(prefix).await?;
        Ok(found.iter().filter_map(object_key).collect())
    }

    /// Whether an earlier daemon's wall clock was ahead of this one's: it made something, or something
    /// ended, when this one's has yet to come to. All that has a deadline at rest has it from either.
    async fn is_clock_set_back(&self) -> Result<bool, records::Error> {
        let now = self.clock.now().time;
        let is_made_ahead = self.records.newest_uid().await?.is_some_and(|uid| is_after(&uid, now));
        Ok(is_made_ahead || self.records.newest_end().await?.is_some_and(|end| end > now))
    }

    /// Queues everything that has a deadline, however far ahead: it was told by another clock.
    async fn look_at_deadlines(&self) -> Result<(), records::Error> {
        for key in self.sessions_at(keys::DEADLINES).await? {
            self.queue.add(key, Trigger::Boot);
        }
        Ok(())
    }

    /// Sets a timer for every deadline until the resync after the next. Sessions at rest have no
    /// other: they cost nothing until then.
    async fn schedule_deadlines(&self) -> Result<(), records::Error> {
        let now = self.clock.now().time;
        let horizon = now.plus(RESYNC_EVERY * 2);
        let walked = self.records.walk(keys::DEADLINES, |record| {
            let at = keys::time_in(&record.key, keys::DEADLINES);
            let Some(at) = at.filter(|&at| at <= horizon) else { return ControlFlow::Break(()) };
            let target = std::str::from_utf8(&record.value).ok().map(Key::new);
            if let Some(key) = target.as_ref().and_then(object_key) {
                self.queue.add_after(key, at.since(now), Trigger::Timer);
            }
            ControlFlow::Continue(())
        });
        Ok(walked.await?)
    }

    /// The daemon stops: every session with a process is looked at now.
    pub(super) fn look_at_all_processes(&self) {
        for key in self.registry.keys() {
            self.queue.add(key, Trigger::Process);
        }
    }
}
