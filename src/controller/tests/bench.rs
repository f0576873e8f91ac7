//! A daemon's loop over a store in memory, which can die and start again.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::gate::{Gate, Side};
use super::ground::{Ground, Machine, Paper};
use crate::admission::{self, Admission, Admitted, DeleteOptions, Refusal, WriteOptions, Writer};
use crate::api::turn::TurnPhase;
use crate::api::{
    Kind, PermissionRequest, PermissionRequestSpec, Session, SessionSpec, Turn, TurnSpec, Uid,
};
use crate::clock::{Clock, Now, SharedClock, SystemClock};
use crate::controller::{Controller, Handle, Options, Parts, Service};
use crate::plan::capacity::{Holder, Limits};
use crate::slots::{SharedSlots, Slots};
use crate::store::fault::{FaultStore, Plan};
use crate::store::memory::MemoryStore;
use crate::store::records::{Page, Records, decode};
use crate::store::{BlobId, Blobs, Change, Rev, SharedBlobs, SharedStore, Store, Stream, keys};

/// A look is taken so often while something is waited for.
const LOOK: Duration = Duration::from_millis(5);

/// Whether there is time for the long runs.
pub(super) fn is_thorough() -> bool {
    std::env::var("SPAWNLET_TIER").is_ok_and(|tier| tier == "1" || tier == "2")
}

/// How long until the next look: the longer it took so far, the less it matters.
fn look(waited: Duration) -> Duration {
    LOOK.max(waited / 200)
}

/// The paused clock of a test, with a wall clock that moves with it until a test moves it alone.
#[derive(Default)]
pub(super) struct Wall {
    steady: SystemClock,
    skew_ms: AtomicI64,
    back_ms: AtomicI64,
}

impl Wall {
    /// The wall clock jumps.
    pub(super) fn jump(&self, ms: i64) {
        self.skew_ms.fetch_add(ms, Ordering::SeqCst);
    }

    /// The next daemon finds the wall clock set back. For while none runs.
    pub(super) fn set_back(&self, by: Duration) {
        self.back_ms.fetch_add(i64::try_from(by.as_millis()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for Wall {
    fn now(&self) -> Now {
        let now = self.steady.now();
        let time = now.time.as_millis() - self.back_ms.load(Ordering::SeqCst);
        Now { time: crate::api::Time::from_millis(time), ..now }
    }

    fn wall_skew_ms(&self) -> i64 {
        self.skew_ms.load(Ordering::SeqCst)
    }
}

/// A running daemon.
struct Daemon {
    handle: Handle,
    tasks: JoinSet<()>,
    shutdown: CancellationToken,
}

/// Everything.
pub(super) struct Bench {
    pub(super) ground: Arc<Ground>,
    pub(super) memory: Arc<MemoryStore>,
    pub(super) gate: Arc<Gate>,
    /// What the daemon works with, where that is not the gate itself.
    faults: Option<Arc<FaultStore>>,
    pub(super) admission: Admission,
    pub(super) clock: SharedClock,
    pub(super) limits: Limits,
    /// What a tree may use.
    pub(super) tree_limits: crate::plan::spending::Limits,
    /// Idle processes that one parent's children may keep.
    pub(super) idle_max: usize,
    /// Moves the wall clock.
    pub(super) wall: Arc<Wall>,
    stopped_cleanly: bool,
    /// Whether the turns that callers ask for say whose they are, so that they are told of their ends.
    pub(super) notifies: bool,
    /// Where external sessions are told.
    pub(super) streams: Option<Arc<dyn crate::ports::Streams>>,
    daemon: Option<Daemon>,
    /// The running daemon's slots, or the last one's.
    slots: SharedSlots,
}

impl Bench {
    /// A daemon that runs over an empty store.
    pub(super) async fn new() -> Self {
        Self::with_slots(8).await
    }

    pub(super) async fn with_slots(max_active_turns: usize) -> Self {
        let mut bench = Self::still(max_active_turns);
        bench.start().await;
        bench
    }

    /// Nothing runs yet.
    pub(super) fn still(max_active_turns: usize) -> Self {
        let memory = Arc::new(MemoryStore::new());
        let ground = Arc::new(Ground::default());
        let wall = Arc::new(Wall::default());
        let clock: SharedClock = wall.clone();
        let gate = Arc::new(Gate::new(memory.clone(), memory.clone(), ground.clone()));
        let limits = admission::Limits::default();
        let admission = Admission::new(
            memory.clone(),
            memory.clone(),
            clock.clone(),
            SharedSlots::default(),
            limits,
        );
        let limits = Limits { max_active_turns, max_active_turns_per_parent: max_active_turns };
        Self {
            ground,
            memory,
            gate,
            faults: None,
            admission,
            clock,
            limits,
            tree_limits: crate::plan::spending::Limits::default(),
            idle_max: 32,
            wall,
            stopped_cleanly: false,
            notifies: false,
            streams: None,
            daemon: None,
            slots: SharedSlots::default(),
        }
    }

    /// Its daemon's store is faulty by the seed. Nothing runs yet.
    pub(super) fn faulty(max_active_turns: usize, seed: u64) -> (Self, Arc<FaultStore>) {
        let mut bench = Self::still(max_active_turns);
        let (store, blobs) = (bench.gate.clone(), bench.gate.clone());
        let faults = Arc::new(FaultStore::new(store, blobs, Plan::harsh(), seed));
        bench.faults = Some(faults.clone());
        (bench, faults)
    }

    /// Starts a daemon. No process of another one is left.
    pub(super) async fn start(&mut self) {
        self.start_after(async |_| {}).await;
    }

    /// Starts a daemon whose loop runs only after somebody did something with its API.
    pub(super) async fn start_after(&mut self, before: impl AsyncFnOnce(&Self)) {
        assert!(self.daemon.is_none());
        self.until("every process of the daemon before is gone", |bench| bench.ground.alive() == 0)
            .await;
        let (service, handle) = loop {
            match self.build().await {
                Ok(built) => break built,
                // A faulty store: the daemon's start is tried again by whoever runs it.
                Err(_) => self.pass_time(LOOK).await,
            }
        };
        before(self).await;
        let shutdown = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let ground = Arc::clone(&self.ground);
        tasks.spawn({
            let shutdown = shutdown.clone();
            async move {
                if let Err(error) = service.run(shutdown).await {
                    ground.note(format!("the loop did not start: {error}"));
                }
            }
        });
        self.daemon = Some(Daemon { handle, tasks, shutdown });
    }

    async fn build(&mut self) -> Result<(Service, Handle), crate::store::Error> {
        let options = Options {
            permission_timeout: Duration::from_secs(300),
            store_id: "store".into(),
            boot_id: "boot".into(),
            stopped_cleanly: self.stopped_cleanly,
            limits: self.limits,
            tree_limits: self.tree_limits,
            idle_processes_per_parent_max: self.idle_max,
            mcp_servers: Vec::new(),
            retention: super::super::Retention {
                reports_per_object: 32,
                reports: 10_000,
                events: Duration::from_secs(3600),
            },
            reach: super::super::Reach {
                url: "http://127.0.0.1:7420".into(),
                mcp_url: "http://127.0.0.1:7420/mcp".into(),
            },
        };
        let (store, blobs): (SharedStore, SharedBlobs) = match &self.faults {
            Some(faults) => (faults.clone(), faults.clone()),
            None => (self.gate.clone(), self.gate.clone()),
        };
        self.slots = SharedSlots::new(tokio::sync::Mutex::new(Slots::load(&store).await?));
        let parts = Parts {
            hooks: None,
            streams: self.streams.clone(),
            slots: self.slots.clone(),
            records: Records::new(store),
            blobs,
            journal: Arc::new(Paper(Arc::clone(&self.ground))),
            launcher: Arc::new(Machine(Arc::clone(&self.ground))),
            clock: Arc::clone(&self.clock),
        };
        Controller::build(options, parts).await
    }

    /// The slots that admission and loop share.
    pub(super) fn shared_slots(&self) -> SharedSlots {
        self.slots.clone()
    }

    /// The daemon dies; its processes are killed as the shims would.
    pub(super) async fn crash(&mut self) {
        self.daemon = None;
        self.stopped_cleanly = false;
        self.pass_time(Duration::from_millis(1)).await;
        if self.gate.stood.is_cancelled() {
            self.gate = Arc::new(self.gate.successor());
        }
    }

    /// The daemon stops in order.
    pub(super) async fn stop(&mut self) {
        let mut daemon = self.daemon.take().unwrap();
        daemon.shutdown.cancel();
        while let Some(joined) = daemon.tasks.join_next().await {
            joined.unwrap();
        }
        self.stopped_cleanly = true;
    }

    /// Whether the loop ended by itself.
    pub(super) fn has_ended(&mut self) -> bool {
        self.daemon.as_mut().is_some_and(|daemon| daemon.tasks.try_join_next().is_some())
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.daemon.as_ref().unwrap().handle
    }

    pub(super) async fn pass_time(&self, duration: Duration) {
        tokio::time::sleep(duration).await;
    }

    /// Waits until something holds, for an hour at most.
    pub(super) async fn until(&self, what: &str, holds: impl Fn(&Self) -> bool) {
        let mut waited = Duration::ZERO;
        while !holds(self) {
            assert!(waited < Duration::from_secs(3600), "not within an hour: {what}");
            let pause = look(waited);
            self.pass_time(pause).await;
            waited += pause;
        }
    }

    /// Stands at this commit from now on.
    pub(super) fn die_at(&self, commit: u64, side: Side) {
        self.gate.stop_at(commit, side);
    }

    pub(super) async fn try_create(&self, kind: Kind, body: Value) -> Result<Admitted, Refusal> {
        let options = WriteOptions::default();
        self.admission.create(kind, None, body, &options, &Writer::Operator).await
    }

    /// An agent that does what its script says.
    pub(super) async fn agent(&self, name: &str, script: &str) {
        let body = json!({"metadata": {"name": name}, "spec": {"command": script}});
        self.try_create(Kind::Agent, body).await.unwrap();
    }

    /// A session, with more in its spec.
    pub(super) async fn session(&self, name: &str, agent: &str, more: Value) {
        let mut spec = json!({"agent": agent, "cwd": "/w"});
        for (field, value) in more.as_object().unwrap() {
            spec[field] = value.clone();
        }
        let body = json!({"metadata": {"name": name}, "spec": spec});
        self.try_create(Kind::Session, body).await.unwrap();
    }

    /// A turn, and its uid.
    pub(super) async fn turn(&self, name: &str, session: &str, prompt: &str) -> Uid {
        let body =
            json!({"metadata": {"name": name}, "spec": {"session": session, "prompt": prompt}});
        let admitted = self.try_create(Kind::Turn, body).await.unwrap();
        admitted.object["metadata"]["uid"].as_str().unwrap().into()
    }

    pub(super) async fn patch(&self, kind: Kind, name: &str, patch: Value) {
        let (namespace, name) = ("default".into(), name.into());
        let options = WriteOptions::default();
        self.admission
            .patch(kind, &namespace, &name, patch, &options, &Writer::Operator)
            .await
            .unwrap();
    }

    pub(super) async fn cancel_turn(&self, name: &str) {
        self.patch(Kind::Turn, name, json!({"spec": {"desiredState": "cancelled"}})).await;
    }

    pub(super) async fn cancel_session(&self, name: &str) {
        self.patch(Kind::Session, name, json!({"spec": {"desiredState": "cancelled"}})).await;
    }

    pub(super) async fn delete(&self, kind: Kind, name: &str) {
        let options = DeleteOptions::default();
        self.admission.delete(kind, &"default".into(), &name.into(), &options).await.unwrap();
    }

    fn records(&self) -> Records {
        Records::new(self.memory.clone())
    }

    pub(super) async fn find_turn(&self, name: &str) -> Option<Turn> {
        self.records().get::<TurnSpec>(&"default".into(), &name.into()).await.unwrap()
    }

    pub(super) async fn find_session(&self, name: &str) -> Option<Session> {
        self.records().get::<SessionSpec>(&"default".into(), &name.into()).await.unwrap()
    }

    pub(super) async fn all_turns(&self) -> Vec<Turn> {
        self.records().list::<TurnSpec>(None, &Page::ALL).await.unwrap().items
    }

    /// Every request for permission, oldest first.
    pub(super) async fn all_requests(&self) -> Vec<PermissionRequest> {
        let listed = self.records().list::<PermissionRequestSpec>(None, &Page::ALL).await;
        let mut requests = listed.unwrap().items;
        requests.sort_by_key(|request| request.metadata.uid.clone());
        requests
    }

    /// Waits until so many requests wait, and tells them.
    pub(super) async fn until_asked(&self, count: usize) -> Vec<PermissionRequest> {
        let mut waited = Duration::ZERO;
        loop {
            let mut requests = self.all_requests().await;
            requests.retain(|request| request.status.phase.is_pending());
            if requests.len() == count {
                return requests;
            }
            assert!(waited < Duration::from_secs(3600), "these wait: {requests:#?}");
            let pause = look(waited);
            self.pass_time(pause).await;
            waited += pause;
        }
    }

    pub(super) async fn all_sessions(&self) -> Vec<Session> {
        self.records().list::<SessionSpec>(None, &Page::ALL).await.unwrap().items
    }

    /// Waits until a turn is so.
    pub(super) async fn until_turn(&self, name: &str, holds: impl Fn(&Turn) -> bool) -> Turn {
        let mut waited = Duration::ZERO;
        loop {
            let turn = self.find_turn(name).await;
            if let Some(turn) = turn.clone().filter(|turn| holds(turn)) {
                return turn;
            }
            assert!(waited < Duration::from_secs(3600), "the turn stays {turn:#?}");
            let pause = look(waited);
            self.pass_time(pause).await;
            waited += pause;
        }
    }

    pub(super) async fn until_phase(&self, name: &str, phase: TurnPhase) -> Turn {
        self.until_turn(name, |turn| turn.status.phase == phase).await
    }

    pub(super) async fn until_final(&self, name: &str) -> Turn {
        self.until_turn(name, |turn| turn.status.phase.is_final()).await
    }

    /// Waits until a session is so.
    pub(super) async fn until_session(
        &self,
        name: &str,
        holds: impl Fn(Option<&Session>) -> bool,
    ) -> Option<Session> {
        let mut waited = Duration::ZERO;
        loop {
            let session = self.find_session(name).await;
            if holds(session.as_ref()) {
                return session;
            }
            assert!(waited < Duration::from_secs(3600), "the session stays {session:#?}");
            let pause = look(waited);
            self.pass_time(pause).await;
            waited += pause;
        }
    }

    /// Waits until every turn is final, and tells them.
    pub(super) async fn until_all_final(&self) -> Vec<Turn> {
        let mut waited = Duration::ZERO;
        loop {
            let turns = self.all_turns().await;
            if turns.iter().all(|turn| turn.status.phase.is_final()) {
                return turns;
            }
            assert!(waited < Duration::from_secs(3600), "turns stay {turns:#?}");
            let pause = look(waited);
            self.pass_time(pause).await;
            waited += pause;
        }
    }

    pub(super) async fn blob(&self, turn: &Uid, stream: Stream) -> String {
        let blob = BlobId { owner: turn.clone(), stream };
        let bytes = self.memory.read(&blob, 0, usize::MAX).await.unwrap();
        String::from_utf8(bytes.to_vec()).unwrap()
    }

    pub(super) async fn slots(&self) -> Vec<Uid> {
        let Some(record) = self.memory.get(&keys::quota_global()).await.unwrap() else {
            return Vec::new();
        };
        let holders: Vec<Holder> = serde_json::from_slice(&record.value).unwrap();
        holders.into_iter().map(|holder| holder.turn).collect()
    }

    /// What happened to records of a kind since a revision. The clock is paused, so the second is
    /// over once nothing more is told.
    pub(super) async fn changes_since(&self, kind: Kind, from: Rev) -> Vec<Change> {
        let mut watch = self.memory.watch(&keys::kind_prefix(kind), from).await.unwrap();
        let mut changes = Vec::new();
        let quiet = Duration::from_secs(1);
        while let Ok(Some(change)) = tokio::time::timeout(quiet, watch.next()).await {
            changes.push(change);
        }
        changes
    }

    /// How often a turn's record became final.
    pub(super) async fn times_ended(&self, name: &str) -> usize {
        let mut ends = 0;
        let mut was_final = false;
        for change in self.changes_since(Kind::Turn, Rev::default()).await {
            let Change::Put(record) = change else { continue };
            let turn = decode::<TurnSpec>(&record.key, &record.value, record.rev).unwrap();
            if turn.metadata.name.as_str() == name {
                let is_final = turn.status.phase.is_final();
                assert!(is_final || !was_final, "{name} is not final any more");
                ends += usize::from(is_final && !was_final);
                was_final = is_final;
            }
        }
        ends
    }

    /// Nothing runs any more, and nothing was promised that was not kept.
    pub(super) async fn check_quiet(&self) {
        assert_eq!(self.ground.violations(), Vec::<String>::new());
        assert_eq!(self.slots().await, Vec::new(), "slots were not given back");
        for turn in self.all_turns().await {
            assert!(turn.status.phase.is_final(), "{turn:#?}");
            assert_eq!(turn.status.waiting_for, None);
        }
        for request in self.all_requests().await {
            assert!(!request.status.phase.is_pending(), "{request:#?}");
        }
    }
}
