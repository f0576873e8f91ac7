//! The daemon of a simulated life: what it has in memory, how it reads a world, and how the steps
//! of a plan are carried out, one by one, so that it can die between any two.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use rand::RngExt;

use super::machine::{NATURES, Nature, Tree};
use super::shelf::LIMITS;
use super::{Defect, Outcome, Sim};
use crate::api::session::Scope;
use crate::api::turn::{Admission, TurnPhase};
use crate::api::{Incarnation, Name, Session, Uid};
use crate::clock::{Mono, Now};
use crate::plan::capacity::{Holder, has_free_slot};
use crate::plan::line::Line;
use crate::plan::model::{Model, PERMISSION_TIMEOUT, prompt};
use crate::plan::world::{
    self, Call, Children, Finding, Live, OpenTurn, Owner, Process, ProcessIdentity, Rung, Stage,
    StartFailure, Stop, StopCause,
};
use crate::plan::{Change, Requeue, Step, World, must_tell_children, next_turn, plan};

/// How many passes run at the same time.
const WORKERS: usize = 4;

/// A pass: what it saw, and what of its plan is still to be done.
pub(super) struct Pass {
    pub(super) key: Name,
    world: World,
    steps: VecDeque<Step>,
    wakes: Vec<Name>,
    waits_for_slot: bool,
    requeue: Requeue,
    /// For how long its agent had really said nothing when that was looked at.
    quiet: Duration,
}

/// What a daemon knows. All of it is lost when it dies.
pub(super) struct Daemon {
    pub(super) started: Now,
    /// Keys that are due.
    pub(super) due: BTreeSet<Name>,
    pub(super) timers: BTreeMap<Name, Mono>,
    pub(super) passes: Vec<Pass>,
    pub(super) registry: BTreeMap<Uid, Process>,
    taken: BTreeSet<Uid>,
    held_before: BTreeSet<Uid>,
    line: Line<Name>,
    pub(super) is_stopping: bool,
    stopped_cleanly: bool,
}

impl Daemon {
    pub(super) fn live_mut(&mut self, session: &Uid) -> Option<&mut Live> {
        match self.registry.get_mut(session) {
            Some(Process::Live(live)) => Some(live),
            Some(Process::Absent | Process::NotStarted { .. } | Process::Unproven) | None => None,
        }
    }
}

/// How a step went.
pub(super) enum Done {
    Yes,
    /// The world has changed: the pass ends, and is taken up again at once.
    Stale,
    /// The daemon died over it.
    Died,
}

impl Sim {
    /// Starts a daemon: leftovers first, then every record is due.
    pub(super) fn start(&mut self, stopped_cleanly: bool) {
        if !self.has(Defect::LeavesLeftovers) {
            self.machine.sweep();
        }
        if self.has(Defect::SetsRightAnew) {
            for session in self.shelf.sessions.values_mut() {
                session.status.ttl_counts_from = None;
            }
        }
        self.judge.boot += 1;
        self.note(|| "the daemon starts".to_owned());
        let started = Now { time: self.wall(), mono: self.mono() };
        self.judge.begun = Some(started);
        self.daemon = Some(Daemon {
            started,
            due: self.shelf.sessions.keys().cloned().collect(),
            timers: BTreeMap::new(),
            passes: Vec::new(),
            registry: BTreeMap::new(),
            taken: BTreeSet::new(),
            held_before: self.shelf.holders.iter().map(|h| h.turn.clone()).collect(),
            line: Line::default(),
            is_stopping: false,
            stopped_cleanly,
        });
    }

    /// The daemon is gone, its passes with it; the shims see to its processes.
    pub(super) fn die(&mut self) {
        if let Some(daemon) = self.daemon.take() {
            self.judge.seen.crashes += 1;
            self.judge.seen.crashes_within_a_pass += usize::from(!daemon.passes.is_empty());
        }
        if self.has(Defect::ForgetsPrompts) {
            self.shelf.journal.clear();
        }
        self.note(|| "the daemon dies".to_owned());
        let takes = Duration::from_millis(self.random.random_range(1..5000));
        let shims_too = self.one_in(4);
        self.machine.lose_daemon(self.mono(), takes, shims_too);
    }

    /// Something happened that has to do with a session. Rarely the news is lost; a backstop finds
    /// it later.
    pub(super) fn wake(&mut self, key: &Name) {
        let is_lost = self.goes_wrong(3);
        if let Some(daemon) = self.daemon.as_mut().filter(|_| !is_lost) {
            daemon.due.insert(key.clone());
        }
    }

    /// Whether a pass may begin over this key.
    pub(super) fn may_begin(&self, key: &Name) -> bool {
        self.daemon.as_ref().is_some_and(|daemon| {
            daemon.passes.len() < WORKERS && daemon.passes.iter().all(|pass| pass.key != *key)
        })
    }

    /// Looks at a session and decides.
    pub(super) fn begin_pass(&mut self, key: &Name) {
        let Some(world) = self.observe(key) else {
            if let Some(daemon) = &mut self.daemon {
                daemon.due.remove(key);
                daemon.timers.remove(key);
                daemon.line.leave(key);
            }
            return;
        };
        let decided = plan(&world, self.now());
        let names: Vec<_> = decided.steps.iter().map(Step::name).collect();
        self.note(|| format!("{key}: {names:?} ({}; {:?})", decided.why, decided.requeue));
        let tree = self.machine.trees.get(&world.session.metadata.uid);
        let quiet = tree.map_or(Duration::MAX, |tree| self.mono().since(tree.spoke_at));
        let Some(daemon) = &mut self.daemon else { return };
        daemon.due.remove(key);
        daemon.timers.remove(key);
        daemon.passes.push(Pass {
            quiet,
            key: key.clone(),
            world,
            steps: decided.steps.into(),
            wakes: decided.wakes,
            waits_for_slot: decided.waits_for_slot,
            requeue: decided.requeue,
        });
    }

    fn observe(&self, key: &Name) -> Option<World> {
        let daemon = self.daemon.as_ref()?;
        let mut session = self.shelf.sessions.get(key)?.clone();
        let is_absent = !daemon.registry.contains_key(&session.metadata.uid);
        if self.has(Defect::StartsAgain) && session.metadata.is_first_start() && is_absent {
            session.status.incarnation = Incarnation::default();
        }
        let uid = &session.metadata.uid;
        let open: Vec<_> =
            self.shelf.turns_of(key).filter(|turn| !turn.status.phase.is_final()).collect();
        let records: Vec<_> = open.iter().map(|turn| (*turn).clone()).collect();
        let starting = records.iter().position(|turn| turn.status.phase == TurnPhase::Starting);
        let next = starting.or_else(|| next_turn(&records));
        let waiting = next
            .map(|index| &records[index])
            .filter(|turn| turn.status.phase == TurnPhase::Pending);
        let parent = session.status.lineage.parent.as_ref();
        let has_free_slot = self.has(Defect::CountsNoSlots)
            || waiting.is_some_and(|turn| self.shelf.holds_slot(&turn.metadata.uid))
            || daemon.line.may_take(key, parent, &self.shelf.holders, LIMITS);
        let open_turn = |record: crate::api::Turn| OpenTurn {
            is_taken_here: daemon.taken.contains(&record.metadata.uid)
                || (record.spec.admission == Admission::Immediate
                    && !daemon.held_before.contains(&record.metadata.uid)),
            is_in_journal: self.shelf.journal.contains(&record.metadata.uid),
            block_kinds: vec!["text".to_owned()],
            stored_response_bytes: 0,
            record,
        };
        Some(World {
            requests: self.shelf.requests_in_world(&session, daemon.registry.get(uid)),
            spent_requests: Some(self.shelf.spent_requests(key)),
            turns: records.into_iter().map(open_turn).collect(),
            below: session
                .status
                .finished_at
                .is_some()
                .then(|| self.shelf.turns_of(key).cloned().collect()),
            children: self.children(&session),
            notices: crate::plan::Notices::default(),
            owner: match parent {
                None => Owner::None,
                Some(parent) => Owner::of(self.shelf.by_uid(parent)),
            },
            agent: Finding::Found(Box::new(self.shelf.agent.clone())),
            agent_spec: None,
            role: None,
            scope: Finding::Found(Box::new(Scope {
                cwd: "/w".into(),
                additional_directories: Vec::new(),
                label: "/w".into(),
                folders: Vec::new(),
            })),
            process: self.process(daemon, uid),
            has_free_slot,
            crowd: world::Crowd::default(),
            tree: self.shelf.tree_of(&session),
            daemon: world::Daemon {
                store_id: "store".into(),
                boot_id: "boot".into(),
                is_stopping: daemon.is_stopping,
                standstill: None,
                stopped_cleanly: daemon.stopped_cleanly,
                permission_timeout: PERMISSION_TIMEOUT,
            },
            session,
        })
    }

    fn children(&self, session: &Session) -> Option<Children> {
        if self.has(Defect::OverlooksChildren) {
            return Some(Children::default());
        }
        must_tell_children(session)
            .then(|| Children::of(session, &self.shelf.children_of(&session.metadata.uid)))
    }

    fn process(&self, daemon: &Daemon, session: &Uid) -> Process {
        let mut process = daemon.registry.get(session).cloned().unwrap_or(Process::Absent);
        if let (true, Process::Live(live)) = (self.has(Defect::HearsVoices), &mut process) {
            live.last_activity = self.mono();
        }
        process
    }

    /// Carries out the next step of a pass, or ends it.
    pub(super) fn go_on(&mut self, index: usize) -> Outcome {
        let Some(daemon) = &mut self.daemon else { return Ok(()) };
        let mut pass = daemon.passes.swap_remove(index);
        let Some(step) = pass.steps.pop_front() else {
            self.end_pass(pass);
            return Ok(());
        };
        match self.act(&pass, &step)? {
            Done::Yes => {
                if let Some(daemon) = &mut self.daemon {
                    daemon.passes.push(pass);
                }
            }
            Done::Stale => {
                self.note(|| format!("{}: {} met another world", pass.key, step.name()));
                if let Some(daemon) = &mut self.daemon {
                    daemon.due.insert(pass.key);
                }
            }
            Done::Died => self.die(),
        }
        Ok(())
    }

    fn end_pass(&mut self, pass: Pass) {
        for key in &pass.wakes {
            self.wake(key);
        }
        let mono = self.mono();
        let Some(daemon) = &mut self.daemon else { return };
        if pass.waits_for_slot {
            let parent = pass.world.session.status.lineage.parent.as_ref();
            daemon.line.join(&pass.key, parent);
        } else {
            daemon.line.leave(&pass.key);
        }
        if let Requeue::After(wait) = pass.requeue {
            daemon.timers.insert(pass.key, mono.plus(wait));
        }
        self.offer_slots();
    }

    fn offer_slots(&mut self) {
        let Some(daemon) = &mut self.daemon else { return };
        let served = daemon.line.offer(&self.shelf.holders, LIMITS);
        // Told within the daemon: such news is never lost.
        daemon.due.extend(served);
    }

    fn act(&mut self, pass: &Pass, step: &Step) -> Outcome<Done> {
        if self.one_in(4) && self.goes_wrong(1) {
            return Ok(Done::Died);
        }
        let uid = pass.world.session.metadata.uid.clone();
        match step {
            Step::Record(change) => self.record(pass, change),
            Step::Launch { incarnation } => self.launch(&pass.key, &uid, incarnation.0),
            Step::Submit { turn, .. } => self.submit(&pass.key, &uid, turn),
            // No session of these worlds is an external one with children.
            Step::Tell(_) => Ok(Done::Yes),
            Step::Forget => {
                if let Some(daemon) = &mut self.daemon {
                    daemon.registry.remove(&uid);
                }
                self.wake(&pass.key);
                Ok(Done::Yes)
            }
            Step::AnswerPermission { request, answer } => {
                self.answer_question(&uid, *request, *answer)
            }
            Step::OpenGate
            | Step::Initialize
            | Step::Authenticate { .. }
            | Step::Open(_)
            | Step::Set { .. }
            | Step::CancelPrompt { .. }
            | Step::Stop { .. } => Ok(self.act_on_live(&uid, step)),
        }
    }

    /// A commit by compare-and-swap on every record that the pass has seen.
    fn record(&mut self, pass: &Pass, change: &Change) -> Outcome<Done> {
        if self.goes_wrong(2) {
            self.judge.seen.faults += 1;
            return Ok(Done::Stale);
        }
        if !self.has(Defect::WritesBlindly) && !self.is_unchanged(pass, change) {
            self.judge.seen.conflicts += 1;
            self.note(|| format!("{}: conflict", pass.key));
            return Ok(Done::Stale);
        }
        let Some(stored) = self.shelf.sessions.get(&pass.key).cloned() else {
            return Ok(Done::Stale);
        };
        let parent = stored.status.lineage.parent.clone();
        if let Some(turn) = &change.take_slot
            && !self.shelf.holds_slot(turn)
        {
            let is_free = has_free_slot(&self.shelf.holders, parent.as_ref(), LIMITS);
            if !is_free && !self.has(Defect::CountsNoSlots) {
                self.note(|| format!("{}: every slot is taken", pass.key));
                return Ok(Done::Stale);
            }
            self.shelf.holders.push(Holder { turn: turn.clone(), parent });
        }
        let (now, is_alive) = (self.now(), self.machine.is_alive(&stored.metadata.uid));
        self.judge.commit(&self.shelf, &stored, change, is_alive, now)?;
        self.judge.silence(&stored, change, pass.quiet)?;
        self.judge.requests(&self.shelf, &stored, change)?;
        self.judge.used(&self.shelf, &stored, change);
        self.shelf.holders.retain(|holder| !change.free_slots.contains(&holder.turn));
        self.write(pass, change);
        self.judge.slots(&self.shelf)?;
        self.judge.sums(&self.shelf)?;
        if let Some(daemon) = &mut self.daemon {
            daemon.taken.extend(change.take_slot.clone());
            for turn in &change.turns {
                if turn.status.phase.is_final() || turn.status.phase == TurnPhase::Pending {
                    daemon.taken.remove(&turn.metadata.uid);
                }
            }
        }
        self.wake(&pass.key);
        if let Some(parent) = stored.spec.parent {
            self.wake(&Name::from(parent.as_str()));
        }
        self.offer_slots();
        // The store did it and could not say so, or the daemon is given no time to hear it.
        Ok(if self.goes_wrong(2) { Done::Stale } else { Done::Yes })
    }

    fn is_unchanged(&self, pass: &Pass, change: &Change) -> bool {
        let seen = &pass.world.session.metadata.resource_version;
        let stored = self.shelf.sessions.get(&pass.key);
        let session = stored.is_some_and(|s| s.metadata.resource_version == *seen);
        let is_same = |turn: &crate::api::Turn| {
            let stored = self.shelf.turns.get(&turn.metadata.name);
            stored.is_some_and(|s| s.metadata.resource_version == turn.metadata.resource_version)
        };
        let ledger = self.shelf.ledgers.get(&pass.world.tree.id).map(|(_, revision)| *revision);
        let is_counted = ledger == pass.world.tree.revision;
        let counts = change.tree_used.is_some() || shows_tree(&pass.world.session, change);
        session
            && (!counts || is_counted)
            && change.turns.iter().chain(&change.remove_turns).all(is_same)
            && change.requests.iter().chain(&change.remove_requests).all(|request| {
                let version = &request.metadata.resource_version;
                match self.shelf.requests.get(&request.metadata.name) {
                    Some(stored) => stored.metadata.resource_version == *version,
                    None => request.metadata.uid.is_empty(),
                }
            })
    }

    fn write(&mut self, pass: &Pass, change: &Change) {
        let is_lost = self.has(Defect::CountsApart) && self.goes_wrong(20);
        if let Some(used) = change.tree_used.as_ref().filter(|_| !is_lost) {
            let revision = self.shelf.next_revision().parse().unwrap_or_default();
            self.shelf.ledgers.insert(pass.world.tree.id.clone(), (used.clone(), revision));
        }
        if change.removes_session {
            self.shelf.sessions.remove(&pass.key);
            self.shelf.ledgers.remove(&pass.world.session.metadata.uid);
        } else if let Some(session) = &change.session {
            let mut session = session.clone();
            session.metadata.resource_version = self.shelf.next_revision();
            self.shelf.sessions.insert(pass.key.clone(), session);
        }
        for turn in &change.turns {
            let mut turn = turn.clone();
            turn.metadata.resource_version = self.shelf.next_revision();
            self.shelf.turns.insert(turn.metadata.name.clone(), turn);
        }
        for turn in &change.remove_turns {
            self.shelf.turns.remove(&turn.metadata.name);
        }
        self.write_requests(change);
        if let Some(agent) = &change.agent {
            self.shelf.agent = agent.clone();
        }
    }

    fn launch(&mut self, key: &Name, session: &Uid, incarnation: u64) -> Outcome<Done> {
        self.judge.launched(session, self.machine.is_alive(session))?;
        let mono = self.mono();
        let failure = |reason| StartFailure { reason, message: "no such file".to_owned() };
        let process = if self.goes_wrong(8) {
            Process::NotStarted { failure: failure("LaunchFailed") }
        } else {
            let nature = NATURES[self.random.random_range(0..NATURES.len())];
            let survives = if self.one_in(10) { self.random.random_range(1..4) } else { 0 };
            // Given up: what it brought is killed, and nobody tells of it before it is gone.
            let is_given_up = self.goes_wrong(2);
            let dies_at = is_given_up.then(|| mono.plus(Duration::from_secs(7)));
            let tree = Tree { nature, survives, dies_at, has_no_shim: false, spoke_at: mono };
            self.machine.trees.insert(session.clone(), tree);
            let mut live = Model::live(incarnation);
            live.launched_at = mono;
            live.last_activity = mono;
            live.stage = Stage::Gated {
                identity: ProcessIdentity {
                    shim_pid: 7,
                    start_time: 1,
                    pidfd_inode: None,
                    cgroup: None,
                },
            };
            if is_given_up { Process::Unproven } else { Process::Live(Box::new(live)) }
        };
        if let Some(daemon) = &mut self.daemon {
            daemon.registry.insert(session.clone(), process);
        }
        self.wake(key);
        Ok(Done::Yes)
    }

    fn submit(&mut self, key: &Name, session: &Uid, turn: &Uid) -> Outcome<Done> {
        let mono = self.mono();
        let is_known = self.shelf.journal.contains(turn);
        if self.daemon.as_mut().and_then(|daemon| daemon.live_mut(session)).is_none() || is_known {
            return Ok(Done::Stale);
        }
        self.shelf.journal.insert(turn.clone());
        // The journal has it, the agent does not.
        if self.goes_wrong(1) {
            return Ok(Done::Died);
        }
        self.judge.submitted(turn, session)?;
        if let Some(tree) = self.machine.trees.get_mut(session) {
            tree.spoke_at = mono;
        }
        let is_early = self.has(Defect::SaysSentTooEarly);
        if let Some(live) = self.daemon.as_mut().and_then(|daemon| daemon.live_mut(session)) {
            live.last_activity = mono;
            live.last_progress = mono;
            live.is_active_after_turn = false;
            live.prompt = Some(prompt(turn, is_early.then_some(mono)));
        }
        self.wake(key);
        Ok(Done::Yes)
    }

    fn act_on_live(&mut self, session: &Uid, step: &Step) -> Done {
        let mono = self.mono();
        let trusts_kills = self.has(Defect::TrustsKills);
        let Some(daemon) = &mut self.daemon else { return Done::Stale };
        let Some(live) = daemon.live_mut(session) else { return Done::Stale };
        match step {
            Step::OpenGate => live.stage = Stage::Running,
            Step::Initialize => live.acp.initialize = Call::InFlight,
            Step::Authenticate { .. } => {
                live.acp.login = Call::Done(());
                live.acp.open = Call::NotMade;
            }
            Step::Open(how) => {
                live.acp.opened_as = Some(how.clone());
                live.acp.open = Call::InFlight;
            }
            Step::Set { turn, setting, wanted } => {
                let (_, done) = live.acp.tried.get_or_insert((turn.clone(), Default::default()));
                let before = live.acp.options.clone();
                done.record(wanted, &before, setting, Err("this agent sets nothing"));
            }
            Step::CancelPrompt { turn } => {
                live.asks.clear();
                if let Some(prompt) = live.prompt.as_mut().filter(|prompt| prompt.turn == *turn) {
                    prompt.cancel_asked_at = Some(mono);
                }
            }
            Step::Stop { rung, cause } => {
                take_rung(live, *rung, cause, mono);
                let is_unconfirmed = live.stop.as_ref().is_some_and(|stop| stop.unconfirmed > 0);
                self.judge.seen.unconfirmed_kills += usize::from(is_unconfirmed);
                let tree = self.machine.trees.get_mut(session);
                if *rung == Rung::Kill && trusts_kills {
                    live.stage = Stage::Empty { status: "signal 9".into() };
                } else if let Some(tree) = tree {
                    heed(tree, *rung, mono);
                }
            }
            Step::Record(_)
            | Step::Launch { .. }
            | Step::Submit { .. }
            | Step::AnswerPermission { .. }
            | Step::Forget
            | Step::Tell(_) => {}
        }
        Done::Yes
    }
}

fn take_rung(live: &mut Live, rung: Rung, cause: &StopCause, now: Mono) {
    let killed_before = live.stop.as_ref().filter(|stop| stop.rung == Rung::Kill);
    let unconfirmed = killed_before.map_or(0, |stop| stop.unconfirmed + 1);
    live.stop = Some(Stop { rung, since: now, unconfirmed, cause: cause.clone() });
    if matches!(rung, Rung::Cancel | Rung::Close) {
        live.asks.clear();
    }
    if rung == Rung::Cancel
        && let Some(prompt) = &mut live.prompt
    {
        prompt.cancel_asked_at = Some(now);
    }
    if rung == Rung::Close {
        live.acp.close = Call::InFlight;
    }
}

/// What a rung does to a tree: it dies a little later, or not.
fn heed(tree: &mut Tree, rung: Rung, now: Mono) {
    let soon = now.plus(Duration::from_millis(20));
    match (rung, tree.nature) {
        (Rung::Kill, _) if tree.survives > 0 => tree.survives -= 1,
        // Without its shim the daemon itself finds and kills it.
        (Rung::Kill, _) => {
            tree.has_no_shim = false;
            tree.dies_at.get_or_insert(soon);
        }
        (Rung::Eof | Rung::Term, Nature::Answers | Nature::Endless | Nature::Crashes) => {
            tree.dies_at.get_or_insert(soon);
        }
        (Rung::Eof | Rung::Term, Nature::Deaf | Nature::Stubborn)
        | (Rung::Cancel | Rung::Close, _) => {}
    }
}

/// Whether a change makes a session show other sums of its tree.
fn shows_tree(seen: &Session, change: &Change) -> bool {
    let shown = change.session.as_ref().map(|session| &session.status.tree_usage);
    shown.is_some_and(|shown| *shown != seen.status.tree_usage)
}
