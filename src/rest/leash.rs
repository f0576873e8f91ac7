//! What a watch of a caller may tell, and for how long; transcripts that are followed end by the same.
//!
//! A caller's children change while it watches. Whether a change is the caller's to see is judged for
//! each change, before any selector: a session by its own lineage, a turn or a request by the session
//! that owns it. What is foreign is passed over as if it had not happened, also its end. What ceases
//! to be the caller's is told as deleted once, by name alone.
//!
//! Invariants: of a foreign record nothing gets out, not even that it cannot be read; a watch ends
//! when its token opens nothing any more. Absent: the end of a child that was let go between the list
//! and the watch; only a parent that is being deleted lets go, and its tokens go with it.

use std::collections::HashSet;
use std::pin::Pin;

use serde_json::{Value, json};
use tokio::time::Sleep;

use super::State;
use super::read::object_of;
use super::sight::Sight;
use super::status::Failure;
use crate::admission::Bearer;
use crate::api::{Kind, SessionSpec, Uid};
use crate::store::records::decode;
use crate::store::{Change, Key, Record, SharedStore, Watch, keys};

/// What a change is to the one who watches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Glance {
    /// It is theirs to see.
    Seen,
    /// It was theirs, and is not any more.
    Ceased,
    /// It is foreign.
    Foreign,
    /// It is the caller's own record, and its token opens nothing any more.
    Ended,
}

/// The bounds of one caller's watch.
pub(super) struct Leash {
    store: SharedStore,
    bearer: Bearer,
    children: HashSet<Uid>,
    /// What the client may hold: these were theirs to see.
    held: HashSet<Key>,
    /// The caller's own record.
    own: Option<Watch>,
    expiry: Option<Pin<Box<Sleep>>>,
}

impl Leash {
    /// The bounds of a watch; none for who sees everything.
    ///
    /// # Errors
    ///
    /// The store's; 401 if the token was revoked a moment ago.
    pub(super) async fn of(state: &State, sight: &Sight) -> Result<Option<Self>, Failure> {
        let Sight::Own { bearer, children } = sight else { return Ok(None) };
        let caller = &bearer.caller;
        let key = keys::record(Kind::Session, &caller.namespace, &caller.name);
        let store = state.store.clone();
        let record = store.get(&key).await?.ok_or_else(Failure::unauthorized)?;
        if !opens(bearer, &record.key, &record.value) {
            return Err(Failure::unauthorized());
        }
        let own = store.watch(key.as_str(), record.rev).await?;
        let session = decode::<SessionSpec>(&key, &record.value, record.rev).ok();
        let tokens = session.map(|session| session.status.tokens).unwrap_or_default();
        let token = tokens.into_iter().find(|token| token.id == bearer.id);
        let left = token.and_then(|token| token.expires_at);
        let left = left.map(|at| at.since(state.clock.now().time));
        Ok(Some(Self {
            store,
            bearer: (**bearer).clone(),
            children: children.clone(),
            held: HashSet::new(),
            own: Some(own),
            expiry: left.map(|left| Box::pin(tokio::time::sleep(left))),
        }))
    }

    /// Waits until the token opens nothing any more.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub(super) async fn ended(&mut self) {
        loop {
            let Some(own) = &mut self.own else { return };
            let change = tokio::select! {
                () = due(&mut self.expiry) => return,
                change = own.next() => change,
            };
            match change {
                Some(Change::Put(record)) if opens(&self.bearer, &record.key, &record.value) => {}
                // A key that begins with this one's text is another session's.
                Some(Change::Put(record)) if !self.is_own(&record.key) => {}
                Some(Change::Delete { key, .. }) if !self.is_own(&key) => {}
                Some(Change::Bookmark(_)) => {}
                // Gone, or nobody can say: the client asks again, and hears.
                Some(_) | None => self.own = None,
            }
        }
    }

    fn is_own(&self, key: &Key) -> bool {
        let caller = &self.bearer.caller;
        *key == keys::record(Kind::Session, &caller.namespace, &caller.name)
    }

    /// What the client holds already: it listed before, and watches from there.
    pub(super) async fn seed(&mut self, kind: Kind, record: &Record) -> Result<(), Failure> {
        if let Ok(object) = object_of(record)
            && self.sees(kind, &object).await?
        {
            self.held.insert(record.key.clone());
        }
        Ok(())
    }

    /// Judges a change of a record.
    ///
    /// # Errors
    ///
    /// The store's: nothing may be told then.
    pub(super) async fn judge(
        &mut self,
        kind: Kind,
        key: &Key,
        object: &Value,
        is_gone: bool,
    ) -> Result<Glance, Failure> {
        if kind == Kind::Session
            && self.is_own(key)
            && (is_gone || !self.still_opens(object))
            && !self.opens_now().await?
        {
            // Its own watch would tell the same in a moment.
            return Ok(Glance::Ended);
        }
        let sees = self.sees(kind, object).await?;
        let was_held =
            if sees && !is_gone { !self.held.insert(key.clone()) } else { self.held.remove(key) };
        Ok(match (sees, was_held) {
            (true, _) => Glance::Seen,
            (false, true) => Glance::Ceased,
            (false, false) => Glance::Foreign,
        })
    }

    /// Whether the token is good by the record as it is now. A watch from an older revision is told
    /// of records that do not know the token yet, also of a former session of the same name.
    async fn opens_now(&self) -> Result<bool, Failure> {
        let caller = &self.bearer.caller;
        let key = keys::record(Kind::Session, &caller.namespace, &caller.name);
        let record = self.store.get(&key).await?;
        Ok(record.is_some_and(|record| opens(&self.bearer, &record.key, &record.value)))
    }

    /// The same as [`opens`], of a record that is decoded already.
    fn still_opens(&self, own: &Value) -> bool {
        let uid = own.pointer("/metadata/uid").and_then(Value::as_str);
        let run = own.pointer("/status/incarnation");
        let tokens = own.pointer("/status/tokens").and_then(Value::as_array);
        let is_good = |token: &Value| {
            token["id"] == self.bearer.id.as_str()
                && token.get("incarnation").is_none_or(|made_for| Some(made_for) == run)
        };
        uid == Some(self.bearer.caller.session.as_str())
            && tokens.is_some_and(|tokens| tokens.iter().any(is_good))
    }

    async fn sees(&mut self, kind: Kind, object: &Value) -> Result<bool, Failure> {
        let own = &self.bearer.caller.session;
        let uid = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).map(Uid::from);
        match kind {
            Kind::Session => Ok(uid("/metadata/uid").as_ref() == Some(own)
                || uid("/status/lineage/parent").as_ref() == Some(own)),
            Kind::Turn | Kind::PermissionRequest => match uid("/metadata/ownerReferences/0/uid") {
                Some(owner) => self.is_child(owner).await,
                None => Ok(false),
            },
            Kind::Agent | Kind::Workspace | Kind::Role | Kind::Namespace | Kind::Event => Ok(false),
        }
    }

    /// Whether a session is the caller's child now, or was one until its end.
    async fn is_child(&mut self, session: Uid) -> Result<bool, Failure> {
        let parent = &self.bearer.caller.session;
        if self.store.get(&keys::child_of(parent, &session)).await?.is_some() {
            self.children.insert(session);
            return Ok(true);
        }
        if self.children.contains(&session) && self.store.get(&keys::uid(&session)).await?.is_some()
        {
            // It was let go.
            self.children.remove(&session);
        }
        // A child that is gone: the end of what it owned is still to be told.
        Ok(self.children.contains(&session))
    }
}

/// Ends when what a caller was opened has to; never, if it is an operator's.
///
/// # Cancel safety
///
/// Nothing is lost if the future is dropped.
pub(super) async fn ended(leash: &mut Option<Leash>) {
    match leash {
        Some(leash) => leash.ended().await,
        None => std::future::pending().await,
    }
}

/// Whether a caller's record says that its token is good.
fn opens(bearer: &Bearer, key: &Key, value: &[u8]) -> bool {
    let Ok(session) = decode::<SessionSpec>(key, value, crate::store::Rev::default()) else {
        return false;
    };
    session.metadata.uid == bearer.caller.session
        && session.status.tokens.iter().any(|token| {
            token.id == bearer.id
                && token.incarnation.is_none_or(|run| run == session.status.incarnation)
        })
}

/// What is told of something that ceased to be the caller's.
pub(super) fn stub(object: &Value) -> Value {
    let metadata = |name: &str| object.pointer(&format!("/metadata/{name}")).cloned();
    json!({
        "apiVersion": object["apiVersion"],
        "kind": object["kind"],
        "metadata": {
            "name": metadata("name"),
            "namespace": metadata("namespace"),
            "uid": metadata("uid"),
            "resourceVersion": metadata("resourceVersion"),
        },
    })
}

/// Ends when a timer does; never, if there is none.
pub(super) async fn due(timer: &mut Option<Pin<Box<Sleep>>>) {
    match timer {
        Some(timer) => timer.as_mut().await,
        None => std::future::pending().await,
    }
}
