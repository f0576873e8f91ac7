//! The reconcile loop: watch -> queue -> observe -> plan -> act -> report.
//!
//! Level-triggered: a pass takes no hint of what changed, it looks at everything that its session
//! has. One pass a session at a time, a few sessions at the same time. Nothing polls: a pass is set
//! off by a change of a record, by a process, by a deadline, or by the two backstops (a resync every
//! five minutes and a sweep for orphans every five seconds while there are processes).
//!
//! Invariants: `act` is the only place with side effects; a pass has a time budget; a panic in one
//! is caught, counted and tried again; the long waits are states, not awaits.

mod act;
mod agents;
mod feed;
mod idle;
mod jumps;
mod live;
mod notices;
mod observe;
mod output;
pub mod process;
pub mod prompts;
mod pump;
pub mod queue;
mod report;
mod requests;
mod services;
#[cfg(test)]
mod tests;
mod trees;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::api::report::{Outcome, StepOutcome, StepReport, Trigger};
use crate::api::{Dur, Name, Namespace, Uid};
use crate::clock::{Mono, Now, SharedClock};
use crate::plan::capacity::Limits;
use crate::plan::line::Line;
use crate::plan::spending;
use crate::plan::{Plan, Requeue, Told, World, plan};
use crate::ports;
use crate::slots::SharedSlots;
use crate::store::SharedBlobs;
use crate::store::records::Records;

use agents::Agents;
use live::Registry;
use process::Launcher;
use prompts::PromptLog;
use queue::WorkQueue;
use report::Reporter;
pub use report::Retention;

/// A session's namespace and name: what the loop works on.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ObjectKey {
    /// The session's namespace.
    pub namespace: Namespace,
    /// The session's name.
    pub name: Name,
}

impl std::fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

type Queue = WorkQueue<ObjectKey>;

/// Passes at the same time: they wait for the store far more than they compute.
const PASSES_MAX: usize = 8;
/// A pass that takes longer is given up and tried again: nothing in it may wait.
const PASS_BUDGET: Duration = Duration::from_secs(5);
/// The backstop against missed changes.
const RESYNC_EVERY: Duration = Duration::from_secs(300);
/// How long an orderly stop may take: the ladder's graces and a little more.
const SHUTDOWN_MAX: Duration = Duration::from_secs(15);

/// What the loop is made of.
pub struct Options {
    /// The store's random id.
    pub store_id: String,
    /// The machine's boot.
    pub boot_id: String,
    /// Whether the daemon before this one stopped in order.
    pub stopped_cleanly: bool,
    /// How long a request for permission waits for somebody to decide.
    pub permission_timeout: Duration,
    /// Bounds on turns at the same time.
    pub limits: Limits,
    /// What a tree of sessions may use.
    pub tree_limits: spending::Limits,
    /// Idle processes that the children of one session may keep.
    pub idle_processes_per_parent_max: usize,
    /// How long reports and events are kept.
    pub retention: Retention,
    /// MCP servers that every session gets, below its own and its agent's.
    pub mcp_servers: Vec<crate::api::agent::McpServer>,
    /// Where agents that delegate find the daemon.
    pub reach: Reach,
}

/// Where the daemon listens, as an agent on this machine reaches it.
#[derive(Clone, Debug, Default)]
pub struct Reach {
    /// `http://HOST:PORT`.
    pub url: String,
    /// The MCP endpoint below it.
    pub mcp_url: String,
}

/// The parts that the loop works with.
pub struct Parts {
    /// Reads records, and the store that is written to.
    pub records: Records,
    /// Prompts, transcripts, responses.
    pub blobs: SharedBlobs,
    /// Uids of prompts that may have been sent.
    pub journal: Arc<dyn PromptLog>,
    /// Starts processes.
    pub launcher: Arc<dyn Launcher>,
    /// Time.
    pub clock: SharedClock,
    /// The operator's programs that are told of children.
    pub hooks: Option<Arc<dyn crate::ports::Hooks>>,
    /// The turn slots, shared with admission.
    pub slots: SharedSlots,
    /// Where external sessions are told of their children.
    pub streams: Option<Arc<dyn ports::Streams>>,
}

/// The loop's shared state.
pub struct Controller {
    options: Options,
    records: Records,
    blobs: SharedBlobs,
    journal: Arc<dyn PromptLog>,
    launcher: Arc<dyn Launcher>,
    clock: SharedClock,
    registry: Arc<Registry>,
    queue: Arc<Queue>,
    hooks: Option<Arc<dyn crate::ports::Hooks>>,
    slots: SharedSlots,
    streams: Option<Arc<dyn ports::Streams>>,
    /// Turns of which this daemon told on streams, until what came of it is recorded.
    told: Arc<Mutex<HashMap<Uid, Told>>>,
    /// Sessions that wait for a slot.
    line: Mutex<Line<ObjectKey>>,
    /// Turns that this daemon took.
    taken: Mutex<HashSet<Uid>>,
    /// Turns that held a slot when the loop was built: by a daemon before this one.
    held_before: HashSet<Uid>,
    /// Sessions whose process is idle.
    idle: idle::Idle,
    /// How far the wall clock stood from the steady one at the last pass, in milliseconds.
    wall_skew_ms: AtomicI64,
    /// The pumps of all processes.
    pumps: Mutex<JoinSet<()>>,
    reporter: Reporter,
    agents: Arc<Agents>,
    is_stopping: AtomicBool,
    /// Sessions of the boot that were not looked at yet.
    booting: Mutex<HashSet<ObjectKey>>,
    /// Whether each of them was.
    booted: watch::Sender<bool>,
}

/// Reads what the loop holds in memory.
#[derive(Clone)]
pub struct Handle {
    controller: Arc<Controller>,
}

impl Handle {
    /// What the API may read of running sessions.
    #[must_use]
    pub fn live(&self) -> Arc<dyn ports::Live> {
        Arc::clone(&self.controller.registry) as Arc<dyn ports::Live>
    }

    /// Sessions that have a process; their uids.
    #[must_use]
    pub fn sessions_with_process(&self) -> Vec<Uid> {
        self.controller.registry.sessions()
    }

    /// Waits until every session that was not at rest when the daemon started was looked at once:
    /// from then on no record tells of the daemon before.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn booted(&self) {
        // The sender lives as long as the controller, which this handle holds.
        let _ = self.controller.booted.subscribe().wait_for(|booted| *booted).await;
    }

    /// Keys that wait or are worked on.
    #[must_use]
    pub fn queue_depth(&self) -> usize {
        self.controller.queue.depth()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // What these hold is changed by single calls into the standard library: always whole.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Controller {
    /// Puts the loop together. Leftovers of other daemons must be gone by now, and nobody may take a
    /// slot yet: whoever holds one now holds it by a daemon before this one.
    ///
    /// # Errors
    ///
    /// The store's.
    pub async fn build(
        options: Options,
        parts: Parts,
    ) -> Result<(Service, Handle), crate::store::Error> {
        let holders = parts.slots.lock().await;
        let held_before = holders.holders().iter().map(|holder| holder.turn.clone()).collect();
        drop(holders);
        let queue = Arc::new(Queue::new(Arc::clone(&parts.clock)));
        let reporter =
            Reporter::new(parts.records.clone(), Arc::clone(&parts.clock), options.retention);
        let agents = Arc::new(Agents::new(
            parts.records.clone(),
            Arc::clone(&parts.launcher),
            Arc::clone(&parts.clock),
        ));
        let wall_skew_ms = AtomicI64::new(parts.clock.wall_skew_ms());
        let controller = Arc::new(Self {
            options,
            records: parts.records,
            blobs: parts.blobs,
            journal: parts.journal,
            launcher: parts.launcher,
            clock: parts.clock,
            registry: Arc::new(Registry::default()),
            queue,
            hooks: parts.hooks,
            slots: parts.slots,
            streams: parts.streams,
            told: Arc::default(),
            line: Mutex::default(),
            taken: Mutex::new(HashSet::new()),
            held_before,
            idle: idle::Idle::default(),
            wall_skew_ms,
            pumps: Mutex::new(JoinSet::new()),
            reporter,
            agents,
            is_stopping: AtomicBool::new(false),
            booting: Mutex::new(HashSet::new()),
            booted: watch::channel(false).0,
        });
        Ok((Service { controller: Arc::clone(&controller) }, Handle { controller }))
    }

    /// A pass over a session has ended, however it went.
    fn looked_at(&self, key: &ObjectKey) {
        let mut booting = lock(&self.booting);
        if booting.remove(key) && booting.is_empty() {
            self.booted.send_replace(true);
        }
    }

    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    fn take(&self, turn: Uid) {
        self.registry.begin_transcript(turn.clone());
        lock(&self.taken).insert(turn);
    }

    fn untake(&self, turn: &Uid) {
        self.registry.end_transcript(turn);
        lock(&self.taken).remove(turn);
    }

    fn is_taken(&self, turn: &Uid) -> bool {
        lock(&self.taken).contains(turn)
    }

    /// Runs a pump until its process is gone.
    fn spawn(&self, pump: impl Future<Output = ()> + Send + 'static) {
        let mut pumps = lock(&self.pumps);
        while pumps.try_join_next().is_some() {}
        pumps.spawn(pump);
    }

    /// Offers the slots that are free to those who wait. To be called after every pass: whatever
    /// it did with a slot, with its place in the line or with an offer, is seen here.
    async fn serve_line(&self) {
        let mut slots = self.slots.lock().await;
        if let Err(error) = slots.refresh(self.records.store()).await {
            // Whose commit is unknown tries again, and comes by here again.
            tracing::debug!(%error, "the holders of slots could not be read");
            return;
        }
        let offered = lock(&self.line).offer(slots.holders(), self.options.limits);
        for key in offered {
            self.queue.add(key, Trigger::Watch);
        }
    }

    async fn pass(&self, key: &ObjectKey, triggers: &BTreeSet<Trigger>) -> Result<(), String> {
        let started = self.clock.now();
        let world = match self.observe(key).await {
            Ok(Some(world)) => world,
            Ok(None) => {
                self.abandon(key);
                lock(&self.line).leave(key);
                return Ok(());
            }
            Err(error) => return Err(format!("the world could not be read: {error}")),
        };
        self.watch_wall_clock(&world.session, started.time);
        let decided = plan(&world, started);
        let (steps, failure, is_stale) = self.carry_out(key, &world, &decided).await;
        for name in &decided.wakes {
            let child = ObjectKey { namespace: key.namespace.clone(), name: name.clone() };
            self.queue.add(child, Trigger::Watch);
        }
        if decided.wakes_processes {
            self.look_at_all_processes();
        }
        if decided.waits_for_slot {
            lock(&self.line).join(key, world.session.status.lineage.parent.as_ref());
        } else if !is_stale {
            lock(&self.line).leave(key);
        }
        let outcome = if failure.is_some() { Outcome::BackOff } else { decided.standing };
        if !steps.is_empty() && !is_stale {
            let pass =
                report::Pass { world: &world, plan: &decided, triggers, started, steps, outcome };
            self.reporter.pass(pass, failure.as_deref(), self.clock.now());
        }
        match failure {
            None => {
                self.requeue(key, &decided, started);
                Ok(())
            }
            Some(_) if is_stale => {
                self.queue.add(key.clone(), Trigger::Watch);
                Ok(())
            }
            Some(failure) => Err(failure),
        }
    }

    async fn carry_out(
        &self,
        key: &ObjectKey,
        world: &World,
        decided: &Plan,
    ) -> (Vec<StepReport>, Option<String>, bool) {
        let mut reports = Vec::with_capacity(decided.steps.len());
        let mut failure: Option<String> = None;
        let mut is_stale = false;
        let mut granted = None;
        for step in &decided.steps {
            let begun = self.clock.now();
            let (outcome, error) = if failure.is_some() {
                (StepOutcome::Skipped, None)
            } else {
                match self.act(key, world, step, &mut granted).await {
                    Ok(()) => (StepOutcome::Done, None),
                    Err(error) => {
                        is_stale = error.is_stale_world();
                        failure = Some(format!("{}: {error}", step.name()));
                        (StepOutcome::Failed, Some(error.to_string()))
                    }
                }
            };
            let took = self.clock.now().mono.since(begun.mono);
            let duration_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
            reports.push(StepReport { name: step.name(), outcome, duration_ms, error });
        }
        (reports, failure, is_stale)
    }

    fn requeue(&self, key: &ObjectKey, decided: &Plan, started: Now) {
        self.queue.forget(key);
        if let Requeue::After(wait) = decided.requeue {
            let spent = self.clock.now().mono.since(started.mono);
            self.queue.add_after(key.clone(), wait.saturating_sub(spent), Trigger::Timer);
        }
    }
}

/// The loop itself.
pub struct Service {
    controller: Arc<Controller>,
}

impl Service {
    /// Runs until `shutdown`, then stops every process in order, for at most 15 s.
    ///
    /// # Errors
    ///
    /// The store's, at the start: what needs looking at could not be read.
    pub async fn run(
        self,
        shutdown: CancellationToken,
    ) -> Result<(), crate::store::records::Error> {
        let controller = self.controller;
        let mut helpers = JoinSet::new();
        let feeds = CancellationToken::new();
        let rev = controller.boot().await?;
        controller.agents.look_at_all(Trigger::Boot).await?;
        helpers.spawn(Arc::clone(&controller.agents).run(feeds.clone()));
        helpers.spawn(feed::follow(Arc::clone(&controller), rev, feeds.clone()));
        helpers.spawn(Arc::clone(&controller).follow_streams(feeds.clone()));
        let reporting = CancellationToken::new();
        helpers.spawn({
            let controller = Arc::clone(&controller);
            let reporting = reporting.clone();
            async move { controller.reporter.run(reporting).await }
        });
        reconcile(&controller, &shutdown).await;
        feeds.cancel();
        lock(&controller.pumps).abort_all();
        reporting.cancel();
        while helpers.join_next().await.is_some() {}
        Ok(())
    }
}

/// Takes keys and runs passes until everything has stopped.
async fn reconcile(controller: &Arc<Controller>, shutdown: &CancellationToken) {
    let mut passes: JoinSet<()> = JoinSet::new();
    let mut keys: HashMap<tokio::task::Id, ObjectKey> = HashMap::new();
    let mut resync = tokio::time::interval(RESYNC_EVERY);
    // The first tick comes at once; the boot has just looked at everything.
    resync.tick().await;
    let mut stop_by: Option<Mono> = None;
    loop {
        if stop_by.is_some() && controller.registry.len() == 0 && passes.is_empty() {
            return;
        }
        let may_take = passes.len() < PASSES_MAX;
        let left = stop_by.map(|at| at.since(controller.clock.now().mono));
        // Every branch is cancel safe: a key is taken only when its branch wins.
        tokio::select! {
            biased;
            () = shutdown.cancelled(), if stop_by.is_none() => {
                controller.is_stopping.store(true, Ordering::SeqCst);
                stop_by = Some(controller.clock.now().mono.plus(SHUTDOWN_MAX));
                // What has no process waits for the next start: a backlog must not hold up the end
                // of what runs.
                controller.queue.clear();
                controller.look_at_all_processes();
            }
            () = tokio::time::sleep(left.unwrap_or_default()), if left.is_some() => {
                tracing::error!(processes = controller.registry.len(), "the stop took too long");
                return;
            }
            Some(joined) = passes.join_next_with_id() => finish(controller, &mut keys, joined),
            (key, triggers) = controller.queue.next(), if may_take => {
                let task = passes.spawn(run_pass(Arc::clone(controller), key.clone(), triggers));
                keys.insert(task.id(), key);
            }
            _ = resync.tick() => drop(controller.resync().await),
        }
    }
}

/// One pass within its budget; a failure comes back after its back-off.
async fn run_pass(controller: Arc<Controller>, key: ObjectKey, triggers: BTreeSet<Trigger>) {
    let outcome = tokio::time::timeout(PASS_BUDGET, controller.pass(&key, &triggers)).await;
    let failure = match outcome {
        Ok(Ok(())) => {
            controller.serve_line().await;
            return;
        }
        Ok(Err(failure)) => failure,
        Err(_) => {
            let budget = Dur::from_secs(PASS_BUDGET.as_secs());
            let why =
                format!("a pass took longer than {budget} and was given up; it is tried again");
            controller.tell_stalled(&key, &why).await;
            why
        }
    };
    // What was offered to it goes to the next one while it waits.
    lock(&controller.line).leave(&key);
    controller.serve_line().await;
    let pause = controller.queue.retry(key.clone());
    tracing::warn!(session = %key, %failure, pause_ms = pause.as_millis(), "a pass failed");
}

/// A pass has ended; one that panicked is tried again like one that failed.
fn finish(
    controller: &Arc<Controller>,
    keys: &mut HashMap<tokio::task::Id, ObjectKey>,
    joined: Result<(tokio::task::Id, ()), tokio::task::JoinError>,
) {
    let (id, panic) = match joined {
        Ok((id, ())) => (id, None),
        Err(error) => (error.id(), Some(error)),
    };
    let Some(key) = keys.remove(&id) else { return };
    if let Some(error) = panic {
        lock(&controller.line).leave(&key);
        let pause = controller.queue.retry(key.clone());
        tracing::error!(session = %key, %error, pause_ms = pause.as_millis(), "a pass panicked");
        let (told, session) = (Arc::clone(controller), key.clone());
        controller.spawn(async move {
            let why = "a pass panicked; it is tried again, and the daemon's log says more";
            told.tell_stalled(&session, why).await;
        });
    }
    controller.queue.done(&key);
    controller.looked_at(&key);
}
