//! Watches: each reads what it has not told yet, from memory if it is recent, else from `history`.
//!
//! A watch pulls; nobody pushes to it. So there is no gap and no repetition between replay and
//! live changes (both are "what is after my cursor"), and a slow watcher holds up nobody: its
//! channel fills, its cursor stands still, and later it catches up from `history`, or is told
//! `Compacted` if that was forgotten meanwhile.
//!
//! Invariants: a watch tells whole revisions, in order, each once; it never waits for the writer
//! nor the writer for it.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use rusqlite::{Connection, params};
use tokio::sync::{mpsc, watch};

use super::reader::Readers;
use super::schema::{self, PLACE_BITS, signed, unsigned};
use crate::store::{Change, Error, Key, Record, Rev};

/// How many changes wait in a watch's channel: one busy commit, and the next one while it is read.
pub(super) const WATCH_CHANGES_MAX: usize = 128;
/// How many revisions are kept in memory: what a watcher that is a second late has missed.
const RECENT_REVISIONS_MAX: usize = 1024;
/// How many bytes of values are kept in memory, in all.
const RECENT_BYTES_MAX: usize = 4 * 1024 * 1024;
/// After how many bytes a replay hands over what it has, at the end of a revision.
const REPLAY_BYTES: usize = 1024 * 1024;
/// A watch whose prefix is quiet tells how far it is after this many revisions, so that it can
/// start anew without listing.
const BOOKMARK_REVISIONS: u64 = 256;

/// All changes of one revision.
#[derive(Clone)]
pub(super) struct Revision {
    pub(super) rev: Rev,
    pub(super) changes: Arc<[Change]>,
}

/// What the writer made known, and the newest of it in memory.
pub(super) struct Feed {
    recent: Mutex<Recent>,
    head: watch::Sender<Rev>,
}

struct Recent {
    revisions: VecDeque<Revision>,
    /// Every revision after this one is in `revisions`.
    after: Rev,
    bytes: usize,
}

impl Feed {
    /// A feed that starts after what is stored.
    pub(super) fn new(head: Rev) -> Self {
        let recent = Recent { revisions: VecDeque::new(), after: head, bytes: 0 };
        Self { recent: Mutex::new(recent), head: watch::Sender::new(head) }
    }

    /// Makes durable revisions known. They follow each other and what was made known before.
    pub(super) fn publish(&self, revisions: Vec<Revision>) {
        let Some(last) = revisions.last().map(|revision| revision.rev) else { return };
        {
            let mut recent = self.lock();
            for revision in revisions {
                recent.bytes += size(&revision);
                recent.revisions.push_back(revision);
            }
            while recent.revisions.len() > RECENT_REVISIONS_MAX || recent.bytes > RECENT_BYTES_MAX {
                let Some(oldest) = recent.revisions.pop_front() else { break };
                recent.bytes -= size(&oldest);
                recent.after = oldest.rev;
            }
        }
        self.head.send_replace(last);
    }

    /// Forgets what is in memory: after a reset only the tables know.
    pub(super) fn restart(&self, head: Rev) {
        *self.lock() = Recent { revisions: VecDeque::new(), after: head, bytes: 0 };
        self.head.send_replace(head);
    }

    /// Everything after a revision, if memory holds all of it.
    fn since(&self, cursor: Rev) -> Option<Vec<Revision>> {
        let recent = self.lock();
        if cursor < recent.after {
            return None;
        }
        Some(recent.revisions.iter().filter(|revision| revision.rev > cursor).cloned().collect())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Recent> {
        // A panic while it is held could only come from an allocation; the list is whole then.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn size(revision: &Revision) -> usize {
    revision.changes.iter().map(change_bytes).sum()
}

fn change_bytes(change: &Change) -> usize {
    match change {
        Change::Put(record) => record.value.len() + record.key.as_str().len(),
        Change::Delete { key, last, .. } => last.len() + key.as_str().len(),
        Change::Bookmark(_)
        | Change::Compacted { .. }
        | Change::Regressed { .. }
        | Change::Lost(_) => 0,
    }
}

/// What the tables say about a start.
enum Replay {
    Revisions(Vec<Revision>, Rev),
    Compacted(Rev),
    Regressed(Rev),
}

/// Serves one watch until its receiver is dropped or it ends with a reason.
pub(super) async fn serve(
    feed: Arc<Feed>,
    readers: Arc<Readers>,
    prefix: String,
    after: Rev,
    changes: mpsc::Sender<Change>,
) {
    let mut head = feed.head.subscribe();
    let mut teller = Teller { prefix, changes, told: None };
    let mut cursor = after;
    let mut is_replayed = false;
    loop {
        let newest = *head.borrow_and_update();
        while cursor < newest || !is_replayed {
            let recent = if is_replayed { feed.since(cursor) } else { None };
            let revisions = match recent {
                Some(revisions) => {
                    cursor = revisions.last().map_or(newest, |last| last.rev).max(cursor);
                    revisions
                }
                None => match replay(&readers, cursor).await {
                    Ok(Replay::Revisions(revisions, upto)) => {
                        is_replayed = true;
                        cursor = upto;
                        revisions
                    }
                    Ok(Replay::Compacted(oldest)) => {
                        return teller.end(Change::Compacted { oldest }).await;
                    }
                    Ok(Replay::Regressed(head)) => {
                        return teller.end(Change::Regressed { head }).await;
                    }
                    Err(error) => return teller.end(Change::Lost(error.to_string())).await,
                },
            };
            if !teller.tell(revisions).await {
                return;
            }
        }
        if !teller.bookmark(cursor).await {
            return;
        }
        tokio::select! {
            biased;
            // Cancel-safe: it only waits.
            () = teller.changes.closed() => return,
            // Cancel-safe: the change stays unseen until `borrow_and_update`.
            changed = head.changed() => if changed.is_err() { return },
        }
    }
}

struct Teller {
    prefix: String,
    changes: mpsc::Sender<Change>,
    /// The newest revision that the receiver has heard of, once it was told the first bookmark.
    told: Option<Rev>,
}

impl Teller {
    /// Sends what has the prefix. `false`: nobody listens any more.
    async fn tell(&mut self, revisions: Vec<Revision>) -> bool {
        for revision in revisions {
            for change in revision.changes.iter() {
                let key = match change {
                    Change::Put(record) => &record.key,
                    Change::Delete { key, .. } => key,
                    Change::Bookmark(_)
                    | Change::Compacted { .. }
                    | Change::Regressed { .. }
                    | Change::Lost(_) => continue,
                };
                if !key.as_str().starts_with(&self.prefix) {
                    continue;
                }
                if let Some(told) = &mut self.told {
                    *told = revision.rev;
                }
                if self.changes.send(change.clone()).await.is_err() {
                    return false;
                }
            }
        }
        true
    }

    /// Tells how far the watch is: at the end of its first replay, and after a long quiet.
    async fn bookmark(&mut self, cursor: Rev) -> bool {
        if self.told.is_some_and(|told| cursor.0.saturating_sub(told.0) < BOOKMARK_REVISIONS) {
            return true;
        }
        self.told = Some(cursor);
        self.changes.send(Change::Bookmark(cursor)).await.is_ok()
    }

    async fn end(self, reason: Change) {
        // Nobody may be listening any more, and that is an end as well.
        let _ = self.changes.send(reason).await;
    }
}

async fn replay(readers: &Arc<Readers>, after: Rev) -> Result<Replay, Error> {
    readers.run(move |connection| read(connection, after)).await
}

fn read(connection: &mut Connection, after: Rev) -> rusqlite::Result<Replay> {
    let snapshot = connection.transaction()?;
    let head = schema::head(&snapshot)?;
    let oldest = schema::oldest(&snapshot)?;
    if after.0 > head {
        return Ok(Replay::Regressed(Rev(head)));
    }
    if after.0 < oldest {
        return Ok(Replay::Compacted(Rev(oldest)));
    }
    let mut revisions = Vec::new();
    let mut upto = Rev(head);
    {
        let sql = "SELECT id, key, value, create_rev FROM history WHERE id >= ?1 ORDER BY id";
        let mut statement = snapshot.prepare_cached(sql)?;
        let mut rows = statement.query(params![signed((after.0 + 1) << PLACE_BITS)?])?;
        let mut current: Vec<Change> = Vec::new();
        let mut rev = after;
        let mut bytes = 0;
        while let Some(row) = rows.next()? {
            let row_rev = Rev(unsigned(0, row.get(0)?)? >> PLACE_BITS);
            if row_rev != rev {
                flush(&mut revisions, rev, &mut current);
                if bytes > REPLAY_BYTES {
                    upto = rev;
                    break;
                }
                rev = row_rev;
            }
            let change = change(row, row_rev)?;
            bytes += change_bytes(&change);
            current.push(change);
        }
        flush(&mut revisions, rev, &mut current);
    }
    snapshot.finish()?;
    Ok(Replay::Revisions(revisions, upto))
}

fn flush(revisions: &mut Vec<Revision>, rev: Rev, changes: &mut Vec<Change>) {
    if !changes.is_empty() {
        revisions.push(Revision { rev, changes: std::mem::take(changes).into() });
    }
}

/// A history row. One without a creation is a removal, and its value is what was removed.
fn change(row: &rusqlite::Row<'_>, rev: Rev) -> rusqlite::Result<Change> {
    let key = Key::new(row.get::<_, String>(1)?);
    let value = Bytes::from(row.get::<_, Vec<u8>>(2)?);
    Ok(match row.get::<_, Option<i64>>(3)? {
        Some(create_rev) => {
            Change::Put(Record { key, value, rev, create_rev: Rev(unsigned(3, create_rev)?) })
        }
        None => Change::Delete { key, last: value, rev },
    })
}
