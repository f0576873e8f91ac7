//! Idempotency keys outlive what they made: a request that is repeated a day later must be known,
//! even if its turn or child was deleted since.
//!
//! While the record is there, its key points at it. When the record goes before the key is
//! [`KEPT`] old, a mark takes the pointer's place, and an entry sorted by time says when the mark
//! may go. Marks that are past their time go by and by, some with each key that is looked up in
//! vain, so that there is no clock for them; and all at a start of the daemon.

use std::any::Any;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::index::session_of;
use super::{Error, Records, Txn, idempotency_key, key_in, spawn_key};
use crate::api::turn::Delivery;
use crate::api::{Name, Object, Session, Spec, Time, Turn, Uid};
use crate::store::{COMMIT_OPS_MAX, Guard, Key, Record, keys};

/// How long a key is known at least, from its request on.
pub(super) const KEPT: Duration = Duration::from_secs(24 * 3600);

/// How many marks go in one commit: each is two operations.
const FREED_MAX: usize = COMMIT_OPS_MAX / 2;

/// What is left of an idempotency key whose turn or child is gone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Spent {
    /// The record's uid.
    pub uid: Uid,
    /// Its name.
    pub name: Name,
    /// The session that was made, or the one of the turn that was made.
    pub session: Uid,
    /// What the key was used with, SHA-256, where that was recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_sha256: Option<String>,
    /// Until when the key is not free.
    pub until: Time,
}

impl Spent {
    /// What a record that goes at `now` leaves behind, and under which key.
    pub(super) fn of<S: Spec>(object: &Object<S>, now: Time) -> Option<(Key, Self)> {
        let metadata = &object.metadata;
        let any: &dyn Any = object;
        let (key, session, request_sha256) = if let Some(turn) = any.downcast_ref::<Turn>() {
            let session = session_of(metadata)?.clone();
            if turn.status.delivery == Delivery::NotSent && turn.status.phase.is_final() {
                // Nobody was given anything: a repetition gives it for the first time.
                return None;
            }
            (idempotency_key(turn)?, session, turn.spec.source.request_sha256.clone())
        } else {
            let session = any.downcast_ref::<Session>()?;
            let used_with = session.status.lineage.spawn_key.as_ref()?.request_sha256.clone();
            (spawn_key(session)?, metadata.uid.clone(), Some(used_with))
        };
        let until = metadata.creation_timestamp?.plus(KEPT);
        let (uid, name) = (metadata.uid.clone(), metadata.name.clone());
        let spent = Self { uid, name, session, request_sha256, until };
        (until > now).then_some((key, spent))
    }

    /// Where it stands among those that are to be forgotten.
    pub(super) fn forgotten_at(&self) -> Key {
        keys::spent(self.until.as_millis(), &self.uid)
    }
}

/// What an idempotency key stands for.
#[derive(Clone, Debug, PartialEq)]
pub enum Keyed<S: Spec> {
    /// Nothing: it is free.
    Unused,
    /// What it made.
    Made(Box<Object<S>>),
    /// What it made is gone.
    Spent(Spent),
}

impl Records {
    /// What an idempotency key stands for at `now`. A key that is found free takes marks along that
    /// are past their time.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn keyed<S: Spec>(&self, key: &Key, now: Time) -> Result<Keyed<S>, Error> {
        if let Some(record) = self.store.get(key).await? {
            // A pointer is a record's key, which begins with a slash.
            if record.value.starts_with(b"/") {
                // It may have gone since: whoever writes with this key guards it, and is told.
                let made = self.at(&key_in(&record)?).await?;
                return Ok(made.map_or(Keyed::Unused, |made| Keyed::Made(Box::new(made))));
            }
            let spent: Spent = serde_json::from_slice(&record.value)
                .map_err(|error| Error::Decode { key: key.clone(), message: error.to_string() })?;
            if spent.until > now {
                return Ok(Keyed::Spent(spent));
            }
            self.free_key(&spent).await?;
        }
        self.free_spent(now).await?;
        Ok(Keyed::Unused)
    }

    /// Forgets a spent key before its time.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn free_key(&self, spent: &Spent) -> Result<(), Error> {
        let mark = self.store.get(&spent.forgotten_at()).await?;
        self.forget(mark.as_slice()).await
    }

    /// Forgets some of the keys that are past their time, oldest first; says how many.
    ///
    /// # Errors
    ///
    /// See [`Self::get`].
    pub async fn free_spent(&self, now: Time) -> Result<usize, Error> {
        let (marks, _) = self.store.list(keys::SPENT, None, FREED_MAX).await?;
        let end = keys::spent_by(now.as_millis());
        let over = marks.iter().take_while(|mark| mark.key < end).count();
        self.forget(&marks[..over]).await?;
        Ok(over)
    }

    /// Removes keys and their marks, which come and go together.
    async fn forget(&self, marks: &[Record]) -> Result<(), Error> {
        if marks.is_empty() {
            return Ok(());
        }
        let mut txn = Txn::new();
        for mark in marks {
            txn = txn
                .guard(Guard::RevIs(mark.key.clone(), mark.rev))
                .delete_raw(key_in(mark)?)
                .delete_raw(mark.key.clone());
        }
        match txn.commit(self.store.as_ref()).await {
            Err(error) if !error.is_conflict() => Err(error),
            // Or somebody else forgot them in the same moment.
            Ok(_) | Err(_) => Ok(()),
        }
    }
}
