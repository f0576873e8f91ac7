//! Turns that somebody waits for: their slot, their first start, and who cancels them.

use std::time::Duration;

use super::*;
use crate::api::session::Provider;
use crate::api::turn::SourceKind;
use crate::api::{CallerToken, Incarnation, Session, Turn};
use crate::plan::Plan;

/// A turn of the spawn toolset, admitted together with its slot by this daemon.
fn asked_for() -> Model {
    let mut model = Model::new();
    let mut record = turn("s-1", UID);
    record.spec.source.kind = SourceKind::Spawn;
    model.admit_at_once(record);
    model
}

fn session(model: &Model) -> &Session {
    model.session.as_ref().unwrap()
}

fn missing(reason: &'static str) -> Missing {
    Missing { reason, message: format!("{reason}: look for it") }
}

/// Runs to rest, and tells the turn; the slot went with it.
#[track_caller]
fn at_rest(model: &mut Model, phase: TurnPhase, code: Option<Code>) -> Turn {
    model.converge(Duration::from_secs(60));
    let turn = model.turns[0].clone();
    assert_eq!((turn.status.phase, turn.status.code), (phase, code), "{turn:#?}");
    assert!(model.slots.is_empty(), "{:?}", model.slots);
    turn
}

/// Test catalogue A5.
#[test]
fn a_turn_that_has_its_slot_since_its_admission_takes_no_second_one_and_gives_it_back() {
    let mut model = asked_for();
    model.slots_max = 1;
    let mut most = 0;
    for _ in 0..20 {
        model.pass();
        model.agent_acts();
        most = most.max(model.slots.len());
        let is_open = !model.turns[0].status.phase.is_final();
        assert_eq!(model.slots.len(), usize::from(is_open), "{:#?}", model.turns[0].status);
    }
    assert_eq!(most, 1);
    at_rest(&mut model, TurnPhase::Completed, None);
}

#[test]
fn a_turn_that_has_its_slot_goes_before_one_that_waits_for_a_slot() {
    let mut model = asked_for();
    model.slots_max = 1;
    model.turns.insert(0, turn("s-0", "0198c0de-0000-7000-8000-000000000009"));
    model.pass();
    let phases: Vec<_> = model.turns.iter().map(|turn| turn.status.phase).collect();
    assert_eq!(phases, [TurnPhase::Pending, TurnPhase::Starting]);
    at_rest(&mut model, TurnPhase::Completed, None);
    assert_eq!(model.turns[1].status.phase, TurnPhase::Completed);
}

#[test]
fn a_turn_that_waits_through_a_pause_between_starts_keeps_its_slot() {
    let mut model = asked_for();
    model.turns[0].spec.source.kind = SourceKind::Operator;
    let failure = StartFailure { reason: "LaunchFailed", message: "no such file".into() };
    // The first pause is none, the second is 500 ms.
    while session(&model).status.restarts.count < 2 {
        model.pass();
        assert_eq!(model.slots.len(), 1, "it waits with its slot");
        if matches!(model.process, Process::Live(_)) {
            model.process = Process::NotStarted { failure: failure.clone() };
        }
    }
    model.pass();
    assert_eq!(model.turns[0].status.phase, TurnPhase::Pending);
    assert_eq!(model.slots.len(), 1, "it waits with its slot");
    model.elapsed += Duration::from_millis(500);
    at_rest(&mut model, TurnPhase::Completed, None);
}

#[test]
fn starts_that_fail_to_the_end_fail_a_turn_that_must_not_wait() {
    let mut model = asked_for();
    model.turns[0].spec.source.kind = SourceKind::Operator;
    assert_eq!(pauses(&mut model), [0, 500, 2000, 5000]);
    at_rest(&mut model, TurnPhase::Failed, Some(Code::SpawnAgentStartFailed));
    assert_eq!(session(&model).status.end, None, "its session waits for another prompt");
    let mut next = turn("s-2", "0198c0de-0000-7000-8000-00000000000b");
    next.metadata.creation_timestamp = Some(model.now().time.plus(Duration::from_secs(1)));
    model.elapsed += Duration::from_secs(2);
    model.admit_at_once(next);
    model.converge(Duration::from_secs(60));
    assert_eq!(model.turns[1].status.phase, TurnPhase::Completed, "a new prompt tries again");
}

#[test]
fn a_turn_that_must_not_wait_fails_for_a_missing_agent_or_folder() {
    let mut model = asked_for();
    model.agent = Finding::Missing(missing("AgentNotFound"));
    let turn = at_rest(&mut model, TurnPhase::Failed, Some(Code::SpawnAgentStartFailed));
    assert!(turn.status.message.starts_with("AgentNotFound"), "{}", turn.status.message);
    let mut model = asked_for();
    model.scope = Finding::Missing(missing("FolderMissing"));
    at_rest(&mut model, TurnPhase::Failed, Some(Code::SessionFolderPathMissing));
    assert_eq!(session(&model).status.end, None, "the folder may come back");
    let mut model = asked_for();
    model.turns[0].spec.admission = Admission::Queue;
    model.slots.clear();
    model.agent = Finding::Missing(missing("AgentNotFound"));
    model.converge(Duration::from_secs(30));
    assert_eq!(model.turns[0].status.phase, TurnPhase::Pending, "a queued one waits");
}

#[test]
fn a_turn_that_must_not_wait_is_interrupted_by_the_daemons_end_wherever_it_is() {
    for phase in [TurnPhase::Pending, TurnPhase::Starting] {
        let mut model = asked_for();
        model.turns[0].status.phase = phase;
        model.crash();
        let turn = at_rest(&mut model, TurnPhase::Interrupted, Some(Code::AppRestarted));
        assert_eq!(turn.status.delivery, Delivery::NotSent);
        assert!(model.sent.is_empty());
    }
}

#[test]
fn a_turn_admitted_by_this_daemon_is_not_one_of_the_daemon_before() {
    let mut model = asked_for();
    model.pass();
    assert_eq!(model.turns[0].status.phase, TurnPhase::Starting);
    at_rest(&mut model, TurnPhase::Completed, None);
}

#[test]
fn the_first_failed_start_for_a_caller_ends_the_session() {
    let rows = [
        ("LaunchFailed", Code::SpawnAgentStartFailed),
        ("StartTimeout", Code::SpawnAgentStartFailed),
        ("AuthRequired", Code::SpawnAgentAuthRequired),
    ];
    for (reason, code) in rows {
        let mut model = asked_for();
        model.pass();
        let failure = StartFailure { reason, message: "it said why".into() };
        model.process = Process::NotStarted { failure };
        let turn = at_rest(&mut model, TurnPhase::Failed, Some(code));
        assert_eq!(turn.status.message, "it said why");
        let status = &session(&model).status;
        assert_eq!(
            (status.phase, status.reason.as_str()),
            (SessionPhase::Failed, "StartupFailure")
        );
        assert_eq!(status.end.as_ref().unwrap().code, Some(code));
        assert!(status.finished_at.is_some());
    }
}

#[test]
fn an_agent_that_ends_before_it_is_ready_ends_the_callers_session() {
    let mut model = asked_for();
    model.pass();
    model.live_mut().unwrap().stage = Stage::Empty { status: "exit code 3".into() };
    at_rest(&mut model, TurnPhase::Failed, Some(Code::SpawnAgentStartFailed));
    assert_eq!(session(&model).status.phase, SessionPhase::Failed);
}

#[test]
fn a_failed_start_of_a_session_that_was_open_before_fails_its_turn_alone() {
    let mut model = asked_for();
    let status = &mut model.session.as_mut().unwrap().status;
    (status.prompted, status.acp_session_id) = (true, Some("acp".into()));
    status.capabilities = Some(capable());
    model.pass();
    let failure = StartFailure { reason: "LaunchFailed", message: "no such file".into() };
    model.process = Process::NotStarted { failure };
    at_rest(&mut model, TurnPhase::Failed, Some(Code::SpawnAgentStartFailed));
    assert_eq!(session(&model).status.phase, SessionPhase::Hibernated);
}

/// Asks for the session's end as its parent.
fn cancel_by_parent(model: &mut Model) {
    let at = Time::from_millis(EPOCH_MS);
    let session = model.session.as_mut().unwrap();
    session.spec.desired_state = DesiredState::Cancelled;
    session.status.cancel =
        Some(Cancel { by: CancelBy::Parent, reason: "the parent session cancelled it".into(), at });
}

#[test]
fn a_session_that_its_parent_cancels_ends_its_turn_as_the_parents_cancel() {
    let waiting = asked_for();
    let mut starting = asked_for();
    starting.pass();
    for mut model in [waiting, starting, running()] {
        cancel_by_parent(&mut model);
        let wanted = Some(Code::TurnCancelledByParent);
        let turn = at_rest(&mut model, TurnPhase::Cancelled, wanted);
        assert_eq!(turn.status.cancel.unwrap().by, CancelBy::Parent);
        let status = &session(&model).status;
        assert_eq!((status.phase, status.reason.as_str()), (SessionPhase::Stopped, "Cancelled"));
        assert_eq!(status.end.as_ref().unwrap().code, wanted);
    }
}

#[test]
fn a_parents_cancel_that_a_crash_met_is_still_the_parents() {
    let mut model = running();
    cancel_by_parent(&mut model);
    model.crash();
    at_rest(&mut model, TurnPhase::Cancelled, Some(Code::TurnCancelledByParent));
}

#[test]
fn a_cancelled_call_ends_a_turn_that_was_not_sent_and_the_session_goes_on() {
    let waiting = asked_for();
    let mut starting = asked_for();
    starting.pass();
    for mut model in [waiting, starting] {
        let at = Time::from_millis(EPOCH_MS);
        let turn = &mut model.turns[0];
        turn.spec.desired_state = TurnDesiredState::Cancelled;
        let reason = "the call was cancelled".to_owned();
        turn.status.cancel = Some(Cancel { by: CancelBy::CallCancelled, reason, at });
        let turn = at_rest(&mut model, TurnPhase::Cancelled, Some(Code::TurnCancelled));
        assert_eq!(turn.status.cancel.unwrap().by, CancelBy::CallCancelled);
        assert_eq!(turn.status.delivery, Delivery::NotSent);
        assert_eq!((session(&model).status.end.as_ref(), model.sent.len()), (None, 0));
    }
}

/// A session that the daemon does not run.
fn external() -> Model {
    let mut model = Model::new();
    let session = model.session.as_mut().unwrap();
    session.spec.provider = Provider::External;
    session.spec.agent = String::new();
    model.agent = Finding::Unknown;
    model
}

#[test]
fn an_external_session_is_idle_and_never_has_a_process() {
    let mut model = external();
    model.turns.push(turn("s-1", UID));
    model.converge(Duration::from_secs(60));
    let status = &session(&model).status;
    assert_eq!((status.phase, status.reason.as_str()), (SessionPhase::Idle, "External"));
    assert!(status.conditions.is_true("SessionReady"));
    assert_eq!(status.conditions.get("ProcessReady").unwrap().reason, "External");
    assert_eq!((status.process.as_ref(), status.incarnation.0), (None, 0));
    assert_eq!(model.turns[0].status.phase, TurnPhase::Discarded, "it takes no turns");
}

#[test]
fn an_external_session_ends_and_goes_like_any_other() {
    let mut model = external();
    model.session.as_mut().unwrap().spec.desired_state = DesiredState::Cancelled;
    model.converge(Duration::from_secs(60));
    assert_eq!(session(&model).status.phase, SessionPhase::Stopped);
    model.elapsed += session(&model).spec.ttl_after_finished.get() + Duration::from_secs(1);
    model.converge(Duration::from_secs(60));
    assert!(model.session.is_none(), "its retention is over");
    let mut model = external();
    model.session.as_mut().unwrap().metadata.deletion_timestamp = Some(Time::from_millis(EPOCH_MS));
    model.converge(Duration::from_secs(60));
    assert!(model.session.is_none());
}

/// What a plan grants and what it launches.
fn granted(plan: &Plan) -> (Option<Incarnation>, Option<Incarnation>) {
    let of = |find: fn(&Step) -> Option<Incarnation>| plan.steps.iter().find_map(find);
    (
        of(|step| if let Step::Record(change) = step { change.new_token } else { None }),
        of(|step| if let Step::Launch { incarnation } = step { Some(*incarnation) } else { None }),
    )
}

#[test]
fn a_session_that_delegates_gets_a_token_with_each_run_and_loses_those_before() {
    for delegates in [true, false] {
        let mut model = asked_for();
        let record = model.session.as_mut().unwrap();
        record.spec.delegation.enabled = delegates;
        let of_run = |run| CallerToken {
            id: "id".into(),
            sha256: "hash".into(),
            toolsets: Vec::new(),
            control_mode: crate::api::session::ControlMode::ReadOnly,
            incarnation: Some(Incarnation(run)),
            created_at: crate::api::Time::from_millis(0),
            expires_at: None,
        };
        record.status.incarnation = Incarnation(7);
        record.status.tokens = vec![of_run(6), of_run(7)];
        let plans: Vec<Plan> = (0..4).filter_map(|_| model.pass()).collect();
        let launch = plans.iter().map(granted).find(|(_, launch)| launch.is_some()).unwrap();
        let run = Some(Incarnation(8));
        assert_eq!(launch, (if delegates { run } else { None }, run));
        assert_eq!(session(&model).status.tokens, [], "the one before is worth nothing");
    }
}
