//! What the daemon has in its hands: one entry a session that has a process.
//!
//! The entry's view is what the planner sees of the process. The pump of the process writes it, the
//! steps of a pass write it, everybody else reads. A lock is held for a field's time only, never
//! across an await.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::watch;

use crate::acp::connection::Handle;
use crate::api::process::ProcessSample;
use crate::api::session::ProcessRecord;
use crate::api::token::SecretToken;
use crate::api::{Agent, Incarnation, Uid};
use crate::plan::world::{Live, Process, StartFailure};
use crate::ports::{self, LiveActivity};

use super::ObjectKey;
use super::process::Control;
use crate::runtime::stderr::Ring;

/// A process of a session, in this daemon's hands.
pub(super) struct Entry {
    /// Whose it is.
    pub(super) key: ObjectKey,
    /// The agent as it was when the process was started: it goes on when the record is gone.
    pub(super) agent: Agent,
    /// What the planner sees.
    view: Mutex<Live>,
    /// How long a response is held open for late chunks, in milliseconds; its agent's record may
    /// change while the process runs.
    late_grace_ms: AtomicU64,
    /// The protocol side.
    pub(super) acp: Handle,
    /// The process side.
    pub(super) control: Box<dyn Control>,
    /// The last of what the agent wrote to standard error.
    pub(super) stderr: Ring,
    /// The token of this run, if it may delegate.
    pub(super) token: Option<SecretToken>,
    /// The running turn, for readers of the API.
    activity: Mutex<LiveActivity>,
}

impl Entry {
    pub(super) fn new(
        key: ObjectKey,
        agent: Agent,
        view: Live,
        acp: Handle,
        control: Box<dyn Control>,
        stderr: Ring,
        token: Option<SecretToken>,
    ) -> Self {
        let late_grace_ms = AtomicU64::new(0);
        Self {
            key,
            agent,
            late_grace_ms,
            view: Mutex::new(view),
            acp,
            control,
            stderr,
            token,
            activity: Mutex::new(LiveActivity::default()),
        }
    }

    /// How long a response is held open for late chunks.
    pub(super) fn late_grace(&self) -> Duration {
        Duration::from_millis(self.late_grace_ms.load(Ordering::SeqCst))
    }

    /// Takes over how long its agent's record says.
    pub(super) fn set_late_grace(&self, grace: Duration) {
        let ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        self.late_grace_ms.store(ms, Ordering::SeqCst);
    }

    /// The view, to read or to write.
    pub(super) fn view(&self) -> MutexGuard<'_, Live> {
        // A panic while it is held leaves a whole value: fields are assigned one by one.
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The running turn's activity, to read or to write.
    pub(super) fn activity(&self) -> MutexGuard<'_, LiveActivity> {
        self.activity.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Slot {
    /// Being started; what comes of it is not known yet.
    Starting(Incarnation),
    Live(Arc<Entry>),
    NotStarted(StartFailure),
}

/// All processes, by their session's uid.
#[derive(Default)]
pub(super) struct Registry {
    slots: Mutex<HashMap<Uid, Slot>>,
    /// The last standard error of sessions whose process is gone.
    last_stderr: Mutex<Vec<(Uid, Bytes)>>,
    /// The durable lengths of the transcripts of turns that this daemon took and that are not
    /// final.
    transcripts: Mutex<HashMap<Uid, watch::Sender<u64>>>,
}

/// Standard errors kept of processes that are gone: the newest so many, 128 KiB each at most.
const LAST_STDERR_MAX: usize = 64;

impl Registry {
    fn slots(&self) -> MutexGuard<'_, HashMap<Uid, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn transcripts(&self) -> MutexGuard<'_, HashMap<Uid, watch::Sender<u64>>> {
        self.transcripts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A turn is taken: from now on its transcript can be followed.
    pub(super) fn begin_transcript(&self, turn: Uid) {
        self.transcripts().entry(turn).or_insert_with(|| watch::channel(0).0);
    }

    /// A turn's transcript is durable up to `bytes`.
    pub(super) fn transcript_grew(&self, turn: &Uid, bytes: u64) {
        if let Some(sender) = self.transcripts().get(turn) {
            sender.send_replace(bytes);
        }
    }

    /// A turn is final: its followers are told by the sender's end.
    pub(super) fn end_transcript(&self, turn: &Uid) {
        self.transcripts().remove(turn);
    }

    /// The process of a session.
    pub(super) fn entry(&self, session: &Uid) -> Option<Arc<Entry>> {
        match self.slots().get(session) {
            Some(Slot::Live(entry)) => Some(Arc::clone(entry)),
            Some(Slot::Starting(_) | Slot::NotStarted(_)) | None => None,
        }
    }

    /// What the planner sees of a session's process. A session that this daemon knows nothing of
    /// has none: leftovers of other daemons were removed before the loop began.
    pub(super) fn process(&self, session: &Uid) -> Process {
        match self.slots().get(session) {
            Some(Slot::Live(entry)) => Process::Live(Box::new(entry.view().clone())),
            Some(Slot::NotStarted(failure)) => Process::NotStarted { failure: failure.clone() },
            // Seen only where the pass that starts it was given up.
            Some(Slot::Starting(_)) => Process::Unproven,
            None => Process::Absent,
        }
    }

    /// Whether this run was already started, or tried.
    pub(super) fn knows(&self, session: &Uid, incarnation: Incarnation) -> bool {
        match self.slots().get(session) {
            Some(Slot::Live(entry)) => entry.view().incarnation >= incarnation,
            Some(Slot::Starting(run)) => *run >= incarnation,
            Some(Slot::NotStarted(_)) => true,
            None => false,
        }
    }

    /// A start begins: from here on a process may exist.
    pub(super) fn starting(&self, session: Uid, incarnation: Incarnation) {
        self.slots().insert(session, Slot::Starting(incarnation));
    }

    /// The processes of sessions of this name: of one whose record is gone.
    pub(super) fn of_key(&self, key: &ObjectKey) -> Vec<(Uid, Arc<Entry>)> {
        let slots = self.slots();
        let live = |(uid, slot): (&Uid, &Slot)| match slot {
            Slot::Live(entry) if entry.key == *key => Some((uid.clone(), Arc::clone(entry))),
            Slot::Live(_) | Slot::Starting(_) | Slot::NotStarted(_) => None,
        };
        slots.iter().filter_map(live).collect()
    }

    pub(super) fn insert(&self, session: Uid, entry: Arc<Entry>) {
        self.slots().insert(session, Slot::Live(entry));
    }

    pub(super) fn not_started(&self, session: Uid, failure: StartFailure) {
        self.slots().insert(session, Slot::NotStarted(failure));
    }

    /// Lets go of a session's process, which is gone.
    pub(super) fn forget(&self, session: &Uid) {
        let removed = self.slots().remove(session);
        let Some(Slot::Live(entry)) = removed else { return };
        let mut kept = self.last_stderr.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|(uid, _)| uid != session);
        if kept.len() >= LAST_STDERR_MAX {
            kept.remove(0);
        }
        kept.push((session.clone(), entry.stderr.bytes()));
    }

    /// How many sessions have a process.
    pub(super) fn len(&self) -> usize {
        self.slots().len()
    }

    /// The keys of all sessions that have a process.
    pub(super) fn keys(&self) -> Vec<ObjectKey> {
        let slots = self.slots();
        let key = |slot: &Slot| match slot {
            Slot::Live(entry) => Some(entry.key.clone()),
            Slot::Starting(_) | Slot::NotStarted(_) => None,
        };
        slots.values().filter_map(key).collect()
    }

    /// The uids of all sessions that have a process, for the sweep of orphans.
    pub(super) fn sessions(&self) -> Vec<Uid> {
        self.slots().keys().cloned().collect()
    }
}

impl ports::Live for Registry {
    fn activity(&self, session: &Uid) -> Option<LiveActivity> {
        self.entry(session).map(|entry| entry.activity().clone())
    }

    fn stderr(&self, session: &Uid) -> Option<Bytes> {
        if let Some(entry) = self.entry(session) {
            return Some(entry.stderr.bytes());
        }
        let kept = self.last_stderr.lock().unwrap_or_else(PoisonError::into_inner);
        kept.iter().find(|(uid, _)| uid == session).map(|(_, bytes)| bytes.clone())
    }

    fn processes(&self, process: &ProcessRecord) -> Vec<ProcessSample> {
        crate::runtime::tree::sample(process)
    }

    fn transcript(&self, turn: &Uid) -> Option<watch::Receiver<u64>> {
        self.transcripts().get(turn).map(watch::Sender::subscribe)
    }
}
