//! The planner's rules, a row of the tables of the contract each.

mod clocks;
mod first_start;
mod notices;
mod permission;
mod sandbox;
mod spawn;
mod spending;
mod tree;

use std::time::Duration;

use crate::api::session::{DesiredState, EndOutcome, ProcessRecord, ProcessState, SessionPhase};
use crate::api::turn::{Admission, Cancel, CancelBy, Delivery, TurnDesiredState, TurnPhase};
use crate::api::{Code, Dur, Time};

use super::model::{Behaviour, EPOCH_MS, Model, capable, prompt, turn};
use super::world::*;
use super::{Step, plan};

const UID: &str = "0198c0de-0000-7000-8000-00000000000a";

/// A model with a session that has an open process.
fn open() -> Model {
    let mut model = Model::new();
    let session = model.session.as_mut().unwrap();
    session.status.incarnation = crate::api::Incarnation(1);
    session.status.acp_session_id = Some("acp".into());
    session.status.capabilities = Some(capable());
    session.status.process = Some(record(ProcessState::Running));
    let mut live = Model::live(1);
    live.acp.initialize = Call::Done(Initialized {
        protocol_version: 1,
        capabilities: capable(),
        auth_methods: Vec::new(),
        version: Some("1.2".into()),
        declared: Some(serde_json::json!({"loadSession": true})),
    });
    live.acp.open = Call::Done(Opened { acp_session_id: "acp".into() });
    model.process = Process::Live(Box::new(live));
    model
}

fn record(state: ProcessState) -> ProcessRecord {
    ProcessRecord {
        state,
        attempt: 1,
        boot_id: "boot".into(),
        instance: "store.s.1".into(),
        shim_pid: None,
        pid: None,
        start_time: None,
        pidfd_inode: None,
        cgroup: None,
    }
}

/// A model whose agent has the prompt of a running turn.
fn running() -> Model {
    let mut model = open();
    let mut record = turn("s-1", UID);
    record.status.phase = TurnPhase::Running;
    record.status.delivery = Delivery::Sent;
    let uid = record.metadata.uid.clone();
    model.turns.push(record);
    model.taken.push(uid.clone());
    model.journal.push(uid.clone());
    model.sent.push(uid.clone());
    model.slots.push(uid.clone());
    model.live_mut().unwrap().prompt = Some(prompt(&uid, Some(crate::clock::Mono(0))));
    model
}

/// With a cancel that was asked of the agent.
fn cancelled(by: CancelBy) -> Model {
    let mut model = running();
    model.turns[0].status.phase = TurnPhase::Cancelling;
    let at = Time::from_millis(EPOCH_MS);
    model.turns[0].status.cancel = Some(Cancel { by, reason: "asked".into(), at });
    let live = model.live_mut().unwrap();
    live.prompt.as_mut().unwrap().cancel_asked_at = Some(crate::clock::Mono(0));
    model
}

fn answer(model: &mut Model, answer: Result<StopReason, CallFailure>, is_after_cancel: bool) {
    let prompt = model.live_mut().unwrap().prompt.as_mut().unwrap();
    prompt.end = Some(PromptEnd { answer, is_after_cancel, usage: None });
}

/// One pass ends the only turn so, and gives its slot back.
#[track_caller]
fn check(mut model: Model, phase: TurnPhase, code: Option<Code>) -> crate::api::Turn {
    model.pass();
    let turn = model.turns[0].clone();
    assert_eq!((turn.status.phase, turn.status.code), (phase, code), "{turn:#?}");
    assert_eq!(model.slots.is_empty(), phase.is_final() || phase == TurnPhase::Pending);
    turn
}

fn rpc_error() -> CallFailure {
    CallFailure { kind: CallFailureKind::Other, code: -32603, message: "boom".into() }
}

#[test]
fn a_prompt_that_was_never_written_is_the_end_of_the_agent_and_no_answer_of_its() {
    let mut model = running();
    let closed =
        CallFailure { kind: CallFailureKind::NeverWritten, code: 0, message: "closed".into() };
    answer(&mut model, Err(closed), false);
    let turn = check(model, TurnPhase::Failed, Some(Code::AgentProcessInvalidated));
    assert_eq!(turn.status.delivery, Delivery::NotSent);
    assert_eq!(turn.status.response_id, None);
}

#[test]
fn answers_that_complete_a_turn() {
    let reasons = [StopReason::EndTurn, StopReason::MaxTokens, StopReason::MaxTurnRequests];
    for reason in reasons {
        let mut model = running();
        let word = reason.as_str().to_owned();
        answer(&mut model, Ok(reason), false);
        let turn = check(model, TurnPhase::Completed, None);
        assert_eq!(turn.status.stop_reason, Some(word));
        assert_eq!(turn.status.response_id, Some(UID.into()));
    }
}

#[test]
fn answers_that_fail_a_turn() {
    let answers =
        [Ok(StopReason::Refusal), Ok(StopReason::Unknown("odd".into())), Err(rpc_error())];
    for given in answers {
        let mut model = running();
        answer(&mut model, given, false);
        let turn = check(model, TurnPhase::Failed, Some(Code::TurnFailed));
        assert_eq!(turn.status.response_id, Some(UID.into()), "its text stays readable");
    }
}

#[test]
fn an_exit_without_an_answer_fails_the_turn_code_0_too() {
    for status in ["exit code 0", "exit code 3", "signal 9"] {
        let mut model = running();
        model.live_mut().unwrap().stage = Stage::Empty { status: status.into() };
        check(model, TurnPhase::Failed, Some(Code::AgentProcessInvalidated));
    }
}

#[test]
fn any_answer_after_our_cancel_is_the_cancel() {
    let rows = [
        (CancelBy::Parent, TurnPhase::Cancelled, Code::TurnCancelledByParent),
        (CancelBy::Operator, TurnPhase::Cancelled, Code::TurnCancelled),
        (CancelBy::FleetCancel, TurnPhase::Cancelled, Code::TurnCancelled),
        (CancelBy::Interrupt, TurnPhase::Cancelled, Code::TurnCancelled),
        (CancelBy::CallCancelled, TurnPhase::Cancelled, Code::TurnCancelled),
        (CancelBy::ParentStopped, TurnPhase::Cancelled, Code::TurnCancelled),
        (CancelBy::ParentDeleted, TurnPhase::Cancelled, Code::ParentSessionDeleted),
        (CancelBy::Ttl, TurnPhase::Expired, Code::TtlExpired),
        (CancelBy::Budget, TurnPhase::Expired, Code::TurnBudgetExhausted),
        (CancelBy::Inactivity, TurnPhase::Expired, Code::TurnInactivityTimeout),
    ];
    for (by, phase, code) in rows {
        let answers = [
            Ok(StopReason::Cancelled),
            Ok(StopReason::EndTurn),
            Ok(StopReason::Refusal),
            Err(rpc_error()),
        ];
        for given in answers {
            let mut model = cancelled(by);
            answer(&mut model, given, true);
            let turn = check(model, phase, Some(code));
            assert_eq!(turn.status.cancel.unwrap().by, by);
        }
    }
}

#[test]
fn an_answer_before_our_cancel_stands() {
    let mut model = cancelled(CancelBy::Operator);
    answer(&mut model, Ok(StopReason::EndTurn), false);
    let turn = check(model, TurnPhase::Completed, None);
    assert_eq!(turn.status.cancel, None);
}

#[test]
fn a_cancel_that_nobody_asked_for_is_the_agents() {
    let mut model = running();
    answer(&mut model, Ok(StopReason::Cancelled), false);
    let turn = check(model, TurnPhase::Cancelled, Some(Code::TurnCancelled));
    assert_eq!(turn.status.cancel.unwrap().by, CancelBy::Agent);
}

#[test]
fn output_that_cannot_be_stored_fails_the_turn_and_the_agent_loses_the_prompt() {
    let mut model = running();
    model.turns.push(turn("s-2", "0198c0de-0000-7000-8000-00000000000b"));
    model.live_mut().unwrap().prompt.as_mut().unwrap().persist_failure = Some("full".into());
    model.pass();
    assert_eq!(model.turns[0].status.code, Some(Code::TurnPersistFailed));
    model.converge(Duration::from_secs(60));
    assert_eq!(model.turns[1].status.phase, TurnPhase::Completed, "in a process of its own");
    assert_eq!(model.session.unwrap().status.incarnation.0, 2);
}

/// A turn that a daemon before this one took.
fn taken_before(phase: TurnPhase, delivery: Delivery, is_in_journal: bool) -> Model {
    let mut model = Model::new();
    let mut record = turn("s-1", UID);
    record.status.phase = phase;
    record.status.delivery = delivery;
    model.slots.push(record.metadata.uid.clone());
    if is_in_journal {
        model.journal.push(record.metadata.uid.clone());
    }
    model.session.as_mut().unwrap().status.capabilities = Some(capable());
    // Nothing may be started in the same pass: only the turn's end is looked at.
    model.scope = Finding::Unknown;
    model.turns.push(record);
    model
}

#[test]
fn after_a_restart_what_was_not_sent_waits_again_or_is_interrupted_by_its_admission() {
    let model = taken_before(TurnPhase::Starting, Delivery::NotSent, false);
    check(model, TurnPhase::Pending, None);
    let mut model = taken_before(TurnPhase::Starting, Delivery::NotSent, false);
    model.turns[0].spec.admission = Admission::Immediate;
    let turn = check(model, TurnPhase::Interrupted, Some(Code::AppRestarted));
    assert_eq!(turn.status.delivery, Delivery::NotSent);
}

#[test]
fn after_a_restart_the_journal_says_whether_a_prompt_may_have_been_sent() {
    let mut model = taken_before(TurnPhase::Starting, Delivery::Unknown, false);
    model.turns[0].spec.admission = Admission::Immediate;
    let turn = check(model, TurnPhase::Interrupted, Some(Code::AppRestarted));
    assert_eq!(turn.status.delivery, Delivery::NotSent);
    let model = taken_before(TurnPhase::Starting, Delivery::Unknown, true);
    let turn = check(model, TurnPhase::Interrupted, Some(Code::AppRestarted));
    assert_eq!(turn.status.delivery, Delivery::Unknown);
}

#[test]
fn after_a_restart_what_was_sent_is_interrupted() {
    let model = taken_before(TurnPhase::Running, Delivery::Sent, true);
    let turn = check(model, TurnPhase::Interrupted, Some(Code::AppRestarted));
    assert_eq!(turn.status.delivery, Delivery::Sent);
}

/// Found by the simulator: the turn would have waited for a year.
#[test]
fn a_wall_clock_that_was_set_back_between_two_daemons_makes_no_pause_longer() {
    let mut model = Model::new();
    model.turns.push(turn("s-1", UID));
    let restarts = &mut model.session.as_mut().unwrap().status.restarts;
    let in_a_year = Time::from_millis(EPOCH_MS).plus(Duration::from_secs(365 * 24 * 3600));
    restarts.count = 3;
    restarts.failed_at = Some(in_a_year);
    restarts.next_attempt_at = Some(in_a_year.plus(Duration::from_secs(2)));
    let decided = model.pass().unwrap();
    assert!(decided.steps.iter().any(|step| matches!(step, Step::Launch { .. })), "{decided:?}");
}

/// Found by the simulator: the pass was taken up again for ever, as the slot was never free.
#[test]
fn the_slot_of_a_turn_that_ends_in_a_pass_is_not_the_next_ones() {
    let mut model = Model::new();
    let mut first = turn("s-1", UID);
    first.spec.admission = Admission::Immediate;
    model.slots.push(first.metadata.uid.clone());
    model.slots_max = 1;
    model.turns.push(first);
    model.turns.push(turn("s-2", "0198c0de-0000-7000-8000-00000000000b"));
    // An earlier daemon admitted the first one; every slot is taken until it has ended.
    let decided = model.pass().unwrap();
    assert_eq!(model.turns[0].status.phase, TurnPhase::Interrupted);
    assert_eq!(model.turns[1].status.phase, TurnPhase::Pending);
    assert_eq!(decided.requeue, super::Requeue::After(Duration::ZERO));
    model.pass();
    assert_eq!(model.turns[1].status.phase, TurnPhase::Starting);
}

#[test]
fn after_a_restart_what_was_cancelled_is_cancelled() {
    for delivery in [Delivery::NotSent, Delivery::Unknown, Delivery::Sent] {
        let mut model = taken_before(TurnPhase::Starting, delivery, true);
        model.turns[0].spec.desired_state = TurnDesiredState::Cancelled;
        check(model, TurnPhase::Cancelled, Some(Code::TurnCancelled));
        let mut model = taken_before(TurnPhase::Cancelling, delivery, true);
        model.session.as_mut().unwrap().spec.desired_state = DesiredState::Cancelled;
        check(model, TurnPhase::Cancelled, Some(Code::TurnCancelled));
        let mut model = taken_before(TurnPhase::Cancelling, delivery, true);
        let at = Time::from_millis(EPOCH_MS);
        model.turns[0].status.cancel =
            Some(Cancel { by: CancelBy::Parent, reason: "asked".into(), at });
        check(model, TurnPhase::Cancelled, Some(Code::TurnCancelledByParent));
    }
}

#[test]
fn the_phase_follows_from_what_is_recorded() {
    let phase = |change: &dyn Fn(&mut Model)| {
        let mut model = open();
        change(&mut model);
        model.pass();
        model.session.unwrap().status.phase
    };
    let with_turn = |wanted: TurnPhase| {
        move |model: &mut Model| {
            *model = running();
            model.turns[0].status.phase = wanted;
        }
    };
    assert_eq!(phase(&|_| {}), SessionPhase::Idle);
    assert_eq!(phase(&with_turn(TurnPhase::Running)), SessionPhase::Running);
    assert_eq!(phase(&with_turn(TurnPhase::Starting)), SessionPhase::Starting);
    assert_eq!(phase(&|model| *model = cancelled(CancelBy::Operator)), SessionPhase::Cancelling);
    let without_process = |model: &mut Model| {
        model.process = Process::Absent;
        model.session.as_mut().unwrap().status.process = None;
    };
    assert_eq!(phase(&|model| without_process(model)), SessionPhase::Idle);
    let prompted = |model: &mut Model| {
        without_process(model);
        model.session.as_mut().unwrap().status.prompted = true;
    };
    assert_eq!(phase(&|model| prompted(model)), SessionPhase::Hibernated);
    let forgetful = |model: &mut Model| {
        prompted(model);
        model.session.as_mut().unwrap().status.capabilities = None;
    };
    assert_eq!(phase(&|model| forgetful(model)), SessionPhase::Expired);
    let unresolved = |model: &mut Model| {
        without_process(model);
        model.agent =
            Finding::Missing(Missing { reason: "AgentNotFound", message: "no agent".into() });
    };
    assert_eq!(phase(&|model| unresolved(model)), SessionPhase::Pending);
    let full = |model: &mut Model| {
        without_process(model);
        model.turns.push(turn("s-1", UID));
        model.slots_max = 0;
    };
    assert_eq!(phase(&|model| full(model)), SessionPhase::Pending);
    let ending = |model: &mut Model| {
        model.session.as_mut().unwrap().spec.desired_state = DesiredState::Cancelled;
    };
    assert_eq!(phase(&|model| ending(model)), SessionPhase::Cancelling);
    let ended = |model: &mut Model| {
        without_process(model);
        ending(model);
    };
    assert_eq!(phase(&|model| ended(model)), SessionPhase::Stopped);
    let broken = |model: &mut Model| {
        model.live_mut().unwrap().acp.fault = Some(Fault::FrameTooLarge);
        model.live_mut().unwrap().stage = Stage::Empty { status: "signal 9".into() };
    };
    assert_eq!(phase(&|model| broken(model)), SessionPhase::Failed);
    let deleted = |model: &mut Model| {
        let session = model.session.as_mut().unwrap();
        session.metadata.deletion_timestamp = Some(Time::from_millis(EPOCH_MS));
    };
    assert_eq!(phase(&|model| deleted(model)), SessionPhase::Terminating);
}

#[test]
fn a_settled_session_whose_idle_time_ended_before_its_ttl_is_idle_and_not_timed_out() {
    let mut model = open();
    let session = model.session.as_mut().unwrap();
    session.spec.ttl = Some(Dur::from_secs(100));
    session.spec.idle_timeout = Dur::from_secs(50);
    session.status.idle_since = Some(Time::from_millis(EPOCH_MS));
    model.elapsed = Duration::from_secs(1000);
    model.pass();
    assert_eq!(model.session.unwrap().status.end, None, "the idle process is stopped first");
}

/// The times of the ladder: cancel 5 s, close 300 ms, eof 5 s, term 250 ms, then kills, 2 s apart
/// and doubling up to a minute.
#[test]
fn the_stop_ladder_takes_each_rung_at_its_time() {
    let mut model = running();
    model.session.as_mut().unwrap().spec.desired_state = DesiredState::Cancelled;
    let mut rungs: Vec<(u64, Rung)> = Vec::new();
    for ms in (0..200_000).step_by(50) {
        model.elapsed = Duration::from_millis(ms);
        let world = model.world().unwrap();
        let decided = plan(&world, model.now());
        for step in &decided.steps {
            let Step::Stop { rung, cause } = step else {
                model.apply(step);
                continue;
            };
            rungs.push((ms, *rung));
            // The agent hears nothing, and its tree never empties.
            let now = model.now().mono;
            let live = model.live_mut().unwrap();
            let killed = live.stop.as_ref().filter(|stop| stop.rung == Rung::Kill);
            let unconfirmed = killed.map_or(0, |stop| stop.unconfirmed + 1);
            live.stop = Some(Stop { rung: *rung, since: now, unconfirmed, cause: cause.clone() });
            if *rung == Rung::Close {
                live.acp.close = Call::InFlight;
            }
        }
    }
    let wanted = [
        (0, Rung::Cancel),
        (5000, Rung::Close),
        (5300, Rung::Eof),
        (10_300, Rung::Term),
        (10_550, Rung::Kill),
        (12_550, Rung::Kill),
        (16_550, Rung::Kill),
        (24_550, Rung::Kill),
        (40_550, Rung::Kill),
        (72_550, Rung::Kill),
        (132_550, Rung::Kill),
        (192_550, Rung::Kill),
    ];
    assert_eq!(rungs, wanted);
    let session = model.session.unwrap();
    assert_eq!(session.status.process.unwrap().state, ProcessState::Unknown);
    assert_eq!(model.slots.len(), 1);
}

/// A model whose starts fail one after the other.
fn failing() -> Model {
    let mut model = Model::new();
    model.behaviour = Behaviour::Deaf;
    model.turns.push(turn("s-1", UID));
    model
}

/// Lets starts fail until the planner gives up; tells the times between a failure and the next
/// launch, in milliseconds.
fn pauses(model: &mut Model) -> Vec<u128> {
    let mut pauses = Vec::new();
    let mut failed_at: Option<Duration> = None;
    for _ in 0..100 {
        let world = model.world().unwrap();
        let decided = plan(&world, model.now());
        if decided.steps.iter().any(|step| matches!(step, Step::Launch { .. })) {
            pauses.extend(failed_at.take().map(|at| (model.elapsed - at).as_millis()));
            for step in &decided.steps {
                if !matches!(step, Step::Launch { .. }) {
                    model.apply(step);
                }
            }
            let failure = StartFailure { reason: "LaunchFailed", message: "no such file".into() };
            model.process = Process::NotStarted { failure };
            failed_at = Some(model.elapsed);
            continue;
        }
        for step in &decided.steps {
            model.apply(step);
        }
        if decided.steps.is_empty() {
            match decided.requeue {
                super::Requeue::After(wait) => model.elapsed += wait,
                super::Requeue::AwaitChange => break,
            }
        }
    }
    pauses
}

#[test]
fn failed_starts_are_tried_again_after_0_500_2000_and_5000_ms_and_then_not_any_more() {
    let mut model = failing();
    assert_eq!(pauses(&mut model), [0, 500, 2000, 5000]);
    let restarts = &model.session.as_ref().unwrap().status.restarts;
    assert_eq!((restarts.count, restarts.next_attempt_at), (5, None));
    assert_eq!(model.turns[0].status.phase, TurnPhase::Pending);
    assert_eq!(model.slots.len(), 0);
    assert!(plan(&model.world().unwrap(), model.now()).why.starts_with("CrashLoopBackOff"));
}

/// Found by a hostile tester: a daemon whose wall clock was ahead had made the prompt.
#[test]
fn a_crash_loop_goes_by_the_order_of_prompts_and_not_by_the_wall_clock() {
    let mut model = failing();
    let ahead = model.now().time.plus(Duration::from_secs(90_000));
    model.turns[0].metadata.creation_timestamp = Some(ahead);
    assert_eq!(pauses(&mut model), [0, 500, 2000, 5000]);
    model.elapsed += Duration::from_secs(60);
    assert_eq!(pauses(&mut model), Vec::<u128>::new(), "it is not newer for ever");
    model.session.as_mut().unwrap().status.restarts.failed_at = Some(ahead);
    let mut newer = turn("s-2", "0198c0de-0000-7000-8000-00000000000b");
    newer.metadata.creation_timestamp = Some(model.now().time);
    model.turns.push(newer);
    assert_eq!(pauses(&mut model), [0, 500, 2000, 5000], "a new prompt tries again");
}

#[test]
fn a_new_generation_or_a_new_prompt_clears_a_crash_loop_and_time_does_not() {
    let changes: [fn(&mut Model); 3] = [
        |model| model.session.as_mut().unwrap().metadata.generation += 1,
        |model| {
            let Finding::Found(agent) = &mut model.agent else { panic!("the agent is there") };
            agent.metadata.generation += 1;
        },
        |model| {
            let mut newer = turn("s-2", "0198c0de-0000-7000-8000-00000000000b");
            newer.metadata.creation_timestamp = Some(model.now().time);
            model.turns.push(newer);
        },
    ];
    for change in changes {
        let mut model = failing();
        pauses(&mut model);
        model.elapsed += Duration::from_secs(86_400);
        assert_eq!(pauses(&mut model), Vec::<u128>::new());
        change(&mut model);
        assert_eq!(pauses(&mut model), [0, 500, 2000, 5000]);
    }
}

#[test]
fn a_process_that_may_exist_is_joined_by_no_second_one_and_its_turn_does_not_end() {
    let mut model = running();
    model.process = Process::Unproven;
    for desired in [TurnDesiredState::Running, TurnDesiredState::Cancelled] {
        model.turns[0].spec.desired_state = desired;
        model.pass();
        assert!(!model.turns[0].status.phase.is_final());
        assert_eq!(model.slots.len(), 1);
        let state = model.session.as_ref().unwrap().status.process.as_ref().unwrap().state;
        assert_eq!(state, ProcessState::Unknown);
    }
}

#[test]
fn an_agent_that_lost_the_session_expires_it_unless_a_new_one_is_wanted() {
    use crate::api::session::OnSessionLost;
    for wanted in [OnSessionLost::Expire, OnSessionLost::New] {
        let mut model = open();
        model.turns.push(turn("s-1", UID));
        let session = model.session.as_mut().unwrap();
        session.status.prompted = true;
        session.spec.on_session_lost = wanted;
        let live = model.live_mut().unwrap();
        let message = "unknown session".to_owned();
        live.acp.open =
            Call::Failed(CallFailure { kind: CallFailureKind::SessionLost, code: -32002, message });
        model.converge(Duration::from_secs(60));
        let session = model.session.unwrap();
        match wanted {
            OnSessionLost::Expire => {
                let end = session.status.end.unwrap();
                assert_eq!(
                    (end.outcome, end.reason.as_str()),
                    (EndOutcome::Expired, "SessionLost")
                );
                assert!(model.sent.is_empty());
            }
            OnSessionLost::New => {
                assert!(session.status.has_lost_memory);
                assert_eq!(model.turns[0].status.phase, TurnPhase::Completed);
            }
        }
    }
}
