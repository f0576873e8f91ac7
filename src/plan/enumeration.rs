//! Every world that differs in what decisions look at, as a loop (test catalogue A1, A2, A3).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::api::permission::Decision;
use crate::api::session::{DesiredState, ProcessRecord, ProcessState};
use crate::api::turn::{Admission, Cancel, CancelBy, Delivery, TurnPhase};
use crate::api::{Dur, Time};

use super::model::{Behaviour, EPOCH_MS, Model, capable, prompt, turn};
use super::world::*;
use super::{Step, holds_slot, plan};

const TURN_UID: &str = "0198c0de-0000-7000-8000-00000000000a";
const DESIRED: [DesiredState; 3] =
    [DesiredState::Running, DesiredState::Cancelled, DesiredState::Deleted];
const OWNERS: [Owner; 6] =
    [Owner::None, Owner::Live, Owner::Stopped, Owner::Deleting, Owner::Releasing, Owner::Gone];
const PROCESSES: [Option<ProcessState>; 5] = [
    None,
    Some(ProcessState::Launching),
    Some(ProcessState::Running),
    Some(ProcessState::Stopping),
    Some(ProcessState::Unknown),
];
const STAGES: usize = 10;
/// None; and one that is pending, starting (not sent, or unknown), running, cancelling; running with
/// a question of its agent that is new, recorded, decided, over its time; cancelling with one.
const TURNS: usize = 11;
/// The turn as [`Point::turn`], and how it was admitted. That is looked at only of what was not sent.
const ADMITTED: [(usize, Admission); TURNS + 4] = [
    (0, Admission::Queue),
    (1, Admission::Queue),
    (1, Admission::Immediate),
    (2, Admission::Queue),
    (2, Admission::Immediate),
    (3, Admission::Queue),
    (3, Admission::Immediate),
    (4, Admission::Queue),
    (5, Admission::Queue),
    (NEW, Admission::Queue),
    (RECORDED, Admission::Queue),
    (DECIDED, Admission::Queue),
    (LATE, Admission::Queue),
    (CANCELLING, Admission::Queue),
    (FIRST_START, Admission::Queue),
];
const NEW: usize = 6;
const RECORDED: usize = 7;
const DECIDED: usize = 8;
const LATE: usize = 9;
const CANCELLING: usize = 10;
/// No turn, in a session that is there for one start of its agent.
const FIRST_START: usize = TURNS;

/// One point of the enumeration.
#[derive(Clone, Copy, Debug)]
struct Point {
    desired: DesiredState,
    stage: usize,
    process: Option<ProcessState>,
    turn: usize,
    admission: Admission,
    owner: Owner,
    ttl_over: bool,
    idle_over: bool,
    silent: bool,
    has_foreign_finalizer: bool,
}

fn points() -> impl Iterator<Item = Point> {
    let flags = [false, true];
    DESIRED
        .into_iter()
        .flat_map(move |desired| {
            (0..STAGES).flat_map(move |stage| {
                PROCESSES.into_iter().flat_map(move |process| {
                    ADMITTED.into_iter().flat_map(move |(turn, admission)| {
                        OWNERS.into_iter().flat_map(move |owner| {
                            (0..16_usize).map(move |bits| Point {
                                desired,
                                stage,
                                process,
                                turn,
                                admission,
                                owner,
                                ttl_over: flags[bits & 1],
                                idle_over: flags[bits >> 1 & 1],
                                silent: flags[bits >> 2 & 1],
                                has_foreign_finalizer: flags[bits >> 3 & 1],
                            })
                        })
                    })
                })
            })
        })
        .filter(Point::makes_a_difference)
}

impl Point {
    /// What a session's idle clock, its finalizers and half of its owners do to a running turn is
    /// seen without a question as well.
    fn makes_a_difference(&self) -> bool {
        let is_plain = !self.idle_over
            && !self.has_foreign_finalizer
            && matches!(self.owner, Owner::None | Owner::Stopped | Owner::Deleting);
        self.turn < NEW || self.turn == FIRST_START || is_plain
    }
}

fn model(point: Point) -> Model {
    let mut model = Model::new();
    model.elapsed = Duration::from_secs(3600);
    model.owner = point.owner;
    let session = model.session.as_mut().expect("the model starts with a session");
    session.spec.desired_state = point.desired;
    // A parent that lets its children go has none that stop with it.
    session.spec.auto_stop_on_parent = point.owner != Owner::Releasing;
    if point.desired == DesiredState::Deleted {
        session.metadata.deletion_timestamp = Some(Time::from_millis(EPOCH_MS));
    }
    session.spec.ttl = Some(Dur::from_secs(if point.ttl_over { 60 } else { 36_000 }));
    session.spec.idle_timeout = Dur::from_secs(if point.idle_over { 1 } else { 7200 });
    session.spec.turn_inactivity_timeout = Dur::from_secs(if point.silent { 1 } else { 7200 });
    if point.turn == FIRST_START {
        session.metadata.annotations.insert(crate::api::FIRST_START.to_owned(), "true".to_owned());
    }
    if point.has_foreign_finalizer {
        session.metadata.finalizers.push("example.com/hold".to_owned());
    }
    session.status.idle_since = Some(Time::from_millis(EPOCH_MS));
    session.status.process = point.process.map(|state| ProcessRecord {
        state,
        attempt: 1,
        boot_id: "boot".into(),
        instance: "store.s.1".into(),
        shim_pid: None,
        pid: None,
        start_time: None,
        pidfd_inode: None,
        cgroup: None,
    });
    if point.process.is_some() {
        session.status.incarnation = crate::api::Incarnation(1);
        model.process = process(point);
    }
    add_turn(&mut model, point);
    model
}

fn process(point: Point) -> Process {
    match point.process {
        None => Process::Absent,
        Some(ProcessState::Unknown) if point.stage == 0 => Process::Unproven,
        Some(ProcessState::Launching) if point.stage == 0 => Process::NotStarted {
            failure: StartFailure { reason: "LaunchFailed", message: "no such file".into() },
        },
        Some(state) => Process::Live(Box::new(live(point, state))),
    }
}

fn live(point: Point, state: ProcessState) -> Live {
    let mut live = Model::live(1);
    // The start began just now; what is silent has been so for an hour.
    live.launched_at = crate::clock::Mono(3_600_000);
    let initialized = Initialized {
        protocol_version: 1,
        capabilities: capable(),
        auth_methods: Vec::new(),
        version: None,
        declared: None,
    };
    if point.stage >= 3 {
        live.acp.initialize = Call::Done(initialized);
    }
    if point.stage >= 5 {
        live.acp.open = Call::Done(Opened { acp_session_id: "acp".into() });
    }
    match point.stage {
        1 => {
            live.stage = Stage::Gated {
                identity: ProcessIdentity {
                    shim_pid: 7,
                    start_time: 1,
                    pidfd_inode: Some(3),
                    cgroup: None,
                },
            };
        }
        2 => live.acp.initialize = Call::InFlight,
        4 => live.acp.open = Call::InFlight,
        6 => live.stage = Stage::Exited { status: "exit code 1".into(), at: crate::clock::Mono(0) },
        7 => live.stage = Stage::Empty { status: "exit code 1".into() },
        8 => live.stage = Stage::Unprovable,
        9 => {
            live.acp.open = Call::Failed(CallFailure {
                kind: CallFailureKind::AuthRequired,
                code: -32000,
                message: "Authentication required".into(),
            });
        }
        _ => {}
    }
    if state == ProcessState::Stopping {
        live.stop = Some(Stop {
            rung: Rung::Term,
            since: crate::clock::Mono(0),
            unconfirmed: 0,
            cause: StopCause::Idle,
        });
    }
    live
}

fn add_turn(model: &mut Model, point: Point) {
    if matches!(point.turn, 0 | FIRST_START) {
        return;
    }
    let mut record = turn("s-1", TURN_UID);
    record.spec.admission = point.admission;
    let uid = record.metadata.uid.clone();
    record.status.phase = match point.turn {
        1 => TurnPhase::Pending,
        2 | 3 => TurnPhase::Starting,
        5 | CANCELLING => TurnPhase::Cancelling,
        _ => TurnPhase::Running,
    };
    record.status.delivery = match point.turn {
        1 | 2 => Delivery::NotSent,
        3 => Delivery::Unknown,
        _ => Delivery::Sent,
    };
    if matches!(point.turn, 5 | CANCELLING) {
        record.status.cancel = Some(Cancel {
            by: CancelBy::Operator,
            reason: "asked".into(),
            at: Time::from_millis(EPOCH_MS),
        });
    }
    if holds_slot(&record) {
        model.slots.push(uid.clone());
        // Odd stages: this daemon took it; even ones: a daemon that is gone did.
        if point.stage % 2 == 1 {
            model.taken.push(uid.clone());
        }
    }
    if point.turn >= 4 {
        model.journal.push(uid.clone());
        model.sent.push(uid.clone());
        if point.stage % 2 == 1
            && let Some(live) = model.live_mut()
        {
            live.prompt = Some(prompt(&uid, Some(crate::clock::Mono(0))));
        }
    }
    model.turns.push(record);
    if point.turn >= NEW {
        add_question(model, point);
    }
}

/// A question of the turn's agent; of a daemon that is gone only its record is left.
fn add_question(model: &mut Model, point: Point) {
    let is_asked = point.stage % 2 == 1 && model.live_mut().is_some();
    if is_asked {
        model.ask(1);
    }
    if point.turn != NEW {
        let asked_at = if point.turn == LATE { EPOCH_MS } else { EPOCH_MS + 3_600_000 };
        let decision = (point.turn == DECIDED).then_some(Decision::Allow);
        model.record_question(1, Time::from_millis(asked_at), decision);
    }
}

#[test]
fn every_world_has_a_plan_that_records_before_it_acts_once() {
    let mut count = 0;
    let mut seen = BTreeSet::new();
    for point in points() {
        count += 1;
        let model = model(point);
        let world = model.world().expect("a session");
        let decided = plan(&world, model.now());
        let once = decided.steps.iter().filter(|step| step.is_once()).count();
        assert!(once <= 1, "{point:?}: {:?}", decided.steps);
        for (index, step) in decided.steps.iter().enumerate() {
            seen.insert(step.name().split('(').next().unwrap_or_default().to_owned());
            assert_eq!(matches!(step, Step::Record(_)), index == 0 && is_record(&decided.steps[0]));
            if matches!(step, Step::Launch { .. }) {
                assert!(is_record(&decided.steps[0]), "{point:?}: launched without a record");
                assert!(!world.may_have_running_process(), "{point:?}: a second process");
            }
        }
        let ends = is_end_asked_for(point) || point.ttl_over;
        if ends {
            assert_eq!(once, 0, "{point:?}: an ending session starts {:?}", decided.steps);
        }
    }
    assert_eq!(count, 3 * 10 * 5 * (10 * 6 * 16 + 5 * 3 * 4));
    let all = [
        "AnswerPermission",
        "Authenticate",
        "CancelPrompt",
        "Forget",
        "Initialize",
        "Launch",
        "OpenGate",
        "OpenNew",
        "Record",
        "Stop",
        "Submit",
    ];
    for name in all {
        assert!(seen.contains(name), "no world plans {name}; seen: {seen:?}");
    }
}

/// Whether the session's record, or what its parent does, asks for its end.
fn is_end_asked_for(point: Point) -> bool {
    let with_owner = match point.owner {
        Owner::None | Owner::Live | Owner::Releasing => false,
        Owner::Stopped | Owner::Deleting | Owner::Gone => true,
    };
    with_owner || point.desired != DesiredState::Running
}

/// Whether the record goes: by its own deletion or its parent's.
fn is_removed(point: Point) -> bool {
    point.desired == DesiredState::Deleted || matches!(point.owner, Owner::Deleting | Owner::Gone)
}

fn is_record(step: &Step) -> bool {
    matches!(step, Step::Record(_))
}

#[test]
fn every_world_converges_to_what_is_wanted_and_then_plans_nothing() {
    // Half of the worlds each, for half of the time.
    std::thread::scope(|scope| {
        scope.spawn(|| converge_every_second(0));
        scope.spawn(|| converge_every_second(1));
    });
}

fn converge_every_second(from: usize) {
    for (number, point) in points().enumerate().skip(from).step_by(2) {
        // A process that cannot be proven gone stays so for ever in this model.
        if point.process == Some(ProcessState::Unknown) && point.stage == 0 {
            continue;
        }
        // An end that is asked for is decided before any clock is looked at, and a parent that
        // lives is as good as none.
        let has_clock_over = point.ttl_over || point.idle_over || point.silent;
        if point.owner == Owner::Live || (has_clock_over && is_end_asked_for(point)) {
            continue;
        }
        let mut first = model(point);
        first.label = number;
        let others = first.clone();
        converges(point, &mut first);
        // A run in which nothing depended on the agent is the same with every agent.
        let mut behaviours = Vec::new();
        if first.asked.prompts {
            behaviours.extend([Behaviour::Endless, Behaviour::Crashes]);
        }
        if first.asked.prompts || first.asked.hears {
            behaviours.push(Behaviour::Deaf);
        }
        for behaviour in behaviours {
            let mut model = others.clone();
            model.behaviour = behaviour;
            converges(point, &mut model);
        }
    }
}

fn converges(point: Point, model: &mut Model) {
    let behaviour = model.behaviour;
    let busy = model.converge(Duration::from_secs(120));
    // Five starts, of six passes each, until the planner gives up on a deaf agent.
    let bound = if behaviour == Behaviour::Deaf { 5 * 6 + 2 } else { 12 };
    assert!(busy <= bound, "{behaviour:?} {point:?}: {busy} passes");
    ends_as_wanted(point, model);
    // The last pass planned nothing; planned again, nothing either.
    if let Some(world) = model.world() {
        let again = plan(&world, model.now());
        assert_eq!(again.steps, Vec::new(), "{behaviour:?} {point:?}");
    }
}

/// What was deleted is gone, and what was ended is finished.
fn ends_as_wanted(point: Point, model: &mut Model) {
    let ends = is_end_asked_for(point);
    match &model.session {
        None => assert!(is_removed(point) && !point.has_foreign_finalizer, "{point:?}"),
        Some(session) => {
            assert!(!is_removed(point) || point.has_foreign_finalizer, "{point:?}");
            assert_eq!(is_removed(point), session.metadata.is_deleting(), "{point:?}");
            assert!(!ends || session.status.finished_at.is_some(), "{point:?}");
            assert!(!ends || session.status.process.is_none(), "{point:?}");
        }
    }
    if let (FIRST_START, Some(session)) = (point.turn, &model.session) {
        assert!(session.status.finished_at.is_some(), "{point:?}: it is over after its start");
        assert!(session.status.incarnation.0 <= 1, "{point:?}: started more than once");
    }
    questions_are_settled(point, model);
    let holders = model.turns.iter().filter(|turn| holds_slot(turn)).count();
    assert_eq!(model.slots.len(), holders, "{point:?}: who holds a slot");
    if ends {
        assert!(model.turns.iter().all(|turn| turn.status.phase.is_final()), "{point:?}");
        assert_eq!(model.slots.len(), 0, "{point:?}: a slot was not given back");
    }
}

/// No record waits without an agent that does, and no agent without a record that says so; nothing
/// was told twice.
fn questions_are_settled(point: Point, model: &mut Model) {
    let told: BTreeSet<u64> = model.told.iter().map(|(request, _)| *request).collect();
    assert_eq!(told.len(), model.told.len(), "{point:?}: told twice: {:?}", model.told);
    let waiting: Vec<_> = model
        .requests
        .iter()
        .filter(|request| request.status.phase.is_pending())
        .map(|request| request.metadata.name.clone())
        .collect();
    let is_ending = is_end_asked_for(point);
    // Who is on its way out hears nothing more.
    let asked = model.live_mut().map_or(0, |live| match (&live.stage, &live.stop) {
        (Stage::Running, None) => live.asks.len(),
        _ => 0,
    });
    assert_eq!(waiting.len(), asked, "{point:?}: these wait: {waiting:?}");
    assert!(!is_ending || waiting.is_empty(), "{point:?}: these wait: {waiting:?}");
    for turn in &model.turns {
        let is_told = turn.status.waiting_for.is_some();
        assert_eq!(is_told, !waiting.is_empty() && !turn.status.phase.is_final(), "{point:?}");
    }
}

#[test]
fn a_crash_between_any_two_passes_sends_no_prompt_twice_and_ends_each_turn_once() {
    for behaviour in [Behaviour::Prompt, Behaviour::Endless, Behaviour::Crashes] {
        for crash_at in 0..14 {
            for cancel_at in 0..14 {
                let mut model = Model::new();
                model.behaviour = behaviour;
                model.turns.push(turn("s-1", TURN_UID));
                for pass in 0..40 {
                    if pass == cancel_at {
                        model.turns[0].spec.desired_state =
                            crate::api::turn::TurnDesiredState::Cancelled;
                    }
                    if pass == crash_at {
                        model.crash();
                    }
                    model.pass();
                    model.agent_acts();
                    model.elapsed += Duration::from_secs(1);
                }
                assert!(model.sent.len() <= 1);
                assert_eq!(model.ended.len(), 1, "{behaviour:?} {crash_at} {cancel_at}");
                assert_eq!(model.slots.len(), 0);
            }
        }
    }
}
