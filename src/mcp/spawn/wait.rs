//! Waiting for a turn: on the store's watch of its record, never by asking again and again.

use std::time::Duration;

use crate::api::{Turn, TurnSpec};
use crate::mcp::Shared;
use crate::mcp::call::{Call, Ending};
use crate::mcp::failure::Failure;
use crate::store::records::{decode, key_of, parse_revision};
use crate::store::{Change, Key, Rev, Watch};

/// How a wait ended. The turn is as it was seen last.
#[derive(Debug)]
pub(super) enum Waited {
    /// It is as was waited for.
    Settled(Box<Turn>),
    /// The call has waited long enough, or nobody waits for its answer any more.
    GoesOn(Box<Turn>),
    /// The client cancelled the call.
    Cancelled(Box<Turn>),
    /// The record was deleted.
    Gone,
}

/// Waits until a turn is as `is_settled` says, at most `mcp.maxWait`, and tells of progress.
pub(super) async fn until(
    shared: &Shared,
    call: &Call,
    turn: Turn,
    is_settled: impl Fn(&Turn) -> bool,
) -> Result<Waited, Failure> {
    let mut seen = Seen::new(shared, turn).await?;
    let max_wait = shared.options.max_wait;
    let over = tokio::time::sleep(max_wait);
    let progress = tokio::time::sleep(shared.options.progress_every);
    tokio::pin!(over, progress);
    let mut told = 0;
    loop {
        if is_settled(&seen.turn) {
            return Ok(Waited::Settled(seen.into_turn()));
        }
        // Cancel-safe: tokens, a watch's `next` and timers. A cancel comes first, so that a call
        // that was cancelled before it could wait is not answered as one that was not.
        tokio::select! {
            biased;
            ending = call.ended() => return Ok(match ending {
                // The daemon itself ends calls when it stops; nobody cancelled them.
                Ending::Cancelled if !shared.shutdown.is_cancelled() => {
                    Waited::Cancelled(seen.into_turn())
                }
                Ending::Cancelled | Ending::Left => Waited::GoesOn(seen.into_turn()),
            }),
            () = shared.shutdown.cancelled() => return Ok(Waited::GoesOn(seen.into_turn())),
            change = seen.watch.next() => if !seen.take(shared, change).await? {
                return Ok(Waited::Gone);
            },
            () = &mut over, if max_wait > Duration::ZERO => {
                return Ok(Waited::GoesOn(seen.into_turn()));
            }
            () = &mut progress => {
                told += 1;
                call.tell(told, progress_of(&seen.turn)).await;
                progress.set(tokio::time::sleep(shared.options.progress_every));
            }
        }
    }
}

/// How far a turn is, in words of our own: nothing of the agent's gets into it.
fn progress_of(turn: &Turn) -> String {
    let status = &turn.status;
    match status.steps {
        0 => format!("the turn is {:?}", status.phase),
        steps => format!("the turn is {:?}, {steps} steps so far", status.phase),
    }
}

/// A turn as it was seen last, and what comes next of it.
struct Seen {
    key: Key,
    turn: Turn,
    watch: Watch,
}

impl Seen {
    async fn new(shared: &Shared, turn: Turn) -> Result<Self, Failure> {
        let key = key_of(&turn);
        let rev = parse_revision(&turn.metadata.resource_version).unwrap_or(Rev(0));
        let watch = shared.records.store().watch(key.as_str(), rev).await?;
        Ok(Self { key, turn, watch })
    }

    fn into_turn(self) -> Box<Turn> {
        Box::new(self.turn)
    }

    /// Takes a change over. `false`: the turn is gone.
    async fn take(&mut self, shared: &Shared, change: Option<Change>) -> Result<bool, Failure> {
        match change {
            // The watch is of a prefix: `x-1` is one of `x-10` too.
            Some(Change::Put(record)) if record.key == self.key => {
                let turn = decode::<TurnSpec>(&record.key, &record.value, record.rev)?;
                let is_same = turn.metadata.uid == self.turn.metadata.uid;
                self.turn = turn;
                Ok(is_same)
            }
            Some(Change::Delete { key, .. }) if key == self.key => Ok(false),
            Some(Change::Put(_) | Change::Delete { .. } | Change::Bookmark(_)) => Ok(true),
            // What was missed is read, and the watch goes on from there.
            Some(Change::Compacted { .. } | Change::Regressed { .. } | Change::Lost(_)) | None => {
                let uid = self.turn.metadata.uid.clone();
                let found = shared.records.by_uid::<TurnSpec>(&uid).await?;
                let Some(turn) = found else { return Ok(false) };
                *self = Self::new(shared, turn).await?;
                Ok(true)
            }
        }
    }
}
