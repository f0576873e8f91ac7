//! A model of everything around the planner: a store of one session, a process, an agent that
//! follows a script. Pure and instant, so that all worlds fit into a test.

use std::time::Duration;

use crate::api::RoleSpec;
use crate::api::agent::AgentSpec;
use crate::api::permission::{Decision, ToolCall};
use crate::api::session::{Capabilities, Scope, SessionSpec};
use crate::api::turn::{Admission, TurnPhase, TurnSpec};
use crate::api::{
    Agent, Name, ObjectMeta, OwnerReference, PROCESS_FINALIZER, PermissionRequest,
    PermissionRequestSpec, Session, Time, Turn, Uid,
};
use crate::clock::{Mono, Now};

use super::Notices;
use super::permission::{Answer, Ask};
use super::world::*;
use super::{Change, Plan, Requeue, Step, plan};

/// 2026-01-01T00:00:00Z.
pub(crate) const EPOCH_MS: i64 = 1_767_225_600_000;

/// How long a request for permission waits.
pub(crate) const PERMISSION_TIMEOUT: Duration = Duration::from_secs(300);

/// How the agent of a model behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behaviour {
    /// It answers everything at once.
    Prompt,
    /// It never answers a prompt unless cancelled.
    Endless,
    /// It answers nothing after `initialize` and ignores all but a kill.
    Deaf,
    /// It ends right after it has the prompt.
    Crashes,
}

/// What of an agent's behaviour made a difference so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Asked {
    /// How it answers prompts.
    pub(crate) prompts: bool,
    /// Whether it hears at all.
    pub(crate) hears: bool,
}

/// Everything around the planner.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) session: Option<Session>,
    pub(crate) turns: Vec<Turn>,
    pub(crate) requests: Vec<PermissionRequest>,
    /// What the agent was told, by the number of its question: the judge of "once, and as recorded".
    pub(crate) told: Vec<(u64, Answer)>,
    pub(crate) owner: Owner,
    pub(crate) notices: Notices,
    /// Turns of children that the session was told of, or never will be.
    pub(crate) settled: Vec<Turn>,
    pub(crate) children: Children,
    pub(crate) process: Process,
    pub(crate) agent: Finding<Agent>,
    pub(crate) agent_spec: Option<Box<AgentSpec>>,
    pub(crate) role: Option<Box<RoleSpec>>,
    pub(crate) scope: Finding<Scope>,
    pub(crate) taken: Vec<Uid>,
    pub(crate) journal: Vec<Uid>,
    /// Every prompt that the agent was given: the judge of "at most once".
    pub(crate) sent: Vec<Uid>,
    /// Turns that reached a final phase, with it.
    pub(crate) ended: Vec<(Uid, TurnPhase)>,
    pub(crate) slots: Vec<Uid>,
    pub(crate) slots_max: usize,
    pub(crate) is_stopping: bool,
    /// What its tree has used.
    pub(crate) tree: super::spending::Tree,
    pub(crate) crowd: Crowd,
    pub(crate) standstill: Option<Standstill>,
    pub(crate) behaviour: Behaviour,
    pub(crate) elapsed: Duration,
    /// Whether anything came of how the agent answers prompts, or of how it hears: what was never
    /// asked makes no difference.
    pub(crate) asked: Asked,
    /// Which world this is, for messages.
    pub(crate) label: usize,
}

pub(crate) fn metadata(name: &str, uid: &str) -> ObjectMeta {
    ObjectMeta {
        name: name.into(),
        namespace: "default".into(),
        uid: uid.into(),
        generation: 1,
        creation_timestamp: Some(Time::from_millis(EPOCH_MS)),
        ..ObjectMeta::default()
    }
}

pub(crate) fn turn(name: &str, uid: &str) -> Turn {
    let spec =
        TurnSpec { session: Name::from("s"), prompt: Some("hello".into()), ..TurnSpec::default() };
    Turn::new(metadata(name, uid), spec)
}

pub(crate) fn capable() -> Capabilities {
    Capabilities { load: true, resume: true, close: true, ..Capabilities::default() }
}

impl Model {
    pub(crate) fn new() -> Self {
        let mut meta = metadata("s", "0198c0de-0000-7000-8000-000000000000");
        meta.finalizers.push(PROCESS_FINALIZER.to_owned());
        let spec =
            SessionSpec { agent: "a".into(), cwd: Some("/w".into()), ..SessionSpec::default() };
        let auth = Some(crate::api::agent::Auth { method: Some("key".into()) });
        let agent_spec = AgentSpec { command: Some("agent".into()), auth, ..AgentSpec::default() };
        let scope = Scope {
            cwd: "/w".into(),
            additional_directories: Vec::new(),
            label: "/w".into(),
            folders: Vec::new(),
        };
        Self {
            session: Some(Session::new(meta, spec)),
            turns: Vec::new(),
            requests: Vec::new(),
            told: Vec::new(),
            owner: Owner::None,
            notices: Notices::default(),
            settled: Vec::new(),
            children: Children::default(),
            process: Process::Absent,
            agent: Finding::Found(Box::new(Agent::new(metadata("a", "agent"), agent_spec))),
            agent_spec: None,
            role: None,
            scope: Finding::Found(Box::new(scope)),
            taken: Vec::new(),
            journal: Vec::new(),
            sent: Vec::new(),
            ended: Vec::new(),
            slots: Vec::new(),
            slots_max: 8,
            is_stopping: false,
            tree: super::spending::Tree::default(),
            crowd: Crowd::default(),
            standstill: None,
            behaviour: Behaviour::Prompt,
            elapsed: Duration::ZERO,
            asked: Asked::default(),
            label: 0,
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            time: Time::from_millis(EPOCH_MS).plus(self.elapsed),
            mono: Mono(0).plus(self.elapsed),
        }
    }

    pub(crate) fn world(&self) -> Option<World> {
        let session = self.session.clone()?;
        let open = |turn: &&Turn| !turn.status.phase.is_final();
        let turns = self.turns.iter().filter(open).map(|record| OpenTurn {
            record: record.clone(),
            is_taken_here: self.taken.contains(&record.metadata.uid),
            is_in_journal: self.journal.contains(&record.metadata.uid),
            block_kinds: vec!["text".to_owned()],
            stored_response_bytes: 0,
        });
        Some(World {
            turns: turns.collect(),
            below: session.status.finished_at.is_some().then(|| self.turns.clone()),
            children: Some(self.children.clone()),
            owner: self.owner,
            notices: self.notices.clone(),
            agent: self.agent.clone(),
            agent_spec: self.agent_spec.clone(),
            role: self.role.clone(),
            scope: self.scope.clone(),
            process: self.process.clone(),
            requests: self.requests.clone(),
            spent_requests: Some(self.spent()),
            has_free_slot: self.slots.len() < self.slots_max || self.next_holds_slot(),
            crowd: self.crowd.clone(),
            tree: self.tree.clone(),
            daemon: Daemon {
                store_id: "store".into(),
                boot_id: "boot".into(),
                is_stopping: self.is_stopping,
                standstill: self.standstill,
                stopped_cleanly: false,
                permission_timeout: PERMISSION_TIMEOUT,
            },
            session,
        })
    }

    fn spent(&self) -> Vec<PermissionRequest> {
        self.requests.iter().filter(|one| !one.status.phase.is_pending()).cloned().collect()
    }

    /// Whether the turn that is next has a slot already.
    fn next_holds_slot(&self) -> bool {
        let next = super::next_turn(&self.turns);
        next.is_some_and(|index| self.slots.contains(&self.turns[index].metadata.uid))
    }

    /// A turn that was admitted together with its slot, by this daemon.
    pub(crate) fn admit_at_once(&mut self, mut turn: Turn) {
        turn.spec.admission = Admission::Immediate;
        self.slots.push(turn.metadata.uid.clone());
        self.taken.push(turn.metadata.uid.clone());
        self.turns.push(turn);
    }

    /// The agent asks for permission in the turn that it has.
    pub(crate) fn ask(&mut self, request: u64) {
        let turn = self.turns[0].metadata.uid.clone();
        let call = ToolCall { id: format!("call-{request}"), ..ToolCall::default() };
        let ask = Ask::new(request, turn, call, vec!["/w/file".to_owned()], Vec::new());
        if let Some(live) = self.live_mut() {
            live.has_asked = true;
            live.asks.push(ask);
        }
    }

    /// A question of the first turn as it was recorded before.
    pub(crate) fn record_question(&mut self, request: u64, at: Time, decision: Option<Decision>) {
        let turn = &self.turns[0];
        let name =
            crate::api::naming::permission_name(&turn.metadata.name, &turn.metadata.uid, request);
        let mut meta = metadata(name.as_str(), &format!("question-{request}"));
        meta.creation_timestamp = Some(at);
        meta.owner_references.push(OwnerReference {
            api_version: turn.api_version.clone(),
            kind: turn.kind.clone(),
            name: turn.metadata.name.clone(),
            uid: turn.metadata.uid.clone(),
            controller: None,
            block_owner_deletion: None,
        });
        let spec = PermissionRequestSpec {
            session: "s".into(),
            turn: turn.metadata.name.clone(),
            decision,
            ..PermissionRequestSpec::default()
        };
        let mut record = PermissionRequest::new(meta, spec);
        record.status.expires_at = Some(at.plus(PERMISSION_TIMEOUT));
        self.requests.push(record);
    }

    /// The daemon dies: what is in memory is gone, the shim kills the tree.
    pub(crate) fn crash(&mut self) {
        self.process = Process::Absent;
        self.taken.clear();
        self.is_stopping = false;
    }

    pub(crate) fn live_mut(&mut self) -> Option<&mut Live> {
        match &mut self.process {
            Process::Live(live) => Some(live),
            Process::Absent | Process::NotStarted { .. } | Process::Unproven => None,
        }
    }

    pub(crate) fn live(incarnation: u64) -> Live {
        Live {
            incarnation: crate::api::Incarnation(incarnation),
            stage: Stage::Running,
            pid: None,
            launched_at: Mono(0),
            acp: Acp::default(),
            prompt: None,
            asks: Vec::new(),
            has_asked: false,
            stop: None,
            last_activity: Mono(0),
            last_progress: Mono(0),
            tool_heard: None,
            usage: super::usage::Meter::default(),
            is_active_after_turn: false,
            stderr_tail: String::new(),
            noise_lines: 0,
            sandbox: None,
        }
    }

    pub(crate) fn apply(&mut self, step: &Step) {
        let now = self.now();
        match step {
            Step::Record(change) => self.record(change),
            Step::Launch { incarnation } => {
                assert!(!matches!(self.process, Process::Live(_)), "two processes for one session");
                let mut live = Self::live(incarnation.0);
                live.launched_at = now.mono;
                live.last_activity = now.mono;
                live.stage = Stage::Gated {
                    identity: ProcessIdentity {
                        shim_pid: 7,
                        start_time: 1,
                        pidfd_inode: None,
                        cgroup: None,
                    },
                };
                self.process = Process::Live(Box::new(live));
            }
            Step::Submit { turn, budget } => {
                assert!(
                    !self.sent.contains(turn),
                    "world {}: a prompt was given twice",
                    self.label
                );
                self.journal.push(turn.clone());
                self.sent.push(turn.clone());
                let mut prompt = prompt(turn, Some(now.mono));
                prompt.budget.clone_from(budget);
                if let Some(live) = self.live_mut() {
                    live.last_activity = now.mono;
                    live.last_progress = now.mono;
                    live.prompt = Some(prompt);
                }
            }
            Step::Forget => self.process = Process::Absent,
            Step::Tell(turns) => self.tell(turns),
            Step::OpenGate
            | Step::Initialize
            | Step::Authenticate { .. }
            | Step::Open(_)
            | Step::Set { .. }
            | Step::CancelPrompt { .. }
            | Step::AnswerPermission { .. }
            | Step::Stop { .. } => self.apply_to_live(step, now),
        }
    }

    fn apply_to_live(&mut self, step: &Step, now: Now) {
        let behaviour = self.behaviour;
        let hears = matches!(step, Step::Open(_) | Step::Stop { rung: Rung::Eof | Rung::Term, .. });
        self.asked.hears |= hears;
        if let Step::AnswerPermission { request, answer } = step {
            self.told.push((*request, *answer));
        }
        let Some(live) = self.live_mut() else { return };
        match step {
            Step::AnswerPermission { request, .. } => {
                live.asks.retain(|ask| ask.request != *request);
                live.last_activity = now.mono;
            }
            Step::OpenGate => live.stage = Stage::Running,
            Step::Initialize => {
                live.acp.initialize = Call::Done(Initialized {
                    protocol_version: 1,
                    capabilities: capable(),
                    auth_methods: Vec::new(),
                    version: Some("1.2".into()),
                    declared: Some(serde_json::json!({"loadSession": true})),
                });
            }
            Step::Authenticate { .. } => {
                live.acp.login = Call::Done(());
                live.acp.open = Call::NotMade;
            }
            Step::Open(how) => {
                live.acp.opened_as = Some(how.clone());
                live.acp.open = if behaviour == Behaviour::Deaf {
                    Call::InFlight
                } else {
                    Call::Done(Opened { acp_session_id: "acp".into() })
                };
            }
            Step::Set { turn, setting, wanted } => {
                let (_, done) = live.acp.tried.get_or_insert((turn.clone(), Default::default()));
                let before = live.acp.options.clone();
                done.record(wanted, &before, setting, Err("this agent sets nothing"));
            }
            Step::CancelPrompt { turn } => {
                live.asks.clear();
                if let Some(prompt) = live.prompt.as_mut().filter(|prompt| prompt.turn == *turn) {
                    prompt.cancel_asked_at = Some(now.mono);
                }
            }
            Step::Stop { rung, cause } => take_rung(live, *rung, cause, now, behaviour),
            Step::Record(_)
            | Step::Launch { .. }
            | Step::Submit { .. }
            | Step::Forget
            | Step::Tell(_) => {}
        }
    }

    /// An external session's clients are told; that they were is known at once.
    fn tell(&mut self, turns: &[Turn]) {
        for turn in turns {
            let uid = turn.metadata.uid.clone();
            assert!(self.notices.told.iter().all(|(told, _)| *told != uid), "told twice: {uid}");
            self.notices.told.push((uid, super::Told::Written));
        }
    }

    /// Its children's turns as the session is told of them, and the turn that tells it.
    fn record_notices(&mut self, change: &Change) {
        for wanted in &change.notices {
            let uid = &wanted.metadata.uid;
            let unsettled = &mut self.notices.unsettled;
            let place = unsettled.iter().position(|seen| seen.metadata.uid == *uid);
            let place = place.expect("a notice that is stored");
            if wanted.status.notice.as_ref().is_some_and(|notice| notice.state.is_final()) {
                unsettled.remove(place);
                self.settled.push(wanted.clone());
            } else {
                unsettled[place] = wanted.clone();
            }
        }
        if let Some(wake) = &change.wake {
            let mut wake = wake.clone();
            let number = change.session.as_ref().expect("its counts move on").status.turns_made;
            wake.metadata.uid = format!("wake-{number}").into();
            self.turns.push(wake);
            self.notices.next_turn = Some((format!("s-{}", number + 1).into(), number + 1));
        }
    }

    fn record(&mut self, change: &Change) {
        self.record_notices(change);
        assert!(
            change.take_slot.iter().all(|uid| !change.free_slots.contains(uid)),
            "world {}: a slot is taken and given back at once",
            self.label
        );
        if let Some(run) = change.new_token {
            let session = change.session.as_ref().expect("a token is a session's");
            assert!(session.spec.delegation.enabled, "world {}: a token", self.label);
            assert_eq!(session.status.incarnation, run, "world {}: whose token", self.label);
        }
        if let Some(uid) = &change.take_slot {
            if !self.slots.contains(uid) {
                assert!(self.slots.len() < self.slots_max, "a slot was taken that was not free");
                self.slots.push(uid.clone());
            }
            self.taken.push(uid.clone());
        }
        self.slots.retain(|uid| !change.free_slots.contains(uid));
        self.tree.used = change.tree_used.clone().or(self.tree.used.take());
        for turn in &change.turns {
            let stored =
                self.turns.iter_mut().find(|stored| stored.metadata.uid == turn.metadata.uid);
            let stored = stored.expect("a turn that is stored");
            assert!(!stored.status.phase.is_final(), "a final turn was written again");
            if turn.status.phase.is_final() {
                self.ended.push((turn.metadata.uid.clone(), turn.status.phase));
            }
            *stored = turn.clone();
        }
        self.turns.retain(|turn| {
            change.remove_turns.iter().all(|removed| removed.metadata.uid != turn.metadata.uid)
        });
        for request in &change.requests {
            let same =
                |stored: &&mut PermissionRequest| stored.metadata.name == request.metadata.name;
            match self.requests.iter_mut().find(same) {
                Some(stored) => {
                    assert!(stored.status.phase.is_pending(), "an ended request was written again");
                    *stored = request.clone();
                }
                None => self.requests.push(request.clone()),
            }
        }
        self.requests.retain(|request| {
            change.remove_requests.iter().all(|gone| gone.metadata.name != request.metadata.name)
        });
        if let Some(agent) = &change.agent {
            self.agent = Finding::Found(Box::new(agent.clone()));
        }
        if let Some(session) = &change.session {
            self.session = Some(session.clone());
        }
        if change.removes_session {
            let may_run = matches!(&self.process, Process::Live(live) if !matches!(live.stage, Stage::Empty { .. }));
            assert!(!may_run, "a record went before its process");
            assert!(self.turns.is_empty(), "a record went before its turns");
            assert!(self.requests.is_empty(), "a record went before its requests");
            assert_eq!(self.children.count, 0, "a record went before its children");
            self.session = None;
        }
    }

    /// What the agent does by itself between two passes. `true`: something changed.
    pub(crate) fn agent_acts(&mut self) -> bool {
        let behaviour = self.behaviour;
        let asked = &mut self.asked;
        let Process::Live(live) = &mut self.process else { return false };
        if let Stage::Exited { status, .. } = &live.stage {
            live.stage = Stage::Empty { status: status.clone() };
            return true;
        }
        if live.stage != Stage::Running {
            return false;
        }
        let Some(prompt) = live.prompt.as_mut().filter(|prompt| prompt.end.is_none()) else {
            return false;
        };
        if prompt.written_at.is_none() {
            return false;
        }
        let is_after_cancel = prompt.cancel_asked_at.is_some();
        if !live.asks.is_empty() {
            // It waits for an answer.
            return false;
        }
        asked.prompts = true;
        match behaviour {
            Behaviour::Prompt => {}
            Behaviour::Endless if is_after_cancel => {}
            Behaviour::Endless | Behaviour::Deaf => return false,
            Behaviour::Crashes => {
                live.stage = Stage::Empty { status: "exit code 3".into() };
                return true;
            }
        }
        let reason = if is_after_cancel { StopReason::Cancelled } else { StopReason::EndTurn };
        prompt.end = Some(PromptEnd { answer: Ok(reason), is_after_cancel, usage: None });
        true
    }

    /// One pass.
    pub(crate) fn pass(&mut self) -> Option<Plan> {
        let world = self.world()?;
        let decided = plan(&world, self.now());
        for step in &decided.steps {
            self.apply(step);
        }
        Some(decided)
    }

    /// Passes until nothing is left to do and only clocks longer than `horizon` run. Tells how
    /// many passes did something.
    pub(crate) fn converge(&mut self, horizon: Duration) -> usize {
        let mut busy = 0;
        for _ in 0..200 {
            let Some(decided) = self.pass() else { return busy };
            busy += usize::from(!decided.steps.is_empty());
            let acted = self.agent_acts();
            if decided.steps.is_empty() && !acted {
                match decided.requeue {
                    Requeue::After(wait) if wait <= horizon => {
                        self.elapsed += wait.max(Duration::from_millis(1));
                    }
                    Requeue::After(_) | Requeue::AwaitChange => return busy,
                }
            }
        }
        panic!("no fixed point after 200 passes: {:?}", self.world().map(|w| plan(&w, self.now())));
    }
}

pub(crate) fn prompt(turn: &Uid, written_at: Option<Mono>) -> Prompt {
    Prompt { written_at, ..Prompt::new(turn.clone(), crate::api::session::RunBudget::default()) }
}

fn take_rung(live: &mut Live, rung: Rung, cause: &StopCause, now: Now, behaviour: Behaviour) {
    let unconfirmed = live
        .stop
        .as_ref()
        .map_or(0, |stop| if stop.rung == Rung::Kill { stop.unconfirmed + 1 } else { 0 });
    live.stop = Some(Stop { rung, since: now.mono, unconfirmed, cause: cause.clone() });
    match rung {
        Rung::Cancel => {
            live.asks.clear();
            if let Some(prompt) = &mut live.prompt {
                prompt.cancel_asked_at = Some(now.mono);
            }
        }
        Rung::Close => {
            live.asks.clear();
            live.acp.close = Call::Done(());
        }
        Rung::Eof | Rung::Term if behaviour == Behaviour::Deaf => {}
        Rung::Eof | Rung::Term => {
            live.stage = Stage::Exited { status: "exit code 0".into(), at: now.mono };
        }
        Rung::Kill => live.stage = Stage::Empty { status: "signal 9".into() },
    }
}
