//! Writing: one thread, and one fsync for all that queued during the last one.
//!
//! A group is up to 64 jobs in one transaction, each in a savepoint of its own: a job that is
//! refused (a guard, an offset) takes nothing else with it; an engine error takes the whole group,
//! and every job of it hears so.
//!
//! What an error means: before COMMIT nothing was applied (`Unavailable`); during COMMIT nobody
//! can say (`Unknown`), except for a full disk, where the frame that would make the transaction
//! valid is the one that did not fit. After an I/O error the store is read-only until a reset:
//! a failed fsync may have thrown away pages that a second one would claim to have written.
//!
//! Invariants: this thread alone writes; a job is answered after its group is durable and known to
//! the feed.

use std::sync::Arc;

use rusqlite::{Connection, ErrorCode};
use tokio::sync::{mpsc, oneshot};

use super::apply::{self, Effect};
use super::feed::Revision;
use super::mark::{MARK_FILE, MarkFile};
use super::{OpenError, Shared, schema};
use crate::api::Uid;
use crate::store::{Append, Commit, Error, Rev};

/// The most jobs in one transaction. At 64 the fsync is under a tenth of what the jobs cost
/// themselves, and no job waits for more than a few milliseconds of others.
pub(super) const GROUP_JOBS_MAX: usize = 64;
/// How many jobs wait for the next group. More would only move the waiting from callers to here.
pub(super) const QUEUE_JOBS_MAX: usize = GROUP_JOBS_MAX;
/// About how much is written between two checkpoints: SQLite's own default is 1000 pages of 4 KiB.
const CHECKPOINT_BYTES: usize = 4 * 1024 * 1024;
/// The least, for small disks: below it each commit would be synced twice.
const CHECKPOINT_BYTES_MIN: usize = 256 * 1024;
/// What a job writes besides its values: its pages in the trees, rounded up.
const JOB_OVERHEAD_BYTES: usize = 16 * 1024;
/// How many revisions of history must be too old before some are dropped, and how many are at
/// once: a few milliseconds, seldom.
const PRUNE_REVISIONS: u64 = 512;
/// How many pages go back to a low disk after each group: 256 KiB, and as much in the log.
const VACUUM_PAGES: u32 = 64;
/// How many revisions of history are kept on a low disk: what watchers that keep up may lack.
const HISTORY_WHEN_LOW: u64 = 16;

/// What a caller waits for: a revision, a count, or just that it is done.
pub(super) type Reply = oneshot::Sender<Result<u64, Error>>;

/// A write that shares its transaction with others.
pub(super) enum Work {
    Commit(Commit),
    Append(Vec<Append>),
    DropOwners(Vec<Uid>),
    Compact(Rev),
}

/// What the thread is asked.
pub(super) enum Job {
    Write(Work, Reply),
    Reset(Reply),
    /// Look at the disk again.
    CheckDisk,
    Close(Reply),
}

/// Why a job did not get through.
#[derive(Debug)]
pub(super) enum Stopped {
    /// It alone is refused.
    Refused(Error),
    /// The engine failed: nothing of the group may stand.
    Engine(rusqlite::Error),
}

impl From<rusqlite::Error> for Stopped {
    fn from(error: rusqlite::Error) -> Self {
        Self::Engine(error)
    }
}

/// What an engine error means for what comes after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Severity {
    /// There is no space.
    Full,
    /// The next try may work.
    Passing,
    /// Nothing that follows could be trusted.
    Fatal,
}

fn severity(error: &rusqlite::Error) -> Severity {
    match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => Severity::Full,
        Some(
            ErrorCode::DatabaseBusy
            | ErrorCode::DatabaseLocked
            | ErrorCode::OutOfMemory
            | ErrorCode::OperationInterrupted,
        ) => Severity::Passing,
        _ => Severity::Fatal,
    }
}

/// A group that failed as a whole.
struct Failed {
    severity: Severity,
    answer: Error,
}

type Answers = Vec<Result<u64, Error>>;

/// The thread's state.
pub(super) struct Writer {
    shared: Arc<Shared>,
    connection: Option<Connection>,
    head: u64,
    oldest: u64,
    /// The newest commit that was acknowledged, with its nonce.
    acknowledged: Option<(u64, u64)>,
    mark: MarkFile,
    written_bytes: usize,
    /// How much is written between two checkpoints.
    checkpoint_bytes: usize,
}

impl Writer {
    /// A writer on an open connection.
    pub(super) fn new(shared: Arc<Shared>, connection: Connection) -> Result<Self, OpenError> {
        let mark = MarkFile::open(&shared.dir.file(MARK_FILE))?;
        let head = schema::head(&connection)?;
        let oldest = schema::oldest(&connection)?;
        // What the log holds must fit behind the ballast when it goes into the file.
        let quarter = usize::try_from(shared.ballast.bytes() / 4).unwrap_or(usize::MAX);
        let checkpoint_bytes = quarter.clamp(CHECKPOINT_BYTES_MIN, CHECKPOINT_BYTES);
        Ok(Self {
            shared,
            checkpoint_bytes,
            connection: Some(connection),
            head,
            oldest,
            acknowledged: None,
            mark,
            written_bytes: 0,
        })
    }

    /// Works until it is told to close or nobody can ask any more.
    pub(super) fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(job) = jobs.blocking_recv() {
            let mut group = Vec::new();
            let mut control = None;
            let mut next = Some(job);
            while let Some(job) = next.take() {
                match job {
                    Job::Write(work, reply) => {
                        group.push((work, reply));
                        if group.len() < GROUP_JOBS_MAX {
                            next = jobs.try_recv().ok();
                        }
                    }
                    other => control = Some(other),
                }
            }
            self.run_group(group);
            match control {
                Some(Job::Reset(reply)) => drop(reply.send(self.reset())),
                Some(Job::CheckDisk) => self.look_at_disk(),
                Some(Job::Close(reply)) => {
                    jobs.close();
                    self.close();
                    let _ = reply.send(Ok(0));
                    return;
                }
                Some(Job::Write(..)) | None => {}
            }
        }
    }

    fn run_group(&mut self, group: Vec<(Work, Reply)>) {
        if group.is_empty() {
            return;
        }
        let (works, replies): (Vec<Work>, Vec<Reply>) = group.into_iter().unzip();
        let answers = match self.attempt(&works) {
            Ok(answers) => answers,
            Err(failed) if failed.severity == Severity::Full => {
                self.make_room();
                // One by one, so that what frees space is not held up by what takes it.
                works.iter().map(|work| self.attempt_alone(work)).collect()
            }
            Err(failed) => vec![Err(failed.answer); works.len()],
        };
        for (reply, answer) in replies.into_iter().zip(answers) {
            // Whoever asked may have gone; what was done stays done.
            let _ = reply.send(answer);
        }
        self.look_at_disk();
    }

    fn attempt_alone(&mut self, work: &Work) -> Result<u64, Error> {
        match self.attempt(std::slice::from_ref(work)) {
            Ok(answers) => answers.into_iter().next().unwrap_or(Ok(0)),
            Err(failed) => Err(failed.answer),
        }
    }

    /// One transaction. On an error nothing of it stands, or nobody knows.
    fn attempt(&mut self, works: &[Work]) -> Result<Answers, Failed> {
        let shared = Arc::clone(&self.shared);
        let read_only = |answer: String| Failed {
            severity: Severity::Passing,
            answer: Error::Unavailable(answer),
        };
        if let Some(reason) = shared.fault() {
            return Err(read_only(format!("it is read-only until it is reset: {reason}")));
        }
        let Some(connection) = self.connection.take() else {
            return Err(read_only("it is not open".to_owned()));
        };
        let mut group = Group::new(&shared, self.head, self.oldest);
        let result = group.run(&connection, works).and_then(|()| shared.trip());
        let outcome = match result {
            Ok(()) => commit(&shared, &connection).map_err(|error| (error, true)),
            Err(error) => Err((error, false)),
        };
        if outcome.is_err() && !connection.is_autocommit() {
            // If even that fails the error below is a fatal one already, or the next BEGIN fails.
            let _ = connection.execute_batch("ROLLBACK");
        }
        self.connection = Some(connection);
        match outcome {
            Ok(()) => Ok(self.settle(group, works)),
            Err((error, in_commit)) => Err(self.fail(&error, in_commit)),
        }
    }

    /// Takes a durable group over and makes it known.
    fn settle(&mut self, group: Group<'_>, works: &[Work]) -> Answers {
        self.head = group.head;
        self.oldest = group.oldest;
        if let Some((rev, nonce)) = group.acknowledged {
            self.acknowledged = group.acknowledged;
            self.mark.set(&self.shared.id, rev, nonce);
        }
        self.written_bytes += works.iter().map(work_bytes).sum::<usize>();
        self.shared.count_group(works.len());
        self.shared.feed.publish(group.revisions);
        group.answers
    }

    fn fail(&self, error: &rusqlite::Error, in_commit: bool) -> Failed {
        let severity = severity(error);
        let is_unknown = in_commit && severity != Severity::Full;
        // What follows a commit of unknown fate could not even be numbered.
        if severity == Severity::Fatal || is_unknown {
            self.shared.set_fault(error.to_string());
        }
        let answer = if severity == Severity::Full {
            Error::Unavailable(format!("the disk is full: {error}"))
        } else if is_unknown {
            Error::Unknown(error.to_string())
        } else {
            Error::Unavailable(error.to_string())
        };
        Failed { severity, answer }
    }

    /// Gives the ballast back, and lets the log be written from its beginning again.
    fn make_room(&mut self) {
        let is_released = self.shared.ballast.release();
        #[cfg(test)]
        if is_released && let Some(connection) = &self.connection {
            self.shared.lift_quota(connection);
        }
        tracing::warn!(is_released, "a write found the disk full");
        self.checkpoint();
    }

    /// Checkpoints if it is due. On a low disk each time, so that the log does not grow on, and
    /// with it some of the space that deletes made in the file goes back to the disk.
    fn look_at_disk(&mut self) {
        let is_low = self.shared.ballast.is_low();
        if is_low
            && self.shared.fault().is_none()
            && let Some(connection) = &self.connection
            && let Err(error) = vacuum(connection)
            && severity(&error) == Severity::Fatal
        {
            self.shared.set_fault(error.to_string());
        }
        if is_low || self.written_bytes >= self.checkpoint_bytes {
            self.checkpoint();
        }
        self.shared.ballast.check();
    }

    fn checkpoint(&mut self) {
        if self.shared.fault().is_some() {
            return;
        }
        self.written_bytes = 0;
        let Some(connection) = &self.connection else { return };
        // PASSIVE: waits for no reader. What a reader holds back is done by a later one.
        if let Err(error) = checkpoint(connection, "PASSIVE") {
            match severity(&error) {
                // The next write sees to it.
                Severity::Full | Severity::Passing => {}
                Severity::Fatal => self.shared.set_fault(error.to_string()),
            }
        }
    }

    fn reset(&mut self) -> Result<u64, Error> {
        match self.reopen() {
            Ok(()) => {
                self.shared.clear_fault();
                self.shared.feed.restart(Rev(self.head));
                Ok(self.head)
            }
            Err(error) => {
                self.connection = None;
                self.shared.set_fault(error.to_string());
                Err(Error::Unavailable(format!("the reset failed: {error}")))
            }
        }
    }

    /// Opens the file anew and trusts it only after a check and a write.
    fn reopen(&mut self) -> Result<(), OpenError> {
        self.shared.readers.renew();
        // The old connection closes first: the new one must see the file, not its cache.
        self.connection = None;
        let connection = super::connect_writer(&self.shared.database)?;
        super::quick_check(&connection)?;
        let is_kept = match self.acknowledged {
            Some((rev, nonce)) => super::reader::nonce(&connection, Rev(rev))? == Some(nonce),
            None => true,
        };
        if !is_kept || schema::meta(&connection, "store_id")?.as_ref() != Some(&self.shared.id) {
            return Err(OpenError::Engine("acknowledged commits are gone".to_owned()));
        }
        let (head, oldest) = (schema::head(&connection)?, schema::oldest(&connection)?);
        // It proves that the disk takes writes, and it overwrites what a commit whose fate was
        // unknown may have left behind the end of the log: from here its fate is what a read says.
        prove(&connection)?;
        self.connection = Some(connection);
        self.head = head;
        self.oldest = oldest;
        Ok(())
    }

    fn close(mut self) {
        self.shared.readers.close();
        let Some(connection) = self.connection.take() else { return };
        let is_whole = checkpoint(&connection, "TRUNCATE").is_ok();
        let is_closed = connection.close().is_ok();
        if is_whole && is_closed && self.shared.fault().is_none() {
            // Without the mark the next start only takes longer.
            let _ = self.shared.dir.leave_clean_mark();
        }
    }
}

fn commit(shared: &Shared, connection: &Connection) -> rusqlite::Result<()> {
    shared.trip()?;
    connection.prepare_cached("COMMIT")?.execute([])?;
    shared.trip()
}

fn prove(connection: &Connection) -> rusqlite::Result<()> {
    connection
        .prepare_cached("UPDATE meta SET value = value + 1 WHERE name = 'resets'")?
        .execute([])?;
    Ok(())
}

fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<()> {
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |_| Ok(()))
}

fn vacuum(connection: &Connection) -> rusqlite::Result<()> {
    let sql = format!("PRAGMA incremental_vacuum({VACUUM_PAGES})");
    let mut statement = connection.prepare_cached(&sql)?;
    // It gives back a page with each step.
    let mut steps = statement.query([])?;
    while steps.next()?.is_some() {}
    Ok(())
}

fn work_bytes(work: &Work) -> usize {
    let values = match work {
        // A record is written twice: to `records` and to `history`.
        Work::Commit(commit) => commit.ops.iter().map(|op| 2 * apply::op_bytes(op)).sum(),
        Work::Append(appends) => appends.iter().map(|append| append.bytes.len()).sum(),
        Work::DropOwners(_) | Work::Compact(_) => 0,
    };
    JOB_OVERHEAD_BYTES + values
}

/// A transaction while it is built: what will be true once it is durable.
struct Group<'a> {
    shared: &'a Shared,
    head: u64,
    oldest: u64,
    acknowledged: Option<(u64, u64)>,
    answers: Answers,
    revisions: Vec<Revision>,
}

impl<'a> Group<'a> {
    const fn new(shared: &'a Shared, head: u64, oldest: u64) -> Self {
        Self {
            shared,
            head,
            oldest,
            acknowledged: None,
            answers: Vec::new(),
            revisions: Vec::new(),
        }
    }

    fn run(&mut self, connection: &Connection, works: &[Work]) -> rusqlite::Result<()> {
        #[cfg(test)]
        self.shared.limit_pages(connection);
        self.shared.trip()?;
        // IMMEDIATE: the write lock first, so that nothing read in here can be stale.
        connection.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        self.prune(connection)?;
        for work in works {
            self.shared.trip()?;
            connection.prepare_cached("SAVEPOINT job")?.execute([])?;
            let answer = match self.apply(connection, work) {
                Ok(answer) => Ok(answer),
                Err(Stopped::Engine(error)) => return Err(error),
                Err(Stopped::Refused(error)) => {
                    connection.prepare_cached("ROLLBACK TO job")?.execute([])?;
                    Err(error)
                }
            };
            connection.prepare_cached("RELEASE job")?.execute([])?;
            self.answers.push(answer);
        }
        Ok(())
    }

    fn apply(&mut self, connection: &Connection, work: &Work) -> Result<u64, Stopped> {
        match work {
            Work::Commit(commit) => {
                let rev = self.head + 1;
                let Effect { changes, nonce } = apply::commit(connection, commit, rev)?;
                self.head = rev;
                self.acknowledged = Some((rev, nonce));
                self.revisions.push(Revision { rev: Rev(rev), changes: changes.into() });
                Ok(rev)
            }
            Work::Append(_) if self.shared.ballast.is_low() => Err(Stopped::Refused(
                Error::Unavailable("the disk is nearly full: nothing is appended".to_owned()),
            )),
            Work::Append(appends) => {
                for append in appends {
                    super::blobs::append(connection, append)?;
                }
                Ok(0)
            }
            Work::DropOwners(owners) => {
                let mut dropped = 0;
                for owner in owners {
                    dropped += super::blobs::drop_owner(connection, owner)?;
                }
                Ok(dropped)
            }
            Work::Compact(keep_after) => {
                let upto = keep_after.0.min(self.head);
                if upto > self.oldest {
                    apply::forget(connection, upto)?;
                    self.oldest = upto;
                }
                Ok(0)
            }
        }
    }

    /// Drops a little of the history that is beyond its bound. First in the transaction, so that
    /// on a full disk what follows has the space.
    fn prune(&mut self, connection: &Connection) -> rusqlite::Result<()> {
        let is_low = self.shared.ballast.is_low();
        let kept = self.shared.options.history_revisions_max;
        let (kept, step) =
            if is_low { (kept.min(HISTORY_WHEN_LOW), 1) } else { (kept, PRUNE_REVISIONS) };
        let wanted = self.head.saturating_sub(kept);
        if wanted >= self.oldest.saturating_add(step) {
            let upto = wanted.min(self.oldest + 2 * PRUNE_REVISIONS);
            apply::forget(connection, upto)?;
            self.oldest = upto;
        }
        Ok(())
    }
}
