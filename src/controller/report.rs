//! What the loop tells: reconcile reports and events.
//!
//! Neither is a promise, so neither costs a pass an fsync: they go through a bounded queue to one
//! task that writes them together. What a crash or a full queue loses is counted, not waited for.

use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::api::event::{EventSource, EventType, ObjectReference};
use crate::api::permission::{Decision, PermissionPhase};
use crate::api::report::{Outcome, StepReport, Trigger};
use crate::api::session::EndOutcome;
use crate::api::turn::TurnPhase;
use crate::api::{
    Dur, Event, Kind, Name, Namespace, ObjectMeta, PermissionRequest, ReconcileReport, Session,
    Time, Turn, Uid,
};
use crate::clock::{Now, SharedClock};
use crate::plan::world::{Call, Process};
use crate::plan::{Change, Plan, Requeue, World};
use crate::store::records::{Records, Txn};
use crate::store::{Error, Key, Rev, keys};

/// Reports and events that wait to be written; more are counted and dropped.
const QUEUE_MAX: usize = 4096;
/// Written in one commit: a report and the removal of an old one are two operations, of 64.
const BATCH_MAX: usize = 24;
/// How long something waits for company before it is written.
const GATHER: Duration = Duration::from_millis(25);
enum Item {
    Report(Box<ReconcileReport>),
    Event(Box<Event>),
    Prune,
}

/// One pass, for its report.
pub(super) struct Pass<'a> {
    pub(super) world: &'a World,
    pub(super) plan: &'a Plan,
    pub(super) triggers: &'a BTreeSet<Trigger>,
    pub(super) started: Now,
    pub(super) steps: Vec<StepReport>,
    pub(super) outcome: Outcome,
}

/// Takes what is told, and writes it.
pub(super) struct Reporter {
    sender: mpsc::Sender<Item>,
    receiver: Mutex<Option<mpsc::Receiver<Item>>>,
    dropped: AtomicU64,
    records: Records,
    clock: SharedClock,
    retention: Retention,
}

/// How long what happened is kept.
#[derive(Clone, Copy, Debug)]
pub struct Retention {
    /// Reports of one object.
    pub reports_per_object: usize,
    /// Reports in all.
    pub reports: usize,
    /// Events, from when they were last seen.
    pub events: Duration,
}

impl Reporter {
    pub(super) fn new(records: Records, clock: SharedClock, retention: Retention) -> Self {
        let (sender, receiver) = mpsc::channel(QUEUE_MAX);
        let receiver = Mutex::new(Some(receiver));
        Self { sender, receiver, dropped: AtomicU64::new(0), records, clock, retention }
    }

    fn send(&self, item: Item) {
        if self.sender.try_send(item).is_err() {
            let dropped = self.dropped.fetch_add(1, Ordering::Relaxed);
            if dropped == 0 {
                tracing::warn!("reports come faster than they can be written; some are dropped");
            }
        }
    }

    /// Reports a pass.
    pub(super) fn pass(&self, pass: Pass<'_>, failure: Option<&str>, now: Now) {
        let session = &pass.world.session;
        let took = now.mono.since(pass.started.mono);
        let requeue_after = match pass.plan.requeue {
            Requeue::After(wait) => {
                Some(Dur::from_millis(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)))
            }
            Requeue::AwaitChange => None,
        };
        self.send(Item::Report(Box::new(ReconcileReport {
            object: ObjectReference::to(Kind::Session, &session.metadata),
            uid: session.metadata.uid.clone(),
            generation: session.metadata.generation,
            sequence: 0,
            trigger: pass.triggers.first().copied().unwrap_or(Trigger::Watch),
            observed: observed(pass.world),
            diff: pass.plan.diff.clone(),
            steps: pass.steps,
            outcome: pass.outcome,
            why: failure.map_or_else(|| pass.plan.why.clone(), str::to_owned),
            requeue_after,
            next_deadline: session.status.next_deadline,
            started_at: pass.started.time,
            duration_ms: u64::try_from(took.as_millis()).unwrap_or(u64::MAX),
        })));
    }

    /// Tells what a change means to people.
    pub(super) fn events_of(&self, world: &World, change: &Change, now: Time) {
        for turn in &change.turns {
            if turn.status.phase.is_final() {
                self.event(turn_event(turn, now));
            }
        }
        for request in &change.requests {
            for event in request_events(&world.session, request, now) {
                self.event(event);
            }
        }
        let Some(after) = &change.session else { return };
        let before = &world.session;
        let tell = |severity, reason: &str, message: &str| {
            event(Kind::Session, &after.metadata, severity, reason, message, now)
        };
        if let (None, Some(end)) = (&before.status.end, &after.status.end) {
            let severity = match end.outcome {
                EndOutcome::Stopped => EventType::Normal,
                EndOutcome::Failed | EndOutcome::Expired => EventType::Warning,
            };
            self.event(tell(severity, &end.reason, &end.message));
        }
        let (old, new) = (&before.status.restarts, &after.status.restarts);
        if new.count > old.count {
            self.event(tell(EventType::Warning, &new.reason, &new.last_error));
        }
        if before.status.process.is_none() && after.status.process.is_some() {
            self.event(tell(EventType::Normal, "Starting", "the agent is being started"));
        }
    }

    /// Tells of a jump of the wall clock, by so many milliseconds.
    pub(super) fn clock_jumped(&self, noticed_by: &ObjectMeta, moved_ms: i64, now: Time) {
        let message = format!(
            "the wall clock moved by {moved_ms} ms against the steady one; deadlines are not touched"
        );
        let (severity, reason) = (EventType::Warning, "ClockJumped");
        self.event(event(Kind::Session, noticed_by, severity, reason, &message, now));
    }

    /// Tells that a pass over a session hung or panicked; the event counts how often.
    pub(super) fn stalled(&self, session: &ObjectMeta, why: &str, now: Time) {
        let (severity, reason) = (EventType::Warning, "ReconcileStalled");
        self.event(event(Kind::Session, session, severity, reason, why, now));
    }

    fn event(&self, event: Event) {
        self.send(Item::Event(Box::new(event)));
    }

    /// Removes old events and the reports of objects that are gone, when there is time.
    pub(super) fn prune(&self) {
        self.send(Item::Prune);
    }

    /// Writes what is told, until told to stop; then what is left.
    pub(super) async fn run(&self, stop: CancellationToken) {
        let taken = self.receiver.lock().ok().and_then(|mut receiver| receiver.take());
        let Some(mut receiver) = taken else { return };
        let mut batch = Vec::with_capacity(BATCH_MAX);
        loop {
            let stopped = tokio::select! {
                biased;
                first = receiver.recv() => match first {
                    Some(item) => { batch.push(item); false }
                    None => true,
                },
                () = stop.cancelled() => true,
            };
            if stopped {
                return;
            }
            if !stop.is_cancelled() {
                tokio::time::sleep(GATHER).await;
            }
            while batch.len() < BATCH_MAX {
                match receiver.try_recv() {
                    Ok(item) => batch.push(item),
                    Err(_) => break,
                }
            }
            if let Err(error) = self.write(&mut batch).await {
                tracing::warn!(%error, "reports and events could not be written");
            }
            batch.clear();
        }
    }

    async fn write(&self, batch: &mut Vec<Item>) -> Result<(), crate::store::records::Error> {
        let mut txn = Txn::new();
        let mut events: Vec<Event> = Vec::new();
        let mut sequences: std::collections::HashMap<Uid, u64> = std::collections::HashMap::new();
        for item in batch.drain(..) {
            match item {
                Item::Report(report) => txn = self.add_report(txn, *report, &mut sequences).await?,
                Item::Event(event) => self.add_event(*event, &mut events).await?,
                Item::Prune => self.remove_old().await?,
            }
        }
        for event in events {
            let key = keys::record(Kind::Event, &event.metadata.namespace, &event.metadata.name);
            txn = txn.put_raw(key, to_json(&event));
        }
        if txn.ops() > 0 {
            txn.commit(self.records.store().as_ref()).await?;
        }
        Ok(())
    }

    /// Numbers a report, and removes the oldest of its object beyond the bound.
    async fn add_report(
        &self,
        txn: Txn,
        mut report: ReconcileReport,
        sequences: &mut std::collections::HashMap<Uid, u64>,
    ) -> Result<Txn, Error> {
        let uid = report.uid.clone();
        let last = match sequences.get(&uid) {
            Some(&last) => last,
            None => self.last_sequence(&uid).await?,
        };
        report.sequence = last + 1;
        sequences.insert(uid.clone(), report.sequence);
        let keep = self.retention.reports_per_object as u64;
        let txn = txn.put_raw(keys::report(&uid, report.sequence), to_json(&report));
        Ok(match report.sequence.checked_sub(keep).filter(|&old| old > 0) {
            Some(old) => txn.delete_raw(keys::report(&uid, old)),
            None => txn,
        })
    }

    async fn last_sequence(&self, uid: &Uid) -> Result<u64, Error> {
        let newest = self.records.store().last(&keys::reports_of(uid)).await?;
        let number = |key: &Key| key.as_str().rsplit('/').next().and_then(|text| text.parse().ok());
        Ok(newest.and_then(|record| number(&record.key)).unwrap_or(0))
    }

    /// The same thing said again counts up, as Kubernetes' events do.
    async fn add_event(&self, mut event: Event, events: &mut Vec<Event>) -> Result<(), Error> {
        let name = &event.metadata.name;
        if let Some(same) = events.iter_mut().find(|other| other.metadata.name == *name) {
            same.count += 1;
            same.last_timestamp = event.last_timestamp;
            return Ok(());
        }
        let key = keys::record(Kind::Event, &event.metadata.namespace, name);
        if let Some(stored) = self.records.store().get(&key).await?
            && let Ok(stored) = serde_json::from_slice::<Event>(&stored.value)
        {
            event.count += stored.count;
            event.first_timestamp = stored.first_timestamp;
            event.metadata = stored.metadata;
        }
        events.push(event);
        Ok(())
    }

    async fn remove_old(&self) -> Result<(), crate::store::records::Error> {
        let now = self.clock.now().time;
        let store = self.records.store();
        let mut stale: Vec<Key> = Vec::new();
        let events = keys::kind_prefix(Kind::Event);
        let walked = self.records.walk(&events, |record| {
            let is_old = serde_json::from_slice::<Event>(&record.value)
                .map_or(true, |event| now.since(event.last_timestamp) >= self.retention.events);
            if is_old {
                stale.push(record.key);
            }
            ControlFlow::Continue(())
        });
        walked.await?;
        let mut by_age: Vec<(Rev, Key)> = Vec::new();
        let walked = self.records.walk(keys::REPORTS, |record| {
            by_age.push((record.rev, record.key));
            ControlFlow::Continue(())
        });
        walked.await?;
        let surplus = by_age.len().saturating_sub(self.retention.reports);
        by_age.sort();
        stale.extend(by_age.into_iter().take(surplus).map(|(_, key)| key));
        for keys in stale.chunks(crate::store::COMMIT_OPS_MAX) {
            let txn = keys.iter().fold(Txn::new(), |txn, key| txn.delete_raw(key.clone()));
            txn.commit(store.as_ref()).await?;
        }
        Ok(())
    }
}

fn to_json(value: &impl serde::Serialize) -> Vec<u8> {
    // Plain structs with string keys: they always have a JSON form.
    serde_json::to_vec(value).unwrap_or_default()
}

/// What was seen, in one line.
fn observed(world: &World) -> String {
    let process = match &world.process {
        Process::Absent => "no process".to_owned(),
        Process::NotStarted { failure } => format!("start failed ({})", failure.reason),
        Process::Unproven => "a process that cannot be proven gone".to_owned(),
        Process::Live(live) => {
            let open = if matches!(live.acp.open, Call::Done(_)) { "open" } else { "not open" };
            format!("process {:?}, session {open}", stage_name(&live.stage))
        }
    };
    let turns: Vec<_> = world
        .turns
        .iter()
        .map(|turn| format!("{} {:?}", turn.record.metadata.name, turn.record.status.phase))
        .collect();
    let turns = if turns.is_empty() { "no open turn".to_owned() } else { turns.join(", ") };
    format!("desired {:?}; {process}; {turns}", world.session.spec.desired_state)
}

const fn stage_name(stage: &crate::plan::world::Stage) -> &'static str {
    use crate::plan::world::Stage;
    match stage {
        Stage::Gated { .. } => "gated",
        Stage::Running => "running",
        Stage::Exited { .. } => "exited",
        Stage::Empty { .. } => "empty",
        Stage::Unprovable => "unprovable",
    }
}

fn turn_event(turn: &Turn, now: Time) -> Event {
    let severity = match turn.status.phase {
        TurnPhase::Completed | TurnPhase::Cancelled => EventType::Normal,
        TurnPhase::Pending
        | TurnPhase::Starting
        | TurnPhase::Running
        | TurnPhase::Cancelling
        | TurnPhase::Failed
        | TurnPhase::Expired
        | TurnPhase::Interrupted
        | TurnPhase::Discarded => EventType::Warning,
    };
    let reason = format!("Turn{:?}", turn.status.phase);
    let message = match turn.status.code {
        Some(code) => format!("{code}: {}", turn.status.message),
        None => format!("the turn ended with {} bytes", turn.status.response_bytes),
    };
    event(Kind::Turn, &turn.metadata, severity, &reason, &message, now)
}

/// What happened to a request, told of it and of its session.
fn request_events(session: &Session, request: &PermissionRequest, now: Time) -> [Event; 2] {
    let name = &request.metadata.name;
    let call = &request.spec.tool_call;
    let (severity, reason, message) = match (request.status.phase, request.spec.decision) {
        (PermissionPhase::Pending, _) => {
            let tool = call.title.as_ref().or(call.kind.as_ref()).unwrap_or(&call.id);
            let message = format!("{name}: the agent asks: {tool}; `spawnlet approve {name}`");
            (EventType::Normal, "PermissionRequested", message)
        }
        (PermissionPhase::Answered, Some(Decision::Allow)) => {
            (EventType::Normal, "PermissionAllowed", format!("{name}: allowed, once"))
        }
        (PermissionPhase::Answered, Some(Decision::Deny) | None) => {
            (EventType::Normal, "PermissionDenied", format!("{name}: denied"))
        }
        (PermissionPhase::TimedOut, _) => {
            let message = format!("{name}: {}", request.status.message);
            (EventType::Warning, "PermissionTimedOut", message)
        }
        (PermissionPhase::Cancelled, _) => {
            let message = format!("{name}: {}", request.status.message);
            (EventType::Normal, "PermissionCancelled", message)
        }
    };
    [(Kind::PermissionRequest, &request.metadata), (Kind::Session, &session.metadata)]
        .map(|(kind, object)| event(kind, object, severity, reason, &message, now))
}

fn event(
    kind: Kind,
    object: &ObjectMeta,
    severity: EventType,
    reason: &str,
    message: &str,
    now: Time,
) -> Event {
    let namespace = if object.namespace.is_empty() {
        Namespace::from("default")
    } else {
        object.namespace.clone()
    };
    Event {
        api_version: Kind::Event.api_version().to_owned(),
        kind: Kind::Event.as_str().to_owned(),
        metadata: ObjectMeta {
            name: event_name(object, reason, message),
            namespace,
            uid: Uid::new(uuid::Uuid::now_v7().to_string()),
            creation_timestamp: Some(now),
            ..ObjectMeta::default()
        },
        involved_object: ObjectReference::to(kind, object),
        severity,
        reason: reason.to_owned(),
        message: message.to_owned(),
        count: 1,
        first_timestamp: now,
        last_timestamp: now,
        source: EventSource { component: "spawnlet".to_owned() },
    }
}

/// The same for the same thing said of the same object, so that it is counted up.
fn event_name(object: &ObjectMeta, reason: &str, message: &str) -> Name {
    use sha2::{Digest, Sha256};
    let digest = Sha256::digest(format!("{}\n{reason}\n{message}", object.uid));
    let hash = crate::api::hex(&digest[..8]);
    Name::new(format!("{}.{hash}", object.name))
}
