//! The prompt journal: which turns' prompts may have been given to an agent.
//!
//! The last guard of "at most once". A turn's uid is on disk here before its prompt goes out, and
//! a uid that is here is never sent again, whatever the store says: the store may have been put
//! back to an older state, this file was not.
//!
//! Files of lines in a directory of its own. A start begins a new file and never appends to an old
//! one, so a line that a crash tore stays a torn line: it was never acknowledged, its prompt never
//! went out, and it is passed over. A file goes once every turn in it is known to be final.
//!
//! Invariants: [`Journal::record`] returns after the fsync; after a failed one the file is not
//! written again, a new one is begun.
//!
//! Absent on purpose: settled turns on disk. After a start all that is found counts as open until
//! it is settled anew, which costs one look into the store for each.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{mpsc, oneshot};

use crate::api::Uid;

/// The journal's directory in the data directory.
const DIRECTORY: &str = "journal";
/// How many uids go into one file: 37 KiB, and the grain in which old ones are dropped.
const SEGMENT_UIDS_MAX: usize = 1000;
/// No file of ours is larger; what is behind it is not read.
const SEGMENT_BYTES_MAX: u64 = 64 * SEGMENT_UIDS_MAX as u64;
/// The length of a uid as text (RFC 9562: 8-4-4-4-12 hexadecimal digits).
const UID_BYTES: usize = 36;
/// How many records wait for the next fsync, and the most that share one. There are never more
/// turns at a time than this.
const QUEUE_MAX: usize = 64;

/// Why the journal did not do it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A file could not be read, written or synced. The prompt must not be sent.
    #[error("the prompt journal: {path}: {reason}")]
    Io {
        /// Which file.
        path: String,
        /// What the system said.
        reason: String,
    },
    /// The uid is there: its prompt may have been sent.
    #[error("the prompt of turn {0} may have been sent before")]
    AlreadyThere(Uid),
    /// It is no uid of ours.
    #[error("{0:?} is not a uid")]
    NotAUid(String),
    /// It was closed.
    #[error("the prompt journal is closed")]
    Closed,
}

/// The journal. Dropping it waits for what is being written.
pub struct Journal {
    jobs: mpsc::Sender<Job>,
    index: Arc<Mutex<Index>>,
    _writer: Joined,
}

enum Job {
    Record(Uid, oneshot::Sender<Result<(), Error>>),
    Settle(Uid, oneshot::Sender<Result<(), Error>>),
}

/// What the files hold.
#[derive(Default)]
struct Index {
    /// In which file a uid is.
    places: HashMap<Uid, u64>,
    /// By number. The newest is being written.
    segments: BTreeMap<u64, Segment>,
}

#[derive(Default)]
struct Segment {
    uids: HashSet<Uid>,
    /// Those whose turns are not known to be final.
    open: HashSet<Uid>,
}

struct Joined(Option<std::thread::JoinHandle<()>>);

impl Drop for Joined {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // A panic of the writer was shown by the panic hook.
            let _ = thread.join();
        }
    }
}

impl Journal {
    /// Reads what is there and makes ready for more. Blocks. The caller holds the data directory's
    /// lock.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the directory or a file cannot be read: then it is not known what was sent.
    pub fn open(data_dir: &Path) -> Result<Self, Error> {
        let dir = data_dir.join(DIRECTORY);
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&dir);
        made.map_err(|error| io(&dir, &error))?;
        let mut index = Index::default();
        let mut last = 0;
        let entries = std::fs::read_dir(&dir).map_err(|error| io(&dir, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| io(&dir, &error))?;
            let Some(number) = entry.file_name().to_str().and_then(segment_number) else {
                continue;
            };
            index.add(number, read_uids(&entry.path())?);
            last = last.max(number);
        }
        let index = Arc::new(Mutex::new(index));
        let (jobs, queue) = mpsc::channel(QUEUE_MAX);
        let writer = Writer { dir, next: last + 1, file: None, index: Arc::clone(&index) };
        // Files without a single whole line, and nothing else, are of no use.
        writer.drop_settled();
        let thread = std::thread::Builder::new()
            .name("prompt-journal".to_owned())
            .spawn(move || writer.run(queue))
            .map_err(|error| io(data_dir, &error))?;
        Ok(Self { jobs, index, _writer: Joined(Some(thread)) })
    }

    /// Puts a turn's uid on disk. The prompt may be sent after this has returned `Ok`, and not
    /// otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::AlreadyThere`] if it is there; [`Error::Io`] if it is not known to be on disk.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped the uid may be recorded, and its prompt then counts as sent.
    pub async fn record(&self, uid: &Uid) -> Result<(), Error> {
        if !is_uid(uid.as_str()) {
            return Err(Error::NotAUid(uid.as_str().to_owned()));
        }
        self.ask(|reply| Job::Record(uid.clone(), reply)).await
    }

    /// Whether the prompt of this turn may have been sent.
    #[must_use]
    pub fn contains(&self, uid: &Uid) -> bool {
        lock(&self.index).places.contains_key(uid)
    }

    /// Tells that a turn is final in the store. No fault if it is unknown here.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if a file whose turns are all final could not be removed: it stays, and that
    /// does no harm.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped it may be told or not.
    pub async fn settle(&self, uid: &Uid) -> Result<(), Error> {
        if !self.contains(uid) {
            return Ok(());
        }
        self.ask(|reply| Job::Settle(uid.clone(), reply)).await
    }

    /// Every turn that was recorded and not settled since the start, in no order. After a start:
    /// all that must be looked up in the store.
    #[must_use]
    pub fn open_turns(&self) -> Vec<Uid> {
        let index = lock(&self.index);
        index.segments.values().flat_map(|segment| segment.open.iter().cloned()).collect()
    }

    async fn ask(
        &self,
        job: impl FnOnce(oneshot::Sender<Result<(), Error>>) -> Job,
    ) -> Result<(), Error> {
        let (reply, answer) = oneshot::channel();
        self.jobs.send(job(reply)).await.map_err(|_| Error::Closed)?;
        answer.await.unwrap_or(Err(Error::Closed))
    }
}

impl Index {
    fn add(&mut self, number: u64, uids: impl IntoIterator<Item = Uid>) {
        let segment = self.segments.entry(number).or_default();
        for uid in uids {
            segment.open.insert(uid.clone());
            segment.uids.insert(uid.clone());
            self.places.insert(uid, number);
        }
    }
}

struct Writer {
    dir: PathBuf,
    /// The number of the next file.
    next: u64,
    /// The file that is written, with its number.
    file: Option<(u64, File)>,
    index: Arc<Mutex<Index>>,
}

impl Writer {
    fn run(mut self, mut jobs: mpsc::Receiver<Job>) {
        while let Some(job) = jobs.blocking_recv() {
            let mut group = vec![job];
            while group.len() < QUEUE_MAX
                && let Ok(job) = jobs.try_recv()
            {
                group.push(job);
            }
            let mut records = Vec::new();
            for job in group {
                match job {
                    Job::Record(uid, reply) => records.push((uid, reply)),
                    Job::Settle(uid, reply) => drop(reply.send(self.settle(&uid))),
                }
            }
            self.record(records);
        }
    }

    fn record(&mut self, records: Vec<(Uid, oneshot::Sender<Result<(), Error>>)>) {
        let mut fresh = Vec::new();
        let mut seen = HashSet::new();
        for (uid, reply) in records {
            // The same one twice in a group is there for the second.
            if !seen.insert(uid.clone()) || lock(&self.index).places.contains_key(&uid) {
                let _ = reply.send(Err(Error::AlreadyThere(uid)));
            } else {
                fresh.push((uid, reply));
            }
        }
        if fresh.is_empty() {
            return;
        }
        let lines: String = fresh.iter().map(|(uid, _)| format!("{uid}\n")).collect();
        let result = self.write(lines.as_bytes());
        if let Ok(number) = result {
            lock(&self.index).add(number, fresh.iter().map(|(uid, _)| uid.clone()));
        }
        for (_, reply) in fresh {
            // Whoever asked may have gone; the uid stays.
            let _ = reply.send(result.clone().map(drop));
        }
    }

    /// Appends to the present file and syncs it; tells its number.
    fn write(&mut self, lines: &[u8]) -> Result<u64, Error> {
        let (number, mut file) = match self.file.take() {
            Some(present) if !self.is_full(present.0) => present,
            Some(_) | None => self.begin()?,
        };
        let path = self.path(number);
        // Not put back after an error: what a failed sync leaves behind cannot be trusted.
        file.write_all(lines).map_err(|error| io(&path, &error))?;
        file.sync_data().map_err(|error| io(&path, &error))?;
        self.file = Some((number, file));
        Ok(number)
    }

    fn is_full(&self, number: u64) -> bool {
        lock(&self.index)
            .segments
            .get(&number)
            .is_some_and(|segment| segment.uids.len() >= SEGMENT_UIDS_MAX)
    }

    fn begin(&mut self) -> Result<(u64, File), Error> {
        let number = self.next;
        self.next += 1;
        let path = self.path(number);
        let opened = OpenOptions::new().append(true).create_new(true).mode(0o600).open(&path);
        let file = opened.map_err(|error| io(&path, &error))?;
        let dir = File::open(&self.dir).map_err(|error| io(&self.dir, &error))?;
        // The name must be durable too, before anything in it counts.
        dir.sync_all().map_err(|error| io(&self.dir, &error))?;
        self.drop_settled();
        Ok((number, file))
    }

    fn settle(&self, uid: &Uid) -> Result<(), Error> {
        let emptied = {
            let mut index = lock(&self.index);
            let Some(number) = index.places.get(uid).copied() else { return Ok(()) };
            let Some(segment) = index.segments.get_mut(&number) else { return Ok(()) };
            segment.open.remove(uid);
            segment.open.is_empty().then_some(number)
        };
        match emptied {
            Some(number) if !self.is_present(number) => self.remove(number),
            Some(_) | None => Ok(()),
        }
    }

    /// Removes every file that has no open turn but the one that is written.
    fn drop_settled(&self) {
        let settled: Vec<u64> = {
            let index = lock(&self.index);
            let empty = index.segments.iter().filter(|(_, segment)| segment.open.is_empty());
            empty.map(|(number, _)| *number).collect()
        };
        for number in settled.into_iter().filter(|number| !self.is_present(*number)) {
            // One that stays is found again at the next start.
            let _ = self.remove(number);
        }
    }

    fn is_present(&self, number: u64) -> bool {
        self.file.as_ref().is_some_and(|(present, _)| *present == number)
    }

    /// Removes a file and forgets its turns, which are final.
    fn remove(&self, number: u64) -> Result<(), Error> {
        let path = self.path(number);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(io(&path, &error));
            }
            Ok(()) | Err(_) => {}
        }
        let mut index = lock(&self.index);
        if let Some(segment) = index.segments.remove(&number) {
            for uid in segment.uids {
                index.places.remove(&uid);
            }
        }
        Ok(())
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{number:010}.uids"))
    }
}

fn lock(index: &Mutex<Index>) -> std::sync::MutexGuard<'_, Index> {
    // Maps and sets are whole whatever panicked while they were held.
    index.lock().unwrap_or_else(PoisonError::into_inner)
}

fn io(path: &Path, error: &std::io::Error) -> Error {
    Error::Io { path: path.display().to_string(), reason: error.to_string() }
}

fn segment_number(name: &str) -> Option<u64> {
    name.strip_suffix(".uids")?.parse().ok()
}

/// Every whole line that is a uid. Others are torn, or blocks that a power cut left empty: they
/// were never acknowledged.
fn read_uids(path: &Path) -> Result<Vec<Uid>, Error> {
    let mut bytes = Vec::new();
    File::open(path)
        .and_then(|file| file.take(SEGMENT_BYTES_MAX).read_to_end(&mut bytes))
        .map_err(|error| io(path, &error))?;
    let lines = bytes.split_inclusive(|byte| *byte == b'\n');
    Ok(lines
        .filter_map(|line| line.strip_suffix(b"\n"))
        .filter_map(|line| std::str::from_utf8(line).ok())
        .filter(|line| is_uid(line))
        .map(Uid::from)
        .collect())
}

fn is_uid(text: &str) -> bool {
    text.len() == UID_BYTES
        && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f' | b'-'))
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use tokio::task::JoinSet;

    use super::*;

    fn uid() -> Uid {
        Uid::new(uuid::Uuid::now_v7().to_string())
    }

    fn files(dir: &TempDir) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(dir.path().join(DIRECTORY)).unwrap();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    #[tokio::test]
    async fn a_recorded_uid_is_there_after_a_start_until_it_is_settled() {
        let dir = TempDir::new().unwrap();
        let (sent, never) = (uid(), uid());
        let journal = Journal::open(dir.path()).unwrap();
        journal.record(&sent).await.unwrap();
        assert!(journal.contains(&sent));
        assert_eq!(journal.record(&sent).await, Err(Error::AlreadyThere(sent.clone())));
        drop(journal);
        let journal = Journal::open(dir.path()).unwrap();
        assert!(journal.contains(&sent) && !journal.contains(&never));
        assert_eq!(journal.open_turns(), std::slice::from_ref(&sent));
        journal.settle(&never).await.unwrap();
        journal.settle(&sent).await.unwrap();
        assert_eq!(files(&dir), Vec::<PathBuf>::new());
        assert!(!journal.contains(&sent));
    }

    #[tokio::test]
    async fn what_is_acknowledged_is_in_the_file_already() {
        // As kill -9 would leave it: read while the journal is open.
        let dir = TempDir::new().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let uids = [uid(), uid()];
        for uid in &uids {
            journal.record(uid).await.unwrap();
            let text = std::fs::read_to_string(&files(&dir)[0]).unwrap();
            assert!(text.ends_with(&format!("{uid}\n")));
        }
        assert_eq!(read_uids(&files(&dir)[0]).unwrap(), uids);
    }

    #[tokio::test]
    async fn torn_lines_are_passed_over_at_every_cut() {
        let dir = TempDir::new().unwrap();
        let uids = [uid(), uid()];
        let whole = format!("{}\n{}\n", uids[0], uids[1]);
        let path = dir.path().join(DIRECTORY).join("0000000001.uids");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        for cut in 0..whole.len() {
            for tail in [&b""[..], &[0; 40], b"\xff\xfe\n"] {
                let bytes = [&whole.as_bytes()[..cut], tail].concat();
                std::fs::write(&path, bytes).unwrap();
                let found = read_uids(&path).unwrap();
                let complete = whole[..cut].matches('\n').count();
                assert_eq!(found, uids[..complete], "cut at {cut}");
            }
        }
        // A torn file is not appended to, so the torn line swallows nothing.
        std::fs::write(&path, &whole[..50]).unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let later = uid();
        journal.record(&later).await.unwrap();
        drop(journal);
        let journal = Journal::open(dir.path()).unwrap();
        assert!(journal.contains(&uids[0]) && journal.contains(&later));
        assert!(!journal.contains(&uids[1]));
        // The torn one's prompt never went out: it may go now.
        journal.record(&uids[1]).await.unwrap();
    }

    #[tokio::test]
    async fn a_file_stays_while_one_of_its_turns_is_open() {
        let dir = TempDir::new().unwrap();
        let journal = Arc::new(Journal::open(dir.path()).unwrap());
        let uids: Vec<Uid> = (0..SEGMENT_UIDS_MAX + 100).map(|_| uid()).collect();
        let mut records = JoinSet::new();
        for uid in uids.clone() {
            let journal = Arc::clone(&journal);
            records.spawn(async move { journal.record(&uid).await.unwrap() });
        }
        records.join_all().await;
        assert!(files(&dir).len() >= 2);
        assert!(uids.iter().all(|uid| journal.contains(uid)));
        let first = read_uids(&files(&dir)[0]).unwrap();
        for uid in &first[1..] {
            journal.settle(uid).await.unwrap();
        }
        assert!(first.iter().all(|uid| journal.contains(uid)));
        journal.settle(&first[0]).await.unwrap();
        assert!(first.iter().all(|uid| !journal.contains(uid)));
        // The one that is written stays, however settled.
        for uid in &uids {
            journal.settle(uid).await.unwrap();
        }
        assert_eq!(files(&dir).len(), 1);
        drop(journal);
        assert_eq!(Journal::open(dir.path()).unwrap().open_turns().len(), uids.len() - first.len());
    }

    #[tokio::test]
    async fn a_failed_write_is_told_and_the_next_one_begins_a_new_file() {
        let dir = TempDir::new().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        let (first, second) = (uid(), uid());
        std::fs::remove_dir(dir.path().join(DIRECTORY)).unwrap();
        assert!(matches!(journal.record(&first).await, Err(Error::Io { .. })));
        assert!(!journal.contains(&first));
        std::fs::create_dir(dir.path().join(DIRECTORY)).unwrap();
        journal.record(&second).await.unwrap();
        journal.record(&first).await.unwrap();
        assert_eq!(read_uids(&files(&dir)[0]).unwrap(), [second, first]);
    }

    #[tokio::test]
    async fn what_is_no_uid_is_refused() {
        let dir = TempDir::new().unwrap();
        let journal = Journal::open(dir.path()).unwrap();
        for text in ["", "a\nb", "not-a-uid", "0190a0b0-0000-7000-8000-00000000000\n"] {
            let refused = journal.record(&Uid::from(text)).await;
            assert_eq!(refused, Err(Error::NotAUid(text.to_owned())));
        }
    }
}
